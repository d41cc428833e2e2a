//! What the controller counts.

use std::sync::Arc;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};

use crate::controllers::Context;

/// Labels of the counter of records that ended without their Pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ExpiryLabels {
    /// `creation` or `deletion`.
    pub(super) record: &'static str,
}

/// The counters.
#[derive(Clone, Default)]
pub(super) struct Metrics {
    /// Records of Pods on their way that ended without their Pod.
    pub(super) expired: Family<ExpiryLabels, Counter>,
    /// Pods that were assigned to a subset by their nodes.
    pub(super) assigned: Counter,
    /// Pods that found no place and were evicted.
    pub(super) evicted: Counter,
}

impl Metrics {
    /// Registers them.
    pub(super) fn new(context: &Context) -> Arc<Self> {
        let metrics = Arc::new(Self::default());
        let help = "Pods that were recorded as being created or deleted and were not, by what was recorded";
        context.metrics.register("kruise_workload_spread_expired_records", help, &metrics.expired);
        let help = "Pods that the webhook had not seen and that were assigned to a subset by their nodes";
        context.metrics.register("kruise_workload_spread_assigned_pods", help, &metrics.assigned);
        let help = "Pods that found no node in their subset in time and were evicted";
        context.metrics.register("kruise_workload_spread_evictions", help, &metrics.evicted);
        metrics
    }
}
