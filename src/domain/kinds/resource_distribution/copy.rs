//! One copy: how it is made, whose an object is, and what differs.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::core::v1::ConfigMap,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::Resource;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Map, Value, json};

use super::content::{Content, Fingerprint, ResourceKind, body_of, fingerprint};
use crate::{
    api::{apps, labels},
    k8s::{merge_patch, owner::controls, pointer::escaped, process_hash::process_hash, shared},
};

const KIND: &str = "ResourceDistribution";
/// Places in the list of owners in which our own is looked for.
pub const OWNERS_LOOKED_AT: usize = 3;

/// The ResourceDistribution that a copy belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distributor<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its UID.
    pub uid: &'a str,
}

/// A ConfigMap as it comes: its metadata, and a number instead of its content.
#[derive(Clone, Debug, Default, Resource)]
#[resource(inherit = "ConfigMap")]
pub struct CopyObject {
    metadata: ObjectMeta,
    content: Fingerprint,
}

impl<'de> Deserialize<'de> for CopyObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(deserializer)?;
        let mut metadata = ObjectMeta::deserialize(&object["metadata"]).map_err(D::Error::custom)?;
        metadata.managed_fields = None;
        Ok(Self { metadata, content: fingerprint(&body_of(ResourceKind::ConfigMap, &object)) })
    }
}

/// A ConfigMap as the store holds it, of which there is one in each of thousands of namespaces: numbers instead of what it
/// says.
#[derive(Clone, Debug)]
pub struct CopyView {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its UID.
    pub uid: Box<str>,
    /// `metadata.resourceVersion`.
    pub version: Box<str>,
    /// It is being deleted.
    pub is_ending: bool,
    content: Fingerprint,
    /// Of its labels, annotations, finalizers and owner, sorted.
    marks: Box<[Mark]>,
}

/// A number that stands for a label, an annotation, a finalizer or an owner.
type Mark = u64;

fn mark(what: &str, one: &str, other: &str) -> Mark {
    process_hash((what, one, other))
}

fn mark_of_owner(name: &str) -> Mark {
    mark("owner", name, "")
}

impl From<CopyObject> for CopyView {
    fn from(object: CopyObject) -> Self {
        let CopyObject { metadata, content } = object;
        let pairs = |what: &'static str, map: &Option<BTreeMap<String, String>>| -> Vec<Mark> {
            map.iter().flatten().map(|(key, value)| mark(what, key, value)).collect()
        };
        let mut marks = [pairs("label", &metadata.labels), pairs("annotation", &metadata.annotations)].concat();
        marks.extend(metadata.finalizers.iter().flatten().map(|name| mark("finalizer", name, "")));
        for owner in metadata.owner_references.iter().flatten().filter(|owner| is_reference(owner)) {
            marks.extend([mark_of_owner(&owner.name), mark("owner", &owner.name, &owner.uid)]);
        }
        marks.sort_unstable();
        Self {
            namespace: shared::text(metadata.namespace.as_deref().unwrap_or_default()),
            name: shared::text(metadata.name.as_deref().unwrap_or_default()),
            uid: metadata.uid.unwrap_or_default().into(),
            version: metadata.resource_version.unwrap_or_default().into(),
            is_ending: metadata.deletion_timestamp.is_some(),
            content,
            marks: marks.into(),
        }
    }
}

/// What the view of a copy has when nothing has to be written.
pub struct Wanted {
    content: Fingerprint,
    marks: Vec<Mark>,
}

impl Wanted {
    /// `fingerprint` is that of the content.
    pub fn of(content: &Content, fingerprint: Fingerprint, of: Distributor<'_>) -> Self {
        let mut marks = vec![mark("owner", of.name, of.uid)];
        marks.extend(content.labels.iter().map(|(key, value)| mark("label", key, value)));
        marks.extend(foreign_annotations(content).map(|(key, value)| mark("annotation", key, value)));
        marks.extend(notes(content, of).iter().map(|(key, value)| mark("annotation", key, value)));
        marks.extend(content.finalizers.iter().map(|name| mark("finalizer", name, "")));
        Self { content: fingerprint, marks }
    }
}

impl CopyView {
    /// Whether it is a copy of the ResourceDistribution of this name.
    pub fn is_copy(&self, name: &str) -> bool {
        self.has(mark_of_owner(name))
    }

    /// Whether nothing has to be written.
    pub fn fits(&self, wanted: &Wanted) -> bool {
        self.content == wanted.content && wanted.marks.iter().all(|mark| self.has(*mark))
    }

    /// Whether it differs from a former version in something that matters here.
    pub fn says_the_same_as(&self, other: &Self) -> bool {
        self.uid == other.uid
            && self.content == other.content
            && self.marks == other.marks
            && self.is_ending == other.is_ending
    }

    fn has(&self, mark: Mark) -> bool {
        self.marks.binary_search(&mark).is_ok()
    }
}

fn is_reference(owner: &OwnerReference) -> bool {
    controls(owner, (apps::GROUP, KIND))
}

/// Whether an object is a copy of the ResourceDistribution of this name, of whatever UID: one that was deleted and made again
/// keeps its copies.
pub fn is_copy(metadata: &ObjectMeta, name: &str) -> bool {
    metadata.owner_references.iter().flatten().any(|owner| is_reference(owner) && owner.name == name)
}

fn reference(of: Distributor<'_>) -> Value {
    json!({"apiVersion": format!("{}/v1alpha1", apps::GROUP), "kind": KIND, "name": of.name, "uid": of.uid,
        "controller": true, "blockOwnerDeletion": true})
}

/// What a copy is annotated with, besides the annotations of its content.
fn notes(content: &Content, of: Distributor<'_>) -> [(&'static str, String); 2] {
    [(labels::DISTRIBUTED_FROM, of.name.to_owned()), (labels::DISTRIBUTED_HASH, content.hash.clone())]
}

/// The annotations of a content without those that we note ourselves.
fn foreign_annotations(content: &Content) -> impl Iterator<Item = (&str, &String)> {
    let is_own = |key: &str| [labels::DISTRIBUTED_FROM, labels::DISTRIBUTED_HASH].contains(&key);
    content.annotations.iter().map(|(key, value)| (key.as_str(), value)).filter(move |(key, _)| !is_own(key))
}

/// A new copy, as OpenKruise makes it.
pub fn new(content: &Content, of: Distributor<'_>) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": content.kind.name()});
    let mut metadata =
        json!({"name": content.name, "annotations": content.annotations, "ownerReferences": [reference(of)]});
    for (key, value) in notes(content, of) {
        metadata["annotations"][key] = value.into();
    }
    if !content.labels.is_empty() {
        metadata["labels"] = json!(content.labels);
    }
    if !content.finalizers.is_empty() {
        metadata["finalizers"] = json!(content.finalizers);
    }
    object["metadata"] = metadata;
    for (member, value) in &content.body {
        object[member] = value.clone();
    }
    object
}

/// The merge patch that makes a copy as it should be, bound to the version that was looked at. Labels, annotations,
/// finalizers and owners of others stay. None: it is as it should be.
pub fn patch(object: &Value, metadata: &ObjectMeta, content: &Content, of: Distributor<'_>) -> Option<Value> {
    let mut changes = changes_of_metadata(metadata, content, of);
    let before = Value::Object(body_of(content.kind, object));
    let of_body = merge_patch::diff(&before, &Value::Object(content.body.clone()));
    if changes.is_empty() && of_body.is_none() {
        return None;
    }
    changes.insert("uid".into(), json!(metadata.uid));
    changes.insert("resourceVersion".into(), json!(metadata.resource_version));
    let mut patch = of_body.unwrap_or_else(|| json!({}));
    patch["metadata"] = Value::Object(changes);
    Some(patch)
}

/// Whether a copy has to be deleted and made anew: a Secret has another type, or the copy is immutable and either its content is
/// outdated or somebody else has changed its data. Data that only admission changed is no reason: the next copy would look the
/// same, without end.
pub fn has_to_be_replaced(object: &Value, content: &Content) -> bool {
    let there = body_of(content.kind, object);
    let is_other = |member: &str| there.get(member) != content.body.get(member);
    let is_outdated = object["metadata"]["annotations"][labels::DISTRIBUTED_HASH] != content.hash;
    let has_other_data = is_other("data") || is_other("binaryData");
    let cannot_be_changed = object["immutable"] == true && there != content.body;
    is_other("type") || cannot_be_changed && (is_outdated || has_other_data && is_written_by_others(object))
}

/// Whether another program than ours has written to an object, by its field managers: ours is the name of the process.
fn is_written_by_others(object: &Value) -> bool {
    let is_own = |entry: &Value| ["kruise-manager", "kruise-rs"].iter().any(|own| entry["manager"] == *own);
    object["metadata"]["managedFields"].as_array().into_iter().flatten().any(|entry| !is_own(entry))
}

/// The JSON patch that makes a copy as it should be without having read it, the same for all copies. It fails unless the
/// object is a copy as [`new`] makes it, has the same type, and is not immutable where the content is mutable. Labels and
/// annotations of others stay. Missing finalizers are added by [`patch`], which sees the answer.
pub fn renewal(content: &Content, of: Distributor<'_>) -> Value {
    let annotation = |key: &str| format!("/metadata/annotations/{}", escaped(key));
    let operation = |op: &str, path: String, value: Value| json!({"op": op, "path": path, "value": value});
    let mut patch = vec![
        operation("test", "/metadata/ownerReferences/0".into(), reference(of)),
        operation("test", annotation(labels::DISTRIBUTED_FROM), of.name.into()),
    ];
    if let Some(type_) = content.body.get("type") {
        patch.push(operation("test", "/type".into(), type_.clone()));
    }
    patch.push(operation("add", annotation(labels::DISTRIBUTED_HASH), content.hash.as_str().into()));
    for (key, value) in foreign_annotations(content) {
        patch.push(operation("add", annotation(key), value.as_str().into()));
    }
    for (key, value) in &content.labels {
        patch.push(operation("add", format!("/metadata/labels/{}", escaped(key)), value.as_str().into()));
    }
    // Each as a whole: what is no longer wanted goes, too.
    let emptied: &[&str] = match content.kind {
        ResourceKind::ConfigMap => &["data", "binaryData"],
        ResourceKind::Secret => &["data"],
    };
    let missing = emptied.iter().filter(|member| !content.body.contains_key(**member));
    patch.extend(missing.map(|member| operation("add", format!("/{member}"), json!({}))));
    if !content.body.contains_key("immutable") {
        // Nothing changes where it is missing, and what is not there cannot be removed.
        patch.push(operation("add", "/immutable".into(), json!(false)));
        patch.push(json!({"op": "remove", "path": "/immutable"}));
    }
    let members = content.body.iter().filter(|(member, _)| *member != "type");
    patch.extend(members.map(|(member, value)| operation("add", format!("/{member}"), value.clone())));
    patch.into()
}

fn changes_of_metadata(metadata: &ObjectMeta, content: &Content, of: Distributor<'_>) -> Map<String, Value> {
    let mut changes = Map::new();
    let mut texts = |member: &str, wanted: Vec<(&str, &String)>, there: &Option<BTreeMap<String, String>>| {
        let differs = |key: &str, value: &String| there.as_ref().and_then(|there| there.get(key)) != Some(value);
        let missing = wanted.into_iter().filter(|(key, value)| differs(key, value));
        let missing: Map<String, Value> = missing.map(|(key, value)| (key.to_owned(), json!(value))).collect();
        if !missing.is_empty() {
            changes.insert(member.to_owned(), missing.into());
        }
    };
    texts("labels", content.labels.iter().map(|(key, value)| (key.as_str(), value)).collect(), &metadata.labels);
    let notes = notes(content, of);
    let own = notes.iter().map(|(key, value)| (*key, value));
    texts("annotations", foreign_annotations(content).chain(own).collect(), &metadata.annotations);
    let finalizers = metadata.finalizers.clone().unwrap_or_default();
    let missing: Vec<&String> = content.finalizers.iter().filter(|name| !finalizers.contains(name)).collect();
    if !missing.is_empty() {
        changes.insert("finalizers".into(), json!(finalizers.iter().chain(missing).collect::<Vec<_>>()));
    }
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    if !owners.iter().any(|owner| is_reference(owner) && owner.name == of.name && owner.uid == of.uid) {
        let others = owners.iter().filter(|owner| !is_reference(owner)).map(|owner| json!(owner));
        changes.insert("ownerReferences".into(), std::iter::once(reference(of)).chain(others).collect());
    }
    changes
}
