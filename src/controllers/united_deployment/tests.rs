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
    /// Paths that were read.
    reads: Arc<Mutex<Vec<String>>>,
    /// The most Pods that were out of service at a time.
    out: usize,
}

fn collection(kind: ChildKind, namespace: &str) -> String {
    format!("/apis/{}/{}/namespaces/{namespace}/{}", kind.group(), kind.version(), kind.plural())
}

impl World {
    fn new(namespace: &'static str, name: &'static str) -> Self {
        let server = Arc::new(Mutex::new(Server::new(|_, _| Ok(()))));
        let (writes, reads) = <[Arc<Mutex<Vec<String>>>; 2]>::default().into();
        let (answers, written, read) = (server.clone(), writes.clone(), reads.clone());
        let context = in_memory::context(move |parts: &Parts, body: &[u8]| {
            match parts.method == Method::GET {
                true => lock(&read).push(parts.uri.path().to_owned()),
                false => lock(&written).push(format!("{} {}", parts.method, parts.uri.path())),
            }
            let (code, mut answer) = lock(&answers).answer(parts, body);
            // Lists of revisions are by label.
            let selects = parts.uri.query().is_some_and(|query| query.contains("app%3Dunited"));
            if let Some(items) = answer["items"].as_array_mut().filter(|_| selects) {
                items.retain(|item| item["metadata"]["labels"]["app"] == "united");
            }
            (code, answer)
        });
        Self { server, controller: Arc::new(Controller::new(&context)), namespace, name, writes, reads, out: 0 }
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
    assert!(of("/status") <= 1, "its own: {writes:?}");
    let [revision] = &world.revisions()[..] else { panic!() };
    assert_eq!((&revision["data"], &revision["revision"]), (&recorded["revision"]["data"], &json!(1)));
    assert_eq!(revision["metadata"]["labels"], json!({"controller.kubernetes.io/hash": "b5dd48547"}));
    assert_eq!(of("controllerrevisions"), 0, "nor to a revision: {writes:?}");
    assert_eq!(world.condition("Ready")["status"], "True");
    // With another one it gets the labels by which it is found again, and trimmed later.
    let changed = json!({"metadata": {"annotations": {"changed": "1"}}});
    world.apply(json!({"spec": {"template": {"cloneSetTemplate": {"spec": {"template": changed}}}}}));
    world.deliver();
    let _ = world.controller.reconcile(&world.key()).await;
    let revisions = world.revisions();
    assert_eq!(revisions.len(), 2, "{revisions:?}");
    assert!(revisions.iter().all(|revision| revision["metadata"]["labels"]["app"] == "united"), "{revisions:?}");
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

/// All Pods have the label of the revision, those with the old patch too: the revision of the workload tells them apart.
#[tokio::test(start_paused = true)]
async fn a_changed_patch_keeps_the_budget_while_its_first_pod_is_down() {
    let mut world = World::new("ns", "web");
    let mut wanted = spec("i:1");
    wanted["metadata"]["annotations"][labels::UNITED_MAX_UNAVAILABLE] = "1".into();
    world.apply(wanted.clone());
    world.settle().await;
    wanted["spec"]["topology"]["subsets"][1]["patch"] = json!({"metadata": {"annotations": {"patched": "1"}}});
    world.apply(wanted);
    world.deliver();
    let _ = world.controller.reconcile(&world.key()).await;
    let sets = lock(&world.server).of(&format!("{}/", collection(ChildKind::CloneSet, "ns")));
    let (set, _) = sets.iter().find(|(_, set)| set["metadata"]["labels"][labels::SUBSET_NAME] == "b").unwrap();
    let pods = lock(&world.server).of(&format!("/api/v1/namespaces/ns/pods/{}-", set.rsplit('/').next().unwrap()));
    let ready = |is_ready: bool| {
        let status = if is_ready { "True" } else { "False" };
        json!({"phase": "Running", "conditions": [{"type": "Ready", "status": status}]})
    };
    for (updated, is_ready, partition) in [(0, true, 3), (1, false, 3), (1, true, 2)] {
        let change = json!({"status": {"updateRevision": "web-b-2", "updatedReplicas": updated}});
        lock(&world.server).change(set, &change);
        for (index, (pod, _)) in pods.iter().enumerate() {
            let (hash, is_ready) = if index < updated { ("web-b-2", is_ready) } else { ("web-b-1", true) };
            let labels = json!({labels::CONTROLLER_REVISION_HASH: hash});
            lock(&world.server).change(pod, &json!({"metadata": {"labels": labels}, "status": ready(is_ready)}));
        }
        world.deliver();
        let _ = world.controller.reconcile(&world.key()).await;
        let now = Value::clone(&lock(&world.server).objects[set]);
        assert_eq!(now["spec"]["updateStrategy"]["partition"], partition, "{updated} updated, ready: {is_ready}");
    }
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

/// The controllers of CloneSets and kubelets, where so many Pods of subset a find a place. Returns how many Pods are ready.
fn play_places(world: &World, places: usize) -> usize {
    let mut server = lock(&world.server);
    let pods_at = format!("/api/v1/namespaces/{}/pods", world.namespace);
    let is_ready = |pod: &Value| pod["status"]["phase"] == "Running";
    let mut all_ready = 0;
    for (path, set) in server.of(&format!("{}/", collection(ChildKind::CloneSet, world.namespace))) {
        let (name, labels) = (&set["metadata"]["name"], &set["spec"]["template"]["metadata"]["labels"]);
        let replicas = usize::try_from(set["spec"]["replicas"].as_u64().unwrap()).unwrap();
        let all = server.of(&format!("{pods_at}/")).into_iter();
        let mut there: Vec<(String, Arc<Value>)> =
            all.filter(|(_, pod)| pod["metadata"]["ownerReferences"][0]["name"] == *name).collect();
        there.sort_by_key(|(_, pod)| !is_ready(pod));
        for (path, _) in there.iter().skip(replicas) {
            server.remove(path);
        }
        let free: Vec<String> = (0..replicas)
            .map(|number| format!("{}-{number}", name.as_str().unwrap()))
            .filter(|pod| !server.objects.contains_key(&format!("{pods_at}/{pod}")))
            .collect();
        for pod in free.into_iter().take(replicas.saturating_sub(there.len())) {
            let owner = json!([{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": name,
                "uid": set["metadata"]["uid"], "controller": true}]);
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "namespace": world.namespace,
                "labels": labels, "ownerReferences": owner}, "status": {"phase": "Pending"}});
            server.put(&format!("{pods_at}/{}", pod["metadata"]["name"].as_str().unwrap()), pod);
        }
        let is_limited = labels[labels::SUBSET_NAME] == "a";
        let mut ready = 0;
        for (path, pod) in there.into_iter().take(replicas) {
            if is_ready(&pod) {
                ready += 1;
                continue;
            }
            let finds_none = is_limited && ready >= places;
            let (phase, type_, status) =
                if finds_none { ("Pending", "PodScheduled", "False") } else { ("Running", "Ready", "True") };
            let condition = json!({"type": type_, "status": status, "reason": if finds_none { "Unschedulable" } else { "" },
                "lastTransitionTime": crate::k8s::time::rfc3339(clock::now().wall)});
            server.change(&path, &json!({"status": {"phase": phase, "conditions": [condition]}}));
            ready += usize::from(!finds_none);
        }
        all_ready += ready;
        let status = json!({"status": {"replicas": replicas, "readyReplicas": ready, "updatedReplicas": replicas}});
        server.change(&path, &status);
    }
    all_ready
}

/// Passes and played Pods for five minutes. Returns the fewest Pods that were ready, and the most that there were.
async fn play_for_minutes(world: &World, places: usize) -> (usize, usize) {
    let (mut fewest, mut most) = (usize::MAX, 0);
    for _ in 0..60 {
        world.deliver();
        let _ = world.controller.reconcile(&world.key()).await;
        fewest = fewest.min(play_places(world, places));
        most = most.max(lock(&world.server).of(&format!("/api/v1/namespaces/{}/pods/", world.namespace)).len());
        tokio::time::advance(Duration::from_secs(5)).await;
    }
    (fewest, most)
}

fn schedulable(world: &World, subset: usize) -> (String, String) {
    let condition = &world.status()["subsetStatuses"][subset]["conditions"][0];
    let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

/// A subset `a` of at most four, and `b`, with Pods reserved that find no place.
fn reserving() -> Value {
    let mut wanted = spec("i:1");
    wanted["spec"]["topology"] = json!({"subsets": [{"name": "a", "maxReplicas": 4}, {"name": "b"}], "scheduleStrategy": {"type": "Adaptive",
        "adaptive": {"reserveUnschedulablePods": true, "rescheduleCriticalSeconds": 30, "unschedulableDuration": 60}}});
    wanted
}

#[tokio::test(start_paused = true)]
async fn a_subset_that_recovers_or_is_added_takes_no_pod_of_others_before_its_own_run() {
    let mut wanted = reserving();
    let world = World::new("ns", "web");
    world.apply(wanted.clone());
    play_for_minutes(&world, 3).await;
    assert_eq!(world.replicas(ChildKind::CloneSet), subsets(&[("a", 4), ("b", 3)]), "one of a finds no place");
    assert_eq!(schedulable(&world, 0), ("False".into(), "reschedule".into()));
    // It grows while it is full: the others get them.
    wanted["spec"]["replicas"] = 10.into();
    wanted["spec"]["topology"]["subsets"][0]["maxReplicas"] = 8.into();
    world.apply(wanted.clone());
    play_for_minutes(&world, 3).await;
    assert_eq!(world.replicas(ChildKind::CloneSet), subsets(&[("a", 4), ("b", 7)]));
    // It has places again.
    let (fewest, most) = play_for_minutes(&world, 20).await;
    assert_eq!(world.replicas(ChildKind::CloneSet), subsets(&[("a", 8), ("b", 2)]));
    assert_eq!((fewest, most), (10, 14), "the new ones run before others go");
    assert_eq!(schedulable(&world, 0), ("True".into(), "reschedule".into()));
    // A subset is added before the others.
    wanted["spec"]["topology"]["subsets"] =
        json!([{"name": "n", "maxReplicas": 3}, {"name": "a", "maxReplicas": 8}, {"name": "b"}]);
    world.apply(wanted);
    world.deliver();
    let _ = world.controller.reconcile(&world.key()).await;
    assert_eq!(schedulable(&world, 0), ("False".into(), "created".into()));
    let (fewest, most) = play_for_minutes(&world, 20).await;
    assert_eq!(world.replicas(ChildKind::CloneSet), subsets(&[("a", 7), ("b", 0), ("n", 3)]));
    assert_eq!((fewest, most), (10, 13));
    assert_eq!(world.status()["reservedPods"], 0);
}

/// The controllers of CloneSets make one Pod of an old revision anew, one that is not Ready before others.
fn roll(world: &World) {
    let mut server = lock(&world.server);
    let pods = server.of(&format!("/api/v1/namespaces/{}/pods/", world.namespace));
    for (_, set) in server.of(&format!("{}/", collection(ChildKind::CloneSet, world.namespace))) {
        let (name, labels) = (&set["metadata"]["name"], &set["spec"]["template"]["metadata"]["labels"]);
        let is_old = |pod: &Value| {
            pod["metadata"]["ownerReferences"][0]["name"] == *name
                && pod["metadata"]["labels"][labels::UNITED_REVISION] != labels[labels::UNITED_REVISION]
        };
        let old = pods.iter().filter(|(_, pod)| is_old(pod));
        if let Some((path, _)) = old.min_by_key(|(_, pod)| pod["status"]["phase"] == "Running") {
            server.remove(path);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn spec_4_5_a_roll_out_ends_while_a_pod_waits_for_a_place() {
    let mut wanted = reserving();
    let world = World::new("ns", "web");
    world.apply(wanted.clone());
    play_for_minutes(&world, 3).await;
    for image in ["i:2", "i:3"] {
        let template = &mut wanted["spec"]["template"]["cloneSetTemplate"]["spec"]["template"];
        template["spec"]["containers"][0]["image"] = image.into();
        world.apply(wanted.clone());
        for step in 0..60 {
            world.deliver();
            let _ = world.controller.reconcile(&world.key()).await;
            if step == 0 {
                assert_eq!(world.condition("UnitedDeploymentUpdated")["status"], "False", "{image}");
            }
            roll(&world);
            play_places(&world, 3);
            tokio::time::advance(Duration::from_secs(5)).await;
        }
        let status = world.status();
        assert_eq!(world.replicas(ChildKind::CloneSet), subsets(&[("a", 4), ("b", 3)]), "{image}");
        assert_eq!((&status["reservedPods"], &status["updatedReadyReplicas"]), (&json!(1), &json!(6)), "{image}");
        assert_eq!(status["currentRevision"], status["updateStatus"]["updatedRevision"], "{image}");
        assert_eq!(world.condition("UnitedDeploymentUpdated")["status"], "True", "{image}");
        assert_eq!(world.condition("Reconciling")["status"], "True", "one still waits");
    }
}

#[tokio::test(start_paused = true)]
async fn shortfall_reservation_treats_no_old_pod_as_timed_out_because_an_older_roll_out_took_long() {
    let mut wanted = reserving();
    let world = World::new("ns", "web");
    world.apply(wanted.clone());
    play_for_minutes(&world, 20).await;
    let mut update = |image: &str| {
        let template = &mut wanted["spec"]["template"]["cloneSetTemplate"]["spec"]["template"];
        template["spec"]["containers"][0]["image"] = image.into();
        world.apply(wanted.clone());
    };
    // Nobody rolls it out.
    update("i:2");
    for _ in 0..60 {
        world.deliver();
        let _ = world.controller.reconcile(&world.key()).await;
        tokio::time::advance(Duration::from_secs(5)).await;
    }
    let pods = || lock(&world.server).of("/api/v1/namespaces/ns/pods/");
    let is_reserved = |pod: &Value| pod["metadata"]["labels"][labels::RESERVED_POD] == "true";
    let reserved = || pods().iter().filter(|(_, pod)| is_reserved(pod)).count();
    let (down, _) = pods().remove(0);
    let conditions = json!([{"type": "Ready", "status": "False"}]);
    lock(&world.server).change(&down, &json!({"status": {"conditions": conditions}}));
    update("i:3");
    world.deliver();
    let next = world.controller.reconcile(&world.key()).await.unwrap();
    assert_eq!(reserved(), 0);
    assert!(matches!(next, Requeue::After(after) if after <= Duration::from_secs(30)), "{next:?}");
    tokio::time::advance(Duration::from_secs(29)).await;
    world.deliver();
    let _ = world.controller.reconcile(&world.key()).await;
    assert_eq!(reserved(), 0);
    tokio::time::advance(Duration::from_secs(2)).await;
    world.deliver();
    let _ = world.controller.reconcile(&world.key()).await;
    assert_eq!(reserved(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_gone_is_not_labelled_again_and_again() {
    let world = World::new("ns", "web");
    world.apply(reserving());
    play_for_minutes(&world, 20).await;
    let (path, _) = lock(&world.server).of("/api/v1/namespaces/ns/pods/").remove(0);
    lock(&world.server).change(&path, &json!({"metadata": {"labels": {labels::RESERVED_POD: null}}}));
    world.deliver();
    // The watch has not brought this yet.
    lock(&world.server).remove(&path);
    lock(&world.writes).clear();
    for _ in 0..3 {
        let _ = world.controller.reconcile(&world.key()).await;
    }
    assert_eq!(lock(&world.writes).iter().filter(|write| write.ends_with(&path)).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn pods_that_find_no_place_move_when_that_is_recorded() {
    let mut wanted = reserving();
    wanted["spec"]["topology"]["scheduleStrategy"]["adaptive"]["reserveUnschedulablePods"] = false.into();
    let world = World::new("ns", "web");
    world.apply(wanted);
    for (passes, is_refused) in [(4, false), (10, true), (2, false)] {
        for _ in 0..passes {
            world.deliver();
            lock(&world.writes).clear();
            if is_refused {
                lock(&world.server).faults.extend([crate::controllers::fake::Fault::Error(500); 9]);
            }
            let _ = world.controller.reconcile(&world.key()).await;
            lock(&world.server).faults.clear();
            let moved = lock(&world.writes).iter().any(|write| write.contains("/clonesets"));
            assert!(!(is_refused && moved), "{:?}", lock(&world.writes));
            play_places(&world, 3);
            tokio::time::advance(Duration::from_secs(5)).await;
        }
        let moves = subsets(if passes == 2 { &[("a", 3), ("b", 3)] } else { &[("a", 4), ("b", 2)] });
        assert_eq!(world.replicas(ChildKind::CloneSet), moves, "{passes}");
    }
    assert_eq!(schedulable(&world, 0), ("False".into(), "reschedule".into()));
}

#[tokio::test(start_paused = true)]
async fn the_pass_that_records_a_verdict_says_what_has_failed_before() {
    let mut wanted = reserving();
    wanted["spec"]["topology"]["scheduleStrategy"]["adaptive"]["reserveUnschedulablePods"] = false.into();
    let world = World::new("ns", "web");
    world.apply(wanted.clone());
    play_for_minutes(&world, 4).await;
    assert_eq!(world.condition("Ready")["status"], "True");
    lock(&world.server).admit_change = |_, before, _| match before["kind"] == "CloneSet" {
        true => Err(403),
        false => Ok(()),
    };
    wanted["spec"]["template"]["cloneSetTemplate"]["spec"]["template"]["spec"]["containers"][0]["image"] = "i:2".into();
    world.apply(wanted);
    // A Pod is lost, and the next one finds no place.
    let pods = lock(&world.server).of("/api/v1/namespaces/ns/pods/");
    let (lost, _) = pods.iter().find(|(_, pod)| pod["metadata"]["labels"][labels::SUBSET_NAME] == "a").unwrap();
    lock(&world.server).remove(lost);
    for pass in 0..20 {
        world.deliver();
        let _ = world.controller.reconcile(&world.key()).await;
        let said = ["SubsetUpdated", "SubsetFailure"].map(|type_| world.condition(type_)["status"].clone());
        assert_eq!(said, ["False", "True"], "pass {pass}");
        assert_eq!(world.condition("Reconciling")["reason"], "FailedWrite", "pass {pass}");
        play_places(&world, 3);
        tokio::time::advance(Duration::from_secs(5)).await;
    }
    assert_eq!(schedulable(&world, 0), ("False".into(), "reschedule".into()));
}

#[tokio::test(start_paused = true)]
async fn a_reserved_pod_of_an_old_revision_that_runs_is_reserved_no_more_while_the_template_is_held() {
    for held in [json!({"paused": true}), json!({"type": "OnDelete"})] {
        let mut wanted = reserving();
        let world = World::new("ns", "web");
        world.apply(wanted.clone());
        play_for_minutes(&world, 3).await;
        assert_eq!(world.status()["reservedPods"], 1);
        let template = &mut wanted["spec"]["template"]["cloneSetTemplate"]["spec"];
        template["template"]["spec"]["containers"][0]["image"] = "i:2".into();
        template["updateStrategy"] = held.clone();
        world.apply(wanted);
        play_for_minutes(&world, 3).await;
        assert_eq!(world.status()["reservedPods"], 1, "{held}: it still waits for a place");
        assert_eq!(world.replicas(ChildKind::CloneSet), subsets(&[("a", 4), ("b", 3)]), "{held}");
        play_for_minutes(&world, 20).await;
        assert_eq!(world.status()["reservedPods"], 0, "{held}: it runs, and gets to no new revision");
        assert_eq!(schedulable(&world, 0), ("True".into(), "reschedule".into()), "{held}");
        assert_eq!(world.replicas(ChildKind::CloneSet), subsets(&[("a", 4), ("b", 2)]), "{held}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reserved_pod_that_a_partition_keeps_on_an_old_revision_is_reserved_no_more_when_it_runs() {
    let mut wanted = reserving();
    let world = World::new("ns", "web");
    world.apply(wanted.clone());
    play_for_minutes(&world, 3).await;
    assert_eq!(world.status()["reservedPods"], 1);
    let template = &mut wanted["spec"]["template"]["cloneSetTemplate"]["spec"]["template"];
    template["spec"]["containers"][0]["image"] = "i:2".into();
    wanted["spec"]["updateStrategy"] = json!({"manualUpdate": {"partitions": {"a": 4, "b": 0}}});
    world.apply(wanted);
    play_for_minutes(&world, 3).await;
    assert_eq!(world.status()["reservedPods"], 1, "it still waits for a place");
    assert_eq!(world.replicas(ChildKind::CloneSet), subsets(&[("a", 4), ("b", 3)]));
    play_for_minutes(&world, 20).await;
    assert_eq!(world.status()["reservedPods"], 0, "it runs, and the partition keeps it where it is");
    assert_eq!(schedulable(&world, 0), ("True".into(), "reschedule".into()));
    assert_eq!(world.replicas(ChildKind::CloneSet), subsets(&[("a", 4), ("b", 2)]));
}

/// The controller of built-in StatefulSets under OrderedReady: in every pass it waits for the first Pod that is not Ready, which
/// one with the image `broken` never becomes.
fn play_ordered(world: &World) {
    let mut server = lock(&world.server);
    for (path, set) in server.of(&format!("{}/", collection(ChildKind::StatefulSet, world.namespace))) {
        let (name, template) = (set["metadata"]["name"].as_str().unwrap(), &set["spec"]["template"]);
        let image = &template["spec"]["containers"][0]["image"];
        let replicas = set["spec"]["replicas"].as_i64().unwrap();
        let at = |number: i64| format!("/api/v1/namespaces/{}/pods/{name}-{number}", world.namespace);
        server.change(&path, &json!({"status": {"updateRevision": image, "replicas": replicas}}));
        let is_ready = |pod: &Value| pod["status"]["phase"] == "Running";
        let first = (0..replicas).find(|number| !server.objects.get(&at(*number)).is_some_and(|pod| is_ready(pod)));
        let image_of = |pod: &Value| pod["spec"]["containers"][0]["image"].clone();
        let Some(first) = first else {
            let outdated = (0..replicas).rev().find(|number| image_of(&server.objects[&at(*number)]) != *image);
            outdated.into_iter().for_each(|number| server.remove(&at(number)));
            continue;
        };
        match server.objects.get(&at(first)).cloned() {
            None => {
                let mut labels = template["metadata"]["labels"].clone();
                labels[labels::CONTROLLER_REVISION_HASH] = image.clone();
                let owner = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": set["metadata"]["uid"], "controller": true}]);
                server.put(&at(first), json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("{name}-{first}"),
                    "namespace": world.namespace, "labels": labels, "ownerReferences": owner}, "spec": template["spec"], "status": {"phase": "Pending"}}));
            }
            Some(pod) if image_of(&pod) != "broken" => {
                let conditions = json!([{"type": "Ready", "status": "True"}]);
                server.change(&at(first), &json!({"status": {"phase": "Running", "conditions": conditions}}));
            }
            Some(_) => {}
        }
    }
}

/// Spec 4.5: under OrderedReady the StatefulSet itself waits for ever.
#[tokio::test(start_paused = true)]
async fn spec_4_5_a_pod_of_a_broken_revision_holds_up_no_built_in_stateful_set() {
    let mut world = World::new("ns", "web");
    send_events(&mut world);
    let with_image = |image: &str| {
        json!({"spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}},
            "template": {"statefulSetTemplate": {"metadata": {"labels": {"app": "web"}}, "spec": {"template":
                {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": image}]}}}}},
            "topology": {"subsets": [{"name": "a"}]}}})
    };
    for (image, wanted) in [("i:1", ["i:1"; 3]), ("broken", ["i:1", "i:1", "broken"]), ("i:2", ["i:2"; 3])] {
        world.apply(with_image(image));
        for _ in 0..16 {
            world.deliver();
            world.controller.reconcile(&world.key()).await.unwrap();
            play_ordered(&world);
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        let pods = lock(&world.server).of("/api/v1/namespaces/ns/pods/");
        let images: Vec<&Value> = pods.iter().map(|(_, pod)| &pod["spec"]["containers"][0]["image"]).collect();
        assert_eq!(images, wanted, "after {image}");
    }
    let deleted =
        lock(&world.writes).iter().filter(|write| write.starts_with("DELETE") && write.contains("/pods/")).count();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((deleted, count(&events(&world), "DeletedStuckPod")), (1, 1));
    assert_eq!(world.controller.metrics.freed.get(), 1);
}

/// Has the events of a world sent. They are objects then.
fn send_events(world: &mut World) {
    let context = &world.controller.context;
    let (events, sent) = crate::runtime::events::Recorder::new(
        context.client.clone(),
        "test",
        "",
        context.metrics.events_dropped.clone(),
    );
    tokio::spawn(sent);
    world.controller = Arc::new(Controller::new(&Context { events, ..context.clone() }));
}

/// The reasons and messages of the events so far.
fn events(world: &World) -> Vec<String> {
    let server = lock(&world.server);
    let all = server.objects.iter().filter(|(path, _)| path.contains("/events/"));
    all.map(|(_, event)| format!("{} {}", event["reason"].as_str().unwrap(), event["message"].as_str().unwrap()))
        .collect()
}

fn count(events: &[String], reason: &str) -> usize {
    events.iter().filter(|event| event.starts_with(reason)).count()
}

#[tokio::test(start_paused = true)]
async fn what_fails_before_anything_is_planned_is_said_once_each_time() {
    let mut world = World::new("ns", "web");
    send_events(&mut world);
    world.apply(spec("i:1"));
    for (path, reason) in [
        ("/apis/apps/v1/namespaces/ns/controllerrevisions", "FailedRevisionProvision"),
        ("/apis/apps.kruise.io/v1alpha1/namespaces/ns/clonesets", "FailedFindSubsets"),
    ] {
        lock(&world.server).unreadable = vec![path];
        for _ in 0..3 {
            world.deliver();
            world.controller.reconcile(&world.key()).await.unwrap_err();
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        let failure = world.condition("SubsetFailure");
        assert_eq!((&failure["status"], &failure["reason"]), (&json!("True"), &json!(reason)));
        assert_eq!(
            (&world.condition("Reconciling")["status"], &world.status()["observedGeneration"]),
            (&json!("True"), &json!(1))
        );
        assert_eq!(world.status()["labelSelector"], "app=web");
    }
    lock(&world.server).unreadable.clear();
    world.settle().await;
    assert_eq!((&world.condition("Ready")["status"], world.condition("SubsetFailure")), (&json!("True"), Value::Null));
    let said = events(&world);
    assert_eq!((count(&said, "FailedRevisionProvision "), count(&said, "FailedFindSubsets ")), (1, 1), "{said:?}");
    // The same happens again.
    let sets = lock(&world.server).of(&format!("{}/", collection(ChildKind::CloneSet, "ns")));
    lock(&world.server).remove(&sets[0].0);
    lock(&world.server).unreadable = vec!["/apis/apps.kruise.io/v1alpha1/namespaces/ns/clonesets"];
    world.deliver();
    world.controller.reconcile(&world.key()).await.unwrap_err();
    lock(&world.server).unreadable.clear();
    world.settle().await;
    assert_eq!(count(&events(&world), "FailedFindSubsets "), 2);
}

#[tokio::test(start_paused = true)]
async fn refused_creations_have_the_event_of_openkruise_and_mere_changes_have_none() {
    let mut world = World::new("ns", "web");
    send_events(&mut world);
    world.apply(spec("i:1"));
    world.settle().await;
    let sets = lock(&world.server).of(&format!("{}/", collection(ChildKind::CloneSet, "ns")));
    lock(&world.server).remove(&sets[0].0);
    lock(&world.server).faults.push_back(crate::controllers::fake::Fault::Error(403));
    world.deliver();
    world.controller.reconcile(&world.key()).await.unwrap_err();
    assert_eq!(world.condition("SubsetProvisioned")["status"], "False");
    world.settle().await;
    world.apply(spec("i:2"));
    world.settle().await;
    let said = events(&world);
    assert_eq!((count(&said, "FailedUpdateSubset "), count(&said, "FailedRevisionProvision ")), (1, 0), "{said:?}");
    let normal: Vec<&String> = said.iter().filter(|event| event.starts_with("SuccessfulUpdateSubset ")).collect();
    assert_eq!(normal.len(), 2, "{said:?}");
    for wanted in ["Create 2 Subset (CloneSet)", "Create 1 Subset (CloneSet)"] {
        assert!(normal.iter().any(|event| event.ends_with(wanted)), "{said:?}");
    }
    // A second workload of a subset goes; the API server refuses that at first.
    let mut second = world.children(ChildKind::CloneSet)[0].clone();
    second["metadata"]["uid"] = "second".into();
    second["metadata"]["name"] = "web-second".into();
    let path = format!("{}/web-second", collection(ChildKind::CloneSet, "ns"));
    lock(&world.server).put(&path, second);
    lock(&world.server).faults.push_back(crate::controllers::fake::Fault::Error(403));
    world.deliver();
    world.controller.reconcile(&world.key()).await.unwrap_err();
    world.settle().await;
    assert_eq!(count(&events(&world), "FailedDeleteDuplicatedSubsets "), 1);
    assert_eq!(world.children(ChildKind::CloneSet).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn creations_start_slowly_and_a_refusal_of_one_keeps_no_other() {
    let mut world = World::new("ns", "web");
    let mut wanted = spec("i:1");
    let all: Vec<Value> = (0..6).map(|number| json!({"name": format!("s{number}")})).collect();
    wanted["spec"]["topology"]["subsets"] = all.into();
    world.apply(wanted);
    world.settle().await;
    let empty = |world: &World| {
        let sets = lock(&world.server).of(&format!("{}/", collection(ChildKind::CloneSet, "ns")));
        sets.iter().for_each(|(path, _)| lock(&world.server).remove(path));
        world.deliver();
        lock(&world.writes).clear();
    };
    for (code, tried) in [(403, 1), (422, 6)] {
        empty(&world);
        // It has grown with those that were created before.
        world.controller.memories.with(&world.key(), |memory| memory.windows = UnitedMemory::default().windows);
        lock(&world.server).faults.push_back(crate::controllers::fake::Fault::Error(code));
        world.controller.reconcile(&world.key()).await.unwrap_err();
        let created = lock(&world.writes)
            .iter()
            .filter(|write| write.starts_with("POST") && write.ends_with("clonesets"))
            .count();
        assert_eq!((created, world.children(ChildKind::CloneSet).len()), (tried, tried - 1), "{code}");
    }
    // What was refused comes last: the first one of the next pass is another one, which succeeds, and no more do.
    empty(&world);
    world.controller.memories.with(&world.key(), |memory| *memory = UnitedMemory::default());
    let refused = crate::controllers::fake::Fault::Error(403);
    let made = crate::controllers::fake::Fault::Error(409);
    for faults in [vec![refused], vec![made, refused, refused, refused]] {
        lock(&world.server).faults.extend(faults);
        world.controller.reconcile(&world.key()).await.unwrap_err();
        lock(&world.server).faults.clear();
    }
    assert_eq!(world.replicas(ChildKind::CloneSet).into_keys().collect::<Vec<_>>(), ["s1"]);
}

#[tokio::test(start_paused = true)]
async fn a_workload_that_nobody_may_change_keeps_no_other_one_from_being_changed() {
    let mut world = World::new("ns", "web");
    world.apply(spec("i:1"));
    world.settle().await;
    lock(&world.server).admit_change = |_, before, _| match before["metadata"]["labels"][labels::SUBSET_NAME] == "a" {
        true => Err(403),
        false => Ok(()),
    };
    let mut wanted = spec("i:2");
    wanted["spec"]["replicas"] = 9.into();
    world.apply(wanted);
    world.settle().await;
    let images = |world: &World| {
        let of = |set: &Value| set["spec"]["template"]["spec"]["containers"][0]["image"].clone();
        world.children(ChildKind::CloneSet).iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(world.replicas(ChildKind::CloneSet), subsets(&[("a", 2), ("b", 7)]));
    assert_eq!(
        (images(&world), world.condition("SubsetUpdated")["status"].clone()),
        (vec![json!("i:1"), json!("i:2")], json!("False"))
    );
    lock(&world.server).admit_change = |_, _, _| Ok(());
    world.settle().await;
    assert_eq!((images(&world), world.condition("Ready")["status"].clone()), (vec![json!("i:2"); 2], json!("True")));
}

#[tokio::test(start_paused = true)]
async fn writes_of_workloads_are_counted_by_what_came_of_them() {
    use crate::controllers::fake::Fault;
    let mut world = World::new("ns", "web");
    let counted = |world: &World, labels: &str, count: u32| {
        let served = world.controller.context.metrics.render().unwrap();
        let (operation, result) = labels.split_once(' ').unwrap();
        let name = "kruise_united_deployment_workload_writes_total";
        let line = format!("{name}{{operation=\"{operation}\",result=\"{result}\"}} {count}");
        assert!(served.lines().any(|of| of == line), "{line}\n{served}");
    };
    world.apply(spec("i:1"));
    world.settle().await;
    counted(&world, "create done", 2);
    // The first one is for the revision, which is made all the same.
    lock(&world.server).faults.extend([Fault::Error(409); 2]);
    world.apply(spec("i:2"));
    world.settle().await;
    counted(&world, "update outdated", 1);
    counted(&world, "update done", 2);
    lock(&world.server).admit_change = |_, before, _| if before["kind"] == "CloneSet" { Err(403) } else { Ok(()) };
    world.apply(spec("i:3"));
    world.deliver();
    world.controller.reconcile(&world.key()).await.unwrap_err();
    counted(&world, "update failed", 2);
    lock(&world.server).admit_change = |_, _, _| Ok(());
    let mut renamed = spec("i:3");
    renamed["spec"]["topology"]["subsets"][1]["name"] = "c".into();
    world.apply(renamed);
    world.settle().await;
    counted(&world, "create done", 3);
    counted(&world, "delete done", 1);
}

#[tokio::test(start_paused = true)]
async fn a_workload_without_the_label_of_its_subset_is_found_and_gets_it_back() {
    // Taken off, overwritten with that of another subset, and of none.
    for label in [json!(null), json!("b"), json!("other")] {
        let mut world = World::new("ns", "web");
        world.apply(spec("i:1"));
        world.settle().await;
        lock(&world.writes).clear();
        let (path, _) = lock(&world.server).of(&format!("{}/", collection(ChildKind::CloneSet, "ns"))).remove(0);
        lock(&world.server).change(&path, &json!({"metadata": {"labels": {labels::SUBSET_NAME: label}}}));
        // A new manager whose watch has not brought it yet.
        world.controller = Arc::new(Controller::new(&world.controller.context));
        let object = lock(&world.server).objects[&world.path()].clone();
        world.controller.objects.upsert(serde_json::from_value(Value::clone(&object)).unwrap());
        let _ = world.controller.reconcile(&world.key()).await;
        assert_eq!(world.children(ChildKind::CloneSet).len(), 2);
        world.settle().await;
        assert_eq!(world.replicas(ChildKind::CloneSet), subsets(&[("a", 2), ("b", 4)]), "{label}");
        let writes = std::mem::take(&mut *lock(&world.writes));
        let touched = |write: &&String| write.starts_with("DELETE") || write.starts_with("POST");
        assert_eq!(writes.iter().find(touched), None, "{label}");
        world.settle().await;
        assert_eq!(*lock(&world.writes), Vec::<String>::new());
    }
}

/// Takes the owners off the objects of a collection, or off some of them.
fn orphan(world: &World, at: &str, is_one: impl Fn(&Value) -> bool) {
    let mut server = lock(&world.server);
    for (path, _) in server.of(&format!("{at}/")).into_iter().filter(|(_, object)| is_one(object)) {
        server.change(&path, &json!({"metadata": {"ownerReferences": null}}));
    }
}

fn is_of_subset_a(set: &Value) -> bool {
    set["metadata"]["labels"][labels::SUBSET_NAME] == "a"
}

/// Writes that create or delete workloads.
fn made_or_deleted(world: &World) -> Vec<String> {
    let is_one = |write: &&String| !write.starts_with("PATCH") && write.contains("/clonesets");
    lock(&world.writes).iter().filter(is_one).cloned().collect()
}

#[tokio::test(start_paused = true)]
async fn orphaned_workloads_are_adopted_and_no_others_are_made_beside_them() {
    let mut world = World::new("ns", "web");
    world.apply(spec("i:1"));
    world.settle().await;
    let uids = |world: &World| {
        let of = |set: &Value| set["metadata"]["uid"].clone();
        world.children(ChildKind::CloneSet).iter().map(of).collect::<Vec<_>>()
    };
    let before = uids(&world);
    // It is deleted with --cascade=orphan, and made again. One workload has an owner that does not control it.
    orphan(&world, &collection(ChildKind::CloneSet, "ns"), |_| true);
    orphan(&world, "/apis/apps/v1/namespaces/ns/controllerrevisions", |_| true);
    let theirs = json!({"apiVersion": "example.com/v1", "kind": "Other", "name": "o", "uid": "o"});
    {
        let mut server = lock(&world.server);
        let (path, _) = server.of(&format!("{}/", collection(ChildKind::CloneSet, "ns"))).remove(0);
        server.change(&path, &json!({"metadata": {"ownerReferences": [theirs.clone()]}}));
        let path = world.path();
        server.change(&path, &json!({"metadata": {"uid": "u2"}, "status": null}));
    }
    send_events(&mut world);
    lock(&world.writes).clear();
    world.settle().await;
    assert_eq!((uids(&world), made_or_deleted(&world)), (before, vec![]));
    for set in world.children(ChildKind::CloneSet) {
        let owners = set["metadata"]["ownerReferences"].as_array().unwrap();
        assert_eq!((&owners[0]["uid"], &owners[0]["controller"]), (&json!("u2"), &json!(true)));
        assert_eq!(owners.get(1), is_of_subset_a(&set).then_some(&theirs));
    }
    assert_eq!(world.condition("Ready")["status"], "True");
    assert_eq!(world.status()["updatedReadyReplicas"], 6);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(count(&events(&world), "Adopted "), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refused_adoption_is_said_and_keeps_nothing_else_from_being_done() {
    let mut world = World::new("ns", "web");
    world.apply(spec("i:1"));
    world.settle().await;
    orphan(&world, &collection(ChildKind::CloneSet, "ns"), is_of_subset_a);
    lock(&world.server).admit_change = |_, before, _| {
        let is_orphan = before["kind"] == "CloneSet" && before["metadata"]["ownerReferences"].is_null();
        if is_orphan { Err(403) } else { Ok(()) }
    };
    world.apply(json!({"spec": {"replicas": 9}}));
    lock(&world.writes).clear();
    world.settle().await;
    assert_eq!(world.replicas(ChildKind::CloneSet), subsets(&[("a", 2), ("b", 7)]));
    assert_eq!(made_or_deleted(&world), Vec::<String>::new());
    assert_eq!(world.condition("SubsetProvisioned")["status"], "False");
    lock(&world.server).admit_change = |_, _, _| Ok(());
    world.settle().await;
    assert_eq!((made_or_deleted(&world), &world.condition("Ready")["status"]), (vec![], &json!("True")));
}

/// It is read anew before anything is adopted: what the garbage collector has just orphaned stays an orphan.
#[tokio::test(start_paused = true)]
async fn nothing_is_adopted_by_an_object_that_is_being_deleted_or_taken_from_another_controller() {
    for is_deleted in [true, false] {
        let mut world = World::new("ns", "web");
        world.apply(spec("i:1"));
        world.settle().await;
        orphan(&world, &collection(ChildKind::CloneSet, "ns"), is_of_subset_a);
        let sets = lock(&world.server).of(&format!("{}/", collection(ChildKind::CloneSet, "ns")));
        let (path, _) = sets.into_iter().find(|(_, set)| is_of_subset_a(set)).unwrap();
        if !is_deleted {
            let other = json!([{"apiVersion": "example.com/v1", "kind": "Other", "name": "o", "uid": "o",
                "controller": true}]);
            lock(&world.server).change(&path, &json!({"metadata": {"ownerReferences": other}}));
        }
        world.deliver();
        if is_deleted {
            let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["orphan"]});
            lock(&world.server).change(&world.path(), &json!({"metadata": deleted}));
        }
        lock(&world.writes).clear();
        let set = || lock(&world.server).objects[&path].clone();
        let before = set();
        let _ = world.controller.reconcile(&world.key()).await;
        assert_eq!(set(), before, "{is_deleted}");
        // Beside one of another controller there is one of ours.
        assert_eq!(made_or_deleted(&world).len(), usize::from(!is_deleted));
    }
}

#[tokio::test(start_paused = true)]
async fn edge_d6_a_first_spec_that_cannot_be_followed_has_its_label_selector() {
    let world = World::new("ns", "web");
    let mut wanted = spec("i:1");
    wanted["spec"]["template"]["deploymentTemplate"] = json!({"spec": {}});
    world.apply(wanted);
    world.deliver();
    world.controller.reconcile(&world.key()).await.unwrap();
    assert_eq!((&world.status()["labelSelector"], &world.status()["collisionCount"]), (&json!("app=web"), &json!(0)));
    assert_eq!(world.condition("Stalled")["reason"], "InvalidSpec");
}

#[tokio::test(start_paused = true)]
async fn edge_d5_a_revision_whose_name_is_taken_has_label_and_name_that_agree() {
    let mut first = World::new("ns", "web");
    first.apply(spec("i:1"));
    first.settle().await;
    assert_eq!(first.status()["collisionCount"], 0, "decision 32");
    let taken = first.revisions()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let mut world = World::new("ns", "web");
    let foreign = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 7, "data": {"of": "somebody else"},
        "metadata": {"name": taken, "namespace": "ns", "uid": "foreign"}});
    lock(&world.server).put(&format!("/apis/apps/v1/namespaces/ns/controllerrevisions/{taken}"), foreign.clone());
    world.apply(spec("i:1"));
    for _ in 0..2 {
        world.settle().await;
        let revisions = world.revisions();
        let ours: Vec<&Value> = revisions.iter().filter(|revision| revision["metadata"]["name"] != *taken).collect();
        let [ours] = ours[..] else { panic!("{revisions:?}") };
        let (name, labels) = (ours["metadata"]["name"].as_str().unwrap(), &ours["metadata"]["labels"]);
        assert_eq!(name, format!("web-{}", labels["controller.kubernetes.io/hash"].as_str().unwrap()));
        for set in world.children(ChildKind::CloneSet) {
            assert_eq!(set["metadata"]["labels"][labels::UNITED_REVISION], name);
            assert_eq!(set["spec"]["template"]["metadata"]["labels"][labels::UNITED_REVISION], name);
        }
        let status = world.status();
        assert_eq!((&status["collisionCount"], &status["currentRevision"]), (&json!(1), &json!(name)));
        let theirs = revisions.iter().find(|revision| revision["metadata"]["name"] == *taken).unwrap();
        assert_eq!((&theirs["data"], &theirs["metadata"]["labels"]), (&foreign["data"], &Value::Null));
        // A manager that starts anew counts it no second time.
        world.controller = Arc::new(Controller::new(&world.controller.context));
    }
}

#[tokio::test(start_paused = true)]
async fn shortfall_lists_are_of_the_namespace_and_the_collision_count_is_kept() {
    let mut first = World::new("ns", "web");
    first.apply(spec("i:1"));
    first.settle().await;
    let taken = first.revisions()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let mut world = World::new("ns", "web");
    let foreign = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 7, "data": {"of": "somebody else"},
        "metadata": {"name": taken, "namespace": "ns", "uid": "foreign"}});
    lock(&world.server).put(&format!("/apis/apps/v1/namespaces/ns/controllerrevisions/{taken}"), foreign);
    for image in ["i:1", "i:2"] {
        world.apply(spec(image));
        world.settle().await;
        assert_eq!(world.status()["collisionCount"], 1, "{image}");
        // A manager that starts anew goes on with the count of the status.
        world.controller = Arc::new(Controller::new(&world.controller.context));
    }
    let revisions = world.revisions();
    let ours = revisions.iter().filter(|of| of["metadata"]["name"] != *taken);
    let names: Vec<(String, &Value)> = ours
        .map(|of| {
            let hash = crate::k8s::revision::hash_of(&of["data"], 1);
            (crate::k8s::revision::name("web", &hash), &of["metadata"]["name"])
        })
        .collect();
    assert!(names.len() == 2 && names.iter().all(|(wanted, name)| *name == wanted), "{names:?}");
    let reads = lock(&world.reads).clone();
    assert!(!reads.is_empty() && reads.iter().all(|path| path.contains("/namespaces/ns/")), "{reads:?}");
}

/// Whoever may create workloads and Pods in another namespace can write the UIDs of others into them.
#[tokio::test(start_paused = true)]
async fn workloads_and_pods_of_another_namespace_count_for_nothing() {
    let mut world = World::new("ns", "web");
    world.apply(spec("i:1"));
    world.settle().await;
    world.deliver();
    lock(&world.writes).clear();
    let foreign = |mut object: Value| {
        object["metadata"]["namespace"] = "other".into();
        object["metadata"]["uid"] = "foreign".into();
        object
    };
    let (_, pod) = lock(&world.server).of("/api/v1/namespaces/ns/pods/").remove(0);
    world.controller.context.pods.upsert(serde_json::from_value(foreign(Value::clone(&pod))).unwrap());
    let set = foreign(world.children(ChildKind::CloneSet).remove(0));
    for set in [None, Some(set)] {
        if let Some(set) = set {
            world.controller.children.put(ChildKind::CloneSet, set).unwrap();
        }
        for _ in 0..3 {
            assert!(world.controller.reconcile(&world.key()).await.is_ok());
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        assert_eq!(*lock(&world.writes), Vec::<String>::new());
    }
}

#[test]
fn the_owner_of_a_pod_is_found_by_the_name_of_its_controller() {
    let children = child::Children::new();
    let owner = json!([{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "UnitedDeployment", "name": "web", "uid": "u", "controller": true}]);
    for (kind, owners) in
        [(ChildKind::Deployment, owner.clone()), (ChildKind::CloneSet, owner), (ChildKind::StatefulSet, Value::Null)]
    {
        let object =
            json!({"metadata": {"name": "web-a-x", "namespace": "ns", "uid": kind.word(), "ownerReferences": owners}});
        children.put(kind, object).unwrap();
    }
    let of = |api_version: &str, kind: &str, name: &str| {
        let owner: crate::k8s::pod::Owner = serde_json::from_value(
            json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": "x", "controller": true}),
        )
        .unwrap();
        children.owner("ns", &owner)
    };
    let web = Some(ObjectKey::new("ns", "web"));
    assert_eq!(of("apps/v1", "ReplicaSet", "web-a-x-5d4f"), web);
    assert_eq!(of("apps.kruise.io/v1alpha1", "CloneSet", "web-a-x"), web);
    for (api_version, kind, name) in [
        ("apps/v1", "ReplicaSet", "web-a-x"),
        ("apps/v1", "ReplicaSet", "web-a-x-5d4f-7"),
        ("apps/v1", "StatefulSet", "web-a-x"),
        ("apps.kruise.io/v1beta1", "StatefulSet", "web-a-x"),
        ("batch/v1", "Job", "web-a-x"),
    ] {
        assert_eq!(of(api_version, kind, name), None, "{kind} {name}");
    }
}
