//! The writes of copies. An object is written only if it was found to be a copy of this ResourceDistribution: by the patch that
//! writes it, or in the version that was read.
//!
//! Where it is likely what is there, one request is enough: a creation is refused where there is something, and a JSON patch
//! changes only a copy, which it tests for. Otherwise a copy is read first. Without the right to read Secrets that is a JSON
//! patch that only tests: the API server answers with the object if it is a copy, and refuses it otherwise, whether policies
//! are in force or not.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Controller, Job, WriteLabels};
use crate::{
    api::labels,
    domain::kinds::resource_distribution::{
        content::{Content, ResourceKind},
        copy::{self, CopyObject, OWNERS_LOOKED_AT, is_copy},
        memory::{Done, Expected, Operation},
        plan::{CopyStep, Steps},
    },
    k8s::{path, pointer::escaped},
    runtime::{
        apply::{code, is_already_there, is_name_taken, patch_body, post_body, said},
        clock,
        events::reference,
        pass::Pass,
        slow_start::slow_start,
        watches::ObjectKey,
    },
};

/// How a refusal by a policy over our own account begins.
const BY_OWN_POLICY: &str = "ValidatingAdmissionPolicy 'kruise-manager-";

/// How long one step may take: a webhook of one namespace may never answer.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a pass begins with what has failed before.
const TIME_FOR_AGAIN: Duration = Duration::from_secs(5);

/// What has the name of a copy in a namespace.
enum Found {
    Nothing,
    Others,
    /// A copy: its metadata, and all of it.
    Copy(Box<(ObjectMeta, Value)>),
}

/// A step that failed.
struct Failure(Operation, kube::Error);

/// Whether a policy over our own account has said no: what is there is no copy.
fn is_own_policy(error: &kube::Error) -> bool {
    code(error) == Some(403) && said(error).contains(BY_OWN_POLICY)
}

impl Controller {
    /// Carries out the steps: one at first, more at a time with every success. Whatever fails in one namespace is tried again
    /// after a pause of its own, and what has failed before runs beside the others. Whether all were tried that had not failed.
    pub(super) async fn carry_out(&self, job: &Job, steps: Steps, pass: &mut Pass) -> bool {
        let mut window = self.memories.with(&job.key, |memory| memory.window).unwrap_or_default();
        let (mut window_of_again, number) = (0, steps.first.len());
        let tried = AtomicUsize::new(0);
        let until = clock::now().mono + TIME_FOR_AGAIN;
        let first = slow_start(
            steps.first,
            &mut window,
            |_| true,
            |step| {
                tried.fetch_add(1, Ordering::Relaxed);
                self.step(job, step)
            },
        );
        let again = slow_start(
            steps.again,
            &mut window_of_again,
            |_| true,
            |step| async { if clock::now().mono < until { self.step(job, step).await } else { Ok(()) } },
        );
        let ((_, failure), _) = tokio::join!(first, again);
        self.memories.with(&job.key, |memory| memory.window = window);
        let (written, deleted) = (job.written.load(Ordering::Relaxed), job.deleted.load(Ordering::Relaxed));
        if written + deleted > 0 {
            tracing::info!(distribution = job.object.name(), written, deleted, "copies");
            let message = format!("wrote {written} copies and deleted {deleted}");
            self.context.events.normal(&reference(job.object.as_ref()), "Distributed", &message);
        }
        // One after the other was not answered: the API server is away, which concerns all of them.
        let is_through = tried.into_inner() == number;
        if !is_through && let Some(error) = failure.filter(|error| code(error).is_none()) {
            pass.note(Err(error));
        }
        is_through
    }

    async fn step(&self, job: &Job, step: CopyStep) -> kube::Result<()> {
        // What is no longer wanted is not done: a copy may be the source by now.
        let is_wanted = || {
            let now = self.distributions.get(&job.key);
            now.is_some_and(|now| now.metadata.generation == job.object.metadata.generation)
        };
        let (namespace, operation) = match &step {
            CopyStep::Copy(namespace) => (namespace, Operation::Get),
            CopyStep::Remove(namespace) => (namespace, Operation::Delete),
        };
        // Held in memory several times while it is sent. That others take their time is no failure of this namespace.
        let _room = self.room.acquire_many(job.weight()).await;
        let work = async {
            // A pass may be long, and room may be waited for.
            if !is_wanted() {
                return Ok(None);
            }
            match &step {
                CopyStep::Copy(namespace) => self.copy(job, namespace).await.map(Some),
                CopyStep::Remove(namespace) => self.remove(job, namespace).await.map(Some),
            }
        };
        let result = tokio::time::timeout(STEP_TIMEOUT, work).await.unwrap_or_else(|_| {
            let why = format!("no answer within {} s", STEP_TIMEOUT.as_secs());
            Err(Failure(operation, kube::Error::Service(why.into())))
        });
        match result {
            Ok(done) => {
                if let Some(done) = done {
                    self.note(job, namespace, done);
                }
                Ok(())
            }
            // It is gone or has changed since it was read: it is read again.
            Err(Failure(Operation::Get | Operation::Update | Operation::Delete, error))
                if matches!(code(&error), Some(404 | 409)) =>
            {
                self.note_write(job, namespace);
                Ok(())
            }
            Err(Failure(operation, error)) => {
                self.note(job, namespace, Done::Failed(operation, said(&error)));
                Err(error)
            }
        }
    }

    /// Others may change a copy all the time: each write comes later than the one before.
    fn note_write(&self, job: &Job, namespace: &str) {
        let now = clock::now().mono;
        self.memories.with(&job.key, |memory| memory.note_write(namespace, now));
    }

    fn note(&self, job: &Job, namespace: &str, done: Done) {
        let (is_watched, now) = (job.is_watched(), clock::now().mono);
        self.memories.with(&job.key, |memory| memory.note(namespace, done, is_watched, now));
    }

    fn objects(&self, job: &Job, namespace: &str) -> Api<DynamicObject> {
        let resource = match job.spec.kind {
            ResourceKind::ConfigMap => ApiResource::erase::<ConfigMap>(&()),
            ResourceKind::Secret => ApiResource::erase::<Secret>(&()),
        };
        Api::namespaced_with(self.context.client.clone(), namespace, &resource)
    }

    async fn copy(&self, job: &Job, namespace: &str) -> Result<Done, Failure> {
        let Some((content, _)) = &job.content else { return Ok(Done::Clean) };
        let failed = |operation| move |error| Failure(operation, error);
        match self.expected(job, namespace) {
            Expected::Nothing => match self.create(job, content, namespace).await {
                Err(error) if is_already_there(&error) => {}
                made => return made.map_err(failed(Operation::Create)),
            },
            Expected::Copy => {
                if let Some((metadata, object)) =
                    self.renew(job, content, namespace).await.map_err(failed(Operation::Update))?
                {
                    return self.complete(job, content, namespace, (metadata, object)).await;
                }
            }
            Expected::Unknown => {}
        }
        match self.find(job, namespace).await.map_err(failed(Operation::Get))? {
            Found::Others => Ok(Done::Others),
            Found::Nothing => self.create(job, content, namespace).await.map_err(failed(Operation::Create)),
            Found::Copy(found) => self.complete(job, content, namespace, *found).await,
        }
    }

    /// With which request to begin.
    fn expected(&self, job: &Job, namespace: &str) -> Expected {
        let Some(store) = self.watched.copies(&job.spec.name).filter(|_| job.is_watched()) else {
            let expected = self.memories.with(&job.key, |memory| memory.expected(namespace, &job.hash));
            return expected.unwrap_or(Expected::Unknown);
        };
        // Where a watch shows nothing, nothing has to be asked either.
        let view = store.get(&ObjectKey::new(namespace, &job.spec.name));
        match view.is_some_and(|view| view.is_copy(job.object.name()) && !view.is_ending) {
            true => Expected::Copy,
            false => Expected::Unknown,
        }
    }

    /// Makes a copy. What is there stays: then the answer is 409.
    async fn create(&self, job: &Job, content: &Content, namespace: &str) -> kube::Result<Done> {
        self.note_write(job, namespace);
        let made = post_body(&self.context.client, &self.path(job, namespace), job.new_copy(content)?).await;
        if !made.as_ref().is_err_and(is_already_there) {
            self.count(Operation::Create, made.is_ok());
        }
        let made = made?;
        job.written.fetch_add(1, Ordering::Relaxed);
        // What has been stored has been made, whether its answer can be read or not: then the watch brings it.
        self.take_over(job, || serde_json::from_str(&made));
        Ok(Done::Copied(job.hash.clone()))
    }

    /// Gives a copy its content without having read it. None: what is there is no copy, or none as we make them.
    async fn renew(&self, job: &Job, content: &Content, namespace: &str) -> kube::Result<Option<(ObjectMeta, Value)>> {
        self.note_write(job, namespace);
        let path = format!("{}{}", self.path(job, namespace), path::path([job.spec.name.as_str()]));
        let answer = patch_body(&self.context.client, &path, job.renewal(content)?).await;
        if answer.as_ref().is_err_and(|error| matches!(code(error), Some(404 | 409 | 422)) || is_own_policy(error)) {
            return Ok(None);
        }
        self.count(Operation::Update, answer.is_ok());
        let answer = answer?;
        job.written.fetch_add(1, Ordering::Relaxed);
        let object: Value = serde_json::from_str(&answer).map_err(kube::Error::SerdeError)?;
        let metadata = ObjectMeta::deserialize(&object["metadata"]).map_err(kube::Error::SerdeError)?;
        Ok(Some((metadata, object)))
    }

    /// Writes what a copy lacks, in the version that was read.
    async fn complete(
        &self,
        job: &Job,
        content: &Content,
        namespace: &str,
        (metadata, object): (ObjectMeta, Value),
    ) -> Result<Done, Failure> {
        let changes = match metadata.deletion_timestamp {
            Some(_) => None,
            None => copy::patch(&object, &metadata, content, job.distributor()),
        };
        let Some(changes) = changes else {
            self.take_over(job, || serde_json::from_value(object));
            return Ok(match metadata.deletion_timestamp {
                Some(_) => Done::Ending,
                None => Done::Copied(job.hash.clone()),
            });
        };
        if copy::has_to_be_replaced(&object, content) {
            return self.replace(job, content, namespace, metadata).await;
        }
        self.note_write(job, namespace);
        let api = self.objects(job, namespace);
        let changed = api.patch(&job.spec.name, &PatchParams::default(), &Patch::Merge(changes)).await;
        self.count(Operation::Update, changed.is_ok());
        let changed = changed.map_err(|error| Failure(Operation::Update, error))?;
        job.written.fetch_add(1, Ordering::Relaxed);
        self.take_over(job, || serde_json::from_value(json!(changed)));
        Ok(Done::Copied(job.hash.clone()))
    }

    /// Puts another copy in the place of one that nobody can change into it, if the API server would take it. A crash in between
    /// leaves none, which the next look finds.
    async fn replace(
        &self,
        job: &Job,
        content: &Content,
        namespace: &str,
        metadata: ObjectMeta,
    ) -> Result<Done, Failure> {
        let failed = |error| Failure(Operation::Update, error);
        self.note_write(job, namespace);
        let accepted = self.try_create(job, content, namespace).await;
        if accepted.is_err() {
            self.count(Operation::Update, false);
        }
        accepted.map_err(failed)?;
        let is_gone = self.delete(job, namespace, metadata).await.map_err(failed)?;
        if !is_gone {
            return Ok(Done::Ending);
        }
        self.create(job, content, namespace).await.map_err(|error| Failure(Operation::Create, error))
    }

    /// A dry run of a creation, under the name of the copy that is there, so that policies over names judge the real one. A
    /// quota must have room for one more: the old copy still counts.
    async fn try_create(&self, job: &Job, content: &Content, namespace: &str) -> kube::Result<()> {
        let path = self.path(job, namespace) + "?dryRun=All";
        match post_body(&self.context.client, &path, job.new_copy(content)?).await {
            Ok(_) => Ok(()),
            Err(error) if is_name_taken(&error) => Ok(()),
            Err(kube::Error::Api(mut status)) => {
                status.message = format!("the old copy stays, a dry run of the new one failed: {}", status.message);
                Err(kube::Error::Api(status))
            }
            Err(error) => Err(error),
        }
    }

    /// Where the copies of a namespace are.
    fn path(&self, job: &Job, namespace: &str) -> String {
        path::in_namespace(path::CORE, "v1", namespace, job.spec.kind.plural())
    }

    async fn remove(&self, job: &Job, namespace: &str) -> Result<Done, Failure> {
        let failure = |error| Failure(Operation::Delete, error);
        let Found::Copy(found) = self.find(job, namespace).await.map_err(failure)? else { return Ok(Done::Clean) };
        let (metadata, object) = *found;
        if metadata.deletion_timestamp.is_some() {
            self.take_over(job, || serde_json::from_value(object));
            return Ok(Done::Clean);
        }
        self.delete(job, namespace, metadata).await.map_err(failure)?;
        Ok(Done::Clean)
    }

    /// Deletes a copy, in the version that was read. Whether it is gone: a finalizer may hold it.
    async fn delete(&self, job: &Job, namespace: &str, metadata: ObjectMeta) -> kube::Result<bool> {
        let uid = metadata.uid;
        let seen = Preconditions { uid: uid.clone(), resource_version: metadata.resource_version };
        let parameters = DeleteParams { preconditions: Some(seen), ..DeleteParams::background() };
        let deleted = self.objects(job, namespace).delete(&job.spec.name, &parameters).await;
        self.count(Operation::Delete, deleted.is_ok());
        let answer = deleted?;
        job.deleted.fetch_add(1, Ordering::Relaxed);
        match answer.left().filter(|object| object.metadata.finalizers.as_ref().is_some_and(|held| !held.is_empty())) {
            Some(object) => {
                self.take_over(job, || serde_json::from_value(json!(object)));
                Ok(false)
            }
            None => {
                if let Some(store) = self.watched.copies(&job.spec.name).filter(|_| job.is_watched()) {
                    store.remove(&ObjectKey::new(namespace, &job.spec.name), uid.as_deref());
                }
                Ok(true)
            }
        }
    }

    fn count(&self, operation: Operation, is_done: bool) {
        let operation = match operation {
            Operation::Create => "create",
            Operation::Get | Operation::Update => "update",
            Operation::Delete => "delete",
        };
        let result = if is_done { "done" } else { "failed" };
        self.writes.get_or_create(&WriteLabels { operation, result }).inc();
    }

    /// The answer to a write is seen before the watch brings it.
    fn take_over(&self, job: &Job, answer: impl FnOnce() -> serde_json::Result<CopyObject>) {
        if let Some(store) = self.watched.copies(&job.spec.name).filter(|_| job.is_watched())
            && let Ok(copy) = answer()
        {
            store.upsert(copy.into());
        }
    }

    /// What is there. Of a ConfigMap that a watch does not show nothing is read.
    async fn find(&self, job: &Job, namespace: &str) -> kube::Result<Found> {
        if let Some(store) = self.watched.copies(&job.spec.name).filter(|_| job.is_watched()) {
            let Some(view) = store.get(&ObjectKey::new(namespace, &job.spec.name)) else { return Ok(Found::Nothing) };
            if !view.is_copy(job.object.name()) {
                return Ok(Found::Others);
            }
            let nothing = json!({"metadata": {"uid": view.uid, "resourceVersion": view.version}});
            return self.read(job, namespace, Patch::Merge(nothing)).await;
        }
        let from = escaped(labels::DISTRIBUTED_FROM);
        let by_note = [(format!("/metadata/annotations/{from}"), job.object.name())];
        // Somebody may have taken the annotation off. Of what answers, all owners are looked at.
        let by_owner = (0..OWNERS_LOOKED_AT).map(|i| (format!("/metadata/ownerReferences/{i}/uid"), job.object.uid()));
        for (path, value) in by_note.into_iter().chain(by_owner) {
            let test = json!([{"op": "test", "path": path, "value": value}]);
            let test = serde_json::from_value(test).map_err(kube::Error::SerdeError)?;
            match self.read(job, namespace, Patch::Json(test)).await? {
                Found::Others => {}
                found => return Ok(found),
            }
        }
        Ok(Found::Others)
    }

    /// The answer to a patch that changes nothing.
    async fn read(&self, job: &Job, namespace: &str, nothing: Patch<Value>) -> kube::Result<Found> {
        let answer = self.objects(job, namespace).patch(&job.spec.name, &PatchParams::default(), &nothing).await;
        match answer {
            Ok(object) if is_copy(&object.metadata, job.object.name()) => {
                let metadata = object.metadata.clone();
                Ok(Found::Copy(Box::new((metadata, json!(object)))))
            }
            Ok(_) => Ok(Found::Others),
            Err(error) if code(&error) == Some(404) => Ok(Found::Nothing),
            // A test that does not hold.
            Err(error) if code(&error) == Some(422) => Ok(Found::Others),
            Err(error) if is_own_policy(&error) => Ok(Found::Others),
            Err(error) => Err(error),
        }
    }
}
