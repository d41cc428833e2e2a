//! Which subset the next Pod goes to, by what the status records, and what is recorded of it.
//!
//! A Pod that is created where there is a limit is recorded before the answer is given; so is one that is deleted. The
//! controller takes the record away when it has seen the Pod, or after a while without it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use super::spec::SpreadSpec;
use crate::{
    api::apps::workload_spread::{SpreadSubsetStatus, WorkloadSpreadStatus},
    domain::workload::{allocation::next_place, subset::SCHEDULABLE},
};

/// The most versions that are recorded: labels of Pods are anybody's text.
pub const MOST_VERSIONS: usize = 64;

/// What is asked about one Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpreadAsk {
    /// It is being created.
    Create {
        /// Its name, or a UID of its own.
        key: String,
        /// Its version.
        version: String,
    },
    /// It is being deleted.
    Delete {
        /// Its name.
        pod: String,
        /// The subset in its annotation.
        subset: String,
        /// Its version.
        version: String,
    },
}

impl SpreadAsk {
    /// The version of the Pod.
    pub fn version(&self) -> &str {
        match self {
            Self::Create { version, .. } | Self::Delete { version, .. } => version,
        }
    }
}

/// What is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpreadAnswer {
    /// It goes to the subset of this place, which had so many Pods before.
    Subset(usize, i32),
    /// Every subset is full, or gets no Pods for now.
    Full,
    /// No more versions are recorded.
    TooManyVersions,
    /// There is nothing to say: it is no creation.
    Nothing,
}

impl SpreadAnswer {
    /// The place in the order of so many subsets: behind all of them if every one is full, before them if none is looked for.
    pub fn index(self, subsets: usize) -> usize {
        match self {
            Self::Subset(index, _) => index,
            Self::Full => subsets,
            Self::TooManyVersions | Self::Nothing => 0,
        }
    }
}

/// What is known of a subset when a Pod is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// How many Pods count against its limit.
    pub there: i32,
    /// Its limit.
    pub max: Option<i32>,
    /// Whether it gets Pods.
    pub is_schedulable: bool,
}

impl Place {
    /// Whether there is no room for one more.
    pub fn is_full(self) -> bool {
        self.max.is_some_and(|max| self.there >= max)
    }
}

/// Whether a subset that gets Pods comes before a place in the order: it is full, by what is known, which may be outdated.
pub fn passes_over(places: &[Place], index: usize) -> bool {
    places.iter().take(index).any(|place| place.is_schedulable)
}

/// Whether a subset gets Pods, for each of them in the order of the spec.
pub fn schedulable(spec: &SpreadSpec, status: &WorkloadSpreadStatus) -> Vec<bool> {
    let is_refused = |name: &str| {
        let known = status.subset_statuses.iter().find(|subset| subset.name == name);
        let conditions = known.into_iter().flat_map(|subset| &subset.conditions);
        spec.reschedule_after.is_some()
            && conditions.into_iter().any(|condition| condition.type_ == SCHEDULABLE && condition.status == "False")
    };
    spec.subsets.iter().map(|subset| !is_refused(&subset.name)).collect()
}

/// The subsets of one version in the order of the spec. What is not recorded of a subset is nothing.
pub fn entries(spec: &SpreadSpec, recorded: Option<&Vec<SpreadSubsetStatus>>) -> Vec<SpreadSubsetStatus> {
    in_order_of(spec, recorded.cloned().unwrap_or_default())
}

/// The same of what is moved.
pub(super) fn in_order_of(spec: &SpreadSpec, recorded: Vec<SpreadSubsetStatus>) -> Vec<SpreadSubsetStatus> {
    let mut known: BTreeMap<String, SpreadSubsetStatus> =
        recorded.into_iter().map(|subset| (subset.name.clone(), subset)).collect();
    let of = |name: &String| {
        let new = || SpreadSubsetStatus { name: name.clone(), ..SpreadSubsetStatus::default() };
        known.remove(name).unwrap_or_else(new)
    };
    spec.subsets.iter().map(|subset| &subset.name).map(of).collect()
}

/// How many Pods count against the limit of a subset.
pub fn there(entry: &SpreadSubsetStatus) -> i32 {
    let many = |map: &BTreeMap<String, Timestamp>| i32::try_from(map.len()).unwrap_or(i32::MAX);
    entry.replicas.max(0).saturating_add(many(&entry.creating_pods)).saturating_sub(many(&entry.deleting_pods)).max(0)
}

/// How many more Pods a subset may get; -1: there is no limit.
pub fn missing(there: i32, max: Option<i32>) -> i32 {
    max.map_or(-1, |max| max.saturating_sub(there).max(0))
}

/// The places of one version.
pub fn places(spec: &SpreadSpec, status: &WorkloadSpreadStatus, limits: &[Option<i32>], version: &str) -> Vec<Place> {
    let recorded = status.versioned_subset_statuses.get(version);
    let known: BTreeMap<&str, i32> =
        recorded.into_iter().flatten().map(|subset| (subset.name.as_str(), there(subset))).collect();
    let there = spec.subsets.iter().map(|subset| known.get(subset.name.as_str()).copied().unwrap_or_default());
    let all = there.zip(limits).zip(schedulable(spec, status));
    all.map(|((there, max), is_schedulable)| Place { there, max: *max, is_schedulable }).collect()
}

/// Answers one question, and records the answer in the status where something is counted.
pub fn answer(
    spec: &SpreadSpec,
    limits: &[Option<i32>],
    status: &mut WorkloadSpreadStatus,
    ask: &SpreadAsk,
    now: Timestamp,
) -> SpreadAnswer {
    let version = ask.version();
    let places = places(spec, status, limits, version);
    let recorded = status.versioned_subset_statuses.get(version);
    let known = |subset: &str| recorded.into_iter().flatten().find(|known| known.name == subset);
    let (index, answer) = match ask {
        SpreadAsk::Create { key, .. } => {
            let is_recorded = |name: &str| known(name).is_some_and(|known| known.creating_pods.contains_key(key));
            // Beyond the limit it may be one that does not count, see `added.rs`.
            let counts = |index: &usize| limits[*index].is_none_or(|max| places[*index].there <= max);
            let recorded_in = spec.subsets.iter().position(|subset| is_recorded(&subset.name));
            if let Some(index) = recorded_in.filter(counts) {
                return SpreadAnswer::Subset(index, places[index].there.saturating_sub(1));
            }
            let next = next_place(places.iter().map(|place| (place.there, place.max, place.is_schedulable)));
            let Some(index) = next else { return SpreadAnswer::Full };
            let answer = SpreadAnswer::Subset(index, places[index].there);
            if limits[index].is_none() {
                return answer;
            }
            if recorded.is_none() && status.versioned_subset_statuses.len() >= MOST_VERSIONS {
                return SpreadAnswer::TooManyVersions;
            }
            (index, answer)
        }
        SpreadAsk::Delete { pod, subset, .. } => {
            let Some(index) = spec.position(subset) else { return SpreadAnswer::Nothing };
            let can_go = |known: &SpreadSubsetStatus| known.replicas > 0 && !known.deleting_pods.contains_key(pod);
            if limits[index].is_none() || !known(subset).is_some_and(can_go) {
                return SpreadAnswer::Nothing;
            }
            (index, SpreadAnswer::Nothing)
        }
    };
    debug_assert!(limits[index].is_some(), "only what has a limit is recorded");
    // Many questions are answered one after another: what is recorded is moved, not copied.
    let recorded = status.versioned_subset_statuses.remove(version);
    let mut all = in_order_of(spec, recorded.unwrap_or_default());
    match ask {
        SpreadAsk::Create { key, .. } => all[index].creating_pods.insert(key.clone(), now),
        SpreadAsk::Delete { pod, .. } => all[index].deleting_pods.insert(pod.clone(), now),
    };
    for (entry, max) in all.iter_mut().zip(limits) {
        entry.missing_replicas = missing(there(entry), *max);
    }
    status.versioned_subset_statuses.insert(version.to_owned(), all);
    answer
}

/// The subset of a Pod of a StatefulSet, by its place among those that are wanted: the first subset whose limit, with those
/// before it, is above it. Where Pods find no place there it is the first subset without a limit, so that no other Pod moves.
pub fn of_ordinal(limits: &[Option<i32>], schedulable: &[bool], place: i32) -> Option<usize> {
    let mut sum = 0_i32;
    let own = limits.iter().position(|max| {
        sum = max.map_or(i32::MAX, |max| sum.saturating_add(max));
        place < sum
    });
    let gets = |index: usize| schedulable.get(index).copied().unwrap_or(true);
    match own {
        Some(index) if gets(index) => Some(index),
        Some(_) => (0..limits.len()).find(|index| limits[*index].is_none() && gets(*index)),
        None => None,
    }
}

/// The annotation of a Pod in a subset. `uid` is the key of a Pod that had no name.
pub fn annotation(spread: &str, subset: &str, uid: Option<&str>) -> String {
    let name = |text: &str| Value::from(text).to_string();
    match uid {
        Some(uid) => format!(r#"{{"name":{},"subset":{},"uid":{}}}"#, name(spread), name(subset), name(uid)),
        None => format!(r#"{{"name":{},"subset":{}}}"#, name(spread), name(subset)),
    }
}
