//! Advanced StatefulSet, step by step: what stops and what goes on, in which order Pods are updated, what becomes of claims,
//! and the commands and kinds that work on it.

use anyhow::{Context, Result, ensure};
use e2e::images::{remote, remote_tag};
use e2e::kit::{Build, Container, Look, PATIENCE, Test, app, condition, in_namespace, poll, restart_of, shell};
use serde_json::{Value, json};

use crate::clone_set::{STATE, image, pods, uids, until_pods};
use crate::stateful_set::{
    LONG, ROLLING, STATEFUL_SET, in_place, is_ready, names, patch, provide_volume, pulled, settled, started,
    stateful_set, waits_for, with_claim,
};

const CLAIM: &str = "PersistentVolumeClaim";
const POLICY: &str = "/spec/persistentVolumeClaimRetentionPolicy";
const SPECIFIED: &str = "apps.kruise.io/specified-delete";

fn second() -> String {
    remote_tag("pause", "v2")
}

fn template(image: &str) -> Value {
    json!({ "spec": { "containers": [{ "name": "main", "image": image }] } })
}

/// Ordinals of the Pods that have the second image.
async fn updated(t: &Test, name: &str) -> Result<Vec<String>> {
    let all = pods(t, name).await?;
    Ok(all.iter().filter(|pod| image(pod, "main") == second()).map(|pod| pod.text("/metadata/name").into()).collect())
}

/// Waits until the set says that it is ready, and that its partition, a pause or OnDelete holds the rest.
async fn held(t: &Test, name: &str, reason: &str) -> Result<()> {
    let is_held = |set: &Value| {
        let mut conditions = set.array("/status/conditions").iter();
        is_ready(set) && conditions.any(|c| c.text("/type") == "Ready" && c.text("/reason") == reason)
    };
    t.wait_for(STATEFUL_SET, name, &format!("to be held by {reason}"), LONG, is_held).await.map(drop)
}

async fn mark(t: &Test, pod: &str) -> Result<()> {
    t.patch("Pod", pod, json!({ "metadata": { "labels": { (SPECIFIED): "true" } } })).await.map(drop)
}

/// Waits until another Pod has the name.
async fn replaced(t: &Test, pod: &Value) -> Result<()> {
    let (name, uid) = (pod.text("/metadata/name"), pod.text("/metadata/uid"));
    poll(&format!("another {name}"), LONG, async || {
        let now = t.get("Pod", name).await?;
        ensure!(now.text("/metadata/uid") != uid && condition(&now, "Ready") == "True", "{}", now["metadata"]);
        Ok(())
    })
    .await
}

/// A container that is ready while it has a file.
fn fragile() -> Value {
    let probe = json!({ "periodSeconds": 1, "failureThreshold": 1, "exec": { "command": ["cat", "/tmp/ready"] } });
    shell("main", "touch /tmp/ready").with("/readinessProbe", probe)
}

async fn broken(t: &Test, pod: &str) -> Result<()> {
    t.exec(pod, "main", "rm -f /tmp/ready").await?;
    t.wait_for("Pod", pod, "to be broken", PATIENCE, |pod| condition(pod, "Ready") == "False").await.map(drop)
}

#[tokio::test]
async fn ordered_scaling_stops_while_pods_are_not_ready_and_goes_on_when_they_are() -> Result<()> {
    in_namespace("sts-halt", async |t| {
        let ordered = stateful_set("web", 1, vec![fragile()]).with("/spec/podManagementPolicy", "OrderedReady");
        started(t, ordered).await?;
        broken(t, "web-0").await?;
        patch(t, "web", json!({ "replicas": 3 })).await?;
        let waits = |set: &Value| waits_for(set).contains("web-0") && set.int("/status/observedGeneration") == 2;
        t.wait_for(STATEFUL_SET, "web", "to wait for web-0", PATIENCE, waits).await?;
        assert_eq!(names(&pods(t, "web").await?), ["web-0"]);
        t.exec("web-0", "main", "touch /tmp/ready").await?;
        settled(t, "web").await?;
        let all = pods(t, "web").await?;
        assert_eq!(names(&all), ["web-0", "web-1", "web-2"]);

        for pod in ["web-0", "web-1", "web-2"] {
            broken(t, pod).await?;
        }
        // the manager has seen it
        let none_ready = |set: &Value| set.int("/status/readyReplicas") == 0;
        t.wait_for(STATEFUL_SET, "web", "to have no Pod that is ready", PATIENCE, none_ready).await?;
        patch(t, "web", json!({ "replicas": 0 })).await?;
        let stopped = |set: &Value| waits_for(set).starts_with("Pod web-2 is surplus");
        t.wait_for(STATEFUL_SET, "web", "to stop", PATIENCE, stopped).await?;
        assert_eq!(uids(&pods(t, "web").await?), uids(&all));
        assert_eq!(t.get(STATEFUL_SET, "web").await?.int("/status/replicas"), 3);
        // web-2 goes as soon as those below it are ready, so it is the first here
        for pod in ["web-2", "web-0", "web-1"] {
            t.exec(pod, "main", "touch /tmp/ready").await?;
        }
        for pod in ["web-2", "web-1", "web-0"] {
            t.gone("Pod", pod).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_scale_up_with_a_limit_stops_at_broken_pods_and_a_corrected_template_reaches_them() -> Result<()> {
    in_namespace("sts-limit", async |t| {
        let absent = app("main").with("/image", "registry.example/team/there-is-none:1");
        let set = stateful_set("web", 5, vec![absent]).with("/spec/scaleStrategy", json!({ "maxUnavailable": 2 }));
        t.create(set).await?;
        let limited = |set: &Value| set.int("/status/replicas") == 2 && waits_for(set).contains("Pod web-0");
        t.wait_for(STATEFUL_SET, "web", "to have as many broken Pods as it may", PATIENCE, limited).await?;
        t.wait_events("StatefulSet", "web", |e| e.iter().any(|e| e.starts_with("ScaleUpLimited"))).await?;
        assert_eq!(names(&pods(t, "web").await?), ["web-0", "web-1"]);
        patch(t, "web", json!({ "template": { "spec": { "containers": [app("main")] } } })).await?;
        settled(t, "web").await?;
        assert_eq!(names(&pods(t, "web").await?), ["web-0", "web-1", "web-2", "web-3", "web-4"]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn held_updates_wait_and_a_marked_pod_is_replaced_whatever_holds_them() -> Result<()> {
    in_namespace("sts-held", async |t| {
        let first = started(t, stateful_set("web", 3, vec![pulled()])).await?;
        let paused = json!({ "rollingUpdate": { "paused": true } });
        patch(t, "web", json!({ "template": template(&second()), "updateStrategy": paused })).await?;
        held(t, "web", "Paused").await?;
        assert_eq!(uids(&pods(t, "web").await?), uids(&first));
        // the one that was asked for, and scaling goes on
        mark(t, "web-1").await?;
        replaced(t, &first[1]).await?;
        patch(t, "web", json!({ "replicas": 4 })).await?;
        t.ready("web-3").await?;
        held(t, "web", "Paused").await?;
        assert_eq!(updated(t, "web").await?, ["web-1", "web-3"]);
        let set = t.get(STATEFUL_SET, "web").await?;
        assert_eq!((set.int("/status/updatedReplicas"), set.int("/status/currentReplicas")), (2, 2));
        ensure!(set.text("/status/currentRevision") != set.text("/status/updateRevision"), "{}", set["status"]);

        // a Pod that is lost below the partition comes back as it was
        let partition = json!({ "rollingUpdate": { "paused": false, "partition": 3 } });
        patch(t, "web", json!({ "updateStrategy": partition })).await?;
        held(t, "web", "Partition").await?;
        let lost = t.get("Pod", "web-0").await?;
        t.remove("Pod", "web-0").await?;
        replaced(t, &lost).await?;
        ensure!(!updated(t, "web").await?.contains(&"web-0".to_owned()), "it is on the revision of before");

        patch(t, "web", json!({ "updateStrategy": { "type": "OnDelete", "rollingUpdate": null } })).await?;
        held(t, "web", "OnDelete").await?;
        let deleted = t.get("Pod", "web-2").await?;
        t.remove("Pod", "web-2").await?;
        replaced(t, &deleted).await?;
        let marked = t.get("Pod", "web-0").await?;
        mark(t, "web-0").await?;
        replaced(t, &marked).await?;
        let all = |set: &Value| is_ready(set) && set.int("/status/updatedReplicas") == 4;
        let set = t.wait_for(STATEFUL_SET, "web", "to be updated", LONG, all).await?;
        assert_eq!(updated(t, "web").await?, ["web-0", "web-1", "web-2", "web-3"]);
        ensure!(set.text("/status/currentRevision") != set.text("/status/updateRevision"), "OnDelete never moves it");
        Ok(())
    })
    .await
}

/// The names of the Pods in the order in which they were updated in place, by the times that their notes have.
async fn in_order(t: &Test, name: &str) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for pod in pods(t, name).await? {
        let notes = pod.text("/metadata/annotations/apps.kruise.io~1inplace-update-state");
        let notes: Value = serde_json::from_str(notes).with_context(|| format!("{}", pod["metadata"]))?;
        all.push((notes.text("/updateTimestamp").to_owned(), pod.text("/metadata/name").to_owned()));
    }
    all.sort();
    Ok(all.into_iter().map(|(_, name)| name).collect())
}

async fn labelled(t: &Test, pod: &str, label: &str) -> Result<()> {
    t.kubectl(&["label", "pod", pod, label]).await.map(drop)
}

/// Updated one by one, each available for two seconds, so that the times of the updates differ.
fn one_by_one(name: &str) -> Value {
    in_place(name, 3, vec![pulled()]).with(&format!("{ROLLING}/minReadySeconds"), 2)
}

async fn roll_out(t: &Test, name: &str) -> Result<()> {
    patch(t, name, json!({ "template": template(&second()) })).await?;
    let done = |set: &Value| is_ready(set) && set.int("/status/updatedReplicas") == 3;
    t.wait_for(STATEFUL_SET, name, "to be rolled out", LONG, done).await.map(drop)
}

#[tokio::test]
async fn pods_are_updated_by_weight_and_the_leader_last() -> Result<()> {
    in_namespace("sts-order", async |t| {
        let weights = json!({ "priorityStrategy": { "weightPriority": [
            { "weight": 100, "matchSelector": { "matchLabels": { "first": "yes" } } },
            { "weight": 50, "matchSelector": { "matchLabels": { "next": "yes" } } }] } });
        started(t, one_by_one("heavy").with(&format!("{ROLLING}/unorderedUpdate"), weights)).await?;
        labelled(t, "heavy-1", "first=yes").await?;
        labelled(t, "heavy-0", "next=yes").await?;
        roll_out(t, "heavy").await?;
        assert_eq!(in_order(t, "heavy").await?, ["heavy-1", "heavy-0", "heavy-2"]);

        let ordered = one_by_one("db")
            .with("/spec/podManagementPolicy", "OrderedReady")
            .with("/metadata/annotations", json!({ "kruise.rs/update-order": "role=leader" }));
        started(t, ordered).await?;
        labelled(t, "db-1", "role=leader").await?;
        roll_out(t, "db").await?;
        assert_eq!(in_order(t, "db").await?, ["db-2", "db-0", "db-1"]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn single_ordinals_have_their_own_image_and_no_revision_knows_of_it() -> Result<()> {
    in_namespace("sts-overrides", async |t| {
        let first = started(t, in_place("db", 3, vec![pulled()])).await?;
        let overrides =
            |value: Value| json!({ "metadata": { "annotations": { "kruise.rs/ordinal-overrides": value } } });
        let own = json!([{ "ordinals": "1-2", "containers": { "main": { "image": second() } } }]).to_string();
        let before = t.get(STATEFUL_SET, "db").await?;
        t.patch(STATEFUL_SET, "db", overrides(own.into())).await?;
        poll("the Pods to have their images", LONG, async || {
            let now = updated(t, "db").await?;
            ensure!(now == ["db-1", "db-2"], "{now:?}");
            Ok(())
        })
        .await?;
        let done = |set: &Value| is_ready(set) && set.int("/status/updatedReplicas") == 3;
        let set = t.wait_for(STATEFUL_SET, "db", "to be settled", LONG, done).await?;
        assert_eq!(uids(&pods(t, "db").await?), uids(&first), "in place");
        assert_eq!(set.text("/status/updateRevision"), before.text("/status/updateRevision"));
        assert_eq!(t.list("ControllerRevision", "app=db").await?.len(), 1);
        // one that is made anew has it too
        let lost = t.get("Pod", "db-2").await?;
        t.remove("Pod", "db-2").await?;
        replaced(t, &lost).await?;
        assert_eq!(updated(t, "db").await?, ["db-1", "db-2"]);
        let wrong = json!([{ "ordinals": 0, "containers": { "other": { "image": "i" } } }]).to_string();
        let refused = t.patch(STATEFUL_SET, "db", overrides(wrong.into())).await.err().context("it was stored")?;
        ensure!(format!("{refused:#}").contains("kruise.rs/ordinal-overrides"), "{refused:#}");
        t.patch(STATEFUL_SET, "db", overrides(Value::Null)).await?;
        let none = |pods: &[Value]| pods.len() == 3 && pods.iter().all(|pod| image(pod, "main") == remote("pause"));
        until_pods(t, "db", "the image of the template everywhere", none).await.map(drop)
    })
    .await
}

#[tokio::test]
async fn claims_go_with_their_pod_or_their_set_as_the_policy_says() -> Result<()> {
    in_namespace("sts-retention", async |t| {
        for claim in ["data-db-0", "data-db-1", "data-db-2"] {
            provide_volume(t, claim).await?;
        }
        let set = with_claim(stateful_set("db", 3, vec![app("main")])).with(POLICY, json!({ "whenScaled": "Delete" }));
        let made = started(t, set).await?;
        let set = t.get(STATEFUL_SET, "db").await?;
        assert_eq!(set.pointer(POLICY), Some(&json!({ "whenDeleted": "Retain", "whenScaled": "Delete" })));
        let first = t.get(CLAIM, "data-db-2").await?;
        assert_eq!(first.array("/metadata/ownerReferences").len(), 0, "none while its Pod is wanted");
        // a Pod that is replaced keeps its claim
        t.remove("Pod", "db-2").await?;
        replaced(t, &made[2]).await?;
        assert_eq!(t.get(CLAIM, "data-db-2").await?.text("/metadata/uid"), first.text("/metadata/uid"));
        // an ordinal that is not wanted any more, the highest one or not, takes its claim along
        patch(t, "db", json!({ "replicas": 2, "reserveOrdinals": [1] })).await?;
        t.gone("Pod", "db-1").await?;
        t.gone(CLAIM, "data-db-1").await?;
        settled(t, "db").await?;
        assert_eq!(names(&pods(t, "db").await?), ["db-0", "db-2"]);
        assert_eq!(t.get(CLAIM, "data-db-2").await?.text("/metadata/uid"), first.text("/metadata/uid"));

        let with_set = json!({ "whenDeleted": "Delete", "whenScaled": "Retain" });
        patch(t, "db", json!({ "persistentVolumeClaimRetentionPolicy": with_set })).await?;
        let uid = set.text("/metadata/uid");
        let is_of_set = |claim: &Value| claim.array("/metadata/ownerReferences").iter().any(|o| o.text("/uid") == uid);
        for claim in ["data-db-0", "data-db-2"] {
            t.wait_for(CLAIM, claim, "to go with its set", PATIENCE, is_of_set).await?;
        }
        patch(t, "db", json!({ "replicas": 1 })).await?;
        t.gone("Pod", "db-2").await?;
        settled(t, "db").await?;
        ensure!(t.find(CLAIM, "data-db-2").await?.is_some_and(|claim| !claim.has("/metadata/deletionTimestamp")));
        t.remove(STATEFUL_SET, "db").await?;
        for claim in ["data-db-0", "data-db-2"] {
            t.gone(CLAIM, claim).await?;
        }
        t.kubectl(&["delete", "pv", "-l", &format!("of={}", t.namespace), "--wait=false"]).await.map(drop)
    })
    .await
}

#[tokio::test]
async fn labels_of_a_pods_identity_are_put_right() -> Result<()> {
    const NAME: &str = "statefulset.kubernetes.io/pod-name";
    const INDEX: &str = "apps.kubernetes.io/pod-index";
    in_namespace("sts-identity", async |t| {
        let before = started(t, stateful_set("web", 2, vec![app("main")])).await?;
        t.kubectl(&["label", "pod", "web-1", &format!("{NAME}-"), &format!("{INDEX}=7"), "--overwrite"]).await?;
        let is_right = |pod: &Value| {
            let label = |key: &str| pod.text(&format!("/metadata/labels/{}", key.replace('/', "~1"))).to_owned();
            (label(NAME), label(INDEX)) == ("web-1".to_owned(), "1".to_owned())
        };
        t.wait_for("Pod", "web-1", "to have its labels again", PATIENCE, is_right).await?;
        t.wait_events("StatefulSet", "web", |e| e.iter().any(|e| e.starts_with("SuccessfulUpdate: update Pod web-1")))
            .await?;
        assert_eq!(uids(&pods(t, "web").await?), uids(&before));
        Ok(())
    })
    .await
}

/// A deletion that was announced is taken back when the Pod is wanted again.
#[tokio::test]
async fn a_scale_down_that_is_cancelled_brings_its_pod_back() -> Result<()> {
    in_namespace("sts-cancel", async |t| {
        let hook = json!({ "labelsHandler": { "example.com/block": "yes" } });
        let set = stateful_set("web", 2, vec![app("main")])
            .with("/spec/template/metadata/labels/example.com~1block", "yes")
            .with("/spec/lifecycle", json!({ "preDelete": hook }));
        let before = started(t, set).await?;
        patch(t, "web", json!({ "replicas": 1 })).await?;
        t.wait_for("Pod", "web-1", "to be asked", PATIENCE, |pod| pod.text(STATE) == "PreparingDelete").await?;
        let names_it = |set: &Value| waits_for(set).contains("web-1");
        t.wait_for(STATEFUL_SET, "web", "to name the Pod that is held", PATIENCE, names_it).await?;
        patch(t, "web", json!({ "replicas": 2 })).await?;
        t.wait_for("Pod", "web-1", "to be back", PATIENCE, |pod| pod.text(STATE) == "Normal").await?;
        settled(t, "web").await?;
        assert_eq!(uids(&pods(t, "web").await?), uids(&before));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_budget_is_asked_before_a_pod_is_replaced_and_named_while_it_refuses() -> Result<()> {
    const BUDGET: &str = "PodUnavailableBudget";
    in_namespace("sts-budget", async |t| {
        let before = started(t, stateful_set("web", 2, vec![pulled()])).await?;
        let target = json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet", "name": "web" });
        t.create(json!({ "kind": BUDGET, "metadata": { "name": "web" }, "spec": { "targetRef": target, "maxUnavailable": 0 } }))
            .await?;
        let counted = |budget: &Value| {
            budget.int("/status/observedGeneration") == 1 && budget.int("/status/totalReplicas") == 2
        };
        t.wait_for(BUDGET, "web", "to be counted", PATIENCE, counted).await?;
        patch(t, "web", json!({ "template": template(&second()) })).await?;
        let refused = |set: &Value| waits_for(set).contains("web-1 stays in service for now");
        t.wait_for(STATEFUL_SET, "web", "to wait for the budget", PATIENCE, refused).await?;
        assert_eq!(uids(&pods(t, "web").await?), uids(&before), "nobody was replaced");
        t.patch(BUDGET, "web", json!({ "spec": { "maxUnavailable": 1 } })).await?;
        let done = |set: &Value| is_ready(set) && set.int("/status/updatedReplicas") == 2;
        t.wait_for(STATEFUL_SET, "web", "to be updated", LONG, done).await.map(drop)
    })
    .await
}

#[tokio::test]
async fn the_plugin_and_a_workload_restart_know_stateful_sets_of_kruise() -> Result<()> {
    const RESTART: &str = "WorkloadRestart";
    in_namespace("sts-plugin", async |t| {
        let first = started(t, in_place("db", 2, vec![pulled()])).await?;
        let revision = t.get(STATEFUL_SET, "db").await?.text("/status/updateRevision").to_owned();
        let change = format!("main={}", second());
        let set = t.plugin_exits(0, &["set", "image", "asts/db", &change]).await?;
        ensure!(set.stdout.ends_with("/db image updated\n"), "{}", set.stdout);
        let status = ["rollout", "status", "statefulsets.apps.kruise.io/db", "--timeout=60s"];
        let rolled = t.plugin_exits(0, &status).await?;
        ensure!(rolled.stdout.contains("successfully rolled out"), "{}", rolled.stdout);
        assert_eq!(updated(t, "db").await?, ["db-0", "db-1"]);
        assert_eq!(uids(&pods(t, "db").await?), uids(&first), "in place");
        let history = t.plugin_exits(0, &["rollout", "history", "asts/db"]).await?.stdout;
        ensure!(history.contains(&second()) && history.contains(&remote("pause")), "{history}");
        t.plugin_exits(0, &["rollout", "undo", "asts/db"]).await?;
        t.plugin_exits(0, &status).await?;
        assert_eq!(t.get(STATEFUL_SET, "db").await?.text("/status/updateRevision"), revision, "of the same name");
        for (command, paused) in [("pause", true), ("resume", false)] {
            t.plugin_exits(0, &["rollout", command, "asts/db"]).await?;
            let set = t.get(STATEFUL_SET, "db").await?;
            let is_paused = set.pointer(&format!("{ROLLING}/paused")) == Some(&json!(true));
            assert_eq!(is_paused, paused, "{command}");
        }

        settled(t, "db").await?;
        let before = pods(t, "db").await?;
        let restarts = |pods: &[Value]| pods.iter().map(|pod| Container::all(pod)["main"].restarts).collect::<Vec<_>>();
        let restart = restart_of("roll", "StatefulSet", "db", json!({ "maxUnavailable": 1 }))
            .with("/spec/targetRef/apiVersion", "apps.kruise.io/v1beta1");
        t.create(restart).await?;
        let ended = |restart: &Value| condition(restart, "Complete") == "True";
        t.wait_for(RESTART, "roll", "to be complete", LONG, ended).await?;
        let after = pods(t, "db").await?;
        assert_eq!(uids(&after), uids(&before), "containers, not Pods");
        ensure!(restarts(&before).iter().zip(restarts(&after)).all(|(old, new)| new == old + 1), "{after:?}");
        t.plugin_exits(0, &["restart", "asts/db", "--wait", "--timeout=120s"]).await?;
        let again = pods(t, "db").await?;
        ensure!(restarts(&after).iter().zip(restarts(&again)).all(|(old, new)| new == old + 1), "{again:?}");
        Ok(())
    })
    .await
}
