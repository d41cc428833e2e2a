//! Group `apps.kruise.io`, one file per kind.

pub mod advanced_cron_job;
pub mod broadcast_job;
pub mod clone_set;
pub mod container_recreate_request;
pub mod daemon_set;
pub mod ephemeral_job;
pub mod image_list_pull_job;
pub mod image_pull_job;
pub mod lifecycle;
pub mod node_image;
pub mod node_pod_probe;
pub mod persistent_pod_state;
pub mod pod_probe_marker;
pub mod resource_distribution;
pub mod sidecar_set;
pub mod stateful_set;
pub mod strategies;
pub mod united_deployment;
pub mod workload_spread;

/// The API group of the workload kinds.
pub const GROUP: &str = "apps.kruise.io";
