//! The manager's part in ContainerRecreateRequests.
//!
//! - Owns: phase Completed for what ends a request from outside (Pod gone, no daemon, deadline), the finalizer, the
//!   active label, the NotReady key on the Pod, the record of when the grace began, the condition of one that was left
//!   behind, deletion after the TTL.
//! - Watches: requests, Pods (of the requests, and the daemons'), Nodes that are deleted.
//! - Serves requests of method PodSpec ([`pod_spec`]): their status, and the spelling of images in their Pods.
//! - Sweeps NotReady keys whose request does not exist ([`sweep`]).
//! - Never: touches a container, or a container's state of other requests before they end by its hand. The decisions are
//!   in [`crate::domain::node::recreate::manager`] and [`crate::domain::node::recreate::pod_spec`].
//!
//! It runs regardless of the feature gate KruiseDaemon: finalizers of earlier requests have to be removed.

mod apply;
mod observe;
mod pod_spec;
mod sweep;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, runtime::watcher::Config};

use self::{apply::Applied, observe::PodRead, sweep::Held};
use super::{Context, Registration, Runner, Started, handling, lock};
use crate::{
    api::{crr::ContainerRecreateRequest, labels},
    domain::node::recreate::{
        is_left_behind,
        manager::{self, Daemon, ManagerMemory, ObservedRequest},
        node,
    },
    k8s::{
        node::NodeView,
        pod::PodView,
        rbac::Rule,
        shared::Text,
        time::{Now, Sighting},
    },
    runtime::{
        clock,
        pass::AFTER_CONFLICT,
        queue::{Backoff, Queue, Requeue},
        shutdown::Shutdown,
        unreadable::UnreadableObjects,
        watches::{Change, ObjectKey, Store, StoreIndex},
    },
};

/// Its entry in `CONTROLLERS`.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: Some("containerrecreaterequests.apps.kruise.io"),
    gate: None,
    rules: &[
        Rule::new(&["apps.kruise.io"], &["containerrecreaterequests"], &["get", "list", "watch", "patch", "delete"]),
        Rule::new(&["apps.kruise.io"], &["containerrecreaterequests/status"], &["patch"]),
        // patch: the spelling of images, for method PodSpec.
        Rule::new(&[""], &["pods"], &["get", "list", "watch", "patch"]),
        Rule::new(&[""], &["pods/status"], &["patch"]),
    ],
    workers_flag: Some("crr-workers"),
    workers: 3,
    start,
};

const NAME: &str = "containerrecreaterequest-controller";

/// Requests by namespace and name of their Pod.
const BY_POD: StoreIndex<ContainerRecreateRequest> =
    StoreIndex::new("Pod", |request| Some(pod_key(request).to_string()));
/// Requests by the node of their Pod.
const BY_NODE: StoreIndex<ContainerRecreateRequest> =
    StoreIndex::new("node", |request| request.metadata.labels.as_ref()?.get(labels::CRR_NODE_NAME).cloned());

struct Controller {
    context: Context,
    requests: Arc<Store<ContainerRecreateRequest>>,
    queue: Arc<Queue<ObjectKey>>,
    memories: Mutex<HashMap<ObjectKey, (String, ManagerMemory)>>,
    daemons: Mutex<Daemons>,
    /// State of the requests that the manager serves, by UID.
    progress: Mutex<HashMap<String, node::RestartMemory>>,
    /// UIDs of the Pods that a worker is processing: requests of one Pod are served one after the other.
    busy: Mutex<HashSet<String>>,
    held: Mutex<Held>,
    unreadable: UnreadableObjects,
}

/// A key may be released before the watch of Pods shows it.
const SWEEP_AFTER: Duration = Duration::from_secs(5);

/// What is known of the daemons' Pods, by node.
#[derive(Default)]
struct Daemons {
    ready: BTreeMap<Text, BTreeSet<ObjectKey>>,
    /// When the last Ready one was lost; entries are dropped once they are old enough to change no decision.
    lost: BTreeMap<Text, Duration>,
    /// How long it matters.
    keep: Duration,
    /// Since when the daemons are watched: before that none was seen missing.
    since: Option<Duration>,
}

fn start(context: &Context, workers: usize, shutdown: Shutdown) -> Started {
    let controller = Arc::new(Controller {
        context: context.clone(),
        requests: Store::of_work([BY_POD, BY_NODE], manager::is_record),
        queue: Queue::new(Backoff::default()),
        memories: Mutex::default(),
        daemons: Mutex::new(Daemons::new(context.settings.requests.daemon_gone_after)),
        progress: Mutex::default(),
        busy: Mutex::default(),
        held: Mutex::default(),
        unreadable: UnreadableObjects::default(),
    });
    let on_pod = handling(&controller, Controller::pod_changed);
    let on_node = handling(&controller, Controller::node_changed);
    Started::new(controller.run(workers, shutdown)).on_pod(on_pod).on_node(on_node)
}

fn pod_key(request: &ContainerRecreateRequest) -> ObjectKey {
    ObjectKey::new(request.metadata.namespace.as_deref().unwrap_or_default(), &request.spec.pod_name)
}

impl Controller {
    async fn run(self: Arc<Self>, workers: usize, shutdown: Shutdown) {
        let (on_request, in_view, this) = (self.clone(), self.clone(), self.clone());
        let runner = Runner::new(&self.context, NAME, shutdown)
            .watch_guarded(self.context.api(), Config::default(), &self.requests, move |change| {
                on_request.request_changed(&change);
            })
            .following(&self.context.pods)
            .following(self.context.nodes.store())
            .when_in_view(move || lock(&in_view.daemons).since = Some(clock::now().mono));
        let reconcile = move |key: ObjectKey| {
            let this = this.clone();
            async move { this.reconcile(&key).await }
        };
        runner.run(self.queue.clone(), workers, reconcile).await;
    }

    fn request_changed(&self, change: &Change<'_, ContainerRecreateRequest>) {
        if let Change::Applied { new, .. } = change {
            self.unreadable.forget(&ObjectKey::of(new.as_ref()));
        }
        match change {
            Change::Applied { old, new, .. } if manager::is_record(new) => {
                if old.is_some() {
                    // Once more, to forget it.
                    self.queue.add(ObjectKey::of(new.as_ref()));
                }
                self.sweep_later(&ObjectKey::of(new.as_ref()));
                self.next_of_the_pod(new);
            }
            Change::Applied { new, initial, .. } => {
                // What the first list brings was there before us; all else we saw as it happened.
                self.remember(new, *initial && !self.requests.is_synced(), clock::now());
                self.queue.add(ObjectKey::of(new.as_ref()));
                if new.is_completed() || new.is_deleting() || is_left_behind(new) {
                    self.next_of_the_pod(new);
                }
            }
            Change::Deleted(old) => {
                lock(&self.memories).remove(&ObjectKey::of(old.as_ref()));
                lock(&self.progress).remove(old.metadata.uid.as_deref().unwrap_or_default());
                self.sweep_later(&ObjectKey::of(old.as_ref()));
                self.next_of_the_pod(old);
            }
            Change::Undecodable { key, error } => {
                tracing::error!(request = %key, error, "this request cannot be read and is left alone");
                let about = ObjectReference {
                    api_version: Some("apps.kruise.io/v1alpha1".into()),
                    kind: Some("ContainerRecreateRequest".into()),
                    namespace: Some(key.namespace.to_string()),
                    name: Some(key.name.to_string()),
                    ..ObjectReference::default()
                };
                self.context.events.warning(&about, "Unreadable", &format!("left alone, it cannot be read: {error}"));
                self.unreadable.note(key);
                self.queue.add((*key).clone());
            }
        }
    }

    /// A request was deleted: it may have left its key on a Pod.
    fn sweep_later(&self, request: &ObjectKey) {
        if !lock(&self.held).by(request).is_empty() {
            self.queue.add_after(request.clone(), SWEEP_AFTER);
        }
    }

    /// A request has ended: those that waited for it may have their turn.
    fn next_of_the_pod(&self, ended: &ContainerRecreateRequest) {
        for request in self.requests.by_index(&BY_POD, &pod_key(ended).to_string()) {
            if request.is_served_by_manager() && !request.is_completed() {
                self.queue.add(ObjectKey::of(request.as_ref()));
            }
        }
    }

    fn remember(&self, request: &ContainerRecreateRequest, found: bool, now: Now) {
        let uid = request.metadata.uid.clone().unwrap_or_default();
        let sighting = |since: Option<jiff::Timestamp>| match since {
            Some(since) if found => Sighting::found(now, since),
            _ => Sighting::live(now),
        };
        let fresh = || {
            let created = sighting(request.metadata.creation_timestamp.as_ref().map(|t| t.0));
            let seen = Sighting::live(now);
            (uid.clone(), ManagerMemory { created, seen, completed: None, reported_no_daemon: false })
        };
        let mut memories = lock(&self.memories);
        let entry = memories.entry(ObjectKey::of(request)).or_insert_with(fresh);
        if entry.0 != uid {
            *entry = fresh();
        }
        if request.is_completed() && entry.1.completed.is_none() {
            entry.1.completed = Some(sighting(request.status.as_ref().and_then(|status| status.completion_time)));
        }
    }

    /// The open requests of a node look again.
    fn wake_on(&self, node: &str) {
        for request in self.requests.by_index(&BY_NODE, node).iter().filter(|request| !request.is_completed()) {
            self.queue.add(ObjectKey::of(request.as_ref()));
        }
    }

    /// Requests of a Node that was deleted end.
    fn node_changed(&self, change: &Change<'_, NodeView>) {
        if let Change::Deleted(node) = change {
            self.wake_on(node.name());
        }
    }

    fn pod_changed(&self, change: &Change<'_, PodView>) {
        let Some((old, new)) = change.sides() else { return };
        let Some(any) = new.or(old) else { return };
        if any.is_daemon && any.namespace() == &*self.context.namespace {
            let key = ObjectKey::of(any.as_ref());
            lock(&self.daemons).update(&key, old.map(|p| &**p), new.map(|p| &**p), clock::now());
            // Requests wait here only until they have to report that the daemon is missing.
            self.wake_on(&any.node_name);
        }
        let key = ObjectKey::of(any.as_ref());
        for request in lock(&self.held).update(&key, old.map(|p| &**p), new.map(|p| &**p)) {
            // At start too: workers begin when everything is listed.
            self.queue.add_after(request, SWEEP_AFTER);
        }
        // Only what a plan reads: whether the Pod is there, which one it is, whether it is going.
        let facts = |pod: &Arc<PodView>| (pod.uid().to_owned(), pod.is_deleting());
        let replaced = old.map(facts) != new.map(facts);
        for request in self.requests.by_index(&BY_POD, &key.to_string()) {
            let waits = !request.is_completed() && (replaced || request.is_served_by_manager());
            if waits || (replaced && manager::has_finalizer(&request)) {
                self.queue.add(ObjectKey::of(request.as_ref()));
            }
        }
    }

    async fn reconcile(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let result = self.work_on(key).await;
        if self.requests.get(key).is_none() {
            // Gone, or a record by now: of thousands of those nothing is remembered.
            lock(&self.memories).remove(key);
        }
        result
    }

    async fn work_on(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let Some(request) = self.requests.get(key) else {
            let api: Api<ContainerRecreateRequest> = Api::namespaced(self.context.client.clone(), &key.namespace);
            // One that cannot be read: the sweep that follows releases its Pods.
            let presence = self.unreadable.look(&api, key, labels::CRR_UNREADY_FINALIZER).await?;
            let swept = self.sweep(key).await?;
            return Ok(presence.look_again().map_or(swept, Requeue::After));
        };
        let now = clock::now();
        self.remember(&request, false, now);
        let (daemon, unread) = self.daemon_of(&request, now).await;
        let memory = match lock(&self.memories).get_mut(key) {
            Some((_, memory)) => {
                // The next time that it is missing is another matter.
                memory.reported_no_daemon &= daemon != Daemon::Ready;
                *memory
            }
            None => return Ok(Requeue::Await),
        };
        let pod = self.read_pod(&request).await;
        let gone_after = self.context.settings.requests.daemon_gone_after;
        let observed = ObservedRequest { request: &request, pod: pod.knowledge(), daemon, memory, gone_after };
        let plan = manager::plan(&observed, clock::now());
        match self.apply(&request, &plan.actions).await? {
            Applied::All => {}
            Applied::Gone => return Ok(Requeue::Await),
            Applied::Outdated => return Ok(Requeue::After(AFTER_CONFLICT)),
        }
        let pod = match pod {
            PodRead::Failed(error) => return Err(error),
            PodRead::Present(pod) => Some(pod),
            PodRead::Gone => None,
        };
        let served = match pod {
            Some(pod) if request.is_served_by_manager() && !pod.is_deleting() => self.serve(key, &pod).await?,
            _ => None,
        };
        if let Some(error) = unread {
            return Err(error);
        }
        let swept = self.sweep_what_is_left(&request, now).await?;
        let requeue = [plan.requeue, served, swept].into_iter().flatten().min();
        Ok(requeue.map_or(Requeue::Await, Requeue::After))
    }
}

fn is_ready(daemon: &PodView) -> bool {
    daemon.condition_is_true("Ready") && !daemon.is_deleting()
}

impl Daemons {
    fn new(gone_after: Duration) -> Self {
        Self { keep: gone_after.max(manager::NO_DAEMON_GRACE), ..Self::default() }
    }

    fn update(&mut self, key: &ObjectKey, old: Option<&PodView>, new: Option<&PodView>, now: Now) {
        self.lost.retain(|_, at| now.mono.saturating_sub(*at) < self.keep);
        if let Some(old) = old
            && let Some(pods) = self.ready.get_mut(&old.node_name)
        {
            pods.remove(key);
            if pods.is_empty() {
                self.ready.remove(&old.node_name);
                self.lost.insert(old.node_name.clone(), now.mono);
            }
        }
        if let Some(new) = new
            && is_ready(new)
        {
            self.lost.remove(&new.node_name);
            self.ready.entry(new.node_name.clone()).or_default().insert(key.clone());
        }
    }

    fn on(&self, node: &str, now: Now) -> Daemon {
        match (self.ready.contains_key(node), self.lost.get(node)) {
            (true, _) => Daemon::Ready,
            (false, Some(at)) => Daemon::Missing(now.mono.saturating_sub(*at)),
            (false, None) => Daemon::Missing(self.since.map_or(Duration::ZERO, |at| now.mono.saturating_sub(at))),
        }
    }
}

#[cfg(test)]
mod tests;
