//! Installing and uninstalling.

use anyhow::{Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, app, condition, crr, in_namespace, pod};
use serde_json::json;

const CRR: &str = "ContainerRecreateRequest";

#[tokio::test]
async fn uninstalling_with_a_request_in_flight_leaves_the_pod_ready_and_no_finalizer() -> Result<()> {
    in_namespace("uninstall", async |t| {
        let web =
            pod("web", vec![app("main")]).with("/spec/readinessGates", json!([{ "conditionType": "KruisePodReady" }]));
        let before = t.start(web).await?;
        t.create(crr("once", "web", &["main"]).with("/spec/strategy/unreadyGracePeriodSeconds", 600)).await?;
        t.wait_for("Pod", "web", "to be NotReady", PATIENCE, |p| condition(p, "Ready") == "False").await?;
        let undeployed = t.node().undeploy().await;
        let after = t.ready("web").await;
        let left = t.find(CRR, "once").await;
        t.node().deploy().await?;
        undeployed?;
        assert_eq!(after?.text("/metadata/uid"), before.text("/metadata/uid"), "no Pod is deleted");
        // without the CRD there is nothing to find either
        if let Ok(Some(left)) = left {
            ensure!(left.array("/metadata/finalizers").is_empty(), "a finalizer is left: {left}");
        }
        // and what is installed again works
        t.remove(CRR, "once").await?;
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
