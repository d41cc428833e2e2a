//! UnitedDeployment on the real node: subsets of each kind, patches, a budget for the whole, subsets that come and go.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::images::{remote, remote_tag};
use e2e::kit::{Look, Test, app, condition, in_namespace, pod, poll};
use serde_json::{Value, json};

const UNITED: &str = "UnitedDeployment";
const BUDGET: &str = "PodUnavailableBudget";
const LONG: Duration = Duration::from_secs(120);
const SUBSET: &str = "apps.kruise.io/subset-name";

/// A UnitedDeployment of Pods with the label app=web.
fn united(member: &str, containers: Vec<Value>, subsets: Value) -> Value {
    let labels = json!({ "app": "web" });
    let template = json!({ "metadata": { "labels": labels }, "spec": pod("web", containers)["spec"] });
    json!({ "kind": UNITED, "metadata": { "name": "web" }, "spec": { "replicas": 3, "selector": { "matchLabels": labels },
        "template": { member: { "metadata": { "labels": labels }, "spec": { "template": template } } },
        "topology": { "subsets": subsets } } })
}

/// Waits until it is as its spec wants it, with so many Pods.
async fn settled(t: &Test, replicas: i64) -> Result<Value> {
    let fits = |o: &Value| {
        condition(o, "Ready") == "True"
            && o.int("/status/observedGeneration") == o.int("/metadata/generation")
            && o.int("/status/updatedReadyReplicas") == replicas
    };
    t.wait_for(UNITED, "web", "to be as its spec wants it", LONG, fits).await
}

/// How many replicas the workload of a subset is asked to have.
async fn replicas(t: &Test, kind: &str, subset: &str) -> Result<Vec<i64>> {
    let found = t.list(kind, &format!("{SUBSET}={subset}")).await?;
    Ok(found.iter().map(|set| set.int("/spec/replicas")).collect())
}

#[tokio::test]
async fn each_subset_has_its_pods_its_nodes_and_its_patch() -> Result<()> {
    in_namespace("united-subsets", async |t| {
        let term = json!({ "matchExpressions": [{ "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] }] });
        let patch = json!({ "metadata": { "annotations": { "e2e/patched": "yes" } }, "spec": { "terminationGracePeriodSeconds": 0 } });
        let subsets = json!([{ "name": "a", "replicas": 1, "nodeSelectorTerm": term }, { "name": "b", "patch": patch }]);
        t.create(united("cloneSetTemplate", vec![app("main")], subsets)).await?;
        let object = settled(t, 3).await?;
        assert_eq!((object.int("/status/subsetReplicas/a"), object.int("/status/subsetReplicas/b")), (1, 2));
        assert_eq!((replicas(t, "CloneSet", "a").await?, replicas(t, "CloneSet", "b").await?), (vec![1], vec![2]));
        let patched = t.list("Pod", &format!("{SUBSET}=b")).await?;
        ensure!(patched.iter().all(|pod| pod["metadata"]["annotations"]["e2e/patched"] == "yes"), "{patched:?}");
        let with_nodes = t.list("Pod", &format!("{SUBSET}=a")).await?;
        ensure!(with_nodes[0].has("/spec/affinity/nodeAffinity"), "{with_nodes:?}");
        let columns = t.kubectl(&["get", "ud", "web"]).await?;
        ensure!(columns.contains("DESIRED"), "{columns}");

        t.kubectl(&["scale", "ud/web", "--replicas=5"]).await?;
        settled(t, 5).await?;
        assert_eq!(replicas(t, "CloneSet", "b").await?, [4]);

        // A budget for the whole is counted from its replicas.
        let target = json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": UNITED, "name": "web" });
        let budget = json!({ "targetRef": target, "maxUnavailable": "40%" });
        t.create(json!({ "kind": BUDGET, "metadata": { "name": "whole" }, "spec": budget })).await?;
        let is_counted = |b: &Value| b.int("/status/totalReplicas") == 5 && b.int("/status/unavailableAllowed") == 2;
        t.wait_for(BUDGET, "whole", "to be counted", LONG, is_counted).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn deployments_and_stateful_sets_are_subsets_too() -> Result<()> {
    in_namespace("united-kinds", async |t| {
        for (member, kind) in [
            ("deploymentTemplate", "Deployment"),
            ("statefulSetTemplate", "StatefulSet"),
            ("advancedStatefulSetTemplate", "AdvancedStatefulSet"),
        ] {
            let mut object = united(member, vec![app("main")], json!([{ "name": "a" }, { "name": "b" }]));
            object["spec"]["replicas"] = 2.into();
            if kind != "Deployment" {
                object["spec"]["template"][member]["spec"]["serviceName"] = "web".into();
            }
            t.create(object).await?;
            settled(t, 2).await?;
            assert_eq!((replicas(t, kind, "a").await?, replicas(t, kind, "b").await?), (vec![1], vec![1]), "{kind}");
            t.kubectl(&["scale", "ud/web", "--replicas=3"]).await?;
            settled(t, 3).await?;
            t.patch(UNITED, "web", json!({ "spec": { "topology": { "subsets": [{ "name": "a" }] } } })).await?;
            settled(t, 3).await?;
            poll("the workload of the subset that was removed to be gone", LONG, async || {
                let left = replicas(t, kind, "b").await?;
                ensure!(left.is_empty(), "{kind}: {left:?}");
                Ok(())
            })
            .await?;
            t.kubectl(&["delete", "ud", "web", "--cascade=foreground"]).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_roll_out_keeps_the_budget_of_the_whole() -> Result<()> {
    in_namespace("united-budget", async |t| {
        let pulled = |image: String| vec![json!({ "name": "main", "image": image })];
        let mut object = united("cloneSetTemplate", pulled(remote("pause")), json!([{ "name": "a" }, { "name": "b" }]));
        object["metadata"]["annotations"] = json!({ "kruise.rs/max-unavailable": "1" });
        object["spec"]["replicas"] = 4.into();
        t.create(object).await?;
        settled(t, 4).await?;
        let watched = t.availability("app=web").await?;
        let containers = json!([{ "name": "main", "image": remote_tag("pause", "v2") }]);
        let template = json!({ "spec": { "template": { "spec": { "containers": containers } } } });
        t.patch(UNITED, "web", json!({ "spec": { "template": { "cloneSetTemplate": template } } })).await?;
        settled(t, 4).await?;
        let most = watched.most_unavailable();
        ensure!(most <= 1, "{most} Pods were out of service at a time");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_subset_that_is_removed_goes_when_it_is_replaced() -> Result<()> {
    in_namespace("united-removal", async |t| {
        t.create(united(
            "cloneSetTemplate",
            vec![app("main")],
            json!([{ "name": "a", "replicas": 1 }, { "name": "b" }]),
        ))
        .await?;
        settled(t, 3).await?;
        let watched = t.availability("app=web").await?;
        t.patch(
            UNITED,
            "web",
            json!({ "spec": { "topology": { "subsets": [{ "name": "a", "replicas": 1 }, { "name": "c" }] } } }),
        )
        .await?;
        let replaced = |o: &Value| {
            o["status"]["subsetStatuses"]
                .as_array()
                .is_some_and(|all| all.iter().any(|s| s["name"] == "c" && s["readyReplicas"] == 2))
        };
        t.wait_for(UNITED, "web", "to have the Pods of the new subset", LONG, replaced).await?;
        settled(t, 3).await?;
        assert_eq!(replicas(t, "CloneSet", "b").await?, Vec::<i64>::new());
        let most = watched.most_unavailable();
        ensure!(most == 0, "{most} Pods were missing at a time");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn patches_and_numbers_that_do_not_fit_are_refused_by_field() -> Result<()> {
    in_namespace("united-refused", async |t| {
        for (subsets, says) in [
            (
                json!([{ "name": "a", "patch": { "spec": { "containers": [{ "image": "x" }] } } }]),
                "spec.topology.subsets[0].patch",
            ),
            (
                json!([{ "name": "a", "patch": { "spec": { "containers": [{ "name": "second" }] } } }]),
                "spec.topology.subsets[0]",
            ),
            (json!([{ "name": "a", "replicas": 9 }, { "name": "b" }]), "spec.topology.subsets"),
        ] {
            let (code, message) = t.refused(united("deploymentTemplate", vec![app("main")], subsets)).await?;
            ensure!(code == 422 && message.contains(says), "{code} {message}");
        }
        Ok(())
    })
    .await
}
