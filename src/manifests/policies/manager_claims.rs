//! PersistentVolumeClaims against the manager: it makes those of our workloads, and changes and deletes no others.
//!
//! The controller writes owner references alone: with `disablePVCReuse` a claim goes from its CloneSet to the Pod that
//! still has it. All claims that it makes carry the label.

use serde_json::{Value, json};

use super::cel::{self, by, equal, resource_rule, same_but, unless};
use crate::{api::labels, k8s::account::MANAGER};

/// Of the spec only `resources` may change.
const FIXED: [(&str, &str); 8] = [
    ("spec.accessModes", "[]"),
    ("spec.selector", "{}"),
    ("spec.volumeName", "''"),
    ("spec.storageClassName", "''"),
    ("spec.volumeMode", "''"),
    ("spec.dataSource", "{}"),
    ("spec.dataSourceRef", "{}"),
    ("spec.volumeAttributesClassName", "''"),
];

pub(super) fn spec() -> Value {
    let fixed: Vec<String> = FIXED.iter().map(|(field, empty)| equal(field, empty)).collect();
    let label = labels::INSTANCE_ID;
    let is_label = format!("k == '{label}'");
    let was_made = format!("oldObject.metadata.?labels[?'{label}'].hasValue()");
    let others = |object: &str| {
        format!(
            "{object}.metadata.?ownerReferences.orValue([]).filter(o, !({}) && !(o.kind == 'Pod' && o.apiVersion == 'v1'))",
            cel::is_our_reference()
        )
    };
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [
            resource_rule("", &["v1"], &["CREATE", "UPDATE", "DELETE"], &["persistentvolumeclaims"])] },
        "matchConditions": [by(&[MANAGER])],
        "validations": [
            unless("request.operation == 'CREATE'",
                &format!("object.metadata.?ownerReferences.orValue([]).all(o, {})", cel::is_our_reference()),
                "the manager creates claims that a CloneSet of apps.kruise.io controls, or that nobody owns"),
            unless("request.operation != 'CREATE'", &was_made,
                &format!("the manager changes and deletes only claims with the label {label}")),
            unless("request.operation == 'DELETE'", &cel::is_ours("oldObject"),
                "the manager deletes only claims that a CloneSet of apps.kruise.io controls"),
            unless("request.operation == 'UPDATE'", &fixed.join(" && "),
                "spec: the manager changes nothing but resources of claims"),
            unless("request.operation == 'UPDATE'",
                &format!("{} && {} && {}", same_but("labels", &is_label), same_but("annotations", "false"), equal("metadata.finalizers", "[]")),
                &format!("metadata: the manager changes only owner references and the label {label} of claims")),
            unless("request.operation == 'UPDATE'", &format!("{} == {}", others("object"), others("oldObject")),
                "metadata.ownerReferences: the manager changes only those to CloneSets of apps.kruise.io and to Pods"),
        ],
    })
}
