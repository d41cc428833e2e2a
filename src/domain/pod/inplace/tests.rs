use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde_json::json;

use crate::k8s::damage::damaged;

use super::{
    batch::{BARRIER, plain_metadata},
    *,
};

const REVISIONS: &str = include_str!("../../../k8s/testdata/revisions.tsv");
const UPDATED: &str = include_str!("testdata/updated_pods.json");
const UPDATING: &str = include_str!("testdata/updating_pods.json");
const STATE: &str = "apps.kruise.io/inplace-update-state";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// The template of a recorded revision.
fn template(revision: &str) -> Value {
    let line = REVISIONS.lines().find(|line| line.split('\t').nth(2) == Some(revision)).unwrap();
    let data: Value = serde_json::from_str(line.split('\t').nth(3).unwrap()).unwrap();
    crate::k8s::revision::template(&data).unwrap()
}

fn pods(recorded: &str) -> Vec<Value> {
    serde_json::from_str(recorded).unwrap()
}

fn pod(recorded: &str, name: &str) -> Value {
    pods(recorded).into_iter().find(|pod| pod["metadata"]["name"] == name).unwrap()
}

fn state(pod: &Value) -> State {
    serde_json::from_str(pod["metadata"]["annotations"][STATE].as_str().unwrap()).unwrap()
}

fn is_complete(pod: &Value, state: Option<&State>, in_grace: bool) -> ContainersDone {
    super::is_complete(&pod.into(), state, in_grace)
}

const ALL: Allowed = Allowed { env_from_metadata: true, resources: false };

fn between(old: &Value, new: &Value) -> Result<UpdateSpec, NotInPlace> {
    spec_between(old, new, "web-1", ALL)
}

fn simple() -> Value {
    json!({
        "metadata": {"creationTimestamp": null, "labels": {"app": "web"}, "annotations": {"config": "1", "other": "x"}},
        "spec": {"containers": [
            {"name": "main", "image": "app:1", "env": [
                {"name": "CONFIG", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['config']"}}},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "SIDECARSET_VERSION", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['other']"}}}]},
            {"name": "side", "image": "side:1", "futureField": {"a": [1]}}]},
    })
}

fn changed(change: impl FnOnce(&mut Value)) -> Value {
    let mut template = simple();
    change(&mut template);
    template
}

#[test]
fn recorded_states_are_written_back_byte_for_byte() {
    let mut checked = 0;
    for pod in pods(UPDATED).iter().chain(&pods(UPDATING)) {
        assert_eq!(
            serde_json::to_string(&state(pod)).unwrap(),
            pod["metadata"]["annotations"][STATE].as_str().unwrap()
        );
        checked += 1;
    }
    assert_eq!(checked, 9);
}

#[test]
fn a_recorded_update_of_image_and_environment_is_planned_as_it_was_done() {
    let spec = spec_between(&template("full-b5746587d"), &template("full-69cf54df84"), "full-69cf54df84", ALL).unwrap();
    let at = at("2026-11-21T09:51:19Z");
    let recorded = pod(UPDATING, "full-nhbnf");
    // As the Pod was before: the image id is the only thing that the state takes from it.
    let mut before = recorded.clone();
    for status in before["status"]["containerStatuses"].as_array_mut().unwrap() {
        if status["name"] == "second" {
            status["imageID"] = json!(state(&recorded).last_container_statuses["second"].image_id);
        }
    }
    let batch = batch(&before, &spec, begin(&before, &spec, None, at), at);
    assert_eq!(
        serde_json::to_string(&batch.state).unwrap(),
        recorded["metadata"]["annotations"][STATE].as_str().unwrap()
    );
    assert_eq!(batch.images, BTreeMap::from([("second".to_owned(), "docker.io/library/busybox:1.34".to_owned())]));
    assert_eq!(batch.metadata["annotations"]["app-config"], "{\"k\":\"v2\"}");
}

#[test]
fn a_recorded_pod_is_done_when_the_daemon_says_so() {
    for pod in pods(UPDATED) {
        let done = is_complete(&pod, Some(&state(&pod)), false);
        assert!(done.done, "{}: {}", pod["metadata"]["name"], done.waits_for);
    }
    let updating = pod(UPDATING, "full-nhbnf");
    assert_eq!(
        is_complete(&updating, Some(&state(&updating)), false).waits_for,
        "container main to run with the new environment"
    );
}

#[test]
fn images_and_metadata_can_be_changed_in_place() {
    let new = changed(|t| {
        t["spec"]["containers"][1]["image"] = "side:2".into();
        t["metadata"]["labels"]["tier"] = "back".into();
        t["metadata"]["annotations"].as_object_mut().unwrap().remove("other");
    });
    let spec = between(&simple(), &new).unwrap();
    assert_eq!(spec.container_images, BTreeMap::from([("side".to_owned(), "side:2".to_owned())]));
    assert!(spec.container_ref_metadata.is_empty() && !spec.update_env_from_metadata);
    assert_eq!(plain_metadata(&spec), json!({"labels": {"tier": "back"}, "annotations": {"other": null}}));
}

#[test]
fn what_needs_another_pod_is_named() {
    for (new, why) in [
        (changed(|t| t["spec"]["nodeName"] = "n".into()), "template.spec.nodeName was added"),
        (
            changed(|t| t["spec"]["containers"][0]["command"] = json!(["x"])),
            "template.spec.containers[0].command was added",
        ),
        (
            changed(|t| t["spec"]["containers"][1]["futureField"]["a"][0] = 2.into()),
            "containers[1].futureField.a[0] differs",
        ),
        (changed(|t| t["spec"]["containers"][1]["name"] = "other".into()), "containers[1].name differs"),
        (
            changed(|t| {
                t["spec"]["containers"].as_array_mut().unwrap().pop();
            }),
            "template.spec.containers differs",
        ),
        (
            changed(|t| {
                t["spec"]["containers"][0].as_object_mut().unwrap().remove("image");
            }),
            "template.spec.containers[0].image was removed",
        ),
        (changed(|t| t["newPart"] = 1.into()), "template.newPart was added"),
    ] {
        let error = between(&simple(), &new).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn a_change_that_an_annotation_could_not_hold_needs_another_pod() {
    let with =
        |length: usize, key: &str| changed(|new| new["metadata"]["annotations"][key] = "x".repeat(length).into());
    let spec = between(&simple(), &with(20_000, "a")).unwrap();
    assert!(matches!(between(&simple(), &with(30_000, "a")), Err(NotInPlace::TooLarge(length)) if length > 40_000));
    let both = with_pending(spec.clone(), Some(&between(&simple(), &with(20_000, "b")).unwrap()), 0);
    assert!(matches!(both, Err(NotInPlace::TooLarge(_))), "what two updates in a grace period add up to");
    assert_eq!(with_pending(spec.clone(), Some(&spec), 0), Ok(spec));
}

#[test]
fn finalizers_of_others_outlive_those_of_a_template() {
    let with = |names: &[&str]| changed(|t| t["metadata"]["finalizers"] = json!(names));
    let change = |old: &Value, new: &Value| between(old, new).unwrap();
    let apply = |spec: &UpdateSpec| {
        // One that somebody has added, and without one that a hook was let go by.
        let pod = json!({"metadata": {"finalizers": ["example.com/u", "mesh.example/f"]}});
        let patch = json!({"metadata": plain_metadata(spec)});
        let patched = crate::k8s::strategic_merge::apply(&pod, &patch).unwrap();
        let mut names: Vec<String> = serde_json::from_value(patched["metadata"]["finalizers"].clone()).unwrap();
        names.sort_unstable();
        names.join(" ")
    };
    let (p, u, n) = ("example.com/p", "example.com/u", "example.com/n");
    for (old, new, after) in [
        (with(&[p, u]), with(&[p]), "mesh.example/f"),
        (with(&[p, u]), simple(), "mesh.example/f"),
        (with(&[p, u]), with(&[u, p, n]), "example.com/n example.com/u mesh.example/f"),
        (simple(), with(&[n]), "example.com/n example.com/u mesh.example/f"),
    ] {
        assert_eq!(apply(&change(&old, &new)), after, "{new}");
    }
    // What the first one of two has not written yet.
    for (first, second, third, after) in [
        (with(&[u]), with(&[u, p]), with(&[u, p, n]), "example.com/n example.com/p example.com/u mesh.example/f"),
        (with(&[u]), with(&[u, n]), with(&[u]), "example.com/u mesh.example/f"),
        (with(&[u]), with(&[p]), with(&[u, p]), "example.com/p example.com/u mesh.example/f"),
    ] {
        let both = with_pending(change(&second, &third), Some(&change(&first, &second)), 0).unwrap();
        assert_eq!(apply(&both), after, "{third}");
    }
}

#[test]
fn a_key_that_a_container_reads_restarts_it() {
    let new = changed(|t| t["metadata"]["annotations"]["config"] = "2".into());
    let spec = between(&simple(), &new).unwrap();
    let config = BTreeMap::from([("config".to_owned(), Some("2".to_owned()))]);
    assert_eq!(spec.container_ref_metadata["main"].annotations, config);
    assert!(spec.update_env_from_metadata && spec.meta_data_patch.is_none());
    let without = spec_between(&simple(), &new, "web-1", Allowed::default()).unwrap();
    assert!(without.container_ref_metadata.is_empty());
    assert_eq!(plain_metadata(&without), json!({"annotations": {"config": "2"}}));
}

#[test]
fn shortfall_23_a_removed_key_counts_as_a_change() {
    let new = changed(|t| {
        t["metadata"]["annotations"].as_object_mut().unwrap().remove("config");
    });
    let spec = between(&simple(), &new).unwrap();
    assert_eq!(spec.container_ref_metadata["main"].annotations, BTreeMap::from([("config".to_owned(), None)]));
}

#[test]
fn case_32_a_variable_of_ours_and_other_field_references_restart_nothing() {
    let new = changed(|t| t["metadata"]["annotations"]["other"] = "y".into());
    let spec = between(&simple(), &new).unwrap();
    assert!(spec.container_ref_metadata.is_empty());
    assert_eq!(plain_metadata(&spec), json!({"annotations": {"other": "y"}}));
}

#[test]
fn case_33_metadata_alone_is_in_place() {
    let new = changed(|t| t["metadata"]["labels"]["new"] = "1".into());
    let spec = between(&simple(), &new).unwrap();
    let now = at("2026-01-01T00:00:00Z");
    let batch = batch(&json!({}), &spec, begin(&json!({}), &spec, None, now), now);
    assert!(batch.images.is_empty() && batch.state.container_batches_record.is_empty());
    assert_eq!(batch.metadata, json!({"labels": {"new": "1"}}));
    assert!(is_complete(&json!({}), Some(&batch.state), false).done);
}

/// Three containers, two of them with a launch priority, each with a status.
fn prioritised() -> Value {
    let container = |name: &str, priority: Option<i32>| {
        let env: Vec<Value> = priority
            .map(|p| json!({"name": BARRIER, "valueFrom": {"configMapKeyRef": {"name": "web-barrier", "key": format!("p_{p}")}}}))
            .into_iter()
            .collect();
        json!({"name": name, "image": format!("{name}:1"), "env": env})
    };
    let status = |name: &str| json!({"name": name, "imageID": format!("{name}@sha256:1"), "image": format!("{name}:1"), "containerID": "containerd://1"});
    json!({"spec": {"containers": [container("a", Some(1)), container("b", Some(10)), container("c", None)]},
        "status": {"containerStatuses": [status("a"), status("b"), status("c")]}})
}

fn images(names: &[&str]) -> UpdateSpec {
    let container_images = names.iter().map(|name| ((*name).to_owned(), format!("{name}:2"))).collect();
    UpdateSpec { revision: "web-2".into(), container_images, ..UpdateSpec::default() }
}

#[test]
fn batches_follow_launch_priorities() {
    let (pod, now) = (prioritised(), at("2026-01-01T00:00:00Z"));
    let spec = images(&["a", "b", "c"]);
    let first = batch(&pod, &spec, begin(&pod, &spec, None, now), now);
    assert_eq!(first.images.keys().collect::<Vec<_>>(), ["b", "c"]);
    assert_eq!(first.state.pre_check_before_next.as_ref().unwrap().containers_required_ready, ["b", "c"]);
    assert_eq!(is_complete(&pod, Some(&first.state), false).waits_for, "later batches");
    let second = batch(&pod, &first.state.next(), first.state.clone(), now);
    assert_eq!(second.images.keys().collect::<Vec<_>>(), ["a"]);
    assert!(!second.state.has_next() && second.state.pre_check_before_next.is_none());
    assert_eq!(second.state.last_container_statuses.len(), 3);
    assert_eq!(second.state.container_batches_record.len(), 2);
}

#[test]
fn containers_that_share_a_key_change_together() {
    let shared =
        RefMetadata { annotations: BTreeMap::from([("k".into(), Some("v".into()))]), ..RefMetadata::default() };
    let spec = UpdateSpec {
        container_ref_metadata: BTreeMap::from([("a".into(), shared.clone()), ("b".into(), shared)]),
        ..images(&["b"])
    };
    let (pod, now) = (prioritised(), at("2026-01-01T00:00:00Z"));
    let batch = batch(&pod, &spec, begin(&pod, &spec, None, now), now);
    assert_eq!(batch.state.container_batches_record[0].containers, ["a", "b"]);
    assert!(!batch.state.has_next());
}

#[test]
fn shortfall_09_an_unfinished_update_is_not_forgotten() {
    let (pod, now) = (prioritised(), at("2026-01-01T00:00:00Z"));
    let first = batch(&pod, &images(&["c"]), begin(&pod, &images(&["c"]), None, now), now);
    // The definition has the new image, kubelet has not acted yet.
    let mut midway = pod.clone();
    midway["spec"]["containers"][2]["image"] = "c:2".into();
    let second = begin(&midway, &images(&["b"]), Some(&first.state), now);
    assert_eq!(second.last_container_statuses["c"].image_id, "c@sha256:1");
    let second = batch(&midway, &images(&["b"]), second, now);
    midway["spec"]["containers"][1]["image"] = "b:2".into();
    midway["status"]["containerStatuses"][1]["imageID"] = "b@sha256:2".into();
    assert_eq!(is_complete(&midway, Some(&second.state), false).waits_for, "container c to run image c:2");
}

#[test]
fn case_05_an_image_rolled_back_before_kubelet_acted_is_done() {
    let (pod, now) = (prioritised(), at("2026-01-01T00:00:00Z"));
    let state = batch(&pod, &images(&["c"]), begin(&pod, &images(&["c"]), None, now), now).state;
    // The definition says c:1 again, and that is what runs.
    assert!(is_complete(&pod, Some(&state), false).done);
    let mut untagged = pod.clone();
    untagged["spec"]["containers"][2]["image"] = "c".into();
    untagged["status"]["containerStatuses"][2]["image"] = "docker.io/library/c:latest".into();
    assert!(is_complete(&untagged, Some(&state), false).done);
}

#[test]
fn shortfall_10_a_port_is_no_tag_and_short_names_are_the_same_image() {
    let (pod, now) = (prioritised(), at("2026-01-01T00:00:00Z"));
    let state = batch(&pod, &images(&["c"]), begin(&pod, &images(&["c"]), None, now), now).state;
    for (wanted, runs, done) in [
        ("r.example:5000/app", "r.example:5000/app:latest", true),
        ("app:2", "docker.io/library/app:2", true),
        ("docker.io/app:2", "docker.io/library/app:2", true),
        ("r.example:5000/app:2", "r.example:5000/app:1", false),
        ("r.example:5000/app", "r.example:5001/app:latest", false),
    ] {
        let mut pod = pod.clone();
        pod["spec"]["containers"][2]["image"] = wanted.into();
        pod["status"]["containerStatuses"][2]["image"] = runs.into();
        assert_eq!(is_complete(&pod, Some(&state), false).done, done, "{wanted} {runs}");
    }
}

#[test]
fn nothing_is_done_before_kubelet_has_seen_the_last_change() {
    let (mut pod, now) = (prioritised(), at("2026-01-01T00:00:00Z"));
    let state = batch(&pod, &images(&["c"]), begin(&pod, &images(&["c"]), None, now), now).state;
    // Rolled back at once: what runs fits, and kubelet may be about to start what was asked for in between.
    pod["metadata"]["generation"] = 3.into();
    for (seen, done) in [(Some(2), false), (Some(3), true), (None, true)] {
        pod["status"]["observedGeneration"] = json!(seen);
        assert_eq!(is_complete(&pod, Some(&state), false).done, done, "{seen:?}");
    }
}

#[test]
fn case_06_an_equal_image_id_is_done_by_the_daemons_report() {
    let (mut pod, now) = (prioritised(), at("2026-01-01T00:00:00Z"));
    let state = batch(&pod, &images(&["c"]), begin(&pod, &images(&["c"]), None, now), now).state;
    pod["spec"]["containers"][2]["image"] = "c:2".into();
    assert!(!is_complete(&pod, Some(&state), false).done);
    let report: Vec<Value> = pod["spec"]["containers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| {
            let short = json!({"image": c["image"], "name": c["name"]}).to_string();
            json!({"name": c["name"], "containerID": "containerd://1", "hashes": {"plainHash": crate::k8s::hash::deep_hash(short.as_bytes())}})
        })
        .collect();
    let report = json!({"containers": report}).to_string();
    pod["metadata"] = json!({"annotations": {"apps.kruise.io/runtime-containers-meta": report}});
    assert!(is_complete(&pod, Some(&state), false).done);
    pod["status"]["containerStatuses"][2]["containerID"] = "containerd://2".into();
    assert!(!is_complete(&pod, Some(&state), false).done, "the report is about another instance");
}

#[test]
fn case_07_nothing_is_done_during_the_grace() {
    assert!(!is_complete(&prioritised(), None, true).done);
    assert!(is_complete(&prioritised(), None, false).done);
}

#[test]
fn a_pending_spec_survives_its_annotation() {
    let spec = UpdateSpec {
        grace_seconds: 5,
        ..between(&simple(), &changed(|t| t["metadata"]["labels"]["n"] = "1".into())).unwrap()
    };
    let text = serde_json::to_string(&spec).unwrap();
    assert_eq!(
        text,
        r#"{"revision":"web-1","metaDataPatch":"eyJtZXRhZGF0YSI6eyJsYWJlbHMiOnsibiI6IjEifX19","graceSeconds":5}"#
    );
    assert_eq!(serde_json::from_str::<UpdateSpec>(&text).unwrap(), spec);
}

fn annotated(state: Option<&State>, grace: Option<&UpdateSpec>) -> Value {
    let mut pod = prioritised();
    pod["metadata"] = json!({"labels": {"controller-revision-hash": "web-2"}, "annotations": {}});
    pod["spec"]["readinessGates"] = json!([{"conditionType": "InPlaceUpdateReady"}]);
    if let Some(state) = state {
        pod["metadata"]["annotations"][STATE] = serde_json::to_string(state).unwrap().into();
    }
    if let Some(grace) = grace {
        pod["metadata"]["annotations"]["apps.kruise.io/inplace-update-grace"] =
            serde_json::to_string(grace).unwrap().into();
    }
    pod
}

fn step(pod: &Value, now: &str) -> Step {
    next_step(&pod.into(), &Annotations::of(pod).unwrap(), at(now))
}

#[test]
fn the_grace_is_waited_for_and_then_applied() {
    let spec = UpdateSpec { grace_seconds: 10, ..images(&["c"]) };
    let state = begin(&json!({}), &spec, None, at("2026-01-01T00:00:00Z"));
    let pod = annotated(Some(&state), Some(&spec));
    let wait = |seconds| Step::Wait { after: Some(Duration::from_secs(seconds)), for_what: "the grace period".into() };
    assert_eq!(step(&pod, "2026-01-01T00:00:03.5Z"), wait(7));
    assert_eq!(step(&pod, "2025-12-31T23:00:00Z"), wait(10), "a clock that was set back");
    assert_eq!(step(&pod, "2026-01-01T00:00:10Z"), Step::Apply(spec.clone()));
    let mut other = pod.clone();
    other["metadata"]["labels"]["controller-revision-hash"] = "web-3".into();
    assert_eq!(step(&other, "2026-01-01T00:00:03Z"), Step::DropGrace, "case 1");
    assert_eq!(
        step(&annotated(None, Some(&spec)), "2026-01-01T00:00:03Z"),
        Step::Apply(spec),
        "nobody knows since when"
    );
}

#[test]
fn the_next_batch_waits_for_the_one_before_to_be_ready() {
    let now = at("2026-01-01T00:00:00Z");
    let spec = images(&["a", "b"]);
    let state = batch(&prioritised(), &spec, begin(&prioritised(), &spec, None, now), now).state;
    let mut pod = annotated(Some(&state), None);
    pod["spec"]["containers"][1]["image"] = "b:2".into();
    let waits_for = |pod: &Value| match step(pod, "2026-01-01T00:00:01Z") {
        Step::Wait { for_what, .. } => for_what,
        other => panic!("{other:?}"),
    };
    assert_eq!(waits_for(&pod), "container b to run image b:2");
    pod["status"]["containerStatuses"][1]["imageID"] = "b@sha256:2".into();
    assert_eq!(waits_for(&pod), "container b to be ready before the next batch");
    pod["status"]["containerStatuses"][1]["ready"] = true.into();
    assert_eq!(step(&pod, "2026-01-01T00:00:01Z"), Step::NextBatch(state.next()));
}

#[test]
fn the_gate_is_opened_once_all_is_done() {
    let pod = annotated(None, None);
    assert_eq!(step(&pod, "2026-01-01T00:00:00Z"), Step::OpenGate, "a new Pod");
    let mut open = pod.clone();
    open["status"]["conditions"] = json!([{"type": "InPlaceUpdateReady", "status": "True"}]);
    assert_eq!(step(&open, "2026-01-01T00:00:00Z"), Step::Nothing);
    let mut without = pod;
    without["spec"].as_object_mut().unwrap().remove("readinessGates");
    assert_eq!(step(&without, "2026-01-01T00:00:00Z"), Step::Nothing);
}

#[test]
fn an_annotation_that_cannot_be_read_is_named() {
    let mut pod = annotated(None, None);
    pod["metadata"]["annotations"]["inplace-update-state"] = "{".into();
    assert!(Annotations::of(&pod).unwrap_err().to_string().contains("annotation inplace-update-state"));
}

fn a_state() -> Value {
    let now = at("2026-01-01T00:00:00Z");
    let spec = images(&["a", "b"]);
    json!(batch(&prioritised(), &spec, begin(&prioritised(), &spec, None, now), now).state)
}

fn a_grace() -> Value {
    json!(images(&["a", "b"]))
}

/// Else the property below would see annotations alone that cannot be read.
#[test]
fn the_annotations_that_are_damaged_are_good_ones() {
    let mut pod = annotated(None, None);
    pod["metadata"]["annotations"][STATE] = a_state().to_string().into();
    pod["metadata"]["annotations"]["apps.kruise.io/inplace-update-grace"] = a_grace().to_string().into();
    let annotations = Annotations::of(&pod).unwrap();
    assert!(annotations.state.is_some() && annotations.grace.is_some());
}

proptest::proptest! {
    /// Whatever stands in the annotations, nothing panics.
    #[test]
    fn hostile_annotations(state in damaged(a_state()), grace in damaged(a_grace()), in_grace: bool) {
        let mut pod = annotated(None, None);
        pod["metadata"]["annotations"][STATE] = state.to_string().into();
        if in_grace {
            pod["metadata"]["annotations"]["apps.kruise.io/inplace-update-grace"] = grace.to_string().into();
        }
        if let Ok(annotations) = Annotations::of(&pod) {
            next_step(&(&pod).into(), &annotations, at("2026-01-01T00:00:00Z"));
        }
    }
}
