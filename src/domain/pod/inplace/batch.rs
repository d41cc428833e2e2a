//! The writes of an update, a batch at a time.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    BatchRecord, LastStatus, PreCheck, RefMetadata, State, UpdateSpec, container_of, is_complete, resize, status_of,
};
use crate::k8s::time::whole_seconds;

/// The variable through which launch priorities are enforced; its key is `p_<priority>`.
pub(super) const BARRIER: &str = "KRUISE_CONTAINER_BARRIER";

/// A fresh state. Containers of an unfinished earlier update are carried over, so that they are still waited for.
pub fn begin(pod: &Value, spec: &UpdateSpec, earlier: Option<&State>, now: Timestamp) -> State {
    let unfinished = earlier.filter(|state| !is_complete(&pod.into(), Some(state), false).done);
    let resizes = unfinished.and_then(|state| resize::left_over(pod, state));
    State {
        revision: spec.revision.clone(),
        update_timestamp: whole_seconds(now),
        last_container_statuses: unfinished.map(|state| state.last_container_statuses.clone()).unwrap_or_default(),
        update_env_from_metadata: spec.update_env_from_metadata
            || unfinished.is_some_and(|state| state.update_env_from_metadata),
        update_resources: !spec.container_resources.is_empty() || resizes.is_some(),
        update_images: !spec.container_images.is_empty(),
        next_container_images: BTreeMap::new(),
        next_container_ref_metadata: BTreeMap::new(),
        next_container_resources: BTreeMap::new(),
        pre_check_before_next: None,
        container_batches_record: resizes.into_iter().collect(),
        unknown: BTreeMap::new(),
    }
}

pub(super) fn plain_metadata(spec: &UpdateSpec) -> Value {
    spec.metadata().filter(Value::is_object).unwrap_or_else(|| json!({}))
}

/// One write of an update.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Labels and annotations, as the value of `metadata` in a merge patch.
    pub metadata: Value,
    /// New images by container.
    pub images: BTreeMap<String, String>,
    /// New resources by container.
    pub resources: BTreeMap<String, Value>,
    /// The state annotation from now on.
    pub state: State,
}

/// The containers that change with the next batch.
///
/// Those without a launch priority change at once; of those with one, only the highest priority does. Containers that share a
/// changed label or annotation change together, because it cannot change twice.
fn members<'s>(pod: &Value, spec: &'s UpdateSpec) -> BTreeSet<&'s str> {
    let touched: BTreeSet<&str> = (spec.container_images.keys())
        .chain(spec.container_ref_metadata.keys())
        .chain(spec.container_resources.keys())
        .map(String::as_str)
        .collect();
    let priorities: BTreeMap<&str, i64> =
        touched.iter().filter_map(|name| Some((*name, priority(pod, name)?))).collect();
    let highest = priorities.values().max().copied();
    let mut members: BTreeSet<&str> = touched
        .iter()
        .copied()
        .filter(|name| priorities.get(name).is_none_or(|priority| Some(*priority) == highest))
        .collect();
    loop {
        let keys: BTreeSet<(bool, &str)> = members
            .iter()
            .filter_map(|name| spec.container_ref_metadata.get(*name))
            .flat_map(RefMetadata::keys)
            .collect();
        let more: Vec<&str> = spec
            .container_ref_metadata
            .iter()
            .filter(|(name, meta)| !members.contains(name.as_str()) && meta.keys().any(|key| keys.contains(&key)))
            .map(|(name, _)| name.as_str())
            .collect();
        if more.is_empty() {
            return members;
        }
        members.extend(more);
    }
}

/// The next batch of `spec` for a Pod.
pub fn batch(pod: &Value, spec: &UpdateSpec, mut state: State, now: Timestamp) -> Batch {
    let members = members(pod, spec);
    let mut metadata = plain_metadata(spec);
    let mut put = |kind: &str, key: &str, value: &Option<String>| {
        let fields = metadata.as_object_mut();
        if let Some(map) = fields.and_then(|f| f.entry(kind).or_insert_with(|| json!({})).as_object_mut()) {
            map.insert(key.to_owned(), json!(value));
        }
    };
    let (mut images, mut resources) = (BTreeMap::new(), BTreeMap::new());
    state.next_container_images = BTreeMap::new();
    state.next_container_ref_metadata = BTreeMap::new();
    state.next_container_resources = BTreeMap::new();
    for (name, image) in &spec.container_images {
        if members.contains(name.as_str()) {
            images.insert(name.clone(), image.clone());
            if let Some(image_id) = status_of(pod, name).and_then(|s| s.get("imageID")).and_then(Value::as_str) {
                state.last_container_statuses.insert(name.clone(), LastStatus { image_id: image_id.to_owned() });
            }
            state.update_images = true;
        } else {
            state.next_container_images.insert(name.clone(), image.clone());
        }
    }
    for (name, meta) in &spec.container_ref_metadata {
        if members.contains(name.as_str()) {
            meta.labels.iter().for_each(|(key, value)| put("labels", key, value));
            meta.annotations.iter().for_each(|(key, value)| put("annotations", key, value));
            state.update_env_from_metadata = true;
        } else {
            state.next_container_ref_metadata.insert(name.clone(), meta.clone());
        }
    }
    for (name, wanted) in &spec.container_resources {
        if members.contains(name.as_str()) {
            resources.insert(name.clone(), wanted.clone());
            state.update_resources = true;
        } else {
            state.next_container_resources.insert(name.clone(), wanted.clone());
        }
    }
    let containers: Vec<String> = members.into_iter().map(str::to_owned).collect();
    state.pre_check_before_next = state.has_next().then(|| PreCheck { containers_required_ready: containers.clone() });
    if !containers.is_empty() {
        state.container_batches_record.push(BatchRecord { timestamp: whole_seconds(now), containers });
    }
    Batch { metadata, images, resources, state }
}

/// A container's launch priority, from the barrier that admission injected.
fn priority(pod: &Value, name: &str) -> Option<i64> {
    let env = container_of(pod, name)?.get("env")?.as_array()?;
    let barrier = env.iter().find(|entry| entry.get("name").and_then(Value::as_str) == Some(BARRIER))?;
    barrier.pointer("/valueFrom/configMapKeyRef/key")?.as_str()?.strip_prefix("p_")?.parse().ok()
}
