//! Carries out ContainerRecreateRequests of this node.
//!
//! Owns: `status` of requests whose label names this node, while they are active. Watches: those requests and the
//! node's own Pods. Never: writes metadata, touches a Pod object, starts a container (kubelet does that), or acts on
//! a container whose runtime labels do not say that it is the one the request means.
//!
//! One reconcile per Pod at a time, so requests of one Pod are served strictly one after the other; different Pods
//! are served side by side, however long their hooks and stops take.

pub(crate) mod observe;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, Client as KubeClient, ResourceExt};
use prometheus_client::metrics::histogram::Histogram;
use tokio::time::Instant;

use self::observe::{observe, runtime_of};
use super::{
    hooks,
    runtimes::Runtimes,
    stops::{By, Known},
};
use crate::{
    api::{
        crr::{ContainerRecreateRequest, ContainerRecreateRequestStatus, Phase},
        labels,
    },
    cri::{client::Client as CriClient, types::CriError},
    domain::node::recreate::{
        News,
        kstatus::with_kstatus,
        news,
        node::{self, Kill, ObservedContainers, RestartMemory, stop_grace},
        states_of,
    },
    k8s::{container_id, pod::PodView, time::Now},
    runtime::{
        apply::{code, patch_status},
        clock,
        events::{Recorder, reference},
        metrics::{Metrics, seconds_histogram},
        queue::{self, Interrupt, Queue, Requeue},
        watches::{ObjectKey, Store, StoreIndex},
    },
};

/// Key of the queue: the UID of a Pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodUid(pub Arc<str>);

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl queue::Key for PodUid {
    /// Each Pod has its own: there are more workers than a node has Pods.
    fn share(&self) -> Arc<str> {
        self.0.clone()
    }
}

/// Why a pass could not be finished; it is repeated after a delay.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// The API server.
    #[error("API server: {0}")]
    Api(#[from] kube::Error),
    /// The runtime.
    #[error("runtime: {0}")]
    Cri(#[from] CriError),
}

/// How long to wait before it is looked again for a runtime that has not answered yet.
const LATE_RUNTIME: Duration = Duration::from_secs(1);
/// A stop that fails may be repeated for so long after the grace period.
const STOP_REPEATED: Duration = Duration::from_secs(30);
/// How long to wait before it is tried again to write that a request waits.
const REPORT_AGAIN: Duration = Duration::from_secs(3);

/// Requests by the UID of their Pod.
pub const BY_POD: StoreIndex<ContainerRecreateRequest> =
    StoreIndex::new("Pod", |request| Some(request.pod_uid().to_owned()));

/// Serves the requests of one node.
pub struct Recreator {
    kube: KubeClient,
    /// Unfinished requests of this node, indexed by the UID of their Pod; also those that the manager serves, because the
    /// requests of a Pod have one order.
    requests: Arc<Store<ContainerRecreateRequest>>,
    /// Pods of this node.
    pods: Arc<Store<PodView>>,
    runtimes: Runtimes,
    queue: Arc<Queue<PodUid>>,
    events: Recorder,
    stop_seconds: Histogram,
    restart_seconds: Histogram,
    /// By UID of the request.
    memories: Mutex<HashMap<String, RestartMemory>>,
}

impl Recreator {
    /// For the requests in `requests`.
    pub fn new(
        kube: KubeClient,
        requests: Arc<Store<ContainerRecreateRequest>>,
        pods: Arc<Store<PodView>>,
        runtimes: Runtimes,
        queue: Arc<Queue<PodUid>>,
        events: Recorder,
        metrics: &Metrics,
    ) -> Arc<Self> {
        let (stop_seconds, restart_seconds) = (seconds_histogram(), seconds_histogram());
        let about = "Time from the start of the preStop hook to the end of the container";
        metrics.register_seconds("kruise_container_stop", about, &stop_seconds);
        let about = "Time from the end of the old instance to the new one being ready";
        metrics.register_seconds("kruise_container_restart", about, &restart_seconds);
        let memories = Mutex::default();
        Arc::new(Self { kube, requests, pods, runtimes, queue, events, stop_seconds, restart_seconds, memories })
    }

    /// A request was added, changed or removed.
    pub fn request_changed(&self, request: &ContainerRecreateRequest) {
        self.queue.add(PodUid(request.pod_uid().into()));
    }

    /// A request left the watch: drops its memory and reconciles its Pod, whose next request may begin.
    pub fn request_gone(&self, request: &ContainerRecreateRequest) {
        self.drop_memory(request);
        self.request_changed(request);
    }

    /// A Pod, or its containers in the runtime, changed.
    pub fn pod_changed(&self, api_uid: &str) {
        if !self.requests.by_index(&BY_POD, api_uid).is_empty() {
            self.queue.add(PodUid(api_uid.into()));
        }
    }

    /// The runtime's containers of a Pod changed; `cri_uid` is the UID that the runtime knows.
    pub fn containers_changed(&self, cri_uid: &str) {
        // The runtime knows a static Pod by another UID. Few requests are active, so all are searched.
        for request in self.requests.list() {
            if self.pod_of(&request).is_some_and(|pod| pod.cri_uid() == cri_uid) {
                self.request_changed(&request);
            }
        }
    }

    /// Stores the memory of a request, as long as it is open: nobody would drop it otherwise.
    fn put_memory(&self, request: &ContainerRecreateRequest, memory: RestartMemory) {
        let mut memories = self.memories();
        let stored = self.requests.get(&ObjectKey::of(request));
        if stored.is_some_and(|stored| stored.uid() == request.uid() && stored.is_open()) {
            memories.insert(request.uid().unwrap_or_default(), memory);
        }
    }

    /// Takes the memory of a request out of the map; an empty one if there is none.
    fn take_memory(&self, request: &ContainerRecreateRequest) -> RestartMemory {
        self.memories().remove(&request.uid().unwrap_or_default()).unwrap_or_default()
    }

    /// Removes the memory of a request.
    fn drop_memory(&self, request: &ContainerRecreateRequest) {
        self.memories().remove(&request.uid().unwrap_or_default());
    }

    /// Removes a request that is gone, according to the API server, and its memory.
    fn remove_request(&self, request: &ContainerRecreateRequest) {
        self.requests.remove(&ObjectKey::of(request), request.metadata.uid.as_deref());
        self.drop_memory(request);
    }

    fn memories(&self) -> std::sync::MutexGuard<'_, HashMap<String, RestartMemory>> {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The Pod that a request means, if this node has it.
    fn pod_of(&self, request: &ContainerRecreateRequest) -> Option<Arc<PodView>> {
        let key = ObjectKey::new(&request.namespace().unwrap_or_default(), &request.spec.pod_name);
        self.pods.get(&key).filter(|pod| pod.uid() == request.pod_uid())
    }

    /// Works on the requests of one Pod until there is nothing to do but wait.
    pub async fn reconcile(self: Arc<Self>, uid: PodUid, interrupt: Interrupt) -> Result<Requeue, PassError> {
        loop {
            let requests = self.requests.by_index(&BY_POD, &uid.0);
            let pick = node::pick(requests.iter().map(AsRef::as_ref));
            let Some(current) = pick.current else { return Ok(Requeue::Await) };
            self.report_waiting(&pick).await?;
            if current.is_served_by_manager() {
                return Ok(Requeue::Await); // its end brings us back
            }
            match self.pass(current, &interrupt).await? {
                Next::LookAgain => {}
                Next::Wait(requeue) => return Ok(requeue),
            }
        }
    }

    /// Records in waiting requests of a Pod that they wait for another one. It is done before a hook or stop begins: an
    /// empty status for the length of a hook would look to the manager like an absent daemon.
    async fn report_waiting(&self, pick: &node::Pick<'_>) -> Result<(), PassError> {
        let Some(current) = pick.current else { return Ok(()) };
        for waiting in pick.has_to_wait.iter().filter(|r| !r.is_served_by_manager()) {
            self.write(waiting, &node::waiting_status(current)).await?;
        }
        Ok(())
    }

    async fn pass(&self, request: &ContainerRecreateRequest, interrupt: &Interrupt) -> Result<Next, PassError> {
        let begun = clock::now();
        let pod = self.pod_of(request);
        let wanted = runtime_of(request);
        let cri = wanted.and_then(|name| self.runtimes.get(name).map(|client| (name.to_owned(), client)));
        if let (Some(name), None, Some(sockets)) = (wanted, &cri, self.runtimes.unanswered()) {
            // It may be behind one of them.
            self.report_trouble(request, name, &format!("{sockets}: no answer yet"), begun).await;
            return Ok(Next::Wait(Requeue::After(LATE_RUNTIME)));
        }
        let instances = match (&pod, &cri) {
            (Some(pod), Some((name, client))) => match observe(name, client, request, pod).await {
                Ok(instances) => instances,
                Err(error) => {
                    self.report_trouble(request, name, &error.stable_text(), begun).await;
                    return Err(error.into());
                }
            },
            _ => Vec::new(),
        };
        let runtimes = self.runtimes.names();
        let observed = ObservedContainers { request, pod: pod.as_deref(), runtimes: &runtimes, instances: &instances };
        let mut memory = self.take_memory(request);
        let plan = node::plan(&observed, &mut memory, clock::now());

        if let Some(status) = &plan.status {
            self.put_memory(request, memory);
            if !self.write(request, status).await? {
                return Ok(Next::LookAgain);
            }
            self.emit_events(request, status, pod.as_deref());
            memory = self.take_memory(request);
            if status.phase == Phase::Completed {
                return Ok(Next::LookAgain); // at the next request of the Pod, if there is one
            }
        }
        let (Some(kill), Some(pod), Some((runtime, client))) = (plan.kill, pod, cri) else {
            self.put_memory(request, memory);
            return Ok(Next::Wait(plan.requeue.map_or(Requeue::Await, Requeue::After)));
        };
        memory.stop_begins(&kill);
        let mut hook_left_out = false;
        let outcome = self.stop(request, &pod, &client, &kill, interrupt, &mut hook_left_out).await;
        if hook_left_out {
            memory.hook_left_out(&kill.container);
        }
        match outcome {
            Ok(()) => memory.stop_answered(&kill.container, clock::now()),
            Err(error) => {
                tracing::warn!(request = %ObjectKey::of(request), container = kill.container, %error, "stop failed");
                // Container ids differ each time; only equal texts save a write and an event.
                let words = error.stable_text().replace(container_id::without_runtime(&kill.id), &kill.container);
                let words = format!("{runtime}: {words}");
                match error.may_pass() {
                    true => memory.stop_may_pass(&kill.container, words, clock::now()),
                    false => memory.stop_refused(&kill.container, words),
                }
            }
        }
        self.put_memory(request, memory);
        // Whatever the runtime answered, the next pass decides from the state of the instance.
        Ok(Next::LookAgain)
    }

    /// The runtime cannot be called: records that in the request, if it lasts.
    async fn report_trouble(&self, request: &ContainerRecreateRequest, runtime: &str, error: &str, begun: Now) {
        let mut memory = self.take_memory(request);
        let status = node::in_trouble(request, &mut memory, runtime, error, begun, clock::now());
        self.put_memory(request, memory);
        let Some(status) = status else { return };
        match self.write(request, &status).await {
            Ok(true) => {
                self.emit_events(request, &status, self.pod_of(request).as_deref());
                self.events.warning(&reference(request), "RuntimeNotAnswering", &status.message);
            }
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, "what the request waits for could not be written"),
        }
    }

    /// Runs the hook, if any, then stops the instance. It can be cancelled only before the stop is sent: a container that
    /// has got its stop signal must also get the kill after the grace period.
    async fn stop(
        &self,
        request: &ContainerRecreateRequest,
        pod: &PodView,
        client: &CriClient,
        kill: &Kill,
        interrupt: &Interrupt,
        hook_left_out: &mut bool,
    ) -> Result<(), CriError> {
        let key = ObjectKey::of(request);
        let mut turn = tokio::select! {
            turn = self.runtimes.stops.turn(&kill.id) => turn,
            () = self.ended(request, pod, interrupt) => return Ok(()),
        };
        if turn.stopped_by(clock::now()) == Some(By::Environment) {
            tracing::info!(request = %key, container = kill.container, "already stopped for its environment");
            // If it still runs, the next attempt is a stop by this request.
            turn.note_stopped(By::Request, clock::now());
            return Ok(());
        }
        let message = format!("Stopping container {} by ContainerRecreateRequest {}", kill.container, key.name);
        self.events.normal(&container_ref(pod, &kill.container), "Killing", &message);
        let id = container_id::without_runtime(&kill.id);
        let begun = Instant::now();
        let Some(HookRun { used, left_out }) = self.run_hook(request, pod, client, kill, interrupt, &mut turn).await
        else {
            return Ok(());
        };
        *hook_left_out = left_out;
        let grace = stop_grace(kill.grace, used);
        tracing::info!(request = %key, container = kill.container, id, ?grace, "stopping");
        let stop = client.stop_container(id, grace);
        tokio::pin!(stop);
        let result = loop {
            tokio::select! {
                result = &mut stop => break result,
                () = woken(interrupt) => self.report_newcomers(request).await,
            }
        };
        let result = match result {
            Err(CriError::NotFound { .. }) => Ok(()), // as good as stopped
            other => other,
        };
        match &result {
            Ok(()) => turn.note_stopped(By::Request, clock::now()),
            Err(error) if !error.may_pass() => turn.give_up(),
            Err(_) => {}
        }
        self.stop_seconds.observe(begun.elapsed().as_secs_f64());
        result
    }

    /// Runs the hook, if any. None: the request ended meanwhile, and the hook was cancelled.
    async fn run_hook(
        &self,
        request: &ContainerRecreateRequest,
        pod: &PodView,
        client: &CriClient,
        kill: &Kill,
        interrupt: &Interrupt,
        known: &mut Known,
    ) -> Option<HookRun> {
        let Some(hook) = &kill.hook else { return Some(HookRun::default()) };
        let (key, container) = (ObjectKey::of(request), &kill.container);
        let begun = Instant::now();
        let id = container_id::without_runtime(&kill.id);
        let result = tokio::select! {
            result = hooks::before_stop(hook, kill, client, id, pod, &self.runtimes.hooks) => result,
            () = self.ended(request, pod, interrupt) => {
                tracing::info!(request = %key, container, "request ended, preStop hook cancelled");
                return None;
            }
        };
        let mut run = HookRun { used: begun.elapsed(), left_out: false };
        let repeated_for = stop_grace(kill.grace, run.used).saturating_add(STOP_REPEATED);
        if let Err(hooks::Failure { message, left_out }) = result {
            run.left_out = left_out;
            tracing::warn!(request = %key, container, message, "preStop hook failed");
            self.events.warning(&container_ref(pod, container), "FailedPreStopHook", &message);
        }
        if !run.left_out {
            known.note_hook(repeated_for, clock::now());
        }
        Some(run)
    }

    /// Resolves when the request or its Pod needs no more work: completed (by the manager), deleted, or gone.
    async fn ended(&self, request: &ContainerRecreateRequest, pod: &PodView, interrupt: &Interrupt) {
        loop {
            let now = self.requests.get(&ObjectKey::of(request));
            let open = now.is_some_and(|r| r.uid() == request.uid() && r.is_open());
            let pod_there =
                self.pods.get(&ObjectKey::of(pod)).is_some_and(|p| p.uid() == pod.uid() && !p.is_deleting());
            if !open || !pod_there {
                return;
            }
            woken(interrupt).await;
            self.report_newcomers(request).await;
        }
    }

    /// There may be new requests of the Pod during a hook or a stop: they wait for this one, also if it has ended meanwhile.
    /// What could not be written is written by the next call.
    async fn report_newcomers(&self, request: &ContainerRecreateRequest) {
        let requests = self.requests.by_index(&BY_POD, request.pod_uid());
        let waiting = node::behind(request, requests.iter().map(AsRef::as_ref));
        for newcomer in waiting.into_iter().filter(|r| !r.is_served_by_manager()) {
            if let Err(error) = self.write(newcomer, &node::waiting_status(request)).await {
                tracing::debug!(%error, "that a request waits could not be written, trying again");
            }
        }
    }

    /// Records a status. False: the request has changed meanwhile, look again.
    async fn write(
        &self,
        request: &ContainerRecreateRequest,
        status: &ContainerRecreateRequestStatus,
    ) -> Result<bool, PassError> {
        let namespace = request.namespace().unwrap_or_default();
        let api: Api<ContainerRecreateRequest> = Api::namespaced(self.kube.clone(), &namespace);
        let status = with_kstatus(request, status, clock::now().wall);
        match patch_status(&api, request, &request.status.as_ref(), &Some(&status)).await {
            Ok(written) => {
                if let Some(written) = written {
                    self.requests.upsert(written);
                }
                Ok(true)
            }
            Err(error) if code(&error) == Some(409) => {
                self.refresh(&api, request).await?;
                Ok(false)
            }
            Err(error) if code(&error) == Some(404) => {
                self.remove_request(request);
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Our version of the request is outdated: reading the new one is faster than waiting for the watch.
    async fn refresh(
        &self,
        api: &Api<ContainerRecreateRequest>,
        request: &ContainerRecreateRequest,
    ) -> Result<(), PassError> {
        let key = ObjectKey::of(request);
        match api.get_opt(&key.name).await? {
            Some(fresh) if is_work(&fresh) && fresh.uid() == request.uid() => {
                self.requests.upsert(fresh);
            }
            _ => self.remove_request(request),
        }
        Ok(())
    }

    /// One event and one log line for each change that is of interest to users.
    fn emit_events(
        &self,
        request: &ContainerRecreateRequest,
        status: &ContainerRecreateRequestStatus,
        pod: Option<&PodView>,
    ) {
        let key = ObjectKey::of(request);
        let before = states_of(request);
        for (old, new) in before.iter().zip(&status.container_recreate_states) {
            if old.phase == new.phase && old.is_killed == new.is_killed && old.message == new.message {
                continue;
            }
            tracing::info!(
                request = %key, pod = request.spec.pod_name, container = new.name,
                phase = new.phase.as_str(), killed = new.is_killed, message = new.message, "container"
            );
            if new.phase == Phase::Succeeded
                && old.phase != new.phase
                && let (Some(from), Some(to)) = (new.killed_at, new.ready_at)
            {
                self.restart_seconds.observe(between(from, to).as_secs_f64());
            }
        }
        for News { container, reason, is_failure, message } in news(request, &status.container_recreate_states) {
            if !is_failure {
                self.events.normal(&reference(request), reason, &message);
                continue;
            }
            self.events.warning(&reference(request), reason, &message);
            if let Some(pod) = pod {
                self.events.warning(&container_ref(pod, container), reason, &message);
            }
        }
    }
}

/// Whether this daemon has to know a request: it serves it, or other requests have to wait for it.
pub fn is_work(request: &ContainerRecreateRequest) -> bool {
    !request.is_completed() && (request.labels().contains_key(labels::CRR_ACTIVE) || request.is_served_by_manager())
}

/// What became of a hook.
#[derive(Default)]
struct HookRun {
    /// How much of the grace is over since it was begun.
    used: Duration,
    /// There was no place for it.
    left_out: bool,
}

/// Resolves when the Pod or its requests have changed, and after a while in any case.
async fn woken(interrupt: &Interrupt) {
    // Either will do.
    let _ = tokio::time::timeout(REPORT_AGAIN, interrupt.raised()).await;
}

enum Next {
    LookAgain,
    Wait(Requeue),
}

fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

/// The Pod, with the container in the field path, as kubelet refers to it in its own events.
pub(super) fn container_ref(pod: &PodView, container: &str) -> ObjectReference {
    let list = if pod.is_sidecar(container) { "initContainers" } else { "containers" };
    ObjectReference { field_path: Some(format!("spec.{list}{{{container}}}")), ..pod.reference() }
}

#[cfg(test)]
mod tests;
