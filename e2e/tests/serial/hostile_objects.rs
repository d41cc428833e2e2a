//! Objects that no parser reads, and objects that would fill the memory of whoever reads them: who may write one of them harms
//! nobody else, and gets around no rule.

use anyhow::{Result, bail, ensure};
use e2e::kit::{Build, Look, PATIENCE, Test, app, in_namespace, poll, workload};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::core::Request;
use serde_json::{Value, json};

use crate::LONG;
use crate::leaders::{another_leads, leading, restarts};

/// Nested deeper than serde_json reads.
fn deep() -> Value {
    (0..200).fold(json!({}), |within, _| json!({ "f:a": within }))
}

fn with_deep_managed_fields(version: &str) -> Value {
    json!({ "metadata": { "managedFields": [{ "manager": "x", "operation": "Update", "apiVersion": version,
        "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": deep() }] } })
}

/// A patch: its code, and its answer as text, which may be as deep.
async fn patch(t: &Test, plural: &str, name: &str, patch: Value) -> Result<(u16, String)> {
    let path = match plural {
        "clonesets" => format!("/apis/apps.kruise.io/v1alpha1/namespaces/{}/{plural}", t.namespace),
        _ => format!("/api/v1/namespaces/{}/{plural}", t.namespace),
    };
    let request = Request::new(path).patch(name, &PatchParams::default(), &Patch::Merge(patch))?;
    match t.client.request_text(request).await {
        Ok(answer) => Ok((200, answer)),
        Err(kube::Error::Api(status)) => Ok((status.code, status.message)),
        Err(error) => Err(error.into()),
    }
}

async fn deep_fields_are_taken(t: &Test, plural: &str, name: &str) -> Result<()> {
    let version = if plural == "clonesets" { "apps.kruise.io/v1alpha1" } else { "v1" };
    let (code, answer) = patch(t, plural, name, with_deep_managed_fields(version)).await?;
    let is_stored = answer.contains(&"{\"f:a\":".repeat(199));
    ensure!(code == 200 && is_stored, "the API server does not store this any more: {code} {answer}");
    Ok(())
}

fn clone_set(name: &str, replicas: i64) -> Value {
    workload("CloneSet", name, replicas, vec![app("main")]).with("/apiVersion", "apps.kruise.io/v1alpha1")
}

async fn is_served(t: &Test, name: &str) -> Result<()> {
    t.create(clone_set(name, 1)).await?;
    t.wait_for("CloneSet", name, "to be ready", PATIENCE, |o| o.int("/status/readyReplicas") == 1).await.map(drop)
}

#[tokio::test]
async fn an_object_that_is_too_deep_or_too_large_harms_nobody_else() -> Result<()> {
    in_namespace("hostile-objects", async |t| {
        let before = restarts(t).await?;
        t.create(clone_set("deep", 0)).await?;
        t.wait_for("CloneSet", "deep", "to be looked at", PATIENCE, |o| o.int("/status/observedGeneration") == 1).await?;
        t.create(json!({ "kind": "PersistentVolumeClaim", "metadata": { "name": "deep" }, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "none", "resources": { "requests": { "storage": "1Mi" } } } }))
            .await?;
        deep_fields_are_taken(t, "clonesets", "deep").await?;
        deep_fields_are_taken(t, "persistentvolumeclaims", "deep").await?;

        // What would not be read is refused, also where the API server would take it.
        let large: Vec<Value> = (0..20_000).map(|_| json!({ "a": 1 })).collect();
        for (field, why) in [(deep(), "it is nested deeper than 100 levels"), (json!(large), "it has too many values")] {
            let spec = json!({ "spec": { "template": { "spec": { "zz": field } } } });
            let (code, message) = patch(t, "clonesets", "deep", spec).await?;
            ensure!(code == 400 && message.contains(why), "{code} {message}");
        }
        is_served(t, "beside").await?;

        // Who leads next lists both.
        let (identity, pod) = leading(t).await?;
        t.api_in(e2e::paths::SYSTEM, "Pod").delete(pod.text("/metadata/name"), &DeleteParams::default()).await?;
        another_leads(t, &identity).await?;
        is_served(t, "afterwards").await?;
        // The Pod that led is gone; no container of the others has started again.
        for (name, after) in restarts(t).await? {
            ensure!(before.get(&name).is_none_or(|before| *before == after), "{name} has restarted");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_budget_is_kept_whatever_a_pod_is_padded_with() -> Result<()> {
    in_namespace("hostile-padding", async |t| {
        is_served(t, "web").await?;
        t.create(json!({ "kind": "PodUnavailableBudget", "metadata": { "name": "web" }, "spec": {
            "selector": { "matchLabels": { "app": "web" } }, "maxUnavailable": 0 } }))
            .await?;
        t.wait_for("PodUnavailableBudget", "web", "to be counted", LONG, |b| b.int("/status/currentAvailable") == 1)
            .await?;
        let pods = t.list("Pod", "app=web").await?;
        let name = pods.first().map(|p| p.text("/metadata/name").to_owned()).unwrap_or_default();
        let delete = async || match t.api("Pod").delete(&name, &DeleteParams::default()).await {
            Ok(_) => bail!("the Pod was deleted"),
            Err(kube::Error::Api(status)) => Ok((status.code, status.message)),
            Err(error) => Err(error.into()),
        };
        deep_fields_are_taken(t, "pods", &name).await?;
        poll("the refusal", PATIENCE, async || {
            let (code, message) = delete().await?;
            ensure!(code == 403 || code == 429, "{code} {message}");
            Ok(())
        })
        .await?;
        // The rest of the Pod is as it was; without the budget it goes.
        t.remove("PodUnavailableBudget", "web").await
    })
    .await
}
