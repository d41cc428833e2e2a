//! The controller against an API server in memory: counts, records that end, Pods that were missed, takeover, evictions.

use std::sync::Mutex;

use axum::http::{Method, request::Parts};
use serde_json::{Value, json};

use super::*;
use crate::{
    controllers::{fake::Server, in_memory},
    k8s::time::rfc3339,
    runtime::{events::Recorder, lock, watches::StoredObject},
};

mod simulation;

const SPREADS: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/workloadspreads/";
const SETS: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/clonesets/";
const PODS: &str = "/api/v1/namespaces/ns/pods/";
const NODES: &str = "/api/v1/nodes/";
const NOTE: &str = "apps.kruise.io/matched-workloadspread";
const COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// How many more writes a manager makes before its process ends; None: it goes on.
type Lives = Arc<Mutex<Option<usize>>>;

/// Objects, the controller, and what watches have brought to it.
struct World {
    server: Arc<Mutex<Server>>,
    controller: Arc<Controller>,
    /// Writes of Pods.
    pod_writes: Arc<Mutex<Vec<String>>>,
    lives: Lives,
    /// Reasons and messages of events.
    events: Arc<Mutex<Vec<String>>>,
}

fn manager(server: &Arc<Mutex<Server>>, writes: &Arc<Mutex<Vec<String>>>, lives: &Lives) -> Arc<Controller> {
    let (server, writes, lives) = (server.clone(), writes.clone(), lives.clone());
    *lock(&lives) = None;
    let context = in_memory::context(move |parts, body| {
        let path = parts.uri.path();
        if parts.method != Method::GET {
            match &mut *lock(&lives) {
                Some(0) => return (503, json!({"kind": "Status", "status": "Failure", "code": 503})),
                Some(left) => *left -= 1,
                None => {}
            }
            if path.contains("/pods/") {
                lock(&writes).push(path.rsplit("/pods/").next().unwrap().to_owned());
            }
        }
        answer(&mut lock(&server), parts, body)
    });
    Arc::new(Controller::new(&context))
}

/// An object of a kind by configuration.
const DB: &str = "/apis/db.example/v1/namespaces/ns/dbs/db";

/// Evictions delete Pods that are bound to no node: nothing else is ever evicted here.
fn answer(server: &mut Server, parts: &Parts, body: &[u8]) -> (u16, Value) {
    if parts.uri.path() == "/apis/db.example" {
        let served = json!({"groupVersion": "db.example/v1", "version": "v1"});
        return (200, json!({"kind": "APIGroup", "apiVersion": "v1", "name": "db.example", "versions": [served]}));
    }
    if parts.uri.path() == "/apis/db.example/v1" {
        let resource = json!({"name": "dbs", "singularName": "", "namespaced": true, "kind": "Db", "verbs": []});
        return (200, json!({"groupVersion": "db.example/v1", "resources": [resource]}));
    }
    // It serves the kind, and names the object that it does not have.
    if parts.uri.path() == DB && !server.objects.contains_key(DB) {
        let details = json!({"name": "db", "group": "db.example", "kind": "dbs"});
        return (404, json!({"kind": "Status", "status": "Failure", "code": 404, "details": details}));
    }
    let Some(path) = parts.uri.path().strip_suffix("/eviction").filter(|_| parts.method == Method::POST) else {
        return server.answer(parts, body);
    };
    let body: Value = serde_json::from_slice(body).unwrap();
    let failure = |code: u16| {
        (code, json!({"kind": "Status", "status": "Failure", "code": code, "message": format!("code {code}")}))
    };
    let Some(pod) = server.objects.get(path).cloned() else { return failure(404) };
    let asked = &body["deleteOptions"]["preconditions"];
    if ["uid", "resourceVersion"].iter().any(|field| asked[field] != pod["metadata"][field]) {
        return failure(409);
    }
    assert!(pod["spec"]["nodeName"].is_null(), "a Pod that is bound to a node is evicted: {pod}");
    server.acts.note("evicted");
    server.remove(path);
    (201, json!({"kind": "Status", "status": "Success"}))
}

fn set(replicas: i32) -> Value {
    json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet",
        "metadata": {"name": "web", "namespace": "ns"}, "spec": {"replicas": replicas}})
}

fn node(name: &str, zone: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"zone": zone}},
        "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": rfc3339(clock::now().wall)}]}})
}

fn zone(name: &str) -> Value {
    json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [name]}]})
}

/// Two zones, the first with a limit.
fn spread(changes: Value) -> Value {
    let mut spread = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "WorkloadSpread",
        "metadata": {"name": "ws", "namespace": "ns", "generation": 1},
        "spec": {"targetRef": {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web"},
            "subsets": [{"name": "a", "requiredNodeSelectorTerm": zone("a"), "maxReplicas": 2},
                {"name": "b", "requiredNodeSelectorTerm": zone("b"), "patch": {"metadata": {"labels": {"zone": "b"}}}}]}});
    json_patch::merge(&mut spread, &changes);
    spread
}

fn noted(subset: &str) -> Value {
    json!({NOTE: format!("{{\"name\":\"ws\",\"subset\":\"{subset}\"}}")})
}

impl World {
    fn new() -> Self {
        let server = Arc::new(Mutex::new(Server::new(|_, object| {
            object["metadata"]["generation"] = 1.into();
            Ok(())
        })));
        let pod_writes: Arc<Mutex<Vec<String>>> = Arc::default();
        let lives = Lives::default();
        Self { controller: manager(&server, &pod_writes, &lives), server, pod_writes, lives, events: Arc::default() }
    }

    /// Another process, to which watches bring everything that is there.
    fn restart(&mut self) {
        self.controller = manager(&self.server, &self.pod_writes, &self.lives);
        let all: Vec<String> = {
            let mut server = lock(&self.server);
            server.news.clear();
            server.objects.keys().cloned().collect()
        };
        all.iter().for_each(|path| self.deliver(path));
    }

    /// Another process, whose events are kept.
    fn hear_events(&mut self) {
        let (server, events) = (self.server.clone(), self.events.clone());
        let mut context = in_memory::context(move |parts, body| {
            if parts.uri.path().ends_with("/events") {
                let event: Value = serde_json::from_slice(body).unwrap();
                lock(&events).push(format!(
                    "{} {}",
                    event["reason"].as_str().unwrap(),
                    event["message"].as_str().unwrap()
                ));
                return (201, event);
            }
            answer(&mut lock(&server), parts, body)
        });
        let (recorder, send) = Recorder::new(context.client.clone(), "test", "", Default::default());
        tokio::spawn(send);
        context.events = recorder;
        self.controller = Arc::new(Controller::new(&context));
    }

    /// With a CloneSet, a node in each zone and a WorkloadSpread.
    fn with(replicas: i32, changes: Value) -> Self {
        let world = Self::new();
        world.put(&format!("{SETS}web"), set(replicas));
        for name in ["a", "b"] {
            world.put(&format!("{NODES}{name}"), node(name, name));
        }
        world.put(&format!("{SPREADS}ws"), spread(changes));
        world
    }

    fn put(&self, path: &str, object: Value) -> Value {
        lock(&self.server).put(path, object)
    }

    fn change(&self, path: &str, changes: Value) {
        lock(&self.server).change(path, &changes);
    }

    fn get(&self, path: &str) -> Option<Arc<Value>> {
        lock(&self.server).objects.get(path).cloned()
    }

    /// A Pod of the CloneSet on a node, if it has one.
    fn pod(&self, name: &str, on: &str, annotations: Value) {
        let owner = lock(&self.server).objects[&format!("{SETS}web")]["metadata"]["uid"].clone();
        let owner = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web", "uid": owner, "controller": true});
        let mut pod = json!({"metadata": {"name": name, "namespace": "ns", "ownerReferences": [owner], "annotations": annotations},
            "spec": {"containers": [{"name": "main"}]}, "status": {"phase": "Pending"}});
        if !on.is_empty() {
            pod["spec"]["nodeName"] = on.into();
            pod["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        }
        self.put(&format!("{PODS}{name}"), pod);
    }

    /// Delivers one change, as the watch of its kind does. Nobody watches the targets here: they are read.
    fn deliver(&self, path: &str) {
        let now = self.get(path);
        let controller = &self.controller;
        let name = path.rsplit('/').next().unwrap();
        let key = ObjectKey::new(if path.starts_with(NODES) { "" } else { "ns" }, name);
        macro_rules! deliver {
            ($store:expr, $on_change:expr) => {{
                let uid = now.as_ref().map(|now| now["metadata"]["uid"].as_str().unwrap().to_owned());
                if let Some(old) = $store.get(&key).filter(|old| old.object_uid() != uid.as_deref()) {
                    $store.see_gone(&key, old.object_uid(), |change| $on_change(&change));
                }
                if let Some(now) = now {
                    let object = serde_json::from_value(Value::clone(&now)).unwrap();
                    $store.see(object, |change| $on_change(&change));
                }
            }};
        }
        if path.starts_with(SPREADS) {
            deliver!(controller.spreads, |change: &Change<'_, _>| controller.spread_changed(change));
        } else if path.starts_with(PODS) {
            deliver!(controller.context.pods, |change: &Change<'_, _>| controller.pod_changed(change));
        } else if path.starts_with(NODES) {
            deliver!(controller.context.nodes.store(), |_: &Change<'_, _>| ());
        } else if path.starts_with(SETS) {
            let kind = Kind::of("apps.kruise.io", "CloneSet").unwrap();
            controller.target_changed(kind, &key);
        } else if path.starts_with(DEPLOYMENTS) {
            controller.target_changed(Kind::of("apps", "Deployment").unwrap(), &key);
        }
    }

    fn deliver_all(&self) {
        loop {
            let Some(path) = lock(&self.server).news.pop_front() else { break };
            self.deliver(&path);
        }
    }

    async fn reconcile(&self, name: &str) -> kube::Result<Requeue> {
        self.deliver_all();
        self.controller.reconcile(&ObjectKey::new("ns", name)).await
    }

    /// Reconciles until there is nothing to do at once.
    async fn settle(&self, name: &str) -> Requeue {
        for _ in 0..20 {
            match self.reconcile(name).await.unwrap() {
                Requeue::After(after) if after <= Duration::from_secs(1) => tokio::time::advance(after).await,
                requeue if lock(&self.server).news.is_empty() => return requeue,
                _ => {}
            }
        }
        panic!("it does not come to rest");
    }

    fn status(&self, name: &str) -> Value {
        self.get(&format!("{SPREADS}{name}")).map(|spread| spread["status"].clone()).unwrap_or_default()
    }

    /// Replicas and missing replicas of each subset.
    fn counts(&self) -> Vec<(i64, i64)> {
        let number = |subset: &Value, field: &str| subset[field].as_i64().unwrap();
        let subsets = self.status("ws")["subsetStatuses"].as_array().cloned().unwrap_or_default();
        subsets.iter().map(|subset| (number(subset, "replicas"), number(subset, "missingReplicas"))).collect()
    }

    fn reason(&self, name: &str) -> String {
        let conditions = self.status(name)["conditions"].as_array().cloned().unwrap_or_default();
        let true_one = conditions.iter().find(|condition| condition["status"] == "True");
        let text = |c: &Value, field: &str| c[field].as_str().unwrap_or_default().to_owned();
        true_one.map(|c| format!("{} {}", text(c, "type"), text(c, "reason"))).unwrap_or_default()
    }

    fn annotation(&self, pod: &str, key: &str) -> Option<String> {
        self.get(&format!("{PODS}{pod}"))?["metadata"]["annotations"][key].as_str().map(str::to_owned)
    }
}

#[tokio::test(start_paused = true)]
async fn takeover_of_recorded_objects_writes_no_pod() {
    let world = World::new();
    let objects: Vec<Value> = serde_json::from_str(include_str!("testdata/recorded.json")).unwrap();
    for object in objects {
        let plural = match object["kind"].as_str().unwrap() {
            "WorkloadSpread" => "/apis/apps.kruise.io/v1alpha1/namespaces/golden/workloadspreads/",
            "CloneSet" => "/apis/apps.kruise.io/v1alpha1/namespaces/golden/clonesets/",
            _ => "/api/v1/namespaces/golden/pods/",
        };
        let path = format!("{plural}{}", object["metadata"]["name"].as_str().unwrap());
        match object["kind"].as_str().unwrap() {
            "WorkloadSpread" => drop(world.controller.spreads.upsert(serde_json::from_value(object.clone()).unwrap())),
            "Pod" => drop(world.controller.context.pods.upsert(serde_json::from_value(object.clone()).unwrap())),
            _ => {}
        }
        world.put(&path, object);
    }
    let before = world.get("/apis/apps.kruise.io/v1alpha1/namespaces/golden/workloadspreads/spread").unwrap();
    let last = world.put(&format!("{NODES}last"), node("last", "a"));
    // The versions of the fake API server begin anew.
    let fresh = serde_json::from_value(Value::clone(&before)).unwrap();
    world.controller.spreads.remove(&ObjectKey::new("golden", "spread"), None);
    world.controller.spreads.upsert(fresh);
    world.controller.reconcile(&ObjectKey::new("golden", "spread")).await.unwrap();
    assert_eq!(*lock(&world.pod_writes), Vec::<String>::new(), "no Pod is written");
    let after = world.get("/apis/apps.kruise.io/v1alpha1/namespaces/golden/workloadspreads/spread").unwrap();
    for field in ["observedGeneration", "subsetStatuses", "versionedSubsetStatuses"] {
        assert_eq!(after["status"][field], before["status"][field], "{field}");
    }
    assert_eq!(after["spec"], before["spec"]);
    // One write of the status, with our conditions; then it rests.
    let version = |object: &Value| -> u64 { object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap() };
    assert_eq!(version(&after), version(&last) + 1);
    tokio::time::advance(Duration::from_secs(120)).await;
    world.controller.reconcile(&ObjectKey::new("golden", "spread")).await.unwrap();
    let later = world.get("/apis/apps.kruise.io/v1alpha1/namespaces/golden/workloadspreads/spread").unwrap();
    assert_eq!((version(&later), lock(&world.pod_writes).len()), (version(&after), 0));
    assert_eq!(after["status"]["conditions"].as_array().unwrap().len(), 3, "our own");
}

#[tokio::test(start_paused = true)]
async fn pods_are_counted_and_get_their_costs_and_a_second_look_writes_nothing() {
    let world = World::with(3, json!({}));
    for (name, subset) in [("p1", "a"), ("p2", "a"), ("p3", "b")] {
        world.pod(name, subset, noted(subset));
    }
    world.settle("ws").await;
    assert_eq!((world.counts(), world.reason("ws").as_str()), (vec![(2, 0), (1, -1)], "Ready Spread"));
    let costs: Vec<_> = ["p1", "p2", "p3"].iter().map(|pod| world.annotation(pod, COST).unwrap()).collect();
    assert_eq!(costs, ["200", "200", "100"]);
    let version = world.get(&format!("{SPREADS}ws")).unwrap()["metadata"]["resourceVersion"].clone();
    let writes = lock(&world.pod_writes).len();
    tokio::time::advance(Duration::from_secs(120)).await;
    world.settle("ws").await;
    assert_eq!(world.get(&format!("{SPREADS}ws")).unwrap()["metadata"]["resourceVersion"], version);
    assert_eq!(lock(&world.pod_writes).len(), writes);
}

#[tokio::test(start_paused = true)]
async fn c9_pods_that_were_missed_are_noted_where_their_node_says_and_never_replaced() {
    let world = World::with(3, json!({}));
    for (name, on) in [("p1", "a"), ("p2", "b"), ("p3", "")] {
        world.pod(name, on, json!({}));
    }
    world.settle("ws").await;
    assert_eq!(world.annotation("p1", NOTE).as_deref(), Some("{\"name\":\"ws\",\"subset\":\"a\"}"));
    assert_eq!(world.annotation("p2", NOTE).as_deref(), Some("{\"name\":\"ws\",\"subset\":\"b\"}"));
    assert_eq!(world.annotation("p3", NOTE), None, "it has no node yet");
    assert_eq!(
        world.get(&format!("{PODS}p2")).unwrap()["metadata"]["labels"]["zone"],
        "b",
        "with the labels of the patch"
    );
    assert_eq!(
        (world.annotation("p1", COST).as_deref(), world.annotation("p2", COST).as_deref()),
        (Some("200"), Some("100"))
    );
    assert_eq!(world.counts(), [(1, 1), (1, -1)]);
    world.change(&format!("{PODS}p3"), json!({"spec": {"nodeName": "b"}}));
    world.settle("ws").await;
    assert_eq!(world.counts(), [(1, 1), (2, -1)]);
    assert_eq!(world.controller.metrics.assigned.get(), 3);
    assert_eq!(lock(&world.server).of(PODS).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_annotation_keeps_patches_off_pods_that_were_missed() {
    let world = World::with(
        1,
        json!({"metadata": {"annotations": {"workloadspread.kruise.io/ignore-patch-existing-pods-metadata": "True"}}}),
    );
    world.pod("p1", "b", json!({}));
    world.settle("ws").await;
    assert!(world.annotation("p1", NOTE).is_some());
    assert_eq!(world.get(&format!("{PODS}p1")).unwrap()["metadata"]["labels"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_node_fits_no_subset_is_said_and_goes_first() {
    let mut world = World::with(1, json!({}));
    world.hear_events();
    world.put(&format!("{NODES}c"), node("c", "c"));
    world.pod("p1", "c", json!({}));
    for _ in 0..2 {
        world.settle("ws").await;
        tokio::time::advance(Duration::from_secs(60)).await;
    }
    assert_eq!((world.annotation("p1", NOTE), world.annotation("p1", COST).as_deref()), (None, Some("-300")));
    assert_eq!(world.reason("ws"), "Ready BeyondLimits");
    assert_eq!(*lock(&world.events), ["PodNotSpread Pod p1 is in no subset: none fits its node c"], "once");
}

#[tokio::test(start_paused = true)]
async fn shortfall_a_creation_that_was_refused_gives_its_place_back_within_30_s() {
    let world = World::with(3, json!({}));
    world.settle("ws").await;
    let since = rfc3339(clock::now().wall);
    let entry = json!([{"name": "a", "replicas": 0, "missingReplicas": 1, "creatingPods": {"p1": since}}, {"name": "b", "replicas": 0, "missingReplicas": -1}]);
    world.change(&format!("{SPREADS}ws"), json!({"status": {"versionedSubsetStatuses": {"versionIgnored": entry}}}));
    let begun = clock::now().mono;
    let Requeue::After(after) = world.settle("ws").await else { panic!("it waits") };
    assert_eq!((world.counts()[0], world.reason("ws").as_str()), ((0, 1), "Reconciling PodsComing"));
    tokio::time::advance(after).await;
    world.settle("ws").await;
    assert_eq!(world.counts()[0], (0, 2));
    assert!(clock::now().mono - begun < Duration::from_secs(30));
    assert_eq!(world.status("ws")["versionedSubsetStatuses"], Value::Null);
    let labels = metrics::ExpiryLabels { record: "creation" };
    assert_eq!(world.controller.metrics.expired.get_or_create(&labels).get(), 1);
}

/// The records of subset a.
fn creating(since: jiff::Timestamp) -> Value {
    let entry = json!([{"name": "a", "replicas": 0, "missingReplicas": 1, "creatingPods": {"p1": rfc3339(since)}}, {"name": "b", "replicas": 0, "missingReplicas": -1}]);
    json!({"status": {"versionedSubsetStatuses": {"versionIgnored": entry}}})
}

#[tokio::test(start_paused = true)]
async fn a_record_ends_by_the_clock_of_the_manager_and_not_by_that_of_the_webhook() {
    for ahead in [-3600, -29, 0, 3600] {
        let mut world = World::with(3, json!({}));
        world.settle("ws").await;
        let since = clock::now().wall + jiff::SignedDuration::from_secs(ahead);
        world.change(&format!("{SPREADS}ws"), creating(since));
        world.settle("ws").await;
        assert_eq!(world.counts()[0], (0, 1), "a Pod is coming, {ahead} s");
        tokio::time::advance(Duration::from_secs(25)).await;
        world.settle("ws").await;
        assert_eq!(world.counts()[0], (0, 1), "its place is kept, {ahead} s");
        // Of what it finds, another process knows only what the record says; what is in the future begins now.
        world.restart();
        world.settle("ws").await;
        assert_eq!(
            world.counts()[0],
            if ahead > 0 { (0, 1) } else { (0, if ahead == 0 { 1 } else { 2 }) },
            "{ahead} s"
        );
        tokio::time::advance(Duration::from_secs(28)).await;
        world.settle("ws").await;
        assert_eq!(world.counts()[0], (0, 2), "and given back, {ahead} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_namesake_that_is_recorded_anew_has_its_time_before_it() {
    let world = World::with(3, json!({}));
    world.settle("ws").await;
    world.change(&format!("{SPREADS}ws"), creating(clock::now().wall));
    world.settle("ws").await;
    tokio::time::advance(Duration::from_secs(20)).await;
    world.change(&format!("{SPREADS}ws"), creating(clock::now().wall));
    world.settle("ws").await;
    tokio::time::advance(Duration::from_secs(20)).await;
    world.settle("ws").await;
    assert_eq!(world.counts()[0], (0, 1));
}

#[tokio::test(start_paused = true)]
async fn pods_that_cannot_be_read_are_tried_again_later_each_time() {
    let world = World::with(1, json!({}));
    let many = observe::MOST_READ + 1;
    for i in 0..many {
        // There is no such node.
        world.pod(&format!("gone-{i:04}"), "gone", json!({}));
    }
    for wait in [2, 4, 8] {
        let Requeue::After(after) = world.settle("ws").await else { panic!("it looks again") };
        assert!(after > Duration::from_secs(1) && after <= Duration::from_secs(wait), "{after:?} instead of {wait} s");
        tokio::time::advance(Duration::from_secs(wait)).await;
    }
    // Those that can be read do not wait for the others.
    world.pod("p1", "a", json!({}));
    world.settle("ws").await;
    assert!(world.annotation("p1", NOTE).is_some());
    lock(&world.server).broken.push("/api/v1/namespaces/ns/pods/broken");
    world.pod("broken", "a", json!({}));
    let Requeue::After(after) = world.settle("ws").await else { panic!("it looks again") };
    assert!(after > Duration::from_secs(1), "{after:?}");
    lock(&world.server).broken.clear();
    tokio::time::advance(Duration::from_secs(60)).await;
    world.settle("ws").await;
    assert!(world.annotation("broken", NOTE).is_some());
}

#[tokio::test(start_paused = true)]
async fn the_last_room_goes_to_the_new_pod_when_its_record_comes_before_that_of_a_missed_one() {
    let world = World::with(2, json!({"spec": {"subsets": [{"name": "a", "maxReplicas": 1}, {"name": "b"}]}}));
    world.pod("p1", "a", json!({}));
    world.deliver_all();
    // The webhook gives the room to another Pod, and the manager hears of it by the conflict alone.
    let since = rfc3339(clock::now().wall);
    let entry = json!([{"name": "a", "replicas": 0, "missingReplicas": 0, "creatingPods": {"p2": since}},
        {"name": "b", "replicas": 0, "missingReplicas": -1}]);
    world.change(
        &format!("{SPREADS}ws"),
        json!({"status": {"observedGeneration": 1, "versionedSubsetStatuses": {"versionIgnored": entry}}}),
    );
    let ws = ObjectKey::new("ns", "ws");
    world.controller.reconcile(&ws).await.unwrap();
    assert_eq!(world.annotation("p1", NOTE).as_deref(), Some("{\"name\":\"ws\",\"subset\":\"b\"}"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_changed_before_its_note_is_noted_although_no_rule_reads_the_change() {
    let world = World::with(1, json!({}));
    world.pod("p1", "a", json!({}));
    world.deliver_all();
    world.change(&format!("{PODS}p1"), json!({"status": {"hostIP": "192.0.2.1"}}));
    let ws = ObjectKey::new("ns", "ws");
    let again = world.controller.reconcile(&ws).await.unwrap();
    assert_eq!(world.annotation("p1", NOTE), None, "the patch was bound to what it had read");
    let Requeue::After(after) = again else { panic!("it looks again: {again:?}") };
    assert!(after <= Duration::from_secs(1), "{after:?}");
    world.controller.reconcile(&ws).await.unwrap();
    assert!(world.annotation("p1", NOTE).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_is_refused_after_the_webhook_makes_room_for_5_s() {
    let mut world = World::with(2, json!({}));
    world.hear_events();
    for name in ["p1", "p2"] {
        world.pod(name, "a", noted("a"));
    }
    world.settle("ws").await;
    assert_eq!(world.counts()[0], (2, 0));
    let since = rfc3339(clock::now().wall);
    let entry = json!([{"name": "a", "replicas": 2, "missingReplicas": 1, "deletingPods": {"p1": since}}]);
    world.change(&format!("{SPREADS}ws"), json!({"status": {"versionedSubsetStatuses": {"versionIgnored": entry}}}));
    world.settle("ws").await;
    assert_eq!(world.counts()[0], (2, 1), "as if a PodDisruptionBudget had refused the eviction");
    tokio::time::advance(Duration::from_secs(5)).await;
    world.settle("ws").await;
    assert_eq!(world.counts()[0], (2, 0));
    let labels = metrics::ExpiryLabels { record: "deletion" };
    assert_eq!(world.controller.metrics.expired.get_or_create(&labels).get(), 1);
    tokio::task::yield_now().await;
    assert!(lock(&world.events).iter().any(|event| event.starts_with("DeletePodFailed Pod p1")), "{:?}", world.events);
}

#[tokio::test(start_paused = true)]
async fn what_the_webhook_has_written_meanwhile_is_not_overwritten() {
    let world = World::with(3, json!({}));
    world.settle("ws").await;
    world.pod("p1", "a", noted("a"));
    world.deliver_all();
    // The watch has still to bring this.
    let entry =
        json!([{"name": "a", "replicas": 0, "missingReplicas": 1, "creatingPods": {"p2": rfc3339(clock::now().wall)}}]);
    world.change(&format!("{SPREADS}ws"), json!({"status": {"versionedSubsetStatuses": {"versionIgnored": entry}}}));
    lock(&world.server).news.clear();
    world.controller.reconcile(&ObjectKey::new("ns", "ws")).await.unwrap();
    world.settle("ws").await;
    let entry = &world.status("ws")["versionedSubsetStatuses"]["versionIgnored"][0];
    assert_eq!(
        (&entry["replicas"], &entry["missingReplicas"], entry["creatingPods"]["p2"].is_string()),
        (&json!(1), &json!(0), true)
    );
}

#[tokio::test(start_paused = true)]
async fn of_two_for_the_same_pods_the_second_is_stalled_until_the_first_is_gone() {
    let world = World::with(1, json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}));
    world.pod("p1", "a", json!({}));
    world.put(
        &format!("{SPREADS}late"),
        spread(json!({"metadata": {"name": "late", "creationTimestamp": "2026-01-02T00:00:00Z"}})),
    );
    for name in ["ws", "late"] {
        world.settle(name).await;
    }
    assert_eq!((world.reason("ws").as_str(), world.reason("late").as_str()), ("Ready Spread", "Stalled TargetTaken"));
    lock(&world.server).remove(&format!("{SPREADS}ws"));
    world.settle("late").await;
    assert_eq!(world.reason("late"), "Ready Spread");
    assert_eq!(
        world.annotation("p1", NOTE).as_deref(),
        Some("{\"name\":\"late\",\"subset\":\"a\"}"),
        "the note of one that is gone says nothing"
    );
}

#[tokio::test(start_paused = true)]
async fn two_with_disjoint_filters_share_a_target() {
    let role = |role: &str| json!({"selector": {"matchLabels": {"role": role}}});
    let world = World::with(2, json!({"spec": {"targetFilter": role("ps")}}));
    world.put(
        &format!("{SPREADS}workers"),
        spread(json!({"metadata": {"name": "workers"}, "spec": {"targetFilter": role("worker")}})),
    );
    for (name, of) in [("p1", "ps"), ("p2", "worker")] {
        world.pod(name, "a", json!({}));
        world.change(&format!("{PODS}{name}"), json!({"metadata": {"labels": {"role": of}}}));
    }
    for name in ["ws", "workers"] {
        world.settle(name).await;
    }
    assert_eq!(world.annotation("p1", NOTE).as_deref(), Some("{\"name\":\"ws\",\"subset\":\"a\"}"));
    assert_eq!(world.annotation("p2", NOTE).as_deref(), Some("{\"name\":\"workers\",\"subset\":\"a\"}"));
    assert_eq!(world.reason("workers"), "Ready Spread");
}

#[tokio::test(start_paused = true)]
async fn a_target_that_is_not_there_is_waited_for() {
    let world = World::new();
    world.put(&format!("{SPREADS}ws"), spread(json!({})));
    let Requeue::After(_) = world.settle("ws").await else { panic!("it looks again") };
    assert_eq!(
        (world.reason("ws").as_str(), &world.status("ws")["observedGeneration"]),
        ("Reconciling TargetMissing", &json!(1))
    );
    assert_eq!(world.counts(), [(0, 2), (0, -1)], "there are no Pods");
    world.put(&format!("{SETS}web"), set(1));
    world.settle("ws").await;
    assert_eq!(world.reason("ws"), "Ready Spread");
}

#[tokio::test(start_paused = true)]
async fn one_that_was_made_again_while_the_watch_did_not_run_is_looked_at_at_once() {
    let world = World::new();
    let controller = &world.controller;
    let see = |uid: &str, version: &str| {
        let mut object = spread(json!({}));
        object["metadata"]["uid"] = uid.into();
        object["metadata"]["generation"] = 1.into();
        object["metadata"]["resourceVersion"] = version.into();
        controller.spreads.see(serde_json::from_value(object).unwrap(), |change| controller.spread_changed(&change));
    };
    see("first", "1");
    let key = controller.queue.begin().unwrap();
    controller.queue.done::<String>(key, Ok(Requeue::Await));
    see("second", "2");
    assert_eq!(controller.queue.depth(), 1);
}

#[tokio::test(start_paused = true)]
async fn pods_do_not_count_once_their_target_goes() {
    let world = World::with(3, json!({}));
    for (name, subset) in [("p1", "a"), ("p2", "a"), ("p3", "b")] {
        world.pod(name, subset, noted(subset));
    }
    world.settle("ws").await;
    assert_eq!(world.counts(), [(2, 0), (1, -1)]);
    // In the foreground: the Pods go first.
    world.change(&format!("{SETS}web"), json!({"metadata": {"deletionTimestamp": rfc3339(clock::now().wall)}}));
    world.settle("ws").await;
    assert_eq!((world.counts(), world.reason("ws").as_str()), (vec![(0, 2), (0, -1)], "Reconciling TargetDeleted"));
    assert_eq!(world.status("ws")["versionedSubsetStatuses"], Value::Null);
    lock(&world.server).remove(&format!("{SETS}web"));
    world.settle("ws").await;
    assert_eq!((world.counts(), world.reason("ws").as_str()), (vec![(0, 2), (0, -1)], "Reconciling TargetMissing"));
    // A namesake has none of these Pods.
    world.put(&format!("{SETS}web"), set(1));
    world.pod("p4", "a", noted("a"));
    world.settle("ws").await;
    assert_eq!((world.counts(), world.reason("ws").as_str()), (vec![(1, 1), (0, -1)], "Ready Spread"));
}

#[tokio::test(start_paused = true)]
async fn what_the_webhook_records_while_there_is_no_target_keeps_its_place_for_its_time() {
    let world = World::new();
    world.put(&format!("{SPREADS}ws"), spread(json!({})));
    world.settle("ws").await;
    world.change(&format!("{SPREADS}ws"), creating(clock::now().wall));
    let Requeue::After(after) = world.settle("ws").await else { panic!("it waits") };
    assert!(after <= Duration::from_secs(28), "{after:?}");
    assert_eq!((world.counts()[0], world.reason("ws").as_str()), ((0, 1), "Reconciling TargetMissing"));
    tokio::time::advance(Duration::from_secs(28)).await;
    world.settle("ws").await;
    assert_eq!((world.counts()[0], &world.status("ws")["versionedSubsetStatuses"]), ((0, 2), &Value::Null));
    let labels = metrics::ExpiryLabels { record: "creation" };
    assert_eq!(world.controller.metrics.expired.get_or_create(&labels).get(), 0, "nobody has looked for the Pod");
}

#[tokio::test(start_paused = true)]
async fn counts_stay_while_the_target_may_not_be_read() {
    let world = World::with(2, json!({}));
    world.pod("p1", "a", noted("a"));
    world.settle("ws").await;
    lock(&world.server).unreadable.push("/apis/apps.kruise.io/v1alpha1/namespaces/ns/clonesets/web");
    world.settle("ws").await;
    assert_eq!((world.counts(), world.reason("ws").as_str()), (vec![(1, 1), (0, -1)], "Stalled TargetUnreadable"));
}

#[tokio::test(start_paused = true)]
async fn records_are_settled_while_the_target_may_not_be_read() {
    let world = World::with(3, json!({}));
    world.pod("p0", "a", noted("a"));
    world.settle("ws").await;
    lock(&world.server).unreadable.push("/apis/apps.kruise.io/v1alpha1/namespaces/ns/clonesets/web");
    world.settle("ws").await;
    // One Pod comes, one goes without a word, and one creation is refused.
    let since = rfc3339(clock::now().wall);
    let a = json!({"name": "a", "replicas": 1, "missingReplicas": 0, "creatingPods": {"p1": since, "p2": since}});
    let entries = json!([a, {"name": "b", "replicas": 0, "missingReplicas": -1}]);
    world.change(&format!("{SPREADS}ws"), json!({"status": {"versionedSubsetStatuses": {"versionIgnored": entries}}}));
    world.pod("p1", "a", noted("a"));
    lock(&world.server).remove(&format!("{PODS}p0"));
    world.settle("ws").await;
    assert_eq!((world.counts()[0], world.reason("ws").as_str()), ((1, 0), "Stalled TargetUnreadable"));
    tokio::time::advance(Duration::from_secs(28)).await;
    world.settle("ws").await;
    assert_eq!((world.counts()[0], world.reason("ws").as_str()), ((1, 1), "Stalled TargetUnreadable"));
    assert_eq!(world.status("ws")["versionedSubsetStatuses"]["versionIgnored"][0]["creatingPods"]["p2"], Value::Null);
    assert_eq!(world.annotation("p1", COST), None, "no Pod is written");
}

#[tokio::test(start_paused = true)]
async fn a_creation_that_was_refused_gives_its_place_back_while_the_configuration_does_not_name_the_kind() {
    let world = World::new();
    let target = json!({"apiVersion": "db.example/v1", "kind": "Db", "name": "db"});
    world.put(&format!("{SPREADS}ws"), spread(json!({"spec": {"targetRef": target}})));
    world.settle("ws").await;
    world.change(&format!("{SPREADS}ws"), creating(clock::now().wall));
    world.settle("ws").await;
    assert_eq!((world.counts()[0], world.reason("ws").as_str()), ((0, 1), "Stalled InvalidSpec"));
    tokio::time::advance(Duration::from_secs(28)).await;
    world.settle("ws").await;
    assert_eq!((world.counts()[0], world.reason("ws").as_str()), ((0, 2), "Stalled InvalidSpec"));
}

#[tokio::test(start_paused = true)]
async fn it_is_not_ready_while_pods_wait_that_nobody_has_placed() {
    let world = World::with(2, json!({}));
    world.pod("p1", "", json!({}));
    world.settle("ws").await;
    assert_eq!(world.reason("ws"), "Reconciling PodsUnassigned");
    world.change(&format!("{PODS}p1"), json!({"spec": {"nodeName": "b"}}));
    world.settle("ws").await;
    assert_eq!(world.reason("ws"), "Ready Spread");
}

const JOBS: &str = "/apis/batch/v1/namespaces/ns/jobs/";

#[tokio::test(start_paused = true)]
async fn pods_of_a_job_are_evicted_only_if_its_failure_policy_ignores_disruptions() {
    let ignores = json!({"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]});
    for (policy, evicted) in [(Value::Null, 0), (ignores, 1)] {
        let world = World::new();
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "web", "namespace": "ns"},
            "spec": {"parallelism": 1, "podFailurePolicy": policy}});
        let uid = world.put(&format!("{JOBS}web"), job)["metadata"]["uid"].clone();
        let strategy = json!({"type": "Adaptive", "adaptive": {"rescheduleCriticalSeconds": 30}});
        let target = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "web"});
        let changes = json!({"spec": {"targetRef": target, "scheduleStrategy": strategy}});
        world.put(&format!("{SPREADS}ws"), spread(changes));
        let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "web", "uid": uid, "controller": true});
        let refused = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
        let pod = json!({"metadata": {"name": "p1", "namespace": "ns", "ownerReferences": [owner], "annotations": noted("a")},
            "spec": {"containers": []}, "status": {"phase": "Pending", "conditions": refused}});
        world.put(&format!("{PODS}p1"), pod);
        world.settle("ws").await;
        tokio::time::advance(Duration::from_secs(31)).await;
        world.settle("ws").await;
        assert_eq!(world.controller.metrics.evicted.get(), evicted);
        assert_eq!(world.get(&format!("{PODS}p1")).is_some(), evicted == 0);
        let condition = &world.status("ws")["subsetStatuses"][0]["conditions"][0];
        assert_eq!(condition["status"], "False", "those that come later go elsewhere");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_a_change_of_the_target_has_overtaken_is_not_remembered() {
    let mut world = World::with(1, json!({}));
    let watcher: Arc<Mutex<Option<Arc<Controller>>>> = Arc::default();
    let (server, to_tell) = (world.server.clone(), watcher.clone());
    let context = in_memory::context(move |parts, body| {
        let answered = answer(&mut lock(&server), parts, body);
        if parts.uri.path().starts_with(SETS)
            && let Some(controller) = lock(&to_tell).take()
        {
            // The watch is faster than the answer.
            let kind = Kind::of("apps.kruise.io", "CloneSet").unwrap();
            controller.target_changed(kind, &ObjectKey::new("ns", "web"));
        }
        answered
    });
    world.controller = Arc::new(Controller::new(&context));
    let is_remembered = |world: &World| {
        let remembered = |memory: &mut SpreadMemory| memory.target.is_some();
        world.controller.memories.with(&ObjectKey::new("ns", "ws"), remembered)
    };
    world.reconcile("ws").await.unwrap();
    assert_eq!(is_remembered(&world), Some(true));
    *lock(&watcher) = Some(world.controller.clone());
    world.reconcile("ws").await.unwrap();
    assert_eq!(is_remembered(&world), Some(false));
    world.reconcile("ws").await.unwrap();
    assert_eq!(is_remembered(&world), Some(true), "the next pass reads it again");
}

/// No watch follows such a kind, and here none of its Pods says that it has come or gone.
#[tokio::test(start_paused = true)]
async fn shortfall_the_creation_and_deletion_of_a_kind_by_configuration_are_noticed_within_30_s() {
    let world = World::new();
    let list = r#"{"workloads":[{"Group":"db.example","Version":"v1","Kind":"Db"}]}"#;
    let map = json!({"metadata": {"name": "kruise-configuration"},
        "data": {"WorkloadSpread_Watch_Custom_Workload_WhiteList": list}});
    world.put("/api/v1/namespaces/kruise-system/configmaps/kruise-configuration", map);
    let target = json!({"apiVersion": "db.example/v1", "kind": "Db", "name": "db"});
    world.put(&format!("{SPREADS}ws"), spread(json!({"spec": {"targetRef": target}})));
    let expect = async |wanted: &str| {
        let Requeue::After(after) = world.settle("ws").await else { panic!("it looks again") };
        assert_eq!(world.reason("ws"), wanted);
        assert!(after <= Duration::from_secs(30), "{after:?}");
        tokio::time::advance(after).await;
    };
    expect("Reconciling TargetMissing").await;
    let db = json!({"apiVersion": "db.example/v1", "kind": "Db", "metadata": {"name": "db", "namespace": "ns"},
        "spec": {"replicas": 2}});
    world.put(DB, db);
    expect("Ready Spread").await;
    lock(&world.server).remove(DB);
    expect("Reconciling TargetMissing").await;
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_the_configuration_does_not_name_is_stalled() {
    let world = World::new();
    let target = json!({"apiVersion": "db.example/v1", "kind": "Db", "name": "db"});
    world.put(&format!("{SPREADS}ws"), spread(json!({"spec": {"targetRef": target}})));
    world.settle("ws").await;
    assert_eq!(world.reason("ws"), "Stalled InvalidSpec");
}

#[tokio::test(start_paused = true)]
async fn pods_that_find_no_place_are_evicted_once_it_is_on_record_that_their_subset_gets_no_more() {
    let strategy = json!({"type": "Adaptive", "adaptive": {"rescheduleCriticalSeconds": 30}});
    let world = World::with(2, json!({"spec": {"scheduleStrategy": strategy}}));
    world.pod("p1", "", noted("a"));
    world.pod("p2", "a", noted("a"));
    let refused =
        json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}});
    world.change(&format!("{PODS}p1"), refused);
    let Requeue::After(after) = world.settle("ws").await else { panic!("it waits") };
    assert!(after <= Duration::from_secs(30), "{after:?}");
    assert!(world.get(&format!("{PODS}p1")).is_some());
    tokio::time::advance(Duration::from_secs(31)).await;
    world.settle("ws").await;
    assert!(world.get(&format!("{PODS}p1")).is_none() && world.get(&format!("{PODS}p2")).is_some());
    assert_eq!(world.controller.metrics.evicted.get(), 1);
    let condition = |world: &World| world.status("ws")["subsetStatuses"][0]["conditions"][0]["status"].clone();
    assert_eq!(condition(&world), "False");
    tokio::time::advance(Duration::from_secs(301)).await;
    world.settle("ws").await;
    assert_eq!(condition(&world), "True");
}

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/ns/deployments/";
const REPLICA_SETS: &str = "/apis/apps/v1/namespaces/ns/replicasets/";

fn template(image: &str, hash: Option<&str>) -> Value {
    let mut template =
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": image}]}});
    if let Some(hash) = hash {
        template["metadata"]["labels"]["pod-template-hash"] = hash.into();
    }
    template
}

impl World {
    /// A Deployment, whose Pods have the label `app: web` as those of all here.
    fn deployment(&self, name: &str, image: &str) {
        let selector = json!({"matchLabels": {"app": "web"}});
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "ns"}, "spec": {"replicas": 2, "selector": selector, "template": template(image, None)}});
        self.put(&format!("{DEPLOYMENTS}{name}"), deployment);
    }

    fn replica_set(&self, name: &str, of: Option<&str>, (image, hash): (&str, &str)) {
        let owners = match of {
            Some(of) => {
                let uid = self.get(&format!("{DEPLOYMENTS}{of}")).unwrap()["metadata"]["uid"].clone();
                json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": of, "uid": uid, "controller": true}])
            }
            None => json!([]),
        };
        let path = format!("{REPLICA_SETS}{name}");
        let uid = self.get(&path).map(|old| old["metadata"]["uid"].clone()).unwrap_or_default();
        let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name, "namespace": "ns", "uid": uid, "labels": {"app": "web", "pod-template-hash": hash}, "ownerReferences": owners}, "spec": {"replicas": 2, "template": template(image, Some(hash))}});
        self.put(&path, set);
    }

    fn pod_of_set(&self, name: &str, set: &str, on: &str, annotations: Value) {
        let live = self.get(&format!("{REPLICA_SETS}{set}")).unwrap();
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": set, "uid": live["metadata"]["uid"], "controller": true}]);
        let pod = json!({"metadata": {"name": name, "namespace": "ns", "ownerReferences": owner, "annotations": annotations, "labels": live["spec"]["template"]["metadata"]["labels"]},
            "spec": {"nodeName": on, "containers": []}, "status": {"phase": "Running"}});
        self.put(&format!("{PODS}{name}"), pod);
    }

    fn spread_on(&self, name: &str, created: i64, (kind, target): (&str, &str)) {
        let created = format!("2026-01-01T00:00:0{created}Z");
        let target = json!({"apiVersion": "apps/v1", "kind": kind, "name": target});
        let changes = json!({"metadata": {"name": name, "creationTimestamp": created}, "spec": {"targetRef": target}});
        self.put(&format!("{SPREADS}{name}"), spread(changes));
    }
}

#[tokio::test(start_paused = true)]
async fn during_a_roll_out_of_a_deployment_old_pods_go_from_the_first_subset_on() {
    let world = World::new();
    world.deployment("web", "i:2");
    for (hash, image) in [("old", "i:1"), ("new", "i:2")] {
        let name = format!("web-{hash}");
        world.replica_set(&name, Some("web"), (image, hash));
        for subset in ["a", "b"] {
            world.pod_of_set(&format!("{name}-{subset}"), &name, subset, noted(subset));
        }
    }
    world.spread_on("ws", 0, ("Deployment", "web"));
    world.settle("ws").await;
    let cost = |pod: &str| world.annotation(pod, COST).unwrap();
    assert_eq!(
        [cost("web-new-a"), cost("web-new-b"), cost("web-old-a"), cost("web-old-b")],
        ["200", "100", "100", "200"]
    );
    assert_eq!(
        world.status("ws")["versionedSubsetStatuses"].as_object().unwrap().keys().collect::<Vec<_>>(),
        ["new", "old"]
    );
    assert_eq!(world.counts(), [(2, 0), (2, -1)]);
}

#[tokio::test(start_paused = true)]
async fn replica_sets_are_those_that_the_deployment_controls_whatever_their_names_are() {
    let world = World::new();
    for name in ["web", "web-web"] {
        world.deployment(name, "i:1");
    }
    for (name, of) in [("web-1", Some("web")), ("legacy", Some("web")), ("web-2", Some("web-web")), ("web-3", None)] {
        world.replica_set(name, of, ("i:1", name));
        world.pod_of_set(&format!("{name}-pod"), name, "a", noted("a"));
    }
    world.spread_on("ws", 0, ("Deployment", "web"));
    world.settle("ws").await;
    assert_eq!(world.counts(), [(2, 0), (0, -1)], "those of web-2 and web-3 are not its own");
    assert_eq!(world.annotation("web-2-pod", COST), None);
    // It takes over one that nobody controls, and makes another.
    world.replica_set("web-3", Some("web"), ("i:1", "web-3"));
    world.replica_set("web-4", Some("web"), ("i:1", "web-4"));
    world.pod_of_set("web-4-pod", "web-4", "b", noted("b"));
    world.settle("ws").await;
    assert_eq!(world.counts(), [(2, 0), (1, -1)], "a new one is found by its Pod");
    tokio::time::advance(Duration::from_secs(31)).await;
    world.settle("ws").await;
    assert_eq!(world.counts(), [(3, 0), (1, -1)], "and one that is adopted after a while");
}

#[tokio::test(start_paused = true)]
async fn pods_are_not_counted_as_gone_while_their_replica_set_cannot_be_read() {
    let mut world = World::new();
    world.deployment("web", "i:1");
    world.replica_set("web-1", Some("web"), ("i:1", "1"));
    world.pod_of_set("p1", "web-1", "a", noted("a"));
    world.spread_on("ws", 0, ("Deployment", "web"));
    world.settle("ws").await;
    assert_eq!(world.counts(), [(1, 1), (0, -1)]);
    world.restart();
    lock(&world.server).broken.push("/apis/apps/v1/namespaces/ns/replicasets/web-1");
    world.reconcile("ws").await.unwrap_err();
    assert_eq!(world.counts(), [(1, 1), (0, -1)]);
}

#[tokio::test(start_paused = true)]
async fn of_two_on_one_chain_of_owners_the_older_has_the_pods_and_both_come_to_rest() {
    for (created, first, second) in [([0, 1], "on-deployment", "on-set"), ([1, 0], "on-set", "on-deployment")] {
        let world = World::new();
        world.deployment("web", "i:1");
        world.replica_set("web-1", Some("web"), ("i:1", "1"));
        for name in ["a", "b"] {
            world.put(&format!("{NODES}{name}"), node(name, name));
        }
        world.spread_on("on-deployment", created[0], ("Deployment", "web"));
        world.spread_on("on-set", created[1], ("ReplicaSet", "web-1"));
        // One that the webhook has missed, and one that the younger one had before the older one was restored.
        world.pod_of_set("p1", "web-1", "a", json!({}));
        let note = |spread: &str| format!("{{\"name\":\"{spread}\",\"subset\":\"a\"}}");
        world.pod_of_set("p2", "web-1", "a", json!({NOTE: note(second)}));
        let both = async || {
            for name in [second, first, second, first] {
                world.settle(name).await;
            }
        };
        both().await;
        for pod in ["p1", "p2"] {
            assert_eq!(world.annotation(pod, NOTE), Some(note(first)));
        }
        let replicas = |name: &str| world.status(name)["subsetStatuses"][0]["replicas"].clone();
        assert_eq!((replicas(first), replicas(second)), (json!(2), json!(0)));
        let writes = lock(&world.pod_writes).len();
        both().await;
        assert_eq!(lock(&world.pod_writes).len(), writes, "nobody writes any more");
        lock(&world.server).remove(&format!("{SPREADS}{first}"));
        world.settle(second).await;
        assert_eq!(world.annotation("p1", NOTE), Some(note(second)), "once it is gone the other one has them");
    }
}

#[test]
fn c1_with_its_gate_off_the_controller_is_not_started() {
    assert_eq!(REGISTRATION.gate, Some("WorkloadSpread"));
}

#[test]
fn shortfall_every_target_but_jobs_and_kinds_of_others_is_watched() {
    for (group, kind, is_watched) in [
        ("apps.kruise.io", "CloneSet", true),
        ("apps.kruise.io", "StatefulSet", true),
        ("apps", "Deployment", true),
        ("apps", "ReplicaSet", true),
        ("apps", "StatefulSet", true),
        ("batch", "Job", false),
    ] {
        assert_eq!(Kind::of(group, kind).is_some(), is_watched, "{group} {kind}: others are read every 30 s");
    }
}
