//! The TLS server: one route per handler, and `/healthz`.
//!
//! HTTP/1.1 only: API servers pool its connections, and a client cannot open streams without end. What clients may take
//! is limited in [`connections`](crate::runtime::connections) and, for bodies, here.

pub mod callers;
pub mod configuration;
pub mod consent;
mod contest;
pub mod external_certificates;
pub mod failure_policies;
pub mod handler;
pub mod installation;
mod leftovers;
pub mod metrics;
mod retry;
pub mod review;
pub mod scope;

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, FromRequest, Request},
    http::{HeaderValue, StatusCode, header},
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use axum_server::{
    Handle,
    tls_rustls::{RustlsAcceptor, RustlsConfig},
};
use hyper_util::rt::TokioTimer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::{
    api::feature_gates::{FeatureGates, gate},
    runtime::{
        clock,
        connections::{self, Gate, Limits},
    },
    webhook::{
        Context, HANDLERS,
        server::{
            handler::{Handler, Level},
            metrics::{Metrics, RequestLabels, WebhookLabels},
            review::{Admitted, Decision, Denied, Request as ReviewRequest, Resource, Review, ReviewError},
        },
    },
};

/// The largest body that is read. An API server stores 1.5 MB of an object, of built-in kinds in protobuf: in JSON a byte of it may
/// be six, and a body has two objects. A call that fails for its length would let the write pass.
const BODY_LIMIT: usize = 20 << 20;
/// A longer body, and one of unknown length, is read and handled alone.
const LARGE_BODY: u64 = 7 << 20;
/// How long a client may take for a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// A longer body needs one of a few places: objects are small, and while hundreds of connections may read small bodies at once,
/// large ones are another matter.
const SMALL_BODY: u64 = 64 << 10;
/// What of a user's name goes into a log.
const LONGEST_USER: usize = 253;
/// How many large bodies are read and handled at once.
const LARGE_BODIES: u32 = 4;
/// How long a large body waits for its place. With the time for the body and the handler, less than 30 s.
const PLACE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long requests still come in after we said that we are not ready any more.
const DRAIN: Duration = Duration::from_secs(5);
/// How long requests that have begun may take to end. Longer than any handler takes.
const FINISH: Duration = Duration::from_secs(10);

/// What routes share.
#[derive(Clone)]
pub struct Shared {
    /// For handlers.
    pub context: Arc<Context>,
    /// Counts requests.
    pub metrics: Metrics,
    /// Turns true when this process is to stop; then answers ask clients to go elsewhere.
    pub shutdown: watch::Receiver<bool>,
    large_bodies: Arc<Semaphore>,
}

impl Shared {
    /// Puts the parts together.
    pub fn new(context: Arc<Context>, metrics: Metrics, shutdown: watch::Receiver<bool>) -> Self {
        Self { context, metrics, shutdown, large_bodies: Arc::new(Semaphore::new(LARGE_BODIES as usize)) }
    }
}

/// The handlers whose gate is on. All, where the registration is not ours to keep: it has entries of all gates, and an entry
/// that fails closed must not refuse what nobody answers.
pub fn served(gates: &FeatureGates) -> impl Iterator<Item = &'static Handler> {
    let all = gates.enabled(gate::EXTERNAL_CERTS);
    HANDLERS.iter().filter(move |handler| all || handler.is_active(gates))
}

/// The routes of the handlers that are served.
pub fn router(shared: &Shared) -> Router {
    let mut router = Router::new().route("/healthz", get(async || "ok"));
    for handler in served(&shared.context.gates) {
        for &path in handler.paths {
            let shared = shared.clone();
            router = router.route(
                path,
                post(move |request: Request| {
                    let shared = shared.clone();
                    async move { respond(&shared, handler, path, request).await }
                }),
            );
        }
    }
    router.layer(DefaultBodyLimit::max(BODY_LIMIT)).layer(middleware::from_fn(connections::note_answer))
}

async fn respond(shared: &Shared, handler: &'static Handler, path: &'static str, request: Request) -> Response {
    let mut response = match read(shared, request).await {
        Ok((mut review, _place)) => {
            let begun = clock::now().mono;
            // Objects are not copied: in memory they are many times as large as on the wire.
            let object = std::mem::take(&mut review.request.object);
            let old_object = std::mem::take(&mut review.request.old_object);
            let request = ReviewRequest { object, old_object, ..review.request.clone() };
            let decision = match (fits(handler, &request), review.decided.take()) {
                (Err(denied), _) => Err(denied),
                (Ok(()), _) if !handler.is_active(&shared.context.gates) => Ok(Admitted::unchanged()),
                (Ok(()), Some(decided)) => decided,
                (Ok(()), None) => (handler.handle)(shared.context.clone(), request).await,
            };
            let took = clock::now().mono.saturating_sub(begun);
            count(&shared.metrics, path, &decision, took);
            if let Err(denied) = &decision {
                let user: String = review.request.user_info.username.chars().take(LONGEST_USER).collect();
                tracing::info!(webhook = path, namespace = %review.request.namespace, name = %review.request.name,
                    user, code = denied.code, message = %denied.message, "refused");
            }
            let body = review.answer(&decision).to_string();
            ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
        }
        Err(response) => response,
    };
    if *shared.shutdown.borrow() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Whether a request is of the kind that a path is for.
fn fits(handler: &Handler, request: &ReviewRequest) -> Result<(), Denied> {
    let Resource { group, resource, .. } = &request.resource;
    let wanted = &handler.target;
    let (plural, _) = wanted.resource.split_once('/').unwrap_or((wanted.resource, ""));
    if (group.as_str(), resource.as_str()) != (wanted.group, plural) {
        let name = |group: &str, plural: &str| [plural, group].join(".").trim_end_matches('.').to_owned();
        return Err(Denied::bad_request(format!(
            "request.resource: {:?} is not allowed here; want {:?}",
            name(group, resource),
            name(wanted.group, plural)
        )));
    }
    if wanted.level == Level::Namespaced && request.namespace.is_empty() {
        return Err(Denied::bad_request("request.namespace: it is empty; want the namespace of the object"));
    }
    Ok(())
}

/// The review, and the place of a large body, to be kept until it is answered.
async fn read(shared: &Shared, request: Request) -> Result<(Review, Option<OwnedSemaphorePermit>), Response> {
    let bad = |message: String| (StatusCode::BAD_REQUEST, message).into_response();
    let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if !content_type.is_some_and(|value| value.starts_with("application/json")) {
        return Err(bad(format!("Content-Type {:?}: want application/json", content_type.unwrap_or_default())));
    }
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: u64| length > BODY_LIMIT as u64) {
        return Err(
            (StatusCode::PAYLOAD_TOO_LARGE, format!("want a body of at most {BODY_LIMIT} bytes")).into_response()
        );
    }
    let places = match length {
        Some(length) if length <= SMALL_BODY => 0,
        Some(length) if length <= LARGE_BODY => 1,
        _ => LARGE_BODIES,
    };
    let place = if places == 0 {
        None
    } else {
        let place = tokio::time::timeout(PLACE_TIMEOUT, shared.large_bodies.clone().acquire_many_owned(places)).await;
        let busy = || (StatusCode::SERVICE_UNAVAILABLE, "too many large bodies at once; try again").into_response();
        Some(place.ok().and_then(Result::ok).ok_or_else(busy)?)
    };
    let body = tokio::time::timeout(BODY_TIMEOUT, Bytes::from_request(request, &()))
        .await
        .map_err(|_| (StatusCode::REQUEST_TIMEOUT, "the body took too long").into_response())?
        .map_err(IntoResponse::into_response)?;
    match Review::decode(&body) {
        Ok(review) => Ok((review, place)),
        Err(ReviewError::Name { error, answer }) => {
            tracing::info!(%error, "a review with a bad name was refused");
            Err(([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], answer.to_string())
                .into_response())
        }
        Err(error) => Err(bad(error.to_string())),
    }
}

fn count(metrics: &Metrics, webhook: &'static str, decision: &Decision, took: Duration) {
    let (code, outcome) = match decision {
        Ok(admitted) if admitted.patch.0.is_empty() => (200, "allowed"),
        Ok(_) => (200, "patched"),
        Err(denied) if denied.code >= 500 => (denied.code, "error"),
        Err(denied) => (denied.code, "denied"),
    };
    metrics.requests.get_or_create(&RequestLabels { webhook, code, outcome }).inc();
    metrics.latency.get_or_create(&WebhookLabels { webhook }).observe(took.as_secs_f64());
}

/// Listens on a port of all addresses.
///
/// # Errors
/// The port is taken.
pub fn bind(port: u16) -> io::Result<TcpListener> {
    // One IPv6 socket takes both families, where the node has IPv6.
    TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
        .or_else(|_| TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))))
}

/// Serves until the shutdown, then lets clients leave and requests finish.
///
/// # Errors
/// The listener breaks.
pub async fn serve(listener: TcpListener, tls: RustlsConfig, shared: Shared) -> io::Result<()> {
    serve_within(Limits::default(), listener, tls, shared).await
}

pub(super) async fn serve_within(
    limits: Limits,
    listener: TcpListener,
    tls: RustlsConfig,
    shared: Shared,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let handle = Handle::new();
    let stop = {
        let (handle, mut shutdown) = (handle.clone(), shared.shutdown.clone());
        async move {
            // An error means that nobody is left who could ask us to go on.
            let _ = shutdown.wait_for(|stop| *stop).await;
            tokio::time::sleep(DRAIN).await;
            handle.graceful_shutdown(Some(FINISH));
            std::future::pending().await
        }
    };
    let gate = Gate::new(RustlsAcceptor::new(tls), limits);
    let mut server = axum_server::from_tcp(listener)?.acceptor(gate).handle(handle).http1_only();
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(limits.idle);
    tokio::select! {
        result = server.serve(router(&shared).into_make_service()) => result,
        never = stop => never,
    }
}

#[cfg(test)]
mod tests {
    mod connections;

    use axum::body::Body;
    use http_body_util::BodyExt;
    use serde_json::{Value, json};
    use tower::ServiceExt;

    use super::*;
    use crate::{api::feature_gates::FeatureGates, webhook::server::handler::Target};

    /// No test here may reach an API server.
    fn shared(gates: FeatureGates) -> (Shared, watch::Sender<bool>) {
        let client = crate::runtime::fake_api::nobody();
        let (stop, shutdown) = watch::channel(false);
        (
            Shared::new(
                Arc::new(Context::new(gates, client, "kruise-system".into(), Default::default()).0),
                Metrics::default(),
                shutdown,
            ),
            stop,
        )
    }

    fn call(path: &str, content_type: &str, body: impl Into<Body>) -> Request {
        Request::post(path).header("content-type", content_type).body(body.into()).unwrap()
    }

    async fn send(shared: &Shared, request: Request) -> (u16, String) {
        let response = router(shared).oneshot(request).await.unwrap();
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    fn review(handler: &Handler, object: Value) -> String {
        let Target { group, versions, resource, .. } = handler.target;
        let (plural, sub_resource) = resource.split_once('/').unwrap_or((resource, ""));
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {"uid": "u", "operation": "CREATE", "namespace": "a", "name": "web-0", "subResource": sub_resource, "object": object,
                "resource": {"group": group, "version": versions[0], "resource": plural}}})
        .to_string()
    }

    #[tokio::test]
    async fn every_active_path_answers_and_others_do_not() {
        let (on, _stop) = shared(FeatureGates::parse(&["AllAlpha=true,AllBeta=true"], None).unwrap());
        for (handler, path) in HANDLERS.iter().flat_map(|h| h.paths.iter().map(move |path| (h, path))) {
            let (code, body) = send(&on, call(path, "application/json", review(handler, json!({"spec": {}})))).await;
            assert_eq!(code, 200, "{path}");
            let answer = serde_json::from_str::<Value>(&body).unwrap();
            assert_eq!(answer["response"]["uid"], "u", "{path}");
            assert!(!body.contains("request."), "the names are in order: {body}");
        }
        let (off, _stop) = shared(FeatureGates::parse(&["PodWebhook=false"], None).unwrap());
        assert_eq!(send(&off, call("/mutate-pod", "application/json", "{}")).await.0, 404);
        let required = HANDLERS.iter().find(|handler| handler.name == "mpod-required.kb.io").unwrap();
        let (code, body) = send(&off, call(required.paths[0], "application/json", review(required, json!({})))).await;
        assert!(code == 200 && body.contains(r#""allowed":true"#), "its entry is shipped and fails closed: {body}");
        let (external, _stop) =
            shared(FeatureGates::parse(&["PodWebhook=false,EnableExternalCerts=true"], None).unwrap());
        let (code, body) =
            send(&external, call("/mutate-pod", "application/json", review(&HANDLERS[0], json!({})))).await;
        assert!(code == 200 && body.contains(r#""allowed":true"#), "its registration has entries of all gates: {body}");
        assert_eq!(send(&on, Request::get("/healthz").body(Body::empty()).unwrap()).await, (200, "ok".into()));
    }

    #[tokio::test]
    async fn bad_calls_are_refused() {
        let (shared, _stop) = shared(FeatureGates::default());
        assert_eq!(send(&shared, call("/mutate-pod", "text/plain", "{}")).await.0, 400);
        assert_eq!(send(&shared, call("/mutate-pod", "application/json", "{")).await.0, 400);
        assert_eq!(send(&shared, call("/mutate-pod", "application/json", vec![b' '; BODY_LIMIT + 1])).await.0, 413);
    }

    /// No API server can be reached here: whoever tries is answered 500.
    #[tokio::test]
    async fn a_bad_name_is_answered_with_400_before_any_request_is_sent() {
        let (shared, _stop) = shared(FeatureGates::parse(&["AllAlpha=true,AllBeta=true"], None).unwrap());
        let refused = async |handler: &'static Handler, changes: Value| {
            let mut body: Value = serde_json::from_str(&review(handler, json!({"spec": {}}))).unwrap();
            json_patch::merge(&mut body["request"], &changes);
            let (code, body) = send(&shared, call(handler.paths[0], "application/json", body.to_string())).await;
            assert_eq!(code, 200, "{body}");
            let answer: Value = serde_json::from_str(&body).unwrap();
            let status = &answer["response"]["status"];
            assert_eq!((&answer["response"]["allowed"], &status["code"]), (&json!(false), &json!(400)), "{body}");
            status["message"].as_str().unwrap().to_owned()
        };
        for handler in HANDLERS.iter() {
            let message = refused(handler, json!({"namespace": "default/podtemplates?x="})).await;
            assert!(message.starts_with("request.namespace: \"default/podtemplates?x=\" is not allowed"), "{message}");
            let message = refused(handler, json!({"resource": {"resource": "secrets"}})).await;
            assert!(message.starts_with("request.resource: \"secrets"), "{message}");
            if handler.target.level == Level::Namespaced {
                let message = refused(handler, json!({"namespace": ""})).await;
                assert!(message.starts_with("request.namespace: it is empty"), "{message}");
            }
        }
    }

    #[tokio::test]
    async fn an_unreachable_api_server_is_an_internal_error_not_a_consent() {
        let (shared, _stop) = shared(FeatureGates::default());
        let crr = json!({"spec": {"podName": "web-0", "containers": [{"name": "main"}]}});
        let (_, body) = send(&shared, call(HANDLERS[1].paths[0], "application/json", review(&HANDLERS[1], crr))).await;
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((&body["response"]["allowed"], &body["response"]["status"]["code"]), (&json!(false), &json!(500)));
        let labels = RequestLabels { webhook: HANDLERS[1].paths[0], code: 500, outcome: "error" };
        assert_eq!(shared.metrics.requests.get_or_create(&labels).get(), 1);
    }

    #[tokio::test]
    async fn answers_close_connections_once_we_are_to_stop() {
        let (shared, stop) = shared(FeatureGates::default());
        let response = router(&shared)
            .oneshot(call("/mutate-pod", "application/json", review(&HANDLERS[0], json!({}))))
            .await
            .unwrap();
        assert!(!response.headers().contains_key("connection"));
        stop.send_replace(true);
        let response = router(&shared)
            .oneshot(call("/mutate-pod", "application/json", review(&HANDLERS[0], json!({}))))
            .await
            .unwrap();
        assert_eq!(response.headers()["connection"], "close");
    }
}
