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

/// A stop or a hook is remembered for this time; by then the container has a new instance with another id.
const KEEP: Duration = Duration::from_secs(600);
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
    pub stopped: Option<(By, Duration)>,
    /// When its preStop hook was begun, whoever stops it.
    pub hook_begun: Option<Duration>,
}

impl Known {
    /// The runtime has answered that it has stopped the instance.
    pub fn note_stopped(&mut self, by: By, now: Now) {
        self.stopped = Some((by, now.mono));
    }

    /// How long ago its preStop hook was begun, as long as that is remembered.
    pub fn hook_begun_ago(&self, now: Now) -> Option<Duration> {
        self.hook_begun.map(|at| now.mono.saturating_sub(at)).filter(|ago| *ago < KEEP)
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
                let is_recent = |known: Known| {
                    let stopped = known.stopped.is_some_and(|(_, at)| now.mono.saturating_sub(at) < KEEP);
                    stopped || known.hook_begun_ago(now).is_some()
                };
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
        assert!(matches!(stops.turn("c1").await.stopped, Some((By::Environment, _))));
    }

    #[tokio::test]
    async fn old_stops_are_forgotten_and_turns_that_are_held_are_not() {
        let stops = Stops::default();
        let held = stops.turn("held").await;
        stops.turn("recent").await.note_stopped(By::Request, clock::now());
        stops.turn("with a hook").await.hook_begun = Some(clock::now().mono);
        for i in 0..3 * SWEEP_AT {
            stops.turn(&i.to_string()).await;
        }
        assert!(stops.0.lock().unwrap().len() <= SWEEP_AT + 3);
        assert!(stops.try_turn("held").is_none());
        drop(held);
        assert!(stops.turn("recent").await.stopped.is_some());
        assert!(stops.turn("with a hook").await.hook_begun_ago(clock::now()).is_some());
    }
}
