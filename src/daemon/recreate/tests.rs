//! The daemon's controller over a fake runtime (real gRPC) and an API server that keeps requests in memory.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::{ExecAction, LifecycleHandler};
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;
use crate::{
    api::crr::ContainerRecreateState,
    cri::{
        fake::{Call, FakeRuntime, Fault},
        proto::ContainerState,
    },
    runtime::queue::Backoff,
};

/// Stored requests, patched as the API server patches them: 409 unless the version is the current one.
#[derive(Clone)]
struct FakeApi {
    /// `r1`, that of Pod `web`.
    object: Arc<Mutex<Value>>,
    /// `r2`, that of Pod `other`.
    second: Arc<Mutex<Value>>,
    writes: Arc<AtomicUsize>,
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
        let object = if request.uri().path().contains("/r2") { &self.second } else { &self.object };
        if request.method() == Method::GET {
            return reply(StatusCode::OK, &object.lock().unwrap());
        }
        assert_eq!((request.method(), request.uri().path().ends_with("/status")), (&Method::PATCH, true));
        let mut patch: Value =
            serde_json::from_slice(&request.into_body().collect().await.unwrap().to_bytes()).unwrap();
        let mut object = object.lock().unwrap();
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
        self.writes.fetch_add(1, Ordering::SeqCst);
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

/// A request for container `main` of a Pod, whose instance is `id`.
fn stored(name: &str, pod: &str, uid: &str, id: &str, pre_stop: Option<&LifecycleHandler>) -> Value {
    json!({
        "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
        "metadata": {"name": name, "namespace": "a", "uid": name, "resourceVersion": "10",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"crr.apps.kruise.io/pod-uid": uid, "crr.apps.kruise.io/active": "true"}},
        "spec": {"podName": pod, "strategy": {"terminationGracePeriodSeconds": 30}, "containers": [
            {"name": "main", "preStop": pre_stop, "statusContext": {"containerID": format!("containerd://{id}"), "restartCount": 0}}]},
    })
}

struct Fixture {
    api: FakeApi,
    runtime: FakeRuntime,
    recreator: Arc<Recreator>,
}

impl Fixture {
    /// A node with one Pod `web` whose container `main` runs as `c0`, and a request for it.
    async fn new(pre_stop: Option<LifecycleHandler>) -> Self {
        let runtime = FakeRuntime::start();
        let client = CriClient::new(runtime.socket.clone());
        Self::with(runtime, client, pre_stop)
    }

    /// The same for paused time.
    fn in_memory(pre_stop: Option<LifecycleHandler>) -> Self {
        let (runtime, client) = FakeRuntime::in_memory();
        Self::with(runtime, client, pre_stop)
    }

    fn with(runtime: FakeRuntime, client: CriClient, pre_stop: Option<LifecycleHandler>) -> Self {
        let object = stored("r1", "web", "u1", "c0", pre_stop.as_ref());
        let api = FakeApi {
            object: Arc::new(Mutex::new(object.clone())),
            second: Arc::default(),
            writes: Arc::default(),
            interfere: Arc::default(),
        };
        runtime.run("c0", "a", "u1", "main", 0);
        let runtimes = Runtimes::default();
        runtimes.insert("containerd".into(), client);
        let requests: Arc<Store<ContainerRecreateRequest>> = Store::new([BY_POD]);
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

    /// A second Pod, `other`, with a request of its own.
    fn add_second(&self) {
        let object = stored("r2", "other", "u2", "d0", None);
        *self.api.second.lock().unwrap() = object.clone();
        self.runtime.run("d0", "a", "u2", "main", 0);
        self.report_of("other", "u2", "d0", 0, "5");
        self.recreator.requests.upsert(serde_json::from_value(object).unwrap());
    }

    fn report(&self, id: &str, restart_count: i32, version: &str) {
        self.report_of("web", "u1", id, restart_count, version);
    }

    fn report_of(&self, name: &str, uid: &str, id: &str, restart_count: i32, version: &str) {
        let pod = json!({
            "metadata": {"name": name, "namespace": "a", "uid": uid, "resourceVersion": version},
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

    /// Whether the hook of `c0` counts for others.
    async fn hook_was_run(&self) -> bool {
        self.recreator.runtimes.stops.turn("containerd://c0").await.hook_was_run(clock::now())
    }

    fn status(&self) -> Value {
        self.api.object.lock().unwrap()["status"].clone()
    }

    /// Runs the daemon, and a kubelet that starts within 100 ms what has ended, until the course of the test has ended.
    async fn during(&self, course: impl Future<Output = ()>) {
        let queue = self.recreator.queue.clone();
        let (_stop, shutdown) = tokio::sync::watch::channel(false);
        let recreator = self.recreator.clone();
        let daemon = {
            let queue = queue.clone();
            async move { queue.run(8, shutdown, move |uid, i| recreator.clone().reconcile(uid, i)).await }
        };
        let kubelet = async {
            loop {
                for (pod, uid, old, new) in [("web", "u1", "c0", "c1"), ("other", "u2", "d0", "d1")] {
                    let due = {
                        let world = self.runtime.world();
                        let exited = i32::from(ContainerState::ContainerExited);
                        world.containers.get(old).is_some_and(|c| c.state == exited)
                            && !world.containers.contains_key(new)
                    };
                    if due {
                        self.runtime.run(new, "a", uid, "main", 1);
                        self.report_of(pod, uid, new, 1, "6");
                        self.recreator.pod_changed(uid);
                    }
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        for request in self.recreator.requests.list() {
            self.recreator.request_changed(&request);
        }
        tokio::select! {
            () = daemon => panic!("the queue ended"),
            () = kubelet => {}
            () = course => {}
        }
    }
}

/// Every call, failing in every way: the request says what it waits for, with the runtime's name and the call's, or
/// has ended; and when the runtime is well again it goes on. Hook and stop are never repeated without need.
#[tokio::test(start_paused = true)]
async fn a_runtime_that_answers_with_errors_or_late_or_never() {
    let unavailable = || Fault::Error(tonic::Status::unavailable("restarting"));
    let unknown = || Fault::Error(tonic::Status::unknown("boom"));
    let not_found = || Fault::Error(tonic::Status::not_found("gone"));
    let refused = || Fault::Error(tonic::Status::permission_denied("no"));
    let late = |seconds| Fault::Late(Duration::from_secs(seconds));
    let (list, status, stop, exec) =
        (("ListContainers", "u1"), ("ContainerStatus", "c1"), ("StopContainer", "c0"), ("ExecSync", "c0"));
    // After 100 s of the fault: what the request says, or nothing if it has ended. Then without the fault: its outcome.
    for ((call, about), fault, says, outcome) in [
        (list, unavailable(), "waiting for runtime containerd: ListContainers: it cannot be reached", "Succeeded"),
        (list, unknown(), "waiting for runtime containerd: ListContainers: boom", "Succeeded"),
        (list, not_found(), "waiting for runtime containerd: ListContainers: not found: gone", "Succeeded"),
        (list, late(3), "", "Succeeded"),
        (list, late(6), "waiting for runtime containerd: ListContainers got no answer within 5 s", "Succeeded"),
        (list, Fault::Never, "waiting for runtime containerd: ListContainers got no answer within 5 s", "Succeeded"),
        (status, unavailable(), "waiting for runtime containerd: ContainerStatus: it cannot be reached", "Succeeded"),
        (status, unknown(), "waiting for runtime containerd: ContainerStatus: boom", "Succeeded"),
        // Removed between the list and this call, as far as anybody knows.
        (status, not_found(), "", "Succeeded"),
        (status, late(3), "", "Succeeded"),
        (status, Fault::Never, "waiting for runtime containerd: ContainerStatus got no answer within 5 s", "Succeeded"),
        // Asked again until the grace period is over.
        (stop, unavailable(), "", "kill container error: containerd: StopContainer: it cannot be reached; asked "),
        (stop, unknown(), "", "kill container error: containerd: StopContainer: boom; asked "),
        (stop, refused(), "", "kill container error: containerd: StopContainer: no"),
        // It says that the container is gone, and lists it as running.
        (stop, not_found(), "", "kill container error: still running after 3 stop calls"),
        (stop, late(10), "", "Succeeded"),
        (stop, Fault::Never, "", "kill container error: containerd: StopContainer got no answer within "),
        (exec, unavailable(), "", "Succeeded"),
        (exec, unknown(), "", "Succeeded"),
        (exec, not_found(), "", "Succeeded"),
        (exec, late(3), "", "Succeeded"),
        (exec, Fault::Never, "", "Succeeded"),
    ] {
        let name = format!("{call} {fault:?}");
        let fixture = Fixture::in_memory((call == "ExecSync").then(exec_hook).flatten());
        fixture.runtime.world().faults.insert((call, about.to_owned()), fault);
        let course = async {
            tokio::time::sleep(Duration::from_secs(100)).await;
            let (status, state) = (fixture.status(), fixture.api.states().remove(0));
            if says.is_empty() {
                assert_eq!(status["phase"], "Completed", "{name}: {status}");
            } else {
                let message = status["message"].as_str().unwrap_or_default();
                assert!(message == says || state.message.starts_with(says), "{name}: {status}");
                assert_ne!(status["phase"], Value::Null, "{name}: the manager would miss a daemon");
            }
            let writes = fixture.api.writes.load(Ordering::SeqCst);
            assert!(writes <= 6, "{name}: {writes} writes");

            fixture.runtime.world().faults.clear();
            tokio::time::sleep(Duration::from_secs(60)).await;
        };
        fixture.during(course).await;
        let (status, state) = (fixture.status(), fixture.api.states().remove(0));
        assert_eq!(status["phase"], "Completed", "{name}: {status}");
        if outcome == "Succeeded" {
            assert_eq!((state.phase.as_str(), state.message.as_str()), ("Succeeded", ""), "{name}");
            assert_eq!(status.get("message"), None, "{name}: what it waited for is over");
            let world = fixture.runtime.world();
            assert!(!world.containers.contains_key("c2") && world.containers.contains_key("c1"), "{name}: one restart");
        } else {
            assert_eq!(state.phase.as_str(), "Failed", "{name}");
            assert!(state.message.starts_with(outcome), "{name}: {}", state.message);
        }
        let hooks = fixture.calls().iter().filter(|c| matches!(c, Call::Exec(..))).count();
        assert_eq!(hooks, usize::from(call == "ExecSync"), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_ordinary_restart_costs_no_write_for_what_might_go_wrong() {
    let fixture = Fixture::in_memory(None);
    fixture.during(tokio::time::sleep(Duration::from_secs(5))).await;
    assert_eq!(fixture.status()["phase"], "Completed");
    assert_eq!(fixture.api.writes.load(Ordering::SeqCst), 3, "the intent, the kill, the result");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_delays_no_other_pod() {
    for call in [("ListContainers", "u1"), ("StopContainer", "c0"), ("ExecSync", "c0")] {
        let fixture = Fixture::in_memory(exec_hook());
        fixture.add_second();
        fixture.runtime.world().faults.insert((call.0, call.1.to_owned()), Fault::Never);
        fixture.during(tokio::time::sleep(Duration::from_secs(1))).await;
        let second = fixture.api.second.lock().unwrap()["status"].clone();
        assert_eq!(second["containerRecreateStates"][0]["phase"], "Succeeded", "{call:?}: {second}");
        assert_ne!(fixture.status()["phase"], "Completed", "{call:?}");
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
    assert!(fixture.recreator.memories().is_empty());
}

#[tokio::test]
async fn a_runtime_that_refuses_a_stop_fails_the_container_at_once() {
    let fixture = Fixture::new(None).await;
    fixture.runtime.world().stop_errors = vec![tonic::Status::permission_denied("container c0: not yours")];
    fixture.reconcile().await.unwrap();
    let state = fixture.api.states().remove(0);
    assert_eq!(
        (state.phase.as_str(), state.message.as_str()),
        ("Failed", "kill container error: containerd: StopContainer: container main: not yours")
    );
    assert_eq!(fixture.calls().len(), 1, "it is not asked again");
}

/// What containerd answered to a daemon that came back between intent and kill.
fn passing() -> Vec<tonic::Status> {
    vec![tonic::Status::unknown("failed to get task for container c0: context deadline exceeded")]
}

#[tokio::test(start_paused = true)]
async fn an_error_that_passes_is_reported_and_the_stop_is_asked_again() {
    let fixture = Fixture::in_memory(None);
    fixture.runtime.world().stop_errors = passing();
    let course = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let text = "waiting for runtime containerd: StopContainer: failed to get task for container main: \
                    context deadline exceeded; asked again until the grace period is over";
        assert_eq!(fixture.status()["message"], text);
        tokio::time::sleep(Duration::from_secs(5)).await;
    };
    fixture.during(course).await;
    assert_eq!(fixture.api.states()[0].phase, Phase::Succeeded, "{}", fixture.status());
    assert_eq!(fixture.status().get("message"), None);
    // Times are recorded in whole seconds.
    let calls = fixture.calls();
    let asked = |grace| [Call::Stop("c0".into(), 30), Call::Stop("c0".into(), grace)];
    assert!(calls == asked(30) || calls == asked(29), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn a_daemon_killed_between_intent_and_kill_asks_again_when_the_runtime_answers_with_an_error_that_passes() {
    let fixture = Fixture::in_memory(None);
    let begun = clock::now().wall - Duration::from_secs(12);
    let mut object = fixture.api.object.lock().unwrap().clone();
    object["status"] = json!({"phase": "Recreating", "containerRecreateStates": [{"name": "main", "phase": "Recreating",
        "previousContainerID": "containerd://c0", "previousRestartCount": 0, "killStartedAt": begun, "message": "stopping"}]});
    *fixture.api.object.lock().unwrap() = object.clone();
    fixture.recreator.requests.upsert(serde_json::from_value(object).unwrap());
    fixture.runtime.world().stop_errors = passing();
    fixture.during(tokio::time::sleep(Duration::from_secs(5))).await;
    assert_eq!(fixture.api.states()[0].phase, Phase::Succeeded, "{}", fixture.status());
    assert_eq!(fixture.calls().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_a_runtime_that_is_late_and_fails_if_there_is_none() {
    let late = std::path::Path::new("/run/crio/crio.sock");
    for there_is_none in [false, true] {
        let fixture = Fixture::in_memory(None);
        let client = fixture.recreator.runtimes.get("containerd").unwrap();
        let mut object = stored("r1", "web", "u1", "c0", None);
        object["spec"]["containers"][0]["statusContext"]["containerID"] = json!("cri-o://c0");
        bump(&mut object);
        *fixture.api.object.lock().unwrap() = object.clone();
        fixture.recreator.requests.upsert(serde_json::from_value(object).unwrap());
        let runtimes = &fixture.recreator.runtimes;
        runtimes.note_unanswered(late, true);
        let course = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            assert_eq!(fixture.status(), Value::Null, "a short wait is not reported");
            tokio::time::sleep(Duration::from_secs(7)).await;
            assert_eq!(fixture.status()["message"], "waiting for runtime cri-o: /run/crio/crio.sock: no answer yet");
            assert_eq!(fixture.status()["phase"], "Pending");
            if !there_is_none {
                runtimes.insert("cri-o".into(), client);
            }
            runtimes.note_unanswered(late, false);
            tokio::time::sleep(Duration::from_secs(3)).await;
        };
        fixture.during(course).await;
        if there_is_none {
            let why = "container main: this node's daemon talks to [containerd], not to runtime cri-o";
            assert_eq!((&fixture.status()["phase"], &fixture.status()["message"]), (&json!("Completed"), &json!(why)));
        } else {
            assert_eq!(fixture.calls(), [Call::Stop("c0".into(), 30)]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_away_fails_nothing() {
    let fixture = Fixture::in_memory(None);
    fixture.runtime.world().stop_errors = vec![tonic::Status::unavailable("restarting")];
    let Requeue::After(pause) = fixture.reconcile().await.unwrap() else { panic!("it is asked again") };
    tokio::time::sleep(pause).await;
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
    fixture.runtime.world().faults.insert(("ExecSync", "c0".into()), Fault::Never);
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
    assert!(!fixture.hook_was_run().await, "whoever stops it next runs the hook");
}

/// Decision 5: each request has a hook and a grace of its own.
#[tokio::test(start_paused = true)]
async fn a_request_runs_its_hook_and_has_its_whole_grace_whatever_was_tried_before() {
    let fixture = Fixture::in_memory(exec_hook());
    // For the environment; its stop failed.
    let mut turn = fixture.recreator.runtimes.stops.turn("containerd://c0").await;
    turn.note_hook(Duration::from_secs(600), clock::now());
    drop(turn);
    tokio::time::sleep(Duration::from_secs(10)).await;
    fixture.runtime.world().stop_errors = vec![tonic::Status::permission_denied("no")];
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.status()["phase"], "Completed", "{}", fixture.status());

    tokio::time::sleep(Duration::from_secs(300)).await;
    let object = stored("r2", "web", "u1", "c0", exec_hook().as_ref());
    *fixture.api.second.lock().unwrap() = object.clone();
    fixture.recreator.requests.upsert(serde_json::from_value(object).unwrap());
    fixture.reconcile().await.unwrap();
    let attempt = || [Call::Exec("c0".into(), vec!["drain".into()]), Call::Stop("c0".into(), 30)];
    assert_eq!(fixture.calls(), [attempt(), attempt()].concat());
}

#[tokio::test(start_paused = true)]
async fn a_hook_counts_for_others_only_while_the_stop_after_it_may_be_repeated() {
    for (error, is_repeated) in [(passing().remove(0), true), (tonic::Status::permission_denied("no"), false)] {
        let fixture = Fixture::in_memory(exec_hook());
        fixture.runtime.world().stop_errors = vec![error.clone()];
        fixture.reconcile().await.unwrap();
        assert_eq!(fixture.hook_was_run().await, is_repeated, "{error}");
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert!(!fixture.hook_was_run().await, "{error}: nobody repeats it any more");
    }
}

/// Its stop was sent and is waited for. The manager would take the silence of a request that has come since then for an
/// absent daemon.
#[tokio::test(start_paused = true)]
async fn a_request_that_comes_during_the_stop_of_one_that_was_deleted_says_that_it_waits() {
    let fixture = Fixture::in_memory(None);
    fixture.runtime.world().faults.insert(("StopContainer", "c0".into()), Fault::Late(Duration::from_secs(20)));
    let second = || fixture.api.second.lock().unwrap()["status"].clone();
    let course = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let gone = fixture.recreator.requests.remove(&ObjectKey::new("a", "r1"), None).unwrap();
        fixture.recreator.request_gone(&gone);
        let object = stored("r2", "web", "u1", "c0", None);
        *fixture.api.second.lock().unwrap() = object.clone();
        // The first write meets a version that the watch has not brought, and nobody wakes the daemon.
        fixture.api.interfere.store(true, Ordering::SeqCst);
        fixture.recreator.requests.upsert(serde_json::from_value(object).unwrap());
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(second()["message"], "waiting for request r1 of the same Pod");
        assert_eq!(fixture.runtime.world().containers["c0"].state, i32::from(ContainerState::ContainerRunning));
        tokio::time::sleep(Duration::from_secs(30)).await;
    };
    fixture.during(course).await;
    assert_eq!(second()["containerRecreateStates"][0]["phase"], "Succeeded", "{}", second());
    assert_eq!(fixture.calls(), [Call::Stop("c0".into(), 30)]);
    assert!(fixture.recreator.memories().is_empty(), "nothing is remembered of a request that left during its stop");
}

#[tokio::test]
async fn a_request_that_the_manager_serves_is_left_alone_and_others_wait_for_it() {
    let fixture = Fixture::new(None).await;
    let by_manager = |phase: &str| {
        let mut first = stored("r0", "web", "u1", "c0", None);
        first["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
        first["metadata"]["labels"]["crr.kruise.rs/method"] = json!("PodSpec");
        first["metadata"]["labels"].as_object_mut().unwrap().remove("crr.apps.kruise.io/active");
        first["status"] = json!({"phase": phase});
        serde_json::from_value::<ContainerRecreateRequest>(first).unwrap()
    };
    fixture.recreator.requests.upsert(by_manager("Recreating"));
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.status()["message"], "waiting for request r0 of the same Pod");
    assert!(fixture.calls().iter().all(|call| !matches!(call, Call::Stop { .. })), "{:?}", fixture.calls());
    assert!(is_work(&by_manager("Recreating")) && !is_work(&by_manager("Completed")));
}

/// Decision 7: the environment restarter and a request never stop one instance twice.
#[tokio::test]
async fn an_instance_that_was_stopped_for_its_environment_is_not_stopped_again() {
    let fixture = Fixture::new(exec_hook()).await;
    let mut turn = fixture.recreator.runtimes.stops.turn("containerd://c0").await;
    let pass = tokio::spawn(fixture.recreator.clone().reconcile(PodUid("u1".into()), Interrupt::never()));
    while fixture.status()["containerRecreateStates"][0]["phase"] != "Recreating" {
        tokio::task::yield_now().await;
    }
    turn.note_stopped(By::Environment, clock::now());
    fixture.runtime.world().containers.get_mut("c0").unwrap().state = ContainerState::ContainerExited.into();
    drop(turn);
    pass.await.unwrap().unwrap();
    assert!(fixture.calls().is_empty(), "{:?}", fixture.calls());
    assert!(fixture.api.states()[0].is_killed);
    fixture.runtime.run("c1", "a", "u1", "main", 1);
    fixture.report("c1", 1, "6");
    fixture.reconcile().await.unwrap();
    assert_eq!((fixture.api.states()[0].phase.as_str(), fixture.calls().len()), ("Succeeded", 0));
    assert!(
        fixture.recreator.runtimes.stops.turn("containerd://c0").await.stopped_by(clock::now()).is_some(),
        "nobody else stops it either"
    );
}
