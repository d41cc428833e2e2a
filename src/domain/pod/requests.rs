//! What Pods of a template request of a node: the scheduler's sum over containers.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::k8s::{quantity, shared::Text};

/// Amounts by resource, in billionths.
type Amounts = BTreeMap<String, i128>;

/// What a Pod requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requests(Amounts);

impl Requests {
    /// Of a template, as it is stored. An amount that cannot be read counts as none: admission refuses it.
    pub fn of(template: &Value) -> Self {
        let Some(spec) = template.get("spec") else { return Self::default() };
        let list = |key: &str| spec.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let mut all = Amounts::new();
        for container in list("containers") {
            add(&mut all, &of_container(container));
        }
        // Native sidecars run beside everything that starts after them; other init containers run one after the other.
        let (mut sidecars, mut most) = (Amounts::new(), Amounts::new());
        for container in list("initContainers") {
            let own = of_container(container);
            if container.get("restartPolicy").and_then(Value::as_str) == Some("Always") {
                add(&mut sidecars, &own);
                raise(&mut most, &sidecars);
            } else {
                let mut beside = sidecars.clone();
                add(&mut beside, &own);
                raise(&mut most, &beside);
            }
        }
        add(&mut all, &sidecars);
        raise(&mut all, &most);
        // Requests of the Pod as a whole stand in the place of those of its containers.
        all.extend(of_container(spec));
        if let Some(overhead) = spec.get("overhead") {
            add(&mut all, &amounts(overhead));
        }
        all.retain(|_, amount| *amount > 0);
        Self(all)
    }

    /// The first resource of which a node without other Pods has less; None: they fit. `allocatable` is that of the node.
    pub fn lacking(&self, allocatable: &BTreeMap<Text, Text>) -> Option<&str> {
        let has = |resource: &str| allocatable.get(resource).and_then(|text| quantity::parse(text)).unwrap_or(0);
        self.0.iter().find(|(resource, amount)| has(resource) < **amount).map(|(resource, _)| resource.as_str())
    }
}

/// Requests of a container; a limit without a request is one.
fn of_container(container: &Value) -> Amounts {
    let part = |key: &str| container.pointer(&format!("/resources/{key}")).map(amounts).unwrap_or_default();
    let mut all = part("limits");
    all.extend(part("requests"));
    all
}

fn amounts(value: &Value) -> Amounts {
    let entries = value.as_object().into_iter().flatten();
    let parsed = entries.filter_map(|(resource, amount)| {
        let amount = match amount {
            Value::String(text) => quantity::parse(text),
            Value::Number(number) => quantity::parse(&number.to_string()),
            _ => None,
        };
        Some((resource.clone(), amount?))
    });
    parsed.collect()
}

fn add(all: &mut Amounts, more: &Amounts) {
    for (resource, amount) in more {
        let sum = all.entry(resource.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

fn raise(all: &mut Amounts, least: &Amounts) {
    for (resource, amount) in least {
        let sum = all.entry(resource.clone()).or_default();
        *sum = (*sum).max(*amount);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lacking(spec: Value, allocatable: &[(&str, &str)]) -> Option<String> {
        let allocatable = allocatable.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        Requests::of(&json!({ "spec": spec })).lacking(&allocatable).map(str::to_owned)
    }
    fn container(requests: Value) -> Value {
        json!({"name": "c", "resources": {"requests": requests}})
    }

    #[test]
    fn requests_are_held_against_an_otherwise_empty_node() {
        let node = [("cpu", "2"), ("memory", "1Gi"), ("pods", "110")];
        let sidecar =
            |cpu: &str| json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": cpu}}});
        for (spec, want) in [
            (json!({}), None),
            (json!({"containers": [{"name": "c"}]}), None),
            (json!({"containers": [container(json!({"cpu": "2"}))]}), None),
            (json!({"containers": [container(json!({"cpu": "2001m"}))]}), Some("cpu")),
            (json!({"containers": [container(json!({"cpu": 1})), container(json!({"cpu": 1.5}))]}), Some("cpu")),
            (json!({"containers": [{"name": "c", "resources": {"limits": {"memory": "2Gi"}}}]}), Some("memory")),
            (
                json!({"containers": [{"name": "c", "resources": {"limits": {"memory": "2Gi"}, "requests": {"memory": "1Mi"}}}]}),
                None,
            ),
            (json!({"containers": [container(json!({"example.com/gpu": "1"}))]}), Some("example.com/gpu")),
            (json!({"containers": [container(json!({"example.com/gpu": "0"}))]}), None),
            // An init container runs alone, a native sidecar beside the others.
            (
                json!({"containers": [container(json!({"cpu": "2"}))], "initContainers": [container(json!({"cpu": "2"}))]}),
                None,
            ),
            (
                json!({"containers": [container(json!({"cpu": "1"}))], "initContainers": [container(json!({"cpu": "3"}))]}),
                Some("cpu"),
            ),
            (
                json!({"containers": [container(json!({"cpu": "1500m"}))], "initContainers": [sidecar("1")]}),
                Some("cpu"),
            ),
            (
                json!({"containers": [container(json!({"cpu": "1"}))], "initContainers": [sidecar("1"), container(json!({"cpu": "1"}))]}),
                None,
            ),
            (json!({"containers": [container(json!({"cpu": "2"}))], "overhead": {"cpu": "1m"}}), Some("cpu")),
            (json!({"containers": [container(json!({"cpu": "5"}))], "resources": {"requests": {"cpu": "2"}}}), None),
            (json!({"containers": [container(json!({"cpu": "many"}))], "initContainers": "x", "overhead": 3}), None),
        ] {
            assert_eq!(lacking(spec.clone(), &node).as_deref(), want, "{spec}");
        }
    }

    #[test]
    fn a_node_that_reports_nothing_yet_fits_pods_that_request_nothing() {
        assert_eq!(lacking(json!({"containers": [{"name": "c"}]}), &[]), None);
        assert_eq!(lacking(json!({"containers": [container(json!({"cpu": "1m"}))]}), &[]).as_deref(), Some("cpu"));
    }
}
