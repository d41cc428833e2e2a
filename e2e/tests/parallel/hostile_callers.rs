//! Whoever can dial the webhook's port, and what closes it: bodies as no API server sends them, and the components with
//! network policies and with certificates of others.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use e2e::cmd::{cmd, kubectl};
use e2e::kit::{Build, Look, PATIENCE, Test, app, in_namespace, pod};
use serde_json::{Value, json};

const BUDGET: &str = "PodUnavailableBudget";

/// Sends a review to a replica of the webhook, past the API server; gives the response.
async fn review(t: &Test, path: &str, resource: [&str; 3], changes: Value) -> Result<Value> {
    let replicas = t.node().replicas("kruise-webhook").await?;
    let address = replicas.first().context("a replica of the webhook")?.text("/status/podIP").to_owned();
    let [group, version, plural] = resource;
    let mut request = json!({ "uid": "u", "resource": { "group": group, "version": version, "resource": plural } });
    for (key, value) in changes.as_object().into_iter().flatten() {
        request[key] = value.clone();
    }
    let body = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request });
    let url = format!("https://{address}:9876{path}");
    let mut call = cmd("curl", ["-sk", "--max-time", "20", "-H", "content-type: application/json", "-d"]);
    call.arg(body.to_string()).arg(url);
    let answer = t.run(call).await?;
    ensure!(answer.ok, "{}", answer.stderr);
    let answer: Value = serde_json::from_str(&answer.stdout).with_context(|| answer.stdout.clone())?;
    Ok(answer["response"].clone())
}

#[tokio::test]
async fn a_namespace_with_a_query_in_it_makes_no_pod_templates() -> Result<()> {
    in_namespace("hostile-paths", async |t| {
        let clone_set = json!({ "metadata": { "name": "web" }, "spec": { "replicas": 1,
            "selector": { "matchLabels": { "app": "web" } },
            "template": { "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "a", "image": "a" }] } } } });
        for namespace in ["podtemplates?x=", "pods/../podtemplates?x="] {
            let namespace = format!("{}/{namespace}", t.namespace);
            let changes = json!({ "operation": "CREATE", "name": "web", "namespace": namespace, "object": clone_set });
            let clone_sets = ["apps.kruise.io", "v1alpha1", "clonesets"];
            let response = review(t, "/mutate-apps-kruise-io-v1alpha1-cloneset", clone_sets, changes).await?;
            assert_eq!((&response["allowed"], &response["status"]["code"]), (&json!(false), &json!(400)), "{response}");
            assert!(response.text("/status/message").starts_with("request.namespace: "), "{response}");
        }
        let found = t.run(kubectl(&t.paths, ["-n", &t.namespace, "get", "podtemplates", "-o", "name"])).await?;
        ensure!(found.ok && found.stdout.trim().is_empty(), "{found:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn nobody_spends_a_budget_with_an_invented_pod() -> Result<()> {
    in_namespace("hostile-budgets", async |t| {
        // Two: of a budget that can never refuse nothing is written down.
        t.create(pod("web", vec![app("main")])).await?;
        t.create(pod("other", vec![app("main")]).with("/metadata/labels", json!({ "app": "web" }))).await?;
        t.ready("other").await?;
        let uid = t.ready("web").await?.text("/metadata/uid").to_owned();
        t.create(json!({ "kind": BUDGET, "metadata": { "name": "b" }, "spec": {
            "selector": { "matchLabels": { "app": "web" } }, "maxUnavailable": 1 } }))
            .await?;
        t.wait_for(BUDGET, "b", "to allow one of two", PATIENCE, |b| {
            b.int("/status/totalReplicas") == 2 && b.int("/status/unavailableAllowed") == 1
        }).await?;
        let ready = json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] });
        let delete = async |name: &str, uid: &str| {
            let old = json!({ "metadata": { "name": name, "namespace": t.namespace, "uid": uid, "labels": { "app": "web" } },
                "spec": { "containers": [] }, "status": ready });
            let changes = json!({ "operation": "DELETE", "name": name, "namespace": t.namespace, "oldObject": old });
            let response = review(t, "/validate-pod", ["", "v1", "pods"], changes).await?;
            ensure!(response["allowed"] == true, "{response}");
            let budget = t.get(BUDGET, "b").await?;
            anyhow::Ok((budget.int("/status/unavailableAllowed"), budget.has("/status/disruptedPods/web")))
        };
        for (name, uid) in [("invented", "u"), ("invented", uid.as_str()), ("web", "another"), ("web", "")] {
            assert_eq!(delete(name, uid).await?, (1, false), "{name} {uid}");
        }
        // What is left without a client certificate (SECURITY.md): a Pod that exists.
        assert_eq!(delete("web", &uid).await?, (0, true));
        Ok(())
    })
    .await
}

/// A directory with a kustomization of a part of the manifests with components. The caller removes it.
pub(crate) fn kustomization(part: &str, components: &[&str]) -> Result<PathBuf> {
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests").canonicalize()?;
    let name = format!("kruise-e2e-{}-{}-{}", part.replace('/', "-"), components.join("-"), std::process::id());
    let overlay = std::env::temp_dir().canonicalize()?.join(name);
    fs::create_dir_all(&overlay)?;
    // kustomize wants relative paths.
    let up = "../".repeat(overlay.components().count() - 1);
    let below = |path: String| format!("{up}{}/{path}", manifests.strip_prefix("/").unwrap_or(&manifests).display());
    let components: Vec<String> = components.iter().map(|name| below(format!("components/{name}"))).collect();
    let file = json!({ "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [below(part.to_owned())], "components": components });
    fs::write(overlay.join("kustomization.yaml"), file.to_string())?;
    Ok(overlay)
}

/// What kustomize makes of the default installation with one component, sent to the API server in a dry run.
async fn applied_with(t: &Test, component: &str) -> Result<(bool, String)> {
    let overlay = kustomization("overlays/containerd", &[component])?;
    let path = overlay.to_str().context("a path")?.to_owned();
    let answer = t.run(kubectl(&t.paths, ["apply", "--dry-run=server", "-k", &path])).await;
    fs::remove_dir_all(&overlay)?;
    let answer = answer?;
    Ok((answer.ok, format!("{}{}", answer.stdout, answer.stderr)))
}

#[tokio::test]
async fn network_policies_whose_addresses_are_not_set_are_refused_by_name() -> Result<()> {
    in_namespace("network-policies", async |t| {
        let (ok, said) = applied_with(t, "network-policy").await?;
        ensure!(!ok, "{said}");
        for value in ["API-SERVERS", "NODES", "PROMETHEUS"] {
            ensure!(said.contains(&format!("SET-CIDR-OF-{value}")), "{value} is not named: {said}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_installation_with_certificates_of_others_is_taken() -> Result<()> {
    in_namespace("external-certs", async |t| {
        let (ok, said) = applied_with(t, "external-certs").await?;
        ensure!(ok, "{said}");
        ensure!(!said.contains("secret/kruise-webhook-certs"), "the Secret is somebody else's: {said}");
        ensure!(said.contains("mutatingwebhookconfiguration") && said.contains("clusterrole"), "{said}");
        Ok(())
    })
    .await
}
