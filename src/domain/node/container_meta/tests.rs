use serde_json::json;

use super::*;

const UPDATING: &str = include_str!("../../pod/inplace/testdata/updating_pods.json");
const UPDATED: &str = include_str!("../../pod/inplace/testdata/updated_pods.json");

/// Pods that OpenKruise's daemon has reported on.
fn recorded() -> Vec<Value> {
    [UPDATING, UPDATED].iter().flat_map(|text| serde_json::from_str::<Vec<Value>>(text).unwrap()).collect()
}

fn annotation(pod: &Value) -> &str {
    pod["metadata"]["annotations"][labels::RUNTIME_CONTAINERS_META].as_str().unwrap()
}

fn found_as(pod: &Value, container: &str, id: &str, restart_count: i32, plain_hash: u64) -> Found {
    let meta = |key: &str| pod["metadata"][key].as_str().unwrap().to_owned();
    let instance = Instance {
        id: id.to_owned(),
        container: container.to_owned(),
        namespace: meta("namespace"),
        pod_uid: meta("uid"),
        state: InstanceState::Running,
        created_at: 0,
        started_at: None,
        exit_code: None,
        restart_count,
    };
    Found { instance, plain_hash }
}

/// Two containers; the first one reads the annotation `config`, the label `tier`, and its own address.
fn pod() -> Value {
    let from = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let env = json!([
        {"name": "TIER", "valueFrom": from("metadata.labels['tier']")},
        {"name": "CONFIG", "valueFrom": from("metadata.annotations['config']")},
        {"name": "IP", "valueFrom": from("status.podIP")},
        {"name": "PLAIN", "value": "x"},
    ]);
    json!({
        "metadata": {"name": "web", "namespace": "a", "uid": "u1", "labels": {"tier": "front"}, "annotations": {"config": "a=b"}},
        "spec": {"terminationGracePeriodSeconds": 7, "containers": [
            {"name": "main", "image": "nginx:1.18", "env": env, "ports": [{"containerPort": 80}],
             "lifecycle": {"preStop": {"exec": {"command": ["drain"]}}}},
            {"name": "side", "image": "side:1"}]},
        "status": {"conditions": [{"type": "InPlaceUpdateReady", "status": "False"}], "containerStatuses": [
            {"name": "main", "containerID": "containerd://m1", "image": "docker.io/library/nginx:1.18", "imageID": "nginx@sha256:1", "restartCount": 3, "state": {"running": {}}},
            {"name": "side", "containerID": "containerd://s1", "image": "docker.io/library/side:1", "imageID": "side@sha256:1"}]},
    })
}

const GOT: [&str; 5] = ["PATH=/bin", "CONFIG=old", "CONFIG=a=b", "TIER=front", "IP=10.0.0.1"];

fn got(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

fn found(pod: &Value) -> Vec<Found> {
    let hash = |index: usize| plain_hashes(&pod["spec"]["containers"][index])[0];
    vec![
        found_as(pod, "side", "containerd://s1", 0, hash(1)),
        found_as(pod, "main", "containerd://m0", 2, 5),
        found_as(pod, "main", "containerd://m1", 3, hash(0)),
    ]
}

/// The annotation after the first look, with an environment of the instance.
fn reported(pod: &Value, environment: &[&str]) -> RuntimeMeta {
    let mut report = report(pod, None, &found(pod), true);
    assert_eq!((report.unread.as_slice(), report.missing.len()), (&[0][..], 0));
    report.note_environment(pod, 0, &got(environment));
    report.meta
}

#[test]
fn recorded_annotations_are_written_byte_for_byte() {
    let pods = recorded();
    assert!(pods.len() >= 8, "{}", pods.len());
    for pod in &pods {
        let text = annotation(pod);
        let meta: RuntimeMeta = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&meta).unwrap(), text);
        let found: Vec<Found> = (meta.containers.iter())
            .map(|c| found_as(pod, &c.name, &c.container_id, c.restart_count, c.hashes.plain_hash))
            .collect();
        let mut report = report(pod, None, &found, true);
        for index in report.unread.clone() {
            // What the instance got is not recorded: before the restart it was the value of the first stage.
            let old = meta.containers[index].hashes.extracted_env_from_metadata_hash == 2_276_098_488;
            let value = if old { r#"CFG={"k":"v<1>"}"# } else { r#"CFG={"k":"v2"}"# };
            report.note_environment(pod, index, &got(&[value]));
        }
        // Of what had ended, OpenKruise could not read the environment; without one from metadata there is nothing to read.
        assert_eq!(serde_json::to_string(&report.meta).unwrap(), text, "{}", pod["metadata"]["name"]);
    }
}

#[test]
fn hashes_are_those_of_the_vectors() {
    let container = &pod()["spec"]["containers"][0];
    let variable = |name: &str| json!({"env": [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['app-config']"}}}]});
    let app = variable("APP_CONFIG");
    for (container, got_lines, hash) in [
        (&json!({"name": "c"}), &["A=b"][..], 86_995_377),
        (&app, &["APP_CONFIG=v1"], 4_274_367_333),
        (&app, &["APP_CONFIG="], 225_531_427),
        (&app, &["OTHER=x"], 225_531_427),
        (&variable("CFG"), &[r#"CFG={"k":"v<1>"}"#], 2_276_098_488),
        (&variable("CFG"), &[r#"CFG={"k":"v2"}"#], 457_809_478),
        (&variable("SIDECARSET_VERSION"), &["SIDECARSET_VERSION=1"], 86_995_377),
    ] {
        assert_eq!(actual_env_hash(container, &got(got_lines)), hash, "{container} {got_lines:?}");
    }
    let annotated = |value: Value| json!({"metadata": {"annotations": {"app-config": value}}});
    assert_eq!(expected_env_hash(&app, &annotated("v1".into())), 4_274_367_333);
    assert_eq!(expected_env_hash(&app, &annotated("".into())), 225_531_427);
    assert_eq!(expected_env_hash(&app, &json!({})), 225_531_427, "a missing key is an empty value");
    assert_eq!(plain_hashes(container)[0], 2_316_638_273);
    assert_eq!(parse_plain_hash(Some(&"8e45cbd0".into())), 2_386_938_832);
    assert_eq!((parse_plain_hash(Some(&"x".into())), parse_plain_hash(None)), (0, 0));
}

#[test]
fn case_25_values_with_equals_signs_hash_correctly() {
    let pod = pod();
    let main = &pod["spec"]["containers"][0];
    assert_eq!(actual_env_hash(main, &got(&GOT)), expected_env_hash(main, &pod));
    assert_ne!(actual_env_hash(main, &got(&["CONFIG=a", "TIER=front"])), expected_env_hash(main, &pod));
}

#[test]
fn case_26_a_container_without_such_environment_is_never_read_nor_restarted() {
    let pod = pod();
    let report = report(&pod, None, &found(&pod), true);
    assert_eq!(report.meta.containers[1].hashes.extracted_env_from_metadata_hash, 86_995_377);
    assert!(outdated(&pod, &report.meta).is_empty(), "and that of main is not known yet");
}

#[test]
fn case_28_a_pod_is_reported_although_its_first_container_has_no_id_yet() {
    let mut pod = pod();
    pod["status"]["containerStatuses"][0].as_object_mut().unwrap().remove("containerID");
    let report = report(&pod, None, &found(&pod), true);
    assert_eq!(report.meta.containers.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["side"]);
    assert!(report.missing.is_empty());
}

#[test]
fn what_was_reported_of_an_instance_stays_and_other_instances_are_new() {
    let pod = pod();
    let mut before = reported(&pod, &GOT);
    before.unknown = BTreeMap::from([("future".to_owned(), json!(1))]);
    before.containers[1].unknown = BTreeMap::from([("future".to_owned(), json!([2]))]);
    assert_eq!(report(&pod, Some(&before), &[], true).meta, before, "without asking the runtime");
    let mut after = pod.clone();
    after["status"]["containerStatuses"][0]["containerID"] = "containerd://m2".into();
    let lacking = report(&after, Some(&before), &[], true);
    assert_eq!((lacking.missing.as_slice(), lacking.meta.containers.len()), (&["containerd://m2".to_owned()][..], 1));
    let found = [found_as(&after, "main", "containerd://m2", 4, 9)];
    let report = report(&after, Some(&before), &found, true);
    assert_eq!(report.unread, [0]);
    assert_eq!((report.meta.containers[0].restart_count, report.meta.containers[0].hashes.plain_hash), (4, 9));
    assert_eq!(report.meta.containers[1], before.containers[1]);
}

/// A job that ended long ago, whose containers the node has tidied away.
#[test]
fn what_has_ended_and_is_gone_from_the_runtime_is_not_looked_for() {
    let mut pod = pod();
    assert!(report(&pod, None, &[], true).is_awaited);
    pod["status"]["containerStatuses"][0]["state"] = json!({"terminated": {"exitCode": 0}});
    let gone = report(&pod, None, &[], true);
    assert_eq!((gone.missing.len(), gone.is_awaited), (2, false));
    let there = report(&pod, None, &found(&pod), true);
    assert_eq!(
        (there.missing.len(), there.meta.containers.len()),
        (0, 2),
        "as long as the runtime has it, it is reported"
    );
}

#[test]
fn without_the_gate_no_environment_is_reported() {
    let pod = pod();
    let report = report(&pod, None, &found(&pod), false);
    assert!(report.unread.is_empty());
    let hash = plain_hashes(&pod["spec"]["containers"][1])[0];
    let side = format!(
        r#"{{"name":"side","containerID":"containerd://s1","restartCount":0,"hashes":{{"plainHash":{hash}}}}}"#
    );
    assert!(serde_json::to_string(&report.meta).unwrap().ends_with(&format!("{side}]}}")));
}

#[test]
fn an_instance_with_the_labels_of_another_pod_is_not_taken() {
    let pod = pod();
    for change in [
        |i: &mut Instance| i.namespace = "b".into(),
        |i: &mut Instance| i.pod_uid = "u2".into(),
        |i: &mut Instance| i.container = "side".into(),
    ] {
        let mut found = found(&pod);
        change(&mut found[2].instance);
        assert_eq!(report(&pod, None, &found, true).missing, ["containerd://m1"]);
    }
}

#[test]
fn a_changed_environment_stops_the_one_instance() {
    let pod = pod();
    let meta = reported(&pod, &["CONFIG=old", "TIER=front"]);
    let due = outdated(&pod, &meta);
    assert_eq!(due.len(), 1);
    let kill = &due[0];
    assert_eq!((kill.container.as_str(), kill.id.as_str(), kill.grace.as_secs()), ("main", "containerd://m1", 7));
    let hook = kill.hook.as_ref().unwrap();
    assert_eq!(hook.handler.exec.as_ref().unwrap().command.as_ref().unwrap(), &["drain"]);
    assert_eq!(hook.ports[0].container_port, 80);
    let mut found = found(&pod);
    assert!(is_running(kill, &pod, &found));
    found[2].instance.state = InstanceState::Exited;
    assert!(!is_running(kill, &pod, &found), "it has ended by itself");
    assert!(outdated(&pod, &reported(&pod, &GOT)).is_empty(), "this one has it");
}

#[test]
fn case_27_only_an_update_in_place_restarts_for_an_environment() {
    let outdated_with = |change: &dyn Fn(&mut Value)| {
        let mut pod = pod();
        let meta = reported(&pod, &["CONFIG=old", "TIER=front"]);
        change(&mut pod);
        outdated(&pod, &meta).len()
    };
    assert_eq!(outdated_with(&|_| {}), 1);
    assert_eq!(outdated_with(&|p| p["status"]["conditions"][0]["status"] = "True".into()), 0);
    assert_eq!(outdated_with(&|p| p["status"]["conditions"] = json!([])), 0);
    assert_eq!(outdated_with(&|p| p["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into()), 0);
    let grace = |p: &mut Value| p["metadata"]["annotations"][labels::IN_PLACE_GRACE] = r#"{"revision":"r"}"#.into();
    assert_eq!(outdated_with(&grace), 0, "the change is still to come");
    assert_eq!(outdated_with(&|p| p["spec"]["restartPolicy"] = "Never".into()), 0, "it would be gone for good");
    assert_eq!(outdated_with(&|p| p["spec"]["containers"][0]["restartPolicy"] = "Never".into()), 0);
}

/// Decision 7 and shortfall 15.7: what kubelet is about to replace is left to it.
#[test]
fn a_container_whose_image_was_changed_too_is_left_to_kubelet() {
    let state = |image_id: &str| {
        json!({"revision": "r", "updateTimestamp": "2026-01-01T00:00:00Z",
            "lastContainerStatuses": {"main": {"imageID": image_id}}})
        .to_string()
    };
    // What differs from the Pod that was reported, and whether main is stopped.
    for (name, change, stops) in [
        ("another image", json!({"image": "nginx:1.19"}), false),
        (
            "the same image in other words, and kubelet's hash differs",
            json!({"image": "docker.io/library/nginx:1.18"}),
            true,
        ),
        ("nothing", json!({}), true),
    ] {
        let mut pod = pod();
        let meta = reported(&pod, &["CONFIG=old", "TIER=front"]);
        json_patch::merge(&mut pod["spec"]["containers"][0], &change);
        assert_eq!(outdated(&pod, &meta).len(), usize::from(stops), "{name}");
    }
    // A kubelet before 1.31 has another hash; what the update recorded shows whether the image is still to be changed.
    let mut pod = pod();
    let mut meta = reported(&pod, &["CONFIG=old", "TIER=front"]);
    meta.containers[0].hashes.plain_hash = 7;
    for (image_id, stops) in [("nginx@sha256:1", false), ("nginx@sha256:0", true)] {
        pod["metadata"]["annotations"][labels::IN_PLACE_STATE] = state(image_id).into();
        assert_eq!(outdated(&pod, &meta).len(), usize::from(stops), "{image_id}");
    }
}

#[test]
fn a_grace_of_zero_leaves_no_time_for_a_hook() {
    let mut pod = pod();
    let meta = reported(&pod, &["CONFIG=old"]);
    pod["spec"]["terminationGracePeriodSeconds"] = 0.into();
    let kill = outdated(&pod, &meta).remove(0);
    assert_eq!((kill.hook, kill.grace), (None, Duration::ZERO));
    pod["spec"].as_object_mut().unwrap().remove("terminationGracePeriodSeconds");
    assert_eq!(outdated(&pod, &meta)[0].grace, Duration::from_secs(30));
}

/// The last one holds, in the definition as in the process: otherwise they would differ for ever.
#[test]
fn a_variable_that_is_there_twice() {
    let mut pod = pod();
    let again = json!({"name": "CONFIG", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['tier']"}}});
    pod["spec"]["containers"][0]["env"].as_array_mut().unwrap().push(again);
    let main = &pod["spec"]["containers"][0];
    assert_eq!(actual_env_hash(main, &got(&["CONFIG=front", "TIER=front"])), expected_env_hash(main, &pod));
    let plain = json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}}, {"name": "A", "value": "x"}]});
    assert_eq!(expected_env_hash(&plain, &pod), 86_995_377);
}

#[test]
fn the_environment_is_found_in_what_runtimes_report() {
    let containerd = json!({"sandboxID": "s", "pid": 1, "config": {"envs": [{"key": "A", "value": "1"}]},
        "runtimeSpec": {"ociVersion": "1.0.2", "process": {"user": {}, "args": ["/a"], "env": ["PATH=/bin", "A=1=2"]}}});
    let crio = json!({"pid": 1, "privileged": false, "runtimeSpec": {"process": {"env": ["A=x"]}}});
    assert_eq!(environment_from_info(&containerd.to_string()).unwrap(), ["PATH=/bin", "A=1=2"]);
    assert_eq!(environment_from_info(&crio.to_string()).unwrap(), ["A=x"]);
    assert_eq!(environment_from_info(r#"{"runtimeSpec":{"process":{}}}"#).unwrap(), [""; 0]);
    for other in ["", "{}", r#"{"runtimeSpec":{}}"#, r#"{"runtimeSpec":{"process":{"env":"A=1"}}}"#] {
        assert_eq!(environment_from_info(other), None, "{other}");
    }
}

#[test]
fn what_a_program_prints_may_have_values_of_several_lines() {
    let output = b"PATH=/bin\nTEXT=one\n\ntwo words = 3\n  \nA.b-c=x=y\nEMPTY=\n";
    assert_eq!(environment_from_output(output), ["PATH=/bin", "TEXT=one\n\ntwo words = 3\n  ", "A.b-c=x=y", "EMPTY="]);
    assert_eq!(environment_from_output(b""), [""]);
}

#[test]
fn pods_that_are_reported() {
    let view = |change: &dyn Fn(&mut Value)| {
        let mut pod = pod();
        pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "w", "uid": "o", "controller": true}]);
        change(&mut pod);
        serde_json::from_value::<PodView>(pod).unwrap()
    };
    assert!(is_eligible(&view(&|_| {})) && is_updating(&view(&|_| {})));
    assert!(!is_eligible(&view(&|p| p["metadata"]["ownerReferences"] = json!([]))));
    assert!(is_eligible(&view(&|p| {
        p["metadata"]["ownerReferences"] = json!([]);
        p["metadata"]["annotations"] = json!({"kruise.io/sidecarset-hash": "{}"});
    })));
    assert!(!is_eligible(&view(&|p| p["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into())));
    assert!(!is_eligible(&view(&|p| p["status"]["containerStatuses"] = json!([{"name": "main"}]))));
    assert!(!is_updating(&view(&|p| p["status"]["conditions"][0]["status"] = "True".into())));
}

#[test]
fn the_fingerprint_is_that_of_the_instances() {
    let pod = pod();
    let view: PodView = serde_json::from_value(pod.clone()).unwrap();
    assert_eq!(fingerprint(&view), live_fingerprint(&pod));
    let with = |pointer: &str, value: &str| {
        let mut pod = pod.clone();
        *pod.pointer_mut(pointer).unwrap() = value.into();
        live_fingerprint(&pod)
    };
    assert_ne!(with("/status/containerStatuses/1/containerID", "containerd://s2"), fingerprint(&view));
    assert_ne!(with("/metadata/uid", "u2"), fingerprint(&view));
    assert_eq!(with("/metadata/labels/tier", "back"), fingerprint(&view));
}

/// OpenKruise stopped main at this point, and left second, whose image was changed, to kubelet.
#[test]
fn of_the_recorded_update_the_container_with_the_old_environment_is_stopped() {
    let pods: Vec<Value> = serde_json::from_str(UPDATING).unwrap();
    let stopped: Vec<String> = pods
        .iter()
        .flat_map(|pod| outdated(pod, &RuntimeMeta::of(pod).unwrap()).into_iter().map(|kill| kill.container))
        .collect();
    assert_eq!(stopped, ["main"]);
}
