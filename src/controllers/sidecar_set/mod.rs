//! SidecarSets: Pods that have their containers get to another image in place, within the limits of their spec.
//!
//! - Owns: the images of injected containers, the annotations of SidecarSets on Pods and their condition
//!   `SidecarSetUpgradable`, the ControllerRevisions of SidecarSets, in our own namespace, and the status of SidecarSets.
//! - Watches: SidecarSets, Namespaces, Pods, Nodes. A Pod is read in full before it is written only where its view does not
//!   tell enough; revisions are read when a spec is new.
//! - Evicts Pods that lack its containers, where its author wants that, by the API that PodDisruptionBudgets guard.
//! - Never: creates or deletes a Pod, or changes anything of one into which the SidecarSet was not injected.
//!
//! One pass ([`Controller::reconcile`]) is: which Pods, the plan, which revision, one patch for each Pod, the repair, what to
//! say in conditions of Pods and in the status. The rules are in [`domain::sidecar_set`](crate::domain::kinds::sidecar_set).

mod apply;
mod events;
mod findings;
mod history;
mod known;
mod mark;
mod metrics;
mod missed;
mod observe;
mod record;
mod repair;
#[cfg(test)]
mod tests;
mod versions;

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, runtime::watcher::Config};
use serde_json::Value;

use self::{
    findings::Findings,
    history::LastRevisions,
    known::{StoredSidecarSet, Target},
    mark::Marks,
    metrics::Metrics,
    missed::Missed,
    observe::labels_of,
    repair::Repairs,
    versions::Versions,
};
use super::{Context, Registration, Runner, Started, handling};
use crate::{
    api::apps::sidecar_set::SidecarSetStatus,
    domain::{
        kinds::sidecar_set::{
            matching::{self, Index},
            plan::{self, Turn},
            retries::Retries,
            spec::Spec,
            status,
        },
        workload::turns::Turns,
    },
    k8s::{invalid::Invalid, null, rbac::Rule},
    runtime::{
        clock,
        guarded::Guarded,
        lock,
        pass::{Memories, Pass},
        pod_control::PodControl,
        queue::{Backoff, Queue, Requeue},
        revisions::Revisions,
        shutdown::Shutdown,
        status_writer::StatusWriter,
        wake,
        watches::{Change, ObjectKey, Store},
    },
};

/// Its line in the table.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: Some("sidecarsets.apps.kruise.io"),
    gate: None,
    rules: &[
        Rule::new(&["apps.kruise.io"], &["sidecarsets"], &["get", "list", "watch"]),
        Rule::new(&["apps.kruise.io"], &["sidecarsets/status"], &["patch"]),
        // To own objects with blockOwnerDeletion, where the API server checks that.
        Rule::new(&["apps.kruise.io"], &["sidecarsets/finalizers"], &["update"]),
        Rule::new(&["apps"], &["controllerrevisions"], &["get", "list", "create", "patch", "delete"]),
        Rule::new(&[""], &["namespaces"], &["list", "watch"]),
        // Created in dry runs alone, before a Pod is evicted so that another one takes its place.
        Rule::new(&[""], &["pods"], &["get", "list", "watch", "create", "patch"]),
        Rule::new(&[""], &["pods/status"], &["patch"]),
        Rule::new(&[""], &["pods/eviction"], &["create"]),
    ],
    workers_flag: Some("sidecarset-workers"),
    workers: 3,
    start,
};

const NAME: &str = "sidecarset-controller";
/// When to look again for the node of a Pod that no watch has brought.
const AFTER_UNKNOWN: Duration = Duration::from_secs(1);
/// The shortest pause between two passes while nothing is to be done with any Pod: what Pods become changes counts alone, which
/// are written a second apart. New Pods with ten SidecarSets would otherwise have ten passes each, over all Pods.
const AT_REST: Duration = Duration::from_secs(1);
/// The pauses of two SidecarSets differ by up to so many milliseconds. A Pod is news for all of its SidecarSets at once: with the
/// same pause their passes would always run together.
const APART: u64 = 1_000;
/// A pass looks at all Pods that have the containers, so the pause is this much longer for each of them, up to [`MOST_FOR_PODS`].
const FOR_EACH_POD: Duration = Duration::from_millis(1);
/// See [`FOR_EACH_POD`].
const MOST_FOR_PODS: Duration = Duration::from_secs(3);

struct Controller {
    context: Context,
    sets: Arc<Store<StoredSidecarSet>>,
    namespaces: Arc<Store<Namespace>>,
    /// Which SidecarSets may be for a Pod.
    index: Mutex<Index<Target>>,
    missed: Mutex<Missed>,
    /// Held while Pods are looked for that lack containers.
    searching: Mutex<()>,
    repairs: Mutex<Repairs>,
    queue: Arc<Queue<ObjectKey>>,
    memories: Memories<SidecarMemory>,
    revisions: Revisions,
    versions: Versions,
    pods: PodControl,
    status: StatusWriter,
    metrics: Arc<Metrics>,
}

/// What is remembered of a SidecarSet that has Pods. Everything can be lost.
#[derive(Default)]
struct SidecarMemory {
    /// What was refused, and is tried after the others.
    turns: Turns<Turn>,
    /// When it is due again, for the spec of this generation.
    retries: Retries,
    generation: i64,
    /// How many Pods have its containers.
    pods: usize,
    /// When the last pass ended, if nothing was to be done with any Pod.
    rests_since: Option<Duration>,
    /// What the last pass has found of each Pod.
    findings: Findings,
    /// Its revisions.
    seen: LastRevisions,
    /// UIDs of the Pods whose lack of them an event has reported.
    reported: BTreeSet<String>,
    /// How many were to be updated in place in the last pass and cannot be; in the first one, what the status says. With a new
    /// spec it begins at 0.
    not_upgradable: Option<usize>,
    marks: Marks,
}

impl SidecarMemory {
    /// How long news of a Pod waits for the next pass. That looks at every Pod: the more there are, the longer.
    fn pause(&self, name: &str, now: Duration) -> Duration {
        let left = self.rests_since.map_or(Duration::ZERO, |since| {
            // Also after a long rest: all SidecarSets of a new Pod would otherwise write their status at the same moment.
            rest(name, self.pods).saturating_sub(now.saturating_sub(since)).max(apart(name))
        });
        wake::pause(self.pods).max(left)
    }
}

/// The pause between two passes of a SidecarSet at rest: [`AT_REST`], what its name adds, and what its Pods add.
fn rest(name: &str, pods: usize) -> Duration {
    let for_pods = FOR_EACH_POD.saturating_mul(u32::try_from(pods).unwrap_or(u32::MAX)).min(MOST_FOR_PODS);
    AT_REST + apart(name) + for_pods
}

/// A part of [`APART`], by the hash of the name.
fn apart(name: &str) -> Duration {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    Duration::from_millis(hasher.finish() % APART)
}

/// A SidecarSet in one pass.
struct Job {
    key: ObjectKey,
    set: Arc<StoredSidecarSet>,
    object: Value,
    spec: Spec,
    before: SidecarSetStatus,
}

impl Job {
    fn generation(&self) -> i64 {
        self.set.generation()
    }
}

fn start(context: &Context, workers: usize, shutdown: Shutdown) -> Started {
    let controller = Arc::new(Controller::new(context));
    let on_pod = handling(&controller, Controller::pod_changed);
    let on_node = handling(&controller, Controller::node_changed);
    Started::new(controller.run(workers, shutdown)).on_pod(on_pod).on_node(on_node)
}

impl Controller {
    fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            sets: Store::new(None),
            namespaces: Store::new(None),
            index: Mutex::default(),
            missed: Mutex::default(),
            searching: Mutex::default(),
            repairs: Mutex::default(),
            queue: Queue::new(Backoff::default()),
            memories: Memories::default(),
            revisions: Revisions::new(context.client.clone()),
            versions: Versions::default(),
            pods: PodControl::new(context.client.clone(), context.pods.clone(), context.events.clone()),
            status: StatusWriter::default(),
            metrics: Metrics::new(context),
        }
    }

    async fn run(self: Arc<Self>, workers: usize, shutdown: Shutdown) {
        let (on_set, on_namespace, this) = (self.clone(), self.clone(), self.clone());
        let sets: Api<Guarded<StoredSidecarSet>> = Api::all(self.context.client.clone());
        let namespaces: Api<Namespace> = Api::all(self.context.client.clone());
        let reconcile = move |key: ObjectKey| {
            let this = this.clone();
            async move { this.reconcile(&key).await }
        };
        let runner = Runner::new(&self.context, NAME, shutdown)
            .watch_guarded(sets, Config::default(), &self.sets, move |change| {
                on_set.set_changed(&change);
                wake::status_changed(&change, &on_set.sets, &on_set.queue);
            })
            .watch(namespaces, Config::default(), &self.namespaces, move |change| {
                on_namespace.namespace_changed(&change);
            })
            .following(&self.context.pods)
            .following(self.context.nodes.store());
        runner.run(self.queue.clone(), workers, reconcile).await;
    }

    fn set_changed(&self, change: &Change<'_, StoredSidecarSet>) {
        match change {
            Change::Applied { old, new, .. } => {
                if old.is_none_or(|old| !old.has_same_spec(new)) {
                    self.aim(new);
                }
                if old.is_none_or(|old| !old.wants_the_same(new)) {
                    self.queue.add(ObjectKey::of(new.as_ref()));
                }
            }
            Change::Deleted(old) => {
                lock(&self.index).remove(old.name());
                lock(&self.missed).forget(old.name());
                self.count_younger(old.name(), 0);
                lock(&self.repairs).forget(old.name());
                self.versions.forget(old.name());
                self.memories.forget(&ObjectKey::of(old.as_ref()));
            }
            Change::Undecodable { key, error } => {
                tracing::error!(set = %key, error, "this SidecarSet cannot be read and is left alone");
            }
        }
    }

    /// Puts a SidecarSet where it is found by its Pods. If it is for others than before they are to be looked for.
    fn aim(&self, set: &StoredSidecarSet) {
        let target = Target::of(set).filter(|target| !target.aim().is_for_nobody());
        let Some(target) = target else {
            lock(&self.index).remove(set.name());
            lock(&self.missed).forget(set.name());
            return;
        };
        {
            let mut index = lock(&self.index);
            if index.get(set.name()).is_some_and(|known| known.aim() == target.aim()) {
                return;
            }
            index.insert(&target, target.aim());
        }
        lock(&self.missed).search(target.name());
    }

    fn namespace_changed(&self, change: &Change<'_, Namespace>) {
        let Change::Applied { old, new, initial } = change else { return };
        // While the first list is read nothing has been decided by it.
        if (*initial && !self.namespaces.is_synced())
            || old.is_some_and(|old| old.metadata.labels == new.metadata.labels)
        {
            return;
        }
        let name = new.metadata.name.as_deref().unwrap_or_default();
        let (before, now) = (old.map(|old| labels_of(old)), labels_of(new));
        let is_for = |target: &Target, labels| target.aim().is_for(matching::Namespace { name, labels });
        let mut targets = lock(&self.index).of_namespaces([name], |_| true);
        targets.retain(|target| is_for(target, before.as_ref()) != is_for(target, Some(&now)));
        for target in targets {
            lock(&self.missed).search(target.name());
            self.queue.add(ObjectKey::new("", target.name()));
        }
    }

    async fn reconcile(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let Some(set) = self.sets.get(key).filter(|set| !set.is_deleting()) else { return Ok(Requeue::Await) };
        let object = set.object();
        // None: there is none yet, or none that can be read.
        let recorded: Option<SidecarSetStatus> = serde_json::from_value(null::pruned(&object["status"])).ok();
        let before = recorded.clone().unwrap_or_default();
        let mut pass = Pass::default();
        let spec = match Spec::of(&object) {
            Ok(spec) => spec,
            Err(Invalid(why)) => {
                let wanted = status::invalid(&why, set.generation(), &before, clock::now().wall);
                pass.look_after(self.record(&set, recorded.as_ref(), &wanted).await?);
                return pass.end(|_| {});
            }
        };
        let job = Job { key: key.clone(), set, object, spec, before };
        self.memories.enter(&job.key, job.set.uid());
        let observed = self.observe(&job);
        pass.look_after(observed.is_partial.then_some(AFTER_UNKNOWN));
        let (turns, seen) = self.remembered(&job, &observed);
        let mut plan = plan::plan(&job.spec, &observed.judged, &turns);
        self.memories.with(&job.key, |memory| memory.retries.hold_back(&mut plan, clock::now().mono));
        let (revision, collisions) = match self.revision(&job, &observed, &plan.counts, &seen).await {
            Ok(found) => found,
            Err(error) => return self.record_unresolved(&job, recorded.as_ref(), error, pass).await,
        };
        self.carry_out(&job, &plan, &observed, &revision, &mut pass).await;
        // What has just been written is counted in the next pass, which follows at once.
        let is_settled = !pass.again;
        let marks_first = self.marks_first(&job, &observed);
        if marks_first {
            self.mark(&job, &plan, &observed, &mut pass).await;
        }
        let repair = if is_settled {
            self.report_missed(&job, &mut pass);
            self.report_not_upgradable(&job, &plan.counts);
            self.repair(&job, &observed, &mut pass).await
        } else {
            self.last_repair(&job, &observed)
        };
        let retries = self.memories.with(&job.key, |memory| memory.retries.clone()).unwrap_or_default();
        let facts = status::Facts {
            generation: job.generation(),
            revision: &revision,
            collisions,
            uninjected: observed.uninjected,
            refused: retries.first_kept(),
            failed: retries.first_failed(),
            repair,
        };
        let wanted = status::status(&plan, &facts, &job.before, clock::now().wall);
        pass.look_after(self.record(&job.set, recorded.as_ref(), &wanted).await?);
        if is_settled && !marks_first {
            self.mark(&job, &plan, &observed, &mut pass).await;
        }
        let is_repairing = matches!(facts.repair, Some(status::Repair::UnderWay(_)));
        if plan.is_at_rest() && !is_repairing && !pass.again && pass.error.is_none() {
            self.memories.with(&job.key, |memory| memory.rests_since = Some(clock::now().mono));
        }
        pass.end(|after| self.queue.add_after(key.clone(), after))
    }

    /// What was refused of what may be tried again, and what is known of the revisions.
    fn remembered(&self, job: &Job, observed: &observe::Observed) -> (Turns<Turn>, LastRevisions) {
        let remembered = self.memories.with(&job.key, |memory| {
            memory.pods = observed.pods.len();
            memory.rests_since = None;
            memory.turns.retain(|turn| observed.pods.contains_key(turn.pod()));
            let recorded = usize::try_from(job.before.not_upgradable_pods).unwrap_or_default();
            memory.not_upgradable.get_or_insert(recorded);
            if std::mem::replace(&mut memory.generation, job.generation()) != job.generation() {
                memory.retries = Retries::default();
                // Those that a new spec leaves out get an event of their own, even if they are as many.
                if job.before.observed_generation < job.generation() {
                    memory.not_upgradable = Some(0);
                }
            }
            (memory.turns.clone(), memory.seen.clone())
        });
        remembered.unwrap_or_default()
    }
}
