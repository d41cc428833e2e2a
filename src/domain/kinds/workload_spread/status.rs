//! The status of a WorkloadSpread.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{count::there, plan::SpreadPlan, spec::SpreadSpec};
use crate::{api::apps::workload_spread::WorkloadSpreadStatus, k8s::conditions};

/// So many records of Pods on their way that are settled are taken away at once: each write of the webhook has all that are left.
const MANY_RECORDS: usize = 128;

/// Why Pods are not counted, or cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpreadHindrance {
    /// The spec cannot be read.
    Invalid(String),
    /// An older WorkloadSpread may be for the same Pods.
    Taken(String),
    /// The target cannot be read, or does not say how many Pods it wants.
    Unreadable(String),
    /// There is no target.
    Missing,
    /// It is being deleted.
    Going,
}

impl SpreadHindrance {
    /// Whether there are no Pods then. With any other hindrance nobody knows, and those count that have a note.
    pub fn leaves_no_pods(&self) -> bool {
        match self {
            Self::Missing | Self::Going => true,
            Self::Invalid(_) | Self::Taken(_) | Self::Unreadable(_) => false,
        }
    }
}

/// The status. `before` is the recorded one: without a plan its counts and records stay.
pub fn status(
    spec: Option<&SpreadSpec>,
    outcome: Result<&SpreadPlan, (&SpreadHindrance, Option<&SpreadPlan>)>,
    before: &WorkloadSpreadStatus,
    generation: Option<i64>,
    now: Timestamp,
) -> WorkloadSpreadStatus {
    let mut status = before.clone();
    status.observed_generation = generation.unwrap_or_default();
    let (plan, outcome) = match outcome {
        Ok(plan) => (Some(plan), Ok(plan)),
        Err((hindrance, plan)) => (plan, Err(hindrance)),
    };
    if let Some(plan) = plan {
        status.subset_statuses = plan.subsets.clone();
        status.versioned_subset_statuses = plan.versions.clone();
    }
    let target = spec.map(|spec| format!("{} {}", spec.kind, spec.target)).unwrap_or_default();
    let (type_, reason, message) = match outcome {
        Err(SpreadHindrance::Invalid(why)) => (conditions::STALLED, "InvalidSpec", why.clone()),
        Err(SpreadHindrance::Taken(by)) => (
            conditions::STALLED,
            "TargetTaken",
            format!(
                "WorkloadSpread {by} is for {target} too and was there first; want a targetFilter by which no Pod fits both, or one of the two"
            ),
        ),
        Err(SpreadHindrance::Unreadable(why)) => (conditions::STALLED, "TargetUnreadable", why.clone()),
        Err(SpreadHindrance::Missing) => (conditions::RECONCILING, "TargetMissing", format!("{target} is not there")),
        Err(SpreadHindrance::Going) => (conditions::RECONCILING, "TargetDeleted", format!("{target} is being deleted")),
        Ok(plan) => progress(plan),
    };
    conditions::set_kstatus(&mut status.conditions, (type_, reason, &message), generation, now);
    status
}

fn progress(plan: &SpreadPlan) -> (&'static str, &'static str, String) {
    if plan.coming > 0 {
        let message = format!("Pods on their way: {}", plan.coming);
        return (conditions::RECONCILING, "PodsComing", message);
    }
    if plan.unknown > 0 {
        let message =
            format!("Pods that are in no subset yet: {}; each is assigned by its node when it has one", plan.unknown);
        return (conditions::RECONCILING, "PodsUnassigned", message);
    }
    if plan.surplus + plan.nowhere > 0 {
        let message = format!(
            "Pods above the limits of their subsets: {}, Pods in no subset: {}; they are not replaced",
            plan.surplus, plan.nowhere
        );
        return (conditions::READY, "BeyondLimits", message);
    }
    (conditions::READY, "Spread", "every Pod is in a subset that has room for it".into())
}

/// Whether what a status says is to be written at once: another generation, another condition, room for Pods that was not
/// there before, or many records that go. What else changes with every Pod can wait a moment.
pub fn is_news(before: &WorkloadSpreadStatus, after: &WorkloadSpreadStatus) -> bool {
    let words = |status: &WorkloadSpreadStatus| -> Vec<(String, String)> {
        let subsets = status.subset_statuses.iter().flat_map(|subset| &subset.conditions);
        let own = status.conditions.iter().map(|condition| (condition.type_.clone(), condition.status.clone()));
        own.chain(subsets.map(|condition| (condition.type_.clone(), condition.status.clone()))).collect()
    };
    let counted = |status: &WorkloadSpreadStatus| -> BTreeMap<(String, String), i32> {
        let all = status.versioned_subset_statuses.iter();
        all.flat_map(|(version, subsets)| {
            subsets.iter().map(|subset| ((version.clone(), subset.name.clone()), there(subset)))
        })
        .collect()
    };
    let records = |status: &WorkloadSpreadStatus| -> usize {
        let all = status.versioned_subset_statuses.values().flatten();
        all.map(|subset| subset.creating_pods.len() + subset.deleting_pods.len()).sum()
    };
    let now = counted(after);
    records(before) >= records(after) + MANY_RECORDS
        || before.observed_generation != after.observed_generation
        || words(before) != words(after)
        || counted(before).iter().any(|(of, before)| now.get(of).copied().unwrap_or_default() < *before)
}
