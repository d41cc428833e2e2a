//! What is remembered of the namespaces of a ResourceDistribution. Everything can be lost: copies are then looked at again.

use std::{collections::BTreeMap, time::Duration};

/// The first pause after a failure; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// What the controller remembers of a ResourceDistribution.
#[derive(Debug, Default)]
pub struct DistributionMemory {
    pub(super) namespaces: BTreeMap<String, Known>,
    /// When copies were last looked at that might have been changed, on the monotonic clock.
    pub(super) ticked: Option<Duration>,
    /// What was wanted last: the generation, and the hash of the content.
    wanted: (i64, String),
    /// Calls at the same time.
    pub window: usize,
    /// The last warning.
    pub said: String,
}

/// What is known of one namespace.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Known {
    pub(super) state: State,
    /// Since when, on the monotonic clock.
    pub(super) at: Duration,
    /// Failures in a row.
    pub(super) failures: u32,
}

/// What came of the last look at a namespace.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum State {
    /// There is a copy with this hash.
    Copied(String),
    /// There is no copy of ours.
    Clean,
    /// An object of others has the name.
    Others,
    /// Something was refused.
    Failed(Operation, String),
}

/// What was done when something failed. In the order of the conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// A copy was looked at.
    Get,
    /// A copy was made.
    Create,
    /// A copy was changed.
    Update,
    /// A copy was deleted.
    Delete,
}

/// What came of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// The copy is as it should be, with this hash.
    Copied(String),
    /// There is no copy of ours.
    Clean,
    /// An object of others has the name.
    Others,
    /// It was refused, and why.
    Failed(Operation, String),
}

impl Known {
    /// How long nothing is tried after a failure.
    pub(super) fn pause(&self) -> Duration {
        FIRST_PAUSE.saturating_mul(1 << self.failures.saturating_sub(1).min(16)).min(LONGEST_PAUSE)
    }

    /// What is left of the pause, if it was a failure.
    pub(super) fn left(&self, now: Duration) -> Duration {
        match self.state {
            State::Failed(..) => self.pause().saturating_sub(now.saturating_sub(self.at)),
            State::Copied(_) | State::Clean | State::Others => Duration::ZERO,
        }
    }
}

impl DistributionMemory {
    /// At the begin of a pass: what was refused is tried at once when something else is wanted than before.
    pub fn enter(&mut self, generation: i64, hash: &str) {
        if self.wanted.0 != generation || self.wanted.1 != hash {
            self.wanted = (generation, hash.to_owned());
            self.namespaces.retain(|_, known| !matches!(known.state, State::Failed(..)));
        }
    }

    /// Takes note of what came of a step. `is_seen`: a watch shows the copies, only failures have to be known.
    pub fn note(&mut self, namespace: &str, done: Done, is_seen: bool, now: Duration) {
        let before = self.namespaces.remove(namespace);
        let (state, failures) = match done {
            Done::Failed(operation, why) => {
                (State::Failed(operation, why), before.map_or(0, |known| known.failures).saturating_add(1))
            }
            Done::Copied(_) | Done::Clean if is_seen => return,
            Done::Copied(hash) => (State::Copied(hash), 0),
            Done::Clean => (State::Clean, 0),
            Done::Others => (State::Others, 0),
        };
        self.namespaces.insert(namespace.to_owned(), Known { state, at: now, failures });
    }

    /// Forgets namespaces that are gone.
    pub(super) fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.namespaces.retain(|name, _| is_there(name));
    }

    /// The next turn comes at once.
    #[cfg(test)]
    pub fn forget_tick(&mut self) {
        self.ticked = None;
    }

    /// An object of others may have gone: the namespaces in which one is are looked at again at once.
    pub fn forget_others(&mut self) {
        self.namespaces.retain(|_, known| known.state != State::Others);
    }
}
