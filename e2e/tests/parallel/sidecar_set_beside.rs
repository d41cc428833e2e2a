//! Updates of sidecars in place beside other changes of the same Pods: of the workload's own containers, and by
//! ContainerRecreateRequests, in both orders. Nothing is stopped twice. And native sidecars, which OpenKruise does not update.

use anyhow::{Result, ensure};
use e2e::images::{remote, remote_tag};
use e2e::kit::{Build, Container, Look, PATIENCE, RuntimeEvents, Test, condition, in_namespace, pod, restoring, shell};
use serde_json::{Value, json};

use crate::clone_set::{image, in_place, pulled, rolled_out, set_image, started};
use crate::sidecar_set::{known, removed, set};
use crate::stateful_set;

const SET: &str = "SidecarSet";
const CRR: &str = "ContainerRecreateRequest";

fn agent(tag: &str) -> Value {
    json!({ "name": "agent", "image": remote_tag("pause", tag) })
}

async fn updated(t: &Test, name: &str) -> Result<Value> {
    updated_in(t, name, 1).await
}

/// Waits until so many Pods have the sidecar as it is now.
async fn updated_in(t: &Test, name: &str, pods: i64) -> Result<Value> {
    t.wait_for(SET, name, "to be updated", PATIENCE * 2, |set| {
        set.int("/status/observedGeneration") == set.int("/metadata/generation")
            && set.int("/status/updatedReadyPods") == pods
    })
    .await
}

/// Waits until a Pod runs the second image in both containers, and looks whether each was stopped once.
async fn stopped_once(t: &Test, before: &Value, events: &RuntimeEvents) -> Result<()> {
    let (old, second) = (Container::all(before), remote_tag("pause", "v2"));
    let is_new = |pod: &Value| {
        let now = Container::all(pod);
        let runs = |name: &str| image(pod, name) == second && now.get(name).is_some_and(|new| new.id != old[name].id);
        runs("main") && runs("agent") && condition(pod, "Ready") == "True"
    };
    let after = t.wait_for("Pod", before.text("/metadata/name"), "to run both", PATIENCE, is_new).await?;
    assert_eq!(after.text("/metadata/uid"), before.text("/metadata/uid"));
    let new = Container::all(&after);
    for container in ["main", "agent"] {
        assert_eq!(new[container].restarts, 1, "{container}");
        ensure!(events.exits(&new[container].id).is_empty(), "{container}: the last instance runs");
    }
    Ok(())
}

async fn beside_a_clone_set(t: &Test, sidecar_first: bool) -> Result<()> {
    let name = known(t, set(t, "agent", &[agent("e2e")])).await?;
    let events = RuntimeEvents::listen()?;
    let before = started(t, in_place("web", 1, vec![pulled("main")])).await?.remove(0);
    let second = remote_tag("pause", "v2");
    let update = async || t.patch(SET, &name, json!({ "spec": { "containers": [agent("v2")] } })).await.map(drop);
    let roll_out = async || set_image(t, "web", "main", &second).await;
    if sidecar_first {
        update().await?;
        roll_out().await?;
    } else {
        roll_out().await?;
        update().await?;
    }
    rolled_out(t, "web").await?;
    updated(t, &name).await?;
    stopped_once(t, &before, &events).await
}

async fn beside_a_stateful_set(t: &Test, sidecar_first: bool) -> Result<()> {
    let name = known(t, set(t, "agent", &[agent("e2e")])).await?;
    let events = RuntimeEvents::listen()?;
    let before = stateful_set::started(t, stateful_set::in_place("web", 2, vec![stateful_set::pulled()])).await?;
    let template = json!({ "spec": { "containers": [{ "name": "main", "image": remote_tag("pause", "v2") }] } });
    let update = async || t.patch(SET, &name, json!({ "spec": { "containers": [agent("v2")] } })).await.map(drop);
    let roll_out = async || stateful_set::patch(t, "web", json!({ "template": template })).await;
    if sidecar_first {
        update().await?;
        roll_out().await?;
    } else {
        roll_out().await?;
        update().await?;
    }
    stateful_set::settled(t, "web").await?;
    updated_in(t, &name, 2).await?;
    for pod in &before {
        stopped_once(t, pod, &events).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_sidecar_is_updated_and_then_a_stateful_set() -> Result<()> {
    in_namespace("sidecar-then-sts", async |t| restoring(beside_a_stateful_set(t, true), removed(t, &["agent"])).await)
        .await
}

#[tokio::test]
async fn a_stateful_set_is_updated_and_then_the_sidecar() -> Result<()> {
    in_namespace("sts-then-sidecar", async |t| restoring(beside_a_stateful_set(t, false), removed(t, &["agent"])).await)
        .await
}

#[tokio::test]
async fn a_sidecar_is_updated_and_then_the_application() -> Result<()> {
    in_namespace("sidecar-then-app", async |t| restoring(beside_a_clone_set(t, true), removed(t, &["agent"])).await)
        .await
}

#[tokio::test]
async fn an_application_is_updated_and_then_the_sidecar() -> Result<()> {
    in_namespace("app-then-sidecar", async |t| restoring(beside_a_clone_set(t, false), removed(t, &["agent"])).await)
        .await
}

/// A sidecar that writes down each start and each stop signal, and ends after one when `/kept/go` is there.
fn reluctant(tag: &str) -> Value {
    let script = "echo start >> /kept/starts\n\
        trap 'echo TERM >> /kept/stops; asked=yes' TERM\n\
        while [ -z \"$asked\" ] || [ ! -e /kept/go ]; do sleep 0.1; done";
    json!({ "name": "agent", "image": remote_tag("busybox", tag), "command": ["sh", "-c", script],
        "volumeMounts": [{ "name": "kept", "mountPath": "/kept" }] })
}

/// Until the stop signal has reached the sidecar for the first time.
async fn until_asked(t: &Test) -> Result<()> {
    let script = "for i in $(seq 600); do [ -s /kept/stops ] && exit 0; sleep 0.1; done; exit 1";
    t.exec("web", "agent", script).await.map(drop)
}

async fn beside_a_request(t: &Test, update_first: bool) -> Result<()> {
    let mut kept = set(t, "agent", &[reluctant("e2e")]);
    kept["spec"]["volumes"] = json!([{ "name": "kept", "emptyDir": {} }]);
    let name = known(t, kept).await?;
    let web = pod("web", vec![shell("main", "")]).with("/spec/terminationGracePeriodSeconds", 120);
    let before = t.start(web).await?;
    let second = remote_tag("busybox", "v2");
    let update = json!({ "spec": { "containers": [reluctant("v2")] } });
    if update_first {
        t.patch(SET, &name, update).await?;
        until_asked(t).await?;
        t.restart("once", "web", &["agent"]).await?;
        let taken = |o: &Value| !o.text("/status/phase").is_empty() && o.text("/status/phase") != "Pending";
        t.wait_for(CRR, "once", "to be taken up", PATIENCE, taken).await?;
    } else {
        t.restart("once", "web", &["agent"]).await?;
        until_asked(t).await?;
        t.patch(SET, &name, update).await?;
        // Kubelet starts what it knows of: it has to have seen the change.
        let seen = |e: &[String]| e.iter().any(|e| e.starts_with("Killing: Container agent definition changed"));
        t.wait_events("Pod", "web", seen).await?;
    }
    t.exec("web", "agent", "touch /kept/go").await?;
    t.succeeded("once").await?;
    updated(t, &name).await?;
    let after = t.ready("web").await?;
    assert_eq!(after.text("/metadata/uid"), before.text("/metadata/uid"));
    assert_eq!(image(&after, "agent"), second);
    let (old, new) = (Container::all(&before), Container::all(&after));
    assert_eq!((new["agent"].restarts, new["main"].restarts), (1, 0));
    assert_eq!(new["main"].id, old["main"].id);
    let written = t.exec("web", "agent", "wc -l < /kept/starts; wc -l < /kept/stops").await?;
    let written: Vec<&str> = written.split_whitespace().collect();
    assert_eq!(written, ["2", "1"], "starts and stop signals that the sidecar has written down");
    Ok(())
}

#[tokio::test]
async fn a_request_while_a_sidecar_is_updated_stops_nothing_a_second_time() -> Result<()> {
    in_namespace("crr-after-sidecar", async |t| restoring(beside_a_request(t, true), removed(t, &["agent"])).await)
        .await
}

#[tokio::test]
async fn a_sidecar_that_is_updated_while_a_request_stops_it_comes_up_with_the_new_image() -> Result<()> {
    in_namespace("sidecar-after-crr", async |t| restoring(beside_a_request(t, false), removed(t, &["agent"])).await)
        .await
}

fn instance(pod: &Value, list: &str, name: &str) -> (String, i64) {
    let status = pod.array(list).iter().find(|status| status.text("/name") == name);
    status.map(|status| (status.text("/containerID").to_owned(), status.int("/restartCount"))).unwrap_or_default()
}

async fn native(t: &Test) -> Result<()> {
    const INIT: &str = "/status/initContainerStatuses";
    let mesh = |tag: &str| json!([{ "name": "mesh", "image": remote_tag("pause", tag), "restartPolicy": "Always" }]);
    let mut of_native = set(t, "mesh", &[]);
    of_native["spec"]["initContainers"] = mesh("e2e");
    let name = known(t, of_native).await?;
    let before = t.start(pod("web", vec![shell("main", "")])).await?;
    assert_eq!(before.text("/spec/initContainers/0/image"), remote("pause"));
    t.patch(SET, &name, json!({ "spec": { "initContainers": mesh("v2") } })).await?;
    if t.kubelet_minor(&before).await? < 32 {
        let is_told = |set: &Value| {
            set.int("/status/notUpgradablePods") == 1
                && set.array("/status/conditions").iter().any(|c| c.text("/reason") == "KubeletTooOld")
        };
        t.wait_for(SET, &name, "to say that kubelet is too old", PATIENCE, is_told).await?;
        assert_eq!(t.get("Pod", "web").await?.text("/spec/initContainers/0/image"), remote("pause"));
        return Ok(());
    }
    let (old, _) = instance(&before, INIT, "mesh");
    let is_new = |pod: &Value| {
        pod.text("/spec/initContainers/0/image") == remote_tag("pause", "v2")
            && instance(pod, INIT, "mesh").0 != old
            && condition(pod, "Ready") == "True"
            && condition(pod, "SidecarSetUpgradable") == "True"
    };
    let after = t.wait_for("Pod", "web", "to run the new image", PATIENCE * 2, is_new).await?;
    assert_eq!(after.text("/metadata/uid"), before.text("/metadata/uid"));
    assert_eq!(instance(&after, INIT, "mesh").1, 1, "stopped once");
    let main = |pod: &Value| instance(pod, "/status/containerStatuses", "main");
    assert_eq!(main(&after), main(&before), "the Pod's own container went on");
    updated(t, &name).await.map(drop)
}

#[tokio::test]
async fn a_native_sidecar_is_updated_in_place() -> Result<()> {
    in_namespace("sidecar-native", async |t| restoring(native(t), removed(t, &["mesh"])).await).await
}
