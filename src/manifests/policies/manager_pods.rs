//! Pods against the manager. Method PodSpec needs a right that is wider than what it does: the manager may spell an image
//! differently, and write annotations of its own.

use serde_json::{Value, json};

use super::{others_annotations, same, user};
use crate::api::{apps, labels};

pub(super) fn spec() -> Value {
    let by_manager = ": the manager does not change those of Pods";
    let related = labels::RELATED_PUB;
    let is_managers = format!("(k.startsWith('kruise.rs/') || k == '{related}')");
    let only_managers = format!(
        "metadata.annotations: the manager changes only {related} and those of Pods that begin with kruise.rs/"
    );
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [
            { "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods", "pods/resize"] }] },
        "matchConditions": [
            { "name": "by-the-manager", "expression": format!("request.userInfo.username == '{}'", user("kruise-manager")) },
            // Those of our own workloads it makes, updates in place and lets go of.
            { "name": "not-of-a-kruise-workload", "expression": format!(
                "!oldObject.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false) && o.apiVersion.startsWith('{}/'))",
                apps::GROUP
            ) },
        ],
        "validations": [
            {
                "expression": "request.?subResource.orValue('') != 'resize'",
                "message": "the manager resizes only Pods of Kruise workloads",
                "reason": "Forbidden",
            },
            images_of("containers"),
            images_of("initContainers"),
            same("labels", "{}", by_manager),
            same("finalizers", "[]", by_manager),
            same("ownerReferences", "[]", by_manager),
            others_annotations(&is_managers, &only_managers),
        ],
    })
}

fn images_of(list: &str) -> Value {
    let name = |image: &str| format!("{image}.split('@')[0].find('^(.*/)?[^:]*')");
    let same_image = format!(
        "c.image.matches('@sha256:[0-9a-f]{{64}}$') && {} == {} && (!o.image.contains('@') || o.image.split('@')[1] == c.image.split('@')[1])",
        name("c.image"),
        name("o.image")
    );
    let old = format!("oldObject.spec.?{list}.orValue([])");
    json!({
        "expression": format!(
            "object.spec.?{list}.orValue([]).all(c, {old}.exists(o, o.name == c.name && (o.image == c.image || ({same_image}))))"
        ),
        "message": format!("spec.{list}: the manager may change nothing but how an image is spelled: the name stays, a digest comes or stays"),
        "reason": "Forbidden",
    })
}
