//! SidecarSets on a real API server and kubelet: what new Pods get, and updates of it in place.

use anyhow::{Context, Result, ensure};
use e2e::images::{BUSYBOX, PAUSE, remote_tag};
use e2e::kit::{Build, Look, PATIENCE, Test, app, condition, in_namespace, pod, poll, restoring, shell};
use e2e::paths::SYSTEM;
use kube::api::{DynamicObject, PostParams};
use serde_json::{Value, json};

const SET: &str = "SidecarSet";
const LEFT_OUT: &str = "/metadata/annotations/kruise.rs~1sidecarset-left-out";
const INJECTED: &str = "/metadata/annotations/kruise.io~1sidecarset-injected-list";

/// A SidecarSet for Pods of the test with the label `app: web`. The namespace makes its name unique.
pub(crate) fn set(t: &Test, name: &str, containers: &[Value]) -> Value {
    json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": SET, "metadata": { "name": format!("{}-{name}", t.namespace) },
        "spec": { "selector": { "matchLabels": { "app": "web" } }, "containers": containers,
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": t.namespace } } } })
}

/// Creates a SidecarSet and waits until every API server asks about new Pods of the namespace.
pub(crate) async fn known(t: &Test, set: Value) -> Result<String> {
    let set = t.create(set).await?;
    let name = set.text("/metadata/name").to_owned();
    poll("new Pods to be injected", PATIENCE, async || {
        let tried = tried(t, web()).await?;
        let injected = tried.text(INJECTED).split(',').any(|injected| injected == name);
        ensure!(injected || tried.text(LEFT_OUT).contains(&name), "not asked: {tried}");
        Ok(())
    })
    .await?;
    Ok(name)
}

fn web() -> Value {
    pod("web", vec![shell("main", "").with("/env", json!([{ "name": "LEVEL", "value": "debug" }]))])
}

/// A Pod as it would be created.
async fn tried(t: &Test, pod: Value) -> Result<Value> {
    let object: DynamicObject = serde_json::from_value(pod)?;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    Ok(serde_json::to_value(t.api("Pod").create(&dry_run, &object).await?)?)
}

fn names(pod: &Value, list: &str) -> Vec<String> {
    pod.array(list).iter().map(|container| container.text("/name").to_owned()).collect()
}

pub(crate) async fn removed(t: &Test, names: &[&str]) -> Result<()> {
    for name in names {
        t.remove(SET, &format!("{}-{name}", t.namespace)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn annotations_that_no_whitelist_allows_are_refused() -> Result<()> {
    in_namespace("sidecars-notes", async |t| {
        let mut set = set(t, "notes", &[shell("agent", "")]);
        set["spec"]["patchPodMetadata"] = json!([{ "annotations": { "example.com/note": "on" } }]);
        let error = t.create(set).await.err().context("it is refused")?;
        for part in [
            "spec.patchPodMetadata[0].annotations[example.com/note]",
            "in namespace kruise-system",
            "SidecarSetPatchPodMetadataDefaultsAllowed",
        ] {
            ensure!(format!("{error:#}").contains(part), "{error:#}");
        }
        Ok(())
    })
    .await
}

async fn containers_of_all_kinds(t: &Test) -> Result<()> {
    let mut agent = shell("agent", "");
    agent["podInjectPolicy"] = "BeforeAppContainer".into();
    agent["transferEnv"] = json!([{ "sourceContainerName": "main", "envName": "LEVEL" }]);
    agent["volumeMounts"] = json!([{ "name": "spool", "mountPath": "/spool" }]);
    let mut set = set(t, "all", &[agent]);
    set["spec"]["initContainers"] = json!([
        { "name": "setup", "image": BUSYBOX, "imagePullPolicy": "IfNotPresent", "command": ["true"] },
        { "name": "mesh", "image": PAUSE, "imagePullPolicy": "IfNotPresent", "restartPolicy": "Always" },
    ]);
    set["spec"]["updateStrategy"] = json!({ "type": "NotUpdate" });
    set["spec"]["volumes"] = json!([{ "name": "spool", "emptyDir": {} }]);
    let name = known(t, set).await?;
    let web = t.start(web()).await?;
    assert_eq!(names(&web, "/spec/containers"), ["agent", "main"]);
    assert_eq!(names(&web, "/spec/initContainers"), ["mesh", "setup"]);
    assert_eq!(web.text(INJECTED), name);
    ensure!(!web.has(LEFT_OUT), "{web}");
    assert_eq!(t.exec("web", "agent", "echo $IS_INJECTED $LEVEL; ls -d /spool").await?, "true debug\n/spool");
    let other = t.create(pod("other", vec![app("main")])).await?;
    assert_eq!(names(&other, "/spec/containers"), ["main"], "its labels do not fit");
    Ok(())
}

#[tokio::test]
async fn a_pod_gets_containers_init_containers_and_native_sidecars() -> Result<()> {
    in_namespace("sidecars", async |t| restoring(containers_of_all_kinds(t), removed(t, &["all"])).await).await
}

/// Which container runs, and how often it was restarted.
pub(crate) fn instance(pod: &Value, name: &str) -> (String, i64) {
    let status = pod.array("/status/containerStatuses").iter().find(|status| status.text("/name") == name);
    status.map(|status| (status.text("/containerID").to_owned(), status.int("/restartCount"))).unwrap_or_default()
}

async fn in_place(t: &Test) -> Result<()> {
    let agent = |tag| json!({ "name": "agent", "image": remote_tag("pause", tag) });
    let name = known(t, set(t, "agent", &[agent("e2e")])).await?;
    let before = t.start(web()).await?;
    t.patch(SET, &name, json!({ "spec": { "containers": [agent("v2")] } })).await?;
    let first = instance(&before, "agent");
    let runs = |pod: &Value| {
        let agent = pod.array("/spec/containers").iter().find(|container| container.text("/name") == "agent");
        agent.is_some_and(|agent| agent.text("/image") == remote_tag("pause", "v2"))
            && instance(pod, "agent").0 != first.0
            && condition(pod, "Ready") == "True"
    };
    let after = t.wait_for("Pod", "web", "to run the new image", PATIENCE * 2, runs).await?;
    assert_eq!(after.text("/metadata/uid"), before.text("/metadata/uid"));
    assert_eq!(instance(&after, "main"), instance(&before, "main"), "the Pod's own container went on");
    t.wait_for(SET, &name, "to say so", PATIENCE, |set| {
        set.int("/status/updatedPods") == 1 && set.int("/status/updatedReadyPods") == 1
    })
    .await?;
    // The condition is there when the status counts the update, in OpenKruise's words.
    let message = format!("{{\"{name}\":true}}");
    let says = |pod: &Value| {
        let all = pod.array("/status/conditions");
        all.iter().any(|c| {
            c.text("/type") == "SidecarSetUpgradable"
                && c.text("/reason") == "AllSidecarsetUpgradable"
                && c.text("/message") == message
        })
    };
    let counted = t.get("Pod", "web").await?;
    ensure!(says(&counted), "{counted}");
    the_plugin_knows(t, &name, &after).await
}

/// What the plugin says of a SidecarSet whose one Pod has its second image; it takes that back and restarts the sidecar.
async fn the_plugin_knows(t: &Test, name: &str, pod: &Value) -> Result<()> {
    let target = format!("sidecarset/{name}");
    let counts = format!(
        "SidecarSet {name}: 1 Pods matched, 1 injected; 0 uninjected, 0 not upgradable, 0 outdated, 1 updated\n"
    );
    let told = t.plugin_exits(0, &["sidecarset", name, "--all"]).await?.stdout;
    ensure!(told.starts_with(&counts) && told.contains("Latest revision: "), "{told}");
    ensure!(told.lines().last().is_some_and(|row| row.contains("web") && row.contains("updated")), "{told}");
    let status = ["rollout", "status", target.as_str(), "--timeout=60s"];
    let rolled_out = format!("sidecarset \"{name}\" successfully rolled out\n");
    let told = t.plugin_exits(0, &status).await?.stdout;
    ensure!(told.ends_with(&rolled_out), "{told}");

    let told = t.plugin_exits(0, &["rollout", "undo", &target]).await?.stdout;
    ensure!(told.starts_with(&format!("sidecarset.apps.kruise.io/{name} rolled back to revision ")), "{told}");
    let told = t.plugin_exits(0, &status).await?.stdout;
    ensure!(told.ends_with(&rolled_out), "{told}");
    let back = t.get("Pod", "web").await?;
    let agent = back.array("/spec/containers").iter().find(|container| container.text("/name") == "agent");
    assert_eq!(agent.map(|agent| agent.text("/image")), Some(&*remote_tag("pause", "e2e")));
    assert_eq!(back.text("/metadata/uid"), pod.text("/metadata/uid"));

    let restart = ["restart", target.as_str(), "-c", "agent", "--wait", "--timeout", "60s"];
    let told = t.plugin_exits(0, &restart).await?.stdout;
    ensure!(told.starts_with("workloadrestart.kruise.rs/") && told.contains("1 of 1 Pods restarted"), "{told}");
    let restarted = t.get("Pod", "web").await?;
    assert_eq!(instance(&restarted, "agent").1, instance(&back, "agent").1 + 1);
    assert_eq!(instance(&restarted, "main"), instance(pod, "main"), "the Pod's own container went on");
    Ok(())
}

#[tokio::test]
async fn an_update_in_place_keeps_the_pod_and_its_own_containers() -> Result<()> {
    in_namespace("sidecars-update", async |t| restoring(in_place(t), removed(t, &["agent"])).await).await
}

async fn one_that_cannot_be(t: &Test) -> Result<()> {
    known(t, set(t, "good", &[app("agent")])).await?;
    // The Pod uses the name itself.
    let mut taken = set(t, "taken", &[]);
    taken["spec"]["initContainers"] = json!([{ "name": "main", "image": BUSYBOX }]);
    let name = known(t, taken).await?;
    let web = t.start(web()).await?;
    assert_eq!(names(&web, "/spec/containers").len(), 2);
    let left_out: Value = serde_json::from_str(web.text(LEFT_OUT)).context("the reasons")?;
    let reason = left_out[&name].as_str().unwrap_or_default();
    ensure!(reason.starts_with("container main: the Pod has an init container and a container"), "{left_out}");
    Ok(())
}

#[tokio::test]
async fn a_pod_is_born_without_what_cannot_be_injected() -> Result<()> {
    in_namespace("sidecars-left-out", async |t| restoring(one_that_cannot_be(t), removed(t, &["good", "taken"])).await)
        .await
}

/// A revision as OpenKruise keeps it, in its namespace.
fn revision(set: &str, number: i64, version: &str, value: &str) -> Value {
    let container = shell("agent", "").with("/env", json!([{ "name": "OF", "value": value }]));
    json!({ "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": number,
        "metadata": { "name": format!("{set}-{value}"), "namespace": SYSTEM, "labels": {
            "kruise.io/sidecarset-name": set, "apps.kruise.io/sidecarset-custom-version": version } },
        "data": { "spec": { "$patch": "replace", "containers": [container], "initContainers": null, "imagePullSecrets": null,
            "patchPodMetadata": null, "volumes": null } } })
}

async fn pinned(t: &Test) -> Result<()> {
    let name = known(t, set(t, "pinned", &[shell("agent", "")])).await?;
    for (number, value) in [(901, "first"), (902, "second")] {
        t.create(revision(&name, number, "v1", value)).await?;
    }
    for (revision, wanted) in [
        (json!({ "revisionName": format!("{name}-first") }), "first"),
        (json!({ "revisionName": null, "customVersion": "v1" }), "second"),
    ] {
        t.patch(SET, &name, json!({ "spec": { "injectionStrategy": { "revision": revision } } })).await?;
        poll("new Pods to get the revision", PATIENCE, async || {
            let pod = tried(t, web()).await?;
            let mut variables = pod.array("/spec/containers").iter().flat_map(|container| container.array("/env"));
            ensure!(variables.any(|variable| variable.text("/value") == wanted), "{pod}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn new_pods_get_a_pinned_revision() -> Result<()> {
    in_namespace("sidecars-pinned", async |t| {
        let body = restoring(pinned(t), removed(t, &["pinned"])).await;
        let name = format!("{}-pinned", t.namespace);
        let revisions = t.api_in(SYSTEM, "ControllerRevision");
        for value in ["first", "second"] {
            let deleted = revisions.delete(&format!("{name}-{value}"), &Default::default()).await;
            // What a test that failed has never made is no failure of its own.
            if body.is_ok() {
                deleted?;
            }
        }
        body
    })
    .await
}
