//! What a new Pod gets of what is recorded of the Pod of its name: node selectors, preferences and annotations. What its
//! template says wins.

use serde_json::{Map, Value, json};

use super::spec::{LONGEST_VALUE, annotation_keys, is_same_target, preferences, required_keys};
use crate::api::{
    apps::persistent_pod_state::PersistentPodState,
    group_of,
    labels::{INJECTED_STATE, RESTORED_TOPOLOGY},
};

/// The target that a Pod is of: API group, kind and name of what controls it.
pub fn target_of(pod: &Value) -> Option<(&str, &str, &str)> {
    let mut owners = pod.pointer("/metadata/ownerReferences")?.as_array()?.iter();
    let owner = owners.find(|owner| owner["controller"] == true)?;
    let text = |key: &str| owner[key].as_str().filter(|text| !text.is_empty());
    Some((group_of(text("apiVersion")?), text("kind")?, text("name")?))
}

/// The one that counts among those for one target: the oldest. Others are Stalled.
pub fn first<'a>(states: impl IntoIterator<Item = &'a PersistentPodState>) -> Option<&'a PersistentPodState> {
    let is_there = |state: &&PersistentPodState| state.metadata.deletion_timestamp.is_none();
    let age = |state: &&PersistentPodState| {
        let created = state.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (created, state.metadata.name.clone())
    };
    states.into_iter().filter(is_there).min_by_key(age)
}

/// The name of the one that was there before this one and is for the same target.
pub fn before(state: &PersistentPodState, others: &[impl AsRef<PersistentPodState>]) -> Option<String> {
    let same = others.iter().map(AsRef::as_ref).filter(|other| is_same_target(&other.spec, &state.spec));
    let first = first(same.chain([state]))?.metadata.name.clone();
    first.filter(|first| Some(first) != state.metadata.name.as_ref())
}

/// The UID of what controls a Pod.
fn owner_uid(pod: &Value) -> Option<&str> {
    let mut owners = pod.pointer("/metadata/ownerReferences")?.as_array()?.iter();
    owners.find(|owner| owner["controller"] == true)?["uid"].as_str()
}

/// Writes what is recorded into a new Pod. None: nothing is, and it stays as it is. Otherwise what its author should know.
/// What is recorded of a target that is gone is nothing to the Pods of the next one of its name.
pub fn restore(pod: &mut Value, state: &PersistentPodState) -> Option<Vec<String>> {
    let name = pod.pointer("/metadata/name").and_then(Value::as_str)?;
    let status = state.status.as_ref()?;
    if owner_uid(pod).is_some_and(|uid| status.is_of_another(uid)) {
        return None;
    }
    let recorded = status.pod_states.get(name)?.clone();
    let label = |key: &str| recorded.node_topology_labels.get(key).map(String::as_str);
    let mut warnings = Vec::new();
    let spec = pod.get_mut("spec")?.as_object_mut()?;
    let mut is_changed = false;

    let (selector, mut restored) = (object(spec, "nodeSelector")?, Vec::new());
    for (key, value) in required_keys(&state.spec).filter_map(|key| Some((key, label(key)?))) {
        match selector.get(key).and_then(Value::as_str) {
            Some(own) if own != value => warnings.push(format!(
                "spec.nodeSelector: {key} stays {own:?} as the template has it; the Pod was on a node with {value:?}"
            )),
            _ => {
                selector.insert(key.to_owned(), value.into());
                restored.push(key);
            }
        }
        is_changed = true;
    }
    if selector.is_empty() {
        spec.remove("nodeSelector");
    }

    let terms: Vec<Value> = preferences(&state.spec)
        .filter_map(|(weight, keys)| {
            let expressions: Vec<Value> =
                keys.filter_map(|key| Some(json!({ "key": key, "operator": "In", "values": [label(key)?] }))).collect();
            let preference = json!({ "matchExpressions": expressions });
            (!expressions.is_empty()).then(|| json!({ "weight": weight, "preference": preference }))
        })
        .collect();
    if !terms.is_empty() {
        let affinity = object(object(spec, "affinity")?, "nodeAffinity")?;
        let list = affinity.entry("preferredDuringSchedulingIgnoredDuringExecution").or_insert(Value::Null);
        if list.is_null() {
            *list = json!([]);
        }
        let list = list.as_array_mut()?;
        let new: Vec<Value> = terms.into_iter().filter(|term| !list.contains(term)).collect();
        list.extend(new);
        is_changed = true;
    }

    let annotations = object(pod.get_mut("metadata")?.as_object_mut()?, "annotations")?;
    for (key, value) in annotation_keys(&state.spec).filter_map(|key| Some((key, recorded.annotations.get(key)?))) {
        if value.len() <= LONGEST_VALUE && !annotations.contains_key(key) {
            annotations.insert(key.to_owned(), value.as_str().into());
        }
        is_changed = true;
    }
    if !is_changed {
        return None;
    }
    if !restored.is_empty() {
        annotations.insert(RESTORED_TOPOLOGY.to_owned(), restored.join(",").into());
    }
    annotations.insert(INJECTED_STATE.to_owned(), state.metadata.name.clone()?.into());
    Some(warnings)
}

/// A member that is an object; it is made if it is missing. None: it is something else, which the API server refuses.
fn object<'a>(parent: &'a mut Map<String, Value>, key: &str) -> Option<&'a mut Map<String, Value>> {
    let member = parent.entry(key).or_insert(Value::Null);
    if member.is_null() {
        *member = json!({});
    }
    member.as_object_mut()
}

/// Whether a Pod that is bound to no node is held to one by what it got from this object.
pub fn is_held(pod: &Value, state: &PersistentPodState) -> bool {
    let annotation = |key: &str| pod.pointer("/metadata/annotations")?.get(key)?.as_str();
    let is_bound = pod.pointer("/spec/nodeName").and_then(Value::as_str).is_some_and(|node| !node.is_empty());
    let selector = pod.pointer("/spec/nodeSelector");
    let mut restored = annotation(RESTORED_TOPOLOGY).unwrap_or_default().split(',');
    let is_pinned = restored.any(|key| selector.is_some_and(|selector| selector.get(key).is_some()));
    let is_ours = annotation(INJECTED_STATE).is_some_and(|name| state.metadata.name.as_deref() == Some(name));
    is_ours && is_pinned && !is_bound
}
