//! `kubectl kruise doctor` on an installation with something missing.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::kit::{PATIENCE, Test, in_namespace};
use e2e::paths::SYSTEM;
use kube::api::{Patch, PatchParams};
use serde_json::json;

/// Waits until the last Pod of the installation with a label is gone.
async fn none_left(t: &Test, labels: &str) -> Result<()> {
    let start = Instant::now();
    while !t.list_in(SYSTEM, "Pod", labels).await?.is_empty() {
        ensure!(start.elapsed() < PATIENCE, "a Pod with {labels} stays");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

#[tokio::test]
async fn doctor_names_the_node_without_a_daemon() -> Result<()> {
    in_namespace("doctor-daemon", async |t| {
        let away = async |label: Option<&str>| {
            let patch = json!({ "spec": { "template": { "spec": { "nodeSelector": { "e2e/nowhere": label } } } } });
            t.api_in(SYSTEM, "DaemonSet").patch("kruise-daemon", &PatchParams::default(), &Patch::Merge(patch)).await
        };
        away(Some("true")).await?;
        let result = async {
            none_left(t, "control-plane=daemon").await?;
            let answer = t.plugin_exits(1, &["doctor"]).await?;
            for words in
                ["FAIL   daemon", "node-a: no daemon runs there", "-> kubectl -n kruise-system describe daemonset"]
            {
                ensure!(answer.stdout.contains(words), "{words:?} in\n{}", answer.stdout);
            }
            Ok(())
        }
        .await;
        away(None).await?;
        t.node().daemon_ready().await?;
        result
    })
    .await
}

#[tokio::test]
async fn doctor_sees_a_webhook_that_does_not_answer() -> Result<()> {
    in_namespace("doctor-webhook", async |t| {
        let before = t.node().scale("kruise-webhook", 0).await?;
        let checked = async {
            // One that is ending still answers on connections that are open.
            none_left(t, "control-plane=webhook").await?;
            let answer = t.plugin_exits(1, &["doctor"]).await?;
            for words in ["nobody answers behind the webhook's Service", "failed calling webhook"] {
                ensure!(answer.stdout.contains(words), "{words:?} in\n{}", answer.stdout);
            }
            // Not refused: the cluster cannot answer.
            t.plugin_exits(6, &["restart", "pod/web", "-c", "main"]).await?;
            Ok(())
        }
        .await;
        t.node().scale("kruise-webhook", before).await?;
        checked
    })
    .await
}
