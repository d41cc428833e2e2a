//! The controller against an API server that lives in memory: what it writes, and how it takes conflicts.

use std::collections::BTreeMap;

use axum::http::{Method, header::CONTENT_TYPE};
use serde_json::{Value, json};

use super::*;
use crate::controllers::in_memory;

const CRR: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/containerrecreaterequests/r";
const POD: &str = "/api/v1/namespaces/ns/pods/p";
const NODE: &str = "/api/v1/nodes/n1";
const DAEMONS: &str = "/api/v1/namespaces/kruise-system/pods";

#[derive(Default)]
struct Api {
    objects: BTreeMap<String, Value>,
    version: u64,
    log: Vec<String>,
    /// Before the next write of this path somebody else writes it.
    interfere: Option<(String, Value)>,
    /// Changes of a Pod's definition are denied in these words.
    denial: Option<String>,
}

impl Api {
    fn put(&mut self, path: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.objects.insert(path.into(), object);
    }

    fn merge(&mut self, path: &str, changes: &Value) {
        let mut object = self.objects[path].clone();
        json_patch::merge(&mut object, changes);
        self.put(path, object);
    }

    fn answer(&mut self, method: &Method, uri: &http::Uri, strategic: bool, body: &[u8]) -> (u16, Value) {
        let path = uri.path();
        let dry_run = uri.query().is_some_and(|query| query.contains("dryRun=All"));
        let error = |code: u16| (code, json!({"kind": "Status", "status": "Failure", "code": code}));
        let base = path.trim_end_matches("/status");
        if *method != Method::GET {
            let mark = if dry_run { "?dryRun" } else { "" };
            self.log.push(format!("{method} {path}{mark} {}", String::from_utf8_lossy(body)));
            if let Some((_, changes)) = self.interfere.take_if(|(path, _)| path == base) {
                self.merge(base, &changes);
            }
        }
        let Some(object) = self.objects.get(base).cloned() else { return error(404) };
        match *method {
            Method::GET => (200, object),
            Method::DELETE => {
                let options: Value = serde_json::from_slice(body).unwrap();
                let expected = &options["preconditions"]["resourceVersion"];
                assert!(expected.is_string(), "a deletion that is not bound to a version: {options}");
                if *expected != object["metadata"]["resourceVersion"] {
                    return error(409);
                }
                self.objects.remove(base);
                (200, object)
            }
            _ => {
                let mut patch: Value = serde_json::from_slice(body).unwrap();
                let expected = &patch["metadata"]["resourceVersion"];
                assert!(expected.is_string(), "a write that is not bound to a version: {patch}");
                if *expected != object["metadata"]["resourceVersion"] {
                    return error(409);
                }
                if let Some(words) = self.denial.as_ref().filter(|_| patch["spec"].is_object()) {
                    return (
                        403,
                        json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": words}),
                    );
                }
                if strategic && patch["spec"].is_object() {
                    merge_containers(&mut patch, &object);
                } else if strategic {
                    merge_conditions(&mut patch, &object);
                }
                if dry_run {
                    return (200, object);
                }
                self.merge(base, &patch);
                (200, self.objects[base].clone())
            }
        }
    }
}

/// What strategic merge does to `spec.containers`.
fn merge_containers(patch: &mut Value, object: &Value) {
    let mut merged = object["spec"]["containers"].as_array().cloned().unwrap();
    for new in patch["spec"]["containers"].as_array().unwrap() {
        json_patch::merge(merged.iter_mut().find(|old| old["name"] == new["name"]).unwrap(), new);
    }
    patch["spec"]["containers"] = merged.into();
}

/// What strategic merge does to `status.conditions`.
fn merge_conditions(patch: &mut Value, object: &Value) {
    let mut merged = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    for new in patch["status"]["conditions"].as_array().unwrap() {
        match merged.iter_mut().find(|old| old["type"] == new["type"]) {
            Some(old) => json_patch::merge(old, new),
            None => merged.push(new.clone()),
        }
    }
    patch["status"]["conditions"] = merged.into();
}

struct Fixture {
    api: Arc<Mutex<Api>>,
    controller: Arc<Controller>,
}

fn fixture(request: Value, pod: Option<Value>) -> Fixture {
    let api = Arc::new(Mutex::new(Api::default()));
    let context = {
        let api = api.clone();
        in_memory::context(move |parts, body| {
            let strategic =
                parts.headers.get(CONTENT_TYPE).is_some_and(|t| t.as_bytes().starts_with(b"application/strategic"));
            lock(&api).answer(&parts.method, &parts.uri, strategic, body)
        })
    };
    let controller = Arc::new(Controller {
        context,
        requests: Store::new([BY_POD, BY_NODE]),
        queue: Queue::new(Backoff::default()),
        memories: Mutex::default(),
        daemons: Mutex::new(Daemons { since: Some(Duration::ZERO), ..Daemons::new(manager::DAEMON_GONE_AFTER) }),
        progress: Mutex::default(),
        busy: Mutex::default(),
        held: Mutex::default(),
        unreadable: UnreadableObjects::default(),
    });
    lock(&controller.daemons).ready.insert("n1".into(), [ObjectKey::new("kruise-system", "d")].into());
    lock(&api).put(CRR, request);
    if let Some(pod) = pod {
        lock(&api).put(POD, pod);
    }
    let fixture = Fixture { api, controller };
    fixture.sync();
    fixture
}

impl Fixture {
    /// What the watches would bring.
    fn sync(&self) {
        let api = lock(&self.api);
        if let Some(request) = api.objects.get(CRR) {
            self.controller.requests.upsert(serde_json::from_value(request.clone()).unwrap());
        }
        if let Some(pod) = api.objects.get(POD) {
            self.controller.context.pods.upsert(serde_json::from_value(pod.clone()).unwrap());
        }
    }

    async fn reconcile(&self) -> Requeue {
        self.controller.reconcile(&ObjectKey::new("ns", "r")).await.unwrap()
    }

    fn get(&self, path: &str) -> Value {
        lock(&self.api).objects.get(path).cloned().unwrap_or_default()
    }

    /// The writes since the last call, without their bodies.
    fn writes(&self) -> Vec<String> {
        let log = std::mem::take(&mut lock(&self.api).log);
        log.iter().map(|line| line.splitn(3, ' ').take(2).collect::<Vec<_>>().join(" ")).collect()
    }
}

fn request(changes: Value) -> Value {
    let mut request = json!({
        "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
        "metadata": {"name": "r", "namespace": "ns", "uid": "crr", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"crr.apps.kruise.io/active": "true", "crr.apps.kruise.io/node-name": "n1", "crr.apps.kruise.io/pod-uid": "u1", "mine": "x"}},
        "spec": {"podName": "p", "containers": [{"name": "main"}]},
    });
    json_patch::merge(&mut request, &changes);
    request
}

fn pod() -> Value {
    json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {"nodeName": "n1", "readinessGates": [{"conditionType": "KruisePodReady"}]},
        "status": {"newField": 1, "conditions": [{"type": "KruisePodReady", "status": "True", "message": "[]"},
            {"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"}]}})
}

fn running_with_grace() -> Value {
    request(
        json!({"metadata": {"finalizers": ["other"]}, "spec": {"strategy": {"unreadyGracePeriodSeconds": 5}}, "status": {"phase": "Recreating"}}),
    )
}

#[tokio::test]
async fn case_11_and_13_not_ready_is_acquired_once_and_released_at_the_end() {
    let fixture = fixture(running_with_grace(), Some(pod()));
    fixture.reconcile().await;
    let (crr, acquired) = (fixture.get(CRR), fixture.get(POD));
    assert_eq!(crr["metadata"]["finalizers"], json!(["other", "crr.apps.kruise.io/unready-acquired"]));
    let since = &crr["status"]["conditions"][0]["lastTransitionTime"];
    assert_eq!(crr["metadata"]["annotations"]["crr.apps.kruise.io/unready-acquired"], *since);
    assert_eq!(
        acquired["status"]["conditions"][0]["message"],
        r#"[{"userAgent":"ContainerRecreateRequest","key":"ns/r"}]"#
    );
    assert_eq!(acquired["status"]["conditions"][1]["status"], "False", "Ready");
    assert_eq!(acquired["status"]["newField"], 1);
    assert_eq!(fixture.writes().len(), 4);

    fixture.sync();
    fixture.reconcile().await;
    assert_eq!(fixture.writes(), Vec::<String>::new(), "a second look writes nothing");

    lock(&fixture.api).merge(CRR, &json!({"status": {"phase": "Completed"}}));
    fixture.sync();
    fixture.reconcile().await;
    let crr = fixture.get(CRR);
    assert_eq!(crr["metadata"]["finalizers"], json!(["other"]));
    assert_eq!(crr["metadata"]["labels"].get("crr.apps.kruise.io/active"), None);
    assert_eq!(crr["metadata"]["labels"]["mine"], "x");
    assert_eq!(fixture.get(POD)["status"]["conditions"][0]["status"], "True");
    assert_eq!(fixture.writes(), [format!("PATCH {POD}/status"), format!("PATCH {CRR}")]);
}

#[tokio::test]
async fn a_plain_request_costs_one_write() {
    let fixture = fixture(request(json!({"status": {"phase": "Completed"}})), Some(pod()));
    assert_eq!(fixture.reconcile().await, Requeue::Await);
    fixture.sync();
    fixture.reconcile().await;
    assert_eq!(fixture.writes(), [format!("PATCH {CRR}")]);
}

#[tokio::test]
async fn case_18_a_request_that_completed_meanwhile_is_not_written_over() {
    let fixture = fixture(request(json!({"status": {"phase": "Recreating"}})), None);
    let done =
        json!({"status": {"phase": "Completed", "containerRecreateStates": [{"name": "main", "phase": "Succeeded"}]}});
    lock(&fixture.api).interfere = Some((CRR.into(), done));
    assert_eq!(fixture.reconcile().await, Requeue::After(AFTER_CONFLICT));
    assert_eq!(fixture.get(CRR)["status"].get("message"), None);
    // Read again, it is seen to be completed without waiting for the watch.
    fixture.reconcile().await;
    assert_eq!(fixture.get(CRR)["status"]["containerRecreateStates"][0]["phase"], "Succeeded");
    assert_eq!(fixture.get(CRR)["metadata"]["labels"].get("crr.apps.kruise.io/active"), None);
}

#[tokio::test]
async fn case_06_a_pod_missing_in_the_store_is_asked_for_before_the_request_ends() {
    let fixture = fixture(request(json!({"status": {"phase": "Recreating"}})), Some(pod()));
    fixture.controller.context.pods.remove(&ObjectKey::new("ns", "p"), None);
    fixture.reconcile().await;
    assert_eq!(fixture.writes(), Vec::<String>::new(), "the store was behind");
    lock(&fixture.api).objects.remove(POD);
    fixture.reconcile().await;
    let status = &fixture.get(CRR)["status"];
    assert_eq!((&status["phase"], &status["message"]), (&json!("Completed"), &json!("pod has gone")));
    assert_eq!(
        status["containerRecreateStates"],
        json!([{"name": "main", "phase": "Failed", "message": "pod has gone"}])
    );
}

#[tokio::test]
async fn case_14_a_pod_that_others_write_at_the_same_time_is_tried_again() {
    let fixture = fixture(running_with_grace(), Some(pod()));
    let foreign = json!([{"type": "KruisePodReady", "status": "False", "message": r#"[{"userAgent":"Lifecycle","key":"preDeleteHook"}]"#}]);
    lock(&fixture.api).interfere = Some((POD.into(), json!({"status": {"conditions": foreign}})));
    fixture.reconcile().await;
    let message = fixture.get(POD)["status"]["conditions"][0]["message"].clone();
    assert_eq!(
        message,
        r#"[{"userAgent":"ContainerRecreateRequest","key":"ns/r"},{"userAgent":"Lifecycle","key":"preDeleteHook"}]"#
    );
}

#[tokio::test]
async fn case_13_a_deleted_request_goes_even_if_its_pod_is_another_one() {
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:01:00Z", "finalizers": ["crr.apps.kruise.io/unready-acquired"]},
        "status": {"phase": "Recreating"}});
    let mut successor = pod();
    successor["metadata"]["uid"] = "u2".into();
    let fixture = fixture(request(deleted), Some(successor));
    fixture.reconcile().await;
    assert_eq!(fixture.writes(), [format!("PATCH {CRR}")], "the successor is not touched");
    assert_eq!(fixture.get(CRR)["metadata"].get("finalizers"), None);
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_daemon_says_so_and_stays_as_it_is() {
    let fixture = fixture(request(json!({})), Some(pod()));
    lock(&fixture.api).put(NODE, json!({"metadata": {"name": "n1"}}));
    tokio::time::advance(Duration::from_secs(20)).await;
    let daemon = lock(&fixture.controller.daemons).ready.remove("n1").unwrap();
    fixture.reconcile().await;
    assert_eq!(fixture.writes(), Vec::<String>::new(), "a daemon may be there all the same");
    let now = clock::now();
    let made = Sighting::found(now, now.wall - jiff::SignedDuration::from_secs(5));
    lock(&fixture.controller.memories).values_mut().for_each(|(_, memory)| memory.created = made);
    fixture.reconcile().await;
    let message = "waiting for a ready kruise-daemon on node n1";
    let status = &fixture.get(CRR)["status"];
    assert_eq!((&status["phase"], &status["message"]), (&json!(""), &json!(message)));
    assert_eq!(
        (&status["conditions"][0]["type"], &status["conditions"][0]["message"]),
        (&json!("Ready"), &json!(message))
    );
    // The daemon takes it back when it looks at the request; that is no reason to report it again.
    lock(&fixture.api).merge(CRR, &json!({"status": {"phase": "Recreating", "message": null}}));
    fixture.sync();
    fixture.reconcile().await;
    assert_eq!(fixture.writes().len(), 1);
    // The next time that it goes is another matter.
    lock(&fixture.controller.daemons).ready.insert("n1".into(), daemon);
    fixture.reconcile().await;
    lock(&fixture.controller.daemons).ready.clear();
    fixture.reconcile().await;
    assert_eq!(fixture.get(CRR)["status"]["message"], message);
}

/// A request whose daemon is missing, after so many seconds of it.
async fn without_daemon(changes: Value, seconds: u64) -> Fixture {
    let fixture = fixture(request(changes), Some(pod()));
    {
        let mut daemons = lock(&fixture.controller.daemons);
        daemons.ready.clear();
        // Not since this process began: other tests may have run for minutes.
        daemons.since = Some(clock::now().mono);
    }
    lock(&fixture.api).put(NODE, json!({"metadata": {"name": "n1"}}));
    fixture.controller.remember(&fixture.controller.requests.list()[0], false, clock::now());
    tokio::time::advance(Duration::from_secs(seconds)).await;
    fixture
}

fn daemons(ready: &[&str]) -> Value {
    let daemon = |ready: &&str| {
        json!({"metadata": {"name": "d", "namespace": "kruise-system", "labels": {"control-plane": "daemon"}},
            "spec": {"nodeName": "n1"}, "status": {"conditions": [{"type": "Ready", "status": ready}]}})
    };
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": ready.iter().map(daemon).collect::<Vec<_>>()})
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_never_returns_ends_the_request_once_the_api_server_says_so_too() {
    let fixture = without_daemon(running_with_grace(), 590).await;
    fixture.reconcile().await;
    assert_ne!(fixture.get(CRR)["status"]["phase"], "Completed");
    tokio::time::advance(Duration::from_secs(20)).await;
    fixture.sync();
    let acquired = fixture.writes();
    assert!(acquired.contains(&format!("PATCH {POD}/status")), "it holds its Pod NotReady: {acquired:?}");
    let key = ObjectKey::new("ns", "r");
    // The daemons cannot be listed: nothing is known, and nothing is done.
    fixture.controller.reconcile(&key).await.unwrap_err();
    // The watch has stopped; the daemon is there.
    lock(&fixture.api).put(DAEMONS, daemons(&["False", "True"]));
    fixture.reconcile().await;
    assert_eq!(fixture.writes(), Vec::<String>::new());
    assert_ne!(fixture.get(CRR)["status"]["phase"], "Completed");
    for list in [daemons(&["False"]), daemons(&[])] {
        lock(&fixture.api).put(DAEMONS, list);
    }
    fixture.reconcile().await;
    fixture.sync();
    let status = fixture.get(CRR)["status"].clone();
    let reason = "node n1 has had no ready kruise-daemon for 600 s";
    assert_eq!((&status["phase"], &status["message"]), (&json!("Completed"), &json!(reason)));
    assert_eq!(status["containerRecreateStates"][0]["phase"], "Failed");
    fixture.reconcile().await;
    assert_eq!(fixture.get(CRR)["metadata"]["finalizers"], json!(["other"]));
    let conditions = fixture.get(POD)["status"]["conditions"].clone();
    let ready = conditions.as_array().unwrap().iter().find(|c| c["type"] == "KruisePodReady").unwrap();
    assert_eq!((&ready["status"], &ready["message"]), (&json!("True"), &json!("[]")), "the key is released");
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_node_was_deleted_ends_at_once() {
    let fixture = without_daemon(json!({"status": {"phase": "Recreating"}}), 12).await;
    lock(&fixture.api).objects.remove(NODE);
    fixture.reconcile().await;
    assert_eq!(fixture.get(CRR)["status"]["message"], "node n1 has been deleted");
    let queue = &fixture.controller.queue;
    let waiting = queue.depth();
    let gone: Arc<NodeView> = Arc::new(serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap());
    let open = json!({"metadata": {"name": "other", "uid": "other", "labels": {"crr.apps.kruise.io/node-name": "n1"}}});
    fixture.controller.requests.upsert(serde_json::from_value(request(open)).unwrap());
    fixture.controller.node_changed(&Change::Deleted(&gone));
    assert_eq!(queue.depth(), waiting + 1, "the open request of the node, not the one that has ended");
    // While the watch shows the Node nothing is read and nothing ends.
    let known = without_daemon(json!({"status": {"phase": "Recreating"}}), 12).await;
    let node: NodeView = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
    known.controller.context.nodes.store().upsert(node);
    lock(&known.api).objects.remove(NODE);
    known.reconcile().await;
    assert_eq!(known.get(CRR)["status"]["phase"], "Recreating");
    // On a virtual node there is no daemon, and none is missed.
    let on_virtual = json!({"metadata": {"labels": {"type": "virtual-kubelet"}}, "status": {"phase": "Recreating"}});
    let fixture = without_daemon(on_virtual, 10_000).await;
    fixture.reconcile().await;
    assert_eq!(fixture.writes(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn with_a_stop_on_record_the_key_is_released_and_the_request_is_left_to_its_daemon() {
    let fixture = without_daemon(running_with_grace(), 1).await;
    fixture.reconcile().await;
    fixture.sync();
    let states = json!([{"name": "main", "phase": "Recreating", "previousContainerID": "containerd://c0",
        "killStartedAt": "2026-01-01T00:00:00Z"}]);
    lock(&fixture.api).merge(CRR, &json!({"status": {"containerRecreateStates": states}}));
    lock(&fixture.api).put(DAEMONS, daemons(&[]));
    fixture.sync();
    tokio::time::advance(Duration::from_secs(700)).await;
    fixture.writes();
    fixture.reconcile().await;
    assert_eq!(fixture.writes(), [format!("PATCH {POD}/status"), format!("PATCH {CRR}/status")]);
    let status = fixture.get(CRR)["status"].clone();
    assert_eq!((&status["phase"], &status["containerRecreateStates"]), (&json!("Recreating"), &states));
    let gone = status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "DaemonGone").unwrap();
    assert_eq!(gone["message"], "node n1 has had no ready kruise-daemon for 600 s");
    let conditions = fixture.get(POD)["status"]["conditions"].clone();
    let ready = conditions.as_array().unwrap().iter().find(|c| c["type"] == "KruisePodReady").unwrap();
    assert_eq!(ready["message"], "[]", "the Pod is not held any more");
    fixture.sync();
    fixture.reconcile().await;
    assert_eq!(fixture.writes(), Vec::<String>::new(), "that is all");
}

#[tokio::test]
async fn the_ttl_deletes_and_a_request_that_is_gone_waits_for_the_watch() {
    let fixture =
        fixture(request(json!({"spec": {"ttlSecondsAfterFinished": 0}, "status": {"phase": "Completed"}})), None);
    fixture.reconcile().await;
    assert_eq!(fixture.writes(), [format!("PATCH {CRR}"), format!("DELETE {CRR}")]);
    // The watch has not shown it yet: no loop, and the object does not come back when the watch delivers older versions.
    assert_eq!(fixture.reconcile().await, Requeue::Await);
    assert_eq!(fixture.controller.requests.len(), 1);
}

#[tokio::test]
async fn a_request_whose_time_to_live_was_just_prolonged_is_kept() {
    let changes = json!({"metadata": {"labels": {"crr.apps.kruise.io/active": null}},
        "spec": {"ttlSecondsAfterFinished": 0}, "status": {"phase": "Completed"}});
    let fixture = fixture(request(changes), None);
    lock(&fixture.api).interfere = Some((CRR.into(), json!({"spec": {"ttlSecondsAfterFinished": 600}})));
    assert_eq!(fixture.reconcile().await, Requeue::After(AFTER_CONFLICT));
    assert!(matches!(fixture.reconcile().await, Requeue::After(after) if after > AFTER_CONFLICT));
    assert_eq!(fixture.writes(), [format!("DELETE {CRR}")]);
    assert_eq!(fixture.get(CRR)["spec"]["ttlSecondsAfterFinished"], 600);
}

/// A Pod under the keys of requests `r` and `other`, of a request in another namespace, and of a hook.
fn held_pod() -> Value {
    let keys = r#"[{"userAgent":"ContainerRecreateRequest","key":"ns/other"},{"userAgent":"ContainerRecreateRequest","key":"ns/r"},{"userAgent":"ContainerRecreateRequest","key":"there/r"},{"userAgent":"Lifecycle","key":"ns/r"}]"#;
    let mut pod = pod();
    pod["status"]["conditions"][0] = json!({"type": "KruisePodReady", "status": "False", "message": keys});
    pod
}

impl Fixture {
    /// The watch of Pods delivers the Pod; requests that are to be looked at because of it.
    fn see_pod(&self) -> Vec<ObjectKey> {
        let pod: Arc<PodView> = Arc::new(serde_json::from_value(self.get(POD)).unwrap());
        lock(&self.controller.held).update(&ObjectKey::new("ns", "p"), None, Some(&pod))
    }

    fn keys(&self) -> Vec<String> {
        let pod = self.get(POD);
        let keys = crate::domain::pod::readiness::keys(pod["status"]["conditions"][0]["message"].as_str().unwrap());
        keys.into_iter().map(|key| format!("{} {}", key.user_agent, key.key)).collect()
    }
}

const OTHERS: [&str; 3] = ["ContainerRecreateRequest ns/other", "ContainerRecreateRequest there/r", "Lifecycle ns/r"];

#[tokio::test]
async fn a_key_whose_request_does_not_exist_is_swept_and_those_of_others_stay() {
    let fixture = fixture(request(json!({})), Some(held_pod()));
    lock(&fixture.api).objects.remove(CRR);
    fixture.controller.requests.remove(&ObjectKey::new("ns", "r"), None);
    assert_eq!(fixture.see_pod(), [ObjectKey::new("ns", "other"), ObjectKey::new("ns", "r")]);
    fixture.reconcile().await;
    assert_eq!(fixture.keys(), OTHERS);
    assert_eq!(fixture.writes(), [format!("PATCH {POD}/status")]);
    fixture.reconcile().await;
    assert_eq!(fixture.writes(), Vec::<String>::new());
}

#[tokio::test]
async fn a_key_is_not_swept_because_the_store_is_behind() {
    let fixture = fixture(request(json!({})), Some(held_pod()));
    fixture.controller.requests.remove(&ObjectKey::new("ns", "r"), None);
    fixture.see_pod();
    fixture.reconcile().await;
    assert_eq!(fixture.writes(), Vec::<String>::new(), "the API server has the request");
}

#[tokio::test]
async fn a_key_that_a_request_for_another_pod_or_a_finished_one_has_left_is_swept() {
    let done = json!({"metadata": {"labels": {"crr.apps.kruise.io/active": null}}, "status": {"phase": "Completed"}});
    for changes in [json!({"metadata": {"labels": {"crr.apps.kruise.io/pod-uid": "u2"}}}), done] {
        let fixture = fixture(request(changes), Some(held_pod()));
        fixture.controller.requests.remove(&ObjectKey::new("ns", "r"), None);
        fixture.see_pod();
        fixture.reconcile().await;
        assert_eq!(fixture.keys(), OTHERS);
    }
}

#[tokio::test]
async fn a_key_is_swept_at_once_when_the_finalizer_was_removed_although_the_request_stays_for_its_ttl() {
    let ended = |time: &str, finalizers: Value| {
        request(json!({"metadata": {"labels": {"crr.apps.kruise.io/active": null}, "finalizers": finalizers},
            "spec": {"ttlSecondsAfterFinished": i32::MAX}, "status": {"phase": "Completed", "completionTime": time}}))
    };
    let removed = fixture(ended("2026-01-01T00:00:10Z", json!([])), Some(held_pod()));
    removed.see_pod();
    assert!(matches!(removed.reconcile().await, Requeue::After(after) if after > SWEEP_AFTER));
    assert_eq!(removed.keys(), OTHERS);
    // The watch of Pods may be behind.
    let now = clock::now().wall.to_string();
    let fresh = fixture(ended(&now, json!([])), Some(held_pod()));
    fresh.see_pod();
    assert!(matches!(fresh.reconcile().await, Requeue::After(after) if after <= SWEEP_AFTER));
    assert_eq!(fresh.writes(), Vec::<String>::new());
}

/// OpenKruise 1.9 left it while its grace ran, between its containers, or when all was done.
#[tokio::test]
async fn a_takeover_writes_one_status_at_most_and_nothing_of_the_pod() {
    let own = "crr.apps.kruise.io/unready-acquired";
    let state = |name: &str, phase: &str| json!({"name": name, "phase": phase, "isKilled": phase != "Pending"});
    let between = json!([state("main", "Recreating"), state("second", "Pending")]);
    let (done, at) = (json!([state("main", "Succeeded"), state("second", "Succeeded")]), "2026-01-01T00:00:10Z");
    for (status, is_done) in [
        (json!({"phase": "Recreating"}), false),
        (json!({"phase": "Recreating", "containerRecreateStates": between}), false),
        (json!({"phase": "Completed", "completionTime": at, "containerRecreateStates": done}), true),
    ] {
        let (mut changes, mut pod) = (json!({"status": status}), pod());
        changes["metadata"]["annotations"] =
            json!({own: "2026-01-01T00:00:01Z", "crr.apps.kruise.io/sync-container-statuses": "[]"});
        changes["spec"] = json!({"containers": [{"name": "main"}, {"name": "second"}],
            "strategy": {"unreadyGracePeriodSeconds": 3, "minStartedSeconds": 2, "orderedRecreate": true}});
        if is_done {
            changes["metadata"]["labels"] = json!({"crr.apps.kruise.io/active": null});
        } else {
            changes["metadata"]["finalizers"] = json!([own]);
            let keys = r#"[{"userAgent":"ContainerRecreateRequest","key":"ns/r"}]"#;
            pod["status"]["conditions"][0] = json!({"type": "KruisePodReady", "status": "False", "message": keys});
            pod["status"]["conditions"][1]["status"] = "False".into();
        }
        let fixture = fixture(request(changes), Some(pod));
        for _ in 0..3 {
            fixture.reconcile().await;
            fixture.sync();
        }
        let expected = if is_done { vec![] } else { vec![format!("PATCH {CRR}/status")] };
        assert_eq!(fixture.writes(), expected, "{status}");
    }
}

#[tokio::test]
async fn a_request_that_cannot_be_read_is_let_go_when_it_is_deleted() {
    let own = "crr.apps.kruise.io/unready-acquired";
    let key = ObjectKey::new("ns", "r");
    for (finalizers, deleted, expected) in [
        (json!([own]), true, Some(json!([]))),
        (json!(["other", own]), true, Some(json!(["other"]))),
        (json!(["other"]), true, None),
        (json!([own]), false, None),
    ] {
        let fixture = fixture(request(json!({})), Some(pod()));
        let deleted = if deleted { json!("2026-01-01T00:00:00Z") } else { Value::Null };
        let changes = json!({"metadata": {"finalizers": finalizers, "deletionTimestamp": deleted}, "spec": 3});
        lock(&fixture.api).merge(CRR, &changes);
        fixture.controller.requests.remove(&key, None);
        fixture.controller.request_changed(&Change::Undecodable { key: &key, error: "odd" });
        let requeue = fixture.reconcile().await;
        let is_patched = expected.is_some();
        assert_eq!(fixture.get(CRR)["metadata"]["finalizers"], expected.unwrap_or(finalizers.clone()));
        assert_eq!(fixture.get(CRR)["spec"], 3, "nothing else is changed");
        // Also where it is not being deleted: the watch would not show that it is gone.
        let wanted = if is_patched { Requeue::After(SWEEP_AFTER) } else { Requeue::After(Duration::from_secs(60)) };
        assert_eq!(requeue, wanted, "{finalizers}");
        lock(&fixture.api).objects.remove(CRR);
        assert_eq!(fixture.reconcile().await, Requeue::Await);
        assert!(fixture.controller.unreadable.is_empty(), "it is gone");
    }
}

#[tokio::test]
async fn a_pod_of_the_same_name_is_another_pod_to_the_sweep() {
    let fixture = fixture(request(json!({})), Some(held_pod()));
    lock(&fixture.api).objects.remove(CRR);
    fixture.controller.requests.remove(&ObjectKey::new("ns", "r"), None);
    fixture.see_pod();
    lock(&fixture.api).merge(POD, &json!({"metadata": {"uid": "u2"}}));
    fixture.reconcile().await;
    assert_eq!(fixture.writes(), Vec::<String>::new());
}

#[test]
fn pods_are_known_by_the_requests_that_hold_them_and_a_flood_of_keys_is_bounded() {
    let key = ObjectKey::new("ns", "p");
    let view = |keys: Vec<Value>| -> PodView {
        let mut pod = pod();
        pod["status"]["conditions"][0]["message"] = Value::from(keys).to_string().into();
        serde_json::from_value(pod).unwrap()
    };
    let of = |name: String| json!({"userAgent": "ContainerRecreateRequest", "key": format!("ns/{name}")});
    let mut held = Held::default();
    let (one, two) = (view(vec![of("a".into())]), view(vec![of("a".into()), of("b".into())]));
    assert_eq!(held.update(&key, None, Some(&one)), [ObjectKey::new("ns", "a")]);
    assert_eq!(held.update(&key, Some(&one), Some(&two)), [ObjectKey::new("ns", "b")]);
    assert_eq!(held.by(&ObjectKey::new("ns", "b")), [(key.clone(), "u1".to_owned())]);
    assert!(held.update(&key, Some(&two), None).is_empty());
    assert!(held.by(&ObjectKey::new("ns", "a")).is_empty());
    let flood = view((0..5000).map(|i| of(format!("r{i}"))).collect());
    assert_eq!(held.update(&key, None, Some(&flood)).len(), 64);
}

#[test]
fn daemons_are_known_by_node() {
    let daemon = |ready: &str| -> PodView {
        serde_json::from_value(
            json!({"metadata": {"name": "d", "namespace": "kruise-system"}, "spec": {"nodeName": "n1"},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}}),
        )
        .unwrap()
    };
    let seconds = Duration::from_secs;
    let key = ObjectKey::new("kruise-system", "d");
    let mut daemons = Daemons { since: Some(seconds(1)), ..Daemons::new(seconds(30)) };
    let at = |s| Now { wall: jiff::Timestamp::UNIX_EPOCH, mono: seconds(s) };
    daemons.update(&key, None, Some(&daemon("True")), at(1));
    assert_eq!((daemons.on("n1", at(1)), daemons.on("n2", at(1))), (Daemon::Ready, Daemon::Missing(seconds(0))));
    daemons.update(&key, Some(&daemon("True")), Some(&daemon("False")), at(5));
    assert_eq!(daemons.on("n1", at(7)), Daemon::Missing(seconds(2)));
    daemons.update(&key, Some(&daemon("False")), Some(&daemon("True")), at(8));
    daemons.update(&key, Some(&daemon("True")), None, at(9));
    assert_eq!(daemons.on("n1", at(9)), Daemon::Missing(seconds(0)));
    daemons.update(&ObjectKey::new("kruise-system", "other"), None, None, at(60));
    assert_eq!((daemons.on("n1", at(60)), daemons.lost.len()), (Daemon::Missing(seconds(59)), 0));
    assert_eq!(Daemons::new(seconds(30)).on("n1", at(60)), Daemon::Missing(seconds(0)), "it has not looked yet");
}

const D: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// A request that the manager serves.
fn by_manager(changes: Value) -> Value {
    let mut request = request(json!({
        "metadata": {"labels": {"crr.apps.kruise.io/active": null, "crr.kruise.rs/method": "PodSpec"}},
        "spec": {"containers": [{"name": "main", "statusContext": {"containerID": "containerd://0", "restartCount": 0, "image": "r.example/a:v1"}}]},
    }));
    json_patch::merge(&mut request, &changes);
    request
}

fn running(instance: i64) -> Value {
    let mut pod = pod();
    pod["spec"]["containers"] = json!([{"name": "main", "image": "r.example/a:v1"}]);
    pod["status"]["containerStatuses"] = json!([status_of(instance)]);
    pod
}

fn status_of(instance: i64) -> Value {
    json!({"name": "main", "containerID": format!("containerd://{instance}"), "restartCount": instance, "ready": true,
        "imageID": format!("r.example/a@{D}"), "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}})
}

fn crr_status() -> String {
    format!("PATCH {CRR}/status")
}

fn restarted(fixture: &Fixture) {
    let mut api = lock(&fixture.api);
    api.merge(POD, &json!({"status": {"containerStatuses": [status_of(1)]}}));
}

#[tokio::test]
async fn pod_spec_is_served_with_a_trial_two_records_and_one_change() {
    let fixture = fixture(by_manager(json!({})), Some(running(0)));
    fixture.reconcile().await;
    let change = format!("PATCH {POD}");
    let mut writes = fixture.writes();
    assert_eq!(writes.pop(), Some(change.clone()), "the Pod comes last");
    writes.sort();
    assert_eq!(writes, [format!("{change}?dryRun"), crr_status()], "at the same time");
    let pod = fixture.get(POD);
    assert_eq!(pod["spec"]["containers"][0], json!({"name": "main", "image": format!("r.example/a:v1@{D}")}));
    assert!(pod["metadata"]["annotations"]["kruise.rs/image-spellings"].is_string());
    assert_eq!(pod["status"]["newField"], 1);
    fixture.reconcile().await;
    assert_eq!(fixture.writes(), Vec::<String>::new(), "kubelet has not acted yet");
    restarted(&fixture);
    fixture.sync();
    fixture.reconcile().await;
    assert_eq!(fixture.writes(), [crr_status()]);
    let status = &fixture.get(CRR)["status"];
    assert_eq!(
        (&status["phase"], &status["containerRecreateStates"][0]["phase"]),
        (&json!("Completed"), &json!("Succeeded"))
    );
    assert!(fixture.controller.progress.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_denied_trial_ends_a_pod_spec_request_in_the_words_of_who_denied_it() {
    let fixture = fixture(by_manager(json!({})), Some(running(0)));
    lock(&fixture.api).denial = Some("images need a signature".into());
    fixture.reconcile().await;
    assert!(!fixture.writes().contains(&format!("PATCH {POD}")));
    let status = &fixture.get(CRR)["status"];
    assert_eq!(status["message"], "the Pod cannot be changed: images need a signature");
    assert_eq!(status["phase"], "Completed");
    assert!(status["containerRecreateStates"][0]["killStartedAt"].is_null(), "nothing was done: {status}");
}

#[tokio::test]
async fn a_pod_that_others_write_is_read_again_and_changed_once() {
    let fixture = fixture(by_manager(json!({})), Some(running(0)));
    lock(&fixture.api).interfere = Some((POD.into(), json!({"metadata": {"annotations": {"theirs": "1"}}})));
    fixture.reconcile().await;
    let pod = fixture.get(POD);
    assert_eq!(pod["metadata"]["annotations"]["theirs"], "1");
    assert_eq!(pod["spec"]["containers"][0]["image"], format!("r.example/a:v1@{D}"));
}

#[tokio::test]
async fn a_view_that_is_older_than_the_request_is_not_believed() {
    // Admission saw the instance 1; our watch still shows the one before it.
    let changes = json!({"spec": {"containers": [{"name": "main",
        "statusContext": {"containerID": "containerd://1", "restartCount": 1, "image": "r.example/a:v1"}}]}});
    let fixture = fixture(by_manager(changes), Some(running(0)));
    restarted(&fixture);
    fixture.reconcile().await;
    let state = &fixture.get(CRR)["status"]["containerRecreateStates"][0];
    assert_eq!((&state["previousContainerID"], &state["phase"]), (&json!("containerd://1"), &json!("Recreating")));
    assert!(state["killStartedAt"].is_string(), "{state}");
}

#[tokio::test]
async fn an_older_request_of_either_method_comes_first() {
    for other in [json!({"labels": {"crr.kruise.rs/method": null, "crr.apps.kruise.io/active": "true"}}), json!({})] {
        let fixture = fixture(by_manager(json!({})), Some(running(0)));
        let mut first = by_manager(
            json!({"metadata": {"name": "first", "uid": "first", "resourceVersion": "1", "creationTimestamp": "2025-01-01T00:00:00Z"}}),
        );
        json_patch::merge(&mut first["metadata"], &other);
        let first: ContainerRecreateRequest = serde_json::from_value(first).unwrap();
        fixture.controller.requests.upsert(first.clone());
        fixture.reconcile().await;
        assert_eq!(fixture.writes(), [crr_status()]);
        assert_eq!(fixture.get(CRR)["status"]["message"], "waiting for request first of the same Pod");
        fixture.reconcile().await;
        assert_eq!(fixture.writes(), Vec::<String>::new(), "it is reported once");
        fixture.controller.requests.remove(&ObjectKey::of(&first), None);
        fixture.reconcile().await;
        assert_eq!(fixture.writes().len(), 3, "its turn has come");
    }
}

#[tokio::test]
async fn after_a_step_that_panicked_the_next_worker_may_serve_the_pod() {
    let fixture = fixture(by_manager(json!({})), Some(running(0)));
    let controller = fixture.controller.clone();
    let steps = async { panic!("as a rule that meets what nobody thought of") };
    assert!(tokio::spawn(async move { controller.alone("u1", steps).await }).await.unwrap_err().is_panic());
    fixture.reconcile().await;
    assert!(fixture.writes().contains(&format!("PATCH {POD}")));
    let meanwhile = fixture.controller.alone("u1", async { fixture.controller.alone("u1", async { Ok(None) }).await });
    assert_eq!(meanwhile.await.unwrap(), Some(AFTER_CONFLICT), "one at a time");
}

#[tokio::test]
async fn a_missing_daemon_does_not_hold_up_pod_spec_and_ends_nothing() {
    let fixture = fixture(by_manager(json!({"status": {"phase": "Recreating"}})), Some(running(0)));
    lock(&fixture.controller.daemons).ready.clear();
    fixture.reconcile().await;
    assert!(fixture.writes().contains(&format!("PATCH {POD}")));
    assert_eq!(fixture.get(CRR)["status"]["phase"], "Recreating");
}
