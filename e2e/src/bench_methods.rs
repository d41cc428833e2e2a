//! Part of `make bench`: method PodSpec beside a bare stop in the runtime, and restarts in quick succession.
//!
//! The image is one that was pulled under a name outside Docker's registry. Both are counted from the moment before the call:
//! what is compared is what a user waits for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::bare_stops::BareStops;
use crate::images::remote;
use crate::kit::{Build, Container, Look, PATIENCE, RuntimeEvents, Test, condition, crr, pod};
use crate::measure::{Jitter, Table, follow, median, summary};
use crate::paths::Paths;

const CONTAINERS_PER_POD: usize = 10;
/// Between two restarts of one container.
const APART: Duration = Duration::from_secs(3);

fn pulled(name: &str) -> Value {
    json!({ "name": name, "image": remote("pause") })
}

fn by_pod_spec(name: &str, pod: &str, container: &str) -> Value {
    crr(name, pod, &[container]).with("/spec/strategy/recreateMethod", "PodSpec")
}

/// Instances by Pod, container and restart count: when a Pod watch first showed them running, and their ids.
type Seen = Arc<Mutex<BTreeMap<(String, String, i64), (Timestamp, String)>>>;

fn watch(t: &Test, seen: &Seen) -> tokio::task::JoinHandle<()> {
    let seen = Arc::clone(seen);
    follow(t, "Pod", move |p| {
        let now = Timestamp::now();
        let Ok(mut seen) = seen.lock() else { return };
        for (name, container) in Container::all(p).into_iter().filter(|(_, c)| !c.started.is_empty()) {
            let key = (p.text("/metadata/name").to_owned(), name, container.restarts);
            seen.entry(key).or_insert((now, container.id));
        }
    })
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

pub(crate) async fn measure(t: &Test, paths: &Paths, requests: usize, table: &mut Table) -> Result<()> {
    let seen = Seen::default();
    let watching = watch(t, &seen);
    let (events, mut stops) = (RuntimeEvents::listen()?, BareStops::connect(paths)?);
    let result = async {
        beside_bare_stops(t, requests, (&seen, &events), &mut stops, table).await?;
        in_quick_succession(t, &seen, &mut stops, table).await
    }
    .await;
    watching.abort();
    result?;
    stops.end()
}

async fn beside_bare_stops(
    t: &Test,
    requests: usize,
    (seen, events): (&Seen, &RuntimeEvents),
    stops: &mut BareStops,
    table: &mut Table,
) -> Result<()> {
    let pods = requests.div_ceil(CONTAINERS_PER_POD);
    let names: Vec<String> = (0..CONTAINERS_PER_POD).map(|i| format!("c{i}")).collect();
    let all: Vec<String> = (0..pods).flat_map(|i| [format!("respelled-{i}"), format!("stopped-{i}")]).collect();
    for name in &all {
        t.create(pod(name, names.iter().map(|n| pulled(n)).collect())).await?;
    }
    for name in &all {
        t.wait_for("Pod", name, "to be Ready", PATIENCE * 3, |p| condition(p, "Ready") == "True").await?;
    }
    let mut random = Jitter::new();
    let (mut asked, mut bare) = (Vec::new(), Vec::new());
    for i in 0..requests {
        // One Pod after the other: requests of one Pod would wait for each other.
        let (index, container) = (i % pods, &names[i / pods]);
        tokio::time::sleep(random.milliseconds(250, 1250)).await;
        let pod = format!("respelled-{index}");
        let called = Timestamp::now();
        t.create(by_pod_spec(&format!("respell-{i}"), &pod, container)).await?;
        asked.push((pod, container.clone(), called));

        tokio::time::sleep(random.milliseconds(250, 1250)).await;
        let pod = format!("stopped-{index}");
        let id = t.containers(&pod).await?.get(container).context("the container")?.id.clone();
        let called = Timestamp::now();
        stops.stop(&[&id])?;
        bare.push((pod, container.clone(), called));
    }
    tokio::time::sleep(Duration::from_secs(6)).await;

    let seen = seen.lock().map_err(|_| anyhow::anyhow!("the watch panicked"))?.clone();
    let new = |pod: &str, container: &str| seen.get(&(pod.to_owned(), container.to_owned(), 1));
    let measured = |from: Timestamp, pod: &str, container: &str| {
        let (running, id) = new(pod, container)?;
        Some((seconds(from, events.start(id)?), seconds(from, *running)))
    };
    let all_of = |side: &[(String, String, Timestamp)]| -> Vec<(f64, f64)> {
        side.iter().filter_map(|(pod, container, called)| measured(*called, pod, container)).collect()
    };
    let (respelled, stopped) = (all_of(&asked), all_of(&bare));
    let column = |all: &[(f64, f64)], api: bool| all.iter().map(|m| if api { m.1 } else { m.0 }).collect::<Vec<_>>();
    for (what, goal, api) in [("started in the runtime", 0.3, false), ("Running in the API", 0.65, true)] {
        let (ours, theirs) = (column(&respelled, api), column(&stopped, api));
        table.row(&format!("PodSpec: request sent -> {what}"), "", summary(&ours));
        table.row(&format!("bare StopContainer sent -> {what}"), "", summary(&theirs));
        if let (Some(ours), Some(theirs)) = (median(&ours), median(&theirs)) {
            let what = format!("PodSpec beside bare stop, {what}");
            table.row(&what, &format!("{goal}x"), format!("{:.2}x", ours / theirs));
        }
    }
    for name in &all {
        t.remove("Pod", name).await?;
    }
    for name in &all {
        t.gone("Pod", name).await?;
    }
    Ok(())
}

/// Restarts of one container, 3 s from one being back to the next.
async fn in_quick_succession(t: &Test, seen: &Seen, stops: &mut BareStops, table: &mut Table) -> Result<()> {
    t.start(pod("quick", vec![pulled("usual"), pulled("varied"), pulled("killed")])).await?;
    for (container, restarts, goal) in [("usual", 3, "1.5 s"), ("varied", 10, "1.5 s"), ("killed", 3, "")] {
        let mut took = Vec::new();
        for i in 1..=restarts {
            tokio::time::sleep(APART).await;
            let id = t.containers("quick").await?.get(container).context("the container")?.id.clone();
            let from = Timestamp::now();
            if container == "killed" {
                stops.stop(&[&id])?;
            } else {
                let request = by_pod_spec(&format!("quick-{container}-{i}"), "quick", container);
                t.create(request.with("/spec/strategy/varyImageTag", container == "varied")).await?;
            }
            let key = ("quick".to_owned(), container.to_owned(), i);
            let back = t.wait_for("Pod", "quick", "to be restarted", PATIENCE * 2, |p| {
                Container::all(p).get(container).is_some_and(|c| c.restarts == i && !c.started.is_empty())
            });
            back.await?;
            // Two watches show it at about the same time.
            tokio::time::sleep(Duration::from_millis(200)).await;
            let running = seen.lock().ok().and_then(|seen| seen.get(&key).map(|(at, _)| *at));
            took.push(seconds(from, running.context("the watch has shown it")?));
        }
        let each: Vec<String> = took.iter().map(|s| format!("{s:.1}")).collect();
        let slowest = took.iter().copied().fold(0.0, f64::max);
        let what = match container {
            "usual" => "PodSpec, 3 restarts 3 s apart, slowest",
            "varied" => "PodSpec with varyImageTag, 10 restarts 3 s apart, slowest",
            _ => "bare stops, 3 restarts 3 s apart, slowest",
        };
        table.row(what, goal, format!("{slowest:.2} s ({})", each.join(", ")));
    }
    t.remove("Pod", "quick").await?;
    t.gone("Pod", "quick").await
}
