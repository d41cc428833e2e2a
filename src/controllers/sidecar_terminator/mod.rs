//! Ends the sidecars of Pods that run to an end, when their main containers have ended.
//!
//! - Watches: Pods, the ContainerRecreateRequests that it makes (by label), and all that are active, for the hooks that they run.
//! - Writes: ContainerRecreateRequests for sidecars whose exit code counts; the phase of Pods whose sidecars' exit codes do not,
//!   with the condition SidecarTerminated; on virtual nodes the image that a sidecar names itself.
//! - What is due is decided by [`crate::domain::pod::sidecar_terminator`].
//! - Never: stops anything before all main containers have ended; deletes a Pod; writes Pods of our own namespace.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, api::PostParams, runtime::watcher::Config};
use prometheus_client::metrics::{counter::Counter, family::Family};
use serde_json::json;

use super::{Context, Registration, Runner, Started, handling};
use crate::{
    api::{
        crr::{
            ContainerRecreateRequest, ContainerRecreateRequestSpec, FailurePolicy, RecreateContainer, RecreateStrategy,
        },
        feature_gates::gate,
        labels,
    },
    domain::pod::sidecar_terminator::{self, TerminatorStep},
    k8s::{owner::is_of, pod::PodView, rbac::Rule, time::rfc3339},
    runtime::{
        apply::{code, is_refusal, said},
        clock,
        metrics::ResultLabels,
        pass::{AFTER_CONFLICT, Memories},
        pod_control::{Part, PodControl},
        queue::{Backoff, Queue, Requeue},
        shutdown::Shutdown,
        watches::{Change, ObjectKey, Store, StoreIndex},
    },
};

/// Its entry in `CONTROLLERS`.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: Some("containerrecreaterequests.apps.kruise.io"),
    gate: Some(gate::SIDECAR_TERMINATOR),
    rules: &[
        Rule::new(&[""], &["pods"], &["get", "list", "watch", "patch"]),
        Rule::new(&[""], &["pods/status"], &["patch"]),
        Rule::new(&["apps.kruise.io"], &["containerrecreaterequests"], &["get", "list", "watch", "create"]),
    ],
    workers_flag: Some("sidecarterminator-workers"),
    workers: 3,
    start,
};

const NAME: &str = "sidecarterminator-controller";
/// Reason of events.
const REASON: &str = "SidecarTerminator";
/// Seconds after their end when our requests are deleted.
const TTL_SECONDS: i32 = 600;
/// A request of another program is looked at again after this time: we do not watch it.
const AGAIN: Duration = Duration::from_secs(10);

/// Requests by the UID of the Pod that owns them.
const BY_POD: StoreIndex<ContainerRecreateRequest> = StoreIndex::new("pod", |request| {
    let mut owners = request.metadata.owner_references.iter().flatten();
    owners.find(|owner| is_of(owner, ("", "Pod"))).map(|owner| owner.uid.clone())
});
/// Requests by the UID of the Pod whose containers they restart.
const BY_RESTARTED_POD: StoreIndex<ContainerRecreateRequest> =
    StoreIndex::new("restarted Pod", |request| Some(request.pod_uid().to_owned()));

struct Controller {
    context: Context,
    /// Those for sidecars, open or not.
    requests: Arc<Store<ContainerRecreateRequest>>,
    /// Those that are active, whoever made them.
    active: Arc<Store<ContainerRecreateRequest>>,
    queue: Arc<Queue<ObjectKey>>,
    memories: Memories<TerminatorMemory>,
    pods: PodControl,
    steps: Family<ResultLabels, Counter>,
}

/// In-memory state of a Pod; losing it does no harm.
#[derive(Debug, Default)]
struct TerminatorMemory {
    /// When it was first seen to be over, on the monotonic clock.
    ended: Option<Duration>,
    /// The hook that runs, by when it began by its daemon's clock, and when it was first seen on the monotonic clock.
    hook: Option<(Timestamp, Duration)>,
    /// The last warning.
    said: String,
}

fn start(context: &Context, workers: usize, shutdown: Shutdown) -> Started {
    let controller = Arc::new(Controller::new(context));
    let help = "Steps of the sidecar terminator: requests, Pods ended, images swapped, by result of the write";
    context.metrics.register("kruise_sidecar_terminator_steps", help, &controller.steps);
    let on_pod = handling(&controller, Controller::pod_changed);
    Started::new(controller.run(workers, shutdown)).on_pod(on_pod)
}

impl Controller {
    fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            requests: Store::new([BY_POD]),
            active: Store::new([BY_RESTARTED_POD]),
            queue: Queue::new(Backoff::default()),
            memories: Memories::default(),
            pods: PodControl::new(context.client.clone(), context.pods.clone(), context.events.clone()),
            steps: Family::default(),
        }
    }

    async fn run(self: Arc<Self>, workers: usize, shutdown: Shutdown) {
        let (on_own, on_active, this) = (self.clone(), self.clone(), self.clone());
        let own = Config::default().labels(labels::SIDECAR_TERMINATION);
        let active = Config::default().labels(labels::CRR_ACTIVE);
        let runner = Runner::new(&self.context, NAME, shutdown)
            .watch_guarded(self.context.api(), own, &self.requests, move |change| on_own.request_changed(&change))
            .watch_guarded(self.context.api(), active, &self.active, move |change| on_active.request_changed(&change))
            .following(&self.context.pods)
            .following(self.context.nodes.store());
        let reconcile = move |key: ObjectKey| {
            let this = this.clone();
            async move { this.reconcile(&key).await }
        };
        runner.run(self.queue.clone(), workers, reconcile).await;
    }

    fn request_changed(&self, change: &Change<'_, ContainerRecreateRequest>) {
        match change {
            Change::Applied { new: request, .. } | Change::Deleted(request) => {
                let namespace = request.metadata.namespace.as_deref().unwrap_or_default();
                self.queue.add(ObjectKey::new(namespace, &request.spec.pod_name));
            }
            Change::Undecodable { key, error } => {
                tracing::error!(request = %key, error, "this request cannot be read");
            }
        }
    }

    fn pod_changed(&self, change: &Change<'_, PodView>) {
        match change {
            Change::Applied { new, .. } if sidecar_terminator::is_due(new) => {
                self.queue.add(ObjectKey::of(new.as_ref()));
            }
            Change::Deleted(old) if sidecar_terminator::has_sidecars(old) => {
                self.memories.forget(&ObjectKey::of(old.as_ref()));
            }
            _ => {}
        }
    }

    async fn reconcile(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let due = self.context.pods.get(key).filter(|pod| sidecar_terminator::is_due(pod));
        let Some(pod) = due.filter(|pod| pod.namespace() != &*self.context.namespace) else {
            self.memories.forget(key);
            return Ok(Requeue::Await);
        };
        self.memories.enter(key, pod.uid());
        let now = clock::now();
        let ended_for = self.memories.with(key, |memory| {
            if !pod.is_finished() {
                memory.ended = None;
                return None;
            }
            Some(now.mono.saturating_sub(*memory.ended.get_or_insert(now.mono)))
        });
        // Nothing is known about a Node that is gone, and the Pod goes with it.
        let is_virtual = self.context.nodes.get(&pod.node_name).is_some_and(|node| node.is_virtual());
        // Whoever may create requests in another namespace can write the Pod's UID into them.
        let is_here =
            |request: &ContainerRecreateRequest| request.metadata.namespace.as_deref() == Some(pod.namespace());
        let requests = self.requests.select_by_index(&BY_POD, pod.uid(), is_here);
        let active = self.active.select_by_index(&BY_RESTARTED_POD, pod.uid(), is_here);
        let hook = sidecar_terminator::hook_lasts(&pod, &active);
        let longest = hook.map(|(_, longest)| longest);
        let hook_for = self.memories.with(key, |memory| {
            // A request goes from one hook to the next in one write.
            let known = memory.hook;
            memory.hook = hook.map(|(begun, _)| known.filter(|(of, _)| *of == begun).unwrap_or((begun, now.mono)));
            memory.hook.map(|(_, seen)| now.mono.saturating_sub(seen))
        });
        let plan = sidecar_terminator::plan(&pod, is_virtual, &requests, ended_for.flatten(), now);
        let plan = plan.after_hook(longest, hook_for.flatten().unwrap_or_default());
        let Some(step) = &plan.step else { return Ok(plan.look.map_or(Requeue::Await, Requeue::After)) };
        let result = self.carry_out(&pod, step).await;
        let counted = if result.is_ok() { "succeeded" } else { "failed" };
        self.steps.get_or_create(&ResultLabels { result: counted }).inc();
        if let Err(error) = &result
            && is_refusal(error)
        {
            self.warn_once(key, &pod, &said(error));
        }
        result
    }

    async fn carry_out(&self, pod: &PodView, step: &TerminatorStep) -> kube::Result<Requeue> {
        match step {
            TerminatorStep::Stop { request, containers } => self.stop(pod, request, containers).await,
            TerminatorStep::End { phase } => {
                let condition = json!({"type": labels::CONDITION_SIDECAR_TERMINATED, "status": "True",
                    "message": "Terminated by Sidecar Terminator", "lastTransitionTime": rfc3339(clock::now().wall)});
                // Bound to the version: kubelet may just have ended it.
                let patch = json!({"metadata": {"resourceVersion": pod.resource_version()},
                    "status": {"phase": phase, "conditions": [condition]}});
                let said = format!("the main containers have ended: made the Pod {phase}, so that its sidecars end");
                self.write(pod, Part::Status, patch, &said).await
            }
            TerminatorStep::SwapImages(images) => {
                let containers: Vec<_> =
                    images.iter().map(|(name, image)| json!({"name": name, "image": image})).collect();
                let names: Vec<&str> = images.iter().map(|(name, _)| name.as_str()).collect();
                let said = format!("the main containers have ended: gave {} the image that exits", names.join(", "));
                self.write(pod, Part::Whole, json!({"spec": {"containers": containers}}), &said).await
            }
        }
    }

    async fn write(&self, pod: &PodView, part: Part, patch: serde_json::Value, said: &str) -> kube::Result<Requeue> {
        let Some(_held) = self.pods.hold(pod) else { return Ok(Requeue::After(AFTER_CONFLICT)) };
        if self.pods.try_patch(pod, part, &patch).await?.is_none() {
            return Ok(Requeue::After(AFTER_CONFLICT));
        }
        tracing::info!(pod = %ObjectKey::of(pod), "{said}");
        self.context.events.normal(&pod.reference(), REASON, said);
        // What the rest waits for the next look says.
        Ok(Requeue::After(Duration::ZERO))
    }

    async fn stop(&self, pod: &PodView, name: &str, containers: &[String]) -> kube::Result<Requeue> {
        let api: Api<ContainerRecreateRequest> = Api::namespaced(self.context.client.clone(), pod.namespace());
        match api.create(&PostParams::default(), &request(pod, name, containers)).await {
            Ok(made) => {
                self.requests.upsert(made);
                let said = stopping(containers);
                tracing::info!(pod = %ObjectKey::of(pod), request = name, "{said}");
                self.context.events.normal(&pod.reference(), REASON, &said);
                Ok(Requeue::Await)
            }
            Err(error) if code(&error) == Some(409) => {
                let Some(found) = api.get_opt(name).await? else { return Ok(Requeue::After(AFTER_CONFLICT)) };
                let is_watched =
                    found.metadata.labels.as_ref().is_some_and(|all| all.contains_key(labels::SIDECAR_TERMINATION));
                if is_watched || !found.is_open() {
                    self.requests.upsert(found);
                    return Ok(Requeue::After(AFTER_CONFLICT));
                }
                Ok(Requeue::After(AGAIN))
            }
            Err(error) => Err(error),
        }
    }

    /// Emits a warning, unless it is the same as the last one of this Pod.
    fn warn_once(&self, key: &ObjectKey, pod: &PodView, why: &str) {
        let message = format!("the sidecars cannot be ended: {why}");
        let is_new = self.memories.with(key, |memory| {
            let is_new = memory.said != message;
            memory.said.clone_from(&message);
            is_new
        });
        if is_new == Some(true) {
            self.context.events.warning(&pod.reference(), REASON, &message);
        }
    }
}

/// What the event about a request for some sidecars says.
fn stopping(containers: &[String]) -> String {
    format!("Kruise SidecarTerminator is trying to terminate sidecar [{}] using crr", containers.join(" "))
}

/// A request for some sidecars of a Pod, which goes with the Pod.
fn request(pod: &PodView, name: &str, containers: &[String]) -> ContainerRecreateRequest {
    let listed = containers.iter().map(|name| RecreateContainer { name: name.clone(), ..RecreateContainer::default() });
    let strategy = RecreateStrategy {
        force_recreate: true,
        failure_policy: Some(FailurePolicy::Ignore),
        ..RecreateStrategy::default()
    };
    let spec = ContainerRecreateRequestSpec {
        pod_name: pod.name().to_owned(),
        containers: listed.collect(),
        strategy: Some(strategy),
        active_deadline_seconds: None,
        ttl_seconds_after_finished: Some(TTL_SECONDS),
    };
    let mut request = ContainerRecreateRequest::new(name, spec);
    request.metadata.namespace = Some(pod.namespace().to_owned());
    request.metadata.labels = Some([(labels::SIDECAR_TERMINATION.to_owned(), pod.uid().to_owned())].into());
    request.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        name: pod.name().to_owned(),
        uid: pod.uid().to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    request
}

#[cfg(test)]
mod tests;
