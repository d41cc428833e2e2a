//! Resources of CloneSets and StatefulSets changed in place, by kubelet itself: behind the gate InPlaceWorkloadVerticalScaling.

use anyhow::{Result, ensure};
use e2e::images::BUSYBOX;
use e2e::kit::{Build, Container, Look, PATIENCE, in_namespace};
use serde_json::{Value, json};

fn container(cpu: &str) -> Value {
    json!([{ "name": "main", "image": BUSYBOX, "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"],
        "resources": { "requests": { "cpu": cpu } } }])
}

/// One Pod, updated in place or not at all.
fn set(kind: &str) -> Value {
    let set = json!({ "kind": kind, "metadata": { "name": "web" }, "spec": {
        "replicas": 1, "selector": { "matchLabels": { "app": "web" } },
        "template": { "metadata": { "labels": { "app": "web" } }, "spec": { "containers": container("10m") } } } });
    if kind == "CloneSet" {
        return set.with("/spec/updateStrategy", json!({ "type": "InPlaceOnly", "maxUnavailable": 1 }));
    }
    set.with("/apiVersion", "apps.kruise.io/v1beta1")
        .with("/spec/updateStrategy/rollingUpdate/podUpdatePolicy", "InPlaceOnly")
        .with("/spec/template/spec/readinessGates", json!([{ "conditionType": "InPlaceUpdateReady" }]))
}

pub(crate) async fn resources_change_in_place_without_a_restart() -> Result<()> {
    let clone_set = of_kind("CloneSet", "CloneSet", "resize-clone-set");
    let stateful_set = of_kind("StatefulSet", "AdvancedStatefulSet", "resize-stateful-set");
    // Both to their end: one that is dropped on the way leaves its namespace behind.
    let (clone_set, stateful_set) = tokio::join!(clone_set, stateful_set);
    clone_set.and(stateful_set)
}

async fn of_kind(kind: &str, called: &str, namespace: &str) -> Result<()> {
    in_namespace(namespace, async |t| {
        t.create(set(kind)).await?;
        let is_done = |o: &Value| {
            o.int("/status/observedGeneration") == o.int("/metadata/generation")
                && o.int("/status/updatedAvailableReplicas") == 1
                && o.text("/status/currentRevision") == o.text("/status/updateRevision")
        };
        t.wait_for(called, "web", "to be ready", PATIENCE, is_done).await?;
        let before = t.list("Pod", "app=web").await?.remove(0);
        let patch = json!({ "spec": { "template": { "spec": { "containers": container("20m") } } } });
        t.patch(called, "web", patch).await?;
        t.wait_for(called, "web", "to be updated", PATIENCE, is_done).await?;
        let after = t.list("Pod", "app=web").await?.remove(0);
        assert_eq!(after.text("/metadata/uid"), before.text("/metadata/uid"));
        assert_eq!(Container::all(&after), Container::all(&before), "no restart");
        let actual = after.text("/status/containerStatuses/0/resources/requests/cpu");
        ensure!(actual == "20m", "kubelet says {actual}: {after}");
        Ok(())
    })
    .await
}
