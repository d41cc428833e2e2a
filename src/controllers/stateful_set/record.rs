//! Writes the status.

use std::time::Duration;

use kube::Api;
use serde_json::json;

use super::{
    Controller, Job, Pass,
    apply::{Left, kept},
    observe::Seen,
};
use crate::{
    api::apps::stateful_set::{StatefulSet, StatefulSetStatus, VolumeClaimStatus},
    domain::{
        kinds::stateful_set::status::{self, Counts},
        workload::{
            conditions::{self, FAILED_CREATE, FAILED_UPDATE},
            owner::OwnerRef,
            status::{Progress, READY},
        },
    },
    k8s::selector,
    runtime::{clock, queue::Requeue, revisions::Resolved, watches::ObjectKey},
};

/// A status without what may be written a little later.
fn without_counts(status: &StatefulSetStatus) -> StatefulSetStatus {
    let mut status = StatefulSetStatus {
        replicas: 0,
        ready_replicas: 0,
        available_replicas: 0,
        current_replicas: 0,
        updated_replicas: 0,
        updated_ready_replicas: 0,
        updated_available_replicas: 0,
        volume_claims: Vec::new(),
        ..status.clone()
    };
    for condition in &mut status.conditions {
        condition.message.clear();
        condition.reason.clear();
    }
    status
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
        let is_complete = status::is_complete(&job.spec, &seen.pods, &resolved.update);
        let current = if is_complete { &resolved.update } else { &resolved.current };
        let counts = status::counts(&job.spec, &seen.pods, &seen.claims, (current, &resolved.update));
        let mut told = left.plan.clone();
        if let Some(wait) = kept(&pass.refusals) {
            told.wait = Some(wait);
        }
        let progress = status::progress(&job.spec, &counts, &told);
        let invalid = left.plan.impossible.as_ref().map(|wait| wait.message.as_str());
        let failures =
            [(FAILED_CREATE, pass.create_error.as_deref()), (FAILED_UPDATE, pass.update_error.as_deref().or(invalid))];
        let recorded = job.set.status.clone().unwrap_or_default();
        let now = clock::now();
        let wanted = StatefulSetStatus {
            current_revision: current.clone(),
            update_revision: resolved.update.clone(),
            collision_count: resolved.collisions,
            conditions: conditions::merged(&recorded.conditions, &progress, failures, now),
            ..self.counted(job, counts)
        };
        self.write(&job.key, &job.set, &wanted).await
    }

    /// The counts of a status.
    fn counted(&self, job: &Job, counts: Counts) -> StatefulSetStatus {
        let Counts { replicas, ready, available, current, updated, updated_ready, updated_available, claims } = counts;
        let claim = |(name, compatible, ready): (String, i32, i32)| VolumeClaimStatus {
            volume_claim_name: name,
            compatible_replicas: compatible,
            compatible_ready_replicas: ready,
        };
        StatefulSetStatus {
            observed_generation: job.set.metadata.generation.unwrap_or_default(),
            replicas,
            ready_replicas: ready,
            available_replicas: available,
            current_replicas: current,
            updated_replicas: updated,
            updated_ready_replicas: updated_ready,
            updated_available_replicas: updated_available,
            label_selector: selector::text_of(&job.spec.selector),
            volume_claims: claims.into_iter().map(claim).collect(),
            ..StatefulSetStatus::default()
        }
    }

    /// The set is being deleted: only its Pods are counted.
    pub(super) async fn record_leaving(&self, job: &Job) -> kube::Result<Requeue> {
        let message = "the StatefulSet is being deleted".to_owned();
        let progress = Progress::Waiting { reason: "Terminating".into(), message };
        self.record_progress(job, progress).await?;
        Ok(Requeue::Await)
    }

    /// Writes counts and how the set is, between the revisions that its status names.
    pub(super) async fn record_progress(&self, job: &Job, progress: Progress) -> kube::Result<()> {
        let seen = self.see_again(job);
        let recorded = job.set.status.clone().unwrap_or_default();
        let revisions = (recorded.current_revision.as_str(), recorded.update_revision.as_str());
        let counts = status::counts(&job.spec, &seen.pods, &seen.claims, revisions);
        let conditions = conditions::merged(
            &recorded.conditions,
            &progress,
            [(FAILED_CREATE, None), (FAILED_UPDATE, None)],
            clock::now(),
        );
        let wanted = StatefulSetStatus {
            current_revision: recorded.current_revision.clone(),
            update_revision: recorded.update_revision.clone(),
            collision_count: recorded.collision_count,
            conditions,
            ..self.counted(job, counts)
        };
        self.write(&job.key, &job.set, &wanted).await.map(drop)
    }

    /// A spec that cannot be followed: nothing is done on a guess, and the status says why.
    pub(super) async fn record_invalid(
        &self,
        key: &ObjectKey,
        set: &StatefulSet,
        message: String,
    ) -> kube::Result<Requeue> {
        let recorded = set.status.clone().unwrap_or_default();
        if !recorded.conditions.iter().any(|condition| condition.message == message) {
            self.pods.warning(&OwnerRef::of(set), "InvalidSpec", &message);
        }
        let failures = [(FAILED_CREATE, None), (FAILED_UPDATE, Some(message.as_str()))];
        let progress = Progress::Stalled { reason: "InvalidSpec".into(), message: message.clone() };
        let wanted = StatefulSetStatus {
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
        set: &StatefulSet,
        wanted: &StatefulSetStatus,
    ) -> kube::Result<Option<Duration>> {
        let recorded = set.status.clone().unwrap_or_default();
        if *wanted == recorded && set.status.is_some() {
            return Ok(None);
        }
        let is_settled = wanted.conditions.iter().any(|c| c.type_ == READY && c.status == "True");
        let can_wait = !is_settled && without_counts(&recorded) == without_counts(wanted);
        let api: Api<StatefulSet> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let to = (&api, self.sets.as_ref());
        let json = |status: &StatefulSetStatus| serde_json::to_value(status).map_err(kube::Error::SerdeError);
        // Zeros are written too, the first time: the scale subresource and columns read them.
        let before = if set.status.is_some() { json(&recorded)? } else { json!({}) };
        let outcome = self.status.write(to, set, (&before, &json(wanted)?), can_wait, clock::now()).await?;
        Ok(outcome.look_after())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::apps::stateful_set::StatefulSetCondition;

    #[test]
    fn what_changes_with_every_pod_may_wait_and_nothing_else() {
        let status = StatefulSetStatus::default();
        let counts = StatefulSetStatus { updated_available_replicas: 3, replicas: 1, ..status.clone() };
        assert_eq!(without_counts(&counts), without_counts(&status));
        for other in [
            StatefulSetStatus { observed_generation: 2, ..status.clone() },
            StatefulSetStatus { current_revision: "web-2".into(), ..status.clone() },
            StatefulSetStatus { conditions: vec![StatefulSetCondition::default()], ..status.clone() },
        ] {
            assert_ne!(without_counts(&other), without_counts(&status));
        }
    }
}
