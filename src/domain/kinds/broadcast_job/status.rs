//! What a BroadcastJob says of itself.

use super::{
    plan::{BroadcastAction, BroadcastObserved, BroadcastPlan, BroadcastState, count},
    spec::BroadcastSpec,
};
use crate::{
    api::apps::{
        broadcast_job::{BroadcastJobCondition, BroadcastJobStatus},
        strategies::BroadcastFailure,
    },
    domain::workload::status::{self, Condition, KSTATUS, Progress},
    k8s::time::{Now, whole_seconds},
};

/// `status.phase` of a job that goes on.
pub const RUNNING: &str = "running";
/// `status.phase` of a job that is held.
pub const PAUSED: &str = "paused";
/// `status.phase` of a job that has ended on every node.
pub const COMPLETED: &str = "completed";
/// `status.phase` of a job that has failed.
pub const FAILED: &str = "failed";
/// Type of the condition of a job that has ended on every node.
pub const COMPLETE: &str = "Complete";
/// Type of the condition of a job that has failed.
pub const HAS_FAILED: &str = "Failed";

/// The status as it is to be, after everything has been done that could be. `refused` is what could not be, in words.
pub fn status(
    observed: &BroadcastObserved<'_>,
    plan: &BroadcastPlan,
    generation: i64,
    refused: Option<&str>,
) -> BroadcastJobStatus {
    let now = observed.now;
    let mut status = observed.recorded.clone();
    status.observed_generation = generation;
    status.active = count(plan.counts.active);
    if plan.state != BroadcastState::Over {
        // After the end of a job they stay as they were, whatever happens to its Pods.
        status.desired = count(plan.counts.desired);
        status.succeeded = count(plan.counts.succeeded);
        status.failed = count(plan.counts.failed);
    }
    status.start_time.get_or_insert(whole_seconds(now.wall));
    match &plan.state {
        BroadcastState::Running => status.phase = RUNNING.into(),
        // Not before that is in the spec: the status of a paused job says which failures have been answered.
        BroadcastState::Paused if plan.actions.iter().any(|action| matches!(action, BroadcastAction::Pause { .. })) => {
            status.phase = RUNNING.into();
        }
        BroadcastState::Paused => status.phase = PAUSED.into(),
        BroadcastState::Completes => {
            let message = format!("Job completed, {}", pods_ended(&status));
            end(&mut status, (COMPLETED, COMPLETE), message, now);
        }
        BroadcastState::Fails { message, .. } => end(&mut status, (FAILED, HAS_FAILED), message.clone(), now),
        BroadcastState::Over => {}
    }
    let progress = progress(observed.spec, plan, &status, refused);
    set_kstatus(&mut status, &progress, now);
    status
}

/// The status of a job whose spec cannot be followed.
pub fn invalid(recorded: &BroadcastJobStatus, generation: i64, message: String, now: Now) -> BroadcastJobStatus {
    let mut status = BroadcastJobStatus { observed_generation: generation, ..recorded.clone() };
    set_kstatus(&mut status, &Progress::Stalled { reason: "InvalidSpec".into(), message }, now);
    status
}

/// Pods that have ended, in words.
pub fn pods_ended(status: &BroadcastJobStatus) -> String {
    format!("{} pods succeeded, {} pods failed", status.succeeded, status.failed)
}

fn end(status: &mut BroadcastJobStatus, (phase, type_): (&str, &str), message: String, now: Now) {
    let at = Some(whole_seconds(now.wall));
    status.phase = phase.into();
    status.completion_time = at;
    status.conditions.retain(|condition| condition.type_ != type_);
    status.conditions.push(BroadcastJobCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        last_probe_time: at,
        last_transition_time: at,
        reason: type_.to_owned(),
        message,
    });
}

fn progress(
    spec: &BroadcastSpec,
    plan: &BroadcastPlan,
    status: &BroadcastJobStatus,
    refused: Option<&str>,
) -> Progress {
    let waiting = |reason: &str, message: String| Progress::Waiting { reason: reason.into(), message };
    let held = |reason: &str, message: String| Progress::Held { reason: reason.into(), message };
    let stalled = |reason: &str, message: String| Progress::Stalled { reason: reason.into(), message };
    if let Some(condition) = status.is_true(COMPLETE) {
        return held("Completed", condition.message.clone());
    }
    if let Some(condition) = status.is_true(HAS_FAILED) {
        let reason = match &plan.state {
            BroadcastState::Fails { reason, .. } => reason,
            // As it was.
            _ => status.is_true(status::STALLED).map_or(HAS_FAILED, |condition| condition.reason.as_str()),
        };
        return stalled(reason, condition.message.clone());
    }
    let counts = &plan.counts;
    let ended = counts.succeeded + counts.failed;
    let done = format!("{ended} of {} nodes are done, {} pods are active", counts.desired, counts.active);
    match &plan.state {
        BroadcastState::Paused if !spec.paused && refused.is_some() => {
            waiting("FailedWrite", refused.unwrap_or_default().to_owned())
        }
        BroadcastState::Paused if spec.on_failure == BroadcastFailure::Pause && counts.failed > 0 => {
            let (pod, node) = counts.first_failed.clone().unwrap_or_default();
            stalled(
                "PausedAfterFailure",
                format!(
                    "{} pods failed, the first one is {pod} on node {node}; set spec.paused to false to go on",
                    counts.failed
                ),
            )
        }
        BroadcastState::Paused if counts.active > 0 => waiting("Paused", format!("paused: {done}")),
        BroadcastState::Paused => held("Paused", format!("paused: {done}")),
        _ if refused.is_some() => waiting("FailedWrite", refused.unwrap_or_default().to_owned()),
        _ if counts.desired == 0 => waiting("NoNodes", "no node fits the template yet".to_owned()),
        _ if !spec.ends && ended == counts.desired => held("NodesDone", format!("{done}; nodes that join get a Pod")),
        _ if counts.missing > 0 && counts.active == 0 && spec.most_active(counts.desired) == 0 => {
            held("NoParallelism", format!("spec.parallelism allows no further Pod: {done}"))
        }
        _ => waiting("Running", done),
    }
}

/// The conditions of kstatus as they are now. Others are carried.
fn set_kstatus(status: &mut BroadcastJobStatus, progress: &Progress, now: Now) {
    let shared = |condition: &BroadcastJobCondition| {
        let BroadcastJobCondition { type_, status, last_transition_time, reason, message, .. } = condition.clone();
        Condition { type_, status, reason, message, last_transition_time }
    };
    let own = |condition: Condition| {
        let Condition { type_, status, reason, message, last_transition_time } = condition;
        BroadcastJobCondition { type_, status, last_probe_time: None, last_transition_time, reason, message }
    };
    let before: Vec<Condition> = status.conditions.iter().map(shared).collect();
    status.conditions.retain(|condition| !KSTATUS.contains(&condition.type_.as_str()));
    status.conditions.extend(status::conditions(progress, &before, now.wall).map(own));
}
