//! kruise-rs on the cluster, from its own image and manifests. Only what differs between machines is patched: the
//! directory of the runtime's socket, and how full the disk may be. And kubelet asks oftener whether a role is ready, for
//! which most of the disruptive tests wait again and again.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::cluster::show_logs;
use crate::cmd::{CommandExt, cmd, ctr, environment, kubectl};
use crate::images::sha256;
use crate::paths::{Paths, SYSTEM, containerd_dir};
use crate::process::until;

/// The volume of the daemon that holds the runtime's socket, and the overlay that is deployed.
const SOCKET_VOLUME: &str = "runtime-socket";
const OVERLAY: &str = "manifests/overlays/containerd";
/// However full the disk of this machine is: a test of its own shows the guard.
pub const DAEMON_ARGS: [&str; 2] = ["daemon", "--image-fs-limit-percent=100"];
/// The documented way to remove an installation.
const UNINSTALL: &str = "manifests/uninstall.sh";

/// Imports the image, applies the manifests, waits until every role is ready.
pub fn deploy(paths: &Paths) -> Result<()> {
    let start = Instant::now();
    let image = paths.product_image();
    ensure!(image.exists(), "{} is missing: run `e2e image`", image.display());
    ensure!(paths.repo.join(OVERLAY).exists(), "{OVERLAY} is missing: run `make manifests`");
    ctr(["images", "import"]).arg(&image).text()?;

    let kustomization = kustomization(paths)?;
    kubectl(paths, ["apply", "-k"]).arg(&kustomization).text()?;
    // kubectl would not know the new kinds for ten minutes
    let _ = fs::remove_dir_all(paths.kubectl_cache());
    let ready = rollout(paths, Duration::from_secs(120));
    if ready.is_err() {
        report(paths);
    }
    ready?;
    println!("kruise-rs deployed in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Waits until all Deployments and DaemonSets of the installation are rolled out.
pub fn rollout(paths: &Paths, patience: Duration) -> Result<()> {
    let names = kubectl(paths, ["get", "deployments,daemonsets", "-n", SYSTEM, "-o", "name"]).text()?;
    ensure!(!names.trim().is_empty(), "the manifests hold neither a Deployment nor a DaemonSet in {SYSTEM}");
    let timeout = format!("--timeout={}s", patience.as_secs());
    for name in names.lines() {
        kubectl(paths, ["rollout", "status", "-n", SYSTEM, &timeout, name]).text()?;
    }
    Ok(())
}

/// Removes kruise-rs in the documented way and waits until its objects are gone. The custom resources stay, unless
/// `crds` asks for their removal. With a `timeout` the script waits for so long where it has to wait, and not a minute.
pub fn undeploy(paths: &Paths, crds: bool, timeout: Option<&str>) -> Result<()> {
    let mut command = cmd(paths.repo.join(UNINSTALL), crds.then_some("--crds"));
    environment(paths, &mut command);
    command.envs(timeout.map(|timeout| ("TIMEOUT", timeout)));
    command.text()?;
    // The namespace stays, with what others keep in it.
    until("what was installed to be gone", Duration::from_secs(60), &[], || {
        let kinds = "deployments,daemonsets,pods,services,secrets,leases,configmaps";
        let ours = "app.kubernetes.io/name=kruise-rs";
        let found = kubectl(paths, ["get", kinds, "-n", SYSTEM, "-l", ours, "-o", "name"]).text()?;
        ensure!(found.is_empty(), "still there: {found}");
        Ok(())
    })
}

/// The overlay of the repository with the patches of this machine. A new image changes the Pods' annotation, so that
/// deploying again after a build replaces them.
fn kustomization(paths: &Paths) -> Result<PathBuf> {
    let dir = paths.cluster.join("deploy");
    fs::create_dir_all(&dir)?;
    let image = if paths.product_image().exists() { sha256(&paths.product_image())? } else { String::new() };
    let image = image.get(..16).unwrap_or_default();
    let patch = |kind: &str, volumes: &str| {
        format!(
            r#"
- target: {{kind: {kind}}}
  patch: |-
    apiVersion: apps/v1
    kind: {kind}
    metadata: {{name: any}}
    spec:
      template:
        metadata: {{annotations: {{e2e/image: "{image}"}}}}{volumes}"#
        )
    };
    let probed = |kind: &str| {
        let path = "/spec/template/spec/containers/0/readinessProbe/periodSeconds";
        format!("\n- target: {{kind: {kind}}}\n  patch: |-\n    - {{op: replace, path: {path}, value: 1}}")
    };
    let socket = format!(
        "\n        spec: {{volumes: [{{name: {SOCKET_VOLUME}, hostPath: {{path: {}}}}}],
          containers: [{{name: daemon, args: [{}]}}]}}",
        containerd_dir().display(),
        DAEMON_ARGS.join(", ")
    );
    let text = format!(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../../{OVERLAY}]\npatches:{}{}\n",
        patch("Deployment", "") + &probed("Deployment"),
        patch("DaemonSet", &socket) + &probed("DaemonSet")
    );
    fs::write(dir.join("kustomization.yaml"), text).context("write the kustomization")?;
    Ok(dir)
}

/// For a failure: the state of the installation and what its Pods said last.
pub fn report(paths: &Paths) {
    for args in [
        &["get", "all", "-n", SYSTEM, "-o", "wide"][..],
        &["get", "events", "-n", SYSTEM, "--sort-by=.lastTimestamp"],
        &["logs", "-n", SYSTEM, "-l", "control-plane", "--all-containers", "--prefix", "--tail=40"],
    ] {
        let answer = kubectl(paths, args).answer();
        let text = answer.map_or_else(|e| e.to_string(), |a| a.stdout + &a.stderr);
        eprintln!("--- kubectl {}\n{}", args.join(" "), text.trim_end());
    }
    show_logs(paths, &["kubelet"]);
    eprintln!(
        "--- logs: {} (after the cluster has been removed: {})",
        paths.logs().display(),
        paths.kept_logs().display()
    );
}
