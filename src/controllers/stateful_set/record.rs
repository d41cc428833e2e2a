//! Writes the status.

use std::time::Duration;

use super::{Controller, Job, Pass, apply::Left, observe::Seen};
use crate::{
    api::apps::stateful_set::{StatefulSet, StatefulSetCondition, StatefulSetStatus, VolumeClaimStatus},
    controllers::pod_set::{SetStatus, counted_generation, words_cleared},
    domain::{
        kinds::stateful_set::{
            plan::Plan,
            spec::Spec,
            status::{self, Counts},
        },
        workload::{
            conditions::{self, FAILED_CREATE, FAILED_UPDATE},
            status::{DEFAULTS_UNKNOWN, Progress, REVISION_UNKNOWN},
            steps::Wait,
        },
    },
    k8s::selector,
    runtime::{clock, packed::Packed, queue::Requeue, revisions::Resolved},
};

impl SetStatus for StatefulSetStatus {
    fn conditions(&self) -> &[StatefulSetCondition] {
        &self.conditions
    }

    fn with_conditions(self, conditions: Vec<StatefulSetCondition>, generation: i64) -> Self {
        let is_same = self.observed_generation == generation;
        let kept = |count: i32| if is_same { count } else { 0 };
        Self {
            conditions,
            observed_generation: generation,
            updated_replicas: kept(self.updated_replicas),
            updated_ready_replicas: kept(self.updated_ready_replicas),
            updated_available_replicas: kept(self.updated_available_replicas),
            ..self
        }
    }

    fn without_counts(&self) -> Self {
        Self {
            replicas: 0,
            ready_replicas: 0,
            available_replicas: 0,
            current_replicas: 0,
            updated_replicas: 0,
            updated_ready_replicas: 0,
            updated_available_replicas: 0,
            volume_claims: Vec::new(),
            conditions: words_cleared(&self.conditions),
            ..self.clone()
        }
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
        let current = job.current(resolved, seen);
        let counts = status::counts(&job.spec, &seen.pods, &seen.claims, (current, &resolved.update));
        let mut plan = left.plan.clone();
        if let Some(wait) = pass.kept() {
            plan.wait = Some(wait);
        }
        let progress = status::progress(&job.spec, &counts, &plan);
        let invalid = left.plan.impossible.as_ref().map(|wait| wait.message.as_str());
        let failures =
            [(FAILED_CREATE, pass.create_error.as_deref()), (FAILED_UPDATE, pass.update_error.as_deref().or(invalid))];
        let recorded = job.set.status.clone().unwrap_or_default();
        let now = clock::now();
        let wanted = StatefulSetStatus {
            current_revision: current.to_owned(),
            update_revision: resolved.update.clone(),
            collision_count: resolved.collisions,
            conditions: conditions::merged(&recorded.conditions, &progress, failures, now),
            ..self.counted(job, counts)
        };
        self.common.write_status(&self.sets, job.held.as_ref(), job.set.status.as_ref(), &wanted).await
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

    /// Events of what is in the way, when it was not there in the last pass.
    pub(super) fn report_trouble(&self, job: &Job, plan: &Plan) {
        let impossible = plan.impossible.as_ref().map(|wait| wait.message.clone());
        let now = (plan.limited.is_some(), impossible);
        let before = self.common.memories.with(&job.key, |memory| std::mem::replace(&mut memory.reported, now));
        let (was_limited, was_impossible) = before.unwrap_or_default();
        if let Some(message) = plan.limited.as_ref().filter(|_| !was_limited) {
            let message = format!("{message}: scaleStrategy.maxUnavailable is reached");
            self.common.pods.warning(&job.owner, "ScaleUpLimited", &message);
        }
        if let Some(Wait { reason, message }) = &plan.impossible
            && was_impossible.as_ref() != Some(message)
        {
            self.common.pods.warning(&job.owner, reason, message);
        }
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
            observed_generation: counted_generation(&job.set.metadata, recorded.observed_generation, &progress),
            current_revision: recorded.current_revision.clone(),
            update_revision: recorded.update_revision.clone(),
            collision_count: recorded.collision_count,
            conditions,
            ..self.counted(job, counts)
        };
        self.common.write_status(&self.sets, job.held.as_ref(), job.set.status.as_ref(), &wanted).await.map(drop)
    }

    /// That revisions can be neither read nor made, and why.
    pub(super) async fn record_unknown_revision(&self, job: &Job, pass: &Pass) -> kube::Result<Option<Duration>> {
        let why = pass.update_error.as_deref();
        let message = format!("the revision of the template cannot be found out: {}", why.unwrap_or_default());
        self.record_unknown((&job.held, &job.set), (REVISION_UNKNOWN, message), why).await
    }

    /// That the API server does not say what defaults the template has.
    pub(super) async fn record_unknown_defaults(
        &self,
        of: (&Packed<StatefulSet>, &StatefulSet),
        why: &str,
    ) -> kube::Result<Option<Duration>> {
        let message = format!("the defaults of the template cannot be found out: {why}");
        self.record_unknown(of, (DEFAULTS_UNKNOWN, message), Some(why)).await
    }

    /// What is not known of a spec. Everything else that the status says stays, the generation and the revisions above all: the
    /// next pass learns from them that the revision of this spec is not found out.
    async fn record_unknown(
        &self,
        (held, set): (&Packed<StatefulSet>, &StatefulSet),
        (reason, message): (&str, String),
        failure: Option<&str>,
    ) -> kube::Result<Option<Duration>> {
        let recorded = set.status.clone().unwrap_or_default();
        let progress = Progress::Waiting { reason: reason.into(), message };
        let failures = [(FAILED_CREATE, None), (FAILED_UPDATE, failure)];
        let conditions = conditions::merged(&recorded.conditions, &progress, failures, clock::now());
        let generation = recorded.observed_generation;
        let wanted = recorded.with_conditions(conditions, generation);
        self.common.write_status(&self.sets, held, set.status.as_ref(), &wanted).await
    }

    /// A spec that cannot be followed.
    pub(super) async fn record_invalid(
        &self,
        held: &Packed<StatefulSet>,
        set: &StatefulSet,
        message: String,
    ) -> kube::Result<Requeue> {
        let (to, recorded) = ((&*self.sets, &*self.queue), (set.status.as_ref(), Spec::hooks_of(set)));
        self.common.record_invalid(to, held, recorded, ("InvalidSpec", message)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_with_every_pod_may_wait_and_nothing_else() {
        let status = StatefulSetStatus::default();
        let counts = StatefulSetStatus { updated_available_replicas: 3, replicas: 1, ..status.clone() };
        assert_eq!(counts.without_counts(), status.without_counts());
        for other in [
            StatefulSetStatus { observed_generation: 2, ..status.clone() },
            StatefulSetStatus { current_revision: "web-2".into(), ..status.clone() },
            StatefulSetStatus { conditions: vec![StatefulSetCondition::default()], ..status.clone() },
        ] {
            assert_ne!(other.without_counts(), status.without_counts());
        }
    }
}
