//! What is known of a Pod's containers, and what a pass over a request decides.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerPort, LifecycleHandler};

use crate::{
    api::crr::{ContainerRecreateRequest, ContainerRecreateRequestStatus},
    k8s::{pod::PodView, time},
};

/// Grace when neither the request nor admission gave one, as kubelet's default for Pods.
pub(super) const DEFAULT_GRACE: i64 = 30;

/// State of an instance in the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceState {
    /// Made, not started.
    Created,
    /// Running.
    Running,
    /// Ended.
    Exited,
    /// The runtime does not know.
    Unknown,
}

/// One container as the runtime knows it, with the labels that say whose it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    /// `<runtime>://<id>`.
    pub id: String,
    /// Label: container name.
    pub container: String,
    /// Label: namespace of the Pod.
    pub namespace: String,
    /// Label: UID of the Pod as the runtime knows it.
    pub pod_uid: String,
    /// State.
    pub state: InstanceState,
    /// Nanoseconds since the Unix epoch; only compared with other instances of the same runtime.
    pub created_at: i64,
    /// When it was started, if it was.
    pub started_at: Option<Timestamp>,
    /// Exit code, once it has ended.
    pub exit_code: Option<i32>,
    /// Restart count given by kubelet.
    pub restart_count: i32,
}

impl Instance {
    /// Orders the instances of one container: the newest is the greatest.
    pub fn age_order(&self) -> (i64, i32) {
        (self.created_at, self.restart_count)
    }
}

/// Everything that one decision rests on.
#[derive(Debug)]
pub struct ObservedContainers<'a> {
    /// The request whose turn it is.
    pub request: &'a ContainerRecreateRequest,
    /// The Pod with the UID that the request means, if this node's watch has it.
    pub pod: Option<&'a PodView>,
    /// Names of the runtimes that this daemon talks to.
    pub runtimes: &'a [String],
    /// All containers that the runtime labels with the Pod's UID.
    pub instances: &'a [Instance],
}

/// Stop one instance. Its intent has been recorded, or is recorded in the same plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Kill {
    /// Container name.
    pub container: String,
    /// The instance, `<runtime>://<id>`. No other is touched.
    pub id: String,
    /// Hook to run first.
    pub hook: Option<Hook>,
    /// Time for hook and stop together; zero kills at once.
    pub grace: Duration,
}

/// A preStop hook.
#[derive(Clone, Debug, PartialEq)]
pub struct Hook {
    /// What to do.
    pub handler: LifecycleHandler,
    /// The container's ports, for named ports.
    pub ports: Vec<ContainerPort>,
}

/// What to do now. `status` first, then `kill`, then look again; without either, look again after `requeue` or when
/// something changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodePlan {
    /// The new status, if it differs from the recorded one.
    pub status: Option<ContainerRecreateRequestStatus>,
    /// A stop, to be carried out only after `status` has been recorded.
    pub kill: Option<Kill>,
    /// When to look again at the latest.
    pub requeue: Option<Duration>,
}

/// Looks again after `delay` at the latest.
pub(super) fn sooner(plan: &mut NodePlan, delay: Duration) {
    plan.requeue = time::sooner(plan.requeue, Some(delay));
}

/// A number of seconds of the API; a negative one counts as none.
pub(super) fn seconds(value: i64) -> Duration {
    Duration::from_secs(u64::try_from(value).unwrap_or(0))
}
