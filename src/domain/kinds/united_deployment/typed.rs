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

/// Members whose own members are named by users: there, a value that is empty says something.
const MAPS: [&str; 4] = ["annotations", "labels", "matchLabels", "nodeSelector"];

/// Whether two templates say the same. Clients in Go write some members whether or not they are set: `selector: null`,
/// `serviceName: ""`, `divisor: "0"`. Others leave them out.
pub fn says_the_same(a: &Value, b: &Value) -> bool {
    bare(a) == bare(b)
}

/// A value without the members that say nothing.
fn bare(value: &Value) -> Value {
    let says_nothing = |key: &str, value: &Value| match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::String(text) => matches!((key, text.as_str()), ("serviceName", "") | ("divisor", "0")),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => false,
    };
    match value {
        Value::Object(members) => {
            let said = members.iter().filter(|(key, value)| !says_nothing(key, value));
            let said = said.map(|(key, value)| {
                let value = if MAPS.contains(&key.as_str()) { value.clone() } else { bare(value) };
                (key.clone(), value)
            });
            Value::Object(said.collect())
        }
        Value::Array(items) => items.iter().map(bare).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
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
