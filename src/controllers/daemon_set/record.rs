//! Writes the status.

use std::time::Duration;

use kube::Api;

use super::{
    Controller, Job, Pass,
    apply::{Left, kept},
    observe::{Resolved, Seen},
};
use crate::{
    api::apps::daemon_set::{DaemonSet, DaemonSetStatus},
    domain::{
        kinds::daemon_set::status::{self, Counts},
        pod::inplace::Allowed,
        workload::{
            conditions::{self, FAILED_CREATE, FAILED_UPDATE},
            owner::OwnerRef,
            status::{self as words, Progress},
        },
    },
    k8s::revision,
    runtime::{clock, queue::Requeue, watches::ObjectKey},
};

/// A status without what may be written a little later.
fn without_counts(status: &DaemonSetStatus) -> DaemonSetStatus {
    let DaemonSetStatus {
        observed_generation,
        desired_number_scheduled: _,
        current_number_scheduled: _,
        number_misscheduled: _,
        number_ready: _,
        updated_number_scheduled: _,
        number_available: _,
        number_unavailable: _,
        collision_count,
        conditions,
        update_revision,
        daemon_set_hash,
    } = status.clone();
    let mut left = DaemonSetStatus {
        observed_generation,
        collision_count,
        conditions,
        update_revision,
        daemon_set_hash,
        ..DaemonSetStatus::default()
    };
    for condition in &mut left.conditions {
        condition.message.clear();
        condition.reason.clear();
    }
    left
}

/// The counts of a status.
fn counted(job: &Job, counts: Counts) -> DaemonSetStatus {
    let Counts { desired, current, misscheduled, ready, available, updated } = counts;
    DaemonSetStatus {
        observed_generation: job.generation(),
        desired_number_scheduled: desired,
        current_number_scheduled: current,
        number_misscheduled: misscheduled,
        number_ready: ready,
        updated_number_scheduled: updated,
        number_available: available,
        number_unavailable: desired - available,
        ..DaemonSetStatus::default()
    }
}

impl Controller {
    /// Writes the status after a pass, if it says anything new. Counts change with every Pod and are written a second
    /// apart, unless they are the last word.
    pub(super) async fn record(
        &self,
        job: &Job,
        resolved: &Resolved,
        seen: &Seen,
        left: &Left,
        pass: &Pass,
    ) -> kube::Result<Option<Duration>> {
        let observed = self.observed(job, resolved, seen, Allowed::default());
        let counts = status::counts(&observed);
        let mut told = left.plan.clone();
        if let Some(wait) = kept(&pass.refusals) {
            told.wait = Some(wait);
        }
        let progress = status::progress(&observed, &counts, &told);
        let failures = [(FAILED_CREATE, pass.create_error.as_deref()), (FAILED_UPDATE, pass.update_error.as_deref())];
        let recorded = job.set.status.clone().unwrap_or_default();
        let wanted = DaemonSetStatus {
            collision_count: recorded
                .collision_count
                .or((resolved.collisions > 0).then_some(0))
                .map(|_| resolved.collisions),
            conditions: conditions::merged(&recorded.conditions, &progress, failures, clock::now()),
            update_revision: resolved.hash().to_owned(),
            daemon_set_hash: resolved.hash().to_owned(),
            ..counted(job, counts)
        };
        self.write(&job.key, &job.set, &wanted).await
    }

    /// The set is being deleted: only its nodes are counted.
    pub(super) async fn record_leaving(&self, job: &Job) -> kube::Result<Requeue> {
        let message = "the DaemonSet is being deleted".to_owned();
        let progress = Progress::Waiting { reason: "Terminating".into(), message };
        self.record_progress(job, progress).await?;
        Ok(Requeue::Await)
    }

    /// Writes counts and how the set is, with the revision that its status names.
    pub(super) async fn record_progress(&self, job: &Job, progress: Progress) -> kube::Result<()> {
        let recorded = job.set.status.clone().unwrap_or_default();
        let update = revision::name(&job.spec.name, &recorded.update_revision);
        let collisions = recorded.collision_count.unwrap_or_default();
        let resolved = Resolved { update, collisions, same: Vec::new(), known: None };
        let seen = self.see(job, &resolved);
        let counts = status::counts(&self.observed(job, &resolved, &seen, Allowed::default()));
        let failures = [(FAILED_CREATE, None), (FAILED_UPDATE, None)];
        let wanted = DaemonSetStatus {
            collision_count: recorded.collision_count,
            conditions: conditions::merged(&recorded.conditions, &progress, failures, clock::now()),
            update_revision: recorded.update_revision.clone(),
            daemon_set_hash: recorded.daemon_set_hash.clone(),
            ..counted(job, counts)
        };
        self.write(&job.key, &job.set, &wanted).await.map(drop)
    }

    /// A spec that cannot be followed: nothing is done on a guess, and the status says why.
    pub(super) async fn record_invalid(
        &self,
        key: &ObjectKey,
        set: &DaemonSet,
        reason: &str,
        message: String,
    ) -> kube::Result<Requeue> {
        let recorded = set.status.clone().unwrap_or_default();
        let is_told = recorded.conditions.iter().any(|c| c.type_ == words::STALLED && c.message == message);
        if !is_told {
            self.pods.warning(&OwnerRef::of(set), reason, &message);
        }
        let failures = [(FAILED_CREATE, None), (FAILED_UPDATE, Some(message.as_str()))];
        let progress = Progress::Stalled { reason: reason.to_owned(), message: message.clone() };
        let wanted = DaemonSetStatus {
            observed_generation: set.metadata.generation.unwrap_or_default(),
            conditions: conditions::merged(&recorded.conditions, &progress, failures, clock::now()),
            ..recorded.clone()
        };
        // It waits for another spec, not for time.
        self.write(key, set, &wanted).await.map(|after| after.map_or(Requeue::Await, Requeue::After))
    }

    async fn write(
        &self,
        key: &ObjectKey,
        set: &DaemonSet,
        wanted: &DaemonSetStatus,
    ) -> kube::Result<Option<Duration>> {
        let recorded = set.status.clone().unwrap_or_default();
        if *wanted == recorded && set.status.is_some() {
            return Ok(None);
        }
        let is_settled = wanted.conditions.iter().any(|c| c.type_ == words::READY && c.status == "True");
        let can_wait = !is_settled && without_counts(&recorded) == without_counts(wanted);
        let api: Api<DaemonSet> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let to = (&api, self.sets.as_ref());
        let outcome = self.status.write(to, set, (&recorded, wanted), can_wait, clock::now()).await?;
        Ok(outcome.look_after())
    }
}
