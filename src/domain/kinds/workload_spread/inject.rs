//! What a new Pod gets of its subset: tolerations, nodes, the patch, and a note of where it belongs.

use serde_json::{Map, Value, json};

use super::spec::SubsetSpec;
use crate::{
    api::labels,
    k8s::{invalid::Invalid, strategic_merge},
};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
/// Labels of Pods that decide which workload has them.
const IDENTITY: [&str; 2] = [labels::CONTROLLER_REVISION_HASH, labels::POD_TEMPLATE_HASH];
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// What is noted on a Pod of a subset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The value of [`labels::MATCHED_SPREAD`].
    pub matched: String,
    /// Its deletion cost, where that counts.
    pub cost: Option<i32>,
}

/// A Pod, or a Pod template, in a subset.
///
/// # Errors
/// The patch does not fit: the field of it, and why.
pub fn inject(pod: &Value, subset: &SubsetSpec, note: Option<&Note>) -> Result<Value, Invalid> {
    let mut wanted = pod.clone();
    place(&mut wanted, subset);
    if let Some(patch) = &subset.patch {
        let class = |pod: &Value| pod.pointer("/spec/priorityClassName").cloned();
        let patched = strategic_merge::apply(&wanted, patch)
            .map_err(|Invalid(why)| Invalid(format!("the patch of subset {:?}: {why}", subset.name)))?;
        let has_other_class = class(&patched) != class(&wanted);
        wanted = patched;
        if has_other_class && let Some(spec) = wanted.get_mut("spec").and_then(Value::as_object_mut) {
            // The API server sets the number by the class.
            spec.remove("priority");
        }
    }
    if let (Some(note), Some(wanted)) = (note, wanted.as_object_mut()) {
        let annotations = object_in(object_in(wanted, "metadata"), "annotations");
        annotations.insert(labels::MATCHED_SPREAD.into(), note.matched.clone().into());
        if let Some(cost) = note.cost {
            annotations.insert(labels::POD_DELETION_COST.into(), cost.to_string().into());
        }
    }
    Ok(wanted)
}

/// Tolerations and nodes. The terms that a Pod has are alternatives, so what is required goes into each of them.
pub fn place(pod: &mut Value, subset: &SubsetSpec) {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    append(spec, "tolerations", &subset.tolerations);
    let affinity = object_in(object_in(spec, "affinity"), "nodeAffinity");
    append(affinity, PREFERRED, &subset.preferred);
    let Some(required) = &subset.required else { return };
    let terms = object_in(affinity, REQUIRED).entry("nodeSelectorTerms").or_insert_with(|| json!([]));
    if terms.as_array().is_none_or(Vec::is_empty) {
        *terms = json!([required]);
        return;
    }
    for term in terms.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        for key in ["matchExpressions", "matchFields"] {
            append(term, key, required.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice));
        }
    }
}

/// Labels and annotations of a patch that a Pod gets which was created without it, as far as they are texts. Of the domains of
/// Kubernetes and Kruise, and those that say which revision a Pod is of, only a Pod that is ours gets them.
pub fn metadata(patch: Option<&Value>, is_ours: bool) -> Map<String, Value> {
    let Some(metadata) = patch.and_then(|patch| patch.get("metadata")) else { return Map::new() };
    let is_free = |key: &str| is_ours || !(labels::is_of_system(key) || IDENTITY.contains(&key));
    let texts = |key: &str| -> Option<(String, Value)> {
        let all = metadata.get(key)?.as_object()?.iter();
        let all = all.filter(|(key, value)| value.is_string() && !key.starts_with('$') && is_free(key));
        let all: Map<String, Value> = all.map(|(key, value)| (key.clone(), value.clone())).collect();
        (!all.is_empty()).then(|| (key.to_owned(), all.into()))
    };
    ["labels", "annotations"].into_iter().filter_map(texts).collect()
}

/// A member that is an object; made where it is missing.
fn object_in<'v>(parent: &'v mut Map<String, Value>, key: &str) -> &'v mut Map<String, Value> {
    let member = parent.entry(key).or_insert_with(|| json!({}));
    if !member.is_object() {
        *member = json!({});
    }
    match member {
        Value::Object(object) => object,
        _ => unreachable!("it has just been made an object"),
    }
}

fn append(parent: &mut Map<String, Value>, key: &str, more: &[Value]) {
    if more.is_empty() {
        return;
    }
    match parent.entry(key).or_insert_with(|| json!([])) {
        Value::Array(list) => list.extend(more.iter().cloned()),
        other => *other = more.to_vec().into(),
    }
}
