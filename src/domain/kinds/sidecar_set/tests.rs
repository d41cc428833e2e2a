//! Two SidecarSets whose sidecars are upgraded hot in one Pod, from its creation on.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    defaults,
    inject::{self, PodLevel, Set, Settings},
    notes::PodNotes,
    plan::{self, Plan},
    pod::{Judged, SidecarPod, Standing},
    spec::Spec,
    write,
};
use crate::{domain::workload::turns::Turns, k8s::pod::PodView};

const NAMES: [&str; 2] = ["mesh", "log"];

fn now() -> Timestamp {
    "2026-11-21T09:49:19Z".parse().unwrap()
}

/// One of the SidecarSets, with this image.
fn set(name: &str, image: &str) -> Value {
    let way = json!({"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "empty:1"});
    json!({"metadata": {"name": name, "resourceVersion": image}, "spec": {"selector": {"matchLabels": {"app": "web"}},
        "containers": [{"name": name, "image": image, "upgradeStrategy": way}]}})
}

/// The Pod as the webhook lets it through, with the SidecarSets in this order.
fn created(names: [&str; 2]) -> Value {
    let mut pod = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "1"},
        "spec": {"containers": [{"name": "main", "image": "main:1"}]}});
    let stored = names.map(|name| {
        let object = set(name, "a:1");
        (name, defaults::effective(&object))
    });
    let sets = stored.each_ref().map(|(name, (spec, hashes))| Set {
        name,
        spec,
        hash: &hashes.hash,
        hash_without_image: &hashes.without_image,
        revision: "r",
        pod_level: PodLevel::default(),
    });
    let outcome = inject::inject(&pod, &sets, Vec::new(), Settings { sorted: false, api_server: None, now: now() });
    assert_eq!((outcome.injected.len(), outcome.left_out), (2, vec![]));
    let patch: json_patch::Patch = serde_json::from_value(outcome.patch.into()).unwrap();
    json_patch::patch(&mut pod, &patch).unwrap();
    pod
}

/// Kubelet has made what the spec says; these containers are not ready.
fn kubelet(pod: &mut Value, unready: &[&str]) {
    let status = |container: &Value| {
        let text = |key: &str| container[key].as_str().unwrap().to_owned();
        let (name, image) = (text("name"), text("image"));
        json!({"name": name, "image": image, "imageID": image, "containerID": format!("c://{name}/{image}"),
            "ready": !unready.contains(&name.as_str())})
    };
    let statuses: Vec<Value> = pod["spec"]["containers"].as_array().unwrap().iter().map(status).collect();
    let is_ready = if unready.is_empty() { "True" } else { "False" };
    pod["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": is_ready}],
        "containerStatuses": statuses});
}

/// What the API server makes of a patch.
fn written(pod: &mut Value, patch: &Value) {
    for (key, value) in patch["metadata"]["annotations"].as_object().unwrap() {
        pod["metadata"]["annotations"][key] = value.clone();
    }
    for change in patch["spec"]["containers"].as_array().into_iter().flatten() {
        for container in pod["spec"]["containers"].as_array_mut().unwrap() {
            if container["name"] == change["name"] {
                container["image"] = change["image"].clone();
            }
        }
    }
}

fn judged(pod: &Value, spec: &Spec) -> Judged {
    let view: PodView = serde_json::from_value(pod.clone()).unwrap();
    let annotations = pod["metadata"]["annotations"].as_object().unwrap();
    let seen = SidecarPod::of(&view, annotations, PodNotes::of_set(annotations, &spec.name).unwrap());
    assert!(seen.is_managed(spec));
    seen.judge(spec)
}

fn planned(pod: &Value, spec: &Spec) -> Plan {
    plan::plan(spec, &[judged(pod, spec)], &Turns::default())
}

fn image<'p>(pod: &'p Value, name: &str) -> &'p str {
    let mut containers = pod["spec"]["containers"].as_array().unwrap().iter();
    containers.find(|container| container["name"] == name).unwrap()["image"].as_str().unwrap()
}

/// What happens to the Pod next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// This SidecarSet updates it.
    Update(usize),
    /// This SidecarSet resets its twins.
    Reset(usize),
    /// Kubelet acts; these containers are not ready.
    Kubelet(&'static [&'static str]),
}

#[test]
fn a20_two_sets_upgrade_their_twins_in_one_pod_in_any_order() {
    use Step::{Kubelet, Reset, Update};
    let specs = NAMES.map(|name| Spec::of(&set(name, "a:2")).unwrap());
    let both_have_ended = Kubelet(&["mesh-1", "log-1"]);
    let all = Kubelet(&[]);
    let histories: [&[Step]; 8] = [
        &[Update(0), Update(1), all, Reset(0), Reset(1), all],
        &[Update(1), Update(0), all, Reset(1), Reset(0), all],
        // The old twins end by themselves when they have handed over: neither waits for the other one.
        &[Update(0), Update(1), both_have_ended, Reset(0), Reset(1), all],
        &[Update(1), Update(0), both_have_ended, Reset(1), Kubelet(&["mesh-1"]), Reset(0), all],
        // One resets while the other one updates.
        &[Update(0), all, Reset(0), Update(1), all, Reset(1), all],
        &[Update(0), all, Update(1), Reset(0), all, Reset(1), all],
        &[Update(1), Kubelet(&["log-1"]), Update(0), Reset(1), all, Reset(0), all],
        // One after the other.
        &[Update(0), all, Reset(0), all, Update(1), all, Reset(1), all],
    ];
    for history in histories {
        let mut pod = created(NAMES);
        kubelet(&mut pod, &[]);
        for step in history {
            match *step {
                Kubelet(unready) => kubelet(&mut pod, unready),
                Update(set) => {
                    let Plan { reset, update, .. } = planned(&pod, &specs[set]);
                    assert_eq!((reset.len(), update.len()), (0, 1), "{step:?} of {history:?}");
                    let patch = write::update(&specs[set], &pod, "r", now()).unwrap();
                    written(&mut pod, &patch);
                    assert!(!judged(&pod, &specs[set]).needs_reset, "kubelet has not acted: {history:?}");
                }
                Reset(set) => {
                    let Plan { reset, update, .. } = planned(&pod, &specs[set]);
                    assert_eq!((reset.len(), update.len()), (1, 0), "{step:?} of {history:?}");
                    let patch = write::reset(&specs[set], &pod, now()).unwrap();
                    written(&mut pod, &patch);
                }
            }
        }
        for (name, spec) in NAMES.iter().zip(&specs) {
            let Judged { standing, is_ready, needs_reset, .. } = judged(&pod, spec);
            assert_eq!((standing, is_ready, needs_reset), (Standing::Updated, true, false), "{name} of {history:?}");
            let images = [1, 2].map(|twin| image(&pod, &format!("{name}-{twin}")));
            assert_eq!(images, ["empty:1", "a:2"], "{history:?}");
        }
    }
}

#[test]
fn a20_no_twin_is_reset_while_the_new_one_of_another_set_keeps_the_pod_down() {
    let specs = NAMES.map(|name| Spec::of(&set(name, "a:2")).unwrap());
    for (unready, resets) in [
        (&["log-2"][..], [false, false]),
        (&["mesh-1", "log-2"][..], [false, false]),
        (&["mesh-1", "log-1"][..], [true, true]),
        (&["mesh-1"][..], [true, true]),
        (&["main", "mesh-1", "log-1"][..], [false, false]),
    ] {
        let mut pod = created(NAMES);
        kubelet(&mut pod, &[]);
        for spec in &specs {
            let patch = write::update(spec, &pod, "r", now()).unwrap();
            written(&mut pod, &patch);
        }
        kubelet(&mut pod, unready);
        assert_eq!(specs.each_ref().map(|spec| judged(&pod, spec).needs_reset), resets, "{unready:?}");
    }
}

#[test]
fn the_order_in_which_two_sets_come_changes_nothing_of_a_new_pod() {
    let [first, second] = NAMES;
    assert_eq!(created([first, second]), created([second, first]));
}
