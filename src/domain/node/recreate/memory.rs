//! What the daemon remembers of a request between two looks: which calls of the runtime failed, and when they are
//! repeated.

use std::{collections::BTreeMap, time::Duration};

use super::{
    fail_unfinished,
    instance::{DEFAULT_GRACE, Kill},
    message::RequestMessage,
    states_of,
};
use crate::{
    api::crr::{ContainerRecreateRequest, ContainerRecreateRequestStatus, Phase},
    k8s::time::{Now, doubled, whole_seconds},
};

/// A runtime that cannot be asked gets a line in the status after this time; a restart of it takes less.
const REPORT_TROUBLE_AFTER: Duration = Duration::from_secs(5);
/// A request without a recorded stop ends when the runtime could not be asked for this time.
const RUNTIME_GONE_AFTER: Duration = Duration::from_secs(600);
/// The same with a stop on record whose grace period is shorter: time for a restart of the runtime.
const RUNTIME_GONE_IN_STOP: Duration = Duration::from_secs(60);
/// Pause after the first stop call that failed; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest of these pauses.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Failed stop calls are repeated for at least this time, however short the grace period is.
const REPEAT_AT_LEAST: Duration = Duration::from_secs(10);

/// What this process remembers of a request between two looks. Losing it costs time, never a second stop or hook.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RestartMemory {
    /// When this process first saw that the Pod had been made NotReady.
    pub(super) unready_seen: Option<Duration>,
    /// Since when the runtime could not be asked.
    trouble_since: Option<Duration>,
    /// Per container.
    pub(super) containers: BTreeMap<String, ContainerMemory>,
}

/// The same of one container.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ContainerMemory {
    /// This process recorded the intent and has not begun the hook.
    pub(super) hook_not_begun: bool,
    /// This process has begun the hook. It then never does so again, however old a version of the request it is shown.
    pub(super) hook_begun: bool,
    /// The hook could not be run.
    pub(super) hook_left_out: bool,
    pub(super) stop_attempts: u32,
    pub(super) last_stop_error: String,
    /// The runtime will not stop the instance.
    pub(super) refused: bool,
    /// When this process recorded the intent.
    pub(super) intended: Option<Duration>,
    /// When the grace period of the recorded stop ends, on this process' clock.
    pub(super) grace_ends: Option<Duration>,
    /// Stop calls that failed in a way that may pass, since the last one that did not.
    pub(super) failing: Option<Failing>,
    /// When the runtime last answered that it has stopped the instance.
    pub(super) stop_answered: Option<Duration>,
    /// Since when kubelet has been stuck, and in its words on what.
    pub(super) stuck: Option<(Duration, String)>,
    /// Newest instance, and when this process first saw it running.
    pub(super) running_since: Option<(String, Duration)>,
}

/// Stop calls that failed in a way that may pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Failing {
    /// When the first one failed.
    since: Duration,
    /// How many.
    pub(super) times: u32,
    /// When the next one is due.
    pub(super) again_at: Duration,
    /// The last one failed after the time for repeating was over.
    pub(super) is_over: bool,
}

impl RestartMemory {
    fn of(&mut self, container: &str) -> &mut ContainerMemory {
        self.containers.entry(container.to_owned()).or_default()
    }

    /// Call when a stop is about to be carried out.
    pub fn stop_begins(&mut self, kill: &Kill) {
        let memory = self.of(&kill.container);
        memory.hook_not_begun = false;
        memory.hook_begun |= kill.hook.is_some();
        memory.stop_attempts += 1;
    }

    /// Call when a hook could not be run, because others took all places for it during the whole grace period.
    pub fn hook_left_out(&mut self, container: &str) {
        self.of(container).hook_left_out = true;
    }

    /// Call when the runtime answered that it has stopped the instance, or does not know it.
    pub fn stop_answered(&mut self, container: &str, now: Now) {
        let memory = self.of(container);
        memory.stop_answered = Some(now.mono);
        memory.failing = None;
        memory.last_stop_error.clear();
    }

    /// Call when the runtime refused a stop for good.
    pub fn stop_refused(&mut self, container: &str, error: String) {
        let memory = self.of(container);
        memory.refused = true;
        memory.last_stop_error = error;
    }

    /// Call when a stop call failed in a way that may pass: it did not reach the runtime, had no answer, or the answer
    /// says nothing about the container. It is repeated until the grace period is over.
    pub fn stop_may_pass(&mut self, container: &str, error: String, now: Now) {
        let memory = self.of(container);
        memory.stop_attempts = memory.stop_attempts.saturating_sub(1);
        memory.last_stop_error = error;
        let before = memory.failing;
        let since = before.map_or(now.mono, |failing| failing.since);
        let times = before.map_or(0, |failing| failing.times).saturating_add(1);
        let ends = since.saturating_add(REPEAT_AT_LEAST).max(memory.grace_ends.unwrap_or_default());
        let pause = doubled(FIRST_PAUSE, times - 1, LONGEST_PAUSE);
        // The last call comes at the end, not before.
        let again_at = now.mono.saturating_add(pause).min(ends.max(now.mono));
        memory.failing = Some(Failing { since, times, again_at, is_over: now.mono >= ends });
    }

    /// The runtime could be asked. Time in which it could not does not count as time in which a stop was repeated.
    pub(super) fn runtime_answers(&mut self, now: Now) {
        let Some(since) = self.trouble_since.take() else { return };
        let away = now.mono.saturating_sub(since);
        for memory in self.containers.values_mut() {
            if let Some(failing) = &mut memory.failing {
                failing.since = failing.since.saturating_add(away);
            }
            if let Some(ends) = &mut memory.grace_ends {
                *ends = ends.saturating_add(away);
            }
        }
    }

    /// What the runtime said to the stop call that is going to be repeated, if one is.
    pub(super) fn repeats(&self) -> Option<&str> {
        let failing = self.containers.values().find(|memory| memory.failing.is_some());
        failing.map(|memory| memory.last_stop_error.as_str())
    }
}

/// The status of a request whose turn it is while the runtime cannot be asked: what it waits for, or that it has ended
/// because that lasts too long. None: it has not lasted long, or is recorded already. `begun` is when the failed call
/// was made.
pub fn in_trouble(
    request: &ContainerRecreateRequest,
    memory: &mut RestartMemory,
    runtime: &str,
    error: &str,
    begun: Now,
    now: Now,
) -> Option<ContainerRecreateRequestStatus> {
    let since = *memory.trouble_since.get_or_insert(begun.mono);
    let lasted = now.mono.saturating_sub(since);
    if lasted < REPORT_TROUBLE_AFTER || !request.is_open() {
        return None;
    }
    let mut next = request.status.clone().unwrap_or_default();
    let stopping = states_of(request).iter().any(|s| s.kill_started_at.is_some() && !s.is_killed);
    let limit = match stopping {
        true => grace(request).max(RUNTIME_GONE_IN_STOP),
        false => RUNTIME_GONE_AFTER,
    };
    if lasted >= limit {
        let (runtime, error) = (runtime.to_owned(), error.to_owned());
        let reason = RequestMessage::RuntimeGone { runtime, lasted: limit, error, stopping }.to_string();
        next.container_recreate_states = fail_unfinished(request, &reason);
        next.phase = Phase::Completed;
        next.completion_time = Some(whole_seconds(now.wall));
        next.message = reason;
        return Some(next);
    }
    if next.phase == Phase::Empty {
        // Else the manager would take the silence for an absent daemon.
        next.phase = Phase::Pending;
    }
    let (runtime, error) = (runtime.to_owned(), error.to_owned());
    next.message = RequestMessage::WaitingForRuntime { runtime, error }.to_string();
    (request.status.as_ref() != Some(&next)).then_some(next)
}

/// The time that hook and stop of a request share.
pub(super) fn grace(request: &ContainerRecreateRequest) -> Duration {
    let seconds = request.strategy().termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE);
    Duration::from_secs(seconds.try_into().unwrap_or(0))
}
