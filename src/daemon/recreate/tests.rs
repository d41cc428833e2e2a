//! The daemon's controller over a fake runtime (real gRPC) and an API server that keeps requests in memory.

use std::sync::atomic::{AtomicBool, Ordering};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::{ExecAction, LifecycleHandler};
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;
use crate::{
    api::crr::ContainerRecreateState,
    cri::fake::{Call, FakeRuntime},
    runtime::queue::Backoff,
};

/// One stored request, patched as the API server patches it: 409 unless the version is the current one.
#[derive(Clone)]
struct FakeApi {
    object: Arc<Mutex<Value>>,
    /// The next patch meets a version that somebody else has just written.
    interfere: Arc<AtomicBool>,
}

impl FakeApi {
    fn client(&self) -> KubeClient {
        let this = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let this = this.clone();
            async move { this.answer(request).await }
        });
        KubeClient::new(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Result<Response<Body>, std::convert::Infallible> {
        let reply = |code: StatusCode, body: &Value| {
            Ok(Response::builder().status(code).body(Body::from(serde_json::to_vec(body).unwrap())).unwrap())
        };
        if !request.uri().path().contains("containerrecreaterequests") {
            return reply(StatusCode::CREATED, &json!({})); // events
        }
        if request.method() == Method::GET {
            return reply(StatusCode::OK, &self.object.lock().unwrap());
        }
        assert_eq!((request.method(), request.uri().path().ends_with("/status")), (&Method::PATCH, true));
        let mut patch: Value =
            serde_json::from_slice(&request.into_body().collect().await.unwrap().to_bytes()).unwrap();
        let mut object = self.object.lock().unwrap();
        if self.interfere.swap(false, Ordering::SeqCst) {
            bump(&mut object);
        }
        let wanted = patch["metadata"]["resourceVersion"].clone();
        assert!(wanted.is_string(), "every write carries the version it was decided on");
        if wanted != object["metadata"]["resourceVersion"] {
            let status =
                json!({"kind": "Status", "status": "Failure", "reason": "Conflict", "message": "changed", "code": 409});
            return reply(StatusCode::CONFLICT, &status);
        }
        patch.as_object_mut().unwrap().remove("metadata");
        json_patch::merge(&mut object, &patch);
        bump(&mut object);
        reply(StatusCode::OK, &object)
    }

    fn states(&self) -> Vec<ContainerRecreateState> {
        let object: ContainerRecreateRequest = serde_json::from_value(self.object.lock().unwrap().clone()).unwrap();
        states_of(&object)
    }
}

fn bump(object: &mut Value) {
    let version: u64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    object["metadata"]["resourceVersion"] = json!((version + 1).to_string());
}

struct Fixture {
    api: FakeApi,
    runtime: FakeRuntime,
    recreator: Arc<Recreator>,
}

impl Fixture {
    /// A node with one Pod `web` whose container `main` runs as `c0`, and a request for it.
    async fn new(pre_stop: Option<LifecycleHandler>) -> Self {
        let object = json!({
            "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
            "metadata": {"name": "r1", "namespace": "a", "uid": "r1", "resourceVersion": "10",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"crr.apps.kruise.io/pod-uid": "u1", "crr.apps.kruise.io/active": "true"}},
            "spec": {"podName": "web", "strategy": {"terminationGracePeriodSeconds": 30}, "containers": [
                {"name": "main", "preStop": pre_stop, "statusContext": {"containerID": "containerd://c0", "restartCount": 0}}]},
        });
        let api = FakeApi { object: Arc::new(Mutex::new(object.clone())), interfere: Arc::default() };
        let runtime = FakeRuntime::start();
        runtime.run("c0", "a", "u1", "main", 0);
        let runtimes = Runtimes::default();
        runtimes.insert("containerd".into(), CriClient::new(runtime.socket.clone()));
        let requests: Arc<Store<ContainerRecreateRequest>> = Store::new(Some(|r| Some(r.pod_uid().to_owned())));
        requests.upsert(serde_json::from_value(object).unwrap());
        let pods: Arc<Store<PodView>> = Store::new(None);
        let metrics = Metrics::default();
        let (events, _) = Recorder::new(api.client(), "test", "n1", metrics.events_dropped.clone());
        let queue = Queue::new(Backoff::default());
        let recreator = Recreator::new(api.client(), requests, pods, runtimes, queue, events, &metrics);
        let fixture = Self { api, runtime, recreator };
        fixture.report("c0", 0, "5");
        fixture
    }

    fn report(&self, id: &str, restart_count: i32, version: &str) {
        let pod = json!({
            "metadata": {"name": "web", "namespace": "a", "uid": "u1", "resourceVersion": version},
            "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": format!("containerd://{id}"),
                "ready": true, "restartCount": restart_count, "state": {"running": {}}}]}
        });
        self.recreator.pods.upsert(serde_json::from_value(pod).unwrap());
    }

    async fn reconcile(&self) -> Result<Requeue, PassError> {
        self.recreator.clone().reconcile(PodUid("u1".into()), Interrupt::never()).await
    }

    fn calls(&self) -> Vec<Call> {
        self.runtime.world().calls.clone()
    }
}

fn exec_hook() -> Option<LifecycleHandler> {
    Some(LifecycleHandler { exec: Some(ExecAction { command: Some(vec!["drain".into()]) }), ..Default::default() })
}

#[tokio::test]
async fn a_request_is_carried_out_from_intent_to_completion() {
    let fixture = Fixture::new(exec_hook()).await;
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.calls(), [Call::Exec("c0".into(), vec!["drain".into()]), Call::Stop("c0".into(), 30)]);
    let state = fixture.api.states().remove(0);
    assert!(state.is_killed && state.hook_started_at.is_some());

    fixture.runtime.run("c1", "a", "u1", "main", 1);
    fixture.report("c1", 1, "6");
    assert_eq!(fixture.reconcile().await.unwrap(), Requeue::Await);
    let object = fixture.api.object.lock().unwrap().clone();
    assert_eq!(
        (&object["status"]["phase"], &object["status"]["containerRecreateStates"][0]["phase"]),
        (&json!("Completed"), &json!("Succeeded"))
    );
    assert_eq!(fixture.calls().len(), 2);
    let request = fixture.recreator.requests.get(&ObjectKey::new("a", "r1")).unwrap();
    fixture.recreator.request_gone(&request);
    assert!(fixture.recreator.memories().is_empty(), "nothing is remembered of a request that left");
}

#[tokio::test]
async fn a_conflict_is_read_again_before_anything_is_stopped() {
    let fixture = Fixture::new(None).await;
    fixture.api.interfere.store(true, Ordering::SeqCst);
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.calls(), [Call::Stop("c0".into(), 30)], "once, after the second look");
    assert!(fixture.api.states()[0].is_killed);
}

#[tokio::test]
async fn a_request_completed_meanwhile_is_not_acted_upon() {
    let fixture = Fixture::new(None).await;
    {
        let mut object = fixture.api.object.lock().unwrap();
        object["status"] = json!({"phase": "Completed"});
        bump(&mut object);
    }
    fixture.reconcile().await.unwrap();
    assert!(fixture.calls().is_empty());
}

#[tokio::test]
async fn a_runtime_that_answers_with_errors_fails_the_container() {
    let fixture = Fixture::new(None).await;
    fixture.runtime.world().stop_errors = vec![tonic::Status::internal("boom"); 3];
    fixture.reconcile().await.unwrap();
    let state = fixture.api.states().remove(0);
    assert_eq!((state.phase.as_str(), state.message.as_str()), ("Failed", "kill container error: StopContainer: boom"));
}

#[tokio::test]
async fn a_runtime_that_is_away_fails_nothing() {
    let fixture = Fixture::new(None).await;
    fixture.runtime.world().stop_errors = vec![tonic::Status::unavailable("restarting")];
    let error = fixture.reconcile().await.unwrap_err();
    assert!(matches!(error, PassError::Cri(ref e) if e.is_transient()), "{error}");
    fixture.reconcile().await.unwrap();
    assert!(fixture.api.states()[0].is_killed);
}

#[tokio::test]
async fn a_container_that_is_already_gone_is_no_failure() {
    let fixture = Fixture::new(None).await;
    fixture.runtime.world().stop_errors = vec![tonic::Status::not_found("no such container")];
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.api.states()[0].phase, Phase::Recreating);
}

#[tokio::test]
async fn deleting_a_request_cancels_its_hook_and_stops_nothing() {
    let fixture = Fixture::new(exec_hook()).await;
    fixture.runtime.world().exec_hangs = true;
    let queue = fixture.recreator.queue.clone();
    let (stop, shutdown) = tokio::sync::watch::channel(false);
    let recreator = fixture.recreator.clone();
    let running = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.run(4, shutdown, move |uid, i| recreator.clone().reconcile(uid, i)).await })
    };
    queue.add(PodUid("u1".into()));
    while fixture.calls().is_empty() {
        tokio::task::yield_now().await;
    }
    let request = fixture.recreator.requests.remove(&ObjectKey::new("a", "r1"), None).unwrap();
    fixture.recreator.request_gone(&request);
    stop.send_replace(true);
    running.await.unwrap();
    assert_eq!(fixture.calls(), [Call::Exec("c0".into(), vec!["drain".into()])]);
}
