//! What the controller counts.

use std::sync::Arc;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
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

/// The counters.
#[derive(Clone, Default)]
pub(super) struct Metrics {
    writes: Family<WriteLabels, Counter>,
}

impl Metrics {
    /// Registers them.
    pub(super) fn new(context: &Context) -> Arc<Self> {
        let metrics = Arc::new(Self::default());
        let help = "Pods whose sidecars were to be updated in place or reset, by operation and result";
        context.metrics.register("kruise_sidecar_set_pod_writes", help, &metrics.writes);
        metrics
    }

    pub(super) fn count(&self, operation: &'static str, result: Written) {
        self.writes.get_or_create(&WriteLabels { operation, result: result.label() }).inc();
    }
}
