//! The part of `make bench` about WorkloadRestarts: many Pods on the real node, beside the same restarts by bare stops.
//!
//! The bare side rolls as a WorkloadRestart does: as many Pods as may be unavailable are under way, and when one is ready
//! again the next one is stopped. Each round of each side restarts a container of its own in every Pod: kubelet would
//! delay a second restart. The sides take turns, every other round in reverse order, so that both meet the same Pods on
//! the same node at its slow and its fast times.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::sync::Notify;

use crate::bare_stops::BareStops;
use crate::kit::{Container, Look, PATIENCE, Test, app, condition, restart_of, workload};
use crate::measure::{Table, follow, median, settle};
use crate::paths::Paths;

/// How often each side restarts all Pods.
const ROUNDS: usize = 2;

/// Whether a Pod is ready, and its containers.
type State = (bool, BTreeMap<String, Container>);

/// The most recent state of the containers of each Pod, and a call whenever it changes.
#[derive(Default)]
struct Seen {
    pods: Mutex<BTreeMap<String, State>>,
    changed: Notify,
}

impl Seen {
    /// Whether a container of a Pod has been restarted once, and the Pod is ready.
    fn is_back(&self, pod: &str, container: &str) -> Result<bool> {
        let seen = self.pods.lock().map_err(|_| anyhow::anyhow!("the watch panicked"))?;
        let state = seen.get(pod);
        Ok(state.is_some_and(|(ready, all)| *ready && all.get(container).is_some_and(|c| c.restarts == 1)))
    }
}

/// Who restarts all Pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Bare,
    Own,
}

/// What one side took: the seconds of each round, and the most Pods that were unavailable at a time in any of them.
#[derive(Default)]
struct Taken {
    seconds: Vec<f64>,
    most: usize,
}

/// The container that a round of a side restarts.
fn container(way: Way, round: usize) -> String {
    format!("{}-{round}", format!("{way:?}").to_lowercase())
}

pub(crate) async fn measure(t: &Test, paths: &Paths, count: usize, table: &mut Table) -> Result<()> {
    let size = count.div_ceil(10);
    let rounds = (0..ROUNDS).flat_map(|round| [Way::Bare, Way::Own].map(|way| container(way, round)));
    let containers = rounds.map(|name| app(&name)).collect();
    t.create(workload("Deployment", "many", i64::try_from(count)?, containers)).await?;
    let all_ready = |o: &serde_json::Value| o.int("/status/readyReplicas") == i64::try_from(count).unwrap_or_default();
    t.wait_for("Deployment", "many", "to be ready", PATIENCE * 10, all_ready).await?;
    let seen: Arc<Seen> = Arc::default();
    let kept = Arc::clone(&seen);
    let watch = follow(t, "Pod", move |pod| {
        if let Ok(mut pods) = kept.pods.lock() {
            let ready = condition(pod, "Ready") == "True";
            pods.insert(pod.text("/metadata/name").to_owned(), (ready, Container::all(pod)));
        }
        kept.changed.notify_waiters();
    });
    let pods = t.list("Pod", "app=many").await?;
    ensure!(pods.len() == count, "{} Pods, not {count}", pods.len());

    let mut stops = BareStops::connect(paths)?;
    let mut taken: BTreeMap<Way, Taken> = BTreeMap::new();
    for round in 0..ROUNDS {
        let mut ways = [Way::Bare, Way::Own];
        if round % 2 == 1 {
            ways.reverse();
        }
        for way in ways {
            // Pods that have only just started still keep kubelet busy.
            settle().await;
            settle().await;
            let (name, availability) = (container(way, round), t.availability("app=many").await?);
            let begin = Instant::now();
            match way {
                Way::Bare => {
                    let id = |pod: &serde_json::Value| -> Result<(String, String)> {
                        let of = Container::all(pod).remove(&name).context("the container")?;
                        Ok((pod.text("/metadata/name").to_owned(), of.id))
                    };
                    let ids = pods.iter().map(id).collect::<Result<Vec<_>>>()?;
                    roll(&mut stops, &seen, &ids, &name, size).await?;
                }
                Way::Own => restart(t, &name).await?,
            }
            let taken = taken.entry(way).or_default();
            taken.seconds.push(begin.elapsed().as_secs_f64());
            taken.most = taken.most.max(availability.most_unavailable());
        }
    }
    stops.end()?;
    watch.abort();
    for pod in t.list("Pod", "app=many").await? {
        for (name, container) in Container::all(&pod) {
            let of = pod.text("/metadata/name");
            ensure!(container.restarts == 1, "{of}: {name} was restarted {} times", container.restarts);
        }
    }

    let [bare, own] = [Way::Bare, Way::Own].map(|way| taken.remove(&way).unwrap_or_default());
    let what = format!("WorkloadRestart of {count} Pods, maxUnavailable 10 %");
    table.row(
        &format!("{what}: most unavailable in a watch"),
        &format!("{size}"),
        format!("{} (bare: {})", own.most, bare.most),
    );
    let ratios: Vec<f64> = own.seconds.iter().zip(&bare.seconds).map(|(own, bare)| own / bare).collect();
    let middle = |values: &[f64]| median(values).unwrap_or_default();
    let each = |values: &[f64]| values.iter().map(|s| format!("{s:.1}")).collect::<Vec<_>>().join(" and ");
    let times = format!("{:.2}x: {} s, bare {} s", middle(&ratios), each(&own.seconds), each(&bare.seconds));
    table.row(&format!("{what}: time, beside bare stops that roll alike"), "1.2x", times);
    for round in 0..ROUNDS {
        t.remove("WorkloadRestart", &container(Way::Own, round)).await?;
    }
    t.remove("Deployment", "many").await?;
    for pod in &pods {
        t.gone("Pod", pod.text("/metadata/name")).await?;
    }
    Ok(())
}

/// Stops a container of every Pod, so many Pods at a time: the next one when one is ready again.
async fn roll(
    stops: &mut BareStops,
    seen: &Seen,
    ids: &[(String, String)],
    container: &str,
    size: usize,
) -> Result<()> {
    let mut left = ids.iter();
    let mut under_way: Vec<&str> = Vec::new();
    loop {
        let changed = seen.changed.notified();
        let mut still = Vec::new();
        for pod in under_way {
            if !seen.is_back(pod, container)? {
                still.push(pod);
            }
        }
        under_way = still;
        let next: Vec<&(String, String)> = left.by_ref().take(size - under_way.len()).collect();
        if !next.is_empty() {
            stops.stop(&next.iter().map(|(_, id)| id.as_str()).collect::<Vec<_>>())?;
            under_way.extend(next.iter().map(|(pod, _)| pod.as_str()));
        }
        if under_way.is_empty() {
            return Ok(());
        }
        tokio::time::timeout(PATIENCE, changed).await.context("Pods that were stopped are not ready again")?;
    }
}

/// A WorkloadRestart of one container of all Pods, to its end.
async fn restart(t: &Test, name: &str) -> Result<()> {
    let spec = json!({ "containers": [name], "maxUnavailable": "10%" });
    t.create(restart_of(name, "Deployment", "many", spec)).await?;
    let ended = |o: &serde_json::Value| condition(o, "Complete") == "True" || condition(o, "Failed") == "True";
    let done = t.wait_for("WorkloadRestart", name, "to end", PATIENCE * 5, ended).await?;
    ensure!(condition(&done, "Complete") == "True", "{}", done["status"]);
    Ok(())
}
