use serde_json::json;

use super::*;
use crate::{domain::kinds::sidecar_set::hash::Hashes, k8s::selector::Selector};

const RECORDED: &str = include_str!("../testdata/updated.json");
const SETS: &str = include_str!("../../../../api/apps/testdata/sidecar_sets.json");

/// The recorded Pod before and after its update.
fn recorded() -> [Value; 2] {
    serde_json::from_str(RECORDED).unwrap()
}

/// The recorded SidecarSet before and after.
fn sets() -> [Spec; 2] {
    let sets: Vec<Value> = serde_json::from_str(SETS).unwrap();
    [sets.first(), sets.last()].map(|set| Spec::of(set.unwrap()).unwrap())
}

fn with<T>(pod: &Value, look: impl FnOnce(&mut SidecarPod<'_>) -> T) -> T {
    let view: PodView = serde_json::from_value(pod.clone()).unwrap();
    let annotations = pod["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    let mut seen = SidecarPod::of(&view, &annotations, PodNotes::read(&annotations).unwrap());
    for status in pod["status"]["containerStatuses"].as_array().into_iter().flatten() {
        let text = |key: &str| status[key].as_str().unwrap_or_default().to_owned();
        seen.running.insert(text("name"), text("image"));
    }
    look(&mut seen)
}

fn judged(pod: &Value, spec: &Spec) -> Judged {
    with(pod, |seen| seen.judge(spec))
}

#[test]
fn the_recorded_pod_waits_and_then_is_updated() {
    let ([before, after], [old, new]) = (recorded(), sets());
    for (pod, spec, standing) in [
        (&before, &old, Standing::Updated),
        (&before, &new, Standing::Waiting),
        (&after, &new, Standing::Updated),
        (&after, &old, Standing::Waiting),
    ] {
        assert!(with(pod, |seen| seen.is_managed(spec)));
        let judged = judged(pod, spec);
        assert_eq!(judged.standing, standing);
        assert!(judged.is_ready && judged.is_in_service && !judged.needs_reset);
    }
    assert_eq!(judged(&after, &new).revision, "golden-sidecar-5c698cf546");
}

#[test]
fn a18_6_a_pod_says_that_it_can_be_updated_after_its_first_update_and_no_only_for_other_changes() {
    let ([before, after], [old, new]) = (recorded(), sets());
    let says = |pod: &Value, message: Option<&str>, spec: &Spec| {
        let mut pod = pod.clone();
        let conditions = pod["status"]["conditions"].as_array().unwrap().iter();
        let mut conditions: Vec<Value> = conditions.filter(|c| c["type"] != "SidecarSetUpgradable").cloned().collect();
        conditions.extend(message.map(|message| json!({"type": "SidecarSetUpgradable", "message": message})));
        pod["status"]["conditions"] = conditions.into();
        judged(&pod, spec).upgradable
    };
    let (yes, no) = (Some(r#"{"golden-sidecar":true}"#), Some(r#"{"golden-sidecar":false,"x":true}"#));
    let mut other = sets()[1].clone();
    other.hashes = Hashes { hash: "h".into(), without_image: "w".into() };
    let paused = Spec { paused: true, ..other.clone() };
    let not_update = Spec { updates: false, ..other.clone() };
    let selector = Selector::of(&serde_json::from_value(json!({"matchLabels": {"no": "body"}})).unwrap()).unwrap();
    let unselected = Spec { selector: Some(selector), ..other.clone() };
    for (pod, message, spec, wanted) in [
        (&before, None, &old, None),
        (&before, None, &new, None),
        (&before, no, &new, None),
        (&after, None, &new, Some(true)),
        (&after, yes, &new, None),
        (&after, no, &new, Some(true)),
        (&before, no, &old, Some(true)),
        (&before, None, &other, Some(false)),
        (&before, no, &other, None),
        (&after, yes, &other, Some(false)),
        (&before, None, &paused, None),
        (&before, None, &not_update, None),
        (&before, None, &unselected, None),
    ] {
        assert_eq!(says(pod, message, spec), wanted, "{message:?}");
    }
}

#[test]
fn a16_who_is_managed() {
    let ([before, _], [_, spec]) = (recorded(), sets());
    for (change, wanted) in [
        (json!({}), true),
        (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), false),
        (json!({"status": {"phase": "Succeeded"}}), false),
        (json!({"metadata": {"annotations": {"kruise.io/sidecarset-injected-list": "other"}}}), false),
        (json!({"metadata": {"annotations": {"kruise.io/sidecarset-injected-list": "a,golden-sidecar"}}}), true),
        (json!({"spec": {"containers": [{"name": "main", "image": "a"}]}}), false),
    ] {
        let mut pod = before.clone();
        json_patch::merge(&mut pod, &change);
        assert_eq!(with(&pod, |seen| seen.is_managed(&spec)), wanted, "{change}");
    }
}

/// The updated Pod while its container still runs the old image.
fn under_way() -> Value {
    let [before, mut after] = recorded();
    after["status"] = before["status"].clone();
    after["status"]["observedGeneration"] = after["metadata"]["generation"].clone();
    after
}

#[test]
fn a19_an_update_is_done_when_another_image_runs() {
    let [_, spec] = sets();
    let judge = |pod: &Value| judged(pod, &spec).is_ready;
    let pod = under_way();
    assert!(!judge(&pod));
    // E19: the same image under another name.
    let mut same = pod.clone();
    same["status"]["containerStatuses"][0]["image"] = "busybox:1.35".into();
    assert!(judge(&same), "the digest is the one of before");
    // The same digest, and a name that the runtime chose: another instance tells.
    let state = |with: Value| {
        let mut before = json!({"imageID": pod["status"]["containerStatuses"][0]["imageID"]});
        json_patch::merge(&mut before, &with);
        let mut pod = pod.clone();
        pod["metadata"]["annotations"]["kruise.io/sidecarset-inplace-update-state"] =
            json!({"golden-sidecar": {"revision": "r", "updateTimestamp": "t", "lastContainerStatuses": {"agent": before}}}).to_string().into();
        pod
    };
    let running = pod["status"]["containerStatuses"][0]["containerID"].clone();
    assert!(!judge(&state(json!({"containerID": running}))));
    let another = state(json!({"containerID": "containerd://before"}));
    assert!(!judge(&{
        let mut behind = another.clone();
        behind["metadata"]["generation"] = 9.into();
        behind["status"]["observedGeneration"] = 8.into();
        behind
    }));
    let mut observed = another;
    observed["metadata"]["generation"] = 9.into();
    observed["status"]["observedGeneration"] = 9.into();
    assert!(judge(&observed));
}

/// A19.3 has it the other way round: then whoever may write annotations of one Pod holds up the update of all.
#[test]
fn a19_notes_of_an_update_that_cannot_be_read_count_like_none() {
    let ([before, after], [_, spec]) = (recorded(), sets());
    for (pod, standing) in [(before, Standing::Waiting), (after, Standing::Updated)] {
        let mut odd = pod;
        odd["metadata"]["annotations"]["kruise.io/sidecarset-inplace-update-state"] = "x".into();
        let judged = judged(&odd, &spec);
        assert_eq!((judged.standing, judged.is_ready, judged.was_updated), (standing, true, false));
    }
}

#[test]
fn a17_what_an_update_has_noted_of_the_pod_before_it_is_read() {
    let ([_, mut after], [_, spec]) = (recorded(), sets());
    assert!(!judged(&after, &spec).was_unavailable);
    after["metadata"]["annotations"]["kruise.io/sidecarset-inplace-update-state"] =
        json!({"golden-sidecar": {"wasUnavailable": true}, "other": {}}).to_string().into();
    let found = judged(&after, &spec);
    assert!(found.was_unavailable && found.was_updated);
}

/// A bad image that breaks a Pod after it has been in service would go on to all others.
#[test]
fn a17_what_was_down_before_an_update_counts_once_it_has_been_in_service() {
    let ([_, mut after], [_, spec]) = (recorded(), sets());
    let state = json!({"golden-sidecar": {"wasUnavailable": true, "updateTimestamp": "2026-11-21T09:51:19Z"}});
    after["metadata"]["annotations"]["kruise.io/sidecarset-inplace-update-state"] = state.to_string().into();
    for (changed, wanted) in [("2026-11-21T09:51:18Z", true), ("2026-11-21T09:55:00Z", false)] {
        for condition in after["status"]["conditions"].as_array_mut().unwrap() {
            if condition["type"] == "Ready" {
                (condition["status"], condition["lastTransitionTime"]) = ("False".into(), changed.into());
            }
        }
        assert_eq!(judged(&after, &spec).was_unavailable, wanted, "{changed}");
    }
}

/// The updated Pod with an image by digest; the runtime reports `runs` as its image ID, and `before` is noted of its container.
fn by_digest(digest: &str, runs: &str, before: Option<Value>) -> (Value, Spec) {
    let ([_, mut spec], [_, mut pod]) = (sets(), recorded());
    spec.sidecars[0].image = format!("docker.io/library/busybox:1.35@{digest}");
    pod["spec"]["containers"][0]["image"] = spec.sidecars[0].image.clone().into();
    pod["status"]["containerStatuses"][0]["imageID"] = runs.into();
    let state =
        before.map(|before| json!({"golden-sidecar": {"lastContainerStatuses": {"agent": before}}}).to_string());
    pod["metadata"]["annotations"]["kruise.io/sidecarset-inplace-update-state"] = state.into();
    (pod, spec)
}

/// As OpenKruise notes updates.
#[test]
fn e19_where_no_instance_was_noted_digests_are_compared_and_not_the_repositories_of_mirrors() {
    let (digest, other) = (format!("sha256:{}", "ab".repeat(32)), format!("sha256:{}", "cd".repeat(32)));
    let (mirrored, old) = (format!("mirror.example/busybox@{digest}"), format!("docker.io/library/busybox@{other}"));
    for (runs, before, wanted) in [
        (&mirrored, json!({"imageID": mirrored}), true),
        (&mirrored, json!({"imageID": old}), true),
        (&old, json!({"imageID": old}), false),
        (&old, json!({"imageID": mirrored}), true),
    ] {
        let (pod, spec) = by_digest(&digest, runs, Some(before.clone()));
        assert_eq!(judged(&pod, &spec).is_ready, wanted, "{runs} {before}");
    }
}

/// Kubelet restarts a container for any other text of its image.
#[test]
fn e19_an_update_to_an_image_of_the_same_digest_ends_with_another_instance_and_not_before() {
    let (digest, other) = (format!("sha256:{}", "ab".repeat(32)), format!("sha256:{}", "cd".repeat(32)));
    let (same, another) = (format!("docker.io/library/busybox@{digest}"), format!("docker.io/library/busybox@{other}"));
    let now = recorded()[1]["status"]["containerStatuses"][0]["containerID"].clone();
    let before = |instance: &Value| Some(json!({"imageID": same, "containerID": instance}));
    let earlier = json!("containerd://before");
    for (runs, before, is_behind, wanted) in [
        (&same, before(&now), false, false),
        (&same, before(&earlier), true, false),
        (&same, before(&earlier), false, true),
        // The runtime reports another digest of the image, as of an index and of what is in it.
        (&another, before(&earlier), false, true),
        (&another, before(&now), false, false),
        (&another, None, false, true),
    ] {
        let (mut pod, spec) = by_digest(&digest, runs, before.clone());
        let seen = if is_behind { 8 } else { 9 };
        (pod["metadata"]["generation"], pod["status"]["observedGeneration"]) = (9.into(), seen.into());
        let judged = judged(&pod, &spec);
        assert_eq!((judged.standing, judged.is_ready), (Standing::Updated, wanted), "{runs} {before:?} {is_behind}");
    }
    // Back to the image that the noted instance was made of, before kubelet acted on another one.
    let (pod, _) = by_digest(&digest, &another, None);
    for (image, wanted) in [(pod["spec"]["containers"][0]["image"].clone(), true), (json!("x:1"), false)] {
        let (pod, spec) = by_digest(&digest, &another, Some(json!({"imageID": another, "image": image})));
        assert_eq!(judged(&pod, &spec).is_ready, wanted, "{image}");
    }
}

#[test]
fn d17_an_update_under_way_waits_and_d18_a_broken_one_does_not() {
    let [old, _] = sets();
    let mut pod = under_way();
    assert_eq!(judged(&pod, &old).standing, Standing::InFlight);
    pod["status"]["containerStatuses"][0]["ready"] = false.into();
    pod["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
    let judged = judged(&pod, &old);
    assert_eq!((judged.standing, judged.is_in_service), (Standing::Waiting, false));
}

#[test]
fn what_images_do_not_say_cannot_be_updated_in_place() {
    let ([before, _], [_, mut spec]) = (recorded(), sets());
    spec.hashes.without_image = "other".into();
    assert_eq!(judged(&before, &spec).standing, Standing::NotUpgradable(NotUpgradable::OtherChange));
}

/// A Pod with a native sidecar and the SidecarSet that put it there.
fn native() -> (Value, Spec) {
    let set = |image: &str| {
        let init = json!([{"name": "mesh", "image": image, "restartPolicy": "Always"}]);
        Spec::of(&json!({"metadata": {"name": "mesh"}, "spec": {"initContainers": init}})).unwrap()
    };
    let (old, new) = (set("m:1"), set("m:2"));
    let note = |hash: &str| json!({"mesh": {"hash": hash, "sidecarList": ["mesh"]}}).to_string();
    let pod = json!({"metadata": {"name": "p", "annotations": {"kruise.io/sidecarset-injected-list": "mesh",
        "kruise.io/sidecarset-hash": note(&old.hashes.hash), "kruise.io/sidecarset-hash-without-image": note(&old.hashes.without_image)}},
        "spec": {"containers": [{"name": "main", "image": "a:1"}], "initContainers": [{"name": "mesh", "image": "m:1", "restartPolicy": "Always"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
        "initContainerStatuses": [{"name": "mesh", "ready": true, "imageID": "m@1", "image": "m:1"}]}});
    (pod, new)
}

#[test]
fn native_sidecars_are_updated_in_place_by_kubelets_from_1_32_on() {
    let (pod, spec) = native();
    for (minor, standing) in [
        (Some(31), Standing::NotUpgradable(NotUpgradable::KubeletTooOld)),
        (Some(32), Standing::Waiting),
        (None, Standing::Waiting),
    ] {
        let judged = with(&pod, |seen| {
            assert!(seen.is_managed(&spec));
            seen.kubelet_minor = minor;
            seen.judge(&spec)
        });
        assert_eq!(judged.standing, standing, "{minor:?}");
    }
}

/// Init containers can be added to a SidecarSet; Pods that are there never get them.
#[test]
fn a19_a_native_sidecar_that_came_later_makes_no_pod_unready() {
    let ([before, _], [old, _]) = (recorded(), sets());
    let mut spec = old;
    spec.hashes = Hashes { hash: "h".into(), without_image: "w".into() };
    spec.sidecars.push(Sidecar { name: "later".into(), image: "l:1".into(), empty_image: None, is_native: true });
    let judged = with(&before, |seen| {
        assert!(seen.is_managed(&spec));
        seen.judge(&spec)
    });
    assert_eq!(judged.standing, Standing::NotUpgradable(NotUpgradable::OtherChange));
    assert!(judged.is_ready, "readyPods counts it");
}

/// A Pod whose twins run these images, the first one at work.
fn hot(images: [&str; 2], is_ready: bool) -> (Value, Spec) {
    let way = json!({"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "empty:1"});
    let spec = json!({"containers": [{"name": "mesh", "image": images[0], "upgradeStrategy": way}]});
    let spec = Spec::of(&json!({"metadata": {"name": "mesh"}, "spec": spec})).unwrap();
    let note = json!({"mesh": {"hash": spec.hashes.hash}}).to_string();
    let without_image = json!({"mesh": {"hash": spec.hashes.without_image}}).to_string();
    let status = |name: &str, image: &str| json!({"name": name, "ready": is_ready, "image": image, "imageID": image});
    let pod = json!({"metadata": {"annotations": {"kruise.io/sidecarset-injected-list": "mesh", "kruise.io/sidecarset-hash": note,
        "kruise.io/sidecarset-hash-without-image": without_image,
        "kruise.io/sidecarset-working-hotupgrade-container": r#"{"mesh":"mesh-1"}"#}},
        "spec": {"containers": [{"name": "mesh-1", "image": images[0]}, {"name": "mesh-2", "image": images[1]}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": if is_ready { "True" } else { "False" }}],
        "containerStatuses": [status("mesh-1", images[0]), status("mesh-2", images[1])]}});
    (pod, spec)
}

#[test]
fn a20_a_twin_is_reset_when_the_other_one_is_ready() {
    for (images, is_ready, resets, counts) in [
        (["m:2", "m:1"], true, true, false),
        (["m:2", "m:1"], false, false, false),
        (["m:2", "empty:1"], true, false, true),
    ] {
        let (pod, spec) = hot(images, is_ready);
        assert!(with(&pod, |seen| seen.is_managed(&spec)));
        let judged = judged(&pod, &spec);
        assert_eq!((judged.needs_reset, judged.is_ready), (resets, counts), "{images:?} {is_ready}");
    }
    let (mut pod, spec) = hot(["m:2", "m:1"], true);
    pod["status"]["conditions"][0]["status"] = "False".into();
    pod["status"]["containerStatuses"][1]["ready"] = false.into();
    assert!(judged(&pod, &spec).needs_reset, "the old twin is all that keeps the Pod down");
}

/// Another empty image is another container: it would be written to all Pods at once, and only new Pods get the rest of it.
#[test]
fn a_twin_at_rest_is_not_reset_for_another_empty_image() {
    for (images, before, resets) in [
        // As it was made.
        (["m:1", "empty:0"], None, false),
        (["m:2", "empty:0"], Some("empty:0"), false),
        // The version before is still there.
        (["m:2", "m:1"], Some("empty:0"), true),
        // OpenKruise does not say what the working twin had before.
        (["m:2", "empty:0"], Some(""), true),
    ] {
        let (mut pod, spec) = hot(images, true);
        let annotations = &mut pod["metadata"]["annotations"];
        let same = annotations.clone();
        for key in ["kruise.io/sidecarset-hash", "kruise.io/sidecarset-hash-without-image"] {
            annotations[key] = json!({"mesh": {"hash": "other"}}).to_string().into();
        }
        if let Some(image) = before {
            let state = json!({"mesh": {"lastContainerStatuses": {"mesh-1": {"imageID": "before", "image": image}}}});
            annotations["kruise.io/sidecarset-inplace-update-state"] = state.to_string().into();
        }
        let told = judged(&pod, &spec);
        assert_eq!((told.needs_reset, told.is_ready), (resets, !resets), "{images:?} {before:?}");
        assert_eq!(told.standing, Standing::NotUpgradable(NotUpgradable::OtherChange));
        // Of the containers as they are now it is the twin of an update that is not over.
        pod["metadata"]["annotations"] = same;
        assert!(judged(&pod, &spec).needs_reset);
    }
}

#[test]
fn a_twin_that_is_missing_belongs_to_another_set() {
    let (mut pod, spec) = hot(["m:2", "m:1"], true);
    pod["spec"]["containers"].as_array_mut().unwrap().pop();
    assert!(!with(&pod, |seen| seen.is_managed(&spec)), "D21");
    let (mut pod, spec) = hot(["m:2", "m:1"], true);
    pod["metadata"]["annotations"]["kruise.io/sidecarset-working-hotupgrade-container"] = "{}".into();
    assert!(!with(&pod, |seen| seen.is_managed(&spec)));
}
