//! CloneSet: what it leaves behind and what it counts: old revisions, claims of lost Pods, crowded places.

use anyhow::{Context, Result, ensure};
use e2e::images::remote_tag;
use e2e::kit::{Build, Look, PATIENCE, app, in_namespace, poll};
use serde_json::json;

use crate::clone_set::{CLONE_SET, clone_set, in_place, pods, pulled, rolled_out, set_image, started};

const CLAIM: &str = "PersistentVolumeClaim";

#[tokio::test]
async fn old_revisions_go_when_there_are_more_than_the_history_may_hold() -> Result<()> {
    in_namespace("cs-history", async |t| {
        started(t, in_place("web", 1, vec![pulled("main")]).with("/spec/revisionHistoryLimit", 0)).await?;
        let first = t.get(CLONE_SET, "web").await?.text("/status/updateRevision").to_owned();
        set_image(t, "web", "main", &remote_tag("pause", "v2")).await?;
        let set = rolled_out(t, "web").await?;
        t.gone("ControllerRevision", &first).await?;
        t.get("ControllerRevision", set.text("/status/updateRevision")).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_template_that_spreads_its_pods_can_be_scaled_down() -> Result<()> {
    in_namespace("cs-spread", async |t| {
        let spread = json!([{ "maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": { "matchLabels": { "app": "web" } } }]);
        let set = clone_set("web", 3, vec![app("main")])
            .with("/spec/template/spec/topologySpreadConstraints", spread)
            .with("/spec/updateStrategy/maxUnavailable", "100%");
        started(t, set).await?;
        t.patch(CLONE_SET, "web", json!({ "spec": { "replicas": 1 } })).await?;
        rolled_out(t, "web").await?;
        ensure!(pods(t, "web").await?.len() == 1);
        Ok(())
    })
    .await
}

/// Case 22: the claims stay with the Pod that still has them, and a new Pod gets claims of its own.
#[tokio::test]
async fn claims_of_a_lost_pod_are_not_used_again_when_nobody_wants_that() -> Result<()> {
    in_namespace("cs-no-reuse", async |t| {
        let claim = json!({ "metadata": { "name": "data" }, "spec": { "accessModes": ["ReadWriteOnce"],
            "storageClassName": "none", "resources": { "requests": { "storage": "1Mi" } } } });
        let set = clone_set("web", 1, vec![app("main")])
            .with("/spec/volumeClaimTemplates", json!([claim]))
            .with("/spec/scaleStrategy/disablePVCReuse", true)
            .with("/spec/template/metadata/finalizers", json!(["kruise.rs/e2e"]));
        t.create(set).await?;
        let one_but = async |old: &str| -> Result<String> {
            let pods = pods(t, "web").await?;
            let other = pods.iter().map(|pod| pod.text("/metadata/name")).find(|name| *name != old);
            other.map(str::to_owned).context("no other Pod")
        };
        poll("a Pod", PATIENCE, async || one_but("").await.map(drop)).await?;
        let old = one_but("").await?;
        t.kubectl(&["delete", "pod", &old, "--wait=false"]).await?;
        let owner = "/metadata/ownerReferences/0/kind";
        let its_claim = format!("data-{old}");
        t.wait_for(CLAIM, &its_claim, "to follow the Pod", PATIENCE, |o| o.text(owner) == "Pod").await?;
        poll("another Pod", PATIENCE, async || one_but(&old).await.map(drop)).await?;
        let new = one_but(&old).await?;
        t.get(CLAIM, &format!("data-{new}")).await?;
        for pod in [&old, &new] {
            t.patch("Pod", pod, json!({ "metadata": { "finalizers": null } })).await?;
        }
        t.gone("Pod", &old).await
    })
    .await
}
