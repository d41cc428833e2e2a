//! What the rules of our kinds share: fields read from raw JSON, findings with field paths, and the rules for what many
//! kinds have: names, selectors, labels, numbers or percentages, Pod templates, claim templates and lifecycle hooks.
//!
//! Pure. A path such as `spec.updateStrategy.` ends with its dot, and the key follows as an argument of its own.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Map, Value};

pub use crate::k8s::null::set_default;
use crate::{
    k8s::{
        int_or_percent::{IntOrPercent, is_whole_percentage},
        invalid::InvalidField,
        name::{self, is_dns_subdomain, is_qualified_name},
        pod::Labels,
        selector::{self, Selector, label_problems},
    },
    webhook::server::review::{Cause, Denied, Request},
};

/// A JSON object.
pub type Object = Map<String, Value>;

/// What is wrong with an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Fields that have a type that they cannot have: the path, the value and what is allowed.
    pub wrong_types: Vec<String>,
    /// Fields that can be read and are not allowed.
    pub causes: Vec<Cause>,
    /// What is allowed and surely not meant.
    pub warnings: Vec<String>,
}

/// Whether a request creates or updates an object itself, not a subresource, and the object is not being deleted:
/// finalizers can always be removed.
pub fn is_judged(request: &Request) -> bool {
    ["CREATE", "UPDATE"].contains(&request.operation.as_str())
        && request.sub_resource.is_empty()
        && !is_set(&request.object, "/metadata/deletionTimestamp")
}

/// Whether a field is there and not null.
pub fn is_set(object: &Value, pointer: &str) -> bool {
    object.pointer(pointer).is_some_and(|value| !value.is_null())
}

/// Removes a text that is empty, so that a default takes its place.
pub fn drop_empty(object: &mut Object, key: &str) {
    if object.get(key).is_some_and(|value| value == "") {
        object.remove(key);
    }
}

impl Findings {
    /// Refuses fields that have a wrong type, all of them in one text.
    ///
    /// # Errors
    /// There are some: 400.
    pub fn refuse_wrong_types(&self) -> Result<(), Denied> {
        if self.wrong_types.is_empty() { Ok(()) } else { Err(Denied::bad_request(self.wrong_types.join("; "))) }
    }

    /// Refuses fields that are not allowed, all of them one by one.
    ///
    /// # Errors
    /// There are some: 422.
    pub fn refuse(&self) -> Result<(), Denied> {
        if self.causes.is_empty() { Ok(()) } else { Err(Denied::invalid(self.causes.clone())) }
    }

    /// Leaves out what was found in the stored object too: a field that admission let in before, because it was away or
    /// had fewer rules, does not prevent other changes.
    pub fn leave_out(&mut self, before: &Self) {
        self.causes.retain(|cause| !before.causes.contains(cause));
    }

    /// One of some texts; empty if it is missing. Any other is a finding.
    pub fn one_of<'v>(&mut self, parent: &'v Object, at: &str, key: &str, allowed: &[&str]) -> &'v str {
        let value = self.text(parent, at, key);
        if !value.is_empty() && !allowed.contains(&value) {
            let list = match allowed {
                [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
                _ => allowed.concat(),
            };
            self.deny(format!("{at}{key}"), format!("{} is not allowed; want {list}", show_text(value)));
        }
        value
    }

    /// A field that is not allowed as it is.
    pub fn deny(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.causes.push(Cause { field: field.into(), message: message.into() });
    }

    /// A field that has a type that it cannot have.
    pub fn wrong_type(&mut self, field: &str, value: &Value, want: &str) {
        self.wrong_types.push(format!("{field}: {} is not allowed; want {want}", show(value)));
    }

    /// A member that is an object. None: it is missing, null, or no object, which is then a finding.
    pub fn object<'v>(&mut self, parent: &'v Object, at: &str, key: &str) -> Option<&'v Object> {
        match parent.get(key)? {
            Value::Null => None,
            Value::Object(object) => Some(object),
            other => {
                self.wrong_type(&format!("{at}{key}"), other, "an object");
                None
            }
        }
    }

    /// A member that is a list; empty if it is missing, null, or no list, which is then a finding.
    pub fn list<'v>(&mut self, parent: &'v Object, at: &str, key: &str) -> &'v [Value] {
        match parent.get(key) {
            None | Some(Value::Null) => &[],
            Some(Value::Array(list)) => list,
            Some(other) => {
                self.wrong_type(&format!("{at}{key}"), other, "a list");
                &[]
            }
        }
    }

    /// A member that is a text; empty if it is missing, null, or no text, which is then a finding.
    pub fn text<'v>(&mut self, parent: &'v Object, at: &str, key: &str) -> &'v str {
        match parent.get(key) {
            None | Some(Value::Null) => "",
            Some(Value::String(text)) => text,
            Some(other) => {
                self.wrong_type(&format!("{at}{key}"), other, "text");
                ""
            }
        }
    }

    /// A member that is true or false, or missing.
    pub fn flag(&mut self, parent: &Object, at: &str, key: &str) {
        match parent.get(key) {
            None | Some(Value::Null | Value::Bool(_)) => {}
            Some(other) => self.wrong_type(&format!("{at}{key}"), other, "true or false"),
        }
    }

    /// A whole number of 32 bits, `least` or more. None: it is missing, or a finding.
    pub fn integer(&mut self, parent: &Object, at: &str, key: &str, least: i64) -> Option<i64> {
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

    /// A number or a whole percentage that is not negative. A percentage with a fraction is refused, and still returned: rules
    /// for which the field is 0 or missing do not apply to it.
    pub fn share(&mut self, parent: &Object, at: &str, key: &str) -> Option<IntOrPercent> {
        let share = self.share_or_fraction(parent, at, key)?;
        if let Some(text) = parent.get(key).and_then(Value::as_str).filter(|text| !is_whole_percentage(text)) {
            self.deny(
                format!("{at}{key}"),
                format!(
                    "{} is not allowed; want a whole number or a whole percentage such as \"20%\"",
                    show_text(text)
                ),
            );
        }
        Some(share)
    }

    /// The same, where more than all of something means nothing. None also for a percentage above 100.
    pub fn share_up_to_all(&mut self, parent: &Object, at: &str, key: &str) -> Option<IntOrPercent> {
        let share = self.share(parent, at, key)?;
        if matches!(share, IntOrPercent::Percent(percent) if percent > 100.0) {
            let why = format!("{} is not allowed; want a whole percentage from 0% to 100%", shown(parent, key));
            self.deny(format!("{at}{key}"), why);
            return None;
        }
        Some(share)
    }

    /// A number or a percentage that is not negative, for a kind of which OpenKruise admits percentages with a fraction.
    pub fn share_or_fraction(&mut self, parent: &Object, at: &str, key: &str) -> Option<IntOrPercent> {
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
    pub fn selector(&mut self, parent: &Object, at: &str, key: &str) -> Option<LabelSelector> {
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
        let problems = selector::problems(&selector, &field);
        let is_good = problems.is_empty();
        self.deny_all(problems);
        is_good.then_some(selector)
    }

    fn deny_all(&mut self, problems: Vec<InvalidField>) {
        for InvalidField { field, why } in problems {
            self.deny(field, why);
        }
    }

    /// The key of a label and its values.
    pub fn label(&mut self, at: &str, key: &str, values: &[&str]) {
        self.deny_all(label_problems(at, key, values));
    }

    /// The name of a new object, or the base that it is generated from. `longest`: the most characters, and what a refusal of
    /// a longer name adds.
    pub fn object_name(&mut self, metadata: &Object, longest: Option<(usize, &str)>) {
        let own = self.text(metadata, "metadata.", "name");
        let base = self.text(metadata, "metadata.", "generateName");
        // Of a base it is counted what is made of it.
        let (field, shown, has, length) = if own.is_empty() {
            ("metadata.generateName", base, "makes a name of", name::generated_base(base).len() + name::SUFFIX)
        } else {
            ("metadata.name", own, "has", own.len())
        };
        if !own.is_empty() && !is_dns_subdomain(own) {
            self.deny(
                field,
                format!("{} is not allowed; want up to 253 lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit", show_text(own)),
            );
        } else if let Some((longest, why)) = longest.filter(|(longest, _)| length > *longest) {
            self.deny(field, format!("{} {has} {length} characters; want up to {longest}{why}", show_text(shown)));
        }
    }

    /// `spec.template`, as far as the API server does not judge it: it is there, its labels match the selector, and its Pods
    /// run until they are deleted. `kind` is that of the workload.
    pub fn pod_template(&mut self, spec: &Object, selector: Option<&LabelSelector>, kind: &str) {
        let Some(template) = self.object(spec, "spec.", "template") else {
            if spec.get("template").is_none_or(Value::is_null) {
                self.deny("spec.template", "it is missing; want a Pod template");
            }
            return;
        };
        let labels = self.object(template, "spec.template.", "metadata").and_then(|metadata| metadata.get("labels"));
        let labels: Result<Labels, _> = match labels {
            None | Some(Value::Null) => Ok(Labels::default()),
            Some(labels) => serde_json::from_value(labels.clone()),
        };
        match (labels, selector) {
            (Err(error), _) => {
                self.wrong_types.push(format!("spec.template.metadata.labels: want texts by key: {error}"));
            }
            (Ok(labels), Some(selector)) => {
                if Selector::of(selector).is_ok_and(|selector| !selector.matches(&labels)) {
                    let listed: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
                    self.deny(
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
        let Some(pod) = self.object(template, "spec.template.", "spec") else {
            if template.get("spec").is_none_or(Value::is_null) {
                self.deny("spec.template.spec", "it is missing; want at least one container");
            }
            return;
        };
        let policy = self.text(pod, "spec.template.spec.", "restartPolicy");
        if !["", "Always"].contains(&policy) {
            self.deny("spec.template.spec.restartPolicy", format!("{} is not allowed; want Always", show_text(policy)));
        }
        if let Some(seconds) = pod.get("activeDeadlineSeconds").filter(|seconds| !seconds.is_null()) {
            self.deny(
                "spec.template.spec.activeDeadlineSeconds",
                format!("{} is not allowed; leave it out: Pods of a {kind} run until they are deleted", show(seconds)),
            );
        }
    }

    /// `spec.volumeClaimTemplates`, as far as the API server does not judge them: names and specs are there.
    pub fn claim_templates(&mut self, spec: &Object) {
        let (none, mut names) = (Object::new(), BTreeSet::new());
        for (i, claim) in self.list(spec, "spec.", "volumeClaimTemplates").iter().enumerate() {
            let at = format!("spec.volumeClaimTemplates[{i}]");
            let Some(claim) = claim.as_object() else {
                self.wrong_type(&at, claim, "a claim template");
                continue;
            };
            let metadata = self.object(claim, &format!("{at}."), "metadata").unwrap_or(&none);
            let name = self.text(metadata, &format!("{at}.metadata."), "name");
            if name.is_empty() {
                self.deny(
                    format!("{at}.metadata.name"),
                    "it is missing; want the name of the volume that the claim becomes",
                );
            } else if !names.insert(name) {
                self.deny(
                    format!("{at}.metadata.name"),
                    format!("{} is there twice; want each name once", show_text(name)),
                );
            }
            if self.object(claim, &format!("{at}."), "spec").is_none() && claim.get("spec").is_none_or(Value::is_null) {
                self.deny(format!("{at}.spec"), "it is missing; want the spec of a PersistentVolumeClaim");
            }
        }
    }

    /// `priorityStrategy` of the object at `at`: exactly one kind of terms.
    pub fn priority_strategy(&mut self, parent: &Object, at: &str) {
        let Some(priority) = self.object(parent, at, "priorityStrategy") else { return };
        let at = format!("{at}priorityStrategy");
        let orders = self.list(priority, &format!("{at}."), "orderPriority");
        let weights = self.list(priority, &format!("{at}."), "weightPriority");
        if orders.is_empty() == weights.is_empty() {
            let there = if orders.is_empty() { "neither is" } else { "both are" };
            self.deny(&at, format!("want exactly one of orderPriority and weightPriority; {there} there"));
        }
        for (i, term) in orders.iter().enumerate() {
            let at = format!("{at}.orderPriority[{i}]");
            match term.as_object() {
                None => self.wrong_type(&at, term, "an object"),
                Some(term) => {
                    if self.text(term, &format!("{at}."), "orderedKey").is_empty() {
                        self.deny(format!("{at}.orderedKey"), "it is missing; want the key of a label");
                    }
                }
            }
        }
        for (i, term) in weights.iter().enumerate() {
            let at = format!("{at}.weightPriority[{i}].");
            match term.as_object() {
                None => self.wrong_type(at.trim_end_matches('.'), term, "an object"),
                Some(term) => {
                    let weight = self.integer(term, &at, "weight", 0).unwrap_or(0);
                    if weight > 100 {
                        self.deny(format!("{at}weight"), format!("{weight} is not allowed; want 0 to 100"));
                    }
                    self.selector(term, &at, "matchSelector");
                }
            }
        }
    }

    /// `spec.lifecycle` with these hooks.
    pub fn lifecycle(&mut self, spec: &Object, hooks: &[&str]) {
        let Some(lifecycle) = self.object(spec, "spec.", "lifecycle") else { return };
        for hook in hooks {
            self.lifecycle_hook(lifecycle, hook);
        }
    }

    fn lifecycle_hook(&mut self, lifecycle: &Object, hook: &str) {
        let Some(handler) = self.object(lifecycle, "spec.lifecycle.", hook) else { return };
        let at = format!("spec.lifecycle.{hook}.");
        self.flag(handler, &at, "markPodNotReady");
        let labels = self.object(handler, &at, "labelsHandler").into_iter().flatten();
        for (key, value) in labels {
            let at = format!("{at}labelsHandler[{key}]");
            match value.as_str() {
                None => self.wrong_type(&at, value, "the value of a label"),
                Some(value) => self.label(&at, key, &[value]),
            }
        }
        for (i, name) in self.list(handler, &at, "finalizersHandler").iter().enumerate() {
            let at = format!("{at}finalizersHandler[{i}]");
            match name.as_str() {
                None => self.wrong_type(&at, name, "the name of a finalizer"),
                Some(name) if !is_qualified_name(name) => {
                    self.deny(
                        at,
                        format!("{} is not allowed; want a finalizer such as example.com/hold", show_text(name)),
                    );
                }
                Some(_) => {}
            }
        }
    }
}

/// A value as messages show it.
pub fn show(value: &Value) -> String {
    let text = value.to_string();
    let short: String = text.chars().take(80).collect();
    if short.len() < text.len() { format!("{short}...") } else { short }
}

/// A text as messages show it.
pub fn show_text(text: &str) -> String {
    show(&Value::from(text))
}

/// A member as messages show it, where it has a default.
pub fn shown(object: &Object, key: &str) -> String {
    object.get(key).map_or_else(|| "the default".into(), show)
}

#[cfg(test)]
mod tests;
