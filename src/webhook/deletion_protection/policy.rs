//! The policy that the API server evaluates by itself, whether a process of ours runs or not, and its binding.
//!
//! The policy is installed with the manifests and does nothing without the binding, which the webhook role makes while the
//! gate ResourcesDeletionProtection is on, and takes away while it is off.

use serde_json::{Value, json};

use crate::api::{
    apps,
    labels::{DELETE_PROTECTION as LABEL, DELETE_PROTECTION_ALWAYS, DELETE_PROTECTION_CASCADING},
};

/// The name of the policy and of its binding.
pub const NAME: &str = "kruise-deletion-protection";

/// Kinds whose replicas are in their spec.
const WORKLOADS: [&str; 5] = ["deployments", "replicasets", "statefulsets", "clonesets", "uniteddeployments"];

/// Binds the policy. An administrator may narrow it by `matchResources`.
pub fn binding_spec() -> Value {
    // Audit: what is refused is in the audit log of the API server.
    json!({ "policyName": NAME, "validationActions": ["Deny", "Audit"] })
}

/// What the policy says.
pub fn spec() -> Value {
    let rule = |group: &str, versions: &[&str], resources: &[&str]| json!({ "apiGroups": [group], "apiVersions": versions, "operations": ["CREATE", "UPDATE", "DELETE"], "resources": resources });
    let label_of = |object: &str| format!("{object}.metadata.?labels[?'{LABEL}']");
    let (always, cascading) = (DELETE_PROTECTION_ALWAYS, DELETE_PROTECTION_CASCADING);
    let workloads = WORKLOADS.map(|resource| format!("'{resource}'")).join(", ");
    // A UnitedDeployment may leave its replicas to its subsets; other workloads without the field have one.
    let subsets = "oldObject.spec.?topology.?subsets.orValue([]).map(s, type(s.?replicas.orValue(0)) == int ? int(s.?replicas.orValue(0)) : 0).sum()";
    let of_united = format!("[{subsets}, int(oldObject.?status.?replicas.orValue(0))].max()");
    let replicas = format!(
        "!(request.resource.resource in [{workloads}]) ? 0 : oldObject.spec.?replicas.hasValue() ? int(oldObject.spec.replicas) : request.resource.resource == 'uniteddeployments' ? {of_united} : 1"
    );
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": {
            "objectSelector": { "matchExpressions": [{ "key": LABEL, "operator": "Exists" }] },
            "resourceRules": [
                rule("", &["v1"], &["namespaces", "services"]),
                rule("apiextensions.k8s.io", &["v1"], &["customresourcedefinitions"]),
                rule("apps", &["v1"], &["deployments", "replicasets", "statefulsets"]),
                rule("networking.k8s.io", &["v1"], &["ingresses"]),
                rule(apps::GROUP, &["v1alpha1", "v1beta1"], &["clonesets", "statefulsets", "uniteddeployments"]),
            ],
        },
        "matchConditions": [
            // Whoever takes a finalizer away must get through, and what is going may be deleted again.
            { "name": "not-being-deleted",
                "expression": "request.operation == 'CREATE' || !has(oldObject.metadata.deletionTimestamp)" },
            { "name": "deletion-or-new-label", "expression": format!(
                "request.operation != 'UPDATE' || {}.orValue('') != {}.orValue('')", label_of("object"), label_of("oldObject")) },
        ],
        "variables": [
            // With its namespace everything in it goes.
            { "name": "isAsked", "expression":
                "request.operation == 'DELETE' && !(namespaceObject != null && has(namespaceObject.metadata.deletionTimestamp))" },
            { "name": "level", "expression": format!("variables.isAsked ? {}.orValue('') : ''", label_of("oldObject")) },
            { "name": "replicas", "expression": format!("variables.level == '{cascading}' ? ({replicas}) : 0") },
            { "name": "newLabel", "expression":
                format!("request.operation == 'DELETE' ? '{always}' : {}.orValue('{always}')", label_of("object")) },
        ],
        "validations": [
            {
                "expression": format!("variables.level != '{always}'"),
                "message": super::always(),
                "reason": "Forbidden",
            },
            {
                "expression": "variables.replicas <= 0",
                "message": super::replicas("N"),
                "messageExpression": format!("'{}'", super::replicas("' + string(variables.replicas) + '")),
                "reason": "Forbidden",
            },
            {
                "expression": format!("variables.newLabel in ['{always}', '{cascading}']"),
                "message": format!("metadata.labels: {LABEL} is not allowed as it is; want {always} or {cascading}"),
                "messageExpression": format!(
                    "'metadata.labels: {LABEL}: \"' + variables.newLabel + '\" is not allowed; want {always} or {cascading}'"),
                "reason": "Invalid",
            },
        ],
    })
}
