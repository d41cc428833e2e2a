//! Tables of the plan. `e` and `f` with a number: that item of the specification.

use std::{sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};

use super::{
    memory::EphemeralMemory,
    plan::{self, EphemeralPlan, concerns},
    spec::selector_of,
    state::{PodResult, result},
};
use crate::{
    api::apps::ephemeral_job::EphemeralJob,
    k8s::{pod::PodView, time::Now},
};

const NEVER: u64 = 0;

fn at(seconds: u64) -> Now {
    let wall: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let mono = Duration::from_secs(1000 + seconds);
    Now { wall: wall.checked_add(jiff::SignedDuration::from_secs(seconds.try_into().unwrap())).unwrap(), mono }
}

fn job(spec: Value) -> EphemeralJob {
    let mut whole = json!({"selector": {"matchLabels": {"app": "web"}}, "parallelism": 100,
        "template": {"ephemeralContainers": [{"name": "look", "image": "busybox"}]}});
    json_patch::merge(&mut whole, &spec);
    serde_json::from_value(json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "EphemeralJob",
        "metadata": {"name": "j", "namespace": "ns", "uid": "u1", "generation": 3}, "spec": whole}))
    .unwrap()
}

fn running() -> Value {
    json!({"running": {}})
}
fn exit(code: i32) -> Value {
    json!({"terminated": {"exitCode": code}})
}
fn waiting(reason: &str) -> Value {
    json!({"waiting": {"reason": reason, "message": "kubelet's words"}})
}

/// A Pod with this container of the job in this state; null: kubelet has said nothing.
fn with(name: &str, state: Value) -> Arc<PodView> {
    with_all(name, &[state])
}

fn with_all(name: &str, states: &[Value]) -> Arc<PodView> {
    let container = |i: usize| format!("look{i}");
    let containers: Vec<Value> = (0..states.len())
        .map(|i| json!({"name": container(i), "env": [{"name": "KRUISE_EJOB_ID", "value": "u1"}]}))
        .collect();
    let statuses: Vec<Value> = states
        .iter()
        .enumerate()
        .filter(|(_, state)| !state.is_null())
        .map(|(i, state)| json!({"name": container(i), "state": state}))
        .collect();
    pod(name, json!({"spec": {"ephemeralContainers": containers}, "status": {"ephemeralContainerStatuses": statuses}}))
}

fn pod(name: &str, change: Value) -> Arc<PodView> {
    let mut pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"),
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": "web"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}]}, "status": {"phase": "Running"}});
    json_patch::merge(&mut pod, &change);
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn free(name: &str) -> Arc<PodView> {
    pod(name, json!({}))
}

fn planned(job: &EphemeralJob, pods: &[Arc<PodView>], begun: u64) -> EphemeralPlan {
    plan::plan(job, pods, &mut EphemeralMemory::default(), Duration::from_secs(begun), at(begun))
}

fn added(plan: &EphemeralPlan) -> Vec<&str> {
    plan.add.iter().map(|pod| pod.name()).collect()
}

/// match, running, succeeded, waiting, failed, unreported.
fn counts(plan: &EphemeralPlan) -> [i32; 6] {
    let status = &plan.status;
    [status.matches, status.running, status.succeeded, status.waiting, status.failed, status.unreported]
}

fn is_true(plan: &EphemeralPlan, type_: &str) -> Option<bool> {
    let mut conditions = plan.status.conditions.iter();
    conditions.find(|condition| condition.type_ == type_).map(|condition| condition.status == "True")
}

fn message(plan: &EphemeralPlan) -> &str {
    &plan.status.conditions.iter().find(|condition| condition.type_ == "Ready").unwrap().message
}

#[test]
fn d2_the_state_of_a_pod_follows_from_its_containers() {
    for (states, want) in [
        (vec![exit(0), exit(0)], PodResult::Succeeded),
        (vec![exit(0), exit(2)], PodResult::Failed),
        (vec![running(), exit(137)], PodResult::Failed),
        (vec![waiting("RunContainerError")], PodResult::Failed),
        (vec![running(), waiting("ContainerCreating")], PodResult::Running),
        (vec![running(), exit(0)], PodResult::Running),
        (vec![waiting("ImagePullBackOff"), exit(0)], PodResult::Waiting),
        (vec![json!(null), exit(0)], PodResult::Unreported),
        (vec![json!(null)], PodResult::Unreported),
    ] {
        assert_eq!(result(&with_all("a", &states), "u1"), Some(want), "{states:?}");
    }
    assert_eq!(result(&free("a"), "u1"), None);
    assert_eq!(result(&with("a", exit(0)), "another job"), None);
    assert_eq!(result(&with("a", exit(0)), ""), None);
}

#[test]
fn d3_4_e41_replicas_unset_means_all_and_otherwise_the_oldest() {
    let old = |name: &str, time: &str| pod(name, json!({"metadata": {"creationTimestamp": time}}));
    let pods = [old("a", "2026-01-01T00:00:02Z"), old("c", "2026-01-01T00:00:01Z"), old("b", "2026-01-01T00:00:01Z")];
    let all = planned(&job(json!({})), &pods, NEVER);
    assert_eq!((added(&all), counts(&all)), (vec!["b", "c", "a"], [3, 0, 0, 0, 0, 0]));
    let some = planned(&job(json!({"replicas": 2})), &pods, NEVER);
    assert_eq!((added(&some), counts(&some)[0]), (vec!["b", "c"], 2));
    // Those that have the containers count.
    let begun = [pods[0].clone(), with("z", running())];
    assert_eq!(added(&planned(&job(json!({"replicas": 1})), &begun, NEVER)), Vec::<&str>::new());
    assert_eq!(planned(&job(json!({"replicas": 0})), &pods, NEVER).status.phase, "Waiting");
}

#[test]
fn e42_pods_with_a_foreign_container_of_that_name_are_skipped_and_not_failed() {
    let debug = |job: Value| json!({"spec": {"ephemeralContainers": [{"name": "look", "env": job}]}});
    let other = json!([{"name": "KRUISE_EJOB_ID", "value": "u2"}]);
    let pods = [
        pod("a", debug(json!(null))),
        pod("b", debug(other)),
        pod("c", json!({"spec": {"containers": [{"name": "look"}]}})),
        free("d"),
    ];
    let plan = planned(&job(json!({})), &pods, NEVER);
    assert_eq!((added(&plan), counts(&plan)), (vec!["d"], [1, 0, 0, 0, 0, 0]));
}

#[test]
fn two_jobs_share_a_pod_if_their_containers_have_other_names() {
    let other = json!([{"name": "KRUISE_EJOB_ID", "value": "u2"}]);
    let both = pod(
        "a",
        json!({"spec": {"ephemeralContainers": [{"name": "dump", "env": other}]},
        "status": {"ephemeralContainerStatuses": [{"name": "dump", "state": exit(1)}]}}),
    );
    let plan = planned(&job(json!({})), &[both], NEVER);
    assert_eq!((added(&plan), counts(&plan)), (vec!["a"], [1, 0, 0, 0, 0, 0]), "its failure is not ours");
}

#[test]
fn pods_that_end_or_that_no_api_server_lets_us_change_are_left_out() {
    let pods = [
        pod("a", json!({"status": {"phase": "Succeeded"}})),
        pod("b", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
        pod("c", json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}})),
        pod("d", json!({"status": {"phase": "Pending"}})),
    ];
    assert_eq!(added(&planned(&job(json!({})), &pods, NEVER)), ["d"]);
}

#[test]
fn d3_5_f50_a_mix_of_results_ends_as_failed_and_replicas_beyond_the_matches_end_too() {
    let pods = [with("a", exit(0)), with("b", exit(3))];
    let plan = planned(&job(json!({"replicas": 5})), &pods, NEVER);
    assert_eq!((plan.status.phase.as_str(), counts(&plan)), ("Failed", [2, 0, 1, 0, 1, 0]));
    assert!(plan.status.completion_time.is_some());
    assert_eq!((is_true(&plan, "JobFailed"), is_true(&plan, "Stalled")), (Some(true), Some(true)));
    assert_eq!(message(&plan), "1 of 2 Pods succeeded, 1 failed");
    let plan = planned(&job(json!({"replicas": 5})), &pods[..1], NEVER);
    assert_eq!(
        (plan.status.phase.as_str(), is_true(&plan, "JobSucceeded"), is_true(&plan, "Ready")),
        ("Succeeded", Some(true), Some(true))
    );
    let plan = planned(&job(json!({})), &[pods[0].clone(), free("c")], NEVER);
    assert_eq!((plan.status.phase.as_str(), counts(&plan)[0], added(&plan)), ("Running", 2, vec!["c"]));
}

#[test]
fn d3_6_f51_whatever_is_not_done_takes_a_place() {
    let pods: Vec<_> = [
        with("a", running()),
        with("b", waiting("ContainerCreating")),
        with("c", json!(null)),
        with("d", exit(0)),
        with("e", exit(1)),
        free("f"),
        free("g"),
    ]
    .into();
    for (parallelism, want) in [(3, vec![]), (4, vec!["f"]), (9, vec!["f", "g"]), (0, vec![])] {
        let plan = planned(&job(json!({"parallelism": parallelism})), &pods, NEVER);
        assert_eq!(added(&plan), want, "{parallelism}");
        assert_eq!((counts(&plan), plan.status.phase.as_str()), ([7, 1, 1, 1, 1, 1], "Running"));
    }
    assert_eq!(added(&planned(&job(json!({"parallelism": null})), &pods[5..], NEVER)), ["f"], "1 by default");
}

#[test]
fn d3_3_f52_the_deadline_holds_while_paused_and_after_a_change() {
    let paused = job(json!({"paused": true, "activeDeadlineSeconds": 60}));
    let pods = [with("a", running()), free("b")];
    let plan = planned(&paused, &pods, 20);
    assert_eq!(
        (plan.status.phase.as_str(), added(&plan), plan.look),
        ("Paused", vec![], Some(Duration::from_secs(40)))
    );
    let plan = planned(&paused, &pods, 60);
    assert_eq!((plan.status.phase.as_str(), counts(&plan)), ("Failed", [2, 1, 0, 0, 0, 0]));
    assert!(message(&plan).contains("containers in 1 Pods are not done, and stay there"), "{}", message(&plan));
    let reason = plan.status.conditions.iter().find(|c| c.type_ == "JobFailed").map(|c| c.reason.as_str());
    assert_eq!(reason, Some("DeadlineExceeded"));
    assert_eq!(planned(&job(json!({"activeDeadlineSeconds": 90})), &pods, 60).status.phase, "Running");
}

/// Phase, the condition that is true, and its reason.
#[test]
fn what_is_held_is_ready_when_nothing_that_has_begun_goes_on() {
    let (paused, none, nobody) = (json!({"paused": true}), json!({"parallelism": 0}), json!({"replicas": 0}));
    let free = || free("z");
    for (spec, pods, want) in [
        (&paused, vec![], "Paused Ready Paused"),
        (&paused, vec![free()], "Paused Ready Paused"),
        (&paused, vec![with("a", exit(0)), free()], "Paused Ready Paused"),
        (&paused, vec![with("a", running()), free()], "Paused Reconciling Paused"),
        (&paused, vec![with("a", waiting("ContainerCreating"))], "Paused Reconciling Paused"),
        (&paused, vec![with("a", json!(null)), with("b", exit(1))], "Paused Reconciling Paused"),
        (&paused, vec![with("a", exit(0))], "Succeeded Ready JobSucceeded"),
        (&none, vec![], "Waiting Ready NoParallelism"),
        (&none, vec![free()], "Waiting Ready NoParallelism"),
        (&none, vec![with("a", exit(0)), free()], "Running Ready NoParallelism"),
        (&none, vec![with("a", running()), free()], "Running Reconciling Running"),
        (&none, vec![with("a", waiting("ContainerCreating"))], "Waiting Reconciling Waiting"),
        (&none, vec![with("a", json!(null)), free()], "Waiting Reconciling Waiting"),
        (&none, vec![with("a", exit(1))], "Failed Stalled JobFailed"),
        (&nobody, vec![], "Waiting Ready NoReplicas"),
        (&nobody, vec![free()], "Waiting Ready NoReplicas"),
        (&nobody, vec![with("a", running()), free()], "Running Reconciling Running"),
        (&nobody, vec![with("a", exit(0)), free()], "Succeeded Ready JobSucceeded"),
        (&json!({}), vec![], "Waiting Reconciling MatchedEmpty"),
        (&json!({}), vec![free()], "Waiting Reconciling Waiting"),
    ] {
        let status = planned(&job(spec.clone()), &pods, NEVER).status;
        let kstatus = ["Ready", "Reconciling", "Stalled"];
        let is_true = |c: &&Condition| kstatus.contains(&&*c.type_) && c.status == "True";
        let found: Vec<String> =
            status.conditions.iter().filter(is_true).map(|c| format!("{} {}", c.type_, c.reason)).collect();
        assert_eq!(format!("{} {}", status.phase, found.join(" ")), want, "{spec} {pods:?}");
    }
    let late = job(json!({"parallelism": 0, "activeDeadlineSeconds": 60}));
    let held = planned(&late, &[free()], 20);
    assert_eq!((is_true(&held, "Ready"), held.look), (Some(true), Some(Duration::from_secs(40))));
    assert_eq!(is_true(&planned(&late, &[free()], 60), "Stalled"), Some(true), "the deadline holds");
    let paused = planned(&job(paused), &[with("a", running()), free()], NEVER);
    assert_eq!(
        message(&paused),
        "0 of 2 Pods succeeded, 0 failed; the job is paused, and containers in 1 Pods are not done"
    );
}

#[test]
fn f52_pods_that_go_stay_counted_by_their_uid() {
    let mut memory = EphemeralMemory::default();
    let mut job = job(json!({}));
    let mut look =
        |job: &EphemeralJob, pods: &[Arc<PodView>]| plan::plan(job, pods, &mut memory, Duration::ZERO, at(1));
    let plan = look(&job, &[with("a", exit(0)), with("b", running())]);
    assert_eq!(counts(&plan), [2, 1, 1, 0, 0, 0]);
    job.status = Some(plan.status);
    // `a` is deleted; its namesake is another Pod.
    let again = pod("a", json!({"metadata": {"uid": "other"}}));
    let plan = look(&job, &[with("b", running()), again]);
    assert_eq!((counts(&plan), added(&plan)), ([3, 1, 1, 0, 0, 0], vec!["a"]));
    job.status = Some(plan.status);
    // After a restart the record stands for what is gone, and what is there counts once.
    let plan = planned(&job, &[with("b", exit(0))], 1);
    assert_eq!(counts(&plan), [1, 0, 1, 0, 0, 0], "either of the two");
    let plan = planned(&job, &[with("b", running())], 1);
    assert_eq!(counts(&plan), [2, 1, 1, 0, 0, 0]);
    // A Pod that has ended keeps its result.
    let over = pod(
        "c",
        json!({"status": {"phase": "Succeeded", "ephemeralContainerStatuses": [{"name": "look", "state": exit(0)}]},
        "spec": {"ephemeralContainers": [{"name": "look", "env": [{"name": "KRUISE_EJOB_ID", "value": "u1"}]}]}}),
    );
    assert_eq!(counts(&planned(&self::job(json!({})), &[over], 1)), [1, 0, 1, 0, 0, 0]);
}

#[test]
fn f52_pods_that_go_and_end_while_no_manager_runs_are_counted_once() {
    let (a, b) = (with("a", exit(0)), with("b", exit(0)));
    // Counted: a and b, well. A third one was running.
    let counted = |noted: bool, recorded: [i32; 2]| {
        let mut memory = EphemeralMemory::default();
        let mut job = job(json!({"replicas": 3}));
        plan::plan(&job, &[a.clone(), b.clone(), with("c", running())], &mut memory, Duration::ZERO, at(1));
        let note = memory.counted_pods(&job).unwrap();
        assert_eq!(note, r#"{"succeeded":2,"failed":0,"pods":["uid-a","uid-b"]}"#);
        job.metadata.annotations = noted.then(|| [("kruise.rs/counted-pods".to_owned(), note)].into());
        assert_eq!(memory.counted_pods(&job).is_none(), noted, "it is written once");
        job.status = serde_json::from_value(json!({"succeeded": recorded[0], "failed": recorded[1]})).unwrap();
        job
    };
    let all = counted(true, [2, 0]);
    for (what, job, pods, want) in [
        ("one goes, another one ends", &all, vec![b.clone(), with("c", exit(0))], [3, 0]),
        ("all go but one that ends badly", &all, vec![with("c", exit(1))], [2, 1]),
        ("one goes that was not counted", &all, vec![a.clone(), b.clone()], [2, 0]),
        ("the note lags behind the status", &counted(true, [3, 0]), vec![a.clone(), b.clone()], [3, 0]),
        ("the status lags behind the note", &counted(true, [1, 0]), vec![a.clone()], [2, 0]),
        (
            // Of OpenKruise, or where the note is refused. Nobody knows whether the record contains `c`.
            "without a note at least what is recorded or seen",
            &counted(false, [2, 0]),
            vec![b.clone(), with("c", exit(0))],
            [2, 0],
        ),
    ] {
        let plan = planned(job, &[pods, vec![free("d")]].concat(), 2);
        assert_eq!([plan.status.succeeded, plan.status.failed], want, "{what}");
        assert_eq!(added(&plan).is_empty(), want[0] + want[1] >= 3, "{what}: no more Pods than replicas");
    }
    let mut odd = counted(true, [2, 0]);
    for text in ["soon", "{\"succeeded\": \"x\"}", "{\"succeeded\": -5}"] {
        odd.metadata.annotations = Some([("kruise.rs/counted-pods".to_owned(), text.to_owned())].into());
        assert_eq!(planned(&odd, std::slice::from_ref(&a), 2).status.succeeded, 2, "{text}");
    }
}

#[test]
fn f52_conditions_that_no_longer_hold_are_false() {
    let mut job = job(json!({}));
    let plan = planned(&job, &[], NEVER);
    assert_eq!(
        (is_true(&plan, "MatchedEmpty"), is_true(&plan, "Reconciling"), plan.status.phase.as_str()),
        (Some(true), Some(true), "Waiting")
    );
    assert_eq!((plan.status.completion_time, plan.status.observed_generation), (None, 3));
    assert_eq!(is_true(&plan, "JobFailed"), None);
    job.status = Some(plan.status);
    let plan = planned(&job, &[free("a")], NEVER);
    assert_eq!(is_true(&plan, "MatchedEmpty"), Some(false));
    assert!(plan.status.conditions.iter().all(|condition| !condition.reason.is_empty()));
}

#[test]
fn f53_containers_that_do_not_start_are_named_and_the_job_waits_until_its_deadline() {
    let mut job = job(json!({"activeDeadlineSeconds": 60}));
    let stuck = [with("a", waiting("ImagePullBackOff")), with("b", waiting("ContainerCreating"))];
    let plan = planned(&job, &stuck, 1);
    assert_eq!((plan.status.phase.as_str(), counts(&plan)), ("Waiting", [2, 0, 0, 2, 0, 0]));
    let blocked = plan.status.conditions.iter().find(|c| c.type_ == "ContainersBlocked").unwrap();
    assert_eq!((blocked.status.as_str(), blocked.reason.as_str()), ("True", "ImagePullBackOff"));
    assert_eq!(blocked.message, "containers do not start in 1 Pods: a: ImagePullBackOff: kubelet's words");
    assert!(message(&plan).ends_with(&blocked.message));
    job.status = Some(plan.status);
    let plan = planned(&job, &[with("a", running())], 2);
    assert_eq!(is_true(&plan, "ContainersBlocked"), Some(false));
    assert_eq!(planned(&job, &stuck, 60).status.phase, "Failed");
}

#[test]
fn a_pod_without_a_node_gets_no_containers_and_keeps_no_place() {
    let unbound = pod("a", json!({"spec": {"nodeName": null}, "status": {"phase": "Pending"}}));
    let one = job(json!({"parallelism": 1, "replicas": 1}));
    let plan = planned(&one, &[unbound.clone(), free("b")], NEVER);
    assert_eq!((added(&plan), counts(&plan)), (vec!["b"], [1, 0, 0, 0, 0, 0]));
    let plan = planned(&one, std::slice::from_ref(&unbound), NEVER);
    // It counts, so the job waits for it. Once it is bound it gets them.
    assert_eq!((added(&plan), counts(&plan)), (vec![], [1, 0, 0, 0, 0, 0]));
    assert_eq!(added(&planned(&one, &[free("a")], NEVER)), ["a"]);
}

#[test]
fn a_pod_whose_kubelet_says_nothing_about_the_containers_is_named_after_a_minute() {
    let mut memory = EphemeralMemory::default();
    let mut job = job(json!({"parallelism": 1}));
    let mut look = |job: &EphemeralJob, state: Value, second: u64| {
        let pods = [with("a", state), free("b")];
        plan::plan(job, &pods, &mut memory, Duration::from_secs(second), at(second))
    };
    for (second, left) in [(5, 60), (64, 1)] {
        let plan = look(&job, json!(null), second);
        assert_eq!((added(&plan), plan.look), (vec![], Some(Duration::from_secs(left))), "{second}");
        assert_eq!((is_true(&plan, "ContainersBlocked"), plan.status.unreported), (None, 1), "{second}");
    }
    for second in [65, 300] {
        let plan = look(&job, json!(null), second);
        let blocked = plan.status.conditions.iter().find(|c| c.type_ == "ContainersBlocked").unwrap();
        assert_eq!((blocked.status.as_str(), blocked.reason.as_str()), ("True", "NotReported"));
        let words =
            "containers do not start in 1 Pods: a: NotReported: kubelet has said nothing about them for a minute";
        assert_eq!((blocked.message.as_str(), plan.look), (words, None), "{second}");
        assert!(message(&plan).ends_with(words), "{}", message(&plan));
        job.status = Some(plan.status);
    }
    let plan = look(&job, running(), 301);
    assert_eq!((is_true(&plan, "ContainersBlocked"), plan.look), (Some(false), None));
    // What is found at start has its minute too.
    assert_eq!(planned(&job, &[with("a", json!(null))], 400).look, Some(Duration::from_secs(60)));
}

#[test]
fn a_spec_that_says_nothing_useful_is_an_error_and_touches_no_pod() {
    for (spec, why) in [
        (json!({"selector": {"matchLabels": null}}), "spec.selector: it is empty"),
        (json!({"selector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}}), "spec.selector: "),
        (json!({"template": {"ephemeralContainers": []}}), "spec.template.ephemeralContainers: it is empty"),
        (
            json!({"template": {"ephemeralContainers": [{"image": "a"}]}}),
            "spec.template.ephemeralContainers: one has no name",
        ),
    ] {
        let plan = planned(&job(spec.clone()), &[free("a")], NEVER);
        assert_eq!((plan.status.phase.as_str(), added(&plan)), ("Error", vec![]), "{spec}");
        assert_eq!((is_true(&plan, "JobError"), is_true(&plan, "Stalled")), (Some(true), Some(true)));
        assert!(message(&plan).starts_with(why), "{}", message(&plan));
        assert_eq!(plan.status.completion_time, None);
    }
}

#[test]
fn a_pod_that_does_not_take_the_containers_holds_up_no_other() {
    let mut memory = EphemeralMemory::default();
    let pods = [free("a"), free("b")];
    memory.refuse("uid-a", "a", "no".into(), at(0));
    let one = job(json!({"parallelism": 1}));
    let plan = plan::plan(&one, &pods, &mut memory, Duration::ZERO, at(1));
    assert_eq!((added(&plan), plan.look), (vec!["b"], Some(Duration::from_secs(9))));
    assert_eq!(is_true(&plan, "ContainersBlocked"), Some(true));
    let plan = plan::plan(&one, &pods, &mut memory, Duration::ZERO, at(10));
    assert_eq!(added(&plan), ["a"]);
    memory.refuse("uid-a", "a", "no".into(), at(10));
    let plan = plan::plan(&one, &pods[..1], &mut memory, Duration::ZERO, at(11));
    assert_eq!((added(&plan), plan.look), (vec![], Some(Duration::from_secs(19))));
    for _ in 0..40 {
        memory.refuse("uid-a", "a", "no".into(), at(11));
    }
    assert_eq!(memory.refused["uid-a"].left(at(11)), Duration::from_secs(300));
    plan::plan(&one, &pods[1..], &mut memory, Duration::ZERO, at(12));
    assert!(memory.refused.is_empty(), "a Pod that is gone is forgotten");
}

#[test]
fn a_job_has_to_do_with_the_pods_that_it_matches_and_with_those_that_have_its_containers() {
    let job = job(json!({}));
    let selector = selector_of(&job).unwrap();
    let unlabelled = json!({"metadata": {"labels": {"app": "other"}}});
    assert!(concerns(job.uid(), &selector, &free("a")));
    assert!(!concerns(job.uid(), &selector, &pod("a", unlabelled)));
    let mut has = PodView::clone(&with("a", running()));
    has.labels = Default::default();
    assert!(concerns(job.uid(), &selector, &has));
}

#[test]
fn times_are_measured_from_what_was_seen() {
    let mut memory = EphemeralMemory::default();
    let mut job = job(json!({}));
    assert_eq!(memory.enter(&job, at(0)).0, Duration::ZERO);
    // The wall clock of the record is an hour off.
    job.status = serde_json::from_value(json!({"startTime": "2025-12-31T23:00:00Z"})).ok();
    assert_eq!(memory.enter(&job, at(5)).0, Duration::from_secs(5));
    assert_eq!(EphemeralMemory::default().enter(&job, at(0)).0, Duration::from_secs(3600), "found at start");
    job.status =
        serde_json::from_value(json!({"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:07Z"}))
            .ok();
    assert_eq!(memory.enter(&job, at(9)).1, Duration::ZERO, "seen as it ended");
    assert_eq!(memory.enter(&job, at(12)).1, Duration::from_secs(3));
    assert_eq!(EphemeralMemory::default().enter(&job, at(9)).1, Duration::from_secs(2));
}
