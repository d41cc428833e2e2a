//! Tables over the rules, and the objects of a cluster that OpenKruise served.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    marks::{Gone, Keys, MarkedResult},
    node::{Changed, Handler, Look, Settings, Tally, look, statuses},
    *,
};
use crate::{
    api::apps::node_pod_probe::{ContainerProbeState, NodePodProbe},
    k8s::time::Now,
};

const RECORDED: &str = include_str!("../../../api/apps/testdata/pod_probes.json");

fn recorded(part: &str) -> Value {
    serde_json::from_str::<Value>(RECORDED).unwrap()[part].clone()
}

fn at(seconds: i64) -> Now {
    let wall = "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds);
    Now { wall, mono: Duration::from_secs(1) }
}

fn marker(name: &str, probes: Value) -> PodProbeMarker {
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "a", "uid": name, "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "probes": probes}}))
    .unwrap()
}

/// A Pod with the containers `main` and `mesh`, a native sidecar, which run since second 0.
fn pod(changes: Value) -> Value {
    let running = |name: &str| {
        json!({"name": name, "containerID": format!("containerd://{name}-1"), "restartCount": 0,
        "started": true, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}})
    };
    let mut pod = json!({
        "metadata": {"name": "p", "namespace": "a", "uid": "u1", "labels": {"app": "web"}, "annotations": {"their": "1"}},
        "spec": {"nodeName": "n1", "initContainers": [{"name": "setup"}, {"name": "mesh", "restartPolicy": "Always"}],
            "containers": [{"name": "main", "ports": [{"name": "web", "containerPort": 8080}]}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Initialized", "status": "True"}],
            "containerStatuses": [running("main")], "initContainerStatuses": [running("mesh")]}});
    json_patch::merge(&mut pod, &changes);
    pod
}

fn view(pod: &Value) -> PodView {
    serde_json::from_value(pod.clone()).unwrap()
}

// ---- entries ----

#[test]
fn entries_are_those_that_openkruise_made() {
    let marker: PodProbeMarker = serde_json::from_value(recorded("marker")).unwrap();
    let object: NodePodProbe = serde_json::from_value(recorded("node")).unwrap();
    let pods = recorded("pods");
    let pods: Vec<&Value> = pods.as_array().unwrap().iter().collect();
    assert!(!object.spec.pod_probes.is_empty());
    for entry in &object.spec.pod_probes {
        let pod = pods.iter().find(|pod| pod["metadata"]["uid"] == entry.uid).unwrap();
        let made = entries::entry(&view(pod), &[&marker], &entries::ports_of(pod)).0;
        assert_eq!(&made, entry);
        assert_eq!(entries::fingerprint_of_head(&made), entries::fingerprint_of_head(entry));
        assert_eq!(entries::fingerprint(&made.probes[0]), entries::fingerprint(&entry.probes[0]));
    }
}

#[test]
fn names_of_ports_become_numbers_and_what_nobody_can_probe_is_left_out() {
    let probe =
        |name: &str, container: &str, probe: Value| json!({"name": name, "containerName": container, "probe": probe});
    let all = marker(
        "m",
        json!([
            probe("named", "main", json!({"tcpSocket": {"port": "web"}})),
            probe("digits", "main", json!({"httpGet": {"port": "81", "path": "/"}})),
            probe("number", "mesh", json!({"tcpSocket": {"port": 82}})),
            probe("nowhere", "main", json!({"tcpSocket": {"port": "none"}})),
            probe("other container", "mesh", json!({"tcpSocket": {"port": "web"}})),
            probe("no container", "gone", json!({"exec": {"command": ["a"]}})),
            probe("init container", "setup", json!({"exec": {"command": ["a"]}})),
            probe("named", "main", json!({"exec": {"command": ["twice"]}})),
        ]),
    );
    let pod = pod(json!({}));
    assert!(entries::needs_ports(&[&all]));
    let entry = entries::entry(&view(&pod), &[&all], &entries::ports_of(&pod)).0;
    let port = |probe: &Value| probe.pointer("/tcpSocket/port").or(probe.pointer("/httpGet/port")).cloned();
    let found: Vec<(&str, Option<Value>)> = entry.probes.iter().map(|p| (p.name.as_str(), port(&p.probe))).collect();
    assert_eq!(found, [("m#named", Some(json!(8080))), ("m#digits", Some(json!(81))), ("m#number", Some(json!(82)))]);
    assert_eq!((entry.ip.as_str(), entry.uid.as_str()), ("10.0.0.1", "u1"));
    let none = marker("m", json!([probe("no container", "gone", json!({"exec": {"command": ["a"]}}))]));
    assert!(!entries::needs_ports(&[&none]));
    assert_eq!(entries::entry(&view(&pod), &[&none], &Default::default()).0.probes, []);
}

#[test]
fn what_has_no_room_in_any_case_is_not_even_copied() {
    let probes = |count: usize, bytes: usize| {
        let one = |i: usize| json!({"name": format!("{i}"), "containerName": "main", "probe": {"exec": {"command": ["x".repeat(bytes)]}}});
        json!((0..count).map(one).collect::<Vec<Value>>())
    };
    let made = |markers: &[&PodProbeMarker]| entries::entry(&view(&pod(json!({}))), markers, &Default::default());
    let (many, two) = (marker("m", probes(5000, 1)), marker("n", probes(2, 1)));
    let (entry, left_out) = made(&[&many, &two]);
    assert_eq!((entry.probes.len(), left_out.len()), (256, 2), "one of each PodProbeMarker");
    assert_eq!((left_out[0].0.as_str(), left_out[1].0.as_str()), ("m#256", "n#0"));
    let (entry, left_out) = made(&[&marker("m", probes(3, 70_000)), &marker("n", probes(20, 60_000))]);
    assert_eq!((entry.probes.len(), left_out.len()), (4, 3 + 16));
}

#[test]
fn e24_the_address_of_a_pod_is_part_of_its_entry() {
    let all = marker("m", json!([{"name": "a", "containerName": "main", "probe": {"tcpSocket": {"port": 1}}}]));
    let of = |ip: Value| {
        let pod = pod(json!({"status": {"podIP": ip}}));
        entries::fingerprint_of_head(&entries::entry(&view(&pod), &[&all], &Default::default()).0)
    };
    assert_ne!(of(Value::Null), of(json!("10.0.0.1")));
}

#[test]
fn pods_that_come_or_go_are_not_probed() {
    for (changes, want) in [
        (json!({}), true),
        (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), false),
        (json!({"status": {"phase": "Succeeded"}}), false),
        (json!({"spec": {"nodeName": null}}), false),
        (json!({"status": {"conditions": [{"type": "Initialized", "status": "False"}]}}), false),
    ] {
        assert_eq!(is_eligible(&view(&pod(changes.clone()))), want, "{changes}");
    }
}

// ---- what Pods carry ----

fn outcome<'a>(marker: &'a PodProbeMarker, probe: usize, state: &'a str, message: &'a str) -> MarkedResult<'a> {
    let probe = &marker.spec.probes[probe];
    let (probed, transition) = (Some(at(60).wall), Some(at(30).wall));
    MarkedResult { marker, probe, state, message, probed, transition, writes_condition: true }
}

fn idle() -> PodProbeMarker {
    marker(
        "m",
        json!([{"name": "idle", "containerName": "main", "podConditionType": "example.com/idle",
        "probe": {"exec": {"command": ["a"]}}, "markerPolicy": [
            {"state": "Succeeded", "labels": {"role": "idle", "both": "1"}, "annotations": {"cost": "-10"}},
            {"state": "Failed", "labels": {"role": "busy"}, "annotations": {"busy": "yes"}}]}]),
    )
}

const MARKED_BY: &str = crate::api::labels::PROBE_MARKED_BY;

fn patched(pod: &Value, outcomes: &[MarkedResult<'_>], gone: &Gone) -> (Value, Option<Value>) {
    let patch = marks::patch(pod, outcomes, gone);
    let mut after = pod.clone();
    if let Some(patch) = &patch {
        let mut plain = patch.clone();
        plain.as_object_mut().unwrap().remove("status");
        json_patch::merge(&mut after, &plain);
        for condition in patch.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten() {
            let conditions = after["status"]["conditions"].as_array_mut().unwrap();
            let old = conditions.iter().position(|c| c["type"] == condition["type"]);
            let mut old = old.map(|i| conditions.remove(i)).unwrap_or(json!({}));
            if condition.get("$patch").is_none() {
                json_patch::merge(&mut old, condition);
                conditions.push(old);
            }
        }
    }
    (after, patch)
}

#[test]
fn f29_a_result_shows_as_condition_labels_and_annotations_in_one_patch() {
    let (marker, none) = (idle(), Gone::default());
    let (good, patch) = patched(&pod(json!({})), &[outcome(&marker, 0, SUCCEEDED, "yes\n")], &none);
    assert_eq!(
        patch.unwrap(),
        json!({
        "metadata": {"uid": "u1", "labels": {"role": "idle", "both": "1"}, "annotations": {"cost": "-10", MARKED_BY: "m"}},
        "status": {"conditions": [{"type": "example.com/idle", "status": "True", "message": "yes\n",
            "lastProbeTime": "2026-01-01T00:01:00Z", "lastTransitionTime": "2026-01-01T00:00:30Z"}]}})
    );
    assert_eq!(marks::patch(&good, &[outcome(&marker, 0, SUCCEEDED, "yes\n")], &none), None, "nothing to do");
    let (bad, _) = patched(&good, &[outcome(&marker, 0, FAILED, "")], &none);
    assert_eq!(bad["metadata"]["labels"], json!({"app": "web", "role": "busy"}));
    assert_eq!(bad["metadata"]["annotations"], json!({"their": "1", "busy": "yes", MARKED_BY: "m"}));
    let condition = &bad["status"]["conditions"][1];
    assert_eq!((&condition["status"], condition.get("message")), (&json!("False"), None));
}

#[test]
fn e23_a_message_alone_updates_the_condition_and_nothing_else() {
    let marker = idle();
    let (pod, _) = patched(&pod(json!({})), &[outcome(&marker, 0, SUCCEEDED, "1")], &Gone::default());
    let patch = marks::patch(&pod, &[outcome(&marker, 0, SUCCEEDED, "2")], &Gone::default()).unwrap();
    assert_eq!(patch["metadata"], json!({"uid": "u1"}));
    assert_eq!(patch["status"]["conditions"][0]["message"], "2");
}

#[test]
fn f28_while_nothing_is_known_everything_stays_and_a_first_condition_is_unknown() {
    let marker = idle();
    let unknown = [outcome(&marker, 0, UNKNOWN, "")];
    let (good, _) = patched(&pod(json!({})), &[outcome(&marker, 0, SUCCEEDED, "yes")], &Gone::default());
    assert_eq!(marks::patch(&good, &unknown, &Gone::default()), None);
    let (fresh, patch) = patched(&pod(json!({})), &unknown, &Gone::default());
    assert_eq!(fresh["status"]["conditions"][1]["status"], "Unknown");
    assert_eq!(patch.unwrap()["metadata"], json!({"uid": "u1", "annotations": {MARKED_BY: "m"}}));
    // What another probe would remove stays too.
    let other = marker_with_role_for_failed("z");
    let both = [outcome(&marker, 0, UNKNOWN, ""), outcome(&other, 0, SUCCEEDED, "")];
    assert_eq!(marks::patch(&good, &both, &Gone::default()), None);
}

fn marker_with_role_for_failed(name: &str) -> PodProbeMarker {
    marker(
        name,
        json!([{"name": "x", "containerName": "main", "probe": {"exec": {"command": ["a"]}},
        "markerPolicy": [{"state": "Failed", "labels": {"role": "x"}}]}]),
    )
}

#[test]
fn of_two_probes_with_one_key_or_condition_the_first_wins() {
    let (first, second) = (idle(), marker_with_role_for_failed("n"));
    let (pod, _) = patched(
        &pod(json!({})),
        &[outcome(&first, 0, SUCCEEDED, ""), outcome(&second, 0, FAILED, "")],
        &Gone::default(),
    );
    assert_eq!(pod["metadata"]["labels"]["role"], "idle");
    // One that does not set it does not remove what the other sets.
    let both = [outcome(&first, 0, SUCCEEDED, ""), outcome(&second, 0, SUCCEEDED, "")];
    assert_eq!(marks::patch(&pod, &both, &Gone::default()), None);
    let mut again = idle();
    again.spec.probes[0].marker_policy.clear();
    let both = [outcome(&first, 0, SUCCEEDED, ""), outcome(&again, 0, FAILED, "no")];
    assert_eq!(marks::patch(&pod, &both, &Gone::default()), None);
}

#[test]
fn what_nobody_wants_any_more_is_removed_but_for_the_condition_of_a_readiness_gate() {
    let marker = idle();
    let (pod, _) = patched(&pod(json!({})), &[outcome(&marker, 0, SUCCEEDED, "")], &Gone::default());
    let gone = Gone { keys: Keys::of(&marker), markers: ["m".to_owned()].into() };
    let (clean, patch) = patched(&pod, &[], &gone);
    assert_eq!(clean["metadata"]["labels"], json!({"app": "web"}));
    assert_eq!(clean["metadata"]["annotations"], json!({"their": "1"}));
    assert_eq!(clean["status"]["conditions"].as_array().unwrap().len(), 1);
    assert_eq!(patch.unwrap()["status"]["conditions"], json!([{"type": "example.com/idle", "$patch": "delete"}]));
    assert_eq!(marks::patch(&clean, &[], &gone), None);
    let mut gated = pod.clone();
    gated["spec"]["readinessGates"] = json!([{"conditionType": "example.com/idle"}]);
    assert!(marks::patch(&gated, &[], &gone).unwrap().get("status").is_none());
    // Another PodProbeMarker sets one of the keys.
    let other = marker_with_role_for_failed("n");
    let (kept, _) = patched(&pod, &[outcome(&other, 0, FAILED, "")], &gone);
    assert_eq!(kept["metadata"]["labels"]["role"], "x");
    assert_eq!(kept["metadata"]["annotations"][MARKED_BY], "n");
}

#[test]
fn a_pod_names_those_that_marked_it_and_no_others() {
    let (first, second) = (idle(), marker_with_role_for_failed("n"));
    let both = [outcome(&first, 0, SUCCEEDED, ""), outcome(&second, 0, FAILED, "")];
    let (marked, _) = patched(&pod(json!({})), &both, &Gone::default());
    assert_eq!(marked["metadata"]["annotations"][MARKED_BY], "m,n");
    // It has nothing to lose but the name.
    let gone = Gone { markers: ["n".to_owned()].into(), ..Gone::default() };
    let view = |pod: &Value| serde_json::from_value::<PodView>(pod.clone()).unwrap();
    assert!(!gone.is_nothing(&view(&marked)));
    let (left, patch) = patched(&marked, &[], &gone);
    assert_eq!(patch.unwrap(), json!({"metadata": {"uid": "u1", "annotations": {MARKED_BY: "m"}}}));
    assert!(gone.is_nothing(&view(&left)));
    // What a Pod has anyway is nobody's mark.
    let mut same = pod(json!({}));
    same["metadata"]["labels"]["role"] = "x".into();
    assert_eq!(marks::patch(&same, &[outcome(&second, 0, FAILED, "")], &Gone::default()), None);
}

#[test]
fn f27_a_native_condition_of_a_stored_object_is_never_written() {
    let odd = marker("m", json!([{"name": "x", "containerName": "main", "podConditionType": "Ready", "probe": {}}]));
    assert_eq!(marks::patch(&pod(json!({})), &[outcome(&odd, 0, FAILED, "")], &Gone::default()), None);
    assert!(Keys::of(&odd).is_empty());
}

#[test]
fn what_belongs_to_kubernetes_and_kruise_is_neither_written_nor_removed_for_a_stored_object() {
    let keys = json!({"pod-template-hash": "x", "kubernetes.io/x": "y", "mine": "z"});
    let annotations = json!({"kruise.rs/x": "y", "controller.kubernetes.io/pod-deletion-cost": "1"});
    let mut stored = marker(
        "m",
        json!([{"name": "x", "containerName": "main", "podConditionType": "apps.kruise.io/x", "probe": {},
            "markerPolicy": [{"state": "Succeeded", "labels": keys, "annotations": annotations}]}]),
    );
    let patch = marks::patch(&pod(json!({})), &[outcome(&stored, 0, SUCCEEDED, "")], &Gone::default()).unwrap();
    assert_eq!(patch["metadata"]["labels"], json!({"mine": "z"}));
    assert_eq!(
        patch["metadata"]["annotations"],
        json!({"controller.kubernetes.io/pod-deletion-cost": "1", MARKED_BY: "m"})
    );
    assert!(patch.get("status").is_none());
    let own = Keys::of(&stored);
    assert_eq!(own.labels, ["mine".to_owned()].into());
    // Nor is it removed, although somebody has noted it.
    let note = json!({"labels": ["pod-template-hash", "mine"], "conditions": ["Ready", "a.k8s.io/b"]}).to_string();
    stored.metadata.annotations = Some([("kruise.rs/probe-marks".to_owned(), note)].into());
    assert_eq!(Keys::noted(&stored), Keys { annotations: Default::default(), ..own });
}

#[test]
fn e31_a_pod_without_labels_and_annotations_can_be_marked() {
    let mut bare = pod(json!({}));
    for field in ["labels", "annotations"] {
        bare["metadata"].as_object_mut().unwrap().remove(field);
    }
    let marker = idle();
    let (marked, _) = patched(&bare, &[outcome(&marker, 0, SUCCEEDED, "")], &Gone::default());
    assert_eq!(marked["metadata"]["labels"]["role"], "idle");
}

#[test]
fn recorded_pods_are_as_their_results_say() {
    let marker: PodProbeMarker = serde_json::from_value(recorded("marker")).unwrap();
    let object: NodePodProbe = serde_json::from_value(recorded("node")).unwrap();
    let pods = recorded("pods");
    let mut seen = 0;
    for status in &object.status.as_ref().unwrap().pod_probe_statuses {
        let Some(pod) = pods.as_array().unwrap().iter().find(|pod| pod["metadata"]["uid"] == status.uid) else {
            continue;
        };
        let state = &status.probe_states[0];
        let outcome = MarkedResult {
            marker: &marker,
            probe: &marker.spec.probes[0],
            state: &state.state,
            message: &state.message,
            probed: state.last_probe_time,
            transition: state.last_transition_time,
            writes_condition: true,
        };
        assert_eq!(marks::patch(pod, &[outcome], &Gone::default()), None, "{}", status.name);
        seen += 1;
    }
    assert!(seen > 0);
}

#[test]
fn the_note_on_a_marker_is_read_back_and_anything_else_counts_as_none() {
    let mut noted = idle();
    let keys = Keys::of(&noted);
    let note = |noted: &mut PodProbeMarker, text: &str| {
        noted.metadata.annotations = Some([("kruise.rs/probe-marks".to_owned(), text.to_owned())].into());
    };
    note(&mut noted, &keys.note());
    assert_eq!(Keys::noted(&noted), keys);
    assert_eq!(
        keys.note(),
        r#"{"annotations":["busy","cost"],"conditions":["example.com/idle"],"labels":["both","role"]}"#
    );
    for bad in ["", "x", "[]", "{\"labels\": 1}"] {
        note(&mut noted, bad);
        assert!(Keys::noted(&noted).is_empty(), "{bad}");
    }
}

// ---- the daemon's part ----

#[test]
fn f32_defaults_are_openkruises_and_odd_probes_say_what_is_wrong() {
    let of = |probe: Value| Settings::of(&probe);
    let second = Duration::from_secs(1);
    let plain = of(json!({"exec": {"command": ["a"]}, "periodSeconds": 0, "timeoutSeconds": -5}));
    assert_eq!((plain.period, plain.timeout, plain.initial_delay), (second, second, second));
    assert_eq!((plain.success_threshold, plain.failure_threshold), (1, 1));
    assert_eq!(plain.handler, Handler::Exec(vec!["a".into()]));
    assert_eq!(of(json!({"exec": {"command": ["a"]}, "periodSeconds": i32::MAX})).period, Duration::from_secs(86_400));
    assert_eq!(of(json!({"exec": {"command": ["a"]}, "timeoutSeconds": 3600})).timeout, LONGEST_TIMEOUT);
    let http = json!({"httpGet": {"port": 80, "path": "x", "host": "10.1.1.1",
        "httpHeaders": [{"name": "HOST", "value": "a"}, {"name": "X", "value": "b"}]}});
    let headers = vec![("HOST".to_owned(), "a".to_owned()), ("X".to_owned(), "b".to_owned())];
    assert_eq!(of(http).handler, Handler::Http { port: 80, path: "/x".into(), https: false, headers });
    for (odd, message) in [
        (json!({}), "none of exec"),
        (json!({"exec": {"command": ["a"]}, "tcpSocket": {"port": 1}}), "more than one"),
        (json!({"exec": {}}), "exec.command is empty"),
        (json!({"tcpSocket": {"port": "web"}}), "want 1 to 65535"),
        (json!({"tcpSocket": {"port": 70000}}), "want 1 to 65535"),
        (json!({"httpGet": {"port": 1, "scheme": "ftp"}}), "HTTP or HTTPS"),
        (json!({"grpc": {"port": 1}}), "none of exec"),
        (json!({"exec": 1}), "cannot be read"),
        (json!(7), "cannot be read"),
    ] {
        let handler = of(odd.clone()).handler;
        assert!(matches!(&handler, Handler::Impossible(why) if why.contains(message)), "{odd}: {handler:?}");
    }
}

#[test]
fn e30_f31_only_the_pods_own_address_is_dialled() {
    assert!(node::address("10.0.0.1").is_ok() && node::address("fd00::1").is_ok());
    for bad in ["", "x", "127.0.0.1", "0.0.0.0", "::1", "169.254.169.254", "fe80::1", "224.0.0.1"] {
        assert!(node::address(bad).unwrap_err().0.contains("no usable address"), "{bad}");
    }
}

#[test]
fn f32_a_container_is_probed_when_it_runs_has_started_and_its_delay_is_over() {
    let settings = Settings::of(&json!({"exec": {"command": ["a"]}, "initialDelaySeconds": 10}));
    let status = |change: Value| {
        let mut status = json!({"name": "main", "containerID": "containerd://main-1", "started": true,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}});
        json_patch::merge(&mut status, &change);
        view(&pod(json!({"status": {"containerStatuses": [status]}})))
    };
    let seconds = Duration::from_secs;
    for (name, pod, after, want) in [
        ("young", status(json!({})), 4, Look::TooEarly(Some(seconds(6)))),
        ("our clock is behind", status(json!({})), -5, Look::TooEarly(Some(seconds(10)))),
        ("due", status(json!({})), 10, Look::Due),
        ("starting", status(json!({"started": false})), 100, Look::TooEarly(None)),
        ("waits", status(json!({"state": {"running": null, "waiting": {}}})), 100, Look::NotRunning),
        ("ended", status(json!({"state": {"running": null, "terminated": {"exitCode": 1}}})), 100, Look::NotRunning),
        (
            "not made",
            status(json!({"containerID": null, "state": {"running": null, "waiting": {}}})),
            100,
            Look::NotStarted,
        ),
    ] {
        assert_eq!(look(&pod, "main", &settings, at(after)).0, want, "{name}");
    }
    assert_eq!(look(&status(json!({})), "gone", &settings, at(100)), (Look::NotStarted, ""));
    assert_eq!(look(&status(json!({})), "mesh", &settings, at(100)), (Look::Due, "containerd://mesh-1"));
}

#[test]
fn results_count_in_a_row_and_a_restart_begins_anew() {
    let settings = Settings::of(&json!({"exec": {"command": ["a"]}, "successThreshold": 2, "failureThreshold": 3}));
    let mut tally = Tally::default();
    let note = |tally: &mut Tally, good: bool, second: i64| tally.note(good, b"x", &settings, at(second));
    assert_eq!(tally.begin("c1", at(0)), Changed::Message);
    assert_eq!((tally.state, tally.begin("c1", at(1))), (UNKNOWN, Changed::Nothing));
    assert_eq!(note(&mut tally, true, 1), Changed::Nothing, "one of two");
    assert_eq!((note(&mut tally, false, 2), note(&mut tally, true, 3)), (Changed::Nothing, Changed::Nothing));
    assert_eq!((note(&mut tally, true, 4), tally.state), (Changed::State, SUCCEEDED));
    assert_eq!(tally.transition, Some(at(4).wall));
    assert_eq!(note(&mut tally, true, 5), Changed::Nothing);
    assert_eq!((note(&mut tally, false, 6), note(&mut tally, false, 7)), (Changed::Nothing, Changed::Nothing));
    assert_eq!((note(&mut tally, false, 8), tally.state), (Changed::State, FAILED));
    assert_eq!(
        (tally.begin("c2", at(9)), tally.state, tally.transition),
        (Changed::Message, UNKNOWN, Some(at(9).wall))
    );
    assert_eq!((note(&mut tally, true, 10), note(&mut tally, true, 11)), (Changed::Nothing, Changed::State));
    assert_eq!((tally.not_running("main", at(12)), tally.state), (Changed::State, FAILED));
    assert_eq!(tally.message, "Container(main) is Non-running");
    assert_eq!(tally.not_running("main", at(13)), Changed::Nothing);
    assert_eq!(tally.probed, Some(at(12).wall));
}

#[test]
fn a_new_message_is_reported_without_a_transition() {
    let settings = Settings::of(&json!({"exec": {"command": ["a"]}}));
    let mut tally = Tally::default();
    tally.begin("c1", at(0));
    assert_eq!(tally.note(true, b"one", &settings, at(1)), Changed::State);
    assert_eq!(tally.note(true, b"two", &settings, at(2)), Changed::Message);
    assert_eq!((tally.transition, tally.probed), (Some(at(1).wall), Some(at(2).wall)));
}

#[test]
fn f31_messages_are_readable_text_of_a_bounded_size() {
    assert_eq!(readable(b"fine\n"), "fine\n");
    assert_eq!(readable(b"a\xff\xfeb\0c\x1b[1m"), "a\u{fffd}\u{fffd}b\u{fffd}c\u{fffd}[1m");
    assert_eq!(readable(&[b'x'; 10_240]).len(), 1024);
    let wide = readable("ü".repeat(1000).as_bytes());
    assert!(wide.len() == 1024 && wide.chars().all(|c| c == 'ü'));
    let three = readable("€".repeat(1000).as_bytes());
    assert_eq!(three.len(), 1023, "cut at a character");
}

fn result_of(state: &str, transition: i64) -> ContainerProbeState {
    ContainerProbeState {
        name: "m#a".into(),
        state: state.into(),
        last_probe_time: Some(at(transition).wall),
        last_transition_time: Some(at(transition).wall),
        message: "was".into(),
    }
}

#[test]
fn a_daemon_that_starts_goes_on_from_what_was_reported_of_the_same_instance() {
    let pod = view(&pod(json!({})));
    let adopted = Tally::adopt(&result_of(FAILED, 0), &pod, "main").unwrap();
    assert_eq!((adopted.state, adopted.message.as_str()), (FAILED, "was"));
    assert_eq!(adopted.instance, "containerd://main-1");
    assert_eq!(Tally::adopt(&result_of(FAILED, -1), &pod, "main"), None, "of the instance before");
    assert_eq!(Tally::adopt(&result_of(UNKNOWN, 5), &pod, "main"), None);
    assert_eq!(Tally::adopt(&result_of(FAILED, 5), &pod, "gone"), None);
}

#[test]
fn f34_the_status_holds_what_the_spec_wants_and_equal_results_are_equal() {
    let object: NodePodProbe = serde_json::from_value(json!({"metadata": {"name": "n1"}, "spec": {"podProbes": [
        {"name": "p", "namespace": "a", "uid": "u1", "probes": [
            {"name": "m#a", "containerName": "main", "probe": {}}, {"name": "m#new", "containerName": "main", "probe": {}}]},
        {"name": "q", "namespace": "a", "uid": "u2", "probes": [{"name": "m#a", "containerName": "main", "probe": {}}]}]},
        "status": {"podProbeStatuses": [
            {"name": "p", "namespace": "a", "uid": "u1", "probeStates": [result_of(SUCCEEDED, 1), {"name": "m#gone", "state": "Failed"}]},
            {"name": "r", "namespace": "a", "uid": "u3", "probeStates": [result_of(FAILED, 1)]}]}}))
    .unwrap();
    let mut tally = Tally::default();
    tally.begin("c1", at(2));
    let known = |uid: &str, name: &str| (uid == "u1" && name == "m#new").then_some(&tally);
    let next = statuses(&object, known);
    assert_eq!(next.len(), 1, "Pods without results have none");
    let states: Vec<(&str, &str)> = next[0].probe_states.iter().map(|s| (s.name.as_str(), s.state.as_str())).collect();
    assert_eq!(states, [("m#a", SUCCEEDED), ("m#new", UNKNOWN)]);
    let mut written = object.clone();
    written.status.as_mut().unwrap().pod_probe_statuses = next.clone();
    assert_eq!(statuses(&written, known), next);
    assert_eq!(statuses(&written, |_, _| None), next, "a new daemon drops nothing that is still wanted");
}
