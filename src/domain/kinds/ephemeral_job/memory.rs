//! What is remembered of a job between two looks at it. Everything can be lost.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use super::state::PodResult;
use crate::{
    api::apps::ephemeral_job::EphemeralJob,
    k8s::time::{Now, Sighting},
};

/// The first pause after a Pod did not take the containers; it doubles with each refusal.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// In-memory state of a job.
#[derive(Clone, Debug, Default)]
pub struct EphemeralMemory {
    /// The begin of the job.
    pub start: Option<Sighting>,
    /// Its end.
    pub end: Option<Sighting>,
    /// It was seen before its end.
    pub is_known: bool,
    /// Pods whose containers have ended, by UID; true: well.
    pub results: BTreeMap<String, bool>,
    /// What was counted already, of Pods that had gone when this process looked first: succeeded and failed.
    pub earlier: Option<(i32, i32)>,
    /// Pods that did not take the containers, by UID.
    pub refused: HashMap<String, Refusal>,
    /// How many calls go out at a time.
    pub window: usize,
    /// How many Pods the last look went over.
    pub pods: usize,
    /// The last event.
    pub said: String,
}

/// What is known of a Pod that did not take the containers.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// Name of the Pod.
    pub pod: String,
    /// How often.
    pub times: u32,
    /// When last, on the monotonic clock.
    pub last: Duration,
    /// The words of the API server.
    pub why: String,
}

impl Refusal {
    /// How long the Pod is not asked again.
    pub fn left(&self, now: Now) -> Duration {
        let doublings = self.times.saturating_sub(1).min(8);
        let pause = (REFUSED_PAUSE * 2_u32.pow(doublings)).min(LONGEST_PAUSE);
        pause.saturating_sub(now.mono.saturating_sub(self.last))
    }
}

impl EphemeralMemory {
    /// At the begin of a look: how long ago the job began and ended, as far as it has.
    pub fn enter(&mut self, job: &EphemeralJob, now: Now) -> (Duration, Duration) {
        let status = job.status.clone().unwrap_or_default();
        let begun = match (self.start, status.start_time) {
            (Some(start), _) => start,
            (None, Some(since)) => *self.start.insert(Sighting::found(now, since)),
            (None, None) => *self.start.insert(Sighting::live(now)),
        };
        let ended = match status.completion_time {
            None => {
                self.is_known = true;
                Duration::ZERO
            }
            Some(end) => {
                let seen = if self.is_known { Sighting::live(now) } else { Sighting::found(now, end) };
                self.end.get_or_insert(seen).age(now)
            }
        };
        (begun.age(now), ended)
    }

    /// Notes what has ended; gives how many Pods have ended well and badly. `recorded` are the counts of the status.
    pub fn count<'p>(&mut self, ended: impl Iterator<Item = (&'p str, PodResult)>, recorded: (i32, i32)) -> (i32, i32) {
        for (uid, result) in ended {
            self.results.entry(uid.to_owned()).or_insert(result == PodResult::Succeeded);
        }
        let count = |well: bool| number(self.results.values().filter(|result| **result == well).count());
        let seen = (count(true), count(false));
        let left = |recorded: i32, seen: i32| recorded.max(0).saturating_sub(seen).max(0);
        let (well, badly) = *self.earlier.get_or_insert((left(recorded.0, seen.0), left(recorded.1, seen.1)));
        (well.saturating_add(seen.0), badly.saturating_add(seen.1))
    }

    /// Notes that a Pod did not take the containers.
    pub fn refuse(&mut self, uid: &str, pod: &str, why: String, now: Now) {
        let times = self.refused.get(uid).map_or(0, |refusal| refusal.times);
        let refusal = Refusal { pod: pod.to_owned(), times: times.saturating_add(1), last: now.mono, why };
        self.refused.insert(uid.to_owned(), refusal);
    }
}

/// A count as a status has it.
pub fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
