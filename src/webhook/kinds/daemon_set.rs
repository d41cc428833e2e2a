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
const ANNOTATIONS: [&str; 4] = [
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
    if is_progression_over(old.as_ref(), object)
        && let Some(annotations) = wanted.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
    {
        annotations.remove(labels::PROGRESSIVE_CREATE);
    }
    admission.0.decide(wanted, |spec, found| {
        set_defaults(spec);
        admission.templates().judge(answers, spec, found)
    })
}

/// Whether the annotation of v1alpha1 is left over: the field that says the same has been switched off.
fn is_progression_over(old: Option<&Value>, object: &Value) -> bool {
    let field = |object: &Value| object.pointer("/spec/scaleStrategy/partitionedScaling").and_then(Value::as_bool);
    let annotation = |object: &Value| {
        let annotations = object.pointer("/metadata/annotations");
        annotations.and_then(|all| all.get(labels::PROGRESSIVE_CREATE)).cloned()
    };
    let was_on = |old: &Value| field(old) == Some(true) && annotation(old) == annotation(object);
    annotation(object).is_some_and(|text| text == "true")
        && match field(object) {
            Some(is_on) => !is_on,
            None => old.is_some_and(was_on),
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
