//! The rules of PersistentPodState: what is recorded of the Pods of a StatefulSet, what a new Pod gets of it, and which
//! objects annotations of StatefulSets make.
//!
//! ```text
//! PersistentPodState ──spec.rs──▶ StateSpec ──┐
//! Pods, nodes, target ────────────────────────┼─▶ plan.rs ─▶ StatePlan ─▶ the controller
//!                                             └─▶ restore.rs: a new Pod, in the webhook
//! annotations of a StatefulSet ──generate.rs──▶ Generation ─▶ the controller
//! ```

pub mod generate;
pub mod plan;
pub mod restore;
pub mod spec;

#[cfg(test)]
mod tests;
