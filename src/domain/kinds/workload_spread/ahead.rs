//! Places that a replica of the webhook records ahead of the Pods that take them: while Pods come fast, one write is for many of
//! them, and most need not wait for one.
//!
//! Such a record counts as any other, so that no limit is passed. It is given to one Pod, which names its key in the note of its
//! subset; one that is not used in time is taken away by its replica, or by the controller as that of a Pod that has not come. A
//! replica takes a part of the room, a small one beside others, and for a moment. Whoever finds a subset full waits until no other
//! replica may have an unused place in it, for 0.4 s at most, so that it is filled before the next one.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    count::{in_order_of, missing, there},
    spec::SpreadSpec,
};
use crate::api::apps::workload_spread::WorkloadSpreadStatus;

/// How long Pods are counted to learn how fast they come.
pub const WINDOW: Duration = Duration::from_millis(250);
/// The longest time for which a place is kept.
pub const LONGEST: Duration = Duration::from_millis(300);
/// What the write takes by which places are given back, in milliseconds.
const GIVING_BACK: i64 = 50;
/// With fewer Pods in the window each one is recorded by itself.
pub const FAST: usize = 4;
/// A replica keeps this part of the room at most beside others: with three of them the room is not used up before what they keep.
const PART: i32 = 8;
const MOST: usize = 128;
/// With less room each Pod is recorded by itself. Who finds the subset full waits until nobody may keep an unused place in it, and
/// even one place would be kept for longer than the last ones take to be used up.
const LAST: i32 = 24;
/// The same two for a replica that sees no place of another one on record. It writes less often, since a write costs the API server
/// more the more Pods are on record, and most likely nobody waits for its places. Two that begin at the same moment still fit.
const PART_ALONE: i32 = 3;
const LAST_ALONE: i32 = 4;
/// No name of a Pod begins so: a colon is in none.
const PREFIX: &str = "ahead:";

/// How many places are kept where there is room for so many Pods, and so many have come in the [`WINDOW`]. `is_alone`: no place of
/// another replica is on record there.
pub fn wanted(room: i32, demand: usize, is_alone: bool) -> usize {
    let (part, last) = if is_alone { (PART_ALONE, LAST_ALONE) } else { (PART, LAST) };
    let part = usize::try_from(room / part).unwrap_or_default();
    if demand < FAST || room < last { 0 } else { demand.min(part).min(MOST) }
}

/// How long so many places are kept: twice the time in which they are used up.
pub fn lasts(count: usize, demand: usize) -> Duration {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let demand = u32::try_from(demand.max(1)).unwrap_or(u32::MAX);
    (WINDOW.saturating_mul(2).saturating_mul(count) / demand).min(LONGEST)
}

/// The key of a record. It says until when the place is kept, by the clock of its replica, and which replica that is.
pub fn key(until: Timestamp, replica: &str, number: u64) -> String {
    format!("{PREFIX}{}:{replica}:{number}", until.as_millisecond())
}

/// Until when a record of another replica may be unused. None: it is of a Pod, or of this replica.
fn kept_by_other(key: &str, replica: &str) -> Option<i64> {
    let (until, rest) = key.strip_prefix(PREFIX)?.split_once(':')?;
    let (of, _) = rest.split_once(':')?;
    (of != replica).then(|| until.parse().ok()).flatten()
}

/// Whether a place of another replica is on record in a subset, whatever its time: their clocks may be others.
pub fn has_others(status: &WorkloadSpreadStatus, version: &str, subset: &str, replica: &str) -> bool {
    let subsets = status.versioned_subset_statuses.get(version).into_iter().flatten();
    let mut keys = subsets.filter(|known| known.name == subset).flat_map(|known| known.creating_pods.keys());
    keys.any(|key| kept_by_other(key, replica).is_some())
}

/// How long other replicas may keep places in the subsets before this one, and take to give them back. None: they keep none, or
/// their clocks are others.
pub fn kept_by_others(
    status: &WorkloadSpreadStatus,
    version: &str,
    before: &[&str],
    replica: &str,
    now: Timestamp,
) -> Option<Duration> {
    let subsets = status.versioned_subset_statuses.get(version).into_iter().flatten();
    let subsets = subsets.filter(|subset| before.contains(&subset.name.as_str()));
    let keys = subsets.flat_map(|subset| subset.creating_pods.keys());
    let given_back = |key: &String| kept_by_other(key, replica)?.checked_add(GIVING_BACK);
    let left = keys.filter_map(|key| u64::try_from(given_back(key)?.checked_sub(now.as_millisecond())?).ok());
    let longest = LONGEST + Duration::from_millis(GIVING_BACK.unsigned_abs());
    left.map(Duration::from_millis).filter(|left| !left.is_zero() && *left <= longest).max()
}

/// Records places in the subset `index` of a version.
pub fn record(
    spec: &SpreadSpec,
    limits: &[Option<i32>],
    status: &mut WorkloadSpreadStatus,
    (version, index): (&str, usize),
    keys: &[String],
    now: Timestamp,
) {
    let recorded = status.versioned_subset_statuses.remove(version);
    let mut all = in_order_of(spec, recorded.unwrap_or_default());
    if let Some(entry) = all.get_mut(index) {
        entry.creating_pods.extend(keys.iter().map(|key| (key.clone(), now)));
        entry.missing_replicas = missing(there(entry), limits.get(index).copied().flatten());
    }
    status.versioned_subset_statuses.insert(version.to_owned(), all);
}

/// Whether a place is on record.
pub fn is_recorded(status: &WorkloadSpreadStatus, (version, subset, key): (&str, &str, &str)) -> bool {
    let mut subsets = status.versioned_subset_statuses.get(version).into_iter().flatten();
    subsets.any(|known| known.name == subset && known.creating_pods.contains_key(key))
}

/// Takes the record of a place away that nobody has used.
pub fn give_back(
    limits: &[Option<i32>],
    spec: &SpreadSpec,
    status: &mut WorkloadSpreadStatus,
    (version, subset, key): (&str, &str, &str),
) {
    let Some(all) = status.versioned_subset_statuses.get_mut(version) else { return };
    let Some(entry) = all.iter_mut().find(|entry| entry.name == subset) else { return };
    if entry.creating_pods.remove(key).is_some() {
        let limit = spec.position(subset).and_then(|index| limits.get(index).copied().flatten());
        entry.missing_replicas = missing(there(entry), limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::apps::workload_spread::SpreadSubsetStatus;

    #[test]
    fn a_small_part_of_the_room_is_kept_and_only_while_pods_come_fast() {
        for (room, demand, places, alone) in [
            (1000, 0, 0, 0),
            (1000, 3, 0, 0),
            (1000, 4, 4, 4),
            (1000, 50, 50, 50),
            (100, 50, 12, 33),
            (24, 50, 3, 8),
            (23, 50, 0, 7),
            (4, 50, 0, 1),
            (3, 50, 0, 0),
            (0, 50, 0, 0),
            (-1, 50, 0, 0),
            (i32::MAX, usize::MAX, 128, 128),
        ] {
            assert_eq!((wanted(room, demand, false), wanted(room, demand, true)), (places, alone), "{room} {demand}");
        }
    }

    #[test]
    fn places_are_kept_for_twice_the_time_that_they_are_enough_for() {
        for (count, demand, millis) in [(10, 10, 300), (5, 10, 250), (1, 10, 50), (20, 10, 300), (1, 0, 300), (0, 4, 0)]
        {
            assert_eq!(lasts(count, demand), Duration::from_millis(millis), "{count} {demand}");
        }
    }

    /// Two replicas, each of which gets so many Pods in a window.
    #[test]
    fn the_last_places_that_are_kept_are_given_back_before_the_subset_is_full() {
        for demand in FAST..=30 {
            let places = wanted(LAST, demand, false);
            let kept = lasts(places, demand) + Duration::from_millis(GIVING_BACK.unsigned_abs());
            let used_up = WINDOW * u32::try_from(LAST).unwrap() / u32::try_from(2 * demand).unwrap();
            assert!(places > 0 && kept <= used_up, "{demand}: {kept:?} and {used_up:?}");
        }
    }

    #[test]
    fn places_of_others_are_waited_for_no_longer_than_they_are_kept() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let after = |millis: i64| now + jiff::SignedDuration::from_millis(millis);
        let wait = |keys: &[String], subsets: &[&str]| {
            let creating_pods = keys.iter().map(|key| (key.clone(), now)).collect();
            let subset = SpreadSubsetStatus { name: "a".into(), creating_pods, ..SpreadSubsetStatus::default() };
            let versioned_subset_statuses = [("v".to_owned(), vec![subset])].into();
            let status = WorkloadSpreadStatus { versioned_subset_statuses, ..WorkloadSpreadStatus::default() };
            kept_by_others(&status, "v", subsets, "me", now).map(|left| left.as_millis())
        };
        for (keys, millis) in [
            (vec![], None),
            (vec![key(after(100), "me", 1)], None),
            (vec![key(after(100), "you", 1)], Some(150)),
            (vec![key(after(100), "you", 1), key(after(300), "they", 7)], Some(350)),
            (vec![key(after(-49), "you", 1), key(after(-300), "you", 1)], Some(1)),
            (vec![key(after(-50), "you", 1)], None),
            // The clock of the other one is ahead by more than anything is kept.
            (vec![key(after(301), "you", 1)], None),
            (vec!["web-1".into(), "ahead".into(), "ahead:".into(), "ahead:x:you:1".into(), "ahead:1".into()], None),
        ] {
            assert_eq!(wait(&keys, &["a"]), millis, "{keys:?}");
            assert_eq!(wait(&keys, &["b"]), None);
        }
    }
}
