//! The controller against an API server that lives in memory.

use std::collections::BTreeMap;

use axum::http::Method;

use super::*;
use crate::controllers::in_memory;

const CRRS: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/containerrecreaterequests";
const PODS: &str = "/api/v1/namespaces/ns/pods";
const WR: &str = "/apis/kruise.rs/v1alpha1/namespaces/ns/workloadrestarts/roll";

#[derive(Default)]
struct Api {
    objects: BTreeMap<String, Value>,
    version: u64,
    created: usize,
    /// The answer to every creation.
    refuse: Option<u16>,
    /// The answer to changes of the Pod web-2.
    refuse_touch: Option<u16>,
    /// Pods that were to be changed, by name.
    touched: Vec<String>,
    /// What admission sets; empty: the UID that tests give to the Pod.
    pod_uid: &'static str,
}

impl Api {
    fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.objects.insert(path.into(), object.clone());
        object
    }

    fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        let error = |code: u16| {
            (code, json!({"kind": "Status", "status": "Failure", "code": code, "message": format!("code {code}")}))
        };
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        if *method == Method::POST {
            if let Some(code) = self.refuse {
                return error(code);
            }
            let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap());
            if self.objects.contains_key(&path) {
                return error(409);
            }
            let mut object = body;
            let uid = format!("uid-{}", object["spec"]["podName"].as_str().unwrap());
            let uid = if self.pod_uid.is_empty() { uid } else { self.pod_uid.to_owned() };
            object["metadata"]["labels"]["crr.apps.kruise.io/pod-uid"] = uid.into();
            self.created += 1;
            return (201, self.put(&path, object));
        }
        let path = path.trim_end_matches("/status");
        let Some(mut object) = self.objects.get(path).cloned() else { return error(404) };
        if *method == Method::PATCH {
            if let Some(pod) = path.strip_prefix(&format!("{PODS}/")) {
                self.touched.push(pod.to_owned());
                if let Some(code) = self.refuse_touch.filter(|_| pod == "web-2") {
                    return error(code);
                }
            }
            let version = &body["metadata"]["resourceVersion"];
            if !version.is_null() && *version != object["metadata"]["resourceVersion"] {
                return error(409);
            }
            json_patch::merge(&mut object, &body);
            object = self.put(path, object);
        }
        (200, object)
    }
}

struct Fixture {
    api: Arc<Mutex<Api>>,
    controller: Arc<Controller>,
}

/// A manager that has just begun, with a restart of one Pod whose round has begun.
fn fixture(api: &Arc<Mutex<Api>>) -> Fixture {
    let context = {
        let api = api.clone();
        in_memory::context(move |parts, body| lock(&api).answer(&parts.method, parts.uri.path(), body))
    };
    let controller = Arc::new(Controller::new(&context));
    let fixture = Fixture { api: api.clone(), controller };
    fixture.controller.context.pods.upsert(pod("web-0", json!({})));
    let stored = lock(api).objects.get(WR).cloned().unwrap_or_else(|| {
        let spec = json!({"targetRef": null, "selector": {"matchLabels": {"app": "web"}}});
        serde_json::to_value(super::restart(json!({"spec": spec}))).unwrap()
    });
    let stored = lock(api).put(WR, stored);
    fixture.controller.restarts.upsert(serde_json::from_value(stored).unwrap());
    fixture
}

fn api() -> Arc<Mutex<Api>> {
    Arc::new(Mutex::new(Api { pod_uid: "uid-web-0", ..Api::default() }))
}

impl Fixture {
    async fn reconcile(&self) -> kube::Result<Requeue> {
        self.controller.reconcile(&ObjectKey::new("ns", "roll")).await
    }
    fn status(&self) -> Value {
        lock(&self.api).objects[WR]["status"].clone()
    }
    fn reason(&self) -> String {
        let status = self.status();
        let conditions = status["conditions"].as_array().unwrap().iter();
        conditions.filter(|c| c["type"] == "Progressing").map(|c| c["reason"].as_str().unwrap().to_owned()).collect()
    }
    fn created(&self) -> usize {
        lock(&self.api).created
    }
}

#[tokio::test]
async fn a_second_look_sees_what_the_first_has_begun() {
    let fixture = fixture(&api());
    fixture.reconcile().await.unwrap();
    fixture.reconcile().await.unwrap();
    assert_eq!((fixture.created(), fixture.reason().as_str()), (1, "Restarting"));
}

#[tokio::test]
async fn a_manager_that_starts_anew_takes_over_the_requests_of_the_one_before() {
    let api = api();
    fixture(&api).reconcile().await.unwrap();
    // its watch of requests has shown nothing yet
    let next = fixture(&api);
    next.reconcile().await.unwrap();
    assert_eq!((next.created(), next.controller.requests.len()), (1, 1));
    next.reconcile().await.unwrap();
    assert_eq!((next.created(), next.status()["restarting"].clone()), (1, json!(1)));
}

#[tokio::test]
async fn a_name_that_belongs_to_somebody_else_is_a_failure_and_not_a_success() {
    let api = api();
    fixture(&api).reconcile().await.unwrap();
    for (path, object) in &mut lock(&api).objects {
        if path.starts_with(CRRS) {
            object["metadata"]["ownerReferences"] = json!([]);
        }
    }
    let next = fixture(&api);
    next.reconcile().await.unwrap();
    let refused = lock(&next.controller.memories)[&ObjectKey::new("ns", "roll")].refused["uid-web-0"].clone();
    assert!(refused.0 == 1 && refused.2.contains("belongs to somebody else"), "{refused:?}");
    assert!(next.controller.requests.is_empty());
}

#[tokio::test]
async fn a_refusal_by_admission_is_remembered_and_an_error_of_the_server_is_reported_and_tried_again() {
    let api = api();
    let fixture = fixture(&api);
    lock(&api).refuse = Some(500);
    fixture.reconcile().await.unwrap_err();
    assert_eq!(fixture.reason(), "RequestsFailing");
    assert!(fixture.status()["message"].as_str().unwrap().contains("code 500"));
    lock(&api).refuse = Some(400);
    fixture.reconcile().await.unwrap();
    let times =
        |fixture: &Fixture| lock(&fixture.controller.memories)[&ObjectKey::new("ns", "roll")].refused["uid-web-0"].0;
    assert_eq!(times(&fixture), 1);
    fixture.reconcile().await.unwrap();
    assert_eq!(times(&fixture), 1, "not at once");
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_volumes_cannot_be_refreshed_fails_with_the_words_and_the_others_are_restarted() {
    for code in [403, 422, 400] {
        let api = Arc::new(Mutex::new(Api { refuse_touch: Some(code), ..Api::default() }));
        let spec = json!({"targetRef": null, "selector": {"matchLabels": {"app": "web"}}, "triggers": [],
            "maxUnavailable": 3, "failurePolicy": {"threshold": 2}});
        lock(&api).put(WR, serde_json::to_value(super::restart(json!({"spec": spec}))).unwrap());
        let fixture = fixture(&api);
        for name in ["web-0", "web-1", "web-2"] {
            let stored = lock(&api).put(&format!("{PODS}/{name}"), pod_object(name, json!({})));
            fixture.controller.context.pods.upsert(serde_json::from_value(stored).unwrap());
        }
        for _ in 0..8 {
            fixture.reconcile().await.unwrap();
            tokio::time::advance(Duration::from_millis(1100)).await;
        }
        let mut touched = lock(&api).touched.clone();
        touched.sort();
        assert_eq!(touched, ["web-0", "web-1", "web-2", "web-2", "web-2"], "{code}");
        assert_eq!((fixture.created(), &fixture.status()["failed"]), (2, &json!(1)), "{code}");
        let requests = lock(&api).objects.clone().into_iter().filter(|(path, _)| path.starts_with(CRRS));
        for (path, mut request) in requests {
            request["status"] = serde_json::to_value(succeeded()).unwrap()["status"].clone();
            let stored = lock(&api).put(&path, request);
            fixture.controller.requests.upsert(serde_json::from_value(stored).unwrap());
        }
        fixture.reconcile().await.unwrap();
        assert_eq!(
            fixture.status()["message"],
            format!("2 of 3 Pods were restarted; not so web-2: its volumes cannot be refreshed: code {code}")
        );
        assert_eq!(fixture.reason(), "Completed", "{code}");
    }
}

#[tokio::test]
async fn a_status_is_never_written_over_what_somebody_else_wrote() {
    let api = api();
    let fixture = fixture(&api);
    let mut paused = lock(&api).objects[WR].clone();
    paused["spec"]["paused"] = true.into();
    lock(&api).put(WR, paused);
    let requeue = fixture.reconcile().await.unwrap();
    assert_eq!(requeue, Requeue::After(crate::runtime::pass::AFTER_CONFLICT));
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.reason(), "Paused", "decided from the newer object");
}

#[tokio::test]
async fn a_namespace_whose_calls_hang_delays_the_restarts_of_no_other() {
    let api = api();
    let context = {
        let api = api.clone();
        in_memory::context_of_some(move |parts, body| {
            let path = parts.uri.path();
            (!path.contains("/namespaces/slow/")).then(|| lock(&api).answer(&parts.method, path, body))
        })
    };
    let controller = Arc::new(Controller::new(&context));
    let spec = json!({"targetRef": null, "selector": {"matchLabels": {"app": "web"}}});
    for namespace in ["slow", "ns"] {
        controller.context.pods.upsert(pod("web-0", json!({"metadata": {"namespace": namespace, "uid": namespace}})));
        for name in ["roll", "a", "b", "c"] {
            let metadata = json!({"namespace": namespace, "name": name, "uid": format!("{namespace}-{name}")});
            let stored = serde_json::to_value(super::restart(json!({"metadata": metadata, "spec": spec}))).unwrap();
            let path = WR.replace("roll", name);
            let stored = if namespace == "ns" { lock(&api).put(&path, stored) } else { stored };
            controller.restarts.upsert(serde_json::from_value(stored).unwrap());
            controller.queue.add(ObjectKey::new(namespace, name));
        }
    }
    lock(&api).pod_uid = "ns";
    let (_stop, shutdown) = tokio::sync::watch::channel(false);
    let run = controller.queue.run(REGISTRATION.workers, shutdown, |key, _| {
        let controller = controller.clone();
        async move { controller.reconcile(&key).await }
    });
    let all_have_a_status = async {
        let written = |name: &str| lock(&api).objects[&WR.replace("roll", name)]["status"]["conditions"].is_array();
        while !["roll", "a", "b", "c"].into_iter().all(written) {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = run => unreachable!("nobody has stopped it"),
        done = tokio::time::timeout(Duration::from_secs(10), all_have_a_status) => {
            done.expect("the restarts of the other namespace go on");
        }
    }
    assert_eq!(lock(&api).created, 1, "one Pod, one request");
}

#[test]
fn a_namespace_has_one_lock_while_somebody_decides_and_none_afterwards() {
    let deciding = Deciding::default();
    let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
    let held = deciding.of(&a);
    assert!(Arc::ptr_eq(&held, &deciding.of(&a)) && !Arc::ptr_eq(&held, &deciding.of(&b)));
    drop(held);
    deciding.of(&b);
    assert_eq!(lock(&deciding.0).len(), 1);
}

/// What a pass notes after the watch has told of the deletion would be kept for ever.
#[tokio::test]
async fn nothing_is_remembered_of_one_that_was_deleted_during_a_pass() {
    let key = ObjectKey::new("ns", "roll");
    let deleted = key.clone();
    let controller = in_memory::deleting_while_asked(404, Controller::new, move |controller| {
        controller.restarts.remove(&deleted, None);
        lock(&controller.memories).remove(&deleted);
    });
    controller.restarts.upsert(super::restart(json!({})));
    let _ = controller.reconcile(&key).await;
    assert!(controller.restarts.is_empty(), "the target was read");
    assert!(lock(&controller.memories).is_empty());
}
