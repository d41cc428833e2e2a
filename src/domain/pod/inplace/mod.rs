//! Updating a Pod without replacing it: which changes can be made in place, in which batches, and when they are done.
//!
//! Shared by all workloads. Everything works on raw JSON, because a Pod or a template may hold fields newer than ours.
//!
//! ```text
//!  spec_between(old, new) ──▶ UpdateSpec ──▶ begin: gate InPlaceUpdateReady False, state written
//!                                              │ grace            │ no grace
//!                                              ▼                  ▼
//!                                        annotation `grace` ──▶ batch ──▶ containers_done? ──▶ next batch … ──▶ gate True
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    api::labels,
    k8s::{revision, time::whole_seconds},
};

mod completion;
mod pending;
pub mod resize;

pub use completion::{ContainersDone, containers_done, is_complete, is_same_image};
pub use pending::with_pending;

/// Environment variables of SidecarSet: a change of theirs restarts nothing.
const OWN_ENVIRONMENT: [&str; 2] = ["SIDECARSET_VERSION", "SIDECARSET_VERSION_ALT"];
/// The variable through which launch priorities are enforced; its key is `p_<priority>`.
const BARRIER: &str = "KRUISE_CONTAINER_BARRIER";

/// Labels and annotations that a container reads in its environment. None: the key is removed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RefMetadata {
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, Option<String>>,
    /// Annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, Option<String>>,
}

impl RefMetadata {
    fn keys(&self) -> impl Iterator<Item = (bool, &str)> {
        self.labels.keys().map(|k| (true, k.as_str())).chain(self.annotations.keys().map(|k| (false, k.as_str())))
    }
}

/// What has to change in a Pod. Also the annotation `apps.kruise.io/inplace-update-grace`, while the grace runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateSpec {
    /// Name of the target revision.
    pub revision: String,
    /// New images by container.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub container_images: BTreeMap<String, String>,
    /// Labels and annotations that containers read in their environment, by container.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub container_ref_metadata: BTreeMap<String, RefMetadata>,
    /// New resources by container.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub container_resources: BTreeMap<String, Value>,
    /// The other changes of labels and annotations, as a patch in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta_data_patch: Option<String>,
    /// Whether an environment changes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub update_env_from_metadata: bool,
    /// Seconds between NotReady and the change.
    #[serde(skip_serializing_if = "is_zero")]
    pub grace_seconds: i64,
}

impl UpdateSpec {
    /// The change of labels and annotations that no container reads in its environment, as a patch of the metadata.
    pub fn metadata(&self) -> Option<Value> {
        use base64::Engine as _;
        let text = base64::engine::general_purpose::STANDARD.decode(self.meta_data_patch.as_ref()?).ok()?;
        let mut patch: Value = serde_json::from_slice(&text).ok()?;
        patch.get_mut("metadata").map(Value::take)
    }
}

/// The image that a container ran before it was changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LastStatus {
    /// As in the Pod's status.
    #[serde(rename = "imageID", default)]
    pub image_id: String,
}

/// Containers that have to be ready before the next batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PreCheck {
    /// Their names, sorted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers_required_ready: Vec<String>,
}

/// One batch that was written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchRecord {
    /// When.
    pub timestamp: Timestamp,
    /// Its containers, sorted.
    pub containers: Vec<String>,
}

/// The annotation `apps.kruise.io/inplace-update-state`, its keys in the order that OpenKruise writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Name of the target revision.
    pub revision: String,
    /// When the update began.
    pub update_timestamp: Timestamp,
    /// Images before the change, of containers whose image was changed. `null` when there are none.
    #[serde(default, deserialize_with = "null_is_empty", serialize_with = "empty_is_null")]
    pub last_container_statuses: BTreeMap<String, LastStatus>,
    /// Kinds of change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub update_env_from_metadata: bool,
    /// Kinds of change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub update_resources: bool,
    /// Kinds of change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub update_images: bool,
    /// Later batches.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub next_container_images: BTreeMap<String, String>,
    /// Later batches.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub next_container_ref_metadata: BTreeMap<String, RefMetadata>,
    /// Later batches.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub next_container_resources: BTreeMap<String, Value>,
    /// What the next batch waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_check_before_next: Option<PreCheck>,
    /// What was written so far.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub container_batches_record: Vec<BatchRecord>,
    /// Fields of a newer release.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

impl State {
    /// Whether batches are left.
    pub fn has_next(&self) -> bool {
        !(self.next_container_images.is_empty()
            && self.next_container_ref_metadata.is_empty()
            && self.next_container_resources.is_empty())
    }

    /// The rest of the update.
    pub fn next(&self) -> UpdateSpec {
        UpdateSpec {
            revision: self.revision.clone(),
            container_images: self.next_container_images.clone(),
            container_ref_metadata: self.next_container_ref_metadata.clone(),
            container_resources: self.next_container_resources.clone(),
            update_env_from_metadata: !self.next_container_ref_metadata.is_empty(),
            meta_data_patch: None,
            grace_seconds: 0,
        }
    }
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

fn null_is_empty<'de, D: serde::Deserializer<'de>>(d: D) -> Result<BTreeMap<String, LastStatus>, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

fn empty_is_null<S: serde::Serializer>(map: &BTreeMap<String, LastStatus>, s: S) -> Result<S::Ok, S::Error> {
    Some(map).filter(|map| !map.is_empty()).serialize(s)
}

/// Which kinds of change may be made in place.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed {
    /// Feature gate InPlaceUpdateEnvFromMetadata.
    pub env_from_metadata: bool,
    /// Feature gate InPlaceWorkloadVerticalScaling, on an API server that has the subresource `resize`.
    pub resources: bool,
}

/// What has to change to get from one template to the other, or why that cannot be done in place.
///
/// # Errors
/// The first difference that needs another Pod, in words.
pub fn spec_between(old: &Value, new: &Value, revision: &str, allowed: Allowed) -> Result<UpdateSpec, String> {
    let mut spec = UpdateSpec { revision: revision.to_owned(), ..UpdateSpec::default() };
    let empty = json!({});
    let part = |template: &Value, key: &str| template.get(key).cloned().unwrap_or(Value::Null);
    for key in old.as_object().into_iter().chain(new.as_object()).flat_map(Map::keys) {
        if key != "metadata" && key != "spec" && key != "$patch" && old.get(key) != new.get(key) {
            return Err(format!("template.{key} differs"));
        }
    }
    let (old_spec, new_spec) = (part(old, "spec"), part(new, "spec"));
    let (mut images, mut resources) = (Vec::new(), BTreeMap::<usize, Value>::new());
    differences(&old_spec, &new_spec, &mut Vec::new(), &mut |path, new| match path {
        [At::Key("containers"), At::Index(i), At::Key("image")] => {
            images.push((*i, new.and_then(Value::as_str).unwrap_or_default().to_owned()));
            Ok(())
        }
        [
            At::Key("containers"),
            At::Index(i),
            At::Key("resources"),
            At::Key(kind @ ("limits" | "requests")),
            At::Key(resource),
        ] if allowed.resources && resize::RESIZABLE.contains(resource) => {
            let amount = new.cloned().unwrap_or_default();
            resize::note(resources.entry(*i).or_default(), kind, resource, &amount);
            Ok(())
        }
        path => Err(format!("template.spec{} differs", text_of(path))),
    })?;
    let name = |i: usize| {
        let name = |spec: &Value| Some(spec.get("containers")?.get(i)?.get("name")?.as_str()?.to_owned());
        name(&new_spec).ok_or_else(|| format!("template.spec.containers[{i}] has no name"))
    };
    for (i, image) in images {
        if image.is_empty() {
            return Err(format!("template.spec.containers[{i}] has no image"));
        }
        spec.container_images.insert(name(i)?, image);
    }
    let classes = (resize::qos(&old_spec), resize::qos(&new_spec));
    if !resources.is_empty() && classes.0 != classes.1 {
        return Err(format!("the resources would make a {:?} Pod a {:?} one", classes.0, classes.1));
    }
    for (i, resources) in resources {
        spec.container_resources.insert(name(i)?, resources);
    }

    let (old_meta, new_meta) = (old.get("metadata").unwrap_or(&empty), new.get("metadata").unwrap_or(&empty));
    let mut patch = metadata_patch(old_meta, new_meta);
    if allowed.env_from_metadata {
        refer(&mut patch, &new_spec, &mut spec);
    }
    if patch.as_object().is_some_and(|patch| !patch.is_empty()) {
        use base64::Engine as _;
        let text = json!({"metadata": patch}).to_string();
        spec.meta_data_patch = Some(base64::engine::general_purpose::STANDARD.encode(text));
    }
    Ok(spec)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum At<'a> {
    Key(&'a str),
    Index(usize),
}

fn text_of(path: &[At<'_>]) -> String {
    path.iter()
        .map(|step| match step {
            At::Key(key) => format!(".{key}"),
            At::Index(i) => format!("[{i}]"),
        })
        .collect()
}

/// Every place at which two documents differ. Lists of equal length are compared entry by entry; anything that is added,
/// removed or of another shape is one difference at its own place, with what is there now, if anything.
fn differences<'a>(
    old: &'a Value,
    new: &'a Value,
    path: &mut Vec<At<'a>>,
    found: &mut impl FnMut(&[At<'a>], Option<&'a Value>) -> Result<(), String>,
) -> Result<(), String> {
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                path.push(At::Key(key));
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => differences(a, b, path, found)?,
                    // Added or removed: its own kind of place, so that only a replacement looks like one.
                    (_, value) => {
                        path.push(At::Key(if value.is_some() { "(added)" } else { "(removed)" }));
                        found(path, value)?;
                        path.pop();
                    }
                }
                path.pop();
            }
            Ok(())
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                path.push(At::Index(i));
                differences(a, b, path, found)?;
                path.pop();
            }
            Ok(())
        }
        (a, b) if a == b => Ok(()),
        (_, b) => found(path, Some(b)),
    }
}

/// The change of labels, annotations and other metadata, as a merge patch; removed keys are null.
fn metadata_patch(old: &Value, new: &Value) -> Value {
    let mut patch = Map::new();
    let keys =
        |value: &Value| value.as_object().map(|o| o.keys().cloned().collect::<BTreeSet<_>>()).unwrap_or_default();
    for key in keys(old).union(&keys(new)) {
        let (a, b) = (old.get(key).unwrap_or(&Value::Null), new.get(key).unwrap_or(&Value::Null));
        if a == b || key == "creationTimestamp" {
            continue;
        }
        let change = if key == "labels" || key == "annotations" {
            let mut change = Map::new();
            for key in keys(a).union(&keys(b)) {
                if a.get(key) != b.get(key) {
                    change.insert(key.clone(), b.get(key).cloned().unwrap_or(Value::Null));
                }
            }
            change.into()
        } else {
            b.clone()
        };
        patch.insert(key.clone(), change);
    }
    patch.into()
}

/// Moves the keys that a container reads in its environment out of the plain patch.
fn refer(patch: &mut Value, new_spec: &Value, spec: &mut UpdateSpec) {
    let mut moved: BTreeSet<(bool, String)> = BTreeSet::new();
    for container in new_spec.get("containers").and_then(Value::as_array).into_iter().flatten() {
        let Some(name) = container.get("name").and_then(Value::as_str) else { continue };
        for (is_label, key) in referred_keys(container) {
            let kind = if is_label { "labels" } else { "annotations" };
            let Some(value) = patch.get(kind).and_then(|map| map.get(&key)) else { continue };
            let value = value.as_str().map(str::to_owned);
            let entry = spec.container_ref_metadata.entry(name.to_owned()).or_default();
            let map = if is_label { &mut entry.labels } else { &mut entry.annotations };
            map.insert(key.clone(), value);
            moved.insert((is_label, key));
            spec.update_env_from_metadata = true;
        }
    }
    for (is_label, key) in moved {
        let kind = if is_label { "labels" } else { "annotations" };
        if let Some(map) = patch.get_mut(kind).and_then(Value::as_object_mut) {
            map.remove(&key);
            if map.is_empty()
                && let Some(patch) = patch.as_object_mut()
            {
                patch.remove(kind);
            }
        }
    }
}

/// The environment of a container that is read from single labels (true) and annotations (false).
pub fn referred_keys(container: &Value) -> impl Iterator<Item = (bool, String)> {
    environment_from_metadata(container).map(|(_, is_label, key)| (is_label, key))
}

/// Name of the variable, whether it is a label, and its key. Of variables with one name the last one holds.
fn environment_from_metadata(container: &Value) -> impl Iterator<Item = (&str, bool, String)> {
    let env = container.get("env").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    env.iter().enumerate().filter_map(|(i, entry)| {
        let name = entry.get("name")?.as_str()?;
        let has_value = entry.get("value").and_then(Value::as_str).is_some_and(|value| !value.is_empty());
        let is_replaced = env[i + 1..].iter().any(|later| later.get("name").and_then(Value::as_str) == Some(name));
        if has_value || is_replaced || OWN_ENVIRONMENT.contains(&name) {
            return None;
        }
        let path = entry.pointer("/valueFrom/fieldRef/fieldPath")?.as_str()?;
        let (kind, rest) = path.strip_prefix("metadata.")?.split_once("['")?;
        let key = rest.strip_suffix("']")?;
        match kind {
            "labels" => Some((name, true, key.to_owned())),
            "annotations" => Some((name, false, key.to_owned())),
            _ => None,
        }
    })
}

/// The input of the hash that tells whether a container runs with the environment that its Pod's metadata now gives:
/// `null` without such environment.
pub fn expected_environment(container: &Value, pod: &Value) -> Value {
    environment(container, |_, is_label, key| {
        let kind = if is_label { "labels" } else { "annotations" };
        pod.get("metadata")?.get(kind)?.get(key)?.as_str()
    })
}

/// The same of what an instance of the container really got: its environment, as `NAME=value`.
pub fn actual_environment(container: &Value, got: &[String]) -> Value {
    // As for a process: of several the last one holds, and only the first `=` divides.
    let value = |name: &str| got.iter().rev().find_map(|line| line.split_once('=').filter(|(n, _)| *n == name));
    environment(container, |name, _, _| value(name).map(|(_, value)| value))
}

fn environment<'v>(container: &Value, value: impl Fn(&str, bool, &str) -> Option<&'v str>) -> Value {
    let mut entries: Vec<(&str, Value)> = environment_from_metadata(container)
        .map(|(name, is_label, key)| {
            let value = value(name, is_label, &key).filter(|value| !value.is_empty());
            (name, value.map_or_else(|| json!({"name": name}), |value| json!({"name": name, "value": value})))
        })
        .collect();
    entries.sort_by_key(|(name, _)| *name);
    if entries.is_empty() { Value::Null } else { entries.into_iter().map(|(_, entry)| entry).collect() }
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

/// The next batch of `spec` for a Pod.
///
/// Containers without a launch priority change at once; of those with one, only the highest priority does. Containers
/// that share a changed label or annotation change together, because it cannot change twice.
pub fn batch(pod: &Value, spec: &UpdateSpec, mut state: State, now: Timestamp) -> Batch {
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
            break;
        }
        members.extend(more);
    }

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

/// What an update in place needs next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing: none is going on, and the gate is open.
    Nothing,
    /// Something else has to happen first, or time has to pass.
    Wait {
        /// When to look again, if nothing happens before.
        after: Option<Duration>,
        /// What is waited for, in words.
        for_what: String,
    },
    /// The pending change belongs to a revision that the Pod no longer has: drop it.
    DropGrace,
    /// The grace is over: write the pending change.
    Apply(UpdateSpec),
    /// The containers of the batch before are ready: write the next one.
    NextBatch(UpdateSpec),
    /// All is done: open the gate.
    OpenGate,
}

/// The annotations of one update, as a Pod has them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Annotations {
    /// How far it is.
    pub state: Option<State>,
    /// What it will write when the grace is over.
    pub grace: Option<UpdateSpec>,
}

impl Annotations {
    /// Reads them, under their old names too.
    ///
    /// # Errors
    /// Naming the annotation that cannot be read.
    pub fn of(pod: &Value) -> Result<Self, String> {
        fn read<T: serde::de::DeserializeOwned>(pod: &Value, keys: [&str; 2]) -> Result<Option<T>, String> {
            let annotations = pod.get("metadata").and_then(|m| m.get("annotations"));
            let found = keys.iter().find_map(|key| Some((key, annotations?.get(key)?.as_str()?)));
            let Some((key, text)) = found else { return Ok(None) };
            serde_json::from_str(text).map(Some).map_err(|error| format!("annotation {key} cannot be read: {error}"))
        }
        Ok(Self {
            state: read(pod, [labels::IN_PLACE_STATE, labels::IN_PLACE_STATE_LEGACY])?,
            grace: read(pod, [labels::IN_PLACE_GRACE, labels::IN_PLACE_GRACE_LEGACY])?,
        })
    }
}

/// Decides what an update in place needs next.
pub fn next_step(pod: &Value, annotations: &Annotations, now: Timestamp) -> Step {
    let wait = |after, for_what: String| Step::Wait { after, for_what };
    if let Some(grace) = &annotations.grace {
        let label = pod.pointer("/metadata/labels").and_then(|l| l.get(labels::CONTROLLER_REVISION_HASH));
        let Some(state) = &annotations.state else {
            return wait(None, format!("annotation {}, which is missing", labels::IN_PLACE_STATE));
        };
        if !revision::is_same(label.and_then(Value::as_str).unwrap_or_default(), &grace.revision) {
            return Step::DropGrace;
        }
        let passed = now.as_millisecond().saturating_sub(state.update_timestamp.as_millisecond());
        let left = grace.grace_seconds.saturating_mul(1000).saturating_sub(passed);
        // A clock that was set back makes nobody wait for longer than the whole grace.
        return match u64::try_from(left.min(grace.grace_seconds.saturating_mul(1000))) {
            Ok(left) if left > 0 => wait(Some(Duration::from_secs(left.div_ceil(1000))), "the grace period".into()),
            _ => Step::Apply(grace.clone()),
        };
    }
    if let Some(state) = &annotations.state {
        let done = containers_done(pod, state);
        if !done.done {
            return wait(None, done.waits_for);
        }
        if state.has_next() {
            let required = state.pre_check_before_next.iter().flat_map(|check| &check.containers_required_ready);
            let is_ready = |name: &str| status_of(pod, name).and_then(|s| s.get("ready")).and_then(Value::as_bool);
            return match required.into_iter().find(|name| is_ready(name) != Some(true)) {
                Some(name) => wait(None, format!("container {name} to be ready before the next batch")),
                None => Step::NextBatch(state.next()),
            };
        }
    }
    let named = |list: &str, key: &str| {
        let mut list = pod.pointer(list).and_then(Value::as_array).into_iter().flatten();
        list.find(|entry| entry.get(key).and_then(Value::as_str) == Some(labels::CONDITION_INPLACE_UPDATE_READY))
            .cloned()
    };
    let is_open = named("/status/conditions", "type").is_some_and(|c| c.get("status").is_some_and(|s| s == "True"));
    if named("/spec/readinessGates", "conditionType").is_none() || is_open { Step::Nothing } else { Step::OpenGate }
}

/// A fresh state. Containers of an unfinished earlier update are carried over, so that they are still waited for.
pub fn begin(pod: &Value, spec: &UpdateSpec, earlier: Option<&State>, now: Timestamp) -> State {
    let unfinished = earlier.filter(|state| !is_complete(pod, Some(state), false).done);
    State {
        revision: spec.revision.clone(),
        update_timestamp: whole_seconds(now),
        last_container_statuses: unfinished.map(|state| state.last_container_statuses.clone()).unwrap_or_default(),
        update_env_from_metadata: spec.update_env_from_metadata
            || unfinished.is_some_and(|state| state.update_env_from_metadata),
        update_resources: !spec.container_resources.is_empty(),
        update_images: !spec.container_images.is_empty(),
        next_container_images: BTreeMap::new(),
        next_container_ref_metadata: BTreeMap::new(),
        next_container_resources: BTreeMap::new(),
        pre_check_before_next: None,
        container_batches_record: Vec::new(),
        unknown: BTreeMap::new(),
    }
}

fn plain_metadata(spec: &UpdateSpec) -> Value {
    use base64::Engine as _;
    let decode = |text: &String| base64::engine::general_purpose::STANDARD.decode(text).ok();
    let patch = spec.meta_data_patch.as_ref().and_then(decode);
    let patch = patch.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    patch.and_then(|patch| patch.get("metadata").filter(|m| m.is_object()).cloned()).unwrap_or_else(|| json!({}))
}

pub fn container_of<'a>(pod: &'a Value, name: &str) -> Option<&'a Value> {
    let containers = pod.pointer("/spec/containers")?.as_array()?;
    containers.iter().find(|c| c.get("name").and_then(Value::as_str) == Some(name))
}

pub fn status_of<'a>(pod: &'a Value, name: &str) -> Option<&'a Value> {
    let statuses = pod.pointer("/status/containerStatuses")?.as_array()?;
    statuses.iter().find(|s| s.get("name").and_then(Value::as_str) == Some(name))
}

/// A container's launch priority, from the barrier that admission injected.
fn priority(pod: &Value, name: &str) -> Option<i64> {
    let env = container_of(pod, name)?.get("env")?.as_array()?;
    let barrier = env.iter().find(|entry| entry.get("name").and_then(Value::as_str) == Some(BARRIER))?;
    barrier.pointer("/valueFrom/configMapKeyRef/key")?.as_str()?.strip_prefix("p_")?.parse().ok()
}

#[cfg(test)]
mod tests;
