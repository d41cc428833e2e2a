//! What a plan records in the status: progress, and how a round ended.

use std::time::Duration;

use super::{Event, RestartPlan};
use crate::{
    api::{
        labels::{CONDITION_COMPLETE, CONDITION_FAILED, CONDITION_PROGRESSING},
        wr::{WorkloadRestartSpec, WorkloadRestartStatus},
    },
    k8s::{
        conditions,
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
    conditions::set_kstatus_of_run(&mut status.conditions, Some(status.observed_generation), now.wall);
}

/// Ends the round when its time is over; whether it is.
pub(super) fn deadline(plan: &mut RestartPlan, spec: &WorkloadRestartSpec, age: Duration, now: Now) -> bool {
    let Some(seconds) = spec.active_deadline_seconds else { return false };
    match Duration::from_secs(seconds.try_into().unwrap_or(0)).checked_sub(age) {
        Some(left) if !left.is_zero() => {
            plan.look_after(left);
            false
        }
        _ => {
            let message =
                format!("spec.activeDeadlineSeconds: {seconds} s are over, {} Pods are done", plan.status.progress);
            end(plan, false, "DeadlineExceeded", message, now);
            true
        }
    }
}
