//! The part of `make bench` about WorkloadRestarts: many Pods on the real node, beside the same waves by bare stops.
//!
//! Each Pod has two containers: one is restarted by bare stops in waves of the size that may be unavailable, each wave
//! when all of the one before are ready again; then the other one by a WorkloadRestart. So both meet the same Pods on
//! the same node, and no container is restarted a second time, which kubelet would delay.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use serde_json::json;
use tokio::sync::Notify;

use crate::bench::{Table, follow};
use crate::kit::{Container, Look, PATIENCE, Test, app, condition, restart_of, workload};

/// Whether a Pod is ready, and its containers.
type State = (bool, BTreeMap<String, Container>);

/// The most recent state of the containers of each Pod, and a call whenever it changes.
#[derive(Default)]
struct Seen {
    pods: Mutex<BTreeMap<String, State>>,
    changed: Notify,
}

impl Seen {
    /// Waits until a container of these Pods has been restarted once, and the Pods are ready.
    async fn back(&self, pods: &[String], container: &str) -> Result<()> {
        let all = async {
            loop {
                let changed = self.changed.notified();
                let is_back = {
                    let seen = self.pods.lock().map_err(|_| anyhow::anyhow!("the watch panicked"))?;
                    let back = |pod: &String| {
                        seen.get(pod)
                            .is_some_and(|(ready, all)| *ready && all.get(container).is_some_and(|c| c.restarts == 1))
                    };
                    pods.iter().all(back)
                };
                if is_back {
                    return anyhow::Ok(());
                }
                changed.await;
            }
        };
        tokio::time::timeout(PATIENCE, all).await.context("the Pods of a wave are ready again")?
    }
}

pub(crate) async fn measure(t: &Test, count: usize, table: &mut Table) -> Result<()> {
    let size = count.div_ceil(10);
    t.create(workload("Deployment", "many", i64::try_from(count)?, vec![app("bare"), app("main")])).await?;
    let all_ready = |o: &serde_json::Value| o.int("/status/readyReplicas") == i64::try_from(count).unwrap_or_default();
    t.wait_for("Deployment", "many", "to be ready", PATIENCE * 10, all_ready).await?;
    // Pods that have only just started still keep kubelet busy
    tokio::time::sleep(Duration::from_secs(10)).await;
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
    let ids: Vec<(String, String)> =
        pods.iter().map(|p| (p.text("/metadata/name").to_owned(), Container::all(p)["bare"].id.clone())).collect();

    let availability = t.availability("app=many").await?;
    let begin = Instant::now();
    for wave in ids.chunks(size) {
        let names: Vec<String> = wave.iter().map(|(name, _)| name.clone()).collect();
        try_join_all(wave.iter().map(|(_, id)| async { t.node().signal(id, "SIGTERM").await })).await?;
        seen.back(&names, "bare").await?;
    }
    let bare = begin.elapsed();
    let bare_most = availability.most_unavailable();
    drop(availability);

    let availability = t.availability("app=many").await?;
    let begin = Instant::now();
    let spec = json!({ "containers": ["main"], "maxUnavailable": "10%" });
    t.create(restart_of("many", "Deployment", "many", spec)).await?;
    let ended = |o: &serde_json::Value| condition(o, "Complete") == "True" || condition(o, "Failed") == "True";
    let done = t.wait_for("WorkloadRestart", "many", "to end", PATIENCE * 5, ended).await?;
    let own = begin.elapsed();
    let most = availability.most_unavailable();
    watch.abort();
    ensure!(condition(&done, "Complete") == "True", "{}", done["status"]);
    for pod in t.list("Pod", "app=many").await? {
        ensure!(Container::all(&pod)["main"].restarts == 1, "{} was not restarted once", pod.text("/metadata/name"));
    }

    let what = format!("WorkloadRestart of {count} Pods, maxUnavailable 10 %");
    table.row(
        &format!("{what}: most unavailable in a watch"),
        &format!("{size}"),
        format!("{most} (bare: {bare_most})"),
    );
    let times = format!(
        "{:.2}x: {:.1} s, bare {:.1} s",
        own.as_secs_f64() / bare.as_secs_f64(),
        own.as_secs_f64(),
        bare.as_secs_f64()
    );
    table.row(&format!("{what}: time, beside bare stops"), "1.2x", times);
    t.remove("WorkloadRestart", "many").await?;
    t.remove("Deployment", "many").await?;
    for (name, _) in &ids {
        t.gone("Pod", name).await?;
    }
    Ok(())
}
