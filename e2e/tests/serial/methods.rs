//! Without any daemon: method PodSpec works in the manager alone.

use anyhow::{Context, Result, ensure};
use e2e::images::remote;
use e2e::kit::{Build, GATES, Look, Test, crr, in_namespace, pod, restoring};
use e2e::paths::SYSTEM;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

pub(crate) async fn patch_in_system(t: &Test, kind: &str, name: &str, patch: Value) -> Result<()> {
    t.api_in(SYSTEM, kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Takes the daemons away, or lets them come back.
pub(crate) async fn daemons(t: &Test, there: bool) -> Result<()> {
    let selector = if there { Value::Null } else { json!("nowhere") };
    let patch = json!({ "spec": { "template": { "spec": { "nodeSelector": { "e2e/daemons": selector } } } } });
    patch_in_system(t, "DaemonSet", "kruise-daemon", patch).await?;
    if there {
        return t.node().daemon_ready().await;
    }
    t.node().gone("control-plane=daemon", |_| true).await
}

fn by(method: &str, name: &str) -> Value {
    crr(name, "web", &["main"]).with("/spec/strategy/recreateMethod", method)
}

#[tokio::test]
async fn without_any_daemon_the_manager_restarts_containers() -> Result<()> {
    in_namespace("no-daemon", async |t| {
        let container = |name: &str| json!({ "name": name, "image": remote("pause") });
        t.start(pod("web", vec![container("main"), container("other")])).await?;
        let body = async {
            daemons(t, false).await?;
            t.create(by("PodSpec", "asked")).await?;
            t.succeeded("asked").await?;
            let answer = t.apply(&by("Auto", "auto")).await?;
            ensure!(answer.stderr.contains("no kruise-daemon is ready"), "{}", answer.stderr);
            let done = t.succeeded("auto").await?;
            assert_eq!(done.text("/metadata/labels/crr.kruise.rs~1method"), "PodSpec");

            let config = serde_json::to_value(t.api_in(SYSTEM, "ConfigMap").get(GATES).await?)?;
            let before = config.text("/data/feature-gates").to_owned();
            let gate_off = async {
                t.set_gates("KruiseDaemon=false").await?;
                let (code, message) = t.refused(by("Runtime", "refused")).await?;
                ensure!(code == 403 && message.contains("KruiseDaemon"), "{code} {message}");
                t.create(by("Auto", "gate-off").with("/spec/strategy/varyImageTag", true)).await?;
                t.succeeded("gate-off").await.context("gate KruiseDaemon off")?;
                assert_eq!(t.containers("web").await?["main"].restarts, 3);
                Ok(())
            };
            restoring(gate_off, t.set_gates(&before)).await
        };
        restoring(body, daemons(t, true)).await?;
        t.restart("back", "web", &["other"]).await?;
        t.succeeded("back").await.map(drop)
    })
    .await
}
