//! Claims of StatefulSets that grow with their template: behind the gate StatefulSetAutoResizePVCGate.
//!
//! The harness plays the provisioner and the resizer of volumes; what kubelet itself expands is not tested here.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, Test, app, in_namespace, workload};
use jiff::{SignedDuration, Timestamp};
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

fn set(t: &Test, name: &str, replicas: i64) -> Value {
    workload("StatefulSet", name, replicas, vec![app("main")])
        .with("/apiVersion", "apps.kruise.io/v1beta1")
        .with("/spec/volumeClaimUpdateStrategy", json!({ "type": "OnPodRollingUpdate" }))
        .with("/spec/volumeClaimTemplates", templates(t, "1Gi"))
}

async fn wants(t: &Test, name: &str, templates: Value) -> Result<()> {
    t.patch(STATEFUL_SET, name, json!({ "spec": { "volumeClaimTemplates": templates } })).await.map(drop)
}

fn asks_for_more(claim: &Value) -> bool {
    claim.text(REQUEST) == "2Gi"
}

/// A volume has grown, and its file system waits for kubelet.
fn pending(since: Timestamp) -> Result<Value> {
    let since = since.round(jiff::Unit::Second)?;
    Ok(json!({ "conditions": [{ "type": "FileSystemResizePending", "status": "True", "lastTransitionTime": since }] }))
}

fn uids(all: &[Value]) -> Vec<String> {
    all.iter().map(|object| object.text("/metadata/uid").to_owned()).collect()
}

/// Kubelet grows the file system of no volume in use here. Returns the Pod that is to be replaced for that.
async fn a_volume_waits_for_a_mount(t: &Test) -> Result<Value> {
    let pod = t.get("Pod", "late-0").await?;
    wants(t, "late", templates(t, "2Gi")).await?;
    t.wait_for(CLAIM, "data-late-0", "to ask for more", PATIENCE, asks_for_more).await?;
    // after the Pod was made: another one that was made since would be left alone
    say(t, "data-late-0", pending(Timestamp::now() + SignedDuration::from_secs(1))?).await?;
    Ok(pod)
}

async fn its_pod_is_replaced(t: &Test, pod: &Value) -> Result<()> {
    let anew = |now: &Value| now.text("/metadata/uid") != pod.text("/metadata/uid");
    t.wait_for("Pod", "late-0", "to be replaced for its volume", LONG + PATIENCE, anew).await?;
    say(t, "data-late-0", json!({ "capacity": { "storage": "2Gi" }, "conditions": [] })).await?;
    t.wait_for(STATEFUL_SET, "late", "to have grown", LONG, is_ready).await.map(drop)
}

/// Pods get it one after the other, made anew; what they have stays.
async fn a_claim_template_is_added(t: &Test) -> Result<()> {
    let (pods, claims) = (t.list("Pod", "app=db").await?, t.list(CLAIM, "app=db").await?);
    for ordinal in 0..2 {
        provide(t, &format!("logs-db-{ordinal}")).await?;
    }
    let logs = templates(t, "1Gi")[0].clone().with("/metadata/name", "logs");
    wants(t, "db", json!([templates(t, "2Gi")[0], logs])).await?;
    let all = |set: &Value| is_ready(set) && set.int("/status/volumeClaims/1/compatibleReplicas") == 2;
    t.wait_for(STATEFUL_SET, "db", "to have both claims", LONG, all).await?;
    let (old, new) = (uids(&pods), t.list("Pod", "app=db").await?);
    for pod in &new {
        let uid = pod.text("/metadata/uid");
        ensure!(!old.iter().any(|before| before == uid), "{} was not made anew", pod["metadata"]);
        let volumes = pod.array("/spec/volumes").iter();
        let claims: Vec<&str> = volumes.map(|volume| volume.text("/persistentVolumeClaim/claimName")).collect();
        let name = pod.text("/metadata/name");
        ensure!(["data", "logs"].iter().all(|of| claims.contains(&format!("{of}-{name}").as_str())), "{claims:?}");
    }
    let there = uids(&t.list(CLAIM, "app=db").await?);
    ensure!(there.len() == 4 && uids(&claims).iter().all(|claim| there.contains(claim)), "no claim was lost");
    Ok(())
}

pub(crate) async fn claims_grow_with_their_template_one_pod_after_the_other() -> Result<()> {
    in_namespace("sts-grow", async |t| {
        // the name is that of the namespace: it is this test's alone
        t.create(
            json!({ "kind": "StorageClass", "metadata": { "name": t.namespace }, "provisioner": "e2e.kruise.rs/none",
            "allowVolumeExpansion": true }),
        )
        .await?;
        for claim in ["data-db-0", "data-db-1", "data-late-0"] {
            provide(t, claim).await?;
        }
        t.create(set(t, "late", 1)).await?;
        t.create(set(t, "db", 2)).await?;
        for name in ["late", "db"] {
            t.wait_for(STATEFUL_SET, name, "to be ready", LONG, is_ready).await?;
        }
        // what takes two minutes goes on beside the rest
        let late = a_volume_waits_for_a_mount(t).await?;
        let pods = t.list("Pod", "app=db").await?;
        let claims = t.list(CLAIM, "app=db").await?;

        wants(t, "db", templates(t, "2Gi")).await?;
        t.wait_for(CLAIM, "data-db-1", "to ask for more", PATIENCE, asks_for_more).await?;
        let waits = |set: &Value| told(set, "Reconciling").contains("data-db-1");
        t.wait_for(STATEFUL_SET, "db", "to name the claim that grows", PATIENCE, waits).await?;
        ensure!(t.get(CLAIM, "data-db-0").await?.text(REQUEST) == "1Gi", "one after the other");

        // the volume has grown, and its file system waits for kubelet, who then does it
        say(t, "data-db-1", pending(Timestamp::now())?).await?;
        let for_kubelet = |set: &Value| told(set, "Reconciling").contains("waits for kubelet");
        t.wait_for(STATEFUL_SET, "db", "to wait for kubelet", PATIENCE, for_kubelet).await?;
        say(t, "data-db-1", json!({ "capacity": { "storage": "2Gi" }, "conditions": [] })).await?;
        t.wait_for(CLAIM, "data-db-0", "to ask for more", PATIENCE, asks_for_more).await?;
        say(t, "data-db-0", json!({ "capacity": { "storage": "2Gi" } })).await?;
        let all = |set: &Value| is_ready(set) && set.int("/status/volumeClaims/0/compatibleReadyReplicas") == 2;
        let set = t.wait_for(STATEFUL_SET, "db", "to have grown", LONG, all).await?;
        ensure!(set.int("/status/volumeClaims/0/compatibleReplicas") == 2, "{}", set["status"]);

        ensure!(uids(&t.list("Pod", "app=db").await?) == uids(&pods), "no Pod was replaced");
        ensure!(uids(&t.list(CLAIM, "app=db").await?) == uids(&claims), "nor a claim");
        let smaller = json!({ "spec": { "volumeClaimTemplates": templates(t, "1Gi") } });
        let refused = t.patch(STATEFUL_SET, "db", smaller).await.err().context("a smaller size was stored")?;
        ensure!(format!("{refused:#}").contains("volumes do not shrink"), "{refused:#}");
        a_claim_template_is_added(t).await?;
        its_pod_is_replaced(t, &late).await?;
        t.remove("StorageClass", &t.namespace).await?;
        t.kubectl(&["delete", "pv", "-l", &format!("of={}", t.namespace), "--wait=false"]).await.map(drop)
    })
    .await
}
