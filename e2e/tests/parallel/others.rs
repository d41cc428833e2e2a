//! Other programs on objects of kruise-rs: Argo CD's health checks on states that controllers have written, autoscalers, and a
//! roll-out that is driven from outside by its partition.
//!
//! `KRUISE_RECORD_HEALTH=1` writes the states to `e2e/testdata/health`.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::images::BUSYBOX;
use e2e::kit::{Build, Look, Test, app, condition, in_namespace, pod, restart_of, shell, workload};
use e2e::others;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::clone_set::{CLONE_SET, clone_set, pods, uids};
use crate::stateful_set::{STATEFUL_SET, stateful_set};

const HPA: &str = "HorizontalPodAutoscaler";
const LONG: Duration = Duration::from_secs(120);

/// Waits until the condition that is True has this reason for the newest spec, and looks at what both checks say then.
/// `own` is for kinds for which Argo CD has one.
async fn shows(t: &Test, kind: &str, name: &str, reason: &str, health: &str, own: &str) -> Result<()> {
    let fits = |object: &Value| {
        others::reason(object) == reason
            && object.int("/status/observedGeneration") == object.int("/metadata/generation")
    };
    let object = t.wait_for(kind, name, &format!("to be {reason}"), LONG, fits).await?;
    let (ours, theirs) = others::shown(&t.paths, &object)?;
    ensure!(others::word(&ours) == health && ours.message.starts_with(reason), "{ours:?}: {object:#}");
    ensure!(theirs.as_ref().map_or("", others::word) == own, "Argo CD's own: {theirs:?}: {object:#}");
    others::record(&t.paths, &object)
}

fn changed(value: &str) -> Value {
    json!({ "metadata": { "annotations": { "e2e/changed": value } } })
}

/// A label that no node has.
const NOWHERE: &str = "/spec/template/spec/nodeSelector/e2e~1nowhere";

#[tokio::test]
async fn argo_cd_shows_how_far_workloads_are() -> Result<()> {
    in_namespace("argo-sets", async |t| {
        t.create(clone_set("away", 1, vec![app("main")]).with(NOWHERE, "yes")).await?;
        t.create(clone_set("web", 2, vec![app("main")])).await?;
        t.create(stateful_set("db", 2, vec![app("main")])).await?;
        let daemon = workload("DaemonSet", "agent", 0, vec![app("main")]).with("/apiVersion", "apps.kruise.io/v1beta1");
        t.create(daemon.with("/spec/template/spec/nodeSelector/kubernetes.io~1os", "linux")).await?;
        // Argo CD's own check takes what has only begun for broken.
        shows(t, CLONE_SET, "away", "Progressing", "Progressing", "Degraded").await?;
        shows(t, CLONE_SET, "web", "Available", "Healthy", "Healthy").await?;
        shows(t, STATEFUL_SET, "db", "Available", "Healthy", "Healthy").await?;
        shows(t, "AdvancedDaemonSet", "agent", "Available", "Healthy", "Healthy").await?;

        let spec = json!({ "updateStrategy": { "partition": 2 }, "template": changed("once") });
        t.patch(CLONE_SET, "web", json!({ "spec": spec })).await?;
        shows(t, CLONE_SET, "web", "Partition", "Suspended", "Suspended").await?;
        t.patch(CLONE_SET, "web", json!({ "spec": { "updateStrategy": { "partition": 0, "paused": true } } })).await?;
        shows(t, CLONE_SET, "web", "Paused", "Suspended", "Suspended").await?;
        let spec = json!({ "updateStrategy": { "paused": false, "type": "InPlaceOnly" }, "template": {
            "spec": { "hostNetwork": true } } });
        t.patch(CLONE_SET, "web", json!({ "spec": spec })).await?;
        shows(t, CLONE_SET, "web", "SpecCannotBeApplied", "Degraded", "Degraded").await?;

        let spec = json!({ "updateStrategy": { "rollingUpdate": { "partition": 2 } }, "template": changed("once") });
        t.patch(STATEFUL_SET, "db", json!({ "spec": spec })).await?;
        shows(t, STATEFUL_SET, "db", "Partition", "Suspended", "Progressing").await?;
        let spec = json!({ "updateStrategy": { "type": "OnDelete", "rollingUpdate": null } });
        t.patch(STATEFUL_SET, "db", json!({ "spec": spec })).await?;
        shows(t, STATEFUL_SET, "db", "OnDelete", "Suspended", "error").await?;

        let spec = json!({ "updateStrategy": { "rollingUpdate": { "paused": true } }, "template": changed("once") });
        t.patch("AdvancedDaemonSet", "agent", json!({ "spec": spec })).await?;
        shows(t, "AdvancedDaemonSet", "agent", "Paused", "Suspended", "Suspended").await
    })
    .await
}

fn kruise(kind: &str, name: &str, spec: Value) -> Value {
    json!({ "kind": kind, "metadata": { "name": name }, "spec": spec })
}

#[tokio::test]
async fn argo_cd_shows_how_far_jobs_are() -> Result<()> {
    in_namespace("argo-jobs", async |t| {
        let run = |name: &str, script: &str| {
            let mut container = shell("main", "");
            container["command"] = json!(["sh", "-c", script]);
            kruise(
                "BroadcastJob",
                name,
                json!({ "template": { "spec": { "restartPolicy": "Never", "containers": [container],
                "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false } } }),
            )
        };
        t.create(run("goes", "exit 0")).await?;
        t.create(run("fails", "exit 1")).await?;
        t.create(run("lasts", "sleep 1000")).await?;
        t.create(run("held", "exit 0").with("/spec/paused", true)).await?;
        let nowhere = json!({ "matchLabels": { "e2e/nowhere": "yes" } });
        let images = json!({ "images": ["registry.example/none:1"], "selector": nowhere,
            "completionPolicy": { "activeDeadlineSeconds": 600 } });
        t.create(kruise("ImageListPullJob", "none", images)).await?;
        let image = json!({ "image": "registry.example/none:1", "selector": nowhere,
            "completionPolicy": { "activeDeadlineSeconds": 600 } });
        t.create(kruise("ImagePullJob", "none", image)).await?;
        let template = json!({ "jobTemplate": { "spec": { "template": { "spec": { "restartPolicy": "Never",
            "containers": [app("main")] } } } } });
        let cron = |name: &str, paused: bool| {
            kruise("AdvancedCronJob", name, json!({ "schedule": "0 0 1 1 *", "paused": paused, "template": template }))
        };
        t.create(cron("yearly", false)).await?;
        t.create(cron("held", true)).await?;
        let container = json!({ "name": "look", "image": BUSYBOX, "command": ["true"] });
        let look = |name: &str, paused: bool| {
            kruise(
                "EphemeralJob",
                name,
                json!({ "selector": { "matchLabels": { "app": "none" } }, "paused": paused,
                "template": { "ephemeralContainers": [container] } }),
            )
        };
        t.create(look("none", false)).await?;
        t.create(look("held", true)).await?;

        shows(t, "BroadcastJob", "goes", "Completed", "Healthy", "Healthy").await?;
        shows(t, "BroadcastJob", "fails", "FailedPod", "Degraded", "Degraded").await?;
        shows(t, "BroadcastJob", "lasts", "Running", "Progressing", "Progressing").await?;
        shows(t, "BroadcastJob", "held", "Paused", "Suspended", "Suspended").await?;
        shows(t, "ImageListPullJob", "none", "Completed", "Healthy", "").await?;
        shows(t, "ImagePullJob", "none", "Completed", "Healthy", "").await?;
        // Argo CD's own check takes one that was never due for broken.
        shows(t, "AdvancedCronJob", "yearly", "Scheduled", "Healthy", "Degraded").await?;
        shows(t, "AdvancedCronJob", "held", "Paused", "Suspended", "Suspended").await?;
        shows(t, "EphemeralJob", "none", "MatchedEmpty", "Progressing", "").await?;
        shows(t, "EphemeralJob", "held", "Paused", "Suspended", "").await
    })
    .await
}

#[tokio::test]
async fn argo_cd_shows_how_far_other_kinds_are() -> Result<()> {
    in_namespace("argo-others", async |t| {
        let web = |kind: &str| json!({ "apiVersion": "apps.kruise.io/v1alpha1", "kind": kind, "name": "web" });
        t.create(clone_set("web", 1, vec![app("main")])).await?;
        let spread = json!({ "targetRef": web(CLONE_SET), "subsets": [{ "name": "a" }] });
        t.create(kruise("WorkloadSpread", "web", spread)).await?;
        let missing = json!({ "targetRef": web(CLONE_SET).with("/name", "none"), "subsets": [{ "name": "a" }] });
        t.create(kruise("WorkloadSpread", "none", missing)).await?;
        t.create(workload("StatefulSet", "db", 1, vec![app("main")])).await?;
        let budget = json!({ "targetRef": web(CLONE_SET), "maxUnavailable": 1 });
        t.create(kruise("PodUnavailableBudget", "web", budget)).await?;
        for target in ["db", "none"] {
            let state = json!({ "targetRef": { "apiVersion": "apps/v1", "kind": "StatefulSet", "name": target },
                "preferredPersistentTopology": [{ "weight": 10, "preference": { "nodeTopologyKeys": ["kubernetes.io/os"] } }] });
            t.create(kruise("PersistentPodState", target, state)).await?;
        }
        let probe = json!({ "name": "idle", "containerName": "main", "podConditionType": "e2e/idle",
            "probe": { "exec": { "command": ["true"] } } });
        let marker = json!({ "selector": { "matchLabels": { "app": "none" } }, "probes": [probe] });
        t.create(kruise("PodProbeMarker", "none", marker)).await?;
        let labels = json!({ "app": "ud" });
        let template = json!({ "metadata": { "labels": labels }, "spec": pod("ud", vec![app("main")])["spec"] });
        let template = json!({ "cloneSetTemplate": { "metadata": { "labels": labels }, "spec": { "template": template } } });
        let united = json!({ "replicas": 1, "selector": { "matchLabels": labels }, "template": template,
            "topology": { "subsets": [{ "name": "a" }] } });
        t.create(kruise("UnitedDeployment", "ud", united)).await?;
        let (plain, held) = (crate::sidecar_set::set(t, "argo", &[app("side")]), format!("{}-argo", t.namespace));
        t.create(plain.with("/spec/selector/matchLabels/app", "none")).await?;
        shows(t, "SidecarSet", &held, "Available", "Healthy", "").await?;
        t.remove("SidecarSet", &held).await?;

        t.start(pod("one", vec![app("main")])).await?;
        t.restart("goes", "one", &["main"]).await?;
        shows(t, "ContainerRecreateRequest", "goes", "Recreated", "Healthy", "").await?;
        t.create(restart_of("all", "Pod", "one", json!({}))).await?;
        shows(t, "WorkloadRestart", "all", "Completed", "Healthy", "").await?;
        t.create(restart_of("held", "Pod", "one", json!({ "paused": true }))).await?;
        shows(t, "WorkloadRestart", "held", "Paused", "Suspended", "").await?;

        shows(t, "WorkloadSpread", "web", "Spread", "Healthy", "").await?;
        shows(t, "WorkloadSpread", "none", "TargetMissing", "Progressing", "").await?;
        let second = json!({ "targetRef": web(CLONE_SET), "subsets": [{ "name": "a" }] });
        t.create(kruise("WorkloadSpread", "web-again", second)).await?;
        shows(t, "WorkloadSpread", "web-again", "TargetTaken", "Degraded", "").await?;
        shows(t, "PodUnavailableBudget", "web", "Resolved", "Healthy", "").await?;
        shows(t, "PersistentPodState", "db", "Recorded", "Healthy", "").await?;
        shows(t, "PersistentPodState", "none", "TargetMissing", "Progressing", "").await?;
        shows(t, "PodProbeMarker", "none", "Probing", "Healthy", "").await?;
        shows(t, "UnitedDeployment", "ud", "Available", "Healthy", "").await
    })
    .await
}

/// UnitedDeployment has a test of its own. Without a source of metrics an autoscaler still keeps its bounds, and looks at the
/// selector after that.
#[tokio::test]
async fn autoscalers_scale_each_kind_with_a_scale_and_find_its_pods() -> Result<()> {
    in_namespace("scales", async |t| {
        t.create(clone_set("web", 1, vec![app("main")])).await?;
        t.create(stateful_set("db", 1, vec![app("main")])).await?;
        for (kind, version, name) in [(CLONE_SET, "v1alpha1", "web"), (STATEFUL_SET, "v1beta1", "db")] {
            let api = t.api(kind);
            let has =
                |wanted: i64| move |o: &Value| o.int("/spec/replicas") == wanted && o.int("/status/replicas") == wanted;
            t.wait_for(kind, name, "to have its Pod", LONG, has(1)).await?;
            let mut read = api.get_scale(name).await?;
            let shown = serde_json::to_value(&read)?;
            ensure!(shown.text("/status/selector") == format!("app={name}"), "{shown:#}");
            ensure!((shown.int("/spec/replicas"), shown.int("/status/replicas")) == (1, 1), "{shown:#}");
            read.spec.get_or_insert_default().replicas = Some(2);
            api.replace_scale(name, &PostParams::default(), &read).await?;
            t.wait_for(kind, name, "to have what its scale wants", LONG, has(2)).await?;

            let target = json!({ "apiVersion": format!("apps.kruise.io/{version}"),
                "kind": kind.trim_start_matches("Advanced"), "name": name });
            let cpu = json!({ "type": "Resource", "resource": { "name": "cpu",
                "target": { "type": "Utilization", "averageUtilization": 50 } } });
            t.create(kruise(
                HPA,
                name,
                json!({ "scaleTargetRef": target, "minReplicas": 3, "maxReplicas": 5, "metrics": [cpu] }),
            ))
            .await?;
            t.wait_for(kind, name, "to have what the autoscaler wants", LONG, has(3)).await?;
            let looked = |o: &Value| {
                let active = o.array("/status/conditions").iter().find(|c| c.text("/type") == "ScalingActive");
                condition(o, "AbleToScale") == "True"
                    && active.is_some_and(|condition| condition.text("/reason") == "FailedGetResourceMetric")
            };
            t.wait_for(HPA, name, "to be able to scale, and to ask for the metrics of its Pods", LONG, looked).await?;
        }
        Ok(())
    })
    .await
}

/// What a roll-out's controller outside does: it holds everything, lets a share go, looks at the status, and goes back.
#[tokio::test]
async fn a_roll_out_is_driven_from_outside_by_its_partition() -> Result<()> {
    in_namespace("driven", async |t| {
        t.create(clone_set("web", 4, vec![app("main")])).await?;
        let at = |updated: i64| {
            move |o: &Value| {
                o.int("/status/observedGeneration") == o.int("/metadata/generation")
                    && o.int("/status/expectedUpdatedReplicas") == updated
                    && o.int("/status/updatedReadyReplicas") == updated
                    && o.int("/status/availableReplicas") == 4
            }
        };
        t.wait_for(CLONE_SET, "web", "to be there", LONG, at(4)).await?;
        let before = pods(t, "web").await?;
        let strategy = |partition: &str| json!({ "updateStrategy": { "paused": false, "partition": partition } });
        t.patch(CLONE_SET, "web", json!({ "spec": strategy("100%") })).await?;
        let new = json!({ "spec": { "template": changed("once") } });
        t.patch(CLONE_SET, "web", new).await?;
        let held = t.wait_for(CLONE_SET, "web", "to hold everything", LONG, at(0)).await?;
        ensure!(held.text("/status/currentRevision") != held.text("/status/updateRevision"), "{held:#}");
        assert_eq!(uids(&pods(t, "web").await?), uids(&before), "no Pod was replaced");
        for (partition, updated) in [("75%", 1), ("50%", 2)] {
            t.patch(CLONE_SET, "web", json!({ "spec": strategy(partition) })).await?;
            t.wait_for(CLONE_SET, "web", "to do its step", LONG, at(updated)).await?;
        }
        // Back: the template as it was is the current revision, and what was updated gets it again.
        let back = json!({ "metadata": { "annotations": { "e2e/changed": null } } });
        let spec = json!({ "template": back, "updateStrategy": { "partition": 0 } });
        t.patch(CLONE_SET, "web", json!({ "spec": spec })).await?;
        let done = t.wait_for(CLONE_SET, "web", "to be back", LONG, at(4)).await?;
        assert_eq!(done.text("/status/currentRevision"), done.text("/status/updateRevision"));
        let kept = pods(t, "web").await?;
        assert_eq!(uids(&kept).intersection(&uids(&before)).count(), 2, "those that were never updated stay");
        Ok(())
    })
    .await
}
