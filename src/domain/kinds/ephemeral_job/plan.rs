//! What to do about a job now.

use std::{collections::HashSet, sync::Arc, time::Duration};

use super::{
    memory::{EphemeralMemory, number},
    spec::EphemeralSpec,
    state::{PodResult, blocked, has_containers, has_foreign, result},
    status::{self, JobCounts},
};
use crate::{
    api::apps::ephemeral_job::{EphemeralJob, EphemeralJobStatus},
    k8s::{pod::PodView, selector::Selector, time::Now},
};

/// What to do.
#[derive(Clone, Debug, Default)]
pub struct EphemeralPlan {
    /// Pods that get the containers now, in order.
    pub add: Vec<Arc<PodView>>,
    /// The status as it should be.
    pub status: EphemeralJobStatus,
    /// When something that is waited for is due.
    pub look: Option<Duration>,
}

/// Whether the job with this UID has to do with a Pod: its selector matches, or the Pod has containers of it.
pub fn concerns(job: &str, selector: &Selector, pod: &PodView) -> bool {
    selector.matches(&pod.labels) || has_containers(pod, job)
}

/// Decides for a job that is neither over nor being deleted. `pods` are those that it has to do with ([`concerns`]),
/// `begun` is how long ago it began.
pub fn plan(
    job: &EphemeralJob,
    pods: &[Arc<PodView>],
    memory: &mut EphemeralMemory,
    begun: Duration,
    now: Now,
) -> EphemeralPlan {
    let spec = EphemeralSpec::of(job);
    if let Some(error) = &spec.error {
        return EphemeralPlan { status: status::error(job, error, now), ..EphemeralPlan::default() };
    }
    let uid = job.uid();
    let states: Vec<(&Arc<PodView>, Option<PodResult>)> = pods.iter().map(|pod| (pod, result(pod, uid))).collect();
    let ended = states.iter().filter_map(|(pod, result)| match result {
        Some(result @ (PodResult::Succeeded | PodResult::Failed)) => Some((pod.uid(), *result)),
        _ => None,
    });
    let (succeeded, failed) = memory.count(ended, job);
    if !memory.refused.is_empty() {
        let there: HashSet<&str> = pods.iter().map(|pod| pod.uid()).collect();
        memory.refused.retain(|uid, _| there.contains(uid.as_str()));
    }

    let with = |wanted: PodResult| {
        let has = |(pod, result): &&(&Arc<PodView>, Option<PodResult>)| *result == Some(wanted) && pod.is_active();
        states.iter().filter(has).count()
    };
    let (running, waiting, unreported) =
        (with(PodResult::Running), with(PodResult::Waiting), with(PodResult::Unreported));
    let silent = states.iter().filter(|(pod, result)| *result == Some(PodResult::Unreported) && pod.is_active());
    memory.note_silent(silent.map(|(pod, _)| pod.uid()), now);
    let busy = running + waiting + unreported;
    let done = usize::try_from(succeeded.saturating_add(failed)).unwrap_or_default();

    let mut candidates = candidates(job, &states, memory, now);
    candidates.truncate(spec.replicas.unwrap_or(usize::MAX).saturating_sub(busy + done));

    let counts = JobCounts {
        matches: number(busy + done + candidates.len()),
        running: number(running),
        succeeded,
        waiting: number(waiting),
        failed,
        unreported: number(unreported),
    };
    let blocked = blocked_pods(job, &states, memory, now);
    let status = status::of((job, &spec), counts, &blocked, begun, now);
    let mut plan = EphemeralPlan { status, ..EphemeralPlan::default() };
    if plan.status.completion_time.is_some() {
        return plan;
    }
    let silences = states.iter().filter_map(|(pod, _)| memory.silence_left(pod.uid(), now));
    let deadline = spec.deadline.map(|deadline| deadline.saturating_sub(begun));
    plan.look = silences.filter(|left| !left.is_zero()).chain(deadline).min();
    if !spec.is_paused {
        let slots = spec.parallelism.saturating_sub(busy);
        let pause = |pod: &PodView| pause(memory, pod, now);
        let next = candidates.iter().map(|pod| pause(pod)).filter(|left| !left.is_zero()).min();
        plan.look = [plan.look, next].into_iter().flatten().min();
        let ready = candidates.into_iter().filter(|pod| pause(pod).is_zero() && !is_unbound(pod));
        plan.add = ready.take(slots).cloned().collect();
    }
    plan
}

/// How long a Pod is still left alone because it has refused the containers.
fn pause(memory: &EphemeralMemory, pod: &PodView, now: Now) -> Duration {
    memory.refused.get(pod.uid()).map_or(Duration::ZERO, |refusal| refusal.left(now))
}

/// Whether it has no node, and so no kubelet to start the containers.
fn is_unbound(pod: &PodView) -> bool {
    pod.node_name.is_empty()
}

/// Pods that can get the containers, in the order in which they get them. A Pod that does not take them, or not yet, keeps no
/// other one from getting them.
fn candidates<'p>(
    job: &EphemeralJob,
    states: &[(&'p Arc<PodView>, Option<PodResult>)],
    memory: &EphemeralMemory,
    now: Now,
) -> Vec<&'p Arc<PodView>> {
    let is_free = |(pod, result): &&(&'p Arc<PodView>, Option<PodResult>)| {
        let is_free = result.is_none() && pod.is_active() && !pod.is_mirror;
        is_free && !has_foreign(pod, job.uid(), job.container_names())
    };
    let mut candidates: Vec<&'p Arc<PodView>> = states.iter().filter(is_free).map(|(pod, _)| *pod).collect();
    candidates.sort_by_cached_key(|pod| {
        (is_unbound(pod), !pause(memory, pod, now).is_zero(), pod.created, pod.name().to_owned())
    });
    candidates
}

/// Pods whose containers do not start, of which kubelet says nothing, or that do not take them: name, reason and message, by
/// name.
fn blocked_pods(
    job: &EphemeralJob,
    states: &[(&Arc<PodView>, Option<PodResult>)],
    memory: &EphemeralMemory,
    now: Now,
) -> Vec<(String, String, String)> {
    let waiting = states
        .iter()
        .filter(|(pod, result)| matches!(result, Some(PodResult::Waiting | PodResult::Running)) && pod.is_active());
    let mut all: Vec<(String, String, String)> = waiting
        .filter_map(|(pod, _)| {
            let (reason, message) = blocked(pod, job.uid())?;
            Some((pod.name().to_owned(), reason.to_owned(), message.to_owned()))
        })
        .collect();
    let silent =
        states.iter().filter(|(pod, _)| memory.silence_left(pod.uid(), now).is_some_and(|left| left.is_zero()));
    let words = "kubelet has said nothing about them for a minute";
    all.extend(silent.map(|(pod, _)| (pod.name().to_owned(), status::NOT_REPORTED.to_owned(), words.to_owned())));
    let refused = memory.refused.values();
    all.extend(refused.map(|refusal| (refusal.pod.clone(), status::CREATE_FAILED.to_owned(), refusal.why.clone())));
    all.sort();
    all
}
