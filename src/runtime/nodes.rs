//! The Nodes of the cluster: one watch and one store for all controllers.
//!
//! A Node is decoded straight into a [`NodeView`], from protobuf, where its images and annotations are passed over. A heartbeat
//! that leaves the view as it was is reported to nobody.

use std::sync::Arc;

use kube::{Api, Client};

use super::{
    apply::code,
    watches::{self, Change, ObjectKey, Store},
};
use crate::k8s::{name::is_dns_subdomain, node::NodeView};

/// The Nodes of the cluster. Clones share one store.
#[derive(Clone)]
pub struct Nodes {
    client: Client,
    store: Arc<Store<NodeView>>,
}

impl Nodes {
    /// An empty store, which [`Nodes::watch`] fills.
    pub fn new(client: Client) -> Self {
        Self { client, store: Store::new(None) }
    }

    /// The store itself, to wait until it is in view.
    pub fn store(&self) -> &Arc<Store<NodeView>> {
        &self.store
    }

    /// A Node, if the watch has brought it.
    pub fn get(&self, name: &str) -> Option<Arc<NodeView>> {
        self.store.get(&ObjectKey::new("", name))
    }

    /// All Nodes, in no order.
    pub fn list(&self) -> Vec<Arc<NodeView>> {
        self.store.list()
    }

    /// The Nodes that fit, in no order.
    pub fn select(&self, fits: impl Fn(&NodeView) -> bool) -> Vec<Arc<NodeView>> {
        self.store.select(fits)
    }

    /// A Node; one that the watch has not brought is read from the API server. `None`: it does not exist, whatever the
    /// watch has still to bring.
    ///
    /// # Errors
    /// Those of the API server.
    pub async fn find(&self, name: &str) -> kube::Result<Option<Arc<NodeView>>> {
        if let Some(known) = self.get(name) {
            return Ok(Some(known));
        }
        if !is_dns_subdomain(name) {
            return Ok(None);
        }
        let api: Api<NodeView> = Api::all(self.client.clone());
        match api.get(name).await {
            Ok(found) => Ok(Some(Arc::new(found))),
            Err(error) if code(&error) == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Keeps the store equal to the API server, for ever. `on_change` learns of a Node when it appears, when its view
    /// changes and when it is gone.
    pub async fn watch(&self, mut on_change: impl FnMut(&Change<'_, NodeView>) + Send) {
        let api: Api<NodeView> = Api::all(self.client.clone());
        let report = |change: Change<'_, NodeView>| {
            if is_news(&change) {
                on_change(&change);
            }
        };
        let kept = |mut node: NodeView| {
            if let Some(before) = self.get(node.name()) {
                node.goes_on_from(&before, self.store.is_listing());
            }
            node
        };
        watches::watch_in_protobuf(api, None, self.store.clone(), kept, report).await;
    }
}

/// Whether anybody can do anything about a change.
fn is_news(change: &Change<'_, NodeView>) -> bool {
    match change {
        Change::Applied { old: Some(old), new, .. } => !old.is_same_but_version(new),
        Change::Applied { old: None, .. } | Change::Deleted(_) | Change::Undecodable { .. } => true,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use axum::http::{Request, Response, StatusCode};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::{
        super::{fake_api, lock},
        *,
    };

    /// A Node of some 20 kB: 50 images with two names each.
    fn node(name: &str, version: u32, changes: Value) -> Value {
        let image = |i: u32| {
            let digest = format!("{i:064x}");
            json!({"names": [format!("registry.example/team/component-{i}@sha256:{digest}"),
                format!("registry.example/team/component-{i}:v1.{i}-{digest}")], "sizeBytes": 1})
        };
        let images: Vec<Value> = (0..50).map(image).collect();
        let mut node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "uid": name, "resourceVersion": version.to_string(), "labels": {"zone": "a"}},
            "status": {"images": images, "conditions": [{"type": "Ready", "status": "True",
                "lastHeartbeatTime": format!("2026-01-01T00:00:{:02}Z", version % 60)}]}});
        json_patch::merge(&mut node, &changes);
        node
    }

    /// An API server that answers a list with one Node, the first watch with these events, a read with 404 or another Node,
    /// and notes what it is asked.
    fn event(what: &str, object: Value) -> String {
        fake_api::event(what, &object)
    }

    fn server(events: Vec<String>) -> (Nodes, Arc<Mutex<Vec<String>>>) {
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let (notes, events) = (seen.clone(), Arc::new(Mutex::new(Some(events))));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
            let events = events.clone();
            lock(&notes).push(path.clone());
            async move {
                let (code, text) = match path.as_str() {
                    "/api/v1/nodes" if query.contains("watch=") => {
                        let Some(events) = lock(&events).take() else { return std::future::pending().await };
                        (200, events.concat())
                    }
                    "/api/v1/nodes" => {
                        let items = [node("n1", 1, json!({}))];
                        let list = json!({"apiVersion": "v1", "kind": "NodeList", "metadata": {"resourceVersion": "1"}, "items": items});
                        (200, list.to_string())
                    }
                    "/api/v1/nodes/late" => (200, node("late", 3, json!({})).to_string()),
                    _ => (
                        404,
                        json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"}).to_string(),
                    ),
                };
                let response = Response::builder().status(StatusCode::from_u16(code).unwrap());
                Ok::<_, std::convert::Infallible>(response.body(Body::from(text.into_bytes())).unwrap())
            }
        });
        (Nodes::new(Client::new(service, "default")), seen)
    }

    #[tokio::test]
    async fn heartbeats_are_reported_to_nobody() {
        let mut events: Vec<String> =
            (2..100).map(|version| event("MODIFIED", node("n1", version, json!({})))).collect();
        events.push(event("MODIFIED", node("n1", 100, json!({"spec": {"unschedulable": true}}))));
        events.extend(
            (101..200).map(|version| event("MODIFIED", node("n1", version, json!({"spec": {"unschedulable": true}})))),
        );
        events.push(event("DELETED", node("n1", 200, json!({}))));
        let (nodes, _) = server(events);
        let reported: Mutex<Vec<String>> = Mutex::default();
        let done = tokio::sync::Notify::new();
        let watch = nodes.watch(|change| match change {
            Change::Applied { old, new, .. } => {
                lock(&reported).push(format!("{} {} {}", new.name(), old.is_some(), new.unschedulable));
            }
            Change::Deleted(old) => {
                lock(&reported).push(format!("{} is gone", old.name()));
                done.notify_one();
            }
            Change::Undecodable { error, .. } => lock(&reported).push((*error).to_owned()),
        });
        tokio::select! {
            () = watch => panic!("a watch is for ever"),
            () = done.notified() => {}
        }
        assert_eq!(*lock(&reported), ["n1 false false", "n1 true true", "n1 is gone"]);
        assert!(nodes.list().is_empty());
    }

    #[tokio::test]
    async fn a_node_that_is_lost_after_it_was_not_ready_has_not_been_ready_since_then() {
        let ready = |version: u32, status: &str, minute: u32| {
            let time = format!("2026-01-01T00:{minute:02}:00Z");
            let conditions = json!([{"type": "Ready", "status": status, "lastTransitionTime": time}]);
            event("MODIFIED", node("n1", version, json!({"status": {"conditions": conditions}})))
        };
        let last = event("DELETED", node("n1", 9, json!({})));
        let (nodes, _) = server(vec![
            ready(2, "False", 1),
            ready(3, "Unknown", 2),
            ready(4, "False", 3),
            ready(5, "True", 4),
            ready(6, "Unknown", 5),
            last,
        ]);
        let (seen, done) = (Mutex::new(Vec::new()), tokio::sync::Notify::new());
        let watch = nodes.watch(|change| match change {
            Change::Applied { new, .. } => lock(&seen).push(new.not_ready_since.map(|since| since.to_string())),
            Change::Deleted(_) | Change::Undecodable { .. } => done.notify_one(),
        });
        tokio::select! {
            () = watch => panic!("a watch is for ever"),
            () = done.notified() => {}
        }
        let at = |minute: u32| Some(format!("2026-01-01T00:{minute:02}:00Z"));
        assert_eq!(*lock(&seen), [None, at(1), at(1), at(1), None, at(5)]);
    }

    #[tokio::test]
    async fn a_node_that_the_watch_has_not_brought_is_read_and_no_other() {
        let (nodes, seen) = server(Vec::new());
        nodes.store().upsert(serde_json::from_value(node("known", 1, json!({}))).unwrap());
        let found = async |name: &str| nodes.find(name).await.unwrap().map(|node| node.name().to_owned());
        assert_eq!(found("known").await.as_deref(), Some("known"));
        assert!(lock(&seen).is_empty());
        assert_eq!(found("late").await.as_deref(), Some("late"));
        assert_eq!(found("none").await, None);
        assert_eq!(found("no/name?x").await, None);
        assert_eq!(*lock(&seen), ["/api/v1/nodes/late", "/api/v1/nodes/none"]);
    }
}
