//! ImagePullJobs and NodeImages: adds the images of jobs to NodeImages, a number of nodes at a time, and counts results.
//!
//! - Owns: NodeImages (one for every Node that is not virtual and runs Linux) with their spec; the status of ImagePullJobs
//!   and their deletion after the TTL. Takes OpenKruise's finalizer off jobs that are over or deleted, also off those that are
//!   being deleted and cannot be read.
//! - Watches: ImagePullJobs, NodeImages, Nodes, Pods.
//! - Writes the status of a NodeImage only for a daemon that has reported nothing for a long time.
//!
//! A job decides which nodes begin (`jobs.rs`, [`crate::domain::kinds::image_jobs::job`]) and leaves that in `to_begin`.
//! A node writes what all jobs have left there in one patch, and removes entries that no job wants any more (`nodes.rs`,
//! [`crate::domain::kinds::image_jobs::node`]). A node that is to begin counts as pulling before the patch is sent, so that
//! no job exceeds its parallelism.

mod jobs;
mod nodes;
mod order;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use kube::{Api, runtime::watcher::Config};
use prometheus_client::metrics::{counter::Counter, family::Family};

use super::{Context, Registration, Runner, Started, handling, lock};
use crate::{
    api::{apps::image_pull_job::ImagePullJob, feature_gates::gate},
    domain::{
        kinds::image_jobs::{
            job::{Job, Nodes},
            node::Wants,
        },
        workload::pod_order::PodOrder,
    },
    k8s::{
        node::NodeView,
        node_image::{NodeImageView, Owner},
        pod::PodView,
        rbac::Rule,
        shared::Text,
        time::Sighting,
    },
    runtime::{
        events::Recorder,
        guarded::Guarded,
        metrics::ResultLabels,
        pass::AFTER_CONFLICT,
        queue::{Backoff, Queue},
        shutdown::Shutdown,
        status_writer::StatusWriter,
        unreadable::UnreadableObjects,
        watches::{Change, ObjectKey, Store},
    },
};

/// Its entry in `CONTROLLERS`.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: Some("imagepulljobs.apps.kruise.io"),
    gate: Some(gate::IMAGE_PULL_JOB),
    rules: &[
        Rule::new(&["apps.kruise.io"], &["imagepulljobs"], &["get", "list", "watch", "patch", "delete"]),
        Rule::new(&["apps.kruise.io"], &["imagepulljobs/status"], &["patch"]),
        Rule::new(&["apps.kruise.io"], &["nodeimages"], &["get", "list", "watch", "create", "patch", "delete"]),
        Rule::new(&["apps.kruise.io"], &["nodeimages/status"], &["patch"]),
        // In whose order of updates the nodes of a pre-download begin.
        Rule::new(&["apps.kruise.io"], &["clonesets", "statefulsets"], &["get"]),
    ],
    workers_flag: Some("imagepulljob-workers"),
    workers: 3,
    start,
};

const NAME: &str = "imagepulljob-controller";
const NODE_NAME: &str = "nodeimage-controller";
/// News of a job with thousands of nodes waits for more of them: a pass looks at every node.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Pods change several times on their way.
const POD_PAUSE: Duration = Duration::from_millis(250);

struct Controller {
    context: Context,
    /// Events about the entries of NodeImages name `nodeimage-controller`, as with OpenKruise.
    node_events: Recorder,
    jobs: Arc<Store<ImagePullJob>>,
    node_images: Arc<Store<NodeImageView>>,
    job_queue: Arc<Queue<ObjectKey>>,
    node_queue: Arc<Queue<ObjectKey>>,
    state: Mutex<State>,
    unreadable: UnreadableObjects,
    status: StatusWriter,
    metrics: OwnMetrics,
}

#[derive(Clone, Default)]
struct OwnMetrics {
    jobs: Family<ResultLabels, Counter>,
    entries: Counter,
    given_up: Counter,
}

/// Everything in it can be lost.
#[derive(Default)]
struct State {
    /// Jobs by UID. None: it cannot be carried out as it is written, and what it wants is not known.
    known: HashMap<String, Option<Arc<Job>>>,
    /// Those of them that go on and select their nodes by Pods, by UID, by namespace: every change of a Pod asks for them.
    by_pods: HashMap<String, BTreeMap<String, Arc<Job>>>,
    /// What nodes are to begin and has not been written yet: jobs by UID, by node.
    to_begin: HashMap<Arc<str>, BTreeMap<String, Arc<Job>>>,
    jobs: HashMap<ObjectKey, JobMemory>,
    nodes: HashMap<Arc<str>, NodeMemory>,
}

#[derive(Default)]
struct JobMemory {
    uid: String,
    begin: Option<Sighting>,
    end: Option<Sighting>,
    /// Nodes that it has.
    nodes: usize,
    /// Nodes whose NodeImage could not be written: why, and when.
    refused: HashMap<String, (String, Duration)>,
    /// What was said of it last.
    said: String,
    /// In which order the workload that it is for updates its Pods, once that has been looked up.
    order: Option<Option<Arc<PodOrder>>>,
}

#[derive(Default)]
struct NodeMemory {
    ready: Option<Sighting>,
    /// How many jobs begin in the next write. None: all of them. After a write that was too large: first none, so that
    /// what goes makes room, then one at a time, so that the job that does not fit is found.
    batch: Option<usize>,
    /// When entries that have not ended were written, by image, tag and version.
    entries: HashMap<(Text, Text, i64), Sighting>,
}

fn start(context: &Context, workers: usize, shutdown: Shutdown) -> Started {
    let controller = Arc::new(Controller::new(context));
    let metrics = &controller.metrics;
    context.metrics.register("kruise_image_pull_jobs_completed", "ImagePullJobs that ended, by result", &metrics.jobs);
    let help = "Entries that ImagePullJobs have added to NodeImages";
    context.metrics.register("kruise_node_image_entries_added", help, &metrics.entries);
    let help = "Entries of NodeImages that ended because their daemon said nothing, or did not end";
    context.metrics.register("kruise_node_image_entries_given_up", help, &metrics.given_up);
    let on_pod = handling(&controller, Controller::pod_changed);
    let on_node = handling(&controller, Controller::node_changed);
    Started::new(controller.run(workers, shutdown)).on_pod(on_pod).on_node(on_node)
}

impl Controller {
    fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            node_events: context.events.named(NODE_NAME),
            jobs: Store::new(None),
            node_images: Store::new(None),
            job_queue: Queue::new(Backoff::default()),
            node_queue: Queue::new(Backoff::default()),
            state: Mutex::default(),
            unreadable: UnreadableObjects::default(),
            status: StatusWriter::default(),
            metrics: OwnMetrics::default(),
        }
    }

    async fn run(self: Arc<Self>, workers: usize, shutdown: Shutdown) {
        let (on_job, on_image, of_nodes, this) = (self.clone(), self.clone(), self.clone(), self.clone());
        let image_changed = move |change: Change<'_, NodeImageView>| match change {
            Change::Applied { old, new, .. } => on_image.node_image_changed(old.map(AsRef::as_ref), Some(new)),
            Change::Deleted(old) => on_image.node_image_changed(Some(old), None),
            Change::Undecodable { key, error } => {
                tracing::error!(node = %key.name, error, "this NodeImage cannot be read and is left alone");
            }
        };
        let node_images: Api<Guarded<NodeImageView>> = Api::all(self.context.client.clone());
        let node_workers = self.context.settings.images.node_workers;
        let reconcile_node = move |key: ObjectKey| {
            let this = of_nodes.clone();
            async move { this.reconcile_node(&key).await }
        };
        let runner = Runner::new(&self.context, NAME, shutdown)
            .watch_guarded(self.context.api(), Config::default(), &self.jobs, move |change| on_job.job_changed(&change))
            .watch_guarded(node_images, Config::default(), &self.node_images, image_changed)
            .following(self.context.nodes.store())
            .following(&self.context.pods)
            .and_queue(NODE_NAME, self.node_queue.clone(), node_workers, reconcile_node);
        let reconcile_job = move |key: ObjectKey| {
            let this = this.clone();
            async move { this.reconcile_job(&key).await }
        };
        runner.run(self.job_queue.clone(), workers, reconcile_job).await;
    }

    fn job_changed(&self, change: &Change<'_, ImagePullJob>) {
        match change {
            Change::Applied { old, new, .. } => {
                let key = ObjectKey::of(new.as_ref());
                let was_unreadable = self.unreadable.contains(&key);
                self.note_job(new);
                self.unreadable.forget(&key);
                if was_unreadable {
                    // Its entries may be those of one that had the name before.
                    self.wake_nodes_of(&key);
                }
                // What an edit takes back is taken back on the nodes.
                let is_other = |old: &Arc<ImagePullJob>| old.spec != new.spec || old.is_deleting() != new.is_deleting();
                if old.is_some_and(is_other) {
                    self.wake_owned(new.metadata.uid.as_deref().unwrap_or_default());
                }
                self.job_queue.add(key);
            }
            Change::Deleted(old) => {
                let uid = old.metadata.uid.as_deref().unwrap_or_default();
                {
                    let mut state = lock(&self.state);
                    state.forget_job(uid);
                    state.jobs.remove(&ObjectKey::of(old.as_ref()));
                }
                self.wake_owned(uid);
            }
            Change::Undecodable { key, error } => {
                tracing::error!(job = %key, error, "this ImagePullJob cannot be read and is left alone");
                // Before it is forgotten: its entries on the nodes stay as they are.
                self.unreadable.note(key);
                lock(&self.state).forget_job_of(key);
                self.job_queue.add((*key).clone());
            }
        }
    }

    /// Takes over what a job says.
    fn note_job(&self, job: &ImagePullJob) {
        let uid = job.metadata.uid.clone().unwrap_or_default();
        let mut state = lock(&self.state);
        if job.is_deleting() {
            state.forget_job(&uid);
        } else {
            state.know_job(uid, Job::of(job).ok().map(Arc::new));
        }
    }

    /// Takes over what the store has of a job after an own write or read, and nothing of one that was deleted meanwhile: nobody
    /// would forget it again, and nodes would keep its entries.
    fn note_again(&self, key: &ObjectKey) {
        let Some(job) = self.jobs.get(key) else { return };
        self.note_job(&job);
        let uid = job.metadata.uid.as_deref();
        // The watch takes it out of the store before it tells of the deletion, which may have been just now.
        if self.jobs.get(key).is_none_or(|now| now.metadata.uid.as_deref() != uid) {
            let uid = uid.unwrap_or_default();
            lock(&self.state).forget_job(uid);
            self.wake_owned(uid);
        }
    }

    /// Nodes on which a job is to begin look again.
    fn wake_owned(&self, uid: &str) {
        let owned = self.node_images.select(|node| node.entries().any(|(_, tag)| tag.is_owned_by(uid)));
        for node in owned {
            self.node_queue.add(ObjectKey::of(node.as_ref()));
        }
    }

    /// Nodes on which a job that could not be read was to begin look again.
    fn wake_nodes_of(&self, job: &ObjectKey) {
        let is_its = |owner: &Owner| owner.is_job() && job_of(owner) == *job;
        for node in self.node_images.select(|node| node.entries().any(|(_, tag)| tag.owners().iter().any(is_its))) {
            self.node_queue.add(ObjectKey::of(node.as_ref()));
        }
    }

    fn node_changed(&self, change: &Change<'_, NodeView>) {
        let Some((old, new)) = change.sides() else { return };
        let with_daemon = |node: &&Arc<NodeView>| node.can_run_daemon();
        let (old, new) = (old.filter(with_daemon), new.filter(with_daemon));
        let Some(any) = new.or(old) else { return };
        if new.is_none() {
            lock(&self.state).nodes.remove(any.name());
        }
        let facts =
            |node: &Arc<NodeView>| (node.ready, node.is_deleting(), node.labels.clone(), node.metadata.uid.clone());
        if old.map(facts) != new.map(facts) {
            self.node_queue.add(ObjectKey::of(any.as_ref()));
            // It may have been the only node that they waited for.
            self.wake_waiting();
        }
    }

    /// A NodeImage is another one, by a watch or by an own write.
    fn node_image_changed(&self, old: Option<&NodeImageView>, new: Option<&NodeImageView>) {
        let Some(any) = new.or(old) else { return };
        self.node_queue.add(ObjectKey::of(any));
        let is_there = |node: Option<&NodeImageView>| node.is_some_and(|node| !node.is_deleting());
        let moved = is_there(old) != is_there(new) || old.zip(new).is_some_and(|(old, new)| old.labels != new.labels);
        let mut state = lock(&self.state);
        if !is_there(new) {
            state.to_begin.remove(any.name());
        }
        // The entries of another NodeImage of this name begin with the same versions.
        if old.map(NodeImageView::uid) != new.map(NodeImageView::uid)
            && let Some(memory) = state.nodes.get_mut(any.name())
        {
            memory.entries.clear();
        }
        if moved {
            let selecting = |job: &&Arc<Job>| {
                let selects = |node: &NodeImageView| job.selects(node.name(), &node.labels).unwrap_or(true);
                !job.is_complete && (old.is_some_and(selects) || new.is_some_and(selects))
            };
            let keys: Vec<ObjectKey> = state.known.values().flatten().filter(selecting).map(key_of).collect();
            for key in keys {
                self.wake(&state, key);
            }
        }
        let (Some(old), Some(new)) = (old, new) else { return };
        let mut owners: HashSet<&str> = HashSet::new();
        let before: HashMap<(&str, &str), _> =
            old.entries().map(|(image, tag)| ((image.as_str(), tag.tag.as_str()), tag)).collect();
        let mut after: HashSet<(&str, &str)> = HashSet::new();
        for (image, tag) in new.entries() {
            let at = (image.as_str(), tag.tag.as_str());
            after.insert(at);
            if before.get(&at) != Some(&tag) {
                owners.extend(tag.owners().iter().map(|owner| owner.uid.as_str()));
                owners.extend(before.get(&at).iter().flat_map(|tag| tag.owners()).map(|owner| owner.uid.as_str()));
            }
        }
        let gone = before.iter().filter(|(at, _)| !after.contains(*at));
        owners.extend(gone.flat_map(|(_, tag)| tag.owners()).map(|owner| owner.uid.as_str()));
        for uid in owners {
            if let Some(Some(job)) = state.known.get(uid)
                && !job.is_complete
            {
                self.wake(&state, key_of(job));
            }
        }
    }

    /// A job looks again soon: the more nodes it has, the longer it waits for further news.
    fn wake(&self, state: &State, key: ObjectKey) {
        let nodes = state.jobs.get(&key).map_or(0, |memory| memory.nodes);
        let pause = Duration::from_millis(u64::try_from(nodes).unwrap_or(u64::MAX) / 10).min(LONGEST_PAUSE);
        if pause.is_zero() {
            self.job_queue.add(key);
        } else {
            self.job_queue.add_after(key, pause);
        }
    }

    /// Jobs that have no nodes yet look again.
    fn wake_waiting(&self) {
        let state = lock(&self.state);
        let open = state.known.values().flatten().filter(|job| !job.is_complete).map(key_of);
        let keys: Vec<ObjectKey> =
            open.filter(|key| state.jobs.get(key).is_some_and(|memory| memory.nodes == 0)).collect();
        for key in keys {
            self.job_queue.add(key);
        }
    }

    fn pod_changed(&self, change: &Change<'_, PodView>) {
        let Some((old, new)) = change.sides() else { return };
        let Some(namespace) = new.or(old).map(|pod| pod.namespace()) else { return };
        let state = lock(&self.state);
        let Some(jobs) = state.by_pods.get(namespace) else { return };
        let facts = |pod: &Arc<PodView>| (pod.node_name.clone(), is_active(pod), pod.labels.clone());
        if old.map(facts) == new.map(facts) {
            return;
        }
        for job in jobs.values() {
            let Nodes::Pods(selector) = &job.nodes else { continue };
            let concerns = |pod: &Arc<PodView>| selector.matches(&pod.labels);
            if old.is_some_and(concerns) || new.is_some_and(concerns) {
                self.job_queue.add_after(key_of(job), POD_PAUSE);
            }
        }
    }

    /// What the owner of an entry wants.
    fn wants(&self, state: &State, owner: &Owner) -> Wants {
        if !owner.is_job() {
            return Wants::Whatever;
        }
        match state.known.get(&owner.uid) {
            Some(Some(job)) => Wants::Of(job.clone()),
            Some(None) => Wants::Whatever,
            None => {
                let is_elsewhere = self.context.only_namespace.as_ref().is_some_and(|only| **only != *owner.namespace);
                let is_unread = self.unreadable.contains(&job_of(owner));
                if is_elsewhere || is_unread { Wants::Whatever } else { Wants::Nothing }
            }
        }
    }
}

impl State {
    /// Takes over what a job says. None: it cannot be carried out as it is written.
    fn know_job(&mut self, uid: String, job: Option<Arc<Job>>) {
        self.unlist_by_pods(&uid);
        if let Some(job) = job.as_ref().filter(|job| !job.is_complete && matches!(job.nodes, Nodes::Pods(_))) {
            self.by_pods.entry(job.namespace.clone()).or_default().insert(uid.clone(), job.clone());
        }
        self.known.insert(uid, job);
    }

    /// Takes a job out of those that every change of a Pod asks for.
    fn unlist_by_pods(&mut self, uid: &str) {
        let Some(Some(job)) = self.known.get(uid) else { return };
        if let Some(jobs) = self.by_pods.get_mut(&job.namespace) {
            jobs.remove(uid);
            if jobs.is_empty() {
                self.by_pods.remove(&job.namespace);
            }
        }
    }

    /// Forgets what is known of the job of this name: it cannot be read any more.
    fn forget_job_of(&mut self, key: &ObjectKey) {
        let remembered = self.jobs.remove(key).map(|memory| memory.uid);
        let is_it = |job: &Option<Arc<Job>>| job.as_ref().is_some_and(|job| key_of(job) == *key);
        let known = self.known.iter().filter(|(_, job)| is_it(job)).map(|(uid, _)| uid.clone());
        let uids: Vec<String> = known.chain(remembered).collect();
        uids.iter().for_each(|uid| self.forget_job(uid));
    }

    fn forget_job(&mut self, uid: &str) {
        self.unlist_by_pods(uid);
        self.known.remove(uid);
        self.to_begin.retain(|_, jobs| {
            jobs.remove(uid);
            !jobs.is_empty()
        });
    }
}

/// The job that an entry names as its owner.
fn job_of(owner: &Owner) -> ObjectKey {
    ObjectKey::new(&owner.namespace, &owner.name)
}

fn key_of(job: &Arc<Job>) -> ObjectKey {
    ObjectKey::new(&job.namespace, &job.name)
}

/// Whether a Pod is on a node and goes on.
fn is_active(pod: &PodView) -> bool {
    !pod.node_name.is_empty() && pod.is_active()
}

#[cfg(test)]
mod tests;
