//! The manager's part of a recreation: NotReady keys, deadlines, what ends a request from outside, cleaning up.
//!
//! The daemon restarts containers and reports them; the manager never writes container states except when it ends a
//! request itself, or serves it itself ([`super::pod_spec`]). All its writes carry a resourceVersion, so a plan made from an outdated view is refused and made
//! again: a Completed request is never reopened.
//!
//! ```text
//!  unfinished ──pod gone │ no daemon for 60 s │ deadline──▶ Completed ──release, drop finalizer and label──▶ record
//!      │                                                       ▲                                              │ TTL
//!      └─Recreating with an unready grace: finalizer → key → time                                             ▼
//!        (the daemon waits for the time, acts, and ends the request ──────┘)                               deleted
//! ```
//!
//! A request whose node has had no ready daemon for `--daemon-gone-after`, or has been deleted, ends as well; with a stop
//! on record it is left behind instead: it releases its key, later requests of the Pod may go first, and a daemon that
//! returns ends it.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use kube::ResourceExt;

use super::{
    fail_unfinished, has_stop_on_record,
    instance::seconds,
    is_left_behind,
    message::{BeforeDeadline, NoResponse, RequestMessage, RequestReason},
};
use crate::{
    api::{
        crr::{ContainerRecreateRequest, ContainerRecreateRequestStatus, ContainerRecreateState, Phase},
        labels,
    },
    k8s::{
        name::ObjectName,
        pod::PodView,
        time::{Now, Sighting, sooner, whole_seconds},
    },
};

/// How long a request may go without a sign of a daemon.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may at least from when this process has found it: it was made before the API server was away, say, and then
/// its daemon could report nothing either, and comes back after a pause.
const RESPONSE_AFTER_START: Duration = Duration::from_secs(30);
/// How long a node may lack a ready daemon before its requests say so: restarts and updates of the daemon pass.
pub const NO_DAEMON_GRACE: Duration = Duration::from_secs(10);
/// How long a node may lack a ready daemon before its requests end; `--daemon-gone-after` says otherwise.
pub const DAEMON_GONE_AFTER: Duration = Duration::from_secs(600);
/// While a daemon is missing, its node is looked for this often.
const LOOK_FOR_NODE: Duration = Duration::from_secs(60);
/// A daemon that works although its Pod is not Ready has taken a request up by then; an ordinary one may even be over.
const TAKE_UP: Duration = Duration::from_secs(2);

/// What the manager remembers of a request between two looks at it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ManagerMemory {
    /// Its creation.
    pub created: Sighting,
    /// When this process first saw it.
    pub seen: Sighting,
    /// Its completion, once there is one.
    pub completed: Option<Sighting>,
    /// Whether it has been reported that its node has no ready daemon, since the node last had one.
    pub reported_no_daemon: bool,
}

/// What is known of the Pod that bears the name in the request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PodKnowledge<'a> {
    /// It could not be read: nothing that depends on it is decided.
    Unknown,
    /// The API server says that there is none.
    Gone,
    /// There is one, maybe another one than the request means.
    Present(&'a PodView),
}

/// What is known of the daemon on the request's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Daemon {
    /// The node is not known, or the daemons are not.
    Unknown,
    /// Its Pod is Ready.
    Ready,
    /// This process has seen no Pod of it Ready there for this time.
    Missing(Duration),
    /// There is no such node any more.
    NodeGone,
}

/// Everything a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct ObservedRequest<'a> {
    /// The request.
    pub request: &'a ContainerRecreateRequest,
    /// Its Pod.
    pub pod: PodKnowledge<'a>,
    /// The daemon on its node.
    pub daemon: Daemon,
    /// What is remembered of it.
    pub memory: ManagerMemory,
    /// How long a daemon may be missing.
    pub gone_after: Duration,
}

/// One thing to do, in the order of the plan; each rests on the ones before it having been done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Add the finalizer: from here on the key is released whatever happens.
    AddFinalizer,
    /// Make the Pod NotReady under the request's key.
    AcquireKey,
    /// Record in the status condition since when the grace runs.
    RecordCondition(Timestamp),
    /// Record the same in the annotation that OpenKruise's v1alpha1 daemon reads.
    RecordAnnotation(Timestamp),
    /// Drop the request's key from the Pod.
    ReleaseKey,
    /// End the request.
    Complete {
        /// Why.
        message: String,
        /// The final state of every container.
        states: Vec<ContainerRecreateState>,
    },
    /// Remove our finalizer and the active label, in one write.
    Detach,
    /// Delete the request: its time to live is over.
    Delete,
    /// Report, by this `status.message` and an event, that the request waits for a daemon.
    ReportNoDaemon(String),
    /// Record that the request was left behind.
    LeaveBehind {
        /// The condition.
        condition: Condition,
        /// The new `status.message`.
        message: String,
    },
}

/// What to do now, and when to look again if nothing happens before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ManagerPlan {
    /// In order.
    pub actions: Vec<Action>,
    /// None: an event will come, or nothing is left to do.
    pub requeue: Option<Duration>,
}

/// Decides.
pub fn plan(observed: &ObservedRequest<'_>, now: Now) -> ManagerPlan {
    if observed.request.is_open() { plan_unfinished(observed, now) } else { plan_ended(observed, now) }
}

fn plan_ended(observed: &ObservedRequest<'_>, now: Now) -> ManagerPlan {
    let request = observed.request;
    let mut plan = ManagerPlan::default();
    let held = has_finalizer(request);
    if held {
        match observed.pod {
            // The key may still be there: the finalizer has to wait until that is known.
            PodKnowledge::Unknown => return plan,
            PodKnowledge::Present(pod) if may_hold_key(pod) => plan.actions.push(Action::ReleaseKey),
            PodKnowledge::Present(_) | PodKnowledge::Gone => {}
        }
    }
    if held || request.labels().contains_key(labels::CRR_ACTIVE) {
        plan.actions.push(Action::Detach);
    }
    if request.is_deleting() {
        return plan;
    }
    if let Some(ttl) = request.spec.ttl_seconds_after_finished {
        let ttl = seconds(ttl.into());
        let age = observed.memory.completed.map_or(Duration::ZERO, |completed| completed.age(now));
        match ttl.checked_sub(age) {
            Some(left) if !left.is_zero() => plan.requeue = Some(left),
            _ => plan.actions.push(Action::Delete),
        }
    }
    plan
}

fn plan_unfinished(observed: &ObservedRequest<'_>, now: Now) -> ManagerPlan {
    let request = observed.request;
    let age = observed.memory.created.age(now);
    let node = node_of(observed);

    if let Err(error) = ObjectName::parse(&request.spec.pod_name) {
        return complete(request, format!("spec.podName: {error}"));
    }
    let pod = match observed.pod {
        PodKnowledge::Unknown => None,
        PodKnowledge::Present(pod) if !pod.is_deleting() && is_meant(request, pod) => Some(pod),
        PodKnowledge::Present(_) | PodKnowledge::Gone => return complete(request, RequestMessage::PodGone.to_string()),
    };

    let mut plan = ManagerPlan::default();
    let by_daemon = !request.is_served_by_manager();
    let gone = daemon_gone(observed, age).filter(|_| by_daemon && !is_left_behind(request));
    if let Some(reason) = gone {
        return if has_stop_on_record(request) {
            leave_behind(request, pod, &reason, now)
        } else {
            complete(request, reason.to_string())
        };
    }
    if by_daemon && *request.phase() == Phase::Empty {
        let to_come_back = RESPONSE_AFTER_START.saturating_sub(observed.memory.seen.age(now));
        let left = RESPONSE_TIMEOUT.saturating_sub(age).max(to_come_back);
        if left.is_zero() {
            return complete(request, no_response(request, observed.daemon, node).to_string());
        }
        plan.look_after(left);
    }
    if let Some(deadline) = request.spec.active_deadline_seconds.map(seconds) {
        match deadline.checked_sub(age) {
            Some(left) if !left.is_zero() => plan.look_after(left),
            _ => {
                let reason = RequestMessage::DeadlineExceeded(BeforeDeadline::of(request));
                return complete(request, reason.to_string());
            }
        }
    }

    if by_daemon
        && let Daemon::Missing(lasting) = observed.daemon
        && !is_left_behind(request)
        && !node.is_empty()
    {
        let wait = NO_DAEMON_GRACE.saturating_sub(lasting).max(TAKE_UP.saturating_sub(age));
        if !wait.is_zero() {
            plan.look_after(wait);
        } else if !observed.memory.reported_no_daemon && RequestReason::of(request) != RequestReason::WaitingForDaemon {
            let message = RequestMessage::WaitingForDaemon { node: node.to_owned() };
            plan.actions.push(Action::ReportNoDaemon(message.to_string()));
        }
        plan.look_after(LOOK_FOR_NODE.min(observed.gone_after.saturating_sub(lasting.min(age)).max(TAKE_UP)));
    }
    if *request.phase() == Phase::Recreating
        && request.strategy().unready_grace_period_seconds.is_some()
        && !is_left_behind(request)
        && let Some(pod) = pod
    {
        acquire(request, pod, now, &mut plan.actions);
    }
    plan
}

/// Why nobody will work on the request any more, if nobody will. One that no daemon has taken up ends after
/// [`RESPONSE_TIMEOUT`] anyway.
fn daemon_gone(observed: &ObservedRequest<'_>, age: Duration) -> Option<RequestMessage> {
    let node = node_of(observed).to_owned();
    match observed.daemon {
        Daemon::NodeGone => Some(RequestMessage::NodeGone { node }),
        Daemon::Missing(lasting)
            if lasting.min(age) >= observed.gone_after && *observed.request.phase() != Phase::Empty =>
        {
            Some(RequestMessage::DaemonGone { node, lasted: observed.gone_after })
        }
        _ => None,
    }
}

/// With a stop on record the request cannot be ended from outside: the daemon may be in the middle of it.
fn leave_behind(
    request: &ContainerRecreateRequest,
    pod: Option<&PodView>,
    reason: &RequestMessage,
    now: Now,
) -> ManagerPlan {
    let mut plan = ManagerPlan::default();
    if has_finalizer(request) {
        match pod {
            Some(pod) if may_hold_key(pod) => plan.actions.push(Action::ReleaseKey),
            Some(_) => {}
            None => return plan, // the key has to be released first
        }
    }
    let message = format!("{reason}; a recorded stop may still happen, and later requests of the Pod go first");
    let condition = Condition {
        type_: labels::CONDITION_DAEMON_GONE.into(),
        status: "True".into(),
        reason: labels::CONDITION_DAEMON_GONE.into(),
        message: reason.to_string(),
        last_transition_time: Time(whole_seconds(now.wall)),
        observed_generation: None,
    };
    plan.actions.push(Action::LeaveBehind { condition, message });
    plan
}

/// Makes the Pod NotReady and records when. A crash after any step is repaired by planning again; a time once recorded
/// in either place is copied into the other and never moves.
fn acquire(request: &ContainerRecreateRequest, pod: &PodView, now: Now, actions: &mut Vec<Action>) {
    match (condition_time(request), annotation(request)) {
        (Some(_), Some(_)) => {}
        (Some(time), None) => actions.push(Action::RecordAnnotation(time)),
        (None, Some(text)) => {
            // Text that is no time is the daemon's to complain about.
            if let Ok(time) = text.parse() {
                actions.push(Action::RecordCondition(time));
            }
        }
        (None, None) => {
            if pod.has_readiness_gate(labels::CONDITION_KRUISE_POD_READY) {
                if !has_finalizer(request) {
                    actions.push(Action::AddFinalizer);
                }
                actions.push(Action::AcquireKey);
            }
            let time = whole_seconds(now.wall);
            actions.push(Action::RecordCondition(time));
            actions.push(Action::RecordAnnotation(time));
        }
    }
}

fn complete(request: &ContainerRecreateRequest, message: String) -> ManagerPlan {
    let states = fail_unfinished(request, &message);
    ManagerPlan { actions: vec![Action::Complete { message, states }], requeue: None }
}

fn no_response(request: &ContainerRecreateRequest, daemon: Daemon, node: &str) -> RequestMessage {
    RequestMessage::NoResponse(match daemon {
        _ if request.pod_uid().is_empty() || node.is_empty() => NoResponse::NotAdmitted,
        Daemon::Missing(_) => NoResponse::NoReadyDaemon(node.to_owned()),
        Daemon::Ready | Daemon::Unknown | Daemon::NodeGone => NoResponse::Unknown,
    })
}

/// Whether a request, as its metadata says, may hold a NotReady key on the Pod of this UID. It takes one only under its
/// finalizer, and releases it before it drops the finalizer and the label `active`.
pub fn holds_key(request: &ObjectMeta, pod_uid: &str) -> bool {
    let label = |key: &str| request.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str);
    let is_open = label(labels::CRR_ACTIVE).is_some()
        || request.finalizers.iter().flatten().any(|finalizer| finalizer == labels::CRR_UNREADY_FINALIZER);
    is_open && label(labels::CRR_POD_UID).is_none_or(|uid| uid.is_empty() || uid == pod_uid)
}

/// Whether a request is nothing but a record: it has ended, all that was to be done for it has been done, and nothing is
/// ever to be done again. Users keep thousands of them.
pub fn is_record(request: &ContainerRecreateRequest) -> bool {
    request.is_completed()
        && request.spec.ttl_seconds_after_finished.is_none()
        && !has_finalizer(request)
        && !request.labels().contains_key(labels::CRR_ACTIVE)
}

/// The status of an ended request, for its event: true and what was restarted, or false and what went wrong.
pub fn outcome(status: &ContainerRecreateRequestStatus) -> (bool, String) {
    let names = |phase: &Phase| {
        let states = status.container_recreate_states.iter().filter(|state| state.phase == *phase);
        states.map(|state| state.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let all_succeeded = status.message.is_empty()
        && status.container_recreate_states.iter().all(|state| state.phase == Phase::Succeeded);
    if all_succeeded {
        return (true, format!("Recreated containers: {}", names(&Phase::Succeeded)));
    }
    let mut parts: Vec<String> = Vec::new();
    if !status.message.is_empty() {
        parts.push(status.message.clone());
    }
    for state in &status.container_recreate_states {
        // At the manager's hand every unfinished container repeats the request's message.
        if state.phase == Phase::Failed && state.message != status.message {
            parts.push(format!("container {}: {}", state.name, state.message));
        }
    }
    let succeeded = names(&Phase::Succeeded);
    parts.push(format!("recreated: {}", if succeeded.is_empty() { "none" } else { &succeeded }));
    (false, parts.join("; "))
}

/// The conditions of the status with this one added, or in the place of its type's.
pub fn with_condition(request: &ContainerRecreateRequest, condition: Condition) -> Vec<Condition> {
    let mut conditions = request.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    conditions.retain(|old| old.type_ != condition.type_);
    conditions.push(condition);
    conditions
}

/// The conditions of the status with PreRecreateGrace added.
pub fn with_grace_condition(request: &ContainerRecreateRequest, since: Timestamp) -> Vec<Condition> {
    let grace = Condition {
        type_: labels::CONDITION_PRE_RECREATE_GRACE.into(),
        status: "True".into(),
        reason: labels::CONDITION_PRE_RECREATE_GRACE.into(),
        message: "unreadyGracePeriodSeconds runs from this time; then the containers are stopped".into(),
        last_transition_time: Time(since),
        observed_generation: None,
    };
    with_condition(request, grace)
}

/// The finalizers of the request without ours.
pub fn other_finalizers(request: &ContainerRecreateRequest) -> Vec<&str> {
    let finalizers = request.finalizers().iter().map(String::as_str);
    finalizers.filter(|f| *f != labels::CRR_UNREADY_FINALIZER).collect()
}

/// Whether our finalizer is there.
pub fn has_finalizer(request: &ContainerRecreateRequest) -> bool {
    request.finalizers().iter().any(|f| f == labels::CRR_UNREADY_FINALIZER)
}

/// Node of the request: the label that admission sets, else where its Pod is.
pub fn node_of<'a>(observed: &ObservedRequest<'a>) -> &'a str {
    match (observed.request.labels().get(labels::CRR_NODE_NAME), observed.pod) {
        (Some(node), _) => node,
        (None, PodKnowledge::Present(pod)) => &pod.node_name,
        (None, PodKnowledge::Unknown | PodKnowledge::Gone) => "",
    }
}

/// Whether the Pod is the one that the request was made for. Without the label it counts as it.
pub fn is_meant(request: &ContainerRecreateRequest, pod: &PodView) -> bool {
    request.pod_uid().is_empty() || request.pod_uid() == pod.uid()
}

fn may_hold_key(pod: &PodView) -> bool {
    !pod.is_deleting() && pod.has_readiness_gate(labels::CONDITION_KRUISE_POD_READY)
}

fn condition_time(request: &ContainerRecreateRequest) -> Option<Timestamp> {
    let conditions = &request.status.as_ref()?.conditions;
    conditions
        .iter()
        .find(|c| c.type_ == labels::CONDITION_PRE_RECREATE_GRACE && c.status == "True")
        .map(|c| c.last_transition_time.0)
}

fn annotation(request: &ContainerRecreateRequest) -> Option<&str> {
    request.annotations().get(labels::CRR_UNREADY_ACQUIRED).map(String::as_str).filter(|text| !text.is_empty())
}

impl ManagerPlan {
    fn look_after(&mut self, delay: Duration) {
        self.requeue = sooner(self.requeue, Some(delay));
    }
}

#[cfg(test)]
mod tests;
