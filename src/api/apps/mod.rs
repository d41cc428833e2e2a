//! Group `apps.kruise.io`, one file per kind.

pub mod clone_set;
pub mod container_recreate_request;
pub mod lifecycle;
pub mod node_pod_probe;
pub mod pod_probe_marker;

/// The API group of the workload kinds.
pub const GROUP: &str = "apps.kruise.io";
