//! Whether two selectors may select the same Pods; admission compares budgets with each other.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::k8s::selector::Selector;

/// Whether two selectors use the same keys, and no key has disjoint values. Selectors with different keys may overlap too,
/// and are not reported; a Pod under two budgets needs the consent of both. Nor are those that cannot be read.
pub fn overlap(a: &LabelSelector, b: &LabelSelector) -> bool {
    let (Ok(a), Ok(b)) = (Selector::of(a), Selector::of(b)) else { return false };
    !a.is_empty() && a.keys() == b.keys() && !a.is_disjoint(&b)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn selectors_overlap_when_their_keys_are_the_same_and_nothing_keeps_them_apart() {
        let web = json!({"matchLabels": {"app": "web"}});
        let with = |operator: &str, values: Value| json!({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]});
        for (other, want) in [
            (web.clone(), true),
            (json!({"matchLabels": {"app": "db"}}), false),
            (json!({"matchLabels": {"app": "web", "tier": "x"}}), false),
            (json!({"matchLabels": {"tier": "x"}}), false),
            (json!({}), false),
            (with("In", json!(["db", "web"])), true),
            (with("NotIn", json!(["web"])), false),
            (with("NotIn", json!(["db"])), true),
            (with("Exists", Value::Null), true),
            (with("DoesNotExist", Value::Null), false),
            (with("Near", Value::Null), false),
        ] {
            let selector = |value: &Value| serde_json::from_value::<LabelSelector>(value.clone()).unwrap();
            assert_eq!(overlap(&selector(&web), &selector(&other)), want, "{other}");
            assert_eq!(overlap(&selector(&other), &selector(&web)), want, "{other}");
        }
    }
}
