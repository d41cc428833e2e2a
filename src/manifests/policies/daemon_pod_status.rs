//! The status of Pods against daemons. Whoever may write it may write labels, annotations and finalizers with it.

use serde_json::{Value, json};

use super::{
    cel::{equal, must, same_but},
    token_node,
};
use crate::api::labels;

/// Variables and validations, for the policy over all accounts.
pub(super) fn rules() -> Value {
    let own_key = labels::RUNTIME_CONTAINERS_META;
    json!({
        "variables": [token_node(), { "name": "podNode", "expression": "oldObject.spec.?nodeName.orValue('')" }],
        "validations": [
            {
                "expression": "variables.tokenNode != '' && variables.tokenNode == variables.podNode",
                "message": "a daemon may only report on Pods of its own node",
                "messageExpression":
                    "'a daemon may only report on Pods of its own node; its token is of node \"' + variables.tokenNode + '\", the Pod is on node \"' + variables.podNode + '\"'",
                "reason": "Forbidden",
            },
            must("object.status == oldObject.status", "status: a daemon does not change that of Pods"),
            must(&equal("metadata.labels", "{}"), "metadata.labels: a daemon does not change those of Pods"),
            must(&equal("metadata.finalizers", "[]"), "metadata.finalizers: a daemon does not change those of Pods"),
            must(&equal("metadata.ownerReferences", "[]"), "metadata.ownerReferences: a daemon does not change those of Pods"),
            must(&same_but("annotations", &format!("k == '{own_key}'")),
                &format!("metadata.annotations: a daemon changes only {own_key} of Pods")),
        ],
    })
}
