//! Writes the status.

use std::time::Duration;

use super::{
    Controller, Job, Pass,
    apply::Left,
    observe::{Resolved, Seen},
};
use crate::{
    api::apps::{
        daemon_set::{DaemonSet, DaemonSetStatus},
        stateful_set::StatefulSetCondition,
    },
    controllers::pod_set::{SetStatus, counted_generation, words_cleared},
    domain::{
        kinds::daemon_set::{
            spec::Spec,
            status::{self, Counts},
        },
        workload::{
            conditions::{self, FAILED_CREATE, FAILED_UPDATE},
            status::{Progress, REVISION_UNKNOWN},
        },
    },
    runtime::{apply::said, clock, packed::Packed, queue::Requeue},
};

impl SetStatus for DaemonSetStatus {
    fn conditions(&self) -> &[StatefulSetCondition] {
        &self.conditions
    }

    fn with_conditions(self, conditions: Vec<StatefulSetCondition>, generation: i64) -> Self {
        let collision_count = Some(self.collision_count.unwrap_or(0));
        let is_same = self.observed_generation == generation;
        let updated_number_scheduled = if is_same { self.updated_number_scheduled } else { 0 };
        Self { conditions, observed_generation: generation, collision_count, updated_number_scheduled, ..self }
    }

    fn without_counts(&self) -> Self {
        let Self {
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
        } = self.clone();
        Self {
            observed_generation,
            collision_count,
            conditions: words_cleared(&conditions),
            update_revision,
            daemon_set_hash,
            ..Self::default()
        }
    }
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
        let observed = self.observed(job, resolved, seen, None);
        let counts = status::counts(&observed);
        let mut plan = left.plan.clone();
        if let Some(wait) = pass.kept() {
            plan.wait = Some(wait);
        }
        let progress = status::progress(&observed, &counts, &plan);
        let failures = [(FAILED_CREATE, pass.create_error.as_deref()), (FAILED_UPDATE, pass.update_error.as_deref())];
        let recorded = job.set.status.clone().unwrap_or_default();
        let wanted = DaemonSetStatus {
            collision_count: Some(resolved.revisions.collisions),
            conditions: conditions::merged(&recorded.conditions, &progress, failures, clock::now()),
            update_revision: resolved.hash().to_owned(),
            daemon_set_hash: resolved.hash().to_owned(),
            ..counted(job, counts)
        };
        self.common.write_status(&self.sets, job.held.as_ref(), job.set.status.as_ref(), &wanted).await
    }

    /// Writes counts and how the set is, with the revision that its status names.
    pub(super) async fn record_progress(&self, job: &Job, progress: Progress) -> kube::Result<()> {
        self.record_without_revision(job, &progress, None).await
    }

    /// Nobody knows to which revision Pods belong: nothing is made or deleted, and the status says why. Updates in place that
    /// have begun get to their end.
    pub(super) async fn record_unresolved(
        &self,
        job: &Job,
        error: kube::Error,
        mut pass: Pass,
    ) -> kube::Result<Requeue> {
        let message = format!("the revision of the template cannot be found out: {}", said(&error));
        let progress = Progress::Waiting { reason: REVISION_UNKNOWN.into(), message: message.clone() };
        pass.note(Err(error));
        self.refresh_as_recorded(job, &mut pass).await;
        self.record_without_revision(job, &progress, Some(&message)).await?;
        pass.common.end(|after| self.queue.add_after(job.key.clone(), after))
    }

    async fn record_without_revision(&self, job: &Job, progress: &Progress, failure: Option<&str>) -> kube::Result<()> {
        let (recorded, resolved) = (job.set.status.clone().unwrap_or_default(), Resolved::recorded(job));
        let seen = self.see(job, &resolved);
        let counts = status::counts(&self.observed(job, &resolved, &seen, None));
        let failures = [(FAILED_CREATE, None), (FAILED_UPDATE, failure)];
        let wanted = DaemonSetStatus {
            observed_generation: counted_generation(&job.set.metadata, recorded.observed_generation, progress),
            collision_count: Some(recorded.collision_count.unwrap_or(0)),
            conditions: conditions::merged(&recorded.conditions, progress, failures, clock::now()),
            update_revision: recorded.update_revision.clone(),
            daemon_set_hash: recorded.daemon_set_hash.clone(),
            ..counted(job, counts)
        };
        self.common.write_status(&self.sets, job.held.as_ref(), job.set.status.as_ref(), &wanted).await.map(drop)
    }

    /// A spec that cannot be followed.
    pub(super) async fn record_invalid(
        &self,
        (held, set): (&Packed<DaemonSet>, &DaemonSet),
        reason: &str,
        message: String,
    ) -> kube::Result<Requeue> {
        let (to, recorded) = ((&*self.sets, &*self.queue), (set.status.as_ref(), Spec::hooks_of(set)));
        self.common.record_invalid(to, held, recorded, (reason, message)).await
    }
}
