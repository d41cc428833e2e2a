//! SHELL that the roles share: clients, certificates and what our TLS servers have in common, clock, watches, queues, leader election, events, metrics.
//!
//! Everything with an effect on the world outside this process goes through here, `cri` or a controller's `apply`.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub mod apply;
mod as_sent;
pub mod batches;
pub mod certificate_secret;
pub mod certs;
pub mod change;
pub mod claim_control;
pub mod client;
pub mod clock;
pub mod connections;
pub mod ending;
pub mod events;
pub mod expiry;
pub mod fair_places;
#[cfg(test)]
pub(crate) mod fake_api;
pub mod fence;
pub mod guarded;
pub mod held;
pub mod in_place;
pub mod kruise_configuration;
pub mod leader;
mod levels;
pub mod live;
pub mod metrics;
pub mod nodes;
pub mod object;
pub mod object_key;
pub mod own_policies;
pub mod packed;
pub mod pass;
pub mod places;
pub mod pod_control;
pub mod pod_template;
pub mod pre_download;
mod protobuf_watch;
pub mod queue;
pub mod random;
mod repeat;
pub mod replicas;
pub mod retry;
pub mod revisions;
pub mod serve;
pub mod served;
pub mod shutdown;
mod silence;
pub mod slow_start;
pub mod standstill;
pub mod status_writer;
pub mod store_index;
pub mod stored;
pub mod stored_versions;
pub mod telemetry;
pub mod unreadable;
pub mod wake;
pub mod watches;
pub mod workload;

/// A lock over something that is whole between any two statements: a panic while it was held has broken nothing.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
