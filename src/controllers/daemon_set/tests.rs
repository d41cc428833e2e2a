//! The controller against an API server in memory: what is written, what survives, what is not touched.

mod arrival;
mod simulation;

use std::{collections::BTreeSet, sync::Mutex, time::Duration};

use axum::http::{Method, request::Parts};
use kube::core::PartialObjectMeta;
use serde_json::{Value, json};

use super::*;
use crate::{
    api::{feature_gates::FeatureGates, labels},
    controllers::{
        fake::{Fault, Server},
        in_memory,
        pod_set::Waves,
        tests::recorded::{self, Left},
    },
    domain::kinds::daemon_set::{
        plan::{self, Action, Candidate},
        room::{Charge, Room},
    },
    runtime::{lock, watches::StoredName},
};

/// What OpenKruise 1.9 left behind.
const RECORDED: &str = include_str!("testdata/recorded.json");
const PODS: &str = "/api/v1/namespaces/ns/pods/";
const REVISIONS: &str = "/apis/apps/v1/namespaces/ns/controllerrevisions/";
const SET: &str = "/apis/apps.kruise.io/v1beta1/namespaces/ns/daemonsets/agent";
const BUILT_IN_SETS: &str = "/apis/apps/v1/namespaces/ns/daemonsets/";
const BUILT_IN: &str = "/apis/apps/v1/namespaces/ns/daemonsets/agent";

struct World {
    server: Arc<Mutex<Server>>,
    /// Every write that came.
    writes: Arc<Mutex<Vec<(Method, String, Value)>>>,
    controller: Controller,
}

/// A dry run of a PodTemplate: one default, as an example.
fn defaulted(body: &[u8]) -> Value {
    let mut body: Value = serde_json::from_slice(body).unwrap();
    let spec = &mut body["template"]["spec"];
    for (key, value) in [
        ("dnsPolicy", json!("ClusterFirst")),
        ("restartPolicy", json!("Always")),
        ("schedulerName", json!("default-scheduler")),
        ("securityContext", json!({})),
        ("terminationGracePeriodSeconds", json!(30)),
    ] {
        spec[key] = value;
    }
    for container in spec["containers"].as_array_mut().unwrap() {
        container["imagePullPolicy"] = "IfNotPresent".into();
        container["resources"] = json!({});
        container["terminationMessagePath"] = "/dev/termination-log".into();
        container["terminationMessagePolicy"] = "File".into();
    }
    // As Kubernetes 1.34 answers.
    body["template"]["metadata"].as_object_mut().unwrap().remove("creationTimestamp");
    body
}

impl World {
    fn new() -> Self {
        Self::of(Arc::new(Mutex::new(Server::new(|_, _| Ok(())))))
    }

    /// Another manager for the same API server.
    fn of(server: Arc<Mutex<Server>>) -> Self {
        Self::with(server, &[])
    }

    fn with(server: Arc<Mutex<Server>>, gates: &[&str]) -> Self {
        let writes: Arc<Mutex<Vec<(Method, String, Value)>>> = Arc::default();
        let (answers, log) = (server.clone(), writes.clone());
        let mut context = in_memory::context(move |parts: &Parts, body: &[u8]| {
            let path = parts.uri.path();
            if path.ends_with("/podtemplates") {
                return (201, defaulted(body));
            }
            if parts.method != Method::GET {
                let body = serde_json::from_slice(body).unwrap_or_default();
                lock(&log).push((parts.method.clone(), path.to_owned(), body));
            }
            lock(&answers).answer(parts, body)
        });
        context.gates = Arc::new(FeatureGates::parse(gates, None).unwrap());
        let controller = Controller::new(&context);
        controller.common.built_in().has_all();
        Self { server, writes, controller }
    }

    /// With these nodes, which are Ready.
    fn with_nodes(names: &[&str]) -> Self {
        let world = Self::new();
        names.iter().for_each(|name| world.node(name, json!({})));
        world
    }

    fn node(&self, name: &str, changes: Value) {
        let mut node = json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"},
            "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        json_patch::merge(&mut node, &changes);
        let before =
            self.controller.context.nodes.get(name).map_or(0, |node| {
                node.metadata.resource_version.as_deref().unwrap_or_default().parse::<u64>().unwrap()
            });
        node["metadata"]["resourceVersion"] = (before + 1).to_string().into();
        self.controller.context.nodes.store().upsert(serde_json::from_value(node).unwrap());
    }

    /// A set in namespace `ns`; `changes` are merged over its spec.
    fn apply(&self, changes: Value) {
        let mut server = lock(&self.server);
        let mut set = server.objects.get(SET).map_or_else(
            || {
                json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "DaemonSet",
                    "metadata": {"name": "agent", "namespace": "ns", "uid": "set", "generation": 0},
                    "spec": {"selector": {"matchLabels": {"app": "agent"}},
                        "template": {"metadata": {"labels": {"app": "agent"}, "creationTimestamp": null}, "spec": {
                            "containers": [{"name": "main", "image": "i:1", "newField": {"a": [1]}}]}}}})
            },
            |set| Value::clone(set),
        );
        json_patch::merge(&mut set["spec"], &changes);
        set["metadata"]["generation"] = (set["metadata"]["generation"].as_i64().unwrap() + 1).into();
        server.put(SET, set);
    }

    fn image(&self, image: &str) {
        self.apply(
            json!({"template": {"spec": {"containers": [{"name": "main", "image": image, "newField": {"a": [1]}}]}}}),
        );
    }

    /// Watches bring what there is.
    fn deliver(&self) {
        let server = lock(&self.server);
        for (_, pod) in server.of(PODS) {
            self.controller.context.pods.upsert(serde_json::from_value(Value::clone(&pod)).unwrap());
        }
        if let Some(set) = server.objects.get(SET) {
            self.controller.sets.upsert(serde_json::from_value(Value::clone(set)).unwrap());
        }
    }

    /// A built-in DaemonSet that selects the same Pods. The watch brings its name later, with [`Self::see_built_in`].
    fn put_built_in(&self, name: &str) {
        let labels = json!({"app": "agent"});
        let built_in = json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "generation": 1},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}});
        lock(&self.server).put(&format!("{BUILT_IN_SETS}{name}"), built_in);
    }

    /// The watch of built-in DaemonSets brings one that is there, or that it is gone.
    fn see_built_in(&self, name: &str) {
        let Controller { common, sets, queue, .. } = &self.controller;
        let now = lock(&self.server).objects.get(&format!("{BUILT_IN_SETS}{name}")).map(|object| Value::clone(object));
        let report = |change: Change<'_, StoredName>| common.built_in_changed(&change, sets, queue);
        match now {
            Some(object) => {
                let seen: PartialObjectMeta<BuiltIn> = serde_json::from_value(object).unwrap();
                common.built_in().see(StoredName::of(&seen), report);
            }
            None => common.built_in().see_gone(&ObjectKey::new("ns", name), Some(name), report),
        }
    }

    async fn pass(&self) -> kube::Result<Requeue> {
        self.deliver();
        self.controller.reconcile(&ObjectKey::new("ns", "agent")).await
    }

    /// Kubelets: every Pod gets to its node and runs the images of its spec.
    fn play(&self) {
        let mut server = lock(&self.server);
        for (path, pod) in server.of(PODS) {
            if pod["status"]["phase"] == "Failed" {
                continue;
            }
            let mut pod = Value::clone(&pod);
            let aim = pod.pointer("/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values/0");
            if let Some(node) = aim.cloned() {
                pod["spec"]["nodeName"] = node;
            }
            let containers = pod["spec"]["containers"].as_array().unwrap();
            let statuses: Vec<Value> = containers
                .iter()
                .map(|c| {
                    json!({"name": c["name"], "image": c["image"], "imageID": format!("id-of-{}", c["image"]), "ready": true,
                    "containerID": format!("c://{}", c["image"]), "restartCount": 0, "state": {"running": {}}})
                })
                .collect();
            let gate = pod["status"]["conditions"]
                .as_array()
                .into_iter()
                .flatten()
                .find(|c| c["type"] == "InPlaceUpdateReady")
                .cloned();
            let is_closed = gate.as_ref().is_some_and(|gate| gate["status"] == "False");
            let ready = if is_closed { "False" } else { "True" };
            let mut conditions = vec![
                json!({"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}),
                json!({"type": "KruisePodReady", "status": "True"}),
                json!({"type": "ContainersReady", "status": "True"}),
            ];
            conditions.extend(gate);
            pod["status"] = json!({"phase": "Running", "conditions": conditions, "containerStatuses": statuses});
            server.put(&path, pod);
        }
    }

    /// Passes, kubelets and time, until nothing more is to be done.
    async fn settle(&self) {
        for _ in 0..40 {
            // A refusal backs off; here it is tried again.
            let _ = self.pass().await;
            self.play();
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        self.pass().await.unwrap();
    }

    fn pods(&self) -> Vec<Value> {
        lock(&self.server).of(PODS).into_iter().map(|(_, pod)| Value::clone(&pod)).collect()
    }

    /// Node and image of each Pod, by node.
    fn images(&self) -> Vec<(String, String)> {
        let text = |pod: &Value, at: &str| pod.pointer(at).unwrap().as_str().unwrap().to_owned();
        let mut all: Vec<_> = self
            .pods()
            .iter()
            .map(|pod| (text(pod, "/spec/nodeName"), text(pod, "/spec/containers/0/image")))
            .collect();
        all.sort();
        all
    }

    fn everywhere(&self, image: &str, nodes: &[&str]) {
        let want: Vec<(String, String)> = nodes.iter().map(|node| ((*node).to_owned(), image.to_owned())).collect();
        assert_eq!(self.images(), want);
    }

    fn status(&self) -> Value {
        lock(&self.server).objects[SET]["status"].clone()
    }

    /// Reason and message of a condition that is True.
    fn condition(&self, type_: &str) -> Option<(String, String)> {
        let status = self.status();
        let condition =
            status["conditions"].as_array()?.iter().find(|c| c["type"] == type_ && c["status"] == "True")?;
        let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
        Some((text("reason"), text("message")))
    }

    /// Writes to anything but the set's status.
    fn sent(&self) -> Vec<String> {
        let writes = std::mem::take(&mut *lock(&self.writes));
        let sent = writes.into_iter().filter(|(_, path, _)| !path.starts_with(SET));
        sent.map(|(method, path, _)| format!("{method} {path}")).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn every_node_that_fits_gets_a_pod_with_one_write_and_then_nothing_is_written() {
    let world = World::with_nodes(&["a", "b", "c"]);
    world.node("d", json!({"spec": {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}}));
    world.apply(json!({}));
    world.settle().await;
    world.everywhere("i:1", &["a", "b", "c"]);
    assert_eq!(world.sent().iter().filter(|write| write.contains("/pods")).count(), 3);
    let pod = &world.pods()[0];
    let hash = world.status()["updateRevision"].as_str().unwrap().to_owned();
    assert_eq!(
        pod["metadata"]["labels"],
        json!({"app": "agent", "controller-revision-hash": hash}),
        "as in OpenKruise"
    );
    assert_eq!(pod["metadata"]["annotations"], json!({"cluster-autoscaler.kubernetes.io/daemonset-pod": "true"}));
    assert_eq!(pod["metadata"]["generateName"], "agent-");
    let owner = &pod["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["apiVersion"], &owner["kind"], &owner["controller"]),
        (&json!("apps.kruise.io/v1beta1"), &json!("DaemonSet"), &json!(true))
    );
    assert_eq!(pod["spec"]["readinessGates"], json!([{"conditionType": "KruisePodReady"}]));
    assert_eq!(pod["spec"]["tolerations"].as_array().unwrap().len(), 6);
    assert_eq!(
        pod["spec"]["containers"][0]["newField"],
        json!({"a": [1]}),
        "fields that nobody here knows come through"
    );
    let status = world.status();
    for (field, want) in [
        ("desiredNumberScheduled", 3),
        ("currentNumberScheduled", 3),
        ("numberReady", 3),
        ("numberAvailable", 3),
        ("updatedNumberScheduled", 3),
        ("numberUnavailable", 0),
        ("numberMisscheduled", 0),
        ("observedGeneration", 1),
        // OpenKruise leaves it out until there is a collision; decision 32.
        ("collisionCount", 0),
    ] {
        assert_eq!(status[field], want, "{field}");
    }
    assert_eq!(status["daemonSetHash"], status["updateRevision"]);
    assert_eq!(world.condition("Ready").unwrap().0, "Available");
    let before = lock(&world.server).objects.clone();
    world.settle().await;
    assert_eq!(world.sent(), Vec::<String>::new());
    assert_eq!(lock(&world.server).objects[SET], before[SET]);
}

#[tokio::test(start_paused = true)]
async fn a_takeover_from_openkruise_makes_no_revision_and_touches_no_pod_whatever_the_version_of_its_owner() {
    let recorded: Vec<Value> = serde_json::from_str(RECORDED).unwrap();
    for (stage, version) in recorded.iter().flat_map(|stage| [(stage, "v1beta1"), (stage, "v1alpha1")]) {
        let world = World::with_nodes(&["node-a"]);
        let below = |plural: &str, name: &str| format!("/apis/apps/v1/namespaces/golden/{plural}/{name}");
        for pod in stage["pods"].as_array().unwrap() {
            let mut pod = pod.clone();
            pod["metadata"]["ownerReferences"][0]["apiVersion"] = format!("apps.kruise.io/{version}").into();
            world.controller.context.pods.upsert(serde_json::from_value(pod).unwrap());
        }
        for revision in stage["revisions"].as_array().unwrap() {
            let path = below("controllerrevisions", revision["metadata"]["name"].as_str().unwrap());
            lock(&world.server).objects.insert(path, Arc::new(revision.clone()));
        }
        let set = &stage["sets"][version];
        let path = "/apis/apps.kruise.io/v1beta1/namespaces/golden/daemonsets/ads";
        let stored = lock(&world.server).put(path, set.clone());
        world.controller.sets.upsert(serde_json::from_value(stored).unwrap());
        for _ in 0..3 {
            world.controller.reconcile(&ObjectKey::new("golden", "ads")).await.unwrap();
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        let writes = std::mem::take(&mut *lock(&world.writes));
        assert!(writes.len() <= 1, "{}: {writes:?}", stage["stage"]);
        for (method, path, body) in writes {
            assert!(path.ends_with("/daemonsets/ads/status"), "{}: {method} {path} {body}", stage["stage"]);
        }
        let status = lock(&world.server).objects[path]["status"].clone();
        for field in ["desiredNumberScheduled", "numberAvailable", "updatedNumberScheduled", "numberReady"] {
            assert_eq!(status[field], set["status"][field], "{field}");
        }
        let hash =
            if version == "v1beta1" { &set["status"]["updateRevision"] } else { &set["status"]["daemonSetHash"] };
        assert_eq!((&status["updateRevision"], &status["daemonSetHash"]), (hash, hash));
    }
}

#[tokio::test(start_paused = true)]
async fn beside_a_built_in_daemon_set_of_the_same_name_nothing_is_done() {
    let world = World::with_nodes(&["a"]);
    world.put_built_in("agent");
    world.apply(json!({}));
    world.settle().await;
    assert_eq!(world.sent(), Vec::<String>::new());
    let (reason, message) = world.condition("Stalled").unwrap();
    assert_eq!(reason, "BuiltInDaemonSet");
    assert!(message.contains("--cascade=orphan"), "{message}");
    // Seen or not before it is gone.
    lock(&world.server).remove(BUILT_IN);
    world.settle().await;
    world.everywhere("i:1", &["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_built_in_daemon_set_that_comes_back_stops_the_next_step() {
    let world = World::with_nodes(&["a"]);
    world.apply(json!({}));
    world.settle().await;
    world.sent();
    // The watch has not brought it.
    world.put_built_in("agent");
    world.image("i:2");
    let _ = world.pass().await;
    assert!(world.sent().iter().all(|write| !write.contains("/pods/")), "although it was not there a moment ago");
}

/// Places of an update must not stay empty while a busy API server is asked.
#[tokio::test(start_paused = true)]
async fn while_the_watch_knows_no_built_in_daemon_set_of_the_name_it_is_read_once_for_each_generation() {
    let world = World::with_nodes(&["a", "b", "c"]);
    world.apply(json!({"updateStrategy": {"rollingUpdate": {"rollingUpdateType": "InPlaceIfPossible"}}}));
    world.settle().await;
    world.image("i:2");
    world.pass().await.unwrap();
    lock(&world.server).unreadable.push(BUILT_IN);
    for _ in 0..12 {
        world.play();
        world.pass().await.unwrap();
        tokio::time::advance(Duration::from_secs(60)).await;
    }
    world.everywhere("i:2", &["a", "b", "c"]);
    world.image("i:3");
    assert!(world.pass().await.is_err(), "another template");
    world.everywhere("i:2", &["a", "b", "c"]);
}

/// What is not in the store may be there then.
#[tokio::test(start_paused = true)]
async fn while_the_watch_of_built_in_daemon_sets_fails_they_are_read() {
    let world = World::with_nodes(&["a"]);
    world.apply(json!({}));
    world.settle().await;
    world.controller.common.built_in().note_failure();
    world.put_built_in("agent");
    world.node("b", json!({}));
    world.pass().await.unwrap();
    assert_eq!((world.condition("Stalled").unwrap().0.as_str(), world.pods().len()), ("BuiltInDaemonSet", 1));
}

#[tokio::test(start_paused = true)]
async fn a_built_in_daemon_set_that_comes_or_goes_is_seen_at_once() {
    let world = World::with_nodes(&["a", "b", "c"]);
    world.apply(json!({}));
    world.settle().await;
    let lives = || world.pods().len();
    world.put_built_in("other");
    world.see_built_in("other");
    assert_eq!(world.controller.queue.depth(), 0, "another name");
    world.put_built_in("agent");
    world.see_built_in("agent");
    let key = world.controller.queue.begin().expect("a pass at once");
    world.controller.queue.done(key, Ok::<_, String>(Requeue::Await));
    world.node("d", json!({}));
    world.settle().await;
    assert_eq!((world.condition("Stalled").unwrap().0.as_str(), lives()), ("BuiltInDaemonSet", 3));
    lock(&world.server).remove(BUILT_IN);
    world.see_built_in("agent");
    assert_eq!(world.controller.queue.next_in(), Some(Duration::from_secs(1)), "its Pods are to be seen before");
    world.settle().await;
    assert_eq!((world.condition("Stalled"), lives()), (None, 4));
}

/// It is read again only when its spec has changed.
#[tokio::test(start_paused = true)]
async fn a_built_in_daemon_set_of_the_name_that_selects_other_pods_keeps_nothing_from_being_done() {
    let world = World::with_nodes(&["a"]);
    let labels = json!({"app": "another"});
    let mut other = json!({"metadata": {"name": "agent", "namespace": "ns", "uid": "agent", "generation": 1},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}});
    lock(&world.server).put(BUILT_IN, other.clone());
    world.see_built_in("agent");
    world.apply(json!({}));
    world.settle().await;
    world.everywhere("i:1", &["a"]);
    lock(&world.server).unreadable.push(BUILT_IN);
    world.node("b", json!({}));
    world.settle().await;
    world.everywhere("i:1", &["a", "b"]);
    other["status"] = json!({"numberReady": 1});
    lock(&world.server).put(BUILT_IN, other.clone());
    world.see_built_in("agent");
    assert_eq!(world.controller.queue.depth(), 0, "the spec is the same");
    world.pass().await.unwrap();
    other["metadata"]["generation"] = 2.into();
    lock(&world.server).put(BUILT_IN, other);
    world.see_built_in("agent");
    assert_eq!(world.controller.queue.depth(), 1);
    assert!(world.pass().await.is_err(), "another spec");
}

/// A DaemonSet on two nodes, of which one Pod has begun an update in place.
async fn updating_in_place() -> World {
    let world = World::with_nodes(&["a", "b"]);
    world.apply(json!({"updateStrategy": {"rollingUpdate": {"rollingUpdateType": "InPlaceIfPossible"}}}));
    world.settle().await;
    world.image("i:2");
    while !world.pods().iter().any(|pod| pod.pointer("/spec/containers/0/image").unwrap() == "i:2") {
        let _ = world.pass().await;
    }
    world
}

#[tokio::test(start_paused = true)]
async fn while_the_built_in_daemon_set_cannot_be_read_nothing_is_made_or_deleted_and_a_condition_says_so() {
    let world = updating_in_place().await;
    world.put_built_in("agent");
    world.see_built_in("agent");
    lock(&world.server).unreadable.push(BUILT_IN);
    world.node("c", json!({}));
    world.sent();
    for _ in 0..5 {
        world.play();
        assert!(world.pass().await.is_err(), "it is tried again");
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    let sent = world.sent();
    assert!(sent.iter().all(|write| write.starts_with("PATCH /api/v1") && write.ends_with("/status")), "{sent:?}");
    let gates = |pod: &Value| pod.pointer("/status/conditions").unwrap().as_array().unwrap().clone();
    let is_closed = |c: &Value| c["type"] == "InPlaceUpdateReady" && c["status"] != "True";
    assert!(!sent.is_empty() && !world.pods().iter().flat_map(gates).any(|c| is_closed(&c)), "what was begun ends");
    let (reason, message) = world.condition("Reconciling").unwrap();
    assert_eq!(reason, "BuiltInDaemonSetUnknown");
    assert!(message.starts_with("no Pod is created, updated or deleted while it cannot be read whether the built-in DaemonSet agent (apps/v1) selects the same Pods: "), "{message}");
    assert_eq!(world.status()["desiredNumberScheduled"], 3);
    lock(&world.server).unreadable.clear();
    lock(&world.server).remove(BUILT_IN);
    world.see_built_in("agent");
    world.settle().await;
    world.everywhere("i:2", &["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn an_update_in_place_that_has_begun_ends_although_its_set_cannot_go_on() {
    for way in ["no revision", "invalid", "built-in"] {
        let world = updating_in_place().await;
        match way {
            "no revision" => {
                lock(&world.server).unreadable.push(REVISIONS.trim_end_matches('/'));
                world.image("i:3");
            }
            "invalid" => world.apply(json!({"updateStrategy": {"type": "Sometimes"}})),
            _ => {
                world.put_built_in("agent");
                world.see_built_in("agent");
            }
        }
        for _ in 0..5 {
            world.play();
            let _ = world.pass().await;
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        let gates = |pod: &Value| pod.pointer("/status/conditions").unwrap().as_array().unwrap().clone();
        let is_closed = |c: &Value| c["type"] == "InPlaceUpdateReady" && c["status"] != "True";
        assert!(!world.pods().iter().flat_map(gates).any(|c| is_closed(&c)), "{way}");
        assert_eq!(world.images().iter().filter(|(_, image)| image == "i:2").count(), 1, "{way}: nothing else");
    }
}

/// A revision and the Pods of two nodes that nobody controls, as `kubectl delete --cascade=orphan` leaves them.
fn left_by_the_built_in_one() -> World {
    let world = World::with_nodes(&["a", "b"]);
    let template = json!({"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": [{"name": "main", "image": "i:1", "newField": {"a": [1]}}]}});
    let stored = defaulted(json!({"template": template}).to_string().as_bytes())["template"].clone();
    let revision = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 3,
        "metadata": {"name": "agent-5d8f", "namespace": "ns", "labels": {"app": "agent", "controller-revision-hash": "5d8f"}},
        "data": crate::k8s::revision::data(&stored)});
    lock(&world.server).put(&format!("{REVISIONS}agent-5d8f"), revision);
    for node in ["a", "b"] {
        let pod = json!({"metadata": {"name": format!("agent-{node}"), "namespace": "ns",
            "labels": {"app": "agent", "controller-revision-hash": "5d8f", "pod-template-generation": "3"}},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "i:1"}]}});
        lock(&world.server).put(&format!("{PODS}agent-{node}"), pod);
    }
    world.play();
    world
}

#[tokio::test(start_paused = true)]
async fn pods_that_a_manager_had_not_relabelled_yet_are_not_replaced_by_the_next_one() {
    let world = left_by_the_built_in_one();
    world.apply(json!({}));
    world.settle().await;
    let hash = world.status()["updateRevision"].clone();
    let old = json!({"metadata": {"labels": {"controller-revision-hash": "5d8f"}}});
    lock(&world.server).change(&format!("{PODS}agent-a"), &old);
    world.controller.common.forget();
    world.sent();
    world.settle().await;
    assert_eq!(world.pods()[0]["metadata"]["labels"]["controller-revision-hash"], hash);
    let sent = world.sent();
    assert!(sent.iter().all(|write| !write.starts_with("DELETE")), "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn pods_and_revisions_that_the_built_in_daemon_set_left_are_adopted_and_not_replaced() {
    let world = left_by_the_built_in_one();
    world.apply(json!({}));
    world.settle().await;
    let pods = world.pods();
    assert_eq!(
        pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap()).collect::<Vec<_>>(),
        ["agent-a", "agent-b"]
    );
    let hash = world.status()["updateRevision"].clone();
    for pod in &pods {
        assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], "set");
        assert_eq!(
            pod["metadata"]["labels"]["controller-revision-hash"], hash,
            "the hash of the template as it is stored now"
        );
    }
    assert_eq!(world.condition("Ready").unwrap().0, "Available");
    assert!(world.sent().iter().all(|write| !write.starts_with("DELETE")));
}

/// The same manifest with the other apiVersion, with the template as our admission stores it: as the built-in DaemonSet has
/// it, with all defaults, and as a user applied it.
fn taken_over(left: &Left) -> Vec<Value> {
    let stored = &left.set["spec"]["template"];
    let applied = left.set["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"].as_str();
    let applied = applied.map(|text| {
        let mut template = serde_json::from_str::<Value>(text).unwrap()["spec"]["template"].take();
        // The image was changed since.
        template["spec"]["containers"][0]["image"] = stored["spec"]["containers"][0]["image"].clone();
        template
    });
    let set = |mut template: Value| {
        template["metadata"]["creationTimestamp"] = Value::Null;
        let mut spec = left.set["spec"].clone();
        spec["template"] = template;
        json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "DaemonSet",
            "metadata": {"name": "agent", "namespace": "ns", "uid": "set", "generation": 0}, "spec": spec})
    };
    [stored.clone()].into_iter().chain(applied).map(set).collect()
}

#[tokio::test(start_paused = true)]
async fn pods_of_apps_v1_of_1_30_and_1_34_get_an_owner_and_the_hash_and_are_not_replaced() {
    let recorded = recorded::left_by("DaemonSet");
    for (left, set) in recorded.iter().flat_map(|left| taken_over(left).into_iter().map(move |set| (left, set))) {
        let (world, file) = (World::new(), &left.file);
        assert_eq!(left.set["metadata"]["name"], "agent", "{file}");
        for pod in &left.pods {
            world.node(pod["spec"]["nodeName"].as_str().unwrap(), json!({}));
        }
        let is_defaulted = set["spec"]["template"]["spec"]["dnsPolicy"].is_string();
        for (below, objects) in [(PODS, &left.pods), (REVISIONS, &left.revisions)] {
            for object in objects {
                let path = format!("{below}{}", object["metadata"]["name"].as_str().unwrap());
                lock(&world.server).put(&path, object.clone());
            }
        }
        lock(&world.server).put(SET, set);
        world.apply(json!({}));
        world.settle().await;
        for write in world.sent() {
            let is_revision = !is_defaulted && write == format!("POST {}", REVISIONS.trim_end_matches('/'));
            assert!(write.starts_with("PATCH ") || is_revision, "{file}: {write}");
        }
        assert_eq!(recorded::names(&world.pods()), recorded::names(&left.pods), "{file}");
        let hash = world.status()["updateRevision"].clone();
        let newest = left.revisions.iter().max_by_key(|revision| revision["revision"].as_i64()).unwrap();
        assert_eq!(hash == newest["metadata"]["labels"]["controller-revision-hash"], is_defaulted, "{file}");
        for pod in &world.pods() {
            assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], "set", "{file}");
            assert_eq!(pod["metadata"]["labels"]["controller-revision-hash"], hash, "{file}");
        }
        assert_eq!(world.condition("Ready").unwrap().0, "Available", "{file}");
        // A manager that knows nothing finds the same.
        world.controller.common.forget();
        world.settle().await;
        assert_eq!(world.sent(), Vec::<String>::new(), "{file}");
    }
}

/// Pods of the DaemonSet already, of a revision that nobody controls.
fn with_an_orphaned_revision() -> World {
    let world = left_by_the_built_in_one();
    let owner = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "DaemonSet", "name": "agent", "uid": "set", "controller": true});
    let pods = lock(&world.server).of(PODS);
    for (path, _) in pods {
        lock(&world.server).change(&path, &json!({"metadata": {"ownerReferences": [owner]}}));
    }
    world
}

impl World {
    /// An orphan whose name comes before that of the others.
    fn orphan(&self, number: usize) {
        let orphan = json!({"metadata": {"name": format!("agent-0{number:03}"), "namespace": "ns", "labels": {"app": "agent"}},
            "revision": 1, "data": {"spec": {"other": number}}});
        lock(&self.server).put(&format!("{REVISIONS}agent-0{number:03}"), orphan);
    }

    /// All Pods of the built-in DaemonSet are there, with the hash of the newest revision.
    fn are_taken_over(&self) {
        let sent = self.sent();
        assert!(sent.iter().all(|write| !write.starts_with("DELETE /api/v1")), "{sent:?}");
        let (pods, hash) = (self.pods(), self.status()["updateRevision"].clone());
        assert_eq!(pods.len(), 2);
        assert!(pods.iter().all(|pod| pod["metadata"]["labels"]["controller-revision-hash"] == hash), "{pods:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn while_a_revision_cannot_be_adopted_no_pod_is_replaced_on_a_guess() {
    let world = with_an_orphaned_revision();
    world.apply(json!({}));
    lock(&world.server).faults.push_back(Fault::Error(409));
    world.pass().await.unwrap_err();
    assert_eq!(world.sent(), [format!("PATCH {REVISIONS}agent-5d8f")]);
    world.settle().await;
    world.are_taken_over();
}

#[tokio::test(start_paused = true)]
async fn of_very_many_orphaned_revisions_all_are_adopted_before_a_pod_is_replaced() {
    let world = with_an_orphaned_revision();
    (0..100).for_each(|number| world.orphan(number));
    world.apply(json!({}));
    world.pass().await.unwrap_err();
    world.settle().await;
    world.are_taken_over();
}

#[tokio::test(start_paused = true)]
async fn while_revisions_are_not_known_partitioned_scaling_makes_no_pod() {
    let world = left_by_the_built_in_one();
    world.apply(
        json!({"scaleStrategy": {"partitionedScaling": true}, "updateStrategy": {"rollingUpdate": {"partition": 1}}}),
    );
    world.settle().await;
    world.node("c", json!({}));
    world.settle().await;
    world.everywhere("i:1", &["a", "b"]);
    let old = json!({"metadata": {"labels": {"controller-revision-hash": "5d8f"}}});
    ["a", "b"].iter().for_each(|node| lock(&world.server).change(&format!("{PODS}agent-{node}"), &old));
    world.controller.common.forget();
    world.orphan(0);
    lock(&world.server).faults.push_back(Fault::Error(409));
    world.pass().await.unwrap_err();
    world.everywhere("i:1", &["a", "b"]);
    world.settle().await;
    world.everywhere("i:1", &["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_burst_that_could_not_be_used_is_tried_again_after_a_pause() {
    let nodes = ["a", "b"];
    let world = World::with_nodes(&nodes);
    world.apply(json!({}));
    world.settle().await;
    world.apply(json!({"updateStrategy": {"rollingUpdate": {"burstReplicas": 1}}, "burstReplicas": 1}));
    world.settle().await;
    nodes.iter().for_each(|name| world.node(name, json!({"spec": {"taints": [{"key": "x", "effect": "NoExecute"}]}})));
    world.deliver();
    // Another task writes them.
    let views = world.controller.context.pods.list();
    let held: Vec<_> = views.iter().map(|view| world.controller.common.pods.hold(view).unwrap()).collect();
    world.sent();
    let Requeue::After(pause) = world.pass().await.unwrap() else { panic!("it looks again") };
    assert!(!pause.is_zero() && world.sent().is_empty());
    drop(held);
    world.settle().await;
    assert_eq!(world.pods().len(), 0);
}

#[test]
fn a_step_that_was_refused_gives_back_its_room_and_its_place_in_the_burst() {
    let candidate = |pod: &str| Candidate {
        action: Action::Delete { pod: pod.into(), failed_on: None },
        charge: Charge::Available,
        zone: String::new(),
    };
    let mut plan = plan::Plan {
        candidates: vec![candidate("a"), candidate("b"), candidate("c")],
        room: Room::new(1, false, false, None),
        burst: 1,
        ..plan::Plan::default()
    };
    let wave = plan.next_wave(10);
    assert_eq!(wave, [candidate("a")]);
    plan.give_back(&wave[0]);
    assert_eq!(plan.next_wave(10), [candidate("b")]);
    assert_eq!(plan.next_wave(10), []);
}

#[tokio::test(start_paused = true)]
async fn what_is_remembered_of_a_node_is_forgotten_with_it() {
    let world = World::with_nodes(&["a", "b"]);
    world.apply(json!({}));
    world.settle().await;
    let made = || {
        let remembered = world.controller.common.memories.with(&ObjectKey::new("ns", "agent"), |memory| {
            memory.made.keys().cloned().collect::<std::collections::BTreeSet<_>>()
        });
        remembered.unwrap().into_iter().collect::<Vec<_>>()
    };
    assert_eq!(made(), ["a", "b"]);
    world.controller.context.nodes.store().remove(&ObjectKey::new("", "b"), None);
    world.pass().await.unwrap();
    assert_eq!(made(), ["a"]);
}

/// Admission of somebody else: it refuses Pods for node `a`.
fn refuse_on_a(_: &mut Server, object: &mut Value) -> Result<(), u16> {
    let aim = object.pointer("/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values/0");
    if aim.is_some_and(|node| node == "a") { Err(403) } else { Ok(()) }
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_pod_is_always_refused_keeps_no_other_node_from_getting_its_own() {
    for changes in [json!({"burstReplicas": 1}), json!({})] {
        let world = World::of(Arc::new(Mutex::new(Server::new(refuse_on_a))));
        ["a", "b", "c", "d"].iter().for_each(|name| world.node(name, json!({})));
        world.apply(changes);
        for _ in 0..12 {
            let _ = world.pass().await;
            world.play();
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        world.everywhere("i:1", &["b", "c", "d"]);
        let (_, message) = world.condition("FailedCreatePod").unwrap();
        assert!(message.starts_with("the Pod for node a could not be created"), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_set_that_cannot_be_followed_is_read_once_and_its_pods_stay() {
    let world = World::with_nodes(&["a"]);
    world.apply(json!({}));
    world.settle().await;
    let terms = vec![json!({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}); 600];
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
    world.apply(json!({"template": {"spec": {"affinity": {"nodeAffinity": required}}}}));
    world.sent();
    world.pass().await.unwrap();
    assert_eq!(world.sent(), Vec::<String>::new());
    let (reason, message) = world.condition("Stalled").unwrap();
    assert_eq!(reason, "InvalidSpec");
    assert!(
        message.ends_with("nodeSelectorTerms: it has 1200 terms and requirements in all; want up to 1000"),
        "{message}"
    );
    world.everywhere("i:1", &["a"]);
    let held = world.controller.sets.get(&ObjectKey::new("ns", "agent")).unwrap();
    let read = || world.controller.outline(&ObjectKey::new("ns", "agent"), &held);
    assert!(read().is_err() && read() == read());
}

/// It was stored while admission was away.
#[tokio::test(start_paused = true)]
async fn a_template_that_cannot_be_read_about_nodes_takes_no_pod_away() {
    let near = json!([{"matchExpressions": [{"key": "zone", "operator": "Near", "values": ["1"]}]}]);
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": near}});
    for (what, spec, field) in [
        ("an unknown operator", json!({"affinity": {"nodeAffinity": required}}), "matchExpressions[0].operator: "),
        ("a selector with a number", json!({"nodeSelector": {"zone": 1}}), "spec.template.spec.nodeSelector[zone]: "),
        ("no toleration", json!({"tolerations": ["dedicated"]}), "spec.template.spec.tolerations[0]: "),
    ] {
        let world = World::with_nodes(&["a"]);
        let dedicated = json!([{"key": "dedicated", "effect": "NoExecute"}]);
        world.node("b", json!({"metadata": {"labels": {"zone": "1"}}, "spec": {"taints": dedicated}}));
        world.apply(json!({"template": {"spec": {"tolerations": [{"key": "dedicated", "operator": "Exists"}]}}}));
        world.settle().await;
        world.sent();
        world.apply(json!({"template": {"spec": spec}}));
        world.settle().await;
        assert_eq!(world.sent(), Vec::<String>::new(), "{what}");
        let (reason, message) = world.condition("Stalled").unwrap();
        assert_eq!(reason, "InvalidSpec", "{what}");
        assert!(message.contains(field), "{what}: {message}");
        let status = world.status();
        assert_eq!((&status["updatedNumberScheduled"], &status["numberAvailable"]), (&json!(0), &json!(2)), "{what}");
        world.everywhere("i:1", &["a", "b"]);
    }
}

/// It was stored while admission was away. Each Pod would be let go of, and another one made in its place.
#[tokio::test(start_paused = true)]
async fn a_template_whose_labels_the_selector_does_not_match_makes_changes_and_deletes_no_pod() {
    for way in ["Standard", "InPlaceIfPossible"] {
        let world = World::with_nodes(&["a"]);
        world.apply(json!({"updateStrategy": {"rollingUpdate": {"rollingUpdateType": way}}}));
        world.settle().await;
        world.sent();
        world.apply(json!({"template": {"metadata": {"labels": {"app": "other"}}}}));
        world.node("b", json!({}));
        world.settle().await;
        assert_eq!(world.sent(), Vec::<String>::new(), "{way}");
        let (reason, message) = world.condition("Stalled").unwrap();
        assert_eq!(reason, "InvalidSpec", "{way}");
        let why = "\"app=other\" is not matched by spec.selector; want labels that it matches";
        assert_eq!(message, format!("spec.template.metadata.labels: {why}"), "{way}");
        world.everywhere("i:1", &["a"]);
    }
}

/// Who asks how far the update is would hear of the one before.
#[tokio::test(start_paused = true)]
async fn a_generation_whose_revision_is_not_found_out_yet_is_not_said_to_be_observed() {
    for (what, reason) in [
        ("the built-in one cannot be read", "BuiltInDaemonSetUnknown"),
        ("revisions cannot be read", "RevisionUnknown"),
        ("no revision can be made", "RevisionUnknown"),
    ] {
        let world = World::with_nodes(&["a"]);
        world.apply(json!({}));
        world.settle().await;
        let before = world.status();
        assert_eq!((&before["observedGeneration"], &before["updatedNumberScheduled"]), (&json!(1), &json!(1)));
        world.image("i:2");
        match what {
            "the built-in one cannot be read" => lock(&world.server).unreadable.push(BUILT_IN),
            "revisions cannot be read" => lock(&world.server).unreadable.push(REVISIONS.trim_end_matches('/')),
            _ => lock(&world.server).faults.push_back(Fault::Error(403)),
        }
        world.pass().await.unwrap_err();
        assert_eq!(world.condition("Reconciling").unwrap().0, reason, "{what}");
        for field in ["observedGeneration", "updateRevision", "daemonSetHash"] {
            assert_eq!(world.status()[field], before[field], "{what}: {field}");
        }
        lock(&world.server).unreadable.clear();
        world.settle().await;
        world.everywhere("i:2", &["a"]);
        assert_eq!(world.status()["observedGeneration"], 2, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_update_replaces_one_pod_at_a_time_and_keeps_a_limited_history() {
    let nodes = ["a", "b", "c"];
    let world = World::with_nodes(&nodes);
    world.apply(json!({"revisionHistoryLimit": 1}));
    world.settle().await;
    for (image, revisions) in [("i:2", 2), ("i:3", 2), ("i:2", 2)] {
        world.image(image);
        world.sent();
        for _ in 0..20 {
            let before = world.pods().len();
            let _ = world.pass().await;
            assert!(world.pods().len() + 1 >= nodes.len() && before >= 2, "more than one is missing");
            world.play();
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        world.settle().await;
        world.everywhere(image, &nodes);
        assert_eq!(lock(&world.server).of(REVISIONS).len(), revisions, "{image}");
        assert_eq!(world.condition("Ready").unwrap().0, "Available");
    }
}

#[tokio::test(start_paused = true)]
async fn a_surge_makes_the_new_pod_before_the_old_one_goes() {
    let nodes = ["a", "b"];
    let world = World::with_nodes(&nodes);
    world.apply(json!({"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}));
    world.settle().await;
    world.image("i:2");
    for _ in 0..20 {
        let _ = world.pass().await;
        let count = world.pods().len();
        assert!((2..=3).contains(&count), "{count}");
        world.play();
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    world.settle().await;
    world.everywhere("i:2", &nodes);
}

#[tokio::test(start_paused = true)]
async fn an_update_in_place_keeps_the_pod_and_labels_it_with_the_bare_hash() {
    let world = World::with_nodes(&["a", "b"]);
    world.apply(json!({"updateStrategy": {"rollingUpdate": {"rollingUpdateType": "InPlaceIfPossible"}}}));
    world.settle().await;
    let uids = |world: &World| world.pods().iter().map(|pod| pod["metadata"]["uid"].clone()).collect::<Vec<_>>();
    let before = uids(&world);
    assert_eq!(
        world.pods()[0]["spec"]["readinessGates"],
        json!([{"conditionType": "InPlaceUpdateReady"}, {"conditionType": "KruisePodReady"}])
    );
    world.image("i:2");
    world.settle().await;
    world.everywhere("i:2", &["a", "b"]);
    assert_eq!(uids(&world), before);
    let hash = world.status()["updateRevision"].clone();
    let pod = &world.pods()[0];
    assert_eq!(pod["metadata"]["labels"][labels::CONTROLLER_REVISION_HASH], hash);
    let state: Value =
        serde_json::from_str(pod["metadata"]["annotations"][labels::IN_PLACE_STATE].as_str().unwrap()).unwrap();
    assert_eq!(state["revision"], hash);
    assert_eq!(pod["metadata"]["labels"].get(labels::POD_TEMPLATE_HASH), None);
    assert_eq!(world.condition("Ready").unwrap().0, "Available");
}

#[tokio::test(start_paused = true)]
async fn the_grace_period_of_the_annotation_lies_between_not_ready_and_the_change() {
    let world = World::with_nodes(&["a"]);
    world.apply(json!({"updateStrategy": {"rollingUpdate": {"rollingUpdateType": "InPlaceIfPossible"}}}));
    lock(&world.server).change(SET, &json!({"metadata": {"annotations": {labels::IN_PLACE_GRACE_SECONDS: "30"}}}));
    world.settle().await;
    world.image("i:2");
    for _ in 0..3 {
        let _ = world.pass().await;
        world.play();
    }
    let pod = world.pods().remove(0);
    let grace = pod["metadata"]["annotations"][labels::IN_PLACE_GRACE].as_str().unwrap();
    assert!(grace.contains(r#""containerImages":{"main":"i:2"}"#) && grace.contains(r#""graceSeconds":30"#), "{grace}");
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|c| c["type"] == labels::CONDITION_INPLACE_UPDATE_READY && c["status"] == "False"));
    world.everywhere("i:1", &["a"]);
    tokio::time::advance(Duration::from_secs(29)).await;
    let _ = world.pass().await;
    world.everywhere("i:1", &["a"]);
    tokio::time::advance(Duration::from_secs(2)).await;
    world.settle().await;
    world.everywhere("i:2", &["a"]);
    assert_eq!(world.pods()[0]["metadata"]["annotations"].get(labels::IN_PLACE_GRACE), None);
    assert_eq!(world.condition("Ready").unwrap().0, "Available");
}

#[tokio::test(start_paused = true)]
async fn with_the_hook_pre_normal_a_new_pod_is_in_service_when_the_hook_has_let_it_in() {
    let world = World::with_nodes(&["a", "b"]);
    world.apply(json!({"lifecycle": {"preNormal": {"labelsHandler": {"in": "yes"}}}}));
    world.settle().await;
    let states = || {
        let pods = world.pods();
        let states = pods.iter().map(|pod| pod["metadata"]["labels"][labels::LIFECYCLE_STATE].as_str());
        let mut states: Vec<String> = states.map(|state| state.unwrap_or_default().to_owned()).collect();
        states.sort();
        states
    };
    let let_in = || {
        let pods = lock(&world.server).of(PODS);
        for (path, _) in pods {
            lock(&world.server).change(&path, &json!({"metadata": {"labels": {"in": "yes"}}}));
        }
    };
    assert_eq!(states(), ["PreparingNormal", "PreparingNormal"]);
    assert!(world.pods()[0]["metadata"]["annotations"][labels::LIFECYCLE_TIMESTAMP].is_string());
    let counts = || (world.status()["numberReady"].clone(), world.status()["numberAvailable"].clone());
    assert_eq!(counts(), (json!(2), json!(0)));
    assert_eq!(world.condition("Reconciling").unwrap().0, "PodNotInService");
    let_in();
    world.settle().await;
    assert_eq!((states(), counts()), (vec!["Normal".to_owned(); 2], (json!(2), json!(2))));
    world.image("i:2");
    world.settle().await;
    assert_eq!(states(), ["Normal", "PreparingNormal"], "it takes the only place of the update");
    assert_eq!(world.images()[0], ("a".to_owned(), "i:1".to_owned()));
    for _ in 0..2 {
        let_in();
        world.settle().await;
    }
    world.everywhere("i:2", &["a", "b"]);
    assert_eq!(world.condition("Ready").unwrap().0, "Available");
}

/// Admission of somebody else lets no Pod be changed to `i:2`.
fn deny_second(_: &mut Server, before: &Value, after: &Value) -> Result<(), u16> {
    let is_denied = before["spec"] != after["spec"] && after["spec"]["containers"][0]["image"] == "i:2";
    if is_denied { Err(403) } else { Ok(()) }
}

#[tokio::test(start_paused = true)]
async fn while_updates_in_place_are_denied_no_pod_leaves_service_after_the_first_ones() {
    let nodes = ["a", "b", "c", "d", "e"];
    let world = World::with_nodes(&nodes);
    let strategy = json!({"rollingUpdateType": "InPlaceIfPossible", "maxUnavailable": 2});
    world.apply(json!({"updateStrategy": {"rollingUpdate": strategy}}));
    world.settle().await;
    let left_service = || {
        let writes = std::mem::take(&mut *lock(&world.writes));
        writes.iter().filter(|(.., body)| body.to_string().contains("StartInPlaceUpdate")).count()
    };
    left_service();
    lock(&world.server).admit_change = deny_second;
    world.image("i:2");
    let _ = world.pass().await;
    let _ = world.pass().await;
    let first = left_service();
    assert!((1..=2).contains(&first), "{first} within maxUnavailable");
    for _ in 0..20 {
        assert!(world.pass().await.is_err());
        world.play();
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(left_service(), 0);
    world.everywhere("i:1", &nodes);
    lock(&world.server).admit_change = |_, _, _| Ok(());
    world.settle().await;
    world.everywhere("i:2", &nodes);
}

#[tokio::test(start_paused = true)]
async fn edge_37_of_a_duplicate_revision_pods_are_relabelled_before_it_goes() {
    let world = World::with_nodes(&["a"]);
    world.apply(json!({"revisionHistoryLimit": 0}));
    world.settle().await;
    let (_, revision) = lock(&world.server).of(REVISIONS).remove(0);
    let mut twin = Value::clone(&revision);
    twin["metadata"]["name"] = "agent-twin".into();
    twin["metadata"]["uid"] = Value::Null;
    twin["revision"] = 9.into();
    lock(&world.server).put(&format!("{REVISIONS}agent-twin"), twin);
    world.apply(json!({"minReadySeconds": 1}));
    world.sent();
    world.settle().await;
    assert_eq!(world.status()["updateRevision"], "twin", "the newer one counts");
    assert_eq!(world.pods()[0]["metadata"]["labels"]["controller-revision-hash"], "twin");
    assert_eq!(lock(&world.server).of(REVISIONS).len(), 1);
    assert!(world.sent().iter().all(|write| !write.contains("DELETE /api/v1")));
}

#[tokio::test(start_paused = true)]
async fn a_creation_whose_answer_was_lost_makes_no_second_pod() {
    let world = World::with_nodes(&["a", "b"]);
    world.apply(json!({}));
    // The revision is made first.
    let _ = world.pass().await;
    let pods = lock(&world.server).of(PODS);
    pods.iter().for_each(|(path, _)| lock(&world.server).remove(path));
    world.controller.context.pods.list().iter().for_each(|pod| {
        world.controller.context.pods.remove(&ObjectKey::of(pod.as_ref()), None);
    });
    lock(&world.server).faults.extend([Fault::Lost, Fault::Lost]);
    // What the watch would bring is late.
    let _ = world.controller.reconcile(&ObjectKey::new("ns", "agent")).await;
    let _ = world.controller.reconcile(&ObjectKey::new("ns", "agent")).await;
    let _ = world.controller.reconcile(&ObjectKey::new("ns", "agent")).await;
    world.settle().await;
    assert_eq!(world.pods().len(), 2);
    assert!(world.sent().iter().all(|write| !write.starts_with("DELETE /api/v1")), "none was too many");
}

/// A DaemonSet with a Pod on node `a` that an earlier manager has made, and the name of that Pod.
async fn made_by_an_earlier_manager(spec: Value) -> (World, Value) {
    let before = World::with_nodes(&["a"]);
    before.apply(spec);
    before.settle().await;
    let world = World::of(before.server.clone());
    world.node("a", json!({}));
    world.settle().await;
    assert_eq!(world.sent(), Vec::<String>::new());
    let name = world.pods()[0]["metadata"]["name"].clone();
    (world, name)
}

/// Whoever waits until the old name is gone would wait in vain.
#[tokio::test(start_paused = true)]
async fn a_pod_has_another_name_than_the_one_before_it_also_if_an_earlier_manager_made_that_one() {
    let (world, name) = made_by_an_earlier_manager(json!({})).await;
    let controller = &world.controller;
    for answer in [Some(Fault::Lost), None] {
        let gone = controller.context.pods.list().remove(0);
        lock(&world.server).remove(&format!("{PODS}{}", gone.name()));
        let key = ObjectKey::of(gone.as_ref());
        controller.context.pods.see_gone(&key, Some(gone.uid()), |change| controller.pod_changed(&change));
        lock(&world.server).faults.extend(answer);
        // What the watch would bring is late.
        let _ = controller.reconcile(&ObjectKey::new("ns", "agent")).await;
        let _ = controller.reconcile(&ObjectKey::new("ns", "agent")).await;
        world.settle().await;
        let pods = world.pods();
        assert_eq!(pods.len(), 1);
        assert!(pods[0]["metadata"]["name"] != name && pods[0]["metadata"]["name"] != gone.name(), "{pods:?}");
        assert!(world.sent().iter().all(|write| !write.starts_with("DELETE /api/v1")), "none was too many");
    }
}

/// An update in place changes the revision in the label, and not the name.
#[tokio::test(start_paused = true)]
async fn after_a_roll_back_a_pod_has_another_name_than_the_one_that_an_earlier_manager_updated_in_place() {
    let before = World::with_nodes(&["a"]);
    let strategy = |way: &str| json!({"rollingUpdate": {"rollingUpdateType": way}});
    before.apply(json!({"updateStrategy": strategy("InPlaceIfPossible")}));
    before.settle().await;
    let name = before.pods()[0]["metadata"]["name"].clone();
    before.image("i:2");
    before.settle().await;
    before.everywhere("i:2", &["a"]);
    assert_eq!(before.pods()[0]["metadata"]["name"], name);
    let world = World::of(before.server.clone());
    world.node("a", json!({}));
    world.settle().await;
    world.apply(json!({"updateStrategy": strategy("Standard")}));
    world.image("i:1");
    world.settle().await;
    world.everywhere("i:1", &["a"]);
    assert_ne!(world.pods()[0]["metadata"]["name"], name);
}

#[tokio::test(start_paused = true)]
async fn a_failed_pod_of_an_earlier_manager_is_replaced_by_one_of_another_name_before_a_watch_says_that_it_is_gone() {
    let (world, name) = made_by_an_earlier_manager(json!({})).await;
    let path = format!("{PODS}{}", name.as_str().unwrap());
    lock(&world.server).change(&path, &json!({"status": {"phase": "Failed"}}));
    world.settle().await;
    world.everywhere("i:1", &["a"]);
    assert_ne!(world.pods()[0]["metadata"]["name"], name);
}

#[tokio::test(start_paused = true)]
async fn a_surge_makes_a_pod_of_another_name_beside_one_of_an_earlier_manager_that_still_ends() {
    let surge = json!({"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}});
    let (world, name) = made_by_an_earlier_manager(surge).await;
    lock(&world.server).is_graceful = true;
    let path = format!("{PODS}{}", name.as_str().unwrap());
    lock(&world.server).change(&path, &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    world.pass().await.unwrap();
    assert_eq!(world.sent(), [format!("POST {}", PODS.trim_end_matches('/'))], "at the first attempt");
    assert_eq!(world.pods().len(), 2);
    lock(&world.server).remove(&path);
    world.settle().await;
    assert_eq!(world.pods().len(), 1);
    assert_ne!(world.pods()[0]["metadata"]["name"], name);
}

#[tokio::test(start_paused = true)]
async fn shortfall_10_2_31_what_is_refused_is_reported_and_the_status_is_written_all_the_same() {
    let world = World::with_nodes(&["a", "b"]);
    world.apply(json!({}));
    world.settle().await;
    world.node("c", json!({}));
    lock(&world.server).faults.push_back(Fault::Error(403));
    let queue = &world.controller.queue;
    queue.add(ObjectKey::new("ns", "agent"));
    let key = queue.begin().expect("the set");
    let outcome = world.pass().await;
    assert!(outcome.is_err());
    queue.done(key, outcome);
    let next = queue.next_in().expect("it looks again, whatever happens");
    assert!(!next.is_zero() && next <= Duration::from_secs(1), "{next:?}");
    assert_eq!(world.status()["desiredNumberScheduled"], 3);
    let (_, message) = world.condition("FailedCreatePod").unwrap();
    assert!(message.starts_with("the Pod for node c could not be created"), "{message}");
    world.settle().await;
    assert_eq!(world.condition("FailedCreatePod"), None);
    world.everywhere("i:1", &["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn edge_35_a_pod_that_fails_again_and_again_is_replaced_with_longer_and_longer_pauses() {
    let world = World::with_nodes(&["a"]);
    world.apply(json!({}));
    let mut replaced = 0;
    for _ in 0..60 {
        let _ = world.pass().await;
        let pods = lock(&world.server).of(PODS);
        for (path, _) in pods.iter().filter(|(_, pod)| pod["status"].is_null()) {
            replaced += 1;
            let failed = json!({"spec": {"nodeName": "a"}, "status": {"phase": "Failed"}});
            lock(&world.server).change(path, &failed);
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!((5..=7).contains(&replaced), "{replaced} Pods in a minute: 1, 2, 4, 8, 16, 32 seconds");
}

#[tokio::test(start_paused = true)]
async fn shortfall_10_2_33_a_node_wakes_only_the_sets_that_it_matters_to() {
    let world = World::with_nodes(&["a"]);
    world.apply(json!({"template": {"spec": {"nodeSelector": {"zone": "1"}}}}));
    world.deliver();
    let node = |changes: Value| -> Arc<NodeView> {
        let mut node = json!({"metadata": {"name": "a", "uid": "a", "labels": {"zone": "1"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        json_patch::merge(&mut node, &changes);
        Arc::new(serde_json::from_value(node).unwrap())
    };
    let wakes = |old: Option<Value>, new: Option<Value>| {
        let (old, new) = (old.map(&node), new.map(&node));
        let world = World::new();
        world.apply(json!({"template": {"spec": {"nodeSelector": {"zone": "1"}}},
            "updateStrategy": {"rollingUpdate": {"selector": {"matchLabels": {"canary": "yes"}}}}}));
        world.deliver();
        match (&old, &new) {
            (_, Some(new)) => {
                world.controller.node_changed(&Change::Applied { old: old.as_ref(), new, initial: false })
            }
            (Some(old), None) => world.controller.node_changed(&Change::Deleted(old)),
            (None, None) => {}
        }
        world.controller.queue.depth() > 0
    };
    let labels = |labels: Value| json!({"metadata": {"labels": labels}});
    let taint = json!({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}});
    let not_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    assert!(wakes(None, Some(json!({}))), "a new one that fits");
    assert!(!wakes(None, Some(labels(json!({"zone": "2"})))), "one that does not");
    assert!(wakes(Some(json!({})), None), "one that is gone");
    assert!(wakes(Some(json!({})), Some(taint)));
    assert!(wakes(Some(json!({})), Some(labels(json!({"zone": "2"})))));
    assert!(wakes(Some(json!({})), Some(labels(json!({"canary": "yes"})))), "edge 32: the update selector");
    assert!(!wakes(Some(json!({})), Some(labels(json!({"other": "yes"})))));
    assert!(!wakes(Some(json!({})), Some(not_ready)), "without limits of ours");
}

#[tokio::test(start_paused = true)]
async fn strict_nodes_that_break_and_repel_pods_keep_their_places_also_for_a_manager_that_starts_anew() {
    let nodes = ["a", "b", "c", "d", "e"];
    let world = World::with_nodes(&nodes);
    world.apply(json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": 2}}}));
    lock(&world.server).change(SET, &json!({"metadata": {"annotations": {labels::STRICT_MAX_UNAVAILABLE: "true"}}}));
    world.settle().await;
    world.image("bad:1");
    let is_bad = |pod: &Value| pod.pointer("/spec/containers/0/image").unwrap() == "bad:1";
    let mut broken = BTreeSet::new();
    for round in 0..30 {
        let _ = world.pass().await;
        world.play();
        for pod in world.pods().iter().filter(|pod| is_bad(pod)) {
            // Its node goes down with it, and the node controller says so.
            let node = pod["spec"]["nodeName"].as_str().unwrap().to_owned();
            if broken.insert(node.clone()) {
                let key = "node.kubernetes.io/unreachable";
                let taints = json!([{"key": key, "effect": "NoSchedule"}, {"key": key, "effect": "NoExecute"}]);
                let now = crate::k8s::time::rfc3339(crate::runtime::clock::now().wall);
                let ready = json!([{"type": "Ready", "status": "Unknown", "lastTransitionTime": now}]);
                world.node(&node, json!({"spec": {"taints": taints}, "status": {"conditions": ready}}));
            }
            let path = format!("{PODS}{}", pod["metadata"]["name"].as_str().unwrap());
            let down = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
            lock(&world.server).change(&path, &down);
        }
        if round == 15 {
            world.controller.common.forget();
        }
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    assert_eq!(broken.len(), 2, "{broken:?}");
    assert_eq!(world.status()["desiredNumberScheduled"], 5, "they count as before");
    assert_eq!(world.condition("Ready"), None);
}

/// A manager that starts anew learns from it that the update has not broken the node.
#[tokio::test(start_paused = true)]
async fn strict_an_update_in_place_on_a_node_that_was_lost_before_writes_that_into_its_pod() {
    let world = World::with_nodes(&["a"]);
    world.apply(json!({"updateStrategy": {"rollingUpdate": {"rollingUpdateType": "InPlaceIfPossible"}}}));
    lock(&world.server).change(SET, &json!({"metadata": {"annotations": {labels::STRICT_MAX_UNAVAILABLE: "true"}}}));
    world.settle().await;
    let label = |world: &World| world.pods()[0]["metadata"]["labels"][labels::NODE_NOT_READY_SINCE].clone();
    let name = world.pods()[0]["metadata"]["name"].clone();
    assert_eq!(label(&world), Value::Null);
    tokio::time::advance(Duration::from_secs(3600)).await;
    let since = crate::runtime::clock::now().wall;
    let ready = json!([{"type": "Ready", "status": "False", "lastTransitionTime": crate::k8s::time::rfc3339(since)}]);
    world.node("a", json!({"status": {"conditions": ready}}));
    world.image("i:2");
    world.settle().await;
    world.everywhere("i:2", &["a"]);
    assert_eq!(world.pods()[0]["metadata"]["name"], name, "in place");
    assert_eq!(label(&world), json!(since.as_second().to_string()));
}

#[tokio::test(start_paused = true)]
async fn a_spec_that_cannot_be_followed_is_reported_once_and_nothing_is_done() {
    let world = World::with_nodes(&["a"]);
    world.apply(json!({"updateStrategy": {"type": "Sometimes"}}));
    world.settle().await;
    assert_eq!(world.sent(), Vec::<String>::new());
    assert_eq!(world.condition("Stalled").unwrap().0, "InvalidSpec");
    let empty = World::with_nodes(&["a"]);
    empty.apply(json!({"selector": {"matchLabels": null}}));
    empty.settle().await;
    assert_eq!(empty.condition("Stalled").unwrap().0, "SelectingAll");
    assert_eq!(empty.sent(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn edge_41_a_status_that_met_a_conflict_is_written_from_a_fresh_read() {
    let world = World::with_nodes(&["a"]);
    world.apply(json!({}));
    world.settle().await;
    world.node("b", json!({}));
    lock(&world.server).change(SET, &json!({"metadata": {"annotations": {"somebody": "else"}}}));
    let key = ObjectKey::new("ns", "agent");
    let Requeue::After(_) = world.controller.reconcile(&key).await.unwrap() else { panic!("it looks again") };
    assert_eq!(world.status()["desiredNumberScheduled"], 1, "its version is not the newest");
    world.controller.reconcile(&key).await.unwrap();
    assert_eq!(world.status()["desiredNumberScheduled"], 2);
}

#[tokio::test(start_paused = true)]
async fn edge_44_a_manager_of_one_namespace_sees_all_nodes() {
    let mut world = World::with_nodes(&["a", "b"]);
    world.controller.context.only_namespace = Some("ns".into());
    world.apply(json!({}));
    world.settle().await;
    world.everywhere("i:1", &["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn shortfall_10_2_24_a_revision_whose_name_is_taken_gets_another_one() {
    let first = World::with_nodes(&["a"]);
    first.apply(json!({}));
    first.settle().await;
    let hash = first.status()["updateRevision"].as_str().unwrap().to_owned();
    let world = World::with_nodes(&["a"]);
    let name = format!("agent-{hash}");
    let taken = json!({"metadata": {"name": name, "namespace": "ns"}, "revision": 1, "data": {"spec": {"other": 1}}});
    lock(&world.server).put(&format!("{REVISIONS}{name}"), taken);
    world.apply(json!({}));
    world.settle().await;
    world.everywhere("i:1", &["a"]);
    assert_eq!(world.status()["collisionCount"], 1);
    let other = world.status()["updateRevision"].clone();
    assert_ne!(other, hash.as_str());
    assert_eq!(world.pods()[0]["metadata"]["labels"]["controller-revision-hash"], other);
}

#[tokio::test(start_paused = true)]
async fn shortfall_10_2_25_events_of_pods_owned_through_v1alpha1_wake_the_set() {
    let world = World::new();
    let owner = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "DaemonSet", "name": "agent", "uid": "set", "controller": true});
    let pod = json!({"metadata": {"name": "p", "namespace": "ns", "ownerReferences": [owner]}});
    let pod: Arc<PodView> = Arc::new(serde_json::from_value(pod).unwrap());
    world.controller.pod_changed(&Change::Applied { old: None, new: &pod, initial: false });
    assert_eq!(world.controller.queue.depth(), 1);
}

#[tokio::test(start_paused = true)]
async fn shortfall_10_2_37_a_gate_of_the_template_is_not_repeated_and_a_failed_update_keeps_no_pod_where_it_may_not_be()
{
    let world = World::with_nodes(&["a", "b"]);
    let gates = json!([{"conditionType": "KruisePodReady"}, {"conditionType": "InPlaceUpdateReady"}]);
    world.apply(json!({"updateStrategy": {"rollingUpdate": {"rollingUpdateType": "InPlaceIfPossible"}},
        "template": {"spec": {"readinessGates": gates}}}));
    world.settle().await;
    assert!(world.pods().iter().all(|pod| pod["spec"]["readinessGates"] == gates));
    world.image("i:2");
    world.node("b", json!({"spec": {"taints": [{"key": "dedicated", "effect": "NoExecute"}]}}));
    // The revision is made, the Pod of node b goes, and then the update of the other one is refused.
    world.deliver();
    let pods: Vec<Value> = world.pods();
    let other = pods.iter().find(|pod| pod["spec"]["nodeName"] == "a").unwrap();
    let name = other["metadata"]["name"].as_str().unwrap();
    lock(&world.server).change(&format!("{PODS}{name}"), &json!({"metadata": {"uid": "another"}}));
    let _ = world.controller.reconcile(&ObjectKey::new("ns", "agent")).await;
    assert_eq!(world.pods().len(), 1, "in the same pass");
}

/// Three nodes that have been there for long, and a set with this annotation.
async fn staying_away() -> World {
    let world = World::new();
    for name in ["a", "b", "c"] {
        world.node(name, json!({"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}}));
    }
    world.apply(json!({}));
    lock(&world.server).change(SET, &json!({"metadata": {"annotations": {labels::STAY_AWAY_AFTER_EVICTION: "true"}}}));
    world.settle().await;
    world
}

fn cordoned(is: bool) -> Value {
    json!({"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}, "spec": {"unschedulable": is}})
}

impl World {
    /// The name of the Pod of a node.
    fn pod_on(&self, node: &str) -> String {
        let pods = self.pods();
        let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == node).unwrap();
        pod["metadata"]["name"].as_str().unwrap().to_owned()
    }

    /// Somebody takes the Pod of a node away, and no watch delivers that before it is gone.
    fn take_away(&self, node: &str) {
        let name = self.pod_on(node);
        lock(&self.server).remove(&format!("{PODS}{name}"));
        self.controller.context.pods.remove(&ObjectKey::new("ns", &name), None);
    }

    /// Somebody takes the Pod of a node away at once, and the watch says so.
    fn take_away_watched(&self, node: &str) {
        let name = self.pod_on(node);
        lock(&self.server).remove(&format!("{PODS}{name}"));
        let report = |change: Change<'_, PodView>| self.controller.pod_changed(&change);
        self.controller.context.pods.see_gone(&ObjectKey::new("ns", &name), None, report);
    }
}

#[tokio::test(start_paused = true)]
async fn on_a_cordoned_node_a_pod_that_is_deleted_by_force_comes_back_although_no_pass_saw_it_going() {
    let target = json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"});
    let evicted = json!({"status": {"conditions": [target]}});
    for (before, nodes) in [(json!({}), vec!["a", "b", "c"]), (evicted, vec!["a", "c"])] {
        let world = staying_away().await;
        world.node("b", cordoned(true));
        world.settle().await;
        let path = format!("{PODS}{}", world.pod_on("b"));
        lock(&world.server).change(&path, &before);
        world.deliver();
        world.take_away_watched("b");
        assert_eq!(world.controller.queue.depth(), 1, "a pass follows");
        world.settle().await;
        world.everywhere("i:1", &nodes);
    }
}

#[tokio::test(start_paused = true)]
async fn an_eviction_of_the_next_pod_counts_although_no_pass_has_seen_that_pod() {
    let target = json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"});
    let world = staying_away().await;
    world.node("b", cordoned(true));
    world.settle().await;
    world.take_away_watched("b");
    // It makes the next Pod, and does not see it.
    world.pass().await.unwrap();
    world.play();
    world.deliver();
    let path = format!("{PODS}{}", world.pod_on("b"));
    lock(&world.server).change(&path, &json!({"status": {"conditions": [target]}}));
    world.deliver();
    world.take_away_watched("b");
    world.settle().await;
    world.everywhere("i:1", &["a", "c"]);
}

#[tokio::test(start_paused = true)]
async fn with_the_annotation_a_new_set_leaves_out_cordoned_nodes_and_so_does_one_that_such_a_node_begins_to_fit() {
    let node = |is_cordoned: bool, zone: &str| {
        let mut node = cordoned(is_cordoned);
        node["metadata"]["labels"] = json!({ "zone": zone });
        node
    };
    let world = World::new();
    for (name, is_cordoned, zone) in [("a", false, "1"), ("b", true, "1"), ("c", true, "2")] {
        world.node(name, node(is_cordoned, zone));
    }
    world.apply(json!({"template": {"spec": {"nodeSelector": {"zone": "1"}}}}));
    lock(&world.server).change(SET, &json!({"metadata": {"annotations": {labels::STAY_AWAY_AFTER_EVICTION: "true"}}}));
    world.settle().await;
    world.everywhere("i:1", &["a"]);
    world.node("c", node(true, "1"));
    world.settle().await;
    world.everywhere("i:1", &["a"]);
    ["b", "c"].iter().for_each(|name| world.node(name, node(false, "1")));
    world.settle().await;
    world.everywhere("i:1", &["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_set_stays_away_from_a_cordoned_node_although_no_manager_saw_the_eviction() {
    let world = staying_away().await;
    world.everywhere("i:1", &["a", "b", "c"]);
    world.node("b", cordoned(true));
    world.settle().await;
    world.everywhere("i:1", &["a", "b", "c"]);
    // The manager is down while the Pod is evicted.
    world.take_away("b");
    world.controller.common.forget();
    world.settle().await;
    world.everywhere("i:1", &["a", "c"]);
    assert_eq!(world.status()["desiredNumberScheduled"], 2);
    assert_eq!(world.condition("Ready").unwrap().0, "Available");
    world.image("i:2");
    world.settle().await;
    world.everywhere("i:2", &["a", "c"]);
    world.node("b", cordoned(false));
    world.settle().await;
    world.everywhere("i:2", &["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn on_a_cordoned_node_a_pod_is_updated_and_one_that_a_user_deletes_comes_back() {
    let world = staying_away().await;
    world.node("b", cordoned(true));
    world.image("i:2");
    world.settle().await;
    world.everywhere("i:2", &["a", "b", "c"]);
    let pods = world.pods();
    let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == "b").unwrap();
    let path = format!("{PODS}{}", pod["metadata"]["name"].as_str().unwrap());
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    lock(&world.server).change(&path, &deleted);
    world.pass().await.unwrap();
    world.take_away("b");
    world.settle().await;
    world.everywhere("i:2", &["a", "b", "c"]);
    let without = World::with_nodes(&["a"]);
    without.apply(json!({}));
    without.settle().await;
    without.node("a", cordoned(true));
    without.take_away("a");
    without.settle().await;
    without.everywhere("i:1", &["a"]);
}

/// Nothing is left then that tells this from an eviction.
#[tokio::test(start_paused = true)]
async fn a_cordoned_node_whose_pod_was_replaced_by_a_manager_that_ended_gets_its_pod_when_it_is_uncordoned() {
    let world = staying_away().await;
    world.node("b", cordoned(true));
    world.image("i:2");
    for _ in 0..40 {
        let _ = world.pass().await;
        if !world.pods().iter().any(|pod| pod["spec"]["nodeName"] == "b") {
            break;
        }
        world.play();
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    assert_eq!(world.pods().len(), 2, "the old one is gone, and the next one is not made yet");
    world.controller.common.forget();
    world.settle().await;
    world.everywhere("i:2", &["a", "c"]);
    world.node("b", cordoned(false));
    world.settle().await;
    world.everywhere("i:2", &["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_replacement_instead_of_an_update_in_place_is_reported_once_with_its_reason() {
    let world = World::with_nodes(&["a", "b"]);
    world.apply(json!({"updateStrategy": {"rollingUpdate": {"rollingUpdateType": "InPlaceIfPossible"}}}));
    world.settle().await;
    world.apply(json!({"template": {"spec": {"hostNetwork": true}}}));
    world.deliver();
    let generation =
        || world.controller.common.memories.with(&ObjectKey::new("ns", "agent"), |memory| memory.not_in_place);
    assert_eq!(generation().flatten(), None);
    world.settle().await;
    assert_eq!(generation().flatten(), Some(2), "for the second generation");
    world.everywhere("i:1", &["a", "b"]);
}

/// The watch has not shown yet what somebody has written last.
#[tokio::test(start_paused = true)]
async fn a_hook_that_takes_hold_again_just_before_the_deletion_keeps_the_pod() {
    let (again, other) = (json!({"metadata": {"labels": {"hold": "yes"}}}), json!({"status": {"message": "m"}}));
    for (changes, is_held) in [(again, true), (other, false)] {
        let world = World::with_nodes(&["a"]);
        world.apply(json!({"lifecycle": {"preDelete": {"labelsHandler": {"hold": "yes"}}},
            "template": {"metadata": {"labels": {"hold": "yes"}}}}));
        world.settle().await;
        world.apply(json!({"template": {"spec": {"nodeSelector": {"zone": "elsewhere"}}}}));
        world.settle().await;
        let path = lock(&world.server).of(PODS)[0].0.clone();
        assert_eq!(world.pods()[0]["metadata"]["labels"][labels::LIFECYCLE_STATE], "PreparingDelete");
        lock(&world.server).change(&path, &json!({"metadata": {"labels": {"hold": "no"}}}));
        world.deliver();
        lock(&world.server).change(&path, &changes);
        world.sent();
        world.controller.reconcile(&ObjectKey::new("ns", "agent")).await.unwrap();
        let sent = world.sent();
        let deletions = sent.iter().filter(|write| write.starts_with("DELETE ")).count();
        assert_eq!(deletions, if is_held { 1 } else { 2 }, "{sent:?}");
        assert_eq!(world.pods().len(), usize::from(is_held));
    }
}

const JOBS: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/imagepulljobs/";

#[tokio::test(start_paused = true)]
async fn shortfall_10_2_27_images_are_pulled_ahead_of_an_update_and_not_of_the_first_installation() {
    let server = Arc::new(Mutex::new(Server::new(|_, _| Ok(()))));
    let world = World::with(server, &["PreDownloadImageForDaemonSetUpdate=true"]);
    ["a", "b", "c"].iter().for_each(|name| world.node(name, json!({})));
    let min_ready = json!({"metadata": {"annotations": {labels::PRE_DOWNLOAD_MIN_UPDATED_READY: "1"}}});
    world.apply(json!({}));
    lock(&world.server).change(SET, &min_ready);
    world.settle().await;
    assert_eq!(lock(&world.server).of(JOBS).len(), 0, "the first installation");
    world.image("i:2");
    world.pass().await.unwrap();
    assert_eq!(lock(&world.server).of(JOBS).len(), 0, "no Pod is ready on the new revision");
    for _ in 0..6 {
        let _ = world.pass().await;
        world.play();
        tokio::time::advance(Duration::from_secs(2)).await;
        if !lock(&world.server).of(JOBS).is_empty() {
            break;
        }
    }
    let jobs = lock(&world.server).of(JOBS);
    let [(_, job)] = jobs.as_slice() else { panic!("{jobs:?}") };
    assert_eq!(job["spec"]["image"], "i:2");
    let revision = job["metadata"]["labels"]["controller.kubernetes.io/hash"].clone();
    let hash = world.status()["updateRevision"].clone();
    assert_eq!(revision, hash, "the bare hash, which Pods have");
    let excluded = &job["spec"]["podSelector"]["matchExpressions"][0]["values"];
    assert!(excluded.as_array().unwrap().contains(&hash), "{excluded}");
    world.settle().await;
    world.everywhere("i:2", &["a", "b", "c"]);
    assert_eq!(lock(&world.server).of(JOBS).len(), 0, "they go with the update");
}
