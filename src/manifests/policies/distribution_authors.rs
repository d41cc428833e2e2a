//! ResourceDistributions: whoever has an object distributed may read it themselves. Otherwise they could have a Secret of others
//! copied into a namespace of theirs.

use serde_json::{Value, json};

use super::cel;
use crate::api::apps;

const RESOURCE: &str = "resourcedistributions";

pub(super) fn spec() -> Value {
    let resource = "object.spec.resourceRef.kind == 'Secret' ? 'secrets' : 'configmaps'";
    let may_get = format!(
        "authorizer.group('').resource({resource}).namespace(object.spec.resourceRef.namespace).name(object.spec.resourceRef.name).check('get').allowed()"
    );
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [{ "apiGroups": [apps::GROUP], "apiVersions": ["v1alpha1"],
            "operations": ["CREATE", "UPDATE"], "resources": [RESOURCE] }] },
        "matchConditions": [
            cel::new_spec(),
            { "name": "refers", "expression": "has(object.spec.resourceRef)" },
        ],
        "validations": [{
            "expression": may_get,
            "message": "spec.resourceRef: a copy in other namespaces requires permission to get the object",
            "reason": "Forbidden",
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_of_the_spec_asks_for_the_right_to_get_the_object_by_its_name() {
        let spec = spec();
        let expression = spec["validations"][0]["expression"].as_str().unwrap();
        for part in [
            "namespace(object.spec.resourceRef.namespace)",
            "name(object.spec.resourceRef.name)",
            "check('get')",
            "'secrets' : 'configmaps'",
        ] {
            assert!(expression.contains(part), "{part}: {expression}");
        }
        // A target that is added is a way to read it, too.
        let changed = spec["matchConditions"][0]["expression"].as_str().unwrap();
        assert!(changed.contains("object.spec != oldObject.spec"), "{changed}");
    }
}
