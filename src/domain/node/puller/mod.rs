//! What a daemon pulls: which entries of its NodeImage are open, when an attempt is due, and what the status says.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::Value;

use crate::{
    api::{
        apps::node_image::{
            ImageStatus, ImageTagSpec, ImageTagStatus, NodeImage, NodeImageStatus, PullPhase, SyncStatus,
        },
        labels,
    },
    domain::node::texts,
    k8s::{
        image::ImageRef,
        invalid::Invalid,
        time::{doubled, whole_seconds},
    },
};

/// Longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Bytes of a message in a status.
const LONGEST_MESSAGE: usize = 1024;
/// Bytes that the messages of all entries of a node may take. With what the entries of jobs may take they are 1.25 MiB; etcd
/// refuses objects of more than 1.5 MiB.
const MESSAGES: usize = 256 << 10;

/// Why an image was not pulled, for the status: in words, without secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PullFailure(pub String);

/// One entry of a NodeImage: a repository, and a tag or a digest of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// The repository, as it stands in the NodeImage.
    pub image: String,
    /// A tag, or `sha256:...`.
    pub tag: String,
}

impl Entry {
    /// The reference that is pulled.
    ///
    /// # Errors
    /// It is none; the text names it.
    pub fn reference(&self) -> Result<String, Invalid> {
        let separator = if self.tag.contains(':') { '@' } else { ':' };
        let reference = format!("{}{separator}{}", self.image, self.tag);
        match ImageRef::parse(&reference) {
            // An image that already has a tag would get two.
            Some(parsed) if parsed.name == self.image => Ok(reference),
            _ => Err(Invalid(format!(
                "{reference:?} is no image reference: want a repository, then a tag or a digest (sha256:...)"
            ))),
        }
    }

    /// The digest that the image has to have, if the entry names one.
    pub fn digest(&self) -> Option<&str> {
        self.tag.contains(':').then_some(&self.tag)
    }
}

/// What is to be done for one version of an entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// What to pull.
    pub entry: Entry,
    /// The version of the entry.
    pub version: i64,
    /// An image that is there is good enough.
    pub if_not_present: bool,
    /// How often it is tried.
    pub attempts: u32,
    /// How long one attempt may take.
    pub attempt_limit: Duration,
    /// How long all of them may take together.
    pub limit: Option<Duration>,
    /// Whether the manager may have credentials for it.
    pub has_secrets: bool,
    /// Labels of the sandbox that the runtime gets.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Who wants the image, for events.
    pub owners: Vec<ObjectReference>,
}

impl Order {
    /// The time limit of the next attempt after so many failed ones. None: there is no next one.
    pub fn next_attempt(&self, failed: u32, elapsed: Duration) -> Option<Duration> {
        let left = self.limit.map_or(self.attempt_limit, |limit| limit.saturating_sub(elapsed));
        (failed < self.attempts && !left.is_zero()).then(|| left.min(self.attempt_limit))
    }

    /// Whether it has ended because of its deadline rather than its attempts.
    pub fn is_overdue(&self, elapsed: Duration) -> bool {
        self.limit.is_some_and(|limit| elapsed >= limit)
    }
}

/// The pause after so many failed attempts.
pub fn pause(failed: u32) -> Duration {
    doubled(Duration::from_secs(1), failed.saturating_sub(1), LONGEST_PAUSE)
}

/// The open entries, in the order in which they were requested.
pub fn orders(object: &NodeImage) -> Vec<Order> {
    let mut orders: Vec<(Option<Timestamp>, Order)> = Vec::new();
    for (image, spec) in &object.spec.images {
        for tag in &spec.tags {
            if recorded(object, image, tag).is_some_and(|status| status.completion_time.is_some()) {
                continue;
            }
            let policy = tag.pull_policy.clone().unwrap_or_default();
            let limit = policy.active_deadline_seconds.map(|s| Duration::from_secs(u64::try_from(s).unwrap_or(0)));
            let sandbox = spec.sandbox_config.clone().unwrap_or_default();
            let mut annotations = sandbox.annotations.unwrap_or_default();
            annotations.insert(labels::PULLING_IMAGE_BY.into(), labels::PULLING_IMAGE_BY_DAEMON.into());
            let order = Order {
                entry: Entry { image: image.clone(), tag: tag.tag.clone() },
                version: tag.version,
                if_not_present: tag.image_pull_policy == "IfNotPresent",
                attempts: policy.backoff_limit().saturating_add(1),
                attempt_limit: Duration::from_secs(policy.timeout_seconds()),
                limit,
                has_secrets: !spec.pull_secrets.is_empty(),
                labels: sandbox.labels.unwrap_or_default(),
                annotations,
                owners: tag.owner_references.clone(),
            };
            orders.push((tag.created_at, order));
        }
    }
    // Who has no time yet comes last.
    orders.sort_by_cached_key(|(created, order)| (created.is_none(), *created, order.entry.clone()));
    orders.into_iter().map(|(_, order)| order).collect()
}

/// What is recorded of this version of a tag.
fn recorded<'n>(object: &'n NodeImage, image: &str, tag: &ImageTagSpec) -> Option<&'n ImageTagStatus> {
    object.status.as_ref()?.of(image, &tag.tag, tag.version)
}

/// How far an order is.
#[derive(Clone, Debug, PartialEq)]
pub enum OrderState {
    /// Others are pulled first.
    Waiting,
    /// Its attempts have begun.
    Pulling {
        /// When.
        started: Timestamp,
        /// 0 to 99.
        percent: i32,
        /// What there is to say: how long, how many bytes, what the last attempt ended with.
        message: String,
    },
    /// It ended.
    Ended {
        /// When it began.
        started: Timestamp,
        /// When it ended.
        completed: Timestamp,
        /// The image, or what went wrong.
        result: Result<String, PullFailure>,
    },
}

/// The status to record. Entries that are recorded as complete are kept, but for the length of their messages: the manager
/// may have ended one too.
pub fn status(object: &NodeImage, states: &BTreeMap<Entry, (i64, OrderState)>, now: Timestamp) -> NodeImageStatus {
    let before = object.status.clone().unwrap_or_default();
    let mut status =
        NodeImageStatus { first_sync_status: before.first_sync_status, unknown: before.unknown, ..Default::default() };
    for (image, spec) in &object.spec.images {
        let mut tags: Vec<ImageTagStatus> = Vec::with_capacity(spec.tags.len());
        for tag in &spec.tags {
            let known = recorded(object, image, tag);
            let entry = Entry { image: image.clone(), tag: tag.tag.clone() };
            let of_version = states.get(&entry).filter(|(version, _)| *version == tag.version);
            tags.push(match (known, of_version) {
                (Some(known), _) if known.completion_time.is_some() => known.clone(),
                (_, Some((_, state))) => tag_status(tag, state),
                (Some(known), None) => known.clone(),
                (None, None) => tag_status(tag, &OrderState::Waiting),
            });
        }
        tags.sort_by(|a, b| a.tag.cmp(&b.tag));
        for tag in &tags {
            status.desired += 1;
            match tag.phase {
                PullPhase::Succeeded => status.succeeded += 1,
                PullPhase::Failed => status.failed += 1,
                PullPhase::Pulling => status.pulling += 1,
                PullPhase::Waiting => status.waiting += 1,
            }
        }
        if !tags.is_empty() {
            let known = before.image_statuses.get(image).map(|known| known.unknown.clone());
            status.image_statuses.insert(image.clone(), ImageStatus { tags, unknown: known.unwrap_or_default() });
        }
    }
    cut_messages(object, &mut status);
    if status.first_sync_status.is_none() && status.desired > 0 && status.succeeded + status.failed == status.desired {
        let failed = status.failed > 0;
        status.first_sync_status = Some(SyncStatus {
            sync_at: Some(whole_seconds(now)),
            status: if failed { "Failed" } else { "Succeeded" }.into(),
            message: if failed {
                format!("{} of {} were not pulled", status.failed, status.desired)
            } else {
                String::new()
            },
        });
    }
    status
}

/// Cuts messages to [`LONGEST_MESSAGE`] each, and to [`MESSAGES`] together. An entry belongs to the namespace of its first
/// owner; those that were written by hand are of none.
fn cut_messages(object: &NodeImage, status: &mut NodeImageStatus) {
    let tags = object.spec.images.iter().flat_map(|(image, spec)| spec.tags.iter().map(move |tag| (image, tag)));
    let namespaces: HashMap<(&str, &str), &str> = tags
        .filter_map(|(image, tag)| {
            let owner = tag.owner_references.first()?;
            Some(((image.as_str(), tag.tag.as_str()), owner.namespace.as_deref()?))
        })
        .collect();
    let mut messages: Vec<(&str, &mut String)> = Vec::new();
    for (image, known) in &mut status.image_statuses {
        for ImageTagStatus { tag, message, .. } in &mut known.tags {
            if message.len() > LONGEST_MESSAGE {
                *message = shortened(message);
            }
            let namespace = namespaces.get(&(image.as_str(), tag.as_str())).copied().unwrap_or_default();
            messages.push((namespace, message));
        }
    }
    texts::cut(&mut messages, MESSAGES);
}

fn tag_status(tag: &ImageTagSpec, state: &OrderState) -> ImageTagStatus {
    let status = ImageTagStatus { tag: tag.tag.clone(), version: tag.version, ..Default::default() };
    match state {
        OrderState::Waiting => ImageTagStatus { phase: PullPhase::Waiting, ..status },
        OrderState::Pulling { started, percent, message } => ImageTagStatus {
            phase: PullPhase::Pulling,
            start_time: Some(whole_seconds(*started)),
            progress: *percent,
            message: message.clone(),
            ..status
        },
        OrderState::Ended { started, completed, result } => {
            let status = ImageTagStatus {
                start_time: Some(whole_seconds(*started)),
                completion_time: Some(whole_seconds(*completed)),
                ..status
            };
            match result {
                Ok(image) => {
                    ImageTagStatus { phase: PullPhase::Succeeded, progress: 100, image_id: image.clone(), ..status }
                }
                Err(PullFailure(message)) => {
                    ImageTagStatus { phase: PullPhase::Failed, message: message.clone(), ..status }
                }
            }
        }
    }
}

/// The file system that holds images, in any unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// All of it.
    pub total: u64,
    /// Unused space.
    pub free: u64,
    /// Space that is available to us; some unused space may be reserved for root.
    pub available: u64,
}

impl Space {
    /// How full it is in percent, as `df` shows it, rounded up.
    pub fn used_percent(&self) -> u64 {
        let used = u128::from(self.total.saturating_sub(self.free));
        let usable = used + u128::from(self.available);
        // Not more than 100.
        if usable == 0 { 0 } else { u64::try_from((used * 100).div_ceil(usable)).unwrap_or(100) }
    }

    /// Why nothing may be pulled any more; None while it may. 100 limits nothing.
    pub fn is_short(&self, limit_percent: u8) -> Option<String> {
        let used = self.used_percent();
        (limit_percent < 100 && used >= u64::from(limit_percent)).then(|| {
            format!(
                "the file system that holds images is {used}% full: nothing is pulled from {limit_percent}% on \
                 (flag --image-fs-limit-percent of the daemon)"
            )
        })
    }
}

/// Why an attempt fails while kubelet reports DiskPressure.
pub const UNDER_DISK_PRESSURE: &str =
    "kubelet reports DiskPressure of the node: no pull begins until it has freed space (condition DiskPressure)";

/// Whether kubelet reports that the node has too little space: it removes images then, and a pull would work against it.
pub fn is_under_disk_pressure(node: &Value) -> bool {
    let mut conditions = node.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    conditions.any(|condition| condition["type"] == "DiskPressure" && condition["status"] == "True")
}

/// Progress of a pull in bytes, with the total if it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Bytes that are there.
    pub bytes: u64,
    /// All bytes.
    pub total: u64,
}

impl Arrived {
    /// Below 100: complete is what the runtime says is complete.
    pub fn percent(&self) -> i32 {
        let percent = u128::from(self.bytes) * 100 / u128::from(self.total.max(1));
        i32::try_from(percent.min(99)).unwrap_or(99)
    }
}

/// The status of a running pull.
pub fn progress_message(elapsed: Duration, arrived: Option<Arrived>, last_error: Option<&str>) -> String {
    let mut text = format!("pulling for {} s", elapsed.as_secs());
    if let Some(arrived) = arrived {
        let mib = |bytes: u64| {
            let tenths = bytes / ((1 << 20) / 10);
            format!("{}.{}", tenths / 10, tenths % 10)
        };
        let _ = write!(text, ", {} of {} MiB", mib(arrived.bytes), mib(arrived.total));
    }
    if let Some(error) = last_error {
        let _ = write!(text, "; the attempt before failed: {error}");
    }
    shortened(&text)
}

/// What the layers of a manifest are: digest and bytes. None: it is no manifest of an image.
pub fn layers(manifest: &[u8]) -> Option<Vec<(String, u64)>> {
    let manifest: serde_json::Value = serde_json::from_slice(manifest).ok()?;
    let layer =
        |layer: &serde_json::Value| Some((layer.get("digest")?.as_str()?.to_owned(), layer.get("size")?.as_u64()?));
    manifest.get("layers")?.as_array()?.iter().map(layer).collect()
}

/// An error as it is shown, without credentials: URLs lose their query, which may hold user names and signatures for
/// registries and their storage.
pub fn presentable(message: &str, secrets: &[String]) -> String {
    let mut text = message.to_owned();
    for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
        text = text.replace(secret.as_str(), "***");
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(scheme) = rest.find("://") {
        let end =
            rest[scheme..].find(|c: char| c.is_whitespace() || "\"'<>)".contains(c)).map_or(rest.len(), |e| scheme + e);
        let address = &rest[..end];
        match address.split_once('?') {
            Some((bare, query)) => {
                shown.push_str(bare);
                // It belongs to the sentence.
                shown.push_str(if query.ends_with(':') { ":" } else { "" });
            }
            None => shown.push_str(address),
        }
        rest = &rest[end..];
    }
    shown.push_str(rest);
    shortened(&shown)
}

/// A message as it fits into a status.
pub fn shortened(text: &str) -> String {
    if text.len() <= LONGEST_MESSAGE {
        return text.to_owned();
    }
    let end = (0..=LONGEST_MESSAGE - 3).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}...", &text[..end])
}

#[cfg(test)]
mod tests;
