//! What an update in place and a reset write into a Pod: one patch of images and annotations.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{
    metadata::{self, MetadataError, When},
    notes::{Injected, PodNotes},
    pod,
    resting::Resting,
    spec::{Sidecar, Spec},
    states::{self, Before},
};
use crate::{
    api::{
        apps::sidecar_set::PATCH_MERGE_JSON,
        labels::{SIDECAR_SET_VERSION_ALT_PREFIX, SIDECAR_SET_VERSION_PREFIX},
    },
    domain::pod::inplace::is_same_image,
    k8s::{
        image::ImageRef,
        invalid::Invalid,
        pod::{ContainerStatusView, ContainerView, PodView},
        time::rfc3339,
    },
};

/// Why a Pod cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unwritable {
    /// An annotation of it cannot be read.
    #[error("{0}")]
    Annotation(Invalid),
    /// An annotation cannot be merged.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

/// The images and annotations of a Pod on their way to others.
struct Change<'a> {
    pod: &'a Value,
    /// New images by container.
    images: BTreeMap<String, String>,
    annotations: Map<String, Value>,
    /// What containers ran before the last update by this SidecarSet.
    before: BTreeMap<String, Before>,
}

/// What [`update`] reads of a Pod, as far as a store keeps it. None: that is not enough, because twins have annotations of
/// their own, because annotations are merged with what stands there, or because one is too long.
pub fn kept(spec: &Spec, view: &PodView) -> Option<Value> {
    let merges = |patch: &Value| patch["patchPolicy"] == PATCH_MERGE_JSON;
    let needs_all = spec.sidecars.iter().any(|sidecar| sidecar.empty_image.is_some())
        || spec.patches.as_array().into_iter().flatten().any(merges);
    let is_cut = view.rare().sidecar_sets.as_ref().is_none_or(|notes| notes.is_cut);
    if needs_all || is_cut {
        return None;
    }
    let containers = |list: &[ContainerView]| -> Value {
        list.iter().map(|container| json!({"name": container.name, "image": &*container.image})).collect()
    };
    let ready = json!({"type": "Ready", "status": if view.condition_is_true("Ready") { "True" } else { "False" },
        "lastTransitionTime": view.ready_since.map(rfc3339)});
    let images = view.rare().sidecar_sets.iter().flat_map(|notes| notes.running_images.iter());
    let running: BTreeMap<&str, &str> = images.map(|(name, image)| (name.as_str(), image.as_str())).collect();
    let status = |status: &ContainerStatusView| {
        let name = status.name.as_str();
        json!({"name": name, "image": running.get(name), "imageID": &*status.image_id,
            "containerID": &*status.container_id})
    };
    Some(json!({
        "metadata": {"uid": view.uid(), "resourceVersion": view.resource_version()?, "annotations": pod::annotations(view)},
        "spec": {"containers": containers(&view.spec.containers), "initContainers": containers(&view.spec.sidecars)},
        "status": {"phase": view.phase.as_str(), "conditions": [ready],
            "containerStatuses": view.container_statuses.iter().map(status).collect::<Vec<_>>()},
    }))
}

/// The patch that updates a Pod, of which this is all, or what [`kept`] tells of it. `revision` is that of the SidecarSet.
///
/// # Errors
/// The Pod cannot be written.
pub fn update(spec: &Spec, pod: &Value, revision: &str, now: Timestamp) -> Result<Value, Unwritable> {
    let mut change = Change::of(spec, pod);
    let mut notes = PodNotes::read(&change.annotations).map_err(Unwritable::Annotation)?;
    if change.relieve(spec, &notes) {
        change.remember(spec, now);
        return Ok(change.patch());
    }
    for sidecar in &spec.sidecars {
        match &sidecar.empty_image {
            None => change.set_image(&sidecar.name, &sidecar.image),
            Some(empty) => change.upgrade(sidecar, empty, &spec.version, &mut notes),
        }
    }
    // The note of the hash without images stays as it is, with its time of injection.
    let kept = notes.hashes_without_image.get(&spec.name).cloned();
    let sidecars = spec.sidecars.iter().map(|sidecar| sidecar.name.as_str()).collect();
    let (hash, hash_without_image) = (spec.hashes.hash.as_str(), spec.hashes.without_image.as_str());
    notes.add(&Injected { name: &spec.name, hash, hash_without_image, sidecars, revision }, now);
    if let Some(kept) = kept {
        notes.hashes_without_image.insert(spec.name.clone(), kept);
    }
    notes.write(&mut change.annotations);
    change.remember(spec, now);
    metadata::apply(&mut change.annotations, &spec.patches, When::Update)?;
    Ok(change.patch())
}

/// The patch that gives twins that are not at work their empty image. Those that rest already keep the one they have. The hashes
/// stay as they are.
///
/// # Errors
/// The Pod cannot be written.
pub fn reset(spec: &Spec, pod: &Value, now: Timestamp) -> Result<Value, Unwritable> {
    let mut change = Change::of(spec, pod);
    let notes = PodNotes::read(&change.annotations).map_err(Unwritable::Annotation)?;
    let states = states::read(&change.annotations).ok();
    for sidecar in &spec.sidecars {
        let Some(empty) = &sidecar.empty_image else { continue };
        let resting = Resting::of(spec, sidecar, (&notes, states.as_ref()), |name| change.image(name));
        if let Some(resting) = resting.filter(|resting| !resting.is_empty) {
            change.rest(&resting.name, &resting.working, empty);
        }
    }
    change.remember(spec, now);
    Ok(change.patch())
}

impl<'a> Change<'a> {
    fn of(spec: &Spec, pod: &'a Value) -> Self {
        let annotations = pod.pointer("/metadata/annotations").and_then(Value::as_object).cloned().unwrap_or_default();
        let state = states::read(&annotations).unwrap_or_default().remove(&spec.name);
        let before = state.unwrap_or_default().last_container_statuses;
        Self { pod, images: BTreeMap::new(), annotations, before }
    }

    fn list(&self, path: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
        self.pod.pointer(path).and_then(Value::as_array).into_iter().flatten()
    }

    fn image(&self, container: &str) -> Option<&'a str> {
        let all = self.list("/spec/containers").chain(self.list("/spec/initContainers"));
        all.filter(|there| there["name"] == container).find_map(|there| there["image"].as_str())
    }

    fn status(&self, container: &str) -> Option<&'a Value> {
        let mut all = self.list("/status/containerStatuses").chain(self.list("/status/initContainerStatuses"));
        all.find(|status| status["name"] == container)
    }

    /// Kubelet says that the Pod is ready.
    fn is_in_service(&self) -> bool {
        let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        self.pod["status"]["phase"] == "Running" && self.list("/status/conditions").any(is_ready)
    }

    /// When its condition Ready last changed.
    fn ready_since(&self) -> Option<Timestamp> {
        let ready = self.list("/status/conditions").find(|condition| condition["type"] == "Ready")?;
        ready["lastTransitionTime"].as_str()?.parse().ok()
    }

    /// Only where the container is there and has another one.
    fn set_image(&mut self, container: &str, image: &str) {
        if self.image(container).is_some_and(|there| there != image) {
            self.images.insert(container.to_owned(), image.to_owned());
        }
    }

    fn set(&mut self, prefix: &str, container: &str, value: &str) {
        self.annotations.insert(format!("{prefix}{container}"), value.into());
    }

    /// A twin does nothing any more.
    fn rest(&mut self, resting: &str, working: &str, empty: &str) {
        self.set_image(resting, empty);
        self.set(SIDECAR_SET_VERSION_PREFIX, resting, "0");
        self.set(SIDECAR_SET_VERSION_ALT_PREFIX, working, "0");
    }

    /// The twin that is to work next, and the other one. None: the Pod lacks them.
    fn turn(&self, sidecar: &Sidecar, empty: &str, notes: &PodNotes) -> Option<[String; 2]> {
        let [first, second] = sidecar.twins();
        if self.image(&first).is_none() || self.image(&second).is_none() {
            return None;
        }
        let is_empty = |twin: &str| self.image(twin).is_some_and(|image| image == empty);
        let is_first = if is_empty(&first) || is_empty(&second) {
            is_empty(&first)
        } else {
            // The upgrade before this one is not done: who does not work is lost for nobody.
            match (self.works(&first), self.works(&second)) {
                (true, false) => false,
                (false, true) => true,
                _ => notes.working.get(&sidecar.name) != Some(&first),
            }
        };
        Some(if is_first { [first, second] } else { [second, first] })
    }

    /// Lets twins rest that are to work next and have the new image already: they have handed over what they had, and only
    /// another instance takes it back. True: there were some, and nothing else is done before they rest.
    fn relieve(&mut self, spec: &Spec, notes: &PodNotes) -> bool {
        let mut relieved = false;
        for sidecar in &spec.sidecars {
            let Some(empty) = &sidecar.empty_image else { continue };
            let Some([target, other]) = self.turn(sidecar, empty, notes) else { continue };
            let has_image = |twin: &str| self.image(twin) == Some(sidecar.image.as_str());
            if has_image(&target) && !has_image(&other) && notes.working.get(&sidecar.name) == Some(&other) {
                self.rest(&target, &other, empty);
                relieved = true;
            }
        }
        relieved
    }

    /// Hands a hot-upgraded sidecar over to the twin that is not at work.
    fn upgrade(&mut self, sidecar: &Sidecar, empty: &str, version: &str, notes: &mut PodNotes) {
        let Some([target, other]) = self.turn(sidecar, empty, notes) else { return };
        // One that was told to hand over is another matter: perhaps it has.
        let works = notes.working.get(&sidecar.name) == Some(&other);
        if works && self.image(&other) == Some(sidecar.image.as_str()) {
            return;
        }
        let key = format!("{SIDECAR_SET_VERSION_PREFIX}{other}");
        let version_of_other = self.annotations.get(&key).and_then(Value::as_str).unwrap_or("0").to_owned();
        self.set_image(&target, &sidecar.image);
        self.set(SIDECAR_SET_VERSION_PREFIX, &target, version);
        self.set(SIDECAR_SET_VERSION_ALT_PREFIX, &target, &version_of_other);
        self.set(SIDECAR_SET_VERSION_ALT_PREFIX, &other, version);
        notes.working.insert(sidecar.name.clone(), target);
    }

    /// Whether a twin is ready and runs the image of its spec, as its status tells: by the name of the image, or because
    /// another instance runs than before its last update. The runtime may know the image by another name.
    fn works(&self, twin: &str) -> bool {
        let slot = |text: Option<&str>| {
            text.and_then(ImageRef::parse).map(|image| (image.repository(), image.slot().to_owned()))
        };
        let is_another = |status: &Value, before: &Before| {
            let text = |key: &str| status[key].as_str().unwrap_or_default();
            let knows_both = !before.container_id.is_empty() && !text("containerID").is_empty();
            let is_other = knows_both && text("containerID") != before.container_id;
            let is_back = self.image(twin).is_some_and(|image| before.is_back_to(image));
            is_back || is_other || text("imageID") != before.image_id
        };
        self.status(twin).is_some_and(|status| {
            let has_name = slot(status["image"].as_str()).is_some_and(|runs| Some(runs) == slot(self.image(twin)));
            status["ready"] == true
                && (has_name || self.before.get(twin).is_none_or(|before| is_another(status, before)))
        })
    }

    /// Notes what the containers that change have run.
    fn remember(&mut self, spec: &Spec, now: Timestamp) {
        if self.images.is_empty() {
            return;
        }
        let mut all = states::read(&self.annotations).unwrap_or_default();
        let is_first = !all.contains_key(&spec.name);
        let ready_since = self.ready_since();
        let state = all.entry(spec.name.clone()).or_default();
        // What an update has taken out of service counts until it is back, also if another update comes before that.
        state.was_unavailable = !self.is_in_service() && (is_first || state.found_it_down(ready_since));
        state.revision = spec.hashes.hash.clone();
        state.update_timestamp = rfc3339(now);
        for (container, image) in &self.images {
            let text = |key: &str| {
                self.status(container).and_then(|status| status.get(key)?.as_str()).unwrap_or_default().to_owned()
            };
            let (image_id, container_id) = (text("imageID"), text("containerID"));
            let earlier = state.last_container_statuses.get(container);
            let unseen = earlier.filter(|earlier| earlier.container_id == container_id);
            let made_of = match unseen {
                Some(earlier) => earlier.image.clone(),
                None => self.image(container).unwrap_or_default().to_owned(),
            };
            // Kubelet has not acted on the update before this one, and may never: for the image that runs it makes no
            // other instance. The name of the image tells then.
            let is_back = made_of == *image || is_same_image(&text("image"), image);
            let is_awaited = unseen.is_none() || !is_back;
            let container_id = if is_awaited { container_id } else { String::new() };
            state.last_container_statuses.insert(container.clone(), Before { image_id, container_id, image: made_of });
        }
        states::write(&all, &mut self.annotations);
    }

    /// A strategic merge patch of nothing but the difference, for this version of the Pod.
    fn patch(self) -> Value {
        let before = self.pod.pointer("/metadata/annotations").and_then(Value::as_object);
        let is_new = |(key, value): &(&String, &Value)| before.and_then(|before| before.get(*key)) != Some(*value);
        let annotations: Map<String, Value> =
            self.annotations.iter().filter(is_new).map(|(key, value)| (key.clone(), value.clone())).collect();
        let metadata = &self.pod["metadata"];
        let mut patch = json!({"metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"],
            "annotations": annotations}});
        for list in ["containers", "initContainers"] {
            let there = self.list(&format!("/spec/{list}")).filter_map(|container| container["name"].as_str());
            let images: Vec<Value> = there
                .filter_map(|name| self.images.get(name).map(|image| json!({"name": name, "image": image})))
                .collect();
            if !images.is_empty() {
                patch["spec"][list] = images.into();
            }
        }
        patch
    }
}

#[cfg(test)]
mod tests;
