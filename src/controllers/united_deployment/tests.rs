//! The controller against an API server in memory, with played workloads.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use axum::http::{Method, request::Parts};
use serde_json::{Value, json};

mod simulation;

use super::*;
use crate::{
    controllers::{fake::Server, in_memory},
    domain::kinds::united_deployment::spec::ChildKind,
    runtime::lock,
};

const RECORDED: &str = include_str!("../../domain/kinds/united_deployment/testdata/recorded.json");

struct World {
    server: Arc<Mutex<Server>>,
    controller: Arc<Controller>,
    namespace: &'static str,
    name: &'static str,
    /// What was written: method and path.
    writes: Arc<Mutex<Vec<String>>>,
    /// The most Pods that were out of service at a time.
    out: usize,
}

fn collection(kind: ChildKind, namespace: &str) -> String {
    format!("/apis/{}/{}/namespaces/{namespace}/{}", kind.group(), kind.version(), kind.plural())
}

impl World {
    fn new(namespace: &'static str, name: &'static str) -> Self {
        let server = Arc::new(Mutex::new(Server::new(|_, _| Ok(()))));
        let writes: Arc<Mutex<Vec<String>>> = Arc::default();
        let (answers, noted) = (server.clone(), writes.clone());
        let context = in_memory::context(move |parts: &Parts, body: &[u8]| {
            if parts.method != Method::GET {
                lock(&noted).push(format!("{} {}", parts.method, parts.uri.path()));
            }
            let (code, mut answer) = lock(&answers).answer(parts, body);
            // Lists of revisions are by label.
            let selects = parts.uri.query().is_some_and(|query| query.contains("app%3Dunited"));
            if let Some(items) = answer["items"].as_array_mut().filter(|_| selects) {
                items.retain(|item| item["metadata"]["labels"]["app"] == "united");
            }
            (code, answer)
        });
        Self { server, controller: Arc::new(Controller::new(&context)), namespace, name, writes, out: 0 }
    }

    fn path(&self) -> String {
        format!("/apis/apps.kruise.io/v1alpha1/namespaces/{}/uniteddeployments/{}", self.namespace, self.name)
    }

    fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace, self.name)
    }

    /// A user applies a spec.
    fn apply(&self, spec: Value) {
        let mut server = lock(&self.server);
        let path = self.path();
        let before = server.objects.get(&path).map(|object| Value::clone(object));
        let mut object = before.unwrap_or_else(|| {
            json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "UnitedDeployment",
                "metadata": {"name": self.name, "namespace": self.namespace, "uid": "u", "generation": 0}, "spec": {}})
        });
        json_patch::merge(&mut object, &spec);
        object["metadata"]["generation"] = (object["metadata"]["generation"].as_i64().unwrap() + 1).into();
        server.put(&path, object);
    }

    /// Watches bring what there is.
    fn deliver(&self) {
        fn fill<K: child::OfKind>(server: &Server, of: &child::OneKind<K>, prefix: &str) {
            let there: BTreeMap<String, Arc<Value>> = server.of(&format!("{prefix}/")).into_iter().collect();
            for held in of.store.list() {
                let key = ObjectKey::of(held.as_ref());
                if !there.contains_key(&format!("{prefix}/{}", key.name)) {
                    of.store.remove(&key, kube::Resource::meta(held.as_ref()).uid.as_deref());
                }
            }
            for object in there.values() {
                of.store.upsert(serde_json::from_value(Value::clone(object)).unwrap());
            }
        }
        let server = lock(&self.server);
        let at = |kind| collection(kind, self.namespace);
        let children = &self.controller.children;
        fill(&server, &children.clone_sets, &at(ChildKind::CloneSet));
        fill(&server, &children.deployments, &at(ChildKind::Deployment));
        fill(&server, &children.stateful_sets, &at(ChildKind::StatefulSet));
        fill(&server, &children.advanced, &at(ChildKind::AdvancedStatefulSet));
        let pods = server.of(&format!("/api/v1/namespaces/{}/pods/", self.namespace));
        for held in self.controller.context.pods.list() {
            if !pods.iter().any(|(path, _)| path.ends_with(&format!("/{}", held.name()))) {
                self.controller.context.pods.remove(&ObjectKey::of(held.as_ref()), Some(held.uid()));
            }
        }
        for (_, pod) in pods {
            self.controller.context.pods.upsert(serde_json::from_value(Value::clone(&pod)).unwrap());
        }
        let object = server.objects[&self.path()].clone();
        self.controller.objects.upsert(serde_json::from_value(Value::clone(&object)).unwrap());
    }

    /// The controllers of CloneSets: one Pod at a time comes up; what may be updated goes down and comes up.
    fn play(&mut self) {
        let mut server = lock(&self.server);
        let sets = server.of(&format!("{}/", collection(ChildKind::CloneSet, self.namespace)));
        let pods_at = format!("/api/v1/namespaces/{}/pods", self.namespace);
        let mut out = 0;
        let uids: Vec<Value> = sets.iter().map(|(_, set)| set["metadata"]["uid"].clone()).collect();
        for (path, pod) in server.of(&format!("{pods_at}/")) {
            if !uids.contains(&pod["metadata"]["ownerReferences"][0]["uid"]) {
                server.remove(&path);
            }
        }
        for (path, set) in sets {
            let (name, labels) =
                (set["metadata"]["name"].as_str().unwrap(), &set["spec"]["template"]["metadata"]["labels"]);
            let replicas = usize::try_from(set["spec"]["replicas"].as_u64().unwrap()).unwrap();
            let kept = usize::try_from(set["spec"]["updateStrategy"]["partition"].as_u64().unwrap_or(0)).unwrap();
            let revision = &labels[labels::UNITED_REVISION];
            let (mut ready, mut updated) = (0, 0);
            for number in 0..replicas.max(20) {
                let at = format!("{pods_at}/{name}-{number}");
                let Some(pod) = server.objects.get(&at).cloned() else {
                    if number < replicas {
                        let owner = json!([{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": name, "uid": set["metadata"]["uid"], "controller": true}]);
                        server.put(&at, json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("{name}-{number}"),
                            "namespace": self.namespace, "labels": labels, "ownerReferences": owner}, "status": {"phase": "Pending"}}));
                    }
                    continue;
                };
                if number >= replicas {
                    server.remove(&at);
                } else if pod["status"]["phase"] == "Pending" {
                    let conditions = json!([{"type": "Ready", "status": "True"}]);
                    server.change(&at, &json!({"status": {"phase": "Running", "conditions": conditions}}));
                    ready += 1;
                } else if pod["metadata"]["labels"][labels::UNITED_REVISION] != *revision && number >= kept {
                    server.change(
                        &at,
                        &json!({"metadata": {"labels": labels}, "status": {"phase": "Pending", "conditions": null}}),
                    );
                    out += 1;
                } else {
                    ready += 1;
                    updated += 1;
                }
            }
            let status = json!({"status": {"replicas": replicas, "readyReplicas": ready, "updatedReplicas": updated}});
            server.change(&path, &status);
        }
        self.out = self.out.max(out);
    }

    /// Passes, played workloads and time, until nothing is left to do.
    async fn settle(&mut self) {
        for _ in 0..40 {
            self.deliver();
            // A refusal backs off; here it is tried again.
            let _ = self.controller.reconcile(&self.key()).await;
            self.play();
            tokio::time::advance(Duration::from_secs(2)).await;
        }
    }

    fn children(&self, kind: ChildKind) -> Vec<Value> {
        let found = lock(&self.server).of(&format!("{}/", collection(kind, self.namespace)));
        found.iter().map(|(_, object)| Value::clone(object)).collect()
    }

    fn replicas(&self, kind: ChildKind) -> BTreeMap<String, i64> {
        let of = |set: &Value| {
            (
                set["metadata"]["labels"][labels::SUBSET_NAME].as_str().unwrap().to_owned(),
                set["spec"]["replicas"].as_i64().unwrap(),
            )
        };
        self.children(kind).iter().map(of).collect()
    }

    fn status(&self) -> Value {
        lock(&self.server).objects[&self.path()]["status"].clone()
    }

    fn condition(&self, type_: &str) -> Value {
        let status = self.status();
        let all = status["conditions"].as_array().unwrap();
        all.iter().find(|condition| condition["type"] == type_).cloned().unwrap_or_default()
    }

    fn revisions(&self) -> Vec<Value> {
        let at = format!("/apis/apps/v1/namespaces/{}/controllerrevisions/", self.namespace);
        lock(&self.server).of(&at).iter().map(|(_, object)| Value::clone(object)).collect()
    }
}

fn spec(image: &str) -> Value {
    json!({"spec": {"replicas": 6, "selector": {"matchLabels": {"app": "web"}},
        "template": {"cloneSetTemplate": {"metadata": {"labels": {"app": "web"}}, "spec": {"newer": {"x": 1}, "template":
            {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": image}], "newer": 2}}}}},
        "topology": {"subsets": [{"name": "a", "replicas": 2}, {"name": "b"}]}}})
}

fn subsets(names: &[(&str, i64)]) -> BTreeMap<String, i64> {
    names.iter().map(|(name, replicas)| ((*name).to_owned(), *replicas)).collect()
}

#[tokio::test(start_paused = true)]
async fn each_subset_gets_its_workload_and_then_nothing_more_is_written() {
    let mut world = World::new("ns", "web");
    world.apply(spec("i:1"));
    world.settle().await;
    assert_eq!(world.replicas(ChildKind::CloneSet), subsets(&[("a", 2), ("b", 4)]));
    let made = &world.children(ChildKind::CloneSet)[0];
    assert_eq!((&made["spec"]["newer"], &made["spec"]["template"]["spec"]["newer"]), (&json!({"x": 1}), &json!(2)));
    assert!(made["metadata"]["name"].as_str().unwrap().starts_with("web-a-"));
    let status = world.status();
    for (count, wanted) in [
        ("replicas", 6),
        ("readyReplicas", 6),
        ("updatedReplicas", 6),
        ("updatedReadyReplicas", 6),
        ("observedGeneration", 1),
        ("reservedPods", 0),
    ] {
        assert_eq!(status[count], wanted, "{count}");
    }
    assert_eq!(status["currentRevision"], status["updateStatus"]["updatedRevision"]);
    for type_ in ["Ready", "UnitedDeploymentUpdated", "SubsetProvisioned", "SubsetUpdated"] {
        assert_eq!(world.condition(type_)["status"], "True", "{type_}");
    }
    lock(&world.writes).clear();
    world.settle().await;
    assert_eq!(*lock(&world.writes), Vec::<String>::new());
    // A manager that starts anew reads what there is, and writes nothing.
    world.controller.memories.clear();
    world.settle().await;
    assert_eq!(*lock(&world.writes), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn takeover_of_recorded_objects_writes_to_no_workload_and_no_pod() {
    let recorded: Value = serde_json::from_str(RECORDED).unwrap();
    let mut world = World::new("golden", "united");
    {
        let mut server = lock(&world.server);
        let put = |server: &mut Server, at: &str, object: &Value| {
            let name = object["metadata"]["name"].as_str().unwrap();
            server.put(&format!("{at}/{name}"), object.clone());
        };
        put(
            &mut server,
            "/apis/apps.kruise.io/v1alpha1/namespaces/golden/uniteddeployments",
            &recorded["unitedDeployment"],
        );
        for set in recorded["cloneSets"].as_array().unwrap() {
            put(&mut server, &collection(ChildKind::CloneSet, "golden"), set);
        }
        for pod in recorded["pods"].as_array().unwrap() {
            put(&mut server, "/api/v1/namespaces/golden/pods", pod);
        }
        put(&mut server, "/apis/apps/v1/namespaces/golden/controllerrevisions", &recorded["revision"]);
    }
    for _ in 0..5 {
        world.deliver();
        let _ = world.controller.reconcile(&world.key()).await;
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    let writes = lock(&world.writes).clone();
    let of = |what: &str| writes.iter().filter(|write| write.contains(what)).count();
    assert_eq!((of("clonesets"), of("/pods")), (0, 0), "{writes:?}");
    let [revision] = &world.revisions()[..] else { panic!() };
    assert_eq!((&revision["data"], &revision["revision"]), (&recorded["revision"]["data"], &json!(1)));
    assert_eq!(
        revision["metadata"]["labels"],
        json!({"app": "united", "controller.kubernetes.io/hash": "b5dd48547"}),
        "it is found again"
    );
    assert_eq!(world.condition("Ready")["status"], "True");
    world.out = 0;
}

#[tokio::test(start_paused = true)]
async fn shortfall_revisions_are_labelled_found_again_and_trimmed() {
    let mut world = World::new("ns", "web");
    for (image, count) in [("i:1", 1), ("i:2", 2), ("i:3", 2), ("i:2", 2)] {
        let mut wanted = spec(image);
        wanted["spec"]["revisionHistoryLimit"] = 1.into();
        world.apply(wanted);
        world.settle().await;
        assert_eq!(world.revisions().len(), count, "{image}");
        assert_eq!(world.condition("UnitedDeploymentUpdated")["status"], "True");
        let images: Vec<Value> = world
            .children(ChildKind::CloneSet)
            .iter()
            .map(|set| set["spec"]["template"]["spec"]["containers"][0]["image"].clone())
            .collect();
        assert_eq!(images, [image; 2]);
    }
    assert!(world.revisions().iter().all(|revision| revision["metadata"]["labels"]["app"] == "web"));
}

#[tokio::test(start_paused = true)]
async fn a_revision_that_is_not_the_current_one_any_more_goes_without_another_event() {
    let mut world = World::new("ns", "web");
    let wanted = |image: &str| {
        let mut wanted = spec(image);
        wanted["spec"]["revisionHistoryLimit"] = 0.into();
        wanted
    };
    world.apply(wanted("i:1"));
    world.settle().await;
    world.apply(wanted("i:2"));
    let mut next = Ok(Requeue::Await);
    for _ in 0..20 {
        world.deliver();
        next = world.controller.reconcile(&world.key()).await;
        if world.condition("UnitedDeploymentUpdated")["status"] == "True" {
            break;
        }
        world.play();
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    assert_eq!((next.unwrap(), world.revisions().len()), (Requeue::After(Duration::ZERO), 2));
    assert_eq!(world.controller.reconcile(&world.key()).await.unwrap(), Requeue::Await);
    assert_eq!(world.revisions().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_budget_of_the_whole_is_never_exceeded() {
    let mut world = World::new("ns", "web");
    let mut wanted = spec("i:1");
    wanted["metadata"]["annotations"][labels::UNITED_MAX_UNAVAILABLE] = "2".into();
    world.apply(wanted.clone());
    world.settle().await;
    world.out = 0;
    wanted["spec"]["template"]["cloneSetTemplate"]["spec"]["template"]["spec"]["containers"][0]["image"] = "i:2".into();
    world.apply(wanted);
    world.settle().await;
    assert!((1..=2).contains(&world.out), "{}", world.out);
    assert_eq!(world.status()["updatedReadyReplicas"], 6);
    assert_eq!(world.condition("Ready")["status"], "True");
    assert_eq!(world.status()["updateStatus"]["currentPartitions"], json!({"a": 0, "b": 0}));
}

#[tokio::test(start_paused = true)]
async fn a_subset_that_is_removed_or_renamed_goes_when_the_others_have_its_pods() {
    let mut world = World::new("ns", "web");
    world.apply(spec("i:1"));
    world.settle().await;
    let mut renamed = spec("i:1");
    renamed["spec"]["topology"]["subsets"][1]["name"] = "c".into();
    world.apply(renamed);
    world.deliver();
    let _ = world.controller.reconcile(&world.key()).await;
    assert_eq!(
        world.replicas(ChildKind::CloneSet),
        subsets(&[("a", 2), ("b", 4), ("c", 4)]),
        "not before the others are there"
    );
    world.settle().await;
    assert_eq!(world.replicas(ChildKind::CloneSet), subsets(&[("a", 2), ("c", 4)]));
    assert_eq!(world.status()["subsetStatuses"].as_array().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn edge_d3_a_refusal_is_said_and_tried_again() {
    let mut world = World::new("ns", "web");
    lock(&world.server).faults.extend([crate::controllers::fake::Fault::Error(403); 3]);
    world.apply(spec("i:1"));
    world.deliver();
    world.controller.reconcile(&world.key()).await.unwrap_err();
    world.settle().await;
    assert_eq!(world.replicas(ChildKind::CloneSet), subsets(&[("a", 2), ("b", 4)]));
    assert_eq!(
        (world.condition("SubsetProvisioned")["status"].clone(), world.condition("SubsetFailure")),
        (json!("True"), Value::Null)
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_behind_makes_no_second_workload() {
    let mut world = World::new("ns", "web");
    world.apply(spec("i:1"));
    world.settle().await;
    // A new manager whose watch has not brought the workloads yet.
    let other = World::new("ns", "web");
    let context = Context { client: world.controller.context.client.clone(), ..other.controller.context.clone() };
    world.controller = Arc::new(Controller::new(&context));
    let object = lock(&world.server).objects[&world.path()].clone();
    world.controller.objects.upsert(serde_json::from_value(Value::clone(&object)).unwrap());
    let _ = world.controller.reconcile(&world.key()).await;
    assert_eq!(world.children(ChildKind::CloneSet).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn numbers_that_do_not_fit_are_said_and_nothing_is_changed() {
    let mut world = World::new("ns", "web");
    world.apply(spec("i:1"));
    world.settle().await;
    world.apply(json!({"spec": {"replicas": 1}}));
    world.settle().await;
    assert_eq!(world.replicas(ChildKind::CloneSet), subsets(&[("a", 2), ("b", 4)]));
    assert_eq!(world.condition("Stalled")["status"], "True");
    world.apply(json!({"spec": {"replicas": 3}}));
    world.settle().await;
    assert_eq!(world.replicas(ChildKind::CloneSet), subsets(&[("a", 2), ("b", 1)]));
    assert_eq!(world.condition("Ready")["status"], "True");
}
