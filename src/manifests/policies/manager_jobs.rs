//! Jobs against the manager: it makes and deletes those of AdvancedCronJobs, and no others. Those of its own namespace could run
//! as accounts of ours.

use serde_json::{Value, json};

use super::cel::{by, must, resource_rule};
use crate::{
    api::apps,
    k8s::account::{self, MANAGER},
};

pub(super) fn spec() -> Value {
    let controlled = |object: &str| {
        format!(
            "{object}.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false) && o.kind == 'AdvancedCronJob' && o.apiVersion.startsWith('{}/'))",
            apps::GROUP
        )
    };
    let created = format!("request.operation == 'DELETE' || {}", controlled("object"));
    let deleted = format!("request.operation == 'CREATE' || {}", controlled("oldObject"));
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [resource_rule("batch", &["v1"], &["CREATE", "DELETE"], &["jobs"])] },
        "matchConditions": [by(&[MANAGER])],
        "validations": [
            must(&format!("request.namespace != {}", account::NAMESPACE),
                "the manager writes no Jobs of the namespace that Kruise is installed in"),
            must(&format!("({created}) && ({deleted})"),
                "the manager creates and deletes only Jobs that an AdvancedCronJob controls"),
        ],
    })
}
