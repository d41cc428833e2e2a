//! Pulls the images that this node's NodeImage lists.
//!
//! Owns: the status of the NodeImage of its node. Watches: that one object. Pulls through the runtime: no image data
//! passes through this process. Never removes an image, and holds credentials only during the pull that needs them.
//!
//! One task for each open entry, a few of which pull at a time. When an entry is removed or changed, its task is dropped,
//! and with it the call to the runtime. The status is written when a pull begins or ends, and periodically during pulls;
//! changes within a short time go into one write.

mod attempt;
pub mod credentials;
pub mod disk;
mod progress;
mod worker;

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::{Api, Client as KubeClient, Resource};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};
use tokio::{
    sync::{Notify, Semaphore},
    task::AbortHandle,
    time::Instant,
};

use self::{attempt::Images, credentials::PullSecrets, disk::Disk, worker::Worker};
use super::runtimes::Runtimes;
use crate::{
    api::apps::node_image::{NodeImage, NodeImageStatus},
    domain::node::puller::{self as rules, Entry, Order, OrderState},
    k8s::account,
    runtime::{
        apply::{code, patch_status},
        clock,
        events::Recorder,
        guarded::Guarded,
        metrics::{Metrics as AllMetrics, seconds_histogram},
        shutdown::{self, Shutdown},
        watches,
    },
};

/// Pulls that begin or end within this time are recorded in one write.
const COLLECT: Duration = Duration::from_millis(20);
/// How often the progress of pulls is written.
const PROGRESS: Duration = Duration::from_secs(15);
/// Pauses after a write that failed.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// Settings from flags.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node, and its NodeImage.
    pub node: String,
    /// Pulls at the same time; 0 for no limit.
    pub workers: usize,
    /// How full the file system with the images may become, in percent. 100 limits nothing.
    pub image_fs_limit_percent: u8,
    /// A path on that file system. None: the runtime is asked.
    pub image_fs_path: Option<PathBuf>,
    /// Returns the space of a file system.
    pub space: disk::Look,
}

/// Pulls the images of one node.
pub struct Puller {
    kube: KubeClient,
    images: Images,
    events: Recorder,
    settings: Settings,
    metrics: Metrics,
    places: Semaphore,
    shared: Mutex<Shared>,
    /// The status has to be written.
    changed: Notify,
}

#[derive(Default)]
struct Shared {
    object: Option<Arc<NodeImage>>,
    /// Entries that the status does not record as complete.
    jobs: BTreeMap<Entry, PullJob>,
    last_generation: u64,
}

struct PullJob {
    /// Distinguishes a worker that was stopped from its successor.
    generation: u64,
    order: Arc<Order>,
    state: OrderState,
    worker: AbortHandle,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    result: &'static str,
}

/// What the puller counts.
pub struct Metrics {
    ended: Family<Labels, Counter>,
    running: Gauge,
    seconds: Histogram,
}

impl Metrics {
    /// Registers them for `/metrics`.
    pub fn new(all: &AllMetrics) -> Self {
        let metrics = Self { ended: Family::default(), running: Gauge::default(), seconds: seconds_histogram() };
        all.register("kruise_image_pulls", "Images that this daemon was to pull, by how that ended", &metrics.ended);
        all.register("kruise_image_pulls_running", "Pulls under way", &metrics.running);
        all.register_seconds("kruise_image_pull", "Time from the first attempt to the image", &metrics.seconds);
        metrics
    }
    fn count(&self, result: &'static str) {
        self.ended.get_or_create(&Labels { result }).inc();
    }
}

impl Puller {
    /// For one node.
    pub fn new(
        kube: KubeClient,
        runtimes: Runtimes,
        events: &Recorder,
        settings: Settings,
        secrets: PullSecrets,
        metrics: &AllMetrics,
    ) -> Arc<Self> {
        let places = if settings.workers == 0 { Semaphore::MAX_PERMITS } else { settings.workers };
        let disk = Disk::new(settings.image_fs_path.clone(), settings.image_fs_limit_percent, settings.space);
        Arc::new(Self {
            images: Images::new(kube.clone(), settings.node.clone(), runtimes, secrets, disk),
            kube,
            events: events.named(account::EVENTS_OF_IMAGES),
            metrics: Metrics::new(metrics),
            places: Semaphore::new(places.min(Semaphore::MAX_PERMITS)),
            shared: Mutex::default(),
            changed: Notify::new(),
            settings,
        })
    }

    /// Works until `shutdown` turns true. The next process starts interrupted pulls again.
    pub async fn run(self: Arc<Self>, shutdown: Shutdown) {
        tokio::select! {
            () = self.watch() => {}
            () = self.write() => {}
            () = shutdown::requested(shutdown) => {}
        }
        for job in self.shared().jobs.values() {
            job.worker.abort();
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn watch(self: &Arc<Self>) {
        let api: Api<Guarded<NodeImage>> = Api::all(self.kube.clone());
        watches::watch_named_guarded(api, &self.settings.node, |change| match change {
            Ok(Some(Guarded(Ok(object)))) => self.object_changed(object),
            Ok(Some(Guarded(Err(error)))) => {
                tracing::error!(%error, "the NodeImage of this node cannot be read; nothing is pulled");
                self.object_gone();
            }
            Ok(None) => self.object_gone(),
            Err(error) => tracing::warn!(%error, "watch of the NodeImage failed, trying again"),
        })
        .await;
    }

    /// The NodeImage has changed.
    fn object_changed(self: &Arc<Self>, object: NodeImage) {
        self.take(object);
        self.changed.notify_one();
    }

    /// The answer to a write of our own. It may come after the news that the NodeImage is gone.
    fn take_answer(self: &Arc<Self>, object: NodeImage) {
        let is_there = |known: &Arc<NodeImage>| known.metadata.uid == object.metadata.uid;
        if self.shared().object.as_ref().is_some_and(is_there) {
            self.take(object);
        }
    }

    /// Applies a version of the NodeImage: from the watch, or from the response to a write of our own.
    fn take(self: &Arc<Self>, mut object: NodeImage) {
        object.meta_mut().managed_fields = None;
        let orders = rules::orders(&object);
        let versions: HashMap<Entry, i64> = orders.iter().map(|order| (order.entry.clone(), order.version)).collect();
        let mut shared = self.shared();
        if shared.object.as_ref().is_some_and(|known| version(known) > version(&object)) {
            return;
        }
        // What another NodeImage of this name wants has the same versions, and has not begun.
        let is_another = shared.object.as_ref().is_some_and(|known| known.metadata.uid != object.metadata.uid);
        let is_wanted = |entry: &Entry, job: &PullJob| !is_another && versions.get(entry) == Some(&job.order.version);
        shared.jobs.retain(|entry, job| is_wanted(entry, job) || self.end_of(entry, job));
        for order in orders {
            match shared.jobs.get_mut(&order.entry) {
                Some(job) => job.order = Arc::new(order),
                None => self.begin(&mut shared, order),
            }
        }
        shared.object = Some(Arc::new(object));
    }

    fn object_gone(&self) {
        let mut shared = self.shared();
        shared.jobs.retain(|entry, job| self.end_of(entry, job));
        shared.object = None;
    }

    /// Stops the worker of an entry that is not wanted any more. False, for `retain`.
    fn end_of(&self, entry: &Entry, job: &PullJob) -> bool {
        if !matches!(job.state, OrderState::Ended { .. }) {
            job.worker.abort();
            self.metrics.count("cancelled");
            tracing::info!(image = entry.image, tag = entry.tag, version = job.order.version, "not wanted any more");
        }
        false
    }

    fn begin(self: &Arc<Self>, shared: &mut Shared, order: Order) {
        shared.last_generation += 1;
        let worker = Worker { entry: order.entry.clone(), generation: shared.last_generation };
        let generation = worker.generation;
        let entry = worker.entry.clone();
        // It waits for the lock, which is held until its job is there.
        let task = tokio::spawn(self.clone().work(worker));
        let job =
            PullJob { generation, order: Arc::new(order), state: OrderState::Waiting, worker: task.abort_handle() };
        shared.jobs.insert(entry, job);
    }

    /// Writes the status whenever it has changed, for ever.
    async fn write(self: &Arc<Self>) {
        let api: Api<NodeImage> = Api::all(self.kube.clone());
        let mut retry = FIRST_RETRY;
        let mut progress = tokio::time::interval_at(Instant::now() + PROGRESS, PROGRESS);
        loop {
            tokio::select! {
                () = self.changed.notified() => tokio::time::sleep(COLLECT).await,
                _ = progress.tick() => {}
            }
            let Some((object, status)) = self.due() else { continue };
            let recorded = object.status.clone().unwrap_or_default();
            match patch_status(&api, &*object, &recorded, &status).await {
                Ok(None) => retry = FIRST_RETRY,
                Ok(Some(newer)) => {
                    retry = FIRST_RETRY;
                    self.take_answer(newer);
                }
                // The watch delivers the current version.
                Err(error) if code(&error) == Some(404) => {}
                Err(error) => {
                    tracing::debug!(%error, "the status of the NodeImage was not written, trying again");
                    tokio::time::sleep(retry).await;
                    retry = (retry * 2).min(LAST_RETRY);
                    self.changed.notify_one();
                }
            }
        }
    }

    /// The NodeImage, and the status that it should have.
    fn due(&self) -> Option<(Arc<NodeImage>, NodeImageStatus)> {
        let shared = self.shared();
        let object = shared.object.clone()?;
        let states =
            shared.jobs.iter().map(|(entry, job)| (entry.clone(), (job.order.version, job.state.clone()))).collect();
        let status = rules::status(&object, &states, clock::now().wall);
        Some((object, status))
    }
}

fn version(object: &NodeImage) -> u64 {
    object.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
