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
    /// When kubelet was last made to start the container under it.
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
        let text = pod.rare().image_spellings.as_deref().unwrap_or_default();
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

    let since_exit =
        status.last_exit.as_ref().and_then(|exit| exit.finished_at).map_or(Duration::ZERO, |at| since(now, at));
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

/// Without a record the times in the status are used: how long the last start was held back shows how far the back-off was.
fn backoff_by_times(status: &ContainerStatusView) -> (u32, Option<Timestamp>) {
    if status.restart_count == 0 && status.last_exit.is_none() {
        return (0, None);
    }
    let started = started_at(status);
    // kubelet's own clean-up may have removed the instance before this one, and with it its last state; the back-off that
    // its restart began is still there.
    let ended = status.last_exit.as_ref().and_then(|exit| exit.finished_at);
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
        _ => status.last_exit.as_ref().and_then(|exit| exit.finished_at),
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
        let backoff = match &status.last_exit {
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
mod tests;
