//! The rules of the Advanced DaemonSet: which nodes have a Pod, what one pass does, and what the set says of itself.
//!
//! ```text
//! DaemonSet ──spec.rs─────────────────▶ Spec ─┐
//! NodeView ──────pod.rs──────────────▶ Node ─┼─▶ pass.rs: keep.rs, then update.rs ─▶ Plan ─▶ the controller
//! PodView ───────pod.rs──────────────▶ Pod ──┘
//!                                            └─▶ status.rs
//! ```

pub mod away;
mod keep;
pub mod make;
pub mod pass;
pub mod plan;
pub mod pod;
pub mod ports;
pub mod pre_download;
pub mod room;
pub mod spec;
pub mod status;
pub mod tolerations;
mod update;

#[cfg(test)]
mod tests;
