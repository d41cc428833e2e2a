//! Reviews on their whole way: through the routes of the webhook, up to the requests that handlers send. Behind them
//! stands an API server that remembers what it was asked; afterwards every request is judged.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use axum::{body::Body as HttpBody, http};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    api::feature_gates::FeatureGates,
    k8s::{path, rbac::Rule},
    runtime::lock,
    webhook::{
        Context, HANDLERS,
        kinds::pod_budget,
        server::{
            Shared,
            handler::{Handler, Level},
            metrics::Metrics,
            review::Review,
            router,
        },
    },
};

const OWN_NAMESPACE: &str = "kruise-system";

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
        ("POST", [.., "podtemplates"]) => (201, serde_json::from_slice(body).unwrap_or_default()),
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
                all.extend(through(handler, review.as_ref(), data).await);
            }
        }
        all
    })
}

async fn through(handler: &Handler, review: Option<&Review>, data: &[u8]) -> Vec<String> {
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
    let Ok(request) = request else { return Vec::new() };
    let Ok(response) = router(&shared).oneshot(request).await;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    assert!([200, 400].contains(&code), "{}: {code}", handler.name);
    if code == 200 {
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        assert!(answer["response"]["allowed"].is_boolean(), "{}: {answer}", handler.name);
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
    asked.iter().map(|Asked { method, path, query }| format!("{method} {path}?{query}")).collect()
}

/// Whether a handler may send a request for a review: no write but a dry run, only what its own rules name, and only in
/// the namespace of the review.
fn judge(handler: &Handler, review: &Review, asked: &Asked) -> Result<(), String> {
    path::check(&asked.path, Some(&asked.query)).map_err(|error| error.to_string())?;
    let segments: Vec<&str> = asked.path.split('/').skip(1).collect();
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
    // Whether a daemon is ready on a node.
    let is_daemons = (verb, plural, namespace) == ("list", "pods", Some(OWN_NAMESPACE));
    // Whoever writes asks the budgets, and what those read is granted with the handlers of Pods.
    let of_budgets = if handler.writes { pod_budget::RBAC } else { &[] };
    if !handler.rbac.iter().chain(of_budgets).any(grants) && !is_counted && !is_daemons {
        return Err("no rule of the handler names it".into());
    }
    let own = match handler.target.level {
        Level::Namespaced => Some(&*request.namespace),
        Level::Cluster => Some(&*request.name),
    };
    match namespace {
        Some(_) if is_daemons || namespace == own => Ok(()),
        None if is_counted || ["nodes", "podunavailablebudgets"].contains(&plural) => Ok(()),
        _ => Err(format!("another namespace than {own:?}")),
    }
}
