//! Subsets in which Pods find no place: since when, and for how long they get no more.

use std::time::Duration;

use jiff::Timestamp;

use super::{pods::SubsetPods, spec::UnitedSpec};
use crate::{
    api::{
        apps::united_deployment::{UnitedCondition, UnitedDeploymentStatus},
        labels,
    },
    domain::{
        pod::unplaced::waits_for_place,
        workload::{
            allocation::AllocationMode,
            subset::{SCHEDULABLE, schedulable},
        },
    },
    k8s::{pod::PodView, time::Now},
};

/// What is known of a Pod when it is judged whether it is kept although it finds no place.
#[derive(Clone, Copy, Debug)]
pub struct Reservation<'a> {
    /// The spec.
    pub spec: &'a UnitedSpec,
    /// Whether its subset counts as one without places.
    pub is_marked: bool,
    /// Whether it is on the new revision, or on one that it is to stay on.
    pub is_updated: bool,
    /// Since when a roll-out goes on, if one does.
    pub updating_since: Option<Timestamp>,
}

/// Whether the Pods of a subset that are on older revisions stay there, of which there are so many: the template is held, or the
/// user's partition keeps them all. While there are more of them nobody knows which ones stay.
pub fn keeps_old(spec: &UnitedSpec, subset: &str, old: usize) -> bool {
    let kept = spec.partitions.get(subset).filter(|_| spec.template.kind.partition_pointer().is_some());
    let kept = kept.and_then(|kept| usize::try_from(*kept).ok()).unwrap_or_default();
    spec.template.holds().is_some() || (old > 0 && old <= kept)
}

/// Whether a Pod is one that is kept although it finds no place, and when that may change by itself.
pub fn is_reserved(pod: &PodView, of: Reservation<'_>, now: Now) -> (bool, Option<Duration>) {
    let left = |whole: Duration, gone: Duration| Some(whole.saturating_sub(gone)).filter(|left| !left.is_zero());
    match pod.labels.get(labels::RESERVED_POD) {
        Some("true") => {
            // Under a budget for the whole it waits for its turn, perhaps until its subset makes up for Pods of others.
            let may_stay = of.is_updated || of.spec.budget.is_some();
            let runs = pod.phase == "Running" && may_stay && pod.condition_is_true("Ready");
            match pod.ready_since.filter(|_| runs) {
                Some(since) => {
                    let left = left(of.spec.unschedulable_for, now.since(since));
                    (left.is_some(), left)
                }
                None => (true, None),
            }
        }
        None if of.is_marked => (true, None),
        _ if of.is_updated => match waits_for_place(pod, now) {
            Some(waited) => {
                let left = left(of.spec.reschedule_after, waited);
                (left.is_none(), left)
            }
            None => (false, None),
        },
        // What is down and has not been updated in time will not be either. What a partition keeps and runs is no such Pod.
        _ => match of.updating_since.filter(|_| !pod.condition_is_true("Ready")) {
            Some(since) => {
                let left = left(of.spec.reschedule_after, now.since(since));
                (left.is_none(), left)
            }
            None => (false, None),
        },
    }
}

/// Whether new Pods of a subset count only when they run: Pods have found no place in it, or it was added while the others
/// have all the Pods.
pub fn is_marked(recorded: &UnitedDeploymentStatus, subset: &str) -> bool {
    match recorded.subset_statuses.iter().find(|status| status.name == subset) {
        Some(status) => status.conditions.iter().any(|c| c.type_ == SCHEDULABLE && c.status == "False"),
        None => !recorded.current_revision.is_empty(),
    }
}

/// How a subset is, and when to look at it again.
#[derive(Clone, Debug, PartialEq)]
pub struct Places {
    /// Whether Pods find a place in it.
    pub is_schedulable: bool,
    /// Whether more Pods of it have to run first, before they count.
    pub is_on_trial: bool,
    /// The conditions of its status.
    pub conditions: Vec<UnitedCondition>,
    /// When this may change without anything else happening.
    pub look: Option<Duration>,
}

/// Judges a subset. `recorded` is the status; `pods` are those of its workload, of which `replicas` are wanted.
pub fn places(
    spec: &UnitedSpec,
    recorded: &UnitedDeploymentStatus,
    subset: &str,
    pods: &SubsetPods,
    replicas: i32,
    now: Now,
) -> Places {
    let known = recorded.subset_statuses.iter().find(|status| status.name == subset);
    let before = known.map(|status| status.conditions.clone()).unwrap_or_default();
    if !spec.is_adaptive() {
        // Nothing is observed: a condition from before would say something that nobody looks after.
        let conditions = before.into_iter().filter(|condition| condition.type_ != SCHEDULABLE).collect();
        return Places { is_schedulable: true, is_on_trial: false, conditions, look: None };
    }
    let old = before.iter().find(|condition| condition.type_ == SCHEDULABLE);
    let set = |is_true: bool, reason: &str, message: &str| {
        let mut all: Vec<UnitedCondition> = before.iter().filter(|c| c.type_ != SCHEDULABLE).cloned().collect();
        all.push(schedulable(old, is_true, reason, message, now.wall));
        all
    };
    if spec.mode == AllocationMode::Reserving {
        let is_marked = is_marked(recorded, subset);
        // Pods that are still to be made count like those that wait.
        let waits = pods.reserved > 0 || (is_marked && pods.there < replicas);
        let conditions = match waits {
            true => set(false, "reschedule", "Pods find no place and are replaced in other subsets"),
            false if known.is_none() && is_marked => set(false, "created", "its Pods have to run first"),
            false => set(true, "reschedule", ""),
        };
        return Places { is_schedulable: !waits, is_on_trial: is_marked, conditions, look: pods.until_overdue };
    }
    let since = old.filter(|old| old.status == "False").and_then(|old| old.last_transition_time);
    if let Some(since) = since {
        let left = spec.unschedulable_for.saturating_sub(now.since(since));
        if !left.is_zero() {
            return Places { is_schedulable: false, is_on_trial: false, conditions: before, look: Some(left) };
        }
    }
    if pods.ready < replicas && pods.overdue > 0 {
        // The time of a renewed verdict counts from now.
        let mut all: Vec<UnitedCondition> = before.iter().filter(|c| c.type_ != SCHEDULABLE).cloned().collect();
        all.push(schedulable(None, false, "reschedule", "timeout pending pods found", now.wall));
        return Places {
            is_schedulable: false,
            is_on_trial: false,
            conditions: all,
            look: Some(spec.unschedulable_for),
        };
    }
    let conditions = if since.is_some() { set(true, "recover", "") } else { before.clone() };
    Places { is_schedulable: true, is_on_trial: false, conditions, look: pods.until_overdue }
}

/// Whether a verdict that Pods find no place in a subset is not recorded yet. It rests on Pods that go when it is acted on: one
/// that was not written would be forgotten with them, and the subset would be filled up again at once.
pub fn is_new_verdict(places: &Places, recorded: &UnitedDeploymentStatus, subset: &str) -> bool {
    let known = recorded.subset_statuses.iter().find(|status| status.name == subset);
    let is_known = |verdict: &UnitedCondition| {
        let is_same = |old: &UnitedCondition| {
            old.type_ == SCHEDULABLE
                && (&old.status, old.last_transition_time) == (&verdict.status, verdict.last_transition_time)
        };
        known.is_some_and(|status| status.conditions.iter().any(is_same))
    };
    let mut verdicts = places.conditions.iter().filter(|c| c.type_ == SCHEDULABLE && c.status == "False");
    verdicts.any(|verdict| !is_known(verdict))
}

/// A subset that has recovered, or is new, gets more Pods: they start as those that find no place, and the others keep theirs
/// until these run.
pub fn mark_again(places: &mut Places, recorded: &UnitedDeploymentStatus, subset: &str, now: Now) {
    let known = recorded.subset_statuses.iter().find(|status| status.name == subset);
    let old = known.and_then(|status| status.conditions.iter().find(|condition| condition.type_ == SCHEDULABLE));
    let reason = if known.is_some() { "reschedule" } else { "created" };
    places.conditions.retain(|condition| condition.type_ != SCHEDULABLE);
    places.conditions.push(schedulable(old, false, reason, "its Pods have to run first", now.wall));
}
