//! Whether two selectors may select the same Pods; admission compares budgets with each other.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

enum Wants<'a> {
    In(Vec<&'a str>),
    NotIn(Vec<&'a str>),
    Exists,
    DoesNotExist,
}

fn requirements(selector: &LabelSelector) -> Option<Vec<(&str, Wants<'_>)>> {
    let labels = selector.match_labels.iter().flatten();
    let mut all: Vec<(&str, Wants<'_>)> =
        labels.map(|(key, value)| (key.as_str(), Wants::In(vec![value.as_str()]))).collect();
    for expression in selector.match_expressions.iter().flatten() {
        let values = || expression.values.iter().flatten().map(String::as_str).collect();
        all.push((
            &expression.key,
            match expression.operator.as_str() {
                "In" => Wants::In(values()),
                "NotIn" => Wants::NotIn(values()),
                "Exists" => Wants::Exists,
                "DoesNotExist" => Wants::DoesNotExist,
                _ => return None,
            },
        ));
    }
    Some(all)
}

impl Wants<'_> {
    fn fits(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::In(a), Self::In(b)) => a.iter().any(|value| b.contains(value)),
            (Self::In(a), Self::NotIn(b)) | (Self::NotIn(b), Self::In(a)) => a.iter().any(|value| !b.contains(value)),
            (Self::DoesNotExist, Self::In(_) | Self::Exists) | (Self::In(_) | Self::Exists, Self::DoesNotExist) => {
                false
            }
            (
                Self::In(_) | Self::NotIn(_) | Self::Exists | Self::DoesNotExist,
                Self::In(_) | Self::NotIn(_) | Self::Exists | Self::DoesNotExist,
            ) => true,
        }
    }
}

/// Whether no labels fit both selectors: a key that both name has values for one of them only. Selectors that cannot be read
/// are not.
pub fn are_disjoint(a: &LabelSelector, b: &LabelSelector) -> bool {
    let (Some(a), Some(b)) = (requirements(a), requirements(b)) else { return false };
    a.iter().any(|(key, wants)| b.iter().any(|(other, others)| key == other && !wants.fits(others)))
}

/// Whether two selectors use the same keys, and no key has disjoint values. Selectors with different keys may overlap too,
/// and are not reported; a Pod under two budgets needs the consent of both.
pub fn overlap(a: &LabelSelector, b: &LabelSelector) -> bool {
    let (Some(a), Some(b)) = (requirements(a), requirements(b)) else { return false };
    let keys = |all: &[(&str, Wants<'_>)]| -> BTreeMap<String, ()> {
        all.iter().map(|(key, _)| ((*key).to_owned(), ())).collect()
    };
    let fits =
        |(key, wants): &(&str, Wants<'_>)| b.iter().filter(|(k, _)| k == key).all(|(_, other)| wants.fits(other));
    !a.is_empty() && keys(&a) == keys(&b) && a.iter().all(fits)
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
