//! Advanced DaemonSet on the real node: made, updated in place and with a surge, following labels, and taken over from
//! apps/v1. A label that only one test's Pods ask for keeps them apart.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::images::{remote, remote_tag};
use e2e::kit::{Build, Container, Look, PATIENCE, Test, app, condition, in_namespace, restart_of, restoring, workload};
use serde_json::{Value, json};

use crate::clone_set::{STATE, image, pods, uids, until_pods};

pub(crate) const DAEMON_SET: &str = "AdvancedDaemonSet";
const LONG: Duration = Duration::from_secs(120);
const ROLLING: &str = "/spec/updateStrategy/rollingUpdate";

/// The key of a node label that is this test's alone.
fn label(t: &Test) -> String {
    format!("e2e/{}", t.namespace)
}

/// The name of the node.
async fn node(t: &Test) -> Result<String> {
    let nodes = t.list("Node", "kubernetes.io/hostname").await?;
    Ok(nodes.first().context("a node")?.text("/metadata/name").to_owned())
}

/// A set of Pods with the label app=NAME, on nodes with the test's own label.
pub(crate) fn daemon_set(t: &Test, name: &str, containers: Vec<Value>) -> Value {
    workload("DaemonSet", name, 0, containers)
        .with("/apiVersion", "apps.kruise.io/v1beta1")
        .with("/spec/template/spec/nodeSelector", json!({ label(t): "yes" }))
}

/// A container whose image was pulled, so that there are others of its name.
fn pulled() -> Value {
    json!({ "name": "main", "image": remote("pause") })
}

fn is_ready(set: &Value) -> bool {
    condition(set, "Ready") == "True" && set.int("/status/observedGeneration") == set.int("/metadata/generation")
}

/// Waits until the set is as its spec wants it, on so many nodes.
pub(crate) async fn settled(t: &Test, name: &str, nodes: i64) -> Result<Value> {
    let fits = |set: &Value| is_ready(set) && set.int("/status/numberAvailable") == nodes;
    t.wait_for(DAEMON_SET, name, "to be as its spec wants it", LONG, fits).await
}

async fn update(t: &Test, name: &str, image: &str) -> Result<()> {
    let containers = json!([{ "name": "main", "image": image }]);
    t.patch(DAEMON_SET, name, json!({ "spec": { "template": { "spec": { "containers": containers } } } }))
        .await
        .map(drop)
}

/// Does something while the node has the test's label.
pub(crate) async fn labelled(t: &Test, body: impl AsyncFnOnce(&str) -> Result<()>) -> Result<()> {
    let (node, label) = (node(t).await?, label(t));
    t.kubectl(&["label", "node", &node, &format!("{label}=yes"), "--overwrite"]).await?;
    restoring(body(&node), async { t.kubectl(&["label", "node", &node, &format!("{label}-")]).await.map(drop) }).await
}

#[tokio::test]
async fn a_daemon_set_follows_the_labels_of_its_node() -> Result<()> {
    in_namespace("ads-labels", async |t| {
        t.create(daemon_set(t, "agent", vec![app("main")])).await?;
        settled(t, "agent", 0).await?;
        labelled(t, async |name| {
            let set = settled(t, "agent", 1).await?;
            let all = pods(t, "agent").await?;
            assert_eq!((all.len(), all[0].text("/spec/nodeName")), (1, name));
            assert_eq!(all[0].text("/metadata/labels/controller-revision-hash"), set.text("/status/updateRevision"));
            assert_eq!(set.text("/status/daemonSetHash"), set.text("/status/updateRevision"));
            let columns = t.kubectl(&["get", "ads", "agent"]).await?;
            ensure!(columns.contains("UP-TO-DATE"), "{columns}");

            // one that is deleted comes back at once
            t.kubectl(&["delete", "pod", "-l", "app=agent", "--wait=false"]).await?;
            t.gone("Pod", all[0].text("/metadata/name")).await?;
            let another = |pods: &[Value]| pods.len() == 1 && uids(pods).is_disjoint(&uids(&all));
            until_pods(t, "agent", "another Pod in its place", another).await?;
            settled(t, "agent", 1).await?;
            Ok(())
        })
        .await?;
        settled(t, "agent", 0).await?;
        assert_eq!(pods(t, "agent").await?.len(), 0);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_update_of_a_daemon_set_in_place_keeps_its_pods() -> Result<()> {
    in_namespace("ads-inplace", async |t| {
        labelled(t, async |_| {
            let set = daemon_set(t, "agent", vec![pulled()])
                .with(&format!("{ROLLING}/rollingUpdateType"), "InPlaceIfPossible")
                .with("/metadata/annotations", json!({ "kruise.rs/strict-max-unavailable": "true" }));
            t.create(set).await?;
            settled(t, "agent", 1).await?;
            let before = pods(t, "agent").await?;
            update(t, "agent", &remote_tag("pause", "v2")).await?;
            let updated = |o: &Value| is_ready(o) && o.int("/status/updatedNumberScheduled") == 1;
            t.wait_for(DAEMON_SET, "agent", "to be updated", LONG, updated).await?;
            let after = pods(t, "agent").await?;
            assert_eq!(uids(&after), uids(&before));
            assert_eq!(image(&after[0], "main"), remote_tag("pause", "v2"));
            let told = t.plugin_exits(0, &["rollout", "status", "ads/agent", "--timeout=60s"]).await?;
            ensure!(told.stdout.contains("successfully rolled out"), "{}", told.stdout);
            Ok(())
        })
        .await
    })
    .await
}

#[tokio::test]
async fn a_surge_has_the_new_pod_beside_the_old_one_and_a_host_port_is_explained() -> Result<()> {
    in_namespace("ads-surge", async |t| {
        labelled(t, async |_| {
            t.create(daemon_set(t, "agent", vec![pulled()]).with(&format!("{ROLLING}/maxSurge"), 1)).await?;
            settled(t, "agent", 1).await?;
            let before = pods(t, "agent").await?;
            let availability = t.availability("app=agent").await?;
            update(t, "agent", &remote_tag("pause", "v2")).await?;
            let updated = |o: &Value| is_ready(o) && o.int("/status/updatedNumberScheduled") == 1;
            t.wait_for(DAEMON_SET, "agent", "to be updated", LONG, updated).await?;
            t.gone("Pod", before[0].text("/metadata/name")).await?;
            assert_eq!(availability.most_unavailable(), 0, "the old Pod went before the new one was available");

            let port = json!([{ "containerPort": 80, "hostPort": 47311 }]);
            let taken = daemon_set(t, "taken", vec![pulled()])
                .with(&format!("{ROLLING}/maxSurge"), 1)
                .with("/spec/template/spec/containers/0/ports", port.clone());
            t.create(taken).await?;
            settled(t, "taken", 1).await?;
            let containers = json!([{ "name": "main", "image": remote_tag("pause", "v2"), "ports": port }]);
            let template = json!({ "spec": { "containers": containers } });
            t.patch(DAEMON_SET, "taken", json!({ "spec": { "template": template } })).await?;
            let told = |set: &Value| {
                let mut conditions = set.array("/status/conditions").iter();
                conditions.any(|c| c.text("/type") == "Stalled" && c.text("/message").contains("host port"))
            };
            t.wait_for(DAEMON_SET, "taken", "to tell of the host port", PATIENCE, told).await?;
            let mut left = pods(t, "taken").await?;
            left.retain(|pod| condition(pod, "Ready") == "True");
            assert_eq!(left.len(), 1, "the old one still serves");
            Ok(())
        })
        .await
    })
    .await
}

#[tokio::test]
async fn a_built_in_daemon_set_is_taken_over_when_it_is_gone() -> Result<()> {
    in_namespace("ads-takeover", async |t| {
        labelled(t, async |_| {
            let built_in = daemon_set(t, "agent", vec![app("main")]).with("/apiVersion", "apps/v1");
            t.create(built_in).await?;
            let ready = |o: &Value| o.int("/status/numberReady") == 1;
            t.wait_for("DaemonSet", "agent", "to be ready", PATIENCE, ready).await?;
            let before = pods(t, "agent").await?;
            t.create(daemon_set(t, "agent", vec![app("main")])).await?;
            let told = |set: &Value| {
                let mut conditions = set.array("/status/conditions").iter();
                conditions.any(|c| c.text("/type") == "Stalled" && c.text("/message").contains("--cascade=orphan"))
            };
            t.wait_for(DAEMON_SET, "agent", "to tell of the other one", PATIENCE, told).await?;
            assert_eq!(uids(&pods(t, "agent").await?), uids(&before));
            t.kubectl(&["delete", "daemonsets.apps", "agent", "--cascade=orphan"]).await?;
            let over = |o: &Value| is_ready(o) && o.int("/status/updatedNumberScheduled") == 1;
            t.wait_for(DAEMON_SET, "agent", "to take its Pod over", LONG, over).await?;
            let after = pods(t, "agent").await?;
            assert_eq!(uids(&after), uids(&before));
            assert_eq!(after[0].text("/metadata/ownerReferences/0/apiVersion"), "apps.kruise.io/v1beta1");
            Ok(())
        })
        .await
    })
    .await
}

/// Waits until the set says that it is ready, and what holds the rest.
async fn held(t: &Test, reason: &str) -> Result<()> {
    let is_held = |set: &Value| {
        let mut conditions = set.array("/status/conditions").iter();
        is_ready(set) && conditions.any(|c| c.text("/type") == "Ready" && c.text("/reason") == reason)
    };
    t.wait_for(DAEMON_SET, "agent", &format!("to be held by {reason}"), LONG, is_held).await.map(drop)
}

/// Waits until the one Pod is another one than before, with this image.
async fn replaced(t: &Test, before: &[Value], wanted: &str) -> Result<Vec<Value>> {
    let fits =
        |now: &[Value]| now.len() == 1 && uids(now).is_disjoint(&uids(before)) && image(&now[0], "main") == wanted;
    until_pods(t, "agent", "another Pod in its place", fits).await
}

#[tokio::test]
async fn a_partition_a_pause_and_on_delete_hold_a_daemon_set_and_no_marked_pod() -> Result<()> {
    in_namespace("ads-held", async |t| {
        labelled(t, async |_| {
            let (first, second) = (remote("pause"), remote_tag("pause", "v2"));
            let strategy = async |strategy: Value| {
                t.patch(DAEMON_SET, "agent", json!({ "spec": { "updateStrategy": strategy } })).await.map(drop)
            };
            t.create(daemon_set(t, "agent", vec![pulled()])).await?;
            settled(t, "agent", 1).await?;
            let made = pods(t, "agent").await?;
            strategy(json!({ "rollingUpdate": { "partition": 1 } })).await?;
            update(t, "agent", &second).await?;
            held(t, "Partition").await?;
            assert_eq!(uids(&pods(t, "agent").await?), uids(&made));
            let status = t.get(DAEMON_SET, "agent").await?;
            assert_eq!(status.pointer("/status/updatedNumberScheduled"), Some(&json!(0)), "zeros are written");
            let mark = json!({ "metadata": { "labels": { "apps.kruise.io/specified-delete": "true" } } });
            t.patch("Pod", made[0].text("/metadata/name"), mark).await?;
            let marked = replaced(t, &made, &second).await?;

            strategy(json!({ "rollingUpdate": { "partition": 0, "paused": true } })).await?;
            update(t, "agent", &first).await?;
            held(t, "Paused").await?;
            assert_eq!(uids(&pods(t, "agent").await?), uids(&marked));
            strategy(json!({ "rollingUpdate": { "paused": false } })).await?;
            let resumed = replaced(t, &marked, &first).await?;

            strategy(json!({ "type": "OnDelete", "rollingUpdate": null })).await?;
            update(t, "agent", &second).await?;
            held(t, "OnDelete").await?;
            assert_eq!(uids(&pods(t, "agent").await?), uids(&resumed));
            t.remove("Pod", resumed[0].text("/metadata/name")).await?;
            replaced(t, &resumed, &second).await?;
            settled(t, "agent", 1).await.map(drop)
        })
        .await
    })
    .await
}

#[tokio::test]
async fn pods_are_made_as_far_as_the_partition_goes_when_that_is_asked_for() -> Result<()> {
    in_namespace("ads-progressive", async |t| {
        labelled(t, async |_| {
            let set = daemon_set(t, "agent", vec![app("main")])
                .with("/metadata/annotations", json!({ "daemonset.kruise.io/progressive-create-pod": "true" }))
                .with(&format!("{ROLLING}/partition"), "100%");
            t.create(set).await?;
            held(t, "Partition").await?;
            let set = t.get(DAEMON_SET, "agent").await?;
            let count = |field: &str| set.pointer(&format!("/status/{field}")).and_then(Value::as_i64);
            assert_eq!((count("desiredNumberScheduled"), count("currentNumberScheduled")), (Some(1), Some(0)));
            assert_eq!(pods(t, "agent").await?.len(), 0);
            let spec = json!({ "updateStrategy": { "rollingUpdate": { "partition": 0 } } });
            t.patch(DAEMON_SET, "agent", json!({ "spec": spec })).await?;
            settled(t, "agent", 1).await.map(drop)
        })
        .await
    })
    .await
}

#[tokio::test]
async fn a_hook_holds_the_replacement_of_a_daemon_sets_pod_and_a_rollback_takes_it_back() -> Result<()> {
    in_namespace("ads-hooks", async |t| {
        labelled(t, async |_| {
            let hook = json!({ "labelsHandler": { "example.com/block": "yes" } });
            let set = daemon_set(t, "agent", vec![pulled()])
                .with("/spec/template/metadata/labels/example.com~1block", "yes")
                .with("/spec/lifecycle", json!({ "preDelete": hook }));
            t.create(set).await?;
            settled(t, "agent", 1).await?;
            let before = pods(t, "agent").await?;
            let name = before[0].text("/metadata/name");
            let second = remote_tag("pause", "v2");
            update(t, "agent", &second).await?;
            t.wait_for("Pod", name, "to be asked", PATIENCE, |pod| pod.text(STATE) == "PreparingDelete").await?;
            let counts = |set: &Value| set.int("/status/numberUnavailable") == 1;
            t.wait_for(DAEMON_SET, "agent", "to count it as unavailable", PATIENCE, counts).await?;
            update(t, "agent", &remote("pause")).await?;
            t.wait_for("Pod", name, "to be back", PATIENCE, |pod| pod.text(STATE) == "Normal").await?;
            settled(t, "agent", 1).await?;
            assert_eq!(uids(&pods(t, "agent").await?), uids(&before));

            update(t, "agent", &second).await?;
            t.wait_for("Pod", name, "to be asked again", PATIENCE, |pod| pod.text(STATE) == "PreparingDelete").await?;
            t.kubectl(&["label", "pod", name, "example.com/block=no", "--overwrite"]).await?;
            replaced(t, &before, &second).await.map(drop)
        })
        .await
    })
    .await
}

#[tokio::test]
async fn the_plugin_and_a_workload_restart_know_daemon_sets_of_kruise() -> Result<()> {
    in_namespace("ads-plugin", async |t| {
        labelled(t, async |_| {
            let set = daemon_set(t, "agent", vec![pulled()])
                .with(&format!("{ROLLING}/rollingUpdateType"), "InPlaceIfPossible");
            t.create(set).await?;
            settled(t, "agent", 1).await?;
            let before = pods(t, "agent").await?;
            let second = remote_tag("pause", "v2");
            t.plugin_exits(0, &["set", "image", "daemonsets.apps.kruise.io/agent", &format!("main={second}")]).await?;
            let status = ["rollout", "status", "daemonsets.apps.kruise.io/agent", "--timeout=60s"];
            t.plugin_exits(0, &status).await?;
            let updated = pods(t, "agent").await?;
            assert_eq!((uids(&updated), image(&updated[0], "main")), (uids(&before), second.as_str()));
            t.plugin_exits(0, &["rollout", "undo", "ads/agent"]).await?;
            t.plugin_exits(0, &status).await?;
            settled(t, "agent", 1).await?;

            let before = pods(t, "agent").await?;
            let restarts = |pods: &[Value]| Container::all(&pods[0])["main"].restarts;
            let restart = restart_of("agent", "DaemonSet", "agent", json!({}))
                .with("/spec/targetRef/apiVersion", "apps.kruise.io/v1beta1");
            t.create(restart).await?;
            let ended = |restart: &Value| condition(restart, "Complete") == "True";
            t.wait_for("WorkloadRestart", "agent", "to be complete", LONG, ended).await?;
            let after = pods(t, "agent").await?;
            assert_eq!((uids(&after), restarts(&after)), (uids(&before), restarts(&before) + 1));
            Ok(())
        })
        .await
    })
    .await
}

#[tokio::test]
async fn a_daemon_set_that_is_wrong_is_refused_with_every_field_that_is() -> Result<()> {
    in_namespace("ads-admission", async |t| {
        let wrong = daemon_set(t, "agent", vec![app("main")])
            .with(ROLLING, json!({ "maxUnavailable": 1, "maxSurge": 1, "partition": "200%" }))
            .with("/spec/minReadySeconds", -1);
        let (code, message) = t.refused(wrong).await?;
        assert_eq!(code, 422);
        for field in ["maxSurge", "partition", "minReadySeconds"] {
            ensure!(message.contains(field), "{field}: {message}");
        }
        let surging = daemon_set(t, "agent", vec![app("main")])
            .with("/apiVersion", "apps.kruise.io/v1alpha1")
            .with(&format!("{ROLLING}/rollingUpdateType"), "Surging");
        t.create(surging).await?;
        let set = t.get(DAEMON_SET, "agent").await?;
        let rolling = set.pointer(ROLLING).context("rollingUpdate")?;
        assert_eq!(
            *rolling,
            json!({ "rollingUpdateType": "Standard", "maxUnavailable": 0, "maxSurge": 1, "partition": 0 })
        );
        let labels = json!({ "app": "other" });
        let template = json!({ "metadata": { "labels": labels } });
        let other = json!({ "spec": { "selector": { "matchLabels": labels }, "template": template } });
        let refused = t.patch(DAEMON_SET, "agent", other).await.err().context("the selector was changed")?;
        ensure!(format!("{refused:#}").contains("spec.selector is immutable"), "{refused:#}");
        Ok(())
    })
    .await
}
