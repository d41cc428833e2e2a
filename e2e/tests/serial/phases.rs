//! Programs killed while restarts are in each of their phases: a Pod in each phase, one kill, and then all end rightly.
//!
//! The phases are held by files and a ConfigMap, so that none is over before the kill, however slow the machine is.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::kit::{Build, Container, Look, PATIENCE, Test, app, crr, in_namespace, pod, poll, shell};
use e2e::paths::SYSTEM;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::{CRR, LONG, MANAGER, UNTIL_GO, keeping, late, slow, until_kept, with_daemon};

fn pods() -> Vec<Value> {
    // Its stop lasts, and a second request waits for its turn.
    let slow = slow("main");
    // Its hook lasts.
    let hook = json!(["sh", "-c", format!("echo hook >> /kept/log; {UNTIL_GO}")]);
    let hooked = shell("main", "").with("/lifecycle/preStop/exec/command", hook);
    // It cannot be made again until its ConfigMap is back.
    let source = json!([{ "name": "X", "valueFrom": { "configMapKeyRef": { "name": "needed", "key": "x" } } }]);
    let dependent = app("main").with("/env", source);
    vec![
        keeping("stop", slow, vec![app("other")]),
        keeping("hook", hooked, vec![]),
        pod("start", vec![dependent]),
        keeping("ready", late("main"), vec![]),
    ]
}

async fn needed(t: &Test) -> Result<()> {
    let map = json!({ "kind": "ConfigMap", "metadata": { "name": "needed" }, "data": { "x": "1" } });
    t.create(map).await.map(drop)
}

/// Brings one request into each phase.
async fn begin(t: &Test) -> Result<()> {
    needed(t).await?;
    futures::future::try_join_all(pods().into_iter().map(|pod| t.start(pod))).await?;
    t.remove("ConfigMap", "needed").await?;
    let request = |name: &str| crr(name, name, &["main"]).with("/spec/strategy/terminationGracePeriodSeconds", 120);
    for name in ["stop", "hook", "start", "ready"] {
        t.create(request(name)).await?;
    }
    until_kept(t, "stop", "asked").await?;
    t.restart("turn", "stop", &["other"]).await?;
    until_kept(t, "hook", "log").await?;
    t.wait_for(CRR, "turn", "to wait for its turn", PATIENCE, |o| o.text("/status/phase") == "Pending").await?;
    let broken = |p: &Value| p.text("/status/containerStatuses/0/state/waiting/reason") == "CreateContainerConfigError";
    t.wait_for("Pod", "start", "to be held up", PATIENCE, broken).await?;
    let unready = |p: &Value| Container::all(p)["main"].restarts == 1 && !Container::all(p)["main"].ready;
    t.wait_for("Pod", "ready", "to run again", PATIENCE, unready).await?;
    for name in ["start", "ready"] {
        let killed = |o: &Value| o.has("/status/containerRecreateStates/0/killedAt");
        t.wait_for(CRR, name, "to know that the old instance is gone", PATIENCE, killed).await?;
    }
    Ok(())
}

async fn in_each_phase(t: &Test, kill: impl AsyncFnOnce(&Test) -> Result<()>) -> Result<()> {
    begin(t).await?;
    kill(t).await?;
    needed(t).await?;
    for pod in ["stop", "hook", "ready"] {
        // kubelet or the runtime may only just be back; a container that has ended meanwhile needs the file no longer.
        poll("the phase to go on", PATIENCE, async || t.exec(pod, "main", "touch /kept/go").await.map(drop)).await?;
    }
    for (request, pod, containers) in [
        ("stop", "stop", &["main", "other"][..]),
        ("turn", "stop", &["main", "other"]),
        ("hook", "hook", &["main"]),
        ("start", "start", &["main"]),
        ("ready", "ready", &["main"]),
    ] {
        let done = t.completed_within(request, LONG).await?;
        let state = done.pointer("/status/containerRecreateStates/0").cloned().unwrap_or_default();
        ensure!(state.text("/phase") == "Succeeded", "{request}: {}", done["status"]);
        ensure!(done.text("/status/message").is_empty(), "{request}: {}", done["status"]);
        let active = "/metadata/labels/crr.apps.kruise.io~1active";
        t.wait_for(CRR, request, "to lose its active label", LONG, |o| !o.has(active)).await?;
        if request != "stop" {
            let now = t.containers(pod).await?;
            let restarts: Vec<i64> = containers.iter().map(|c| now[*c].restarts).collect();
            ensure!(restarts.iter().all(|r| *r == 1), "{request}: restarted {restarts:?} times, not once each");
        }
    }
    assert_eq!(t.exec("hook", "main", "cat /kept/log").await?, "hook", "the hook ran once");
    Ok(())
}

/// The daemon has asked for container events, and got some, if containerd sends them to all who ask; else it has not asked.
async fn events_are_used(t: &Test) -> Result<()> {
    let wanted = t.paths.pair.has_container_events();
    let daemon = t.node().daemon().await?;
    let daemon = daemon.text("/metadata/name");
    poll("the log of the daemon to tell of container events", PATIENCE, async || {
        let log = t.kubectl(&["logs", daemon, "-n", SYSTEM, "--tail=-1"]).await?;
        let found =
            log.lines().find(|line| line.contains("container runtime found")).context("no runtime was found")?;
        ensure!(found.contains(&format!("events={wanted}")), "{found}");
        ensure!(log.contains("container events arrive") == wanted, "{log}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn containerd_killed_in_each_phase() -> Result<()> {
    in_namespace("phases-containerd", async |t| {
        t.node().daemon_ready().await?;
        in_each_phase(t, async |t| t.node().restart("containerd", "KILL").await).await?;
        events_are_used(t).await
    })
    .await
}

#[tokio::test]
async fn kubelet_killed_in_each_phase() -> Result<()> {
    in_namespace("phases-kubelet", async |t| {
        t.node().daemon_ready().await?;
        in_each_phase(t, async |t| t.node().restart("kubelet", "KILL").await).await
    })
    .await
}

#[tokio::test]
async fn the_daemon_killed_in_each_phase() -> Result<()> {
    with_daemon("phases-daemon", async |t| in_each_phase(t, async |t| t.node().kill_daemon().await).await).await
}

#[tokio::test]
async fn every_manager_killed_in_each_phase() -> Result<()> {
    in_namespace("phases-manager", async |t| {
        t.node().daemon_ready().await?;
        let kill = async |t: &Test| {
            for manager in t.node().replicas(MANAGER).await? {
                t.node().process_of(&manager).await?.signal("KILL");
                // New Pods: restarts by kubelet wait longer each time.
                let now = DeleteParams::default().grace_period(0);
                t.api_in(SYSTEM, "Pod").delete(manager.text("/metadata/name"), &now).await?;
            }
            Ok(())
        };
        in_each_phase(t, kill).await?;
        poll("the managers to be back", Duration::from_secs(60), async || {
            let managers = t.node().replicas(MANAGER).await?;
            let ready = managers.iter().filter(|p| e2e::kit::condition(p, "Ready") == "True").count();
            ensure!(ready >= 2, "{ready} are ready");
            Ok(())
        })
        .await
    })
    .await
}
