//! Container launch priority on a real kubelet.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, Recording, in_namespace, pod, poll, shell, workload};
use serde_json::{Value, json};

const COMPLETED: &str = "/metadata/annotations/apps.kruise.io~1container-launch-priority-completed";

/// A container that is ready two seconds after its start.
fn slow(name: &str) -> Value {
    shell(name, "sleep 2; touch /tmp/ready")
        .with("/readinessProbe", json!({ "exec": { "command": ["cat", "/tmp/ready"] }, "periodSeconds": 1 }))
}

fn with_priority(container: Value, priority: &str) -> Value {
    container.with("/env", json!([{ "name": "KRUISE_CONTAINER_PRIORITY", "value": priority }]))
}

/// Whether a container runs, and whether it is ready.
fn state(pod: &Value, container: &str) -> (bool, bool) {
    let status = pod.array("/status/containerStatuses").iter().find(|s| s.text("/name") == container);
    let status = status.cloned().unwrap_or_default();
    (status.has("/state/running"), status.pointer("/ready").and_then(Value::as_bool).unwrap_or_default())
}

/// In no state of a Pod does a container run before the one in front of it is ready, until all have started.
async fn started_in_order(recording: &Recording, order: &[&str]) -> Result<()> {
    // The recording is a watch of its own and may be behind.
    poll("the recording to show all", PATIENCE, async || judge_order(recording, order)).await
}

fn judge_order(recording: &Recording, order: &[&str]) -> Result<()> {
    let mut started = BTreeSet::new();
    for (_, pod) in recording.states() {
        for pair in order.windows(2) {
            let ((_, ready), (runs, _)) = (state(&pod, pair[0]), state(&pod, pair[1]));
            if runs && started.insert(pair[1].to_owned()) {
                ensure!(ready, "{} was seen to run while {} was not ready", pair[1], pair[0]);
            }
        }
    }
    ensure!(started.len() == order.len() - 1, "not all were seen to run: {started:?}");
    Ok(())
}

#[tokio::test]
async fn higher_priorities_start_first_and_lower_ones_when_those_are_ready() -> Result<()> {
    in_namespace("launch", async |t| {
        let recording = t.record("Pod", "web").await?;
        let containers =
            vec![with_priority(shell("last", ""), "-7"), shell("second", ""), with_priority(slow("first"), "5")];
        let web = t.start(pod("web", containers)).await?;
        started_in_order(&recording, &["first", "second", "last"]).await?;
        let web =
            t.wait_for("Pod", "web", "to be marked", PATIENCE, |p| p.text(COMPLETED) == "true").await.map(|_| web)?;
        let barrier = t.get("ConfigMap", "web-barrier").await?;
        assert_eq!(barrier["data"], json!({ "p_5": "true", "p_0": "true", "p_-7": "true" }));
        let owner = json!([{ "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": web.text("/metadata/uid") }]);
        assert_eq!(barrier["metadata"]["ownerReferences"], owner);
        ensure!(!barrier.has("/metadata/labels") && !barrier.has("/metadata/annotations"), "{barrier}");
        for state in recording.states().iter().filter(|(_, pod)| !pod.array("/status/containerStatuses").is_empty()) {
            let kinds = state.1.array("/status/containerStatuses").iter().filter(|s| s.int("/restartCount") > 0);
            assert_eq!(kinds.count(), 0, "nothing was restarted");
        }
        t.remove("Pod", "web").await?;
        t.gone("ConfigMap", "web-barrier").await
    })
    .await
}

#[tokio::test]
async fn ordered_starts_containers_as_they_are_listed() -> Result<()> {
    in_namespace("launch-ordered", async |t| {
        let recording = t.record("Pod", "web").await?;
        let ordered = pod("web", vec![slow("a"), slow("b"), shell("c", "")])
            .with("/metadata/annotations/apps.kruise.io~1container-launch-priority", "Ordered");
        t.start(ordered).await?;
        started_in_order(&recording, &["a", "b", "c"]).await?;
        t.wait_for("Pod", "web", "to be marked", PATIENCE, |p| p.text(COMPLETED) == "true").await?;
        assert_eq!(
            t.get("ConfigMap", "web-barrier").await?["data"],
            json!({ "p_0": "true", "p_-1": "true", "p_-2": "true" })
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn pods_of_any_workload_get_their_name_for_it() -> Result<()> {
    in_namespace("launch-deployment", async |t| {
        let containers = vec![shell("last", ""), with_priority(shell("first", ""), "1")];
        t.create(workload("Deployment", "web", 2, containers)).await?;
        t.wait_for("Deployment", "web", "to be available", PATIENCE, |d| d.int("/status/availableReplicas") == 2)
            .await?;
        for pod in t.list("Pod", "app=web").await? {
            let barrier = format!("{}-barrier", pod.text("/metadata/name"));
            let last = pod.array("/spec/containers/0/env").last().context("it has an environment")?;
            assert_eq!(last.text("/valueFrom/configMapKeyRef/name"), barrier);
            assert_eq!(t.get("ConfigMap", &barrier).await?["data"], json!({ "p_0": "true", "p_1": "true" }));
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_priority_that_is_none_is_refused() -> Result<()> {
    in_namespace("launch-refused", async |t| {
        for bad in ["high", "2147483648", "-2147483648", ""] {
            let (code, message) =
                t.refused(pod("web", vec![with_priority(shell("first", ""), bad), shell("last", "")])).await?;
            ensure!(code == 400, "{code}: {message}");
            ensure!(message.contains("\"first\"") && message.contains(&format!("{bad:?}")), "{message}");
        }
        // Nobody waits for the only container.
        let alone = t.create(pod("alone", vec![with_priority(shell("first", ""), "high")])).await?;
        assert_eq!(alone.array("/spec/containers/0/env").len(), 1);
        let equal = vec![with_priority(shell("a", ""), "3"), with_priority(shell("b", ""), "3")];
        let equal = t.create(pod("equal", equal)).await?;
        assert_eq!(equal.array("/spec/containers/0/env").len(), 1);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_config_map_of_somebody_else_is_left_alone_and_named() -> Result<()> {
    in_namespace("launch-taken", async |t| {
        let mine = json!({ "kind": "ConfigMap", "metadata": { "name": "web-barrier" }, "data": { "mine": "1" } });
        t.create(mine).await?;
        t.create(pod("web", vec![shell("last", ""), with_priority(shell("first", ""), "1")])).await?;
        t.wait_events("Pod", "web", |events| {
            events.iter().any(|e| e.starts_with("LaunchBarrierTaken") && e.contains("web-barrier"))
        })
        .await?;
        assert_eq!(t.get("ConfigMap", "web-barrier").await?["data"], json!({ "mine": "1" }));
        t.remove("ConfigMap", "web-barrier").await?;
        // It looks again every half a minute.
        t.wait_for("Pod", "web", "to be marked", Duration::from_secs(90), |p| p.text(COMPLETED) == "true").await?;
        t.ready("web").await?;
        Ok(())
    })
    .await
}
