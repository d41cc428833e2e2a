//! The workloads of the subsets and their Pods, as the rules see them.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use super::{Controller, UnitedJob};
use crate::{
    api::labels,
    controllers::{BY_CONTROLLER, BY_DEPLOYMENT, deployment_text, owned_text},
    domain::{
        kinds::united_deployment::{
            child::ChildSeen,
            make,
            plan::{SubsetStep, UnitedPlan},
            pods::SubsetPods,
            schedule::{self, Reservation},
            spec::ChildKind,
            status,
        },
        pod::{available::until_available, unplaced::waits_for_place},
        workload::allocation::AllocationMode,
    },
    k8s::{pod::PodView, revision, selector::Selector, time::Now},
    runtime::clock,
};

impl Controller {
    /// Every workload of the object, with its Pods counted.
    pub(super) fn observe(&self, job: &UnitedJob, update: &str) -> Vec<ChildSeen> {
        let now = clock::now();
        let mut children = self.children.of(&job.owner);
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
        for child in self.children.of(&job.owner) {
            let pods = self.pods_of(job, &child);
            let keeps_old = keeps_old(job, &child, &pods, update);
            for pod in pods.into_iter().filter(counts) {
                let of = reservation(job, &child, &pod, (update, keeps_old));
                let (is_reserved, _) = schedule::is_reserved(&pod, of, now);
                let wanted = if is_reserved { "true" } else { "false" };
                if pod.labels.get(labels::RESERVED_POD) != Some(wanted) {
                    wrong.push((pod, is_reserved));
                }
            }
        }
        wrong
    }

    /// The Pods of a workload. Those of a Deployment belong to its ReplicaSets, which have its name.
    pub(super) fn pods_of(&self, job: &UnitedJob, child: &ChildSeen) -> Vec<Arc<PodView>> {
        if child.kind != Some(ChildKind::Deployment) {
            return self.context.pods.by_index(&BY_CONTROLLER, &owned_text(&job.key.namespace, &child.uid));
        }
        let Ok(selector) = Selector::of(&make::selector(&job.spec, &child.subset)) else { return Vec::new() };
        let text = deployment_text(&job.key.namespace, &child.name);
        let mut pods = self.context.pods.by_index(&BY_DEPLOYMENT, &text);
        pods.retain(|pod| selector.matches(&pod.labels));
        pods
    }

    /// Whether a workload would be made.
    pub(super) fn would_create(&self, plan: &UnitedPlan) -> bool {
        plan.steps.iter().any(|step| matches!(step, SubsetStep::Create { .. }))
    }

    /// Reads the workloads from the API server, before one is made: names are generated, so that the API server cannot tell
    /// a second one from the first. Returns whether there are others than before, and those that nobody controls.
    pub(super) async fn read_children(&self, job: &UnitedJob) -> kube::Result<(bool, Vec<ChildSeen>)> {
        let uids = || -> Vec<String> { self.children.of(&job.owner).into_iter().map(|child| child.uid).collect() };
        let before = uids();
        let (kind, namespace) = (job.spec.template.kind, &job.key.namespace);
        let orphans = self.children.read(kind, &self.context.client, namespace).await?;
        Ok((before != uids(), orphans))
    }
}

/// Whether a Pod goes on.
fn counts(pod: &Arc<PodView>) -> bool {
    !pod.is_deleting() && !pod.is_finished()
}

fn is_on(pod: &PodView, revision: &str) -> bool {
    pod.labels.get(labels::UNITED_REVISION) == Some(revision)
}

/// Whether the Pods of a subset that are not on the new revision stay as they are.
fn keeps_old(job: &UnitedJob, child: &ChildSeen, pods: &[Arc<PodView>], update: &str) -> bool {
    let old = pods.iter().filter(|pod| counts(pod) && !is_on(pod, update)).count();
    schedule::keeps_old(&job.spec, &child.subset, old)
}

fn reservation<'a>(
    job: &'a UnitedJob,
    child: &ChildSeen,
    pod: &PodView,
    (update, keeps_old): (&str, bool),
) -> Reservation<'a> {
    let is_wanted = job.spec.subsets.iter().any(|subset| subset.name == child.subset);
    Reservation {
        spec: &job.spec,
        is_marked: is_wanted && schedule::is_marked(&job.recorded, &child.subset),
        // Held Pods never get to the new revision: they are judged on the one they have.
        is_updated: keeps_old || is_on(pod, update),
        updating_since: status::updating_since(&job.recorded, update),
    }
}

fn count(job: &UnitedJob, child: &ChildSeen, pods: &[Arc<PodView>], update: &str, now: Now) -> SubsetPods {
    let min_ready = job.spec.template.min_ready_seconds();
    let mut seen = SubsetPods::default();
    let keeps_old = keeps_old(job, child, pods, update);
    let sooner = |at: &mut Option<Duration>, left: Duration| *at = [*at, Some(left)].into_iter().flatten().min();
    for pod in pods.iter().filter(|pod| counts(pod)) {
        let is_updated = is_on(pod, update);
        let is_ready = pod.condition_is_true("Ready");
        let left = until_available(pod, min_ready, now);
        let is_available = left == Some(Duration::ZERO);
        seen.there += 1;
        seen.ready += i32::from(is_ready);
        seen.available += i32::from(is_available);
        let is_on_template = is_on_template(child, pod);
        let is_own = is_on_template && pod.labels.get(labels::UNITED_REVISION) == Some(child.revision());
        seen.own_available += i32::from(is_available && is_own);
        seen.updated += i32::from(is_updated);
        seen.updated_ready += i32::from(is_updated && is_ready);
        seen.updated_available += i32::from(is_updated && is_on_template && is_available);
        if is_ready && job.spec.template.kind.has_ordinals() {
            let ordinal = pod.name().rsplit_once('-').and_then(|(_, ordinal)| ordinal.parse::<i32>().ok());
            seen.ready_ordinals.extend(ordinal);
            seen.available_ordinals.extend(ordinal.filter(|_| is_available));
        }
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            sooner(&mut seen.until_available, left);
        }
        if job.spec.mode == AllocationMode::Reserving {
            let of = reservation(job, child, pod, (update, keeps_old));
            let (is_reserved, look) = schedule::is_reserved(pod, of, now);
            let is_updated_down = is_reserved && !is_ready && is_updated && is_on_template;
            seen.reserved += i32::from(is_reserved);
            seen.reserved_down += i32::from(is_reserved && !is_ready);
            seen.updated_reserved_down += i32::from(is_updated_down);
            seen.updated_unplaced += i32::from(is_updated_down && waits_for_place(pod, now).is_some());
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

/// Whether a Pod may be on the template that its workload has now. A changed patch is no new revision of ours: the revision of the
/// workload itself tells its Pods apart, once its status is about its spec. A Deployment has none.
fn is_on_template(child: &ChildSeen, pod: &PodView) -> bool {
    let revision = child.status.get("updateRevision").and_then(Value::as_str).filter(|_| child.is_observed());
    let of_pod = pod.labels.get(labels::CONTROLLER_REVISION_HASH);
    let both = revision.filter(|revision| !revision.is_empty()).zip(of_pod);
    both.is_none_or(|(revision, of_pod)| revision::is_same(revision, of_pod))
}

/// The answer to a write as JSON.
pub(super) fn parsed(text: &str) -> kube::Result<Value> {
    serde_json::from_str(text).map_err(kube::Error::SerdeError)
}
