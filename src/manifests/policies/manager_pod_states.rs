//! PersistentPodStates against the manager: it makes, changes and deletes those that annotations of StatefulSets ask for. Of
//! others it writes the status alone.

use serde_json::{Value, json};

use super::cel::{by, equal, implies, must, resource_rule, same_but};
use crate::{api::apps, k8s::account::MANAGER};

pub(super) fn spec() -> Value {
    let group = apps::GROUP;
    let generated = |object: &str| {
        format!(
            "{object}.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false) && o.kind == 'StatefulSet' && o.name == {object}.metadata.name && (o.apiVersion.startsWith('apps/') || o.apiVersion.startsWith('{group}/')))"
        )
    };
    let of_owner = "object.spec.targetRef.kind == 'StatefulSet' && object.spec.targetRef.name == object.metadata.name && object.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false) && o.apiVersion.split('/')[0] == object.spec.targetRef.apiVersion.split('/')[0])";
    let same = [
        equal("metadata.ownerReferences", "[]"),
        equal("metadata.finalizers", "[]"),
        same_but("labels", "false"),
        same_but("annotations", "false"),
        "object.spec.targetRef == oldObject.spec.targetRef".to_owned(),
    ];
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [
            resource_rule(group, &["v1alpha1"], &["CREATE", "UPDATE", "DELETE"], &["persistentpodstates"])] },
        "matchConditions": [by(&[MANAGER])],
        "validations": [
            must(
                &format!(
                    "(request.operation == 'CREATE' || ({})) && (request.operation == 'DELETE' || ({}))",
                    generated("oldObject"),
                    generated("object")
                ),
                "the manager creates, changes and deletes only PersistentPodStates that a StatefulSet of the same name controls",
            ),
            implies("request.operation == 'CREATE'", of_owner,
                "spec.targetRef: the manager makes a PersistentPodState only for the StatefulSet that controls it"),
            implies("request.operation == 'UPDATE'", &same.join(" && "),
                "the manager changes nothing of a PersistentPodState but its spec, and there not its target"),
        ],
    })
}
