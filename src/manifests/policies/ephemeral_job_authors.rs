//! EphemeralJobs: their authors get no further than their own rights. The manager adds containers to Pods for whoever writes the
//! object, which whoever may do it can do without the object too.

use serde_json::{Value, json};

use super::cel;
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
        "matchConditions": [cel::new_spec()],
        "validations": [
            {
                "expression": format!("{} || {}", may("patch"), may("update")),
                "message": "spec: the job requires permission to patch pods/ephemeralcontainers in this namespace",
                "reason": "Forbidden",
            },
            {
                "expression": format!("request.operation == 'CREATE' || !has(oldObject.status) || !has(oldObject.status.startTime) || ({} && {})", template_stays(), selector_stays()),
                "message": "spec: template and selector cannot be changed once the job has begun: Pods have its containers; create another EphemeralJob",
                "reason": "Invalid",
            },
        ],
    })
}

/// Absent and empty are the same: clients in Go leave out what is empty, and write `resources: {}` for containers without.
fn template_stays() -> String {
    let is_empty = |value: &str| format!("{value} in [dyn(null), dyn({{}}), dyn([]), dyn(''), dyn(false), dyn(0)]");
    let list = |root: &str| format!("{root}.spec.template.?ephemeralContainers.orValue([])");
    let (new, old) = (list("object"), list("oldObject"));
    format!(
        "(object.spec.template == oldObject.spec.template || (size({new}) == size({old}) && {new}.all(c, {old}.exists(o, o.name == c.name \
         && c.all(k, k in o ? o[k] == c[k] : {}) && o.all(k, k in c || {})))))",
        is_empty("c[k]"),
        is_empty("o[k]"),
    )
}

fn selector_stays() -> String {
    let same = |member: &str, empty: &str| {
        let of = |root: &str| format!("{root}.spec.selector.?{member}.orValue({empty})");
        format!("{} == {}", of("object"), of("oldObject"))
    };
    format!("{} && {}", same("matchLabels", "{}"), same("matchExpressions", "[]"))
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
        let rule = rules[1]["expression"].as_str().unwrap();
        for part in [
            "object.spec.template == oldObject.spec.template || ",
            "c.all(k, k in o ? o[k] == c[k] : c[k] in [dyn(null), dyn({}),",
            "object.spec.selector.?matchExpressions.orValue([]) == oldObject.spec.selector.?matchExpressions.orValue([])",
        ] {
            assert!(rule.contains(part), "{part} in {rule}");
        }
        assert!(rules[0]["expression"].as_str().unwrap().contains("subresource('ephemeralcontainers')"), "{spec}");
    }
}
