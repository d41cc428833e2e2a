//! Advanced DaemonSet while its node is tainted and cordoned, which concerns every Pod of the cluster.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::cmd::{kubectl, kubectl_1_33};
use e2e::kit::{Build, Look, PATIENCE, Test, app, condition, in_namespace, poll, restoring, workload};
use e2e::paths::NODE;
use kube::api::{Api, EvictParams};
use serde_json::{Value, json};

use crate::{Frozen, LONG, MANAGER};

const DAEMON_SET: &str = "AdvancedDaemonSet";

async fn counted(t: &Test, what: &str, fits: impl Fn(&Value) -> bool) -> Result<Value> {
    t.wait_for(DAEMON_SET, "agent", what, PATIENCE, fits).await
}

/// Waits until the set has another Pod than before, and until the status says so: it may still be the one of before.
async fn is_back(t: &Test, before: &Value) -> Result<()> {
    poll("another Pod that is Ready", PATIENCE, async || {
        let now = pod(t).await?;
        let is_another = now.text("/metadata/uid") != before.text("/metadata/uid");
        ensure!(is_another && condition(&now, "Ready") == "True", "{}", now["metadata"]["name"]);
        Ok(())
    })
    .await?;
    let fits = |o: &Value| o.int("/status/numberAvailable") == 1 && condition(o, "Ready") == "True";
    counted(t, "to run on the cordoned node again", fits).await.map(drop)
}

async fn pod(t: &Test) -> Result<Value> {
    let pods = t.list("Pod", "app=agent").await?;
    let mut live = pods.into_iter().filter(|pod| !pod.has("/metadata/deletionTimestamp"));
    live.next().context("its Pod")
}

#[tokio::test]
async fn a_daemon_set_leaves_its_pod_on_a_tainted_node_and_makes_an_evicted_one_anew() -> Result<()> {
    in_namespace("ads-taint", async |t| {
        let first = t.list("Node", "kubernetes.io/hostname").await?;
        let node = first.first().context("a node")?.text("/metadata/name").to_owned();
        let set = workload("DaemonSet", "agent", 0, vec![app("main")])
            .with("/apiVersion", "apps.kruise.io/v1beta1")
            .with("/spec/template/spec/nodeSelector", serde_json::json!({ "kubernetes.io/hostname": node }));
        t.create(set).await?;
        counted(t, "to run", |o| o.int("/status/numberAvailable") == 1).await?;
        let before = pod(t).await?;

        t.kubectl(&["taint", "node", &node, "e2e/ads=yes:NoSchedule"]).await?;
        let tainted = async {
            counted(t, "to see the taint", |o| o.int("/status/numberMisscheduled") == 1).await?;
            assert_eq!(pod(t).await?.text("/metadata/uid"), before.text("/metadata/uid"), "it stays");
            Ok(())
        };
        restoring(tainted, async { t.kubectl(&["taint", "node", &node, "e2e/ads-"]).await.map(drop) }).await?;
        counted(t, "to see that the taint is gone", |o| o.int("/status/desiredNumberScheduled") == 1).await?;

        t.kubectl(&["cordon", &node]).await?;
        let cordoned = async {
            t.kubectl(&["delete", "pod", before.text("/metadata/name")]).await?;
            is_back(t, &before).await
        };
        restoring(cordoned, async { t.kubectl(&["uncordon", &node]).await.map(drop) }).await
    })
    .await
}

/// A set on one node alone, whose annotations are these.
async fn on_one_node(t: &Test, annotations: Value) -> Result<Value> {
    let set = workload("DaemonSet", "agent", 0, vec![app("main")])
        .with("/apiVersion", "apps.kruise.io/v1beta1")
        .with("/metadata/annotations", annotations)
        .with("/spec/template/spec/nodeSelector", json!({ "kubernetes.io/hostname": NODE }));
    t.create(set).await?;
    counted(t, "to run", |o| o.int("/status/numberAvailable") == 1).await?;
    pod(t).await
}

/// What each kubectl does with a Pod of ours is in its own code: up to 1.33 it asks for a DaemonSet of apps/v1 whatever the
/// group of the owner is, and refuses when there is none; since 1.34 it looks at the group, and evicts.
#[tokio::test]
async fn kubectl_drain_evicts_and_the_pod_is_back_at_once() -> Result<()> {
    in_namespace("ads-drain", async |t| {
        let before = on_one_node(t, json!({})).await?;
        let drain = ["drain", NODE, "--ignore-daemonsets", "--pod-selector", "app=agent", "--timeout=60s"];
        let drained = async {
            let refused = t.run(kubectl_1_33(&t.paths, drain)).await?;
            ensure!(
                !refused.ok && refused.stderr.contains(r#"daemonsets.apps "agent" not found"#),
                "{}",
                refused.stderr
            );
            ensure!(pod(t).await?.text("/metadata/uid") == before.text("/metadata/uid"), "1.33 evicts nothing");
            let others = [
                &drain[..3],
                &["--pod-selector", "app!=agent", "--dry-run=server", "--force", "--delete-emptydir-data"],
            ];
            let others = t.run(kubectl_1_33(&t.paths, others.concat())).await?;
            ensure!(others.ok && !others.stdout.contains("agent-"), "the selector of the guide: {}", others.stderr);
            let drained = t.run(kubectl(&t.paths, drain)).await?;
            ensure!(drained.ok, "{}{}", drained.stdout, drained.stderr);
            ensure!(drained.stdout.contains("evicted"), "{}", drained.stdout);
            is_back(t, &before).await?;
            let rest = [
                "drain",
                NODE,
                "--ignore-daemonsets",
                "--pod-selector",
                "app!=agent",
                "--dry-run=server",
                "--force",
                "--delete-emptydir-data",
            ];
            let rest = t.run(kubectl(&t.paths, rest)).await?;
            ensure!(!rest.stdout.contains("agent-"), "the selector of the guide leaves it out: {}", rest.stdout);
            Ok(())
        };
        restoring(drained, async { t.kubectl(&["uncordon", NODE]).await.map(drop) }).await
    })
    .await
}

#[tokio::test]
async fn a_set_stays_away_from_a_cordoned_node_although_no_manager_was_there_at_the_eviction() -> Result<()> {
    in_namespace("ads-away", async |t| {
        // A node that is younger than two minutes gets its Pod anyway.
        poll("the node to be older", Duration::from_secs(150), async || {
            let made: jiff::Timestamp = t.get("Node", NODE).await?.text("/metadata/creationTimestamp").parse()?;
            let age = jiff::Timestamp::now().duration_since(made).as_secs();
            ensure!(age > 130, "its age is {age} s");
            Ok(())
        })
        .await?;
        let before = on_one_node(t, json!({ "kruise.rs/stay-away-after-eviction": "true" })).await?;
        let away = async {
            t.kubectl(&["cordon", NODE]).await?;
            // Stopped during the eviction, then killed: nothing that they saw is remembered. (No new Pod of a manager could
            // start on the cordoned node.)
            let mut managers = Vec::new();
            for manager in t.node().replicas(MANAGER).await? {
                managers.push(Frozen::new(t.node().process_of(&manager).await?));
            }
            let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(t.client.clone(), &t.namespace);
            pods.evict(before.text("/metadata/name"), &EvictParams::default()).await?;
            t.gone("Pod", before.text("/metadata/name")).await?;
            managers.iter().for_each(|manager| manager.0.signal("KILL"));
            drop(managers);
            let is_away = |o: &Value| o.int("/status/desiredNumberScheduled") == 0 && condition(o, "Ready") == "True";
            t.wait_for(DAEMON_SET, "agent", "to stay away", LONG, is_away).await?;
            ensure!(t.list("Pod", "app=agent").await?.is_empty(), "no Pod");
            Ok(())
        };
        restoring(away, async { t.kubectl(&["uncordon", NODE]).await.map(drop) }).await?;
        counted(t, "to be back", |o| o.int("/status/numberAvailable") == 1).await.map(drop)
    })
    .await
}
