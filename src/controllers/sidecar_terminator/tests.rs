//! The controller against an API server in memory that keeps one Pod and its requests.

use std::sync::Mutex;

use axum::http::{Method, request::Parts};
use serde_json::Value;

use super::*;
use crate::{controllers::in_memory, runtime::lock};

const POD: &str = "/api/v1/namespaces/ns/pods/p";
const REQUESTS: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/containerrecreaterequests";

#[derive(Default)]
struct Played {
    pod: Value,
    requests: Vec<Value>,
    writes: Vec<(String, Value)>,
    refuse: u16,
    version: u64,
}

impl Played {
    fn answer(&mut self, parts: &Parts, body: &[u8]) -> (u16, Value) {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let path = parts.uri.path();
        let refused = |code: u16| (code, json!({"kind": "Status", "code": code, "message": "not here"}));
        if parts.method != Method::GET {
            self.writes.push((format!("{} {path}", parts.method), body.clone()));
            if self.refuse != 0 {
                return refused(self.refuse);
            }
        }
        self.version += 1;
        match (&parts.method, path.strip_prefix(REQUESTS)) {
            (&Method::POST, Some("")) => {
                if self.requests.iter().any(|there| there["metadata"]["name"] == body["metadata"]["name"]) {
                    return refused(409);
                }
                let mut made = body;
                made["metadata"]["uid"] = format!("r{}", self.version).into();
                made["metadata"]["resourceVersion"] = self.version.to_string().into();
                self.requests.push(made.clone());
                (201, made)
            }
            (&Method::GET, Some(name)) => {
                let found =
                    self.requests.iter().find(|there| there["metadata"]["name"] == name.trim_start_matches('/'));
                found.map_or_else(|| refused(404), |found| (200, found.clone()))
            }
            (&Method::PATCH, None) => {
                assert_eq!(body["metadata"]["uid"], "u1");
                super::super::fake::strategic(&mut self.pod, &body);
                self.pod["metadata"]["resourceVersion"] = self.version.to_string().into();
                (200, self.pod.clone())
            }
            other => panic!("{other:?} {path}"),
        }
    }
}

struct World {
    played: Arc<Mutex<Played>>,
    controller: Controller,
}

impl World {
    fn new(policy: &str, env: &[&str]) -> Self {
        let env: Vec<Value> = env.iter().map(|name| json!({"name": name, "value": "true"})).collect();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns", "uid": "u1", "resourceVersion": "1"},
            "spec": {"nodeName": "n", "restartPolicy": policy,
                "containers": [{"name": "main", "image": "m:1"}, {"name": "proxy", "image": "p:1", "env": env}]},
            "status": {"phase": "Running", "containerStatuses": [
                {"name": "main", "state": {"terminated": {"exitCode": 0}}}, {"name": "proxy", "state": {"running": {}}}]}});
        let played = Arc::new(Mutex::new(Played { pod: pod.clone(), version: 1, ..Played::default() }));
        let context = in_memory::context({
            let played = played.clone();
            move |parts, body| lock(&played).answer(parts, body)
        });
        let world = Self { played, controller: Controller::new(&context) };
        world.see(pod);
        world
    }

    fn see(&self, pod: Value) {
        self.controller.context.pods.upsert(serde_json::from_value(pod).unwrap());
    }

    async fn look(&self) -> kube::Result<Requeue> {
        self.controller.reconcile(&ObjectKey::new("ns", "p")).await
    }

    fn writes(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut lock(&self.played).writes)
    }
}

const SWITCH: &str = labels::ENV_TERMINATE_SIDECAR;

#[tokio::test]
async fn a_sidecar_whose_exit_code_counts_gets_one_request() {
    let world = World::new("Never", &[SWITCH]);
    assert_eq!(world.look().await.unwrap(), Requeue::Await);
    assert_eq!(world.look().await.unwrap(), Requeue::Await);
    let writes = world.writes();
    assert_eq!(writes.len(), 1);
    let (call, made) = &writes[0];
    assert_eq!(call, &format!("POST {REQUESTS}"));
    assert_eq!(made["metadata"]["name"], "sidecar-termination-u1");
    assert_eq!(
        made["metadata"]["ownerReferences"],
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u1", "controller": true}])
    );
    let spec = json!({"podName": "p", "containers": [{"name": "proxy"}], "ttlSecondsAfterFinished": 600,
        "strategy": {"forceRecreate": true, "failurePolicy": "Ignore"}});
    assert_eq!(made["spec"], spec);
}

#[tokio::test]
async fn an_ignored_exit_code_ends_the_pod_by_one_write_of_its_phase() {
    let world = World::new("Never", &[SWITCH, labels::ENV_IGNORE_EXIT_CODE]);
    world.look().await.unwrap();
    let writes = world.writes();
    assert_eq!((writes.len(), writes[0].0.as_str()), (1, &*format!("PATCH {POD}/status")));
    let (patch, condition) = (&writes[0].1, &writes[0].1["status"]["conditions"][0]);
    assert_eq!((&patch["status"]["phase"], &patch["metadata"]["resourceVersion"]), (&json!("Succeeded"), &json!("1")));
    assert_eq!((&condition["type"], &condition["status"]), (&json!("SidecarTerminated"), &json!("True")));
    // kubelet stops it: nothing is written meanwhile.
    assert!(matches!(world.look().await.unwrap(), Requeue::After(left) if left > Duration::from_secs(50)));
    assert!(world.writes().is_empty());
    assert!(lock(&world.played).requests.is_empty(), "preStop would run twice");
}

#[tokio::test]
async fn a_request_of_openkruise_for_the_pod_is_waited_for_and_then_followed_by_one_of_ours() {
    let world = World::new("Never", &[SWITCH]);
    let theirs = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
        "metadata": {"name": "sidecar-termination-u1", "namespace": "ns", "uid": "x", "resourceVersion": "5",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u1", "controller": true}]},
        "spec": {"podName": "p", "containers": [{"name": "proxy"}]}, "status": {"phase": "Recreating"}});
    lock(&world.played).requests.push(theirs);
    assert_eq!(world.look().await.unwrap(), Requeue::After(AGAIN));
    lock(&world.played).requests[0]["status"] = json!({"phase": "Completed", "completionTime": "2026-01-01T00:00:00Z"});
    assert_eq!(world.look().await.unwrap(), Requeue::After(AFTER_CONFLICT));
    assert_eq!(world.look().await.unwrap(), Requeue::Await);
    assert_eq!(lock(&world.played).requests[1]["metadata"]["name"], "sidecar-termination-u1-2");
}

#[tokio::test]
async fn requests_of_another_namespace_or_of_another_kind_of_owner_keep_no_sidecar_running() {
    for (namespace, version) in [("elsewhere", "v1"), ("ns", "example.com/v1")] {
        let world = World::new("Never", &[SWITCH]);
        let theirs = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
            "metadata": {"name": "other", "namespace": namespace, "uid": "x", "resourceVersion": "5",
                "labels": {labels::SIDECAR_TERMINATION: "u1"},
                "ownerReferences": [{"apiVersion": version, "kind": "Pod", "name": "p", "uid": "u1", "controller": true}]},
            "spec": {"podName": "p", "containers": [{"name": "proxy"}]}, "status": {"phase": "Recreating"}});
        world.controller.requests.upsert(serde_json::from_value(theirs).unwrap());
        world.look().await.unwrap();
        let writes = world.writes();
        assert_eq!(writes.len(), 1, "{namespace} {version}");
        assert_eq!(writes[0].0, format!("POST {REQUESTS}"));
    }
}

#[tokio::test]
async fn sw_e29_without_the_node_the_request_is_made_all_the_same() {
    let world = World::new("Never", &[SWITCH]);
    assert!(world.controller.context.nodes.get("n").is_none());
    assert_eq!(world.look().await.unwrap(), Requeue::Await);
    assert_eq!(world.writes()[0].0, format!("POST {REQUESTS}"));
}

#[tokio::test]
async fn on_a_virtual_node_the_image_of_the_sidecar_is_swapped() {
    let world = World::new("Never", &[SWITCH]);
    let node =
        json!({"metadata": {"name": "n", "uid": "n", "resourceVersion": "1", "labels": {"type": "virtual-kubelet"}}});
    world.controller.context.nodes.store().upsert(serde_json::from_value(node).unwrap());
    let mut pod = lock(&world.played).pod.clone();
    pod["spec"]["containers"][1]["env"] =
        json!([{"name": labels::ENV_TERMINATE_SIDECAR_WITH_IMAGE, "value": "exit:1"}]);
    pod["metadata"]["resourceVersion"] = "2".into();
    lock(&world.played).pod = pod.clone();
    lock(&world.played).version = 2;
    world.see(pod);
    world.look().await.unwrap();
    world.look().await.unwrap();
    let writes = world.writes();
    assert_eq!(writes.len(), 1, "{writes:?}");
    assert_eq!(
        (writes[0].0.as_str(), &writes[0].1["spec"]),
        (&*format!("PATCH {POD}"), &json!({"containers": [{"name": "proxy", "image": "exit:1"}]}))
    );
}

#[tokio::test]
async fn a_refusal_is_tried_again_and_pods_of_our_own_namespace_are_left_alone() {
    let world = World::new("Never", &[SWITCH]);
    lock(&world.played).refuse = 403;
    assert!(world.look().await.is_err());
    lock(&world.played).refuse = 0;
    assert!(world.look().await.is_ok());
    let mut own = World::new("Never", &[SWITCH]);
    own.controller.context.namespace = "ns".into();
    assert_eq!(own.look().await.unwrap(), Requeue::Await);
    assert!(own.writes().is_empty());
}

#[test]
fn a_pod_is_looked_at_when_its_main_containers_have_ended() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _in = runtime.enter();
    let world = World::new("Never", &[SWITCH]);
    let due = world.controller.context.pods.list().remove(0);
    world.controller.pod_changed(&Change::Applied { old: None, new: &due, initial: true });
    assert_eq!(world.controller.queue.begin(), Some(ObjectKey::new("ns", "p")));
    let mut early = PodView::clone(&due);
    early.phase = "Pending".into();
    let other = Arc::new(early);
    let queue = &world.controller.queue;
    queue.done::<kube::Error>(ObjectKey::new("ns", "p"), Ok(Requeue::Await));
    world.controller.pod_changed(&Change::Applied { old: None, new: &other, initial: false });
    assert_eq!(queue.begin(), None);
}
