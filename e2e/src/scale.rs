//! `make bench-scale`: the workloads, SidecarSet, spreading and jobs beside a bare client and beside the built-in kinds, on the
//! same cluster in one run.
//!
//! etcd, API server, scheduler, controller manager, webhook and manager are real; nodes and kubelets are played
//! ([`player`](crate::player)). The bare client is this process: it creates the same Pods, 50 requests in flight, and does
//! nothing else. It is exempt from the API server's fairness and from our admission policies on Pods, as an administrator is;
//! the manager is not. Updates in place are measured beside a bare client with the manager's account too (`limited.rs`).
//!
//! Build it with optimisation, as the Makefile does: a slow bare client would flatter.

mod at_once;
mod bare;
mod census;
mod clone_set;
mod daemon_set;
mod in_place;
mod jobs;
mod limited;
mod paced;
mod sidecar_set;
mod spread;
mod stateful_set;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

use self::bare::{bare_name, bare_pod, clone_set, create_gated, delete_bare, deployment, many_name};
use self::bare::{max_unavailable, template, warm, workload};
use self::census::Census;
use crate::bench_budgets;
use crate::cluster::{self, Limits};
use crate::kit::{Container, Look, Test};
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
/// How many of tens of thousands of Pods become ready in a second at least. Of StatefulSets eleven did, on two cores and with
/// other work beside.
const A_SECOND: u64 = 10;
const IMAGES: [&str; 2] = ["registry.example/app:v1", "registry.example/app:v2"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Side {
    /// Requests and nothing else.
    Bare,
    /// The same requests by the manager's account, under the same admission policies: updates in place.
    Limited,
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

/// The median of the values of some rounds, with the extremes if there are several.
fn of_rounds(values: &[f64], text: impl Fn(f64) -> String, unit: &str) -> Option<String> {
    let middle = median(values)?;
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let ends = if values.len() > 1 { format!(" ({} to {})", text(least), text(most)) } else { String::new() };
    Some(format!("{}{unit}{ends}", text(middle)))
}

/// The same of the ratios to other values, of the same rounds.
fn ratio_of_rounds(ours: &[f64], others: &[f64]) -> Option<String> {
    let ratios: Vec<f64> = ours.iter().zip(others).map(|(ours, theirs)| ours / theirs).collect();
    of_rounds(&ratios, |ratio| format!("{ratio:.2}"), "x")
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
        self.is_installed().await?;
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

    /// The definitions of what is measured are there.
    async fn is_installed(&self) -> Result<()> {
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
            // One owns the Pods of the bare client with the manager's account.
            let has_limited = self.has(Side::Limited)
                && [Part::CloneSet, Part::StatefulSet, Part::DaemonSet].into_iter().any(|part| self.measures(part));
            let is_needed = is_measured || part == Part::CloneSet && has_limited;
            let is_there = self.t.api("CustomResourceDefinition").get_opt(&crd).await?.is_some();
            ensure!(is_there || !is_needed, "{crd} is not installed: leave it out with --only or --sides");
        }
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
        let seconds = |times: &[f64]| of_rounds(times, |seconds| format!("{seconds:.1}"), " s").unwrap_or_default();
        if let Some(ratio) = ratio_of_rounds(ours, others) {
            let value = format!("{ratio}: {}, {name} {}", seconds(ours), seconds(others));
            self.rows.row(&format!("{what}, beside {name}"), goal, value);
        }
    }

    /// The played kubelets are a user of their own, whom the audit log leaves out, and a field manager of their own: what kubelet
    /// and a client write never has one entry in `managedFields`, which would cost the API server less at every write.
    async fn player_client(&self) -> Result<Test> {
        let kubeconfig = Kubeconfig::read_from(self.paths.state.join("load.kubeconfig"))?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.headers.push(("user-agent".parse()?, "kubelet".parse()?));
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
        let patience = LONG + Duration::from_secs(big_pods as u64 / A_SECOND);
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
            self.rows.row("manager: memory for each further Pod", "2000 bytes", format!("{each:.0} bytes"));
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

#[cfg(test)]
mod tests {
    use super::bare::Way;
    use super::*;

    #[test]
    fn rounds_are_told_as_their_median_and_extremes() {
        let text = |values: &[f64]| of_rounds(values, |value| format!("{value:.1}"), " s");
        assert_eq!(text(&[]), None);
        assert_eq!(text(&[2.0]).as_deref(), Some("2.0 s"));
        assert_eq!(text(&[3.0, 1.0, 2.0]).as_deref(), Some("2.0 s (1.0 to 3.0)"));
        assert_eq!(ratio_of_rounds(&[3.0, 1.0], &[2.0]).as_deref(), Some("1.50x"));
        assert_eq!(ratio_of_rounds(&[3.0], &[]), None);
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
