//! The controller against an API server in memory: what is written, what survives, what is not touched.

mod in_place;
mod overrides;
mod pre_download;
mod refusals;
mod simulation;
mod takeover;

use std::{collections::BTreeMap, sync::Mutex};

use axum::http::{Method, request::Parts};
use kube::core::PartialObjectMeta;
use serde_json::json;

use super::*;
use crate::{
    api::{feature_gates::FeatureGates, labels},
    budgets::Budgets,
    controllers::{fake::strategic, in_memory, pod_set::ASIDE_PAUSE},
    k8s::time::rfc3339,
    runtime::{clock, lock, watches::StoredName},
};

/// What OpenKruise 1.9 left behind.
const RECORDED: &str = include_str!("testdata/recorded.json");
const PODS: &str = "/api/v1/namespaces/ns/pods/";
const CLAIMS: &str = "/api/v1/namespaces/ns/persistentvolumeclaims/";
const REVISIONS: &str = "/apis/apps/v1/namespaces/ns/controllerrevisions/";
const SET: &str = "/apis/apps.kruise.io/v1beta1/namespaces/ns/statefulsets/web";
const BUILT_IN: &str = "/apis/apps/v1/namespaces/ns/statefulsets/web";
/// An answer to come that is lost: the request is carried out.
const LOST: u16 = 504;
const AT: &str = "2026-01-01T00:00:00Z";

/// Objects by path, and every write that came.
#[derive(Default)]
struct Server {
    objects: BTreeMap<String, Value>,
    writes: Vec<(Method, String, Value)>,
    version: u64,
    /// An image that no Pod may be changed to, as a webhook of somebody else would say.
    denied: Option<&'static str>,
    /// How many requests came.
    requests: usize,
    /// Answers to come instead of the real one, by method and the beginning of the path.
    faults: Vec<(Method, String, u16)>,
    /// Objects are made at the time of the clock, not at [`AT`].
    has_clock: bool,
}

fn refused(code: u16) -> (u16, Value) {
    (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": "Test", "message": "test"}))
}

/// A size in GiB, as an API writes it.
fn gib(size: u64) -> String {
    format!("{size}Gi")
}

fn gib_of(size: &Value) -> Option<u64> {
    size.as_str()?.strip_suffix("Gi")?.parse().ok()
}

/// Whether Kubernetes lets a claim have another spec: only one that is bound may ask for another size, and for less only
/// if that is more than it has.
fn may_ask(before: &Value, claim: &Value) -> bool {
    let asked = |spec: &Value| gib_of(&spec["resources"]["requests"]["storage"]);
    let (Some(from), Some(to)) = (asked(before), asked(&claim["spec"])) else { return true };
    from == to || gib_of(&claim["status"]["capacity"]["storage"]).is_some_and(|has| to > from || to > has)
}

impl Server {
    fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = format!("uid-{}", self.version).into();
        }
        if object["metadata"]["creationTimestamp"].is_null() {
            let now = if self.has_clock { rfc3339(clock::now().wall) } else { AT.to_owned() };
            object["metadata"]["creationTimestamp"] = now.into();
        }
        self.objects.insert(path.to_owned(), object.clone());
        object
    }

    fn answer(&mut self, request: &Parts, body: &[u8]) -> (u16, Value) {
        self.requests += 1;
        let path = request.uri.path().to_owned();
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let is_dry_run = request.uri.query().is_some_and(|query| query.contains("dryRun=All"));
        if request.method != Method::GET && !is_dry_run {
            self.writes.push((request.method.clone(), path.clone(), body.clone()));
        }
        let fault = self.faults.iter().position(|(method, at, _)| request.method == *method && path.starts_with(at));
        if let Some(fault) = fault {
            let (.., code) = self.faults.remove(fault);
            if code == LOST {
                let _ = self.carry_out(path, request, body);
            }
            return refused(code);
        }
        // A dry run stores nothing, and says nothing that these tests want to know.
        if path.ends_with("/podtemplates") {
            return (201, body);
        }
        self.carry_out(path, request, body)
    }

    fn carry_out(&mut self, path: String, request: &Parts, body: Value) -> (u16, Value) {
        let (path, is_status) = match path.strip_suffix("/status") {
            Some(path) => (path.to_owned(), true),
            None => (path, false),
        };
        match request.method.as_str() {
            "GET" if self.objects.contains_key(&path) => (200, self.objects[&path].clone()),
            "GET"
                if ["pods", "controllerrevisions", "storageclasses", "imagepulljobs"]
                    .iter()
                    .any(|kind| path.ends_with(kind)) =>
            {
                let below = format!("{path}/");
                let items = self.objects.range(below.clone()..).take_while(|(path, _)| path.starts_with(&below));
                let items: Vec<&Value> = items.map(|(_, object)| object).collect();
                (200, json!({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}))
            }
            "POST" => {
                let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap());
                if self.objects.contains_key(&path) {
                    let mut answer = refused(409);
                    answer.1["reason"] = "AlreadyExists".into();
                    return answer;
                }
                (201, self.put(&path, body))
            }
            "PATCH" => self.patch(&path, is_status, request, &body),
            "DELETE" => {
                let Some(mut object) = self.objects.get(&path).cloned() else { return refused(404) };
                let version = &body["preconditions"]["resourceVersion"];
                if path.starts_with(PODS) && !version.is_null() && *version != object["metadata"]["resourceVersion"] {
                    return refused(409);
                }
                // Pods on nodes end when their kubelet says so.
                if object["spec"]["nodeName"].is_string() {
                    object["metadata"]["deletionTimestamp"] = AT.into();
                    return (200, self.put(&path, object));
                }
                self.objects.remove(&path);
                (200, object)
            }
            _ => refused(404),
        }
    }

    fn patch(&mut self, path: &str, is_status: bool, request: &Parts, body: &Value) -> (u16, Value) {
        let Some(mut object) = self.objects.get(path).cloned() else { return refused(404) };
        for field in ["uid", "resourceVersion"] {
            let wanted = &body["metadata"][field];
            if !wanted.is_null() && *wanted != object["metadata"][field] {
                return refused(409);
            }
        }
        let spec = object["spec"].clone();
        match request.headers["content-type"] == "application/merge-patch+json" {
            true => json_patch::merge(&mut object, body),
            false => strategic(&mut object, body),
        }
        if is_status {
            object["spec"] = spec.clone();
        }
        if path.starts_with(CLAIMS) && !may_ask(&spec, &object) {
            return refused(422);
        }
        let image = object.pointer("/spec/containers/0/image");
        if object["spec"] != spec && self.denied.is_some_and(|denied| image.is_some_and(|image| image == denied)) {
            return refused(403);
        }
        if request.uri.query().is_some_and(|query| query.contains("dryRun=All")) {
            return (200, object);
        }
        (200, self.put(path, object))
    }
}

struct World {
    server: Arc<Mutex<Server>>,
    controller: Controller,
}

impl World {
    fn new() -> Self {
        Self::with_gates(&[])
    }

    fn with_gates(gates: &[&str]) -> Self {
        Self::of(Arc::default(), gates)
    }

    /// Another manager for the same API server.
    fn of(server: Arc<Mutex<Server>>, gates: &[&str]) -> Self {
        let mut context = in_memory::context({
            let server = server.clone();
            move |request, body| lock(&server).answer(request, body)
        });
        context.gates = Arc::new(FeatureGates::parse(gates, None).unwrap());
        context.budgets = Budgets::new(context.client.clone(), context.gates.clone());
        let controller = Controller::new(&context);
        controller.common.built_in().has_all();
        Self { server, controller }
    }

    /// A set in namespace `ns` with three Pods wanted at once; `changes` are merged over its spec.
    fn put_set(&self, changes: Value) {
        let mut server = lock(&self.server);
        let mut set = server.objects.get(SET).cloned().unwrap_or_else(|| {
            json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet",
                "metadata": {"name": "web", "namespace": "ns", "uid": "set", "generation": 0},
                "spec": {"replicas": 3, "serviceName": "db", "podManagementPolicy": "Parallel",
                    "selector": {"matchLabels": {"app": "web"}},
                    "updateStrategy": {"rollingUpdate": {"podUpdatePolicy": "InPlaceIfPossible"}},
                    "template": {"metadata": {"labels": {"app": "web"}}, "spec": {
                        "containers": [{"name": "main", "image": "i:1", "newField": {"a": [1]}}],
                        "readinessGates": [{"conditionType": "InPlaceUpdateReady"}]}}}})
        });
        json_patch::merge(&mut set["spec"], &changes);
        set["metadata"]["generation"] = (set["metadata"]["generation"].as_i64().unwrap() + 1).into();
        let set = server.put(SET, set);
        drop(server);
        self.controller.sets.upsert(serde_json::from_value(set).unwrap());
    }

    fn put_pod(&self, pod: Value) {
        let path = format!("{PODS}{}", pod["metadata"]["name"].as_str().unwrap());
        let pod = lock(&self.server).put(&path, pod);
        self.controller.context.pods.upsert(serde_json::from_value(pod).unwrap());
    }

    fn put_claim(&self, name: &str, changes: Value) {
        let path = format!("{CLAIMS}{name}");
        let mut server = lock(&self.server);
        let mut claim = server
            .objects
            .get(&path)
            .cloned()
            .unwrap_or_else(|| json!({"metadata": {"name": name, "namespace": "ns"}}));
        json_patch::merge(&mut claim, &changes);
        let claim = server.put(&path, claim);
        self.controller.claims.upsert(serde_json::from_value(claim).unwrap());
    }

    /// Reconciles until there is nothing to do at once.
    async fn settle(&self) -> kube::Result<Requeue> {
        for _ in 0..50 {
            let requeue = self.controller.reconcile(&ObjectKey::new("ns", "web")).await?;
            if requeue != Requeue::After(Duration::ZERO) {
                return Ok(requeue);
            }
        }
        panic!("it goes on and on: {:#?}", lock(&self.server).writes);
    }

    /// Settles, and once more when what could wait is due.
    async fn settle_all(&self) {
        self.settle().await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        self.settle().await.unwrap();
    }

    /// A built-in set that selects the same Pods, and that the watch has brought.
    fn put_built_in(&self) {
        let labels = json!({"app": "web"});
        let built_in = json!({"metadata": {"name": "web", "namespace": "ns", "uid": "built-in", "generation": 1, "resourceVersion": "1"},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}});
        let seen: PartialObjectMeta<BuiltIn> = serde_json::from_value(built_in.clone()).unwrap();
        lock(&self.server).put(BUILT_IN, built_in);
        self.controller.common.built_in().see(StoredName::of(&seen), |_| {});
    }

    fn objects(&self, below: &str) -> BTreeMap<String, Value> {
        let server = lock(&self.server);
        let found = server.objects.iter().filter_map(|(path, object)| Some((path.strip_prefix(below)?, object)));
        found.map(|(name, object)| (name.to_owned(), object.clone())).collect()
    }

    /// Plays kubelet: what ends is gone, every other Pod runs the images of its spec and is ready if its gates are open.
    fn play(&self) {
        for (name, mut pod) in self.objects(PODS) {
            if pod["metadata"]["deletionTimestamp"].is_string() {
                lock(&self.server).objects.remove(&format!("{PODS}{name}"));
                self.controller.context.pods.remove(&ObjectKey::new("ns", &name), pod["metadata"]["uid"].as_str());
                continue;
            }
            if pod["status"]["phase"] == "Failed" {
                continue;
            }
            pod["spec"]["nodeName"] = "n".into();
            pod["status"]["phase"] = "Running".into();
            let containers = pod["spec"]["containers"].as_array().unwrap().clone();
            let status = |c: &Value| {
                json!({"name": c["name"], "image": c["image"], "imageID": format!("id-of-{}", c["image"]),
                "ready": true, "containerID": format!("c://{}", c["image"]), "restartCount": 0, "state": {"running": {}}})
            };
            pod["status"]["containerStatuses"] = containers.iter().map(status).collect();
            let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let is_open =
                |gate: &Value| conditions.iter().any(|c| c["type"] == gate["conditionType"] && c["status"] == "True");
            let open = pod["spec"]["readinessGates"].as_array().unwrap().iter().all(is_open);
            let ready = if open { "True" } else { "False" };
            strategic(
                &mut pod["status"],
                &json!({"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": AT}]}),
            );
            self.put_pod(pod);
        }
    }

    /// Plays and settles until nothing changes any more.
    async fn go_on(&self) {
        for _ in 0..20 {
            self.settle().await.unwrap();
            self.play();
        }
        self.settle().await.unwrap();
    }

    /// The same with only those passes that an event, or the pass before, asks for.
    async fn follow(&self) {
        let seen = || {
            let pods = self.objects(PODS);
            (of_each(&pods, "/metadata/uid"), of_each(&pods, "/status"))
        };
        for _ in 0..200 {
            if let Requeue::After(after) = self.settle().await.unwrap() {
                tokio::time::sleep(after).await;
                continue;
            }
            let before = seen();
            self.play();
            if seen() == before {
                return;
            }
        }
        panic!("it goes on and on: {:#?}", self.writes());
    }

    fn status(&self) -> Value {
        lock(&self.server).objects[SET]["status"].clone()
    }

    fn condition(&self, type_: &str) -> Option<String> {
        let status = self.status();
        let condition = status["conditions"].as_array()?.iter().find(|c| c["type"] == type_)?.clone();
        (condition["status"] == "True").then(|| condition["message"].as_str().unwrap_or_default().to_owned())
    }

    fn writes(&self) -> Vec<(Method, String, Value)> {
        std::mem::take(&mut lock(&self.server).writes)
    }

    /// Writes to Pods, claims and revisions, in words.
    fn sent(&self) -> Vec<String> {
        let sent = |(method, path, body): (Method, String, Value)| {
            let path =
                path.strip_prefix("/api/v1/namespaces/ns/").or(path.strip_prefix("/apis/apps/v1/namespaces/ns/"))?;
            let name = body["metadata"]["name"].as_str().filter(|_| method == Method::POST);
            Some(name.map_or_else(|| format!("{method} {path}"), |name| format!("{method} {path}/{name}")))
        };
        self.writes().into_iter().filter_map(sent).collect()
    }
}

fn names(objects: &BTreeMap<String, Value>) -> Vec<&str> {
    objects.keys().map(String::as_str).collect()
}

fn of_each(objects: &BTreeMap<String, Value>, path: &str) -> Vec<Value> {
    objects.values().map(|object| object.pointer(path).cloned().unwrap_or_default()).collect()
}

fn with_claims() -> Value {
    json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
        "resources": {"requests": {"storage": "1Gi"}}}}])
}

#[tokio::test(start_paused = true)]
async fn takeover_touches_no_pod_no_claim_and_no_revision() {
    let recorded: Vec<Value> = serde_json::from_str(RECORDED).unwrap();
    for stage in &recorded {
        let world = World::with_gates(&["StatefulSetAutoResizePVCGate=true"]);
        // Newer than everything that was recorded.
        lock(&world.server).version = 1_000_000;
        for pod in stage["pods"].as_array().unwrap() {
            world.controller.context.pods.upsert(serde_json::from_value(pod.clone()).unwrap());
        }
        for revision in stage["revisions"].as_array().unwrap() {
            let name = revision["metadata"]["name"].as_str().unwrap();
            let path = format!("/apis/apps/v1/namespaces/golden/controllerrevisions/{name}");
            lock(&world.server).objects.insert(path, revision.clone());
        }
        let set = &stage["set"];
        let path = "/apis/apps.kruise.io/v1beta1/namespaces/golden/statefulsets/asts";
        lock(&world.server).objects.insert(path.into(), set.clone());
        world.controller.sets.upsert(serde_json::from_value(set.clone()).unwrap());
        for known in [true, false] {
            if !known {
                // A status that says nothing: everything has to be found out anew.
                let mut set = set.clone();
                set["status"] = json!({"currentRevision": set["status"]["currentRevision"]});
                set["metadata"]["generation"] = 99.into();
                let set = lock(&world.server).put(path, set);
                world.controller.sets.upsert(serde_json::from_value(set).unwrap());
            }
            for _ in 0..3 {
                world.controller.reconcile(&ObjectKey::new("golden", "asts")).await.unwrap();
                tokio::time::advance(Duration::from_secs(2)).await;
            }
            let writes = world.writes();
            assert!(writes.len() <= 1, "{} {known}: {writes:?}", stage["stage"]);
            for (method, path, body) in writes {
                assert!(path.ends_with("/statefulsets/asts/status"), "{}: {method} {path} {body}", stage["stage"]);
            }
        }
        let status = lock(&world.server).objects[path]["status"].clone();
        for field in
            ["currentRevision", "updateRevision", "replicas", "readyReplicas", "updatedReplicas", "labelSelector"]
        {
            assert_eq!(status[field], set["status"][field], "{field}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn pods_get_ordinals_names_and_claims_with_two_writes_each() {
    let world = World::new();
    world.put_set(json!({"reserveOrdinals": [1], "volumeClaimTemplates": with_claims()}));
    world.go_on().await;
    let pods = world.objects(PODS);
    assert_eq!(names(&pods), ["web-0", "web-2", "web-3"]);
    assert_eq!(names(&world.objects(CLAIMS)), ["data-web-0", "data-web-2", "data-web-3"]);
    assert_eq!(of_each(&pods, "/spec/hostname"), ["web-0", "web-2", "web-3"]);
    assert_eq!(of_each(&pods, "/spec/subdomain"), ["db"; 3]);
    assert_eq!(of_each(&pods, "/spec/containers/0/newField/a/0"), [1; 3], "fields that nobody here knows come through");
    for (name, pod) in &pods {
        let labels = &pod["metadata"]["labels"];
        assert_eq!((&labels[labels::POD_NAME], &labels[labels::LIFECYCLE_STATE]), (&json!(name), &json!("Normal")));
        assert_eq!(labels[labels::POD_INDEX], name.strip_prefix("web-").unwrap());
        assert_eq!(labels[labels::POD_TEMPLATE_HASH], Value::Null);
        assert!(labels[labels::CONTROLLER_REVISION_HASH].as_str().unwrap().starts_with("web-"));
    }
    let writes = world.sent();
    assert_eq!(writes.iter().filter(|write| write.contains(" pods")).count(), 6, "{writes:?}");
    let status = world.status();
    assert_eq!((&status["updatedReadyReplicas"], &status["availableReplicas"]), (&json!(3), &json!(3)));
    assert_eq!(status["currentRevision"], status["updateRevision"]);
    let claims = &status["volumeClaims"][0];
    assert_eq!((&claims["compatibleReplicas"], &claims["compatibleReadyReplicas"]), (&json!(3), &json!(0)));
    assert!(world.condition("Ready").is_some());
    world.settle().await.unwrap();
    assert_eq!(world.writes(), [], "at rest");
}

#[tokio::test(start_paused = true)]
async fn counts_that_are_zero_are_written_the_first_time_too() {
    let world = World::new();
    world.put_set(json!({"replicas": 0}));
    world.settle().await.unwrap();
    for count in ["replicas", "readyReplicas", "availableReplicas", "currentReplicas", "updatedReplicas"] {
        assert_eq!(world.status()[count], 0, "{count}");
    }
}

#[tokio::test(start_paused = true)]
async fn writes_of_pods_and_stalls_are_counted() {
    let world = World::new();
    let template = |image: &str| json!({"template": {"spec": {"containers": [{"name": "main", "image": image}]}}});
    for change in [template("i:1"), json!({"replicas": 2}), template("i:2")] {
        world.put_set(change);
        world.go_on().await;
    }
    lock(&world.server).faults.push((Method::DELETE, PODS.to_owned(), 403));
    world.put_set(json!({"replicas": 1}));
    let _ = world.settle().await;
    world.go_on().await;
    world.put_set(json!({"reserveOrdinals": ["x"]}));
    world.settle_all().await;
    let text = world.controller.context.metrics.render().unwrap();
    for line in [
        r#"kruise_stateful_set_pod_writes_total{operation="create",result="done"} 3"#,
        r#"kruise_stateful_set_pod_writes_total{operation="update",result="done"} 2"#,
        r#"kruise_stateful_set_pod_writes_total{operation="delete",result="done"} 2"#,
        r#"kruise_stateful_set_pod_writes_total{operation="delete",result="failed"} 1"#,
        "kruise_stateful_set_stalls_total 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn ordered_ready_makes_one_pod_after_the_other() {
    let world = World::new();
    world.put_set(json!({"podManagementPolicy": "OrderedReady"}));
    for made in ["web-0", "web-1", "web-2"] {
        world.settle_all().await;
        assert_eq!(world.objects(PODS).keys().last().unwrap(), made);
        assert!(world.condition("Reconciling").unwrap().contains(made), "{:?}", world.status());
        world.play();
        world.settle().await.unwrap();
        world.play();
    }
    world.go_on().await;
    assert!(world.condition("Ready").is_some());
}

#[tokio::test(start_paused = true)]
async fn an_image_is_changed_in_place_from_the_highest_ordinal_down() {
    let world = World::new();
    world.put_set(json!({}));
    world.go_on().await;
    let before = world.objects(PODS);
    world.writes();
    let template = |image: &str| json!({"template": {"spec": {"containers": [{"name": "main", "image": image, "newField": {"a": [1]}}]}}});
    world.put_set(template("i:2"));
    world.settle().await.unwrap();
    let sent = world.sent();
    assert_eq!(sent[1..], ["PATCH pods/web-2/status", "PATCH pods/web-2"], "{sent:?}");
    world.go_on().await;
    let after = world.objects(PODS);
    assert_eq!(of_each(&after, "/metadata/uid"), of_each(&before, "/metadata/uid"));
    assert_eq!(of_each(&after, "/spec/containers/0/image"), ["i:2"; 3]);
    assert_eq!(of_each(&after, "/metadata/labels/pod-template-hash"), [Value::Null, Value::Null, Value::Null]);
    let updated = world.status()["updateRevision"].clone();
    assert_eq!(world.status()["currentRevision"], updated);
    // Back: the old revision again, under its old name.
    world.put_set(template("i:1"));
    world.go_on().await;
    assert_eq!(of_each(&world.objects(PODS), "/spec/containers/0/image"), ["i:1"; 3]);
    let revisions = world.objects(REVISIONS);
    assert_eq!(revisions.len(), 2);
    let back = world.status()["currentRevision"].clone();
    assert_eq!((back == updated, &revisions[back.as_str().unwrap()]["revision"]), (false, &json!(3)));
}

#[tokio::test(start_paused = true)]
async fn the_pass_that_ends_a_roll_out_cuts_the_history_too() {
    let anew = json!({"updateStrategy": {"rollingUpdate": {"podUpdatePolicy": "ReCreate"}}});
    for changes in [json!({}), anew, json!({"replicas": 0})] {
        let world = World::new();
        world.put_set(json!({"revisionHistoryLimit": 0}));
        world.put_set(changes.clone());
        world.follow().await;
        world.put_set(
            json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2", "newField": {"a": [1]}}]}}}),
        );
        world.follow().await;
        let status = world.status();
        assert_eq!(status["currentRevision"], status["updateRevision"], "{changes}");
        assert_eq!(names(&world.objects(REVISIONS)), [status["updateRevision"].as_str().unwrap()], "{changes}");
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_end_of_a_roll_out_is_not_recorded_the_old_revision_stays() {
    let world = World::new();
    world.put_set(json!({"replicas": 0, "revisionHistoryLimit": 0}));
    world.follow().await;
    world.put_set(json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2"}]}}}));
    lock(&world.server).faults.push((Method::PATCH, SET.into(), 409));
    world.controller.reconcile(&ObjectKey::new("ns", "web")).await.unwrap();
    assert_eq!(world.objects(REVISIONS).len(), 2, "the status still names it");
    world.follow().await;
    assert_eq!(world.objects(REVISIONS).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn edge_04_a_pod_lost_below_the_partition_comes_back_at_the_current_revision() {
    let world = World::new();
    world.put_set(json!({}));
    world.go_on().await;
    world
        .put_set(json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2"}], "hostNetwork": true}},
        "updateStrategy": {"rollingUpdate": {"partition": 2}}}));
    world.go_on().await;
    assert_eq!(of_each(&world.objects(PODS), "/spec/containers/0/image"), ["i:1", "i:1", "i:2"]);
    for name in ["web-0", "web-2"] {
        let mut pod = world.objects(PODS)[name].clone();
        pod["status"]["phase"] = "Failed".into();
        world.put_pod(pod);
    }
    world.go_on().await;
    assert_eq!(of_each(&world.objects(PODS), "/spec/containers/0/image"), ["i:1", "i:1", "i:2"]);
    let status = world.status();
    assert_eq!((&status["updatedReplicas"], &status["currentReplicas"]), (&json!(1), &json!(2)));
    assert_ne!(status["currentRevision"], status["updateRevision"]);
    assert!(world.condition("Ready").unwrap().contains("partition"));
}

#[tokio::test(start_paused = true)]
async fn shortfall_10_1_02_after_a_scale_to_nothing_pods_come_back_as_the_partition_says() {
    let world = World::new();
    world.put_set(json!({"revisionHistoryLimit": 0}));
    world.go_on().await;
    world.put_set(json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2"}]}},
        "updateStrategy": {"rollingUpdate": {"partition": 2}}}));
    world.go_on().await;
    let images = || of_each(&world.objects(PODS), "/spec/containers/0/image");
    assert_eq!(images(), ["i:1", "i:1", "i:2"]);
    world.put_set(json!({"replicas": 0}));
    world.go_on().await;
    assert_eq!((images(), world.objects(REVISIONS).len()), (vec![], 2));
    assert_ne!(world.status()["currentRevision"], world.status()["updateRevision"]);
    world.put_set(json!({"replicas": 3}));
    world.go_on().await;
    assert_eq!(images(), ["i:1", "i:1", "i:2"]);
    for replicas in [0, 3] {
        world.put_set(json!({"replicas": replicas, "updateStrategy": {"rollingUpdate": {"partition": 0}}}));
        world.go_on().await;
        assert_eq!(images(), vec!["i:2"; replicas]);
        assert_eq!(world.status()["currentRevision"], world.status()["updateRevision"]);
    }
}

#[tokio::test(start_paused = true)]
async fn no_pod_is_deleted_by_force_and_none_is_made_while_its_namesake_ends() {
    let world = World::new();
    world.put_set(json!({}));
    world.go_on().await;
    world.writes();
    let mut pod = world.objects(PODS)["web-1"].clone();
    pod["metadata"]["deletionTimestamp"] = AT.into();
    world.put_pod(pod);
    world.put_set(json!({"replicas": 5}));
    world.settle().await.unwrap();
    assert_eq!(world.sent(), ["POST pods/web-3", "POST pods/web-4"], "the others go on");
    let why = world.condition("Reconciling").unwrap();
    assert!(why.contains("web-1") && why.contains("out-of-service"), "{why}");
    world.put_set(json!({"replicas": 0}));
    world.settle().await.unwrap();
    for (method, path, body) in world.writes() {
        if method == Method::DELETE {
            assert_eq!(body.get("gracePeriodSeconds"), None, "{path}");
            assert!(body["preconditions"]["uid"].is_string(), "{path}");
            assert!(!path.ends_with("web-1"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn shortfall_10_1_08_a_pod_that_an_earlier_attempt_has_made_is_accepted_and_a_foreign_one_is_reported() {
    let world = World::new();
    world.put_set(json!({}));
    let pod = |name: &str, uid: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns", "labels": {"app": "web"},
        "ownerReferences": [{"apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet", "name": "web", "uid": uid, "controller": true}]},
        "spec": {"containers": []}})
    };
    // The API server has them, and no watch has delivered them yet.
    lock(&world.server).put(&format!("{PODS}web-0"), pod("web-0", "set"));
    assert!(world.settle().await.is_ok());
    assert_eq!(names(&world.objects(PODS)), ["web-0", "web-1", "web-2"]);
    assert_eq!(world.condition("FailedCreatePod"), None);
    world.put_set(json!({"replicas": 5}));
    lock(&world.server).put(&format!("{PODS}web-4"), pod("web-4", "somebody"));
    assert!(world.settle().await.is_err());
    assert!(world.condition("FailedCreatePod").unwrap().contains("Pod web-4"), "{:?}", world.status());
    lock(&world.server).objects.remove(&format!("{PODS}web-4"));
    world.go_on().await;
    assert_eq!(world.condition("FailedCreatePod"), None, "cleared");
    assert_eq!(world.objects(PODS)["web-4"]["metadata"]["ownerReferences"][0]["uid"], "set");
}

#[tokio::test(start_paused = true)]
async fn orphans_are_adopted_and_what_the_selector_no_longer_matches_is_released() {
    let world = World::new();
    world.put_set(json!({}));
    world.go_on().await;
    for (name, mut pod) in world.objects(PODS) {
        match name.as_str() {
            "web-0" => pod["metadata"]["ownerReferences"] = json!([]),
            "web-1" => pod["metadata"]["labels"]["app"] = "other".into(),
            _ => continue,
        }
        world.put_pod(pod);
    }
    let orphan = world.controller.context.pods.get(&ObjectKey::new("ns", "web-0")).unwrap();
    world.controller.orphan_seen(&orphan);
    let _ = world.settle().await;
    let pods = world.objects(PODS);
    assert_eq!(pods["web-0"]["metadata"]["ownerReferences"][0]["controller"], true);
    assert_eq!(pods["web-1"]["metadata"]["ownerReferences"], json!([]));
    assert!(world.condition("FailedCreatePod").unwrap().contains("web-1"), "its name is taken: {:?}", world.status());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_had_the_name_of_one_to_come_wakes_the_set_when_it_is_gone() {
    let world = World::new();
    world.put_set(json!({}));
    let controller = &world.controller;
    for (name, woken) in [("other-1", None), ("web-1", Some(ObjectKey::new("ns", "web")))] {
        let pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": "released"}});
        let pod: Arc<PodView> = Arc::new(serde_json::from_value(pod).unwrap());
        controller.pod_changed(&Change::Deleted(&pod));
        assert_eq!(controller.queue.begin(), woken, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_another_namespace_that_names_the_sets_uid_is_none_of_its_pods() {
    let world = World::new();
    world.put_set(json!({}));
    world.go_on().await;
    let before = world.objects(PODS);
    for namespace in ["a", "z"] {
        let mut foreign = before["web-0"].clone();
        foreign["metadata"]["namespace"] = namespace.into();
        foreign["metadata"]["uid"] = format!("foreign-{namespace}").into();
        foreign["metadata"]["labels"]["apps.kruise.io/specified-delete"] = "true".into();
        world.controller.context.pods.upsert(serde_json::from_value(foreign).unwrap());
    }
    world.go_on().await;
    let uids = |pods: &BTreeMap<String, Value>| pods.values().map(|p| p["metadata"]["uid"].clone()).collect::<Vec<_>>();
    assert_eq!(uids(&world.objects(PODS)), uids(&before));
    assert!(world.condition("Ready").is_some(), "{:?}", world.status());
}

#[tokio::test(start_paused = true)]
async fn while_the_built_in_set_of_the_same_name_selects_the_same_pods_nothing_is_changed() {
    let world = World::new();
    world.put_set(json!({}));
    let built_in = json!({"metadata": {"name": "web", "namespace": "ns"}, "spec": {"selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}}}});
    lock(&world.server).put(BUILT_IN, built_in.clone());
    assert_eq!(world.settle().await.unwrap(), Requeue::After(ASIDE_PAUSE));
    assert_eq!(world.sent(), Vec::<String>::new(), "no revision either");
    assert!(world.condition("Stalled").unwrap().contains("--cascade=orphan"));
    let mut other = built_in;
    other["spec"] =
        json!({"selector": {"matchLabels": {"app": "x"}}, "template": {"metadata": {"labels": {"app": "x"}}}});
    lock(&world.server).put(BUILT_IN, other);
    world.settle().await.unwrap();
    assert_eq!(world.objects(PODS).len(), 3);
}

/// A look that is some seconds old is not enough for that: the built-in set would find its Pods taken.
#[tokio::test(start_paused = true)]
async fn no_pod_is_adopted_that_a_built_in_set_of_the_same_name_may_adopt() {
    let world = World::new();
    world.put_set(json!({}));
    world.go_on().await;
    let selects = json!({"selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}}});
    lock(&world.server).put(BUILT_IN, json!({"metadata": {"name": "web", "namespace": "ns"}, "spec": selects}));
    let mut orphan = world.objects(PODS)["web-0"].clone();
    orphan["metadata"]["ownerReferences"] = json!([]);
    world.put_pod(orphan);
    let orphan = world.controller.context.pods.get(&ObjectKey::new("ns", "web-0")).unwrap();
    world.controller.orphan_seen(&orphan);
    world.writes();
    world.settle().await.unwrap();
    assert_eq!(world.sent(), Vec::<String>::new());
    assert!(world.condition("Stalled").unwrap().contains("--cascade=orphan"));
}

#[tokio::test(start_paused = true)]
async fn while_the_built_in_set_cannot_be_read_nothing_is_made_or_deleted_and_a_condition_says_so() {
    let world = World::new();
    world.put_set(json!({}));
    lock(&world.server).faults.push((Method::GET, BUILT_IN.into(), 403));
    assert!(world.settle().await.is_err(), "it is tried again");
    assert_eq!(world.sent(), Vec::<String>::new());
    let message = world.condition("Reconciling").unwrap();
    assert!(
        message.contains(
            "no Pod is created, updated or deleted while it cannot be read whether the built-in StatefulSet web"
        ),
        "{message}"
    );
    world.go_on().await;
    assert_eq!(world.objects(PODS).len(), 3);
}

/// Places of an update must not stay empty while a busy API server is asked.
#[tokio::test(start_paused = true)]
async fn while_the_watch_knows_no_built_in_set_of_the_name_none_is_looked_for() {
    let world = World::new();
    world.put_set(json!({}));
    world.go_on().await;
    let is_again = async || {
        let lost = lock(&world.server).objects.remove(&format!("{PODS}web-2")).unwrap();
        world.controller.context.pods.remove(&ObjectKey::new("ns", "web-2"), lost["metadata"]["uid"].as_str());
        world.settle().await.unwrap();
        world.objects(PODS).contains_key("web-2")
    };
    lock(&world.server).faults.push((Method::GET, BUILT_IN.into(), 403));
    for _ in 0..3 {
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(is_again().await);
    }
    assert_eq!(lock(&world.server).faults.len(), 1, "nobody asked");
    lock(&world.server).faults.clear();
    world.put_built_in();
    assert!(!is_again().await);
    assert!(world.condition("Stalled").unwrap().contains("--cascade=orphan"));
}

#[tokio::test(start_paused = true)]
async fn a_claim_template_that_no_pod_could_have_is_reported_and_pods_stay() {
    let world = World::new();
    world.put_set(json!({}));
    world.go_on().await;
    let long = "d".repeat(64);
    world.put_set(json!({"volumeClaimTemplates": [{"metadata": {"name": long}, "spec": {}}]}));
    world.writes();
    world.settle().await.unwrap();
    assert_eq!(world.sent(), Vec::<String>::new());
    let message = world.condition("Stalled").unwrap();
    assert!(
        message.starts_with("spec.volumeClaimTemplates[0].metadata.name: ") && message.contains("want up to 63"),
        "{message}"
    );
    assert_eq!(world.objects(PODS).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn edge_28_a_set_that_is_deleted_leaves_its_pods_to_garbage_collection() {
    let world = World::new();
    world.put_set(json!({}));
    world.go_on().await;
    let set = {
        let mut server = lock(&world.server);
        let mut set = server.objects[SET].clone();
        set["metadata"]["deletionTimestamp"] = AT.into();
        set["spec"]["replicas"] = 1.into();
        set["metadata"]["generation"] = 9.into();
        server.put(SET, set)
    };
    world.controller.sets.upsert(serde_json::from_value(set).unwrap());
    world.writes();
    world.settle().await.unwrap();
    assert_eq!(world.sent(), Vec::<String>::new());
    assert_eq!(world.status()["observedGeneration"], 9);
}

#[tokio::test(start_paused = true)]
async fn a_spec_that_cannot_be_read_is_reported_and_nothing_is_done() {
    let world = World::new();
    world.put_set(json!({"reserveOrdinals": ["7"]}));
    assert_eq!(world.settle().await.unwrap(), Requeue::Await);
    assert_eq!(world.sent(), Vec::<String>::new());
    assert!(world.condition("Stalled").unwrap().contains("reserveOrdinals"));
    assert!(world.condition("FailedUpdatePod").is_some());
}

#[tokio::test(start_paused = true)]
async fn claims_are_owned_before_their_pod_goes_and_kept_when_it_is_wanted_again() {
    let world = World::new();
    let policy = json!({"whenScaled": "Delete", "whenDeleted": "Retain"});
    world.put_set(json!({"volumeClaimTemplates": with_claims(), "persistentVolumeClaimRetentionPolicy": policy}));
    world.go_on().await;
    world.writes();
    world.put_set(json!({"replicas": 2}));
    world.settle().await.unwrap();
    assert_eq!(world.sent(), ["PATCH persistentvolumeclaims/data-web-2", "DELETE pods/web-2"]);
    let owners = |name: &str| world.objects(CLAIMS)[name]["metadata"]["ownerReferences"].clone();
    let pod = world.objects(PODS)["web-2"]["metadata"]["uid"].clone();
    assert_eq!(owners("data-web-2"), json!([{"apiVersion": "v1", "kind": "Pod", "name": "web-2", "uid": pod}]));
    world.put_set(json!({"replicas": 3}));
    world.settle().await.unwrap();
    assert_eq!(owners("data-web-2"), json!([]), "the Pod still ends, and its claim is kept");
    world.go_on().await;
    assert_eq!(world.objects(PODS).len(), 3);
    assert!(world.sent().iter().all(|write| !write.starts_with("DELETE persistentvolumeclaims")));
}

#[tokio::test(start_paused = true)]
async fn claims_grow_before_their_pods_and_without_the_gate_no_storage_class_is_read() {
    for gate in [true, false] {
        let world = World::with_gates(if gate { &["StatefulSetAutoResizePVCGate=true"] } else { &[] });
        let strategy =
            json!({"volumeClaimUpdateStrategy": {"type": "OnPodRollingUpdate"}, "volumeClaimTemplates": with_claims()});
        world.put_set(strategy);
        let class = json!({"metadata": {"name": "fast"}, "allowVolumeExpansion": true});
        lock(&world.server).put("/apis/storage.k8s.io/v1/storageclasses/fast", class);
        if !gate {
            lock(&world.server).faults.push((Method::GET, "/apis/storage.k8s.io".into(), 403));
        }
        world.go_on().await;
        for name in ["data-web-0", "data-web-1", "data-web-2"] {
            world.put_claim(name, json!({"status": {"capacity": {"storage": "1Gi"}}}));
        }
        world.writes();
        let mut larger = with_claims();
        larger[0]["spec"]["resources"]["requests"]["storage"] = "2Gi".into();
        world.put_set(json!({"volumeClaimTemplates": larger}));
        world.settle_all().await;
        if !gate {
            assert_eq!(world.sent(), Vec::<String>::new());
            assert_eq!(lock(&world.server).faults.len(), 1, "edge 22: nobody asked");
            continue;
        }
        assert_eq!(world.sent(), ["PATCH persistentvolumeclaims/data-web-2"]);
        let claim = world.objects(CLAIMS)["data-web-2"].clone();
        assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "2Gi");
        assert_eq!(claim["metadata"]["annotations"][labels::OWNED_BY_STATEFUL_SET], "web");
        assert!(world.condition("Reconciling").unwrap().contains("data-web-2"), "{:?}", world.status());
        world.put_claim("data-web-2", json!({"status": {"capacity": {"storage": "2Gi"}}}));
        world.settle_all().await;
        assert_eq!(world.sent(), ["PATCH persistentvolumeclaims/data-web-1"]);
        assert_eq!(world.status()["volumeClaims"][0]["compatibleReadyReplicas"], 1);
        let mut shrunk = with_claims();
        shrunk[0]["spec"]["resources"]["requests"]["storage"] = "1Gi".into();
        world.put_set(json!({"volumeClaimTemplates": shrunk}));
        world.settle_all().await;
        assert!(world.condition("Ready").is_some(), "an undo ends the waiting: {:?}", world.status());
    }
}

#[tokio::test(start_paused = true)]
async fn claims_grow_before_their_pods_also_when_storage_classes_cannot_be_read_for_a_moment() {
    let world = World::with_gates(&["StatefulSetAutoResizePVCGate=true"]);
    let strategy =
        json!({"volumeClaimUpdateStrategy": {"type": "OnPodRollingUpdate"}, "volumeClaimTemplates": with_claims()});
    world.put_set(strategy);
    let class = json!({"metadata": {"name": "fast"}, "allowVolumeExpansion": true});
    lock(&world.server).put("/apis/storage.k8s.io/v1/storageclasses/fast", class);
    world.go_on().await;
    for name in ["data-web-0", "data-web-1", "data-web-2"] {
        world.put_claim(name, json!({"status": {"capacity": {"storage": "1Gi"}}}));
    }
    let mut larger = with_claims();
    larger[0]["spec"]["resources"]["requests"]["storage"] = "2Gi".into();
    let template = json!({"spec": {"containers": [{"name": "main", "image": "i:2", "newField": {"a": [1]}}]}});
    world.put_set(json!({"volumeClaimTemplates": larger, "template": template}));
    lock(&world.server).faults.push((Method::GET, "/apis/storage.k8s.io".into(), 403));
    world.writes();
    assert!(world.controller.reconcile(&ObjectKey::new("ns", "web")).await.is_err(), "it is tried again");
    let sent = || world.sent().into_iter().filter(|write| !write.contains("revisions")).collect::<Vec<_>>();
    assert_eq!(sent(), Vec::<String>::new());
    assert!(world.condition("Reconciling").unwrap().contains("claim data-web-2 of Pod web-2"), "{:?}", world.status());
    world.settle().await.unwrap();
    assert_eq!(sent(), ["PATCH persistentvolumeclaims/data-web-2"]);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_one_pod_keeps_no_other_from_going_on() {
    let world = World::new();
    world.put_set(json!({"updateStrategy": {"rollingUpdate": {"podUpdatePolicy": "ReCreate", "maxUnavailable": 1}}}));
    world.go_on().await;
    lock(&world.server).faults.push((Method::DELETE, format!("{PODS}web-2"), 403));
    world.writes();
    world.put_set(json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2"}]}}}));
    let _ = world.settle().await;
    let deletions: Vec<String> = world.sent().into_iter().filter(|write| write.starts_with("DELETE")).collect();
    assert_eq!(deletions, ["DELETE pods/web-2", "DELETE pods/web-1"]);
    assert!(world.condition("FailedUpdatePod").is_some());
    world.go_on().await;
    assert_eq!(of_each(&world.objects(PODS), "/spec/containers/0/image"), ["i:2"; 3]);
    assert_eq!(world.condition("FailedUpdatePod"), None, "cleared");
}

#[tokio::test(start_paused = true)]
async fn edge_17_a_pod_without_anything_is_no_trouble() {
    let world = World::new();
    world.put_set(json!({}));
    world.put_pod(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-1", "namespace": "ns",
        "ownerReferences": [{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "StatefulSet", "name": "web", "uid": "set", "controller": true}]}}));
    let _ = world.settle().await;
    assert!(world.objects(PODS).contains_key("web-2"));
}

#[tokio::test(start_paused = true)]
async fn claims_of_a_large_set_wait_for_further_news_as_its_pods_do() {
    let controller = Controller::new(&crate::controllers::in_memory::context(|_, _| (404, json!({}))));
    let key = ObjectKey::new("ns", "web");
    let set = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet",
        "metadata": {"name": "web", "namespace": "ns", "uid": "set"},
        "spec": {"selector": {}, "template": {}, "volumeClaimTemplates": [{"metadata": {"name": "data"}}]}});
    controller.sets.upsert(serde_json::from_value(set).unwrap());
    controller.common.memories.enter(&key, "set");
    let has_pods = |pods: usize| {
        controller.common.memories.with(&key, |memory| AsMut::<Common>::as_mut(memory).pods = pods);
    };
    let claim =
        json!({"metadata": {"name": "data-web-0", "namespace": "ns", "uid": "claim"}, "spec": {}, "status": {}});
    let claim: Arc<SizedClaim> = Arc::new(serde_json::from_value(claim).unwrap());
    let change = Change::Applied { old: None, new: &claim, initial: false };
    has_pods(1000);
    controller.claim_changed(&change);
    assert!(controller.queue.begin().is_none() && controller.queue.next_in().is_some());
    has_pods(10);
    controller.claim_changed(&change);
    assert_eq!(controller.queue.begin(), Some(key.clone()));
}
