//! Reports the hashes of what a Pod's containers run, and restarts containers whose environment has changed.
//!
//! Owns: the annotation `apps.kruise.io/runtime-containers-meta` of this node's Pods that Kruise workloads control or that
//! have SidecarSets. Watches: the Pods of its node; reads a full Pod from the API server when the annotation may have to
//! change. Never: writes any other field of a Pod, or stops a container outside an in-place update.
//!
//! The environment of a container is read from the runtime, once. Only if the runtime does not report it, the program
//! `env` is run in the container.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use kube::{
    Api, Client as KubeClient,
    api::{GetParams, Patch, PatchParams, Request},
};
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};

use super::{
    hooks,
    recreate::{PassError, container_ref, observe::instance},
    runtimes::Runtimes,
    stops::{By, KEEP},
};
use crate::{
    api::labels,
    cri::{client::Client as CriClient, proto::Container, types::CriError},
    domain::{
        node::container_meta::{self as rules, Found, Report},
        node::recreate::node::{Kill, stop_grace},
        pod::runtime_meta::RuntimeMeta,
    },
    k8s::{
        account, container_id, path,
        pod::{PodObject, PodView},
    },
    runtime::{
        apply::code,
        clock,
        events::Recorder,
        queue::{Backoff, Interrupt, Queue, Requeue},
        watches::{ObjectKey, Store},
    },
};

/// Pods that are processed at the same time: most of them wait for a container to end.
const WORKERS: usize = 1024;
/// Full Pods that are held in memory at the same time.
const READS: usize = 4;
/// Timeout of the program `env`.
const EXEC_LIMIT: Duration = Duration::from_secs(3);
/// Retry interval while the runtime does not show a container yet, or another task is stopping it.
const LOOK_AGAIN: Duration = Duration::from_secs(3);

/// Which parts are enabled.
#[derive(Clone, Copy, Debug)]
pub struct Gates {
    /// Feature gate DaemonWatchingPod: all of it.
    pub watch_pods: bool,
    /// Feature gate InPlaceUpdateEnvFromMetadata: hashes of environments, and restarts for them.
    pub environment: bool,
}

/// Serves the Pods of one node.
pub struct ContainerMeta {
    kube: KubeClient,
    pods: Arc<Store<PodView>>,
    runtimes: Runtimes,
    events: Recorder,
    gates: Gates,
    queue: Arc<Queue<ObjectKey>>,
    reads: Semaphore,
    /// Fingerprints of Pods whose annotation is complete.
    settled: Mutex<HashMap<ObjectKey, u64>>,
}

impl ContainerMeta {
    /// For the Pods in `pods`.
    pub fn new(
        kube: KubeClient,
        pods: Arc<Store<PodView>>,
        runtimes: Runtimes,
        events: &Recorder,
        gates: Gates,
    ) -> Arc<Self> {
        let events = events.named(account::EVENTS_OF_CONTAINERS);
        let (queue, reads) = (Queue::new(Backoff::default()), Semaphore::new(READS));
        Arc::new(Self { kube, pods, runtimes, events, gates, queue, reads, settled: Mutex::default() })
    }

    /// Works until `shutdown` turns true.
    pub async fn run(self: Arc<Self>, shutdown: watch::Receiver<bool>) {
        let queue = self.queue.clone();
        queue.run(WORKERS, shutdown, move |key, interrupt| self.clone().reconcile(key, interrupt)).await;
    }

    /// A Pod was added or changed.
    pub fn pod_changed(&self, pod: &PodView) {
        if !self.gates.watch_pods || !rules::is_eligible(pod) {
            return;
        }
        let key = ObjectKey::of(pod);
        let is_settled = self.settled().get(&key) == Some(&rules::fingerprint(pod));
        // An update in place changes labels and annotations, which the view does not show.
        if !is_settled || (self.gates.environment && rules::is_updating(pod)) {
            self.queue.add(key);
        }
    }

    /// A Pod is gone.
    pub fn pod_gone(&self, pod: &PodView) {
        self.settled().remove(&ObjectKey::of(pod));
    }

    fn settled(&self) -> MutexGuard<'_, HashMap<ObjectKey, u64>> {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the annotation of one Pod, then stops the containers that have to be restarted. During a stop the annotation
    /// is still updated for the other containers of the Pod.
    async fn reconcile(self: Arc<Self>, key: ObjectKey, interrupt: Interrupt) -> Result<Requeue, PassError> {
        let Some(PodFindings { view, due, requeue }) = self.report(&key).await? else { return Ok(Requeue::Await) };
        if due.is_empty() {
            return Ok(requeue);
        }
        let reports = async {
            loop {
                interrupt.raised().await;
                match self.report(&key).await {
                    Ok(Some(_)) => {}
                    Ok(None) => return,
                    Err(error) => tracing::debug!(pod = %key, %error, "not reported; the next pass does it"),
                }
            }
        };
        tokio::select! {
            outcomes = join_all(due.iter().map(|kill| self.restart(&view, kill))) => {
                let all_stopped = outcomes.into_iter().collect::<Result<Vec<bool>, _>>()?.into_iter().all(|s| s);
                Ok(if all_stopped { requeue } else { Requeue::After(LOOK_AGAIN) })
            }
            // kubelet ends the Pod; a stop that was sent continues in the runtime.
            () = reports => Ok(Requeue::Await),
        }
    }

    /// Updates the annotation. None: the Pod needs none.
    async fn report(&self, key: &ObjectKey) -> Result<Option<PodFindings>, PassError> {
        let Some(view) = self.pods.get(key).filter(|pod| rules::is_eligible(pod)) else { return Ok(None) };
        let _permit = self.reads.acquire().await;
        let Some(pod) = self.read(key, &view).await? else { return Ok(None) };
        let reported = RuntimeMeta::of(&pod);
        let with_environment = self.gates.environment;
        let mut report = rules::report(&pod, reported.as_ref(), &[], with_environment);
        let may_be_due =
            |report: &Report| if with_environment { rules::outdated(&pod, &report.meta) } else { Vec::new() };
        let is_known = report.missing.is_empty() && report.unread.is_empty() && may_be_due(&report).is_empty();
        if is_known && reported.as_ref() == Some(&report.meta) {
            self.settled().insert(key.clone(), rules::live_fingerprint(&pod));
            return Ok(Some(PodFindings { view, due: Vec::new(), requeue: Requeue::Await }));
        }

        let found = if is_known { Vec::new() } else { self.find(&pod, &view).await? };
        report = rules::report(&pod, reported.as_ref(), &found, with_environment);
        let read = self.read_environments(&pod, &mut report).await;
        if !report.meta.containers.is_empty() && reported.as_ref() != Some(&report.meta) {
            self.write(key, &view, &report.meta).await?;
        }
        read?;
        if !report.is_awaited {
            self.settled().insert(key.clone(), rules::live_fingerprint(&pod));
        }
        let mut due = may_be_due(&report);
        due.retain(|kill| rules::is_running(kill, &pod, &found));
        // kubelet's status names an instance that the runtime does not list: one of the two is about to change.
        let requeue = if report.is_awaited { Requeue::After(LOOK_AGAIN) } else { Requeue::Await };
        Ok(Some(PodFindings { view, due, requeue }))
    }

    /// The full Pod, at least as new as the compact view; from the API server's watch cache.
    async fn read(&self, key: &ObjectKey, view: &PodView) -> Result<Option<Value>, PassError> {
        let get = GetParams::at(view.resource_version().unwrap_or("0"));
        let pods = Request::new(path::pods(&key.namespace));
        let request = pods.get(&key.name, &get).map_err(kube::Error::BuildRequest)?;
        let pod: Value = match self.kube.request(request).await {
            Err(error) if code(&error) == Some(404) => return Ok(None),
            other => other?,
        };
        let is_it = pod.pointer("/metadata/uid").and_then(Value::as_str) == Some(view.uid());
        Ok(Some(pod).filter(|pod| is_it && pod.pointer("/metadata/deletionTimestamp").is_none()))
    }

    /// The Pod's instances in the runtimes that its status names.
    async fn find(&self, pod: &Value, view: &PodView) -> Result<Vec<Found>, PassError> {
        let statuses = pod.pointer("/status/containerStatuses").and_then(Value::as_array).into_iter().flatten();
        let ids = statuses.filter_map(|status| status.get("containerID")?.as_str());
        let names: BTreeSet<&str> = ids.filter_map(|id| container_id::split(id).map(|(runtime, _)| runtime)).collect();
        let mut found = Vec::new();
        for name in names {
            if let Some(client) = self.runtimes.get(name) {
                let listed = client.list_containers(labels::CRI_POD_UID, view.cri_uid()).await?;
                found.extend(listed.iter().map(|container| as_found(name, container)));
            }
        }
        Ok(found)
    }

    /// Reads unknown environments from the runtimes. Those that could be read are kept even if another one fails.
    async fn read_environments(&self, pod: &Value, report: &mut Report) -> Result<(), PassError> {
        let mut result = Ok(());
        for index in report.unread.clone() {
            let id = report.meta.containers[index].container_id.clone();
            match self.environment_of(&id).await {
                Ok(Some(environment)) => report.note_environment(pod, index, &environment),
                Ok(None) => {}
                Err(error) => result = Err(error.into()),
            }
        }
        result
    }

    /// None: it cannot be read.
    async fn environment_of(&self, container_id: &str) -> Result<Option<Vec<String>>, CriError> {
        let Some((client, id)) = self.runtime_of(container_id) else { return Ok(None) };
        let info = match client.container_info(id).await {
            Err(CriError::NotFound { .. }) => return Ok(None),
            other => other?,
        };
        if let Some(environment) = info.get("info").and_then(|info| rules::environment_from_info(info)) {
            return Ok(Some(environment));
        }
        match client.exec_sync(id, &["env".to_owned()], EXEC_LIMIT).await {
            Ok(answer) if answer.exit_code == 0 => Ok(Some(rules::environment_from_output(&answer.stdout))),
            Err(error) if error.is_transient() => Err(error),
            // It has ended, or its image has no program `env`.
            other => {
                tracing::info!(container_id, ?other, "the environment of this container cannot be read");
                Ok(None)
            }
        }
    }

    fn runtime_of<'i>(&self, container_id: &'i str) -> Option<(CriClient, &'i str)> {
        let (runtime, id) = container_id::split(container_id)?;
        self.runtimes.get(runtime).map(|client| (client, id))
    }

    async fn write(&self, key: &ObjectKey, view: &PodView, meta: &RuntimeMeta) -> Result<(), PassError> {
        let text = serde_json::to_string(meta).map_err(kube::Error::SerdeError)?;
        // With the UID, so that a new Pod of the same name is not changed.
        let metadata = json!({ "uid": view.uid(), "annotations": { labels::RUNTIME_CONTAINERS_META: text } });
        let pods: Api<PodObject> = Api::namespaced(self.kube.clone(), &key.namespace);
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        match pods.patch_status(&key.name, &PatchParams::default(), &patch).await {
            Err(error) if code(&error) == Some(404) => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    /// Stops one instance, so that kubelet starts the container with the current environment. False: another task is
    /// stopping it.
    async fn restart(&self, pod: &PodView, kill: &Kill) -> Result<bool, PassError> {
        let Some((client, id)) = self.runtime_of(&kill.id) else { return Ok(false) };
        let Some(mut turn) = self.runtimes.stops.try_turn(&kill.id) else { return Ok(false) };
        if turn.stopped_by(clock::now()).is_some() {
            return Ok(true); // its successor is on the way
        }
        let about = container_ref(pod, &kill.container);
        let runtime = kill.id.strip_suffix(id).unwrap_or_default();
        // The name instead of the id: the API server aggregates events of equal text.
        let message = format!("Stopping containerID {runtime}{} by container meta restarter", kill.container);
        self.events.normal(&about, "Killing", &message);
        let begun = Instant::now();
        let mut grace = kill.grace;
        if let Some(hook) = kill.hook.as_ref().filter(|_| !turn.hook_was_run(clock::now())) {
            let result = hooks::before_stop(hook, kill, &client, id, pod, &self.runtimes.hooks).await;
            if !result.as_ref().is_err_and(|failure| failure.left_out) {
                // A stop that fails is repeated by the queue, however often.
                turn.note_hook(KEEP, clock::now());
            }
            grace = stop_grace(kill.grace, begun.elapsed());
            if let Err(hooks::Failure { message, .. }) = result {
                tracing::warn!(pod = %ObjectKey::of(pod), message, "preStop hook failed");
                self.events.warning(&about, "FailedPreStopHook", &message);
            }
        }
        tracing::info!(pod = %ObjectKey::of(pod), container = kill.container, id, ?grace, "stopping for its environment");
        match client.stop_container(id, grace).await {
            Ok(()) | Err(CriError::NotFound { .. }) => {
                turn.note_stopped(By::Environment, clock::now());
                Ok(true)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// What one pass found out about a Pod.
struct PodFindings {
    view: Arc<PodView>,
    /// Instances to stop.
    due: Vec<Kill>,
    requeue: Requeue,
}

fn as_found(runtime: &str, container: &Container) -> Found {
    let plain_hash = rules::parse_plain_hash(container.annotations.get(labels::CRI_CONTAINER_HASH));
    Found { instance: instance(runtime, container), plain_hash }
}

#[cfg(test)]
mod tests;
