//! The condition of a subset, of a UnitedDeployment as of a WorkloadSpread: whether its Pods find a place.

use jiff::Timestamp;

use crate::{api::apps::united_deployment::UnitedCondition, k8s::time::whole_seconds};

/// Its type.
pub const SCHEDULABLE: &str = "Schedulable";

/// The condition as it is now. `old` is the one before, whose time is kept while the status stays the same.
pub fn schedulable(
    old: Option<&UnitedCondition>,
    is_true: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> UnitedCondition {
    let status = if is_true { "True" } else { "False" };
    let kept = old.filter(|old| old.status == status).and_then(|old| old.last_transition_time);
    UnitedCondition {
        type_: SCHEDULABLE.into(),
        status: status.into(),
        last_transition_time: kept.or_else(|| Some(whole_seconds(now))),
        reason: reason.into(),
        message: message.into(),
    }
}
