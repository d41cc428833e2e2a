//! PersistentPodState while the node of a Pod is not Ready, and when it is gone.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, Test, app, in_namespace, restoring, workload};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

const STATE: &str = "PersistentPodState";
const LOST: &str = "node-lost";
const HOST: &str = "kubernetes.io/hostname";
/// Longer than a Pod that waits for a lost node is left alone, and than a pass takes.
const A_WHILE: Duration = Duration::from_secs(8);

/// As the kubelet of the node does.
async fn node_says(t: &Test, ready: &str) -> Result<()> {
    let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": ready }] } });
    t.api("Node").patch_status(LOST, &PatchParams::default(), &Patch::Strategic(status)).await?;
    Ok(())
}

/// Binds the Pod to the node and says that it is Ready there, as scheduler and kubelet do.
async fn runs(t: &Test) -> Result<()> {
    let target = json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": "db-0" },
        "target": { "apiVersion": "v1", "kind": "Node", "name": LOST } });
    let _: Value = t.api("Pod").create_subresource("binding", "db-0", &PostParams::default(), &target).await?;
    let status = json!({ "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } });
    t.api("Pod").patch_status("db-0", &PatchParams::default(), &Patch::Strategic(status)).await?;
    Ok(())
}

async fn another(t: &Test, than: &Value, what: &str) -> Result<Value> {
    let is_another = |pod: &Value| pod.text("/metadata/uid") != than.text("/metadata/uid");
    t.wait_for("Pod", "db-0", what, PATIENCE, is_another).await
}

async fn force_delete(t: &Test) -> Result<()> {
    t.kubectl(&["delete", "pod", "db-0", "--grace-period=0", "--force", "--ignore-not-found"]).await.map(drop)
}

/// Spec 9, PPS: lost nodes still pin Pods. NotFound clears, NotReady does not.
#[tokio::test]
async fn a_place_is_kept_while_its_node_is_not_ready_and_cleared_when_it_is_gone() -> Result<()> {
    in_namespace("pod-states-node", async |t| {
        t.create(json!({ "kind": "Node", "metadata": { "name": LOST, "labels": { HOST: LOST } } })).await?;
        let undo = async {
            t.remove("Node", LOST).await?;
            t.kubectl(&["delete", "statefulset", "db", "--ignore-not-found"]).await?;
            force_delete(t).await
        };
        restoring(kept_and_cleared(t), undo).await
    })
    .await
}

async fn kept_and_cleared(t: &Test) -> Result<()> {
    node_says(t, "True").await?;
    t.create(json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": STATE, "metadata": { "name": "keep" },
        "spec": { "targetRef": { "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db" },
            "requiredPersistentTopology": { "nodeTopologyKeys": [HOST] },
            "persistentPodAnnotations": [{ "key": "example.com/key" }] } }))
        .await?;
    // No scheduler looks at them.
    let set = workload("StatefulSet", "db", 1, vec![app("main")]).with("/spec/template/spec/schedulerName", "nobody");
    t.create(set).await?;
    let first = t.wait_for("Pod", "db-0", "to be there", PATIENCE, |_| true).await?;
    t.patch("Pod", "db-0", json!({ "metadata": { "annotations": { "example.com/key": "value" } } })).await?;
    runs(t).await?;
    let recorded = |o: &Value| o.text("/status/podStates/db-0/nodeName") == LOST;
    t.wait_for(STATE, "keep", "to have its place recorded", PATIENCE, recorded).await?;

    node_says(t, "False").await?;
    force_delete(t).await?;
    let held = another(t, &first, "to be made again").await?;
    assert_eq!(held["spec"]["nodeSelector"][HOST], LOST);
    // Nothing may happen: there is nothing to wait for.
    tokio::time::sleep(A_WHILE).await;
    let still = t.get("Pod", "db-0").await?;
    assert_eq!(still.text("/metadata/uid"), held.text("/metadata/uid"), "it waits for its node");
    let state = t.get(STATE, "keep").await?;
    assert_eq!(state["status"]["podStates"]["db-0"]["nodeTopologyLabels"][HOST], LOST);

    t.remove("Node", LOST).await?;
    let freed = another(t, &held, "to be evicted and made again").await?;
    ensure!(!freed.has("/spec/nodeSelector"), "{}", freed["spec"]);
    assert_eq!(freed.text("/metadata/annotations/example.com~1key"), "value", "what else is recorded stays");
    let cleared = |o: &Value| !o.has("/status/podStates/db-0/nodeTopologyLabels/kubernetes.io~1hostname");
    t.wait_for(STATE, "keep", "to have the place cleared", PATIENCE, cleared).await?;
    let said = |events: &[String]| events.iter().any(|event| event.starts_with("PlaceCleared: "));
    t.wait_events(STATE, "keep", said).await.map(drop)
}
