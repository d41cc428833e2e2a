//! PersistentPodState on a real API server: what is recorded of Pods, what new ones get, and objects that annotations ask for.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, Test, app, condition, in_namespace, workload};
use serde_json::{Value, json};

const STATE: &str = "PersistentPodState";
const LONG: Duration = Duration::from_secs(120);
const HOST: &str = "kubernetes.io/hostname";
/// The annotation by which Kube-OVN is asked for an address.
const IP: &str = "ovn.kubernetes.io/ip_address";
const INJECTED: &str = "/metadata/annotations/kruise.io~1injected-persistent-pod-state";

/// A set of one Pod, of `apps` or of `apps.kruise.io`.
fn set(name: &str, kind: &str) -> Value {
    let set = workload("StatefulSet", name, 1, vec![app("main")]);
    if kind == "StatefulSet" { set } else { set.with("/apiVersion", "apps.kruise.io/v1beta1") }
}

fn state(name: &str, api_version: &str, target: &str) -> Value {
    json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": STATE, "metadata": { "name": name },
        "spec": { "targetRef": { "apiVersion": api_version, "kind": "StatefulSet", "name": target },
            "requiredPersistentTopology": { "nodeTopologyKeys": [HOST] },
            "preferredPersistentTopology": [{ "weight": 10, "preference": { "nodeTopologyKeys": ["kubernetes.io/os"] } }],
            "persistentPodAnnotations": [{ "key": IP }] } })
}

/// Waits until the Pod is recorded, with this address.
async fn recorded(t: &Test, name: &str, pod: &str, address: &str) -> Result<Value> {
    let pointer = format!("/status/podStates/{pod}");
    let fits = |state: &Value| {
        condition(state, "Ready") == "True"
            && state.text(&format!("{pointer}/annotations/ovn.kubernetes.io~1ip_address")) == address
            && state.has(&format!("{pointer}/nodeName"))
    };
    t.wait_for(STATE, name, "to have it recorded", LONG, fits).await
}

/// The Pod comes back with its place and its address. Both kinds.
async fn comes_back(t: &Test, kind: &str, api_version: &str) -> Result<()> {
    t.create(state("keep", api_version, "db")).await?;
    t.create(set("db", kind)).await?;
    let first = t.ready("db-0").await?;
    ensure!(!first.has(INJECTED) && !first.has("/spec/nodeSelector"), "the first one gets nothing: {first}");
    let note = json!({ "metadata": { "annotations": { IP: "10.0.0.5" } } });
    t.patch("Pod", "db-0", note).await?;
    let kept = recorded(t, "keep", "db-0", "10.0.0.5").await?;
    let node = first.text("/spec/nodeName");
    assert_eq!(kept.text("/status/podStates/db-0/nodeName"), node);
    assert_eq!(kept.int("/status/observedGeneration"), kept.int("/metadata/generation"));

    t.kubectl(&["delete", "pod", "db-0", "--wait=false"]).await?;
    let another =
        |pod: &Value| pod.text("/metadata/uid") != first.text("/metadata/uid") && condition(pod, "Ready") == "True";
    let second = t.wait_for("Pod", "db-0", "to be made again", LONG, another).await?;
    assert_eq!((second.text(INJECTED), second.text("/spec/nodeName")), ("keep", node));
    assert_eq!(second["spec"]["nodeSelector"][HOST], kept["status"]["podStates"]["db-0"]["nodeTopologyLabels"][HOST]);
    assert_eq!(second["metadata"]["annotations"][IP], "10.0.0.5");
    let preferred = "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution/0/weight";
    assert_eq!(second.int(preferred), 10);
    Ok(())
}

#[tokio::test]
async fn a_pod_of_a_stateful_set_comes_back_with_its_place_and_annotations() -> Result<()> {
    in_namespace("pod-states", async |t| comes_back(t, "StatefulSet", "apps/v1").await).await
}

#[tokio::test]
async fn a_pod_of_an_advanced_stateful_set_comes_back_with_its_place_and_annotations() -> Result<()> {
    in_namespace("pod-states-asts", async |t| comes_back(t, "AdvancedStatefulSet", "apps.kruise.io/v1alpha1").await)
        .await
}

#[tokio::test]
async fn a_pod_that_waits_for_a_node_that_does_not_exist_is_made_again() -> Result<()> {
    in_namespace("pod-states-lost", async |t| {
        // As after the loss of its node: the Pod waits for what is not recorded any more.
        let annotations =
            json!({ "kruise.io/injected-persistent-pod-state": "keep", "kruise.rs/restored-topology": HOST });
        let lost = set("db", "StatefulSet")
            .with("/spec/template/metadata/annotations", annotations)
            .with("/spec/template/spec/nodeSelector", json!({ HOST: "no-such-node" }));
        t.create(lost).await?;
        let waits = t.wait_for("Pod", "db-0", "to be there", PATIENCE, |_| true).await?;
        t.create(state("keep", "apps/v1", "db")).await?;
        let another = |pod: &Value| pod.text("/metadata/uid") != waits.text("/metadata/uid");
        t.wait_for("Pod", "db-0", "to be evicted and made again", LONG, another).await?;
        t.kubectl(&["delete", "statefulset", "db"]).await.map(drop)
    })
    .await
}

#[tokio::test]
async fn annotations_make_an_object_and_one_of_a_user_stays() -> Result<()> {
    in_namespace("pod-states-made", async |t| {
        let asks = json!({ "kruise.io/auto-generate-persistent-pod-state": "true",
            "kruise.io/required-persistent-topology": HOST });
        t.create(set("db", "AdvancedStatefulSet").with("/metadata/annotations", asks.clone())).await?;
        let made = t.wait_for(STATE, "db", "to be made", PATIENCE, |_| true).await?;
        assert_eq!(made.text("/metadata/ownerReferences/0/kind"), "StatefulSet");
        let (code, why) = t.refused(state("second", "apps.kruise.io/v1beta1", "db")).await?;
        ensure!(code == 422 && why.contains("has PersistentPodState \"db\" already"), "{code} {why}");

        t.kubectl(&["annotate", "asts", "db", "kruise.io/persistent-pod-annotations=example.com/key"]).await?;
        let follows = |state: &Value| state.text("/spec/persistentPodAnnotations/0/key") == "example.com/key";
        t.wait_for(STATE, "db", "to follow", PATIENCE, follows).await?;
        t.kubectl(&["annotate", "asts", "db", "kruise.io/auto-generate-persistent-pod-state-"]).await?;
        t.gone(STATE, "db").await?;

        t.create(state("theirs", "apps/v1", "theirs")).await?;
        t.create(set("theirs", "StatefulSet").with("/metadata/annotations", asks)).await?;
        t.ready("theirs-0").await?;
        t.kubectl(&["annotate", "statefulset", "theirs", "kruise.io/auto-generate-persistent-pod-state-"]).await?;
        recorded(t, "theirs", "theirs-0", "").await.map(drop)
    })
    .await
}

#[tokio::test]
async fn what_cannot_work_is_refused_with_its_field() -> Result<()> {
    in_namespace("pod-states-bad", async |t| {
        t.create(state("keep", "apps/v1", "db")).await?;
        for (pointer, value, words) in [
            ("/spec/targetRef/kind", json!("Deployment"), "spec.targetRef.kind"),
            ("/spec/preferredPersistentTopology/0/weight", json!(0), "spec.preferredPersistentTopology[0].weight"),
            ("/spec/persistentPodStateRetentionPolicy", json!("Never"), "spec.persistentPodStateRetentionPolicy"),
            ("/spec/persistentPodAnnotations/0/key", json!("kruise.rs/x"), "spec.persistentPodAnnotations[0].key"),
        ] {
            let object = state("bad", "apps/v1", "other").with(pointer, value);
            let (code, why) = t.refused(object).await?;
            ensure!(code == 422 && why.contains(words), "{pointer}: {code} {why}");
        }
        let moved =
            json!({ "spec": { "targetRef": { "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "other" } } });
        let error = t.patch(STATE, "keep", moved).await.err().map(|error| format!("{error:#}")).unwrap_or_default();
        ensure!(error.contains("spec.targetRef cannot be changed"), "{error}");
        Ok(())
    })
    .await
}
