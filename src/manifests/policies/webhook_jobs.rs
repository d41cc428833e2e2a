//! Jobs against the webhook: it has the template of an AdvancedCronJob judged in a dry run, and stores none.

use serde_json::{Value, json};

use super::cel::{by, must, resource_rule};
use crate::k8s::account::WEBHOOK;

pub(super) fn spec() -> Value {
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [resource_rule("batch", &["v1"], &["CREATE"], &["jobs"])] },
        "matchConditions": [by(&[WEBHOOK])],
        "validations": [must("request.?dryRun.orValue(false)", "the webhook creates Jobs only in a dry run (dryRun=All)")],
    })
}
