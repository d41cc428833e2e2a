//! Against an API server in memory that keeps one ConfigMap and one Pod.

use axum::http::{Method, request::Parts};
use serde_json::Value;

use super::*;
use crate::controllers::in_memory;

#[derive(Default)]
struct Server {
    config_map: Option<Value>,
    pod: Value,
    writes: Vec<String>,
}

type Shared = Arc<Mutex<Server>>;

fn answer(server: &Shared, parts: &Parts, body: &[u8]) -> (u16, Value) {
    let server = &mut *lock(server);
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let failed = |code: u16| (code, json!({"kind": "Status", "code": code, "reason": "x", "message": "x"}));
    let path = parts.uri.path();
    if path == "/api/v1/namespaces/a/pods/p/status" {
        assert_eq!(body["metadata"]["uid"], server.pod["metadata"]["uid"]);
        for (key, value) in body["metadata"]["annotations"].as_object().unwrap() {
            server.writes.push(format!("pod {key}={}", value.as_str().unwrap()));
        }
        json_patch::merge(&mut server.pod, &body);
        return (200, server.pod.clone());
    }
    let text = |value: &Value| -> String {
        let data = value["data"].as_object().into_iter().flatten();
        data.map(|(key, value)| if value.is_null() { format!("-{key}") } else { key.clone() })
            .collect::<Vec<_>>()
            .join(",")
    };
    match (&parts.method, path) {
        (&Method::POST, "/api/v1/namespaces/a/configmaps") if server.config_map.is_none() => {
            server.writes.push(format!("create {}", text(&body)));
            let mut made = body;
            made["metadata"]["uid"] = "c1".into();
            made["metadata"]["resourceVersion"] = "1".into();
            (201, server.config_map.insert(made).clone())
        }
        (&Method::POST, _) => failed(409),
        (method, "/api/v1/namespaces/a/configmaps/p-barrier") => {
            let Some(config_map) = &mut server.config_map else { return failed(404) };
            if *method == Method::PATCH {
                let meant = &body["metadata"];
                if meant["uid"] != config_map["metadata"]["uid"] {
                    return failed(409);
                }
                server.writes.push(format!("patch {}", text(&body)));
                json_patch::merge(config_map, &body);
            }
            (200, config_map.clone())
        }
        other => panic!("{other:?}"),
    }
}

/// The controller of a Pod with containers `high` (5), `low` (0) and `lower` (-3).
fn controller() -> (Controller, Shared) {
    let container = |name: &str, priority: i32| {
        json!({"name": name, "env": [{"name": "KRUISE_CONTAINER_BARRIER",
            "valueFrom": {"configMapKeyRef": {"name": "p-barrier", "key": launch_priority::key_of(priority)}}}]})
    };
    let pod = json!({"metadata": {"name": "p", "namespace": "a", "uid": "u1", "resourceVersion": "1"},
        "spec": {"containers": [container("high", 5), container("low", 0), container("lower", -3)]}, "status": {"phase": "Pending"}});
    let server = Arc::new(Mutex::new(Server { pod, ..Server::default() }));
    let context = {
        let server = server.clone();
        in_memory::context(move |parts, body| answer(&server, parts, body))
    };
    (Controller { context, memories: Mutex::default() }, server)
}

/// Shows the controller the Pod with these containers ready and the others held by kubelet.
async fn with_ready(controller: &Controller, server: &Shared, ready: &[&str]) -> Requeue {
    let pod = {
        let server = &mut *lock(server);
        let status = |name: &str| match ready.contains(&name) {
            true => json!({"name": name, "ready": true, "restartCount": 0, "state": {"running": {}}}),
            false => {
                json!({"name": name, "restartCount": 0, "state": {"waiting": {"reason": "CreateContainerConfigError"}}})
            }
        };
        server.pod["status"]["containerStatuses"] = ["high", "low", "lower"].map(status).into();
        server.pod.clone()
    };
    controller.context.pods.upsert(serde_json::from_value(pod).unwrap());
    controller.reconcile(&ObjectKey::new("a", "p")).await.unwrap()
}

fn writes(server: &Shared) -> Vec<String> {
    std::mem::take(&mut lock(server).writes)
}

const OPENED: &str = "pod kruise.rs/launch-priority-opened";
const DONE: &str = "pod apps.kruise.io/container-launch-priority-completed=true";

#[tokio::test]
async fn levels_are_opened_one_after_the_other_and_then_the_pod_is_left_alone() {
    let (controller, server) = controller();
    with_ready(&controller, &server, &[]).await;
    assert_eq!(writes(&server), ["create p_5".to_owned(), format!("{OPENED}=5")]);
    let owner = lock(&server).config_map.clone().unwrap()["metadata"]["ownerReferences"].clone();
    assert_eq!(owner, json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u1"}]));
    assert_eq!(with_ready(&controller, &server, &[]).await, Requeue::After(LOOK_AGAIN));
    assert_eq!(writes(&server), Vec::<String>::new(), "once is enough");
    with_ready(&controller, &server, &["high"]).await;
    assert_eq!(writes(&server), ["patch p_0,p_5".to_owned(), format!("{OPENED}=0")]);
    with_ready(&controller, &server, &["high", "low"]).await;
    assert_eq!(writes(&server), ["patch p_-3,p_0,p_5", DONE]);
    assert_eq!(with_ready(&controller, &server, &["high", "low"]).await, Requeue::Await);
    assert_eq!(with_ready(&controller, &server, &[]).await, Requeue::Await, "it crashes later");
    assert_eq!(writes(&server), Vec::<String>::new());
    assert!(lock(&controller.memories).is_empty());
}

#[tokio::test]
async fn case_32_a_barrier_that_is_there_is_used_after_a_restart_of_the_manager() {
    let (first, server) = controller();
    with_ready(&first, &server, &["high"]).await;
    assert_eq!(writes(&server)[0], "create p_0,p_5");
    let (mut second, _) = controller();
    second.context = first.context.clone();
    with_ready(&second, &server, &["high"]).await;
    assert_eq!(writes(&server), [format!("{OPENED}=0")], "kubelet is woken once more, nothing else");
    with_ready(&second, &server, &["high", "low"]).await;
    assert_eq!(writes(&server), ["patch p_-3,p_0,p_5", DONE]);
}

#[tokio::test]
async fn a_barrier_of_a_former_pod_opens_nothing() {
    let (controller, server) = controller();
    lock(&server).config_map =
        Some(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"p_0": "true", "p_5": "true", "p_-3": "true"},
        "metadata": {"name": "p-barrier", "namespace": "a", "uid": "c0", "resourceVersion": "7",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u0"}]}}));
    with_ready(&controller, &server, &[]).await;
    assert_eq!(writes(&server)[0], "patch -p_-3,-p_0,p_5");
    let config_map = lock(&server).config_map.clone().unwrap();
    assert_eq!(config_map["data"], json!({"p_5": "true"}));
    assert_eq!(config_map["metadata"]["ownerReferences"][0]["uid"], "u1");
}

#[tokio::test]
async fn a_config_map_of_somebody_else_is_left_alone() {
    let (controller, server) = controller();
    let theirs = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "p-barrier", "namespace": "a", "uid": "c0"}, "data": {"p_0": "x"}});
    lock(&server).config_map = Some(theirs.clone());
    assert_eq!(with_ready(&controller, &server, &[]).await, Requeue::After(LOOK_AGAIN));
    assert_eq!((writes(&server), lock(&server).config_map.clone()), (Vec::new(), Some(theirs)));
}

#[tokio::test]
async fn a_barrier_that_was_deleted_is_made_again() {
    let (controller, server) = controller();
    with_ready(&controller, &server, &[]).await;
    lock(&server).config_map = None;
    writes(&server);
    assert_eq!(with_ready(&controller, &server, &["high"]).await, Requeue::After(AFTER_WATCHED_CONFLICT));
    with_ready(&controller, &server, &["high"]).await;
    assert_eq!(writes(&server)[0], "create p_0,p_5");
}

#[tokio::test]
async fn a_pod_that_is_gone_is_forgotten() {
    let (controller, server) = controller();
    with_ready(&controller, &server, &[]).await;
    assert_eq!(lock(&controller.memories).len(), 1);
    let key = ObjectKey::new("a", "p");
    controller.context.pods.remove(&key, None);
    assert_eq!(controller.reconcile(&key).await.unwrap(), Requeue::Await);
    assert!(lock(&controller.memories).is_empty());
}
