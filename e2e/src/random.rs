//! Random sequences of what users and faults do to a CloneSet, each from a seed, on the real API server with played
//! kubelets. The history of its Pods and claims is held against [`crate::history`]; in the end its status has to be what
//! they are.
//!
//! Second containers, resizes and launch priorities are not played here, and no order of updates is judged: the histories in
//! memory of `src/controllers/clone_set/tests/simulation.rs` have all of them.
//!
//! `KRUISE_RANDOM_SEED=N` repeats one sequence (the cluster's own timing differs), `KRUISE_RANDOM_SEEDS=N` runs so many, from
//! another seed on each time. Without either the sequences are the same each time.

mod recording;
mod wanted;

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use futures::{FutureExt, StreamExt, stream};
use jiff::Timestamp;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use self::recording::{Recording, Task};
use self::wanted::{Choose, Wanted, color, strangers};
use crate::history::{Acts, Pod, Spec};
use crate::kit::{Build, Look, PATIENCE, Test, poll, restoring};
use crate::liveness::{self, Driver, Limits, Model, Random, Step};
use crate::player::{BROKEN, Fault, Nodes, Options, Player};

/// At the same time: they mostly wait.
const AT_ONCE: usize = 10;
/// Changes and faults of one sequence.
const STEPS: usize = 14;
/// From so many sequences on Pods are as good as certainly made, taken down, updated in place and held for hooks. The pace
/// of the machine has a part in it: with fewer than [`VERY_MANY`] what lacks is only said.
const ENOUGH: usize = 6;
/// From so many on they are as good as certainly marked and updated in place after a grace, too, and limits are reached.
const MANY: usize = 10;
/// From so many on, which `make soak` runs, claims of lost Pods are certainly used again, and Pods deleted under budgets.
const VERY_MANY: usize = 60;
const NAME: &str = "random";
const BUDGET: &str = "PodUnavailableBudget";
const NODES: &str = "random-";
/// The first seed where nobody asks for many sequences.
const FIRST: u64 = 1;
/// Seven Pods one after the other, each with its hooks, its grace and its seconds of readiness.
const LONG: Duration = Duration::from_secs(240);

/// Whether the managers live as long as the sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Managers {
    Live,
    Die,
}

/// Runs sequences, `count` of them unless the environment says otherwise.
pub async fn sequences(count: u64, managers: Managers) -> Result<()> {
    let number = |name: &str| std::env::var(name).ok().map(|v| v.parse::<u64>().context(format!("{name}={v}")));
    let now = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or_default();
    let seeds: Vec<u64> = match (number("KRUISE_RANDOM_SEED").transpose()?, number("KRUISE_RANDOM_SEEDS").transpose()?)
    {
        (Some(seed), _) => vec![seed],
        (None, Some(wanted)) => seeds_from(now % 1_000_000_000, wanted),
        (None, None) => seeds_from(FIRST, count),
    };
    let t = Test::new("random-nodes").await?;
    let nodes = Nodes::make(&t, &format!("{NODES}{}-", now % 10_000), 0..3, true).await?;
    nodes.schedulable().await?;
    let prefix = nodes.names()[0].trim_end_matches("0000").to_owned();
    let run = |seed: u64| {
        let prefix = prefix.clone();
        async move {
            // An assertion that fails ends this one: the others go on, and remove what they have made.
            let played = AssertUnwindSafe(sequence(seed, &prefix, managers)).catch_unwind().await;
            let played = played.unwrap_or_else(|_| Err(anyhow!("it panicked")));
            played.with_context(|| format!("KRUISE_RANDOM_SEED={seed} repeats it"))
        }
    };
    let played = seeds.len();
    let ended: Vec<Result<Acts>> = stream::iter(seeds).map(run).buffer_unordered(AT_ONCE).collect().await;
    let (mut all, mut failed) = (Acts::default(), Vec::new());
    for result in ended {
        match result {
            Ok(acts) => all.add(&acts),
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    // In any case: what is scheduled to nodes that nobody plays any more never starts.
    nodes.remove().await?;
    t.remove("Namespace", &t.namespace).await?;
    ensure!(failed.is_empty(), "{} sequences failed:\n{}", failed.len(), failed.join("\n"));
    let lacks = lacks(&all, played);
    let said = format!("no Pod was {lacks:?} in all sequences: {all:?}");
    ensure!(lacks.is_empty() || played < VERY_MANY, "{said}");
    if !lacks.is_empty() {
        println!("{said}");
    }
    Ok(())
}

/// What happened to no Pod in so many sequences, although it should have: sequences in which a manager does nothing would break
/// no promise either.
fn lacks(all: &Acts, played: usize) -> Vec<&'static str> {
    let due = [
        ("created", all.created, ENOUGH),
        ("taken down", all.taken_down, ENOUGH),
        ("updated in place", all.updated_in_place, ENOUGH),
        ("held for a hook", all.held, ENOUGH),
        ("updated in place after a grace", all.after_grace, MANY),
        ("marked", all.marked, MANY),
        ("created as the last that may be", all.created_at_limit, MANY),
        ("taken down as the last that may be", all.taken_down_at_limit, MANY),
        ("given the claim of another one", all.claims_reused, VERY_MANY),
        ("deleted under a budget", all.deleted_under_budget, VERY_MANY),
        ("deleted as the last that its budget lets go", all.deleted_at_budget, VERY_MANY),
    ];
    let lacks = due.into_iter().filter(|(_, count, from)| played >= *from && *count == 0);
    lacks.map(|(what, ..)| what).collect()
}

/// So many seeds from the first one on. It is certain how some sequences begin: by chance a few might all be without.
fn seeds_from(first: u64, count: u64) -> Vec<u64> {
    let mut next = first..;
    (0..count).filter_map(|i| next.find(|seed| begins(i, &beginning(*seed, "").2))).collect()
}

/// Whether the sequence of this number may begin so. Every second one begins with updates in place after a grace and with
/// hooks, one of eight with Pods that are replaced and get claims of lost ones, and one of eight with Pods that are replaced
/// under a budget.
fn begins(number: u64, wanted: &Wanted) -> bool {
    let replaces = wanted.kind == "ReCreate";
    match number % 8 {
        0 | 2 | 4 | 6 => wanted.kind == "InPlaceIfPossible" && wanted.grace > 0 && wanted.hooks.has_both(),
        1 => replaces && wanted.has_claims() && wanted.reuses_claims,
        5 => replaces && wanted.protection == Some(1),
        _ => true,
    }
}

/// What a sequence begins with; all of it follows from its seed.
fn beginning(seed: u64, nodes: &str) -> (Random, Options, Wanted) {
    let mut random = Random(seed);
    let options = Options {
        start: random.milliseconds(600),
        restart: random.milliseconds(1200),
        stop: random.milliseconds(800),
        ..Options::default()
    };
    let wanted = Wanted::new(&mut random, nodes);
    (random, options, wanted)
}

async fn sequence(seed: u64, nodes: &str, managers: Managers) -> Result<Acts> {
    let t = Test::new(&format!("random-{seed}")).await?;
    // Also when it fails: as long as a CloneSet is left, no other test can remove the definition.
    restoring(played(&t, seed, nodes, managers), remove(&t)).await
}

async fn played(t: &Test, seed: u64, nodes: &str, managers: Managers) -> Result<Acts> {
    let (mut random, options, wanted) = beginning(seed, nodes);
    let player = Player::start(t, nodes, options);
    for pod in strangers() {
        t.create(pod).await?;
    }
    for name in ["stranger", "orphan"] {
        t.ready(name).await?;
    }
    let strangers_before = shapes(t).await?;
    let hooks = Task(tokio::spawn(wanted.hooks.clone().play(t.api("Pod"), Random(seed))));
    let object = wanted.object(&mut random);
    let mut log =
        vec![format!("{}", object["spec"]), format!("{:?}", wanted.hooks), format!("budget {:?}", wanted.protection)];
    // from before there is anything: what is listed has lost the versions at which it was made
    let recording = Recording::begin(t).await?;
    t.create(object).await?;
    wanted.protect(t).await.context("the budget")?;
    // The first change has to find something that it changes.
    poll("the first Pods", LONG, async || {
        ensure!(wanted.replicas == 0 || !owned(t).await?.is_empty(), "there are none");
        Ok(())
    })
    .await?;

    let limits = Limits {
        changes: STEPS,
        steps_between: 6,
        time_between: Duration::from_millis(1500),
        patience: LONG,
        stays: 3,
        ..Limits::default()
    };
    let mut driver = Sequence { t, nodes, player: &player, recording: &recording, wanted, is_new: true, log: &mut log };
    let result = liveness::run(seed, &limits, &mut driver, &mut Converges).await.map_err(anyhow::Error::msg);
    player.check()?;
    let history = recording.end();
    let mut wrongs = history.wrongs();
    if result.is_ok() && managers == Managers::Live {
        wrongs.extend(history.claims_left());
    }
    let acts = history.acts();
    println!("seed {seed}: {acts:?}");
    ensure!(acts.created > 0, "the watch of Pods has shown none");
    if result.is_err() || !wrongs.is_empty() {
        eprintln!("=== seed {seed}, {options:?}\n{}\n--- the last events\n{}", log.join("\n"), history.tail(160));
    }
    result?;
    ensure!(wrongs.is_empty(), "{}", wrongs.join("\n"));
    let strangers_after = shapes(t).await?;
    ensure!(strangers_after == strangers_before, "strangers were {strangers_before:?}, are {strangers_after:?}");
    drop(hooks);
    Ok(acts)
}

/// One thing that a user does or that happens; what it was.
async fn step(
    t: &Test,
    nodes: &str,
    player: &Player,
    recording: &Recording,
    random: &mut Random,
    wanted: &mut Wanted,
) -> Result<String> {
    let mut pods: Vec<String> = owned(t).await?.iter().map(|p| p.text("/metadata/name").to_owned()).collect();
    pods.sort_unstable();
    let said = match random.number(26) {
        0 | 1 => {
            wanted.replicas = random.number(8);
            format!("replicas {}", wanted.replicas)
        }
        2..=5 => {
            wanted.image = format!("v{}", random.number(4));
            format!("image {}", wanted.image)
        }
        6 => {
            let all = [json!(0), json!(1), json!(3), json!("50%"), json!("99%"), json!("100%"), json!("0.5%")];
            wanted.partition = random.one_of(&all).cloned().unwrap_or_default();
            format!("partition {}", wanted.partition)
        }
        7 => {
            wanted.budget(random);
            format!("maxUnavailable {}, maxSurge {}", wanted.max_unavailable, wanted.max_surge)
        }
        8 => {
            wanted.paused = !wanted.paused;
            format!("paused {}", wanted.paused)
        }
        9 => {
            let all = ["ReCreate", "InPlaceIfPossible", "InPlaceOnly", "OnDelete"];
            wanted.kind = random.one_of(&all).copied().unwrap_or_default();
            wanted.repair();
            format!("type {}", wanted.kind)
        }
        10 => {
            wanted.grace = random.number(3);
            format!("gracePeriodSeconds {}", wanted.grace)
        }
        11 => {
            wanted.min_ready = random.number(3);
            format!("minReadySeconds {}", wanted.min_ready)
        }
        12 => {
            wanted.with_hooks = !wanted.with_hooks;
            format!("with hooks {}", wanted.with_hooks)
        }
        13 => {
            wanted.reuses_claims = !wanted.reuses_claims;
            format!("reuses claims {}", wanted.reuses_claims)
        }
        14 => {
            (wanted.image, wanted.was_broken) = (BROKEN.into(), true);
            "an image that cannot be pulled".into()
        }
        15 | 16 => {
            wanted.protection = [Some(1), Some(1), Some(2), None][random.below(4)];
            wanted.protect(t).await.context("the budget")?;
            return Ok(format!("budget {:?}", wanted.protection));
        }
        17 => {
            let (node, time) = (format!("{nodes}{:04}", random.number(3)), random.milliseconds(3000));
            player.silence(&node, time);
            return Ok(format!("{node} is silent for {time:?}"));
        }
        18 => wanted.scale(random),
        19 => wanted.sort(random),
        of_a_pod => {
            let Some(pod) = random.one_of(&pods) else { return Ok("nothing".into()) };
            return strike(t, player, recording, random, of_a_pod, pod).await;
        }
    };
    t.patch("CloneSet", NAME, wanted.patch()).await.with_context(|| said.clone())?;
    Ok(said)
}

/// Something happens to one Pod.
async fn strike(
    t: &Test,
    player: &Player,
    recording: &Recording,
    random: &mut Random,
    what: u64,
    pod: &str,
) -> Result<String> {
    match what {
        20 => {
            let patch = json!({ "spec": { "scaleStrategy": { "podsToDelete": [pod] } } });
            match t.patch("CloneSet", NAME, patch).await {
                Ok(_) => Ok(format!("podsToDelete {pod}")),
                // it went meanwhile
                Err(error) if format!("{error:#}").contains("podsToDelete") => {
                    Ok(format!("podsToDelete {pod}: refused"))
                }
                Err(error) => Err(error.context("podsToDelete")),
            }
        }
        21 => {
            let down = random.milliseconds(2500);
            player.strike(pod, Fault::Crash(down));
            Ok(format!("{pod} crashes for {down:?}"))
        }
        22 => {
            recording.history().theirs.marked.insert(pod.to_owned());
            let label = json!({ "metadata": { "labels": { "apps.kruise.io/specified-delete": "" } } });
            // it may have gone
            let marked = t.patch("Pod", pod, label).await.is_ok();
            Ok(format!("{pod} is marked: {marked}"))
        }
        23 => {
            recording.history().theirs.deleted.insert(pod.to_owned());
            match t.remove("Pod", pod).await {
                Ok(()) => Ok(format!("{pod} is deleted by a user")),
                // its budget keeps it
                Err(error) if format!("{error:#}").contains("podunavailablebudget") => {
                    recording.history().theirs.deleted.remove(pod);
                    Ok(format!("{pod} is not deleted by a user: {error:#}"))
                }
                Err(error) => Err(error),
            }
        }
        24 => {
            let (color, label) = color(random);
            // it may have gone
            let is_there = t.patch("Pod", pod, label).await.is_ok();
            Ok(format!("{pod} is {color}: {is_there}"))
        }
        _ => {
            player.strike(pod, Fault::Fail);
            Ok(format!("{pod} fails"))
        }
    }
}

/// The CloneSet's Pods that are neither ended nor on their way out.
async fn owned(t: &Test) -> Result<Vec<Value>> {
    let mut pods = t.list("Pod", &format!("app={NAME}")).await?;
    pods.retain(|p| p.text("/metadata/ownerReferences/0/name") == NAME && Pod::of(p).active());
    Ok(pods)
}

/// The real manager on the real API server: it works by itself, so a step is a look, and time is real.
struct Sequence<'a> {
    t: &'a Test,
    /// How the names of the played nodes begin.
    nodes: &'a str,
    player: &'a Player,
    recording: &'a Recording,
    wanted: Wanted,
    /// Nothing was changed yet.
    is_new: bool,
    log: &'a mut Vec<String>,
}

/// Between two looks.
const LOOK: Duration = Duration::from_millis(300);

impl Driver for Sequence<'_> {
    type Seen = Seen;

    async fn disturb(&mut self, random: &mut Random) -> Result<String, String> {
        let said = if std::mem::take(&mut self.is_new) {
            // So that in every sequence there is something to update.
            self.wanted.image = "v1".into();
            self.t.patch("CloneSet", NAME, self.wanted.patch()).await.map(|_| "image v1".to_owned())
        } else {
            step(self.t, self.nodes, self.player, self.recording, random, &mut self.wanted).await
        };
        let said = said.map_err(|error| format!("{error:#}"))?;
        self.log.push(format!("{} {said}", Timestamp::now()));
        Ok(said)
    }

    /// Whatever it was, it can be done from here.
    async fn make_possible(&mut self) -> Result<String, String> {
        self.wanted.paused = false;
        if self.wanted.kind == "OnDelete" {
            self.wanted.kind = "ReCreate";
        }
        if self.wanted.image == BROKEN {
            self.wanted.image = "v4".into();
        }
        if self.wanted.was_broken {
            self.wanted.partition = json!(0);
        }
        let patched = self.t.patch("CloneSet", NAME, self.wanted.patch()).await;
        patched.map_err(|error| format!("{error:#}"))?;
        self.log.push(format!("{} goes on", Timestamp::now()));
        Ok("goes on".into())
    }

    async fn step(&mut self, _: &mut Random) -> Result<Step, String> {
        Ok(Step::Idle(Some(LOOK)))
    }

    async fn advance(&mut self, by: Duration) {
        tokio::time::sleep(by).await;
    }

    async fn see(&mut self) -> Result<Seen, String> {
        let look = async || -> Result<Seen> {
            let clone_set = self.t.get("CloneSet", NAME).await?;
            let pods = owned(self.t).await?.iter().map(Pod::of).collect();
            let claims = self.t.list("PersistentVolumeClaim", "").await?;
            Ok(Seen { at: Timestamp::now(), clone_set, pods, claims })
        };
        look().await.map_err(|error| format!("{error:#}"))
    }
}

/// What there is.
struct Seen {
    at: Timestamp,
    clone_set: Value,
    pods: Vec<Pod>,
    claims: Vec<Value>,
}

/// In the end the Pods are what the spec wants, and the status says so. What may never be is judged by
/// [`crate::history`], when all watches have reported all of it.
struct Converges;

impl Model for Converges {
    type Seen = Seen;

    fn wrongs(&mut self, _: &Seen) -> Vec<String> {
        Vec::new()
    }

    fn missing(&self, seen: &Seen) -> Vec<String> {
        converged(seen).err().map(|error| format!("{error:#}")).into_iter().collect()
    }
}

fn converged(Seen { at, clone_set, pods, claims }: &Seen) -> Result<()> {
    let spec = Spec::of(clone_set);
    let count = |fits: &dyn Fn(&Pod) -> bool| pods.iter().filter(|p| fits(p)).count() as i64;
    let updated = |p: &Pod| p.image == spec.image;
    let ready = |p: &Pod| p.ready.is_some() && p.gate;
    let available = |p: &Pod| p.available(*at, spec.min_ready);
    ensure!(pods.len() as i64 == spec.replicas, "{} Pods, want {}", pods.len(), spec.replicas);
    ensure!(pods.iter().all(|p| available(p) && !p.marked), "not all are available: {pods:?}");
    ensure!(pods.iter().all(|p| p.grace.is_none()), "a grace period has not ended: {pods:?}");
    let wanted = spec.replicas - spec.partition;
    ensure!(count(&updated) >= wanted, "{} are updated, want {wanted}", count(&updated));
    let model = [
        ("observedGeneration", clone_set.int("/metadata/generation")),
        ("replicas", spec.replicas),
        ("readyReplicas", count(&ready)),
        ("availableReplicas", count(&available)),
        ("updatedReplicas", count(&updated)),
        ("updatedReadyReplicas", count(&|p| updated(p) && ready(p))),
        ("updatedAvailableReplicas", count(&|p| updated(p) && available(p))),
        ("expectedUpdatedReplicas", wanted),
    ];
    for (field, value) in model {
        let said = clone_set.int(&format!("/status/{field}"));
        ensure!(said == value, "status.{field} is {said}, the Pods say {value}");
    }
    ensure!(clone_set.array("/spec/scaleStrategy/podsToDelete").is_empty(), "podsToDelete still names Pods");
    if spec.has_claims {
        let instances = |keep: &dyn Fn(&Value) -> bool| {
            let kept = claims.iter().filter(|c| !c.has("/metadata/deletionTimestamp") && keep(c));
            kept.map(|c| c.text("/metadata/labels/apps.kruise.io~1cloneset-instance-id").to_owned()).collect::<Vec<_>>()
        };
        let all = instances(&|_| true);
        ensure!(pods.iter().all(|p| all.contains(&p.instance)), "a claim is missing: {all:?}, {pods:?}");
        let ours = instances(&|c| c.text("/metadata/ownerReferences/0/kind") == "CloneSet");
        let in_use = |instance: &String| pods.iter().any(|p| p.instance == *instance);
        ensure!(spec.reuses_claims || ours.iter().all(in_use), "a claim that nobody may use is left: {ours:?}");
    }
    Ok(())
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
        // A budget that selects a Pod by its labels notes its name on it, whoever owns the Pod.
        if let Some(annotations) = metadata["annotations"].as_object_mut() {
            annotations.remove("kruise.io/related-pub");
        }
        if metadata["annotations"].as_object().is_none_or(serde_json::Map::is_empty) {
            metadata.as_object_mut().context("metadata")?.remove("annotations");
        }
        found.push((name.to_owned(), metadata, pod["spec"].clone()));
    }
    Ok(found)
}

/// The namespace and, as its kubelets end with the test, every Pod in it.
async fn remove(t: &Test) -> Result<()> {
    // what ends the namespace deletes Pods as everybody does
    t.remove(BUDGET, NAME).await?;
    t.remove("Namespace", &t.namespace).await?;
    // The namespace controller comes to it late where many end at once.
    poll("the namespace to be gone", PATIENCE * 3, async || {
        for pod in t.list("Pod", "").await? {
            let (name, now) = (pod.text("/metadata/name"), DeleteParams::default().grace_period(0));
            // it may be gone by now
            let _ = t.patch("Pod", name, json!({}).with("/metadata/finalizers", Value::Null)).await;
            let _ = t.api("Pod").delete(name, &now).await;
        }
        ensure!(t.find("Namespace", &t.namespace).await?.is_none(), "it is still there");
        Ok(())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_act_is_missed_from_the_number_of_sequences_on_at_which_it_should_have_happened() {
        let nothing = Acts::default();
        for (played, lacking) in [(1, 0), (5, 0), (6, 4), (9, 4), (10, 8), (59, 8), (60, 11), (600, 11)] {
            assert_eq!(lacks(&nothing, played).len(), lacking, "{played} sequences");
        }
        let marked = Acts { marked: 1, ..nothing };
        assert!(!lacks(&marked, MANY).contains(&"marked"));
    }

    #[test]
    fn the_sequences_of_one_run_begin_in_all_ways() {
        for first in [0, 7, 1_000_000] {
            let seeds = seeds_from(first, MANY as u64);
            assert!(seeds.is_sorted() && seeds.len() == MANY, "{seeds:?}");
            let wanted: Vec<Wanted> = seeds.iter().map(|seed| beginning(*seed, "").2).collect();
            for (number, wanted) in (0..).zip(&wanted) {
                assert!(begins(number, wanted), "number {number} of {seeds:?}");
            }
            let count = |fits: fn(&Wanted) -> bool| wanted.iter().filter(|wanted| fits(wanted)).count();
            assert!(count(|w| w.kind == "ReCreate" && w.has_claims() && w.reuses_claims) >= 2, "{seeds:?}");
            assert!(count(|w| w.kind == "ReCreate" && w.protection == Some(1)) >= 1, "{seeds:?}");
        }
    }
}
