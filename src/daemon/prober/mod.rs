//! Carries out the probes of this node's NodePodProbe and tells their results there.
//!
//! Owns: the status of the NodePodProbe of this node, and events about its results. Watches: that one object, the node's
//! Pods. Never: dials anything but a Pod's own address, asks the runtime for a state that kubelet reports, or writes what
//! has not changed.
//!
//! One task keeps the time of all probes: a heap of moments, rounded so that many are due at once. Only a probe that runs
//! has a task of its own. Commands are limited in number, and wait when the runtime is slow to answer.

mod handlers;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use kube::{
    Api, Client as KubeClient,
    api::{Patch, PatchParams},
    core::DeserializeGuard,
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    task::{Id, JoinError, JoinSet},
    time::Instant,
};

use self::handlers::Found;
use super::runtimes::Runtimes;
use crate::{
    api::apps::node_pod_probe::{ContainerProbe, ContainerProbeState, NodePodProbe},
    domain::probes::{
        FAILED, SUCCEEDED, UNKNOWN,
        node::{self, Changed, Handler, Look, Settings, Tally},
    },
    k8s::pod::PodView,
    runtime::{
        apply::code,
        clock,
        events::{Recorder, reference},
        metrics::Metrics,
        watches::{self, ObjectKey, Store, jitter},
    },
};

/// Moments are rounded up to a multiple of this: fewer of them wake the processor.
const GRID: Duration = Duration::from_millis(100);
/// Commands that run at the same time, for all containers.
const EXECS: usize = 32;
/// From a change of a state to its telling: what changes together is told together.
const GATHER: Duration = Duration::from_millis(100);
/// Between two writes of the status.
const STATE_PAUSE: Duration = Duration::from_secs(1);
/// The same while only messages have changed.
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
    /// The object as it is now; none if there is none.
    Object(Option<Box<NodePodProbe>>),
    /// A Pod that is probed has changed.
    Pod(Box<str>),
}

/// What others tell the prober.
#[derive(Clone)]
pub struct Handle {
    inputs: mpsc::UnboundedSender<Input>,
    probed: Arc<Mutex<HashSet<Box<str>>>>,
}

impl Handle {
    /// A Pod was added, changed or is gone.
    pub fn pod_changed(&self, uid: &str) {
        if self.probed.lock().unwrap_or_else(PoisonError::into_inner).contains(uid) {
            // Nobody listens any more: the daemon is shutting down.
            let _ = self.inputs.send(Input::Pod(uid.into()));
        }
    }

    fn object_changed(&self, object: Option<NodePodProbe>) {
        let _ = self.inputs.send(Input::Object(object.map(Box::new)));
    }

    /// Follows the object of this node, for ever.
    pub async fn follow(self, kube: KubeClient, node: String) {
        let api: Api<DeserializeGuard<NodePodProbe>> = Api::all(kube);
        watches::watch_named(api, &node, |change| match change {
            Ok(None) => self.object_changed(None),
            Ok(Some(DeserializeGuard(Ok(object)))) => self.object_changed(Some(object)),
            Ok(Some(DeserializeGuard(Err(error)))) => {
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
    /// What was told before this daemon began.
    told: Option<ContainerProbeState>,
    /// When it is due, and which of its moments in the heap counts.
    next: Instant,
    turn: u64,
    is_running: bool,
    is_waiting: bool,
    /// Since when nothing is known of the instance.
    unknown: Option<Instant>,
}

/// A runtime that does not answer.
struct Slow {
    failures: u32,
    until: Instant,
}

/// What a task of a probe is about.
struct Run {
    probe: u64,
    /// The instance, and the handler, that it was begun for.
    instance: String,
    handler: Handler,
}

/// Serves the probes of one node.
pub struct Prober {
    kube: KubeClient,
    pods: Arc<Store<PodView>>,
    runtimes: Runtimes,
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
    execs: usize,
    /// Probes that wait for another command to end.
    waiting: VecDeque<u64>,
    slow: HashMap<String, Slow>,
    /// When the status has to be looked at, and when it was written last.
    due: Option<Instant>,
    written: Option<Instant>,
    writes: JoinSet<kube::Result<NodePodProbe>>,
    write_failures: u32,
}

impl Prober {
    /// Puts the parts together.
    pub fn new(
        kube: KubeClient,
        pods: Arc<Store<PodView>>,
        runtimes: Runtimes,
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
            events: events.named("kruise-daemon-podprobe"),
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
            execs: 0,
            waiting: VecDeque::new(),
            slow: HashMap::new(),
            due: None,
            written: None,
            writes: JoinSet::new(),
            write_failures: 0,
        };
        (Handle { inputs: sender, probed }, prober)
    }

    /// Works until `shutdown` turns true. Nothing is carried on: the next daemon begins where the status says.
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
        self.object = object;
        let now = Instant::now();
        let mut known: HashMap<(Box<str>, Box<str>), u64> =
            self.probes.iter().map(|(id, probe)| ((probe.uid.clone(), probe.name.clone()), *id)).collect();
        let spec = self.object.as_ref().map(|object| object.spec.pod_probes.clone()).unwrap_or_default();
        for pod in &spec {
            let key = ObjectKey::new(&pod.namespace, &pod.name);
            for wanted in &pod.probes {
                match known.remove(&(pod.uid.as_str().into(), wanted.name.as_str().into())) {
                    Some(id) => self.change(id, wanted, now),
                    None => self.add(&key, &pod.uid, wanted, now),
                }
            }
        }
        for id in known.into_values() {
            self.remove(id);
        }
        self.is_first = false;
        self.metrics.probes.set(i64::try_from(self.probes.len()).unwrap_or(i64::MAX));
        // Somebody may have changed what was told.
        self.write_at(now + GATHER);
    }

    fn add(&mut self, key: &ObjectKey, uid: &str, wanted: &ContainerProbe, now: Instant) {
        self.last_id += 1;
        let id = self.last_id;
        let told = self.object.as_ref().and_then(|object| object.status.as_ref()).and_then(|status| {
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
            told,
            next: first,
            turn: 0,
            is_running: false,
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
        self.note(changed);
        self.look(id);
    }

    fn remove(&mut self, id: u64) {
        let Some(probe) = self.probes.remove(&id) else { return };
        if let Some(ids) = self.by_pod.get_mut(&probe.uid) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_pod.remove(&probe.uid);
                self.probed.lock().unwrap_or_else(PoisonError::into_inner).remove(&probe.uid);
            }
        }
    }

    /// What has come due.
    fn tick(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, id, turn))) = self.heap.peek().copied() {
            if at > now {
                break;
            }
            self.heap.pop();
            if self.probes.get(&id).is_some_and(|probe| probe.turn == turn) {
                self.look(id);
            }
        }
        if self.due.is_some_and(|due| due <= now) && self.writes.is_empty() {
            self.write();
        }
    }

    /// Looks at the container of a probe, and probes it if it is due.
    fn look(&mut self, id: u64) {
        let Some(probe) = self.probes.get_mut(&id) else { return };
        // Until the Pod is there, its news is what there is to wait for.
        let Some(pod) = self.pods.get(&probe.pod).filter(|pod| pod.uid() == &*probe.uid) else { return };
        let now = clock::now();
        if let Some(adopted) = probe.told.take().and_then(|told| Tally::adopt(&told, &pod, &probe.container)) {
            probe.tally = adopted;
        }
        let (look, instance) = node::look(&pod, &probe.container, &probe.settings, now);
        let changed = match look {
            Look::NotStarted => Changed::Nothing,
            Look::NotRunning => probe.tally.not_running(&probe.container, now),
            Look::TooEarly(_) | Look::Due => probe.tally.begin(instance, now),
        };
        if changed == Changed::Message && probe.tally.state == UNKNOWN {
            probe.unknown = Some(Instant::now());
        }
        if changed == Changed::State {
            tell_event(&self.events, &pod, &probe.tally);
        }
        let at = match look {
            Look::NotStarted | Look::NotRunning | Look::TooEarly(None) => None,
            Look::TooEarly(Some(left)) => Some(Instant::now() + left),
            Look::Due => Some(probe.next),
        };
        let is_free = !probe.is_running && !probe.is_waiting;
        self.note(changed);
        match at {
            Some(at) if is_free && at <= Instant::now() => self.begin(id, &pod, instance.to_owned()),
            Some(at) if is_free => self.schedule(id, at),
            // A probe that runs is looked at again when it ends, one without a time when the Pod changes.
            _ => {}
        }
    }

    fn schedule(&mut self, id: u64, at: Instant) {
        let Some(probe) = self.probes.get_mut(&id) else { return };
        probe.turn += 1;
        let since = at.saturating_duration_since(self.begin).as_millis();
        let steps = u32::try_from(since.div_ceil(GRID.as_millis())).unwrap_or(u32::MAX);
        self.heap.push(Reverse((self.begin + GRID * steps, id, probe.turn)));
    }

    /// Begins a probe that is due, unless the runtime has too much to do.
    fn begin(&mut self, id: u64, pod: &PodView, instance: String) {
        let Some(probe) = self.probes.get_mut(&id) else { return };
        let (handler, limit) = (probe.settings.handler.clone(), probe.settings.timeout);
        let now = Instant::now();
        let task = match &handler {
            Handler::Exec(command) => {
                let Some((runtime, in_runtime)) = instance.split_once("://") else { return };
                if let Some(slow) = self.slow.get(runtime).filter(|slow| slow.until > now) {
                    let at = slow.until + jitter(GATHER * 10);
                    return self.schedule(id, at);
                }
                let Some(client) = self.runtimes.get(runtime) else { return self.schedule(id, now + STATE_PAUSE) };
                if self.execs >= EXECS {
                    probe.is_waiting = true;
                    return self.waiting.push_back(id);
                }
                self.execs += 1;
                let (command, in_runtime) = (command.clone(), in_runtime.to_owned());
                self.runs.spawn(async move { handlers::exec(&client, &in_runtime, &command, limit).await })
            }
            other => {
                let (other, ip) = (other.clone(), node::address(&pod.pod_ip));
                self.runs.spawn(async move { handlers::network(&other, ip, limit).await })
            }
        };
        probe.is_running = true;
        // The rhythm is kept; what was missed is not made up for.
        probe.next = (probe.next + probe.settings.period).max(now + probe.settings.period / 2);
        self.running.insert(task.id(), Run { probe: id, instance, handler });
    }

    fn finish(&mut self, ended: Result<(Id, Found), JoinError>) {
        let (task, found) = match ended {
            Ok((task, found)) => (task, Some(found)),
            Err(error) => (error.id(), None),
        };
        let Some(run) = self.running.remove(&task) else { return };
        let is_exec = matches!(run.handler, Handler::Exec(_));
        if is_exec {
            self.execs = self.execs.saturating_sub(1);
            self.judge_runtime(&run, found.as_ref());
        }
        let result = match &found {
            Some(Found::Good(_)) => "succeeded",
            Some(Found::Bad(_)) => "failed",
            _ => "error",
        };
        let handler = match &run.handler {
            Handler::Exec(_) => "exec",
            Handler::Http { .. } => "http",
            Handler::Tcp { .. } => "tcp",
            Handler::Impossible(_) => "none",
        };
        self.metrics.runs.get_or_create(&RunLabels { handler, result }).inc();
        if let Some(probe) = self.probes.get_mut(&run.probe) {
            probe.is_running = false;
            let is_meant = probe.tally.instance == run.instance && probe.settings.handler == run.handler;
            let now = clock::now();
            let changed = match found {
                Some(Found::Good(output)) if is_meant => probe.tally.note(true, &output, &probe.settings, now),
                Some(Found::Bad(output)) if is_meant => probe.tally.note(false, &output, &probe.settings, now),
                Some(Found::Nothing(error)) => {
                    tracing::debug!(pod = %probe.pod, probe = %probe.name, %error, "not probed");
                    Changed::Nothing
                }
                _ => Changed::Nothing,
            };
            if changed == Changed::State
                && let Some(pod) = self.pods.get(&probe.pod)
            {
                tell_event(&self.events, &pod, &probe.tally);
            }
            self.note(changed);
            self.look(run.probe);
        }
        while self.execs < EXECS
            && let Some(id) = self.waiting.pop_front()
        {
            if let Some(probe) = self.probes.get_mut(&id) {
                probe.is_waiting = false;
                self.look(id);
            }
        }
    }

    /// A runtime that does not answer gets no more commands for a while, longer each time.
    fn judge_runtime(&mut self, run: &Run, found: Option<&Found>) {
        let Some((runtime, _)) = run.instance.split_once("://") else { return };
        match found {
            Some(Found::Nothing(error)) if error.is_transient() => {
                let now = Instant::now();
                let slow = self.slow.entry(runtime.to_owned()).or_insert(Slow { failures: 0, until: now });
                // Those that were begun together fail together: that is one failure.
                if slow.until <= now {
                    let delay = backoff(slow.failures);
                    slow.failures += 1;
                    slow.until = now + delay;
                    self.metrics.backoffs.inc();
                    tracing::warn!(runtime, %error, retry_in = ?delay, "the runtime runs no commands; probes wait");
                }
            }
            Some(Found::Good(_) | Found::Bad(_)) if self.slow.remove(runtime).is_some() => {
                tracing::info!(runtime, "the runtime runs commands again");
            }
            _ => {}
        }
    }

    /// The status has to be written, sooner or later.
    fn note(&mut self, changed: Changed) {
        let now = Instant::now();
        let after = |pause: Duration| self.written.map_or(now, |written| written + pause).max(now + GATHER);
        match changed {
            Changed::Nothing => {}
            Changed::State => self.write_at(after(STATE_PAUSE)),
            Changed::Message => self.write_at(after(MESSAGE_PAUSE).max(now + STATE_PAUSE)),
        }
    }

    fn write_at(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    fn write(&mut self) {
        self.due = None;
        let Some(object) = &self.object else { return };
        let now = Instant::now();
        let (mut ids, mut later): (HashMap<(&str, &str), &Tally>, Option<Instant>) = Default::default();
        for probe in self.probes.values() {
            // Mostly something is known within moments: until then, what was told stays.
            match probe
                .unknown
                .map(|since| since + MESSAGE_PAUSE)
                .filter(|at| probe.tally.state == UNKNOWN && *at > now)
            {
                Some(at) => later = Some(later.map_or(at, |other| other.min(at))),
                None => drop(ids.insert((&probe.uid, &probe.name), &probe.tally)),
            }
        }
        self.due = later;
        let statuses = node::statuses(object, |uid, name| ids.get(&(uid, name)).copied());
        let told = object.status.as_ref().map(|status| &*status.pod_probe_statuses).unwrap_or_default();
        if told == statuses {
            return;
        }
        let meta = &object.metadata;
        let patch = json!({ "metadata": { "uid": meta.uid, "resourceVersion": meta.resource_version },
            "status": { "podProbeStatuses": statuses } });
        let (api, name) = (Api::<NodePodProbe>::all(self.kube.clone()), meta.name.clone().unwrap_or_default());
        self.written = Some(now);
        self.metrics.writes.inc();
        self.writes.spawn(async move { api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await });
    }

    fn wrote(&mut self, ended: Result<kube::Result<NodePodProbe>, JoinError>) {
        let now = Instant::now();
        match ended {
            Ok(Ok(object)) => {
                self.write_failures = 0;
                self.take_object(Some(Box::new(object)));
            }
            // Its newer version is on the way.
            Ok(Err(error)) if matches!(code(&error), Some(404 | 409)) => self.write_at(now + GATHER * 2),
            failed => {
                let delay = backoff(self.write_failures);
                self.write_failures += 1;
                let error = failed.map(Result::err);
                tracing::warn!(?error, retry_in = ?delay, "the results of probes are not written");
                self.write_at(now + delay);
            }
        }
    }
}

fn backoff(failures: u32) -> Duration {
    Duration::from_secs(1 << failures.min(6)).min(LONGEST_BACKOFF)
}

fn tell_event(events: &Recorder, pod: &PodView, tally: &Tally) {
    match tally.state {
        SUCCEEDED => events.normal(&reference(pod), "KruiseProbeSucceeded", &tally.message),
        FAILED => events.warning(&reference(pod), "KruiseProbeFailed", &tally.message),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
