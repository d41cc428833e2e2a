//! Pulls the images that this node's NodeImage lists.
//!
//! Owns: the status of the NodeImage of its node. Watches: that one object. Pulls through the runtime: no image data
//! passes through this process. Never removes an image, and holds credentials only during the pull that needs them.
//!
//! One task for each open entry, a few of which pull at a time. When an entry is removed or changed, its task is dropped,
//! and with it the call to the runtime. The status is written when a pull begins or ends, and periodically during pulls;
//! changes within a short time go into one write.

pub mod credentials;
pub mod disk;
mod progress;

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::{Api, Client as KubeClient, Resource, api::GetParams};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};
use tokio::{
    sync::{Notify, Semaphore},
    task::AbortHandle,
    time::Instant,
};

use self::{credentials::PullSecrets, disk::Disk};
use super::runtimes::Runtimes;
use crate::{
    api::apps::node_image::{NodeImage, NodeImageStatus},
    cri::{
        client::Client as CriClient,
        proto::{AuthConfig, PodSandboxConfig},
        types::CriError,
    },
    domain::node::{
        pull_secrets::{Answer, Credential, Question},
        puller::{self as rules, Entry, Order, OrderState, PullFailure},
    },
    k8s::{account, invalid::Invalid, path},
    runtime::{
        apply::{code, patch_status},
        clock,
        events::{Recorder, reference},
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
    runtimes: Runtimes,
    events: Recorder,
    settings: Settings,
    secrets: PullSecrets,
    disk: Disk,
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

/// Which worker.
#[derive(Clone)]
struct Worker {
    entry: Entry,
    generation: u64,
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
        Arc::new(Self {
            kube,
            runtimes,
            events: events.named(account::EVENTS_OF_IMAGES),
            secrets,
            disk: Disk::new(settings.image_fs_path.clone(), settings.image_fs_limit_percent, settings.space),
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
        watches::watch_named(api, &self.settings.node, |change| match change {
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

    /// The current order of a worker. None: it was stopped.
    fn order(&self, worker: &Worker) -> Option<Arc<Order>> {
        let shared = self.shared();
        let job = shared.jobs.get(&worker.entry).filter(|job| job.generation == worker.generation)?;
        Some(job.order.clone())
    }

    fn set(&self, worker: &Worker, state: OrderState) {
        let mut shared = self.shared();
        if let Some(job) = shared.jobs.get_mut(&worker.entry).filter(|job| job.generation == worker.generation) {
            job.state = state;
        }
    }

    /// Carries out one order.
    async fn work(self: Arc<Self>, worker: Worker) {
        self.to_an_end(&worker, self.take_steps(&worker)).await;
    }

    /// Takes steps; the order has failed if they panic.
    async fn to_an_end(&self, worker: &Worker, steps: impl Future<Output = ()>) {
        let Some(order) = self.order(worker) else { return };
        let _end = EndOfPanic { puller: self, worker, order: &order };
        steps.await;
    }

    async fn take_steps(&self, worker: &Worker) {
        let Some(order) = self.order(worker) else { return };
        let image = match worker.entry.reference() {
            Ok(image) => image,
            Err(Invalid(message)) => return self.finish(worker, &order, None, Err(PullFailure(message))),
        };
        // An attempt that needs no pull needs no place.
        if order.if_not_present
            && let Ok(Some(id)) = self.present(&worker.entry, &image).await
        {
            return self.finish(worker, &order, None, Ok(id));
        }
        let mut place = self.places.acquire().await.ok();
        let (started, begun) = (clock::now().wall, Instant::now());
        self.set(worker, OrderState::Pulling { started, percent: 0, message: String::new() });
        self.changed.notify_one();
        tracing::info!(image, version = order.version, "pulling");

        let (mut failed, mut last_error) = (0, None::<String>);
        let (order, result) = loop {
            let Some(order) = self.order(worker) else { return };
            let Some(limit) = order.next_attempt(failed, begun.elapsed()) else {
                let mut message = last_error.unwrap_or_else(|| "there was no time for an attempt".into());
                if order.is_overdue(begun.elapsed()) {
                    message = format!("activeDeadlineSeconds are over; {message}");
                }
                break (order, Err(PullFailure(message)));
            };
            let (until, last_error_was) = (Instant::now() + limit, last_error.as_deref());
            let attempt =
                Attempt { worker, order: &order, image: &image, started, begun, until, last_error: last_error_was };
            self.metrics.running.inc();
            let running = Running(&self.metrics.running);
            let outcome = tokio::time::timeout(limit, self.attempt(&attempt)).await;
            drop(running);
            let error = match outcome {
                Ok(Ok(id)) => break (order, Ok(id)),
                Ok(Err(PullFailure(error))) => rules::shortened(&error),
                Err(_) => format!("the attempt took longer than {} s", limit.as_secs_f32().ceil()),
            };
            tracing::info!(image, attempt = failed + 1, of = order.attempts, error, "not pulled");
            failed += 1;
            last_error = Some(error);
            if order.next_attempt(failed, begun.elapsed()).is_some() {
                // Others may pull meanwhile.
                place.take();
                tokio::time::sleep(rules::pause(failed)).await;
                place = self.places.acquire().await.ok();
            }
        };
        drop(place);
        self.finish(worker, &order, Some((started, begun)), result);
    }

    fn finish(
        &self,
        worker: &Worker,
        order: &Order,
        begun: Option<(jiff::Timestamp, Instant)>,
        result: Result<String, PullFailure>,
    ) {
        if self.order(worker).is_none() {
            return;
        }
        let completed = clock::now().wall;
        let started = begun.map_or(completed, |(started, _)| started);
        let Entry { image, tag } = &worker.entry;
        let about = self.shared().object.as_ref().map(|object| reference(&**object));
        match (&result, begun) {
            (Ok(id), Some((_, since))) => {
                let took = since.elapsed();
                self.metrics.count("succeeded");
                self.metrics.seconds.observe(took.as_secs_f64());
                tracing::info!(image, tag, id, ?took, "pulled");
                let message = format!("Image {image}, {tag} was pulled in {:.1} s", took.as_secs_f64());
                if let Some(about) = about {
                    self.events.normal(&about, "PullImageSucceed", &message);
                }
            }
            (Ok(id), None) => {
                self.metrics.count("present");
                tracing::info!(image, tag, id, "it is there already");
                if let Some(about) = about {
                    let message = format!("Image {image}, {tag} is there already");
                    self.events.normal(&about, "PullImageSucceed", &message);
                }
            }
            (Err(error), _) => {
                self.metrics.count("failed");
                tracing::warn!(image, tag, %error, "given up");
                let message = format!("Image {image}, {tag} was not pulled on node {}: {error}", self.settings.node);
                for about in order.owners.iter().chain(&about) {
                    self.events.warning(about, "PullImageFailed", &message);
                }
            }
        }
        self.set(worker, OrderState::Ended { started, completed, result });
        self.changed.notify_one();
    }

    /// The runtime that has the images. Where there are several, it is the first by name.
    fn runtime(&self) -> Option<CriClient> {
        self.runtimes.names().first().and_then(|name| self.runtimes.get(name))
    }

    /// How the status names the image, if the runtime has it.
    async fn present(&self, entry: &Entry, image: &str) -> Result<Option<String>, CriError> {
        let Some(runtime) = self.runtime() else { return Ok(None) };
        let found = runtime.image_status(image).await?;
        let fits = |digests: &[String]| {
            entry.digest().is_none_or(|digest| digests.iter().any(|known| known.split('@').nth(1) == Some(digest)))
        };
        Ok(found.filter(|found| fits(&found.repo_digests)).map(|found| format!("{}@{}", entry.image, found.id)))
    }

    /// One attempt, within its time limit.
    async fn attempt(&self, attempt: &Attempt<'_>) -> Result<String, PullFailure> {
        let Attempt { worker, order, image, .. } = *attempt;
        let nobody = || PullFailure("no container runtime answers on this node".into());
        let failed = |error: CriError| PullFailure(error.stable_text());
        let runtime = self.runtime().ok_or_else(nobody)?;
        if order.if_not_present
            && let Some(id) = self.present(&worker.entry, image).await.map_err(failed)?
        {
            return Ok(id);
        }
        if let Some(short) = self.disk.is_short(&runtime).await {
            return Err(PullFailure(short));
        }
        if self.is_under_disk_pressure().await {
            return Err(PullFailure(rules::UNDER_DISK_PRESSURE.to_owned()));
        }
        let Answer { credentials, problems } =
            if order.has_secrets { self.credentials(attempt).await? } else { Answer::default() };
        let tries: Vec<Option<Credential>> =
            if credentials.is_empty() { vec![None] } else { credentials.into_iter().map(Some).collect() };
        let mut errors: Vec<String> = Vec::new();
        for credential in tries {
            let hidden = credential.as_ref().map(Credential::secrets).unwrap_or_default();
            let sandbox = PodSandboxConfig {
                labels: order.labels.clone().into_iter().collect(),
                annotations: order.annotations.clone().into_iter().collect(),
            };
            // The caller's limit is shorter.
            let pull =
                runtime.pull_image(image, credential.map(as_auth), sandbox, Duration::from_secs(u32::MAX.into()));
            let outcome = tokio::select! {
                outcome = pull => outcome,
                short = self.observe(attempt, &runtime) => return Err(PullFailure(short)),
            };
            match outcome {
                Ok(_) => return self.pulled(&worker.entry, image).await,
                Err(error) => {
                    let error = rules::presentable(&error.stable_text(), &hidden);
                    if !errors.contains(&error) {
                        errors.push(error);
                    }
                }
            }
        }
        errors.extend(problems);
        Err(PullFailure(errors.join("; ")))
    }

    /// Whether kubelet reports that this node has too little space on its disk. What cannot be learnt limits nothing.
    async fn is_under_disk_pressure(&self) -> bool {
        let nodes = kube::core::Request::new(path::of_cluster(path::CORE, "v1", "nodes"));
        // From the API server's memory.
        let Ok(request) = nodes.get(&self.settings.node, &GetParams::any()) else { return false };
        match self.kube.request::<serde_json::Value>(request).await {
            Ok(node) => rules::is_under_disk_pressure(&node),
            Err(error) => {
                tracing::warn!(%error, "whether the node is under DiskPressure is not known");
                false
            }
        }
    }

    async fn pulled(&self, entry: &Entry, image: &str) -> Result<String, PullFailure> {
        let why = match (self.present(entry, image).await, entry.digest()) {
            (Ok(Some(id)), _) => return Ok(id),
            (Ok(None), Some(digest)) => format!("what the registry gave for {image} does not have the digest {digest}"),
            (Ok(None), None) => format!("the runtime pulled {image}, and does not have it"),
            (Err(error), _) => error.stable_text(),
        };
        Err(PullFailure(why))
    }

    /// Asks the manager until it answers. Shortly before the attempt's time limit the last error is returned.
    async fn credentials(&self, attempt: &Attempt<'_>) -> Result<Answer, PullFailure> {
        let Entry { image, tag } = attempt.order.entry.clone();
        let question = Question { image, tag, version: attempt.order.version };
        let mut failed = 0;
        loop {
            let error = match self.secrets.ask(&question).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            failed += 1;
            let pause = rules::pause(failed);
            if !error.may_pass || Instant::now() + pause + credentials::LIMIT >= attempt.until {
                return Err(PullFailure(error.message));
            }
            tracing::info!(error = error.message, "no answer about registry credentials, asking again");
            tokio::time::sleep(pause).await;
        }
    }

    /// Monitors a running pull. Ends only when too little space is left, with the message for the status.
    async fn observe(&self, attempt: &Attempt<'_>, runtime: &CriClient) -> String {
        let mut progress = progress::Progress::of(runtime, &attempt.worker.entry.image);
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if let Some(short) = self.disk.is_short(runtime).await {
                return short;
            }
            let arrived = progress.look().await;
            let percent = arrived.map_or(0, |arrived| arrived.percent());
            let message = rules::progress_message(attempt.begun.elapsed(), arrived, attempt.last_error);
            self.set(attempt.worker, OrderState::Pulling { started: attempt.started, percent, message });
        }
    }
}

/// What an attempt is about.
#[derive(Clone, Copy)]
struct Attempt<'a> {
    worker: &'a Worker,
    order: &'a Order,
    image: &'a str,
    started: jiff::Timestamp,
    begun: Instant,
    until: Instant,
    last_error: Option<&'a str>,
}

/// Counts a pull as running, until it is dropped.
struct Running<'a>(&'a Gauge);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Without it an order whose worker panicked would be reported as running for ever.
struct EndOfPanic<'a> {
    puller: &'a Puller,
    worker: &'a Worker,
    order: &'a Order,
}

impl Drop for EndOfPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = "the daemon met an error of its own (a panic); its log says where".to_owned();
            self.puller.finish(self.worker, self.order, None, Err(PullFailure(error)));
        }
    }
}

fn as_auth(credential: Credential) -> AuthConfig {
    let Credential { username, password, server_address, identity_token, registry_token } = credential;
    AuthConfig { username, password, auth: String::new(), server_address, identity_token, registry_token }
}

fn version(object: &NodeImage) -> u64 {
    object.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
