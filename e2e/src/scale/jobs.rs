//! Jobs on every node, on a schedule and inside Pods, and one Secret in very many namespaces.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, pin_mut, stream};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::paced::{rank, store};
use super::{Census, IN_FLIGHT, LONG, Scale, bare_name, bare_pod, delete_bare, in_turn, template, warm};
use crate::kit::{Build, Look, PATIENCE, poll};
use crate::measure::{Usage, settle, writes};

const BROADCAST: &str = "BroadcastJob";
const CRON: &str = "AdvancedCronJob";
const EPHEMERAL: &str = "EphemeralJob";
const DISTRIBUTION: &str = "ResourceDistribution";
const FILLER: &str = "example.com/filler-";
const SCHEDULED_AT: &str = "/metadata/annotations/apps.kruise.io~1scheduled-at";
/// AdvancedCronJobs, and how many of their times are measured.
const CRONS: usize = 1000;
const SLOTS: usize = 3;
/// Pods of an EphemeralJob.
const EPHEMERAL_PODS: usize = 500;

/// A job whose Pods run on the played nodes and do not end.
fn broadcast(name: &str, parallelism: Value) -> Value {
    let mut template = template(name);
    template["spec"]["restartPolicy"] = "Never".into();
    json!({ "kind": BROADCAST, "apiVersion": "apps.kruise.io/v1beta1", "metadata": { "name": name },
        "spec": { "parallelism": parallelism, "template": template } })
}

/// The Pod that a client would write for another node to have the same as a Pod of a BroadcastJob.
fn like(sample: &Value, app: &str, index: usize, node: &str) -> Result<Value> {
    let of = sample.text("/spec/nodeName");
    ensure!(!of.is_empty(), "the sample has a node");
    let mut spec = sample["spec"].clone();
    spec.as_object_mut().context("a spec")?.remove("nodeName");
    let spec: Value = serde_json::from_str(&spec.to_string().replace(&format!("\"{of}\""), &format!("\"{node}\"")))?;
    let filler = |map: &Value| -> BTreeMap<String, Value> {
        let values = map.as_object().into_iter().flatten().map(|(_, value)| value.clone());
        values.enumerate().map(|(i, value)| (format!("{FILLER}{i}"), value)).collect()
    };
    let mut labels = json!(filler(&sample["metadata"]["labels"]));
    labels["app"] = app.into();
    let annotations = filler(&sample["metadata"]["annotations"]);
    Ok(json!({ "kind": "Pod", "spec": spec,
        "metadata": { "name": bare_name(app, index), "labels": labels, "annotations": annotations } }))
}

/// Its Jobs are suspended: they make no Pods and do not end.
fn cron(index: usize) -> Value {
    let job = json!({ "metadata": { "labels": { "bench": "cron", "of": cron_name(index) } }, "spec": { "suspend": true,
        "template": { "spec": { "restartPolicy": "Never",
            "containers": [{ "name": "main", "image": "registry.example/none:1" }] } } } });
    json!({ "kind": CRON, "apiVersion": "apps.kruise.io/v1beta1", "metadata": { "name": cron_name(index) },
        "spec": { "schedule": "* * * * *", "template": { "jobTemplate": job } } })
}

fn cron_name(index: usize) -> String {
    format!("cron-{index:04}")
}

/// A Job that a watch has shown: of whom, for which time of a schedule, if any, and when it was shown.
struct Made {
    of: String,
    slot: Option<Timestamp>,
    at: Timestamp,
}

impl Made {
    fn of(job: &Value, at: Timestamp) -> Self {
        Self { of: job.text("/metadata/labels/of").to_owned(), slot: job.text(SCHEDULED_AT).parse().ok(), at }
    }

    fn seconds_after(&self, moment: Timestamp) -> f64 {
        self.at.duration_since(moment).as_secs_f64()
    }
}

fn secret(data: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": { "name": "shared" },
        "stringData": { "token": data } })
}

/// The Secret that a client would write for another namespace to have the same as a copy.
fn same_secret(copy: &Value, namespace: &str) -> Value {
    let notes = copy["metadata"]["annotations"].as_object().into_iter().flatten();
    let notes: BTreeMap<String, &Value> =
        notes.enumerate().map(|(i, (_, note))| (format!("{FILLER}{i}"), note)).collect();
    json!({ "apiVersion": "v1", "kind": "Secret", "type": copy["type"], "data": copy["data"],
        "metadata": { "name": "bare", "namespace": namespace, "annotations": notes,
            "ownerReferences": copy["metadata"]["ownerReferences"] } })
}

impl Scale<'_> {
    pub(super) async fn jobs(&mut self, nodes: &[String]) -> Result<()> {
        self.pods_on_all_nodes(nodes).await?;
        self.containers_in_pods().await?;
        self.jobs_at_their_times().await?;
        if self.options.namespaces > 0 {
            self.copies_everywhere().await?;
        }
        Ok(())
    }

    async fn pods_on_all_nodes(&mut self, nodes: &[String]) -> Result<()> {
        let (count, t) = (nodes.len(), self.t.clone());
        t.create(broadcast("bcj-sample", json!(1))).await?;
        let sample = poll("a Pod to look at", PATIENCE, async || {
            let pods = t.list("Pod", "app=bcj-sample").await?;
            pods.into_iter().find(|pod| pod.has("/spec/nodeName")).context("there is none")
        })
        .await?;
        t.remove(BROADCAST, "bcj-sample").await?;
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..self.options.rounds {
            for ours in in_turn(&[false, true], round) {
                let (side, who) = if ours { ("ours", "BroadcastJob") } else { ("bare", "bare client, the same Pods") };
                let name = format!("bcj-{side}-{round}");
                let pods = Census::begin(&t, &name).await?;
                warm(&t).await?;
                let bare: Vec<Value> =
                    nodes.iter().enumerate().map(|(i, node)| like(&sample, &name, i, node)).collect::<Result<_>>()?;
                let work = async {
                    match ours {
                        true => drop(t.create(broadcast(&name, json!("100%"))).await?),
                        false => store(&t, bare.into_iter()).await?,
                    }
                    pods.until("Pods to be ready", LONG, |c| c.ready == count).await
                };
                let step = self.step(&format!("{who}, {count} nodes"), work).await?;
                times[usize::from(ours)].push(step.seconds);
                match ours {
                    true => t.remove(BROADCAST, &name).await?,
                    false => delete_bare(&t, (0..count).map(|index| bare_name(&name, index))).await?,
                }
                pods.until("Pods to be gone", LONG, |c| c.total == 0).await?;
            }
        }
        let what = format!("BroadcastJob on {count} nodes, parallelism 100 %");
        self.beside(&what, "1.2x", &times[1], ("the bare client", &times[0]));
        Ok(())
    }

    async fn containers_in_pods(&mut self) -> Result<()> {
        let (t, app) = (self.t.clone(), "ejob");
        let pods = Census::begin(&t, app).await?;
        store(&t, (0..EPHEMERAL_PODS).map(|index| bare_pod(app, index))).await?;
        pods.until("Pods to be ready", LONG, |c| c.ready == EPHEMERAL_PODS).await?;
        let job = json!({ "kind": EPHEMERAL, "metadata": { "name": app }, "spec": { "parallelism": EPHEMERAL_PODS,
            "selector": { "matchLabels": { "app": app } },
            "template": { "ephemeralContainers": [{ "name": "look", "image": "registry.example/look:1" }] } } });
        let work = async {
            t.create(job).await?;
            poll("all Pods to have the container", LONG, async || {
                let pods = t.list("Pod", &format!("app={app}")).await?;
                let with = pods.iter().filter(|pod| pod.array("/spec/ephemeralContainers").len() == 1).count();
                ensure!(with == EPHEMERAL_PODS, "{with} have it");
                Ok(Instant::now())
            })
            .await
        };
        let step = self.step(&format!("EphemeralJob, {EPHEMERAL_PODS} Pods"), work).await?;
        let written = writes(self.paths, step.span)?;
        for (what, n) in &written {
            println!("  {n:>6}  {what}");
        }
        let of_pods: usize = written.iter().filter(|(what, _)| what.contains("pods")).map(|(_, n)| n).sum();
        let value = format!("{:.2}, in {:.1} s", of_pods as f64 / EPHEMERAL_PODS as f64, step.seconds);
        self.rows.row(&format!("EphemeralJob, {EPHEMERAL_PODS} Pods: writes of each Pod"), "1", value);
        t.remove(EPHEMERAL, app).await?;
        delete_bare(&t, (0..EPHEMERAL_PODS).map(|index| bare_name(app, index))).await?;
        pods.until("Pods to be gone", LONG, |c| c.total == 0).await.map(drop)
    }

    /// The Jobs of one time, made by the bare client: seconds from the first request to each Job in a watch.
    async fn bare_jobs(&self, came: &mut mpsc::UnboundedReceiver<Made>) -> Result<Vec<f64>> {
        let t = &self.t;
        let name = |index: usize| format!("bare-{}", cron_name(index));
        settle().await;
        let begun = Timestamp::now();
        let make = |index: usize| {
            let job = cron(index)["spec"]["template"]["jobTemplate"].clone().with("/kind", "Job");
            let job = job.with("/metadata/name", name(index)).with("/metadata/annotations", json!({ "filler": begun }));
            async move { t.create(job).await.map(drop) }
        };
        stream::iter(0..CRONS).map(make).buffer_unordered(IN_FLIGHT).try_collect::<()>().await?;
        let mut times = Vec::new();
        while times.len() < CRONS {
            let made =
                tokio::time::timeout(PATIENCE, came.recv()).await.context("a Job that the watch does not show")?;
            let made = made.context("the watch of Jobs ended")?;
            times.extend(made.slot.is_none().then(|| made.seconds_after(begun)));
        }
        let remove = |index: usize| async move { t.remove("Job", &name(index)).await };
        stream::iter(0..CRONS).map(remove).buffer_unordered(IN_FLIGHT).try_collect::<()>().await?;
        Ok(times)
    }

    /// From the time of a schedule to its Job in a watch, beside Jobs that the bare client makes at once.
    async fn jobs_at_their_times(&mut self) -> Result<()> {
        let t = self.t.clone();
        let (send, mut came) = mpsc::unbounded_channel();
        let stream = watcher::watcher(t.api("Job"), watcher::Config::default().labels("bench=cron"));
        let watch = tokio::spawn(async move {
            pin_mut!(stream);
            let mut seen = HashSet::new();
            while let Some(event) = stream.next().await {
                let Ok(Event::Apply(job)) = event else { continue };
                let now = Timestamp::now();
                let made = Made::of(&serde_json::to_value(&job).unwrap_or_default(), now);
                if seen.insert(job.metadata.uid) && send.send(made).is_err() {
                    return;
                }
            }
        });
        let mut bare = self.bare_jobs(&mut came).await?;
        settle().await;
        store(&t, (0..CRONS).map(cron)).await?;
        let manager = self.manager().await?.1;
        let (used, asked) = (Usage::of(manager)?.cpu, Timestamp::now());
        // Those that were created within a minute did not all know its time.
        let until = asked + Duration::from_secs(60 * u64::try_from(SLOTS)? + 30);
        let mut found: BTreeMap<(String, Timestamp), usize> = BTreeMap::new();
        let mut late = Vec::new();
        while let Ok(left) = Duration::try_from(until.duration_since(Timestamp::now())) {
            let Ok(made) = tokio::time::timeout(left, came.recv()).await else { break };
            let made = made.context("the watch of Jobs ended")?;
            if let Some(slot) = made.slot.filter(|slot| *slot > asked && *slot < until - Duration::from_secs(20)) {
                late.push(made.seconds_after(slot));
                *found.entry((made.of, slot)).or_default() += 1;
            }
        }
        let used = Usage::of(manager)?.cpu - used;
        let remove = |index: usize| {
            let t = &t;
            async move { t.remove(CRON, &cron_name(index)).await }
        };
        stream::iter(0..CRONS).map(remove).buffer_unordered(IN_FLIGHT).try_collect::<()>().await?;
        poll("Jobs to be gone", LONG, async || {
            let left = t.list("Job", "bench=cron").await?.len();
            ensure!(left == 0, "{left} are there");
            Ok(())
        })
        .await?;
        bare.extend(self.bare_jobs(&mut came).await?);
        watch.abort();
        let slots: BTreeSet<Timestamp> = found.keys().map(|(_, slot)| *slot).collect();
        ensure!(slots.len() >= SLOTS - 1, "{} times were seen", slots.len());
        let (wanted, twice) = (slots.len() * CRONS, found.values().filter(|n| **n > 1).count());
        let what = format!("{CRONS} AdvancedCronJobs every minute");
        let text = |times: &[f64]| {
            let p = |share: f64| rank(times, share) * 1e3;
            format!("p50 {:.0} ms, p99 {:.0} ms, n={}", p(0.5), p(0.99), times.len())
        };
        self.rows.row(
            &format!("{CRONS} Jobs at once by the bare client: first request -> in a watch"),
            "",
            text(&bare),
        );
        self.rows.row(&format!("{what}: slot -> Job in a watch"), "p99 1000 ms", text(&late));
        let (p50, p99) = (rank(&late, 0.5) / rank(&bare, 0.5), rank(&late, 0.99) / rank(&bare, 0.99));
        self.rows.row(&format!("{what}: beside the bare client"), "", format!("p50 {p50:.2}x, p99 {p99:.2}x"));
        self.rows.row(&format!("{what}: missed / twice"), "0 / 0", format!("{} / {twice}", wanted - found.len()));
        let value = format!("{:.2} ms", used * 1e3 / late.len().max(1) as f64);
        self.rows.row(&format!("{what}: processor time of the manager for each Job"), "", value);
        Ok(())
    }

    /// One Secret in very many namespaces, and a change of it, beside bare writes.
    async fn copies_everywhere(&mut self) -> Result<()> {
        let (t, count) = (self.t.clone(), self.options.namespaces);
        t.component("resource-distribution", ("delete", "secrets"), true).await?;
        t.set_gates("ResourceDistributionGate=true").await?;
        let namespace = |index: usize| format!("copies-{index:05}");
        let all = (0..count).map(
            |i| json!({ "kind": "Namespace", "metadata": { "name": namespace(i), "labels": { "bench": "copies" } } }),
        );
        store(&t, all).await?;
        println!("{count} namespaces");
        let patience = LONG + Duration::from_secs(u64::try_from(count)? / 20);
        poll("every namespace to have what the cluster puts into it", patience, async || {
            for (kind, name) in [("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt")] {
                let named = format!("metadata.name={name}");
                let found = t.kubectl(&["get", kind, "-A", "--field-selector", &named, "-o", "name"]).await?;
                ensure!(found.lines().count() >= count, "{} {kind}", found.lines().count());
            }
            Ok(())
        })
        .await?;
        let before = self.memory_of_a_new_manager().await?;
        let selector = json!({ "namespaceLabelSelector": { "matchLabels": { "bench": "copies" } } });
        let object = json!({ "kind": DISTRIBUTION, "metadata": { "name": "shared" },
            "spec": { "resource": secret("one"), "targets": selector } });
        let has_all = |o: &Value| {
            o.int("/status/observedGeneration") == o.int("/metadata/generation")
                && usize::try_from(o.int("/status/succeeded")).ok() == Some(count)
        };
        let all_there = async || {
            t.wait_for(DISTRIBUTION, "shared", "to be everywhere", patience, has_all).await.map(|_| Instant::now())
        };
        let work = async {
            t.create(object).await?;
            all_there().await
        };
        let ours = self.step(&format!("ResourceDistribution, {count} namespaces"), work).await?.seconds;
        let used = Usage::of(self.manager().await?.1)?.memory;
        let work = async {
            t.patch(DISTRIBUTION, "shared", json!({ "spec": { "resource": secret("two") } })).await?;
            all_there().await
        };
        let changed = self.step(&format!("ResourceDistribution, {count} changes"), work).await?.seconds;
        let sample = serde_json::to_value(t.api_in(&namespace(0), "Secret").get("shared").await?)?;
        let bare = |index: usize| {
            let (t, object) = (&t, same_secret(&sample, &namespace(index)));
            async move { t.create(object).await.map(drop) }
        };
        let work = async {
            stream::iter(0..count).map(bare).buffer_unordered(IN_FLIGHT).try_collect::<()>().await?;
            Ok(Instant::now())
        };
        let bare_made = self.step(&format!("bare client, {count} Secrets"), work).await?.seconds;
        let note = "0".repeat(64);
        let change = Patch::Merge(
            json!({ "metadata": { "annotations": { format!("{FILLER}0"): note } }, "stringData": { "token": "three" } }),
        );
        let change = |index: usize| {
            let (api, patch) = (t.api_in(&namespace(index), "Secret"), &change);
            async move { api.patch("bare", &PatchParams::default(), patch).await.map(drop).map_err(anyhow::Error::from) }
        };
        let work = async {
            stream::iter(0..count).map(change).buffer_unordered(IN_FLIGHT).try_collect::<()>().await?;
            Ok(Instant::now())
        };
        let bare_changed = self.step(&format!("bare client, {count} changes"), work).await?.seconds;
        let what = format!("one Secret to {count} namespaces");
        self.beside(&what, "1.2x", &[ours], ("bare writes of the same", &[bare_made]));
        self.beside(&format!("{what}, a change"), "1.2x", &[changed], ("bare writes of the same", &[bare_changed]));
        let value = format!("{:+.1} MB", used - before);
        self.rows.row(&format!("{what}: manager memory, besides that of a new manager"), "+15 MB", value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_like_a_copy_has_all_that_the_copy_has() {
        let copy = json!({ "kind": "Secret", "type": "Opaque", "data": { "token": "b25l" }, "metadata": { "name": "shared",
            "namespace": "a", "uid": "u", "annotations": { "of": "shared", "hash": "1" },
            "ownerReferences": [{ "uid": "d" }] } });
        let same = same_secret(&copy, "b");
        assert_eq!(
            same["metadata"],
            json!({ "name": "bare", "namespace": "b", "ownerReferences": [{ "uid": "d" }],
                "annotations": { "example.com/filler-0": "1", "example.com/filler-1": "shared" } })
        );
        assert_eq!((&same["data"], &same["type"]), (&copy["data"], &copy["type"]));
    }

    #[test]
    fn a_pod_like_another_is_for_its_own_node() {
        let sample = json!({ "metadata": { "labels": { "broadcastjob-name": "x" }, "annotations": null },
            "spec": { "nodeName": "scale-0001", "containers": [],
                "affinity": { "nodeAffinity": { "values": ["scale-0001"] } } } });
        let pod = like(&sample, "b", 7, "scale-0007").unwrap();
        assert_eq!(
            pod["spec"],
            json!({ "containers": [], "affinity": { "nodeAffinity": { "values": ["scale-0007"] } } })
        );
        assert_eq!(pod["metadata"]["labels"], json!({ "example.com/filler-0": "x", "app": "b" }));
        assert!(like(&json!({ "spec": {} }), "b", 7, "n").is_err());
    }
}
