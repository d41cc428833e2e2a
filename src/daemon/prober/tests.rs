//! The prober over a fake runtime (real gRPC) and an API server that keeps one NodePodProbe in memory.

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use prometheus_client::metrics::counter::Counter;
use serde_json::json;
use tower::service_fn;

use super::*;
use crate::{
    cri::fake::{Call, FakeRuntime, Fault, World},
    domain::node::probes::{FAILED, SUCCEEDED, UNKNOWN},
};

#[derive(Clone, Default)]
struct FakeApi {
    object: Arc<Mutex<Value>>,
    writes: Arc<Mutex<Vec<Value>>>,
    refuse: Arc<Mutex<Option<u16>>>,
}

impl FakeApi {
    fn client(&self) -> KubeClient {
        let this = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let this = this.clone();
            async move {
                let (method, path) = (request.method().clone(), request.uri().path().to_owned());
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let reply = |code: u16, body: &Value| {
                    let body = Body::from(serde_json::to_vec(body).unwrap());
                    Ok::<_, std::convert::Infallible>(
                        Response::builder().status(StatusCode::from_u16(code).unwrap()).body(body).unwrap(),
                    )
                };
                if method == Method::POST {
                    return reply(201, &serde_json::from_slice(&body).unwrap());
                }
                assert_eq!(
                    (method, path.as_str()),
                    (Method::PATCH, "/apis/apps.kruise.io/v1alpha1/nodepodprobes/n1/status")
                );
                let patch: Value = serde_json::from_slice(&body).unwrap();
                let mut object = this.object.lock().unwrap();
                let is_stale = patch["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"];
                if let Some(code) = this.refuse.lock().unwrap().take().or(is_stale.then_some(409)) {
                    return reply(code, &json!({"kind": "Status", "code": code, "reason": "x", "message": "x"}));
                }
                let keys: Vec<&String> = patch.as_object().unwrap().keys().collect();
                assert_eq!(keys, ["metadata", "status"], "the status and nothing else");
                json_patch::merge(&mut object, &json!({"status": patch["status"]}));
                next_version(&mut object);
                this.writes.lock().unwrap().push(patch["status"].clone());
                reply(200, &object)
            }
        });
        KubeClient::new(service, "default")
    }
}

fn next_version(object: &mut Value) {
    let version: u64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    object["metadata"]["resourceVersion"] = (version + 1).to_string().into();
}

struct Fixture {
    api: FakeApi,
    runtime: FakeRuntime,
    pods: Arc<Store<PodView>>,
    handle: Handle,
    metrics: Arc<Metrics>,
    task: tokio::task::JoinHandle<()>,
    _stop: watch::Sender<bool>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The Pod `web` with the containers `main`, whose instance is `id`, in a state.
fn pod(id: &str, state: Value) -> PodView {
    // Long ago by the clock of the wall, so that no initial delay is left.
    let status = json!({"name": "main", "containerID": format!("containerd://{id}"), "started": true, "state": state});
    serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "a", "uid": "u1"},
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [status]}}))
    .unwrap()
}

fn running() -> Value {
    json!({"running": {"startedAt": "2020-01-01T00:00:00Z"}})
}

fn exec(period: i64) -> Value {
    json!({"exec": {"command": ["ask"]}, "periodSeconds": period})
}

impl Fixture {
    fn new(probes: Value, status: Value) -> Self {
        Self::in_installation("kruise-system", probes, status)
    }

    fn in_installation(own_namespace: &str, probes: Value, status: Value) -> Self {
        let (runtime, client) = FakeRuntime::in_memory();
        let object = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "NodePodProbe",
            "metadata": {"name": "n1", "uid": "o", "resourceVersion": "1"},
            "spec": {"podProbes": [{"name": "web", "namespace": "a", "uid": "u1", "IP": "10.9.9.9", "probes": probes}]},
            "status": status});
        let api = FakeApi { object: Arc::new(Mutex::new(object)), ..FakeApi::default() };
        let runtimes = Runtimes::default();
        runtimes.insert("containerd".into(), client);
        let (events, sending) = Recorder::new(api.client(), "test", "n1", Counter::default());
        tokio::spawn(sending);
        let (pods, metrics) = (Store::new(None), Arc::new(Metrics::default()));
        let (handle, prober) = Prober::new(api.client(), pods.clone(), runtimes, own_namespace, &events, &metrics);
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(prober.run(stopped));
        let fixture = Self { api, runtime, pods, handle, metrics, task, _stop: stop };
        fixture.runtime.run("m1", "a", "u1", "main", 0);
        fixture.show(pod("m1", running()));
        fixture.send();
        fixture
    }

    fn one(period: i64) -> Self {
        Self::new(json!([{"name": "m#a", "containerName": "main", "probe": exec(period)}]), Value::Null)
    }

    fn show(&self, pod: PodView) {
        self.pods.upsert(pod);
        self.handle.pod_changed("u1");
    }

    /// The watch brings the object.
    fn send(&self) {
        let object = self.api.object.lock().unwrap().clone();
        self.handle.object_changed(Some(serde_json::from_value(object).unwrap()));
    }

    fn change(&self, change: impl FnOnce(&mut Value)) {
        {
            let mut object = self.api.object.lock().unwrap();
            change(&mut object);
            next_version(&mut object);
        }
        self.send();
    }

    fn world(&self) -> std::sync::MutexGuard<'_, World> {
        self.runtime.world()
    }

    fn execs(&self) -> usize {
        self.world().calls.iter().filter(|call| matches!(call, Call::Exec(..))).count()
    }

    fn writes(&self) -> Vec<Value> {
        self.api.writes.lock().unwrap().clone()
    }

    fn states(&self) -> Vec<(String, String)> {
        let object = self.api.object.lock().unwrap();
        let states = object.pointer("/status/podProbeStatuses/0/probeStates").and_then(Value::as_array).cloned();
        let text = |state: &Value, key: &str| state[key].as_str().unwrap_or_default().to_owned();
        states.unwrap_or_default().iter().map(|s| (text(s, "state"), text(s, "message"))).collect()
    }

    /// Waits until the states are so; time passes by itself.
    async fn until(&self, state: &str) {
        let is_so = || self.states().first().is_some_and(|(now, _)| now == state);
        let waited = tokio::time::timeout(Duration::from_secs(300), async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        assert!(waited.await.is_ok(), "{state}: {:?}", self.states());
    }

    fn answer(&self, id: &str, code: Option<i32>) {
        let mut world = self.world();
        match code {
            // What the fake says when nothing is wrong.
            Some(_) => world.faults.remove(&("ExecSync", id.to_owned())),
            None => world.faults.insert(("ExecSync", id.to_owned()), Fault::Error(tonic::Status::unavailable("gone"))),
        };
    }
}

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_the_namespace_of_the_installation_are_not_probed() {
    let probes = json!([{"name": "m#a", "containerName": "main", "probe": exec(1)}]);
    let fixture = Fixture::in_installation("a", probes, Value::Null);
    pass(60).await;
    assert_eq!((fixture.execs(), fixture.writes().len()), (0, 0));
    assert!(fixture.metrics.render().unwrap().contains("kruise_probes 0\n"));
}

#[tokio::test(start_paused = true)]
async fn e23_f30_a_result_is_reported_once_and_the_probe_goes_on() {
    let fixture = Fixture::one(2);
    fixture.until(SUCCEEDED).await;
    pass(60).await;
    assert_eq!(fixture.writes().len(), 1, "what has not changed is not written");
    let runs = fixture.execs();
    assert!((28..=34).contains(&runs), "every two seconds: {runs}");
    let text = fixture.metrics.render().unwrap();
    assert!(text.contains("kruise_probes 1\n") && text.contains("kruise_probe_status_writes_total 1"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn f21_two_probes_of_one_container_have_each_a_result_of_their_own() {
    let probe = |name: &str, probe: Value| json!({"name": name, "containerName": "main", "probe": probe});
    let probes = json!([probe("m#a", exec(1)), probe("m#b", json!({"tcpSocket": {"port": 1}}))]);
    let fixture = Fixture::new(probes, Value::Null);
    // Nobody can connect to it.
    let mut without_address = pod("m1", running());
    without_address.pod_ip = Default::default();
    fixture.show(without_address);
    fixture.until(SUCCEEDED).await;
    pass(60).await;
    let states: Vec<String> = fixture.states().into_iter().map(|(state, _)| state).collect();
    assert_eq!(states, [SUCCEEDED, FAILED]);
    assert!(fixture.writes().len() <= 2, "{:?}", fixture.writes());
}

#[tokio::test(start_paused = true)]
async fn f22_a_container_that_does_not_run_is_failed_and_not_probed_and_the_next_instance_begins_anew() {
    let fixture = Fixture::one(1);
    fixture.until(SUCCEEDED).await;
    fixture.show(pod("m1", json!({"waiting": {"reason": "CrashLoopBackOff"}})));
    fixture.until(FAILED).await;
    assert_eq!(fixture.states()[0].1, "Container(main) is Non-running");
    let runs = fixture.execs();
    pass(30).await;
    assert_eq!(fixture.execs(), runs);
    fixture.runtime.run("m2", "a", "u1", "main", 1);
    fixture.show(pod("m2", running()));
    fixture.until(SUCCEEDED).await;
    assert!(matches!(fixture.world().calls.last(), Some(Call::Exec(id, _)) if id == "m2"));
    assert_eq!(fixture.writes().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn e28_a_pod_of_the_same_name_with_another_uid_is_not_probed() {
    let fixture = Fixture::one(1);
    fixture.until(SUCCEEDED).await;
    let mut other = pod("m1", running());
    fixture.pods.remove(&ObjectKey::new("a", "web"), Some("u1"));
    other.set_uid("u2");
    fixture.show(other);
    pass(3).await;
    let runs = fixture.execs();
    pass(30).await;
    assert_eq!(fixture.execs(), runs);
}

#[tokio::test(start_paused = true)]
async fn e25_a_runtime_that_does_not_answer_changes_nothing_and_is_asked_less_and_less() {
    let fixture = Fixture::one(1);
    fixture.until(SUCCEEDED).await;
    fixture.answer("m1", None);
    pass(5).await;
    let runs = fixture.execs();
    pass(120).await;
    let more = fixture.execs() - runs;
    assert!((1..=8).contains(&more), "{more} in two minutes");
    assert_eq!(fixture.states(), [(SUCCEEDED.to_owned(), String::new())]);
    fixture.answer("m1", Some(0));
    pass(120).await;
    assert!(fixture.execs() - runs > 40, "it is asked again as before");
    assert_eq!(fixture.writes().len(), 1);
}

/// A second Pod, of the namespace b, whose container has the instance m2, and its entry.
fn other_pod(fixture: &Fixture) -> Value {
    fixture.runtime.run("m2", "b", "u2", "main", 0);
    let mut other = pod("m2", running());
    other.set_namespace("b");
    other.set_uid("u2");
    fixture.pods.upsert(other);
    json!({"name": "web", "namespace": "b", "uid": "u2", "IP": "10.0.0.2", "probes": [
        {"name": "m#a", "containerName": "main", "probe": exec(1)}]})
}

fn many(count: usize, probe: &Value) -> Value {
    let one = |i: usize| json!({"name": format!("m#{i}"), "containerName": "main", "probe": probe});
    (0..count).map(one).collect::<Vec<Value>>().into()
}

#[tokio::test(start_paused = true)]
async fn commands_that_never_end_hold_up_a_bounded_number_and_no_time_is_lost_for_others() {
    let sleeping = json!({"exec": {"command": ["sleep"]}, "timeoutSeconds": 3600});
    let fixture = Fixture::new(many(EXECS * 3, &sleeping), Value::Null);
    fixture.world().faults.insert(("ExecSync", "m1".into()), Fault::Never);
    pass(10).await;
    assert_eq!(fixture.execs(), EXECS / 2, "alone, a namespace has half of the slots");
    let entry = other_pod(&fixture);
    fixture.change(|object| object["spec"]["podProbes"].as_array_mut().unwrap().push(entry));
    let of_other =
        || fixture.world().calls.iter().filter(|call| matches!(call, Call::Exec(id, _) if id == "m2")).count();
    pass(1).await;
    assert_eq!(of_other(), 1, "it begins at once");
    // Longer than any timeout: the runtime gives no answer even then.
    for minute in 1..=3 {
        pass(60).await;
        assert!((58 * minute..=62 * minute).contains(&of_other()), "{} after {minute} minutes", of_other());
    }
    let states = fixture.api.object.lock().unwrap()["status"]["podProbeStatuses"].clone();
    let other = states.as_array().unwrap().iter().find(|status| status["uid"] == "u2").unwrap();
    assert_eq!(other["probeStates"][0]["state"], SUCCEEDED);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_comes_late_gets_its_slots_of_those_that_have_more_than_their_share() {
    let sleeping = json!({"exec": {"command": ["sleep"]}, "timeoutSeconds": 60});
    let fixture = Fixture::new(many(EXECS, &sleeping), Value::Null);
    fixture.world().faults.insert(("ExecSync", "m1".into()), Fault::Never);
    pass(10).await;
    // So many that together they fill what is free.
    let entries: Vec<Value> = (0..EXECS - 2)
        .map(|i| {
            let (name, uid) = (format!("n{i}"), format!("v{i}"));
            fixture.runtime.run(&uid, &name, &uid, "main", 0);
            fixture.world().faults.insert(("ExecSync", uid.clone()), Fault::Never);
            let mut other = pod(&uid, running());
            other.set_namespace(&name);
            other.set_uid(&uid);
            fixture.pods.upsert(other);
            json!({"name": "web", "namespace": name, "uid": uid, "IP": "10.0.0.2", "probes": many(1, &sleeping)})
        })
        .collect();
    fixture.change(|object| object["spec"]["podProbes"].as_array_mut().unwrap().extend(entries));
    pass(1).await;
    let begun = |id: &str| fixture.world().calls.iter().any(|call| matches!(call, Call::Exec(of, _) if of == id));
    let late: Vec<usize> = (0..EXECS - 2).filter(|i| !begun(&format!("v{i}"))).collect();
    assert_eq!(late, Vec::<usize>::new());
    let cancelled = fixture.world().calls.iter().filter(|call| **call == Call::ExecCancelled("m1".into())).count();
    assert_eq!(cancelled, EXECS / 2 - 2, "no more than the others need");
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_removed_or_changed_is_aborted_at_once() {
    let sleeping = json!({"exec": {"command": ["sleep"]}, "timeoutSeconds": 60, "periodSeconds": 1000});
    let fixture = Fixture::new(many(2, &sleeping), Value::Null);
    fixture.world().faults.insert(("ExecSync", "m1".into()), Fault::Never);
    let cancelled = || fixture.world().calls.iter().filter(|call| matches!(call, Call::ExecCancelled(_))).count();
    pass(20).await;
    assert_eq!((fixture.execs(), cancelled()), (2, 0));
    fixture.change(|object| object["spec"]["podProbes"][0]["probes"][0]["probe"]["exec"]["command"] = json!(["other"]));
    pass(1).await;
    assert_eq!((fixture.execs(), cancelled()), (3, 1), "the changed one begins anew");
    assert!(matches!(fixture.world().calls.last(), Some(Call::Exec(_, command)) if command == &["other"]));
    fixture.change(|object| object["spec"]["podProbes"] = json!([]));
    pass(1).await;
    assert_eq!((fixture.execs(), cancelled()), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn a_container_whose_commands_hang_in_the_runtime_does_not_hold_up_other_namespaces() {
    let fixture = Fixture::one(1);
    let entry = other_pod(&fixture);
    fixture.change(|object| object["spec"]["podProbes"].as_array_mut().unwrap().push(entry));
    fixture.answer("m1", None);
    pass(120).await;
    let of =
        |id: &str| fixture.world().calls.iter().filter(|call| matches!(call, Call::Exec(of, _) if of == id)).count();
    assert!(of("m1") < 15 && of("m2") > 115, "{} {}", of("m1"), of("m2"));
}

#[tokio::test(start_paused = true)]
async fn messages_of_all_probes_together_are_bounded() {
    use crate::{cri::fake::Environment, domain::node::probes::budget::MESSAGES, k8s::canonical_json};
    let fixture = Fixture::new(many(500, &exec(1)), Value::Null);
    fixture.world().environments.insert("m1".into(), Environment::Printed("<".repeat(4000)));
    pass(60).await;
    let status = fixture.api.object.lock().unwrap()["status"].clone();
    assert_eq!(status["podProbeStatuses"][0]["probeStates"].as_array().unwrap().len(), 500);
    let bytes = canonical_json::encode(&status).len();
    assert!((MESSAGES..MESSAGES + 150_000).contains(&bytes), "{bytes}");
    assert!(fixture.writes().len() < 30, "{}", fixture.writes().len());
}

#[tokio::test(start_paused = true)]
async fn however_often_a_pod_changes_the_heap_stays_small() {
    let (_runtime, client) = FakeRuntime::in_memory();
    let (api, runtimes, metrics) = (FakeApi::default(), Runtimes::default(), Metrics::default());
    runtimes.insert("containerd".into(), client);
    let (events, _sending) = Recorder::new(api.client(), "test", "n1", Counter::default());
    let pods = Store::new(None);
    let (_handle, mut prober) = Prober::new(api.client(), pods.clone(), runtimes, "kruise-system", &events, &metrics);
    pods.upsert(pod("m1", running()));
    let object = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "NodePodProbe",
        "metadata": {"name": "n1", "uid": "o", "resourceVersion": "1"},
        "spec": {"podProbes": [{"name": "web", "namespace": "a", "uid": "u1", "IP": "10.9.9.9",
            "probes": many(10, &exec(86_400))}]}});
    prober.take_object(Some(serde_json::from_value(object).unwrap()));
    for _ in 0..10_000 {
        prober.take(Input::Pod("u1".into()));
    }
    assert!(prober.heap.len() <= 10, "{}", prober.heap.len());
    // Each time a little sooner.
    let far = Instant::now() + Duration::from_secs(3600);
    prober.probes.get_mut(&1).unwrap().queued = None;
    for i in 0..10_000 {
        prober.schedule(1, far - GRID * i);
    }
    assert!(prober.heap.len() <= 4 * 10 + 64, "{}", prober.heap.len());
    let (queued, turn) = (prober.probes[&1].queued.unwrap(), prober.probes[&1].turn);
    assert!(queued < far - GRID * 9_998 && prober.heap.iter().any(|entry| *entry == Reverse((queued, 1, turn))));
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_there_twice_is_probed_once_and_leaves_nothing_behind() {
    let fixture = Fixture::new(json!([]), Value::Null);
    let probe = |command: &str| json!({"name": "m#a", "containerName": "main", "probe": {"exec": {"command": [command]}, "periodSeconds": 1}});
    for _ in 0..5 {
        fixture.change(|object| object["spec"]["podProbes"][0]["probes"] = json!([probe("first"), probe("second")]));
        pass(1).await;
    }
    let runs = fixture.execs();
    pass(30).await;
    assert!((28..=32).contains(&(fixture.execs() - runs)), "{}", fixture.execs() - runs);
    assert!(matches!(fixture.world().calls.last(), Some(Call::Exec(_, command)) if command == &["first"]));
    assert!(fixture.metrics.render().unwrap().contains("kruise_probes 1\n"));
    fixture.change(|object| object["spec"]["podProbes"] = json!([]));
    pass(1).await;
    let runs = fixture.execs();
    pass(30).await;
    assert_eq!(fixture.execs(), runs);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_that_lasts_is_met_less_and_less_until_a_newer_object_comes() {
    let fixture = Fixture::one(1);
    fixture.until(SUCCEEDED).await;
    let writes = || {
        let text = fixture.metrics.render().unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("kruise_probe_status_writes_total ")).unwrap();
        line.parse::<usize>().unwrap()
    };
    // Somebody else writes, and the watch is late.
    next_version(&mut fixture.api.object.lock().unwrap());
    fixture.show(pod("m1", json!({"terminated": {"exitCode": 1}})));
    pass(2).await;
    assert!(writes() >= 3, "the first time it is done again soon: {}", writes());
    pass(120).await;
    assert!(writes() <= 12, "{}", writes());
    fixture.send();
    pass(1).await;
    assert_eq!(fixture.states()[0].0, FAILED);
}

#[tokio::test(start_paused = true)]
async fn a_refused_write_is_done_again_with_the_newer_object() {
    let fixture = Fixture::one(1);
    *fixture.api.refuse.lock().unwrap() = Some(500);
    fixture.until(SUCCEEDED).await;
    // Somebody else writes at the same time; the watch brings it late.
    next_version(&mut fixture.api.object.lock().unwrap());
    fixture.show(pod("m1", json!({"terminated": {"exitCode": 1}})));
    pass(5).await;
    assert_eq!(fixture.states()[0].0, SUCCEEDED, "refused");
    fixture.send();
    fixture.until(FAILED).await;
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_starts_reports_nothing_anew() {
    let recorded = json!({"podProbeStatuses": [{"name": "web", "namespace": "a", "uid": "u1", "probeStates": [{"name": "m#a",
        "state": "Succeeded", "lastProbeTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}]});
    let probes = json!([{"name": "m#a", "containerName": "main", "probe": exec(1)}]);
    let fixture = Fixture::new(probes, recorded);
    pass(30).await;
    assert!(fixture.execs() > 10);
    assert_eq!(fixture.writes(), Vec::<Value>::new());
}

#[tokio::test(start_paused = true)]
async fn f23_changes_of_what_is_probed_take_effect() {
    let fixture = Fixture::one(1000);
    fixture.until(SUCCEEDED).await;
    assert_eq!(fixture.execs(), 1);
    // The period alone: the state stays.
    let probe = "/spec/podProbes/0/probes/0/probe";
    fixture.change(|object| object.pointer_mut(probe).unwrap()["periodSeconds"] = 1.into());
    pass(10).await;
    assert!(fixture.execs() > 5);
    assert_eq!(fixture.writes().len(), 1);
    // Another handler: nothing is known until it has a result. Nobody listens at this address.
    fixture
        .change(|object| *object.pointer_mut(probe).unwrap() = json!({"tcpSocket": {"port": 1, "host": "127.0.0.1"}}));
    let mut lost = pod("m1", running());
    lost.pod_ip = Default::default();
    fixture.show(lost);
    fixture.until(FAILED).await;
    assert!(fixture.states()[0].1.contains("no usable address"), "neither the host nor the address in the object");
    // Removed: its result goes.
    fixture.change(|object| object["spec"]["podProbes"] = json!([]));
    pass(5).await;
    assert_eq!(fixture.api.object.lock().unwrap()["status"]["podProbeStatuses"], json!([]));
    let runs = fixture.execs();
    pass(20).await;
    assert_eq!(fixture.execs(), runs);
}

#[tokio::test(start_paused = true)]
async fn a_start_of_which_nothing_is_known_is_reported_after_a_while() {
    let probes = json!([{"name": "m#a", "containerName": "main", "probe": {"exec": {"command": ["ask"]}, "successThreshold": 60}}]);
    let fixture = Fixture::new(probes, Value::Null);
    pass(5).await;
    assert_eq!(fixture.writes(), Vec::<Value>::new());
    fixture.until(UNKNOWN).await;
    fixture.until(SUCCEEDED).await;
    assert_eq!(fixture.writes().len(), 2);
}
