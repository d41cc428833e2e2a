//! API servers for tests: clients that are answered by a function.

use std::convert::Infallible;

use axum::http::{Request, Response, StatusCode, request::Parts};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde_json::Value;

/// Its API server is a function: a request and its body to a code and an object.
pub(crate) fn answering<A>(answer: A) -> Client
where
    A: Fn(&Parts, &[u8]) -> (u16, Value) + Clone + Send + Sync + 'static,
{
    answering_some(move |parts, body| Some(answer(parts, body)))
}

/// The same with an API server that never answers some requests.
pub(crate) fn answering_some<A>(answer: A) -> Client
where
    A: Fn(&Parts, &[u8]) -> Option<(u16, Value)> + Clone + Send + Sync + 'static,
{
    let service = tower::service_fn(move |http: Request<Body>| {
        let answer = answer.clone();
        async move {
            let (parts, body) = http.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let Some((code, object)) = answer(&parts, &body) else { return std::future::pending().await };
            let response = Response::builder().status(StatusCode::from_u16(code).unwrap());
            Ok::<_, Infallible>(response.body(Body::from(object.to_string().into_bytes())).unwrap())
        }
    });
    Client::new(service, "default")
}

/// A line of a watch, with its members in the order in which API servers write them.
pub(crate) fn event(what: &str, object: &Value) -> String {
    format!("{{\"type\":\"{what}\",\"object\":{object}}}\n")
}

/// No API server can be reached.
pub(crate) fn nobody() -> Client {
    let service = tower::service_fn(async |_: Request<Body>| {
        Err::<Response<Body>, _>(std::io::Error::other("no API server in this test"))
    });
    Client::new(service, "default")
}
