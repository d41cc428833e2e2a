//! What differs between two templates, and whether that can be changed in place.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::{
    UpdateSpec,
    annotations::encoded,
    resize::{self, Qos},
};
use crate::{domain::pod::environment::referred_keys, k8s::pod::InPlaceNotes};

/// Which kinds of change may be made in place.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed {
    /// Feature gate InPlaceUpdateEnvFromMetadata.
    pub env_from_metadata: bool,
    /// Feature gate InPlaceWorkloadVerticalScaling, on an API server that has the subresource `resize`.
    pub resources: bool,
}

/// The longest change in bytes. The annotations that hold it, with more batches and records, are to stay readable.
const LONGEST_SPEC: usize = InPlaceNotes::LONGEST / 2;

/// Why a Pod cannot be brought from one revision to another in place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotInPlace {
    /// A field that cannot be changed while a Pod lives: its path in the template.
    #[error("{0} differs")]
    Differs(String),
    /// The same, of a field that the old template does not have.
    #[error("{0} was added")]
    Added(String),
    /// The same, of a field that the new template does not have.
    #[error("{0} was removed")]
    Removed(String),
    /// A container, by its index.
    #[error("template.spec.containers[{0}] has no name")]
    NoName(usize),
    /// A container, by its index.
    #[error("template.spec.containers[{0}] has no image")]
    NoImage(usize),
    /// The resources would change the class of the Pod, which is fixed.
    #[error("the resources would make a {0:?} Pod a {1:?} one")]
    Qos(Qos, Qos),
    /// The Pod needs other claims.
    #[error("volumeClaimTemplates differ")]
    Claims,
    /// The Pod has no volume for the claim template of this name.
    #[error("it has no volume for claim template {0}")]
    NoVolume(String),
    /// What has to change is more than the annotations of a Pod may hold, in bytes.
    #[error("the change has {0} bytes, and an annotation of the Pod has to hold it; up to {LONGEST_SPEC} are possible")]
    TooLarge(usize),
    /// Without it nothing could take the Pod out of service.
    #[error("it has no readiness gate InPlaceUpdateReady")]
    NoGate,
    /// The ControllerRevision that the Pod is on is gone.
    #[error("its revision {0:?} is not known any more")]
    UnknownRevision(String),
    /// A ControllerRevision that we did not write.
    #[error("a revision holds no template")]
    NoTemplate,
    /// The Pod does not say with which ordinal override it was made.
    #[error("its annotations do not have the override that it was made with")]
    UnknownOverride,
}

impl NotInPlace {
    /// The path of a field, which begins with `template`, and what is wrong with it. None: it is not about a field.
    pub fn place(&self) -> Option<(String, &'static str)> {
        match self {
            Self::Differs(path) => Some((path.clone(), "was changed")),
            Self::Added(path) => Some((path.clone(), "was added")),
            Self::Removed(path) => Some((path.clone(), "was removed")),
            Self::NoName(i) => Some((format!("template.spec.containers[{i}]"), "has no name")),
            Self::NoImage(i) => Some((format!("template.spec.containers[{i}]"), "has no image")),
            _ => None,
        }
    }
}

/// What has to change to get from one template to the other, or why that cannot be done in place.
///
/// # Errors
/// The first difference that needs another Pod.
pub fn spec_between(old: &Value, new: &Value, revision: &str, allowed: Allowed) -> Result<UpdateSpec, NotInPlace> {
    let mut spec = UpdateSpec { revision: revision.to_owned(), ..UpdateSpec::default() };
    let empty = json!({});
    let part = |template: &Value, key: &str| template.get(key).cloned().unwrap_or(Value::Null);
    for key in old.as_object().into_iter().chain(new.as_object()).flat_map(Map::keys) {
        if key != "metadata" && key != "spec" && key != "$patch" && old.get(key) != new.get(key) {
            return Err(match (old.get(key), new.get(key)) {
                (None, _) => NotInPlace::Added(format!("template.{key}")),
                (_, None) => NotInPlace::Removed(format!("template.{key}")),
                _ => NotInPlace::Differs(format!("template.{key}")),
            });
        }
    }
    let (old_spec, new_spec) = (part(old, "spec"), part(new, "spec"));
    let OfContainers { images, resources } = of_containers(&old_spec, &new_spec, allowed)?;
    let name = |i: usize| {
        let name = |spec: &Value| Some(spec.get("containers")?.get(i)?.get("name")?.as_str()?.to_owned());
        name(&new_spec).ok_or(NotInPlace::NoName(i))
    };
    for (i, image) in images {
        if image.is_empty() {
            return Err(NotInPlace::NoImage(i));
        }
        spec.container_images.insert(name(i)?, image);
    }
    let classes = (resize::qos(&old_spec), resize::qos(&new_spec));
    if !resources.is_empty() && classes.0 != classes.1 {
        return Err(NotInPlace::Qos(classes.0, classes.1));
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
        spec.meta_data_patch = Some(encoded(&json!({"metadata": patch})));
    }
    of_readable_length(spec)
}

/// What differs between the containers of two Pod specs, by the places of the containers.
#[derive(Default)]
struct OfContainers {
    images: Vec<(usize, String)>,
    resources: BTreeMap<usize, Value>,
}

/// The images and resources that differ between two Pod specs.
///
/// # Errors
/// Something else differs.
fn of_containers(old: &Value, new: &Value, allowed: Allowed) -> Result<OfContainers, NotInPlace> {
    let mut found = OfContainers::default();
    differences(old, new, &mut Vec::new(), &mut |path, new| match path {
        [At::Key("containers"), At::Index(i), At::Key("image")] => {
            found.images.push((*i, new.and_then(Value::as_str).unwrap_or_default().to_owned()));
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
            resize::note(found.resources.entry(*i).or_default(), kind, resource, &amount);
            Ok(())
        }
        [path @ .., At::Added] => Err(NotInPlace::Added(format!("template.spec{}", text_of(path)))),
        [path @ .., At::Removed] => Err(NotInPlace::Removed(format!("template.spec{}", text_of(path)))),
        path => Err(NotInPlace::Differs(format!("template.spec{}", text_of(path)))),
    })?;
    Ok(found)
}

/// A change, unless it is more than the annotations of a Pod may hold.
pub(super) fn of_readable_length(spec: UpdateSpec) -> Result<UpdateSpec, NotInPlace> {
    let length = serde_json::to_vec(&spec).map_or(0, |text| text.len());
    if length > LONGEST_SPEC { Err(NotInPlace::TooLarge(length)) } else { Ok(spec) }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum At<'a> {
    Key(&'a str),
    Index(usize),
    /// Behind the place of something that was not there.
    Added,
    /// Behind the place of something that is gone.
    Removed,
}

fn text_of(path: &[At<'_>]) -> String {
    path.iter()
        .map(|step| match step {
            At::Key(key) => format!(".{key}"),
            At::Index(i) => format!("[{i}]"),
            At::Added | At::Removed => String::new(),
        })
        .collect()
}

/// Every place at which two documents differ. Lists of equal length are compared entry by entry; anything that is added,
/// removed or of another shape is one difference at its own place, with what is there now, if anything.
fn differences<'a>(
    old: &'a Value,
    new: &'a Value,
    path: &mut Vec<At<'a>>,
    found: &mut impl FnMut(&[At<'a>], Option<&'a Value>) -> Result<(), NotInPlace>,
) -> Result<(), NotInPlace> {
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                path.push(At::Key(key));
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => differences(a, b, path, found)?,
                    // Added or removed: its own kind of place, so that only a replacement looks like one.
                    (_, value) => {
                        path.push(if value.is_some() { At::Added } else { At::Removed });
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

/// The finalizers that a strategic merge patch adds.
pub(super) const FINALIZERS: &str = "finalizers";
/// Those that it takes away.
pub(super) const FINALIZERS_GONE: &str = "$deleteFromPrimitiveList/finalizers";

/// What one list has and another one has not.
pub(super) fn only_in(list: &Value, other: &Value) -> Vec<Value> {
    let entries = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let (mut left, others) = (entries(list), entries(other));
    left.retain(|entry| !others.contains(entry));
    left
}

/// The change of labels, annotations and other metadata, as a strategic merge patch; removed keys are null.
fn metadata_patch(old: &Value, new: &Value) -> Value {
    let mut patch = Map::new();
    let keys =
        |value: &Value| value.as_object().map(|o| o.keys().cloned().collect::<BTreeSet<_>>()).unwrap_or_default();
    for key in keys(old).union(&keys(new)) {
        let (a, b) = (old.get(key).unwrap_or(&Value::Null), new.get(key).unwrap_or(&Value::Null));
        if a == b || key == "creationTimestamp" {
            continue;
        }
        if key == FINALIZERS {
            // Others have theirs in the list of a Pod too, and take those of hooks out of it: it is not replaced.
            for (member, names) in [(FINALIZERS, only_in(b, a)), (FINALIZERS_GONE, only_in(a, b))] {
                if !names.is_empty() {
                    patch.insert(member.to_owned(), names.into());
                }
            }
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
