//! Installing and uninstalling.

use anyhow::{Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, Test, app, condition, crr, in_namespace, pod};
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
async fn installing_over_an_installation_changes_nothing() -> Result<()> {
    in_namespace("reinstall", async |t| {
        let daemon = t.node().daemon().await?;
        t.node().deploy().await?;
        assert_eq!(t.node().daemon().await?.text("/metadata/uid"), daemon.text("/metadata/uid"));
        Ok(())
    })
    .await
}
