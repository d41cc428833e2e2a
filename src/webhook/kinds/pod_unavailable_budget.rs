//! Admission of PodUnavailableBudgets: their annotations, their selectors, and others for the same Pods. The rest is CEL in the
//! schema.
//!
//! CREATE fails closed, UPDATE fails open and lets every change of an object through that is being deleted.

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{Api, api::ListParams};
use serde_json::Value;

use crate::{
    api::{
        feature_gates::{FeatureGates, gate},
        labels::{PUB_PROTECT_OPERATIONS, PUB_PROTECT_TOTAL_REPLICAS},
        policy::pod_unavailable_budget::PodUnavailableBudget,
    },
    domain::budgets::unavailable::{WORDS, overlap::overlap},
    k8s::{invalid::InvalidField, selector},
    runtime::apply::said,
    webhook::{
        Context,
        server::{
            review::{Admitted, Cause, Decision, Denied, Request},
            scope,
        },
        validate::is_judged,
    },
};

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        if !is_judged(&request) {
            return Ok(Admitted::unchanged());
        }
        let is_new = request.operation == "CREATE";
        check(&context.gates, &request.object, (!is_new).then_some(&request.old_object))?;
        if !is_new {
            // What it covers cannot be changed.
            return Ok(Admitted { warnings: warnings(&context.gates, &request.object), ..Admitted::default() });
        }
        let api: Api<PodUnavailableBudget> = Api::namespaced(context.client.clone(), &request.namespace);
        let others = api.list(&ListParams::default()).await.map_err(|error| {
            let why = said(&error);
            Denied::internal(format!("the other PodUnavailableBudgets of the namespace could not be read: {why}"))
        })?;
        compare(&request.object, &request.name, &others.items)?;
        if !request.dry_run && !scope::is_never_listed(&request.namespace, &context.namespace) {
            // From the moment it is stored, deletions of its Pods have to be asked about.
            context.for_budgets.announce([request.namespace.to_string()].into()).await;
        }
        Ok(Admitted { warnings: warnings(&context.gates, &request.object), ..Admitted::default() })
    })
}

fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.pointer("/metadata/annotations")?.get(key)?.as_str()
}

/// Judges a budget by itself. An update is not refused for what it does not change.
///
/// # Errors
/// An annotation or the selector has a value that it cannot have, or budgets are switched off.
pub fn check(gates: &FeatureGates, object: &Value, old: Option<&Value>) -> Result<(), Denied> {
    if !gates.enabled(gate::BUDGETS_GUARD_DELETION) && !gates.enabled(gate::BUDGETS_GUARD_UPDATES) && old.is_none() {
        return Err(Denied::bad_request(format!(
            "PodUnavailableBudgets are switched off: the feature gates {} and {} are both off",
            gate::BUDGETS_GUARD_DELETION,
            gate::BUDGETS_GUARD_UPDATES
        )));
    }
    let mut causes = Vec::new();
    let changed =
        |key: &str| annotation(object, key).filter(|now| old.and_then(|old| annotation(old, key)) != Some(*now));
    if let Some(text) = changed(PUB_PROTECT_OPERATIONS) {
        for word in text.split(',').filter(|word| !WORDS.contains(word)) {
            causes.push(Cause {
                field: format!("metadata.annotations[{PUB_PROTECT_OPERATIONS}]"),
                message: format!(
                    "{word:?} is not allowed; want some of {}, with commas and without blanks between them",
                    WORDS.join(", ")
                ),
            });
        }
    }
    if let Some(text) = changed(PUB_PROTECT_TOTAL_REPLICAS)
        && text.parse::<i32>().ok().is_none_or(|total| total < 0)
    {
        causes.push(Cause {
            field: format!("metadata.annotations[{PUB_PROTECT_TOTAL_REPLICAS}]"),
            message: format!("{text:?} is not allowed; want a whole number from 0 on"),
        });
    }
    // It cannot be changed: what is wrong with the selector of a stored budget has to stay.
    if old.is_none()
        && let Some(given) = object.pointer("/spec/selector").filter(|given| !given.is_null())
        && let Ok(given) = serde_json::from_value::<LabelSelector>(given.clone())
    {
        // The definition refuses an empty one.
        let problems = selector::term_problems(&given, "spec.selector");
        causes.extend(problems.into_iter().map(|InvalidField { field, why }| Cause { field, message: why }));
    }
    if causes.is_empty() { Ok(()) } else { Err(Denied::invalid(causes)) }
}

/// Judges a new budget beside the others of its namespace.
///
/// # Errors
/// Another one is for the same workload, or its selector overlaps.
pub fn compare(object: &Value, name: &str, others: &[PodUnavailableBudget]) -> Result<(), Denied> {
    let budget: PodUnavailableBudget = serde_json::from_value(object.clone())
        .map_err(|error| Denied::bad_request(format!("not a PodUnavailableBudget: {error}")))?;
    let mut causes = Vec::new();
    for other in others.iter().filter(|other| other.metadata.deletion_timestamp.is_none()) {
        let other_name = other.metadata.name.as_deref().unwrap_or_default();
        if other_name == name {
            continue;
        }
        if let (Some(own), Some(theirs)) = (&budget.spec.target_ref, &other.spec.target_ref)
            && (own.group(), &own.kind, &own.name) == (theirs.group(), &theirs.kind, &theirs.name)
        {
            causes.push(Cause {
                field: "spec.targetRef".into(),
                message: format!(
                    "{} {:?} has PodUnavailableBudget {other_name:?} already; a workload can have one",
                    own.kind, own.name
                ),
            });
        }
        if let (Some(own), Some(theirs)) = (&budget.spec.selector, &other.spec.selector)
            && other.spec.target_ref.is_none()
            && overlap(own, theirs)
        {
            causes.push(Cause {
                field: "spec.selector".into(),
                message: format!(
                    "PodUnavailableBudget {other_name:?} selects the same Pods; want selectors that do not overlap"
                ),
            });
        }
    }
    if causes.is_empty() { Ok(()) } else { Err(Denied::invalid(causes)) }
}

/// What a user should know.
fn warnings(gates: &FeatureGates, object: &Value) -> Vec<String> {
    let asked = annotation(object, PUB_PROTECT_OPERATIONS).unwrap_or_default();
    let mut warnings = Vec::new();
    for (words, gate, what) in [
        (&["DELETE", "EVICT"][..], gate::BUDGETS_GUARD_DELETION, "deletion and eviction"),
        (&["UPDATE", "RESIZE"][..], gate::BUDGETS_GUARD_UPDATES, "updates, resizes and container restarts"),
    ] {
        if asked.split(',').any(|word| words.contains(&word)) && !gates.enabled(gate) {
            warnings.push(format!("metadata.annotations[{PUB_PROTECT_OPERATIONS}]: {what} are not protected: the feature gate {gate} is off"));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn budget(annotations: Value, spec: Value) -> Value {
        json!({"apiVersion": "policy.kruise.io/v1alpha1", "kind": "PodUnavailableBudget",
            "metadata": {"name": "b", "annotations": annotations}, "spec": spec})
    }

    fn causes(result: Result<(), Denied>) -> Vec<String> {
        result.err().map(|denied| denied.causes.into_iter().map(|cause| cause.message).collect()).unwrap_or_default()
    }

    #[test]
    fn annotations_are_judged_and_named() {
        let gates = FeatureGates::default();
        for (annotations, want) in [
            (json!({}), 0),
            (json!({"kruise.io/pub-protect-operations": "DELETE,EVICT,UPDATE,RESIZE"}), 0),
            (json!({"kruise.io/pub-protect-operations": ""}), 1),
            (json!({"kruise.io/pub-protect-operations": "DELETE, EVICT"}), 1),
            (json!({"kruise.io/pub-protect-operations": "delete,MOVE"}), 2),
            (json!({"pub.kruise.io/protect-total-replicas": "10"}), 0),
            (json!({"pub.kruise.io/protect-total-replicas": "ten"}), 1),
            (json!({"pub.kruise.io/protect-total-replicas": "-1"}), 1),
        ] {
            let object = budget(annotations, json!({}));
            assert_eq!(causes(check(&gates, &object, None)).len(), want, "{object}");
            assert_eq!(causes(check(&gates, &object, Some(&object))).len(), 0, "what is stored may stay");
        }
    }

    #[test]
    fn a_new_budget_with_a_selector_that_is_not_allowed_is_refused_and_a_stored_one_stays() {
        let gates = FeatureGates::default();
        let with = |selector: Value| budget(json!({}), json!({"selector": selector, "maxUnavailable": 1}));
        let term = |operator: &str, values: Value| {
            let expression = json!({"key": "app", "operator": operator, "values": values});
            json!({ "matchExpressions": [expression] })
        };
        for (selector, field) in [
            (term("In", json!([])), "spec.selector.matchExpressions[0].values"),
            (term("Exists", json!(["web"])), "spec.selector.matchExpressions[0].values"),
            (term("Near", json!(["web"])), "spec.selector.matchExpressions[0].operator"),
            (json!({"matchLabels": {"a b": "c"}}), "spec.selector.matchLabels[a b]"),
            (json!({"matchLabels": {"app": "no value"}}), "spec.selector.matchLabels[app]"),
        ] {
            let denied = check(&gates, &with(selector.clone()), None).unwrap_err();
            assert_eq!((denied.code, denied.causes[0].field.as_str()), (422, field), "{selector}");
            check(&gates, &with(selector.clone()), Some(&with(selector))).unwrap();
        }
        check(&gates, &with(term("NotIn", json!(["web"]))), None).unwrap();
        check(&gates, &with(Value::Null), None).unwrap();
    }

    #[test]
    fn with_both_gates_off_a_new_budget_is_refused_by_their_names() {
        let off = FeatureGates::parse(&["PodUnavailableBudgetDeleteGate=false"], None).unwrap();
        let object = budget(json!({}), json!({}));
        let denied = check(&off, &object, None).unwrap_err();
        assert!(denied.code == 400 && denied.message.contains("PodUnavailableBudgetUpdateGate"), "{denied:?}");
        check(&off, &object, Some(&object)).unwrap();
    }

    #[test]
    fn a_workload_has_one_budget_and_selectors_do_not_overlap() {
        let target = |version: &str| json!({"targetRef": {"apiVersion": version, "kind": "CloneSet", "name": "web"}});
        let labels = |app: &str| json!({"selector": {"matchLabels": {"app": app}}});
        for (own, other, want) in [
            (target("apps.kruise.io/v1alpha1"), target("apps.kruise.io/v1beta1"), 1),
            (target("apps.kruise.io/v1alpha1"), target("apps/v1"), 0),
            (labels("web"), labels("web"), 1),
            (labels("web"), labels("db"), 0),
            (labels("web"), target("apps/v1"), 0),
        ] {
            let mut object = budget(json!({}), other);
            object["metadata"]["name"] = "other".into();
            let other: PodUnavailableBudget = serde_json::from_value(object).unwrap();
            let result = causes(compare(&budget(json!({}), own.clone()), "b", std::slice::from_ref(&other)));
            assert_eq!(result.len(), want, "{own}: {result:?}");
        }
    }

    #[test]
    fn what_is_asked_for_in_vain_is_warned_of() {
        let object = budget(json!({"kruise.io/pub-protect-operations": "DELETE,UPDATE"}), json!({}));
        let warnings = warnings(&FeatureGates::default(), &object);
        assert!(warnings.len() == 1 && warnings[0].contains("PodUnavailableBudgetUpdateGate"), "{warnings:?}");
    }
}
