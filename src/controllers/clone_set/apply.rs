//! Writes to one Pod: what is common to scaling, refreshing and updating.

use std::sync::Arc;

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{CloneSetJob, CloneSetObjects, Controller, Pass, Resolved};
use crate::{
    api::apps::clone_set::CloneSet,
    domain::pod::{
        lifecycle::State,
        refresh::{self, Refresh},
    },
    k8s::{pod::PodView, selector::Selector, time::Now},
    runtime::{
        apply::code,
        clock,
        in_place::{Refreshed, Refreshing},
        slow_start::each,
        wake,
        watches::ObjectKey,
    },
};

impl Controller {
    /// Lets go of Pods that the selector does not match any more; see [`Self::adopt`] for others.
    pub(super) async fn release(&self, job: &CloneSetJob, seen: &CloneSetObjects) -> kube::Result<bool> {
        let selector = match Selector::of(&job.spec.selector) {
            Ok(selector) if !selector.is_empty() => selector,
            // Nobody could say which Pods are meant: admission refuses it, and letting go of all would be worst.
            _ => return Ok(false),
        };
        let owner = &job.owner;
        let (mut released, mut failure) = (false, None);
        for pod in seen.views.iter().filter(|pod| !selector.matches(&pod.labels)) {
            match self.pods.release(owner, pod).await {
                Ok(()) => {
                    let message = format!("Pod {} no longer matches the selector", pod.name());
                    self.pods.normal(owner, "Released", &message);
                }
                // It is gone, or another one has its name, which the store shows by now.
                Err(error) if matches!(code(&error), Some(404 | 409)) => {}
                Err(error) => {
                    failure = failure.or(Some(error));
                    continue;
                }
            }
            released = true;
        }
        failure.map_or(Ok(released), Err)
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
        let now = clock::now();
        let by = Refreshing { owner: &job.owner, lifecycle: job.spec.hooks(), update_revision: &resolved.update };
        let generation = job.clone_set.metadata.generation.unwrap_or_default();
        // Beside the pass they are refreshed by the revision of this spec, if that is known.
        let singly =
            !wake::pause(seen.views.len()).is_zero() && self.memories.update_revision(&job.key, generation).is_some();
        let mut work = Vec::new();
        for view in &seen.views {
            match refresh::refresh(view, None, by.lifecycle, by.update_revision, now) {
                Refresh::Nothing => {}
                Refresh::Wait { after, for_what } => {
                    tracing::debug!(pod = view.name(), for_what, "waits");
                    pass.next.look_after(after);
                }
                // What one Pod needs for itself does not hold up the pass.
                Refresh::Status(_) if singly => self.pod_queue.add(ObjectKey::of(view.as_ref())),
                needed => work.push((view.clone(), needed)),
            }
        }
        let (done, failure) = each(work, |(view, needed): (Arc<PodView>, Refresh)| async move {
            self.refresh_one(&job.key, by, &view, needed, now).await
        })
        .await;
        let mut written = false;
        for done in done {
            match done {
                Refreshed::Written => written = true,
                Refreshed::Nothing => {}
                Refreshed::Later(after) => pass.next.look_after(Some(after)),
                Refreshed::Waits(waiting) => pass.next.look_after(waiting.look),
            }
        }
        pass.note(failure.map_or(Ok(written), Err), |outcome| &mut outcome.update_error);
    }

    pub(super) async fn refresh_one(
        &self,
        key: &ObjectKey,
        by: Refreshing<'_>,
        view: &Arc<PodView>,
        needed: Refresh,
        now: Now,
    ) -> kube::Result<Refreshed> {
        let waits_in = self.memories.waits_in(key, view.uid());
        let refreshed = self.in_place.refresh(by, view, needed, waits_in.as_deref(), now).await?;
        if let Refreshed::Waits(waiting) = &refreshed {
            self.memories.keep_waiting(key, view.uid(), &waiting.version);
        }
        Ok(refreshed)
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
        let api: Api<CloneSet> = Api::namespaced(self.context.client.clone(), &job.key.namespace);
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
