//! CloneSet: its Pods, their number, and how they get to another revision by being replaced.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::images::{remote, remote_tag};
use e2e::kit::{Build, Look, PATIENCE, Test, app, condition, in_namespace, poll, shell, workload};
use serde_json::{Value, json};

pub(crate) const CLONE_SET: &str = "CloneSet";
/// For several Pods one after the other.
pub(crate) const LONG: Duration = Duration::from_secs(120);
pub(crate) const STATE: &str = "/metadata/labels/lifecycle.apps.kruise.io~1state";
const INSTANCE: &str = "/metadata/labels/apps.kruise.io~1cloneset-instance-id";
const REVISION: &str = "/metadata/labels/controller-revision-hash";

/// A CloneSet of Pods that have the label app=NAME.
pub(crate) fn clone_set(name: &str, replicas: i64, containers: Vec<Value>) -> Value {
    workload(CLONE_SET, name, replicas, containers)
}

/// The same, updated in place.
pub(crate) fn in_place(name: &str, replicas: i64, containers: Vec<Value>) -> Value {
    clone_set(name, replicas, containers).with("/spec/updateStrategy/type", "InPlaceIfPossible")
}

/// A container whose image was pulled, so that there are others of its name.
pub(crate) fn pulled(name: &str) -> Value {
    json!({ "name": name, "image": remote("pause") })
}

/// Creates a CloneSet and waits for its Pods.
pub(crate) async fn started(t: &Test, object: Value) -> Result<Vec<Value>> {
    let name = object.text("/metadata/name").to_owned();
    t.create(object).await?;
    rolled_out(t, &name).await?;
    pods(t, &name).await
}

/// Waits until as many Pods as there are to be are there, on their revision, and available.
pub(crate) async fn rolled_out(t: &Test, name: &str) -> Result<Value> {
    t.wait_for(CLONE_SET, name, "to be rolled out", LONG, |o| {
        let (replicas, expected) = (o.int("/spec/replicas"), o.int("/status/expectedUpdatedReplicas"));
        o.int("/status/observedGeneration") == o.int("/metadata/generation")
            && o.int("/status/replicas") == replicas
            && o.int("/status/availableReplicas") == replicas
            && o.int("/status/updatedReplicas") >= expected
            && o.int("/status/updatedAvailableReplicas") >= expected
    })
    .await
}

/// Waits until these are the Pods of a CloneSet, each of them Ready. For what follows a Pod that somebody has deleted: until the
/// manager has seen that, the status is still the one of before.
pub(crate) async fn until_pods(t: &Test, name: &str, what: &str, fit: impl Fn(&[Value]) -> bool) -> Result<Vec<Value>> {
    poll(what, LONG, async || {
        let now = pods(t, name).await?;
        ensure!(fit(&now) && now.iter().all(|p| condition(p, "Ready") == "True"), "{:?}", names(&now));
        Ok(now)
    })
    .await
}

/// The Pods that stay, by name.
pub(crate) async fn pods(t: &Test, name: &str) -> Result<Vec<Value>> {
    let mut pods = t.list("Pod", &format!("app={name}")).await?;
    pods.retain(|p| !p.has("/metadata/deletionTimestamp"));
    pods.sort_by_key(|p| p.text("/metadata/name").to_owned());
    Ok(pods)
}

pub(crate) fn names(pods: &[Value]) -> BTreeSet<&str> {
    pods.iter().map(|p| p.text("/metadata/name")).collect()
}

pub(crate) fn uids(pods: &[Value]) -> BTreeSet<&str> {
    pods.iter().map(|p| p.text("/metadata/uid")).collect()
}

pub(crate) fn image<'a>(pod: &'a Value, container: &str) -> &'a str {
    let containers = pod.array("/spec/containers");
    containers.iter().find(|c| c.text("/name") == container).map_or("", |c| c.text("/image"))
}

/// Gives a container of the template another image, as a user does.
pub(crate) async fn set_image(t: &Test, name: &str, container: &str, image: &str) -> Result<()> {
    let (workload, image) = (format!("cloneset/{name}"), format!("{container}={image}"));
    let answer = t.plugin_exits(0, &["set", "image", &workload, &image]).await?;
    assert_eq!(answer.stdout, format!("cloneset.apps.kruise.io/{name} image updated\n"));
    Ok(())
}

/// How many Pods have the container's image `v2`.
async fn on_second(t: &Test, name: &str) -> Result<usize> {
    let second = remote_tag("pause", "v2");
    Ok(pods(t, name).await?.iter().filter(|p| image(p, "main") == second).count())
}

#[tokio::test]
async fn pods_are_made_scaled_and_deleted_in_order() -> Result<()> {
    in_namespace("cs-scale", async |t| {
        let first = started(t, clone_set("web", 3, vec![app("main")])).await?;
        let set = t.get(CLONE_SET, "web").await?;
        let revision = set.text("/status/updateRevision");
        for pod in &first {
            let name = pod.text("/metadata/name");
            assert_eq!(format!("web-{}", pod.text(INSTANCE)), name);
            assert_eq!((pod.text(REVISION), pod.text(STATE)), (revision, "Normal"));
            ensure!(
                revision.ends_with(pod.text("/metadata/labels/pod-template-hash")),
                "{}",
                pod["metadata"]["labels"]
            );
            let gates: Vec<&str> = pod.array("/spec/readinessGates").iter().map(|g| g.text("/conditionType")).collect();
            assert_eq!(gates, ["InPlaceUpdateReady", "KruisePodReady"]);
            assert_eq!(pod.text("/metadata/ownerReferences/0/uid"), set.text("/metadata/uid"));
        }
        t.wait_events(CLONE_SET, "web", |e| e.iter().filter(|e| e.starts_with("SuccessfulCreate: ")).count() == 3)
            .await?;
        for event in t.list("Event", "").await?.iter().filter(|e| e.text("/involvedObject/kind") == CLONE_SET) {
            let named = (event.text("/source/component"), event.text("/reportingComponent"));
            assert_eq!(named, ("cloneset-controller", "cloneset-controller"), "as with OpenKruise: {event:#}");
        }

        // the one that costs least
        let cheap = first[1].text("/metadata/name");
        t.kubectl(&["annotate", "pod", cheap, "controller.kubernetes.io/pod-deletion-cost=-5"]).await?;
        t.kubectl(&["scale", "cloneset/web", "--replicas=2"]).await?;
        t.gone("Pod", cheap).await?;
        rolled_out(t, "web").await?;
        let left = pods(t, "web").await?;
        assert_eq!(uids(&left), uids(&[first[0].clone(), first[2].clone()]));

        // the one that is named, in the same write as the number
        let named = left[1].text("/metadata/name");
        t.patch(CLONE_SET, "web", json!({ "spec": { "replicas": 1, "scaleStrategy": { "podsToDelete": [named] } } }))
            .await?;
        t.gone("Pod", named).await?;
        rolled_out(t, "web").await?;
        assert_eq!(names(&pods(t, "web").await?), names(&left[..1]));
        let pruned = |o: &Value| o.array("/spec/scaleStrategy/podsToDelete").is_empty();
        t.wait_for(CLONE_SET, "web", "to forget the Pod that is gone", PATIENCE, pruned).await?;

        // one that is marked is replaced
        let marked = left[0].text("/metadata/name");
        t.kubectl(&["label", "pod", marked, "apps.kruise.io/specified-delete=true"]).await?;
        t.gone("Pod", marked).await?;
        let another = |pods: &[Value]| pods.len() == 1 && !names(pods).contains(marked);
        let new = until_pods(t, "web", "one Pod in its place", another).await?;
        rolled_out(t, "web").await?;

        t.remove(CLONE_SET, "web").await?;
        t.gone("Pod", new[0].text("/metadata/name")).await
    })
    .await
}

#[tokio::test]
async fn pods_that_are_not_ready_go_first() -> Result<()> {
    in_namespace("cs-order", async |t| {
        let probe = json!({ "periodSeconds": 1, "exec": { "command": ["test", "!", "-e", "/tmp/ill"] } });
        let all = started(t, clone_set("web", 3, vec![shell("main", "").with("/readinessProbe", probe)])).await?;
        let ill = all[1].text("/metadata/name");
        t.exec(ill, "main", "touch /tmp/ill").await?;
        t.wait_for(CLONE_SET, "web", "to see it", PATIENCE, |o| o.int("/status/readyReplicas") == 2).await?;
        t.kubectl(&["scale", "clone/web", "--replicas=2"]).await?;
        t.gone("Pod", ill).await?;
        rolled_out(t, "web").await?;
        assert_eq!(pods(t, "web").await?.len(), 2);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn columns_scale_wait_and_autoscaler_work_as_with_other_workloads() -> Result<()> {
    in_namespace("cs-kubectl", async |t| {
        t.create(clone_set("web", 2, vec![pulled("main")])).await?;
        let done = "--for=jsonpath={.status.updatedAvailableReplicas}=2";
        t.kubectl(&["wait", "cloneset/web", done, "--timeout=60s"]).await?;
        let table = t.kubectl(&["get", "cloneset", "web"]).await?;
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        let header = ["NAME", "DESIRED", "UPDATED", "UPDATED_READY", "UPDATED_AVAILABLE", "READY", "TOTAL", "AGE"];
        assert_eq!(rows[0], header);
        assert_eq!(rows[1][..7], ["web", "2", "2", "2", "2", "2", "2"]);
        let wide = t.kubectl(&["get", "clone", "web", "-o", "wide"]).await?;
        ensure!(wide.contains("CONTAINERS") && wide.contains(&remote("pause")) && wide.contains("app=web"), "{wide}");

        t.kubectl(&["scale", "cloneset", "web", "--replicas=3", "--current-replicas=2"]).await?;
        t.kubectl(&["wait", "clone/web", "--for=jsonpath={.status.availableReplicas}=3", "--timeout=60s"]).await?;
        let path = format!("/apis/apps.kruise.io/v1alpha1/namespaces/{}/clonesets/web/scale", t.namespace);
        let scale: Value = serde_json::from_str(&t.kubectl(&["get", "--raw", &path]).await?)?;
        assert_eq!((scale.int("/spec/replicas"), scale.int("/status/replicas")), (3, 3));
        assert_eq!(scale.text("/status/selector"), "app=web");
        t.create(
            json!({ "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": { "name": "web" },
            "spec": { "minReplicas": 1, "maxReplicas": 2,
                "scaleTargetRef": { "apiVersion": "apps.kruise.io/v1alpha1", "kind": CLONE_SET, "name": "web" },
                "metrics": [{ "type": "Resource", "resource": {
                    "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 50 } } }] } }),
        )
        .await?;
        // Without any figures it still keeps to its bounds: from three to two.
        t.wait_for(CLONE_SET, "web", "to be scaled by the autoscaler", PATIENCE * 2, |o| o.int("/spec/replicas") == 2)
            .await?;
        // It tells of it after it has done it.
        let able = |o: &Value| condition(o, "AbleToScale") == "True";
        t.wait_for("HorizontalPodAutoscaler", "web", "to be able to scale", PATIENCE, able).await?;
        rolled_out(t, "web").await?;
        assert_eq!(pods(t, "web").await?.len(), 2);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn pods_are_replaced_with_surge_and_none_is_ever_missing() -> Result<()> {
    in_namespace("cs-surge", async |t| {
        let set = clone_set("web", 2, vec![pulled("main")])
            .with("/spec/updateStrategy", json!({ "type": "ReCreate", "maxUnavailable": 0, "maxSurge": 1 }));
        let old = started(t, set).await?;
        let (availability, seen) = (t.availability("app=web").await?, t.record(CLONE_SET, "web").await?);
        set_image(t, "web", "main", &remote_tag("pause", "v2")).await?;
        let answer = t.plugin_exits(0, &["rollout", "status", "clone/web", "--timeout", "120s"]).await?;
        ensure!(answer.stdout.ends_with("cloneset \"web\" successfully rolled out\n"), "{}", answer.stdout);
        rolled_out(t, "web").await?;
        let new = pods(t, "web").await?;
        assert_eq!((new.len(), on_second(t, "web").await?), (2, 2));
        ensure!(uids(&old).is_disjoint(&uids(&new)), "every Pod is another one");
        assert_eq!(availability.most_unavailable(), 0);
        let most = seen.states().iter().map(|(_, o)| o.int("/status/replicas")).max();
        assert_eq!(most, Some(3), "one beyond the two");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_partition_in_percent_is_a_canary_and_the_status_says_so() -> Result<()> {
    in_namespace("cs-partition", async |t| {
        started(t, in_place("web", 4, vec![pulled("main")]).with("/spec/updateStrategy/partition", "75%")).await?;
        set_image(t, "web", "main", &remote_tag("pause", "v2")).await?;
        let answer = t.plugin_exits(0, &["rollout", "status", "cloneset/web", "--timeout", "60s"]).await?;
        let words = "cloneset \"web\" partitioned roll out complete: 1 new pods have been updated\n";
        ensure!(answer.stdout.ends_with(words), "{}", answer.stdout);
        for (partition, updated) in [("50%", 2), ("25%", 3)] {
            t.patch(CLONE_SET, "web", json!({ "spec": { "updateStrategy": { "partition": partition } } })).await?;
            let set = rolled_out(t, "web").await?;
            assert_eq!(
                (set.int("/status/expectedUpdatedReplicas"), on_second(t, "web").await?),
                (updated, updated as usize)
            );
            ensure!(set.text("/status/currentRevision") != set.text("/status/updateRevision"), "{}", set["status"]);
        }
        t.patch(CLONE_SET, "web", json!({ "spec": { "updateStrategy": { "partition": 0 } } })).await?;
        let set = rolled_out(t, "web").await?;
        assert_eq!(on_second(t, "web").await?, 4);
        assert_eq!(set.text("/status/currentRevision"), set.text("/status/updateRevision"));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_new_pod_in_the_middle_of_a_roll_out_is_of_the_revision_that_the_partition_wants() -> Result<()> {
    in_namespace("cs-middle", async |t| {
        started(t, in_place("web", 3, vec![pulled("main")]).with("/spec/updateStrategy/partition", 2)).await?;
        set_image(t, "web", "main", &remote_tag("pause", "v2")).await?;
        rolled_out(t, "web").await?;
        let old = pods(t, "web").await?.into_iter().find(|p| image(p, "main") == remote("pause"));
        let old = old.context("two are old")?.text("/metadata/name").to_owned();
        t.remove("Pod", &old).await?;
        t.gone("Pod", &old).await?;
        until_pods(t, "web", "three Pods", |pods| pods.len() == 3).await?;
        rolled_out(t, "web").await?;
        assert_eq!((pods(t, "web").await?.len(), on_second(t, "web").await?), (3, 1), "the lost one was an old one");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn paused_holds_updates_and_lets_pods_be_replaced() -> Result<()> {
    in_namespace("cs-paused", async |t| {
        let old = started(t, in_place("web", 2, vec![pulled("main")])).await?;
        let answer = t.plugin_exits(0, &["rollout", "pause", "cloneset", "web"]).await?;
        assert_eq!(answer.stdout, "cloneset.apps.kruise.io/web paused\n");
        set_image(t, "web", "main", &remote_tag("pause", "v2")).await?;
        t.kubectl(&["scale", "clone/web", "--replicas=3"]).await?;
        t.wait_for(CLONE_SET, "web", "to have three", PATIENCE, |o| o.int("/status/availableReplicas") == 3).await?;
        let now = pods(t, "web").await?;
        ensure!(uids(&old).is_subset(&uids(&now)), "scaling goes on");
        assert_eq!(on_second(t, "web").await?, 1, "the new one is of the new revision, the others are as they were");
        t.plugin_exits(0, &["rollout", "resume", "cloneset", "web"]).await?;
        rolled_out(t, "web").await?;
        assert_eq!(on_second(t, "web").await?, 3);
        assert_eq!(uids(&now), uids(&pods(t, "web").await?));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn on_delete_updates_what_somebody_deletes_and_its_pods_become_ready() -> Result<()> {
    in_namespace("cs-on-delete", async |t| {
        let set = clone_set("web", 2, vec![pulled("main")]).with("/spec/updateStrategy/type", "OnDelete");
        let old = started(t, set).await?;
        set_image(t, "web", "main", &remote_tag("pause", "v2")).await?;
        let seen = |o: &Value| {
            o.int("/status/observedGeneration") == o.int("/metadata/generation")
                && o.text("/status/updateRevision") != o.text("/status/currentRevision")
        };
        t.wait_for(CLONE_SET, "web", "to see the new revision", PATIENCE, seen).await?;
        let status = t.plugin_exits(0, &["rollout", "status", "clone/web", "--watch=false"]).await?.stdout;
        ensure!(
            status.contains("0 out of 2 new replicas have been updated; updateStrategy.type is OnDelete"),
            "{status}"
        );
        // Nobody waits for what does not come.
        let left = t.plugin_exits(1, &["rollout", "status", "clone/web", "--timeout", "5m"]).await?.stdout;
        ensure!(left.contains("does not roll out by itself: 0 out of 2 new replicas have been updated"), "{left}");
        let victim = old[0].text("/metadata/name");
        t.remove("Pod", victim).await?;
        t.gone("Pod", victim).await?;
        t.wait_for(CLONE_SET, "web", "to be whole", PATIENCE, |o| {
            o.int("/status/availableReplicas") == 2 && o.int("/status/updatedAvailableReplicas") == 1
        })
        .await?;
        let now = pods(t, "web").await?;
        ensure!(uids(&now).contains(old[1].text("/metadata/uid")), "the other one was not touched");
        assert_eq!(on_second(t, "web").await?, 1);
        Ok(())
    })
    .await
}

/// A volume of this machine for claims of one class, which nobody provides volumes for.
pub(crate) async fn volume(t: &Test, number: usize) -> Result<String> {
    let name = format!("{}-{number}", t.namespace);
    t.create(json!({ "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": { "capacity": { "storage": "1Mi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": t.namespace,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": { "path": format!("/tmp/kruise-e2e/{name}"), "type": "DirectoryOrCreate" } } }))
        .await?;
    Ok(name)
}

#[tokio::test]
async fn a_claim_is_used_again_when_its_pod_is_lost_and_goes_with_the_pod_that_is_deleted() -> Result<()> {
    in_namespace("cs-claims", async |t| {
        let mut volumes = Vec::new();
        for number in 0..2 {
            volumes.push(volume(t, number).await?);
        }
        let claim = json!({ "metadata": { "name": "data" }, "spec": { "accessModes": ["ReadWriteOnce"],
            "storageClassName": t.namespace, "resources": { "requests": { "storage": "1Mi" } } } });
        let main = shell("main", "").with("/volumeMounts", json!([{ "name": "data", "mountPath": "/data" }]));
        let set = clone_set("web", 2, vec![main]).with("/spec/volumeClaimTemplates", json!([claim]));
        let old = started(t, set).await?;
        let claim_of = |pod: &Value| format!("data-{}", pod.text("/metadata/name"));
        for pod in &old {
            let claim = t.get("PersistentVolumeClaim", &claim_of(pod)).await?;
            assert_eq!(claim.text(INSTANCE), pod.text(INSTANCE));
            assert_eq!(claim.text("/metadata/ownerReferences/0/kind"), CLONE_SET);
            t.exec(pod.text("/metadata/name"), "main", &format!("echo {} > /data/id", pod.text(INSTANCE))).await?;
        }
        // lost, not deleted by the CloneSet
        let lost = old[0].text("/metadata/name");
        t.remove("Pod", lost).await?;
        t.wait_for("Pod", lost, "to be another one that is ready", LONG, |p| {
            p.text("/metadata/uid") != old[0].text("/metadata/uid") && condition(p, "Ready") == "True"
        })
        .await?;
        assert_eq!(t.exec(lost, "main", "cat /data/id").await?, old[0].text(INSTANCE), "with its data");
        rolled_out(t, "web").await?;
        // deleted by the CloneSet
        let patch = json!({ "spec": { "replicas": 1, "scaleStrategy": { "podsToDelete": [lost] } } });
        t.patch(CLONE_SET, "web", patch).await?;
        t.gone("PersistentVolumeClaim", &claim_of(&old[0])).await?;
        t.get("PersistentVolumeClaim", &claim_of(&old[1])).await?;
        // the others go with the CloneSet
        t.remove(CLONE_SET, "web").await?;
        t.gone("PersistentVolumeClaim", &claim_of(&old[1])).await?;
        for volume in volumes {
            t.remove("PersistentVolume", &volume).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn broken_pods_are_deleted_although_the_scale_up_is_at_its_limit() -> Result<()> {
    in_namespace("cs-limited", async |t| {
        // ready only when told
        let probe = json!({ "periodSeconds": 1, "exec": { "command": ["test", "-e", "/tmp/ready"] } });
        let set = clone_set("web", 3, vec![shell("main", "").with("/readinessProbe", probe)])
            .with("/spec/scaleStrategy/maxUnavailable", 1);
        t.create(set).await?;
        t.wait_events(CLONE_SET, "web", |e| e.iter().any(|e| e.starts_with("ScaleUpLimited: "))).await?;
        // The event may come before the Pod.
        poll("a Pod", PATIENCE, async || {
            ensure!(!pods(t, "web").await?.is_empty(), "there is none yet");
            Ok(())
        })
        .await?;
        let first = pods(t, "web").await?;
        assert_eq!(first.len(), 1, "no more than one that is not available");
        let first = first[0].text("/metadata/name").to_owned();
        t.kubectl(&["label", "pod", &first, "apps.kruise.io/specified-delete=true"]).await?;
        t.gone("Pod", &first).await?;
        // one after the other as soon as the one before it is available
        let told = async || -> Result<()> {
            for pod in pods(t, "web").await? {
                let (name, main) = (pod.text("/metadata/name"), "main");
                if pod.text("/status/phase") == "Running" && condition(&pod, "ContainersReady") != "True" {
                    t.exec(name, main, "touch /tmp/ready").await?;
                }
            }
            let set = t.get(CLONE_SET, "web").await?;
            ensure!(set.int("/status/availableReplicas") == 3, "{}", set["status"]);
            Ok(())
        };
        poll("three Pods", LONG, told).await
    })
    .await
}

#[tokio::test]
async fn a_roll_back_finds_the_old_revision_again() -> Result<()> {
    in_namespace("cs-rollback", async |t| {
        let old = started(t, in_place("web", 2, vec![pulled("main"), app("side")])).await?;
        let first = t.get(CLONE_SET, "web").await?.text("/status/updateRevision").to_owned();
        set_image(t, "web", "main", &remote_tag("pause", "v2")).await?;
        let second = rolled_out(t, "web").await?.text("/status/updateRevision").to_owned();
        ensure!(first != second, "another revision");
        let history = t.plugin_exits(0, &["rollout", "history", "cloneset/web"]).await?.stdout;
        let rows: Vec<Vec<&str>> = history.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["cloneset.apps.kruise.io/web"]);
        assert_eq!((rows[2][..2].to_vec(), rows[3][..2].to_vec()), (vec!["1", &*first], vec!["2", &*second]));
        let answer = t.plugin_exits(0, &["rollout", "undo", "cloneset/web"]).await?;
        assert_eq!(answer.stdout, "cloneset.apps.kruise.io/web rolled back to revision 1\n");
        let set = rolled_out(t, "web").await?;
        assert_eq!(set.text("/status/updateRevision"), first, "no new revision");
        let revisions = t.list("ControllerRevision", "").await?;
        let numbers: BTreeSet<(i64, &str)> =
            revisions.iter().map(|r| (r.int("/revision"), r.text("/metadata/name"))).collect();
        assert_eq!(numbers, BTreeSet::from([(2, &*second), (3, &*first)]), "the old one is the newest now");
        let now = pods(t, "web").await?;
        assert_eq!((uids(&old), on_second(t, "web").await?), (uids(&now), 0));
        let answer = t.plugin_exits(0, &["rollout", "undo", "cloneset/web", "--to-revision", "3"]).await?;
        ensure!(
            answer.stdout.contains("skipped rollback (current template already matches revision 3)"),
            "{}",
            answer.stdout
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_failure_is_told_and_taken_back() -> Result<()> {
    in_namespace("cs-failure", async |t| {
        t.create(json!({ "kind": "ResourceQuota", "apiVersion": "v1", "metadata": { "name": "one" },
            "spec": { "hard": { "pods": "1" } } }))
            .await?;
        let counted = |o: &Value| o.has("/status/hard/pods");
        t.wait_for("ResourceQuota", "one", "to be counted", PATIENCE, counted).await?;
        t.create(clone_set("web", 2, vec![app("main")])).await?;
        let failed = |o: &Value| condition(o, "FailedScale") == "True";
        let set = t.wait_for(CLONE_SET, "web", "to say that it failed", PATIENCE, failed).await?;
        ensure!(set["status"].to_string().contains("exceeded quota"), "{}", set["status"]);
        t.wait_events(CLONE_SET, "web", |e| e.iter().any(|e| e.starts_with("FailedCreate: "))).await?;
        t.patch("ResourceQuota", "one", json!({ "spec": { "hard": { "pods": "5" } } })).await?;
        rolled_out(t, "web").await?;
        let gone = |o: &Value| condition(o, "FailedScale") != "True";
        t.wait_for(CLONE_SET, "web", "to take it back", PATIENCE, gone).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_pod_that_loses_its_label_is_let_go_and_replaced() -> Result<()> {
    in_namespace("cs-release", async |t| {
        let old = started(t, clone_set("web", 2, vec![app("main")])).await?;
        let lost = old[0].text("/metadata/name");
        t.kubectl(&["label", "pod", lost, "app=debug", "--overwrite"]).await?;
        let free = |p: &Value| p.array("/metadata/ownerReferences").is_empty();
        let free = t.wait_for("Pod", lost, "to belong to nobody", PATIENCE, free).await?;
        assert_eq!(free.text("/metadata/uid"), old[0].text("/metadata/uid"), "it runs on");
        // The status may still be that of before.
        poll("another Pod in its place", PATIENCE, async || {
            let now = pods(t, "web").await?;
            ensure!(now.len() == 2 && !names(&now).contains(lost), "{:?}", names(&now));
            Ok(())
        })
        .await?;
        rolled_out(t, "web").await?;
        // And it is not taken back.
        t.kubectl(&["label", "pod", lost, "app=web", "--overwrite"]).await?;
        t.kubectl(&["scale", "clone/web", "--replicas=3"]).await?;
        rolled_out(t, "web").await?;
        ensure!(t.get("Pod", lost).await?.array("/metadata/ownerReferences").is_empty(), "it was adopted");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_by_name() -> Result<()> {
    in_namespace("cs-refused", async |t| {
        let good = || clone_set("web", 1, vec![app("main")]);
        for (wrong, words) in [
            (good().with("/spec/updateStrategy/partition", "half"), "spec.updateStrategy.partition"),
            (good().with("/spec/updateStrategy/maxSurge", "1.5"), "spec.updateStrategy.maxSurge"),
            (good().with("/spec/updateStrategy/type", "Magic"), "spec.updateStrategy.type"),
            (good().with("/spec/replicas", -1), "spec.replicas"),
            (good().with("/spec/template/metadata/labels/app", "other"), "spec.template.metadata.labels"),
            (good().with("/spec/template/spec/restartPolicy", "Never"), "restartPolicy"),
            (good().with("/spec/template/spec/containers/0/image", ""), "image"),
            (good().with("/metadata/name", "w".repeat(53)), "CloneSetShortHash"),
        ] {
            let (code, message) = t.refused(wrong).await?;
            ensure!(code == 422 && message.contains(words), "{words}: {code} {message}");
        }
        assert_eq!(t.list(CLONE_SET, "").await?.len(), 0);
        t.create(good()).await?;
        let change = json!({ "spec": { "selector": { "matchLabels": { "app": "other" } } } });
        let error = t.patch(CLONE_SET, "web", change).await.map(drop).err().context("the selector is fixed")?;
        ensure!(format!("{error:#}").contains("spec.selector"), "{error:#}");
        Ok(())
    })
    .await
}
