//! Group `policy.kruise.io`: guard rails. One file per kind.

pub mod pod_unavailable_budget;

/// The API group of the guard rails.
pub const GROUP: &str = "policy.kruise.io";
