//! Admission of Advanced DaemonSets: defaults and rules in one call, for v1beta1 and v1alpha1 alike.
//!
//! [`check`] judges the object alone (`rules`), [`admit`] together with what the API server says of the template, by a dry
//! run. [`handle`] asks in between. A template is stored without defaults, as OpenKruise stores it: Pods get those of the API
//! server.
//!
//! CREATE fails closed, UPDATE fails open: what has to hold in any case, that the selector stays, is CEL in the schema. An
//! update is never refused for what it does not change.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::{
    api::{feature_gates::FeatureGates, labels},
    domain::kinds::daemon_set::spec::{BURST, HISTORY, LIMITS, SURGING_LIMITS},
    k8s::rbac::Rule,
    webhook::{
        Context,
        server::{
            handler::{MatchCondition, spec_or_annotations_changed},
            review::{Admitted, Decision, Denied, Request},
        },
        template::{self, READ_BUDGET, Templates},
        validate::{Object, drop_empty, is_judged, set_default},
        workload::Judged,
    },
};

mod rules;

/// What [`handle`] reads.
pub const RBAC: &[Rule] = &[template::RBAC];

/// Annotations that are judged with the spec.
const ANNOTATIONS: [&str; 5] = [
    labels::PROGRESSIVE_CREATE,
    labels::STRICT_MAX_UNAVAILABLE,
    labels::MAX_UNAVAILABLE_PER_TOPOLOGY,
    labels::STAY_AWAY_AFTER_EVICTION,
    labels::IN_PLACE_GRACE_SECONDS,
];

/// A DaemonSet of which every field has the right type.
#[derive(Clone, Debug)]
pub struct DaemonSetAdmission(Judged);

/// When an update is judged: its spec or an annotation of ours changes, and the object is not being deleted.
pub fn on_update(gates: &FeatureGates) -> Vec<MatchCondition> {
    spec_or_annotations_changed(gates, &ANNOTATIONS)
}

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        if !is_judged(&request) {
            return Ok(Admitted::unchanged());
        }
        let admission = check(request)?;
        let templates = admission.templates();
        let asked = template::ask(&context.client, &admission.0.namespace, &templates);
        let answers = tokio::time::timeout(READ_BUDGET, asked).await.unwrap_or_else(|_| template::Answers::late());
        admit(&admission, &answers)
    })
}

/// Judges what needs no look-up.
///
/// # Errors
/// A field has a type that it cannot have.
pub fn check(request: Request) -> Result<DaemonSetAdmission, Denied> {
    let mut judged = Judged::of(request, rules::judge, |old| rules::judge(old, false))?;
    judged.keep_selector("DaemonSet");
    if let Some(old) = &judged.old {
        judged.found.warnings.extend(rules::unguarded(old, &judged.object));
    }
    Ok(DaemonSetAdmission(judged))
}

impl DaemonSetAdmission {
    fn templates(&self) -> Templates<'_> {
        Templates { object: &self.0.object, old: self.0.old.as_ref(), defaults: false, in_place_only: None }
    }
}

/// Decides: all fields that are wrong, or the defaults.
///
/// # Errors
/// See there.
pub fn admit(admission: &DaemonSetAdmission, answers: &template::Answers) -> Decision {
    let Judged { object, old, .. } = &admission.0;
    let mut wanted = object.clone();
    keep_in_step(&mut wanted, old.as_ref());
    admission.0.decide(wanted, |spec, found| {
        set_defaults(spec);
        admission.templates().judge(answers, spec, found)
    })
}

/// Progressive creation is a field in v1beta1 and an annotation in v1alpha1. Both are written, for programs that read one of
/// them alone.
fn keep_in_step(object: &mut Value, old: Option<&Value>) {
    match is_progressive(object, old) {
        None => {}
        Some(true) => {
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                member(metadata, "annotations", |all| all.insert(labels::PROGRESSIVE_CREATE.into(), json!("true")));
            }
            if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
                member(spec, "scaleStrategy", |scale| scale.insert("partitionedScaling".into(), json!(true)));
            }
        }
        Some(false) => {
            if annotation(object) == Some(true)
                && let Some(all) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
            {
                all.remove(labels::PROGRESSIVE_CREATE);
            }
            if field(object) == Some(true)
                && let Some(scale) = object.pointer_mut("/spec/scaleStrategy").and_then(Value::as_object_mut)
            {
                scale.remove("partitionedScaling");
            }
        }
    }
}

fn field(object: &Value) -> Option<bool> {
    object.pointer("/spec/scaleStrategy/partitionedScaling").and_then(Value::as_bool)
}

fn annotation(object: &Value) -> Option<bool> {
    let annotations = object.pointer("/metadata/annotations")?;
    Some(annotations.get(labels::PROGRESSIVE_CREATE)?.as_str()? == "true")
}

/// What is meant: the form that was changed, of two the field. If neither was, the form of the client's API version, in which
/// the API server calls: a v1alpha1 client never sends the field. None: nothing was ever said.
fn is_progressive(object: &Value, old: Option<&Value>) -> Option<bool> {
    let (named, annotated) = (field(object), annotation(object));
    let (named_was, annotated_was) = (old.and_then(field), old.and_then(annotation));
    let (own, own_was, other) = match object.get("apiVersion").and_then(Value::as_str) {
        // A field that has no annotation yet is not seen by this client, and is kept.
        Some(version) if version.ends_with("/v1alpha1") => (annotated, annotated_was, named_was),
        _ => (named, named_was, annotated),
    };
    if named.is_some() && named != named_was {
        return named;
    }
    if annotated.is_some() && annotated != annotated_was {
        return annotated;
    }
    // What was there and was taken away is off.
    own.or(own_was.map(|_| false)).or(other)
}

/// Changes a member that is an object, which is made if there is none.
fn member<T>(object: &mut Object, key: &str, change: impl FnOnce(&mut Object) -> T) {
    let member = object.entry(key).or_insert_with(|| json!({}));
    if member.is_null() {
        *member = json!({});
    }
    if let Some(member) = member.as_object_mut() {
        change(member);
    }
}

/// Everything but the template.
fn set_defaults(spec: &mut Object) {
    set_default(spec, "revisionHistoryLimit", json!(HISTORY));
    set_default(spec, "burstReplicas", json!(BURST));
    set_default(spec, "updateStrategy", json!({}));
    let Some(strategy) = spec.get_mut("updateStrategy").and_then(Value::as_object_mut) else { return };
    drop_empty(strategy, "type");
    set_default(strategy, "type", json!(rules::ROLLING_UPDATE));
    if strategy.get("type").is_none_or(|kind| kind != rules::ROLLING_UPDATE) {
        return;
    }
    set_default(strategy, "rollingUpdate", json!({}));
    let Some(rolling) = strategy.get_mut("rollingUpdate").and_then(Value::as_object_mut) else { return };
    drop_empty(rolling, "rollingUpdateType");
    let is_surging = rolling.get("rollingUpdateType").is_some_and(|kind| kind == rules::SURGING);
    if is_surging {
        rolling.insert("rollingUpdateType".into(), json!(rules::STANDARD));
    }
    set_default(rolling, "rollingUpdateType", json!(rules::STANDARD));
    set_default(rolling, "partition", json!(0));
    let is_given = |key: &str| rolling.get(key).is_some_and(|value| !value.is_null());
    let limits = match is_given("maxUnavailable") || is_given("maxSurge") {
        _ if is_surging => Some(SURGING_LIMITS),
        false => Some(LIMITS),
        true => None,
    };
    if let Some((unavailable, surge)) = limits {
        set_default(rolling, "maxUnavailable", json!(unavailable));
        set_default(rolling, "maxSurge", json!(surge));
    }
}

#[cfg(test)]
mod tests;
