//! Installing and uninstalling.

use anyhow::{Context, Result, ensure};
use e2e::images::remote;
use e2e::kit::{Build, Look, PATIENCE, Test, app, condition, crr, in_namespace, pod, workload};
use serde_json::{Value, json};

use crate::CRR;

const DEFINITION: &str = "containerrecreaterequests.apps.kruise.io";

/// A Pod that a request has made NotReady, for ten minutes to come.
async fn drained(t: &Test) -> Result<Value> {
    let web =
        pod("web", vec![app("main")]).with("/spec/readinessGates", json!([{ "conditionType": "KruisePodReady" }]));
    let pod = t.start(web).await?;
    t.create(crr("once", "web", &["main"]).with("/spec/strategy/unreadyGracePeriodSeconds", 600)).await?;
    t.wait_for("Pod", "web", "to be NotReady", PATIENCE, |p| condition(p, "Ready") == "False").await?;
    Ok(pod)
}

#[tokio::test]
async fn uninstalling_with_a_request_in_flight_leaves_the_pod_ready_and_no_finalizer() -> Result<()> {
    in_namespace("uninstall", async |t| {
        let before = drained(t).await?;
        let undeployed = t.node().undeploy(false).await;
        let after = t.ready("web").await;
        let left = t.find(CRR, "once").await;
        let definition = t.find("CustomResourceDefinition", DEFINITION).await;
        t.node().deploy().await?;
        undeployed?;
        assert_eq!(after?.text("/metadata/uid"), before.text("/metadata/uid"), "no Pod is deleted");
        if let Some(left) = left? {
            ensure!(left.array("/metadata/finalizers").is_empty(), "a finalizer is left: {left}");
        }
        ensure!(definition?.is_some(), "the definition goes only when asked for");
        // and what is installed again works
        t.restart("again", "web", &["main"]).await?;
        t.succeeded("again").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn uninstalling_with_the_definitions_works_with_a_dead_manager_too() -> Result<()> {
    in_namespace("uninstall-crds", async |t| {
        drained(t).await?;
        t.node().scale("kruise-controller-manager", 0).await?;
        let undeployed = t.node().undeploy(true).await;
        let after = t.ready("web").await;
        let definition = t.find("CustomResourceDefinition", DEFINITION).await;
        t.node().deploy().await?;
        undeployed?;
        after?;
        ensure!(definition?.is_none(), "the definition is still there");
        assert_eq!(t.containers("web").await?["main"].restarts, 0);
        t.restart("again", "web", &["main"]).await?;
        t.succeeded("again").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_clone_set_and_its_pods_outlive_the_installation() -> Result<()> {
    in_namespace("uninstall-clone-set", async |t| {
        let set = workload("CloneSet", "web", 1, vec![app("main")]).with(
            "/spec/updateStrategy",
            json!({ "type": "InPlaceIfPossible", "inPlaceUpdateStrategy": { "gracePeriodSeconds": 600 } }),
        );
        t.create(set).await?;
        let available = |o: &Value| o.int("/status/availableReplicas") == 1;
        t.wait_for("CloneSet", "web", "to be available", PATIENCE, available).await?;
        let before = t.list("Pod", "app=web").await?.remove(0);
        let name = before.text("/metadata/name");
        // In the middle of an update: the Pod is drained.
        let image = format!("main={}", remote("pause"));
        t.plugin_exits(0, &["set", "image", "cloneset/web", &image]).await?;
        t.wait_for("Pod", name, "to be drained", PATIENCE, |p| condition(p, "Ready") == "False").await?;
        let refused = t.node().undeploy(true).await.err().map(|error| format!("{error:#}"));
        let refused = refused.context("the definition of a CloneSet that is there is not removed")?;
        ensure!(refused.contains("--crds would delete these CloneSets"), "{refused}");
        t.node().daemon_ready().await?;
        let undeployed = t.node().undeploy(false).await;
        let after = t.ready(name).await;
        t.node().deploy().await?;
        undeployed?;
        assert_eq!(after?.text("/metadata/uid"), before.text("/metadata/uid"));
        // and it is looked after again
        t.kubectl(&["scale", "cloneset/web", "--replicas=2"]).await?;
        t.wait_for("CloneSet", "web", "to have two Pods", PATIENCE, |o| o.int("/status/replicas") == 2).await?;
        ensure!(t.find("Pod", name).await?.is_some(), "the first is still there");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn installing_over_an_installation_changes_nothing() -> Result<()> {
    in_namespace("reinstall", async |t| {
        let daemon = t.node().daemon().await?;
        t.node().deploy().await?;
        assert_eq!(t.node().daemon().await?.text("/metadata/uid"), daemon.text("/metadata/uid"));
        Ok(())
    })
    .await
}
