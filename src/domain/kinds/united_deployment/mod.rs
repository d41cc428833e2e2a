//! What a UnitedDeployment does: how many replicas each subset gets ([`crate::domain::workload::allocation`]), what its
//! workload looks like ([`make`]), how far each may update ([`waves`]), which ones are taken over ([`adopt`]), and what has to be
//! done ([`plan`]).
//!
//! The workloads of subsets have the names, labels and annotations that OpenKruise gives them: one that is taken over is
//! not written to.

pub mod adopt;
pub mod child;
pub mod make;
pub mod plan;
pub mod pods;
pub mod schedule;
pub mod spec;
pub mod status;
pub mod stuck;
pub mod typed;
pub mod waves;

#[cfg(test)]
mod tests;
