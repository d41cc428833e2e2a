//! UnitedDeployment on the real node: subsets of each kind, patches, a budget for the whole, subsets that come and go, subsets
//! without a place, autoscalers, Pods that hold up a roll-out.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::images::{remote, remote_tag};
use e2e::kit::{Build, Look, Test, app, condition, in_namespace, pod, poll, restoring};
use e2e::paths::NODE;
use serde_json::{Value, json};

const UNITED: &str = "UnitedDeployment";
const HPA: &str = "HorizontalPodAutoscaler";
const BUDGET: &str = "PodUnavailableBudget";
const LONG: Duration = Duration::from_secs(120);
const SUBSET: &str = "apps.kruise.io/subset-name";

/// A UnitedDeployment of Pods with the label app=web.
fn united(member: &str, containers: Vec<Value>, subsets: Value) -> Value {
    named("web", 3, member, containers, subsets)
}

/// One of Pods with the label app=NAME.
pub(crate) fn named(name: &str, replicas: i64, member: &str, containers: Vec<Value>, subsets: Value) -> Value {
    let labels = json!({ "app": name });
    let template = json!({ "metadata": { "labels": labels }, "spec": pod(name, containers)["spec"] });
    json!({ "kind": UNITED, "metadata": { "name": name }, "spec": { "replicas": replicas, "selector": { "matchLabels": labels },
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
async fn orphaned_workloads_are_adopted_by_the_next_object_of_the_name() -> Result<()> {
    in_namespace("united-orphans", async |t| {
        for (member, kind) in [("deploymentTemplate", "Deployment"), ("cloneSetTemplate", "CloneSet")] {
            let object = united(member, vec![app("main")], json!([{ "name": "a", "replicas": 1 }, { "name": "b" }]));
            t.create(object.clone()).await?;
            settled(t, 3).await?;
            let uids = async || -> Result<Vec<String>> {
                let all = t.list(kind, SUBSET).await?;
                Ok(all.iter().map(|set| set.text("/metadata/uid").to_owned()).collect())
            };
            let before = uids().await?;
            assert_eq!(before.len(), 2);
            t.kubectl(&["delete", "ud/web", "--cascade=orphan"]).await?;
            t.create(object).await?;
            settled(t, 3).await?;
            assert_eq!(uids().await?, before, "{kind}");
            t.remove(UNITED, "web").await?;
            poll("no workload", LONG, async || {
                ensure!(uids().await?.is_empty(), "{kind}");
                Ok(())
            })
            .await?;
        }
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
        poll("the workload of the subset that was removed to be gone", LONG, async || {
            let left = replicas(t, "CloneSet", "b").await?;
            ensure!(left.is_empty(), "{left:?}");
            Ok(())
        })
        .await?;
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

/// Subset `a` on nodes with a label, and `b` anywhere.
fn placed(member: &str, label: &str, adaptive: Value) -> Value {
    let term = json!({ "matchExpressions": [{ "key": label, "operator": "Exists" }] });
    let subsets = json!([{ "name": "a", "nodeSelectorTerm": term }, { "name": "b" }]);
    united(member, vec![app("main")], subsets)
        .with("/spec/topology/scheduleStrategy", json!({ "type": "Adaptive", "adaptive": adaptive }))
}

/// The condition Schedulable of a subset.
fn schedulable<'o>(object: &'o Value, subset: &str) -> &'o str {
    let of = object.array("/status/subsetStatuses").iter().find(|of| of.text("/name") == subset);
    of.map_or("", |of| {
        let found = of.array("/conditions").iter().find(|condition| condition.text("/type") == "Schedulable");
        found.map_or("", |condition| condition.text("/status"))
    })
}

#[tokio::test]
async fn pods_that_find_no_place_are_made_in_other_subsets() -> Result<()> {
    in_namespace("united-adaptive", async |t| {
        t.create(placed("cloneSetTemplate", "no-such-label", json!({ "rescheduleCriticalSeconds": 5 }))).await?;
        let moved = |o: &Value| schedulable(o, "a") == "False" && o.int("/status/readyReplicas") == 3;
        t.wait_for(UNITED, "web", "to have its Pods elsewhere", LONG, moved).await?;
        settled(t, 3).await?;
        assert_eq!((replicas(t, "CloneSet", "a").await?, replicas(t, "CloneSet", "b").await?), (vec![0], vec![3]));
        // Until it is tried again it gets none.
        t.kubectl(&["scale", "ud/web", "--replicas=5"]).await?;
        settled(t, 5).await?;
        assert_eq!((replicas(t, "CloneSet", "a").await?, replicas(t, "CloneSet", "b").await?), (vec![0], vec![5]));
        let table = t.plugin(&["spread", "ud/web"]).await?;
        ensure!(table.stdout.contains("gets no Pods for now"), "{}{}", table.stdout, table.stderr);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_subset_without_a_place_is_tried_again_and_takes_no_pod_that_runs() -> Result<()> {
    in_namespace("united-again", async |t| {
        let label = format!("e2e/{}", t.namespace);
        let adaptive = json!({ "rescheduleCriticalSeconds": 3, "unschedulableDuration": 10 });
        t.create(placed("cloneSetTemplate", &label, adaptive)).await?;
        // It may have been tried again meanwhile.
        let moved = |o: &Value| o.int("/status/subsetReplicas/b") == 3 && o.int("/status/readyReplicas") == 3;
        t.wait_for(UNITED, "web", "to have its Pods elsewhere", LONG, moved).await?;
        // Without those that still end: they came while the subset was tried again.
        let those_that_stay = async || {
            let pods = t.list("Pod", &format!("{SUBSET}=b")).await?;
            let stay = pods.iter().filter(|pod| !pod.has("/metadata/deletionTimestamp"));
            anyhow::Ok(stay.map(|pod| pod.text("/metadata/uid").to_owned()).collect::<BTreeSet<String>>())
        };
        let before = those_that_stay().await?;
        let body = async {
            t.kubectl(&["label", "node", NODE, &format!("{label}=yes")]).await?;
            let recovered = |o: &Value| schedulable(o, "a") == "True";
            t.wait_for(UNITED, "web", "to try the subset again", LONG, recovered).await?;
            settled(t, 3).await?;
            t.kubectl(&["scale", "ud/web", "--replicas=5"]).await?;
            settled(t, 5).await?;
            assert_eq!((replicas(t, "CloneSet", "a").await?, replicas(t, "CloneSet", "b").await?), (vec![2], vec![3]));
            assert_eq!(those_that_stay().await?, before, "edge D8: what runs stays");
            Ok(())
        };
        restoring(body, async { t.kubectl(&["label", "node", NODE, &format!("{label}-")]).await.map(drop) }).await
    })
    .await
}

#[tokio::test]
async fn reserved_pods_keep_their_place_in_the_queue_and_others_stand_in_for_them() -> Result<()> {
    in_namespace("united-reserved", async |t| others_stand_in(t, "cloneSetTemplate", "CloneSet").await).await
}

/// Of a Deployment nothing of ours controls the Pods: the manager labels them under the policy for Pods of others.
#[tokio::test]
async fn reserved_pods_of_deployments_keep_their_place_too() -> Result<()> {
    in_namespace("united-reserved-deploy", async |t| others_stand_in(t, "deploymentTemplate", "Deployment").await).await
}

async fn others_stand_in(t: &Test, member: &str, kind: &str) -> Result<()> {
    const RESERVED: &str = "apps.kruise.io/united-deployment-reserved-pod";
    let label = format!("e2e/{}", t.namespace);
    let adaptive =
        json!({ "rescheduleCriticalSeconds": 3, "unschedulableDuration": 5, "reserveUnschedulablePods": true });
    t.create(placed(member, &label, adaptive)).await?;
    let stand_in = |o: &Value| o.int("/status/reservedPods") == 3 && o.int("/status/readyReplicas") == 3;
    let object = t.wait_for(UNITED, "web", "to have others for its Pods", LONG, stand_in).await?;
    assert_eq!((object.int("/status/replicas"), schedulable(&object, "a")), (3, "False"), "{object:#}");
    let selector = object.text("/status/labelSelector");
    ensure!(selector.ends_with(&format!(",{RESERVED}=false")), "an autoscaler sees those that run: {selector}");
    assert_eq!((replicas(t, kind, "a").await?, replicas(t, kind, "b").await?), (vec![3], vec![3]));
    poll("the Pods to say which they are", LONG, async || {
        let waiting = t.list("Pod", &format!("{SUBSET}=a,{RESERVED}=true")).await?.len();
        let others = t.list("Pod", &format!("{SUBSET}=b,{RESERVED}=false")).await?.len();
        ensure!((waiting, others) == (3, 3), "{waiting} wait, {others} stand in");
        Ok(())
    })
    .await?;
    let body = async {
        t.kubectl(&["label", "node", NODE, &format!("{label}=yes")]).await?;
        let back = |o: &Value| o.int("/status/reservedPods") == 0 && o.int("/status/subsetReplicas/a") == 3;
        t.wait_for(UNITED, "web", "to have its Pods where they belong", LONG, back).await?;
        settled(t, 3).await?;
        assert_eq!((replicas(t, kind, "a").await?, replicas(t, kind, "b").await?), (vec![3], vec![0]));
        Ok(())
    };
    restoring(body, async { t.kubectl(&["label", "node", NODE, &format!("{label}-")]).await.map(drop) }).await
}

/// Without a source of metrics an autoscaler still keeps its bounds, and looks at the selector after that.
#[tokio::test]
async fn edge_d6_an_autoscaler_scales_it_and_accepts_its_selector() -> Result<()> {
    in_namespace("united-hpa", async |t| {
        t.create(united("cloneSetTemplate", vec![app("main")], json!([{ "name": "a", "replicas": 1 }, { "name": "b" }])))
            .await?;
        settled(t, 3).await?;
        let target = json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": UNITED, "name": "web" });
        let cpu = json!({ "type": "Resource", "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 50 } } });
        t.create(json!({ "kind": HPA, "metadata": { "name": "web" }, "spec": {
            "scaleTargetRef": target, "minReplicas": 4, "maxReplicas": 6, "metrics": [cpu] } }))
            .await?;
        settled(t, 4).await?;
        let looked = |o: &Value| {
            let found = o.array("/status/conditions").iter().find(|c| c.text("/type") == "ScalingActive");
            found.is_some_and(|condition| condition.text("/reason") == "FailedGetResourceMetric")
        };
        t.wait_for(HPA, "web", "to ask for metrics by the selector", LONG, looked).await?;
        t.patch(HPA, "web", json!({ "spec": { "minReplicas": 1, "maxReplicas": 2 } })).await?;
        let object = settled(t, 2).await?;
        assert_eq!((object.int("/spec/replicas"), object.text("/status/labelSelector")), (2, "app=web"));
        Ok(())
    })
    .await
}

/// Spec 4.5: under OrderedReady a StatefulSet waits for ever for a Pod that only its update would cure.
#[tokio::test]
async fn a_pod_of_a_broken_revision_holds_up_no_stateful_set() -> Result<()> {
    in_namespace("united-stuck", async |t| {
        let with_image = |image: String| {
            let template =
                json!({ "spec": { "template": { "spec": { "containers": [{ "name": "main", "image": image }] } } } });
            json!({ "spec": { "template": { "statefulSetTemplate": template } } })
        };
        let pulled = vec![json!({ "name": "main", "image": remote("pause") })];
        let mut object = united("statefulSetTemplate", pulled, json!([{ "name": "a" }]));
        object["spec"]["replicas"] = 2.into();
        object["spec"]["template"]["statefulSetTemplate"]["spec"]["serviceName"] = "web".into();
        t.create(object).await?;
        settled(t, 2).await?;
        let kept = t.list("Pod", &format!("{SUBSET}=a")).await?;
        let first = kept
            .iter()
            .find(|pod| pod.text("/metadata/name").ends_with("-0"))
            .map(|pod| pod["metadata"]["uid"].clone());

        t.patch(UNITED, "web", with_image("registry.example/team/no-such-image:1".into())).await?;
        let images = async || {
            let pods = t.list("Pod", &format!("{SUBSET}=a")).await?;
            Ok::<_, anyhow::Error>(
                pods.iter().map(|pod| pod.text("/spec/containers/0/image").to_owned()).collect::<Vec<_>>(),
            )
        };
        poll("the last Pod to be broken", LONG, async || {
            let found = images().await?;
            ensure!(found.iter().any(|image| image.contains("no-such-image")), "{found:?}");
            Ok(())
        })
        .await?;
        let now = t.list("Pod", &format!("{SUBSET}=a")).await?;
        let first_now =
            now.iter().find(|pod| pod.text("/metadata/name").ends_with("-0")).map(|pod| pod["metadata"]["uid"].clone());
        assert_eq!(first_now, first, "what is Ready stays");

        t.patch(UNITED, "web", with_image(remote_tag("pause", "v2"))).await?;
        settled(t, 2).await?;
        let found = images().await?;
        ensure!(found.iter().all(|image| *image == remote_tag("pause", "v2")), "{found:?}");
        let said = |events: &[String]| events.iter().any(|event| event.contains("DeletedStuckPod"));
        t.wait_events(UNITED, "web", said).await.map(drop)
    })
    .await
}
