//! Spellings of a container's image that denote exactly the same bytes, and how long kubelet would wait with each.
//!
//! kubelet restarts a container whose image is spelled differently. Where the digest decides, the tag before it means
//! nothing: `N:t@d`, `N@d` and `N:anything@d` are one image, already on the node. A bare tag is never chosen: kubelet
//! stops the container before it looks for the image, and a tag may mean another image by now.
//!
//! kubelet's back-off belongs to the spelling: the first restart of a container, and the first restart into a spelling,
//! are free; a later restart into it begins no sooner than 10 s (then 20, 40 ... 300) after the container's last exit.
//! An entry that was not used for ten minutes is forgotten. What was used is remembered in an annotation of the Pod.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::k8s::{
    image::{ImageRef, LONGEST_TAG, is_tag},
    pod::{ContainerState, ContainerStatusView, ContainerView, PodView},
    time::whole_seconds,
};

/// kubelet's first wait.
const FIRST_WAIT: u32 = 10;
/// kubelet's longest wait.
const LONGEST_WAIT: u32 = 300;
/// So long after its last use kubelet forgets a back-off.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// So many used spellings are read for each container; we write fewer.
const REMEMBERED: usize = 8;

/// Why an image cannot be spelled in another way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsuitable {
    /// Not `name[:tag][@digest]`.
    #[error("its image {image:?} is no name in a registry")]
    NoReference {
        /// The image.
        image: String,
    },
    /// The image was never pulled, or the runtime does not say from where.
    #[error(
        "its image {image:?} has no registry digest: the imageID in its status is {image_id:?}, want <repository>@<digest>"
    )]
    NoDigest {
        /// The image.
        image: String,
        /// The imageID.
        image_id: String,
    },
    /// The name means another repository than the one that the running image came from.
    #[error("its image {image:?} means the repository {named}, but the running image came from {running}")]
    OtherRepository {
        /// The image.
        image: String,
        /// What the name means.
        named: String,
        /// What the imageID says.
        running: String,
    },
}

/// The annotation: what was used, by container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Spellings(BTreeMap<String, History>);

/// What was used for one container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// The name as the user wrote it. Together with the digest it says which image this is about.
    name: String,
    /// The digest.
    digest: String,
    /// The tag that the user wrote.
    tag: String,
    /// How many tags were made up.
    #[serde(skip_serializing_if = "is_zero")]
    varied: u32,
    /// Oldest first.
    used: Vec<Used>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Used {
    image: String,
    /// When kubelet was last told to start the container under it.
    at: Timestamp,
    /// Seconds that kubelet waits before the next start under it; 0 for none.
    #[serde(skip_serializing_if = "is_zero")]
    backoff: u32,
    /// Restart count of the instance that it replaced.
    restarts: i32,
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// A spelling to use next.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The image, spelled differently.
    pub image: String,
    /// How long kubelet will wait after the stop before it starts it.
    pub wait: Duration,
    /// What to remember once it is used.
    history: History,
}

impl Spellings {
    /// What a Pod's annotation says; what cannot be read counts as nothing.
    pub fn of(pod: &PodView) -> Self {
        let text = pod.image_spellings.as_deref().unwrap_or_default();
        let mut all: Self = serde_json::from_str(text).unwrap_or_default();
        all.0.retain(|name, _| pod.container(name).is_some());
        for history in all.0.values_mut() {
            let excess = history.used.len().saturating_sub(REMEMBERED);
            history.used.drain(..excess);
        }
        all
    }

    /// The history of a container, if it is about the image that the container has now.
    fn history(&self, container: &str, image: &ImageRef<'_>, digest: &str) -> Option<&History> {
        self.0.get(container).filter(|h| h.name == image.name && h.digest == digest)
    }

    /// Takes note of a spelling that is about to be used.
    pub fn note(&mut self, container: &str, choice: &Choice) {
        self.0.insert(container.to_owned(), choice.history.clone());
    }

    /// The value of the annotation.
    pub fn to_annotation(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The other spelling of a container's image for which kubelet waits least; of equal ones the one unused for longest.
/// One that was chosen before is kept, if it still denotes the same.
///
/// # Errors
/// There is no spelling that surely denotes the same bytes.
pub fn choose(
    container: &ContainerView,
    status: &ContainerStatusView,
    spellings: &Spellings,
    (vary, chosen_before): (bool, Option<&str>),
    now: Timestamp,
) -> Result<Choice, Unsuitable> {
    let image = || container.image.to_string();
    let current = ImageRef::parse(&container.image).ok_or_else(|| Unsuitable::NoReference { image: image() })?;
    let running = status.image_id.rsplit_once("://").map_or(&*status.image_id, |(_, rest)| rest);
    let no_digest = || Unsuitable::NoDigest { image: image(), image_id: status.image_id.to_string() };
    let running = ImageRef::parse(running).ok_or_else(no_digest)?;
    let running_digest = running.digest.ok_or_else(no_digest)?;
    if running.repository() != current.repository() {
        let (named, running) = (current.repository(), running.repository());
        return Err(Unsuitable::OtherRepository { image: image(), named, running });
    }
    // A digest in the definition is what the user wants, even if it is not what runs yet.
    let digest = current.digest.unwrap_or(running_digest);

    let known = spellings.history(&container.name, &current, digest);
    let mut history = known.cloned().unwrap_or_else(|| History {
        name: current.name.to_owned(),
        digest: digest.to_owned(),
        tag: current.tag_or_default().to_owned(),
        ..History::default()
    });
    if !is_tag(&history.tag) {
        current.tag_or_default().clone_into(&mut history.tag);
    }
    history.note_crashes(container, status, now);

    let since_exit = status.last_exit.and_then(|exit| exit.finished_at).map_or(Duration::ZERO, |at| since(now, at));
    let wait_for = |image: &str| {
        let backoff = seconds(history.backoff(image, now));
        // kubelet looks at the exit before this one; if that is too short ago, the wait counts from the stop.
        if since_exit >= backoff { Duration::ZERO } else { backoff }
    };
    let with_tag = |tag: &str| format!("{}:{tag}@{digest}", current.name);
    let best = history
        .usual()
        .into_iter()
        .filter(|spelling| **spelling != *container.image)
        .map(|spelling| (wait_for(&spelling), history.backoff(&spelling, now), history.last_use(&spelling), spelling))
        .min_by(|a, b| (a.0, a.1, a.2).cmp(&(b.0, b.1, b.2)));
    let (mut wait, mut chosen) = match best {
        Some((wait, _, _, spelling)) => (wait, spelling),
        None => return Err(Unsuitable::NoReference { image: image() }),
    };
    let fits = |text: &&str| {
        ImageRef::parse(text).is_some_and(|r| r.name == current.name && r.digest == Some(digest))
            && **text != *container.image
    };
    if let Some(before) = chosen_before.filter(fits) {
        (chosen, wait) = (before.to_owned(), wait_for(before));
    } else if vary && !wait.is_zero() {
        history.varied = history.varied.wrapping_add(1);
        let suffix = format!("-r{}", history.varied);
        let stem: String = history.tag.chars().take(LONGEST_TAG - suffix.len()).collect();
        chosen = with_tag(&format!("{stem}{suffix}"));
        wait = seconds(history.backoff(&chosen, now));
    }
    history.note_use(&chosen, status, now);
    Ok(Choice { image: chosen, wait, history })
}

/// Whether somebody gave a container another image since `then`. Another spelling of the same image is none.
pub fn was_changed(then: &str, now: &str) -> bool {
    let same = || {
        let (then, now) = (ImageRef::parse(then)?, ImageRef::parse(now)?);
        let digest = now.digest?;
        Some(then.name == now.name && then.digest.is_none_or(|before| before == digest))
    };
    then != now && same() != Some(true)
}

/// How long kubelet will probably wait before it starts a container again that is stopped now, its image unchanged.
/// Zero: it starts it at once.
pub fn wait_after_stop(
    container: &ContainerView,
    status: &ContainerStatusView,
    spellings: &Spellings,
    now: Timestamp,
) -> Duration {
    let known = ImageRef::parse(&container.image)
        .and_then(|image| spellings.history(&container.name, &image, image.digest.unwrap_or_default()));
    let (backoff, last_start) = match known.and_then(|history| history.current(container)) {
        Some(used) => used.with_crashes(status),
        None => backoff_by_times(status),
    };
    match last_start {
        Some(at) if since(now, at) < FORGOTTEN_AFTER => seconds(backoff),
        _ => Duration::ZERO,
    }
}

/// Without a record the times in the status tell: how long the last start was held back shows how far the back-off was.
fn backoff_by_times(status: &ContainerStatusView) -> (u32, Option<Timestamp>) {
    if status.restart_count == 0 && status.last_exit.is_none() {
        return (0, None);
    }
    let started = started_at(status);
    // kubelet's own clean-up may have removed the instance before this one, and with it its last state; the back-off that
    // its restart began is still there.
    let ended = status.last_exit.and_then(|exit| exit.finished_at);
    let (Some(ended), Some(started)) = (ended, started) else { return (FIRST_WAIT, started) };
    let held = since(started, ended).as_secs();
    let mut backoff = FIRST_WAIT;
    for level in [10, 20, 40, 80, 160, 300] {
        // A start is late by some seconds; one that is later had another reason, for example a pull.
        if held >= u64::from(level) && held < u64::from(level) * 3 / 2 {
            backoff = next_backoff(level);
        }
    }
    (backoff, Some(started))
}

fn started_at(status: &ContainerStatusView) -> Option<Timestamp> {
    match status.state {
        ContainerState::Running { started_at } => started_at,
        _ => status.last_exit.and_then(|exit| exit.finished_at),
    }
}

fn next_backoff(backoff: u32) -> u32 {
    if backoff == 0 { FIRST_WAIT } else { backoff.saturating_mul(2).min(LONGEST_WAIT) }
}

fn since(now: Timestamp, earlier: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(earlier)).unwrap_or_default()
}

fn seconds(value: u32) -> Duration {
    Duration::from_secs(value.into())
}

impl Used {
    /// The back-off and its last use, with the restarts that came after ours: by a crash, or by the runtime.
    fn with_crashes(&self, status: &ContainerStatusView) -> (u32, Option<Timestamp>) {
        let crashes = status.restart_count.saturating_sub(self.restarts).saturating_sub(1).clamp(0, 8);
        let backoff = (0..crashes).fold(self.backoff, |backoff, _| next_backoff(backoff));
        let last = if crashes > 0 { started_at(status).unwrap_or(self.at) } else { self.at };
        (backoff, Some(last))
    }
}

impl History {
    fn find(&self, image: &str) -> Option<&Used> {
        self.used.iter().find(|used| used.image == image)
    }

    /// The last use, if it is the container's present spelling.
    fn current(&self, container: &ContainerView) -> Option<&Used> {
        self.used.last().filter(|used| *used.image == *container.image)
    }

    fn last_use(&self, image: &str) -> Option<Timestamp> {
        self.find(image).map(|used| used.at)
    }

    /// Seconds that kubelet waits with a spelling.
    fn backoff(&self, image: &str, now: Timestamp) -> u32 {
        self.find(image)
            .filter(|used| since(now, used.at) < FORGOTTEN_AFTER)
            .map_or(0, |used| used.backoff.min(LONGEST_WAIT))
    }

    /// Restarts under the present spelling that are not ours have raised its back-off.
    fn note_crashes(&mut self, container: &ContainerView, status: &ContainerStatusView, now: Timestamp) {
        let (backoff, at) = match self.current(container) {
            Some(used) => used.with_crashes(status),
            None => backoff_by_times(status),
        };
        let Some(at) = at.filter(|at| backoff > 0 && since(now, *at) < FORGOTTEN_AFTER) else { return };
        let restarts = status.restart_count.saturating_sub(1);
        self.put(Used { image: container.image.to_string(), at, backoff, restarts });
    }

    /// A start under a spelling: kubelet begins or doubles its back-off, unless the container has never ended before.
    fn note_use(&mut self, image: &str, status: &ContainerStatusView, now: Timestamp) {
        let backoff = match status.last_exit {
            None => 0,
            Some(_) => next_backoff(self.backoff(image, now)),
        };
        let at = whole_seconds(now);
        self.put(Used { image: image.to_owned(), at, backoff, restarts: status.restart_count });
    }

    /// The two usual spellings.
    fn usual(&self) -> [String; 2] {
        [format!("{}:{}@{}", self.name, self.tag, self.digest), format!("{}@{}", self.name, self.digest)]
    }

    /// Others than the usual ones are used once: only the present one is remembered.
    fn put(&mut self, used: Used) {
        let usual = self.usual();
        self.used.retain(|other| other.image != used.image && usual.contains(&other.image));
        self.used.push(used);
    }
}

#[cfg(test)]
mod tests {
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
            choose(&pod.containers[0], &pod.container_statuses[0], &Spellings::of(&pod), (vary, None), at(second))
        }

        fn predicted_after_stop(&self, second: i64) -> u64 {
            let pod = self.view();
            wait_after_stop(&pod.containers[0], &pod.container_statuses[0], &Spellings::of(&pod), at(second)).as_secs()
        }

        /// What kubelet does: it stops, and starts at once or after the wait; how long it waited.
        fn restart(&mut self, image: &str, second: i64, exit_before_check: bool) -> i64 {
            let exit = if exit_before_check { Some(second) } else { self.exit };
            let entry =
                self.entries.get(image).copied().filter(|(_, used)| exit.is_some_and(|exit| exit - used <= 600));
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
        let refused =
            |image: &str, image_id: &str| Kubelet::new(image, image_id).choose(true, 0).unwrap_err().to_string();
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
            let (container, status) = (&pod.containers[0], &pod.container_statuses[0]);
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
                prop_assert!(*choice.image != *kubelet.view().containers[0].image);
            }
        }
    }
}
