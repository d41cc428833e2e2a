//! SHELL that the roles share: clients, certificates and what our TLS servers have in common, clock, watches, queues, leader election, events, metrics.
//!
//! Everything with an effect on the world outside this process goes through here, `cri` or a controller's `apply`.

pub mod apply;
pub mod certificate_secret;
pub mod certs;
pub mod client;
pub mod clock;
pub mod connections;
pub mod events;
pub mod fence;
pub mod leader;
pub mod metrics;
pub mod pod_template;
pub mod queue;
pub mod serve;
pub mod shutdown;
pub mod slow_start;
pub mod stored_versions;
pub mod telemetry;
pub mod watches;
pub mod workload;
