//! The numbers of the tests are those of the specification: A rules, D edge cases, E what OpenKruise does worse.

use super::*;
use crate::api::labels::{
    SIDECAR_SET_HASH, SIDECAR_SET_HASH_WITHOUT_IMAGE, SIDECAR_SET_WORKING, SIDECAR_SETS_INJECTED,
};

const NOW: &str = "2026-11-21T09:49:19Z";

fn pod() -> Value {
    json!({"metadata": {"generateName": "web-", "labels": {"app": "web"}},
        "spec": {"futureField": {"a": 1}, "containers": [
            {"name": "main", "image": "main:1", "futureField": 2, "env": [{"name": "A", "value": "1"}, {"name": "POD", "value": "p"}],
                "volumeMounts": [{"name": "data", "mountPath": "/data", "subPathExpr": "x/$(POD)"}, {"name": "tmp", "mountPath": "/tmp"}],
                "volumeDevices": [{"name": "disk", "devicePath": "/dev/disk"}]}],
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}, claim("disk")]}})
}

/// A volume that can be a device.
fn claim(name: &str) -> Value {
    json!({"name": name, "persistentVolumeClaim": {"claimName": name}})
}

fn sidecar(name: &str) -> Value {
    json!({"name": name, "image": format!("{name}:1"), "podInjectPolicy": "BeforeAppContainer"})
}

fn set<'a>(name: &'a str, spec: &'a Value) -> Set<'a> {
    Set { name, spec, hash: "h", hash_without_image: "w", revision: "r", pod_level: PodLevel::Pad }
}

fn outcome(pod: &Value, sets: &[Set<'_>]) -> (Value, Outcome) {
    outcome_of(None, pod, sets)
}

fn outcome_of(api_server: ApiServer, pod: &Value, sets: &[Set<'_>]) -> (Value, Outcome) {
    let settings = Settings { sorted: false, api_server, now: NOW.parse().unwrap() };
    let outcome = inject(pod, sets, Vec::new(), settings);
    let patch: json_patch::Patch = serde_json::from_value(outcome.patch.clone().into()).unwrap();
    let mut after = pod.clone();
    json_patch::patch(&mut after, &patch).unwrap();
    (after, outcome)
}

/// The Pod after one SidecarSet, which has to be injected.
fn after(pod: &Value, spec: &Value) -> Value {
    let (after, outcome) = outcome(pod, &[set("s", spec)]);
    assert_eq!((outcome.injected, outcome.left_out), (vec!["s".to_owned()], vec![]));
    after
}

/// Why one SidecarSet is left out; the Pod is otherwise as it was.
fn reason(pod: &Value, spec: &Value) -> String {
    let (mut after, outcome) = outcome(pod, &[set("s", spec)]);
    assert_eq!((outcome.injected.len(), outcome.left_out.len()), (0, 1), "{outcome:?}");
    let noted: Value =
        serde_json::from_str(after["metadata"]["annotations"][SIDECAR_SETS_LEFT_OUT].as_str().unwrap()).unwrap();
    assert_eq!(noted["s"], outcome.left_out[0].reason);
    let metadata = after["metadata"].as_object_mut().unwrap();
    let annotations = metadata["annotations"].as_object_mut().unwrap();
    annotations.remove(SIDECAR_SETS_LEFT_OUT);
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    assert_eq!(&after, pod);
    outcome.left_out[0].reason.clone()
}

fn names(pod: &Value, field: &str) -> Vec<String> {
    items(&pod["spec"], field).map(|container| name(container).to_owned()).collect()
}

fn environment(container: &Value) -> Vec<&str> {
    items(container, "env").map(name).collect()
}

#[test]
fn the_recorded_pod_comes_out_as_openkruise_made_it() {
    let recorded: Value = serde_json::from_str(include_str!("../testdata/injected.json")).unwrap();
    let (stored, wanted) = (&recorded["sidecarSet"], &recorded["pod"]);
    let mut before = wanted.clone();
    before["metadata"].as_object_mut().unwrap().remove("annotations");
    before["spec"]["containers"].as_array_mut().unwrap().remove(0);
    let annotations = &stored["metadata"]["annotations"];
    let set = Set {
        name: stored["metadata"]["name"].as_str().unwrap(),
        spec: &stored["spec"],
        hash: annotations[SIDECAR_SET_HASH].as_str().unwrap(),
        hash_without_image: annotations[SIDECAR_SET_HASH_WITHOUT_IMAGE].as_str().unwrap(),
        revision: stored["status"]["latestRevision"].as_str().unwrap(),
        pod_level: PodLevel::Pad,
    };
    let (after, outcome) = outcome(&before, &[set]);
    assert_eq!(&after, wanted);
    let paths: Vec<&str> = outcome.patch.iter().map(|operation| operation["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/metadata/annotations", "/spec/containers/0"], "nothing that was there is written");
}

#[test]
fn a13_order_of_containers_and_of_variables() {
    let mut last = sidecar("last");
    last["podInjectPolicy"] = "AfterAppContainer".into();
    let mut first = sidecar("first");
    first["env"] = json!([{"name": "OWN", "value": "1"}]);
    first["shareVolumePolicy"] = json!({"type": "enabled"});
    first["shareVolumeDevicePolicy"] = json!({"type": "enabled"});
    first["transferEnv"] = json!([{"sourceContainerName": "main", "envNames": ["A", "OWN"]}]);
    let after = after(&pod(), &json!({"containers": [last, first, sidecar("second")]}));
    assert_eq!(names(&after, "containers"), ["first", "second", "main", "last"]);
    let first = &after["spec"]["containers"][0];
    assert_eq!(environment(first), ["OWN", "IS_INJECTED", "A", "POD"]);
    let paths: Vec<&Value> = items(first, "volumeMounts").map(|mount| &mount["mountPath"]).collect();
    assert_eq!(paths, ["/data", "/tmp"]);
    assert_eq!(first["volumeDevices"], json!([{"name": "disk", "devicePath": "/dev/disk"}]));
    let fields: Vec<&String> = first.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["env", "image", "name", "volumeDevices", "volumeMounts"]);
}

#[test]
fn a13_own_mounts_win_over_shared_ones() {
    let mut own = sidecar("own");
    own["shareVolumePolicy"] = json!({"type": "enabled"});
    own["volumeMounts"] = json!([{"name": "mine", "mountPath": "/data"}]);
    own["volumeDevices"] = json!([{"name": "block", "devicePath": "/tmp"}]);
    let volumes = json!([{"name": "mine", "emptyDir": {}}, claim("block"), {"name": "unused", "emptyDir": {}}]);
    let after = after(&pod(), &json!({"containers": [own], "volumes": volumes}));
    assert_eq!(after["spec"]["containers"][0]["volumeMounts"], json!([{"name": "mine", "mountPath": "/data"}]));
    assert_eq!(names(&after, "volumes"), ["data", "tmp", "disk", "mine", "block"], "only what is mounted");
}

#[test]
fn a13_volumes_come_in_the_order_in_which_they_are_mounted() {
    let mounts = |of: &[&str]| -> Value {
        of.iter().map(|volume| json!({"name": volume, "mountPath": format!("/{volume}")})).collect()
    };
    let mut own = sidecar("own");
    own["volumeMounts"] = mounts(&["c", "a"]);
    let init = json!({"name": "setup", "image": "setup:1", "volumeMounts": mounts(&["b", "a"])});
    let volumes = ["a", "b", "c"].map(|volume| json!({"name": volume, "emptyDir": {}}));
    let after = after(&pod(), &json!({"containers": [own], "initContainers": [init], "volumes": volumes}));
    assert_eq!(names(&after, "volumes"), ["data", "tmp", "disk", "b", "a", "c"], "of init containers first");
}

#[test]
fn d1_older_notes_of_other_sidecar_sets_are_rewritten() {
    let mut old = pod();
    old["metadata"]["annotations"] = json!({SIDECAR_SET_HASH: r#"{"other":"abc"}"#, SIDECAR_SETS_INJECTED: "other"});
    let after = after(&old, &json!({"containers": [sidecar("a")]}));
    let notes: Value =
        serde_json::from_str(after["metadata"]["annotations"][SIDECAR_SET_HASH].as_str().unwrap()).unwrap();
    assert_eq!((&notes["other"]["hash"], &notes["s"]["hash"]), (&json!("abc"), &json!("h")));
    assert_eq!(after["metadata"]["annotations"][SIDECAR_SETS_INJECTED], "other,s");
    let mut bad = pod();
    bad["metadata"]["annotations"] = json!({SIDECAR_SET_HASH: "no json"});
    let after = self::after(&bad, &json!({"containers": [sidecar("a")]}));
    assert!(after["metadata"]["annotations"][SIDECAR_SET_HASH].as_str().unwrap().starts_with("{\"s\":"));
}

/// Upstream skips the volume and lets the API server refuse the Pod; here the SidecarSet is left out.
#[test]
fn d2_a_mount_of_a_volume_that_is_not_there_is_no_crash_and_no_refusal() {
    for field in ["volumeMounts", "volumeDevices"] {
        let mut own = sidecar("own");
        own[field] = json!([{"name": "gone", "mountPath": "/a"}]);
        let text = reason(&pod(), &json!({"containers": [own]}));
        assert_eq!(text, "container own mounts volume gone, which neither the SidecarSet nor the Pod has");
    }
    let mut own = sidecar("own");
    own["volumeMounts"] = json!([{"name": "data", "mountPath": "/a"}]);
    after(&pod(), &json!({"containers": [own]}));
}

#[test]
fn d3_d4_plain_init_containers_are_noted_but_are_in_no_list() {
    let plain = json!({"name": "setup", "image": "setup:1"});
    let native = json!({"name": "mesh", "image": "mesh:1", "restartPolicy": "Always"});
    let after_plain = after(&pod(), &json!({"initContainers": [plain]}));
    let annotations = &after_plain["metadata"]["annotations"];
    assert_eq!(
        annotations[SIDECAR_SET_HASH],
        r#"{"s":{"updateTimestamp":"2026-11-21T09:49:19Z","hash":"h","sidecarSetName":"s","sidecarList":[],"controllerRevision":"r"}}"#
    );
    assert!(annotations[SIDECAR_SET_HASH_WITHOUT_IMAGE].as_str().unwrap().contains(r#""hash":"w""#));
    assert_eq!(annotations[SIDECAR_SETS_INJECTED], "s");
    let after = after(&pod(), &json!({"initContainers": [plain, native]}));
    assert_eq!(names(&after, "initContainers"), ["mesh", "setup"], "by name");
    assert!(after["metadata"]["annotations"][SIDECAR_SET_HASH].as_str().unwrap().contains(r#""sidecarList":["mesh"]"#));
}

#[test]
fn d5_init_containers_get_everything_that_containers_get() {
    let init = json!({"name": "setup", "image": "setup:1", "shareVolumePolicy": {"type": "enabled"},
        "shareVolumeDevicePolicy": {"type": "enabled"}, "volumeMounts": [{"name": "conf", "mountPath": "/conf"}],
        "transferEnv": [{"sourceContainerName": "main", "envName": "A"}]});
    let after = after(&pod(), &json!({"initContainers": [init], "volumes": [{"name": "conf", "emptyDir": {}}]}));
    let setup = &after["spec"]["initContainers"][0];
    assert_eq!(environment(setup), ["IS_INJECTED", "A", "POD"]);
    assert_eq!(setup["volumeMounts"].as_array().unwrap().len(), 3);
    assert_eq!(setup["volumeDevices"].as_array().unwrap().len(), 1);
    assert_eq!(names(&after, "volumes").last().unwrap(), "conf");
}

/// A Pod that the API server has not looked at yet may have as many of everything as a request holds: nothing is searched for
/// each of them.
#[test]
fn a_pod_with_tens_of_thousands_of_everything_is_gone_through_once() {
    let many = 30_000;
    let list = |of: fn(usize) -> Value| (0..many).map(of).collect::<Vec<Value>>();
    let mut large = pod();
    let main = &mut large["spec"]["containers"][0];
    main["env"] = list(|i| json!({"name": format!("V{i}"), "value": "x"})).into();
    main["volumeMounts"] =
        list(|i| json!({"name": "data", "mountPath": format!("/{}", i / 2), "subPathExpr": format!("$(V{i})")})).into();
    let mut shares = sidecar("log");
    shares["shareVolumePolicy"] = json!({"type": "enabled"});
    let made = after(&large, &json!({"containers": [shares]}));
    let log = &made["spec"]["containers"][0];
    assert_eq!(name(log), "log");
    assert_eq!(items(log, "volumeMounts").count(), many / 2, "the first of each path");
    assert_eq!(items(log, "env").count(), 1 + many / 2, "the mark, and the variable of each mount that is shared");

    let mut large = pod();
    large["spec"]["containers"] = list(|i| json!({"name": format!("c{i}"), "image": "c:1"})).into();
    large["spec"]["initContainers"] = list(|i| json!({"name": format!("i{i}"), "image": "i:1"})).into();
    let limits: Map<String, Value> = (0..many).map(|i| (format!("r{i}"), json!("1"))).collect();
    large["spec"]["resources"] = json!({ "limits": limits });
    let made = after(&large, &json!({"containers": [sidecar("log")]}));
    assert_eq!(names(&made, "containers").len(), 1 + many);
}

#[test]
fn d6_another_injection_keeps_what_others_have_noted() {
    let (one, two) = (json!({"containers": [sidecar("a")]}), json!({"containers": [sidecar("b")]}));
    let first = outcome(&pod(), &[set("z", &one)]).0;
    let second = outcome(&first, &[set("m", &two)]).0;
    assert_eq!(second["metadata"]["annotations"][SIDECAR_SETS_INJECTED], "m,z");
    assert_eq!(names(&second, "containers"), ["b", "a", "main"]);
    let third = outcome(&second, &[set("m", &two), set("z", &one)]).0;
    assert_eq!(third, second, "once more is the same");
}

fn hot(name: &str) -> Value {
    json!({"name": name, "image": format!("{name}:1"), "podInjectPolicy": "BeforeAppContainer",
        "upgradeStrategy": {"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "empty:1"}})
}

#[test]
fn d7_a20_hot_upgraded_sidecars_of_several_sets_are_pairs_in_one_map() {
    let (one, two) = (json!({"containers": [hot("mesh")]}), json!({"containers": [hot("log"), sidecar("cold")]}));
    let (after, outcome) = outcome(&pod(), &[set("b", &two), set("a", &one)]);
    assert_eq!(outcome.left_out, vec![]);
    assert_eq!(names(&after, "containers"), ["mesh-1", "mesh-2", "log-1", "log-2", "cold", "main"]);
    let annotations = &after["metadata"]["annotations"];
    assert_eq!(annotations[SIDECAR_SET_WORKING], r#"{"log":"log-1","mesh":"mesh-1"}"#);
    for (key, version) in [("version", ["1", "0"]), ("versionalt", ["0", "1"])] {
        for (i, version) in version.into_iter().enumerate() {
            assert_eq!(annotations[format!("{key}.sidecarset.kruise.io/mesh-{}", i + 1)], version, "{key} {i}");
        }
    }
    let containers = after["spec"]["containers"].as_array().unwrap();
    assert_eq!((&containers[0]["image"], &containers[1]["image"]), (&json!("mesh:1"), &json!("empty:1")));
    assert_eq!(
        containers[1]["env"],
        json!([{"name": "IS_INJECTED", "value": "true"},
            {"name": "SIDECARSET_VERSION", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['version.sidecarset.kruise.io/mesh-2']"}}},
            {"name": "SIDECARSET_VERSION_ALT", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['versionalt.sidecarset.kruise.io/mesh-2']"}}}])
    );
    assert!(annotations[SIDECAR_SET_HASH].as_str().unwrap().contains(r#""sidecarList":["cold","log"]"#), "no twins");
}

#[test]
fn d8_metadata_is_patched_without_annotations_and_without_containers() {
    let spec = json!({"patchPodMetadata": [{"annotations": {"a/b~c": "1"}, "patchPolicy": "Overwrite"}]});
    let mut bare = pod();
    bare["metadata"] = json!({});
    assert_eq!(after(&bare, &spec)["metadata"]["annotations"]["a/b~c"], "1");
    let mut some = pod();
    some["metadata"]["annotations"] = json!({"a/b~c": "0", "other": "x"});
    let after = after(&some, &spec);
    assert_eq!(
        (&after["metadata"]["annotations"]["a/b~c"], &after["metadata"]["annotations"]["other"]),
        (&json!("1"), &json!("x"))
    );
}

#[test]
fn d9_a_bad_reference_of_a_variable_is_left_out_alone() {
    let mut own = sidecar("own");
    own["transferEnv"] = json!([{"sourceContainerName": "gone", "envName": "A"},
        {"sourceContainerName": "main", "envNames": ["NONE", "A"]},
        {"sourceContainerNameFrom": {"fieldRef": {"fieldPath": "metadata.name"}}, "envName": "POD"},
        {"sourceContainerNameFrom": {"fieldRef": {"fieldPath": "metadata.labels['none']"}}, "envName": "POD"}, {}, 7]);
    let after = after(&pod(), &json!({"containers": [own]}));
    assert_eq!(environment(&after["spec"]["containers"][0]), ["IS_INJECTED", "A"]);
}

#[test]
fn a13_the_source_of_a_variable_may_be_named_by_an_annotation_or_label() {
    let mut pod = pod();
    pod["metadata"]["labels"]["source"] = "main".into();
    let reference = |path: &str| {
        let mut own = sidecar("own");
        own["transferEnv"] = json!([{"sourceContainerName": "gone", "envName": "A",
            "sourceContainerNameFrom": {"fieldRef": {"fieldPath": path}}}]);
        json!({"containers": [own], "patchPodMetadata": [{"annotations": {"from": "main"}}]})
    };
    for path in ["metadata.labels['source']", "metadata.annotations['from']"] {
        let after = after(&pod, &reference(path));
        assert_eq!(environment(&after["spec"]["containers"][0]), ["IS_INJECTED", "A"], "{path}");
    }
    let mut own = sidecar("own");
    own["transferEnv"] = json!([{"sourceContainerName": "main", "sourceContainerNameFrom": {}, "envName": "A"}]);
    let after = after(&pod, &json!({"containers": [own]}));
    assert_eq!(environment(&after["spec"]["containers"][0]), ["IS_INJECTED", "A"], "it names nothing");
}

#[test]
fn d10_a_container_of_the_same_name_is_replaced_where_it_stands() {
    let mut pod = pod();
    pod["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "agent", "image": "by-hand"}));
    pod["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "end", "image": "end"}));
    let (after, outcome) =
        outcome(&pod, &[set("s", &json!({"containers": [sidecar("z"), sidecar("agent"), sidecar("a")]}))]);
    assert_eq!(names(&after, "containers"), ["z", "a", "main", "agent", "end"]);
    assert_eq!(after["spec"]["containers"][3]["image"], "agent:1");
    let paths: Vec<&str> = outcome.patch.iter().skip(1).map(|operation| operation["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/spec/containers/1", "/spec/containers/0", "/spec/containers/1"]);
    assert_eq!(outcome.patch[1]["op"], "replace");
}

#[test]
fn d10_with_the_gate_containers_are_sorted_by_name() {
    let spec = json!({"containers": [sidecar("z"), sidecar("a")]});
    let settings = Settings { sorted: true, api_server: None, now: NOW.parse().unwrap() };
    let sorted = inject(&pod(), &[set("s", &spec)], Vec::new(), settings);
    let added: Vec<&Value> = sorted.patch.iter().skip(1).map(|operation| &operation["value"]["name"]).collect();
    assert_eq!(added, ["a", "z"]);
}

#[test]
fn d13_a_restored_revision_is_noted_by_its_own_hash_and_name() {
    let spec = json!({"containers": [sidecar("a")]});
    let old = Set { hash: "old", revision: "s-old", ..set("s", &spec) };
    let after = outcome(&pod(), &[old]).0;
    let note = after["metadata"]["annotations"][SIDECAR_SET_HASH].as_str().unwrap();
    assert!(note.contains(r#""hash":"old""#) && note.contains(r#""controllerRevision":"s-old""#), "{note}");
}

#[test]
fn e1_the_order_of_sidecar_sets_is_that_of_their_names() {
    let (one, two) = (json!({"containers": [sidecar("x"), sidecar("b")]}), json!({"containers": [sidecar("a")]}));
    let forward = outcome(&pod(), &[set("a", &one), set("b", &two)]).0;
    let backward = outcome(&pod(), &[set("b", &two), set("a", &one)]).0;
    assert_eq!(forward, backward);
    assert_eq!(names(&forward, "containers"), ["x", "b", "a", "main"]);
}

#[test]
fn e3_a_hot_upgraded_sidecar_without_its_empty_image_is_left_out() {
    let mut hot = hot("mesh");
    hot["upgradeStrategy"]["hotUpgradeEmptyImage"] = "".into();
    assert_eq!(
        reason(&pod(), &json!({"containers": [hot]})),
        "container mesh has no upgradeStrategy.hotUpgradeEmptyImage"
    );
    assert_eq!(reason(&pod(), &json!({"containers": [{"name": "a"}]})), "container a has no image");
    assert_eq!(reason(&pod(), &json!({"containers": [7]})), "one of its containers is no object");
}

#[test]
fn decision_36_a_launch_priority_that_is_none_leaves_out_its_own_set_alone() {
    let with = |container: &str, variable: Value| {
        let mut own = sidecar(container);
        own["env"] = json!([variable]);
        json!({"containers": [own]})
    };
    let name = "KRUISE_CONTAINER_PRIORITY";
    let good = with("good", json!({"name": name, "value": "5"}));
    let elsewhere = json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}});
    for variable in [json!({"name": name, "value": "soon"}), elsewhere] {
        let bad = with("bad", variable);
        let (after, outcome) = outcome(&pod(), &[set("a", &bad), set("b", &good)]);
        assert_eq!(
            (outcome.injected, names(&after, "containers")),
            (vec!["b".into()], vec!["good".into(), "main".into()])
        );
        let LeftOut { set: left, reason } = &outcome.left_out[0];
        assert!(left == "a" && reason.contains(name) && reason.contains("bad"), "{reason}");
        let mut ordered = pod();
        ordered["metadata"]["annotations"] = json!({LAUNCH_PRIORITY: LAUNCH_PRIORITY_ORDERED});
        assert_eq!(names(&self::after(&ordered, &bad), "containers"), ["bad", "main"], "nobody reads it there");
    }
}

#[test]
fn e3_names_of_pairs_are_taken_too() {
    let text = reason(&pod(), &json!({"containers": [hot("mesh"), sidecar("mesh-2")]}));
    assert_eq!(text, "container mesh-2: the SidecarSet itself has a container of this name too");
}

#[test]
fn e10_fields_that_nobody_knows_survive_and_are_not_written() {
    let mut own = sidecar("own");
    own["fieldOfTheFuture"] = json!({"x": [1]});
    let after = after(&pod(), &json!({"containers": [own]}));
    assert_eq!(after["spec"]["containers"][0]["fieldOfTheFuture"], json!({"x": [1]}));
    assert_eq!(
        (&after["spec"]["futureField"], &after["spec"]["containers"][1]),
        (&json!({"a": 1}), &pod()["spec"]["containers"][0])
    );
}

#[test]
fn e14_resources_are_computed_from_those_of_the_apps() {
    let mut pod = pod();
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1", "memory": "1Gi"}});
    let policy = |cpu: &str| {
        let mut own = sidecar("own");
        own["resourcesPolicy"] = json!({"targetContainersMode": "sum", "targetContainersNameRegex": ".*",
            "resourcesExpr": {"requests": {"cpu": cpu, "memory": "memory*10%"}}});
        json!({"containers": [own, hot("mesh")]})
    };
    let after = after(&pod, &policy("max(cpu*10%,50m)"));
    assert_eq!(
        after["spec"]["containers"][0]["resources"],
        json!({"requests": {"cpu": "100m", "memory": "107374183"}})
    );
    // Once more: twins and other sidecars are not meant.
    assert_eq!(self::after(&after, &policy("cpu"))["spec"]["containers"][0]["resources"]["requests"]["cpu"], "1");
    assert!(reason(&pod, &policy("cpu-2")).ends_with("requests.cpu: the result is negative"));
}

#[test]
fn e15_metadata_that_cannot_be_merged_leaves_out_the_whole_set() {
    let mut pod = pod();
    pod["metadata"]["annotations"] = json!({"k": "no json"});
    let spec = json!({"containers": [sidecar("a")], "patchPodMetadata": [
        {"annotations": {"other": "1"}, "patchPolicy": "Overwrite"},
        {"annotations": {"k": "{}"}, "patchPolicy": "MergePatchJson"}]});
    assert!(reason(&pod, &spec).starts_with("patchPodMetadata: annotation k: the value on the Pod"));
}

#[test]
fn decision_36_one_that_cannot_be_applied_does_not_keep_others_out() {
    let (good, bad) = (json!({"containers": [sidecar("a")]}), json!({"containers": [{"name": "b"}]}));
    let (after, outcome) = outcome(&pod(), &[set("good", &good), set("bad", &bad)]);
    assert_eq!((outcome.injected, outcome.left_out[0].set.as_str()), (vec!["good".to_owned()], "bad"));
    assert_eq!(names(&after, "containers"), ["a", "main"]);
    assert!(after["metadata"]["annotations"][SIDECAR_SETS_LEFT_OUT].as_str().unwrap().contains("\"bad\""));
}

#[test]
fn two_sets_never_fight_over_a_name() {
    let (one, two) = (json!({"containers": [sidecar("a")]}), json!({"containers": [sidecar("a"), sidecar("b")]}));
    let (after, outcome) = outcome(&pod(), &[set("y", &two), set("x", &one)]);
    assert_eq!(outcome.left_out[0].reason, "container a: x has a container of this name too");
    assert_eq!(names(&after, "containers"), ["a", "main"]);
    let mut mounts = sidecar("m");
    mounts["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    let mut other = mounts.clone();
    other["name"] = "n".into();
    let (one, two) = (
        json!({"containers": [mounts], "volumes": [{"name": "v", "emptyDir": {}}]}),
        json!({"containers": [other], "volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
    );
    let left = outcome_of_two(&one, &two);
    assert_eq!(left[0].reason, "volume v: x has another volume of this name");
    assert_eq!(outcome_of_two(&one, &json!({"containers": [other_mount()], "volumes": one["volumes"]})), vec![]);
}

fn other_mount() -> Value {
    let mut other = sidecar("n");
    other["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    other
}

fn outcome_of_two(one: &Value, two: &Value) -> Vec<LeftOut> {
    outcome(&pod(), &[set("x", one), set("y", two)]).1.left_out
}

#[test]
fn an_init_container_and_a_container_of_one_name_are_not_made() {
    let text = reason(&pod(), &json!({"initContainers": [{"name": "main", "image": "x"}]}));
    assert_eq!(text, "container main: the Pod has an init container and a container of this name");
}

#[test]
fn ports_of_the_node_that_are_taken_keep_a_sidecar_out() {
    let mut pod = pod();
    pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80}]);
    let mut own = sidecar("own");
    own["ports"] = json!([{"containerPort": 80}]);
    let spec = json!({"containers": [own]});
    after(&pod, &spec);
    pod["spec"]["hostNetwork"] = true.into();
    assert_eq!(reason(&pod, &spec), "container own uses port 80 of the node, which is used already in the Pod");
}

#[test]
fn on_the_network_of_the_node_ports_are_those_of_the_node() {
    let with = |list: &str, ports: Value| {
        let mut own = sidecar("own");
        own["ports"] = ports;
        json!({list: [own]})
    };
    let twice = json!([{"containerPort": 80}, {"containerPort": 80, "name": "b"}]);
    let other = json!([{"containerPort": 80, "hostPort": 8080}]);
    let on_node = of_pod(&json!({"hostNetwork": true}));
    for (spec, wanted) in [
        (with("containers", json!([{"containerPort": 80, "hostPort": 80}])), None),
        (
            with("containers", other.clone()),
            Some("uses port 8080 of the node for its port 80; in a Pod on the node's network both are one"),
        ),
        // Of init containers nobody asks for that.
        (with("initContainers", other), None),
        (with("containers", twice.clone()), Some("uses port 80 of the node, which is used already in the Pod")),
        (with("initContainers", twice), Some("uses port 80 of the node, which is used already in the Pod")),
    ] {
        after(&pod(), &spec);
        match wanted {
            Some(wanted) => assert_eq!(reason(&on_node, &spec), format!("container own {wanted}")),
            None => drop(after(&on_node, &spec)),
        }
    }
}

/// The Pod with another spec in part.
fn of_pod(changes: &Value) -> Value {
    let mut pod = pod();
    json_patch::merge(&mut pod["spec"], changes);
    pod
}

/// Each with a Pod that cannot have the field, and one that can.
#[test]
fn decision_36_a_field_that_the_pod_cannot_have_keeps_a_sidecar_out() {
    let windows = || json!({"os": {"name": "windows"}});
    let linux = || json!({"os": {"name": "linux"}});
    let security = |field: &str, value: Value| json!({"securityContext": {field: value}});
    let host_process = |is: bool| security("windowsOptions", json!({"hostProcess": is}));
    let signal = |signal: &str| json!({"lifecycle": {"stopSignal": signal}});
    let sleep = |hook: &str| json!({"lifecycle": {hook: {"sleep": {"seconds": 20}}}});
    let short = json!({"terminationGracePeriodSeconds": 10});
    for (field, own, pod, other, why) in [
        ("securityContext.runAsUser", security("runAsUser", json!(0)), windows(), linux(), "the Pod is for Windows"),
        ("securityContext.runAsGroup", security("runAsGroup", json!(0)), windows(), linux(), "the Pod is for Windows"),
        (
            "securityContext.windowsOptions",
            security("windowsOptions", json!({"runAsUserName": "a"})),
            linux(),
            windows(),
            "the Pod is for Linux",
        ),
        (
            "securityContext.windowsOptions.hostProcess",
            host_process(true),
            json!({}),
            json!({"hostNetwork": true, "securityContext": {"windowsOptions": {"hostProcess": true}}}),
            "all containers of a Pod are such processes, or none is",
        ),
        (
            "securityContext.windowsOptions.hostProcess",
            host_process(false),
            json!({"hostNetwork": true, "securityContext": {"windowsOptions": {"hostProcess": true}}}),
            json!({}),
            "all containers of a Pod are such processes, or none is",
        ),
        (
            "securityContext.procMount",
            security("procMount", json!("Unmasked")),
            json!({}),
            json!({"hostUsers": false}),
            "hostUsers of the Pod is not false",
        ),
        (
            "volumeDevices",
            json!({"volumeDevices": [{"name": "disk", "devicePath": "/dev/x"}]}),
            json!({"hostUsers": false}),
            json!({"hostUsers": true}),
            "hostUsers of the Pod is false",
        ),
        (
            "resources.claims",
            json!({"resources": {"claims": [{"name": "gpu"}]}}),
            json!({"resourceClaims": [{"name": "other"}]}),
            json!({"resourceClaims": [{"name": "gpu"}]}),
            "the Pod has no such claim",
        ),
        (
            "lifecycle.preStop.sleep",
            sleep("preStop"),
            short.clone(),
            json!({}),
            "it is longer than terminationGracePeriodSeconds of the Pod",
        ),
        (
            "lifecycle.postStart.sleep",
            sleep("postStart"),
            short,
            json!({"terminationGracePeriodSeconds": 20}),
            "it is longer than terminationGracePeriodSeconds of the Pod",
        ),
        ("lifecycle.stopSignal", signal("SIGUSR1"), windows(), linux(), "the Pod is for Windows"),
    ] {
        for list in ["containers", "initContainers"] {
            let mut sidecar = sidecar("own");
            json_patch::merge(&mut sidecar, &own);
            let spec = json!({list: [sidecar]});
            let wanted = format!("container own: {field} is not possible in this Pod: {why}");
            assert_eq!(reason(&of_pod(&pod), &spec), wanted);
            after(&of_pod(&other), &spec);
        }
    }
}

/// API servers drop both while a gate is off, and refuse them in these Pods when it is on.
#[test]
fn decision_36_what_is_dropped_or_refused_by_the_version_is_taken_out() {
    let mut own = sidecar("own");
    own["lifecycle"] = json!({"stopSignal": "SIGUSR1"});
    own["resizePolicy"] = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"},
        {"resourceName": "memory", "restartPolicy": "NotRequired"}]);
    let spec = json!({"containers": [own]});
    for (change, signal, policies) in [
        (json!({}), false, 2),
        (json!({"restartPolicy": "Never"}), false, 1),
        (json!({"os": {"name": "linux"}, "restartPolicy": "OnFailure"}), true, 2),
    ] {
        let pod = after(&of_pod(&change), &spec);
        let containers = pod["spec"]["containers"].as_array().unwrap();
        let own = containers.iter().find(|container| container["name"] == "own").unwrap();
        assert_eq!(own["lifecycle"]["stopSignal"].is_string(), signal, "{change}");
        assert_eq!(own["resizePolicy"].as_array().unwrap().len(), policies, "{change}");
    }
    let sleep = |seconds: i64| {
        let mut own = sidecar("own");
        own["lifecycle"] = json!({"preStop": {"sleep": {"seconds": seconds}}});
        json!({"containers": [own]})
    };
    let least = of_pod(&json!({"terminationGracePeriodSeconds": -1}));
    after(&least, &sleep(1));
    assert!(reason(&least, &sleep(2)).contains("lifecycle.preStop.sleep"));
}

/// What API servers before a version drop is taken out for them; what those from a version on refuse keeps a sidecar out of
/// Pods for them alone. Where the version is not known, both precautions
/// are taken.
#[test]
fn decision_36_the_version_of_the_api_server_decides_about_some_fields() {
    let claims = |names: &[&str]| -> Value {
        let claims: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        json!({"resources": {"limits": {"cpu": "1"}, "claims": claims}})
    };
    let unmasked = || json!({"securityContext": {"procMount": "Unmasked"}});
    let devices = || json!({"volumeDevices": [{"name": "disk", "devicePath": "/dev/x"}]});
    let one_claim = || json!({"resourceClaims": [{"name": "gpu"}]});
    let own_users = || json!({"hostUsers": false});
    let (proc_mount, of_claims, device) = ("/securityContext/procMount", "/resources/claims", "/volumeDevices/0/name");
    let gpu = || json!([{"name": "gpu"}]);
    let same = |value: Value| [Some(value.clone()), Some(value)];
    // What stands in the Pod before the minor version and from it on; None: the sidecar is left out.
    for (own, pod, field, [before, since], minor) in [
        (unmasked(), json!({}), proc_mount, [Some(Value::Null), None], 33_u32),
        (unmasked(), own_users(), proc_mount, same(json!("Unmasked")), 33),
        (unmasked(), json!({"os": {"name": "windows"}}), proc_mount, [None, None], 33),
        (claims(&["gpu"]), json!({}), of_claims, [Some(json!([])), None], 34),
        (claims(&["gpu", "fpga"]), one_claim(), of_claims, [Some(gpu()), None], 34),
        (claims(&["gpu"]), one_claim(), of_claims, same(gpu()), 34),
        // An API server that is one version newer may judge the Pod.
        (devices(), own_users(), device, [Some(json!("disk")), None], 33),
        (devices(), json!({}), device, same(json!("disk")), 33),
    ] {
        let servers: [(ApiServer, _); 4] =
            [(Some((1, minor - 1)), &before), (Some((1, minor)), &since), (Some((2, 0)), &since), (None, &since)];
        for (api_server, wanted) in servers {
            for list in ["containers", "initContainers"] {
                let mut sidecar = sidecar("own");
                json_patch::merge(&mut sidecar, &own);
                let spec = json!({list: [sidecar]});
                let (after, outcome) = outcome_of(api_server, &of_pod(&pod), &[set("s", &spec)]);
                let made = after["spec"][list].as_array().into_iter().flatten().find(|made| made["name"] == "own");
                let found = made.map(|made| made.pointer(field).cloned().unwrap_or_default());
                assert_eq!(&found, wanted, "{api_server:?} {own} {pod} {list}");
                assert_eq!(outcome.left_out.len(), usize::from(wanted.is_none()), "{api_server:?} {own} {pod}");
            }
        }
    }
}

#[test]
fn decision_36_what_no_pod_can_have_and_the_dry_run_of_a_template_lets_through_keeps_a_sidecar_out() {
    let mut own = sidecar("own");
    own["image"] = "own:1 ".into();
    let text = reason(&pod(), &json!({"containers": [own]}));
    assert_eq!(text, "container own: image is not possible in this Pod: it begins or ends with white space");
    let mut own = sidecar("own");
    own["resources"] = json!({"limits": {"cpu": "500m", "hugepages-2Mi": "4Mi"}, "requests": {"cpu": "500m"}});
    let spec = json!({"containers": [own]});
    after(&pod(), &spec);
    let (_, shared) = outcome(&pod_of_one_cpu(), &[Set { pod_level: PodLevel::Share, ..set("s", &spec) }]);
    assert_eq!(
        shared.left_out[0].reason,
        "container own: resources is not possible in this Pod: huge pages need an amount of cpu or memory beside them"
    );
}

#[test]
fn decision_36_volumes_that_the_pod_has_as_something_else_keep_a_sidecar_out() {
    let with = |own: Value, volume: Value| {
        let mut sidecar = sidecar("own");
        json_patch::merge(&mut sidecar, &own);
        json!({"containers": [sidecar], "volumes": [volume]})
    };
    let device = |name: &str| json!({"volumeDevices": [{"name": name, "devicePath": "/dev/x"}]});
    let read = |name: &str| {
        let from = json!({"fileKeyRef": {"volumeName": name, "path": "a", "key": "b"}});
        json!({"env": [{"name": "A", "valueFrom": from}]})
    };
    after(&pod(), &with(device("disk"), claim("disk")));
    assert_eq!(
        reason(&pod(), &with(device("data"), claim("data"))),
        "container own uses volume data as a device, which the Pod's volume of this name cannot be"
    );
    let made = after(&pod(), &with(read("conf"), json!({"name": "conf", "emptyDir": {}})));
    assert_eq!(names(&made, "volumes").last().unwrap(), "conf", "a variable is read from it");
    assert_eq!(
        reason(&pod(), &with(read("disk"), json!({"name": "disk", "emptyDir": {}}))),
        "container own uses volume disk as an emptyDir, which the Pod's volume of this name cannot be"
    );
    let mut both = device("disk");
    both["volumeMounts"] = json!([{"name": "disk", "mountPath": "/disk"}]);
    assert_eq!(reason(&pod(), &with(both, claim("disk"))), "container own uses volume disk as a device and once more");
    // What is shared of the Pod's containers: a device once, and nothing that takes a right that the sidecar lacks.
    let mut two = pod();
    let second =
        json!({"name": "second", "image": "s:1", "volumeDevices": [{"name": "disk", "devicePath": "/dev/second"}]});
    two["spec"]["containers"].as_array_mut().unwrap().push(second);
    let shares = json!({"shareVolumeDevicePolicy": {"type": "enabled"}});
    let made = after(&two, &with(shares, claim("disk")));
    assert_eq!(made["spec"]["containers"][0]["volumeDevices"], json!([{"name": "disk", "devicePath": "/dev/disk"}]));
    let mut privileged = pod();
    privileged["spec"]["containers"][0]["volumeMounts"][0]["mountPropagation"] = "Bidirectional".into();
    let mut shares = json!({"shareVolumePolicy": {"type": "enabled"}});
    assert_eq!(
        reason(&privileged, &with(shares.clone(), claim("disk"))),
        "container own: volumeMounts is not possible in this Pod: only a privileged container can mount with the propagation Bidirectional"
    );
    shares["securityContext"] = json!({"privileged": true});
    after(&privileged, &with(shares, claim("disk")));
}

#[test]
fn decision_36_annotations_by_which_the_pod_would_be_refused_keep_a_set_out() {
    let app_armor = |container: &str| format!("container.apparmor.security.beta.kubernetes.io/{container}");
    let noted = |key: &str, value: &str| {
        let mut pod = pod();
        pod["metadata"]["annotations"] = json!({key: value});
        pod
    };
    let profile = |field: &str, profile: Value| {
        let mut own = sidecar("own");
        own["securityContext"] = json!({field: profile});
        json!({"containers": [own]})
    };
    let seccomp = "container.seccomp.security.alpha.kubernetes.io/own".to_owned();
    for (field, key) in [("appArmorProfile", app_armor("own")), ("seccompProfile", seccomp)] {
        for (said, its) in [
            ("runtime/default", json!({"type": "RuntimeDefault"})),
            ("unconfined", json!({"type": "Unconfined"})),
            ("localhost/a", json!({"type": "Localhost", "localhostProfile": "a"})),
        ] {
            for other in ["runtime/default", "unconfined", "localhost/a", "localhost/b"] {
                let (pod, spec) = (noted(&key, other), profile(field, its.clone()));
                if other == said {
                    after(&pod, &spec);
                } else {
                    let why = "is not possible in this Pod: an annotation of the Pod names another one";
                    assert_eq!(reason(&pod, &spec), format!("container own: securityContext.{field} {why}"));
                }
            }
        }
    }
    let cost = "controller.kubernetes.io/pod-deletion-cost";
    let giving = |key: &str, value: &str| json!({"containers": [sidecar("own")], "patchPodMetadata": [{"annotations": {key: value}}]});
    for (key, value, fits) in [
        (cost, "-5", true),
        (cost, "0", true),
        (cost, "+5", false),
        (cost, "much", false),
        (&*app_armor("main"), "unconfined", true),
        (&*app_armor("own"), "unconfined", true),
        (&*app_armor("none"), "unconfined", false),
        ("kubernetes.io/config.mirror", "x", false),
    ] {
        let spec = giving(key, value);
        if fits {
            after(&pod(), &spec);
        } else {
            let wanted = format!("patchPodMetadata: annotation {key} is not possible on this Pod with this value");
            assert_eq!(reason(&pod(), &spec), wanted, "{value}");
        }
    }
    after(&noted(cost, "much"), &giving(cost, "5"));
}

#[test]
fn pull_secrets_are_added_once() {
    let mut pod = pod();
    pod["spec"]["imagePullSecrets"] = json!([{"name": "a"}]);
    let spec = json!({"containers": [sidecar("x")], "imagePullSecrets": [{"name": "b"}, {"name": "a"}, {"name": "b"}]});
    assert_eq!(names(&after(&pod, &spec), "imagePullSecrets"), ["a", "b"]);
}

#[test]
fn mirrors_get_nothing_and_a_phase_that_the_creator_writes_changes_nothing() {
    assert!(is_open(&pod()));
    for phase in ["Pending", "Succeeded", "Failed"] {
        let mut said = pod();
        said["status"] = json!({"phase": phase});
        assert!(is_open(&said), "the API server makes it Pending: {phase}");
    }
    for (path, value) in [
        ("spec", json!(1)),
        ("metadata", json!(null)),
        ("metadata", json!({"annotations": {"kubernetes.io/config.mirror": "x"}})),
    ] {
        let mut closed = pod();
        closed[path] = value;
        assert!(!is_open(&closed), "{closed}");
    }
}

#[test]
fn what_a_copied_pod_says_of_sets_that_were_left_out_is_taken_away() {
    let mut copied = pod();
    copied["metadata"]["annotations"] = json!({SIDECAR_SETS_LEFT_OUT: "{}", "their": "1"});
    let after = outcome(&copied, &[]).0;
    assert_eq!(after["metadata"]["annotations"], json!({"their": "1"}));
    assert_eq!(outcome(&pod(), &[]).1.patch, Vec::<Value>::new());
}

#[test]
fn whatever_a_sidecar_set_holds_has_its_bounds() {
    let large = json!({"containers": [sidecar("a")], "patchPodMetadata": [
        {"annotations": {"k": "x".repeat(MOST_ANNOTATIONS)}}]});
    assert!(reason(&pod(), &large).contains("want at most 262144"));
    let specs: Vec<Value> = (0..=MOST_SETS).map(|i| json!({"containers": [sidecar(&format!("c{i}"))]})).collect();
    let names: Vec<String> = (0..=MOST_SETS).map(|i| format!("s{i:0>3}")).collect();
    let sets: Vec<Set<'_>> = names.iter().zip(&specs).map(|(name, spec)| set(name, spec)).collect();
    let (_, outcome) = outcome(&pod(), &sets);
    assert_eq!((outcome.injected.len(), outcome.left_out[0].set.as_str()), (MOST_SETS, "s100"));
}

/// A Pod of 1 CPU as a whole, half of it the app's.
fn pod_of_one_cpu() -> Value {
    let mut pod = pod();
    pod["spec"]["resources"] = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}});
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "800m"}});
    pod
}

fn sidecar_of(requests: &str, limits: &str) -> Value {
    let mut own = sidecar("own");
    own["resources"] = json!({"requests": {"cpu": requests, "memory": "1Gi"}, "limits": {"cpu": limits}});
    json!({"containers": [own]})
}

#[test]
fn pod_level_resources_grow_by_those_of_the_sidecars() {
    let spec = sidecar_of("500m", "600m");
    let (after, outcome) = outcome(&pod_of_one_cpu(), &[set("s", &spec)]);
    assert_eq!(after["spec"]["resources"], json!({"requests": {"cpu": "1500m"}, "limits": {"cpu": "1600m"}}));
    let said = "cpu of the Pod as a whole was raised: requests from 1 to 1500m, limits from 1 to 1600m";
    assert_eq!(outcome.remarks, [said]);
    let adjusted = "kruise.rs/pod-level-resources-adjusted";
    assert_eq!(after["metadata"]["annotations"][adjusted], said, "for who does not see the warning");
    let again = self::outcome(&after, &[set("s", &spec)]).0;
    assert_eq!(again["metadata"]["annotations"][adjusted], said, "once more is the same");
    let fits = sidecar_of("200m", "1");
    let as_it_was = self::after(&pod_of_one_cpu(), &fits);
    assert_eq!(as_it_was["spec"]["resources"], pod_of_one_cpu()["spec"]["resources"]);
    assert_eq!(as_it_was["metadata"]["annotations"].get(adjusted), None);
    let limit = sidecar_of("100m", "3");
    assert_eq!(self::after(&pod_of_one_cpu(), &limit)["spec"]["resources"]["limits"]["cpu"], "4");
}

#[test]
fn pod_level_resources_are_shared_where_the_set_says_so() {
    let spec = sidecar_of("500m", "600m");
    let (after, outcome) = outcome(&pod_of_one_cpu(), &[Set { pod_level: PodLevel::Share, ..set("s", &spec) }]);
    assert_eq!(after["spec"]["resources"], pod_of_one_cpu()["spec"]["resources"]);
    assert_eq!(after["spec"]["containers"][0]["resources"], json!({"requests": {"memory": "1Gi"}, "limits": {}}));
    assert_eq!(outcome.remarks, ["cpu of own comes from the resources of the Pod as a whole"]);
    assert_eq!(
        [Some("share"), Some("pad"), Some("x"), None].map(PodLevel::of),
        [PodLevel::Share, PodLevel::Pad, PodLevel::Pad, PodLevel::Pad]
    );
}

#[test]
fn a_pod_that_was_invalid_before_stays_as_its_author_wrote_it() {
    let mut pod = pod_of_one_cpu();
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2".into();
    assert_eq!(after(&pod, &sidecar_of("1", "1"))["spec"]["resources"], pod["spec"]["resources"]);
}

proptest::proptest! {
    /// Whatever the Pod and the SidecarSet are, the patch applies.
    #[test]
    fn nothing_panics(pod in proptest::sample::select(odd()), spec in proptest::sample::select(odd())) {
        let pod = json!({"metadata": pod, "spec": pod});
        if is_open(&pod) {
            outcome(&pod, &[set("s", &spec)]);
        }
    }
}

fn odd() -> Vec<Value> {
    let mut odd = vec![json!({})];
    for field in ["containers", "initContainers", "volumes", "imagePullSecrets", "annotations", "patchPodMetadata"] {
        for value in [json!(null), json!(1), json!([]), json!([null]), json!([{"name": 1, "env": 2}]), json!({"a": 1})]
        {
            odd.push(json!({field: value}));
        }
    }
    odd
}
