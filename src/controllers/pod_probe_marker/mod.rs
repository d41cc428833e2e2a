//! PodProbeMarkers: what is probed on each node, and what Pods carry of the results.
//!
//! - Owns: the spec of NodePodProbes; on Pods the conditions, labels and annotations that PodProbeMarkers name; on
//!   PodProbeMarkers the finalizer, the note of these keys, and the status.
//! - Watches: PodProbeMarkers, NodePodProbes, Pods. Reads: a Node once, a Pod when a result of it is new, a NodePodProbe
//!   before its spec is written.
//! - A node is one piece of work: its Pods are brought to their results first, then its NodePodProbe to what has to be
//!   probed. An entry goes after what it left on its Pod has been removed, so nothing is forgotten when the manager stops
//!   in between. An annotation of the Pod names the PodProbeMarkers that marked it, in case its NodePodProbe is lost. A
//!   PodProbeMarker that is being deleted is released when no entry of it is left.
//! - What a PodProbeMarker that cannot be read has left stays as it is. When it is deleted, its metadata, which can always be
//!   read, says what goes before it is released.
//! - What would make a NodePodProbe too large is left out and reported in a condition of its PodProbeMarker
//!   (`domain/node/probes/budget.rs`). What goes is written first, so that it never waits for room.
//! - A NodePodProbe is made when something is to be probed on its node, and belongs to the Node: the garbage collector
//!   removes it.
//! - Never: writes the status of a NodePodProbe, or anything of a Pod that has ended.

mod apply;
mod index;
mod marker;
mod owner;
mod spec;
mod view;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kube::{Api, runtime::watcher::Config};

use self::{
    index::{Index, Selected},
    owner::Unowned,
    spec::LeftOut,
    view::NodeProbes,
};
use super::{BY_NAMESPACE, Context, Registration, Runner, Started, handling, lock};
use crate::{
    api::{apps::pod_probe_marker::PodProbeMarker, feature_gates::gate},
    domain::node::probes::{entries::Ports, name_of, parts_of, selection},
    k8s::{node::NodeView, pod::PodView, rbac::Rule, selector::Selector},
    runtime::{
        guarded::Guarded,
        pass::AFTER_WATCHED_CONFLICT,
        queue::{Backoff, Queue},
        shutdown::Shutdown,
        watches::{Change, ObjectKey, Store, StoreIndex},
    },
};

/// Its line in the table.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: Some("podprobemarkers.apps.kruise.io"),
    gate: Some(gate::POD_PROBE_MARKER),
    rules: &[
        Rule::new(&["apps.kruise.io"], &["podprobemarkers"], &["list", "watch", "patch"]),
        Rule::new(&["apps.kruise.io"], &["podprobemarkers/status"], &["patch"]),
        Rule::new(&["apps.kruise.io"], &["nodepodprobes"], &["get", "list", "watch", "create", "patch"]),
        Rule::new(&[""], &["pods"], &["get", "list", "watch"]),
        Rule::new(&[""], &["pods/status"], &["patch"]),
    ],
    workers_flag: Some("podprobemarker-workers"),
    workers: 3,
    start,
};

const NAME: &str = "podprobemarker-controller";
/// When to look again at what others have to do first; mostly they wake us.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// The number of Pods in a status may lag behind by this much.
const COUNT_PAUSE: Duration = Duration::from_secs(1);

/// What matters of a Node. The default: it is gone.
#[derive(Clone, Debug, Default, PartialEq)]
struct NodeFacts {
    uid: String,
    is_virtual: bool,
}

impl NodeFacts {
    fn of(node: &NodeView) -> Self {
        Self { uid: node.metadata.uid.clone().unwrap_or_default(), is_virtual: node.is_virtual() }
    }
}

/// UID and generation of a PodProbeMarker, and whether it is being deleted.
type Version = (Option<String>, Option<i64>, bool);

/// The version that is wanted, and the nodes that have not been brought to it.
type Outdated = (Version, HashSet<Arc<str>>);

/// PodProbeMarkers that are stored in a form that this release cannot read; of those that are being deleted what is known of
/// them: their metadata.
type Unreadable = HashMap<ObjectKey, Option<Arc<PodProbeMarker>>>;

struct Controller {
    context: Context,
    markers: Arc<Store<PodProbeMarker>>,
    probes: Arc<Store<NodeProbes>>,
    index: Mutex<Index>,
    marker_queue: Arc<Queue<ObjectKey>>,
    node_queue: Arc<Queue<ObjectKey>>,
    /// What each Pod was last brought to, by UID.
    applied: Mutex<HashMap<Box<str>, u64>>,
    /// Named ports of Pods with probes that name one, by UID.
    ports: Mutex<HashMap<Box<str>, Arc<Ports>>>,
    /// Nodes whose Pods may still carry what a changed or deleted PodProbeMarker does not want any more.
    outdated: Mutex<HashMap<ObjectKey, Outdated>>,
    unreadable: Mutex<Unreadable>,
    /// What does not fit into the NodePodProbe of each node that has been looked at.
    left_out: Mutex<HashMap<Arc<str>, Arc<LeftOut>>>,
    unowned: Mutex<Unowned>,
    /// Everything has been listed.
    is_ready: AtomicBool,
    /// EnablePodProbeMarkerOnServerless.
    serverless: bool,
}

fn start(context: &Context, workers: usize, shutdown: Shutdown) -> Started {
    let controller = Arc::new(Controller::new(context));
    let on_pod = handling(&controller, Controller::pod_changed);
    let on_node = handling(&controller, Controller::node_changed);
    Started::new(controller.run(workers, shutdown)).on_pod(on_pod).on_node(on_node)
}

impl Controller {
    fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            markers: Store::new([StoreIndex::namespace()]),
            probes: Store::new(None),
            index: Mutex::default(),
            marker_queue: Queue::new(Backoff::default()),
            node_queue: Queue::new(Backoff::default()),
            applied: Mutex::default(),
            ports: Mutex::default(),
            outdated: Mutex::default(),
            unreadable: Mutex::default(),
            left_out: Mutex::default(),
            unowned: Mutex::default(),
            is_ready: AtomicBool::new(false),
            serverless: context.gates.enabled(gate::SERVERLESS_PROBES),
        }
    }

    async fn run(self: Arc<Self>, workers: usize, shutdown: Shutdown) {
        let (on_marker, on_probes, in_view) = (self.clone(), self.clone(), self.clone());
        let (of_markers, of_nodes) = (self.clone(), self.clone());
        let probes: Api<Guarded<NodeProbes>> = Api::all(self.context.client.clone());
        let reconcile_marker = move |key: ObjectKey| {
            let this = of_markers.clone();
            async move { this.reconcile_marker(&key).await }
        };
        let reconcile_node = move |key: ObjectKey| {
            let this = of_nodes.clone();
            async move { this.reconcile_node(&key.name).await }
        };
        let runner = Runner::new(&self.context, NAME, shutdown)
            .watch_guarded(self.context.api(), Config::default(), &self.markers, move |c| on_marker.marker_changed(&c))
            .watch_guarded(probes, Config::default(), &self.probes, move |change| on_probes.probes_changed(&change))
            .following(&self.context.pods)
            .following(self.context.nodes.store())
            .when_in_view(move || in_view.begin())
            .and_queue(NAME, self.node_queue.clone(), workers, reconcile_node);
        runner.run(self.marker_queue.clone(), workers, reconcile_marker).await;
    }

    /// Everything is in view: looks at all Pods once.
    fn begin(&self) {
        if self.is_ready.swap(true, Ordering::SeqCst) || lock(&self.index).is_idle() {
            return;
        }
        for pod in self.context.pods.list() {
            self.refresh_pod(&ObjectKey::of(pod.as_ref()));
        }
        for node in lock(&self.index).nodes() {
            self.node_queue.add(node_key(&node));
        }
    }

    fn marker_changed(&self, change: &Change<'_, PodProbeMarker>) {
        match change {
            Change::Applied { old, new, .. } => {
                let key = ObjectKey::of(new.as_ref());
                // One that admission would refuse selects nothing; its condition says why.
                let selector = selection::selector_of(new).unwrap_or_default();
                lock(&self.unreadable).remove(&key);
                self.select(&key, selector);
                // Not for its status.
                let facts = |marker: &PodProbeMarker| {
                    let meta = &marker.metadata;
                    (meta.uid.clone(), meta.generation, meta.deletion_timestamp.clone(), meta.annotations.clone())
                };
                if old.is_none_or(|old| facts(old) != facts(new)) && self.is_ready.load(Ordering::SeqCst) {
                    self.wake_nodes_of(&key);
                }
                self.marker_queue.add(key);
            }
            Change::Deleted(old) => self.forget(&ObjectKey::of(old.as_ref())),
            Change::Undecodable { key, error } => {
                tracing::error!(marker = %key, error, "this PodProbeMarker cannot be read and is left alone");
                lock(&self.unreadable).entry((*key).clone()).or_default();
                // Nobody is probed for it from now on. Pods that carry its marks stay in view.
                self.select(key, Selector::default());
                self.marker_queue.add((*key).clone());
            }
        }
    }

    /// Takes over which Pods a PodProbeMarker selects.
    fn select(&self, marker: &ObjectKey, selector: Selector) {
        if lock(&self.index).set_marker(marker, selector) && self.is_ready.load(Ordering::SeqCst) {
            self.refresh_namespace(marker);
        }
    }

    /// A PodProbeMarker is gone.
    fn forget(&self, marker: &ObjectKey) {
        self.wake_nodes_of(marker);
        {
            let mut index = lock(&self.index);
            // There may be another one of its name by now: the store has it before the index.
            if self.markers.get(marker).is_none() {
                index.remove_marker(marker);
            }
        }
        lock(&self.outdated).remove(marker);
        self.refresh_namespace(marker);
    }

    /// The PodProbeMarkers of a namespace, and the names of those that cannot be read and are left alone.
    fn markers_in(&self, namespace: &str) -> (Vec<Arc<PodProbeMarker>>, Vec<Arc<str>>) {
        let unreadable: Vec<_> = {
            let all = lock(&self.unreadable);
            let here = all.iter().filter(|(key, _)| *key.namespace == *namespace);
            here.map(|(key, known)| (key.name.clone(), known.clone())).collect()
        };
        // Read later: one that can be read again is in the store before it is taken off that list.
        let mut markers = self.markers.by_index(&StoreIndex::namespace(), namespace);
        let mut left_alone = Vec::new();
        for (name, known) in unreadable {
            match known {
                _ if markers.iter().any(|marker| name_of(marker) == &*name) => {}
                Some(marker) => markers.push(marker),
                None => left_alone.push(name),
            }
        }
        (markers, left_alone)
    }

    fn probes_changed(&self, change: &Change<'_, NodeProbes>) {
        match change {
            Change::Applied { new, .. } => self.node_queue.add(node_key(new.name())),
            Change::Deleted(old) => self.node_queue.add(node_key(old.name())),
            Change::Undecodable { key, error } => {
                tracing::error!(node = %key.name, error, "this NodePodProbe cannot be read; nothing is probed there");
            }
        }
    }

    fn node_changed(&self, change: &Change<'_, NodeView>) {
        let node = match change {
            // The rest of it changes nothing for its Pods' probes.
            Change::Applied { old: Some(old), new, .. } if NodeFacts::of(old) == NodeFacts::of(new) => return,
            Change::Applied { new, .. } => new,
            Change::Deleted(old) => old,
            Change::Undecodable { .. } => return,
        };
        if self.is_ready.load(Ordering::SeqCst) && !lock(&self.index).is_idle() {
            self.node_queue.add(node_key(node.name()));
        }
    }

    fn pod_changed(&self, change: &Change<'_, PodView>) {
        if !self.is_ready.load(Ordering::SeqCst) || lock(&self.index).is_idle() {
            return;
        }
        match change {
            Change::Applied { old, new, .. } => {
                let key = ObjectKey::of(new.as_ref());
                let selected = self.refresh_pod(&key);
                // Conditions of serverless Pods are written by somebody else.
                if self.serverless
                    && let Some(selected) = selected
                    && old.is_some_and(|old| old.conditions != new.conditions)
                {
                    self.node_queue.add(node_key(&selected.node));
                }
            }
            Change::Deleted(old) => {
                lock(&self.applied).remove(old.uid());
                lock(&self.ports).remove(old.uid());
                self.refresh_pod(&ObjectKey::of(old.as_ref()));
            }
            Change::Undecodable { .. } => {}
        }
    }

    fn refresh_namespace(&self, marker: &ObjectKey) {
        for pod in self.context.pods.by_index(&BY_NAMESPACE, &marker.namespace) {
            self.refresh_pod(&ObjectKey::of(pod.as_ref()));
        }
    }

    /// Takes over the newest state of a Pod and wakes who has to do with the difference.
    fn refresh_pod(&self, key: &ObjectKey) -> Option<Selected> {
        let (before, now) = {
            let mut index = lock(&self.index);
            // Read while the lock is held, so that an older state never overwrites a newer one.
            let pod = self.context.pods.get(key);
            index.set_pod(key, pod.as_deref())
        };
        if before != now {
            for selected in before.iter().chain(&now) {
                self.node_queue.add(node_key(&selected.node));
                for marker in &selected.markers {
                    let marker = ObjectKey { namespace: key.namespace.clone(), name: marker.clone() };
                    self.marker_queue.add_after(marker, COUNT_PAUSE);
                }
            }
        }
        now
    }

    /// Nodes with Pods of a PodProbeMarker, or with what is left of it on Pods, and those that have entries of it.
    fn nodes_of(&self, marker: &ObjectKey) -> HashSet<Arc<str>> {
        let mut nodes = {
            let index = lock(&self.index);
            let mut nodes = index.nodes_of(marker);
            nodes.extend(index.nodes_with_marks_of(marker));
            nodes
        };
        nodes.extend(self.nodes_with_entries_of(marker));
        nodes
    }

    fn nodes_with_entries_of(&self, marker: &ObjectKey) -> Vec<Arc<str>> {
        let is_of = |probe: &str| parts_of(probe).is_some_and(|(name, _)| name == &*marker.name);
        let with = self.probes.select(|probes| {
            let mut entries = probes.entries.iter().filter(|entry| entry.namespace == *marker.namespace);
            entries.any(|entry| entry.probes.iter().any(|probe| is_of(&probe.name)))
        });
        with.iter().map(|probes| probes.name().into()).collect()
    }

    fn wake_nodes_of(&self, marker: &ObjectKey) {
        for node in self.nodes_of(marker) {
            self.node_queue.add(node_key(&node));
        }
    }
}

fn node_key(node: &str) -> ObjectKey {
    ObjectKey::new("", node)
}

#[cfg(test)]
mod tests;
