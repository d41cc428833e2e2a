//! Other programs on objects of kruise-rs: autoscalers, a roll-out that is driven from outside by its partition, and the health
//! checks of Argo CD.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::clients::{apply, removed, samples};
use e2e::kit::{Build, Look, Test, app, condition, in_namespace, pod, poll, restoring, shell};
use e2e::others::{both_healths, healths};
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::broadcast_job::{JOB, job};
use crate::clone_set::{CLONE_SET, clone_set, pods, uids};
use crate::cron_job::{CRON, cron, images};
use crate::daemon_set::{DAEMON_SET, daemon_set, labelled, settled};
use crate::stateful_set::{ROLLING, STATEFUL_SET, started, stateful_set};

const HPA: &str = "HorizontalPodAutoscaler";
const LONG: Duration = Duration::from_secs(120);

fn changed(value: &str) -> Value {
    json!({ "metadata": { "annotations": { "e2e/changed": value } } })
}

fn kruise(kind: &str, name: &str, spec: Value) -> Value {
    json!({ "kind": kind, "metadata": { "name": name }, "spec": spec })
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

/// The same by conditions alone, for kinds whose partition is in `rollingUpdate`. A step is a partition, and how many Pods are
/// changed when it is done; `untouched` is how many Pods are there from the beginning to the end.
async fn driven_by_conditions(
    t: &Test,
    (kind, name): (&str, &str),
    steps: &[(Value, usize)],
    untouched: usize,
) -> Result<()> {
    let done = |o: &Value| {
        condition(o, "Ready") == "True" && o.int("/status/observedGeneration") == o.int("/metadata/generation")
    };
    let has_changed = async |wanted: usize| -> Result<()> {
        let set = t.wait_for(kind, name, "to do its step", LONG, done).await?;
        let all = pods(t, name).await?;
        let changed = all.iter().filter(|pod| pod.text("/metadata/annotations/e2e~1changed") == "once").count();
        ensure!(changed == wanted, "{changed} Pods are changed, not {wanted}: {:#}", set["status"]);
        Ok(())
    };
    let strategy = |partition: &Value| json!({ "rollingUpdate": { "partition": partition } });
    let before = pods(t, name).await?;
    t.patch(kind, name, json!({ "spec": { "updateStrategy": strategy(&json!("100%")) } })).await?;
    t.patch(kind, name, json!({ "spec": { "template": changed("once") } })).await?;
    has_changed(0).await?;
    assert_eq!(uids(&pods(t, name).await?), uids(&before), "no Pod was replaced");
    for (partition, wanted) in steps {
        t.patch(kind, name, json!({ "spec": { "updateStrategy": strategy(partition) } })).await?;
        has_changed(*wanted).await?;
    }
    let back = json!({ "metadata": { "annotations": { "e2e/changed": null } } });
    let spec = json!({ "template": back, "updateStrategy": strategy(&json!(0)) });
    t.patch(kind, name, json!({ "spec": spec })).await?;
    has_changed(0).await?;
    assert_eq!(uids(&pods(t, name).await?).intersection(&uids(&before)).count(), untouched);
    Ok(())
}

#[tokio::test]
async fn a_roll_out_of_a_stateful_set_is_driven_from_outside() -> Result<()> {
    in_namespace("driven-asts", async |t| {
        started(t, stateful_set("db", 4, vec![app("main")])).await?;
        let steps = [(json!("75%"), 1), (json!(2), 2)];
        driven_by_conditions(t, (STATEFUL_SET, "db"), &steps, 2).await
    })
    .await
}

#[tokio::test]
async fn a_roll_out_of_a_daemon_set_is_driven_from_outside() -> Result<()> {
    in_namespace("driven-ads", async |t| {
        labelled(t, async |_| {
            t.create(daemon_set(t, "agent", vec![app("main")])).await?;
            settled(t, "agent", 1).await?;
            driven_by_conditions(t, (DAEMON_SET, "agent"), &[(json!(0), 1)], 0).await
        })
        .await
    })
    .await
}

/// What the health check may show of an object, by the condition that is True. None: no controller has looked at the spec yet.
fn may_be_shown(object: &Value) -> Option<[&'static str; 2]> {
    let is_new = object.int("/status/observedGeneration") != object.int("/metadata/generation");
    let shown = [("Ready", "Healthy"), ("Reconciling", "Progressing"), ("Stalled", "Degraded")];
    let (_, health) = shown.into_iter().find(|(kind, _)| condition(object, kind) == "True").filter(|_| !is_new)?;
    Some([health, "Suspended"])
}

#[tokio::test]
async fn the_health_check_for_argo_cd_reads_what_controllers_write() -> Result<()> {
    in_namespace("argocd", async |t| restoring(looked_at_by_argo_cd(t), removed(t)).await).await
}

async fn looked_at_by_argo_cd(t: &Test) -> Result<()> {
    // For the requests to restart its container.
    t.start(pod("clients", vec![app("main")])).await?;
    let mut samples = samples(t)?;
    let has_check = |kind: &str| !["NodeImage", "NodePodProbe"].contains(&kind);
    samples.retain(|sample| sample.gate.is_none() && has_check(sample.object.text("/kind")));
    let objects: Vec<Value> = samples.into_iter().map(|sample| sample.object).collect();
    apply(t, &[], &objects).await?;
    poll("each kind to have its conditions", LONG, async || {
        let mut found = Vec::new();
        for object in &objects {
            found.push(t.stored(object).await?);
        }
        for (object, health) in found.iter().zip(healths(&t.paths, &found)?) {
            let kind = object.text("/kind");
            let wanted = may_be_shown(object).with_context(|| format!("{kind}: {:#}", object["status"]))?;
            ensure!(wanted.contains(&&*health), "{kind} is {health}, not one of {wanted:?}: {:#}", object["status"]);
        }
        Ok(())
    })
    .await
}

/// Whether an object is shown as the first by the script of docs/integrations/argocd, and as the second by Argo CD's own check.
async fn is_shown(t: &Test, (kind, name): (&str, &str), wanted: [&str; 2]) -> Result<()> {
    let object = t.get(kind, name).await?;
    let shown = both_healths(&t.paths, &object)?;
    ensure!(shown == wanted, "{kind} {name} is {shown:?}: {:#}", object["status"]);
    Ok(())
}

/// Waits for that.
pub(crate) async fn shown(t: &Test, of: (&str, &str), wanted: [&str; 2]) -> Result<()> {
    let what = format!("{of:?} to be shown as {wanted:?}");
    poll(&what, LONG, async || is_shown(t, of, wanted).await).await
}

/// A container that is ready when it has a file.
fn ready_when_told() -> Value {
    let probe = json!({ "periodSeconds": 1, "timeoutSeconds": 10, "exec": { "command": ["cat", "/tmp/go"] } });
    shell("main", "").with("/readinessProbe", probe)
}

/// Gives the file to Pods until their workload is shown as Healthy by both checks: a roll-out may replace one just now.
async fn healthy_when_told(t: &Test, of: (&str, &str)) -> Result<()> {
    poll(&format!("{of:?} to be Healthy"), LONG, async || {
        for pod in pods(t, of.1).await? {
            let _ = t.exec(pod.text("/metadata/name"), "main", "touch /tmp/go").await;
        }
        is_shown(t, of, ["Healthy", "Healthy"]).await
    })
    .await
}

/// A set of one Pod, from its creation to the end of a roll-out. `strategy` is where its kind has pause and partition, and `held`
/// what Argo CD's own check makes of a partition that holds the Pod.
async fn shown_on_its_way(t: &Test, set: Value, (kind, strategy, held): (&str, &str, &str)) -> Result<()> {
    let name = set.text("/metadata/name").to_owned();
    let of = (kind, name.as_str());
    t.create(set).await?;
    shown(t, of, ["Progressing", "Degraded"]).await?;
    healthy_when_told(t, of).await?;
    let paused = json!({ "spec": { "template": changed("once") } }).with(&format!("{strategy}/paused"), true);
    t.patch(kind, &name, paused).await?;
    shown(t, of, ["Suspended", "Suspended"]).await?;
    let partition = |number: i64| json!({}).with(strategy, json!({ "paused": false, "partition": number }));
    t.patch(kind, &name, partition(1)).await?;
    shown(t, of, ["Suspended", held]).await?;
    t.patch(kind, &name, partition(0)).await?;
    shown(t, of, ["Progressing", "Degraded"]).await?;
    healthy_when_told(t, of).await
}

async fn job_shown_on_its_way(t: &Test, job: Value) -> Result<()> {
    let name = job.text("/metadata/name").to_owned();
    let of = (JOB, name.as_str());
    t.create(job).await?;
    shown(t, of, ["Progressing", "Progressing"]).await?;
    healthy_when_told(t, of).await
}

async fn schedule_shown(t: &Test) -> Result<()> {
    t.create(cron("later", "0 0 1 1 *", images())).await?;
    shown(t, (CRON, "later"), ["Healthy", "Degraded"]).await?;
    t.patch(CRON, "later", json!({ "spec": { "paused": true } })).await?;
    shown(t, (CRON, "later"), ["Suspended", "Suspended"]).await
}

/// Tests of BroadcastJobs and AdvancedCronJobs look at further states of theirs.
#[tokio::test]
async fn argo_cds_own_checks_show_each_state_as_the_guide_says() -> Result<()> {
    in_namespace("argocd-own", async |t| {
        labelled(t, async |_| {
            let agent = daemon_set(t, "agent", vec![ready_when_told()]);
            let here = agent["spec"]["template"]["spec"]["nodeSelector"].clone();
            let web = clone_set("web", 1, vec![ready_when_told()]).with("/spec/updateStrategy/maxUnavailable", 1);
            let db = stateful_set("db", 1, vec![ready_when_told()]);
            let sweep = job("sweep", "until [ -e /tmp/go ]; do sleep 0.2; done");
            tokio::try_join!(
                shown_on_its_way(t, web, (CLONE_SET, "/spec/updateStrategy", "Suspended")),
                shown_on_its_way(t, db, (STATEFUL_SET, ROLLING, "Progressing")),
                shown_on_its_way(t, agent, (DAEMON_SET, ROLLING, "Progressing")),
                job_shown_on_its_way(t, sweep.with("/spec/template/spec/nodeSelector", here)),
                schedule_shown(t),
            )?;
            Ok(())
        })
        .await
    })
    .await
}
