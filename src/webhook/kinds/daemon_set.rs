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
    domain::kinds::daemon_set::spec::{BURST, HISTORY, LIMITS, SURGING, SURGING_LIMITS},
    k8s::{name::Namespace, rbac::Rule},
    webhook::{
        Context,
        server::{
            handler::MatchCondition,
            review::{Admitted, Decision, Denied, Request},
        },
        template::{self, READ_BUDGET, Templates},
        validate::{Findings, Object, drop_empty, is_judged, set_default},
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
pub struct DaemonSetAdmission {
    object: Value,
    /// What is stored now, on UPDATE.
    old: Option<Value>,
    namespace: Namespace,
    found: Findings,
}

/// When an update is judged: its spec or an annotation of ours changes, and the object is not being deleted.
pub fn on_update(_: &FeatureGates) -> Vec<MatchCondition> {
    let annotation = |object: &str, key: &str| format!("{object}.metadata.?annotations[?'{key}'].orValue('')");
    let changes = ANNOTATIONS.map(|key| format!("{} != {}", annotation("object", key), annotation("oldObject", key)));
    let changed = format!("object.spec != oldObject.spec || {}", changes.join(" || "));
    vec![
        MatchCondition { name: "spec-changed", expression: changed },
        MatchCondition { name: "not-being-deleted", expression: "!has(object.metadata.deletionTimestamp)".into() },
    ]
}

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        if !is_judged(&request) {
            return Ok(Admitted::unchanged());
        }
        let admission = check(request)?;
        let templates = admission.templates();
        let asked = template::ask(&context.client, &admission.namespace, &templates);
        let answers = tokio::time::timeout(READ_BUDGET, asked).await.unwrap_or_else(|_| template::Answers::late());
        admit(&admission, &answers)
    })
}

/// Judges what needs no look-up.
///
/// # Errors
/// A field has a type that it cannot have.
pub fn check(request: Request) -> Result<DaemonSetAdmission, Denied> {
    let Request { operation, object, old_object, namespace, .. } = request;
    let is_new = operation == "CREATE";
    let mut found = rules::judge(&object, is_new);
    found.refuse_wrong_types()?;
    let old = (!is_new).then_some(old_object);
    if let Some(old) = &old {
        found.leave_out(&rules::judge(old, false));
        found.warnings.extend(rules::unguarded(old, &object));
    }
    Ok(DaemonSetAdmission { object, old, namespace, found })
}

impl DaemonSetAdmission {
    fn templates(&self) -> Templates<'_> {
        Templates { object: &self.object, old: self.old.as_ref(), defaults: false, in_place_only: None }
    }
}

/// Decides: all fields that are wrong, or the defaults.
///
/// # Errors
/// See there.
pub fn admit(admission: &DaemonSetAdmission, answers: &template::Answers) -> Decision {
    let (object, mut found) = (&admission.object, admission.found.clone());
    let mut wanted = object.clone();
    if is_progression_over(admission.old.as_ref(), object)
        && let Some(annotations) = wanted.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
    {
        annotations.remove(labels::PROGRESSIVE_CREATE);
    }
    let spec = wanted.get_mut("spec").and_then(Value::as_object_mut);
    let Some(spec) = spec else { return Err(Denied::bad_request("spec is missing")) };
    set_defaults(spec);
    admission.templates().judge(answers, spec, &mut found)?;
    found.refuse()?;
    Ok(Admitted { warnings: found.warnings, ..Admitted::changed(object, &wanted) })
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
    let is_surging = rolling.get("rollingUpdateType").is_some_and(|kind| kind == SURGING);
    if is_surging {
        rolling.insert("rollingUpdateType".into(), json!(rules::STANDARD));
    }
    set_default(rolling, "rollingUpdateType", json!(rules::STANDARD));
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
