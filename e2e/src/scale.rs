//! `make bench-scale`: the workloads, SidecarSet, spreading and jobs beside a bare client and beside the built-in kinds, on the
//! same cluster in one run.
//!
//! etcd, API server, scheduler, controller manager, webhook and manager are real; nodes and kubelets are played
//! ([`player`](crate::player)). The bare client is this process: it creates the same Pods, 50 requests in flight, and does
//! nothing else. It is exempt from the API server's fairness, as an administrator is; the manager is not.
//!
//! Build it with optimisation, as the Makefile does: a slow bare client would flatter.

mod at_once;
mod daemon_set;
mod jobs;
mod paced;
mod sidecar_set;
mod spread;
mod stateful_set;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, future, pin_mut, stream};
use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher::{self, Event};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};

use crate::bench_budgets;
use crate::cluster::{self, Limits};
use crate::kit::{Container, Look, PATIENCE, Test};
use crate::measure::{Table, Usage, median, megabytes, processor_times, programs, settle, writes};
use crate::paths::{Paths, SYSTEM};
use crate::player::{Nodes, Options as PlayerOptions, Player, on_played_nodes};
use crate::process::Process;
use crate::scale_images;

/// Requests that the bare client has under way.
const IN_FLIGHT: usize = 50;
const RAISED: Limits = (1000, 2000);
const NODE_PREFIX: &str = "scale-";
const GATES: [&str; 2] = ["InPlaceUpdateReady", "KruisePodReady"];
/// Of the bare client's Pods, before an update and after it.
const REVISIONS: [&str; 2] = ["0123456789", "9876543210"];
/// For a thousand Pods at the pace of a client that may send twenty requests a second.
const LONG: Duration = Duration::from_secs(300);
const IMAGES: [&str; 2] = ["registry.example/app:v1", "registry.example/app:v2"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Side {
    /// Requests and nothing else.
    Bare,
    CloneSet,
    Deployment,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// CloneSet, budgets and image jobs.
    CloneSet,
    StatefulSet,
    DaemonSet,
    SidecarSet,
    /// WorkloadSpread and UnitedDeployment.
    Spread,
    /// BroadcastJob, EphemeralJob, AdvancedCronJob and ResourceDistribution.
    Jobs,
}

#[derive(Debug, Clone)]
pub struct Options {
    pub only: Vec<Part>,
    pub pods: usize,
    pub nodes: usize,
    /// Pods, nodes and sets with which memory and a restart are measured; 0 Pods leave this out.
    pub big_pods: usize,
    pub big_nodes: usize,
    pub clone_sets: usize,
    /// How often each side brings the Pods up and takes them down.
    pub rounds: u8,
    /// From the binding of a Pod to its start, for every side.
    pub start_delay: Duration,
    /// From the deletion of a Pod to the end of its containers, for every side.
    pub stop_delay: Duration,
    pub sides: Vec<Side>,
    /// Pods that are deleted with and without budgets; 0 leaves this out.
    pub budget_deletions: usize,
    /// Budgets beside the many CloneSets; 0 leaves this out.
    pub budgets: usize,
    /// Nodes of an ImagePullJob; 0 leaves it out.
    pub image_nodes: usize,
    /// SidecarSets with which memory and a start are measured; 0 leaves this out.
    pub sidecar_sets: usize,
    /// Namespaces that get one Secret; 0 leaves this out.
    pub namespaces: usize,
}

pub fn run(paths: &Paths, options: Options) -> Result<()> {
    let within = |name: &str, value: usize, from: usize, to: usize| {
        ensure!((from..=to).contains(&value), "--{name} {value}: want {from} to {to}");
        Ok(())
    };
    within("pods", options.pods, 5, 5000)?;
    within("nodes", options.nodes, 1, 2000)?;
    within("big-pods", options.big_pods, 0, 50_000)?;
    within("big-nodes", options.big_nodes, options.nodes, 2000)?;
    within("image-nodes", options.image_nodes, 0, 5000)?;
    within("sidecar-sets", options.sidecar_sets, 0, 50_000)?;
    within("namespaces", options.namespaces, 0, 20_000)?;
    within("clone-sets", options.clone_sets, 1, 5000)?;
    within("budget-deletions", options.budget_deletions, 0, 5000)?;
    ensure!(options.pods <= options.nodes * 200, "--pods {}: a node has room for 200", options.pods);
    ensure!(options.big_pods <= options.big_nodes * 200, "--big-pods {}: a node has room for 200", options.big_pods);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // The cluster is thrown away after this: nothing is tidied up.
    runtime.block_on(async {
        let t = Test::new("scale").await?;
        Scale { t, paths, options, rows: Table::default(), costs: Vec::new() }.run().await
    })
}

struct Scale<'a> {
    t: Test,
    paths: &'a Paths,
    options: Options,
    rows: Table,
    /// Processor time of every program, step by step.
    costs: Vec<(String, Vec<(String, f64)>)>,
}

/// What one measured step took.
struct Step {
    seconds: f64,
    /// Processor time of the manager that leads, and its reconciles of CloneSets.
    manager: f64,
    reconciles: usize,
    span: (Timestamp, Timestamp),
}

/// What updates of the CloneSet in place cost, one value for each round.
#[derive(Default)]
struct InPlace {
    not_ready: Vec<usize>,
    writes: Vec<f64>,
    processor: Vec<f64>,
    reconciles: Vec<f64>,
}

/// The seconds of every side, as far as they were measured, one for each round.
type Times = BTreeMap<Way, Vec<f64>>;

/// Who brings Pods up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Bare,
    /// The bare client, whose Pods have the labels and readiness gates of a CloneSet's, and who opens those: the writes
    /// that any client has to make for the same Pods.
    Gated,
    CloneSet,
    Deployment,
}

impl Way {
    fn text(self) -> String {
        match self {
            Self::Bare => format!("bare client, {IN_FLIGHT} in flight"),
            Self::Gated => "bare client, the same Pods".into(),
            Self::CloneSet => "CloneSet".into(),
            Self::Deployment => "Deployment".into(),
        }
    }
}

/// The median of some values with the extremes, if there are several.
fn spread(values: &[f64], text: impl Fn(f64) -> String, unit: &str) -> Option<String> {
    let middle = median(values)?;
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let ends = if values.len() > 1 { format!(" ({} to {})", text(least), text(most)) } else { String::new() };
    Some(format!("{}{unit}{ends}", text(middle)))
}

/// The sides in their order in a round. Every other round goes backwards: the pace of a machine drifts, and whoever always
/// came last would have the worst of it.
fn in_turn<T: Clone>(ways: &[T], round: u8) -> Vec<T> {
    let mut ways = ways.to_vec();
    if round % 2 == 1 {
        ways.reverse();
    }
    ways
}

impl Scale<'_> {
    async fn run(&mut self) -> Result<()> {
        for (part, crd) in [
            (Part::CloneSet, "clonesets"),
            (Part::StatefulSet, "statefulsets"),
            (Part::DaemonSet, "daemonsets"),
            (Part::SidecarSet, "sidecarsets"),
            (Part::Spread, "workloadspreads"),
            (Part::Spread, "uniteddeployments"),
            (Part::Jobs, "broadcastjobs"),
            (Part::Jobs, "resourcedistributions"),
        ] {
            let crd = format!("{crd}.apps.kruise.io");
            let is_measured = self.measures(part) && (part != Part::CloneSet || self.has(Side::CloneSet));
            let is_there = self.t.api("CustomResourceDefinition").get_opt(&crd).await?.is_some();
            ensure!(is_there || !is_measured, "{crd} is not installed: leave it out with --only or --sides");
        }
        let played = self.player_client().await?;
        let Options { start_delay: start, stop_delay: stop, .. } = self.options;
        let kubelets = PlayerOptions { writes: IN_FLIGHT, start, stop, ..PlayerOptions::default() };
        let player = Player::start(&played, NODE_PREFIX, kubelets);
        self.controllers(None).await?;
        let nodes = Nodes::make(&played, NODE_PREFIX, 0..self.options.nodes, false).await?;
        nodes.schedulable().await?;
        println!("{} played nodes", self.options.nodes);
        let idle = Usage::of(self.manager().await?.1)?.memory;
        self.rows.row("manager: memory, before", "", megabytes(idle));

        let of_clone_sets = self.measures(Part::CloneSet);
        if of_clone_sets && self.options.budget_deletions > 0 {
            let (count, node) = (self.options.budget_deletions, &nodes.names()[0]);
            bench_budgets::deletions(&self.t, &played, node, count, &mut self.rows).await?;
        }
        let mut at_own_limits = None;
        if of_clone_sets {
            self.works("warm-up-a").await?;
            at_own_limits = self.up_and_down("").await?;
            player.check()?;
        }
        self.controllers(Some(RAISED)).await?;
        self.works("warm-up-b").await?;
        if of_clone_sets {
            self.up_and_down(", raised limits").await?;
            self.in_place().await?;
        }
        if self.measures(Part::StatefulSet) {
            self.stateful_sets().await?;
        }
        if self.measures(Part::Spread) {
            self.spreads().await?;
        }
        player.check()?;
        let needs_more = self.options.big_pods > 0 && (self.measures(Part::StatefulSet) || self.has(Side::CloneSet))
            || self.measures(Part::DaemonSet)
            || self.measures(Part::Jobs);
        let mut all = nodes.names().to_vec();
        let mut more = None;
        if needs_more {
            let made = Nodes::make(&played, NODE_PREFIX, self.options.nodes..self.options.big_nodes, false).await?;
            made.schedulable().await?;
            all.extend_from_slice(made.names());
            more = Some(made);
        }
        if self.measures(Part::StatefulSet) && self.options.big_pods > 0 {
            self.many_stateful_sets().await?;
        }
        if self.measures(Part::DaemonSet) {
            self.daemon_sets(&played, &all).await?;
        }
        player.check()?;
        if of_clone_sets && self.options.big_pods > 0 && self.has(Side::CloneSet) {
            self.many(at_own_limits).await?;
            player.check()?;
        }
        if of_clone_sets && self.options.image_nodes > 0 {
            scale_images::measure(&played, self.paths, self.options.image_nodes, &mut self.rows).await?;
        }
        // Last: the very many stay.
        if self.measures(Part::Jobs) {
            self.jobs(&all).await?;
            player.check()?;
        }
        if self.measures(Part::SidecarSet) {
            self.sidecar_sets().await?;
            player.check()?;
        }
        drop(more);
        self.print_costs();
        self.rows.print();
        Ok(())
    }

    fn has(&self, side: Side) -> bool {
        self.options.sides.contains(&side)
    }

    fn measures(&self, part: Part) -> bool {
        self.options.only.contains(&part)
    }

    /// One row: the seconds of one side beside those of another in the same rounds.
    fn beside(&mut self, what: &str, goal: &str, ours: &[f64], (name, others): (&str, &[f64])) {
        let ratios: Vec<f64> = ours.iter().zip(others).map(|(ours, theirs)| ours / theirs).collect();
        let seconds = |times: &[f64]| spread(times, |seconds| format!("{seconds:.1}"), " s").unwrap_or_default();
        if let Some(ratio) = spread(&ratios, |ratio| format!("{ratio:.2}"), "x") {
            let value = format!("{ratio}: {}, {name} {}", seconds(ours), seconds(others));
            self.rows.row(&format!("{what}, beside {name}"), goal, value);
        }
    }

    /// The played kubelets are a user of their own, whom the audit log leaves out.
    async fn player_client(&self) -> Result<Test> {
        let kubeconfig = Kubeconfig::read_from(self.paths.state.join("load.kubeconfig"))?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Test { client: Client::try_from(config)?, ..self.t.clone() })
    }

    async fn controllers(&self, limits: Option<Limits>) -> Result<()> {
        let paths = self.paths.clone();
        tokio::task::spawn_blocking(move || cluster::patient_controllers(&paths, limits)).await?
    }

    /// Controller manager, scheduler and played kubelets do their work: one Pod comes and goes.
    async fn works(&self, name: &str) -> Result<()> {
        let pods = Census::begin(&self.t, name).await?;
        self.t.create(deployment(name, 1)).await?;
        pods.until("the first Pod to be ready", LONG, |c| c.ready == 1).await?;
        self.t.patch("Deployment", name, json!({ "spec": { "replicas": 0 } })).await?;
        pods.until("the first Pod to be gone", LONG, |c| c.total == 0).await.map(drop)
    }

    /// The manager that leads: its Pod and its process.
    async fn manager(&self) -> Result<(String, Process)> {
        let holder = self.holder().await?;
        let name = holder.split('_').next().unwrap_or_default().to_owned();
        let pod = self.t.api_in(SYSTEM, "Pod").get(&name).await.with_context(|| format!("the leader {holder:?}"))?;
        let containers = Container::all(&serde_json::to_value(pod)?);
        let id = &containers.values().next().context("the manager has a container")?.id;
        Ok((name, self.t.node().process(id).await?))
    }

    async fn holder(&self) -> Result<String> {
        let lease = serde_json::to_value(self.t.api_in(SYSTEM, "Lease").get("kruise-manager").await?)?;
        Ok(lease.text("/spec/holderIdentity").to_owned())
    }

    /// Runs one step on a quiet cluster, and takes what it cost.
    async fn step(&mut self, what: &str, work: impl Future<Output = Result<Instant>>) -> Result<Step> {
        settle().await;
        let programs = programs(&self.t, self.paths).await?;
        let manager = self.manager().await?.1;
        let reconciles_before = reconciles(&self.t).await?;
        let from = Timestamp::now();
        let (before, manager_before) = (processor_times(&programs), Usage::of(manager)?.cpu);
        let start = Instant::now();
        let end = work.await.with_context(|| what.to_owned())?;
        let seconds = end.duration_since(start).as_secs_f64();
        // what a controller writes after the last Pod belongs to the step
        settle().await;
        let step = Step {
            seconds,
            manager: Usage::of(manager)?.cpu - manager_before,
            span: (from, Timestamp::now()),
            reconciles: reconciles(&self.t).await? - reconciles_before,
        };
        let used = programs.iter().zip(processor_times(&programs)).zip(before);
        self.costs.push((what.to_owned(), used.map(|(((name, _), now), then)| (name.clone(), now - then)).collect()));
        println!("{what}: {seconds:.1} s");
        Ok(step)
    }

    /// 0 -> all -> 0, by every side in turn. The memory of the manager while the Pods are there.
    async fn up_and_down(&mut self, limits: &str) -> Result<Option<f64>> {
        let count = self.options.pods;
        let (mut up, mut down) = (Times::new(), Times::new());
        let (mut memory, mut used) = (None, Vec::new());
        let tag = if limits.is_empty() { "a" } else { "b" };
        let mut ways = Vec::new();
        if self.has(Side::Bare) {
            ways.push(Way::Bare);
        }
        if self.has(Side::Bare) && self.has(Side::CloneSet) {
            ways.push(Way::Gated);
        }
        if self.has(Side::CloneSet) {
            ways.push(Way::CloneSet);
        }
        if self.has(Side::Deployment) {
            ways.push(Way::Deployment);
        }
        for round in 0..self.options.rounds {
            // The built-in one takes long, and nothing is asked of it.
            for way in in_turn(&ways, round).into_iter().filter(|way| round == 0 || *way != Way::Deployment) {
                let name = format!("{}-{tag}{round}", format!("{way:?}").to_lowercase());
                let pods = Census::begin(&self.t, &name).await?;
                self.prepare(way, &name).await?;
                let (t, what) = (self.t.clone(), way.text());
                let work = async {
                    create(&t, way, &name, count).await?;
                    pods.until("Pods to be ready", LONG, |c| c.ready == count).await
                };
                let step = self.step(&format!("{what}, 0 -> {count}{limits}"), work).await?;
                up.entry(way).or_default().push(step.seconds);
                if way == Way::CloneSet {
                    let usage = Usage::of(self.manager().await?.1)?;
                    memory.get_or_insert(usage.memory);
                    used.push(step.manager);
                    if limits.is_empty() && round == 0 {
                        self.costs_of_pods(&step, usage, count)?;
                    }
                }
                let work = async {
                    delete(&t, way, &name, count).await?;
                    pods.until("Pods to be gone", LONG, |c| c.total == 0).await
                };
                let step = self.step(&format!("{what}, {count} -> 0{limits}"), work).await?;
                down.entry(way).or_default().push(step.seconds);
            }
        }
        // Every side waits for the scheduler there: 1,000 Pods take it as long as its own limit says.
        let shows = if limits.is_empty() { " (shows the scheduler, at its own limit)" } else { "" };
        self.compare(&format!("0 -> {count} Pods ready{limits}{shows}"), "1.15x", &up);
        self.compare(&format!("{count} -> 0{limits}"), "1.2x", &down);
        if let Some(seconds) = median(&used) {
            let goal = if limits.is_empty() { "1.5 s" } else { "" };
            self.rows.row(&format!("manager: processor time, 0 -> {count}{limits}"), goal, format!("{seconds:.2} s"));
        }
        Ok(memory)
    }

    /// What is there before the Pods are.
    async fn prepare(&self, way: Way, name: &str) -> Result<()> {
        let (kind, object) = match way {
            Way::Bare | Way::Gated => return warm(&self.t).await,
            Way::CloneSet => ("CloneSet", clone_set(name, 0)),
            Way::Deployment => ("Deployment", deployment(name, 0)),
        };
        self.t.create(object).await?;
        let seen = |o: &Value| o.int("/status/observedGeneration") >= 1;
        self.t.wait_for(kind, name, "to be seen", PATIENCE, seen).await.map(drop)
    }

    /// One row for each side: the median of its rounds, and of their ratios to the same round of the bare client.
    fn compare(&mut self, what: &str, goal: &str, times: &Times) {
        let bare = if times.contains_key(&Way::Bare) { Way::Bare } else { Way::Gated };
        let beside = |seconds: &[f64], other: Way| {
            let others = times.get(&other)?;
            let ratios: Vec<f64> = seconds.iter().zip(others).map(|(ours, theirs)| ours / theirs).collect();
            spread(&ratios, |ratio| format!("{ratio:.2}"), "x")
        };
        for (way, seconds) in times {
            let Some(middle) = spread(seconds, |seconds| format!("{seconds:.1}"), " s") else { continue };
            let ratio = beside(seconds, bare).filter(|_| *way != bare);
            let wanted = if *way == Way::CloneSet { goal } else { "" };
            let text = ratio.map_or(middle.clone(), |ratio| format!("{ratio}: {middle}"));
            self.rows.row(&format!("{what}: {}", way.text()), wanted, text);
            if *way == Way::CloneSet
                && bare == Way::Bare
                && let Some(ratio) = beside(seconds, Way::Gated)
            {
                let what = format!("{what}: CloneSet beside the same Pods");
                self.rows.row(&what, goal, ratio);
            }
        }
    }

    /// What the manager used and wrote to bring the Pods up.
    fn costs_of_pods(&mut self, step: &Step, used: Usage, count: usize) -> Result<()> {
        self.rows.row(&format!("manager: memory, {count} Pods"), "25 MB", megabytes(used.memory));
        self.rows.row("manager: memory, peak until then", "", megabytes(used.peak));
        let each = |n: usize| n as f64 / count as f64;
        self.rows.row("reconciles per created Pod", "", format!("{:.2}", each(step.reconciles)));
        let written = writes(self.paths, step.span)?;
        let total: usize = written.values().sum();
        self.rows.row("API writes per created Pod, besides Events", "2", format!("{:.2}", each(total)));
        println!("what the manager wrote for {count} Pods:");
        for (what, n) in &written {
            println!("  {n:>6}  {:>6.3} a Pod  {what}", each(*n));
        }
        Ok(())
    }

    /// Image updates in place, by the CloneSet and by a bare client, each with Pods of its own.
    async fn in_place(&mut self) -> Result<()> {
        let (t, count) = (self.t.clone(), self.options.pods);
        let (mut times, mut costs) = (Times::new(), InPlace::default());
        let sides = [(Side::Bare, Way::Gated), (Side::CloneSet, Way::CloneSet)];
        let ways: Vec<Way> = sides.into_iter().filter(|(side, _)| self.has(*side)).map(|(_, way)| way).collect();
        for round in 0..self.options.rounds {
            for way in in_turn(&ways, round) {
                let name = format!("{}-c{round}", format!("{way:?}").to_lowercase());
                let pods = Census::begin(&t, &name).await?;
                self.prepare(way, &name).await?;
                create(&t, way, &name, count).await?;
                pods.until("Pods to be ready", LONG, |c| c.ready == count).await?;
                let seconds = match way {
                    Way::CloneSet => self.in_place_own(&name, &pods, &mut costs).await?,
                    _ => {
                        let update = in_place_bare(&t, &name, &pods, count);
                        self.step(&format!("bare client, {count} updates in place"), update).await?.seconds
                    }
                };
                times.entry(way).or_default().push(seconds);
                delete(&t, way, &name, count).await?;
                pods.until("Pods to be gone", LONG, |c| c.total == 0).await?;
            }
        }
        self.compare(&format!("{count} updates in place, maxUnavailable 20 %"), "1.2x", &times);
        if let Some(most) = costs.not_ready.iter().max() {
            let goal = max_unavailable(count).to_string();
            self.rows.row(&format!("{count} updates in place: most that were not ready"), &goal, most.to_string());
        }
        for (what, values, unit) in [
            ("API writes per update in place, besides Events", &costs.writes, ""),
            ("updates in place: processor time of the manager", &costs.processor, " s"),
            ("reconciles per update in place", &costs.reconciles, ""),
        ] {
            if let Some(text) = spread(values, |value| format!("{value:.2}"), unit) {
                self.rows.row(what, "", text);
            }
        }
        Ok(())
    }

    /// An image update of the CloneSet whose Pods are there: the seconds it took.
    async fn in_place_own(&mut self, name: &str, pods: &Census, costs: &mut InPlace) -> Result<f64> {
        let (t, count) = (self.t.clone(), self.options.pods);
        let mut template = template(name);
        template["spec"]["containers"][0]["image"] = IMAGES[1].into();
        pods.begin_lowest();
        let update = async {
            t.patch("CloneSet", name, json!({ "spec": { "template": template } })).await?;
            pods.until("Pods to be updated and ready", LONG, |c| c.updated == count).await
        };
        let step = self.step(&format!("CloneSet, {count} updates in place"), update).await?;
        costs.not_ready.push(count.saturating_sub(pods.lowest()));
        let written = writes(self.paths, step.span)?;
        costs.writes.push(written.values().sum::<usize>() as f64 / count as f64);
        costs.processor.push(step.manager);
        costs.reconciles.push(step.reconciles as f64 / count as f64);
        for (what, n) in &written {
            println!("  {n:>6}  {what}");
        }
        self.t.list("Pod", &format!("app={name}")).await?.iter().try_for_each(|pod| {
            let restarts = pod.int("/status/containerStatuses/0/restartCount");
            ensure!(restarts == 1, "{} was restarted {restarts} times", pod.text("/metadata/name"));
            Ok(())
        })?;
        Ok(step.seconds)
    }

    /// Many CloneSets: memory, and what a manager does that finds them when it starts.
    async fn many(&mut self, memory_before: Option<f64>) -> Result<()> {
        let Options { pods: few, big_pods, big_nodes, clone_sets, .. } = self.options;
        let t = self.t.clone();
        let pods = Census::begin(&t, "many").await?;
        let start = Instant::now();
        let make = |index: usize| {
            let replicas = big_pods / clone_sets + usize::from(index < big_pods % clone_sets);
            let t = &t;
            async move {
                let name = many_name(index);
                let mut object = clone_set(&name, replicas);
                object["spec"]["selector"] = json!({ "matchLabels": { "set": name } });
                object["spec"]["template"]["metadata"]["labels"] = json!({ "app": "many", "set": name });
                t.create(object).await.map(drop)
            }
        };
        stream::iter(0..clone_sets).map(make).buffer_unordered(16).try_collect::<()>().await?;
        let patience = LONG + Duration::from_secs(big_pods as u64 / 25);
        pods.until("Pods to be ready", patience, |c| c.ready == big_pods).await?;
        let took = start.elapsed().as_secs_f64();
        let what = format!("{clone_sets} CloneSets, {big_pods} Pods, {big_nodes} nodes");
        self.rows.row(&format!("{what}: all ready, raised limits"), "", format!("{took:.0} s"));
        settle().await;
        let (_, manager) = self.manager().await?;
        let used = Usage::of(manager)?;
        self.rows.row(&format!("manager: memory, {what}"), "", megabytes(used.memory));
        self.rows.row("manager: memory, peak of the whole run", "", megabytes(used.peak));
        if let Some(before) = memory_before {
            let each = (used.memory - before) * 1e6 / big_pods.abs_diff(few).max(1) as f64;
            self.rows.row("manager: memory for each further Pod", "3000 bytes", format!("{each:.0} bytes"));
        }
        if self.options.budgets > 0 {
            let names: Vec<String> = (0..self.options.budgets.min(clone_sets)).map(many_name).collect();
            bench_budgets::many(&self.t, manager, &names, &what, &mut self.rows).await?;
        }
        self.restart(manager, &what).await
    }

    /// Ends the manager that leads; the next holder of the Lease, and the moment before the signal.
    async fn another_leads(&self, old: Process) -> Result<(String, Instant)> {
        let before = self.holder().await?;
        let stopped = Instant::now();
        old.signal("TERM");
        loop {
            let holder = self.holder().await?;
            if !holder.is_empty() && holder != before {
                return Ok((holder, stopped));
            }
            ensure!(stopped.elapsed() < Duration::from_secs(90), "no manager has taken the Lease");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The memory of a manager that has just begun: one that has done other things grows into what they have left free.
    async fn memory_of_a_new_manager(&self) -> Result<f64> {
        self.another_leads(self.manager().await?.1).await?;
        settle().await;
        Ok(Usage::of(self.manager().await?.1)?.memory)
    }

    async fn restart(&mut self, old: Process, what: &str) -> Result<()> {
        let clone_sets = self.options.clone_sets;
        let from = Timestamp::now();
        let (new, signal) = self.another_leads(old).await?;
        let leads = Instant::now();
        let pod = new.split('_').next().unwrap_or_default().to_owned();
        let (mut all_at, mut last, mut last_at) = (None, 0, Instant::now());
        loop {
            ensure!(leads.elapsed() < LONG, "{last} reconciles of {clone_sets} CloneSets after {} s", LONG.as_secs());
            // for a moment it may not answer yet
            let count = reconciles_by(&self.t, &pod).await.unwrap_or_default();
            if count != last {
                (last, last_at) = (count, Instant::now());
            }
            if count >= clone_sets && all_at.is_none() {
                all_at = Some(signal.elapsed().as_secs_f64());
            }
            if all_at.is_some() && last_at.elapsed() > Duration::from_secs(5) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let Some(all_at) = all_at else { bail!("not every CloneSet was reconciled") };
        let lease = leads.duration_since(signal).as_secs_f64();
        let quiet = last_at.duration_since(signal).as_secs_f64();
        self.rows.row(
            "manager restarted: from the signal to the last first reconcile",
            "reported",
            format!("{all_at:.1} s (the Lease after {lease:.1} s, the last one of all {quiet:.1} s)"),
        );
        self.rows.row(
            "manager restarted: reconciles per CloneSet",
            "2",
            format!("{:.2}", last as f64 / clone_sets as f64),
        );
        let written = writes(self.paths, (from, Timestamp::now()))?;
        let parts: Vec<String> = written.iter().map(|(what, n)| format!("{n} {what}")).collect();
        let total: usize = written.values().sum();
        self.rows.row("manager restarted: API writes, besides Events", "0", format!("{total} {}", parts.join(", ")));
        let (_, manager) = self.manager().await?;
        let used = Usage::of(manager)?;
        self.rows.row(&format!("manager: memory after the restart, {what}"), "", megabytes(used.memory));
        self.rows.row("manager: memory, peak of that start", "", megabytes(used.peak));
        self.rows.row("manager: processor time of that start", "", format!("{:.2} s", used.cpu));
        Ok(())
    }

    /// Where the processors' time went: other load on the machine does not show here.
    fn print_costs(&self) {
        println!("\nprocessor time in seconds, step by step:");
        for (what, used) in &self.costs {
            let used: Vec<String> = used
                .iter()
                .filter(|(_, seconds)| *seconds >= 0.05)
                .map(|(name, seconds)| format!("{name} {seconds:.2}"))
                .collect();
            println!("  {what:<48} {}", used.join(", "));
        }
    }
}

/// Reconciles of CloneSets that a manager has counted since its start.
async fn reconciles_by(t: &Test, pod: &str) -> Result<usize> {
    let path = format!("/api/v1/namespaces/{SYSTEM}/pods/{pod}:8080/proxy");
    let request = kube::api::Request::new(path).get("metrics", &kube::api::GetParams::default())?;
    Ok(reconciles_of_clone_sets(&t.client.request_text(request).await?))
}

/// Reconciles of CloneSets that all managers have counted since their starts.
pub async fn reconciles(t: &Test) -> Result<usize> {
    let mut sum = 0;
    for pod in t.node().replicas("kruise-controller-manager").await? {
        sum += reconciles_by(t, pod.text("/metadata/name")).await?;
    }
    Ok(sum)
}

/// Reconciles of CloneSets in the text of a manager's metrics.
fn reconciles_of_clone_sets(metrics: &str) -> usize {
    let lines = metrics.lines().filter(|l| l.starts_with("controller_runtime_reconcile_total{"));
    let ours = lines.filter(|l| l.replace('-', "").contains("controller=\"cloneset"));
    ours.filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as usize
}

/// 20 %, as CloneSet rounds it.
fn max_unavailable(count: usize) -> usize {
    count.div_ceil(5)
}

/// Connections are made before anything is measured.
async fn warm(t: &Test) -> Result<()> {
    let look = |_| async { t.get("Namespace", &t.namespace).await };
    stream::iter(0..IN_FLIGHT).map(look).buffer_unordered(IN_FLIGHT).try_for_each(|_| future::ready(Ok(()))).await
}

/// The Pod template of every side.
fn template(app: &str) -> Value {
    let spec = json!({ "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
        "containers": [{ "name": "main", "image": IMAGES[0] }] });
    json!({ "metadata": { "labels": { "app": app } }, "spec": on_played_nodes(spec) })
}

fn workload(kind: &str, name: &str, replicas: usize) -> Value {
    json!({ "kind": kind, "metadata": { "name": name }, "spec": { "replicas": replicas,
        "selector": { "matchLabels": { "app": name } }, "template": template(name) } })
}

fn deployment(name: &str, replicas: usize) -> Value {
    workload("Deployment", name, replicas)
}

fn clone_set(name: &str, replicas: usize) -> Value {
    let mut object = workload("CloneSet", name, replicas);
    object["spec"]["updateStrategy"] = json!({ "type": "InPlaceIfPossible", "maxUnavailable": "20%" });
    object
}

fn many_name(index: usize) -> String {
    format!("many-{index:04}")
}

fn bare_name(app: &str, index: usize) -> String {
    format!("{app}-{index:05}")
}

fn bare_pod(app: &str, index: usize) -> Value {
    let mut pod = template(app);
    pod["kind"] = "Pod".into();
    pod["metadata"]["name"] = bare_name(app, index).into();
    pod
}

/// With the labels and readiness gates of a CloneSet's Pod: the API server's work for a write grows with what is there.
fn gated_pod(app: &str, index: usize) -> Value {
    let mut pod = bare_pod(app, index);
    pod["metadata"]["generateName"] = format!("{app}-").into();
    pod["metadata"]["labels"] = json!({ "app": app, "apps.kruise.io/cloneset-instance-id": format!("{index:05}"),
        "controller-revision-hash": format!("{app}-{}", REVISIONS[0]), "pod-template-hash": REVISIONS[0] });
    pod["spec"]["readinessGates"] = GATES.iter().map(|gate| json!({ "conditionType": gate })).collect();
    pod
}

/// All Pods, by requests or by the number in the spec.
async fn create(t: &Test, way: Way, name: &str, count: usize) -> Result<()> {
    match way {
        Way::CloneSet | Way::Deployment => resize(t, way, name, count).await,
        Way::Bare => {
            let make = |index: usize| async move { t.create(bare_pod(name, index)).await.map(drop) };
            stream::iter(0..count).map(make).buffer_unordered(IN_FLIGHT).try_collect().await
        }
        Way::Gated => create_gated(t, count, |index| gated_pod(name, index)).await,
    }
}

/// Pods with readiness gates, which are opened.
async fn create_gated(t: &Test, count: usize, pod: impl Fn(usize) -> Value) -> Result<()> {
    let (api, open, params) = (&t.api("Pod"), &gate_patch(&GATES, true), &PatchParams::default());
    let make = |index: usize| {
        let pod = pod(index);
        async move {
            let name = pod.text("/metadata/name").to_owned();
            t.create(pod).await?;
            let opened = api.patch_status(&name, params, open).await;
            opened.map(drop).map_err(anyhow::Error::from)
        }
    };
    stream::iter(0..count).map(make).buffer_unordered(IN_FLIGHT).try_collect().await
}

/// Deletes Pods by their names.
async fn delete_bare(t: &Test, names: impl Iterator<Item = String>) -> Result<()> {
    let api = &t.api("Pod");
    let delete = |name: String| async move { api.delete(&name, &DeleteParams::default()).await.map(drop) };
    Ok(stream::iter(names).map(delete).buffer_unordered(IN_FLIGHT).try_collect::<()>().await?)
}

/// None, in the same way.
async fn delete(t: &Test, way: Way, name: &str, count: usize) -> Result<()> {
    if matches!(way, Way::CloneSet | Way::Deployment) {
        return resize(t, way, name, 0).await;
    }
    delete_bare(t, (0..count).map(|index| bare_name(name, index))).await
}

async fn resize(t: &Test, way: Way, name: &str, replicas: usize) -> Result<()> {
    let kind = if way == Way::CloneSet { "CloneSet" } else { "Deployment" };
    t.patch(kind, name, json!({ "spec": { "replicas": replicas } })).await.map(drop)
}

/// Opens or closes readiness gates, as a CloneSet's controller does.
fn gate_patch(gates: &[&str], open: bool) -> Patch<Value> {
    let (text, now) = (if open { "True" } else { "False" }, Timestamp::now());
    let condition = |gate| json!({ "type": gate, "status": text, "lastTransitionTime": now });
    let mut conditions: Vec<Value> = gates.iter().map(condition).collect();
    if !open {
        conditions.push(json!({ "type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady",
            "message": format!("the status of pod readiness gate \"{}\" is not \"True\", but False", gates[0]) }));
    }
    let state = if open { "Normal" } else { "Updating" };
    let metadata = json!({ "labels": { "lifecycle.apps.kruise.io/state": state },
        "annotations": { "lifecycle.apps.kruise.io/timestamp": now } });
    Patch::Strategic(json!({ "metadata": metadata, "status": { "conditions": conditions } }))
}

/// The writes of an update in place, for as many Pods at the same time as may be unavailable.
async fn in_place_bare(t: &Test, name: &str, pods: &Census, count: usize) -> Result<Instant> {
    in_place_of(t, (name, pods, count), max_unavailable(count), |index| bare_name(name, index)).await
}

/// The same of Pods with other names, so many at the same time.
async fn in_place_of(
    t: &Test,
    (name, pods, count): (&str, &Census, usize),
    at_once: usize,
    pod_name: impl Fn(usize) -> String,
) -> Result<Instant> {
    let state = json!({ "revision": format!("{name}-{}", REVISIONS[1]), "updateTimestamp": Timestamp::now(),
        "lastContainerStatuses": { "main": { "imageID": crate::player::image_id(IMAGES[0]) } }, "updateImages": true,
        "containerBatchesRecord": [{ "timestamp": Timestamp::now(), "containers": ["main"] }] });
    let image = Patch::Strategic(json!({
        "metadata": { "labels": { "controller-revision-hash": format!("{name}-{}", REVISIONS[1]),
                "pod-template-hash": REVISIONS[1] },
            "annotations": { "apps.kruise.io/inplace-update-state": state.to_string() } },
        "spec": { "containers": [{ "name": "main", "image": IMAGES[1] }] } }));
    let (api, image, params) = (&t.api("Pod"), &image, &PatchParams::default());
    let requests = &Semaphore::new(IN_FLIGHT);
    let one = |index: usize| {
        let pod = pod_name(index);
        async move {
            let mut state = pods.pod(&pod)?;
            let permit = requests.acquire().await?;
            api.patch_status(&pod, params, &gate_patch(&GATES[..1], false)).await?;
            api.patch(&pod, params, image).await?;
            drop(permit);
            state.wait_for(|s| s.runs == IMAGES[1]).await?;
            let permit = requests.acquire().await?;
            api.patch_status(&pod, params, &gate_patch(&GATES[..1], true)).await?;
            drop(permit);
            state.wait_for(|s| s.ready && s.runs == IMAGES[1]).await?;
            anyhow::Ok(())
        }
    };
    stream::iter(0..count).map(one).buffer_unordered(at_once).try_collect::<()>().await?;
    pods.until("Pods to be updated and ready", LONG, |c| c.updated == count).await
}

/// What a watch shows of one Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Shown {
    ready: bool,
    /// The image of its container as its status has it.
    runs: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    total: usize,
    ready: usize,
    /// Ready with the second image.
    updated: usize,
}

impl Counts {
    fn add(&mut self, pod: &Shown) {
        self.total += 1;
        self.ready += usize::from(pod.ready);
        self.updated += usize::from(pod.ready && pod.runs == IMAGES[1]);
    }

    fn take(&mut self, pod: &Shown) {
        self.total -= 1;
        self.ready -= usize::from(pod.ready);
        self.updated -= usize::from(pod.ready && pod.runs == IMAGES[1]);
    }
}

/// Counts the Pods with the label app=NAME while they come and go.
struct Census {
    counts: watch::Receiver<Counts>,
    kept: Arc<Mutex<Kept>>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Kept {
    pods: HashMap<String, watch::Sender<Shown>>,
    counts: Counts,
    /// The fewest that were ready.
    lowest: usize,
}

impl Census {
    async fn begin(t: &Test, app: &str) -> Result<Self> {
        let stream = watcher::watcher(t.api("Pod"), watcher::Config::default().labels(&format!("app={app}")));
        let (send, counts) = watch::channel(Counts::default());
        let kept: Arc<Mutex<Kept>> = Arc::default();
        let of_task = Arc::clone(&kept);
        let (listed, is_listed) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(async move {
            pin_mut!(stream);
            let mut listed = Some(listed);
            while let Some(event) = stream.next().await {
                let Ok(event) = event else { continue };
                let mut kept = of_task.lock().unwrap_or_else(PoisonError::into_inner);
                match event {
                    Event::Apply(pod) | Event::InitApply(pod) => {
                        let statuses = pod.data.array("/status/conditions");
                        let ready = statuses.iter().any(|c| c.text("/type") == "Ready" && c.text("/status") == "True");
                        let runs = pod.data.text("/status/containerStatuses/0/image").to_owned();
                        kept.show(pod.metadata.name.unwrap_or_default(), Shown { ready, runs });
                    }
                    Event::Delete(pod) => kept.leave(&pod.metadata.name.unwrap_or_default()),
                    Event::Init => {}
                    Event::InitDone => drop(listed.take().map(|listed| listed.send(()))),
                }
                kept.lowest = kept.lowest.min(kept.counts.ready);
                send.send_replace(kept.counts);
            }
        });
        is_listed.await.context("the watch of Pods began")?;
        Ok(Self { counts, kept, task })
    }

    async fn until(&self, what: &str, patience: Duration, fits: impl Fn(&Counts) -> bool) -> Result<Instant> {
        let mut counts = self.counts.clone();
        let found = tokio::time::timeout(patience, counts.wait_for(|c| fits(c))).await.map(|seen| seen.map(drop));
        let now = Instant::now();
        match found {
            Ok(seen) => seen.context("the watch of Pods ended")?,
            Err(_) => bail!("waited {} s for {what}: {:?}", patience.as_secs(), *self.counts.borrow()),
        }
        Ok(now)
    }

    /// From now on counts the fewest that are ready.
    fn begin_lowest(&self) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.lowest = kept.counts.ready;
    }

    fn lowest(&self) -> usize {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).lowest
    }

    fn pod(&self, name: &str) -> Result<watch::Receiver<Shown>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(kept.pods.get(name).with_context(|| format!("Pod {name} is not there"))?.subscribe())
    }
}

impl Drop for Census {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Kept {
    fn show(&mut self, name: String, shown: Shown) {
        match self.pods.get(&name) {
            Some(pod) => {
                let before = pod.send_replace(shown.clone());
                self.counts.take(&before);
            }
            None => drop(self.pods.insert(name, watch::channel(shown.clone()).0)),
        }
        self.counts.add(&shown);
    }

    fn leave(&mut self, name: &str) {
        if let Some(pod) = self.pods.remove(name) {
            let before = pod.borrow().clone();
            self.counts.take(&before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_counted_as_they_change_and_go() {
        let mut kept = Kept::default();
        let shown = |ready: bool, runs: &str| Shown { ready, runs: runs.to_owned() };
        kept.show("a".into(), shown(false, IMAGES[0]));
        kept.show("b".into(), shown(true, IMAGES[1]));
        kept.show("a".into(), shown(true, IMAGES[0]));
        assert_eq!(kept.counts, Counts { total: 2, ready: 2, updated: 1 });
        kept.leave("b");
        kept.leave("b");
        assert_eq!(kept.counts, Counts { total: 1, ready: 1, updated: 0 });
    }

    #[test]
    fn rounds_are_told_as_their_median_and_extremes() {
        let text = |values: &[f64]| spread(values, |value| format!("{value:.1}"), " s");
        assert_eq!(text(&[]), None);
        assert_eq!(text(&[2.0]).as_deref(), Some("2.0 s"));
        assert_eq!(text(&[3.0, 1.0, 2.0]).as_deref(), Some("2.0 s (1.0 to 3.0)"));
    }

    #[test]
    fn every_other_round_goes_backwards() {
        let ways = [Way::Bare, Way::Gated, Way::CloneSet];
        assert_eq!(in_turn(&ways, 0), ways);
        assert_eq!(in_turn(&ways, 1), [Way::CloneSet, Way::Gated, Way::Bare]);
    }

    #[test]
    fn reconciles_of_clone_sets_are_summed_over_their_results() {
        let metrics = "controller_runtime_reconcile_total{controller=\"cloneset-controller\",result=\"success\"} 3\n\
            controller_runtime_reconcile_total{controller=\"clone-set-controller\",result=\"error\"} 2\n\
            controller_runtime_reconcile_total{controller=\"pod-readiness-controller\",result=\"success\"} 7\n";
        assert_eq!(reconciles_of_clone_sets(metrics), 5);
    }
}
