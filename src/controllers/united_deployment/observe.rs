//! The workloads of the subsets and their Pods, as the rules see them.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use super::{Controller, UnitedJob};
use crate::{
    api::{apps::united_deployment::UnitedCondition, labels},
    controllers::{BY_CONTROLLER, BY_SUBSET, subset_key},
    domain::{
        kinds::united_deployment::{
            make,
            plan::{ChildSeen, SubsetStep, UnitedPlan},
            pods::SubsetPods,
            schedule::{self, Reservation},
            spec::ChildKind,
            status,
        },
        pod::{available::until_available, unplaced::waits_for_place},
        workload::allocation::AllocationMode,
    },
    k8s::{pod::PodView, selector::Selector, time::Now},
    runtime::clock,
};

impl Controller {
    /// Every workload of the object, with its Pods counted.
    pub(super) fn observe(&self, job: &UnitedJob, update: &str) -> Vec<ChildSeen> {
        let now = clock::now();
        let mut children = self.children.of(&job.owner.uid);
        for child in &mut children {
            let pods = self.pods_of(job, child);
            child.pods = count(job, child, &pods, update, now);
        }
        children
    }

    /// Pods whose label does not say whether they are kept although they find no place, and what it is to say.
    pub(super) fn wrongly_marked(&self, job: &UnitedJob, update: &str) -> Vec<(Arc<PodView>, bool)> {
        if job.spec.mode != AllocationMode::Reserving {
            return Vec::new();
        }
        let (now, mut wrong) = (clock::now(), Vec::new());
        for child in self.children.of(&job.owner.uid) {
            for pod in self.pods_of(job, &child).into_iter().filter(counts) {
                let (is_reserved, _) = schedule::is_reserved(&pod, reservation(job, &child, &pod, update), now);
                let wanted = if is_reserved { "true" } else { "false" };
                if pod.labels.get(labels::RESERVED_POD) != Some(wanted) {
                    wrong.push((pod, is_reserved));
                }
            }
        }
        wrong
    }

    /// The Pods of a workload. Those of a Deployment belong to its ReplicaSets, which have its name.
    fn pods_of(&self, job: &UnitedJob, child: &ChildSeen) -> Vec<Arc<PodView>> {
        if child.kind != Some(ChildKind::Deployment) {
            return self.context.pods.by_index(&BY_CONTROLLER, &child.uid);
        }
        let Ok(selector) = Selector::of(&make::selector(&job.spec, &child.subset)) else { return Vec::new() };
        let of_subset = self.context.pods.by_index(&BY_SUBSET, &subset_key(&job.key.namespace, &child.subset));
        let is_its_own = |pod: &Arc<PodView>| {
            let owner = pod.controller.as_deref().filter(|owner| owner.is("apps", "ReplicaSet"));
            let hash = owner.and_then(|owner| owner.name.strip_prefix(&*child.name)?.strip_prefix('-'));
            hash.is_some_and(|hash| !hash.contains('-')) && selector.matches(&pod.labels)
        };
        of_subset.into_iter().filter(is_its_own).collect()
    }

    /// Whether a workload would be made.
    pub(super) fn would_create(&self, plan: &UnitedPlan) -> bool {
        plan.steps.iter().any(|step| matches!(step, SubsetStep::Create { .. }))
    }

    /// Reads the workloads from the API server, before one is made: names are generated, so that the API server cannot tell
    /// a second one from the first. Returns whether there are others than before.
    pub(super) async fn read_children(&self, job: &UnitedJob) -> kube::Result<bool> {
        let uids = || -> Vec<String> { self.children.of(&job.owner.uid).into_iter().map(|child| child.uid).collect() };
        let before = uids();
        let (kind, namespace) = (job.spec.template.kind, &job.key.namespace);
        self.children.read(kind, &self.context.client, namespace, labels::SUBSET_NAME).await?;
        Ok(before != uids())
    }
}

/// Whether a Pod goes on.
fn counts(pod: &Arc<PodView>) -> bool {
    !pod.is_deleting() && !pod.is_finished()
}

fn reservation<'a>(job: &'a UnitedJob, child: &ChildSeen, pod: &PodView, update: &str) -> Reservation<'a> {
    let recorded = job.recorded.subset_statuses.iter().find(|subset| subset.name == child.subset);
    let is_false = |condition: &&UnitedCondition, type_: &str| condition.type_ == type_ && condition.status == "False";
    let marked = recorded.and_then(|subset| subset.conditions.iter().find(|c| is_false(c, schedule::SCHEDULABLE)));
    let updating = job.recorded.conditions.iter().find(|condition| is_false(condition, status::UPDATED));
    Reservation {
        spec: &job.spec,
        is_marked: marked.is_some(),
        is_updated: pod.labels.get(labels::UNITED_REVISION) == Some(update),
        updating_since: updating.and_then(|condition| condition.last_transition_time),
    }
}

fn count(job: &UnitedJob, child: &ChildSeen, pods: &[Arc<PodView>], update: &str, now: Now) -> SubsetPods {
    let min_ready = job.spec.template.min_ready_seconds();
    let mut seen = SubsetPods::default();
    let sooner = |at: &mut Option<Duration>, left: Duration| *at = [*at, Some(left)].into_iter().flatten().min();
    for pod in pods.iter().filter(|pod| counts(pod)) {
        let is_updated = pod.labels.get(labels::UNITED_REVISION) == Some(update);
        let is_ready = pod.condition_is_true("Ready");
        let left = until_available(pod, min_ready, now);
        let is_available = left == Some(Duration::ZERO);
        seen.ready += i32::from(is_ready);
        seen.available += i32::from(is_available);
        let is_own = pod.labels.get(labels::UNITED_REVISION) == Some(child.revision());
        seen.own_available += i32::from(is_available && is_own);
        seen.updated += i32::from(is_updated);
        seen.updated_ready += i32::from(is_updated && is_ready);
        seen.updated_available += i32::from(is_updated && is_available);
        if is_available && job.spec.template.kind.has_ordinals() {
            let ordinal = pod.name().rsplit_once('-').and_then(|(_, ordinal)| ordinal.parse::<i32>().ok());
            seen.available_ordinals.extend(ordinal);
        }
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            sooner(&mut seen.until_available, left);
        }
        if job.spec.mode == AllocationMode::Reserving {
            let (is_reserved, look) = schedule::is_reserved(pod, reservation(job, child, pod, update), now);
            seen.reserved += i32::from(is_reserved);
            seen.update_overdue += i32::from(is_reserved && !is_updated);
            if let Some(left) = look {
                sooner(&mut seen.until_overdue, left);
            }
        } else if let Some(waited) = waits_for_place(pod, now) {
            match job.spec.reschedule_after.saturating_sub(waited) {
                Duration::ZERO => seen.overdue += 1,
                left => sooner(&mut seen.until_overdue, left),
            }
        }
    }
    seen
}

/// The answer to a write as JSON.
pub(super) fn parsed(text: &str) -> kube::Result<Value> {
    serde_json::from_str(text).map_err(kube::Error::SerdeError)
}
