//! Stops repeated creations in namespaces that are being deleted.
//!
//! While a namespace ends, its Pods are deleted before their workloads, and each deleted Pod wakes its controller, which wants to
//! create another one. The API server refuses that every time (403 with the cause `NamespaceTerminating`). A namespace that is
//! being deleted never recovers, and neither do the objects in it. So the first refusal counts for everything that would be
//! created for the same object: the client gives that answer itself. A later namespace of the same name has other objects, with
//! other UIDs, and is not affected.
//!
//! The object for which something is created is its owner, for an Event the object that the Event is about, else the one that the
//! caller names ([`MadeFor`]). Owners without a namespace outlive it: nothing is remembered of them.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::http::{Method, Request, Response, StatusCode};
use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{Client, client::Body};
use serde::Deserialize;
use serde_json::json;

use super::{
    apply::{ENDING, MadeFor, says_ending},
    clock, lock,
};
use crate::api::{
    group_of,
    kinds::{Kind, Scope},
};

/// How long a namespace is remembered after the last creation in it.
const KEPT: Duration = Duration::from_secs(600);

/// The objects whose namespaces are being deleted, as far as something has been refused for them.
#[derive(Clone, Debug, Default)]
pub struct Ending(Arc<Mutex<HashMap<String, NamespaceState>>>);

/// What is known of one namespace.
#[derive(Debug, Default)]
struct NamespaceState {
    /// UIDs of its objects.
    objects: HashSet<String>,
    /// The last creation, on the monotonic clock.
    last: Duration,
}

impl Ending {
    /// Sends a request, unless it wants something for an object for which something was refused because its namespace ends.
    pub(super) async fn send(&self, inner: &Client, request: Request<Body>) -> kube::Result<Response<Body>> {
        let Some(namespace) = created_in(&request).map(str::to_owned) else { return inner.send(request).await };
        let (parts, body) = request.into_parts();
        let made_for = parts.extensions.get::<MadeFor>().cloned();
        let body = body.collect_bytes().await?;
        let wanted_by = || made_for.map(|MadeFor(uid)| uid).or_else(|| wanted_by(&namespace, &body));
        if self.knows(&namespace, wanted_by.clone(), clock::now().mono) {
            return answer(&namespace);
        }
        let response = inner.send(Request::from_parts(parts, Body::from(body.clone()))).await?;
        if response.status() != StatusCode::FORBIDDEN {
            return Ok(response);
        }
        let (parts, answer) = response.into_parts();
        let answer = answer.collect_bytes().await?;
        if serde_json::from_slice(&answer).is_ok_and(|status| says_ending(&status)) {
            self.note(&namespace, wanted_by(), clock::now().mono);
        }
        Ok(Response::from_parts(parts, Body::from(answer)))
    }

    /// Whether a creation for the same object was refused before.
    fn knows(&self, namespace: &str, wanted_by: impl FnOnce() -> Option<String>, now: Duration) -> bool {
        let mut all = lock(&self.0);
        // Mostly no namespace is ending: then the body is not parsed.
        let Some(seen) = all.get_mut(namespace) else { return false };
        seen.last = now;
        wanted_by().is_some_and(|uid| seen.objects.contains(&uid))
    }

    fn note(&self, namespace: &str, wanted_by: Option<String>, now: Duration) {
        let Some(uid) = wanted_by else { return };
        let mut all = lock(&self.0);
        all.retain(|_, seen| now.saturating_sub(seen.last) < KEPT);
        let seen = all.entry(namespace.to_owned()).or_default();
        seen.last = now;
        seen.objects.insert(uid);
    }
}

/// The namespace in which a request creates an object. None: it creates none.
fn created_in<B>(request: &Request<B>) -> Option<&str> {
    if *request.method() != Method::POST {
        return None;
    }
    let segments: Vec<&str> = request.uri().path().split('/').skip(1).collect();
    match segments.as_slice() {
        ["api", _, "namespaces", namespace, _] | ["apis", _, _, "namespaces", namespace, _] => Some(namespace),
        _ => None,
    }
}

/// The fields of a created object that say for which object it is created.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Made {
    #[serde(default)]
    metadata: MadeMeta,
    /// Of an Event.
    involved_object: Option<ObjectReference>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MadeMeta {
    #[serde(default)]
    owner_references: Vec<OwnerReference>,
}

/// The UID of the object in this namespace for which something is created. None: it is not known, or not in this namespace.
fn wanted_by(namespace: &str, body: &[u8]) -> Option<String> {
    let made: Made = serde_json::from_slice(body).ok()?;
    if let Some(object) = made.involved_object {
        let is_here = object.namespace.as_deref() == Some(namespace);
        return object.uid.filter(|uid| is_here && !uid.is_empty());
    }
    let is_here = |owner: &&OwnerReference| {
        let kind = Kind::of(group_of(&owner.api_version), &owner.kind);
        kind.is_some_and(|kind| kind.scope == Scope::Namespaced)
    };
    made.metadata.owner_references.iter().find(is_here).map(|owner| owner.uid.clone())
}

/// What the API server says.
fn answer(namespace: &str) -> kube::Result<Response<Body>> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 403, "reason": "Forbidden",
        "message": format!("unable to create new content in namespace {namespace} because it is being terminated"),
        "details": {"causes": [{"reason": ENDING, "field": "metadata.namespace",
            "message": format!("namespace {namespace} is being terminated")}]},
    });
    let answer = Response::builder().status(StatusCode::FORBIDDEN).header("content-type", "application/json");
    answer.body(Body::from(status.to_string().into_bytes())).map_err(kube::Error::HttpError)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use k8s_openapi::api::core::v1::{ConfigMap, Event};
    use kube::{Api, api::PostParams};
    use serde_json::Value;

    use super::*;
    use crate::runtime::{
        apply::{code, namespace_is_ending, post, post_for},
        fence::Fence,
    };

    /// An API server that ends namespaces called `ending`, and how many creations it got.
    fn server() -> (Client, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        let seen = calls.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let seen = seen.clone();
            async move {
                let path = request.uri().path().to_owned();
                if path.contains("/namespaces/ending/") {
                    seen.fetch_add(1, Ordering::Relaxed);
                    return answer("ending");
                }
                if path.contains("/namespaces/closed/") {
                    seen.fetch_add(1, Ordering::Relaxed);
                    let quota =
                        json!({"status": "Failure", "code": 403, "reason": "Forbidden", "message": "exceeded quota"});
                    let answer = Response::builder().status(403).body(Body::from(quota.to_string().into_bytes()));
                    return answer.map_err(kube::Error::HttpError);
                }
                let body = request.into_body().collect_bytes().await?;
                Response::builder().status(201).body(Body::from(body)).map_err(kube::Error::HttpError)
            }
        });
        (Fence::default().around(&Client::new(service, "default"), &Ending::default()), calls)
    }

    fn config_map(owner: &Value) -> ConfigMap {
        let map = json!({"metadata": {"name": "m", "ownerReferences": [owner]}});
        serde_json::from_value(map).unwrap()
    }

    fn owner(version: &str, kind: &str, uid: &str) -> Value {
        json!({"apiVersion": version, "kind": kind, "name": "web", "uid": uid, "controller": true})
    }

    #[tokio::test]
    async fn one_refusal_is_enough_for_all_that_an_object_would_make_in_its_ending_namespace() {
        let (client, calls) = server();
        let calls = || calls.swap(0, Ordering::Relaxed);
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), "ending");
        let set = config_map(&owner("apps.kruise.io/v1alpha1", "CloneSet", "u1"));
        for round in 0..5 {
            let error = api.create(&PostParams::default(), &set).await.unwrap_err();
            assert!(namespace_is_ending(&error) && code(&error) == Some(403), "{round}: {error:?}");
        }
        assert_eq!(calls(), 1);
        // Events about it, too, whichever comes first.
        let event = |uid: &str, namespace: &str| -> Event {
            let about = json!({"kind": "CloneSet", "namespace": namespace, "name": "web", "uid": uid});
            serde_json::from_value(json!({"metadata": {"name": "e"}, "involvedObject": about})).unwrap()
        };
        let events: Api<Event> = Api::namespaced(client.clone(), "ending");
        events.create(&PostParams::default(), &event("u1", "ending")).await.unwrap_err();
        assert_eq!(calls(), 0);
        // Its namesake, in a namespace that was made again, is another one.
        let other = config_map(&owner("apps.kruise.io/v1alpha1", "CloneSet", "u2"));
        api.create(&PostParams::default(), &other).await.unwrap_err();
        assert_eq!(calls(), 1);
        let elsewhere: Api<ConfigMap> = Api::namespaced(client, "web");
        elsewhere.create(&PostParams::default(), &set).await.unwrap();
    }

    #[tokio::test]
    async fn what_outlives_the_namespace_tries_again() {
        let (client, calls) = server();
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), "ending");
        let nobody = json!({"apiVersion": "example.com/v1", "kind": "Whatever", "name": "x", "uid": "u"});
        for owner in [owner("apps.kruise.io/v1alpha1", "ResourceDistribution", "u1"), nobody] {
            for _ in 0..2 {
                api.create(&PostParams::default(), &config_map(&owner)).await.unwrap_err();
            }
            assert_eq!(calls.swap(0, Ordering::Relaxed), 2, "{owner}");
        }
        // An event about an object of no namespace.
        let events: Api<Event> = Api::namespaced(client.clone(), "ending");
        let about = json!({"kind": "ResourceDistribution", "name": "web", "uid": "u1"});
        let event: Event = serde_json::from_value(json!({"metadata": {"name": "e"}, "involvedObject": about})).unwrap();
        for _ in 0..2 {
            events.create(&PostParams::default(), &event).await.unwrap_err();
        }
        assert_eq!(calls.swap(0, Ordering::Relaxed), 2);
        // Any other refusal may be over at any time.
        let closed: Api<ConfigMap> = Api::namespaced(client, "closed");
        for _ in 0..2 {
            let set = config_map(&owner("apps.kruise.io/v1alpha1", "CloneSet", "u1"));
            let error = closed.create(&PostParams::default(), &set).await.unwrap_err();
            assert!(error.to_string().contains("exceeded quota"), "the answer is passed on: {error}");
        }
        assert_eq!(calls.swap(0, Ordering::Relaxed), 2);
    }

    #[test]
    fn a_creation_is_a_post_to_a_collection_in_a_namespace() {
        let request = |method: &str, uri: &str| Request::builder().method(method).uri(uri).body(()).unwrap();
        for (method, uri, namespace) in [
            ("POST", "/api/v1/namespaces/a/pods", Some("a")),
            ("POST", "/api/v1/namespaces/a/pods?dryRun=All", Some("a")),
            ("POST", "/apis/apps/v1/namespaces/a/controllerrevisions", Some("a")),
            ("POST", "/api/v1/namespaces/a/pods/p/eviction", None),
            ("POST", "/api/v1/namespaces", None),
            ("POST", "/apis/apps.kruise.io/v1alpha1/nodeimages", None),
            ("PATCH", "/api/v1/namespaces/a/pods", None),
        ] {
            assert_eq!(created_in(&request(method, uri)), namespace, "{method} {uri}");
        }
    }

    #[tokio::test]
    async fn a_claim_that_names_no_owner_is_made_for_somebody_too() {
        let (client, calls) = server();
        let claim = json!({"metadata": {"name": "data-web-0"}});
        let path = "/api/v1/namespaces/ending/persistentvolumeclaims";
        for (uid, sent) in [("u1", 1), ("u1", 0), ("u2", 1)] {
            let error = post_for(&client, path, &claim, MadeFor(uid.into())).await.unwrap_err();
            assert!(namespace_is_ending(&error), "{error:?}");
            assert_eq!(calls.swap(0, Ordering::Relaxed), sent, "{uid}");
        }
        post(&client, path, &claim).await.unwrap_err();
        assert_eq!(calls.swap(0, Ordering::Relaxed), 1, "nobody knows for whom");
    }

    #[test]
    fn namespaces_in_which_nothing_is_made_any_more_are_forgotten() {
        let ending = Ending::default();
        let (at, of) = (Duration::from_secs, || Some("u1".to_owned()));
        ending.note("a", of(), at(1));
        assert!(ending.knows("a", of, at(500)));
        ending.note("b", of(), at(1000));
        assert!(ending.knows("a", of, at(1000)), "it was asked for meanwhile");
        ending.note("b", of(), at(1600));
        assert!(!ending.knows("a", of, at(1600)) && ending.knows("b", of, at(1600)));
    }
}
