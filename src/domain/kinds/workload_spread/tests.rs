//! Tables over the rules. Names that begin with `c` and a number are those of the specification.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    adopt::{Rooms, subset_of},
    cost,
    count::{Place, SpreadAnswer, SpreadAsk, annotation, answer, of_ordinal, passes_over, places},
    inject::{self, Note, inject},
    jobs::ignores_disruptions,
    matching::{self, Above},
    places::{RECOVERS_AFTER, judge},
    plan::{
        CREATION_LASTS, DELETION_LASTS, EntryKey, Home, Newest, SpreadEvent, SpreadPlan, SpreadPod, SpreadSeen, Way,
        plan, without_pods, without_target,
    },
    problems::problems,
    replicas,
    spec::{SpreadSpec, TargetKind, VERSION_IGNORED},
    status::{SpreadHindrance, is_news, status},
};
use crate::{
    api::apps::workload_spread::{SpreadSubsetStatus, WorkloadSpread, WorkloadSpreadStatus},
    k8s::{
        invalid::{Invalid, InvalidField},
        node::NodeView,
        pod::PodView,
        time::{Now, rfc3339},
    },
};

fn at(seconds: i64) -> Now {
    Now { wall: Timestamp::from_second(1_780_000_000 + seconds).unwrap(), mono: Duration::from_secs(1000) }
}

fn spread(spec: Value) -> WorkloadSpread {
    let mut object = json!({"metadata": {"name": "ws", "namespace": "ns", "uid": "w"}, "spec": {"subsets": [],
        "targetRef": {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web"}}});
    json_patch::merge(&mut object["spec"], &spec);
    serde_json::from_value(object).unwrap()
}

fn spec(changes: Value) -> SpreadSpec {
    SpreadSpec::of(&spread(changes)).unwrap()
}

/// Subsets a, b, c and so on with these limits, of a workload of a kind.
fn of_kind(kind: &str, limits: &[Value]) -> SpreadSpec {
    let subset = |(index, max): (usize, &Value)| {
        let name = char::from(b'a' + u8::try_from(index).unwrap()).to_string();
        json!({"name": name, "maxReplicas": max})
    };
    let group = if kind == "CloneSet" { "apps.kruise.io/v1alpha1" } else { "apps/v1" };
    let subsets: Vec<Value> = limits.iter().enumerate().map(subset).collect();
    spec(json!({"targetRef": {"apiVersion": group, "kind": kind, "name": "web"}, "subsets": subsets}))
}

fn limited(limits: &[Value]) -> SpreadSpec {
    of_kind("CloneSet", limits)
}

fn adaptive(limits: &[Value]) -> SpreadSpec {
    SpreadSpec { is_adaptive: true, reschedule_after: Some(Duration::from_secs(30)), ..limited(limits) }
}

fn create(key: &str, version: &str) -> SpreadAsk {
    SpreadAsk::Create { key: key.into(), version: version.into() }
}

fn delete(pod: &str, subset: &str) -> SpreadAsk {
    SpreadAsk::Delete { pod: pod.into(), subset: subset.into(), version: VERSION_IGNORED.into() }
}

fn ask(spec: &SpreadSpec, total: i32, status: &mut WorkloadSpreadStatus, ask: &SpreadAsk) -> SpreadAnswer {
    answer(spec, &spec.limits(total), status, ask, at(0).wall)
}

/// A Pod of the workload.
fn pod(name: &str, changes: Value) -> Arc<PodView> {
    let owner = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web", "uid": "t", "controller": true});
    let mut pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"),
        "creationTimestamp": rfc3339(at(0).wall), "ownerReferences": [owner]}, "spec": {"nodeName": "n1"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True",
            "lastTransitionTime": rfc3339(at(0).wall)}]}});
    json_patch::merge(&mut pod, &changes);
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn noted(name: &str, cost: i32) -> Arc<PodView> {
    pod(name, json!({"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": cost.to_string()}}}))
}

fn in_subset(index: usize, pod: Arc<PodView>) -> SpreadPod {
    SpreadPod { pod, home: Home::Subset(index) }
}

/// Pods without a cost, so many in each subset.
fn spread_as(counts: &[usize]) -> Vec<SpreadPod> {
    let of = |(index, count): (usize, &usize)| {
        (0..*count).map(move |i| in_subset(index, pod(&format!("web-{index}-{i}"), json!({})))).collect::<Vec<_>>()
    };
    counts.iter().enumerate().flat_map(of).collect()
}

fn seen<'a>(
    pods: &'a [SpreadPod],
    (total, newest): (i32, Newest),
    recorded: &'a WorkloadSpreadStatus,
    ages: &'a BTreeMap<EntryKey, Duration>,
) -> SpreadSeen<'a> {
    SpreadSeen { pods, total, newest, recorded, ages, ignores_disruptions: false }
}

fn planned(spec: &SpreadSpec, pods: &[SpreadPod], total: i32, recorded: &WorkloadSpreadStatus) -> SpreadPlan {
    let ages = BTreeMap::new();
    plan(spec, &seen(pods, (total, Newest::Only), recorded, &ages), at(0))
}

fn costs(plan: &SpreadPlan) -> BTreeMap<String, i32> {
    plan.costs.iter().map(|(pod, cost)| (pod.name().to_owned(), *cost)).collect()
}

fn recorded(version: &str, subsets: Value) -> WorkloadSpreadStatus {
    serde_json::from_value(json!({"observedGeneration": 1, "versionedSubsetStatuses": {version: subsets}})).unwrap()
}

#[test]
fn the_first_subset_with_room_is_next_until_all_are_full() {
    let spec = limited(&[json!(2), json!(1)]);
    let mut status = WorkloadSpreadStatus::default();
    let answers: Vec<_> =
        (0..4).map(|i| ask(&spec, 0, &mut status, &create(&format!("p{i}"), VERSION_IGNORED))).collect();
    let subset = SpreadAnswer::Subset;
    assert_eq!(answers, [subset(0, 0), subset(0, 1), subset(1, 0), SpreadAnswer::Full]);
    let entries = &status.versioned_subset_statuses[VERSION_IGNORED];
    let room: Vec<_> = entries.iter().map(|entry| (entry.missing_replicas, entry.creating_pods.len())).collect();
    assert_eq!(room, [(0, 2), (0, 1)]);
    let before = status.clone();
    assert_eq!(ask(&spec, 0, &mut status, &create("p1", VERSION_IGNORED)), subset(0, 1), "it has asked before");
    assert_eq!(status, before);
}

#[test]
fn c4_a_subset_that_the_status_does_not_know_yet_is_empty() {
    let spec = limited(&[json!(1), json!(1)]);
    let mut status = recorded(VERSION_IGNORED, json!([{"name": "b", "replicas": 1, "missingReplicas": 0}]));
    assert_eq!(ask(&spec, 0, &mut status, &create("p", VERSION_IGNORED)), SpreadAnswer::Subset(0, 0));
    assert_eq!(ask(&spec, 0, &mut status, &create("q", VERSION_IGNORED)), SpreadAnswer::Full);
    let nobody = planned(&spec, &[], 2, &recorded("old", json!([])));
    assert_eq!(nobody.subsets.iter().map(|s| s.missing_replicas).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn c5_each_version_has_its_own_room() {
    let spec = of_kind("Deployment", &[json!(1), Value::Null]);
    let mut status = recorded(
        "old",
        json!([{"name": "a", "replicas": 1, "missingReplicas": 0}, {"name": "b", "replicas": 4, "missingReplicas": -1}]),
    );
    assert_eq!(ask(&spec, 5, &mut status, &create("p", "old")), SpreadAnswer::Subset(1, 4));
    assert_eq!(ask(&spec, 5, &mut status, &create("p", "new")), SpreadAnswer::Subset(0, 0));
    let label = |hash: &str| json!({"metadata": {"labels": {"pod-template-hash": hash}}});
    let pods = [
        in_subset(0, pod("o", label("old"))),
        in_subset(0, pod("n", label("new"))),
        in_subset(1, pod("m", label("new"))),
    ];
    let plan = planned(&spec, &pods, 2, &WorkloadSpreadStatus::default());
    let room =
        |version: &str| plan.versions[version].iter().map(|s| (s.replicas, s.missing_replicas)).collect::<Vec<_>>();
    assert_eq!((room("old"), room("new")), (vec![(1, 0), (0, -1)], vec![(1, 0), (1, -1)]));
    assert_eq!(plan.subsets.iter().map(|s| (s.replicas, s.missing_replicas)).collect::<Vec<_>>(), [(2, 0), (1, -1)]);
}

#[test]
fn shortfall_the_version_is_the_hash_of_kinds_that_have_versions() {
    let labels = [("pod-template-hash", "5d4f"), ("controller-revision-hash", "web-77")];
    let label = |having: usize| move |key: &str| labels[having..].iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
    for (kind, having, wanted) in [
        (TargetKind::Deployment, 0, "5d4f"),
        (TargetKind::ReplicaSet, 1, "77"),
        (TargetKind::ReplicaSet, 2, VERSION_IGNORED),
        (TargetKind::CloneSet, 0, VERSION_IGNORED),
        (TargetKind::Job, 0, VERSION_IGNORED),
    ] {
        assert_eq!(replicas::version(kind, label(having)), wanted, "{kind:?} {having}");
    }
    let template = |extra: Value| {
        let mut template =
            json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": "i:2"}]}});
        json_patch::merge(&mut template, &extra);
        template
    };
    let set = |hash: &str, image: &str, owner: &str| {
        json!({"metadata": {"labels": {"pod-template-hash": hash},
        "ownerReferences": [{"uid": owner, "controller": true}]}, "spec": {"template": template(json!({
            "metadata": {"labels": {"pod-template-hash": hash}}, "spec": {"containers": [{"name": "main", "image": image}]}}))}})
    };
    let deployment = json!({"metadata": {"uid": "d"}, "spec": {"template": template(json!({}))}});
    let sets = [set("new", "i:2", "other"), set("old", "i:1", "d"), set("new", "i:2", "d")];
    assert_eq!(replicas::newest(&deployment, &sets).as_deref(), Some("new"));
    assert_eq!(replicas::newest(&deployment, &sets[..2]), None, "it has none yet");
}

#[test]
fn c6_a_subset_without_a_limit_is_not_recorded() {
    let spec = limited(&[json!(0), Value::Null]);
    let mut status = WorkloadSpreadStatus::default();
    assert_eq!(ask(&spec, 9, &mut status, &create("p", VERSION_IGNORED)), SpreadAnswer::Subset(1, 0));
    assert_eq!(ask(&spec, 9, &mut status, &delete("p", "b")), SpreadAnswer::Nothing);
    assert_eq!(status, WorkloadSpreadStatus::default());
}

#[test]
fn c10_another_order_of_subsets_keeps_what_is_known_by_name() {
    let mut spec = limited(&[json!(3), json!(3)]);
    let status = recorded(
        VERSION_IGNORED,
        json!([{"name": "a", "replicas": 3, "missingReplicas": 0}, {"name": "b", "replicas": 1, "missingReplicas": 2}]),
    );
    spec.subsets.reverse();
    let places = places(&spec, &status, &spec.limits(6), VERSION_IGNORED);
    assert_eq!(places.iter().map(|place| place.there).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn a_pod_that_is_deleted_makes_room_at_once_and_only_once() {
    let spec = limited(&[json!(1), Value::Null]);
    let mut status = recorded(VERSION_IGNORED, json!([{"name": "a", "replicas": 1, "missingReplicas": 0}]));
    for _ in 0..2 {
        ask(&spec, 2, &mut status, &delete("old", "a"));
    }
    assert_eq!(status.versioned_subset_statuses[VERSION_IGNORED][0].missing_replicas, 1);
    assert_eq!(ask(&spec, 2, &mut status, &create("new", VERSION_IGNORED)), SpreadAnswer::Subset(0, 0));
    assert_eq!(ask(&spec, 2, &mut status, &create("next", VERSION_IGNORED)), SpreadAnswer::Subset(1, 0));
    for (pod, subset) in [("other", "gone"), ("more", "a")] {
        let before = status.clone();
        ask(&spec, 2, &mut status, &delete(pod, subset));
        let is_same = before == status;
        assert_eq!(is_same, subset == "gone", "a subset that is gone records nothing");
    }
}

#[test]
fn a_record_beyond_the_limit_is_no_place_for_who_asks_again() {
    let spec = limited(&[json!(2), Value::Null]);
    for (replicas, answer) in [(1, SpreadAnswer::Subset(0, 1)), (2, SpreadAnswer::Subset(1, 0))] {
        let creating = json!({"p": rfc3339(at(0).wall)});
        let a = json!({"name": "a", "replicas": replicas, "missingReplicas": 0, "creatingPods": creating});
        let mut status = recorded(VERSION_IGNORED, json!([a]));
        assert_eq!(ask(&spec, 3, &mut status, &create("p", VERSION_IGNORED)), answer);
    }
}

#[test]
fn percentages_are_of_what_the_workload_wants_now_and_rounded_up() {
    let spec = limited(&[json!("30%"), json!("70%")]);
    assert_eq!((spec.limits(10), spec.limits(5)), (vec![Some(3), Some(7)], vec![Some(2), Some(4)]));
    // Counted when it wanted 10: now it wants 20.
    let mut status = recorded(
        VERSION_IGNORED,
        json!([{"name": "a", "replicas": 3, "missingReplicas": 0}, {"name": "b", "replicas": 7, "missingReplicas": 0}]),
    );
    assert_eq!(ask(&spec, 20, &mut status, &create("p", VERSION_IGNORED)), SpreadAnswer::Subset(0, 3));
    let entries = &status.versioned_subset_statuses[VERSION_IGNORED];
    assert_eq!((entries[0].missing_replicas, entries[1].missing_replicas), (2, 7));
}

#[test]
fn labels_of_pods_make_no_more_versions_than_are_recorded() {
    let spec = of_kind("ReplicaSet", &[json!(5)]);
    let mut status = WorkloadSpreadStatus::default();
    let answers: Vec<_> = (0..100).map(|i| ask(&spec, 5, &mut status, &create("p", &format!("v{i}")))).collect();
    assert_eq!(status.versioned_subset_statuses.len(), 64);
    assert_eq!(answers.iter().filter(|answer| **answer == SpreadAnswer::TooManyVersions).count(), 36);
}

#[test]
fn records_of_a_version_that_no_label_can_have_go() {
    let spec = of_kind("ReplicaSet", &[json!(5)]);
    let long = "x".repeat(300_000);
    let status = recorded(
        &long,
        json!([{"name": "a", "replicas": 1, "missingReplicas": 4,
        "creatingPods": {"p": "2026-01-01T00:00:00Z"}}]),
    );
    assert_eq!(super::plan::records(&status).count(), 0);
    assert!(planned(&spec, &[], 5, &status).versions.is_empty());
}

#[test]
fn an_unschedulable_subset_is_passed_over_where_that_is_wanted() {
    let spec = adaptive(&[json!(5), Value::Null]);
    let closed = json!([{"type": "Schedulable", "status": "False"}]);
    let status = json!({"subsetStatuses": [{"name": "a", "conditions": closed}, {"name": "b"}]});
    let mut status: WorkloadSpreadStatus = serde_json::from_value(status).unwrap();
    assert_eq!(ask(&spec, 5, &mut status.clone(), &create("p", VERSION_IGNORED)), SpreadAnswer::Subset(1, 0));
    let fixed = limited(&[json!(5), Value::Null]);
    assert_eq!(
        ask(&fixed, 5, &mut status, &create("p", VERSION_IGNORED)),
        SpreadAnswer::Subset(0, 0),
        "a left-over says nothing"
    );
}

#[test]
fn what_passes_over_a_full_subset_is_asked_for_again() {
    let place = |is_schedulable| Place { there: 1, max: Some(1), is_schedulable };
    for (answer, places, wanted) in [
        (SpreadAnswer::Subset(0, 0), [place(true), place(true)], false),
        (SpreadAnswer::Subset(1, 0), [place(true), place(true)], true),
        (SpreadAnswer::Subset(1, 0), [place(false), place(true)], false),
        (SpreadAnswer::Full, [place(false), place(true)], true),
        (SpreadAnswer::TooManyVersions, [place(true), place(true)], false),
        (SpreadAnswer::Nothing, [place(true), place(true)], false),
    ] {
        assert_eq!(passes_over(&places, answer.index(places.len())), wanted, "{answer:?}");
    }
}

#[test]
fn shortfall_ordinals_have_their_subsets_and_an_unschedulable_one_shifts_no_other() {
    let limits = [Some(2), Some(1), None];
    let all =
        |schedulable: [bool; 3]| (-1..5).map(|place| of_ordinal(&limits, &schedulable, place)).collect::<Vec<_>>();
    let (a, b, c) = (Some(0), Some(1), Some(2));
    assert_eq!(all([true; 3]), [a, a, a, b, c, c]);
    assert_eq!(all([false, true, true]), [c, c, c, b, c, c]);
    assert_eq!(all([true, true, false])[4], None);
    assert_eq!(of_ordinal(&limits[..2], &[true; 2], 3), None, "beyond all limits");
}

/// It takes its highest ordinals first: without costs those stay that belong to the first subsets.
#[test]
fn shortfall_a_statefulset_that_is_scaled_down_keeps_the_pods_of_its_first_subsets() {
    for (limits, before, after) in [
        ([json!(2), json!(2), Value::Null], [2, 2, 2], [2, 1, 0]),
        ([json!(3), json!(1), Value::Null], [3, 1, 2], [3, 0, 0]),
        ([json!(0), json!(4), json!(2)], [0, 4, 2], [0, 3, 0]),
        ([json!(1), json!(1), json!(1)], [1, 1, 1], [1, 1, 1]),
        ([Value::Null, json!(2), json!(2)], [6, 0, 0], [3, 0, 0]),
    ] {
        let spec = of_kind("StatefulSet", &limits);
        let with = |replicas: i32| {
            let subsets = (0..replicas).filter_map(|place| of_ordinal(&spec.limits(replicas), &[true; 3], place));
            let mut counts = [0; 3];
            subsets.for_each(|subset| counts[subset] += 1);
            counts
        };
        assert_eq!((with(6), with(3)), (before, after), "{limits:?}");
        assert_eq!(spec.shares(3), after, "as Pods that are placed one by one, {limits:?}");
        assert!(planned(&spec, &spread_as(&[2, 2, 2]), 3, &WorkloadSpreadStatus::default()).costs.is_empty());
    }
}

#[test]
fn shortfall_the_simulation_flag_is_accepted_and_has_no_effect() {
    let with = |flag: bool| {
        let adaptive = json!({"disableSimulationSchedule": flag, "rescheduleCriticalSeconds": 30});
        spread(json!({"subsets": [{"name": "a", "maxReplicas": 1}, {"name": "b"}],
            "scheduleStrategy": {"type": "Adaptive", "adaptive": adaptive}}))
    };
    assert_eq!(SpreadSpec::of(&with(true)), SpreadSpec::of(&with(false)));
    let stored = json!(with(true));
    assert_eq!(stored["spec"]["scheduleStrategy"]["adaptive"]["disableSimulationSchedule"], true, "it stays");
}

#[test]
fn c3_a_path_that_leads_nowhere_is_an_error() {
    let job = json!({"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 3}}, "list": [{"replicas": 2}], "text": "3"}});
    let total = |paths: &[&str]| {
        replicas::total(
            &spec(json!({"subsets": [{"name": "a"}], "targetFilter": {"replicasPathList": paths}})),
            &job,
            None,
        )
    };
    assert_eq!(total(&["spec.tfReplicaSpecs.Worker.replicas", "spec.list.0.replicas"]), Ok(5));
    assert_eq!(total(&["spec.tfReplicaSpecs.PS.replicas"]), Ok(0), "what is not there is 0");
    for (path, why) in [
        ("spec.list.1.replicas", "\"1\" is not there; the list has 1 entries"),
        ("spec.list.-1.replicas", "\"-1\" is no place in a list"),
        ("spec.list.x", "\"x\" is no place in a list"),
        ("spec.text", "it is no whole number"),
        ("spec.text.x", "there is nothing below"),
    ] {
        let Err(Invalid(error)) = total(&[path]) else { panic!("{path}") };
        assert!(error.starts_with("spec.targetFilter.replicasPathList[0]") && error.contains(why), "{error}");
    }
}

#[test]
fn every_kind_says_how_many_pods_it_wants() {
    let total = |kind: &str, object: Value, path: Option<&str>| {
        let api = match kind {
            "Job" => "batch/v1",
            "Db" => "example.com/v1",
            _ => "apps/v1",
        };
        let spec =
            spec(json!({"targetRef": {"apiVersion": api, "kind": kind, "name": "web"}, "subsets": [{"name": "a"}]}));
        replicas::total(&spec, &object, path)
    };
    for (kind, object, path, wanted) in [
        ("Deployment", json!({"spec": {"replicas": 4}}), None, 4),
        ("Deployment", json!({"spec": {}}), None, 1),
        ("Job", json!({"spec": {"parallelism": 3, "replicas": 9}}), None, 3),
        ("Job", json!({"spec": {}}), None, 1),
        ("Db", json!({"spec": {"replicas": 2}}), None, 2),
        ("Db", json!({"spec": {"size": 6}}), Some("spec.size"), 6),
        ("Db", json!({}), None, 0),
        ("ReplicaSet", json!({"spec": {"replicas": 9_999_999_999_i64}}), None, i32::MAX),
    ] {
        assert_eq!(total(kind, object, path), Ok(wanted), "{kind}");
    }
}

fn subset(changes: Value) -> SpreadSpec {
    let mut subset = json!({"name": "a"});
    json_patch::merge(&mut subset, &changes);
    spec(json!({"subsets": [subset]}))
}

#[test]
fn a_pod_of_a_subset_is_byte_for_byte_what_openkruise_makes() {
    let spec = spec(json!({"subsets": [
        {"name": "fixed", "maxReplicas": 1, "patch": {"metadata": {"labels": {"subset": "fixed"}}}},
        {"name": "rest", "requiredNodeSelectorTerm": {"matchExpressions": [{"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}]}}]}));
    let pod = json!({"metadata": {"name": "web-x"}, "spec": {"containers": []}});
    let made = |index: usize| {
        let note = Note { matched: annotation("spread", &spec.subsets[index].name, None), cost: None };
        inject(&pod, &spec.subsets[index], Some(&note)).unwrap()
    };
    assert_eq!(
        made(0),
        json!({"metadata": {"name": "web-x", "labels": {"subset": "fixed"},
            "annotations": {"apps.kruise.io/matched-workloadspread": "{\"name\":\"spread\",\"subset\":\"fixed\"}"}},
            "spec": {"containers": [], "affinity": {"nodeAffinity": {}}}})
    );
    let terms = json!([{"matchExpressions": [{"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}]}]);
    assert_eq!(
        made(1)["spec"]["affinity"],
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}})
    );
    assert_eq!(annotation("s", "a", Some("u-1")), "{\"name\":\"s\",\"subset\":\"a\",\"uid\":\"u-1\"}");
    assert_eq!(annotation("s", "a\"b", None), "{\"name\":\"s\",\"subset\":\"a\\\"b\"}");
}

#[test]
fn terms_of_a_pod_and_requirements_of_a_subset_do_not_multiply_without_limit() {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let with = |terms: usize, requirements: usize| {
        let of_subset =
            json!({"matchExpressions": vec![json!({"key": "a"}); requirements], "matchFields": [{"key": "f"}]});
        let spec = subset(json!({"requiredNodeSelectorTerm": of_subset}));
        let pod = json!({"metadata": {}, "spec": {"affinity": {"nodeAffinity": {required: {"nodeSelectorTerms": vec![json!({}); terms]}}}}});
        inject(&pod, &spec.subsets[0], None)
    };
    assert!(with(20, 49).is_ok() && with(0, 30_000).is_ok());
    for (terms, requirements) in [(20, 50), (30_000, 30_000)] {
        let Err(InvalidField { field, why }) = with(terms, requirements) else { panic!("{terms} {requirements}") };
        let each = requirements + 1;
        assert_eq!(field, "requiredNodeSelectorTerm");
        assert_eq!(
            why,
            format!(
                "subset \"a\": {each} node requirements would be added to each of the {terms} nodeSelectorTerms of the Pod; want at most 1000 in all"
            )
        );
    }
}

#[test]
fn nodes_and_tolerations_are_added_to_those_of_the_pod() {
    let spec = subset(json!({"tolerations": [{"key": "spot", "operator": "Exists"}],
        "preferredNodeSelectorTerms": [{"weight": 5, "preference": {}}],
        "requiredNodeSelectorTerm": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}], "matchFields": [{"key": "metadata.name"}]}}));
    let own = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "x"}]}, {}]}}});
    let pod = json!({"metadata": {}, "spec": {"tolerations": [{"key": "own"}], "affinity": own}});
    let made = inject(&pod, &spec.subsets[0], None).unwrap();
    let zone = json!({"key": "zone", "operator": "In", "values": ["a"]});
    let field = json!([{"key": "metadata.name"}]);
    let affinity = &made["spec"]["affinity"]["nodeAffinity"];
    assert_eq!(
        affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"],
        json!([{"matchExpressions": [{"key": "x"}, zone], "matchFields": field}, {"matchExpressions": [zone], "matchFields": field}]),
        "terms are alternatives: it goes into each"
    );
    let weights: Vec<_> = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["weight"].clone())
        .collect();
    assert_eq!(weights, [1, 5]);
    assert_eq!(made["spec"]["tolerations"], json!([{"key": "own"}, {"key": "spot", "operator": "Exists"}]));
    assert!(made["metadata"].get("annotations").is_none());
}

#[test]
fn c7_a_patch_with_another_priority_class_clears_the_number() {
    let pod = json!({"metadata": {}, "spec": {"priorityClassName": "low", "priority": 1}});
    let patched = |class: &str| {
        inject(&pod, &subset(json!({"patch": {"spec": {"priorityClassName": class}}})).subsets[0], None).unwrap()
    };
    assert_eq!(
        (patched("high")["spec"].get("priority"), patched("low")["spec"].get("priority")),
        (None, Some(&json!(1)))
    );
}

#[test]
fn c7_another_priority_class_clears_what_the_former_one_has_set_unless_the_patch_sets_it() {
    let pod = json!({"metadata": {}, "spec": {"priorityClassName": "low", "priority": 1, "preemptionPolicy": "Never"}});
    for (patch, priority, policy) in [
        (json!({"priorityClassName": "high"}), Value::Null, Value::Null),
        (json!({"priorityClassName": null}), Value::Null, Value::Null),
        (json!({"priorityClassName": "low"}), json!(1), json!("Never")),
        (json!({"hostNetwork": true}), json!(1), json!("Never")),
        (json!({"priorityClassName": "high", "priority": 9}), json!(9), Value::Null),
        (
            json!({"priorityClassName": "high", "preemptionPolicy": "PreemptLowerPriority"}),
            Value::Null,
            json!("PreemptLowerPriority"),
        ),
    ] {
        // Not merged with anything: that would take the null for a removal.
        let spec = spec(json!({"subsets": [{"name": "a", "patch": {"spec": patch}}]}));
        let made = inject(&pod, &spec.subsets[0], None).unwrap();
        assert_eq!((&made["spec"]["priority"], &made["spec"]["preemptionPolicy"]), (&priority, &policy), "{patch}");
    }
}

/// A Pod as an API server shows it, and patches that would make another one of it.
#[test]
fn a_patch_changes_neither_which_pod_it_is_nor_whose() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": []}, "metadata": {"name": "web-1",
        "namespace": "shop", "ownerReferences": [{"uid": "o", "controller": true}],
        "labels": {"app": "web", "pod-template-hash": "h", "tier": "old"}}});
    for patch in [
        json!({"apiVersion": "v2", "kind": "Node"}),
        json!({"metadata": null}),
        json!({"metadata": {"$patch": "delete"}}),
        json!({"metadata": {"name": "x", "generateName": "y-", "namespace": "z", "uid": "u", "resourceVersion": "1"}}),
        json!({"metadata": {"ownerReferences": [{"uid": "o", "$patch": "delete"}, {"uid": "mine"}]}}),
        json!({"metadata": {"ownerReferences": null, "labels": {"pod-template-hash": null, "job-name": "j"}}}),
        json!({"metadata": {"$patch": "replace", "labels": {"pod-template-hash": "other"}}}),
    ] {
        let made = inject(&pod, &subset(json!({})).subsets[0], None).unwrap();
        let wanted = |made: &Value| {
            let mut bare = made.clone();
            bare["metadata"]["labels"] = json!({"pod-template-hash": made["metadata"]["labels"]["pod-template-hash"],
                "job-name": made["metadata"]["labels"]["job-name"]});
            bare
        };
        let mut with = subset(json!({})).subsets[0].clone();
        with.patch = Some(patch.clone());
        assert_eq!(wanted(&inject(&pod, &with, None).unwrap()), wanted(&made), "{patch}");
    }
    let bare = json!({"spec": {}});
    let template = subset(json!({"patch": {"metadata": {"name": "x", "labels": {"a": "b"}}}}));
    assert_eq!(inject(&bare, &template.subsets[0], None).unwrap()["metadata"], json!({"labels": {"a": "b"}}));
}

#[test]
fn labels_by_which_the_owner_selects_a_pod_stay() {
    let pod = |labels: Value| json!({"metadata": {"labels": labels}});
    let before = pod(json!({"app": "web", "tier": "old"}));
    let after = pod(json!({"app": "other", "tier": "new", "more": "1"}));
    assert!(inject::changes_labels(&before, &after) && inject::changes_labels(&before, &json!({})));
    assert!(!inject::changes_labels(&before, &pod(json!({"app": "web", "tier": "old", "more": "1"}))));
    for (selector, kept, lost) in [
        (Some(json!({"matchLabels": {"app": "web"}})), json!({"app": "web", "tier": "new", "more": "1"}), Some("app")),
        (
            Some(
                json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}, {"key": "more", "operator": "DoesNotExist"}]}),
            ),
            json!({"app": "other", "tier": "old"}),
            Some("tier"),
        ),
        (Some(json!({"app": "web"})), json!({"app": "web", "tier": "new", "more": "1"}), Some("app")),
        (Some(json!({"matchLabels": {"none": "1"}})), json!({"app": "other", "tier": "new", "more": "1"}), None),
        (Some(Value::Null), json!({"app": "other", "tier": "new", "more": "1"}), None),
        (None, json!({"app": "web", "tier": "old", "more": "1"}), None),
    ] {
        assert_eq!(inject::keep_labels(&before, after.clone(), selector.as_ref()), pod(kept), "{selector:?}");
        let selector = selector.unwrap_or_default();
        assert_eq!(inject::label_lost(&before, &after, &selector), lost, "{selector}");
    }
}

#[test]
fn a_patch_that_does_not_fit_is_an_error_that_names_it() {
    let spec = subset(json!({"patch": {"spec": {"containers": [{"image": "x"}]}}}));
    let made = inject(&json!({"spec": {"containers": []}}), &spec.subsets[0], None);
    let Err(InvalidField { field, why }) = made else { panic!() };
    assert_eq!(field, "patch");
    assert!(why.starts_with("the patch of subset \"a\"") && why.contains("containers"), "{why}");
}

#[test]
fn labels_and_annotations_of_a_patch_are_taken_as_far_as_they_are_texts() {
    let patch = json!({"metadata": {"labels": {"a": "1", "b": null, "$patch": "merge"}, "annotations": {"n": 3}, "name": "x"}, "spec": {}});
    assert_eq!(Value::Object(inject::metadata(Some(&patch), false)), json!({"labels": {"a": "1"}}));
    assert!(inject::metadata(None, true).is_empty());
    let cost = "controller.kubernetes.io/pod-deletion-cost";
    let system = json!({"metadata": {"labels": {"apps.kruise.io/specified-delete": "true", "pod-template-hash": "h", "a": "1"},
        "annotations": {cost: "5", "kruise.rs/x": "1", "inplace-update-state": "{}"}}});
    assert_eq!(Value::Object(inject::metadata(Some(&system), false)), json!({"labels": {"a": "1"}}));
    let of_ours = json!({"labels": {"a": "1"}, "annotations": {cost: "5"}});
    assert_eq!(Value::Object(inject::metadata(Some(&system), true)), of_ours);
}

#[test]
fn a_patch_gives_no_orders_to_kruise_and_says_nothing_of_what_became_of_the_pod() {
    let delete = "apps.kruise.io/specified-delete";
    let (state, ordered) = ("lifecycle.apps.kruise.io/state", "apps.kruise.io/container-launch-priority");
    let hash = "kruise.io/sidecarset-hash";
    let pod = json!({"metadata": {"labels": {"app": "web", state: "Normal"}, "annotations": {hash: "{}"}}, "spec": {}});
    for patch in [
        json!({"metadata": {"labels": {delete: "true", state: "Updated"}}}),
        json!({"metadata": {"labels": {state: null}, "annotations": {hash: "{\"mesh\":{}}", delete: "true"}}}),
        json!({"metadata": {"annotations": {"$patch": "replace", "kubernetes.io/config.mirror": "x"}}}),
        json!({"status": {"phase": "Succeeded"}}),
    ] {
        let mut with = subset(json!({})).subsets[0].clone();
        with.patch = Some(patch.clone());
        let made = inject(&pod, &with, None).unwrap();
        assert_eq!((&made["metadata"], made.get("status")), (&pod["metadata"], None), "{patch}");
    }
    // What tells Kruise how a Pod is to be made is a part of its template as any other.
    let mut with = subset(json!({})).subsets[0].clone();
    with.patch = Some(json!({"metadata": {"annotations": {ordered: "Ordered"}}}));
    assert_eq!(inject(&pod, &with, None).unwrap()["metadata"]["annotations"][ordered], "Ordered");
}

fn node(labels: Value, taints: Value) -> NodeView {
    serde_json::from_value(json!({"metadata": {"name": "n1", "labels": labels}, "spec": {"taints": taints}})).unwrap()
}

fn zone(name: &str) -> Value {
    json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [name]}]})
}

#[test]
fn c9_a_pod_that_was_there_before_belongs_where_node_patch_and_room_say() {
    let of = |spec: &SpreadSpec, node: &NodeView, rooms: &[bool]| {
        let pod = json!({"metadata": {"labels": {"subset": "b"}, "annotations": {"x": "y"}}, "spec": {"nodeName": "n1", "containers": []}});
        subset_of(spec, &pod, node, rooms)
    };
    let zones = spec(
        json!({"subsets": [{"name": "a", "requiredNodeSelectorTerm": zone("a")}, {"name": "b", "requiredNodeSelectorTerm": zone("b")}]}),
    );
    assert_eq!(of(&zones, &node(json!({"zone": "b"}), json!([])), &[true, false]), Some(1));
    assert_eq!(of(&zones, &node(json!({"zone": "c"}), json!([])), &[true, true]), None);
    let patched = spec(json!({"subsets": [{"name": "a", "patch": {"metadata": {"labels": {"subset": "a"}}}},
        {"name": "b", "patch": {"metadata": {"labels": {"subset": "b"}, "annotations": {"more": "1"}}}}]}));
    assert_eq!(of(&patched, &node(json!({}), json!([])), &[true, false]), Some(1), "the patch changes nothing of it");
    let plain = limited(&[json!(1), json!(1)]);
    assert_eq!(of(&plain, &node(json!({}), json!([])), &[false, true]), Some(1), "room");
    assert_eq!(of(&plain, &node(json!({}), json!([])), &[true, true]), Some(0), "the first of equals");
    let preferred = spec(
        json!({"subsets": [{"name": "a"}, {"name": "b", "preferredNodeSelectorTerms": [{"weight": 1, "preference": zone("b")}]}]}),
    );
    assert_eq!(of(&preferred, &node(json!({"zone": "b"}), json!([])), &[true, false]), Some(1));
    let tainted = node(json!({}), json!([{"key": "spot", "effect": "NoSchedule"}]));
    let tolerant = spec(
        json!({"subsets": [{"name": "a"}, {"name": "b", "tolerations": [{"key": "spot", "operator": "Exists"}]}]}),
    );
    assert_eq!(of(&tolerant, &tainted, &[true, false]), Some(1));
}

#[test]
fn room_that_was_promised_to_a_pod_that_comes_is_not_there_for_one_that_was_missed() {
    let spec = limited(&[json!(2), json!(9)]);
    let missed = [pod("missed", json!({}))];
    let note = json!({"metadata": {"annotations": {"apps.kruise.io/matched-workloadspread": annotation("ws", "a", Some("u-1"))}}});
    let one = [in_subset(0, pod("web-abc", note))];
    for (keys, known, wanted) in [
        (vec![], &one[..0], true),
        (vec!["x"], &one[..0], true),
        (vec!["x", "y"], &one[..0], false),
        (vec!["x"], &one[..], false),
        (vec!["u-1"], &one[..], true),
        (vec!["missed"], &one[..], true),
        (vec!["missed", "x"], &one[..], false),
    ] {
        let mut status = WorkloadSpreadStatus::default();
        for key in &keys {
            ask(&spec, 0, &mut status, &create(key, VERSION_IGNORED));
        }
        let rooms = Rooms::new(&spec, 0, (known, &missed), Some(&status));
        assert_eq!(rooms.of(&missed[0]), [wanted, true], "{keys:?} come, {} are there", known.len());
    }
    let mut rooms = Rooms::new(&spec, 0, (&one, &missed), None);
    rooms.take(&missed[0], Home::Subset(0));
    assert_eq!(rooms.of(&missed[0]), [false, true]);
}

#[test]
fn a_stored_reference_that_admission_would_refuse_names_no_target() {
    let target = json!({"apiVersion": "example.com/v1", "kind": "Db/x", "name": "../db"});
    let spread = spread(json!({"targetRef": target, "subsets": [{"name": "a"}]}));
    let Err(Invalid(why)) = SpreadSpec::of(&spread) else { panic!() };
    let want = "spec.targetRef.kind: \"Db/x\" is not allowed; want letters and digits, such as StatefulSet; \
                spec.targetRef.name: \"../db\" is not allowed; want the name of a workload";
    assert_eq!(why, want);
    let above =
        Above { api_version: "example.com/v1".into(), kind: "Db/x".into(), name: "../db".into(), uid: "u".into() };
    assert!(!above.is_target_of(&spread) && !matching::has_same_target(&spread, &spread));
    assert_eq!(TargetKind::of_target(&spread), None, "nothing is read for it when Pods are created");
}

#[test]
fn c12_the_version_of_a_target_does_not_count() {
    let spread = spread(json!({"targetRef": {"apiVersion": "apps.kruise.io/v1beta1"}, "subsets": [{"name": "a"}]}));
    let above = |api: &str, kind: &str, name: &str| Above {
        api_version: api.into(),
        kind: kind.into(),
        name: name.into(),
        uid: "u".into(),
    };
    assert!(above("apps.kruise.io/v1alpha1", "CloneSet", "web").is_target_of(&spread));
    for (api, kind, name) in [
        ("apps/v1", "CloneSet", "web"),
        ("apps.kruise.io/v1alpha1", "StatefulSet", "web"),
        ("apps.kruise.io/v1alpha1", "CloneSet", "other"),
    ] {
        assert!(!above(api, kind, name).is_target_of(&spread), "{api} {kind} {name}");
    }
}

#[test]
fn shortfall_one_target_may_have_several_with_disjoint_filters() {
    let with = |name: &str, created: i64, filter: Value| {
        let mut object = spread(json!({"subsets": [{"name": "a"}], "targetFilter": filter}));
        object.metadata.name = Some(name.into());
        object.metadata.creation_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(created).wall));
        object
    };
    let role = |role: &str| json!({"selector": {"matchLabels": {"role": role}}});
    let (ps, worker, all) = (with("ps", 0, role("ps")), with("worker", 1, role("worker")), with("all", 2, json!({})));
    assert!(!matching::overlap(&ps, &worker));
    assert!(matching::overlap(&ps, &all), "a filter without a selector is for all Pods");
    let older = |of: &WorkloadSpread| matching::older(of, [&ps, &worker, &all]);
    assert_eq!((older(&ps), older(&worker), older(&all)), (None, None, Some("ps".into())));
    let labels = |role: &str| serde_json::from_value(json!({"role": role})).unwrap();
    assert!(matching::selects(&ps, &labels("ps")) && !matching::selects(&ps, &labels("worker")));
    assert!(matching::selects(&all, &labels("worker")));
}

#[test]
fn of_several_above_a_pod_the_oldest_has_it_however_near_its_target_is() {
    let with = |name: &str, created: i64, kind: &str, target: &str, role: Option<&str>| {
        let target = json!({"apiVersion": "apps/v1", "kind": kind, "name": target});
        let filter = role.map(|role| json!({"selector": {"matchLabels": {"role": role}}}));
        let mut object = spread(json!({"targetRef": target, "subsets": [{"name": "a"}], "targetFilter": filter}));
        object.metadata.name = Some(name.into());
        object.metadata.creation_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(created).wall));
        Arc::new(object)
    };
    let above = |kind: &str, name: &str| Above {
        api_version: "apps/v1".into(),
        kind: kind.into(),
        name: name.into(),
        uid: "u".into(),
    };
    let chain = [above("ReplicaSet", "web-5d4"), above("Deployment", "web")];
    let labels = serde_json::from_value(json!({"role": "ps"})).unwrap();
    let (set, deployment) = (("ReplicaSet", "web-5d4"), ("Deployment", "web"));
    for (all, wanted) in [
        (vec![("on-set", 1, set, None), ("on-deployment", 0, deployment, None)], Some("on-deployment")),
        (vec![("on-set", 0, set, None), ("on-deployment", 1, deployment, None)], Some("on-set")),
        (vec![("b", 0, set, None), ("a", 0, deployment, None)], Some("a")),
        (vec![("filtered", 0, set, Some("worker")), ("late", 1, deployment, Some("ps"))], Some("late")),
        (vec![("elsewhere", 0, ("Deployment", "other"), None), ("late", 1, set, None)], Some("late")),
        (vec![("elsewhere", 0, ("StatefulSet", "web"), None)], None),
    ] {
        let mut spreads: Vec<_> =
            all.iter().map(|(name, created, (kind, target), role)| with(name, *created, kind, target, *role)).collect();
        matching::by_age(&mut spreads);
        let chosen = matching::choose(&spreads, &chain, &labels);
        assert_eq!(chosen.and_then(|spread| spread.metadata.name.as_deref()), wanted, "{all:?}");
    }
    let (old, young) = (with("old", 0, "ReplicaSet", "x", None), with("young", 1, "Deployment", "y", None));
    assert!(matching::stands_before(&old, &young) && !matching::stands_before(&young, &old));
    assert!(!matching::stands_before(&old, &old));
    let mut going = WorkloadSpread::clone(&old);
    going.metadata.deletion_timestamp = going.metadata.creation_timestamp.clone();
    assert!(!matching::stands_before(&going, &young), "one that is being deleted has none");
}

#[test]
fn costs_are_those_that_openkruise_writes() {
    let spec = limited(&[json!(1), Value::Null]);
    let pods = spread_as(&[1, 1]);
    assert_eq!(
        costs(&planned(&spec, &pods, 2, &WorkloadSpreadStatus::default())),
        BTreeMap::from([("web-0-0".into(), 200), ("web-1-0".into(), 100)])
    );
    let settled = [in_subset(0, noted("p", 200)), in_subset(1, noted("q", 100))];
    assert!(
        planned(&spec, &settled, 2, &WorkloadSpreadStatus::default()).costs.is_empty(),
        "recorded Pods are not written"
    );
    let mut pods = spread_as(&[3, 1]);
    pods[1] = in_subset(0, pod("web-0-1", json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}})));
    pods.push(SpreadPod { pod: pod("nowhere", json!({})), home: Home::Nowhere });
    pods.push(SpreadPod { pod: pod("unknown", json!({})), home: Home::Unknown });
    let many = costs(&planned(&spec, &pods, 6, &WorkloadSpreadStatus::default()));
    assert_eq!((many["web-0-1"], many["nowhere"], many.get("unknown")), (-100, -300, None), "what is down goes first");
    assert_eq!(many.values().filter(|cost| **cost == 200).count(), 1);
    assert_eq!(many.values().filter(|cost| **cost == -100).count(), 2, "above the limit of the first");
}

#[test]
fn of_an_old_version_those_go_first_whose_subset_is_filled_first() {
    let spec = of_kind("Deployment", &[json!(2), Value::Null]);
    let label = |hash: &str| json!({"metadata": {"labels": {"pod-template-hash": hash}}});
    let pods: Vec<_> = ["old", "new"]
        .iter()
        .flat_map(|version| (0..2).map(move |i| (version, i)))
        .map(|(version, i)| in_subset(i, pod(&format!("{version}-{i}"), label(version))))
        .collect();
    let (ages, recorded) = (BTreeMap::new(), WorkloadSpreadStatus::default());
    let of = |newest: Newest| plan(&spec, &seen(&pods, (4, newest), &recorded, &ages), at(0));
    let found = costs(&of(Newest::Version("new".into())));
    assert_eq!((found["old-0"], found["old-1"], found["new-0"], found["new-1"]), (100, 200, 200, 100));
    assert!(of(Newest::Unknown).costs.is_empty(), "nothing is written on a guess");
}

#[test]
fn above_the_limits_too_those_of_an_old_version_go_first_whose_subset_is_filled_first() {
    for (index, newest, old) in [(0, -100, -300), (1, -200, -200), (2, -300, -100)] {
        assert_eq!((cost::above(3, index, true), cost::above(3, index, false)), (newest, old), "{index}");
    }
    let label = |hash: &str| json!({"metadata": {"labels": {"pod-template-hash": hash}}});
    let all = [("old", 0), ("old", 1), ("new", 0), ("new", 1)];
    let pods = all.map(|(version, index)| in_subset(index, pod(&format!("{version}-{index}"), label(version))));
    for (limits, wanted) in [
        ([json!(0), json!(0)], [-200, -100, -100, -200]),
        // All Pods are to be in the first subset: those of the second one have no place among them.
        ([json!("100%"), json!("0%")], [1, -100, 999_999, -200]),
    ] {
        let spec = of_kind("Deployment", &limits);
        let (ages, recorded, newest) =
            (BTreeMap::new(), WorkloadSpreadStatus::default(), Newest::Version("new".into()));
        let found = costs(&plan(&spec, &seen(&pods, (2, newest), &recorded, &ages), at(0)));
        assert_eq!(all.map(|(version, index)| found[&format!("{version}-{index}")]), wanted, "{limits:?}");
    }
}

#[test]
fn kinds_that_do_not_regard_costs_get_none() {
    for kind in ["StatefulSet", "Job"] {
        let group = if kind == "Job" { "batch/v1" } else { "apps/v1" };
        let spec = spec(
            json!({"targetRef": {"apiVersion": group, "kind": kind}, "subsets": [{"name": "a", "maxReplicas": 1}, {"name": "b"}]}),
        );
        assert!(planned(&spec, &spread_as(&[2, 2]), 4, &WorkloadSpreadStatus::default()).costs.is_empty(), "{kind}");
    }
}

/// Takes Pods as a workload that is scaled down does: the lowest cost first.
fn scaled_down(pods: &[SpreadPod], costs: &BTreeMap<String, i32>, to: usize, subsets: usize) -> Vec<i32> {
    let mut left: Vec<(i32, usize)> = pods
        .iter()
        .map(|pod| {
            let Home::Subset(index) = pod.home else { panic!() };
            (costs.get(pod.pod.name()).copied().unwrap_or(pod.pod.deletion_cost), index)
        })
        .collect();
    left.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
    left.truncate(to);
    (0..subsets).map(|index| i32::try_from(left.iter().filter(|(_, of)| *of == index).count()).unwrap()).collect()
}

#[test]
fn a_scale_down_keeps_the_ratio_however_far_it_goes() {
    for limits in [
        vec![json!("30%"), json!("70%")],
        vec![json!("50%"), json!("30%"), json!("20%")],
        vec![json!("40%"), Value::Null],
    ] {
        let spec = limited(&limits);
        let total = 40;
        let counts: Vec<usize> = spec.shares(total).iter().map(|n| usize::try_from(*n).unwrap()).collect();
        let pods = spread_as(&counts);
        // What the workload finds: costs that were written before anybody knew to what number it would be scaled.
        let costs = costs(&planned(&spec, &pods, total, &WorkloadSpreadStatus::default()));
        for to in (0..total).rev() {
            let left = scaled_down(&pods, &costs, usize::try_from(to).unwrap(), limits.len());
            for (left, wanted) in left.iter().zip(spec.shares(to)) {
                assert!((left - wanted).abs() <= 1, "{limits:?} to {to}: {left} instead of {wanted}");
            }
        }
    }
}

#[test]
fn with_percentages_a_pod_keeps_its_cost_while_others_come_and_go() {
    let spec = limited(&[json!("50%"), json!("50%")]);
    let give = |pods: &[SpreadPod]| {
        costs(&planned(&spec, pods, i32::try_from(pods.len()).unwrap(), &WorkloadSpreadStatus::default()))
    };
    let of = |all: &BTreeMap<String, i32>, pods: &[SpreadPod]| -> Vec<SpreadPod> {
        pods.iter()
            .map(|pod| SpreadPod {
                pod: noted(pod.pod.name(), all.get(pod.pod.name()).copied().unwrap_or(pod.pod.deletion_cost)),
                home: pod.home,
            })
            .collect()
    };
    let bare = spread_as(&[4, 4]);
    let settled = of(&give(&bare), &bare);
    assert!(give(&settled).is_empty());
    let mut grown = settled.clone();
    grown.extend([in_subset(0, pod("new-a", json!({}))), in_subset(1, pod("new-b", json!({})))]);
    assert_eq!(give(&grown).len(), 2, "only the new ones are written");
    let mut shrunk = settled;
    // One from the middle: the last one takes its place.
    let gone = shrunk.iter().position(|pod| pod.pod.deletion_cost == 1_000_000 - 3).unwrap();
    shrunk.remove(gone);
    assert_eq!(give(&shrunk).len(), 1);
    for (index, there) in [(0, 0), (0, 1), (1, 0), (1, 3)] {
        let counts = if index == 0 {
            [usize::try_from(there).unwrap() + 1, 4]
        } else {
            [4, usize::try_from(there).unwrap() + 1]
        };
        let pods = spread_as(&counts);
        let lowest = give(&pods)
            .into_iter()
            .filter(|(name, _)| name.starts_with(&format!("web-{index}-")))
            .map(|(_, cost)| cost)
            .min();
        assert_eq!(of_new(&spec, index, there, 0), lowest, "what admission writes is what the controller would");
    }
}

fn of_new(spec: &SpreadSpec, index: usize, there: i32, total: i32) -> Option<i32> {
    cost::of_new(spec, &mut cost::Coming::new(spec), (index, there), total)
}

#[test]
fn what_admission_writes_with_numbers_is_what_the_controller_would() {
    let spec = limited(&[json!(1), json!(2), Value::Null]);
    assert_eq!((0..3).map(|index| of_new(&spec, index, 0, 0)).collect::<Vec<_>>(), [Some(300), Some(200), Some(100)]);
    let shares = limited(&[json!("50%"), json!("50%")]);
    assert_eq!(of_new(&shares, 0, 5000, 20_000), Some(1_000_000 - 10_001));
    // The third Pod of 1% comes when there are 201: that is not far above what the one subset has.
    let few = limited(&[json!("1%"), json!("99%")]);
    let costs = |total: i32| (0..4).map(|there| of_new(&few, 0, there, total)).collect::<Vec<_>>();
    assert_eq!(costs(0), [Some(999_999), Some(999_899), None, None], "never taken for one above the limit");
    assert_eq!(costs(400), [Some(999_999), Some(999_899), Some(999_799), Some(999_699)], "each comes with its cost");
    // Many subsets: what one Pod leaves undone the next one finds.
    let many: Vec<Value> = (0..100).map(|_| json!("1%")).collect();
    let (many, mut coming) = (limited(&many), cost::Coming::default());
    assert_eq!(cost::of_new(&many, &mut coming, (0, 20), 20_000), None);
    let later: Vec<_> = (0..4).map(|_| cost::of_new(&many, &mut coming, (0, 20), 20_000)).collect();
    assert_eq!(later.last(), Some(&Some(1_000_000 - 2001)));
    // Another spec under the same name.
    assert_eq!(cost::of_new(&few, &mut coming, (0, 0), 1), Some(999_999));
    let first_ones = self::costs(&planned(&few, &spread_as(&[4, 0]), 400, &WorkloadSpreadStatus::default()));
    assert_eq!(first_ones.into_values().min(), Some(1_000_000 - 301), "the others have still to come");
    let of_controller = planned(&few, &spread_as(&[3, 297]), 300, &WorkloadSpreadStatus::default()).costs;
    assert!(of_controller.iter().any(|(pod, cost)| pod.name().starts_with("web-0-") && *cost == 1_000_000 - 201));
}

fn aged(status: &WorkloadSpreadStatus, age: Duration) -> BTreeMap<EntryKey, Duration> {
    super::plan::records(status).map(|(entry, _)| (entry, age)).collect()
}

#[test]
fn a_creation_that_never_came_gives_its_place_back_within_30_s() {
    let spec = limited(&[json!(1), Value::Null]);
    let mut status = WorkloadSpreadStatus::default();
    ask(&spec, 2, &mut status, &create("p", VERSION_IGNORED));
    let of = |age: Duration, pods: &[SpreadPod]| {
        let ages = aged(&status, age);
        plan(&spec, &seen(pods, (2, Newest::Only), &status, &ages), at(60))
    };
    let waiting = of(Duration::from_secs(20), &[]);
    assert_eq!(
        (waiting.versions[VERSION_IGNORED][0].missing_replicas, waiting.look),
        (0, Some(CREATION_LASTS - Duration::from_secs(20)))
    );
    assert_eq!(waiting.coming, 1);
    let over = of(CREATION_LASTS, &[]);
    assert!(over.versions.is_empty() && over.events == [SpreadEvent::CreatePodFailed("a".into())]);
    assert!(CREATION_LASTS + Duration::from_secs(1) < Duration::from_secs(30));
    let came = of(CREATION_LASTS, &[in_subset(0, pod("p", json!({})))]);
    assert!(came.events.is_empty());
    let entry = &came.versions[VERSION_IGNORED][0];
    assert_eq!((entry.replicas, entry.creating_pods.len(), entry.missing_replicas), (1, 0, 0));
}

#[test]
fn a_pod_without_a_name_is_known_by_the_uid_of_its_note() {
    let spec = limited(&[json!(1), Value::Null]);
    let mut status = WorkloadSpreadStatus::default();
    ask(&spec, 2, &mut status, &create("u-1", VERSION_IGNORED));
    let note = json!({"metadata": {"annotations": {"apps.kruise.io/matched-workloadspread": annotation("ws", "a", Some("u-1"))}}});
    let plan = planned(&spec, &[in_subset(0, pod("web-abc", note))], 2, &status);
    assert!(plan.versions[VERSION_IGNORED][0].creating_pods.is_empty());
}

#[test]
fn a_namesake_on_its_way_out_is_not_the_one_that_comes() {
    let spec = limited(&[json!(2), Value::Null]);
    let mut status = WorkloadSpreadStatus::default();
    ask(&spec, 2, &mut status, &create("p", VERSION_IGNORED));
    let going = |created: i64| {
        pod(
            "p",
            json!({"metadata": {"creationTimestamp": rfc3339(at(created).wall), "deletionTimestamp": rfc3339(at(1).wall)}}),
        )
    };
    let creating = |created: i64| planned(&spec, &[in_subset(0, going(created))], 2, &status).coming;
    assert_eq!((creating(-60), creating(0)), (1, 0));
    // The webhook's clock has nanoseconds, the creationTimestamp has seconds.
    let since = at(0).wall + Duration::from_millis(700);
    status.versioned_subset_statuses.get_mut(VERSION_IGNORED).unwrap()[0].creating_pods.insert("p".into(), since);
    let creating = |created: i64| planned(&spec, &[in_subset(0, going(created))], 2, &status).coming;
    assert_eq!((creating(-1), creating(0)), (1, 0));
}

#[test]
fn a_pod_that_goes_and_its_namesake_that_comes_have_records_of_their_own() {
    let spec = limited(&[json!(2), Value::Null]);
    let mut status = recorded(VERSION_IGNORED, json!([{"name": "a", "replicas": 1, "missingReplicas": 1}]));
    ask(&spec, 2, &mut status, &delete("p", "a"));
    ask(&spec, 2, &mut status, &create("p", VERSION_IGNORED));
    let all: Vec<_> = super::plan::records(&status).map(|((way, ..), _)| way).collect();
    assert_eq!(all, [Way::Coming, Way::Going]);
}

#[test]
fn thousands_of_records_are_matched_with_thousands_of_pods() {
    // Each with each would be 10^8 comparisons of names.
    const MANY: usize = 10_000;
    let spec = limited(&[json!(2 * MANY), Value::Null]);
    let mut status = WorkloadSpreadStatus::default();
    for i in 0..MANY {
        ask(&spec, 0, &mut status, &create(&format!("web-0-{i}"), VERSION_IGNORED));
    }
    let plan = planned(&spec, &spread_as(&[MANY]), 0, &status);
    assert_eq!((plan.coming, plan.subsets[0].replicas), (0, i32::try_from(MANY).unwrap()));
    let shares = limited(&[json!("50%"), json!("50%")]);
    assert_eq!(planned(&shares, &spread_as(&[MANY / 2, MANY / 2]), 10_000, &status).costs.len(), MANY);
}

#[test]
fn a_pod_that_was_not_deleted_is_counted_again_after_5_s() {
    let spec = limited(&[json!(1), Value::Null]);
    let mut status = recorded(VERSION_IGNORED, json!([{"name": "a", "replicas": 1, "missingReplicas": 0}]));
    ask(&spec, 2, &mut status, &delete("p", "a"));
    let of = |age: Duration, pods: &[SpreadPod]| {
        let ages = aged(&status, age);
        plan(&spec, &seen(pods, (2, Newest::Only), &status, &ages), at(60))
    };
    let there = [in_subset(0, pod("p", json!({})))];
    let young = of(Duration::from_secs(2), &there);
    assert_eq!(
        (young.versions[VERSION_IGNORED][0].missing_replicas, young.look),
        (1, Some(DELETION_LASTS - Duration::from_secs(2)))
    );
    assert_eq!(DELETION_LASTS, Duration::from_secs(5));
    let old = of(DELETION_LASTS, &there);
    assert_eq!(
        (old.versions[VERSION_IGNORED][0].missing_replicas, &old.events[..]),
        (0, &[SpreadEvent::DeletePodFailed("p".into())][..])
    );
    let going = [in_subset(0, pod("p", json!({"metadata": {"deletionTimestamp": rfc3339(at(0).wall)}})))];
    let gone = of(Duration::from_secs(2), &going);
    assert!(gone.versions.is_empty() && gone.events.is_empty());
    assert_eq!(gone.subsets[0].missing_replicas, 1);
    // One that takes longer makes room when it is seen, whatever has become of its record.
    let late = of(DELETION_LASTS, &going);
    assert_eq!((late.subsets[0].missing_replicas, late.events.len()), (1, 0));
}

fn unplaced(name: &str, created: i64) -> Arc<PodView> {
    pod(
        name,
        json!({"metadata": {"creationTimestamp": rfc3339(at(created).wall)}, "spec": {"nodeName": null}, "status": {"phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}}),
    )
}

#[test]
fn pods_that_find_no_place_are_evicted_and_their_subset_gets_no_more_for_a_while() {
    let spec = adaptive(&[json!(5), Value::Null]);
    let gated = pod(
        "gated",
        json!({"metadata": {"creationTimestamp": rfc3339(at(-90).wall)}, "spec": {"nodeName": null}, "status": {"phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}}),
    );
    let pods = [
        in_subset(0, unplaced("late", -31)),
        in_subset(0, unplaced("young", -10)),
        in_subset(1, unplaced("last", -90)),
        in_subset(0, gated),
    ];
    let plan = planned(&spec, &pods, 4, &WorkloadSpreadStatus::default());
    assert_eq!(plan.evict.iter().map(|pod| pod.name()).collect::<Vec<_>>(), ["late"]);
    assert_eq!(plan.look, Some(Duration::from_secs(20)));
    let words = |plan: &SpreadPlan| {
        plan.subsets
            .iter()
            .map(|s| s.conditions.iter().map(|c| c.status.as_str()).collect::<String>())
            .collect::<Vec<_>>()
    };
    assert_eq!(words(&plan), ["False", "True"]);
    assert_eq!(plan.versions[VERSION_IGNORED][0].conditions, plan.subsets[0].conditions);
    let fixed = planned(&limited(&[json!(5), Value::Null]), &pods, 4, &WorkloadSpreadStatus::default());
    assert!(fixed.evict.is_empty() && words(&fixed) == ["", ""], "without the setting there is no condition");
}

fn of_job(name: &str) -> Arc<PodView> {
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "web", "uid": "t", "controller": true});
    let refused = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
    let metadata = json!({"creationTimestamp": rfc3339(at(-31).wall), "ownerReferences": [owner]});
    let status = json!({"phase": "Pending", "conditions": refused});
    pod(name, json!({"metadata": metadata, "spec": {"nodeName": null}, "status": status}))
}

#[test]
fn pods_of_a_job_are_evicted_only_if_it_does_not_count_them_as_failed() {
    let spec = SpreadSpec { target_kind: TargetKind::Job, ..adaptive(&[json!(9), Value::Null]) };
    let pods: Vec<SpreadPod> = (0..7).map(|i| in_subset(0, of_job(&format!("web-{i}")))).collect();
    let (ages, recorded) = (BTreeMap::new(), WorkloadSpreadStatus::default());
    for (ignores_disruptions, evicted) in [(false, 0), (true, 7)] {
        let seen = SpreadSeen { ignores_disruptions, ..seen(&pods, (7, Newest::Only), &recorded, &ages) };
        let plan = plan(&spec, &seen, at(0));
        assert_eq!(plan.evict.len(), evicted);
        assert_eq!(plan.subsets[0].conditions[0].status, "False", "later ones go elsewhere");
    }
    // Nobody reads a Job between a target of another kind and its Pods.
    let custom = SpreadSpec { target_kind: TargetKind::Custom, ..spec };
    assert!(planned(&custom, &pods, 7, &recorded).evict.is_empty());
}

#[test]
fn a_job_ignores_disruptions_if_the_first_rule_that_is_for_an_evicted_pod_says_so() {
    let rule = |action: &str, type_: &str| json!({"action": action, "onPodConditions": [{"type": type_}]});
    let codes = json!({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}});
    let unscheduled = json!({"action": "Count", "onPodConditions": [{"type": "PodScheduled", "status": "False"}]});
    let disruption = |status: &str| {
        let patterns = json!([{"type": "Other"}, {"type": "DisruptionTarget", "status": status}]);
        json!({"action": "Ignore", "onPodConditions": patterns})
    };
    for (rules, wanted) in [
        (json!([rule("Ignore", "DisruptionTarget")]), true),
        (json!([codes, rule("FailJob", "ConfigIssue"), disruption("True")]), true),
        (json!([disruption("False")]), false),
        (json!([rule("FailJob", "DisruptionTarget"), disruption("True")]), false),
        (json!([unscheduled, disruption("True")]), false),
        (json!([rule("Count", "DisruptionTarget")]), false),
        (json!([codes]), false),
        (json!([]), false),
    ] {
        let job = json!({"spec": {"podReplacementPolicy": "Failed", "podFailurePolicy": {"rules": rules}}});
        assert_eq!(ignores_disruptions(&job), wanted, "{job}");
    }
    assert!(!ignores_disruptions(&json!({"spec": {"podReplacementPolicy": "Failed"}})), "it counts them later");
}

#[test]
fn surge_pods_of_a_clone_set_find_room_only_beyond_what_its_replicas_take() {
    for (limits, surge, wanted) in [
        ([json!(3), json!(7)], json!(1), true),
        ([json!(3), json!(8)], json!(1), false),
        ([json!(3), json!(8)], json!("11%"), true),
        ([json!("30%"), json!("70%")], json!("25%"), true),
        ([json!("30%"), json!("70%")], json!(0), false),
        ([json!("30%"), json!("70%")], Value::Null, false),
        ([json!("30%"), Value::Null], json!(5), false),
    ] {
        let target = json!({"spec": {"replicas": 10, "updateStrategy": {"maxSurge": surge}}});
        assert_eq!(replicas::lacks_room_for_surge(&limited(&limits), &target), wanted, "{limits:?} {surge}");
    }
    // Each version of a Deployment has room of its own, and its surge is elsewhere.
    let deployment = json!({"spec": {"replicas": 10, "updateStrategy": {"maxSurge": 1}}});
    assert!(!replicas::lacks_room_for_surge(&of_kind("Deployment", &[json!(5)]), &deployment));
}

#[test]
fn a_subset_recovers_300_s_after_the_last_pod_that_found_no_place() {
    let bad = judge(&[], 1, false, at(0)).condition;
    assert_eq!((bad.status.as_str(), bad.last_transition_time), ("False", Some(at(0).wall)));
    let later = judge(std::slice::from_ref(&bad), 0, false, at(100));
    assert_eq!(
        (later.condition.status.as_str(), later.look),
        ("False", Some(RECOVERS_AFTER - Duration::from_secs(100)))
    );
    let again = judge(&[later.condition], 0, false, at(300));
    assert_eq!((again.condition.status.as_str(), again.has_recovered, again.look), ("True", true, None));
    assert!(!judge(&[again.condition], 0, false, at(301)).has_recovered);
    assert_eq!(judge(&[bad], 3, true, at(0)).condition.status, "True", "the last one always gets Pods");
}

#[test]
fn the_status_says_what_it_waits_for() {
    let spec = limited(&[json!(1), Value::Null]);
    let before = WorkloadSpreadStatus::default();
    let says = |outcome: Result<&SpreadPlan, (&SpreadHindrance, Option<&SpreadPlan>)>| {
        let status = status(Some(&spec), outcome, &before, Some(3), at(0).wall);
        assert_eq!(status.observed_generation, 3);
        let is_true = status.conditions.iter().find(|c| c.status == "True").unwrap();
        format!("{} {}", is_true.type_, is_true.reason)
    };
    assert_eq!(says(Ok(&planned(&spec, &spread_as(&[1, 1]), 2, &before))), "Ready Spread");
    assert_eq!(says(Ok(&planned(&spec, &spread_as(&[2, 1]), 2, &before))), "Ready BeyondLimits");
    let mut missed = spread_as(&[2, 1]);
    missed.push(SpreadPod { pod: unplaced("missed", 0), home: Home::Unknown });
    assert_eq!(says(Ok(&planned(&spec, &missed, 4, &before))), "Reconciling PodsUnassigned");
    let gone = pod("gone", json!({"status": {"phase": "Failed"}}));
    missed[3] = SpreadPod { pod: gone, home: Home::Unknown };
    assert_eq!(says(Ok(&planned(&spec, &missed, 4, &before))), "Ready BeyondLimits", "nobody assigns it any more");
    let mut on_its_way = before.clone();
    ask(&spec, 2, &mut on_its_way, &create("p", VERSION_IGNORED));
    assert_eq!(says(Ok(&planned(&spec, &[], 2, &on_its_way))), "Reconciling PodsComing");
    let nobody = without_pods(&spec, &before, &BTreeMap::new(), at(0));
    for (hindrance, leaves_no_pods, wanted) in [
        (SpreadHindrance::Invalid("x".into()), false, "Stalled InvalidSpec"),
        (SpreadHindrance::Taken("x".into()), false, "Stalled TargetTaken"),
        (SpreadHindrance::Unreadable("x".into()), false, "Stalled TargetUnreadable"),
        (SpreadHindrance::Missing, true, "Reconciling TargetMissing"),
        (SpreadHindrance::Going, true, "Reconciling TargetDeleted"),
    ] {
        assert_eq!(hindrance.leaves_no_pods(), leaves_no_pods, "{wanted}");
        for plan in [None, Some(&nobody)] {
            assert_eq!(says(Err((&hindrance, plan))), wanted);
        }
    }
}

#[test]
fn without_a_target_there_are_no_pods_and_only_what_is_coming_counts() {
    let counted = |creating: Value| {
        let a = json!({"name": "a", "replicas": 3, "missingReplicas": 0, "creatingPods": creating,
            "deletingPods": {"p": "2026-01-01T00:00:00Z"}});
        recorded(VERSION_IGNORED, json!([a, {"name": "b", "replicas": 7, "missingReplicas": 0}]))
    };
    let (known, nothing) = (counted(json!({"ahead:1:r:0": "2026-01-01T00:00:00Z"})), counted(json!({})));
    for (limits, coming, settled) in [
        ([json!(4), Value::Null], [3, -1], [4, -1]),
        ([json!("30%"), json!("70%")], [0, 0], [0, 0]),
        ([json!("30%"), Value::Null], [0, -1], [0, -1]),
    ] {
        let spec = limited(&limits);
        for (before, age, room) in [
            (&known, 0, coming),
            (&known, 28, settled),
            (&nothing, 0, settled),
            (&WorkloadSpreadStatus::default(), 0, settled),
        ] {
            let plan = without_pods(&spec, before, &aged(before, Duration::from_secs(age)), at(0));
            let of = |subset: &SpreadSubsetStatus| (subset.replicas, subset.missing_replicas);
            assert_eq!(plan.subsets.iter().map(of).collect::<Vec<_>>(), room.map(|room| (0, room)), "{limits:?} {age}");
            assert!(plan.events.is_empty(), "nobody has looked whether a Pod came: {:?}", plan.events);
            let is_coming = before == &known && age == 0;
            assert_eq!((plan.versions.len(), plan.look.is_some()), (usize::from(is_coming), is_coming));
            for entry in plan.versions.values().flatten() {
                assert!(entry.deleting_pods.is_empty(), "it would make room among those that come: {entry:?}");
            }
            let (gone, unreadable) = (SpreadHindrance::Missing, SpreadHindrance::Unreadable("x".into()));
            let emptied = status(Some(&spec), Err((&gone, Some(&plan))), before, Some(1), at(0).wall);
            assert_eq!((&emptied.subset_statuses, &emptied.versioned_subset_statuses), (&plan.subsets, &plan.versions));
            let kept = status(Some(&spec), Err((&unreadable, None)), before, Some(1), at(0).wall);
            assert_eq!(kept.versioned_subset_statuses, before.versioned_subset_statuses);
        }
    }
}

#[test]
fn while_the_target_cannot_be_read_the_pods_with_notes_count_and_records_are_settled() {
    let a = json!({"name": "a", "replicas": 2, "missingReplicas": 3, "creatingPods": {"came": "2026-01-01T00:00:00Z",
        "refused": "2026-01-01T00:00:00Z"}, "deletingPods": {"gone": "2026-01-01T00:00:00Z"}});
    let before = recorded(VERSION_IGNORED, json!([a, {"name": "b", "replicas": 0, "missingReplicas": 0}]));
    let pods = [in_subset(0, pod("came", json!({}))), in_subset(0, pod("stays", json!({})))];
    for (limits, rooms) in
        [([json!(6), Value::Null], [[3, -1], [4, -1]]), ([json!("60%"), json!("40%")], [[3, 0], [3, 0]])]
    {
        let spec = limited(&limits);
        for (age, room) in [(0, rooms[0]), (28, rooms[1])] {
            let plan = without_target(&spec, &before, &pods, &aged(&before, Duration::from_secs(age)), at(0));
            let entries = &plan.versions[VERSION_IGNORED];
            let found: Vec<_> = entries.iter().map(|entry| (entry.replicas, entry.missing_replicas)).collect();
            assert_eq!(found, [(2, room[0]), (0, room[1])], "{limits:?} {age}");
            let coming: Vec<_> = entries[0].creating_pods.keys().map(String::as_str).collect();
            assert_eq!(coming, if age == 0 { vec!["refused"] } else { vec![] });
            assert!(entries[0].deleting_pods.is_empty() && plan.costs.is_empty());
        }
    }
    let adaptive = adaptive(&[json!(6), Value::Null]);
    let waits = [in_subset(0, unplaced("late", -31))];
    let plan = without_target(&adaptive, &before, &waits, &BTreeMap::new(), at(0));
    assert!(plan.evict.is_empty() && plan.subsets[0].conditions[0].status == "False");
}

#[test]
fn without_a_target_a_subset_without_a_place_recovers_in_its_time() {
    let spec = adaptive(&[json!(5), Value::Null]);
    let found = planned(&spec, &[in_subset(0, unplaced("late", -31))], 1, &WorkloadSpreadStatus::default());
    let before = status(Some(&spec), Ok(&found), &WorkloadSpreadStatus::default(), Some(1), at(0).wall);
    for (after, wanted, look, events) in [
        (100, "False", Some(RECOVERS_AFTER - Duration::from_secs(100)), vec![]),
        (300, "True", None, vec![SpreadEvent::RecoverSchedulable("a".into())]),
    ] {
        let plan = without_pods(&spec, &before, &BTreeMap::new(), at(after));
        assert_eq!((plan.subsets[0].conditions[0].status.as_str(), plan.look), (wanted, look));
        assert_eq!(plan.events, events);
    }
}

#[test]
fn shortfall_a_status_is_compared_with_what_is_stored() {
    // OpenKruise writes it in every pass; here a pass over what is as it was changes nothing.
    let spec = limited(&[json!(1), Value::Null]);
    let pods = [in_subset(0, noted("p", 200)), in_subset(1, noted("q", 100))];
    let first = status(
        Some(&spec),
        Ok(&planned(&spec, &pods, 2, &WorkloadSpreadStatus::default())),
        &WorkloadSpreadStatus::default(),
        Some(1),
        at(0).wall,
    );
    let second = status(Some(&spec), Ok(&planned(&spec, &pods, 2, &first)), &first, Some(1), at(9).wall);
    assert_eq!(first, second);
    let written = json!(first);
    assert_eq!(
        written["subsetStatuses"],
        json!([{"name": "a", "replicas": 1, "missingReplicas": 0, "creatingPods": {}},
            {"name": "b", "replicas": 1, "missingReplicas": -1, "creatingPods": {}}]),
        "as recorded, and with the map that the webhook adds to"
    );
    assert_eq!(written["versionedSubsetStatuses"][VERSION_IGNORED], written["subsetStatuses"]);
}

#[test]
fn room_that_is_free_again_is_written_at_once() {
    let of = |replicas: i32, creating: Value| {
        recorded(VERSION_IGNORED, json!([{"name": "a", "replicas": replicas, "creatingPods": creating}]))
    };
    let one = || json!({"p": "2026-01-01T00:00:00Z"});
    assert!(!is_news(&of(1, one()), &of(2, json!({}))), "the Pod has come");
    assert!(is_news(&of(1, one()), &of(1, json!({}))), "it has not");
    assert!(is_news(
        &of(1, json!({})),
        &WorkloadSpreadStatus { observed_generation: 1, ..WorkloadSpreadStatus::default() }
    ));
    let other = WorkloadSpreadStatus { observed_generation: 2, ..of(1, json!({})) };
    assert!(is_news(&of(1, json!({})), &other));
}

#[test]
fn many_records_that_are_settled_are_taken_away_at_once() {
    let of = |replicas: i32, left: usize| {
        let creating: serde_json::Map<String, Value> =
            (0..left).map(|i| (format!("p{i}"), json!("2026-01-01T00:00:00Z"))).collect();
        recorded(VERSION_IGNORED, json!([{"name": "a", "replicas": replicas, "creatingPods": creating}]))
    };
    assert!(!is_news(&of(0, 200), &of(127, 73)));
    assert!(is_news(&of(0, 200), &of(128, 72)));
}

#[test]
fn fields_that_cannot_be_are_named_with_what_is_allowed() {
    let subsets = |subsets: Value| json!({"subsets": subsets});
    let two = |a: Value, b: Value| subsets(json!([{"name": "a", "maxReplicas": a}, {"name": "b", "maxReplicas": b}]));
    let patched = |patch: Value| subsets(json!([{"name": "a", "patch": patch}]));
    let selecting = |selector: Value| json!({"targetFilter": {"selector": selector}, "subsets": [{"name": "a"}]});
    for (changes, field, words) in [
        (subsets(json!([])), "spec.subsets", "want 1 to 64"),
        (subsets(json!([{"name": ""}])), "spec.subsets[0].name", "it is empty"),
        (subsets(json!([{"name": "a"}, {"name": "a"}])), "spec.subsets[1].name", "another subset"),
        (two(json!(-1), Value::Null), "spec.subsets[0].maxReplicas", "want 0 or more"),
        (two(json!("x"), Value::Null), "spec.subsets[0].maxReplicas", "\"x\" is not allowed"),
        (two(json!("5"), Value::Null), "spec.subsets[0].maxReplicas", "want a number, or a percentage"),
        (two(json!("101%"), Value::Null), "spec.subsets[0].maxReplicas", "want a number, or a percentage"),
        (two(json!("12.5%"), Value::Null), "spec.subsets[0].maxReplicas", "want a number, or a percentage"),
        (two(json!("+5%"), Value::Null), "spec.subsets[0].maxReplicas", "want a number, or a percentage"),
        (two(json!(1), json!("50%")), "spec.subsets", "percentages in all"),
        (two(json!("60%"), json!("60%")), "spec.subsets", "120% together"),
        (two(json!("30%"), json!("60%")), "spec.subsets", "90% together"),
        (subsets(json!([{"name": "a", "patch": "x"}])), "spec.subsets[0].patch", "want an object"),
        (patched(json!({"metadata": {"name": "x"}})), "spec.subsets[0].patch.metadata.name", "identifies the Pod"),
        (
            patched(json!({"metadata": {"ownerReferences": null}})),
            "spec.subsets[0].patch.metadata.ownerReferences",
            "or its owner",
        ),
        (
            patched(json!({"metadata": {"labels": {"pod-template-hash": "h"}}})),
            "spec.subsets[0].patch.metadata.labels[pod-template-hash]",
            "by this label",
        ),
        (
            patched(json!({"metadata": {"annotations": {"apps.kruise.io/specified-delete": "true"}}})),
            "spec.subsets[0].patch.metadata.annotations[apps.kruise.io/specified-delete]",
            "Kruise manages this key on Pods",
        ),
        (
            patched(json!({"spec": {"containers": [{"name": "main", "image": " "}]}})),
            "spec.subsets[0].patch.spec.containers[0].image",
            "\" \" is not allowed",
        ),
        (json!({"targetRef": {"kind": ""}, "subsets": [{"name": "a"}]}), "spec.targetRef.kind", "it is empty"),
        (
            json!({"targetRef": {"kind": "DaemonSet"}, "subsets": [{"name": "a"}]}),
            "spec.targetRef.kind",
            "kruise-configuration",
        ),
        (json!({"targetRef": {"name": "A/b"}, "subsets": [{"name": "a"}]}), "spec.targetRef.name", "\"A/b\""),
        (
            selecting(json!({"matchExpressions": [{"key": "a", "operator": "Is"}]})),
            "spec.targetFilter.selector.matchExpressions[0].operator",
            "\"Is\" is not allowed",
        ),
        (
            selecting(json!({"matchExpressions": [{"key": "a", "operator": "In", "values": []}]})),
            "spec.targetFilter.selector.matchExpressions[0].values",
            "want values",
        ),
        (
            selecting(json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]})),
            "spec.targetFilter.selector.matchExpressions[0].values",
            "leave it out",
        ),
        (
            selecting(json!({"matchLabels": {"a b": "x"}})),
            "spec.targetFilter.selector.matchLabels[a b]",
            "as the key of a label",
        ),
        (
            json!({"targetFilter": {"replicasPathList": ["a..b"]}, "subsets": [{"name": "a"}]}),
            "spec.targetFilter.replicasPathList[0]",
            "want a path",
        ),
        (
            json!({"scheduleStrategy": {"adaptive": {}}, "subsets": [{"name": "a"}]}),
            "spec.scheduleStrategy.adaptive",
            "want type Adaptive",
        ),
        (
            json!({"scheduleStrategy": {"type": "Adaptive"}, "subsets": [{"name": "a"}, {"name": "b", "maxReplicas": 1}]}),
            "spec.subsets[1].maxReplicas",
            "last subset",
        ),
        (
            json!({"scheduleStrategy": {"type": "Adaptive", "adaptive": {"rescheduleCriticalSeconds": 148}}, "subsets": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}),
            "spec.scheduleStrategy.adaptive.rescheduleCriticalSeconds",
            "want 0 to 147 with 3 subsets",
        ),
        (
            json!({"targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet"}, "subsets": [{"name": "a", "maxReplicas": "100%"}]}),
            "spec.subsets[0].maxReplicas",
            "by their ordinals",
        ),
    ] {
        let found = problems(&spread(changes.clone()), |group, kind| TargetKind::of(group, kind) != TargetKind::Custom);
        let [(at, why)] = found.as_slice() else { panic!("{changes}: {found:?}") };
        assert!(at == field && why.contains(words), "{changes}: {at}: {why}");
    }
    for good in [
        two(json!("30%"), json!("70%")),
        two(json!("30%"), Value::Null),
        two(json!(0), json!(5)),
        selecting(json!({})),
        selecting(json!({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["x"]}]})),
        patched(
            json!({"metadata": {"labels": {"zone": "a"}, "creationTimestamp": null}, "spec": {"containers": [{"name": "main", "image": "a:1"}]}}),
        ),
        json!({"scheduleStrategy": {"type": "Adaptive", "adaptive": {"rescheduleCriticalSeconds": 295}}, "subsets": [{"name": "a", "maxReplicas": 1}, {"name": "b"}]}),
        json!({"scheduleStrategy": {"type": "Adaptive", "adaptive": {"rescheduleCriticalSeconds": 2_000_000_000}}, "subsets": [{"name": "a", "maxReplicas": 1}]}),
        json!({"targetRef": {"apiVersion": "example.com/v1", "kind": "Db"}, "subsets": [{"name": "a"}]}),
    ] {
        assert_eq!(problems(&spread(good.clone()), |_, _| true), [], "{good}");
    }
}

#[test]
fn what_a_stored_object_may_hold_never_panics() {
    for changes in [
        json!({"subsets": [{"name": "a", "requiredNodeSelectorTerm": 3, "preferredNodeSelectorTerms": [1], "tolerations": ["x"], "patch": {"spec": 1}}]}),
        json!({"subsets": [{"name": "a", "maxReplicas": -5}, {"name": "b", "maxReplicas": "900%"}]}),
    ] {
        let spec = spec(changes);
        let pod = json!({"metadata": {"labels": 3}, "spec": {"affinity": "x", "tolerations": 1}});
        let _ = inject(&pod, &spec.subsets[0], Some(&Note { matched: String::new(), cost: Some(1) }));
        subset_of(&spec, &pod, &node(json!({}), json!([])), &[]);
        planned(&spec, &spread_as(&[1; 1]), i32::MAX, &WorkloadSpreadStatus::default());
    }
    for invalid in [
        json!({"subsets": []}),
        json!({"subsets": [{"name": ""}]}),
        json!({"subsets": [{"name": "a", "maxReplicas": "x"}]}),
    ] {
        assert!(SpreadSpec::of(&spread(invalid)).is_err());
    }
}

#[test]
fn shortfall_a_filter_with_paths_and_without_a_selector_is_for_all_pods() {
    let filter = json!({"replicasPathList": ["spec.replicas"]});
    let object = spread(json!({"subsets": [{"name": "a"}], "targetFilter": filter}));
    assert!(SpreadSpec::of(&object).unwrap().filter.is_none(), "in the controller");
    assert!(matching::selects(&object, &crate::k8s::pod::Labels::default()), "and in the webhook");
}
