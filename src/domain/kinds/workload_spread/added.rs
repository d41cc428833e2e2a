//! What a replica of the webhook writes while others do: new records of creations alone, as a JSON patch that leaves alone what is
//! recorded meanwhile. A patch bound to one version of the object fails whenever another replica or the controller has written,
//! and under load they do all the time.
//!
//! No limit is passed by it. The answer of the API server is the status right after the write: the records count only if no subset
//! that they are in has more Pods there than its limit. Who writes later sees them. Records that do not count are taken away, and
//! until then they take room from others and give none.
//!
//! We write a map without records too, OpenKruise does not: the API server refuses the first record where there is no map, and
//! the write is repeated on the version that was looked at.

use serde_json::{Value, json};

use super::{
    count::there,
    patch::{ChangedSubset, changed_subsets, operation, tests_of},
    spec::SpreadSpec,
};
use crate::{
    api::apps::workload_spread::{SpreadSubsetStatus, WorkloadSpreadStatus},
    k8s::pointer::escaped,
};

/// With less room than this the write is bound to the version that was looked at: others are likely to take the same places.
const CLOSE: i32 = 8;

/// New records, and how they are written.
#[derive(Clone, Debug, PartialEq)]
pub struct SpreadAdditions {
    /// The operations of a JSON patch.
    pub patch: Vec<Value>,
    /// Version, subset and key of each record.
    pub records: Vec<(String, String, String)>,
}

/// The patch of an object with this UID and generation. None: more differs than records that are new, or there is little room.
pub fn additions(
    before: &WorkloadSpreadStatus,
    after: &WorkloadSpreadStatus,
    source: (&str, i64),
) -> Option<SpreadAdditions> {
    let is_rest_same = before.observed_generation == after.observed_generation
        && before.subset_statuses == after.subset_statuses
        && before.conditions == after.conditions;
    if !is_rest_same {
        return None;
    }
    let mut additions = SpreadAdditions { patch: tests_of(source).into(), records: Vec::new() };
    for changed in changed_subsets(before, after)? {
        additions.subset(changed)?;
    }
    (!additions.records.is_empty()).then_some(additions)
}

impl SpreadAdditions {
    fn subset(&mut self, ChangedSubset { version, at, old, new }: ChangedSubset<'_>) -> Option<()> {
        let is_rest_same = old.name == new.name
            && old.conditions == new.conditions
            && old.replicas == new.replicas
            && old.deleting_pods == new.deleting_pods;
        let are_kept = old.creating_pods.iter().all(|(key, since)| new.creating_pods.get(key) == Some(since));
        let has_new = new.creating_pods.len() > old.creating_pods.len();
        if !is_rest_same || !are_kept || has_new && new.missing_replicas < CLOSE {
            return None;
        }
        self.patch.push(operation("test", &format!("{at}/name"), old.name.as_str()));
        for (key, since) in new.creating_pods.iter().filter(|(key, _)| !old.creating_pods.contains_key(*key)) {
            self.patch.push(operation("add", &format!("{at}/creatingPods/{}", escaped(key)), json!(since)));
            self.records.push((version.to_owned(), new.name.clone(), key.clone()));
        }
        if old.missing_replicas != new.missing_replicas {
            // Where others record too the controller counts it anew.
            self.patch.push(operation("add", &format!("{at}/missingReplicas"), new.missing_replicas));
        }
        Some(())
    }

    /// Whether the records count, by the status right after the write.
    pub fn hold(&self, now: &WorkloadSpreadStatus, spec: &SpreadSpec, limits: &[Option<i32>]) -> bool {
        self.records.iter().all(|(version, subset, key)| {
            let mut entries = now.versioned_subset_statuses.get(version).into_iter().flatten();
            let entry = entries.find(|entry| entry.name == *subset);
            let limit = spec.position(subset).and_then(|index| limits.get(index).copied().flatten());
            let is_within = |entry: &SpreadSubsetStatus| limit.is_none_or(|max| there(entry) <= max);
            entry.is_some_and(|entry| entry.creating_pods.contains_key(key) && is_within(entry))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{api::apps::workload_spread::WorkloadSpread, k8s::pointer::patched};

    const SINCE: &str = "2026-01-01T00:00:00Z";
    const MAX: i32 = 20;

    fn spec() -> SpreadSpec {
        let object: WorkloadSpread = serde_json::from_value(json!({"metadata": {"name": "ws"}, "spec": {
            "targetRef": {"apiVersion": "batch/v1", "kind": "Job", "name": "web"},
            "subsets": [{"name": "a", "maxReplicas": MAX}, {"name": "b"}]}}))
        .unwrap();
        SpreadSpec::of(&object).unwrap()
    }

    /// One version: Pods of the first subset, and records of creations.
    fn status(replicas: i32, creating: &[&str]) -> WorkloadSpreadStatus {
        let creating_pods = creating.iter().map(|key| (key.to_string(), SINCE.parse().unwrap())).collect();
        let mut a = SpreadSubsetStatus { name: "a".into(), replicas, creating_pods, ..SpreadSubsetStatus::default() };
        a.missing_replicas = (MAX - there(&a)).max(0);
        let b = SpreadSubsetStatus { name: "b".into(), missing_replicas: -1, ..SpreadSubsetStatus::default() };
        WorkloadSpreadStatus {
            versioned_subset_statuses: [("v/1".to_owned(), vec![a, b])].into(),
            ..WorkloadSpreadStatus::default()
        }
    }

    /// What becomes of the stored status, and whether the records count. None: a test fails.
    fn written(
        before: &WorkloadSpreadStatus,
        after: &WorkloadSpreadStatus,
        now: &WorkloadSpreadStatus,
    ) -> Option<(WorkloadSpreadStatus, bool)> {
        let mut object = json!({"metadata": {"uid": "u", "generation": 1}, "status": now});
        let additions = additions(before, after, ("u", 1)).unwrap();
        if !patched(&mut object, &json!(additions.patch)) {
            return None;
        }
        let status = serde_json::from_value(object["status"].clone()).unwrap();
        let hold = additions.hold(&status, &spec(), &spec().limits(0));
        Some((status, hold))
    }

    #[test]
    fn what_others_record_meanwhile_stays() {
        let (before, after) = (status(1, &["p1"]), status(1, &["p1", "p2", "p/3"]));
        assert_eq!(written(&before, &after, &before), Some((after.clone(), true)));
        let (now, hold) = written(&before, &after, &status(2, &["q1", "q2"])).unwrap();
        let subset = &now.versioned_subset_statuses["v/1"][0];
        let keys: Vec<&str> = subset.creating_pods.keys().map(String::as_str).collect();
        assert_eq!((subset.replicas, keys, hold), (2, vec!["p/3", "p2", "q1", "q2"], true));
    }

    #[test]
    fn the_first_record_of_a_map_is_added_too() {
        let (before, after) = (status(1, &[]), status(1, &["p1"]));
        assert_eq!(written(&before, &after, &before), Some((after.clone(), true)));
        assert!(written(&before, &after, &status(2, &["q1"])).unwrap().1, "another replica was faster");
    }

    #[test]
    fn where_openkruise_has_left_out_the_map_the_first_record_is_refused() {
        let additions = additions(&status(1, &[]), &status(1, &["p1"]), ("u", 1)).unwrap();
        let mut object = json!({"metadata": {"uid": "u", "generation": 1}, "status": status(1, &[])});
        let entry = object["status"]["versionedSubsetStatuses"]["v/1"][0].as_object_mut().unwrap();
        assert!(entry.remove("creatingPods").is_some());
        assert!(!patched(&mut object, &json!(additions.patch)));
    }

    #[test]
    fn records_count_only_if_no_limit_is_passed_right_after_the_write() {
        let (before, after) = (status(1, &["p1"]), status(1, &["p1", "p2", "p3"]));
        for (replicas, hold) in [(16, true), (17, true), (18, false), (20, false), (30, false)] {
            assert_eq!(written(&before, &after, &status(replicas, &["p1"])).unwrap().1, hold, "{replicas}");
        }
        let additions = additions(&before, &after, ("u", 1)).unwrap();
        assert!(!additions.hold(&before, &spec(), &spec().limits(0)), "they are not there");
        assert!(!additions.hold(&WorkloadSpreadStatus::default(), &spec(), &spec().limits(0)));
    }

    #[test]
    fn another_spec_and_other_subsets_refuse_them() {
        let (before, after) = (status(1, &["p1"]), status(1, &["p1", "p2"]));
        let mut renamed = before.clone();
        renamed.versioned_subset_statuses.get_mut("v/1").unwrap().reverse();
        assert_eq!(written(&before, &after, &renamed), None);
        let of = |uid, generation| {
            let mut object = json!({"metadata": {"uid": "u", "generation": 1}, "status": before});
            patched(&mut object, &json!(additions(&before, &after, (uid, generation)).unwrap().patch))
        };
        assert_eq!([of("u", 1), of("u", 2), of("w", 1)], [true, false, false]);
    }

    #[test]
    fn what_else_differs_and_the_last_places_are_written_on_the_version_that_was_looked_at() {
        let before = status(1, &["p1"]);
        let of = |after: &WorkloadSpreadStatus| additions(&before, after, ("u", 1));
        for (after, why) in [
            (before.clone(), "nothing is new"),
            (status(1, &["p2"]), "a record goes"),
            (status(2, &["p1", "p2"]), "Pods are counted"),
            (WorkloadSpreadStatus::default(), "a version goes"),
            (WorkloadSpreadStatus { observed_generation: 2, ..status(1, &["p1", "p2"]) }, "another generation"),
        ] {
            assert_eq!(of(&after), None, "{why}");
        }
        let last = |replicas| additions(&status(replicas, &["p1"]), &status(replicas, &["p1", "p2"]), ("u", 1));
        assert_eq!([10, 11].map(|replicas| last(replicas).is_some()), [true, false]);
    }
}
