//! Writes the status.

use std::time::Duration;

use kube::Api;

use super::{
    Controller, Job, Pass,
    apply::{Left, kept},
    observe::Seen,
};
use crate::{
    api::apps::stateful_set::{StatefulSet, StatefulSetCondition, StatefulSetStatus, VolumeClaimStatus},
    domain::{
        kinds::stateful_set::status::{self, Counts},
        workload::{
            owner::OwnerRef,
            status::{self as conditions, Condition, Progress},
        },
    },
    k8s::{selector, time::Now},
    runtime::{clock, queue::Requeue, revisions::Resolved, watches::ObjectKey},
};

/// Condition: Pods or claims could not be created.
const FAILED_CREATE: &str = "FailedCreatePod";
/// Condition: Pods or claims could not be changed or deleted.
const FAILED_UPDATE: &str = "FailedUpdatePod";

fn shared(condition: &StatefulSetCondition) -> Condition {
    let StatefulSetCondition { type_, status, last_transition_time, reason, message } = condition.clone();
    Condition { type_, status, reason, message, last_transition_time }
}

fn own(condition: Condition) -> StatefulSetCondition {
    let Condition { type_, status, reason, message, last_transition_time } = condition;
    StatefulSetCondition { type_, status, last_transition_time, reason, message }
}

/// The conditions of the recorded status with those that are ours as they are now. Others' are carried.
fn with_conditions(
    recorded: &[StatefulSetCondition],
    progress: &Progress,
    failures: [(&str, Option<&str>); 2],
    now: Now,
) -> Vec<StatefulSetCondition> {
    let before: Vec<Condition> = recorded.iter().map(shared).collect();
    let mut ours: Vec<Condition> = conditions::conditions(progress, &before, now.wall).into();
    for (type_, error) in failures {
        ours.extend(error.map(|error| conditions::set(&before, type_, true, type_, error, now.wall)));
    }
    let is_ours = |condition: &StatefulSetCondition| {
        [conditions::READY, conditions::RECONCILING, conditions::STALLED, FAILED_CREATE, FAILED_UPDATE]
            .contains(&condition.type_.as_str())
    };
    recorded.iter().filter(|condition| !is_ours(condition)).cloned().chain(ours.into_iter().map(own)).collect()
}

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
            conditions: with_conditions(&recorded.conditions, &progress, failures, now),
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
        let conditions = with_conditions(
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
        self.pods.warning(&OwnerRef::of(set), "InvalidSpec", &message);
        let recorded = set.status.clone().unwrap_or_default();
        let failures = [(FAILED_CREATE, None), (FAILED_UPDATE, Some(message.as_str()))];
        let progress = Progress::Stalled { reason: "InvalidSpec".into(), message: message.clone() };
        let wanted = StatefulSetStatus {
            observed_generation: set.metadata.generation.unwrap_or_default(),
            conditions: with_conditions(&recorded.conditions, &progress, failures, clock::now()),
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
        let is_settled = wanted.conditions.iter().any(|c| c.type_ == conditions::READY && c.status == "True");
        let can_wait = !is_settled && without_counts(&recorded) == without_counts(wanted);
        let api: Api<StatefulSet> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let to = (&api, self.sets.as_ref());
        let outcome = self.status.write(to, set, (&recorded, wanted), can_wait, clock::now()).await?;
        Ok(outcome.look_after())
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn at(second: i64) -> Now {
        Now { wall: Timestamp::from_second(second).unwrap(), mono: Duration::from_secs(1) }
    }

    #[test]
    fn shortfall_03_conditions_are_carried_and_failures_are_cleared() {
        let other = StatefulSetCondition { type_: "Mine".into(), status: "True".into(), ..Default::default() };
        let failed = [(FAILED_CREATE, Some("quota")), (FAILED_UPDATE, None)];
        let first = with_conditions(std::slice::from_ref(&other), &Progress::Available, failed, at(5));
        assert_eq!((first[0].clone(), first.len()), (other.clone(), 5));
        let created = first.iter().find(|c| c.type_ == FAILED_CREATE).unwrap();
        assert_eq!((created.status.as_str(), created.message.as_str()), ("True", "quota"));
        let again = with_conditions(&first, &Progress::Available, failed, at(50));
        assert_eq!(again, first, "the times stay");
        let mended =
            with_conditions(&first, &Progress::Available, [(FAILED_CREATE, None), (FAILED_UPDATE, None)], at(60));
        assert!(mended.iter().all(|c| c.type_ != FAILED_CREATE) && mended.contains(&other));
    }

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
