//! The conditions in the status of StatefulSets and DaemonSets: how far they are, and what fails.

use super::status::{self, Condition, Progress};
use crate::{api::apps::stateful_set::StatefulSetCondition, k8s::time::Now};

/// Condition: Pods or claims could not be created.
pub const FAILED_CREATE: &str = "FailedCreatePod";
/// Condition: Pods or claims could not be changed or deleted.
pub const FAILED_UPDATE: &str = "FailedUpdatePod";

fn shared(condition: &StatefulSetCondition) -> Condition {
    let StatefulSetCondition { type_, status, last_transition_time, reason, message } = condition.clone();
    Condition { type_, status, reason, message, last_transition_time }
}

fn own(condition: Condition) -> StatefulSetCondition {
    let Condition { type_, status, reason, message, last_transition_time } = condition;
    StatefulSetCondition { type_, status, last_transition_time, reason, message }
}

/// The conditions of the recorded status with those that are ours as they are now. Others' are carried. `failures` are the
/// types of conditions with the reasons why they are true, if they are.
pub fn merged(
    recorded: &[StatefulSetCondition],
    progress: &Progress,
    failures: [(&str, Option<&str>); 2],
    now: Now,
) -> Vec<StatefulSetCondition> {
    let before: Vec<Condition> = recorded.iter().map(shared).collect();
    let mut ours: Vec<Condition> = status::conditions(progress, &before, now.wall).into();
    for (type_, error) in failures {
        ours.extend(error.map(|error| status::set(&before, type_, true, type_, error, now.wall)));
    }
    let is_ours = |condition: &StatefulSetCondition| {
        [status::READY, status::RECONCILING, status::STALLED, FAILED_CREATE, FAILED_UPDATE]
            .contains(&condition.type_.as_str())
    };
    recorded.iter().filter(|condition| !is_ours(condition)).cloned().chain(ours.into_iter().map(own)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;

    fn at(second: i64) -> Now {
        Now { wall: Timestamp::from_second(second).unwrap(), mono: Duration::from_secs(1) }
    }

    #[test]
    fn shortfall_10_1_03_conditions_are_carried_and_failures_are_cleared() {
        let other = StatefulSetCondition { type_: "Mine".into(), status: "True".into(), ..Default::default() };
        let failed = [(FAILED_CREATE, Some("quota")), (FAILED_UPDATE, None)];
        let first = merged(std::slice::from_ref(&other), &Progress::Available, failed, at(5));
        assert_eq!((first[0].clone(), first.len()), (other.clone(), 5));
        let created = first.iter().find(|c| c.type_ == FAILED_CREATE).unwrap();
        assert_eq!((created.status.as_str(), created.message.as_str()), ("True", "quota"));
        let again = merged(&first, &Progress::Available, failed, at(50));
        assert_eq!(again, first, "the times stay");
        let mended = merged(&first, &Progress::Available, [(FAILED_CREATE, None), (FAILED_UPDATE, None)], at(60));
        assert!(mended.iter().all(|c| c.type_ != FAILED_CREATE) && mended.contains(&other));
    }
}
