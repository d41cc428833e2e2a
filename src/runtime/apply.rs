//! Writes that cannot overwrite what somebody else wrote meanwhile.

use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
    core::Status,
    runtime::watcher,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::k8s::merge_patch;

/// Writes `status` as the new status of `object`, provided that the object is still the version we looked at.
///
/// The patch holds the fields that differ from `recorded`, and every count that is zero: in a stored status it may be
/// missing, which reads the same here and not in tools (decision 32). None: nothing differed, nothing was written.
///
/// # Errors
/// Those of the API server: 409 when the object has changed, 404 when it is gone.
pub async fn patch_status<K, S>(api: &Api<K>, object: &K, recorded: &S, status: &S) -> kube::Result<Option<K>>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
    S: Serialize,
{
    let (recorded, status) = (to_value(recorded)?, to_value(status)?);
    let Some(mut changes) = merge_patch::diff(&recorded, &status) else { return Ok(None) };
    let zeros = status.as_object().into_iter().flatten().filter(|(_, value)| value.as_i64() == Some(0));
    for (name, zero) in zeros {
        changes[name] = zero.clone();
    }
    let patch = json!({
        "metadata": {"resourceVersion": object.meta().resource_version, "uid": object.meta().uid},
        "status": changes,
    });
    let name = object.meta().name.as_deref().unwrap_or_default();
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(Some)
}

/// Creates an object, and returns it as the API server has stored it, as text.
///
/// # Errors
/// Those of the API server.
pub async fn post(client: &Client, path: &str, object: &Value) -> kube::Result<String> {
    send(client, axum::http::Request::post(path), object).await
}

/// For a creation without an owner reference: the UID of the object, in the same namespace, for which it is made.
#[derive(Clone, Debug)]
pub struct MadeFor(pub String);

/// As [`post`], for an object that need not name its owner.
///
/// # Errors
/// Those of the API server.
pub async fn post_for(client: &Client, path: &str, object: &Value, made_for: MadeFor) -> kube::Result<String> {
    send(client, axum::http::Request::post(path).extension(made_for), object).await
}

/// As [`post`], of an object that is JSON already.
///
/// # Errors
/// Those of the API server.
pub async fn post_body(client: &Client, path: &str, body: Vec<u8>) -> kube::Result<String> {
    send_body(client, axum::http::Request::post(path), "application/json", body).await
}

/// Sends a JSON patch, and returns the object as the API server has stored it, as text.
///
/// # Errors
/// Those of the API server: 422 when it cannot be applied.
pub async fn patch_body(client: &Client, path: &str, patch: Vec<u8>) -> kube::Result<String> {
    send_body(client, axum::http::Request::patch(path), "application/json-patch+json", patch).await
}

async fn send(client: &Client, request: axum::http::request::Builder, object: &Value) -> kube::Result<String> {
    let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
    send_body(client, request, "application/json", body).await
}

async fn send_body(
    client: &Client,
    request: axum::http::request::Builder,
    content_type: &str,
    body: Vec<u8>,
) -> kube::Result<String> {
    let request = request.header("content-type", content_type).body(body);
    client.request_text(request.map_err(kube::Error::HttpError)?).await
}

/// Whether the API server has said no: nothing was done, and others may be luckier. Anything else may have been done.
pub fn is_refusal(error: &kube::Error) -> bool {
    matches!(code(error), Some(400..=499))
}

/// Whether an object was not created because there is one of its name.
pub fn is_already_there(error: &kube::Error) -> bool {
    code(error) == Some(409)
}

/// Whether nothing but the name, which is taken, keeps an object from being created: the API server looks for it last, after
/// admission and quotas. Others answer 409 too, a quota that changes at the same time for one.
pub fn is_name_taken(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.reason == "AlreadyExists")
}

fn to_value(status: &impl Serialize) -> kube::Result<Value> {
    serde_json::to_value(status).map_err(kube::Error::SerdeError)
}

/// Whether something could not be made because its namespace is being deleted: what wanted it goes too.
pub fn namespace_is_ending(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if says_ending(status))
}

/// The same of an answer.
pub fn says_ending(status: &Status) -> bool {
    status.details.iter().flat_map(|details| &details.causes).any(|cause| cause.reason == ENDING)
}

/// The cause by which the API server says that a namespace is being deleted.
pub const ENDING: &str = "NamespaceTerminating";

/// Whether an object was refused because of its size: by the API server (413), or by etcd, whose answers come as 500.
pub fn is_too_large(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let says = |text: &str| status.message.contains(text);
    status.code == 413
        || status.code >= 500 && (says("too large") || says("larger than max") || says("ResourceExhausted"))
}

/// In words, that a watch is refused for lack of a right, or that its object cannot be read. None: it has another error.
pub fn refused_watch(error: &watcher::Error) -> Option<String> {
    let error = match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => error,
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => return None,
    };
    match error {
        kube::Error::SerdeError(why) => Some(format!("it cannot be read: {why}")),
        error => (code(error) == Some(403)).then(|| said(error)),
    }
}

/// What users are told of an error, in events, conditions and answers: the API server's own words. [`kube::Error`] displays its
/// whole answer as Rust does.
pub fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        kube::Error::Api(status) if !status.reason.is_empty() => status.reason.clone(),
        kube::Error::Api(status) => format!("HTTP status code {}", status.code),
        error => error.to_string(),
    }
}

/// The HTTP status code of an error answer of the API server.
pub fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_told_what_the_api_server_says() {
        let answer = |answer: Value| kube::Error::Api(Box::new(serde_json::from_value(answer).unwrap()));
        let quota = r#"pods "q-2" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"#;
        let cases = [
            (answer(json!({"status": "Failure", "message": quota, "reason": "Forbidden", "code": 403})), quota),
            (answer(json!({"status": "Failure", "message": "no", "code": 500})), "no"),
            (answer(json!({"status": "Failure", "reason": "Forbidden", "code": 403})), "Forbidden"),
            (answer(json!({"code": 503})), "HTTP status code 503"),
            (kube::Error::Service("no answer within 30 s".into()), "ServiceError: no answer within 30 s"),
        ];
        for (error, words) in cases {
            assert_eq!(said(&error), words, "{error:?}");
        }
    }
}
