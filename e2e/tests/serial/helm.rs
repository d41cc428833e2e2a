//! Installing by Helm, from the chart of this repository.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::cmd::{cmd, environment};
use e2e::deploy::DAEMON_ARGS;
use e2e::kit::{Build, Look, PATIENCE, Test, app, in_namespace, poll, restoring, workload};
use e2e::paths::{SYSTEM, containerd_dir};
use serde_json::{Value, json};

use crate::{MANAGER, WEBHOOK};

const RELEASE: &str = "e2e-kruise-rs";
/// Kind and name.
const CONFIGURATIONS: [(&str, &str); 2] = [
    ("MutatingWebhookConfiguration", "kruise-mutating-webhook-configuration"),
    ("ValidatingWebhookConfiguration", "kruise-validating-webhook-configuration"),
];

fn helm(t: &Test, args: &[&str]) -> Command {
    let mut command = cmd(t.paths.bin("helm"), args);
    environment(&t.paths, &mut command);
    command.args(["--namespace", SYSTEM]);
    command
}

async fn run(t: &Test, command: Command) -> Result<String> {
    let shown = format!("{command:?}");
    let answer = t.run(command).await?;
    ensure!(answer.ok, "{shown}: {}{}", answer.stderr, answer.stdout);
    Ok(answer.stdout)
}

/// `helm install` or `helm upgrade`, with what differs on this machine, until all is ready by Helm's own rules.
async fn apply(t: &Test, how: &[&str], values: &Value) -> Result<()> {
    let file = std::env::temp_dir().join(format!("{}-values.json", t.namespace));
    std::fs::write(&file, values.to_string())?;
    let mut command = helm(t, &[how[0], RELEASE]);
    command.arg(t.paths.repo.join("charts/kruise-rs")).args(&how[1..]);
    command.args(["--wait", "--timeout", "120s", "--values"]).arg(&file);
    let done = run(t, command).await;
    let _ = std::fs::remove_file(&file);
    done?;
    all_are_ready(t).await
}

/// What `--wait` has waited for.
async fn all_are_ready(t: &Test) -> Result<()> {
    for name in [MANAGER, WEBHOOK] {
        let found = t.api_in(SYSTEM, "Deployment").get(name).await?.data;
        let (wanted, ready) = (found.int("/spec/replicas"), found.int("/status/readyReplicas"));
        ensure!(wanted > 0 && ready == wanted, "{ready} of {wanted} replicas of {name} are ready when Helm is done");
    }
    Ok(())
}

fn values(replicas: u64, gates: &str) -> Value {
    let term = json!({ "matchExpressions": [{ "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] }] });
    let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] } });
    json!({
        "featureGates": gates,
        "manager": {
            "replicas": replicas,
            "nodeAffinity": required,
            // As with --reuse-values from a chart that has no such value.
            "priorityClassName": null,
            "podLabels": { "team": "infra", "control-plane": "mine" },
            "podAnnotations": { "example.com/note": "1" },
        },
        // The first of these is the role, which the chart has.
        "daemon": { "extraArgs": DAEMON_ARGS[1..], "socketLocation": containerd_dir() },
    })
}

/// The CA of each entry of a configuration.
fn bundles_of(configuration: &Value) -> BTreeMap<String, String> {
    let ca = |entry: &Value| (entry.text("/name").to_owned(), entry.text("/clientConfig/caBundle").to_owned());
    configuration.array("/webhooks").iter().map(ca).collect()
}

/// Those of both. No two entries have one name.
async fn bundles(t: &Test) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for (kind, name) in CONFIGURATIONS {
        found.extend(bundles_of(&t.get(kind, name).await?));
    }
    Ok(found)
}

/// Waits until the webhook has registered itself completely.
async fn registered(t: &Test) -> Result<BTreeMap<String, String>> {
    poll("the webhook to register itself", PATIENCE, async || {
        let bundles = bundles(t).await?;
        for name in ["mpod.kb.io", "mcloneset.kb.io", "vpodunavailablebudget.kb.io"] {
            ensure!(bundles.contains_key(name), "{name} is not among {:?}", bundles.keys());
        }
        ensure!(bundles.values().all(|ca| ca.len() > 100), "an entry has no CA");
        Ok(())
    })
    .await?;
    bundles(t).await
}

/// An upgrade that changes nothing is no conflict, and takes nothing away of what the webhook has written, not for a moment. The
/// generation says nothing: the API server counts an apply that leaves everything as it was.
async fn upgrade_leaves_the_registration_alone(t: &Test, values: &Value) -> Result<()> {
    let mut recordings = Vec::new();
    for (kind, name) in CONFIGURATIONS {
        let before = bundles_of(&t.get(kind, name).await?);
        recordings.push((kind, name, before, t.record(kind, name).await?));
    }
    apply(t, &["upgrade"], values).await?;
    for (kind, name, before, recording) in recordings {
        let version = t.get(kind, name).await?.text("/metadata/resourceVersion").to_owned();
        recording.seen("the state after the upgrade", |o| o.text("/metadata/resourceVersion") == version).await?;
        for (_, state) in recording.states() {
            assert_eq!(bundles_of(&state), before, "the CA of each entry of {name} in an upgrade");
        }
    }
    Ok(())
}

/// The definitions of Kruise: their UIDs, and when they are deleted.
async fn definitions(t: &Test) -> Result<BTreeMap<String, String>> {
    let found = t.list("CustomResourceDefinition", "").await?;
    let kruise = found.iter().filter(|definition| definition.text("/metadata/name").contains("kruise"));
    let state = |o: &Value| format!("{} {}", o.text("/metadata/uid"), o.text("/metadata/deletionTimestamp"));
    Ok(kruise.map(|o| (o.text("/metadata/name").to_owned(), state(o))).collect())
}

/// The chart leaves them out, and takes them back.
async fn definitions_stay_without_the_chart(t: &Test, values: &Value) -> Result<()> {
    let before = definitions(t).await?;
    ensure!(before.len() > 15, "only {:?}", before.keys());
    for managed in [false, true] {
        apply(t, &["upgrade"], &values.clone().with("/crds", json!({ "managed": managed }))).await?;
        assert_eq!(definitions(t).await?, before, "definitions with crds.managed={managed}");
    }
    Ok(())
}

async fn uid(t: &Test, kind: &str, name: &str) -> Result<String> {
    Ok(t.get(kind, name).await?.text("/metadata/uid").to_owned())
}

async fn scenario(t: &Test, pod: &str) -> Result<()> {
    let (of_pod, of_set) = (uid(t, "Pod", pod).await?, uid(t, "CloneSet", "set").await?);
    let gates = "ImagePullJobGate=true";
    // The definitions are there, from kubectl.
    apply(t, &["install", "--take-ownership", "--force-conflicts"], &values(2, gates)).await?;
    t.webhook_answers().await?;
    let ca = registered(t).await?;
    upgrade_leaves_the_registration_alone(t, &values(2, gates)).await?;

    apply(t, &["upgrade"], &values(1, "ImagePullJobGate=true,KruisePodReadinessGate=true")).await?;
    let manager = t.api_in(SYSTEM, "Deployment").get(MANAGER).await?;
    assert_eq!(manager.data.int("/spec/replicas"), 1);
    let of_pods = &manager.data["spec"]["template"];
    for (pointer, wanted) in [
        ("/metadata/labels/team", "infra"),
        ("/metadata/labels/control-plane", "controller-manager"),
        ("/metadata/annotations/example.com~1note", "1"),
        ("/spec/priorityClassName", "system-cluster-critical"),
    ] {
        assert_eq!(of_pods.text(pointer), wanted, "{pointer}");
    }
    ensure!(of_pods.has("/metadata/annotations/kruise.rs~1settings"), "the gates are other ones now");
    for part in ["nodeAffinity", "podAntiAffinity"] {
        ensure!(of_pods.has(&format!("/spec/affinity/{part}")), "{part}");
    }
    let after = registered(t).await?;
    for (name, bundle) in &ca {
        assert_eq!(after.get(name), Some(bundle), "{name} has another CA after the upgrade");
    }
    t.plugin_exits(0, &["restart", &format!("pod/{pod}"), "--wait"]).await?;

    run(t, helm(t, &["rollback", RELEASE, "1", "--wait", "--timeout", "120s"])).await?;
    let manager = t.api_in(SYSTEM, "Deployment").get(MANAGER).await?;
    assert_eq!(manager.data.int("/spec/replicas"), 2);
    let after = registered(t).await?;
    for (name, bundle) in &ca {
        assert_eq!(after.get(name), Some(bundle), "{name} has another CA after going back");
    }
    upgrade_leaves_the_registration_alone(t, &values(2, gates)).await?;
    definitions_stay_without_the_chart(t, &values(2, gates)).await?;

    run(t, helm(t, &["uninstall", RELEASE, "--wait", "--timeout", "120s"])).await?;
    for name in [MANAGER, WEBHOOK] {
        ensure!(t.api_in(SYSTEM, "Deployment").get_opt(name).await?.is_none(), "{name} is left");
    }
    for (kind, name) in CONFIGURATIONS {
        ensure!(t.find(kind, name).await?.is_none(), "{name} is left, and nobody answers any more");
    }
    assert_eq!(uid(t, "CloneSet", "set").await?, of_set, "definitions and their objects stay");
    assert_eq!(uid(t, "Pod", pod).await?, of_pod, "and Pods");
    Ok(())
}

#[tokio::test]
async fn installed_by_helm_it_works_and_no_upgrade_takes_its_ca_away() -> Result<()> {
    in_namespace("helm", async |t| {
        t.create(workload("CloneSet", "set", 1, vec![app("main")])).await?;
        let available = |o: &Value| o.int("/status/availableReplicas") == 1;
        t.wait_for("CloneSet", "set", "to be available", PATIENCE, available).await?;
        let pod = t.list("Pod", "app=set").await?.pop().context("its Pod")?;
        let pod = pod.text("/metadata/name");
        t.node().undeploy(false).await?;
        let restore = async {
            // What a failure has left, as far as Helm knows it; what is not there is no error here.
            let _ =
                t.run(helm(t, &["uninstall", RELEASE, "--ignore-not-found", "--wait", "--timeout", "120s"])).await?;
            t.node().deploy().await
        };
        restoring(scenario(t, pod), restore).await?;
        t.ready(pod).await.map(drop)
    })
    .await
}
