//! The webhook configurations against the webhook: it registers what [`HANDLERS`] says, and nothing else.
//!
//! CA, selectors, match conditions and time-outs are free. Entries that are there may stay or go as they are.

use serde_json::{Value, json};

use super::cel::{by, must, resource_rule, same_but};
use crate::{
    api::labels,
    k8s::account::{self, WEBHOOK},
    webhook::{self, HANDLERS, Handler, Phase, configuration, failure_policies::FailurePolicies},
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

/// The one rule of an entry, as text.
fn rule(handler: &Handler) -> String {
    let rules = configuration::rules(handler);
    let list = |field: &str| {
        let items = rules[0][field].as_array().into_iter().flatten().filter_map(Value::as_str);
        items.collect::<Vec<_>>().join(",")
    };
    let scope = rules[0]["scope"].as_str().unwrap_or_default();
    format!("'{}|{}|{}|{}|{scope}'", list("apiGroups"), list("apiVersions"), list("operations"), list("resources"))
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
    let is_rule = "size(e.rules) == 1 && e.rules.all(r, r.apiGroups.join(',') + '|' + r.apiVersions.join(',') + '|' + r.operations.join(',') + '|' + r.resources.join(',') + '|' + r.?scope.orValue('*') == variables.rules[variables.prefix + e.name])";
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [resource_rule("admissionregistration.k8s.io", &["v1"], &["UPDATE"],
            &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"])] },
        "matchConditions": [by(&[WEBHOOK])],
        "variables": [
            { "name": "prefix", "expression": "request.resource.resource + '/'" },
            { "name": "paths", "expression": table(|handler| format!("'{}'", configuration::path(handler))) },
            { "name": "rules", "expression": table(rule) },
            { "name": "failurePolicies", "expression": table(failure_policies) },
            // Where API servers call a process directly; an administrator writes it.
            { "name": "url", "expression": format!("oldObject.metadata.?annotations[?'{url}'].orValue('')") },
            { "name": "changed", "expression":
                "object.?webhooks.orValue([]).filter(e, !oldObject.?webhooks.orValue([]).exists(o, o == e))" },
        ],
        "validations": [
            must("variables.changed.all(e, variables.prefix + e.name in variables.paths)",
                "webhooks: the webhook registers no entries besides its own"),
            must(&format!("variables.changed.all(e, !(variables.prefix + e.name in variables.paths) || {is_target})"),
                &format!("webhooks[].clientConfig: the webhook registers its own Service (or the URL in the annotation {url}), with the path of the entry")),
            must(&format!("variables.changed.all(e, !(variables.prefix + e.name in variables.rules) || ({is_rule}))"),
                "webhooks[].rules: the webhook registers an entry for what it is made for"),
            must("variables.changed.all(e, !(variables.prefix + e.name in variables.failurePolicies) || e.failurePolicy in variables.failurePolicies[variables.prefix + e.name] || oldObject.?webhooks.orValue([]).exists(o, o.name == e.name && o.failurePolicy == e.failurePolicy))",
                "webhooks[].failurePolicy: want one that --failure-policies accepts for the entry"),
            must(&same_but("annotations", &format!("k != '{url}'")),
                &format!("metadata.annotations: {url} is the administrator's")),
        ],
    })
}
