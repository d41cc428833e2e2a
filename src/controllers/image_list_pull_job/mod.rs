//! ImageListPullJobs: one ImagePullJob for each image of a list.
//!
//! - Owns: the ImagePullJobs that it makes, the status of lists, their deletion after the TTL, and the hash label of both.
//! - Watches: ImageListPullJobs and ImagePullJobs.
//! - What is due is decided by [`crate::domain::kinds::image_jobs::list`].

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{StreamExt, stream};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    runtime::watcher::Config,
};

use super::{Context, Registration, Runner, Started, lock, owned_by, owned_text};
use crate::{
    api::{
        apps::{
            self,
            image_list_pull_job::{ImageListPullJob, ImageListPullJobStatus},
            image_pull_job::ImagePullJob,
        },
        feature_gates::gate,
    },
    domain::kinds::image_jobs::{
        list::{self, ListPlan},
        list_spec::ListSpec,
    },
    k8s::{
        owner::controller_of,
        rbac::Rule,
        time::{Now, Sighting},
    },
    runtime::{
        apply::{code, is_refusal, namespace_is_ending, said},
        clock,
        events::reference,
        expiry,
        pass::{AFTER_CONFLICT, Pass, forget_deleted},
        queue::{Backoff, Queue, Requeue},
        shutdown::Shutdown,
        status_writer::{Outcome, StatusWriter, json_of},
        watches::{Change, ObjectKey, Store, StoreIndex},
    },
};

/// Its entry in `CONTROLLERS`.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: Some("imagelistpulljobs.apps.kruise.io"),
    gate: Some(gate::IMAGE_PULL_JOB),
    rules: &[
        Rule::new(&["apps.kruise.io"], &["imagelistpulljobs"], &["get", "list", "watch", "patch", "delete"]),
        Rule::new(&["apps.kruise.io"], &["imagelistpulljobs/status"], &["patch"]),
        Rule::new(&["apps.kruise.io"], &["imagepulljobs"], &["get", "list", "watch", "create", "patch", "delete"]),
    ],
    workers_flag: None,
    workers: 3,
    start,
};

const NAME: &str = "imagelistpulljob-controller";
/// Writes at a time.
const AT_ONCE: usize = 8;

struct Controller {
    context: Context,
    lists: Arc<Store<ImageListPullJob>>,
    jobs: Arc<Store<ImagePullJob>>,
    queue: Arc<Queue<ObjectKey>>,
    memories: Mutex<HashMap<ObjectKey, ListState>>,
    status: StatusWriter,
}

/// In-memory state of a list; losing it does no harm.
#[derive(Default)]
struct ListState {
    uid: String,
    /// It was seen before its end.
    is_known: bool,
    end: Option<Sighting>,
    said: String,
}

fn start(context: &Context, workers: usize, shutdown: Shutdown) -> Started {
    let controller = Arc::new(Controller::new(context));
    Started::new(controller.run(workers, shutdown))
}

/// Jobs by their list.
const BY_LIST: StoreIndex<ImagePullJob> = StoreIndex::new("list", list_of);

/// Group and kind, as owner references name them.
const KIND: (&str, &str) = (apps::GROUP, "ImageListPullJob");

fn list_of(job: &ImagePullJob) -> Option<String> {
    let owner = controller_of(&job.metadata, KIND)?;
    Some(owned_text(job.metadata.namespace.as_deref().unwrap_or_default(), &owner.uid))
}

fn list_key(job: &ImagePullJob) -> Option<ObjectKey> {
    let owner = controller_of(&job.metadata, KIND)?;
    Some(ObjectKey::new(job.metadata.namespace.as_deref().unwrap_or_default(), &owner.name))
}

impl Controller {
    fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            lists: Store::new(None),
            // All jobs are watched: one of a list may lack the hash label, which can be removed and which earlier releases of
            // OpenKruise did not set. Of a job without a list only its UID and version are kept.
            jobs: Store::of_work([BY_LIST], |job| list_of(job).is_none()),
            queue: Queue::new(Backoff::default()),
            memories: Mutex::default(),
            status: StatusWriter::default(),
        }
    }

    async fn run(self: Arc<Self>, workers: usize, shutdown: Shutdown) {
        let (on_list, on_job) = (self.clone(), self.clone());
        let list_changed = move |change: Change<'_, ImageListPullJob>| match change {
            Change::Applied { new, .. } => on_list.queue.add(ObjectKey::of(new.as_ref())),
            Change::Deleted(old) => {
                lock(&on_list.memories).remove(&ObjectKey::of(old.as_ref()));
            }
            Change::Undecodable { key, error } => {
                tracing::error!(list = %key, error, "this ImageListPullJob cannot be read and is left alone");
            }
        };
        let job_changed = move |change: Change<'_, ImagePullJob>| {
            // A job that cannot be read keeps its name, so its list makes no second one.
            let Some((old, new)) = change.sides() else { return };
            // Both: one may be taken away from its list.
            for key in [old, new].into_iter().flatten().filter_map(|job| list_key(job)) {
                on_job.queue.add(key);
            }
        };
        let runner = Runner::new(&self.context, NAME, shutdown)
            .watch_guarded(self.context.api(), Config::default(), &self.lists, list_changed)
            .watch_guarded(self.context.api(), Config::default(), &self.jobs, job_changed);
        let this = self.clone();
        let reconcile = move |key: ObjectKey| {
            let this = this.clone();
            async move { this.reconcile(&key).await }
        };
        runner.run(self.queue.clone(), workers, reconcile).await;
    }

    fn api(&self, key: &ObjectKey) -> Api<ImageListPullJob> {
        Api::namespaced(self.context.client.clone(), &key.namespace)
    }

    fn api_of_jobs(&self, list: &ObjectKey) -> Api<ImagePullJob> {
        Api::namespaced(self.context.client.clone(), &list.namespace)
    }

    async fn reconcile(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let result = self.pass(key).await;
        forget_deleted(&self.memories, &self.lists, key);
        result
    }

    async fn pass(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let Some(list) = self.lists.get(key) else { return Ok(Requeue::Await) };
        // What is being deleted takes its jobs along.
        if list.is_deleting() {
            return Ok(Requeue::Await);
        }
        let now = clock::now();
        let spec = ListSpec::of(&list);
        let ended = self.remember(&list, now);
        if list.is_complete() {
            return self.finish(key, &list, &spec, ended).await;
        }
        if let Some(said) = &spec.error {
            self.emit_once(&list, "Invalid", said, true);
            return self.record(&list, list::invalid(&list, said, now), now).await;
        }
        let mut pass = Pass::default();
        let mut list = list;
        if !spec.has_labelled(&list.metadata) {
            let patch = Patch::Merge(spec.label_patch(&list.metadata));
            match self.api(key).patch(&key.name, &PatchParams::default(), &patch).await {
                Ok(newer) => {
                    self.lists.upsert(newer.clone());
                    if spec.has_labelled(&newer.metadata) {
                        return Ok(Requeue::After(Duration::ZERO));
                    }
                    // Somebody's webhook takes the label away: the list goes on without it.
                    list = Arc::new(newer);
                }
                Err(error) if matches!(code(&error), Some(404 | 409)) => return Ok(Requeue::After(AFTER_CONFLICT)),
                Err(error) if is_refusal(&error) => drop(pass.note(Err(error))),
                Err(error) => return Err(error),
            }
        }
        let children = self.children(&list);
        let plan = list::plan(&list, &spec, &children, now);
        pass.note(self.carry_out(&list, &plan).await.map(|()| false));
        // What was refused of one image keeps nobody from learning what came of the others. But a list that is over deletes no
        // job any more.
        if pass.error.is_none() || plan.status.completion_time.is_none() {
            match self.record(&list, plan.status, now).await {
                Ok(Requeue::After(after)) => pass.look_after(Some(after)),
                Ok(Requeue::Await) => {}
                Err(error) => {
                    pass.note(Err(error));
                }
            }
        }
        // Last: where it is refused, the list goes on and ends all the same.
        pass.note(self.relabel(key, &spec, &plan.relabel).await.map(|()| false));
        pass.end(|after| self.queue.add_after(key.clone(), after))
    }

    /// The jobs of a list.
    fn children(&self, list: &ImageListPullJob) -> Vec<Arc<ImagePullJob>> {
        self.jobs.by_index(&BY_LIST, &owned_by(&list.metadata))
    }

    /// How long ago the list ended, if it has.
    fn remember(&self, list: &ImageListPullJob, now: Now) -> Duration {
        let uid = list.metadata.uid.clone().unwrap_or_default();
        let mut memories = lock(&self.memories);
        let memory = memories.entry(ObjectKey::of(list)).or_default();
        if memory.uid != uid {
            *memory = ListState { uid, ..ListState::default() };
        }
        let Some(end) = list.status.as_ref().and_then(|status| status.completion_time) else {
            memory.is_known = true;
            return Duration::ZERO;
        };
        let seen = if memory.is_known { Sighting::live(now) } else { Sighting::found(now, end) };
        memory.end.get_or_insert(seen).age(now)
    }

    async fn finish(
        &self,
        key: &ObjectKey,
        list: &ImageListPullJob,
        spec: &ListSpec,
        ended: Duration,
    ) -> kube::Result<Requeue> {
        let children = self.children(list);
        if let Some(status) = list::for_newer_generation(list, spec, &children, clock::now()) {
            let recorded = (&json_of(list.status.as_ref())?, &json_of(Some(&status))?);
            let outcome = self.status.write((&self.api(key), &self.lists), list, recorded, false, clock::now()).await?;
            if let Some(after) = outcome.look_again() {
                return Ok(Requeue::After(after));
            }
        }
        let Some(left) = spec.time_to_live.map(|ttl| ttl.saturating_sub(ended)) else {
            return Ok(Requeue::Await);
        };
        if !left.is_zero() {
            return Ok(Requeue::After(left));
        }
        tracing::info!(list = %key, "deleting it, its time to live is over");
        expiry::delete(&self.api(key), list).await
    }

    async fn carry_out(&self, list: &ImageListPullJob, plan: &ListPlan) -> kube::Result<()> {
        let key = ObjectKey::of(list);
        let api = self.api_of_jobs(&key);
        let about = reference(list);
        let mut not_deleted = None;
        for job in &plan.delete {
            let name = job.metadata.name.as_deref().unwrap_or_default();
            let preconditions = Preconditions { uid: job.metadata.uid.clone(), resource_version: None };
            let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
            match api.delete(name, &parameters).await {
                Err(error) if !matches!(code(&error), Some(404 | 409)) => {
                    not_deleted.get_or_insert(error);
                }
                _ => {
                    // The watch says when it is gone; until then its image gets no other one.
                    let message = format!("deleted ImagePullJob {name} for image {}", job.spec.image);
                    self.context.events.normal(&about, "Successful delete ImagePullJob", &message);
                }
            }
        }
        let make = |job: &ImagePullJob| {
            let (api, job) = (api.clone(), job.clone());
            async move { (api.create(&PostParams::default(), &job).await, job) }
        };
        let makes: Vec<_> = plan.create.iter().map(make).collect();
        let mut made = stream::iter(makes).buffer_unordered(AT_ONCE);
        let mut failed = None;
        let mut count = 0;
        while let Some((result, job)) = made.next().await {
            let name = job.metadata.name.as_deref().unwrap_or_default();
            match result {
                Ok(job) => {
                    self.jobs.upsert(job);
                    count += 1;
                }
                Err(error) if code(&error) == Some(409) => {
                    // Made by a process before this one, or somebody else's of that name.
                    if let Some(found) = api.get_opt(name).await? {
                        if controller_of(&found.metadata, KIND).map(|owner| &owner.uid) == list.metadata.uid.as_ref() {
                            self.jobs.upsert(found);
                        } else {
                            let why = format!("ImagePullJob {name} is there already and belongs to somebody else");
                            self.emit_once(list, "FailedCreateImagePullJob", &why, true);
                        }
                    }
                }
                Err(error) if namespace_is_ending(&error) => {}
                Err(error) => failed = Some(error),
            }
        }
        if count > 0 {
            tracing::info!(list = %key, jobs = count, "made ImagePullJobs");
            let message = format!("created {count} ImagePullJobs");
            self.context.events.normal(&about, "Successful create ImagePullJob", &message);
        }
        if let Some(error) = failed {
            self.emit_once(list, "FailedCreateImagePullJob", &said(&error), true);
            return Err(error);
        }
        not_deleted.map_or(Ok(()), Err)
    }

    /// Gives jobs that stay the label of their list. Neither their own controller nor admission looks at it.
    async fn relabel(&self, list: &ObjectKey, spec: &ListSpec, jobs: &[Arc<ImagePullJob>]) -> kube::Result<()> {
        let api = self.api_of_jobs(list);
        let write = |job: &Arc<ImagePullJob>| {
            let (api, job, patch) = (api.clone(), job.clone(), Patch::Merge(spec.label_patch(&job.metadata)));
            async move {
                let name = job.metadata.name.as_deref().unwrap_or_default();
                api.patch(name, &PatchParams::default(), &patch).await
            }
        };
        let writes: Vec<_> = jobs.iter().map(write).collect();
        let mut written = stream::iter(writes).buffer_unordered(AT_ONCE);
        let mut failed = None;
        while let Some(result) = written.next().await {
            match result {
                Ok(newer) => {
                    self.jobs.upsert(newer);
                }
                // It is gone, or another one of that name is there: the watch says so.
                Err(error) if matches!(code(&error), Some(404 | 409)) => {}
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn record(&self, list: &ImageListPullJob, status: ImageListPullJobStatus, now: Now) -> kube::Result<Requeue> {
        let key = ObjectKey::of(list);
        let before = list.status.clone().unwrap_or_default();
        if before == status && list.status.is_some() {
            return Ok(Requeue::Await);
        }
        let can_wait = before.start_time == status.start_time && status.completion_time.is_none();
        let recorded = (&json_of(list.status.as_ref())?, &json_of(Some(&status))?);
        match self.status.write((&self.api(&key), &self.lists), list, recorded, can_wait, now).await? {
            Outcome::Written(newer) if newer.is_complete() => {
                let broken = status.failed_image_statuses.len();
                let message = format!("{} of {} images are on all their nodes", status.succeeded, status.desired);
                let reason = if broken == 0 { "Completed" } else { "PullsFailed" };
                self.emit_once(list, reason, &message, broken > 0);
                Ok(Requeue::After(Duration::ZERO))
            }
            outcome => Ok(outcome.look_after().map_or(Requeue::Await, Requeue::After)),
        }
    }

    /// Emits an event, unless it is the same as the last one of this list.
    fn emit_once(&self, list: &ImageListPullJob, reason: &str, message: &str, is_warning: bool) {
        let said = format!("{reason} {message}");
        {
            let mut memories = lock(&self.memories);
            let memory = memories.entry(ObjectKey::of(list)).or_default();
            if memory.said == said {
                return;
            }
            memory.said = said;
        }
        tracing::info!(list = %ObjectKey::of(list), reason, message, "emitted an event");
        let about = reference(list);
        match is_warning {
            true => self.context.events.warning(&about, reason, message),
            false => self.context.events.normal(&about, reason, message),
        }
    }
}

#[cfg(test)]
mod tests;
