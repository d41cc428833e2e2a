//! Sidecars while no webhook answers: Pods are created without them, but for namespaces that say that they must not.

use anyhow::{Result, ensure};
use e2e::images::remote;
use e2e::kit::{Build, Look, PATIENCE, Test, app, condition, in_namespace, pod, poll, restoring, workload};
use serde_json::{Value, json};

use crate::WEBHOOK;
use crate::away::Member;

async fn without_the_webhook(t: &Test, away: &Member<'_>) -> Result<()> {
    for name in ["changed", "doomed"] {
        t.start(pod(name, vec![app("main")])).await?;
    }
    let label = json!({ "metadata": { "labels": { "kruise.rs/sidecars": "required" } } });
    t.patch("Namespace", &t.namespace, label).await?;
    let free = Test::new("sidecars-free").await?;
    away.begin(t).await?;
    let (code, message) = t.refused(pod("refused", vec![app("main")])).await?;
    ensure!(code == 500 && message.contains("mpod-required.kb.io"), "{code} {message}");
    // Nothing but the creation of Pods, and nothing elsewhere.
    free.start(pod("plain", vec![app("main")])).await?;
    t.patch("Pod", "changed", json!({ "metadata": { "labels": { "changed": "yes" } } })).await?;
    t.remove("Pod", "doomed").await?;
    t.gone("Pod", "doomed").await?;
    free.remove("Namespace", &free.namespace).await
}

pub(crate) async fn where_sidecars_are_required_no_pod_is_created_without_the_webhook(away: Member<'_>) -> Result<()> {
    in_namespace("sidecars-required", async |t| {
        restoring(without_the_webhook(t, &away), away.end(t)).await?;
        let born = t.start(pod("born", vec![app("main")])).await?;
        assert_eq!(born.array("/spec/containers").len(), 1);
        Ok(())
    })
    .await
}

const SET: &str = "SidecarSet";

fn repairing_set(t: &Test) -> Value {
    json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": SET,
        "metadata": { "name": format!("{}-agent", t.namespace), "annotations": { "kruise.rs/repair-uninjected": "evict" } },
        "spec": { "selector": { "matchLabels": { "team": "shop" } },
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": t.namespace } },
            "containers": [{ "name": "agent", "image": remote("pause"), "imagePullPolicy": "IfNotPresent" }] } })
}

/// A Deployment and a Pod of nobody, made while no webhook answers; the Pod of the Deployment.
async fn missed(t: &Test, set: &str) -> Result<Value> {
    t.node().scale(WEBHOOK, 0).await?;
    let team = json!({ "app": "web", "team": "shop" });
    let web = workload("Deployment", "web", 1, vec![app("main")]).with("/spec/template/metadata/labels", team);
    t.create(web).await?;
    t.start(pod("bare", vec![app("main")]).with("/metadata/labels", json!({ "team": "shop" }))).await?;
    t.wait_for(SET, set, "to count what it has missed", PATIENCE, |set| set.int("/status/uninjectedPods") == 2).await?;
    poll("the Pod of the Deployment", PATIENCE, async || {
        let pods = t.list("Pod", "app=web").await?;
        ensure!(pods.len() == 1 && condition(&pods[0], "Ready") == "True", "{} Pods", pods.len());
        Ok(())
    })
    .await?;
    Ok(t.list("Pod", "app=web").await?.remove(0))
}

async fn repaired(t: &Test) -> Result<()> {
    let set = t.create(repairing_set(t)).await?.text("/metadata/name").to_owned();
    let again = async { t.node().scale(WEBHOOK, 2).await.map(drop) };
    let first = restoring(missed(t, &set), again).await?;
    assert_eq!(first.array("/spec/containers").len(), 1, "it was created without the sidecar");
    poll("another Pod to have the sidecar", PATIENCE * 3, async || {
        let pods = t.list("Pod", "app=web").await?;
        let is_new = |pod: &Value| pod["metadata"]["uid"] != first["metadata"]["uid"];
        ensure!(pods.len() == 1 && pods.iter().all(is_new), "the first one is there");
        ensure!(pods[0].array("/spec/containers").len() == 2 && condition(&pods[0], "Ready") == "True", "{}", pods[0]);
        Ok(())
    })
    .await?;
    let bare = t.get("Pod", "bare").await?;
    ensure!(!bare.has("/metadata/deletionTimestamp"), "nobody would make another one");
    t.wait_for(SET, &set, "to say what is left", PATIENCE, |set| {
        set.int("/status/uninjectedPods") == 1 && condition(set, "RepairStopped") == "False"
    })
    .await
    .map(drop)
}

#[tokio::test]
async fn pods_that_were_missed_while_the_webhook_was_down_are_evicted_and_made_anew() -> Result<()> {
    in_namespace("sidecars-repaired", async |t| {
        let gone = async { t.remove(SET, &format!("{}-agent", t.namespace)).await };
        restoring(repaired(t), gone).await
    })
    .await
}
