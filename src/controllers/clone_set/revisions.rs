//! Which revisions a CloneSet is between.

use super::{CloneSetJob, CloneSetObjects, Controller};
use crate::{
    domain::{
        kinds::clone_set::make::newest_annotations,
        workload::make::{revision_annotations, revision_labels},
    },
    runtime::revisions::{History, Naming, Recorded, Resolved},
};

/// The history of a CloneSet.
pub(super) fn history(job: &CloneSetJob) -> History<'_> {
    History {
        owner: &job.owner,
        selector: &job.spec.selector,
        naming: Naming::BY_DATA,
        labels: revision_labels(&job.spec.template),
        annotations: revision_annotations(&job.clone_set.metadata),
        newest_annotations: newest_annotations(&job.spec),
    }
}

impl Controller {
    /// Finds out, and makes a new revision for a new template.
    pub(super) async fn resolve(&self, job: &CloneSetJob) -> kube::Result<Resolved> {
        let status = job.clone_set.status.clone().unwrap_or_default();
        let recorded = Recorded {
            generation: job.clone_set.metadata.generation.unwrap_or_default(),
            observed_generation: status.observed_generation,
            current: &status.current_revision,
            update: &status.update_revision,
            collisions: status.collision_count.unwrap_or(0),
        };
        let remembered = self.memories.resolved(&job.key);
        let resolved = self.revisions.resolve(&history(job), &job.spec.template, recorded, remembered).await?;
        if let Some(number) = resolved.rolled_back {
            let message = format!("back on revision {}, which is number {number} now", resolved.update);
            self.pods.normal(&job.owner, "RolledBack", &message);
        }
        self.memories.keep_resolved(&job.key, &resolved);
        Ok(resolved)
    }

    /// The same with all revisions at hand.
    pub(super) async fn with_known(&self, job: &CloneSetJob, resolved: &Resolved) -> kube::Result<Resolved> {
        let resolved = self.revisions.with_known(&history(job), &job.spec.template, resolved.clone()).await?;
        self.memories.keep_resolved(&job.key, &resolved);
        Ok(resolved)
    }

    /// When all Pods are on their revision: deletes revisions beyond the history limit, and forgets the others.
    pub(super) async fn tidy(
        &self,
        job: &CloneSetJob,
        resolved: &Resolved,
        seen: &CloneSetObjects,
    ) -> kube::Result<()> {
        if resolved.known.is_none() {
            return Ok(());
        }
        let limit = job.spec.revision_history_limit;
        let pods = seen.pods.iter().map(|pod| pod.revision.as_str());
        let resolved = self.revisions.tidy(&job.key.namespace, resolved, pods, limit).await?;
        if resolved.known.is_none() {
            self.memories.forget_waiting(&job.key);
        }
        self.memories.keep_resolved(&job.key, &resolved);
        Ok(())
    }
}
