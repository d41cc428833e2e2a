//! WorkloadSpreads: their authors get no further than their own rights. A patch can change almost any field of a new Pod, for
//! example its ServiceAccount, and the manager writes its labels and annotations on Pods that are there.

use serde_json::{Value, json};

use super::cel;
use crate::api::apps;

const RESOURCE: &str = "workloadspreads";

pub(super) fn spec() -> Value {
    let may = |verb: &str| {
        format!("authorizer.group('').resource('pods').namespace(request.namespace).check('{verb}').allowed()")
    };
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [{ "apiGroups": [apps::GROUP], "apiVersions": ["v1alpha1", "v1beta1"],
            "operations": ["CREATE", "UPDATE"], "resources": [RESOURCE] }] },
        "matchConditions": [
            cel::new_spec(),
            // Clients in Go write `patch: null` for subsets without.
            { "name": "patches", "expression":
                "object.spec.?subsets.orValue([]).exists(s, has(s.patch) && dyn(s.patch) != dyn(null))" },
        ],
        "validations": [{
            "expression": format!("{} && {}", may("create"), may("patch")),
            "message": "spec.subsets: patch requires permission to create and patch pods in this namespace",
            "reason": "Forbidden",
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::CRDS;

    #[test]
    fn an_author_of_patches_needs_both_rights_on_pods_in_the_namespace() {
        let spec = spec();
        let rule = spec["validations"][0]["expression"].as_str().unwrap();
        let right = |verb: &str| {
            format!("authorizer.group('').resource('pods').namespace(request.namespace).check('{verb}').allowed()")
        };
        assert_eq!(rule, format!("{} && {}", right("create"), right("patch")));
        let conditions = spec["matchConditions"].as_array().unwrap();
        let changed = conditions[0]["expression"].as_str().unwrap();
        // Another target or another limit is another use of a patch that somebody else has written.
        assert!(changed.contains("object.spec != oldObject.spec && !has(oldObject.metadata.deletionTimestamp)"));
        assert!(conditions[1]["expression"].as_str().unwrap().contains("has(s.patch)"), "{spec}");
    }

    #[test]
    fn every_version_that_is_served_is_judged() {
        let spec = spec();
        let rule = &spec["matchConstraints"]["resourceRules"][0];
        let crd = CRDS.iter().find(|crd| crd.name.starts_with(RESOURCE)).unwrap();
        for version in crd.render().spec.versions {
            assert!(
                rule["apiVersions"].as_array().unwrap().contains(&version.name.as_str().into()),
                "{}",
                version.name
            );
        }
    }
}
