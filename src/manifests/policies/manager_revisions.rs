//! ControllerRevisions against the manager: it writes those of our workloads.

use serde_json::{Value, json};

use super::cel::{self, by, equal, must, resource_rule, same_but, unless};
use crate::{api::labels, k8s::account::MANAGER};

pub(super) fn spec() -> Value {
    let handover = [
        equal("data", "{}"),
        equal("revision", "0"),
        same_but("annotations", "false"),
        same_but("labels", &format!("k in ['{}']", labels::REVISION_HASH)),
        equal("metadata.finalizers", "[]"),
        cel::same_other_owners(),
    ];
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [
            resource_rule("apps", &["v1"], &["CREATE", "UPDATE", "DELETE"], &["controllerrevisions"])] },
        "matchConditions": [by(&[MANAGER])],
        "variables": cel::ownership(),
        "validations": [
            must("variables.isFree || variables.isHandover",
                "the manager creates, changes and deletes only ControllerRevisions that a workload of apps.kruise.io controls"),
            unless("variables.isHandover", &handover.join(" && "),
                "the manager adopts and releases a ControllerRevision by its owner reference, and changes nothing else of it with that"),
        ],
    })
}
