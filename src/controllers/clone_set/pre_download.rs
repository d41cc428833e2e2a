//! Makes and deletes the ImagePullJobs of CloneSets, as the rules say. What fails here never fails a pass: it is told, and
//! tried again.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Mutex,
    time::Duration,
};

use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta},
};
use serde_json::{Value, json};

use super::{Controller, Resolved, uid_of};
use crate::{
    api::{apps::clone_set::CloneSet, feature_gates::gate, labels},
    domain::kinds::clone_set::{
        make,
        one_update::{self, Rules},
        pre_download::{self as rules, Decision, Observed},
    },
    k8s::revision,
    runtime::{apply::code, clock, lock, watches::ObjectKey},
};

/// After a failure.
const TRY_AGAIN: Duration = Duration::from_secs(15);
/// How often to ask whether the API server knows ImagePullJobs, while it does not.
const ASK_AGAIN: Duration = Duration::from_secs(300);
/// Objects in one answer of a list.
const PAGE: u32 = 500;

/// What is remembered for one CloneSet.
#[derive(Default)]
pub(super) struct Notes {
    /// The revisions between which there is nothing left to do.
    settled: String,
    /// What was said last.
    told: String,
}

/// The jobs of all CloneSets. Nobody else makes any for them, so one list is enough.
#[derive(Default)]
pub(super) struct PullJobs(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// When it was last found that the API server does not know them.
    absent_at: Option<Duration>,
    /// Their names, by the UID of the CloneSet. None: not listed yet.
    by_owner: Option<HashMap<String, BTreeSet<String>>>,
}

/// Does what is due for one CloneSet; says when to try again.
pub(super) async fn run(controller: &Controller, clone_set: &CloneSet, resolved: &Resolved) -> Option<Duration> {
    let gates = &controller.context.gates;
    if !gates.enabled(gate::PRE_DOWNLOAD) || !gates.enabled(gate::KRUISE_DAEMON) {
        return None;
    }
    let key = ObjectKey::of(clone_set);
    let between = format!("{} {}", resolved.current, resolved.update);
    if controller.memories.with(&key, |memory| memory.pre_download.settled == between) == Some(true) {
        return None;
    }
    let said = match pass(controller, clone_set, resolved).await {
        Ok(Settled::Yes) => {
            let notes = Notes { settled: between, told: String::new() };
            controller.memories.with(&key, |memory| memory.pre_download = notes);
            return None;
        }
        Ok(Settled::NotYet) => return None, // a Pod that gets ready brings us back
        Ok(Settled::Refused(why)) => (why, None),
        Err(error) => (error.to_string(), Some(TRY_AGAIN)),
    };
    let (why, again) = said;
    let said_before =
        controller.memories.with(&key, |memory| std::mem::replace(&mut memory.pre_download.told, why.clone()));
    if said_before.is_some_and(|before| before != why) {
        controller.pods.warning(
            &make::owner(clone_set),
            "FailedPreDownload",
            &format!("new images are not pulled beforehand: {why}"),
        );
    }
    again
}

enum Settled {
    Yes,
    NotYet,
    Refused(String),
}

async fn pass(controller: &Controller, clone_set: &CloneSet, resolved: &Resolved) -> kube::Result<Settled> {
    if !controller.pull_jobs.are_known(controller).await? {
        return Ok(Settled::NotYet);
    }
    if revision::is_same(&resolved.current, &resolved.update) {
        return delete_all(controller, clone_set).await;
    }
    let resolved = controller.with_known(clone_set, resolved).await?;
    let namespace = clone_set.metadata.namespace.as_deref().unwrap_or_default();
    let revisions = raw(controller, namespace, "apps", "v1", "ControllerRevision", "controllerrevisions");
    let Some(update) = revisions.get_opt(&resolved.update).await? else { return Ok(Settled::NotYet) };
    let update = serde_json::to_value(&update).map_err(kube::Error::SerdeError)?;
    let from = resolved.template(&resolved.current).unwrap_or_default();
    // What the API server can resize matters to no image.
    let allowed = controller.in_place.allowed(&controller.context.gates).await.unwrap_or_default();
    let recreate_on_claim_change = controller.context.gates.enabled(gate::RECREATE_ON_CLAIM_CHANGE);
    let changes = Rules { allowed, recreate_on_claim_change };
    let between = (resolved.current.as_str(), resolved.update.as_str());
    let known = resolved.known.as_deref().map(Vec::as_slice).unwrap_or_default();
    let in_place = one_update::difference(clone_set, known, between, changes).map(drop);
    let label = match rules::decide(&Observed { clone_set, update: &update, from: &from, in_place }) {
        Decision::Decided => return Ok(Settled::Yes),
        Decision::Wait => return Ok(Settled::NotYet),
        Decision::Refuse(why) => return Ok(Settled::Refused(why)),
        Decision::Ignore(why) => {
            tracing::debug!(clone_set = %ObjectKey::of(clone_set), why, "new images are not pulled beforehand");
            labels::PRE_DOWNLOAD_IGNORED
        }
        Decision::Create(jobs) => {
            for job in &jobs {
                create(controller, clone_set, job).await?;
            }
            labels::PRE_DOWNLOAD_CREATED
        }
    };
    let patch = json!({"metadata": {"uid": update["metadata"]["uid"], "labels": {label: "true"}}});
    revisions.patch(&resolved.update, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(Settled::Yes)
}

async fn create(controller: &Controller, clone_set: &CloneSet, job: &Value) -> kube::Result<()> {
    let text = |pointer: &str| job.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (name, image) = (text("/metadata/name"), text("/spec/image"));
    let api = jobs(controller, text("/metadata/namespace"));
    match api
        .create(&PostParams::default(), &serde_json::from_value(job.clone()).map_err(kube::Error::SerdeError)?)
        .await
    {
        Ok(_) => {
            let message = format!("created ImagePullJob {name} for image {image}");
            controller.pods.normal(&make::owner(clone_set), "CreatedImagePullJob", &message);
        }
        Err(error) if code(&error) == Some(409) => {}
        Err(error) => {
            let message = format!("failed to create ImagePullJob {name} for image {image}: {error}");
            controller.pods.normal(&make::owner(clone_set), "FailedCreateImagePullJob", &message);
            return Err(error);
        }
    }
    let mut known = lock(&controller.pull_jobs.0);
    let names = known.by_owner.get_or_insert_default().entry(uid_of(clone_set).to_owned()).or_default();
    names.insert(name.to_owned());
    Ok(())
}

/// No revision is being rolled out: what was pulled is there, and the rest is not wanted any more.
async fn delete_all(controller: &Controller, clone_set: &CloneSet) -> kube::Result<Settled> {
    let uid = uid_of(clone_set);
    let names =
        lock(&controller.pull_jobs.0).by_owner.as_ref().and_then(|all| all.get(uid)).cloned().unwrap_or_default();
    let api = jobs(controller, clone_set.metadata.namespace.as_deref().unwrap_or_default());
    for name in names {
        // By its owner too: somebody may have made another one of that name.
        let is_ours = match api.get_metadata_opt(&name).await? {
            Some(job) => rules::is_of(&json!({"metadata": job.metadata}), clone_set),
            None => false,
        };
        if is_ours {
            match api.delete(&name, &DeleteParams::background()).await {
                Err(error) if code(&error) != Some(404) => return Err(error),
                _ => {}
            }
        }
    }
    if let Some(all) = &mut lock(&controller.pull_jobs.0).by_owner {
        all.remove(uid);
    }
    Ok(Settled::Yes)
}

impl PullJobs {
    /// Whether the API server knows such jobs; the first time also which ones there are.
    async fn are_known(&self, controller: &Controller) -> kube::Result<bool> {
        {
            let known = lock(&self.0);
            let now = clock::now().mono;
            if known.by_owner.is_some() {
                return Ok(true);
            }
            if known.absent_at.is_some_and(|at| now.saturating_sub(at) < ASK_AGAIN) {
                return Ok(false);
            }
        }
        let mut by_owner: HashMap<String, BTreeSet<String>> = HashMap::new();
        let api: Api<DynamicObject> = match &controller.context.only_namespace {
            Some(namespace) => jobs(controller, namespace),
            None => Api::all_with(
                controller.context.client.clone(),
                &resource("apps.kruise.io", "v1alpha1", "ImagePullJob", "imagepulljobs"),
            ),
        };
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = match api.list_metadata(&params).await {
                Err(error) if code(&error) == Some(404) => {
                    lock(&self.0).absent_at = Some(clock::now().mono);
                    return Ok(false);
                }
                page => page?,
            };
            for job in page.items {
                if let (Some(owner), Some(name)) = (controller_of(&job), job.metadata.name) {
                    by_owner.entry(owner).or_default().insert(name);
                }
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => break,
            }
        }
        let mut known = lock(&self.0);
        // Jobs that another pass has made meanwhile stay known.
        let all = known.by_owner.get_or_insert_default();
        by_owner.into_iter().for_each(|(owner, names)| all.entry(owner).or_default().extend(names));
        Ok(true)
    }
}

fn controller_of(job: &PartialObjectMeta<DynamicObject>) -> Option<String> {
    let mut owners = job.metadata.owner_references.iter().flatten().filter(|owner| owner.controller == Some(true));
    owners.find(|owner| owner.kind == "CloneSet").map(|owner| owner.uid.clone())
}

fn jobs(controller: &Controller, namespace: &str) -> Api<DynamicObject> {
    raw(controller, namespace, "apps.kruise.io", "v1alpha1", "ImagePullJob", "imagepulljobs")
}

fn raw(
    controller: &Controller,
    namespace: &str,
    group: &str,
    version: &str,
    kind: &str,
    plural: &str,
) -> Api<DynamicObject> {
    Api::namespaced_with(controller.context.client.clone(), namespace, &resource(group, version, kind, plural))
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}
