//! What the daemon does about the requests of one Pod.
//!
//! [`pick`] chooses whose turn it is; [`plan`] looks at that request, at the Pod and at the runtime's containers, and
//! says what to record, what to stop and when to look again. The daemon carries that out: first the record, then the
//! stop, then the next look.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerPort, LifecycleHandler};

pub use super::memory::{Memory, in_trouble};
use super::{
    WAITING_FOR_DAEMON, WAITING_FOR_RUNTIME, is_left_behind, is_terminal, left_behind_reason,
    memory::{self, ContainerMemory},
    spelling, states_of,
};
use crate::{
    api::{
        crr::{
            ContainerRecreateRequest, ContainerRecreateRequestStatus, ContainerRecreateState, ContainerStatusSnapshot,
            FailurePolicy, Phase, RecreateContainer,
        },
        labels,
    },
    k8s::{
        pod::{ContainerState, PodView},
        time::{Now, whole_seconds},
    },
};

/// Grace when neither the request nor admission gave one, as kubelet's default for Pods.
pub(super) const DEFAULT_GRACE: i64 = 30;
/// What is left for the stop signal when the hook has used up the whole grace, as kubelet leaves it.
const GRACE_AFTER_HOOK: Duration = Duration::from_secs(2);
/// So many exits of instances that came after the stop make a container Failed.
const MAX_CRASHES: i32 = 3;
/// A waiting reason from [`STUCK_REASONS`] makes a container Failed when it lasts this long.
const STUCK_LIMIT: Duration = Duration::from_secs(60);
/// Waiting reasons that kubelet does not get out of by itself.
const STUCK_REASONS: [&str; 6] = [
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
];
/// So many stop calls that were answered and left the container running make it Failed.
const MAX_STOP_ATTEMPTS: u32 = 3;
/// A runtime that has answered a stop may show the instance running for a moment longer: only then is it asked again.
const STOP_SETTLES: Duration = Duration::from_secs(2);
/// How often it is looked at meanwhile.
const STOP_LOOK: Duration = Duration::from_millis(50);
/// A new instance that is not ready gets a line in the status after this time; most are ready before.
const TELL_STARTED_AFTER: Duration = Duration::from_secs(5);

/// An open request is looked at this often even when nothing was heard.
const LOOK_AGAIN: Duration = Duration::from_secs(15);

/// Part of a container's message after a daemon restart that came between the start of its hook and its stop.
pub const HOOK_NOT_REPEATED: &str = "preStop was started before a restart of the daemon and is not run again";

/// Part of a container's message when its hook could not be run.
pub const HOOK_LEFT_OUT: &str =
    "preStop was not run: other hooks of this node took all places for the whole grace period";

/// Part of a container's message when kubelet is expected to hold back its start.
pub const BACK_OFF_EXPECTED: &str = "it has restarted under this image within the last 10 minutes (back-off)";

/// State of an instance in the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceState {
    /// Made, not started.
    Created,
    /// Running.
    Running,
    /// Ended.
    Exited,
    /// The runtime cannot tell.
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

/// Everything that one decision rests on.
#[derive(Debug)]
pub struct Observed<'a> {
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
pub struct Plan {
    /// The new status, if it differs from the recorded one.
    pub status: Option<ContainerRecreateRequestStatus>,
    /// A stop, to be carried out only after `status` has been recorded.
    pub kill: Option<Kill>,
    /// When to look again at the latest.
    pub requeue: Option<Duration>,
}

/// Whose turn it is among the requests of one Pod.
#[derive(Debug, PartialEq)]
pub struct Pick<'a> {
    /// The request to work on.
    pub current: Option<&'a ContainerRecreateRequest>,
    /// Requests that wait and do not say so yet.
    pub tell_to_wait: Vec<&'a ContainerRecreateRequest>,
}

/// Chooses the request to work on: one that is under way, else the oldest; ties by name. Requests of all methods count,
/// whoever serves them.
pub fn pick<'a>(requests: impl IntoIterator<Item = &'a ContainerRecreateRequest>) -> Pick<'a> {
    let mut open: Vec<_> = requests.into_iter().filter(|r| !r.is_completed() && !r.is_deleting()).collect();
    open.sort_by(|a, b| order(a).cmp(&order(b)));
    let mut open = open.into_iter();
    Pick { current: open.next(), tell_to_wait: open.filter(|r| waits_untold(r)).collect() }
}

/// Whether a request that has to wait says nothing yet, or something that is over.
fn waits_untold(request: &ContainerRecreateRequest) -> bool {
    let message = request.status.as_ref().map_or("", |s| s.message.as_str());
    match request.phase() {
        Phase::Empty => true,
        Phase::Pending => message.starts_with(WAITING_FOR_DAEMON) || message.starts_with(WAITING_FOR_RUNTIME),
        _ => false,
    }
}

/// The same for the requests that the manager serves: one that was left behind holds up no other.
pub fn pick_by_manager<'a>(requests: impl IntoIterator<Item = &'a ContainerRecreateRequest>) -> Pick<'a> {
    pick(requests.into_iter().filter(|request| !is_left_behind(request)))
}

fn order(request: &ContainerRecreateRequest) -> (bool, bool, Option<Timestamp>, &str, &str) {
    let meta = &request.metadata;
    (
        // The daemon that has come back ends it first.
        !is_left_behind(request),
        *request.phase() != Phase::Recreating,
        meta.creation_timestamp.as_ref().map(|t| t.0),
        meta.name.as_deref().unwrap_or_default(),
        meta.uid.as_deref().unwrap_or_default(),
    )
}

/// The status of a request that has to wait for another one.
pub fn waiting_status(current: &ContainerRecreateRequest) -> ContainerRecreateRequestStatus {
    let first = current.metadata.name.as_deref().unwrap_or_default();
    ContainerRecreateRequestStatus {
        phase: Phase::Pending,
        message: format!("waiting for request {first} of the same Pod"),
        ..ContainerRecreateRequestStatus::default()
    }
}

/// What a method does, in one pass, about a container whose old instance is not known to be gone.
pub(super) type Act<'a> = dyn FnMut(&Look<'_>, &mut ContainerRecreateState, &mut ContainerMemory, bool, &mut Plan) + 'a;

/// Decides the next step for a request whose turn it is.
pub fn plan(observed: &Observed<'_>, memory: &mut Memory, now: Now) -> Plan {
    if let Err(reason) = check_runtime(observed.request, observed.runtimes) {
        return refuse(observed, now, &reason);
    }
    plan_with(observed, memory, now, &mut |look, state, memory, may_stop, plan| {
        if state.previous_container_id.is_empty() {
            look.decide(state, memory, may_stop, plan);
        } else {
            look.carry_on(state, memory, may_stop, plan);
        }
    })
}

/// Ends a request that cannot be carried out at all.
pub(super) fn refuse(observed: &Observed<'_>, now: Now, reason: &str) -> Plan {
    let request = observed.request;
    if request.is_completed() || request.is_deleting() {
        return Plan::default();
    }
    let mut status = request.status.clone().unwrap_or_default();
    status.container_recreate_states = super::fail_unfinished(request, reason);
    complete(&mut status, observed, now, reason.to_owned());
    Plan { status: Some(status), ..Plan::default() }
}

fn complete(status: &mut ContainerRecreateRequestStatus, observed: &Observed<'_>, now: Now, message: String) {
    status.phase = Phase::Completed;
    status.completion_time = Some(whole_seconds(now.wall));
    status.message = message;
    status.container_status_snapshot = snapshot(observed);
}

/// The steps that all methods have in common, around what this one does to an instance.
pub(super) fn plan_with(observed: &Observed<'_>, memory: &mut Memory, now: Now, act: &mut Act<'_>) -> Plan {
    let request = observed.request;
    if request.is_completed() || request.is_deleting() {
        return Plan::default();
    }
    let recorded = request.status.clone().unwrap_or_default();
    let mut next = recorded.clone();
    next.phase = Phase::Recreating;
    // Whatever it waited for, a daemon or the runtime too, is there now.
    next.message = String::new();
    memory.runtime_answers(now);
    let mut plan = Plan::default();
    let outcome = step(observed, memory, now, &mut next, &mut plan, act);
    if let Outcome::Completed(message) = outcome {
        complete(&mut next, observed, now, message);
        plan.requeue = None;
    } else if let Some(error) = memory.repeats() {
        next.message = format!("{WAITING_FOR_RUNTIME}{error}; asked again until the grace period is over");
    }
    if next != recorded {
        plan.status = Some(next);
    }
    plan
}

enum Outcome {
    Open,
    Completed(String),
}

fn step(
    observed: &Observed<'_>,
    memory: &mut Memory,
    now: Now,
    next: &mut ContainerRecreateRequestStatus,
    plan: &mut Plan,
    act: &mut Act<'_>,
) -> Outcome {
    let request = observed.request;
    let strategy = request.strategy();
    next.container_recreate_states = states_of(request);
    // Without the Pod nothing can be verified; with a deletion timestamp it is kubelet's. The manager ends the request.
    let Some(pod) = observed.pod.filter(|pod| !pod.is_deleting()) else { return Outcome::Open };

    if let Some(grace) = strategy.unready_grace_period_seconds {
        let remaining = drain_remaining(request, memory, seconds(grace), now);
        if remaining != Some(Duration::ZERO) {
            let wait = format!("waiting until the Pod has been NotReady for {grace} s");
            for state in next.container_recreate_states.iter_mut().filter(|s| s.phase == Phase::Pending) {
                state.message.clone_from(&wait);
            }
            plan.requeue = remaining;
            return Outcome::Open;
        }
    }

    let left_behind = is_left_behind(request);
    let mut ended = 0;
    let mut failed = None;
    for (index, container) in request.spec.containers.iter().enumerate() {
        let state = &mut next.container_recreate_states[index];
        if left_behind && state.previous_container_id.is_empty() && !is_terminal(state) {
            ended += 1; // it is not begun any more, and fails with the end of the others
            continue;
        }
        let remembered = memory.containers.entry(container.name.clone()).or_default();
        let look = Look { observed, pod, container, now };
        // Stops are issued one after the other: while one is due, the containers behind it are only watched.
        let may_stop = plan.kill.is_none();
        look.advance(state, remembered, may_stop, plan, act);
        match state.phase {
            Phase::Succeeded => ended += 1,
            Phase::Failed => {
                ended += 1;
                if strategy.failure_policy.unwrap_or_default() == FailurePolicy::Fail {
                    failed = Some(format!("container {}: {}", state.name, state.message));
                    break;
                }
            }
            _ if strategy.ordered_recreate => break,
            _ => {}
        }
    }
    if let Some(message) = failed {
        // The request ends here: a stop that this pass wanted to begin is neither begun nor recorded.
        plan.kill = None;
        for (state, before) in next.container_recreate_states.iter_mut().zip(states_of(request)) {
            let begun = state.kill_started_at.is_some() && before.kill_started_at.is_none();
            if begun && state.phase == Phase::Recreating {
                *state = before;
            }
        }
        return Outcome::Completed(message);
    }
    if ended == request.spec.containers.len() {
        let Some(reason) = left_behind_reason(request) else { return Outcome::Completed(String::new()) };
        let mut reasons = String::new();
        for state in next.container_recreate_states.iter_mut().filter(|state| !is_terminal(state)) {
            fail(state, reason.to_owned());
            reason.clone_into(&mut reasons);
        }
        return Outcome::Completed(reasons);
    }
    // Events bring us back; this is the net under them.
    sooner(plan, LOOK_AGAIN);
    Outcome::Open
}

/// Every container needs an identity, of one runtime, that this daemon talks to.
fn check_runtime(request: &ContainerRecreateRequest, runtimes: &[String]) -> Result<(), String> {
    let mut common: Option<&str> = None;
    for container in &request.spec.containers {
        let name = &container.name;
        let id = container.status_context.as_ref().map_or("", |c| c.container_id.as_str());
        let runtime = match id.split_once("://") {
            Some((runtime, rest)) if !runtime.is_empty() && !rest.is_empty() => runtime,
            _ => {
                return Err(format!(
                    "container {name}: statusContext.containerID is {id:?}, want <runtime>://<id>; \
                     the request did not pass admission"
                ));
            }
        };
        match common {
            Some(other) if other != runtime => {
                return Err(format!(
                    "container {name}: runtime {runtime} differs from {other} of the containers before it"
                ));
            }
            _ => common = Some(runtime),
        }
        if !runtimes.iter().any(|known| known == runtime) {
            return Err(format!(
                "container {name}: this node's daemon talks to [{}], not to runtime {runtime}",
                runtimes.join(", ")
            ));
        }
    }
    Ok(())
}

/// Time until the drain is over: None while the Pod has not been made NotReady.
///
/// Measured from when this process first saw it, on its own clock: the manager's clock may be another one.
fn drain_remaining(
    request: &ContainerRecreateRequest,
    memory: &mut Memory,
    grace: Duration,
    now: Now,
) -> Option<Duration> {
    if states_of(request).iter().any(|s| s.kill_started_at.is_some()) {
        return Some(Duration::ZERO); // the drain was over when the first stop was recorded
    }
    let conditions = request.status.as_ref().map_or(&[][..], |s| &s.conditions);
    let acquired = conditions.iter().any(|c| c.type_ == labels::CONDITION_PRE_RECREATE_GRACE && c.status == "True")
        || request.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(labels::CRR_UNREADY_ACQUIRED));
    if !acquired {
        return None;
    }
    let seen = *memory.unready_seen.get_or_insert(now.mono);
    Some(grace.saturating_sub(now.mono.saturating_sub(seen)))
}

/// One container of the request under the eyes of one pass.
pub(super) struct Look<'a> {
    pub(super) observed: &'a Observed<'a>,
    pub(super) pod: &'a PodView,
    pub(super) container: &'a RecreateContainer,
    pub(super) now: Now,
}

impl Look<'_> {
    fn advance(
        &self,
        state: &mut ContainerRecreateState,
        memory: &mut ContainerMemory,
        may_stop: bool,
        plan: &mut Plan,
        act: &mut Act<'_>,
    ) {
        if is_terminal(state) {
            return;
        }
        if !state.is_killed {
            act(self, state, memory, may_stop, plan);
        }
        if state.is_killed {
            self.await_successor(state, memory, self.newest(), plan);
        }
    }

    /// The newest instance of the container that really belongs to this Pod.
    pub(super) fn newest(&self) -> Option<&Instance> {
        self.mine().max_by_key(|i| (i.created_at, i.restart_count))
    }

    /// Instances whose labels say that they are this container of this Pod: the only ones that may be touched.
    fn mine(&self) -> impl Iterator<Item = &Instance> {
        self.observed.instances.iter().filter(|i| {
            i.container == self.container.name && i.pod_uid == self.pod.cri_uid() && i.namespace == self.pod.namespace()
        })
    }

    /// Nothing was recorded for this container yet: the instance that is there, if it is to be replaced.
    ///
    /// None: the state says why there is nothing to do now, or that its end only has to be waited for.
    pub(super) fn target(&self, state: &mut ContainerRecreateState) -> Option<&Instance> {
        let context = self.container.status_context.as_ref()?;
        let Some(instance) = self.newest() else {
            state.phase = Phase::Pending;
            state.message = "not found container on Node".into();
            return None;
        };
        let force = self.observed.request.strategy().force_recreate;
        let replaced = instance.id != context.container_id || instance.restart_count > context.restart_count;
        if instance.state == InstanceState::Exited {
            self.handled(state, instance, "it had already stopped; waiting for kubelet to start it");
            state.previous_restart_count = Some(instance.restart_count);
            None
        } else if replaced && !force {
            self.handled(state, instance, "already recreated: another instance replaced the one that was meant");
            state.previous_container_id.clone_from(&context.container_id);
            // Only what happens from here on counts as a crash of the new instance.
            state.previous_restart_count = Some(instance.restart_count.saturating_sub(1));
            None
        } else if self.pod.condition_is_true(labels::CONDITION_ALL_CONTAINERS_RESTARTING) {
            state.phase = Phase::Pending;
            state.message = "waiting: kubelet is restarting all containers of the Pod by a restart rule".into();
            None
        } else {
            Some(instance)
        }
    }

    /// Records what is going to be replaced, before anything is done to it.
    pub(super) fn record_intent(&self, state: &mut ContainerRecreateState, instance: &Instance) {
        state.phase = Phase::Recreating;
        state.previous_container_id.clone_from(&instance.id);
        state.previous_restart_count = Some(instance.restart_count);
        state.kill_started_at = Some(whole_seconds(self.now.wall));
    }

    /// Nothing was recorded for this container yet: is there something to stop?
    fn decide(
        &self,
        state: &mut ContainerRecreateState,
        memory: &mut ContainerMemory,
        may_stop: bool,
        plan: &mut Plan,
    ) {
        let Some(instance) = self.target(state) else { return };
        if !may_stop {
            state.phase = Phase::Pending;
            state.message = String::new();
            return;
        }
        self.record_intent(state, instance);
        let hook = self.hook().filter(|_| !memory.hook_begun);
        state.hook_started_at = hook.as_ref().and(state.kill_started_at);
        state.message = if hook.is_some() { "running preStop, then stopping" } else { "stopping" }.into();
        if let Some(wait) = self.expected_wait() {
            state.message = format!("{}; {}", state.message, wait_expected(wait));
        }
        memory.hook_not_begun = hook.is_some();
        memory.grace_ends = Some(self.now.mono.saturating_add(self.grace()));
        plan.kill = Some(self.kill(instance, hook, self.grace()));
    }

    /// How long kubelet will hold the container back once it is stopped, if it will.
    fn expected_wait(&self) -> Option<Duration> {
        let name = &self.container.name;
        let (container, status) = (self.pod.container(name)?, self.pod.container_status(name)?);
        let wait = spelling::wait_after_stop(container, status, &spelling::Spellings::of(self.pod), self.now.wall);
        (!wait.is_zero()).then_some(wait)
    }

    /// A stop was recorded: is the instance gone, or does the stop have to be carried on?
    fn carry_on(
        &self,
        state: &mut ContainerRecreateState,
        memory: &mut ContainerMemory,
        may_stop: bool,
        plan: &mut Plan,
    ) {
        let target = self.mine().find(|i| i.id == state.previous_container_id);
        let Some(target) = target.filter(|i| i.state != InstanceState::Exited) else {
            memory.failing = None;
            state.phase = Phase::Recreating;
            state.is_killed = true;
            state.killed_at = Some(whole_seconds(self.now.wall));
            let told = state.message.clone();
            let expected = told.split("; ").find(|part| part.ends_with(BACK_OFF_EXPECTED));
            let expected = expected.unwrap_or("waiting for kubelet to start it");
            if memory.hook_left_out {
                state.message = HOOK_LEFT_OUT.to_owned();
            }
            say(state, &format!("stopped; {expected}"));
            return;
        };
        let settled_in = memory.stop_answered.map(|at| STOP_SETTLES.saturating_sub(self.now.mono.saturating_sub(at)));
        if settled_in.is_some_and(|left| !left.is_zero()) {
            sooner(plan, STOP_LOOK);
            return;
        }
        if let Some(why) = stop_is_hopeless(memory, self.grace()) {
            memory.failing = None;
            fail(state, format!("kill container error: {why}"));
            return;
        }
        if !may_stop {
            return;
        }
        if memory.hook_not_begun {
            plan.kill = Some(self.kill(target, self.hook(), self.grace()));
            return;
        }
        let again = match memory.last_stop_error.as_str() {
            "" => "stopping".to_owned(),
            error => format!("stopping again: {error}"),
        };
        if state.hook_started_at.is_some() && !memory.hook_begun {
            state.message = format!("{again}; {HOOK_NOT_REPEATED}");
        } else if !memory.last_stop_error.is_empty() {
            state.message = again;
        }
        let grace = self.grace();
        let used = state.kill_started_at.map_or(Duration::ZERO, |at| self.now.since(at));
        memory.grace_ends.get_or_insert(self.now.mono.saturating_add(grace.saturating_sub(used)));
        let pause = memory.failing.map_or(Duration::ZERO, |f| f.again_at.saturating_sub(self.now.mono));
        if pause.is_zero() {
            plan.kill = Some(self.kill(target, None, stop_grace(grace, used)));
        } else {
            sooner(plan, pause);
        }
    }

    /// The old instance is gone: has kubelet brought a new one that counts?
    fn await_successor(
        &self,
        state: &mut ContainerRecreateState,
        memory: &mut ContainerMemory,
        newest: Option<&Instance>,
        plan: &mut Plan,
    ) {
        state.phase = Phase::Recreating;
        if self.pod.is_finished() {
            fail(state, format!("the Pod has ended (phase {})", self.pod.phase));
            return;
        }
        let status = self.pod.container_status(&self.container.name);
        let base = state.previous_restart_count.unwrap_or_default();
        let known_count = self.container.status_context.as_ref().map_or(0, |c| c.restart_count);
        let successor = newest.filter(|i| {
            i.id != state.previous_container_id || (state.kill_started_at.is_none() && i.restart_count > known_count)
        });

        if let Some(instance) = successor {
            let exited = instance.state == InstanceState::Exited;
            let crashes = instance.restart_count.saturating_sub(base).saturating_sub(1) + i32::from(exited);
            if crashes >= MAX_CRASHES {
                let code =
                    instance.exit_code.filter(|_| exited).map_or(String::new(), |c| format!(", last exit code {c}"));
                fail(state, format!("it was started again {crashes} times and ended each time{code}"));
                return;
            }
            if instance.state == InstanceState::Running {
                memory.stuck = None;
                self.judge_running(state, memory, instance, plan);
                return;
            }
        }
        memory.running_since = None;
        if let Some(last) = newest.filter(|i| i.state == InstanceState::Exited)
            && let Some(why) = never_restarted(self.pod, &self.container.name, last.exit_code)
        {
            fail(state, why);
            return;
        }
        let Some(ContainerState::Waiting { reason, message }) = status.map(|s| &s.state) else {
            memory.stuck = None;
            return;
        };
        if STUCK_REASONS.contains(&reason.as_str()) {
            let since = memory.stuck.as_ref().map_or(self.now.mono, |(since, _)| *since);
            memory.stuck = Some((since, format!("{reason}: {message}")));
        } else if reason != "CrashLoopBackOff" {
            // Between two failed attempts kubelet shows its back-off: that is no progress.
            memory.stuck = None;
        }
        if let Some((since, words)) = &memory.stuck {
            let lasted = self.now.mono.saturating_sub(*since);
            if lasted >= STUCK_LIMIT {
                fail(state, format!("kubelet cannot start it: {words}"));
                return;
            }
            sooner(plan, STUCK_LIMIT - lasted);
        }
        if reason != "ContainerCreating" && reason != "PodInitializing" {
            // While it alternates between the failure and its back-off, the failure is what matters.
            let words =
                memory.stuck.as_ref().map_or_else(|| format!("{reason}: {message}"), |(_, words)| words.clone());
            say(state, &format!("stopped; kubelet: {words}"));
        }
    }

    fn judge_running(
        &self,
        state: &mut ContainerRecreateState,
        memory: &mut ContainerMemory,
        instance: &Instance,
        plan: &mut Plan,
    ) {
        let now = self.now;
        if memory.running_since.as_ref().is_none_or(|(id, _)| *id != instance.id) {
            memory.running_since = Some((instance.id.clone(), now.mono));
        }
        let seen = memory.running_since.as_ref().map_or(now.mono, |(_, at)| *at);
        // The runtime's time is exact across our restarts, our own survives a wall clock that steps back.
        let by_runtime = instance.started_at.map_or(Duration::ZERO, |at| now.since(at));
        let running_for = by_runtime.max(now.mono.saturating_sub(seen));
        let min_started = seconds(i64::from(self.observed.request.strategy().min_started_seconds));
        let ready =
            self.pod.container_status(&self.container.name).is_some_and(|s| s.ready && s.container_id == instance.id);
        let tell = |state: &mut ContainerRecreateState, message: &str| {
            state.container_id.clone_from(&instance.id);
            state.started_at = instance.started_at.map(whole_seconds);
            say(state, message);
        };
        if ready && (min_started.is_zero() || running_for > min_started) {
            let skipped = state.kill_started_at.is_none() && state.message.starts_with("already recreated");
            let message = if skipped { std::mem::take(&mut state.message) } else { String::new() };
            tell(state, &message);
            state.ready_at = Some(whole_seconds(now.wall));
            state.phase = Phase::Succeeded;
        } else if ready {
            // Strictly longer than minStartedSeconds.
            sooner(plan, min_started.saturating_sub(running_for) + Duration::from_millis(1));
        } else if state.container_id == instance.id {
            // told already
        } else if running_for >= TELL_STARTED_AFTER {
            if !state.message.starts_with("already recreated") {
                tell(state, "started; waiting until it is ready");
            }
        } else {
            sooner(plan, TELL_STARTED_AFTER - running_for);
        }
    }

    /// Marks a container whose old instance is gone without our doing.
    pub(super) fn handled(&self, state: &mut ContainerRecreateState, instance: &Instance, message: &str) {
        state.phase = Phase::Recreating;
        state.is_killed = true;
        state.previous_container_id.clone_from(&instance.id);
        state.message = message.to_owned();
    }

    fn grace(&self) -> Duration {
        memory::grace(self.observed.request)
    }

    /// The hook to run; with a grace of 0 there is no time for one.
    fn hook(&self) -> Option<Hook> {
        let handler = self.container.pre_stop.clone().filter(|_| !self.grace().is_zero())?;
        Some(Hook { handler, ports: self.container.ports.clone() })
    }

    fn kill(&self, instance: &Instance, hook: Option<Hook>, grace: Duration) -> Kill {
        Kill { container: self.container.name.clone(), id: instance.id.clone(), hook, grace }
    }
}

/// Why the instance, which runs, is not asked to stop once more.
fn stop_is_hopeless(memory: &ContainerMemory, grace: Duration) -> Option<String> {
    let error = &memory.last_stop_error;
    match memory.failing {
        _ if memory.refused => Some(error.clone()),
        Some(failing) if failing.is_over => {
            let times = failing.times;
            Some(format!("{error}; asked {times} times, and the grace period of {} s is over", grace.as_secs()))
        }
        _ if memory.stop_attempts >= MAX_STOP_ATTEMPTS => {
            Some(format!("still running after {MAX_STOP_ATTEMPTS} stop calls"))
        }
        _ => None,
    }
}

/// What is left of the grace for the stop itself after `used` of it. Zero only if the whole grace is zero.
pub fn stop_grace(grace: Duration, used: Duration) -> Duration {
    if grace.is_zero() || used.is_zero() { grace } else { grace.saturating_sub(used).max(GRACE_AFTER_HOOK.min(grace)) }
}

/// Why a container that ended will not be started again, if it will not. Its restart rules come before its policy.
fn never_restarted(pod: &PodView, container: &str, exit_code: Option<i32>) -> Option<String> {
    let rules = pod.restart_rules_of(container);
    let no_rule = match exit_code {
        // Whether a rule is for it cannot be told.
        None if !rules.is_empty() => return None,
        Some(code) if rules.iter().any(|rule| rule.matches(code) && rule.action.starts_with("Restart")) => return None,
        Some(code) if !rules.is_empty() => format!(" and no rule in restartPolicyRules is for exit code {code}"),
        _ => String::new(),
    };
    match (pod.restart_policy_of(container), exit_code) {
        ("Never", _) => Some(format!("stopped; kubelet does not start it again: restartPolicy is Never{no_rule}")),
        ("OnFailure", Some(0)) => Some(format!(
            "stopped; kubelet does not start it again: restartPolicy is OnFailure and it exited with 0{no_rule}"
        )),
        _ => None,
    }
}

/// What a user is told about kubelet's back-off that is to come.
pub fn wait_expected(wait: Duration) -> String {
    format!("kubelet will start it in about {} s: {BACK_OFF_EXPECTED}", wait.as_secs())
}

/// Sets a container's message; what was said about its hook stays.
pub(super) fn say(state: &mut ContainerRecreateState, message: &str) {
    let kept = [HOOK_NOT_REPEATED, HOOK_LEFT_OUT].into_iter().find(|kept| state.message.contains(kept));
    state.message = match (kept, message) {
        (None, _) => message.to_owned(),
        (Some(kept), "") => kept.to_owned(),
        (Some(kept), _) => format!("{message}; {kept}"),
    };
}

pub(super) fn fail(state: &mut ContainerRecreateState, message: String) {
    state.phase = Phase::Failed;
    state.message = message;
}

pub(super) fn sooner(plan: &mut Plan, delay: Duration) {
    plan.requeue = Some(plan.requeue.map_or(delay, |other| other.min(delay)));
}

fn seconds(value: i64) -> Duration {
    Duration::from_secs(u64::try_from(value).unwrap_or(0))
}

/// The Pod's own view of the request's containers.
fn snapshot(observed: &Observed<'_>) -> Vec<ContainerStatusSnapshot> {
    let statuses = observed.pod.map_or(&[][..], |pod| &pod.container_statuses);
    let of = |name: &str| statuses.iter().find(|s| s.name == name);
    observed
        .request
        .spec
        .containers
        .iter()
        .filter_map(|c| of(&c.name))
        .map(|s| ContainerStatusSnapshot {
            name: s.name.clone(),
            ready: s.ready,
            restart_count: s.restart_count,
            container_id: s.container_id.clone(),
        })
        .collect()
}
