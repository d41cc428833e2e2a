//! What the daemon reports of containers, and restarts for a changed environment. The Pods have no controller: the
//! annotation of a SidecarSet makes the daemon report on them, and the tests play the manager.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::images::{BUSYBOX, PAUSE};
use e2e::kit::{Build, Look, PATIENCE, Test, app, crr, in_namespace, pod, shell};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

const CRR: &str = "ContainerRecreateRequest";
const READY: &str = "InPlaceUpdateReady";
const META: &str = "/metadata/annotations/apps.kruise.io~1runtime-containers-meta";
/// Hash of a container without environment from metadata.
const NONE: u64 = 86_995_377;

/// A container that reads the annotation `config`.
fn reads_config(container: Value) -> Value {
    let source = json!({ "fieldRef": { "fieldPath": "metadata.annotations['config']" } });
    container.with("/env", json!([{ "name": "CFG", "valueFrom": source }, { "name": "PLAIN", "value": "x" }]))
}

fn reported_pod(name: &str, containers: Vec<Value>) -> Value {
    pod(name, containers)
        .with("/metadata/annotations", json!({ "kruise.io/sidecarset-hash": "{}", "config": "{\"k\":\"v<1>\"}" }))
        .with("/spec/readinessGates", json!([{ "conditionType": READY }]))
}

/// What the daemon reported of a container.
fn entry(pod: &Value, container: &str) -> Value {
    let meta: Value = serde_json::from_str(pod.text(META)).unwrap_or_default();
    meta.array("/containers").iter().find(|c| c.text("/name") == container).cloned().unwrap_or_default()
}

fn env_hash(pod: &Value, container: &str) -> u64 {
    entry(pod, container).pointer("/hashes/extractedEnvFromMetadataHash").and_then(Value::as_u64).unwrap_or_default()
}

/// Whether every container that runs is reported.
fn all_reported(pod: &Value) -> bool {
    let statuses = pod.array("/status/containerStatuses");
    let is_reported = |status: &Value| {
        let id = status.text("/containerID");
        !id.is_empty() && entry(pod, status.text("/name")).text("/containerID") == id
    };
    !statuses.is_empty() && statuses.iter().all(is_reported)
}

async fn in_place_ready(t: &Test, pod: &str, status: &str) -> Result<()> {
    let condition =
        json!({ "type": READY, "status": status, "lastTransitionTime": jiff::Timestamp::now().to_string() });
    let patch = Patch::Strategic(json!({ "status": { "conditions": [condition] } }));
    t.api("Pod").patch_status(pod, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// A Pod whose gate is open, as the manager opens it, and whose containers are reported.
async fn start(t: &Test, pod: Value) -> Result<Value> {
    let name = pod.text("/metadata/name").to_owned();
    t.create(pod).await?;
    in_place_ready(t, &name, "True").await?;
    t.ready(&name).await?;
    t.wait_for("Pod", &name, "to be reported", PATIENCE, all_reported).await
}

/// Begins an update in place of the environment.
async fn update(t: &Test, pod: &str) -> Result<()> {
    in_place_ready(t, pod, "False").await?;
    t.patch("Pod", pod, json!({ "metadata": { "annotations": { "config": "{\"k\":\"v2\"}" } } })).await?;
    Ok(())
}

/// Waits until `main` runs with the new environment.
async fn updated(t: &Test, pod: &str) -> Result<Value> {
    let is_done = |p: &Value| env_hash(p, "main") == 457_809_478 && all_reported(p);
    let done = t.wait_for("Pod", pod, "to run with the new environment", PATIENCE, is_done).await?;
    in_place_ready(t, pod, "True").await?;
    Ok(done)
}

/// Stops that the daemon has told of, as a part of the message.
async fn killings(t: &Test, pod: &str, by: &str) -> Result<usize> {
    Ok(t.events("Pod", pod).await?.iter().filter(|e| e.starts_with("Killing") && e.contains(by)).count())
}

#[tokio::test]
async fn what_containers_run_is_reported_with_the_hashes_of_kubelet_and_of_the_environment() -> Result<()> {
    in_namespace("meta", async |t| {
        // The image of the first one has neither a shell nor any other program.
        let web = start(t, reported_pod("web", vec![reads_config(app("main")), shell("side", "")])).await?;
        let text = web.text(META);
        ensure!(text.starts_with("{\"containers\":[{\"name\":\"main\",\"containerID\":\"containerd://"), "{text}");
        for (name, image, environment) in [("main", PAUSE, 2_276_098_488), ("side", BUSYBOX, NONE)] {
            let entry = entry(&web, name);
            let plain = entry.pointer("/hashes/plainHash").and_then(Value::as_u64).context("a plain hash")?;
            assert_eq!(plain, deep_hash(&format!("{{\"image\":\"{image}\",\"name\":\"{name}\"}}")), "{entry}");
            assert_eq!(env_hash(&web, name), environment, "{entry}");
            assert_eq!(entry.int("/restartCount"), 0);
        }
        // Another instance is reported anew, the other entry stays.
        t.restart("once", "web", &["side"]).await?;
        t.succeeded("once").await?;
        let anew = |p: &Value| all_reported(p) && entry(p, "side").int("/restartCount") == 1;
        let after = t.wait_for("Pod", "web", "to be reported", PATIENCE, anew).await?;
        assert_eq!(entry(&after, "main"), entry(&web, "main"));
        assert_eq!(after.text("/metadata/uid"), web.text("/metadata/uid"));

        // A Pod that is nobody's business.
        let plain = t.start(pod("plain", vec![app("main")])).await?;
        ensure!(!plain.has(META), "it belongs to no Kruise workload");
        Ok(())
    })
    .await
}

/// FNV-1a over the way Go prints bytes, written out a second time: the product's own is what is tested.
fn deep_hash(json: &str) -> u64 {
    let bytes: Vec<String> = json.bytes().map(|b| b.to_string()).collect();
    let text = format!("([]uint8)[{}]", bytes.join(" "));
    u64::from(text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)))
}

#[tokio::test]
async fn a_changed_environment_restarts_the_container_that_reads_it_exactly_once() -> Result<()> {
    in_namespace("env-restart", async |t| {
        start(t, reported_pod("web", vec![reads_config(app("main")), app("side")])).await?;
        // Outside an update in place nothing happens, although the daemon sees it: it reports on the other container.
        t.patch("Pod", "web", json!({ "metadata": { "annotations": { "config": "{\"k\":\"v2\"}" } } })).await?;
        t.restart("side", "web", &["side"]).await?;
        t.succeeded("side").await?;
        t.wait_for("Pod", "web", "to be reported", PATIENCE, |p| {
            all_reported(p) && entry(p, "side").int("/restartCount") == 1
        })
        .await?;
        assert_eq!(t.containers("web").await?["main"].restarts, 0);
        assert_eq!(killings(t, "web", "meta restarter").await?, 0);

        in_place_ready(t, "web", "False").await?;
        let after = updated(t, "web").await?;
        let containers = t.containers("web").await?;
        assert_eq!((containers["main"].restarts, containers["side"].restarts), (1, 1));
        assert_eq!(env_hash(&after, "side"), NONE);
        t.ready("web").await?;
        let killing = "Killing: Stopping containerID containerd://main by container meta restarter";
        t.wait_events("Pod", "web", |e| e.iter().any(|e| e == killing)).await?;
        assert_eq!(killings(t, "web", "meta restarter").await?, 1);
        assert_eq!(t.containers("web").await?["main"].restarts, 1);
        Ok(())
    })
    .await
}

/// A Pod whose container ends when the test lets go of its hook.
fn held(name: &str) -> Value {
    let hook = "echo hook >> /kept/log; while [ ! -e /kept/go ]; do sleep 1; done";
    let main = reads_config(shell("main", "trap 'echo end >> /kept/log; exit 0' TERM"))
        .with("/volumeMounts", json!([{ "name": "kept", "mountPath": "/kept" }]))
        .with("/lifecycle/preStop/exec/command", json!(["sh", "-c", hook]));
    reported_pod(name, vec![main, app("side")])
        .with("/spec/terminationGracePeriodSeconds", 120)
        .with("/spec/volumes", json!([{ "name": "kept", "emptyDir": {} }]))
}

/// Waits until a request has taken up its container.
async fn begun(t: &Test, request: &str) -> Result<()> {
    let is_stopping = |o: &Value| o.has("/status/containerRecreateStates/0/killStartedAt");
    t.wait_for(CRR, request, "to stop the container", PATIENCE, is_stopping).await.map(drop)
}

/// One stop with its hook, whoever asked for it.
async fn stopped_once(t: &Test) -> Result<()> {
    let containers = t.containers("web").await?;
    assert_eq!((containers["main"].restarts, containers["side"].restarts), (1, 0));
    assert_eq!(t.exec("web", "main", "cat /kept/log").await?, "hook\nend");
    assert_eq!(t.exec("web", "main", "echo $CFG").await?, "{\"k\":\"v2\"}");
    t.wait_events("Pod", "web", |e| e.iter().any(|e| e.starts_with("Killing"))).await?;
    assert_eq!(killings(t, "web", "").await?, 1);
    Ok(())
}

/// Decision 7: a request is stopping the container when its environment changes.
#[tokio::test]
async fn an_environment_that_changes_during_a_restart_costs_no_second_one() -> Result<()> {
    in_namespace("crr-env", async |t| {
        start(t, held("web")).await?;
        t.create(crr("once", "web", &["main"])).await?;
        begun(t, "once").await?;
        update(t, "web").await?;
        // Time for the daemon to see it, of which nothing tells.
        tokio::time::sleep(Duration::from_secs(2)).await;
        t.exec("web", "main", "touch /kept/go").await?;
        t.succeeded("once").await?;
        updated(t, "web").await?;
        stopped_once(t).await
    })
    .await
}

/// Decision 7, the other way round: the container is being stopped for its environment when a request comes.
#[tokio::test]
async fn a_request_that_comes_during_the_restart_for_an_environment_stops_nothing() -> Result<()> {
    in_namespace("env-crr", async |t| {
        start(t, held("web")).await?;
        update(t, "web").await?;
        t.wait_events("Pod", "web", |e| e.iter().any(|e| e.contains("meta restarter"))).await?;
        t.create(crr("once", "web", &["main"])).await?;
        begun(t, "once").await?;
        t.exec("web", "main", "touch /kept/go").await?;
        t.succeeded("once").await?;
        updated(t, "web").await?;
        stopped_once(t).await
    })
    .await
}

/// Decision 7: kubelet replaces a container whose image was changed too, and nobody else does.
#[tokio::test]
async fn a_container_whose_image_changes_with_its_environment_is_left_to_kubelet() -> Result<()> {
    in_namespace("image-env", async |t| {
        let main = reads_config(app("main"));
        start(t, reported_pod("web", vec![main, app("side")])).await?;
        in_place_ready(t, "web", "False").await?;
        let patch = json!({ "metadata": { "annotations": { "config": "{\"k\":\"v2\"}" } },
            "spec": { "containers": [{ "name": "main", "image": e2e::images::remote("pause") }] } });
        t.api("Pod").patch("web", &PatchParams::default(), &Patch::Strategic(patch)).await?;
        updated(t, "web").await?;
        let containers = t.containers("web").await?;
        assert_eq!((containers["main"].restarts, containers["side"].restarts), (1, 0));
        assert_eq!(killings(t, "web", "meta restarter").await?, 0);
        Ok(())
    })
    .await
}
