//! When what was refused of one Pod is tried again: later each time, so that what is refused for good costs little.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::plan::{Plan, Turn};
use crate::k8s::time::doubled;

/// After the first failure; twice as long after each further one.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// What was tried in vain, and why. It can be lost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Retries {
    failed: BTreeMap<Turn, Retry>,
    /// Pods that a budget keeps. That may end at any time.
    kept: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq)]
struct Retry {
    failures: u32,
    /// In monotonic time.
    due: Duration,
    why: String,
}

impl Retries {
    /// It was refused.
    pub fn failed(&mut self, turn: Turn, why: String, now: Duration) {
        let failures = self.failed.get(&turn).map_or(0, |retry| retry.failures);
        let pause = doubled(FIRST, failures, LONGEST);
        self.failed.insert(turn, Retry { failures: failures.saturating_add(1), due: now + pause, why });
    }

    /// A budget keeps a Pod.
    pub fn kept(&mut self, pod: String, why: String) {
        self.kept.insert(pod, why);
    }

    /// It was done.
    pub fn done(&mut self, turn: &Turn) {
        self.failed.remove(turn);
        self.kept.remove(turn.pod());
    }

    /// Takes out of a plan what is not due yet. What the plan does not ask for any more is forgotten.
    pub fn hold_back(&mut self, plan: &mut Plan, now: Duration) {
        if self.failed.is_empty() && self.kept.is_empty() {
            return;
        }
        let pods: BTreeSet<&str> = plan.update.iter().map(|next| &*next.name).collect();
        self.failed.retain(|turn, _| match turn {
            Turn::Reset(pod) => plan.reset.contains(pod),
            Turn::Update(pod) => pods.contains(&**pod),
            Turn::Mark(_) => false,
        });
        self.kept.retain(|pod, _| pods.contains(&**pod));
        let is_due = |turn: Turn| self.failed.get(&turn).is_none_or(|retry| retry.due <= now);
        plan.reset.retain(|pod| is_due(Turn::Reset(pod.clone())));
        plan.update.retain(|next| is_due(Turn::Update(next.name.clone())));
    }

    /// How long until the next one is due. One that is due already waits for something else.
    pub fn next(&self, now: Duration) -> Option<Duration> {
        self.failed.values().filter_map(|retry| retry.due.checked_sub(now)).filter(|left| !left.is_zero()).min()
    }

    /// How many were refused.
    pub fn count(&self) -> usize {
        self.failed.len()
    }

    /// The first Pod by name of which something was refused, and why: the same one as long as nothing changes.
    pub fn first_failed(&self) -> Option<(String, String)> {
        let first = self.failed.iter().min_by_key(|(turn, _)| turn.pod());
        first.map(|(turn, retry)| (turn.pod().to_owned(), retry.why.clone()))
    }

    /// The first Pod by name that a budget keeps, and why.
    pub fn first_kept(&self) -> Option<(String, String)> {
        self.kept.first_key_value().map(|(pod, why)| (pod.clone(), why.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::kinds::sidecar_set::plan::Next;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }
    fn update(pod: &str) -> Turn {
        Turn::Update(pod.into())
    }
    fn plan(reset: &[&str], updates: &[&str]) -> Plan {
        let next = |pod: &&str| Next { name: (*pod).to_owned(), is_in_service: true };
        Plan {
            reset: reset.iter().map(|&pod| pod.to_owned()).collect(),
            update: updates.iter().map(next).collect(),
            ..Plan::default()
        }
    }

    #[test]
    fn e17_the_pause_of_a_pod_doubles_up_to_a_minute() {
        let (mut retries, mut now, mut pauses) = (Retries::default(), seconds(0), Vec::new());
        assert_eq!(retries.next(now), None);
        for _ in 0..9 {
            retries.failed(update("a"), "no".into(), now);
            let pause = retries.next(now).unwrap();
            pauses.push(pause.as_secs());
            now += pause;
            assert_eq!(retries.next(now), None, "it may be tried");
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        retries.done(&update("a"));
        assert_eq!((retries.next(now), retries.count()), (None, 0));
        retries.failed(update("a"), "no".into(), now);
        assert_eq!(retries.next(now), Some(seconds(1)), "from the begin");
    }

    #[test]
    fn e17_what_is_not_due_is_held_back_and_what_nobody_wants_is_forgotten() {
        let mut retries = Retries::default();
        for turn in [update("a"), update("b"), Turn::Reset("c".into()), Turn::Reset("d".into())] {
            retries.failed(turn, "no".into(), seconds(0));
        }
        retries.kept("e".into(), "budget".into());
        retries.kept("gone".into(), "budget".into());
        let mut early = plan(&["c", "new"], &["a", "e", "f"]);
        retries.hold_back(&mut early, seconds(0));
        assert_eq!(early, plan(&["new"], &["e", "f"]));
        assert_eq!((retries.count(), retries.first_kept()), (2, Some(("e".into(), "budget".into()))));
        let mut due = plan(&["c", "new"], &["a", "e", "f"]);
        retries.hold_back(&mut due, seconds(1));
        assert_eq!(due, plan(&["c", "new"], &["a", "e", "f"]));
        retries.hold_back(&mut plan(&[], &[]), seconds(1));
        assert_eq!(retries, Retries::default());
    }

    #[test]
    fn e17_the_pod_that_is_named_is_the_first_by_name() {
        let mut retries = Retries::default();
        assert_eq!((retries.first_failed(), retries.first_kept()), (None, None));
        for pod in ["b", "c", "a"] {
            retries.failed(update(pod), format!("no {pod}"), seconds(0));
            retries.kept(pod.into(), format!("keep {pod}"));
        }
        retries.failed(Turn::Reset("b".into()), "no".into(), seconds(0));
        assert_eq!(retries.first_failed(), Some(("a".into(), "no a".into())));
        assert_eq!(retries.first_kept(), Some(("a".into(), "keep a".into())));
        retries.done(&update("a"));
        assert_eq!(retries.first_failed(), Some(("b".into(), "no".into())));
        assert_eq!(retries.first_kept(), Some(("b".into(), "keep b".into())));
    }
}
