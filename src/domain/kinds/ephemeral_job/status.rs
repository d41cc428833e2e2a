//! What the status of a job says.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::spec::EphemeralSpec;
use crate::{
    api::apps::ephemeral_job::{EphemeralJob, EphemeralJobStatus},
    k8s::{
        conditions::{self, READY, RECONCILING, STALLED, Wanted},
        time::{Now, whole_seconds},
    },
};

/// Reason of JobFailed, and of ContainersBlocked where a Pod does not take the containers.
pub(super) const CREATE_FAILED: &str = "CreateFailed";
/// Reason of ContainersBlocked where kubelet has said nothing about the containers for a while.
pub(super) const NOT_REPORTED: &str = "NotReported";
const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
const INITIALIZED: &str = "Initialized";
const MATCHED_EMPTY: &str = "MatchedEmpty";
const JOB_SUCCEEDED: &str = "JobSucceeded";
const JOB_FAILED: &str = "JobFailed";
const JOB_ERROR: &str = "JobError";
const CONTAINERS_BLOCKED: &str = "ContainersBlocked";
/// Phase, and reason of Reconciling: containers run, or some Pods are done.
const RUNNING: &str = "Running";
/// The same before any container runs.
const WAITING: &str = "Waiting";
/// Reason of Ready: the job is for no Pod.
const NO_REPLICAS: &str = "NoReplicas";
/// Reason of Ready: no further Pod gets the containers, and none has them that is not done.
const NO_PARALLELISM: &str = "NoParallelism";
/// Pods that a message names.
const NAMED: usize = 3;
/// The longest text of others in a message, in characters.
const LONGEST: usize = 200;

/// Pods by how far they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JobCounts {
    pub(super) matches: i32,
    pub(super) running: i32,
    pub(super) succeeded: i32,
    pub(super) waiting: i32,
    pub(super) failed: i32,
    pub(super) unreported: i32,
}

/// The status of a job about which nothing can be done.
pub(super) fn error(job: &EphemeralJob, why: &str, now: Now) -> EphemeralJobStatus {
    let mut status = begin(job, now);
    status.phase = "Error".into();
    let mut conditions = Conditions { job, now, all: &mut status.conditions };
    conditions.set(JOB_ERROR, "InvalidSpec", why);
    conditions.kstatus(STALLED, "InvalidSpec", why);
    status
}

/// The status of a job with these counts. `blocked`: Pods in which something does not start, with reason and message.
pub(super) fn of(
    (job, spec): (&EphemeralJob, &EphemeralSpec),
    counts: JobCounts,
    blocked: &[(String, String, String)],
    begun: Duration,
    now: Now,
) -> EphemeralJobStatus {
    let JobCounts { matches, running, succeeded, waiting, failed, unreported } = counts;
    let mut status = EphemeralJobStatus { matches, running, succeeded, waiting, failed, unreported, ..begin(job, now) };
    let (phase, true_one, reason, message) = how_far(spec, counts, begun);
    let is_over = ["Succeeded", "Failed"].contains(&phase);
    status.phase = phase.into();
    if is_over {
        status.completion_time = Some(whole_seconds(now.wall));
    }
    let mut conditions = Conditions { job, now, all: &mut status.conditions };
    conditions.set_if(matches == 0 && !is_over, MATCHED_EMPTY, MATCHED_EMPTY, "no Pod matches");
    conditions.set_if(phase == "Succeeded", JOB_SUCCEEDED, JOB_SUCCEEDED, &message);
    let why_failed = if reason == DEADLINE_EXCEEDED { DEADLINE_EXCEEDED } else { CREATE_FAILED };
    conditions.set_if(phase == "Failed" || failed > 0, JOB_FAILED, why_failed, &message);
    conditions.set_if(false, JOB_ERROR, "NoError", "");
    let is_blocked = !blocked.is_empty() && !is_over;
    let why_blocked = blocked.first().map_or("NoneBlocked", |(_, reason, _)| reason.as_str());
    conditions.set_if(is_blocked, CONTAINERS_BLOCKED, &reason_of(why_blocked), &listed(blocked));
    let message = match is_blocked {
        true => format!("{message}; {}", listed(blocked)),
        false => message,
    };
    conditions.kstatus(true_one, reason, &message);
    status
}

/// The phase of a job with these counts, and the condition of kstatus that is true, with its reason and its message.
fn how_far(
    spec: &EphemeralSpec,
    counts: JobCounts,
    begun: Duration,
) -> (&'static str, &'static str, &'static str, String) {
    let JobCounts { matches, running, succeeded, waiting, failed, unreported } = counts;
    let done = succeeded.saturating_add(failed);
    let all_done = matches > 0 && done >= matches;
    let late = spec.deadline.filter(|deadline| begun >= *deadline);
    let left = running.saturating_add(waiting).saturating_add(unreported);
    let progress = format!("{succeeded} of {matches} Pods succeeded, {failed} failed");
    let under_way = if running > 0 || done > 0 { RUNNING } else { WAITING };
    if all_done && failed == 0 {
        ("Succeeded", READY, JOB_SUCCEEDED, progress)
    } else if all_done {
        ("Failed", STALLED, JOB_FAILED, progress)
    } else if let Some(deadline) = late {
        let seconds = deadline.as_secs();
        let message = format!(
            "{progress}; activeDeadlineSeconds ({seconds}) is over; containers in {left} Pods are not done, and stay there"
        );
        ("Failed", STALLED, DEADLINE_EXCEEDED, message)
    } else if spec.is_paused && left > 0 {
        let message = format!("{progress}; the job is paused, and containers in {left} Pods are not done");
        ("Paused", RECONCILING, "Paused", message)
    } else if spec.is_paused {
        ("Paused", READY, "Paused", format!("{progress}; the job is paused"))
    } else if matches == 0 && spec.replicas == Some(0) {
        (WAITING, READY, NO_REPLICAS, "spec.replicas is 0".to_owned())
    } else if spec.parallelism == 0 && left == 0 {
        (under_way, READY, NO_PARALLELISM, format!("spec.parallelism allows no further Pod: {progress}"))
    } else if matches == 0 {
        (WAITING, RECONCILING, MATCHED_EMPTY, "no Pod matches that can get the containers".to_owned())
    } else {
        (under_way, RECONCILING, under_way, progress)
    }
}

/// The status of a job that is over and whose spec has changed since. None: nothing of it changes.
pub fn for_newer_generation(job: &EphemeralJob) -> Option<EphemeralJobStatus> {
    let status = job.status.as_ref()?;
    let observed = Some(status.observed_generation).filter(|observed| *observed != 0);
    let newer = conditions::newer_generation(observed, job.metadata.generation)?;
    let mut status = EphemeralJobStatus { observed_generation: newer, ..status.clone() };
    conditions::still_hold(&mut status.conditions, Some(newer));
    Some(status)
}

/// What every status has.
fn begin(job: &EphemeralJob, now: Now) -> EphemeralJobStatus {
    let mut status = job.status.clone().unwrap_or_default();
    status.observed_generation = job.metadata.generation.unwrap_or_default();
    status.start_time.get_or_insert(whole_seconds(now.wall));
    // OpenKruise leaves reasons out; clients of metav1.Condition expect one.
    for condition in status.conditions.iter_mut().filter(|condition| condition.reason.is_empty()) {
        condition.reason.clone_from(&condition.type_);
    }
    Conditions { job, now, all: &mut status.conditions }.set(INITIALIZED, INITIALIZED, "the job has begun");
    status
}

/// The conditions of a status that is being made.
struct Conditions<'a> {
    job: &'a EphemeralJob,
    now: Now,
    all: &'a mut Vec<Condition>,
}

impl Conditions<'_> {
    fn set(&mut self, type_: &str, reason: &str, message: &str) {
        conditions::set(
            self.all,
            type_,
            Wanted::new(true, reason, message),
            self.job.metadata.generation,
            self.now.wall,
        );
    }

    /// Sets a condition that holds, and one that held before to False.
    fn set_if(&mut self, holds: bool, type_: &str, reason: &str, message: &str) {
        if holds {
            self.set(type_, reason, message);
        } else if self.all.iter().any(|condition| condition.type_ == type_) {
            let wanted = Wanted::new(false, "Outdated", "");
            conditions::set(self.all, type_, wanted, self.job.metadata.generation, self.now.wall);
        }
    }

    fn kstatus(&mut self, true_one: &str, reason: &str, message: &str) {
        conditions::set_kstatus(self.all, (true_one, reason, message), self.job.metadata.generation, self.now.wall);
    }
}

/// A reason in the form that conditions have; kubelet's are in it.
fn reason_of(text: &str) -> String {
    let kept: String = text.chars().filter(char::is_ascii_alphanumeric).take(100).collect();
    if kept.starts_with(|first: char| first.is_ascii_alphabetic()) { kept } else { "Blocked".into() }
}

fn listed(blocked: &[(String, String, String)]) -> String {
    let mut texts: Vec<String> = Vec::new();
    for (pod, reason, message) in blocked.iter().take(NAMED) {
        let short: String = message.chars().take(LONGEST).collect();
        texts.push(format!("{pod}: {reason}: {short}"));
    }
    if blocked.len() > NAMED {
        texts.push(format!("and {} more", blocked.len() - NAMED));
    }
    format!("containers do not start in {} Pods: {}", blocked.len(), texts.join("; "))
}
