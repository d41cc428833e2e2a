//! The puller over a fake runtime (real gRPC) and an API server that keeps one NodeImage in memory.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::service_fn;

use super::*;
use crate::cri::fake::{Call, FakeRuntime, Fault};
use credentials::Address;

/// A disk that does not depend on this machine.
fn half_full(_: &std::path::Path) -> rustix::io::Result<rules::Space> {
    Ok(rules::Space { total: 100, free: 50, available: 50 })
}

struct Bench {
    runtime: FakeRuntime,
    puller: Arc<Puller>,
    object: Arc<Mutex<Value>>,
    node: Arc<Mutex<Value>>,
    writes: Arc<AtomicUsize>,
    events: Arc<Mutex<Vec<Value>>>,
    metrics: Arc<AllMetrics>,
    _stop: watch::Sender<bool>,
}

impl Bench {
    fn new(change: impl FnOnce(&mut Settings)) -> Self {
        let object = Arc::new(Mutex::new(json!({
            "apiVersion": "apps.kruise.io/v1beta1", "kind": "NodeImage",
            "metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}, "spec": {"images": {}},
        })));
        let (writes, events) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let node = Arc::new(Mutex::new(json!({})));
        let api = {
            let (object, node, writes, events) = (object.clone(), node.clone(), writes.clone(), events.clone());
            service_fn(move |request: http::Request<Body>| {
                let (object, node, writes, events) = (object.clone(), node.clone(), writes.clone(), events.clone());
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await.unwrap().to_bytes();
                    let (code, answer) = match (parts.method, parts.uri.path()) {
                        (Method::PATCH, "/apis/apps.kruise.io/v1beta1/nodeimages/n/status") => {
                            let patch: Value = serde_json::from_slice(&body).unwrap();
                            let mut object = object.lock().unwrap();
                            if patch["metadata"]["resourceVersion"] == object["metadata"]["resourceVersion"] {
                                writes.fetch_add(1, Ordering::SeqCst);
                                json_patch::merge(&mut object, &json!({"status": patch["status"]}));
                                bump(&mut object);
                                (200, object.clone())
                            } else {
                                (409, json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict"}))
                            }
                        }
                        (Method::GET, "/api/v1/nodes/n") => (200, node.lock().unwrap().clone()),
                        (Method::POST, path) if path.ends_with("/events") => {
                            let event: Value = serde_json::from_slice(&body).unwrap();
                            events.lock().unwrap().push(event.clone());
                            (201, event)
                        }
                        _ => (404, json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"})),
                    };
                    let response = Response::builder().status(StatusCode::from_u16(code).unwrap());
                    Ok::<_, std::convert::Infallible>(
                        response.body(Body::from(answer.to_string().into_bytes())).unwrap(),
                    )
                }
            })
        };
        let kube = KubeClient::new(api, "default");
        let (runtime, client) = FakeRuntime::in_memory();
        let runtimes = Runtimes::default();
        runtimes.insert("containerd".into(), client);
        let metrics = Arc::new(AllMetrics::default());
        let (events_of, send) = Recorder::new(kube.clone(), "test", "n", metrics.events_dropped.clone());
        tokio::spawn(send);
        let mut settings = Settings {
            node: "n".into(),
            workers: 4,
            image_fs_limit_percent: 100,
            image_fs_path: None,
            space: half_full,
        };
        change(&mut settings);
        let address =
            Address { namespace: "s".into(), host: String::new(), port: 1, token_file: "/not/there/token".into() };
        let secrets = PullSecrets::new(kube.clone(), address);
        let puller = Puller::new(kube, runtimes, &events_of, settings, secrets, &metrics);
        let (stop, _) = watch::channel(false);
        let writing = puller.clone();
        tokio::spawn(async move { writing.write().await });
        Self { runtime, puller, object, node, writes, events, metrics, _stop: stop }
    }

    /// The manager writes the images of the spec.
    fn want(&self, images: Value) {
        let object = {
            let mut object = self.object.lock().unwrap();
            object["spec"]["images"] = images;
            bump(&mut object);
            object.clone()
        };
        self.puller.object_changed(serde_json::from_value(object).unwrap());
    }

    async fn until(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..20_000 {
            let object = self.object.lock().unwrap().clone();
            if fits(&object["status"]) {
                return object["status"].clone();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("never {what}: {:#}", self.object.lock().unwrap())
    }

    async fn ended(&self, count: u64) -> Value {
        self.until("ended", |s| s["succeeded"].as_u64().unwrap_or(0) + s["failed"].as_u64().unwrap_or(0) == count).await
    }

    fn calls(&self) -> Vec<Call> {
        self.runtime.world().calls.clone()
    }

    fn pulls(&self, image: &str) -> usize {
        self.calls().iter().filter(|call| matches!(call, Call::Pull(pulled, ..) if pulled == image)).count()
    }

    fn fault(&self, image: &str, fault: Option<Fault>) {
        let faults = &mut self.runtime.world().faults;
        let key = ("PullImage", image.to_owned());
        match fault {
            Some(fault) => faults.insert(key, fault),
            None => faults.remove(&key),
        };
    }

    fn reasons(&self) -> Vec<String> {
        let events = self.events.lock().unwrap();
        events
            .iter()
            .map(|e| format!("{} {}", e["involvedObject"]["kind"].as_str().unwrap(), e["reason"].as_str().unwrap()))
            .collect()
    }
}

fn bump(object: &mut Value) {
    let version: u64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    object["metadata"]["resourceVersion"] = (version + 1).to_string().into();
}

fn one(tag: Value) -> Value {
    json!({"r.example/app": {"tags": [tag]}})
}

const IMAGE: &str = "r.example/app:v1";

#[tokio::test(start_paused = true)]
async fn e13_an_image_is_pulled_with_a_sandbox_and_both_ends_are_reported() {
    let bench = Bench::new(|_| {});
    bench.fault(IMAGE, Some(Fault::Late(Duration::from_secs(40))));
    bench.want(json!({"r.example/app": {
        "sandboxConfig": {"labels": {"team": "a"}},
        "tags": [{"tag": "v1", "version": 3}],
    }}));
    let pulling = bench.until("pulling", |s| s["pulling"] == 1).await;
    let tag = |status: &Value| status["imageStatuses"]["r.example/app"]["tags"][0].clone();
    assert_eq!((&tag(&pulling)["phase"], &tag(&pulling)["version"]), (&json!("Pulling"), &json!(3)));
    assert!(tag(&pulling)["startTime"].is_string() && tag(&pulling)["completionTime"].is_null());
    let image = bench.until("a message", |s| !tag(s)["message"].is_null()).await;
    assert!(tag(&image)["message"].as_str().unwrap().starts_with("pulling for "), "{image}");

    let done = tag(&bench.ended(1).await);
    assert_eq!((&done["phase"], &done["progress"], &done["message"]), (&json!("Succeeded"), &json!(100), &Value::Null));
    assert!(done["imageID"].as_str().unwrap().starts_with("r.example/app@sha256:"), "{done}");
    let sandbox = [("apps.kruise.io/pulling-image-by", "kruise-daemon"), ("team", "a")];
    let sandbox = sandbox.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    assert_eq!(bench.calls(), [Call::Pull(IMAGE.into(), String::new(), sandbox)]);
    assert_eq!(bench.writes.load(Ordering::SeqCst), 4, "begin, twice on the way, end");
    // Its own end comes back by the watch: nothing begins again.
    bench.want(one(json!({"tag": "v1", "version": 3})));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((bench.pulls(IMAGE), bench.writes.load(Ordering::SeqCst)), (1, 4));
    assert_eq!(bench.reasons(), ["NodeImage PullImageSucceed"]);
    assert!(bench.metrics.render().unwrap().contains("kruise_image_pulls_total{result=\"succeeded\"} 1"));
}

#[tokio::test(start_paused = true)]
async fn e4_an_image_that_is_there_is_pulled_only_when_the_policy_says_always() {
    let bench = Bench::new(|settings| settings.workers = 1);
    let image = crate::cri::proto::Image { id: "sha256:1".into(), ..Default::default() };
    bench.runtime.world().images.insert(IMAGE.into(), image);
    // Another pull holds the only place.
    bench.fault("r.example/app:slow", Some(Fault::Never));
    bench.want(json!({"r.example/app": {"tags": [{"tag": "slow"}]}}));
    bench.until("pulling", |s| s["pulling"] == 1).await;
    let slow = json!({"tag": "slow"});
    bench.want(json!({"r.example/app": {"tags": [slow, {"tag": "v1", "imagePullPolicy": "IfNotPresent"}]}}));
    let status = bench.ended(1).await;
    assert_eq!(status["imageStatuses"]["r.example/app"]["tags"][1]["imageID"], "r.example/app@sha256:1");
    assert_eq!(bench.pulls(IMAGE), 0);
    bench.want(json!({"r.example/app": {"tags": [{"tag": "v1", "version": 1, "imagePullPolicy": "Always"}]}}));
    bench
        .until("again", |s| s["imageStatuses"]["r.example/app"]["tags"][0]["version"] == 1 && s["succeeded"] == 1)
        .await;
    assert_eq!(bench.pulls(IMAGE), 1);
}

#[tokio::test(start_paused = true)]
async fn failed_attempts_are_repeated_and_the_last_error_is_reported() {
    let bench = Bench::new(|_| {});
    bench.fault(IMAGE, Some(Fault::Error(tonic::Status::unknown("https://r.example/v2?token=x: 500"))));
    let owner = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "namespace": "a", "name": "j", "uid": "u"});
    bench.want(one(json!({"tag": "v1", "pullPolicy": {"backoffLimit": 2}, "ownerReferences": [owner]})));
    let status = bench.ended(1).await;
    assert_eq!(bench.pulls(IMAGE), 3);
    let tag = &status["imageStatuses"]["r.example/app"]["tags"][0];
    assert_eq!((&tag["phase"], &tag["message"]), (&json!("Failed"), &json!("PullImage: https://r.example/v2: 500")));
    assert!(tag["completionTime"].is_string() && status["firstSyncStatus"]["status"] == "Failed");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(bench.reasons(), ["ImagePullJob PullImageFailed", "NodeImage PullImageFailed"]);
    // A higher version is a new beginning.
    bench.fault(IMAGE, None);
    bench.want(one(json!({"tag": "v1", "version": 1})));
    bench.until("pulled", |s| s["succeeded"] == 1).await;
}

#[tokio::test(start_paused = true)]
async fn f3_an_attempt_and_all_of_them_have_a_limit_and_end_the_call() {
    let bench = Bench::new(|_| {});
    bench.fault(IMAGE, Some(Fault::Never));
    let policy = json!({"timeoutSeconds": 5, "backoffLimit": 9, "activeDeadlineSeconds": 8});
    bench.want(one(json!({"tag": "v1", "pullPolicy": policy})));
    let status = bench.ended(1).await;
    let message = status["imageStatuses"]["r.example/app"]["tags"][0]["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("activeDeadlineSeconds are over; the attempt took longer than"), "{message}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let calls = bench.calls();
    assert_eq!((calls.len(), calls.iter().filter(|c| **c == Call::PullCancelled(IMAGE.into())).count()), (4, 2));
}

#[tokio::test(start_paused = true)]
async fn f3_what_is_not_wanted_any_more_is_cancelled_and_not_reported() {
    let bench = Bench::new(|_| {});
    bench.fault(IMAGE, Some(Fault::Never));
    bench.want(one(json!({"tag": "v1"})));
    bench.until("pulling", |s| s["pulling"] == 1).await;
    // Another version: the first worker is stopped, and says nothing any more.
    bench.want(one(json!({"tag": "v1", "version": 1})));
    bench.until("again", |s| s["imageStatuses"]["r.example/app"]["tags"][0]["version"] == 1).await;
    bench.want(json!({}));
    let status = bench.until("empty", |s| s["desired"] == 0).await;
    assert_eq!(status.get("imageStatuses").filter(|s| **s != json!({})), None, "{status}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let cancelled = bench.calls().iter().filter(|c| **c == Call::PullCancelled(IMAGE.into())).count();
    assert_eq!(cancelled, 2);
    assert!(bench.metrics.render().unwrap().contains("kruise_image_pulls_total{result=\"cancelled\"} 2"));
    assert!(bench.metrics.render().unwrap().contains("kruise_image_pulls_running 0"));
    assert!(bench.reasons().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_the_manager_has_given_up_is_stopped() {
    let bench = Bench::new(|_| {});
    bench.fault(IMAGE, Some(Fault::Never));
    bench.want(one(json!({"tag": "v1"})));
    bench.until("pulling", |s| s["pulling"] == 1).await;
    let given_up =
        json!({"tag": "v1", "phase": "Failed", "message": "given up", "completionTime": "2026-01-01T00:00:00Z"});
    bench.object.lock().unwrap()["status"]["imageStatuses"]["r.example/app"]["tags"] = json!([given_up]);
    bench.want(one(json!({"tag": "v1"})));
    let status = bench.until("counted", |s| s["failed"] == 1).await;
    assert_eq!(status["imageStatuses"]["r.example/app"]["tags"][0]["message"], "given up");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(bench.calls().last(), Some(&Call::PullCancelled(IMAGE.into())));
}

#[tokio::test(start_paused = true)]
async fn no_more_are_pulled_at_a_time_than_allowed() {
    let bench = Bench::new(|settings| settings.workers = 2);
    let tags: Vec<Value> =
        (0..6).map(|n| json!({"tag": format!("t{n}"), "createdAt": format!("2026-01-01T00:00:0{n}Z")})).collect();
    for n in 0..6 {
        bench.fault(&format!("r.example/app:t{n}"), Some(Fault::Late(Duration::from_secs(10))));
    }
    bench.want(json!({"r.example/app": {"tags": tags}}));
    let status = bench.until("two", |s| s["pulling"] == 2).await;
    assert_eq!((&status["waiting"], &status["desired"]), (&json!(4), &json!(6)));
    assert_eq!(bench.calls().len(), 2);
    bench.ended(6).await;
    let order: Vec<String> = bench
        .calls()
        .into_iter()
        .map(|call| if let Call::Pull(image, ..) = call { image } else { panic!("{call:?}") })
        .collect();
    let want: Vec<String> = (0..6).map(|n| format!("r.example/app:t{n}")).collect();
    assert_eq!(order, want);
    assert!(bench.writes.load(Ordering::SeqCst) <= 12, "{}", bench.writes.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn e15_a_daemon_that_stops_while_pulls_wait_begins_none_of_them() {
    let bench = Bench::new(|settings| settings.workers = 1);
    bench.fault("r.example/app:t0", Some(Fault::Never));
    let tags: Vec<Value> =
        (0..5).map(|n| json!({"tag": format!("t{n}"), "createdAt": format!("2026-01-01T00:00:0{n}Z")})).collect();
    bench.want(json!({"r.example/app": {"tags": tags}}));
    bench.until("one at it", |s| s["pulling"] == 1 && s["waiting"] == 4).await;
    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn(bench.puller.clone().run(stopped));
    tokio::time::sleep(Duration::from_secs(1)).await;
    stop.send(true).unwrap();
    running.await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((bench.pulls("r.example/app:t0"), bench.calls().len()), (1, 2));
    assert_eq!(bench.calls()[1], Call::PullCancelled("r.example/app:t0".into()));
}

#[tokio::test(start_paused = true)]
async fn a_malformed_reference_fails_at_once() {
    let bench = Bench::new(|_| {});
    bench.want(json!({"r.example/app:v1": {"tags": [{"tag": "v2"}]}}));
    let status = bench.ended(1).await;
    let message = status["imageStatuses"]["r.example/app:v1"]["tags"][0]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("\"r.example/app:v1:v2\" is no image reference"), "{message}");
    assert!(bench.calls().is_empty());
}

/// F1: upstream's references to digests always fail.
#[tokio::test(start_paused = true)]
async fn f1_an_image_has_to_have_the_digest_that_was_asked_for() {
    let bench = Bench::new(|_| {});
    // The first image of the fake has this one.
    let digest = format!("sha256:{:064x}", 1);
    bench.want(one(json!({"tag": digest, "pullPolicy": {"backoffLimit": 0}})));
    assert_eq!(bench.ended(1).await["succeeded"], 1);
    assert_eq!(bench.pulls(&format!("r.example/app@{digest}")), 1);
    let other = format!("sha256:{:064x}", 7);
    bench.want(one(json!({"tag": other, "pullPolicy": {"backoffLimit": 0}})));
    let status = bench.until("failed", |s| s["failed"] == 1).await;
    let message = status["imageStatuses"]["r.example/app"]["tags"][0]["message"].as_str().unwrap().to_owned();
    assert!(message.contains(&format!("does not have the digest {other}")), "{message}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_pulled_onto_a_full_disk() {
    let bench = Bench::new(|settings| settings.image_fs_limit_percent = 1);
    bench.want(one(json!({"tag": "v1", "pullPolicy": {"backoffLimit": 0}})));
    let status = bench.ended(1).await;
    let message = status["imageStatuses"]["r.example/app"]["tags"][0]["message"].as_str().unwrap().to_owned();
    let said = ["the file system that holds images is 50% full", "from 1% on"].map(|words| message.contains(words));
    assert_eq!(said, [true; 2], "{message}");
    assert!(bench.calls().is_empty());
}

/// A disk that is full from the third look on.
fn filling(_: &std::path::Path) -> rustix::io::Result<rules::Space> {
    static LOOKS: AtomicUsize = AtomicUsize::new(0);
    let free = if LOOKS.fetch_add(1, Ordering::SeqCst) < 2 { 50 } else { 10 };
    Ok(rules::Space { total: 100, free, available: free })
}

#[tokio::test(start_paused = true)]
async fn under_disk_pressure_no_pull_begins_until_it_ends() {
    let bench = Bench::new(|_| {});
    *bench.node.lock().unwrap() = json!({"status": {"conditions": [{"type": "DiskPressure", "status": "True"}]}});
    bench.want(one(json!({"tag": "v1", "version": 1, "pullPolicy": {"backoffLimit": 0}})));
    let status = bench.ended(1).await;
    let message = status["imageStatuses"]["r.example/app"]["tags"][0]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("kubelet reports DiskPressure of the node"), "{message}");
    assert!(bench.calls().is_empty());
    *bench.node.lock().unwrap() = json!({"status": {"conditions": [{"type": "DiskPressure", "status": "False"}]}});
    // The answer holds for so long.
    tokio::time::sleep(Duration::from_secs(10)).await;
    bench.want(one(json!({"tag": "v1", "version": 2})));
    bench.until("pulled", |status| status["succeeded"] == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_fills_the_disk_is_ended() {
    let bench = Bench::new(|settings| (settings.image_fs_limit_percent, settings.space) = (80, filling));
    bench.fault(IMAGE, Some(Fault::Never));
    bench.want(one(json!({"tag": "v1", "pullPolicy": {"backoffLimit": 1}})));
    let status = bench.ended(1).await;
    let message = status["imageStatuses"]["r.example/app"]["tags"][0]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("is 90% full"), "{message}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let calls = bench.calls();
    // The attempt after that does not begin.
    assert_eq!((calls.len(), calls.last()), (2, Some(&Call::PullCancelled(IMAGE.into()))));
}

#[tokio::test(start_paused = true)]
async fn an_order_whose_worker_panicked_has_failed() {
    let bench = Bench::new(|_| {});
    bench.fault(IMAGE, Some(Fault::Never));
    bench.want(one(json!({"tag": "v1", "pullPolicy": {"backoffLimit": 0}})));
    bench.until("pulling", |status| status["pulling"] == 1).await;
    let puller = bench.puller.clone();
    let worker = {
        let shared = puller.shared();
        let (entry, job) = shared.jobs.first_key_value().unwrap();
        job.worker.abort();
        Worker { entry: entry.clone(), generation: job.generation }
    };
    let steps = async { panic!("as a rule that met a surprise") };
    assert!(tokio::spawn(async move { puller.to_an_end(&worker, steps).await }).await.unwrap_err().is_panic());
    let status = bench.ended(1).await;
    let tag = &status["imageStatuses"]["r.example/app"]["tags"][0];
    assert_eq!(tag["phase"], "Failed", "{tag}");
    assert!(tag["message"].as_str().unwrap().contains("an error of its own"), "{tag}");
    assert_eq!(bench.puller.metrics.running.get(), 0, "of the worker that was aborted");
}

/// Without a token there are no credentials, and nobody tries without them.
#[tokio::test(start_paused = true)]
async fn without_an_answer_of_the_manager_the_reason_is_reported() {
    let bench = Bench::new(|_| {});
    let images = json!({"r.example/app": {"pullSecrets": [{"namespace": "a", "name": "s"}],
        "tags": [{"tag": "v1", "pullPolicy": {"timeoutSeconds": 20, "backoffLimit": 0}}]}});
    bench.want(images);
    let status = bench.ended(1).await;
    let message = status["imageStatuses"]["r.example/app"]["tags"][0]["message"].as_str().unwrap().to_owned();
    assert!(
        message.starts_with("registry credentials cannot be had from the manager: the token /not/there/token"),
        "{message}"
    );
    assert!(bench.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_older_version_of_the_object_is_not_taken_over() {
    let bench = Bench::new(|_| {});
    bench.want(one(json!({"tag": "v1"})));
    bench.ended(1).await;
    let old = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "NodeImage",
        "metadata": {"name": "n", "resourceVersion": "1"}, "spec": {"images": one(json!({"tag": "v1"}))}});
    bench.puller.object_changed(serde_json::from_value(old).unwrap());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(bench.pulls(IMAGE), 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_image_that_was_made_again_begins_anew_and_a_late_answer_brings_none_back() {
    let bench = Bench::new(|_| {});
    bench.fault(IMAGE, Some(Fault::Never));
    bench.want(one(json!({"tag": "v1"})));
    bench.until("pulling", |s| s["pulling"] == 1).await;
    let late: NodeImage = serde_json::from_value(bench.object.lock().unwrap().clone()).unwrap();
    // While the watch did not run: the first version of its entry has the same number.
    {
        let mut object = bench.object.lock().unwrap();
        object["metadata"]["uid"] = "again".into();
        object.as_object_mut().unwrap().remove("status");
    }
    bench.fault(IMAGE, None);
    bench.want(one(json!({"tag": "v1"})));
    bench.ended(1).await;
    assert_eq!(bench.pulls(IMAGE), 2);
    assert!(bench.calls().contains(&Call::PullCancelled(IMAGE.into())));

    bench.puller.object_gone();
    bench.puller.take_answer(late);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(bench.pulls(IMAGE), 2, "there is no NodeImage");
}
