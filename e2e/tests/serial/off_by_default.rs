//! What is off by default and switched on by feature gates: ImagePullJobs for the new images of a CloneSet, and probes on
//! virtual nodes. Each does nothing before; both gates are switched once, because processes are started anew for that.

use anyhow::{Result, ensure};
use e2e::cmd::{CommandExt, ctr};
use e2e::images::{push_new, remote};
use e2e::kit::{Build, Look, PATIENCE, Test, app, in_namespace, pod, poll};
use e2e::paths::NODE;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::methods::gates;

const KIND: &str = "ImagePullJob";
const CLONE_SET: &str = "CloneSet";
const PODS: i64 = 4;
const VIRTUAL_NODE: &str = "virtual-e2e";

#[tokio::test]
async fn features_that_are_off_work_once_their_gates_are_on() -> Result<()> {
    in_namespace("off-by-default", async |t| {
        let node = json!({ "kind": "Node", "metadata": { "name": VIRTUAL_NODE, "labels": { "type": "virtual-kubelet" } } });
        t.create(node).await?;
        let result = async {
            probes_while_off(t).await?;
            let on = "ImagePullJobGate=true,PreDownloadImageForInPlaceUpdate=true,EnablePodProbeMarkerOnServerless=true";
            gates(t, on).await?;
            tokio::try_join!(images_are_pulled_before_an_update(t), probes_on_a_virtual_node(t)).map(drop)
        }
        .await;
        gates(t, "ImagePullJobGate=true").await?;
        t.remove("Node", VIRTUAL_NODE).await?;
        result
    })
    .await
}

/// The new image is nowhere but in the registry. No Pod may be updated yet, and the node has it all the same; the update
/// then downloads nothing.
async fn images_are_pulled_before_an_update(t: &Test) -> Result<()> {
    let container = |image: &str| json!([{ "name": "main", "image": image, "imagePullPolicy": "IfNotPresent" }]);
    let spec = pod("web", Vec::new())["spec"].clone().with("/containers", container(&remote("pause")));
    let set = json!({ "kind": CLONE_SET, "metadata": { "name": "web" }, "spec": {
        "replicas": PODS, "selector": { "matchLabels": { "app": "web" } },
        "template": { "metadata": { "labels": { "app": "web" } }, "spec": spec },
        "updateStrategy": { "type": "InPlaceIfPossible", "maxUnavailable": 1, "partition": PODS } } });
    t.create(set.with("/metadata/annotations/apps.kruise.io~1image-predownload-parallelism", "50%")).await?;
    let counts = |o: &Value| {
        let status = |field: &str| o.int(&format!("/status/{field}"));
        let is_seen = status("observedGeneration") == o.int("/metadata/generation");
        is_seen.then(|| (status("readyReplicas"), status("updatedReadyReplicas")))
    };
    t.wait_for(CLONE_SET, "web", "to be ready", PATIENCE, |o| counts(o) == Some((PODS, PODS))).await?;
    let paths = t.paths.clone();
    tokio::task::spawn_blocking(move || push_new(&paths, "ahead-by-clone-set", "v2", 1 << 20)).await??;
    let image = "registry.example/team/ahead-by-clone-set:v2";
    let there = || ctr(["images", "ls", "-q"]).text().map(|all| all.lines().any(|line| line == image));
    ensure!(!there()?, "the image is there before anybody has asked for it");

    let change = json!({ "spec": { "template": { "spec": { "containers": container(image) } } } });
    let changed = t.patch(CLONE_SET, "web", change).await?;
    let is_other = |o: &Value| o.text("/status/updateRevision") != o.text("/status/currentRevision");
    let update = t.wait_for(CLONE_SET, "web", "to have a new revision", PATIENCE, is_other).await?;
    let update = update.text("/status/updateRevision").to_owned();
    let name = format!("{update}-main");
    let job = t.wait_for(KIND, &name, "to be over", PATIENCE, |o| o.has("/status/completionTime")).await?;
    assert_eq!((job.text("/spec/image"), job.int("/spec/parallelism")), (image, 2), "{job:#}");
    assert_eq!((job.int("/status/desired"), job.int("/status/succeeded")), (1, 1), "{job:#}");
    assert_eq!(job.text("/metadata/ownerReferences/0/uid"), changed.text("/metadata/uid"));
    ensure!(there()?, "the runtime does not have the image");
    let pods = t.list("Pod", "app=web").await?;
    ensure!(pods.iter().all(|p| p.text("/spec/containers/0/image") == remote("pause")), "a Pod was updated");
    t.wait_events(CLONE_SET, "web", |e| e.iter().any(|e| e.starts_with("CreatedImagePullJob"))).await?;

    t.patch(CLONE_SET, "web", json!({ "spec": { "updateStrategy": { "partition": 0 } } })).await?;
    t.wait_for(CLONE_SET, "web", "to be updated", PATIENCE, |o| {
        counts(o) == Some((PODS, PODS)) && o.text("/status/currentRevision") == update
    })
    .await?;
    for pod in &pods {
        let name = pod.text("/metadata/name");
        let now = t.get("Pod", name).await?;
        assert_eq!(now.text("/metadata/uid"), pod.text("/metadata/uid"), "it was updated in place");
        let present = format!("Container image \"{image}\" already present on machine");
        t.wait_events("Pod", name, |e| e.iter().any(|e| e.contains(&present))).await?;
    }
    t.gone(KIND, &name).await?;
    let revision = t.kubectl(&["get", "controllerrevision", &update, "-o", "json"]).await?;
    ensure!(revision.contains("\"apps.kruise.io/pre-predownload-created\": \"true\""), "{revision}");
    Ok(())
}

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

async fn probes_while_off(t: &Test) -> Result<()> {
    let policy = |state: &str, value: &str| json!({ "state": state, "labels": { "idle": value } });
    let probe = json!({ "name": "idle", "containerName": "main", "podConditionType": "e2e/idle",
        "probe": { "exec": { "command": ["true"] }, "periodSeconds": 1 },
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

async fn probes_on_a_virtual_node(t: &Test) -> Result<()> {
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
            "probe": { "exec": { "command": ["true"] }, "periodSeconds": 1 } }])
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
