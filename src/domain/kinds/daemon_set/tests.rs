//! Tables over the plan. Tests are named after the items of the behaviour reference: edge cases of section 9, shortfalls of
//! section 10.2.

use serde_json::{Value, json};

use super::{
    make,
    pass::plan,
    plan::{Action, Came, Observed, Outage, Turn, not_begun_at},
    pod::{Newest, Node, Pod},
    spec::Spec,
    status,
};
use crate::{
    api::{apps::daemon_set::DaemonSet, labels},
    domain::{
        pod::{inplace::Allowed, lifecycle::State},
        workload::{owner::OwnerRef, revisions::KnownRevision, status::Progress, steps::PodAction},
    },
    k8s::{node::NodeView, pod::PodView, revision},
};

pub(crate) mod fixtures;
mod simulation;

use fixtures::*;

const NONE: [&str; 0] = [];

fn names(nodes: &[&str], pod: impl Fn(&str) -> Pod) -> Vec<Pod> {
    nodes.iter().map(|node| pod(node)).collect()
}

#[test]
fn every_node_that_fits_gets_a_pod_and_no_other() {
    let nodes = [node("a"), tainted("b"), unfit("c"), node("d")];
    assert_eq!(of(json!({}), &nodes, &[]), ["create a", "create d"]);
    assert_eq!(
        of(json!({}), &nodes, &[pod("a"), pod("b"), pod("c"), pod("d")]),
        ["delete p-c"],
        "a taint that blocks new Pods leaves running ones"
    );
}

#[test]
fn of_several_pods_on_a_node_the_bound_and_oldest_one_stays() {
    let younger = Pod { name: "younger".into(), created: Some(time(5)), ..pod("a") };
    let unbound = Pod { name: "unbound".into(), is_bound: false, created: Some(time(-5)), ..pod("a") };
    assert_eq!(of(json!({}), &nodes(&["a"]), &[younger, unbound, pod("a")]), ["delete younger", "delete unbound"]);
    let old_too = Pod { created: Some(time(9)), ..old("a") };
    assert_eq!(of(json!({}), &nodes(&["a"]), &[pod("a"), old_too]), ["delete o-a"]);
    let older = Pod { created: Some(time(-9)), ..old("a") };
    let both = [pod("a"), older.clone()];
    assert_eq!(of(json!({}), &nodes(&["a"]), &both), ["delete p-a"], "and only that in this pass");
    assert_eq!(of(json!({}), &nodes(&["a"]), &[unready(older), pod("a")]), ["delete o-a"], "but one that serves");
    let announced = in_state(held(old("a")), State::PreparingDelete);
    let announced = Pod { created: Some(time(-9)), ..announced };
    assert_eq!(
        of(hooked(&["preDelete"]), &nodes(&["a"]), &[announced, pod("a")]),
        NONE,
        "its hook holds the other one"
    );
}

#[test]
fn a_template_with_an_affinity_that_is_no_object_stays_as_it_is() {
    for affinity in [json!("text"), json!([]), json!({"nodeAffinity": 3})] {
        let template = json!({"spec": {"containers": [], "affinity": affinity}});
        let set = json!({"metadata": {"name": "agent", "namespace": "ns", "uid": "set"},
            "spec": {"selector": {}, "template": template}});
        let set: DaemonSet = serde_json::from_value(set).unwrap();
        let (owner, spec) = (OwnerRef::of(&set), Spec::of(&set).unwrap());
        let pod = make::pod(&owner, &spec, "agent-x".into(), ("a", "hash"), None, at(0));
        assert_eq!(pod["spec"]["affinity"], affinity);
    }
    let null = json!({"metadata": {"name": "agent", "namespace": "ns", "uid": "set"}, "spec": {"selector": {},
        "template": {"spec": {"containers": [], "affinity": {"nodeAffinity": null}}}}});
    let set: DaemonSet = serde_json::from_value(null).unwrap();
    let made = make::pod(&OwnerRef::of(&set), &Spec::of(&set).unwrap(), "x".into(), ("a", "hash"), None, at(0));
    let node = made.pointer("/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution");
    assert_eq!(node.unwrap()["nodeSelectorTerms"][0]["matchFields"][0]["values"], json!(["a"]));
}

#[test]
fn a_set_with_a_name_that_is_too_long_for_a_pod_gets_pods() {
    for (name, want) in [
        ("agent".to_owned(), "agent-".to_owned()),
        ("a".repeat(52), format!("{}-", "a".repeat(52))),
        ("a".repeat(253), format!("{}-", "a".repeat(52))),
        (format!("{}.{}", "a".repeat(51), "b".repeat(60)), format!("{}-", "a".repeat(51))),
    ] {
        let long = Spec { name: name.clone(), ..spec(json!({})) };
        let pod = make::pod_name(&long, "node", "hash", 0);
        assert!(pod.starts_with(&want) && pod.len() <= 63 && pod.len() > want.len(), "{pod}");
        let set = json!({"metadata": {"name": name, "namespace": "ns", "uid": "set"}, "spec": {"selector": {}, "template": {}}});
        let owner = OwnerRef::of(&serde_json::from_value::<DaemonSet>(set).unwrap());
        let made = make::pod(&owner, &long, pod, ("node", "hash"), None, at(0));
        assert_eq!(made["metadata"]["generateName"], want);
    }
}

#[test]
fn edge_31_a_partition_of_all_nodes_updates_nothing() {
    let all = nodes(&["a", "b"]);
    let pods = names(&["a", "b"], old);
    assert_eq!(of(json!({"partition": 2}), &all, &pods), NONE);
    assert_eq!(of(json!({"partition": "100%"}), &all, &pods), NONE);
    assert_eq!(of(json!({"partition": 1}), &all, &pods), ["delete o-b"], "from the last name down");
}

#[test]
fn edge_33_edge_34_terminating_pods_are_not_deleted_again_and_stall_no_more_than_their_own_place_of_an_update() {
    let all = nodes(&["a", "b", "c"]);
    let one = [terminating(old("a")), old("b"), pod("c")];
    let waits = planned(&spec(json!({"maxUnavailable": 1})), &all, &one);
    let (reason, message) = waits.wait.as_ref().map(|wait| (wait.reason, wait.message.as_str())).unwrap();
    assert_eq!((reason, message), ("PodTerminating", "Pod o-a is being deleted and has not ended on node a"));
    assert_eq!(texts(waits), NONE, "decision 37: it takes the only place, as in the built-in DaemonSet");
    assert_eq!(of(json!({"maxUnavailable": 2}), &all, &one), ["delete o-b"]);
    assert_eq!(of(json!({"maxSurge": 1}), &all, &one), ["create a", "create b"], "with a surge it takes none");
    let pods = [terminating(old("a")), old("b"), terminating(pod("c"))];
    assert_eq!(of(json!({"maxUnavailable": 2}), &all, &pods), NONE);
    assert_eq!(
        of(json!({"maxUnavailable": 3}), &all, &pods),
        ["delete o-b"],
        "no Pod is made before the last one is gone"
    );
    let surge = of(json!({"maxSurge": 3}), &all, &pods);
    assert_eq!(surge, ["create a", "create c", "create b"], "with a surge the next one does not wait");
}

#[test]
fn edge_35_a_failed_pod_is_replaced_after_its_pause_and_stalls_no_other_node() {
    let (spec, all) = (spec(json!({})), nodes(&["a", "b"]));
    let pods = [failed(pod("a")), old("b")];
    let mut besides = Besides::default();
    let first = observing(&spec, &all, &pods, &besides, plan);
    assert_eq!(texts(first.clone()), ["delete p-a"]);
    assert!(matches!(&first.actions[0], Action::Delete { failed_on: Some(node), .. } if node == "a"));
    besides.failures.note("a", at(0).mono);
    let held = observing(&spec, &all, &pods, &besides, plan);
    assert_eq!(held.look, Some(std::time::Duration::from_secs(1)));
    assert_eq!(texts(held), NONE, "it takes the room of the update meanwhile, as in the built-in DaemonSet");
    let two = Besides { failures: besides.failures.clone(), ..Besides::default() };
    let wide = observing(&fixtures::spec(json!({"maxUnavailable": 2})), &all, &pods, &two, plan);
    assert_eq!(texts(wide), ["delete o-b"]);
}

#[test]
fn shortfall_10_2_32_a_failed_pod_in_its_pause_gets_no_further_pod_beside_it() {
    let (spec, all) = (spec(json!({"maxSurge": 1})), nodes(&["a"]));
    let mut besides = Besides::default();
    besides.failures.note("a", at(0).mono);
    assert_eq!(texts(observing(&spec, &all, &[failed(pod("a"))], &besides, plan)), NONE);
    let beside_an_old_one = [failed(pod("a")), old("a")];
    assert_eq!(texts(observing(&spec, &all, &beside_an_old_one, &besides, plan)), NONE);
    besides.now = 1;
    assert_eq!(texts(observing(&spec, &all, &beside_an_old_one, &besides, plan)), ["delete p-a"]);
}

#[test]
fn with_a_surge_a_new_pod_that_has_ended_keeps_its_place_so_that_no_other_node_gets_one_that_ends() {
    let all = nodes(&["a", "b", "c"]);
    let pods = [old("a"), old("b"), old("c"), failed(pod("c"))];
    let mut held = Besides::default();
    held.failures.note("c", at(0).mono);
    for (fields, want) in [
        (json!({"maxSurge": 1}), vec![]),
        (json!({"maxSurge": 1, "strict": true}), vec![]),
        (json!({"maxSurge": 3, "perZone": 1}), vec![]),
        (json!({"maxSurge": 2}), vec!["create b"]),
    ] {
        assert_eq!(texts(observing(&spec(fields.clone()), &all, &pods, &held, plan)), want, "{fields}");
    }
    assert_eq!(of(json!({"maxSurge": 1}), &all, &pods), ["delete p-c"], "its pause is over");
    let going = [old("a"), old("b"), old("c"), terminating(failed(pod("c")))];
    assert_eq!(of(json!({"maxSurge": 1}), &all, &going), ["create c"], "the same node tries again");
    let earlier = Pod { is_new: false, hash: "between".into(), ..failed(pod("c")) };
    let pods = [old("a"), old("b"), old("c"), earlier];
    assert_eq!(texts(observing(&spec(json!({"maxSurge": 1})), &all, &pods, &held, plan)), ["create b"], "no new one");
    // On nodes that were lost before it is the same for these alone.
    let long = |name: &str| Pod { created: Some(time(-10_000)), ..unready(old(name)) };
    let ended = Pod { made_not_ready: Some(time(0).as_second()), ..failed(pod("c")) };
    let lost = [down("b", 0), down("c", 0)];
    let strict = spec(json!({"strict": true, "maxSurge": 1}));
    assert_eq!(texts(observing(&strict, &lost, &[long("b"), long("c"), ended], &held, plan)), NONE);
}

#[test]
fn what_is_refused_is_tried_last_so_that_a_burst_of_it_keeps_no_other_waiting() {
    let refused = |turns: &[Turn]| {
        let mut besides = Besides::default();
        turns.iter().for_each(|turn| besides.turns.refused(turn.clone()));
        besides
    };
    let (node, pod_named) = (|name: &str| Turn::Node(name.into()), |name: &str| Turn::Pod(name.into()));
    let burst = |turns: &[Turn], pods: &[Pod], all: &[Node]| {
        texts(observing(&spec(json!({"burstReplicas": 1})), all, pods, &refused(turns), plan))
    };
    let all = nodes(&["a", "b", "c"]);
    for (turns, want) in [
        (vec![], "create a"),
        (vec![node("a")], "create b"),
        (vec![node("a"), node("b")], "create c"),
        (vec![node("b"), node("a"), node("c")], "create b"),
        (vec![pod_named("a")], "create a"),
    ] {
        assert_eq!(burst(&turns, &[], &all), [want], "{turns:?}");
    }
    let (gone, pods) = ([unfit("a"), unfit("b")], names(&["a", "b"], pod));
    assert_eq!(burst(&[], &pods, &gone), ["delete p-a"]);
    assert_eq!(burst(&[pod_named("p-a")], &pods, &gone), ["delete p-b"]);
    assert_eq!(burst(&[pod_named("p-a"), pod_named("p-b")], &pods, &gone), ["delete p-a"]);
    // The partition lets one Pod be made.
    let partitioned = spec(json!({"partitionedScaling": true, "partition": 2}));
    for (turns, want) in [(vec![], "create a"), (vec![node("a")], "create b")] {
        assert_eq!(texts(observing(&partitioned, &all, &[], &refused(&turns), plan)), [want]);
    }
}

#[test]
fn edge_36_pending_pods_that_are_meant_for_a_removed_node_are_deleted() {
    let unbound = Pod { is_bound: false, ..unready(pod("gone")) };
    let bound = Pod { name: "bound".into(), ..pod("gone") };
    assert_eq!(of(json!({}), &nodes(&["a"]), &[pod("a"), unbound, bound]), ["delete p-gone"], "the others are garbage");
}

#[test]
fn edge_37_pods_of_a_duplicate_revision_are_relabelled_and_not_replaced() {
    let duplicate = Pod { hash: "twin".into(), ..pod("a") };
    assert_eq!(of(json!({}), &nodes(&["a"]), std::slice::from_ref(&duplicate)), ["relabel p-a"]);
}

#[test]
fn edge_38_the_pre_delete_hook_holds_every_deletion_and_its_pod_counts_as_unavailable() {
    let hooks = hooked(&["preDelete"]);
    let (a, b) = (held(old("a")), held(old("b")));
    assert_eq!(of(hooks.clone(), &nodes(&["a", "b"]), &[a.clone(), b.clone()]), ["announce deletion o-b"]);
    let announced = in_state(b.clone(), State::PreparingDelete);
    assert_eq!(of(hooks.clone(), &nodes(&["a", "b"]), &[a.clone(), announced.clone()]), NONE, "its turn is not over");
    let free = Pod { labels: Default::default(), ..announced };
    assert_eq!(of(hooks.clone(), &nodes(&["a", "b"]), &[a, free]), ["delete o-b"]);
    assert_eq!(of(hooks.clone(), &[unfit("a")], &[held(pod("a"))]), ["announce deletion p-a"]);
    let all_held = in_state(held(pod("a")), State::PreparingDelete);
    assert_eq!(of(hooks, &[unfit("a")], &[all_held]), NONE);
}

#[test]
fn shortfall_10_2_34_an_announced_deletion_is_taken_back() {
    let hooks = hooked(&["preDelete"]);
    let announced = in_state(held(pod("a")), State::PreparingDelete);
    assert_eq!(
        of(hooks.clone(), &nodes(&["a"]), std::slice::from_ref(&announced)),
        ["keep p-a"],
        "its node fits again"
    );
    assert_eq!(of(hooks.clone(), &[tainted("a")], &[announced]), ["keep p-a"], "and where it may stay");
    let old = in_state(held(old("a")), State::PreparingDelete);
    let mut kept = hooks.clone();
    kept["partition"] = 1.into();
    assert_eq!(of(kept, &nodes(&["a"]), std::slice::from_ref(&old)), ["keep o-a"], "the partition keeps it");
    let mut on_delete = hooks;
    on_delete["onDelete"] = true.into();
    assert_eq!(of(on_delete, &nodes(&["a"]), &[old]), ["keep o-a"]);
}

#[test]
fn edge_30_with_a_surge_the_old_pod_stays_until_the_new_one_is_available_and_the_pass_looks_again() {
    let (surge, all) = (json!({"maxSurge": 1, "minReadySeconds": 30}), nodes(&["a"]));
    assert_eq!(of(surge.clone(), &all, &[old("a")]), ["create a"]);
    assert_eq!(of(surge.clone(), &all, &[old("a"), unready(pod("a"))]), NONE);
    let young = planned(&spec(surge.clone()), &all, &[old("a"), fresh(pod("a"), 12)]);
    assert_eq!((young.look, texts(young)), (Some(std::time::Duration::from_secs(12)), vec![]));
    assert_eq!(of(surge.clone(), &all, &[old("a"), pod("a")]), ["delete o-a"]);
    assert_eq!(of(surge.clone(), &all, &[unready(old("a")), unready(pod("a"))]), ["delete o-a"], "it is of no use");
    let (two_old, two_new) = (
        Pod { name: "o2".into(), created: Some(time(5)), ..old("a") },
        Pod { name: "p2".into(), created: Some(time(5)), ..unready(pod("a")) },
    );
    let all_four = [old("a"), two_old.clone(), unready(pod("a")), two_new];
    assert_eq!(of(surge.clone(), &all, &all_four), ["delete o2", "delete p2"]);
    let one_serves = [unready(old("a")), two_old, unready(pod("a"))];
    assert_eq!(of(surge, &all, &one_serves), ["delete o-a"], "the one that serves waits for the new one");
}

#[test]
fn with_a_surge_an_old_pod_whose_deletion_was_announced_gets_a_new_one_beside_it() {
    let (all, mut fields) = (nodes(&["a"]), hooked(&["preDelete"]));
    fields["maxSurge"] = 1.into();
    let announced = |pod: Pod| in_state(held(pod), State::PreparingDelete);
    let released = in_state(old("a"), State::PreparingDelete);
    assert_eq!(of(fields.clone(), &all, &[announced(old("a"))]), ["create a"]);
    assert_eq!(of(fields.clone(), &all, std::slice::from_ref(&released)), ["create a"]);
    assert_eq!(of(fields.clone(), &all, &[specified(announced(pod("a")))]), ["create a"]);
    assert_eq!(of(fields.clone(), &all, &[announced(old("a")), unready(pod("a"))]), NONE);
    assert_eq!(of(fields, &all, &[released, unready(pod("a"))]), ["delete o-a"]);
}

#[test]
fn with_a_surge_a_pod_whose_deletion_was_announced_stays_when_it_is_new_again() {
    let mut fields = hooked(&["preDelete"]);
    fields["maxSurge"] = 1.into();
    let back = in_state(held(pod("a")), State::PreparingDelete);
    assert_eq!(of(fields.clone(), &nodes(&["a"]), &[back.clone(), old("a")]), ["keep p-a"]);
    fields["lifecycle"]["preDelete"]["markPodNotReady"] = true.into();
    let released = in_state(pod("a"), State::PreparingDelete);
    assert_eq!(of(fields, &nodes(&["a"]), &[released, old("a")]), ["delete p-a"], "this hook's deletions are final");
}

#[test]
fn a_surge_is_limited_and_what_is_down_needs_no_room() {
    let all = nodes(&["a", "b", "c"]);
    assert_eq!(of(json!({"maxSurge": 2}), &all, &names(&["a", "b", "c"], old)), ["create c", "create b"]);
    let pods = [old("a"), unready(pod("a")), old("b"), unready(old("c"))];
    assert_eq!(of(json!({"maxSurge": 1}), &all, &pods), ["create c"], "one is on its way on a");
}

#[test]
fn a_surge_that_cannot_be_scheduled_is_explained() {
    let unbound = Pod { is_bound: false, ..unready(pod("a")) };
    let wait = planned(&spec(json!({"maxSurge": 1})), &nodes(&["a"]), &[old("a"), unbound]).wait.unwrap();
    assert_eq!(wait.reason, "PodNotScheduled");
    assert!(wait.message.contains("host port"), "{}", wait.message);
}

#[test]
fn a_surge_whose_pods_take_the_same_port_of_the_node_is_stalled_and_other_nodes_go_on() {
    let template = |ports: Value| json!({"spec": {"containers": [{"name": "main", "ports": ports}]}});
    let (none, eighty) = (template(json!([])), template(json!([{"containerPort": 80, "hostPort": 80}])));
    let other = template(json!([{"containerPort": 80, "hostPort": 81}]));
    let mut first = eighty.clone();
    first["spec"]["priorityClassName"] = "first".into();
    let marked = specified(Pod { name: "marked".into(), ..pod("a") });
    let unknown = Pod { hash: "lost".into(), ..old("a") };
    for (what, was, is, before, is_stalled) in [
        ("no port", &none, &none, old("a"), false),
        ("a port that is new", &none, &eighty, old("a"), false),
        ("another port", &other, &eighty, old("a"), false),
        ("the same port", &eighty, &eighty, old("a"), true),
        ("the same port, which it may get by its priority", &eighty, &first, old("a"), false),
        ("of the same revision", &none, &eighty, marked.clone(), true),
        ("of the same revision, without a port", &eighty, &none, marked, false),
        ("of a revision that is gone", &eighty, &eighty, unknown, false),
    ] {
        let surging = Spec { template: is.clone(), ..spec(json!({"maxSurge": 2})) };
        let data = revision::data(was);
        let revisions = [KnownRevision { name: format!("agent-{OLD}"), data, ..KnownRevision::default() }];
        let unbound = Pod { is_bound: false, ..unready(pod("a")) };
        let pods = [before, unbound, old("b")];
        let (plan, progress) = observing(&surging, &nodes(&["a", "b"]), &pods, &Besides::default(), |observed| {
            let observed = Observed { revisions: &revisions, ..observed.clone() };
            let plan = plan(&observed);
            let progress = status::progress(&observed, &status::counts(&observed), &plan.outline());
            (plan, progress)
        });
        let (found, none) = if is_stalled { (&plan.impossible, &plan.wait) } else { (&plan.wait, &plan.impossible) };
        assert_eq!(found.as_ref().map(|wait| wait.reason), Some("PodNotScheduled"), "{what}");
        assert!(none.as_ref().is_none_or(|wait| wait.reason != "PodNotScheduled"), "{what}: {none:?}");
        assert_eq!(matches!(progress, Progress::Stalled { .. }), is_stalled, "{what}: {progress:?}");
        assert_eq!(texts(plan), ["create b"], "{what}");
    }
}

#[test]
fn a_rolling_update_takes_available_pods_within_the_limit_and_those_that_are_down_at_once() {
    let all = nodes(&["a", "b", "c", "d"]);
    let old_ones = names(&["a", "b", "c", "d"], old);
    assert_eq!(of(json!({}), &all, &old_ones), ["delete o-d"]);
    assert_eq!(of(json!({"maxUnavailable": "50%"}), &all, &old_ones), ["delete o-d", "delete o-c"]);
    let some_down = [old("a"), unready(old("b")), unready(old("c")), old("d")];
    assert_eq!(of(json!({}), &all, &some_down), ["delete o-c", "delete o-b"], "an available one waits for them");
    let on_its_way = [unready(pod("a")), old("b"), old("c"), unready(old("d"))];
    assert_eq!(of(json!({}), &all, &on_its_way), ["delete o-d"]);
    let empty = [old("b"), old("c"), old("d")];
    assert_eq!(of(json!({}), &all, &empty), ["create a"], "a node without a Pod has none available");
}

#[test]
fn edge_32_only_pods_on_selected_nodes_are_updated_and_partition_applies_too() {
    let unselected = Node { is_selected: false, ..node("c") };
    let all = [node("a"), node("b"), unselected];
    let pods = names(&["a", "b", "c"], old);
    let selector = json!({"matchLabels": {"canary": "yes"}});
    assert_eq!(of(json!({"selector": selector, "maxUnavailable": 3}), &all, &pods), ["delete o-b", "delete o-a"]);
    assert_eq!(of(json!({"selector": selector, "maxUnavailable": 3, "partition": 2}), &all, &pods), ["delete o-b"]);
    let begun = [old("a"), old("b"), pod("c")];
    assert_eq!(of(json!({"selector": selector, "maxUnavailable": 3, "partition": 2}), &all, &begun), NONE);
}

#[test]
fn shortfall_10_2_29_nodes_that_left_the_selection_use_up_neither_budget_nor_partition() {
    let all = [node("a"), node("b"), tainted("x"), unfit("y")];
    let pods = [old("a"), old("b"), unready(old("x")), unready(pod("y"))];
    let done = of(json!({"partition": 1}), &all, &pods);
    assert_eq!(done, ["delete p-y", "delete o-b"], "one of the two nodes that count");
}

#[test]
fn shortfall_10_2_30_a_new_pod_that_waits_for_its_deletion_counts_once() {
    let all = nodes(&["a", "b", "c"]);
    let pods = [old("a"), old("b"), in_state(held(specified(pod("c"))), State::PreparingDelete)];
    let mut fields = hooked(&["preDelete"]);
    fields["maxUnavailable"] = 2.into();
    assert_eq!(of(fields, &all, &pods), ["delete o-b"], "1 of 2 is used, and the last name goes first");
}

#[test]
fn paused_stops_updates_and_nothing_else() {
    let all = nodes(&["a", "b"]);
    assert_eq!(of(json!({"paused": true}), &all, &[unready(old("b"))]), ["create a"]);
    let announced = in_state(held(old("b")), State::PreparingDelete);
    let mut fields = hooked(&["preDelete"]);
    fields["paused"] = true.into();
    assert_eq!(of(fields, &all, &[pod("a"), announced]), NONE, "nothing is taken back");
    assert_eq!(of(json!({"onDelete": true}), &all, &names(&["a", "b"], old)), NONE);
}

#[test]
fn a_pause_keeps_no_pod_out_of_service_that_its_hook_has_let_go_of() {
    let all = nodes(&["a", "b", "c"]);
    let paused = |hook: &str, way: &str| {
        let mut fields = hooked(&[hook]);
        fields["lifecycle"][hook]["markPodNotReady"] = true.into();
        fields["paused"] = true.into();
        fields["rollingUpdateType"] = way.into();
        fields
    };
    let about = |fields: Value, state: State| {
        let pods = [old("a"), in_state(held(old("b")), state.clone()), in_state(old("c"), state)];
        of(fields, &all, &pods)
    };
    assert_eq!(about(paused("preDelete", "Standard"), State::PreparingDelete), ["delete o-c"], "a is not begun with");
    let in_place = paused("inPlaceUpdate", "InPlaceIfPossible");
    assert_eq!(about(in_place, State::PreparingUpdate), ["update o-c main=i:2"]);
    let mut surge = paused("preDelete", "Standard");
    surge["maxSurge"] = 3.into();
    assert_eq!(about(surge, State::PreparingDelete), ["create c"], "it had lost the Pod that was to follow");
    let mut kept = paused("preDelete", "Standard");
    kept["partition"] = 3.into();
    assert_eq!(about(kept, State::PreparingDelete), ["delete o-c"], "this hook's deletions are final");
}

#[test]
fn a_mark_on_a_node_that_takes_no_new_pods_is_waited_for_in_words() {
    let all = [tainted("a"), node("b")];
    let marked = [specified(pod("a")), pod("b")];
    let message = "Pod p-a is marked to be deleted, and is replaced when no taint keeps new Pods from its node a";
    for fields in [json!({}), json!({"maxSurge": 1}), json!({"onDelete": true}), json!({"strict": true})] {
        let plan = planned(&spec(fields.clone()), &all, &marked);
        let wait = plan.wait.clone().unwrap();
        assert_eq!((wait.reason, wait.message.as_str()), ("NodeRepelsPods", message), "{fields}");
        assert_eq!(texts(plan), NONE, "{fields}: the node would have none");
    }
    assert_eq!(planned(&spec(json!({})), &all, &[pod("a"), pod("b")]).wait, None);
    let other = planned(&spec(json!({})), &all, &[specified(pod("a")), unready(pod("b"))]).wait.unwrap();
    assert_eq!(other.reason, "PodNotReady", "what the set needs for itself goes first");
}

#[test]
fn shortfall_10_2_36_marked_pods_are_replaced_within_the_limit_whatever_the_strategy() {
    let all = nodes(&["a", "b", "c"]);
    let pods = [specified(pod("a")), specified(pod("b")), pod("c")];
    assert_eq!(of(json!({}), &all, &pods), ["delete p-b"]);
    assert_eq!(of(json!({"onDelete": true}), &all, &pods), ["delete p-b"]);
    assert_eq!(of(json!({"onDelete": true, "maxSurge": 1}), &all, &pods), ["delete p-b"], "a surge that was left in");
    assert_eq!(of(json!({"paused": true, "partition": 3}), &all, &pods), ["delete p-b"]);
    let down = [specified(pod("a")), specified(unready(pod("b"))), pod("c")];
    assert_eq!(of(json!({}), &all, &down), ["delete p-b"], "the available one waits");
    let surge = json!({"maxSurge": 1});
    assert_eq!(of(surge.clone(), &all, &pods), ["create b"]);
    let beside = Pod { name: "next".into(), created: Some(time(9)), ..pod("b") };
    assert_eq!(of(surge, &all, &[pod("a"), specified(pod("b")), beside, pod("c")]), ["delete p-b"]);
}

#[test]
fn pods_are_updated_in_place_where_that_is_possible() {
    let (in_place, all) =
        (json!({"rollingUpdateType": "InPlaceIfPossible", "maxUnavailable": 4}), nodes(&["a", "b", "c"]));
    let gateless = Pod { has_gate: false, ..old("b") };
    let unknown = Pod { hash: "lost".into(), ..old("c") };
    assert_eq!(of(in_place, &all, &[old("a"), gateless, unknown]), ["delete o-c", "delete o-b", "update o-a main=i:2"]);
    assert_eq!(of(json!({}), &nodes(&["a"]), &[old("a")]), ["delete o-a"]);
}

#[test]
fn while_it_cannot_be_read_what_may_be_done_in_place_no_pod_is_said_to_be_replaced() {
    let in_place = spec(json!({"rollingUpdateType": "InPlaceIfPossible"}));
    let pods = [Pod { has_gate: false, ..old("a") }];
    let planned = |allowed: Option<Allowed>| {
        observing(&in_place, &nodes(&["a"]), &pods, &Besides::default(), |observed| {
            plan(&Observed { allowed, ..observed.clone() })
        })
    };
    let known = planned(Some(Allowed::default()));
    assert!(known.not_in_place.is_some() && known.candidates.len() == 1, "{known:?}");
    let unknown = planned(None);
    let waits = "Pod o-a is not updated while revisions or the API server's version cannot be read";
    assert_eq!(unknown.wait.map(|wait| wait.message).as_deref(), Some(waits), "it is not Ready");
    assert_eq!((unknown.not_in_place, unknown.candidates), (None, Vec::new()));
}

#[test]
fn a_pod_in_a_state_of_a_later_release_stalls_an_update_in_place_and_other_pods_are_updated() {
    let fields = json!({"rollingUpdateType": "InPlaceIfPossible", "maxUnavailable": 2});
    let pods = [old("a"), in_state(old("b"), State::Unknown("Later".into()))];
    let plan = planned(&spec(fields), &nodes(&["a", "b"]), &pods);
    let why = plan.impossible.clone().unwrap();
    let message = "Pod o-b is in lifecycle state \"Later\", which this release does not know";
    assert_eq!((why.reason, why.message.as_str()), ("FailedUpdatePod", message));
    assert_eq!(texts(plan), ["update o-a main=i:2"]);
}

#[test]
fn a_template_that_admission_has_seen_and_one_that_it_has_not_differ_in_place() {
    let mut seen = spec(json!({"rollingUpdateType": "InPlaceIfPossible"}));
    seen.template["metadata"] = json!({"creationTimestamp": null});
    seen.template["spec"]["containers"][0]["resources"] = json!({});
    assert_eq!(texts(planned(&seen, &nodes(&["a"]), &[old("a")])), ["update o-a main=i:2"]);
    seen.template["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": 1}});
    assert_eq!(texts(planned(&seen, &nodes(&["a"]), &[old("a")])), ["delete o-a"], "these say something");
}

#[test]
fn the_hook_of_updates_in_place_holds_and_is_put_back() {
    let mut fields = hooked(&["inPlaceUpdate"]);
    fields["rollingUpdateType"] = "InPlaceIfPossible".into();
    let about = |pod: Pod| of(fields.clone(), &nodes(&["a"]), &[pod]);
    assert_eq!(about(held(old("a"))), ["announce update o-a"]);
    assert_eq!(about(in_state(held(old("a")), State::PreparingUpdate)), NONE);
    assert_eq!(about(in_state(old("a"), State::PreparingUpdate)), ["update o-a main=i:2"]);
    assert_eq!(about(in_state(old("a"), State::Updated)), ["announce update o-a again"]);
    let mut partition = fields.clone();
    partition["onDelete"] = true.into();
    let announced = in_state(held(old("a")), State::PreparingUpdate);
    assert_eq!(of(partition, &nodes(&["a"]), &[announced]), ["no update o-a"]);
}

#[test]
fn edge_43_a_manifest_of_the_built_in_daemon_set_behaves_as_before() {
    let manifest = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "DaemonSet",
        "metadata": {"name": "agent", "namespace": "ns", "uid": "set",
            "annotations": {"deprecated.daemonset.template.generation": "3"}},
        "spec": {"selector": {"matchLabels": {"app": "agent"}}, "minReadySeconds": 0, "revisionHistoryLimit": 10,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
            "template": {"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": [{"name": "main", "image": "i:2"}]}}}});
    let set: DaemonSet = serde_json::from_value(manifest).unwrap();
    let spec = Spec::of(&set).unwrap();
    let seen = |name: &str, ready: &str, taints: &[(&str, &str)]| {
        let taints: Vec<Value> = taints.iter().map(|(key, effect)| json!({"key": key, "effect": effect})).collect();
        let view = json!({"metadata": {"name": name}, "spec": {"taints": taints},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}});
        Node::of(&serde_json::from_value(view).unwrap(), &spec)
    };
    let not_ready = "node.kubernetes.io/not-ready";
    let all = [
        seen("a", "True", &[]),
        seen("b-cordoned", "True", &[("node.kubernetes.io/unschedulable", "NoSchedule")]),
        seen("c-dedicated", "True", &[("dedicated", "NoSchedule")]),
        seen("d-lost", "False", &[(not_ready, "NoSchedule"), (not_ready, "NoExecute")]),
        seen("e-not-ready", "False", &[(not_ready, "NoExecute")]),
        seen("f-drained", "True", &[("dedicated", "NoExecute")]),
    ];
    let planned_of = |pods: &[Pod]| texts(planned(&spec, &all, pods));
    assert_eq!(planned_of(&[]), ["create a", "create b-cordoned", "create e-not-ready"]);
    let everywhere = ["a", "b-cordoned", "c-dedicated", "d-lost", "e-not-ready", "f-drained"];
    assert_eq!(planned_of(&names(&everywhere, pod)), ["delete p-f-drained"], "the others stay where they are");
    assert_eq!(planned_of(&names(&everywhere[..5], old)), ["delete o-e-not-ready"], "one at a time");
    let down = names(&everywhere[..5], |node| unready(old(node)));
    assert_eq!(
        planned_of(&down),
        ["delete o-e-not-ready", "delete o-b-cordoned", "delete o-a"],
        "what is down at once"
    );
    let counts = observing(&spec, &all, &names(&everywhere[..5], pod), &Besides::default(), status::counts);
    assert_eq!((counts.desired, counts.available, counts.misscheduled), (3, 3, 2));
    let made = make::pod(&OwnerRef::of(&set), &spec, "agent-x".into(), ("a", "hash"), None, at(0));
    let labels =
        json!({"app": "agent", labels::CONTROLLER_REVISION_HASH: "hash", labels::POD_TEMPLATE_GENERATION: "3"});
    assert_eq!(made["metadata"]["labels"], labels);
    assert_eq!(made["spec"]["containers"], set.spec.template["spec"]["containers"]);
    assert_eq!(made["spec"]["tolerations"].as_array().unwrap().len(), 6);
}

#[test]
fn edge_45_pods_of_intermediate_revisions_are_old() {
    let between = Pod { hash: "between".into(), ..old("a") };
    assert_eq!(of(json!({}), &nodes(&["a", "b"]), &[between, pod("b")]), ["delete o-a"]);
}

#[test]
fn shortfall_10_2_28_partitioned_scaling_creates_as_far_as_the_partition_goes() {
    let all = nodes(&["a", "b", "c", "d"]);
    let fields = |partition: Value| json!({"partitionedScaling": true, "partition": partition});
    assert_eq!(of(fields(json!(3)), &all, &[]), ["create a"], "in ascending order, by the nodes of this pass");
    assert_eq!(of(fields(json!("50%")), &all, &[]), ["create a", "create b"]);
    assert_eq!(of(fields(json!("50%")), &all, &[pod("d")]), ["create a"]);
    assert_eq!(of(fields(json!(9)), &all, &[]), NONE);
    assert_eq!(of(fields(json!(0)), &all, &[]).len(), 4);
    assert_eq!(of(json!({"partition": 3}), &all, &[]).len(), 4, "without it all are made");
}

#[test]
fn with_partitioned_scaling_a_canary_that_has_ended_is_followed_by_none_on_the_next_node() {
    let all = nodes(&["a", "b", "c"]);
    let canary = spec(json!({"partitionedScaling": true, "partition": 2}));
    let mut besides = Besides::default();
    besides.failures.note("a", at(0).mono);
    assert_eq!(texts(observing(&canary, &all, &[failed(pod("a"))], &besides, plan)), NONE);
    assert_eq!(texts(planned(&canary, &all, &[failed(pod("a"))])), ["delete p-a"]);
    assert_eq!(texts(planned(&canary, &all, &[terminating(failed(pod("a")))])), NONE, "it has not gone yet");
    assert_eq!(texts(planned(&canary, &all, &[])), ["create a"]);
}

#[test]
fn a_burst_limits_what_one_pass_does() {
    let all = nodes(&["a", "b", "c", "d"]);
    let cut = planned(&spec(json!({"burstReplicas": 3})), &all, &[]);
    assert!(cut.is_cut);
    assert_eq!(texts(cut), ["create a", "create b", "create c"]);
    let pods = names(&["a", "b", "c", "d"], |node| unready(old(node)));
    assert_eq!(of(json!({"burstReplicas": "50%"}), &all, &pods), ["delete o-d", "delete o-c"]);
}

#[test]
fn strict_pods_that_are_down_go_only_while_few_are_on_their_way() {
    let all = nodes(&["a", "b", "c", "d"]);
    let strict = |limit: i32| json!({"strict": true, "maxUnavailable": limit});
    let all_down = names(&["a", "b", "c", "d"], |node| unready(old(node)));
    assert_eq!(of(strict(1), &all, &all_down), ["delete o-d"], "not all ingress Pods at once");
    let one_on_its_way = [unready(old("a")), unready(old("b")), unready(old("c")), unready(pod("d"))];
    assert_eq!(of(strict(1), &all, &one_on_its_way), NONE);
    assert_eq!(of(strict(2), &all, &one_on_its_way), ["delete o-c"]);
    let mixed = [old("a"), old("b"), unready(old("c")), old("d")];
    assert_eq!(of(strict(1), &all, &mixed), ["delete o-c"], "an available one waits for those that are down");
    assert_eq!(of(strict(2), &all, &mixed), ["delete o-c", "delete o-d"]);
}

#[test]
fn strict_a_node_that_was_lost_before_holds_no_slot_and_waits_for_all_others() {
    let strict = json!({"strict": true, "maxUnavailable": 1});
    // They were made long before.
    let long = |pod: Pod| Pod { created: Some(time(-10_000)), ..pod };
    let lost = [down("a", 0), node("b"), down("c", 0)];
    let (a, c) = (long(unready(old("a"))), long(unready(old("c"))));
    assert_eq!(of(strict.clone(), &lost, &[a.clone(), old("b"), c.clone()]), ["delete o-b"], "it holds no slot");
    assert_eq!(of(strict.clone(), &lost, &[a.clone(), unready(pod("b")), c.clone()]), NONE, "b is on its way");
    assert_eq!(of(strict.clone(), &lost, &[a.clone(), pod("b"), c]), ["delete o-c"], "one at a time");
    let next = Pod { made_not_ready: Some(time(0).as_second()), ..unready(pod("c")) };
    assert_eq!(of(strict.clone(), &lost, &[a.clone(), pod("b"), next.clone()]), NONE, "until it is available");
    assert_eq!(of(strict.clone(), &lost, &[a.clone(), old("b"), next]), ["delete o-b"], "which holds up nobody else");
    let in_service = long(old("c"));
    assert_eq!(of(strict.clone(), &lost, &[a, old("b"), in_service]), ["delete o-b"], "available or not");
    let plan = planned(&spec(strict.clone()), &lost, &[long(unready(old("a"))), pod("b"), pod("c")]);
    let outage = |node: &str, came: Came| (node.to_owned(), Outage { since: time(0).as_second(), came });
    let both = [outage("a", Came::Before), outage("c", Came::Meanwhile)];
    assert_eq!(plan.outages, std::collections::BTreeMap::from(both), "c was lost when its Pod was made");
    let remembering = Besides { outages: plan.outages, ..Besides::default() };
    let made = observing(&spec(strict.clone()), &lost, &[pod("b"), pod("c")], &remembering, super::pass::plan);
    assert!(
        matches!(&made.actions[0], Action::Create { not_ready_since: Some(_), .. }),
        "the Pod that is made there says so"
    );
    let replaced = Pod { made_not_ready: Some(time(0).as_second()), ..unready(pod("a")) };
    assert_eq!(of(strict.clone(), &lost, &[replaced, old("b"), pod("c")]), ["delete o-b"]);
    let older = [down("a", -500), node("b"), node("c")];
    let relabelled = long(unready(pod("a")));
    assert_eq!(of(strict, &older, &[relabelled, old("b"), pod("c")]), ["delete o-b"], "before this revision was made");
}

#[test]
fn strict_a_node_that_was_lost_soon_after_its_pod_was_made_keeps_its_slot_under_the_next_template() {
    let strict = json!({"strict": true, "maxUnavailable": 1});
    let made = |second: i64| Pod { created: Some(time(second)), ..unready(old("a")) };
    // The newest revision is of second -10.
    let of_lost = |since: i64, pod: Pod| of(strict.clone(), &[down("a", since), node("b")], &[pod, old("b")]);
    assert_eq!(of_lost(-100, made(-200)), ["delete o-a"], "it may be replaced, and takes the only place");
    assert_eq!(of_lost(-100, made(-800)), ["delete o-b"], "it had been there for longer than ten minutes");
    let again = Pod { made_not_ready: Some(time(-100).as_second()), ..made(-90) };
    assert_eq!(of_lost(-100, again), ["delete o-b"], "the node was lost before its Pod was made");
    // The manager has seen the outage begin: that its Pod never worked on a node that served for hours says nothing.
    let never = Pod { unready_since: Some(time(-8_990)), ..made(-9_000) };
    let seen = Node { saw_outage_begin: true, ..down("a", -100) };
    assert_eq!(of(strict.clone(), &[seen, node("b")], &[never, old("b")]), ["delete o-b"], "it is not held against it");
    let later = Pod { made_not_ready: Some(time(-95).as_second()), ..made(-90) };
    assert_eq!(of_lost(-100, later), ["delete o-b"], "whatever clock the first moment came from");
    let updated = Pod { updated_at: Some(time(-300)), ..made(-10_000) };
    assert_eq!(of_lost(-100, updated), ["delete o-a"], "it was updated in place");
}

#[test]
fn strict_a_node_that_a_template_has_broken_keeps_its_slot_while_the_next_one_replaces_or_updates_its_pod() {
    let (strict, lost) = (spec(json!({"strict": true, "maxUnavailable": 1})), [down("a", -100), node("b")]);
    let broken = Pod { created: Some(time(-160)), ..unready(old("a")) };
    let first = planned(&strict, &lost, &[broken, old("b")]);
    let besides = Besides { outages: first.outages.clone(), ..Besides::default() };
    assert_eq!(texts(first), ["delete o-a"]);
    let later = |pods: &[Pod]| observing(&strict, &lost, pods, &besides, plan);
    let made = later(&[old("b")]);
    assert!(matches!(&made.actions[0], Action::Create { not_ready_since: None, .. }));
    assert_eq!(texts(made), ["create a"], "its Pod has gone");
    let updated = Pod { updated_at: Some(time(0)), created: Some(time(-10_000)), ..unready(pod("a")) };
    assert_eq!(texts(later(&[updated, old("b")])), NONE, "updated in place");
    assert_eq!(texts(later(&[unready(pod("a")), old("b")])), NONE, "the next one is there");
    let forgotten = planned(&strict, &lost, &[unready(pod("a")), old("b")]);
    assert_eq!(texts(forgotten), NONE, "which a manager that starts anew sees by that it does not say otherwise");
    let back = [Node { not_ready_since: Some(time(5)), ..lost[0].clone() }, node("b")];
    let long = Pod { created: Some(time(-10_000)), ..unready(old("a")) };
    assert_eq!(texts(observing(&strict, &back, &[long, old("b")], &besides, plan)), ["delete o-b"], "another outage");
}

#[test]
fn strict_a_manager_that_starts_anew_and_sees_only_the_last_change_of_an_outage_gives_no_slot_away() {
    let strict = spec(json!({"strict": true, "maxUnavailable": 1, "rollingUpdateType": "InPlaceIfPossible"}));
    // The node was False soon after its Pod had been made, and is Unknown since second -100.
    let first = |created: i64, unready_since: Option<i64>| {
        let broken = Pod { created: Some(time(created)), unready_since: unready_since.map(time), ..unready(old("a")) };
        texts(planned(&strict, &[down("a", -100), node("b")], &[broken, old("b")])).remove(0)
    };
    assert_eq!(first(-9000, Some(-8990)), "update o-a main=i:2", "it takes the only place: its Pod has never worked");
    assert_eq!(first(-9000, Some(-8000)), "update o-b main=i:2", "it had worked for longer than ten minutes");
    assert_eq!(first(-9000, Some(-50)), "update o-b main=i:2");
    assert_eq!(first(-9000, None), "update o-b main=i:2");
    // Lost first, then updated: maybe by a template that came after the one that broke it.
    let updated = Pod { updated_at: Some(time(6)), unready_since: Some(time(-90)), ..unready(pod("a")) };
    assert_eq!(texts(planned(&strict, &[down("a", 5), node("b")], &[updated, old("b")])), NONE);
}

#[test]
fn strict_a_pod_to_which_kubelet_has_not_got_was_made_in_the_same_outage_whenever_that_is_said_to_begin() {
    let strict = json!({"strict": true, "maxUnavailable": 1});
    let lost = [down("a", 5), node("b")];
    let made = |then: i64, is_untouched: bool| {
        let pod = Pod { made_not_ready: Some(time(then).as_second()), is_untouched, ..unready(pod("a")) };
        of(strict.clone(), &lost, &[pod, old("b")])
    };
    assert_eq!(made(-3, true), ["delete o-b"], "it was False before it was Unknown: it holds no slot");
    assert_eq!(made(-3, false), NONE, "kubelet was back in between");
    assert_eq!(made(5, false), ["delete o-b"]);
    let seen = |conditions: Value| {
        let view: PodView = serde_json::from_value(json!({"metadata": {"name": "p-a"}, "spec": {"nodeName": "a"},
            "status": {"phase": "Pending", "conditions": conditions}}))
        .unwrap();
        let pod = Pod::of(&view, &spec(strict.clone()), Newest { hash: NEW, same: &[] }, at(0)).unwrap();
        (pod.is_untouched, pod.unready_since)
    };
    let ready = |status: &str| json!([{"type": "Ready", "status": status, "lastTransitionTime": time(7).to_string()}]);
    assert_eq!(seen(json!([{"type": "PodScheduled", "status": "True"}])), (true, None));
    assert_eq!(seen(ready("False")), (false, Some(time(7))));
    assert_eq!(seen(ready("True")), (false, None));
}

#[test]
fn strict_a_node_that_is_lost_long_after_its_update_holds_a_slot_until_there_is_another_template() {
    let (strict, lost) = (spec(json!({"strict": true, "maxUnavailable": 1})), [down("a", 5000), node("b")]);
    let seen = planned(&strict, &lost, &[unready(pod("a")), old("b")]);
    assert_eq!(seen.outages["a"].came, Came::Later);
    let besides = Besides { outages: seen.outages.clone(), ..Besides::default() };
    assert_eq!(texts(seen), NONE);
    let next = [unready(Pod { name: "p-a".into(), ..old("a") }), old("b")];
    let next = observing(&strict, &lost, &next, &besides, plan);
    assert_eq!(next.outages["a"].came, Came::Before);
    assert_eq!(texts(next), ["delete o-b"]);
    let going = planned(&strict, &lost, &[terminating(Pod { created: Some(time(-10_000)), ..old("a") }), old("b")]);
    assert_eq!(going.outages["a"].came, Came::Meanwhile, "its Pod was about to be replaced");
}

#[test]
fn strict_a_node_that_was_lost_soon_after_an_update_in_place_was_done_keeps_its_slot_under_the_next_template() {
    let spec = spec(json!({"strict": true, "maxUnavailable": 1, "rollingUpdateType": "InPlaceIfPossible"}));
    let done = |began: i64| {
        let state = json!({"revision": OLD, "updateTimestamp": time(began).to_string()}).to_string();
        let view: PodView = serde_json::from_value(json!({
            "metadata": {"name": "o-a", "creationTimestamp": time(-100_000).to_string(),
                "labels": {labels::CONTROLLER_REVISION_HASH: OLD}, "annotations": {labels::IN_PLACE_STATE: state}},
            "spec": {"nodeName": "a", "readinessGates": [{"conditionType": labels::CONDITION_INPLACE_UPDATE_READY}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"},
                {"type": labels::CONDITION_INPLACE_UPDATE_READY, "status": "True"}]}}))
        .unwrap();
        assert!(view.in_place().is_none(), "it is done");
        Pod::of(&view, &spec, Newest { hash: NEW, same: &[] }, at(0)).unwrap()
    };
    let first = |pod: Pod| texts(planned(&spec, &[down("a", -100), node("b")], &[pod, old("b")])).remove(0);
    assert_eq!(first(done(-160)), "update o-a main=i:2", "it takes the only place");
    assert_eq!(first(done(-900)), "update o-b main=i:2", "it had worked for longer than ten minutes");
}

#[test]
fn strict_a_node_that_is_lost_after_its_pod_was_replaced_keeps_its_slot() {
    let strict = json!({"strict": true, "maxUnavailable": 1});
    let lost = [down("a", 5), node("b")];
    assert_eq!(of(strict.clone(), &lost, &[unready(pod("a")), old("b")]), NONE);
    let again = Pod { made_not_ready: Some(time(3).as_second()), ..unready(pod("a")) };
    assert_eq!(of(strict.clone(), &lost, &[again, old("b")]), NONE, "it was back in between");
    assert_eq!(of(strict.clone(), &lost, &[old("b")]), ["create a"], "and so does one that has no Pod now");
    let begun = |second: i64| Pod { updated_at: Some(time(second)), ..unready(pod("a")) };
    assert_eq!(of(strict.clone(), &lost, &[begun(4), old("b")]), NONE, "updated in place, then lost");
    assert_eq!(
        of(strict.clone(), &lost, &[begun(6), old("b")]),
        NONE,
        "by another clock, or lost for another template"
    );
    let noted = Pod { made_not_ready: Some(time(5).as_second()), ..begun(6) };
    assert_eq!(of(strict, &lost, &[noted, old("b")]), ["delete o-b"], "lost, then updated in place");
}

#[test]
fn strict_an_update_in_place_on_a_node_that_was_lost_before_is_noted_in_its_pod() {
    let strict = spec(json!({"strict": true, "maxUnavailable": 2, "rollingUpdateType": "InPlaceIfPossible"}));
    let long = |name: &str| Pod { created: Some(time(-10_000)), ..unready(old(name)) };
    let metadata = |all: &[Node]| -> Vec<Option<Value>> {
        let mut plan = planned(&strict, all, &[long("a"), long("b")]);
        let of = |action: Action| match action {
            Action::Change { change: PodAction::UpdateInPlace { spec }, .. } => spec.metadata(),
            other => panic!("{other:?}"),
        };
        plan.next_wave(9).into_iter().map(|candidate| of(candidate.action)).collect()
    };
    let since =
        |second: i64| Some(json!({"labels": {labels::NODE_NOT_READY_SINCE: time(second).as_second().to_string()}}));
    assert_eq!(metadata(&[down("a", 0), down("b", 5)]), [since(5), since(0)]);
    assert_eq!(metadata(&nodes(&["a", "b"])), [None, None]);
    // It was broken by its Pod, most likely.
    let broken = Pod { updated_at: Some(time(-50)), ..long("a") };
    let mut plan = planned(&strict, &[down("a", 0)], &[broken]);
    assert!(matches!(&plan.next_wave(9)[0].action,
        Action::Change { change: PodAction::UpdateInPlace { spec }, .. } if spec.metadata().is_none()));
}

/// The first template has broken node `a` in second -100, the next one is of second -10.
#[test]
fn strict_two_templates_together_take_no_more_than_max_unavailable_although_the_manager_starts_anew_in_between() {
    let all = [down("a", -100), node("b")];
    let in_place = spec(json!({"strict": true, "maxUnavailable": 1, "rollingUpdateType": "InPlaceIfPossible"}));
    let updated = Pod { created: Some(time(-10_000)), updated_at: Some(time(0)), ..unready(pod("a")) };
    let replaced = unready(pod("a"));
    for (what, now) in [("updated in place", &updated), ("replaced", &replaced)] {
        let second = planned(&in_place, &all, &[now.clone(), old("b")]);
        assert_eq!(second.outages["a"].came, Came::Meanwhile, "{what}");
        let besides = Besides { outages: second.outages.clone(), ..Besides::default() };
        assert_eq!(texts(second), NONE, "{what}: by the second template");
        let then = Pod { name: "o-a".into(), hash: OLD.into(), is_new: false, ..now.clone() };
        let third = |besides: &Besides| texts(observing(&in_place, &all, &[then.clone(), old("b")], besides, plan));
        assert_eq!(third(&besides), ["update o-a main=i:2"], "{what}: it takes the only place under the third one");
        assert_eq!(third(&Besides::default()), ["update o-a main=i:2"], "{what}: and for a third manager");
    }
    let strict = spec(json!({"strict": true, "maxUnavailable": 1}));
    let gone = planned(&strict, &all, &[old("b")]);
    assert!(
        matches!(&gone.actions[0], Action::Create { not_ready_since: None, .. }),
        "it says nothing that is not known"
    );
    assert_eq!(gone.outages["a"].came, Came::Meanwhile);
    assert_eq!(texts(gone), ["create a"]);
    let going = terminating(Pod { created: Some(time(-10_000)), ..unready(old("a")) });
    assert_eq!(texts(planned(&strict, &all, &[going, old("b")])), NONE);
    let mut hooks = hooked(&["preDelete"]);
    hooks["strict"] = true.into();
    let held_back = Pod { created: Some(time(-10_000)), ..unready(in_state(held(old("a")), State::PreparingDelete)) };
    assert_eq!(of(hooks, &all, &[held_back, old("b")]), NONE, "nobody knows which template that was announced for");
}

#[test]
fn strict_a_node_that_breaks_by_a_clock_that_is_behind_keeps_its_slot_under_this_template_and_the_next() {
    let strict = spec(json!({"strict": true, "maxUnavailable": 1, "rollingUpdateType": "InPlaceIfPossible"}));
    // The manager has seen it break, in second 10; its kubelet says that this was in second -50.
    let all = [Node { saw_outage_begin: true, ..down("a", -50) }, node("b")];
    let updated = Pod { created: Some(time(-10_000)), updated_at: Some(time(0)), ..unready(pod("a")) };
    // It was made in an earlier outage, by the clock of the node controller.
    let noted = Pod { made_not_ready: Some(time(-20).as_second()), ..updated.clone() };
    for now in [updated, noted, unready(pod("a"))] {
        let first = planned(&strict, &all, &[now.clone(), old("b")]);
        assert_eq!(first.outages["a"].came, Came::Meanwhile);
        let besides = Besides { outages: first.outages.clone(), ..Besides::default() };
        assert_eq!(texts(first), NONE);
        let then = Pod { name: "o-a".into(), hash: OLD.into(), is_new: false, ..now };
        let next = observing(&strict, &all, &[then, old("b")], &besides, plan);
        assert_eq!(texts(next), ["update o-a main=i:2"], "it takes the only place");
    }
}

#[test]
fn strict_a_node_without_a_pod_that_was_lost_before_there_was_a_template_to_break_it_holds_no_slot() {
    let strict = json!({"strict": true, "maxUnavailable": 1});
    let lost = [repelling("a", -100), node("b")];
    assert_eq!(of(strict.clone(), &lost, &[old("b")]), NONE, "nobody knows whether it had one");
    let mut made = strict.clone();
    made["created"] = (-90).into();
    assert_eq!(of(made, &lost, &[old("b")]), ["delete o-b"], "the set is younger");
    let since = time(-100).as_second();
    let seen = |came: Came| {
        let outages = [("a".to_owned(), Outage { since, came })].into();
        let besides = Besides { outages, ..Besides::default() };
        texts(observing(&spec(strict.clone()), &lost, &[old("b")], &besides, plan))
    };
    assert_eq!(seen(Came::Before), ["delete o-b"]);
    assert_eq!(seen(Came::Later), ["delete o-b"], "for an earlier template, and a user has deleted its Pod since");
    assert_eq!(seen(Came::Meanwhile), NONE);
}

#[test]
fn strict_a_grace_period_of_updates_in_place_is_no_time_in_which_their_pods_have_worked() {
    let first = |grace: i64| {
        let fields = json!({"strict": true, "rollingUpdateType": "InPlaceIfPossible", "grace": grace});
        let updated = Pod { created: Some(time(-10_000)), updated_at: Some(time(-900)), ..unready(old("a")) };
        texts(planned(&spec(fields), &[down("a", -100), node("b")], &[updated, old("b")])).remove(0)
    };
    assert_eq!(first(0), "update o-b main=i:2", "for thirteen minutes");
    assert_eq!(first(300), "update o-a main=i:2", "for eight: it takes the only place");
}

#[test]
fn strict_pods_on_nodes_that_nobody_hears_of_are_not_touched_and_go_one_by_one_when_these_are_back() {
    for fields in [json!({"strict": true, "maxUnavailable": 2}), json!({"perZone": 2, "maxUnavailable": 9})] {
        let names_of_all: Vec<String> = (0..20).map(|i| format!("n{i:02}")).collect();
        let long = |name: &String| Pod { created: Some(time(-10_000)), ..old(name) };
        let ready: Vec<Pod> = names_of_all.iter().map(long).collect();
        let pods: Vec<Pod> = ready.iter().cloned().map(unready).collect();
        let away: Vec<Node> = names_of_all.iter().map(|name| silent(name, 0)).collect();
        assert_eq!(of(fields.clone(), &away, &pods), NONE, "{fields}");
        let marked: Vec<Pod> = pods.iter().cloned().map(specified).collect();
        assert_eq!(of(fields.clone(), &away, &marked), NONE, "{fields}: marks of a user wait too");
        let plan = planned(&spec(fields.clone()), &away, &ready);
        assert_eq!(plan.wait.unwrap().message, "Pod o-n19 is updated when its node n19 is Ready", "{fields}");
        let back: Vec<Node> = names_of_all.iter().map(|name| node(name)).collect();
        assert_eq!(of(fields.clone(), &back, &pods), ["delete o-n19", "delete o-n18"], "{fields}");
    }
    let built_in = [silent("a", 0), silent("b", 0)];
    let pods = names(&["a", "b"], |node| unready(old(node)));
    assert_eq!(of(json!({}), &built_in, &pods).len(), 2, "without limits of ours as in the built-in DaemonSet");
    // Its Pod has probably broken it: it holds a slot anyway.
    let strict = json!({"strict": true, "maxUnavailable": 1});
    let young = Pod { created: Some(time(-60)), ..unready(old("a")) };
    assert_eq!(of(strict, &[silent("a", 0), node("b")], &[young, old("b")]), ["delete o-a"]);
}

#[test]
fn strict_with_a_surge_what_was_lost_before_gets_a_second_pod_a_few_at_a_time() {
    let strict = json!({"strict": true, "maxSurge": 1});
    let long = |name: &str| Pod { created: Some(time(-10_000)), ..unready(old(name)) };
    let lost = [down("a", 0), down("b", 0)];
    assert_eq!(of(strict.clone(), &lost, &[long("a"), long("b")]), ["create b"]);
    let beside = Pod { made_not_ready: Some(time(0).as_second()), is_bound: false, ..unready(pod("b")) };
    assert_eq!(of(strict, &lost, &[long("a"), long("b"), beside]), ["delete o-b"], "a waits");
}

#[test]
fn strict_a_hook_that_lets_go_on_a_node_that_was_lost_before_needs_no_other_place() {
    let mut fields = hooked(&["preDelete"]);
    fields["strict"] = true.into();
    let long = |pod: Pod| Pod { created: Some(time(-10_000)), ..unready(pod) };
    let all = [down("a", 0), node("b")];
    let about = |of_a: Pod| of(fields.clone(), &all, &[long(of_a), pod("b")]);
    assert_eq!(about(held(old("a"))), ["announce deletion o-a"]);
    assert_eq!(about(in_state(old("a"), State::PreparingDelete)), ["delete o-a"]);
}

#[test]
fn strict_a_node_that_is_lost_while_a_hook_holds_its_pod_keeps_its_slot() {
    let mut fields = hooked(&["preDelete"]);
    fields["strict"] = true.into();
    let held_back = Pod { created: Some(time(-10_000)), ..unready(in_state(held(old("a")), State::PreparingDelete)) };
    assert_eq!(of(fields, &[repelling("a", 5), node("b")], &[held_back, old("b")]), NONE);
}

#[test]
fn strict_a_mark_of_a_user_on_a_node_that_was_lost_before_waits_for_no_other_node() {
    let strict = json!({"strict": true, "maxUnavailable": 2});
    let marked = Pod { created: Some(time(-10_000)), ..unready(specified(old("a"))) };
    assert_eq!(of(strict, &[down("a", 0), node("b")], &[marked, old("b")]).len(), 2);
}

#[test]
fn after_a_rollback_what_was_lost_before_it_is_still_told_by_the_newest_revision() {
    let made = |second: i64| KnownRevision { created: Some(time(second)), ..KnownRevision::default() };
    assert_eq!(not_begun_at(&[made(-100), made(-10), made(-50)]), Some(time(-10)));
    assert_eq!(not_begun_at(&[KnownRevision::default()]), None);
}

#[test]
fn strict_a_node_that_repels_pods_because_it_is_not_ready_keeps_its_slot_and_gets_none() {
    let lost = [repelling("a", 5), node("b"), node("c")];
    for (fields, slot) in [
        (json!({"strict": true, "maxUnavailable": 1}), vec![unready(pod("a"))]),
        (json!({"strict": true, "maxUnavailable": 1}), vec![terminating(old("a"))]),
        (json!({"strict": true, "maxUnavailable": 1}), vec![]),
        (json!({"perZone": 1, "maxUnavailable": 3}), vec![unready(pod("a"))]),
        (json!({"perZone": 1, "maxUnavailable": 3}), vec![]),
    ] {
        let pods: Vec<Pod> = slot.into_iter().chain(names(&["b", "c"], old)).collect();
        assert_eq!(of(fields.clone(), &lost, &pods), NONE, "{fields}: {pods:?}");
    }
    // It was lost before: it holds no slot, and its Pod is not touched while nothing could follow it.
    let long = Pod { created: Some(time(-10_000)), ..unready(old("a")) };
    let strict = json!({"strict": true, "maxUnavailable": 1});
    assert_eq!(of(strict.clone(), &lost, &[long.clone(), old("b"), old("c")]), ["delete o-c"]);
    assert_eq!(of(strict.clone(), &lost, &[long, pod("b"), pod("c")]), NONE);
    // It joins, and has not had a Pod yet.
    let joins = [Node { is_joining: true, ..repelling("a", 5) }, node("b")];
    assert_eq!(of(strict.clone(), &joins, &[old("b")]), ["delete o-b"]);
    let was_ready = [Node { saw_outage_begin: true, ..joins[0].clone() }, node("b")];
    assert_eq!(of(strict.clone(), &was_ready, &[old("b")]), NONE, "it was Ready before, and may have had one");
    let earlier = [Node { is_joining: true, ..repelling("a", -100) }, node("b")];
    assert_eq!(of(strict.clone(), &earlier, &[old("b")]), NONE, "it may have had one of an earlier template");
    let share = json!({"strict": true, "maxUnavailable": "50%"});
    let broken = [repelling("a", 5), repelling("b", 5), node("c"), node("d")];
    let pods = [unready(pod("a")), unready(pod("b")), old("c"), old("d")];
    assert_eq!(of(share, &broken, &pods), NONE, "half of four");
    let plan = planned(&spec(strict), &[repelling("a", 5), node("b")], &[pod("b")]);
    assert_eq!(plan.wait.unwrap().message, "Node a is not Ready, and gets its Pod when it is");
}

#[test]
fn strict_the_status_counts_a_node_that_repels_pods_because_it_is_not_ready() {
    let (spec, all) = (spec(json!({"strict": true})), [repelling("a", 5), repelling("b", 5), node("c")]);
    let pods = [unready(pod("a")), pod("c")];
    let (counts, progress) = observing(&spec, &all, &pods, &Besides::default(), |observed| {
        let counts = status::counts(observed);
        (counts, status::progress(observed, &counts, &plan(observed).outline()))
    });
    let want = status::Counts { desired: 3, current: 2, misscheduled: 0, ready: 1, available: 1, updated: 2 };
    assert_eq!(counts, want);
    assert!(matches!(&progress, Progress::Waiting { reason, .. } if reason == "PodNotReady"), "{progress:?}");
}

#[test]
fn a_node_that_is_not_ready_counts_where_limits_of_ours_do_and_another_taint_takes_it_out() {
    let node = |fields: Value, taints: Value, created: &str| {
        let view: NodeView = serde_json::from_value(json!({
            "metadata": {"name": "a", "creationTimestamp": created, "labels": {"zone": "z"}}, "spec": {"taints": taints},
            "status": {"conditions": [{"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-02T00:00:00Z"}]}}))
        .unwrap();
        Node::of(&view, &spec(fields))
    };
    let old = "2026-01-01T00:00:00Z";
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let taints = json!([{"key": key, "effect": "NoSchedule"}, {"key": key, "effect": "NoExecute"}]);
        let built_in = node(json!({}), taints.clone(), old);
        assert!(!built_in.counts() && built_in.fit.should_continue && built_in.not_ready_since.is_none(), "{key}");
        for fields in [json!({"strict": true}), json!({"perZone": 1})] {
            let strict = node(fields.clone(), taints.clone(), old);
            assert!(strict.counts() && !strict.fit.should_run && strict.not_ready_since.is_some(), "{key}: {fields}");
            assert!(!strict.is_joining && node(fields, taints.clone(), "2026-01-01T23:59:00Z").is_joining, "{key}");
        }
        let mut more = taints.clone();
        more.as_array_mut().unwrap().push(json!({"key": "dedicated", "effect": "NoSchedule"}));
        assert!(!node(json!({"strict": true}), more, old).counts(), "{key}");
    }
}

#[test]
fn a_zone_never_loses_more_than_its_limit() {
    let zone = |name: &str| Node { zone: name[..1].into(), ..node(name) };
    let all = ["a1", "a2", "b1", "b2"].map(zone);
    let pods = names(&["a1", "a2", "b1", "b2"], old);
    let fields = json!({"perZone": 1, "maxUnavailable": 4});
    assert_eq!(of(fields.clone(), &all, &pods), ["delete o-b2", "delete o-a2"]);
    let down = [unready(old("a1")), unready(old("a2")), unready(pod("b1")), old("b2")];
    assert_eq!(of(fields, &all, &down), ["delete o-a2"], "what is down goes one by one too, and b has lost one");
}

#[test]
fn a_node_that_is_not_ready_counts_as_in_the_built_in_daemon_set_without_limits_of_ours() {
    let lost = [down("a", -500), node("b")];
    assert_eq!(of(json!({}), &lost, &[unready(pod("a")), old("b")]), NONE);
    assert_eq!(of(json!({}), &lost, &[unready(old("a")), old("b")]), ["delete o-a"]);
}

#[test]
fn counts_are_of_nodes() {
    let all = [node("a"), node("b"), node("c"), node("d"), tainted("x"), unfit("y")];
    let pods = [pod("a"), unready(pod("b")), old("c"), pod("x"), terminating(pod("y"))];
    let counts = observing(&spec(json!({})), &all, &pods, &Besides::default(), status::counts);
    let want = status::Counts { desired: 4, current: 3, misscheduled: 2, ready: 2, available: 2, updated: 2 };
    assert_eq!(counts, want);
    let pair = [old("a"), Pod { created: Some(time(5)), ..unready(pod("a")) }];
    let surging = observing(&spec(json!({"maxSurge": 1})), &nodes(&["a"]), &pair, &Besides::default(), status::counts);
    assert_eq!((surging.available, surging.updated), (1, 0), "the one that serves is looked at");
}

#[test]
fn how_the_set_is() {
    let progress = |fields: Value, nodes: &[Node], pods: &[Pod]| {
        observing(&spec(fields), nodes, pods, &Besides::default(), |observed| {
            status::progress(observed, &status::counts(observed), &plan(observed).outline())
        })
    };
    let all = nodes(&["a", "b"]);
    assert_eq!(progress(json!({}), &all, &names(&["a", "b"], pod)), Progress::Available);
    assert_eq!(progress(json!({}), &[], &[]), Progress::Available, "no node fits");
    let held = |fields: Value| match progress(fields, &all, &[old("a"), pod("b")]) {
        Progress::Held { reason, .. } => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(held(json!({"partition": 1})), "Partition");
    assert_eq!(held(json!({"paused": true})), "Paused");
    assert_eq!(held(json!({"onDelete": true})), "OnDelete");
    let Progress::Waiting { reason, message } = progress(json!({}), &all, &[pod("a"), unready(pod("b"))]) else {
        panic!()
    };
    assert_eq!((reason.as_str(), message.as_str()), ("PodNotReady", "Pod p-b on node b is not Ready"));
    let Progress::Waiting { reason, .. } = progress(json!({}), &all, &[old("a"), pod("b")]) else { panic!() };
    assert_eq!(reason, "Progressing");
    let young = [fresh(pod("a"), 9)];
    let waits = progress(json!({"minReadySeconds": 10}), &nodes(&["a"]), &young);
    assert!(matches!(&waits, Progress::Waiting { reason, .. } if reason == "PodNotAvailable"), "{waits:?}");
    let not_wanted = progress(json!({"minReadySeconds": 10}), &[tainted("a")], &young);
    assert_eq!(not_wanted, Progress::Available, "it stays where it need not run");
    assert_eq!(
        progress(json!({}), &[tainted("a")], &[terminating(pod("a"))]),
        Progress::Available,
        "it goes from there"
    );
    let mut besides = Besides::default();
    besides.failures.note("a", at(0).mono);
    let failed = observing(&spec(json!({})), &[tainted("a")], &[failed(pod("a"))], &besides, plan);
    assert_eq!((failed.wait, failed.look), (None, Some(std::time::Duration::from_secs(1))));
    let scaled = progress(json!({"partitionedScaling": true, "partition": 1}), &all, &[pod("a")]);
    assert!(matches!(scaled, Progress::Held { .. }), "{scaled:?}");
}
