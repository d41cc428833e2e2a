//! Which PersistentPodState the annotations of a StatefulSet ask for. One that somebody else has made is never touched.

use std::collections::BTreeMap;

use kube::api::ObjectMeta;
use serde_json::{Value, json};

use super::spec::{MOST_ANNOTATIONS, MOST_KEYS, may_be_recorded};
use crate::{
    api::{
        apps::persistent_pod_state::{
            PersistentAnnotation, PersistentPodState, PersistentPodStateSpec, PreferredTopology, StateTarget,
            TopologyKeys,
        },
        group_of,
        labels::{AUTO_GENERATE_STATE, PERSISTENT_ANNOTATIONS, PREFERRED_TOPOLOGY, REQUIRED_TOPOLOGY},
    },
    domain::workload::owner::OwnerRef,
    k8s::{invalid::Invalid, name::is_qualified_name},
};

/// The annotations of a StatefulSet that matter here.
pub const ANNOTATIONS: [&str; 4] = [AUTO_GENERATE_STATE, REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY, PERSISTENT_ANNOTATIONS];

/// The weight of the preference that is generated.
const WEIGHT: i32 = 100;

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Generation {
    /// Nothing.
    Nothing,
    /// To create this one.
    Create(Box<PersistentPodState>),
    /// To write these fields of its spec.
    Replace(Value),
    /// To delete it.
    Delete,
    /// The annotations ask for one that cannot be made, and why.
    Refused(String),
}

/// Decides for a StatefulSet that is not being deleted. `existing` is the PersistentPodState of its name, `other` the name of
/// another one for the same StatefulSet.
pub fn generate(
    owner: &OwnerRef,
    annotations: &BTreeMap<String, String>,
    existing: Option<&PersistentPodState>,
    other: Option<&str>,
) -> Generation {
    let existing = match existing {
        Some(state) if state.metadata.deletion_timestamp.is_some() => return Generation::Nothing,
        existing => existing,
    };
    let is_own = existing.is_some_and(|state| is_of(state, owner));
    if annotations.get(AUTO_GENERATE_STATE).map(String::as_str) != Some("true") {
        return if is_own { Generation::Delete } else { Generation::Nothing };
    }
    let wanted = match wanted(owner, annotations) {
        Ok(Some(wanted)) => wanted,
        Ok(None) => return Generation::Nothing,
        Err(Invalid(why)) => return Generation::Refused(why),
    };
    match (existing, other) {
        (Some(state), _) if is_own => match changes(&state.spec, &wanted) {
            Some(changes) => Generation::Replace(changes),
            None => Generation::Nothing,
        },
        (Some(_), _) => Generation::Refused(format!(
            "there is a PersistentPodState {} that was not generated for this StatefulSet: it stays as it is",
            owner.name
        )),
        (None, Some(other)) => {
            Generation::Refused(format!("PersistentPodState {other} is for this StatefulSet already; it can have one"))
        }
        (None, None) => Generation::Create(Box::new(PersistentPodState {
            metadata: ObjectMeta {
                name: Some(owner.name.clone()),
                namespace: Some(owner.namespace.clone()),
                owner_references: serde_json::from_value(json!([reference(owner)])).ok(),
                ..ObjectMeta::default()
            },
            spec: wanted,
            status: None,
        })),
    }
}

/// The owner reference. It does not block the deletion of the owner: for that the manager would need a right over it.
fn reference(owner: &OwnerRef) -> Value {
    let mut reference = owner.plain();
    reference["controller"] = true.into();
    reference
}

/// Whether it was generated for this StatefulSet, and not for a namesake before it.
fn is_of(state: &PersistentPodState, owner: &OwnerRef) -> bool {
    let mut owners = state.metadata.owner_references.iter().flatten();
    owners.any(|of| {
        of.controller == Some(true)
            && (group_of(&of.api_version), &of.kind, &of.uid) == (owner.group(), &owner.kind, &owner.uid)
    })
}

/// The fields of the spec that differ, for a merge patch. The retention policy has no annotation: it is its user's to set.
fn changes(now: &PersistentPodStateSpec, wanted: &PersistentPodStateSpec) -> Option<Value> {
    let mut changes = json!({});
    let same_annotations = now.persistent_pod_annotations == wanted.persistent_pod_annotations;
    for (field, is_same, value) in [
        ("persistentPodAnnotations", same_annotations, json!(wanted.persistent_pod_annotations)),
        (
            "requiredPersistentTopology",
            now.required_persistent_topology == wanted.required_persistent_topology,
            json!(wanted.required_persistent_topology),
        ),
        (
            "preferredPersistentTopology",
            now.preferred_persistent_topology == wanted.preferred_persistent_topology,
            json!(wanted.preferred_persistent_topology),
        ),
    ] {
        if !is_same {
            let is_empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
            changes[field] = if is_empty { Value::Null } else { value };
        }
    }
    changes.as_object().is_some_and(|changes| !changes.is_empty()).then_some(changes)
}

/// The spec that the annotations ask for. None: they name no topology.
fn wanted(owner: &OwnerRef, annotations: &BTreeMap<String, String>) -> Result<Option<PersistentPodStateSpec>, Invalid> {
    let required = keys(annotations, REQUIRED_TOPOLOGY, MOST_KEYS)?;
    let preferred = keys(annotations, PREFERRED_TOPOLOGY, MOST_KEYS)?;
    let recorded = keys(annotations, PERSISTENT_ANNOTATIONS, MOST_ANNOTATIONS)?;
    if required.is_empty() && preferred.is_empty() {
        return Ok(None);
    }
    let topology = |keys: Vec<String>| TopologyKeys { node_topology_keys: keys };
    let preference = |keys: Vec<String>| PreferredTopology { weight: WEIGHT, preference: topology(keys) };
    let target =
        StateTarget { api_version: owner.api_version.clone(), kind: owner.kind.clone(), name: owner.name.clone() };
    Ok(Some(PersistentPodStateSpec {
        target_ref: target,
        persistent_pod_annotations: recorded.into_iter().map(|key| PersistentAnnotation { key }).collect(),
        required_persistent_topology: Some(required).filter(|keys| !keys.is_empty()).map(topology),
        preferred_persistent_topology: Some(preferred)
            .filter(|keys| !keys.is_empty())
            .map(preference)
            .into_iter()
            .collect(),
        persistent_pod_state_retention_policy: String::new(),
    }))
}

/// The keys in an annotation, with commas between them.
fn keys(annotations: &BTreeMap<String, String>, annotation: &str, most: usize) -> Result<Vec<String>, Invalid> {
    let text = annotations.get(annotation).map(String::as_str).unwrap_or_default();
    let mut keys: Vec<String> = Vec::new();
    for key in text.split(',').map(str::trim).filter(|key| !key.is_empty()) {
        let is_allowed =
            if annotation == PERSISTENT_ANNOTATIONS { may_be_recorded(key) } else { is_qualified_name(key) };
        if !is_allowed {
            let shown: String = key.chars().take(80).collect();
            return Err(Invalid(format!(
                "metadata.annotations[{annotation}]: {shown:?} is not allowed; want keys such as example.com/key, with commas between them and none of kruise.io or kruise.rs"
            )));
        }
        if !keys.iter().any(|known| known == key) {
            keys.push(key.to_owned());
        }
    }
    if keys.len() > most {
        return Err(Invalid(format!(
            "metadata.annotations[{annotation}]: {} keys are not allowed; want up to {most}",
            keys.len()
        )));
    }
    Ok(keys)
}
