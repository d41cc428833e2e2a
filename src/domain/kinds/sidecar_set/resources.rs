//! `resourcesPolicy`: the resources of a sidecar computed from those of the Pod's containers.

use std::collections::BTreeSet;

use regex::RegexBuilder;
use serde_json::{Map, Value};

use super::{
    amount::Amount,
    expression::{Expression, ExpressionError, Variable},
};

/// The most bytes that a compiled pattern takes, and the most of its text.
const PATTERN_LIMIT: usize = 1 << 20;
/// The most bytes of `targetContainersNameRegex`.
pub const MOST_PATTERN: usize = 512;

/// Why the resources of a sidecar cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResourcesError {
    /// The pattern cannot be read.
    #[error("resourcesPolicy.targetContainersNameRegex: {0}")]
    Pattern(String),
    /// The mode is none.
    #[error("resourcesPolicy.targetContainersMode: {0:?} is not known; want sum or max")]
    Mode(String),
    /// The Pod has no such container.
    #[error("resourcesPolicy.targetContainersNameRegex: no container of the Pod has a name that fits {0:?}")]
    NoTarget(String),
    /// An amount of a container of the Pod cannot be read.
    #[error("resourcesPolicy: resources of container {container}: {shown:?} is no amount")]
    Amount {
        /// The container.
        container: String,
        /// The value.
        shown: String,
    },
    /// An expression cannot be read, or has no result.
    #[error("resourcesPolicy.resourcesExpr.{field}: {error}")]
    Expression {
        /// Its path.
        field: String,
        /// What is wrong.
        error: ExpressionError,
    },
}

/// A pattern for names, as `targetContainersNameRegex` has it: it fits a name if it fits a part of it.
///
/// # Errors
/// It cannot be read, or is too large.
pub fn pattern(text: &str) -> Result<regex::Regex, ResourcesError> {
    if text.len() > MOST_PATTERN {
        return Err(ResourcesError::Pattern(format!("it has {} bytes; want at most {MOST_PATTERN}", text.len())));
    }
    let compiled = RegexBuilder::new(text).size_limit(PATTERN_LIMIT).dfa_size_limit(PATTERN_LIMIT).build();
    compiled.map_err(|error| {
        let line = error.to_string().lines().last().unwrap_or_default().trim().to_owned();
        ResourcesError::Pattern(format!("{text:?} cannot be read: {line}"))
    })
}

/// The resources of a sidecar with this policy: `limits` and `requests`, as far as they are set. `excluded` are the names of
/// all sidecars. A limit that would be less than its request is that of the request.
///
/// # Errors
/// No container is meant, or an expression has no result.
pub fn computed(policy: &Value, pod: &Value, excluded: &BTreeSet<String>) -> Result<Value, ResourcesError> {
    let name_pattern = policy["targetContainersNameRegex"].as_str().filter(|text| !text.is_empty()).unwrap_or(".*");
    let is_meant = pattern(name_pattern)?;
    let name = |container: &Value| container["name"].as_str().unwrap_or_default().to_owned();
    let list = |field: &str| pod["spec"][field].as_array().into_iter().flatten();
    let native = list("initContainers").filter(|container| container["restartPolicy"] == "Always");
    let targets: Vec<&Value> = native
        .chain(list("containers"))
        .filter(|container| !excluded.contains(&name(container)) && is_meant.is_match(&name(container)))
        .collect();
    if targets.is_empty() {
        return Err(ResourcesError::NoTarget(name_pattern.to_owned()));
    }
    let sums = match policy["targetContainersMode"].as_str().unwrap_or_default() {
        "sum" => true,
        "max" => false,
        other => return Err(ResourcesError::Mode(other.to_owned())),
    };
    let of = |field: &str| -> Result<Map<String, Value>, ResourcesError> {
        let mut amounts = Map::new();
        for variable in Variable::ALL {
            if let Some(amount) = one(policy, &targets, sums, field, variable)? {
                amounts.insert(variable.name().into(), amount.to_string().into());
            }
        }
        Ok(amounts)
    };
    let (mut limits, requests) = (of("limits")?, of("requests")?);
    for (resource, request) in &requests {
        let amount = |value: &Value| value.as_str().and_then(Amount::parse).unwrap_or(Amount::ZERO);
        if limits.get(resource).is_some_and(|limit| amount(limit).milli() < amount(request).milli()) {
            limits.insert(resource.clone(), request.clone());
        }
    }
    let parts = [("limits", limits), ("requests", requests)].into_iter().filter(|(_, amounts)| !amounts.is_empty());
    Ok(Value::Object(parts.map(|(field, amounts)| (field.to_owned(), amounts.into())).collect()))
}

/// One limit or request. None: there is no expression for it, or one of the containers has no such limit.
fn one(
    policy: &Value,
    targets: &[&Value],
    sums: bool,
    field: &str,
    variable: Variable,
) -> Result<Option<Amount>, ResourcesError> {
    let resource = variable.name();
    let Some(text) = policy["resourcesExpr"][field][resource].as_str().filter(|text| !text.trim().is_empty()) else {
        return Ok(None);
    };
    let failed = |error| ResourcesError::Expression { field: format!("{field}.{resource}"), error };
    let expression = Expression::parse(text, variable).map_err(failed)?;
    let mut all = Amount::ZERO;
    for container in targets {
        let amount = match &container["resources"][field][resource] {
            Value::Null if field == "limits" => return Ok(None),
            Value::Null => continue,
            value => read(container, value)?,
        };
        all =
            if sums { all.plus(amount).ok_or_else(|| failed(ExpressionError::TooLarge))? } else { larger(all, amount) };
    }
    expression.evaluate(all).map(Some).map_err(failed)
}

/// The larger one; nothing gives way to whatever comes, so that its spelling is kept.
fn larger(a: Amount, b: Amount) -> Amount {
    if a == Amount::ZERO { b } else { a.max(b) }
}

fn read(container: &Value, value: &Value) -> Result<Amount, ResourcesError> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Amount::parse(&text).ok_or_else(|| ResourcesError::Amount {
        container: container["name"].as_str().unwrap_or_default().to_owned(),
        shown: text.chars().take(40).collect(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Value {
        json!({"spec": {
            "initContainers": [
                {"name": "setup", "resources": {"limits": {"cpu": "9"}}},
                {"name": "native", "restartPolicy": "Always", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}],
            "containers": [
                {"name": "main", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "500m"}}},
                {"name": "open", "resources": {"requests": {"cpu": "1", "memory": "100Mi"}}},
                {"name": "sidecar", "resources": {"limits": {"cpu": "8"}}}]}})
    }

    fn computed_for(policy: Value) -> Result<Value, ResourcesError> {
        computed(&policy, &pod(), &BTreeSet::from(["sidecar".to_owned()]))
    }

    #[test]
    fn a4_sums_and_maxima_of_the_meant_containers() {
        for (mode, pattern, expression, wanted) in [
            (
                "sum",
                "main|native",
                json!({"limits": {"cpu": "cpu*50%", "memory": "memory/4"}}),
                json!({"limits": {"cpu": "1500m", "memory": "512Mi"}}),
            ),
            ("max", "main|native", json!({"limits": {"cpu": "cpu"}}), json!({"limits": {"cpu": "2"}})),
            (
                "sum",
                ".*",
                json!({"limits": {"cpu": "1"}, "requests": {"cpu": "cpu", "memory": "memory"}}),
                json!({"requests": {"cpu": "1500m", "memory": "100Mi"}}),
            ),
            ("max", "", json!({"requests": {"cpu": "cpu"}}), json!({"requests": {"cpu": "1"}})),
            (
                "sum",
                "^ma",
                json!({"limits": {"cpu": ""}, "requests": {"memory": "64Mi"}}),
                json!({"requests": {"memory": "64Mi"}}),
            ),
        ] {
            let policy = json!({"targetContainersMode": mode, "targetContainersNameRegex": pattern,
                "resourcesExpr": expression});
            assert_eq!(computed_for(policy.clone()), Ok(wanted), "{policy}");
        }
    }

    #[test]
    fn e14_a_limit_is_never_below_its_request() {
        let policy = json!({"targetContainersMode": "sum", "targetContainersNameRegex": "main",
            "resourcesExpr": {"limits": {"cpu": "cpu*10%"}, "requests": {"cpu": "cpu"}}});
        assert_eq!(computed_for(policy), Ok(json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "500m"}})));
    }

    #[test]
    fn what_cannot_be_computed_is_named() {
        let of = |mode: &str, pattern: &str, cpu: &str| {
            let policy = json!({"targetContainersMode": mode, "targetContainersNameRegex": pattern,
                "resourcesExpr": {"requests": {"cpu": cpu}}});
            computed_for(policy).unwrap_err().to_string()
        };
        assert!(of("sum", "nobody", "1").contains("no container of the Pod has a name that fits \"nobody\""));
        assert!(of("sum", "sidecar", "1").contains("no container"), "sidecars are not meant");
        assert!(of("avg", ".*", "1").contains("\"avg\" is not known; want sum or max"));
        assert!(of("sum", "(", "1").starts_with("resourcesPolicy.targetContainersNameRegex: \"(\" cannot be read"));
        assert!(of("sum", &"a".repeat(600), "1").contains("want at most 512"));
        assert_eq!(of("sum", ".*", "cpu-9"), "resourcesPolicy.resourcesExpr.requests.cpu: the result is negative");
        assert!(pattern("(a{1000}){1000}").is_err(), "bounded");
    }
}
