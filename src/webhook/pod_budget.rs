//! Pods that are to be taken out of service: deletion, eviction, update in place, resize. Their budgets decide.
//!
//! [`wish`] reads a request (pure); [`Budgets::take`](crate::budgets::Budgets::take) decides and writes the grant down
//! before it is given. [`relate`] notes the budget of a new Pod in its annotation, which is a convenience: whoever decides
//! looks at the budgets themselves.
//!
//! All entries fail open: with every webhook gone, Pods are deleted, evicted and updated as without us, and the manager
//! tells what slipped through. While one answers, what cannot be decided is refused.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use kube::Api;
use serde_json::Value;

use crate::{
    api::{
        feature_gates::FeatureGates,
        labels::{RELATED_PUB, STATIC_POD_MIRROR},
        policy,
    },
    budgets::Refusal,
    domain::unavailable_budget::{self as rule, Operation, update},
    k8s::{pod::PodView, rbac::Rule},
    runtime::{events, replicas, workload},
    webhook::{
        Context, MatchCondition,
        review::{Admitted, Decision, Denied, Request},
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

/// What a new Pod may wait for the note of its budget.
const RELATE_LIMIT: Duration = Duration::from_secs(1);
/// Removes what is left in a namespace that is going. Nothing brings its Pods back, so no budget would ever let them go.
const NAMESPACE_CONTROLLER: &str = "system:serviceaccount:kube-system:namespace-controller";

/// What a request wants of a Pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Wish {
    /// Nothing that a budget guards.
    Harmless,
    /// To take this Pod out of service.
    Pod(Box<PodView>, Operation),
    /// To evict the Pod of this name, which the request does not show.
    Evict(String),
}

/// Reads a request.
///
/// # Errors
/// What should be a Pod is none.
pub fn wish(request: &Request) -> Result<Wish, Denied> {
    let of = |object: &Value, operation| {
        let mut pod = rule::pod_of(object).map_err(Denied::bad_request)?;
        if pod.namespace().is_empty() {
            pod.metadata.namespace = Some(request.namespace.clone());
        }
        Ok(Wish::Pod(Box::new(pod), operation))
    };
    match (request.operation.as_str(), request.sub_resource.as_str()) {
        ("DELETE", "") if request.user_info.username == NAMESPACE_CONTROLLER => Ok(Wish::Harmless),
        // An old API server may not show what it deletes.
        ("DELETE", "") if !request.old_object.is_object() => Ok(Wish::Harmless),
        ("DELETE", "") => of(&request.old_object, Operation::Delete),
        ("UPDATE", "" | "resize") => match update::operation_of(&request.old_object, &request.object) {
            // As it was before: what the update itself says about its protection does not count.
            Some(operation) => of(&request.old_object, operation),
            None => Ok(Wish::Harmless),
        },
        ("CREATE", "eviction") => {
            let own = request.object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            Ok(Wish::Evict(if request.name.is_empty() { own } else { &request.name }.to_owned()))
        }
        _ => Ok(Wish::Harmless),
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
        let dry_run = is_dry_run(&request);
        let (pod, operation) = match wish(&request)? {
            Wish::Harmless => return Ok(Admitted::unchanged()),
            Wish::Pod(pod, operation) => (*pod, operation),
            Wish::Evict(name) => {
                let api: Api<PodView> = Api::namespaced(context.client.clone(), &request.namespace);
                match api.get_opt(&name).await {
                    Ok(Some(pod)) => (pod, Operation::Evict),
                    Ok(None) => return Ok(Admitted::unchanged()),
                    Err(error) => {
                        return Err(Denied::too_many_requests(format!("Pod {name:?} could not be read: {error}")));
                    }
                }
            }
        };
        consent(&context, &pod, operation, dry_run).await
    })
}

/// Asks the budgets of a Pod.
///
/// # Errors
/// It has to stay in service.
pub async fn consent(context: &Context, pod: &PodView, operation: Operation, dry_run: bool) -> Decision {
    let Err(refusal) = context.budgets.take(pod, operation, dry_run).await else { return Ok(Admitted::unchanged()) };
    let message = refusal.message();
    if !dry_run {
        let word = operation.label();
        context.events.warning(
            &events::reference(pod),
            "PubPreventPodDeletion",
            &format!("{word} was refused: {message}"),
        );
    }
    Err(match (operation, refusal) {
        // As a PodDisruptionBudget answers: kubectl drain tries again.
        (Operation::Evict, _) => Denied::too_many_requests(message),
        (_, Refusal::Budget { .. }) => Denied::forbidden(message),
        (_, Refusal::Undecided(_)) => Denied::internal(message),
    })
}

/// Notes the budget of a new Pod. Whatever happens, the Pod is let through.
pub fn relate(context: Arc<Context>, request: Request) -> BoxFuture<'static, Decision> {
    Box::pin(async move {
        if request.operation != "CREATE" || !request.sub_resource.is_empty() {
            return Ok(Admitted::unchanged());
        }
        let Ok(mut pod) = rule::pod_of(&request.object) else { return Ok(Admitted::unchanged()) };
        pod.metadata.namespace = Some(request.namespace.clone());
        let covering = tokio::time::timeout(RELATE_LIMIT, context.budgets.covering(&pod)).await;
        let names: Vec<String> = match covering {
            Ok(Ok(budgets)) => budgets.iter().filter_map(|budget| budget.metadata.name.clone()).collect(),
            Ok(Err(error)) => {
                tracing::warn!(namespace = request.namespace, %error, "the budget of a new Pod is not noted");
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
