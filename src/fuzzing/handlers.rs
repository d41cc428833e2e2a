//! Reviews on their whole way: through the routes of the webhook, up to the requests that handlers send. Behind them
//! stands an API server that remembers what it was asked; afterwards every request is judged.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{body::Body as HttpBody, http};
use http_body_util::BodyExt;
use k8s_openapi::ByteString;
use kube::client::Body;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    api::{apps, feature_gates::FeatureGates, kinds::KINDS, policy},
    k8s::{path, rbac::Rule},
    runtime::{clock, lock},
    webhook::{
        Context, HANDLERS,
        kinds::pod_budget,
        server::{
            Shared,
            handler::{Handler, Level, Operation},
            metrics::Metrics,
            review::Review,
            router,
        },
    },
};

const OWN_NAMESPACE: &str = "kruise-system";
/// The longest that a call may take when the API server answers at once: as long as it waits.
const LIMIT: Duration = Duration::from_secs(10);

/// One request to the API server.
#[derive(Clone, Debug)]
struct Asked {
    method: http::Method,
    path: String,
    query: String,
}

/// What the API server answers. There are no budgets, so no consent has to be written; every Pod and Node that is asked
/// for is there.
fn answer(asked: &Asked, body: &[u8]) -> (u16, Value) {
    let missing = json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "no"});
    let segments: Vec<&str> = asked.path.split('/').skip(1).collect();
    match (asked.method.as_str(), segments.as_slice()) {
        ("GET", ["api", "v1", "namespaces", namespace, "pods", name]) => (
            200,
            json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": name, "namespace": namespace, "uid": "u1", "labels": {"app": "web"}},
                "spec": {"nodeName": "n1", "restartPolicy": "Always", "containers": [{"name": "main"}, {"name": "side"}]},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [
                    {"name": "main", "containerID": "containerd://c1", "restartCount": 2},
                    {"name": "side", "containerID": "containerd://c2", "restartCount": 0}]}}),
        ),
        ("GET", ["api", "v1", "nodes", name]) => (200, json!({"metadata": {"name": name}})),
        ("GET", ["api", "v1", "namespaces", _, _] | ["apis", _, _, "namespaces", _, _] | ["apis", _, _, _]) => {
            (200, json!({"metadata": {"resourceVersion": "1"}, "items": []}))
        }
        ("POST", [.., "podtemplates" | "jobs"]) => (201, serde_json::from_slice(body).unwrap_or_default()),
        _ => (404, missing),
    }
}

fn client(asked: &Arc<Mutex<Vec<Asked>>>) -> kube::Client {
    let asked = asked.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let asked = asked.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            let (path, query) = (parts.uri.path().to_owned(), parts.uri.query().unwrap_or_default().to_owned());
            let request = Asked { method: parts.method, path, query };
            let (code, object) = answer(&request, &body);
            lock(&asked).push(request);
            let mut response = http::Response::new(Body::from(object.to_string().into_bytes()));
            *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
            Ok::<_, Infallible>(response)
        }
    });
    kube::Client::new(service, "default")
}

/// Sends any bytes to every path of the webhook. Gives what the API server was asked, as text, in order.
///
/// # Panics
/// A handler has asked for something that it must not.
pub(super) fn through_handlers(data: &[u8]) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let Ok(runtime) = runtime else { return Vec::new() };
    let review = Review::decode(data).ok();
    runtime.block_on(async {
        let mut all = Vec::new();
        for handler in HANDLERS.iter() {
            // Handlers of other resources refuse the review; those are enough, and one that is no review, for all.
            let is_its = review.as_ref().is_none_or(|review| {
                let plural = handler.target.resource.split('/').next();
                plural == Some(&review.request.resource.resource) || handler.name == HANDLERS[0].name
            });
            if is_its {
                all.extend(through(handler, review.as_ref(), data).await.1);
            }
        }
        all
    })
}

/// Sends an object of a kind of ours to its webhooks; one of another kind, to those of all kinds. Gives the names of those
/// that have answered.
///
/// # Panics
/// A handler has asked for something that it must not, has answered with a patch that cannot be applied, or took too long.
pub(super) fn through_admission(data: &[u8]) -> Vec<&'static str> {
    let Ok(case) = serde_json::from_slice::<Value>(data) else { return Vec::new() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let Ok(runtime) = runtime else { return Vec::new() };
    let plural = KINDS.iter().find(|kind| kind.definition.is_some() && case["new"]["kind"] == kind.kind);
    let plural = plural.map(|kind| kind.plural);
    let is_ours = |handler: &&Handler| [apps::GROUP, policy::GROUP].contains(&handler.target.group);
    let is_its = |handler: &&Handler| plural.is_none_or(|plural| plural == handler.target.resource);
    let mut answered = Vec::new();
    for handler in HANDLERS.iter().filter(is_ours).filter(is_its) {
        let body = review_of(handler, &case).to_string().into_bytes();
        let Ok(review) = Review::decode(&body) else { continue };
        let before = clock::now().mono;
        let (answer, _) = runtime.block_on(through(handler, Some(&review), &body));
        let took = clock::now().mono.saturating_sub(before);
        assert!(took < LIMIT, "{}: {took:?}", handler.name);
        if answer["response"]["allowed"].is_boolean() {
            answered.push(handler.name);
        }
    }
    answered
}

/// The review for a webhook, in a dry run: nothing is to be kept of it.
fn review_of(handler: &Handler, case: &Value) -> Value {
    let target = &handler.target;
    let (operation, old) = match target.operation {
        Operation::Create => ("CREATE", &Value::Null),
        Operation::Update => ("UPDATE", &case["old"]),
        Operation::Delete => ("DELETE", &case["old"]),
    };
    // The API server names the object as it names itself; one of another name is refused before anything of it is looked at.
    let of = |pointer: &str, usual| case["new"].pointer(pointer).and_then(Value::as_str).unwrap_or(usual);
    let name = of("/metadata/name", "web");
    let namespace = if target.level == Level::Cluster { "" } else { of("/metadata/namespace", "a") };
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "operation": operation,
        "subResource": "", "namespace": namespace, "name": name, "dryRun": true, "userInfo": {"username": "somebody"},
        "resource": {"group": target.group, "version": target.versions[0], "resource": target.resource},
        "object": case["new"], "oldObject": old}})
}

/// The answer, and what the API server was asked.
async fn through(handler: &Handler, review: Option<&Review>, data: &[u8]) -> (Value, Vec<String>) {
    let asked = Arc::default();
    let gates = FeatureGates::all_on();
    let context = Context::new(gates, client(&asked), OWN_NAMESPACE.into(), Default::default()).0;
    // Nobody lists them here: a new Pod would wait a second for them.
    context.sidecars.know_of_none();
    context.pod_states.know_of_none();
    context.spreads.know_of_none();
    let (_stop, shutdown) = tokio::sync::watch::channel(false);
    let shared = Shared::new(Arc::new(context), Metrics::default(), shutdown);
    let request = http::Request::post(handler.paths[0])
        .header("content-type", "application/json")
        .header("content-length", data.len())
        .body(HttpBody::from(data.to_vec()));
    let Ok(request) = request else { return (Value::Null, Vec::new()) };
    let Ok(response) = router(&shared).oneshot(request).await;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    assert!([200, 400].contains(&code), "{}: {code}", handler.name);
    let answer: Value = if code == 200 { serde_json::from_slice(&body).unwrap_or_default() } else { Value::Null };
    if code == 200 {
        assert!(answer["response"]["allowed"].is_boolean(), "{}: {answer}", handler.name);
    }
    if let Some(review) = review {
        apply(&answer["response"]["patch"], &review.request.object, handler.name);
    }
    let asked = lock(&asked).clone();
    assert!(review.is_some() || asked.is_empty(), "{}: no review, and {asked:?}", handler.name);
    for request in &asked {
        if let Some(review) = review
            && let Err(why) = judge(handler, review, request)
        {
            panic!("{}: {why}: {request:?}", handler.name);
        }
    }
    (answer, asked.iter().map(|Asked { method, path, query }| format!("{method} {path}?{query}")).collect())
}

/// Applies a patch as the API server does.
fn apply(patch: &Value, object: &Value, name: &str) {
    if patch.is_null() {
        return;
    }
    let Ok(text) = serde_json::from_value::<ByteString>(patch.clone()) else { return };
    let patch: Result<json_patch::Patch, _> = serde_json::from_slice(&text.0);
    let applied = patch.map(|patch| json_patch::patch(&mut object.clone(), &patch).is_ok());
    assert!(matches!(applied, Ok(true)), "{name}: the API server cannot apply the patch: {applied:?}");
}

/// Whether a handler may send a request for a review: no write but a dry run, only what its own rules name, and only in
/// the namespace of the review.
fn judge(handler: &Handler, review: &Review, asked: &Asked) -> Result<(), String> {
    path::check(&asked.path, Some(&asked.query)).map_err(|error| error.to_string())?;
    let segments: Vec<&str> = asked.path.split('/').skip(1).collect();
    // What a group serves everybody may ask.
    if asked.method == http::Method::GET && matches!(segments.as_slice(), ["apis", _, _] | ["api", _]) {
        return Ok(());
    }
    let (group, rest) = match segments.as_slice() {
        ["api", "v1", rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => return Err("another part of the API".into()),
    };
    let (namespace, plural, name) = match rest {
        ["namespaces", namespace, plural] => (Some(*namespace), *plural, None),
        ["namespaces", namespace, plural, name] => (Some(*namespace), *plural, Some(*name)),
        [plural] => (None, *plural, None),
        [plural, name] => (None, *plural, Some(*name)),
        _ => return Err("neither a collection nor an object".into()),
    };
    let verb = match (asked.method.as_str(), name) {
        ("GET", Some(_)) => "get",
        ("GET", None) => "list",
        ("POST", None) if asked.query.split('&').any(|pair| pair == "dryRun=All") => "create",
        _ => return Err("a write".into()),
    };
    let request = &review.request;
    let grants =
        |rule: &Rule| rule.groups.contains(&group) && rule.resources.contains(&plural) && rule.verbs.contains(&verb);
    // Those of a custom resource are the administrator's to grant: the ones that the definition names.
    let names = &request.old_object["spec"];
    let is_counted = handler.target.resource == "customresourcedefinitions"
        && (names["group"].as_str(), names["names"]["plural"].as_str()) == (Some(group), Some(plural));
    // The right to read the target of a WorkloadSpread of another kind is the administrator's to grant as well.
    let target = &request.object["spec"]["targetRef"]["name"];
    let is_target = handler.target.resource == "workloadspreads" && verb == "get" && target.as_str() == name;
    // What it reads in our own namespace. An object without one is tried there.
    let names_it = |rule: &Rule| {
        grants(rule) && (rule.resource_names.is_empty() || name.is_some_and(|name| rule.resource_names.contains(&name)))
    };
    let is_at_home = namespace == Some(OWN_NAMESPACE)
        && (handler.own_namespace_rbac.iter().any(names_it)
            || (verb == "create" && handler.target.level == Level::Cluster && handler.rbac.iter().any(grants)));
    // Whoever writes asks the budgets, and what those read is granted with the handlers of Pods.
    let of_budgets = if handler.writes { pod_budget::RBAC } else { &[] };
    if !handler.rbac.iter().chain(of_budgets).any(grants) && !is_counted && !is_target && !is_at_home {
        return Err("no rule of the handler names it".into());
    }
    let own = match handler.target.level {
        Level::Namespaced => Some(&*request.namespace),
        Level::Cluster => Some(&*request.name),
    };
    match namespace {
        Some(_) if is_at_home || namespace == own => Ok(()),
        None if is_counted || ["nodes", "podunavailablebudgets", "sidecarsets", "storageclasses"].contains(&plural) => {
            Ok(())
        }
        _ => Err(format!("another namespace than {own:?}")),
    }
}
