//! Labels that protect against deletion, with the gate off and on, and with every process of kruise-rs dead.
//!
//! One test: each change of the gate replaces the webhook, which takes a while.

use anyhow::{Context, Result, ensure};
use e2e::cmd::kubectl;
use e2e::kit::{Build, GATES, Look, PATIENCE, Test, app, in_namespace, pod, poll, restoring, workload};
use e2e::paths::{NODE, SYSTEM};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, EvictParams, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

use crate::gone::scaled;
use crate::methods::{daemons, patch_in_system};
use crate::{MANAGER, WEBHOOK};

const LABEL: &str = "policy.kruise.io/delete-protection";
const POLICY: &str = "kruise-deletion-protection";
const LABEL_GUARD: &str = "kruise-deletion-protection-labels";
const WIDGETS: &str = "widgets.e2e.kruise.rs";
const COUNTER: &str = "e2e-counts-widgets";

fn definition(group: &str, kind: &str, versions: &[&str]) -> Value {
    let lower = kind.to_lowercase();
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let versions: Vec<Value> = versions
        .iter()
        .enumerate()
        .map(|(i, name)| json!({ "name": name, "served": true, "storage": i == 0, "schema": { "openAPIV3Schema": schema } }))
        .collect();
    json!({ "kind": "CustomResourceDefinition", "metadata": { "name": format!("{lower}s.{group}") }, "spec": {
        "group": group, "scope": "Namespaced", "versions": versions, "names": {
            "kind": kind, "listKind": format!("{kind}List"), "plural": format!("{lower}s"), "singular": lower } } })
}

/// Of one kind, in one version.
struct Kind {
    api: Api<DynamicObject>,
    name: &'static str,
    is_workload: bool,
}

impl Kind {
    fn of(t: &Test, api_version: &str, kind: &str, name: &'static str, is_workload: bool) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api = match kind {
            "CustomResourceDefinition" | "Namespace" => Api::all_with(t.client.clone(), &resource),
            _ => Api::namespaced_with(t.client.clone(), &t.namespace, &resource),
        };
        Self { api, name, is_workload }
    }

    async fn merge(&self, patch: Value) -> Result<()> {
        self.api.patch(self.name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// A DaemonSet has as many Pods as there are nodes for it. It has none here, and its manager does not run.
    async fn has_nodes(&self, number: i64) -> Result<()> {
        if self.name == "agent" {
            let status = Patch::Merge(json!({ "status": { "desiredNumberScheduled": number } }));
            self.api.patch_status(self.name, &PatchParams::default(), &status).await?;
        }
        Ok(())
    }

    async fn label(&self, value: impl Into<Value>) -> Result<()> {
        self.merge(json!({ "metadata": { "labels": { LABEL: value.into() } } })).await
    }

    /// What a deletion is refused with: really, and in a dry run. None if the dry run passes; then nothing is deleted.
    async fn refusal(&self) -> Result<Option<(u16, String)>> {
        let dry = refusal(self.api.delete(self.name, &DeleteParams::default().dry_run()).await)?;
        if dry.is_some() {
            let real = refusal(self.api.delete(self.name, &DeleteParams::default()).await)?;
            ensure!(real.as_ref().map(|r| r.0) == dry.as_ref().map(|r| r.0), "a dry run lies: {dry:?} {real:?}");
        }
        Ok(dry)
    }

    async fn passes(&self) -> Result<()> {
        let refused = self.refusal().await?;
        ensure!(refused.is_none(), "{}: {refused:?}", self.name);
        Ok(())
    }

    async fn is_refused(&self, text: &str) -> Result<()> {
        let (code, message) = self.refusal().await?.with_context(|| format!("{}: deletion is accepted", self.name))?;
        ensure!(code == 403 && message.contains(text), "{}: {code} {message}", self.name);
        Ok(())
    }
}

fn refusal<T>(result: kube::Result<T>) -> Result<Option<(u16, String)>> {
    match result {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(Some((status.code, status.message.clone()))),
        Err(error) => Err(error.into()),
    }
}

fn always() -> String {
    format!("forbidden by ResourcesProtectionDeletion for {LABEL}=Always")
}
fn cascading(what: &str) -> String {
    format!("forbidden by ResourcesProtectionDeletion for {LABEL}=Cascading and {what}")
}

/// Sets gates and failure policies of the webhook, and waits until no webhook of before is left.
async fn set(t: &Test, gates: &str, policies: Value) -> Result<()> {
    patch_in_system(t, "ConfigMap", GATES, json!({ "data": { "feature-gates": gates, "failure-policies": policies } }))
        .await?;
    t.kubectl(&["-n", SYSTEM, "rollout", "restart", "deployment", WEBHOOK]).await?;
    t.kubectl(&["-n", SYSTEM, "rollout", "status", "--timeout=90s", "deployment", WEBHOOK]).await?;
    t.node().gone("control-plane=webhook", |pod| pod.has("/metadata/deletionTimestamp")).await?;
    t.webhook_answers().await
}

/// One of each kind, none of whose Pods is ever scheduled.
async fn one_of_each(t: &Test) -> Result<Vec<Kind>> {
    t.define(definition("e2e.kruise.rs", "Widget", &["v1"])).await?;
    let nowhere = |kind: &str, name: &str| {
        workload(kind, name, 1, vec![app("main")])
            .with("/spec/template/spec/nodeSelector", json!({ "e2e/nowhere": "true" }))
    };
    for kind in ["Deployment", "StatefulSet", "ReplicaSet", "CloneSet"] {
        t.create(nowhere(kind, &kind.to_lowercase())).await?;
    }
    for (kind, name) in [("StatefulSet", "advanced"), ("DaemonSet", "agent")] {
        t.create(nowhere(kind, name).with("/apiVersion", "apps.kruise.io/v1beta1")).await?;
    }
    // Its number is that of its subsets, until somebody says another one.
    let subsets = json!([{ "name": "a", "replicas": 2 }, { "name": "b", "replicas": 1 }]);
    let template = nowhere("Deployment", "united");
    t.create(json!({ "kind": "UnitedDeployment", "metadata": { "name": "united" }, "spec": {
        "selector": { "matchLabels": { "app": "united" } }, "topology": { "subsets": subsets },
        "template": { "deploymentTemplate": { "metadata": { "labels": { "app": "united" } },
            "spec": { "template": template["spec"]["template"] } } } } }))
        .await?;
    t.create(json!({ "kind": "Service", "metadata": { "name": "web" }, "spec": { "ports": [{ "port": 80 }] } }))
        .await?;
    let backend = json!({ "service": { "name": "web", "port": { "number": 80 } } });
    t.create(json!({ "kind": "Ingress", "metadata": { "name": "web" }, "spec": { "defaultBackend": backend } }))
        .await?;
    Ok(vec![
        Kind::of(t, "apps/v1", "Deployment", "deployment", true),
        Kind::of(t, "apps/v1", "StatefulSet", "statefulset", true),
        Kind::of(t, "apps/v1", "ReplicaSet", "replicaset", true),
        Kind::of(t, "apps.kruise.io/v1alpha1", "CloneSet", "cloneset", true),
        Kind::of(t, "apps.kruise.io/v1alpha1", "StatefulSet", "advanced", true),
        Kind::of(t, "apps.kruise.io/v1beta1", "StatefulSet", "advanced", true),
        Kind::of(t, "apps.kruise.io/v1alpha1", "DaemonSet", "agent", true),
        Kind::of(t, "apps.kruise.io/v1beta1", "DaemonSet", "agent", true),
        Kind::of(t, "apps.kruise.io/v1alpha1", "UnitedDeployment", "united", true),
        Kind::of(t, "v1", "Service", "web", false),
        Kind::of(t, "networking.k8s.io/v1", "Ingress", "web", false),
        Kind::of(t, "apiextensions.k8s.io/v1", "CustomResourceDefinition", WIDGETS, false),
    ])
}

/// Makes another namespace, with a name that begins with that of the test.
async fn namespace(t: &Test, name: &str, level: Option<&str>) -> Result<Test> {
    let other = Test { namespace: format!("{}-{name}", t.namespace), ..t.clone() };
    let labels = level.map_or(json!({}), |level| json!({ LABEL: level }));
    t.create(json!({ "kind": "Namespace", "metadata": { "name": other.namespace, "labels": labels } })).await?;
    other.wait("ServiceAccount", "default", "to exist", PATIENCE, |o| o.is_some()).await?;
    Ok(other)
}

/// Deletes a namespace in a dry run.
async fn try_namespace(t: &Test) -> Result<Option<(u16, String)>> {
    refusal(t.api("Namespace").delete(&t.namespace, &DeleteParams::default().dry_run()).await)
}

async fn policy_alone(t: &Test, things: &[Kind]) -> Result<()> {
    let text = t.kubectl(&["delete", "service", "web", "--dry-run=server"]).await.err().context("kubectl")?.to_string();
    ensure!(text.contains(&always()), "{text}");
    let these = ListParams::default().labels(&format!("{LABEL}=Always"));
    let collection = t.api("Service").delete_collection(&DeleteParams::default(), &these).await;
    let (code, message) = refusal(collection)?.context("deletecollection is accepted")?;
    ensure!(code == 403 && message.contains(&always()), "{code} {message}");
    for thing in things {
        // Some of them are here in two versions.
        thing.label("Always").await?;
        thing.is_refused(&always()).await?;
        thing.label("Cascading").await?;
        if !thing.is_workload {
            continue;
        }
        let count = if thing.name == "united" { 3 } else { 1 };
        if thing.name == "advanced" {
            thing.merge(json!({ "spec": { "replicas": 1 } })).await?;
        }
        thing.has_nodes(1).await?;
        thing.is_refused(&cascading(&format!("replicas {count}>0"))).await?;
        thing.has_nodes(0).await?;
        if thing.name == "united" {
            thing.merge(json!({ "spec": { "topology": { "subsets": [{ "name": "a" }] } } })).await?;
        }
        thing.merge(json!({ "spec": { "replicas": 0 } })).await?;
        thing.passes().await?;
    }
    // Cascading says nothing of Services and Ingresses.
    for thing in things.iter().filter(|thing| thing.name == "web") {
        thing.passes().await?;
        let refused = thing.label("always").await.err().context("a label that is none")?.to_string();
        ensure!(refused.contains("\"always\" is not allowed; want Always or Cascading"), "{refused}");
        thing.label("Always").await?;
        thing.label("").await.context("an empty label is as none")?;
        thing.passes().await?;
        thing.label("Always").await?;
    }
    // Going already: the label may still come, and the deletion be asked for again.
    let held = json!({ "kind": "Service", "metadata": { "name": "going", "finalizers": ["example.com/test"] },
        "spec": { "ports": [{ "port": 80 }] } });
    t.create(held).await?;
    t.remove("Service", "going").await?;
    let going = Kind::of(t, "v1", "Service", "going", false);
    going.label("Always").await?;
    t.remove("Service", "going").await?;
    going.merge(json!({ "metadata": { "finalizers": null } })).await?;
    t.gone("Service", "going").await
}

/// With the second binding of the documentation, whoever may update an object may set its label and not take it off.
async fn labels_are_guarded(t: &Test) -> Result<()> {
    let rules = |verbs: &[&str]| json!([{ "apiGroups": [""], "resources": ["services"], "verbs": verbs }]);
    let editor = ["get", "update", "patch"];
    t.create(json!({ "kind": "Role", "metadata": { "name": "editor" }, "rules": rules(&editor) })).await?;
    t.create(json!({ "kind": "RoleBinding", "metadata": { "name": "editor" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "editor" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane" }] }))
        .await?;
    for verb in editor {
        t.may("jane", verb, "services").await?;
    }
    let label = async |value: &str| t.kubectl(&["label", "service", "web", "--overwrite", value, "--as=jane"]).await;
    let (off, cascading) = (format!("{LABEL}-"), format!("{LABEL}=Cascading"));
    let always = format!("{LABEL}=Always");
    label(&off).await.context("without the binding")?;
    label(&always).await?;
    t.create(json!({ "kind": "ValidatingAdmissionPolicyBinding", "metadata": { "name": LABEL_GUARD },
        "spec": { "policyName": LABEL_GUARD, "validationActions": ["Deny", "Audit"] } }))
        .await?;
    let result = async {
        poll("the labels to be guarded", PATIENCE, async || {
            label(&always).await?;
            let said = label(&off).await.err().context("taken off")?.to_string();
            let want =
                format!("{always} may only be removed or loosened by whoever has the verb unprotect on services");
            ensure!(said.contains(&want), "{said}");
            Ok(())
        })
        .await?;
        let said = label(&cascading).await.err().context("loosened")?.to_string();
        ensure!(said.contains("may only be removed or loosened"), "{said}");
        t.kubectl(&["annotate", "service", "web", "touched=true", "--as=jane"]).await.context("another change")?;
        t.patch("Role", "editor", json!({ "rules": rules(&[&editor[..], &["unprotect"]].concat()) })).await?;
        poll("the right to be known", PATIENCE, async || label(&cascading).await.map(drop)).await?;
        label(&off).await?;
        label(&always).await.map(drop)
    }
    .await;
    t.remove("ValidatingAdmissionPolicyBinding", LABEL_GUARD).await?;
    result
}

/// A namespace goes with everything in it, if it has no label of its own.
async fn children_go_with_their_namespace(t: &Test) -> Result<()> {
    let other = namespace(t, "goes", None).await?;
    let labels = |level: &str| json!({ LABEL: level });
    let service = json!({ "kind": "Service", "metadata": { "name": "kept", "labels": labels("Always") },
        "spec": { "ports": [{ "port": 80 }] } });
    other.create(service).await?;
    let deployment = workload("Deployment", "kept", 1, vec![app("main")])
        .with("/metadata/labels", labels("Cascading"))
        .with("/spec/template/spec/nodeSelector", json!({ "e2e/nowhere": "true" }));
    other.create(deployment).await?;
    t.remove("Namespace", &other.namespace).await?;
    t.gone("Namespace", &other.namespace).await
}

/// What has no label and no budget feels nothing of a webhook that is dead.
async fn pods_come_and_go(t: &Test) -> Result<()> {
    for name in ["deleted", "evicted", "drained"] {
        t.start(pod(name, vec![app("main")])).await?;
    }
    t.patch("Pod", "deleted", json!({ "metadata": { "labels": { "team": "a" } } })).await?;
    t.remove("Pod", "deleted").await?;
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(t.client.clone(), &t.namespace);
    pods.evict("evicted", &EvictParams::default()).await?;
    let drain = ["drain", NODE, "--pod-selector", "app=drained", "--force", "--timeout=60s"];
    let drained = t.run(kubectl(&t.paths, drain)).await;
    t.run(kubectl(&t.paths, ["uncordon", NODE])).await?;
    let drained = drained?;
    ensure!(drained.ok, "{}{}", drained.stdout, drained.stderr);
    for name in ["deleted", "evicted", "drained"] {
        t.gone("Pod", name).await?;
    }
    Ok(())
}

/// The namespaces for which the API server asks about budgets.
async fn listed(t: &Test, is_there: impl Fn(&[Value]) -> bool) -> Result<()> {
    for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
        let (name, entry) = match kind {
            "MutatingWebhookConfiguration" => ("kruise-mutating-webhook-configuration", "mpod-budget.kb.io"),
            _ => ("kruise-validating-webhook-configuration", "vpod-delete.kb.io"),
        };
        let fits = |config: &Value| {
            let entry = config.array("/webhooks").iter().find(|e| e.text("/name") == entry);
            entry.is_some_and(|entry| is_there(entry.array("/namespaceSelector/matchExpressions/0/values")))
        };
        t.wait_for(kind, name, "to list the right namespaces", PATIENCE, fits).await?;
    }
    Ok(())
}

/// In a namespace with a budget the settings for Pods hold.
async fn budgeted_pods_wait(budgeted: &Test) -> Result<()> {
    let pod = budgeted.list("Pod", "app=web").await?.remove(0);
    let pod = pod.text("/metadata/name");
    let (_, message) = refusal(budgeted.api("Pod").delete(pod, &DeleteParams::default()).await)?.context("Fail")?;
    ensure!(message.contains("vpod-delete.kb.io"), "{message}");
    // Updates pass in any case.
    budgeted.patch("Pod", pod, json!({ "metadata": { "labels": { "team": "a" } } })).await.map(drop)
}

/// Without a webhook an eviction passes the budget, and the manager tells.
async fn a_breach_is_reported(budgeted: &Test) -> Result<()> {
    const BUDGET: &str = "PodUnavailableBudget";
    budgeted.patch(BUDGET, "web", json!({ "spec": { "maxUnavailable": 0 } })).await?;
    let seen = |o: &Value| o.int("/status/desiredAvailable") == 2 && o.int("/status/currentAvailable") == 2;
    budgeted.wait_for(BUDGET, "web", "to be seen by the manager", PATIENCE, seen).await?;
    let pod = budgeted.list("Pod", "app=web").await?.remove(0);
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(budgeted.client.clone(), &budgeted.namespace);
    // What replaces it has nowhere to run.
    let told = async {
        budgeted.kubectl(&["cordon", NODE]).await?;
        pods.evict(pod.text("/metadata/name"), &EvictParams::default()).await?;
        let is_breach = |event: &String| event.starts_with("BudgetBreached");
        budgeted.wait_events(BUDGET, "web", |events| events.iter().any(is_breach)).await
    };
    restoring(told, async { budgeted.kubectl(&["uncordon", NODE]).await.map(drop) }).await.map(drop)
}

/// With the webhook: what is in a namespace, and what there is of a kind.
async fn counted(t: &Test, kept: &Test, widgets: &Kind) -> Result<()> {
    let refused = async || {
        let (code, message) = try_namespace(kept).await?.context("the deletion is accepted")?;
        ensure!(code == 403, "{code} {message}");
        anyhow::Ok(message)
    };
    let ns = &kept.namespace;
    kept.start(pod("web", vec![app("main")])).await?;
    let message = refused().await?;
    ensure!(message.contains(&cascading(&format!("active pods 1>0: {ns}/web"))), "{message}");
    kept.remove("Pod", "web").await?;
    kept.gone("Pod", "web").await?;
    let (volume, claim) = (format!("{ns}-data"), "data");
    let size = json!({ "storage": "1Mi" });
    kept.create(json!({ "kind": "PersistentVolume", "metadata": { "name": volume }, "spec": { "capacity": size,
        "accessModes": ["ReadWriteOnce"], "hostPath": { "path": "/tmp" }, "storageClassName": "none",
        "claimRef": { "namespace": ns, "name": claim } } }))
        .await?;
    kept.create(json!({ "kind": "PersistentVolumeClaim", "metadata": { "name": claim }, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": size }, "storageClassName": "none",
        "volumeName": volume } }))
        .await?;
    let bound = |o: &Value| o.text("/status/phase") == "Bound";
    let result = async {
        kept.wait_for("PersistentVolumeClaim", claim, "to be bound", PATIENCE, bound).await?;
        let message = refused().await?;
        ensure!(message.contains(&cascading(&format!("\"Bound\" status pvc 1>0: {ns}/data"))), "{message}");
        anyhow::Ok(())
    }
    .await;
    kept.remove("PersistentVolumeClaim", claim).await?;
    kept.gone("PersistentVolumeClaim", claim).await?;
    kept.remove("PersistentVolume", &volume).await?;
    result?;
    ensure!(try_namespace(kept).await?.is_none(), "an empty namespace goes");

    // Counting custom resources is a right that an administrator gives.
    t.create(json!({ "kind": "Widget", "metadata": { "name": "one" } })).await?;
    widgets
        .is_refused(
            "forbidden by ResourcesProtectionDeletion for failed to list CRs of e2e.kruise.rs/v1, Kind=WidgetList: ",
        )
        .await?;
    widgets.is_refused("kruise.rs/aggregate-to-webhook=true and the right to list widgets of e2e.kruise.rs").await?;
    t.create(json!({ "kind": "ClusterRole",
        "metadata": { "name": COUNTER, "labels": { "kruise.rs/aggregate-to-webhook": "true" } },
        "rules": [{ "apiGroups": ["e2e.kruise.rs"], "resources": ["widgets"], "verbs": ["list"] }] }))
        .await?;
    let result = async {
        let found = cascading(&format!("active CRs 1>0: {}/one", t.namespace));
        poll("the widget to be counted", PATIENCE, async || widgets.is_refused(&found).await).await?;
        t.remove("Widget", "one").await?;
        widgets.passes().await
    }
    .await;
    t.remove("ClusterRole", COUNTER).await?;
    result
}

#[tokio::test]
async fn labels_protect_while_the_gate_is_on_whatever_else_is_dead() -> Result<()> {
    in_namespace("protection", async |t| {
        let config = serde_json::to_value(t.api_in(SYSTEM, "ConfigMap").get(GATES).await?)?;
        let before = config.text("/data/feature-gates").to_owned();
        let things = one_of_each(t).await?;
        let widgets = things.last().context("the last is the definition")?;
        let kept = namespace(t, "kept", Some("Always")).await?;
        let result = protected(t, &things, &kept, widgets).await;
        let off = set(t, &before, Value::Null).await;
        let left = async {
            t.gone("ValidatingAdmissionPolicyBinding", POLICY).await?;
            for thing in &things {
                thing.label("Always").await?;
                poll("the gate to be off", PATIENCE, async || thing.passes().await).await?;
            }
            let entries = t.get("ValidatingWebhookConfiguration", "kruise-validating-webhook-configuration").await?;
            let entries = entries.array("/webhooks").iter().map(|entry| entry.text("/name")).collect::<Vec<_>>();
            ensure!(!entries.contains(&"vnamespace.kb.io"), "{entries:?}");
            anyhow::Ok(())
        }
        .await;
        t.remove("CustomResourceDefinition", WIDGETS).await?;
        t.remove("Namespace", &kept.namespace).await?;
        result.and(off).and(left)
    })
    .await
}

async fn protected(t: &Test, things: &[Kind], kept: &Test, widgets: &Kind) -> Result<()> {
    for thing in things {
        thing.label("Always").await?;
        thing.passes().await.context("the gate is off")?;
    }
    ensure!(try_namespace(kept).await?.is_none(), "the gate is off");
    // A value that is none, from before.
    let old = json!({ "kind": "Service", "metadata": { "name": "old", "labels": { LABEL: "true" } },
        "spec": { "ports": [{ "port": 80 }] } });
    t.create(old).await?;

    let policies = "vcustomresourcedefinition.kb.io=Ignore,vpod-delete.kb.io=Fail";
    set(t, "ImagePullJobGate=true,ResourcesDeletionProtection=true", policies.into()).await?;
    let in_force = async || things[0].is_refused(&always()).await;
    poll("the policy to be in force", PATIENCE, in_force).await?;
    let budgeted = namespace(t, "budgeted", None).await?;
    let budget = json!({ "kind": "PodUnavailableBudget", "metadata": { "name": "web" },
        "spec": { "selector": { "matchLabels": { "app": "web" } }, "maxUnavailable": 1 } });
    budgeted.create(budget).await?;
    budgeted.create(workload("Deployment", "web", 2, vec![app("main")])).await?;
    let counted_in = |o: &Value| o.int("/status/currentAvailable") == 2 && o.int("/status/desiredAvailable") == 1;
    budgeted.wait_for("PodUnavailableBudget", "web", "to count its Pods", PATIENCE, counted_in).await?;
    let (with, without) = (json!(budgeted.namespace), json!(t.namespace));
    listed(t, |names| names.contains(&with) && !names.contains(&without)).await?;
    let dead = async {
        t.node().scale(MANAGER, 0).await?;
        t.node().scale(WEBHOOK, 0).await?;
        daemons(t, false).await?;
        let (code, message) = try_namespace(kept).await?.context("Always")?;
        ensure!(code == 403 && message.contains(&always()), "{code} {message}");
        policy_alone(t, things).await?;
        labels_are_guarded(t).await?;
        children_go_with_their_namespace(t).await?;
        pods_come_and_go(t).await?;
        budgeted_pods_wait(&budgeted).await?;
        let old = Kind::of(t, "v1", "Service", "old", false);
        old.merge(json!({ "metadata": { "annotations": { "touched": "true" } } })).await?;
        old.passes().await.context("a value that is none protects nothing")?;
        // What has to be counted, by its setting: by default it stays, and the label is the way out.
        kept.patch("Namespace", &kept.namespace, json!({ "metadata": { "labels": { LABEL: "Cascading" } } })).await?;
        let (_, message) = try_namespace(kept).await?.context("nobody has counted")?;
        ensure!(message.contains("vnamespace.kb.io"), "{message}");
        widgets.passes().await.context("set to Ignore")?;
        kept.patch("Namespace", &kept.namespace, json!({ "metadata": { "labels": { LABEL: null } } })).await?;
        ensure!(try_namespace(kept).await?.is_none(), "without the label it goes");
        kept.patch("Namespace", &kept.namespace, json!({ "metadata": { "labels": { LABEL: "Cascading" } } })).await?;
        Ok(())
    };
    let reported = async {
        restoring(dead, scaled(t, MANAGER)).await?;
        a_breach_is_reported(&budgeted).await
    };
    let back = async {
        let daemons = daemons(t, true).await;
        scaled(t, WEBHOOK).await.and(daemons)
    };
    restoring(reported, back).await?;
    // The last budget of the namespace goes, and so does the namespace, from the list too.
    budgeted.remove("PodUnavailableBudget", "web").await?;
    listed(t, |names| !names.contains(&with)).await?;
    t.remove("Namespace", &budgeted.namespace).await?;
    counted(t, kept, widgets).await?;
    // A binding that somebody takes away comes back.
    t.remove("ValidatingAdmissionPolicyBinding", POLICY).await?;
    t.wait("ValidatingAdmissionPolicyBinding", POLICY, "to be back", PATIENCE, |o| o.is_some()).await.map(drop)
}
