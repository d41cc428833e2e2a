//! ConfigMaps against the manager: it writes the launch barriers of Pods, the CAs for daemons, and the copies of
//! ResourceDistributions.

use serde_json::{Value, json};

use super::cel::{by, is_distributed, must, resource_rule};
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
    let is_ca = format!("object.metadata.name == '{CONFIG_MAP}' && request.namespace == {}", account::NAMESPACE);
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [
            resource_rule("", &["v1"], &["CREATE", "UPDATE", "DELETE"], &["configmaps"])] },
        "matchConditions": [by(&[MANAGER])],
        "validations": [must(
            &format!("(request.operation != 'DELETE' && (({is_ca}) || {is_barrier})) || ({})", is_distributed()),
            &format!("the manager writes only the ConfigMap {CONFIG_MAP} of its own namespace, POD{suffix} that is owned by the Pod POD, and outside of its own namespace those that a ResourceDistribution controls, before and after"),
        )],
    })
}
