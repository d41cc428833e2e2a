//! In which order Pods are updated by the value of a label: the annotation `kruise.rs/update-order`.
//!
//! `role=leader` updates Pods whose label `role` is `leader` last; `role=observer,leader` updates all others first, then
//! observers, then leaders.

use crate::k8s::{
    invalid::Invalid,
    name::{is_label_value, is_qualified_name},
    pod::Labels,
};

/// A label, and the values whose Pods are updated last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateOrder {
    key: String,
    values: Vec<String>,
}

impl UpdateOrder {
    /// Reads the value of the annotation. None: it is empty, and says nothing.
    ///
    /// # Errors
    /// In words that name what is wrong and what is allowed.
    pub fn parse(annotation: &str) -> Result<Option<Self>, Invalid> {
        if annotation.trim().is_empty() {
            return Ok(None);
        }
        let wrong = |why: &str| {
            Invalid(format!(
                "{annotation:?} is not allowed, {why}; want LABEL=VALUE,VALUE such as role=observer,leader"
            ))
        };
        let (key, values) = annotation.split_once('=').ok_or_else(|| wrong("it has no '='"))?;
        let (key, values): (&str, Vec<&str>) = (key.trim(), values.split(',').map(str::trim).collect());
        if !is_qualified_name(key) {
            return Err(wrong("the key is no key of a label"));
        }
        for (i, value) in values.iter().enumerate() {
            if value.is_empty() || !is_label_value(value) {
                return Err(wrong(&format!("{value:?} is no value of a label")));
            }
            if values[..i].contains(value) {
                return Err(wrong(&format!("{value:?} is there twice")));
            }
        }
        Ok(Some(Self { key: key.to_owned(), values: values.into_iter().map(str::to_owned).collect() }))
    }

    /// The place of a Pod with these labels: those with a smaller one are updated first.
    pub fn place(&self, labels: &Labels) -> usize {
        let value = labels.get(&self.key);
        value.and_then(|value| self.values.iter().position(|known| known == value)).map_or(0, |i| i + 1)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels(role: Option<&str>) -> Labels {
        serde_json::from_value(role.map_or_else(|| json!({}), |role| json!({ "role": role }))).unwrap()
    }

    #[test]
    fn followers_first_and_the_leader_last() {
        let order = UpdateOrder::parse("role=leader").unwrap().unwrap();
        assert!(order.place(&labels(Some("follower"))) < order.place(&labels(Some("leader"))));
        assert!(order.place(&labels(None)) < order.place(&labels(Some("leader"))), "without a role it does not lead");
        let order = UpdateOrder::parse(" role = observer , leader ").unwrap().unwrap();
        let places = ["follower", "observer", "leader"].map(|role| order.place(&labels(Some(role))));
        assert_eq!(places, [0, 1, 2]);
    }

    #[test]
    fn what_is_no_order_is_refused_by_name() {
        assert_eq!(UpdateOrder::parse(""), Ok(None));
        for (odd, why) in [
            ("role", "no '='"),
            ("=leader", "no key"),
            ("a b=leader", "no key"),
            ("role=", "no value"),
            ("role=a,,b", "no value"),
            ("role=a b", "no value"),
            ("role=a,a", "twice"),
        ] {
            let Invalid(error) = UpdateOrder::parse(odd).unwrap_err();
            assert!(error.contains(&format!("{odd:?}")) && error.contains(why), "{error}");
        }
    }
}
