use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const CREATED: &str = "2026-01-01T00:00:00Z";

fn now(seconds: u64) -> Now {
    let created: Timestamp = CREATED.parse().unwrap();
    Now { wall: created + Duration::from_secs(seconds), mono: Duration::from_secs(100 + seconds) }
}

fn memory() -> ManagerMemory {
    let made = Sighting::live(now(0));
    ManagerMemory { created: made, seen: made, completed: None, reported_no_daemon: false }
}

/// A request as admission leaves it, with changes merged in.
fn request(changes: Value) -> ContainerRecreateRequest {
    let mut object = json!({
        "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
        "metadata": {"name": "r", "namespace": "ns", "uid": "crr", "resourceVersion": "5", "creationTimestamp": CREATED,
            "labels": {"crr.apps.kruise.io/active": "true", "crr.apps.kruise.io/node-name": "n1", "crr.apps.kruise.io/pod-uid": "u1"}},
        "spec": {"podName": "p", "containers": [{"name": "main"}, {"name": "second"}], "strategy": {"failurePolicy": "Fail"}},
    });
    json_patch::merge(&mut object, &changes);
    serde_json::from_value(object).unwrap()
}

fn pod(changes: Value) -> PodView {
    let mut object = json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {"nodeName": "n1", "readinessGates": [{"conditionType": "KruisePodReady"}]},
        "status": {"phase": "Running"},
    });
    json_patch::merge(&mut object, &changes);
    serde_json::from_value(object).unwrap()
}

fn plan_of(request: &ContainerRecreateRequest, pod: PodKnowledge<'_>, at: u64) -> ManagerPlan {
    let (daemon, memory) = (Daemon::Ready, memory());
    plan(&ObservedRequest { request, pod, daemon, memory, gone_after: DAEMON_GONE_AFTER }, now(at))
}

#[track_caller]
fn completion(plan: ManagerPlan) -> (String, Vec<(String, String)>) {
    let [Action::Complete { message, states }] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert!(states.iter().all(|s| matches!(s.phase, Phase::Succeeded | Phase::Failed)), "{states:?}");
    (message.clone(), states.iter().map(|s| (s.phase.as_str().to_owned(), s.message.clone())).collect())
}

fn acquiring() -> Value {
    json!({"spec": {"strategy": {"unreadyGracePeriodSeconds": 3}}, "status": {"phase": "Recreating"}})
}

#[test]
fn a_record_is_what_no_plan_ever_touches_again() {
    let pod = pod(
        json!({"status": {"conditions": [{"type": "KruisePodReady", "status": "False", "message": "[{\"userAgent\":\"ns/r\"}]"}]}}),
    );
    let done = json!({"metadata": {"labels": {"crr.apps.kruise.io/active": null}}, "status": {"phase": "Completed"}});
    for (name, changes, want) in [
        ("ended and cleaned up", json!({}), true),
        ("a foreign finalizer", json!({"metadata": {"finalizers": ["a/b"]}}), true),
        ("being deleted", json!({"metadata": {"finalizers": ["a/b"], "deletionTimestamp": CREATED}}), true),
        ("our finalizer", json!({"metadata": {"finalizers": [labels::CRR_UNREADY_FINALIZER]}}), false),
        ("the active label", json!({"metadata": {"labels": {"crr.apps.kruise.io/active": "true"}}}), false),
        ("a time to live", json!({"spec": {"ttlSecondsAfterFinished": 0}}), false),
        ("not ended", json!({"status": {"phase": "Recreating"}}), false),
    ] {
        let mut object = done.clone();
        json_patch::merge(&mut object, &changes);
        let request = request(object);
        assert_eq!(is_record(&request), want, "{name}");
        for knowledge in [PodKnowledge::Unknown, PodKnowledge::Gone, PodKnowledge::Present(&pod)] {
            assert!(!want || plan_of(&request, knowledge, 100) == ManagerPlan::default(), "{name}: {knowledge:?}");
        }
    }
}

#[test]
fn a_stored_request_whose_pod_name_cannot_be_one_says_so() {
    let request = request(json!({"spec": {"podName": "web/../../secrets/x?y="}}));
    for knowledge in [PodKnowledge::Gone, PodKnowledge::Unknown] {
        let (message, _) = completion(plan_of(&request, knowledge, 1));
        assert!(message.starts_with("spec.podName: \"web/../../secrets/x?y=\" is not allowed; want"), "{message}");
    }
}

#[test]
fn case_05_a_waiting_request_is_out_of_reach_of_the_response_limit() {
    let pod = pod(json!({}));
    let empty = request(json!({}));
    assert_eq!(plan_of(&empty, PodKnowledge::Present(&pod), 59).requeue, Some(Duration::from_secs(1)));
    assert_eq!(
        completion(plan_of(&empty, PodKnowledge::Present(&pod), 60)).0,
        "daemon has not responded for a long time"
    );
    for phase in ["Pending", "Recreating", "SomethingNew"] {
        let waiting = request(json!({"status": {"phase": phase}}));
        assert_eq!(plan_of(&waiting, PodKnowledge::Present(&pod), 100_000), ManagerPlan::default(), "{phase}");
    }
}

#[test]
fn a_request_that_a_manager_finds_leaves_its_daemon_time_to_come_back() {
    let (request, pod) = (request(json!({})), pod(json!({})));
    // Nobody could write anything for two minutes after it was made.
    let start = now(120);
    let created = Sighting::found(start, CREATED.parse().unwrap());
    let memory = ManagerMemory { created, seen: Sighting::live(start), ..memory() };
    let pod = PodKnowledge::Present(&pod);
    let observed =
        ObservedRequest { request: &request, pod, daemon: Daemon::Ready, memory, gone_after: DAEMON_GONE_AFTER };
    let found = plan(&observed, start);
    assert_eq!((found.actions, found.requeue), (Vec::new(), Some(Duration::from_secs(30))));
    assert_eq!(completion(plan(&observed, now(150))).0, "daemon has not responded for a long time");
}

#[test]
fn the_response_limit_names_the_node_without_a_daemon() {
    let (request, pod) = (request(json!({})), pod(json!({})));
    let mut observed = ObservedRequest {
        request: &request,
        pod: PodKnowledge::Present(&pod),
        daemon: Daemon::Missing(Duration::MAX),
        memory: ManagerMemory { reported_no_daemon: true, ..memory() },
        gone_after: DAEMON_GONE_AFTER,
    };
    assert_eq!(
        completion(plan(&observed, now(60))).0,
        "daemon has not responded for a long time: no ready kruise-daemon on node n1"
    );
    let bypassed: ContainerRecreateRequest =
        serde_json::from_value(json!({"metadata": {}, "spec": {"podName": "p", "containers": [{"name": "main"}]}}))
            .unwrap();
    observed.request = &bypassed;
    assert!(completion(plan(&observed, now(60))).0.ends_with("without passing admission"));
}

#[test]
fn case_06_requests_of_a_replaced_pod_end() {
    let request = request(json!({"status": {"phase": "Recreating", "containerRecreateStates": [
        {"name": "main", "phase": "Succeeded", "isKilled": true}, {"name": "second", "phase": "Pending", "message": "not found container on Node"}]}}));
    let successor = pod(json!({"metadata": {"uid": "u2"}}));
    let deleting = pod(json!({"metadata": {"deletionTimestamp": CREATED}}));
    for knowledge in [PodKnowledge::Present(&successor), PodKnowledge::Present(&deleting), PodKnowledge::Gone] {
        let (message, states) = completion(plan_of(&request, knowledge, 1));
        assert_eq!(message, "pod has gone");
        assert_eq!(states[0], ("Succeeded".into(), String::new()));
        assert_eq!(states[1], ("Failed".into(), "pod has gone".into()));
    }
    assert_eq!(plan_of(&request, PodKnowledge::Unknown, 1), ManagerPlan::default());
    let finished = pod(json!({"status": {"phase": "Failed"}}));
    assert_eq!(plan_of(&request, PodKnowledge::Present(&finished), 1), ManagerPlan::default());
}

#[test]
fn case_11_the_time_of_the_grace_never_moves() {
    let pod = pod(json!({}));
    let condition = json!([{"type": "PreRecreateGrace", "status": "True", "reason": "PreRecreateGrace", "message": "", "lastTransitionTime": "2026-01-01T00:00:07Z"}]);
    let recorded: Timestamp = "2026-01-01T00:00:07Z".parse().unwrap();

    let mut both = acquiring();
    both["status"]["conditions"] = condition.clone();
    both["metadata"]["annotations"] = json!({"crr.apps.kruise.io/unready-acquired": "2026-01-01T00:00:07Z"});
    assert_eq!(plan_of(&request(both.clone()), PodKnowledge::Present(&pod), 30), ManagerPlan::default());

    let mut only_condition = both.clone();
    only_condition["metadata"]["annotations"] = Value::Null;
    assert_eq!(
        plan_of(&request(only_condition), PodKnowledge::Present(&pod), 30).actions,
        [Action::RecordAnnotation(recorded)]
    );
    let mut only_annotation = both;
    only_annotation["status"]["conditions"] = Value::Null;
    assert_eq!(
        plan_of(&request(only_annotation.clone()), PodKnowledge::Present(&pod), 30).actions,
        [Action::RecordCondition(recorded)]
    );
    only_annotation["metadata"]["annotations"]["crr.apps.kruise.io/unready-acquired"] = "soon".into();
    assert_eq!(plan_of(&request(only_annotation), PodKnowledge::Present(&pod), 30), ManagerPlan::default());

    let kept = with_grace_condition(
        &request(json!({"status": {"phase": "Recreating", "conditions": [
        {"type": "Other", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": CREATED}]}})),
        recorded,
    );
    assert_eq!(kept.iter().map(|c| c.type_.as_str()).collect::<Vec<_>>(), ["Other", "PreRecreateGrace"]);
}

#[test]
fn case_12_without_the_gate_only_the_time_is_recorded() {
    let ungated = pod(json!({"spec": {"readinessGates": null}}));
    let time = now(2).wall;
    assert_eq!(
        plan_of(&request(acquiring()), PodKnowledge::Present(&ungated), 2).actions,
        [Action::RecordCondition(time), Action::RecordAnnotation(time)]
    );
}

#[test]
fn acquisition_goes_finalizer_key_time() {
    let gated = pod(json!({}));
    let time = now(2).wall;
    let mut halfway = acquiring();
    assert_eq!(
        plan_of(&request(halfway.clone()), PodKnowledge::Present(&gated), 2).actions,
        [Action::AddFinalizer, Action::AcquireKey, Action::RecordCondition(time), Action::RecordAnnotation(time)]
    );
    halfway["metadata"]["finalizers"] = json!(["crr.apps.kruise.io/unready-acquired"]);
    assert_eq!(
        plan_of(&request(halfway), PodKnowledge::Present(&gated), 2).actions,
        [Action::AcquireKey, Action::RecordCondition(time), Action::RecordAnnotation(time)]
    );
    assert_eq!(plan_of(&request(acquiring()), PodKnowledge::Unknown, 2), ManagerPlan::default());
    for phase in ["", "Pending", "New"] {
        let mut waiting = acquiring();
        waiting["status"]["phase"] = phase.into();
        assert_eq!(plan_of(&request(waiting), PodKnowledge::Present(&gated), 2).actions, [], "{phase}");
    }
    let no_grace = request(json!({"status": {"phase": "Recreating"}}));
    assert_eq!(plan_of(&no_grace, PodKnowledge::Present(&gated), 2), ManagerPlan::default());
}

#[test]
fn case_13_deletion_in_any_phase_releases_key_and_finalizer() {
    let (here, going) = (pod(json!({})), pod(json!({"metadata": {"deletionTimestamp": CREATED}})));
    let ungated = pod(json!({"spec": {"readinessGates": null}}));
    for phase in ["", "Pending", "Recreating", "Completed", "New"] {
        let deleted = request(json!({"status": {"phase": phase}, "metadata": {"deletionTimestamp": CREATED,
            "finalizers": ["x", "crr.apps.kruise.io/unready-acquired"]}}));
        let released = [Action::ReleaseKey, Action::Detach];
        assert_eq!(plan_of(&deleted, PodKnowledge::Present(&here), 1).actions, released);
        for blocked in [PodKnowledge::Gone, PodKnowledge::Present(&going), PodKnowledge::Present(&ungated)] {
            assert_eq!(plan_of(&deleted, blocked, 1).actions, [Action::Detach], "{phase}");
        }
        assert_eq!(plan_of(&deleted, PodKnowledge::Unknown, 1), ManagerPlan::default(), "the key may be there");
        assert_eq!(other_finalizers(&deleted), ["x"]);
    }
}

#[test]
fn case_14_each_request_holds_a_key_of_its_own() {
    // The keys themselves are domain::readiness; here: an ended request releases although others still hold the Pod.
    let ended = request(
        json!({"status": {"phase": "Completed"}, "metadata": {"finalizers": ["crr.apps.kruise.io/unready-acquired"]}}),
    );
    let held = pod(json!({"status": {"conditions": [{"type": "KruisePodReady", "status": "False", "message": "[]"}]}}));
    assert_eq!(plan_of(&ended, PodKnowledge::Present(&held), 1).actions, [Action::ReleaseKey, Action::Detach]);
}

#[test]
fn case_17_the_active_label_goes_once_and_with_the_finalizer() {
    let ended = request(json!({"status": {"phase": "Completed"}}));
    assert_eq!(plan_of(&ended, PodKnowledge::Unknown, 1).actions, [Action::Detach]);
    let detached =
        request(json!({"status": {"phase": "Completed"}, "metadata": {"labels": {"crr.apps.kruise.io/active": null}}}));
    assert_eq!(plan_of(&detached, PodKnowledge::Unknown, 1), ManagerPlan::default());
}

#[test]
fn case_18_a_completed_request_is_never_completed_again() {
    let ended = request(json!({"status": {"phase": "Completed"}, "spec": {"activeDeadlineSeconds": 3}}));
    for knowledge in [PodKnowledge::Gone, PodKnowledge::Unknown] {
        assert_eq!(plan_of(&ended, knowledge, 1000).actions, [Action::Detach]);
    }
}

#[test]
fn case_23_a_request_without_strategy_is_handled() {
    let bare = request(json!({"spec": {"strategy": null}, "status": {"phase": "Recreating"}}));
    assert_eq!(plan_of(&bare, PodKnowledge::Present(&pod(json!({}))), 1), ManagerPlan::default());
}

#[test]
fn the_deadline_ends_what_is_unfinished_and_says_what_never_began() {
    let pod = pod(json!({}));
    let at = |phase: &str, second| {
        let request = request(
            json!({"spec": {"activeDeadlineSeconds": 10, "strategy": {"unreadyGracePeriodSeconds": 1}}, "status": {"phase": phase}}),
        );
        plan_of(&request, PodKnowledge::Present(&pod), second)
    };
    assert_eq!(at("Pending", 9), ManagerPlan { actions: vec![], requeue: Some(Duration::from_secs(1)) });
    assert_eq!(completion(at("Recreating", 10)).0, "recreating has exceeded the activeDeadlineSeconds");
    for phase in ["", "Pending"] {
        let (message, states) = completion(at(phase, 10));
        assert!(message.starts_with("recreating has exceeded the activeDeadlineSeconds: it was never executed"));
        assert_eq!(states, vec![("Failed".to_owned(), message.clone()); 2], "every container gets a state");
    }
    for (phase, waiting, want) in [
        (
            "",
            "waiting for a ready kruise-daemon on node n1",
            ": it was never executed, waiting for a ready kruise-daemon on node n1",
        ),
        (
            "Pending",
            "waiting for request r0 of the same Pod",
            ": it was never executed, waiting for request r0 of the same Pod",
        ),
        ("Recreating", "waiting for runtime x: y", ": waiting for runtime x: y"),
    ] {
        let request =
            request(json!({"spec": {"activeDeadlineSeconds": 10}, "status": {"phase": phase, "message": waiting}}));
        let (message, _) = completion(plan_of(&request, PodKnowledge::Present(&pod), 10));
        assert_eq!(message, format!("recreating has exceeded the activeDeadlineSeconds{want}"));
    }
}

#[test]
fn the_ttl_runs_from_the_completion() {
    let ended = request(json!({"spec": {"ttlSecondsAfterFinished": 5}, "status": {"phase": "Completed"},
        "metadata": {"labels": {"crr.apps.kruise.io/active": null}}}));
    let at = |second| {
        let memory = ManagerMemory { completed: Some(Sighting::live(now(10))), ..memory() };
        let (pod, daemon) = (PodKnowledge::Unknown, Daemon::Unknown);
        plan(&ObservedRequest { request: &ended, pod, daemon, memory, gone_after: DAEMON_GONE_AFTER }, now(second))
    };
    assert_eq!(at(12), ManagerPlan { actions: vec![], requeue: Some(Duration::from_secs(3)) });
    assert_eq!(at(15).actions, [Action::Delete]);
}

#[test]
fn a_missing_daemon_is_reported_once_and_not_at_once() {
    let (request, pod) = (request(json!({"status": {"phase": "Pending"}})), pod(json!({})));
    let plan_at = |second, request: &ContainerRecreateRequest, lasting, reported_no_daemon| {
        let memory = ManagerMemory { reported_no_daemon, ..memory() };
        let (pod, daemon) = (PodKnowledge::Present(&pod), Daemon::Missing(lasting));
        plan(&ObservedRequest { request, pod, daemon, memory, gone_after: Duration::from_secs(900) }, now(second))
    };
    let plan_after = |request: &ContainerRecreateRequest, lasting, reported| plan_at(500, request, lasting, reported);
    let seconds = Duration::from_secs;
    let waits = ManagerPlan { actions: vec![], requeue: Some(LOOK_FOR_NODE) };
    let text = "waiting for a ready kruise-daemon on node n1";
    assert_eq!(
        plan_after(&request, seconds(4), false),
        ManagerPlan { actions: vec![], requeue: Some(seconds(6)) },
        "however old the request is: a daemon that restarts is back before"
    );
    for long in [seconds(10), Duration::MAX] {
        assert_eq!(plan_after(&request, long, false).actions, [Action::ReportNoDaemon(text.into())]);
    }
    assert_eq!(
        plan_at(1, &request, Duration::MAX, false),
        ManagerPlan { actions: vec![], requeue: Some(seconds(1)) },
        "a daemon that is there after all answers within that time"
    );
    assert_eq!(plan_after(&request, seconds(10), true), waits);
    let mut reported = request.clone();
    reported.status.as_mut().unwrap().message = text.into();
    assert_eq!(plan_after(&reported, Duration::MAX, false), waits, "the manager before has reported it");
}

/// What becomes of a request after its daemon has been missing for some time: the plan of the manager.
fn plan_without_daemon(request: &ContainerRecreateRequest, daemon: Daemon, age: u64) -> ManagerPlan {
    let view = pod(json!({}));
    let (pod, memory) = (PodKnowledge::Present(&view), memory());
    plan(&ObservedRequest { request, pod, daemon, memory, gone_after: DAEMON_GONE_AFTER }, now(age))
}

#[test]
fn a_request_whose_daemon_never_returns_ends_when_no_stop_is_on_record() {
    let seconds = Duration::from_secs;
    let held = json!({"metadata": {"finalizers": [labels::CRR_UNREADY_FINALIZER]}});
    for (phase, daemon, age, want) in [
        ("Recreating", Daemon::Missing(seconds(599)), 10_000, None),
        ("Recreating", Daemon::Missing(seconds(600)), 10_000, Some("node n1 has had no ready kruise-daemon for 600 s")),
        ("Pending", Daemon::Missing(seconds(600)), 10_000, Some("node n1 has had no ready kruise-daemon for 600 s")),
        // A daemon that works although it is not Ready: the request gets its time.
        ("Recreating", Daemon::Missing(seconds(9000)), 599, None),
        ("Recreating", Daemon::Unknown, 10_000, None),
        ("Recreating", Daemon::Ready, 10_000, None),
        ("Recreating", Daemon::NodeGone, 1, Some("node n1 has been deleted")),
        ("", Daemon::NodeGone, 1, Some("node n1 has been deleted")),
        ("", Daemon::Missing(seconds(9000)), 59, None),
    ] {
        let mut changes = held.clone();
        changes["status"] = json!({"phase": phase});
        let plan = plan_without_daemon(&request(changes), daemon, age);
        match want {
            None => assert!(!plan.actions.iter().any(|a| matches!(a, Action::Complete { .. })), "{plan:?}"),
            Some(reason) => {
                let (message, states) = completion(plan);
                assert_eq!(message, reason);
                assert_eq!(states, vec![("Failed".to_owned(), reason.to_owned()); 2]);
            }
        }
    }
    let waits =
        request(json!({"status": {"phase": "Recreating", "message": "waiting for a ready kruise-daemon on node n1"}}));
    let plan = plan_without_daemon(&waits, Daemon::Missing(seconds(570)), 10_000);
    assert_eq!(plan.requeue, Some(seconds(30)), "it is looked at when the time is over");
    let by_manager = request(
        json!({"metadata": {"labels": {"crr.kruise.rs/method": "PodSpec"}}, "status": {"phase": "Recreating"}}),
    );
    assert_eq!(plan_without_daemon(&by_manager, Daemon::Missing(Duration::MAX), 10_000), ManagerPlan::default());
}

#[test]
fn a_request_with_a_stop_on_record_is_left_behind_and_releases_its_key() {
    let mut stopping = request(json!({
        "metadata": {"finalizers": [labels::CRR_UNREADY_FINALIZER]},
        "spec": {"strategy": {"unreadyGracePeriodSeconds": 1}},
        "status": {"phase": "Recreating", "containerRecreateStates": [
            {"name": "main", "phase": "Recreating", "previousContainerID": "x://1", "killStartedAt": CREATED}]},
    }));
    let gone = Daemon::Missing(DAEMON_GONE_AFTER);
    let plan = plan_without_daemon(&stopping, gone, 10_000);
    let [Action::ReleaseKey, Action::LeaveBehind { condition, message }] = plan.actions.as_slice() else {
        panic!("{plan:?}")
    };
    assert_eq!(condition.message, "node n1 has had no ready kruise-daemon for 600 s");
    assert!(message.starts_with(&condition.message), "{message}");
    carry_out(&mut stopping, &plan.actions);
    assert!(is_left_behind(&stopping) && !stopping.is_completed());
    for daemon in [gone, Daemon::NodeGone, Daemon::Ready] {
        assert_eq!(
            plan_without_daemon(&stopping, daemon, 20_000),
            ManagerPlan::default(),
            "{daemon:?}: no key comes back"
        );
    }
    // What has ended is on record, and stops nothing any more.
    let done = request(json!({"status": {"phase": "Recreating", "containerRecreateStates": [
        {"name": "main", "phase": "Succeeded", "previousContainerID": "x://1", "killStartedAt": CREATED}]}}));
    let (message, states) = completion(plan_without_daemon(&done, gone, 10_000));
    assert_eq!((states[0].0.as_str(), states[1].1.as_str()), ("Succeeded", message.as_str()));
}

#[test]
fn clock_skew_never_completes_a_request_early() {
    let created: Timestamp = CREATED.parse().unwrap();
    // Our clock is an hour ahead, but we saw the request arrive.
    let ahead = |mono| Now { wall: created + Duration::from_secs(3600), mono: Duration::from_secs(mono) };
    assert_eq!(Sighting::live(ahead(10)).age(ahead(12)), Duration::from_secs(2));
    // Our clock is behind: an age is never negative, and grows with the monotonic clock.
    let behind = |mono| Now { wall: created - Duration::from_secs(3600), mono: Duration::from_secs(mono) };
    assert_eq!(Sighting::found(behind(10), created).age(behind(12)), Duration::from_secs(2));
    // A step of the wall clock after the first sight changes nothing.
    assert_eq!(Sighting::found(now(5), created).age(ahead(107)), Duration::from_secs(7));
}

#[test]
fn the_outcome_shows_what_was_recreated_and_what_failed() {
    let status = |value: Value| serde_json::from_value::<ContainerRecreateRequestStatus>(value).unwrap();
    let good = status(
        json!({"phase": "Completed", "containerRecreateStates": [{"name": "a", "phase": "Succeeded"}, {"name": "b", "phase": "Succeeded"}]}),
    );
    assert_eq!(outcome(&good), (true, "Recreated containers: a, b".into()));
    let bad = status(json!({"phase": "Completed", "message": "pod has gone", "containerRecreateStates": [
        {"name": "a", "phase": "Failed", "message": "no"}, {"name": "b", "phase": "Failed", "message": "pod has gone"}]}));
    assert_eq!(outcome(&bad), (false, "pod has gone; container a: no; recreated: none".into()));
}

/// What the writes make of the request.
fn carry_out(request: &mut ContainerRecreateRequest, actions: &[Action]) {
    for action in actions {
        match action {
            Action::AddFinalizer => {
                request.metadata.finalizers.get_or_insert_default().push(labels::CRR_UNREADY_FINALIZER.into());
            }
            Action::RecordCondition(time) => {
                let conditions = with_grace_condition(request, *time);
                request.status.get_or_insert_default().conditions = conditions;
            }
            Action::RecordAnnotation(time) => {
                request.annotations_mut().insert(labels::CRR_UNREADY_ACQUIRED.into(), time.to_string());
            }
            Action::Complete { message, states } => {
                let status = request.status.get_or_insert_default();
                assert_ne!(status.phase, Phase::Completed, "a finished request moved");
                status.phase = Phase::Completed;
                status.message.clone_from(message);
                status.container_recreate_states.clone_from(states);
            }
            Action::Detach => {
                let rest = other_finalizers(request).into_iter().map(str::to_owned).collect();
                request.metadata.finalizers = Some(rest);
                request.labels_mut().remove(labels::CRR_ACTIVE);
            }
            Action::ReportNoDaemon(message) => request.status.get_or_insert_default().message.clone_from(message),
            Action::LeaveBehind { condition, message } => {
                let conditions = with_condition(request, condition.clone());
                let status = request.status.get_or_insert_default();
                (status.conditions, status.message) = (conditions, message.clone());
            }
            Action::AcquireKey | Action::ReleaseKey | Action::Delete => {}
        }
    }
}

fn any_request() -> impl Strategy<Value = ContainerRecreateRequest> {
    let phase = prop::sample::select(vec!["", "Pending", "Recreating", "Completed", "Newer"]);
    let option = || prop::option::of(0i64..20);
    (phase, any::<[bool; 5]>(), option(), option(), option()).prop_map(
        |(phase, [finalizer, active, deleting, condition, annotation], deadline, ttl, grace)| {
            let mut changes = json!({
                "spec": {"activeDeadlineSeconds": deadline, "ttlSecondsAfterFinished": ttl, "strategy": {"unreadyGracePeriodSeconds": grace}},
                "status": {"phase": phase}, "metadata": {"labels": {}, "annotations": {}}});
            if finalizer {
                changes["metadata"]["finalizers"] = json!(["crr.apps.kruise.io/unready-acquired", "other"]);
            }
            if !active {
                changes["metadata"]["labels"] = json!({"crr.apps.kruise.io/active": null});
            }
            if deleting {
                changes["metadata"]["deletionTimestamp"] = CREATED.into();
            }
            if condition {
                changes["status"]["conditions"] = json!([{"type": "PreRecreateGrace", "status": "True", "reason": "r", "message": "", "lastTransitionTime": CREATED}]);
            }
            if annotation {
                changes["metadata"]["annotations"] = json!({"crr.apps.kruise.io/unready-acquired": CREATED});
            }
            request(changes)
        },
    )
}

proptest! {
    #[test]
    fn a_finished_request_never_moves_and_its_finalizer_always_goes(
        mut request in any_request(), gate: bool, pod_deleting: bool, other_uid: bool, pod_kind in 0..3u8, looks in prop::collection::vec(0u64..40, 1..6),
    ) {
        let mut view = pod(json!({}));
        if !gate { std::sync::Arc::make_mut(&mut view.spec).readiness_gates = Box::default(); }
        if other_uid { view.set_uid("u2"); }
        if pod_deleting { view.rare_mut().deleted = Some(CREATED.parse().unwrap()); }
        let mut at = 0;
        for step in looks {
            at += step;
            let was_completed = request.is_completed();
            let knowledge = match pod_kind { 0 => PodKnowledge::Gone, 1 => PodKnowledge::Unknown, _ => PodKnowledge::Present(&view) };
            let memory = ManagerMemory { completed: was_completed.then(|| Sighting::live(now(0))), ..memory() };
            let decided = plan(&ObservedRequest { request: &request, pod: knowledge, daemon: Daemon::Missing(Duration::MAX), memory, gone_after: DAEMON_GONE_AFTER }, now(at));
            if was_completed || request.is_deleting() {
                prop_assert!(decided.actions.iter().all(|a| matches!(a, Action::ReleaseKey | Action::Detach | Action::Delete)), "{decided:?}");
            }
            // A key is only ever acquired under the finalizer's protection, by a request that runs.
            if let Some(position) = decided.actions.iter().position(|a| *a == Action::AcquireKey) {
                prop_assert!(has_finalizer(&request) || decided.actions[..position].contains(&Action::AddFinalizer));
                prop_assert_eq!(request.phase(), &Phase::Recreating);
            }
            let ended = was_completed || request.is_deleting();
            carry_out(&mut request, &decided.actions);
            prop_assert!(!was_completed || request.is_completed());
            if ended && pod_kind != 1 {
                prop_assert!(!has_finalizer(&request));
            }
            // Without a new time a second look finds nothing left to do, but for a deletion that is repeated.
            let again = plan(&ObservedRequest { request: &request, pod: knowledge, daemon: Daemon::Ready, memory, gone_after: DAEMON_GONE_AFTER }, now(at));
            if !decided.actions.iter().any(|a| matches!(a, Action::Complete { .. })) {
                prop_assert!(again.actions.iter().all(|a| matches!(a, Action::Delete)), "{again:?} after {decided:?}");
            }
        }
    }
}
