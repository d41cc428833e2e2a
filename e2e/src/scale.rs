//! `make bench-scale`: CloneSet beside a bare client and beside the built-in Deployment, on the same cluster in one run.
//!
//! etcd, API server, scheduler, controller manager, webhook and manager are real; nodes and kubelets are played
//! ([`player`](crate::player)). The bare client is this process: it creates the same Pods, 50 requests in flight, and does
//! nothing else. It is exempt from the API server's fairness, as an administrator is; the manager is not.
//!
//! Build it with optimisation, as the Makefile does: a slow bare client would flatter.

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

use crate::at_once::{processor_times, programs, settle};
use crate::bench::{Table, Usage};
use crate::cluster::{self, Limits};
use crate::kit::{Container, Look, PATIENCE, Test};
use crate::load::{calls, megabytes};
use crate::paths::{Paths, SYSTEM};
use crate::player::{Nodes, Options as PlayerOptions, Player, on_played_nodes};
use crate::process::Process;
use crate::scale_images;

/// Requests that the bare client has under way.
const IN_FLIGHT: usize = 50;
const RAISED: Limits = (1000, 2000);
const NODE_PREFIX: &str = "scale-";
const GATE: &str = "InPlaceUpdateReady";
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

#[derive(Debug, Clone)]
pub struct Options {
    pub pods: usize,
    pub nodes: usize,
    /// Pods, nodes and CloneSets with which memory and a restart are measured; 0 Pods leave this out.
    pub big_pods: usize,
    pub big_nodes: usize,
    pub clone_sets: usize,
    /// From the binding of a Pod to its start, for every side.
    pub start_delay: Duration,
    pub sides: Vec<Side>,
    /// Nodes of an ImagePullJob; 0 leaves it out.
    pub image_nodes: usize,
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
    within("clone-sets", options.clone_sets, 1, 5000)?;
    ensure!(options.pods <= options.nodes * 200, "--pods {}: a node has room for 200", options.pods);
    ensure!(options.big_pods <= options.big_nodes * 200, "--big-pods {}: a node has room for 200", options.big_pods);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // The cluster is thrown away after this: nothing is tidied up.
    runtime.block_on(async {
        let t = Test::new("scale").await?;
        Scale { t, paths, options, rows: Table::default(), costs: Vec::new(), own_in_place: None, own_up: None }
            .run()
            .await
    })
}

struct Scale<'a> {
    t: Test,
    paths: &'a Paths,
    options: Options,
    rows: Table,
    /// Processor time of every program, step by step.
    costs: Vec<(String, Vec<(String, f64)>)>,
    /// The seconds that the CloneSet's updates in place took.
    own_in_place: Option<f64>,
    /// And those that it took to bring the Pods up, with raised limits.
    own_up: Option<f64>,
}

/// What one measured step took.
struct Step {
    seconds: f64,
    /// Processor time of the manager that leads, and its reconciles of CloneSets.
    manager: f64,
    reconciles: usize,
    span: (Timestamp, Timestamp),
}

/// The seconds of the three sides, as far as they were measured.
type Times = BTreeMap<&'static str, f64>;

impl Scale<'_> {
    async fn run(&mut self) -> Result<()> {
        if self.has(Side::CloneSet) {
            let crd = self.t.api("CustomResourceDefinition").get_opt("clonesets.apps.kruise.io").await?;
            ensure!(
                crd.is_some(),
                "clonesets.apps.kruise.io is not installed: leave it out with --sides bare,deployment"
            );
        }
        let played = self.player_client().await?;
        let kubelets = PlayerOptions { writes: IN_FLIGHT, start: self.options.start_delay, ..PlayerOptions::default() };
        let player = Player::start(&played, NODE_PREFIX, kubelets);
        self.controllers(None).await?;
        let nodes = Nodes::make(&played, NODE_PREFIX, 0..self.options.nodes, false).await?;
        nodes.schedulable().await?;
        println!("{} played nodes", self.options.nodes);
        let idle = Usage::of(self.manager().await?.1)?.memory;
        self.rows.row("manager: memory, before", "", megabytes(idle));

        self.works("warm-up-a").await?;
        let at_own_limits = self.up_and_down("").await?;
        player.check()?;
        self.controllers(Some(RAISED)).await?;
        self.works("warm-up-b").await?;
        self.up_and_down(", raised limits").await?;
        self.in_place().await?;
        player.check()?;
        if self.options.big_pods > 0 && self.has(Side::CloneSet) {
            let more = Nodes::make(&played, NODE_PREFIX, self.options.nodes..self.options.big_nodes, false).await?;
            more.schedulable().await?;
            self.many(at_own_limits).await?;
            player.check()?;
        }
        if self.options.image_nodes > 0 {
            scale_images::measure(&played, self.paths, self.options.image_nodes, &mut self.rows).await?;
        }
        self.print_costs();
        self.rows.print();
        Ok(())
    }

    fn has(&self, side: Side) -> bool {
        self.options.sides.contains(&side)
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

    /// 0 -> all -> 0, by every side. The memory of the manager while the Pods are there.
    async fn up_and_down(&mut self, limits: &str) -> Result<Option<f64>> {
        let count = self.options.pods;
        let (mut up, mut down, mut memory) = (Times::new(), Times::new(), None);
        let t = self.t.clone();
        let tag = if limits.is_empty() { "a" } else { "b" };
        if self.has(Side::Bare) {
            let name = format!("bare-{tag}");
            let pods = Census::begin(&t, &name).await?;
            warm(&t).await?;
            let create = async {
                create_bare(&t, &name, count).await?;
                pods.until("Pods to be ready", LONG, |c| c.ready == count).await
            };
            up.insert("bare", self.step(&format!("bare client, 0 -> {count}{limits}"), create).await?.seconds);
            let delete = async {
                delete_bare(&t, &name, count).await?;
                pods.until("Pods to be gone", LONG, |c| c.total == 0).await
            };
            down.insert("bare", self.step(&format!("bare client, {count} -> 0{limits}"), delete).await?.seconds);
        }
        for (side, kind, key) in [(Side::CloneSet, "CloneSet", "own"), (Side::Deployment, "Deployment", "built-in")] {
            if !self.has(side) {
                continue;
            }
            let name = format!("{}-{tag}", kind.to_lowercase());
            let pods = Census::begin(&t, &name).await?;
            let object = if side == Side::CloneSet { clone_set(&name, 0) } else { deployment(&name, 0) };
            t.create(object).await?;
            t.wait_for(kind, &name, "to be seen", PATIENCE, |o| o.int("/status/observedGeneration") >= 1).await?;
            let scale = async |to: usize| {
                t.patch(kind, &name, json!({ "spec": { "replicas": to } })).await?;
                match to {
                    0 => pods.until("Pods to be gone", LONG, |c| c.total == 0).await,
                    _ => pods.until("Pods to be ready", LONG, |c| c.ready == to).await,
                }
            };
            let step = self.step(&format!("{kind}, 0 -> {count}{limits}"), scale(count)).await?;
            up.insert(key, step.seconds);
            if side == Side::CloneSet {
                let used = Usage::of(self.manager().await?.1)?;
                memory = Some(used.memory);
                if limits.is_empty() {
                    self.costs_of_pods(&step, used, count)?;
                }
                // the image is updated while they are there
                if !limits.is_empty() {
                    self.in_place_own(&name, &pods).await?;
                }
            }
            down.insert(key, self.step(&format!("{kind}, {count} -> 0{limits}"), scale(0)).await?.seconds);
        }
        self.own_up = up.get("own").copied();
        self.compare(&format!("0 -> {count} Pods ready{limits}"), "1.15x", &up);
        self.compare(&format!("{count} -> 0{limits}"), "1.2x", &down);
        Ok(memory)
    }

    /// One row for each side beside the bare client.
    fn compare(&mut self, what: &str, goal: &str, times: &Times) {
        let bare = times.get("bare").copied();
        let text = |seconds: f64| match bare {
            Some(bare) => format!("{:.2}x: {seconds:.1} s", seconds / bare),
            None => format!("{seconds:.1} s"),
        };
        if let Some(bare) = bare {
            self.rows.row(&format!("{what}: bare client, {IN_FLIGHT} in flight"), "", format!("{bare:.1} s"));
        }
        if let Some(own) = times.get("own") {
            self.rows.row(&format!("{what}: CloneSet"), goal, text(*own));
        }
        if let Some(other) = times.get("built-in") {
            self.rows.row(&format!("{what}: Deployment"), "", text(*other));
        }
    }

    /// What the manager used and wrote to bring the Pods up.
    fn costs_of_pods(&mut self, step: &Step, used: Usage, count: usize) -> Result<()> {
        self.rows.row(&format!("manager: memory, {count} Pods"), "25 MB", megabytes(used.memory));
        self.rows.row("manager: memory, peak until then", "", megabytes(used.peak));
        self.rows.row(&format!("manager: processor time, 0 -> {count}"), "1.5 s", format!("{:.2} s", step.manager));
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

    /// An image update of the CloneSet whose Pods are there.
    async fn in_place_own(&mut self, name: &str, pods: &Census) -> Result<()> {
        let (t, count) = (self.t.clone(), self.options.pods);
        let mut template = template(name);
        template["spec"]["containers"][0]["image"] = IMAGES[1].into();
        pods.begin_lowest();
        let update = async {
            t.patch("CloneSet", name, json!({ "spec": { "template": template } })).await?;
            pods.until("Pods to be updated and ready", LONG, |c| c.updated == count).await
        };
        let step = self.step(&format!("CloneSet, {count} updates in place"), update).await?;
        let most = count.saturating_sub(pods.lowest());
        self.rows.row(
            &format!("{count} updates in place: most that were not ready"),
            &max_unavailable(count).to_string(),
            most.to_string(),
        );
        let written = writes(self.paths, step.span)?;
        let total: usize = written.values().sum();
        self.rows.row(
            "API writes per update in place, besides Events",
            "",
            format!("{:.2}", total as f64 / count as f64),
        );
        self.rows.row(
            &format!("{count} updates in place: processor time of the manager"),
            "",
            format!("{:.2} s", step.manager),
        );
        let passes = format!("{:.2}", step.reconciles as f64 / count as f64);
        self.rows.row("reconciles per update in place", "", passes);
        for (what, n) in &written {
            println!("  {n:>6}  {what}");
        }
        self.t.list("Pod", &format!("app={name}")).await?.iter().try_for_each(|pod| {
            let restarts = pod.int("/status/containerStatuses/0/restartCount");
            ensure!(restarts == 1, "{} was restarted {restarts} times", pod.text("/metadata/name"));
            Ok(())
        })?;
        self.own_in_place = Some(step.seconds);
        Ok(())
    }

    /// The same writes by the bare client, for as many Pods at the same time as may be unavailable.
    async fn in_place(&mut self) -> Result<()> {
        let (t, count) = (self.t.clone(), self.options.pods);
        let mut times = Times::new();
        if let Some(own) = self.own_in_place {
            times.insert("own", own);
        }
        if self.has(Side::Bare) {
            let name = "bare-gated";
            let pods = Census::begin(&t, name).await?;
            let api = t.api("Pod");
            let gate = |ready: bool| {
                let text = if ready { "True" } else { "False" };
                let mut conditions =
                    vec![json!({ "type": GATE, "status": text, "lastTransitionTime": Timestamp::now() })];
                if !ready {
                    conditions.push(json!({ "type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady",
                        "message": format!("the status of pod readiness gate \"{GATE}\" is not \"True\", but False") }));
                }
                let state = if ready { "Normal" } else { "Updating" };
                let metadata = json!({ "labels": { "lifecycle.apps.kruise.io/state": state } });
                Patch::Strategic(json!({ "metadata": metadata, "status": { "conditions": conditions } }))
            };
            let params = PatchParams::default();
            let names: Vec<String> = (0..count).map(|i| bare_name(name, i)).collect();
            let create = |index: usize| {
                let (t, api, gate, pod, params) = (&t, &api, gate(true), &names[index], &params);
                async move {
                    t.create(bare_pod(name, index, true)).await?;
                    api.patch_status(pod, params, &gate).await.map(drop).map_err(anyhow::Error::from)
                }
            };
            let up = async {
                stream::iter(0..count).map(create).buffer_unordered(IN_FLIGHT).try_collect::<()>().await?;
                pods.until("Pods to be ready", LONG, |c| c.ready == count).await
            };
            let what = format!("0 -> {count} Pods ready, raised limits: bare client that opens the readiness gate");
            let gated = self.step(&what, up).await?.seconds;
            self.rows.row(&what, "", format!("{gated:.1} s"));
            if let Some(own) = self.own_up {
                let what = format!("0 -> {count} Pods ready, raised limits: CloneSet beside that one");
                self.rows.row(&what, "1.15x", format!("{:.2}x: {own:.1} s", own / gated));
            }

            let state = json!({ "revision": "bare-gated-0123456789", "updateTimestamp": Timestamp::now(),
                "lastContainerStatuses": { "main": { "imageID": crate::player::image_id(IMAGES[0]) } }, "updateImages": true,
                "containerBatchesRecord": [{ "timestamp": Timestamp::now(), "containers": ["main"] }] });
            let image = Patch::Strategic(json!({
                "metadata": { "labels": { "controller-revision-hash": "bare-gated-0123456789" },
                    "annotations": { "apps.kruise.io/inplace-update-state": state.to_string() } },
                "spec": { "containers": [{ "name": "main", "image": IMAGES[1] }] } }));
            let requests = Semaphore::new(IN_FLIGHT);
            let one = |pod: String| {
                let (api, pods, requests, image, gate, params) = (&api, &pods, &requests, &image, &gate, &params);
                async move {
                    let mut state = pods.pod(&pod)?;
                    let permit = requests.acquire().await?;
                    api.patch_status(&pod, params, &gate(false)).await?;
                    api.patch(&pod, params, image).await?;
                    drop(permit);
                    state.wait_for(|s| s.runs == IMAGES[1]).await?;
                    let permit = requests.acquire().await?;
                    api.patch_status(&pod, params, &gate(true)).await?;
                    drop(permit);
                    state.wait_for(|s| s.ready && s.runs == IMAGES[1]).await?;
                    anyhow::Ok(())
                }
            };
            let update = async {
                stream::iter(names.clone())
                    .map(one)
                    .buffer_unordered(max_unavailable(count))
                    .try_collect::<()>()
                    .await?;
                pods.until("Pods to be updated and ready", LONG, |c| c.updated == count).await
            };
            times.insert("bare", self.step(&format!("bare client, {count} updates in place"), update).await?.seconds);
            delete_bare(&t, name, count).await?;
            pods.until("Pods to be gone", LONG, |c| c.total == 0).await?;
        }
        let what = format!("{count} updates in place, maxUnavailable 20 %");
        self.compare(&what, "1.2x", &times);
        Ok(())
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
                let name = format!("many-{index:04}");
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
        self.restart(manager, &what).await
    }

    async fn restart(&mut self, old: Process, what: &str) -> Result<()> {
        let clone_sets = self.options.clone_sets;
        let before = self.holder().await?;
        let from = Timestamp::now();
        let stopped = Instant::now();
        old.signal("TERM");
        let new = loop {
            let holder = self.holder().await?;
            if !holder.is_empty() && holder != before {
                break holder;
            }
            ensure!(stopped.elapsed() < Duration::from_secs(90), "no manager has taken the Lease");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
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
                all_at = Some(leads.elapsed().as_secs_f64());
            }
            if all_at.is_some() && last_at.elapsed() > Duration::from_secs(5) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let Some(all_at) = all_at else { bail!("not every CloneSet was reconciled") };
        let quiet = last_at.duration_since(leads).as_secs_f64();
        self.rows.row(
            "manager restarted: from the Lease to the last first reconcile",
            "reported",
            format!("{all_at:.1} s (the last one of all {quiet:.1} s)"),
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

/// What the manager wrote in a span of time besides Events, by what it was.
pub(crate) fn writes(paths: &Paths, span: (Timestamp, Timestamp)) -> Result<BTreeMap<String, usize>> {
    let calls = calls(paths, &[span])?.pop().unwrap_or_default();
    let is_write = |what: &str| {
        ["create ", "update ", "patch ", "delete ", "deletecollection "].iter().any(|verb| what.starts_with(verb))
    };
    let of_manager = calls.into_iter().filter(|((role, what), _)| role == "manager" && is_write(what));
    Ok(of_manager.filter(|((_, what), _)| !what.contains(" events ")).map(|((_, what), n)| (what, n)).collect())
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

fn bare_name(app: &str, index: usize) -> String {
    format!("{app}-{index:05}")
}

fn bare_pod(app: &str, index: usize, gated: bool) -> Value {
    let mut pod = template(app);
    pod["kind"] = "Pod".into();
    pod["metadata"]["name"] = bare_name(app, index).into();
    if gated {
        pod["spec"]["readinessGates"] = json!([{ "conditionType": GATE }]);
    }
    pod
}

async fn create_bare(t: &Test, app: &str, count: usize) -> Result<()> {
    let make = |index: usize| async move { t.create(bare_pod(app, index, false)).await.map(drop) };
    stream::iter(0..count).map(make).buffer_unordered(IN_FLIGHT).try_collect().await
}

async fn delete_bare(t: &Test, app: &str, count: usize) -> Result<()> {
    let api = t.api("Pod");
    let delete = |index: usize| {
        let api = &api;
        async move { api.delete(&bare_name(app, index), &DeleteParams::default()).await.map(drop) }
    };
    Ok(stream::iter(0..count).map(delete).buffer_unordered(IN_FLIGHT).try_collect::<()>().await?)
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
    fn reconciles_of_clone_sets_are_summed_over_their_results() {
        let metrics = "controller_runtime_reconcile_total{controller=\"cloneset-controller\",result=\"success\"} 3\n\
            controller_runtime_reconcile_total{controller=\"clone-set-controller\",result=\"error\"} 2\n\
            controller_runtime_reconcile_total{controller=\"pod-readiness-controller\",result=\"success\"} 7\n";
        assert_eq!(reconciles_of_clone_sets(metrics), 5);
    }
}
