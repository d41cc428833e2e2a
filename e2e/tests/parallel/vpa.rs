//! The updater of the VerticalPodAutoscaler (VPA), built from its module, on the kinds of kruise-rs.
//!
//! Of VPA's three programs it is the one that evicts. The recommender needs metrics of use: what it writes is written by hand here.
//! Without VPA's webhook a new Pod requests what the old one did, so the updater evicts again and again, as long as it runs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use e2e::cmd::{cmd, tail};
use e2e::images::remote_tag;
use e2e::kit::{Build, Container, Look, Test, app, in_namespace, poll, restoring};
use e2e::others::documents;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::budgets::{for_clone_set, guarded};
use crate::clone_set::{
    CLONE_SET, LONG, clone_set, in_place, names, pods, pulled, rolled_out, set_image, uids, until_pods,
};
use crate::daemon_set::daemon_set;
use crate::stateful_set::{Running, stateful_set};
use crate::united_deployment::named;

const VPA: &str = "VerticalPodAutoscaler";
const DEFINITION: &str = "verticalpodautoscalers.autoscaling.k8s.io";
const UPDATER: &str = "vpa-updater";

/// What has an autoscaler: the version and kind, the name, how many Pods, and how the autoscaler updates them.
const TARGETS: [(&str, &str, &str, usize, &str); 7] = [
    ("v1alpha1", "CloneSet", "web", 2, "Recreate"),
    ("v1alpha1", "CloneSet", "kept", 2, "Recreate"),
    ("v1alpha1", "CloneSet", "sized", 2, "InPlaceOrRecreate"),
    ("v1beta1", "StatefulSet", "db", 2, "Recreate"),
    ("v1beta1", "DaemonSet", "agent", 0, "Recreate"),
    ("v1alpha1", "UnitedDeployment", "deployed", 1, "Recreate"),
    ("v1alpha1", "UnitedDeployment", "cloned", 1, "Recreate"),
];

/// A container that requests less than is recommended.
fn asking(container: Value) -> Value {
    container.with("/resources/requests/cpu", "10m")
}

/// The objects of [`TARGETS`].
fn objects(t: &Test) -> [Value; 7] {
    let main = || vec![asking(app("main"))];
    let united = |name: &str, member: &str| named(name, 1, member, main(), json!([{ "name": "a" }]));
    [
        clone_set("web", 2, main()),
        clone_set("kept", 2, main()),
        in_place("sized", 2, vec![asking(pulled("main"))]),
        stateful_set("db", 2, main()),
        // No node has the label that it asks for.
        daemon_set(t, "agent", main()),
        united("deployed", "deploymentTemplate"),
        united("cloned", "cloneSetTemplate"),
    ]
}

/// The definition of the kind, from the module that the updater was built from.
async fn definition(t: &Test) -> Result<Value> {
    // Unlike `go list` it also finds a module that is not there any more, by fetching it again.
    let mut go = cmd("go", ["mod", "download", "-json", "k8s.io/autoscaler/vertical-pod-autoscaler"]);
    go.current_dir(t.paths.repo.join("e2e/tools/vpa"));
    let answer = t.run(go).await?;
    ensure!(answer.ok, "{}{}", answer.stdout, answer.stderr);
    let module: Value = serde_json::from_str(&answer.stdout)?;
    let file = Path::new(module.text("/Dir")).join("deploy/vpa-v1-crd-gen.yaml");
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let found = documents(&text)?.into_iter().find(|object| object.text("/metadata/name") == DEFINITION);
    found.with_context(|| format!("{DEFINITION} is in {}", file.display()))
}

/// Creates an autoscaler, and recommends as the recommender does.
async fn recommended(t: &Test, (version, kind, name, _, mode): (&str, &str, &str, usize, &str)) -> Result<()> {
    let target = json!({ "apiVersion": format!("apps.kruise.io/{version}"), "kind": kind, "name": name });
    // By default the updater leaves a Pod that is the only one.
    let policy = json!({ "updateMode": mode, "minReplicas": 1 });
    let spec = json!({ "targetRef": target, "updatePolicy": policy });
    t.create(json!({ "kind": VPA, "metadata": { "name": name }, "spec": spec })).await?;
    // A Pod whose requests are outside of the bounds need not be 12 hours old.
    let cpu = |amount: &str| json!({ "cpu": amount });
    let main = json!({ "containerName": "main",
        "target": cpu("20m"), "lowerBound": cpu("15m"), "upperBound": cpu("40m") });
    let provided = json!({ "type": "RecommendationProvided", "status": "True" });
    let status = json!({ "conditions": [provided], "recommendation": { "containerRecommendations": [main] } });
    let patch = Patch::Merge(json!({ "status": status }));
    t.api(VPA).patch_status(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

fn log_file(t: &Test) -> PathBuf {
    t.paths.logs().join(format!("{UPDATER}.log"))
}

/// Starts the updater, for the namespace of the test alone.
fn updater(t: &Test) -> Result<Running> {
    let log = File::create(log_file(t)).context("the log of the updater")?;
    // Nobody says that the webhook is there, and any free port will do.
    let flags = ["--updater-interval=5s", "--use-admission-controller-status=false", "--address=127.0.0.1:0"];
    let mut command = cmd(t.paths.bin(UPDATER), flags);
    command.arg(format!("--kubeconfig={}", t.paths.kubeconfig().display()));
    command.arg(format!("--vpa-object-namespace={}", t.namespace));
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(Running(command.spawn().with_context(|| format!("start {command:?}"))?))
}

/// Waits until the updater has said something so many times about objects whose names begin so.
async fn says(t: &Test, what: &str, about: &str, times: usize) -> Result<()> {
    poll(&format!("the updater to say of {about}: {what}"), LONG, async || {
        let log = fs::read_to_string(log_file(t))?;
        let object = format!("=\"{}/{about}", t.namespace);
        let said = log.lines().filter(|line| line.contains(what) && line.contains(&object)).count();
        ensure!(said >= times, "{said} times, and at last:\n{}", tail(&log, 10));
        Ok(())
    })
    .await
}

/// Waits until all Pods are other ones, because the updater has evicted those of before.
async fn evicted(t: &Test, name: &str, before: &[Value]) -> Result<()> {
    poll(&format!("other Pods of {name}"), LONG, async || {
        let now = pods(t, name).await?;
        let are_others = now.len() == before.len() && uids(&now).is_disjoint(&uids(before));
        ensure!(are_others, "{:?} instead of {:?}", names(&now), names(before));
        Ok(())
    })
    .await?;
    let by_it = |event: &&String| event.starts_with("EvictedPod: VPA Updater evicted Pod ");
    t.wait_events(VPA, name, |events| events.iter().filter(by_it).count() >= before.len()).await?;
    Ok(())
}

/// Waits until kubelet has resized the Pods, which has stopped nothing.
async fn resized(t: &Test, name: &str, before: &[Value]) -> Result<()> {
    poll(&format!("the Pods of {name} to be resized"), LONG, async || {
        for pod in pods(t, name).await? {
            let requests = ["/spec/containers/0", "/status/containerStatuses/0"]
                .map(|container| pod.text(&format!("{container}/resources/requests/cpu")).to_owned());
            ensure!(requests == ["20m", "20m"], "{}: {requests:?}", pod.text("/metadata/name"));
        }
        Ok(())
    })
    .await?;
    let after = pods(t, name).await?;
    assert_eq!(uids(&after), uids(before));
    for (after, before) in after.iter().zip(before) {
        assert_eq!(Container::all(after), Container::all(before), "no restart");
    }
    Ok(())
}

/// The names of the revisions of an object.
async fn revisions(t: &Test, of: &Value) -> Result<Vec<String>> {
    let is_owner = |owner: &Value| owner.text("/uid") == of.text("/metadata/uid");
    let mut all = t.list("ControllerRevision", "").await?;
    all.retain(|revision| revision.array("/metadata/ownerReferences").iter().any(is_owner));
    Ok(all.iter().map(|revision| revision.text("/metadata/name").to_owned()).collect())
}

/// VPA looks for the built-in kind wherever an object is called StatefulSet or DaemonSet, and does not see that a CloneSet has an
/// owner: the scale, by which it knows a CloneSet, does not name one.
#[tokio::test]
async fn the_updater_of_vpa_evicts_and_resizes_pods_of_the_kinds_that_it_finds() -> Result<()> {
    in_namespace("vpa", async |t| {
        restoring(with_the_updater(t), t.remove("CustomResourceDefinition", DEFINITION)).await
    })
    .await
}

async fn with_the_updater(t: &Test) -> Result<()> {
    t.define(definition(t).await?).await?;
    for object in objects(t) {
        t.create(object).await?;
    }
    let mut before = BTreeMap::new();
    for target in TARGETS {
        let (_, _, name, count, _) = target;
        let found = until_pods(t, name, &format!("the Pods of {name}"), |pods| pods.len() == count).await?;
        before.insert(name, found);
        recommended(t, target).await?;
    }
    guarded(t, for_clone_set("kept", 0)).await?;
    let web = rolled_out(t, "web").await?;
    let history = t.record(CLONE_SET, "web").await?;
    let (web_away, kept_away) = (t.availability("app=web").await?, t.availability("app=kept").await?);

    let updater = updater(t)?;
    evicted(t, "web", &before["web"]).await?;
    evicted(t, "deployed", &before["deployed"]).await?;
    resized(t, "sized", &before["sized"]).await?;
    says(t, r#"podunavailablebudget.policy.kruise.io \"kept\" is forbidden"#, "kept-", 2).await?;
    // It looks at everything each time.
    says(t, "we cannot fetch selector", "db\"", 3).await?;
    says(t, "we cannot fetch selector", "agent\"", 3).await?;
    drop(updater);

    for name in ["kept", "sized", "db", "cloned"] {
        assert_eq!(uids(&pods(t, name).await?), uids(&before[name]), "Pods of {name} stay");
    }
    assert_eq!(kept_away.most_unavailable(), 0);
    // The share that it may evict is one of the replicas, which it knows of built-in kinds alone: here it evicts all that run.
    assert_eq!(web_away.most_unavailable(), 2);

    // Nothing of that is an update.
    until_pods(t, "web", "the Pods of web to be back", |pods| pods.len() == 2).await?;
    let revision = web.text("/status/updateRevision");
    assert_eq!(revisions(t, &rolled_out(t, "web").await?).await?, [revision]);
    for (_, state) in history.states() {
        let is_same = state.text("/status/updateRevision") == revision
            && state.text("/status/currentRevision") == revision
            && state.int("/status/updatedReplicas") == state.int("/status/replicas");
        ensure!(is_same, "evicted Pods count as outdated: {:#}", state["status"]);
    }

    // An update leaves the resources.
    set_image(t, "sized", "main", &remote_tag("pause", "v2")).await?;
    rolled_out(t, "sized").await?;
    let after = pods(t, "sized").await?;
    assert_eq!(uids(&after), uids(&before["sized"]), "in place");
    for pod in &after {
        assert_eq!(pod.text("/spec/containers/0/resources/requests/cpu"), "20m");
    }
    Ok(())
}
