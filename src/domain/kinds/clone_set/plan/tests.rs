//! Tables over the plans of scaling and updating.

use serde_json::{Value, json};

use super::{
    super::{room::Charge, scale::*, update::*},
    *,
};
use crate::domain::pod::order::Phase;

const OLD: &str = "web-1";
const NEW: &str = "web-2";

fn pod(name: &str, revision: &str) -> Pod {
    Pod {
        facts: Candidate {
            name: name.into(),
            node: "n".into(),
            phase: Phase::Running,
            available: true,
            ready: true,
            ..Candidate::default()
        },
        revision: revision.into(),
        state: State::Normal,
        is_ready_now: true,
        ..Pod::default()
    }
}
fn broken(name: &str, revision: &str) -> Pod {
    let mut pod = pod(name, revision);
    pod.facts.available = false;
    pod.facts.ready = false;
    pod.is_ready_now = false;
    pod
}
fn labelled(mut pod: Pod, labels: Value) -> Pod {
    pod.facts.labels = serde_json::from_value(labels).unwrap();
    pod
}
fn spec_of(spec: Value) -> Spec {
    let mut object = json!({"metadata": {"name": "web"}, "spec": {"replicas": 3, "selector": {}, "template": {},
        "updateStrategy": {"type": "InPlaceIfPossible", "maxUnavailable": 1}}});
    json_patch::merge(&mut object["spec"], &spec);
    Spec::of(&serde_json::from_value(object).unwrap())
}
/// What is planned, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Planned {
    Cancel(Cancel),
    Create(Create),
    Delete { pod: String, held: bool },
    Update { pod: String, back: bool },
    CancelUpdate(String),
}
fn planned_scale(observed: &ObservedCloneSet<'_>) -> Result<(Vec<Planned>, i32), Invalid> {
    let mut plan = scale(observed)?;
    let mut planned: Vec<Planned> = plan.cancels.into_iter().map(Planned::Cancel).collect();
    planned.extend(plan.create.map(Planned::Create));
    for Deletion { pod, held } in plan.deletions {
        if plan.room.enter(Charge::of(pod)) {
            planned.push(Planned::Delete { pod: pod.facts.name.clone(), held });
        }
    }
    Ok((planned, plan.limited))
}
fn planned_update(observed: &ObservedCloneSet<'_>) -> Result<Vec<Planned>, Invalid> {
    let mut plan = update(observed)?;
    let mut planned: Vec<Planned> =
        plan.cancels.iter().map(|pod| Planned::CancelUpdate(pod.facts.name.clone())).collect();
    for pod in plan.candidates {
        if plan.room.enter(Charge::of(pod)) {
            planned.push(Planned::Update { pod: pod.facts.name.clone(), back: plan.back });
        }
    }
    Ok(planned)
}
fn with<T>(spec: &Spec, pods: &[Pod], rule: impl Fn(&ObservedCloneSet<'_>) -> T) -> T {
    let pods: Vec<Arc<Pod>> = pods.iter().cloned().map(Arc::new).collect();
    rule(&ObservedCloneSet {
        spec,
        pods: &pods,
        update_revision: NEW,
        current_revision: OLD,
        excludes_preparing_delete: false,
        constraints: &[],
        gates: Gates::default(),
    })
}
fn scaled(spec: Value, pods: &[Pod]) -> Vec<Planned> {
    with(&spec_of(spec), pods, planned_scale).unwrap().0
}
fn updated(spec: Value, pods: &[Pod]) -> Vec<String> {
    let actions = with(&spec_of(spec), pods, planned_update).unwrap();
    actions
        .into_iter()
        .map(|action| match action {
            Planned::Update { pod, back: false } => pod,
            other => panic!("{other:?}"),
        })
        .collect()
}
fn create(current: usize, update: usize) -> Planned {
    Planned::Create(Create { current, update })
}
fn deleted(name: &str) -> Planned {
    Planned::Delete { pod: name.into(), held: false }
}
fn held(name: &str) -> Planned {
    Planned::Delete { pod: name.into(), held: true }
}
fn kept(name: &str) -> Planned {
    Planned::Cancel(Cancel::Deletion { pod: name.into(), state: State::PreparingNormal })
}
fn taken_back(name: &str, label: bool) -> Planned {
    Planned::Cancel(Cancel::Mark { pod: name.into(), label })
}
fn announced(name: &str, revision: &str) -> Pod {
    Pod { state: State::PreparingDelete, ..labelled(broken(name, revision), json!({"hold": "true"})) }
}

#[test]
fn missing_pods_are_created_on_both_sides_of_a_partition() {
    assert_eq!(scaled(json!({}), &[]), [create(0, 3)]);
    let partition = json!({"updateStrategy": {"partition": 2}});
    assert_eq!(scaled(partition, &[]), [create(2, 1)]);
    assert_eq!(scaled(json!({}), &[pod("a", NEW), pod("b", NEW), pod("c", NEW)]), []);
}

#[test]
fn gate_preparing_update_as_update_counts_pods_that_wait_for_their_update_as_new() {
    let set = spec_of(json!({"replicas": 2, "updateStrategy": {"partition": 1}}));
    let waiting = [Pod { state: State::PreparingUpdate, ..pod("a", OLD) }];
    for (on, want) in [(false, (0, 1)), (true, (1, 0))] {
        let gates = Gates { preparing_update_as_update: on, ..Gates::default() };
        let planned =
            with(&set, &waiting, |observed| planned_scale(&ObservedCloneSet { gates, ..observed.clone() })).unwrap().0;
        assert_eq!(planned, [create(want.0, want.1)], "{on}");
    }
}

#[test]
fn case_16_a_blocked_scale_up_blocks_neither_updates_nor_deletions() {
    let spec = json!({"replicas": 5, "scaleStrategy": {"maxUnavailable": 1}});
    let mut marked = broken("b", NEW);
    marked.is_specified = true;
    let pods = [broken("a", OLD), marked, pod("c", OLD)];
    assert_eq!(with(&spec_of(spec.clone()), &pods, planned_scale), Ok((vec![deleted("b")], 2)));
    assert_eq!(with(&spec_of(spec), &pods[..1], planned_scale), Ok((vec![], 4)));
}

#[test]
fn case_17_ready_pods_are_protected_and_broken_ones_go_freely() {
    let mark = |mut pod: Pod| {
        pod.is_specified = true;
        pod
    };
    let pods = [mark(pod("a", NEW)), mark(pod("b", NEW)), mark(broken("c", NEW))];
    assert_eq!(scaled(json!({}), &pods), [deleted("c")], "maxUnavailable 1, and one is down");
    let two = json!({"updateStrategy": {"maxUnavailable": 2}});
    assert_eq!(scaled(two, &pods), [deleted("c"), deleted("a")], "what is down goes first");
    // Found by a random history: a surge Pod that is not up yet is no reason to take one down that is.
    let surge = json!({"replicas": 2, "updateStrategy": {"maxUnavailable": 0, "maxSurge": 1}});
    assert_eq!(scaled(surge, &[mark(pod("a", OLD)), pod("b", OLD), mark(broken("c", NEW))]), [deleted("c")]);
}

#[test]
fn a_hook_holds_the_deletion() {
    let spec = json!({"replicas": 0, "updateStrategy": {"maxUnavailable": "100%"},
        "lifecycle": {"preDelete": {"labelsHandler": {"hold": "true"}}}});
    let hooked = labelled(pod("a", NEW), json!({"hold": "true"}));
    assert_eq!(scaled(spec.clone(), std::slice::from_ref(&hooked)), [held("a")]);
    let announced = announced("a", NEW);
    assert_eq!(scaled(spec.clone(), std::slice::from_ref(&announced)), [], "nothing to say twice");
    assert_eq!(scaled(spec, &[labelled(announced, json!({}))]), [deleted("a")]);
}

#[test]
fn decision_24_a_withdrawn_deletion_returns_the_pod_unless_it_was_made_not_ready() {
    let announced = Pod { state: State::PreparingDelete, ..labelled(pod("a", NEW), json!({"hold": "true"})) };
    let hook = |not_ready: bool| json!({"replicas": 1, "lifecycle": {"preDelete": {"labelsHandler": {"hold": "true"}, "markPodNotReady": not_ready}}});
    assert_eq!(scaled(hook(false), std::slice::from_ref(&announced)), [kept("a")]);
    assert_eq!(scaled(hook(true), std::slice::from_ref(&announced)), []);
    let specified = Pod { is_specified: true, ..announced };
    assert_eq!(scaled(hook(false), &[specified]), [], "it was asked for");
}

#[test]
fn shortfall_24_a_deletion_is_taken_back_for_the_surge_too() {
    let hook = json!({"preDelete": {"labelsHandler": {"hold": "true"}}});
    let strategy = |surge: i32| json!({"lifecycle": hook, "updateStrategy": {"maxUnavailable": 1, "maxSurge": surge}});
    let announced = Pod { state: State::PreparingDelete, ..labelled(pod("a", OLD), json!({"hold": "true"})) };
    let pods = [announced, pod("b", OLD), pod("c", OLD), pod("d", NEW)];
    assert_eq!(scaled(strategy(1), &pods), [kept("a")]);
    assert_eq!(scaled(strategy(0), &pods), [], "there is no room for it, and nobody goes in its place");
}

#[test]
fn a_scale_down_takes_old_pods_first_and_the_least_useful_of_them() {
    let spec = json!({"replicas": 2, "updateStrategy": {"maxUnavailable": 5, "partition": 1}});
    let pods = [pod("a", OLD), broken("b", OLD), pod("c", NEW), pod("d", NEW)];
    assert_eq!(scaled(spec, &pods), [deleted("b"), deleted("c")]);
}

#[test]
fn updates_stay_within_max_unavailable() {
    let pods = [pod("a", OLD), pod("b", OLD), pod("c", OLD)];
    assert_eq!(updated(json!({}), &pods), ["a"]);
    assert_eq!(updated(json!({"updateStrategy": {"maxUnavailable": "100%"}}), &pods), ["a", "b", "c"]);
    assert_eq!(updated(json!({"updateStrategy": {"partition": 2, "maxUnavailable": 3}}), &pods), ["a"]);
    assert_eq!(updated(json!({"updateStrategy": {"paused": true}}), &pods), Vec::<String>::new());
    assert_eq!(updated(json!({"updateStrategy": {"type": "OnDelete"}}), &pods), Vec::<String>::new());
}

#[test]
fn case_15_a_bad_image_does_not_spread() {
    assert_eq!(updated(json!({}), &[broken("a", NEW), pod("b", OLD), broken("c", OLD)]), Vec::<String>::new());
    let two = json!({"updateStrategy": {"maxUnavailable": 2}});
    assert_eq!(updated(two, &[broken("a", NEW), pod("b", OLD), broken("c", OLD)]), ["c"], "no extra budget for c");
}

#[test]
fn case_01_a_pod_in_its_grace_is_left_alone() {
    let pods = [Pod { is_in_grace: true, ..pod("a", OLD) }, pod("b", OLD), pod("c", OLD)];
    assert_eq!(updated(json!({}), &pods), ["b"]);
    let updated_state = Pod { state: State::Updated, ..pods[0].clone() };
    assert_eq!(updated(json!({}), &[updated_state, pods[1].clone(), pods[2].clone()]), ["a"], "case 2");
}

#[test]
fn case_03_a_pod_that_waits_for_an_update_that_is_not_wanted_any_more_is_cancelled() {
    let waiting = |name: &str| Pod { state: State::PreparingUpdate, ..pod(name, OLD) };
    let pods = [waiting("a"), waiting("b"), pod("c", OLD)];
    let planned = |strategy: Value| with(&spec_of(json!({"updateStrategy": strategy})), &pods, planned_update).unwrap();
    let cancelled = |name: &str| Planned::CancelUpdate(name.into());
    let in_place = |name: &str| Planned::Update { pod: name.into(), back: false };
    assert_eq!(planned(json!({"partition": 3})), [cancelled("a"), cancelled("b")]);
    assert_eq!(planned(json!({"partition": 2})), [cancelled("b"), in_place("a")]);
    assert_eq!(planned(json!({"type": "OnDelete"})), [cancelled("a"), cancelled("b")]);
    assert_eq!(planned(json!({"paused": true})), []);
    assert_eq!(planned(json!({"maxUnavailable": 2})), [in_place("a"), in_place("b")]);
}

#[test]
fn priorities_come_first_and_waiting_pods_before_all() {
    let order = |strategy: Value, pods: &[Pod]| {
        updated(json!({"updateStrategy": {"maxUnavailable": "100%", "priorityStrategy": strategy}}), pods)
    };
    let pods = [
        labelled(pod("a", OLD), json!({"x": "1"})),
        labelled(pod("b", OLD), json!({"x": "2"})),
        Pod { state: State::PreparingUpdate, ..labelled(pod("c", OLD), json!({"x": "0"})) },
    ];
    assert_eq!(order(json!({"orderPriority": [{"orderedKey": "x"}]}), &pods), ["c", "b", "a"]);
    let weights = json!({"weightPriority": [{"weight": 5, "matchSelector": {"matchLabels": {"x": "2"}}}]});
    assert_eq!(order(weights, &pods), ["c", "b", "a"]);
}

#[test]
fn shortfall_04_an_unreadable_number_holds_everything() {
    let odd = spec_of(json!({"updateStrategy": {"partition": "half"}}));
    let pods = [pod("a", OLD)];
    let why = "spec.updateStrategy.partition: \"half\" is neither a whole number nor a percentage such as \"20%\"";
    assert_eq!(with(&odd, &pods, planned_update), Err(Invalid(why.into())));
    assert_eq!(with(&odd, &pods, planned_scale), Err(Invalid(why.into())));
}

fn fresh(name: &str, revision: &str) -> Pod {
    let mut pod = pod(name, revision);
    pod.facts.available = false;
    pod
}
fn marked(pod: Pod) -> Pod {
    Pod { is_specified: true, ..pod }
}
fn marked_for(pod: Pod, revision: &str) -> Pod {
    Pod { own_mark: Some(OwnMark { revision: revision.into(), has_label: true }), ..marked(pod) }
}

/// Two Pods, both marked for a bad image, one of them made anew with it and kept down by it, the other kept by its
/// budget; then the template is corrected.
#[test]
fn a_marked_pod_that_waits_for_its_budget_does_not_keep_a_broken_one_from_its_update() {
    let spec = json!({"replicas": 2, "updateStrategy": {"type": "ReCreate", "maxUnavailable": "100%"}});
    let pods = [marked(pod("a", OLD)), broken("b", "web-bad")];
    assert_eq!(scaled(spec.clone(), &pods), [deleted("a")], "it is for the budget to say");
    assert_eq!(updated(spec, &pods), ["b"], "and if it says no, the broken one is replaced all the same");
}

#[test]
fn what_is_down_is_updated_first_among_those_that_are_chosen() {
    let weights = |partition: i32| {
        json!({"updateStrategy": {"partition": partition, "priorityStrategy":
            {"weightPriority": [{"weight": 5, "matchSelector": {"matchLabels": {"x": "1"}}}]}}})
    };
    let pods = [labelled(pod("a", OLD), json!({"x": "1"})), pod("b", OLD), broken("c", OLD)];
    assert_eq!(updated(weights(0), &pods), ["c"]);
    assert_eq!(updated(weights(2), &pods), Vec::<String>::new(), "the partition leaves a alone to be updated");
    // A Pod that its hook holds takes no room from one that is down.
    let hook = json!({"lifecycle": {"inPlaceUpdate": {"labelsHandler": {"hold": "true"}}}});
    let waits = Pod { state: State::PreparingUpdate, ..labelled(broken("a", OLD), json!({"hold": "true"})) };
    assert_eq!(updated(hook, &[waits, pod("b", OLD), broken("c", OLD)]), ["c", "a"], "a goes on waiting");
}

#[test]
fn marks_of_ours_for_a_revision_that_is_not_wanted_any_more_are_taken_back() {
    let recreate = json!({"updateStrategy": {"type": "ReCreate", "maxUnavailable": 3}});
    let pods = [marked_for(pod("a", OLD), "web-bad"), marked_for(pod("b", OLD), NEW), pod("c", OLD)];
    assert_eq!(scaled(recreate.clone(), &pods), [taken_back("a", true)]);
    let on_delete = json!({"updateStrategy": {"type": "OnDelete"}});
    assert_eq!(scaled(on_delete, &pods), [taken_back("a", true), taken_back("b", true)]);
    let mut rest = pods.clone();
    rest[0] = pod("a", OLD);
    assert_eq!(scaled(recreate, &rest), [deleted("b")]);
}

#[test]
fn marks_of_ours_on_pods_that_a_raised_partition_keeps_are_taken_back() {
    let spec = |partition: i32, is_final: bool| {
        let hook = json!({"labelsHandler": {"hold": "true"}, "markPodNotReady": is_final});
        json!({"lifecycle": {"preDelete": hook},
            "updateStrategy": {"type": "ReCreate", "maxUnavailable": 3, "partition": partition}})
    };
    let pods = [marked_for(announced("a", OLD), NEW), marked_for(pod("b", OLD), NEW), pod("c", OLD)];
    assert_eq!(scaled(spec(1, false), &pods), [deleted("b")], "two may be updated");
    assert_eq!(scaled(spec(2, false), &pods), [taken_back("b", true)], "the one that still serves");
    assert_eq!(scaled(spec(3, false), &pods), [taken_back("b", true), taken_back("a", true)]);
    assert_eq!(scaled(spec(3, true), &pods), [taken_back("b", true)], "the other deletion is final");
    // Then: the marks are gone, and one deletion was announced.
    let after = [announced("a", OLD), pod("b", OLD), pod("c", OLD)];
    assert_eq!(scaled(spec(3, false), &after), [kept("a")]);
    assert_eq!(scaled(spec(3, true), &after), []);
    // A user's mark stays, and one of ours for it does not go beside it.
    let of_user = [marked(pod("a", OLD)), marked_for(pod("b", OLD), NEW), pod("c", OLD)];
    assert_eq!(scaled(spec(2, false), &of_user), [taken_back("b", true)]);
    assert_eq!(scaled(spec(3, false), &of_user), [taken_back("b", true)]);
}

#[test]
fn what_could_not_be_taken_back_stops_nothing_else_and_its_pod_stays() {
    let hook = json!({"labelsHandler": {"hold": "true"}});
    let set = |names: &[&str]| {
        spec_of(json!({"replicas": 4, "lifecycle": {"preDelete": hook}, "scaleStrategy": {"podsToDelete": names},
            "updateStrategy": {"type": "ReCreate", "maxUnavailable": 3}}))
    };
    let note = OwnMark { revision: "web-bad".into(), has_label: false };
    let pods = [
        marked_for(pod("a", OLD), "web-bad"),
        marked_for(pod("b", OLD), NEW),
        Pod { own_mark: Some(note), ..marked(pod("c", OLD)) },
    ];
    let refused = [Cancel::Mark { pod: "a".into(), label: true }, Cancel::Mark { pod: "c".into(), label: false }];
    let after = |set: &Spec, pods: &[Pod], refused: &[Cancel]| {
        let pods: Vec<Arc<Pod>> = pods.iter().cloned().map(Arc::new).collect();
        let pods: Vec<Pod> = as_if_cancelled(set, &pods, refused).iter().map(|pod| Pod::clone(pod)).collect();
        with(set, &pods, planned_scale).unwrap().0
    };
    let first = with(&set(&[]), &pods, planned_scale).unwrap().0;
    assert_eq!(first, refused.clone().map(Planned::Cancel));
    assert_eq!(after(&set(&[]), &pods, &refused), [create(0, 1), deleted("b"), deleted("c")]);
    assert_eq!(
        after(&set(&["a"]), &pods, &refused),
        [create(0, 1), deleted("a"), deleted("b")],
        "its user asks for it too"
    );
    // Its hook has let go already, and it is still needed.
    let released = Pod { state: State::PreparingDelete, ..broken("d", NEW) };
    let pods = [released, marked_for(pod("b", OLD), NEW), pod("e", NEW)];
    assert_eq!(with(&set(&[]), &pods, planned_scale).unwrap().0, [kept("d")]);
    let refused = [Cancel::Deletion { pod: "d".into(), state: State::PreparingNormal }];
    assert_eq!(after(&set(&[]), &pods, &refused), [create(0, 1), deleted("b")]);
}

#[test]
fn a_users_mark_stays_whatever_revision_is_wanted() {
    let spec = json!({"updateStrategy": {"type": "ReCreate", "maxUnavailable": 3}});
    assert_eq!(scaled(spec.clone(), &[marked(pod("a", OLD)), pod("b", NEW), pod("c", NEW)]), [deleted("a")]);
    // The user has taken our mark away, or put another one over it: only our note goes.
    let note = OwnMark { revision: "web-bad".into(), has_label: false };
    let over = Pod { own_mark: Some(note), ..marked(pod("a", OLD)) };
    assert_eq!(scaled(spec, &[over, pod("b", NEW), pod("c", NEW)]), [taken_back("a", false)]);
}

#[test]
fn a_pod_that_is_ready_but_not_yet_available_is_charged_once() {
    let canary = [marked(fresh("a", NEW)), pod("b", OLD), pod("c", OLD)];
    assert_eq!(scaled(json!({}), &canary), [deleted("a")], "a bad canary waits for no minReadySeconds");
    let fresh_ones = [marked(fresh("a", NEW)), marked(fresh("b", NEW)), fresh("c", NEW)];
    assert_eq!(scaled(json!({}), &fresh_ones), [deleted("a")], "but those that serve do not go all at once");
    let up = [marked(pod("a", NEW)), fresh("b", NEW), pod("c", NEW)];
    assert_eq!(scaled(json!({}), &up), [], "an available one waits for those that are not yet");
    let back = [fresh("a", "web-bad"), pod("b", NEW), pod("c", NEW)];
    assert_eq!(updated(json!({}), &back), ["a"], "nor does a roll-back");
}

#[test]
fn while_the_number_is_reached_nobody_is_chosen_besides_those_that_wait_for_their_deletion() {
    let hook = json!({"preDelete": {"labelsHandler": {"hold": "true"}}});
    let spec =
        |replicas: i32| json!({"replicas": replicas, "lifecycle": hook, "updateStrategy": {"maxUnavailable": 3}});
    let mut useless = broken("c", NEW);
    useless.facts.node = String::new();
    let pods = [announced("a", NEW), pod("b", NEW), useless];
    assert_eq!(scaled(spec(2), &pods), [], "although another one would be chosen today");
    assert_eq!(scaled(spec(1), &pods), [deleted("c")]);
    assert_eq!(scaled(spec(3), &pods), [kept("a")]);
}

#[test]
fn the_pod_that_is_taken_back_is_the_one_that_would_be_deleted_last() {
    let hook = json!({"preDelete": {"labelsHandler": {"hold": "true"}}});
    let spec = |changes: Value| {
        let mut spec = json!({"replicas": 2, "lifecycle": hook, "updateStrategy": {"maxUnavailable": 3}});
        json_patch::merge(&mut spec, &changes);
        spec
    };
    let cheap = |name: &str| {
        let mut pod = announced(name, NEW);
        pod.facts.deletion_cost = -5;
        pod
    };
    assert_eq!(scaled(spec(json!({})), &[cheap("a"), announced("b", NEW), pod("c", NEW)]), [kept("b")]);
    assert_eq!(scaled(spec(json!({})), &[announced("a", NEW), cheap("b"), pod("c", NEW)]), [kept("a")]);
    // Old ones go first, so they come back last.
    assert_eq!(scaled(spec(json!({})), &[announced("a", OLD), announced("b", NEW), pod("c", NEW)]), [kept("b")]);
    let partition = spec(json!({"updateStrategy": {"partition": 1}}));
    assert_eq!(scaled(partition, &[announced("a", OLD), announced("b", NEW), pod("c", NEW)]), [kept("a")]);
}

#[test]
fn gate_preparing_update_as_update_holds_for_victims_too() {
    let set = spec_of(json!({"replicas": 2, "updateStrategy": {"partition": 1, "maxUnavailable": 3}}));
    // With the gate a is new: one of the new ones is too many, and the old one stays.
    let waiting = Pod { state: State::PreparingUpdate, ..broken("a", OLD) };
    let pods = [waiting, pod("b", OLD), pod("c", NEW)];
    for (on, want) in [(false, "a"), (true, "a")] {
        let gates = Gates { preparing_update_as_update: on, ..Gates::default() };
        let planned =
            with(&set, &pods, |observed| planned_scale(&ObservedCloneSet { gates, ..observed.clone() })).unwrap().0;
        assert_eq!(planned, [deleted(want)], "{on}");
    }
    let mut pods = pods;
    pods[1] = broken("b", OLD);
    pods[1].facts.node = String::new();
    for (on, want) in [(false, "b"), (true, "a")] {
        let gates = Gates { preparing_update_as_update: on, ..Gates::default() };
        let planned =
            with(&set, &pods, |observed| planned_scale(&ObservedCloneSet { gates, ..observed.clone() })).unwrap().0;
        assert_eq!(planned, [deleted(want)], "{on}: b is the only old one then, and the partition keeps it");
    }
}

/// Found by a random history: with the gate they count as new while scaling, so no surge makes room for them.
#[test]
fn gate_preparing_update_as_update_lets_announced_updates_go_on_without_surge() {
    let set = spec_of(json!({"updateStrategy": {"maxUnavailable": 0, "maxSurge": 1}}));
    let waiting = |name: &str| Pod { state: State::PreparingUpdate, ..broken(name, OLD) };
    let pods = [waiting("a"), waiting("b"), pod("c", NEW)];
    let gates = Gates { preparing_update_as_update: true, ..Gates::default() };
    let scaled = with(&set, &pods, |observed| planned_scale(&ObservedCloneSet { gates, ..observed.clone() }));
    assert_eq!(scaled, Ok((vec![], 0)), "no surge");
    let update = |name: &str| Planned::Update { pod: name.into(), back: false };
    let updated = with(&set, &pods, |observed| planned_update(&ObservedCloneSet { gates, ..observed.clone() }));
    assert_eq!(updated, Ok(vec![update("a"), update("b")]));
}

#[test]
fn a_pod_that_waits_for_its_update_is_not_cancelled_because_nothing_can_be_updated_for_one_pass() {
    // One Pod too many for a moment: the new side is complete, so no update is due, but the partition wants it.
    let waiting = Pod { state: State::PreparingUpdate, ..broken("a", OLD) };
    let pods = [waiting, pod("b", NEW), pod("c", NEW), pod("d", NEW)];
    let strategy = |partition: i32| json!({"updateStrategy": {"partition": partition}});
    assert_eq!(with(&spec_of(strategy(0)), &pods, planned_update), Ok(vec![]));
    assert_eq!(with(&spec_of(strategy(1)), &pods, planned_update), Ok(vec![Planned::CancelUpdate("a".into())]));
}

#[test]
fn a_surge_pod_that_is_down_is_updated_although_the_order_puts_it_last() {
    for (replicas, most) in [(1, json!("50%")), (1, json!(0)), (2, json!(0))] {
        let order = json!({"orderPriority": [{"orderedKey": "color"}]});
        let spec = json!({"replicas": replicas,
            "updateStrategy": {"maxUnavailable": most, "maxSurge": 1, "partition": 0, "priorityStrategy": order}});
        let mut pods: Vec<Pod> = (0..replicas).map(|i| pod(&format!("good-{i}"), "web-0")).collect();
        pods.push(labelled(broken("bad", OLD), json!({"color": "a-1"})));
        assert_eq!(updated(spec, &pods), ["bad"], "{replicas} {most}");
    }
}
