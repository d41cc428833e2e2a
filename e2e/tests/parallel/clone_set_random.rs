//! Random sequences of what users and faults do to a CloneSet, each from a seed, on the real API server with played
//! kubelets. The history of its Pods is held against [`e2e::history`]; in the end its status has to be what they are.
//!
//! `KRUISE_RANDOM_SEED=N` repeats one sequence (the cluster's own timing differs), `KRUISE_RANDOM_SEEDS=N` runs so many.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::history::{History, Pod, Spec};
use e2e::kit::{Look, PATIENCE, Test, poll};
use e2e::player::{Fault, Nodes, Options, Player, on_played_nodes};
use futures::{StreamExt, pin_mut, stream};
use kube::api::DeleteParams;
use kube::runtime::watcher::{self, Event, watcher};
use serde_json::{Value, json};

/// Sequences without being told otherwise, and how many run at the same time.
const SEQUENCES: u64 = 10;
const AT_ONCE: usize = 5;
/// Changes and faults of one sequence.
const STEPS: usize = 14;
const NAME: &str = "random";
const NODES: &str = "random-";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_changes_and_faults_break_no_promise() -> Result<()> {
    let number = |name: &str| std::env::var(name).ok().map(|v| v.parse::<u64>().context(format!("{name}={v}")));
    let seeds: Vec<u64> = match (number("KRUISE_RANDOM_SEED").transpose()?, number("KRUISE_RANDOM_SEEDS").transpose()?)
    {
        (Some(seed), _) => vec![seed],
        (None, count) => {
            let first = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default() % 1_000_000_000;
            (first..first + count.unwrap_or(SEQUENCES)).collect()
        }
    };
    let t = Test::new("random-nodes").await?;
    let nodes = Nodes::make(&t, &format!("{NODES}{}-", seeds[0] % 10_000), 0..3, true).await?;
    nodes.schedulable().await?;
    let prefix = nodes.names()[0].trim_end_matches("0000").to_owned();
    let run = |seed: u64| {
        let prefix = prefix.clone();
        async move { sequence(seed, &prefix).await.with_context(|| format!("KRUISE_RANDOM_SEED={seed} repeats it")) }
    };
    let ended: Vec<Result<()>> = stream::iter(seeds).map(run).buffer_unordered(AT_ONCE).collect().await;
    let failed: Vec<String> = ended.into_iter().filter_map(Result::err).map(|e| format!("{e:#}")).collect();
    if failed.is_empty() {
        nodes.remove().await?;
        t.remove("Namespace", &t.namespace).await?;
        return Ok(());
    }
    bail!("{} sequences failed:\n{}", failed.len(), failed.join("\n"))
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn milliseconds(&mut self, bound: u64) -> Duration {
        Duration::from_millis(self.below(bound))
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        (!all.is_empty()).then(|| &all[self.below(all.len() as u64) as usize])
    }
}

/// What the CloneSet is to be next.
struct Wanted {
    replicas: u64,
    image: u64,
    partition: Value,
    max_unavailable: Value,
    max_surge: Value,
    paused: bool,
    kind: &'static str,
}

impl Wanted {
    fn new(random: &mut Random) -> Self {
        let mut wanted = Self {
            replicas: 2 + random.below(5),
            image: 0,
            partition: json!(0),
            max_unavailable: json!(1),
            max_surge: json!(0),
            paused: false,
            kind: random.one_of(&["ReCreate", "InPlaceIfPossible"]).copied().unwrap_or_default(),
        };
        wanted.budget(random);
        wanted
    }

    /// Another pair of maxUnavailable and maxSurge that is valid: not both are nothing.
    fn budget(&mut self, random: &mut Random) {
        let unavailable = [json!(0), json!(1), json!(2), json!("30%"), json!("50%")];
        let surge = [json!(0), json!(0), json!(1), json!(2), json!("40%")];
        self.max_unavailable = random.one_of(&unavailable).cloned().unwrap_or_default();
        self.max_surge = random.one_of(&surge).cloned().unwrap_or_default();
        self.repair();
    }

    fn repair(&mut self) {
        if self.kind == "InPlaceOnly" {
            self.max_surge = json!(0);
        }
        if self.max_surge == json!(0) && self.max_unavailable == json!(0) {
            self.max_unavailable = json!(1);
        }
    }

    fn patch(&self) -> Value {
        json!({ "spec": { "replicas": self.replicas, "template": template(self.image),
            "updateStrategy": { "type": self.kind, "partition": self.partition, "paused": self.paused,
                "maxUnavailable": self.max_unavailable, "maxSurge": self.max_surge } } })
    }
}

fn template(image: u64) -> Value {
    let spec = json!({ "terminationGracePeriodSeconds": 2, "automountServiceAccountToken": false,
        "containers": [{ "name": "main", "image": format!("registry.example/app:v{image}") }] });
    json!({ "metadata": { "labels": { "app": NAME } }, "spec": on_played_nodes(spec) })
}

/// Pods that are no business of the CloneSet: another label, and the right label without an owner.
fn strangers() -> [Value; 2] {
    [("stranger", "other"), ("orphan", NAME)].map(|(name, app)| {
        let mut pod = template(0);
        pod["kind"] = "Pod".into();
        pod["metadata"] = json!({ "name": name, "labels": { "app": app } });
        pod
    })
}

async fn sequence(seed: u64, nodes: &str) -> Result<()> {
    let mut random = Random(seed);
    let t = Test::new(&format!("random-{seed}")).await?;
    let options = Options {
        start: random.milliseconds(600),
        restart: random.milliseconds(1200),
        stop: random.milliseconds(800),
        ..Options::default()
    };
    let player = Player::start(&t, nodes, options);
    for pod in strangers() {
        t.create(pod).await?;
    }
    for name in ["stranger", "orphan"] {
        t.ready(name).await?;
    }
    let strangers_before = shapes(&t).await?;
    let mut wanted = Wanted::new(&mut random);
    let mut object = wanted.patch();
    object["kind"] = "CloneSet".into();
    object["metadata"] = json!({ "name": NAME });
    object["spec"]["selector"] = json!({ "matchLabels": { "app": NAME } });
    let made = t.create(object).await?;
    let recording = Recording::begin(&t, made.text("/metadata/uid"));

    let mut told = Vec::new();
    let result = async {
        for _ in 0..STEPS {
            tokio::time::sleep(random.milliseconds(1500)).await;
            told.push(step(&t, &player, &mut random, &mut wanted).await?);
        }
        // whatever it was, it can be done from here
        wanted.paused = false;
        if wanted.kind == "OnDelete" {
            wanted.kind = "ReCreate";
        }
        t.patch("CloneSet", NAME, wanted.patch()).await?;
        told.push("goes on".into());
        converges(&t).await
    }
    .await;
    player.check()?;
    let history = recording.end();
    let wrongs = history.wrongs();
    let acts = history.acts();
    println!("seed {seed}: {acts:?}");
    ensure!(acts.created > 0, "the watch of Pods has shown none");
    if result.is_err() || !wrongs.is_empty() {
        eprintln!("=== seed {seed}, {options:?}\n{}\n--- the last events\n{}", told.join("\n"), history.tail(120));
    }
    result?;
    ensure!(wrongs.is_empty(), "{}", wrongs.join("\n"));
    let strangers_after = shapes(&t).await?;
    ensure!(strangers_after == strangers_before, "strangers were {strangers_before:?}, are {strangers_after:?}");
    remove(&t).await
}

/// One thing that a user does or that happens; what it was.
async fn step(t: &Test, player: &Player, random: &mut Random, wanted: &mut Wanted) -> Result<String> {
    let mut pods: Vec<String> = owned(t).await?.iter().map(|p| p.text("/metadata/name").to_owned()).collect();
    pods.sort_unstable();
    let said = match random.below(12) {
        0 | 1 => {
            wanted.replicas = random.below(8);
            format!("replicas {}", wanted.replicas)
        }
        2..=4 => {
            wanted.image = random.below(4);
            format!("image v{}", wanted.image)
        }
        5 => {
            let all = [json!(0), json!(1), json!(3), json!("50%"), json!("99%"), json!("100%"), json!("0.5%")];
            wanted.partition = random.one_of(&all).cloned().unwrap_or_default();
            format!("partition {}", wanted.partition)
        }
        6 => {
            wanted.budget(random);
            format!("maxUnavailable {}, maxSurge {}", wanted.max_unavailable, wanted.max_surge)
        }
        7 => {
            wanted.paused = !wanted.paused;
            format!("paused {}", wanted.paused)
        }
        8 => {
            let all = ["ReCreate", "InPlaceIfPossible", "InPlaceOnly", "OnDelete"];
            wanted.kind = random.one_of(&all).copied().unwrap_or_default();
            wanted.repair();
            format!("type {}", wanted.kind)
        }
        9 => {
            let Some(pod) = random.one_of(&pods) else { return Ok("nothing".into()) };
            let patch = json!({ "spec": { "scaleStrategy": { "podsToDelete": [pod] } } });
            return match t.patch("CloneSet", NAME, patch).await {
                Ok(_) => Ok(format!("podsToDelete {pod}")),
                // it went meanwhile
                Err(error) if format!("{error:#}").contains("podsToDelete") => {
                    Ok(format!("podsToDelete {pod}: refused"))
                }
                Err(error) => Err(error.context("podsToDelete")),
            };
        }
        10 => {
            let Some(pod) = random.one_of(&pods) else { return Ok("nothing".into()) };
            let down = random.milliseconds(2500);
            player.strike(pod, Fault::Crash(down));
            return Ok(format!("{pod} crashes for {down:?}"));
        }
        _ => {
            let Some(pod) = random.one_of(&pods) else { return Ok("nothing".into()) };
            player.strike(pod, Fault::Fail);
            return Ok(format!("{pod} fails"));
        }
    };
    t.patch("CloneSet", NAME, wanted.patch()).await.with_context(|| said.clone())?;
    Ok(said)
}

/// The CloneSet's Pods that are neither ended nor on their way out.
async fn owned(t: &Test) -> Result<Vec<Value>> {
    let mut pods = t.list("Pod", &format!("app={NAME}")).await?;
    pods.retain(|p| p.text("/metadata/ownerReferences/0/name") == NAME && Pod::of(p).active());
    Ok(pods)
}

/// Waits until the Pods are what the spec wants, and the status says so.
async fn converges(t: &Test) -> Result<()> {
    poll("the Pods and the status to be what the spec wants", PATIENCE, async || {
        let clone_set = t.get("CloneSet", NAME).await?;
        let spec = Spec::of(&clone_set);
        let pods: Vec<Pod> = owned(t).await?.iter().map(Pod::of).collect();
        let count = |fits: &dyn Fn(&Pod) -> bool| pods.iter().filter(|p| fits(p)).count() as i64;
        let updated = |p: &Pod| p.image == spec.image;
        ensure!(pods.len() as i64 == spec.replicas, "{} Pods, want {}", pods.len(), spec.replicas);
        ensure!(pods.iter().all(|p| p.available() && !p.marked), "not all are available: {pods:?}");
        let wanted = spec.replicas - spec.partition;
        ensure!(count(&updated) >= wanted, "{} are updated, want {wanted}", count(&updated));
        let model = [
            ("observedGeneration", clone_set.int("/metadata/generation")),
            ("replicas", spec.replicas),
            ("readyReplicas", count(&|p| p.ready && p.gate)),
            ("availableReplicas", count(&Pod::available)),
            ("updatedReplicas", count(&updated)),
            ("updatedReadyReplicas", count(&|p| updated(p) && p.ready && p.gate)),
            ("updatedAvailableReplicas", count(&|p| updated(p) && p.available())),
            ("expectedUpdatedReplicas", wanted),
        ];
        for (field, value) in model {
            let said = clone_set.int(&format!("/status/{field}"));
            ensure!(said == value, "status.{field} is {said}, the Pods say {value}");
        }
        ensure!(clone_set.array("/spec/scaleStrategy/podsToDelete").is_empty(), "podsToDelete still names Pods");
        Ok(())
    })
    .await
}

/// What a stranger is, without what its played kubelet writes.
async fn shapes(t: &Test) -> Result<Vec<(String, Value, Value)>> {
    let mut found = Vec::new();
    for name in ["stranger", "orphan"] {
        let pod = t.get("Pod", name).await?;
        let mut metadata = pod["metadata"].clone();
        for changes in ["resourceVersion", "managedFields"] {
            metadata.as_object_mut().context("metadata")?.remove(changes);
        }
        found.push((name.to_owned(), metadata, pod["spec"].clone()));
    }
    Ok(found)
}

/// Everything that happens to the CloneSet and its Pods from now on.
struct Recording {
    history: Arc<Mutex<History>>,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

impl Recording {
    fn begin(t: &Test, uid: &str) -> Self {
        let history: Arc<Mutex<History>> = Arc::default();
        let follow = |kind: &str, note: fn(&mut History, Event<kube::api::DynamicObject>, &str)| {
            let (stream, kept, uid) =
                (watcher(t.api(kind), watcher::Config::default()), history.clone(), uid.to_owned());
            tokio::spawn(async move {
                pin_mut!(stream);
                while let Some(event) = stream.next().await {
                    if let Ok(event) = event {
                        note(&mut kept.lock().unwrap_or_else(PoisonError::into_inner), event, &uid);
                    }
                }
            })
        };
        let clone_sets = follow("CloneSet", |history, event, _| {
            if let Event::Apply(object) | Event::InitApply(object) = event {
                history.clone_set(&object);
            }
        });
        let pods = follow("Pod", |history, event, uid| {
            let is_ours = |pod: &kube::api::DynamicObject| {
                pod.metadata.owner_references.iter().flatten().any(|owner| owner.uid == uid)
            };
            match event {
                Event::Apply(pod) | Event::InitApply(pod) if is_ours(&pod) => history.pod(&pod),
                Event::Delete(pod) if is_ours(&pod) => history.gone(&pod),
                _ => {}
            }
        });
        Self { history, tasks: [clone_sets, pods] }
    }

    fn end(self) -> History {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
        std::mem::take(&mut self.history.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The namespace and, as its kubelets end with the test, every Pod in it.
async fn remove(t: &Test) -> Result<()> {
    t.remove("Namespace", &t.namespace).await?;
    poll("the namespace to be gone", PATIENCE, async || {
        for pod in t.list("Pod", "").await? {
            let now = DeleteParams::default().grace_period(0);
            // it may be gone by now
            let _ = t.api("Pod").delete(pod.text("/metadata/name"), &now).await;
        }
        ensure!(t.find("Namespace", &t.namespace).await?.is_none(), "it is still there");
        Ok(())
    })
    .await
}
