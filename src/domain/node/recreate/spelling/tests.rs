use proptest::prelude::*;
use serde_json::json;

use super::*;

const D: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const E: &str = "sha256:eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

/// A Pod with one container, as kubelet restarts it.
struct Kubelet {
    pod: serde_json::Value,
    /// Its real back-off, by spelling: seconds and when last used.
    entries: BTreeMap<String, (u32, i64)>,
    exit: Option<i64>,
}

impl Kubelet {
    fn new(image: &str, image_id: &str) -> Self {
        let pod = json!({
            "metadata": {"annotations": {}},
            "spec": {"containers": [{"name": "c", "image": image}]},
            "status": {"containerStatuses": [{"name": "c", "imageID": image_id, "restartCount": 0, "state": {"running": {"startedAt": at(-5)}}}]},
        });
        Self { pod, entries: BTreeMap::new(), exit: None }
    }

    fn view(&self) -> PodView {
        serde_json::from_value(self.pod.clone()).unwrap()
    }

    fn choose(&self, vary: bool, second: i64) -> Result<Choice, Unsuitable> {
        let pod = self.view();
        choose(&pod.spec.containers[0], &pod.container_statuses[0], &Spellings::of(&pod), (vary, None), at(second))
    }

    fn predicted_after_stop(&self, second: i64) -> u64 {
        let pod = self.view();
        wait_after_stop(&pod.spec.containers[0], &pod.container_statuses[0], &Spellings::of(&pod), at(second)).as_secs()
    }

    /// What kubelet does: it stops, and starts at once or after the wait; how long it waited.
    fn restart(&mut self, image: &str, second: i64, exit_before_check: bool) -> i64 {
        let exit = if exit_before_check { Some(second) } else { self.exit };
        let entry = self.entries.get(image).copied().filter(|(_, used)| exit.is_some_and(|exit| exit - used <= 600));
        let mut wait = 0;
        if let (Some((backoff, _)), Some(exit)) = (entry, exit)
            && second - exit < i64::from(backoff)
        {
            wait = i64::from(backoff);
        }
        let start = second + wait;
        if exit.is_some() {
            self.entries.insert(image.into(), (entry.map_or(10, |(backoff, _)| (backoff * 2).min(300)), start));
        }
        self.exit = Some(second);
        let status = &mut self.pod["status"]["containerStatuses"][0];
        status["restartCount"] = json!(status["restartCount"].as_i64().unwrap() + 1);
        status["lastState"] = json!({"terminated": {"exitCode": 0, "finishedAt": at(second)}});
        status["state"] = json!({"running": {"startedAt": at(start)}});
        self.pod["spec"]["containers"][0]["image"] = image.into();
        wait
    }

    /// A restart by a request: the image that was chosen, what was predicted, and what kubelet did.
    fn respell(&mut self, vary: bool, second: i64) -> (String, u64, i64) {
        let choice = self.choose(vary, second).unwrap();
        let mut spellings = Spellings::of(&self.view());
        spellings.note("c", &choice);
        self.pod["metadata"]["annotations"]["kruise.rs/image-spellings"] = spellings.to_annotation().into();
        let waited = self.restart(&choice.image, second, false);
        (choice.image, choice.wait.as_secs(), waited)
    }
}

fn id(name: &str) -> String {
    format!("{name}@{D}")
}

#[test]
fn two_spellings_give_three_quick_restarts_and_the_fourth_waits_as_predicted() {
    let mut kubelet = Kubelet::new("r.example/app:v1", &id("r.example/app"));
    let (tagged, plain) = (format!("r.example/app:v1@{D}"), format!("r.example/app@{D}"));
    assert_eq!(kubelet.respell(false, 0), (tagged.clone(), 0, 0));
    assert_eq!(kubelet.respell(false, 3), (plain.clone(), 0, 0));
    assert_eq!(kubelet.respell(false, 6), (tagged, 0, 0));
    assert_eq!(kubelet.respell(false, 9), (plain, 10, 10));
}

#[test]
fn at_some_distance_two_spellings_serve_any_number_for_a_while() {
    let mut kubelet = Kubelet::new("r.example/app:v1", &id("r.example/app"));
    for i in 0..6 {
        let (image, predicted, waited) = kubelet.respell(false, i * 45);
        assert_eq!((predicted, waited), (0, 0), "{i}: {image}");
    }
}

#[test]
fn varied_tags_serve_any_number_at_any_distance() {
    let mut kubelet = Kubelet::new("app", &id("docker.io/library/app"));
    let mut seen = std::collections::BTreeSet::new();
    for i in 0..40 {
        let (image, predicted, waited) = kubelet.respell(true, i * 3);
        assert_eq!((predicted, waited), (0, 0), "{i}: {image}");
        assert!(image.ends_with(D) && image.starts_with("app"), "{image}");
        seen.insert(image);
    }
    assert!(seen.contains(&format!("app:latest-r1@{D}")), "{seen:?}");
    assert!(kubelet.pod["metadata"]["annotations"]["kruise.rs/image-spellings"].as_str().unwrap().len() < 2000);
}

#[test]
fn a_long_tag_is_cut_so_that_a_varied_one_is_still_a_tag() {
    let mut kubelet = Kubelet::new(&format!("app:{}", "t".repeat(128)), &id("docker.io/library/app"));
    for i in 0..6 {
        let (image, ..) = kubelet.respell(true, i);
        assert!(ImageRef::parse(&image).is_some(), "{image}");
    }
}

#[test]
fn the_name_stays_as_the_user_wrote_it() {
    for (image, repository) in [
        ("busybox:1", "docker.io/library/busybox"),
        ("docker.io/busybox:1", "docker.io/library/busybox"),
        ("localhost:5000/a:1", "localhost:5000/a"),
    ] {
        let name = image.strip_suffix(":1").unwrap();
        assert_eq!(Kubelet::new(image, &id(repository)).choose(false, 0).unwrap().image, format!("{image}@{D}"));
        let pinned = format!("{image}@{D}");
        let chosen = Kubelet::new(&pinned, &id(repository)).choose(false, 0).unwrap().image;
        assert_eq!(chosen, format!("{name}@{D}"));
    }
}

#[test]
fn the_digest_of_the_definition_wins_over_that_of_the_running_instance() {
    // An update in place that kubelet has not carried out yet must not be taken back.
    let updated = Kubelet::new(&format!("app:v2@{E}"), &id("docker.io/library/app"));
    assert_eq!(updated.choose(false, 0).unwrap().image, format!("app@{E}"));
}

#[test]
fn images_without_a_sure_spelling_are_refused_with_the_reason() {
    let refused = |image: &str, image_id: &str| Kubelet::new(image, image_id).choose(true, 0).unwrap_err().to_string();
    let no_digest = "its image \"app:v1\" has no registry digest: the imageID in its status is ";
    for image_id in ["", "sha256:0123", D, "docker.io/library/app"] {
        assert!(refused("app:v1", image_id).starts_with(no_digest), "{image_id}");
    }
    assert_eq!(
        refused("app:v1", &id("quay.example/app")),
        "its image \"app:v1\" means the repository docker.io/library/app, but the running image came from quay.example/app"
    );
    assert!(refused("a b", &id("docker.io/library/app")).contains("is no name in a registry"));
    assert!(Kubelet::new("app", &format!("docker-pullable://{}", id("app"))).choose(false, 0).is_ok());
}

#[test]
fn stops_in_the_runtime_are_predicted() {
    let mut kubelet = Kubelet::new("app:v1", &id("docker.io/library/app"));
    assert_eq!(kubelet.predicted_after_stop(0), 0);
    for (second, expected) in [(0, 0), (3, 10), (30, 20), (80, 40)] {
        assert_eq!(kubelet.predicted_after_stop(second), u64::try_from(expected).unwrap(), "{second}");
        assert_eq!(kubelet.restart("app:v1", second, true), expected, "{second}");
    }
    assert_eq!(kubelet.predicted_after_stop(1000), 0, "forgotten");
}

#[test]
fn a_restarted_container_whose_last_state_kubelet_cleaned_up_is_held_back_all_the_same() {
    let mut kubelet = Kubelet::new("app:v1", &id("docker.io/library/app"));
    kubelet.restart("app:v1", 0, true);
    kubelet.pod["status"]["containerStatuses"][0].as_object_mut().unwrap().remove("lastState");
    assert_eq!(kubelet.predicted_after_stop(3), 10);
    assert_eq!(kubelet.restart("app:v1", 3, true), 10);
    assert_eq!(kubelet.predicted_after_stop(1000), 0, "forgotten");
}

#[test]
fn a_stop_after_a_free_spelling_is_free_and_the_next_one_is_not() {
    let mut kubelet = Kubelet::new("app:v1", &id("docker.io/library/app"));
    let (tagged, ..) = kubelet.respell(false, 0);
    assert_eq!(kubelet.predicted_after_stop(3), 0);
    assert_eq!(kubelet.restart(&tagged, 3, true), 0);
    assert_eq!(kubelet.predicted_after_stop(6), 10);
    assert_eq!(kubelet.restart(&tagged, 6, true), 10);
    // Back to the other spelling and then to this one: its back-off is known from the restarts in between.
    assert_eq!(kubelet.respell(false, 20).1, 0);
    let (image, predicted, waited) = kubelet.respell(false, 23);
    assert_eq!((predicted, i64::try_from(predicted).unwrap()), (20, waited), "{image}");
}

#[test]
fn another_image_begins_a_new_history() {
    let mut kubelet = Kubelet::new("app:v1", &id("docker.io/library/app"));
    kubelet.respell(false, 0);
    kubelet.pod["spec"]["containers"][0]["image"] = "app:v2".into();
    kubelet.pod["status"]["containerStatuses"][0]["imageID"] = format!("docker.io/library/app@{E}").into();
    assert_eq!(kubelet.choose(false, 100).unwrap().image, format!("app:v2@{E}"));
}

#[test]
fn another_spelling_is_no_other_image() {
    for (then, now, changed) in [
        ("app:v1", "app:v1".to_owned(), false),
        ("app:v1", format!("app:v1@{D}"), false),
        (&format!("app:v1@{D}"), format!("app@{D}"), false),
        ("app:v1", "app:v2".to_owned(), true),
        (&format!("app@{D}"), "app".to_owned(), true),
        (&format!("app@{D}"), format!("app@{E}"), true),
        ("app:v1", format!("docker.io/app:v1@{D}"), true),
    ] {
        assert_eq!(was_changed(then, &now), changed, "{then} -> {now}");
    }
}

#[test]
fn a_choice_that_was_recorded_is_kept_and_a_forged_one_is_not() {
    let kubelet = Kubelet::new("app:v1", &id("docker.io/library/app"));
    let pod = kubelet.view();
    let chosen = |before: &str| {
        let (container, status) = (&pod.spec.containers[0], &pod.container_statuses[0]);
        choose(container, status, &Spellings::default(), (false, Some(before)), at(0)).unwrap().image
    };
    assert_eq!(chosen(&format!("app@{D}")), format!("app@{D}"));
    for forged in ["", "app:v1", "app", &format!("app@{E}"), &format!("evil@{D}")] {
        assert_eq!(chosen(forged), format!("app:v1@{D}"), "{forged}");
    }
}

proptest! {
    #[test]
    fn any_annotation_and_image_leave_a_spelling_that_denotes_the_same(
        annotation in "\\PC{0,60}|\\{\"c\":\\{\"name\":\"app\",\"digest\":\"sha256:0{64}\",\"tag\":\"\\PC{0,5}\",\"used\":\\[\\{\"image\":\"app\",\"backoff\":99999\\}\\]\\}\\}",
        tag in "(:[a-z0-9._-]{1,130})?", pinned: bool, vary: bool, restarts in 0i32..5,
    ) {
        let digest = if pinned { format!("@{D}") } else { String::new() };
        let mut kubelet = Kubelet::new(&format!("app{tag}{digest}"), &id("docker.io/library/app"));
        kubelet.pod["metadata"]["annotations"]["kruise.rs/image-spellings"] = annotation.into();
        kubelet.pod["status"]["containerStatuses"][0]["restartCount"] = restarts.into();
        if let Ok(choice) = kubelet.choose(vary, 0) {
            let spelled = ImageRef::parse(&choice.image);
            prop_assert!(spelled.is_some_and(|s| s.name == "app" && s.digest == Some(D)), "{}", choice.image);
            prop_assert!(*choice.image != *kubelet.view().spec.containers[0].image);
        }
    }
}
