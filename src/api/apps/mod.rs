//! Group `apps.kruise.io`, one file per kind.

pub mod container_recreate_request;

/// The API group of the workload kinds.
pub const GROUP: &str = "apps.kruise.io";
