//! `make demo`: one container of a Pod is restarted, the other one and the Pod itself are as they were.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cmd::{CommandExt, kubectl};
use crate::kit::{Build, Container, Look, app, crr, pod, shell};
use crate::paths::Paths;
use crate::process::until;

const NAMESPACE: &str = "demo";

pub fn run(paths: &Paths) -> Result<()> {
    // what an earlier demo left
    kubectl(paths, ["delete", "namespace", NAMESPACE, "--ignore-not-found"]).text()?;
    kubectl(paths, ["create", "namespace", NAMESPACE]).text()?;
    let apply = |object: &Value| kubectl(paths, ["apply", "-n", NAMESPACE, "-f", "-"]).feed(&object.to_string());
    let pod_now = || -> Result<Value> {
        let text = kubectl(paths, ["get", "pod", "web", "-n", NAMESPACE, "-o", "json"]).text()?;
        Ok(serde_json::from_str(&text)?)
    };
    let marker =
        |script: &str| kubectl(paths, ["exec", "-n", NAMESPACE, "web", "-c", "main", "--", "sh", "-c", script]).text();

    say("A Pod with two containers");
    until("the service account", Duration::from_secs(20), &[], || {
        kubectl(paths, ["get", "serviceaccount", "default", "-n", NAMESPACE]).text()
    })?;
    apply(&pod("web", vec![shell("main", ""), app("sidecar")]))?;
    kubectl(paths, ["wait", "pod/web", "-n", NAMESPACE, "--for=condition=Ready", "--timeout=60s"]).text()?;
    kubectl(paths, ["get", "pods", "-n", NAMESPACE, "-o", "wide"]).show()?;
    let before = pod_now()?;
    marker("touch /tmp/made-before-the-restart")?;

    let request = crr("restart-main", "web", &["main"]).with("/spec/ttlSecondsAfterFinished", 600);
    say("Restart the container `main`:  kubectl apply -f");
    print!("{}", serde_yaml::to_string(&request)?);

    say("kubectl get crr --watch -o wide");
    let mut watch = kubectl(paths, ["get", "crr", "-n", NAMESPACE, "--watch", "-o", "wide"])
        .stdin(Stdio::null())
        .spawn()
        .context("watch")?;
    // the watch is to be there first
    std::thread::sleep(Duration::from_millis(700));
    let start = Instant::now();
    let done = apply(&request).and_then(|_| {
        let phase = "--for=jsonpath={.status.phase}=Completed";
        kubectl(paths, ["wait", "crr/restart-main", "-n", NAMESPACE, phase, "--timeout=60s"]).text()
    });
    let took = start.elapsed();
    std::thread::sleep(Duration::from_millis(500));
    let _ = watch.kill();
    let _ = watch.wait();
    done?;

    let request: Value =
        serde_json::from_str(&kubectl(paths, ["get", "crr", "restart-main", "-n", NAMESPACE, "-o", "json"]).text()?)?;
    ensure!(request.text("/status/containerRecreateStates/0/phase") == "Succeeded", "it failed: {}", request["status"]);
    say(&format!("Completed {:.1} s after the request, kubectl's own time included", took.as_secs_f64()));
    kubectl(paths, ["get", "pods", "-n", NAMESPACE, "-o", "wide"]).show()?;
    let after = pod_now()?;
    let files = marker("ls /tmp")?;
    println!();
    compare(&before, &after)?;
    ensure!(files.trim().is_empty(), "the file system of `main` is the old one");
    println!("\nThe file that was made in `main` before the restart is gone: its root file system is new.");
    kubectl(paths, ["delete", "namespace", NAMESPACE, "--wait=false"]).text().map(drop)
}

fn say(text: &str) {
    println!("\n── {text}");
}

/// The table of what is the same and what is not; an error unless it is as promised.
fn compare(before: &Value, after: &Value) -> Result<()> {
    let containers = |pod: &Value, name: &str| {
        Container::all(pod).remove(name).with_context(|| format!("the Pod has no status of {name}"))
    };
    let short = |id: String| id.get(..12).map(str::to_owned).unwrap_or(id);
    let row = |what: &str, old: String, new: String, same: bool| -> Result<()> {
        let result = if old == new { "unchanged" } else { "changed" };
        println!("{what:<20}{old:<38}{new:<38}{result}");
        ensure!((old == new) == same, "{what} was not to be {result}");
        Ok(())
    };
    println!("{:<20}{:<38}after", "", "before");
    for (what, field) in [("Pod UID", "/metadata/uid"), ("Pod IP", "/status/podIP"), ("node", "/spec/nodeName")] {
        row(what, before.text(field).to_owned(), after.text(field).to_owned(), true)?;
    }
    for (name, same) in [("sidecar", true), ("main", false)] {
        let (old, new) = (containers(before, name)?, containers(after, name)?);
        row(&format!("{name}: instance"), short(old.id), short(new.id), same)?;
        row(&format!("{name}: restarts"), old.restarts.to_string(), new.restarts.to_string(), same)?;
    }
    Ok(())
}
