//! What a new Pod gets of its subset: tolerations, nodes, the patch, and a note of where it belongs.

use serde_json::{Map, Value, json};

use super::spec::SubsetSpec;
use crate::{
    api::labels,
    domain::workload::subset::require_in_each,
    k8s::{
        invalid::{Invalid, InvalidField},
        members::{append, object_in},
        strategic_merge,
    },
};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
/// Labels of Pods by which controllers know them.
pub const FIXED_LABELS: [&str; 9] = [
    labels::CONTROLLER_REVISION_HASH,
    labels::POD_TEMPLATE_HASH,
    labels::INSTANCE_ID,
    labels::POD_NAME,
    labels::POD_INDEX,
    "controller-uid",
    "job-name",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
];
/// Fields of the metadata that say which Pod it is and whose. No patch changes them.
pub const FIXED_FIELDS: [&str; 6] = ["name", "generateName", "namespace", "uid", "resourceVersion", "ownerReferences"];
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
/// Labels and annotations by which Kruise knows what becomes of a Pod, or has become of it: deletion, lifecycle, updates, sidecars,
/// a Pod of a trial, one of kubelet's own. Kruise or a person writes them on single Pods; no patch changes them.
pub const INSTRUCTIONS: [&str; 26] = [
    labels::SPECIFIED_DELETE,
    labels::SPECIFIED_DELETE_FOR,
    labels::LIFECYCLE_STATE,
    labels::LIFECYCLE_TIMESTAMP,
    labels::IN_PLACE_STATE,
    labels::IN_PLACE_STATE_LEGACY,
    labels::IN_PLACE_GRACE,
    labels::IN_PLACE_GRACE_LEGACY,
    labels::IMAGE_SPELLINGS,
    labels::RUNTIME_CONTAINERS_META,
    labels::LAUNCH_PRIORITY_COMPLETED,
    labels::LAUNCH_PRIORITY_OPENED,
    labels::SIDECAR_SET_HASH,
    labels::SIDECAR_SET_HASH_WITHOUT_IMAGE,
    labels::SIDECAR_SETS_INJECTED,
    labels::SIDECAR_SET_IN_PLACE_STATE,
    labels::SIDECAR_SET_WORKING,
    labels::SIDECAR_SETS_LEFT_OUT,
    labels::INJECTED_STATE,
    labels::RELATED_PUB,
    labels::PROBE_MARKED_BY,
    labels::RESERVED_POD,
    labels::MATCHED_SPREAD,
    labels::TRIAL,
    labels::STATIC_POD_MIRROR,
    labels::STATIC_POD_CONFIG_HASH,
];

/// What is noted on a Pod of a subset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The value of [`labels::MATCHED_SPREAD`].
    pub matched: String,
    /// Its deletion cost, where that counts.
    pub cost: Option<i32>,
}

/// A Pod, or a Pod template, in a subset. What the patch says of [`FIXED_FIELDS`], [`FIXED_LABELS`], [`INSTRUCTIONS`] and the
/// status is left out.
///
/// # Errors
/// A field of the subset does not fit the Pod: its patch, or its required nodes.
pub fn inject(pod: &Value, subset: &SubsetSpec, note: Option<&Note>) -> Result<Value, InvalidField> {
    let mut wanted = pod.clone();
    place(&mut wanted, subset)?;
    if let Some(patch) = &subset.patch {
        let class = |pod: &Value| {
            let class = pod.pointer("/spec/priorityClassName").and_then(Value::as_str);
            class.filter(|class| !class.is_empty()).map(str::to_owned)
        };
        let patched = strategic_merge::apply(&wanted, patch)
            .map_err(|Invalid(why)| invalid("patch", format!("the patch of subset {:?}: {why}", subset.name)))?;
        let has_other_class = class(&patched) != class(&wanted);
        wanted = kept(&wanted, patched);
        if has_other_class && let Some(spec) = wanted.get_mut("spec").and_then(Value::as_object_mut) {
            // The API server has set both by the former class, sets them by the new one, and refuses others.
            for field in ["priority", "preemptionPolicy"] {
                if patch["spec"].get(field).is_none_or(Value::is_null) {
                    spec.remove(field);
                }
            }
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

/// A patched Pod with what no patch changes.
fn kept(pod: &Value, patched: Value) -> Value {
    let Value::Object(mut patched) = patched else { return pod.clone() };
    // By the phase in its status a Pod that has ended gets no sidecars.
    for key in ["apiVersion", "kind", "status"] {
        put(&mut patched, key, pod.get(key));
    }
    if pod.get("metadata").is_some() || patched.contains_key("metadata") {
        let metadata = object_in(&mut patched, "metadata");
        for key in FIXED_FIELDS {
            put(metadata, key, pod["metadata"].get(key));
        }
    }
    let patched = keep(pod, Value::Object(patched), FIXED_LABELS.into_iter().chain(INSTRUCTIONS));
    keep_in("annotations", pod, patched, INSTRUCTIONS.into_iter())
}

fn labels_of(pod: &Value) -> Option<&Map<String, Value>> {
    pod.pointer("/metadata/labels")?.as_object()
}

/// The Pod with these labels, or without them, as it was before.
fn keep<'k>(before: &Value, after: Value, keys: impl Iterator<Item = &'k str>) -> Value {
    keep_in("labels", before, after, keys)
}

/// The Pod with these labels or annotations, or without them, as it was before.
fn keep_in<'k>(field: &str, before: &Value, mut after: Value, keys: impl Iterator<Item = &'k str>) -> Value {
    let of = |pod: &Value, key: &str| pod["metadata"][field].get(key).cloned();
    let changed: Vec<&str> = keys.filter(|key| of(before, key) != of(&after, key)).collect();
    if let Some(pod) = after.as_object_mut().filter(|_| !changed.is_empty()) {
        let members = object_in(object_in(pod, "metadata"), field);
        for key in changed {
            put(members, key, of(before, key).as_ref());
        }
    }
    after
}

fn put(object: &mut Map<String, Value>, key: &str, value: Option<&Value>) {
    match value {
        Some(value) => drop(object.insert(key.to_owned(), value.clone())),
        None => drop(object.remove(key)),
    }
}

/// Whether a label that a Pod had is gone or has another value.
pub fn changes_labels(before: &Value, after: &Value) -> bool {
    let now = labels_of(after);
    labels_of(before).into_iter().flatten().any(|(key, value)| now.and_then(|now| now.get(key)) != Some(value))
}

/// The Pod with the labels by which a selector of its owner selects it as they were; None: it is not known, and all that it had
/// stay. A Pod that its owner does not select is made anew, again and again.
pub fn keep_labels(before: &Value, after: Value, selector: Option<&Value>) -> Value {
    let all = labels_of(before).into_iter().flatten().map(|(key, _)| key.as_str());
    match selector {
        Some(selector) => keep(before, after, selected_by(selector).into_iter()),
        None => keep(before, after, all),
    }
}

/// A label by which a selector selects a template, and which is another one after a patch.
pub fn label_lost<'s>(before: &Value, after: &Value, selector: &'s Value) -> Option<&'s str> {
    let label = |pod: &Value, key: &str| labels_of(pod).and_then(|labels| labels.get(key).cloned());
    selected_by(selector).into_iter().find(|key| label(before, key) != label(after, key))
}

/// The keys of a selector: a label selector, or plain labels.
fn selected_by(selector: &Value) -> Vec<&str> {
    let is_plain = selector.get("matchLabels").or_else(|| selector.get("matchExpressions")).is_none();
    let labels = if is_plain { Some(selector) } else { selector.get("matchLabels") };
    let labels = labels.and_then(Value::as_object).into_iter().flatten().map(|(key, _)| key.as_str());
    let expressions = selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten();
    labels.chain(expressions.filter_map(|expression| expression["key"].as_str())).collect()
}

fn invalid(field: &str, why: String) -> InvalidField {
    InvalidField { field: field.to_owned(), why }
}

/// Tolerations and nodes. The terms that a Pod has are alternatives, so what is required goes into each of them.
///
/// # Errors
/// That would be too many.
pub fn place(pod: &mut Value, subset: &SubsetSpec) -> Result<(), InvalidField> {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
    append(spec, "tolerations", &subset.tolerations);
    let affinity = object_in(object_in(spec, "affinity"), "nodeAffinity");
    append(affinity, PREFERRED, &subset.preferred);
    let Some(required) = &subset.required else { return Ok(()) };
    let terms = object_in(affinity, REQUIRED).entry("nodeSelectorTerms").or_insert_with(|| json!([]));
    if terms.as_array().is_none_or(Vec::is_empty) {
        *terms = json!([required]);
        return Ok(());
    }
    let list = |key: &str| required.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    require_in_each(terms, list("matchExpressions"), list("matchFields"))
        .map_err(|Invalid(why)| invalid("requiredNodeSelectorTerm", format!("subset {:?}: {why}", subset.name)))
}

/// Labels and annotations of a patch that a Pod gets which was created without it, as far as they are texts. None of Kruise's
/// domains, which would be orders to us, and none that says which revision a Pod is of; of the domains of Kubernetes only a Pod
/// that is ours gets them.
pub fn metadata(patch: Option<&Value>, is_ours: bool) -> Map<String, Value> {
    let Some(metadata) = patch.and_then(|patch| patch.get("metadata")) else { return Map::new() };
    let is_free = |key: &str| {
        let is_known = FIXED_LABELS.contains(&key) || INSTRUCTIONS.contains(&key) || labels::is_of_kruise(key);
        !is_known && (is_ours || !labels::is_of_system(key))
    };
    let texts = |key: &str| -> Option<(String, Value)> {
        let all = metadata.get(key)?.as_object()?.iter();
        let all = all.filter(|(key, value)| value.is_string() && !key.starts_with('$') && is_free(key));
        let all: Map<String, Value> = all.map(|(key, value)| (key.clone(), value.clone())).collect();
        (!all.is_empty()).then(|| (key.to_owned(), all.into()))
    };
    ["labels", "annotations"].into_iter().filter_map(texts).collect()
}
