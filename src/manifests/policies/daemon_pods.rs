//! Pods against daemons. Whoever may write the status of a Pod may write its labels, annotations and finalizers with it.

use serde_json::{Value, json};

use super::{by_a_daemon, others_annotations, same, token_node};
use crate::api::labels;

pub(super) fn spec() -> Value {
    let own_key = labels::RUNTIME_CONTAINERS_META;
    let only_own_key = format!("metadata.annotations: a daemon changes only {own_key} of Pods");
    let by_daemon = ": a daemon does not change those of Pods";
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [
            { "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods/status"] }] },
        "matchConditions": [by_a_daemon()],
        "variables": [token_node(), { "name": "podNode", "expression": "oldObject.spec.?nodeName.orValue('')" }],
        "validations": [
            {
                "expression": "variables.tokenNode != '' && variables.tokenNode == variables.podNode",
                "message": "a daemon may only report on Pods of its own node",
                "messageExpression":
                    "'a daemon may only report on Pods of its own node; its token is of node \"' + variables.tokenNode + '\", the Pod is on node \"' + variables.podNode + '\"'",
                "reason": "Forbidden",
            },
            {
                "expression": "object.status == oldObject.status",
                "message": "status: a daemon does not change that of Pods",
                "reason": "Forbidden",
            },
            same("labels", "{}", by_daemon),
            same("finalizers", "[]", by_daemon),
            same("ownerReferences", "[]", by_daemon),
            others_annotations(&format!("k == '{own_key}'"), &only_own_key),
        ],
    })
}
