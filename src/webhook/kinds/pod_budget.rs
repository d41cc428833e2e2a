//! Pods that are to be taken out of service: deletion, eviction, update in place, resize. Their budgets decide. When they let
//! a Pod go that is counted in a subset of a WorkloadSpread, that is recorded last.
//!
//! [`disruption`] reads a request (pure); [`Budgets::take`](crate::budgets::Budgets::take) decides and writes the grant down
//! before it is given.
//!
//! Whoever can dial the webhook can invent a Pod, so of the object in a request only name and UID count: the Pod is read
//! from the API server, and its labels and owner decide. A Pod that is not there, or has another UID, needs no consent:
//! the request is allowed and nothing is written. The API server deletes and updates the Pod that it has shown to us, or
//! asks again.
//!
//! [`relate`] notes the budget of a new Pod in its annotation, which is a convenience: whoever decides
//! looks at the budgets themselves.
//!
//! All entries fail open: with every webhook gone, Pods are deleted, evicted and updated as without us, and the manager
//! reports what slipped through. While one answers, what cannot be decided is refused.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use kube::Api;
use serde_json::Value;

use crate::{
    api::{
        feature_gates::FeatureGates,
        labels::{MATCHED_SPREAD, RELATED_PUB, STATIC_POD_MIRROR},
        policy,
    },
    domain::budgets::unavailable::{self as rule, Operation, update},
    k8s::{
        name::{Namespace, ObjectName},
        pod::{PodObject, PodView},
        rbac::Rule,
    },
    runtime::{apply::said, replicas, workload},
    webhook::{
        Context,
        server::{
            consent::consent,
            handler::MatchCondition,
            review::{Admitted, Decision, Denied, Request},
        },
    },
};

/// What a decision reads and writes.
pub const RBAC: &[Rule] = &[
    Rule::new(&[policy::GROUP], &["podunavailablebudgets"], &["get", "list", "watch"]),
    Rule::new(&[policy::GROUP], &["podunavailablebudgets/status"], &["patch"]),
    Rule::new(&[""], &["pods"], &["get", "list"]),
    Rule::new(&[""], &["events"], &["create"]),
    workload::READ_BUILT_IN,
    workload::READ_KRUISE,
    replicas::WATCH_BUILT_IN,
    replicas::WATCH_KRUISE,
];

/// How long the read of a Pod may take. With the decision, less than the API server waits.
const READ_LIMIT: Duration = Duration::from_secs(4);
/// The same where no budget guards, and the Pod is only to be recorded as going.
const READ_LIMIT_UNGUARDED: Duration = Duration::from_millis(500);
/// What a new Pod may wait for the note of its budget.
const RELATE_LIMIT: Duration = Duration::from_secs(1);
/// Removes what is left in a namespace that is going. Nothing brings its Pods back, so no budget would ever let them go.
const NAMESPACE_CONTROLLER: &str = "system:serviceaccount:kube-system:namespace-controller";

/// What a request does to a Pod in service.
#[derive(Clone, Debug, PartialEq)]
pub enum Disruption {
    /// Nothing that a budget guards.
    None,
    /// It takes this Pod out of service.
    Of(Named, Operation),
}

/// A Pod that a request names.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// Its name.
    pub name: ObjectName,
    /// Its UID. None: the request does not show the Pod, as that of an eviction.
    pub uid: Option<String>,
}

/// Which Pod a request takes out of service.
///
/// # Errors
/// It names no Pod.
pub fn disruption(request: &Request) -> Result<Disruption, Denied> {
    let named = |object: &Value, uid: Option<String>| -> Result<Named, Denied> {
        let own = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let name = ObjectName::parse(if request.name.is_empty() { own } else { &request.name });
        let name = name.map_err(|error| Denied::bad_request(format!("metadata.name: {error}")))?;
        match name.is_empty() {
            true => Err(Denied::bad_request("request.name: it is empty; want the name of the Pod")),
            false => Ok(Named { name, uid }),
        }
    };
    let of_old = |operation| {
        let uid = request.old_object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
        Ok(Disruption::Of(named(&request.old_object, Some(uid.to_owned()))?, operation))
    };
    match (request.operation.as_str(), request.sub_resource.as_str()) {
        ("DELETE", "") if request.user_info.username == NAMESPACE_CONTROLLER => Ok(Disruption::None),
        // An old API server may not show what it deletes.
        ("DELETE", "") if !request.old_object.is_object() => Ok(Disruption::None),
        ("DELETE", "") => of_old(Operation::Delete),
        ("UPDATE", "" | "resize") => match update::operation_of(&request.old_object, &request.object) {
            Some(operation) => of_old(operation),
            None => Ok(Disruption::None),
        },
        ("CREATE", "eviction") => Ok(Disruption::Of(named(&request.object, None)?, Operation::Evict)),
        _ => Ok(Disruption::None),
    }
}

/// Whether nothing is to happen in the end. An eviction may say so in its body.
pub fn is_dry_run(request: &Request) -> bool {
    let of_body = request.object.pointer("/deleteOptions/dryRun").and_then(Value::as_array);
    request.dry_run || of_body.is_some_and(|stages| stages.iter().any(|stage| stage == "All"))
}

/// Answers the API server.
pub fn handle(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        let Disruption::Of(named, operation) = disruption(&request)? else { return Ok(Admitted::unchanged()) };
        let budgets = &context.budgets;
        let nothing_guards = budgets.is_known() && !budgets.guards(&request.namespace);
        let is_free = nothing_guards || !operation.is_guarded(&context.gates);
        let goes = matches!(operation, Operation::Delete | Operation::Evict) && !is_dry_run(&request);
        let is_counted = goes && context.spreads.counts(&request.namespace);
        if is_free && !(is_counted && may_be_in_subset(&request, operation)) {
            return Ok(Admitted::unchanged());
        }
        let limit = if is_free { READ_LIMIT_UNGUARDED } else { READ_LIMIT };
        let pod = match tokio::time::timeout(limit, read(&context, &request.namespace, &named)).await {
            Ok(Ok(Some(pod))) => pod,
            Ok(Ok(None)) => return Ok(Admitted::unchanged()),
            // It is only to be recorded; the manager counts anew in any case.
            _ if is_free => return Ok(Admitted::unchanged()),
            Ok(Err(error)) => return Err(unreadable(operation, &named, &said(&error))),
            Err(_) => {
                return Err(unreadable(operation, &named, &format!("no answer within {} s", limit.as_secs())));
            }
        };
        let decision = match is_free {
            true => Ok(Admitted::unchanged()),
            false => consent(&context, &pod, operation, is_dry_run(&request)).await,
        };
        if is_counted && decision.is_ok() {
            context.spreads.deleted(&pod).await;
        }
        decision
    })
}

/// Whether the Pod may have the note of a subset. An eviction does not show it.
fn may_be_in_subset(request: &Request, operation: Operation) -> bool {
    let annotations = request.old_object.pointer("/metadata/annotations");
    operation == Operation::Evict || annotations.and_then(|all| all.get(MATCHED_SPREAD)).is_some()
}

/// The Pod as it is now, before the request. None: it is not there, or is another one.
async fn read(context: &Context, namespace: &Namespace, named: &Named) -> kube::Result<Option<PodView>> {
    let api: Api<PodObject> = Api::namespaced(context.client.clone(), namespace);
    let pod = api.get_opt(&named.name).await?.map(PodView::from);
    Ok(pod.filter(|pod| named.uid.as_ref().is_none_or(|uid| uid == pod.uid())))
}

fn unreadable(operation: Operation, named: &Named, why: &str) -> Denied {
    let message = format!("Pod {:?} could not be read: {why}", named.name);
    match operation {
        // As a PodDisruptionBudget answers: kubectl drain tries again.
        Operation::Evict => Denied::too_many_requests(message),
        _ => Denied::internal(message),
    }
}

/// Notes the budget of a new Pod. Whatever happens, the Pod is let through.
pub fn relate(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        if request.operation != "CREATE" || !request.sub_resource.is_empty() {
            return Ok(Admitted::unchanged());
        }
        let Ok(mut pod) = rule::pod_of(&request.object) else { return Ok(Admitted::unchanged()) };
        pod.set_namespace(&request.namespace);
        let covering = tokio::time::timeout(RELATE_LIMIT, context.budgets.covering(&pod)).await;
        let names: Vec<String> = match covering {
            Ok(Ok(budgets)) => budgets.iter().filter_map(|budget| budget.metadata.name.clone()).collect(),
            Ok(Err(error)) => {
                tracing::warn!(namespace = %request.namespace, %error, "the budget of a new Pod is not noted");
                return Ok(Admitted::unchanged());
            }
            Err(_) => return Ok(Admitted::unchanged()),
        };
        Ok(related(&request.object, pod.related_pub.as_deref(), &names))
    })
}

/// The Pod with the first of its budgets noted, unless it names one of them already.
fn related(pod: &Value, noted: Option<&str>, names: &[String]) -> Admitted {
    let Some(first) = names.first().filter(|_| noted.is_none_or(|noted| names.iter().all(|name| name != noted))) else {
        return Admitted::unchanged();
    };
    let mut wanted = pod.clone();
    if !wanted["metadata"].is_object() {
        return Admitted::unchanged();
    }
    if !wanted["metadata"]["annotations"].is_object() {
        wanted["metadata"]["annotations"] = Value::Object(serde_json::Map::new());
    }
    wanted["metadata"]["annotations"][RELATED_PUB] = first.as_str().into();
    Admitted::changed(pod, &wanted)
}

/// Deletions that need us: not of a Pod that is being deleted already (kubelet's last word), nor of a static Pod's mirror.
pub fn on_delete(_: &FeatureGates) -> Vec<MatchCondition> {
    vec![
        MatchCondition { name: "not-being-deleted", expression: "!has(oldObject.metadata.deletionTimestamp)".into() },
        MatchCondition {
            name: "not-a-mirror",
            expression: format!(
                "!has(oldObject.metadata.annotations) || !('{STATIC_POD_MIRROR}' in oldObject.metadata.annotations)"
            ),
        },
    ]
}

/// Updates that need us: those that change the spec or the labels. Whoever takes a finalizer away has to get through.
pub fn on_update(_: &FeatureGates) -> Vec<MatchCondition> {
    let labels = |object: &str| format!("(has({object}.metadata.labels) ? {object}.metadata.labels : {{}})");
    vec![
        MatchCondition { name: "not-being-deleted", expression: "!has(object.metadata.deletionTimestamp)".into() },
        MatchCondition {
            name: "changed",
            expression: format!("object.spec != oldObject.spec || {} != {}", labels("object"), labels("oldObject")),
        },
    ]
}

#[cfg(test)]
mod tests;
