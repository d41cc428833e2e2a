//! Nulls, which Go writes for what is empty: an empty list, a map or a time. They mean the same as nothing.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// Reads null as the default.
///
/// # Errors
/// It is neither null nor what it should be.
pub fn as_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A value without members that are null, at every level. Items of lists stay.
pub fn pruned(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let members = object.iter().filter(|(_, member)| !member.is_null());
            Value::Object(members.map(|(name, member)| (name.clone(), pruned(member))).collect())
        }
        Value::Array(list) => list.iter().map(pruned).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// Writes a default where a member is missing or null.
pub fn set_default(object: &mut Map<String, Value>, key: &str, default: Value) {
    let value = object.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = default;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nulls_mean_nothing() {
        for (value, wanted) in [
            (json!(null), json!(null)),
            (json!({"a": null, "b": {"c": null, "d": 1}}), json!({"b": {"d": 1}})),
            (json!([null, {"a": null}, "x"]), json!([null, {}, "x"])),
        ] {
            assert_eq!(pruned(&value), wanted);
        }
        let list = |text: &str| as_default::<_, Vec<i32>>(&mut serde_json::Deserializer::from_str(text));
        assert_eq!((list("null").unwrap(), list("[1]").unwrap()), (vec![], vec![1]));
        assert!(list("{}").is_err());
    }
}
