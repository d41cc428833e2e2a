//! Which revisions a CloneSet is between.

use super::{CloneSetObjects, Controller};
use crate::{
    api::apps::clone_set::CloneSet,
    domain::{kinds::clone_set::make, workload::owner::OwnerRef},
    runtime::{
        revisions::{History, Naming, Recorded, Resolved},
        watches::ObjectKey,
    },
};

/// The history of a CloneSet.
pub(super) fn history<'a>(clone_set: &'a CloneSet, owner: &'a OwnerRef) -> History<'a> {
    History {
        owner,
        selector: &clone_set.spec.selector,
        naming: Naming::BY_DATA,
        labels: make::revision_labels(clone_set),
        annotations: make::revision_annotations(clone_set),
        newest_annotations: make::newest_annotations(clone_set),
    }
}

impl Controller {
    /// Finds out, and makes a new revision for a new template.
    pub(super) async fn resolve(&self, clone_set: &CloneSet) -> kube::Result<Resolved> {
        let key = ObjectKey::of(clone_set);
        let owner = make::owner(clone_set);
        let status = clone_set.status.clone().unwrap_or_default();
        let recorded = Recorded {
            generation: clone_set.metadata.generation.unwrap_or_default(),
            observed_generation: status.observed_generation,
            current: &status.current_revision,
            update: &status.update_revision,
            collisions: status.collision_count.unwrap_or(0),
        };
        let remembered = self.memories.resolved(&key);
        let (history, template) = (history(clone_set, &owner), &clone_set.spec.template);
        let resolved = self.revisions.resolve(&history, template, recorded, remembered).await?;
        if let Some(number) = resolved.rolled_back {
            let message = format!("back on revision {}, which is number {number} now", resolved.update);
            self.pods.normal(&owner, "RolledBack", &message);
        }
        self.memories.keep_resolved(&key, &resolved);
        Ok(resolved)
    }

    /// The same with all revisions at hand.
    pub(super) async fn with_known(&self, clone_set: &CloneSet, resolved: &Resolved) -> kube::Result<Resolved> {
        let owner = make::owner(clone_set);
        let (history, template) = (history(clone_set, &owner), &clone_set.spec.template);
        let resolved = self.revisions.with_known(&history, template, resolved.clone()).await?;
        self.memories.keep_resolved(&ObjectKey::of(clone_set), &resolved);
        Ok(resolved)
    }

    /// When all Pods are on their revision: deletes revisions beyond the history limit, and forgets the others.
    pub(super) async fn tidy(
        &self,
        clone_set: &CloneSet,
        resolved: &Resolved,
        seen: &CloneSetObjects,
    ) -> kube::Result<()> {
        if resolved.known.is_none() {
            return Ok(());
        }
        let key = ObjectKey::of(clone_set);
        let limit = clone_set.spec.revision_history_limit.unwrap_or(10);
        let pods = seen.pods.iter().map(|pod| pod.revision.as_str());
        let resolved = self.revisions.tidy(&key.namespace, resolved, pods, limit).await?;
        if resolved.known.is_none() {
            self.memories.forget_waiting(&key);
        }
        self.memories.keep_resolved(&key, &resolved);
        Ok(())
    }
}
