//! The rules of WorkloadSpread: which subset a new Pod goes to and what it gets there, what there is of each subset, in which
//! order Pods go, and which subsets get no more Pods for a while.
//!
//! ```text
//! WorkloadSpread ──spec.rs──▶ SpreadSpec ──┬─▶ count.rs: the next subset, recorded  ─┐
//!                                          ├─▶ ahead.rs: places for the next Pods   ─┤
//! status, target ──replicas.rs─────────────┤                                         ├─▶ the webhook
//! a new Pod ───────────────────────────────┴─▶ inject.rs: nodes, tolerations, patch ─┘
//! Pods, nodes ──adopt.rs: Pods that were missed──▶ plan.rs ─▶ SpreadPlan ─▶ the controller
//!                                                   ├─ cost.rs: which Pods go first
//!                                                   ├─ places.rs: subsets in which Pods find no place
//!                                                   ├─ jobs.rs: whether Pods of a Job may be evicted from there
//!                                                   └─ status.rs, settled.rs: how it is written
//! ```
//!
//! Webhook and controller write one status. The webhook writes on the version that it has read, or adds records alone and looks
//! at what has come of it (`added.rs`); the controller leaves alone what is recorded meanwhile (`settled.rs`). `patch.rs` is what
//! both patches share.

pub mod added;
pub mod adopt;
pub mod ahead;
pub mod cost;
pub mod count;
pub mod inject;
pub mod jobs;
pub mod matching;
mod patch;
pub mod places;
pub mod plan;
pub mod problems;
pub mod replicas;
pub mod settled;
pub mod spec;
pub mod status;

#[cfg(test)]
mod tests;
