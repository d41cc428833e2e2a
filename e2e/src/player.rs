//! Plays kubelets: Pods of one namespace that are bound to played nodes start, follow their image, end and crash, as far
//! as their status shows it.
//!
//! kwok's stages cannot do this: whether a Pod is Ready depends on conditions that others write, in an order that nobody
//! knows, and a restart on what ran before. What is written follows from what was seen ([`Kubelet::turn`], without a clock
//! or a client); the rest of this file carries that out.
//!
//! Nothing is kept of a Pod but what its next turn needs: twenty thousand are played in one process.

use std::cmp::Reverse;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, pin_mut, stream};
use jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use crate::kit::{Look, Test};

/// The label of a played node, and its taint: nothing lands there that does not ask for it.
pub const PLAYED: &str = "e2e/played";
/// The node controller asks for a sign of life every 50 s.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// After a write that failed.
const RETRY: Duration = Duration::from_millis(300);

/// How played kubelets behave.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// From the binding of a Pod to its first start. If it takes any time, the Pod shows that its containers are being
    /// created, as kubelet says it.
    pub start: Duration,
    /// From the end of an instance to the start of the next one. If it is nothing, both are one write.
    pub restart: Duration,
    /// How long an application takes to end when its Pod is deleted; at most the grace period. If it takes any time, the
    /// Pod shows that its containers have ended before it goes, as kubelet says it.
    pub stop: Duration,
    /// Writes at the same time.
    pub writes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { start: Duration::ZERO, restart: Duration::ZERO, stop: Duration::ZERO, writes: 32 }
    }
}

/// What a Pod template needs so that its Pods may go to played nodes, and go nowhere else.
pub fn on_played_nodes(mut pod_spec: Value) -> Value {
    pod_spec["nodeSelector"] = json!({ PLAYED: "true" });
    pod_spec["tolerations"] = json!([{ "key": PLAYED, "operator": "Exists" }]);
    pod_spec
}

/// Something that happens to a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The first container ends and is back after this time.
    Crash(Duration),
    /// The whole Pod fails, as by an eviction.
    Fail,
}

/// Images with this tag cannot be pulled.
pub const BROKEN: &str = "broken";

/// What happens.
#[derive(Debug)]
enum Command {
    Strike(String, Fault),
    /// The kubelet of this node says and does nothing for so long.
    Silence(String, Duration),
}

/// Plays until it is dropped.
pub struct Player {
    commands: mpsc::UnboundedSender<Command>,
    task: JoinHandle<()>,
}

impl Player {
    /// Plays the Pods of one namespace on nodes whose names begin with `nodes`, with the client of `t`.
    pub fn start(t: &Test, nodes: &str, options: Options) -> Self {
        let (sender, commands) = mpsc::unbounded_channel();
        let stage = Stage {
            api: t.api("Pod"),
            nodes: nodes.to_owned(),
            options,
            pods: HashMap::new(),
            timers: BinaryHeap::new(),
            waiting: VecDeque::new(),
            writes: JoinSet::new(),
            silent: HashMap::new(),
            started: 0,
        };
        Self { commands: sender, task: tokio::spawn(stage.run(commands)) }
    }

    /// Lets something happen to a Pod; one that is not there (any more) is passed over.
    pub fn strike(&self, pod: &str, fault: Fault) {
        // the player ends only with this handle
        let _ = self.commands.send(Command::Strike(pod.to_owned(), fault));
    }

    /// The kubelet of a node says and does nothing for so long, and its Pods of this namespace are not Ready any more, as the
    /// node controller writes it.
    pub fn silence(&self, node: &str, time: Duration) {
        // the player ends only with this handle
        let _ = self.commands.send(Command::Silence(node.to_owned(), time));
    }

    /// An error if playing has ended by itself, which only a panic does.
    pub fn check(&self) -> Result<()> {
        anyhow::ensure!(!self.task.is_finished(), "the played kubelets have ended");
        Ok(())
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What is seen of a Pod.
#[derive(Debug, Clone, Default, PartialEq)]
struct Seen {
    name: String,
    uid: String,
    version: u64,
    generation: i64,
    /// The played node that it is bound to; none: none of them.
    node: Option<String>,
    /// Containers of the spec with their images.
    images: Vec<(String, String)>,
    /// The first readiness gate that is not True, with the message that kubelet has for it.
    closed_gate: Option<String>,
    phase: String,
    ready: String,
    containers_ready: String,
    /// The grace period of its deletion, if it is being deleted.
    deleting: Option<u64>,
}

impl Seen {
    fn of(pod: &DynamicObject, nodes: &str) -> Self {
        let data = &pod.data;
        let condition = |kind: &str| {
            let conditions = data.array("/status/conditions");
            conditions.iter().find(|c| c.text("/type") == kind).map_or("", |c| c.text("/status"))
        };
        let closed_gate = data.array("/spec/readinessGates").iter().find_map(|gate| {
            let kind = gate.text("/conditionType");
            match condition(kind) {
                "True" => None,
                "" => Some(format!("corresponding condition of pod readiness gate \"{kind}\" does not exist.")),
                status => Some(format!("the status of pod readiness gate \"{kind}\" is not \"True\", but {status}")),
            }
        });
        let containers = data.array("/spec/containers").iter();
        let meta = &pod.metadata;
        let grace = meta.deletion_grace_period_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or_default();
        Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            version: meta.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or_default(),
            generation: meta.generation.unwrap_or_default(),
            node: Some(data.text("/spec/nodeName")).filter(|node| node.starts_with(nodes)).map(str::to_owned),
            images: containers.map(|c| (c.text("/name").to_owned(), c.text("/image").to_owned())).collect(),
            closed_gate,
            phase: data.text("/status/phase").to_owned(),
            ready: condition("Ready").to_owned(),
            containers_ready: condition("ContainersReady").to_owned(),
            deleting: meta.deletion_timestamp.is_some().then_some(grace),
        }
    }
}

/// A container as its kubelet knows it.
#[derive(Debug, Clone, PartialEq)]
struct Instance {
    image: String,
    attempt: u64,
    /// When the next instance starts, if this one has ended.
    ended_until: Option<Instant>,
}

impl Instance {
    fn is_broken(&self) -> bool {
        self.image.ends_with(&format!(":{BROKEN}"))
    }

    fn is_up(&self) -> bool {
        self.ended_until.is_none() && !self.is_broken()
    }
}

/// What the kubelet of one Pod remembers.
#[derive(Debug, Default)]
struct Kubelet {
    /// For its address.
    number: usize,
    start: Option<Instant>,
    end: Option<Instant>,
    failed: bool,
    /// The status says that containers are being created.
    is_announced: bool,
    /// The status says that they have ended for good.
    is_ended: bool,
    containers: Vec<Instance>,
    /// The containers and the generation that the status shows since the last write.
    written: Option<(Vec<Instance>, i64)>,
}

/// What comes next for a Pod.
#[derive(Debug, PartialEq)]
enum Turn {
    /// Nothing until something changes.
    Rest,
    /// Nothing until then.
    Until(Instant),
    /// This status.
    Write(Value),
    /// Its containers have ended: the Pod can go.
    Remove,
}

impl Kubelet {
    fn strike(&mut self, fault: Fault, now: Instant) {
        match fault {
            Fault::Fail => self.failed = true,
            Fault::Crash(down) => {
                if let Some(first) = self.containers.first_mut() {
                    first.ended_until = Some(now + down);
                }
            }
        }
    }

    /// `wall` is only written down.
    fn turn(&mut self, seen: &Seen, options: &Options, now: Instant, wall: &str) -> Turn {
        if seen.node.is_none() {
            return Turn::Rest;
        }
        if let Some(grace) = seen.deleting {
            // 0: it was said already, finalizers hold it
            let end = *self.end.get_or_insert(now + options.stop.min(Duration::from_secs(grace)));
            return match grace {
                0 => Turn::Rest,
                _ if now < end => Turn::Until(end),
                _ if !options.stop.is_zero() && !self.containers.is_empty() && !self.is_ended => {
                    self.is_ended = true;
                    Turn::Write(self.ended(seen, wall))
                }
                _ => Turn::Remove,
            };
        }
        if ["Failed", "Succeeded"].contains(&seen.phase.as_str()) {
            return Turn::Rest;
        }
        if self.failed {
            return Turn::Write(json!({ "phase": "Failed", "reason": "Evicted", "message": "struck by the test",
                "conditions": [self.condition(seen, "Ready", false, "PodFailed", wall),
                    self.condition(seen, "ContainersReady", false, "PodFailed", wall)] }));
        }
        if self.containers.is_empty() {
            let start = *self.start.get_or_insert(now + options.start);
            if now < start {
                if !self.is_announced {
                    self.is_announced = true;
                    return Turn::Write(self.creating(seen, wall));
                }
                return Turn::Until(start);
            }
            let first =
                |(_, image): &(String, String)| Instance { image: image.clone(), attempt: 0, ended_until: None };
            self.containers = seen.images.iter().map(first).collect();
        }
        for (instance, (_, image)) in self.containers.iter_mut().zip(&seen.images) {
            if instance.image != *image && instance.ended_until.is_none() {
                instance.ended_until = Some(now + options.restart);
            }
            if instance.ended_until.is_some_and(|until| until <= now) {
                *instance = Instance { image: image.clone(), attempt: instance.attempt + 1, ended_until: None };
            }
        }
        let next = self.containers.iter().filter_map(|i| i.ended_until).min();
        let is_written = self.written.as_ref().is_some_and(|w| w.0 == self.containers && w.1 == seen.generation);
        let (containers_ready, ready) = self.readiness(seen);
        let text = |ready: bool| if ready { "True" } else { "False" };
        if is_written && seen.containers_ready == text(containers_ready) && seen.ready == text(ready) {
            return next.map_or(Turn::Rest, Turn::Until);
        }
        Turn::Write(self.status(seen, wall))
    }

    fn readiness(&self, seen: &Seen) -> (bool, bool) {
        let containers = self.containers.iter().all(Instance::is_up);
        (containers, containers && seen.closed_gate.is_none())
    }

    fn condition(&self, seen: &Seen, kind: &str, holds: bool, reason: &str, wall: &str) -> Value {
        let status = if holds { "True" } else { "False" };
        let mut condition = json!({ "type": kind, "status": status, "observedGeneration": seen.generation,
            "reason": if holds { Value::Null } else { reason.into() }, "message": null });
        let before = if kind == "Ready" { &seen.ready } else { &seen.containers_ready };
        if before != status {
            condition["lastTransitionTime"] = wall.into();
        }
        condition
    }

    /// What kubelet says first of a Pod.
    fn creating(&self, seen: &Seen, wall: &str) -> Value {
        let waiting = |(name, image): &(String, String)| {
            json!({ "name": name, "image": image, "imageID": "", "restartCount": 0, "ready": false, "started": false,
                "state": { "waiting": { "reason": "ContainerCreating" } } })
        };
        let condition =
            |kind: &str, status: &str| json!({ "type": kind, "status": status, "lastTransitionTime": wall });
        json!({ "phase": "Pending", "startTime": wall, "hostIP": "10.127.0.1", "hostIPs": [{ "ip": "10.127.0.1" }],
            "observedGeneration": seen.generation, "containerStatuses": seen.images.iter().map(waiting).collect::<Vec<_>>(),
            "conditions": [condition("PodReadyToStartContainers", "False"), condition("Initialized", "True"),
                self.condition(seen, "Ready", false, "ContainersNotReady", wall),
                self.condition(seen, "ContainersReady", false, "ContainersNotReady", wall)] })
    }

    /// What kubelet says last of a Pod.
    fn ended(&self, seen: &Seen, wall: &str) -> Value {
        let mut status = self.status(seen, wall);
        status["phase"] = "Succeeded".into();
        for container in status["containerStatuses"].as_array_mut().into_iter().flatten() {
            let terminated = json!({ "exitCode": 0, "reason": "Completed", "startedAt": wall, "finishedAt": wall,
                "containerID": container["containerID"] });
            container["state"] = json!({ "terminated": terminated });
            container["ready"] = false.into();
            container["started"] = false.into();
        }
        status["conditions"] = json!([
            self.condition(seen, "Ready", false, "PodCompleted", wall),
            self.condition(seen, "ContainersReady", false, "PodCompleted", wall)
        ]);
        status
    }

    /// The status as kubelet writes it: a strategic merge patch, so that conditions of others stay.
    fn status(&self, seen: &Seen, wall: &str) -> Value {
        let (containers_ready, ready) = self.readiness(seen);
        let containers = self.containers.iter().zip(&seen.images).map(|(instance, (name, _))| {
            let up = instance.is_up();
            let id = |attempt: u64| format!("containerd://{}", digits(&[&seen.uid, name, &attempt.to_string()]));
            let terminated = |attempt: u64| {
                json!({ "terminated": { "exitCode": 0, "reason": "Completed", "startedAt": wall, "finishedAt": wall,
                "containerID": id(attempt) } })
            };
            if instance.is_broken() && instance.ended_until.is_none() {
                return json!({ "name": name, "image": instance.image, "imageID": "", "containerID": "",
                    "restartCount": instance.attempt, "ready": false, "started": false,
                    "state": { "waiting": { "reason": "ErrImagePull", "message": "there is no such image" } } });
            }
            let state = if up { json!({ "running": { "startedAt": wall } }) } else { terminated(instance.attempt) };
            let last = if instance.attempt > 0 { terminated(instance.attempt - 1) } else { json!({}) };
            json!({ "name": name, "image": instance.image, "imageID": image_id(&instance.image),
                "containerID": id(instance.attempt), "restartCount": instance.attempt, "ready": up, "started": up,
                "state": state, "lastState": last })
        });
        // a Pod whose containers have not all run once is still about to begin
        let is_pending = self.containers.iter().any(|i| i.is_broken() && i.attempt == 0);
        let phase = if is_pending { "Pending" } else { "Running" };
        let mut status = json!({ "phase": phase, "containerStatuses": containers.collect::<Vec<_>>(),
            "observedGeneration": seen.generation });
        let mut conditions = Vec::new();
        if self.written.as_ref().is_none_or(|(containers, _)| containers.is_empty()) {
            let at = self.number + 1;
            let ip = format!("10.{}.{}.{}", 128 + at / 62_500 % 100, at / 250 % 250, at % 250 + 1);
            for (key, value) in [("startTime", json!(wall)), ("hostIP", json!("10.127.0.1")), ("podIP", json!(ip))] {
                status[key] = value;
            }
            status["hostIPs"] = json!([{ "ip": "10.127.0.1" }]);
            status["podIPs"] = json!([{ "ip": ip }]);
            for kind in ["PodReadyToStartContainers", "Initialized"] {
                conditions.push(json!({ "type": kind, "status": "True", "lastTransitionTime": wall }));
            }
        }
        let reason = if containers_ready { "ReadinessGatesNotReady" } else { "ContainersNotReady" };
        let mut condition = self.condition(seen, "Ready", ready, reason, wall);
        if let (true, Some(gate)) = (containers_ready, &seen.closed_gate) {
            condition["message"] = gate.as_str().into();
        }
        conditions.push(condition);
        conditions.push(self.condition(seen, "ContainersReady", containers_ready, "ContainersNotReady", wall));
        status["conditions"] = conditions.into();
        status
    }
}

/// The image id that a container of this image shows: the same for the same name, as a tag that is never moved.
pub fn image_id(image: &str) -> String {
    let name = image.split('@').next().unwrap_or_default();
    let repository = match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name,
    };
    format!("{repository}@sha256:{}", digits(&[image]))
}

/// 64 hexadecimal digits that only these words have.
fn digits(words: &[&str]) -> String {
    (0..4_u8)
        .map(|part| {
            let mut hasher = DefaultHasher::new();
            (part, words).hash(&mut hasher);
            format!("{:016x}", hasher.finish())
        })
        .collect()
}

struct Played {
    seen: Seen,
    kubelet: Kubelet,
    writing: bool,
}

/// What a write left behind.
enum Outcome {
    Written(Box<Seen>),
    Gone,
    Failed,
}

struct Stage {
    api: Api<DynamicObject>,
    nodes: String,
    options: Options,
    pods: HashMap<String, Played>,
    timers: BinaryHeap<(Reverse<Instant>, String)>,
    /// Pods whose turn comes when a write has ended.
    waiting: VecDeque<String>,
    writes: JoinSet<(String, Outcome)>,
    /// Nodes that say nothing, and until when.
    silent: HashMap<String, Instant>,
    started: usize,
}

impl Stage {
    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let events = watcher::watcher(self.api.clone(), watcher::Config::default());
        pin_mut!(events);
        loop {
            let timer = self.timers.peek().map(|(Reverse(at), _)| tokio::time::Instant::from_std(*at));
            let next_timer = async {
                match timer {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(Event::Apply(pod) | Event::InitApply(pod))) => self.see(Seen::of(&pod, &self.nodes)),
                    Some(Ok(Event::Delete(pod))) => drop(self.pods.remove(&pod.metadata.uid.unwrap_or_default())),
                    // the stream mends itself
                    Some(_) => {}
                    None => return,
                },
                Some(ended) = self.writes.join_next() => {
                    if let Ok((uid, outcome)) = ended {
                        self.ended(uid, outcome);
                    }
                    while self.writes.len() < self.options.writes.max(1)
                        && let Some(uid) = self.waiting.pop_front()
                    {
                        self.turn(&uid);
                    }
                },
                () = next_timer => {
                    if let Some((_, uid)) = self.timers.pop() {
                        self.turn(&uid);
                    }
                },
                Some(command) = commands.recv() => self.obey(command),
            }
        }
    }

    fn obey(&mut self, command: Command) {
        let struck: Vec<String> = match command {
            Command::Strike(name, fault) => {
                let played = self.pods.values_mut().find(|p| p.seen.name == name);
                let struck = played.map(|played| {
                    played.kubelet.strike(fault, Instant::now());
                    played.seen.uid.clone()
                });
                struck.into_iter().collect()
            }
            Command::Silence(node, time) => {
                let there = self.pods.values().filter(|p| p.seen.node.as_ref() == Some(&node));
                let there = there.map(|p| p.seen.uid.clone()).collect();
                self.silent.insert(node, Instant::now() + time);
                there
            }
        };
        for uid in struck {
            self.turn(&uid);
        }
    }

    fn see(&mut self, seen: Seen) {
        let uid = seen.uid.clone();
        let played = self.pods.entry(uid.clone()).or_insert_with(|| {
            self.started += 1;
            let kubelet = Kubelet { number: self.started, ..Kubelet::default() };
            Played { seen: seen.clone(), kubelet, writing: false }
        });
        // the answer to an own write may be newer than what the watch shows
        if seen.version >= played.seen.version {
            played.seen = seen;
        }
        self.turn(&uid);
    }

    fn turn(&mut self, uid: &str) {
        let Some(played) = self.pods.get_mut(uid).filter(|p| !p.writing) else { return };
        let wall = Timestamp::now().round(jiff::Unit::Second).unwrap_or_default().to_string();
        if self.writes.len() >= self.options.writes.max(1) {
            self.waiting.push_back(uid.to_owned());
            return;
        }
        let now = Instant::now();
        let silent = played.seen.node.as_ref().and_then(|node| self.silent.get(node)).filter(|until| now < **until);
        let turn = match silent {
            Some(until) => silence(&played.seen, *until, &wall),
            None => played.kubelet.turn(&played.seen, &self.options, now, &wall),
        };
        let (api, name, uid) = (self.api.clone(), played.seen.name.clone(), uid.to_owned());
        match turn {
            Turn::Rest => {}
            Turn::Until(at) => self.timers.push((Reverse(at), uid)),
            Turn::Write(status) => {
                played.writing = true;
                played.kubelet.written = Some((played.kubelet.containers.clone(), played.seen.generation));
                let nodes = self.nodes.clone();
                let patch = json!({ "metadata": { "uid": uid }, "status": status });
                self.writes.spawn(async move {
                    let answer = api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch)).await;
                    (uid, outcome(answer.map(|pod| Some(Seen::of(&pod, &nodes)))))
                });
            }
            Turn::Remove => {
                played.writing = true;
                let nodes = self.nodes.clone();
                self.writes.spawn(async move {
                    let this = Preconditions { uid: Some(uid.clone()), ..Preconditions::default() };
                    let now = DeleteParams { preconditions: Some(this), ..DeleteParams::default().grace_period(0) };
                    let answer = api.delete(&name, &now).await;
                    (uid, outcome(answer.map(|gone| gone.left().map(|pod| Seen::of(&pod, &nodes)))))
                });
            }
        }
    }

    fn ended(&mut self, uid: String, outcome: Outcome) {
        let Some(played) = self.pods.get_mut(&uid) else { return };
        played.writing = false;
        match outcome {
            Outcome::Gone => drop(self.pods.remove(&uid)),
            Outcome::Written(seen) => {
                if seen.version > played.seen.version {
                    played.seen = *seen;
                }
                self.turn(&uid);
            }
            Outcome::Failed => {
                played.kubelet.written = None;
                self.timers.push((Reverse(Instant::now() + RETRY), uid));
            }
        }
    }
}

/// What comes next for a Pod whose kubelet is silent: the node controller says that it is not Ready.
fn silence(seen: &Seen, until: Instant, wall: &str) -> Turn {
    if seen.ready != "True" {
        return Turn::Until(until);
    }
    Turn::Write(json!({ "conditions": [{ "type": "Ready", "status": "False", "lastTransitionTime": wall }] }))
}

fn outcome(answer: kube::Result<Option<Seen>>) -> Outcome {
    match answer {
        Ok(Some(seen)) => Outcome::Written(Box::new(seen)),
        Ok(None) => Outcome::Gone,
        // 409: the name belongs to another Pod by now
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Outcome::Gone,
        Err(_) => Outcome::Failed,
    }
}

/// Nodes that nobody but this harness plays; ready until [`Nodes::remove`].
pub struct Nodes {
    t: Test,
    names: Vec<String>,
    heartbeats: Option<JoinHandle<()>>,
}

impl Nodes {
    /// Makes them. `heartbeats` is for a cluster whose node controller asks for signs of life.
    pub async fn make(t: &Test, prefix: &str, count: std::ops::Range<usize>, heartbeats: bool) -> Result<Self> {
        let names: Vec<String> = count.map(|i| format!("{prefix}{i:04}")).collect();
        let make = |name: &String| {
            let node = json!({ "kind": "Node", "metadata": { "name": name, "labels": {
                PLAYED: "true", "kubernetes.io/hostname": name } },
                "spec": { "taints": [{ "key": PLAYED, "value": "true", "effect": "NoSchedule" }] } });
            async move { t.create(node).await.map(drop) }
        };
        stream::iter(&names).map(make).buffer_unordered(16).try_collect::<()>().await.context("make played nodes")?;
        let api = t.api("Node");
        beat(&api, &names).await?;
        let beats = |names: Vec<String>| async move {
            loop {
                tokio::time::sleep(HEARTBEAT).await;
                if let Err(error) = beat(&api, &names).await {
                    eprintln!("a played node was not heard: {error:#}");
                }
            }
        };
        let heartbeats = heartbeats.then(|| tokio::spawn(beats(names.clone())));
        Ok(Self { t: t.clone(), names, heartbeats })
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Waits until Pods can be scheduled on them: the API server gives new nodes a taint that the node controller takes off.
    pub async fn schedulable(&self) -> Result<()> {
        let wanted: BTreeSet<&str> = self.names.iter().map(String::as_str).collect();
        let start = Instant::now();
        loop {
            let nodes = self.t.list("Node", PLAYED).await?;
            let free = nodes.iter().filter(|n| n.array("/spec/taints").len() == 1);
            let free = free.filter(|n| wanted.contains(n.text("/metadata/name"))).count();
            if free == wanted.len() {
                return Ok(());
            }
            anyhow::ensure!(
                start.elapsed() < Duration::from_secs(120),
                "{free} of {} played nodes are free of the taint of new ones after 120 s",
                wanted.len()
            );
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    pub async fn remove(self) -> Result<()> {
        for name in &self.names {
            self.t.remove("Node", name).await?;
        }
        Ok(())
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if let Some(heartbeats) = &self.heartbeats {
            heartbeats.abort();
        }
    }
}

async fn beat(api: &Api<DynamicObject>, names: &[String]) -> Result<()> {
    let now = Timestamp::now().round(jiff::Unit::Second).unwrap_or_default().to_string();
    let room = json!({ "cpu": "64", "memory": "256Gi", "pods": "250" });
    let status = json!({ "status": { "capacity": room, "allocatable": room,
        "addresses": [{ "type": "InternalIP", "address": "10.127.0.1" }],
        "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "played",
            "lastHeartbeatTime": now, "lastTransitionTime": now }] } });
    let say = |name: &String| {
        let (name, patch) = (name.clone(), Patch::Strategic(status.clone()));
        async move { api.patch_status(&name, &PatchParams::default(), &patch).await.map(drop) }
    };
    stream::iter(names)
        .map(say)
        .buffer_unordered(16)
        .try_collect::<()>()
        .await
        .context("say that played nodes are ready")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: &str = "2026-01-01T00:00:00Z";

    fn seen(image: &str, gate: Option<&str>) -> Seen {
        Seen {
            name: "p".into(),
            uid: "u".into(),
            node: Some("n".into()),
            images: vec![("main".into(), image.into())],
            closed_gate: gate.map(str::to_owned),
            generation: 1,
            ..Seen::default()
        }
    }

    fn written(turn: Turn) -> Value {
        match turn {
            Turn::Write(status) => status,
            other => panic!("not a write: {other:?}"),
        }
    }

    fn condition(status: &Value, kind: &str) -> (String, String) {
        let found = status.array("/conditions").iter().find(|c| c.text("/type") == kind).expect("the condition");
        (found.text("/status").to_owned(), found.text("/message").to_owned())
    }

    /// What the API server makes of a write, as far as turns look at it.
    fn apply(kubelet: &mut Kubelet, seen: &mut Seen, status: &Value) {
        kubelet.written = Some((kubelet.containers.clone(), seen.generation));
        seen.ready = condition(status, "Ready").0;
        seen.containers_ready = condition(status, "ContainersReady").0;
        seen.phase = status.text("/phase").to_owned();
    }

    #[test]
    fn a_pod_is_ready_when_its_containers_are_and_every_gate_is_true() {
        let (mut kubelet, now, options) = (Kubelet::default(), Instant::now(), Options::default());
        let mut pod = seen("app:v1", Some("not yet"));
        let status = written(kubelet.turn(&pod, &options, now, WALL));
        assert_eq!(condition(&status, "ContainersReady"), ("True".into(), String::new()));
        assert_eq!(condition(&status, "Ready"), ("False".into(), "not yet".into()));
        apply(&mut kubelet, &mut pod, &status);
        assert_eq!(kubelet.turn(&pod, &options, now, WALL), Turn::Rest);

        pod.closed_gate = None;
        let status = written(kubelet.turn(&pod, &options, now, WALL));
        assert_eq!(condition(&status, "Ready").0, "True");
        apply(&mut kubelet, &mut pod, &status);
        assert_eq!(kubelet.turn(&pod, &options, now, WALL), Turn::Rest);
    }

    #[test]
    fn a_changed_image_is_another_instance_after_the_moment_of_a_restart() {
        let (mut kubelet, now) = (Kubelet::default(), Instant::now());
        let options = Options { restart: Duration::from_secs(2), ..Options::default() };
        let mut pod = seen("r.example:5000/app:v1", None);
        let first = written(kubelet.turn(&pod, &options, now, WALL));
        apply(&mut kubelet, &mut pod, &first);
        pod.images[0].1 = "r.example:5000/app:v2".into();
        pod.generation = 2;
        let down = written(kubelet.turn(&pod, &options, now, WALL));
        apply(&mut kubelet, &mut pod, &down);
        let container = |status: &Value, field: &str| status.text(&format!("/containerStatuses/0/{field}")).to_owned();
        assert_eq!(container(&down, "imageID"), container(&first, "imageID"));
        assert_eq!(condition(&down, "Ready").0, "False");
        assert_eq!(kubelet.turn(&pod, &options, now, WALL), Turn::Until(now + options.restart));

        let up = written(kubelet.turn(&pod, &options, now + options.restart, WALL));
        assert!(container(&up, "imageID").starts_with("r.example:5000/app@sha256:"), "{up}");
        assert_ne!(container(&up, "imageID"), container(&first, "imageID"));
        assert_ne!(container(&up, "containerID"), container(&first, "containerID"));
        assert_eq!(up.int("/containerStatuses/0/restartCount"), 1);
        assert_eq!((condition(&up, "Ready").0.as_str(), up.int("/observedGeneration")), ("True", 2));
    }

    #[test]
    fn without_a_moment_a_restart_is_one_write() {
        let (mut kubelet, now, options) = (Kubelet::default(), Instant::now(), Options::default());
        let mut pod = seen("app:v1", None);
        let status = written(kubelet.turn(&pod, &options, now, WALL));
        apply(&mut kubelet, &mut pod, &status);
        pod.images[0].1 = "app:v2".into();
        let status = written(kubelet.turn(&pod, &options, now, WALL));
        assert_eq!(status.int("/containerStatuses/0/restartCount"), 1);
        apply(&mut kubelet, &mut pod, &status);
        assert_eq!(kubelet.turn(&pod, &options, now, WALL), Turn::Rest);
    }

    #[test]
    fn a_deleted_pod_goes_after_its_stop_or_its_grace_period_and_once() {
        let (mut kubelet, now) = (Kubelet::default(), Instant::now());
        let options = Options { stop: Duration::from_secs(5), ..Options::default() };
        let mut pod = Seen { deleting: Some(2), ..seen("app", None) };
        assert_eq!(kubelet.turn(&pod, &options, now, WALL), Turn::Until(now + Duration::from_secs(2)));
        assert_eq!(kubelet.turn(&pod, &options, now + Duration::from_secs(2), WALL), Turn::Remove);
        pod.deleting = Some(0);
        assert_eq!(kubelet.turn(&pod, &options, now + Duration::from_secs(3), WALL), Turn::Rest);
    }

    #[test]
    fn a_crash_comes_back_and_a_failure_does_not() {
        let (mut kubelet, now, options) = (Kubelet::default(), Instant::now(), Options::default());
        let mut pod = seen("app", None);
        let status = written(kubelet.turn(&pod, &options, now, WALL));
        apply(&mut kubelet, &mut pod, &status);
        let down = Duration::from_secs(1);
        kubelet.strike(Fault::Crash(down), now);
        let status = written(kubelet.turn(&pod, &options, now, WALL));
        assert_eq!(condition(&status, "Ready").0, "False");
        apply(&mut kubelet, &mut pod, &status);
        let status = written(kubelet.turn(&pod, &options, now + down, WALL));
        assert_eq!(
            (condition(&status, "Ready").0.as_str(), status.int("/containerStatuses/0/restartCount")),
            ("True", 1)
        );
        apply(&mut kubelet, &mut pod, &status);
        kubelet.strike(Fault::Fail, now);
        let status = written(kubelet.turn(&pod, &options, now + down, WALL));
        assert_eq!(status.text("/phase"), "Failed");
        apply(&mut kubelet, &mut pod, &status);
        assert_eq!(kubelet.turn(&pod, &options, now + down, WALL), Turn::Rest);
    }

    #[test]
    fn a_kubelet_that_takes_its_time_says_so_before_the_start_and_at_the_end() {
        let (mut kubelet, now) = (Kubelet::default(), Instant::now());
        let (start, stop) = (Duration::from_secs(1), Duration::from_millis(250));
        let options = Options { start, stop, ..Options::default() };
        let mut pod = seen("app:v1", None);
        let status = written(kubelet.turn(&pod, &options, now, WALL));
        assert_eq!(status.text("/phase"), "Pending");
        assert_eq!(status.text("/containerStatuses/0/state/waiting/reason"), "ContainerCreating");
        assert_eq!(condition(&status, "Ready").0, "False");
        apply(&mut kubelet, &mut pod, &status);
        assert_eq!(kubelet.turn(&pod, &options, now, WALL), Turn::Until(now + start));
        let status = written(kubelet.turn(&pod, &options, now + start, WALL));
        assert_eq!((status.text("/phase"), condition(&status, "Ready").0.as_str()), ("Running", "True"));
        assert!(!status.text("/podIP").is_empty() && condition(&status, "PodReadyToStartContainers").0 == "True");
        apply(&mut kubelet, &mut pod, &status);
        pod.deleting = Some(30);
        let later = now + start;
        assert_eq!(kubelet.turn(&pod, &options, later, WALL), Turn::Until(later + stop));
        let status = written(kubelet.turn(&pod, &options, later + stop, WALL));
        assert_eq!(status.text("/phase"), "Succeeded");
        assert_eq!(status.text("/containerStatuses/0/state/terminated/reason"), "Completed");
        apply(&mut kubelet, &mut pod, &status);
        assert_eq!(kubelet.turn(&pod, &options, later + stop, WALL), Turn::Remove);
    }

    #[test]
    fn what_cannot_be_pulled_waits_and_a_mended_image_starts() {
        let (mut kubelet, now, options) = (Kubelet::default(), Instant::now(), Options::default());
        let mut pod = seen("app:broken", None);
        let status = written(kubelet.turn(&pod, &options, now, WALL));
        assert_eq!(status.text("/phase"), "Pending");
        assert_eq!(status.text("/containerStatuses/0/state/waiting/reason"), "ErrImagePull");
        assert_eq!(condition(&status, "Ready").0, "False");
        apply(&mut kubelet, &mut pod, &status);
        assert_eq!(kubelet.turn(&pod, &options, now, WALL), Turn::Rest);
        pod.images[0].1 = "app:v1".into();
        let status = written(kubelet.turn(&pod, &options, now, WALL));
        assert_eq!((status.text("/phase"), condition(&status, "Ready").0.as_str()), ("Running", "True"));
    }

    #[test]
    fn pods_on_a_silent_node_are_not_ready_until_it_is_back() {
        let (mut kubelet, now, options) = (Kubelet::default(), Instant::now(), Options::default());
        let mut pod = seen("app", None);
        let status = written(kubelet.turn(&pod, &options, now, WALL));
        apply(&mut kubelet, &mut pod, &status);
        let until = now + Duration::from_secs(2);
        let status = written(silence(&pod, until, WALL));
        assert_eq!(condition(&status, "Ready").0, "False");
        pod.ready = "False".into();
        assert_eq!(silence(&pod, until, WALL), Turn::Until(until));
        let status = written(kubelet.turn(&pod, &options, until, WALL));
        assert_eq!(condition(&status, "Ready").0, "True", "kubelet says it again");
    }

    #[test]
    fn pods_of_other_nodes_are_left_alone() {
        let pod = Seen { node: None, ..seen("app", None) };
        let turn = Kubelet::default().turn(&pod, &Options::default(), Instant::now(), WALL);
        assert_eq!(turn, Turn::Rest);
    }
}
