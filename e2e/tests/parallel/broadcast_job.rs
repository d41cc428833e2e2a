//! BroadcastJob on the real node: run to its end, stopped over its restart limit, paused by a failure, and deleted after its
//! time to live. A label that only one test's Pods ask for keeps them apart.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::images::BUSYBOX;
use e2e::kit::{Build, Look, PATIENCE, Test, condition, in_namespace, plugin_command, poll};
use serde_json::{Value, json};

use crate::others::shown;

pub(crate) const JOB: &str = "BroadcastJob";
const LONG: Duration = Duration::from_secs(120);

/// A job whose Pods run a shell script.
pub(crate) fn job(name: &str, script: &str) -> Value {
    json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": JOB, "metadata": { "name": name }, "spec": { "template": {
        "metadata": { "labels": { "app": name } },
        "spec": { "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false, "restartPolicy": "Never",
            "containers": [{ "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script] }] } } } })
}

fn has_phase(phase: &str) -> impl Fn(&Value) -> bool + '_ {
    move |job| job.text("/status/phase") == phase
}

async fn pods(t: &Test, name: &str) -> Result<Vec<Value>> {
    t.list("Pod", &format!("broadcastjob-name={name}")).await
}

#[tokio::test]
async fn a_broadcast_job_runs_on_every_node_to_its_end_and_is_deleted_after_its_time_to_live() -> Result<()> {
    in_namespace("bcj-ends", async |t| {
        let nodes = t.list("Node", "kubernetes.io/hostname").await?.len();
        let made = job("sweep", "echo swept").with("/spec/completionPolicy", json!({ "ttlSecondsAfterFinished": 15 }));
        let made = t.create(made).await?;
        assert_eq!(made.int("/spec/parallelism"), 2_147_483_647, "defaults are written");
        assert_eq!(made.text("/spec/failurePolicy/type"), "FailFast");
        let done = t.wait_for(JOB, "sweep", "to complete", LONG, has_phase("completed")).await?;
        let number = i64::try_from(nodes)?;
        assert_eq!((done.int("/status/desired"), done.int("/status/succeeded")), (number, number));
        assert_eq!(
            (done.int("/status/active"), condition(&done, "Complete"), condition(&done, "Ready")),
            (0, "True", "True")
        );
        let columns = t.kubectl(&["get", "bcj", "sweep"]).await?;
        ensure!(columns.contains("SUCCEEDED"), "{columns}");
        let pods = pods(t, "sweep").await?;
        assert_eq!(pods.len(), nodes);
        assert_eq!(pods[0].text("/metadata/labels/broadcastjob-controller-uid"), made.text("/metadata/uid"));
        let older = t.kubectl(&["get", "broadcastjobs.v1alpha1.apps.kruise.io", "sweep", "-o", "name"]).await?;
        ensure!(older.contains("sweep"), "{older}");
        t.gone(JOB, "sweep").await?;
        t.gone("Pod", pods[0].text("/metadata/name")).await
    })
    .await
}

#[tokio::test]
async fn a_failed_pod_fails_the_job_or_pauses_it_until_somebody_goes_on() -> Result<()> {
    in_namespace("bcj-fails", async |t| {
        t.create(job("fast", "exit 3")).await?;
        let failed = t.wait_for(JOB, "fast", "to fail", LONG, has_phase("failed")).await?;
        assert_eq!((failed.int("/status/failed"), condition(&failed, "Stalled")), (1, "True"));
        ensure!(condition(&failed, "Failed") == "True", "{failed}");
        shown(t, (JOB, "fast"), ["Degraded", "Degraded"]).await?;

        t.create(job("held", "exit 3").with("/spec/failurePolicy", json!({ "type": "Pause" }))).await?;
        let held = t.wait_for(JOB, "held", "to be paused", LONG, has_phase("paused")).await?;
        assert_eq!(held.pointer("/spec/paused"), Some(&json!(true)), "it is written where users read and clear it");
        shown(t, (JOB, "held"), ["Degraded", "Suspended"]).await?;
        t.patch(JOB, "held", json!({ "spec": { "paused": false } })).await?;
        let done = t.wait_for(JOB, "held", "to complete", LONG, has_phase("completed")).await?;
        assert_eq!((done.int("/status/failed"), done.int("/status/succeeded")), (1, 0));
        shown(t, (JOB, "held"), ["Healthy", "Progressing"]).await
    })
    .await
}

#[tokio::test]
async fn a_pod_over_its_restart_limit_is_stopped_and_keeps_its_logs() -> Result<()> {
    in_namespace("bcj-restarts", async |t| {
        let crashing = job("crash", "echo tried; exit 1")
            .with("/spec/template/spec/restartPolicy", "OnFailure")
            .with("/spec/failurePolicy", json!({ "type": "Continue", "restartLimit": 1 }));
        t.create(crashing).await?;
        let done = t.wait_for(JOB, "crash", "to complete", LONG, has_phase("completed")).await?;
        assert_eq!(done.int("/status/failed"), 1);
        poll("kubelet to end the Pod", PATIENCE, async || {
            let pods = pods(t, "crash").await?;
            let pod = pods.first().context("its Pod")?;
            assert_eq!(pod.text("/metadata/labels/kruise.rs~1stopped-for"), "RestartLimitExceeded");
            ensure!(pod.text("/status/phase") == "Failed", "{}", pod.text("/status/phase"));
            Ok(())
        })
        .await?;
        let log = t.kubectl(&["logs", "-l", "broadcastjob-name=crash", "--tail=-1"]).await?;
        ensure!(log.contains("tried"), "{log}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn admission_names_the_field_of_a_broadcast_job_that_cannot_work() -> Result<()> {
    in_namespace("bcj-admission", async |t| {
        for (field, value) in [
            ("/spec/template/spec/restartPolicy", json!("Always")),
            ("/spec/parallelism", json!(-1)),
            ("/spec/failurePolicy", json!({ "type": "Retry" })),
            ("/spec/completionPolicy", json!({ "type": "Never", "activeDeadlineSeconds": 5 })),
        ] {
            let (code, message) = t.refused(job("wrong", "true").with(field, value)).await?;
            let named = field.trim_start_matches('/').replace('/', ".");
            ensure!(code == 422 && message.contains(&named), "{code} {message}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_command_is_broadcast_and_its_exit_codes_are_told() -> Result<()> {
    in_namespace("bcj-plugin", async |t| {
        // Nodes that tests add run nothing.
        let only = ["--node-selector", "kubernetes.io/hostname"];
        let node = t.list("Node", only[1]).await?;
        let host = node.first().context("a node")?.text("/metadata/labels/kubernetes.io~1hostname").to_owned();
        let selector = format!("{}={host}", only[1]);
        let run = async |code: i32, name: &str, script: &str| {
            let all = [
                "broadcast",
                BUSYBOX,
                "--name",
                name,
                only[0],
                &selector,
                "--timeout",
                "90s",
                "--",
                "sh",
                "-c",
                script,
            ];
            t.run(plugin_command(&t.paths, &[&["-n", &t.namespace], &all[..]].concat())?).await.and_then(|answer| {
                ensure!(answer.code == Some(code), "{name}: {:?} {} {}", answer.code, answer.stdout, answer.stderr);
                Ok(answer.stdout)
            })
        };
        let good = run(0, "good", "true").await?;
        ensure!(good.contains("exit code 0: 1 node\n"), "{good}");
        ensure!(good.contains("broadcastjob.apps.kruise.io/good succeeded in "), "{good}");
        let bad = run(1, "bad", "exit 7").await?;
        ensure!(bad.contains("exit code 7: 1 node: "), "{bad}");
        ensure!(bad.contains("1 of 1 nodes failed"), "{bad}");
        let kept = t.get(JOB, "bad").await?;
        assert_eq!(kept.int("/spec/completionPolicy/ttlSecondsAfterFinished"), 3600);
        let shown = t.plugin_exits(0, &["broadcast", BUSYBOX, "--dry-run=client", "-o", "yaml"]).await?.stdout;
        ensure!(shown.contains("kind: BroadcastJob"), "{shown}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_deadline_ends_a_broadcast_job_and_deletes_what_runs() -> Result<()> {
    in_namespace("bcj-deadline", async |t| {
        let late = job("late", "trap 'exit 0' TERM; sleep 1000 & wait")
            .with("/spec/completionPolicy", json!({ "activeDeadlineSeconds": 4 }));
        t.create(late).await?;
        let failed = t.wait_for(JOB, "late", "to fail", LONG, has_phase("failed")).await?;
        let said = failed.array("/status/conditions").iter().any(|c| c.text("/reason") == "DeadlineExceeded");
        ensure!(said, "{}", failed["status"]);
        poll("its Pods to be gone", PATIENCE, async || {
            let left = pods(t, "late").await?.len();
            ensure!(left == 0, "{left} Pods");
            Ok(())
        })
        .await
    })
    .await
}
