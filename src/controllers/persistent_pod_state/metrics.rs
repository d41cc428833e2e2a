//! What the controller counts.

use std::sync::Arc;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};

use crate::{controllers::Context, domain::kinds::persistent_pod_state::plan::Cleared};

/// Labels of the counter of places that are not kept any more.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ClearLabels {
    /// `node_gone`, `node_not_ready` for too long, or `labels_gone`.
    reason: &'static str,
}

/// The counters.
#[derive(Clone, Default)]
pub(super) struct Metrics {
    cleared: Family<ClearLabels, Counter>,
    /// Pods that waited for a node that is lost and were evicted.
    pub(super) evicted: Counter,
}

impl Metrics {
    /// Registers them.
    pub(super) fn new(context: &Context) -> Arc<Self> {
        let metrics = Arc::new(Self::default());
        let help = "Places of Pods that are not kept any more because their nodes are lost, by reason";
        context.metrics.register("kruise_persistent_pod_state_places_cleared", help, &metrics.cleared);
        let help = "Pods that waited for a lost node and were evicted so that others are made without it";
        context.metrics.register("kruise_persistent_pod_state_evictions", help, &metrics.evicted);
        metrics
    }

    pub(super) fn cleared(&self, why: Cleared) {
        self.cleared.get_or_create(&ClearLabels { reason: why.label() }).inc();
    }
}
