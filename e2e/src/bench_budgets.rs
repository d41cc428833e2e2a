//! Part of `make bench-scale`: what PodUnavailableBudgets cost those who delete Pods, and what many of them cost in memory.
//!
//! Deletions with and without a budget take turns in each of twenty clients, so both meet the same API server at the same
//! time. The Pods run on a played node and end when everything has been measured. As a workload's would, the number of
//! Pods that there should be stays when one goes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt, future, stream};
use jiff::Timestamp;
use kube::api::{Api, DeleteParams, GetParams, ListParams, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use crate::kit::{Build, Look, PATIENCE, Test, app, condition, pod, poll};
use crate::measure::{Jitter, Table, Usage, calls, megabytes, processes, processor_times, programs, settle};
use crate::paths::SYSTEM;
use crate::player::{Options, Player, on_played_nodes};
use crate::process::Process;

const BUDGET: &str = "PodUnavailableBudget";
const CLIENTS: usize = 20;
/// Writes at the same time while Pods are made.
const MAKING: usize = 50;
/// How long a Pod takes to end: longer than anything is measured, so that only deletions are.
const STOP: Duration = Duration::from_secs(600);
/// Over which the time of one is averaged.
const DECISIONS: usize = 500;
/// Between two deletions of a client, in milliseconds.
const PAUSES: [(u64, u64); 3] = [(300, 900), (100, 300), (0, 1)];

/// What deletions under 20 budgets, and under a single one, take longer than those under none.
///
/// The kubelet of `node` is played with the client of `played`.
pub(crate) async fn deletions(t: &Test, played: &Test, node: &str, count: usize, table: &mut Table) -> Result<()> {
    let clients = try_join_all((0..CLIENTS).map(|_| client(t))).await?;
    for (from, to) in PAUSES {
        for budgets in [CLIENTS, 1] {
            pair((t, played, node), &clients, count / CLIENTS, budgets, (from, to), table).await?;
        }
    }
    Ok(())
}

async fn client(t: &Test) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(t.paths.kubeconfig())?;
    Ok(Client::try_from(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)?)
}

fn budget_of(index: usize) -> String {
    format!("web-{index:03}")
}

fn name_of(client: usize, step: usize) -> String {
    format!("p-{client:02}-{step:04}")
}

/// A namespace with ready Pods of which each client deletes some, with so many budgets, and one Pod of each that stays.
async fn prepare(played: &Test, node: &str, name: &str, steps: usize, budgets: usize) -> Result<(Test, Player)> {
    let t = Test::new(name).await?;
    let kubelet = Options { stop: STOP, ..Options::default() };
    let player = Player::start(&Test { client: played.client.clone(), ..t.clone() }, node, kubelet);
    let each = (CLIENTS * steps).div_ceil(budgets.max(1)) + 1;
    for index in 0..budgets {
        let labels = json!({ "web": budget_of(index) });
        t.create(
            json!({ "kind": BUDGET, "metadata": { "name": budget_of(index) }, "spec": {
                "selector": { "matchLabels": labels }, "minAvailable": 1 } })
            .with("/metadata/annotations/pub.kruise.io~1protect-total-replicas", each.to_string()),
        )
        .await?;
    }
    let pods = (0..CLIENTS).flat_map(|c| (0..steps).map(move |step| (name_of(c, step), c + step)));
    let pods = pods.chain((0..budgets).map(|b| (format!("stays-{b:02}"), b)));
    let make = |(name, index): (String, usize)| {
        let t = &t;
        async move {
            let labels = json!({ "web": budget_of(index % budgets.max(1)) });
            let mut pod = pod(&name, vec![app("main")]).with("/metadata/labels", labels);
            pod["spec"] = on_played_nodes(pod["spec"].take())
                .with("/nodeName", node)
                .with("/terminationGracePeriodSeconds", STOP.as_secs());
            t.create(pod).await.map(drop)
        }
    };
    stream::iter(pods).map(make).buffer_unordered(MAKING).try_collect::<()>().await?;
    poll("all Pods to be ready", PATIENCE * 2, async || {
        let pods = t.list("Pod", "").await?;
        ensure!(pods.iter().all(|pod| condition(pod, "Ready") == "True"));
        Ok(())
    })
    .await?;
    for index in 0..budgets {
        let all = |b: &Value| b.int("/status/currentAvailable") >= i64::try_from(each).unwrap_or_default();
        t.wait_for(BUDGET, &budget_of(index), "to count its Pods", PATIENCE, all).await?;
    }
    Ok((t, player))
}

/// When the API server calls for a namespace: then a budget that allows nothing keeps a Pod.
async fn is_guarded(t: &Test) -> Result<()> {
    let guard = json!({ "kind": BUDGET, "metadata": { "name": "guard" }, "spec": {
        "selector": { "matchLabels": { "guard": "yes" } }, "minAvailable": 1 } });
    t.create(guard).await?;
    t.create(pod("guarded", vec![app("main")]).with("/metadata/labels", json!({ "guard": "yes" }))).await?;
    t.ready("guarded").await?;
    poll("the webhook to be called", PATIENCE, async || {
        let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
        let answer = t.api("Pod").delete("guarded", &dry_run).await;
        ensure!(matches!(&answer, Err(kube::Error::Api(status)) if status.code == 403), "{answer:?}");
        Ok(())
    })
    .await?;
    t.remove(BUDGET, "guard").await?;
    // Until the webhook has heard that the budget is gone.
    poll("the Pod of the guard to go", PATIENCE, async || t.remove("Pod", "guarded").await).await
}

async fn pair(
    (t, played, node): (&Test, &Test, &str),
    clients: &[Client],
    steps: usize,
    budgets: usize,
    pause: (u64, u64),
    table: &mut Table,
) -> Result<()> {
    let (free, _play_free) = prepare(played, node, "budget-none", steps, 0).await?;
    let (guarded, _play_guarded) = prepare(played, node, "budget-some", steps, budgets).await?;
    is_guarded(&guarded).await?;
    settle().await;
    let (granted, from) = (granted(t).await?, Timestamp::now());
    let programs = programs(t, &t.paths).await?;
    let used = processor_times(&programs);
    let client = |index: usize| {
        let pods = |t: &Test| -> Api<k8s_openapi::api::core::v1::Pod> {
            Api::namespaced(clients[index].clone(), &t.namespace)
        };
        let (free, guarded) = (pods(&free), pods(&guarded));
        async move {
            let mut random = Jitter::new();
            let (mut without, mut with) = (Vec::new(), Vec::new());
            // The connection is no part of it.
            let _ = free.get_opt("none").await?;
            for step in 0..steps {
                let name = name_of(index, step);
                let mut both = [(&free, &mut without), (&guarded, &mut with)];
                if (step + index) % 2 == 1 {
                    both.reverse();
                }
                for (api, times) in both {
                    tokio::time::sleep(random.milliseconds(pause.0, pause.1)).await;
                    let begun = Instant::now();
                    api.delete(&name, &DeleteParams::default()).await?;
                    times.push(begun.elapsed().as_secs_f64() * 1e3);
                }
            }
            anyhow::Ok((without, with))
        }
    };
    let begun = Instant::now();
    let times = try_join_all((0..CLIENTS).map(client)).await?;
    let pace = (2 * CLIENTS * steps) as f64 / begun.elapsed().as_secs_f64();
    let used: Vec<String> = processor_times(&programs)
        .iter()
        .zip(used)
        .zip(&programs)
        .map(|((now, then), (name, _))| format!("{name} {:.2}", now - then))
        .collect();
    println!("{} deletions with {budgets} budgets and as many without", CLIENTS * steps);
    println!("processor time in seconds, of {:.1}: {}", begun.elapsed().as_secs_f64(), used.join(", "));
    let decided = self::granted(t).await? - granted;
    // The API server asks again when it finds that the Pod has changed meanwhile.
    ensure!(decided >= CLIENTS * steps, "{decided} consents for {} deletions", CLIENTS * steps);
    let (without, with): (Vec<_>, Vec<_>) = times.into_iter().unzip();
    let (without, with) = (Times::of(without.concat()), Times::of(with.concat()));
    let which = if budgets == 1 { "one budget".to_owned() } else { format!("{budgets} budgets") };
    let what = format!("Pod deletion, {CLIENTS} clients, {pace:.0} a second");
    table.row(&format!("{what}: without a budget"), "", without.text());
    table.row(&format!("{what}: under {which}"), "", with.text());
    let goal = if budgets == 1 || pause.0 == 0 { "" } else { "p50 10 ms, p99 25 ms" };
    let added = |share: f64| with.at(share) - without.at(share);
    table.row(
        &format!("{what}: added by {which}"),
        goal,
        format!("p50 {:.1} ms, p99 {:.1} ms", added(0.5), added(0.99)),
    );
    println!("{decided} consents asked for; calls:");
    for ((role, what), n) in calls(&t.paths, &[(from, Timestamp::now())])?.pop().unwrap_or_default() {
        println!("  {n:>6}  {role} {what}");
    }
    take_down(t, [&free, &guarded]).await
}

/// The namespaces of a pair go: first the budgets of the second one, then the Pods.
async fn take_down(t: &Test, [free, guarded]: [&Test; 2]) -> Result<()> {
    guarded.api(BUDGET).delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    for gone in [free, guarded] {
        let at_once = DeleteParams::default().grace_period(0);
        // Until the webhook has heard that the budgets are gone.
        poll("the Pods to go", PATIENCE, async || {
            Ok(gone.api("Pod").delete_collection(&at_once, &ListParams::default()).await.map(drop)?)
        })
        .await?;
        t.remove("Namespace", &gone.namespace).await?;
    }
    for gone in [free, guarded] {
        t.wait("Namespace", &gone.namespace, "to be gone", PATIENCE * 4, |o| o.is_none()).await?;
    }
    Ok(())
}

/// Sorted, in milliseconds.
struct Times(Vec<f64>);

impl Times {
    fn of(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        Self(all)
    }

    fn at(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get(((self.0.len() as f64 * share) as usize).min(last)).copied().unwrap_or(f64::NAN)
    }

    fn text(&self) -> String {
        let n = self.0.len();
        format!("p50 {:.1} ms, p90 {:.1} ms, p99 {:.1} ms, n={n}", self.at(0.5), self.at(0.9), self.at(0.99))
    }
}

/// A metric of all replicas of the webhook together, of the lines that begin with `name` and have `label`.
async fn metric(t: &Test, name: &str, label: &str) -> Result<f64> {
    let mut sum = 0.0;
    for pod in t.node().replicas("kruise-webhook").await? {
        let path = format!("/api/v1/namespaces/{SYSTEM}/pods/{}:8080/proxy", pod.text("/metadata/name"));
        let request = Request::new(path).get("metrics", &GetParams::default())?;
        let text = t.client.request_text(request).await?;
        let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(label));
        sum += lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>();
    }
    Ok(sum)
}

/// Consents that were given.
async fn granted(t: &Test) -> Result<usize> {
    Ok(metric(t, "kruise_pod_unavailable_budget_decisions_total{", "result=\"granted\"").await? as usize)
}

/// Of many CloneSets that are there, `budgets` get a budget each: what that takes in memory, and what a decision takes
/// beside one with a single budget. The namespace of `t` has all the Pods; those of the first set are asked for.
pub(crate) async fn many(t: &Test, manager: Process, sets: &[String], what: &str, table: &mut Table) -> Result<()> {
    let webhooks: Vec<Process> =
        processes(t).await?.into_iter().filter(|(role, _)| role.contains("webhook")).map(|(_, p)| p).collect();
    let memory = || -> Result<(f64, f64)> {
        let of = |process: &Process| Ok(Usage::of(*process)?.memory);
        let webhook = webhooks.iter().map(of).collect::<Result<Vec<f64>>>()?.into_iter().fold(0.0, f64::max);
        Ok((of(&manager)?, webhook))
    };
    // By turns in both ways.
    let budget = |(index, name): (usize, String)| {
        let spec = match index % 2 {
            0 => json!({ "maxUnavailable": 1, "selector": { "matchLabels": { "set": name } } }),
            _ => json!({ "maxUnavailable": 1,
                "targetRef": { "apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": name } }),
        };
        let budget = json!({ "kind": BUDGET, "metadata": { "name": name }, "spec": spec });
        async move {
            t.create(budget).await?;
            t.wait_for(BUDGET, &name, "to be counted", PATIENCE * 5, |b| b.int("/status/unavailableAllowed") == 1).await
        }
    };
    let first = sets.first().context("a CloneSet")?;
    let pods = t.list("Pod", &format!("set={first}")).await?;
    let before = memory()?;
    budget((0, first.clone())).await?;
    is_guarded(t).await?;
    let with_one = decision(t, &pods).await?;
    stream::iter(sets.iter().cloned().enumerate().skip(1))
        .map(budget)
        .buffer_unordered(MAKING)
        .try_for_each(|_| future::ready(Ok(())))
        .await?;
    settle().await;
    let with_many = decision(t, &pods).await?;
    let after = memory()?;
    let what = format!("{} budgets, {what}", sets.len());
    table.row(&format!("{what}: manager, memory above the Pods'"), "10 MB", megabytes(after.0 - before.0));
    table.row(&format!("{what}: webhook, memory above that before"), "10 MB", megabytes(after.1 - before.1));
    let times = format!("{:.2} ms beside {:.2} ms with one budget", with_many * 1e3, with_one * 1e3);
    table.row(&format!("{what}: the webhook's time for a decision"), "independent of the budgets", times);
    for name in sets {
        t.remove(BUDGET, name).await?;
    }
    Ok(())
}

/// Seconds that a decision takes on the average, by the webhook's own clock: what the API server does besides is left out.
/// Dry runs take nothing, so it can be asked again and again.
async fn decision(t: &Test, pods: &[Value]) -> Result<f64> {
    let label = "webhook=\"/validate-pod\"";
    let taken = async || -> Result<(f64, f64)> {
        let name = "controller_runtime_webhook_latency_seconds";
        Ok((metric(t, &format!("{name}_sum{{"), label).await?, metric(t, &format!("{name}_count{{"), label).await?))
    };
    let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
    let before = taken().await?;
    for pod in pods.iter().cycle().take(DECISIONS) {
        t.api("Pod").delete(pod.text("/metadata/name"), &dry_run).await?;
    }
    let after = taken().await?;
    ensure!(after.1 - before.1 >= DECISIONS as f64, "the webhook was not asked");
    Ok((after.0 - before.0) / (after.1 - before.1))
}
