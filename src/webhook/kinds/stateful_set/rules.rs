//! The rules of a StatefulSet that need no look-up.

use serde_json::Value;

use crate::{
    api::{
        apps::strategies::{ClaimRetention, ClaimUpdateType, PodManagementPolicy, PodUpdatePolicy, SetUpdateType},
        feature_gates::{FeatureGates, gate},
        labels,
    },
    domain::{
        kinds::stateful_set::spec::{MOST_REPLICAS, too_many_claims},
        workload::numbering::ordinal_range,
    },
    k8s::{int_or_percent::Round, name::is_dns_label},
    webhook::validate::{Findings, Object, show_text, shown},
};

// The values of fields, as requests have them.
pub(super) const ORDERED_READY: &str = PodManagementPolicy::OrderedReady.as_str();
const PARALLEL: &str = PodManagementPolicy::Parallel.as_str();
pub(super) const ROLLING_UPDATE: &str = SetUpdateType::RollingUpdate.as_str();
const ON_DELETE: &str = SetUpdateType::OnDelete.as_str();
pub(super) const CLAIMS_ON_DELETE: &str = ClaimUpdateType::OnDelete.as_str();
pub(super) const ON_POD_ROLLING_UPDATE: &str = ClaimUpdateType::OnPodRollingUpdate.as_str();
pub(super) const RECREATE: &str = PodUpdatePolicy::ReCreate.as_str();
const IN_PLACE_IF_POSSIBLE: &str = PodUpdatePolicy::InPlaceIfPossible.as_str();
pub(super) const IN_PLACE_ONLY: &str = PodUpdatePolicy::InPlaceOnly.as_str();
pub(super) const RETAIN: &str = ClaimRetention::Retain.as_str();
const DELETE: &str = ClaimRetention::Delete.as_str();

/// Longer names leave no room for the hash in a revision label.
const LONGEST_NAME: usize = 52;
/// `minReadySeconds`, at most.
const LONGEST_MIN_READY: i64 = 300;

/// Judges an object.
pub(super) fn judge(gates: &FeatureGates, object: &Value, is_new: bool) -> Findings {
    let mut found = judge_object(object, is_new, gates.enabled(gate::DELETE_CLAIMS));
    without_gates(&mut found, gates, object);
    found
}

/// Judges what is stored, whose findings are not those of an update.
pub(super) fn judge_stored(object: &Value) -> Findings {
    let mut found = judge_object(object, false, false);
    found.causes.extend(judge_object(object, false, true).causes);
    found
}

fn judge_object(object: &Value, is_new: bool, deletes_claims: bool) -> Findings {
    let mut found = Findings::default();
    let none = Object::new();
    let Some(object) = object.as_object() else {
        found.wrong_type("the object", object, "a StatefulSet");
        return found;
    };
    if is_new {
        let metadata = found.object(object, "", "metadata").unwrap_or(&none);
        name(&mut found, metadata);
    }
    let Some(spec) = found.object(object, "", "spec") else {
        found.deny("spec", "it is missing; want at least selector and template");
        return found;
    };
    let replicas = found.integer(spec, "spec.", "replicas", 0).unwrap_or(1);
    found.integer(spec, "spec.", "revisionHistoryLimit", 0);
    let selector = found.selector(spec, "spec.", "selector");
    found.pod_template(spec, selector.as_ref(), "StatefulSet");
    found.claim_templates(spec);
    found.text(spec, "spec.", "serviceName");
    let policy = found.one_of(spec, "spec.", "podManagementPolicy", PodManagementPolicy::SPELLED);
    update_strategy(&mut found, spec, policy == PARALLEL);
    if let Some(strategy) = found.object(spec, "spec.", "scaleStrategy") {
        max_unavailable(&mut found, strategy, "spec.scaleStrategy.", policy == PARALLEL);
    }
    ordinals(&mut found, spec, i32::try_from(replicas).unwrap_or(i32::MAX));
    found.lifecycle(spec, &["preDelete", "inPlaceUpdate", "preNormal"]);
    retention(&mut found, spec, deletes_claims);
    if let Some(strategy) = found.object(spec, "spec.", "volumeClaimUpdateStrategy") {
        found.one_of(strategy, "spec.volumeClaimUpdateStrategy.", "type", &[ON_POD_ROLLING_UPDATE, CLAIMS_ON_DELETE]);
    }
    found
}

fn name(found: &mut Findings, metadata: &Object) {
    let why = ": a longer name leaves no room for the hash in the Pods' label";
    let before = found.causes.len();
    found.object_name(metadata, Some((LONGEST_NAME, why)));
    let own = found.text(metadata, "metadata.", "name");
    if before == found.causes.len() && !own.is_empty() && !is_dns_label(own) {
        found.deny(
            "metadata.name",
            format!(
                "{} is not allowed; want lower-case letters, digits and '-': it is part of the Pods' host names",
                show_text(own)
            ),
        );
    }
}

fn update_strategy(found: &mut Findings, spec: &Object, is_parallel: bool) {
    const AT: &str = "spec.updateStrategy.";
    const ROLLING: &str = "spec.updateStrategy.rollingUpdate.";
    let Some(strategy) = found.object(spec, "spec.", "updateStrategy") else { return };
    let kind = found.one_of(strategy, AT, "type", SetUpdateType::SPELLED);
    let Some(rolling) = found.object(strategy, AT, "rollingUpdate") else { return };
    if kind == ON_DELETE {
        found.deny(format!("{AT}rollingUpdate"), format!("it is not allowed with type {ON_DELETE}; leave it out"));
    }
    if found.share(rolling, ROLLING, "partition").is_some() && rolling.get("partition").is_some_and(Value::is_string) {
        found.warnings.push(format!(
            "{ROLLING}partition: OpenKruise's own clients and controllers read numbers only; write {} as a number of Pods if any of them is used",
            shown(rolling, "partition")
        ));
    }
    max_unavailable(found, rolling, ROLLING, is_parallel);
    let policy = found.one_of(rolling, ROLLING, "podUpdatePolicy", PodUpdatePolicy::SPELLED);
    if [IN_PLACE_IF_POSSIBLE, IN_PLACE_ONLY].contains(&policy) && !has_gate(spec) {
        found.deny(
            format!("{ROLLING}podUpdatePolicy"),
            format!(
                "{policy} needs a readiness gate; want conditionType {} in spec.template.spec.readinessGates",
                labels::CONDITION_INPLACE_UPDATE_READY
            ),
        );
    }
    found.flag(rolling, ROLLING, "paused");
    if let Some(in_place) = found.object(rolling, ROLLING, "inPlaceUpdateStrategy") {
        found.integer(in_place, &format!("{ROLLING}inPlaceUpdateStrategy."), "gracePeriodSeconds", 0);
    }
    let seconds = found.integer(rolling, ROLLING, "minReadySeconds", 0);
    if let Some(seconds) = seconds.filter(|seconds| *seconds > LONGEST_MIN_READY) {
        found.deny(
            format!("{ROLLING}minReadySeconds"),
            format!("{seconds} is not allowed; want 0 to {LONGEST_MIN_READY}"),
        );
    }
    if let Some(unordered) = found.object(rolling, ROLLING, "unorderedUpdate") {
        if !is_parallel {
            found.deny(
                format!("{ROLLING}unorderedUpdate"),
                format!("it is not allowed with podManagementPolicy {ORDERED_READY}; want {PARALLEL}, or leave it out"),
            );
        }
        found.priority_strategy(unordered, &format!("{ROLLING}unorderedUpdate."));
    }
}

fn has_gate(spec: &Object) -> bool {
    let gates = spec.get("template").and_then(|template| template.pointer("/spec/readinessGates")?.as_array());
    gates.into_iter().flatten().any(|gate| gate["conditionType"] == labels::CONDITION_INPLACE_UPDATE_READY)
}

/// A limit that lets at least one Pod be unavailable; with OrderedReady exactly one.
fn max_unavailable(found: &mut Findings, parent: &Object, at: &str, is_parallel: bool) {
    const KEY: &str = "maxUnavailable";
    let Some(limit) = found.share(parent, at, KEY) else { return };
    if limit.resolve(1, Round::Up) < 1 {
        found.deny(format!("{at}{KEY}"), format!("{} is not allowed; want 1 or more", shown(parent, KEY)));
    } else if !is_parallel && parent.get(KEY).is_some_and(|limit| *limit != 1) {
        found.deny(
            format!("{at}{KEY}"),
            format!("{} is not allowed with podManagementPolicy {ORDERED_READY}; want 1", shown(parent, KEY)),
        );
    }
}

fn ordinals(found: &mut Findings, spec: &Object, replicas: i32) {
    let ordinals = found.object(spec, "spec.", "ordinals");
    let start = ordinals.and_then(|ordinals| found.integer(ordinals, "spec.ordinals.", "start", 0)).unwrap_or(0);
    let mut reserved = Vec::new();
    let all = found.list(spec, "spec.", "reserveOrdinals");
    for (i, entry) in all.iter().enumerate() {
        match ordinal_range(entry) {
            Ok(range) => reserved.push(range),
            Err(message) => found.deny(format!("spec.reserveOrdinals[{i}]"), message),
        }
    }
    if replicas > MOST_REPLICAS {
        found.deny("spec.replicas", format!("{replicas} is not allowed; want up to {MOST_REPLICAS}"));
        return;
    }
    let templates = spec.get("volumeClaimTemplates").and_then(Value::as_array).map_or(0, Vec::len);
    if let Some(message) = too_many_claims(replicas, templates) {
        found.deny("spec.volumeClaimTemplates", message);
    }
    let free = free_ordinals(start, &mut reserved);
    if reserved.len() == all.len() && i64::from(replicas) > free {
        found.deny(
            "spec.replicas",
            format!(
                "{replicas} is not allowed; want up to {free}: with ordinals.start and reserveOrdinals no more ordinals up to {} are left",
                i32::MAX
            ),
        );
    }
}

/// How many ordinals there are from `start` on. Ranges are never expanded.
fn free_ordinals(start: i64, reserved: &mut [(i64, i64)]) -> i64 {
    reserved.sort_unstable();
    let (mut free, mut next) = (0, start);
    for (first, last) in reserved.iter().copied() {
        free += (first - next).max(0);
        next = next.max(last + 1);
    }
    free + (i64::from(i32::MAX) + 1 - next).max(0)
}

fn retention(found: &mut Findings, spec: &Object, has_defaults: bool) {
    const AT: &str = "spec.persistentVolumeClaimRetentionPolicy.";
    let Some(policy) = found.object(spec, "spec.", "persistentVolumeClaimRetentionPolicy") else { return };
    for key in ["whenDeleted", "whenScaled"] {
        let value = found.one_of(policy, AT, key, ClaimRetention::SPELLED);
        if value.is_empty() && !has_defaults {
            found.deny(format!("{AT}{key}"), format!("it is missing; want {RETAIN} or {DELETE}"));
        }
    }
}

/// What a gate that is off takes the effect from.
fn without_gates(found: &mut Findings, gates: &FeatureGates, object: &Value) {
    let start = object.pointer("/spec/ordinals/start").and_then(Value::as_i64).unwrap_or(0);
    let strategy = object.pointer("/spec/volumeClaimUpdateStrategy/type").and_then(Value::as_str);
    let deletes = ["whenDeleted", "whenScaled"].iter().any(|key| {
        object
            .pointer(&format!("/spec/persistentVolumeClaimRetentionPolicy/{key}"))
            .is_some_and(|value| value == DELETE)
    });
    for (field, is_set, gate) in [
        ("spec.ordinals.start", start > 0, gate::START_ORDINAL),
        ("spec.volumeClaimUpdateStrategy", strategy == Some(ON_POD_ROLLING_UPDATE), gate::RESIZE_CLAIMS),
        ("spec.persistentVolumeClaimRetentionPolicy", deletes, gate::DELETE_CLAIMS),
    ] {
        if is_set && !gates.enabled(gate) {
            found.warnings.push(format!("{field} has no effect while the feature gate {gate} is off"));
        }
    }
}
