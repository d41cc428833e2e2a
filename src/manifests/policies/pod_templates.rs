//! PodTemplates: our accounts have them defaulted and judged in a dry run, and store none.

use serde_json::{Value, json};

use super::cel::{by, must, resource_rule};
use crate::k8s::account::{DAEMON, MANAGER, WEBHOOK};

pub(super) fn spec() -> Value {
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [resource_rule("", &["v1"], &["CREATE", "UPDATE"], &["podtemplates"])] },
        "matchConditions": [by(&[MANAGER, WEBHOOK, DAEMON])],
        "validations": [must("request.?dryRun.orValue(false)", "Kruise creates PodTemplates only in a dry run (dryRun=All)")],
    })
}
