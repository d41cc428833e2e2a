//! From a Helm release of OpenKruise to one of kruise-rs, and back, with a stand-in for OpenKruise's chart: definitions of which
//! some convert by its webhook, registrations that fail closed, and a manager and a daemon that do nothing, of which the daemon
//! does not end when it is asked to. So nobody answers that webhook, as when OpenKruise is gone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::cmd::{cmd, environment};
use e2e::deploy::DAEMON_ARGS;
use e2e::kit::{Build, Look, PATIENCE, Test, app, in_namespace, poll, restoring, shell, stubborn, workload};
use e2e::paths::{NODE, SYSTEM, containerd_dir};
use serde_json::{Value, json};

use crate::MANAGER;

const OLD: &str = "e2e-openkruise";
const SERVICE: &str = "kruise-webhook-service";
/// How long the stand-in's daemon takes to end. Meanwhile no other one may be there.
const GRACE: Duration = Duration::from_secs(10);
/// Definitions in the chart.
const DEFINITIONS: [&str; 4] = ["clonesets", "daemonsets", "sidecarsets", "statefulsets"];
/// Those that OpenKruise 1.9 converts by its webhook.
const CONVERTED: [&str; 3] = ["daemonsets", "sidecarsets", "statefulsets"];
/// Calls of kubectl that need OpenKruise's webhook while its registrations and definitions are there, and how an API server
/// names it that gets no answer.
const CALLS: [(&[&str], &str); 2] = [
    (&["run", "none", "--image=none", "--dry-run=server"], "mpod.kb.io"),
    (&["get", "statefulsets.v1alpha1.apps.kruise.io", "db"], "conversion webhook"),
];

/// A definition of ours with the conversion that OpenKruise's has.
fn definition(t: &Test, plural: &str) -> Result<String> {
    const NONE: &str = "    strategy: None\n    webhook: null\n";
    let text = std::fs::read_to_string(t.paths.repo.join(format!("manifests/crds/{plural}.apps.kruise.io.yaml")))?;
    ensure!(text.contains(NONE), "the definition of {plural} has another conversion");
    if !CONVERTED.contains(&plural) {
        return Ok(text.replace(NONE, "    strategy: None\n"));
    }
    // Its manager writes the CA.
    let service = json!({ "name": SERVICE, "namespace": SYSTEM, "path": "/convert" });
    let webhook = json!({ "clientConfig": { "service": service }, "conversionReviewVersions": ["v1", "v1beta1"] });
    Ok(text.replace(NONE, &format!("    strategy: Webhook\n    webhook: {webhook}\n")))
}

/// A registration as OpenKruise has it, with one entry for Pods and one for StatefulSets.
fn registration(kind: &str, pods: &[&str], sets: &[&str]) -> Value {
    let verb = if kind == "MutatingWebhookConfiguration" { "mutate" } else { "validate" };
    let entry = |what: &str, path: &str, rule: &Value| {
        let service = json!({ "name": SERVICE, "namespace": SYSTEM, "path": format!("/{verb}-{path}") });
        json!({ "name": format!("{}{what}.kb.io", &verb[..1]), "clientConfig": { "service": service }, "rules": [rule],
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1", "v1beta1"] })
    };
    let pods = json!({ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": pods });
    let sets = json!({ "apiGroups": ["apps.kruise.io"], "apiVersions": ["v1alpha1", "v1beta1"],
        "resources": ["statefulsets"], "operations": sets });
    let others = json!([{ "key": "control-plane", "operator": "DoesNotExist" }]);
    let pods = entry("pod", "pod", &pods).with("/namespaceSelector/matchExpressions", others);
    let sets = entry("statefulset", "apps-kruise-io-statefulset", &sets);
    json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
        "metadata": { "name": registration_name(kind) }, "webhooks": [pods, sets] })
}

fn registration_name(kind: &str) -> &'static str {
    match kind {
        "MutatingWebhookConfiguration" => "kruise-mutating-webhook-configuration",
        _ => "kruise-validating-webhook-configuration",
    }
}

/// Writes the chart. JSON is YAML.
fn stand_in(t: &Test, dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir.join("templates"))?;
    let chart = json!({ "apiVersion": "v2", "name": "stand-in", "version": "1.9.0" });
    std::fs::write(dir.join("Chart.yaml"), chart.to_string())?;
    for plural in DEFINITIONS {
        std::fs::write(dir.join(format!("templates/{plural}.yaml")), definition(t, plural)?)?;
    }
    let runs = |kind: &str, name: &str, role: &str, main: Value| {
        let labels = json!({ "control-plane": role });
        let spec = json!({ "tolerations": [{ "operator": "Exists" }], "terminationGracePeriodSeconds": GRACE.as_secs(),
            "containers": [main] });
        json!({ "apiVersion": "apps/v1", "kind": kind, "metadata": { "name": name, "namespace": SYSTEM }, "spec": {
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": spec },
        } })
    };
    let manager = shell("main", "").with("/args", json!(["--feature-gates=ImagePullJobGate=true"]));
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": "e2e-openkruise" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" },
        "subjects": [{ "kind": "ServiceAccount", "name": "kruise-manager", "namespace": SYSTEM }] });
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": SERVICE, "namespace": SYSTEM },
        "spec": { "ports": [{ "port": 443, "targetPort": 9876 }], "selector": { "control-plane": "controller-manager" } } });
    let (some, all) = (["CREATE", "UPDATE"], ["CREATE", "UPDATE", "DELETE"]);
    for (file, object) in [
        ("manager", runs("Deployment", MANAGER, "controller-manager", manager)),
        ("daemon", runs("DaemonSet", "kruise-daemon", "daemon", stubborn("main"))),
        ("binding", binding),
        ("service", service),
        ("mutating", registration("MutatingWebhookConfiguration", &["CREATE"], &some)),
        ("validating", registration("ValidatingWebhookConfiguration", &["UPDATE", "DELETE"], &all)),
    ] {
        std::fs::write(dir.join(format!("templates/{file}.yaml")), object.to_string())?;
    }
    Ok(())
}

async fn run(t: &Test, mut command: Command) -> Result<String> {
    environment(&t.paths, &mut command);
    let shown = format!("{command:?}");
    let answer = t.run(command).await?;
    ensure!(answer.ok, "{shown}: {}{}", answer.stderr, answer.stdout);
    Ok(answer.stdout)
}

/// One of the scripts, with what differs on this machine.
fn script(t: &Test, name: &str, dir: &Path) -> Command {
    let mut command = cmd(t.paths.repo.join("charts/kruise-rs").join(name), None::<&str>);
    command.env("OLD_RELEASE", OLD).env("OLD_NAMESPACE", SYSTEM).env("SAVE", dir.join("saved")).env("TIMEOUT", "120s");
    command.env("KUBECTL", t.paths.bin("kubectl")).env("HELM", t.paths.bin("helm"));
    command
}

/// UIDs of all definitions of Kruise, and of the Pods of the workload.
async fn uids(t: &Test) -> Result<BTreeMap<String, String>> {
    let definitions = t.list("CustomResourceDefinition", "").await?;
    let kruise = definitions.into_iter().filter(|o| o.text("/metadata/name").contains("kruise"));
    let objects = kruise.chain(t.list("Pod", "app=set").await?);
    Ok(objects.map(|o| (o.text("/metadata/name").to_owned(), o.text("/metadata/uid").to_owned())).collect())
}

/// The most daemons that were on the node at once, until this goes out of scope.
struct Daemons {
    most: Arc<AtomicUsize>,
    done: Arc<AtomicBool>,
}

impl Daemons {
    fn watch(t: &Test) -> Self {
        let (most, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (t, seen, ends) = (t.clone(), most.clone(), done.clone());
        tokio::spawn(async move {
            while !ends.load(Ordering::Relaxed) {
                let pods = t.list_in(SYSTEM, "Pod", "control-plane=daemon").await.unwrap_or_default();
                let here = pods.iter().filter(|pod| pod.text("/spec/nodeName") == NODE).count();
                seen.fetch_max(here, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Self { most, done }
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
    }
}

/// Waits until nobody answers OpenKruise's webhook, and until all is answered without it.
async fn webhook_is_missed(t: &Test, is_missed: bool) -> Result<()> {
    for (call, webhook) in CALLS {
        poll(&format!("{webhook}, missed: {is_missed}"), PATIENCE, async || {
            let said = t.kubectl(call).await.map_or_else(|error| error.to_string(), |_| String::new());
            let fits = if is_missed { said.contains(webhook) } else { said.is_empty() };
            ensure!(fits, "kubectl {}: {said:?}", call.join(" "));
            Ok(())
        })
        .await?;
    }
    Ok(())
}

async fn records(t: &Test) -> Result<String> {
    t.kubectl(&["get", "secrets", "-n", SYSTEM, "-l", &format!("owner=helm,name={OLD}"), "-o", "name"]).await
}

async fn scenario(t: &Test, dir: &Path) -> Result<()> {
    let chart = dir.join("chart");
    stand_in(t, &chart)?;
    let mut install = cmd(t.paths.bin("helm"), ["install", OLD]);
    install.arg(&chart).args(["--namespace", SYSTEM, "--take-ownership", "--force-conflicts", "--wait"]);
    run(t, install).await?;
    let before = uids(t).await?;
    ensure!(!records(t).await?.is_empty());
    webhook_is_missed(t, true).await?;
    let daemons = Daemons::watch(t);

    let values = dir.join("values.json");
    let daemon = json!({ "extraArgs": DAEMON_ARGS[1..], "socketLocation": containerd_dir() });
    std::fs::write(&values, json!({ "daemon": daemon }).to_string())?;
    let mut over = script(t, "take-over.sh", dir);
    over.arg("--values").arg(&values);
    let begin = Instant::now();
    run(t, over).await?;
    ensure!(begin.elapsed() >= GRACE, "the daemon was not waited for: {:?}", begin.elapsed());
    t.webhook_answers().await?;
    webhook_is_missed(t, false).await?;
    assert_eq!(uids(t).await?, before, "definitions and Pods after moving over");
    assert_eq!(records(t).await?, "", "nobody can uninstall the old release any more");
    ensure!(t.find("ClusterRoleBinding", OLD).await?.is_none(), "its rights are gone");
    t.kubectl(&["scale", "cloneset/set", "--replicas=2"]).await?;
    let two = |o: &Value| o.int("/status/availableReplicas") == 2;
    t.wait_for("CloneSet", "set", "to have two Pods", PATIENCE, two).await?;
    let before = uids(t).await?;

    let mut back = script(t, "give-back.sh", dir);
    back.arg(&chart);
    run(t, back).await?;
    assert_eq!(uids(t).await?, before, "definitions and Pods after going back");
    ensure!(!records(t).await?.is_empty() && t.find("ClusterRoleBinding", OLD).await?.is_some());
    // The chart's own are back.
    webhook_is_missed(t, true).await?;
    assert_eq!(daemons.most.load(Ordering::Relaxed), 1, "daemons on the node at once");
    Ok(())
}

/// As if nobody had installed anything. Not by Helm: the definition would go with the release.
async fn clear(t: &Test) -> Result<()> {
    // First of all: nothing with a Pod, and no object that is converted, gets by them.
    for kind in ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"] {
        t.kubectl(&["delete", kind, registration_name(kind), "--ignore-not-found"]).await?;
    }
    for plural in CONVERTED {
        let none = r#"{"spec":{"conversion":{"strategy":"None","webhook":null}}}"#;
        t.kubectl(&["patch", "crd", &format!("{plural}.apps.kruise.io"), "--type=merge", "--patch", none]).await?;
    }
    t.kubectl(&["delete", "service", SERVICE, "-n", SYSTEM, "--ignore-not-found"]).await?;
    t.kubectl(&["delete", "secrets", "-n", SYSTEM, "-l", "owner=helm"]).await?;
    t.kubectl(&["delete", "clusterrolebinding", OLD, "--ignore-not-found"]).await?;
    for (kind, name) in [("deployment", MANAGER), ("deployment", "kruise-webhook"), ("daemonset", "kruise-daemon")] {
        let how = ["--ignore-not-found", "--cascade=foreground", "--timeout=60s"];
        t.kubectl(&[&["delete", kind, name, "-n", SYSTEM][..], &how].concat()).await?;
    }
    t.node().deploy().await
}

#[tokio::test]
async fn helm_releases_change_over_and_back_without_a_second_daemon_or_a_new_pod() -> Result<()> {
    in_namespace("helm-takeover", async |t| {
        t.create(workload("CloneSet", "set", 1, vec![app("main")])).await?;
        let available = |o: &Value| o.int("/status/availableReplicas") == 1;
        t.wait_for("CloneSet", "set", "to be available", PATIENCE, available).await?;
        // Converted, where somebody asks for the older version.
        let db = workload("StatefulSet", "db", 0, vec![app("main")]).with("/apiVersion", "apps.kruise.io/v1beta1");
        t.create(db).await?;
        let dir: PathBuf = std::env::temp_dir().join(&t.namespace);
        std::fs::create_dir_all(&dir).context("a directory for the chart")?;
        t.node().undeploy(false).await?;
        let done = restoring(scenario(t, &dir), clear(t)).await;
        let _ = std::fs::remove_dir_all(&dir);
        done
    })
    .await
}
