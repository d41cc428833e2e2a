//! EphemeralJobs: their authors get no further than their own rights. The manager adds containers to Pods for whoever writes the
//! object, which whoever may do it can do without the object too.

use serde_json::{Value, json};

use crate::api::apps;

const RESOURCE: &str = "ephemeraljobs";

pub(super) fn spec() -> Value {
    let may = |verb: &str| {
        format!(
            "authorizer.group('').resource('pods').subresource('ephemeralcontainers').namespace(request.namespace).check('{verb}').allowed()"
        )
    };
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [{ "apiGroups": [apps::GROUP], "apiVersions": ["v1alpha1"],
            "operations": ["CREATE", "UPDATE"], "resources": [RESOURCE] }] },
        "matchConditions": [
            // Stored objects, their finalizers and their other metadata go on, and so do those that are being deleted.
            { "name": "changed", "expression":
                "request.operation == 'CREATE' || (object.spec != oldObject.spec && !has(oldObject.metadata.deletionTimestamp))" },
        ],
        "validations": [
            {
                "expression": format!("{} || {}", may("patch"), may("update")),
                "message": "spec: the job adds ephemeral containers to Pods; want the right to patch pods/ephemeralcontainers in the namespace",
                "reason": "Forbidden",
            },
            {
                "expression": "request.operation == 'CREATE' || !has(oldObject.status) || !has(oldObject.status.startTime) || (object.spec.template == oldObject.spec.template && object.spec.selector == oldObject.spec.selector)",
                "message": "spec: template and selector cannot be changed once the job has begun: Pods have its containers; create another EphemeralJob",
                "reason": "Invalid",
            },
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f54_the_template_of_a_job_that_has_begun_stays() {
        let spec = spec();
        let rules = spec["validations"].as_array().unwrap();
        assert_eq!(rules[1]["reason"], "Invalid");
        assert!(rules[1]["expression"].as_str().unwrap().contains("oldObject.status.startTime"), "{spec}");
        assert!(rules[0]["expression"].as_str().unwrap().contains("subresource('ephemeralcontainers')"), "{spec}");
    }
}
