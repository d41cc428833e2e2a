//! The controller against an API server in memory: recording, generation, conflicts, nodes that are lost.

use axum::http::{Method, request::Parts};
use serde_json::{Value, json};

use super::*;
use crate::{
    controllers::{fake::Server, in_memory},
    domain::workload::target::WorkloadTarget,
    k8s::time::rfc3339,
    runtime::watches::StoredObject,
};

mod simulation;

const STATES: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/persistentpodstates/";
const SETS: &str = "/apis/apps/v1/namespaces/ns/statefulsets/";
const PODS: &str = "/api/v1/namespaces/ns/pods/";
const NODES: &str = "/api/v1/nodes/";
const HOST: &str = "kubernetes.io/hostname";
const IP: &str = "ovn.kubernetes.io/ip_address";

/// Objects, the controller, and what watches have brought to it.
struct World {
    server: Arc<Mutex<Server>>,
    controller: Arc<Controller>,
}

fn manager(server: &Arc<Mutex<Server>>) -> Arc<Controller> {
    let server = server.clone();
    let context = in_memory::context(move |parts, body| answer(&mut lock(&server), parts, body));
    Arc::new(Controller::new(&context))
}

/// Evictions delete Pods that are bound to no node: nothing else is ever evicted here.
fn answer(server: &mut Server, parts: &Parts, body: &[u8]) -> (u16, Value) {
    let Some(path) = parts.uri.path().strip_suffix("/eviction").filter(|_| parts.method == Method::POST) else {
        return server.answer(parts, body);
    };
    let body: Value = serde_json::from_slice(body).unwrap();
    let Some(pod) = server.objects.get(path).cloned() else { return failure(404) };
    let asked = &body["deleteOptions"]["preconditions"];
    if ["uid", "resourceVersion"].iter().any(|field| asked[field] != pod["metadata"][field]) {
        return failure(409);
    }
    if let Some(fault) = server.faults.pop_front() {
        server.acts.note("refused evictions");
        return match fault {
            crate::controllers::fake::Fault::Error(code) => failure(code),
            crate::controllers::fake::Fault::Lost => failure(504),
        };
    }
    assert!(pod["spec"]["nodeName"].is_null(), "a Pod that is bound to a node is evicted: {pod}");
    server.acts.note("evicted");
    server.remove(path);
    (201, json!({"kind": "Status", "status": "Success"}))
}

fn failure(code: u16) -> (u16, Value) {
    (code, json!({"kind": "Status", "status": "Failure", "code": code, "message": format!("code {code}")}))
}

fn set(replicas: i32, annotations: Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": "ns", "annotations": annotations}, "spec": {"replicas": replicas}})
}

fn node(name: &str, ready: bool) -> Value {
    let status = if ready { "True" } else { "False" };
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {HOST: name}},
        "status": {"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": rfc3339(clock::now().wall)}]}})
}

fn state(name: &str, changes: Value) -> Value {
    let mut state = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "PersistentPodState",
        "metadata": {"name": name, "namespace": "ns", "generation": 1},
        "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db"},
            "requiredPersistentTopology": {"nodeTopologyKeys": [HOST]}, "persistentPodAnnotations": [{"key": IP}]}});
    json_patch::merge(&mut state, &changes);
    state
}

fn ready(is_ready: bool) -> Value {
    let status = if is_ready { "True" } else { "False" };
    json!({"status": {"phase": "Running",
        "conditions": [{"type": "Ready", "status": status, "lastTransitionTime": rfc3339(clock::now().wall)}]}})
}

impl World {
    fn new() -> Self {
        let server = Arc::new(Mutex::new(Server::new(|_, object| {
            object["metadata"]["generation"] = 1.into();
            Ok(())
        })));
        Self { controller: manager(&server), server }
    }

    fn put(&self, path: &str, object: Value) -> Value {
        lock(&self.server).put(path, object)
    }

    fn get(&self, path: &str) -> Option<Arc<Value>> {
        lock(&self.server).objects.get(path).cloned()
    }

    /// A Pod of the set, on a node, Ready.
    fn pod(&self, name: &str, on: &str, annotations: Value) {
        let owner = lock(&self.server).objects[&format!("{SETS}db")]["metadata"]["uid"].clone();
        let owner =
            json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": owner, "controller": true});
        let mut pod = json!({"metadata": {"name": name, "namespace": "ns", "ownerReferences": [owner], "annotations": annotations},
            "spec": {"containers": [{"name": "main"}]}, "status": {"phase": "Pending"}});
        if !on.is_empty() {
            pod["spec"]["nodeName"] = on.into();
            json_patch::merge(&mut pod, &ready(true));
        }
        self.put(&format!("{PODS}{name}"), pod);
    }

    /// Delivers one change, as the watch of its kind does.
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
        if path.starts_with(STATES) {
            deliver!(controller.states, |change: &Change<'_, _>| controller.state_changed(change));
        } else if path.starts_with(SETS) {
            deliver!(controller.built_in, |change: &Change<'_, _>| controller.target_changed(change));
        } else if path.starts_with(PODS) {
            deliver!(controller.context.pods, |change: &Change<'_, _>| controller.pod_changed(change));
        } else if path.starts_with(NODES) {
            deliver!(controller.context.nodes.store(), |change: &Change<'_, _>| controller.node_changed(change));
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
                Requeue::After(after) if after < Duration::from_secs(1) => tokio::time::advance(after).await,
                requeue => return requeue,
            }
        }
        panic!("it does not come to rest");
    }

    fn recorded(&self, name: &str) -> Value {
        self.get(&format!("{STATES}{name}")).map(|state| state["status"]["podStates"].clone()).unwrap_or_default()
    }

    fn reason(&self, name: &str) -> String {
        let state = self.get(&format!("{STATES}{name}")).unwrap();
        let conditions = state["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let true_one = conditions.iter().find(|condition| condition["status"] == "True");
        true_one
            .map(|c| format!("{} {}", c["type"].as_str().unwrap(), c["reason"].as_str().unwrap()))
            .unwrap_or_default()
    }
}

fn asks() -> Value {
    json!({"kruise.io/auto-generate-persistent-pod-state": "true", "kruise.io/required-persistent-topology": HOST})
}

#[tokio::test(start_paused = true)]
async fn ready_pods_are_recorded_with_annotations_that_the_store_does_not_hold() {
    let world = World::new();
    world.put(&format!("{NODES}n1"), node("n1", true));
    world.put(&format!("{SETS}db"), set(2, json!({})));
    world.pod("db-0", "n1", json!({IP: "10.0.0.5", "other": "x"}));
    world.pod("db-1", "", json!({}));
    world.put(&format!("{STATES}keep"), state("keep", json!({})));
    world.settle("keep").await;
    let entry =
        |ip: &str| json!({"db-0": {"nodeName": "n1", "nodeTopologyLabels": {HOST: "n1"}, "annotations": {IP: ip}}});
    assert_eq!((world.recorded("keep"), world.reason("keep").as_str()), (entry("10.0.0.5"), "Ready Recorded"));
    let state = world.get(&format!("{STATES}keep")).unwrap();
    assert_eq!(state["status"]["observedGeneration"], 1);

    // A later address is recorded too, and a second look reads and writes nothing.
    let before = lock(&world.server).objects.len();
    lock(&world.server).change(&format!("{PODS}db-0"), &json!({"metadata": {"annotations": {IP: "10.0.0.6"}}}));
    tokio::time::advance(Duration::from_secs(2)).await;
    world.settle("keep").await;
    assert_eq!((world.recorded("keep"), lock(&world.server).objects.len()), (entry("10.0.0.6"), before));
    let version = world.get(&format!("{STATES}keep")).unwrap()["metadata"]["resourceVersion"].clone();
    world.settle("keep").await;
    assert_eq!(world.get(&format!("{STATES}keep")).unwrap()["metadata"]["resourceVersion"], version);
}

#[tokio::test(start_paused = true)]
async fn shortfall_annotations_make_change_and_delete_an_object_and_the_set_is_found_by_its_own_kind() {
    let world = World::new();
    world.put(&format!("{SETS}db"), set(1, asks()));
    world.settle("db").await;
    let made = world.get(&format!("{STATES}db")).unwrap();
    let owner = &made["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["apiVersion"], &owner["controller"]), (&json!("apps/v1"), &json!(true)));
    assert_eq!(made["spec"]["targetRef"]["apiVersion"], "apps/v1");

    let annotations = json!({"kruise.io/persistent-pod-annotations": IP});
    lock(&world.server).change(&format!("{SETS}db"), &json!({"metadata": {"annotations": annotations}}));
    world.settle("db").await;
    let changed = world.get(&format!("{STATES}db")).unwrap();
    assert_eq!(changed["spec"]["persistentPodAnnotations"], json!([{"key": IP}]));

    let off = json!({"kruise.io/auto-generate-persistent-pod-state": null});
    lock(&world.server).change(&format!("{SETS}db"), &json!({"metadata": {"annotations": off}}));
    world.settle("db").await;
    assert!(world.get(&format!("{STATES}db")).is_none());
}

/// What OpenKruise writes, by its wire format: none that it has written itself was recorded.
#[tokio::test(start_paused = true)]
async fn takeover_of_what_openkruise_writes_is_one_write_of_the_status() {
    let version = |object: &Value| -> u64 { object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap() };
    for is_generated in [false, true] {
        let world = World::new();
        for name in ["n1", "n2"] {
            world.put(&format!("{NODES}{name}"), node(name, true));
        }
        let mut annotations = json!({});
        if is_generated {
            annotations = asks();
            annotations["kruise.io/persistent-pod-annotations"] = IP.into();
        }
        let target = world.put(&format!("{SETS}db"), set(2, annotations));
        world.pod("db-0", "n1", json!({IP: "10.0.0.5"}));
        world.pod("db-1", "", json!({}));
        let entry =
            |on: &str, ip: &str| json!({"nodeName": on, "nodeTopologyLabels": {HOST: on}, "annotations": {IP: ip}});
        let states = json!({"db-0": entry("n1", "10.0.0.5"), "db-1": entry("n2", "10.0.0.6")});
        let mut object = state("db", json!({"status": {"observedGeneration": 1, "podStates": states}}));
        if is_generated {
            object["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet",
                "name": "db", "uid": target["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true}]);
        }
        let path = format!("{STATES}db");
        let before = world.put(&path, object);
        let all = lock(&world.server).objects.clone();
        world.settle("db").await;
        let after = world.get(&path).unwrap();
        assert_eq!((&after["spec"], &after["status"]["podStates"]), (&before["spec"], &before["status"]["podStates"]));
        assert_eq!(version(&after), version(&before) + 1, "one write, of our conditions");
        let mut others = lock(&world.server).objects.clone();
        others.insert(path.clone(), all[&path].clone());
        assert_eq!(others, all, "nothing else is written: no Pod");
        tokio::time::advance(Duration::from_secs(120)).await;
        world.settle("db").await;
        assert_eq!(world.get(&path).unwrap(), after, "it rests");
    }
}

#[tokio::test(start_paused = true)]
async fn shortfall_the_start_ordinal_decides_which_records_stay() {
    let world = World::new();
    world.put(&format!("{NODES}n1"), node("n1", true));
    let mut target = set(2, json!({}));
    target["spec"]["ordinals"] = json!({"start": 4});
    world.put(&format!("{SETS}db"), target);
    let entry = json!({"nodeName": "n1", "nodeTopologyLabels": {HOST: "n1"}});
    let states = json!({"db-0": entry, "db-3": entry, "db-4": entry, "db-5": entry, "db-6": entry});
    world.put(
        &format!("{STATES}keep"),
        state("keep", json!({"status": {"observedGeneration": 1, "podStates": states}})),
    );
    world.settle("keep").await;
    assert_eq!(world.recorded("keep"), json!({"db-4": entry, "db-5": entry}));
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_conflicts_is_tried_again() {
    let world = World::new();
    world.put(&format!("{SETS}db"), set(1, asks()));
    world.settle("db").await;
    lock(&world.server).faults.push_back(crate::controllers::fake::Fault::Error(409));
    lock(&world.server).change(&format!("{SETS}db"), &json!({"metadata": {"annotations": null}}));
    world.settle("db").await;
    assert!(world.get(&format!("{STATES}db")).is_none());
}

#[tokio::test(start_paused = true)]
async fn an_object_of_a_user_is_never_changed_or_deleted() {
    let world = World::new();
    world.put(&format!("{SETS}db"), set(1, asks()));
    let theirs = world.put(&format!("{STATES}db"), state("db", json!({})));
    world.settle("db").await;
    assert_eq!(world.get(&format!("{STATES}db")).unwrap()["spec"], theirs["spec"]);
    lock(&world.server).change(&format!("{SETS}db"), &json!({"metadata": {"annotations": null}}));
    world.settle("db").await;
    assert_eq!(world.get(&format!("{STATES}db")).unwrap()["spec"], theirs["spec"]);
}

#[tokio::test(start_paused = true)]
async fn of_two_for_one_target_the_second_is_stalled_until_the_first_is_gone() {
    let world = World::new();
    world.put(&format!("{NODES}n1"), node("n1", true));
    world.put(&format!("{SETS}db"), set(1, json!({})));
    world.pod("db-0", "n1", json!({}));
    world.put(&format!("{STATES}a"), state("a", json!({"metadata": {"creationTimestamp": "2026-01-02T00:00:00Z"}})));
    world.put(&format!("{STATES}z"), state("z", json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}})));
    for name in ["a", "z"] {
        world.settle(name).await;
    }
    assert_eq!((world.reason("a").as_str(), world.reason("z").as_str()), ("Stalled TargetTaken", "Ready Recorded"));
    lock(&world.server).remove(&format!("{STATES}z"));
    world.settle("a").await;
    assert_eq!(world.reason("a"), "Ready Recorded");
}

#[tokio::test(start_paused = true)]
async fn a_statefulset_that_is_made_again_before_a_pass_begins_anew_with_the_pods_that_it_adopts() {
    let world = World::new();
    world.put(&format!("{NODES}n1"), node("n1", true));
    let first = world.put(&format!("{SETS}db"), set(2, json!({})));
    world.pod("db-0", "n1", json!({}));
    world.pod("db-1", "n1", json!({}));
    let policy =
        json!({"spec": {"persistentPodStateRetentionPolicy": "WhenDeleted", "persistentPodAnnotations": null}});
    world.put(&format!("{STATES}keep"), state("keep", policy));
    world.settle("keep").await;
    let target = |world: &World| world.get(&format!("{STATES}keep")).unwrap()["status"]["targetUid"].clone();
    assert_eq!(world.recorded("keep").as_object().unwrap().len(), 2);
    assert_eq!(target(&world), first["metadata"]["uid"]);

    lock(&world.server).remove(&format!("{SETS}db"));
    let second = world.put(&format!("{SETS}db"), set(2, json!({})));
    tokio::time::advance(Duration::from_secs(2)).await;
    world.settle("keep").await;
    assert_eq!(world.recorded("keep"), Value::Null);
    assert_eq!(target(&world), second["metadata"]["uid"]);

    // Nothing but its owner changes in a Pod that is adopted.
    let queue = world.controller.queue.clone();
    world.deliver_all();
    tokio::time::advance(POD_PAUSE).await;
    while let Some(key) = queue.begin() {
        queue.done::<String>(key, Ok(Requeue::Await));
    }
    let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db",
        "uid": second["metadata"]["uid"], "controller": true});
    lock(&world.server).change(&format!("{PODS}db-0"), &json!({"metadata": {"ownerReferences": [owner]}}));
    world.deliver_all();
    assert_eq!(queue.next_in(), Some(POD_PAUSE), "it is looked at");
    tokio::time::advance(Duration::from_secs(2)).await;
    world.settle("keep").await;
    let names: Vec<String> = world.recorded("keep").as_object().unwrap().keys().cloned().collect();
    assert_eq!(names, ["db-0"]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_gone_holds_no_pod_and_one_that_waits_for_it_is_made_again() {
    let world = World::new();
    world.put(&format!("{NODES}n1"), node("n1", true));
    world.put(&format!("{SETS}db"), set(1, json!({})));
    world.pod("db-0", "n1", json!({}));
    let keep = state("keep", json!({"spec": {"persistentPodAnnotations": null}}));
    world.put(&format!("{STATES}keep"), keep);
    world.settle("keep").await;
    assert_eq!(world.recorded("keep")["db-0"]["nodeName"], "n1");

    // It is not Ready for a day: it is there.
    world.put(&format!("{NODES}n1"), node("n1", false));
    lock(&world.server).change(&format!("{PODS}db-0"), &ready(false));
    tokio::time::advance(Duration::from_secs(86_400)).await;
    world.settle("keep").await;
    assert_eq!(world.recorded("keep")["db-0"]["nodeName"], "n1");

    // Its Pod is made again and waits; then the node is gone.
    lock(&world.server).remove(&format!("{PODS}db-0"));
    world.pod(
        "db-0",
        "",
        json!({"kruise.io/injected-persistent-pod-state": "keep", "kruise.rs/restored-topology": HOST}),
    );
    lock(&world.server).change(&format!("{PODS}db-0"), &json!({"spec": {"nodeSelector": {HOST: "n1"}}}));
    world.settle("keep").await;
    lock(&world.server).remove(&format!("{NODES}n1"));
    let requeue = world.settle("keep").await;
    assert_eq!(world.recorded("keep"), Value::Null);
    let Requeue::After(after) = requeue else { panic!("it looks at the Pod that waits: {requeue:?}") };
    assert!(world.get(&format!("{PODS}db-0")).is_some());
    tokio::time::advance(after + Duration::from_secs(1)).await;
    world.settle("keep").await;
    assert!(world.get(&format!("{PODS}db-0")).is_none(), "evicted");
    assert_eq!(world.controller.metrics.evicted.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_ready_for_too_long_is_given_up_where_that_is_wanted() {
    let world = World::new();
    world.put(&format!("{NODES}n1"), node("n1", true));
    world.put(&format!("{SETS}db"), set(1, json!({})));
    world.pod("db-0", "n1", json!({}));
    let annotations = json!({"kruise.rs/clear-after-node-not-ready-seconds": "600"});
    world.put(&format!("{STATES}keep"), state("keep", json!({"metadata": {"annotations": annotations}})));
    world.settle("keep").await;
    world.put(&format!("{NODES}n1"), node("n1", false));
    lock(&world.server).change(&format!("{PODS}db-0"), &ready(false));
    let Requeue::After(after) = world.settle("keep").await else { panic!("it waits") };
    assert!(after > Duration::from_secs(590) && after <= Duration::from_secs(600), "{after:?}");
    assert_eq!(world.recorded("keep")["db-0"]["nodeName"], "n1");
    tokio::time::advance(after).await;
    world.settle("keep").await;
    assert_eq!(world.recorded("keep"), Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_the_configuration_does_not_name_is_refused_and_its_records_stay() {
    let world = World::new();
    let target = json!({"apiVersion": "db.example/v1", "kind": "Cluster", "name": "db"});
    world.put(&format!("{STATES}keep"), state("keep", json!({"spec": {"targetRef": target}})));
    world.settle("keep").await;
    assert_eq!(world.reason("keep"), "Stalled InvalidSpec");
}

#[tokio::test(start_paused = true)]
async fn what_is_known_of_a_kind_is_not_read_again_for_a_minute() {
    let reads: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = reads.clone();
    let context = in_memory::context(move |parts, _| {
        let path = parts.uri.path().to_owned();
        let answer = match path.as_str() {
            "/api/v1/namespaces/kruise-system/configmaps/kruise-configuration" => {
                let list = r#"{"workloads":[{"Group":"g.io","Version":"v1","Kind":"Db"}]}"#;
                json!({"metadata": {"name": "kruise-configuration"}, "data": {"PPS_Watch_Custom_Workload_WhiteList": list}})
            }
            "/apis/g.io/v1" => {
                json!({"groupVersion": "g.io/v1", "resources": [{"name": "dbs", "singularName": "", "namespaced": true, "kind": "Db", "verbs": []}]})
            }
            _ => {
                json!({"apiVersion": "g.io/v1", "kind": "Db", "metadata": {"name": "db", "uid": "t"}, "spec": {"replicas": 3}})
            }
        };
        lock(&noted).push(path);
        (200, answer)
    });
    let controller = Controller::new(&context);
    let target = WorkloadTarget::parse("g.io/v1", "Db", "db").unwrap();
    let object = "/apis/g.io/v1/namespaces/ns/dbs/db";
    for (after, wanted) in [(0, 3), (0, 1), (59, 1), (2, 3), (0, 1)] {
        tokio::time::advance(Duration::from_secs(after)).await;
        let found = controller.custom_target(&ObjectKey::new("ns", "keep"), target).await.unwrap().unwrap();
        assert_eq!(found.unwrap().uid, "t");
        let reads = std::mem::take(&mut *lock(&reads));
        assert_eq!((reads.len(), reads.last().map(String::as_str)), (wanted, Some(object)), "{reads:?}");
    }
}
