//! One NodeImage: which entries it gets, which change, and which go.
//!
//! The manager alone writes the spec for jobs. The entries of all jobs for a node go into one patch with the
//! resourceVersion that was read, so that no job overwrites another one's entries.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;

use super::{
    job::Job,
    share::{self, Ask, NoRoom, Refusals},
};
use crate::{
    api::apps::{
        image_pull_job::{DEFAULT_BACKOFF_LIMIT, DEFAULT_TIMEOUT_SECONDS},
        node_image::{
            ImageSpec, ImageTagSpec, ImageTagStatus, NodeImageSpec, NodeImageStatus, OF_JOB, PullPhase,
            RESPONSE_SECONDS, SecretReference, TagPullPolicy,
        },
    },
    k8s::{
        hash,
        node_image::{NodeImageView, Owner, TagView},
        time::{self, Now},
    },
};

/// Message of an entry whose daemon has reported nothing.
const SILENT: &str = "node has not responded for a long time";
/// Message of an entry whose pull has exceeded its deadline.
const LATE: &str = "pulling exceeds the activeDeadlineSeconds";
/// The longest wait between two attempts of a daemon.
const LONGEST_BACK_OFF: u64 = 30;
/// An entry of a job without an end is renewed about once a day.
const DAY: i64 = 24 * 60 * 60;
/// What a pull of a job without an end may take.
const NEVER_DEADLINE: i64 = 1800;
/// Seconds over which removals of entries are spread, for thousands of nodes.
const SPREAD: u32 = 300;

/// What is known of the owner of an entry.
#[derive(Clone, Debug)]
pub enum Wants {
    /// It is not a job, or cannot be read: its entry stays.
    Whatever,
    /// It is gone.
    Nothing,
    /// A job.
    Of(Arc<Job>),
}

/// The input of a plan.
pub struct ObservedNode<'a> {
    /// The NodeImage.
    pub node: &'a NodeImageView,
    /// Jobs that are to begin on the node.
    pub begin: &'a [Arc<Job>],
    /// What the owner of an entry wants.
    pub owner: &'a dyn Fn(&Owner) -> Wants,
    /// How long ago an entry was written.
    pub age: &'a dyn Fn(&str, &TagView) -> Duration,
    /// Seconds that entries are kept beyond what their jobs say.
    pub default_ttl: i32,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodePlan {
    /// The spec as it should be, if it is not.
    pub spec: Option<NodeImageSpec>,
    /// UIDs of jobs that cannot begin, and why.
    pub refused: Vec<(String, String)>,
    /// Entries to end because their daemon has reported nothing for too long.
    pub given_up: Vec<GivenUp>,
    /// When to look again if nothing happens.
    pub next: Option<Duration>,
}

/// An entry that is ended in place of its daemon.
#[derive(Clone, Debug, PartialEq)]
pub struct GivenUp {
    /// The image.
    pub image: String,
    /// The tag.
    pub tag: String,
    /// The version.
    pub version: i64,
    /// Why.
    pub message: &'static str,
    /// Who wanted it.
    pub owners: Vec<ObjectReference>,
}

/// Decides for one node.
pub fn pass(observed: &ObservedNode<'_>, now: Now) -> NodePlan {
    let node = observed.node;
    let mut pass = NodePlan::default();
    let before = node.spec();
    let mut after = before.clone();
    for (name, image) in &mut after.images {
        image.tags.retain_mut(|tag| stays(observed, name, tag, &mut pass, now));
    }
    after.images.retain(|_, image| !image.tags.is_empty());
    let mut refusals = Refusals::default();
    for job in observed.begin {
        if let Err(why) = begin(node, &mut after.images, job, (observed.default_ttl, now), &mut refusals) {
            pass.refused.push((job.uid.clone(), why.to_string()));
        }
    }
    for image in after.images.values_mut() {
        secrets(observed, image);
    }
    if after != before {
        after.images.values_mut().for_each(fill_in);
        pass.spec = Some(after);
    }
    pass
}

fn sooner(next: &mut Option<Duration>, wait: Duration) {
    let wait = wait.max(Duration::from_secs(1));
    *next = Some(next.map_or(wait, |before| before.min(wait)));
}

/// Writes what tags by hand may lack, and sorts them, as OpenKruise's admission does: its manager may crash where a policy is
/// missing. Only in a write that is due anyway, so that a tool which applies a manifest without them causes no write each time.
fn fill_in(image: &mut ImageSpec) {
    for tag in &mut image.tags {
        let policy = tag.pull_policy.get_or_insert_default();
        policy.timeout_seconds.get_or_insert(DEFAULT_TIMEOUT_SECONDS);
        policy.backoff_limit.get_or_insert(DEFAULT_BACKOFF_LIMIT);
    }
    image.tags.sort_by(|a, b| a.tag.cmp(&b.tag));
}

/// Whether an entry stays; updates it.
fn stays(observed: &ObservedNode<'_>, image: &str, tag: &mut ImageTagSpec, pass: &mut NodePlan, now: Now) -> bool {
    let node = observed.node;
    tag.created_at.get_or_insert(time::whole_seconds(now.wall));
    let mut jobs = Vec::new();
    let had_owners = !tag.owner_references.is_empty();
    tag.owner_references.retain(|owner| match (observed.owner)(&Owner::from(owner)) {
        Wants::Whatever => true,
        Wants::Nothing => false,
        Wants::Of(job) if job.wants(image, &tag.tag, node) => {
            jobs.push(job);
            true
        }
        Wants::Of(_) => false,
    });
    if had_owners && tag.owner_references.is_empty() {
        return false;
    }
    if !jobs.is_empty() && jobs.len() == tag.owner_references.len() {
        let policy = tag.pull_policy.get_or_insert_default();
        *policy =
            TagPullPolicy { unknown: policy.unknown.clone(), ..policy_of(&jobs, policy.ttl_seconds_after_finished) };
    }
    let Some(view) = node.tag(image, &tag.tag) else { return true };
    let ended = view.current().filter(|status| status.phase.has_ended()).and_then(|status| status.completion_time);
    let Some(ended) = ended else {
        waits(observed, image, tag, view, pass, now);
        return true;
    };
    let ttl = tag.pull_policy.as_ref().and_then(|policy| policy.ttl_seconds_after_finished);
    let Some(ttl) = ttl.and_then(|ttl| u64::try_from(ttl).ok()).map(Duration::from_secs) else { return true };
    if jobs.iter().any(|job| job.ends && !job.is_complete) {
        return true; // else a slow job would begin again on the nodes that are done
    }
    let left = ttl.saturating_sub(now.since(ended));
    if !left.is_zero() {
        sooner(&mut pass.next, left);
    }
    !left.is_zero()
}

/// Checks whether an open entry has to be ended in place of its daemon.
fn waits(observed: &ObservedNode<'_>, image: &str, tag: &ImageTagSpec, view: &TagView, pass: &mut NodePlan, now: Now) {
    let age = (observed.age)(image, view);
    let response = Duration::from_secs(RESPONSE_SECONDS);
    let policy = tag.pull_policy.clone().unwrap_or_default();
    let deadline = policy.active_deadline_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let (limit, message) = match view.current() {
        None => (response, SILENT),
        Some(status) if status.phase == PullPhase::Pulling => {
            // A daemon ends every attempt in time; one that has died reports nothing.
            let attempts = u64::from(policy.backoff_limit()) + 1;
            let longest = attempts.saturating_mul(policy.timeout_seconds().saturating_add(LONGEST_BACK_OFF));
            let begun = status.start_time.map_or(age, |start| now.since(start)).min(age);
            let waited = age.saturating_sub(begun);
            match deadline.filter(|deadline| *deadline < longest) {
                Some(deadline) => (waited + response + Duration::from_secs(deadline), LATE),
                None => (waited + response + Duration::from_secs(longest), SILENT),
            }
        }
        Some(_) => match deadline {
            Some(deadline) => (response.saturating_add(Duration::from_secs(deadline)), LATE),
            None => return, // it waits for others on the node, and its daemon has said so
        },
    };
    match limit.checked_sub(age).filter(|left| !left.is_zero()) {
        Some(left) => sooner(&mut pass.next, left),
        None => pass.given_up.push(GivenUp {
            image: image.to_owned(),
            tag: tag.tag.clone(),
            version: tag.version,
            message,
            owners: tag.owner_references.clone(),
        }),
    }
}

/// What a daemon gets when several jobs want one image: the most that any of them allows.
fn policy_of(jobs: &[Arc<Job>], ttl: Option<i32>) -> TagPullPolicy {
    let deadlines: Option<Vec<i64>> = jobs.iter().map(|job| deadline_of(job)).collect();
    TagPullPolicy {
        timeout_seconds: jobs.iter().map(|job| job.timeout_seconds).max(),
        backoff_limit: jobs.iter().map(|job| job.backoff_limit).max(),
        ttl_seconds_after_finished: ttl,
        active_deadline_seconds: deadlines.and_then(|all| all.into_iter().max()),
        unknown: BTreeMap::new(),
    }
}

fn deadline_of(job: &Job) -> Option<i64> {
    if job.ends { job.deadline_seconds } else { Some(NEVER_DEADLINE.max(job.timeout_seconds.into())) }
}

/// Seconds that the entry of a job is kept after its end.
fn ttl_of(job: &Job, node: &str, default_ttl: i32) -> i32 {
    let spread = hash::fnv1a_32(node.bytes().chain(job.uid.bytes()));
    let seconds = if job.ends {
        let pulls = i64::from(job.timeout_seconds) * i64::from(job.backoff_limit);
        let base = job.ttl_seconds.map(i64::from).or(job.deadline_seconds).unwrap_or(pulls);
        base.saturating_add(i64::from(default_ttl)).saturating_add(i64::from(spread % SPREAD))
    } else {
        DAY - 600 + i64::from(spread % 1200)
    };
    i32::try_from(seconds).unwrap_or(i32::MAX)
}

fn reference(job: &Job) -> ObjectReference {
    ObjectReference {
        api_version: Some("apps.kruise.io/v1beta1".into()),
        kind: Some("ImagePullJob".into()),
        namespace: Some(job.namespace.clone()),
        name: Some(job.name.clone()),
        uid: Some(job.uid.clone()),
        ..ObjectReference::default()
    }
}

/// Gives a node a job's image.
fn begin(
    node: &NodeImageView,
    images: &mut BTreeMap<String, ImageSpec>,
    job: &Arc<Job>,
    (default_ttl, now): (i32, Now),
    refusals: &mut Refusals,
) -> Result<(), NoRoom> {
    let is_there = |tag: &ImageTagSpec| {
        tag.tag == job.tag && tag.owner_references.iter().any(|owner| owner.uid.as_ref() == Some(&job.uid))
    };
    if images.get(&job.image).is_some_and(|image| image.tags.iter().any(is_there)) {
        return Ok(());
    }
    let owner = reference(job);
    let (namespace, image, tag) = (&job.namespace, &job.image, &job.tag);
    let sandbox = job.sandbox.as_ref();
    share::admit(images, &Ask { namespace, image, tag, owner: &owner, secrets: &job.secrets, sandbox }, refusals)?;
    let image = images.entry(job.image.clone()).or_default();
    image.sandbox_config.clone_from(&job.sandbox);
    // At once, so that the next job is measured against them too.
    add_secrets(image, job.secrets.iter().map(|secret| (job.namespace.clone(), secret.clone())).collect());
    let status = node.status_version(&job.image, &job.tag).unwrap_or(-1);
    let ttl = ttl_of(job, node.name(), default_ttl);
    let created_at = Some(time::whole_seconds(now.wall));
    let Some(tag) = image.tags.iter_mut().find(|tag| tag.tag == job.tag) else {
        image.tags.push(ImageTagSpec {
            tag: job.tag.clone(),
            created_at,
            pull_policy: Some(policy_of(std::slice::from_ref(job), Some(ttl))),
            owner_references: vec![owner],
            version: status + 1,
            image_pull_policy: job.image_pull_policy.clone(),
            unknown: BTreeMap::new(),
        });
        return Ok(());
    };
    tag.version = tag.version.max(status) + 1;
    tag.owner_references.push(owner);
    tag.created_at = created_at;
    tag.image_pull_policy.clone_from(&job.image_pull_policy);
    let own = policy_of(std::slice::from_ref(job), Some(ttl));
    let policy = tag.pull_policy.get_or_insert_default();
    let most = |a: Option<i32>, b: Option<i32>| a.zip(b).map(|(a, b)| a.max(b));
    *policy = TagPullPolicy {
        timeout_seconds: policy.timeout_seconds.max(own.timeout_seconds),
        backoff_limit: policy.backoff_limit.max(own.backoff_limit),
        ttl_seconds_after_finished: most(policy.ttl_seconds_after_finished, own.ttl_seconds_after_finished),
        active_deadline_seconds: policy.active_deadline_seconds.zip(own.active_deadline_seconds).map(|(a, b)| a.max(b)),
        unknown: std::mem::take(&mut policy.unknown),
    };
    Ok(())
}

/// An image has the Secrets of the jobs that want it, and no others; what somebody else asked for stays as it is. Those of
/// jobs are marked: an entry that somebody wrote by hand gets no credentials of them.
fn secrets(observed: &ObservedNode<'_>, image: &mut ImageSpec) {
    let mut wanted: BTreeSet<(String, String)> = BTreeSet::new();
    let (mut has_entry_by_hand, mut has_unknown_owner) = (false, false);
    for tag in &image.tags {
        has_entry_by_hand |= tag.owner_references.is_empty();
        for owner in &tag.owner_references {
            let uid = owner.uid.as_deref().unwrap_or_default();
            let beginning = observed.begin.iter().find(|job| job.uid == uid).cloned().map(Wants::Of);
            match beginning.unwrap_or_else(|| (observed.owner)(&Owner::from(owner))) {
                Wants::Of(job) => {
                    wanted.extend(job.secrets.iter().map(|secret| (job.namespace.clone(), secret.clone())));
                }
                Wants::Whatever | Wants::Nothing => has_unknown_owner = true,
            }
        }
    }
    image.pull_secrets.retain_mut(|secret| {
        let (is_wanted, is_of_job) = (wanted.contains(&key_of(secret)), secret.mode == OF_JOB);
        // Of releases before this one, which did not mark them.
        if is_wanted && secret.mode.is_empty() && !has_entry_by_hand && !has_unknown_owner {
            secret.mode = OF_JOB.into();
        }
        is_wanted || has_unknown_owner || (has_entry_by_hand && !is_of_job)
    });
    add_secrets(image, wanted);
}

/// Namespace and name.
fn key_of(secret: &SecretReference) -> (String, String) {
    (secret.namespace.clone(), secret.name.clone())
}

fn add_secrets(image: &mut ImageSpec, wanted: BTreeSet<(String, String)>) {
    let there: BTreeSet<(String, String)> = image.pull_secrets.iter().map(key_of).collect();
    let missing = wanted.difference(&there);
    let missing = missing.map(|(namespace, name)| SecretReference {
        namespace: namespace.clone(),
        name: name.clone(),
        mode: OF_JOB.into(),
    });
    image.pull_secrets.extend(missing);
}

/// The status of a node after giving up on some entries. The daemon's own words about other entries stay.
pub fn give_up(spec: &NodeImageSpec, status: &NodeImageStatus, given_up: &[GivenUp], now: Now) -> NodeImageStatus {
    let mut status = status.clone();
    for GivenUp { image, tag, version, message, .. } in given_up {
        let tags = &mut status.image_statuses.entry(image.clone()).or_default().tags;
        let at = tags.iter().position(|status| status.tag == *tag);
        let before = at.map(|at| tags.remove(at)).filter(|status| status.version == *version).unwrap_or_default();
        if before.phase.has_ended() {
            tags.push(before);
        } else {
            tags.push(ImageTagStatus {
                tag: tag.clone(),
                version: *version,
                phase: PullPhase::Failed,
                completion_time: Some(time::whole_seconds(now.wall)),
                message: (*message).to_owned(),
                ..before
            });
        }
    }
    for (image, tags) in &mut status.image_statuses {
        let known = spec.images.get(image);
        tags.tags.retain(|status| known.is_some_and(|image| image.tags.iter().any(|tag| tag.tag == status.tag)));
        tags.tags.sort_by(|a, b| a.tag.cmp(&b.tag));
    }
    status.image_statuses.retain(|_, tags| !tags.tags.is_empty());
    let all: Vec<PullPhase> =
        status.image_statuses.values().flat_map(|image| &image.tags).map(|tag| tag.phase).collect();
    let count = |phase| i32::try_from(all.iter().filter(|p| **p == phase).count()).unwrap_or(i32::MAX);
    status.desired =
        i32::try_from(spec.images.values().map(|image| image.tags.len()).sum::<usize>()).unwrap_or(i32::MAX);
    status.succeeded = count(PullPhase::Succeeded);
    status.failed = count(PullPhase::Failed);
    status.pulling = count(PullPhase::Pulling);
    status.waiting = count(PullPhase::Waiting);
    status
}

#[cfg(test)]
mod tests;
