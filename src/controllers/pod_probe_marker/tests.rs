//! Against an API server in memory that keeps one node, its NodePodProbe, Pods and PodProbeMarkers.

mod simulation;

use std::collections::BTreeMap;

use axum::http::{Method, request::Parts};
use serde_json::{Value, json};

use super::*;
use crate::{api::labels, controllers::in_memory, k8s::canonical_json, runtime::queue::Requeue};

#[derive(Default)]
struct Server {
    /// By path.
    objects: BTreeMap<String, Value>,
    /// Method and path of every write.
    writes: Vec<String>,
    reads: Vec<String>,
    refuse: Option<(String, u16)>,
    /// As the admission plugin OwnerReferencesPermissionEnforcement of who may not delete.
    refuses_owners: bool,
    /// How often it has.
    owners_refused: usize,
    version: u64,
    /// Bytes of the largest object that is taken; 0 for any.
    most: usize,
}

type Shared = Arc<Mutex<Server>>;

const NODE: &str = "/apis/apps.kruise.io/v1alpha1/nodepodprobes/n1";
const POD: &str = "/api/v1/namespaces/a/pods/p";
const MARKER: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/a/podprobemarkers/m";
const RECORDED_MARKER: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/golden/podprobemarkers/probe";

fn answer(server: &Shared, parts: &Parts, body: &[u8]) -> (u16, Value) {
    let server = &mut *lock(server);
    let patch: Value = serde_json::from_slice(body).unwrap_or_default();
    let failed = |code: u16| {
        let reason = if code == 404 { "NotFound" } else { "x" };
        (code, json!({"kind": "Status", "code": code, "reason": reason, "message": "x"}))
    };
    let path = parts.uri.path().to_owned();
    if parts.method == Method::GET {
        server.reads.push(path.clone());
        if path.ends_with("/podprobemarkers") {
            let name = parts.uri.query().and_then(|query| query.rsplit("metadata.name%3D").next()).unwrap_or_default();
            let items: Vec<&Value> = server.objects.get(&format!("{path}/{name}")).into_iter().collect();
            return (200, json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}));
        }
        return server.objects.get(&path).map_or_else(|| failed(404), |object| (200, object.clone()));
    }
    if let Some((what, code)) = &server.refuse
        && path.contains(what)
    {
        return failed(*code);
    }
    if server.refuses_owners && parts.method == Method::PATCH && !patch["metadata"]["ownerReferences"].is_null() {
        server.owners_refused += 1;
        return failed(403);
    }
    server.writes.push(format!("{} {path}", parts.method));
    server.version += 1;
    let version = server.version.to_string();
    if parts.method == Method::POST {
        let path = format!("{path}/{}", patch["metadata"]["name"].as_str().unwrap());
        let mut made = patch;
        made["metadata"]["uid"] = format!("{path}-{version}").into();
        made["metadata"]["resourceVersion"] = version.into();
        if is_too_large(server.most, &path, &made) {
            return failed(413);
        }
        server.objects.insert(path, made.clone());
        return (201, made);
    }
    let path = path.trim_end_matches("/status");
    let Some(object) = server.objects.get_mut(path) else { return failed(404) };
    let meant = &patch["metadata"];
    let differs = |key: &str| !meant[key].is_null() && meant[key] != object["metadata"][key];
    if differs("uid") || differs("resourceVersion") {
        return failed(409);
    }
    let mut plain = patch.clone();
    plain["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let conditions = plain.pointer_mut("/status/conditions").map(Value::take);
    if let Some(conditions) = conditions {
        let mut all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        for condition in conditions.as_array().unwrap() {
            all.retain(|old| old["type"] != condition["type"]);
            if condition.get("$patch").is_none() {
                let mut made = json!({});
                json_patch::merge(&mut made, condition);
                all.push(made);
            }
        }
        plain["status"]["conditions"] = all.into();
    }
    let mut changed = object.clone();
    json_patch::merge(&mut changed, &plain);
    changed["metadata"]["resourceVersion"] = version.into();
    if is_too_large(server.most, path, &changed) {
        return failed(413);
    }
    *object = changed.clone();
    (200, changed)
}

/// As etcd judges, of NodePodProbes.
fn is_too_large(most: usize, path: &str, object: &Value) -> bool {
    most > 0 && path.contains("/nodepodprobes/") && canonical_json::encode(object).len() > most
}

struct Fixture {
    controller: Arc<Controller>,
    server: Shared,
}

fn marker(name: &str, probes: Value) -> Value {
    json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "PodProbeMarker",
        "metadata": {"name": name, "namespace": "a", "uid": name, "generation": 1, "resourceVersion": "1"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "probes": probes}})
}

fn probe(name: &str) -> Value {
    json!({"name": name, "containerName": "main", "podConditionType": format!("e/{name}"),
        "probe": {"exec": {"command": ["ask"]}},
        "markerPolicy": [{"state": "Succeeded", "labels": {name: "yes"}}, {"state": "Failed", "labels": {name: "no"}}]})
}

fn pod() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "a", "uid": "u1", "resourceVersion": "1", "labels": {"app": "web"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "ports": [{"name": "web", "containerPort": 80}]}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Initialized", "status": "True"}]}})
}

impl Fixture {
    fn new() -> Self {
        let server: Shared = Arc::default();
        let context = {
            let server = server.clone();
            in_memory::context(move |parts, body| answer(&server, parts, body))
        };
        let fixture = Self { controller: Arc::new(Controller::new(&context)), server };
        fixture.put(
            "/api/v1/nodes/n1",
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "node"}}),
        );
        fixture.controller.begin();
        fixture.put(POD, pod());
        fixture.put(MARKER, marker("m", json!([probe("a")])));
        fixture
    }

    fn put(&self, path: &str, object: Value) {
        lock(&self.server).objects.insert(path.to_owned(), object);
        self.sync();
    }

    /// A PodProbeMarker of OpenKruise, and its Pods.
    fn put_recorded(&self, recorded: &Value) {
        self.put(RECORDED_MARKER, recorded["marker"].clone());
        for pod in recorded["pods"].as_array().unwrap() {
            let name = pod["metadata"]["name"].as_str().unwrap();
            self.put(&format!("/api/v1/namespaces/golden/pods/{name}"), pod.clone());
        }
    }

    fn get(&self, path: &str) -> Value {
        lock(&self.server).objects.get(path).cloned().unwrap_or_default()
    }

    fn change(&self, path: &str, change: impl FnOnce(&mut Value)) {
        {
            let server = &mut *lock(&self.server);
            server.version += 1;
            let object = server.objects.get_mut(path).unwrap();
            change(object);
            object["metadata"]["resourceVersion"] = server.version.to_string().into();
        }
        self.sync();
    }

    /// The watches bring everything; what is gone is gone.
    fn sync(&self) {
        let (this, objects) = (&self.controller, lock(&self.server).objects.clone());
        for (path, object) in &objects {
            if path.contains("/podprobemarkers/") {
                match serde_json::from_value::<PodProbeMarker>(object.clone()) {
                    Ok(marker) => {
                        if let (old, Some(new)) = this.markers.upsert(marker) {
                            this.marker_changed(&Change::Applied { old: old.as_ref(), new: &new, initial: false });
                        }
                    }
                    Err(error) => {
                        let of = |field: &str| object["metadata"][field].as_str().unwrap();
                        let key = ObjectKey::new(of("namespace"), of("name"));
                        this.markers.remove(&key, None);
                        this.marker_changed(&Change::Undecodable { key: &key, error: &error.to_string() });
                    }
                }
            } else if path.contains("/nodes/") {
                this.context.nodes.store().upsert(serde_json::from_value(object.clone()).unwrap());
            } else if path.contains("/nodepodprobes/") {
                this.probes.upsert(serde_json::from_value(object.clone()).unwrap());
            } else if path.contains("/pods/")
                && let (old, Some(new)) = this.context.pods.upsert(serde_json::from_value(object.clone()).unwrap())
            {
                this.pod_changed(&Change::Applied { old: old.as_ref(), new: &new, initial: false });
            }
        }
        for pod in this.context.pods.list() {
            if !objects.contains_key(&format!("/api/v1/namespaces/{}/pods/{}", pod.namespace(), pod.name())) {
                this.context.pods.remove(&ObjectKey::of(pod.as_ref()), None);
                this.pod_changed(&Change::Deleted(&pod));
            }
        }
    }

    /// The daemon reports results of the first Pod.
    fn report(&self, states: Value) {
        let uid = self.get(NODE)["spec"]["podProbes"][0]["uid"].clone();
        self.change(NODE, |object| {
            object["status"] =
                json!({"podProbeStatuses": [{"name": "p", "namespace": "a", "uid": uid, "probeStates": states}]});
        });
    }

    fn state(name: &str, state: &str, message: &str) -> Value {
        json!({"name": name, "state": state, "message": message, "lastProbeTime": "2026-01-01T00:00:05Z",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    /// The nodes that are to be looked at, which are taken out of the queue.
    async fn queued_nodes(&self) -> Vec<ObjectKey> {
        let (_stop, stopped) = tokio::sync::watch::channel(true);
        let keys: Arc<Mutex<Vec<ObjectKey>>> = Arc::default();
        let note = |key: ObjectKey, _| {
            lock(&keys).push(key);
            std::future::ready(Ok::<_, String>(Requeue::Await))
        };
        self.controller.node_queue.run(100, stopped, note).await;
        std::mem::take(&mut *lock(&keys))
    }

    /// Another manager, which finds what is there.
    fn restarted(self) -> Self {
        let controller = Arc::new(Controller::new(&self.controller.context));
        let next = Self { controller, server: self.server.clone() };
        next.controller.is_ready.store(true, Ordering::SeqCst);
        next.sync();
        for pod in next.controller.context.pods.list() {
            next.controller.refresh_pod(&ObjectKey::of(pod.as_ref()));
        }
        next
    }

    async fn node(&self) -> kube::Result<Requeue> {
        self.controller.reconcile_node("n1").await
    }

    async fn marker(&self) -> Requeue {
        self.controller.reconcile_marker(&ObjectKey::new("a", "m")).await.unwrap()
    }

    /// Until nothing is written any more.
    async fn settle(&self) {
        for _ in 0..8 {
            for marker in self.controller.markers.list() {
                self.controller.reconcile_marker(&ObjectKey::of(marker.as_ref())).await.unwrap();
            }
            self.node().await.unwrap();
            self.sync();
        }
    }

    /// Writes since the last look.
    fn writes(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.server).writes)
    }

    fn entries(&self) -> Vec<String> {
        let object = self.get(NODE);
        let pods = object["spec"]["podProbes"].as_array().cloned().unwrap_or_default();
        let names = |pod: &Value| {
            pod["probes"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        pods.iter().flat_map(names).collect()
    }

    fn labels(&self) -> Value {
        self.get(POD)["metadata"]["labels"].clone()
    }
}

#[tokio::test]
async fn pods_of_the_namespace_of_the_installation_are_not_probed() {
    let fixture = Fixture::new();
    let ours = |mut object: Value, uid: &str| {
        object["metadata"]["namespace"] = "kruise-system".into();
        object["metadata"]["uid"] = uid.into();
        object
    };
    fixture.put("/api/v1/namespaces/kruise-system/pods/p", ours(pod(), "u2"));
    let path = MARKER.replace("/a/", "/kruise-system/");
    fixture.put(&path, ours(marker("m", json!([probe("b")])), "m2"));
    fixture.settle().await;
    assert_eq!(fixture.entries(), ["m#a"]);
    let writes = fixture.writes();
    assert!(!writes.iter().any(|write| write.contains("/kruise-system/pods/")), "{writes:?}");
}

#[tokio::test]
async fn a_marker_is_held_and_noted_before_its_pods_are_probed() {
    let fixture = Fixture::new();
    fixture.node().await.unwrap();
    assert_eq!(fixture.writes(), Vec::<String>::new(), "it is not noted yet");
    fixture.marker().await;
    assert_eq!(fixture.writes(), [format!("PATCH {MARKER}")]);
    let meta = fixture.get(MARKER)["metadata"].clone();
    assert_eq!(meta["finalizers"], json!([labels::PROBE_CLEANUP_FINALIZER]));
    assert_eq!(meta["annotations"][labels::PROBE_MARKS], r#"{"conditions":["e/a"],"labels":["a"]}"#);
    fixture.node().await.unwrap();
    assert_eq!(fixture.writes(), ["POST /apis/apps.kruise.io/v1alpha1/nodepodprobes"]);
    assert_eq!(fixture.entries(), ["m#a"]);
    assert_eq!(fixture.get(NODE)["metadata"]["ownerReferences"][0]["uid"], "node");
    fixture.settle().await;
    assert_eq!(fixture.writes(), [format!("PATCH {MARKER}/status")]);
    let status = &fixture.get(MARKER)["status"];
    assert_eq!((&status["observedGeneration"], &status["matchedPods"]), (&json!(1), &json!(1)));
    assert_eq!(
        (&status["conditions"][0]["type"], &status["conditions"][0]["status"]),
        (&json!("Ready"), &json!("True"))
    );
    fixture.settle().await;
    assert_eq!(fixture.writes(), Vec::<String>::new());
}

#[tokio::test]
async fn e26_f34_results_are_shown_once_and_a_new_manager_writes_nothing() {
    let fixture = Fixture::new();
    fixture.settle().await;
    fixture.report(json!([Fixture::state("m#a", "Succeeded", "fine\n")]));
    fixture.writes();
    fixture.settle().await;
    assert_eq!(fixture.writes(), [format!("PATCH {POD}/status")], "conditions and labels in one");
    assert_eq!(fixture.labels(), json!({"app": "web", "a": "yes"}));
    assert_eq!(fixture.get(POD)["status"]["conditions"][1]["message"], "fine\n");
    let reads = lock(&fixture.server).reads.len();
    fixture.settle().await;
    assert_eq!(lock(&fixture.server).reads.len(), reads, "it is not even read again");

    let fixture = fixture.restarted();
    fixture.settle().await;
    assert_eq!(fixture.writes(), Vec::<String>::new());

    fixture.report(json!([Fixture::state("m#a", "Failed", "")]));
    fixture.settle().await;
    assert_eq!(fixture.labels(), json!({"app": "web", "a": "no"}));
}

#[tokio::test]
async fn e29_a_deleted_marker_goes_when_its_keys_and_entries_are_gone() {
    let fixture = Fixture::succeeded().await;
    fixture.change(MARKER, |marker| marker["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
    assert_eq!(fixture.marker().await, Requeue::After(LOOK_AGAIN));
    lock(&fixture.server).refuse = Some(("/pods/".into(), 403));
    assert!(fixture.node().await.is_err());
    assert_eq!(fixture.entries(), ["m#a"], "the entry stays until the Pod is clean");
    lock(&fixture.server).refuse = None;
    fixture.node().await.unwrap();
    assert_eq!((fixture.labels(), fixture.entries()), (json!({"app": "web"}), Vec::new()));
    assert_eq!(fixture.get(POD)["status"]["conditions"].as_array().unwrap().len(), 1);
    fixture.marker().await;
    assert_eq!(fixture.get(MARKER)["metadata"]["finalizers"], json!([]));
}

/// As docs/differences-from-openkruise.md advises.
#[tokio::test]
async fn what_a_deleted_marker_wrote_stays_while_the_one_that_replaces_it_wants_it() {
    let fixture = Fixture::succeeded().await;
    let path = "/apis/apps.kruise.io/v1alpha1/namespaces/a/podprobemarkers/n";
    fixture.put(path, marker("n", json!([probe("a")])));
    fixture.change(MARKER, |marker| marker["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
    for _ in 0..8 {
        for marker in fixture.controller.markers.list() {
            fixture.controller.reconcile_marker(&ObjectKey::of(marker.as_ref())).await.unwrap();
        }
        fixture.node().await.unwrap();
        assert_eq!(fixture.labels(), json!({"app": "web", "a": "yes"}), "although the new one has no result yet");
        fixture.sync();
    }
    assert_eq!((fixture.entries(), &fixture.get(MARKER)["metadata"]["finalizers"]), (vec!["n#a".into()], &json!([])));
    assert_eq!(fixture.get(POD)["status"]["conditions"].as_array().unwrap().len(), 2);
    fixture.report(json!([Fixture::state("n#a", "Failed", "")]));
    fixture.settle().await;
    assert_eq!(fixture.labels(), json!({"app": "web", "a": "no"}));
}

#[tokio::test]
async fn a_marker_that_cannot_be_read_is_left_alone_and_goes_when_it_is_deleted() {
    let alone = Requeue::After(Duration::from_secs(60));
    for (restarts, others) in [(false, json!([])), (true, json!([])), (true, json!(["other"]))] {
        let mut fixture = Fixture::succeeded().await;
        fixture.writes();
        fixture.change(MARKER, |marker| {
            marker["spec"] = json!(3);
            let finalizers = marker["metadata"]["finalizers"].as_array_mut().unwrap();
            finalizers.extend(others.as_array().unwrap().iter().cloned());
        });
        if restarts {
            fixture = fixture.restarted();
        }
        fixture.settle().await;
        assert_eq!(fixture.marker().await, alone);
        assert_eq!((fixture.entries(), fixture.writes()), (vec!["m#a".to_owned()], Vec::new()));

        fixture.change(MARKER, |marker| marker["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
        assert_eq!(fixture.marker().await, Requeue::After(LOOK_AGAIN));
        lock(&fixture.server).refuse = Some(("/pods/".into(), 403));
        assert!(fixture.node().await.is_err());
        assert_eq!(fixture.marker().await, Requeue::After(LOOK_AGAIN));
        assert_eq!(fixture.entries(), ["m#a"], "the entry stays until the Pod is clean");
        lock(&fixture.server).refuse = None;
        fixture.node().await.unwrap();
        fixture.sync();
        assert_eq!((fixture.labels(), fixture.entries()), (json!({"app": "web"}), Vec::new()));
        assert_eq!(fixture.marker().await, Requeue::After(LOOK_AGAIN));
        assert_eq!(fixture.get(MARKER)["metadata"]["finalizers"], others);
        assert_eq!(fixture.get(MARKER)["spec"], 3, "nothing else is changed");
        assert_eq!(fixture.marker().await, alone, "others hold it, or the watch is late");

        lock(&fixture.server).objects.remove(MARKER);
        assert_eq!(fixture.marker().await, Requeue::Await);
        assert!(lock(&fixture.controller.unreadable).is_empty() && lock(&fixture.controller.index).is_idle());
    }
}

#[tokio::test]
async fn a_marker_that_can_be_read_again_goes_on() {
    let fixture = Fixture::new();
    fixture.settle().await;
    fixture.change(MARKER, |marker| marker["spec"] = json!(3));
    fixture.settle().await;
    fixture.change(MARKER, |object| object["spec"] = marker("m", json!([probe("b")]))["spec"].clone());
    fixture.settle().await;
    assert_eq!(fixture.entries(), ["m#b"]);
    assert!(lock(&fixture.controller.unreadable).is_empty());
}

#[tokio::test]
async fn what_a_marker_that_cannot_be_read_has_left_goes_when_it_is_gone_unseen() {
    let fixture = Fixture::new();
    fixture.settle().await;
    fixture.change(MARKER, |marker| marker["spec"] = json!(3));
    lock(&fixture.server).objects.remove(MARKER);
    fixture.settle().await;
    assert_eq!(fixture.entries(), ["m#a"]);
    assert_eq!(fixture.marker().await, Requeue::Await);
    fixture.settle().await;
    assert_eq!(fixture.entries(), Vec::<String>::new());
}

#[tokio::test]
async fn f25_a_marker_whose_name_ends_like_anothers_is_left_alone() {
    let fixture = Fixture::new();
    let path = "/apis/apps.kruise.io/v1alpha1/namespaces/a/podprobemarkers/a-m";
    fixture.put(path, marker("a-m", json!([probe("b")])));
    fixture.settle().await;
    assert_eq!(fixture.entries(), ["a-m#b", "m#a"]);
    fixture.change(MARKER, |marker| marker["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
    fixture.settle().await;
    assert_eq!(fixture.entries(), ["a-m#b"]);
    assert_eq!(fixture.get(NODE)["spec"]["podProbes"][0]["IP"], "10.0.0.1", "case 27");
}

#[tokio::test]
async fn e27_a_marker_of_the_same_name_in_another_namespace_is_left_alone() {
    let fixture = Fixture::new();
    let elsewhere = |mut object: Value, uid: &str| {
        object["metadata"]["namespace"] = "b".into();
        object["metadata"]["uid"] = uid.into();
        object
    };
    fixture.put("/api/v1/namespaces/b/pods/p", elsewhere(pod(), "u2"));
    let path = MARKER.replace("/namespaces/a/", "/namespaces/b/");
    fixture.put(&path, elsewhere(marker("m", json!([probe("a")])), "other"));
    fixture.settle().await;
    assert_eq!(fixture.entries(), ["m#a", "m#a"]);
    fixture.change(MARKER, |marker| marker["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
    fixture.settle().await;
    let left = fixture.get(NODE)["spec"]["podProbes"].clone();
    assert_eq!((left.as_array().unwrap().len(), &left[0]["namespace"]), (1, &json!("b")));
    assert_eq!((&left[0]["IP"], fixture.get(&path)["metadata"]["finalizers"].is_array()), (&json!("10.0.0.1"), true));
}

#[tokio::test]
async fn e22_an_object_is_made_when_something_is_to_be_probed_however_late() {
    let fixture = Fixture::new();
    let initialized = |status: &str| {
        let conditions = json!([{"type": "Initialized", "status": status}]);
        move |pod: &mut Value| pod["status"]["conditions"] = conditions
    };
    fixture.change(POD, initialized("False"));
    fixture.settle().await;
    assert_eq!(fixture.get(NODE), Value::Null);
    fixture.change(POD, initialized("True"));
    fixture.settle().await;
    assert_eq!(fixture.entries(), ["m#a"]);
}

#[tokio::test]
async fn f26_an_object_that_somebody_deletes_is_made_again() {
    let fixture = Fixture::new();
    fixture.settle().await;
    lock(&fixture.server).objects.remove(NODE);
    let gone = fixture.controller.probes.remove(&node_key("n1"), None).unwrap();
    fixture.controller.probes_changed(&Change::Deleted(&gone));
    fixture.settle().await;
    assert_eq!(fixture.entries(), ["m#a"]);
}

#[tokio::test]
async fn an_object_of_openkruise_gets_its_node_as_owner_and_stays_as_it_is() {
    let recorded: Value = serde_json::from_str(include_str!("../../api/apps/testdata/pod_probes.json")).unwrap();
    let path = NODE.replace("n1", "node-a");
    for has_entries in [true, false] {
        let fixture = Fixture::new();
        lock(&fixture.server).version = 100_000;
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "uid": "uid-a"}});
        fixture.put("/api/v1/nodes/node-a", node);
        let mut object = recorded["node"].clone();
        if has_entries {
            fixture.put_recorded(&recorded);
        } else {
            (object["spec"], object["status"]) = (json!({}), json!({}));
        }
        fixture.put(&path, object.clone());
        for _ in 0..3 {
            for marker in fixture.controller.markers.list() {
                fixture.controller.reconcile_marker(&ObjectKey::of(marker.as_ref())).await.unwrap();
            }
            fixture.controller.reconcile_node("node-a").await.unwrap();
            fixture.sync();
        }
        let now = fixture.get(&path);
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "uid-a"});
        assert_eq!(now["metadata"]["ownerReferences"], json!([owner]), "with entries: {has_entries}");
        assert_eq!((&now["spec"], &now["status"]), (&object["spec"], &object["status"]));
        let writes = fixture.writes();
        assert_eq!(writes.iter().filter(|write| write.contains("/nodepodprobes/")).count(), 1, "{writes:?}");
    }
}

#[tokio::test]
async fn a_takeover_writes_the_note_and_one_status_of_a_marker_and_nothing_of_its_pods() {
    let recorded: Value = serde_json::from_str(include_str!("../../api/apps/testdata/pod_probes.json")).unwrap();
    let key = ObjectKey::new("golden", "probe");
    for nodes_are_first in [true, false] {
        let fixture = Fixture::new();
        lock(&fixture.server).version = 100_000;
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "uid": "uid-a"}});
        fixture.put("/api/v1/nodes/node-a", node);
        fixture.put(&NODE.replace("n1", "node-a"), recorded["node"].clone());
        fixture.put_recorded(&recorded);
        for _ in 0..4 {
            if nodes_are_first {
                fixture.controller.reconcile_node("node-a").await.unwrap();
            }
            for _ in 0..2 {
                fixture.controller.reconcile_marker(&key).await.unwrap();
            }
            if !nodes_are_first {
                fixture.controller.reconcile_node("node-a").await.unwrap();
            }
            fixture.sync();
        }
        let mut writes = fixture.writes();
        writes.retain(|write| !write.contains("/nodepodprobes/"));
        let (note, status) = (format!("PATCH {RECORDED_MARKER}"), format!("PATCH {RECORDED_MARKER}/status"));
        assert_eq!(writes, [note, status], "nodes are first: {nodes_are_first}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_is_refused_holds_up_no_probe_and_is_tried_again_later_each_time() {
    let fixture = Fixture::new();
    fixture.put(
        NODE,
        json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "NodePodProbe",
        "metadata": {"name": "n1", "uid": "o", "resourceVersion": "1"}, "spec": {}}),
    );
    lock(&fixture.server).refuses_owners = true;
    // However often the node is looked at.
    fixture.settle().await;
    assert_eq!((fixture.entries(), lock(&fixture.server).owners_refused), (vec!["m#a".to_owned()], 1));
    assert_eq!(fixture.get(NODE)["metadata"]["ownerReferences"], Value::Null);
    for (pause, refused) in [(8, 1), (3, 2), (15, 2), (6, 3), (35, 3), (6, 4)] {
        tokio::time::advance(Duration::from_secs(pause)).await;
        fixture.settle().await;
        assert_eq!(lock(&fixture.server).owners_refused, refused, "{pause} s later");
    }
    // A result is shown meanwhile.
    fixture.report(json!([Fixture::state("m#a", "Succeeded", "")]));
    fixture.settle().await;
    assert_eq!(fixture.labels(), json!({"app": "web", "a": "yes"}));
    lock(&fixture.server).refuses_owners = false;
    tokio::time::advance(Duration::from_secs(81)).await;
    fixture.settle().await;
    assert_eq!(fixture.get(NODE)["metadata"]["ownerReferences"][0]["uid"], "node");
}

#[tokio::test]
async fn f24_a_changed_marker_takes_its_old_keys_back_and_then_forgets_them() {
    let fixture = Fixture::succeeded().await;
    fixture.change(MARKER, |marker| {
        marker["spec"]["probes"] = json!([probe("b")]);
        marker["metadata"]["generation"] = 2.into();
    });
    fixture.marker().await;
    let note = |fixture: &Fixture| {
        fixture.get(MARKER)["metadata"]["annotations"][labels::PROBE_MARKS].as_str().unwrap().to_owned()
    };
    assert_eq!(note(&fixture), r#"{"conditions":["e/a","e/b"],"labels":["a","b"]}"#);
    fixture.settle().await;
    assert_eq!((fixture.labels(), fixture.entries()), (json!({"app": "web"}), vec!["m#b".to_owned()]));
    assert_eq!(note(&fixture), r#"{"conditions":["e/b"],"labels":["b"]}"#);
    fixture.report(json!([Fixture::state("m#b", "Failed", "")]));
    fixture.settle().await;
    assert_eq!(fixture.labels(), json!({"app": "web", "b": "no"}));
    assert_eq!(fixture.get(MARKER)["status"]["observedGeneration"], 2);
}

#[tokio::test]
async fn f24_pods_that_end_go_or_change_their_labels_are_probed_no_more() {
    for end in [
        |pod: &mut Value| pod["status"]["phase"] = "Succeeded".into(),
        |pod: &mut Value| pod["metadata"]["labels"]["app"] = "other".into(),
        |pod: &mut Value| pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into(),
    ] {
        let fixture = Fixture::new();
        fixture.settle().await;
        assert_eq!(fixture.entries(), ["m#a"]);
        fixture.change(POD, end);
        fixture.settle().await;
        assert_eq!(fixture.entries(), Vec::<String>::new());
        assert_eq!(fixture.get(MARKER)["status"]["matchedPods"], 0);
    }
    let fixture = Fixture::new();
    fixture.settle().await;
    lock(&fixture.server).objects.remove(POD);
    fixture.sync();
    fixture.settle().await;
    assert_eq!(fixture.entries(), Vec::<String>::new());
}

#[tokio::test]
async fn e28_a_pod_that_was_made_anew_is_another_one() {
    let fixture = Fixture::new();
    fixture.settle().await;
    fixture.report(json!([Fixture::state("m#a", "Succeeded", "")]));
    let mut again = pod();
    again["metadata"]["uid"] = "u2".into();
    again["metadata"]["resourceVersion"] = "500".into();
    lock(&fixture.server).version = 500;
    lock(&fixture.server).objects.remove(POD);
    fixture.sync();
    fixture.put(POD, again);
    fixture.settle().await;
    assert_eq!(fixture.get(NODE)["spec"]["podProbes"][0]["uid"], "u2");
    assert_eq!(fixture.labels(), json!({"app": "web"}), "the result is not that of this Pod");
}

#[tokio::test]
async fn e24_f26_an_address_that_comes_later_reaches_the_entry() {
    let fixture = Fixture::new();
    fixture.change(POD, |pod| pod["status"]["podIP"] = Value::Null);
    fixture.settle().await;
    assert_eq!(fixture.get(NODE)["spec"]["podProbes"][0]["IP"], Value::Null);
    fixture.change(POD, |pod| pod["status"]["podIP"] = "10.0.0.9".into());
    fixture.settle().await;
    assert_eq!(fixture.get(NODE)["spec"]["podProbes"][0]["IP"], "10.0.0.9");
}

#[tokio::test]
async fn named_ports_are_looked_up_once() {
    let fixture = Fixture::new();
    fixture.change(MARKER, |marker| marker["spec"]["probes"][0]["probe"] = json!({"tcpSocket": {"port": "web"}}));
    fixture.settle().await;
    assert_eq!(fixture.get(NODE)["spec"]["podProbes"][0]["probes"][0]["probe"], json!({"tcpSocket": {"port": 80}}));
    let reads = |fixture: &Fixture| lock(&fixture.server).reads.iter().filter(|path| *path == POD).count();
    assert_eq!(reads(&fixture), 1);
    fixture.settle().await;
    assert_eq!(reads(&fixture), 1);
}

#[tokio::test]
async fn a_conflict_is_done_again_and_other_writers_entries_stay_away() {
    let fixture = Fixture::new();
    fixture.settle().await;
    // Somebody else writes the object; what the manager knows of it is older.
    {
        let server = &mut *lock(&fixture.server);
        server.version += 1;
        let object = server.objects.get_mut(NODE).unwrap();
        object["metadata"]["resourceVersion"] = server.version.to_string().into();
        object["status"] =
            json!({"podProbeStatuses": [{"name": "p", "namespace": "a", "uid": "u1", "probeStates": []}]});
    }
    fixture.change(MARKER, |marker| marker["spec"]["probes"] = json!([probe("a"), probe("b")]));
    fixture.settle().await;
    assert_eq!(fixture.entries(), ["m#a", "m#b"]);
    assert!(!fixture.get(NODE)["status"]["podProbeStatuses"].is_null(), "the status is the daemon's");
}

#[tokio::test]
async fn e19_virtual_nodes_have_no_object_and_gates_decide_about_their_pods() {
    let serverless = |on: bool| {
        let mut fixture = Fixture::new();
        Arc::get_mut(&mut fixture.controller).unwrap().serverless = on;
        fixture.change("/api/v1/nodes/n1", |node| node["metadata"]["labels"] = json!({"type": "virtual-kubelet"}));
        fixture
    };
    for (on, labels) in [(false, json!({"app": "web"})), (true, json!({"app": "web", "a": "yes"}))] {
        let fixture = serverless(on);
        fixture.change(POD, |pod| {
            pod["status"]["conditions"] =
                json!([{"type": "Initialized", "status": "True"}, {"type": "e/a", "status": "True"}]);
        });
        fixture.settle().await;
        assert_eq!((fixture.get(NODE), fixture.labels()), (Value::Null, labels));
        assert_eq!(fixture.get(MARKER)["status"]["matchedPods"], 1);
    }
}

#[tokio::test]
async fn with_one_namespace_the_entries_of_others_stay() {
    let mut fixture = Fixture::new();
    Arc::get_mut(&mut fixture.controller).unwrap().context.only_namespace = Some("a".into());
    let theirs = json!({"name": "q", "namespace": "b", "uid": "u9", "probes": [{"name": "x#y", "containerName": "c", "probe": {}}]});
    fixture.put(
        NODE,
        json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "NodePodProbe",
        "metadata": {"name": "n1", "uid": "o", "resourceVersion": "1"}, "spec": {"podProbes": [theirs]}}),
    );
    fixture.settle().await;
    assert_eq!(fixture.entries(), ["x#y", "m#a"]);
}

// ---- room ----

/// What etcd takes by default.
const ETCD: usize = 1536 << 10;
const OTHER: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/b/podprobemarkers/m";

fn large(name: &str, bytes: usize) -> Value {
    let mut probe = probe(name);
    probe["probe"]["exec"]["command"] = json!(["sh", "-c", "x".repeat(bytes)]);
    probe
}

impl Fixture {
    /// The probe of its marker has succeeded, and the Pod shows it.
    async fn succeeded() -> Self {
        let fixture = Self::new();
        fixture.settle().await;
        fixture.report(json!([Self::state("m#a", "Succeeded", "")]));
        fixture.settle().await;
        fixture
    }

    /// Another Pod of the node.
    fn add_pod(&self, namespace: &str, name: &str) {
        let mut another = pod();
        another["metadata"]["namespace"] = namespace.into();
        another["metadata"]["name"] = name.into();
        another["metadata"]["uid"] = format!("uid-{namespace}-{name}").into();
        self.put(&format!("/api/v1/namespaces/{namespace}/pods/{name}"), another);
    }

    /// The namespace b, with one Pod and one PodProbeMarker.
    fn add_tenant(&self) {
        self.add_pod("b", "p");
        let mut theirs = marker("m", json!([probe("a")]));
        theirs["metadata"]["namespace"] = "b".into();
        theirs["metadata"]["uid"] = "theirs".into();
        self.put(OTHER, theirs);
    }

    fn entries_of(&self, namespace: &str) -> Vec<String> {
        let all = self.get(NODE)["spec"]["podProbes"].as_array().cloned().unwrap_or_default();
        let of = all.iter().filter(|pod| pod["namespace"] == namespace);
        of.flat_map(|pod| pod["probes"].as_array().unwrap()).map(|p| p["name"].as_str().unwrap().to_owned()).collect()
    }

    fn delete(&self, path: &str) {
        self.change(path, |object| object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
    }

    fn said(&self, path: &str) -> Value {
        let condition = self.get(path)["status"]["conditions"][0].clone();
        json!([condition["type"], condition["status"], condition["reason"], condition["message"]])
    }

    /// As [`Self::settle`], whatever goes wrong.
    async fn go_on(&self) {
        for _ in 0..8 {
            for marker in self.controller.markers.list() {
                let _ = self.controller.reconcile_marker(&ObjectKey::of(marker.as_ref())).await;
            }
            let _ = self.node().await;
            self.sync();
        }
    }
}

#[tokio::test]
async fn a_probe_of_200_kb_on_eight_pods_keeps_nobody_elses_entries_from_going() {
    let fixture = Fixture::new();
    lock(&fixture.server).most = ETCD;
    fixture.add_tenant();
    (0..7).for_each(|i| fixture.add_pod("a", &format!("p{i}")));
    fixture.change(MARKER, |marker| marker["spec"]["probes"] = json!([large("big", 200 << 10), probe("a")]));
    fixture.settle().await;
    assert_eq!((fixture.entries_of("a"), fixture.entries_of("b")), (vec!["m#a".to_owned(); 8], vec!["m#a".to_owned()]));
    let said = fixture.said(MARKER);
    assert_eq!(said.as_array().unwrap()[..3], [json!("AsSpecified"), json!("False"), json!("TooLarge")]);
    let message = said[3].as_str().unwrap();
    assert!(message.starts_with("probe \"big\" is left out in 8 Pods (p, p0, p1, ...): it takes 204"), "{message}");
    assert_eq!(fixture.get(OTHER)["status"]["conditions"][0]["type"], "Ready", "it has no AsSpecified");

    // The namespace b is deleted.
    lock(&fixture.server).objects.remove("/api/v1/namespaces/b/pods/p");
    fixture.delete(OTHER);
    fixture.settle().await;
    assert_eq!((fixture.entries_of("b"), &fixture.get(OTHER)["metadata"]["finalizers"]), (vec![], &json!([])));

    fixture.change(MARKER, |marker| marker["spec"]["probes"] = json!([large("big", 1000), probe("a")]));
    fixture.settle().await;
    assert_eq!(fixture.entries_of("a").len(), 16);
    assert_eq!(fixture.said(MARKER)[1], "True");
}

#[tokio::test]
async fn an_object_that_was_full_before_is_brought_within_its_limits() {
    let fixture = Fixture::new();
    lock(&fixture.server).most = ETCD;
    let entry = |uid: String| {
        json!({"name": uid, "namespace": "a", "uid": uid, "probes": [
            {"name": "m#big", "containerName": "main", "probe": large("big", 180 << 10)["probe"]}]})
    };
    let entries: Vec<Value> = (0..8).map(|i| entry(format!("uid-a-p{i}"))).collect();
    (0..8).for_each(|i| fixture.add_pod("a", &format!("p{i}")));
    fixture.put(
        NODE,
        json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "NodePodProbe",
        "metadata": {"name": "n1", "uid": "o", "resourceVersion": "1"}, "spec": {"podProbes": entries}}),
    );
    fixture.change(MARKER, |marker| marker["spec"]["probes"] = json!([large("big", 180 << 10)]));
    fixture.add_tenant();
    fixture.settle().await;
    assert_eq!((fixture.entries_of("a"), fixture.entries_of("b")), (vec![], vec!["m#a".to_owned()]));
}

#[tokio::test]
async fn what_goes_is_written_first_and_a_finalizer_is_released_without_room() {
    let fixture = Fixture::new();
    fixture.add_tenant();
    fixture.settle().await;
    assert_eq!(fixture.entries(), ["m#a", "m#a"]);
    // Nothing can be added any more.
    lock(&fixture.server).most = canonical_json::encode(&fixture.get(NODE)).len();
    fixture.change(MARKER, |marker| marker["spec"]["probes"] = json!([probe("a"), large("b", 5000)]));
    fixture.go_on().await;
    assert!(fixture.node().await.is_err(), "it is refused");
    fixture.delete(OTHER);
    fixture.go_on().await;
    assert_eq!((fixture.entries_of("b"), fixture.entries_of("a")), (vec![], vec!["m#a".to_owned()]));
    assert_eq!(fixture.get(OTHER)["metadata"]["finalizers"], json!([]));
    lock(&fixture.server).most = 0;
    fixture.settle().await;
    assert_eq!(fixture.entries_of("a"), ["m#a", "m#b"]);
}

#[tokio::test]
async fn a_pod_keeps_no_marks_of_a_probe_that_is_left_out() {
    let fixture = Fixture::succeeded().await;
    assert_eq!(fixture.labels(), json!({"app": "web", "a": "yes"}));
    fixture.change(MARKER, |marker| marker["spec"]["probes"] = json!([large("a", 200 << 10)]));
    fixture.settle().await;
    assert_eq!((fixture.entries(), fixture.labels()), (vec![], json!({"app": "web"})));
    fixture.delete(MARKER);
    fixture.settle().await;
    assert_eq!(fixture.get(MARKER)["metadata"]["finalizers"], json!([]));
}

#[tokio::test]
async fn a_stored_timeout_that_is_too_long_is_reported() {
    let fixture = Fixture::new();
    fixture.change(MARKER, |marker| marker["spec"]["probes"][0]["probe"]["timeoutSeconds"] = 3600.into());
    fixture.settle().await;
    assert_eq!(
        fixture.said(MARKER),
        json!([
            "AsSpecified",
            "False",
            "TimeoutTooLong",
            "spec.probes[0].probe.timeoutSeconds is 3600, but probes are ended after 60 s"
        ])
    );
    fixture.writes();
    fixture.settle().await;
    assert_eq!(fixture.writes(), Vec::<String>::new());
}

#[tokio::test]
async fn a_stored_selector_that_admission_refuses_is_reported_and_no_pod_is_probed() {
    let fixture = Fixture::new();
    let selector = json!({"matchExpressions": [{"key": "app", "operator": "NotIn"}]});
    fixture.change(MARKER, |marker| marker["spec"]["selector"] = selector);
    fixture.settle().await;
    assert_eq!(fixture.entries(), Vec::<String>::new());
    let marker = fixture.get(MARKER);
    let conditions = marker["status"]["conditions"].as_array().unwrap();
    let condition = |type_: &str| conditions.iter().find(|condition| condition["type"] == type_).unwrap();
    let accepted = condition("Accepted");
    assert_eq!((&accepted["status"], &accepted["reason"]), (&json!("False"), &json!("InvalidSelector")));
    assert_eq!(
        accepted["message"],
        "no Pod is probed, because the selector is not allowed: spec.selector.matchExpressions[0].values: it is missing; \
         want values for operator NotIn"
    );
    assert_eq!(condition("Stalled")["status"], "True");
    fixture.writes();
    fixture.settle().await;
    assert_eq!(fixture.writes(), Vec::<String>::new());
}

#[tokio::test]
async fn a_condition_is_not_taken_back_before_all_nodes_have_been_looked_at() {
    let fixture = Fixture::new();
    fixture.change(MARKER, |marker| marker["spec"]["probes"] = json!([large("big", 200 << 10)]));
    fixture.settle().await;
    fixture.writes();
    let next =
        Fixture { controller: Arc::new(Controller::new(&fixture.controller.context)), server: fixture.server.clone() };
    next.controller.is_ready.store(true, Ordering::SeqCst);
    next.sync();
    for pod in next.controller.context.pods.list() {
        next.controller.refresh_pod(&ObjectKey::of(pod.as_ref()));
    }
    next.marker().await;
    assert_eq!((next.said(MARKER)[1].as_str(), next.writes()), (Some("False"), vec![]));
    // It was mended while nobody looked.
    next.change(MARKER, |marker| marker["spec"]["probes"] = json!([probe("big")]));
    next.settle().await;
    assert_eq!(next.said(MARKER)[1], "True");
}

#[tokio::test]
async fn a_marker_that_cannot_be_noted_does_not_hold_another_one() {
    let fixture = Fixture::succeeded().await;
    lock(&fixture.server).refuse = Some(("/podprobemarkers/other".into(), 422));
    let path = "/apis/apps.kruise.io/v1alpha1/namespaces/a/podprobemarkers/other";
    fixture.put(path, marker("other", json!([probe("b")])));
    fixture.delete(MARKER);
    fixture.go_on().await;
    assert_eq!((fixture.entries(), fixture.labels()), (vec![], json!({"app": "web"})));
    assert_eq!(fixture.get(MARKER)["metadata"]["finalizers"], json!([]));
}

#[tokio::test]
async fn a_changed_marker_forgets_its_old_keys_on_virtual_nodes_too() {
    let fixture = Fixture::new();
    fixture.change("/api/v1/nodes/n1", |node| node["metadata"]["labels"] = json!({"type": "virtual-kubelet"}));
    fixture.settle().await;
    fixture.change(MARKER, |marker| {
        marker["spec"]["probes"] = json!([probe("b")]);
        marker["metadata"]["generation"] = 2.into();
    });
    fixture.settle().await;
    assert_eq!(
        fixture.get(MARKER)["metadata"]["annotations"][labels::PROBE_MARKS],
        r#"{"conditions":["e/b"],"labels":["b"]}"#
    );
}

#[tokio::test]
async fn the_marks_of_a_pod_that_is_relabelled_go_although_its_node_pod_probe_has_gone() {
    let fixture = Fixture::succeeded().await;
    assert_eq!(fixture.get(POD)["metadata"]["annotations"], json!({labels::PROBE_MARKED_BY: "m"}));
    {
        // Nobody looks meanwhile.
        let server = &mut *lock(&fixture.server);
        server.objects.remove(NODE);
        server.objects.get_mut(POD).unwrap()["metadata"]["labels"]["app"] = "other".into();
    }
    let next =
        Fixture { controller: Arc::new(Controller::new(&fixture.controller.context)), server: fixture.server.clone() };
    next.controller.is_ready.store(true, Ordering::SeqCst);
    next.change(POD, |_| ());
    next.delete(MARKER);
    next.marker().await;
    assert_eq!(next.get(MARKER)["metadata"]["finalizers"], json!([labels::PROBE_CLEANUP_FINALIZER]), "it is held");
    next.settle().await;
    let left = next.get(POD);
    assert_eq!((&left["metadata"]["labels"], &left["metadata"]["annotations"]), (&json!({"app": "other"}), &json!({})));
    assert_eq!(left["status"]["conditions"].as_array().unwrap().len(), 1);
    assert_eq!(next.get(MARKER)["metadata"]["finalizers"], json!([]));
}

#[tokio::test]
async fn the_pods_of_a_node_that_is_gone_are_looked_at_again() {
    let fixture = Fixture::new();
    fixture.marker().await;
    fixture.sync();
    let node = lock(&fixture.server).objects.remove("/api/v1/nodes/n1").unwrap();
    fixture.queued_nodes().await;
    let old = fixture.controller.context.nodes.store().remove(&node_key("n1"), Some("node")).unwrap();
    fixture.controller.node_changed(&Change::Deleted(&old));
    assert_eq!(fixture.queued_nodes().await, [node_key("n1")]);
    assert_eq!(fixture.node().await.unwrap(), Requeue::After(LOOK_AGAIN));
    assert_eq!(fixture.entries(), Vec::<String>::new());
    fixture.put("/api/v1/nodes/n1", node);
    assert_eq!(fixture.node().await.unwrap(), Requeue::Await);
    assert_eq!(fixture.entries(), ["m#a"]);
}
