//! Whole roles away: Pods live as if nothing were installed, nothing that we put on objects holds them, requests say
//! what they wait for, and what was missed is repaired or reported.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, Test, app, condition, crr, in_namespace, pod, poll, restoring, workload};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, EvictParams};
use serde_json::{Value, json};

use crate::away::Member;
use crate::{CRR, Frozen, LONG, MANAGER, WEBHOOK, keeping, slow, until_kept};

/// A Pod that admission gives the readiness gate. Its owner is of a kind that is not installed: of others the garbage
/// collector finds out that there is no such object.
fn owned(name: &str) -> Value {
    let owner = json!([{
        "apiVersion": "apps.kruise.io/v1alpha1", "kind": "LaterKind", "name": "x",
        "uid": "00000000-0000-0000-0000-000000000001", "controller": true,
    }]);
    pod(name, vec![app("main")]).with("/metadata/ownerReferences", owner)
}

fn gated(name: &str) -> Value {
    pod(name, vec![app("main")]).with("/spec/readinessGates", json!([{ "conditionType": "KruisePodReady" }]))
}

/// A Pod `held` that the request `held` keeps NotReady for ten minutes: it has our finalizer, its Pod our key.
async fn hold(t: &Test) -> Result<()> {
    t.start(gated("held")).await?;
    t.create(crr("held", "held", &["main"]).with("/spec/strategy/unreadyGracePeriodSeconds", 600)).await?;
    t.wait_for("Pod", "held", "to be NotReady", PATIENCE, |p| condition(p, "Ready") == "False").await?;
    let finalizer = |o: &Value| !o.array("/metadata/finalizers").is_empty();
    t.wait_for(CRR, "held", "to have the finalizer", PATIENCE, finalizer).await.map(drop)
}

/// A Deployment of the installation as it is shipped.
pub(crate) async fn scaled(t: &Test, deployment: &str) -> Result<()> {
    t.node().scale(deployment, 2).await?;
    match deployment {
        WEBHOOK => t.webhook_answers().await,
        _ => Ok(()),
    }
}

async fn delete_namespace(t: &Test) -> Result<()> {
    t.remove("Namespace", &t.namespace).await
}

async fn namespace_goes(t: &Test) -> Result<()> {
    t.gone("Namespace", &t.namespace).await
}

async fn missed_is_reported(t: &Test) -> Result<()> {
    t.wait_events("Pod", "missed", |e| e.iter().any(|e| e.starts_with("KruisePodReadyNotInjected"))).await.map(drop)
}

pub(crate) async fn without_the_webhook_pods_live_on_and_requests_are_refused(away: Member<'_>) -> Result<()> {
    in_namespace("webhook-down", async |t| {
        for name in ["web", "doomed", "evicted"] {
            t.start(pod(name, vec![app("main")])).await?;
        }
        hold(t).await?;
        let other = Test::new("webhook-down-ns").await?;
        hold(&other).await?;
        let body = async {
            away.begin(t).await?;
            t.start(pod("plain", vec![app("main")])).await?;
            let start = Instant::now();
            let missed = t.create(owned("missed")).await?;
            let took = start.elapsed();
            ensure!(took < Duration::from_secs(15), "a Pod that needs the webhook was created after {took:?}");
            assert_eq!(missed.array("/spec/readinessGates").len(), 0);
            let (code, message) = t.refused(crr("r", "web", &["main"])).await?;
            ensure!(
                code == 500
                    && message.contains("mcontainerrecreaterequest.kb.io")
                    && message.contains("kruise-webhook-service"),
                "who refuses it, and who did not answer: {code} {message}"
            );
            t.patch("Pod", "plain", json!({ "metadata": { "labels": { "changed": "yes" } } })).await?;
            t.remove("Pod", "doomed").await?;
            let pods: Api<Pod> = Api::namespaced(t.client.clone(), &t.namespace);
            pods.evict("evicted", &EvictParams::default()).await?;
            t.gone("Pod", "doomed").await?;
            t.gone("Pod", "evicted").await?;
            // What holds a finalizer of ours goes all the same, alone or with its namespace.
            t.remove(CRR, "held").await?;
            t.gone(CRR, "held").await?;
            t.ready("held").await?;
            delete_namespace(&other).await?;
            namespace_goes(&other).await
        };
        restoring(body, away.end(t)).await?;
        missed_is_reported(t).await?;
        t.restart("once", "web", &["main"]).await?;
        t.succeeded("once").await?;
        let gated = t.create(owned("gated")).await?;
        assert_eq!(gated.text("/spec/readinessGates/0/conditionType"), "KruisePodReady");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_webhook_that_hangs_stops_no_pod() -> Result<()> {
    in_namespace("webhook-hangs", async |t| {
        t.start(pod("web", vec![app("main")])).await?;
        let mut frozen = Vec::new();
        for replica in t.node().replicas(WEBHOOK).await? {
            frozen.push(Frozen::new(t.node().process_of(&replica).await?));
        }
        // Pods that we have nothing to do with are not even sent to us.
        t.start(pod("plain", vec![app("main")])).await?;
        let missed = t.start(owned("missed")).await?;
        assert_eq!(missed.array("/spec/readinessGates").len(), 0, "created without us, after the 3 s that we may take");
        let (code, message) = t.refused(crr("r", "web", &["main"])).await?;
        ensure!(code == 500 && message.contains("mcontainerrecreaterequest.kb.io"), "{code} {message}");
        drop(frozen);
        missed_is_reported(t).await?;
        poll("the webhook to answer again", PATIENCE, async || t.restart("once", "web", &["main"]).await.map(drop))
            .await?;
        t.succeeded("once").await.map(drop)
    })
    .await
}

#[tokio::test]
async fn without_webhook_and_manager_namespaces_go_and_the_rest_is_made_up_for() -> Result<()> {
    in_namespace("nobody", async |t| {
        let [finished, by_hand, waits] =
            [Test::new("nobody-fin").await?, Test::new("nobody-hand").await?, Test::new("nobody-wait").await?];
        finished.start(pod("web", vec![app("main")])).await?;
        finished.restart("once", "web", &["main"]).await?;
        finished.succeeded("once").await?;
        hold(&by_hand).await?;
        hold(&waits).await?;
        let body = async {
            t.node().scale(MANAGER, 0).await?;
            t.node().scale(WEBHOOK, 0).await?;
            t.create(owned("missed")).await?;
            t.create(gated("unready")).await?;
            for test in [&finished, &by_hand, &waits] {
                delete_namespace(test).await?;
            }
            namespace_goes(&finished).await?;
            // Two hold a key: who does not want to wait for the manager takes the finalizer off by hand.
            by_hand.patch(CRR, "held", json!({ "metadata": { "finalizers": null } })).await?;
            namespace_goes(&by_hand).await?;
            let stuck = |n: &Value| condition(n, "NamespaceFinalizersRemaining") == "True";
            waits.wait_for("Namespace", &waits.namespace, "to wait for the manager", PATIENCE, stuck).await?;
            let runs = |p: &Value| condition(p, "ContainersReady") == "True";
            let unready = t.wait_for("Pod", "unready", "to run", PATIENCE, runs).await?;
            assert_eq!(condition(&unready, "Ready"), "False", "nobody gives it its first condition");
            Ok(())
        };
        let made_up_for = async {
            restoring(body, scaled(t, MANAGER)).await?;
            namespace_goes(&waits).await?;
            t.ready("unready").await?;
            missed_is_reported(t).await
        };
        restoring(made_up_for, scaled(t, WEBHOOK)).await?;
        t.restart("once", "unready", &["main"]).await?;
        t.succeeded("once").await.map(drop)
    })
    .await
}

#[tokio::test]
async fn without_the_daemon_requests_say_so_and_go_on_when_it_is_back() -> Result<()> {
    in_namespace("daemon-gone", async |t| {
        t.start(keeping("slow", slow("main"), vec![])).await?;
        t.start(pod("idle", vec![app("main")])).await?;
        t.start(pod("late", vec![app("main")])).await?;
        t.create(crr("begun", "slow", &["main"]).with("/spec/strategy/terminationGracePeriodSeconds", 120)).await?;
        until_kept(t, "slow", "asked").await?;
        let text = format!("waiting for a ready kruise-daemon on node {}", e2e::paths::NODE);
        t.node()
            .without_daemon(async || {
                t.restart("new", "idle", &["main"]).await?;
                t.create(crr("limited", "late", &["main"]).with("/spec/activeDeadlineSeconds", 24)).await?;
                for request in ["begun", "new"] {
                    // Ten seconds after the daemon went; after a minute others would say that nobody answers.
                    let says = |o: &Value| o.text("/status/message") == text;
                    t.wait_for(CRR, request, "to say what it waits for", PATIENCE, says).await?;
                    t.wait_events(CRR, request, |e| e.iter().any(|e| e.contains(&text))).await?;
                }
                let limited = t.completed("limited").await?;
                assert_eq!(
                    limited.text("/status/message"),
                    format!("recreating has exceeded the activeDeadlineSeconds: it was never executed, {text}")
                );
                let new = t.get(CRR, "new").await?;
                assert_eq!(new.text("/status/phase"), "", "nobody has taken it up");
                Ok(())
            })
            .await?;
        t.exec("slow", "main", "touch /kept/go").await?;
        for request in ["begun", "new"] {
            t.completed_within(request, LONG).await?;
            t.succeeded(request).await?;
        }
        let restarts = async |pod| anyhow::Ok(t.containers(pod).await?["main"].restarts);
        assert_eq!((restarts("slow").await?, restarts("idle").await?, restarts("late").await?), (1, 1, 0));
        Ok(())
    })
    .await
}

pub(crate) async fn without_the_webhook_clone_sets_are_not_made_and_can_be_changed_within_the_schema(
    away: Member<'_>,
) -> Result<()> {
    const KIND: &str = "CloneSet";
    in_namespace("cs-no-webhook", async |t| {
        let container = json!({ "name": "main", "image": e2e::images::PAUSE });
        let object = |name: &str| workload(KIND, name, 0, vec![container.clone()]);
        let held = object("web").with("/metadata/finalizers", json!(["example.com/hold"]));
        let stored = t.create(held.with("/apiVersion", "apps.kruise.io/v1alpha1")).await?;
        let body = async {
            away.begin(t).await?;
            let (code, message) = t.refused(object("other").with("/apiVersion", "apps.kruise.io/v1alpha1")).await?;
            ensure!(code == 500 && message.contains("mcloneset.kb.io"), "it has to fail closed: {code} {message}");
            let selector = json!({ "spec": { "selector": { "matchLabels": { "other": "1" } } } });
            let error = t.patch(KIND, "web", selector).await.err().map(|error| format!("{error:#}"));
            let message = error.unwrap_or_default();
            ensure!(message.contains("spec.selector is immutable"), "{message:?}");
            let container = json!([{ "name": "main", "image": e2e::images::BUSYBOX }]);
            let changed = t
                .patch(KIND, "web", json!({ "spec": { "template": { "spec": { "containers": container } } } }))
                .await?;
            ensure!(!changed.has("/spec/template/spec/containers/0/imagePullPolicy"), "nobody could give it defaults");
            t.kubectl(&["scale", "cloneset", "web", "--replicas=0"]).await?;
            t.remove(KIND, "web").await?;
            t.patch(KIND, "web", json!({ "metadata": { "finalizers": null } })).await?;
            t.gone(KIND, "web").await
        };
        restoring(body, away.end(t)).await?;
        assert_eq!(stored.text("/spec/template/spec/containers/0/imagePullPolicy"), "Always");
        poll("admission to answer again", PATIENCE, async || {
            t.create(object("again").with("/apiVersion", "apps.kruise.io/v1alpha1")).await.map(drop)
        })
        .await
    })
    .await
}
