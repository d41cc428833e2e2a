//! Evictions by the manager: never in our own namespace, or in that of the control plane. The policy does not see which Pod is
//! evicted; PodDisruptionBudgets and PodUnavailableBudgets limit that.

use serde_json::{Value, json};

use super::{
    cel::{by, must, resource_rule},
    manager_pods::outside_own_namespace,
};
use crate::k8s::account::MANAGER;

pub(super) fn spec() -> Value {
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [resource_rule("", &["v1"], &["CREATE"], &["pods/eviction"])] },
        "matchConditions": [by(&[MANAGER])],
        "validations": [
            outside_own_namespace(),
            must("request.namespace != 'kube-system'", "the manager evicts no Pods of kube-system"),
        ],
    })
}
