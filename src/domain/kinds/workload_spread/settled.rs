//! What the controller writes while the webhook records Pods: counts, and records that are settled, as a JSON patch that
//! leaves alone what is recorded meanwhile. A patch bound to one version of the object would fail after every new record, and
//! under load no settled record would ever be removed.
//!
//! No limit is passed by it. What takes room is not written so: the webhook may have given that room away. A Pod that is gone
//! is not counted twice as gone: a deletion that was recorded meanwhile makes a test fail. A Pod that has come may be counted
//! twice until the next look, as a Pod and by its record; where that could send the next Pod elsewhere a creation that was
//! recorded meanwhile makes a test fail too.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    count::there,
    patch::{ChangedSubset, changed_subsets, operation, tests_of},
};
use crate::{api::apps::workload_spread::WorkloadSpreadStatus, k8s::pointer::escaped};

/// With less room than this every record counts.
const CLOSE: i32 = 16;

type Records = BTreeMap<String, Timestamp>;

/// The patch of an object with this UID and generation. None: more differs than counts and settled records, or room is taken.
pub fn patch(before: &WorkloadSpreadStatus, after: &WorkloadSpreadStatus, source: (&str, i64)) -> Option<Value> {
    let words = |status: &WorkloadSpreadStatus| -> Vec<[String; 3]> {
        let all = status.conditions.iter();
        all.map(|one| [one.type_.clone(), one.status.clone(), one.reason.clone()]).collect()
    };
    let is_news = before.observed_generation != after.observed_generation || words(before) != words(after);
    if is_news {
        return None;
    }
    let mut patch = Patch { tests: tests_of(source).into(), changes: Vec::new() };
    // What stays as it is needs no test: OpenKruise leaves out an empty map, which would make one fail again and again.
    for changed in changed_subsets(before, after)? {
        patch.subset(changed)?;
    }
    if before.subset_statuses != after.subset_statuses {
        patch.set("/status/subsetStatuses", json!(after.subset_statuses));
    }
    if before.conditions != after.conditions {
        patch.set("/status/conditions", json!(after.conditions));
    }
    let Patch { tests, changes } = patch;
    (!changes.is_empty()).then(|| tests.into_iter().chain(changes).collect())
}

struct Patch {
    tests: Vec<Value>,
    changes: Vec<Value>,
}

impl Patch {
    fn test(&mut self, path: &str, value: impl Into<Value>) {
        self.tests.push(operation("test", path, value));
    }

    fn set(&mut self, path: &str, value: impl Into<Value>) {
        self.changes.push(operation("add", path, value));
    }

    fn remove(&mut self, path: &str) {
        self.changes.push(json!({"op": "remove", "path": path}));
    }

    fn subset(&mut self, ChangedSubset { at, old, new, .. }: ChangedSubset<'_>) -> Option<()> {
        if old.name != new.name || old.conditions != new.conditions || there(old) < there(new) {
            return None;
        }
        let member = |name: &str| format!("{at}/{name}");
        self.test(&member("name"), old.name.as_str());
        self.test(&member("replicas"), old.replicas);
        let has_limit = new.missing_replicas >= 0;
        let is_close = has_limit && new.missing_replicas < CLOSE;
        // The webhook adds to the map of creations, so it stays without records too.
        self.records(&member("creatingPods"), &old.creating_pods, &new.creating_pods, (is_close, true))?;
        self.records(&member("deletingPods"), &old.deleting_pods, &new.deleting_pods, (has_limit, false))?;
        if old.replicas != new.replicas {
            self.set(&member("replicas"), new.replicas);
        }
        if old.missing_replicas != new.missing_replicas {
            self.set(&member("missingReplicas"), new.missing_replicas);
        }
        Some(())
    }

    /// Takes settled records away. `is_strict`: no others may have come. `stays`: the map is there without records too.
    fn records(&mut self, at: &str, old: &Records, new: &Records, (is_strict, stays): (bool, bool)) -> Option<()> {
        if new.iter().any(|(key, since)| old.get(key) != Some(since)) {
            return None;
        }
        let is_emptied = !stays && new.is_empty() && !old.is_empty();
        if is_strict || is_emptied {
            self.test(at, if old.is_empty() && !stays { Value::Null } else { json!(old) });
        }
        if is_emptied {
            self.remove(at);
            return Some(());
        }
        for (key, since) in old.iter().filter(|(key, _)| !new.contains_key(*key)) {
            let at = format!("{at}/{}", escaped(key));
            self.test(&at, json!(since));
            self.remove(&at);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{api::apps::workload_spread::SpreadSubsetStatus, k8s::pointer::patched};

    const SINCE: &str = "2026-01-01T00:00:00Z";

    /// One version with one subset: Pods, room, records of creations, records of deletions.
    fn status(replicas: i32, missing: i32, creating: &[&str], deleting: &[&str]) -> WorkloadSpreadStatus {
        let records = |keys: &[&str]| keys.iter().map(|key| (key.to_string(), SINCE.parse().unwrap())).collect();
        let subset = SpreadSubsetStatus {
            name: "a".into(),
            replicas,
            missing_replicas: missing,
            creating_pods: records(creating),
            deleting_pods: records(deleting),
            ..SpreadSubsetStatus::default()
        };
        WorkloadSpreadStatus {
            observed_generation: 1,
            versioned_subset_statuses: [("v/1".to_owned(), vec![subset])].into(),
            ..WorkloadSpreadStatus::default()
        }
    }

    fn stored(status: &WorkloadSpreadStatus) -> Value {
        json!({"metadata": {"uid": "u", "generation": 1}, "status": status})
    }

    /// What becomes of the stored status. None: a test fails.
    fn written(
        before: &WorkloadSpreadStatus,
        after: &WorkloadSpreadStatus,
        now: &WorkloadSpreadStatus,
    ) -> Option<WorkloadSpreadStatus> {
        let mut object = stored(now);
        let is_done = patched(&mut object, &patch(before, after, ("u", 1)).unwrap());
        is_done.then(|| serde_json::from_value(object["status"].clone()).unwrap())
    }

    #[test]
    fn settled_records_go_and_what_the_webhook_records_meanwhile_stays() {
        let (before, after) = (status(0, 97, &["p1", "p2", "p3"], &[]), status(2, 97, &["p3"], &[]));
        assert_eq!(written(&before, &after, &before), Some(after.clone()));
        let meanwhile = status(0, 96, &["p1", "p2", "p3", "p4"], &[]);
        assert_eq!(written(&before, &after, &meanwhile), Some(status(2, 96, &["p3", "p4"], &[])));
    }

    #[test]
    fn a_deletion_that_is_recorded_meanwhile_is_not_counted_twice() {
        // The Pod of the deletion is no longer among those that were counted.
        let (before, after) = (status(9, 91, &[], &[]), status(8, 92, &[], &[]));
        assert_eq!(written(&before, &after, &status(9, 92, &[], &["p1"])), None);
        assert_eq!(written(&before, &after, &before), Some(after));
    }

    #[test]
    fn close_to_the_limit_nothing_may_have_come_meanwhile() {
        let (before, after) = (status(0, 8, &["p1", "p2"], &[]), status(1, 8, &["p2"], &[]));
        assert_eq!(written(&before, &after, &status(0, 7, &["p1", "p2", "p3"], &[])), None);
        assert_eq!(written(&before, &after, &before), Some(after));
    }

    #[test]
    fn room_is_taken_only_on_the_version_that_was_looked_at() {
        // A Pod that the webhook has missed, or whose record has not been seen.
        assert_eq!(patch(&status(3, 97, &["p1"], &[]), &status(5, 95, &[], &[]), ("u", 1)), None);
    }

    #[test]
    fn the_map_of_creations_stays_without_records_and_that_of_deletions_goes() {
        let (before, after) = (status(1, 97, &["p1"], &["p2"]), status(1, 99, &[], &[]));
        assert_eq!(written(&before, &after, &before), Some(after.clone()));
        let meanwhile = status(1, 99, &["p3"], &[]);
        assert_eq!(written(&before, &after, &status(1, 96, &["p1", "p3"], &["p2"])), Some(meanwhile));
        assert_eq!(written(&before, &after, &status(1, 97, &["p1"], &["p2", "p4"])), None);
        let next = status(0, 100, &[], &[]);
        assert_eq!(written(&after, &next, &after), Some(next));
    }

    #[test]
    fn a_version_that_stays_as_it_is_needs_no_map_of_creations() {
        let with_idle = |creating: &[&str]| {
            let mut all = status(1, 97, creating, &[]);
            let idle = status(5, 0, &[], &[]).versioned_subset_statuses.remove("v/1").unwrap();
            all.versioned_subset_statuses.insert("v/2".into(), idle);
            all
        };
        let (before, after) = (with_idle(&["p1"]), with_idle(&[]));
        let mut object = stored(&before);
        let idle = object["status"]["versionedSubsetStatuses"]["v/2"][0].as_object_mut().unwrap();
        assert!(idle.remove("creatingPods").is_some());
        assert!(patched(&mut object, &patch(&before, &after, ("u", 1)).unwrap()));
    }

    #[test]
    fn close_to_the_limit_the_first_creation_makes_a_test_fail() {
        let (before, after) = (status(0, 8, &[], &["p1"]), status(0, 9, &[], &[]));
        assert_eq!(written(&before, &after, &before), Some(after.clone()));
        assert_eq!(written(&before, &after, &status(0, 7, &["p2"], &["p1"])), None);
    }

    #[test]
    fn what_else_differs_is_written_as_a_whole() {
        let before = status(0, 97, &["p1"], &[]);
        let other = |change: &dyn Fn(&mut WorkloadSpreadStatus)| {
            let mut after = before.clone();
            change(&mut after);
            patch(&before, &after, ("u", 1))
        };
        assert_eq!(other(&|_| {}), None, "nothing");
        assert_eq!(other(&|status| status.observed_generation = 2), None);
        assert_eq!(other(&|status| status.versioned_subset_statuses.clear()), None);
        let subset =
            |status: &mut WorkloadSpreadStatus| status.versioned_subset_statuses.get_mut("v/1").unwrap().remove(0);
        assert_eq!(other(&|status| drop(subset(status))), None);
        let rename = |status: &mut WorkloadSpreadStatus| {
            status.versioned_subset_statuses.get_mut("v/1").unwrap()[0].name = "b".into();
        };
        assert_eq!(other(&rename), None);
        let add = |status: &mut WorkloadSpreadStatus| {
            let all = status.versioned_subset_statuses.get_mut("v/1").unwrap();
            all[0].creating_pods.insert("p2".into(), SINCE.parse().unwrap());
        };
        assert_eq!(other(&add), None);
        assert!(other(&|status| status.subset_statuses.push(SpreadSubsetStatus::default())).is_some());
    }
}
