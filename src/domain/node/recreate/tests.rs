//! Tables over the node's half of the machine. Edge cases of the specification carry their name.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ExecAction, LifecycleHandler};
use proptest::prelude::*;
use serde_json::json;

use super::{
    fail_unfinished,
    node::{
        Instance, InstanceState, NodePlan, ObservedContainers, RestartMemory, behind, in_trouble, pick,
        pick_by_manager, plan, stop_grace, waiting_status,
    },
    states_of,
};
use crate::{
    api::crr::{
        ContainerRecreateRequest, ContainerRecreateRequestStatus, FailurePolicy, HookNote, Phase, RecreateStrategy,
    },
    k8s::{pod::PodView, time::Now},
};

const UID: &str = "uid-1";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn now(second: u64) -> Now {
    Now { wall: at(second.cast_signed()), mono: Duration::from_secs(1000 + second) }
}

/// A request as admission leaves it, for containers that all run with restart count 0 and the id `<name>-0`.
fn request(containers: &[&str], strategy: RecreateStrategy) -> ContainerRecreateRequest {
    let containers: Vec<_> = containers
        .iter()
        .map(|name| {
            let id = format!("containerd://{name}-0");
            json!({"name": name, "statusContext": {"containerID": id, "restartCount": 0}})
        })
        .collect();
    serde_json::from_value(json!({
        "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
        "metadata": {"name": "r1", "namespace": "a", "uid": "r1", "creationTimestamp": at(0),
            "labels": {"crr.apps.kruise.io/pod-uid": UID, "crr.apps.kruise.io/active": "true"}},
        "spec": {"podName": "web", "containers": containers, "strategy": strategy},
    }))
    .unwrap()
}

fn strategy() -> RecreateStrategy {
    RecreateStrategy {
        failure_policy: Some(FailurePolicy::Fail),
        termination_grace_period_seconds: Some(30),
        ..RecreateStrategy::default()
    }
}

fn ordered() -> RecreateStrategy {
    RecreateStrategy { ordered_recreate: true, ..strategy() }
}

/// A node with one Pod, its containers in the runtime, and a daemon that carries plans out at once.
struct World {
    pod: serde_json::Value,
    instances: Vec<Instance>,
    memory: RestartMemory,
    clock: u64,
    kills: Vec<(String, Duration, bool)>,
}

impl World {
    fn new(containers: &[&str]) -> Self {
        let pod = json!({
            "metadata": {"name": "web", "namespace": "a", "uid": UID},
            "spec": {"nodeName": "n1", "restartPolicy": "Always",
                "containers": containers.iter().map(|c| json!({"name": c})).collect::<Vec<_>>()},
            "status": {"phase": "Running", "containerStatuses": []}
        });
        let mut world =
            Self { pod, instances: Vec::new(), memory: RestartMemory::default(), clock: 0, kills: Vec::new() };
        for name in containers {
            world.start(name, 0);
            world.report(name, 0, true);
        }
        world
    }

    /// kubelet starts the instance with this restart count.
    fn start(&mut self, name: &str, restart_count: i32) {
        self.instances.push(Instance {
            id: format!("containerd://{name}-{restart_count}"),
            container: name.into(),
            namespace: "a".into(),
            pod_uid: UID.into(),
            state: InstanceState::Running,
            created_at: i64::try_from(self.instances.len()).unwrap(),
            started_at: Some(now(self.clock).wall),
            exit_code: None,
            restart_count,
        });
    }

    fn exit(&mut self, name: &str, restart_count: i32, code: i32) {
        let instance = self.instance(name, restart_count);
        instance.state = InstanceState::Exited;
        instance.exit_code = Some(code);
    }

    fn instance(&mut self, name: &str, restart_count: i32) -> &mut Instance {
        let id = format!("containerd://{name}-{restart_count}");
        self.instances.iter_mut().find(|i| i.id == id).unwrap()
    }

    fn status(&mut self, name: &str, status: serde_json::Value) {
        let statuses = self.pod["status"]["containerStatuses"].as_array_mut().unwrap();
        statuses.retain(|s| s["name"] != name);
        statuses.push(status);
    }

    /// kubelet reports an instance as running.
    fn report(&mut self, name: &str, restart_count: i32, ready: bool) {
        let id = format!("containerd://{name}-{restart_count}");
        self.status(
            name,
            json!({"name": name, "containerID": id, "ready": ready, "restartCount": restart_count,
                "state": {"running": {"startedAt": now(self.clock).wall}}}),
        );
    }

    fn report_waiting(&mut self, name: &str, reason: &str) {
        let waiting = json!({"waiting": {"reason": reason, "message": "kubelet's words"}});
        self.status(
            name,
            json!({"name": name, "containerID": "", "ready": false, "restartCount": 0, "state": waiting}),
        );
    }

    fn restart(&mut self, name: &str, restart_count: i32) {
        self.start(name, restart_count);
        self.report(name, restart_count, true);
    }

    fn plan(&mut self, request: &ContainerRecreateRequest) -> NodePlan {
        let pod: PodView = serde_json::from_value(self.pod.clone()).unwrap();
        let runtimes = ["containerd".to_owned()];
        let observed = ObservedContainers { request, pod: Some(&pod), runtimes: &runtimes, instances: &self.instances };
        plan(&observed, &mut self.memory, now(self.clock))
    }

    /// Plans, records, stops, and looks again, until there is only waiting left. Returns that last plan.
    fn run(&mut self, request: &mut ContainerRecreateRequest) -> NodePlan {
        for _ in 0..50 {
            let plan = self.plan(request);
            if let Some(status) = &plan.status {
                request.status = Some(status.clone());
            }
            if let Some(kill) = &plan.kill {
                self.memory.stop_begins(kill);
                self.kills.push((kill.id.clone(), kill.grace, kill.hook.is_some()));
                for instance in self.instances.iter_mut().filter(|i| i.id == kill.id) {
                    instance.state = InstanceState::Exited;
                    instance.exit_code = Some(143);
                }
            } else if plan.status.is_none() || request.is_completed() {
                return plan;
            }
        }
        panic!("the daemon makes no end of it: {:?}", request.status);
    }

    fn killed(&self) -> Vec<&str> {
        self.kills.iter().map(|(id, ..)| id.as_str()).collect()
    }
}

fn phases(request: &ContainerRecreateRequest) -> Vec<&str> {
    let status = request.status.as_ref().unwrap();
    status.container_recreate_states.iter().map(|s| s.phase.as_str()).collect()
}

fn message(request: &ContainerRecreateRequest, index: usize) -> &str {
    &request.status.as_ref().unwrap().container_recreate_states[index].message
}

#[test]
fn one_container_from_start_to_end() {
    let mut world = World::new(&["main", "side"]);
    let mut request = request(&["main"], strategy());
    let first = world.plan(&request);
    let recorded = first.status.as_ref().unwrap();
    assert_eq!(recorded.phase, Phase::Recreating, "the intent is part of the first write");
    assert_eq!(recorded.container_recreate_states[0].previous_container_id, "containerd://main-0");
    assert!(!recorded.container_recreate_states[0].is_killed);
    assert_eq!(first.kill.as_ref().unwrap().id, "containerd://main-0");

    world.run(&mut request);
    assert_eq!(world.killed(), ["containerd://main-0"]);
    assert_eq!(phases(&request), ["Recreating"]);
    assert_eq!(message(&request, 0), "stopped; waiting for kubelet to start it");

    world.clock = 1;
    world.restart("main", 1);
    world.run(&mut request);
    let status = request.status.clone().unwrap();
    assert_eq!((status.phase, status.message.as_str()), (Phase::Completed, ""));
    let state = &status.container_recreate_states[0];
    assert_eq!(
        (state.phase.as_str(), state.is_killed, state.container_id.as_str()),
        ("Succeeded", true, "containerd://main-1")
    );
    assert_eq!((state.kill_started_at, state.killed_at), (Some(at(0)), Some(at(0))));
    assert_eq!((state.started_at, state.ready_at), (Some(at(1)), Some(at(1))));
    assert_eq!(status.container_status_snapshot[0].container_id, "containerd://main-1");
    assert_eq!(world.plan(&request), NodePlan::default(), "a finished request never moves");
}

#[test]
fn a_single_container_takes_three_status_writes() {
    let mut world = World::new(&["main"]);
    let mut request = request(&["main"], strategy());
    let mut writes = 0;
    for step in 0..6 {
        let plan = world.plan(&request);
        if let Some(status) = plan.status {
            writes += 1;
            request.status = Some(status);
        }
        if let Some(kill) = plan.kill {
            world.memory.stop_begins(&kill);
            world.exit("main", 0, 143);
        }
        if step == 3 {
            world.restart("main", 1);
        }
    }
    assert!(request.is_completed());
    assert_eq!(writes, 3, "intent, stopped, completed");
}

#[test]
fn unordered_stops_one_after_the_other_and_restarts_overlap() {
    let mut world = World::new(&["a", "b"]);
    let mut request = request(&["a", "b"], strategy());
    world.run(&mut request);
    assert_eq!(world.killed(), ["containerd://a-0", "containerd://b-0"]);
    assert_eq!(phases(&request), ["Recreating", "Recreating"]);
    world.restart("b", 1);
    world.run(&mut request);
    assert_eq!(phases(&request), ["Recreating", "Succeeded"]);
    world.restart("a", 1);
    world.run(&mut request);
    assert!(request.is_completed());
}

#[test]
fn ordered_touches_the_next_only_after_the_one_before() {
    let mut world = World::new(&["a", "b"]);
    let mut request = request(&["a", "b"], ordered());
    world.run(&mut request);
    assert_eq!(world.killed(), ["containerd://a-0"]);
    assert_eq!(phases(&request), ["Recreating", "Pending"]);
    world.start("a", 1);
    world.report("a", 1, false);
    world.run(&mut request);
    assert_eq!(world.killed(), ["containerd://a-0"], "running is not enough: it has to be ready");
    world.report("a", 1, true);
    world.run(&mut request);
    assert_eq!(world.killed(), ["containerd://a-0", "containerd://b-0"]);
    world.restart("b", 1);
    world.run(&mut request);
    assert_eq!(phases(&request), ["Succeeded", "Succeeded"]);
}

#[test]
fn case_1_start_time_is_no_evidence_of_a_restart() {
    let mut world = World::new(&["main"]);
    world.instance("main", 0).started_at = Some(at(100));
    let mut request = request(&["main"], strategy());
    world.run(&mut request);
    assert_eq!(world.killed(), ["containerd://main-0"]);
}

#[test]
fn case_2_force_kills_at_most_once() {
    let mut world = World::new(&["main"]);
    world.exit("main", 0, 1);
    world.start("main", 1); // starting, not the one that was meant
    let mut request = request(&["main"], RecreateStrategy { force_recreate: true, ..strategy() });
    world.run(&mut request);
    assert_eq!(world.killed(), ["containerd://main-1"]);
    world.restart("main", 2);
    world.run(&mut request);
    assert_eq!(world.killed(), ["containerd://main-1"]);
    assert!(request.is_completed());
}

#[test]
fn case_2_an_exited_instance_counts_as_handled_for_force() {
    let mut world = World::new(&["main"]);
    world.exit("main", 0, 1);
    let mut request = request(&["main"], RecreateStrategy { force_recreate: true, ..strategy() });
    world.run(&mut request);
    world.restart("main", 1);
    world.run(&mut request);
    assert!(world.killed().is_empty() && request.is_completed());
}

#[test]
fn case_3_an_instance_that_moved_on_is_skipped_and_says_so() {
    let mut world = World::new(&["main"]);
    world.exit("main", 0, 1);
    world.restart("main", 1);
    let mut request = request(&["main"], strategy());
    world.run(&mut request);
    assert!(world.killed().is_empty());
    assert_eq!(phases(&request), ["Succeeded"]);
    assert!(message(&request, 0).starts_with("already recreated"), "{}", message(&request, 0));
}

#[test]
fn what_was_skipped_says_so_to_the_end_although_kubelet_holds_the_next_instance_back() {
    const SKIPPED: &str = "already recreated: another instance replaced the one that was meant";
    let mut world = World::new(&["main"]);
    world.exit("main", 0, 1);
    world.start("main", 1);
    world.report("main", 1, false);
    let mut request = request(&["main"], strategy());
    world.run(&mut request);
    assert_eq!(message(&request, 0), SKIPPED);
    world.exit("main", 1, 1);
    world.report_waiting("main", "CrashLoopBackOff");
    world.run(&mut request);
    assert_eq!(message(&request, 0), format!("{SKIPPED}; kubelet: CrashLoopBackOff: kubelet's words"));
    world.clock = 10;
    world.start("main", 2);
    world.report("main", 2, false);
    world.clock = 20;
    world.run(&mut request);
    assert_eq!(message(&request, 0), SKIPPED, "it runs, and is not ready");
    world.report("main", 2, true);
    world.run(&mut request);
    assert!(world.killed().is_empty());
    assert_eq!((phases(&request), message(&request, 0)), (vec!["Succeeded"], SKIPPED));
}

#[test]
fn case_4_two_requests_one_after_the_other_and_one_kill() {
    let mut world = World::new(&["main"]);
    let mut first = request(&["main"], strategy());
    let mut second = request(&["main"], strategy());
    second.metadata.name = Some("r2".into());
    let chosen = pick([&second, &first]);
    assert_eq!(chosen.current.unwrap().metadata.name.as_deref(), Some("r1"), "a tie goes by name");
    assert_eq!(chosen.has_to_wait.len(), 1);
    world.run(&mut first);
    world.restart("main", 1);
    world.run(&mut first);
    assert!(first.is_completed());
    world.memory = RestartMemory::default();
    assert_eq!(pick([&second, &first]).current.unwrap().metadata.name.as_deref(), Some("r2"));
    world.run(&mut second);
    assert_eq!(world.killed(), ["containerd://main-0"]);
    assert!(second.is_completed() && message(&second, 0).starts_with("already recreated"));
}

#[test]
fn a_request_of_a_user_and_one_of_the_sidecar_terminator_at_once_are_one_kill() {
    let mut world = World::new(&["proxy"]);
    world.pod["spec"]["restartPolicy"] = json!("Never");
    let mut users = request(&["proxy"], strategy());
    let forced = RecreateStrategy { force_recreate: true, failure_policy: Some(FailurePolicy::Ignore), ..strategy() };
    let mut terminators = request(&["proxy"], forced);
    terminators.metadata.name = Some("sidecar-termination-u".into());
    assert_eq!(pick([&terminators, &users]).current.unwrap().metadata.name.as_deref(), Some("r1"));
    world.run(&mut users);
    assert_eq!(pick([&terminators, &users]).current.unwrap().metadata.name, terminators.metadata.name);
    world.memory = RestartMemory::default();
    world.run(&mut terminators);
    assert_eq!(world.killed(), ["containerd://proxy-0"]);
    assert!(users.is_completed() && terminators.is_completed());
}

#[test]
fn a_runtime_that_cannot_be_asked_is_reported_when_it_lasts_and_taken_back_after() {
    let mut world = World::new(&["main"]);
    let mut request = request(&["main"], strategy());
    let mut memory = RestartMemory::default();
    let mut status = |request: &ContainerRecreateRequest, begun, at| {
        in_trouble(request, &mut memory, "containerd", "ListContainers: boom", now(begun), now(at))
    };
    assert_eq!(status(&request, 100, 101), None, "a restart of the runtime takes no longer");
    assert_eq!(status(&request, 103, 104), None);
    let reported = status(&request, 105, 106).expect("since the first failure it is over 5 s");
    assert_eq!(
        (reported.phase.clone(), reported.message.as_str()),
        (Phase::Pending, "waiting for runtime containerd: ListContainers: boom")
    );
    request.status = Some(reported);
    assert_eq!(status(&request, 110, 111), None, "it is reported once");
    let mut other = request.clone();
    other.metadata.name = Some("under-way".into());
    other.status = Some(ContainerRecreateRequestStatus { phase: Phase::Recreating, ..Default::default() });
    assert_eq!(pick([&request, &other]).has_to_wait.len(), 1, "if it has to wait for another reason, it says that");
    world.run(&mut request);
    assert_eq!(request.status.as_ref().unwrap().message, "");
    request.status.as_mut().unwrap().phase = Phase::Completed;
    assert_eq!(status(&request, 200, 300), None, "a completed request never moves");
}

#[test]
fn who_comes_while_a_request_is_served_waits_for_it_even_if_that_one_has_ended() {
    let mut served = request(&["main"], strategy());
    served.status = Some(ContainerRecreateRequestStatus { phase: Phase::Completed, ..Default::default() });
    let newcomer = |phase: Phase, message: &str| {
        // The name may be that of the served one.
        let mut other = request(&["main"], strategy());
        other.metadata.uid = Some("other".into());
        let message = message.to_owned();
        other.status = Some(ContainerRecreateRequestStatus { phase, message, ..Default::default() });
        other
    };
    for (phase, message, is_reported) in [
        (Phase::Empty, "", true),
        (Phase::Pending, "waiting for a ready kruise-daemon on node n1", true),
        (Phase::Pending, "waiting for runtime containerd: no answer", true),
        (Phase::Pending, "waiting for request r1 of the same Pod", false),
        (Phase::Recreating, "", false),
        (Phase::Completed, "", false),
    ] {
        let other = newcomer(phase.clone(), message);
        assert_eq!(!behind(&served, [&served, &other]).is_empty(), is_reported, "{phase:?} {message}");
    }
    let mut fresh = served.clone();
    fresh.status = None;
    assert!(behind(&fresh, [&fresh]).is_empty(), "nobody waits for itself");
}

#[test]
fn case_5_a_waiting_request_becomes_pending_and_one_under_way_goes_first() {
    let mut old = request(&["main"], strategy());
    let mut under_way = request(&["main"], strategy());
    under_way.metadata.name = Some("z".into());
    under_way.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(50)));
    under_way.status = Some(ContainerRecreateRequestStatus { phase: Phase::Recreating, ..Default::default() });
    let chosen = pick([&old, &under_way]);
    assert_eq!(chosen.current.unwrap().metadata.name.as_deref(), Some("z"));
    assert_eq!(chosen.has_to_wait[0].metadata.name.as_deref(), Some("r1"));
    let waiting = waiting_status(&under_way);
    assert_eq!(
        (waiting.phase.clone(), waiting.message.as_str()),
        (Phase::Pending, "waiting for request z of the same Pod")
    );
    old.status = Some(waiting);
    assert!(pick([&old, &under_way]).has_to_wait.is_empty(), "it is reported once");
    let mut world = World::new(&["main"]);
    world.run(&mut old);
    assert_eq!(old.status.unwrap().message, "", "what it waited for is over");
}

#[test]
fn case_6_containers_of_another_pod_are_never_touched() {
    for (what, change) in [
        ("another UID", (|i: &mut Instance| i.pod_uid = "uid-2".into()) as fn(&mut Instance)),
        ("another namespace", |i| i.namespace = "b".into()),
        ("another container", |i| i.container = "other".into()),
    ] {
        let mut world = World::new(&["main"]);
        change(world.instance("main", 0));
        let mut request = request(&["main"], RecreateStrategy { force_recreate: true, ..strategy() });
        world.run(&mut request);
        assert!(world.killed().is_empty(), "{what}");
        assert_eq!(message(&request, 0), "not found container on Node", "{what}");
    }
}

#[test]
fn a_container_that_was_removed_after_the_end_of_its_pod_is_not_waited_for() {
    for (phase, ended) in [("Running", false), ("Pending", false), ("Succeeded", true), ("Failed", true)] {
        let mut world = World::new(&["main"]);
        world.instances.clear();
        world.pod["status"]["phase"] = json!(phase);
        let mut request = request(&["main"], strategy());
        world.run(&mut request);
        assert_eq!(request.is_completed(), ended, "{phase}");
        if ended {
            assert_eq!(
                (phases(&request), message(&request, 0)),
                (vec!["Failed"], &*format!("the Pod has ended (phase {phase})"))
            );
        }
    }
}

/// kubelet runs the hook and stops the container when it sees that the Pod is over.
#[test]
fn the_hook_of_a_pod_that_is_over_is_left_to_kubelet_except_by_the_terminator() {
    let terminated = json!([{"type": "SidecarTerminated", "status": "True"}]);
    let (kubelets, own) = (json!([]), Some("kruise.rs/sidecar-termination"));
    for (phase, conditions, label, has_hook, killed) in [
        ("Running", &kubelets, None, true, Some(true)),
        ("Succeeded", &terminated, None, true, None),
        ("Failed", &kubelets, None, true, None),
        ("Failed", &kubelets, own, true, None),
        // Kubelet has not stopped it in time.
        ("Succeeded", &terminated, own, true, Some(true)),
        ("Succeeded", &terminated, None, false, Some(false)),
    ] {
        let what = format!("{phase} {conditions} {label:?} {has_hook}");
        let mut world = World::new(&["main"]);
        world.pod["status"]["phase"] = json!(phase);
        world.pod["status"]["conditions"] = conditions.clone();
        let plain = request(&["main"], strategy());
        let mut request = if has_hook { with_hook(plain) } else { plain };
        let labels = request.metadata.labels.get_or_insert_default();
        labels.extend(label.map(|label| (label.to_owned(), UID.to_owned())));
        world.run(&mut request);
        let hooks: Vec<bool> = world.kills.iter().map(|(.., hook)| *hook).collect();
        assert_eq!(hooks, killed.as_slice(), "{what}");
        if killed.is_none() {
            let why = format!("the Pod has ended (phase {phase})");
            assert_eq!((phases(&request), message(&request, 0)), (vec!["Failed"], &*why), "{what}");
            assert!(request.is_completed(), "{what}");
        }
    }
}

#[test]
fn a_hook_that_was_recorded_and_not_begun_before_its_pod_was_over_is_left_to_kubelet_too() {
    let mut world = World::new(&["main"]);
    let mut request = with_hook(request(&["main"], strategy()));
    request.status = world.plan(&request).status;
    world.pod["status"]["phase"] = json!("Succeeded");
    world.run(&mut request);
    assert!(world.killed().is_empty() && request.is_completed());
    assert_eq!(message(&request, 0), "the Pod has ended (phase Succeeded)");
}

#[test]
fn without_the_pod_nothing_is_done() {
    let world = World::new(&["main"]);
    let request = request(&["main"], strategy());
    let runtimes = ["containerd".to_owned()];
    let observed =
        ObservedContainers { request: &request, pod: None, runtimes: &runtimes, instances: &world.instances };
    let plan = plan(&observed, &mut RestartMemory::default(), now(0));
    assert_eq!((plan.kill, plan.status.unwrap().phase), (None, Phase::Recreating));
}

fn unready(grace: i64) -> RecreateStrategy {
    RecreateStrategy { unready_grace_period_seconds: Some(grace), ..strategy() }
}

fn acquire(request: &mut ContainerRecreateRequest, when: Timestamp) {
    let status = request.status.as_mut().unwrap();
    status.conditions = serde_json::from_value(json!([{"type": "PreRecreateGrace", "status": "True",
        "reason": "PreRecreateGrace", "message": "", "lastTransitionTime": when}]))
    .unwrap();
}

/// The Pod was made NotReady, and the grace is over.
fn acquire_and_drain(world: &mut World, request: &mut ContainerRecreateRequest) {
    world.run(request);
    acquire(request, now(world.clock).wall);
    world.run(request);
    world.clock += 100;
}

#[test]
fn unready_grace_waits_for_the_manager_then_for_the_grace() {
    let mut world = World::new(&["main"]);
    let mut request = request(&["main"], unready(3));
    let plan = world.run(&mut request);
    assert_eq!((phases(&request), plan.requeue), (vec!["Pending"], None), "only the manager can go on");
    assert!(message(&request, 0).contains("NotReady for 3 s"));
    acquire(&mut request, at(0));
    assert_eq!(world.run(&mut request).requeue, Some(Duration::from_secs(3)));
    world.clock = 2;
    assert_eq!(world.run(&mut request).requeue, Some(Duration::from_secs(1)));
    assert!(world.killed().is_empty());
    world.clock = 3;
    world.run(&mut request);
    assert_eq!(world.killed(), ["containerd://main-0"]);
}

#[test]
fn case_11_the_drain_ends_even_if_the_time_stamp_moves() {
    let mut world = World::new(&["main"]);
    let mut request = request(&["main"], unready(3));
    world.run(&mut request);
    for second in 0..=3 {
        world.clock = second;
        acquire(&mut request, at(i64::try_from(second).unwrap()));
        world.run(&mut request);
    }
    assert_eq!(world.killed().len(), 1);
}

#[test]
fn a_manager_clock_one_hour_off_changes_no_drain() {
    for off in [-3600, 3600] {
        let mut world = World::new(&["main"]);
        let mut request = request(&["main"], unready(3));
        world.run(&mut request);
        acquire(&mut request, at(off));
        assert_eq!(world.run(&mut request).requeue, Some(Duration::from_secs(3)), "{off}");
    }
}

#[test]
fn case_20_readiness_of_the_old_instance_never_counts() {
    let mut world = World::new(&["main"]);
    let mut request = request(&["main"], strategy());
    world.run(&mut request);
    world.start("main", 1); // the Pod status still shows main-0, ready
    world.run(&mut request);
    assert_eq!(phases(&request), ["Recreating"]);
    world.report("main", 1, true);
    world.run(&mut request);
    assert_eq!(phases(&request), ["Succeeded"]);
}

#[test]
fn case_21_min_started_seconds_is_strict_and_exact() {
    let mut world = World::new(&["main"]);
    let mut request = request(&["main"], RecreateStrategy { min_started_seconds: 5, ..strategy() });
    world.run(&mut request);
    world.restart("main", 1);
    assert_eq!(world.run(&mut request).requeue, Some(Duration::from_millis(5001)));
    world.clock = 5;
    world.run(&mut request);
    assert_eq!(phases(&request), ["Recreating"], "exactly 5 s is not longer than 5 s");
    world.clock = 6;
    world.run(&mut request);
    assert_eq!(phases(&request), ["Succeeded"]);
}

#[test]
fn case_21_a_crash_within_min_started_seconds_does_not_count_as_started() {
    let mut world = World::new(&["main"]);
    let mut request = request(&["main"], RecreateStrategy { min_started_seconds: 5, ..strategy() });
    world.run(&mut request);
    for crash in 1..=3 {
        assert_eq!(phases(&request), ["Recreating"], "before crash {crash}");
        world.restart("main", crash);
        world.clock += 2;
        world.run(&mut request);
        world.exit("main", crash, 1);
        world.run(&mut request);
    }
    assert_eq!(phases(&request), ["Failed"]);
    assert_eq!(message(&request, 0), "it was started again 3 times and ended each time, last exit code 1");
    assert!(request.is_completed());
}

#[test]
fn a_wall_clock_that_steps_back_does_not_hold_up_min_started_seconds() {
    let mut world = World::new(&["main"]);
    let mut request = request(&["main"], RecreateStrategy { min_started_seconds: 5, ..strategy() });
    world.run(&mut request);
    world.restart("main", 1);
    world.instance("main", 1).started_at = Some(at(3600));
    world.run(&mut request);
    world.clock = 6;
    world.run(&mut request);
    assert_eq!(phases(&request), ["Succeeded"]);
}

#[test]
fn a_container_that_cannot_be_created_fails_after_60_s() {
    for (policy, completed) in [(FailurePolicy::Fail, true), (FailurePolicy::Ignore, false)] {
        let mut world = World::new(&["bad", "good"]);
        let mut request = request(&["bad", "good"], RecreateStrategy { failure_policy: Some(policy), ..strategy() });
        world.run(&mut request);
        world.report_waiting("bad", "CreateContainerConfigError");
        assert!(world.run(&mut request).requeue.is_some());
        world.clock = 59;
        world.run(&mut request);
        assert_eq!(phases(&request)[0], "Recreating");
        world.clock = 60;
        world.run(&mut request);
        assert_eq!(phases(&request), ["Failed", "Recreating"]);
        assert!(message(&request, 0).contains("CreateContainerConfigError"));
        assert_eq!(request.is_completed(), completed, "{policy:?}");
        if !completed {
            world.restart("good", 1);
            world.run(&mut request);
            assert_eq!((phases(&request), request.is_completed()), (vec!["Failed", "Succeeded"], true));
        }
    }
}

#[test]
fn kubelets_back_off_between_two_attempts_is_no_progress() {
    let mut world = World::new(&["main"]);
    let mut request = request(&["main"], strategy());
    world.run(&mut request);
    for second in (0..60).step_by(10) {
        world.clock = second;
        world.report_waiting("main", "CreateContainerConfigError");
        world.run(&mut request);
        world.clock = second + 5;
        world.report_waiting("main", "CrashLoopBackOff");
        world.run(&mut request);
        assert_eq!(message(&request, 0), "stopped; kubelet: CreateContainerConfigError: kubelet's words");
    }
    world.clock = 60;
    world.run(&mut request);
    assert_eq!(phases(&request), ["Failed"]);
}

#[test]
fn a_reason_that_comes_and_goes_does_not_fail() {
    let mut world = World::new(&["main"]);
    let mut request = request(&["main"], strategy());
    world.run(&mut request);
    for minute in 0..5 {
        world.clock = minute * 60;
        world.report_waiting("main", "ErrImagePull");
        world.run(&mut request);
        world.clock += 30;
        world.report_waiting("main", "ContainerCreating");
        world.run(&mut request);
    }
    assert_eq!(phases(&request), ["Recreating"]);
}

#[test]
fn a_container_that_will_not_be_restarted_fails_at_once() {
    for (policy, code, phase) in [
        ("Never", 143, "Failed"),
        ("OnFailure", 0, "Failed"),
        ("OnFailure", 143, "Recreating"),
        ("Always", 0, "Recreating"),
    ] {
        let mut world = World::new(&["main"]);
        world.pod["spec"]["restartPolicy"] = json!(policy);
        let mut request = request(&["main"], strategy());
        let first = world.plan(&request);
        request.status = first.status;
        world.exit("main", 0, code);
        world.run(&mut request);
        assert_eq!(phases(&request), [phase], "{policy} {code}");
    }
}

#[test]
fn restart_rules_come_before_the_policy() {
    let rules = |action: &str, operator: &str, values: serde_json::Value| json!([{"action": action, "exitCodes": {"operator": operator, "values": values}}]);
    for (policy, rules, code, phase) in [
        ("Never", rules("Restart", "In", json!([137, 143])), 143, "Recreating"),
        ("Never", rules("Restart", "In", json!([137])), 143, "Failed"),
        ("Never", rules("Restart", "NotIn", json!([0])), 143, "Recreating"),
        ("Never", rules("RestartAllContainers", "In", json!([143])), 143, "Recreating"),
        ("Never", rules("Shrug", "In", json!([143])), 143, "Failed"),
        ("OnFailure", rules("Restart", "In", json!([0])), 0, "Recreating"),
        ("OnFailure", rules("Restart", "In", json!([1])), 0, "Failed"),
    ] {
        let mut world = World::new(&["main"]);
        world.pod["spec"]["restartPolicy"] = json!("Never");
        world.pod["spec"]["containers"][0]["restartPolicy"] = json!(policy);
        world.pod["spec"]["containers"][0]["restartPolicyRules"] = rules.clone();
        let mut request = request(&["main"], strategy());
        let first = world.plan(&request);
        request.status = first.status;
        world.exit("main", 0, code);
        world.run(&mut request);
        assert_eq!(phases(&request), [phase], "{policy} {rules} {code}");
        if phase == "Failed" {
            assert!(
                message(&request, 0).contains("no rule in restartPolicyRules is for exit code"),
                "{}",
                message(&request, 0)
            );
        }
    }
}

#[test]
fn nothing_is_stopped_while_a_rule_restarts_the_whole_pod() {
    let mut world = World::new(&["main"]);
    world.pod["status"]["conditions"] = json!([{"type": "AllContainersRestarting", "status": "True"}]);
    let mut request = request(&["main"], strategy());
    world.run(&mut request);
    assert!(world.kills.is_empty());
    assert_eq!(message(&request, 0), "waiting: kubelet is restarting all containers of the Pod by a restart rule");
    world.pod["status"]["conditions"] = json!([]);
    world.run(&mut request);
    assert_eq!(world.kills.len(), 1);
}

#[test]
fn a_stop_that_kubelet_will_hold_back_says_so() {
    let mut world = World::new(&["main"]);
    world.clock = 60;
    world.pod["status"]["containerStatuses"][0]["lastState"] =
        json!({"terminated": {"exitCode": 0, "finishedAt": at(30)}});
    world.pod["status"]["containerStatuses"][0]["state"] = json!({"running": {"startedAt": at(31)}});
    let mut request = request(&["main"], strategy());
    let plan = world.plan(&request);
    let reported = super::news(&request, &plan.status.as_ref().unwrap().container_recreate_states);
    assert_eq!((reported.len(), reported[0].reason, reported[0].is_failure), (1, "BackOffExpected", false));
    request.status = plan.status;
    assert!(
        message(&request, 0).starts_with("stopping; kubelet will start it in about 10 s: "),
        "{}",
        message(&request, 0)
    );
    world.exit("main", 0, 143);
    request.status = world.plan(&request).status;
    assert!(
        message(&request, 0).starts_with("stopped; kubelet will start it in about 10 s: "),
        "{}",
        message(&request, 0)
    );
}

#[test]
fn case_23_a_request_that_bypassed_admission() {
    let mut world = World::new(&["main"]);
    let mut request = request(&["main"], strategy());
    request.spec.strategy = None;
    assert_eq!(world.plan(&request).kill.unwrap().grace, Duration::from_secs(30));
    request.spec.containers[0].status_context = None;
    world.run(&mut request);
    assert!(request.is_completed());
    assert!(message(&request, 0).contains("did not pass admission"), "{}", message(&request, 0));
}

#[test]
fn case_24_unknown_or_mixed_runtimes_end_with_a_message() {
    for (ids, part) in [
        (["docker://main-0", "docker://b-0"], "talks to [containerd], not to runtime docker"),
        (["containerd://main-0", "docker://b-0"], "runtime docker differs from containerd"),
        (["containerd", "containerd://b-0"], "statusContext.containerID is \"containerd\""),
    ] {
        let mut world = World::new(&["main", "b"]);
        let mut request = request(&["main", "b"], strategy());
        for (container, id) in request.spec.containers.iter_mut().zip(ids) {
            container.status_context.as_mut().unwrap().container_id = id.into();
        }
        world.run(&mut request);
        let status = request.status.as_ref().unwrap();
        assert!(status.phase == Phase::Completed && status.message.contains(part), "{}", status.message);
        assert!(world.killed().is_empty());
    }
}

fn with_hook(mut request: ContainerRecreateRequest) -> ContainerRecreateRequest {
    let exec = Some(ExecAction { command: Some(vec!["drain".into()]) });
    request.spec.containers[0].pre_stop = Some(LifecycleHandler { exec, ..Default::default() });
    request
}

#[test]
fn case_38_a_daemon_restart_runs_no_hook_twice_and_keeps_the_remaining_grace() {
    let mut world = World::new(&["main"]);
    let mut request = with_hook(request(&["main"], strategy()));
    let first = world.plan(&request);
    assert!(first.kill.as_ref().unwrap().hook.is_some());
    request.status = first.status;
    // The daemon dies during the hook and comes back 10 s later.
    world.memory = RestartMemory::default();
    world.clock = 10;
    world.run(&mut request);
    assert_eq!(world.kills, [("containerd://main-0".to_owned(), Duration::from_secs(20), false)]);
    world.restart("main", 1);
    world.run(&mut request);
    assert_eq!(message(&request, 0), "preStop was started before a restart of the daemon and is not run again");
}

#[test]
fn a_hook_that_this_process_has_not_begun_is_still_run() {
    let mut world = World::new(&["main"]);
    let mut request = with_hook(request(&["main"], strategy()));
    request.status = world.plan(&request).status; // the write timed out but took effect; nothing was begun
    let again = world.plan(&request);
    assert!(again.kill.unwrap().hook.is_some());
}

#[test]
fn an_older_version_of_the_request_starts_no_second_hook() {
    let mut world = World::new(&["main"]);
    let fresh = with_hook(request(&["main"], strategy()));
    let first = world.plan(&fresh);
    world.memory.stop_begins(&first.kill.unwrap());
    // The store shows the request as it was before the intent, and then again as it is.
    assert_eq!(world.plan(&fresh).kill.unwrap().hook, None);
    let recorded = ContainerRecreateRequest { status: first.status, ..fresh };
    assert_eq!(world.plan(&recorded).kill.unwrap().hook, None);
}

#[test]
fn case_38_a_kill_that_happened_before_the_daemon_died_is_not_repeated() {
    let mut world = World::new(&["main"]);
    let mut request = request(&["main"], RecreateStrategy { force_recreate: true, ..strategy() });
    request.status = world.plan(&request).status;
    world.memory = RestartMemory::default();
    world.exit("main", 0, 143);
    world.restart("main", 1);
    world.run(&mut request);
    assert!(world.killed().is_empty() && request.is_completed());
    assert!(request.status.unwrap().container_recreate_states[0].is_killed);
}

#[test]
fn a_recorded_intent_acts_on_its_instance_only() {
    let mut world = World::new(&["main"]);
    let mut request = request(&["main"], RecreateStrategy { force_recreate: true, ..strategy() });
    request.status = world.plan(&request).status;
    world.memory = RestartMemory::default();
    world.instances.clear(); // the runtime has removed it
    world.restart("main", 1);
    world.run(&mut request);
    assert!(world.killed().is_empty(), "the fresh instance is left alone");
}

#[test]
fn decision_5_grace_zero_is_immediate_and_runs_no_hook() {
    let mut world = World::new(&["main"]);
    let mut request =
        with_hook(request(&["main"], RecreateStrategy { termination_grace_period_seconds: Some(0), ..strategy() }));
    world.run(&mut request);
    assert_eq!(world.kills, [("containerd://main-0".to_owned(), Duration::ZERO, false)]);
}

#[test]
fn grace_left_for_the_stop() {
    let seconds = Duration::from_secs;
    for (grace, used, left) in [(30, 0, 30), (30, 10, 20), (30, 29, 2), (30, 99, 2), (1, 5, 1), (0, 0, 0), (0, 5, 0)] {
        assert_eq!(stop_grace(seconds(grace), seconds(used)), seconds(left), "{grace} {used}");
    }
}

#[test]
fn decision_7_a_sandbox_recreated_during_the_request_is_no_kill() {
    let mut world = World::new(&["main"]);
    world.instances.clear();
    world.restart("main", 1);
    let mut request = request(&["main"], strategy());
    world.run(&mut request);
    assert!(world.killed().is_empty() && message(&request, 0).starts_with("already recreated"));
}

#[test]
fn decision_8_a_static_pod_is_known_to_the_runtime_by_its_config_hash() {
    let mut world = World::new(&["main"]);
    world.pod["metadata"]["annotations"] =
        json!({"kubernetes.io/config.hash": "h", "kubernetes.io/config.mirror": "h"});
    world.instance("main", 0).pod_uid = "h".into();
    let mut request = request(&["main"], strategy());
    world.run(&mut request);
    assert_eq!(world.killed(), ["containerd://main-0"]);
}

#[test]
fn a_refused_stop_fails_the_container_unless_it_is_gone() {
    for gone in [false, true] {
        let mut world = World::new(&["main"]);
        let mut request = request(&["main"], strategy());
        let first = world.plan(&request);
        request.status = first.status;
        world.memory.stop_begins(&first.kill.unwrap());
        world.memory.stop_refused("main", "denied".into());
        if gone {
            world.exit("main", 0, 143);
        }
        world.run(&mut request);
        let want = match gone {
            false => ("Failed", "kill container error: denied"),
            true => ("Recreating", "stopped; waiting for kubelet to start it"),
        };
        assert_eq!((phases(&request)[0], message(&request, 0)), want);
        assert!(world.killed().is_empty(), "it is not asked again");
    }
}

/// Carries out stops that all fail in a way that may pass, until the request ends or `seconds` are over. When they were
/// tried, in seconds.
fn fail_stops(world: &mut World, request: &mut ContainerRecreateRequest, seconds: u64) -> Vec<u64> {
    let (end, mut tried) = (world.clock + seconds, Vec::new());
    while world.clock < end && !request.is_completed() {
        let plan = world.plan(request);
        if let Some(status) = plan.status {
            request.status = Some(status);
        }
        if let Some(kill) = plan.kill {
            tried.push(world.clock);
            world.memory.stop_begins(&kill);
            world.memory.stop_may_pass("main", "containerd: StopContainer: busy".into(), now(world.clock));
        }
        world.clock += 1;
    }
    tried
}

#[test]
fn a_stop_that_may_pass_is_asked_again_within_the_grace_period_and_says_so() {
    let mut world = World::new(&["main"]);
    let mut request = request(&["main"], strategy());
    let tried = fail_stops(&mut world, &mut request, 20);
    assert_eq!(tried, [0, 1, 2, 4, 8, 16], "with growing pauses");
    assert_eq!(
        request.status.as_ref().unwrap().message,
        "waiting for runtime containerd: StopContainer: busy; asked again until the grace period is over"
    );
    assert_eq!(world.plan(&request).status, None, "which is written once");
    // It works again: the rest is as ever, and nothing is left of the message.
    world.clock = 24;
    world.run(&mut request);
    assert_eq!(
        world.kills,
        [("containerd://main-0".to_owned(), Duration::from_secs(6), false)],
        "the rest of the grace"
    );
    world.restart("main", 1);
    world.run(&mut request);
    assert_eq!((phases(&request)[0], message(&request, 0)), ("Succeeded", ""));
    assert_eq!(request.status.unwrap().message, "");
}

#[test]
fn a_clock_that_is_set_does_not_change_the_grace_of_a_stop_that_is_asked_again() {
    for hour in [-3600, 3600] {
        let mut world = World::new(&["main"]);
        let mut request = request(&["main"], strategy());
        fail_stops(&mut world, &mut request, 2);
        // By the clock of the wall it was begun an hour ago, or is not begun yet.
        request.status.as_mut().unwrap().container_recreate_states[0].kill_started_at = Some(at(hour));
        world.clock = 4;
        world.run(&mut request);
        assert_eq!(world.kills, [("containerd://main-0".to_owned(), Duration::from_secs(26), false)], "{hour}");
    }
}

#[test]
fn a_stop_that_never_works_ends_with_the_grace_period_and_a_true_message() {
    for (grace, ends) in [(30, 30), (0, 10), (3, 10)] {
        let mut world = World::new(&["main"]);
        let grace_period = RecreateStrategy { termination_grace_period_seconds: Some(grace), ..strategy() };
        let mut request = request(&["main"], grace_period);
        let tried = fail_stops(&mut world, &mut request, 500);
        assert_eq!(tried.last(), Some(&ends), "the last one at the end: {tried:?}");
        let times = tried.len();
        let want = format!(
            "kill container error: containerd: StopContainer: busy; asked {times} times, and the grace period of {grace} s is over"
        );
        assert_eq!((phases(&request)[0], message(&request, 0)), ("Failed", &*want));
        assert!(request.is_completed());
    }
}

#[test]
fn time_in_which_the_runtime_cannot_be_asked_is_not_time_in_which_it_was_asked() {
    let mut world = World::new(&["main"]);
    let mut request = request(&["main"], RecreateStrategy { termination_grace_period_seconds: Some(5), ..strategy() });
    let tried = fail_stops(&mut world, &mut request, 2);
    assert_eq!(tried, [0, 1]);
    for away in 0..30 {
        let begun = now(2 + away);
        in_trouble(&request, &mut world.memory, "containerd", "it cannot be reached", begun, begun);
    }
    world.clock = 32;
    let again = world.plan(&request);
    request.status = again.status.or(request.status);
    world.memory.stop_begins(&again.kill.expect("it is asked when it is back"));
    world.memory.stop_may_pass("main", "containerd: StopContainer: busy".into(), now(32));
    assert!(!fail_stops(&mut world, &mut request, 5).is_empty() && !request.is_completed());
    fail_stops(&mut world, &mut request, 10);
    assert!(request.is_completed());
}

#[test]
fn a_runtime_that_stays_away_ends_the_request() {
    let mut recorded = request(&["main"], strategy());
    recorded.status = World::new(&["main"]).plan(&recorded).status;
    let unknown = "; whether the recorded stop was carried out is not known";
    for (request, limit, more) in [(request(&["main"], strategy()), 600, ""), (recorded, 60, unknown)] {
        let mut memory = RestartMemory::default();
        let mut ask =
            |second| in_trouble(&request, &mut memory, "containerd", "Version: no answer", now(0), now(second));
        assert_eq!(ask(0), None);
        assert_eq!(ask(limit - 1).unwrap().message, "waiting for runtime containerd: Version: no answer");
        let ended = ask(limit).unwrap();
        let want = format!("runtime containerd could not be asked for {limit} s: Version: no answer{more}");
        assert_eq!(
            (ended.phase, ended.message, ended.completion_time),
            (Phase::Completed, want.clone(), Some(at(limit.cast_signed())))
        );
        assert_eq!(
            (ended.container_recreate_states[0].phase.as_str(), &*ended.container_recreate_states[0].message),
            ("Failed", &*want)
        );
    }
}

/// The manager has recorded that the daemon was gone for too long.
fn leave_behind(request: &mut ContainerRecreateRequest) {
    let condition = serde_json::from_value(json!({"type": "DaemonGone", "status": "True", "reason": "DaemonGone",
        "message": "node n1 has had no ready kruise-daemon for 600 s", "lastTransitionTime": at(600)}));
    request.status.as_mut().unwrap().conditions.push(condition.unwrap());
}

#[test]
fn a_daemon_that_returns_ends_what_was_left_behind_and_touches_only_what_it_recorded() {
    for ordered_recreate in [false, true] {
        let mut world = World::new(&["a", "b"]);
        let mut request = request(&["a", "b"], RecreateStrategy { ordered_recreate, ..unready(5) });
        acquire_and_drain(&mut world, &mut request);
        let plan = world.plan(&request);
        assert_eq!(plan.kill.as_ref().unwrap().container, "a");
        request.status = plan.status;
        leave_behind(&mut request);
        // The daemon is back after an hour, and remembers nothing.
        world.memory = RestartMemory::default();
        world.clock += 3600;
        world.run(&mut request);
        assert_eq!(world.killed(), ["containerd://a-0"], "what it recorded, whose stop may be half done");
        assert!(!request.is_completed());
        world.restart("a", 1);
        world.run(&mut request);
        assert!(request.is_completed());
        assert_eq!((world.killed(), phases(&request)), (vec!["containerd://a-0"], vec!["Succeeded", "Failed"]));
        assert_eq!(message(&request, 1), "node n1 has had no ready kruise-daemon for 600 s");
        assert_eq!(request.status.unwrap().message, "node n1 has had no ready kruise-daemon for 600 s");
    }
}

#[test]
fn a_daemon_that_returns_stops_no_instance_that_came_after_the_one_it_recorded() {
    let mut world = World::new(&["main"]);
    let force = RecreateStrategy { force_recreate: true, ..strategy() };
    let mut request = request(&["main"], force);
    request.status = world.plan(&request).status;
    leave_behind(&mut request);
    world.memory = RestartMemory::default();
    // A later request has replaced the instance meanwhile.
    world.exit("main", 0, 0);
    world.restart("main", 1);
    world.run(&mut request);
    assert!(world.killed().is_empty());
    assert_eq!((phases(&request)[0], request.status.as_ref().unwrap().message.as_str()), ("Succeeded", ""));
}

#[test]
fn what_was_left_behind_holds_up_no_later_request_of_the_manager_and_is_ended_first_by_the_daemon() {
    let mut old = request(&["main"], strategy());
    old.status = World::new(&["main"]).plan(&old).status;
    let mut later = request(&["main"], strategy());
    (later.metadata.name, later.metadata.uid) = (Some("r2".into()), Some("r2".into()));
    // However old: what the daemon has to end comes first.
    later.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(-100)));
    later.status = Some(ContainerRecreateRequestStatus { phase: Phase::Recreating, ..Default::default() });
    assert_eq!(pick([&old, &later]).current.unwrap().metadata.name, later.metadata.name);
    leave_behind(&mut old);
    assert_eq!(pick([&old, &later]).current.unwrap().metadata.name, old.metadata.name);
    assert_eq!(pick_by_manager([&old, &later]).current.unwrap().metadata.name, later.metadata.name);
}

/// The container is stopped, and its hook has found no place.
fn stopped_without_its_hook() -> (World, ContainerRecreateRequest) {
    let mut world = World::new(&["main"]);
    let mut request = with_hook(request(&["main"], strategy()));
    let first = world.plan(&request);
    request.status = first.status;
    world.memory.stop_begins(&first.kill.unwrap());
    world.memory.hook_left_out("main");
    world.exit("main", 0, 143);
    world.run(&mut request);
    (world, request)
}

#[test]
fn a_hook_that_found_no_place_is_reported_to_the_end() {
    let (mut world, mut request) = stopped_without_its_hook();
    let reported = "preStop was not run: other hooks of this node took all places for the whole grace period";
    assert_eq!(message(&request, 0), format!("stopped; waiting for kubelet to start it; {reported}"));
    world.restart("main", 1);
    world.run(&mut request);
    assert_eq!((phases(&request)[0], message(&request, 0)), ("Succeeded", reported));
}

#[test]
fn a_request_that_an_older_release_has_begun_ends_with_the_same_words() {
    let without_fields = |request: &mut ContainerRecreateRequest| {
        for state in &mut request.status.as_mut().unwrap().container_recreate_states {
            (state.is_skipped, state.hook_note, state.expected_back_off_seconds) = (false, None, None);
        }
    };
    let state = |request: &ContainerRecreateRequest| states_of(request).remove(0);

    let mut world = World::new(&["main"]);
    world.exit("main", 0, 1);
    world.start("main", 1);
    world.report("main", 1, false);
    let mut skipped = request(&["main"], strategy());
    world.run(&mut skipped);
    without_fields(&mut skipped);
    world.memory = RestartMemory::default();
    world.report("main", 1, true);
    world.run(&mut skipped);
    assert_eq!((phases(&skipped)[0], state(&skipped).is_skipped), ("Succeeded", true));
    assert_eq!(message(&skipped, 0), "already recreated: another instance replaced the one that was meant");

    let (mut world, mut left_out) = stopped_without_its_hook();
    without_fields(&mut left_out);
    world.memory = RestartMemory::default();
    world.restart("main", 1);
    world.run(&mut left_out);
    assert_eq!((phases(&left_out)[0], state(&left_out).hook_note), ("Succeeded", Some(HookNote::LeftOut)));
    assert_eq!(message(&left_out, 0), super::node::HOOK_LEFT_OUT);
}

#[test]
fn a_runtime_whose_view_lags_behind_its_own_stop_is_not_asked_again_at_once() {
    let mut world = World::new(&["main"]);
    let mut request = request(&["main"], strategy());
    let first = world.plan(&request);
    request.status = first.status;
    world.memory.stop_begins(&first.kill.unwrap());
    world.memory.stop_answered("main", now(world.clock));
    let settling = world.plan(&request);
    assert_eq!((settling.kill, settling.requeue), (None, Some(Duration::from_millis(50))));
    world.clock += 2;
    let kill = world.plan(&request).kill.unwrap();
    assert!(kill.hook.is_none(), "it still runs after that: the stop is sent once more");
    world.memory.stop_begins(&kill);
    world.memory.stop_answered("main", now(world.clock));
    world.exit("main", 0, 143);
    world.run(&mut request);
    assert!(request.status.unwrap().container_recreate_states[0].is_killed);
}

#[test]
fn a_failure_under_fail_begins_no_further_stop() {
    let mut world = World::new(&["a", "b"]);
    let mut request = request(&["a", "b"], strategy());
    // b has failed in an earlier pass whose completion was lost; a is untouched.
    let mut states = states_of(&request);
    states[1].phase = Phase::Failed;
    request.status = Some(ContainerRecreateRequestStatus {
        phase: Phase::Recreating,
        container_recreate_states: states,
        ..Default::default()
    });
    world.run(&mut request);
    assert!(world.killed().is_empty());
    assert_eq!((phases(&request), request.is_completed()), (vec!["Pending", "Failed"], true));
}

#[test]
fn decision_3_unfinished_containers_become_failed_with_the_reason() {
    let mut world = World::new(&["a", "b"]);
    let mut request = request(&["a", "b"], ordered());
    world.run(&mut request);
    world.restart("a", 1);
    let plan = world.plan(&request);
    request.status = plan.status;
    let states = fail_unfinished(&request, "too late");
    assert_eq!((states[0].phase.as_str(), states[1].phase.as_str()), ("Succeeded", "Failed"));
    assert_eq!(states[1].message, "too late");
}

#[test]
fn an_absent_container_blocks_no_other_of_an_unordered_request() {
    let mut world = World::new(&["a", "b"]);
    world.instances.retain(|i| i.container != "a");
    let mut request = request(&["a", "b"], strategy());
    world.run(&mut request);
    assert_eq!(world.killed(), ["containerd://b-0"]);
}

#[test]
fn kubelets_own_words_are_shown_while_it_backs_off() {
    let mut world = World::new(&["main"]);
    let mut request = request(&["main"], strategy());
    world.run(&mut request);
    world.report_waiting("main", "CrashLoopBackOff");
    world.run(&mut request);
    assert_eq!(message(&request, 0), "stopped; kubelet: CrashLoopBackOff: kubelet's words");
}

/// What may happen between two looks of the daemon.
#[derive(Clone, Debug)]
enum Event {
    Restart(usize),
    Crash(usize),
    ReportReady(usize),
    ReportStuck(usize),
    DaemonRestarts,
    Time(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..2_usize).prop_map(Event::Restart),
        2 => (0..2_usize).prop_map(Event::Crash),
        4 => (0..2_usize).prop_map(Event::ReportReady),
        1 => (0..2_usize).prop_map(Event::ReportStuck),
        1 => Just(Event::DaemonRestarts),
        2 => (1..70_u64).prop_map(Event::Time),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// The invariants of the module's documentation, over random histories.
    #[test]
    fn invariants(ordered in any::<bool>(), ignore in any::<bool>(), force in any::<bool>(), events in proptest::collection::vec(event(), 0..60)) {
        let names = ["a", "b"];
        let mut world = World::new(&names);
        let policy = if ignore { FailurePolicy::Ignore } else { FailurePolicy::Fail };
        let strategy = RecreateStrategy { ordered_recreate: ordered, force_recreate: force, failure_policy: Some(policy), ..strategy() };
        let mut request = request(&names, strategy);
        let mut newest = [0_i32; 2];
        for event in events {
            match event {
                Event::Restart(i) => {
                    if world.instances.iter().any(|x| x.id == format!("containerd://{}-{}", names[i], newest[i]) && x.state == InstanceState::Exited) {
                        newest[i] += 1;
                        world.start(names[i], newest[i]);
                    }
                }
                Event::Crash(i) => world.exit(names[i], newest[i], 1),
                Event::ReportReady(i) => world.report(names[i], newest[i], true),
                Event::ReportStuck(i) => world.report_waiting(names[i], "ErrImagePull"),
                Event::DaemonRestarts => world.memory = RestartMemory::default(),
                Event::Time(seconds) => world.clock += seconds,
            }
            let before = request.status.clone();
            let last = world.run(&mut request);
            if let Some(before) = before {
                if before.phase == Phase::Completed {
                    prop_assert_eq!(request.status.as_ref(), Some(&before), "a completed request never moves");
                }
                for (old, new) in before.container_recreate_states.iter().zip(states_of(&request)) {
                    if super::is_terminal(old) {
                        prop_assert_eq!(old, &new, "a container that ended never moves");
                    }
                }
            }
            let in_flight = states_of(&request).iter().filter(|s| s.phase == Phase::Recreating).count();
            prop_assert!(!ordered || in_flight <= 1, "ordered mode has one container in flight");
            prop_assert!(request.is_completed() || last.requeue.is_some(), "no step without progress or a wait");
        }
        let mut killed = world.killed();
        killed.sort_unstable();
        let all = killed.len();
        killed.dedup();
        prop_assert_eq!(all, killed.len(), "no instance is killed twice");
        for name in names {
            let of_one = killed.iter().filter(|id| id.contains(&format!("//{name}-"))).count();
            prop_assert!(of_one <= 1, "no container is killed twice by one request");
            prop_assert!(force || of_one == 0 || killed.contains(&format!("containerd://{name}-0").as_str()), "only what was meant");
        }
        if ignore && request.is_completed() {
            prop_assert!(states_of(&request).iter().all(super::is_terminal), "Ignore ends all containers");
        }
    }
}
