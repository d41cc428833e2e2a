//! Templates as a typed client stores them: the revision of a template is a hash of its bytes, in which members that say
//! nothing count too.

use serde_json::{Map, Value, json};

use super::spec::ChildKind;
use crate::k8s::pod_template::write_as_typed;

/// `spec.template` with the members that OpenKruise's admission leaves in it. What is there stays as it is.
pub fn typed(template: &Value) -> Value {
    let mut template = template.clone();
    for kind in ChildKind::ALL {
        let Some(Value::Object(child)) = template.get_mut(kind.member()) else { continue };
        if let Value::Object(metadata) = member(child, "metadata") {
            metadata.entry("creationTimestamp").or_insert(Value::Null);
        }
        let Value::Object(spec) = member(child, "spec") else { continue };
        let empty: &[&str] = match kind {
            ChildKind::StatefulSet | ChildKind::AdvancedStatefulSet => &["updateStrategy"],
            ChildKind::CloneSet => &["scaleStrategy", "updateStrategy"],
            ChildKind::Deployment => &["strategy"],
        };
        for key in empty {
            member(spec, key);
        }
        if let Some(pods) = spec.get_mut("template") {
            write_as_typed(pods);
        }
    }
    template
}

/// A member; an empty object where it is missing or null.
fn member<'v>(parent: &'v mut Map<String, Value>, key: &str) -> &'v mut Value {
    let member = parent.entry(key).or_insert(Value::Null);
    if member.is_null() {
        *member = json!({});
    }
    member
}
