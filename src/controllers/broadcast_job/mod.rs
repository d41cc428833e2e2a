//! BroadcastJobs: a Pod that runs to its end on each node that fits.
//!
//! - Owns: the Pods of BroadcastJobs, their status, `spec.paused` where failures pause a job, their deletion after the TTL.
//! - Watches: BroadcastJobs, Pods, Nodes.
//! - Never: touches a Pod that has ended, or one that another owner controls; makes a Pod for a job that is being deleted.
//!
//! One pass ([`Controller::reconcile`]) is: nodes and Pods, the plan and its steps, the status. The rules are in
//! [`domain::broadcast_job`](crate::domain::kinds::broadcast_job). What a pass remembers can be lost: times are computed from
//! the status, and the names of Pods say which of them have been made.

mod apply;
mod record;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use kube::{Api, Resource, runtime::watcher::Config};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use serde_json::Value;

use super::{BY_CONTROLLER, Context, Registration, Runner, Started, owned_text};
use crate::{
    api::{
        apps::{self, broadcast_job::BroadcastJob},
        feature_gates::gate,
    },
    domain::{
        kinds::broadcast_job::{
            plan::{self, BroadcastObserved},
            pod::{BroadcastNode, BroadcastPod},
            spec::BroadcastSpec,
        },
        node::backoff::Failures,
        workload::owner::OwnerRef,
    },
    k8s::{
        invalid::Invalid,
        node::NodeView,
        pod::PodView,
        rbac::Rule,
        time::{Now, Sighting},
    },
    runtime::{
        clock,
        guarded::Guarded,
        packed::Packed,
        pass::{Memories, Pass},
        pod_control::PodControl,
        queue::{Backoff, Queue, Requeue},
        shutdown::Shutdown,
        status_writer::StatusWriter,
        wake,
        watches::{Change, ObjectKey, Store},
    },
};

/// Its line in the table.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: Some("broadcastjobs.apps.kruise.io"),
    gate: None,
    rules: &[
        Rule::new(&["apps.kruise.io"], &["broadcastjobs"], &["get", "list", "watch", "patch", "delete"]),
        Rule::new(&["apps.kruise.io"], &["broadcastjobs/status"], &["patch"]),
        // To own objects with blockOwnerDeletion, where the API server checks that.
        Rule::new(&["apps.kruise.io"], &["broadcastjobs/finalizers"], &["update"]),
        Rule::new(&[""], &["pods"], &["get", "list", "watch", "create", "patch", "delete"]),
    ],
    workers_flag: Some("broadcastjob-workers"),
    workers: 3,
    start,
};

const NAME: &str = "broadcastjob-controller";
const KIND: &str = "BroadcastJob";

struct Controller {
    context: Context,
    jobs: Arc<Store<Packed<BroadcastJob>>>,
    queue: Arc<Queue<ObjectKey>>,
    pods: PodControl,
    memories: Memories<BroadcastMemory>,
    status: StatusWriter,
    metrics: OwnMetrics,
}

/// What is remembered of a job. Everything can be lost.
#[derive(Default)]
struct BroadcastMemory {
    /// What nodes are held against, for one version of the job.
    outline: Option<(Option<String>, Outline)>,
    begin: Option<Sighting>,
    /// This process has seen it before its end.
    was_active: bool,
    end: Option<Sighting>,
    /// Nodes for which a Pod was made, or tried.
    tries: Failures,
    /// How many Pods were made for a node, for their names.
    made: HashMap<String, u32>,
    /// Pods that are made at a time.
    window: usize,
    /// The last event of each reason.
    said: BTreeMap<&'static str, String>,
    /// Nodes of the last pass.
    nodes: usize,
}

/// The spec of a job without the template. None: the job is over, or waits for another spec.
type Outline = Option<Arc<BroadcastSpec>>;

/// Labels of the counter of writes to Pods.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PodLabels {
    /// `create`, `delete` or `stop`.
    operation: &'static str,
    /// `done` or `failed`.
    result: &'static str,
}

/// Labels of the counter of jobs that have ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabels {
    /// `complete` or `failed`.
    result: &'static str,
}

/// What the controller counts.
#[derive(Clone, Default)]
struct OwnMetrics {
    pods: Family<PodLabels, Counter>,
    ended: Family<EndLabels, Counter>,
}

impl OwnMetrics {
    fn new(context: &Context) -> Self {
        let metrics = Self::default();
        let help = "Pods of BroadcastJobs that were to be created, deleted or stopped, by result";
        context.metrics.register("kruise_broadcast_job_pod_writes", help, &metrics.pods);
        context.metrics.register(
            "kruise_broadcast_jobs_ended",
            "BroadcastJobs that have ended, by result",
            &metrics.ended,
        );
        metrics
    }

    fn count(&self, operation: &'static str, is_done: bool) {
        let result = if is_done { "done" } else { "failed" };
        self.pods.get_or_create(&PodLabels { operation, result }).inc();
    }
}

fn start(context: &Context, workers: usize, shutdown: Shutdown) -> Started {
    let controller = Arc::new(Controller::new(context));
    let (on_pod, on_node) = (controller.clone(), controller.clone());
    Started::new(controller.run(workers, shutdown))
        .on_pod(move |change| on_pod.pod_changed(change))
        .on_node(move |change| on_node.node_changed(change))
}

/// A job in one pass.
struct BroadcastWork {
    key: ObjectKey,
    /// The job as the store holds it: its status is written over this version.
    held: Arc<Packed<BroadcastJob>>,
    job: BroadcastJob,
    spec: BroadcastSpec,
    owner: OwnerRef,
    /// How long ago it began.
    age: Duration,
    /// How long ago it ended.
    ended: Duration,
}

/// Nodes, and the Pods of a job.
struct BroadcastSeen {
    nodes: Vec<BroadcastNode>,
    pods: Vec<BroadcastPod>,
    /// The same Pods, by name.
    views: BTreeMap<String, Arc<PodView>>,
    tries: Failures,
    now: Now,
}

impl Controller {
    fn new(context: &Context) -> Self {
        let pods = PodControl::new(context.client.clone(), context.pods.clone(), context.events.clone());
        Self {
            context: context.clone(),
            jobs: Store::new(None),
            queue: Queue::new(Backoff::default()),
            pods,
            memories: Memories::default(),
            status: StatusWriter::default(),
            metrics: OwnMetrics::new(context),
        }
    }

    async fn run(self: Arc<Self>, workers: usize, shutdown: Shutdown) {
        let (on_job, this) = (self.clone(), self.clone());
        let jobs: Api<Guarded<Packed<BroadcastJob>>> = self.context.api();
        let runner = Runner::new(&self.context, NAME, shutdown)
            .watch_guarded(jobs, Config::default(), &self.jobs, move |change| {
                wake::workload_changed(&change, &on_job.queue, &on_job.memories);
                wake::status_changed(&change, &on_job.jobs, &on_job.queue);
            })
            .following(self.context.nodes.store())
            .following(&self.context.pods);
        let reconcile = move |key: ObjectKey| {
            let this = this.clone();
            async move { this.reconcile(&key).await }
        };
        runner.run(self.queue.clone(), workers, reconcile).await;
    }

    fn api(&self, key: &ObjectKey) -> Api<Packed<BroadcastJob>> {
        Api::namespaced(self.context.client.clone(), &key.namespace)
    }

    /// A node is news for those jobs that go on and see another one than before.
    fn node_changed(&self, change: &Change<'_, NodeView>) {
        let Some((old, new)) = change.sides() else { return };
        for held in self.jobs.select(|held| held.meta().deletion_timestamp.is_none()) {
            let key = ObjectKey::of(held.as_ref());
            let Some(spec) = self.outline(&key, &held) else { continue };
            let seen = |node: Option<&Arc<NodeView>>| node.map(|node| BroadcastNode::of(node, &spec));
            if seen(old) != seen(new) {
                self.wake(&key);
            }
        }
    }

    fn pod_changed(&self, change: &Change<'_, PodView>) {
        wake::owners_of_changed(change, (apps::GROUP, KIND), |key, _| self.wake(key));
    }

    /// A pass looks at every node and Pod: the more there are, the longer the next one waits for further news.
    fn wake(&self, key: &ObjectKey) {
        let nodes = self.memories.with(key, |memory| memory.nodes).unwrap_or_default();
        match wake::pause(nodes) {
            Duration::ZERO => self.queue.add(key.clone()),
            pause => self.queue.add_after(key.clone(), pause),
        }
    }

    /// What nodes are held against. The job is opened for it once for each of its versions: it is asked for at each change of
    /// each node.
    fn outline(&self, key: &ObjectKey, held: &Packed<BroadcastJob>) -> Outline {
        let meta = held.meta();
        self.memories.enter(key, meta.uid.as_deref().unwrap_or_default());
        let known = self.memories.with(key, |memory| {
            let (version, outline) = memory.outline.as_ref()?;
            (*version == meta.resource_version).then(|| outline.clone())
        });
        if let Some(outline) = known.flatten() {
            return outline;
        }
        let job = held.open().ok().filter(|job| !job.is_over());
        let spec = job.and_then(|job| self.spec(&job).ok());
        let outline = spec.map(|spec| Arc::new(BroadcastSpec { template: Value::Null, ..spec }));
        let remembered = Some((meta.resource_version.clone(), outline.clone()));
        self.memories.with(key, |memory| memory.outline = remembered);
        // Its end may have been reported meanwhile.
        if self.jobs.get(key).is_none() {
            self.memories.forget(key);
        }
        outline
    }

    fn spec(&self, job: &BroadcastJob) -> Result<BroadcastSpec, Invalid> {
        BroadcastSpec::of(job, self.context.gates.enabled(gate::SIDECAR_TERMINATOR))
    }

    async fn reconcile(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let Some(held) = self.jobs.get(key) else { return Ok(Requeue::Await) };
        // What is being deleted takes its Pods along.
        if held.meta().deletion_timestamp.is_some() {
            return Ok(Requeue::Await);
        }
        let (job, now) = (held.open()?, clock::now());
        self.memories.enter(key, job.metadata.uid.as_deref().unwrap_or_default());
        let spec = match self.spec(&job) {
            Ok(spec) => spec,
            Err(Invalid(message)) => return self.record_invalid(key, (&held, &job), message, now).await,
        };
        let (age, ended) = self.ages(key, &job, now);
        let owner = OwnerRef::of(&job);
        let work = BroadcastWork { key: key.clone(), held, job, spec, owner, age, ended };
        let mut seen = self.see(&work);
        let actions = plan::plan(&work.observed(&seen)).actions;
        let (has_acted, mut pass) = (!actions.is_empty(), Pass::default());
        let done = self.carry_out(&work, &seen, actions, &mut pass).await;
        if done.job_has_changed {
            return pass.end(|after| self.queue.add_after(key.clone(), after));
        }
        // A write that was refused because a Pod had changed has brought what it is now.
        if has_acted {
            seen = self.see(&work);
        }
        pass.look_after(self.record(&work, &seen, done.refused.as_deref()).await?);
        pass.end(|after| self.queue.add_after(key.clone(), after))
    }

    /// How long ago a job began, and how long ago it ended. What this process has seen happen is measured with its own clock.
    fn ages(&self, key: &ObjectKey, job: &BroadcastJob, now: Now) -> (Duration, Duration) {
        let status = job.status.clone().unwrap_or_default();
        let ages = self.memories.with(key, |memory| {
            let age = match status.start_time {
                // This pass writes the start.
                None => memory.begin.get_or_insert(Sighting::live(now)).age(now),
                Some(start) => memory.begin.get_or_insert_with(|| Sighting::found(now, start)).age(now),
            };
            let ended = match status.completion_time {
                None => {
                    memory.was_active = true;
                    Duration::ZERO
                }
                Some(end) => {
                    let seen = if memory.was_active { Sighting::live(now) } else { Sighting::found(now, end) };
                    memory.end.get_or_insert(seen).age(now)
                }
            };
            (age, ended)
        });
        ages.unwrap_or_default()
    }

    /// Nodes and the job's Pods, as the stores have them.
    fn see(&self, work: &BroadcastWork) -> BroadcastSeen {
        let now = clock::now();
        // A job that is over makes no Pod any more.
        let nodes: Vec<BroadcastNode> = match work.job.is_over() {
            true => Vec::new(),
            false => self.context.nodes.list().iter().map(|node| BroadcastNode::of(node, &work.spec)).collect(),
        };
        let (mut pods, mut views) = (Vec::new(), BTreeMap::new());
        for view in self.context.pods.by_index(&BY_CONTROLLER, &owned_text(&work.owner.namespace, &work.owner.uid)) {
            if work.owner.controls(&view) {
                pods.push(BroadcastPod::of(&view, &work.spec));
                views.insert(view.name().to_owned(), view);
            }
        }
        let tries = self.memories.with(&work.key, |memory| {
            memory.nodes = nodes.len();
            memory.tries.clone()
        });
        BroadcastSeen { nodes, pods, views, tries: tries.unwrap_or_default(), now }
    }
}

impl BroadcastWork {
    fn observed<'a>(&'a self, seen: &'a BroadcastSeen) -> BroadcastObserved<'a> {
        BroadcastObserved {
            spec: &self.spec,
            recorded: self.job.status.as_ref().unwrap_or(&NO_STATUS),
            nodes: &seen.nodes,
            pods: &seen.pods,
            age: self.age,
            ended: self.ended,
            tries: &seen.tries,
            now: seen.now,
        }
    }
}

static NO_STATUS: std::sync::LazyLock<apps::broadcast_job::BroadcastJobStatus> =
    std::sync::LazyLock::new(apps::broadcast_job::BroadcastJobStatus::default);
