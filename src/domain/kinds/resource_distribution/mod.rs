//! The rules of ResourceDistribution: what every copy is, which namespaces get one, what to do next and how fast.
//!
//! ```text
//! ResourceDistribution ──spec.rs──▶ DistributionSpec ──┐
//! what is distributed ──content.rs──▶ Content ─────────┼─▶ plan.rs ─▶ Survey ─▶ steps of the controller
//! Namespaces, copies that are seen, memory.rs ─────────┘                 └─────▶ status.rs
//! one copy ──copy.rs──▶ whose it is, what differs
//! ```
//!
//! Copies of ConfigMaps are seen by a watch. Of Secrets nothing is listed or watched: a copy is known from the last write or
//! look, and looked at again after a while ([`turns::Periods`]), some copies at a time.

pub mod content;
pub mod copy;
pub mod memory;
pub mod plan;
pub mod spec;
pub mod status;
pub mod turns;

#[cfg(test)]
mod tests;
