//! Sidecars that end with the main containers of their Pods, on a real node: behind the gate SidecarTerminator, which is all that
//! it needs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::kit::{Build, Look, Test, in_namespace, shell};
use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::LONG;

const SWITCH: &str = "KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT";
const IGNORE: &str = "KRUISE_TERMINATE_SIDECAR_IGNORE_EXIT_CODE";

/// A container that notes its preStop hook and its signal in /kept, says at its end what it noted, and exits with a code.
fn proxy(code: i32, variables: &[&str]) -> Value {
    let script = format!("trap 'echo term >>/kept/log; cat /kept/log >/dev/termination-log; exit {code}' TERM");
    let env: Vec<Value> = variables.iter().map(|name| json!({ "name": name, "value": "true" })).collect();
    shell("proxy", &script).with("/env", json!(env)).with(
        "/lifecycle",
        json!({ "preStop": { "exec": {
        "command": ["sh", "-c", "echo hook >>/kept/log"] } } }),
    )
}

/// A Job whose main container waits a moment and exits with a code, beside a sidecar.
fn job(name: &str, policy: &str, main: &str, proxy: Value) -> Value {
    let mount = json!([{ "name": "kept", "mountPath": "/kept" }]);
    let main = shell("main", "").with("/command", json!(["sh", "-c", main])).with("/volumeMounts", mount.clone());
    json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": name }, "spec": {
        "backoffLimit": 0,
        "template": { "metadata": { "labels": { "app": name } }, "spec": {
            "restartPolicy": policy, "terminationGracePeriodSeconds": 5, "automountServiceAccountToken": false,
            "containers": [main, proxy.with("/volumeMounts", mount)],
            "volumes": [{ "name": "kept", "emptyDir": {} }] } } } })
}

async fn only_pod(t: &Test, name: &str) -> Result<Value> {
    let mut pods = t.list("Pod", &format!("app={name}")).await?;
    ensure!(pods.len() == 1, "{} Pods of {name}", pods.len());
    pods.pop().context("a Pod")
}

fn restarts(pod: &Value, container: &str) -> i64 {
    let statuses = pod.array("/status/containerStatuses");
    statuses.iter().find(|status| status.text("/name") == container).map_or(-1, |status| status.int("/restartCount"))
}

/// All at once: for the end of each kubelet may let one wait for 90 s.
pub(crate) async fn jobs_end_with_their_sidecars() -> Result<()> {
    let ends = in_namespace("terminator", async |t| {
        let both = [SWITCH, IGNORE];
        let jobs = [
            // The exit code of the sidecar counts, and is good.
            ("counts", "Never", "sleep 2", 0, &both[..1], "Complete"),
            // It is ignored, whatever it is.
            ("ignored", "Never", "sleep 2", 3, &both[..], "Complete"),
            // kubelet would restart it, and may do so once before the phase is there.
            ("on-failure", "OnFailure", "sleep 2", 3, &both[..1], "Complete"),
            // The phase comes first: kubelet restarts nothing.
            ("on-failure-ignored", "OnFailure", "sleep 2", 3, &both[..], "Complete"),
            // The main container has failed: so has the Pod.
            ("failed", "Never", "sleep 2; exit 1", 0, &both[..], "Failed"),
        ];
        let jobs = jobs.map(|(name, policy, main, code, variables, end)| {
            let may_restart = policy == "OnFailure" && !variables.contains(&IGNORE);
            ends_as(t, name, may_restart, job(name, policy, main, proxy(code, variables)), end)
        });
        try_join_all(jobs).await.map(drop)
    });
    let others = async {
        a_sidecar_without_a_hook_stops_at_once().await?;
        a_sidecar_that_crashes_first_restarts().await
    };
    let (ends, others) = tokio::join!(ends, others);
    ends.and(others)
}

/// Makes a Job that ends by this condition, and looks at what its Pod was and its sidecar did.
async fn ends_as(t: &Test, name: &str, may_restart: bool, job: Value, end: &str) -> Result<()> {
    let condition = |job: &Value, type_: &str| {
        job.array("/status/conditions").iter().any(|c| c.text("/type") == type_ && c.text("/status") == "True")
    };
    t.create(job).await?;
    let done = t.wait_for("Job", name, "to end", LONG, |o| condition(o, "Complete") || condition(o, "Failed")).await?;
    ensure!(condition(&done, end), "{name}: {done:#}");
    let pod = only_pod(t, name).await?;
    let want = if end == "Complete" { "Succeeded" } else { "Failed" };
    // A status that kubelet was writing meanwhile may still put the phase back, and then it is written once more.
    let stopped = |o: &Value| {
        o.text("/status/phase") == want
            && o.array("/status/containerStatuses").iter().all(|status| status.has("/state/terminated"))
    };
    let pod_name = pod.text("/metadata/name").to_owned();
    // kubelet may see a phase that somebody else wrote at its next look alone, which comes after up to 90 s.
    let pod = t.wait_for("Pod", &pod_name, &format!("to have stopped as {want}"), LONG * 2, stopped).await?;
    ensure!(restarts(&pod, "proxy") <= i64::from(may_restart), "{name}: {pod:#}");
    let statuses = pod.array("/status/containerStatuses");
    let said = statuses.iter().find(|s| s.text("/name") == "proxy").map(|s| s.text("/state/terminated/message"));
    // One hook and one stop, whoever carried them out.
    ensure!(restarts(&pod, "proxy") > 0 || said.map(str::trim) == Some("hook\nterm"), "{name}: {said:?} {pod:#}");
    Ok(())
}

/// kubelet may notice only after 90 s that a Pod was ended by somebody else. Without a hook nobody waits for that.
async fn a_sidecar_without_a_hook_stops_at_once() -> Result<()> {
    in_namespace("terminator-plain", async |t| {
        let both = [SWITCH, IGNORE].map(|name| json!({ "name": name, "value": "true" }));
        let proxy = shell("proxy", "trap 'exit 0' TERM; while :; do sleep 1; done").with("/env", json!(both));
        t.create(job("plain", "OnFailure", "sleep 2", proxy)).await?;
        let complete = |o: &Value| o.array("/status/conditions").iter().any(|c| c.text("/type") == "Complete");
        t.wait_for("Job", "plain", "to be complete", LONG, complete).await?;
        let name = only_pod(t, "plain").await?.text("/metadata/name").to_owned();
        let stopped = |o: &Value| o.array("/status/containerStatuses").iter().all(|s| s.has("/state/terminated"));
        let pod = t.wait_for("Pod", &name, "to have stopped", Duration::from_secs(30), stopped).await?;
        ensure!(restarts(&pod, "proxy") == 0 && pod.text("/status/phase") == "Succeeded", "{pod:#}");
        Ok(())
    })
    .await
}

/// A sidecar that crashes before the main container ends restarts as the policy says, and the Job completes.
async fn a_sidecar_that_crashes_first_restarts() -> Result<()> {
    in_namespace("terminator-crash", async |t| {
        let crash = "[ -e /kept/once ] || { touch /kept/once; exit 1; }";
        let proxy = shell("proxy", crash).with("/env", json!([{ "name": SWITCH, "value": "true" }]));
        // A restart counts against it.
        t.create(job("crash", "OnFailure", "sleep 10", proxy).with("/spec/backoffLimit", 6)).await?;
        let complete = |o: &Value| o.array("/status/conditions").iter().any(|c| c.text("/type") == "Complete");
        t.wait_for("Job", "crash", "to be complete", LONG, complete).await?;
        let pod = only_pod(t, "crash").await?;
        ensure!(restarts(&pod, "proxy") >= 1, "{pod:#}");
        ensure!(pod.text("/status/phase") == "Succeeded", "{pod:#}");
        Ok(())
    })
    .await
}
