//! When a round begins: at creation, or when a trigger has changed.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    Event, MOST_TRIGGERS, RestartPlan, RestartSpec, TriggerContent, is_active,
    status::{condition, progress},
    status_of,
};
use crate::{
    api::{
        labels::{CONDITION_COMPLETE, CONDITION_FAILED, CONDITION_TRIGGERS_READABLE},
        wr::{Trigger, TriggerState, WorkloadRestart, WorkloadRestartStatus},
    },
    k8s::{
        name::ObjectName,
        time::{Now, whole_seconds},
    },
};

/// Decides what needs no look at Pods. None: a round is under way.
pub fn begin(
    restart: &WorkloadRestart,
    spec: &RestartSpec,
    seen: &[TriggerContent],
    ended: Option<Duration>,
    now: Now,
) -> Option<RestartPlan> {
    let mut plan = RestartPlan { status: status_of(restart), ..RestartPlan::default() };
    if restart.is_deleting() {
        return Some(plan);
    }
    let status = &mut plan.status;
    if !restart.is_triggered() {
        if status.round == 0 {
            let created = restart.metadata.creation_timestamp.as_ref().map(|t| t.0);
            begin_round(status, created, "created".to_owned(), now);
            plan.requeue = Some(Duration::ZERO);
            return Some(plan);
        }
        if is_active(restart) {
            return None;
        }
        if let Some(ttl) = spec.time_to_live {
            match ttl.checked_sub(ended.unwrap_or_default()) {
                Some(left) if !left.is_zero() => plan.look_after(left),
                _ => plan.delete = true,
            }
        }
        return Some(plan);
    }

    judge_readable(restart, seen, status, now);
    let changes = take_over(restart.triggers(), seen, status);
    if !changes.is_empty() {
        let when: Option<Vec<Timestamp>> = changes.iter().map(|(_, changed)| *changed).collect();
        let names: Vec<String> = changes.iter().map(|(t, _)| format!("{} {}", t.kind.as_str(), t.name)).collect();
        let why = format!("{} changed", names.join(", "));
        begin_round(status, when.and_then(|times| times.into_iter().max()), why.clone(), now);
        let message = format!("round {}: {why}", status.round);
        plan.event = Some(Event { warning: false, reason: "RoundStarted", message });
        plan.requeue = Some(Duration::ZERO);
        return Some(plan);
    }
    // The recorded status decides, as the plan's own has not been written yet.
    if is_active(restart) && *status == status_of(restart) {
        return None;
    }
    if status.round == 0 && seen.iter().all(|seen| *seen != TriggerContent::Unknown) {
        let message = "nothing is restarted before the first change of a trigger";
        progress(status, false, "WaitingForChange", message.to_owned(), now);
    }
    plan.forget_earlier_rounds = status.round > 0;
    if is_active(restart) {
        plan.requeue = Some(Duration::ZERO);
    }
    Some(plan)
}

fn begin_round(status: &mut WorkloadRestartStatus, created_before: Option<Timestamp>, why: String, now: Now) {
    let begun = whole_seconds(now.wall);
    *status = WorkloadRestartStatus {
        observed_generation: status.observed_generation,
        round: status.round + 1,
        start_time: Some(begun),
        pods_created_before: created_before,
        triggers: std::mem::take(&mut status.triggers),
        conditions: std::mem::take(&mut status.conditions),
        ..WorkloadRestartStatus::default()
    };
    for type_ in [CONDITION_COMPLETE, CONDITION_FAILED] {
        condition(status, type_, false, "RoundBegun", String::new(), now);
    }
    progress(status, true, "Restarting", why, now);
}

/// Whether the triggers can be watched; reported in a condition.
fn judge_readable(restart: &WorkloadRestart, seen: &[TriggerContent], status: &mut WorkloadRestartStatus, now: Now) {
    let forbidden = restart.triggers().iter().zip(seen).filter_map(|(trigger, seen)| match seen {
        TriggerContent::Forbidden(why) => Some((trigger, why)),
        TriggerContent::Unknown
        | TriggerContent::Surplus
        | TriggerContent::Missing
        | TriggerContent::Present { .. } => None,
    });
    let forbidden: Vec<(&Trigger, &String)> = forbidden.collect();
    let bad = restart.triggers().iter().enumerate().find_map(|(i, t)| Some((i, ObjectName::parse(&t.name).err()?)));
    if let Some((i, error)) = bad {
        let message = format!("spec.triggers[{i}].name: {error}");
        condition(status, CONDITION_TRIGGERS_READABLE, false, "InvalidName", message, now);
    } else if let Some((first, why)) = forbidden.first() {
        let names: Vec<String> = forbidden.iter().map(|(t, _)| format!("{} {}", t.kind.as_str(), t.name)).collect();
        let resource = format!("{}s", first.kind.as_str().to_lowercase());
        let message = format!(
            "spec.triggers: {} cannot be watched; grant it to Kruise's manager with a Role in this namespace: verbs list and watch, resource {resource}, resourceNames [{}]. The API server says: {why}",
            names.join(", "),
            first.name
        );
        condition(status, CONDITION_TRIGGERS_READABLE, false, "Forbidden", message, now);
    } else if let Some(at) = seen.iter().position(|seen| *seen == TriggerContent::Surplus) {
        let message = format!(
            "spec.triggers[{at}] is not watched, and its changes restart nothing: up to {MOST_TRIGGERS} triggers are watched in a namespace, those of its oldest WorkloadRestarts first"
        );
        condition(status, CONDITION_TRIGGERS_READABLE, false, "TooMany", message, now);
    } else if seen.iter().all(|seen| *seen != TriggerContent::Unknown) {
        condition(status, CONDITION_TRIGGERS_READABLE, true, "Watched", "all triggers are watched".to_owned(), now);
    }
}

/// Records the triggers as they are; gives those that changed, with when. One that is seen for the first time is no
/// change, and neither is one that went away: Pods would not start again without it.
fn take_over<'t>(
    triggers: &'t [Trigger],
    seen: &[TriggerContent],
    status: &mut WorkloadRestartStatus,
) -> Vec<(&'t Trigger, Option<Timestamp>)> {
    let of = |trigger: &Trigger, state: &TriggerState| state.kind == trigger.kind && state.name == trigger.name;
    let mut changes = Vec::new();
    status.triggers.retain(|state| triggers.iter().any(|trigger| of(trigger, state)));
    for (trigger, seen) in triggers.iter().zip(seen) {
        let (now, when) = match seen {
            TriggerContent::Unknown | TriggerContent::Forbidden(_) | TriggerContent::Surplus => continue,
            TriggerContent::Missing => ("", None),
            TriggerContent::Present { hash, changed } => (hash.as_str(), *changed),
        };
        match status.triggers.iter_mut().find(|state| of(trigger, state)) {
            None => status.triggers.push(TriggerState {
                kind: trigger.kind,
                name: trigger.name.clone(),
                hash: now.to_owned(),
                unknown: Default::default(),
            }),
            Some(state) if !now.is_empty() && state.hash != now => {
                state.hash = now.to_owned();
                changes.push((trigger, when));
            }
            Some(_) => {}
        }
    }
    changes
}
