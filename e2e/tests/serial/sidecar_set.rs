//! Sidecars while no webhook answers: Pods are created without them, but for namespaces that say that they must not.

use anyhow::{Result, ensure};
use e2e::kit::{Look, Test, app, in_namespace, pod, restoring};
use serde_json::json;

use crate::WEBHOOK;

async fn without_the_webhook(t: &Test) -> Result<()> {
    for name in ["changed", "doomed"] {
        t.start(pod(name, vec![app("main")])).await?;
    }
    let label = json!({ "metadata": { "labels": { "kruise.rs/sidecars": "required" } } });
    t.patch("Namespace", &t.namespace, label).await?;
    let free = Test::new("sidecars-free").await?;
    t.node().scale(WEBHOOK, 0).await?;
    let (code, message) = t.refused(pod("refused", vec![app("main")])).await?;
    ensure!(code == 500 && message.contains("mpod-required.kb.io"), "{code} {message}");
    // Nothing but the creation of Pods, and nothing elsewhere.
    free.start(pod("plain", vec![app("main")])).await?;
    t.patch("Pod", "changed", json!({ "metadata": { "labels": { "changed": "yes" } } })).await?;
    t.remove("Pod", "doomed").await?;
    t.gone("Pod", "doomed").await?;
    free.remove("Namespace", &free.namespace).await
}

#[tokio::test]
async fn where_sidecars_are_required_no_pod_is_created_without_the_webhook() -> Result<()> {
    in_namespace("sidecars-required", async |t| {
        let again = async {
            t.node().scale(WEBHOOK, 2).await?;
            t.webhook_answers().await
        };
        restoring(without_the_webhook(t), again).await?;
        let born = t.start(pod("born", vec![app("main")])).await?;
        assert_eq!(born.array("/spec/containers").len(), 1);
        Ok(())
    })
    .await
}
