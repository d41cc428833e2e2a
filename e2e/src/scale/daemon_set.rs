//! DaemonSet on a thousand played nodes, each as large as a real one with fifty images, beside a bare client whose Pods are
//! the same and get the same writes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, pin_mut, stream};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::bare::{Marks, SAME_PODS};
use super::in_place::{HowMany, Updater, Updates};
use super::{Census, GATES, IN_FLIGHT, LONG, NODE_PREFIX, REVISIONS, Scale, create_gated, in_turn};
use super::{limited, template, warm};
use crate::kit::{Look, PATIENCE, Test};
use crate::measure::{Usage, megabytes, settle, summary};
use crate::player::{Nodes, PLAYED};

const OURS: &str = "AdvancedDaemonSet";
/// Sets beside which nodes join and beat.
const SETS: usize = 20;
/// Nodes that join while the sets are there.
const JOINING: usize = 100;
/// From the moment when the Pods of one node are ready to the next node: the sets have written their statuses. Without it each
/// node would wait for what is still written for those before, and all would measure how many writes the machine does.
const BETWEEN: Duration = Duration::from_secs(3);
/// Over which heartbeats are measured.
const MINUTE: Duration = Duration::from_secs(60);

fn set(name: &str) -> Value {
    let mut template = template(name);
    template["spec"]["readinessGates"] = json!([{ "conditionType": GATES[0] }]);
    json!({ "kind": "DaemonSet", "apiVersion": "apps.kruise.io/v1beta1", "metadata": { "name": name }, "spec": {
        "selector": { "matchLabels": { "app": name } }, "template": template, "updateStrategy": { "type": "RollingUpdate",
            "rollingUpdate": { "rollingUpdateType": "InPlaceIfPossible", "maxUnavailable": "10%" } } } })
}

fn pod_name(app: &str, index: usize) -> String {
    format!("{app}-{index:05}")
}

/// With the labels, gates, tolerations and affinity of a Pod of the DaemonSet.
fn bare_pod(app: &str, index: usize, node: &str) -> Value {
    let mut pod = template(app);
    pod["kind"] = "Pod".into();
    pod["metadata"] = json!({ "name": pod_name(app, index), "generateName": format!("{app}-"),
        "labels": { "app": app, "controller-revision-hash": REVISIONS[0] } });
    pod["spec"]["readinessGates"] = GATES.iter().map(|gate| json!({ "conditionType": gate })).collect();
    let field = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
    pod["spec"]["affinity"] = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{ "matchFields": [field] }] } } });
    let tolerated = |(key, effect): &(&str, &str)| json!({ "key": key, "operator": "Exists", "effect": effect });
    let all = [
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    ];
    let names = all.map(|(name, effect)| (format!("node.kubernetes.io/{name}"), effect));
    if let Some(tolerations) = pod["spec"]["tolerations"].as_array_mut() {
        tolerations.extend(names.iter().map(|(key, effect)| tolerated(&(key.as_str(), effect))));
    }
    pod
}

/// The node that a Pod of a DaemonSet is for.
fn node_of(pod: &Value) -> &str {
    const TERM: &str = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0";
    pod.text(&format!("{TERM}/matchFields/0/values/0"))
}

/// Fifty images with two names each, as kubelet reports them: about 20 kB.
fn images() -> Value {
    let image = |i: usize| {
        let name = format!("registry.example/a/team/with/several/services/application-number-{i:03}");
        json!({ "names": [format!("{name}@sha256:{:064x}", i * 7919), format!("{name}:v1.{i}.0-with-a-long-build-identifier-{i:040}")],
            "sizeBytes": 100_000_000 + i })
    };
    (0..50).map(image).collect()
}

/// Each node as large as a real one.
async fn furnish(t: &Test, nodes: &[String]) -> Result<()> {
    let (api, patch) = (&t.api("Node"), &Patch::Merge(json!({ "status": { "images": images() } })));
    let one = |name: &String| {
        let name = name.clone();
        async move { api.patch_status(&name, &PatchParams::default(), patch).await.map(drop) }
    };
    Ok(stream::iter(nodes).map(one).buffer_unordered(IN_FLIGHT).try_collect::<()>().await?)
}

impl Scale<'_> {
    pub(super) async fn daemon_sets(&mut self, played: &Test, nodes: &[String]) -> Result<()> {
        furnish(played, nodes).await?;
        self.daemons_come_and_change(nodes).await?;
        self.many_daemon_sets(played, nodes).await
    }

    /// All nodes get their Pod, and each Pod another image in place.
    async fn daemons_come_and_change(&mut self, nodes: &[String]) -> Result<()> {
        let count = nodes.len();
        let at_once = count.div_ceil(10);
        let how_many = (count, at_once, Marks::Nothing);
        let (mut bare, mut ours) = (Vec::new(), Vec::new());
        let (mut changed, mut most) = (Updates::default(), 0);
        let updaters = self.updaters();
        for round in 0..self.options.rounds {
            for updater in in_turn(&updaters, round) {
                let name = format!("ads-{}-{round}", format!("{updater:?}").to_lowercase());
                let pod = |index: usize| bare_pod(&name, index, &nodes[index]);
                let seconds = match updater {
                    Updater::Bare => {
                        let [come, change] = self.client_come_and_change(&name, how_many, pod).await?;
                        bare.push(come);
                        change
                    }
                    Updater::Limited => self.limited_in_place(&name, how_many, pod).await?,
                    Updater::Ours => {
                        let ([come, change], not_ready) = self.set_come_and_change(&name, count).await?;
                        ours.push(come);
                        most = most.max(not_ready);
                        change
                    }
                };
                changed.of(updater).push(seconds);
            }
        }
        let what = format!("DaemonSet, 0 -> {count} nodes");
        self.beside(&what, "1.15x", &ours, ("the bare client", &bare));
        let what = format!("DaemonSet, {count} updates in place, maxUnavailable 10 %");
        self.beside(&what, "1.2x", &changed.ours, ("the bare client", &changed.bare));
        self.beside(&what, "", &changed.ours, (limited::BESIDE, &changed.limited));
        self.rows.row(&format!("{what}: most that were not ready"), &at_once.to_string(), most.to_string());
        Ok(())
    }

    /// The seconds until all Pods of the bare client are ready, and then until all have another image.
    async fn client_come_and_change(
        &mut self,
        name: &str,
        how_many: HowMany,
        pod: impl Fn(usize) -> Value,
    ) -> Result<[f64; 2]> {
        let (t, (count, _, marks)) = (self.t.clone(), how_many);
        let pods = Census::begin(&t, name).await?;
        warm(&t).await?;
        let work = async {
            create_gated(&t, count, marks, &pod).await?;
            pods.until("Pods to be ready", LONG, |c| c.ready == count).await
        };
        let come = self.step(&format!("{SAME_PODS}, 0 -> {count} nodes"), work).await?;
        let change = self.client_updates((&t, SAME_PODS), (name, &pods), how_many, pod).await?;
        Ok([come.seconds, change])
    }

    /// The same of a DaemonSet, and how many Pods were not ready at most while they got another image.
    async fn set_come_and_change(&mut self, name: &str, count: usize) -> Result<([f64; 2], usize)> {
        let (t, object) = (self.t.clone(), set(name));
        let template = object["spec"]["template"].clone();
        let pods = Census::begin(&t, name).await?;
        warm(&t).await?;
        let work = async {
            t.create(object).await?;
            pods.until("Pods to be ready", LONG, |c| c.ready == count).await
        };
        let come = self.step(&format!("DaemonSet, 0 -> {count} nodes"), work).await?;
        let whose = (OURS, "DaemonSet");
        let (change, not_ready) = self.workload_updates(whose, (name, &pods, count), template).await?;
        t.remove(OURS, name).await?;
        pods.until("Pods to be gone", LONG, |c| c.total == 0).await?;
        Ok(([come.seconds, change.seconds], not_ready))
    }

    /// Many sets on all nodes: memory, heartbeats, and nodes that join.
    async fn many_daemon_sets(&mut self, played: &Test, nodes: &[String]) -> Result<()> {
        let t = self.t.clone();
        let count = SETS * nodes.len();
        let before = self.memory_of_a_new_manager().await?;
        let pods = Census::begin(&t, "many-ads").await?;
        let names: Vec<String> = (0..SETS).map(|index| format!("many-ads-{index:02}")).collect();
        for name in &names {
            let mut object = set(name);
            object["spec"]["selector"] = json!({ "matchLabels": { "set": name } });
            object["spec"]["template"]["metadata"]["labels"] = json!({ "app": "many-ads", "set": name });
            t.create(object).await?;
        }
        let patience = LONG + Duration::from_secs(count as u64 / 25);
        pods.until("Pods to be ready", patience, |c| c.ready == count).await?;
        settle().await;
        let (_, manager) = self.manager().await?;
        let used = Usage::of(manager)?;
        let what = format!("{SETS} DaemonSets, {} nodes", nodes.len());
        self.rows.row(&format!("manager: memory, {what}"), "", megabytes(used.memory));
        let each = (used.memory - before) * 1e6 / count as f64;
        self.rows.row("manager: memory for each Pod of a DaemonSet", "2200 bytes", format!("{each:.0} bytes"));

        let (quiet, idle) = (Usage::of(manager)?.cpu, Instant::now());
        tokio::time::sleep(MINUTE).await;
        let quiet = (Usage::of(manager)?.cpu - quiet) / idle.elapsed().as_secs_f64();
        let (busy, start) = (Usage::of(manager)?.cpu, Instant::now());
        beat(played, nodes, MINUTE).await?;
        let busy = (Usage::of(manager)?.cpu - busy) / start.elapsed().as_secs_f64();
        let value = format!("{:.2} % of a core more than without them", (busy - quiet) * 100.0);
        self.rows.row(&format!("manager: {} node heartbeats a minute, {what}", nodes.len()), "0.5 %", value);

        self.nodes_that_join(played, &pods, count).await?;
        for name in &names {
            t.remove(OURS, name).await?;
        }
        pods.until("Pods to be gone", patience, |c| c.total == 0).await.map(drop)
    }

    /// From the request that creates a node to its Pods in a watch, one node after the other, beside `count` Pods. The API
    /// server gives each new node a taint that no Pod of a DaemonSet tolerates: when the node controller has taken it off
    /// stands in another row.
    async fn nodes_that_join(&mut self, played: &Test, pods: &Census, count: usize) -> Result<()> {
        let (send, mut came) = mpsc::unbounded_channel();
        let stream = watcher::watcher(self.t.api("Pod"), watcher::Config::default().labels("app=many-ads"));
        let watch = tokio::spawn(async move {
            pin_mut!(stream);
            let mut seen = HashMap::new();
            while let Some(event) = stream.next().await {
                let Ok(Event::Apply(pod)) = event else { continue };
                let now = Instant::now();
                let node = node_of(&pod.data).to_owned();
                if seen.insert(pod.metadata.uid, ()).is_none() && send.send((node, now)).is_err() {
                    return;
                }
            }
        });
        let (send_free, mut freed) = mpsc::unbounded_channel();
        let nodes = watcher::watcher(self.t.api("Node"), watcher::Config::default().labels(PLAYED));
        let watch_nodes = tokio::spawn(async move {
            pin_mut!(nodes);
            let mut seen = HashMap::new();
            while let Some(event) = nodes.next().await {
                let Ok(Event::Apply(node)) = event else { continue };
                let now = Instant::now();
                let name = node.metadata.name.unwrap_or_default();
                // Its own is left.
                let is_free = node.data.array("/spec/taints").len() == 1;
                if is_free && seen.insert(name.clone(), ()).is_none() && send_free.send((name, now)).is_err() {
                    return;
                }
            }
        });
        settle().await;
        while came.try_recv().is_ok() {}
        while freed.try_recv().is_ok() {}
        let (mut times, mut free, mut ours) = (Vec::new(), Vec::new(), Vec::new());
        let from = self.options.big_nodes.max(self.options.nodes);
        let mut joined = Vec::new();
        // As large as those that are there.
        let status = json!({ "images": images() });
        for index in from..from + JOINING {
            let node = format!("{NODE_PREFIX}{index:04}");
            // Before it is asked for: what the API server itself takes is included.
            let start = Instant::now();
            joined.push(Nodes::make_with(played, NODE_PREFIX, index..index + 1, false, &status).await?);
            let mut own = Vec::new();
            while own.len() < SETS {
                let next = tokio::time::timeout(PATIENCE, came.recv()).await.context("a node gets its Pods")?;
                let (of, at) = next.context("the watch of Pods ended")?;
                if of == node {
                    times.push(at.saturating_duration_since(start).as_secs_f64());
                    own.push(at);
                }
            }
            loop {
                let next =
                    tokio::time::timeout(PATIENCE, freed.recv()).await.context("a node loses its first taint")?;
                let (of, at) = next.context("the watch of nodes ended")?;
                if of == node {
                    free.push(at.saturating_duration_since(start).as_secs_f64());
                    ours.extend(own.iter().map(|made| made.saturating_duration_since(at).as_secs_f64()));
                    break;
                }
            }
            let ready = count + SETS * joined.len();
            pods.until("the Pods of a node that joins to be ready", LONG, |c| c.ready >= ready).await?;
            tokio::time::sleep(BETWEEN).await;
        }
        watch.abort();
        watch_nodes.abort();
        ensure!(times.len() == SETS * JOINING, "{} Pods", times.len());
        self.rows.row(
            &format!("a node is created -> its Pods are created, {SETS} DaemonSets, from the request on"),
            "p99 200 ms",
            summary(&times),
        );
        self.rows.row("the same node is created -> its first taint is off, from the request on", "", summary(&free));
        // No Pod may be made before that.
        self.rows.row("its first taint is off -> its Pods are created", "", summary(&ours));
        Ok(())
    }
}

/// Every node says once that it lives, evenly over a time.
async fn beat(t: &Test, nodes: &[String], over: Duration) -> Result<()> {
    let api = &t.api("Node");
    let pause = over / u32::try_from(nodes.len())?;
    let start = tokio::time::Instant::now();
    let one = |(index, name): (usize, &String)| {
        let (name, at) = (name.clone(), start + pause * u32::try_from(index).unwrap_or_default());
        async move {
            tokio::time::sleep_until(at).await;
            let now = Timestamp::now().round(jiff::Unit::Second).unwrap_or_default().to_string();
            let ready = json!({ "type": "Ready", "lastHeartbeatTime": now });
            let patch = Patch::Strategic(json!({ "status": { "conditions": [ready] } }));
            api.patch_status(&name, &PatchParams::default(), &patch).await.map(drop)
        }
    };
    Ok(stream::iter(nodes.iter().enumerate()).map(one).buffer_unordered(IN_FLIGHT).try_collect::<()>().await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_images_of_a_node_take_some_20_kilobytes() {
        let size = images().to_string().len();
        assert!((15_000..25_000).contains(&size), "{size}");
    }

    #[test]
    fn a_pod_names_the_node_that_it_is_for() {
        assert_eq!(node_of(&bare_pod("a", 3, "n-7")), "n-7");
        assert_eq!(node_of(&json!({})), "");
    }
}
