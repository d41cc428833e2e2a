//! From a Helm release of OpenKruise to one of kruise-rs, and back, with a stand-in for OpenKruise's chart: a definition, and
//! a manager and a daemon that do nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::cmd::{cmd, environment};
use e2e::deploy::DAEMON_ARGS;
use e2e::kit::{Build, Look, PATIENCE, Test, app, in_namespace, restoring, shell, workload};
use e2e::paths::{NODE, SYSTEM, containerd_dir};
use serde_json::{Value, json};

use crate::MANAGER;

const DEFINITION: &str = "clonesets.apps.kruise.io";
const OLD: &str = "e2e-openkruise";

/// Writes the chart. JSON is YAML.
fn stand_in(t: &Test, dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir.join("templates"))?;
    let chart = json!({ "apiVersion": "v2", "name": "stand-in", "version": "1.9.0" });
    std::fs::write(dir.join("Chart.yaml"), chart.to_string())?;
    let definition = std::fs::read_to_string(t.paths.repo.join(format!("manifests/crds/{DEFINITION}.yaml")))?;
    let definition = definition.replace("    webhook: null\n", "");
    std::fs::write(dir.join("templates/definition.yaml"), definition)?;
    let runs = |kind: &str, name: &str, role: &str| {
        let labels = json!({ "control-plane": role });
        let main = shell("main", "").with("/args", json!(["--feature-gates=ImagePullJobGate=true"]));
        json!({ "apiVersion": "apps/v1", "kind": kind, "metadata": { "name": name, "namespace": SYSTEM }, "spec": {
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "tolerations": [{ "operator": "Exists" }], "containers": [main] } },
        } })
    };
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": "e2e-openkruise" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" },
        "subjects": [{ "kind": "ServiceAccount", "name": "kruise-manager", "namespace": SYSTEM }] });
    for (file, object) in [
        ("manager", runs("Deployment", MANAGER, "controller-manager")),
        ("daemon", runs("DaemonSet", "kruise-daemon", "daemon")),
        ("binding", binding),
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
    let daemons = Daemons::watch(t);

    let values = dir.join("values.json");
    let daemon = json!({ "extraArgs": DAEMON_ARGS[1..], "socketLocation": containerd_dir() });
    std::fs::write(&values, json!({ "daemon": daemon }).to_string())?;
    let mut over = script(t, "take-over.sh", dir);
    over.arg("--values").arg(&values);
    run(t, over).await?;
    t.webhook_answers().await?;
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
    assert_eq!(daemons.most.load(Ordering::Relaxed), 1, "daemons on the node at once");
    Ok(())
}

/// As if nobody had installed anything. Not by Helm: the definition would go with the release.
async fn clear(t: &Test) -> Result<()> {
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
        let dir: PathBuf = std::env::temp_dir().join(&t.namespace);
        std::fs::create_dir_all(&dir).context("a directory for the chart")?;
        t.node().undeploy(false).await?;
        let done = restoring(scenario(t, &dir), clear(t)).await;
        let _ = std::fs::remove_dir_all(&dir);
        done
    })
    .await
}
