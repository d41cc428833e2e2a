//! Group `apps.kruise.io`, one file per kind.

pub mod clone_set;
pub mod container_recreate_request;
pub mod lifecycle;

/// The API group of the workload kinds.
pub const GROUP: &str = "apps.kruise.io";
