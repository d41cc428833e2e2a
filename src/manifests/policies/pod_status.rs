//! The status of Pods against our accounts: one policy for all of them. For each policy that selects a write the API server
//! converts the Pod and the one before, whoever it is by, and kubelets write this all the time.

use serde_json::{Value, json};

use super::{
    cel::{by, resource_rule},
    daemon_pod_status, manager_pod_status,
};
use crate::k8s::account::{self, DAEMON, MANAGER};

pub(super) fn spec() -> Value {
    let (mut variables, mut validations) = (Vec::new(), Vec::new());
    for (caller, name, rules) in
        [("byManager", MANAGER, manager_pod_status::rules()), ("byDaemon", DAEMON, daemon_pod_status::rules())]
    {
        variables.push(json!({ "name": caller, "expression": account::is_one_of(&[name]) }));
        variables.extend(list(&rules, "variables"));
        validations.extend(list(&rules, "validations").map(|rule| only(caller, rule)));
    }
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [resource_rule("", &["v1"], &["UPDATE"], &["pods/status"])] },
        "matchConditions": [by(&[MANAGER, DAEMON])],
        "variables": variables,
        "validations": validations,
    })
}

fn list(rules: &Value, field: &str) -> impl Iterator<Item = Value> {
    rules[field].as_array().cloned().into_iter().flatten()
}

/// A rule for the writes of one account: that of others is true at once.
fn only(caller: &str, mut rule: Value) -> Value {
    let expression = format!("!variables.{caller} || ({})", rule["expression"].as_str().unwrap_or_default());
    rule["expression"] = json!(expression);
    rule
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_rule_is_for_the_writes_of_its_account() {
        let spec = spec();
        let texts = |field: &str, of: &str| -> Vec<String> {
            list(&spec, field).map(|item| item[of].as_str().unwrap().to_owned()).collect()
        };
        let expressions = texts("validations", "expression");
        let mut wanted = Vec::new();
        for (caller, rules) in [("byManager", manager_pod_status::rules()), ("byDaemon", daemon_pod_status::rules())] {
            let rules = list(&rules, "validations").map(|rule| rule["expression"].as_str().unwrap().to_owned());
            wanted.extend(rules.map(|rule| format!("!variables.{caller} || ({rule})")));
        }
        assert_eq!(expressions, wanted);
        for words in ["!variables.byManager || (request.namespace != ", "!variables.byDaemon || (variables.tokenNode"] {
            assert!(expressions.iter().any(|rule| rule.starts_with(words)), "{words}: {expressions:?}");
        }
        // The API server refuses two variables of one name.
        let names = texts("variables", "name");
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        let callers = list(&spec, "variables").filter(|variable| variable["name"].as_str().unwrap().starts_with("by"));
        let callers: Vec<String> =
            callers.map(|variable| variable["expression"].as_str().unwrap().to_owned()).collect();
        assert_eq!(callers, [account::is_one_of(&[MANAGER]), account::is_one_of(&[DAEMON])]);
        assert_eq!(texts("matchConditions", "expression"), [account::is_one_of(&[MANAGER, DAEMON])]);
    }
}
