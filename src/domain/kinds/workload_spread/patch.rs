//! What the JSON patches of `added.rs` and `settled.rs` have in common.

use serde_json::{Value, json};

use crate::{
    api::apps::workload_spread::{SpreadSubsetStatus, WorkloadSpreadStatus},
    k8s::pointer::escaped,
};

/// A subset of one version that differs.
pub(super) struct ChangedSubset<'a> {
    pub(super) version: &'a str,
    /// Its path.
    pub(super) at: String,
    pub(super) old: &'a SpreadSubsetStatus,
    pub(super) new: &'a SpreadSubsetStatus,
}

/// The subsets that differ. None: there are other versions, or one has more subsets or fewer.
pub(super) fn changed_subsets<'a>(
    before: &'a WorkloadSpreadStatus,
    after: &'a WorkloadSpreadStatus,
) -> Option<Vec<ChangedSubset<'a>>> {
    let (old, new) = (&before.versioned_subset_statuses, &after.versioned_subset_statuses);
    if !old.keys().eq(new.keys()) {
        return None;
    }
    let mut changed = Vec::new();
    for ((version, old), new) in old.iter().zip(new.values()) {
        if old.len() != new.len() {
            return None;
        }
        for (index, (old, new)) in old.iter().zip(new).enumerate().filter(|(_, (old, new))| old != new) {
            let at = format!("/status/versionedSubsetStatuses/{}/{index}", escaped(version));
            changed.push(ChangedSubset { version, at, old, new });
        }
    }
    Some(changed)
}

/// An operation with a value.
pub(super) fn operation(op: &str, path: &str, value: impl Into<Value>) -> Value {
    json!({"op": op, "path": path, "value": value.into()})
}

/// Tests of the UID and the generation: the subsets are those that were looked at.
pub(super) fn tests_of((uid, generation): (&str, i64)) -> [Value; 2] {
    [operation("test", "/metadata/uid", uid), operation("test", "/metadata/generation", generation)]
}
