//! PodUnavailableBudgets beyond deletion, behind the gate PodUnavailableBudgetUpdateGate: updates, resizes, container
//! restarts; and `kubectl drain`, which cordons the only node.

use anyhow::{Context, Result, ensure};
use e2e::cmd::kubectl;
use e2e::images::{BUSYBOX, remote, remote_tag};
use e2e::kit::{Build, Look, PATIENCE, Test, app, condition, crr, in_namespace, pod, poll, restart_of, workload};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

const BUDGET: &str = "PodUnavailableBudget";

/// What a patch of a Pod is answered: HTTP code and message.
async fn patched(t: &Test, name: &str, resize: bool, patch: Value) -> (u16, String) {
    let patch = Patch::Strategic(patch);
    let answer = match resize {
        false => t.api("Pod").patch(name, &PatchParams::default(), &patch).await,
        true => t.api("Pod").patch_subresource("resize", name, &PatchParams::default(), &patch).await,
    };
    match answer {
        Ok(_) => (200, String::new()),
        Err(kube::Error::Api(status)) => (status.code, status.message),
        Err(error) => (0, error.to_string()),
    }
}

fn image(tag: &str) -> Value {
    json!({ "spec": { "containers": [{ "name": "main", "image": remote_tag("pause", tag) }] } })
}

fn processor(amount: &str) -> Value {
    json!({ "spec": { "containers": [{ "name": "main", "resources": { "requests": { "cpu": amount } } }] } })
}

fn budget(name: &str, app: &str, most: i64) -> Value {
    json!({ "kind": BUDGET, "metadata": { "name": name }, "spec": {
        "selector": { "matchLabels": { "tier": app } }, "maxUnavailable": most } })
}

async fn whole(t: &Test, name: &str) -> Result<Value> {
    t.wait_for(BUDGET, name, "to allow one", PATIENCE, |b| b.int("/status/unavailableAllowed") == 1).await
}

async fn updates_resizes_and_restarts(t: &Test) -> Result<()> {
    for name in ["a", "b"] {
        let main = json!({ "name": "main", "image": remote("pause"), "resources": { "requests": { "cpu": "10m" } } });
        t.create(pod(name, vec![main]).with("/metadata/labels/tier", "web")).await?;
    }
    for name in ["a", "b"] {
        t.ready(name).await?;
    }
    t.create(budget("web", "web", 1)).await?;
    let status = whole(t, "web").await?;
    ensure!(condition(&status, "ProtectsUpdates") == "True", "{status}");
    // An update takes the place; the other Pod waits, whatever is wanted of it.
    assert_eq!(patched(t, "a", false, image("v2")).await.0, 200);
    for (resize, patch) in [(false, image("v2")), (true, processor("20m"))] {
        let (code, message) = patched(t, "b", resize, patch).await;
        ensure!(code == 403 && message.contains("podunavailablebudget.policy.kruise.io \"web\""), "{code} {message}");
    }
    let (code, message) = t.refused(crr("restart", "b", &["main"])).await?;
    ensure!(code == 403 && message.contains("podunavailablebudget.policy.kruise.io \"web\""), "{code} {message}");
    // What restarts nothing is nobody's business.
    let label = json!({ "metadata": { "labels": { "other": "label" } } });
    assert_eq!(patched(t, "b", false, label).await.0, 200);
    // The first is back: the second's turn, as soon as it is seen.
    whole(t, "web").await?;
    assert_eq!(patched(t, "b", true, processor("20m")).await.0, 200);
    let listed = t.get(BUDGET, "web").await?;
    ensure!(listed.has("/status/unavailablePods/b") && !listed.has("/status/disruptedPods"), "{listed}");
    whole(t, "web").await?;
    t.create(crr("restart", "b", &["main"])).await?;
    let (code, _) = patched(t, "a", false, image("v1")).await;
    assert_eq!(code, 403, "a restart holds the place");
    t.succeeded("restart").await?;
    whole(t, "web").await.map(drop)
}

async fn a_workload_restart_heeds_the_budget(t: &Test) -> Result<()> {
    let set = workload("StatefulSet", "many", 3, vec![app("main")]).with("/spec/template/metadata/labels/tier", "many");
    t.create(set).await?;
    t.wait_for("StatefulSet", "many", "to be ready", PATIENCE, |o| o.int("/status/readyReplicas") == 3).await?;
    t.create(budget("many", "many", 1)).await?;
    whole(t, "many").await?;
    let watched = t.availability("app=many").await?;
    t.create(restart_of("all", "StatefulSet", "many", json!({ "maxUnavailable": "100%" }))).await?;
    t.wait_for("WorkloadRestart", "all", "to be complete", PATIENCE * 2, |o| {
        ensure_not_failed(o);
        condition(o, "Complete") == "True"
    })
    .await?;
    assert_eq!(watched.most_unavailable(), 1);
    Ok(())
}

fn ensure_not_failed(object: &Value) {
    assert_ne!(condition(object, "Failed"), "True", "{object}");
}

pub(crate) async fn updates_resizes_and_container_restarts_need_consent() -> Result<()> {
    in_namespace("pub-updates", async |t| {
        // Until the API server calls for this namespace.
        t.create(pod("probe", vec![app("main")]).with("/metadata/labels/tier", "probe")).await?;
        t.ready("probe").await?;
        t.create(budget("probe", "probe", 0)).await?;
        poll("the webhook to be called for the namespace", PATIENCE, async || {
            let unavailable = json!({ "metadata": { "labels": { "unavailable-pod.kruise.io/x": "" } } });
            let params = PatchParams { dry_run: true, ..PatchParams::default() };
            let answer = t.api("Pod").patch("probe", &params, &Patch::Merge(unavailable)).await;
            ensure!(matches!(&answer, Err(kube::Error::Api(status)) if status.code == 403), "{answer:?}");
            Ok(())
        })
        .await?;
        updates_resizes_and_restarts(t).await?;
        a_workload_restart_heeds_the_budget(t).await
    })
    .await
}

/// kubectl drain is told to try again, as with a PodDisruptionBudget, and ends when the budget lets it.
#[tokio::test]
async fn kubectl_drain_waits_for_the_budget() -> Result<()> {
    in_namespace("pub-drain", async |t| {
        let script = "trap 'exit 0' TERM; while :; do sleep 1; done";
        let main = json!({ "name": "main", "image": BUSYBOX, "imagePullPolicy": "IfNotPresent", "command": ["/bin/sh", "-c", script] });
        let set = workload("Deployment", "web", 3, vec![main]).with("/spec/template/metadata/labels/tier", "drain");
        t.create(set).await?;
        t.wait_for("Deployment", "web", "to be ready", PATIENCE, |o| o.int("/status/readyReplicas") == 3).await?;
        t.create(budget("web", "drain", 1)).await?;
        whole(t, "web").await?;
        // A budget that allows nothing shows when the API server calls.
        t.create(pod("probe", vec![app("main")]).with("/metadata/labels/tier", "probe")).await?;
        t.ready("probe").await?;
        t.create(budget("probe", "probe", 0)).await?;
        poll("the webhook to be called for the namespace", PATIENCE, async || {
            let dry_run = kube::api::DeleteParams { dry_run: true, ..Default::default() };
            let answer = t.api("Pod").delete("probe", &dry_run).await;
            ensure!(matches!(&answer, Err(kube::Error::Api(status)) if status.code == 403), "{answer:?}");
            Ok(())
        })
        .await?;
        let watched = t.availability("app=web").await?;
        let node = t.list("Node", "").await?.first().map(|n| n.text("/metadata/name").to_owned()).context("a node")?;
        let drain = ["drain", &node, "--pod-selector=tier=drain", "--timeout=120s", "--delete-emptydir-data"];
        let mut drain = kubectl(&t.paths, drain)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .context("kubectl drain")?;
        // It has been refused once; only then there may be Pods for those that went.
        let refused = t.wait(BUDGET, "web", "to be used up", PATIENCE, |b| {
            b.is_some_and(|b| b.int("/status/unavailableAllowed") == 0)
        });
        let refused = refused.await;
        t.kubectl(&["uncordon", &node]).await?;
        refused?;
        let drained = tokio::task::spawn_blocking(move || {
            let status = drain.wait()?;
            let mut said = String::new();
            std::io::Read::read_to_string(&mut drain.stderr.take().context("standard error")?, &mut said)?;
            anyhow::Ok((status, said))
        });
        let (status, said) = drained.await??;
        ensure!(status.success(), "{said}");
        ensure!(said.contains("will retry after 5s") && said.contains("no further Pod may be taken"), "{said}");
        t.wait_for("Deployment", "web", "to be whole", PATIENCE, |o| o.int("/status/readyReplicas") == 3).await?;
        assert_eq!(watched.most_unavailable(), 1, "{said}");
        Ok(())
    })
    .await
}
