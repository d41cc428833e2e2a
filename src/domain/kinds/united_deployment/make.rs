//! The workload of a subset, as it is created and as it is changed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Map, Value, json};

use super::spec::{ChildKind, SubsetSpec, UnitedSpec};
use crate::{
    api::{apps::strategies::SetUpdateType, labels},
    domain::workload::{owner::OwnerRef, subset::require_in_each},
    k8s::{
        invalid::{Invalid, InvalidField},
        members::{append, object_in},
        merge_patch, name, strategic_merge,
    },
};

/// What is written into the workload of a subset besides its template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Controls {
    /// How many Pods it has.
    pub replicas: i32,
    /// How many of them stay on old revisions.
    pub partition: i32,
    /// Its maxUnavailable instead of that of the template.
    pub limit: Option<i32>,
}

/// What cannot be changed of a StatefulSet; stored with defaults it only looks different.
const FROZEN: [&str; 4] = ["selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates"];
/// The longest name of a workload: with a hash behind it it becomes the value of a label.
const LONGEST_NAME: usize = 52;

/// Labels that all workloads of the subsets have: those of the template and of the selector.
fn common_labels(spec: &UnitedSpec) -> Map<String, Value> {
    let mut all = spec.template.metadata.get("labels").and_then(Value::as_object).cloned().unwrap_or_default();
    all.extend(spec.selector.match_labels.iter().flatten().map(|(key, value)| (key.clone(), json!(value))));
    all
}

/// The selector of the Pods of a subset.
pub fn selector(spec: &UnitedSpec, subset: &str) -> LabelSelector {
    let mut selector = spec.selector.clone();
    // It may have expressions alone.
    selector.match_labels.get_or_insert_default().insert(labels::SUBSET_NAME.to_owned(), subset.to_owned());
    selector
}

/// A workload to create.
///
/// # Errors
/// The patch of the subset does not fit.
pub fn child(
    owner: &OwnerRef,
    spec: &UnitedSpec,
    subset: &SubsetSpec,
    revision: &str,
    controls: Controls,
) -> Result<Value, Invalid> {
    let kind = spec.template.kind;
    let mut metadata = json!({
        "generateName": generate_name(&spec.name, &subset.name),
        "namespace": owner.namespace,
        "ownerReferences": [owner.controller()],
    });
    metadata["labels"] = labels_of(spec, subset, revision).into();
    metadata["annotations"] = annotations_of(spec, subset, controls).into();
    Ok(json!({
        "apiVersion": format!("{}/{}", kind.group(), kind.version()),
        "kind": kind.kind(),
        "metadata": metadata,
        "spec": child_spec(spec, subset, revision, controls)?,
    }))
}

/// `<name>-<subset>-`, or `<name>-` where names cannot be generated from that. What is too long is cut.
fn generate_name(name: &str, subset: &str) -> String {
    let full = format!("{name}-{subset}-");
    let full = if name::is_dns_subdomain(full.trim_end_matches('-')) { full } else { format!("{name}-") };
    match full.len() > LONGEST_NAME - name::SUFFIX {
        true => format!("{}-", name::cut(&full, LONGEST_NAME - name::SUFFIX - 1)),
        false => full,
    }
}

/// Where a maxUnavailable is written. None: the workload has none, as a Deployment of strategy Recreate.
fn limit_pointer(spec: &UnitedSpec) -> Option<&'static str> {
    let recreates = super::spec::pointer(&spec.template.spec, "/strategy/type").is_some_and(|t| t == "Recreate");
    spec.template.kind.limit_pointer().filter(|_| !recreates)
}

fn labels_of(spec: &UnitedSpec, subset: &SubsetSpec, revision: &str) -> Map<String, Value> {
    let mut all = common_labels(spec);
    all.insert(labels::UNITED_REVISION.into(), revision.into());
    all.insert(labels::SUBSET_NAME.into(), subset.name.clone().into());
    all
}

fn annotations_of(spec: &UnitedSpec, subset: &SubsetSpec, controls: Controls) -> Map<String, Value> {
    let mut all = spec.template.metadata.get("annotations").and_then(Value::as_object).cloned().unwrap_or_default();
    all.insert(labels::SUBSET_PATCH.into(), subset.patch_text.clone().into());
    if let Some(limit) = controls.limit {
        all.insert(labels::SUBSET_MAX_UNAVAILABLE.into(), limit.to_string().into());
    }
    all
}

fn child_spec(
    spec: &UnitedSpec,
    subset: &SubsetSpec,
    revision: &str,
    controls: Controls,
) -> Result<Map<String, Value>, Invalid> {
    let kind = spec.template.kind;
    let mut made = spec.template.spec.clone();
    made.insert("selector".into(), json!(selector(spec, &subset.name)));
    made.insert("replicas".into(), controls.replicas.into());
    let template = made.get("template").cloned().unwrap_or_else(|| json!({}));
    made.insert("template".into(), pod_template(spec, subset, revision, template)?);
    if rolls(kind, &made)
        && let Some(at) = kind.partition_pointer()
    {
        put(&mut made, at, controls.partition.into());
        if kind.has_ordinals() {
            let strategy = made.get_mut("updateStrategy").and_then(Value::as_object_mut);
            if let Some(strategy) =
                strategy.filter(|strategy| strategy.get("type").is_none_or(|t| t == "" || t.is_null()))
            {
                strategy.insert("type".into(), SetUpdateType::RollingUpdate.as_str().into());
            }
        }
    }
    if let (Some(limit), Some(at)) = (controls.limit, limit_pointer(spec)) {
        put(&mut made, at, limit.into());
    }
    Ok(made)
}

/// Whether a workload rolls out by itself: a StatefulSet that updates when Pods are deleted has no partition.
pub fn rolls(kind: ChildKind, spec: &Map<String, Value>) -> bool {
    let type_ = spec.get("updateStrategy").and_then(|strategy| strategy.get("type")).and_then(Value::as_str);
    !kind.has_ordinals() || SetUpdateType::parse(type_.unwrap_or_default()) == Some(SetUpdateType::RollingUpdate)
}

/// The Pod template of a subset.
///
/// # Errors
/// The patch does not fit, or there are too many requirements on nodes.
pub fn pod_template(
    spec: &UnitedSpec,
    subset: &SubsetSpec,
    revision: &str,
    mut template: Value,
) -> Result<Value, InvalidField> {
    put_labels(&mut template, &[(labels::SUBSET_NAME, &*subset.name), (labels::UNITED_REVISION, revision)]);
    let invalid = |field: &str, why: String| {
        let index = spec.subsets.iter().position(|other| other.name == subset.name).unwrap_or_default();
        InvalidField { field: format!("spec.topology.subsets[{index}].{field}"), why }
    };
    put_nodes(&mut template, subset).map_err(|Invalid(why)| invalid("nodeSelectorTerm", why))?;
    match &subset.patch {
        Some(patch) => {
            let mut patched = strategic_merge::apply(&template, patch).map_err(|Invalid(why)| invalid("patch", why))?;
            // By these its Pods are found.
            put_labels(&mut patched, &[(labels::SUBSET_NAME, &*subset.name), (labels::UNITED_REVISION, revision)]);
            Ok(patched)
        }
        None => Ok(template),
    }
}

fn put_labels(template: &mut Value, all: &[(&str, &str)]) {
    let Some(template) = template.as_object_mut() else { return };
    let metadata = object_in(template, "metadata");
    let labels = object_in(metadata, "labels");
    labels.extend(all.iter().map(|(key, value)| ((*key).to_owned(), json!(value))));
}

/// Requirements on nodes go into each term that the template has: terms are alternatives.
fn put_nodes(template: &mut Value, subset: &SubsetSpec) -> Result<(), Invalid> {
    let Some(template) = template.as_object_mut() else { return Ok(()) };
    if !(subset.expressions.is_empty() && subset.fields.is_empty()) {
        let spec = object_in(template, "spec");
        let affinity = object_in(object_in(spec, "affinity"), "nodeAffinity");
        let required = object_in(affinity, "requiredDuringSchedulingIgnoredDuringExecution");
        let terms = required.entry("nodeSelectorTerms").or_insert_with(|| json!([]));
        if terms.as_array().is_none_or(Vec::is_empty) {
            *terms = json!([{}]);
        }
        require_in_each(terms, &subset.expressions, &subset.fields)?;
    }
    if !subset.tolerations.is_empty() {
        append(object_in(template, "spec"), "tolerations", &subset.tolerations);
    }
    Ok(())
}

/// Writes a member by a JSON pointer, with the objects on the way.
fn put(object: &mut Map<String, Value>, at: &str, value: Value) {
    let mut parts: Vec<&str> = at.split('/').skip(1).collect();
    let Some(last) = parts.pop() else { return };
    let mut parent = object;
    for part in parts {
        parent = object_in(parent, part);
    }
    parent.insert(last.to_owned(), value);
}

/// The merge patch that makes a workload what it is to be: template, strategy and all else of its template, and labels
/// and annotations. Defaults that go with it come back from the API server and from admission. None: nothing differs.
///
/// # Errors
/// The patch of the subset does not fit.
pub fn rewrite(
    spec: &UnitedSpec,
    subset: &SubsetSpec,
    revision: &str,
    controls: Controls,
    stored: &Value,
) -> Result<Option<Value>, Invalid> {
    let wanted = Value::Object(child_spec(spec, subset, revision, controls)?);
    let of = stored.get("spec").cloned().unwrap_or_default();
    let mut patch = Map::new();
    let mut changes = merge_patch::diff(&of, &wanted);
    if let Some(changes) = changes.as_mut().and_then(Value::as_object_mut).filter(|_| spec.template.kind.has_ordinals())
    {
        // Up to Kubernetes 1.32 the built-in one does not let its revisionHistoryLimit be changed.
        let is_built_in = spec.template.kind == ChildKind::StatefulSet;
        changes.retain(|key, _| !(FROZEN.contains(&key.as_str()) || is_built_in && key == "revisionHistoryLimit"));
    }
    // Users name Pods there, and the CloneSet's controller removes them.
    if let Some(scale) =
        changes.as_mut().and_then(|changes| changes.get_mut("scaleStrategy")).and_then(Value::as_object_mut)
    {
        scale.remove("podsToDelete");
    }
    let changes = changes.filter(|changes| changes.as_object().is_none_or(|changes| !changes.is_empty()));
    patch.extend(changes.map(|spec| ("spec".to_owned(), spec)));
    let mut metadata = metadata_patch(stored, "labels", &labels_of(spec, subset, revision));
    metadata.extend(metadata_patch(stored, "annotations", &annotations_of(spec, subset, controls)));
    if controls.limit.is_none() {
        metadata.extend(unlimited(stored));
    }
    let mut all: Map<String, Value> = Map::new();
    for (field, changes) in metadata {
        object_in(&mut all, &field).extend(changes);
    }
    if !all.is_empty() {
        patch.insert("metadata".into(), all.into());
    }
    Ok((!patch.is_empty()).then(|| patch.into()))
}

/// Labels or annotations that differ. Those of others stay.
fn metadata_patch(stored: &Value, field: &str, wanted: &Map<String, Value>) -> Vec<(String, Map<String, Value>)> {
    let before = stored.get("metadata").and_then(|metadata| metadata.get(field));
    let differs = |(key, value): &(&String, &Value)| before.and_then(|before| before.get(*key)) != Some(*value);
    let changes: Map<String, Value> =
        wanted.iter().filter(differs).map(|(key, value)| (key.clone(), value.clone())).collect();
    if changes.is_empty() { Vec::new() } else { vec![(field.to_owned(), changes)] }
}

fn unlimited(stored: &Value) -> Vec<(String, Map<String, Value>)> {
    let key = labels::SUBSET_MAX_UNAVAILABLE;
    let has = stored.get("metadata").and_then(|m| m.get("annotations")).is_some_and(|all| all.get(key).is_some());
    let gone = || Map::from_iter([(key.to_owned(), Value::Null)]);
    if has { vec![("annotations".to_owned(), gone())] } else { Vec::new() }
}

/// The merge patch that changes numbers alone. None: they are as they are to be.
pub fn adjust(spec: &UnitedSpec, controls: Controls, stored: &Value) -> Option<Value> {
    let kind = spec.template.kind;
    let of = stored.get("spec").and_then(Value::as_object)?;
    let mut changes = Map::new();
    if of.get("replicas").and_then(Value::as_i64) != Some(controls.replicas.into()) {
        changes.insert("replicas".into(), controls.replicas.into());
    }
    if rolls(kind, of)
        && let Some(at) = kind.partition_pointer()
        && partition(kind, of) != i64::from(controls.partition)
    {
        put(&mut changes, at, controls.partition.into());
    }
    let mut metadata = Vec::new();
    if let Some(at) = limit_pointer(spec) {
        let key = labels::SUBSET_MAX_UNAVAILABLE;
        let noted = stored.get("metadata").and_then(|m| m.get("annotations")).and_then(|all| all.get(key));
        match controls.limit {
            Some(limit) => {
                let now = super::spec::pointer(of, at);
                if now.and_then(Value::as_i64) != Some(limit.into())
                    || noted.and_then(Value::as_str) != Some(&*limit.to_string())
                {
                    put(&mut changes, at, limit.into());
                    metadata.push((key.to_owned(), limit.to_string().into()));
                }
            }
            None if noted.is_some() => {
                let own = super::spec::pointer(&spec.template.spec, at).cloned();
                put(&mut changes, at, own.unwrap_or_else(|| kind.default_limit().to_string().into()));
                metadata.push((key.to_owned(), Value::Null));
            }
            None => {}
        }
    }
    let mut patch = Map::new();
    if !changes.is_empty() {
        patch.insert("spec".into(), changes.into());
    }
    if !metadata.is_empty() {
        patch.insert("metadata".into(), json!({"annotations": Map::from_iter(metadata)}));
    }
    (!patch.is_empty()).then(|| patch.into())
}

/// The partition of a stored workload; a missing one is 0.
pub fn partition(kind: ChildKind, spec: &Map<String, Value>) -> i64 {
    let value = kind.partition_pointer().and_then(|at| super::spec::pointer(spec, at));
    value.and_then(Value::as_i64).unwrap_or(0)
}
