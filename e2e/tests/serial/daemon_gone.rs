//! A daemon that does not come back: requests end, or are left behind, and hold nothing any more.

use anyhow::{Result, ensure};
use e2e::images::remote;
use e2e::kit::{Build, Look, PATIENCE, Test, app, condition, crr, in_namespace, pod, poll, restoring};
use e2e::paths::{NODE, SYSTEM};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::{CRR, LONG, MANAGER, keeping, slow, until_kept};

/// What the managers are started with.
const SHIPPED: [&str; 1] = ["manager"];

/// Changes the flags of the managers.
async fn manager_flags(t: &Test, args: &[&str]) -> Result<()> {
    let patch = json!({ "spec": { "template": { "spec": { "containers": [{ "name": "manager", "args": args }] } } } });
    t.api_in(SYSTEM, "Deployment").patch(MANAGER, &PatchParams::default(), &Patch::Strategic(patch)).await?;
    t.kubectl(&["-n", SYSTEM, "rollout", "status", "--timeout=90s", "deployment", MANAGER]).await.map(drop)
}

fn told(message: &'static str) -> impl Fn(&Value) -> bool {
    move |o: &Value| o.text("/status/message").contains(message)
}

#[tokio::test]
async fn requests_of_a_node_without_a_daemon_end_or_are_left_behind() -> Result<()> {
    in_namespace("daemon-gone-after", async |t| {
        let body = async {
            manager_flags(t, &["manager", "--daemon-gone-after=1m"]).await?;
            ends_and_is_left_behind(t).await
        };
        restoring(body, manager_flags(t, &SHIPPED)).await
    })
    .await
}

async fn ends_and_is_left_behind(t: &Test) -> Result<()> {
    let gate = json!([{ "conditionType": "KruisePodReady" }]);
    t.start(pod("early", vec![app("main")]).with("/spec/readinessGates", gate)).await?;
    let main = slow("main").with("/image", remote("busybox"));
    t.start(keeping("slow", main, vec![app("other")])).await?;
    // One has its key and no stop on record yet, of the other a stop is on record and goes on.
    t.create(crr("early", "early", &["main"]).with("/spec/strategy/unreadyGracePeriodSeconds", 600)).await?;
    t.wait_for("Pod", "early", "to be NotReady", PATIENCE, |p| condition(p, "Ready") == "False").await?;
    t.create(crr("begun", "slow", &["main"]).with("/spec/strategy/terminationGracePeriodSeconds", 600)).await?;
    until_kept(t, "slow", "asked").await?;
    let other = t.containers("slow").await?["other"].id.clone();
    t.node()
        .without_daemon(async || {
            let done = t.completed_within("early", LONG * 2).await?;
            let reason = format!("node {NODE} has had no ready kruise-daemon for 60 s");
            ensure!(done.text("/status/message").contains(&reason), "{}", done["status"]);
            ensure!(done.text("/status/containerRecreateStates/0/phase") == "Failed", "{}", done["status"]);
            t.ready("early").await?;
            let free = |o: &Value| o.array("/metadata/finalizers").is_empty();
            t.wait_for(CRR, "early", "to be released", PATIENCE, free).await?;
            let left =
                t.wait_for(CRR, "begun", "to be left behind", PATIENCE, told("a recorded stop may still happen"));
            let left = left.await?;
            ensure!(condition(&left, "DaemonGone") == "True", "{}", left["status"]);
            // Later requests of the Pod go first: one that is served without a daemon.
            let later = crr("later", "slow", &["main"]).with("/spec/strategy/recreateMethod", "PodSpec");
            t.create(later).await?;
            t.wait_for(CRR, "later", "to begin", PATIENCE, |o| o.text("/status/phase") == "Recreating").await?;
            t.exec("slow", "main", "touch /kept/go").await?;
            t.completed_within("later", LONG).await?;
            ensure!(t.get(CRR, "begun").await?.text("/status/phase") != "Completed", "nobody could end it");
            Ok(())
        })
        .await?;
    // The daemon is back, and ends the older one.
    let running = t.containers("slow").await?;
    t.completed_within("begun", LONG).await?;
    let now = t.containers("slow").await?;
    assert_eq!(now["main"].id, running["main"].id, "another instance than the one on record was stopped");
    assert_eq!(now["other"].id, other);
    t.restart("after", "early", &["main"]).await?;
    t.succeeded("after").await.map(drop)
}

#[tokio::test]
async fn a_request_of_a_node_that_was_deleted_ends() -> Result<()> {
    const GONE: &str = "node-gone";
    in_namespace("node-deleted", async |t| {
        t.create(json!({ "kind": "Node", "metadata": { "name": GONE } })).await?;
        let body = async {
            t.create(pod("web", vec![app("main")]).with("/spec/nodeName", GONE)).await?;
            let runs = json!({ "name": "main", "image": "x", "imageID": "x", "ready": true, "restartCount": 0,
                "containerID": "containerd://1", "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } } });
            let status = json!({ "status": { "phase": "Running", "containerStatuses": [runs] } });
            t.api("Pod").patch_status("web", &PatchParams::default(), &Patch::Strategic(status)).await?;
            t.restart("once", "web", &["main"]).await?;
            Ok(())
        };
        restoring(body, t.remove("Node", GONE)).await?;
        // Before the garbage collector removes the Pod.
        let done = t.completed("once").await?;
        ensure!(done.text("/status/message") == format!("node {GONE} has been deleted"), "{}", done["status"]);
        poll("the Pod to go", PATIENCE, async || {
            t.kubectl(&["delete", "pod", "web", "--grace-period=0", "--force", "--ignore-not-found"]).await.map(drop)
        })
        .await
    })
    .await
}
