//! The status of ContainerRecreateRequests: a daemon reports on those of its own node.

use serde_json::{Value, json};

use super::{by_a_daemon, token_node, updates_of};
use crate::api::labels;

pub(super) fn spec() -> Value {
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": updates_of("containerrecreaterequests/status"),
        "matchConditions": [by_a_daemon()],
        "variables": [
            token_node(),
            { "name": "requestNode",
                "expression": format!("oldObject.metadata.?labels[?'{}'].orValue('')", labels::CRR_NODE_NAME) },
        ],
        "validations": [{
            "expression": "variables.tokenNode != '' && variables.tokenNode == variables.requestNode",
            "message": "a daemon may only report on requests of its own node",
            "messageExpression":
                "'a daemon may only report on requests of its own node; its token is of node \"' + variables.tokenNode + '\", the request is of node \"' + variables.requestNode + '\"'",
            "reason": "Forbidden",
        }],
    })
}
