//! What happens when a container does not come back, or not in time.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::kit::{Build, Container, Look, PATIENCE, Test, app, crr, in_namespace, pod, poll, shell, stubborn};
use serde_json::{Value, json};

const CRR: &str = "ContainerRecreateRequest";

/// A container that cannot be made again once its ConfigMap is gone.
fn dependent(name: &str) -> Value {
    app(name)
        .with("/env", json!([{ "name": "X", "valueFrom": { "configMapKeyRef": { "name": "needed", "key": "x" } } }]))
}

/// A Pod whose first container cannot come back.
async fn broken_pod(t: &Test) -> Result<()> {
    t.create(json!({ "kind": "ConfigMap", "metadata": { "name": "needed" }, "data": { "x": "1" } })).await?;
    t.start(pod("web", vec![dependent("broken"), app("fine")])).await?;
    t.remove("ConfigMap", "needed").await
}

fn state<'a>(request: &'a Value, container: &str) -> &'a Value {
    let states = request.array("/status/containerRecreateStates").iter();
    states.clone().find(|s| s.text("/name") == container).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn with_policy_fail_the_first_failure_ends_the_request() -> Result<()> {
    in_namespace("fail", async |t| {
        broken_pod(t).await?;
        t.create(crr("once", "web", &["broken", "fine"]).with("/spec/strategy/orderedRecreate", true)).await?;
        let done = t.completed_within("once", Duration::from_secs(120)).await?;
        assert_eq!(state(&done, "broken").text("/phase"), "Failed");
        let message = state(&done, "broken").text("/message");
        ensure!(message.contains("CreateContainerConfigError"), "the reason is named: {message}");
        assert_ne!(state(&done, "fine").text("/phase"), "Succeeded");
        assert_eq!(t.containers("web").await?["fine"].restarts, 0, "the rest is not touched");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn with_policy_ignore_the_others_are_restarted() -> Result<()> {
    in_namespace("ignore", async |t| {
        broken_pod(t).await?;
        let request = crr("once", "web", &["broken", "fine"])
            .with("/spec/strategy/orderedRecreate", true)
            .with("/spec/strategy/failurePolicy", "Ignore");
        t.create(request).await?;
        let done = t.completed_within("once", Duration::from_secs(120)).await?;
        assert_eq!(
            (state(&done, "broken").text("/phase"), state(&done, "fine").text("/phase")),
            ("Failed", "Succeeded")
        );
        assert_eq!(t.containers("web").await?["fine"].restarts, 1);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_container_that_crashes_after_its_restart_fails_and_does_not_hang() -> Result<()> {
    in_namespace("crash", async |t| {
        // runs well the first time, and ends after two seconds each time after that
        let script = "if [ -e /kept/again ]; then sleep 2; exit 1; fi; touch /kept/again";
        let main = shell("main", script).with("/volumeMounts", json!([{ "name": "kept", "mountPath": "/kept" }]));
        t.start(pod("web", vec![main]).with("/spec/volumes", json!([{ "name": "kept", "emptyDir": {} }]))).await?;
        t.create(crr("once", "web", &["main"]).with("/spec/strategy/minStartedSeconds", 5)).await?;
        // three further instances, with kubelet's pauses of 10, 20 and 40 s between them
        let done = t.completed_within("once", Duration::from_secs(150)).await?;
        assert_eq!(state(&done, "main").text("/phase"), "Failed", "{}", done["status"]);
        ensure!(!state(&done, "main").text("/message").is_empty(), "it says why");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn success_needs_the_minimum_time_of_running() -> Result<()> {
    in_namespace("min-started", async |t| {
        t.start(pod("web", vec![app("main")])).await?;
        t.create(crr("once", "web", &["main"]).with("/spec/strategy/minStartedSeconds", 5)).await?;
        let done = t.succeeded("once").await?;
        let started: jiff::Timestamp = t.containers("web").await?["main"].started.parse()?;
        let completed: jiff::Timestamp = done.text("/status/completionTime").parse().context("completionTime")?;
        let ran = completed.duration_since(started).as_secs_f64();
        // the Pod's times have whole seconds
        ensure!((5.0..40.0).contains(&ran), "completed after {ran} s of running");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_deadline_ends_a_request_and_fails_what_is_unfinished() -> Result<()> {
    in_namespace("deadline", async |t| {
        let never = json!({ "periodSeconds": 1, "exec": { "command": ["false"] } });
        let slow = shell("main", "").with("/readinessProbe", never);
        t.create(pod("slow", vec![slow])).await?;
        t.wait_for("Pod", "slow", "to run", PATIENCE, |p| p.text("/status/phase") == "Running").await?;
        let created = t.create(crr("once", "slow", &["main"]).with("/spec/activeDeadlineSeconds", 6)).await?;
        let done = t.completed("once").await?;
        assert_eq!(done.text("/status/message"), "recreating has exceeded the activeDeadlineSeconds");
        assert_eq!(state(&done, "main").text("/phase"), "Failed");
        let from: jiff::Timestamp = created.text("/metadata/creationTimestamp").parse()?;
        let to: jiff::Timestamp = done.text("/status/completionTime").parse()?;
        let lived = to.duration_since(from).as_secs_f64();
        ensure!((5.0..40.0).contains(&lived), "ended {lived} s after its creation");
        // The next request of the Pod is not held up: its container is stopped again.
        let restarted = |p: &Value| Container::all(p).get("main").is_some_and(|main| main.restarts == 1);
        t.wait_for("Pod", "slow", "to show its first restart", PATIENCE, restarted).await?;
        let before = t.containers("slow").await?["main"].id.clone();
        t.create(crr("next", "slow", &["main"]).with("/spec/activeDeadlineSeconds", 60)).await?;
        poll("the container to be restarted once more", PATIENCE, async || {
            let now = t.containers("slow").await?["main"].id.clone();
            ensure!(now != before, "still {before}");
            Ok(())
        })
        .await
    })
    .await
}

#[tokio::test]
async fn the_deadline_also_ends_a_request_that_waits_for_its_turn() -> Result<()> {
    in_namespace("deadline-queue", async |t| {
        let web = pod("web", vec![stubborn("slow"), app("quick")])
            .with("/spec/readinessGates", json!([{ "conditionType": "KruisePodReady" }]));
        t.start(web).await?;
        let slow = t.containers("web").await?["slow"].id.clone();
        // The test ends it when the second one is over.
        t.create(crr("first", "web", &["slow"]).with("/spec/strategy/terminationGracePeriodSeconds", 300)).await?;
        t.wait_for(CRR, "first", "to begin", PATIENCE, |o| o.text("/status/phase") == "Recreating").await?;
        let second = crr("second", "web", &["quick"])
            .with("/spec/activeDeadlineSeconds", 4)
            .with("/spec/strategy/unreadyGracePeriodSeconds", 1);
        t.create(second).await?;
        let done = t.completed("second").await?;
        let message = done.text("/status/message");
        ensure!(message.starts_with("recreating has exceeded the activeDeadlineSeconds"), "{message}");
        assert_eq!(t.containers("web").await?["quick"].restarts, 0, "it was never executed");
        t.node().signal(&slow, "KILL").await?;
        t.succeeded("first").await?;
        t.ready("web").await?;
        assert_eq!(t.containers("web").await?["quick"].restarts, 0);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_pod_that_goes_during_a_restart_ends_the_request() -> Result<()> {
    in_namespace("pod-gone", async |t| {
        t.start(pod("web", vec![stubborn("main")])).await?;
        t.create(crr("once", "web", &["main"]).with("/spec/strategy/terminationGracePeriodSeconds", 30)).await?;
        t.wait_for(CRR, "once", "to begin", PATIENCE, |o| o.text("/status/phase") == "Recreating").await?;
        t.remove("Pod", "web").await?;
        let done = t.completed("once").await?;
        ensure!(done.text("/status/message").contains("pod has gone"), "{}", done["status"]);
        assert_eq!(state(&done, "main").text("/phase"), "Failed");
        Ok(())
    })
    .await
}
