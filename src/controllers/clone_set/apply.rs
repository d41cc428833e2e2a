//! Writes to one Pod: what is common to scaling, refreshing and updating.

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{CloneSetJob, CloneSetObjects, Controller, Pass, Resolved};
use crate::{
    api::apps::clone_set::CloneSet,
    domain::pod::lifecycle::State,
    k8s::{pod::PodView, selector::Selector},
    runtime::{apply::code, in_place::Refreshing, packed::Packed, wake},
};

impl Controller {
    /// Lets go of Pods that the selector does not match any more; see [`Self::adopt`] for others.
    pub(super) async fn release(&self, job: &CloneSetJob, seen: &CloneSetObjects) -> kube::Result<bool> {
        let selector = match Selector::of(&job.spec.selector) {
            Ok(selector) if !selector.is_empty() => selector,
            // Nobody could say which Pods are meant: admission refuses it, and letting go of all would be worst.
            _ => return Ok(false),
        };
        let (mut has_written, mut failure) = (false, None);
        for pod in seen.views.iter().filter(|pod| !selector.matches(&pod.labels)) {
            match self.pods.release(&job.owner, pod).await {
                // Released or gone: the store has changed.
                Ok(_) => has_written = true,
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(has_written), Err)
    }

    /// Moves a Pod to another state: for most of them it waits for its hook there.
    pub(super) async fn move_to(
        &self,
        job: &CloneSetJob,
        pod: &PodView,
        state: State,
        restore: bool,
    ) -> kube::Result<bool> {
        self.in_place.move_to(pod, state, job.spec.hooks(), restore).await
    }

    /// Brings every Pod's own state up to date.
    pub(super) async fn refresh_all(
        &self,
        job: &CloneSetJob,
        resolved: &Resolved,
        seen: &CloneSetObjects,
        pass: &mut Pass,
    ) {
        let by = Refreshing { owner: &job.owner, lifecycle: job.spec.hooks(), update_revision: &resolved.update };
        let generation = job.clone_set.metadata.generation.unwrap_or_default();
        // Beside the pass they are refreshed by the revision of this spec, if that is known.
        let singly =
            !wake::pause(seen.views.len()).is_zero() && self.memories.update_revision(&job.key, generation).is_some();
        let beside = singly.then_some(&*self.pod_queue);
        let waits_in = |uid: &str| self.memories.waits_in(&job.key, uid);
        let all = self.in_place.refresh_all(seen.views.iter(), |_: &PodView| by, waits_in, beside).await;
        self.memories.keep_waiting(&job.key, all.waits);
        pass.next.look_after(all.look);
        pass.note(all.failure.map_or(Ok(all.written), Err), |outcome| &mut outcome.update_error);
    }

    /// Drops names from `podsToDelete` whose Pods are gone. Only if the list is still the one we looked at.
    pub(super) async fn forget_names(&self, job: &CloneSetJob, seen: &CloneSetObjects) -> kube::Result<()> {
        let listed = &job.spec.pods_to_delete;
        let left: Vec<&String> = listed.iter().filter(|name| seen.view(name).is_some()).collect();
        if left.len() == listed.len() {
            return Ok(());
        }
        let path = "/spec/scaleStrategy/podsToDelete";
        let change = match left.is_empty() {
            true => json!({"op": "remove", "path": path}),
            false => json!({"op": "replace", "path": path, "value": left}),
        };
        let patch = json!([{"op": "test", "path": path, "value": listed}, change]);
        let patch: json_patch::Patch = serde_json::from_value(patch).map_err(kube::Error::SerdeError)?;
        let api: Api<Packed<CloneSet>> = Api::namespaced(self.context.client.clone(), &job.key.namespace);
        match api.patch(&job.key.name, &PatchParams::default(), &Patch::<()>::Json(patch)).await {
            Ok(newer) => {
                self.clone_sets.upsert(newer);
                Ok(())
            }
            // Somebody has changed the list: their change comes by the watch.
            Err(error) if matches!(code(&error), Some(404 | 409 | 422)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
