//! A WorkloadRestart whose manager dies: another one goes on, and restarts nothing twice.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::kit::{Container, Look, PATIENCE, app, condition, in_namespace, restart_of, workload};
use e2e::paths::SYSTEM;
use serde_json::json;

const WR: &str = "WorkloadRestart";
const MANAGER: &str = "kruise-controller-manager";

#[tokio::test]
async fn a_manager_that_dies_midway_is_replaced_and_no_pod_is_restarted_twice() -> Result<()> {
    in_namespace("wr-takeover", async |t| {
        t.create(workload("StatefulSet", "db", 8, vec![app("main")])).await?;
        t.wait_for("StatefulSet", "db", "to be ready", PATIENCE * 2, |o| o.int("/status/readyReplicas") == 8).await?;
        let availability = t.availability("app=db").await?;
        t.create(restart_of("roll", "StatefulSet", "db", json!({ "maxUnavailable": 2 }))).await?;
        for done in [2, 5] {
            let midway = |o: &serde_json::Value| o.int("/status/restarted") >= done;
            t.wait_for(WR, "roll", "to be midway", PATIENCE, midway).await?;
            let managers = t.list_in(SYSTEM, "Pod", "").await?;
            for manager in managers.iter().filter(|p| p.text("/metadata/name").starts_with(MANAGER)) {
                let immediately = kube::api::DeleteParams::default().grace_period(0);
                t.api_in(SYSTEM, "Pod").delete(manager.text("/metadata/name"), &immediately).await?;
            }
        }
        let long = Duration::from_secs(150);
        t.wait_for(WR, "roll", "to be Complete", long, |o| condition(o, "Complete") == "True").await?;
        for pod in t.list("Pod", "app=db").await? {
            let name = pod.text("/metadata/name");
            ensure!(Container::all(&pod)["main"].restarts == 1, "{name} was restarted more or less than once");
        }
        ensure!(t.list("ContainerRecreateRequest", "").await?.len() == 8, "one request for each Pod");
        let most = availability.most_unavailable();
        ensure!((1..=2).contains(&most), "{most} Pods were unavailable at once, 2 are allowed");
        Ok(())
    })
    .await
}
