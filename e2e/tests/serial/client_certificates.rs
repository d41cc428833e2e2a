//! The webhook insists on the API server's client certificate, as docs/how-to/network.md sets it up. The API server of
//! this cluster shows one to our webhook in every test.

use std::fs;

use anyhow::{Context, Result, ensure};
use e2e::cmd::cmd;
use e2e::config::WEBHOOK_CALLER;
use e2e::kit::{Look, PATIENCE, Test, crr, in_namespace, poll, restoring};
use e2e::paths::SYSTEM;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::WEBHOOK;

const CONFIG_MAP: &str = "kruise-webhook-client-ca";

async fn patch_deployment(t: &Test, operations: Value) -> Result<()> {
    let patch = Patch::Json::<()>(serde_json::from_value(operations)?);
    t.api_in(SYSTEM, "Deployment").patch(WEBHOOK, &PatchParams::default(), &patch).await?;
    poll("every replica of the webhook to be replaced", PATIENCE * 2, async || {
        let found = serde_json::to_value(t.api_in(SYSTEM, "Deployment").get(WEBHOOK).await?)?;
        let of = |field: &str| found.int(&format!("/status/{field}"));
        let wanted = found.int("/spec/replicas");
        ensure!(of("observedGeneration") == found.int("/metadata/generation"), "not seen yet");
        ensure!([of("updatedReplicas"), of("availableReplicas"), of("replicas")] == [wanted; 3], "{}", found["status"]);
        Ok(())
    })
    .await
}

/// What a client with this certificate of the cluster's CA, or with none, gets from a replica.
async fn dialled(t: &Test, user: Option<&str>) -> Result<String> {
    let replicas = t.node().replicas(WEBHOOK).await?;
    let address = replicas.first().context("a replica of the webhook")?.text("/status/podIP").to_owned();
    let mut call = cmd("curl", ["-sk", "--max-time", "10"]);
    if let Some(user) = user {
        let file = |end: &str| t.paths.state.join(format!("pki/{user}.{end}"));
        call.arg("--cert").arg(file("crt")).arg("--key").arg(file("key"));
    }
    call.arg(format!("https://{address}:9876/healthz"));
    Ok(t.run(call).await?.stdout)
}

async fn insists(t: &Test) -> Result<()> {
    assert_eq!(dialled(t, Some("webhooks")).await?, "ok");
    for other in [None, Some("admin"), Some("scheduler")] {
        assert_eq!(dialled(t, other).await?, "", "{other:?}");
    }
    // The API server is let in. It may take a moment until it calls no replica of before any more.
    poll("the webhook to be asked", PATIENCE, async || {
        let (code, message) = t.refused(crr("asked", "nobody", &["main"])).await?;
        ensure!(message.contains("is no Pod in namespace"), "{code} {message}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn only_the_api_server_is_let_in_by_ca_and_name() -> Result<()> {
    in_namespace("client-certs", async |t| {
        let before = serde_json::to_value(t.api_in(SYSTEM, "Deployment").get(WEBHOOK).await?)?;
        assert_eq!(dialled(t, None).await?, "ok", "without the flags anybody is");
        let ca = fs::read_to_string(t.paths.state.join("pki/ca.crt"))?;
        let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": CONFIG_MAP }, "data": { "ca.crt": ca } });
        let maps = t.api_in(SYSTEM, "ConfigMap");
        maps.patch(CONFIG_MAP, &PatchParams::apply("e2e").force(), &Patch::Apply(map)).await?;
        let container = "/spec/template/spec/containers/0";
        let flag = |text: String| json!({ "op": "add", "path": format!("{container}/args/-"), "value": text });
        let set = json!([
            { "op": "add", "path": "/spec/template/spec/volumes", "value": [{ "name": "client-ca", "configMap": { "name": CONFIG_MAP } }] },
            { "op": "add", "path": format!("{container}/volumeMounts"),
                "value": [{ "name": "client-ca", "mountPath": "/client-ca", "readOnly": true }] },
            flag("--webhook-client-ca=/client-ca/ca.crt".into()),
            flag(format!("--webhook-client-name={WEBHOOK_CALLER}")),
        ]);
        let body = async {
            patch_deployment(t, set).await?;
            insists(t).await
        };
        let back = json!([{ "op": "replace", "path": "/spec/template", "value": before["spec"]["template"] }]);
        let undo = async {
            let mended = patch_deployment(t, back).await;
            maps.delete(CONFIG_MAP, &Default::default()).await?;
            mended
        };
        restoring(body, undo).await
    })
    .await
}
