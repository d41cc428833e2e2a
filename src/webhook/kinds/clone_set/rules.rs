//! The rules of a CloneSet that need no look-up.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Map, Value};

use crate::{
    api::feature_gates::{FeatureGates, gate},
    k8s::{
        int_or_percent::{IntOrPercent, Round},
        name::{self, LONGEST_LABEL, is_dns_subdomain, is_label_value, is_qualified_name},
        pod::Labels,
        selector::Selector,
    },
    webhook::server::review::Cause,
};

pub(super) const RECREATE: &str = "ReCreate";
pub(super) const IN_PLACE_IF_POSSIBLE: &str = "InPlaceIfPossible";
pub(super) const IN_PLACE_ONLY: &str = "InPlaceOnly";
const ON_DELETE: &str = "OnDelete";
pub(super) const MAX_UNAVAILABLE: &str = "20%";

/// Longer names leave no room for the hash in a revision label.
const LONGEST_NAME: usize = 52;
/// A progress deadline that means none.
const NO_DEADLINE: i64 = i32::MAX as i64;

/// What is wrong with a CloneSet.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Fields that cannot be read at all.
    pub(super) wrong_types: Vec<String>,
    /// Fields that can be read and are not allowed.
    pub(super) causes: Vec<Cause>,
    /// What is allowed and surely not meant.
    pub(super) warnings: Vec<String>,
}

type Object = Map<String, Value>;

/// Judges an object.
pub(super) fn judge(gates: &FeatureGates, object: &Value, is_new: bool) -> Findings {
    let mut found = Findings::default();
    let none = Object::new();
    let Some(object) = object.as_object() else {
        found.wrong_type("the object", object, "a CloneSet");
        return found;
    };
    if is_new {
        let metadata = found.object(object, "", "metadata").unwrap_or(&none);
        name_fits(&mut found, gates, metadata);
    }
    let Some(spec) = found.object(object, "", "spec") else {
        found.deny("spec", "it is missing; want at least selector and template");
        return found;
    };
    let replicas = found.integer(spec, "spec.", "replicas", 0).unwrap_or(1);
    found.integer(spec, "spec.", "revisionHistoryLimit", 0);
    let min_ready = found.integer(spec, "spec.", "minReadySeconds", 0).unwrap_or(0);
    let deadline = found.integer(spec, "spec.", "progressDeadlineSeconds", 0);
    if let Some(deadline) = deadline.filter(|deadline| *deadline != NO_DEADLINE && *deadline <= min_ready) {
        found.deny(
            "spec.progressDeadlineSeconds",
            format!("{deadline} is not allowed; want more than minReadySeconds ({min_ready})"),
        );
    }
    let selector = found.selector(spec, "spec.", "selector");
    template(&mut found, spec, selector.as_ref());
    claim_templates(&mut found, spec);
    scale_strategy(&mut found, spec, i32::try_from(replicas).unwrap_or(i32::MAX), is_new);
    update_strategy(&mut found, spec, i32::try_from(replicas).unwrap_or(i32::MAX));
    if let Some(lifecycle) = found.object(spec, "spec.", "lifecycle") {
        for hook in ["preDelete", "inPlaceUpdate", "preNormal"] {
            lifecycle_hook(&mut found, lifecycle, hook);
        }
    }
    found
}

fn name_fits(found: &mut Findings, gates: &FeatureGates, metadata: &Object) {
    let own = found.text(metadata, "metadata.", "name");
    let base = found.text(metadata, "metadata.", "generateName");
    let (field, shown, length) = if own.is_empty() {
        ("metadata.generateName", base, name::generated_base(base).len() + name::SUFFIX)
    } else {
        ("metadata.name", own, own.len())
    };
    if !own.is_empty() && !is_dns_subdomain(own) {
        found.deny(
            field,
            format!("{} is not allowed; want up to 253 lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit", show_text(own)),
        );
    } else if length > LONGEST_NAME && !gates.enabled(gate::CLONE_SET_SHORT_HASH) {
        found.deny(
            field,
            format!(
                "{} makes a name of {length} characters; want up to {LONGEST_NAME}, or up to 253 with the feature gate {}: a longer name leaves no room for the hash in the Pods' label",
                show_text(shown),
                gate::CLONE_SET_SHORT_HASH
            ),
        );
    }
}

fn template(found: &mut Findings, spec: &Object, selector: Option<&LabelSelector>) {
    let Some(template) = found.object(spec, "spec.", "template") else {
        if spec.get("template").is_none_or(Value::is_null) {
            found.deny("spec.template", "it is missing; want a Pod template");
        }
        return;
    };
    let labels = found.object(template, "spec.template.", "metadata").and_then(|metadata| metadata.get("labels"));
    let labels: Result<Labels, _> = match labels {
        None | Some(Value::Null) => Ok(Labels::default()),
        Some(labels) => serde_json::from_value(labels.clone()),
    };
    match (labels, selector) {
        (Err(error), _) => {
            found.wrong_types.push(format!("spec.template.metadata.labels: want texts by key: {error}"));
        }
        (Ok(labels), Some(selector)) => {
            if Selector::of(selector).is_ok_and(|selector| !selector.matches(&labels)) {
                let listed: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
                found.deny(
                    "spec.template.metadata.labels",
                    format!(
                        "{} is not matched by spec.selector; want labels that it matches",
                        show_text(&listed.join(","))
                    ),
                );
            }
        }
        (Ok(_), None) => {}
    }
    let Some(pod) = found.object(template, "spec.template.", "spec") else {
        if template.get("spec").is_none_or(Value::is_null) {
            found.deny("spec.template.spec", "it is missing; want at least one container");
        }
        return;
    };
    let policy = found.text(pod, "spec.template.spec.", "restartPolicy");
    if !["", "Always"].contains(&policy) {
        found.deny("spec.template.spec.restartPolicy", format!("{} is not allowed; want Always", show_text(policy)));
    }
    if let Some(seconds) = pod.get("activeDeadlineSeconds").filter(|seconds| !seconds.is_null()) {
        found.deny(
            "spec.template.spec.activeDeadlineSeconds",
            format!("{} is not allowed; leave it out: Pods of a CloneSet run until they are deleted", show(seconds)),
        );
    }
}

fn claim_templates(found: &mut Findings, spec: &Object) {
    let (none, mut names) = (Object::new(), BTreeSet::new());
    for (i, claim) in found.list(spec, "spec.", "volumeClaimTemplates").iter().enumerate() {
        let at = format!("spec.volumeClaimTemplates[{i}]");
        let Some(claim) = claim.as_object() else {
            found.wrong_type(&at, claim, "a claim template");
            continue;
        };
        let metadata = found.object(claim, &format!("{at}."), "metadata").unwrap_or(&none);
        let name = found.text(metadata, &format!("{at}.metadata."), "name");
        if name.is_empty() {
            found.deny(
                format!("{at}.metadata.name"),
                "it is missing; want the name of the volume that the claim becomes",
            );
        } else if !names.insert(name) {
            found.deny(
                format!("{at}.metadata.name"),
                format!("{} is there twice; want each name once", show_text(name)),
            );
        }
        if found.object(claim, &format!("{at}."), "spec").is_none() && claim.get("spec").is_none_or(Value::is_null) {
            found.deny(format!("{at}.spec"), "it is missing; want the spec of a PersistentVolumeClaim");
        }
    }
}

fn scale_strategy(found: &mut Findings, spec: &Object, replicas: i32, is_new: bool) {
    const AT: &str = "spec.scaleStrategy.";
    let Some(strategy) = found.object(spec, "spec.", "scaleStrategy") else { return };
    if let Some(limit) = found.share(strategy, AT, "maxUnavailable")
        && replicas > 0
        && limit.resolve(replicas, Round::Up) == 0
    {
        found.warnings.push(format!("{AT}maxUnavailable: it comes to 0, so no Pod is ever added"));
    }
    found.flag(strategy, AT, "disablePVCReuse");
    let mut names = BTreeSet::new();
    for (i, name) in found.list(strategy, AT, "podsToDelete").iter().enumerate() {
        let at = format!("{AT}podsToDelete[{i}]");
        match name.as_str() {
            None => found.wrong_type(&at, name, "the name of a Pod"),
            Some(name) if !is_dns_subdomain(name) => {
                found.deny(at, format!("{} is not allowed; want the name of a Pod", show_text(name)));
            }
            Some(name) if !names.insert(name) => {
                found.deny(at, format!("{} is there twice; want each name once", show_text(name)));
            }
            Some(name) if is_new => found.deny(
                at,
                format!(
                    "{} is not allowed; leave it out: a new CloneSet has no Pods that could be deleted",
                    show_text(name)
                ),
            ),
            Some(_) => {}
        }
    }
}

fn update_strategy(found: &mut Findings, spec: &Object, replicas: i32) {
    const AT: &str = "spec.updateStrategy.";
    let none = Object::new();
    let strategy = found.object(spec, "spec.", "updateStrategy").unwrap_or(&none);
    let kind = found.text(strategy, AT, "type");
    if !["", RECREATE, IN_PLACE_IF_POSSIBLE, IN_PLACE_ONLY, ON_DELETE].contains(&kind) {
        found.deny(
            format!("{AT}type"),
            format!(
                "{} is not allowed; want {RECREATE}, {IN_PLACE_IF_POSSIBLE}, {IN_PLACE_ONLY} or {ON_DELETE}",
                show_text(kind)
            ),
        );
    }
    found.share(strategy, AT, "partition");
    let is_given = |key: &str| strategy.get(key).is_some_and(|value| !value.is_null());
    let unavailable = found.share(strategy, AT, "maxUnavailable");
    let unavailable = if is_given("maxUnavailable") { unavailable } else { Some(IntOrPercent::Percent(20.0)) };
    let surge = found.share(strategy, AT, "maxSurge");
    let surge = if is_given("maxSurge") { surge } else { Some(IntOrPercent::Int(0)) };
    let up = |share: IntOrPercent| share.resolve(replicas.max(1), Round::Up);
    if kind == IN_PLACE_ONLY && surge.is_some_and(|surge| up(surge) > 0) {
        found.deny(
            format!("{AT}maxSurge"),
            format!(
                "{} is not allowed; want 0 with type {IN_PLACE_ONLY}, which never makes another Pod",
                shown(strategy, "maxSurge")
            ),
        );
    }
    if let (Some(unavailable), Some(surge)) = (unavailable, surge)
        && replicas > 0
        && unavailable.resolve(replicas, Round::Up) < 1
        && surge.resolve(replicas, Round::Up) < 1
    {
        found.deny(
            format!("{AT}maxUnavailable"),
            format!(
                "{} is not allowed while maxSurge is 0 too; want 1 or more of one of them, else no Pod can be updated",
                shown(strategy, "maxUnavailable")
            ),
        );
    }
    found.flag(strategy, AT, "paused");
    if let Some(in_place) = found.object(strategy, AT, "inPlaceUpdateStrategy") {
        found.integer(in_place, "spec.updateStrategy.inPlaceUpdateStrategy.", "gracePeriodSeconds", 0);
    }
    priority_strategy(found, strategy);
    let mut pairs = BTreeSet::new();
    for (i, term) in found.list(strategy, AT, "scatterStrategy").iter().enumerate() {
        let at = format!("{AT}scatterStrategy[{i}]");
        let Some(term) = term.as_object() else {
            found.wrong_type(&at, term, "a key and a value");
            continue;
        };
        let (key, value) = (found.text(term, &format!("{at}."), "key"), found.text(term, &format!("{at}."), "value"));
        if key.is_empty() {
            found.deny(format!("{at}.key"), "it is missing; want the key of a label");
        } else if !pairs.insert((key, value)) {
            found.deny(at, format!("{} is there twice; want each pair once", show_text(&format!("{key}={value}"))));
        }
    }
}

fn priority_strategy(found: &mut Findings, strategy: &Object) {
    const AT: &str = "spec.updateStrategy.priorityStrategy";
    let Some(priority) = found.object(strategy, "spec.updateStrategy.", "priorityStrategy") else { return };
    let orders = found.list(priority, &format!("{AT}."), "orderPriority");
    let weights = found.list(priority, &format!("{AT}."), "weightPriority");
    if orders.is_empty() == weights.is_empty() {
        let there = if orders.is_empty() { "neither is" } else { "both are" };
        found.deny(AT, format!("want exactly one of orderPriority and weightPriority; {there} there"));
    }
    for (i, term) in orders.iter().enumerate() {
        let at = format!("{AT}.orderPriority[{i}]");
        match term.as_object() {
            None => found.wrong_type(&at, term, "an object"),
            Some(term) => {
                if found.text(term, &format!("{at}."), "orderedKey").is_empty() {
                    found.deny(format!("{at}.orderedKey"), "it is missing; want the key of a label");
                }
            }
        }
    }
    for (i, term) in weights.iter().enumerate() {
        let at = format!("{AT}.weightPriority[{i}].");
        match term.as_object() {
            None => found.wrong_type(at.trim_end_matches('.'), term, "an object"),
            Some(term) => {
                let weight = found.integer(term, &at, "weight", 0).unwrap_or(0);
                if weight > 100 {
                    found.deny(format!("{at}weight"), format!("{weight} is not allowed; want 0 to 100"));
                }
                found.selector(term, &at, "matchSelector");
            }
        }
    }
}

fn lifecycle_hook(found: &mut Findings, lifecycle: &Object, hook: &str) {
    let Some(handler) = found.object(lifecycle, "spec.lifecycle.", hook) else { return };
    let at = format!("spec.lifecycle.{hook}.");
    found.flag(handler, &at, "markPodNotReady");
    let labels = found.object(handler, &at, "labelsHandler").into_iter().flatten();
    for (key, value) in labels {
        let at = format!("{at}labelsHandler[{key}]");
        match value.as_str() {
            None => found.wrong_type(&at, value, "the value of a label"),
            Some(value) => found.label(&at, key, &[value]),
        }
    }
    for (i, name) in found.list(handler, &at, "finalizersHandler").iter().enumerate() {
        let at = format!("{at}finalizersHandler[{i}]");
        match name.as_str() {
            None => found.wrong_type(&at, name, "the name of a finalizer"),
            Some(name) if !is_qualified_name(name) => {
                found
                    .deny(at, format!("{} is not allowed; want a finalizer such as example.com/hold", show_text(name)));
            }
            Some(_) => {}
        }
    }
}

impl Findings {
    fn deny(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.causes.push(Cause { field: field.into(), message: message.into() });
    }

    fn wrong_type(&mut self, field: &str, value: &Value, want: &str) {
        self.wrong_types.push(format!("{field}: {} is not allowed; want {want}", show(value)));
    }

    fn object<'v>(&mut self, parent: &'v Object, at: &str, key: &str) -> Option<&'v Object> {
        match parent.get(key)? {
            Value::Null => None,
            Value::Object(object) => Some(object),
            other => {
                self.wrong_type(&format!("{at}{key}"), other, "an object");
                None
            }
        }
    }

    fn list<'v>(&mut self, parent: &'v Object, at: &str, key: &str) -> &'v [Value] {
        match parent.get(key) {
            None | Some(Value::Null) => &[],
            Some(Value::Array(list)) => list,
            Some(other) => {
                self.wrong_type(&format!("{at}{key}"), other, "a list");
                &[]
            }
        }
    }

    fn text<'v>(&mut self, parent: &'v Object, at: &str, key: &str) -> &'v str {
        match parent.get(key) {
            None | Some(Value::Null) => "",
            Some(Value::String(text)) => text,
            Some(other) => {
                self.wrong_type(&format!("{at}{key}"), other, "text");
                ""
            }
        }
    }

    fn flag(&mut self, parent: &Object, at: &str, key: &str) {
        match parent.get(key) {
            None | Some(Value::Null | Value::Bool(_)) => {}
            Some(other) => self.wrong_type(&format!("{at}{key}"), other, "true or false"),
        }
    }

    fn integer(&mut self, parent: &Object, at: &str, key: &str, least: i64) -> Option<i64> {
        let value = parent.get(key).filter(|value| !value.is_null())?;
        let field = format!("{at}{key}");
        match value.as_i64().filter(|number| i32::try_from(*number).is_ok()) {
            None => self.wrong_type(&field, value, &format!("a whole number from {least} to {}", i32::MAX)),
            Some(number) if number < least => {
                self.deny(field, format!("{number} is not allowed; want {least} or more"))
            }
            Some(number) => return Some(number),
        }
        None
    }

    /// A number or a percentage that is not negative.
    fn share(&mut self, parent: &Object, at: &str, key: &str) -> Option<IntOrPercent> {
        let value = parent.get(key).filter(|value| !value.is_null())?;
        let field = format!("{at}{key}");
        match IntOrPercent::parse(value) {
            Err(_) if !value.is_string() => {
                self.wrong_type(&field, value, "a whole number or a percentage such as \"20%\"");
            }
            Err(_) => self.deny(
                field,
                format!("{} is not allowed; want a whole number or a percentage such as \"20%\"", show(value)),
            ),
            Ok(share) if share.is_negative() => {
                self.deny(field, format!("{} is not allowed; want 0 or more", show(value)))
            }
            Ok(share) => return Some(share),
        }
        None
    }

    /// A selector that selects something.
    fn selector(&mut self, parent: &Object, at: &str, key: &str) -> Option<LabelSelector> {
        let field = format!("{at}{key}");
        let Some(value) = parent.get(key).filter(|value| !value.is_null()) else {
            self.deny(field, "it is missing; want matchLabels or matchExpressions");
            return None;
        };
        let selector: LabelSelector = match serde_json::from_value(value.clone()) {
            Ok(selector) => selector,
            Err(error) => {
                self.wrong_types
                    .push(format!("{field}: {} is not allowed; want a label selector: {error}", show(value)));
                return None;
            }
        };
        let before = self.causes.len();
        for (key, value) in selector.match_labels.iter().flatten() {
            self.label(&format!("{field}.matchLabels[{key}]"), key, &[value]);
        }
        for (i, expression) in selector.match_expressions.iter().flatten().enumerate() {
            let at = format!("{field}.matchExpressions[{i}]");
            let values = expression.values.as_deref().unwrap_or_default();
            match (expression.operator.as_str(), values) {
                ("In" | "NotIn", []) => {
                    self.deny(
                        format!("{at}.values"),
                        format!("it is missing; want values for operator {}", expression.operator),
                    );
                }
                ("Exists" | "DoesNotExist", [_, ..]) => {
                    self.deny(
                        format!("{at}.values"),
                        format!("not allowed with operator {}; leave it out", expression.operator),
                    );
                }
                ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
                (other, _) => self.deny(
                    format!("{at}.operator"),
                    format!("{} is not allowed; want In, NotIn, Exists or DoesNotExist", show_text(other)),
                ),
            }
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            self.label(&at, &expression.key, &values);
        }
        let is_empty = selector.match_labels.iter().flatten().next().is_none()
            && selector.match_expressions.iter().flatten().next().is_none();
        if is_empty {
            self.deny(field, "it is empty; want matchLabels or matchExpressions: an empty selector matches every Pod");
        }
        (before == self.causes.len()).then_some(selector)
    }

    fn label(&mut self, at: &str, key: &str, values: &[&str]) {
        if !is_qualified_name(key) {
            self.deny(
                at,
                format!("{} is not allowed as the key of a label; want up to {LONGEST_LABEL} letters, digits, '-', '_' and '.', perhaps after a domain and '/'", show_text(key)),
            );
        }
        for value in values.iter().filter(|value| !is_label_value(value)) {
            self.deny(
                at,
                format!("{} is not allowed as the value of a label; want up to {LONGEST_LABEL} letters, digits, '-', '_' and '.'", show_text(value)),
            );
        }
    }
}

/// A value as messages show it.
fn show(value: &Value) -> String {
    let text = value.to_string();
    let short: String = text.chars().take(80).collect();
    if short.len() < text.len() { format!("{short}...") } else { short }
}

fn show_text(text: &str) -> String {
    show(&Value::from(text))
}

fn shown(object: &Object, key: &str) -> String {
    object.get(key).map_or_else(|| "the default".into(), show)
}
