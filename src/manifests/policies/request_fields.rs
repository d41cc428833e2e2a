//! Labels and annotations of ContainerRecreateRequests that we rely on: nobody but the manager changes them, while the
//! request is being deleted either: the manager finds by them the Pod that it has to make Ready again. Whoever takes a
//! finalizer away and leaves them gets through.

use serde_json::{Value, json};

use super::{cel, updates_of};
use crate::api::labels;

pub(super) fn spec() -> Value {
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": updates_of("containerrecreaterequests"),
        "matchConditions": [
            { "name": "by-others", "expression": format!("!({})", cel::is_the_manager()) },
        ],
        "validations": [
            unchanged("labels", labels::CRR_POD_UID),
            unchanged("labels", labels::CRR_NODE_NAME),
            unchanged("labels", labels::CRR_ACTIVE),
            unchanged("labels", labels::CRR_METHOD),
            unchanged("annotations", labels::CRR_UNREADY_ACQUIRED),
            virtual_as_before(),
        ],
    })
}

fn unchanged(member: &str, key: &str) -> Value {
    let value = |object: &str| format!("{object}.metadata.?{member}[?'{key}'].orValue('')");
    json!({
        "expression": format!("{} == {}", value("object"), value("oldObject")),
        "message": format!("metadata.{member}: {key} is written by Kruise and cannot be changed"),
        "messageExpression": format!(
            "'metadata.{member}: {key} is written by Kruise and cannot be changed; it is \"' + {} + '\", not \"' + {} + '\"'",
            value("oldObject"), value("object")),
        "reason": "Forbidden",
    })
}

/// The key is a common one, so only the value that says that no daemon is to be expected is guarded.
fn virtual_as_before() -> Value {
    let (key, value) = (labels::NODE_TYPE, labels::NODE_TYPE_VIRTUAL_KUBELET);
    let is_virtual = |object: &str| format!("({object}.metadata.?labels[?'{key}'].orValue('') == '{value}')");
    json!({
        "expression": format!("{} == {}", is_virtual("object"), is_virtual("oldObject")),
        "message": format!("metadata.labels: {key}={value} is written by Kruise and can be neither set nor removed"),
        "reason": "Forbidden",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_of_a_virtual_node_is_neither_set_nor_removed() {
        let spec = spec();
        let rules = spec["validations"].as_array().unwrap();
        let found = rules.iter().any(|rule| {
            rule["expression"]
                == "(object.metadata.?labels[?'type'].orValue('') == 'virtual-kubelet') == (oldObject.metadata.?labels[?'type'].orValue('') == 'virtual-kubelet')"
        });
        assert!(found, "{spec}");
    }
}
