//! Tables of the plan. Numbers are those of the specification's items about the terminator.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::*;

const SWITCH: &str = "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT";
const WITH_IMAGE: &str = "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT_WITH_IMAGE";
const IGNORE: &str = "KRUISE_TERMINATE_SIDECAR_IGNORE_EXIT_CODE";

fn at(seconds: u64) -> Now {
    let wall: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let wall = wall.checked_add(jiff::SignedDuration::from_secs(seconds.try_into().unwrap())).unwrap();
    Now { wall, mono: Duration::from_secs(1000 + seconds) }
}

fn exit(code: i32) -> Value {
    json!({"terminated": {"exitCode": code}})
}
fn running() -> Value {
    json!({"running": {}})
}
fn waiting() -> Value {
    json!({"waiting": {"reason": "CrashLoopBackOff"}})
}

/// A Pod of containers: name, variables that are `true` (or an image), state.
fn pod(policy: &str, containers: &[(&str, &[&str], Value)]) -> PodView {
    let value = |name: &str| if name == WITH_IMAGE { "exit:1" } else { "true" };
    let env = |names: &[&str]| names.iter().map(|name| json!({"name": name, "value": value(name)})).collect::<Vec<_>>();
    let spec: Vec<Value> =
        containers.iter().map(|(name, names, _)| json!({"name": name, "image": "i:1", "env": env(names)})).collect();
    let statuses = containers.iter().filter(|(_, _, state)| !state.is_null());
    let statuses: Vec<Value> = statuses.map(|(name, _, state)| json!({"name": name, "state": state})).collect();
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {"restartPolicy": policy, "nodeName": "n", "terminationGracePeriodSeconds": 5, "containers": spec},
        "status": {"phase": "Running", "containerStatuses": statuses}}))
    .unwrap()
}

fn changed(pod: &PodView, change: impl FnOnce(&mut PodView)) -> PodView {
    let mut pod = pod.clone();
    change(&mut pod);
    pod
}

fn step(pod: &PodView) -> Option<TerminatorStep> {
    plan(pod, false, &[], None, at(0)).step
}

fn stop(number: u32, containers: &[&str]) -> Option<TerminatorStep> {
    let containers = containers.iter().map(|name| (*name).to_owned()).collect();
    Some(TerminatorStep::Stop { request: request_name("u1", number), containers })
}

fn end(phase: &'static str) -> Option<TerminatorStep> {
    Some(TerminatorStep::End { phase })
}

fn request(number: u32, status: Value) -> Arc<ContainerRecreateRequest> {
    Arc::new(
        serde_json::from_value(json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
            "metadata": {"name": request_name("u1", number), "namespace": "ns"},
            "spec": {"podName": "p", "containers": [{"name": "proxy"}]}, "status": status}))
        .unwrap(),
    )
}

#[test]
fn sw_d32_on_failure_waits_for_exit_code_0_of_all_mains_and_never_for_their_end() {
    for (policy, first, second, want) in [
        ("Never", exit(0), running(), None),
        ("Never", exit(0), exit(3), stop(1, &["proxy"])),
        ("Never", exit(0), exit(0), stop(1, &["proxy"])),
        ("OnFailure", exit(0), exit(3), None),
        ("OnFailure", exit(0), waiting(), None),
        ("OnFailure", exit(0), exit(0), stop(1, &["proxy"])),
        ("Always", exit(0), exit(0), None),
        ("Never", exit(0), json!(null), None),
    ] {
        let pod = pod(policy, &[("a", &[], first), ("b", &[], second.clone()), ("proxy", &[SWITCH], running())]);
        assert_eq!(step(&pod), want, "{policy} {second}");
    }
}

#[test]
fn a_sidecar_that_crashes_before_the_mains_end_is_left_to_the_policy_of_the_pod() {
    for policy in ["Never", "OnFailure"] {
        for state in [exit(137), waiting(), running()] {
            for names in [&[SWITCH][..], &[SWITCH, IGNORE]] {
                let pod = pod(policy, &[("main", &[], running()), ("proxy", names, state.clone())]);
                assert_eq!(plan(&pod, false, &[], None, at(0)), TerminatorPlan::default(), "{policy} {state}");
                assert_eq!(plan(&pod, true, &[], None, at(0)), TerminatorPlan::default());
            }
        }
    }
}

#[test]
fn nothing_is_done_for_pods_that_are_pending_deleted_mirrors_or_have_no_sidecar() {
    let due = pod("Never", &[("main", &[], exit(0)), ("proxy", &[SWITCH], running())]);
    assert!(is_due(&due));
    assert!(!is_due(&changed(&due, |pod| pod.phase = "Pending".into())));
    assert!(!is_due(&changed(&due, |pod| pod.is_mirror = true)));
    assert!(!is_due(&changed(&due, |pod| pod.rare_mut().deleted = Some(at(0).wall))));
    assert!(!is_due(&pod("Never", &[("main", &[], exit(0)), ("other", &[], running())])));
    assert!(!is_due(&pod("Never", &[("proxy", &[SWITCH], running())])), "no main container");
    assert!(!is_due(&pod("Never", &[("main", &[], exit(0)), ("proxy", &[SWITCH], exit(143))])), "all are over");
}

#[test]
fn sw_b4_d34_an_ignored_exit_code_leaves_the_phase_to_the_main_containers() {
    for (policy, code, want) in
        [("Never", 0, end("Succeeded")), ("Never", 3, end("Failed")), ("OnFailure", 0, end("Succeeded"))]
    {
        let containers = [("main", &[][..], exit(code)), ("proxy", &[SWITCH, IGNORE][..], running())];
        assert_eq!(step(&pod(policy, &containers)), want, "{policy} {code}");
    }
    // Those whose exit codes count go first.
    let both = |state: Value| {
        let all: [(&str, &[&str], Value); 3] =
            [("main", &[], exit(0)), ("proxy", &[SWITCH], state), ("log", &[SWITCH, IGNORE], running())];
        pod("Never", &all)
    };
    assert_eq!(step(&both(running())), stop(1, &["proxy"]));
    assert_eq!(step(&both(exit(143))), end("Succeeded"));
    // The switch for exit codes alone makes no sidecar.
    assert_eq!(step(&pod("Never", &[("main", &[], exit(0)), ("log", &[IGNORE], running())])), None);
}

#[test]
fn a_sidecar_that_kubelet_would_restart_is_stopped_once_and_the_pod_ends() {
    let containers = |state: Value| pod("OnFailure", &[("main", &[], exit(0)), ("proxy", &[SWITCH], state)]);
    let state = |state: Value| request(1, json!({"phase": "Recreating", "containerRecreateStates": [state]}));
    let step = |pod: &PodView, request: &Arc<ContainerRecreateRequest>| {
        plan(pod, false, std::slice::from_ref(request), None, at(0)).step
    };
    let begun = "2026-01-01T00:00:00Z";
    let running = containers(running());
    assert_eq!(step(&running, &state(json!({"name": "proxy", "phase": "Pending"}))), None, "its turn will come");
    let hook = json!({"name": "proxy", "phase": "Recreating", "killStartedAt": begun, "hookStartedAt": begun});
    assert_eq!(step(&running, &state(hook)), None, "its hook runs, and kubelet would run it too");
    let stopping = json!({"name": "proxy", "phase": "Recreating", "killStartedAt": begun});
    assert_eq!(step(&running, &state(stopping)), end("Succeeded"));
    let killed = json!({"name": "proxy", "phase": "Recreating", "killStartedAt": begun, "hookStartedAt": begun, "isKilled": true});
    assert_eq!(step(&running, &state(killed)), end("Succeeded"), "kubelet was faster and has restarted it");
    // Of one that is down already nothing is to be stopped.
    for down in [exit(143), waiting()] {
        assert_eq!(plan(&containers(down), false, &[], None, at(0)).step, end("Succeeded"));
    }
    // An end with code 0 is final: kubelet ends the Pod.
    assert_eq!(plan(&containers(exit(0)), false, &[], None, at(0)), TerminatorPlan::default());
}

/// In a Pod that is over kubelet runs preStop too.
#[test]
fn a_pod_is_not_ended_while_a_request_of_anybody_runs_the_hook_of_a_sidecar_and_not_put_off_for_ever() {
    let begun = "2026-01-01T00:00:00Z";
    let hook = json!({"name": "proxy", "phase": "Recreating", "killStartedAt": begun, "hookStartedAt": begun});
    let with = |change: Value| {
        let mut state = hook.clone();
        json_patch::merge(&mut state, &change);
        state
    };
    let pod = pod("Never", &[("main", &[], exit(0)), ("proxy", &[SWITCH, IGNORE], running())]);
    let lasts = |phase: &str, grace: Value, state: Value| {
        let request = serde_json::from_value(json!({"apiVersion": "apps.kruise.io/v1alpha1",
            "kind": "ContainerRecreateRequest", "metadata": {"name": "users", "namespace": "ns"},
            "spec": {"podName": "p", "containers": [{"name": "proxy"}],
                "strategy": {"terminationGracePeriodSeconds": grace}},
            "status": {"phase": phase, "containerRecreateStates": [state]}}));
        hook_lasts(&pod, &[Arc::new(request.unwrap())]).map(|(_, longest)| longest.as_secs())
    };
    for (phase, grace, change, want) in [
        ("Recreating", json!(20), json!({}), Some(50)),
        ("Recreating", json!(null), json!({}), Some(60)),
        ("Recreating", json!(20), json!({"hookStartedAt": null}), None),
        ("Recreating", json!(20), json!({"isKilled": true}), None),
        ("Recreating", json!(20), json!({"phase": "Failed"}), None),
        ("Recreating", json!(20), json!({"name": "main"}), None),
        ("Completed", json!(20), json!({}), None),
    ] {
        assert_eq!(lasts(phase, grace, with(change.clone())), want, "{phase} {change}");
    }

    let ends = || plan(&pod, false, &[], None, at(0));
    assert_eq!(ends().step, end("Succeeded"));
    let seconds = Duration::from_secs;
    let waits = TerminatorPlan { step: None, look: Some(seconds(30)) };
    assert_eq!(ends().after_hook(Some(seconds(50)), seconds(20)), waits);
    assert_eq!(ends().after_hook(Some(seconds(50)), seconds(50)), ends(), "the node may be lost");
    assert_eq!(ends().after_hook(None, seconds(0)), ends());
    let stops = TerminatorPlan { step: stop(1, &["proxy"]), look: None };
    assert_eq!(stops.clone().after_hook(Some(seconds(50)), seconds(0)), stops);
}

#[test]
fn sw_e27_a_request_that_did_not_help_is_followed_by_another_one_later_each_time() {
    let pod = pod("Never", &[("main", &[], exit(0)), ("proxy", &[SWITCH], running())]);
    let ended = |number: u32| request(number, json!({"phase": "Completed", "completionTime": "2026-01-01T00:00:00Z"}));
    let with =
        |requests: &[Arc<ContainerRecreateRequest>], seconds: u64| plan(&pod, false, requests, None, at(seconds));
    assert_eq!(with(&[], 0).step, stop(1, &["proxy"]));
    assert_eq!(with(&[request(1, json!({"phase": "Recreating"}))], 999), TerminatorPlan::default(), "one at a time");
    assert_eq!(with(&[ended(1)], 4).look, Some(Duration::from_secs(6)));
    assert_eq!(with(&[ended(1)], 10).step, stop(2, &["proxy"]));
    assert_eq!(with(&[ended(1), ended(2)], 10).look, Some(Duration::from_secs(10)));
    assert_eq!(with(&[ended(2), ended(1)], 20).step, stop(3, &["proxy"]), "whatever their order");
    let many: Vec<_> = (1..30).map(ended).collect();
    assert_eq!(with(&many, 0).look, Some(Duration::from_secs(300)));
    assert_eq!(request_name("u1", 1), "sidecar-termination-u1");
    assert_eq!(request_name("u1", 2), "sidecar-termination-u1-2");
}

#[test]
fn sw_e28_on_a_usual_node_a_sidecar_that_names_only_an_image_is_stopped() {
    let pod = pod("Never", &[("main", &[], exit(0)), ("proxy", &[WITH_IMAGE], running())]);
    assert_eq!(step(&pod), stop(1, &["proxy"]));
}

#[test]
fn sw_d31_on_a_virtual_node_the_image_is_swapped_once_and_what_has_none_goes_with_the_pod() {
    let all = |image: &str| {
        let containers: [(&str, &[&str], Value); 3] =
            [("main", &[], exit(3)), ("proxy", &[SWITCH, WITH_IMAGE], running()), ("log", &[SWITCH], running())];
        let pod = pod("Never", &containers);
        changed(&pod, |pod| {
            let mut spec = crate::k8s::pod::SpecView::clone(&pod.spec);
            spec.containers[1].image = image.into();
            pod.spec = spec.into();
        })
    };
    let on_virtual = |pod: &PodView| plan(pod, true, &[], None, at(0));
    assert_eq!(on_virtual(&all("i:1")).step, Some(TerminatorStep::SwapImages(vec![("proxy".into(), "exit:1".into())])));
    assert_eq!(on_virtual(&all("exit:1")), TerminatorPlan::default(), "no second write");
    let switched = pod(
        "Never",
        &[("main", &[], exit(3)), ("proxy", &[SWITCH, WITH_IMAGE], exit(0)), ("log", &[SWITCH], running())],
    );
    assert_eq!(on_virtual(&switched).step, end("Failed"));
}

#[test]
fn sw_b6_d33_a_sidecar_that_runs_on_gets_a_request_although_the_pod_is_over_one_with_a_hook_after_its_grace() {
    let both = [SWITCH, IGNORE];
    let all: [(&str, &[&str], Value); 3] =
        [("main", &[], exit(0)), ("proxy", &both, running()), ("plain", &both, running())];
    let over = |ended: &str, count: usize| {
        changed(&pod("Never", &all[..count]), |pod| {
            let mut spec = crate::k8s::pod::SpecView::clone(&pod.spec);
            spec.containers[1].has_pre_stop = true;
            pod.spec = spec.into();
            pod.phase = "Succeeded".into();
            let type_ = ended.to_owned();
            pod.conditions =
                [crate::k8s::pod::PodCondition { type_, status: "True".into(), ..Default::default() }].into();
        })
    };
    let after = |pod: &PodView, seconds: u64| plan(pod, false, &[], Some(Duration::from_secs(seconds)), at(seconds));
    let ours = over("SidecarTerminated", 2);
    assert_eq!(after(&ours, 10), TerminatorPlan { step: None, look: Some(Duration::from_secs(25)) });
    assert_eq!(after(&ours, 35).step, stop(1, &["proxy"]));
    // Without a hook nothing would run twice: it stops at once.
    let two = over("SidecarTerminated", 3);
    assert_eq!(after(&two, 0), TerminatorPlan { step: stop(1, &["plain"]), look: Some(Duration::from_secs(35)) });
    assert_eq!(after(&two, 35), TerminatorPlan { step: stop(1, &["proxy", "plain"]), look: None });
    let open = [request(1, json!({"phase": "Recreating"}))];
    let waits = TerminatorPlan { step: None, look: Some(Duration::from_secs(30)) };
    assert_eq!(plan(&two, false, &open, Some(Duration::from_secs(5)), at(5)), waits);
    assert_eq!(after(&over("Other", 3), 99), TerminatorPlan::default(), "somebody else has ended it");
    assert_eq!(plan(&ours, true, &[], Some(Duration::from_secs(99)), at(99)), TerminatorPlan::default());
}

#[test]
fn rules_and_policies_of_containers_come_before_those_of_the_pod() {
    let pod = |main: Value| -> PodView {
        let mut container = json!({"name": "main"});
        json_patch::merge(&mut container, &main);
        serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u1"},
            "spec": {"restartPolicy": "OnFailure", "containers": [container, {"name": "proxy", "env": [{"name": SWITCH, "value": "true"}]}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "main", "state": exit(3)}, {"name": "proxy", "state": running()}]}}))
        .unwrap()
    };
    assert!(!is_due(&pod(json!({}))));
    assert!(is_due(&pod(json!({"restartPolicy": "Never"}))));
    let rule = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [3]}}]);
    assert!(!is_due(&pod(json!({"restartPolicy": "Never", "restartPolicyRules": rule}))));
}

#[test]
fn the_hook_of_a_native_sidecar_is_awaited_too() {
    let pod: PodView = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "i:1"}],
            "initContainers": [{"name": "logs", "image": "i:1", "restartPolicy": "Always"}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "main", "state": exit(0)}],
            "initContainerStatuses": [{"name": "logs", "state": running()}]}}))
    .unwrap();
    let begun = "2026-01-01T00:00:00Z";
    let request = serde_json::from_value(json!({"apiVersion": "apps.kruise.io/v1alpha1",
        "kind": "ContainerRecreateRequest", "metadata": {"name": "users", "namespace": "ns"},
        "spec": {"podName": "p", "containers": [{"name": "logs"}]},
        "status": {"phase": "Recreating", "containerRecreateStates": [
            {"name": "logs", "phase": "Recreating", "killStartedAt": begun, "hookStartedAt": begun}]}}));
    assert!(hook_lasts(&pod, &[Arc::new(request.unwrap())]).is_some());
}
