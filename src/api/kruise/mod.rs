//! Group `kruise.rs`: kinds that OpenKruise does not have. One file per kind.

pub mod workload_restart;

/// The API group of our own kinds.
pub const GROUP: &str = "kruise.rs";
