//! The controller against an API server in memory: what is written, what survives, what is not touched.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};

use axum::http::{Method, request::Parts};
use serde_json::{Value, json};

use super::*;
use crate::{
    controllers::{fake::strategic, in_memory},
    runtime::{
        apply::code,
        in_place::RESIZE_LOOK,
        lock,
        pass::{AFTER_CONFLICT, AFTER_REFUSAL},
        slow_start::WAVE,
    },
};

mod adopt;
mod cases;
mod pre_download;
mod refusals;
mod simulation;

/// What OpenKruise 1.9 left behind.
const RECORDED: &str = include_str!("testdata/recorded.json");

/// Objects by path, and every write that came.
#[derive(Default)]
struct Server {
    objects: BTreeMap<String, Value>,
    writes: Vec<(Method, String, Value)>,
    /// Which of them were refused, by their numbers.
    failed: BTreeSet<usize>,
    version: u64,
    /// The namespace is being deleted.
    ends: bool,
    /// Pods on nodes end only when their kubelets say so.
    is_graceful: bool,
    /// Pods that may be there.
    quota: Option<usize>,
    /// Paths of which every write is refused, as an admission policy of somebody else would.
    refused: BTreeSet<String>,
    /// An image that no Pod may be changed to, as a webhook of somebody else would say.
    denied: Option<&'static str>,
    /// It says so of dry runs too.
    denies_dry_runs: bool,
    /// It does not answer instead, which the API server says with a 500.
    is_silent: bool,
    /// Answers to come instead of the real one, by the beginning of the path, or the whole path with `$` at its end.
    faults: Vec<(Method, String, u16)>,
}

const NAMESPACE: &str = "/api/v1/namespaces/ns/pods";

impl Server {
    fn is_over_quota(&self) -> bool {
        let count = || {
            self.objects.iter().filter(|(path, pod)| path.starts_with(NAMESPACE) && pod["status"]["phase"] != "Failed")
        };
        self.quota.is_some_and(|quota| count().count() >= quota)
    }

    /// Whether a Pod is not in the version that its deletion is for.
    fn is_another_version(&self, path: &str, deletion: &Value) -> bool {
        let (Some(pod), Some(version)) =
            (self.objects.get(path), deletion["preconditions"]["resourceVersion"].as_str())
        else {
            return false;
        };
        path.starts_with(NAMESPACE) && pod["metadata"]["resourceVersion"] != version
    }

    fn answer(&mut self, request: &Parts, body: &[u8]) -> (u16, Value) {
        let before = self.writes.len();
        let (code, answer) = self.answer_one(request, body);
        if code >= 400 && self.writes.len() > before {
            self.failed.insert(before);
        }
        (code, answer)
    }

    fn answer_one(&mut self, request: &Parts, body: &[u8]) -> (u16, Value) {
        let path = request.uri.path().to_owned();
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let refused = |code: u16| {
            (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": "Test", "message": "test"}))
        };
        if request.method != Method::GET && self.refused.contains(&path) {
            return refused(403);
        }
        // A dry run stores nothing.
        let is_dry_run = request.uri.query().is_some_and(|query| query.contains("dryRun=All"));
        if request.method != Method::GET && !is_dry_run {
            self.writes.push((request.method.clone(), path.clone(), body.clone()));
        }
        let fault = self.faults.iter().position(|(method, at, _)| {
            request.method == *method
                && at.strip_suffix('$').map_or_else(|| path.starts_with(at), |whole| path == whole)
        });
        if let Some(fault) = fault {
            return refused(self.faults.remove(fault).2);
        }
        let (path, is_status) = match path.strip_suffix("/status") {
            Some(path) => (path.to_owned(), true),
            None => (path, false),
        };
        self.version += 1;
        let path = path.strip_suffix("/resize").map_or(path.clone(), str::to_owned);
        match request.method.as_str() {
            "GET" if path == "/version" => {
                let mut version = json!({"major": "1", "minor": "34", "gitVersion": "v1.34.1"});
                for field in ["gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"] {
                    version[field] = "".into();
                }
                (200, version)
            }
            "GET" if self.objects.contains_key(&path) => (200, self.objects[&path].clone()),
            "GET" if path.ends_with('s') => {
                // Budgets are listed in all namespaces; there is one.
                let below = path.replace("/v1alpha1/podunavail", "/v1alpha1/namespaces/ns/podunavail") + "/";
                let items: Vec<&Value> = self
                    .objects
                    .range(below.clone()..)
                    .take_while(|(p, _)| p.starts_with(&below))
                    .map(|(_, o)| o)
                    .collect();
                let metadata = json!({"resourceVersion": self.version.to_string()});
                (200, json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items}))
            }
            "POST" if self.ends && path == NAMESPACE => {
                let cause = json!({"reason": "NamespaceTerminating", "message": "m", "field": "metadata.namespace"});
                let mut answer = refused(403);
                answer.1["details"] = json!({"causes": [cause]});
                answer
            }
            "POST" if path == NAMESPACE && self.is_over_quota() => refused(403),
            // What it would default is of no interest here, only that it is asked.
            "POST" if path.ends_with("/podtemplates") => (201, body),
            "POST" => {
                let mut made = body;
                let path = format!("{path}/{}", made["metadata"]["name"].as_str().unwrap());
                if self.objects.contains_key(&path) {
                    return refused(409);
                }
                made["metadata"]["uid"] = format!("uid-{}", self.version).into();
                made["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
                made["metadata"]["resourceVersion"] = self.version.to_string().into();
                self.objects.insert(path, made.clone());
                (201, made)
            }
            "PATCH" => {
                let Some(object) = self.objects.get_mut(&path) else { return refused(404) };
                for field in ["uid", "resourceVersion"] {
                    let wanted = &body["metadata"][field];
                    if !wanted.is_null() && *wanted != object["metadata"][field] {
                        return refused(409);
                    }
                }
                let is_merge = request.headers["content-type"] == "application/merge-patch+json";
                let patch = if is_merge { json_patch::merge } else { strategic };
                let mut after = object.clone();
                if is_status {
                    patch(&mut after, &body);
                    after["spec"] = object["spec"].clone();
                } else if body.is_array() {
                    json_patch::patch(&mut after, &serde_json::from_value::<json_patch::Patch>(body).unwrap()).unwrap();
                } else {
                    patch(&mut after, &body);
                }
                let is_new = after["spec"] != object["spec"];
                let is_denied =
                    self.denied.is_some_and(|image| is_new && after["spec"]["containers"][0]["image"] == image);
                if is_denied && (self.denies_dry_runs || !is_dry_run) {
                    return refused(if self.is_silent { 500 } else { 403 });
                }
                if is_dry_run {
                    return (200, after);
                }
                after["metadata"]["resourceVersion"] = self.version.to_string().into();
                *object = after.clone();
                (200, after)
            }
            "DELETE" if self.is_another_version(&path, &body) => refused(409),
            "DELETE" if self.is_graceful && self.objects.get(&path).is_some_and(runs) => {
                let version = self.version.to_string();
                let Some(ending) = self.objects.get_mut(&path) else { return refused(404) };
                ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                ending["metadata"]["resourceVersion"] = version.into();
                (200, ending.clone())
            }
            "DELETE" => match self.objects.remove(&path) {
                Some(gone) => (200, gone),
                None => refused(404),
            },
            _ => refused(404),
        }
    }
}

/// Whether an object is a Pod that has to be ended by a kubelet.
fn runs(object: &Value) -> bool {
    object["kind"] == "Pod" && object["spec"]["nodeName"].is_string() && object["status"]["phase"] != "Failed"
}

struct World {
    server: Arc<Mutex<Server>>,
    controller: Controller,
}

impl World {
    fn new() -> Self {
        Self::of(Arc::default())
    }

    /// A controller that knows nothing yet of what is there.
    fn of(server: Arc<Mutex<Server>>) -> Self {
        let context = in_memory::context({
            let server = server.clone();
            move |request, body| lock(&server).answer(request, body)
        });
        Self { server, controller: Controller::new(&context) }
    }

    fn with_gates(gates: &[&str]) -> Self {
        let mut world = Self::new();
        let gates = crate::api::feature_gates::FeatureGates::parse(gates, None).unwrap();
        let context = &mut world.controller.context;
        context.gates = Arc::new(gates);
        context.budgets = crate::budgets::Budgets::new(context.client.clone(), context.gates.clone());
        world
    }

    /// A CloneSet in namespace `ns` with two Pods wanted; `changes` are merged over it.
    /// The CloneSet `web`, as a pass looks at it.
    fn job(&self) -> CloneSetJob {
        let held = self.controller.clone_sets.get(&ObjectKey::new("ns", "web")).unwrap();
        let opened = held.open().unwrap();
        CloneSetJob::of(held, Arc::new(opened))
    }

    fn put_clone_set(&self, changes: Value) {
        let path = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/clonesets/web";
        let mut server = lock(&self.server);
        server.version += 1;
        let generation = server.objects.get(path).map_or(1, |old| old["metadata"]["generation"].as_i64().unwrap() + 1);
        let mut set = server.objects.get(path).cloned().unwrap_or_else(|| {
            json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet",
            "metadata": {"name": "web", "namespace": "ns", "uid": "set"},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "updateStrategy": {"type": "InPlaceIfPossible", "maxUnavailable": 1},
                "template": {"metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "main", "image": "i:1", "newField": {"a": [1]}}], "newerField": true}}}})
        });
        json_patch::merge(&mut set["spec"], &changes);
        set["metadata"]["generation"] = generation.into();
        set["metadata"]["resourceVersion"] = server.version.to_string().into();
        server.objects.insert(path.into(), set.clone());
        drop(server);
        self.controller.clone_sets.upsert(serde_json::from_value(set).unwrap());
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

    fn pods(&self) -> Vec<Value> {
        let server = lock(&self.server);
        server.objects.iter().filter(|(path, _)| path.starts_with(NAMESPACE)).map(|(_, pod)| pod.clone()).collect()
    }

    /// Plays kubelet: every Pod has a node, runs the images of its spec, and is ready if its gates are open.
    fn play(&self) {
        let mut server = lock(&self.server);
        server.version += 1;
        let version = server.version.to_string();
        for (path, pod) in server.objects.iter_mut().filter(|(path, _)| path.starts_with(NAMESPACE)) {
            pod["spec"]["nodeName"] = "n".into();
            pod["status"]["phase"] = "Running".into();
            let containers = pod["spec"]["containers"].as_array().unwrap().clone();
            let statuses: Vec<Value> = containers
                .iter()
                .map(|c| json!({"name": c["name"], "image": c["image"], "imageID": format!("id-of-{}", c["image"]), "ready": true,
                    "containerID": format!("c://{path}/{}", c["image"]), "restartCount": 0, "state": {"running": {}}, "resources": c["resources"]}))
                .collect();
            pod["status"]["containerStatuses"] = statuses.into();
            let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let open = pod["spec"]["readinessGates"]
                .as_array()
                .unwrap()
                .iter()
                .all(|gate| conditions.iter().any(|c| c["type"] == gate["conditionType"] && c["status"] == "True"));
            let ready = if open { "True" } else { "False" };
            strategic(
                &mut pod["status"],
                &json!({"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "ContainersReady", "status": "True"}]}),
            );
            pod["metadata"]["resourceVersion"] = version.clone().into();
            self.controller.context.pods.upsert(serde_json::from_value(pod.clone()).unwrap());
        }
    }

    /// Plays and settles until nothing changes any more.
    async fn go_on(&self) {
        for _ in 0..30 {
            self.settle().await.unwrap();
            self.play();
        }
        self.settle().await.unwrap();
    }

    /// The types of the conditions that say what failed.
    fn failures(&self) -> Vec<String> {
        let conditions = self.status()["conditions"].as_array().cloned().unwrap_or_default();
        let types = conditions.iter().map(|condition| condition["type"].as_str().unwrap().to_owned());
        types.filter(|type_| type_.starts_with("Failed")).collect()
    }
    fn status(&self) -> Value {
        lock(&self.server).objects["/apis/apps.kruise.io/v1alpha1/namespaces/ns/clonesets/web"]["status"].clone()
    }

    fn writes(&self) -> Vec<(Method, String, Value)> {
        let mut server = lock(&self.server);
        server.failed.clear();
        std::mem::take(&mut server.writes)
    }
}

fn ups(pods: &[Value]) -> Vec<&str> {
    pods.iter().map(|pod| pod["metadata"]["uid"].as_str().unwrap()).collect()
}

fn images(pods: &[Value]) -> Vec<&str> {
    pods.iter().map(|pod| pod["spec"]["containers"][0]["image"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn takeover_touches_no_pod_and_no_revision() {
    let recorded: Value = serde_json::from_str(RECORDED).unwrap();
    for stage in ["created", "preparing-delete"] {
        let world = World::new();
        // Newer than everything that was recorded.
        lock(&world.server).version = 1_000_000;
        let list = |kind: &str| recorded[stage][kind].as_array().unwrap().clone();
        for pod in list("pods") {
            world.controller.context.pods.upsert(serde_json::from_value(pod).unwrap());
        }
        for claim in list("claims") {
            world.controller.claims.upsert(serde_json::from_value(claim).unwrap());
        }
        for revision in list("revisions") {
            let path = format!(
                "/apis/apps/v1/namespaces/golden/controllerrevisions/{}",
                revision["metadata"]["name"].as_str().unwrap()
            );
            lock(&world.server).objects.insert(path, revision);
        }
        let sets = list("cloneSets");
        assert_eq!(sets.len(), 9);
        for set in sets {
            let name = set["metadata"]["name"].as_str().unwrap().to_owned();
            let path = format!("/apis/apps.kruise.io/v1alpha1/namespaces/golden/clonesets/{name}");
            lock(&world.server).objects.insert(path, set.clone());
            world.controller.clone_sets.upsert(serde_json::from_value(set).unwrap());
            for _ in 0..3 {
                world.controller.reconcile(&ObjectKey::new("golden", &name)).await.unwrap();
                world.controller.statuses.forget();
            }
            let writes = world.writes();
            assert!(writes.len() <= 1, "{stage}: {writes:?}");
            for (method, path, body) in writes {
                assert!(path.ends_with(&format!("/clonesets/{name}/status")), "{stage}: {method} {path} {body}");
            }
        }
    }
}

#[tokio::test]
async fn pods_are_made_and_become_available_with_two_writes_each() {
    let world = World::new();
    world.put_clone_set(json!({}));
    world.go_on().await;
    let pods = world.pods();
    assert_eq!(pods.len(), 2);
    for pod in &pods {
        assert_eq!(pod["metadata"]["labels"]["lifecycle.apps.kruise.io/state"], "Normal");
        // Fields that nobody here knows come through.
        assert_eq!(
            (&pod["spec"]["newerField"], &pod["spec"]["containers"][0]["newField"]),
            (&json!(true), &json!({"a": [1]}))
        );
    }
    let writes = world.writes().iter().filter(|(_, path, _)| path.starts_with(NAMESPACE)).count();
    assert_eq!(writes, 4, "a creation and one patch of the status for each");
    let status = world.status();
    assert_eq!((&status["updatedReadyReplicas"], &status["availableReplicas"]), (&json!(2), &json!(2)));
    assert_eq!(status["currentRevision"], status["updateRevision"]);
    world.settle().await.unwrap();
    assert_eq!(world.writes(), [], "at rest");
}

#[tokio::test]
async fn pods_that_are_being_deleted_are_counted_until_they_are_gone() {
    let world = World::new();
    lock(&world.server).is_graceful = true;
    // Counts are written a second apart.
    let recorded = async || {
        world.go_on().await;
        world.controller.statuses.forget();
        world.settle().await.unwrap();
        let status = world.status();
        (status["replicas"].clone(), status["terminatingReplicas"].clone())
    };
    world.put_clone_set(json!({}));
    assert_eq!(recorded().await, (json!(2), json!(0)));
    world.put_clone_set(json!({"replicas": 1}));
    assert_eq!(recorded().await, (json!(1), json!(1)));
    let ending = world.pods().into_iter().find(|pod| pod["metadata"]["deletionTimestamp"].is_string()).unwrap();
    let name = ending["metadata"]["name"].as_str().unwrap();
    lock(&world.server).objects.remove(&format!("{NAMESPACE}/{name}"));
    world.controller.context.pods.remove(&ObjectKey::new("ns", name), None);
    assert_eq!(recorded().await, (json!(1), json!(0)));
}

#[tokio::test]
async fn an_image_is_changed_in_place_one_pod_after_the_other() {
    let world = World::new();
    world.put_clone_set(json!({}));
    world.go_on().await;
    let before = world.pods();
    world.writes();
    world.put_clone_set(
        json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2", "newField": {"a": [1]}}]}}}),
    );
    world.settle().await.unwrap();
    assert_eq!(images(&world.pods()).iter().filter(|image| **image == "i:2").count(), 1, "maxUnavailable is 1");
    let touched: Vec<_> = world.writes().into_iter().filter(|(_, path, _)| path.starts_with(NAMESPACE)).collect();
    assert_eq!(touched.len(), 2);
    assert!(touched[0].1.ends_with("/status"), "out of service first: {touched:?}");
    assert_eq!(touched[1].2["spec"], json!({"containers": [{"name": "main", "image": "i:2"}]}));
    world.go_on().await;
    let after = world.pods();
    assert_eq!((ups(&after), images(&after)), (ups(&before), vec!["i:2", "i:2"]));
    assert_eq!(world.status()["currentRevision"], world.status()["updateRevision"]);
    assert!(after.iter().all(|pod| pod["metadata"]["labels"]["lifecycle.apps.kruise.io/state"] == "Normal"));
}

#[tokio::test]
async fn case_08_an_update_that_fails_is_tried_again_in_place() {
    let world = World::new();
    world.put_clone_set(json!({}));
    world.go_on().await;
    let before = world.pods();
    world.put_clone_set(
        json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2"}], "newerField": true}}}),
    );
    world.put_clone_set(
        json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2", "newField": {"a": [1]}}]}}}),
    );
    for method in [Method::PATCH, Method::PATCH] {
        lock(&world.server).faults.push((method, NAMESPACE.into(), 500));
    }
    assert!(world.settle().await.is_err());
    assert_eq!(world.failures(), ["FailedUpdate"]);
    assert!(world.settle().await.is_err());
    world.go_on().await;
    assert_eq!((ups(&world.pods()), images(&world.pods())), (ups(&before), vec!["i:2", "i:2"]));
    assert_eq!(world.failures(), [""; 0], "19.1: taken back");
}

#[tokio::test]
async fn a_conflict_is_no_failure() {
    let world = World::new();
    world.put_clone_set(json!({}));
    for _ in 0..3 {
        lock(&world.server).faults.push((Method::PATCH, NAMESPACE.into(), 409));
    }
    world.go_on().await;
    assert_eq!(world.status()["availableReplicas"], 2);
    assert_eq!(world.failures(), [""; 0], "19.1");
}

#[tokio::test]
async fn a_pod_that_changes_before_its_update_is_updated_a_moment_later() {
    let world = World::new();
    world.put_clone_set(json!({}));
    world.go_on().await;
    world.put_clone_set(
        json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2", "newField": {"a": [1]}}]}}}),
    );
    lock(&world.server).faults.push((Method::PATCH, NAMESPACE.into(), 409));
    assert_eq!(world.settle().await.unwrap(), Requeue::After(AFTER_CONFLICT), "what has changed is still to come");
    assert_eq!(images(&world.pods()), ["i:1", "i:1"]);
    world.go_on().await;
    assert_eq!((images(&world.pods()), world.failures()), (vec!["i:2", "i:2"], vec![]));
}

#[tokio::test]
async fn a_change_that_needs_another_pod_replaces_pods_within_the_limits() {
    let world = World::new();
    world.put_clone_set(json!({}));
    world.go_on().await;
    let before = world.pods();
    world.put_clone_set(json!({"template": {"spec": {"hostNetwork": true}}}));
    world.settle().await.unwrap();
    assert_eq!(world.pods().iter().filter(|pod| pod["spec"]["hostNetwork"] == true).count(), 1);
    world.go_on().await;
    let after = world.pods();
    assert!(after.iter().all(|pod| pod["spec"]["hostNetwork"] == true) && after.len() == 2);
    assert!(ups(&before).iter().all(|uid| !ups(&after).contains(uid)));
}

#[tokio::test]
async fn in_place_only_says_why_it_cannot_and_touches_nothing() {
    let world = World::new();
    world.put_clone_set(json!({"updateStrategy": {"type": "InPlaceOnly"}}));
    world.go_on().await;
    world.writes();
    world.put_clone_set(json!({"template": {"spec": {"hostNetwork": true}}}));
    world.go_on().await;
    assert!(world.writes().iter().all(|(_, path, _)| !path.starts_with(NAMESPACE)));
    let condition = &world.status()["conditions"][0];
    assert_eq!(condition["type"], "FailedUpdate");
    let message = condition["message"].as_str().unwrap();
    assert!(message.contains("template.spec.hostNetwork"), "{message}");
}

#[tokio::test]
async fn case_11_on_delete_updates_nothing_and_still_makes_pods_ready() {
    let world = World::new();
    world.put_clone_set(json!({"updateStrategy": {"type": "OnDelete"}}));
    world.go_on().await;
    assert_eq!(world.status()["availableReplicas"], 2);
    world.put_clone_set(
        json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2", "newField": {"a": [1]}}]}}}),
    );
    world.go_on().await;
    assert_eq!(images(&world.pods()), ["i:1", "i:1"]);
    let gone = world.pods()[0].clone();
    let name = gone["metadata"]["name"].as_str().unwrap();
    lock(&world.server).objects.remove(&format!("{NAMESPACE}/{name}"));
    world.controller.context.pods.remove(&ObjectKey::new("ns", name), gone["metadata"]["uid"].as_str());
    world.go_on().await;
    let mut now = images(&world.pods()).iter().map(|image| (*image).to_owned()).collect::<Vec<_>>();
    now.sort();
    assert_eq!(now, ["i:1", "i:2"]);
}

#[tokio::test]
async fn a_roll_back_reuses_the_old_revision() {
    let world = World::new();
    world.put_clone_set(json!({}));
    world.go_on().await;
    let first = world.status()["updateRevision"].clone();
    world.put_clone_set(
        json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2", "newField": {"a": [1]}}]}}}),
    );
    world.go_on().await;
    assert_ne!(world.status()["updateRevision"], first);
    world.put_clone_set(
        json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:1", "newField": {"a": [1]}}]}}}),
    );
    world.go_on().await;
    assert_eq!((world.status()["updateRevision"].clone(), images(&world.pods())), (first.clone(), vec!["i:1", "i:1"]));
    let path = format!("/apis/apps/v1/namespaces/ns/controllerrevisions/{}", first.as_str().unwrap());
    assert_eq!(lock(&world.server).objects[&path]["revision"], 3);
}

#[tokio::test]
async fn an_orphaned_revision_is_adopted_before_it_is_changed() {
    let world = World::new();
    world.put_clone_set(json!({}));
    world.go_on().await;
    let first = world.status()["updateRevision"].as_str().unwrap().to_owned();
    let template = |image: &str| json!({"template": {"spec": {"containers": [{"name": "main", "image": image, "newField": {"a": [1]}}]}}});
    world.put_clone_set(template("i:2"));
    world.go_on().await;
    let path = format!("/apis/apps/v1/namespaces/ns/controllerrevisions/{first}");
    lock(&world.server).objects.get_mut(&path).unwrap()["metadata"]["ownerReferences"] = json!([]);
    world.writes();
    world.put_clone_set(template("i:1"));
    world.go_on().await;
    let revision = lock(&world.server).objects[&path].clone();
    assert_eq!(
        (&revision["revision"], &revision["metadata"]["ownerReferences"][0]["kind"]),
        (&json!(3), &json!("CloneSet"))
    );
}

#[tokio::test]
async fn the_history_is_cut() {
    let world = World::new();
    world.put_clone_set(json!({"revisionHistoryLimit": 1}));
    for image in ["i:1", "i:2", "i:3", "i:4"] {
        world.put_clone_set(json!({"template": {"spec": {"containers": [{"name": "main", "image": image}]}}}));
        world.go_on().await;
    }
    let count = lock(&world.server).objects.keys().filter(|path| path.contains("controllerrevisions")).count();
    assert_eq!(count, 2, "the live one and one more");
}

#[tokio::test]
async fn without_pods_the_pass_that_sees_a_new_template_cuts_the_history_too() {
    let world = World::new();
    world.put_clone_set(json!({"replicas": 0, "revisionHistoryLimit": 0}));
    world.settle().await.unwrap();
    world.put_clone_set(json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2"}]}}}));
    assert_eq!(world.settle().await.unwrap(), Requeue::Await, "no other pass comes");
    let path = "/apis/apps/v1/namespaces/ns/controllerrevisions/";
    let server = lock(&world.server);
    let left: Vec<&str> = server.objects.keys().filter_map(|key| key.strip_prefix(path)).collect();
    let status = &server.objects["/apis/apps.kruise.io/v1alpha1/namespaces/ns/clonesets/web"]["status"];
    assert_eq!(left, [status["updateRevision"].as_str().unwrap()]);
}

#[tokio::test]
async fn a_partition_keeps_pods_and_makes_new_ones_on_both_revisions() {
    let world = World::new();
    world.put_clone_set(json!({}));
    world.go_on().await;
    world.put_clone_set(json!({"updateStrategy": {"partition": 1},
        "template": {"spec": {"containers": [{"name": "main", "image": "i:2", "newField": {"a": [1]}}]}}}));
    world.go_on().await;
    let sorted = |world: &World| {
        let mut list: Vec<String> = images(&world.pods()).iter().map(|image| (*image).to_owned()).collect();
        list.sort();
        list
    };
    assert_eq!(sorted(&world), ["i:1", "i:2"]);
    assert_ne!(world.status()["currentRevision"], world.status()["updateRevision"]);
    world.put_clone_set(json!({"replicas": 4, "updateStrategy": {"partition": 2}}));
    world.go_on().await;
    assert_eq!(sorted(&world), ["i:1", "i:1", "i:2", "i:2"]);
    assert_eq!(world.status()["expectedUpdatedReplicas"], 2);
}

#[tokio::test(start_paused = true)]
async fn claims_of_a_large_set_wait_for_further_news_as_its_pods_do() {
    let controller = Controller::new(&in_memory::context(|_, _| (404, json!({}))));
    let key = ObjectKey::new("ns", "web");
    let set = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet",
        "metadata": {"name": "web", "namespace": "ns", "uid": "set"}, "spec": {"selector": {}, "template": {}}});
    controller.clone_sets.upsert(serde_json::from_value(set).unwrap());
    controller.memories.enter(&key, "set");
    let claim = json!({"metadata": {"name": "data-web-a", "namespace": "ns", "uid": "claim", "ownerReferences": [
        {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web", "uid": "set", "controller": true}]}});
    let claim: Arc<ClaimView> = Arc::new(serde_json::from_value(claim).unwrap());
    let change = Change::Applied { old: None, new: &claim, initial: false };
    controller.memories.keep_pods(&key, 1000);
    controller.claim_changed(&change);
    assert!(controller.queue.begin().is_none() && controller.queue.next_in().is_some());
    controller.memories.keep_pods(&key, 10);
    controller.claim_changed(&change);
    assert_eq!(controller.queue.begin(), Some(key));
}

#[tokio::test]
async fn claims_come_before_pods_stay_when_a_pod_is_lost_and_go_with_a_scale_down() {
    let world = World::new();
    world.put_clone_set(
        json!({"replicas": 1, "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"x": 1}}]}),
    );
    world.go_on().await;
    let order: Vec<String> = world
        .writes()
        .iter()
        .filter(|w| w.0 == Method::POST)
        .map(|w| w.1.rsplit('/').next().unwrap().to_owned())
        .collect();
    assert_eq!(order, ["controllerrevisions", "persistentvolumeclaims", "pods"]);
    let pod = world.pods()[0].clone();
    let (name, uid) = (pod["metadata"]["name"].as_str().unwrap(), pod["metadata"]["uid"].as_str());
    // Lost: its successor has the same name, and no second claim is made.
    lock(&world.server).objects.remove(&format!("{NAMESPACE}/{name}"));
    world.controller.context.pods.remove(&ObjectKey::new("ns", name), uid);
    world.go_on().await;
    assert_eq!(world.pods()[0]["metadata"]["name"], name);
    let posted = world.writes().iter().filter(|w| w.0 == Method::POST).count();
    assert_eq!(posted, 1);
    world.put_clone_set(json!({"replicas": 0}));
    world.go_on().await;
    assert_eq!(lock(&world.server).objects.keys().filter(|p| p.contains("persistentvolumeclaims")).count(), 0);
}

/// Whoever may create claims in another namespace can write the UID into them, any id, and the name of a claim that is needed.
#[tokio::test]
async fn claims_of_another_namespace_are_none_of_the_set() {
    let world = World::new();
    world.put_clone_set(
        json!({"replicas": 1, "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"x": 1}}]}),
    );
    let foreign = json!({"metadata": {"name": "data-web-foreign", "namespace": "other", "uid": "foreign",
        "resourceVersion": "1", "labels": {labels::INSTANCE_ID: "foreign"}, "ownerReferences": [
            {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web", "uid": "set", "controller": true}]}});
    world.controller.claims.upsert(serde_json::from_value(foreign).unwrap());
    world.go_on().await;
    let writes = world.writes();
    let posted = writes.iter().filter(|w| w.0 == Method::POST).map(|w| w.1.rsplit('/').next().unwrap());
    assert_eq!(posted.collect::<Vec<_>>(), ["controllerrevisions", "persistentvolumeclaims", "pods"]);
    assert_ne!(world.pods()[0]["metadata"]["labels"][labels::INSTANCE_ID], "foreign");
}

#[tokio::test]
async fn shortfall_12_a_pod_on_its_way_out_is_waited_for_when_its_claims_are_wanted() {
    let world = World::new();
    world.put_clone_set(
        json!({"replicas": 1, "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"x": 1}}]}),
    );
    world.go_on().await;
    let mut pod = world.pods()[0].clone();
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    pod["metadata"]["resourceVersion"] = "900".into();
    world.controller.context.pods.upsert(serde_json::from_value(pod.clone()).unwrap());
    world.writes();
    world.settle().await.unwrap();
    assert_eq!(world.writes().iter().filter(|w| w.0 == Method::POST).count(), 0, "no second claim, no second Pod");
    world.put_clone_set(json!({"scaleStrategy": {"disablePVCReuse": true}}));
    world.settle().await.unwrap();
    let made: Vec<String> = world.writes().iter().filter(|w| w.0 == Method::POST).map(|w| w.1.clone()).collect();
    assert_eq!(made.len(), 2, "case 22: a new claim and a new Pod: {made:?}");
}

/// Somebody changes the label of the first Pod. Returns its path.
fn lose_label(world: &World) -> String {
    let mut pod = world.pods()[0].clone();
    pod["metadata"]["labels"]["app"] = "other".into();
    let path = format!("{NAMESPACE}/{}", pod["metadata"]["name"].as_str().unwrap());
    {
        let mut server = lock(&world.server);
        server.version += 1;
        pod["metadata"]["resourceVersion"] = server.version.to_string().into();
        server.objects.insert(path.clone(), pod.clone());
    }
    world.controller.context.pods.upsert(serde_json::from_value(pod).unwrap());
    path
}

#[tokio::test]
async fn case_25_a_pod_that_lost_its_label_is_let_go_and_replaced() {
    let world = World::new();
    world.put_clone_set(json!({}));
    world.go_on().await;
    let path = lose_label(&world);
    world.go_on().await;
    assert_eq!(lock(&world.server).objects[&path]["metadata"]["ownerReferences"], json!([]));
    assert_eq!(world.pods().len(), 3);
    assert_eq!(world.status()["availableReplicas"], 2);
}

#[tokio::test]
async fn a_pod_that_is_gone_when_it_is_to_be_let_go_is_no_failure() {
    let world = World::new();
    world.put_clone_set(json!({}));
    world.go_on().await;
    let path = lose_label(&world);
    // Somebody has deleted it since, which no watch has brought yet.
    lock(&world.server).objects.remove(&path);
    world.settle().await.unwrap();
    assert_eq!(world.failures(), [""; 0]);
    assert_eq!(world.pods().len(), 2, "another one is made in its place");
}

#[tokio::test]
async fn shortfall_19_names_of_deleted_pods_are_dropped_without_touching_anything_else() {
    let world = World::new();
    world.put_clone_set(json!({"updateStrategy": {"maxUnavailable": 2}}));
    world.go_on().await;
    let name = world.pods()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    world.put_clone_set(json!({"replicas": 1, "scaleStrategy": {"podsToDelete": [name]}}));
    world.writes();
    world.go_on().await;
    assert!(world.pods().iter().all(|pod| pod["metadata"]["name"] != name) && world.pods().len() == 1);
    let patches: Vec<Value> =
        world.writes().into_iter().filter(|w| w.1.ends_with("/clonesets/web")).map(|w| w.2).collect();
    let path = "/spec/scaleStrategy/podsToDelete";
    assert_eq!(patches, [json!([{"op": "test", "path": path, "value": [name]}, {"op": "remove", "path": path}])]);
}

#[tokio::test]
async fn a_hook_holds_an_update_until_it_lets_go_and_is_put_back() {
    let world = World::new();
    let lifecycle = json!({"inPlaceUpdate": {"labelsHandler": {"hold": "yes"}, "markPodNotReady": true}});
    world.put_clone_set(
        json!({"replicas": 1, "lifecycle": lifecycle, "template": {"metadata": {"labels": {"hold": "yes"}}}}),
    );
    world.go_on().await;
    let change = |world: &World, label: &str| {
        let mut server = lock(&world.server);
        server.version += 1;
        let version = server.version.to_string();
        let (_, pod) = server.objects.iter_mut().find(|(path, _)| path.starts_with(NAMESPACE)).unwrap();
        pod["metadata"]["labels"]["hold"] = label.into();
        pod["metadata"]["resourceVersion"] = version.into();
    };
    let state = |world: &World| world.pods()[0]["metadata"]["labels"]["lifecycle.apps.kruise.io/state"].clone();
    let kruise_ready = |world: &World| {
        let pod = world.pods()[0].clone();
        pod["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "KruisePodReady").unwrap()["status"].clone()
    };
    world.put_clone_set(
        json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2", "newField": {"a": [1]}}]}}}),
    );
    world.go_on().await;
    assert_eq!(
        (state(&world), images(&world.pods()), kruise_ready(&world)),
        (json!("PreparingUpdate"), vec!["i:1"], json!("False"))
    );
    change(&world, "no");
    world.go_on().await;
    assert_eq!(
        (state(&world), images(&world.pods()), kruise_ready(&world)),
        (json!("Updated"), vec!["i:2"], json!("True"))
    );
    change(&world, "yes");
    world.go_on().await;
    assert_eq!(state(&world), "Normal");
}

#[tokio::test]
async fn gate_short_hash_makes_the_label_short_and_full_ones_stay_valid() {
    let world = World::with_gates(&["CloneSetShortHash=true"]);
    world.put_clone_set(json!({}));
    world.go_on().await;
    let hash = world.status()["updateRevision"].as_str().unwrap().rsplit_once('-').unwrap().1.to_owned();
    for pod in world.pods() {
        assert_eq!(pod["metadata"]["labels"]["controller-revision-hash"], hash.as_str());
    }
    assert_eq!(world.status()["updatedReplicas"], 2);
}

#[tokio::test]
async fn gate_partition_rollback_brings_pods_back() {
    for (gates, want) in [(&["CloneSetPartitionRollback=true"][..], "i:1"), (&[][..], "i:2")] {
        let world = World::with_gates(gates);
        world.put_clone_set(json!({}));
        world.go_on().await;
        world.put_clone_set(json!({"updateStrategy": {"partition": 1},
            "template": {"spec": {"containers": [{"name": "main", "image": "i:2", "newField": {"a": [1]}}]}}}));
        world.go_on().await;
        world.put_clone_set(json!({"updateStrategy": {"partition": 2}}));
        world.go_on().await;
        assert_eq!(images(&world.pods()).contains(&"i:2"), want == "i:2", "{gates:?}");
    }
}

#[tokio::test]
async fn gate_resize_changes_resources_in_place_and_in_service() {
    for gates in [&["InPlaceWorkloadVerticalScaling=true"][..], &[][..]] {
        let world = World::with_gates(gates);
        let container = |cpu: &str| {
            let resources = json!({"requests": {"cpu": cpu}});
            json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:1", "resources": resources}]}}})
        };
        world.put_clone_set(container("100m"));
        world.go_on().await;
        let before = world.pods();
        world.writes();
        world.put_clone_set(container("200m"));
        world.go_on().await;
        let after = world.pods();
        let writes = world.writes();
        assert!(after.iter().all(|pod| pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "200m"));
        assert_eq!(ups(&after) == ups(&before), !gates.is_empty(), "{gates:?}");
        assert_eq!(writes.iter().filter(|w| w.1.ends_with("/resize")).count(), if gates.is_empty() { 0 } else { 2 });
        if !gates.is_empty() {
            assert!(
                !format!("{writes:?}").contains("StartInPlaceUpdate"),
                "nothing restarts, nothing is taken out of service"
            );
            assert_eq!(world.status()["currentRevision"], world.status()["updateRevision"]);
            assert!(after.iter().all(|pod| pod["metadata"]["labels"]["lifecycle.apps.kruise.io/state"] == "Normal"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_resize_that_goes_on_is_looked_at_again_because_its_end_may_wake_nobody() {
    let world = World::with_gates(&["InPlaceWorkloadVerticalScaling=true"]);
    let container = |cpu: &str| {
        let resources = json!({"requests": {"cpu": cpu}});
        let containers = json!([{"name": "main", "image": "i:1", "resources": resources}]);
        json!({"replicas": 1, "template": {"spec": {"containers": containers}}})
    };
    // Once more when the status, which could wait, is due.
    let settle_all = async || {
        world.settle().await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        world.settle().await.unwrap()
    };
    let state = || world.pods()[0]["metadata"]["labels"]["lifecycle.apps.kruise.io/state"].clone();
    world.put_clone_set(container("100m"));
    world.go_on().await;
    assert_eq!(settle_all().await, Requeue::Await, "nothing waits");
    world.put_clone_set(container("200m"));
    for _ in 0..2 {
        assert_eq!((settle_all().await, state()), (Requeue::After(RESIZE_LOOK), json!("Updating")));
    }
    world.play();
    assert_eq!((settle_all().await, state()), (Requeue::Await, json!("Normal")));
}

#[tokio::test]
async fn gate_recreate_on_claim_change_replaces_pods_at_the_next_change_of_the_template() {
    for gates in [&["RecreatePodWhenChangeVCTInCloneSetGate=true"][..], &[][..]] {
        let world = World::with_gates(gates);
        let claims = |size: &str| json!([{"metadata": {"name": "data"}, "spec": {"x": size}}]);
        world.put_clone_set(json!({"replicas": 1, "volumeClaimTemplates": claims("1")}));
        world.go_on().await;
        let before = world.pods();
        world.put_clone_set(json!({"volumeClaimTemplates": claims("2")}));
        world.go_on().await;
        assert_eq!(ups(&world.pods()), ups(&before), "case 23: claims alone change no Pod");
        world.put_clone_set(
            json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2", "newField": {"a": [1]}}]}}}),
        );
        world.go_on().await;
        assert_eq!(ups(&world.pods()) == ups(&before), gates.is_empty(), "{gates:?}");
        assert_eq!(images(&world.pods()), ["i:2"]);
    }
}

#[tokio::test]
async fn a_pass_that_has_begun_many_updates_leaves_the_others_to_the_next() {
    let world = World::new();
    world.put_clone_set(json!({"replicas": WAVE + 20, "updateStrategy": {"maxUnavailable": "100%"}}));
    world.go_on().await;
    world.put_clone_set(
        json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2", "newField": {"a": [1]}}]}}}),
    );
    let updated = || images(&world.pods()).iter().filter(|image| **image == "i:2").count();
    let requeue = world.controller.reconcile(&ObjectKey::new("ns", "web")).await.unwrap();
    assert_eq!((updated(), requeue), (WAVE, Requeue::After(Duration::ZERO)), "room may have been made meanwhile");
    world.settle().await.unwrap();
    assert_eq!(updated(), WAVE + 20);
}

#[tokio::test]
async fn a_grace_period_writes_first_and_changes_later() {
    let world = World::new();
    world
        .put_clone_set(json!({"replicas": 1, "updateStrategy": {"inPlaceUpdateStrategy": {"gracePeriodSeconds": 30}}}));
    world.go_on().await;
    world.put_clone_set(
        json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2", "newField": {"a": [1]}}]}}}),
    );
    let requeue = world.settle().await.unwrap();
    let Requeue::After(wait) = requeue else { panic!("{requeue:?}") };
    assert!(wait <= Duration::from_secs(30), "{wait:?}");
    let pod = world.pods()[0].clone();
    assert_eq!(images(std::slice::from_ref(&pod)), ["i:1"]);
    let grace = pod["metadata"]["annotations"]["apps.kruise.io/inplace-update-grace"].as_str().unwrap();
    assert!(grace.contains(r#""containerImages":{"main":"i:2"}"#) && grace.contains(r#""graceSeconds":30"#), "{grace}");
    assert_eq!(pod["metadata"]["labels"]["lifecycle.apps.kruise.io/state"], "Updating");
}

#[tokio::test]
async fn a_quota_that_is_used_up_is_met_once_and_reported() {
    let world = World::new();
    world.put_clone_set(json!({"replicas": 20}));
    lock(&world.server).faults.push((Method::POST, NAMESPACE.into(), 403));
    assert!(world.settle().await.is_err());
    assert_eq!(world.writes().iter().filter(|w| w.0 == Method::POST && w.1 == NAMESPACE).count(), 1);
    assert_eq!(world.failures(), ["FailedScale"]);
    world.go_on().await;
    assert_eq!(world.pods().len(), 20);
    assert_eq!(world.failures(), [""; 0]);
}

#[tokio::test]
async fn a_namespace_that_is_being_deleted_is_no_failure() {
    let world = World::new();
    world.put_clone_set(json!({}));
    lock(&world.server).ends = true;
    assert_eq!(world.settle().await.unwrap(), Requeue::Await);
    assert_eq!(world.failures(), [""; 0]);
    assert_eq!(world.pods(), Vec::<Value>::new());
}

#[tokio::test]
async fn a_name_that_is_taken_by_other_data_counts_a_collision() {
    let world = World::new();
    world.put_clone_set(json!({}));
    world.settle().await.unwrap();
    let name = world.status()["updateRevision"].as_str().unwrap().to_owned();
    let other = World::new();
    let path = format!("/apis/apps/v1/namespaces/ns/controllerrevisions/{name}");
    let taken = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": name, "namespace": "ns",
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "x", "uid": "y", "controller": true}]},
        "data": {"spec": 1}, "revision": 1});
    lock(&other.server).objects.insert(path, taken);
    other.put_clone_set(json!({}));
    other.settle().await.unwrap();
    assert_eq!(other.status()["collisionCount"], 1);
    assert_ne!(other.status()["updateRevision"], name.as_str());
}

#[tokio::test]
async fn a_revision_whose_name_is_taken_is_used_only_if_it_is_ours_or_nobodys() {
    let world = World::new();
    world.put_clone_set(json!({}));
    world.settle().await.unwrap();
    let name = world.status()["updateRevision"].as_str().unwrap().to_owned();
    let path = format!("/apis/apps/v1/namespaces/ns/controllerrevisions/{name}");
    let made = lock(&world.server).objects[&path].clone();
    let data = made["data"].clone();
    let namesake = json!([{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web", "uid": "before", "controller": true}]);
    let ending = "2026-01-01T00:00:00Z";
    for (case, metadata, want) in [
        ("ours", json!({}), Some((true, 0))),
        ("a namesake's", json!({"ownerReferences": namesake}), Some((false, 1))),
        (
            "a namesake's that is going",
            json!({"ownerReferences": namesake, "deletionTimestamp": ending}),
            Some((false, 1)),
        ),
        ("nobody's", json!({"ownerReferences": null}), Some((true, 0))),
        ("ours that is going", json!({"deletionTimestamp": ending}), None),
        ("nobody's that is going", json!({"ownerReferences": null, "deletionTimestamp": ending}), None),
    ] {
        let mut there = made.clone();
        json_patch::merge(&mut there["metadata"], &metadata);
        {
            let mut server = lock(&world.server);
            server.objects.retain(|path, _| !path.contains("controllerrevisions"));
            server.objects.insert(path.clone(), there);
        }
        let job = world.job();
        let found = world.controller.revisions.make(&revisions::history(&job), &data, 1, 0).await;
        let found = found.map(|(known, collisions)| (known.name == name, collisions));
        assert_eq!(found.as_ref().ok(), want.as_ref(), "{case}: {found:?}");
        if want.is_none() {
            assert_eq!(found.as_ref().err().and_then(code), Some(409), "{case}");
        }
        if want == Some((true, 0)) {
            let owner = lock(&world.server).objects[&path]["metadata"]["ownerReferences"][0]["uid"].clone();
            assert_eq!(owner, job.owner.uid, "{case}");
        }
    }
}

/// A large CloneSet whose Pods have got nodes, before a pass has looked at them.
async fn bound_pods() -> (World, Vec<ObjectKey>) {
    let world = World::new();
    world.put_clone_set(json!({"replicas": 100}));
    world.settle().await.unwrap();
    world.writes();
    world.play();
    let keys: Vec<ObjectKey> = world.controller.context.pods.list().iter().map(|pod| ObjectKey::of(&**pod)).collect();
    assert_eq!(keys.len(), 100);
    (world, keys)
}

#[tokio::test]
async fn a_pod_of_a_large_clone_set_gets_its_first_state_without_a_pass() {
    let (world, keys) = bound_pods().await;
    let controller = &world.controller;
    assert_eq!(controller.refresh_pod(&keys[7]).await.unwrap(), Requeue::After(Duration::ZERO));
    assert_eq!(controller.refresh_pod(&keys[7]).await.unwrap(), Requeue::Await, "once");
    let writes = world.writes();
    let paths: Vec<&str> = writes.iter().map(|(_, path, _)| path.as_str()).collect();
    assert_eq!(paths, [format!("{NAMESPACE}/{}/status", keys[7].name)]);
    assert_eq!(writes[0].2["metadata"]["labels"]["lifecycle.apps.kruise.io/state"], "Normal");
    world.settle().await.unwrap();
    let again = world.writes().iter().filter(|(_, path, _)| path.starts_with(paths[0])).count();
    assert_eq!(again, 0, "the pass finds it as it is");
}

#[tokio::test]
async fn a_pass_leaves_the_pods_of_a_large_clone_set_to_their_own_queue() {
    let (world, keys) = bound_pods().await;
    let controller = &world.controller;
    let before = controller.pod_queue.depth();
    let requeue = controller.reconcile(&ObjectKey::of(controller.clone_sets.list()[0].as_ref())).await.unwrap();
    assert!(!world.writes().iter().any(|(_, path, _)| path.starts_with(NAMESPACE) && path.ends_with("/status")));
    assert_eq!((before, controller.pod_queue.depth()), (0, keys.len()));
    assert_ne!(requeue, Requeue::After(AFTER_CONFLICT), "nor does it look again for their sake");
}

#[tokio::test]
async fn the_pods_of_a_large_clone_set_wait_for_no_revision_that_cannot_be_made() {
    let (world, keys) = bound_pods().await;
    lock(&world.server).refused.insert("/apis/apps/v1/namespaces/ns/controllerrevisions".into());
    world.put_clone_set(json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2"}]}}}));
    assert!(world.settle().await.is_err());
    let writes = world.writes();
    let of_pods = writes.iter().filter(|(_, path, _)| path.starts_with(NAMESPACE) && path.ends_with("/status"));
    assert_eq!(of_pods.count(), keys.len());
}

#[tokio::test]
async fn nobody_writes_a_pod_that_somebody_else_is_writing() {
    let (world, keys) = bound_pods().await;
    let controller = &world.controller;
    let pod = controller.context.pods.get(&keys[7]).unwrap();
    let held = controller.pods.hold(&pod).unwrap();
    assert!(controller.pods.hold(&pod).is_none());
    assert_eq!(controller.refresh_pod(&keys[7]).await.unwrap(), Requeue::After(AFTER_CONFLICT));
    assert!(world.writes().is_empty());
    drop(held);
    controller.refresh_pod(&keys[7]).await.unwrap();
    assert!(controller.pods.hold(&pod).is_none(), "it is not the version any more that was looked at");
}

#[tokio::test]
async fn news_of_a_large_clone_set_wakes_the_pod_at_once_and_the_pass_later() {
    let (world, keys) = bound_pods().await;
    let controller = &world.controller;
    let pod = controller.context.pods.get(&keys[7]).unwrap();
    let depths = || (controller.queue.depth(), controller.pod_queue.depth());
    let before = depths();
    controller.pod_changed(&Change::Applied { old: None, new: &pod, initial: false });
    assert_eq!(depths(), (before.0, before.1 + 1));
    controller.memories.all().clear();
    controller.pod_changed(&Change::Applied { old: None, new: &pod, initial: false });
    assert_eq!(depths(), (before.0 + 1, before.1 + 1), "a small one has a pass at once");
}

#[tokio::test]
async fn what_was_found_of_pods_is_true_of_the_spec_it_was_found_for() {
    let (world, _) = bound_pods().await;
    let name = world.pods()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let set = |changes| {
        world.put_clone_set(changes);
        let job = world.job();
        world.controller.memories.enter(&job.key, &job.owner.uid);
        let seen = world.controller.see(&job);
        assert!(seen.pods.iter().zip(world.controller.see(&job).pods).all(|(a, b)| Arc::ptr_eq(a, &b)), "found once");
        seen.pods.iter().filter(|pod| pod.is_specified).map(|pod| pod.facts.name.clone()).collect::<Vec<_>>()
    };
    assert!(set(json!({"replicas": 100})).is_empty());
    assert_eq!(set(json!({"replicas": 100, "scaleStrategy": {"podsToDelete": [name]}})), [name]);
}

#[tokio::test]
async fn what_is_found_again_at_once_is_not_remembered() {
    let world = World::new();
    world.put_clone_set(json!({"replicas": 99}));
    world.settle().await.unwrap();
    assert_eq!(world.controller.see(&world.job()).pods.len(), 99);
    assert!(!world.controller.memories.has_found());
}

impl World {
    fn put_budget(&self, spec: Value) {
        let path = "/apis/policy.kruise.io/v1alpha1/namespaces/ns/podunavailablebudgets/b";
        let mut server = lock(&self.server);
        server.version += 1;
        // One that was deleted does not come back under its UID.
        let known = server.objects.get(path).and_then(|budget| budget["metadata"]["uid"].as_str().map(str::to_owned));
        let uid = known.unwrap_or_else(|| format!("budget-{}", server.version));
        let budget = json!({"apiVersion": "policy.kruise.io/v1alpha1", "kind": "PodUnavailableBudget",
            "metadata": {"name": "b", "namespace": "ns", "uid": uid, "generation": server.version, "resourceVersion": server.version.to_string()},
            "spec": spec});
        server.objects.insert(path.into(), budget);
    }

    /// Names of the Pods whose image was changed, and of those that were deleted.
    fn touched(&self) -> (Vec<String>, Vec<String>) {
        let name = |path: &str| path.strip_prefix(NAMESPACE).map(|name| name.trim_start_matches('/').to_owned());
        let (mut updated, mut deleted) = (Vec::new(), Vec::new());
        for (method, path, body) in self.writes() {
            let Some(name) = name(&path) else { continue };
            if method == Method::DELETE {
                deleted.push(name);
            } else if body["spec"]["containers"].is_array() && method == Method::PATCH {
                updated.push(name);
            }
        }
        (updated, deleted)
    }
}

/// A budget is asked again after a second.
fn is_soon(next: Requeue) -> bool {
    matches!(next, Requeue::After(after) if !after.is_zero() && after <= AFTER_REFUSAL)
}

#[tokio::test]
async fn shortfall_17_a_pod_that_its_budget_keeps_does_not_keep_the_others() {
    let world = World::with_gates(&["PodUnavailableBudgetUpdateGate=true"]);
    world.put_clone_set(json!({"replicas": 3, "updateStrategy": {"maxUnavailable": 3}}));
    world.go_on().await;
    let kept = world.pods()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    {
        let mut server = lock(&world.server);
        server.objects.get_mut(&format!("{NAMESPACE}/{kept}")).unwrap()["metadata"]["labels"]["tier"] = "db".into();
    }
    world.play();
    world.writes();
    world.put_budget(json!({"selector": {"matchLabels": {"tier": "db"}}, "minAvailable": 1}));
    world.put_clone_set(
        json!({"template": {"spec": {"containers": [{"name": "main", "image": "i:2", "newField": {"a": [1]}}]}}}),
    );
    let next = world.settle().await.unwrap();
    assert!(is_soon(next), "{next:?}");
    let (updated, _) = world.touched();
    assert_eq!(updated.len(), 2);
    assert!(!updated.contains(&kept));

    world.put_budget(json!({"selector": {"matchLabels": {"tier": "db"}}, "minAvailable": 0}));
    world.go_on().await;
    assert_eq!(world.touched().0, [kept], "it follows when it may");
}

#[tokio::test]
async fn deletions_keep_to_the_budget_without_a_failure() {
    let world = World::new();
    world.put_clone_set(json!({"replicas": 3, "updateStrategy": {"maxUnavailable": 3}}));
    world.go_on().await;
    world.writes();
    world.put_budget(json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1}));
    let all: Vec<Value> = world.pods().iter().map(|pod| pod["metadata"]["name"].clone()).collect();
    world.put_clone_set(json!({"scaleStrategy": {"podsToDelete": all}}));
    let next = world.settle().await.unwrap();
    assert_eq!(world.touched().1.len(), 1);
    assert!(is_soon(next), "{next:?}");
    assert_eq!(world.failures(), [""; 0], "waiting is no failure");
    let ready = &world.status()["conditions"][0];
    assert_eq!((&ready["type"], &ready["reason"]), (&json!("Ready"), &json!("WaitsForBudget")));
}
