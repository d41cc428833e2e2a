//! What a plan records in the status: progress, and how a round ended.

use std::time::Duration;

use super::{Event, RestartPlan, RestartSpec};
use crate::{
    api::{
        labels::{CONDITION_COMPLETE, CONDITION_FAILED, CONDITION_PROGRESSING, CONDITION_TRIGGERS_READABLE},
        wr::WorkloadRestartStatus,
    },
    k8s::{
        conditions::{self, READY, RECONCILING, STALLED},
        time::{Now, whole_seconds},
    },
};

pub(super) fn end(plan: &mut RestartPlan, succeeded: bool, reason: &'static str, message: String, now: Now) {
    let status = &mut plan.status;
    status.completion_time = Some(whole_seconds(now.wall));
    let (ended, other) =
        if succeeded { (CONDITION_COMPLETE, CONDITION_FAILED) } else { (CONDITION_FAILED, CONDITION_COMPLETE) };
    condition(status, ended, true, reason, message.clone(), now);
    condition(status, other, false, reason, String::new(), now);
    progress(status, false, reason, message.clone(), now);
    plan.forget_earlier_rounds = true;
    plan.event = Some(Event { warning: !succeeded, reason, message });
}

pub(super) fn progress(status: &mut WorkloadRestartStatus, is_true: bool, reason: &str, message: String, now: Now) {
    status.message.clone_from(&message);
    condition(status, CONDITION_PROGRESSING, is_true, reason, message, now);
}

pub(super) fn condition(
    status: &mut WorkloadRestartStatus,
    type_: &str,
    is_true: bool,
    reason: &str,
    message: String,
    now: Now,
) {
    let generation = Some(status.observed_generation);
    let wanted = conditions::Wanted::new(is_true, reason, message);
    conditions::set(&mut status.conditions, type_, wanted, generation, now.wall);
}

/// Sets Ready, Reconciling and Stalled, from which tools read how far the restart is.
pub fn set_kstatus(status: &mut WorkloadRestartStatus, now: Now) {
    let generation = Some(status.observed_generation);
    match held(status) {
        Some((true_one, reason, message)) => {
            conditions::set_kstatus(&mut status.conditions, (true_one, &reason, &message), generation, now.wall);
        }
        None => conditions::set_kstatus_of_run(&mut status.conditions, generation, now.wall),
    }
}

/// The condition of a restart that stands still without having ended, with reason and message: its spec wants that, it resolves
/// itself, or nobody would notice a change. None: it has ended, goes on, or waits for a user.
fn held(status: &WorkloadRestartStatus) -> Option<(&'static str, String, String)> {
    let is_false = |type_: &str| status.conditions.iter().find(|c| c.type_ == type_ && c.status == "False");
    let progressing = is_false(CONDITION_PROGRESSING).filter(|_| !status.has_ended())?;
    let (true_one, condition) = match progressing.reason.as_str() {
        // A change of what it waits for would not be seen.
        "WaitingForChange" => match is_false(CONDITION_TRIGGERS_READABLE) {
            Some(unreadable) => (STALLED, unreadable),
            None => (READY, progressing),
        },
        // What was begun goes on.
        "Paused" if status.restarting > 0 => (RECONCILING, progressing),
        "Paused" | "PartitionReached" => (READY, progressing),
        "TargetNotFound" => (RECONCILING, progressing),
        _ => return None,
    };
    Some((true_one, condition.reason.clone(), condition.message.clone()))
}

/// Ends the round when its time is over; whether it is.
pub(super) fn deadline(plan: &mut RestartPlan, spec: &RestartSpec, age: Duration, now: Now) -> bool {
    let Some(limit) = spec.deadline else { return false };
    match limit.checked_sub(age) {
        Some(left) if !left.is_zero() => {
            plan.look_after(left);
            false
        }
        _ => {
            let seconds = limit.as_secs();
            let message =
                format!("spec.activeDeadlineSeconds: {seconds} s are over, {} Pods are done", plan.status.progress);
            end(plan, false, "DeadlineExceeded", message, now);
            true
        }
    }
}
