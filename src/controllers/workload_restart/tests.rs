//! Tables over the plan: each rule of the object's fields by its name.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::api::wr::WorkloadRestartStatus;
use crate::domain::budgets::disruption::Budget;
use crate::domain::kinds::workload_restart::{
    ObservedPods, PodFacts, RestartPlan, Sidecar, Target, TriggerContent, advance, is_active,
};

const CREATED: &str = "2026-01-01T00:00:00Z";

fn now(seconds: u64) -> Now {
    let created: jiff::Timestamp = CREATED.parse().unwrap();
    Now { wall: created + Duration::from_secs(seconds), mono: Duration::from_secs(100 + seconds) }
}

/// A restart whose only round has begun, with changes merged in.
fn restart(changes: Value) -> WorkloadRestart {
    let mut object = json!({
        "apiVersion": "kruise.rs/v1alpha1", "kind": "WorkloadRestart",
        "metadata": {"name": "roll", "namespace": "ns", "uid": "wr", "generation": 1, "creationTimestamp": CREATED},
        "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
        "status": {"observedGeneration": 1, "round": 1, "startTime": CREATED, "podsCreatedBefore": CREATED, "total": 0,
            "restarted": 0, "restarting": 0, "failed": 0, "skipped": 0},
    });
    json_patch::merge(&mut object, &changes);
    serde_json::from_value(object).unwrap()
}

/// A Pod that is ready and older than the restart, with changes merged in.
fn pod(name: &str, changes: Value) -> PodView {
    serde_json::from_value(pod_object(name, changes)).unwrap()
}

fn pod_object(name: &str, changes: Value) -> Value {
    let mut object = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"), "creationTimestamp": "2025-12-31T00:00:00Z",
            "labels": {"app": "web"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}, {"name": "log"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [
            {"name": "main", "containerID": "c://1", "ready": true, "imageID": ""}, {"name": "log", "containerID": "c://2", "ready": true, "imageID": ""}]},
    });
    json_patch::merge(&mut object, &changes);
    object
}

fn not_ready() -> Value {
    json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}})
}

fn request(status: Value) -> ContainerRecreateRequest {
    let mut object = json!({
        "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
        "metadata": {"name": "r", "namespace": "ns", "labels": {}}, "spec": {"podName": "p", "containers": [{"name": "main"}]},
    });
    json_patch::merge(&mut object, &status);
    serde_json::from_value(object).unwrap()
}

fn in_flight() -> ContainerRecreateRequest {
    request(json!({"status": {"phase": "Recreating"}}))
}
fn succeeded() -> ContainerRecreateRequest {
    request(
        json!({"status": {"phase": "Completed", "containerRecreateStates": [{"name": "main", "phase": "Succeeded"}]}}),
    )
}
fn failed() -> ContainerRecreateRequest {
    request(
        json!({"status": {"phase": "Completed", "containerRecreateStates": [{"name": "main", "phase": "Failed", "message": "crashed"}]}}),
    )
}

/// A Pod with its request.
struct Case {
    pod: PodView,
    request: Option<ContainerRecreateRequest>,
    busy: bool,
    refused: Option<(u32, Duration)>,
    ready_for: Duration,
    refreshed: Option<Duration>,
    sidecars: Option<Vec<Sidecar>>,
}

fn plain(pod: PodView) -> Case {
    let ready_for = Duration::from_secs(3600);
    Case { pod, request: None, busy: false, refused: None, ready_for, refreshed: None, sidecars: None }
}
fn with(pod: PodView, request: ContainerRecreateRequest) -> Case {
    Case { request: Some(request), ..plain(pod) }
}
fn old(count: usize) -> Vec<Case> {
    (0..count).map(|i| plain(pod(&format!("web-{i}"), json!({})))).collect()
}

struct World {
    restart: WorkloadRestart,
    cases: Vec<Case>,
    target: Target,
    budgets: Vec<Budget>,
    age: u64,
}

fn world(spec: Value, cases: Vec<Case>) -> World {
    let target = Target::Known { desired: None, ordinals: true };
    World { restart: restart(json!({"spec": spec})), cases, target, budgets: Vec::new(), age: 0 }
}

impl World {
    fn plan(&self) -> RestartPlan {
        let pods = self.cases.iter().map(|case| PodFacts {
            pod: &case.pod,
            sidecars: case.sidecars.as_deref(),
            request: case.request.as_ref(),
            busy: case.busy,
            refused: case.refused.map(|(times, ago)| (times, ago, "no")),
            ready_for: case.pod.condition_is_true("Ready").then_some(case.ready_for),
            refreshed: case.refreshed,
        });
        let observed = ObservedPods {
            restart: &self.restart,
            spec: &RestartSpec::of(&self.restart),
            target: self.target.clone(),
            pods: pods.collect(),
            budgets: self.budgets.clone(),
            age: Duration::from_secs(self.age),
        };
        advance(&observed, now(self.age))
    }
}

fn begin(restart: &WorkloadRestart, seen: &[TriggerContent], ended: Option<Duration>, now: Now) -> Option<RestartPlan> {
    workload_restart::begin(restart, &RestartSpec::of(restart), seen, ended, now)
}

fn started(plan: &RestartPlan) -> Vec<&str> {
    plan.start.iter().map(|start| start.pod.as_str()).collect()
}

/// Reason of Progressing, and whether the round has ended well or badly.
fn state(plan: &RestartPlan) -> (String, bool, bool) {
    let progressing = plan.status.conditions.iter().find(|c| c.type_ == "Progressing").unwrap();
    (progressing.reason.clone(), plan.status.is_true("Complete"), plan.status.is_true("Failed"))
}

#[test]
fn the_first_look_begins_a_round_and_restarts_nothing_yet() {
    let fresh = restart(json!({"status": null}));
    assert!(is_active(&fresh));
    let plan = begin(&fresh, &[], None, now(3)).unwrap();
    assert_eq!((plan.status.round, plan.requeue), (1, Some(Duration::ZERO)));
    assert_eq!(plan.status.pods_created_before.unwrap().to_string(), CREATED);
    assert_eq!(plan.status.start_time, Some(now(3).wall));
    assert!(plan.start.is_empty() && begin(&restart(json!({})), &[], None, now(3)).is_none());
}

#[test]
fn max_unavailable_is_a_number_or_a_share_rounded_down_but_at_least_one() {
    for (max, pods, want) in
        [(json!(null), 5, 1), (json!(null), 20, 2), (json!(3), 5, 3), (json!("50%"), 5, 2), (json!("1%"), 5, 1)]
    {
        let plan = world(json!({"maxUnavailable": max}), old(pods)).plan();
        assert_eq!(plan.start.len(), want, "{max} of {pods}");
    }
}

#[test]
fn pods_that_are_unavailable_for_any_reason_take_from_max_unavailable() {
    let spec = json!({"maxUnavailable": 2});
    let down = |i: usize| {
        plain(pod(
            &format!("web-{i}"),
            json!({"spec": {"nodeName": ""}, "status": {"conditions": null, "containerStatuses": null}}),
        ))
    };
    let plan = world(spec.clone(), old(3).into_iter().chain([down(3)]).collect()).plan();
    assert_eq!(started(&plan), ["web-2"], "one is not scheduled");
    let mut all_down: Vec<Case> = old(3);
    all_down.extend([down(3), down(4)]);
    let plan = world(spec.clone(), all_down).plan();
    assert_eq!((started(&plan), state(&plan).0.as_str()), (vec![], "WaitingForPods"));
    assert!(
        plan.status.message.contains("2 of 5 Pods are unavailable, spec.maxUnavailable is 2: web-4, web-3"),
        "{}",
        plan.status.message
    );
    let going = plain(pod("web-9", json!({"metadata": {"deletionTimestamp": CREATED}})));
    let mut missing = world(spec, old(3).into_iter().chain([going]).collect());
    missing.target = Target::Known { desired: Some(5), ordinals: true };
    let plan = missing.plan();
    assert!(started(&plan).is_empty() && plan.status.message.contains("2 do not exist"), "{}", plan.status.message);
}

#[test]
fn own_restarts_that_are_still_shown_healthy_take_from_max_unavailable() {
    let mut cases = old(5);
    cases[4].request = Some(in_flight());
    let plan = world(json!({"maxUnavailable": 2}), cases).plan();
    assert_eq!((started(&plan), plan.status.restarting), (vec!["web-3"], 1));
    // until it may no longer be held NotReady
    let mut cases = old(5);
    let held =
        json!({"metadata": {"finalizers": ["crr.apps.kruise.io/unready-acquired"]}, "status": {"phase": "Completed"}});
    cases[4].request = Some(request(held));
    assert_eq!(started(&world(json!({"maxUnavailable": 1}), cases).plan()), Vec::<&str>::new());
    // and those of others
    let mut cases = old(5);
    cases[0].busy = true;
    assert_eq!(started(&world(json!({"maxUnavailable": 1}), cases).plan()), Vec::<&str>::new());
}

#[test]
fn pods_that_are_not_ready_come_first_and_no_more_than_max_unavailable_at_a_time() {
    let mut cases = old(6);
    for case in &mut cases[..3] {
        case.pod = pod(case.pod.name(), not_ready());
    }
    let mut world = world(json!({"maxUnavailable": 2}), cases);
    assert_eq!(started(&world.plan()), ["web-2", "web-1"]);
    world.cases[2].request = Some(in_flight());
    assert_eq!(started(&world.plan()), ["web-1"]);
}

#[test]
fn orders() {
    let at = |name: &str, node: &str, created: &str| {
        plain(pod(name, json!({"metadata": {"creationTimestamp": created}, "spec": {"nodeName": node}})))
    };
    let pods = || {
        vec![
            at("web-10", "n2", "2025-01-01T00:00:03Z"),
            at("web-9", "n1", "2025-01-01T00:00:01Z"),
            at("web-x", "n1", "2025-01-01T00:00:02Z"),
        ]
    };
    let all = |order: Value, ordinals| {
        let mut world = world(json!({"maxUnavailable": 3, "order": order}), pods());
        world.target = Target::Known { desired: None, ordinals };
        started(&world.plan()).join(" ")
    };
    assert_eq!(all(json!("Ordinal"), false), "web-10 web-9 web-x");
    assert_eq!(all(json!("OldestFirst"), true), "web-9 web-x web-10");
    assert_eq!(all(json!("NodeByNode"), true), "web-9 web-x", "one node at a time");
    assert_eq!(
        (all(json!(null), true), all(json!(null), false)),
        ("web-10 web-9 web-x".into(), "web-9 web-x web-10".into())
    );
    let mut cases = pods();
    cases[1].request = Some(in_flight());
    cases[2].request = Some(succeeded());
    let plan = world(json!({"maxUnavailable": 3, "order": "NodeByNode"}), cases).plan();
    assert_eq!(started(&plan), Vec::<&str>::new(), "the first node is not done");
}

#[test]
fn partition_leaves_the_last_pods_as_they_are_until_it_is_lowered() {
    for (partition, want) in [
        (json!(3), "web-4 web-3"),
        (json!("50%"), "web-4 web-3"),
        (json!(9), ""),
        (json!(0), "web-4 web-3 web-2 web-1 web-0"),
    ] {
        let plan = world(json!({"maxUnavailable": 5, "partition": partition}), old(5)).plan();
        assert_eq!(started(&plan).join(" "), want, "{partition}");
    }
    let mut cases = old(5);
    cases[4].request = Some(succeeded());
    let mut world = world(json!({"maxUnavailable": 1, "partition": 4}), cases);
    let plan = world.plan();
    assert_eq!((state(&plan), plan.status.progress.as_str()), (("PartitionReached".into(), false, false), "1/5"));
    world.restart.spec.partition = Some(k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(3));
    assert_eq!(started(&world.plan()), ["web-3"]);
}

#[test]
fn paused_begins_nothing_and_still_counts() {
    let mut cases = old(3);
    cases[2].request = Some(in_flight());
    let mut world = world(json!({"maxUnavailable": 2, "paused": true}), cases);
    let plan = world.plan();
    assert_eq!((started(&plan), state(&plan).0.as_str(), plan.status.restarting), (vec![], "Paused", 1));
    for case in &mut world.cases {
        case.request = Some(succeeded());
    }
    assert!(state(&world.plan()).1, "what was begun before the pause is the end");
}

#[test]
fn pods_created_since_the_begin_need_no_restart() {
    let at = |created: &str| plain(pod("web-0", json!({"metadata": {"creationTimestamp": created}})));
    let plan = world(json!({}), vec![at("2026-01-01T00:00:01Z")]).plan();
    assert_eq!((state(&plan).1, plan.status.skipped, plan.status.progress.as_str()), (true, 1, "1/1"));
    let plan = world(json!({}), vec![at(CREATED)]).plan();
    assert_eq!(started(&plan), ["web-0"], "of the same second: it may be older");
}

#[test]
fn pods_that_went_away_leave_the_count() {
    let gone = with(pod("web-1", json!({"metadata": {"deletionTimestamp": CREATED}})), in_flight());
    let over = with(pod("web-2", json!({"status": {"phase": "Failed"}})), failed());
    // the request has ended before our view of the Pod shows it
    let ended = request(json!({"status": {"phase": "Completed", "message": "pod has gone"}}));
    let plan = world(
        json!({}),
        vec![with(pod("web-0", json!({})), succeeded()), gone, over, with(pod("web-3", json!({})), ended)],
    )
    .plan();
    assert_eq!(
        (state(&plan).1, plan.status.total, plan.status.failed, plan.status.progress.as_str()),
        (true, 1, 0, "1/1")
    );
}

#[test]
fn a_request_that_is_there_is_never_made_again() {
    for request in [in_flight(), succeeded(), request(json!({}))] {
        let plan = world(json!({"maxUnavailable": 3}), vec![with(pod("web-0", json!({})), request)]).plan();
        assert!(plan.start.is_empty() && plan.touch.is_empty());
    }
}

#[test]
fn a_restarted_pod_counts_when_it_has_been_ready_for_min_ready_seconds() {
    let mut cases = old(2);
    cases[1] = with(pod("web-1", json!({})), succeeded());
    cases[1].ready_for = Duration::from_secs(4);
    let mut world = world(json!({"minReadySeconds": 10}), cases);
    let plan = world.plan();
    assert_eq!((started(&plan), state(&plan).0.as_str(), plan.status.restarting), (vec![], "WaitingForReady", 1));
    assert_eq!(plan.requeue, Some(Duration::from_secs(6)));
    world.cases[1].ready_for = Duration::from_secs(10);
    let plan = world.plan();
    assert_eq!((started(&plan), plan.status.restarted), (vec!["web-0"], 1));
    world.cases[1].pod = pod("web-1", not_ready());
    assert_eq!(started(&world.plan()), Vec::<&str>::new(), "not ready again");
}

#[test]
fn containers_are_all_regular_ones_or_those_named_that_a_pod_has() {
    let containers = |spec: Value, pods: Vec<Case>| {
        let plan = world(spec, pods).plan();
        plan.start.into_iter().map(|start| (start.pod, start.containers.join(" "))).collect::<Vec<_>>()
    };
    let mesh = || {
        plain(pod(
            "web-1",
            json!({"spec": {"initContainers": [{"name": "setup"}, {"name": "mesh", "restartPolicy": "Always"}]},
            "status": {"initContainerStatuses": [{"name": "mesh", "containerID": "c://3", "imageID": ""}]}}),
        ))
    };
    assert_eq!(containers(json!({}), vec![mesh()]), [("web-1".into(), "main log".into())]);
    let some = json!({"containers": ["mesh", "main"], "maxUnavailable": 2});
    assert_eq!(
        containers(some, vec![mesh(), plain(pod("web-0", json!({})))]),
        [("web-1".into(), "mesh main".into()), ("web-0".into(), "main".into())]
    );
    let plan =
        world(json!({"containers": ["mesh"]}), vec![with(mesh().pod, succeeded()), plain(pod("web-0", json!({})))])
            .plan();
    assert_eq!((state(&plan).1, plan.status.skipped), (true, 1), "a Pod without any of the names is skipped");
}

#[test]
fn of_a_sidecar_set_only_what_it_put_into_a_pod_is_restarted() {
    let with_sidecars = |name: &str, sidecars: &[(&str, &str)]| {
        let pod = pod(
            name,
            json!({"spec": {"containers": [{"name": "main"}, {"name": "log"}, {"name": "mesh-1"}, {"name": "mesh-2"}]},
            "status": {"containerStatuses": [{"name": "main", "containerID": "c://1", "imageID": ""},
                {"name": "log", "containerID": "c://2", "imageID": ""}, {"name": "mesh-1", "containerID": "c://3", "imageID": ""},
                {"name": "mesh-2", "containerID": "c://4", "imageID": ""}]}}),
        );
        let named = |(name, container): &(&str, &str)| Sidecar { name: (*name).into(), container: (*container).into() };
        Case { sidecars: Some(sidecars.iter().map(named).collect()), ..plain(pod) }
    };
    let pods = || {
        vec![
            with_sidecars("web-2", &[("log", "log"), ("mesh", "mesh-2")]),
            with_sidecars("web-1", &[("mesh", "mesh-1"), ("gone", "gone")]),
            with_sidecars("web-0", &[]),
        ]
    };
    let started = |containers: Value| {
        let plan = world(json!({"maxUnavailable": 3, "containers": containers}), pods()).plan();
        assert_eq!(plan.status.total, 3);
        plan.start.into_iter().map(|start| format!("{}: {}", start.pod, start.containers.join(" "))).collect::<Vec<_>>()
    };
    assert_eq!(started(json!([])), ["web-2: log mesh-2", "web-1: mesh-1"]);
    assert_eq!(started(json!(["mesh"])), ["web-2: mesh-2", "web-1: mesh-1"], "by its name in the SidecarSet");
    assert_eq!(started(json!(["mesh", "mesh-2", "log"])), ["web-2: mesh-2 log", "web-1: mesh-1"], "each once");
    assert_eq!(started(json!(["mesh-2"])), ["web-2: mesh-2"], "that twin alone, where it is at work");
    let plan = world(json!({"containers": ["main"]}), pods()).plan();
    assert_eq!(state(&plan), ("ContainerNotFound".into(), false, true));
    assert_eq!(
        plan.status.message,
        "spec.containers: no Pod has a container named \"main\" that can be restarted; Pod web-2 has log, mesh-2"
    );
    let none = world(json!({}), vec![with_sidecars("web-0", &[])]).plan();
    assert_eq!((state(&none).1, none.status.skipped), (true, 1));
}

#[test]
fn a_container_that_no_pod_has_is_an_error_that_names_it() {
    let plan = world(json!({"containers": ["main", "nope"]}), old(2)).plan();
    assert_eq!(state(&plan), ("ContainerNotFound".into(), false, true));
    assert_eq!(
        plan.status.message,
        "spec.containers: no Pod has a container named \"nope\" that can be restarted; Pod web-1 has main, log"
    );
}

#[test]
fn pods_that_have_not_started_are_skipped() {
    let waiting = json!({"status": {"conditions": null, "containerStatuses": [{"name": "main", "imageID": ""}]}});
    let plan = world(json!({}), vec![plain(pod("web-0", waiting)), with(pod("web-1", json!({})), succeeded())]).plan();
    assert_eq!((state(&plan).1, plan.status.skipped), (true, 1));
}

#[test]
fn failures_up_to_the_threshold_are_borne() {
    let cases = || {
        let mut cases = old(4);
        cases[3] = with(pod("web-3", json!({})), failed());
        cases
    };
    let plan = world(json!({}), cases()).plan();
    assert_eq!(state(&plan), ("FailureThresholdReached".into(), false, true));
    assert_eq!(
        plan.status.message,
        "1 of 4 Pods could not be restarted: web-3: container main: crashed; recreated: none"
    );
    assert!(plan.event.as_ref().unwrap().warning && plan.start.is_empty());
    for (threshold, stops) in [(json!(2), false), (json!("25%"), true), (json!("26%"), false)] {
        let plan = world(json!({"failurePolicy": {"threshold": threshold}}), cases()).plan();
        assert_eq!((state(&plan).2, plan.start.is_empty()), (stops, stops), "{threshold}");
    }
}

#[test]
fn a_refusal_is_tried_again_before_it_is_a_failure() {
    let mut cases = old(1);
    cases[0].refused = Some((2, Duration::from_millis(400)));
    let mut world = world(json!({}), cases);
    let plan = world.plan();
    assert_eq!((started(&plan), plan.requeue), (vec![], Some(Duration::from_millis(600))));
    assert_eq!(state(&plan).0, "RequestsFailing");
    assert!(plan.status.message.contains("refused, and tried again: web-0: no"), "{}", plan.status.message);
    world.cases[0].refused = Some((2, Duration::from_secs(1)));
    assert_eq!(started(&world.plan()), ["web-0"]);
    world.cases[0].refused = Some((3, Duration::ZERO));
    assert_eq!(state(&world.plan()).0, "FailureThresholdReached");
}

#[test]
fn the_deadline_ends_the_round_and_what_was_begun_is_counted_to_its_end() {
    let mut cases = old(3);
    cases[2].request = Some(in_flight());
    let mut world = world(json!({"activeDeadlineSeconds": 60}), cases);
    world.age = 59;
    assert_eq!(world.plan().requeue, Some(Duration::from_secs(1)));
    world.age = 60;
    let plan = world.plan();
    assert_eq!((state(&plan), plan.status.restarting), (("DeadlineExceeded".into(), false, true), 1));
    world.restart.status = Some(plan.status);
    assert!(is_active(&world.restart));
    world.cases[2].request = Some(succeeded());
    let plan = world.plan();
    assert_eq!((state(&plan).0.as_str(), plan.status.restarted, plan.status.restarting), ("DeadlineExceeded", 1, 0));
    assert!(plan.start.is_empty() && plan.event.is_none());
    world.restart.status = Some(plan.status);
    assert!(!is_active(&world.restart));
}

#[test]
fn after_the_end_of_a_round_a_pod_that_was_restarted_is_looked_at_until_it_counts() {
    let mut case = with(pod("web-0", json!({})), succeeded());
    case.ready_for = Duration::from_secs(4);
    let mut world = world(json!({"activeDeadlineSeconds": 60, "minReadySeconds": 10}), vec![case]);
    world.age = 60;
    let plan = world.plan();
    assert_eq!((state(&plan).0.as_str(), plan.status.restarting), ("DeadlineExceeded", 1));
    assert_eq!(plan.requeue, Some(Duration::from_secs(6)));
    world.restart.status = Some(plan.status);
    assert_eq!(world.plan().requeue, Some(Duration::from_secs(6)));
    world.cases[0].ready_for = Duration::from_secs(10);
    let plan = world.plan();
    assert_eq!((plan.status.restarted, plan.status.restarting, plan.requeue), (1, 0, None));
}

#[test]
fn a_partition_that_is_reached_meets_the_deadline_too() {
    let mut cases = old(2);
    cases[1].request = Some(succeeded());
    let mut world = world(json!({"activeDeadlineSeconds": 60, "partition": 1}), cases);
    assert_eq!(world.plan().requeue, Some(Duration::from_secs(60)));
    world.age = 61;
    assert_eq!(state(&world.plan()).0, "DeadlineExceeded");
}

#[test]
fn the_end_is_reported_once_and_the_time_to_live_begins() {
    let mut world = world(json!({"ttlSecondsAfterFinished": 30}), vec![with(pod("web-0", json!({})), succeeded())]);
    let plan = world.plan();
    assert_eq!((state(&plan), plan.event.as_ref().unwrap().reason), (("Completed".into(), true, false), "Completed"));
    world.restart.status = Some(plan.status);
    let left = begin(&world.restart, &[], Some(Duration::from_secs(10)), now(10)).unwrap();
    assert_eq!((left.delete, left.requeue), (false, Some(Duration::from_secs(20))));
    assert!(begin(&world.restart, &[], Some(Duration::from_secs(30)), now(30)).unwrap().delete);
}

#[test]
fn what_a_round_came_to_holds_for_a_spec_that_is_changed_after_its_end() {
    let mut world = world(json!({}), vec![with(pod("web-0", json!({})), succeeded())]);
    world.restart.status = Some(world.plan().status);
    world.restart.metadata.generation = Some(2);
    let plan = begin(&world.restart, &[], Some(Duration::ZERO), now(10)).unwrap();
    assert!(plan.status.is_true("Complete"));
    assert_eq!(plan.status.observed_generation, 2);
    assert!(plan.status.conditions.iter().all(|condition| condition.observed_generation == Some(2)));
}

#[test]
fn without_pods_there_is_nothing_to_do() {
    let plan = world(json!({}), Vec::new()).plan();
    assert_eq!((state(&plan).1, plan.status.progress.as_str()), (true, "0/0"));
}

#[test]
fn a_target_that_is_not_there_ends_a_single_restart_and_is_waited_for_with_triggers() {
    let mut gone = world(json!({}), Vec::new());
    gone.target = Target::Missing("spec.targetRef: Deployment \"web\" is not there".into());
    assert_eq!(state(&gone.plan()), ("TargetNotFound".into(), false, true));
    gone.restart.spec.triggers = Some(Vec::new());
    assert_eq!(state(&gone.plan()), ("TargetNotFound".into(), false, false));
    gone.target = Target::Unreadable { reason: "Forbidden", message: "no".into() };
    let plan = gone.plan();
    assert_eq!((state(&plan).0.as_str(), plan.requeue), ("Forbidden", Some(workload_restart::TARGET_AGE)));
}

#[test]
fn budgets_are_taken_from_and_waited_for() {
    let budget =
        |left| Budget { name: "b".into(), selector: crate::k8s::selector::Selector::parse("app=web").unwrap(), left };
    let mut world = world(json!({"maxUnavailable": 3}), old(4));
    world.budgets = vec![budget(Ok(2))];
    assert_eq!(started(&world.plan()), ["web-3", "web-2"]);
    world.budgets = vec![budget(Ok(0))];
    let plan = world.plan();
    assert_eq!((started(&plan), state(&plan).0.as_str()), (vec![], "WaitingForBudget"));
    assert_eq!(plan.status.message, "PodDisruptionBudget b allows no disruption now");
    // what is down already disrupts nothing
    world.cases[0].pod = pod("web-0", not_ready());
    assert_eq!(started(&world.plan()), ["web-0"]);
}

#[test]
fn in_order_a_budget_holds_up_what_comes_after_and_otherwise_it_does_not() {
    let budget =
        Budget { name: "b".into(), selector: crate::k8s::selector::Selector::parse("app=other").unwrap(), left: Ok(0) };
    let mut cases = old(2);
    cases[1].pod =
        pod("web-1", json!({"metadata": {"labels": {"app": "other"}, "creationTimestamp": "2025-01-01T00:00:00Z"}}));
    let mut world = world(json!({"maxUnavailable": 2}), cases);
    world.budgets = vec![budget];
    assert_eq!(started(&world.plan()), Vec::<&str>::new());
    world.target = Target::Known { desired: None, ordinals: false };
    assert_eq!(started(&world.plan()), ["web-0"]);
}

#[test]
fn many_pods_are_begun_in_parts() {
    let plan = world(json!({"maxUnavailable": "100%"}), old(50)).plan();
    assert_eq!((plan.start.len(), plan.requeue), (20, Some(Duration::ZERO)));
}

fn triggered(changes: Value) -> WorkloadRestart {
    let spec = json!({"triggers": [{"kind": "ConfigMap", "name": "app"}, {"kind": "Secret", "name": "key"}]});
    let mut restart =
        restart(json!({"spec": spec, "status": {"round": 0, "startTime": null, "podsCreatedBefore": null}}));
    let mut object = serde_json::to_value(&restart).unwrap();
    json_patch::merge(&mut object, &changes);
    restart.clone_from(&serde_json::from_value(object).unwrap());
    restart
}

fn present(hash: &str) -> TriggerContent {
    TriggerContent::Present { hash: hash.into(), changed: Some("2026-01-01T00:00:30Z".parse().unwrap()) }
}

#[test]
fn a_trigger_seen_first_is_no_change_and_its_change_begins_a_round() {
    let mut restart = triggered(json!({}));
    let seen = [present("a"), TriggerContent::Missing];
    let plan = begin(&restart, &seen, None, now(1)).unwrap();
    assert_eq!((plan.status.round, state(&plan).0.as_str()), (0, "WaitingForChange"));
    let hashes: Vec<&str> = plan.status.triggers.iter().map(|t| t.hash.as_str()).collect();
    assert_eq!(hashes, ["a", ""]);
    assert!(plan.status.is_true("TriggersReadable"));
    restart.status = Some(plan.status);
    assert!(!is_active(&restart) && begin(&restart, &seen, None, now(2)).unwrap().requeue.is_none());

    let plan = begin(&restart, &[present("b"), TriggerContent::Missing], None, now(31)).unwrap();
    assert_eq!((plan.status.round, plan.status.triggers[0].hash.as_str()), (1, "b"));
    assert_eq!(plan.status.pods_created_before.unwrap().to_string(), "2026-01-01T00:00:30Z");
    assert_eq!(plan.event.as_ref().unwrap().message, "round 1: ConfigMap app changed");
    restart.status = Some(plan.status);
    assert!(begin(&restart, &[present("b"), TriggerContent::Missing], None, now(32)).is_none(), "the round goes on");
    assert!(is_active(&restart));

    // another change during the round begins the next one
    let plan = begin(&restart, &[present("b"), present("k")], None, now(33)).unwrap();
    assert_eq!((plan.status.round, plan.status.triggers[1].hash.as_str()), (2, "k"));
    restart.status = Some(plan.status);
    // and one that goes away does not
    assert!(begin(&restart, &[TriggerContent::Missing, present("k")], None, now(34)).is_none());
}

#[test]
fn a_change_while_nobody_looked_is_found_in_the_recorded_hash() {
    let recorded = json!({"status": {"triggers": [{"kind": "ConfigMap", "name": "app", "hash": "a"}, {"kind": "Secret", "name": "key", "hash": "k"}]}});
    let restart = triggered(recorded);
    let unknown = begin(&restart, &[TriggerContent::Unknown, TriggerContent::Unknown], None, now(1)).unwrap();
    assert_eq!((unknown.status.round, unknown.requeue), (0, None));
    let seen = [TriggerContent::Present { hash: "b".into(), changed: None }, present("k")];
    let plan = begin(&restart, &seen, None, now(1)).unwrap();
    assert_eq!(
        (plan.status.round, plan.status.pods_created_before),
        (1, None),
        "of an unknown time: every Pod is restarted"
    );
}

#[test]
fn triggers_that_cannot_be_watched_are_reported_with_what_to_grant() {
    let plan = begin(
        &triggered(json!({})),
        &[present("a"), TriggerContent::Forbidden("secrets \"key\" is forbidden".into())],
        None,
        now(1),
    )
    .unwrap();
    let condition = plan.status.conditions.iter().find(|c| c.type_ == "TriggersReadable").unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "Forbidden"));
    for part in
        ["spec.triggers: Secret key", "verbs list and watch, resource secrets, resourceNames [key]", "is forbidden"]
    {
        assert!(condition.message.contains(part), "{}", condition.message);
    }
}

/// The one of Ready, Reconciling and Stalled that is true, with its reason.
fn kstatus(mut status: WorkloadRestartStatus) -> String {
    workload_restart::set_kstatus(&mut status, now(1));
    let is_one = |type_: &str| ["Ready", "Reconciling", "Stalled"].contains(&type_);
    let true_ones = status.conditions.iter().filter(|c| is_one(&c.type_) && c.status == "True");
    true_ones.map(|c| format!("{} {}", c.type_, c.reason)).collect::<Vec<_>>().join(", ")
}

#[test]
fn decision_32_what_the_spec_holds_is_ready_and_what_waits_is_reconciling() {
    let seen = [present("a"), TriggerContent::Missing];
    let waits = begin(&triggered(json!({})), &seen, None, now(1)).unwrap();
    assert_eq!(kstatus(waits.status), "Ready WaitingForChange");
    let forbidden = [present("a"), TriggerContent::Forbidden("no".into())];
    let blind = begin(&triggered(json!({})), &forbidden, None, now(1)).unwrap();
    assert_eq!(kstatus(blind.status), "Stalled Forbidden");

    let mut paused = world(json!({"paused": true}), old(3));
    assert_eq!(kstatus(paused.plan().status), "Ready Paused");
    paused.cases[2].request = Some(in_flight());
    assert_eq!(kstatus(paused.plan().status), "Reconciling Paused");
    assert_eq!(kstatus(world(json!({"partition": 3}), old(3)).plan().status), "Ready PartitionReached");

    let mut gone = world(json!({}), Vec::new());
    gone.target = Target::Missing("it is not there".into());
    assert_eq!(kstatus(gone.plan().status), "Stalled TargetNotFound", "a single restart ends");
    gone.restart.spec.triggers = Some(Vec::new());
    assert_eq!(kstatus(gone.plan().status), "Reconciling TargetNotFound");
    gone.target = Target::Unreadable { reason: "Forbidden", message: "no".into() };
    assert_eq!(kstatus(gone.plan().status), "Stalled Forbidden");
}

#[test]
fn triggers_that_are_not_followed_are_reported_and_change_nothing() {
    let recorded = json!({"status": {"triggers": [{"kind": "Secret", "name": "key", "hash": "k"}]}});
    let plan = begin(&triggered(recorded), &[present("a"), TriggerContent::Surplus], None, now(1)).unwrap();
    let condition = plan.status.conditions.iter().find(|c| c.type_ == "TriggersReadable").unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "TooMany"));
    let begins = "spec.triggers[1] is not watched, and its changes restart nothing: up to 128 ";
    assert!(condition.message.starts_with(begins), "{}", condition.message);
    let hashes: Vec<&str> = plan.status.triggers.iter().map(|t| t.hash.as_str()).collect();
    assert_eq!((plan.status.round, hashes), (0, vec!["k", "a"]), "what was recorded stays");
}

#[test]
fn a_trigger_that_is_added_later_is_no_change_and_one_that_is_removed_is_forgotten() {
    let recorded = json!({"status": {"triggers": [{"kind": "Secret", "name": "gone", "hash": "g"}]}});
    let plan = begin(&triggered(recorded), &[present("a"), present("k")], None, now(1)).unwrap();
    let names: Vec<&str> = plan.status.triggers.iter().map(|t| t.name.as_str()).collect();
    assert_eq!((plan.status.round, names), (0, vec!["app", "key"]));
}

#[test]
fn a_pod_whose_volumes_cannot_be_refreshed_is_asked_again_and_fails_and_holds_up_no_other() {
    let mut world = world(json!({"maxUnavailable": 3, "triggers": [], "failurePolicy": {"threshold": 2}}), old(3));
    for case in &mut world.cases[..2] {
        case.refreshed = Some(workload_restart::REFRESH);
    }
    for (refused, touched, requeue) in [
        ((1, Duration::from_millis(400)), false, Duration::from_millis(600)),
        ((2, Duration::from_secs(1)), true, workload_restart::REFRESH),
    ] {
        world.cases[2].refused = Some(refused);
        let plan = world.plan();
        assert_eq!((started(&plan), plan.touch.is_empty()), (vec!["web-1", "web-0"], !touched), "{refused:?}");
        assert_eq!(plan.requeue, Some(requeue), "{refused:?}");
    }
    world.cases[2].refused = Some((workload_restart::REFUSALS, Duration::from_secs(1)));
    let plan = world.plan();
    assert_eq!((started(&plan), plan.touch.len(), plan.status.failed), (vec!["web-1", "web-0"], 0, 1));
}

#[test]
fn what_a_round_waits_for_before_a_restart_is_named() {
    let (some, all) = (Duration::from_millis(400), Duration::from_secs(1));
    for (refused, refreshed, reason) in [
        (Some((1, some)), None, "RequestsFailing"),
        // It is asked again now, and not refreshed yet.
        (Some((1, all)), None, "RequestsFailing"),
        // The refresh was taken, its request was not.
        (Some((1, some)), Some(workload_restart::REFRESH), "RequestsFailing"),
        (None, None, "RefreshingVolumes"),
        (None, Some(all), "RefreshingVolumes"),
        (Some((1, all)), Some(workload_restart::REFRESH), "Restarting"),
    ] {
        let mut world = world(json!({"maxUnavailable": 1, "triggers": []}), old(1));
        (world.cases[0].refused, world.cases[0].refreshed) = (refused, refreshed);
        let plan = world.plan();
        assert_eq!(state(&plan).0, reason, "{refused:?} {refreshed:?} {}", plan.status.message);
    }
}

#[test]
fn before_a_triggered_restart_the_volumes_are_refreshed_ahead_of_the_waves() {
    let mut world = world(json!({"maxUnavailable": 1, "triggers": []}), old(6));
    let plan = world.plan();
    let touched: Vec<&str> = plan.touch.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        (started(&plan), touched, state(&plan).0.as_str()),
        (vec![], vec!["web-5", "web-4", "web-3"], "RefreshingVolumes")
    );
    assert_eq!(plan.requeue, Some(workload_restart::REFRESH));
    world.cases[5].refreshed = Some(Duration::from_secs(2));
    world.cases[4].refreshed = Some(workload_restart::REFRESH);
    assert_eq!(started(&world.plan()), Vec::<&str>::new(), "the second does not overtake the first");
    world.cases[5].refreshed = Some(workload_restart::REFRESH);
    assert_eq!(started(&world.plan()), ["web-5"]);
    world.cases[5].busy = true;
    assert_eq!(started(&world.plan()), Vec::<&str>::new(), "its restart of an earlier round has to end first");
}

/// Whatever happens to Pods and requests, no plan begins more than may be unavailable.
mod bounds {
    use proptest::prelude::*;

    use super::*;

    fn case() -> impl Strategy<Value = (bool, u8, bool, bool)> {
        (any::<bool>(), 0..5u8, any::<bool>(), any::<bool>())
    }

    proptest! {
        #[test]
        fn a_plan_never_begins_more_than_max_unavailable(
            cases in proptest::collection::vec(case(), 1..12), max in 1..6i32, partition in 0..4i32, budget in 0..4usize,
        ) {
            let made = cases.iter().enumerate().map(|(i, (ready, request, busy, deleting))| {
                let changes = if *ready { json!({}) } else { not_ready() };
                let mut changes = changes;
                if *deleting {
                    json_patch::merge(&mut changes, &json!({"metadata": {"deletionTimestamp": CREATED}}));
                }
                let mut case = plain(pod(&format!("web-{i}"), changes));
                case.busy = *busy;
                case.request = match request { 0 => Some(in_flight()), 1 => Some(succeeded()), 2 => Some(failed()), _ => None };
                case
            });
            let mut world = world(json!({"maxUnavailable": max, "partition": partition, "failurePolicy": {"threshold": "100%"}}), made.collect());
            world.budgets = vec![Budget { name: "b".into(), selector: Default::default(), left: Ok(budget) }];
            let plan = world.plan();
            let healthy = |case: &&Case| case.pod.condition_is_true("Ready") && !case.pod.is_deleting();
            let begun: Vec<&Case> = world.cases.iter().filter(|c| started(&plan).contains(&c.pod.name())).collect();
            let live: Vec<&Case> = world.cases.iter().filter(|c| !c.pod.is_deleting()).collect();
            let down = live.iter().filter(|c| !healthy(c) || c.busy || matches!(&c.request, Some(r) if !r.is_completed())).count();
            let newly_down = begun.iter().filter(|c| healthy(c)).count();
            prop_assert!(newly_down == 0 || down + newly_down <= max as usize, "{down} down, {newly_down} begun, {max} allowed");
            prop_assert!(newly_down <= budget);
            prop_assert!(begun.len() <= max as usize);
            prop_assert!(begun.iter().all(|c| c.request.is_none() && !c.busy));
        }
    }
}

mod api;
mod simulation;
