//! A webhook that answers at once: the server of ours, with a handler that finds nothing to do.

use anyhow::{Context, Result, ensure};
use kube::api::{DynamicObject, GetParams, PostParams, Request};
use serde_json::{Value, json};

use crate::kit::{Build, Look, PATIENCE, Test, poll};
use crate::paths::SYSTEM;

const CONFIGURATION: &str = "kruise-mutating-webhook-configuration";
/// A handler of the webhook that has nothing to do where there is no PodUnavailableBudget.
const AT_ONCE: &str = "/mutate-pod-budget";

/// A Pod as it would be created.
pub(super) async fn tried(t: &Test, pod: Value) -> Result<Value> {
    let object: DynamicObject = serde_json::from_value(pod.with("/apiVersion", "v1"))?;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    Ok(serde_json::to_value(t.api("Pod").create(&dry_run, &object).await?)?)
}

/// From now on the API server asks our webhook about new Pods of a namespace, which has no work with them.
pub(super) async fn answer_at_once(t: &Test, pod: Value) -> Result<()> {
    let live = serde_json::to_value(t.api("MutatingWebhookConfiguration").get(CONFIGURATION).await?)?;
    let entry = live.array("/webhooks").iter().find(|entry| entry.text("/name") == "mpod.kb.io");
    let entry = entry.context("the entry for new Pods")?.clone();
    let entry = entry
        .with("/name", "at-once.example.com")
        .with("/clientConfig/service/path", AT_ONCE)
        .with("/matchConditions", json!([]))
        .with("/failurePolicy", "Fail")
        .with("/namespaceSelector", json!({ "matchLabels": { "kubernetes.io/metadata.name": t.namespace } }));
    t.create(
        json!({ "kind": "MutatingWebhookConfiguration", "metadata": { "name": t.namespace }, "webhooks": [entry] }),
    )
    .await?;
    let before = answers_at_once(t).await?;
    poll("the webhook to be asked", PATIENCE, async || {
        tried(t, pod.clone()).await?;
        ensure!(answers_at_once(t).await? > before, "it is not asked yet");
        Ok(())
    })
    .await
}

/// How often the handler that does nothing has answered, by all replicas.
async fn answers_at_once(t: &Test) -> Result<f64> {
    let mut sum = 0.0;
    for pod in t.node().replicas("kruise-webhook").await? {
        let text = metrics(t, pod.text("/metadata/name")).await?;
        let lines = text.lines().filter(|line| {
            line.starts_with("controller_runtime_webhook_requests_total{") && line.contains(&format!("\"{AT_ONCE}\""))
        });
        sum += lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>();
    }
    Ok(sum)
}

/// What the handler of new Pods has needed by its own clock since the starts of all replicas: seconds, and for how many Pods.
pub(super) async fn own_time(t: &Test) -> Result<(f64, f64)> {
    let (mut seconds, mut pods) = (0.0, 0.0);
    for pod in t.node().replicas("kruise-webhook").await? {
        let (of_replica, count) = own_time_in(&metrics(t, pod.text("/metadata/name")).await?);
        seconds += of_replica;
        pods += count;
    }
    Ok((seconds, pods))
}

fn own_time_in(metrics: &str) -> (f64, f64) {
    let sum = |name: &str| -> f64 {
        let lines = metrics.lines().filter(|line| line.starts_with(name) && line.contains("webhook=\"/mutate-pod\""));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    (sum("controller_runtime_webhook_latency_seconds_sum{"), sum("controller_runtime_webhook_latency_seconds_count{"))
}

pub(super) async fn metrics(t: &Test, pod: &str) -> Result<String> {
    let path = format!("/api/v1/namespaces/{SYSTEM}/pods/{pod}:8080/proxy");
    Ok(t.client.request_text(Request::new(path).get("metrics", &GetParams::default())?).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_new_pods_is_told_from_that_of_others() {
        let metrics = "controller_runtime_webhook_latency_seconds_sum{webhook=\"/mutate-pod\"} 0.5\n\
            controller_runtime_webhook_latency_seconds_count{webhook=\"/mutate-pod\"} 4\n\
            controller_runtime_webhook_latency_seconds_sum{webhook=\"/mutate-pod-budget\"} 7\n\
            controller_runtime_webhook_latency_seconds_bucket{le=\"0.001\",webhook=\"/mutate-pod\"} 2\n";
        assert_eq!(own_time_in(metrics), (0.5, 4.0));
    }
}
