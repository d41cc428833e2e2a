//! What the controllers of StatefulSets and DaemonSets count.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};

use crate::controllers::Context;

/// Labels of the counter of writes to Pods.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    operation: &'static str,
    /// `done` or `failed`.
    result: &'static str,
}

/// What is done to a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// It is created.
    Create,
    /// It is deleted.
    Delete,
    /// It is updated in place.
    Update,
}

impl Write {
    fn label(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Delete => "delete",
            Self::Update => "update",
        }
    }
}

/// The counters of one kind.
#[derive(Clone, Debug, Default)]
pub struct SetMetrics {
    writes: Family<WriteLabels, Counter>,
    /// How often a set came to something that no waiting cures.
    pub(super) stalls: Counter,
}

impl SetMetrics {
    /// Registers those of a kind.
    pub(super) fn new(context: &Context, kind: &str) -> Self {
        let (own, all) = (Self::default(), &context.metrics);
        let writes = "Pods that were to be created, deleted or updated in place, by operation and result";
        let stalls = "Times that a set became Stalled: it does not continue until somebody changes something";
        match kind {
            "StatefulSet" => {
                all.register("kruise_stateful_set_pod_writes", writes, &own.writes);
                all.register("kruise_stateful_set_stalls", stalls, &own.stalls);
            }
            _ => {
                all.register("kruise_daemon_set_pod_writes", writes, &own.writes);
                all.register("kruise_daemon_set_stalls", stalls, &own.stalls);
            }
        }
        own
    }

    /// Counts what came of a write to a Pod.
    pub fn count(&self, write: Write, is_done: bool) {
        let result = if is_done { "done" } else { "failed" };
        self.writes.get_or_create(&WriteLabels { operation: write.label(), result }).inc();
    }
}
