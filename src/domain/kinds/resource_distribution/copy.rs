//! One copy: how it is made, whose an object is, and what differs.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::ConfigMap,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::Resource;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Map, Value, json};

use super::content::{Content, Fingerprint, ResourceKind, body_of, fingerprint};
use crate::{
    api::{apps, group_of, labels},
    k8s::merge_patch,
};

const KIND: &str = "ResourceDistribution";

/// The ResourceDistribution that a copy belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distributor<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its UID.
    pub uid: &'a str,
}

/// A ConfigMap as the store holds it: its metadata, and a number instead of its content.
#[derive(Clone, Debug, Default, Resource)]
#[resource(inherit = "ConfigMap")]
pub struct CopyView {
    metadata: ObjectMeta,
    content: Fingerprint,
}

impl<'de> Deserialize<'de> for CopyView {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(deserializer)?;
        let mut metadata = ObjectMeta::deserialize(&object["metadata"]).map_err(D::Error::custom)?;
        metadata.managed_fields = None;
        Ok(Self { metadata, content: fingerprint(&body_of(ResourceKind::ConfigMap, &object)) })
    }
}

impl CopyView {
    /// Its metadata.
    pub fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    /// Whether nothing has to be written.
    pub fn fits(&self, content: &Content, fingerprint: &Fingerprint, of: Distributor<'_>) -> bool {
        self.content == *fingerprint && changes_of_metadata(&self.metadata, content, of).is_empty()
    }
}

fn is_reference(owner: &OwnerReference) -> bool {
    owner.controller == Some(true) && owner.kind == KIND && group_of(&owner.api_version) == apps::GROUP
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
    let is_own = |key: &str| [labels::DISTRIBUTED_FROM, labels::DISTRIBUTED_HASH].contains(&key);
    let theirs = content.annotations.iter().map(|(key, value)| (key.as_str(), value)).filter(|(key, _)| !is_own(key));
    texts("annotations", theirs.chain(own).collect(), &metadata.annotations);
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
