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
