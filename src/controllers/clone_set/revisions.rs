//! Which revisions a CloneSet is between, and their templates.

use std::{collections::BTreeMap, sync::Arc};

use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};

use super::{Controller, Seen, lock, uid_of};
use crate::{
    api::{apps::clone_set::CloneSet, labels},
    domain::{
        kinds::clone_set::make,
        workload::revisions::{self, Choice, Known},
    },
    k8s::{revision, selector},
    runtime::{apply::code, watches::ObjectKey},
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

fn api(controller: &Controller, namespace: &str) -> Api<DynamicObject> {
    // Raw: the data of a revision is whatever the template was.
    let kind = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("apps", "v1", "ControllerRevision"),
        "controllerrevisions",
    );
    Api::namespaced_with(controller.context.client.clone(), namespace, &kind)
}

/// Takes over a revision that nobody controls, as one that was orphaned: only those of our own may be changed or deleted.
async fn adopt(api: &Api<DynamicObject>, clone_set: &CloneSet, orphan: &DynamicObject) -> kube::Result<Option<Known>> {
    let metadata = &orphan.metadata;
    if metadata.deletion_timestamp.is_some() || clone_set.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let mut owners = vec![make::owner(clone_set)];
    owners.extend(metadata.owner_references.iter().flatten().map(|owner| json!(owner)));
    let patch = json!({"metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version,
        "ownerReferences": owners}});
    let name = metadata.name.as_deref().unwrap_or_default();
    match api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(adopted) => Ok(Some(known_of(&adopted))),
        // It has changed, or is gone: the next list tells.
        Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn known_of(object: &DynamicObject) -> Known {
    Known {
        name: object.metadata.name.clone().unwrap_or_default(),
        number: object.data.get("revision").and_then(Value::as_i64).unwrap_or(0),
        created: object.metadata.creation_timestamp.as_ref().map(|time| time.0),
        data: object.data.get("data").cloned().unwrap_or_default(),
        claims_hash: object.metadata.annotations.as_ref().and_then(|a| a.get(labels::CLAIM_TEMPLATES_HASH)).cloned(),
    }
}

impl Controller {
    /// Finds out, and makes a new revision for a new template. Nothing is read while the status says that the spec has
    /// been seen and every name fits.
    pub(super) async fn resolve(&self, clone_set: &CloneSet) -> kube::Result<Resolved> {
        let key = ObjectKey::of(clone_set);
        let generation = clone_set.metadata.generation.unwrap_or_default();
        let status = clone_set.status.clone().unwrap_or_default();
        let remembered = lock(&self.memories).get(&key).and_then(|memory| memory.resolved.clone());
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
                    self.choose(clone_set, data, collisions).await?
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
        if let Some(memory) = lock(&self.memories).get_mut(key) {
            memory.resolved = Some((generation, resolved.clone()));
        }
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
        let api = api(self, clone_set.metadata.namespace.as_deref().unwrap_or_default());
        let selector = selector::text_of(&clone_set.spec.selector);
        let list = api.list(&ListParams::default().labels(&selector)).await?;
        let mut known = Vec::new();
        for object in &list.items {
            let mut owners = object.metadata.owner_references.iter().flatten().filter(|o| o.controller == Some(true));
            match owners.next() {
                Some(owner) if owner.uid == uid_of(clone_set) => known.push(known_of(object)),
                Some(_) => {}
                None => known.extend(adopt(&api, clone_set, object).await?),
            }
        }
        revisions::sort(&mut known);
        Ok(Arc::new(known))
    }

    async fn choose(&self, clone_set: &CloneSet, data: Value, collisions: i32) -> kube::Result<Resolved> {
        let mut known = Vec::clone(&*self.list(clone_set).await?);
        let api = api(self, clone_set.metadata.namespace.as_deref().unwrap_or_default());
        let mut collisions = collisions;
        let update = match revisions::choose(&known, &data) {
            Choice::Newest(index) => known[index].name.clone(),
            Choice::Again(index, number) => {
                let name = known[index].name.clone();
                let annotations = json!({labels::CLAIM_TEMPLATES_HASH: make::claims_hash(clone_set)});
                let patch = json!({"revision": number, "metadata": {"annotations": annotations}});
                let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
                known[index] = known_of(&patched);
                self.tell(clone_set, "RolledBack", &format!("back on revision {name}, which is number {number} now"));
                name
            }
            Choice::Make { number } => {
                let (made, after) = self.make_revision(clone_set, &data, number, collisions).await?;
                collisions = after;
                let name = made.name.clone();
                known.retain(|known| known.name != name);
                known.push(made);
                name
            }
        };
        revisions::sort(&mut known);
        Ok(Resolved { update, current: String::new(), collisions, known: Some(Arc::new(known)) })
    }

    /// Makes a revision, under another name as long as somebody else has the one that was to be. How often names were
    /// taken by then.
    pub(super) async fn make_revision(
        &self,
        clone_set: &CloneSet,
        data: &Value,
        number: i64,
        mut collisions: i32,
    ) -> kube::Result<(Known, i32)> {
        let api = api(self, clone_set.metadata.namespace.as_deref().unwrap_or_default());
        loop {
            let hash = revision::hash_of(data, collisions);
            let wanted = make::controller_revision(clone_set, data, &hash, number);
            let taken = match api.create(&PostParams::default(), &from_json(&wanted)?).await {
                Ok(made) => {
                    tracing::info!(clone_set = %ObjectKey::of(clone_set), revision = made.metadata.name, number, "new revision");
                    return Ok((known_of(&made), collisions));
                }
                Err(error) if code(&error) == Some(409) => error,
                Err(error) => return Err(error),
            };
            let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
            // None: gone meanwhile.
            let Some(there) = api.get_opt(name).await? else { continue };
            let mut owners = there.metadata.owner_references.iter().flatten().filter(|o| o.controller == Some(true));
            let owner = owners.next();
            let is_ours = owner.is_some_and(|owner| owner.uid == uid_of(clone_set));
            if !revisions::is_same_data(&known_of(&there).data, data) || (owner.is_some() && !is_ours) {
                // That of a namesake that was deleted goes with it, whatever its data.
                collisions += 1;
            } else if there.metadata.deletion_timestamp.is_some() {
                // The name will be free again.
                return Err(taken);
            } else if is_ours {
                return Ok((known_of(&there), collisions));
            } else if let Some(adopted) = adopt(&api, clone_set, &there).await? {
                return Ok((adopted, collisions));
            }
        }
    }

    /// When every Pod is where it is to be: deletes revisions beyond the history limit, and forgets the others.
    pub(super) async fn tidy(&self, clone_set: &CloneSet, resolved: &Resolved, seen: &Seen) -> kube::Result<()> {
        let Some(known) = &resolved.known else { return Ok(()) };
        let live: Vec<&str> = [resolved.update.as_str(), resolved.current.as_str()]
            .into_iter()
            .chain(seen.pods.iter().map(|pod| pod.revision.as_str()))
            .collect();
        let limit = clone_set.spec.revision_history_limit.unwrap_or(10);
        let api = api(self, clone_set.metadata.namespace.as_deref().unwrap_or_default());
        let mut left = Vec::clone(known);
        for name in revisions::superfluous(known, &live, limit) {
            match api.delete(name, &DeleteParams::default()).await {
                Err(error) if code(&error) != Some(404) => return Err(error),
                _ => left.retain(|known| known.name != name),
            }
        }
        let is_settled = revision::is_same(&resolved.update, &resolved.current)
            && seen.pods.iter().all(|pod| revision::is_same(&pod.revision, &resolved.update));
        let known = (!is_settled).then(|| Arc::new(left));
        if is_settled && let Some(memory) = lock(&self.memories).get_mut(&ObjectKey::of(clone_set)) {
            memory.looked_at.clear();
        }
        let generation = clone_set.metadata.generation.unwrap_or_default();
        self.keep(&ObjectKey::of(clone_set), generation, &Resolved { known, ..resolved.clone() });
        Ok(())
    }
}

pub(super) fn from_json<K: serde::de::DeserializeOwned>(object: &Value) -> kube::Result<K> {
    serde_json::from_value(object.clone()).map_err(kube::Error::SerdeError)
}

/// Ways from old revisions to one target, worked out once per pass.
pub(super) type Ways<T> = BTreeMap<String, T>;
