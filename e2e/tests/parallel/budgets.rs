//! PodUnavailableBudgets on the real API server: deletion and eviction. Updates need a gate: see the serial tests.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::cmd::{CommandExt, kubectl};
use e2e::images::remote_tag;
use e2e::kit::{Build, Look, PATIENCE, Test, app, condition, in_namespace, pod, poll, restoring, shell, workload};
use futures::future::{join_all, try_join_all};
use kube::Client;
use kube::api::{Api, DeleteParams, EvictParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::clone_set::{CLONE_SET, LONG, clone_set, image, names, pods, pulled, rolled_out, set_image, started};

const BUDGET: &str = "PodUnavailableBudget";

pub(crate) fn for_clone_set(name: &str, most: impl Into<Value>) -> Value {
    let target = json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": CLONE_SET, "name": name });
    json!({ "kind": BUDGET, "metadata": { "name": name }, "spec": { "targetRef": target, "maxUnavailable": most.into() } })
}

/// Creates a budget, and waits until it is counted. From then on it is asked: it was stored when the API server knew of its
/// namespace.
pub(crate) async fn guarded(t: &Test, budget: Value) -> Result<Value> {
    let name = budget.text("/metadata/name").to_owned();
    t.create(budget).await?;
    t.wait_for(BUDGET, &name, "to be counted", PATIENCE, |b| b.int("/status/observedGeneration") == 1).await
}

#[derive(Clone, Copy)]
enum Way {
    Delete,
    Evict,
}

/// One request to take a Pod away: its HTTP code and message.
async fn take(client: &Client, t: &Test, pod: &str, way: Way) -> (u16, String) {
    let api: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(client.clone(), &t.namespace);
    let answer = match way {
        Way::Delete => api.delete(pod, &DeleteParams::default()).await.map(drop),
        Way::Evict => api.evict(pod, &EvictParams::default()).await.map(drop),
    };
    match answer {
        Ok(()) => (200, String::new()),
        Err(kube::Error::Api(status)) => (status.code, status.message),
        Err(error) => (0, error.to_string()),
    }
}

/// A Pod that is not there any more, or is not to stay.
async fn has_gone(t: &Test, pod: &str, uid: &str) -> Result<bool> {
    let found = t.find("Pod", pod).await?;
    Ok(found.is_none_or(|p| p.text("/metadata/uid") != uid || p.has("/metadata/deletionTimestamp")))
}

/// Issue 8, item 4: a hundred requests at once, by four clients, until every Pod has been taken once.
#[tokio::test]
async fn a_hundred_deletions_and_evictions_at_once_never_take_more_than_three() -> Result<()> {
    in_namespace("pub-race", async |t| {
        let replicas = t.node().replicas("kruise-webhook").await?.len();
        ensure!(replicas >= 2, "{replicas} replica of the webhook: there is nothing to race");
        started(t, clone_set("web", 10, vec![app("main")])).await?;
        let budget = guarded(t, for_clone_set("web", 3)).await?;
        assert_eq!(budget.int("/status/unavailableAllowed"), 3, "{budget}");
        let before = pods(t, "web").await?;
        let watched = t.availability("app=web").await?;
        let clients = try_join_all((0..4).map(|i| async move { Test::new(&format!("pub-client-{i}")).await })).await?;
        let requests = (0..100).map(|i| {
            let (pod, client) = (&before[i % before.len()], &clients[i % clients.len()].client);
            let way = if i % 20 < 10 { Way::Delete } else { Way::Evict };
            async move {
                let (name, uid) = (pod.text("/metadata/name"), pod.text("/metadata/uid"));
                let mut codes = BTreeSet::new();
                let until = tokio::time::Instant::now() + LONG;
                while !has_gone(t, name, uid).await? {
                    let (code, message) = take(client, t, name, way).await;
                    codes.insert(code);
                    let refused = match way {
                        Way::Delete => 403,
                        Way::Evict => 429,
                    };
                    // On a busy machine a decision may be late: then it is asked again.
                    let is_late = code == 500 && message.contains("no decision within");
                    // 409: somebody else has deleted it meanwhile.
                    ensure!([200, 404, 409, refused].contains(&code) || is_late, "{name}: {code} {message}");
                    ensure!(tokio::time::Instant::now() < until, "{name} is refused for ever: {message}");
                    tokio::time::sleep(Duration::from_millis(300)).await;
                }
                anyhow::Ok(codes)
            }
        });
        let mut codes = BTreeSet::new();
        for answered in join_all(requests).await {
            codes.extend(answered?);
        }
        // The client tries evictions that get a 429 again by itself.
        ensure!(codes.contains(&403), "nobody was refused: {codes:?}");
        rolled_out(t, "web").await?;
        let most = watched.most_unavailable();
        ensure!((1..=3).contains(&most), "{most} Pods were unavailable at a time");
        let after = pods(t, "web").await?;
        ensure!(names(&before).is_disjoint(&names(&after)), "a Pod of before is still there");
        for client in clients {
            client.remove("Namespace", &client.namespace).await?;
        }
        // What was let through is off the lists again.
        t.wait_for(BUDGET, "web", "to be whole again", PATIENCE, |b| {
            b.int("/status/unavailableAllowed") == 3 && !b.has("/status/disruptedPods")
        })
        .await?;
        Ok(())
    })
    .await
}

/// Two Pods under a budget of one, replaced by an image that cannot be pulled: the first is down, and the budget rightly
/// keeps the other. A corrected template has to reach the broken one, which no budget keeps, and then the other.
#[tokio::test]
async fn a_corrected_template_gets_past_a_pod_that_its_budget_keeps() -> Result<()> {
    in_namespace("pub-corrected", async |t| {
        let set = clone_set("web", 2, vec![pulled("main")]).with("/spec/updateStrategy/maxUnavailable", "100%");
        started(t, set).await?;
        guarded(t, for_clone_set("web", 1)).await?;
        set_image(t, "web", "main", "registry.invalid/does/not:exist").await?;
        poll("one Pod to wait for its image", LONG, async || {
            let pods = pods(t, "web").await?;
            let waits = |p: &&Value| {
                let reason = p.text("/status/containerStatuses/0/state/waiting/reason");
                ["ErrImagePull", "ImagePullBackOff"].contains(&reason)
            };
            ensure!(pods.len() == 2 && pods.iter().filter(waits).count() == 1, "{:?}", names(&pods));
            Ok(())
        })
        .await?;
        let marks = async || -> Result<usize> {
            let marked = |p: &&Value| p.has("/metadata/labels/apps.kruise.io~1specified-delete");
            Ok(pods(t, "web").await?.iter().filter(marked).count())
        };
        ensure!(marks().await? == 0, "a budget is asked before the mark");
        // What an earlier release, or a user, has marked waits for the budget, and keeps nothing else waiting.
        let kept = pods(t, "web").await?.into_iter().find(|p| image(p, "main") != "registry.invalid/does/not:exist");
        let kept = kept.context("the Pod that the budget keeps")?;
        let mark = json!({ "metadata": { "labels": { "apps.kruise.io/specified-delete": "true" } } });
        t.patch("Pod", kept.text("/metadata/name"), mark).await?;
        set_image(t, "web", "main", &remote_tag("pause", "v2")).await?;
        rolled_out(t, "web").await?;
        ensure!(pods(t, "web").await?.iter().all(|p| image(p, "main") == remote_tag("pause", "v2")));
        Ok(())
    })
    .await
}

/// A roll-out that would replace everything at once, and somebody who evicts at the same time, under one budget.
#[tokio::test]
async fn a_roll_out_and_evictions_share_one_budget() -> Result<()> {
    in_namespace("pub-rollout", async |t| {
        let set = clone_set("web", 5, vec![pulled("main")]).with("/spec/updateStrategy/maxUnavailable", "100%");
        started(t, set).await?;
        guarded(t, for_clone_set("web", 2)).await?;
        let before = pods(t, "web").await?;
        let watched = t.availability("app=web").await?;
        set_image(t, "web", "main", &remote_tag("pause", "v2")).await?;
        let evictions = before.iter().map(|pod| async {
            let (name, uid) = (pod.text("/metadata/name"), pod.text("/metadata/uid"));
            poll("the Pod to be gone", LONG, async || {
                if !has_gone(t, name, uid).await? {
                    let (code, message) = take(&t.client, t, name, Way::Evict).await;
                    ensure!([200, 404, 429, 409].contains(&code), "{code} {message}");
                }
                ensure!(has_gone(t, name, uid).await?);
                Ok(())
            })
            .await
        });
        try_join_all(evictions).await?;
        rolled_out(t, "web").await?;
        let most = watched.most_unavailable();
        ensure!((1..=2).contains(&most), "{most} Pods were unavailable at a time");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn who_is_refused_hears_why_and_some_pass() -> Result<()> {
    in_namespace("pub-answers", async |t| {
        for name in ["a", "b", "free"] {
            t.create(pod(name, vec![app("main")]).with("/metadata/labels/tier", "web")).await?;
        }
        for name in ["a", "b", "free"] {
            t.ready(name).await?;
        }
        let budget = json!({ "kind": BUDGET, "metadata": { "name": "web" }, "spec": {
            "selector": { "matchLabels": { "tier": "web" } }, "minAvailable": 3 } });
        let budget = guarded(t, budget).await?;
        assert_eq!(budget.int("/status/totalReplicas"), 3, "Pods that nobody controls count themselves: {budget}");
        let resolved = budget.array("/status/conditions").iter().find(|c| c.text("/type") == "Resolved");
        assert_eq!(resolved.map(|c| c.text("/status")), Some("True"), "{budget}");
        // Pods from before the budget get its name too.
        let related = "/metadata/annotations/kruise.io~1related-pub";
        t.wait_for("Pod", "a", "to name its budget", PATIENCE, |p| p.text(related) == "web").await?;

        let why = "podunavailablebudget.policy.kruise.io \"web\" is forbidden: pub unavailable allowed is negative, no further Pod may be taken out of service now: 3 of 3 Pods are available, and 3 have to stay";
        // A replica of the webhook that has not heard yet of a Pod refuses, too, with another number.
        poll("a deletion to be refused by who knows of all Pods", PATIENCE, async || {
            let (code, message) = take(&t.client, t, "a", Way::Delete).await;
            assert_ne!(code, 200, "the deletion was let through");
            ensure!(code == 403 && message.ends_with(why), "{code} {message}");
            Ok(())
        })
        .await?;
        let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": "a", "namespace": t.namespace } });
        let path = format!("/api/v1/namespaces/{}/pods/a/eviction", t.namespace);
        poll("an eviction to be refused by who knows of all Pods", PATIENCE, async || {
            let answer = kubectl(&t.paths, ["create", "--raw", &path, "-f", "-"]).feed(&eviction.to_string());
            let error = format!("{:#}", answer.expect_err("the eviction was let through"));
            ensure!(error.contains("(TooManyRequests)") && error.contains(why), "{error}");
            Ok(())
        })
        .await?;
        t.wait_events("Pod", "a", |events| events.iter().any(|e| e.contains("PubPreventPodDeletion"))).await?;
        // A new Pod is noted at its creation.
        let late = t.create(pod("late", vec![app("main")]).with("/metadata/labels/tier", "web")).await?;
        assert_eq!(late.text(related), "web", "{late}");

        // Out of the protection, and out of service: both pass without cost.
        let free = json!({ "metadata": { "annotations": { "pub.kruise.io/no-protect": "true" } } });
        t.patch("Pod", "free", free).await?;
        assert_eq!(take(&t.client, t, "free", Way::Delete).await.0, 200);
        let marked = json!({ "metadata": { "labels": { "unavailable-pod.kruise.io/by-hand": "" } } });
        t.patch("Pod", "b", marked).await?;
        assert_eq!(take(&t.client, t, "b", Way::Evict).await.0, 200);
        let now = t.get(BUDGET, "web").await?;
        ensure!(!now.has("/status/disruptedPods"), "{now}");
        // Without the budget nothing is held.
        t.remove(BUDGET, "web").await?;
        poll("a deletion to pass", PATIENCE, async || {
            let (code, message) = take(&t.client, t, "a", Way::Delete).await;
            ensure!(code == 200, "{code} {message}");
            Ok(())
        })
        .await
    })
    .await
}

/// A budget is judged on the spot before the manager has counted it, and dry runs cost nothing.
#[tokio::test]
async fn a_dry_run_takes_nothing_and_a_deployment_is_followed_through_its_replica_sets() -> Result<()> {
    in_namespace("pub-dry-run", async |t| {
        t.create(workload("Deployment", "web", 2, vec![app("main")])).await?;
        t.wait_for("Deployment", "web", "to be ready", PATIENCE, |d| d.int("/status/readyReplicas") == 2).await?;
        let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" });
        let budget = json!({ "kind": BUDGET, "metadata": { "name": "web" }, "spec": { "targetRef": target, "maxUnavailable": "50%" } });
        let budget = guarded(t, budget).await?;
        assert_eq!(budget.int("/status/totalReplicas"), 2, "{budget}");
        let pods = pods(t, "web").await?;
        let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
        for pod in &pods {
            t.api("Pod").delete(pod.text("/metadata/name"), &dry_run).await?;
            // B1: an eviction says it in its body.
            let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "deleteOptions": { "dryRun": ["All"] },
                "metadata": { "name": pod.text("/metadata/name"), "namespace": t.namespace } });
            let path = format!("/api/v1/namespaces/{}/pods/{}/eviction", t.namespace, pod.text("/metadata/name"));
            kubectl(&t.paths, ["create", "--raw", &path, "-f", "-"]).feed(&eviction.to_string())?;
        }
        let now = t.get(BUDGET, "web").await?;
        ensure!(!now.has("/status/disruptedPods") && now.int("/status/unavailableAllowed") == 1, "{now}");
        // B6: what is scaled down loses its Pods, and nobody waits for the budget.
        t.patch("Deployment", "web", json!({ "spec": { "replicas": 0 } })).await?;
        poll("the Pods to be gone", PATIENCE, async || {
            ensure!(crate::clone_set::pods(t, "web").await?.is_empty());
            Ok(())
        })
        .await
    })
    .await
}

/// A budget that seems to be used up is counted anew from its workload before anybody is refused.
#[tokio::test]
async fn stateful_sets_and_daemon_sets_are_guarded_too() -> Result<()> {
    in_namespace("pub-kinds", async |t| {
        let target = |kind: &str| json!({ "apiVersion": "apps/v1", "kind": kind, "name": kind.to_lowercase() });
        for kind in ["StatefulSet", "DaemonSet"] {
            let name = kind.to_lowercase();
            t.create(workload(kind, &name, 1, vec![app("main")])).await?;
            let budget = json!({ "kind": BUDGET, "metadata": { "name": name }, "spec": { "targetRef": target(kind), "maxUnavailable": 0 } });
            t.create(budget).await?;
        }
        for name in ["statefulset", "daemonset"] {
            let first = async || -> Result<String> {
                let pods = t.list("Pod", &format!("app={name}")).await?;
                Ok(pods.first().context("no Pod yet")?.text("/metadata/name").to_owned())
            };
            poll("its Pod to be ready and guarded", PATIENCE, async || {
                let pod = first().await?;
                t.ready(&pod).await?;
                let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
                let answer = t.api("Pod").delete(&pod, &dry_run).await;
                // A replica of the webhook that has not heard yet that it is available refuses, too, with another number.
                let Err(kube::Error::Api(status)) = answer else { anyhow::bail!("{answer:?}") };
                ensure!(status.code == 403 && status.message.contains("1 of 1 Pods"), "{status:?}");
                Ok(())
            })
            .await?;
            let pod = first().await?;
            // The question before may have been answered by the other replica.
            poll("its deletion to be refused by who knows that it is available", PATIENCE, async || {
                let (code, message) = take(&t.client, t, &pod, Way::Delete).await;
                assert_eq!(code, 403, "{message}");
                ensure!(message.contains("1 of 1 Pods are available, and 1 have to stay"), "{message}");
                Ok(())
            })
            .await?;
        }
        Ok(())
    })
    .await
}

/// Issue 18, item 11. A quota leaves no room for further Pods: nothing happens to those that there are.
#[tokio::test]
async fn a_workload_that_is_scaled_is_judged_by_its_new_total_at_once() -> Result<()> {
    in_namespace("pub-scaled", async |t| {
        t.create(workload("Deployment", "web", 2, vec![app("main")])).await?;
        t.wait_for("Deployment", "web", "to be ready", PATIENCE, |d| d.int("/status/readyReplicas") == 2).await?;
        let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" });
        let budget = guarded(
            t,
            json!({ "kind": BUDGET, "metadata": { "name": "web" }, "spec": { "targetRef": target, "maxUnavailable": "50%" } }),
        )
        .await?;
        assert_eq!(budget.int("/status/totalReplicas"), 2, "{budget}");
        let quota = json!({ "kind": "ResourceQuota", "metadata": { "name": "full" }, "spec": { "hard": { "pods": "2" } } });
        t.create(quota).await?;
        t.wait_for("ResourceQuota", "full", "to be in force", PATIENCE, |q| q.has("/status/hard/pods")).await?;
        // Far sooner than every budget is counted anyway: every five minutes.
        let soon = Duration::from_secs(30);
        t.patch("Deployment", "web", json!({ "spec": { "replicas": 10 } })).await?;
        let knows = t.wait_for(BUDGET, "web", "to know of 10", soon, |b| b.int("/status/totalReplicas") == 10).await?;
        assert_eq!(knows.int("/status/unavailableAllowed"), 0, "{knows}");
        let name = pods(t, "web").await?.first().context("no Pod")?.text("/metadata/name").to_owned();
        let (code, message) = take(&t.client, t, &name, Way::Delete).await;
        ensure!(code == 403 && message.contains("2 of 10 Pods are available, and 5 have to stay"), "{code} {message}");
        t.patch("Deployment", "web", json!({ "spec": { "replicas": 2 } })).await?;
        t.wait_for(BUDGET, "web", "to allow one of 2", soon, |b| b.int("/status/unavailableAllowed") == 1).await?;
        assert_eq!(take(&t.client, t, &name, Way::Delete).await.0, 200);
        Ok(())
    })
    .await
}

/// A kind with a scale subresource whose Pods are those of ReplicaSets, as Argo Rollouts are.
fn rollouts() -> Value {
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let scale = json!({ "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector" });
    json!({ "kind": "CustomResourceDefinition", "metadata": { "name": ROLLOUTS }, "spec": {
        "group": "e2e.kruise.rs", "scope": "Namespaced",
        "names": { "kind": "Rollout", "plural": "rollouts", "singular": "rollout" },
        "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema },
            "subresources": { "status": {}, "scale": scale } }] } })
}

const ROLLOUTS: &str = "rollouts.e2e.kruise.rs";

/// Issue 8, item 2: owner chains through unknown kinds, with the narrowest rights, and a clear condition without them.
#[tokio::test]
async fn b11_a_workload_of_an_unknown_kind_is_protected_and_counted_once_its_scale_may_be_read() -> Result<()> {
    in_namespace("pub-rollout-kind", async |t| {
        let undo = async {
            t.remove("ClusterRole", &t.namespace).await?;
            t.remove("CustomResourceDefinition", ROLLOUTS).await
        };
        restoring(unknown_kind(t), undo).await
    })
    .await
}

/// Lets the two Pods be ready that there are: each is ready when the test says so.
async fn two_are_ready(t: &Test) -> Result<()> {
    poll("two Pods to be ready", PATIENCE, async || {
        let pods = pods(t, "web").await?;
        for pod in pods.iter().filter(|p| condition(p, "Ready") != "True") {
            t.exec(pod.text("/metadata/name"), "main", "touch /tmp/ready").await?;
        }
        let ready = pods.iter().filter(|p| condition(p, "Ready") == "True").count();
        ensure!((pods.len(), ready) == (2, 2), "{ready} of {} are", pods.len());
        Ok(())
    })
    .await
}

async fn unknown_kind(t: &Test) -> Result<()> {
    t.define(rollouts()).await?;
    let rollout = json!({ "kind": "Rollout", "metadata": { "name": "web" }, "spec": { "replicas": 2 } });
    let rollout = t.create(rollout).await?;
    let status = json!({ "status": { "replicas": 2, "selector": "app=web" } });
    t.api("Rollout").patch_status("web", &PatchParams::default(), &Patch::Merge(status)).await?;
    let owner = json!([{ "apiVersion": "e2e.kruise.rs/v1", "kind": "Rollout", "name": "web",
        "uid": rollout.text("/metadata/uid"), "controller": true }]);
    let probe = json!({ "periodSeconds": 1, "exec": { "command": ["test", "-e", "/tmp/ready"] } });
    let main = shell("main", "").with("/readinessProbe", probe);
    t.create(workload("ReplicaSet", "web", 2, vec![main]).with("/metadata/ownerReferences", owner)).await?;
    two_are_ready(t).await?;
    t.wait_for("ReplicaSet", "web", "to be ready", PATIENCE, |o| o.int("/status/readyReplicas") == 2).await?;

    // Without the right: the Pods that can be seen are protected, and the budget says what is missing.
    let target = json!({ "apiVersion": "e2e.kruise.rs/v1", "kind": "Rollout", "name": "web" });
    let budget =
        json!({ "kind": BUDGET, "metadata": { "name": "web" }, "spec": { "targetRef": target, "maxUnavailable": 1 } });
    guarded(t, budget).await?;
    let forbidden = |b: &Value| {
        let resolved = b.array("/status/conditions").iter().find(|c| c.text("/type") == "Resolved");
        resolved.is_some_and(|c| {
            c.text("/reason") == "Forbidden"
                && c.text("/message").contains("kruise.rs/aggregate-to-manager")
                && c.text("/message").contains("apiGroups [\"e2e.kruise.rs\"], resources [rollouts/scale], verbs [get]")
        })
    };
    let counted = |b: &Value| b.int("/status/totalReplicas") == 2 && b.int("/status/unavailableAllowed") == 1;
    t.wait_for(BUDGET, "web", "to name the right that is missing", PATIENCE, |b| forbidden(b) && counted(b)).await?;
    let pods = pods(t, "web").await?;
    assert_eq!(take(&t.client, t, pods[0].text("/metadata/name"), Way::Delete).await.0, 200);
    // The one in its place is not ready until it is told so.
    let (code, message) = take(&t.client, t, pods[1].text("/metadata/name"), Way::Delete).await;
    ensure!(code == 403 && message.contains("podunavailablebudget.policy.kruise.io \"web\""), "{code} {message}");
    two_are_ready(t).await?;

    // With it.
    let labels = json!({ "kruise.rs/aggregate-to-manager": "true", "kruise.rs/aggregate-to-webhook": "true" });
    t.create(json!({ "kind": "ClusterRole", "metadata": { "name": t.namespace, "labels": labels }, "rules": [
        { "apiGroups": ["e2e.kruise.rs"], "resources": ["rollouts/scale"], "verbs": ["get"] }] }))
        .await?;
    let resolved = |b: &Value| condition(b, "Resolved") == "True" && b.text("/status/selector") == "app=web";
    t.wait_for(BUDGET, "web", "to be resolved", PATIENCE * 2, |b| resolved(b) && counted(b)).await?;
    // What is scaled down loses its Pods, although nothing may go otherwise, and nobody tells of a change of the scale.
    t.patch(BUDGET, "web", json!({ "spec": { "maxUnavailable": 0 } })).await?;
    t.wait_for(BUDGET, "web", "to allow nothing", PATIENCE, |b| b.int("/status/desiredAvailable") == 2).await?;
    t.patch("Rollout", "web", json!({ "spec": { "replicas": 0 } })).await?;
    t.patch("ReplicaSet", "web", json!({ "spec": { "replicas": 0 } })).await?;
    poll("the Pods to be gone", PATIENCE, async || {
        ensure!(crate::clone_set::pods(t, "web").await?.is_empty());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_total_by_hand_counts_and_kubectl_is_told_the_truth_by_a_dry_run() -> Result<()> {
    in_namespace("pub-total", async |t| {
        for name in ["a", "b"] {
            t.create(pod(name, vec![app("main")]).with("/metadata/labels/tier", "web")).await?;
        }
        for name in ["a", "b"] {
            t.ready(name).await?;
        }
        let total = "/metadata/annotations/pub.kruise.io~1protect-total-replicas";
        let budget = json!({ "kind": BUDGET, "metadata": { "name": "web" }, "spec": {
            "selector": { "matchLabels": { "tier": "web" } }, "maxUnavailable": 1 } });
        let budget = guarded(t, budget.with(total, "3")).await?;
        let numbers = |b: &Value| {
            ["totalReplicas", "desiredAvailable", "unavailableAllowed"].map(|f| b.int(&format!("/status/{f}")))
        };
        assert_eq!(numbers(&budget), [3, 2, 0], "{budget}");
        // Both ways are judged as the real thing, and nothing is written.
        for args in [
            &["delete", "pod", "a", "--dry-run=server"][..],
            &["delete", "pod", "b", "--dry-run=server", "--grace-period=0", "--force"],
        ] {
            let refused = t.kubectl(args).await.err().context("the dry run passed")?.to_string();
            ensure!(refused.contains("2 of 3 Pods are available, and 2 have to stay"), "{refused}");
        }
        t.patch(
            BUDGET,
            "web",
            json!({ "metadata": { "annotations": { "pub.kruise.io/protect-total-replicas": "2" } } }),
        )
        .await?;
        t.wait_for(BUDGET, "web", "to allow one", PATIENCE, |b| numbers(b) == [2, 1, 1]).await?;
        for name in ["a", "b"] {
            t.kubectl(&["delete", "pod", name, "--dry-run=server"]).await?;
        }
        let now = t.get(BUDGET, "web").await?;
        ensure!(!now.has("/status/disruptedPods") && now.int("/status/unavailableAllowed") == 1, "{now}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn bad_budgets_are_refused_by_field_value_and_what_is_allowed() -> Result<()> {
    in_namespace("pub-bad", async |t| {
        let selector = json!({ "matchLabels": { "app": "web" } });
        let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" });
        let budget = |name: &str, spec: Value| json!({ "kind": BUDGET, "metadata": { "name": name }, "spec": spec });
        let fits_none = json!({ "matchExpressions": [{ "key": "app", "operator": "In", "values": [] }] });
        let operations = |words: &str| {
            budget("bad", json!({ "selector": selector, "maxUnavailable": 1 }))
                .with("/metadata/annotations/kruise.io~1pub-protect-operations", words)
        };
        for (object, want) in [
            (budget("bad", json!({ "maxUnavailable": 1 })), "set exactly one of targetRef and selector"),
            (
                budget("bad", json!({ "selector": selector, "targetRef": target, "maxUnavailable": 1 })),
                "set exactly one of targetRef and selector",
            ),
            (budget("bad", json!({ "selector": selector })), "set exactly one of maxUnavailable and minAvailable"),
            (
                budget("bad", json!({ "selector": selector, "maxUnavailable": 1, "minAvailable": 1 })),
                "set exactly one of maxUnavailable and minAvailable",
            ),
            (budget("bad", json!({ "selector": {}, "maxUnavailable": 1 })), "spec.selector must not be empty"),
            (budget("bad", json!({ "selector": fits_none, "maxUnavailable": 1 })), "want values for operator In"),
            (budget("bad", json!({ "selector": selector, "maxUnavailable": "101%" })), "from 0% to 100%"),
            (budget("bad", json!({ "selector": selector, "maxUnavailable": "5" })), "from 0% to 100%"),
            (budget("bad", json!({ "selector": selector, "minAvailable": -1 })), "want a number from 0 on"),
            (
                budget(
                    "bad",
                    json!({ "targetRef": { "apiVersion": "a/b/c", "kind": "x", "name": "A" }, "maxUnavailable": 1 }),
                ),
                "spec.targetRef",
            ),
            (operations("DELETE, EVICT"), "\" EVICT\" is not allowed; want some of DELETE, EVICT, UPDATE, RESIZE"),
            (operations(""), "\"\" is not allowed"),
        ] {
            let (code, message) = t.refused(object.clone()).await.with_context(|| object.to_string())?;
            ensure!(code == 422 && message.contains(want), "{code} {message}, want {want}: {object}");
        }
        t.create(budget("first", json!({ "targetRef": target, "maxUnavailable": 1 }))).await?;
        let (code, message) = t.refused(budget("second", json!({ "targetRef": target, "minAvailable": 1 }))).await?;
        ensure!(code == 422 && message.contains("has PodUnavailableBudget \"first\" already"), "{code} {message}");
        let changed = json!({ "spec": { "targetRef": { "name": "other" } } });
        let error = t.patch(BUDGET, "first", changed).await.err().context("the target was changed")?;
        ensure!(error.to_string().contains("spec.targetRef cannot be changed"), "{error}");
        ensure!(error.to_string().contains("selector and targetRef cannot be modified"), "{error}");
        // A workload that is not there: nothing has to stay, and the budget says so.
        let counted = |b: &Value| b.array("/status/conditions").iter().any(|c| c.text("/reason") == "TargetMissing");
        t.wait_for(BUDGET, "first", "to miss its target", PATIENCE, counted).await?;
        // A kind that nobody knows.
        let unknown = json!({ "apiVersion": "example.com/v1", "kind": "Rollout", "name": "web" });
        t.create(budget("unknown", json!({ "targetRef": unknown, "maxUnavailable": 1 }))).await?;
        t.wait_for(BUDGET, "unknown", "to miss its target", PATIENCE, counted).await?;
        Ok(())
    })
    .await
}
