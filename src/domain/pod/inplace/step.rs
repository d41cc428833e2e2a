//! What an update in place needs next.

use std::time::Duration;

use jiff::Timestamp;

use super::{Annotations, ObservedPod, UpdateSpec, completion::containers_done};
use crate::k8s::revision;

/// What an update in place needs next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing: none is going on, and the gate is open.
    Nothing,
    /// Something else has to happen first, or time has to pass.
    Wait {
        /// When to look again, if nothing happens before.
        after: Option<Duration>,
        /// What is waited for, in words.
        for_what: String,
    },
    /// The pending change belongs to a revision that the Pod no longer has: drop it.
    DropGrace,
    /// The grace is over: write the pending change.
    Apply(UpdateSpec),
    /// The containers of the batch before are ready: write the next one.
    NextBatch(UpdateSpec),
    /// All is done: open the gate.
    OpenGate,
}

/// Decides what an update in place needs next.
pub fn next_step(pod: &ObservedPod<'_>, annotations: &Annotations, now: Timestamp) -> Step {
    let wait = |after, for_what: String| Step::Wait { after, for_what };
    if let Some(grace) = &annotations.grace {
        if !revision::is_same(pod.revision, &grace.revision) {
            return Step::DropGrace;
        }
        // Nobody knows when it began: it ends now, and not never.
        let Some(state) = &annotations.state else { return Step::Apply(grace.clone()) };
        let passed = now.as_millisecond().saturating_sub(state.update_timestamp.as_millisecond());
        let left = grace.grace_seconds.saturating_mul(1000).saturating_sub(passed);
        // A clock that was set back makes nobody wait for longer than the whole grace.
        return match u64::try_from(left.min(grace.grace_seconds.saturating_mul(1000))) {
            Ok(left) if left > 0 => wait(Some(Duration::from_secs(left.div_ceil(1000))), "the grace period".into()),
            _ => Step::Apply(grace.clone()),
        };
    }
    if let Some(state) = &annotations.state {
        let done = containers_done(pod, state);
        if !done.done {
            return wait(None, done.waits_for);
        }
        if state.has_next() {
            let required = state.pre_check_before_next.iter().flat_map(|check| &check.containers_required_ready);
            let is_ready = |name: &str| pod.status(name).is_some_and(|status| status.is_ready);
            return match required.into_iter().find(|name| !is_ready(name)) {
                Some(name) => wait(None, format!("container {name} to be ready before the next batch")),
                None => Step::NextBatch(state.next()),
            };
        }
    }
    if pod.is_gate_closed { Step::OpenGate } else { Step::Nothing }
}
