//! Claims of StatefulSets that grow with their template: behind the gate StatefulSetAutoResizePVCGate.
//!
//! The harness plays the provisioner and the resizer of volumes; what kubelet itself expands is not tested here.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, Test, app, in_namespace, workload};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

const STATEFUL_SET: &str = "AdvancedStatefulSet";
const CLAIM: &str = "PersistentVolumeClaim";
const LONG: Duration = Duration::from_secs(120);
const REQUEST: &str = "/spec/resources/requests/storage";

/// A volume for a claim, as a provisioner makes it.
async fn provide(t: &Test, claim: &str) -> Result<()> {
    let volume = format!("{}-{claim}", t.namespace);
    t.create(json!({ "kind": "PersistentVolume", "metadata": { "name": volume, "labels": { "of": t.namespace } },
        "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": t.namespace,
            "persistentVolumeReclaimPolicy": "Retain", "claimRef": { "namespace": t.namespace, "name": claim },
            "hostPath": { "path": format!("/tmp/{volume}"), "type": "DirectoryOrCreate" } } }))
        .await
        .map(drop)
}

/// What the resizer says of a claim.
async fn say(t: &Test, claim: &str, status: Value) -> Result<()> {
    let patch = Patch::Merge(json!({ "status": status }));
    t.api(CLAIM).patch_status(claim, &PatchParams::default(), &patch).await?;
    Ok(())
}

fn templates(t: &Test, storage: &str) -> Value {
    json!([{ "metadata": { "name": "data" }, "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": t.namespace,
        "resources": { "requests": { "storage": storage } } } }])
}

fn told<'a>(set: &'a Value, type_: &str) -> &'a str {
    let mut conditions = set.array("/status/conditions").iter();
    conditions
        .find(|c| c.text("/type") == type_ && c.text("/status") == "True")
        .map_or("", |condition| condition.text("/message"))
}

fn is_ready(set: &Value) -> bool {
    !told(set, "Ready").is_empty() && set.int("/status/observedGeneration") == set.int("/metadata/generation")
}

pub(crate) async fn claims_grow_with_their_template_one_pod_after_the_other() -> Result<()> {
    in_namespace("sts-grow", async |t| {
        // the name is that of the namespace: it is this test's alone
        t.create(
            json!({ "kind": "StorageClass", "metadata": { "name": t.namespace }, "provisioner": "e2e.kruise.rs/none",
            "allowVolumeExpansion": true }),
        )
        .await?;
        for ordinal in 0..2 {
            provide(t, &format!("data-db-{ordinal}")).await?;
        }
        let set = workload("StatefulSet", "db", 2, vec![app("main")])
            .with("/apiVersion", "apps.kruise.io/v1beta1")
            .with("/spec/volumeClaimUpdateStrategy", json!({ "type": "OnPodRollingUpdate" }))
            .with("/spec/volumeClaimTemplates", templates(t, "1Gi"));
        t.create(set).await?;
        t.wait_for(STATEFUL_SET, "db", "to be ready", LONG, is_ready).await?;
        let pods = t.list("Pod", "app=db").await?;
        let claims = t.list(CLAIM, "app=db").await?;

        t.patch(STATEFUL_SET, "db", json!({ "spec": { "volumeClaimTemplates": templates(t, "2Gi") } })).await?;
        let asks = |claim: &Value| claim.text(REQUEST) == "2Gi";
        t.wait_for(CLAIM, "data-db-1", "to ask for more", PATIENCE, asks).await?;
        let waits = |set: &Value| told(set, "Reconciling").contains("data-db-1");
        t.wait_for(STATEFUL_SET, "db", "to name the claim that grows", PATIENCE, waits).await?;
        ensure!(t.get(CLAIM, "data-db-0").await?.text(REQUEST) == "1Gi", "one after the other");

        // the volume has grown, and its file system waits for kubelet, who then does it
        let pending = json!([{ "type": "FileSystemResizePending", "status": "True",
            "lastTransitionTime": Timestamp::now().round(jiff::Unit::Second)? }]);
        say(t, "data-db-1", json!({ "conditions": pending })).await?;
        let for_kubelet = |set: &Value| told(set, "Reconciling").contains("waits for kubelet");
        t.wait_for(STATEFUL_SET, "db", "to wait for kubelet", PATIENCE, for_kubelet).await?;
        say(t, "data-db-1", json!({ "capacity": { "storage": "2Gi" }, "conditions": [] })).await?;
        t.wait_for(CLAIM, "data-db-0", "to ask for more", PATIENCE, asks).await?;
        say(t, "data-db-0", json!({ "capacity": { "storage": "2Gi" } })).await?;
        let all = |set: &Value| is_ready(set) && set.int("/status/volumeClaims/0/compatibleReadyReplicas") == 2;
        let set = t.wait_for(STATEFUL_SET, "db", "to have grown", LONG, all).await?;
        ensure!(set.int("/status/volumeClaims/0/compatibleReplicas") == 2, "{}", set["status"]);

        let uids = |all: &[Value]| all.iter().map(|o| o.text("/metadata/uid").to_owned()).collect::<Vec<_>>();
        ensure!(uids(&t.list("Pod", "app=db").await?) == uids(&pods), "no Pod was replaced");
        ensure!(uids(&t.list(CLAIM, "app=db").await?) == uids(&claims), "nor a claim");
        let smaller = json!({ "spec": { "volumeClaimTemplates": templates(t, "1Gi") } });
        let refused = t.patch(STATEFUL_SET, "db", smaller).await.err().context("a smaller size was stored")?;
        ensure!(format!("{refused:#}").contains("volumes do not shrink"), "{refused:#}");
        t.remove("StorageClass", &t.namespace).await?;
        t.kubectl(&["delete", "pv", "-l", &format!("of={}", t.namespace), "--wait=false"]).await.map(drop)
    })
    .await
}
