//! What the controller counts.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};

use crate::controllers::Context;

/// Labels of the counter of writes to workloads.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UnitedWriteLabels {
    /// `create`, `update` or `delete`.
    operation: &'static str,
    /// `done`; `outdated`: somebody else had changed it; or `failed`.
    result: &'static str,
}

/// The counters.
#[derive(Clone, Default)]
pub(super) struct UnitedMetrics {
    writes: Family<UnitedWriteLabels, Counter>,
    /// Pods that held up a built-in StatefulSet and were deleted.
    pub(super) freed: Counter,
}

impl UnitedMetrics {
    /// Registers them.
    pub(super) fn new(context: &Context) -> Self {
        let metrics = Self::default();
        let help = "Workloads of subsets that were to be created, updated or deleted, by operation and result";
        context.metrics.register("kruise_united_deployment_workload_writes", help, &metrics.writes);
        let help = "Pods of old revisions that held up the roll-out of a StatefulSet and were deleted";
        context.metrics.register("kruise_united_deployment_stuck_pods_freed", help, &metrics.freed);
        metrics
    }

    /// Counts what came of a write to a workload.
    pub(super) fn count(&self, (operation, result): (&'static str, &'static str)) {
        self.writes.get_or_create(&UnitedWriteLabels { operation, result }).inc();
    }
}
