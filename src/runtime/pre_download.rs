//! Makes and deletes the ImagePullJobs of workloads, as [`domain::workload::pre_download`](crate::domain::workload::pre_download)
//! says. What fails here never fails a pass: it is reported, and tried again.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta},
};
use serde_json::{Value, json};

use super::{
    apply::{code, said},
    clock, lock,
    pod_control::PodControl,
    stored::only,
};
use crate::{
    api::{apps, labels},
    domain::workload::{
        owner::OwnerRef,
        pre_download::{self as rules, Decision},
    },
    k8s::{owner::controller_of, revision},
};

/// After a failure.
const TRY_AGAIN: Duration = Duration::from_secs(15);
/// How often to ask whether the API server knows ImagePullJobs, while it does not.
const ASK_AGAIN: Duration = Duration::from_secs(300);
/// Objects in one answer of a list.
const PAGE: u32 = 500;

/// What is remembered for one workload. It can be lost.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// The revisions and the generation for which there is nothing left to do.
    settled: String,
    /// The last event.
    reported: String,
}

/// What a workload is about to do, in one pass.
#[derive(Clone, Copy, Debug)]
pub struct Update<'a> {
    /// The workload.
    pub owner: &'a OwnerRef,
    /// Its generation: another spec is decided about anew.
    pub generation: i64,
    /// Name of the revision that Pods come from.
    pub from: &'a str,
    /// Name of the revision that they go to.
    pub to: &'a str,
}

/// The jobs of all workloads of one kind. Nobody else makes any for them, so one list is enough.
pub struct PreDownloads {
    client: Client,
    only_namespace: Option<Arc<str>>,
    kind: &'static str,
    pods: Arc<PodControl>,
    known: Mutex<KnownJobs>,
}

#[derive(Default)]
struct KnownJobs {
    /// When it was last found that the API server does not know them.
    absent_at: Option<Duration>,
    /// Their names, by the UID of the owner. None: not listed yet.
    by_owner: Option<HashMap<String, BTreeSet<String>>>,
}

enum Settled {
    Yes,
    NotYet,
    Refused(String),
}

impl PreDownloads {
    /// For the workloads of a kind; events go through `pods`.
    pub fn new(client: Client, only_namespace: Option<Arc<str>>, kind: &'static str, pods: Arc<PodControl>) -> Self {
        Self { client, only_namespace, kind, pods, known: Mutex::default() }
    }

    /// Does what is due for one workload. `decide` is given the ControllerRevision that Pods are updated to. Returns what is
    /// to be remembered, and when to try again.
    pub async fn run(
        &self,
        update: Update<'_>,
        notes: Notes,
        decide: impl AsyncFnOnce(&Value) -> kube::Result<Decision>,
    ) -> (Notes, Option<Duration>) {
        let Update { owner, generation, from, to } = update;
        let between = format!("{generation} {from} {to}");
        if notes.settled == between {
            return (notes, None);
        }
        let (why, again) = match self.pass(update, decide).await {
            Ok(Settled::Yes) => return (Notes { settled: between, reported: String::new() }, None),
            // A Pod that gets ready brings us back.
            Ok(Settled::NotYet) => return (notes, None),
            Ok(Settled::Refused(why)) => (why, None),
            Err(error) => (said(&error), Some(TRY_AGAIN)),
        };
        if notes.reported != why {
            let message = format!("new images are not pulled beforehand: {why}");
            self.pods.warning(owner, "FailedPreDownload", &message);
        }
        (Notes { reported: why, ..notes }, again)
    }

    async fn pass(
        &self,
        update: Update<'_>,
        decide: impl AsyncFnOnce(&Value) -> kube::Result<Decision>,
    ) -> kube::Result<Settled> {
        let Update { owner, from, to, .. } = update;
        if !self.are_known().await? {
            return Ok(Settled::NotYet);
        }
        if revision::is_same(from, to) {
            return self.delete_all(owner).await;
        }
        let resource = resource("apps", "v1", "ControllerRevision", "controllerrevisions");
        let revisions: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &owner.namespace, &resource);
        let Some(object) = revisions.get_opt(to).await? else { return Ok(Settled::NotYet) };
        let object = serde_json::to_value(&object).map_err(kube::Error::SerdeError)?;
        let labels = match decide(&object).await? {
            Decision::Decided => return Ok(Settled::Yes),
            Decision::Wait => return Ok(Settled::NotYet),
            Decision::Refuse(why) => return Ok(Settled::Refused(why)),
            Decision::Ignore(why) => {
                let OwnerRef { kind, namespace, name, .. } = owner;
                tracing::debug!(kind, namespace, name, why, "new images are not pulled beforehand");
                json!({labels::PRE_DOWNLOAD_IGNORED: "true"})
            }
            Decision::Create(jobs) => {
                for job in &jobs {
                    self.create(owner, job).await?;
                }
                json!({labels::PRE_DOWNLOAD_CREATED: "true", labels::PRE_DOWNLOAD_IGNORED: null})
            }
        };
        let patch = json!({"metadata": {"uid": object["metadata"]["uid"], "labels": labels}});
        revisions.patch(to, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(Settled::Yes)
    }

    async fn create(&self, owner: &OwnerRef, job: &Value) -> kube::Result<()> {
        let text = |pointer: &str| job.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (name, image) = (text("/metadata/name"), text("/spec/image"));
        let object = serde_json::from_value(job.clone()).map_err(kube::Error::SerdeError)?;
        match self.jobs(&owner.namespace).create(&PostParams::default(), &object).await {
            Ok(_) => {
                let message = format!("created ImagePullJob {name} for image {image}");
                self.pods.normal(owner, "CreatedImagePullJob", &message);
            }
            Err(error) if code(&error) == Some(409) => {}
            Err(error) => {
                let why = said(&error);
                let message = format!("failed to create ImagePullJob {name} for image {image}: {why}");
                self.pods.normal(owner, "FailedCreateImagePullJob", &message);
                return Err(error);
            }
        }
        let mut known = lock(&self.known);
        known.by_owner.get_or_insert_default().entry(owner.uid.clone()).or_default().insert(name.to_owned());
        Ok(())
    }

    /// No revision is being rolled out: what was pulled is there, and the rest is not wanted any more.
    async fn delete_all(&self, owner: &OwnerRef) -> kube::Result<Settled> {
        let names = lock(&self.known).by_owner.as_ref().and_then(|all| all.get(&owner.uid)).cloned();
        let api = self.jobs(&owner.namespace);
        for name in names.unwrap_or_default() {
            // By its owner and UID too: somebody may have made another one of that name, or make it now.
            let found = api.get_metadata_opt(&name).await?;
            let is_ours =
                |job: &PartialObjectMeta<DynamicObject>| rules::is_of(&json!({"metadata": job.metadata}), &owner.uid);
            if let Some(job) = found.filter(is_ours) {
                match api.delete(&name, &only(job.metadata.uid.as_deref().unwrap_or_default())).await {
                    Err(error) if !matches!(code(&error), Some(404 | 409)) => return Err(error),
                    _ => {}
                }
            }
        }
        if let Some(all) = &mut lock(&self.known).by_owner {
            all.remove(&owner.uid);
        }
        Ok(Settled::Yes)
    }

    /// Whether the API server knows such jobs; the first time also which ones there are.
    async fn are_known(&self) -> kube::Result<bool> {
        {
            let known = lock(&self.known);
            let now = clock::now().mono;
            if known.by_owner.is_some() {
                return Ok(true);
            }
            if known.absent_at.is_some_and(|at| now.saturating_sub(at) < ASK_AGAIN) {
                return Ok(false);
            }
        }
        let mut by_owner: HashMap<String, BTreeSet<String>> = HashMap::new();
        let api: Api<DynamicObject> = match &self.only_namespace {
            Some(namespace) => self.jobs(namespace),
            None => Api::all_with(self.client.clone(), &job_resource()),
        };
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = match api.list_metadata(&params).await {
                Err(error) if code(&error) == Some(404) => {
                    lock(&self.known).absent_at = Some(clock::now().mono);
                    return Ok(false);
                }
                page => page?,
            };
            for job in page.items {
                if let (Some(owner), Some(name)) = (self.controller_of(&job), job.metadata.name) {
                    by_owner.entry(owner).or_default().insert(name);
                }
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => break,
            }
        }
        let mut known = lock(&self.known);
        // Jobs that another pass has made meanwhile stay known.
        let all = known.by_owner.get_or_insert_default();
        by_owner.into_iter().for_each(|(owner, names)| all.entry(owner).or_default().extend(names));
        Ok(true)
    }

    fn controller_of(&self, job: &PartialObjectMeta<DynamicObject>) -> Option<String> {
        controller_of(&job.metadata, (apps::GROUP, self.kind)).map(|owner| owner.uid.clone())
    }

    fn jobs(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &job_resource())
    }
}

fn job_resource() -> ApiResource {
    resource("apps.kruise.io", "v1alpha1", "ImagePullJob", "imagepulljobs")
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}
