//! One NodeImage: which entries it gets, which change, and which go.
//!
//! The manager is the only one who writes the spec for jobs, and all that several jobs want of a node goes out in one
//! patch, tied to the version that was looked at: no job overwrites what another one has written.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;

use super::{
    job::Job,
    share::{self, Ask},
};
use crate::{
    api::apps::node_image::{
        ImageSpec, ImageTagSpec, ImageTagStatus, NodeImageSpec, NodeImageStatus, PullPhase, RESPONSE_SECONDS,
        SecretReference, TagPullPolicy,
    },
    k8s::{
        hash,
        node_image::{NodeImageView, Owner, TagView},
        time::{self, Now},
    },
};

/// What a daemon that says nothing is given as the reason.
const SILENT: &str = "node has not responded for a long time";
/// What a pull that goes on for too long is given as the reason.
const LATE: &str = "pulling exceeds the activeDeadlineSeconds";
/// The longest wait between two attempts of a daemon.
const LONGEST_BACK_OFF: u64 = 30;
/// An entry of a job without an end is renewed about once a day.
const DAY: i64 = 24 * 60 * 60;
/// What a pull of a job without an end may take.
const NEVER_DEADLINE: i64 = 1800;
/// Entries of thousands of nodes do not all go in the same second.
const SPREAD: u32 = 300;

/// What is known of somebody who wants an image.
#[derive(Clone, Debug)]
pub enum Wants {
    /// It is no job, or cannot be judged: its entry stays.
    Whatever,
    /// It is gone.
    Nothing,
    /// A job.
    Of(Arc<Job>),
}

/// Everything a pass is made from.
pub struct Observed<'a> {
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
pub struct Pass {
    /// The spec as it should be, if it is not.
    pub spec: Option<NodeImageSpec>,
    /// UIDs of jobs that cannot begin, and why.
    pub refused: Vec<(String, String)>,
    /// Entries whose daemon is to be given up.
    pub given_up: Vec<GivenUp>,
    /// When to look again if nothing happens.
    pub next: Option<Duration>,
}

/// An entry whose daemon says nothing, or does not end.
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
pub fn pass(observed: &Observed<'_>, now: Now) -> Pass {
    let node = observed.node;
    let mut pass = Pass::default();
    let before = node.spec();
    let mut after = before.clone();
    for (name, image) in &mut after.images {
        image.tags.retain_mut(|tag| stays(observed, name, tag, &mut pass, now));
    }
    after.images.retain(|_, image| !image.tags.is_empty());
    for job in observed.begin {
        if let Err(why) = begin(node, &mut after.images, job, observed.default_ttl, now) {
            pass.refused.push((job.uid.clone(), why));
        }
    }
    for image in after.images.values_mut() {
        secrets(observed, image);
    }
    pass.spec = (after != before).then_some(after);
    pass
}

fn sooner(next: &mut Option<Duration>, wait: Duration) {
    let wait = wait.max(Duration::from_secs(1));
    *next = Some(next.map_or(wait, |before| before.min(wait)));
}

/// Whether an entry stays; brings it up to date.
fn stays(observed: &Observed<'_>, image: &str, tag: &mut ImageTagSpec, pass: &mut Pass, now: Now) -> bool {
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

/// An entry that has not ended: is its daemon to be given up?
fn waits(observed: &Observed<'_>, image: &str, tag: &ImageTagSpec, view: &TagView, pass: &mut Pass, now: Now) {
    let age = (observed.age)(image, view);
    let response = Duration::from_secs(RESPONSE_SECONDS);
    let policy = tag.pull_policy.clone().unwrap_or_default();
    let deadline = policy.active_deadline_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let (limit, message) = match view.current() {
        None => (response, SILENT),
        Some(status) if status.phase == PullPhase::Pulling => {
            // A daemon ends every attempt in time; one that has died says nothing of it.
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

/// What a daemon is told when several jobs want one image: the most that any of them allows.
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
    default_ttl: i32,
    now: Now,
) -> Result<(), String> {
    let is_there = |tag: &ImageTagSpec| {
        tag.tag == job.tag && tag.owner_references.iter().any(|owner| owner.uid.as_ref() == Some(&job.uid))
    };
    if images.get(&job.image).is_some_and(|image| image.tags.iter().any(is_there)) {
        return Ok(());
    }
    let owner = reference(job);
    let (namespace, image, tag) = (&job.namespace, &job.image, &job.tag);
    let sandbox = job.sandbox.as_ref();
    share::admit(images, &Ask { namespace, image, tag, owner: &owner, secrets: &job.secrets, sandbox })?;
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
        image.tags.sort_by(|a, b| a.tag.cmp(&b.tag));
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

/// An image has the Secrets of the jobs that want it, and no others; what somebody else asked for stays as it is.
fn secrets(observed: &Observed<'_>, image: &mut ImageSpec) {
    let mut wanted: BTreeSet<(String, String)> = BTreeSet::new();
    let mut is_ours_alone = true;
    for tag in &image.tags {
        is_ours_alone &= !tag.owner_references.is_empty();
        for owner in &tag.owner_references {
            let uid = owner.uid.as_deref().unwrap_or_default();
            let beginning = observed.begin.iter().find(|job| job.uid == uid).cloned().map(Wants::Of);
            match beginning.unwrap_or_else(|| (observed.owner)(&Owner::from(owner))) {
                Wants::Of(job) => {
                    wanted.extend(job.secrets.iter().map(|secret| (job.namespace.clone(), secret.clone())));
                }
                Wants::Whatever | Wants::Nothing => is_ours_alone = false,
            }
        }
    }
    image.pull_secrets.retain(|secret| !is_ours_alone || wanted.contains(&key_of(secret)));
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
        mode: String::new(),
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
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::apps::image_pull_job::ImagePullJob;

    fn now() -> Now {
        Now { wall: "2026-01-01T01:00:00Z".parse().unwrap(), mono: Duration::from_secs(10_000) }
    }

    fn job(uid: &str, namespace: &str, changes: Value) -> Arc<Job> {
        let mut object = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob",
            "metadata": {"name": uid, "namespace": namespace, "uid": uid}, "spec": {"image": "app:v1"}});
        json_patch::merge(&mut object, &changes);
        Arc::new(Job::of(&serde_json::from_value::<ImagePullJob>(object).unwrap()).unwrap())
    }

    fn complete(uid: &str, changes: Value) -> Arc<Job> {
        let mut whole = json!({"status": {"completionTime": "2026-01-01T00:30:00Z"}});
        json_patch::merge(&mut whole, &changes);
        job(uid, "a", whole)
    }

    fn node(spec: Value, status: Value) -> NodeImageView {
        serde_json::from_value(
            json!({"metadata": {"name": "n1", "labels": {"zone": "a"}}, "spec": {"images": spec}, "status": status}),
        )
        .unwrap()
    }

    fn owner(uid: &str) -> Value {
        json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "namespace": "a", "name": uid, "uid": uid})
    }

    /// An entry of `app:v1` for these owners, and what became of it.
    fn entry(owners: &[&str], changes: Value) -> Value {
        let mut tag = json!({"tag": "v1", "createdAt": "2026-01-01T00:00:00Z", "imagePullPolicy": "IfNotPresent",
            "pullPolicy": {"timeoutSeconds": 600, "backoffLimit": 3, "ttlSecondsAfterFinished": 2000},
            "ownerReferences": owners.iter().map(|uid| owner(uid)).collect::<Vec<_>>()});
        json_patch::merge(&mut tag, &changes);
        json!({"app": {"tags": [tag]}})
    }

    fn says(phase: &str, changes: Value) -> Value {
        let mut status = json!({"tag": "v1", "phase": phase});
        if ["Succeeded", "Failed"].contains(&phase) {
            status["completionTime"] = "2026-01-01T00:30:00Z".into();
        }
        json_patch::merge(&mut status, &changes);
        json!({"imageStatuses": {"app": {"tags": [status]}}})
    }

    struct Case {
        node: NodeImageView,
        jobs: Vec<Arc<Job>>,
        begin: Vec<Arc<Job>>,
        age: u64,
    }

    impl Case {
        fn pass(&self) -> Pass {
            let owner = |owner: &Owner| match self.jobs.iter().chain(&self.begin).find(|job| job.uid == owner.uid) {
                Some(job) => Wants::Of(job.clone()),
                None if owner.is_job() => Wants::Nothing,
                None => Wants::Whatever,
            };
            let age = |_: &str, _: &TagView| Duration::from_secs(self.age);
            pass(&Observed { node: &self.node, begin: &self.begin, owner: &owner, age: &age, default_ttl: 300 }, now())
        }
        /// The spec after the pass.
        fn spec(&self) -> Value {
            let spec = self.pass().spec.unwrap_or_else(|| self.node.spec());
            serde_json::to_value(spec).unwrap()
        }
    }

    fn of(node: NodeImageView, jobs: &[Arc<Job>]) -> Case {
        Case { node, jobs: jobs.to_vec(), begin: Vec::new(), age: 0 }
    }

    fn beginning(node: NodeImageView, jobs: &[Arc<Job>], begin: Arc<Job>) -> Case {
        Case { begin: vec![begin], ..of(node, jobs) }
    }

    #[test]
    fn an_entry_is_as_recorded() {
        let policy = json!({"spec": {"pullPolicy": {"timeoutSeconds": 30, "backoffLimit": 2},
            "completionPolicy": {"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 300}, "pullSecrets": ["s"], "sandboxConfig": {"labels": {"a": "b"}}}});
        let mut spec = beginning(node(json!({}), json!({})), &[], job("j1", "a", policy)).spec();
        let ttl = spec["images"]["app"]["tags"][0]["pullPolicy"]["ttlSecondsAfterFinished"].take().as_i64().unwrap();
        assert!((600..900).contains(&ttl), "{ttl}");
        assert_eq!(
            spec["images"],
            json!({"app": {"pullSecrets": [{"namespace": "a", "name": "s"}], "sandboxConfig": {"labels": {"a": "b"}},
                "tags": [{"tag": "v1", "createdAt": "2026-01-01T01:00:00Z", "imagePullPolicy": "IfNotPresent", "ownerReferences": [owner("j1")],
                    "pullPolicy": {"activeDeadlineSeconds": 60, "backoffLimit": 2, "timeoutSeconds": 30, "ttlSecondsAfterFinished": null}}]}})
        );
    }

    #[test]
    fn e2_a_second_job_bumps_the_version_and_restarts_the_clock() {
        let second = job(
            "j2",
            "a",
            json!({"spec": {"imagePullPolicy": "Always", "pullPolicy": {"timeoutSeconds": 900, "backoffLimit": 1}}}),
        );
        let view = node(entry(&["j1"], json!({"version": 2})), says("Succeeded", json!({"version": 2})));
        let spec = beginning(view, &[job("j1", "a", json!({}))], second).spec();
        let tag = &spec["images"]["app"]["tags"][0];
        assert_eq!((&tag["version"], &tag["createdAt"]), (&json!(3), &json!("2026-01-01T01:00:00Z")));
        assert_eq!(tag["ownerReferences"], json!([owner("j1"), owner("j2")]));
        assert_eq!(tag["imagePullPolicy"], "Always", "e4: existing entries get it too");
        assert_eq!(
            (&tag["pullPolicy"]["timeoutSeconds"], &tag["pullPolicy"]["backoffLimit"]),
            (&json!(900), &json!(3)),
            "f4"
        );
    }

    #[test]
    fn an_entry_that_comes_back_has_a_version_that_no_status_has() {
        let status = json!({"imageStatuses": {"app": {"tags": [{"tag": "v1", "phase": "Succeeded", "version": 4}]}}});
        let spec = beginning(node(json!({}), status), &[], job("j1", "a", json!({}))).spec();
        assert_eq!(spec["images"]["app"]["tags"][0]["version"], 5);
    }

    #[test]
    fn tags_are_sorted_and_what_others_wrote_stays() {
        let theirs = json!({"app": {"newer": {"a": 1}, "tags": [{"tag": "v2", "createdAt": "2026-01-01T00:00:00Z", "newer": 7}]}, "other": {"tags": [{"tag": "x", "createdAt": "2026-01-01T00:00:00Z"}]}});
        let spec = beginning(node(theirs, json!({})), &[], job("j1", "a", json!({}))).spec();
        let app = &spec["images"]["app"];
        assert_eq!(
            (&app["tags"][0]["tag"], &app["tags"][1]["newer"], &app["newer"]),
            (&json!("v1"), &json!(7), &json!({"a": 1}))
        );
        assert_eq!(spec["images"]["other"]["tags"][0]["tag"], "x");
    }

    #[test]
    fn e3_an_entry_goes_with_the_last_of_its_owners() {
        let both = entry(&["j1", "j2"], json!({}));
        let one = of(node(both.clone(), json!({})), &[job("j1", "a", json!({}))]).spec();
        assert_eq!(one["images"]["app"]["tags"][0]["ownerReferences"], json!([owner("j1")]));
        assert_eq!(of(node(both, json!({})), &[]).spec(), json!({}));
        let recreated = of(node(entry(&["old-uid"], json!({})), json!({})), &[job("new-uid", "a", json!({}))]).spec();
        assert_eq!(recreated, json!({}), "a recreated job is another owner");
    }

    #[test]
    fn entries_of_nobody_and_of_strangers_stay() {
        let view = node(entry(&[], json!({})), json!({}));
        assert_eq!(of(view, &[]).pass().spec, None);
        let stranger = json!({"ownerReferences": [{"apiVersion": "apps.kruise.io/v1beta1", "kind": "SomethingElse", "name": "x", "uid": "x"}]});
        assert_eq!(of(node(entry(&[], stranger), json!({})), &[]).pass().spec, None);
    }

    #[test]
    fn f20_a_bare_entry_is_completed_and_has_the_defaults() {
        let view = node(json!({"app": {"tags": [{"tag": "v1"}]}}), json!({}));
        assert_eq!(
            of(view, &[]).spec()["images"]["app"]["tags"],
            json!([{"tag": "v1", "createdAt": "2026-01-01T01:00:00Z"}])
        );
    }

    #[test]
    fn e18_entries_stay_when_the_job_is_over_until_their_time_is() {
        let done = |ttl: Value| {
            node(entry(&["j1"], json!({"pullPolicy": {"ttlSecondsAfterFinished": ttl}})), says("Succeeded", json!({})))
        };
        let over = complete("j1", json!({}));
        assert_eq!(of(done(json!(1800)), std::slice::from_ref(&over)).spec(), json!({}));
        let pass = of(done(json!(1801)), std::slice::from_ref(&over)).pass();
        assert_eq!((pass.spec, pass.next), (None, Some(Duration::from_secs(1))));
        assert_eq!(of(done(json!(null)), std::slice::from_ref(&over)).pass().next, None);
    }

    #[test]
    fn f2_no_entry_goes_while_its_job_runs() {
        let view =
            node(entry(&["j1"], json!({"pullPolicy": {"ttlSecondsAfterFinished": 1}})), says("Succeeded", json!({})));
        assert_eq!(of(view.clone(), &[job("j1", "a", json!({}))]).pass().spec, None);
        let never = job("j1", "a", json!({"spec": {"completionPolicy": {"type": "Never"}}}));
        assert_eq!(of(view, &[never]).spec(), json!({}), "a job without an end renews its entries");
    }

    #[test]
    fn a_status_of_an_earlier_version_ends_nothing() {
        let view = node(
            entry(&["j1"], json!({"version": 1, "pullPolicy": {"ttlSecondsAfterFinished": 1}})),
            says("Succeeded", json!({})),
        );
        let pass = of(view, &[complete("j1", json!({}))]).pass();
        assert_eq!((pass.spec, pass.next), (None, Some(Duration::from_secs(600))));
    }

    #[test]
    fn f5_an_edited_job_withdraws_what_it_does_not_want_any_more() {
        let view = || node(entry(&["j1"], json!({})), json!({}));
        for changes in [
            json!({"image": "app:v2"}),
            json!({"selector": {"names": ["n2"]}}),
            json!({"selector": {"matchLabels": {"zone": "b"}}}),
        ] {
            assert_eq!(of(view(), &[job("j1", "a", json!({"spec": changes}))]).spec(), json!({}), "{changes}");
        }
        let over = complete("j1", json!({"spec": {"selector": {"names": ["n2"]}}}));
        assert_eq!(of(view(), &[over]).pass().spec, None, "after its end nothing is withdrawn");
        let by_pods = job("j1", "a", json!({"spec": {"podSelector": {"matchLabels": {"app": "x"}}}}));
        assert_eq!(of(view(), &[by_pods]).pass().spec, None, "Pods come and go");
    }

    #[test]
    fn f4_an_edited_pull_policy_reaches_the_entry() {
        let edited = job("j1", "a", json!({"spec": {"pullPolicy": {"timeoutSeconds": 50, "backoffLimit": 9}}}));
        let spec = of(node(entry(&["j1"], json!({"version": 1})), json!({})), &[edited]).spec();
        let tag = &spec["images"]["app"]["tags"][0];
        assert_eq!(
            tag["pullPolicy"],
            json!({"timeoutSeconds": 50, "backoffLimit": 9, "ttlSecondsAfterFinished": 2000})
        );
        assert_eq!(tag["version"], 1);
    }

    #[test]
    fn e9_missing_secrets_are_added_without_a_new_version_and_e10_e21_f6_unused_ones_and_copies_go() {
        let wants = job("j1", "a", json!({"spec": {"pullSecrets": ["s1", "s2"]}}));
        let mut images = entry(&["j1"], json!({"version": 1}));
        images["app"]["pullSecrets"] = json!([{"namespace": "kruise-daemon-config", "name": "old-1a2b3c", "mode": "batch"}, {"namespace": "a", "name": "s2"}]);
        let spec = of(node(images.clone(), json!({})), &[wants]).spec();
        assert_eq!(
            spec["images"]["app"]["pullSecrets"],
            json!([{"namespace": "a", "name": "s2"}, {"namespace": "a", "name": "s1"}])
        );
        assert_eq!(spec["images"]["app"]["tags"][0]["version"], 1);
        let stranger = json!({"tag": "v2", "createdAt": "2026-01-01T00:00:00Z"});
        images["app"]["tags"].as_array_mut().unwrap().push(stranger);
        let spec = of(node(images, json!({})), &[job("j1", "a", json!({}))]).spec();
        assert_eq!(
            spec["images"]["app"]["pullSecrets"].as_array().unwrap().len(),
            2,
            "somebody else's may be among them"
        );
    }

    #[test]
    fn secrets_of_two_namespaces_stand_side_by_side() {
        let one = job("j1", "a", json!({"spec": {"pullSecrets": ["s"]}}));
        let two = job("j2", "b", json!({"spec": {"pullSecrets": ["s"]}}));
        let mut images = entry(&["j1"], json!({}));
        images["app"]["pullSecrets"] = json!([{"namespace": "a", "name": "s"}]);
        let spec = beginning(node(images.clone(), json!({})), std::slice::from_ref(&one), two).spec();
        assert_eq!(
            spec["images"]["app"]["pullSecrets"],
            json!([{"namespace": "a", "name": "s"}, {"namespace": "b", "name": "s"}])
        );
    }

    #[test]
    fn f14_the_257th_image_is_refused_and_the_others_go_on() {
        let many: serde_json::Map<String, Value> = (0..256)
            .map(|i| (format!("i{i}"), json!({"tags": [{"tag": "t", "createdAt": "2026-01-01T00:00:00Z"}]})))
            .collect();
        let mut case = beginning(node(many.into(), json!({})), &[], job("j1", "a", json!({})));
        case.begin.push(job("j2", "a", json!({"spec": {"image": "i7:new"}})));
        let pass = case.pass();
        assert_eq!(pass.refused.len(), 1);
        assert!(pass.refused[0].0 == "j1" && pass.refused[0].1.contains("256 images"));
        assert_eq!(pass.spec.unwrap().images["i7"].tags.len(), 2);
    }

    #[test]
    fn jobs_of_one_namespace_hold_up_no_other_namespace() {
        let mut case = of(node(json!({}), json!({})), &[]);
        case.begin = (0..300)
            .map(|i| job(&format!("j{i}"), "a", json!({"spec": {"image": format!("i{i}:v1")}})))
            .chain([job("other", "b", json!({"spec": {"image": "theirs:v1"}}))])
            .collect();
        let pass = case.pass();
        assert_eq!(pass.refused.len(), 300 - 192);
        assert!(pass.refused.iter().all(|(uid, why)| uid != "other" && why.contains("192 of them for this namespace")));
        assert!(pass.spec.unwrap().images.contains_key("theirs"));
    }

    #[test]
    fn several_jobs_are_written_at_once() {
        let mut case = beginning(node(json!({}), json!({})), &[], job("j1", "a", json!({})));
        case.begin.push(job("j2", "b", json!({"spec": {"image": "other:v1"}})));
        case.begin.push(job("j3", "b", json!({"spec": {"image": "app:v1"}})));
        let spec = case.pass().spec.unwrap();
        assert_eq!(spec.images.keys().collect::<Vec<_>>(), ["app", "other"]);
        assert_eq!(spec.images["app"].tags[0].owner_references.len(), 2);
    }

    #[test]
    fn e11_a_daemon_that_says_nothing_is_given_up_and_one_that_pulls_is_not() {
        let given_up = |status: Value, policy: Value, age: u64| {
            let view = node(entry(&["x"], json!({"pullPolicy": policy, "ownerReferences": []})), status);
            let pass = Case { age, ..of(view, &[]) }.pass();
            (pass.given_up.first().map(|given_up| given_up.message), pass.next.map(|next| next.as_secs()))
        };
        let none = json!({});
        assert_eq!(given_up(none.clone(), none.clone(), 599), (None, Some(1)));
        assert_eq!(given_up(none.clone(), none.clone(), 600), (Some(SILENT), None));
        let pulling = says("Pulling", json!({"startTime": "2026-01-01T00:00:00Z"}));
        // Four attempts of 600 s, the waits between them, and ten minutes.
        assert_eq!(given_up(pulling.clone(), none.clone(), 3100), (None, Some(20)));
        assert_eq!(given_up(pulling.clone(), none.clone(), 3120), (Some(SILENT), None));
        let deadline = json!({"activeDeadlineSeconds": 60});
        assert_eq!(given_up(pulling.clone(), deadline.clone(), 659), (None, Some(1)));
        assert_eq!(given_up(pulling, deadline.clone(), 660), (Some(LATE), None));
        assert_eq!(given_up(says("Waiting", json!({})), none.clone(), 1_000_000), (None, None));
        assert_eq!(given_up(says("Waiting", json!({})), deadline, 660), (Some(LATE), None));
        assert_eq!(given_up(says("Failed", json!({})), none, 1_000_000), (None, Some(200)), "it goes after its time");
    }

    #[test]
    fn a_clock_that_is_off_gives_up_nobody_early() {
        let ahead = says("Pulling", json!({"startTime": "2025-12-31T00:00:00Z"}));
        let view = node(entry(&[], json!({"ownerReferences": []})), ahead);
        assert!(Case { age: 3000, ..of(view, &[]) }.pass().given_up.is_empty());
    }

    #[test]
    fn giving_up_keeps_what_the_daemon_said_of_others() {
        let spec: NodeImageSpec =
            serde_json::from_value(json!({"images": {"app": {"tags": [{"tag": "v2"}, {"tag": "v1", "version": 3}]}}}))
                .unwrap();
        let status: NodeImageStatus = serde_json::from_value(json!({"desired": 2, "newer": true, "firstSyncStatus": {"status": "Succeeded"}, "imageStatuses": {
            "gone": {"tags": [{"tag": "x", "phase": "Succeeded"}]},
            "app": {"tags": [{"tag": "v2", "phase": "Pulling", "progress": 30, "newer": 1}, {"tag": "v1", "phase": "Succeeded", "version": 2}]}}})).unwrap();
        let given_up =
            GivenUp { image: "app".into(), tag: "v1".into(), version: 3, message: SILENT, owners: Vec::new() };
        let after = serde_json::to_value(give_up(&spec, &status, &[given_up], now())).unwrap();
        assert_eq!(
            after,
            json!({"desired": 2, "succeeded": 0, "failed": 1, "pulling": 1, "waiting": 0, "newer": true, "firstSyncStatus": {"status": "Succeeded"},
            "imageStatuses": {"app": {"tags": [
                {"tag": "v1", "phase": "Failed", "version": 3, "completionTime": "2026-01-01T01:00:00Z", "message": SILENT},
                {"tag": "v2", "phase": "Pulling", "progress": 30, "newer": 1}]}}})
        );
    }

    #[test]
    fn e5_a_job_without_an_end_is_not_cut_at_half_an_hour() {
        let never = job(
            "j1",
            "a",
            json!({"spec": {"completionPolicy": {"type": "Never"}, "pullPolicy": {"timeoutSeconds": 3000}}}),
        );
        let spec = beginning(node(json!({}), json!({})), &[], never).spec();
        let policy = &spec["images"]["app"]["tags"][0]["pullPolicy"];
        assert_eq!(policy["activeDeadlineSeconds"], 3000, "e5: not cut at 1800");
        assert!((85_800..87_000).contains(&policy["ttlSecondsAfterFinished"].as_i64().unwrap()), "{policy}");
    }
}
