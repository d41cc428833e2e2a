//! Members of JSON objects that may be missing, or be of another type than they are to have.

use serde_json::{Map, Value, json};

/// A member that is an object; made where it is missing.
pub fn object_in<'v>(parent: &'v mut Map<String, Value>, key: &str) -> &'v mut Map<String, Value> {
    let member = parent.entry(key).or_insert_with(|| json!({}));
    if !member.is_object() {
        *member = json!({});
    }
    match member {
        Value::Object(object) => object,
        _ => unreachable!("it has just been made an object"),
    }
}

/// Adds to a member that is a list; made where it is missing and something is to be added.
pub fn append(parent: &mut Map<String, Value>, key: &str, more: &[Value]) {
    if more.is_empty() {
        return;
    }
    match parent.entry(key).or_insert_with(|| json!([])) {
        Value::Array(list) => list.extend(more.iter().cloned()),
        other => *other = more.to_vec().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_of_another_type_is_replaced_and_one_of_the_right_type_is_kept() {
        for (before, object, list) in [
            (json!({}), json!({"k": {"a": 1}}), json!({"k": [1]})),
            (json!({"k": null}), json!({"k": {"a": 1}}), json!({"k": [1]})),
            (json!({"k": {"b": 2}}), json!({"k": {"a": 1, "b": 2}}), json!({"k": [1]})),
            (json!({"k": [0]}), json!({"k": {"a": 1}}), json!({"k": [0, 1]})),
        ] {
            let mut made = before.as_object().cloned().unwrap();
            object_in(&mut made, "k").insert("a".into(), json!(1));
            assert_eq!(Value::from(made), object, "{before}");
            let mut made = before.as_object().cloned().unwrap();
            append(&mut made, "k", &[json!(1)]);
            assert_eq!(Value::from(made), list, "{before}");
        }
        let mut empty = Map::new();
        append(&mut empty, "k", &[]);
        assert!(empty.is_empty());
    }
}
