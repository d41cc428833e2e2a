//! Advanced StatefulSet: ordinals, claims, updates in place, and what is stuck.
//!
//! The harness plays the provisioner of volumes: what kubelet itself would expand is not tested here.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::cmd::{cmd, environment};
use e2e::images::{remote, remote_tag};
use e2e::kit::{Build, Look, PATIENCE, Test, app, in_namespace, poll, workload};
use serde_json::{Value, json};

use crate::clone_set::{image, pods, uids};

pub(crate) const STATEFUL_SET: &str = "AdvancedStatefulSet";
pub(crate) const LONG: Duration = Duration::from_secs(120);
const REVISION: &str = "/metadata/labels/controller-revision-hash";
pub(crate) const ROLLING: &str = "/spec/updateStrategy/rollingUpdate";

/// A set of Pods that have the label app=NAME, all at once.
pub(crate) fn stateful_set(name: &str, replicas: i64, containers: Vec<Value>) -> Value {
    workload("StatefulSet", name, replicas, containers).with("/apiVersion", "apps.kruise.io/v1beta1")
}

/// The same, updated in place.
pub(crate) fn in_place(name: &str, replicas: i64, containers: Vec<Value>) -> Value {
    stateful_set(name, replicas, containers)
        .with("/spec/template/spec/readinessGates", json!([{ "conditionType": "InPlaceUpdateReady" }]))
        .with(&format!("{ROLLING}/podUpdatePolicy"), "InPlaceIfPossible")
}

/// A container whose image was pulled, so that there are others of its name.
pub(crate) fn pulled() -> Value {
    json!({ "name": "main", "image": remote("pause") })
}

pub(crate) fn names(pods: &[Value]) -> Vec<&str> {
    pods.iter().map(|pod| pod.text("/metadata/name")).collect()
}

pub(crate) fn is_ready(set: &Value) -> bool {
    let ready =
        set.array("/status/conditions").iter().any(|c| c.text("/type") == "Ready" && c.text("/status") == "True");
    ready && set.int("/status/observedGeneration") == set.int("/metadata/generation")
}

/// Waits until the set is as its spec wants it.
pub(crate) async fn settled(t: &Test, name: &str) -> Result<Value> {
    t.wait_for(STATEFUL_SET, name, "to be as its spec wants it", LONG, is_ready).await
}

pub(crate) async fn started(t: &Test, set: Value) -> Result<Vec<Value>> {
    let name = set.text("/metadata/name").to_owned();
    t.create(set).await?;
    settled(t, &name).await?;
    pods(t, &name).await
}

pub(crate) async fn patch(t: &Test, name: &str, spec: Value) -> Result<()> {
    t.patch(STATEFUL_SET, name, json!({ "spec": spec })).await.map(drop)
}

/// The condition that says what the set waits for.
pub(crate) fn waits_for(set: &Value) -> &str {
    let mut conditions = set.array("/status/conditions").iter();
    conditions.find(|c| c.text("/type") == "Reconciling").map_or("", |c| c.text("/message"))
}

#[tokio::test]
async fn pods_get_ordinals_one_after_the_other_or_all_at_once() -> Result<()> {
    in_namespace("sts-scale", async |t| {
        let ordered = stateful_set("one", 3, vec![app("main")]).with("/spec/podManagementPolicy", "OrderedReady");
        let all = started(t, ordered).await?;
        assert_eq!(names(&all), ["one-0", "one-1", "one-2"]);
        let created: Vec<&str> = all.iter().map(|pod| pod.text("/metadata/creationTimestamp")).collect();
        ensure!(created.is_sorted(), "{created:?}");
        let set = t.get(STATEFUL_SET, "one").await?;
        for (index, pod) in all.iter().enumerate() {
            let label = |key: &str| pod.text(&format!("/metadata/labels/{key}")).to_owned();
            assert_eq!(label("apps.kubernetes.io~1pod-index"), index.to_string());
            assert_eq!(label("statefulset.kubernetes.io~1pod-name"), pod.text("/metadata/name"));
            assert_eq!(pod.text(REVISION), set.text("/status/updateRevision"));
            assert_eq!((pod.text("/spec/hostname"), pod.text("/spec/subdomain")), (pod.text("/metadata/name"), "one"));
        }

        let parallel = started(t, stateful_set("all", 3, vec![app("main")])).await?;
        assert_eq!(names(&parallel), ["all-0", "all-1", "all-2"]);
        let scaled = format!("/apis/apps.kruise.io/v1beta1/namespaces/{}/statefulsets/all/scale", t.namespace);
        let scale: Value = serde_json::from_str(&t.kubectl(&["get", "--raw", &scaled]).await?)?;
        assert_eq!((scale.int("/status/replicas"), scale.text("/status/selector")), (3, "app=all"));
        t.kubectl(&["scale", "asts/all", "--replicas=1"]).await?;
        t.gone("Pod", "all-2").await?;
        t.gone("Pod", "all-1").await?;
        settled(t, "all").await?;
        assert_eq!(uids(&pods(t, "all").await?), uids(&parallel[..1]));

        // an ordinal is left out, and given back
        patch(t, "all", json!({ "replicas": 2, "reserveOrdinals": [0, "1-2"] })).await?;
        t.gone("Pod", "all-0").await?;
        settled(t, "all").await?;
        assert_eq!(names(&pods(t, "all").await?), ["all-3", "all-4"]);
        patch(t, "all", json!({ "reserveOrdinals": null })).await?;
        t.gone("Pod", "all-4").await?;
        settled(t, "all").await?;
        assert_eq!(names(&pods(t, "all").await?), ["all-0", "all-1"]);
        Ok(())
    })
    .await
}

/// A volume for a claim, as a provisioner makes it.
pub(crate) async fn provide_volume(t: &Test, claim: &str) -> Result<()> {
    let volume = format!("{}-{claim}", t.namespace);
    t.create(json!({ "kind": "PersistentVolume", "metadata": { "name": volume, "labels": { "of": t.namespace } },
        "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
            "persistentVolumeReclaimPolicy": "Retain", "claimRef": { "namespace": t.namespace, "name": claim },
            "hostPath": { "path": format!("/tmp/{volume}"), "type": "DirectoryOrCreate" } } }))
        .await
        .map(drop)
}

pub(crate) fn with_claim(set: Value) -> Value {
    set.with(
        "/spec/volumeClaimTemplates",
        json!([{ "metadata": { "name": "data" }, "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
            "resources": { "requests": { "storage": "1Gi" } } } }]),
    )
}

#[tokio::test]
async fn an_update_in_place_keeps_uid_address_and_claim() -> Result<()> {
    in_namespace("sts-inplace", async |t| {
        for ordinal in 0..3 {
            provide_volume(t, &format!("data-db-{ordinal}")).await?;
        }
        let before = started(t, with_claim(in_place("db", 3, vec![pulled()]))).await?;
        let claims = t.list("PersistentVolumeClaim", "app=db").await?;
        assert_eq!(names(&claims), ["data-db-0", "data-db-1", "data-db-2"]);
        ensure!(claims.iter().all(|claim| claim.text("/status/phase") == "Bound"), "{claims:?}");

        // the partition keeps those with the lowest ordinals
        let template = json!({ "spec": { "containers": [{ "name": "main", "image": remote_tag("pause", "v2") }] } });
        patch(t, "db", json!({ "template": template, "updateStrategy": { "rollingUpdate": { "partition": 2 } } }))
            .await?;
        settled(t, "db").await?;
        let images =
            |pods: &[Value]| pods.iter().map(|pod| image(pod, "main") == remote_tag("pause", "v2")).collect::<Vec<_>>();
        assert_eq!(images(&pods(t, "db").await?), [false, false, true]);
        patch(t, "db", json!({ "updateStrategy": { "rollingUpdate": { "partition": 0 } } })).await?;
        let set = t
            .wait_for(STATEFUL_SET, "db", "to be rolled out", LONG, |o| {
                is_ready(o) && o.int("/status/updatedReplicas") == 3
            })
            .await?;
        assert_eq!(set.text("/status/currentRevision"), set.text("/status/updateRevision"));
        let after = pods(t, "db").await?;
        assert_eq!(images(&after), [true, true, true]);
        for (old, new) in before.iter().zip(&after) {
            for what in ["/metadata/uid", "/status/podIP", "/spec/nodeName"] {
                assert_eq!(old.pointer(what), new.pointer(what), "{what}");
            }
        }
        assert_eq!(uids(&t.list("PersistentVolumeClaim", "app=db").await?), uids(&claims));
        t.kubectl(&["delete", "pv", "-l", &format!("of={}", t.namespace), "--wait=false"]).await.map(drop)
    })
    .await
}

/// A program that ends with the test.
pub(crate) struct Running(pub(crate) std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        // it may have ended by itself, which the test has noticed
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The small program of the guide that lets one Pod go at a time.
fn example_of_the_guide(t: &Test) -> Result<String> {
    let page = std::fs::read_to_string(t.paths.repo.join("docs/statefulset.md"))?;
    let mut blocks = page.split("\n```bash\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    let script = blocks.find(|text| text.contains("may-go")).context("docs/statefulset.md has the example")?;
    ensure!(script.lines().count() <= 32, "the example has grown");
    Ok(script.to_owned())
}

#[tokio::test]
async fn the_example_of_the_guide_is_asked_before_each_step() -> Result<()> {
    const STATE: &str = "/metadata/labels/lifecycle.apps.kruise.io~1state";
    in_namespace("sts-ask", async |t| {
        let hook = json!({ "labelsHandler": { "example.com/may-go": "ask" } });
        let set = in_place("db", 3, vec![pulled()])
            .with("/spec/template/metadata/labels", json!({ "app": "db", "example.com/may-go": "ask" }))
            .with("/spec/lifecycle", json!({ "preDelete": hook, "inPlaceUpdate": hook }));
        let before = started(t, set).await?;
        let new = remote_tag("pause", "v2");
        patch(t, "db", json!({ "template": { "spec": { "containers": [{ "name": "main", "image": new }] } } })).await?;
        // nobody answers yet
        let asks = |pod: &Value| pod.text(STATE) == "PreparingUpdate";
        let asking = t.wait_for("Pod", "db-2", "to ask", PATIENCE, asks).await?;
        ensure!(image(&asking, "main") != new, "it was not updated before an answer");

        let mut program = cmd("bash", ["-c", &example_of_the_guide(t)?, "may-go", &t.namespace, "db"]);
        environment(&t.paths, &mut program);
        let program = Running(program.spawn()?);
        let watch = t.availability("app=db").await?;
        let updated = |set: &Value| is_ready(set) && set.int("/status/updatedReplicas") == 3;
        t.wait_for(STATEFUL_SET, "db", "to be updated", LONG, updated).await?;
        ensure!(watch.most_unavailable() <= 1, "{} Pods were away at a time", watch.most_unavailable());
        let after = pods(t, "db").await?;
        assert_eq!(uids(&after), uids(&before), "in place");
        ensure!(after.iter().all(|pod| image(pod, "main") == new), "{after:?}");

        patch(t, "db", json!({ "replicas": 2 })).await?;
        t.gone("Pod", "db-2").await?;
        drop(program);
        patch(t, "db", json!({ "replicas": 1 })).await?;
        t.wait_for("Pod", "db-1", "to ask", PATIENCE, |pod| pod.text(STATE) == "PreparingDelete").await?;
        t.patch("Pod", "db-1", json!({ "metadata": { "labels": { "example.com/may-go": "yes" } } })).await?;
        t.gone("Pod", "db-1").await
    })
    .await
}

#[tokio::test]
async fn a_pod_that_does_not_end_stops_no_other_one() -> Result<()> {
    in_namespace("sts-stuck", async |t| {
        let before = started(t, stateful_set("web", 3, vec![app("main")])).await?;
        // a finalizer of somebody else keeps it
        t.patch("Pod", "web-1", json!({ "metadata": { "finalizers": ["example.com/stuck"] } })).await?;
        t.remove("Pod", "web-1").await?;
        let stuck = |set: &Value| waits_for(set).contains("web-1");
        t.wait_for(STATEFUL_SET, "web", "to name the Pod that does not end", PATIENCE, stuck).await?;
        patch(t, "web", json!({ "replicas": 4 })).await?;
        t.ready("web-3").await?;
        patch(t, "web", json!({ "replicas": 2 })).await?;
        t.gone("Pod", "web-3").await?;
        t.gone("Pod", "web-2").await?;
        let same = t.get("Pod", "web-1").await?;
        assert_eq!(same.text("/metadata/uid"), before[1].text("/metadata/uid"), "no second Pod of its name");
        t.patch("Pod", "web-1", json!({ "metadata": { "finalizers": null } })).await?;
        poll("another web-1", PATIENCE, async || {
            let pod = t.find("Pod", "web-1").await?;
            ensure!(
                pod.is_some_and(|pod| pod.text("/metadata/uid") != before[1].text("/metadata/uid")),
                "still the old one"
            );
            Ok(())
        })
        .await?;
        settled(t, "web").await.map(drop)
    })
    .await
}

#[tokio::test]
async fn a_corrected_template_reaches_a_broken_pod_under_ordered_ready() -> Result<()> {
    in_namespace("sts-broken", async |t| {
        let ordered = stateful_set("web", 2, vec![app("main")]).with("/spec/podManagementPolicy", "OrderedReady");
        started(t, ordered).await?;
        let image =
            |image: &str| json!({ "template": { "spec": { "containers": [app("main").with("/image", image)] } } });
        patch(t, "web", image("registry.example/team/there-is-none:1")).await?;
        let broken = |set: &Value| waits_for(set).contains("web-1");
        t.wait_for(STATEFUL_SET, "web", "to wait for the broken Pod", PATIENCE, broken).await?;
        let first = t.get("Pod", "web-0").await?;
        patch(t, "web", image(app("main").text("/image"))).await?;
        settled(t, "web").await?;
        assert_eq!(
            t.get("Pod", "web-0").await?.text("/metadata/uid"),
            first.text("/metadata/uid"),
            "it was never touched"
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn pods_of_a_built_in_set_are_taken_over_without_a_restart() -> Result<()> {
    in_namespace("sts-takeover", async |t| {
        let containers = vec![app("main")];
        t.create(workload("StatefulSet", "web", 2, containers.clone())).await?;
        t.wait_for("StatefulSet", "web", "to have its Pods", LONG, |o| o.int("/status/readyReplicas") == 2).await?;
        let before = pods(t, "web").await?;
        t.create(stateful_set("web", 2, containers)).await?;
        let told = |set: &Value| {
            let mut conditions = set.array("/status/conditions").iter();
            conditions.any(|c| c.text("/type") == "Stalled" && c.text("/message").contains("--cascade=orphan"))
        };
        t.wait_for(STATEFUL_SET, "web", "to tell of the other one", PATIENCE, told).await?;
        t.kubectl(&["delete", "statefulsets.apps", "web", "--cascade=orphan"]).await?;
        t.wait_for(STATEFUL_SET, "web", "to take its Pods over", LONG, |o| {
            is_ready(o) && o.int("/status/updatedReplicas") == 2
        })
        .await?;
        let after = pods(t, "web").await?;
        assert_eq!(uids(&after), uids(&before));
        for pod in &after {
            assert_eq!(pod.text("/metadata/ownerReferences/0/apiVersion"), "apps.kruise.io/v1beta1");
        }
        Ok(())
    })
    .await
}
