//! What `spread` says: how many Pods each subset is to have and has, and why others are missing.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{JsonPointer, is_active, table::columns};
use crate::{
    api::{
        apps::{
            united_deployment::{UnitedCondition, UnitedDeployment},
            workload_spread::WorkloadSpread,
        },
        labels::{MATCHED_SPREAD, SUBSET_NAME},
    },
    domain::{
        kinds::workload_spread::{
            replicas,
            spec::{SpreadSpec, TargetKind},
        },
        workload::subset::SCHEDULABLE,
    },
    k8s::{invalid::Invalid, pod::Labels, pointer::escaped, selector::Selector},
};

/// One subset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubsetRow {
    /// Its name.
    pub name: String,
    /// How many Pods it is to have; None: nobody knows.
    pub wanted: Option<i32>,
    /// How many it has.
    pub there: i32,
    /// How many of them are Ready.
    pub ready: i32,
    /// Why others are missing, or too many there.
    pub why: String,
}

/// The subsets of a WorkloadSpread. `target` is its target, with the path that the ConfigMap gives for its kind, if they can be
/// read.
///
/// # Errors
/// Its spec cannot be read.
pub fn of_spread(
    spread: &WorkloadSpread,
    target: Option<(&Value, Option<&str>)>,
    pods: &[Value],
) -> Result<Vec<SubsetRow>, Invalid> {
    let spec = SpreadSpec::of(spread)?;
    let total = target.map(|(target, configured)| replicas::total(&spec, target, configured)).transpose()?;
    let status = spread.status.clone().unwrap_or_default();
    let shares = total.map(|total| spec.shares(total));
    let rows = spec.subsets.iter().enumerate().map(|(index, subset)| {
        let own: Vec<&Value> = pods.iter().filter(|pod| is_in(pod, &spec.name, &subset.name)).collect();
        let known = status.subset_statuses.iter().find(|known| known.name == subset.name);
        let conditions = known.map(|known| known.conditions.as_slice()).unwrap_or_default();
        let coming = status.versioned_subset_statuses.values().flatten().filter(|known| known.name == subset.name);
        let coming: usize = coming.map(|known| known.creating_pods.len()).sum();
        let there = count(own.iter());
        let max = spec.limits(total.unwrap_or_default())[index].filter(|_| !spec.needs_total() || total.is_some());
        let above = max.map_or(0, |max| above(spec.target_kind, max, &own));
        let mut why = reasons(conditions, &own);
        if coming > 0 {
            why.push(format!("{coming} on their way"));
        }
        match max.filter(|_| above > 0) {
            Some(max) => why.push(format!("{above} above its limit of {max}, which are not replaced")),
            None if why.is_empty() && shares.as_ref().is_some_and(|shares| there < shares[index]) => {
                why.push("made when there was no room for them here, or not made yet".into());
            }
            None => {}
        }
        SubsetRow {
            name: subset.name.clone(),
            wanted: shares.as_ref().map(|shares| shares[index]),
            there,
            ready: count(own.iter().filter(|pod| is_ready(pod))),
            why: why.join("; "),
        }
    });
    Ok(rows.collect())
}

/// The subsets of a UnitedDeployment.
pub fn of_united(united: &UnitedDeployment, pods: &[Value]) -> Vec<SubsetRow> {
    let status = united.status.clone().unwrap_or_default();
    let key = escaped(SUBSET_NAME);
    let selector = Selector::of(&united.spec.selector).ok();
    let is_its_own = |pod: &&Value| {
        let labels = pod.pointer("/metadata/labels").cloned().unwrap_or_default();
        let labels: Labels = serde_json::from_value(labels).unwrap_or_default();
        is_active(pod) && selector.as_ref().is_some_and(|selector| selector.matches(&labels))
    };
    let pods: Vec<&Value> = pods.iter().filter(is_its_own).collect();
    let rows = united.spec.topology.subsets.iter().map(|subset| {
        let own: Vec<&Value> =
            pods.iter().copied().filter(|pod| pod.text(&format!("/metadata/labels/{key}")) == subset.name).collect();
        let known = status.subset_statuses.iter().find(|known| known.name == subset.name);
        let conditions = known.map(|known| known.conditions.as_slice()).unwrap_or_default();
        let there = known.map_or_else(|| count(own.iter()), |known| known.replicas);
        let wanted = status.subset_replicas.get(&subset.name).copied();
        let mut why = reasons(conditions, &own);
        let reserved = known.map_or(0, |known| known.reserved_pods);
        if reserved > 0 {
            why.push(format!("{reserved} kept without a place and replaced elsewhere"));
        }
        if why.is_empty() && wanted.is_some_and(|wanted| there < wanted) {
            why.push("not made yet".into());
        }
        SubsetRow {
            name: subset.name.clone(),
            wanted,
            there,
            ready: known.map_or_else(|| count(own.iter().filter(|pod| is_ready(pod))), |known| known.ready_replicas),
            why: why.join("; "),
        }
    });
    rows.collect()
}

/// How many Pods of a subset are above its limit. Each version of a Deployment has room of its own.
fn above(kind: TargetKind, max: i32, pods: &[&Value]) -> i32 {
    let mut versions: BTreeMap<String, i32> = BTreeMap::new();
    for pod in pods {
        let label = |key: &str| pod.pointer("/metadata/labels").and_then(|labels| labels.get(key)?.as_str());
        *versions.entry(replicas::version(kind, label)).or_default() += 1;
    }
    versions.into_values().map(|there| there.saturating_sub(max).max(0)).sum()
}

/// Why a subset gets no Pods, and why those that it has do not run.
fn reasons(conditions: &[UnitedCondition], pods: &[&Value]) -> Vec<String> {
    let mut why = Vec::new();
    let closed = conditions.iter().find(|condition| condition.type_ == SCHEDULABLE && condition.status == "False");
    if let Some(condition) = closed {
        let words = if condition.message.is_empty() { &condition.reason } else { &condition.message };
        why.push(format!("gets no Pods for now: {words}"));
    }
    let refused: Vec<&str> = pods.iter().filter_map(|pod| refusal(pod)).collect();
    if let Some(first) = refused.first() {
        why.push(format!("{} without a node: {first}", refused.len()));
    }
    why
}

/// Why the scheduler has found no node for a Pod.
fn refusal(pod: &Value) -> Option<&str> {
    let conditions = pod.list("/status/conditions").iter();
    let mut scheduled = conditions.filter(|condition| condition.text("/type") == "PodScheduled");
    let refused = scheduled.find(|condition| condition.text("/status") == "False")?;
    Some(match refused.text("/message") {
        "" => refused.text("/reason"),
        message => message,
    })
}

fn is_in(pod: &Value, spread: &str, subset: &str) -> bool {
    let note = pod.text(&format!("/metadata/annotations/{}", escaped(MATCHED_SPREAD)));
    let note: Value = serde_json::from_str(note).unwrap_or_default();
    is_active(pod) && note.text("/name") == spread && note.text("/subset") == subset
}

fn is_ready(pod: &Value) -> bool {
    pod.true_condition("Ready").is_some()
}

fn count<T>(items: impl Iterator<Item = T>) -> i32 {
    i32::try_from(items.count()).unwrap_or(i32::MAX)
}

/// The table, and what the object says of itself.
pub fn report(object: &Value, rows: Vec<SubsetRow>) -> String {
    let number = |number: Option<i32>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    let cells = |row: SubsetRow| {
        let missing = row.wanted.map(|wanted| wanted.saturating_sub(row.there).max(0));
        vec![row.name, number(row.wanted), row.there.to_string(), row.ready.to_string(), number(missing), row.why]
    };
    let table = columns(
        &["SUBSET", "WANTED", "THERE", "READY", "MISSING", "WHY"],
        &rows.into_iter().map(cells).collect::<Vec<_>>(),
    );
    let conditions = object.list("/status/conditions").iter();
    let mut true_one = conditions.filter(|c| ["Ready", "Reconciling", "Stalled"].contains(&c.text("/type")));
    let said = true_one.find(|condition| condition.text("/status") == "True");
    let said = said.map_or_else(
        || "nobody has looked at it yet: is the manager running?".to_owned(),
        |condition| {
            format!("{} ({}): {}", condition.text("/type"), condition.text("/reason"), condition.text("/message"))
        },
    );
    format!("{table}{}\n", super::table::clean(&said))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spread(status: Value) -> WorkloadSpread {
        serde_json::from_value(json!({"metadata": {"name": "ws"}, "status": status, "spec": {
            "targetRef": {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web"},
            "subsets": [{"name": "fixed", "maxReplicas": "40%"}, {"name": "rest"}]}}))
        .unwrap()
    }

    fn pod(subset: &str, changes: Value) -> Value {
        let note = json!({"name": "ws", "subset": subset}).to_string();
        let mut pod = json!({"metadata": {"annotations": {"apps.kruise.io/matched-workloadspread": note}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        json_patch::merge(&mut pod, &changes);
        pod
    }

    fn target(replicas: i32) -> Value {
        json!({"spec": {"replicas": replicas}})
    }

    #[test]
    fn a_table_says_what_is_missing_and_why() {
        let refused = json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]}});
        let ended = json!({"status": {"phase": "Failed"}});
        let pods = [
            pod("fixed", json!({})),
            pod("fixed", refused),
            pod("rest", json!({})),
            pod("rest", ended),
            pod("other", json!({})),
        ];
        let closed = json!([{"type": "Schedulable", "status": "False", "message": "Pods found no node in time: 1"}]);
        let object = spread(json!({"subsetStatuses": [{"name": "fixed", "conditions": closed}],
            "conditions": [{"type": "Ready", "status": "False", "reason": "x", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "Reconciling", "status": "True", "reason": "PodsComing", "message": "Pods on their way: 1", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}));
        let rows = of_spread(&object, Some((&target(5), None)), &pods).unwrap();
        let text = report(&json!(object), rows);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
            .collect();
        assert_eq!(lines[0], ["SUBSET", "WANTED", "THERE", "READY", "MISSING", "WHY"]);
        assert_eq!(
            lines[1],
            [
                "fixed",
                "2",
                "2",
                "1",
                "0",
                "gets no Pods for now: Pods found no node in time: 1; 1 without a node: 0/3 nodes are available"
            ]
        );
        assert_eq!(
            lines[2],
            ["rest", "3", "1", "1", "2", "made when there was no room for them here, or not made yet"]
        );
        assert_eq!(lines[3], ["Reconciling (PodsComing): Pods on their way: 1"]);
    }

    #[test]
    fn what_is_above_a_limit_or_on_its_way_is_said() {
        let pods = [pod("fixed", json!({})), pod("fixed", json!({}))];
        let coming = json!({"versionedSubsetStatuses": {"versionIgnored": [{"name": "rest", "creatingPods": {"p": "2026-01-01T00:00:00Z"}}]}});
        let rows = of_spread(&spread(coming), Some((&target(2), None)), &pods).unwrap();
        assert_eq!(rows[0].why, "1 above its limit of 1, which are not replaced");
        assert_eq!(rows[1].why, "1 on their way");
        let unknown = of_spread(&spread(json!(null)), None, &pods).unwrap();
        assert_eq!((unknown[0].wanted, unknown[0].why.as_str()), (None, ""));
        let text = report(&json!(spread(json!(null))), unknown);
        assert!(text.contains("fixed    ?") && text.ends_with("is the manager running?\n"), "{text}");
    }

    #[test]
    fn a_kind_by_configuration_has_its_number_where_the_config_map_says() {
        let object: WorkloadSpread = serde_json::from_value(json!({"metadata": {"name": "ws"}, "spec": {
            "targetRef": {"apiVersion": "example.com/v1", "kind": "Database", "name": "db"},
            "subsets": [{"name": "fixed", "maxReplicas": "50%"}, {"name": "rest", "maxReplicas": "50%"}]}}))
        .unwrap();
        let pods = vec![pod("fixed", json!({})); 5];
        let database = json!({"spec": {"size": 10}});
        for (target, wanted, why) in [
            (Some((&database, Some("spec.size"))), Some(5), ""),
            (Some((&database, None)), Some(0), "5 above its limit of 0, which are not replaced"),
            (None, None, ""),
        ] {
            let rows = of_spread(&object, target, &pods).unwrap();
            assert_eq!((rows[0].wanted, rows[0].there, rows[0].why.as_str()), (wanted, 5, why), "{target:?}");
        }
    }

    #[test]
    fn each_version_of_a_deployment_has_room_of_its_own() {
        let of = |api_version: &str, kind: &str| -> WorkloadSpread {
            serde_json::from_value(json!({"metadata": {"name": "ws"}, "spec": {
                "targetRef": {"apiVersion": api_version, "kind": kind, "name": "web"},
                "subsets": [{"name": "fixed", "maxReplicas": 2}, {"name": "rest"}]}}))
            .unwrap()
        };
        let version = |hash: &str| pod("fixed", json!({"metadata": {"labels": {"pod-template-hash": hash}}}));
        for (kind, hashes, why) in [
            ("Deployment", ["1", "1", "2", "2"], ""),
            ("Deployment", ["1", "1", "1", "2"], "1 above its limit of 2, which are not replaced"),
            ("StatefulSet", ["1", "1", "2", "2"], "2 above its limit of 2, which are not replaced"),
        ] {
            let pods: Vec<Value> = hashes.iter().map(|hash| version(hash)).collect();
            let rows = of_spread(&of("apps/v1", kind), Some((&target(4), None)), &pods).unwrap();
            assert_eq!(rows[0].why, why, "{kind} {hashes:?}");
        }
    }

    #[test]
    fn the_pods_of_a_united_deployment_are_those_of_its_whole_selector() {
        let united: UnitedDeployment = serde_json::from_value(json!({"metadata": {"name": "u"}, "spec": {
            "selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["u", "v"]}]},
            "topology": {"subsets": [{"name": "a"}]}}}))
        .unwrap();
        let of = |app: &str| json!({"metadata": {"labels": {"app": app, "apps.kruise.io/subset-name": "a"}}});
        let rows = of_united(&united, &[of("u"), of("v"), of("foreign")]);
        assert_eq!(rows[0].there, 2);
    }

    #[test]
    fn the_subsets_of_a_united_deployment_are_read_from_its_status() {
        let united: UnitedDeployment = serde_json::from_value(json!({"metadata": {"name": "u"}, "spec": {
            "selector": {"matchLabels": {"app": "u"}}, "topology": {"subsets": [{"name": "a"}, {"name": "b"}]}},
            "status": {"subsetReplicas": {"a": 2, "b": 1}, "subsetStatuses": [
                {"name": "a", "replicas": 1, "readyReplicas": 1}, {"name": "b", "replicas": 1, "reservedPods": 1}]}}))
        .unwrap();
        let refused = json!({"metadata": {"labels": {"app": "u", "apps.kruise.io/subset-name": "b"}}, "status": {"conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}});
        let foreign = json!({"metadata": {"labels": {"apps.kruise.io/subset-name": "a"}}, "status": refused["status"]});
        let rows = of_united(&united, &[refused, foreign]);
        let said: Vec<_> = rows.iter().map(|row| (row.wanted, row.there, row.ready, row.why.as_str())).collect();
        assert_eq!(
            said,
            [
                (Some(2), 1, 1, "not made yet"),
                (Some(1), 1, 0, "1 without a node: Unschedulable; 1 kept without a place and replaced elsewhere")
            ]
        );
    }
}
