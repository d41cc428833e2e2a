//! The Helm chart against the manifests. Only Helm and kubectl are needed for it, and no cluster.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use e2e::cmd::{Answer, CommandExt, cmd};
use e2e::kit::Look;
use e2e::paths::{Paths, SYSTEM};
use serde_json::{Value, json};

use crate::hostile_callers::kustomization;

type Objects = BTreeMap<(String, String), Value>;

fn chart(paths: &Paths) -> PathBuf {
    paths.repo.join("charts/kruise-rs")
}

fn helm(paths: &Paths) -> Command {
    let mut command = cmd(paths.bin("helm"), ["template", "kruise-rs"]);
    command.arg(chart(paths)).args(["--namespace", SYSTEM, "--kube-version", "1.34"]);
    command
}

fn objects(text: &str) -> Result<Vec<Value>> {
    use serde::Deserialize;
    let documents = serde_yaml::Deserializer::from_str(text).map(Value::deserialize).collect::<Result<Vec<_>, _>>()?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

fn by_name(objects: Vec<Value>) -> Result<Objects> {
    let mut named = Objects::new();
    for object in objects {
        let name = (object.text("/kind").to_owned(), object.text("/metadata/name").to_owned());
        ensure!(named.insert(name.clone(), object).is_none(), "{name:?} is there twice");
    }
    Ok(named)
}

fn rendered(paths: &Paths, values: &[&str]) -> Result<Objects> {
    let mut command = helm(paths);
    for value in values {
        command.args(["--set-json", value]);
    }
    by_name(objects(&command.text()?)?)
}

fn refusal(paths: &Paths, value: &str) -> Result<String> {
    let Answer { ok, stderr, .. } = helm(paths).args(["--set-json", value]).answer()?;
    ensure!(!ok, "{value} is taken");
    Ok(stderr)
}

/// Every object in these files of the manifests.
fn manifests(paths: &Paths, files: &[&str]) -> Result<Objects> {
    fn below(path: &Path, found: &mut Vec<Value>) -> Result<()> {
        if path.is_dir() {
            for entry in fs::read_dir(path)? {
                below(&entry?.path(), found)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "yaml") && !path.ends_with("kustomization.yaml")
        {
            found.extend(objects(&fs::read_to_string(path)?)?);
        }
        Ok(())
    }
    let mut found = Vec::new();
    for file in files {
        below(&paths.repo.join("manifests").join(file), &mut found).with_context(|| (*file).to_owned())?;
    }
    by_name(found)
}

/// An object of the manifests with what differs in the chart on purpose.
fn as_in_the_chart(object: &Value) -> Value {
    let mut object = object.clone();
    let kind = object.text("/kind").to_owned();
    let is_kept = ["CustomResourceDefinition", "Namespace"].contains(&kind.as_str())
        || (kind == "Secret" && object.text("/metadata/name") == "kruise-webhook-certs");
    if is_kept {
        object["metadata"]["annotations"]["helm.sh/resource-policy"] = json!("keep");
    }
    if kind == "CustomResourceDefinition" {
        object["spec"]["conversion"] = json!({ "strategy": "None" });
    }
    object
}

fn compare(chart: &Objects, manifests: &Objects) -> Result<()> {
    for (name, object) in chart {
        let Some(wanted) = manifests.get(name) else { bail!("{name:?} is not in the manifests") };
        let wanted = as_in_the_chart(wanted);
        ensure!(*object == wanted, "{name:?} is\n{object:#}\nwant\n{wanted:#}");
    }
    for name in manifests.keys() {
        ensure!(chart.contains_key(name), "{name:?} is not in the chart");
    }
    Ok(())
}

#[test]
fn chart_renders_to_the_manifests_one_by_one() -> Result<()> {
    let paths = Paths::default();
    let all = ["base", "crds", "components/pull-secrets"];
    let with_namespace = rendered(&paths, &["installation.createNamespace=true"])?;
    compare(&with_namespace, &manifests(&paths, &all)?)?;

    // Helm makes the namespace, or it is there.
    let mut plain = rendered(&paths, &[])?;
    let namespace = ("Namespace".to_owned(), SYSTEM.to_owned());
    ensure!(!plain.contains_key(&namespace));
    plain.insert(namespace.clone(), with_namespace[&namespace].clone());
    ensure!(plain == with_namespace);

    let wanted = manifests(&paths, &["base", "components/resource-distribution"])?;
    let values = [
        "crds.managed=false",
        "installation.createNamespace=true",
        "components={\"pullSecrets\":false,\"resourceDistribution\":true}",
    ];
    compare(&rendered(&paths, &values)?, &wanted)
}

/// What kustomize makes of the base with components.
fn kustomized(paths: &Paths, components: &[&str]) -> Result<Objects> {
    let directory = kustomization("base", components)?;
    let text = cmd(paths.bin("kubectl"), ["kustomize"]).arg(&directory).text();
    fs::remove_dir_all(&directory)?;
    by_name(objects(&text?)?)
}

#[test]
fn components_render_to_what_kustomize_makes_of_them() -> Result<()> {
    let paths = Paths::default();
    let alone = ["crds.managed=false", "installation.createNamespace=true", "components={\"pullSecrets\":false}"];

    let peers = |of: &str| json!([{ "ipBlock": { "cidr": format!("SET-CIDR-OF-{of}") } }]);
    let policies = json!({ "enabled": true, "apiServers": peers("API-SERVERS"), "nodes": peers("NODES"),
        "prometheus": peers("PROMETHEUS") });
    let policies = format!("networkPolicy={policies}");
    let values = [&alone[..], &[policies.as_str()]].concat();
    compare(&rendered(&paths, &values)?, &kustomized(&paths, &["network-policy"])?)?;

    let values = [&alone[..], &["externalCerts.enabled=true"]].concat();
    compare(&rendered(&paths, &values)?, &kustomized(&paths, &["external-certs"])?)
}

#[test]
fn chart_values_reach_what_they_are_for() -> Result<()> {
    let paths = Paths::default();
    let elsewhere = rendered(
        &paths,
        &[
            "installation={\"namespace\":\"elsewhere\"}",
            "manager={\"replicas\":3,\"image\":{\"repository\":\"r.example/k\",\"tag\":\"t\"},\"log\":{\"level\":4}}",
            "daemon={\"socketLocation\":\"/run\",\"extraArgs\":[\"--image-fs-limit-percent=100\"]}",
            "webhook={\"nodeSelector\":{\"a\":\"b\"},\"tolerations\":[{\"operator\":\"Exists\"}]}",
            "featureGates=\"AllAlpha=true\"",
            "components={\"resourceDistribution\":true}",
            "failurePolicies=\"vnamespace.kb.io=Ignore\"",
            "imagePullSecrets=[{\"name\":\"s\"}]",
            "monitoring={\"prometheusRule\":true,\"dashboard\":true}",
            "networkPolicy={\"enabled\":true,\"apiServers\":[{\"ipBlock\":{\"cidr\":\"192.0.2.0/28\"}}],\"nodes\":[{\"podSelector\":{}}],\"prometheus\":[{\"podSelector\":{}}]}",
        ],
    )?;
    let of = |kind: &str, name: &str| &elsewhere[&(kind.to_owned(), name.to_owned())];
    for (name, object) in &elsewhere {
        let text = object.to_string();
        let is_crd = name.0 == "CustomResourceDefinition";
        ensure!(is_crd || !text.contains(SYSTEM), "{name:?} names {SYSTEM}: {text}");
    }
    let manager = of("Deployment", "kruise-controller-manager");
    assert_eq!(manager["spec"]["replicas"], 3);
    let template = &manager["spec"]["template"];
    assert_eq!(template["spec"]["containers"][0]["image"], "r.example/k:t");
    assert_eq!(template["spec"]["containers"][0]["args"], json!(["manager", "--v=4"]));
    assert_eq!(template["spec"]["imagePullSecrets"], json!([{ "name": "s" }]));
    ensure!(template["metadata"]["annotations"]["kruise.rs/settings"].is_string(), "a change of gates replaces Pods");
    let daemon = &of("DaemonSet", "kruise-daemon")["spec"]["template"]["spec"];
    assert_eq!(daemon["containers"][0]["image"], "r.example/k:t");
    assert_eq!(daemon["containers"][0]["args"], json!(["daemon", "--image-fs-limit-percent=100"]));
    assert_eq!(daemon["volumes"][0]["hostPath"], json!({ "path": "/run", "type": "Directory" }));
    assert_eq!(daemon["containers"][0]["volumeMounts"][0]["mountPath"], "/hostvarrun");
    let webhook = &of("Deployment", "kruise-webhook")["spec"]["template"]["spec"];
    assert_eq!(webhook["tolerations"], json!([{ "operator": "Exists" }]));
    assert_eq!(webhook["nodeSelector"]["a"], "b");
    let settings = json!({ "feature-gates": "AllAlpha=true", "failure-policies": "vnamespace.kb.io=Ignore" });
    assert_eq!(of("ConfigMap", "kruise-feature-gates")["data"], settings);
    let from = &of("NetworkPolicy", "kruise-webhook")["spec"]["ingress"][0]["from"];
    assert_eq!(*from, json!([{ "ipBlock": { "cidr": "192.0.2.0/28" } }]));
    ensure!(elsewhere.contains_key(&("PrometheusRule".to_owned(), "kruise-rs".to_owned())));
    let dashboard = of("ConfigMap", "kruise-rs-dashboard").text("/data/kruise-rs.json");
    serde_json::from_str::<Value>(dashboard).context("the dashboard")?;
    Ok(())
}

#[test]
fn the_socket_of_the_runtime_that_the_values_name_is_mounted() -> Result<()> {
    let paths = Paths::default();
    for (runtime, path) in
        [("k3s", "/run/k3s/containerd"), ("crio", "/run/crio"), ("cri-dockerd", "/run/cri-dockerd.sock")]
    {
        let found = rendered(&paths, &[&format!("daemon={{\"runtime\":\"{runtime}\"}}")])?;
        let daemon = &found[&("DaemonSet".to_owned(), "kruise-daemon".to_owned())];
        assert_eq!(daemon.text("/spec/template/spec/volumes/0/hostPath/path"), path);
    }

    // A directory, as OpenKruise's chart names it, wins over the runtime; a socket alone is in the runtime's own one.
    for (daemon, path, inside) in [
        (
            json!({ "runtime": "crio", "socketLocation": "/var/run", "socketFile": "crio/crio.sock" }),
            "/var/run",
            "/hostvarrun",
        ),
        (json!({ "socketFile": "containerd/other.sock" }), "/run/containerd", "/hostvarrun/containerd"),
        (json!({ "socketFile": "/hostvarrun/containerd/other.sock" }), "/run/containerd", "/hostvarrun/containerd"),
    ] {
        let found = rendered(&paths, &[&format!("daemon={daemon}")])?;
        let made = &found[&("DaemonSet".to_owned(), "kruise-daemon".to_owned())];
        assert_eq!(made.text("/spec/template/spec/volumes/0/hostPath/path"), path, "{daemon}");
        let container = &made["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container.text("/volumeMounts/0/mountPath"), inside, "{daemon}");
        let flag = format!("--socket-file={}", daemon.text("/socketFile"));
        ensure!(container.array("/args").contains(&json!(flag)), "{container}");
    }
    Ok(())
}

#[test]
fn values_that_do_not_fit_together_are_refused_and_the_others_taken() -> Result<()> {
    let paths = Paths::default();
    for off in [
        "ResourceDistributionGate=true,ResourceDistributionGate=f",
        "ResourceDistributionGate=false,AllAlpha=true",
        "AllAlpha=true,AllAlpha=0",
    ] {
        let gates = format!("featureGates=\"{off}\"");
        rendered(&paths, &[&gates]).with_context(|| format!("the last one counts, and a name wins: {off}"))?;
    }
    // The label of the sidecar can be taken away.
    for labels in ["null", r#"{"grafana_dashboard":null}"#] {
        let labels = format!("monitoring.dashboardLabels={labels}");
        let found = rendered(&paths, &["monitoring.dashboard=true", &labels])?;
        let dashboard = &found[&("ConfigMap".to_owned(), "kruise-rs-dashboard".to_owned())];
        assert_eq!(dashboard["metadata"]["labels"], json!({ "app.kubernetes.io/name": "kruise-rs" }), "{labels}");
    }

    let external = rendered(&paths, &["externalCerts.enabled=true"])?;
    ensure!(!external.contains_key(&("Secret".to_owned(), "kruise-webhook-certs".to_owned())));
    let registration =
        &external[&("MutatingWebhookConfiguration".to_owned(), "kruise-mutating-webhook-configuration".to_owned())];
    let annotation = registration.text("/metadata/annotations/cert-manager.io~1inject-ca-from");
    assert_eq!(annotation, "kruise-system/kruise-webhook-certs");
    ensure!(registration.array("/webhooks").len() > 5, "nobody else registers them");
    let own = json!({ "cert-manager.io/inject-ca-from": "shop/mine" });
    let external = rendered(&paths, &["externalCerts.enabled=true", &format!("externalCerts.annotations={own}")])?;
    for phase in ["mutating", "validating"] {
        let found = external.iter().find(|((_, name), _)| *name == format!("kruise-{phase}-webhook-configuration"));
        let (_, registration) = found.context(phase)?;
        assert_eq!(registration["metadata"]["annotations"], own, "{phase}");
    }

    for (value, said) in [
        ("webhookConfiguration={}", "webhookConfiguration"),
        ("manager={\"replicas\":0}", "replicas"),
        ("networkPolicy={\"enabled\":true}", "networkPolicy.apiServers is empty"),
        ("daemon={\"socketFile\":\"other.sock\"}", "for runtime containerd only /run/containerd is"),
        ("daemon={\"socketFile\":\"crio/crio.sock\"}", "Set daemon.socketLocation"),
        ("featureGates=\"A=true, ResourceDistributionGate = True\"", "components.resourceDistribution is false"),
        ("featureGates=\"AllAlpha=1\"", "components.resourceDistribution is false"),
        ("featureGates=\"EnableExternalCerts=1\"", "externalCerts.enabled is false"),
    ] {
        let refusal = refusal(&paths, value)?;
        ensure!(refusal.contains(said), "{value}: {refusal}");
    }
    Ok(())
}
