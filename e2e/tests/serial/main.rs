//! Tests that disturb the whole cluster: one after the other, each leaves it working.

#![allow(clippy::disallowed_methods, reason = "tests look at the clock")]

mod away;
mod budgets;
mod certificates;
mod claims;
mod client_certificates;
mod clone_set_random;
mod components;
mod daemon;
mod daemon_gone;
mod daemon_set;
mod deletion_protection;
mod gated;
mod gone;
mod helm;
mod helm_takeover;
mod hostile_objects;
mod image_nodes;
mod installation;
mod leaders;
mod leftovers;
mod methods;
mod openkruise;
mod persistent_pod_state;
mod phases;
mod plugin;
mod policies;
mod pre_download;
mod resize;
mod resource_distribution;
mod restarts_go_on;
mod serverless_probes;
mod sidecar_set;
mod sidecar_terminator;
mod start_ordinal;
mod takeover;
mod tenants;
mod token_writes;
mod used_rights;
mod workload_spread;

use std::time::Duration;

use anyhow::Result;
use e2e::kit::{Build, Test, in_namespace, pod, restoring, shell};
use e2e::process::Process;
use serde_json::{Value, json};

const CRR: &str = "ContainerRecreateRequest";
const MANAGER: &str = "kruise-controller-manager";
const WEBHOOK: &str = "kruise-webhook";
/// For a request that is disturbed.
const LONG: Duration = Duration::from_secs(90);

/// A test that kills the daemon. It begins and ends with one that was never restarted, because kubelet waits longer
/// before each restart.
async fn with_daemon(name: &str, body: impl AsyncFnOnce(&Test) -> Result<()>) -> Result<()> {
    in_namespace(name, async |t| {
        t.node().daemon_ready().await?;
        restoring(body(t), t.node().fresh_daemon()).await
    })
    .await
}

const UNTIL_GO: &str = "while [ ! -e /kept/go ]; do sleep 0.2; done";

/// A Pod whose first container keeps files in /kept, over its restarts.
fn keeping(name: &str, main: Value, others: Vec<Value>) -> Value {
    let main = main.with("/volumeMounts", json!([{ "name": "kept", "mountPath": "/kept" }]));
    let containers = std::iter::once(main).chain(others).collect();
    pod(name, containers).with("/spec/volumes", json!([{ "name": "kept", "emptyDir": {} }]))
}

/// A container that writes down that it was asked to stop, and stops when told to go on.
fn slow(name: &str) -> Value {
    shell(name, &format!("trap 'touch /kept/asked; {UNTIL_GO}; exit 0' TERM"))
}

/// A container of a Pod that keeps files: ready at once the first time, and after that when told to go on.
fn late(name: &str) -> Value {
    let test = json!(["sh", "-c", "[ -e /tmp/first ] || [ -e /kept/go ]"]);
    shell(name, "[ -e /kept/started ] || touch /tmp/first; touch /kept/started")
        .with("/readinessProbe", json!({ "periodSeconds": 1, "exec": { "command": test } }))
}

/// Waits for a file in a Pod's first container.
async fn until_kept(t: &Test, pod: &str, file: &str) -> Result<()> {
    let script = format!("for i in $(seq 300); do [ -e /kept/{file} ] && exit 0; sleep 0.2; done; exit 1");
    t.exec(pod, "main", &script).await.map(drop)
}

/// A process that is stopped (SIGSTOP) until this goes out of scope.
struct Frozen(Process);

impl Frozen {
    fn new(process: Process) -> Self {
        process.signal("STOP");
        Self(process)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.0.signal("CONT");
    }
}
