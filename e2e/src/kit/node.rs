//! The node under a test: its runtime, its kubelet, the daemon of kruise-rs, and ways to break them.

use std::fs;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::FutureExt;
use serde_json::{Value, json};

use super::{Container, Look, PATIENCE, Test, condition, restoring};
use crate::cluster;
use crate::cmd::{CommandExt, ctr};
use crate::deploy;
use crate::paths::SYSTEM;
use crate::process::{self, Process};

pub struct Node<'a> {
    pub(super) test: &'a Test,
}

impl Node<'_> {
    /// Sends a signal to the main process of a container, past Kubernetes.
    pub async fn signal(&self, id: &str, signal: &str) -> Result<()> {
        let id = id.to_owned();
        let signal = signal.to_owned();
        blocking(move || ctr(["tasks", "kill", "-s", &signal, &id]).text().map(drop)).await
    }

    /// The main process of a container.
    pub async fn process(&self, id: &str) -> Result<Process> {
        let id = id.to_owned();
        blocking(move || {
            let tasks = ctr(["tasks", "ls"]).text()?;
            let line =
                tasks.lines().map(|l| l.split_whitespace().collect::<Vec<_>>()).find(|w| w.first() == Some(&&*id));
            let pid = line.and_then(|w| w.get(1)?.parse().ok()).with_context(|| format!("{id} has no process"))?;
            Process::of(pid).with_context(|| format!("{id} has ended"))
        })
        .await
    }

    /// The shim of a Pod's sandbox: stopping it (SIGSTOP) holds up every kill in the Pod, while lists still work.
    pub async fn shim(&self, container: &str) -> Result<Process> {
        let process = self.process(container).await?;
        let status = fs::read_to_string(format!("/proc/{}/status", process.pid))?;
        let parent = status.lines().find_map(|l| l.strip_prefix("PPid:")).context("a process has a parent")?;
        Process::of(parent.trim().parse()?).context("the shim runs")
    }

    /// A program of the cluster: `apiserver`, `containerd`, `kubelet`, ...
    pub fn program(&self, name: &str) -> Result<Process> {
        process::running(&self.test.paths, name).with_context(|| format!("{name} does not run"))
    }

    /// Ends a program of the cluster with a signal and starts it again.
    pub async fn restart(&self, name: &str, signal: &str) -> Result<()> {
        let (paths, name, signal) = (self.test.paths.clone(), name.to_owned(), signal.to_owned());
        blocking(move || cluster::restart(&paths, &name, &signal)).await
    }

    /// The daemon's Pod.
    pub async fn daemon(&self) -> Result<Value> {
        let pods = self.test.list_in(SYSTEM, "Pod", "").await?;
        let owned = |p: &&Value| p.array("/metadata/ownerReferences").iter().any(|o| o.text("/kind") == "DaemonSet");
        // Others are of nodes that a test has made and removed.
        let alive =
            |p: &&Value| !p.has("/metadata/deletionTimestamp") && p.text("/spec/nodeName") == crate::paths::NODE;
        pods.iter().filter(owned).find(alive).cloned().context("no Pod of a DaemonSet runs in the system namespace")
    }

    /// The daemon's own process on this machine.
    pub async fn daemon_process(&self) -> Result<Process> {
        self.process_of(&self.daemon().await?).await
    }

    /// The process of a Pod that has one container.
    pub async fn process_of(&self, pod: &Value) -> Result<Process> {
        let containers = Container::all(pod);
        let container = containers.values().next().context("the Pod has a container")?;
        self.process(&container.id).await
    }

    /// The Pods of a Deployment of the installation that are not being deleted.
    pub async fn replicas(&self, deployment: &str) -> Result<Vec<Value>> {
        let mut pods = self.test.list_in(SYSTEM, "Pod", "").await?;
        pods.retain(|p| p.text("/metadata/name").starts_with(deployment) && !p.has("/metadata/deletionTimestamp"));
        Ok(pods)
    }

    /// Waits until none of these Pods of ours is left.
    pub async fn gone(&self, labels: &str, these: fn(&Value) -> bool) -> Result<()> {
        poll(&format!("Pods {labels} to be gone"), PATIENCE, async || {
            let pods = self.test.list_in(SYSTEM, "Pod", labels).await?;
            ensure!(!pods.iter().any(these), "some are still there");
            Ok(())
        })
        .await
    }

    /// Does something while no daemon runs: its DaemonSet selects no node.
    pub async fn without_daemon(&self, body: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
        let name = self.daemon().await?.text("/metadata/ownerReferences/0/name").to_owned();
        let select = async |node: Value| {
            let selector = json!({ "spec": { "template": { "spec": { "nodeSelector": { "e2e/none": node } } } } });
            let patch = kube::api::Patch::Merge(selector);
            let api = self.test.api_in(SYSTEM, "DaemonSet");
            api.patch(&name, &kube::api::PatchParams::default(), &patch).await.map(drop)
        };
        select(json!("such")).await?;
        // One that is being deleted may still take up a request. An assertion that fails must not leave all tests after it
        // without a daemon.
        let result = match self.gone("control-plane=daemon", |_| true).await {
            Ok(()) => AssertUnwindSafe(body()).catch_unwind().await,
            error => Ok(error),
        };
        select(Value::Null).await?;
        poll("the daemon to be back", PATIENCE, async || self.daemon().await.map(drop)).await?;
        let back = self.daemon_ready().await;
        result.unwrap_or_else(|panic| resume_unwind(panic)).and(back)
    }

    /// SIGKILL: what a crash or a full memory does to the daemon. kubelet starts it again.
    pub async fn kill_daemon(&self) -> Result<()> {
        let process = self.daemon_process().await?;
        process.signal("KILL");
        ensure!(process.wait_end(Duration::from_secs(5)), "the daemon survives SIGKILL");
        Ok(())
    }

    /// Waits until the daemon runs and is Ready.
    pub async fn daemon_ready(&self) -> Result<()> {
        poll("the daemon to be Ready", PATIENCE, async || {
            let pod = self.daemon().await?;
            ensure!(condition(&pod, "Ready") == "True", "it is not");
            self.daemon_process().await.map(drop)
        })
        .await
    }

    /// A new Pod for the daemon: restarts by kubelet wait longer each time, a new Pod begins anew.
    pub async fn fresh_daemon(&self) -> Result<()> {
        let pod = self.daemon().await?;
        let api = self.test.api_in(SYSTEM, "Pod");
        // in order: both would want the same port of the host
        api.delete(pod.text("/metadata/name"), &kube::api::DeleteParams::default()).await?;
        let old = pod.text("/metadata/uid").to_owned();
        poll("a new daemon", PATIENCE, async || {
            ensure!(self.daemon().await?.text("/metadata/uid") != old, "the old one is still there");
            Ok(())
        })
        .await?;
        self.daemon_ready().await
    }

    /// Runs a part of a test with so many replicas of a Deployment of the installation, and puts back how many it had, also
    /// when the part, or the scaling, fails.
    pub async fn with_replicas<T>(
        &self,
        deployment: &str,
        replicas: u32,
        body: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let object = self.test.api_in(SYSTEM, "Deployment").get(deployment).await?;
        let before = u32::try_from(serde_json::to_value(object)?.int("/spec/replicas"))?;
        let scaled = async {
            self.scale(deployment, replicas).await?;
            body.await
        };
        restoring(scaled, async { self.scale(deployment, before).await.map(drop) }).await
    }

    /// Scales a Deployment of the installation and waits for it.
    pub async fn scale(&self, deployment: &str, replicas: u32) -> Result<u32> {
        let api = self.test.api_in(SYSTEM, "Deployment");
        let before = serde_json::to_value(api.get(deployment).await?)?.int("/spec/replicas");
        let patch = kube::api::Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        api.patch(deployment, &kube::api::PatchParams::default(), &patch).await?;
        poll("the Deployment to be scaled", PATIENCE, async || {
            let now = serde_json::to_value(api.get(deployment).await?)?;
            let (ready, all) = (now.int("/status/readyReplicas"), now.int("/status/replicas"));
            ensure!(ready == i64::from(replicas) && all == ready, "{ready} of {all} are ready");
            if replicas == 0 {
                // Those that are being deleted count no more, and still answer on connections that are open.
                let pods = self.test.list_in(SYSTEM, "Pod", "").await?;
                let left = pods.iter().filter(|p| p.text("/metadata/name").starts_with(deployment)).count();
                ensure!(left == 0, "{left} have not ended");
            }
            Ok(())
        })
        .await?;
        Ok(u32::try_from(before)?)
    }

    /// Deploys kruise-rs anew, for a test that has removed it.
    pub async fn deploy(&self) -> Result<()> {
        let paths = self.test.paths.clone();
        blocking(move || deploy::deploy(&paths)).await?;
        self.test.webhook_answers().await
    }

    pub async fn undeploy(&self, crds: bool) -> Result<()> {
        let paths = self.test.paths.clone();
        blocking(move || deploy::undeploy(&paths, crds, None)).await
    }

    /// The same with the definitions, where the script waits for so long at most: for managers that are dead it waits in vain.
    pub async fn undeploy_within(&self, timeout: &'static str) -> Result<()> {
        let paths = self.test.paths.clone();
        blocking(move || deploy::undeploy(&paths, true, Some(timeout))).await
    }

    /// Puts a manifest where kubelet finds static Pods, or takes it away with the guard.
    pub fn static_pod(&self, pod: &Value) -> Result<StaticPod> {
        let pod = pod.clone();
        let file = self.test.paths.static_pods().join(format!("{}.yaml", pod.text("/metadata/name")));
        fs::write(&file, serde_yaml::to_string(&pod)?)?;
        Ok(StaticPod { file: file.into() })
    }
}

/// The manifest of a static Pod; the Pod goes with it.
pub struct StaticPod {
    file: Box<Path>,
}

impl Drop for StaticPod {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await?
}

/// Tries every 200 ms until it works.
pub async fn poll<T>(what: &str, patience: Duration, attempt: impl AsyncFn() -> Result<T>) -> Result<T> {
    let start = std::time::Instant::now();
    loop {
        match attempt().await {
            Ok(found) => return Ok(found),
            Err(error) => ensure!(start.elapsed() < patience, "waited {} s for {what}: {error:#}", patience.as_secs()),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
