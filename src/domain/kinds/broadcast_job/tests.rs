//! The plan, held against the spec.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    make,
    plan::{self, Because, BroadcastAction, BroadcastObserved, BroadcastPlan, BroadcastState},
    pod::{BroadcastNode, BroadcastPod, PodStage},
    spec::BroadcastSpec,
    status,
};
use crate::{
    api::apps::broadcast_job::{BroadcastJob, BroadcastJobStatus},
    domain::{node::backoff::Failures, workload::owner::OwnerRef},
    k8s::{hash, name::is_dns_subdomain, node::NodeView, pod::PodView, time::Now},
};

const NOW: &str = "2026-01-01T00:00:00Z";

fn now() -> Now {
    Now { wall: NOW.parse().unwrap(), mono: Duration::from_secs(1_000) }
}

/// A job, the nodes and its Pods.
#[derive(Clone)]
struct Case {
    job: Value,
    nodes: Vec<Value>,
    pods: Vec<Value>,
    age: u64,
    ended: u64,
    tries: Failures,
}

fn case(nodes: usize) -> Case {
    let job = json!({"metadata": {"name": "job", "namespace": "ns", "uid": "j", "generation": 1},
        "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let nodes = (0..nodes).map(|i| json!({"metadata": {"name": format!("n{i}")}})).collect();
    Case { job, nodes, pods: Vec::new(), age: 0, ended: 0, tries: Failures::default() }
}

fn pod(name: &str, node: &str, phase: &str) -> Value {
    json!({"metadata": {"name": name, "uid": name}, "spec": {"nodeName": node}, "status": {"phase": phase}})
}

fn unbound(name: &str, node: &str) -> Value {
    let term = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]});
    json!({"metadata": {"name": name, "uid": name}, "status": {"phase": "Pending"},
        "spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}}})
}

impl Case {
    fn spec_with(mut self, spec: Value) -> Self {
        json_patch::merge(&mut self.job["spec"], &spec);
        self
    }
    fn with(mut self, pods: &[Value]) -> Self {
        self.pods.extend_from_slice(pods);
        self
    }
    fn node(mut self, node: usize, change: Value) -> Self {
        json_patch::merge(&mut self.nodes[node], &change);
        self
    }
    fn status(mut self, status: Value) -> Self {
        self.job["status"] = status;
        self
    }
    fn run<R>(&self, f: impl FnOnce(&BroadcastObserved<'_>) -> R) -> R {
        let job: BroadcastJob = serde_json::from_value(self.job.clone()).unwrap();
        let spec = BroadcastSpec::of(&job, false).unwrap();
        let view = |node: &Value| serde_json::from_value::<NodeView>(node.clone()).unwrap();
        let nodes: Vec<BroadcastNode> = self.nodes.iter().map(|node| BroadcastNode::of(&view(node), &spec)).collect();
        let view = |pod: &Value| serde_json::from_value::<PodView>(pod.clone()).unwrap();
        let pods: Vec<BroadcastPod> = self.pods.iter().map(|pod| BroadcastPod::of(&view(pod), &spec)).collect();
        f(&BroadcastObserved {
            spec: &spec,
            recorded: &job.status.unwrap_or_default(),
            nodes: &nodes,
            pods: &pods,
            age: Duration::from_secs(self.age),
            ended: Duration::from_secs(self.ended),
            tries: &self.tries,
            now: now(),
        })
    }
    fn plan(&self) -> BroadcastPlan {
        self.run(plan::plan)
    }
    fn recorded(&self) -> BroadcastJobStatus {
        self.run(|observed| status::status(observed, &plan::plan(observed), 1, None))
    }
    /// Nodes that get a Pod, Pods that are deleted, Pods that are stopped.
    fn actions(&self) -> (Vec<String>, Vec<(String, Because)>, Vec<String>) {
        let (mut create, mut delete, mut stop) = (Vec::new(), Vec::new(), Vec::new());
        for action in self.plan().actions {
            match action {
                BroadcastAction::Create { node } => create.push(node),
                BroadcastAction::Delete { pod, because } => delete.push((pod, because)),
                BroadcastAction::Stop { pod } => stop.push(pod),
                other => panic!("{other:?}"),
            }
        }
        (create, delete, stop)
    }
    fn creates(&self) -> Vec<String> {
        self.actions().0
    }
    fn numbers(&self) -> (usize, usize, usize, usize) {
        let counts = self.plan().counts;
        (counts.desired, counts.active, counts.succeeded, counts.failed)
    }
}

fn condition<'s>(status: &'s BroadcastJobStatus, type_: &str) -> (&'s str, &'s str, &'s str) {
    let found = status.conditions.iter().find(|condition| condition.type_ == type_).unwrap();
    (&found.status, &found.reason, &found.message)
}

fn cordoned() -> Value {
    json!({"spec": {"unschedulable": true}})
}

fn tainted(effect: &str) -> Value {
    json!({"spec": {"taints": [{"key": "dedicated", "value": "db", "effect": effect}]}})
}

#[test]
fn c2_9_one_pod_for_each_node_that_fits_as_many_at_a_time_as_parallelism_says() {
    assert_eq!(case(3).creates(), ["n0", "n1", "n2"]);
    for (parallelism, active, want) in [
        (json!(2), 0, 2),
        (json!(2), 1, 1),
        (json!(0), 0, 0),
        // Of ten nodes, rounded up.
        (json!("15%"), 0, 2),
        (json!("100%"), 3, 7),
    ] {
        let running: Vec<Value> = (0..active).map(|i| pod(&format!("p{i}"), &format!("n{i}"), "Running")).collect();
        let case = case(10).spec_with(json!({"parallelism": parallelism})).with(&running);
        assert_eq!(case.creates().len(), want, "{parallelism} {active}");
        assert_eq!(case.numbers(), (10, active, 0, 0));
        assert!(!case.plan().is_over_limit);
    }
    let over =
        case(2).spec_with(json!({"parallelism": 1})).with(&[pod("a", "n0", "Running"), pod("b", "n1", "Running")]);
    assert!(over.plan().is_over_limit && over.plan().actions.is_empty(), "Pods that run are left alone");
}

#[test]
fn e32_a_node_runs_once_it_is_uncordoned_untainted_or_labelled() {
    let blocked = case(1).spec_with(json!({"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}}));
    assert_eq!(blocked.creates(), [""; 0]);
    assert_eq!(blocked.clone().node(0, json!({"metadata": {"labels": {"disk": "ssd"}}})).creates(), ["n0"]);
    for change in
        [cordoned(), tainted("NoSchedule"), tainted("NoExecute"), json!({"metadata": {"deletionTimestamp": NOW}})]
    {
        let case = case(2).node(0, change.clone());
        assert_eq!(case.creates(), ["n1"], "{change}");
        assert_eq!(case.numbers().0, 1);
    }
    let tolerates = |key: &str| json!({"template": {"spec": {"tolerations": [{"key": key, "operator": "Exists"}]}}});
    assert_eq!(case(1).node(0, cordoned()).spec_with(tolerates("node.kubernetes.io/unschedulable")).creates(), ["n0"]);
    assert_eq!(case(1).node(0, tainted("NoSchedule")).spec_with(tolerates("dedicated")).creates(), ["n0"]);
}

#[test]
fn a_node_without_room_for_the_requests_gets_no_pod() {
    let wants = json!({"template": {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}}});
    let small = case(2).spec_with(wants).node(1, json!({"status": {"allocatable": {"cpu": "2"}}}));
    assert_eq!(small.creates(), ["n1"]);
}

#[test]
fn e33_a_pod_that_is_not_bound_yet_counts_for_the_node_in_its_affinity() {
    let case = case(2).with(&[unbound("a", "n0")]);
    assert_eq!((case.creates(), case.numbers()), (vec!["n1".to_owned()], (2, 1, 0, 0)));
}

#[test]
fn a_pod_of_which_nobody_knows_the_node_counts_and_is_left_alone() {
    let lost = json!({"metadata": {"name": "a", "uid": "a"}, "spec": {}, "status": {"phase": "Pending"}});
    let case = case(1).spec_with(json!({"parallelism": 1})).with(&[lost]);
    assert_eq!((case.plan().actions, case.numbers()), (vec![], (1, 1, 0, 0)));
}

#[test]
fn e35_without_a_node_that_fits_a_job_is_running_never_complete() {
    let case = case(0);
    assert_eq!((case.plan().state, case.plan().actions), (BroadcastState::Running, vec![]));
    let status = case.recorded();
    assert_eq!(status.phase, "running");
    assert_eq!(condition(&status, "Reconciling"), ("True", "NoNodes", "no node fits the template yet"));
}

#[test]
fn c2_10_a_job_completes_when_the_pod_of_each_node_has_ended() {
    let running = case(2).with(&[pod("a", "n0", "Succeeded"), pod("b", "n1", "Running")]);
    assert_eq!(running.plan().state, BroadcastState::Running);
    let ended = case(2)
        .spec_with(json!({"failurePolicy": {"type": "Continue"}}))
        .with(&[pod("a", "n0", "Succeeded"), pod("b", "n1", "Failed")]);
    assert_eq!(ended.plan().state, BroadcastState::Completes);
    let status = ended.recorded();
    assert_eq!((status.phase.as_str(), status.completion_time), ("completed", Some(NOW.parse().unwrap())));
    let complete = status.is_true("Complete").unwrap();
    assert_eq!(
        (complete.reason.as_str(), complete.message.as_str()),
        ("Complete", "Job completed, 1 pods succeeded, 1 pods failed")
    );
    assert_eq!(
        (complete.last_probe_time, complete.last_transition_time),
        (status.completion_time, status.completion_time)
    );
    assert_eq!(condition(&status, "Ready").0, "True", "decision 32");
    assert_eq!((status.desired, status.active, status.succeeded, status.failed), (2, 0, 1, 1));
    // One that is still to begin, and one that has to go first.
    assert_eq!(case(2).with(&[pod("a", "n0", "Succeeded")]).plan().state, BroadcastState::Running);
    let mut leaving = pod("b", "n1", "Running");
    leaving["metadata"]["deletionTimestamp"] = NOW.into();
    let leaving = case(2).with(&[pod("a", "n0", "Succeeded"), leaving]);
    assert_eq!(
        (leaving.plan().state, leaving.creates(), leaving.numbers()),
        (BroadcastState::Running, vec![], (2, 0, 1, 0))
    );
}

#[test]
fn e36_with_never_neither_deadline_nor_completion_count_and_fail_fast_still_ends_it() {
    let never = |pods: &[Value]| {
        let mut case =
            case(1).spec_with(json!({"completionPolicy": {"type": "Never", "activeDeadlineSeconds": 5}})).with(pods);
        case.age = 100;
        case
    };
    let done = never(&[pod("a", "n0", "Succeeded")]);
    assert_eq!((done.plan().state, done.plan().look), (BroadcastState::Running, None));
    assert_eq!(condition(&done.recorded(), "Ready").1, "NodesDone");
    let failed = never(&[pod("a", "n0", "Failed")]);
    assert!(matches!(failed.plan().state, BroadcastState::Fails { reason: "FailedPod", .. }));
}

#[test]
fn c2_7_f35_the_deadline_is_computed_from_the_begin_each_time() {
    let mut case = case(1)
        .spec_with(json!({"completionPolicy": {"activeDeadlineSeconds": 60}}))
        .with(&[pod("a", "n0", "Running")]);
    case.age = 20;
    assert_eq!((case.plan().state, case.plan().look), (BroadcastState::Running, Some(Duration::from_secs(40))));
    case.age = 60;
    assert!(matches!(case.plan().state, BroadcastState::Fails { reason: "DeadlineExceeded", .. }));
    assert_eq!(case.actions().1, [("a".to_owned(), Because::JobFailed)]);
    let status = case.recorded();
    assert_eq!((status.phase.as_str(), status.is_true("Failed").unwrap().reason.as_str()), ("failed", "Failed"));
    assert_eq!(
        condition(&status, "Stalled"),
        ("True", "DeadlineExceeded", "Job was active longer than its deadline of 60 s")
    );
    // A paused job does not fail before it goes on.
    assert_eq!(case.spec_with(json!({"paused": true})).plan().state, BroadcastState::Paused);
}

#[test]
fn c2_8_a_job_that_fails_fast_deletes_what_runs_and_makes_nothing() {
    let case = case(4).with(&[pod("a", "n0", "Failed"), pod("b", "n1", "Running"), pod("c", "n2", "Succeeded")]);
    assert_eq!(case.actions(), (vec![], vec![("b".to_owned(), Because::JobFailed)], vec![]));
    let status = case.recorded();
    assert_eq!(status.is_true("Failed").unwrap().message, "failed pod is found: a on node n0");
    // What could not be deleted is deleted later; the counts of the end stay, but for what runs.
    let mut over = case.clone();
    over.job["status"] = serde_json::to_value(&status).unwrap();
    over.pods.remove(0);
    assert_eq!(over.actions().1, [("b".to_owned(), Because::JobFailed)]);
    over.pods.clear();
    let last = over.recorded();
    assert_eq!((last.active, last.succeeded, last.failed, last.desired), (0, 1, 1, status.desired));
    assert_eq!(condition(&last, "Stalled"), condition(&status, "Stalled"));
    assert!(over.plan().actions.is_empty(), "a job that is over makes nothing");
}

#[test]
fn c2_6_f38_pause_is_written_into_the_spec_once_and_the_job_goes_on_when_it_is_cleared() {
    let pause = json!({"failurePolicy": {"type": "Pause"}, "parallelism": 1});
    let mut case = case(3).spec_with(pause).with(&[pod("a", "n0", "Failed")]);
    assert_eq!(case.plan().actions, [BroadcastAction::Pause { failed: 1 }]);
    let patch = make::pause(1, Some("7"), "j");
    assert_eq!(patch["metadata"]["resourceVersion"], "7", "nobody's later change is overwritten");
    json_patch::merge(&mut case.job, &patch);
    assert_eq!((case.plan().state, case.plan().actions), (BroadcastState::Paused, vec![]));
    let status = case.recorded();
    assert_eq!((status.phase.as_str(), condition(&status, "Stalled").1), ("paused", "PausedAfterFailure"));
    // The user clears it: the same failure does not pause again, the next one does.
    case.job["spec"]["paused"] = false.into();
    assert_eq!(case.creates(), ["n1"]);
    let again = case.clone().with(&[pod("b", "n1", "Failed")]);
    assert_eq!(again.plan().actions, [BroadcastAction::Pause { failed: 2 }]);
    // A failed Pod was deleted, to try its node again: the next failure pauses again.
    case.pods.clear();
    assert_eq!(
        case.plan().actions,
        [BroadcastAction::Remember { failed: 0 }, BroadcastAction::Create { node: "n0".into() }]
    );
}

#[test]
fn f38_pods_that_failed_while_the_job_was_paused_do_not_pause_it_again() {
    let pause = json!({"failurePolicy": {"type": "Pause"}, "parallelism": 3});
    let running = [pod("b", "n1", "Running"), pod("c", "n2", "Running")];
    let mut case = case(4).spec_with(pause).with(&[pod("a", "n0", "Failed")]).with(&running);
    let patch = make::pause(1, None, "j");
    json_patch::merge(&mut case.job, &patch);
    case.pods[1]["status"]["phase"] = "Failed".into();
    case.pods[2]["status"]["phase"] = "Failed".into();
    assert_eq!((case.plan().state, case.plan().actions), (BroadcastState::Paused, vec![]));
    let status = case.recorded();
    assert_eq!((status.phase.as_str(), status.failed), ("paused", 3));
    let unseen = case.clone().spec_with(json!({"paused": false}));
    let mut case = case.status(json!(status)).spec_with(json!({"paused": false}));
    // First it is noted. Until then the status stays, and a pass that comes after a crash or a refusal decides the same.
    let plan = case.plan();
    assert_eq!((plan.state, plan.actions), (BroadcastState::Paused, vec![BroadcastAction::Remember { failed: 3 }]));
    assert_eq!((case.recorded().phase.as_str(), case.recorded().failed), ("paused", 3));
    json_patch::merge(&mut case.job, &make::remember(3, None, "j"));
    assert_eq!((case.plan().state, case.creates()), (BroadcastState::Running, vec!["n3".to_owned()]));
    let next = case.with(&[pod("d", "n3", "Failed")]);
    assert_eq!(next.plan().actions, [BroadcastAction::Pause { failed: 4 }], "the next failure does");
    // Failures that no status has shown nobody has answered.
    for status in [json!({"phase": "paused", "failed": 1}), json!({"phase": "running", "failed": 1}), json!({})] {
        let unseen = unseen.clone().status(status);
        assert_eq!(unseen.plan().actions, [BroadcastAction::Pause { failed: 3 }]);
    }
    // A pause that was refused is written again: the status does not say before it is done that it is.
    let again = unseen.clone().status(json!({"phase": "running", "failed": 1}));
    let again = again.clone().status(json!(again.recorded()));
    assert_eq!(again.plan().actions, [BroadcastAction::Pause { failed: 3 }]);
    // Nor those of a job that failures have never paused, as the status of OpenKruise shows them.
    let mut foreign = unseen.status(json!({"phase": "paused", "failed": 3}));
    foreign.job["metadata"]["annotations"] = Value::Null;
    assert_eq!(foreign.plan().actions, [BroadcastAction::Pause { failed: 3 }]);
    // What cannot be a number of Pods is none.
    foreign.job["metadata"]["annotations"] = json!({"kruise.rs/paused-at-failed": "-7"});
    foreign.pods.clear();
    assert_eq!((foreign.plan().state, foreign.creates().len()), (BroadcastState::Running, 3));
}

#[test]
fn c2_5_a_job_that_is_paused_by_its_user_is_held_when_no_pod_runs_any_more() {
    let paused = case(2).spec_with(json!({"paused": true}));
    for (pods, active, ready, says) in [
        (vec![], 0, "True", "0 of 2 nodes are done, 0 pods are active"),
        (vec![pod("a", "n0", "Running")], 1, "False", "0 of 2 nodes are done, 1 pods are active"),
        (vec![unbound("a", "n0")], 1, "False", "0 of 2 nodes are done, 1 pods are active"),
        (vec![pod("a", "n0", "Succeeded")], 0, "True", "1 of 2 nodes are done, 0 pods are active"),
        (
            vec![pod("a", "n0", "Succeeded"), pod("b", "n1", "Running")],
            1,
            "False",
            "1 of 2 nodes are done, 1 pods are active",
        ),
    ] {
        let case = paused.clone().with(&pods);
        assert_eq!((case.plan().state, case.plan().actions), (BroadcastState::Paused, vec![]));
        let status = case.recorded();
        assert_eq!((status.phase.as_str(), status.active), ("paused", active));
        let message = format!("paused: {says}");
        assert_eq!(condition(&status, "Ready"), (ready, "Paused", message.as_str()), "{pods:?}");
        let is_reconciling = if ready == "True" { "False" } else { "True" };
        assert_eq!((condition(&status, "Reconciling").0, condition(&status, "Stalled").0), (is_reconciling, "False"));
    }
}

fn restarted(name: &str, node: &str, app: i32, init: i32) -> Value {
    let mut pod = pod(name, node, "Running");
    json_patch::merge(
        &mut pod,
        &json!({"spec": {"initContainers": [{"name": "i"}]}, "status": {"containerStatuses": [{"name": "c", "restartCount": app}],
            "initContainerStatuses": [{"name": "i", "restartCount": init}]}}),
    );
    pod
}

#[test]
fn c2_3_f39_a_pod_over_its_restart_limit_is_stopped_and_has_failed() {
    let limited = |policy: &str| case(2).spec_with(json!({"failurePolicy": {"type": policy, "restartLimit": 2}}));
    let within = limited("Continue").with(&[restarted("a", "n0", 1, 1), pod("b", "n1", "Succeeded")]);
    assert_eq!((within.plan().state, within.numbers()), (BroadcastState::Running, (2, 1, 1, 0)));
    let over = limited("Continue").with(&[restarted("a", "n0", 2, 1), pod("b", "n1", "Succeeded")]);
    assert_eq!(over.actions(), (vec![], vec![], vec!["a".to_owned()]), "it stays, with its logs");
    assert_eq!((over.plan().state, over.numbers()), (BroadcastState::Completes, (2, 0, 1, 1)));
    let fast = limited("FailFast").with(&[restarted("a", "n0", 3, 0), pod("b", "n1", "Running")]);
    assert_eq!(fast.actions(), (vec![], vec![("b".to_owned(), Because::JobFailed)], vec!["a".to_owned()]));
    // What is paused is left alone, until it goes on. What is over is not.
    let paused = over.clone().spec_with(json!({"paused": true}));
    assert_eq!((paused.plan().state, paused.actions().2), (BroadcastState::Paused, vec![]));
    let ended = json!({"conditions": [{"type": "Failed", "status": "True"}]});
    assert_eq!(paused.status(ended).actions().2, ["a"]);
    // Once it is stopped it has failed for good, and is not stopped again.
    let mut stopped = restarted("a", "n0", 3, 0);
    json_patch::merge(&mut stopped, &make::stop());
    let stopped = limited("Continue").spec_with(json!({"failurePolicy": {"restartLimit": 9}})).with(&[stopped]);
    assert_eq!((stopped.actions().2, stopped.numbers()), (vec![], (2, 0, 0, 1)));
    // With Never nothing restarts.
    let never = limited("Continue").spec_with(json!({"template": {"spec": {"restartPolicy": "Never"}}}));
    assert_eq!(never.with(&[restarted("a", "n0", 9, 9)]).numbers().3, 0);
}

#[test]
fn f40_ended_pods_stay_on_nodes_that_no_longer_fit_and_are_counted_once() {
    for change in
        [cordoned(), tainted("NoSchedule"), tainted("NoExecute"), json!({"metadata": {"labels": {"disk": null}}})]
    {
        let case = case(2)
            .node(0, json!({"metadata": {"labels": {"disk": "ssd"}}}))
            .node(1, json!({"metadata": {"labels": {"disk": "ssd"}}}))
            .spec_with(json!({"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}}))
            .node(0, change.clone())
            .with(&[pod("a", "n0", "Succeeded"), pod("b", "n1", "Running")]);
        assert_eq!(case.actions(), (vec![], vec![], vec![]), "{change}");
        assert_eq!(case.numbers(), (2, 1, 1, 0), "{change}");
    }
    // Their node has left: they count until they are gone too.
    assert_eq!(case(1).with(&[pod("a", "gone", "Succeeded"), pod("b", "n0", "Succeeded")]).numbers(), (2, 0, 2, 0));
}

#[test]
fn c2_4_a_pod_that_runs_stays_on_a_cordoned_node_and_one_that_cannot_get_there_goes() {
    let not_ready = json!({"spec": {"taints": [
        {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}, {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]}});
    for change in [cordoned(), tainted("NoSchedule"), not_ready] {
        let runs = case(1).node(0, change.clone()).with(&[pod("a", "n0", "Running")]);
        assert_eq!((runs.actions().1, runs.numbers()), (vec![], (1, 1, 0, 0)), "{change}");
        let waits = case(1).node(0, change.clone()).with(&[unbound("a", "n0")]);
        assert_eq!((waits.actions().1, waits.numbers().0), (vec![("a".to_owned(), Because::Unfit)], 0), "{change}");
    }
    let evicted = case(1).node(0, tainted("NoExecute")).with(&[pod("a", "n0", "Running")]);
    assert_eq!(evicted.actions().1, [("a".to_owned(), Because::Unfit)]);
    // A node that is gone takes its Pods along; one that was on its way there never arrives.
    let gone = case(1).with(&[pod("a", "gone", "Running"), unbound("b", "gone2"), pod("c", "n0", "Succeeded")]);
    assert_eq!(gone.actions().1, [("b".to_owned(), Because::Unfit)]);
    assert_eq!(gone.plan().state, BroadcastState::Running, "what is to be deleted has not ended");
}

#[test]
fn of_several_pods_of_a_node_one_is_kept() {
    let case1 = case(1).with(&[pod("a", "n0", "Running"), unbound("b", "n0")]);
    assert_eq!(case1.actions().1, [("b".to_owned(), Because::Surplus)]);
    assert_eq!(case1.plan().counts.doubled.as_deref(), Some("n0"));
    let case2 = case(1).with(&[pod("a", "n0", "Running"), pod("b", "n0", "Succeeded")]);
    assert_eq!((case2.actions().1, case2.numbers()), (vec![("a".to_owned(), Because::Surplus)], (1, 1, 1, 0)));
}

#[test]
fn f37_creation_failures_are_bounded_and_keep_no_other_node_waiting() {
    let mut case = case(2).spec_with(json!({"parallelism": 1}));
    case.tries.note("n0", now().mono);
    assert_eq!(case.numbers().1, 0, "what was not made is not active");
    assert_eq!((case.creates(), case.plan().look), (vec!["n1".to_owned()], Some(Duration::from_secs(1))));
    case.tries.note("n0", now().mono);
    assert_eq!(case.plan().look, Some(Duration::from_secs(2)), "longer each time");
}

#[test]
fn c2_1_the_time_to_live_passes_after_the_end() {
    let over =
        json!({"conditions": [{"type": "Complete", "status": "True"}], "completionTime": NOW, "phase": "completed"});
    let mut case = case(1).spec_with(json!({"completionPolicy": {"ttlSecondsAfterFinished": 30}})).status(over);
    case.ended = 10;
    assert_eq!(
        (case.plan().state, case.plan().actions, case.plan().look),
        (BroadcastState::Over, vec![], Some(Duration::from_secs(20)))
    );
    case.ended = 30;
    assert_eq!(case.plan().actions, [BroadcastAction::DeleteJob]);
}

/// Kubelet may start a sidecar again that the terminator has stopped, before the Pod is ended.
#[test]
fn a_sidecar_that_is_stopped_when_the_main_containers_are_over_is_no_failure() {
    let job: BroadcastJob = serde_json::from_value(case(1).job).unwrap();
    let ending = |ends_sidecars: bool, main: Value, restarts: [i32; 2]| {
        let spec = BroadcastSpec::of(&job, ends_sidecars).unwrap();
        let env = json!([{"name": "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT", "value": "true"}]);
        let mut pod = pod("a", "n0", "Running");
        pod["spec"]["restartPolicy"] = "OnFailure".into();
        pod["spec"]["containers"] = json!([{"name": "main"}, {"name": "proxy", "env": env}]);
        pod["status"]["containerStatuses"] = json!([
            {"name": "main", "restartCount": restarts[0], "state": main},
            {"name": "proxy", "restartCount": restarts[1], "state": {"running": {}}},
        ]);
        BroadcastPod::of(&serde_json::from_value::<PodView>(pod).unwrap(), &spec).stage
    };
    let exited = |code: i32| json!({"terminated": {"exitCode": code}});
    for (ends_sidecars, main, restarts, stage) in [
        (true, exited(0), [0, 1], PodStage::Active),
        (false, exited(0), [0, 1], PodStage::Exceeded),
        (true, exited(0), [1, 1], PodStage::Exceeded),
        (true, json!({"running": {}}), [0, 1], PodStage::Exceeded),
        (true, exited(1), [0, 1], PodStage::Exceeded),
    ] {
        assert_eq!(ending(ends_sidecars, main.clone(), restarts), stage, "{ends_sidecars} {main} {restarts:?}");
    }
}

#[test]
fn a_template_without_restart_policy_ends_and_one_with_always_is_not_followed() {
    let job = |policy: Value| -> BroadcastJob {
        serde_json::from_value(
            json!({"metadata": {"name": "j"}, "spec": {"template": {"spec": {"restartPolicy": policy}}}}),
        )
        .unwrap()
    };
    let spec = BroadcastSpec::of(&job(json!(null)), false).unwrap();
    assert_eq!((spec.template["spec"]["restartPolicy"].as_str(), spec.restart_limit), (Some("OnFailure"), Some(0)));
    let error = BroadcastSpec::of(&job(json!("Always")), false).unwrap_err();
    assert!(error.0.starts_with("spec.template.spec.restartPolicy: \"Always\""), "{error}");
    for (field, bad) in [
        ("parallelism", json!({"parallelism": "x"})),
        ("parallelism", json!({"parallelism": -1})),
        ("completionPolicy.type", json!({"completionPolicy": {"type": "X"}})),
        ("failurePolicy.type", json!({"failurePolicy": {"type": "X"}})),
    ] {
        let mut spec = json!({"template": {"spec": {}}});
        json_patch::merge(&mut spec, &bad);
        let job: BroadcastJob = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
        assert!(BroadcastSpec::of(&job, false).unwrap_err().0.starts_with(&format!("spec.{field}: ")), "{bad}");
    }
}

#[test]
fn pods_are_those_that_were_recorded() {
    let recorded: Vec<Value> =
        serde_json::from_str(include_str!("../../../api/apps/testdata/broadcast_jobs.json")).unwrap();
    let job: BroadcastJob = serde_json::from_value(recorded[0].clone()).unwrap();
    let spec = BroadcastSpec::of(&job, false).unwrap();
    let owner = OwnerRef::of(&job);
    let name = make::pod_name(&spec, "node-a", 0);
    assert!(name.starts_with("bjob-") && name.len() <= 63 && name != make::pod_name(&spec, "node-a", 1));
    let made = make::pod(&owner, &spec, name, "node-a", false);
    assert_eq!(
        made["metadata"]["labels"],
        json!({"broadcastjob-name": "bjob", "broadcastjob-controller-uid": "e575adfa-a061-4f72-98be-e2647aae1eee"})
    );
    assert_eq!(made["metadata"]["generateName"], "bjob-");
    assert_eq!(made["metadata"]["ownerReferences"], json!([owner.controller()]));
    assert_eq!(made["spec"]["readinessGates"], json!([{"conditionType": "KruisePodReady"}]));
    assert_eq!(
        made["spec"]["affinity"],
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}]}}})
    );
    let bound = make::pod(&owner, &spec, "p".into(), "node-a", true);
    assert_eq!((bound["spec"]["nodeName"].as_str(), bound["spec"].get("affinity")), (Some("node-a"), None));
    let long = BroadcastSpec { name: "x".repeat(63), ..spec };
    assert!(make::pod_name(&long, "n", 0).len() <= 63);
}

#[test]
fn nodes_whose_names_collide_in_32_bits_have_pods_of_different_names() {
    let job: BroadcastJob = serde_json::from_value(case(0).job).unwrap();
    let spec = BroadcastSpec::of(&job, false).unwrap();
    let nodes = ["node-549599", "node-712382"];
    let [a, b] = nodes.map(|node| hash::fnv1_32(format!("j/{node}/0").into_bytes()));
    assert_eq!(a, b);
    let [a, b] = nodes.map(|node| make::pod_name(&spec, node, 0));
    assert_ne!(a, b);
    let long = BroadcastSpec { name: format!("{}-x", "x".repeat(41)), ..spec };
    for node in nodes {
        let name = make::pod_name(&long, node, 0);
        assert!(name.len() <= 63 && is_dns_subdomain(&name), "{name}");
    }
}

#[test]
fn the_status_of_a_recorded_job_is_kept() {
    let recorded: Vec<Value> =
        serde_json::from_str(include_str!("../../../api/apps/testdata/broadcast_jobs.json")).unwrap();
    for object in recorded {
        let job: BroadcastJob = serde_json::from_value(object.clone()).unwrap();
        let (spec, before) = (BroadcastSpec::of(&job, false).unwrap(), job.status.clone().unwrap());
        let observed = BroadcastObserved {
            spec: &spec,
            recorded: &before,
            nodes: &[],
            pods: &[],
            age: Duration::ZERO,
            ended: Duration::ZERO,
            tries: &Failures::default(),
            now: now(),
        };
        let plan = plan::plan(&observed);
        assert_eq!((plan.actions.clone(), plan.state.clone()), (vec![], BroadcastState::Over));
        let mut after = status::status(&observed, &plan, 1, None);
        assert_eq!(condition(&after, "Ready"), ("True", "Completed", "Job completed, 1 pods succeeded, 0 pods failed"));
        after.conditions.retain(|condition| condition.type_ == "Complete");
        assert_eq!(after, BroadcastJobStatus { observed_generation: 1, ..before });
    }
}

#[test]
fn what_is_refused_is_said() {
    let case = case(1);
    let status = case.run(|observed| status::status(observed, &plan::plan(observed), 3, Some("no quota")));
    assert_eq!(
        (condition(&status, "Reconciling"), status.observed_generation),
        (("True", "FailedWrite", "no quota"), 3)
    );
    assert!(status.start_time.is_some());
    let invalid = status::invalid(&BroadcastJobStatus::default(), 4, "spec.x: no".into(), now());
    assert_eq!(condition(&invalid, "Stalled"), ("True", "InvalidSpec", "spec.x: no"));
}

#[test]
fn simulation_of_jobs_that_end_and_run_each_node_once() {
    use crate::liveness::{self, Acts, Random};
    liveness::seeds(300, "simulation_of_jobs_that_end_and_run_each_node_once", |seed| {
        let mut random = Random(seed);
        let parallelism = random.one_of(&[json!(1), json!(2), json!("50%"), json!(9)]).cloned();
        let policy = json!({"type": "Continue", "restartLimit": 1});
        let mut case =
            case(1 + random.below(6)).spec_with(json!({"failurePolicy": policy, "parallelism": parallelism}));
        let most = |case: &Case| case.run(|observed| observed.spec.most_active(plan::plan(observed).counts.desired));
        let (mut runs, mut serial) = (std::collections::BTreeMap::<String, u32>::new(), 0);
        for step in 0..400 {
            let plan = case.plan();
            let made = plan.actions.iter().filter(|action| matches!(action, BroadcastAction::Create { .. })).count();
            assert!(made == 0 || plan.counts.active + made <= most(&case), "seed {seed} step {step}");
            if plan.state == BroadcastState::Completes {
                break;
            }
            assert!(step < 399, "seed {seed} does not end: {plan:?}");
            for action in plan.actions {
                match action {
                    BroadcastAction::Create { node } => {
                        serial += 1;
                        case.pods.push(unbound(&format!("p{serial}"), &node));
                    }
                    BroadcastAction::Delete { pod, because } => {
                        let gone = case.pods.iter().position(|p| p["metadata"]["name"] == *pod).unwrap();
                        let gone = case.pods.remove(gone);
                        assert!(
                            !["Succeeded", "Failed"].iter().any(|phase| gone["status"]["phase"] == *phase),
                            "{because:?}"
                        );
                    }
                    BroadcastAction::Stop { pod } => {
                        let at = case.pods.iter().position(|p| p["metadata"]["name"] == *pod).unwrap();
                        json_patch::merge(&mut case.pods[at], &make::stop());
                        case.pods[at]["status"]["phase"] = "Failed".into();
                    }
                    other => panic!("{other:?}"),
                }
            }
            // The world goes on: one Pod gets further, and sometimes a node is cordoned or uncordoned.
            if !case.pods.is_empty() {
                let at = random.below(case.pods.len());
                let view: PodView = serde_json::from_value(case.pods[at].clone()).unwrap();
                let node = view.node_meant().to_owned();
                let pod = &mut case.pods[at];
                let phase = pod["status"]["phase"].as_str().unwrap().to_owned();
                match phase.as_str() {
                    "Pending" => {
                        pod["spec"]["nodeName"] = node.into();
                        pod["status"]["phase"] = "Running".into();
                    }
                    "Running" => match random.below(4) {
                        0 => {
                            pod["status"]["containerStatuses"] = json!([{"name": "c", "restartCount": random.below(4)}])
                        }
                        1 => pod["status"]["phase"] = "Failed".into(),
                        _ => pod["status"]["phase"] = "Succeeded".into(),
                    },
                    _ => {}
                }
                if ["Succeeded", "Failed"].iter().any(|end| pod["status"]["phase"] == *end) && phase == "Running" {
                    let node = pod["spec"]["nodeName"].as_str().unwrap().to_owned();
                    *runs.entry(node).or_default() += 1;
                }
            }
            if random.below(10) == 0 {
                let node = random.below(case.nodes.len());
                let is_cordoned = step < 200 && random.below(2) == 0;
                case.nodes[node]["spec"] = json!({"unschedulable": is_cordoned});
            }
        }
        assert!(runs.values().all(|runs| *runs == 1), "seed {seed}: {runs:?}");
        Ok(Acts::default())
    });
}
