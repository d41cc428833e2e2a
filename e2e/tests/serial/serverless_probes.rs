//! Probes on virtual nodes, behind their gate.

use anyhow::{Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, Test, app, pod, poll};
use e2e::paths::NODE;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

const VIRTUAL_NODE: &str = "virtual-e2e";

fn note(pod: &Value) -> (&str, &str) {
    let annotation = |key: &str| pod.text(&format!("/metadata/annotations/kruise.io~1{key}"));
    (annotation("podprobe"), annotation("podprobemarker-list"))
}

fn served(name: &str, node: &str) -> Value {
    pod(name, vec![app("main")])
        .with("/metadata/labels", json!({ "app": "served" }))
        .with("/spec/nodeName", node)
        .with("/spec/tolerations", json!([{ "operator": "Exists" }]))
}

/// As the provider of the node does.
async fn says(t: &Test, pod: &str, idle: &str) -> Result<()> {
    let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status });
    let conditions = json!([condition("Initialized", "True"), condition("e2e/idle", idle)]);
    let patch = Patch::Strategic(json!({ "status": { "phase": "Running", "conditions": conditions } }));
    t.api("Pod").patch_status(pod, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// With the gate off nothing happens to Pods, wherever they are.
pub(crate) async fn while_off(t: &Test) -> Result<()> {
    let node = json!({ "kind": "Node", "metadata": { "name": VIRTUAL_NODE, "labels": { "type": "virtual-kubelet" } } });
    t.create(node).await?;
    let policy = |state: &str, value: &str| json!({ "state": state, "labels": { "idle": value } });
    let probe = json!({ "name": "idle", "containerName": "main", "podConditionType": "e2e/idle",
        "probe": { "exec": { "command": ["/no/such/program"] }, "periodSeconds": 1 },
        "markerPolicy": [policy("Succeeded", "yes"), policy("Failed", "no")] });
    t.create(json!({ "kind": "PodProbeMarker", "metadata": { "name": "served" },
        "spec": { "selector": { "matchLabels": { "app": "served" } }, "probes": [probe] } }))
        .await?;
    let made = t.create(served("before", VIRTUAL_NODE)).await?;
    ensure!(note(&made) == ("", ""), "{made:#}");
    says(t, "before", "True").await?;
    let counted = |o: &Value| o.int("/status/matchedPods") == 1;
    t.wait_for("PodProbeMarker", "served", "to see its Pod", PATIENCE, counted).await?;
    let left_alone = t.get("Pod", "before").await?;
    ensure!(!left_alone.has("/metadata/labels/idle"), "{left_alone:#}");
    ensure!(t.find("NodePodProbe", VIRTUAL_NODE).await?.is_none(), "a virtual node has no daemon to write for");
    Ok(())
}

/// New Pods get the note, and labels follow the conditions of a virtual node's Pods.
pub(crate) async fn once_on(t: &Test) -> Result<()> {
    // A webhook whose registration has not reached the API server yet misses a Pod.
    poll("new Pods to get the note", PATIENCE, async || {
        let made = t.create(served("after", VIRTUAL_NODE)).await?;
        if note(&made).1 == "served" {
            return Ok(());
        }
        t.kubectl(&["delete", "pod", "after", "--grace-period=0", "--force"]).await?;
        anyhow::bail!("{made:#}")
    })
    .await?;
    let made = t.get("Pod", "after").await?;
    let probes: Value = serde_json::from_str(note(&made).0)?;
    assert_eq!(
        probes,
        json!([{ "name": "idle", "containerName": "main", "podConditionType": "e2e/idle",
            "probe": { "exec": { "command": ["/no/such/program"] }, "periodSeconds": 1 } }])
    );
    let labelled = async |pod: &str, value: &str| {
        t.wait_for("Pod", pod, "to be labelled", PATIENCE, |p| p.text("/metadata/labels/idle") == value).await
    };
    // By its condition, also that of one from before.
    labelled("before", "yes").await?;
    says(t, "after", "False").await?;
    labelled("after", "no").await?;
    says(t, "after", "True").await?;
    let marked = labelled("after", "yes").await?;
    let conditions = marked.array("/status/conditions").iter().filter(|c| c.text("/type") == "e2e/idle");
    ensure!(conditions.count() == 1, "its condition is its provider's: {marked:#}");
    // The same PodProbeMarker on a node with a daemon.
    t.create(served("real", NODE)).await?;
    labelled("real", "no").await?;
    for name in ["before", "after"] {
        t.kubectl(&["delete", "pod", name, "--grace-period=0", "--force"]).await?;
    }
    Ok(())
}

/// Without its Node, Pods there are removed by the garbage collector.
pub(crate) async fn tidy(t: &Test) -> Result<()> {
    t.remove("Node", VIRTUAL_NODE).await
}
