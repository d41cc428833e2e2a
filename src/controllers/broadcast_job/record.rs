//! Writes the status, and says by events what has become of a job.

use std::time::Duration;

use super::{BroadcastSeen, BroadcastWork, Controller, EndLabels};
use crate::{
    api::apps::broadcast_job::{BroadcastJob, BroadcastJobStatus},
    domain::{
        kinds::broadcast_job::{
            plan::{self, BroadcastPlan, BroadcastState},
            status::{self, PAUSED, RUNNING},
        },
        workload::{
            owner::OwnerRef,
            status::{READY, RECONCILING, STALLED},
        },
    },
    k8s::time::Now,
    runtime::{
        packed::Packed,
        queue::Requeue,
        status_writer::{Outcome, json_of},
        watches::ObjectKey,
    },
};

impl Controller {
    /// Writes the status, if it says anything new. Returns when to look again.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    pub(super) async fn record(
        &self,
        work: &BroadcastWork,
        seen: &BroadcastSeen,
        refused: Option<&str>,
    ) -> kube::Result<Option<Duration>> {
        let observed = work.observed(seen);
        let plan = plan::plan(&observed);
        self.warn(work, &plan);
        let generation = work.job.metadata.generation.unwrap_or_default();
        let wanted = status::status(&observed, &plan, generation, refused);
        let look = self.write(&work.key, (&work.held, &work.job), &wanted, seen.now).await?;
        let look = match look {
            Outcome::Written(newer) => {
                let written = newer.open().ok().and_then(|job| job.status);
                self.emit_events(work, &plan, written.as_ref().unwrap_or(&wanted));
                // The end begins its time to live.
                plan_again(&plan).or(plan.look)
            }
            outcome => [outcome.look_after(), plan.look].into_iter().flatten().min(),
        };
        Ok(look)
    }

    /// Says that the spec cannot be followed. The next one wakes the job.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    pub(super) async fn record_invalid(
        &self,
        key: &ObjectKey,
        (held, job): (&Packed<BroadcastJob>, &BroadcastJob),
        message: String,
        now: Now,
    ) -> kube::Result<Requeue> {
        let recorded = job.status.clone().unwrap_or_default();
        let wanted = status::invalid(&recorded, job.metadata.generation.unwrap_or_default(), message.clone(), now);
        self.say_once(key, &OwnerRef::of(job), "InvalidSpec", message);
        let outcome = self.write(key, (held, job), &wanted, now).await?;
        Ok(outcome.look_after().map_or(Requeue::Await, Requeue::After))
    }

    async fn write(
        &self,
        key: &ObjectKey,
        (held, job): (&Packed<BroadcastJob>, &BroadcastJob),
        wanted: &BroadcastJobStatus,
        now: Now,
    ) -> kube::Result<Outcome<Packed<BroadcastJob>>> {
        let recorded = job.status.clone().unwrap_or_default();
        let can_wait = without_counts(&recorded) == without_counts(wanted);
        let statuses = (&json_of(job.status.as_ref())?, &json_of(Some(wanted))?);
        self.status.write((&self.api(key), &self.jobs), held, statuses, can_wait, now).await
    }

    /// What is odd, once.
    fn warn(&self, work: &BroadcastWork, plan: &BroadcastPlan) {
        if plan.is_over_limit {
            let message = format!("{} pods are active, more than spec.parallelism allows", plan.counts.active);
            self.say_once(&work.key, &work.owner, "TooManyActivePods", message);
        }
        if let Some(node) = &plan.counts.doubled {
            let message = format!("node {node} has more than one pod");
            self.say_once(&work.key, &work.owner, "DuplicatePodCreatedOnSameNode", message);
        }
    }

    /// A warning, unless it is the last one of its reason.
    fn say_once(&self, key: &ObjectKey, owner: &OwnerRef, reason: &'static str, message: String) {
        let before = self.memories.with(key, |memory| memory.said.insert(reason, message.clone())).flatten();
        if before.as_ref() != Some(&message) {
            self.pods.warning(owner, reason, &message);
        }
    }

    /// An event about what has become of the job with this write.
    fn emit_events(&self, work: &BroadcastWork, plan: &BroadcastPlan, written: &BroadcastJobStatus) {
        let job = format!("Job {}/{}", work.key.namespace, work.key.name);
        let ended = status::pods_ended(written);
        let before = work.job.status.as_ref().map_or("", |status| status.phase.as_str());
        match &plan.state {
            BroadcastState::Completes => {
                self.metrics.ended.get_or_create(&EndLabels { result: "complete" }).inc();
                self.pods.normal(&work.owner, "JobComplete", &format!("{job} is completed, {ended}"));
            }
            BroadcastState::Fails { reason, message } => {
                self.metrics.ended.get_or_create(&EndLabels { result: "failed" }).inc();
                // In the words of OpenKruise.
                let reason = if *reason == "FailedPod" { "failed pod is found" } else { reason };
                let message = format!("{job} failed, {message}: {ended}");
                self.pods.warning(&work.owner, reason, &message);
            }
            BroadcastState::Running if before == PAUSED && written.phase == RUNNING => {
                self.pods.normal(&work.owner, "Continue", &format!("{job} goes on"));
            }
            BroadcastState::Running | BroadcastState::Paused | BroadcastState::Over => {}
        }
    }
}

/// What the end of a job brings is looked at at once.
fn plan_again(plan: &BroadcastPlan) -> Option<Duration> {
    matches!(plan.state, BroadcastState::Completes | BroadcastState::Fails { .. }).then_some(Duration::ZERO)
}

/// A status without what may be written a little later: numbers, and the words about them.
fn without_counts(status: &BroadcastJobStatus) -> BroadcastJobStatus {
    let mut rest = BroadcastJobStatus { active: 0, succeeded: 0, failed: 0, desired: 0, ..status.clone() };
    for condition in &mut rest.conditions {
        if [READY, RECONCILING, STALLED].contains(&condition.type_.as_str()) {
            condition.message = String::new();
        }
    }
    rest
}
