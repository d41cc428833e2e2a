//! Plays kubelets: Pods of one namespace that are bound to played nodes start, follow their image, end and crash, as far
//! as their status shows it.
//!
//! kwok's stages cannot do this: whether a Pod is Ready depends on conditions that others write, in an order that nobody
//! knows, and a restart on what ran before. What is written follows from what was seen ([`kubelet`]); this file carries
//! that out.
//!
//! Nothing is kept of a Pod but what its next turn needs: twenty thousand are played in one process.

mod kubelet;
mod nodes;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::{StreamExt, pin_mut};
use jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

pub use self::kubelet::image_id;
use self::kubelet::{Kubelet, Seen, Turn, silence};
pub use self::nodes::Nodes;
use crate::kit::Test;

/// The label of a played node, and its taint: nothing lands there that does not ask for it.
pub const PLAYED: &str = "e2e/played";
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
            Played { seen: seen.clone(), kubelet: Kubelet::of(self.started), writing: false }
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
                played.kubelet.writes(played.seen.generation);
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
                played.kubelet.has_not_written();
                self.timers.push((Reverse(Instant::now() + RETRY), uid));
            }
        }
    }
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
