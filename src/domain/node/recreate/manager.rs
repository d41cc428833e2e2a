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
    DAEMON_GONE, DEADLINE_EXCEEDED, NO_RESPONSE, NODE_GONE, POD_GONE, WAITING_FOR_DAEMON, fail_unfinished,
    has_stop_on_record, is_left_behind,
};
use crate::{
    api::{
        crr::{ContainerRecreateRequest, ContainerRecreateRequestStatus, ContainerRecreateState, Phase},
        labels,
    },
    k8s::{
        name::ObjectName,
        pod::PodView,
        time::{Now, whole_seconds},
    },
};

/// How long a request may go without a sign of a daemon.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a node may lack a ready daemon before its requests say so: restarts and updates of the daemon pass.
pub const NO_DAEMON_GRACE: Duration = Duration::from_secs(10);
/// How long a node may lack a ready daemon before its requests end; `--daemon-gone-after` says otherwise.
pub const DAEMON_GONE_AFTER: Duration = Duration::from_secs(600);
/// While a daemon is missing, its node is looked for this often.
const LOOK_FOR_NODE: Duration = Duration::from_secs(60);
/// A daemon that works although its Pod is not Ready has taken a request up by then; an ordinary one may even be over.
const TAKE_UP: Duration = Duration::from_secs(2);

/// When something on another machine's clock was first seen here, and how old it was then.
///
/// From then on its age is measured with our own monotonic clock. For what was seen as it happened, neither skew between
/// machines nor a step of a wall clock counts; for what was found at start the wall clocks are all there is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sighting {
    at: Duration,
    age: Duration,
}

impl Sighting {
    /// Seen the moment it happened.
    pub fn live(now: Now) -> Self {
        Self { at: now.mono, age: Duration::ZERO }
    }
    /// Found when it had happened already, at `since` on its writer's clock.
    pub fn found(now: Now, since: Timestamp) -> Self {
        Self { at: now.mono, age: now.since(since) }
    }
    /// Its age now.
    pub fn age(&self, now: Now) -> Duration {
        self.age + now.mono.saturating_sub(self.at)
    }
}

/// What the manager remembers of a request between two looks at it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// Its creation.
    pub created: Sighting,
    /// Its completion, once there is one.
    pub completed: Option<Sighting>,
    /// Whether it has been told that its node has no ready daemon, since the node last had one.
    pub told_no_daemon: bool,
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
pub struct Observed<'a> {
    /// The request.
    pub request: &'a ContainerRecreateRequest,
    /// Its Pod.
    pub pod: PodKnowledge<'a>,
    /// The daemon on its node.
    pub daemon: Daemon,
    /// What is remembered of it.
    pub memory: Memory,
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
    /// Tell, by this `status.message` and an event, that the request waits for a daemon.
    TellNoDaemon(String),
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
pub struct Plan {
    /// In order.
    pub actions: Vec<Action>,
    /// None: an event will come, or nothing is left to do.
    pub requeue: Option<Duration>,
}

/// Decides.
pub fn plan(observed: &Observed<'_>, now: Now) -> Plan {
    if observed.request.is_completed() || observed.request.is_deleting() {
        plan_ended(observed, now)
    } else {
        plan_unfinished(observed, now)
    }
}

fn plan_ended(observed: &Observed<'_>, now: Now) -> Plan {
    let request = observed.request;
    let mut plan = Plan::default();
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

fn plan_unfinished(observed: &Observed<'_>, now: Now) -> Plan {
    let request = observed.request;
    let age = observed.memory.created.age(now);
    let node = node_of(observed);

    if let Err(error) = ObjectName::parse(&request.spec.pod_name) {
        return complete(request, format!("spec.podName: {error}"));
    }
    let pod = match observed.pod {
        PodKnowledge::Unknown => None,
        PodKnowledge::Present(pod) if !pod.is_deleting() && is_meant(request, pod) => Some(pod),
        PodKnowledge::Present(_) | PodKnowledge::Gone => return complete(request, POD_GONE.to_owned()),
    };

    let mut plan = Plan::default();
    let by_daemon = !request.is_served_by_manager();
    let gone = daemon_gone(observed, age).filter(|_| by_daemon && !is_left_behind(request));
    if let Some(reason) = gone {
        return if has_stop_on_record(request) {
            leave_behind(request, pod, reason, now)
        } else {
            complete(request, reason)
        };
    }
    if by_daemon && *request.phase() == Phase::Empty {
        match RESPONSE_TIMEOUT.checked_sub(age) {
            Some(left) if !left.is_zero() => plan.look_after(left),
            _ => return complete(request, no_response(request, observed.daemon, node)),
        }
    }
    if let Some(deadline) = request.spec.active_deadline_seconds.map(seconds) {
        match deadline.checked_sub(age) {
            Some(left) if !left.is_zero() => plan.look_after(left),
            _ => return complete(request, deadline_exceeded(request)),
        }
    }

    if by_daemon
        && let Daemon::Missing(lasting) = observed.daemon
        && !is_left_behind(request)
        && !node.is_empty()
    {
        let message = format!("{WAITING_FOR_DAEMON}{node}");
        let wait = NO_DAEMON_GRACE.saturating_sub(lasting).max(TAKE_UP.saturating_sub(age));
        if !wait.is_zero() {
            plan.look_after(wait);
        } else if !observed.memory.told_no_daemon && message_of(request) != message {
            plan.actions.push(Action::TellNoDaemon(message));
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
fn daemon_gone(observed: &Observed<'_>, age: Duration) -> Option<String> {
    let node = node_of(observed);
    match observed.daemon {
        Daemon::NodeGone => Some(format!("node {node} {NODE_GONE}")),
        Daemon::Missing(lasting)
            if lasting.min(age) >= observed.gone_after && *observed.request.phase() != Phase::Empty =>
        {
            Some(format!("node {node} {DAEMON_GONE} for {} s", observed.gone_after.as_secs()))
        }
        _ => None,
    }
}

/// With a stop on record the request cannot be ended from outside: the daemon may be in the middle of it.
fn leave_behind(request: &ContainerRecreateRequest, pod: Option<&PodView>, reason: String, now: Now) -> Plan {
    let mut plan = Plan::default();
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
        message: reason,
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

fn complete(request: &ContainerRecreateRequest, message: String) -> Plan {
    let states = fail_unfinished(request, &message);
    Plan { actions: vec![Action::Complete { message, states }], requeue: None }
}

fn no_response(request: &ContainerRecreateRequest, daemon: Daemon, node: &str) -> String {
    if request.pod_uid().is_empty() || node.is_empty() {
        return format!(
            "{NO_RESPONSE}: labels {} and {} are not set, the request was stored without passing admission",
            labels::CRR_POD_UID,
            labels::CRR_NODE_NAME
        );
    }
    match daemon {
        Daemon::Missing(_) => format!("{NO_RESPONSE}: no ready kruise-daemon on node {node}"),
        Daemon::Ready | Daemon::Unknown | Daemon::NodeGone => NO_RESPONSE.to_owned(),
    }
}

/// Says what it was waiting for, if it said so itself.
fn deadline_exceeded(request: &ContainerRecreateRequest) -> String {
    let message = message_of(request);
    match request.phase() {
        Phase::Empty if request.is_served_by_manager() => format!("{DEADLINE_EXCEEDED}: it was never executed"),
        Phase::Empty if message.is_empty() => {
            format!("{DEADLINE_EXCEEDED}: it was never executed, no daemon had taken it up")
        }
        Phase::Empty => format!("{DEADLINE_EXCEEDED}: it was never executed, {message}"),
        Phase::Pending if message.is_empty() => {
            format!("{DEADLINE_EXCEEDED}: it was never executed, another request of the Pod came first")
        }
        Phase::Pending => format!("{DEADLINE_EXCEEDED}: it was never executed, {message}"),
        _ if message.is_empty() => DEADLINE_EXCEEDED.to_owned(),
        _ => format!("{DEADLINE_EXCEEDED}: {message}"),
    }
}

fn message_of(request: &ContainerRecreateRequest) -> &str {
    request.status.as_ref().map_or("", |status| status.message.as_str())
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
pub fn node_of<'a>(observed: &Observed<'a>) -> &'a str {
    match (observed.request.labels().get(labels::CRR_NODE_NAME), observed.pod) {
        (Some(node), _) => node,
        (None, PodKnowledge::Present(pod)) => &pod.node_name,
        (None, PodKnowledge::Unknown | PodKnowledge::Gone) => "",
    }
}

/// Whether the Pod is the one that the request was made for. Without the label nobody can tell: it counts as it.
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

fn seconds(value: i64) -> Duration {
    Duration::from_secs(value.try_into().unwrap_or(0))
}

impl Plan {
    fn look_after(&mut self, delay: Duration) {
        self.requeue = Some(self.requeue.map_or(delay, |earlier| earlier.min(delay)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const CREATED: &str = "2026-01-01T00:00:00Z";

    fn now(seconds: u64) -> Now {
        let created: Timestamp = CREATED.parse().unwrap();
        Now { wall: created + Duration::from_secs(seconds), mono: Duration::from_secs(100 + seconds) }
    }

    fn memory() -> Memory {
        Memory { created: Sighting::live(now(0)), completed: None, told_no_daemon: false }
    }

    /// A request as admission leaves it, with changes merged in.
    fn request(changes: Value) -> ContainerRecreateRequest {
        let mut object = json!({
            "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
            "metadata": {"name": "r", "namespace": "ns", "uid": "crr", "resourceVersion": "5", "creationTimestamp": CREATED,
                "labels": {"crr.apps.kruise.io/active": "true", "crr.apps.kruise.io/node-name": "n1", "crr.apps.kruise.io/pod-uid": "u1"}},
            "spec": {"podName": "p", "containers": [{"name": "main"}, {"name": "second"}], "strategy": {"failurePolicy": "Fail"}},
        });
        json_patch::merge(&mut object, &changes);
        serde_json::from_value(object).unwrap()
    }

    fn pod(changes: Value) -> PodView {
        let mut object = json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
            "spec": {"nodeName": "n1", "readinessGates": [{"conditionType": "KruisePodReady"}]},
            "status": {"phase": "Running"},
        });
        json_patch::merge(&mut object, &changes);
        serde_json::from_value(object).unwrap()
    }

    fn plan_of(request: &ContainerRecreateRequest, pod: PodKnowledge<'_>, at: u64) -> Plan {
        let (daemon, memory) = (Daemon::Ready, memory());
        plan(&Observed { request, pod, daemon, memory, gone_after: DAEMON_GONE_AFTER }, now(at))
    }

    #[track_caller]
    fn completion(plan: Plan) -> (String, Vec<(String, String)>) {
        let [Action::Complete { message, states }] = plan.actions.as_slice() else { panic!("{plan:?}") };
        assert!(states.iter().all(|s| matches!(s.phase, Phase::Succeeded | Phase::Failed)), "{states:?}");
        (message.clone(), states.iter().map(|s| (s.phase.as_str().to_owned(), s.message.clone())).collect())
    }

    fn acquiring() -> Value {
        json!({"spec": {"strategy": {"unreadyGracePeriodSeconds": 3}}, "status": {"phase": "Recreating"}})
    }

    #[test]
    fn a_record_is_what_no_plan_ever_touches_again() {
        let pod = pod(
            json!({"status": {"conditions": [{"type": "KruisePodReady", "status": "False", "message": "[{\"userAgent\":\"ns/r\"}]"}]}}),
        );
        let done =
            json!({"metadata": {"labels": {"crr.apps.kruise.io/active": null}}, "status": {"phase": "Completed"}});
        for (name, changes, want) in [
            ("ended and cleaned up", json!({}), true),
            ("a foreign finalizer", json!({"metadata": {"finalizers": ["a/b"]}}), true),
            ("being deleted", json!({"metadata": {"finalizers": ["a/b"], "deletionTimestamp": CREATED}}), true),
            ("our finalizer", json!({"metadata": {"finalizers": [labels::CRR_UNREADY_FINALIZER]}}), false),
            ("the active label", json!({"metadata": {"labels": {"crr.apps.kruise.io/active": "true"}}}), false),
            ("a time to live", json!({"spec": {"ttlSecondsAfterFinished": 0}}), false),
            ("not ended", json!({"status": {"phase": "Recreating"}}), false),
        ] {
            let mut object = done.clone();
            json_patch::merge(&mut object, &changes);
            let request = request(object);
            assert_eq!(is_record(&request), want, "{name}");
            for knowledge in [PodKnowledge::Unknown, PodKnowledge::Gone, PodKnowledge::Present(&pod)] {
                assert!(!want || plan_of(&request, knowledge, 100) == Plan::default(), "{name}: {knowledge:?}");
            }
        }
    }

    #[test]
    fn a_stored_request_whose_pod_name_cannot_be_one_says_so() {
        let request = request(json!({"spec": {"podName": "web/../../secrets/x?y="}}));
        for knowledge in [PodKnowledge::Gone, PodKnowledge::Unknown] {
            let (message, _) = completion(plan_of(&request, knowledge, 1));
            assert!(message.starts_with("spec.podName: \"web/../../secrets/x?y=\" is not allowed; want"), "{message}");
        }
    }

    #[test]
    fn case_05_a_waiting_request_is_out_of_reach_of_the_response_limit() {
        let pod = pod(json!({}));
        let empty = request(json!({}));
        assert_eq!(plan_of(&empty, PodKnowledge::Present(&pod), 59).requeue, Some(Duration::from_secs(1)));
        assert_eq!(completion(plan_of(&empty, PodKnowledge::Present(&pod), 60)).0, NO_RESPONSE);
        for phase in ["Pending", "Recreating", "SomethingNew"] {
            let waiting = request(json!({"status": {"phase": phase}}));
            assert_eq!(plan_of(&waiting, PodKnowledge::Present(&pod), 100_000), Plan::default(), "{phase}");
        }
    }

    #[test]
    fn the_response_limit_names_the_node_without_a_daemon() {
        let (request, pod) = (request(json!({})), pod(json!({})));
        let mut observed = Observed {
            request: &request,
            pod: PodKnowledge::Present(&pod),
            daemon: Daemon::Missing(Duration::MAX),
            memory: Memory { told_no_daemon: true, ..memory() },
            gone_after: DAEMON_GONE_AFTER,
        };
        assert_eq!(
            completion(plan(&observed, now(60))).0,
            "daemon has not responded for a long time: no ready kruise-daemon on node n1"
        );
        let bypassed: ContainerRecreateRequest =
            serde_json::from_value(json!({"metadata": {}, "spec": {"podName": "p", "containers": [{"name": "main"}]}}))
                .unwrap();
        observed.request = &bypassed;
        assert!(completion(plan(&observed, now(60))).0.ends_with("without passing admission"));
    }

    #[test]
    fn case_06_requests_of_a_replaced_pod_end() {
        let request = request(json!({"status": {"phase": "Recreating", "containerRecreateStates": [
            {"name": "main", "phase": "Succeeded", "isKilled": true}, {"name": "second", "phase": "Pending", "message": "not found container on Node"}]}}));
        let successor = pod(json!({"metadata": {"uid": "u2"}}));
        let deleting = pod(json!({"metadata": {"deletionTimestamp": CREATED}}));
        for knowledge in [PodKnowledge::Present(&successor), PodKnowledge::Present(&deleting), PodKnowledge::Gone] {
            let (message, states) = completion(plan_of(&request, knowledge, 1));
            assert_eq!(message, "pod has gone");
            assert_eq!(states[0], ("Succeeded".into(), String::new()));
            assert_eq!(states[1], ("Failed".into(), "pod has gone".into()));
        }
        assert_eq!(plan_of(&request, PodKnowledge::Unknown, 1), Plan::default());
        let finished = pod(json!({"status": {"phase": "Failed"}}));
        assert_eq!(plan_of(&request, PodKnowledge::Present(&finished), 1), Plan::default());
    }

    #[test]
    fn case_11_the_time_of_the_grace_never_moves() {
        let pod = pod(json!({}));
        let condition = json!([{"type": "PreRecreateGrace", "status": "True", "reason": "PreRecreateGrace", "message": "", "lastTransitionTime": "2026-01-01T00:00:07Z"}]);
        let recorded: Timestamp = "2026-01-01T00:00:07Z".parse().unwrap();

        let mut both = acquiring();
        both["status"]["conditions"] = condition.clone();
        both["metadata"]["annotations"] = json!({"crr.apps.kruise.io/unready-acquired": "2026-01-01T00:00:07Z"});
        assert_eq!(plan_of(&request(both.clone()), PodKnowledge::Present(&pod), 30), Plan::default());

        let mut only_condition = both.clone();
        only_condition["metadata"]["annotations"] = Value::Null;
        assert_eq!(
            plan_of(&request(only_condition), PodKnowledge::Present(&pod), 30).actions,
            [Action::RecordAnnotation(recorded)]
        );
        let mut only_annotation = both;
        only_annotation["status"]["conditions"] = Value::Null;
        assert_eq!(
            plan_of(&request(only_annotation.clone()), PodKnowledge::Present(&pod), 30).actions,
            [Action::RecordCondition(recorded)]
        );
        only_annotation["metadata"]["annotations"]["crr.apps.kruise.io/unready-acquired"] = "soon".into();
        assert_eq!(plan_of(&request(only_annotation), PodKnowledge::Present(&pod), 30), Plan::default());

        let kept = with_grace_condition(
            &request(json!({"status": {"phase": "Recreating", "conditions": [
            {"type": "Other", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": CREATED}]}})),
            recorded,
        );
        assert_eq!(kept.iter().map(|c| c.type_.as_str()).collect::<Vec<_>>(), ["Other", "PreRecreateGrace"]);
    }

    #[test]
    fn case_12_without_the_gate_only_the_time_is_recorded() {
        let ungated = pod(json!({"spec": {"readinessGates": null}}));
        let time = now(2).wall;
        assert_eq!(
            plan_of(&request(acquiring()), PodKnowledge::Present(&ungated), 2).actions,
            [Action::RecordCondition(time), Action::RecordAnnotation(time)]
        );
    }

    #[test]
    fn acquisition_goes_finalizer_key_time() {
        let gated = pod(json!({}));
        let time = now(2).wall;
        let mut halfway = acquiring();
        assert_eq!(
            plan_of(&request(halfway.clone()), PodKnowledge::Present(&gated), 2).actions,
            [Action::AddFinalizer, Action::AcquireKey, Action::RecordCondition(time), Action::RecordAnnotation(time)]
        );
        halfway["metadata"]["finalizers"] = json!(["crr.apps.kruise.io/unready-acquired"]);
        assert_eq!(
            plan_of(&request(halfway), PodKnowledge::Present(&gated), 2).actions,
            [Action::AcquireKey, Action::RecordCondition(time), Action::RecordAnnotation(time)]
        );
        assert_eq!(plan_of(&request(acquiring()), PodKnowledge::Unknown, 2), Plan::default());
        for phase in ["", "Pending", "New"] {
            let mut waiting = acquiring();
            waiting["status"]["phase"] = phase.into();
            assert_eq!(plan_of(&request(waiting), PodKnowledge::Present(&gated), 2).actions, [], "{phase}");
        }
        let no_grace = request(json!({"status": {"phase": "Recreating"}}));
        assert_eq!(plan_of(&no_grace, PodKnowledge::Present(&gated), 2), Plan::default());
    }

    #[test]
    fn case_13_deletion_in_any_phase_releases_key_and_finalizer() {
        let (here, going) = (pod(json!({})), pod(json!({"metadata": {"deletionTimestamp": CREATED}})));
        let ungated = pod(json!({"spec": {"readinessGates": null}}));
        for phase in ["", "Pending", "Recreating", "Completed", "New"] {
            let deleted = request(json!({"status": {"phase": phase}, "metadata": {"deletionTimestamp": CREATED,
                "finalizers": ["x", "crr.apps.kruise.io/unready-acquired"]}}));
            let released = [Action::ReleaseKey, Action::Detach];
            assert_eq!(plan_of(&deleted, PodKnowledge::Present(&here), 1).actions, released);
            for blocked in [PodKnowledge::Gone, PodKnowledge::Present(&going), PodKnowledge::Present(&ungated)] {
                assert_eq!(plan_of(&deleted, blocked, 1).actions, [Action::Detach], "{phase}");
            }
            assert_eq!(plan_of(&deleted, PodKnowledge::Unknown, 1), Plan::default(), "the key may be there");
            assert_eq!(other_finalizers(&deleted), ["x"]);
        }
    }

    #[test]
    fn case_14_each_request_holds_a_key_of_its_own() {
        // The keys themselves are domain::readiness; here: an ended request releases although others still hold the Pod.
        let ended = request(
            json!({"status": {"phase": "Completed"}, "metadata": {"finalizers": ["crr.apps.kruise.io/unready-acquired"]}}),
        );
        let held =
            pod(json!({"status": {"conditions": [{"type": "KruisePodReady", "status": "False", "message": "[]"}]}}));
        assert_eq!(plan_of(&ended, PodKnowledge::Present(&held), 1).actions, [Action::ReleaseKey, Action::Detach]);
    }

    #[test]
    fn case_17_the_active_label_goes_once_and_with_the_finalizer() {
        let ended = request(json!({"status": {"phase": "Completed"}}));
        assert_eq!(plan_of(&ended, PodKnowledge::Unknown, 1).actions, [Action::Detach]);
        let detached = request(
            json!({"status": {"phase": "Completed"}, "metadata": {"labels": {"crr.apps.kruise.io/active": null}}}),
        );
        assert_eq!(plan_of(&detached, PodKnowledge::Unknown, 1), Plan::default());
    }

    #[test]
    fn case_18_a_completed_request_is_never_completed_again() {
        let ended = request(json!({"status": {"phase": "Completed"}, "spec": {"activeDeadlineSeconds": 3}}));
        for knowledge in [PodKnowledge::Gone, PodKnowledge::Unknown] {
            assert_eq!(plan_of(&ended, knowledge, 1000).actions, [Action::Detach]);
        }
    }

    #[test]
    fn case_23_a_request_without_strategy_is_handled() {
        let bare = request(json!({"spec": {"strategy": null}, "status": {"phase": "Recreating"}}));
        assert_eq!(plan_of(&bare, PodKnowledge::Present(&pod(json!({}))), 1), Plan::default());
    }

    #[test]
    fn the_deadline_ends_what_is_unfinished_and_says_what_never_began() {
        let pod = pod(json!({}));
        let at = |phase: &str, second| {
            let request = request(
                json!({"spec": {"activeDeadlineSeconds": 10, "strategy": {"unreadyGracePeriodSeconds": 1}}, "status": {"phase": phase}}),
            );
            plan_of(&request, PodKnowledge::Present(&pod), second)
        };
        assert_eq!(at("Pending", 9), Plan { actions: vec![], requeue: Some(Duration::from_secs(1)) });
        assert_eq!(completion(at("Recreating", 10)).0, "recreating has exceeded the activeDeadlineSeconds");
        for phase in ["", "Pending"] {
            let (message, states) = completion(at(phase, 10));
            assert!(message.starts_with("recreating has exceeded the activeDeadlineSeconds: it was never executed"));
            assert_eq!(states, vec![("Failed".to_owned(), message.clone()); 2], "every container gets a state");
        }
        for (phase, waiting, want) in [
            (
                "",
                "waiting for a ready kruise-daemon on node n1",
                ": it was never executed, waiting for a ready kruise-daemon on node n1",
            ),
            (
                "Pending",
                "waiting for request r0 of the same Pod",
                ": it was never executed, waiting for request r0 of the same Pod",
            ),
            ("Recreating", "waiting for runtime x: y", ": waiting for runtime x: y"),
        ] {
            let request =
                request(json!({"spec": {"activeDeadlineSeconds": 10}, "status": {"phase": phase, "message": waiting}}));
            let (message, _) = completion(plan_of(&request, PodKnowledge::Present(&pod), 10));
            assert_eq!(message, format!("{DEADLINE_EXCEEDED}{want}"));
        }
    }

    #[test]
    fn the_ttl_runs_from_the_completion() {
        let ended = request(json!({"spec": {"ttlSecondsAfterFinished": 5}, "status": {"phase": "Completed"},
            "metadata": {"labels": {"crr.apps.kruise.io/active": null}}}));
        let at = |second| {
            let memory = Memory { completed: Some(Sighting::live(now(10))), ..memory() };
            let (pod, daemon) = (PodKnowledge::Unknown, Daemon::Unknown);
            plan(&Observed { request: &ended, pod, daemon, memory, gone_after: DAEMON_GONE_AFTER }, now(second))
        };
        assert_eq!(at(12), Plan { actions: vec![], requeue: Some(Duration::from_secs(3)) });
        assert_eq!(at(15).actions, [Action::Delete]);
    }

    #[test]
    fn a_missing_daemon_is_told_once_and_not_at_once() {
        let (request, pod) = (request(json!({"status": {"phase": "Pending"}})), pod(json!({})));
        let plan_at = |second, request: &ContainerRecreateRequest, lasting, told_no_daemon| {
            let memory = Memory { told_no_daemon, ..memory() };
            let (pod, daemon) = (PodKnowledge::Present(&pod), Daemon::Missing(lasting));
            plan(&Observed { request, pod, daemon, memory, gone_after: Duration::from_secs(900) }, now(second))
        };
        let plan_after = |request: &ContainerRecreateRequest, lasting, told| plan_at(500, request, lasting, told);
        let seconds = Duration::from_secs;
        let waits = Plan { actions: vec![], requeue: Some(LOOK_FOR_NODE) };
        let text = "waiting for a ready kruise-daemon on node n1";
        assert_eq!(
            plan_after(&request, seconds(4), false),
            Plan { actions: vec![], requeue: Some(seconds(6)) },
            "however old the request is: a daemon that restarts is back before"
        );
        for long in [seconds(10), Duration::MAX] {
            assert_eq!(plan_after(&request, long, false).actions, [Action::TellNoDaemon(text.into())]);
        }
        assert_eq!(
            plan_at(1, &request, Duration::MAX, false),
            Plan { actions: vec![], requeue: Some(seconds(1)) },
            "a daemon that is there after all answers within that time"
        );
        assert_eq!(plan_after(&request, seconds(10), true), waits);
        let mut told = request.clone();
        told.status.as_mut().unwrap().message = text.into();
        assert_eq!(plan_after(&told, Duration::MAX, false), waits, "the manager before has told it");
    }

    /// What becomes of a request after its daemon has been missing for some time: the plan of the manager.
    fn plan_without_daemon(request: &ContainerRecreateRequest, daemon: Daemon, age: u64) -> Plan {
        let view = pod(json!({}));
        let (pod, memory) = (PodKnowledge::Present(&view), memory());
        plan(&Observed { request, pod, daemon, memory, gone_after: DAEMON_GONE_AFTER }, now(age))
    }

    #[test]
    fn a_request_whose_daemon_never_returns_ends_when_no_stop_is_on_record() {
        let seconds = Duration::from_secs;
        let held = json!({"metadata": {"finalizers": [labels::CRR_UNREADY_FINALIZER]}});
        for (phase, daemon, age, want) in [
            ("Recreating", Daemon::Missing(seconds(599)), 10_000, None),
            (
                "Recreating",
                Daemon::Missing(seconds(600)),
                10_000,
                Some("node n1 has had no ready kruise-daemon for 600 s"),
            ),
            (
                "Pending",
                Daemon::Missing(seconds(600)),
                10_000,
                Some("node n1 has had no ready kruise-daemon for 600 s"),
            ),
            // A daemon that works although it is not Ready: the request gets its time.
            ("Recreating", Daemon::Missing(seconds(9000)), 599, None),
            ("Recreating", Daemon::Unknown, 10_000, None),
            ("Recreating", Daemon::Ready, 10_000, None),
            ("Recreating", Daemon::NodeGone, 1, Some("node n1 has been deleted")),
            ("", Daemon::NodeGone, 1, Some("node n1 has been deleted")),
            ("", Daemon::Missing(seconds(9000)), 59, None),
        ] {
            let mut changes = held.clone();
            changes["status"] = json!({"phase": phase});
            let plan = plan_without_daemon(&request(changes), daemon, age);
            match want {
                None => assert!(!plan.actions.iter().any(|a| matches!(a, Action::Complete { .. })), "{plan:?}"),
                Some(reason) => {
                    let (message, states) = completion(plan);
                    assert_eq!(message, reason);
                    assert_eq!(states, vec![("Failed".to_owned(), reason.to_owned()); 2]);
                }
            }
        }
        let waits = request(
            json!({"status": {"phase": "Recreating", "message": "waiting for a ready kruise-daemon on node n1"}}),
        );
        let plan = plan_without_daemon(&waits, Daemon::Missing(seconds(570)), 10_000);
        assert_eq!(plan.requeue, Some(seconds(30)), "it is looked at when the time is over");
        let by_manager = request(
            json!({"metadata": {"labels": {"crr.kruise.rs/method": "PodSpec"}}, "status": {"phase": "Recreating"}}),
        );
        assert_eq!(plan_without_daemon(&by_manager, Daemon::Missing(Duration::MAX), 10_000), Plan::default());
    }

    #[test]
    fn a_request_with_a_stop_on_record_is_left_behind_and_releases_its_key() {
        let mut stopping = request(json!({
            "metadata": {"finalizers": [labels::CRR_UNREADY_FINALIZER]},
            "spec": {"strategy": {"unreadyGracePeriodSeconds": 1}},
            "status": {"phase": "Recreating", "containerRecreateStates": [
                {"name": "main", "phase": "Recreating", "previousContainerID": "x://1", "killStartedAt": CREATED}]},
        }));
        let gone = Daemon::Missing(DAEMON_GONE_AFTER);
        let plan = plan_without_daemon(&stopping, gone, 10_000);
        let [Action::ReleaseKey, Action::LeaveBehind { condition, message }] = plan.actions.as_slice() else {
            panic!("{plan:?}")
        };
        assert_eq!(condition.message, "node n1 has had no ready kruise-daemon for 600 s");
        assert!(message.starts_with(&condition.message), "{message}");
        carry_out(&mut stopping, &plan.actions);
        assert!(super::super::is_left_behind(&stopping) && !stopping.is_completed());
        for daemon in [gone, Daemon::NodeGone, Daemon::Ready] {
            assert_eq!(
                plan_without_daemon(&stopping, daemon, 20_000),
                Plan::default(),
                "{daemon:?}: no key comes back"
            );
        }
        // What has ended is on record, and stops nothing any more.
        let done = request(json!({"status": {"phase": "Recreating", "containerRecreateStates": [
            {"name": "main", "phase": "Succeeded", "previousContainerID": "x://1", "killStartedAt": CREATED}]}}));
        let (message, states) = completion(plan_without_daemon(&done, gone, 10_000));
        assert_eq!((states[0].0.as_str(), states[1].1.as_str()), ("Succeeded", message.as_str()));
    }

    #[test]
    fn clock_skew_never_completes_a_request_early() {
        let created: Timestamp = CREATED.parse().unwrap();
        // Our clock is an hour ahead, but we saw the request arrive.
        let ahead = |mono| Now { wall: created + Duration::from_secs(3600), mono: Duration::from_secs(mono) };
        assert_eq!(Sighting::live(ahead(10)).age(ahead(12)), Duration::from_secs(2));
        // Our clock is behind: an age is never negative, and grows with the monotonic clock.
        let behind = |mono| Now { wall: created - Duration::from_secs(3600), mono: Duration::from_secs(mono) };
        assert_eq!(Sighting::found(behind(10), created).age(behind(12)), Duration::from_secs(2));
        // A step of the wall clock after the first sight changes nothing.
        assert_eq!(Sighting::found(now(5), created).age(ahead(107)), Duration::from_secs(7));
    }

    #[test]
    fn the_outcome_tells_what_was_recreated_and_what_failed() {
        let status = |value: Value| serde_json::from_value::<ContainerRecreateRequestStatus>(value).unwrap();
        let good = status(
            json!({"phase": "Completed", "containerRecreateStates": [{"name": "a", "phase": "Succeeded"}, {"name": "b", "phase": "Succeeded"}]}),
        );
        assert_eq!(outcome(&good), (true, "Recreated containers: a, b".into()));
        let bad = status(json!({"phase": "Completed", "message": "pod has gone", "containerRecreateStates": [
            {"name": "a", "phase": "Failed", "message": "no"}, {"name": "b", "phase": "Failed", "message": "pod has gone"}]}));
        assert_eq!(outcome(&bad), (false, "pod has gone; container a: no; recreated: none".into()));
    }

    /// What the writes make of the request.
    fn carry_out(request: &mut ContainerRecreateRequest, actions: &[Action]) {
        for action in actions {
            match action {
                Action::AddFinalizer => {
                    request.metadata.finalizers.get_or_insert_default().push(labels::CRR_UNREADY_FINALIZER.into());
                }
                Action::RecordCondition(time) => {
                    let conditions = with_grace_condition(request, *time);
                    request.status.get_or_insert_default().conditions = conditions;
                }
                Action::RecordAnnotation(time) => {
                    request.annotations_mut().insert(labels::CRR_UNREADY_ACQUIRED.into(), time.to_string());
                }
                Action::Complete { message, states } => {
                    let status = request.status.get_or_insert_default();
                    assert_ne!(status.phase, Phase::Completed, "a finished request moved");
                    status.phase = Phase::Completed;
                    status.message.clone_from(message);
                    status.container_recreate_states.clone_from(states);
                }
                Action::Detach => {
                    let rest = other_finalizers(request).into_iter().map(str::to_owned).collect();
                    request.metadata.finalizers = Some(rest);
                    request.labels_mut().remove(labels::CRR_ACTIVE);
                }
                Action::TellNoDaemon(message) => request.status.get_or_insert_default().message.clone_from(message),
                Action::LeaveBehind { condition, message } => {
                    let conditions = with_condition(request, condition.clone());
                    let status = request.status.get_or_insert_default();
                    (status.conditions, status.message) = (conditions, message.clone());
                }
                Action::AcquireKey | Action::ReleaseKey | Action::Delete => {}
            }
        }
    }

    fn any_request() -> impl Strategy<Value = ContainerRecreateRequest> {
        let phase = prop::sample::select(vec!["", "Pending", "Recreating", "Completed", "Newer"]);
        let option = || prop::option::of(0i64..20);
        (phase, any::<[bool; 5]>(), option(), option(), option()).prop_map(
            |(phase, [finalizer, active, deleting, condition, annotation], deadline, ttl, grace)| {
                let mut changes = json!({
                    "spec": {"activeDeadlineSeconds": deadline, "ttlSecondsAfterFinished": ttl, "strategy": {"unreadyGracePeriodSeconds": grace}},
                    "status": {"phase": phase}, "metadata": {"labels": {}, "annotations": {}}});
                if finalizer {
                    changes["metadata"]["finalizers"] = json!(["crr.apps.kruise.io/unready-acquired", "other"]);
                }
                if !active {
                    changes["metadata"]["labels"] = json!({"crr.apps.kruise.io/active": null});
                }
                if deleting {
                    changes["metadata"]["deletionTimestamp"] = CREATED.into();
                }
                if condition {
                    changes["status"]["conditions"] = json!([{"type": "PreRecreateGrace", "status": "True", "reason": "r", "message": "", "lastTransitionTime": CREATED}]);
                }
                if annotation {
                    changes["metadata"]["annotations"] = json!({"crr.apps.kruise.io/unready-acquired": CREATED});
                }
                request(changes)
            },
        )
    }

    proptest! {
        #[test]
        fn a_finished_request_never_moves_and_its_finalizer_always_goes(
            mut request in any_request(), gate: bool, pod_deleting: bool, other_uid: bool, pod_kind in 0..3u8, looks in prop::collection::vec(0u64..40, 1..6),
        ) {
            let mut view = pod(json!({}));
            if !gate { view.readiness_gates = std::sync::Arc::default(); }
            if other_uid { view.metadata.uid = Some("u2".into()); }
            if pod_deleting { view.metadata.deletion_timestamp = Some(Time(CREATED.parse().unwrap())); }
            let mut at = 0;
            for step in looks {
                at += step;
                let was_completed = request.is_completed();
                let knowledge = match pod_kind { 0 => PodKnowledge::Gone, 1 => PodKnowledge::Unknown, _ => PodKnowledge::Present(&view) };
                let memory = Memory { completed: was_completed.then(|| Sighting::live(now(0))), ..memory() };
                let decided = plan(&Observed { request: &request, pod: knowledge, daemon: Daemon::Missing(Duration::MAX), memory, gone_after: DAEMON_GONE_AFTER }, now(at));
                if was_completed || request.is_deleting() {
                    prop_assert!(decided.actions.iter().all(|a| matches!(a, Action::ReleaseKey | Action::Detach | Action::Delete)), "{decided:?}");
                }
                // A key is only ever acquired under the finalizer's protection, by a request that runs.
                if let Some(position) = decided.actions.iter().position(|a| *a == Action::AcquireKey) {
                    prop_assert!(has_finalizer(&request) || decided.actions[..position].contains(&Action::AddFinalizer));
                    prop_assert_eq!(request.phase(), &Phase::Recreating);
                }
                let ended = was_completed || request.is_deleting();
                carry_out(&mut request, &decided.actions);
                prop_assert!(!was_completed || request.is_completed());
                if ended && pod_kind != 1 {
                    prop_assert!(!has_finalizer(&request));
                }
                // Without a new time a second look finds nothing left to do, but for a deletion that is repeated.
                let again = plan(&Observed { request: &request, pod: knowledge, daemon: Daemon::Ready, memory, gone_after: DAEMON_GONE_AFTER }, now(at));
                if !decided.actions.iter().any(|a| matches!(a, Action::Complete { .. })) {
                    prop_assert!(again.actions.iter().all(|a| matches!(a, Action::Delete)), "{again:?} after {decided:?}");
                }
            }
        }
    }
}
