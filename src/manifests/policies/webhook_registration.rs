//! The webhook configurations against the webhook: it registers what [`HANDLERS`] says, and nothing else.
//!
//! CA, selectors, match conditions and time-outs are free. Entries that are there may stay or go as they are. An entry that
//! has to fail closed in all namespaces stays, for everything that it is made for.

use serde_json::{Value, json};

use super::cel::{self, by, equal, must, resource_rule, same_but};
use crate::{
    api::labels,
    k8s::account::{self, WEBHOOK},
    webhook::{
        self, HANDLERS,
        server::{
            configuration,
            failure_policies::FailurePolicies,
            handler::{Handler, Namespaces, Phase},
        },
    },
};

fn key(handler: &Handler) -> String {
    let resource = match handler.phase {
        Phase::Mutating => "mutatingwebhookconfigurations",
        Phase::Validating => "validatingwebhookconfigurations",
    };
    format!("{resource}/{}", handler.name)
}

/// A map of CEL: something of each handler, by configuration and name.
fn table(value: impl Fn(&Handler) -> String) -> String {
    let lines: Vec<String> = HANDLERS.iter().map(|handler| format!("'{}': {}", key(handler), value(handler))).collect();
    format!("{{{}}}", lines.join(", "))
}

/// The one rule of an entry: groups, versions, operations, resources and scope, each a list.
fn rule(handler: &Handler) -> String {
    let rules = configuration::rules(handler);
    let list = |field: &str| {
        let items = rules[0][field].as_array().into_iter().flatten().filter_map(Value::as_str);
        cel::list(&items.collect::<Vec<_>>())
    };
    let scope = cel::list(&[rules[0]["scope"].as_str().unwrap_or_default()]);
    let lists = RULE.map(list).join(", ");
    format!("[{lists}, {scope}]")
}

/// The lists of a rule.
const RULE: [&str; 4] = ["apiGroups", "apiVersions", "operations", "resources"];

/// Whether the rule `r` of the entry `e` is that of the table.
fn is_rule() -> String {
    let wanted = |i: usize| format!("variables.rules[variables.prefix + e.name][{i}]");
    let lists = RULE.iter().enumerate().map(|(i, field)| format!("r.{field} == {}", wanted(i)));
    let scope = format!("r.?scope.orValue('*') == {}[0]", wanted(RULE.len()));
    lists.chain([scope]).collect::<Vec<_>>().join(" && ")
}

/// Fixed entries that are for every namespace. Others may fail, or not be asked.
fn always_asked() -> String {
    let keys =
        HANDLERS.iter().filter(|handler| configuration::is_fixed(handler) && handler.namespaces == Namespaces::All);
    let keys: Vec<String> = keys.map(key).collect();
    cel::list(&keys.iter().map(String::as_str).collect::<Vec<_>>())
}

/// What `--failure-policies` accepts.
fn failure_policies(handler: &Handler) -> String {
    let accepted = ["Fail", "Ignore"].into_iter().filter(|policy| {
        FailurePolicies::parse(&format!("{}={policy}", handler.name)).is_ok() || handler.on_failure.text() == *policy
    });
    let accepted: Vec<String> = accepted.map(|policy| format!("'{policy}'")).collect();
    format!("[{}]", accepted.join(", "))
}

pub(super) fn spec() -> Value {
    let url = labels::WEBHOOK_URL;
    let is_target = format!(
        "(has(e.clientConfig.service) ? (e.clientConfig.service.namespace == {} && e.clientConfig.service.name == '{}' && e.clientConfig.service.?port.orValue(443) == 443 && e.clientConfig.service.?path.orValue('') == variables.paths[variables.prefix + e.name]) : (variables.url != '' && e.clientConfig.?url.orValue('') == variables.url + variables.paths[variables.prefix + e.name]))",
        account::NAMESPACE,
        webhook::SERVICE
    );
    let is_rule = format!("size(e.rules) == 1 && e.rules.all(r, {})", is_rule());
    let is_empty = |selector: &str| {
        format!(
            "size(e.?{selector}.?matchLabels.orValue({{}})) == 0 && size(e.?{selector}.?matchExpressions.orValue([])) == 0"
        )
    };
    let asks_all = |selector: &str| {
        format!(
            "({} || variables.old.exists(o, o.name == e.name && o.?{selector} == e.?{selector}))",
            is_empty(selector)
        )
    };
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [resource_rule("admissionregistration.k8s.io", &["v1"], &["UPDATE"],
            &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"])] },
        "matchConditions": [by(&[WEBHOOK])],
        "variables": [
            { "name": "new", "expression": "object.?webhooks.orValue([])" },
            { "name": "old", "expression": "oldObject.?webhooks.orValue([])" },
            { "name": "prefix", "expression": "request.resource.resource + '/'" },
            { "name": "paths", "expression": table(|handler| format!("'{}'", configuration::path(handler))) },
            { "name": "rules", "expression": table(rule) },
            { "name": "failurePolicies", "expression": table(failure_policies) },
            // Where API servers call a process directly; an administrator writes it.
            { "name": "url", "expression": format!("oldObject.metadata.?annotations[?'{url}'].orValue('')") },
            { "name": "changed", "expression":
                "variables.new.filter(e, !variables.old.exists(o, o == e))" },
            { "name": "alwaysAsked", "expression": always_asked() },
        ],
        "validations": [
            must("variables.changed.all(e, variables.prefix + e.name in variables.paths)",
                "webhooks: the webhook registers no entries besides its own"),
            must(&format!("variables.changed.all(e, !(variables.prefix + e.name in variables.paths) || {is_target})"),
                &format!("webhooks[].clientConfig: the webhook registers its own Service (or the URL in the annotation {url}), with the path of the entry")),
            must(&format!("variables.changed.all(e, !(variables.prefix + e.name in variables.rules) || ({is_rule}))"),
                "webhooks[].rules: the webhook registers an entry for what it is made for"),
            must("variables.changed.all(e, !(variables.prefix + e.name in variables.failurePolicies) || e.failurePolicy in variables.failurePolicies[variables.prefix + e.name] || variables.old.exists(o, o.name == e.name && o.failurePolicy == e.failurePolicy))",
                "webhooks[].failurePolicy: want one that --failure-policies accepts for the entry"),
            must("variables.old.all(o, !(variables.prefix + o.name in variables.alwaysAsked) || variables.new.exists(e, e.name == o.name))",
                "webhooks: an entry that has to fail closed stays"),
            must(&format!(
                    "variables.changed.all(e, !(variables.prefix + e.name in variables.alwaysAsked) || ({} && {} && size(e.?matchConditions.orValue([])) == 0 && (e.?matchPolicy.orValue('Equivalent') == 'Equivalent' || variables.old.exists(o, o.name == e.name && o.?matchPolicy == e.?matchPolicy))))",
                    asks_all("namespaceSelector"), asks_all("objectSelector")),
                "webhooks[]: an entry that has to fail closed is asked about everything: it gets no selectors, no matchConditions and no matchPolicy but Equivalent"),
            must(&equal("metadata.ownerReferences", "[]"), "metadata.ownerReferences: the webhook does not change them"),
            must(&same_but("annotations", &format!("k != '{url}'")),
                &format!("metadata.annotations: {url} is the administrator's")),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_of_requests_is_always_asked_and_no_other() {
        assert_eq!(always_asked(), "['mutatingwebhookconfigurations/mcontainerrecreaterequest.kb.io']");
        let required = HANDLERS.iter().find(|handler| handler.name == "mpod-required.kb.io").unwrap();
        assert_eq!(failure_policies(required), "['Fail']");
    }

    #[test]
    fn rules_are_compared_as_lists() {
        let of_requests = HANDLERS.iter().find(|handler| handler.name == "mcontainerrecreaterequest.kb.io").unwrap();
        let wanted =
            "[['apps.kruise.io'], ['v1alpha1', 'v1beta1'], ['CREATE'], ['containerrecreaterequests'], ['Namespaced']]";
        assert_eq!(rule(of_requests), wanted);
        let compared = is_rule();
        for (i, field) in RULE.iter().enumerate() {
            assert!(
                compared.contains(&format!("r.{field} == variables.rules[variables.prefix + e.name][{i}]")),
                "{compared}"
            );
        }
    }
}
