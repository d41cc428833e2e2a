//! Ephemeral containers by the manager: it adds those of EphemeralJobs, and none in our own namespace, whose Pods have tokens of
//! our accounts. That a container which is there stays as it is the API server sees to itself.

use serde_json::{Value, json};

use super::{
    cel::{by, must, resource_rule},
    manager_pods::outside_own_namespace,
};
use crate::{api::labels, k8s::account::MANAGER};

pub(super) fn spec() -> Value {
    let has_id = format!(
        "c.?env.orValue([]).exists(e, e.name == '{}' && e.?value.orValue('') != '')",
        labels::ENV_EPHEMERAL_JOB
    );
    let was_there = "oldObject.spec.?ephemeralContainers.orValue([]).exists(o, o.name == c.name)";
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [resource_rule("", &["v1"], &["UPDATE"], &["pods/ephemeralcontainers"])] },
        "matchConditions": [by(&[MANAGER])],
        "validations": [
            outside_own_namespace(),
            must(
                &format!("object.spec.?ephemeralContainers.orValue([]).all(c, {was_there} || {has_id})"),
                &format!("spec.ephemeralContainers: the manager adds only those of EphemeralJobs, with the variable {}", labels::ENV_EPHEMERAL_JOB),
            ),
        ],
    })
}
