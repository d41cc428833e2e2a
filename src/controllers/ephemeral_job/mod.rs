//! EphemeralJobs: adds ephemeral containers to Pods, one write for each Pod, and reports how they end.
//!
//! - Owns: the status of EphemeralJobs, their deletion after the TTL. Takes OpenKruise's finalizer off those that are deleted,
//!   also where they cannot be read.
//! - Watches: EphemeralJobs and Pods.
//! - What is due is decided by [`crate::domain::kinds::ephemeral_job`].
//! - Never: changes or removes an ephemeral container, which Kubernetes cannot do; deletes a Pod.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use kube::{
    Api, Resource,
    api::{Patch, PatchParams},
    runtime::watcher::Config,
};
use prometheus_client::metrics::{counter::Counter, family::Family};
use serde_json::{Value, json};

use super::{BY_NAMESPACE, Context, Registration, Runner, Started, handling};
use crate::{
    api::{
        apps::ephemeral_job::{EphemeralJob, EphemeralJobStatus},
        labels,
    },
    domain::kinds::ephemeral_job::{
        for_newer_generation,
        memory::EphemeralMemory,
        plan::{self, EphemeralPlan, concerns},
        spec::{EphemeralSpec, containers, selector_of},
    },
    k8s::{pod::PodView, rbac::Rule, selector::Selector, time::Now},
    runtime::{
        apply::{code, is_refusal, said},
        clock,
        events::reference,
        expiry,
        metrics::ResultLabels,
        packed::Packed,
        pass::{AFTER_CONFLICT, AFTER_REFUSAL, Memories, Pass},
        pod_control::{Part, PodControl},
        queue::{Backoff, Queue, Requeue},
        shutdown::Shutdown,
        slow_start::slow_start,
        status_writer::{Outcome, StatusWriter, json_of},
        unreadable::UnreadableObjects,
        wake,
        watches::{Change, ObjectKey, Store, StoreIndex},
    },
};

/// Its entry in `CONTROLLERS`.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: Some("ephemeraljobs.apps.kruise.io"),
    gate: None,
    rules: &[
        Rule::new(&["apps.kruise.io"], &["ephemeraljobs"], &["get", "list", "watch", "patch", "delete"]),
        Rule::new(&["apps.kruise.io"], &["ephemeraljobs/status"], &["patch"]),
        Rule::new(&[""], &["pods"], &["get", "list", "watch"]),
        Rule::new(&[""], &["pods/ephemeralcontainers"], &["patch"]),
    ],
    workers_flag: None,
    workers: 10,
    start,
};

const NAME: &str = "ephemeraljob-controller";
/// Between two writes of the annotation with the Pods that were counted, where nothing but counts changes.
const NOTE_PAUSE: Duration = Duration::from_secs(1);

struct Controller {
    context: Context,
    jobs: Arc<Store<Packed<EphemeralJob>>>,
    queue: Arc<Queue<ObjectKey>>,
    memories: Memories<EphemeralMemory>,
    outlines: Memories<Option<Outline>>,
    unreadable: UnreadableObjects,
    pods: PodControl,
    status: StatusWriter,
    metrics: JobMetrics,
}

/// What Pods are held against, for one version of a job.
struct Outline {
    version: Option<String>,
    /// None: the job is over, or nothing can be done about it.
    selector: Option<Arc<Selector>>,
}

#[derive(Clone, Default)]
struct JobMetrics {
    ended: Family<ResultLabels, Counter>,
    pods: Family<ResultLabels, Counter>,
}

fn start(context: &Context, workers: usize, shutdown: Shutdown) -> Started {
    let controller = Arc::new(Controller::new(context));
    let JobMetrics { ended, pods } = &controller.metrics;
    context.metrics.register("kruise_ephemeral_jobs_completed", "EphemeralJobs that ended, by result", ended);
    let help = "Pods that EphemeralJobs have added containers to, by result of the write";
    context.metrics.register("kruise_ephemeral_job_pods", help, pods);
    let on_pod = handling(&controller, Controller::pod_changed);
    Started::new(controller.run(workers, shutdown)).on_pod(on_pod)
}

impl Controller {
    fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            jobs: Store::new([StoreIndex::namespace()]),
            queue: Queue::new(Backoff::default()),
            memories: Memories::default(),
            outlines: Memories::default(),
            unreadable: UnreadableObjects::default(),
            pods: PodControl::new(context.client.clone(), context.pods.clone(), context.events.clone()),
            status: StatusWriter::default(),
            metrics: JobMetrics::default(),
        }
    }

    async fn run(self: Arc<Self>, workers: usize, shutdown: Shutdown) {
        let (on_job, this) = (self.clone(), self.clone());
        let runner = Runner::new(&self.context, NAME, shutdown)
            .watch_guarded(self.context.api(), Config::default(), &self.jobs, move |change| on_job.job_changed(&change))
            .following(&self.context.pods);
        let reconcile = move |key: ObjectKey| {
            let this = this.clone();
            async move { this.reconcile(&key).await }
        };
        runner.run(self.queue.clone(), workers, reconcile).await;
    }

    fn job_changed(&self, change: &Change<'_, Packed<EphemeralJob>>) {
        match change {
            Change::Applied { new, .. } => {
                let key = ObjectKey::of(new.as_ref());
                self.unreadable.forget(&key);
                self.queue.add(key);
            }
            Change::Deleted(old) => self.forget(&ObjectKey::of(old.as_ref())),
            Change::Undecodable { key, error } => {
                tracing::error!(job = %key, error, "this EphemeralJob cannot be read and is left alone");
                self.forget(key);
                self.unreadable.note(key);
                self.queue.add((*key).clone());
            }
        }
    }

    fn forget(&self, key: &ObjectKey) {
        self.memories.forget(key);
        self.outlines.forget(key);
    }

    /// The jobs of the Pod's namespace that have to do with it look again, if something changed that they read.
    fn pod_changed(&self, change: &Change<'_, PodView>) {
        if self.jobs.is_empty() {
            return;
        }
        let Some((old, new)) = change.sides() else { return };
        let facts = |pod: &Arc<PodView>| {
            let ephemeral = pod.rare().ephemeral.clone();
            let is_bound = !pod.node_name.is_empty();
            (pod.uid().to_owned(), pod.is_deleting(), pod.is_finished(), is_bound, pod.labels.clone(), ephemeral)
        };
        let Some(any) = new.or(old) else { return };
        let jobs = self.jobs.by_index(&StoreIndex::namespace(), any.namespace());
        // Most namespaces have none, and the facts are copies.
        if jobs.is_empty() || old.map(facts) == new.map(facts) {
            return;
        }
        for held in jobs {
            let key = ObjectKey::of(held.as_ref());
            let Some(selector) = self.selector(&key, &held) else { continue };
            let uid = held.meta().uid.as_deref().unwrap_or_default();
            if [old, new].into_iter().flatten().any(|pod| concerns(uid, &selector, pod)) {
                self.wake(key);
            }
        }
    }

    /// The selector of a job that goes on. The job is opened for it once for each of its versions: it is asked for at each event
    /// of a Pod.
    fn selector(&self, key: &ObjectKey, held: &Packed<EphemeralJob>) -> Option<Arc<Selector>> {
        let meta = held.meta();
        self.outlines.enter(key, meta.uid.as_deref().unwrap_or_default());
        let known = self.outlines.with(key, |outline| {
            let outline = outline.as_ref()?;
            (outline.version == meta.resource_version).then(|| outline.selector.clone())
        });
        if let Some(selector) = known.flatten() {
            return selector;
        }
        let job = held.open().ok().filter(|job| !job.is_complete());
        let selector = job.and_then(|job| selector_of(&job).ok()).map(Arc::new);
        let new = Outline { version: meta.resource_version.clone(), selector: selector.clone() };
        self.outlines.with(key, |outline| *outline = Some(new));
        // Its end may have been reported meanwhile.
        if self.jobs.get(key).is_none() {
            self.outlines.forget(key);
        }
        selector
    }

    /// A pass looks at every Pod of the namespace: the more there are, the longer the next one waits for further news.
    fn wake(&self, key: ObjectKey) {
        let pods = self.memories.with(&key, |memory| memory.pods).unwrap_or_default();
        match wake::pause(pods) {
            Duration::ZERO => self.queue.add(key),
            pause => self.queue.add_after(key, pause),
        }
    }

    fn api(&self, key: &ObjectKey) -> Api<Packed<EphemeralJob>> {
        Api::namespaced(self.context.client.clone(), &key.namespace)
    }

    async fn reconcile(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let Some(held) = self.jobs.get(key) else {
            let presence = self.unreadable.look(&self.api(key), key, labels::EPHEMERAL_JOB_FINALIZER).await?;
            return Ok(presence.look_again().map_or(Requeue::Await, Requeue::After));
        };
        if held.meta().deletion_timestamp.is_some() {
            return self.remove_finalizer(key, &held).await;
        }
        let job = held.open()?;
        self.memories.enter(key, job.uid());
        let now = clock::now();
        let (begun, ended) = self.memories.with(key, |memory| memory.enter(&job, now)).unwrap_or_default();
        if job.is_complete() {
            return self.finish(key, (&held, &job), ended).await;
        }
        let mut pass = Pass::default();
        let mut plan = self.plan(key, &job, begun, now);
        if !plan.add.is_empty() {
            let is_news = self.add(key, &job, plan.add, &mut pass).await;
            plan = self.plan(key, &job, begun, clock::now());
            if pass.error.is_none() && !plan.add.is_empty() {
                // After nothing but refusals, the next Pods are asked a little later: they may well refuse too.
                pass.look_after(Some(if is_news { Duration::ZERO } else { AFTER_REFUSAL }));
            }
        }
        pass.look_after(plan.look);
        let recorded = self.record(key, (&held, &job), plan.status, now).await;
        match recorded {
            Ok(outcome) => pass.look_after(outcome),
            Err(error) => drop(pass.note(Err(error))),
        }
        pass.end(|later| self.queue.add_after(key.clone(), later))
    }

    fn plan(&self, key: &ObjectKey, job: &EphemeralJob, begun: Duration, now: Now) -> EphemeralPlan {
        let mut pods = self.context.pods.by_index(&BY_NAMESPACE, &key.namespace);
        let looked_at = pods.len();
        match selector_of(job) {
            Ok(selector) => pods.retain(|pod| concerns(job.uid(), &selector, pod)),
            Err(_) => pods.clear(),
        }
        // Taken out: a plan over many Pods holds no lock that other jobs want.
        let taken = self.memories.with(key, |memory| {
            let rest = EphemeralMemory { pods: looked_at, ..EphemeralMemory::default() };
            std::mem::replace(memory, rest)
        });
        // Deleted meanwhile: nothing is added for it.
        let Some(mut memory) = taken else {
            return EphemeralPlan { status: job.status.clone().unwrap_or_default(), ..EphemeralPlan::default() };
        };
        memory.pods = looked_at;
        let plan = plan::plan(job, &pods, &mut memory, begun, now);
        self.memories.with(key, |kept| *kept = memory);
        plan
    }

    /// OpenKruise's finalizer goes: nothing can be taken out of Pods.
    async fn remove_finalizer(&self, key: &ObjectKey, job: &Packed<EphemeralJob>) -> kube::Result<Requeue> {
        let meta = job.meta();
        let all = meta.finalizers.as_deref().unwrap_or_default();
        let kept: Vec<&String> = all.iter().filter(|name| *name != labels::EPHEMERAL_JOB_FINALIZER).collect();
        if kept.len() == all.len() {
            return Ok(Requeue::Await);
        }
        let metadata = json!({"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": kept});
        let patch = Patch::Merge(json!({"metadata": metadata}));
        match self.api(key).patch(&key.name, &PatchParams::default(), &patch).await {
            Ok(newer) => drop(self.jobs.upsert(newer)),
            Err(error) if code(&error) == Some(404) => {}
            Err(error) if code(&error) == Some(409) => return Ok(Requeue::After(AFTER_CONFLICT)),
            Err(error) => return Err(error),
        }
        Ok(Requeue::Await)
    }

    async fn finish(
        &self,
        key: &ObjectKey,
        (held, job): (&Packed<EphemeralJob>, &EphemeralJob),
        ended: Duration,
    ) -> kube::Result<Requeue> {
        if let Some(status) = for_newer_generation(job) {
            let recorded = (&json_of(job.status.as_ref())?, &json_of(Some(&status))?);
            let outcome = self.status.write((&self.api(key), &self.jobs), held, recorded, false, clock::now()).await?;
            if let Some(after) = outcome.look_again() {
                return Ok(Requeue::After(after));
            }
        }
        let left = EphemeralSpec::of(job).time_to_live.saturating_sub(ended);
        if !left.is_zero() {
            return Ok(Requeue::After(left));
        }
        tracing::info!(job = %key, "deleting it, its time to live is over");
        expiry::delete(&self.api(key), held).await
    }

    /// Adds the containers to these Pods: one at first, more at a time with every success. False: they were refused, if
    /// anything.
    async fn add(&self, key: &ObjectKey, job: &EphemeralJob, pods: Vec<Arc<PodView>>, pass: &mut Pass) -> bool {
        let containers = containers(job);
        let count = pods.len();
        let mut window = self.memories.with(key, |memory| memory.window).unwrap_or_default();
        let added = &AtomicUsize::new(0);
        let add_to = |pod| async {
            if self.add_to(key, &containers, pod).await? {
                added.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let (done, failure) = slow_start(pods, &mut window, is_refusal, add_to).await;
        self.memories.with(key, |memory| memory.window = window);
        let added = added.load(Ordering::Relaxed);
        if added > 0 {
            tracing::info!(job = %key, pods = added, "added containers");
            let message = format!("added containers to {added} of {count} Pods");
            self.context.events.normal(&reference(job), "SuccessfulCreate", &message);
        }
        if let Some(error) = failure {
            self.emit_once(key, job, "CreateFailed", &said(&error));
            // A Pod that says no is asked again after a pause of its own.
            if !is_refusal(&error) {
                pass.note(Err(error));
            }
        }
        done > 0
    }

    /// Whether they were added.
    async fn add_to(&self, key: &ObjectKey, containers: &Value, pod: Arc<PodView>) -> kube::Result<bool> {
        let patch = json!({"spec": {"ephemeralContainers": containers}});
        let result = self.pods.patch(&pod, Part::EphemeralContainers, patch).await;
        let counted = if result.is_ok() { "succeeded" } else { "failed" };
        self.metrics.pods.get_or_create(&ResultLabels { result: counted }).inc();
        match result {
            Ok(_) => {
                self.memories.with(key, |memory| memory.refused.remove(pod.uid()));
                Ok(true)
            }
            // It is gone, or has changed; the store knows now.
            Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(false),
            Err(error) => {
                if is_refusal(&error) {
                    let why = said(&error);
                    self.memories.with(key, |memory| memory.refuse(pod.uid(), pod.name(), why, clock::now()));
                }
                Err(error)
            }
        }
    }

    /// Writes down what was counted, then the status; gives when to look again. In this order, as a process that finds the note
    /// ahead of the status counts right, and one that finds the status ahead does not know which Pods it contains.
    async fn record(
        &self,
        key: &ObjectKey,
        (held, job): (&Packed<EphemeralJob>, &EphemeralJob),
        status: EphemeralJobStatus,
        now: Now,
    ) -> kube::Result<Option<Duration>> {
        let before = job.status.clone().unwrap_or_default();
        let can_wait = before.start_time.is_some()
            && before.phase == status.phase
            && before.observed_generation == status.observed_generation
            && status.completion_time.is_none();
        let noted = match status.completion_time {
            // A job that is over needs no note.
            Some(_) => Ok(Outcome::Unchanged),
            None => self.note_counted(key, job, can_wait, now).await,
        };
        let (noted, refused) = match noted {
            // Who forbids the annotation keeps nobody from seeing the status.
            Err(error) if matches!(code(&error), Some(400 | 403 | 413 | 422)) => (Outcome::Unchanged, Some(error)),
            noted => (noted?, None),
        };
        let newer_job;
        let (held, job) = match &noted {
            Outcome::Unchanged => (held, job),
            Outcome::Written(newer) => {
                newer_job = newer.open()?;
                (newer, &newer_job)
            }
            wait => return Ok(wait.look_after()),
        };
        let recorded = (&json_of(job.status.as_ref())?, &json_of(Some(&status))?);
        let outcome = self.status.write((&self.api(key), &self.jobs), held, recorded, can_wait, now).await?;
        let look = match &outcome {
            Outcome::Written(newer) if newer.open().is_ok_and(|job| job.is_complete()) => {
                self.report_end(key, job, &status);
                Some(Duration::ZERO)
            }
            outcome => outcome.look_after(),
        };
        refused.map_or(Ok(look), Err)
    }

    /// Writes down which Pods the counts contain.
    async fn note_counted(
        &self,
        key: &ObjectKey,
        job: &EphemeralJob,
        can_wait: bool,
        now: Now,
    ) -> kube::Result<Outcome<Packed<EphemeralJob>>> {
        let due = self.memories.with(key, |memory| memory.counted_pods(job).map(|text| (text, memory.noted)));
        let Some((text, before)) = due.flatten() else { return Ok(Outcome::Unchanged) };
        let left = before.map_or(Duration::ZERO, |at| NOTE_PAUSE.saturating_sub(now.mono.saturating_sub(at)));
        if can_wait && !left.is_zero() {
            return Ok(Outcome::Later(left));
        }
        let metadata = json!({"uid": job.metadata.uid, "resourceVersion": job.metadata.resource_version,
            "annotations": {labels::COUNTED_PODS: text}});
        let patch = Patch::Merge(json!({"metadata": metadata}));
        match self.api(key).patch(&key.name, &PatchParams::default(), &patch).await {
            Ok(newer) => {
                self.memories.with(key, |memory| memory.noted = Some(now.mono));
                self.jobs.upsert(newer.clone());
                Ok(Outcome::Written(newer))
            }
            Err(error) if code(&error) == Some(404) => Ok(Outcome::Gone),
            Err(error) if code(&error) == Some(409) => {
                if let Some(newer) = self.api(key).get_opt(&key.name).await? {
                    self.jobs.upsert(newer);
                }
                Ok(Outcome::Outdated)
            }
            Err(error) => Err(error),
        }
    }

    fn report_end(&self, key: &ObjectKey, job: &EphemeralJob, status: &EphemeralJobStatus) {
        let is_good = status.phase == "Succeeded";
        let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
        let (reason, message) = ready.map_or(("", ""), |ready| (ready.reason.as_str(), ready.message.as_str()));
        tracing::info!(job = %key, reason, message, "it has ended");
        if is_good {
            self.context.events.normal(&reference(job), reason, message);
        } else {
            self.context.events.warning(&reference(job), reason, message);
        }
        let result = if is_good { "succeeded" } else { "failed" };
        self.metrics.ended.get_or_create(&ResultLabels { result }).inc();
    }

    /// Emits a warning, unless it is the same as the last one of this job.
    fn emit_once(&self, key: &ObjectKey, job: &EphemeralJob, reason: &str, message: &str) {
        let said = format!("{reason} {message}");
        let is_new = self.memories.with(key, |memory| {
            let is_new = memory.said != said;
            memory.said = said;
            is_new
        });
        if is_new == Some(true) {
            tracing::warn!(job = %key, reason, message, "failed");
            self.context.events.warning(&reference(job), reason, message);
        }
    }
}

#[cfg(test)]
mod tests;
