//! What is remembered of a job between two looks at it. Everything can be lost.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::state::PodResult;
use crate::{
    api::{apps::ephemeral_job::EphemeralJob, labels},
    k8s::time::{Now, Sighting, doubled},
};

/// The first pause after a Pod did not take the containers; it doubles with each refusal.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// After this long without a word of kubelet about the containers in a Pod it is told.
const SILENCE: Duration = Duration::from_secs(60);

/// The most Pods that the annotation [`labels::COUNTED_PODS`] names. Of further ones that go and end while no manager runs, one
/// may stay uncounted.
const MOST_NAMED: usize = 2000;

/// What the annotation [`labels::COUNTED_PODS`] says. An older one does no harm: nobody is counted twice by it.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct CountedPods {
    succeeded: i32,
    failed: i32,
    /// The begins of their UIDs, without those that had gone when the counting process began.
    pods: Vec<String>,
}

impl CountedPods {
    /// What a job says; nothing readable counts as nothing.
    fn of(job: &EphemeralJob) -> Self {
        let text = job.metadata.annotations.as_ref().and_then(|all| all.get(labels::COUNTED_PODS));
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }
}

/// Of a UID what distinguishes it, 48 random bits.
fn begin_of(uid: &str) -> &str {
    uid.get(..13).unwrap_or(uid)
}

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
    /// Since when kubelet has said nothing about the containers in a Pod, by UID, on the monotonic clock.
    pub silent: HashMap<String, Duration>,
    /// How many calls go out at a time.
    pub window: usize,
    /// How many Pods the last look went over.
    pub pods: usize,
    /// The last event.
    pub said: String,
    /// When the annotation with the Pods that were counted was written, on the monotonic clock.
    pub noted: Option<Duration>,
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
        let pause = doubled(REFUSED_PAUSE, self.times.saturating_sub(1), LONGEST_PAUSE);
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

    /// Notes what has ended; gives how many Pods have ended well and badly.
    pub fn count<'p>(&mut self, ended: impl Iterator<Item = (&'p str, PodResult)>, job: &EphemeralJob) -> (i32, i32) {
        for (uid, result) in ended {
            self.results.entry(uid.to_owned()).or_insert(result == PodResult::Succeeded);
        }
        let count = |well: bool| number(self.results.values().filter(|result| **result == well).count());
        let seen = (count(true), count(false));
        let (well, badly) = match self.earlier {
            Some(earlier) => earlier,
            None => *self.earlier.insert(earlier(&self.results, seen, job)),
        };
        (well.saturating_add(seen.0), badly.saturating_add(seen.1))
    }

    /// The annotation [`labels::COUNTED_PODS`] as it should be, if it should change: it lacks somebody who is counted. One that
    /// names Pods that have gone since says the same.
    pub fn counted_pods(&self, job: &EphemeralJob) -> Option<String> {
        let (earlier, pods) = (self.earlier?, self.results.len());
        if pods == 0 || pods > MOST_NAMED {
            return None;
        }
        let ended = |well: bool| number(self.results.values().filter(|result| **result == well).count());
        let counted = CountedPods {
            succeeded: earlier.0.saturating_add(ended(true)),
            failed: earlier.1.saturating_add(ended(false)),
            pods: self.results.keys().map(|uid| begin_of(uid).to_owned()).collect(),
        };
        let before = CountedPods::of(job);
        if (before.succeeded, before.failed) == (counted.succeeded, counted.failed) {
            return None;
        }
        serde_json::to_string(&counted).ok()
    }

    /// Notes about the containers in which Pods kubelet has said nothing.
    pub fn note_silent<'p>(&mut self, pods: impl Iterator<Item = &'p str>, now: Now) {
        let since = |uid: &str| self.silent.get(uid).copied().unwrap_or(now.mono);
        self.silent = pods.map(|uid| (uid.to_owned(), since(uid))).collect();
    }

    /// How long until it is told that kubelet has said nothing about the containers in a Pod. None: it has.
    pub fn silence_left(&self, uid: &str, now: Now) -> Option<Duration> {
        self.silent.get(uid).map(|since| SILENCE.saturating_sub(now.mono.saturating_sub(*since)))
    }

    /// Notes that a Pod did not take the containers.
    pub fn refuse(&mut self, uid: &str, pod: &str, why: String, now: Now) {
        let times = self.refused.get(uid).map_or(0, |refusal| refusal.times);
        let refusal = Refusal { pod: pod.to_owned(), times: times.saturating_add(1), last: now.mono, why };
        self.refused.insert(uid.to_owned(), refusal);
    }
}

/// How many Pods were counted that are not among `results`, when a process looks at a job first.
fn earlier(results: &BTreeMap<String, bool>, seen: (i32, i32), job: &EphemeralJob) -> (i32, i32) {
    let recorded = job.status.as_ref().map_or((0, 0), |status| (status.succeeded, status.failed));
    let counted = CountedPods::of(job);
    let known: HashSet<&str> = counted.pods.iter().map(String::as_str).collect();
    let new = |well: bool| {
        number(results.iter().filter(|(uid, result)| **result == well && !known.contains(begin_of(uid))).count())
    };
    // Either may be the older one; both are at most what has happened.
    let left = |recorded: i32, counted: i32, new: i32, seen: i32| {
        recorded.max(counted.max(0).saturating_add(new)).saturating_sub(seen).max(0)
    };
    (left(recorded.0, counted.succeeded, new(true), seen.0), left(recorded.1, counted.failed, new(false), seen.1))
}

/// A count as a status has it.
pub fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
