//! The rules of a CloneSet that need no look-up.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    api::{
        apps::strategies::UpdateType,
        feature_gates::{FeatureGates, gate},
    },
    domain::workload::rollout::{self, DEFAULT_MAX_UNAVAILABLE},
    k8s::{int_or_percent::IntOrPercent, name::is_dns_subdomain},
    webhook::validate::{Findings, Object, show_text, shown},
};

const IN_PLACE_ONLY: &str = UpdateType::InPlaceOnly.as_str();

/// Longer names leave no room for the hash in a revision label.
const LONGEST_NAME: usize = 52;
/// A progress deadline that means none.
const NO_DEADLINE: i64 = i32::MAX as i64;

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
        let why = format!(
            ", or up to 253 with the feature gate {}: a longer name leaves no room for the hash in the Pods' label",
            gate::CLONE_SET_SHORT_HASH
        );
        let is_limited = !gates.enabled(gate::CLONE_SET_SHORT_HASH);
        found.object_name(metadata, is_limited.then_some((LONGEST_NAME, &why)));
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
    found.pod_template(spec, selector.as_ref(), "CloneSet");
    found.claim_templates(spec);
    scale_strategy(&mut found, spec, i32::try_from(replicas).unwrap_or(i32::MAX), is_new);
    update_strategy(&mut found, spec, i32::try_from(replicas).unwrap_or(i32::MAX));
    found.lifecycle(spec, &["preDelete", "inPlaceUpdate", "preNormal"]);
    found
}

fn scale_strategy(found: &mut Findings, spec: &Object, replicas: i32, is_new: bool) {
    const AT: &str = "spec.scaleStrategy.";
    let Some(strategy) = found.object(spec, "spec.", "scaleStrategy") else { return };
    if let Some(limit) = found.share_or_fraction(strategy, AT, "maxUnavailable")
        && replicas > 0
        && rollout::scale_limit(limit, replicas) == 0
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
    let kind = found.one_of(strategy, AT, "type", UpdateType::SPELLED);
    found.share_or_fraction(strategy, AT, "partition");
    let is_given = |key: &str| strategy.get(key).is_some_and(|value| !value.is_null());
    let unavailable = found.share_or_fraction(strategy, AT, "maxUnavailable");
    let unavailable = if is_given("maxUnavailable") { unavailable } else { Some(DEFAULT_MAX_UNAVAILABLE) };
    let surge = found.share_or_fraction(strategy, AT, "maxSurge");
    let surge = if is_given("maxSurge") { surge } else { Some(IntOrPercent::Int(0)) };
    if kind == IN_PLACE_ONLY && surge.is_some_and(|surge| rollout::surge(surge, replicas.max(1)) > 0) {
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
        && let (..1, ..1) = rollout::limits(unavailable, surge, replicas, false)
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
    found.priority_strategy(strategy, AT);
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
