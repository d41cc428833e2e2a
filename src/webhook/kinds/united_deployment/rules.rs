//! The rules of a UnitedDeployment that need no look-up.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    api::{
        apps::{
            strategies::{PodManagementPolicy, SetUpdateType},
            united_deployment::UnitedDeployment,
        },
        labels,
    },
    domain::{
        kinds::united_deployment::spec::{self, ChildKind, MOST_SUBSETS, UnitedSpec},
        workload::allocation::{AllocationMode, AllocationSubset, allocate},
    },
    k8s::{
        int_or_percent::IntOrPercent, invalid::Invalid, name::is_dns_label, pod::Labels, quantity, selector::Selector,
    },
    webhook::validate::{Findings, Object, show_text},
};

const AT: &str = "spec.topology.subsets";
const PARTITIONS: &str = "spec.updateStrategy.manualUpdate.partitions";
/// The name of its revisions, with a hash of up to eleven characters, is the value of a label.
const LONGEST_NAME: usize = 52;

/// Judges an object.
pub(super) fn judge(object: &Value, is_new: bool) -> Findings {
    let mut found = Findings::default();
    let none = Object::new();
    let Some(root) = object.as_object() else {
        found.wrong_type("the object", object, "a UnitedDeployment");
        return found;
    };
    let metadata = found.object(root, "", "metadata").unwrap_or(&none);
    if is_new {
        found.object_name(metadata, Some((LONGEST_NAME, ": with a hash behind it it becomes the value of a label")));
    }
    let Some(spec) = found.object(root, "", "spec") else {
        found.deny("spec", "it is missing; want at least selector, template and topology");
        return found;
    };
    for (field, at) in [(AT, "/topology/subsets"), (PARTITIONS, "/updateStrategy/manualUpdate/partitions")] {
        let count = match spec::pointer(spec, at) {
            Some(Value::Array(list)) => list.len(),
            Some(Value::Object(members)) => members.len(),
            _ => 0,
        };
        if count > MOST_SUBSETS {
            // The rules compare them with each other.
            found.deny(field, format!("it has {count} entries; want up to {MOST_SUBSETS}"));
            return found;
        }
    }
    found.integer(spec, "spec.", "replicas", 0);
    found.integer(spec, "spec.", "revisionHistoryLimit", 0);
    let selector = found.selector(spec, "spec.", "selector");
    let child = template(&mut found, spec, selector.as_ref());
    let name = metadata.get("name").and_then(Value::as_str).unwrap_or_default();
    if is_new && child.is_some_and(|(kind, _)| kind.has_ordinals()) && !name.is_empty() && !is_dns_label(name) {
        found.deny(
            "metadata.name",
            format!("{} is not allowed for StatefulSets; want lower-case letters, digits and '-'", show_text(name)),
        );
    }
    topology(&mut found, spec, child.map(|(kind, _)| kind));
    update_strategy(&mut found, spec);
    let annotations = found.object(metadata, "metadata.", "annotations");
    if let Some(text) = annotations.and_then(|all| all.get(labels::UNITED_MAX_UNAVAILABLE)).and_then(Value::as_str) {
        budget(&mut found, text, child);
    }
    sums(&mut found, object);
    found
}

/// The template: exactly one, and in it nothing that is the controller's to write.
fn template<'v>(
    found: &mut Findings,
    spec: &'v Object,
    selector: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector>,
) -> Option<(ChildKind, &'v Object)> {
    let none = Object::new();
    let template = found.object(spec, "spec.", "template")?;
    let given: Vec<ChildKind> =
        ChildKind::ALL.into_iter().filter(|kind| template.get(kind.member()).is_some_and(|t| !t.is_null())).collect();
    let [kind] = given[..] else {
        let members = ChildKind::ALL.map(ChildKind::member).join(", ");
        found.deny("spec.template", format!("{} templates are given; want exactly one of {members}", given.len()));
        return None;
    };
    let child = found.object(template, "spec.template.", kind.member())?;
    let at = format!("spec.template.{}.", kind.member());
    let metadata = found.object(child, &at, "metadata").unwrap_or(&none);
    if kind != ChildKind::CloneSet {
        matches(found, metadata, &format!("{at}metadata.labels"), selector);
    }
    let Some(of_child) = found.object(child, &at, "spec") else {
        found.deny(format!("{at}spec"), format!("it is missing; want the spec of a {}", kind.kind()));
        return None;
    };
    let at = format!("{at}spec.");
    if kind != ChildKind::CloneSet && of_child.get("replicas").is_some_and(|replicas| !replicas.is_null()) {
        found.deny(format!("{at}replicas"), "it is not allowed; want spec.replicas and replicas of the subsets");
    }
    if kind.has_ordinals()
        && spec::pointer(of_child, "/updateStrategy/rollingUpdate/partition").is_some_and(|p| !p.is_null())
    {
        found.deny(
            format!("{at}updateStrategy.rollingUpdate.partition"),
            "it is not allowed; want spec.updateStrategy.manualUpdate.partitions",
        );
    }
    if kind == ChildKind::AdvancedStatefulSet {
        judge_shares(found, of_child, &at);
    }
    match found.object(of_child, &at, "template") {
        Some(pods) => {
            let of_pods = found.object(pods, &format!("{at}template."), "metadata").unwrap_or(&none);
            matches(found, of_pods, &format!("{at}template.metadata.labels"), selector);
            if found.object(pods, &format!("{at}template."), "spec").is_none() {
                found.deny(format!("{at}template.spec"), "it is missing; want at least one container");
            }
        }
        None => found.deny(format!("{at}template"), "it is missing; want a Pod template"),
    }
    Some((kind, of_child))
}

/// What the StatefulSets of its subsets would be refused for.
fn judge_shares(found: &mut Findings, of_child: &Object, at: &str) {
    let strategy = found.object(of_child, at, "updateStrategy");
    let rolling = strategy.and_then(|s| found.object(s, &format!("{at}updateStrategy."), "rollingUpdate"));
    if let Some(rolling) = rolling {
        found.share(rolling, &format!("{at}updateStrategy.rollingUpdate."), "maxUnavailable");
    }
    if let Some(scale) = found.object(of_child, at, "scaleStrategy") {
        found.share(scale, &format!("{at}scaleStrategy."), "maxUnavailable");
    }
}

fn matches(
    found: &mut Findings,
    metadata: &Object,
    field: &str,
    selector: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector>,
) {
    let labels: Result<Labels, _> = match metadata.get("labels") {
        None | Some(Value::Null) => Ok(Labels::default()),
        Some(labels) => serde_json::from_value(labels.clone()),
    };
    match labels {
        Err(error) => found.wrong_types.push(format!("{field}: want texts by key: {error}")),
        Ok(labels) => {
            if selector.is_some_and(|selector| Selector::of(selector).is_ok_and(|selector| !selector.matches(&labels)))
            {
                found.deny(field, "they are not matched by spec.selector; want labels that it matches");
            }
        }
    }
}

fn topology(found: &mut Findings, spec: &Object, kind: Option<ChildKind>) {
    let none = Object::new();
    let topology = found.object(spec, "spec.", "topology").unwrap_or(&none);
    let strategy = found.object(topology, "spec.topology.", "scheduleStrategy").unwrap_or(&none);
    const STRATEGY: &str = "spec.topology.scheduleStrategy.";
    let type_ = found.one_of(strategy, STRATEGY, "type", &["Adaptive", "Fixed"]);
    let is_adaptive = type_ == "Adaptive";
    if let Some(adaptive) = found.object(strategy, STRATEGY, "adaptive") {
        let at = format!("{STRATEGY}adaptive.");
        found.integer(adaptive, &at, "rescheduleCriticalSeconds", 0);
        found.integer(adaptive, &at, "unschedulableDuration", 0);
        found.flag(adaptive, &at, "reserveUnschedulablePods");
        let reserves = adaptive.get("reserveUnschedulablePods") == Some(&Value::Bool(true));
        if reserves && kind.is_some_and(ChildKind::has_ordinals) {
            found.deny(
                format!("{at}reserveUnschedulablePods"),
                "true is not allowed for StatefulSets; want a cloneSetTemplate or a deploymentTemplate",
            );
        }
    }
    let subsets = found.list(topology, "spec.topology.", "subsets");
    if subsets.is_empty() {
        found.warnings.push(format!("{AT}: there are none, so no Pod is made"));
    }
    let mut names = BTreeSet::new();
    let (mut numbers, mut bounds, mut unlimited) = (None, None, subsets.is_empty());
    for (i, subset) in subsets.iter().enumerate() {
        let at = format!("{AT}[{i}].");
        let Some(subset) = subset.as_object() else {
            found.wrong_type(at.trim_end_matches('.'), subset, "an object");
            continue;
        };
        let name = found.text(subset, &at, "name");
        if !is_dns_label(name) {
            found.deny(
                format!("{at}name"),
                format!("{} is not allowed; want up to 63 lower-case letters, digits and '-'", show_text(name)),
            );
        } else if !names.insert(name) {
            found.deny(format!("{at}name"), format!("{} is there twice; want each name once", show_text(name)));
        }
        found.object(subset, &at, "nodeSelectorTerm");
        found.list(subset, &at, "tolerations");
        found.object(subset, &at, "patch");
        let mut share = |key: &str| found.share_up_to_all(subset, &at, key);
        let (fixed, min, max) = (share("replicas"), share("minReplicas"), share("maxReplicas"));
        numbers = numbers.or(fixed.map(|_| format!("{at}replicas")));
        let bound = if min.is_some() { "minReplicas" } else { "maxReplicas" };
        bounds = bounds.or(min.or(max).map(|_| format!("{at}{bound}")));
        unlimited |= max.is_none();
        if let (Some(min), Some(max)) = (min, max)
            && is_above(min, max)
        {
            found.deny(format!("{at}minReplicas"), format!("{min} is not allowed; want maxReplicas ({max}) or less"));
        }
    }
    if let (Some(number), Some(_)) = (&numbers, &bounds) {
        found.deny(number, "not allowed together with minReplicas or maxReplicas of any subset; want one or the other");
    }
    if let Some(number) = numbers.filter(|_| is_adaptive) {
        found.deny(number, "not allowed with the schedule strategy Adaptive; want minReplicas and maxReplicas");
    }
    if !unlimited {
        found.deny(AT, "every subset has maxReplicas; want at least one without");
    }
}

/// Whether a minimum is more than a maximum, of what total ever.
fn is_above(min: IntOrPercent, max: IntOrPercent) -> bool {
    match (min, max) {
        (IntOrPercent::Int(min), IntOrPercent::Int(max)) => min > max,
        (IntOrPercent::Percent(min), IntOrPercent::Percent(max)) => min > max,
        _ => false,
    }
}

fn update_strategy(found: &mut Findings, spec: &Object) {
    let none = Object::new();
    let strategy = found.object(spec, "spec.", "updateStrategy").unwrap_or(&none);
    found.one_of(strategy, "spec.updateStrategy.", "type", &["Manual"]);
    let manual = found.object(strategy, "spec.updateStrategy.", "manualUpdate").unwrap_or(&none);
    let partitions = found.object(manual, "spec.updateStrategy.manualUpdate.", "partitions").unwrap_or(&none);
    let subsets = spec.get("topology").and_then(|topology| topology.get("subsets")).and_then(Value::as_array);
    let is_known = |name: &str| subsets.into_iter().flatten().any(|subset| subset["name"] == name);
    for name in partitions.keys() {
        if !is_known(name) {
            found.deny(format!("{PARTITIONS}[{name}]"), "there is no subset of this name; want the names of subsets");
        }
        found.integer(partitions, &format!("{PARTITIONS}."), name, 0);
    }
}

/// The annotation with the budget of the whole.
fn budget(found: &mut Findings, text: &str, child: Option<(ChildKind, &Object)>) {
    let field = format!("metadata.annotations[{}]", labels::UNITED_MAX_UNAVAILABLE);
    if let Err(error) = spec::budget(text) {
        let why = error.to_string();
        found.deny(&field, why.strip_prefix(&format!("{field}: ")).unwrap_or(&why));
    }
    let Some((kind, child)) = child else { return };
    let type_ = |at: &str| spec::pointer(child, at).and_then(Value::as_str);
    if kind == ChildKind::Deployment && type_("/strategy/type") == Some("Recreate") {
        found.deny(
            &field,
            "not allowed with the strategy Recreate, which takes a whole subset out of service; want RollingUpdate",
        );
    }
    if kind.has_ordinals() && type_("/updateStrategy/type") == Some(SetUpdateType::OnDelete.as_str()) {
        found.warnings.push(format!("{field}: with the strategy OnDelete nothing is rolled out, so it does nothing"));
    }
}

/// Whether the numbers of the subsets fit the total.
fn sums(found: &mut Findings, object: &Value) {
    if !found.causes.is_empty() || !found.wrong_types.is_empty() {
        return;
    }
    let Ok(object) = serde_json::from_value::<UnitedDeployment>(object.clone()) else { return };
    let spec = match UnitedSpec::of(&object) {
        Ok(spec) => spec,
        // Field by field nothing was wrong: it is too much of all together.
        Err(Invalid(why)) => {
            let of_subsets = why.strip_prefix(AT).and_then(|why| why.strip_prefix(": "));
            return of_subsets.into_iter().for_each(|why| found.deny(AT, why));
        }
    };
    if spec.mode != AllocationMode::Shares || spec.subsets.is_empty() {
        return;
    }
    let subsets: Vec<AllocationSubset> = spec
        .subsets
        .iter()
        .map(|subset| AllocationSubset {
            name: subset.name.clone(),
            fixed: subset.fixed,
            ..AllocationSubset::default()
        })
        .collect();
    if let Err(error) = allocate(spec.mode, spec.replicas, &subsets) {
        found.deny(AT, format!("{error}; want numbers that fit"));
    }
}

/// What an update must not change.
pub(super) fn unchanged(old: &Value, new: &Value, found: &mut Findings) {
    let subsets = |object: &Value| -> Vec<Value> {
        object.pointer("/spec/topology/subsets").and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let before = subsets(old);
    if before.len().max(subsets(new).len()) > MOST_SUBSETS {
        return;
    }
    for (i, subset) in subsets(new).iter().enumerate() {
        let Some(old) = before.iter().find(|old| old["name"] == subset["name"]) else { continue };
        for key in ["nodeSelectorTerm", "tolerations"] {
            let of = |subset: &Value| {
                let value = subset.get(key).cloned().unwrap_or_default();
                let is_nothing =
                    value.as_object().is_some_and(|v| v.is_empty()) || value.as_array().is_some_and(Vec::is_empty);
                if is_nothing { Value::Null } else { value }
            };
            if of(old) != of(subset) {
                found.deny(format!("{AT}[{i}].{key}"), "it cannot be changed; want another subset under a new name");
            }
        }
    }
    let template = |object: &Value| {
        let object: Option<UnitedDeployment> = serde_json::from_value(object.clone()).ok();
        object.and_then(|object| spec::ChildTemplate::of(&object.spec.template).ok())
    };
    let (Some(old), Some(new)) = (template(old), template(new)) else { return };
    if old.kind != new.kind || !new.kind.has_ordinals() {
        return;
    }
    let in_order = PodManagementPolicy::OrderedReady.as_str();
    for (key, default) in [("serviceName", ""), ("podManagementPolicy", in_order), ("volumeClaimTemplates", "")] {
        // Clients in Go write a name that is empty, others leave it out.
        let of = |spec: &Object| match spec.get(key) {
            Some(value) if !value.is_null() && value != "" => value.clone(),
            _ => Value::from(default),
        };
        let differs = match key {
            // Defaults of claim templates come with admission.
            "volumeClaimTemplates" => claims(old.spec.get(key)) != claims(new.spec.get(key)),
            _ => of(&old.spec) != of(&new.spec),
        };
        if differs {
            found.deny(
                format!("spec.template.{}.spec.{key}", new.kind.member()),
                "it cannot be changed: StatefulSets keep it; create another UnitedDeployment",
            );
        }
    }
}

/// What claim templates ask for, without what is added to them, and with amounts as the API server spells them: so they are
/// stored, whatever their manifest says.
fn claims(all: Option<&Value>) -> Vec<(Value, Value)> {
    let of = |claim: &Value| {
        let at = |pointer: &str| claim.pointer(pointer).cloned().unwrap_or_default();
        let mut spec = at("/spec");
        for amounts in ["/resources/limits", "/resources/requests"] {
            let Some(amounts) = spec.pointer_mut(amounts).and_then(Value::as_object_mut) else { continue };
            for amount in amounts.values_mut() {
                let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
                *amount = quantity::canonical(&text).unwrap_or(text).into();
            }
        }
        (at("/metadata/name"), spec)
    };
    all.and_then(Value::as_array).into_iter().flatten().map(of).collect()
}
