//! Entries that another program has left in our webhook configurations.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::kit::{Look, PATIENCE, Test, in_namespace, poll, restoring};
use e2e::paths::SYSTEM;
use serde_json::{Value, json};

use crate::MANAGER;

const CONFIGURATION: &str = "validatingwebhookconfiguration/kruise-validating-webhook-configuration";
const ENTRY: &str = "e2e-left.kb.io";
/// A kind that is served here, and one of a later release.
const KINDS: [&str; 2] = ["advancedcronjobs", "laterkinds"];

async fn entries(t: &Test) -> Result<Vec<String>> {
    let config: Value = serde_json::from_str(&t.kubectl(&["get", CONFIGURATION, "-o", "json"]).await?)?;
    Ok(config.array("/webhooks").iter().map(|entry| entry.text("/name").to_owned()).collect())
}

/// Adds the entry, which calls our Service for all these kinds.
async fn leave(t: &Test) -> Result<()> {
    let entry = json!({ "name": ENTRY, "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Ignore",
        "clientConfig": { "service": { "namespace": SYSTEM, "name": "kruise-webhook-service", "path": "/left" } },
        "rules": [{ "apiGroups": ["apps.kruise.io"], "apiVersions": ["v1alpha1"], "operations": ["DELETE"],
            "resources": KINDS, "scope": "*" }] });
    let patch = json!([{ "op": "add", "path": "/webhooks/-", "value": entry }]).to_string();
    t.kubectl(&["patch", CONFIGURATION, "--type=json", "-p", &patch]).await.map(drop)
}

/// Has the webhook look at its configurations.
async fn touch(t: &Test, text: &str) -> Result<()> {
    t.kubectl(&["annotate", CONFIGURATION, "--overwrite", &format!("e2e/looked={text}")]).await.map(drop)
}

async fn removed(t: &Test) -> Result<()> {
    // The webhook looks again after a minute.
    poll("the entry to be removed", Duration::from_secs(90), async || {
        let entries = entries(t).await?;
        ensure!(!entries.iter().any(|name| name == ENTRY), "{entries:?}");
        Ok(())
    })
    .await
}

/// It is there, and is so a while after the webhook has looked.
async fn stays(t: &Test, why: &str) -> Result<()> {
    poll("the webhook to say that the entry stays", PATIENCE, async || {
        let log = t.kubectl(&["logs", "-n", SYSTEM, "-l", "control-plane=webhook", "--tail=-1", "--since=60s"]).await?;
        let said = log.lines().any(|line| line.contains(ENTRY) && line.contains(why));
        ensure!(said, "no {why:?} in its log");
        Ok(())
    })
    .await?;
    let entries = entries(t).await?;
    ensure!(entries.iter().any(|name| name == ENTRY), "it was removed: {entries:?}");
    Ok(())
}

#[tokio::test]
async fn an_entry_that_another_program_has_left_goes_unless_it_runs_or_its_kind_is_installed() -> Result<()> {
    in_namespace("left", async |t| {
        let before = entries(t).await?;
        leave(t).await?;
        removed(t).await?;
        assert_eq!(entries(t).await?, before, "and nothing else");

        let name = "laterkinds.apps.kruise.io";
        let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let definition = json!({ "kind": "CustomResourceDefinition", "metadata": { "name": name },
            "spec": { "group": "apps.kruise.io", "scope": "Namespaced",
                "names": { "kind": "LaterKind", "plural": "laterkinds", "singular": "laterkind" },
                "versions": [{ "name": "v1alpha1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }] } });
        let with_kind = async {
            t.define(definition).await?;
            poll("LaterKinds to be served", PATIENCE, async || {
                let served = t.kubectl(&["get", "--raw", "/apis/apps.kruise.io/v1alpha1"]).await?;
                ensure!(served.contains("laterkinds"), "{served}");
                Ok(())
            })
            .await?;
            leave(t).await?;
            stays(t, "laterkinds.apps.kruise.io").await?;
            let report = t.plugin(&["doctor"]).await?.stdout;
            ensure!(report.contains(&format!("{ENTRY} calls the webhook, which does not know it")), "{report}");
            ensure!(report.contains("this release does not serve"), "{report}");
            Ok(())
        };
        restoring(with_kind, async { t.kubectl(&["delete", "crd", name]).await.map(drop) }).await?;
        touch(t, "kind").await?;
        removed(t).await?;

        let led = async {
            let holder = "other_5a1b2c3d-1111-2222-3333-444455556666";
            let patch = json!({ "spec": { "holderIdentity": holder } }).to_string();
            t.kubectl(&["patch", "lease", "kruise-manager", "-n", SYSTEM, "--type=merge", "-p", &patch]).await?;
            leave(t).await?;
            stays(t, holder).await
        };
        t.node().with_replicas(MANAGER, 0, led).await?;
        poll("a manager of ours to lead", PATIENCE * 2, async || {
            let jsonpath = "jsonpath={.spec.holderIdentity}";
            let holder = t.kubectl(&["get", "lease", "kruise-manager", "-n", SYSTEM, "-o", jsonpath]).await?;
            ensure!(holder.starts_with(MANAGER), "{holder}");
            Ok(())
        })
        .await?;
        removed(t).await.context("with a manager of ours as the leader")
    })
    .await
}
