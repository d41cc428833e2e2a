//! The admission handlers, one file for each kind.

pub mod advanced_cron_job;
pub mod broadcast_job;
pub mod clone_set;
pub mod container_recreate_request;
pub mod daemon_set;
pub mod deletion_protection;
pub mod ephemeral_job;
pub mod image_pull_job;
pub mod persistent_pod_state;
pub mod pod;
pub mod pod_budget;
pub mod pod_probe_marker;
pub mod pod_unavailable_budget;
pub mod resource_distribution;
pub mod serverless_probes;
pub mod sidecar_set;
pub mod stateful_set;
pub mod united_deployment;
pub mod workload_spread;
