//! The part of `make bench` about probes: what a hundred containers that are probed each second cost the daemon.
//!
//! Commands are run by containerd and runc, not by the daemon, so its own processor time is what they cost it. They are so
//! expensive that a small machine cannot run a hundred a second; the time is therefore given for a hundred of those that
//! were run, by the daemon's own count, beside how many there were.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::kit::{Build, PATIENCE, Test, condition, pod, shell};
use crate::measure::{Table, Usage};

const PODS: usize = 10;
const CONTAINERS_PER_POD: usize = 10;
const DAEMON: &str = "127.0.0.1:10221";

/// The daemon's processor time, and the probes that it has carried out.
async fn daemon(t: &Test, handler: &str) -> Result<(f64, f64)> {
    let usage = Usage::of(t.node().daemon_process().await?)?;
    let mut stream = TcpStream::connect(DAEMON).context("the daemon's metrics")?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: daemon\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let name = format!("kruise_probe_runs_total{{handler=\"{handler}\"");
    let lines = text.lines().filter(|line| line.starts_with(&name));
    let runs = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
    Ok((usage.cpu, runs))
}

pub(crate) async fn measure(t: &Test, seconds: u64, table: &mut Table) -> Result<()> {
    let names: Vec<String> = (0..CONTAINERS_PER_POD).map(|i| format!("c{i}")).collect();
    let served = |i: usize, name: &String| shell(name, &format!("httpd -p {} -h /tmp", 8000 + i));
    for i in 0..PODS {
        let containers = names.iter().enumerate().map(|(i, name)| served(i, name)).collect();
        let labels = json!({ "app": "probed" });
        t.create(pod(&format!("probed-{i}"), containers).with("/metadata/labels", labels)).await?;
    }
    for i in 0..PODS {
        t.ready(&format!("probed-{i}")).await?;
    }
    let tcp = |i: usize| json!({ "tcpSocket": { "port": 8000 + i } });
    let exec = |_| json!({ "exec": { "command": ["true"] } });
    let http = |i: usize| json!({ "httpGet": { "port": 8000 + i, "path": "/" } });
    let handlers: [(&str, &dyn Fn(usize) -> Value); 3] = [("tcp", &tcp), ("http", &http), ("exec", &exec)];
    for (handler, probe) in handlers {
        let probes: Vec<Value> = names
            .iter()
            .enumerate()
            .map(|(i, name)| json!({ "name": name, "containerName": name, "podConditionType": format!("bench/{name}"), "probe": probe(i) }))
            .collect();
        let selector = json!({ "matchLabels": { "app": "probed" } });
        let marker = json!({ "kind": "PodProbeMarker", "metadata": { "name": handler }, "spec": { "selector": selector, "probes": probes } });
        t.create(marker).await?;
        for i in 0..PODS {
            let last = format!("bench/{}", names[CONTAINERS_PER_POD - 1]);
            let name = format!("probed-{i}");
            t.wait_for("Pod", &name, "to be probed", PATIENCE * 3, |p| !condition(p, &last).is_empty()).await?;
        }
        // First results are written, later ones are not.
        tokio::time::sleep(Duration::from_secs(15)).await;
        let before = daemon(t, handler).await?;
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let after = daemon(t, handler).await?;
        let (cpu, runs) = (after.0 - before.0, after.1 - before.1);
        let reached = runs / seconds as f64;
        let cost = if runs > 0.0 { cpu / runs * 100.0 * 100.0 } else { f64::NAN };
        let what = format!("daemon: processor time of 100 {handler} probes a second ({reached:.0} a second run)");
        table.row(&what, "3 % of a core", format!("{cost:.2} %"));
        t.remove("PodProbeMarker", handler).await?;
        t.gone("PodProbeMarker", handler).await?;
    }
    for i in 0..PODS {
        t.remove("Pod", &format!("probed-{i}")).await?;
    }
    for i in 0..PODS {
        t.gone("Pod", &format!("probed-{i}")).await?;
    }
    Ok(())
}
