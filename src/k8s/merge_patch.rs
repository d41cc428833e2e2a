//! JSON merge patches (RFC 7386) between two versions of a value.

use serde_json::{Map, Value};

/// The merge patch that turns `old` into `new`: only what differs, null for what went away, arrays whole.
/// None if nothing differs.
pub fn diff(old: &Value, new: &Value) -> Option<Value> {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let mut patch = Map::new();
            for (key, value) in new {
                match old.get(key) {
                    Some(before) => patch.extend(diff(before, value).map(|p| (key.clone(), p))),
                    None => patch.extend([(key.clone(), value.clone())]),
                }
            }
            patch.extend(old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null)));
            (!patch.is_empty()).then_some(Value::Object(patch))
        }
        _ => (old != new).then(|| new.clone()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn only_differences_and_null_for_what_went_away() {
        let old = json!({"phase": "Pending", "message": "waiting", "keep": {"a": 1}, "list": [1]});
        let new = json!({"phase": "Recreating", "keep": {"a": 1}, "list": [1, 2]});
        assert_eq!(diff(&old, &new), Some(json!({"phase": "Recreating", "message": null, "list": [1, 2]})));
        assert_eq!(diff(&new, &new), None);
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::btree_map("[a-d]", inner, 0..4)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn applying_the_patch_gives_the_new_value(old in value(), new in value()) {
            let mut patched = old.clone();
            if let Some(patch) = diff(&old, &new) {
                json_patch::merge(&mut patched, &patch);
            }
            prop_assert_eq!(patched, new);
        }
    }
}
