//! `make bench-load`: a thousand nodes through one manager.
//!
//! etcd, API server, manager and webhook are real. kwok plays nodes and the first start of Pods; `load-nodes` runs the real
//! daemon for every node, with a token and watches of its own, on a fake runtime, and plays what kubelet does about a
//! stopped container. Requests come at an even pace and are kept, so that the last ones show what ten thousand stored ones
//! cost.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, pin_mut, stream};
use jiff::Timestamp;
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::cluster;
use crate::cmd::{CommandExt, cmd};
use crate::kit::{Build, Look, Test, app, crr, pod};
use crate::measure::{Table, Usage, calls, follow, megabytes, processes, summary};
use crate::paths::{Paths, SYSTEM};
use crate::process::{self, Process};

const CRR: &str = "ContainerRecreateRequest";
/// Requests over which the cost of one is taken.
const WINDOW: usize = 500;
/// Stored requests at which it is taken.
const STORED: [usize; 3] = [100, 1000, 10_000];
const ROLES: [&str; 3] = ["manager", "webhook", "daemon"];
/// Objects that are created at the same time.
const CREATES: usize = 16;
const PROGRAM: &str = "load-nodes";

#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub nodes: usize,
    pub pods_per_node: usize,
    pub requests: usize,
    /// Over which the requests are spread.
    pub seconds: u64,
    /// From the end of an instance to the start of the next one; not counted.
    pub restart_delay: Duration,
    /// Processes that play nodes.
    pub processes: usize,
}

/// Builds `load-nodes`, which plays nodes.
pub fn build(paths: &Paths) -> Result<()> {
    cmd("cargo", ["build", "--profile", "load", "--locked", "--package", "kruise-rs", "--features", "load"])
        .args(["--bin", PROGRAM])
        .current_dir(&paths.repo)
        .show()
}

/// The program that [`build`] makes.
pub fn program(paths: &Paths) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| paths.repo.join("target"), Into::into);
    let program = target.join("load").join(PROGRAM);
    ensure!(program.exists(), "{} is missing: run `e2e load-nodes`", program.display());
    Ok(program)
}

pub fn run(paths: &Paths, options: Options) -> Result<()> {
    ensure!((1..=2000).contains(&options.nodes), "--nodes {}: want 1 to 2000", options.nodes);
    ensure!((1..=20_000).contains(&options.requests), "--requests {}: want 1 to 20000", options.requests);
    ensure!((1..=8).contains(&options.processes), "--processes {}: want 1 to 8", options.processes);
    ensure!(paths.bin("kwok").exists(), "{} is missing: run `e2e tools --with-kwok`", paths.bin("kwok").display());
    let program = program(paths)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // The cluster is thrown away after this: nothing is tidied up.
    runtime.block_on(async { Load { t: Test::new("load").await?, paths, program, options }.run().await })
}

struct Load<'a> {
    t: Test,
    paths: &'a Paths,
    program: PathBuf,
    options: Options,
}

/// A moment of the run.
struct Sample {
    at: Timestamp,
    manager: Usage,
}

#[derive(Default)]
struct Seen {
    completed: HashMap<String, Instant>,
    succeeded: usize,
}

impl Load<'_> {
    async fn run(&self) -> Result<()> {
        let mut table = Table::default();
        let Options { nodes, pods_per_node, .. } = self.options;
        let idle = Usage::of(self.manager().await?)?;
        table.row("manager: memory, before", "", megabytes(idle.memory));
        let kwok = self.make_nodes().await?;
        self.make_pods(kwok).await?;
        self.play_nodes().await?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let manager = self.manager().await?;
        let filled = Usage::of(manager)?;
        let pods = nodes * (pods_per_node + 1);
        table.row(&format!("manager: memory, {nodes} nodes, {pods} Pods"), "", megabytes(filled.memory));
        let each = (filled.memory - idle.memory) * 1e6 / pods as f64;
        table.row("manager: memory for each Pod", "3000 bytes", format!("{each:.0} bytes"));
        self.requests(manager, &mut table).await?;
        self.restart_manager(manager, &mut table).await?;
        table.print();
        Ok(())
    }

    /// The manager that leads: it is the one that holds the Pods.
    async fn manager(&self) -> Result<Process> {
        let all = processes(&self.t).await?.into_iter().filter(|(role, _)| role.contains("controller"));
        let largest = all.max_by_key(|(_, p)| Usage::of(*p).map_or(0, |u| (u.memory * 1e3) as u64));
        Ok(largest.context("no manager runs")?.1)
    }

    fn node(&self, index: usize) -> String {
        format!("played-{index:04}")
    }

    fn shard(&self, node: usize) -> String {
        (node % self.options.processes).to_string()
    }

    /// Returns the process that plays them.
    async fn make_nodes(&self) -> Result<Process> {
        let start = Instant::now();
        let paths = self.paths.clone();
        tokio::task::spawn_blocking(move || cluster::controller_manager_without_heartbeats(&paths)).await??;
        let mut kwok = cmd(self.paths.bin("kwok"), ["--kubeconfig=load.kubeconfig", "--config"]);
        kwok.arg(self.paths.repo.join("e2e/kwok.yaml"));
        let kwok = process::start(self.paths, "load-kwok", &mut kwok)?;
        let node = |index: usize| {
            let labels = json!({ "kubernetes.io/os": "linux", "e2e/played": "true", "e2e/shard": self.shard(index) });
            json!({ "kind": "Node", "metadata": { "name": self.node(index), "labels": labels } })
        };
        self.create_all((0..self.options.nodes).map(node)).await?;
        // Those of the DaemonSet; the real node has one too.
        let ready = |p: &Value| crate::kit::condition(p, "Ready") == "True";
        let daemons = self.t.api_in(SYSTEM, "Pod");
        wait_for_all(daemons, "control-plane=daemon", self.options.nodes + 1, kwok, ready)
            .await
            .context("daemon Pods")?;
        println!("{} nodes with daemon Pods in {:.0} s", self.options.nodes, start.elapsed().as_secs_f64());
        Ok(kwok)
    }

    fn pod(&self, index: usize) -> (String, usize) {
        let (slot, node) = (index / self.options.nodes, index % self.options.nodes);
        (format!("app-{slot}-{node:04}"), node)
    }

    async fn make_pods(&self, kwok: Process) -> Result<()> {
        let start = Instant::now();
        let count = self.options.nodes * self.options.pods_per_node;
        let make = |index: usize| {
            let (name, node) = self.pod(index);
            pod(&name, vec![app("main")])
                .with("/metadata/labels/e2e~1shard", self.shard(node))
                .with("/metadata/labels/app", format!("app-{}", index / self.options.nodes))
                .with("/spec/nodeName", self.node(node))
        };
        self.create_all((0..count).map(make)).await?;
        let started = |p: &Value| p.has("/status/containerStatuses/0/containerID");
        wait_for_all(self.t.api("Pod"), "e2e/shard", count, kwok, started).await.context("Pods")?;
        println!("{count} Pods in {:.0} s", start.elapsed().as_secs_f64());
        Ok(())
    }

    async fn create_all(&self, objects: impl Iterator<Item = Value>) -> Result<()> {
        let create = |object: Value| async { self.t.create(object).await.map(drop) };
        stream::iter(objects).map(create).buffer_unordered(CREATES).try_collect().await
    }

    /// Starts the daemons and waits until the API server counts two watches of each.
    async fn play_nodes(&self) -> Result<()> {
        let Options { nodes, processes, restart_delay, .. } = self.options;
        let start = Instant::now();
        let before = watches(&self.t.client).await?;
        let mut played = Vec::new();
        for shard in 0..processes {
            let mut command = cmd(&self.program, ["serve", "--kubeconfig=load.kubeconfig"]);
            command.arg(format!("--shard={shard}"));
            command.arg(format!("--nodes={}", (0..nodes).filter(|n| n % processes == shard).count()));
            command.arg(format!("--restart-delay={}", restart_delay.as_millis()));
            command.env("RUST_LOG", "warn");
            played.push(process::start(self.paths, &format!("load-nodes-{shard}"), &mut command)?);
        }
        loop {
            ensure!(played.iter().all(|p| p.alive()), "load-nodes has ended: see {}", self.paths.logs().display());
            let now = watches(&self.t.client).await?;
            // each process watches the Pods of its shard too
            if now.0 >= before.0 + nodes && now.1 >= before.1 + nodes + processes {
                break;
            }
            ensure!(
                start.elapsed() < Duration::from_secs(300),
                "watches of requests and Pods: {before:?}, then {now:?}"
            );
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        println!("{nodes} daemons watch after {:.0} s", start.elapsed().as_secs_f64());
        Ok(())
    }

    async fn requests(&self, manager: Process, table: &mut Table) -> Result<()> {
        let Options { nodes, pods_per_node, requests, seconds, restart_delay, .. } = self.options;
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let noted = Arc::clone(&seen);
        let watch = follow(&self.t, CRR, move |o| {
            let now = Instant::now();
            if o.text("/status/phase") == "Completed"
                && let Ok(mut seen) = noted.lock()
                && seen.completed.insert(o.text("/metadata/name").to_owned(), now).is_none()
            {
                seen.succeeded += usize::from(o.text("/status/containerRecreateStates/0/phase") == "Succeeded");
            }
        });
        // After the last one a window more, made while all of them are stored.
        let windows: Vec<usize> = STORED.into_iter().filter(|s| *s < requests).chain([requests]).collect();
        let window = WINDOW.min(requests);
        let total = requests + window;
        let pace = Duration::from_secs(seconds) / u32::try_from(requests)?;
        let mut samples: BTreeMap<usize, Sample> = BTreeMap::new();
        let mut made = Vec::with_capacity(total);
        let mut sending = tokio::task::JoinSet::new();
        let mut ticks = tokio::time::interval(pace);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
        let mut at_stored = None;
        let start = Instant::now();
        for i in 0..=total {
            ticks.tick().await;
            if i == requests {
                at_stored = Some(Usage::of(manager)?);
            }
            if windows.iter().any(|w| i == *w || i == w + window) {
                samples.insert(i, Sample { at: Timestamp::now(), manager: Usage::of(manager)? });
            }
            if i == total {
                break;
            }
            let (pod, _) = self.pod(i % (nodes * pods_per_node));
            let name = format!("r-{i}");
            made.push((name.clone(), Instant::now()));
            let t = self.t.clone();
            sending.spawn(async move { t.create(crr(&name, &pod, &["main"])).await.map(drop) });
            while let Some(sent) = sending.try_join_next() {
                sent??;
            }
            if i % 1000 == 0 {
                let completed = seen.lock().map(|s| s.completed.len()).unwrap_or_default();
                println!("{:.0} s: {i} requests made, {completed} Completed", start.elapsed().as_secs_f64());
            }
        }
        while let Some(sent) = sending.join_next().await {
            sent??;
        }
        let made_in = start.elapsed();
        let completed = |seen: &Mutex<Seen>| seen.lock().map(|s| s.completed.len()).unwrap_or_default();
        while completed(&seen) < total && start.elapsed() < made_in + Duration::from_secs(60) {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        watch.abort();
        let end = Usage::of(manager)?;
        let seen = std::mem::take(&mut *seen.lock().map_err(|_| anyhow::anyhow!("the watch panicked"))?);

        let last = seen.completed.values().max().copied().unwrap_or(start);
        let throughput = seen.completed.len() as f64 / last.duration_since(start).as_secs_f64();
        let offered = format!("{:.1}/s offered", 1.0 / pace.as_secs_f64());
        table.row("requests Completed a second", &offered, format!("{throughput:.1}"));
        table.row(&format!("not Completed and Succeeded, of {total}"), "0", (total - seen.succeeded).to_string());
        let took = |(name, at): &(String, Instant)| {
            let took = seen.completed.get(name)?.duration_since(*at);
            Some(took.saturating_sub(restart_delay).as_secs_f64())
        };
        let times: Vec<f64> = made.iter().filter_map(took).collect();
        table.row("create -> Completed, without the application's stop and start", "", summary(&times));
        if let Some(at_stored) = at_stored {
            let what = format!("manager: memory, {nodes} nodes, {requests} stored requests");
            table.row(&what, "40 MB", megabytes(at_stored.memory));
        }
        table.row("manager: memory, peak of the whole run", "40 MB", megabytes(end.peak));
        self.costs(&windows, window, &samples, table)
    }

    /// What a request costs at different numbers of stored ones, from the samples and the audit log.
    fn costs(
        &self,
        windows: &[usize],
        window: usize,
        samples: &BTreeMap<usize, Sample>,
        table: &mut Table,
    ) -> Result<()> {
        let ends: Vec<(usize, &Sample, &Sample)> =
            windows.iter().filter_map(|w| Some((*w, samples.get(w)?, samples.get(&(w + window))?))).collect();
        let bounds: Vec<(Timestamp, Timestamp)> = ends.iter().map(|(_, from, to)| (from.at, to.at)).collect();
        let calls = calls(self.paths, &bounds)?;
        for ((stored, from, to), calls) in ends.iter().zip(&calls) {
            let milliseconds = (to.manager.cpu - from.manager.cpu) * 1e3 / window as f64;
            table.row(
                &format!("manager: processor time of one request, {stored} stored"),
                "flat",
                format!("{milliseconds:.2} ms"),
            );
            let all: usize = calls.values().sum();
            let each = |n: usize| format!("{:.2}", n as f64 / window as f64);
            let by_role = |role: &str| calls.iter().filter(|((r, _), _)| r == role).map(|(_, n)| n).sum::<usize>();
            let parts: Vec<String> = ROLES.iter().map(|r| format!("{r} {}", each(by_role(r)))).collect();
            let text = format!("{} ({})", each(all), parts.join(", "));
            table.row(&format!("API calls of one request, {stored} stored"), "flat", text);
        }
        if let Some(calls) = calls.last() {
            println!("API calls of {window} requests, by role:");
            for ((role, what), count) in calls {
                println!("  {role:<8} {count:>6}  {what}");
            }
        }
        Ok(())
    }

    /// What a manager needs that finds everything stored when it starts.
    async fn restart_manager(&self, old: Process, table: &mut Table) -> Result<()> {
        let holder = || async { anyhow::Ok(self.lease().await?.text("/spec/holderIdentity").to_owned()) };
        let before = holder().await?;
        old.signal("KILL");
        let start = Instant::now();
        while holder().await? == before {
            ensure!(start.elapsed() < Duration::from_secs(60), "no manager has taken the lease");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        // The new one reads everything now.
        tokio::time::sleep(Duration::from_secs(20)).await;
        let now = Usage::of(self.manager().await?)?;
        table.row("manager: memory, started with all of it stored", "40 MB", megabytes(now.memory));
        table.row("manager: memory, peak of that start", "40 MB", megabytes(now.peak));
        Ok(())
    }

    async fn lease(&self) -> Result<Value> {
        Ok(serde_json::to_value(self.t.api_in(SYSTEM, "Lease").get("kruise-manager").await?)?)
    }
}

/// Watches until so many objects with a label fit.
async fn wait_for_all(
    api: Api<DynamicObject>,
    labels: &str,
    count: usize,
    kwok: Process,
    fits: impl Fn(&Value) -> bool,
) -> Result<()> {
    let events = watcher::watcher(api, watcher::Config::default().labels(labels));
    pin_mut!(events);
    let mut fitting = HashSet::new();
    let all = async {
        while fitting.len() < count {
            let Some(event) = events.next().await else { break };
            let Ok(Event::Apply(object) | Event::InitApply(object)) = event else { continue };
            let name = object.metadata.name.clone().unwrap_or_default();
            if fits(&serde_json::to_value(object)?) {
                fitting.insert(name);
            }
        }
        anyhow::Ok(())
    };
    let found = tokio::select! {
        found = tokio::time::timeout(Duration::from_secs(900), all) => found,
        () = ended(kwok) => bail!("kwok has ended: see its log"),
    };
    found.with_context(|| format!("{} of {count} objects are as wanted after 900 s", fitting.len()))?
}

async fn ended(process: Process) {
    while process.alive() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Open watches of requests and of Pods, as the API server counts them.
async fn watches(client: &Client) -> Result<(usize, usize)> {
    let request = kube::api::Request::new("/metrics").list(&kube::api::ListParams::default())?;
    let text = client.request_text(request).await?;
    let count = |resource: &str| {
        let resource = format!("resource=\"{resource}\"");
        let lines = text.lines().filter(|l| l.starts_with("apiserver_longrunning_requests{"));
        let lines = lines.filter(|l| l.contains(&resource) && l.contains("verb=\"WATCH\""));
        lines.filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as usize
    };
    Ok((count("containerrecreaterequests"), count("pods")))
}
