//! Carries out updates in place and moves of a Pod's lifecycle, for every kind that has them. What is due is decided by
//! [`domain::pod::refresh`](crate::domain::pod::refresh) and by the plan of the kind.
//!
//! A Pod leaves service before it is changed. Where changes are refused, by a policy or a webhook of somebody else, Pods would
//! leave it in every pass for nothing: of a workload with a refused Pod each further change is tried by a dry run before, and
//! one Pod at a time leaves service (`doubt`).

mod doubt;
mod refresh_all;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use kube::Client;
use serde_json::{Value, json};

use self::doubt::{Attempt, Doubts, is_silence};
pub use self::refresh_all::AllRefreshed;
use super::{
    apply::{is_refusal, said},
    clock, lock,
    pass::AFTER_CONFLICT,
    pod_control::{Part, PodControl, decoded},
};
use crate::{
    api::{
        apps::lifecycle::Lifecycle,
        feature_gates::{FeatureGates, gate},
        labels,
    },
    domain::{
        pod::{
            inplace::{self, Allowed, Annotations, UpdateSpec, resize},
            lifecycle::State,
            readiness,
            refresh::{self, Refresh},
        },
        workload::owner::OwnerRef,
    },
    k8s::{
        pod::PodView,
        time::{Now, rfc3339},
    },
};

/// How soon a Pod that waits for a resize is looked at again. Kubernetes 1.32 reports its end only in fields that stores do not
/// keep: nobody is woken by an event that shows nothing else.
pub const RESIZE_LOOK: Duration = Duration::from_secs(5);

/// What came of a refresh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refreshed {
    /// Nothing was to be done.
    Nothing,
    /// It was written.
    Written,
    /// Another task writes the Pod, it has changed, or something is due then.
    Later(Duration),
    /// The whole Pod was read and has to wait.
    Waits(Waiting),
}

/// A Pod that has to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The version that was read: nothing new is found in it before it changes.
    pub version: String,
    /// When to look whether it has changed; None: an event of that wakes its workload.
    pub look: Option<Duration>,
}

/// What Pods of one workload are refreshed by.
#[derive(Clone, Copy, Debug)]
pub struct Refreshing<'a> {
    /// The workload.
    pub owner: &'a OwnerRef,
    /// Its hooks.
    pub lifecycle: Option<&'a Lifecycle>,
    /// Name of the revision that it goes to.
    pub update_revision: &'a str,
}

/// The labels of the revision that a Pod is changed to.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The label `controller-revision-hash` of Pods on it.
    pub label: &'a str,
    /// The label `pod-template-hash` of Pods on it, if they have one.
    pub template_hash: Option<&'a str>,
    /// Whether a Pod without a lifecycle state gets one. A resize always gives one: the gate may stay open during it, and
    /// nothing but the state says then that an update is under way.
    pub gives_state: bool,
}

/// The writer of updates in place of one controller.
pub struct InPlace {
    client: Client,
    pods: Arc<PodControl>,
    /// Whether the API server can resize Pods, once it has been asked.
    can_resize: Mutex<Option<bool>>,
    doubts: Doubts,
}

/// What is written to change a Pod. Resources have a subresource of their own, which is written before: if we end in between,
/// the Pod is found on its old revision, and writing them once more changes nothing.
struct PodChange {
    resize: Option<Value>,
    patch: Value,
}

impl InPlace {
    /// Writes by means of `pods`.
    pub fn new(client: Client, pods: Arc<PodControl>) -> Self {
        Self { client, pods, can_resize: Mutex::default(), doubts: Doubts::default() }
    }

    /// Which changes may be made in place in this cluster.
    ///
    /// # Errors
    /// The API server did not report its version.
    pub async fn allowed(&self, gates: &FeatureGates) -> kube::Result<Allowed> {
        let env_from_metadata = gates.enabled(gate::IN_PLACE_UPDATE_ENV);
        if !gates.enabled(gate::RESIZE_IN_PLACE) {
            return Ok(Allowed { env_from_metadata, resources: false });
        }
        let asked = *lock(&self.can_resize);
        let resources = match asked {
            Some(can) => can,
            None => {
                let version = self.client.apiserver_version().await?;
                let can = resize::has_subresource(&version.git_version);
                *lock(&self.can_resize) = Some(can);
                can
            }
        };
        Ok(Allowed { env_from_metadata, resources })
    }

    /// Moves a Pod to another lifecycle state: for most of them it waits for its hook there. False: it is there already.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    pub async fn move_to(
        &self,
        pod: &PodView,
        state: State,
        lifecycle: Option<&Lifecycle>,
        restore: bool,
    ) -> kube::Result<bool> {
        let lifecycle = lifecycle.cloned().unwrap_or_default();
        let Some(patch) = refresh::move_to(pod, state.clone(), &lifecycle, restore, clock::now()) else {
            return Ok(false);
        };
        self.pods.try_patch(pod, Part::Status, &patch).await?;
        tracing::info!(namespace = pod.namespace(), pod = pod.name(), state = state.as_str(), "has another state");
        Ok(true)
    }

    /// Brings a Pod's own state up to date: its gates, its lifecycle state, the next batch of its update. `waits_in` is the
    /// version that was looked at as a whole before and had to wait.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    async fn refresh(
        &self,
        by: Refreshing<'_>,
        view: &PodView,
        needed: Refresh,
        waits_in: Option<&str>,
        now: Now,
    ) -> kube::Result<Refreshed> {
        let Some(_held) = self.pods.hold(view) else { return Ok(Refreshed::Later(AFTER_CONFLICT)) };
        match needed {
            Refresh::Nothing | Refresh::Wait { .. } => Ok(Refreshed::Nothing),
            Refresh::Status(patch) => self.patch(view, Part::Status, &patch).await,
            Refresh::DropGrace => {
                let annotations = json!({labels::IN_PLACE_GRACE: null, labels::IN_PLACE_GRACE_LEGACY: null});
                self.patch(view, Part::Whole, &json!({"metadata": {"annotations": annotations}})).await
            }
            Refresh::WholePod | Refresh::Batch(_) if waits_in.is_some_and(|v| is_version(view, v)) => {
                Ok(next_look(view).map_or(Refreshed::Nothing, Refreshed::Later))
            }
            Refresh::WholePod | Refresh::Batch(_) => self.refresh_whole(by, view, now).await,
        }
    }

    async fn patch(&self, view: &PodView, part: Part, patch: &Value) -> kube::Result<Refreshed> {
        let newer = self.pods.try_patch(view, part, patch).await?;
        Ok(newer.map_or(Refreshed::Later(AFTER_CONFLICT), |_| Refreshed::Written))
    }

    /// Decides once more with the whole Pod at hand.
    async fn refresh_whole(&self, by: Refreshing<'_>, view: &PodView, now: Now) -> kube::Result<Refreshed> {
        let Some(whole) = self.pods.read(view).await? else { return Ok(Refreshed::Later(AFTER_CONFLICT)) };
        let newer: PodView = serde_json::from_value(whole.clone()).map_err(kube::Error::SerdeError)?;
        let decided = refresh::refresh(&newer, Some(&whole), by.lifecycle, by.update_revision, now);
        let result = match decided {
            Refresh::Batch(spec) => return self.next_batch(&newer, &whole, &spec, now).await,
            Refresh::Status(patch) => return self.patch(&newer, Part::Status, &patch).await,
            Refresh::Wait { after: Some(after), .. } => Refreshed::Later(after),
            Refresh::Wait { after: None, .. } => Refreshed::Waits(Waiting {
                version: newer.resource_version().unwrap_or_default().to_owned(),
                look: next_look(&newer),
            }),
            Refresh::DropGrace | Refresh::WholePod | Refresh::Nothing => Refreshed::Nothing,
        };
        if let Some((reason, message)) = resize::trouble(&whole) {
            let message = format!("kubelet does not resize pod {}: {reason}: {message}", newer.name());
            self.pods.warning(by.owner, "ResizeNotDone", &message);
        }
        if !matches!(result, Refreshed::Later(_)) {
            self.pods.note(newer);
        }
        Ok(result)
    }

    async fn next_batch(&self, pod: &PodView, whole: &Value, spec: &UpdateSpec, now: Now) -> kube::Result<Refreshed> {
        let earlier = Annotations::of(whole).unwrap_or_default().state;
        let state = earlier.unwrap_or_else(|| inplace::begin(whole, spec, None, now.wall));
        let PodChange { resize, mut patch } = batch_of(whole, spec, state, now);
        match &resize {
            None => patch["metadata"]["resourceVersion"] = json!(pod.resource_version()),
            Some(resize) => {
                if self.pods.try_patch(pod, Part::Resize, resize).await?.is_none() {
                    return Ok(Refreshed::Later(AFTER_CONFLICT));
                }
            }
        }
        self.patch(pod, Part::Whole, &patch).await
    }

    /// Takes a Pod out of service, then changes it, or says in an annotation what it will be changed to. The caller holds the
    /// Pod and has asked its budgets. False: it has changed, or is gone. When the change is refused the Pod goes back into
    /// service: the caller gives its room to another one. `was_tried`: [`Self::may_begin`] was asked a moment ago.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409. One that is a refusal leaves the Pod in service.
    pub async fn begin(
        &self,
        view: &PodView,
        target: Target<'_>,
        (spec, was_tried): (&UpdateSpec, bool),
    ) -> kube::Result<bool> {
        let tried = attempt(view, target);
        let doubt = self.doubts.of(tried.workload, clock::now().mono);
        let _turn = match &doubt {
            None => None,
            Some(doubt) => {
                if !was_tried && !self.may_begin(view, target, spec).await? {
                    return Ok(false);
                }
                Some(doubt.turn.lock().await)
            }
        };
        let mut is_out = false;
        match self.take_out_and_change(view, target, spec, &mut is_out).await {
            Err(refusal) if is_out && is_refusal(&refusal) => {
                self.note_refusal(tried, &refusal, true);
                let patch = json!({"status": {"conditions": [readiness::in_place_ended(clock::now().wall)]}});
                let back = self.pods.try_patch(view, Part::Status, &patch).await;
                back.map_err(|error| {
                    let (refusal, error) = (said(&refusal), said(&error));
                    let what = format!("{refusal}; the Pod could not be taken back into service: {error}");
                    kube::Error::Service(what.into())
                })?;
                Err(refusal)
            }
            begun => {
                match &begun {
                    Ok(true) => self.doubts.changed(tried),
                    // It may have been changed: the next pass sees that, or takes it back into service.
                    Err(error) if is_out => self.note_refusal(tried, error, true),
                    Ok(false) | Err(_) => {}
                }
                begun
            }
        }
    }

    /// Whether changes of the Pod's workload were refused a short time ago. Then [`Self::may_begin`] is asked before a consent of
    /// its budgets is recorded: a Pod that is refused anyway would use up what they allow, again and again, and no other one
    /// would have its turn. The budgets are asked before that by a dry run: admission asks them too, and what they refuse is no
    /// refusal of the change.
    pub fn is_in_doubt(&self, view: &PodView) -> bool {
        self.doubts.of(workload_of(view), clock::now().mono).is_some()
    }

    /// Whether a change may be tried at all: of a workload with a refused Pod by a dry run. False: it has changed, or is gone.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409. The Pod stays in service.
    pub async fn may_begin(&self, view: &PodView, target: Target<'_>, spec: &UpdateSpec) -> kube::Result<bool> {
        let tried = attempt(view, target);
        let Some(doubt) = self.doubts.of(tried.workload, clock::now().mono) else { return Ok(true) };
        if let Some(refusal) = doubt.pause(tried, clock::now().mono) {
            return Err(refusal);
        }
        let would = self.would_change(view, target, spec).await;
        would.inspect_err(|error| self.note_refusal(tried, error, false))
    }

    fn note_refusal(&self, tried: Attempt<'_>, error: &kube::Error, was_out: bool) {
        if is_refusal(error) || is_silence(error) {
            self.doubts.refused(tried, error, was_out, clock::now().mono);
        }
    }

    /// Whether the API server would let a Pod be changed now. False: it has changed, or is gone.
    async fn would_change(&self, view: &PodView, target: Target<'_>, spec: &UpdateSpec) -> kube::Result<bool> {
        let Some(whole) = self.pods.read(view).await? else { return Ok(false) };
        // What comes after the grace period is what may be refused.
        let spec = UpdateSpec { grace_seconds: 0, ..spec.clone() };
        let change = first_change(&whole, target, &spec, clock::now())?;
        if let Some(resize) = &change.resize
            && !self.pods.try_dry_run(view, Part::Resize, resize).await?
        {
            return Ok(false);
        }
        self.pods.try_dry_run(view, Part::Whole, &change.patch).await
    }

    /// `is_out` becomes true when the Pod has been taken out of service.
    async fn take_out_and_change(
        &self,
        view: &PodView,
        target: Target<'_>,
        spec: &UpdateSpec,
        is_out: &mut bool,
    ) -> kube::Result<bool> {
        let now = clock::now();
        // A change of resources alone may leave the Pod in service: the whole Pod says whether kubelet restarts anything.
        let read = if spec.container_resources.is_empty() { None } else { self.pods.read(view).await? };
        let conditions = match &read {
            Some(whole) if !resize::needs_not_ready(whole, spec) => Vec::new(),
            _ => readiness::in_place_begins(&view.into(), now.wall),
        };
        let whole = if conditions.is_empty() {
            match read {
                Some(whole) => Some(whole),
                None => self.pods.read(view).await?,
            }
        } else {
            let patch = json!({"status": {"conditions": conditions}});
            let closed = self.pods.try_patch(view, Part::Status, &patch).await?;
            *is_out = closed.is_some();
            closed.map(|whole| decoded(&whole)).transpose()?
        };
        let Some(whole): Option<Value> = whole else { return Ok(false) };
        let change = first_change(&whole, target, spec, now)?;
        if let Some(resize) = &change.resize
            && self.pods.try_patch(view, Part::Resize, resize).await?.is_none()
        {
            return Ok(false);
        }
        Ok(self.pods.try_patch(view, Part::Whole, &change.patch).await?.is_some())
    }
}

fn attempt<'a>(view: &'a PodView, target: Target<'a>) -> Attempt<'a> {
    Attempt { workload: workload_of(view), pod: view.uid(), revision: target.label }
}

/// The UID of the workload of a Pod.
fn workload_of(view: &PodView) -> &str {
    view.controller.as_ref().map(|owner| owner.uid.as_str()).unwrap_or_default()
}

/// The change with which an update begins: its first batch, or an annotation that says what comes after the grace period.
fn first_change(whole: &Value, target: Target<'_>, spec: &UpdateSpec, now: Now) -> kube::Result<PodChange> {
    let earlier = Annotations::of(whole).unwrap_or_default().state;
    let state = inplace::begin(whole, spec, earlier.as_ref(), now.wall);
    let mut change = if spec.grace_seconds > 0 {
        let grace = serde_json::to_string(spec).map_err(kube::Error::SerdeError)?;
        let state = serde_json::to_string(&state).map_err(kube::Error::SerdeError)?;
        let patch = json!({"metadata": {"labels": {}, "annotations": {
            labels::IN_PLACE_GRACE: grace, labels::IN_PLACE_STATE: state, labels::IN_PLACE_STATE_LEGACY: null}}});
        PodChange { resize: None, patch }
    } else {
        batch_of(whole, spec, state, now)
    };
    let metadata = &mut change.patch["metadata"];
    metadata["labels"][labels::CONTROLLER_REVISION_HASH] = target.label.into();
    if let Some(hash) = target.template_hash {
        metadata["labels"][labels::POD_TEMPLATE_HASH] = hash.into();
    }
    let has_state = whole.get("metadata").and_then(|m| m.get("labels")?.get(labels::LIFECYCLE_STATE)).is_some();
    if has_state || target.gives_state || !spec.container_resources.is_empty() {
        metadata["labels"][labels::LIFECYCLE_STATE] = State::Updating.as_str().into();
        metadata["annotations"][labels::LIFECYCLE_TIMESTAMP] = rfc3339(now.wall).into();
    }
    Ok(change)
}

/// The next batch of an update.
fn batch_of(whole: &Value, spec: &UpdateSpec, state: inplace::State, now: Now) -> PodChange {
    let batch = inplace::batch(whole, spec, state, now.wall);
    PodChange { resize: resize::patch(&batch.resources), patch: batch_patch(batch) }
}

fn is_version(view: &PodView, version: &str) -> bool {
    view.resource_version() == Some(version)
}

/// When to look again at a Pod that waits, if no event may wake its workload.
fn next_look(pod: &PodView) -> Option<Duration> {
    let state = Annotations::of_view(pod).ok()?.state?;
    state.update_resources.then_some(RESIZE_LOOK)
}

/// The patch that writes one batch of an update: images, labels, annotations, and how far it is.
fn batch_patch(batch: inplace::Batch) -> Value {
    let mut metadata = batch.metadata;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pod_that_waits_for_a_resize_is_looked_at_again_without_an_event() {
        let look = |lifecycle: &str, change: Value| {
            let mut state = json!({"revision": "web-2", "updateTimestamp": "2026-01-01T00:00:00Z"});
            json_patch::merge(&mut state, &change);
            let metadata = json!({"labels": {labels::LIFECYCLE_STATE: lifecycle},
                "annotations": {labels::IN_PLACE_STATE: state.to_string()}});
            next_look(&serde_json::from_value(json!({"metadata": metadata})).unwrap())
        };
        assert_eq!(look("Updating", json!({"updateResources": true})), Some(RESIZE_LOOK));
        assert_eq!(look("Updating", json!({"updateImages": true, "updateEnvFromMetadata": true})), None);
        assert_eq!(look("Normal", json!({"updateResources": true})), None, "it is done");
        assert_eq!(look("Updating", json!({"updateResources": true, "revision": 7})), None, "it cannot be read");
        assert_eq!(next_look(&PodView::default()), None);
    }

    #[test]
    fn item_5_7_an_update_gives_no_lifecycle_state_to_a_pod_without_one() {
        let pod = |labels: Value| json!({"metadata": {"name": "a", "labels": labels}, "spec": {"containers": [{"name": "main", "image": "i:1"}]}});
        let with_state = pod(json!({labels::LIFECYCLE_STATE: "Normal"}));
        let image =
            UpdateSpec { container_images: [("main".to_owned(), "i:2".to_owned())].into(), ..UpdateSpec::default() };
        let grace = UpdateSpec { grace_seconds: 5, ..image.clone() };
        let resize = UpdateSpec {
            container_resources: [("main".to_owned(), json!({"limits": {"cpu": "2"}}))].into(),
            ..image.clone()
        };
        let state = |pod: &Value, spec: &UpdateSpec, gives_state: bool| {
            let target = Target { label: "web-2", template_hash: None, gives_state };
            let patch = first_change(pod, target, spec, clock::now()).unwrap().patch;
            let stamp = &patch["metadata"]["annotations"][labels::LIFECYCLE_TIMESTAMP];
            let state = patch["metadata"]["labels"].get(labels::LIFECYCLE_STATE).cloned();
            assert_eq!(
                (stamp.is_string(), &patch["metadata"]["labels"][labels::CONTROLLER_REVISION_HASH]),
                (state.is_some(), &json!("web-2"))
            );
            state
        };
        let updating = Some(json!("Updating"));
        for spec in [&image, &grace] {
            assert_eq!(state(&pod(json!({})), spec, false), None);
            assert_eq!(state(&with_state, spec, false), updating, "item 3.9");
            assert_eq!(state(&pod(json!({})), spec, true), updating, "a CloneSet");
        }
        assert_eq!(state(&pod(json!({})), &resize, false), updating, "nothing else says that it is under way");
    }
}
