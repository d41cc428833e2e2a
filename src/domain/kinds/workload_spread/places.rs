//! Subsets in which Pods find no place: since when, and for how long they get no more.

use std::time::Duration;

use crate::{
    api::apps::united_deployment::UnitedCondition,
    domain::workload::subset::{SCHEDULABLE, schedulable},
    k8s::time::Now,
};

/// For how long a subset gets no Pods after some found no place in it.
pub const RECOVERS_AFTER: Duration = Duration::from_secs(300);

/// How a subset is.
#[derive(Clone, Debug, PartialEq)]
pub struct SubsetPlaces {
    /// Its condition.
    pub condition: UnitedCondition,
    /// Whether it gets Pods again.
    pub has_recovered: bool,
    /// When that may change without anything else happening.
    pub look: Option<Duration>,
}

/// Judges a subset. `before` are its conditions, `overdue` Pods have found no place for too long. The last subset takes what
/// finds no place elsewhere, so it always gets Pods.
pub fn judge(before: &[UnitedCondition], overdue: usize, is_last: bool, now: Now) -> SubsetPlaces {
    let old = before.iter().find(|condition| condition.type_ == SCHEDULABLE);
    let places = |is_true: bool, reason: &str, message: &str, look: Option<Duration>| SubsetPlaces {
        condition: schedulable(old, is_true, reason, message, now.wall),
        has_recovered: is_true && !is_last && old.is_some_and(|old| old.status == "False"),
        look,
    };
    if is_last {
        return places(true, "LastSubset", "", None);
    }
    if overdue > 0 {
        let message = format!("Pods found no node in time: {overdue}");
        return places(false, "PodsFoundNoNode", &message, None);
    }
    let since = old.filter(|old| old.status == "False").and_then(|old| old.last_transition_time);
    let left = since.map_or(Duration::ZERO, |since| RECOVERS_AFTER.saturating_sub(now.since(since)));
    match old {
        Some(old) if !left.is_zero() => places(false, &old.reason, &old.message, Some(left)),
        _ => places(true, "Schedulable", "", None),
    }
}
