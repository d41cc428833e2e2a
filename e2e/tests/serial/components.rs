//! The programs around us stop and start.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::kit::{
    Build, Container, Look, PATIENCE, Test, app, condition, crr, in_namespace, pod, poll, restoring, stubborn,
};
use e2e::paths::SYSTEM;
use serde_json::json;

use crate::leaders::{holder, restarts};
use crate::{CRR, Frozen, LONG, MANAGER, WEBHOOK};

/// A request whose stop takes 4 s, with something done in the middle of it: it ends well all the same.
async fn disturbed(name: &str, disturb: impl AsyncFnOnce(&Test) -> Result<()>) -> Result<()> {
    in_namespace(name, async |t| {
        t.node().daemon_ready().await?;
        t.start(pod("web", vec![stubborn("main"), app("other")])).await?;
        t.create(crr("once", "web", &["main"]).with("/spec/strategy/terminationGracePeriodSeconds", 4)).await?;
        let begun = |o: &serde_json::Value| o.has("/status/containerRecreateStates/0/killStartedAt");
        t.wait_for(CRR, "once", "to begin", PATIENCE, begun).await?;
        disturb(t).await?;
        let done = t.completed_within("once", LONG).await?;
        assert_eq!(done.text("/status/containerRecreateStates/0/phase"), "Succeeded", "{}", done["status"]);
        let now = t.containers("web").await?;
        assert_eq!((now["main"].restarts, now["other"].restarts), (1, 0));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_api_server_restarted_during_a_request() -> Result<()> {
    disturbed("apiserver", async |t| t.node().restart("apiserver", "KILL").await).await
}

#[tokio::test]
async fn the_api_server_away_for_longer_than_the_lease_during_a_request_restarts_no_manager() -> Result<()> {
    let away = async |t: &Test| {
        let before = restarts(t).await?;
        let frozen = Frozen::new(t.node().program("apiserver")?);
        // The leader gives the Lease up after 10 s, anybody may take it after 15.
        tokio::time::sleep(Duration::from_secs(25)).await;
        drop(frozen);
        poll("a manager to lead", LONG, async || holder(t).await.map(drop)).await?;
        // The one that led before may learn of it last.
        tokio::time::sleep(Duration::from_secs(15)).await;
        assert_eq!(restarts(t).await?, before, "an outage of the API server restarts no manager");
        Ok(())
    };
    disturbed("api-away", away).await
}

#[tokio::test]
async fn a_manager_that_was_away_takes_up_the_drain() -> Result<()> {
    in_namespace("manager", async |t| {
        let web = pod("web", vec![app("main"), app("other")])
            .with("/spec/readinessGates", json!([{ "conditionType": "KruisePodReady" }]));
        t.start(web).await?;
        t.create(crr("once", "web", &["main"]).with("/spec/strategy/unreadyGracePeriodSeconds", 3)).await?;
        t.wait_for("Pod", "web", "to be NotReady", PATIENCE, |p| condition(p, "Ready") == "False").await?;
        let restarted =
            t.wait_for("Pod", "web", "to be restarted", PATIENCE, |p| Container::all(p)["main"].restarts == 1);
        let restarted = t.node().with_replicas(MANAGER, 0, restarted).await;
        restarted.context("the daemon needs no manager once the grace has begun")?;
        t.succeeded("once").await?;
        t.ready("web").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_object_that_cannot_be_decoded_disturbs_nobody() -> Result<()> {
    in_namespace("undecodable", async |t| {
        t.start(pod("web", vec![app("main"), app("other")])).await?;
        let crd = "containerrecreaterequests.apps.kruise.io";
        // only a schema of former times and an absent webhook let such an object in
        let mut loose = t.get("CustomResourceDefinition", crd).await?;
        for version in loose["spec"]["versions"].as_array_mut().context("versions")? {
            version["schema"] =
                json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
        }
        let stored = async {
            t.patch("CustomResourceDefinition", crd, json!({ "spec": { "versions": loose["spec"]["versions"] } }))
                .await?;
            // The webhook puts this policy back when it runs again; those of other entries would stay.
            let name = "kruise-mutating-webhook-configuration";
            let mut webhooks = t.get("MutatingWebhookConfiguration", name).await?["webhooks"].clone();
            let of_requests = webhooks.as_array_mut().into_iter().flatten();
            for webhook in of_requests.filter(|entry| entry.text("/name") == "mcontainerrecreaterequest.kb.io") {
                webhook["failurePolicy"] = json!("Ignore");
            }
            t.patch("MutatingWebhookConfiguration", name, json!({ "webhooks": webhooks })).await?;
            let bad = json!({
                "kind": CRR,
                "metadata": { "name": "bad", "labels": {
                    "crr.apps.kruise.io/active": "true",
                    "crr.apps.kruise.io/node-name": e2e::paths::NODE,
                    "crr.apps.kruise.io/pod-uid": t.get("Pod", "web").await?.text("/metadata/uid"),
                } },
                "spec": { "podName": 7, "containers": "main", "strategy": [] },
                "status": { "phase": { "not": "text" } },
            });
            // a schema takes a moment to be in force
            let start = Instant::now();
            while let Err(error) = t.create(bad.clone()).await {
                ensure!(start.elapsed() < Duration::from_secs(20), "{error:#}");
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            anyhow::Ok(())
        };
        // deploy puts the schema back.
        restoring(t.node().with_replicas(WEBHOOK, 0, stored), t.node().deploy()).await?;
        t.restart("first", "web", &["main"]).await?;
        t.succeeded("first").await?;
        // roles that start with it in store
        t.node().fresh_daemon().await?;
        t.node().with_replicas(MANAGER, 0, async { Ok(()) }).await?;
        t.restart("second", "web", &["other"]).await?;
        t.succeeded("second").await?;
        t.remove(CRR, "bad").await?;
        t.gone(CRR, "bad").await
    })
    .await
}

#[tokio::test]
async fn another_manager_takes_over_the_lease() -> Result<()> {
    in_namespace("lease", async |t| {
        t.start(pod("web", vec![app("main")])).await?;
        let managers = t.list_in(SYSTEM, "Pod", "").await?;
        let leader = managers.iter().filter(|p| p.text("/metadata/name").starts_with(MANAGER));
        for manager in leader {
            let immediately = kube::api::DeleteParams::default().grace_period(0);
            t.api_in(SYSTEM, "Pod").delete(manager.text("/metadata/name"), &immediately).await?;
        }
        // needs the manager: the label goes only when it works again
        t.restart("once", "web", &["main"]).await?;
        t.succeeded("once").await?;
        let active = "/metadata/labels/crr.apps.kruise.io~1active";
        t.wait_for(CRR, "once", "to lose its active label", LONG, |o| !o.has(active)).await?;
        Ok(())
    })
    .await
}
