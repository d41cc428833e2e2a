//! The condition `SidecarSetUpgradable` of Pods: one write of their status, after their update.

use std::{convert::Infallible, time::Duration};

use super::{Controller, Job, observe::Observed};
use crate::{
    domain::kinds::sidecar_set::{
        plan::{Plan, Turn},
        upgradable,
    },
    runtime::{
        clock,
        pass::{AFTER_CONFLICT, Pass},
        pod_control::Part,
        slow_start::each,
    },
};

/// Conditions that are written in one pass.
const MOST: usize = 500;
/// So long after the last update of a Pod: conditions are not written while updates go on, which would be slower for it.
const QUIET: Duration = Duration::from_secs(2);
/// How long they wait for that at the most, and between two tries of one that could not be written.
const LONGEST: Duration = Duration::from_secs(30);

/// What is remembered of the conditions of a SidecarSet's Pods. Monotonic times.
#[derive(Clone, Copy, Default)]
pub(super) struct Marks {
    /// When a Pod was updated the last time.
    pub(super) updated: Option<Duration>,
    /// Since when there are conditions to write.
    since: Option<Duration>,
    /// When the last one could not be written.
    failed: Option<Duration>,
}

impl Marks {
    /// How long conditions are to wait still.
    fn wait(self, now: Duration) -> Duration {
        let left = |since: Option<Duration>, pause: Duration| {
            since.map_or(Duration::ZERO, |since| pause.saturating_sub(now.saturating_sub(since)))
        };
        left(self.updated, QUIET).min(left(self.since, LONGEST))
    }

    /// How long until those are tried again that could not be written.
    fn pause(self, now: Duration) -> Duration {
        self.failed.map_or(Duration::ZERO, |failed| LONGEST.saturating_sub(now.saturating_sub(failed)))
    }
}

impl Controller {
    /// Writes the conditions that do not say what they should. One that cannot be written holds up nothing.
    pub(super) async fn mark(&self, job: &Job, plan: &Plan, observed: &Observed, pass: &mut Pass) {
        let now = clock::now();
        let is_pending = !plan.marks.is_empty();
        let Some(marks) = self.memories.with(&job.key, |memory| {
            memory.marks.since = memory.marks.since.or(Some(now.mono)).filter(|_| is_pending);
            memory.marks
        }) else {
            return;
        };
        if !is_pending {
            return;
        }
        let (wait, pause) = (marks.wait(now.mono), marks.pause(now.mono));
        if !wait.is_zero() {
            return pass.look_after(Some(wait));
        }
        let (mut due, again): (Vec<_>, Vec<_>) =
            plan.marks.iter().cloned().partition(|(pod, _)| !self.was_refused(job, &Turn::Mark(pod.clone())));
        match pause.is_zero() {
            true => due.extend(again),
            false => pass.look_after(Some(pause).filter(|_| !again.is_empty())),
        }
        pass.again |= due.len() > MOST;
        due.truncate(MOST);
        let tried = each(due, |(name, can)| async move {
            let Some(pod) = observed.pods.get(&name) else { return Ok((name, Ok(false))) };
            let Some(_held) = self.pods.hold(pod) else { return Ok((name, Ok(false))) };
            let patch = upgradable::patch(pod, &job.spec.name, can, now.wall);
            let written = self.pods.try_patch(pod, Part::Status, &patch).await;
            Ok::<_, Infallible>((name, written.map(|written| written.is_some())))
        });
        for (name, written) in tried.await.0 {
            let turn = Turn::Mark(name);
            match written {
                Ok(true) => drop(self.memories.with(&job.key, |memory| memory.turns.done(&turn))),
                Ok(false) => pass.look_after(Some(AFTER_CONFLICT)),
                Err(error) => {
                    let pod = turn.pod();
                    tracing::warn!(set = job.spec.name, pod, %error, "the condition SidecarSetUpgradable is not written");
                    pass.look_after(Some(LONGEST));
                    self.memories.with(&job.key, |memory| {
                        memory.marks.failed = Some(now.mono);
                        memory.turns.refused(turn);
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_wait_for_the_end_of_updates_and_not_for_ever() {
        let second = Duration::from_secs(1);
        let at = |seconds: u32| Some(second * seconds);
        for (updated, since, now, wait) in [
            (None, at(5), 5, 0),
            (at(5), at(5), 5, 2),
            (at(5), at(5), 6, 1),
            (at(5), at(5), 7, 0),
            (at(34), at(5), 34, 1),
            (at(35), at(5), 35, 0),
        ] {
            let marks = Marks { updated, since, failed: None };
            assert_eq!(marks.wait(second * now), second * wait, "{updated:?} {now}");
        }
        let failed = Marks { failed: at(5), ..Marks::default() };
        assert_eq!([5, 25, 35].map(|now| failed.pause(second * now)), [30, 10, 0].map(|left| second * left));
    }
}
