//! One container of a request, in one pass: whether it is stopped now, and whether its new instance has come.

use std::time::Duration;

use super::{
    instance::{Hook, Instance, InstanceState, Kill, NodePlan, ObservedContainers, seconds, sooner},
    is_terminal,
    memory::{self, ContainerMemory},
    message::{ContainerMessage, Failure, Progress, RestartPolicy, fail, say},
    spelling,
};
use crate::{
    api::{
        crr::{ContainerRecreateState, HookNote, Phase, RecreateContainer},
        labels,
    },
    k8s::{
        pod::{ContainerState, PodView, Waiting},
        time::{Now, whole_seconds},
    },
};

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
/// How often the runtime is asked meanwhile.
const STOP_LOOK: Duration = Duration::from_millis(50);
/// A new instance that is not ready gets a line in the status after this time; most are ready before.
const REPORT_STARTED_AFTER: Duration = Duration::from_secs(5);

/// What a method does, in one pass, about a container whose old instance is not known to be gone.
pub(super) type Act<'a> =
    dyn FnMut(&ContainerStep<'_>, &mut ContainerRecreateState, &mut ContainerMemory, bool, &mut NodePlan) + 'a;

/// One container of the request, in one pass.
pub(super) struct ContainerStep<'a> {
    pub(super) observed: &'a ObservedContainers<'a>,
    pub(super) pod: &'a PodView,
    pub(super) container: &'a RecreateContainer,
    pub(super) now: Now,
}

impl ContainerStep<'_> {
    pub(super) fn advance(
        &self,
        state: &mut ContainerRecreateState,
        memory: &mut ContainerMemory,
        may_stop: bool,
        plan: &mut NodePlan,
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
        self.mine().max_by_key(|instance| instance.age_order())
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
            if self.pod.is_finished() {
                // Removed, and kubelet makes no other.
                fail(state, &Failure::PodEnded { phase: self.pod.phase.to_string() });
                return None;
            }
            state.phase = Phase::Pending;
            say(state, Progress::NotFound);
            return None;
        };
        let force = self.observed.request.strategy().force_recreate;
        let replaced = instance.id != context.container_id || instance.restart_count > context.restart_count;
        if instance.state == InstanceState::Exited {
            self.handled(state, instance, Progress::HadStopped);
            state.previous_restart_count = Some(instance.restart_count);
            None
        } else if replaced && !force {
            self.handled(state, instance, Progress::AlreadyRecreated);
            state.is_skipped = true;
            state.previous_container_id.clone_from(&context.container_id);
            // Only what happens from here on counts as a crash of the new instance.
            state.previous_restart_count = Some(instance.restart_count.saturating_sub(1));
            None
        } else if self.pod.condition_is_true(labels::CONDITION_ALL_CONTAINERS_RESTARTING) {
            state.phase = Phase::Pending;
            say(state, Progress::RestartRule);
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
    pub(super) fn decide(
        &self,
        state: &mut ContainerRecreateState,
        memory: &mut ContainerMemory,
        may_stop: bool,
        plan: &mut NodePlan,
    ) {
        let Some(instance) = self.target(state) else { return };
        let hook = self.hook().filter(|_| !memory.hook_begun);
        if hook.is_some() && self.is_left_to_kubelet() {
            fail(state, &Failure::PodEnded { phase: self.pod.phase.to_string() });
            return;
        }
        if !may_stop {
            state.phase = Phase::Pending;
            say(state, Progress::Silent);
            return;
        }
        self.record_intent(state, instance);
        state.hook_started_at = hook.as_ref().and(state.kill_started_at);
        let progress = if hook.is_some() { Progress::RunningHook } else { Progress::Stopping };
        ContainerMessage { progress, back_off: self.expected_wait(), hook: None }.write(state);
        memory.hook_not_begun = hook.is_some();
        memory.intended = Some(self.now.mono);
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
    pub(super) fn carry_on(
        &self,
        state: &mut ContainerRecreateState,
        memory: &mut ContainerMemory,
        may_stop: bool,
        plan: &mut NodePlan,
    ) {
        let target = self.mine().find(|i| i.id == state.previous_container_id);
        let Some(target) = target.filter(|i| i.state != InstanceState::Exited) else {
            memory.failing = None;
            state.phase = Phase::Recreating;
            state.is_killed = true;
            state.killed_at = Some(whole_seconds(self.now.wall));
            let back_off = state.expected_back_off_seconds.map(seconds);
            let progress = if back_off.is_some() { Progress::Stopped } else { Progress::StoppedAndWaiting };
            let hook = if memory.hook_left_out { Some(HookNote::LeftOut) } else { state.hook_note.take() };
            ContainerMessage { progress, back_off, hook }.write(state);
            return;
        };
        let settled_in = memory.stop_answered.map(|at| STOP_SETTLES.saturating_sub(self.now.mono.saturating_sub(at)));
        if settled_in.is_some_and(|left| !left.is_zero()) {
            sooner(plan, STOP_LOOK);
            return;
        }
        if let Some(why) = stop_is_hopeless(memory, self.grace()) {
            memory.failing = None;
            fail(state, &Failure::NotStopped(why));
            return;
        }
        if !may_stop {
            return;
        }
        if memory.hook_not_begun {
            if self.is_left_to_kubelet() {
                fail(state, &Failure::PodEnded { phase: self.pod.phase.to_string() });
                return;
            }
            plan.kill = Some(self.kill(target, self.hook(), self.grace()));
            return;
        }
        let again = match memory.last_stop_error.as_str() {
            "" => Progress::Stopping,
            error => Progress::StoppingAgain(error.to_owned()),
        };
        let message = |hook| ContainerMessage { progress: again, back_off: None, hook };
        if state.hook_started_at.is_some() && !memory.hook_begun {
            message(Some(HookNote::NotRepeated)).write(state);
        } else if !memory.last_stop_error.is_empty() {
            message(None).write(state);
        }
        let grace = self.grace();
        // The clock of the wall may have been set since; for what another process has begun it is all there is.
        let used = match (memory.intended, state.kill_started_at) {
            (Some(at), _) => self.now.mono.saturating_sub(at),
            (None, begun) => begun.map_or(Duration::ZERO, |at| self.now.since(at)),
        };
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
        plan: &mut NodePlan,
    ) {
        state.phase = Phase::Recreating;
        if self.pod.is_finished() {
            fail(state, &Failure::PodEnded { phase: self.pod.phase.to_string() });
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
                let last_exit_code = instance.exit_code.filter(|_| exited);
                fail(state, &Failure::Crashed { times: crashes, last_exit_code });
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
            && let Some(failure) = never_restarted(self.pod, &self.container.name, last.exit_code)
        {
            fail(state, &failure);
            return;
        }
        let Some(ContainerState::Waiting(waiting)) = status.map(|s| &s.state) else {
            memory.stuck = None;
            return;
        };
        let Waiting { reason, message } = &**waiting;
        if STUCK_REASONS.contains(&reason.as_str()) {
            let since = memory.stuck.as_ref().map_or(self.now.mono, |(since, _)| *since);
            memory.stuck = Some((since, format!("{reason}: {message}")));
        } else if reason != "CrashLoopBackOff" {
            // Between two failed attempts kubelet shows its back-off: that is no progress.
            memory.stuck = None;
        }
        if let Some((since, why)) = &memory.stuck {
            let lasted = self.now.mono.saturating_sub(*since);
            if lasted >= STUCK_LIMIT {
                fail(state, &Failure::Stuck(why.clone()));
                return;
            }
            sooner(plan, STUCK_LIMIT - lasted);
        }
        if reason != "ContainerCreating" && reason != "PodInitializing" {
            // While it alternates between the failure and its back-off, the failure is what matters.
            let text = memory.stuck.as_ref().map_or_else(|| format!("{reason}: {message}"), |(_, why)| why.clone());
            // It was not stopped by the request, which is to be seen to the end.
            let progress = match state.is_skipped {
                true => Progress::AlreadyRecreatedAndKubeletSays(text),
                false => Progress::StoppedAndKubeletSays(text),
            };
            say(state, progress);
        }
    }

    fn judge_running(
        &self,
        state: &mut ContainerRecreateState,
        memory: &mut ContainerMemory,
        instance: &Instance,
        plan: &mut NodePlan,
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
            self.pod.container_status(&self.container.name).is_some_and(|s| s.ready && *s.container_id == *instance.id);
        let report = |state: &mut ContainerRecreateState, progress: Progress| {
            state.container_id.clone_from(&instance.id);
            state.started_at = instance.started_at.map(whole_seconds);
            say(state, progress);
        };
        if ready && (min_started.is_zero() || running_for > min_started) {
            let skipped = state.is_skipped && state.kill_started_at.is_none();
            report(state, if skipped { Progress::AlreadyRecreated } else { Progress::Silent });
            state.ready_at = Some(whole_seconds(now.wall));
            state.phase = Phase::Succeeded;
        } else if ready {
            // Strictly longer than minStartedSeconds.
            sooner(plan, min_started.saturating_sub(running_for) + Duration::from_millis(1));
        } else if state.container_id == instance.id {
            // reported before
        } else if running_for >= REPORT_STARTED_AFTER {
            if state.is_skipped {
                // Without kubelet's words about a start that is over.
                say(state, Progress::AlreadyRecreated);
            } else {
                report(state, Progress::Started);
            }
        } else {
            sooner(plan, REPORT_STARTED_AFTER - running_for);
        }
    }

    /// Marks a container whose old instance is gone without our doing.
    pub(super) fn handled(&self, state: &mut ContainerRecreateState, instance: &Instance, progress: Progress) {
        state.phase = Phase::Recreating;
        state.is_killed = true;
        state.previous_container_id.clone_from(&instance.id);
        say(state, progress);
    }

    fn grace(&self) -> Duration {
        memory::grace(self.observed.request)
    }

    /// Whether the hook has to be left to kubelet, which runs it once it sees that the Pod is over, and then stops the container.
    /// The sidecar terminator makes a request for such a container only when kubelet has not done so in time.
    fn is_left_to_kubelet(&self) -> bool {
        let own = self.observed.request.metadata.labels.as_ref();
        let by_terminator = own.is_some_and(|all| all.contains_key(labels::SIDECAR_TERMINATION))
            && self.pod.condition_is_true(labels::CONDITION_SIDECAR_TERMINATED);
        self.pod.is_finished() && !by_terminator
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
fn never_restarted(pod: &PodView, container: &str, exit_code: Option<i32>) -> Option<Failure> {
    let rules = pod.restart_rules_of(container);
    let no_rule_for = match exit_code {
        // Whether a rule is for it is not known.
        None if !rules.is_empty() => return None,
        Some(code) if rules.iter().any(|rule| rule.matches(code) && rule.action.starts_with("Restart")) => return None,
        Some(code) if !rules.is_empty() => Some(code),
        _ => None,
    };
    let policy = match (pod.restart_policy_of(container), exit_code) {
        ("Never", _) => RestartPolicy::Never,
        ("OnFailure", Some(0)) => RestartPolicy::OnFailure,
        _ => return None,
    };
    Some(Failure::NotStartedAgain { policy, no_rule_for })
}
