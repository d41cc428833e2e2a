//! Admission of Advanced StatefulSets on a real API server: what is stored of what a user applies, what is refused, and what
//! the schema keeps by itself.
//!
//! Nothing here runs a Pod: the replicas are 0.

use anyhow::{Context, Result, ensure};
use e2e::kit::{Build, Look, Test, in_namespace, workload};
use serde_json::{Value, json};

const BETA: &str = "apps.kruise.io/v1beta1";
/// What OpenKruise stored of one set, with what a user had applied in its annotation.
const RECORDED: &str = include_str!("../../../src/api/apps/testdata/stateful_sets.json");

fn manifest(name: &str) -> Value {
    let main = json!({ "name": "main", "image": e2e::images::PAUSE });
    workload("StatefulSet", name, 0, vec![main]).with("/apiVersion", BETA).with("/spec/serviceName", name)
}

async fn get(t: &Test, version: &str, name: &str) -> Result<Value> {
    let kind = format!("statefulsets.{version}.apps.kruise.io");
    let text = t.kubectl(&["-n", &t.namespace, "get", &kind, name, "-o", "json"]).await?;
    Ok(serde_json::from_str(&text)?)
}

async fn patch(t: &Test, version: &str, name: &str, patch: &Value) -> Result<String> {
    let kind = format!("statefulsets.{version}.apps.kruise.io");
    t.kubectl(&["-n", &t.namespace, "patch", &kind, name, "--type", "merge", "-p", &patch.to_string()]).await
}

#[tokio::test]
async fn what_is_stored_of_a_stateful_set_equals_what_open_kruise_stored() -> Result<()> {
    in_namespace("asts-defaults", async |t| {
        let recorded: Vec<Value> = serde_json::from_str(RECORDED)?;
        let recorded =
            recorded.into_iter().find(|object| object.text("/apiVersion") == BETA).context("it was recorded")?;
        let annotations = &recorded["metadata"]["annotations"];
        let applied = annotations["kubectl.kubernetes.io/last-applied-configuration"].as_str().context("as applied")?;
        let mut object: Value = serde_json::from_str(applied)?;
        object["metadata"] = json!({ "name": "asts" });
        let made = t.create(object.with("/spec/replicas", 0)).await?;
        let mut want = recorded["spec"].clone().with("/replicas", 0);
        if made.pointer("/spec/volumeClaimUpdateStrategy").is_none() {
            // Written with its gate alone.
            want.as_object_mut().context("a spec")?.remove("volumeClaimUpdateStrategy");
        }
        assert_eq!(made["spec"], want);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_stateful_set_is_refused_with_all_that_is_wrong() -> Result<()> {
    in_namespace("asts-refused", async |t| {
        let object = manifest("db")
            .with("/spec/podManagementPolicy", "Serial")
            .with("/spec/reserveOrdinals", json!(["5"]))
            .with(
                "/spec/updateStrategy",
                json!({ "rollingUpdate": { "podUpdatePolicy": "InPlaceOnly", "maxUnavailable": 0 } }),
            )
            .with("/spec/template/spec/containers/0/ports", json!([{ "containerPort": 99_999 }]));
        let (code, message) = t.refused(object).await?;
        ensure!(code == 422, "code {code}: {message}");
        for word in
            ["podManagementPolicy", "reserveOrdinals[0]", "InPlaceUpdateReady", "maxUnavailable", "containerPort"]
        {
            ensure!(message.contains(word), "{word:?} is not named in: {message}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_schema_keeps_what_a_stateful_set_cannot_change() -> Result<()> {
    in_namespace("asts-fixed", async |t| {
        t.create(manifest("db").with("/spec/podManagementPolicy", "Parallel")).await?;
        for version in ["v1beta1", "v1alpha1"] {
            for (why, change) in [
                ("spec.serviceName cannot be changed", json!({ "spec": { "serviceName": "other" } })),
                ("spec.serviceName cannot be changed", json!({ "spec": { "serviceName": null } })),
                (
                    "spec.podManagementPolicy cannot be changed",
                    json!({ "spec": { "podManagementPolicy": "OrderedReady" } }),
                ),
                (
                    "spec.selector is immutable",
                    json!({ "spec": { "selector": { "matchLabels": { "app": "other" } },
                        "template": { "metadata": { "labels": { "app": "other" } } } } }),
                ),
            ] {
                let error = patch(t, version, "db", &change).await.err().context("it was changed")?.to_string();
                ensure!(error.contains(why), "{version} {why}: {error}");
            }
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_write_through_v1alpha1_loses_nothing() -> Result<()> {
    in_namespace("asts-alpha", async |t| {
        let hook = json!({ "preDelete": { "finalizersHandler": ["example.com/hold"] } });
        let object = manifest("db")
            .with("/spec/podManagementPolicy", "Parallel")
            .with("/spec/reserveOrdinals", json!([1, "3-7"]))
            .with("/spec/scaleStrategy", json!({ "maxUnavailable": "20%" }))
            .with("/spec/lifecycle", hook)
            .with(
                "/spec/persistentVolumeClaimRetentionPolicy",
                json!({ "whenDeleted": "Delete", "whenScaled": "Retain" }),
            );
        let made = t.create(object).await?;
        // As OpenKruise's old clients do: the whole object is read, changed and written.
        patch(t, "v1alpha1", "db", &json!({ "spec": { "revisionHistoryLimit": 3 } })).await?;
        let stored = get(t, "v1beta1", "db").await?;
        assert_eq!(stored["spec"], made["spec"].clone().with("/revisionHistoryLimit", 3));
        assert_eq!(get(t, "v1alpha1", "db").await?["spec"], stored["spec"]);
        Ok(())
    })
    .await
}
