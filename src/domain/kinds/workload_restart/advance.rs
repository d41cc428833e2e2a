//! How a round goes on: where each Pod stands in it, and what ends it.

use std::{cmp::Reverse, time::Duration};

use super::{
    ObservedPods, PodFacts, RestartPlan, RestartSpec, TARGET_AGE, Target,
    choose::choose,
    listed,
    stage::{PodStage, container_called, containers, stage},
    status::{deadline, end, progress},
    status_of,
};
use crate::{
    api::wr::{Order, WorkloadRestartStatus},
    k8s::{pod::PodView, time::Now},
};

/// Moves a round on.
pub fn advance(observed: &ObservedPods<'_>, now: Now) -> RestartPlan {
    let ObservedPods { restart, spec, .. } = *observed;
    let mut plan = RestartPlan { status: status_of(restart), ..RestartPlan::default() };
    let has_ended = plan.status.has_ended();
    let (desired, ordinals) = match &observed.target {
        Target::Known { desired, ordinals } => (*desired, *ordinals),
        Target::Missing(message) if !has_ended && !restart.is_triggered() => {
            end(&mut plan, false, "TargetNotFound", message.clone(), now);
            return plan;
        }
        Target::Missing(message) => return wait_for_target(plan, "TargetNotFound", message, has_ended, now),
        Target::Unreadable { reason, message } => return wait_for_target(plan, reason, message, has_ended, now),
    };
    let mut pods: Vec<(&PodFacts<'_>, PodStage)> =
        observed.pods.iter().map(|facts| (facts, stage(facts, spec, &plan.status))).collect();
    pods.retain(|(_, stage)| *stage != PodStage::Terminating);
    let order = spec.order(ordinals);
    sort(&mut pods, order);
    count(&mut plan.status, &pods);
    // Also after the end: nothing else shows that a Pod has been ready for long enough.
    let waits = pods.iter().filter(|(_, s)| *s == PodStage::NotReady).filter_map(|(facts, _)| facts.ready_for);
    if let Some(longest) = waits.max() {
        plan.look_after(spec.min_ready.saturating_sub(longest).max(Duration::from_millis(50)));
    }
    if has_ended {
        return plan;
    }

    let total = pods.len();
    if let Some(message) = unknown_container(spec, &pods) {
        end(&mut plan, false, "ContainerNotFound", message, now);
        return plan;
    }
    let failures: Vec<String> = pods
        .iter()
        .filter_map(|(facts, stage)| match stage {
            PodStage::Failed(why) => Some(format!("{}: {why}", facts.pod.name())),
            _ => None,
        })
        .collect();
    if failures.len() >= spec.failures(total) {
        let message = format!("{} of {total} Pods could not be restarted: {}", failures.len(), listed(&failures, "; "));
        end(&mut plan, false, "FailureThresholdReached", message, now);
        return plan;
    }

    let old: Vec<&PodFacts<'_>> =
        pods.iter().filter(|(_, s)| *s == PodStage::Outdated).map(|(facts, _)| *facts).collect();
    let due = &old[..old.len().saturating_sub(spec.kept(total))];
    let under_way = pods.iter().any(|(_, s)| s.is_under_way());
    if due.is_empty() && !under_way {
        if old.is_empty() {
            let mut message = format!("{} of {total} Pods were restarted", plan.status.restarted);
            if !failures.is_empty() {
                message = format!("{message}; not so {}", listed(&failures, "; "));
            }
            end(&mut plan, true, "Completed", message, now);
        } else {
            let message = format!("spec.partition leaves {} of {total} Pods as they are", old.len());
            progress(&mut plan.status, false, "PartitionReached", message, now);
            deadline(&mut plan, spec, observed.age, now);
        }
        return plan;
    }
    if deadline(&mut plan, spec, observed.age, now) {
        return plan;
    }
    plan.look_after(TARGET_AGE);
    if spec.is_paused {
        let message = format!("spec.paused: {} Pods are left", old.len());
        progress(&mut plan.status, false, "Paused", message, now);
        return plan;
    }
    let (reason, message) = choose(&mut plan, observed, &pods, due, desired.unwrap_or(0).max(total), order);
    progress(&mut plan.status, true, reason, message, now);
    plan
}

fn wait_for_target(
    mut plan: RestartPlan,
    reason: &'static str,
    message: &str,
    has_ended: bool,
    now: Now,
) -> RestartPlan {
    if has_ended {
        // Nothing is left to count.
        plan.status.restarting = 0;
        return plan;
    }
    progress(&mut plan.status, false, reason, message.to_owned(), now);
    plan.look_after(TARGET_AGE);
    plan
}

/// A name that no Pod has is a mistake; a name that some Pods lack is not.
fn unknown_container(spec: &RestartSpec, pods: &[(&PodFacts<'_>, PodStage)]) -> Option<String> {
    let (first, _) = pods.first()?;
    let is_unknown = |name: &&String| pods.iter().all(|(facts, _)| container_called(facts, name).is_none());
    let unknown = spec.containers.iter().find(is_unknown)?;
    let known: Vec<&str> = containers(first).into_iter().map(|(_, own)| own).collect();
    Some(format!(
        "spec.containers: no Pod has a container named {unknown:?} that can be restarted; Pod {} has {}",
        first.pod.name(),
        known.join(", ")
    ))
}

fn sort(pods: &mut [(&PodFacts<'_>, PodStage)], order: Order) {
    let age = |pod: &PodView| (pod.created, pod.name().to_owned());
    match order {
        Order::Ordinal => {
            pods.sort_by_cached_key(|(facts, _)| (Reverse(ordinal(facts.pod.name())), facts.pod.name().to_owned()))
        }
        Order::OldestFirst => pods.sort_by_cached_key(|(facts, _)| age(facts.pod)),
        Order::NodeByNode => pods.sort_by_cached_key(|(facts, _)| (facts.pod.node_name.clone(), age(facts.pod))),
    }
}

fn ordinal(name: &str) -> Option<u64> {
    name.rsplit_once('-')?.1.parse().ok()
}

fn count(status: &mut WorkloadRestartStatus, pods: &[(&PodFacts<'_>, PodStage)]) {
    let number = |fits: fn(&PodStage) -> bool| {
        i32::try_from(pods.iter().filter(|(_, stage)| fits(stage)).count()).unwrap_or(i32::MAX)
    };
    status.total = number(|_| true);
    status.restarted = number(|s| *s == PodStage::Restarted);
    status.restarting = number(|s| s.is_under_way());
    status.failed = number(|s| matches!(s, PodStage::Failed(_)));
    status.skipped = number(|s| *s == PodStage::Skipped);
    status.progress = format!("{}/{}", status.restarted + status.skipped, status.total);
}
