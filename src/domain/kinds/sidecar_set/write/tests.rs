use crate::api::labels::{SIDECAR_SET_HASH, SIDECAR_SET_IN_PLACE_STATE, SIDECAR_SET_WORKING};

use super::*;

const RECORDED: &str = include_str!("../testdata/updated.json");
const SETS: &str = include_str!("../../../../api/apps/testdata/sidecar_sets.json");

fn now() -> Timestamp {
    "2026-11-21T09:51:19Z".parse().unwrap()
}

/// The Pod before and after the recorded update, and the SidecarSet of that update.
fn recorded() -> (Value, Value, Spec) {
    let [before, after] = serde_json::from_str::<[Value; 2]>(RECORDED).unwrap();
    let sets: Vec<Value> = serde_json::from_str(SETS).unwrap();
    (before, after, Spec::of(sets.last().unwrap()).unwrap())
}

fn annotation<'v>(object: &'v Value, key: &str) -> &'v str {
    object["metadata"]["annotations"][key].as_str().unwrap_or_default()
}

#[test]
fn the_recorded_update_is_written_in_its_own_words() {
    let (before, after, spec) = recorded();
    let patch = update(&spec, &before, "golden-sidecar-5c698cf546", now()).unwrap();
    assert_eq!(patch["spec"], json!({"containers": [{"name": "agent", "image": "docker.io/library/busybox:1.35"}]}));
    assert_eq!(annotation(&patch, SIDECAR_SET_HASH), annotation(&after, SIDECAR_SET_HASH));
    let mut state: Value = serde_json::from_str(annotation(&patch, SIDECAR_SET_IN_PLACE_STATE)).unwrap();
    let agent = state["golden-sidecar"]["lastContainerStatuses"]["agent"].as_object_mut().unwrap();
    let instance = agent.remove("containerID").unwrap();
    assert!(instance.as_str().unwrap().starts_with("containerd://03117971af45"));
    assert_eq!(agent.remove("image").unwrap(), before["spec"]["containers"][0]["image"]);
    let theirs: Value = serde_json::from_str(annotation(&after, SIDECAR_SET_IN_PLACE_STATE)).unwrap();
    assert_eq!(state, theirs);
    let keys: Vec<&String> = patch["metadata"]["annotations"].as_object().unwrap().keys().collect();
    assert_eq!(keys, [SIDECAR_SET_HASH, SIDECAR_SET_IN_PLACE_STATE], "the time of the injection stays");
    assert_eq!(patch["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
}

/// One call instead of two for each Pod of an update.
#[test]
fn what_a_store_keeps_of_a_pod_is_enough_for_the_same_update() {
    let (before, _, spec) = recorded();
    let view = |pod: &Value| -> PodView { serde_json::from_value(pod.clone()).unwrap() };
    let known = kept(&spec, &view(&before)).unwrap();
    let (from_store, from_all) =
        (update(&spec, &known, "r", now()).unwrap(), update(&spec, &before, "r", now()).unwrap());
    assert_eq!(from_store["spec"], from_all["spec"]);
    for key in [SIDECAR_SET_HASH, SIDECAR_SET_IN_PLACE_STATE] {
        assert_eq!(annotation(&from_store, key), annotation(&from_all, key));
    }
    for field in ["uid", "resourceVersion"] {
        assert_eq!(from_store["metadata"][field], before["metadata"][field]);
    }
    let mut merging = spec.clone();
    merging.patches = json!([{"annotations": {"a": "{}"}, "patchPolicy": "MergePatchJson"}]);
    assert_eq!(kept(&merging, &view(&before)), None, "what stands there decides");
    let twins = hot_set("m:2", "b");
    assert_eq!(kept(&twins, &view(&before)), None, "the versions of twins are not kept");
    let mut long = before;
    long["metadata"]["annotations"][SIDECAR_SET_IN_PLACE_STATE] = "x".repeat(20_000).into();
    assert_eq!(kept(&spec, &view(&long)), None, "what others have noted would be lost");
}

#[test]
fn d1_hashes_in_the_older_form_are_written_anew() {
    let (mut before, _, spec) = recorded();
    let without = spec.hashes.without_image.clone();
    before["metadata"]["annotations"][SIDECAR_SET_HASH] = r#"{"golden-sidecar":"old","other":"x"}"#.into();
    before["metadata"]["annotations"]["kruise.io/sidecarset-hash-without-image"] =
        format!(r#"{{"golden-sidecar":"{without}"}}"#).into();
    let patch = update(&spec, &before, "r", now()).unwrap();
    let hashes: Value = serde_json::from_str(annotation(&patch, SIDECAR_SET_HASH)).unwrap();
    assert_eq!((&hashes["golden-sidecar"]["hash"], &hashes["other"]["hash"]), (&json!(spec.hashes.hash), &json!("x")));
    let without: Value = serde_json::from_str(annotation(&patch, "kruise.io/sidecarset-hash-without-image")).unwrap();
    assert_eq!(without["golden-sidecar"]["hash"], spec.hashes.without_image);
}

#[test]
fn e20_each_update_notes_its_own_revision_and_time() {
    let (mut before, _, spec) = recorded();
    let first = json!({"golden-sidecar": {"revision": "first", "updateTimestamp": "2020-01-01T00:00:00Z",
        "lastContainerStatuses": {"agent": {"imageID": "older"}}, "more": 1}, "other": {"revision": "theirs"}});
    before["metadata"]["annotations"][SIDECAR_SET_IN_PLACE_STATE] = first.to_string().into();
    let patch = update(&spec, &before, "r", now()).unwrap();
    let states: Value = serde_json::from_str(annotation(&patch, SIDECAR_SET_IN_PLACE_STATE)).unwrap();
    let state = &states["golden-sidecar"];
    assert_eq!(
        (&state["revision"], &state["updateTimestamp"]),
        (&json!(spec.hashes.hash), &json!("2026-11-21T09:51:19Z"))
    );
    assert_ne!(state["lastContainerStatuses"]["agent"]["imageID"], "older");
    assert_eq!(
        (&state["more"], &states["other"]["revision"]),
        (&json!(1), &json!("theirs")),
        "what others have noted stays"
    );
}

/// A17.6: what was out of service anyway does not count as unavailable because of its update.
#[test]
fn a17_an_update_notes_whether_the_pod_was_out_of_service_before() {
    let (before, _, spec) = recorded();
    let noted = |was_noted: Option<bool>, is_ready: bool| {
        let mut pod = before.clone();
        for condition in pod["status"]["conditions"].as_array_mut().unwrap() {
            if condition["type"] == "Ready" {
                condition["status"] = json!(if is_ready { "True" } else { "False" });
            }
        }
        let earlier = was_noted.map(|noted| json!({"golden-sidecar": {"wasUnavailable": noted}}).to_string());
        pod["metadata"]["annotations"][SIDECAR_SET_IN_PLACE_STATE] = earlier.unwrap_or_default().into();
        let known = kept(&spec, &serde_json::from_value(pod.clone()).unwrap()).unwrap();
        let [from_store, from_all] = [&known, &pod].map(|pod| {
            let patch = update(&spec, pod, "r", now()).unwrap();
            let states: Value = serde_json::from_str(annotation(&patch, SIDECAR_SET_IN_PLACE_STATE)).unwrap();
            states["golden-sidecar"].get("wasUnavailable").cloned()
        });
        assert_eq!(from_store, from_all);
        from_all.is_some()
    };
    for (was_noted, is_ready, wanted) in [
        (None, true, false),
        (None, false, true),
        // An earlier update has taken it out of service, and this one is to mend it.
        (Some(false), false, false),
        (Some(true), false, true),
        (Some(true), true, false),
    ] {
        assert_eq!(noted(was_noted, is_ready), wanted, "{was_noted:?} {is_ready}");
    }
}

#[test]
fn decision_28_annotations_are_refreshed_but_those_that_fill_gaps() {
    let (before, _, mut spec) = recorded();
    spec.patches = json!([{"annotations": {"agent.example.com/x": "2"}, "patchPolicy": "Overwrite"},
        {"annotations": {"gap": "1"}, "patchPolicy": "Retain"}]);
    let patch = update(&spec, &before, "r", now()).unwrap();
    assert_eq!(annotation(&patch, "agent.example.com/x"), "2");
    assert_eq!(annotation(&patch, "gap"), "");
    spec.patches = json!([{"annotations": {"agent.example.com/x": "{"}, "patchPolicy": "MergePatchJson"}]);
    assert!(update(&spec, &before, "r", now()).unwrap_err().to_string().contains("agent.example.com/x"));
}

#[test]
fn a_native_sidecar_is_written_among_the_init_containers() {
    let spec = json!({"initContainers": [{"name": "mesh", "image": "m:2", "restartPolicy": "Always"}, {"name": "setup", "image": "s:2"}]});
    let spec = Spec::of(&json!({"metadata": {"name": "mesh"}, "spec": spec})).unwrap();
    let pod = json!({"metadata": {"resourceVersion": "5"}, "spec": {"containers": [{"name": "main", "image": "a:1"}],
        "initContainers": [{"name": "setup", "image": "s:1"}, {"name": "mesh", "image": "m:1"}]},
        "status": {"initContainerStatuses": [{"name": "mesh", "imageID": "m@1", "containerID": "c://1"}]}});
    let patch = update(&spec, &pod, "r", now()).unwrap();
    assert_eq!(
        patch["spec"],
        json!({"initContainers": [{"name": "mesh", "image": "m:2"}]}),
        "one that has ended stays"
    );
    let state: Value = serde_json::from_str(annotation(&patch, SIDECAR_SET_IN_PLACE_STATE)).unwrap();
    let noted = json!({"mesh": {"imageID": "m@1", "containerID": "c://1", "image": "m:1"}});
    assert_eq!(state["mesh"]["lastContainerStatuses"], noted);
}

/// Else it would be waited for an instance that never comes, and no later update would reach the Pod.
#[test]
fn back_to_what_runs_before_kubelet_has_acted_no_other_instance_is_waited_for() {
    let written = |pod: &Value, image: &str| {
        let spec = json!({"containers": [{"name": "mesh", "image": image}]});
        let set = Spec::of(&json!({"metadata": {"name": "mesh"}, "spec": spec})).unwrap();
        let patch = update(&set, pod, "r", now()).unwrap();
        let mut pod = pod.clone();
        pod["metadata"]["annotations"] = patch["metadata"]["annotations"].clone();
        pod["spec"] = patch["spec"].clone();
        pod
    };
    let before = |pod: &Value| {
        let state: Value = serde_json::from_str(annotation(pod, SIDECAR_SET_IN_PLACE_STATE)).unwrap();
        state["mesh"]["lastContainerStatuses"]["mesh"].clone()
    };
    let status = json!({"name": "mesh", "image": "docker.io/library/m:1", "imageID": "m@1", "containerID": "c://1"});
    let by_digest = format!("mirror.example/m@sha256:{}", "ab".repeat(32));
    for own in ["m:1", by_digest.as_str()] {
        let pod = json!({"metadata": {"resourceVersion": "1"}, "status": {"containerStatuses": [status]},
            "spec": {"containers": [{"name": "mesh", "image": own}]}});
        let first = written(&pod, "m:2");
        assert_eq!(before(&first), json!({"imageID": "m@1", "containerID": "c://1", "image": own}));
        let mut acted = first.clone();
        acted["status"]["containerStatuses"][0]["containerID"] = "c://2".into();
        for (pod, image, noted) in [
            (&first, own, json!({"imageID": "m@1", "image": own})),
            (&written(&first, "m:3"), own, json!({"imageID": "m@1", "image": own})),
            // Both of these make another instance.
            (&first, "m:3", json!({"imageID": "m@1", "containerID": "c://1", "image": own})),
            (&acted, own, json!({"imageID": "m@1", "containerID": "c://2", "image": "m:2"})),
        ] {
            assert_eq!(before(&written(pod, image)), noted, "{image}");
        }
    }
}

/// A Pod with the twins of `mesh`; its annotations are merged over.
fn hot(images: [&str; 2], working: &str, versions: [[&str; 2]; 2]) -> Value {
    let mut annotations = Map::new();
    annotations.insert(SIDECAR_SET_WORKING.into(), json!({"mesh": working}).to_string().into());
    for (twin, [version, other]) in ["mesh-1", "mesh-2"].iter().zip(versions) {
        annotations.insert(format!("{SIDECAR_SET_VERSION_PREFIX}{twin}"), version.into());
        annotations.insert(format!("{SIDECAR_SET_VERSION_ALT_PREFIX}{twin}"), other.into());
    }
    json!({"metadata": {"resourceVersion": "1", "annotations": annotations},
        "spec": {"containers": [{"name": "mesh-1", "image": images[0]}, {"name": "mesh-2", "image": images[1]}]},
        "status": {"containerStatuses": [{"name": "mesh-1", "ready": true, "image": images[0]}, {"name": "mesh-2", "ready": true, "image": images[1]}]}})
}

fn hot_set(image: &str, version: &str) -> Spec {
    let way = json!({"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "empty:1"});
    Spec::of(&json!({"metadata": {"name": "mesh", "resourceVersion": version},
        "spec": {"containers": [{"name": "mesh", "image": image, "upgradeStrategy": way}]}}))
    .unwrap()
}

/// Images, the working twin, and the versions with those of the other twin.
fn state(pod: &Value) -> ([String; 2], String, [[String; 2]; 2]) {
    let image = |i: usize| pod["spec"]["containers"][i]["image"].as_str().unwrap().to_owned();
    let working: Value = serde_json::from_str(annotation(pod, SIDECAR_SET_WORKING)).unwrap();
    let versions = ["mesh-1", "mesh-2"].map(|twin| {
        [SIDECAR_SET_VERSION_PREFIX, SIDECAR_SET_VERSION_ALT_PREFIX]
            .map(|prefix| annotation(pod, &format!("{prefix}{twin}")).to_owned())
    });
    ([image(0), image(1)], working["mesh"].as_str().unwrap().to_owned(), versions)
}

fn patched(mut pod: Value, patch: &Value) -> Value {
    for (key, value) in patch["metadata"]["annotations"].as_object().unwrap() {
        pod["metadata"]["annotations"][key] = value.clone();
    }
    for change in patch["spec"]["containers"].as_array().into_iter().flatten() {
        for (list, member) in [("spec", "containers"), ("status", "containerStatuses")] {
            for container in pod[list][member].as_array_mut().unwrap() {
                if container["name"] == change["name"] {
                    container["image"] = change["image"].clone();
                }
            }
        }
    }
    pod
}

/// The table of A20.
#[test]
fn a20_twins_take_turns() {
    let text = |pairs: [[&str; 2]; 2]| pairs.map(|pair| pair.map(str::to_owned));
    let mut pod = hot(["m:1", "empty:1"], "mesh-1", [["1", "0"], ["0", "1"]]);
    for (set, resets, images, working, versions) in [
        (hot_set("m:2", "b"), false, ["m:1", "m:2"], "mesh-2", [["1", "b"], ["b", "1"]]),
        (hot_set("m:2", "b"), true, ["empty:1", "m:2"], "mesh-2", [["0", "b"], ["b", "0"]]),
        (hot_set("m:3", "c"), false, ["m:3", "m:2"], "mesh-1", [["c", "b"], ["b", "c"]]),
        (hot_set("m:3", "c"), true, ["m:3", "empty:1"], "mesh-1", [["c", "0"], ["0", "c"]]),
    ] {
        let patch = if resets { reset(&set, &pod, now()) } else { update(&set, &pod, "r", now()) }.unwrap();
        assert_eq!(patch["metadata"]["annotations"].get(SIDECAR_SET_HASH).is_some(), !resets, "D20");
        pod = patched(pod, &patch);
        assert_eq!(state(&pod), (images.map(str::to_owned), working.to_owned(), text(versions)));
    }
}

#[test]
fn a20_an_upgrade_before_the_last_one_is_done_takes_the_twin_that_does_not_work() {
    let mut pod = hot(["m:1", "broken:1"], "mesh-2", [["1", "b"], ["b", "1"]]);
    pod["status"]["containerStatuses"][1]["ready"] = false.into();
    let patch = update(&hot_set("m:3", "c"), &pod, "r", now()).unwrap();
    let (images, working, _) = state(&patched(pod, &patch));
    assert_eq!((images, working.as_str()), (["m:1".to_owned(), "m:3".to_owned()], "mesh-2"));
    let both = hot(["m:1", "m:2"], "mesh-2", [["1", "b"], ["b", "1"]]);
    let patch = update(&hot_set("m:3", "c"), &both, "r", now()).unwrap();
    assert_eq!(state(&patched(both, &patch)).1, "mesh-1", "the one that does not work any more");
}

/// A runtime names one of the names of an image.
#[test]
fn a20_a_twin_works_whatever_its_runtime_calls_the_image() {
    let mut pod = hot(["mirror.example/m:1", "broken:1"], "mesh-2", [["1", "b"], ["b", "1"]]);
    for (i, ready, image) in [(0, true, "m:1"), (1, false, "empty:1")] {
        let status = &mut pod["status"]["containerStatuses"][i];
        (status["ready"], status["image"]) = (ready.into(), image.into());
        (status["imageID"], status["containerID"]) = (format!("id-of-{image}").into(), "c://now".into());
    }
    let state = |before: Value| json!({"mesh": {"lastContainerStatuses": before}}).to_string();
    let of_second = json!({"imageID": "id-of-empty:1", "containerID": "c://now"});
    for (before, target) in [
        (json!({"mesh-2": of_second}), 1),
        (json!({"mesh-1": {"imageID": "id-of-m:1", "containerID": "c://before"}, "mesh-2": of_second}), 1),
        // It has the name, and not the instance yet.
        (json!({"mesh-1": {"imageID": "id-of-m:1", "containerID": "c://now"}, "mesh-2": of_second}), 0),
    ] {
        pod["metadata"]["annotations"][SIDECAR_SET_IN_PLACE_STATE] = state(before.clone()).into();
        let patch = update(&hot_set("m:3", "c"), &pod, "r", now()).unwrap();
        let twin = ["mesh-1", "mesh-2"][target];
        assert_eq!(patch["spec"]["containers"], json!([{"name": twin, "image": "m:3"}]), "{before}");
    }
}

/// What the table of A20 leaves open: the twin that was told to hand over may have done so, and does not work again by itself.
#[test]
fn a20_back_to_the_image_before_is_handed_over_like_any_other() {
    // The second one does not work yet.
    let mut pod = hot(["m:1", "m:2"], "mesh-2", [["1", "b"], ["b", "1"]]);
    pod["status"]["containerStatuses"][1]["ready"] = false.into();
    let patch = update(&hot_set("m:1", "c"), &pod, "r", now()).unwrap();
    assert!(annotation(&patch, SIDECAR_SET_HASH).contains("\"hash\""));
    let text = |pairs: [[&str; 2]; 2]| pairs.map(|pair| pair.map(str::to_owned));
    let versions = text([["1", "c"], ["c", "1"]]);
    assert_eq!(state(&patched(pod, &patch)), (["m:1".to_owned(), "m:1".to_owned()], "mesh-2".to_owned(), versions));
    // Both work, and something else keeps the first one from being reset: it rests first, and then begins anew.
    let pod = hot(["m:1", "m:2"], "mesh-2", [["1", "b"], ["b", "1"]]);
    let set = hot_set("m:1", "c");
    let patch = update(&set, &pod, "r", now()).unwrap();
    assert_eq!(patch["metadata"]["annotations"].get(SIDECAR_SET_HASH), None, "it is not updated yet");
    let pod = patched(pod, &patch);
    let versions = text([["0", "b"], ["b", "0"]]);
    assert_eq!(state(&pod), (["empty:1".to_owned(), "m:2".to_owned()], "mesh-2".to_owned(), versions));
    let patch = update(&set, &pod, "r", now()).unwrap();
    let versions = text([["c", "b"], ["b", "c"]]);
    assert_eq!(state(&patched(pod, &patch)), (["m:1".to_owned(), "m:2".to_owned()], "mesh-1".to_owned(), versions));
}

#[test]
fn a20_back_to_the_image_of_the_other_twin_changes_no_image() {
    let pod = hot(["m:1", "empty:1"], "mesh-1", [["1", "0"], ["0", "1"]]);
    let patch = update(&hot_set("m:1", "b"), &pod, "r", now()).unwrap();
    assert_eq!(patch.get("spec"), None);
    assert!(annotation(&patch, SIDECAR_SET_HASH).contains("\"hash\""), "the hash is written all the same");
}

/// Another empty image is for new Pods alone: a twin that rests would be restarted for nothing.
#[test]
fn a20_a_reset_leaves_the_twins_of_others_that_rest_with_an_earlier_empty_image() {
    let way = json!({"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "empty:2"});
    let container = |name: &str, image: &str| json!({"name": name, "image": image, "upgradeStrategy": way});
    let set = Spec::of(&json!({"metadata": {"name": "mesh", "resourceVersion": "c"},
        "spec": {"containers": [container("mesh", "m:2"), container("logs", "l:1")]}}))
    .unwrap();
    let state = r#"{"mesh":{"lastContainerStatuses":{"mesh-2":{"imageID":"e","image":"empty:1"}}}}"#;
    let annotations = json!({SIDECAR_SET_WORKING: r#"{"mesh":"mesh-2","logs":"logs-1"}"#, SIDECAR_SET_IN_PLACE_STATE: state,
        "kruise.io/sidecarset-hash-without-image": r#"{"mesh":{"hash":"of empty:1"}}"#});
    let pod = json!({"metadata": {"annotations": annotations}, "spec": {"containers": [
        {"name": "mesh-1", "image": "m:1"}, {"name": "mesh-2", "image": "m:2"},
        {"name": "logs-1", "image": "l:1"}, {"name": "logs-2", "image": "empty:1"}]}});
    let patch = reset(&set, &pod, now()).unwrap();
    assert_eq!(patch["spec"]["containers"], json!([{"name": "mesh-1", "image": "empty:2"}]));
    let mut keys = patch["metadata"]["annotations"].as_object().unwrap().keys();
    assert!(keys.all(|key| !key.contains("logs-")), "{patch}");
}

#[test]
fn d21_a_pod_with_other_containers_is_left_as_it_is() {
    let pod = json!({"metadata": {}, "spec": {"containers": [{"name": "main", "image": "a:1"}]}});
    assert_eq!(update(&hot_set("m:1", "b"), &pod, "r", now()).unwrap().get("spec"), None);
    assert_eq!(reset(&hot_set("m:1", "b"), &pod, now()).unwrap()["metadata"]["annotations"], json!({}));
}

#[test]
fn what_cannot_be_read_is_not_overwritten() {
    let pod = json!({"metadata": {"annotations": {SIDECAR_SET_HASH: "{"}}, "spec": {"containers": []}});
    assert!(update(&hot_set("m:1", "b"), &pod, "r", now()).unwrap_err().to_string().contains(SIDECAR_SET_HASH));
}
