//! SidecarSet: what injection adds to the creation of a Pod, updates in place beside bare writes, and very many sets.
//!
//! Pods that are only created have a scheduling gate, so that neither the scheduler nor a kubelet has work with them. The
//! webhook that answers at once is the same server with a handler that finds nothing to do, and the Pods that it is asked
//! about have the containers already that the others get.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use super::at_once::{answer_at_once, metrics, own_time, tried};
use super::paced::{at_a_pace, rank, store};
use super::{Census, IMAGES, IN_FLIGHT, LONG, Scale, delete_bare, in_turn, max_unavailable, on_played_nodes, warm};
use crate::kit::{Build, Look, PATIENCE, Test, condition, poll};
use crate::measure::{Usage, megabytes, processes, settle, writes};
use crate::paths::SYSTEM;

const SET: &str = "SidecarSet";
const INJECTED: &str = "/metadata/annotations/kruise.io~1sidecarset-injected-list";
/// SidecarSets of the namespace in which Pods are created, and those that match each Pod.
const SETS: usize = 1000;
const MATCHING: usize = 10;
/// Pods a second, and how many of each side at that pace.
const PACES: [(u32, usize); 2] = [(30, 900), (90, 1800)];
/// Pods of one side before it is the other's turn.
const TURN: usize = 150;
/// SidecarSets of one namespace, of the very many.
const EACH: usize = 10;
/// From the start of a role to the last SidecarSet that it has read.
const STARTING: Duration = Duration::from_secs(600);

/// A SidecarSet of a namespace for Pods with the label app=APP.
fn set(namespace: &str, name: &str, app: &str, container: &str) -> Value {
    json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": SET, "metadata": { "name": name }, "spec": {
        "selector": { "matchLabels": { "app": app } },
        "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } },
        "containers": [{ "name": container, "image": IMAGES[0], "podInjectPolicy": "BeforeAppContainer" }],
        "updateStrategy": { "type": "RollingUpdate", "maxUnavailable": "20%" } } })
}

/// A Pod of an application, without sidecars.
fn plain(app: &str, name: &str) -> Value {
    let spec = json!({ "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
        "containers": [{ "name": "main", "image": "registry.example/main:v1" }] });
    json!({ "kind": "Pod", "metadata": { "name": name, "labels": { "app": app } }, "spec": on_played_nodes(spec) })
}

/// The same, for nobody to run.
fn held(app: &str, name: &str) -> Value {
    plain(app, name).with("/spec/schedulingGates", json!([{ "name": "example.com/never" }]))
}

/// Waits until new Pods get so many SidecarSets; a Pod as it is then.
async fn injected(t: &Test, pod: Value, count: usize) -> Result<Value> {
    poll("new Pods to get their sidecars", PATIENCE * 2, async || {
        let tried = tried(t, pod.clone()).await?;
        let sets = tried.text(INJECTED).split(',').filter(|set| !set.is_empty()).count();
        ensure!(sets == count, "{sets} of {count}");
        Ok(tried)
    })
    .await
}

/// The Pod that an injected one would be if its author had written it so: of another application, and with annotations as
/// large that say nothing to anybody.
fn written_out(injected: &Value, app: &str, name: &str) -> Value {
    let annotations = injected.pointer("/metadata/annotations").and_then(Value::as_object).cloned().unwrap_or_default();
    let annotations: Map<String, Value> = annotations
        .into_iter()
        .enumerate()
        .map(|(i, (_, value))| (format!("example.com/note-{i}-of-a-length-like-that-of-ours"), value))
        .collect();
    json!({ "kind": "Pod", "metadata": { "name": name, "labels": { "app": app }, "annotations": annotations },
        "spec": injected["spec"] })
}

impl Scale<'_> {
    pub(super) async fn sidecar_sets(&mut self) -> Result<()> {
        self.sidecars_change().await?;
        self.sidecars_come().await?;
        if self.options.sidecar_sets > 0 {
            self.very_many_sidecar_sets().await?;
        }
        Ok(())
    }

    /// Updates of a sidecar in place, beside a bare client that writes each Pod once.
    async fn sidecars_change(&mut self) -> Result<()> {
        let (t, count) = (self.t.clone(), self.options.pods);
        let (at_once, mut most) = (max_unavailable(count), 0);
        let (mut times, mut written) = ([Vec::new(), Vec::new()], Vec::new());
        for round in 0..self.options.rounds {
            for ours in in_turn(&[false, true], round) {
                let who = if ours { "SidecarSet" } else { "bare client" };
                let name = format!("scs-{}-{round}", if ours { "ours" } else { "bare" });
                let own = format!("{}-{name}", t.namespace);
                // The bare side's Pods are copies of Pods that a SidecarSet of its own would make.
                t.create(set(&t.namespace, &own, &name, "agent")).await?;
                let made = injected(&t, plain(&name, "try"), 1).await?;
                if !ours {
                    t.remove(SET, &own).await?;
                    t.gone(SET, &own).await?;
                    injected(&t, plain(&name, "try"), 0).await?;
                }
                let pod = |index: usize| match ours {
                    true => plain(&name, &pod_name(&name, index)),
                    false => written_out(&made, &name, &pod_name(&name, index)),
                };
                let pods = Census::begin(&t, &name).await?;
                warm(&t).await?;
                let make = |index: usize| {
                    let (t, pod) = (&t, pod(index));
                    async move { t.create(pod).await.map(drop) }
                };
                stream::iter(0..count).map(make).buffer_unordered(IN_FLIGHT).try_collect::<()>().await?;
                pods.until("Pods to be ready", LONG, |c| c.ready == count).await?;
                if ours {
                    let all = |set: &Value| set.int("/status/matchedPods") == i64::try_from(count).unwrap_or_default();
                    t.wait_for(SET, &own, "to count its Pods", PATIENCE, all).await?;
                }
                pods.begin_lowest();
                let what = format!("{who}, {count} sidecars updated in place");
                let step = if ours {
                    let containers =
                        json!([{ "name": "agent", "image": IMAGES[1], "podInjectPolicy": "BeforeAppContainer" }]);
                    let work = async {
                        t.patch(SET, &own, json!({ "spec": { "containers": containers } })).await?;
                        pods.until("sidecars to be updated", LONG, |c| c.updated == count).await
                    };
                    self.step(&what, work).await?
                } else {
                    self.step(&what, change_bare(&t, &name, &pods, count, at_once)).await?
                };
                times[usize::from(ours)].push(step.seconds);
                if ours {
                    most = most.max(count.saturating_sub(pods.lowest()));
                    let calls = writes(self.paths, step.span)?;
                    written.push(calls.values().sum::<usize>() as f64 / count as f64);
                    for (what, n) in &calls {
                        println!("  {n:>6}  {what}");
                    }
                    t.remove(SET, &own).await?;
                }
                delete_bare(&t, (0..count).map(|index| pod_name(&name, index))).await?;
                pods.until("Pods to be gone", LONG, |c| c.total == 0).await?;
            }
        }
        let what = format!("{count} sidecars updated in place, maxUnavailable 20 %");
        self.beside(&what, "1.2x", &times[1], ("bare writes", &times[0]));
        self.rows.row(&format!("{what}: most that were not ready"), &at_once.to_string(), most.to_string());
        if let Some(text) = super::of_rounds(&written, |value| format!("{value:.2}"), "") {
            self.rows.row("API writes per updated Pod, besides Events", "2", text);
        }
        Ok(())
    }

    /// Creations of Pods that ten of a thousand SidecarSets match, beside a webhook that answers at once.
    async fn sidecars_come(&mut self) -> Result<()> {
        let (ours, free) = (Test::new("scs-some").await?, Test::new("scs-none").await?);
        let sets = (0..SETS).map(|index| {
            let app = if index < MATCHING { "web".to_owned() } else { format!("other-{index:04}") };
            set(&ours.namespace, &format!("{}-{index:04}", ours.namespace), &app, &format!("agent-{index:04}"))
        });
        store(&self.t, sets).await?;
        let injected = injected(&ours, held("web", "try"), MATCHING).await?;
        ensure!(injected.array("/spec/containers").len() == MATCHING + 1, "{injected}");
        answer_at_once(&free, held("web", "try")).await?;
        // A thousand new SidecarSets have a revision and a status written for each, which is not what is measured.
        self.until_quiet().await?;
        for (pace, each) in PACES {
            let (mut with, mut without) = (Vec::new(), Vec::new());
            let manager = self.manager().await?.1;
            let (used, own) = (Usage::of(manager)?.cpu, own_time(&self.t).await?);
            let mut left = each;
            let mut turn = 0;
            while left > 0 {
                let count = left.min(TURN);
                let mut sides = [true, false];
                if turn % 2 == 1 {
                    sides.reverse();
                }
                for is_ours in sides {
                    let name = |i: usize| format!("p-{pace}-{turn:02}-{i:03}");
                    let (t, times) = if is_ours { (&ours, &mut with) } else { (&free, &mut without) };
                    let pods = (0..count).map(|i| match is_ours {
                        true => held("web", &name(i)),
                        false => written_out(&injected, "web", &name(i)),
                    });
                    warm(t).await?;
                    let what = if is_ours { "under SidecarSets" } else { "without SidecarSets" };
                    times.extend(at_a_pace(t, pods.collect(), pace, what).await?);
                }
                left -= count;
                turn += 1;
            }
            let made = ours.list("Pod", "app=web").await?;
            let lacking = made.iter().filter(|pod| pod.array("/spec/containers").len() <= MATCHING).count();
            ensure!(lacking == 0, "{lacking} of {} Pods have no sidecars", made.len());
            let text = |times: &[f64]| {
                let at = |share| rank(times, share) * 1e3;
                format!("p50 {:.1} ms, p99 {:.1} ms, n={}", at(0.5), at(0.99), times.len())
            };
            let what = format!("Pod creation, {MATCHING} of {SETS} SidecarSets match, {pace} a second");
            self.rows.row(&format!("{what}: a webhook that answers at once"), "", text(&without));
            self.rows.row(&format!("{what}: SidecarSets"), "", text(&with));
            let added = |share: f64| (rank(&with, share) - rank(&without, share)) * 1e3;
            let value = format!("p50 {:.1} ms, p99 {:.1} ms", added(0.5), added(0.99));
            self.rows.row(&format!("{what}: added"), "p50 3 ms, p99 10 ms", value);
            let now = own_time(&self.t).await?;
            let handler = (now.0 - own.0) / (now.1 - own.1).max(1.0) * 1e3;
            self.rows.row(&format!("{what}: in the handler, on average"), "", format!("{handler:.2} ms"));
            let manager = (Usage::of(manager)?.cpu - used) / with.len().max(1) as f64 * 1e3;
            let what = format!("{what}: processor time of the manager for each Pod");
            self.rows.row(&what, "", format!("{manager:.2} ms"));
            for t in [&ours, &free] {
                let at_once = DeleteParams::default().grace_period(0);
                t.api("Pod").delete_collection(&at_once, &ListParams::default()).await?;
                settle().await;
            }
        }
        self.t.remove("MutatingWebhookConfiguration", &free.namespace).await?;
        // One SidecarSet of these namespaces less for what follows.
        for index in 0..SETS {
            self.t.remove(SET, &format!("{}-{index:04}", ours.namespace)).await?;
        }
        Ok(())
    }

    /// Very many SidecarSets, ten in each namespace: from a start to ready, and memory, of each role.
    async fn very_many_sidecar_sets(&mut self) -> Result<()> {
        let (t, count) = (self.t.clone(), self.options.sidecar_sets);
        let namespaces = count.div_ceil(EACH);
        let namespace = |index: usize| format!("tenant-{:05}", index / EACH);
        let all = (0..namespaces).map(|i| json!({ "kind": "Namespace", "metadata": { "name": namespace(i * EACH) } }));
        store(&t, all).await?;
        let begun = Instant::now();
        let sets = (0..count).map(|index| {
            let namespace = namespace(index);
            set(&namespace, &format!("set-{index:05}"), &format!("app-{}", index % EACH), "agent")
        });
        store(&t, sets).await?;
        println!("{count} SidecarSets created in {:.0} s", begun.elapsed().as_secs_f64());
        self.until_quiet().await?;
        let what = format!("{count} SidecarSets in {namespaces} namespaces");
        for deployment in ["kruise-webhook", "kruise-controller-manager"] {
            let replicas = t.node().scale(deployment, 0).await?;
            let start = Instant::now();
            scaled(&t, deployment, replicas).await?;
            let ready = start.elapsed().as_secs_f64();
            self.rows.row(
                &format!("{what}: {deployment}, all replicas ready after a start"),
                "60 s",
                format!("{ready:.1} s"),
            );
        }
        let start = Instant::now();
        let daemon = t.node().daemon().await?.text("/metadata/name").to_owned();
        t.api_in(SYSTEM, "Pod").delete(&daemon, &DeleteParams::default()).await?;
        poll("another daemon to be ready", PATIENCE, async || {
            let pod = t.node().daemon().await?;
            ensure!(pod.text("/metadata/name") != daemon && condition(&pod, "Ready") == "True", "it is not");
            Ok(())
        })
        .await?;
        let ready = start.elapsed().as_secs_f64();
        self.rows.row(
            &format!("{what}: daemon, from the deletion of the old one to ready"),
            "60 s",
            format!("{ready:.1} s"),
        );
        let start = Instant::now();
        self.until_quiet().await?;
        let quiet = start.elapsed().saturating_sub(QUIET).as_secs_f64();
        self.rows.row(&format!("{what}: manager, ready -> every one reconciled"), "", format!("{quiet:.0} s"));
        settle().await;
        let roles: BTreeSet<String> = processes(&t).await?.into_iter().map(|(role, _)| role).collect();
        for role in roles {
            let of_role = processes(&t).await?.into_iter().filter(|(name, _)| *name == role);
            let used = of_role.map(|(_, process)| Usage::of(process)).collect::<Result<Vec<Usage>>>()?;
            let most = |of: fn(&Usage) -> f64| used.iter().map(of).fold(0.0, f64::max);
            let value = format!("{} (peak {})", megabytes(most(|u| u.memory)), megabytes(most(|u| u.peak)));
            self.rows.row(&format!("{what}: {role}, memory of the largest replica"), "350 MB", value);
        }
        Ok(())
    }

    /// Waits until the manager has had nothing to do with SidecarSets for a while.
    async fn until_quiet(&self) -> Result<()> {
        let (begun, mut last, mut since) = (Instant::now(), None, Instant::now());
        while since.elapsed() < QUIET {
            ensure!(begun.elapsed() < STARTING, "after {} s the manager is still busy", STARTING.as_secs());
            // For a moment it may not answer.
            if let Ok(count) = reconciles(&self.t).await
                && last.replace(count) != Some(count)
            {
                since = Instant::now();
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        if last.is_none() { bail!("no manager answers") } else { Ok(()) }
    }
}

/// How long nothing was reconciled when everything is done.
const QUIET: Duration = Duration::from_secs(10);

fn pod_name(app: &str, index: usize) -> String {
    format!("{app}-{index:05}")
}

/// Reconciles of SidecarSets that all managers have counted since their starts.
async fn reconciles(t: &Test) -> Result<usize> {
    let mut sum = 0;
    for pod in t.node().replicas("kruise-controller-manager").await? {
        sum += reconciles_in(&metrics(t, pod.text("/metadata/name")).await?);
    }
    Ok(sum)
}

fn reconciles_in(metrics: &str) -> usize {
    let lines = metrics.lines().filter(|line| {
        line.starts_with("controller_runtime_reconcile_total{") && line.contains("controller=\"sidecarset-controller\"")
    });
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as usize
}

/// Scales a Deployment of the installation up; with very many objects its Pods take longer than elsewhere.
async fn scaled(t: &Test, deployment: &str, replicas: u32) -> Result<()> {
    let api = t.api_in(SYSTEM, "Deployment");
    let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
    api.patch(deployment, &PatchParams::default(), &patch).await?;
    poll("all replicas to be ready", STARTING, async || {
        let ready = serde_json::to_value(api.get(deployment).await?)?.int("/status/readyReplicas");
        ensure!(ready == i64::from(replicas), "{ready} of {replicas}");
        Ok(())
    })
    .await
}

/// What an update writes: one patch of image and annotation for each Pod, for as many at a time as may be unavailable.
async fn change_bare(t: &Test, name: &str, pods: &Census, count: usize, at_once: usize) -> Result<Instant> {
    let state = json!({ "set": { "revision": "0123456789", "updateTimestamp": "2026-01-01T00:00:00Z",
        "lastContainerStatuses": { "agent": { "imageID": crate::player::image_id(IMAGES[0]) } } } });
    let patch = Patch::Strategic(json!({
        "metadata": { "annotations": { "example.com/sidecarset-inplace-update-state": state.to_string() } },
        "spec": { "containers": [{ "name": "agent", "image": IMAGES[1] }] } }));
    let (api, patch, params) = (&t.api("Pod"), &patch, &PatchParams::default());
    let requests = &Semaphore::new(IN_FLIGHT);
    let one = |index: usize| {
        let pod = pod_name(name, index);
        async move {
            let mut shown = pods.pod(&pod)?;
            let permit = requests.acquire().await?;
            api.patch(&pod, params, patch).await?;
            drop(permit);
            shown.wait_for(|s| s.ready && s.runs == IMAGES[1]).await?;
            anyhow::Ok(())
        }
    };
    stream::iter(0..count).map(one).buffer_unordered(at_once).try_collect::<()>().await?;
    pods.until("sidecars to be updated", LONG, |c| c.updated == count).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_an_injected_pod_has_its_containers_and_none_of_our_annotations() {
        let injected = json!({ "metadata": { "annotations": { "kruise.io/sidecarset-hash": "x", "kruise.io/y": "z" } },
            "spec": { "containers": [{ "name": "agent" }, { "name": "main" }] } });
        let copy = written_out(&injected, "web", "p");
        assert_eq!(copy["spec"], injected["spec"]);
        let annotations = copy["metadata"]["annotations"].as_object().unwrap();
        assert!(annotations.len() == 2 && annotations.keys().all(|key| !key.contains("kruise")), "{annotations:?}");
    }

    #[test]
    fn reconciles_are_read() {
        let metrics = "controller_runtime_reconcile_total{controller=\"sidecarset-controller\",result=\"success\"} 3\n\
            controller_runtime_reconcile_total{controller=\"cloneset-controller\",result=\"success\"} 7\n";
        assert_eq!(reconciles_in(metrics), 3);
    }
}
