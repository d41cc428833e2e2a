//! The daemon's controller over a fake runtime (real gRPC) and an API server that keeps one Pod in memory.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt as _;
use http::{Method, Request as HttpRequest, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use prometheus_client::metrics::counter::Counter;
use tower::service_fn;

use super::*;
use crate::{
    cri::{
        fake::{Call, Environment, FakeRuntime, Fault},
        proto::ContainerState,
    },
    domain::{
        node::container_meta::actual_env_hash,
        pod::runtime_meta::{expected_env_hash, plain_hashes},
    },
};

#[derive(Clone, Default)]
struct FakeApi {
    pod: Arc<Mutex<Value>>,
    reads: Arc<AtomicUsize>,
    writes: Arc<AtomicUsize>,
    events: Arc<Mutex<Vec<Value>>>,
}

impl FakeApi {
    fn client(&self) -> KubeClient {
        let this = self.clone();
        let service = service_fn(move |request: HttpRequest<Body>| {
            let this = this.clone();
            async move { this.answer(request).await }
        });
        KubeClient::new(service, "default")
    }

    async fn answer(&self, request: HttpRequest<Body>) -> Result<Response<Body>, std::convert::Infallible> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let reply = |code: StatusCode, body: &Value| {
            Ok(Response::builder().status(code).body(Body::from(serde_json::to_vec(body).unwrap())).unwrap())
        };
        if method == Method::POST {
            let event: Value = serde_json::from_slice(&body).unwrap();
            self.events.lock().unwrap().push(event.clone());
            return reply(StatusCode::CREATED, &event);
        }
        let mut pod = self.pod.lock().unwrap();
        if method == Method::GET {
            assert_eq!(path, "/api/v1/namespaces/a/pods/web");
            self.reads.fetch_add(1, Ordering::SeqCst);
            return reply(StatusCode::OK, &pod);
        }
        assert_eq!((method, path.as_str()), (Method::PATCH, "/api/v1/namespaces/a/pods/web/status"));
        let patch: Value = serde_json::from_slice(&body).unwrap();
        let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(
            (keys(&patch), keys(&patch["metadata"])),
            (vec!["metadata".into()], vec!["annotations".into(), "uid".into()])
        );
        assert_eq!(keys(&patch["metadata"]["annotations"]), [labels::RUNTIME_CONTAINERS_META]);
        assert_eq!(patch["metadata"]["uid"], pod["metadata"]["uid"]);
        json_patch::merge(&mut pod, &patch);
        self.writes.fetch_add(1, Ordering::SeqCst);
        reply(StatusCode::OK, &pod)
    }
}

struct Fixture {
    api: FakeApi,
    runtime: FakeRuntime,
    meta: Arc<ContainerMeta>,
}

const OLD: &str = "CONFIG=a=1";

impl Fixture {
    /// A Pod of a CloneSet: `main` reads the annotation `config` and runs as m1 with `a=1`, `side` reads none and runs as s1.
    fn with(runtime: FakeRuntime, client: CriClient, gates: Gates) -> Self {
        let env =
            json!([{"name": "CONFIG", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['config']"}}}]);
        let pod = json!({
            "metadata": {"name": "web", "namespace": "a", "uid": "u1", "resourceVersion": "5", "annotations": {"config": "a=1"},
                "ownerReferences": [{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "w", "uid": "o", "controller": true}]},
            "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 7, "containers": [
                {"name": "main", "image": "app:1", "env": env, "lifecycle": {"preStop": {"exec": {"command": ["drain"]}}}},
                {"name": "side", "image": "side:1"}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1",
                "conditions": [{"type": "InPlaceUpdateReady", "status": "True"}],
                "containerStatuses": [
                    {"name": "main", "containerID": "containerd://m1", "restartCount": 0, "state": {"running": {}}},
                    {"name": "side", "containerID": "containerd://s1", "restartCount": 0, "state": {"running": {}}}]},
        });
        let api = FakeApi { pod: Arc::new(Mutex::new(pod.clone())), ..FakeApi::default() };
        let runtimes = Runtimes::default();
        runtimes.insert("containerd".into(), client);
        let (events, sending) = Recorder::new(api.client(), "test", "n1", Counter::default());
        tokio::spawn(sending);
        let pods: Arc<Store<PodView>> = Store::new(None);
        let meta = ContainerMeta::new(api.client(), pods, runtimes, &events, gates);
        let fixture = Self { api, runtime, meta };
        fixture.start("main", "m1", 0, Environment::Reported(vec!["PATH=/bin".into(), OLD.into()]));
        fixture.start("side", "s1", 0, Environment::Reported(vec![]));
        fixture.show();
        fixture
    }

    fn new() -> Self {
        let (runtime, client) = FakeRuntime::in_memory();
        Self::with(runtime, client, Gates { watch_pods: true, environment: true })
    }

    /// kubelet starts an instance.
    fn start(&self, container: &str, id: &str, restart_count: u32, environment: Environment) {
        self.runtime.run(id, "a", "u1", container, restart_count);
        let hash = plain_hashes(self.container(container))[0];
        let mut world = self.runtime.world();
        let annotations = &mut world.containers.get_mut(id).unwrap().annotations;
        annotations.insert(labels::CRI_CONTAINER_HASH.to_owned(), format!("{hash:x}"));
        world.environments.insert(id.to_owned(), environment);
    }

    fn container(&self, name: &str) -> &'static Value {
        let pod = self.api.pod.lock().unwrap();
        let containers = pod["spec"]["containers"].as_array().unwrap();
        Box::leak(Box::new(containers.iter().find(|c| c["name"] == name).unwrap().clone()))
    }

    fn change(&self, change: impl FnOnce(&mut Value)) {
        change(&mut self.api.pod.lock().unwrap());
        self.show();
    }

    /// The annotation is changed, and the update in place begins.
    fn update(&self) {
        self.change(|pod| {
            pod["metadata"]["annotations"]["config"] = "a=2".into();
            pod["status"]["conditions"][0]["status"] = "False".into();
        });
    }

    /// The watch brings the Pod as it is now.
    fn show(&self) {
        let mut pod = self.api.pod.lock().unwrap();
        let version: u64 = pod["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        pod["metadata"]["resourceVersion"] = json!((version + 1).to_string());
        let view: PodView = serde_json::from_value(pod.clone()).unwrap();
        let (_, new) = self.meta.pods.upsert(view);
        self.meta.pod_changed(&new.unwrap());
    }

    async fn reconcile(&self) -> Result<Requeue, PassError> {
        self.meta.clone().reconcile(ObjectKey::new("a", "web"), Interrupt::never()).await
    }

    fn reported(&self) -> RuntimeMeta {
        RuntimeMeta::of(&self.api.pod.lock().unwrap()).unwrap()
    }

    fn reported_of(&self, container: &str) -> crate::domain::pod::runtime_meta::RuntimeContainer {
        self.reported().containers.into_iter().find(|c| c.name == container).unwrap()
    }

    fn calls(&self) -> Vec<Call> {
        self.runtime.world().calls.clone()
    }

    fn counts(&self) -> (usize, usize) {
        (self.api.reads.load(Ordering::SeqCst), self.api.writes.load(Ordering::SeqCst))
    }
}

fn drain(id: &str) -> Call {
    Call::Exec(id.into(), vec!["drain".into()])
}

#[tokio::test(start_paused = true)]
async fn what_containers_run_is_reported_once_without_a_program_in_them() {
    let fixture = Fixture::new();
    assert_eq!(fixture.reconcile().await.unwrap(), Requeue::Await);
    let pod = fixture.api.pod.lock().unwrap().clone();
    let main = expected_env_hash(&pod["spec"]["containers"][0], &pod);
    let [main_plain, side_plain] = [0, 1].map(|i| plain_hashes(&pod["spec"]["containers"][i])[0]);
    let text = pod["metadata"]["annotations"][labels::RUNTIME_CONTAINERS_META].as_str().unwrap();
    assert_eq!(
        text,
        format!(
            r#"{{"containers":[{{"name":"main","containerID":"containerd://m1","restartCount":0,"hashes":{{"plainHash":{main_plain},"extractedEnvFromMetadataHash":{main}}}}},{{"name":"side","containerID":"containerd://s1","restartCount":0,"hashes":{{"plainHash":{side_plain},"extractedEnvFromMetadataHash":86995377}}}}]}}"#
        )
    );
    assert!(fixture.calls().is_empty(), "{:?}", fixture.calls());
    assert_eq!(fixture.counts(), (1, 1));

    let depth = fixture.meta.queue.depth();
    fixture.change(|pod| pod["status"]["conditions"][0]["lastProbeTime"] = "2026-01-01T00:00:00Z".into());
    assert_eq!(fixture.meta.queue.depth(), depth, "nothing new");
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.counts(), (2, 1), "nothing is written again");
    let old = fixture.reported_of("side");
    fixture.start("main", "m2", 1, Environment::Reported(vec![OLD.into()]));
    fixture.change(|pod| pod["status"]["containerStatuses"][0]["containerID"] = "containerd://m2".into());
    fixture.reconcile().await.unwrap();
    assert_eq!((fixture.reported_of("main").restart_count, fixture.reported_of("side")), (1, old));
    fixture.meta.pod_gone(&fixture.meta.pods.list()[0]);
    assert!(fixture.meta.settled().is_empty(), "nothing is remembered of a Pod that is gone");
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_does_not_report_is_asked_to_run_a_program() {
    let fixture = Fixture::new();
    fixture.start("main", "m1", 0, Environment::Printed(format!("PATH=/bin\nTEXT=x\ny\n{OLD}\n")));
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.calls(), [Call::Exec("m1".into(), vec!["env".into()])]);
    let main = fixture.container("main");
    assert_eq!(
        fixture.reported_of("main").hashes.extracted_env_from_metadata_hash,
        actual_env_hash(main, &[OLD.into()])
    );
}

#[tokio::test(start_paused = true)]
async fn an_environment_that_cannot_be_read_now_is_read_later_and_the_rest_is_reported() {
    for (call, late) in [("ContainerStatus", false), ("ExecSync", true)] {
        let fixture = Fixture::new();
        if late {
            fixture.start("main", "m1", 0, Environment::Printed(OLD.into()));
        }
        let fault = Fault::Error(tonic::Status::unavailable("restarting"));
        fixture.runtime.world().faults.insert((call, "m1".into()), fault);
        let error = fixture.reconcile().await.unwrap_err();
        assert!(matches!(error, PassError::Cri(ref e) if e.is_transient()), "{call}: {error}");
        assert_eq!(fixture.reported_of("main").hashes.extracted_env_from_metadata_hash, 0, "{call}");
        fixture.runtime.world().faults.clear();
        fixture.reconcile().await.unwrap();
        assert_ne!(fixture.reported_of("main").hashes.extracted_env_from_metadata_hash, 0, "{call}");
    }
    // An image without the program: there is no more to be learnt.
    let fixture = Fixture::new();
    fixture.start("main", "m1", 0, Environment::Printed(String::new()));
    let fault = Fault::Error(tonic::Status::unknown("executable file not found in $PATH"));
    fixture.runtime.world().faults.insert(("ExecSync", "m1".into()), fault);
    assert_eq!(fixture.reconcile().await.unwrap(), Requeue::Await);
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_the_runtime_does_not_show_yet_is_looked_for_again() {
    let fixture = Fixture::new();
    fixture.change(|pod| pod["status"]["containerStatuses"][1]["containerID"] = "containerd://s2".into());
    assert_eq!(fixture.reconcile().await.unwrap(), Requeue::After(LOOK_AGAIN));
    assert_eq!(fixture.reported().containers.len(), 1);
    fixture.start("side", "s2", 1, Environment::Reported(vec![]));
    assert_eq!(fixture.reconcile().await.unwrap(), Requeue::Await);
    assert_eq!(fixture.reported().containers.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_changed_environment_restarts_the_container_concerned_exactly_once() {
    let fixture = Fixture::new();
    fixture.reconcile().await.unwrap();
    fixture.change(|pod| pod["metadata"]["annotations"]["config"] = "a=2".into());
    fixture.reconcile().await.unwrap();
    assert!(fixture.calls().is_empty(), "case 27: not outside an update in place");
    fixture.update();
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.calls(), [drain("m1"), Call::Stop("m1".into(), 7)]);
    fixture.reconcile().await.unwrap();
    // A runtime that has answered may show it for a moment longer.
    fixture.runtime.world().containers.get_mut("m1").unwrap().state = ContainerState::ContainerRunning.into();
    assert_eq!(fixture.reconcile().await.unwrap(), Requeue::Await);
    fixture.start("main", "m2", 1, Environment::Reported(vec!["CONFIG=a=2".into()]));
    fixture.change(|pod| pod["status"]["containerStatuses"][0]["containerID"] = "containerd://m2".into());
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.calls().len(), 2, "{:?}", fixture.calls());
    tokio::time::sleep(Duration::from_millis(1)).await;
    let events = fixture.api.events.lock().unwrap().clone();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["message"], "Stopping containerID containerd://main by container meta restarter");
    assert_eq!((&events[0]["reason"], &events[0]["type"]), (&json!("Killing"), &json!("Normal")));
    assert_eq!(events[0]["source"]["component"], "kruise-daemon-containermeta");
    assert_eq!(events[0]["involvedObject"]["fieldPath"], "spec.containers{main}");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_a_request_stops_is_left_to_it() {
    let fixture = Fixture::new();
    fixture.update();
    let mut turn = fixture.meta.runtimes.stops.turn("containerd://m1").await;
    assert_eq!(fixture.reconcile().await.unwrap(), Requeue::After(LOOK_AGAIN));
    turn.note_stopped(By::Request, clock::now());
    drop(turn);
    assert_eq!(fixture.reconcile().await.unwrap(), Requeue::Await);
    assert!(fixture.calls().is_empty(), "{:?}", fixture.calls());
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_was_run_for_a_request_is_not_run_again_while_its_stop_is_repeated() {
    for (waited, is_run) in [(0, false), (59, false), (61, true)] {
        let fixture = Fixture::new();
        fixture.update();
        let mut turn = fixture.meta.runtimes.stops.turn("containerd://m1").await;
        turn.note_hook(Duration::from_secs(60), clock::now());
        drop(turn);
        tokio::time::sleep(Duration::from_secs(waited)).await;
        fixture.reconcile().await.unwrap();
        let hook = is_run.then(|| drain("m1"));
        let expected: Vec<Call> = hook.into_iter().chain([Call::Stop("m1".into(), 7)]).collect();
        assert_eq!(fixture.calls(), expected, "{waited} s later");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_found_no_place_is_run_before_the_stop_is_repeated() {
    let fixture = Fixture::new();
    fixture.runtime.world().stop_errors = vec![tonic::Status::unavailable("restarting")];
    fixture.update();
    let places = fixture.meta.runtimes.hooks.clone();
    let taken: Vec<_> = std::iter::from_fn(|| places.take("a").now_or_never()).collect();
    fixture.reconcile().await.unwrap_err();
    assert_eq!(fixture.calls(), [Call::Stop("m1".into(), 2)]);
    drop(taken);
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.calls(), [Call::Stop("m1".into(), 2), drain("m1"), Call::Stop("m1".into(), 7)]);
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_is_cancelled_is_run_from_its_beginning() {
    let fixture = Fixture::new();
    fixture.runtime.world().faults.insert(("ExecSync", "m1".into()), Fault::Never);
    fixture.update();
    tokio::time::timeout(Duration::from_secs(1), fixture.reconcile()).await.unwrap_err();
    fixture.runtime.world().faults.clear();
    fixture.reconcile().await.unwrap();
    assert_eq!(
        fixture.calls(),
        [drain("m1"), Call::ExecCancelled("m1".into()), drain("m1"), Call::Stop("m1".into(), 7)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_fails_is_repeated_and_its_hook_is_not() {
    let fixture = Fixture::new();
    fixture.runtime.world().stop_errors =
        vec![tonic::Status::unavailable("restarting"), tonic::Status::internal("boom")];
    fixture.update();
    for _ in 0..2 {
        fixture.reconcile().await.unwrap_err();
    }
    fixture.reconcile().await.unwrap();
    let stop = || Call::Stop("m1".into(), 7);
    assert_eq!(fixture.calls(), [drain("m1"), stop(), stop(), stop()]);
}

#[tokio::test(start_paused = true)]
async fn during_a_stop_other_containers_are_still_reported() {
    let fixture = Fixture::new();
    let fault = Fault::Late(Duration::from_secs(5));
    fixture.runtime.world().faults.insert(("StopContainer", "m1".into()), fault);
    fixture.update();
    let (stop, shutdown) = watch::channel(false);
    let running = tokio::spawn(fixture.meta.clone().run(shutdown));
    while fixture.calls().len() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    fixture.start("side", "s2", 1, Environment::Reported(vec![]));
    fixture.change(|pod| pod["status"]["containerStatuses"][1]["containerID"] = "containerd://s2".into());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.reported_of("side").container_id, "containerd://s2");
    assert_eq!(fixture.runtime.world().containers["m1"].state, i32::from(ContainerState::ContainerRunning));
    tokio::time::sleep(Duration::from_secs(60)).await;
    stop.send_replace(true);
    running.await.unwrap();
    assert_eq!(fixture.calls(), [drain("m1"), Call::Stop("m1".into(), 7)]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_has_been_replaced_or_is_going_is_left_alone() {
    for field in ["uid", "deletionTimestamp"] {
        let fixture = Fixture::new();
        fixture.update();
        // The watch is behind.
        fixture.api.pod.lock().unwrap()["metadata"][field] = "2026-01-01T00:00:00Z".into();
        assert_eq!(fixture.reconcile().await.unwrap(), Requeue::Await);
        assert_eq!((fixture.counts().1, fixture.calls().len()), (0, 0), "{field}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_gate_off() {
    for (watch_pods, environment) in [(false, false), (true, false)] {
        let (runtime, client) = FakeRuntime::in_memory();
        let fixture = Fixture::with(runtime, client, Gates { watch_pods, environment });
        fixture.update();
        assert_eq!(fixture.meta.queue.depth(), usize::from(watch_pods), "DaemonWatchingPod");
        if watch_pods {
            fixture.reconcile().await.unwrap();
            let hashes = fixture.reported_of("main").hashes;
            assert!(hashes.plain_hash != 0 && hashes.extracted_env_from_metadata_hash == 0, "{hashes:?}");
            assert!(fixture.calls().is_empty(), "InPlaceUpdateEnvFromMetadata");
        }
    }
}
