//! The rules of a DaemonSet that need no look-up.

use serde_json::Value;

use crate::{
    api::{
        apps::strategies::{RollingUpdateType, SetUpdateType},
        labels,
    },
    domain::{
        kinds::daemon_set::{
            ports::host_ports,
            spec::{SURGING_LIMITS, excess_of_selector, flag, judge_annotations, nodes_kept_old, per_topology},
        },
        pod::placement,
    },
    k8s::int_or_percent::{IntOrPercent, Round},
    webhook::validate::{Findings, Object, shown},
};

// The values of fields, as requests have them.
pub(super) const ROLLING_UPDATE: &str = SetUpdateType::RollingUpdate.as_str();
const ON_DELETE: &str = SetUpdateType::OnDelete.as_str();
pub(super) const STANDARD: &str = RollingUpdateType::Standard.as_str();
const IN_PLACE_IF_POSSIBLE: &str = RollingUpdateType::InPlaceIfPossible.as_str();
pub(super) const SURGING: &str = RollingUpdateType::Surging.as_str();
const ROLLING: &str = "spec.updateStrategy.rollingUpdate.";

/// From so many nodes on, an update without limits that hold in any case is warned of.
const MANY_NODES: i64 = 20;

/// Judges an object.
pub(super) fn judge(object: &Value, is_new: bool) -> Findings {
    let mut found = Findings::default();
    let none = Object::new();
    let Some(object) = object.as_object() else {
        found.wrong_type("the object", object, "a DaemonSet");
        return found;
    };
    let metadata = found.object(object, "", "metadata").unwrap_or(&none);
    if is_new {
        found.object_name(metadata, None);
    }
    if let Some(annotations) = metadata.get("annotations") {
        let annotations = serde_json::from_value(annotations.clone()).unwrap_or_default();
        for (key, why) in judge_annotations(&annotations) {
            found.deny(format!("metadata.annotations[{key}]"), why);
        }
    }
    let Some(spec) = found.object(object, "", "spec") else {
        found.deny("spec", "it is missing; want at least selector and template");
        return found;
    };
    let selector = found.selector(spec, "spec.", "selector");
    found.pod_template(spec, selector.as_ref(), "DaemonSet");
    if let Some((field, why)) = placement::excess(spec.get("template").unwrap_or(&Value::Null)) {
        found.deny(field, why);
    }
    found.integer(spec, "spec.", "minReadySeconds", 0);
    found.integer(spec, "spec.", "revisionHistoryLimit", 0);
    found.share(spec, "spec.", "burstReplicas");
    found.lifecycle(spec, &["preDelete", "inPlaceUpdate", "preNormal"]);
    if let Some(scale) = found.object(spec, "spec.", "scaleStrategy") {
        found.flag(scale, "spec.scaleStrategy.", "partitionedScaling");
    }
    update_strategy(&mut found, spec);
    found
}

fn update_strategy(found: &mut Findings, spec: &Object) {
    const AT: &str = "spec.updateStrategy.";
    let Some(strategy) = found.object(spec, "spec.", "updateStrategy") else { return };
    let kind = found.one_of(strategy, AT, "type", SetUpdateType::SPELLED);
    let Some(rolling) = found.object(strategy, AT, "rollingUpdate") else { return };
    let way = found.one_of(rolling, ROLLING, "rollingUpdateType", RollingUpdateType::SPELLED);
    let unavailable = found.share_up_to_all(rolling, ROLLING, "maxUnavailable");
    let surge = found.share_up_to_all(rolling, ROLLING, "maxSurge");
    found.share_up_to_all(rolling, ROLLING, "partition");
    found.flag(rolling, ROLLING, "paused");
    let is_set = |key: &str| rolling.get(key).is_some_and(|value| !value.is_null());
    if is_set("selector") {
        found.selector(rolling, ROLLING, "selector");
        let requirements = rolling["selector"]["matchExpressions"].as_array().map_or(0, Vec::len);
        if let Some((field, why)) = excess_of_selector(requirements) {
            found.deny(field, why);
        }
    }
    if kind == ON_DELETE {
        // It says nothing then, and is let in.
        return;
    }
    // It is judged as it is stored.
    let surge = match way == SURGING && !is_set("maxSurge") {
        true => Some(IntOrPercent::Int(SURGING_LIMITS.1)),
        false => surge,
    };
    let is_something = |share: Option<IntOrPercent>| share.is_some_and(|share| share.resolve(1, Round::Up) > 0);
    match (is_something(unavailable), is_something(surge)) {
        (true, true) => found.deny(
            format!("{ROLLING}maxSurge"),
            format!(
                "{} is not allowed while maxUnavailable is {}; want one of them to be 0",
                shown(rolling, "maxSurge"),
                shown(rolling, "maxUnavailable")
            ),
        ),
        // Without Surging, where both are missing one gets a default.
        (false, false) if unavailable.is_some() || surge.is_some() => found.deny(
            format!("{ROLLING}maxUnavailable"),
            "it is 0 while maxSurge is 0 too; want 1 or more of one of them, else no Pod can be updated",
        ),
        _ => {}
    }
    if way == IN_PLACE_IF_POSSIBLE && is_something(surge) {
        found.deny(
            format!("{ROLLING}maxSurge"),
            format!("{} is not allowed with rollingUpdateType {way}; want 0", shown(rolling, "maxSurge")),
        );
    }
    if is_something(surge) && spec.get("template").is_some_and(|template| !host_ports(template).is_empty()) {
        found.warnings.push(format!(
            "{ROLLING}maxSurge: a container has a hostPort, so a new Pod cannot run beside the old one on its node and no Pod is updated; use maxUnavailable"
        ));
    }
}

/// A warning of an update of many nodes without the limit that holds in any case, when it begins or goes on. One for each zone
/// is not enough: it says nothing of all zones together. The other way round it is: not every cluster has zones.
pub(super) fn unguarded(old: &Value, object: &Value) -> Option<String> {
    let nodes = old.pointer("/status/desiredNumberScheduled").and_then(Value::as_i64).unwrap_or(0);
    if nodes <= MANY_NODES || !is_rolling(object) || is_strict(object) {
        return None;
    }
    let what = if old.pointer("/spec/template") != object.pointer("/spec/template") {
        format!("the new template goes to {nodes} nodes")
    } else if goes_on(old, object, nodes) {
        format!("the update of {nodes} nodes goes on")
    } else {
        return None;
    };
    let strict = labels::STRICT_MAX_UNAVAILABLE;
    let what_helps = match per_topology(annotation(object, labels::MAX_UNAVAILABLE_PER_TOPOLOGY)) {
        Ok(Some(_)) => format!("the annotation {strict}: \"true\" keeps that limit in any case"),
        _ => {
            let per_topology = labels::MAX_UNAVAILABLE_PER_TOPOLOGY;
            format!("the annotations {strict}: \"true\" and {per_topology} keep a limit in any case")
        }
    };
    Some(format!("{what}, and Pods that are not available are replaced whatever maxUnavailable says; {what_helps}"))
}

fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.pointer("/metadata/annotations")?.get(key)?.as_str()
}

fn is_strict(object: &Value) -> bool {
    flag(annotation(object, labels::STRICT_MAX_UNAVAILABLE)) == Ok(true)
}

fn is_rolling(object: &Value) -> bool {
    object.pointer("/spec/updateStrategy/type").is_none_or(|kind| kind != ON_DELETE)
}

fn of_rolling<'a>(object: &'a Value, key: &str) -> Option<&'a Value> {
    object.pointer("/spec/updateStrategy/rollingUpdate")?.get(key).filter(|value| !value.is_null())
}

/// Whether an update that had not got everywhere gets to more nodes than before, or without the limit that it had.
fn goes_on(old: &Value, object: &Value, nodes: i64) -> bool {
    let number = |at: &str| old.pointer(at).and_then(Value::as_i64);
    // Of a spec that the status does not know yet nobody can say how far it has got.
    let is_unknown = number("/metadata/generation") > number("/status/observedGeneration");
    let updated = number("/status/updatedNumberScheduled").unwrap_or(0);
    let is_unfinished = is_unknown || updated < nodes;
    let nodes = i32::try_from(nodes).unwrap_or(i32::MAX);
    let kept = |object: &Value| match of_rolling(object, "partition").map(IntOrPercent::parse) {
        Some(Ok(partition)) => nodes_kept_old(partition, nodes),
        Some(Err(_)) | None => 0,
    };
    let is_paused = |object: &Value| of_rolling(object, "paused") == Some(&Value::Bool(true));
    let is_held = |object: &Value| !is_rolling(object) || is_paused(object) || kept(object) >= nodes;
    let selector = of_rolling(old, "selector");
    let is_let_go =
        is_held(old) || kept(object) < kept(old) || selector.is_some() && selector != of_rolling(object, "selector");
    // What the partition keeps does not go on.
    let is_under_way = is_unknown || updated < i64::from(nodes - kept(object));
    is_unfinished && !is_held(object) && (is_strict(old) && is_under_way || is_let_go)
}
