//! ControllerRevisions against the manager: it writes those of our workloads.

use serde_json::{Value, json};

use super::cel::{self, by, equal, implies, must, resource_rule, same_but};
use crate::{
    api::{apps, labels},
    k8s::account::{self, MANAGER},
};

pub(super) fn spec() -> Value {
    let handover = [
        equal("data", "{}"),
        equal("revision", "0"),
        same_but("annotations", "false"),
        same_but("labels", &format!("k in ['{}']", labels::REVISION_HASH)),
        equal("metadata.finalizers", "[]"),
        cel::same_other_owners(),
    ];
    let mut variables = cel::ownership().to_vec();
    variables.push(json!({ "name": "isOfSidecarSet", "expression": of_sidecar_set() }));
    variables.push(json!({ "name": "isOfUnited", "expression": of_united() }));
    variables.push(json!({ "name": "isAdopted", "expression": adopted_by_sidecar_set() }));
    variables.push(json!({ "name": "isAdoptedByUnited", "expression": cel::is_adopted_by_united() }));
    let adoption = |reference: &str| {
        [
            equal("data", "{}"),
            equal("revision", "0"),
            same_but("annotations", "false"),
            same_but("labels", "false"),
            equal("metadata.finalizers", "[]"),
            cel::adds_owner(reference),
        ]
        .join(" && ")
    };
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [
            resource_rule("apps", &["v1"], &["CREATE", "UPDATE", "DELETE"], &["controllerrevisions"])] },
        "matchConditions": [by(&[MANAGER])],
        "variables": variables,
        "validations": [
            must("variables.isFree || variables.isHandover || variables.isOfSidecarSet || variables.isOfUnited || variables.isAdopted || variables.isAdoptedByUnited",
                "the manager creates, changes and deletes only ControllerRevisions that a workload or UnitedDeployment of apps.kruise.io controls, or a SidecarSet in the namespace of Kruise"),
            implies("variables.isHandover", &handover.join(" && "),
                "the manager adopts and releases a ControllerRevision by its owner reference, and changes nothing else of it with that"),
            implies("variables.isAdoptedByUnited", &adoption(cel::REFERENCE_OF_UNITED),
                "the manager adopts a ControllerRevision for a UnitedDeployment by its owner reference, and changes nothing else of it with that"),
            implies("variables.isAdopted", &adoption(&reference_of_sidecar_set()),
                "the manager adopts a ControllerRevision for a SidecarSet by its owner reference, and changes nothing else of it with that"),
        ],
    })
}

/// Whether an owner reference `o` is that of a SidecarSet that controls.
fn reference_of_sidecar_set() -> String {
    format!("o.?controller.orValue(false) && o.kind == 'SidecarSet' && o.apiVersion.startsWith('{}/')", apps::GROUP)
}

/// Whether an object is that of a SidecarSet.
fn is_of_sidecar_set(object: &str) -> String {
    format!("{object}.metadata.?ownerReferences.orValue([]).exists(o, {})", reference_of_sidecar_set())
}

/// Whether a revision is and stays that of a SidecarSet. They are in our own namespace, as OpenKruise has them.
fn of_sidecar_set() -> String {
    format!(
        "request.namespace == {} && (request.operation == 'CREATE' || {}) && (request.operation == 'DELETE' || {})",
        account::NAMESPACE,
        is_of_sidecar_set("oldObject"),
        is_of_sidecar_set("object")
    )
}

/// Whether a revision is and stays that of a UnitedDeployment.
fn of_united() -> String {
    format!(
        "(request.operation == 'CREATE' || {}) && (request.operation == 'DELETE' || {})",
        cel::is_of_united("oldObject"),
        cel::is_of_united("object")
    )
}

/// Whether a revision that nobody controls becomes that of a SidecarSet.
fn adopted_by_sidecar_set() -> String {
    format!(
        "request.namespace == {} && request.operation == 'UPDATE' && {} && !oldObject.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false))",
        account::NAMESPACE,
        is_of_sidecar_set("object")
    )
}
