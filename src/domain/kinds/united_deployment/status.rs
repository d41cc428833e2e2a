//! What a UnitedDeployment says about itself.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use super::{
    child::ChildSeen,
    plan::{UnitedPlan, UnitedSeen},
    spec::UnitedSpec,
};
use crate::{
    api::{
        apps::united_deployment::{SubsetStatus, UnitedCondition, UnitedDeploymentStatus, UnitedUpdateStatus},
        labels,
    },
    domain::workload::{
        allocation::AllocationMode,
        status::{self, Condition, Progress},
    },
    k8s::{
        selector,
        time::{Now, whole_seconds},
    },
};

/// Condition: whether everybody is on the last revision.
pub const UPDATED: &str = "UnitedDeploymentUpdated";
/// Condition: whether every subset has its workload.
pub const PROVISIONED: &str = "SubsetProvisioned";
/// Condition: whether the workloads are as they are to be.
pub const SUBSETS_UPDATED: &str = "SubsetUpdated";
/// Condition: what fails. It is there while something does.
pub const FAILURE: &str = "SubsetFailure";

const OURS: [&str; 7] =
    [UPDATED, PROVISIONED, SUBSETS_UPDATED, FAILURE, status::READY, status::RECONCILING, status::STALLED];

/// What went wrong in this pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassFailures {
    /// Workloads that could not be created or deleted.
    pub provision: Option<String>,
    /// Workloads that could not be changed.
    pub update: Option<String>,
}

/// The status after a pass. `children` are as they are after it.
pub fn status(
    spec: &UnitedSpec,
    generation: i64,
    seen: UnitedSeen<'_>,
    plan: &UnitedPlan,
    failures: &PassFailures,
    now: Now,
) -> UnitedDeploymentStatus {
    let (recorded, chosen) = (seen.recorded, super::plan::chosen(spec, seen.children));
    let sum = |count: &dyn Fn(&ChildSeen) -> i32| {
        seen.children.iter().fold(0_i32, |sum, child| sum.saturating_add(count(child)))
    };
    let reserved = sum(&|child| child.pods.reserved);
    // Nothing was planned where the numbers do not fit: what was written before still holds.
    let partitions = match (plan.partitions.is_empty(), &recorded.update_status) {
        (true, Some(before)) => before.current_partitions.clone(),
        _ => plan.partitions.clone(),
    };
    let mut wanted = UnitedDeploymentStatus {
        observed_generation: generation,
        replicas: (sum(&|child| child.count("replicas")) - reserved).max(0),
        ready_replicas: sum(&|child| child.count("readyReplicas")),
        updated_replicas: sum(&|child| child.pods.updated),
        updated_ready_replicas: sum(&|child| child.pods.updated_ready),
        reserved_pods: reserved,
        collision_count: recorded.collision_count,
        current_revision: recorded.current_revision.clone(),
        subset_replicas: if plan.replicas.is_empty() {
            recorded.subset_replicas.clone()
        } else {
            plan.replicas.clone()
        },
        subset_statuses: Vec::new(),
        conditions: Vec::new(),
        update_status: Some(UnitedUpdateStatus {
            updated_revision: seen.update.to_owned(),
            current_partitions: partitions.clone(),
        }),
        label_selector: label_selector(spec),
    };
    let is_complete =
        plan.impossible.is_none() && wanted.updated_ready_replicas >= to_be_ready(spec, seen.children, plan);
    if wanted.current_revision.is_empty() || is_complete {
        wanted.current_revision = seen.update.to_owned();
    }
    wanted.subset_statuses = spec
        .subsets
        .iter()
        .map(|subset| {
            let child = chosen.get(&*subset.name);
            SubsetStatus {
                name: subset.name.clone(),
                replicas: child.map_or(0, |child| (child.count("replicas") - child.pods.reserved).max(0)),
                ready_replicas: child.map_or(0, |child| child.count("readyReplicas")),
                partition: partitions.get(&subset.name).copied().unwrap_or(0),
                reserved_pods: child.map_or(0, |child| child.pods.reserved),
                conditions: plan.places.get(&subset.name).map(|places| places.conditions.clone()).unwrap_or_default(),
            }
        })
        .collect();
    let failing = chosen.values().find_map(|child| child_failure(child));
    wanted.conditions = conditions(recorded, &wanted, seen.update, plan, failures, failing.as_ref(), now);
    let progress = progress(spec, &wanted, seen, plan, failures, failing.as_ref());
    let before: Vec<Condition> = recorded.conditions.iter().map(shared).collect();
    wanted.conditions.extend(status::conditions(&progress, &before, now.wall).map(own));
    wanted
}

/// How many Pods on the new revision are Ready when a roll-out is over. All that are wanted, not only those that are there: one in
/// the middle of a scale-up goes on. A Pod that waits for a place, perhaps for ever, is not waited for once it has the new
/// revision and another one is wanted in its place.
fn to_be_ready(spec: &UnitedSpec, children: &[ChildSeen], plan: &UnitedPlan) -> i32 {
    let total = plan.replicas.values().fold(0_i32, |sum, replicas| sum.saturating_add(*replicas));
    if spec.mode != AllocationMode::Reserving {
        return total;
    }
    let waiting = children.iter().fold(0_i32, |sum, child| sum.saturating_add(child.pods.updated_reserved_down));
    let substitutes = spec.replicas.map_or(0, |replicas| total.saturating_sub(replicas.max(0)));
    total - waiting.min(substitutes).max(0)
}

/// Since when the roll-out of a revision goes on, if the status is about that one: Pods have not had the time of an older one to
/// be updated.
pub fn updating_since(recorded: &UnitedDeploymentStatus, update: &str) -> Option<Timestamp> {
    recorded.update_status.as_ref().filter(|of| of.updated_revision == update)?;
    let updating = |condition: &&UnitedCondition| condition.type_ == UPDATED && condition.status == "False";
    recorded.conditions.iter().find(updating)?.last_transition_time
}

/// The status of an object whose spec cannot be followed.
pub fn invalid(
    recorded: &UnitedDeploymentStatus,
    generation: i64,
    selector: &LabelSelector,
    why: &str,
    now: Now,
) -> UnitedDeploymentStatus {
    let progress = Progress::Stalled { reason: "InvalidSpec".into(), message: why.to_owned() };
    let mut wanted = without_plan(recorded, generation, &progress, ("InvalidSpec", why), now);
    // Autoscalers fail without one.
    if wanted.label_selector.is_empty() {
        wanted.label_selector = selector::text_of(selector);
    }
    wanted
}

/// The status of an object of which something could not be read or written that is needed to plan anything.
pub fn failed(
    recorded: &UnitedDeploymentStatus,
    generation: i64,
    spec: &UnitedSpec,
    (reason, why): (&str, &str),
    now: Now,
) -> UnitedDeploymentStatus {
    let progress = Progress::Waiting { reason: reason.to_owned(), message: why.to_owned() };
    let mut wanted = without_plan(recorded, generation, &progress, (reason, why), now);
    wanted.label_selector = label_selector(spec);
    wanted
}

fn without_plan(
    recorded: &UnitedDeploymentStatus,
    generation: i64,
    progress: &Progress,
    (reason, why): (&str, &str),
    now: Now,
) -> UnitedDeploymentStatus {
    let before: Vec<Condition> = recorded.conditions.iter().map(shared).collect();
    let mut wanted = UnitedDeploymentStatus { observed_generation: generation, ..recorded.clone() };
    wanted.collision_count.get_or_insert(0);
    wanted.conditions.retain(|old| !OURS[3..].contains(&old.type_.as_str()));
    wanted.conditions.push(own(status::set(&before, FAILURE, true, reason, why, now.wall)));
    wanted.conditions.extend(status::conditions(progress, &before, now.wall).map(own));
    wanted
}

/// The selector of the Pods that autoscalers count.
fn label_selector(spec: &UnitedSpec) -> String {
    let mut text = selector::text_of(&spec.selector);
    if spec.mode == AllocationMode::Reserving {
        text += &format!(",{}=false", labels::RESERVED_POD);
    }
    text
}

fn shared(condition: &UnitedCondition) -> Condition {
    let UnitedCondition { type_, status, last_transition_time, reason, message } = condition.clone();
    Condition { type_, status, reason, message, last_transition_time }
}

fn own(condition: Condition) -> UnitedCondition {
    let Condition { type_, status, reason, message, last_transition_time } = condition;
    UnitedCondition { type_, status, last_transition_time, reason, message }
}

/// What a workload says that it cannot do: its reason and message.
fn child_failure(child: &ChildSeen) -> Option<(String, String)> {
    let all = child.status.get("conditions").and_then(Value::as_array)?;
    let text = |condition: &Value, key: &str| condition.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let fails = |condition: &&Value| {
        let (type_, is_true) = (text(condition, "type"), text(condition, "status") == "True");
        match &*type_ {
            "ReplicaFailure" | "FailedScale" | "FailedCreatePod" | status::STALLED => is_true,
            "Progressing" => !is_true && text(condition, "reason") == "ProgressDeadlineExceeded",
            _ => false,
        }
    };
    let condition = all.iter().find(fails)?;
    let (reason, message) = (text(condition, "reason"), text(condition, "message"));
    let reason = if reason.is_empty() { text(condition, "type") } else { reason };
    Some((
        reason,
        format!("subset {}: {} {}: {message}", child.subset, child.kind.map_or("", |kind| kind.kind()), child.name),
    ))
}

fn conditions(
    recorded: &UnitedDeploymentStatus,
    wanted: &UnitedDeploymentStatus,
    update: &str,
    plan: &UnitedPlan,
    failures: &PassFailures,
    failing: Option<&(String, String)>,
    now: Now,
) -> Vec<UnitedCondition> {
    let set = |type_: &str, is_true: bool, reason: &str, message: &str| {
        let status = if is_true { "True" } else { "False" };
        let old = recorded.conditions.iter().find(|old| old.type_ == type_ && old.status == status);
        UnitedCondition {
            type_: type_.into(),
            status: status.into(),
            last_transition_time: old
                .and_then(|old| old.last_transition_time)
                .or_else(|| Some(whole_seconds(now.wall))),
            reason: reason.into(),
            message: message.into(),
        }
    };
    let mut all = vec![match wanted.current_revision == update {
        true => set(UPDATED, true, "UnitedDeploymentRevisionUpdated", &format!("updated to revision {update}")),
        false => UnitedCondition {
            last_transition_time: updating_since(recorded, update).or_else(|| Some(whole_seconds(now.wall))),
            ..set(
                UPDATED,
                false,
                "UnitedDeploymentRevisionUpdating",
                &format!("updating from revision {} to {update}", wanted.current_revision),
            )
        },
    }];
    let step = |type_: &str, failure: Option<&String>| match failure {
        Some(message) => set(type_, false, "Error", message),
        None => set(type_, true, "", ""),
    };
    let impossible = plan.impossible.as_ref().map(|(_, message)| message);
    all.push(step(PROVISIONED, failures.provision.as_ref().or(impossible)));
    all.push(step(SUBSETS_UPDATED, failures.update.as_ref().or(impossible)));
    let failed = failures.provision.as_ref().or(failures.update.as_ref()).map(|message| ("Error", message.as_str()));
    let failed = failed.or(plan.impossible.as_ref().map(|(reason, message)| (*reason, message.as_str())));
    let failed = failed.or(failing.map(|(reason, message)| (reason.as_str(), message.as_str())));
    all.extend(failed.map(|(reason, message)| set(FAILURE, true, reason, message)));
    // Those of others are carried.
    all.extend(recorded.conditions.iter().filter(|old| !OURS.contains(&old.type_.as_str())).cloned());
    all
}

fn progress(
    spec: &UnitedSpec,
    wanted: &UnitedDeploymentStatus,
    seen: UnitedSeen<'_>,
    plan: &UnitedPlan,
    failures: &PassFailures,
    failing: Option<&(String, String)>,
) -> Progress {
    let waiting = |reason: &str, message: &str| Progress::Waiting { reason: reason.into(), message: message.into() };
    if let Some((reason, message)) = &plan.impossible {
        return Progress::Stalled { reason: (*reason).into(), message: message.clone() };
    }
    if let Some(message) = failures.provision.as_ref().or(failures.update.as_ref()) {
        return waiting("FailedWrite", message);
    }
    if let Some((reason, message)) = failing {
        return waiting(reason, message);
    }
    let chosen = super::plan::chosen(spec, seen.children);
    let total = plan.replicas.values().fold(0_i64, |sum, replicas| sum + i64::from(*replicas));
    let short = spec.replicas.map_or(0, i64::from) - total;
    if short > 0 {
        return waiting("NoPlace", &format!("no subset has a place for {short} of the Pods"));
    }
    let held = spec.template.holds();
    let behind = |child: &ChildSeen| {
        let replicas = plan.replicas.get(&child.subset).copied().unwrap_or(0);
        let kept = plan.partitions.get(&child.subset).copied().unwrap_or(0);
        let updated = child.pods.updated_available.min(child.updated());
        !child.is_observed()
            || child.pods.available < replicas
            || child.count("replicas") != replicas
            || (held.is_none() && updated < replicas - kept)
    };
    if let Some(child) = chosen.values().find(|child| behind(child)) {
        let replicas = plan.replicas.get(&child.subset).copied().unwrap_or(0);
        let (available, updated) = (child.pods.available, child.pods.updated_available.min(child.updated()));
        return waiting(
            "SubsetsNotReady",
            &format!(
                "subset {}: {available} of {replicas} Pods are available, {updated} of them updated",
                child.subset
            ),
        );
    }
    if chosen.len() < spec.subsets.len() || !plan.steps.is_empty() {
        return waiting("Progressing", "the workloads of the subsets are being written");
    }
    if let Some((reason, message)) = &plan.wait {
        return waiting(reason, message);
    }
    let held = held.or(plan.is_held.then_some((status::PARTITION, "partitions keep Pods on the current revision")));
    match held.filter(|_| wanted.current_revision != seen.update) {
        Some((reason, message)) => Progress::held(reason, message),
        None => Progress::Available,
    }
}
