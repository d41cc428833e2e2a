//! Answers with objects that are nested deeper than any parser reads.
//!
//! An API server stores whatever depth a user writes into `metadata.managedFields[].fieldsV1` of any object. Nobody here reads these
//! fields, and the answer to a get or a patch of such an object could not be read either: they are taken out. Watches read each
//! object by itself, see [`bounded_json`](crate::k8s::bounded_json).

use axum::http::{Request, Response, header};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde_json::value::{RawValue, to_raw_value};

use super::silence;
use crate::k8s::bounded_json::{MOST_LEVELS, Members, members};

/// The same client, whose answers have no `fieldsV1` where they are nested too deep.
pub(super) fn readable(client: &Client) -> Client {
    let inner = client.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let inner = inner.clone();
        async move { send(&inner, request).await }
    });
    Client::new(service, client.default_namespace())
}

async fn send(client: &Client, request: Request<Body>) -> kube::Result<Response<Body>> {
    let is_watch = silence::is_watch(request.uri());
    let answer = client.send(request).await?;
    let is_json = |kind: &header::HeaderValue| kind.as_bytes().starts_with(b"application/json");
    if is_watch || !answer.headers().get(header::CONTENT_TYPE).is_some_and(is_json) {
        return Ok(answer);
    }
    let (mut parts, body) = answer.into_parts();
    let bytes = body.collect().await?.to_bytes();
    // A list has two levels more than its objects.
    let is_deep = levels(&bytes) > MOST_LEVELS + 2;
    let rewritten = std::str::from_utf8(&bytes).ok().filter(|_| is_deep).and_then(without_fields);
    let Some(text) = rewritten else { return Ok(Response::from_parts(parts, Body::from(bytes))) };
    parts.headers.remove(header::CONTENT_LENGTH);
    Ok(Response::from_parts(parts, Body::from(text.into_bytes())))
}

/// How deep JSON is nested. Of what is no JSON it says anything.
fn levels(json: &[u8]) -> usize {
    let (mut deepest, mut level, mut is_text, mut is_escaped) = (0_usize, 0_usize, false, false);
    for byte in json {
        if is_escaped {
            is_escaped = false;
            continue;
        }
        match (byte, is_text) {
            (b'\\', true) => is_escaped = true,
            (b'"', _) => is_text = !is_text,
            (b'{' | b'[', false) => {
                level += 1;
                deepest = deepest.max(level);
            }
            (b'}' | b']', false) => level = level.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// The object, or the list of objects, without the fields of their managers. None: it is neither.
fn without_fields(json: &str) -> Option<String> {
    let mut object = members(json)?;
    let items = object.get("items").and_then(|items| serde_json::from_str::<Vec<&RawValue>>(items.get()).ok());
    let Some(items) = items else { return of_one(json) };
    let items = items.iter().map(|item| of_one(item.get()).unwrap_or_else(|| item.get().to_owned()));
    let items = RawValue::from_string(format!("[{}]", items.collect::<Vec<_>>().join(","))).ok()?;
    object.insert("items".into(), &items);
    serde_json::to_string(&object).ok()
}

fn of_one(json: &str) -> Option<String> {
    let mut object = members(json)?;
    let mut metadata = members(object.get("metadata")?.get())?;
    let mut managers: Vec<Members<'_>> = serde_json::from_str(metadata.get("managedFields")?.get()).ok()?;
    for manager in &mut managers {
        manager.remove("fieldsV1");
    }
    let managers = to_raw_value(&managers).ok()?;
    metadata.insert("managedFields".into(), &managers);
    let metadata = to_raw_value(&metadata).ok()?;
    object.insert("metadata".into(), &metadata);
    serde_json::to_string(&object).ok()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Api, api::ListParams};
    use serde_json::{Value, json};

    use super::*;

    fn deep(levels: usize) -> String {
        format!("{}{}", "{\"f:a\":".repeat(levels), "{}".to_owned() + &"}".repeat(levels))
    }

    fn config_map(name: &str, levels: usize) -> String {
        format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","data":{{"a":"[{{\"\\"}},"metadata":{{"name":"{name}",
            "managedFields":[{{"manager":"m","fieldsType":"FieldsV1","fieldsV1":{}}}]}}}}"#,
            deep(levels)
        )
    }

    #[test]
    fn levels_are_those_of_json_outside_of_texts() {
        for (text, want) in [("", 0), ("7", 0), ("[]", 1), (r#"{"a":[{"b":"[[[\"[[\\"}]}"#, 3), ("]]][", 1)] {
            assert_eq!(levels(text.as_bytes()), want, "{text}");
        }
        assert_eq!(levels(deep(9000).as_bytes()), 9001);
    }

    #[tokio::test]
    async fn an_object_with_deep_managed_fields_is_read_alone_and_in_a_list() {
        let service = tower::service_fn(|request: Request<Body>| {
            let body = match request.uri().path().ends_with("/deep") {
                true => config_map("deep", 9000),
                false => format!(
                    r#"{{"metadata":{{"resourceVersion":"7"}},"items":[{},{}]}}"#,
                    config_map("deep", 9000),
                    config_map("flat", 1)
                ),
            };
            let answer = Response::builder().header(header::CONTENT_TYPE, "application/json");
            std::future::ready(answer.body(Body::from(body.into_bytes())))
        });
        let api: Api<ConfigMap> = Api::namespaced(readable(&Client::new(service, "default")), "a");
        let one = api.get("deep").await.unwrap();
        let managers = one.metadata.managed_fields.unwrap();
        assert_eq!((managers[0].manager.as_deref(), managers[0].fields_v1.is_none()), (Some("m"), true));
        assert_eq!(one.data.unwrap()["a"], "[{\"\\");
        let list = api.list(&ListParams::default()).await.unwrap();
        assert_eq!(list.metadata.resource_version.as_deref(), Some("7"));
        let names: Vec<_> = list.items.iter().map(|map| map.metadata.name.as_deref().unwrap()).collect();
        assert_eq!(names, ["deep", "flat"]);
    }

    #[test]
    fn what_is_no_object_stays_as_it_is() {
        for text in ["", "7", "[]", r#"{"a":1}"#, r#"{"metadata":7}"#] {
            assert_eq!(without_fields(text), None, "{text}");
        }
        let text = without_fields(r#"{"items":[{"metadata":{"managedFields":[{"fieldsV1":1,"a":2}]}},7]}"#).unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(&text).unwrap(),
            json!({"items": [{"metadata": {"managedFields": [{"a": 2}]}}, 7]})
        );
    }
}
