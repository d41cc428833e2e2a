//! Installing and uninstalling.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use e2e::images::remote;
use e2e::kit::{Build, Look, PATIENCE, Test, app, condition, crr, in_namespace, pod, poll, restoring, shell, workload};
use e2e::paths::SYSTEM;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::{CRR, openkruise};

const DEFINITION: &str = "containerrecreaterequests.apps.kruise.io";

/// A Pod that a request has made NotReady, for ten minutes to come.
async fn drained(t: &Test) -> Result<Value> {
    let web =
        pod("web", vec![app("main")]).with("/spec/readinessGates", json!([{ "conditionType": "KruisePodReady" }]));
    let pod = t.start(web).await?;
    t.create(crr("once", "web", &["main"]).with("/spec/strategy/unreadyGracePeriodSeconds", 600)).await?;
    t.wait_for("Pod", "web", "to be NotReady", PATIENCE, |p| condition(p, "Ready") == "False").await?;
    Ok(pod)
}

/// A CloneSet whose only Pod is drained, in the middle of an update that has ten minutes.
async fn updating(t: &Test) -> Result<Value> {
    let set = workload("CloneSet", "set", 1, vec![app("main")]).with(
        "/spec/updateStrategy",
        json!({ "type": "InPlaceIfPossible", "inPlaceUpdateStrategy": { "gracePeriodSeconds": 600 } }),
    );
    t.create(set).await?;
    let available = |o: &Value| o.int("/status/availableReplicas") == 1;
    t.wait_for("CloneSet", "set", "to be available", PATIENCE, available).await?;
    let pod = t.list("Pod", "app=set").await?.remove(0);
    let image = format!("main={}", remote("pause"));
    t.plugin_exits(0, &["set", "image", "cloneset/set", &image]).await?;
    let name = pod.text("/metadata/name");
    t.wait_for("Pod", name, "to be drained", PATIENCE, |p| condition(p, "Ready") == "False").await?;
    Ok(pod)
}

/// ConfigMaps: one that others keep in our namespace, and one that orders the start of containers in a Pod.
const KEPT: [(&str, &str); 2] = [(SYSTEM, "kruise-configuration"), ("", "web-barrier")];

/// Makes what uninstalling has to keep, but for what is there already.
async fn make_kept(t: &Test) -> Result<()> {
    for (namespace, name) in KEPT {
        let mut object = json!({ "kind": "ConfigMap", "metadata": { "name": name, "labels": { "e2e": "kept" } },
            "data": { "p_1": "true" } });
        if !namespace.is_empty() {
            object["metadata"]["namespace"] = namespace.into();
        }
        match t.create(object).await {
            Err(error) if matches!(error.downcast_ref::<kube::Error>(), Some(kube::Error::Api(said)) if said.code == 409) =>
                {}
            made => drop(made?),
        }
    }
    Ok(())
}

/// Those of them that are gone.
async fn gone(t: &Test) -> Result<Vec<&'static str>> {
    let mut gone = Vec::new();
    for (namespace, name) in KEPT {
        let namespace: &str = if namespace.is_empty() { &t.namespace } else { namespace };
        if t.api_in(namespace, "ConfigMap").get_opt(name).await?.is_none() {
            gone.push(name);
        }
    }
    Ok(gone)
}

/// Deletes what [`make_kept`] has made in our namespace.
async fn remove_kept(t: &Test) -> Result<()> {
    for (namespace, name) in KEPT.into_iter().filter(|(namespace, _)| !namespace.is_empty()) {
        let api = t.api_in(namespace, "ConfigMap");
        if api.get_opt(name).await?.is_some_and(|object| object.labels().contains_key("e2e")) {
            api.delete(name, &DeleteParams::default()).await?;
        }
    }
    Ok(())
}

const SET: &str = "SidecarSet";

/// The namespace makes it unique.
fn set_name(t: &Test) -> String {
    format!("{}-pinned", t.namespace)
}

/// A container that says of which revision it is.
fn agent(revision: &str) -> Value {
    shell("agent", "").with("/env", json!([{ "name": "OF", "value": revision }]))
}

/// Makes a SidecarSet whose new Pods get its first revision, although it has a second one; the name of the first.
async fn pinned(t: &Test) -> Result<String> {
    let name = set_name(t);
    let set = json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": SET, "metadata": { "name": name },
        "spec": { "selector": { "matchLabels": { "app": "pinned" } }, "containers": [agent("first")],
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": t.namespace } } } });
    t.create(set).await?;
    let latest = |set: &Value| set.text("/status/latestRevision").to_owned();
    let set = t.wait_for(SET, &name, "to have a revision", PATIENCE, |set| !latest(set).is_empty()).await?;
    let first = latest(&set);
    let second = json!({ "spec": { "containers": [agent("second")],
        "injectionStrategy": { "revision": { "revisionName": first } } } });
    t.patch(SET, &name, second).await?;
    t.wait_for(SET, &name, "to have another revision", PATIENCE, |set| latest(set) != first).await?;
    Ok(first)
}

/// A new Pod gets the revision that the SidecarSet pins, as soon as the API server asks about it.
async fn gets_the_pinned_one(t: &Test) -> Result<()> {
    let pod = pod("pinned", vec![app("main")]);
    let of = |pod: &Value| {
        let agent = pod.array("/spec/containers").iter().find(|container| container.text("/name") == "agent");
        let variables = agent.map(|agent| agent.array("/env")).unwrap_or_default();
        variables.iter().find(|variable| variable.text("/name") == "OF").map(|of| of.text("/value").to_owned())
    };
    poll("new Pods to get the sidecar", PATIENCE, async || {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let tried = t.api("Pod").create(&dry_run, &serde_json::from_value(pod.clone())?).await?;
        let tried = serde_json::to_value(tried)?;
        ensure!(of(&tried).is_some(), "it has none: {tried}");
        Ok(())
    })
    .await?;
    let started = t.start(pod).await?;
    assert_eq!(of(&started).as_deref(), Some("first"), "the revision of the sidecar");
    Ok(())
}

/// Admission policies and bindings that have to do with us.
async fn left_of_policies(t: &Test) -> Result<Vec<String>> {
    let kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings";
    let list: Value = serde_json::from_str(&t.kubectl(&["get", kinds, "-o", "json"]).await?)?;
    let is_ours = |o: &&Value| {
        o.text("/metadata/name").starts_with("kruise-")
            || o.text("/spec/policyName").starts_with("kruise-")
            || o.text("/metadata/labels/app.kubernetes.io~1name") == "kruise-rs"
    };
    Ok(list
        .array("/items")
        .iter()
        .filter(is_ours)
        .map(|o| format!("{} {}", o.text("/kind"), o.text("/metadata/name")))
        .collect())
}

/// With a request in flight, a CloneSet in the middle of an update, and a SidecarSet that pins a revision.
async fn uninstalled_and_installed_again(t: &Test) -> Result<()> {
    let before = drained(t).await?;
    let updated = updating(t).await?;
    let of_set = updated.text("/metadata/name");
    let kinds = [("StatefulSet", "AdvancedStatefulSet"), ("DaemonSet", "AdvancedDaemonSet")];
    for (kind, known_as) in kinds {
        let name = kind.to_lowercase();
        let mut set = workload(kind, &name, 1, vec![app("main")]).with("/apiVersion", "apps.kruise.io/v1beta1");
        if kind == "StatefulSet" {
            // OpenKruise reads it only as a number
            set = set.with("/spec/updateStrategy/rollingUpdate/partition", "0%");
        }
        t.create(set).await?;
        let has_pods = |o: &Value| o.int("/status/availableReplicas") > 0 || o.int("/status/numberAvailable") > 0;
        t.wait_for(known_as, &name, "to be available", PATIENCE, has_pods).await?;
    }
    let refused = t.node().undeploy(true).await.err().map(|error| format!("{error:#}"));
    let refused = refused.context("the definition of a workload that is there is not removed")?;
    for workloads in ["clonesets", "statefulsets", "daemonsets"] {
        let told = format!("--crds would delete these {workloads}.apps.kruise.io with all their Pods");
        ensure!(refused.contains(&told), "{refused}");
    }
    t.node().daemon_ready().await?;
    let revision = pinned(t).await?;
    // one that an administrator has made
    t.apply(&json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": "e2e-labels" },
        "spec": { "policyName": "kruise-deletion-protection-labels", "validationActions": ["Audit"] } }))
        .await?;
    make_kept(t).await?;
    let named = t.plugin(&["doctor", "--return"]).await?.stdout;
    let undeployed = t.node().undeploy(false).await;
    let policies = left_of_policies(t).await;
    let not_kept = gone(t).await;
    let revision_after = t.api_in(SYSTEM, "ControllerRevision").get_opt(&revision).await;
    let after = t.ready("web").await;
    let of_set_after = t.ready(of_set).await;
    let left = t.find(CRR, "once").await;
    let definition = t.find("CustomResourceDefinition", DEFINITION).await;
    let mut outlived = Vec::new();
    for (kind, known_as) in kinds {
        outlived.push((kind, t.find(known_as, &kind.to_lowercase()).await));
    }
    let misread = if undeployed.is_ok() { openkruise::misread(t).await } else { Ok(BTreeSet::new()) };
    t.node().deploy().await?;
    undeployed?;
    let misread = misread?;
    assert_eq!(
        misread,
        BTreeSet::from([format!("StatefulSet {}/statefulset", t.namespace)]),
        "what OpenKruise misreads"
    );
    let told = format!("{}/statefulset: OpenKruise reads a partition only as a number", t.namespace);
    ensure!(named.contains(&told), "not named before: {named}");
    for (kind, found) in outlived {
        ensure!(found?.is_some(), "the {kind} is gone");
    }
    remove_kept(t).await?;
    assert_eq!(policies?, Vec::<String>::new(), "policies and bindings are left");
    assert_eq!(not_kept?, Vec::<&str>::new(), "what is not ours is gone");
    ensure!(revision_after?.is_some(), "the revision of a SidecarSet is gone");
    assert_eq!(after?.text("/metadata/uid"), before.text("/metadata/uid"), "no Pod is deleted");
    assert_eq!(of_set_after?.text("/metadata/uid"), updated.text("/metadata/uid"), "nor one of a CloneSet");
    if let Some(left) = left? {
        ensure!(left.array("/metadata/finalizers").is_empty(), "a finalizer is left: {left}");
    }
    ensure!(definition?.is_some(), "the definition goes only when asked for");
    // and what is installed again works
    gets_the_pinned_one(t).await?;
    t.restart("again", "web", &["main"]).await?;
    t.succeeded("again").await?;
    t.kubectl(&["scale", "cloneset/set", "--replicas=2"]).await?;
    t.wait_for("CloneSet", "set", "to have two Pods", PATIENCE, |o| o.int("/status/replicas") == 2).await?;
    ensure!(t.find("Pod", of_set).await?.is_some(), "the first is still there");
    Ok(())
}

#[tokio::test]
async fn uninstalling_leaves_pods_ready_and_no_finalizer_and_clone_sets_outlive_it() -> Result<()> {
    in_namespace("uninstall", async |t| {
        let undo = async {
            let kept = remove_kept(t).await;
            let binding = t.remove("ValidatingAdmissionPolicyBinding", "e2e-labels").await;
            t.remove(SET, &set_name(t)).await.and(kept).and(binding)
        };
        restoring(uninstalled_and_installed_again(t), undo).await
    })
    .await
}

#[tokio::test]
async fn uninstalling_with_the_definitions_works_with_a_dead_manager_too() -> Result<()> {
    in_namespace("uninstall-crds", async |t| {
        drained(t).await?;
        // those of tests before this one go with their namespaces, which takes a moment
        poll("the workloads of other tests to be gone", PATIENCE, async || {
            let kinds = "clonesets,statefulsets.apps.kruise.io,daemonsets.apps.kruise.io,uniteddeployments,broadcastjobs,advancedcronjobs";
            let left = t.kubectl(&["get", kinds, "-A", "-o", "name"]).await?;
            ensure!(left.trim().is_empty(), "{left}");
            Ok(())
        })
        .await?;
        let removed = async {
            t.node().scale("kruise-controller-manager", 0).await?;
            t.node().undeploy_within("30s").await?;
            t.ready("web").await?;
            t.find("CustomResourceDefinition", DEFINITION).await
        };
        let definition = restoring(removed, t.node().deploy()).await?;
        ensure!(definition.is_none(), "the definition is still there");
        assert_eq!(t.containers("web").await?["main"].restarts, 0);
        t.restart("again", "web", &["main"]).await?;
        t.succeeded("again").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn installing_over_an_installation_changes_nothing() -> Result<()> {
    in_namespace("reinstall", async |t| {
        let daemon = t.node().daemon().await?;
        // What an administrator has set stays, and so does what the webhook has written.
        let configurations = [
            ("MutatingWebhookConfiguration", "kruise-mutating-webhook-configuration"),
            ("ValidatingWebhookConfiguration", "kruise-validating-webhook-configuration"),
        ];
        let (kind, name) = configurations[0];
        let place = |o: &Value| o.array("/webhooks").iter().position(|entry| entry.text("/name") == "mpod.kb.io");
        let set = async |seconds: i64| {
            let live = t.get(kind, name).await?;
            let entry = format!("/webhooks/{}", place(&live).context("mpod.kb.io")?);
            let operations = json!([
                { "op": "test", "path": format!("{entry}/name"), "value": "mpod.kb.io" },
                { "op": "replace", "path": format!("{entry}/timeoutSeconds"), "value": seconds },
            ]);
            let patch = Patch::Json::<()>(serde_json::from_value(operations)?);
            t.api(kind).patch(name, &PatchParams::default(), &patch).await?;
            anyhow::Ok(live.int(&format!("{entry}/timeoutSeconds")))
        };
        let was = set(9).await?;
        let again = async {
            let registered = async || {
                let mut entries = Vec::new();
                for (kind, name) in configurations {
                    // The lists of namespaces go with other tests.
                    entries.extend(t.get(kind, name).await?.array("/webhooks").iter().map(|entry| {
                        json!([entry["name"], entry["failurePolicy"], entry["timeoutSeconds"], entry["clientConfig"]])
                    }));
                }
                anyhow::Ok(entries)
            };
            let before = registered().await?;
            t.node().deploy().await?;
            assert_eq!(registered().await?, before);
            anyhow::Ok(())
        };
        restoring(again, async { set(was).await.map(drop) }).await?;
        assert_eq!(t.node().daemon().await?.text("/metadata/uid"), daemon.text("/metadata/uid"));
        Ok(())
    })
    .await
}

/// As an upgrade from manifests that had all entries does it once.
#[tokio::test]
async fn entries_that_somebody_removes_are_added_again_at_once() -> Result<()> {
    in_namespace("entries-removed", async |t| {
        let (kind, name) = ("ValidatingWebhookConfiguration", "kruise-validating-webhook-configuration");
        let names = |o: &Value| {
            let entries = o.array("/webhooks").iter().map(|entry| entry.text("/name").to_owned());
            entries.collect::<BTreeSet<_>>()
        };
        let before = names(&t.get(kind, name).await?);
        ensure!(!before.is_empty(), "none is registered");
        t.patch(kind, name, json!({ "webhooks": null })).await?;
        t.wait_for(kind, name, "to have its entries again", PATIENCE, |o| names(o) == before).await?;
        Ok(())
    })
    .await
}
