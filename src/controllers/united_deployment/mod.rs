//! UnitedDeployments: one workload for each subset, with its share of the replicas.
//!
//! - Owns: the workloads of the subsets (StatefulSets, Advanced StatefulSets, CloneSets, Deployments), the ControllerRevisions
//!   and the status of UnitedDeployments.
//! - Adopts: before it would make a workload, one of its subset that nobody controls.
//! - Watches: UnitedDeployments, workloads of the four kinds, of which only those of UnitedDeployments are held, Pods.
//! - Never: touches a Pod but for one label of ours and those that hold up a built-in StatefulSet (`stuck.rs`), deletes a
//!   workload whose Pods are needed, writes to a workload that is as it is to be.
//!
//! One pass ([`Controller::reconcile`]) is: which revision, which workloads and Pods there are, the plan
//! ([`crate::domain::kinds::united_deployment`]), its steps, what to say in status. A subset in which Pods find no place is said
//! before anything is moved.

mod apply;
mod child;
mod metrics;
mod observe;
mod revisions;
mod stuck;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use kube::{Api, Resource, runtime::watcher::Config};

use self::{child::Children, metrics::UnitedMetrics};
use super::{Context, Registration, Runner, Started};
use crate::{
    api::{
        apps::united_deployment::{UnitedDeployment, UnitedDeploymentStatus},
        labels,
    },
    domain::{
        kinds::united_deployment::{
            adopt,
            child::ChildSeen,
            plan::{self, UnitedPlan, UnitedSeen},
            schedule::{self, Places},
            spec::UnitedSpec,
            status::{self, PassFailures},
        },
        workload::{allocation::AllocationMode, owner::OwnerRef},
    },
    k8s::{invalid::Invalid, pod::PodView, rbac::Rule},
    runtime::{
        apply::{namespace_is_ending, said},
        clock,
        events::reference,
        guarded::Guarded,
        packed::Packed,
        pass::{AFTER_CONFLICT, Memories, Pass},
        queue::{Backoff, Queue, Requeue},
        revisions::Revisions,
        shutdown::Shutdown,
        status_writer::{StatusWriter, json_of},
        wake,
        watches::{Change, ObjectKey, Store},
    },
};

/// Its entry in `CONTROLLERS`.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: Some("uniteddeployments.apps.kruise.io"),
    gate: None,
    rules: &[
        Rule::new(&["apps.kruise.io"], &["uniteddeployments"], &["get", "list", "watch"]),
        Rule::new(&["apps.kruise.io"], &["uniteddeployments/status"], &["patch"]),
        // To own objects with blockOwnerDeletion, where the API server checks that.
        Rule::new(&["apps.kruise.io"], &["uniteddeployments/finalizers"], &["update"]),
        Rule::new(&["apps"], &["deployments", "statefulsets"], &["list", "watch", "create", "patch", "delete"]),
        Rule::new(&["apps.kruise.io"], &["clonesets", "statefulsets"], &["list", "watch", "create", "patch", "delete"]),
        Rule::new(&["apps"], &["controllerrevisions"], &["get", "list", "create", "patch", "delete"]),
        // The label of those that are kept although they find no place; those that hold up a built-in StatefulSet.
        Rule::new(&[""], &["pods"], &["get", "list", "watch", "patch", "delete"]),
    ],
    workers_flag: Some("uniteddeployment-workers"),
    workers: 3,
    start,
};

const NAME: &str = "uniteddeployment-controller";
/// Changes of Pods that come one after another are looked at together.
const POD_PAUSE: Duration = Duration::from_millis(100);

struct Controller {
    context: Context,
    objects: Arc<Store<Packed<UnitedDeployment>>>,
    children: Children,
    queue: Arc<Queue<ObjectKey>>,
    revisions: Revisions,
    statuses: StatusWriter,
    memories: Memories<UnitedMemory>,
    metrics: UnitedMetrics,
}

/// What is remembered of an object. Everything can be lost.
#[derive(Default)]
struct UnitedMemory {
    /// Its revisions, for one generation.
    resolved: Option<revisions::ResolvedFor>,
    /// The last warning for each reason.
    said: BTreeMap<&'static str, String>,
    /// What has been warned of since the last whole pass.
    reasons: BTreeSet<&'static str>,
    /// How many workloads are created, deleted and changed at a time, see [`crate::runtime::slow_start`].
    windows: [usize; 3],
    /// The subsets, or names, of steps that failed when they were tried last. Those that failed last are the last ones.
    failed: Vec<String>,
    /// What went wrong when steps were last carried out. A pass that carries out none says it again.
    failures: PassFailures,
}

/// An object in one pass.
struct UnitedJob {
    key: ObjectKey,
    /// The object as the store holds it: its status is written over this version.
    held: Arc<Packed<UnitedDeployment>>,
    object: Arc<UnitedDeployment>,
    owner: OwnerRef,
    spec: UnitedSpec,
    recorded: UnitedDeploymentStatus,
}

impl UnitedJob {
    fn seen<'a>(&'a self, children: &'a [ChildSeen], update: &'a str) -> UnitedSeen<'a> {
        UnitedSeen { owner: &self.owner, children, recorded: &self.recorded, update }
    }
}

fn start(context: &Context, workers: usize, shutdown: Shutdown) -> Started {
    let controller = Arc::new(Controller::new(context));
    let on_pod = controller.clone();
    Started::new(controller.run(workers, shutdown)).on_pod(move |change| on_pod.pod_changed(change))
}

impl Controller {
    fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            objects: Store::new(None),
            children: Children::new(),
            queue: Queue::new(Backoff::default()),
            revisions: Revisions::new(context.client.clone()),
            statuses: StatusWriter::default(),
            memories: Memories::default(),
            metrics: UnitedMetrics::new(context),
        }
    }

    async fn run(self: Arc<Self>, workers: usize, shutdown: Shutdown) {
        let this = self.clone();
        let objects: Api<Guarded<Packed<UnitedDeployment>>> = self.context.api();
        let runner = Runner::new(&self.context, NAME, shutdown)
            .watch_guarded(objects, Config::default(), &self.objects, move |change| {
                wake::workload_changed(&change, &this.queue, &this.memories);
                wake::status_changed(&change, &this.objects, &this.queue);
            })
            .following(&self.context.pods);
        macro_rules! following {
            ($runner:expr, $kind:ident) => {{
                let queue = self.queue.clone();
                $runner.watch(self.context.api(), Config::default(), &self.children.$kind.store, move |change| {
                    child::changed(&change).into_iter().for_each(|key| queue.add(key));
                })
            }};
        }
        let runner = following!(runner, stateful_sets);
        let runner = following!(runner, advanced);
        let runner = following!(runner, clone_sets);
        let runner = following!(runner, deployments);
        let this = self.clone();
        let reconcile = move |key: ObjectKey| {
            let this = this.clone();
            async move { this.reconcile(&key).await }
        };
        runner.run(self.queue.clone(), workers, reconcile).await;
    }

    /// Pods are counted by their revision and by how they are.
    fn pod_changed(&self, change: &Change<'_, PodView>) {
        let pod = match change {
            Change::Applied { old: Some(old), new, .. } if wake::is_same_but_version(old, new) => return,
            Change::Applied { new, .. } => new,
            Change::Deleted(old) => old,
            Change::Undecodable { .. } => return,
        };
        // Most Pods are of no subset.
        let Some(controller) = pod.controller.as_deref().filter(|_| pod.labels.get(labels::SUBSET_NAME).is_some())
        else {
            return;
        };
        if let Some(key) = self.children.owner(pod.namespace(), controller) {
            self.queue.add_after(key, POD_PAUSE);
        }
    }

    async fn reconcile(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let Some(held) = self.objects.get(key) else { return Ok(Requeue::Await) };
        // The garbage collector takes its workloads.
        if held.meta().deletion_timestamp.is_some() {
            return Ok(Requeue::Await);
        }
        let object = Arc::new(held.open()?);
        let owner = OwnerRef::of(object.as_ref());
        self.memories.enter(key, &owner.uid);
        let recorded = object.status.clone().unwrap_or_default();
        let spec = match UnitedSpec::of(&object) {
            Ok(spec) => spec,
            Err(Invalid(why)) => return self.record_invalid(key, (&held, &object), &recorded, why).await,
        };
        let job = UnitedJob { key: key.clone(), held, object, owner, spec, recorded };
        let resolved = match self.resolve(&job).await {
            Ok(resolved) => resolved,
            Err(error) => return self.record_failed(&job, error, "FailedRevisionProvision").await,
        };
        let mut pass = Pass::default();
        self.mark(&job, &resolved.update, &mut pass).await;
        let mut children = self.observe(&job, &resolved.update);
        let mut plan = plan::plan(&job.spec, job.seen(&children, &resolved.update), clock::now());
        let mut not_adopted = None;
        if self.would_create(&plan) {
            match self.look_for_others(&job, &resolved.update, (&mut children, &mut plan), &mut pass).await {
                Ok(words) => not_adopted = words,
                Err(error) => return self.record_failed(&job, error, "FailedFindSubsets").await,
            }
        }
        let is_new = |(subset, places): (&String, &Places)| schedule::is_new_verdict(places, &job.recorded, subset);
        if plan.places.iter().any(is_new) {
            // The next pass acts on what is recorded. Nothing is moved while that fails.
            let mut failures = self.memories.with(key, |memory| memory.failures.clone()).unwrap_or_default();
            failures.provision = failures.provision.or_else(|| not_adopted.clone());
            let seen = job.seen(&children, &resolved.update);
            let later = self.record(&job, seen, (&plan, &failures), resolved.collisions).await?;
            pass.look_after(later.or(Some(AFTER_CONFLICT)));
            return pass.end(|after| self.queue.add_after(key.clone(), after));
        }
        pass.look_after(plan.look);
        let mut failures = self.carry_out(&job, &plan, &mut pass).await;
        failures.provision = failures.provision.or(not_adopted);
        if !plan.steps.is_empty() {
            children = self.observe(&job, &resolved.update);
        }
        self.free_stuck(&job, job.seen(&children, &resolved.update), &mut pass).await;
        pass.look_after(
            self.record(&job, job.seen(&children, &resolved.update), (&plan, &failures), resolved.collisions).await?,
        );
        self.look_after_news(&job, &resolved.update, &mut pass);
        self.forget_said(key);
        let in_use = children.iter().map(|child| child.revision().to_owned());
        pass.note(self.tidy(&job, &resolved, in_use.collect()).await.map(|()| false));
        pass.end(|after| self.queue.add_after(key.clone(), after))
    }

    /// Before a workload is made: reads those that are there, adopts those of subsets without one, and plans anew. Returns why one
    /// could not be adopted.
    async fn look_for_others(
        &self,
        job: &UnitedJob,
        update: &str,
        (children, plan): (&mut Vec<ChildSeen>, &mut UnitedPlan),
        pass: &mut Pass,
    ) -> kube::Result<Option<String>> {
        let (is_changed, orphans) = self.read_children(job).await?;
        if is_changed {
            *children = self.observe(job, update);
        }
        let orphans = adopt::adopted(&job.spec, children, &orphans);
        if !is_changed && orphans.is_empty() {
            return Ok(None);
        }
        let (left, why) = self.adopt(job, orphans, pass).await;
        *children = self.observe(job, update);
        *plan = plan::plan(&job.spec, job.seen(children, update), clock::now());
        adopt::hold_back(plan, &left);
        Ok(why)
    }

    /// A status that is written brings no event, and some of what it says is acted on by a later pass.
    fn look_after_news(&self, job: &UnitedJob, update: &str, pass: &mut Pass) {
        let newer = self.objects.get(&job.key).filter(|newer| !Arc::ptr_eq(newer, &job.held));
        let Some(written) = newer.and_then(|newer| newer.open().ok()?.status) else { return };
        if written.current_revision != job.recorded.current_revision {
            // The one before may be one too many in the history now.
            pass.look_after(Some(Duration::ZERO));
        }
        let begun = status::updating_since(&written, update);
        if job.spec.mode == AllocationMode::Reserving
            && begun.is_some()
            && begun != status::updating_since(&job.recorded, update)
        {
            // What is still down then is judged, also if nothing else happens.
            pass.look_after(Some(job.spec.reschedule_after));
        }
    }

    /// Writes the status. Counts are written a second apart, unless they are the last word.
    async fn record(
        &self,
        job: &UnitedJob,
        seen: UnitedSeen<'_>,
        (plan, failures): (&UnitedPlan, &PassFailures),
        collisions: i32,
    ) -> kube::Result<Option<Duration>> {
        let now = clock::now();
        let generation = job.object.metadata.generation.unwrap_or_default();
        let mut wanted = status::status(&job.spec, generation, seen, plan, failures, now);
        wanted.collision_count = Some(collisions);
        if let Some((reason, message)) = &plan.impossible {
            let reason =
                if *reason == "ReplicasDoNotFit" { "Failed SpecifySubsetReplicas" } else { "FailedUpdateSubset" };
            self.warn_once(job, reason, message);
        }
        self.write_status(&job.key, (&job.held, &job.object), &wanted).await
    }

    async fn write_status(
        &self,
        key: &ObjectKey,
        (held, object): (&Packed<UnitedDeployment>, &UnitedDeployment),
        wanted: &UnitedDeploymentStatus,
    ) -> kube::Result<Option<Duration>> {
        let recorded = object.status.clone().unwrap_or_default();
        let is_news = recorded.observed_generation != wanted.observed_generation
            || words(&recorded) != words(wanted)
            || wanted.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
        let api: Api<Packed<UnitedDeployment>> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let (before, after) = (json_of(object.status.as_ref())?, json_of(Some(wanted))?);
        let to = (&api, self.objects.as_ref());
        Ok(self.statuses.write(to, held, (&before, &after), !is_news, clock::now()).await?.look_after())
    }

    /// A spec that cannot be followed: nothing is done on a guess.
    async fn record_invalid(
        &self,
        key: &ObjectKey,
        (held, object): (&Packed<UnitedDeployment>, &UnitedDeployment),
        recorded: &UnitedDeploymentStatus,
        why: String,
    ) -> kube::Result<Requeue> {
        let generation = object.metadata.generation.unwrap_or_default();
        let selector = UnitedSpec::selector_of(object);
        let wanted = status::invalid(recorded, generation, selector, &why, clock::now());
        let look = self.write_status(key, (held, object), &wanted).await?;
        Ok(look.map_or(Requeue::Await, Requeue::After))
    }

    /// Says why a pass ends before anything can be planned.
    async fn record_failed(&self, job: &UnitedJob, error: kube::Error, reason: &'static str) -> kube::Result<Requeue> {
        if !namespace_is_ending(&error) {
            let why = said(&error);
            self.warn_once(job, reason, &why);
            let generation = job.object.metadata.generation.unwrap_or_default();
            let wanted = status::failed(&job.recorded, generation, &job.spec, (reason, &why), clock::now());
            if let Err(refused) = self.write_status(&job.key, (&job.held, &job.object), &wanted).await {
                tracing::warn!(united_deployment = %job.key, %refused, "the status could not be written either");
            }
        }
        Err(error)
    }

    /// Emits a warning, unless this is what was last said for the same reason.
    fn warn_once(&self, job: &UnitedJob, reason: &'static str, message: &str) {
        let is_new = self.memories.with(&job.key, |memory| {
            memory.reasons.insert(reason);
            memory.said.insert(reason, message.to_owned()).as_deref() != Some(message)
        });
        if is_new != Some(false) {
            self.context.events.warning(&reference(job.object.as_ref()), reason, message);
        }
    }

    /// At the end of a whole pass: what has not come up again is said again when it does.
    fn forget_said(&self, key: &ObjectKey) {
        self.memories.with(key, |memory| {
            let reasons = std::mem::take(&mut memory.reasons);
            memory.said.retain(|reason, _| reasons.contains(reason));
        });
    }
}

/// What of a status is written at once: which conditions there are, and how they are.
fn words(status: &UnitedDeploymentStatus) -> Vec<(String, String)> {
    let subsets = status.subset_statuses.iter().flat_map(|subset| &subset.conditions);
    status.conditions.iter().chain(subsets).map(|c| (c.type_.clone(), c.status.clone())).collect()
}
