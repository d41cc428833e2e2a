//! PersistentVolumeClaims against the manager: it makes those of our workloads and deletes no others.

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
    let labels = format!("k == '{}'", labels::INSTANCE_ID);
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [
            resource_rule("", &["v1"], &["CREATE", "UPDATE", "DELETE"], &["persistentvolumeclaims"])] },
        "matchConditions": [by(&[MANAGER])],
        "validations": [
            unless("request.operation == 'CREATE'",
                &format!("object.metadata.?ownerReferences.orValue([]).all(o, {})", cel::is_our_reference()),
                "the manager creates claims that a CloneSet of apps.kruise.io controls, or that nobody owns"),
            unless("request.operation == 'DELETE'", &cel::is_ours("oldObject"),
                "the manager deletes only claims that a CloneSet of apps.kruise.io controls"),
            unless("request.operation == 'UPDATE'", &fixed.join(" && "),
                "spec: the manager changes nothing but resources of claims"),
            unless("request.operation == 'UPDATE'",
                &format!("{} && {} && {}", same_but("labels", &labels), same_but("annotations", "false"), equal("metadata.finalizers", "[]")),
                &format!("metadata: the manager changes only owner references and the label {} of claims", labels::INSTANCE_ID)),
        ],
    })
}
