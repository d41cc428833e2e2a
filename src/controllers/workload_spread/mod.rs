//! WorkloadSpreads: how many Pods there are of each subset. Which subset a new Pod goes to, the webhook for Pods decides.
//!
//! - Owns: the status of WorkloadSpreads, which it writes together with the webhook; on Pods of their targets the note of the
//!   subset where the webhook has missed them, and the deletion cost; evicts Pods that find no place in a subset.
//! - Watches: WorkloadSpreads, Pods, how many Pods the targets want.
//! - Never: replaces a Pod that has a node.
//!
//! One pass ([`Controller::reconcile`]) is: the target, its Pods and where they belong, the plan
//! ([`crate::domain::kinds::workload_spread`]), the status, annotations, evictions.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use kube::{Api, Resource, runtime::watcher::Config};

use super::{BY_SPREAD, Context, Registration, Runner, Started, spread_text};
use crate::{
    api::{
        apps::{self, workload_spread::WorkloadSpread},
        feature_gates::gate,
        group_of,
    },
    domain::{
        kinds::workload_spread::{
            matching,
            plan::{self, EntryKey, Home, Newest, SpreadSeen},
            replicas::version_of,
            spec::{SpreadSpec, TargetKind, named_target},
            status::{self, SpreadHindrance},
        },
        workload::target::target_key,
    },
    k8s::{
        invalid::Invalid,
        pod::PodView,
        rbac::Rule,
        selector::Selector,
        time::{Now, Sighting},
    },
    runtime::{
        clock, object,
        pass::{Memories, Pass},
        pod_control::PodControl,
        queue::{Backoff, Queue, Requeue},
        replicas::{self, Kind, Replicas},
        shutdown::Shutdown,
        status_writer::StatusWriter,
        wake,
        watches::{Change, ObjectKey, Store, StoreIndex},
        workload,
    },
};

mod apply;
mod held;
mod metrics;
mod observe;
mod target;

use apply::Recorded;
use held::HeldSpread;
use metrics::Metrics;
use target::SpreadTargetView;

/// Its line in the table.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: Some("workloadspreads.apps.kruise.io"),
    gate: Some(gate::WORKLOAD_SPREAD),
    rules: &[
        Rule::new(&[apps::GROUP], &["workloadspreads"], &["get", "list", "watch"]),
        Rule::new(&[apps::GROUP], &["workloadspreads/status"], &["patch"]),
        Rule::new(&[""], &["pods"], &["get", "list", "watch", "patch"]),
        Rule::new(&[""], &["pods/eviction"], &["create"]),
        // Which of those of a Deployment is the newest; which are its own is read one by one.
        Rule::new(&["apps"], &["replicasets"], &["list"]),
        object::READ_JOBS,
        workload::READ_BUILT_IN,
        workload::READ_KRUISE,
        replicas::WATCH_BUILT_IN,
        replicas::WATCH_KRUISE,
    ],
    workers_flag: Some("workloadspread-workers"),
    workers: 3,
    start,
};

const NAME: &str = "workloadspread-controller";
/// Changes of Pods that come one after another are looked at together.
const POD_PAUSE: Duration = Duration::from_millis(100);
/// How often a status is decided anew at once, when the webhook has written it meanwhile: under load it writes all the time.
const ATTEMPTS: u32 = 5;

/// WorkloadSpreads by their target.
const BY_TARGET: StoreIndex<HeldSpread> = StoreIndex::new("target", |spread| {
    let namespace = spread.meta().namespace.as_deref().unwrap_or_default();
    named_target(spread.outline()).ok().map(|target| target.key(namespace))
});

struct Controller {
    context: Context,
    spreads: Arc<Store<HeldSpread>>,
    replicas: Replicas,
    queue: Arc<Queue<ObjectKey>>,
    memories: Memories<SpreadMemory>,
    pods: PodControl,
    status: StatusWriter,
    metrics: Arc<Metrics>,
}

/// What is remembered of a WorkloadSpread. Everything can be lost.
#[derive(Default)]
struct SpreadMemory {
    /// The target, and when it was read.
    target: Option<(Duration, SpreadTargetView)>,
    /// How often it was forgotten because it had changed: an answer that was asked for before may be outdated.
    target_forgotten: u64,
    /// Of which version new Pods are, and when that was read.
    newest: Option<(Duration, Option<String>)>,
    /// The ReplicaSets of Pods that a Deployment selects.
    sets: Option<SetsSeen>,
    /// Where Pods without a note belong, by UID, and the generation for which that was found.
    verdicts: HashMap<String, (i64, Home)>,
    /// Pods without a note that could not be read, by UID.
    unread: HashMap<String, Unread>,
    /// The records of Pods on their way, what they say, and when they were seen first. None: nobody has looked yet.
    records: Option<HashMap<EntryKey, (Timestamp, Sighting)>>,
}

/// A Pod that could not be read.
#[derive(Clone, Copy)]
struct Unread {
    failures: u32,
    not_before: Duration,
}

/// ReplicaSets of Pods, by UID.
#[derive(Default)]
struct SetsSeen {
    /// The UID of the Deployment, and its selector: it controls no ReplicaSet with other Pods.
    deployment: String,
    selector: Option<Selector>,
    /// Those that it controls.
    own: BTreeSet<String>,
    /// Those of which that is not known, or was not so.
    open: BTreeMap<String, SetOpen>,
}

/// A ReplicaSet that is to be read.
#[derive(Clone)]
struct SetOpen {
    name: String,
    not_before: Duration,
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
            spreads: Store::new([BY_TARGET, StoreIndex::namespace()]),
            replicas: Replicas::new(context.client.clone()),
            queue: Queue::new(Backoff::default()),
            memories: Memories::default(),
            pods: PodControl::new(context.client.clone(), context.pods.clone(), context.events.clone()),
            status: StatusWriter::default(),
            metrics: Metrics::new(context),
        }
    }

    async fn run(self: Arc<Self>, workers: usize, shutdown: Shutdown) {
        let (on_spread, scaled, this) = (self.clone(), self.clone(), self.clone());
        let follow = async move {
            let changed = |kind: Kind, workload: &ObjectKey| scaled.target_changed(kind, workload);
            scaled.replicas.follow(scaled.context.only_namespace.as_deref(), changed).await;
        };
        let reconcile = move |key: ObjectKey| {
            let this = this.clone();
            async move { this.reconcile(&key).await }
        };
        let runner = Runner::new(&self.context, NAME, shutdown)
            .watch_guarded(self.context.api(), Config::default(), &self.spreads, move |change| {
                on_spread.spread_changed(&change);
            })
            .following_others(follow)
            .following(&self.context.pods)
            .following(self.context.nodes.store());
        runner.run(self.queue.clone(), workers, reconcile).await;
    }

    fn api(&self, namespace: &str) -> Api<HeldSpread> {
        Api::namespaced(self.context.client.clone(), namespace)
    }

    fn spread_changed(&self, change: &Change<'_, HeldSpread>) {
        let kind = |spread: &Arc<HeldSpread>| {
            let target = named_target(spread.outline()).ok()?;
            Kind::of(target.group, target.kind)
        };
        match change {
            Change::Applied { old, new, .. } => {
                let key = ObjectKey::of(new.as_ref());
                // One that was made again begins with the same generations.
                let marks = |spread: &HeldSpread| {
                    let meta = spread.meta();
                    (meta.uid.clone(), meta.generation, meta.deletion_timestamp.is_some())
                };
                if old.as_ref().is_some_and(|old| marks(old) == marks(new)) {
                    // The webhook has recorded Pods: under load as often as it can.
                    self.queue.add_after(key, POD_PAUSE);
                    return;
                }
                self.queue.add(key.clone());
                self.add_others(&key);
                if old.is_none() {
                    // The others want what they wanted.
                    if let Some(kind) = kind(new) {
                        self.replicas.want_also(kind);
                    }
                    return;
                }
            }
            Change::Deleted(old) => {
                let key = ObjectKey::of(old.as_ref());
                self.memories.forget(&key);
                self.add_others(&key);
            }
            Change::Undecodable { key, error } => {
                tracing::error!(spread = %key, error, "this WorkloadSpread cannot be read and is left alone");
                return;
            }
        }
        self.replicas.want(self.spreads.list().iter().filter_map(kind).collect());
    }

    fn target_changed(&self, kind: Kind, workload: &ObjectKey) {
        let (group, kind) = kind.names();
        let target = target_key(&workload.namespace, (group, kind, &workload.name));
        for spread in self.spreads.by_index(&BY_TARGET, &target) {
            let key = ObjectKey::of(spread.as_ref());
            self.memories.with(&key, SpreadMemory::forget_target);
            self.queue.add(key);
        }
    }

    fn pod_changed(&self, change: &Change<'_, PodView>) {
        if self.spreads.is_empty() {
            return;
        }
        let pod = match change {
            Change::Applied { old: Some(old), new, .. } if wake::is_same_but_version(old, new) => return,
            Change::Applied { new, .. } => new,
            Change::Deleted(old) => old,
            Change::Undecodable { .. } => return,
        };
        if let Some(note) = &pod.rare().spread {
            self.queue.add_after(ObjectKey::new(pod.namespace(), &note.name), POD_PAUSE);
        }
        let Some(owner) = pod.controller.as_deref() else { return };
        self.add_for(&target_key(pod.namespace(), (group_of(&owner.api_version), &owner.kind, &owner.name)));
        if !owner.is("apps", "ReplicaSet") {
            return;
        }
        let mut of_deployments = self.spreads.by_index(&StoreIndex::namespace(), pod.namespace());
        of_deployments.retain(|spread| TargetKind::of_target(spread.outline()) == Some(TargetKind::Deployment));
        for spread in of_deployments {
            let key = ObjectKey::of(spread.as_ref());
            let concerns = self.memories.with(&key, |memory| memory.sets.as_mut().is_none_or(|sets| sets.notice(pod)));
            if concerns.unwrap_or(true) {
                self.queue.add_after(key, POD_PAUSE);
            }
        }
    }

    /// Has the others of a namespace looked at: which of them a Pod is for depends on all that may be above it.
    fn add_others(&self, key: &ObjectKey) {
        for spread in self.spreads.by_index(&StoreIndex::namespace(), &key.namespace) {
            let other = ObjectKey::of(spread.as_ref());
            if other != *key {
                self.queue.add_after(other, POD_PAUSE);
            }
        }
    }

    /// Has those looked at that are for a target.
    fn add_for(&self, target: &str) {
        for spread in self.spreads.by_index(&BY_TARGET, target) {
            self.queue.add_after(ObjectKey::of(spread.as_ref()), POD_PAUSE);
        }
    }

    async fn reconcile(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let mut pass = Pass::default();
        for attempt in 0..ATTEMPTS {
            let held = self.spreads.get(key).filter(|held| held.meta().deletion_timestamp.is_none());
            let Some(held) = held else { return Ok(Requeue::Await) };
            let spread = held.open()?;
            pass = Pass::default();
            // The third attempt writes the whole status: tests of the patch may fail for other reasons than the webhook.
            let is_whole = attempt == ATTEMPTS / 2;
            if self.keep(key, (&held, &spread, is_whole), &mut pass).await? != Recorded::Outdated {
                break;
            }
        }
        pass.end(|after| self.queue.add_after(key.clone(), after))
    }

    async fn keep(
        &self,
        key: &ObjectKey,
        (held, spread, is_whole): (&HeldSpread, &WorkloadSpread, bool),
        pass: &mut Pass,
    ) -> kube::Result<Recorded> {
        let now = clock::now();
        self.memories.enter(key, spread.metadata.uid.as_deref().unwrap_or_default());
        let before = spread.status.clone().unwrap_or_default();
        let generation = spread.metadata.generation;
        let (spec, target) = match self.resolve(key, spread, (now, &mut *pass)).await? {
            Ok(resolved) => resolved,
            Err(hindrance) => {
                let spec = SpreadSpec::of(spread).ok();
                let plan = spec.as_ref().map(|spec| {
                    let ages = self.ages(key, &before, now);
                    match hindrance.leaves_no_pods() {
                        true => plan::without_pods(spec, &before, &ages, now),
                        false => plan::without_target(spec, &before, &self.noted(key, spec), &ages, now),
                    }
                });
                pass.look_after(plan.as_ref().and_then(|plan| plan.look));
                let outcome = Err((&hindrance, plan.as_ref()));
                let status = status::status(spec.as_ref(), outcome, &before, generation, now.wall);
                return self.record(key, (held, spread, is_whole), &status, plan.as_ref(), (now, pass)).await;
            }
        };
        let (pods, assigned) = self.observe(key, spread, &spec, &target, (now, &mut *pass)).await?;
        let active = pods.iter().filter(|pod| pod.pod.is_active());
        let versions = active.map(|pod| version_of(spec.target_kind, &pod.pod.labels)).collect();
        let newest: Newest = self.newest(key, &spec, &versions, (now, &mut *pass)).await;
        let ages = self.ages(key, &before, now);
        let seen = SpreadSeen {
            pods: &pods,
            total: target.total,
            newest,
            recorded: &before,
            ages: &ages,
            ignores_disruptions: target.ignores_disruptions,
        };
        let plan = plan::plan(&spec, &seen, now);
        pass.look_after(plan.look);
        let status = status::status(Some(&spec), Ok(&plan), &before, generation, now.wall);
        let recorded = self.record(key, (held, spread, is_whole), &status, Some(&plan), (now, &mut *pass)).await?;
        if recorded == Recorded::Now {
            self.remember(key, spread, &assigned);
            self.annotate(&spec, assigned, &plan, pass).await;
            self.evict(&spec, &plan, pass).await;
        }
        Ok(recorded)
    }

    /// The spec and the target.
    async fn resolve(
        &self,
        key: &ObjectKey,
        spread: &WorkloadSpread,
        (now, pass): (Now, &mut Pass),
    ) -> kube::Result<Result<(SpreadSpec, SpreadTargetView), SpreadHindrance>> {
        let spec = match SpreadSpec::of(spread) {
            Ok(spec) => spec,
            Err(Invalid(why)) => return Ok(Err(SpreadHindrance::Invalid(why))),
        };
        let others = self.spreads.by_index(&BY_TARGET, &spec.target_ref().key(&key.namespace));
        if let Some(by) = matching::older(spread, others.iter().map(|other| &**other.outline())) {
            return Ok(Err(SpreadHindrance::Taken(by)));
        }
        Ok(self.target(key, &spec, (now, pass)).await?.map(|target| (spec, target)))
    }
}

#[cfg(test)]
mod tests;
