//! The policy that the API server evaluates by itself, whether a process of ours runs or not, and its binding.
//!
//! The policy is installed with the manifests and does nothing without the binding, which the webhook role makes while the
//! gate ResourcesDeletionProtection is on, and takes away while it is off. A second one, over who may take labels off, is
//! bound by nobody but an administrator who wants it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::api::{
    kinds::{KINDS, Kind, Protection},
    labels::{DELETE_PROTECTION as LABEL, DELETE_PROTECTION_ALWAYS, DELETE_PROTECTION_CASCADING},
};

/// What every refusal begins with, as OpenKruise says it.
pub const PREFIX: &str = "forbidden by ResourcesProtectionDeletion for";

/// The refusal of the level Always.
pub fn refusal_always() -> String {
    format!("{PREFIX} {LABEL}={DELETE_PROTECTION_ALWAYS}")
}

/// The refusal of the level Cascading for a workload with replicas. `count` may be an expression in CEL between quotes.
pub fn refusal_cascading(count: &str) -> String {
    format!("{PREFIX} {LABEL}={DELETE_PROTECTION_CASCADING} and replicas {count}>0")
}

/// The name of the policy and of its binding.
pub const NAME: &str = "kruise-deletion-protection";

/// The name of the policy over labels.
pub const LABEL_GUARD: &str = "kruise-deletion-protection-labels";
/// The verb that RBAC has to allow for an object whose label is to go.
pub const UNPROTECT: &str = "unprotect";

/// The kinds that are protected, by group.
fn protected() -> Vec<(&'static str, Vec<&'static Kind>)> {
    let mut groups: Vec<(&str, Vec<&Kind>)> = Vec::new();
    for kind in KINDS.iter().filter(|kind| kind.protection != Protection::None) {
        match groups.iter_mut().find(|(group, _)| *group == kind.group) {
            Some((_, kinds)) => kinds.push(kind),
            None => groups.push((kind.group, vec![kind])),
        }
    }
    groups
}

/// Binds the policy. An administrator may narrow it by `matchResources`.
pub fn binding_spec() -> Value {
    // Audit: what is refused is in the audit log of the API server.
    json!({ "policyName": NAME, "validationActions": ["Deny", "Audit"] })
}

/// The objects that have the label, of each kind that it protects; `parts` are the kind itself (empty) and subresources.
fn labelled(operations: &[&str], parts: &[&str]) -> Value {
    let rule = |(group, kinds): &(&str, Vec<&Kind>)| {
        let of_part = |part: &&str| kinds.iter().map(|kind| format!("{}{part}", kind.plural)).collect::<Vec<_>>();
        let resources: Vec<String> = parts.iter().flat_map(of_part).collect();
        let versions: BTreeSet<&str> = kinds.iter().flat_map(|kind| kind.versions).copied().collect();
        json!({ "apiGroups": [group], "apiVersions": versions, "operations": operations, "resources": resources })
    };
    json!({
        "objectSelector": { "matchExpressions": [{ "key": LABEL, "operator": "Exists" }] },
        "resourceRules": protected().iter().map(rule).collect::<Vec<_>>(),
    })
}

fn label_of(object: &str) -> String {
    format!("{object}.metadata.?labels[?'{LABEL}']")
}

/// What the policy over labels says: to take one off, or to loosen it, needs a right of its own.
pub fn label_guard_spec() -> Value {
    let (always, cascading) = (DELETE_PROTECTION_ALWAYS, DELETE_PROTECTION_CASCADING);
    let (old, new) = (label_of("oldObject"), label_of("object"));
    json!({
        "failurePolicy": "Fail",
        // The status of some built-in kinds is written with the labels.
        "matchConstraints": labelled(&["UPDATE"], &["", "/status"]),
        "matchConditions": [
            { "name": "not-being-deleted", "expression": "!has(oldObject.metadata.deletionTimestamp)" },
            { "name": "loosens", "expression": format!(
                "{old}.orValue('') in ['{always}', '{cascading}'] && !({new}.orValue('') in ['{always}', {old}.orValue('')])") },
        ],
        "validations": [{
            "expression": format!("authorizer.requestResource.check('{UNPROTECT}').allowed()"),
            "message": format!(
                "metadata.labels: {LABEL} may only be removed or loosened by whoever has the verb {UNPROTECT} on the object"),
            "messageExpression": format!(
                "'metadata.labels: {LABEL}=' + {old}.orValue('') + ' may only be removed or loosened by whoever has the verb {UNPROTECT} on ' + request.resource.resource"),
            "reason": "Forbidden",
        }],
    })
}

/// What the policy says.
pub fn spec() -> Value {
    let (always, cascading) = (DELETE_PROTECTION_ALWAYS, DELETE_PROTECTION_CASCADING);
    let mut workloads: Vec<String> = Vec::new();
    for kind in KINDS.iter().filter(|kind| kind.protection == Protection::Replicas) {
        let resource = format!("'{}'", kind.plural);
        // Two groups have StatefulSets.
        if !workloads.contains(&resource) {
            workloads.push(resource);
        }
    }
    let workloads = workloads.join(", ");
    // A UnitedDeployment may leave its replicas to its subsets; other workloads without the field have one.
    let subsets = "oldObject.spec.?topology.?subsets.orValue([]).map(s, type(s.?replicas.orValue(0)) == int ? int(s.?replicas.orValue(0)) : 0).sum()";
    let of_united = format!("[{subsets}, int(oldObject.?status.?replicas.orValue(0))].max()");
    // A DaemonSet has as many as there are nodes for it.
    let of_nodes = "int(oldObject.?status.?desiredNumberScheduled.orValue(0))";
    let replicas = format!(
        "!(request.resource.resource in [{workloads}]) ? 0 : oldObject.spec.?replicas.hasValue() ? int(oldObject.spec.replicas) : request.resource.resource == 'uniteddeployments' ? {of_united} : request.resource.resource == 'daemonsets' ? {of_nodes} : 1"
    );
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": labelled(&["CREATE", "UPDATE", "DELETE"], &[""]),
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
                "message": refusal_always(),
                "reason": "Forbidden",
            },
            {
                "expression": "variables.replicas <= 0",
                "message": refusal_cascading("N"),
                "messageExpression": format!("'{}'", refusal_cascading("' + string(variables.replicas) + '")),
                "reason": "Forbidden",
            },
            {
                // Without a value it is as no label. What is refused is a mistyped one.
                "expression": format!("variables.newLabel in ['', '{always}', '{cascading}']"),
                "message": format!("metadata.labels: {LABEL} is not allowed as it is; want {always} or {cascading}"),
                "messageExpression": format!(
                    "'metadata.labels: {LABEL}: \"' + variables.newLabel + '\" is not allowed; want {always} or {cascading}'"),
                "reason": "Invalid",
            },
        ],
    })
}
