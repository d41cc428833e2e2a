//! Events of daemons: each names the node of the token that writes it as its reporter, so that a stolen token cannot
//! speak for other nodes, or for the manager.

use serde_json::{Value, json};

use super::{by_a_daemon, cel, token_node};
use crate::k8s::account::DAEMON_COMPONENTS;

pub(super) fn spec() -> Value {
    json!({
        "failurePolicy": "Fail",
        // Events of events.k8s.io are the same objects, and match as these.
        "matchConstraints": { "resourceRules": [
            { "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["events"] }] },
        "matchConditions": [by_a_daemon()],
        "variables": [
            token_node(),
            { "name": "host", "expression": "object.?source.?host.orValue('')" },
            { "name": "instance", "expression": "object.?reportingInstance.orValue('')" },
            { "name": "components",
                "expression": "[object.?source.?component.orValue(''), object.?reportingComponent.orValue('')]" },
        ],
        "validations": [
            {
                "expression": "variables.tokenNode != '' && variables.host == variables.tokenNode && variables.instance == variables.tokenNode",
                "message": "source.host, reportingInstance: the events of a daemon name its own node",
                "messageExpression":
                    "'source.host, reportingInstance: the events of a daemon name its own node; its token is of node \"' + variables.tokenNode + '\", the event is of \"' + variables.host + '\" and \"' + variables.instance + '\"'",
                "reason": "Forbidden",
            },
            {
                "expression": format!("variables.components.all(component, component in {})", cel::list(&DAEMON_COMPONENTS)),
                "message": format!("source.component, reportingComponent: want one of {}", DAEMON_COMPONENTS.join(", ")),
                "reason": "Forbidden",
            },
        ],
    })
}
