//! PersistentVolumeClaims against the manager: it makes those of our workloads, and changes and deletes no others.
//!
//! Those of CloneSets carry a label, and go from their CloneSet to the Pod that still has them (`disablePVCReuse`). Those of
//! StatefulSets carry none and outlive their Pods; they are known by their names, `TEMPLATE-SET-ORDINAL`, and are never
//! deleted by the manager: by its retention policy the set or the Pod becomes an owner, and the garbage collector does it.

use serde_json::{Value, json};

use super::cel::{self, by, equal, implies, resource_rule, same_but};
use crate::{
    api::{apps, labels},
    k8s::account::MANAGER,
};

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

/// Whether an owner reference `o` is to the StatefulSet that the name of the claim says, as one that only owns.
fn is_its_set() -> String {
    format!(
        "o.kind == 'StatefulSet' && o.apiVersion.startsWith('{}/') && !o.?controller.orValue(false) && {}",
        apps::GROUP,
        is_set("o.name")
    )
}

/// Whether the claim is of an ordinal of the StatefulSet with this name.
fn is_set(name: &str) -> String {
    format!("variables.ofPod.endsWith('-' + {name})")
}

pub(super) fn spec() -> Value {
    let fixed: Vec<String> = FIXED.iter().map(|(field, empty)| equal(field, empty)).collect();
    let label = labels::INSTANCE_ID;
    let annotation = labels::OWNED_BY_STATEFUL_SET;
    let is_label = format!("(k == '{label}' && variables.isLabelled)");
    let is_annotation = format!("(k == '{annotation}' && !variables.isLabelled)");
    let its_set = is_its_set();
    let may_own = format!(
        "(variables.isLabelled ? (({}) || (o.kind == 'Pod' && o.apiVersion == 'v1')) : (({its_set}) || (o.kind == 'Pod' && o.apiVersion == 'v1' && variables.name.endsWith('-' + o.name) && variables.ofPod != '')))",
        cel::is_our_reference()
    );
    let others = |object: &str| format!("{object}.metadata.?ownerReferences.orValue([]).filter(o, !{may_own})");
    let grown_by = format!("object.metadata.?annotations[?'{annotation}'].orValue('')");
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [
            resource_rule("", &["v1"], &["CREATE", "UPDATE", "DELETE"], &["persistentvolumeclaims"])] },
        "matchConditions": [by(&[MANAGER])],
        "variables": [
            { "name": "isLabelled", "expression":
                format!("request.operation != 'CREATE' && oldObject.metadata.?labels[?'{label}'].hasValue()") },
            { "name": "name", "expression": "request.operation == 'CREATE' ? object.metadata.?name.orValue('') : oldObject.metadata.name" },
            // `TEMPLATE-SET` of a name `TEMPLATE-SET-ORDINAL`.
            { "name": "ofPod", "expression":
                "variables.name.matches('^.+-[0-9]+$') ? variables.name.substring(0, variables.name.lastIndexOf('-')) : ''" },
        ],
        "validations": [
            implies("request.operation == 'CREATE'",
                &format!("object.metadata.?ownerReferences.orValue([]).all(o, ({}) || ({its_set}))", cel::is_our_reference()),
                "the manager creates claims that a workload of apps.kruise.io controls, that the StatefulSet in their name owns, or that nobody owns"),
            implies("request.operation == 'DELETE'", &format!("variables.isLabelled && {}", cel::is_ours("oldObject")),
                &format!("the manager deletes only claims with the label {label} that a workload of apps.kruise.io controls")),
            implies("request.operation == 'UPDATE'", "variables.isLabelled || variables.ofPod != ''",
                &format!("the manager changes only claims with the label {label}, and those that are named as the claims of a StatefulSet")),
            implies("request.operation == 'UPDATE'", &fixed.join(" && "),
                "spec: the manager changes nothing but resources of claims"),
            implies("request.operation == 'UPDATE' && !variables.isLabelled",
                &format!("object.spec == oldObject.spec || ({grown_by} != '' && {})", is_set(&grown_by)),
                &format!("spec.resources: the manager changes those of claims whose annotation {annotation} names their StatefulSet")),
            implies("request.operation == 'UPDATE'",
                &format!("{} && {} && {}", same_but("labels", &is_label), same_but("annotations", &is_annotation), equal("metadata.finalizers", "[]")),
                &format!("metadata: the manager changes only owner references, the label {label} of claims that have it, and the annotation {annotation} of others")),
            implies("request.operation == 'UPDATE'", &format!("{} == {}", others("object"), others("oldObject")),
                "metadata.ownerReferences: the manager changes only those to workloads of apps.kruise.io and to Pods, of a StatefulSet's claims those that their names name"),
        ],
    })
}
