//! Draining before the stop: the Pod is NotReady first, its endpoint too, and Ready again at the end.

use anyhow::{Context, Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, Recording, RuntimeEvents, app, condition, crr, in_namespace, pod, poll};
use serde_json::{Value, json};

const CRR: &str = "ContainerRecreateRequest";

fn gated(name: &str) -> Value {
    pod(name, vec![app("main"), app("other")])
        .with("/spec/readinessGates", json!([{ "conditionType": "KruisePodReady" }]))
}

/// What a Pod's `Ready` became, one after the other, since it was True; in the end it is True again.
async fn ready_states(pod: &Recording) -> Result<Vec<String>> {
    // The recording is a watch of its own and may be behind.
    poll("the recording to show the Pod Ready again", PATIENCE, async || {
        let mut seen: Vec<String> = pod.states().iter().map(|(_, p)| condition(p, "Ready").to_owned()).collect();
        seen.dedup();
        let seen = match seen.strip_prefix(&["True".to_owned()]) {
            Some(rest) => rest.to_vec(),
            None => seen,
        };
        ensure!(seen.len() > 1 && seen.last().is_some_and(|last| last == "True"), "{seen:?}");
        Ok(seen)
    })
    .await
}

#[tokio::test]
async fn a_pod_is_drained_before_the_stop_and_ready_afterwards() -> Result<()> {
    in_namespace("drain", async |t| {
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": "web" },
            "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80 }] },
        });
        t.create(service).await?;
        t.start(gated("web")).await?;
        let old = t.containers("web").await?;
        let slice = t.slice_of("web").await?;
        let endpoint = |o: &Value, ready: bool| o.pointer("/endpoints/0/conditions/ready") == Some(&json!(ready));
        t.wait_for("EndpointSlice", &slice, "to be ready", PATIENCE, |o| endpoint(o, true)).await?;

        let events = RuntimeEvents::listen()?;
        let (pod_seen, slice_seen) = (t.record("Pod", "web").await?, t.record("EndpointSlice", &slice).await?);
        t.create(crr("once", "web", &["main"]).with("/spec/strategy/unreadyGracePeriodSeconds", 10)).await?;
        let (_, drained) = slice_seen.seen("the endpoint drained", |o| endpoint(o, false)).await?;
        let is_out = |p: &Value| ["Ready", "KruisePodReady"].map(|type_| condition(p, type_)) == ["False", "False"];
        let (_, not_ready) = pod_seen.seen("the Pod out of service by its gate", is_out).await?;
        let keys = not_ready.array("/status/conditions").iter().find(|c| c.text("/type") == "KruisePodReady");
        // byte for byte as OpenKruise writes it: several programs share the message
        let expected = format!(r#"[{{"userAgent":"ContainerRecreateRequest","key":"{}/once"}}]"#, t.namespace);
        assert_eq!(keys.context("the condition")?.text("/message"), expected);

        let exit = events.exit(&old["main"].id, PATIENCE).await?;
        let writes = drained.array("/metadata/managedFields").iter();
        let writes = writes.filter_map(|write| write.text("/time").parse::<jiff::Timestamp>().ok());
        let written = writes.max().context("the time of a write")?;
        ensure!(written < exit.at, "the endpoint is drained before the stop at {}: {drained}", exit.at);
        let (_, since) = pod_seen.seen("the Pod NotReady", |p| condition(p, "Ready") == "False").await?;
        let since = since.array("/status/conditions").iter().find(|c| c.text("/type") == "Ready").cloned();
        let since: jiff::Timestamp = since.context("Ready")?.text("/lastTransitionTime").parse()?;
        let grace = exit.at.duration_since(since).as_secs_f64();
        // The Pod's times have whole seconds.
        ensure!((9.0..40.0).contains(&grace), "stopped {grace} s after it became NotReady, the grace is 10 s");

        let done = t.succeeded("once").await?;
        let grace = done.array("/status/conditions").iter().find(|c| c.text("/type") == "PreRecreateGrace");
        assert_eq!(grace.context("the condition of the grace")?.text("/status"), "True");
        let ready = t.ready("web").await?;
        let gate = ready.array("/status/conditions").iter().find(|c| c.text("/type") == "KruisePodReady");
        assert_eq!(gate.context("the gate")?.text("/message"), "[]");
        t.wait_for("EndpointSlice", &slice, "to be ready again", PATIENCE, |o| endpoint(o, true)).await?;
        // NotReady once and Ready once. kubelet writes its own stale `Ready` again, within ten seconds, unless it was
        // given a reason to look: a `Ready` written for it has to differ from what it would write, message included.
        // A status that it had made up a moment before our write comes after it all the same: that is its own race, which
        // does not hit every time.
        let mut seen = ready_states(&pod_seen).await?;
        for again in ["again-1", "again-2"] {
            if seen == ["False", "True"] {
                break;
            }
            eprintln!("the Pod flickered: {seen:?}");
            let pod_seen = t.record("Pod", "web").await?;
            t.create(crr(again, "web", &["main"]).with("/spec/strategy/unreadyGracePeriodSeconds", 2)).await?;
            t.succeeded(again).await?;
            t.ready("web").await?;
            t.wait_for("EndpointSlice", &slice, "to be ready again", PATIENCE, |o| endpoint(o, true)).await?;
            seen = ready_states(&pod_seen).await?;
        }
        assert_eq!(seen, ["False", "True"], "the Pod flickers while it is drained");
        let finalizers =
            t.wait_for(CRR, "once", "to lose its finalizer", PATIENCE, |o| o.array("/metadata/finalizers").is_empty());
        finalizers.await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_pod_without_the_gate_only_waits_and_the_user_is_warned() -> Result<()> {
    in_namespace("no-gate", async |t| {
        t.start(pod("web", vec![app("main")])).await?;
        let old = t.containers("web").await?;
        let events = RuntimeEvents::listen()?;
        let asked = jiff::Timestamp::now();
        let answer =
            t.apply(&crr("once", "web", &["main"]).with("/spec/strategy/unreadyGracePeriodSeconds", 4)).await?;
        ensure!(answer.ok, "{}", answer.stderr);
        ensure!(answer.stderr.contains("Warning:") && answer.stderr.contains("KruisePodReady"), "{}", answer.stderr);
        let done = t.completed("once").await?;
        let exit = events.exit(&old["main"].id, PATIENCE).await?;
        let after = exit.at.duration_since(asked).as_secs_f64();
        ensure!((3.5..40.0).contains(&after), "stopped after {after} s, the grace is 4 s");
        assert_eq!(done.text("/status/containerRecreateStates/0/phase"), "Succeeded");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_pod_with_the_gate_becomes_ready_by_itself() -> Result<()> {
    in_namespace("default-gate", async |t| {
        let ready = t.start(gated("web")).await?;
        assert_eq!(condition(&ready, "KruisePodReady"), "True");
        Ok(())
    })
    .await
}
