//! The rules of the BroadcastJob: which nodes have a Pod, what one pass does, and what the job says of itself.
//!
//! ```text
//! BroadcastJob ──spec.rs──▶ BroadcastSpec ─┐
//! NodeView ──────pod.rs───▶ BroadcastNode ─┼─▶ plan.rs ─▶ BroadcastPlan ─▶ the controller
//! PodView ───────pod.rs───▶ BroadcastPod ──┘        └──▶ status.rs
//! ```

pub mod make;
pub mod plan;
pub mod pod;
pub mod spec;
pub mod status;

#[cfg(test)]
mod tests;
