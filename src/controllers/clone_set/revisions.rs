//! Which revisions a CloneSet is between, and their templates.

use std::sync::Arc;

use serde_json::Value;

use super::{Controller, Seen};
use crate::{
    api::apps::clone_set::CloneSet,
    domain::{
        kinds::clone_set::make,
        workload::{owner::OwnerRef, revisions::Known},
    },
    k8s::revision,
    runtime::{
        revisions::{Chosen, History, Naming},
        watches::ObjectKey,
    },
};

/// The revisions that a CloneSet is between.
#[derive(Clone)]
pub(super) struct Resolved {
    /// Name of the one to get to.
    pub(super) update: String,
    /// Name of the one to come from.
    pub(super) current: String,
    /// How often the name of a new revision was taken.
    pub(super) collisions: i32,
    /// All of them, oldest first. None while nobody has needed them.
    pub(super) known: Option<Arc<Vec<Known>>>,
}

impl Resolved {
    /// The template of a revision.
    pub(super) fn template(&self, name: &str) -> Option<Value> {
        self.find(name).and_then(|known| revision::template(&known.data))
    }

    /// A revision, by its full or its short name.
    pub(super) fn find(&self, name: &str) -> Option<&Known> {
        self.known.iter().flat_map(|known| known.iter()).find(|known| revision::is_same(&known.name, name))
    }
}

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
    /// Finds out, and makes a new revision for a new template. Nothing is read while the status says that the spec has
    /// been seen and every name fits.
    pub(super) async fn resolve(&self, clone_set: &CloneSet) -> kube::Result<Resolved> {
        let key = ObjectKey::of(clone_set);
        let generation = clone_set.metadata.generation.unwrap_or_default();
        let status = clone_set.status.clone().unwrap_or_default();
        let remembered = self.memories.with(&key, |memory| memory.resolved.clone()).flatten();
        let mut resolved = match remembered {
            Some((of, resolved)) if of == generation => resolved,
            _ => {
                let data = revision::data(&clone_set.spec.template);
                let collisions = status.collision_count.unwrap_or(0);
                let own_name = clone_set.metadata.name.as_deref().unwrap_or_default();
                let name = revision::name(own_name, &revision::hash_of(&data, collisions));
                if status.observed_generation == generation && status.update_revision == name {
                    Resolved { update: name, current: String::new(), collisions, known: None }
                } else {
                    self.choose(clone_set, &data, collisions).await?
                }
            }
        };
        // With one revision in play its name is all there is to know.
        if !revision::is_same(&status.current_revision, &resolved.update) && resolved.known.is_none() {
            resolved.known = Some(self.list(clone_set).await?);
        }
        resolved.current = resolved
            .find(&status.current_revision)
            .filter(|_| !status.current_revision.is_empty())
            .map_or_else(|| resolved.update.clone(), |known| known.name.clone());
        self.keep(&key, generation, &resolved);
        Ok(resolved)
    }

    fn keep(&self, key: &ObjectKey, generation: i64, resolved: &Resolved) {
        self.memories.with(key, |memory| memory.resolved = Some((generation, resolved.clone())));
    }

    /// The same with all revisions at hand.
    pub(super) async fn with_known(&self, clone_set: &CloneSet, resolved: &Resolved) -> kube::Result<Resolved> {
        if resolved.known.is_some() {
            return Ok(resolved.clone());
        }
        let resolved = Resolved { known: Some(self.list(clone_set).await?), ..resolved.clone() };
        self.keep(&ObjectKey::of(clone_set), clone_set.metadata.generation.unwrap_or_default(), &resolved);
        Ok(resolved)
    }

    async fn list(&self, clone_set: &CloneSet) -> kube::Result<Arc<Vec<Known>>> {
        let owner = make::owner(clone_set);
        self.revisions.list(&history(clone_set, &owner)).await.map(Arc::new)
    }

    async fn choose(&self, clone_set: &CloneSet, data: &Value, collisions: i32) -> kube::Result<Resolved> {
        let owner = make::owner(clone_set);
        let chosen = self.revisions.choose(&history(clone_set, &owner), data, collisions).await?;
        let Chosen { name, collisions, known, rolled_back } = chosen;
        if let Some(number) = rolled_back {
            let message = format!("back on revision {name}, which is number {number} now");
            self.pods.normal(&owner, "RolledBack", &message);
        }
        Ok(Resolved { update: name, current: String::new(), collisions, known: Some(Arc::new(known)) })
    }

    /// When every Pod is where it is to be: deletes revisions beyond the history limit, and forgets the others.
    pub(super) async fn tidy(&self, clone_set: &CloneSet, resolved: &Resolved, seen: &Seen) -> kube::Result<()> {
        let Some(known) = &resolved.known else { return Ok(()) };
        let live: Vec<&str> = [resolved.update.as_str(), resolved.current.as_str()]
            .into_iter()
            .chain(seen.pods.iter().map(|pod| pod.revision.as_str()))
            .collect();
        let limit = clone_set.spec.revision_history_limit.unwrap_or(10);
        let namespace = clone_set.metadata.namespace.as_deref().unwrap_or_default();
        let left = self.revisions.truncate(namespace, known, &live, limit).await?;
        let is_settled = revision::is_same(&resolved.update, &resolved.current)
            && seen.pods.iter().all(|pod| revision::is_same(&pod.revision, &resolved.update));
        let known = (!is_settled).then(|| Arc::new(left));
        if is_settled {
            self.memories.with(&ObjectKey::of(clone_set), |memory| memory.looked_at.clear());
        }
        let generation = clone_set.metadata.generation.unwrap_or_default();
        self.keep(&ObjectKey::of(clone_set), generation, &Resolved { known, ..resolved.clone() });
        Ok(())
    }
}
