//! The plans of single kinds, one folder each. A kind never imports another one.

pub mod broadcast_job;
pub mod clone_set;
pub mod cron_job;
pub mod daemon_set;
pub mod ephemeral_job;
pub mod image_jobs;
pub mod persistent_pod_state;
pub mod resource_distribution;
pub mod sidecar_set;
pub mod stateful_set;
pub mod united_deployment;
pub mod workload_restart;
pub mod workload_spread;

#[cfg(test)]
mod tests;
