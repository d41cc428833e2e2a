//! Tables over the rules.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    generate::{Generation, generate},
    plan::{
        Cleared, Hindrance, MOST_BYTES, NodeFacts, Notes, PlacedPod, StateFacts, StatePlan, StateTargetView,
        forget_another, plan, status,
    },
    restore::{before, first, is_held, restore, target_of},
    spec::{LONGEST_VALUE, StateSpec},
};
use crate::{
    api::apps::persistent_pod_state::{PersistentPodState, PersistentPodStateStatus, PodState},
    domain::workload::{numbering::Reserved, owner::OwnerRef},
    k8s::{invalid::Invalid, node::NodeView},
};

const HOST: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";
const IP: &str = "ovn.kubernetes.io/ip_address";

fn state(changes: Value) -> PersistentPodState {
    let mut object = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "PersistentPodState",
        "metadata": {"name": "db", "namespace": "ns", "uid": "s1"},
        "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db"},
            "requiredPersistentTopology": {"nodeTopologyKeys": [HOST]}}});
    json_patch::merge(&mut object, &changes);
    serde_json::from_value(object).unwrap()
}

fn spec(changes: Value) -> StateSpec {
    StateSpec::of(&state(json!({"spec": changes}))).unwrap()
}

fn node(name: &str, zone: &str, ready: bool) -> Arc<NodeView> {
    let status = if ready { "True" } else { "False" };
    let node = json!({"metadata": {"name": name, "uid": name, "labels": {HOST: name, ZONE: zone}},
        "status": {"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    Arc::new(serde_json::from_value(node).unwrap())
}

fn there(name: &str, zone: &str) -> (String, NodeFacts) {
    (name.to_owned(), NodeFacts::There(node(name, zone, true), None))
}

fn ready(name: &str, on: &str) -> PlacedPod {
    let (name, node) = (name.to_owned(), on.to_owned());
    PlacedPod { uid: format!("uid-{name}"), name, node, is_ready: true, is_active: true, notes: Notes::NotAsked }
}

fn waiting(name: &str) -> PlacedPod {
    PlacedPod { is_ready: false, ..ready(name, "") }
}

fn target(replicas: i32, start: i32, reserved: &Value) -> Option<StateTargetView> {
    let reserved = Reserved::parse(&serde_json::from_value::<Vec<_>>(reserved.clone()).unwrap()).unwrap();
    Some(StateTargetView::new("t1", false, replicas, start, &reserved))
}

fn facts(pods: Vec<PlacedPod>, nodes: Vec<(String, NodeFacts)>) -> StateFacts {
    let all_nodes = nodes
        .iter()
        .filter_map(|(_, facts)| match facts {
            NodeFacts::There(node, _) => Some(node.clone()),
            NodeFacts::Gone | NodeFacts::Unknown => None,
        })
        .collect();
    StateFacts { target: target(3, 0, &json!([])), pods, nodes: nodes.into_iter().collect(), all_nodes }
}

fn recorded(node: &str, labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> PodState {
    let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    PodState { node_name: node.into(), node_topology_labels: map(labels), annotations: map(annotations) }
}

fn of(states: &[(&str, PodState)]) -> BTreeMap<String, PodState> {
    states.iter().map(|(name, state)| ((*name).to_owned(), state.clone())).collect()
}

fn names(plan: &StatePlan) -> Vec<&str> {
    plan.states.keys().map(String::as_str).collect()
}

fn on(host: &str) -> PodState {
    recorded(host, &[(HOST, host)], &[])
}

#[test]
fn a_pod_that_is_ready_is_recorded_with_its_node_and_what_is_asked_for() {
    let spec = spec(json!({
        "preferredPersistentTopology": [{"weight": 5, "preference": {"nodeTopologyKeys": [ZONE, "rack"]}}],
        "persistentPodAnnotations": [{"key": IP}, {"key": "absent"}],
    }));
    let notes = BTreeMap::from([(IP.to_owned(), "10.0.0.5".to_owned()), ("other".to_owned(), "x".to_owned())]);
    let pods = vec![PlacedPod { notes: Notes::Known(notes), ..ready("db-0", "n1") }, waiting("db-1")];
    let plan = plan(&spec, &BTreeMap::new(), &facts(pods, vec![there("n1", "a")]));
    let wanted = recorded("n1", &[(HOST, "n1"), (ZONE, "a")], &[(IP, "10.0.0.5")]);
    assert_eq!(plan.states, of(&[("db-0", wanted)]));
}

#[test]
fn shortfall_what_is_recorded_already_is_not_written_again() {
    let spec = spec(json!({"persistentPodAnnotations": [{"key": IP}]}));
    let notes = Notes::Known(BTreeMap::from([(IP.to_owned(), "10.0.0.5".to_owned())]));
    let before = of(&[("db-0", recorded("n1", &[(HOST, "n1")], &[(IP, "10.0.0.5")]))]);
    let pods = vec![PlacedPod { notes, ..ready("db-0", "n1") }];
    let plan = plan(&spec, &before, &facts(pods, vec![there("n1", "a")]));
    assert_eq!(plan.states, before, "states with annotations too");
}

#[test]
fn a_record_stays_while_its_pod_is_away_and_follows_it_to_another_node() {
    let before = of(&[("db-0", on("n1")), ("db-1", on("n2"))]);
    let nodes = || vec![there("n1", "a"), there("n2", "a"), there("n3", "a")];
    let away = plan(&spec(json!({})), &before, &facts(vec![], nodes()));
    assert_eq!((away.states, away.cleared.len()), (before.clone(), 0));
    let moved = plan(&spec(json!({})), &before, &facts(vec![ready("db-0", "n3"), waiting("db-1")], nodes()));
    assert_eq!(moved.states, of(&[("db-0", on("n3")), ("db-1", on("n2"))]));
    assert!(moved.free.is_empty(), "the Pod that waits is held by what is recorded");
}

#[test]
fn the_target_missing_or_going_clears_everything_whatever_the_policy() {
    let before = of(&[("db-0", on("n1"))]);
    for policy in ["", "WhenScaled", "WhenDeleted"] {
        let spec = spec(json!({"persistentPodStateRetentionPolicy": policy}));
        let missing = StateFacts { target: None, ..facts(vec![], vec![there("n1", "a")]) };
        assert_eq!(plan(&spec, &before, &missing), StatePlan::default());
        let target = target(3, 0, &json!([])).map(|target| StateTargetView { is_going: true, ..target });
        let going = StateFacts { target, ..facts(vec![ready("db-0", "n1")], vec![there("n1", "a")]) };
        assert!(plan(&spec, &before, &going).states.is_empty());
    }
}

#[test]
fn what_is_recorded_of_one_target_is_nothing_to_the_next_of_its_name() {
    let states = of(&[("db-0", on("n1"))]);
    for (of_target, now, kept) in [
        ("t1", target(3, 0, &json!([])), 1),
        ("t0", target(3, 0, &json!([])), 0),
        // What OpenKruise has recorded, which names none.
        ("", target(3, 0, &json!([])), 1),
        // The plan clears it.
        ("t0", None, 1),
    ] {
        let mut before = PersistentPodStateStatus {
            target_uid: of_target.into(),
            pod_states: states.clone(),
            ..PersistentPodStateStatus::default()
        };
        forget_another(&mut before, now.as_ref());
        assert_eq!(before.pod_states.len(), kept, "{of_target:?} {now:?}");
        let facts = StateFacts { target: now.clone(), ..facts(vec![], vec![there("n1", "a")]) };
        let spec = spec(json!({}));
        let plan = plan(&spec, &before.pod_states, &facts);
        let after = status(Some(&spec), Ok((&plan, &facts)), &before, Some(1), Timestamp::UNIX_EPOCH);
        assert_eq!(after.target_uid, now.map(|now| now.uid).unwrap_or_default());
    }
}

#[test]
fn e2_reserved_ordinals_decide_which_records_stay() {
    let before =
        of(&[("db-0", on("n1")), ("db-1", on("n1")), ("db-4", on("n1")), ("db-5", on("n1")), ("db-9", on("n1"))]);
    let kept = |spec: &StateSpec, replicas: i32, start: i32, reserved: Value, pods: Vec<PlacedPod>| {
        let facts = StateFacts { target: target(replicas, start, &reserved), ..facts(pods, vec![there("n1", "a")]) };
        names(&plan(spec, &before, &facts)).join(" ")
    };
    let scaled = spec(json!({}));
    assert_eq!(kept(&scaled, 2, 0, json!([]), vec![]), "db-0 db-1");
    assert_eq!(kept(&scaled, 3, 0, json!([1, "2-3"]), vec![]), "db-0 db-4 db-5", "ranges too");
    assert_eq!(kept(&scaled, 2, 4, json!([]), vec![]), "db-4 db-5", "a start ordinal");
    assert_eq!(kept(&scaled, 1, 0, json!([]), vec![waiting("db-9")]), "db-0 db-9", "its Pod is still there");
    assert_eq!(kept(&scaled, 0, 0, json!([]), vec![]), "");
    let deleted = spec(json!({"persistentPodStateRetentionPolicy": "WhenDeleted"}));
    assert_eq!(kept(&deleted, 0, 0, json!([]), vec![]), "db-0 db-1 db-4 db-5 db-9");
}

#[test]
fn records_of_names_that_no_pod_of_the_target_can_have_go() {
    let before = of(&[("db", on("n1")), ("db-x", on("n1")), ("other-0", on("n1")), ("db-0", on("n1"))]);
    let plan = plan(&spec(json!({})), &before, &facts(vec![], vec![there("n1", "a")]));
    assert_eq!(names(&plan), ["db-0"]);
}

#[test]
fn shortfall_a_place_is_cleared_when_its_node_is_gone_and_not_while_it_is_not_ready() {
    let before = of(&[("db-0", on("n1"))]);
    let not_ready = NodeFacts::There(node("n1", "a", false), Some(Duration::from_secs(86_400)));
    for (node, cleared) in [(not_ready, false), (NodeFacts::Unknown, false), (NodeFacts::Gone, true)] {
        let plan = plan(&spec(json!({})), &before, &facts(vec![waiting("db-0")], vec![("n1".into(), node)]));
        assert_eq!(plan.states.is_empty(), cleared);
        assert_eq!(plan.cleared, Vec::from_iter(cleared.then(|| ("db-0".into(), "n1".into(), Cleared::NodeGone))));
        assert_eq!(plan.free.len(), usize::from(cleared), "a Pod that waits for it is free then");
    }
}

#[test]
fn a_pod_that_seems_ready_on_a_node_that_is_gone_is_not_recorded() {
    let gone = || vec![("n1".to_owned(), NodeFacts::Gone)];
    let plan1 = plan(&spec(json!({})), &of(&[("db-0", on("n1"))]), &facts(vec![ready("db-0", "n1")], gone()));
    assert_eq!((plan1.states.len(), plan1.cleared.len()), (0, 1));
    let plan2 = plan(&spec(json!({})), &BTreeMap::new(), &facts(vec![ready("db-0", "n1")], gone()));
    assert_eq!((plan2.states.len(), plan2.cleared.len()), (0, 0));
}

#[test]
fn a_place_is_cleared_when_no_node_has_the_labels_any_more() {
    let spec = spec(json!({"requiredPersistentTopology": {"nodeTopologyKeys": [ZONE]},
        "preferredPersistentTopology": [{"weight": 5, "preference": {"nodeTopologyKeys": ["rack"]}}]}));
    let place = |labels: &[(&str, &str)]| of(&[("db-0", recorded("n1", labels, &[]))]);
    let before = place(&[(ZONE, "a"), ("rack", "r1")]);
    let with = |nodes: Vec<(String, NodeFacts)>| plan(&spec, &before, &facts(vec![waiting("db-0")], nodes));
    let cleared = with(vec![there("n1", "b"), there("n2", "b")]);
    assert_eq!(cleared.cleared, [("db-0".to_owned(), "n1".to_owned(), Cleared::LabelsGone)]);
    assert!(cleared.states.is_empty());
    assert_eq!(cleared.free, [("db-0".to_owned(), "uid-db-0".to_owned())]);
    // Another node in the zone will do, and so will its own without what is only preferred.
    for nodes in [vec![there("n1", "b"), there("n2", "a")], vec![there("n1", "a")]] {
        let kept = with(nodes);
        assert_eq!((kept.states, kept.cleared.len(), kept.free.len()), (before.clone(), 0, 0));
    }
    // A node that is not Ready may get its labels back.
    let away = NodeFacts::There(node("n1", "b", false), None);
    assert_eq!(with(vec![("n1".to_owned(), away)]).states, before);
    let preferred = place(&[("rack", "r1")]);
    let kept = plan(&spec, &preferred, &facts(vec![], vec![there("n1", "b")]));
    assert_eq!(kept.states, preferred);
}

#[test]
fn an_annotation_clears_places_on_nodes_that_are_not_ready_for_too_long() {
    let annotation = json!({"metadata": {"annotations": {"kruise.rs/clear-after-node-not-ready-seconds": "600"}}});
    let spec = StateSpec::of(&state(annotation)).unwrap();
    let before = of(&[("db-0", on("n1"))]);
    let away = |seconds: u64| {
        let node = NodeFacts::There(node("n1", "a", false), Some(Duration::from_secs(seconds)));
        plan(&spec, &before, &facts(vec![], vec![("n1".into(), node)]))
    };
    let early = away(599);
    assert_eq!((early.states, early.look_after), (before.clone(), Some(Duration::from_secs(1))));
    let late = away(600);
    assert_eq!((late.states.len(), late.cleared[0].2), (0, Cleared::NodeNotReady));
}

#[test]
fn a_zone_that_has_other_nodes_still_holds_its_pods() {
    let before = of(&[("db-0", recorded("n1", &[(HOST, "n1"), (ZONE, "a")], &[]))]);
    let zone = spec(json!({"requiredPersistentTopology": {"nodeTopologyKeys": [ZONE]},
        "preferredPersistentTopology": [{"weight": 1, "preference": {"nodeTopologyKeys": [HOST]}}]}));
    let nodes = |other: (String, NodeFacts)| vec![("n1".to_owned(), NodeFacts::Gone), other];
    let same = plan(&zone, &before, &facts(vec![], nodes(there("n2", "a"))));
    assert_eq!(same.states["db-0"], recorded("", &[(HOST, "n1"), (ZONE, "a")], &[]));
    let again = plan(&zone, &same.states, &facts(vec![], vec![there("n2", "a")]));
    assert_eq!(again.states, same.states);
    let last = plan(&zone, &same.states, &facts(vec![], vec![there("n3", "b")]));
    assert_eq!((last.states.len(), last.cleared.len()), (0, 1), "the last node of the zone went later");
    let another = plan(&zone, &before, &facts(vec![], nodes(there("n2", "b"))));
    assert_eq!((another.states.len(), another.cleared.len()), (0, 1));
    let host = plan(&spec(json!({})), &before, &facts(vec![], nodes(there("n2", "a"))));
    assert!(host.states.is_empty(), "no other node has the name");
}

#[test]
fn annotations_stay_when_a_place_is_cleared() {
    let before = of(&[("db-0", recorded("n1", &[(HOST, "n1")], &[(IP, "10.0.0.5")]))]);
    let spec = spec(json!({"persistentPodAnnotations": [{"key": IP}]}));
    let plan = plan(&spec, &before, &facts(vec![], vec![("n1".into(), NodeFacts::Gone)]));
    assert_eq!(plan.states, of(&[("db-0", recorded("", &[], &[(IP, "10.0.0.5")]))]));
    assert_eq!(plan.cleared.len(), 1);
}

#[test]
fn what_could_not_be_read_leaves_the_record_as_it_is() {
    let before = of(&[("db-0", on("n1"))]);
    let spec = spec(json!({"persistentPodAnnotations": [{"key": IP}]}));
    for (pod, node) in [
        (PlacedPod { notes: Notes::Unread, ..ready("db-0", "n2") }, there("n2", "a")),
        (PlacedPod { notes: Notes::Known(BTreeMap::new()), ..ready("db-0", "n2") }, ("n2".into(), NodeFacts::Unknown)),
    ] {
        let plan = plan(&spec, &before, &facts(vec![pod], vec![node]));
        assert_eq!((plan.states, plan.unread), (before.clone(), vec!["db-0".to_owned()]));
    }
}

#[test]
fn what_is_too_much_is_left_out_and_said() {
    let spec = spec(json!({"persistentPodAnnotations": [{"key": "k"}, {"key": "l"}]}));
    let notes = |long: usize| {
        Notes::Known(BTreeMap::from([("k".to_owned(), "v".to_owned()), ("l".to_owned(), "x".repeat(long))]))
    };
    let nodes = || vec![there("n1", "a")];
    let pod = |i: usize, long: usize| PlacedPod { notes: notes(long), ..ready(&format!("db-{i}"), "n1") };
    let long = plan(&spec, &BTreeMap::new(), &facts(vec![pod(0, LONGEST_VALUE + 1)], nodes()));
    assert_eq!(long.states["db-0"].annotations.keys().collect::<Vec<_>>(), ["k"]);
    assert_eq!(long.left_out.len(), 1);
    let many = (0..300).map(|i| pod(i, LONGEST_VALUE)).collect();
    let many = plan(&spec, &BTreeMap::new(), &facts(many, nodes()));
    assert!(serde_json::to_string(&many.states).unwrap().len() <= MOST_BYTES);
    assert_eq!(many.states.len() + many.left_out.len(), 300);
    let after =
        status(Some(&spec), Ok((&many, &facts(vec![], nodes()))), &Default::default(), Some(1), Timestamp::UNIX_EPOCH);
    assert_eq!(says(&after), "Stalled TooLarge");
}

fn says(status: &PersistentPodStateStatus) -> String {
    let conditions = &status.conditions;
    let true_one: Vec<String> =
        conditions.iter().filter(|c| c.status == "True").map(|c| format!("{} {}", c.type_, c.reason)).collect();
    true_one.join(", ")
}

#[test]
fn decision_32_the_status_says_how_far_it_is() {
    let spec = spec(json!({}));
    let now = Timestamp::UNIX_EPOCH;
    let of_facts = |facts: &StateFacts| {
        let plan = plan(&spec, &BTreeMap::new(), facts);
        status(Some(&spec), Ok((&plan, facts)), &Default::default(), Some(3), now)
    };
    let good = of_facts(&facts(vec![ready("db-0", "n1")], vec![there("n1", "a")]));
    assert_eq!((says(&good).as_str(), good.observed_generation, good.conditions.len()), ("Ready Recorded", 3, 3));
    assert_eq!(serde_json::to_value(&good).unwrap()["observedGeneration"], 3);
    assert_eq!(says(&of_facts(&StateFacts::default())), "Reconciling TargetMissing");
    assert_eq!(says(&of_facts(&facts(vec![ready("db-0", "n1")], vec![]))), "Reconciling Unread");
    for (hindrance, wanted) in [
        (Hindrance::Invalid("x".into()), "Stalled InvalidSpec"),
        (Hindrance::Taken("first".into()), "Stalled TargetTaken"),
        (Hindrance::Unreadable("x".into()), "Stalled TargetUnreadable"),
    ] {
        let after = status(Some(&spec), Err(&hindrance), &good, Some(3), now);
        assert_eq!((says(&after).as_str(), &after.pod_states), (wanted, &good.pod_states), "records stay");
    }
}

/// The status is the wire sample of spec 6.1: none that OpenKruise itself has written was recorded.
#[test]
fn takeover_what_openkruise_has_recorded_stays_as_it_is() {
    let before: PersistentPodStateStatus = serde_json::from_value(json!({"observedGeneration": 1, "podStates": {
        "db-0": {"nodeName": "n1", "nodeTopologyLabels": {HOST: "n1"}, "annotations": {"k": "v"}}}}))
    .unwrap();
    let spec = spec(json!({"persistentPodAnnotations": [{"key": "k"}]}));
    let notes = Notes::Known(BTreeMap::from([("k".to_owned(), "v".to_owned())]));
    let facts = facts(vec![PlacedPod { notes, ..ready("db-0", "n1") }], vec![there("n1", "a")]);
    let plan = plan(&spec, &before.pod_states, &facts);
    let after = status(Some(&spec), Ok((&plan, &facts)), &before, Some(1), Timestamp::UNIX_EPOCH);
    assert_eq!(after.pod_states, before.pod_states);
}

#[test]
fn what_is_stored_past_admission_is_left_out_or_refused() {
    let odd = spec(json!({"requiredPersistentTopology": {"nodeTopologyKeys": ["a b", ZONE]},
        "preferredPersistentTopology": [{"weight": 0, "preference": {"nodeTopologyKeys": ["x"]}}],
        "persistentPodAnnotations": [{"key": "kruise.rs/x"}, {"key": "k"}]}));
    assert_eq!((odd.keys.len(), odd.annotations.len()), (1, 1));
    let target =
        |name: &str| json!({"spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name}}});
    let annotation = json!({"metadata": {"annotations": {"kruise.rs/clear-after-node-not-ready-seconds": "soon"}}});
    for (changes, word) in [
        (target(""), "spec.targetRef.name: it is empty; want that of a workload"),
        (target("../db"), "spec.targetRef.name: \"../db\" is not allowed; want the name of a workload"),
        (annotation, "\"soon\""),
    ] {
        let Invalid(why) = StateSpec::of(&state(changes)).unwrap_err();
        assert!(why.contains(word), "{why}");
    }
}

// ---- new Pods ----

fn with_status(spec: Value, entry: Value) -> PersistentPodState {
    state(json!({"spec": spec, "status": {"observedGeneration": 1, "podStates": {"db-0": entry}}}))
}

fn pod(changes: Value) -> Value {
    let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "t1", "controller": true});
    let mut pod = json!({"metadata": {"name": "db-0", "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "main", "fieldOfTheFuture": 1}]}});
    json_patch::merge(&mut pod, &changes);
    pod
}

fn entry() -> Value {
    json!({"nodeName": "n1", "nodeTopologyLabels": {HOST: "n1", ZONE: "a"}, "annotations": {IP: "10.0.0.5"}})
}

#[test]
fn shortfall_a_new_pod_gets_its_place_and_its_annotations_back() {
    let spec = json!({
        "preferredPersistentTopology": [
            {"weight": 100, "preference": {"nodeTopologyKeys": [ZONE, "rack"]}},
            {"weight": 7, "preference": {"nodeTopologyKeys": ["rack"]}},
        ],
        "persistentPodAnnotations": [{"key": IP}],
    });
    let mut new = pod(json!({}));
    assert_eq!(restore(&mut new, &with_status(spec.clone(), entry())), Some(vec![]));
    assert_eq!(new["spec"]["nodeSelector"], json!({HOST: "n1"}));
    let term =
        json!({"weight": 100, "preference": {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a"]}]}});
    let preferred = "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution";
    assert_eq!(new.pointer(preferred), Some(&json!([term])));
    assert_eq!(
        new["metadata"]["annotations"],
        json!({IP: "10.0.0.5", "kruise.io/injected-persistent-pod-state": "db", "kruise.rs/restored-topology": HOST})
    );
    assert_eq!(new["spec"]["containers"][0]["fieldOfTheFuture"], 1);
    let once = new.clone();
    restore(&mut new, &with_status(spec, entry())).unwrap();
    assert_eq!(new, once, "a second call changes nothing");
}

#[test]
fn a_first_creation_and_pods_of_others_stay_as_they_are() {
    let stored = with_status(json!({}), entry());
    for changes in [json!({"metadata": {"name": "db-1"}}), json!({"metadata": {"name": null}})] {
        assert_eq!(restore(&mut pod(changes.clone()), &stored), None, "{changes}");
    }
    assert_eq!(restore(&mut pod(json!({})), &state(json!({}))), None);
    let nothing = with_status(json!({}), json!({"nodeName": "n1", "nodeTopologyLabels": {"not-asked-for": "x"}}));
    assert_eq!(restore(&mut pod(json!({})), &nothing), None);
}

#[test]
fn a_pod_of_another_target_of_the_same_name_stays_as_it_is() {
    for (of_target, is_restored) in [("t1", true), ("t0", false), ("", true)] {
        let mut stored = with_status(json!({}), entry());
        stored.status.as_mut().unwrap().target_uid = of_target.into();
        assert_eq!(restore(&mut pod(json!({})), &stored).is_some(), is_restored, "{of_target:?}");
    }
}

#[test]
fn what_the_template_says_wins() {
    let spec = json!({"persistentPodAnnotations": [{"key": IP}]});
    let mut new = pod(json!({"metadata": {"annotations": {IP: "10.9.9.9"}}, "spec": {"nodeSelector": {HOST: "n2"}}}));
    let told = restore(&mut new, &with_status(spec, entry())).unwrap();
    assert_eq!(
        (&new["spec"]["nodeSelector"][HOST], &new["metadata"]["annotations"][IP]),
        (&json!("n2"), &json!("10.9.9.9"))
    );
    assert!(told.len() == 1 && told[0].contains("\"n2\"") && told[0].contains("\"n1\""), "{told:?}");
    assert!(!is_held(&new, &state(json!({}))), "nothing of ours holds it");
}

#[test]
fn odd_pods_are_left_to_the_api_server() {
    let stored = with_status(
        json!({"preferredPersistentTopology": [{"weight": 1, "preference": {"nodeTopologyKeys": [ZONE]}}]}),
        entry(),
    );
    for changes in [
        json!({"spec": {"nodeSelector": "x"}}),
        json!({"spec": {"affinity": []}}),
        json!({"spec": {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": {}}}}}),
        json!({"metadata": {"annotations": 1}}),
    ] {
        assert_eq!(restore(&mut pod(changes.clone()), &stored), None, "{changes}");
    }
}

#[test]
fn weights_and_keys_that_the_api_server_would_refuse_are_left_out() {
    let preferred = |weight: i32, key: &str| json!({"weight": weight, "preference": {"nodeTopologyKeys": [key]}});
    let spec = json!({"requiredPersistentTopology": null,
        "preferredPersistentTopology": [preferred(0, ZONE), preferred(101, ZONE), preferred(1, "a b")]});
    let entry = json!({"nodeName": "n1", "nodeTopologyLabels": {ZONE: "a", "a b": "x"}});
    assert_eq!(restore(&mut pod(json!({})), &with_status(spec, entry)), None);
}

#[test]
fn only_a_pod_that_we_hold_to_a_node_and_that_is_bound_to_none_is_let_go() {
    let mut held = pod(json!({}));
    let stored = with_status(json!({}), entry());
    restore(&mut held, &stored).unwrap();
    assert!(is_held(&held, &stored));
    let with = |changes: Value| {
        let mut held = held.clone();
        json_patch::merge(&mut held, &changes);
        is_held(&held, &stored)
    };
    assert!(!with(json!({"spec": {"nodeName": "n1"}})));
    assert!(!with(json!({"spec": {"nodeSelector": null}})));
    assert!(!with(json!({"metadata": {"annotations": {"kruise.io/injected-persistent-pod-state": "other"}}})));
    assert!(!with(json!({"metadata": {"annotations": {"kruise.rs/restored-topology": null}}})));
}

#[test]
fn a_target_is_meant_by_group_kind_and_name_and_the_oldest_object_counts() {
    assert_eq!(target_of(&pod(json!({}))), Some(("apps", "StatefulSet", "db")));
    assert_eq!(target_of(&pod(json!({"metadata": {"ownerReferences": null}}))), None);
    let aged = |name: &str, time: &str| state(json!({"metadata": {"name": name, "creationTimestamp": time}}));
    let (old, new) = (aged("z", "2026-01-01T00:00:00Z"), aged("a", "2026-01-02T00:00:00Z"));
    let twin = aged("y", "2026-01-01T00:00:00Z");
    assert_eq!(first([&new, &old]).unwrap().metadata.name.as_deref(), Some("z"));
    assert_eq!(first([&old, &twin]).unwrap().metadata.name.as_deref(), Some("y"), "of two of one second, by name");
    let all = [Arc::new(old.clone()), Arc::new(new.clone())];
    assert_eq!((before(&old, &all), before(&new, &all)), (None, Some("z".to_owned())));
    let going = state(json!({"metadata": {"name": "z", "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionTimestamp": "2026-01-03T00:00:00Z"}}));
    assert_eq!(before(&new, &[Arc::new(going)]), None);
}

// ---- generation ----

fn owner() -> OwnerRef {
    OwnerRef {
        api_version: "apps.kruise.io/v1beta1".into(),
        kind: "StatefulSet".into(),
        plural: "statefulsets".into(),
        namespace: "ns".into(),
        name: "db".into(),
        uid: "t1".into(),
        resource_version: None,
    }
}

fn asking(more: &[(&str, &str)]) -> BTreeMap<String, String> {
    let on = ("kruise.io/auto-generate-persistent-pod-state", "true");
    [on].iter().chain(more).map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

const REQUIRED: &str = "kruise.io/required-persistent-topology";

fn made(more: &[(&str, &str)]) -> PersistentPodState {
    match generate(&owner(), &asking(more), None, None) {
        Generation::Create(made) => *made,
        other => panic!("{other:?}"),
    }
}

#[test]
fn annotations_make_an_object_that_belongs_to_its_statefulset() {
    let made = made(&[
        (REQUIRED, "kubernetes.io/hostname, zone,,zone"),
        ("kruise.io/preferred-persistent-topology", "rack"),
        ("kruise.io/persistent-pod-annotations", IP),
    ]);
    assert_eq!(
        serde_json::to_value(&made.spec).unwrap(),
        json!({
            "targetRef": {"apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet", "name": "db"},
            "requiredPersistentTopology": {"nodeTopologyKeys": [HOST, "zone"]},
            "preferredPersistentTopology": [{"weight": 100, "preference": {"nodeTopologyKeys": ["rack"]}}],
            "persistentPodAnnotations": [{"key": IP}],
        })
    );
    let owners = made.metadata.owner_references.unwrap();
    assert_eq!((owners[0].uid.as_str(), owners[0].controller, owners.len()), ("t1", Some(true), 1));
}

#[test]
fn shortfall_a_change_of_any_annotation_is_carried_over_and_the_retention_policy_stays() {
    let mut stored = made(&[(REQUIRED, HOST)]);
    stored.spec.persistent_pod_state_retention_policy = "WhenDeleted".into();
    let now = |more: &[(&str, &str)]| generate(&owner(), &asking(more), Some(&stored), None);
    assert_eq!(now(&[(REQUIRED, HOST)]), Generation::Nothing);
    let notes = ("kruise.io/persistent-pod-annotations", IP);
    let replace = |fields: Value| Generation::Replace(fields);
    assert_eq!(now(&[(REQUIRED, HOST), notes]), replace(json!({"persistentPodAnnotations": [{"key": IP}]})));
    assert_eq!(
        now(&[("kruise.io/preferred-persistent-topology", HOST)]),
        replace(json!({"requiredPersistentTopology": null,
            "preferredPersistentTopology": [{"weight": 100, "preference": {"nodeTopologyKeys": [HOST]}}]}))
    );
    assert_eq!(now(&[]), Generation::Nothing, "without any topology it stays as it is");
}

#[test]
fn shortfall_turning_it_off_deletes_what_was_generated_and_nothing_of_a_user() {
    let generated = made(&[(REQUIRED, HOST)]);
    let users = state(json!({}));
    let mut of_a_namesake = generated.clone();
    of_a_namesake.metadata.owner_references.as_mut().unwrap()[0].uid = "t0".into();
    let off = BTreeMap::from([(REQUIRED.to_owned(), HOST.to_owned())]);
    assert_eq!(generate(&owner(), &off, Some(&generated), None), Generation::Delete);
    for theirs in [&users, &of_a_namesake] {
        assert_eq!(generate(&owner(), &off, Some(theirs), None), Generation::Nothing);
        assert!(matches!(generate(&owner(), &asking(&[(REQUIRED, HOST)]), Some(theirs), None), Generation::Refused(_)));
    }
    assert_eq!(generate(&owner(), &off, None, None), Generation::Nothing);
}

#[test]
fn what_cannot_be_made_is_named() {
    let refused = |more: &[(&str, &str)], other: Option<&str>| match generate(&owner(), &asking(more), None, other) {
        Generation::Refused(why) => why,
        other => panic!("{other:?}"),
    };
    assert!(refused(&[(REQUIRED, HOST)], Some("theirs")).contains("theirs"));
    assert!(refused(&[(REQUIRED, "a b")], None).contains("\"a b\""));
    let many: Vec<String> = (0..17).map(|i| format!("k{i}")).collect();
    assert!(refused(&[(REQUIRED, &many.join(","))], None).contains("17 keys"));
    let of_ours = ("kruise.io/persistent-pod-annotations", "kruise.rs/x");
    assert!(refused(&[(REQUIRED, HOST), of_ours], None).contains("kruise.rs/x"));
}
