//! Finding and making requests of both kinds, as the API server has them: no field of a newer release gets lost.

use http_body_util::BodyExt as _;
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, ListParams, ObjectList, Patch, PatchParams, PostParams},
    client::Body,
    core::{GroupVersionKind, Status},
};
use serde_json::Value;

use super::{
    connection::Connection,
    rules::{
        JsonPointer,
        exit::{Exit, Stop, of_error},
        request::warning,
        rollout::Write,
        target::{Kind, Subject},
    },
};
use crate::{
    api::{group_of, kinds::Scope},
    runtime::apply,
};

/// Who writes, in `managedFields`.
const FIELD_MANAGER: &str = "kubectl-kruise";

/// The kinds that are made by commands.
pub(super) fn resource(kind: &str) -> ApiResource {
    let (group, version, kind, plural) = match kind {
        "WorkloadRestart" => ("kruise.rs", "v1alpha1", "WorkloadRestart", "workloadrestarts"),
        "BroadcastJob" => ("apps.kruise.io", "v1beta1", "BroadcastJob", "broadcastjobs"),
        _ => ("apps.kruise.io", "v1alpha1", "ContainerRecreateRequest", "containerrecreaterequests"),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

/// A kind of target.
pub(super) fn resource_of(kind: &Kind) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(kind.group, kind.version(), kind.kind), kind.plural)
}

pub(super) const KINDS: [&str; 2] = ["ContainerRecreateRequest", "WorkloadRestart"];

/// `containerrecreaterequest.apps.kruise.io/NAME`, as kubectl names an object.
pub(super) fn reference(object: &Value) -> String {
    let group = group_of(object.text("/apiVersion"));
    let kind = object.text("/kind").to_ascii_lowercase();
    let dot = if group.is_empty() { "" } else { "." };
    format!("{kind}{dot}{group}/{}", object.text("/metadata/name"))
}

/// The objects of a kind: those of a namespace, or those of the cluster if they have none.
pub(super) fn api_for(client: &Client, namespace: &str, kind: &Kind) -> Api<DynamicObject> {
    match kind.scope {
        Scope::Namespaced => Api::namespaced_with(client.clone(), namespace, &resource_of(kind)),
        Scope::Cluster => Api::all_with(client.clone(), &resource_of(kind)),
    }
}

/// The collection that an object belongs to.
pub(super) fn api_of(client: &Client, object: &Value) -> Api<DynamicObject> {
    let namespace = object.text("/metadata/namespace");
    match Kind::of(object) {
        Some(kind) => api_for(client, namespace, &kind),
        None => Api::namespaced_with(client.clone(), namespace, &resource_for(object)),
    }
}

/// The kind of an object.
pub(super) fn resource_for(object: &Value) -> ApiResource {
    Kind::of(object).map_or_else(|| resource(object.text("/kind")), |kind| resource_of(&kind))
}

fn api(connection: &Connection, kind: &str) -> Api<DynamicObject> {
    Api::namespaced_with(connection.client.clone(), &connection.namespace, &resource(kind))
}

/// As JSON, with its kind, which lists leave out.
pub(super) fn value(object: DynamicObject, resource: &ApiResource) -> Result<Value, Stop> {
    let mut object = serde_json::to_value(object).map_err(|e| Stop::new(Exit::Failed, e.to_string()))?;
    object["apiVersion"] = resource.api_version.clone().into();
    object["kind"] = resource.kind.clone().into();
    Ok(object)
}

/// Objects in one answer of a list.
const PAGE: u32 = 500;

/// All objects of a list, page by page, as `list` answers. `what` is named in errors.
pub(super) async fn all_pages<K: Clone>(
    what: &str,
    params: ListParams,
    list: impl AsyncFn(&ListParams) -> kube::Result<ObjectList<K>>,
) -> Result<Vec<K>, Stop> {
    pages(params, list).await.map_err(|error| of_error(what, &error))
}

async fn pages<K: Clone>(
    params: ListParams,
    list: impl AsyncFn(&ListParams) -> kube::Result<ObjectList<K>>,
) -> kube::Result<Vec<K>> {
    let (mut found, mut params) = (Vec::new(), params.limit(PAGE));
    loop {
        let page = list(&params).await?;
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(found),
        }
    }
}

/// Creates a request in its namespace. The second part are warnings of admission.
pub(super) async fn create(
    connection: &Connection,
    object: &Value,
    dry_run: bool,
) -> kube::Result<(Value, Vec<String>)> {
    let resource = resource(object.text("/kind"));
    let url = DynamicObject::url_path(&resource, Some(object.text("/metadata/namespace")));
    let params = PostParams { dry_run, field_manager: Some(FIELD_MANAGER.into()) };
    let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
    let request = kube::core::Request::new(url).create(&params, body).map_err(kube::Error::BuildRequest)?;
    send(&connection.client, request).await
}

/// Changes an object. The second part are warnings of admission.
pub(super) async fn patch(
    client: &Client,
    object: &Value,
    write: &Write,
    dry_run: bool,
) -> kube::Result<(Value, Vec<String>)> {
    let params = PatchParams { dry_run, field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
    let api = api_of(client, object);
    let patch = match write {
        Write::Merge(patch) => Patch::Merge(patch.clone()),
        Write::Json(patch) => Patch::Json(patch.clone()),
    };
    let request = kube::core::Request::new(api.resource_url()).patch(object.text("/metadata/name"), &params, &patch);
    send(client, request.map_err(kube::Error::BuildRequest)?).await
}

/// The library's own calls drop the headers of an answer, and with them the warnings.
async fn send(client: &Client, request: http::Request<Vec<u8>>) -> kube::Result<(Value, Vec<String>)> {
    let answer = client.send(request.map(Body::from)).await?;
    let code = answer.status();
    let texts = answer.headers().get_all("warning").iter().filter_map(|header| warning(header.to_str().ok()?));
    let warnings: Vec<String> = texts.collect();
    let body = answer.into_body().collect().await?.to_bytes();
    if code.is_success() {
        return Ok((serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?, warnings));
    }
    let status = serde_json::from_slice::<Status>(&body).unwrap_or_else(|_| Status {
        code: code.as_u16(),
        message: String::from_utf8_lossy(&body).into_owned(),
        ..Status::default()
    });
    Err(kube::Error::Api(status.boxed()))
}

/// Requests of a list.
#[derive(Debug)]
pub(super) struct Listed {
    /// Oldest first.
    pub(super) objects: Vec<Value>,
    /// Whether WorkloadRestarts are among them: who may use ContainerRecreateRequests may not use the others.
    pub(super) has_restarts: bool,
}

/// All requests of a namespace (or of all). A kind that is not installed has none.
pub(super) async fn list(connection: &Connection, everywhere: bool, selector: Option<&str>) -> Result<Listed, Stop> {
    let mut listed = Listed { objects: Vec::new(), has_restarts: true };
    for kind in KINDS {
        let api = match everywhere {
            true => Api::all_with(connection.client.clone(), &resource(kind)),
            false => api(connection, kind),
        };
        let params = ListParams { label_selector: selector.map(str::to_owned), ..ListParams::default() };
        match pages(params, async |params| api.list(params).await).await {
            Ok(objects) => {
                for object in objects {
                    listed.objects.push(value(object, &resource(kind))?);
                }
            }
            // WorkloadRestart is younger than ContainerRecreateRequest.
            Err(error) if kind == KINDS[1] && apply::code(&error) == Some(404) => {}
            Err(error) if kind == KINDS[1] && apply::code(&error) == Some(403) => listed.has_restarts = false,
            Err(error) => return Err(of_error(&format!("list {kind}s"), &error)),
        }
    }
    listed.objects.sort_by(|a, b| order(a).cmp(&order(b)));
    Ok(listed)
}

fn order(object: &Value) -> (&str, &str, &str) {
    (object.text("/metadata/creationTimestamp"), object.text("/metadata/namespace"), object.text("/metadata/name"))
}

/// The requests that the user named.
///
/// # Errors
/// One of them does not exist.
pub(super) async fn find(connection: &Connection, subjects: &[Subject]) -> Result<Vec<Value>, Stop> {
    let namespace = &connection.namespace;
    let mut found = Vec::new();
    for subject in subjects {
        match subject {
            Subject::Pod(pod) => {
                let all = list(connection, false, None).await?.objects;
                let mine: Vec<Value> = all.into_iter().filter(|request| request.text("/spec/podName") == pod).collect();
                if mine.is_empty() {
                    let message = format!("no request for Pod {pod} in namespace {namespace}");
                    return Err(Stop::new(Exit::NotFound, message));
                }
                found.extend(mine);
            }
            Subject::Request { kind, name } => found.push(find_one(connection, *kind, name).await?),
        }
    }
    Ok(found)
}

async fn find_one(connection: &Connection, kind: Option<&'static str>, name: &str) -> Result<Value, Stop> {
    for candidate in KINDS.into_iter().filter(|candidate| kind.is_none_or(|kind| kind == *candidate)) {
        match api(connection, candidate).get_opt(name).await {
            Ok(Some(object)) => return value(object, &resource(candidate)),
            Ok(None) => {}
            Err(error) => {
                let is_second = kind.is_none() && candidate == KINDS[1];
                let first = if is_second { format!("no {} {name}; ", KINDS[0]) } else { String::new() };
                return Err(of_error(&format!("{first}{candidate} {name}"), &error));
            }
        }
    }
    let kind = kind.unwrap_or("request");
    Err(Stop::new(Exit::NotFound, format!("no {kind} {name} in namespace {}", connection.namespace)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::runtime::fake_api;

    const RESTARTS: &str = "/apis/kruise.rs/v1alpha1/namespaces/shop/workloadrestarts";
    const REQUESTS: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/shop/containerrecreaterequests";

    /// A namespace with one request, in which WorkloadRestarts are answered with a code.
    fn connection(of_restarts: u16) -> Connection {
        let failure = |code: u16| {
            let reason = if code == 404 { "NotFound" } else { "" };
            (code, json!({ "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no" }))
        };
        let request = json!({ "metadata": { "name": "a", "namespace": "shop" }, "spec": { "podName": "web" } });
        let client = fake_api::answering(move |parts, _| match parts.uri.path() {
            REQUESTS => (200, json!({ "kind": "List", "metadata": {}, "items": [request] })),
            RESTARTS if of_restarts == 200 => (200, json!({ "kind": "List", "metadata": {}, "items": [] })),
            path if path.starts_with(REQUESTS) => failure(404),
            path if path.starts_with(RESTARTS) => failure(of_restarts),
            path => panic!("{path}"),
        });
        Connection { client, namespace: "shop".into() }
    }

    #[tokio::test]
    async fn who_may_not_list_restarts_sees_the_requests_and_is_told() {
        for (code, has_restarts) in [(200, true), (404, true), (403, false)] {
            let listed = list(&connection(code), false, None).await.unwrap();
            assert_eq!((listed.objects.len(), listed.has_restarts), (1, has_restarts), "{code}");
            assert_eq!(listed.objects[0].text("/kind"), "ContainerRecreateRequest");
        }
        assert_eq!(list(&connection(500), false, None).await.unwrap_err().exit, Exit::NoAnswer);
    }

    #[tokio::test]
    async fn what_may_not_be_looked_for_is_not_absent() {
        for (code, exit, words) in [
            (404, Exit::NotFound, "no request x in namespace shop"),
            (403, Exit::Refused, "no ContainerRecreateRequest x; WorkloadRestart x: no"),
        ] {
            let stop = find_one(&connection(code), None, "x").await.unwrap_err();
            assert_eq!((stop.exit, stop.message.as_str()), (exit, words), "{code}");
        }
        let stop = find_one(&connection(403), Some("WorkloadRestart"), "x").await.unwrap_err();
        assert_eq!((stop.exit, stop.message.as_str()), (Exit::Refused, "WorkloadRestart x: no"));
    }

    #[tokio::test]
    async fn a_list_is_read_to_its_last_page() {
        let client = fake_api::answering(|parts, _| {
            let query = parts.uri.query().unwrap_or_default();
            assert!(query.contains("limit=500"), "{query}");
            let (name, next) = if query.contains("continue=2") { ("b", "") } else { ("a", "2") };
            let items =
                if parts.uri.path() == REQUESTS { json!([{ "metadata": { "name": name } }]) } else { json!([]) };
            (200, json!({ "kind": "List", "metadata": { "continue": next }, "items": items }))
        });
        let connection = Connection { client, namespace: "shop".into() };
        let listed = list(&connection, false, None).await.unwrap();
        let names: Vec<&str> = listed.objects.iter().map(|object| object.text("/metadata/name")).collect();
        assert_eq!(names, ["a", "b"]);
    }
}
