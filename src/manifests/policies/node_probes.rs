//! The status of NodePodProbes: a daemon reports what the probes of its own node say.

use serde_json::Value;

pub(super) fn spec() -> Value {
    super::reports_of_node("nodepodprobes", "NodePodProbe", "probes")
}
