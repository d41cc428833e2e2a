//! One ImagePullJob: which nodes begin, its status, its end.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{AFTER_CONFLICT, Controller, is_active, lock};
use crate::{
    api::{
        apps::image_pull_job::{ImagePullJob, ImagePullJobStatus},
        labels,
    },
    controllers::BY_NAMESPACE,
    domain::{
        kinds::image_jobs::{
            job::{self, Class, Job, Node, Nodes, ObservedJob},
            rules,
        },
        pod::order::{self, Candidate, Phase},
        workload::pod_order::PodOrder,
    },
    k8s::{
        node::NodeView,
        node_image::NodeImageView,
        pod::{Labels, PodView},
        selector::Selector,
        time::{Now, Sighting},
    },
    runtime::{
        apply::code,
        clock,
        events::reference,
        expiry,
        metrics::ResultLabels,
        queue::Requeue,
        status_writer::{Outcome, json_of},
        unreadable::Presence,
        watches::ObjectKey,
    },
};

/// A node that could take no more is tried again after this time.
const TRY_AGAIN: Duration = Duration::from_secs(60);

impl Controller {
    pub(super) async fn reconcile_job(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let Some(object) = self.jobs.get(key) else { return self.look_at_unreadable(key).await };
        let now = clock::now();
        let uid = object.metadata.uid.as_deref().unwrap_or_default();
        let age = self.remember(&object, now);
        if object.is_deleting() || object.is_complete() {
            return self.finish(&object, age).await;
        }
        let known = lock(&self.state).known.get(uid).cloned();
        let Some(job) = known.flatten() else {
            let Err(why) = Job::of(&object) else { return Ok(Requeue::After(AFTER_CONFLICT)) };
            let before = object.status.clone().unwrap_or_default();
            let status = job::invalid(&before, object.metadata.generation, &why.0, now);
            return self.record(&object, status, None, now).await;
        };
        let order = self.order_of(&object, &job).await;
        let nodes = self.nodes_of(key, &job, order.as_deref(), now);
        let joining = if nodes.is_empty() { self.joining(&job) } else { 0 };
        let before = object.status.clone().unwrap_or_default();
        let generation = object.metadata.generation;
        let observed = ObservedJob { job: &job, status: &before, generation, nodes: &nodes, joining, age };
        let plan = job::plan(&observed, now);
        self.begin_on_nodes(&job, &plan.begin);
        let retry = nodes.iter().any(|node| node.refused.is_some()).then_some(TRY_AGAIN);
        let next = plan.next.into_iter().chain(retry).min();
        self.record(&object, plan.status, next, now).await
    }

    /// One that cannot be read is left alone, but for the finalizer. Its entries go when it is gone.
    async fn look_at_unreadable(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let api: Api<ImagePullJob> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let presence = self.unreadable.look(&api, key, labels::IMAGE_PULL_JOB_FINALIZER).await?;
        if presence == Presence::Gone {
            self.wake_nodes_of(key);
        }
        Ok(presence.look_again().map_or(Requeue::Await, Requeue::After))
    }

    /// How long ago the job began, or ended if it has.
    fn remember(&self, job: &ImagePullJob, now: Now) -> Duration {
        let status = job.status.clone().unwrap_or_default();
        let uid = job.metadata.uid.clone().unwrap_or_default();
        let mut state = lock(&self.state);
        let memory = state.jobs.entry(ObjectKey::of(job)).or_default();
        if memory.uid != uid {
            *memory = super::JobMemory { uid, ..super::JobMemory::default() };
        }
        let is_known = memory.begin.is_some();
        let found = |since| Sighting::found(now, since);
        let begin = *memory.begin.get_or_insert_with(|| status.start_time.map_or(Sighting::live(now), found));
        match status.completion_time {
            None => begin.age(now),
            Some(end) => {
                let seen = if is_known { Sighting::live(now) } else { found(end) };
                memory.end.get_or_insert(seen).age(now)
            }
        }
    }

    /// A job that is over: nothing holds it, and it goes in its time.
    async fn finish(&self, job: &ImagePullJob, age: Duration) -> kube::Result<Requeue> {
        let key = ObjectKey::of(job);
        let api: Api<ImagePullJob> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let finalizers = job.metadata.finalizers.clone().unwrap_or_default();
        if finalizers.iter().any(|finalizer| finalizer == labels::IMAGE_PULL_JOB_FINALIZER) {
            let left: Vec<&String> = finalizers.iter().filter(|f| *f != labels::IMAGE_PULL_JOB_FINALIZER).collect();
            let version = &job.metadata.resource_version;
            let patch = json!({"metadata": {"resourceVersion": version, "uid": job.metadata.uid, "finalizers": left}});
            return match api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(newer) => {
                    // One that is being deleted is gone with its last finalizer; the watch says so.
                    if !newer.is_deleting() {
                        self.jobs.upsert(newer);
                        self.job_queue.add(key);
                    }
                    Ok(Requeue::Await)
                }
                Err(error) if code(&error) == Some(404) => Ok(Requeue::Await),
                Err(error) if code(&error) == Some(409) => self.read_again(&key).await,
                Err(error) => Err(error),
            };
        }
        let recorded = job.status.as_ref().filter(|_| !job.is_deleting());
        if let Some(status) = recorded.and_then(|status| job::for_newer_generation(status, job.metadata.generation)) {
            let recorded = (&json_of(recorded)?, &json_of(Some(&status))?);
            let outcome = self.status.write((&api, &self.jobs), job, recorded, false, clock::now()).await?;
            self.note_again(&key);
            if let Some(after) = outcome.look_again() {
                return Ok(Requeue::After(after));
            }
        }
        let ttl = rules::time_to_live(&job.spec.completion_policy);
        let Some(ttl) = ttl.filter(|_| !job.is_deleting()) else { return Ok(Requeue::Await) };
        let left = ttl.saturating_sub(age);
        if !left.is_zero() {
            return Ok(Requeue::After(left));
        }
        tracing::info!(job = %key, "deleting it, its time to live is over");
        expiry::delete(&api, job).await
    }

    /// The nodes of a job in the order in which they begin, each with how far it is.
    fn nodes_of(&self, key: &ObjectKey, job: &Arc<Job>, order: Option<&PodOrder>, now: Now) -> Vec<Node> {
        let views = match &job.nodes {
            Nodes::Names(names) => {
                let named = names.iter().filter_map(|name| self.node_images.get(&ObjectKey::new("", name)));
                named.filter(|view| !view.is_deleting()).collect()
            }
            Nodes::All | Nodes::Labels(_) => {
                let selects = |view: &NodeImageView| job.selects(view.name(), &view.labels) == Some(true);
                let mut views = self.node_images.select(|view| !view.is_deleting() && selects(view));
                views.sort_by(|a, b| a.name().cmp(b.name()));
                views
            }
            Nodes::Pods(selector) => {
                let mut pods: Vec<Candidate> = self.pods_of(job, selector).iter().map(|pod| candidate(pod)).collect();
                // The nodes whose Pods are updated first.
                pods.sort_by(|a, b| order::base(a, b).then_with(|| a.name.cmp(&b.name)));
                if let Some(order) = order {
                    let labels: Vec<Labels> = pods.iter().map(|pod| pod.labels.clone()).collect();
                    order.sort(&mut pods, |pod| pod, labels.iter());
                }
                let mut seen = HashSet::new();
                pods.retain(|pod| seen.insert(pod.node.clone()));
                let views = pods.iter().filter_map(|pod| self.node_images.get(&ObjectKey::new("", &pod.node)));
                views.filter(|view| !view.is_deleting()).collect::<Vec<_>>()
            }
        };
        let mut state = lock(&self.state);
        let refused: BTreeMap<String, String> = match state.jobs.get_mut(key) {
            None => BTreeMap::new(),
            Some(memory) => {
                memory.nodes = views.len();
                memory.refused.retain(|_, (_, at)| now.mono.saturating_sub(*at) < TRY_AGAIN);
                memory.refused.iter().map(|(node, (why, _))| (node.clone(), why.clone())).collect()
            }
        };
        let of = |view: &Arc<NodeImageView>| {
            let class = match job::class(job, view) {
                Class::Unassigned
                    if state.to_begin.get(view.name()).is_some_and(|jobs| jobs.contains_key(&job.uid)) =>
                {
                    Class::Pulling
                }
                class => class,
            };
            Node { name: view.name().to_owned(), class, refused: refused.get(view.name()).cloned() }
        };
        views.iter().map(of).collect()
    }

    /// The Pods by which a job selects its nodes.
    fn pods_of(&self, job: &Job, selector: &Selector) -> Vec<Arc<PodView>> {
        let pods = self.context.pods.by_index(&BY_NAMESPACE, &job.namespace).into_iter();
        pods.filter(|pod| is_active(pod) && selector.matches(&pod.labels)).collect()
    }

    /// Nodes of a job that get a NodeImage soon.
    fn joining(&self, job: &Job) -> usize {
        let with_pods: HashSet<String> = match &job.nodes {
            Nodes::Pods(selector) => {
                self.pods_of(job, selector).iter().map(|pod| pod.node_name.as_str().to_owned()).collect()
            }
            Nodes::All | Nodes::Names(_) | Nodes::Labels(_) => HashSet::new(),
        };
        let joins = |node: &NodeView| {
            let is_new = self.node_images.get(&ObjectKey::of(node)).is_none();
            let selected = job.selects(node.name(), &node.labels).unwrap_or_else(|| with_pods.contains(node.name()));
            is_new && node.can_run_daemon() && node.ready && !node.is_deleting() && selected
        };
        self.context.nodes.select(joins).len()
    }

    fn begin_on_nodes(&self, job: &Arc<Job>, begin: &[String]) {
        if begin.is_empty() {
            return;
        }
        tracing::info!(job = %super::key_of(job), image = job.image, tag = job.tag, nodes = begin.len(), "nodes begin");
        let mut state = lock(&self.state);
        // It was deleted while we looked.
        if !state.known.contains_key(&job.uid) {
            return;
        }
        for node in begin {
            let name: Arc<str> = node.as_str().into();
            state.to_begin.entry(name).or_default().insert(job.uid.clone(), job.clone());
            self.node_queue.add(ObjectKey::new("", node));
        }
    }

    async fn record(
        &self,
        job: &ImagePullJob,
        status: ImagePullJobStatus,
        next: Option<Duration>,
        now: Now,
    ) -> kube::Result<Requeue> {
        let key = ObjectKey::of(job);
        let before = job.status.clone().unwrap_or_default();
        let requeue = next.map_or(Requeue::Await, Requeue::After);
        if before == status && job.status.is_some() {
            return Ok(requeue);
        }
        let api: Api<ImagePullJob> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let recorded = (&json_of(job.status.as_ref())?, &json_of(Some(&status))?);
        let can_wait = !job::is_news(&before, &status);
        let outcome = self.status.write((&api, &self.jobs), job, recorded, can_wait, now).await?;
        self.note_again(&key);
        match outcome {
            Outcome::Unchanged => Ok(requeue),
            Outcome::Written(newer) => {
                self.emit_events(job, &status);
                if newer.is_complete() {
                    // Their entries now go in their time.
                    self.wake_owned(job.metadata.uid.as_deref().unwrap_or_default());
                    self.job_queue.add(key);
                }
                Ok(requeue)
            }
            Outcome::Later(pause) => Ok(Requeue::After(next.map_or(pause, |next| next.min(pause)))),
            Outcome::Outdated => Ok(Requeue::After(AFTER_CONFLICT)),
            Outcome::Gone => Ok(Requeue::Await),
        }
    }

    async fn read_again(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let api: Api<ImagePullJob> = Api::namespaced(self.context.client.clone(), &key.namespace);
        if let Some(newer) = api.get_opt(&key.name).await? {
            self.jobs.upsert(newer);
            self.note_again(key);
        }
        Ok(Requeue::After(AFTER_CONFLICT))
    }

    /// Says in an event and the log when a job enters another state.
    fn emit_events(&self, job: &ImagePullJob, status: &ImagePullJobStatus) {
        let key = ObjectKey::of(job);
        let Some(condition) = status.conditions.iter().find(|c| c.type_ == labels::CONDITION_PROGRESSING) else {
            return;
        };
        let reason = condition.reason.as_str();
        {
            let mut state = lock(&self.state);
            let Some(memory) = state.jobs.get_mut(&key) else { return };
            if memory.said == reason {
                return;
            }
            memory.said = reason.to_owned();
        }
        let ImagePullJobStatus { desired, succeeded, failed, .. } = status;
        tracing::info!(job = %key, reason, desired, succeeded, failed, message = condition.message, "recorded");
        let counts = format!("{succeeded} of {desired} nodes have it, {failed} failed");
        let message = format!("{}: {}; {counts}", job.spec.image, condition.message);
        let about = reference(job);
        match reason {
            "DeadlineExceeded" | "PullsFailed" | "NodeRefuses" | "Invalid" => {
                self.context.events.warning(&about, reason, &message);
            }
            _ => {
                self.context.events.normal(&about, reason, &message);
            }
        }
        if status.completion_time.is_some() {
            let result = if *failed == 0 { "succeeded" } else { "failed" };
            self.metrics.jobs.get_or_create(&ResultLabels { result }).inc();
        }
    }
}

fn candidate(pod: &PodView) -> Candidate {
    Candidate {
        name: pod.name().to_owned(),
        labels: pod.labels.clone(),
        node: pod.node_name.as_str().to_owned(),
        phase: Phase::of(&pod.phase),
        available: false,
        ready: pod.condition_is_true("Ready"),
        ready_since: pod.ready_since,
        restarts: pod.container_statuses.iter().map(|status| status.restart_count).max().unwrap_or(0),
        created: pod.created,
        deletion_cost: pod.deletion_cost,
    }
}
