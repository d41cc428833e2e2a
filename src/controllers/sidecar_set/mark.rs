//! The condition `SidecarSetUpgradable` of Pods: one write of their status, after their update.

use std::{convert::Infallible, sync::Arc, time::Duration};

use super::{Controller, Job, observe::Observed};
use crate::{
    domain::kinds::sidecar_set::{
        plan::{Plan, Turn},
        upgradable,
    },
    k8s::pod::PodView,
    runtime::{
        clock,
        pass::{AFTER_CONFLICT, Pass},
        pod_control::Part,
        slow_start::each,
        watches::ObjectKey,
    },
};

/// From so many Pods on no condition is written while updates go on, which would be slower for it. With fewer they come before
/// the status counts the updates, as in OpenKruise: clients wait for the counts, and look at the Pods then.
pub(super) const MANY: usize = 100;

/// Conditions that are written in one pass.
const MOST: usize = 500;
/// Tries to write one in a pass: kubelet writes to a Pod that was updated, too.
const TRIES: usize = 2;
/// So long after the last update of a Pod conditions are written, where there are [`MANY`].
const QUIET: Duration = Duration::from_secs(2);
/// How long they wait for that at the most, and between two tries of one that could not be written.
const LONGEST: Duration = Duration::from_secs(30);

/// Conditions of a pass that take longer than this let the status go first for a while.
const SLOW: Duration = Duration::from_secs(2);

/// What is remembered of the conditions of a SidecarSet's Pods. Monotonic times.
#[derive(Clone, Copy, Default)]
pub(super) struct Marks {
    /// When a Pod was updated the last time.
    pub(super) updated: Option<Duration>,
    /// Since when there are conditions to write.
    since: Option<Duration>,
    /// When the last one could not be written.
    failed: Option<Duration>,
    /// When those of a pass took longer than [`SLOW`] the last time.
    slow: Option<Duration>,
}

impl Marks {
    /// Whether those of so many Pods come before the status. Not for a while after one could not be written, which may have
    /// taken long to find out, or after a pass in which they took long.
    fn come_first(self, pods: usize, now: Duration) -> bool {
        let is_slow = self.slow.is_some_and(|slow| now.saturating_sub(slow) < LONGEST);
        pods < MANY && self.pause(now).is_zero() && !is_slow
    }

    /// How long the conditions of so many Pods are to wait still.
    fn wait(self, pods: usize, now: Duration) -> Duration {
        if pods < MANY {
            return Duration::ZERO;
        }
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
    /// Whether conditions come before the status.
    pub(super) fn marks_first(&self, job: &Job, observed: &Observed) -> bool {
        let (pods, now) = (observed.pods.len(), clock::now().mono);
        self.memories.with(&job.key, |memory| memory.marks.come_first(pods, now)).unwrap_or_default()
    }

    /// Writes the conditions that do not say what they should. One that cannot be written holds up nothing.
    pub(super) async fn mark(&self, job: &Job, plan: &Plan, observed: &Observed, pass: &mut Pass) {
        let now = clock::now().mono;
        let is_pending = !plan.marks.is_empty();
        let Some(marks) = self.memories.with(&job.key, |memory| {
            memory.marks.since = memory.marks.since.or(Some(now)).filter(|_| is_pending);
            memory.marks
        }) else {
            return;
        };
        if !is_pending {
            return;
        }
        let (wait, pause) = (marks.wait(observed.pods.len(), now), marks.pause(now));
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
            let written = match observed.pods.get(&name) {
                Some(seen) => self.write_condition(job, seen, can).await,
                None => Ok(false),
            };
            Ok::<_, Infallible>((name, written))
        });
        let tried = tried.await.0;
        let ended = clock::now().mono;
        if ended.saturating_sub(now) > SLOW {
            self.memories.with(&job.key, |memory| memory.marks.slow = Some(ended));
        }
        for (name, written) in tried {
            let turn = Turn::Mark(name);
            match written {
                Ok(true) => drop(self.memories.with(&job.key, |memory| memory.turns.done(&turn))),
                Ok(false) => pass.look_after(Some(AFTER_CONFLICT)),
                Err(error) => {
                    let pod = turn.pod();
                    tracing::warn!(set = job.spec.name, pod, %error, "the condition SidecarSetUpgradable is not written");
                    pass.look_after(Some(LONGEST));
                    let now = clock::now().mono;
                    self.memories.with(&job.key, |memory| {
                        memory.marks.failed = Some(now);
                        memory.turns.refused(turn);
                    });
                }
            }
        }
    }

    /// Writes one condition to the version of the Pod that is known now: the status, which may count its update, does not wait
    /// for the next pass. False: something else may be to be said of it now.
    async fn write_condition(&self, job: &Job, seen: &Arc<PodView>, can: bool) -> kube::Result<bool> {
        for _ in 0..TRIES {
            let Some(pod) = self.context.pods.get(&ObjectKey::of(seen.as_ref())) else { break };
            if !Arc::ptr_eq(&pod, seen) && self.upgradable(job, &pod) != Some(can) {
                break;
            }
            let Some(_held) = self.pods.hold(&pod) else { break };
            let patch = upgradable::patch(&pod, &job.spec.name, can, clock::now().wall);
            if self.pods.try_patch(&pod, Part::Status, &patch).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
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
            let marks = Marks { updated, since, ..Marks::default() };
            assert_eq!(marks.wait(MANY, second * now), second * wait, "{updated:?} {now}");
            assert_eq!(marks.wait(MANY - 1, second * now), Duration::ZERO, "{updated:?} {now}");
        }
        let failed = Marks { failed: at(5), ..Marks::default() };
        assert_eq!([5, 25, 35].map(|now| failed.pause(second * now)), [30, 10, 0].map(|left| second * left));
        assert_eq!([5, 34, 35].map(|now| failed.come_first(MANY - 1, second * now)), [false, false, true]);
        let slow = Marks { slow: at(5), ..Marks::default() };
        assert_eq!([5, 34, 35].map(|now| slow.come_first(MANY - 1, second * now)), [false, false, true]);
        assert_eq!([MANY - 1, MANY].map(|pods| Marks::default().come_first(pods, second)), [true, false]);
    }
}
