//! Which instances this process is stopping or has stopped. Several tasks may want to stop the same instance; it is stopped
//! once.
//!
//! This is lost when the process ends, which does no harm: every task checks the state of an instance before it stops it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::{k8s::time::Now, runtime::clock};

/// A stop is remembered for this time; by then the container has a new instance with another id.
pub const KEEP: Duration = Duration::from_secs(600);
/// Old entries are removed when there are more than this.
const SWEEP_AT: usize = 128;

/// Why an instance is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A ContainerRecreateRequest.
    Request,
    /// Its environment has changed.
    Environment,
}

/// What is known of one instance.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// Why it was stopped, and when the runtime confirmed it.
    stopped: Option<(By, Duration)>,
    /// Its preStop hook was run, and the stop after it may be repeated until this time.
    hook_counts_until: Option<Duration>,
}

impl Known {
    /// The runtime has answered that it has stopped the instance.
    pub fn note_stopped(&mut self, by: By, now: Now) {
        self.stopped = Some((by, now.mono));
    }

    /// Why it was stopped, as long as that is remembered.
    pub fn stopped_by(&self, now: Now) -> Option<By> {
        self.stopped.filter(|(_, at)| now.mono.saturating_sub(*at) < KEEP).map(|(by, _)| by)
    }

    /// Its preStop hook was run to its end; the stop that follows may be repeated for this time. Of a hook that was left out or
    /// cancelled nothing is noted: whoever stops the instance runs it from its beginning.
    pub fn note_hook(&mut self, repeated_for: Duration, now: Now) {
        self.hook_counts_until = Some(now.mono.saturating_add(repeated_for));
    }

    /// The stop after the hook is not repeated: the instance runs on, and its next stop begins with the hook.
    pub fn give_up(&mut self) {
        self.hook_counts_until = None;
    }

    /// Whether its preStop hook was run for a stop that may still be repeated. A request does not ask: its hook and its grace
    /// are its own, and it begins the hook once.
    pub fn hook_was_run(&self, now: Now) -> bool {
        self.hook_counts_until.is_some_and(|until| now.mono < until)
    }
}

/// The exclusive right to stop one instance, as long as it is held.
pub type Turn = tokio::sync::OwnedMutexGuard<Known>;

/// Shared by all tasks that stop containers.
#[derive(Default)]
pub struct Stops(Mutex<HashMap<String, Arc<tokio::sync::Mutex<Known>>>>);

impl Stops {
    /// Waits until no other task is stopping the instance.
    pub async fn turn(&self, id: &str) -> Turn {
        self.entry(id).lock_owned().await
    }

    /// None: another task is stopping the instance.
    pub fn try_turn(&self, id: &str) -> Option<Turn> {
        self.entry(id).try_lock_owned().ok()
    }

    fn entry(&self, id: &str) -> Arc<tokio::sync::Mutex<Known>> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() > SWEEP_AT {
            let now = clock::now();
            entries.retain(|_, entry| {
                let is_recent = |known: Known| known.stopped_by(now).is_some() || known.hook_was_run(now);
                Arc::strong_count(entry) > 1 || entry.try_lock().is_ok_and(|known| is_recent(*known))
            });
        }
        entries.entry(id.to_owned()).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_at_a_time_and_what_was_done_is_known_to_the_next() {
        let stops = Stops::default();
        let mut turn = stops.turn("c1").await;
        assert!(stops.try_turn("c1").is_none() && stops.try_turn("c2").is_some());
        turn.note_stopped(By::Environment, clock::now());
        drop(turn);
        assert_eq!(stops.turn("c1").await.stopped_by(clock::now()), Some(By::Environment));
    }

    #[test]
    fn what_was_done_counts_for_a_time() {
        let begun = clock::now();
        let after = |seconds| Now { mono: begun.mono + Duration::from_secs(seconds), ..begun };
        for (is_given_up, seconds, was_run) in
            [(false, 0, true), (false, 59, true), (false, 60, false), (true, 0, false)]
        {
            let mut known = Known::default();
            known.note_hook(Duration::from_secs(60), begun);
            if is_given_up {
                known.give_up();
            }
            assert_eq!(known.hook_was_run(after(seconds)), was_run, "{is_given_up} {seconds}");
        }
        let mut known = Known::default();
        for (seconds, stopped) in [(0, Some(By::Request)), (599, Some(By::Request)), (600, None)] {
            known.note_stopped(By::Request, begun);
            assert_eq!(known.stopped_by(after(seconds)), stopped, "{seconds}");
        }
    }

    #[tokio::test]
    async fn old_stops_are_forgotten_and_turns_that_are_held_are_not() {
        let stops = Stops::default();
        let held = stops.turn("held").await;
        stops.turn("recent").await.note_stopped(By::Request, clock::now());
        stops.turn("with a hook").await.note_hook(KEEP, clock::now());
        for i in 0..3 * SWEEP_AT {
            stops.turn(&i.to_string()).await;
        }
        assert!(stops.0.lock().unwrap().len() <= SWEEP_AT + 3);
        assert!(stops.try_turn("held").is_none());
        drop(held);
        assert!(stops.turn("recent").await.stopped_by(clock::now()).is_some());
        assert!(stops.turn("with a hook").await.hook_was_run(clock::now()));
    }
}
