//! What needs no call while Pods come fast: places that this replica has recorded ahead of the Pods that take them, see
//! [`crate::domain::kinds::workload_spread::ahead`].
//!
//! A place that is here is on record, and is given to one Pod at most. What is lost, as by an answer that never came, the
//! controller takes away as the record of a Pod that has not come.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::{LIMIT, Question, Spreads};
use crate::{
    api::apps::workload_spread::WorkloadSpread,
    domain::kinds::workload_spread::{
        ahead::{self, FAST, WINDOW},
        count::{MOST_VERSIONS, Place, passes_over, places},
        spec::SpreadSpec,
    },
    runtime::{lock, watches::ObjectKey},
};

/// While Pods come fast, a status that was read less long ago is taken as it is, and an older one is read again in the background.
const READ_AGAIN: Duration = Duration::from_millis(100);
/// One that was read longer ago is read again before a full subset is passed over.
pub(super) const LONGEST_UNREAD: Duration = Duration::from_millis(500);

/// The UID and generation of a WorkloadSpread: places are of the subsets that it had.
pub(super) type Source = (String, i64);

pub(super) fn source(spread: &WorkloadSpread) -> Source {
    (spread.metadata.uid.clone().unwrap_or_default(), spread.metadata.generation.unwrap_or_default())
}

/// A place that nobody has used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnusedPlace {
    pub(super) version: String,
    pub(super) subset: String,
    pub(super) key: String,
}

/// Places that are about to be recorded.
#[derive(Clone, Debug)]
pub(super) struct PlacesAhead {
    pub(super) version: String,
    pub(super) index: usize,
    pub(super) subset: String,
    pub(super) keys: Vec<String>,
    /// Until when they may be given away.
    until: Instant,
}

impl PlacesAhead {
    /// The same, not used by anybody.
    pub(super) fn unused(&self) -> Vec<UnusedPlace> {
        let of =
            |key: &String| UnusedPlace { version: self.version.clone(), subset: self.subset.clone(), key: key.clone() };
        self.keys.iter().map(of).collect()
    }
}

/// The places of all WorkloadSpreads.
#[derive(Debug)]
pub(super) struct Ahead {
    /// What this replica is called in keys.
    replica: String,
    number: AtomicU64,
    spreads: Mutex<HashMap<ObjectKey, SpreadPlaces>>,
}

#[derive(Debug, Default)]
struct SpreadPlaces {
    of: Source,
    versions: HashMap<String, VersionPlaces>,
    unused: Vec<UnusedPlace>,
    /// When its status was read last at the API server.
    read: Option<Instant>,
    is_being_read: bool,
}

#[derive(Debug, Default)]
struct VersionPlaces {
    demand: SpreadDemand,
    index: usize,
    subset: String,
    keys: VecDeque<(String, Instant)>,
    /// How many there were when some were recorded last.
    full: usize,
    is_asked_for: bool,
}

/// How many Pods came in this window and in the one before.
#[derive(Debug, Default)]
struct SpreadDemand {
    begun: Option<Instant>,
    now: usize,
    before: usize,
}

impl SpreadDemand {
    fn roll(&mut self, now: Instant) {
        let gone = self.begun.map(|begun| now.saturating_duration_since(begun));
        match gone {
            Some(gone) if gone < WINDOW => return,
            Some(gone) if gone < 2 * WINDOW => self.before = self.now,
            _ => self.before = 0,
        }
        (self.begun, self.now) = (Some(now), 0);
    }

    fn of(&mut self, now: Instant) -> usize {
        self.roll(now);
        self.now.max(self.before)
    }
}

impl VersionPlaces {
    /// Takes out what may not be given away any more.
    fn expire(&mut self, version: &str, now: Option<Instant>, unused: &mut Vec<UnusedPlace>) {
        let is_old = |until: Instant| now.is_none_or(|now| until <= now);
        let old: VecDeque<_>;
        (old, self.keys) = std::mem::take(&mut self.keys).into_iter().partition(|(_, until)| is_old(*until));
        let subset = &self.subset;
        let of = |(key, _): (String, Instant)| UnusedPlace { version: version.to_owned(), subset: subset.clone(), key };
        unused.extend(old.into_iter().map(of));
    }

    fn is_low(&self) -> bool {
        self.keys.len() <= self.full / 2
    }
}

impl SpreadPlaces {
    /// Those of other subsets than the WorkloadSpread has now are not used any more.
    fn enter(&mut self, of: &Source, now: Instant) {
        let is_other = self.of != *of;
        for (version, places) in &mut self.versions {
            places.expire(version, (!is_other).then_some(now), &mut self.unused);
        }
        if is_other {
            (self.of, self.read) = (of.clone(), None);
        }
    }
}

impl Ahead {
    /// None yet.
    pub(super) fn new(replica: String) -> Self {
        Self { replica, number: AtomicU64::new(0), spreads: Mutex::default() }
    }

    pub(super) fn replica(&self) -> &str {
        &self.replica
    }

    /// A Pod of a version has come: how many have, in a window.
    pub(super) fn asked(&self, key: &ObjectKey, version: &str, now: Instant) -> usize {
        let mut spreads = lock(&self.spreads);
        let spread = spreads.entry(key.clone()).or_default();
        if !spread.versions.contains_key(version) && spread.versions.len() >= MOST_VERSIONS {
            spread.versions.retain(|_, places| !places.keys.is_empty() || places.demand.of(now) > 0);
        }
        if !spread.versions.contains_key(version) && spread.versions.len() >= MOST_VERSIONS {
            return 0;
        }
        let demand = &mut spread.versions.entry(version.to_owned()).or_default().demand;
        demand.roll(now);
        demand.now += 1;
        demand.of(now)
    }

    /// The subset in which there are places for Pods of a version.
    pub(super) fn subset(&self, key: &ObjectKey, of: &Source, version: &str, now: Instant) -> Option<usize> {
        let mut spreads = lock(&self.spreads);
        let spread = spreads.get_mut(key)?;
        spread.enter(of, now);
        let places = spread.versions.get(version)?;
        (!places.keys.is_empty()).then_some(places.index)
    }

    /// A place in a subset, and whether hardly any are left.
    pub(super) fn take(
        &self,
        key: &ObjectKey,
        of: &Source,
        version: &str,
        index: usize,
        now: Instant,
    ) -> Option<(String, bool)> {
        let mut spreads = lock(&self.spreads);
        let spread = spreads.get_mut(key)?;
        spread.enter(of, now);
        let places = spread.versions.get_mut(version).filter(|places| places.index == index)?;
        let (taken, _) = places.keys.pop_front()?;
        Some((taken, places.is_low()))
    }

    /// More places are to be asked for. False: that is so already.
    fn ask_for(&self, key: &ObjectKey, version: &str) -> bool {
        let mut spreads = lock(&self.spreads);
        let places = spreads.get_mut(key).and_then(|spread| spread.versions.get_mut(version));
        places.is_some_and(|places| !std::mem::replace(&mut places.is_asked_for, true))
    }

    /// The question for more places has been answered.
    fn answered(&self, key: &ObjectKey, version: &str) {
        if let Some(places) = lock(&self.spreads).get_mut(key).and_then(|spread| spread.versions.get_mut(version)) {
            places.is_asked_for = false;
        }
    }

    /// The places that are to be recorded in a subset, which has room for so many Pods. `is_written`: there is something to write
    /// anyway. `is_alone`: no other replica keeps places there.
    pub(super) fn more(
        &self,
        (key, of): (&ObjectKey, &Source),
        version: &str,
        (index, subset, room): (usize, &str, i32),
        (is_written, is_alone): (bool, bool),
        (now, wall): (Instant, Timestamp),
    ) -> Option<PlacesAhead> {
        let mut spreads = lock(&self.spreads);
        let spread = spreads.get_mut(key)?;
        spread.enter(of, now);
        let places = spread.versions.get_mut(version)?;
        let left = if places.index == index { places.keys.len() } else { 0 };
        let demand = places.demand.of(now);
        let wanted = ahead::wanted(room.saturating_add(i32::try_from(left).unwrap_or(i32::MAX)), demand, is_alone);
        let count = wanted.saturating_sub(left);
        // Without random numbers another replica may be called the same.
        if count == 0 || self.replica.is_empty() || !(is_written || left <= wanted / 2) {
            return None;
        }
        let lasts = ahead::lasts(wanted, demand);
        let until = wall.checked_add(SignedDuration::try_from(lasts).unwrap_or_default()).unwrap_or(wall);
        let number = self.number.fetch_add(count as u64, Ordering::Relaxed);
        let keys = (0..count as u64).map(|i| ahead::key(until, &self.replica, number.wrapping_add(i))).collect();
        let (version, subset) = (version.to_owned(), subset.to_owned());
        Some(PlacesAhead { version, index, subset, keys, until: now + lasts })
    }

    /// They are on record.
    fn add(&self, (key, of): (&ObjectKey, &Source), new: PlacesAhead, now: Instant) {
        let mut spreads = lock(&self.spreads);
        // It was deleted meanwhile, or is another one: then these are unused from the first.
        let spread = spreads.entry(key.clone()).or_default();
        spread.enter(of, now);
        let SpreadPlaces { versions, unused, .. } = spread;
        let places = versions.entry(new.version.clone()).or_default();
        if places.index != new.index || places.subset != new.subset {
            places.expire(&new.version, None, unused);
        }
        (places.index, places.subset) = (new.index, new.subset);
        places.keys.extend(new.keys.into_iter().map(|key| (key, new.until)));
        places.full = places.keys.len();
    }

    /// The places that are to be given back.
    pub(super) fn unused(&self, key: &ObjectKey, of: &Source, now: Instant) -> Vec<UnusedPlace> {
        let mut spreads = lock(&self.spreads);
        let Some(spread) = spreads.get_mut(key) else { return Vec::new() };
        spread.enter(of, now);
        spread.unused.clone()
    }

    /// They are not on record any more.
    pub(super) fn given_back(&self, key: &ObjectKey, back: &[UnusedPlace]) {
        if let Some(spread) = lock(&self.spreads).get_mut(key) {
            spread.unused.retain(|place| !back.contains(place));
        }
    }

    /// Its status was read, by a call that began then.
    pub(super) fn was_read(&self, key: &ObjectKey, of: &Source, at: Instant) {
        if let Some(spread) = lock(&self.spreads).get_mut(key) {
            spread.enter(of, at);
            spread.read = spread.read.max(Some(at));
        }
    }

    /// How long ago its status was read.
    pub(super) fn age(&self, key: &ObjectKey, of: &Source, now: Instant) -> Option<Duration> {
        let mut spreads = lock(&self.spreads);
        let spread = spreads.get_mut(key)?;
        spread.enter(of, now);
        Some(now.saturating_duration_since(spread.read?))
    }

    /// Whether Pods of a version come fast, and the status was read a moment ago.
    pub(super) fn is_fresh(&self, key: &ObjectKey, of: &Source, version: &str, now: Instant) -> bool {
        if self.age(key, of, now).is_none_or(|age| age >= READ_AGAIN) {
            return false;
        }
        let mut spreads = lock(&self.spreads);
        let places = spreads.get_mut(key).and_then(|spread| spread.versions.get_mut(version));
        places.is_some_and(|places| places.demand.of(now) >= FAST)
    }

    /// It is to be read. False: somebody does so already.
    fn begin_reading(&self, key: &ObjectKey) -> bool {
        let mut spreads = lock(&self.spreads);
        spreads.get_mut(key).is_some_and(|spread| !std::mem::replace(&mut spread.is_being_read, true))
    }

    fn reading_ended(&self, key: &ObjectKey) {
        if let Some(spread) = lock(&self.spreads).get_mut(key) {
            spread.is_being_read = false;
        }
    }

    pub(super) fn forget(&self, key: &ObjectKey) {
        lock(&self.spreads).remove(key);
    }
}

impl Spreads {
    /// The subset of a new Pod, and the key of its record where there is a limit, if that takes no call: a place in the subset is
    /// on record, or any number of Pods may go there.
    pub(super) fn take_ahead(
        self: &Arc<Self>,
        spread: &WorkloadSpread,
        spec: &SpreadSpec,
        version: &str,
    ) -> Option<(usize, Option<String>)> {
        if spec.needs_total() {
            // What the workload wants may be another number by now.
            return None;
        }
        let (key, of, now) = (ObjectKey::of(spread), source(spread), Instant::now());
        // Nothing is remembered of one that was deleted meanwhile: nobody would forget it.
        self.spreads.get(&key)?;
        let is_fast = self.ahead.asked(&key, version, now) >= FAST;
        let status = spread.status.as_ref().filter(|status| status.versioned_subset_statuses.contains_key(version))?;
        let places = places(spec, status, &spec.limits(0), version);
        let own = self.ahead.subset(&key, &of, version, now);
        let has_place =
            |(index, place): (usize, &Place)| place.is_schedulable && (own == Some(index) || !place.is_full());
        let index = places.iter().enumerate().position(has_place)?;
        if passes_over(&places, index) && !(is_fast && self.are_full_before((spread, spec), version, index, now)) {
            return None;
        }
        if places[index].max.is_none() {
            return Some((index, None));
        }
        let (taken, is_low) = self.ahead.take(&key, &of, version, index, now)?;
        if is_low && self.ahead.ask_for(&key, version) {
            let (this, version) = (self.clone(), version.to_owned());
            tokio::spawn(async move {
                let _ = tokio::time::timeout(LIMIT, this.question(&key, Question::More(version.clone()))).await;
                this.ahead.answered(&key, &version);
            });
        }
        Some((index, Some(taken)))
    }

    /// Whether the subsets before one, which are full by what the watch has brought, were so a moment ago at the API server, and
    /// nobody keeps an unused place there.
    fn are_full_before(
        self: &Arc<Self>,
        (spread, spec): (&WorkloadSpread, &SpreadSpec),
        version: &str,
        index: usize,
        now: Instant,
    ) -> bool {
        let (key, of) = (ObjectKey::of(spread), source(spread));
        let is_kept = !self.ahead.unused(&key, &of, now).is_empty()
            || self.kept_by_others(spread, spec, (version, index), Duration::ZERO).is_some();
        if is_kept {
            return false;
        }
        let Some(age) = self.ahead.age(&key, &of, now).filter(|age| *age <= LONGEST_UNREAD) else { return false };
        if age >= READ_AGAIN && self.ahead.begin_reading(&key) {
            let this = self.clone();
            tokio::spawn(async move {
                let _ = tokio::time::timeout(LIMIT, this.reread(&key)).await;
                this.ahead.reading_ended(&key);
            });
        }
        true
    }

    /// Notes records that do not count. The next write of this turn removes them, or a later turn if this one ends first.
    pub(super) fn take_back(self: &Arc<Self>, key: &ObjectKey, of: &Source, records: Vec<UnusedPlace>) {
        if self.spreads.get(key).is_none() {
            return;
        }
        lock(&self.ahead.spreads).entry(key.clone()).or_default().unused.extend(records);
        self.give_back_after(key, of, Instant::now() + LIMIT);
    }

    /// Gives back what is unused by then.
    fn give_back_after(self: &Arc<Self>, key: &ObjectKey, of: &Source, until: Instant) {
        let (this, key, of) = (self.clone(), key.clone(), of.clone());
        tokio::spawn(async move {
            tokio::time::sleep_until(until + Duration::from_millis(1)).await;
            if !this.ahead.unused(&key, &of, Instant::now()).is_empty() {
                let _ = tokio::time::timeout(LIMIT, this.question(&key, Question::GiveBack)).await;
            }
        });
    }

    /// They are on record: what is not used in time is given back.
    pub(super) fn keep_ahead(self: &Arc<Self>, key: &ObjectKey, of: &Source, new: PlacesAhead) {
        if self.spreads.get(key).is_none() {
            return;
        }
        let until = new.until;
        self.ahead.add((key, of), new, Instant::now());
        self.give_back_after(key, of, until);
    }
}
