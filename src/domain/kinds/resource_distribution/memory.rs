//! What is remembered of the namespaces of a ResourceDistribution. Everything can be lost: copies are then looked at again.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::turns::Load;
use crate::k8s::time::doubled;

/// The first pause after a failure; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// The longest pause between two writes of a copy that others change again and again.
pub const SLOWEST_COPY: Duration = LONGEST_PAUSE;
/// The same for taking over an object that is referred to.
pub const SLOWEST_SOURCE: Duration = Duration::from_secs(60);
/// The longest text of an error that is remembered, in characters.
const LONGEST_ERROR: usize = 300;

/// How fast something is done again that others undo or change again and again: once at once, then after a second, and
/// each time twice as late, up to a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    times: u32,
    at: Duration,
}

impl Pace {
    /// It is done now. `slowest`: its longest pause; after twice as long a quiet time it begins anew.
    pub fn note(&mut self, now: Duration, slowest: Duration) {
        let times = if self.is_over(now, slowest) { 0 } else { self.times };
        *self = Self { times: times.saturating_add(1), at: now };
    }

    /// How long it is not done again.
    pub fn left(&self, now: Duration, slowest: Duration) -> Duration {
        let pause = match self.times.checked_sub(2) {
            None => Duration::ZERO,
            Some(times) => doubled(Duration::from_secs(1), times, slowest),
        };
        pause.saturating_sub(now.saturating_sub(self.at))
    }

    fn is_over(&self, now: Duration, slowest: Duration) -> bool {
        self.times == 0 || now.saturating_sub(self.at) >= 2 * slowest
    }
}

/// What the controller remembers of a ResourceDistribution.
#[derive(Debug, Default)]
pub struct DistributionMemory {
    pub(super) namespaces: BTreeMap<String, KnownNamespace>,
    /// When copies were written, for as long as that matters.
    pub(super) paces: BTreeMap<String, Pace>,
    /// When copies were last looked at that might have been changed, on the monotonic clock.
    pub(super) ticked: Option<Duration>,
    /// The same of namespaces in which a former manager may have left one.
    pub(super) sought: Option<Duration>,
    /// What it costs to look once at everything that no watch shows.
    pub load: Load,
    /// How often copies are looked at, when the next look was planned.
    pub(super) period: Duration,
    /// What was wanted last: the generation, and the hash of the content.
    wanted: (i64, String),
    /// When this was first remembered, no copy had been made.
    is_first: Option<bool>,
    /// When the last pass ended.
    pub looked: Option<Duration>,
    /// Calls at the same time.
    pub window: usize,
    /// The last warning.
    pub said: String,
}

/// What is known of one namespace.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KnownNamespace {
    pub(super) state: CopyState,
    /// Since when, on the monotonic clock.
    pub(super) at: Duration,
    /// Failures in a row.
    pub(super) failures: u32,
    /// Something else is wanted since it failed.
    is_free: bool,
}

/// What came of the last look at a namespace.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CopyState {
    /// There is a copy with this hash.
    Copied(Arc<str>),
    /// There is no copy of ours.
    Clean,
    /// An object of others has the name.
    Others,
    /// A copy that is being deleted has the name.
    Ending,
    /// Something failed.
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

/// What is most likely in a namespace under the name of the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// No object.
    Nothing,
    /// A copy that is to have another content.
    Copy,
    /// Anything: it is looked at.
    Unknown,
}

/// What came of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// The copy is as it should be, with this hash.
    Copied(Arc<str>),
    /// There is no copy of ours.
    Clean,
    /// An object of others has the name.
    Others,
    /// A copy that is being deleted has the name.
    Ending,
    /// It failed, and why.
    Failed(Operation, String),
}

impl KnownNamespace {
    /// How long nothing is tried after a failure.
    pub(super) fn pause(&self) -> Duration {
        doubled(FIRST_PAUSE, self.failures.saturating_sub(1), LONGEST_PAUSE)
    }

    /// What is left of the pause, if it was a failure.
    pub(super) fn left(&self, now: Duration) -> Duration {
        match self.state {
            CopyState::Failed(..) if !self.is_free => self.pause().saturating_sub(now.saturating_sub(self.at)),
            _ => Duration::ZERO,
        }
    }
}

impl DistributionMemory {
    /// At the begin of a pass: what failed, and what is written again and again, is tried at once when something else is
    /// wanted than before. `is_first`: the status says that no copy has been made.
    pub fn enter(&mut self, generation: i64, hash: &str, is_first: bool) {
        self.is_first.get_or_insert(is_first);
        if self.wanted.0 != generation || self.wanted.1 != hash {
            self.wanted = (generation, hash.to_owned());
            self.namespaces.values_mut().for_each(|known| known.is_free = true);
            self.paces.clear();
        }
    }

    /// Takes note of what came of a step. `is_seen`: a watch shows the copies, only failures have to be known.
    pub fn note(&mut self, namespace: &str, done: Done, is_seen: bool, now: Duration) {
        let before = self.namespaces.remove(namespace);
        let (state, failures) = match done {
            Done::Failed(operation, why) => {
                let why = why.chars().take(LONGEST_ERROR).collect();
                (CopyState::Failed(operation, why), before.map_or(0, |known| known.failures).saturating_add(1))
            }
            Done::Copied(_) | Done::Clean | Done::Ending if is_seen => return,
            Done::Copied(hash) => (CopyState::Copied(hash), 0),
            Done::Clean => (CopyState::Clean, 0),
            Done::Others => (CopyState::Others, 0),
            Done::Ending => (CopyState::Ending, 0),
        };
        self.namespaces.insert(namespace.to_owned(), KnownNamespace { state, at: now, failures, is_free: false });
    }

    /// What is most likely in a namespace that is to have a copy with this hash, where no watch shows what is there. It decides
    /// with which request to begin, and nothing else. After a failed creation it is not known: the answer may have been lost,
    /// and a quota that the copy has filled refuses the next creation before anybody says that the copy is there.
    pub fn expected(&self, namespace: &str, hash: &str) -> Expected {
        match self.namespaces.get(namespace).map(|known| &known.state) {
            None if self.is_first == Some(true) => Expected::Nothing,
            Some(CopyState::Clean) => Expected::Nothing,
            Some(CopyState::Copied(there)) if **there != *hash => Expected::Copy,
            None | Some(CopyState::Copied(_) | CopyState::Others | CopyState::Ending | CopyState::Failed(..)) => {
                Expected::Unknown
            }
        }
    }

    /// A copy is written, or it was tried.
    pub fn note_write(&mut self, namespace: &str, now: Duration) {
        self.paces.entry(namespace.to_owned()).or_default().note(now, SLOWEST_COPY);
    }

    /// How long a copy is not written again.
    pub(super) fn left_of_pace(&self, namespace: &str, now: Duration) -> Duration {
        self.paces.get(namespace).map_or(Duration::ZERO, |pace| pace.left(now, SLOWEST_COPY))
    }

    /// Forgets namespaces that are gone, and what no longer matters.
    pub(super) fn retain(&mut self, is_there: impl Fn(&str) -> bool, now: Duration) {
        self.namespaces.retain(|name, _| is_there(name));
        self.paces.retain(|name, pace| is_there(name) && !pace.is_over(now, SLOWEST_COPY));
    }

    /// A namespace is gone.
    pub fn forget(&mut self, namespace: &str) {
        self.namespaces.remove(namespace);
        self.paces.remove(namespace);
    }

    /// Whether the next look was planned when copies were looked at half as often as now, or less often; said once.
    pub fn is_late(&mut self, period: Duration) -> bool {
        let is_late = self.load != Load::default() && self.period >= 2 * period;
        if is_late {
            self.period = period;
        }
        is_late
    }

    /// The next turn comes at once.
    #[cfg(test)]
    pub fn forget_tick(&mut self) {
        (self.ticked, self.sought) = (None, None);
    }

    /// An object of others may have gone: the namespaces in which one is are looked at again at once.
    pub fn forget_others(&mut self) {
        self.namespaces.retain(|_, known| known.state != CopyState::Others);
    }
}
