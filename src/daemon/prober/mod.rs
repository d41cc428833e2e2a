//! Runs the probes of this node's NodePodProbe and reports their results in its status.
//!
//! Owns: the status of the NodePodProbe of this node, and events about its results. Watches: that one object, the node's
//! Pods. Never: connects to anything but a Pod's own address, asks the runtime for a state that kubelet reports, or writes
//! an unchanged status.
//!
//! One task schedules all probes with a heap of times, rounded so that many are due at once. Only a running probe has a
//! task of its own. The number of running probes is limited, and each namespace has a share of it
//! (`domain/node/probes/slots.rs`). Commands of a namespace wait when the runtime is slow to answer them. A probe that is
//! changed or removed while it runs is aborted.

mod handlers;
mod results;
mod runs;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use kube::{Api, Client as KubeClient};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};
use serde_json::Value;
use tokio::{
    sync::{mpsc, watch},
    task::{AbortHandle, Id, JoinSet},
    time::Instant,
};

use self::handlers::Found;
use super::runtimes::Runtimes;
use crate::{
    api::apps::node_pod_probe::{ContainerProbe, ContainerProbeState, NodePodProbe, PodProbe},
    domain::node::probes::{
        node::{Changed, Handler, Settings, Tally},
        slots::Slots,
    },
    k8s::{account, pod::PodView, time::doubled},
    runtime::{
        clock,
        events::Recorder,
        guarded::Guarded,
        metrics::Metrics,
        watches::{self, ObjectKey, Store},
    },
};

/// Times are rounded up to a multiple of this, so that the process wakes up less often.
const GRID: Duration = Duration::from_millis(100);
/// Commands that run at the same time, for all containers; namespaces share them.
const EXECS: usize = 32;
/// Probes over the network at the same time; namespaces share them. Each may hold some 50 KiB.
const NETWORK: usize = 128;
/// From a change of a result to the write: results that change within this time go into one write.
const GATHER: Duration = Duration::from_millis(100);
/// Between two writes of the status.
const STATE_PAUSE: Duration = Duration::from_secs(1);
/// The same if only messages have changed.
const MESSAGE_PAUSE: Duration = Duration::from_secs(10);
/// After the start of the daemon, probes begin within this time, not all at once.
const SPREAD: Duration = Duration::from_secs(10);
/// The longest wait after failures of the runtime or of the API server.
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);

/// Labels of the counter of probes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RunLabels {
    handler: &'static str,
    result: &'static str,
}

#[derive(Clone, Default)]
struct OwnMetrics {
    probes: Gauge,
    runs: Family<RunLabels, Counter>,
    backoffs: Counter,
    writes: Counter,
}

impl OwnMetrics {
    fn register(&self, metrics: &Metrics) {
        metrics.register("kruise_probes", "Probes of this node", &self.probes);
        metrics.register("kruise_probe_runs", "Probes carried out, by handler and result", &self.runs);
        let help = "Times that commands were put off because the runtime did not answer";
        metrics.register("kruise_probe_exec_backoffs", help, &self.backoffs);
        metrics.register("kruise_probe_status_writes", "Writes of the status of the NodePodProbe", &self.writes);
    }
}

enum Input {
    /// The current object; none if there is none.
    Object(Option<Box<NodePodProbe>>),
    /// A Pod that is probed has changed.
    Pod(Box<str>),
}

/// Changes that the prober is notified of.
#[derive(Clone)]
pub struct Handle {
    inputs: mpsc::UnboundedSender<Input>,
    probed: Arc<Mutex<HashSet<Box<str>>>>,
}

impl Handle {
    /// A Pod was added, changed or deleted.
    pub fn pod_changed(&self, uid: &str) {
        if self.probed.lock().unwrap_or_else(PoisonError::into_inner).contains(uid) {
            // The receiver is gone: the daemon is shutting down.
            let _ = self.inputs.send(Input::Pod(uid.into()));
        }
    }

    fn object_changed(&self, object: Option<NodePodProbe>) {
        let _ = self.inputs.send(Input::Object(object.map(Box::new)));
    }

    /// Follows the object of this node, for ever.
    pub async fn follow(self, kube: KubeClient, node: String) {
        let api: Api<Guarded<NodePodProbe>> = Api::all(kube);
        watches::watch_named_guarded(api, &node, |change| match change {
            Ok(None) => self.object_changed(None),
            Ok(Some(Guarded(Ok(object)))) => self.object_changed(Some(object)),
            Ok(Some(Guarded(Err(error)))) => {
                tracing::error!(%error, "the NodePodProbe of this node cannot be read; nothing is probed");
                self.object_changed(None);
            }
            Err(error) => tracing::warn!(kind = "NodePodProbe", %error, "watch failed, trying again"),
        })
        .await;
    }
}

/// One probe of one container.
struct Probe {
    pod: ObjectKey,
    uid: Box<str>,
    name: Box<str>,
    container: Box<str>,
    raw: Value,
    settings: Settings,
    tally: Tally,
    /// What the status said when this daemon started.
    recorded: Option<ContainerProbeState>,
    /// When it is due.
    next: Instant,
    /// Which of its entries in the heap is current, and the time of that one until it has come.
    turn: u64,
    queued: Option<Instant>,
    running: Option<AbortHandle>,
    is_waiting: bool,
    /// Since when the state of the instance is not known.
    unknown: Option<Instant>,
}

/// A runtime that does not answer.
struct Slow {
    failures: u32,
    until: Instant,
}

/// Which run of which probe a task belongs to.
struct Run {
    probe: u64,
    namespace: Arc<str>,
    /// The instance, and the handler, that it was begun for.
    instance: String,
    handler: Handler,
}

/// Serves the probes of one node.
pub struct Prober {
    kube: KubeClient,
    pods: Arc<Store<PodView>>,
    runtimes: Runtimes,
    /// Its Pods are never probed.
    own_namespace: Box<str>,
    events: Recorder,
    metrics: OwnMetrics,
    inputs: mpsc::UnboundedReceiver<Input>,
    probed: Arc<Mutex<HashSet<Box<str>>>>,
    begin: Instant,
    object: Option<Box<NodePodProbe>>,
    is_first: bool,
    probes: HashMap<u64, Probe>,
    by_pod: HashMap<Box<str>, Vec<u64>>,
    last_id: u64,
    heap: BinaryHeap<Reverse<(Instant, u64, u64)>>,
    runs: JoinSet<Found>,
    running: HashMap<Id, Run>,
    execs: Slots,
    network: Slots,
    /// By runtime and namespace.
    slow: HashMap<(String, Arc<str>), Slow>,
    /// When the status has to be looked at, and when it was written last.
    due: Option<Instant>,
    written: Option<Instant>,
    writes: JoinSet<kube::Result<NodePodProbe>>,
    write_failures: u32,
}

impl Prober {
    /// For one node. Pods of `own_namespace`, ours, are never probed.
    pub fn new(
        kube: KubeClient,
        pods: Arc<Store<PodView>>,
        runtimes: Runtimes,
        own_namespace: &str,
        events: &Recorder,
        metrics: &Metrics,
    ) -> (Handle, Self) {
        let (sender, inputs) = mpsc::unbounded_channel();
        let probed: Arc<Mutex<HashSet<Box<str>>>> = Arc::default();
        let own = OwnMetrics::default();
        own.register(metrics);
        let prober = Self {
            kube,
            pods,
            runtimes,
            own_namespace: own_namespace.into(),
            events: events.named(account::EVENTS_OF_PROBES),
            metrics: own,
            inputs,
            probed: probed.clone(),
            begin: Instant::now(),
            object: None,
            is_first: true,
            probes: HashMap::new(),
            by_pod: HashMap::new(),
            last_id: 0,
            heap: BinaryHeap::new(),
            runs: JoinSet::new(),
            running: HashMap::new(),
            execs: Slots::new(EXECS),
            network: Slots::new(NETWORK),
            slow: HashMap::new(),
            due: None,
            written: None,
            writes: JoinSet::new(),
            write_failures: 0,
        };
        (Handle { inputs: sender, probed }, prober)
    }

    /// Works until `shutdown` turns true. The next daemon continues from the results in the status.
    pub async fn run(mut self, mut shutdown: watch::Receiver<bool>) {
        loop {
            let next = self.heap.peek().map(|Reverse((at, ..))| *at);
            let due = self.due.filter(|_| self.writes.is_empty());
            let wake = [next, due].into_iter().flatten().min();
            let timer = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = shutdown.wait_for(|stop| *stop) => return,
                Some(input) = self.inputs.recv() => self.take(input),
                Some(ended) = self.runs.join_next_with_id(), if !self.runs.is_empty() => self.finish(ended),
                Some(ended) = self.writes.join_next(), if !self.writes.is_empty() => self.wrote(ended),
                () = timer => self.tick(),
            }
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Object(object) => self.take_object(object),
            Input::Pod(uid) => {
                for id in self.by_pod.get(&uid).cloned().unwrap_or_default() {
                    self.look(id);
                }
            }
        }
    }

    fn take_object(&mut self, object: Option<Box<NodePodProbe>>) {
        let version =
            |object: &NodePodProbe| object.metadata.resource_version.as_deref().and_then(|v| v.parse::<u64>().ok());
        if let (Some(old), Some(new)) = (&self.object, &object)
            && old.metadata.uid == new.metadata.uid
            && version(new) < version(old)
        {
            return; // an own write is newer
        }
        let is_newer = match (&self.object, &object) {
            (Some(old), Some(new)) => old.metadata.uid != new.metadata.uid || version(new) > version(old),
            _ => true,
        };
        if is_newer {
            self.write_failures = 0;
        }
        self.object = object;
        let now = Instant::now();
        let mut gone: HashSet<u64> = self.probes.keys().copied().collect();
        let mut known: HashMap<(Box<str>, Box<str>), Option<u64>> =
            self.probes.iter().map(|(id, probe)| ((probe.uid.clone(), probe.name.clone()), Some(*id))).collect();
        let mut spec = self.object.as_ref().map(|object| object.spec.pod_probes.clone()).unwrap_or_default();
        // Otherwise everyone who can write the object could run commands in the manager and the webhook.
        spec.retain(|pod| *pod.namespace != *self.own_namespace);
        self.share_slots(&spec);
        for pod in &spec {
            let key = ObjectKey::new(&pod.namespace, &pod.name);
            for wanted in &pod.probes {
                match known.insert((pod.uid.as_str().into(), wanted.name.as_str().into()), None) {
                    // Of a name that is there twice the first is probed.
                    Some(None) => {}
                    Some(Some(id)) => {
                        gone.remove(&id);
                        self.change(id, wanted, now);
                    }
                    None => self.add(&key, &pod.uid, wanted, now),
                }
            }
        }
        for id in gone {
            self.remove(id);
        }
        self.is_first = false;
        self.begin_waiting();
        self.metrics.probes.set(i64::try_from(self.probes.len()).unwrap_or(i64::MAX));
        // The status may have been changed by others.
        self.write_at(now + GATHER);
    }

    /// Gives each namespace its share of what may run at a time.
    fn share_slots(&mut self, spec: &[PodProbe]) {
        let (mut execs, mut network): (HashSet<&str>, HashSet<&str>) = Default::default();
        for pod in spec {
            for probe in &pod.probes {
                let is_exec = probe.probe.get("exec").is_some_and(|exec| !exec.is_null());
                let namespaces = if is_exec { &mut execs } else { &mut network };
                namespaces.insert(&pod.namespace);
            }
        }
        self.execs.set_namespaces(execs.len());
        self.network.set_namespaces(network.len());
    }

    fn add(&mut self, key: &ObjectKey, uid: &str, wanted: &ContainerProbe, now: Instant) {
        self.last_id += 1;
        let id = self.last_id;
        let recorded = self.object.as_ref().and_then(|object| object.status.as_ref()).and_then(|status| {
            let of_pod = status.pod_probe_statuses.iter().find(|status| status.uid == uid)?;
            of_pod.probe_states.iter().find(|state| state.name == wanted.name).cloned()
        });
        let settings = Settings::of(&wanted.probe);
        let spread = settings.period.min(SPREAD);
        let mut hasher = DefaultHasher::new();
        (uid, &wanted.name).hash(&mut hasher);
        let share = (hasher.finish() % 1000) as u32;
        let first = if self.is_first { now + spread * share / 1000 } else { now };
        let probe = Probe {
            pod: key.clone(),
            uid: uid.into(),
            name: wanted.name.as_str().into(),
            container: wanted.container_name.as_str().into(),
            raw: wanted.probe.clone(),
            settings,
            tally: Tally::default(),
            recorded,
            next: first,
            turn: 0,
            queued: None,
            running: None,
            is_waiting: false,
            unknown: None,
        };
        self.by_pod.entry(uid.into()).or_default().push(id);
        self.probed.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.into());
        self.probes.insert(id, probe);
        self.look(id);
    }

    fn change(&mut self, id: u64, wanted: &ContainerProbe, now: Instant) {
        let Some(probe) = self.probes.get_mut(&id) else { return };
        let is_same_container = *probe.container == *wanted.container_name;
        if probe.raw == wanted.probe && is_same_container {
            return;
        }
        let settings = Settings::of(&wanted.probe);
        let changed = match settings.handler == probe.settings.handler && is_same_container {
            true => Changed::Nothing,
            false => {
                probe.unknown = Some(now);
                probe.tally.reset(clock::now())
            }
        };
        probe.container = wanted.container_name.as_str().into();
        probe.raw = wanted.probe.clone();
        probe.settings = settings;
        probe.next = now;
        self.abort(id);
        self.note(changed);
        self.look(id);
    }

    fn remove(&mut self, id: u64) {
        self.abort(id);
        let Some(probe) = self.probes.remove(&id) else { return };
        if let Some(ids) = self.by_pod.get_mut(&probe.uid) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_pod.remove(&probe.uid);
                self.probed.lock().unwrap_or_else(PoisonError::into_inner).remove(&probe.uid);
            }
        }
    }

    /// Probes that are due.
    fn tick(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, id, turn))) = self.heap.peek().copied() {
            if at > now {
                break;
            }
            self.heap.pop();
            if let Some(probe) = self.probes.get_mut(&id).filter(|probe| probe.turn == turn) {
                probe.queued = None;
                self.look(id);
            }
        }
        if self.due.is_some_and(|due| due <= now) && self.writes.is_empty() {
            self.write();
        }
    }
}

fn backoff(failures: u32) -> Duration {
    doubled(Duration::from_secs(1), failures, LONGEST_BACKOFF)
}

#[cfg(test)]
mod tests;
