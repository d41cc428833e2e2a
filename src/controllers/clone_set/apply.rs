//! Writes to one Pod: what is common to scaling, refreshing and updating.

use std::{sync::Arc, time::Duration};

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{AFTER_CONFLICT, Controller, Pass, Resolved, Seen, lock, pause};
use crate::{
    api::{apps::clone_set::CloneSet, labels},
    domain::{
        kinds::clone_set::make,
        pod::{
            inplace::{self, Annotations, UpdateSpec, resize},
            lifecycle::State,
            refresh::{self, Refresh},
        },
    },
    k8s::{pod::PodView, selector::Selector, time::Now},
    runtime::{apply::code, clock, pod_control::Part, slow_start::each, watches::ObjectKey},
};

/// What came of something that was tried with one Pod.
pub(super) enum Tried {
    /// It was done.
    Done,
    /// It was not: it is not there, is being written by somebody else, or is as it should be.
    Nothing,
    /// It may not be done now. The room that it was to take is free.
    Refused,
    /// It cannot be done, with the reason. The room that it was to take is free.
    Impossible(String),
}

impl Controller {
    /// Lets go of Pods that the selector does not match any more; others are not adopted.
    pub(super) async fn release(&self, clone_set: &CloneSet, seen: &Seen) -> kube::Result<bool> {
        let selector = match Selector::of(&clone_set.spec.selector) {
            Ok(selector) if !selector.is_empty() => selector,
            // Nobody could say which Pods are meant: admission refuses it, and letting go of all would be worst.
            _ => return Ok(false),
        };
        let owner = make::owner(clone_set);
        let (mut released, mut failure) = (false, None);
        for pod in seen.views.iter().filter(|pod| !selector.matches(&pod.labels)) {
            if let Err(error) = self.pods.release(&owner, pod).await {
                failure = failure.or(Some(error));
                continue;
            }
            self.pods.normal(&owner, "Released", &format!("Pod {} no longer matches the selector", pod.name()));
            released = true;
        }
        failure.map_or(Ok(released), Err)
    }

    /// Moves a Pod to another state: for most of them it waits for its hook there.
    pub(super) async fn announce(
        &self,
        clone_set: &CloneSet,
        pod: &PodView,
        state: State,
        restore: bool,
    ) -> kube::Result<bool> {
        let lifecycle = clone_set.spec.lifecycle.clone().unwrap_or_default();
        let Some(patch) = refresh::move_to(pod, state.clone(), &lifecycle, restore, clock::now()) else {
            return Ok(false);
        };
        self.pods.try_patch(pod, Part::Status, &patch).await?;
        tracing::info!(clone_set = %ObjectKey::of(clone_set), pod = pod.name(), state = state.as_str(), "has another state");
        Ok(true)
    }

    /// Brings every Pod's own state up to date. True: something was written.
    pub(super) async fn refresh_all(
        &self,
        clone_set: &CloneSet,
        resolved: &Resolved,
        seen: &Seen,
        pass: &mut Pass,
    ) -> bool {
        let now = clock::now();
        let lifecycle = clone_set.spec.lifecycle.as_ref();
        let is_large = !pause(seen.views.len()).is_zero();
        let mut work = Vec::new();
        for view in &seen.views {
            match refresh::refresh(view, None, lifecycle, &resolved.update, now) {
                Refresh::Nothing => {}
                Refresh::Wait { after, for_what } => {
                    tracing::debug!(pod = view.name(), for_what, "waits");
                    pass.look_after(after);
                }
                // What one Pod needs for itself does not hold up the pass.
                Refresh::Status(_) if is_large => self.pod_queue.add(ObjectKey::of(view.as_ref())),
                needed => work.push((view.clone(), needed)),
            }
        }
        let (done, failure) = each(work, |(view, needed): (Arc<PodView>, Refresh)| async move {
            self.refresh_one(clone_set, &resolved.update, &view, needed, now).await
        })
        .await;
        let mut written = false;
        for done in done {
            match done {
                Refreshed::Written => written = true,
                Refreshed::Nothing => {}
                Refreshed::Later(after) => pass.look_after(Some(after)),
            }
        }
        pass.note(failure.map_or(Ok(written), Err), |outcome| &mut outcome.update_error);
        written
    }

    pub(super) async fn refresh_one(
        &self,
        clone_set: &CloneSet,
        update_revision: &str,
        view: &Arc<PodView>,
        needed: Refresh,
        now: Now,
    ) -> kube::Result<Refreshed> {
        let written = |newer: Option<String>| newer.map_or(Refreshed::Later(AFTER_CONFLICT), |_| Refreshed::Written);
        let Some(_held) = self.pods.hold(view) else { return Ok(Refreshed::Later(AFTER_CONFLICT)) };
        match needed {
            Refresh::Nothing | Refresh::Wait { .. } => Ok(Refreshed::Nothing),
            Refresh::Status(patch) => self.pods.try_patch(view, Part::Status, &patch).await.map(written),
            Refresh::DropGrace => {
                let annotations = json!({labels::IN_PLACE_GRACE: null, labels::IN_PLACE_GRACE_LEGACY: null});
                let patch = json!({"metadata": {"uid": view.uid(), "annotations": annotations}});
                self.pods.try_patch(view, Part::Whole, &patch).await.map(written)
            }
            Refresh::WholePod | Refresh::Batch(_) => {
                if self.was_looked_at(clone_set, view) {
                    return Ok(Refreshed::Nothing);
                }
                let Some(whole) = self.pods.read(view).await? else { return Ok(Refreshed::Later(AFTER_CONFLICT)) };
                let newer: PodView = serde_json::from_value(whole.clone()).map_err(kube::Error::SerdeError)?;
                let lifecycle = clone_set.spec.lifecycle.as_ref();
                let decided = refresh::refresh(&newer, Some(&whole), lifecycle, update_revision, now);
                match decided {
                    Refresh::Batch(spec) => {
                        let earlier = Annotations::of(&whole).unwrap_or_default().state;
                        let state = earlier.unwrap_or_else(|| inplace::begin(&whole, &spec, None, now.wall));
                        let Some(mut patch) = self.batch(&newer, &whole, &spec, state, now).await? else {
                            return Ok(Refreshed::Later(AFTER_CONFLICT));
                        };
                        if spec.container_resources.is_empty() {
                            patch["metadata"]["resourceVersion"] = json!(newer.metadata.resource_version);
                        }
                        self.pods.try_patch(&newer, Part::Whole, &patch).await.map(written)
                    }
                    Refresh::Status(patch) => self.pods.try_patch(&newer, Part::Status, &patch).await.map(written),
                    Refresh::DropGrace | Refresh::WholePod | Refresh::Nothing | Refresh::Wait { .. } => {
                        if let Some((reason, message)) = resize::trouble(&whole) {
                            let message = format!("kubelet does not resize pod {}: {reason}: {message}", newer.name());
                            self.pods.warning(&make::owner(clone_set), "ResizeNotDone", &message);
                        }
                        if let Refresh::Wait { after, .. } = &decided {
                            if let Some(after) = after {
                                return Ok(Refreshed::Later(*after));
                            }
                            let version = newer.metadata.resource_version.clone().unwrap_or_default();
                            if let Some(memory) = lock(&self.memories).get_mut(&ObjectKey::of(clone_set)) {
                                memory.looked_at.insert(newer.uid().to_owned(), version);
                            }
                        }
                        self.context.pods.upsert(newer);
                        Ok(Refreshed::Nothing)
                    }
                }
            }
        }
    }

    /// Whether exactly this version was looked at as a whole already, and had to wait.
    fn was_looked_at(&self, clone_set: &CloneSet, view: &PodView) -> bool {
        let mut memories = lock(&self.memories);
        let Some(memory) = memories.get_mut(&ObjectKey::of(clone_set)) else { return false };
        memory.looked_at.get(view.uid()) == view.metadata.resource_version.as_ref()
    }

    /// The patch of the next batch. Resources have a subresource of their own, which is written before: if we end in
    /// between, the Pod is found on its old revision, and writing them once more changes nothing. None: the Pod has
    /// changed, or is gone.
    pub(super) async fn batch(
        &self,
        view: &PodView,
        whole: &Value,
        spec: &UpdateSpec,
        state: inplace::State,
        now: Now,
    ) -> kube::Result<Option<Value>> {
        let batch = inplace::batch(whole, spec, state, now.wall);
        if let Some(mut patch) = resize::patch(&batch.resources) {
            patch["metadata"] = json!({"uid": view.uid()});
            if self.pods.try_patch(view, Part::Resize, &patch).await?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(batch_patch(view.uid(), batch)))
    }

    /// Drops names from `podsToDelete` whose Pods are gone. Only if the list is still the one we looked at.
    pub(super) async fn forget_names(&self, clone_set: &CloneSet, seen: &Seen) -> kube::Result<()> {
        let listed = &clone_set.spec.scale_strategy.pods_to_delete;
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
        let key = ObjectKey::of(clone_set);
        let api: Api<CloneSet> = Api::namespaced(self.context.client.clone(), &key.namespace);
        match api.patch(&key.name, &PatchParams::default(), &Patch::<()>::Json(patch)).await {
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

pub(super) enum Refreshed {
    Nothing,
    Written,
    Later(Duration),
}

/// The patch that writes one batch of an update: images, labels, annotations, and how far it is.
fn batch_patch(uid: &str, batch: inplace::Batch) -> Value {
    let mut metadata = batch.metadata;
    metadata["uid"] = uid.into();
    let annotations = &mut metadata["annotations"];
    // A state is made of strings, numbers and times: it always serializes.
    annotations[labels::IN_PLACE_STATE] = serde_json::to_string(&batch.state).unwrap_or_default().into();
    for key in [labels::IN_PLACE_STATE_LEGACY, labels::IN_PLACE_GRACE, labels::IN_PLACE_GRACE_LEGACY] {
        annotations[key] = Value::Null;
    }
    let mut patch = json!({"metadata": metadata});
    if !batch.images.is_empty() {
        let containers = batch.images.iter().map(|(name, image)| json!({"name": name, "image": image}));
        patch["spec"] = json!({"containers": containers.collect::<Vec<_>>()});
    }
    patch
}
