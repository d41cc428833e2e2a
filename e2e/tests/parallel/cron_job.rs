//! AdvancedCronJobs on the real cluster: jobs by a schedule and by hand, what is refused, and what is kept.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::kit::{Build, Look, PATIENCE, Test, condition, in_namespace};
use serde_json::{Value, json};

use crate::others::shown;

pub(crate) const CRON: &str = "AdvancedCronJob";
/// A schedule of whole minutes, a Pod, and the machine's other work.
const LONG: Duration = Duration::from_secs(180);

pub(crate) fn cron(name: &str, schedule: &str, template: Value) -> Value {
    json!({ "kind": CRON, "apiVersion": "apps.kruise.io/v1beta1", "metadata": { "name": name },
        "spec": { "schedule": schedule, "template": template } })
}

/// A Job whose Pod is never scheduled: it stays active.
fn job() -> Value {
    json!({ "jobTemplate": { "metadata": { "labels": { "e2e": "cron" } }, "spec": { "template": { "spec": {
        "restartPolicy": "Never", "nodeSelector": { "e2e/nowhere": "yes" },
        "containers": [{ "name": "main", "image": "registry.example/none:1" }] } } } } })
}

/// A list of which no node pulls anything: it ends at once.
pub(crate) fn images() -> Value {
    json!({ "imageListPullJobTemplate": { "metadata": { "annotations": { "e2e": "cron" } }, "spec": {
        "images": ["registry.example/none:1"], "selector": { "matchLabels": { "e2e/nowhere": "yes" } },
        "completionPolicy": { "activeDeadlineSeconds": 600 } } } })
}

async fn jobs(t: &Test) -> Result<Vec<Value>> {
    t.list("Job", "e2e=cron").await
}

#[tokio::test]
async fn a_job_is_made_at_each_time_and_waits_for_the_one_before() -> Result<()> {
    in_namespace("cron-job", async |t| {
        let object = cron("tick", "@every 5s", job()).with("/spec/concurrencyPolicy", "Forbid");
        let made = t.create(object.with("/apiVersion", "apps.kruise.io/v1alpha1")).await?;
        ensure!(made.int("/spec/successfulJobsHistoryLimit") == 3, "{made:#}");
        let policy = made.text("/spec/template/jobTemplate/spec/template/spec/containers/0/imagePullPolicy");
        ensure!(policy == "Always", "{made:#}");
        // A status at once: Argo CD's health check fails without.
        let first = t.wait_for(CRON, "tick", "to have a status", PATIENCE, |o| o.text("/status/type") == "Job").await?;
        ensure!(condition(&first, "Ready") == "True", "{first:#}");
        let active =
            t.wait_for(CRON, "tick", "to have an active job", LONG, |o| o.array("/status/active").len() == 1).await?;
        shown(t, (CRON, "tick"), ["Healthy", "Progressing"]).await?;
        t.wait_events(CRON, "tick", |events| events.iter().any(|event| event.starts_with("JobAlreadyActive"))).await?;
        let all = jobs(t).await?;
        ensure!(all.len() == 1, "{} jobs", all.len());
        let (name, slot) = (all[0].text("/metadata/name"), active.text("/status/lastScheduleTime"));
        assert_eq!(all[0].text("/metadata/annotations/apps.kruise.io~1scheduled-at"), slot);
        assert_eq!(active.text("/status/active/0/name"), name);
        assert_eq!(all[0].text("/metadata/ownerReferences/0/apiVersion"), "apps.kruise.io/v1beta1");
        let columns = t.kubectl(&["get", "acj", "tick"]).await?;
        ensure!(columns.contains("LASTSCHEDULETIME"), "{columns}");
        // It is made up for when the one before is gone.
        t.remove("Job", name).await?;
        t.wait_for(CRON, "tick", "to have another job", LONG, |o| {
            o.array("/status/active").first().is_some_and(|active| active.text("/name") != name)
        })
        .await?;
        let before = jobs(t).await?.first().context("a job")?.text("/metadata/name").to_owned();
        t.patch(CRON, "tick", json!({ "spec": { "concurrencyPolicy": "Replace" } })).await?;
        t.gone("Job", &before).await?;
        t.patch(CRON, "tick", json!({ "spec": { "paused": true } })).await?;
        t.wait_for(CRON, "tick", "to be paused", PATIENCE, |o| {
            o.array("/status/conditions").iter().any(|c| c.text("/reason") == "Paused")
        })
        .await?;
        by_hand(t, active.text("/metadata/uid")).await
    })
    .await
}

/// Somebody has a job made of the AdvancedCronJob with this UID, although it is paused.
async fn by_hand(t: &Test, uid: &str) -> Result<()> {
    let is_manual = |job: &Value| job.text("/metadata/annotations/cronjob.kubernetes.io~1instantiate") == "manual";
    let tried = t.plugin_exits(0, &["cronjob", "trigger", "tick", "--dry-run"]).await?.stdout;
    ensure!(tried.starts_with("job.batch/tick-") && tried.ends_with(" created (server dry run)\n"), "{tried}");
    ensure!(!jobs(t).await?.iter().any(is_manual), "a dry run has stored a job");
    let said = t.plugin_exits(0, &["cronjob", "trigger", "tick"]).await?.stdout;
    let made = jobs(t).await?.into_iter().find(is_manual).context("a job that was made by hand")?;
    let name = made.text("/metadata/name");
    assert_eq!(said, format!("job.batch/{name} created\n"));
    assert_eq!(made.text("/metadata/ownerReferences/0/uid"), uid);
    ensure!(!made.has("/metadata/annotations/apps.kruise.io~1scheduled-at"), "{made:#}");
    t.wait_for(CRON, "tick", "to name the job that was made by hand", PATIENCE, |o| {
        o.array("/status/active").iter().any(|active| active.text("/name") == name)
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_broadcast_job_is_made_at_each_time() -> Result<()> {
    in_namespace("cron-broadcast", async |t| {
        let template = json!({ "broadcastJobTemplate": { "metadata": { "labels": { "e2e": "cron" } }, "spec": {
            "template": job()["jobTemplate"]["spec"]["template"], "completionPolicy": { "type": "Never" } } } });
        t.create(cron("sweep", "@every 5s", template).with("/spec/concurrencyPolicy", "Forbid")).await?;
        let active =
            t.wait_for(CRON, "sweep", "to have an active job", LONG, |o| o.array("/status/active").len() == 1).await?;
        let made = t.list("BroadcastJob", "e2e=cron").await?;
        assert_eq!(made.len(), 1, "{made:#?}");
        assert_eq!(active.text("/status/active/0/name"), made[0].text("/metadata/name"));
        assert_eq!(active.text("/status/type"), "BroadcastJob");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn lists_of_images_end_and_the_history_is_limited() -> Result<()> {
    in_namespace("cron-images", async |t| {
        let object = cron("pull", "@every 4s", images()).with("/spec/successfulJobsHistoryLimit", 1);
        let made = t.create(object).await?;
        ensure!(made.text("/spec/concurrencyPolicy") == "Replace", "{made:#}");
        let ran = t
            .wait_for(CRON, "pull", "to have run", LONG, |o| {
                o.has("/status/lastScheduleTime") && o.int("/status/observedGeneration") == 1
            })
            .await?;
        let slot = ran.text("/status/lastScheduleTime").to_owned();
        t.wait_for(CRON, "pull", "to run again", LONG, |o| {
            o.has("/status/lastScheduleTime") && o.text("/status/lastScheduleTime") != slot
        })
        .await?;
        let lists = t.list("ImageListPullJob", "").await?;
        ensure!(lists.iter().all(|list| list.text("/metadata/annotations/e2e") == "cron"), "{lists:#?}");
        ensure!(lists.len() <= 3, "{} lists", lists.len());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_cannot_run_is_refused_with_the_field_the_value_and_what_is_allowed() -> Result<()> {
    in_namespace("cron-refused", async |t| {
        let always = "/spec/template/jobTemplate/spec/template/spec/restartPolicy";
        for (object, says) in [
            (cron("bad", "61 * * * *", job()), "spec.schedule"),
            (cron("bad", "TZ=", job()), "spec.schedule"),
            (cron("bad", "@daily", job()).with("/spec/timeZone", "Mars/Olympus"), "spec.timeZone"),
            (cron("bad", "@daily", json!({})), "spec.template"),
            (cron(&"n".repeat(53), "@daily", job()), "metadata.name"),
            (
                cron("bad", "@daily", job()).with(always, "Always"),
                "spec.template.jobTemplate.spec.template.spec.restartPolicy",
            ),
            (
                cron("bad", "@daily", job()).with("/spec/template/jobTemplate/spec/completions", -1),
                "spec.template.jobTemplate.spec.completions",
            ),
            (cron("bad", "@daily", images()).with("/spec/concurrencyPolicy", "Allow"), "spec.concurrencyPolicy"),
        ] {
            let (code, message) = t.refused(object).await?;
            ensure!(code == 422 && message.contains(says), "{says}: {code} {message}");
        }
        t.create(cron("kept", "@daily", job())).await?;
        let explained = t.kubectl(&["explain", "advancedcronjob.spec.timeZone"]).await?;
        ensure!(explained.contains("IANA database"), "{explained}");
        Ok(())
    })
    .await
}
