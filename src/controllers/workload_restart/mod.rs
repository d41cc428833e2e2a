//! WorkloadRestarts: creates a ContainerRecreateRequest for every Pod of a workload, as many at a time as may be
//! unavailable.
//!
//! - Owns: the status of WorkloadRestarts, the requests that it makes for them, their deletion after the TTL, and the
//!   annotation on Pods that makes kubelet refresh volumes.
//! - Watches: WorkloadRestarts, the requests made for them (by label), Pods, PodDisruptionBudgets, and by name the
//!   ConfigMaps and Secrets that are triggers.
//! - Reads: targets, when a round goes on; for Deployments each ReplicaSet once.
//! - Never: evicts, writes a workload, or restarts a container itself. Its requests pass admission like those of users.
//!
//! Decisions ([`plan`]) are made one at a time in each namespace, each seeing the requests that the one before made: two
//! never take the same disruption of a budget. Namespaces share no budget and do not wait for each other.

mod apply;
mod observe;
mod triggers;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::runtime::watcher::Config;
use prometheus_client::metrics::{counter::Counter, family::Family};

use self::observe::Workload;
use super::{Context, Registration, Runner, Started, handling, lock};
use crate::{
    api::{crr::ContainerRecreateRequest, labels, wr::WorkloadRestart},
    domain::kinds::workload_restart::{self, ObservedPods, PodFacts, RestartSpec},
    k8s::{
        pod::PodView,
        rbac::Rule,
        time::{Now, Sighting},
    },
    runtime::{
        apply::said,
        clock,
        metrics::ResultLabels,
        pass::forget_deleted,
        queue::{Backoff, Queue, Requeue},
        shutdown::Shutdown,
        status_writer::StatusWriter,
        watches::{Change, ObjectKey, Store, StoreIndex},
        workload::{self, ReplicaSetOwners},
    },
};

/// Its entry in `CONTROLLERS`.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: Some("workloadrestarts.kruise.rs"),
    gate: None,
    rules: &[
        Rule::new(&["kruise.rs"], &["workloadrestarts"], &["get", "list", "watch", "delete"]),
        Rule::new(&["kruise.rs"], &["workloadrestarts/status"], &["patch"]),
        Rule::new(&["apps.kruise.io"], &["containerrecreaterequests"], &["create"]),
        Rule::new(&["apps.kruise.io"], &["sidecarsets"], &["get"]),
        workload::READ_BUILT_IN,
        workload::READ_KRUISE,
        Rule::new(&["policy"], &["poddisruptionbudgets"], &["list", "watch"]),
    ],
    workers_flag: None,
    workers: 2,
    start,
};

const NAME: &str = "workloadrestart-controller";

struct Controller {
    context: Context,
    restarts: Arc<Store<WorkloadRestart>>,
    requests: Arc<Store<ContainerRecreateRequest>>,
    budgets: Arc<Store<PodDisruptionBudget>>,
    triggers: triggers::Watches,
    queue: Arc<Queue<ObjectKey>>,
    memories: Mutex<HashMap<ObjectKey, RoundState>>,
    replica_sets: ReplicaSetOwners,
    deciding: Deciding,
    status: StatusWriter,
    metrics: OwnMetrics,
}

/// One lock for each namespace, held from the look at Pods and budgets until the requests that follow from it are made.
#[derive(Default)]
struct Deciding(Mutex<HashMap<Arc<str>, Weak<tokio::sync::Mutex<()>>>>);

impl Deciding {
    fn of(&self, namespace: &Arc<str>) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = lock(&self.0);
        if let Some(held) = locks.get(namespace).and_then(Weak::upgrade) {
            return held;
        }
        locks.retain(|_, held| held.strong_count() > 0);
        let new = Arc::default();
        locks.insert(namespace.clone(), Arc::downgrade(&new));
        new
    }
}

#[derive(Clone, Default)]
struct OwnMetrics {
    rounds: Family<ResultLabels, Counter>,
    pods: Counter,
}

/// In-memory state of one round of a WorkloadRestart; losing it does no harm.
#[derive(Default)]
struct RoundState {
    uid: String,
    round: i64,
    /// The begin of the round.
    begin: Option<Sighting>,
    /// The end of the round.
    end: Option<Sighting>,
    /// The target, and when it was read.
    workload: Option<(Duration, Workload)>,
    /// Pods whose restart this process has seen under way.
    begun: HashSet<String>,
    /// Since when restarted Pods are ready, by UID.
    ready: HashMap<String, Sighting>,
    /// When Pods were touched, by UID.
    touched: HashMap<String, Duration>,
    /// How often the request for a Pod, or the refresh of its volumes, was refused, when last, and why, by UID.
    refused: HashMap<String, (u32, Duration, String)>,
}

fn start(context: &Context, workers: usize, shutdown: Shutdown) -> Started {
    let controller = Arc::new(Controller::new(context));
    let metrics = &controller.metrics;
    let help = "Rounds of WorkloadRestarts that ended, by result";
    context.metrics.register("kruise_workload_restart_rounds_completed", help, &metrics.rounds);
    let help = "Pods that WorkloadRestarts have begun to restart";
    context.metrics.register("kruise_workload_restart_pods_started", help, &metrics.pods);
    let on_pod = handling(&controller, Controller::pod_changed);
    Started::new(controller.run(workers, shutdown)).on_pod(on_pod)
}

/// The first `digits` hexadecimal digits of a hash of the parts.
fn hashed(parts: &[&str], digits: usize) -> String {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part.as_bytes());
    }
    let mut text: String = context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    text.truncate(digits);
    text
}

impl Controller {
    fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            restarts: Store::new([StoreIndex::namespace()]),
            requests: Store::new([StoreIndex::namespace()]),
            budgets: Store::new([StoreIndex::namespace()]),
            triggers: triggers::Watches::default(),
            queue: Queue::new(Backoff::default()),
            memories: Mutex::default(),
            replica_sets: ReplicaSetOwners::default(),
            deciding: Deciding::default(),
            status: StatusWriter::default(),
            metrics: OwnMetrics::default(),
        }
    }

    async fn run(self: Arc<Self>, workers: usize, shutdown: Shutdown) {
        let _end = triggers::EndWatches(&self.triggers);
        let (on_restart, on_request, on_budget, in_view) = (self.clone(), self.clone(), self.clone(), self.clone());
        let this = self.clone();
        let of_restarts = Config::default().labels(labels::WORKLOAD_RESTART);
        let runner = Runner::new(&self.context, NAME, shutdown)
            .watch_guarded(self.context.api(), Config::default(), &self.restarts, move |change| {
                on_restart.restart_changed(&change);
            })
            .watch_guarded(self.context.api(), of_restarts, &self.requests, move |change| on_request.wake_by(&change))
            .watch(self.context.api(), Config::default(), &self.budgets, move |change| on_budget.wake_by(&change))
            .following(&self.context.pods)
            .when_in_view(move || in_view.follow_all_triggers());
        let reconcile = move |key: ObjectKey| {
            let this = this.clone();
            async move { this.reconcile(&key).await }
        };
        runner.run(self.queue.clone(), workers, reconcile).await;
    }

    /// The WorkloadRestarts of the object's namespace look again.
    fn wake_by<K: kube::Resource>(&self, change: &Change<'_, K>) {
        match change {
            Change::Applied { new: object, .. } | Change::Deleted(object) => {
                self.wake(object.meta().namespace.as_deref().unwrap_or_default());
            }
            Change::Undecodable { key, .. } => self.wake(&key.namespace),
        }
    }

    fn restart_changed(self: &Arc<Self>, change: &Change<'_, WorkloadRestart>) {
        match change {
            Change::Applied { old, new, .. } => {
                let before = old.map(|old| old.triggers()).unwrap_or_default();
                // Those of the first list are followed together when it is complete.
                if (before != new.triggers() || self.triggers.have_ended(new)) && self.restarts.is_synced() {
                    self.follow_triggers(new.metadata.namespace.as_deref().unwrap_or_default());
                }
                self.queue.add(ObjectKey::of(new.as_ref()));
            }
            Change::Deleted(old) => {
                lock(&self.memories).remove(&ObjectKey::of(old.as_ref()));
                if old.is_triggered() {
                    self.follow_triggers(old.metadata.namespace.as_deref().unwrap_or_default());
                }
            }
            Change::Undecodable { key, error } => {
                tracing::error!(restart = %key, error, "this WorkloadRestart cannot be read and is left alone");
            }
        }
    }

    fn pod_changed(&self, change: &Change<'_, PodView>) {
        if self.restarts.is_empty() {
            return;
        }
        let Some((old, new)) = change.sides() else { return };
        // What a plan reads of a Pod and what may change of it.
        let facts = |pod: &Arc<PodView>| {
            let started = pod.container_statuses.iter().filter(|status| !status.container_id.is_empty()).count();
            let ready = pod.condition_is_true("Ready");
            (pod.uid().to_owned(), pod.is_deleting(), pod.is_finished(), ready, started, pod.labels.clone())
        };
        if let Some(any) = new.or(old)
            && old.map(facts) != new.map(facts)
        {
            self.wake(any.namespace());
        }
    }

    /// Everything in a namespace that goes on looks again: what one gives back, another may take.
    fn wake(&self, namespace: &str) {
        for restart in self
            .restarts
            .by_index(&StoreIndex::namespace(), namespace)
            .iter()
            .filter(|restart| workload_restart::is_active(restart))
        {
            self.queue.add(ObjectKey::of(restart.as_ref()));
        }
    }

    async fn reconcile(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let result = self.pass(key).await;
        forget_deleted(&self.memories, &self.restarts, key);
        result
    }

    async fn pass(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let Some(restart) = self.restarts.get(key) else { return Ok(Requeue::Await) };
        let now = clock::now();
        let ended = self.remember(&restart, now);
        let spec = RestartSpec::of(&restart);
        let seen = self.triggers.seen(&restart);
        if let Some(plan) = workload_restart::begin(&restart, &spec, &seen, ended, now) {
            return self.record(&restart, plan).await;
        }
        let turn = self.deciding.of(&key.namespace);
        let deciding = turn.lock().await;
        let mut plan = self.look_and_plan(key, &restart, &spec).await?;
        if !plan.start.is_empty() && self.read_budgets(&key.namespace).await? {
            plan = self.look_and_plan(key, &restart, &spec).await?;
        }
        self.ask_budgets(&key.namespace, &mut plan).await;
        let begun = self.restart_pods(&restart, &spec, &mut plan).await;
        drop(deciding);
        if let Err(error) = &begun {
            plan.requests_failed(&said(error), clock::now());
        }
        let recorded = self.record(&restart, plan).await;
        begun.and(recorded)
    }

    /// The memory of the round that the object is in, made anew for a new round; how long ago the round ended.
    fn remember(&self, restart: &WorkloadRestart, now: Now) -> Option<Duration> {
        let status = restart.status.clone().unwrap_or_default();
        let uid = restart.metadata.uid.clone().unwrap_or_default();
        let mut memories = lock(&self.memories);
        let memory = memories.entry(ObjectKey::of(restart)).or_default();
        if memory.uid != uid || memory.round != status.round {
            // A round after one that this process knows has begun just now; another was found.
            let is_next = memory.uid == uid && memory.round + 1 == status.round;
            let begin = match status.start_time {
                Some(begin) if !is_next => Sighting::found(now, begin),
                _ => Sighting::live(now),
            };
            *memory = RoundState { uid, round: status.round, begin: Some(begin), ..RoundState::default() };
            if status.has_ended() {
                memory.end = status.completion_time.map(|end| Sighting::found(now, end));
            }
        }
        if !status.has_ended() {
            memory.end = None;
        } else if memory.end.is_none() {
            memory.end = Some(Sighting::live(now));
        }
        memory.end.map(|end| end.age(now))
    }

    async fn look_and_plan(
        &self,
        key: &ObjectKey,
        restart: &WorkloadRestart,
        spec: &RestartSpec,
    ) -> kube::Result<workload_restart::RestartPlan> {
        let round = restart.status.as_ref().map_or(0, |status| status.round);
        let remembered = lock(&self.memories).get(key).and_then(|memory| memory.workload.clone());
        let (read, workload) = self.workload(&key.namespace, spec, remembered, clock::now()).await?;
        let requests = self.requests_in(&key.namespace);
        let records = match &workload.whose {
            Some(whose) => self.pods_of(restart, whose, round, &requests).await?,
            None => Vec::new(),
        };
        let budgets = self.budgets(&key.namespace, &requests);
        let now = clock::now();
        let mut memories = lock(&self.memories);
        let memory = memories.entry(key.clone()).or_default();
        memory.note_ready(&records, now);
        memory.workload = Some((read, workload.clone()));
        let ago = |then: Duration| now.mono.saturating_sub(then);
        let facts = records.iter().map(|observe::PodRecord { pod, request, busy, sidecars }| PodFacts {
            sidecars: sidecars.as_deref(),
            request: request.as_deref(),
            busy: *busy,
            refused: memory.refused.get(pod.uid()).map(|(times, last, why)| (*times, ago(*last), why.as_str())),
            ready_for: memory.ready.get(pod.uid()).map(|ready| ready.age(now)),
            refreshed: memory.touched.get(pod.uid()).map(|touched| ago(*touched)),
            pod: pod.as_ref(),
        });
        let observed = ObservedPods {
            restart,
            spec,
            target: workload.target,
            pods: facts.collect(),
            budgets,
            age: memory.begin.map_or(Duration::ZERO, |begin| begin.age(now)),
        };
        Ok(workload_restart::advance(&observed, now))
    }
}

#[cfg(test)]
mod tests;
