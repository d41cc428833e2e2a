//! ConfigMaps against the manager: it writes the launch barriers of Pods, and the CAs for daemons.

use serde_json::{Value, json};

use super::cel::{by, must, resource_rule};
use crate::{
    domain::{node::pull_secrets::CONFIG_MAP, pod::launch_priority::barrier_of},
    k8s::account::{self, MANAGER},
};

pub(super) fn spec() -> Value {
    let suffix = barrier_of("");
    // One that is there is a barrier if a Pod of its name owns it.
    let is_barrier = format!(
        "(request.operation == 'CREATE' ? object : oldObject).metadata.?ownerReferences.orValue([]).exists(o, o.kind == 'Pod' && o.apiVersion == 'v1' && object.metadata.name == o.name + '{suffix}')"
    );
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [resource_rule("", &["v1"], &["CREATE", "UPDATE"], &["configmaps"])] },
        "matchConditions": [by(&[MANAGER])],
        "validations": [must(
            &format!("(object.metadata.name == '{CONFIG_MAP}' && request.namespace == {}) || {is_barrier}", account::NAMESPACE),
            &format!("the manager writes only the ConfigMap {CONFIG_MAP} of its own namespace, and POD{suffix} that is owned by the Pod POD"),
        )],
    })
}
