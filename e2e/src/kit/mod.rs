//! The toolkit of the tests: a namespace per test, objects as JSON, waiting by watch, and a hand on the runtime.
//!
//! Objects are plain JSON, so that a test sees exactly what a user sees, and can send what no client library would.

mod kinds;
mod known;
mod node;
mod objects;
mod plugin;
mod runtime;
mod switches;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::{FutureExt, StreamExt, pin_mut};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher;
use kube::{Client, Config};
use serde_json::{Value, json};

use self::kinds::resource;
pub use self::kinds::{Installed, installed};
pub use self::node::{Node, poll};
pub use self::objects::{
    Build, Look, app, condition, crr, events_of, pod, restart_of, shell, stubborn, workload, written,
};
pub use self::plugin::plugin_command;
pub use self::runtime::{Exit, RuntimeEvents};
pub use self::switches::GATES;
use crate::cmd::{Answer, CommandExt, kubectl};
use crate::paths::{Paths, SYSTEM};

/// Long enough for anything that is not itself a wait; a test that needs longer says so.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// One test: its namespace and the way to the cluster.
#[derive(Clone)]
pub struct Test {
    pub paths: Paths,
    pub client: Client,
    pub namespace: String,
}

/// Runs a test in a namespace of its own. When the test fails, everything that helps to understand it is printed. The
/// namespace goes in any case: tests after it want a cluster without workloads of others.
pub async fn in_namespace(name: &str, body: impl AsyncFnOnce(&Test) -> Result<()>) -> Result<()> {
    let test = Test::new(name).await?;
    let start = Instant::now();
    let result = AssertUnwindSafe(body(&test)).catch_unwind().await;
    match &result {
        Ok(Ok(())) => took(&test.paths, name, start.elapsed()),
        Ok(Err(error)) => eprintln!("=== {name} failed: {error:#}"),
        Err(_) => eprintln!("=== {name} panicked"),
    }
    if !matches!(result, Ok(Ok(()))) {
        test.report().await;
    }
    let removed = test.remove("Namespace", &test.namespace).await;
    match result {
        Ok(result) => result.and(removed),
        Err(panic) => resume_unwind(panic),
    }
}

/// Runs a part of a test, and puts back what it has changed, also when it fails or an assertion in it does: the tests
/// after it want the cluster as it was.
pub async fn restoring<T>(body: impl Future<Output = Result<T>>, undo: impl Future<Output = Result<()>>) -> Result<T> {
    let result = AssertUnwindSafe(body).catch_unwind().await;
    let undone = undo.await;
    let value = result.unwrap_or_else(|panic| resume_unwind(panic))?;
    undone.map(|()| value)
}

/// For the table at the end of a run.
pub fn took(paths: &Paths, name: &str, time: Duration) {
    use std::io::Write;
    println!("{name}: {:.1} s", time.as_secs_f64());
    let file = std::fs::File::options().create(true).append(true).open(paths.durations());
    // without the file the table is shorter
    let _ = file.and_then(|mut file| writeln!(file, "{:.1} {name}", time.as_secs_f64()));
}

impl Test {
    /// Connects and makes a namespace whose name begins with `name`.
    pub async fn new(name: &str) -> Result<Self> {
        let paths = Paths::default();
        let kubeconfig = paths.kubeconfig();
        ensure!(
            kubeconfig.exists(),
            "no cluster: {} does not exist. Run `make e2e`, or `make cluster` and then this test.",
            kubeconfig.display()
        );
        let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.connect_timeout = Some(Duration::from_secs(10));
        let client = Client::try_from(config)?;
        // unique, so that a test can be run again beside the namespace of its failure
        let unique = jiff::Timestamp::now().as_millisecond() % 100_000_000;
        let test = Self { paths, client, namespace: format!("{name}-{unique}") };
        let namespace = json!({ "kind": "Namespace", "metadata": { "name": test.namespace } });
        test.create(namespace).await.context("no answer from the cluster: is it up (`make cluster`)?")?;
        // Pods are refused before their service account is there
        test.wait("ServiceAccount", "default", "to exist", PATIENCE, |o| o.is_some()).await?;
        Ok(test)
    }

    /// The collection of a kind: in the test's namespace, or cluster-wide for kinds without namespaces.
    pub fn api(&self, kind: &str) -> Api<DynamicObject> {
        self.api_in(&self.namespace, kind)
    }

    pub fn api_in(&self, namespace: &str, kind: &str) -> Api<DynamicObject> {
        self.collection(namespace, kind, None)
    }

    /// An object as it is now, found by its version and kind: two groups have a StatefulSet.
    pub async fn stored(&self, object: &Value) -> Result<Value> {
        let (version, kind) = (object.text("/apiVersion"), object.text("/kind"));
        let found = self.collection(&self.namespace, kind, Some(version)).get(object.text("/metadata/name")).await?;
        Ok(serde_json::to_value(found)?)
    }

    fn collection(&self, namespace: &str, kind: &str, version: Option<&str>) -> Api<DynamicObject> {
        let (resource, namespaced) = resource(kind, version);
        if namespaced {
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        } else {
            Api::all_with(self.client.clone(), &resource)
        }
    }

    /// Creates an object. `apiVersion` and the namespace may be left out.
    pub async fn create(&self, object: Value) -> Result<Value> {
        let kind = object.text("/kind").to_owned();
        let version = object.get("apiVersion").and_then(Value::as_str).map(str::to_owned);
        let (resource, namespaced) = resource(&kind, version.as_deref());
        let object = object.with("/apiVersion", resource.api_version.as_str());
        let api: Api<DynamicObject> = if namespaced {
            let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str);
            Api::namespaced_with(self.client.clone(), namespace.unwrap_or(&self.namespace), &resource)
        } else {
            Api::all_with(self.client.clone(), &resource)
        };
        let object: DynamicObject = serde_json::from_value(object).context("not an object")?;
        let made = api.create(&PostParams::default(), &object).await?;
        Ok(serde_json::to_value(made)?)
    }

    /// The HTTP code and the message with which an object is refused; an error if it is accepted.
    pub async fn refused(&self, object: Value) -> Result<(u16, String)> {
        match self.create(object).await {
            Ok(made) => bail!("{} was accepted", made.text("/metadata/name")),
            Err(error) => match error.downcast_ref::<kube::Error>() {
                Some(kube::Error::Api(status)) => Ok((status.code, status.message.clone())),
                _ => Err(error),
            },
        }
    }

    pub async fn find(&self, kind: &str, name: &str) -> Result<Option<Value>> {
        let object = self.api(kind).get_opt(name).await?;
        object.map(serde_json::to_value).transpose().map_err(Into::into)
    }

    pub async fn get(&self, kind: &str, name: &str) -> Result<Value> {
        self.find(kind, name).await?.with_context(|| format!("{kind} {name} does not exist"))
    }

    pub async fn list(&self, kind: &str, labels: &str) -> Result<Vec<Value>> {
        self.list_in(&self.namespace, kind, labels).await
    }

    pub async fn list_in(&self, namespace: &str, kind: &str, labels: &str) -> Result<Vec<Value>> {
        let list = self.api_in(namespace, kind).list(&ListParams::default().labels(labels)).await?;
        list.items.into_iter().map(|o| serde_json::to_value(o).map_err(Into::into)).collect()
    }

    /// Merge patch.
    pub async fn patch(&self, kind: &str, name: &str, patch: Value) -> Result<Value> {
        let made = self.api(kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(serde_json::to_value(made)?)
    }

    /// Deletes an object and does not wait; one that is gone already is fine.
    pub async fn remove(&self, kind: &str, name: &str) -> Result<()> {
        match self.api(kind).delete(name, &DeleteParams::default()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Watches one object until it fits; the error shows it as it was last. `None` means that it does not exist.
    pub async fn wait(
        &self,
        kind: &str,
        name: &str,
        what: &str,
        patience: Duration,
        fits: impl Fn(Option<&Value>) -> bool,
    ) -> Result<Option<Value>> {
        let stream = watcher::watch_object(self.api(kind), name);
        pin_mut!(stream);
        let mut last = None;
        let found = tokio::time::timeout(patience, async {
            while let Some(next) = stream.next().await {
                // the stream mends itself: an error is one lost connection
                let Ok(object) = next else { continue };
                last = object.map(serde_json::to_value).transpose()?;
                if fits(last.as_ref()) {
                    return Ok(());
                }
            }
            bail!("the watch ended")
        })
        .await;
        match found {
            Ok(result) => result.map(|()| last),
            Err(_) => {
                let object = last.map_or("it does not exist".to_owned(), |o| objects::short(&o));
                bail!("waited {} s for {kind} {name} {what}; last seen:\n{object}", patience.as_secs())
            }
        }
    }

    /// [`Self::wait`] for an object that has to exist.
    pub async fn wait_for(
        &self,
        kind: &str,
        name: &str,
        what: &str,
        patience: Duration,
        fits: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let found = self.wait(kind, name, what, patience, |o| o.is_some_and(&fits)).await?;
        found.context("the object is there")
    }

    pub async fn gone(&self, kind: &str, name: &str) -> Result<()> {
        self.wait(kind, name, "to be gone", PATIENCE, |o| o.is_none()).await.map(drop)
    }

    /// The minor version of the kubelet that a Pod is on.
    pub async fn kubelet_minor(&self, pod: &Value) -> Result<u32> {
        let node = self.get("Node", pod.text("/spec/nodeName")).await?;
        let version = node.text("/status/nodeInfo/kubeletVersion");
        let minor = version.split('.').nth(1).and_then(|minor| minor.parse().ok());
        minor.with_context(|| format!("the version of kubelet: {version}"))
    }

    /// Creates a Pod and waits until it is Ready.
    pub async fn start(&self, pod: Value) -> Result<Value> {
        let name = pod.text("/metadata/name").to_owned();
        self.create(pod).await?;
        self.ready(&name).await
    }

    pub async fn ready(&self, pod: &str) -> Result<Value> {
        self.wait_for("Pod", pod, "to be Ready", PATIENCE, |p| condition(p, "Ready") == "True").await
    }

    /// Creates a request for the containers of a Pod.
    pub async fn restart(&self, name: &str, pod: &str, containers: &[&str]) -> Result<Value> {
        self.create(crr(name, pod, containers)).await
    }

    pub async fn completed(&self, request: &str) -> Result<Value> {
        self.completed_within(request, PATIENCE).await
    }

    pub async fn completed_within(&self, request: &str, patience: Duration) -> Result<Value> {
        let kind = "ContainerRecreateRequest";
        self.wait_for(kind, request, "to be Completed", patience, |o| o.text("/status/phase") == "Completed").await
    }

    /// Waits until a request is Completed, and checks that every container of it Succeeded.
    pub async fn succeeded(&self, request: &str) -> Result<Value> {
        let done = self.completed(request).await?;
        for state in done.array("/status/containerRecreateStates") {
            ensure!(state.text("/phase") == "Succeeded", "not Succeeded:\n{}", objects::short(&done));
        }
        ensure!(done.text("/status/message").is_empty(), "it has a message:\n{}", objects::short(&done));
        let (states, listed) = (done.array("/status/containerRecreateStates"), done.array("/spec/containers"));
        ensure!(states.len() == listed.len(), "not every container has a state:\n{}", objects::short(&done));
        Ok(done)
    }

    /// Keeps every state of an object from now on, with the moment it was seen. The object need not exist yet.
    pub async fn record(&self, kind: &str, name: &str) -> Result<Recording> {
        let seen: Arc<Mutex<Vec<(Instant, Value)>>> = Arc::default();
        let stream = watcher::watch_object(self.api(kind), name);
        let kept = Arc::clone(&seen);
        let (began, begins) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(async move {
            pin_mut!(stream);
            let mut began = Some(began);
            while let Some(next) = stream.next().await {
                let Ok(object) = next else { continue };
                began.take().map(|began| began.send(()));
                let Some(object) = object else { continue };
                let (Ok(object), Ok(mut kept)) = (serde_json::to_value(object), kept.lock()) else { return };
                kept.push((Instant::now(), object));
            }
        });
        begins.await.context("the watch began")?;
        Ok(Recording { seen, task })
    }

    /// The containers of a Pod as its status has them, by name.
    pub async fn containers(&self, pod: &str) -> Result<BTreeMap<String, Container>> {
        Ok(Container::all(&self.get("Pod", pod).await?))
    }

    /// Runs a shell command in a container.
    pub async fn exec(&self, pod: &str, container: &str, script: &str) -> Result<String> {
        let args = ["exec", "-n", &self.namespace, pod, "-c", container, "--", "sh", "-c", script].map(str::to_owned);
        let answer = self.run(kubectl(&self.paths, args)).await?;
        ensure!(answer.ok, "in {pod}/{container}: {script}: {}", answer.stderr.trim());
        Ok(answer.stdout.trim().to_owned())
    }

    /// kubectl in the namespace of the test; standard output, or an error with the standard error.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String> {
        let mut command = kubectl(&self.paths, ["-n", &self.namespace]);
        command.args(args);
        let answer = self.run(command).await?;
        ensure!(answer.ok, "kubectl {}: {}", args.join(" "), answer.stderr.trim());
        Ok(answer.stdout)
    }

    /// Applies a manifest as a user does; standard output and error, warnings included.
    pub async fn apply(&self, manifest: &Value) -> Result<Answer> {
        let file = std::env::temp_dir().join(format!("{}-{}.json", self.namespace, manifest.text("/metadata/name")));
        std::fs::write(&file, manifest.to_string())?;
        let mut command = kubectl(&self.paths, ["-n", &self.namespace, "apply", "-f"]);
        command.arg(&file);
        let answer = self.run(command).await;
        let _ = std::fs::remove_file(&file);
        answer
    }

    /// Runs a program without holding up the other tasks of the test.
    pub async fn run(&self, mut command: Command) -> Result<Answer> {
        tokio::task::spawn_blocking(move || command.answer()).await?
    }

    /// Messages of the events about an object, oldest first, as "reason: message".
    pub async fn events(&self, kind: &str, name: &str) -> Result<Vec<String>> {
        Ok(events_of(&self.list("Event", "").await?, kind, name))
    }

    /// Waits until the events about an object fit.
    pub async fn wait_events(&self, kind: &str, name: &str, fits: impl Fn(&[String]) -> bool) -> Result<Vec<String>> {
        let start = Instant::now();
        loop {
            let events = self.events(kind, name).await?;
            if fits(&events) {
                return Ok(events);
            }
            ensure!(start.elapsed() < PATIENCE, "events of {kind} {name}: {events:#?}");
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    /// The node and what runs on it.
    pub fn node(&self) -> Node<'_> {
        Node { test: self }
    }

    async fn report(&self) {
        let ns = self.namespace.as_str();
        let everything = "pods,services,endpointslices,poddisruptionbudgets,persistentvolumeclaims,controllerrevisions,\
             clonesets,containerrecreaterequests,workloadrestarts,podprobemarkers";
        for args in [
            &["get", everything, "-n", ns, "-o", "wide"][..],
            &["get", "clonesets,containerrecreaterequests,workloadrestarts,podprobemarkers", "-n", ns, "-o", "yaml"],
            &["get", "nodepodprobes", "-o", "yaml"],
            &["describe", "pods", "-n", ns],
            &["get", "events", "-n", ns, "--sort-by=.metadata.creationTimestamp"],
            &["get", "pods", "-n", SYSTEM, "-o", "wide"],
            &["logs", "-n", SYSTEM, "-l", "control-plane", "--all-containers", "--prefix", "--tail=30"],
        ] {
            let answer = self.run(kubectl(&self.paths, args)).await;
            let text = answer.map_or_else(|e| e.to_string(), |a| a.stdout + &a.stderr);
            eprintln!("--- kubectl {}\n{}", args.join(" "), text.trim_end());
        }
        eprintln!("--- logs of the cluster: {}", self.paths.logs().display());
    }
}

/// The states of an object in the order in which a watch showed them.
pub struct Recording {
    seen: Arc<Mutex<Vec<(Instant, Value)>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Recording {
    pub fn states(&self) -> Vec<(Instant, Value)> {
        self.seen.lock().map(|seen| seen.clone()).unwrap_or_default()
    }

    /// The first state that fits, with its moment. A recording is a watch of its own: what another watch has shown already
    /// may still have to come.
    pub async fn seen(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Result<(Instant, Value)> {
        let start = Instant::now();
        loop {
            if let Some(found) = self.states().into_iter().find(|(_, object)| fits(object)) {
                return Ok(found);
            }
            ensure!(start.elapsed() < PATIENCE, "the recording never showed {what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The values of one field, each time it changed.
    pub fn changes(&self, pointer: &str) -> Vec<String> {
        let mut values: Vec<String> = self.states().iter().map(|(_, o)| o.text(pointer).to_owned()).collect();
        values.dedup();
        values
    }

    /// When the object was first seen to fit.
    pub fn first(&self, fits: impl Fn(&Value) -> bool) -> Option<Instant> {
        self.states().into_iter().find(|(_, o)| fits(o)).map(|(at, _)| at)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How many Pods were unavailable at a time, as a watch showed it.
pub struct Availability {
    seen: Arc<Mutex<(BTreeMap<String, bool>, usize)>>,
    task: tokio::task::JoinHandle<()>,
}

impl Availability {
    /// The most Pods that were missing or not ready at one moment, of those that there were at first.
    pub fn most_unavailable(&self) -> usize {
        self.seen.lock().map(|seen| seen.1).unwrap_or(usize::MAX)
    }
}

impl Drop for Availability {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Test {
    /// Watches the Pods with a label, all of which are ready now.
    pub async fn availability(&self, labels: &str) -> Result<Availability> {
        let stream = watcher::watcher(self.api("Pod"), watcher::Config::default().labels(labels));
        let seen: Arc<Mutex<(BTreeMap<String, bool>, usize)>> = Arc::default();
        let kept = Arc::clone(&seen);
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(async move {
            pin_mut!(stream);
            let (mut ready, mut wanted) = (Some(ready), 0_usize);
            while let Some(event) = stream.next().await {
                let Ok(event) = event else { continue };
                let Ok(mut kept) = kept.lock() else { return };
                match event {
                    watcher::Event::Apply(pod) | watcher::Event::InitApply(pod) => {
                        let Ok(pod) = serde_json::to_value(pod) else { return };
                        let available = condition(&pod, "Ready") == "True" && !pod.has("/metadata/deletionTimestamp");
                        kept.0.insert(pod.text("/metadata/name").to_owned(), available);
                    }
                    watcher::Event::Delete(pod) => {
                        kept.0.remove(&pod.metadata.name.unwrap_or_default());
                    }
                    watcher::Event::Init => {}
                    watcher::Event::InitDone => {
                        ready.take().map(|ready| ready.send(()));
                    }
                }
                // one that goes and the one that replaces it are one
                let available = kept.0.values().filter(|available| **available).count();
                if ready.is_none() {
                    kept.1 = kept.1.max(wanted.saturating_sub(available));
                } else {
                    wanted = kept.0.len();
                }
            }
        });
        is_ready.await.context("the watch began")?;
        Ok(Availability { seen, task })
    }
}

/// What a Pod's status says of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Without the runtime's name.
    pub id: String,
    pub restarts: i64,
    pub ready: bool,
    pub started: String,
}

impl Container {
    pub fn all(pod: &Value) -> BTreeMap<String, Self> {
        let statuses = pod.array("/status/containerStatuses").iter();
        statuses
            .map(|s| {
                let id = s.text("/containerID");
                let container = Self {
                    id: id.split_once("://").map_or(id, |(_, id)| id).to_owned(),
                    restarts: s.int("/restartCount"),
                    ready: s.pointer("/ready").and_then(Value::as_bool).unwrap_or_default(),
                    started: s.text("/state/running/startedAt").to_owned(),
                };
                (s.text("/name").to_owned(), container)
            })
            .collect()
    }
}
