//! What the controller counts.

use std::sync::Arc;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

use crate::controllers::Context;

/// Labels of the counter of writes to Pods.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct WriteLabels {
    /// `update`, or `reset` of the twin that is not at work.
    operation: &'static str,
    /// `done`; `refused` by a budget or by the API server; or `failed`.
    result: &'static str,
}

/// What came of a write to a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Done,
    Refused,
    Failed,
}

impl Written {
    fn label(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// Labels of the counter of repairs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RepairLabels {
    /// `evicted`; `refused` by a budget or by the API server; `not_injected`: another Pod would lack them too; `stopped`.
    result: &'static str,
}

/// What came of the repair of a Pod that lacks the containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repaired {
    Evicted,
    Refused,
    NotInjected,
    Stopped,
}

impl Repaired {
    fn label(self) -> &'static str {
        match self {
            Self::Evicted => "evicted",
            Self::Refused => "refused",
            Self::NotInjected => "not_injected",
            Self::Stopped => "stopped",
        }
    }
}

/// The counters.
#[derive(Clone, Default)]
pub(super) struct Metrics {
    writes: Family<WriteLabels, Counter>,
    repairs: Family<RepairLabels, Counter>,
    /// Pods that were created without the containers of a SidecarSet that is older.
    pub(super) missed: Counter,
    /// How many such Pods there are now.
    pub(super) uninjected: Gauge,
}

impl Metrics {
    /// Registers them.
    pub(super) fn new(context: &Context) -> Arc<Self> {
        let metrics = Arc::new(Self::default());
        let help = "Pods whose sidecars were to be updated in place or reset, by operation and result";
        context.metrics.register("kruise_sidecar_set_pod_writes", help, &metrics.writes);
        let help = "Pods without their sidecars that were to be evicted, by result";
        context.metrics.register("kruise_sidecar_set_repairs", help, &metrics.repairs);
        let help = "Pods that were created without the containers of a SidecarSet that is older";
        context.metrics.register("kruise_sidecar_set_missed_pods", help, &metrics.missed);
        let help = "Pods that are there without the containers of a SidecarSet that is older than they are";
        context.metrics.register_gauge("kruise_sidecar_set_uninjected_pods", help, &metrics.uninjected);
        metrics
    }

    pub(super) fn repaired(&self, result: Repaired) {
        self.repairs.get_or_create(&RepairLabels { result: result.label() }).inc();
    }

    pub(super) fn count(&self, operation: &'static str, result: Written) {
        self.writes.get_or_create(&WriteLabels { operation, result: result.label() }).inc();
    }
}
