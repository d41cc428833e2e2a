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

/// Members of a workload's spec that clients in Go write whether or not they are set. Others leave them out.
const UNSET: [&str; 2] = ["selector", "serviceName"];

/// Keeps what says nothing in the form in which it is stored. In another form the template would be another revision, and
/// every Pod would be updated because a client in Go has written what another one had made, or the other way round.
pub fn keep_form(template: &mut Value, stored: &Value) {
    let says_nothing = |value: Option<&Value>| value.is_none_or(|value| value.is_null() || value == "");
    for kind in ChildKind::ALL {
        let before = stored.get(kind.member()).and_then(|child| child.get("spec"));
        let now = template.get_mut(kind.member()).and_then(|child| child.get_mut("spec"));
        let (Some(Value::Object(before)), Some(Value::Object(now))) = (before, now) else { continue };
        for key in UNSET {
            if !says_nothing(before.get(key)) || !says_nothing(now.get(key)) {
                continue;
            }
            match before.get(key) {
                Some(value) => drop(now.insert(key.to_owned(), value.clone())),
                None => drop(now.remove(key)),
            }
        }
    }
}

/// A member; an empty object where it is missing or null.
fn member<'v>(parent: &'v mut Map<String, Value>, key: &str) -> &'v mut Value {
    let member = parent.entry(key).or_insert(Value::Null);
    if member.is_null() {
        *member = json!({});
    }
    member
}
