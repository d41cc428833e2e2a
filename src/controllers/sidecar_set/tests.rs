//! The controller against an API server in memory: what is written, in which order, and what is left alone.

mod simulation;

use std::time::Duration;

use axum::http::{Method, request::Parts};
use serde_json::json;

use super::*;
use crate::{
    api::labels::{self, SIDECAR_SET_HASH, SIDECAR_SET_HASH_WITHOUT_IMAGE, SIDECAR_SET_WORKING, SIDECAR_SETS_INJECTED},
    controllers::{
        fake::{Fault, Server},
        in_memory,
    },
    domain::kinds::sidecar_set::{defaults, hash},
    runtime::events::Recorder,
};

const SET: &str = "/apis/apps.kruise.io/v1beta1/sidecarsets/logs";
const PODS: &str = "/api/v1/namespaces/ns/pods/";
const REVISIONS: &str = "/apis/apps/v1/namespaces/kruise-system/controllerrevisions/";

struct World {
    server: Arc<Mutex<Server>>,
    /// Every write that came.
    writes: Arc<Mutex<Vec<(Method, String, Value)>>>,
    /// Every path that was read.
    reads: Arc<Mutex<Vec<String>>>,
    api: Arc<Mutex<Api>>,
    controller: Controller,
}

/// What the API server makes of Pods besides.
#[derive(Default)]
struct Api {
    /// Pods whose writes it refuses, with which code.
    refused: (u16, Vec<String>),
    /// Its webhook puts the containers into new Pods.
    injects: bool,
    /// How often writes that it refuses were tried.
    tried: usize,
    /// How many creations were tried.
    trials: usize,
    /// How it refuses all evictions: because of a PodDisruptionBudget, or of two.
    keeps: Option<u16>,
    /// Pods that were to be evicted.
    evicted: Vec<String>,
}

impl Api {
    /// What it answers to a write that is not carried out as any other.
    fn answer(&mut self, parts: &Parts, body: &[u8], server: &mut Server) -> Option<(u16, Value)> {
        let path = parts.uri.path();
        let no = |code: u16| {
            (code, json!({"kind": "Status", "status": "Failure", "code": code, "message": "a budget says no"}))
        };
        if self.refused.1.iter().any(|name| path.ends_with(&format!("/pods/{name}"))) {
            self.tried += 1;
            return Some(no(self.refused.0));
        }
        if let Some(pod) = path.strip_suffix("/eviction") {
            self.evicted.push(pod.trim_start_matches(PODS).to_owned());
            if let Some(code) = self.keeps {
                return Some(no(code));
            }
            server.remove(pod);
            return Some((201, json!({"kind": "Status", "status": "Success"})));
        }
        if parts.uri.query() == Some("dryRun=All") {
            self.trials += 1;
            let mut pod: Value = serde_json::from_slice(body).unwrap();
            assert_eq!(pod["metadata"]["annotations"]["kruise.rs/trial"], "true");
            if self.injects {
                pod["metadata"]["annotations"][SIDECAR_SETS_INJECTED] = "logs".into();
            }
            return Some((201, pod));
        }
        None
    }
}

impl World {
    fn new() -> Self {
        let server = Arc::new(Mutex::new(Server::new(|_, _| Ok(()))));
        let writes: Arc<Mutex<Vec<(Method, String, Value)>>> = Arc::default();
        let (reads, api): (Arc<Mutex<Vec<String>>>, Arc<Mutex<Api>>) = Default::default();
        let (answers, log, read, special) = (server.clone(), writes.clone(), reads.clone(), api.clone());
        let context = in_memory::context(move |parts: &Parts, body: &[u8]| {
            let path = parts.uri.path();
            if parts.method == Method::GET {
                lock(&read).push(path.to_owned());
            } else {
                if let Some(answer) = lock(&special).answer(parts, body, &mut lock(&answers)) {
                    return answer;
                }
                let body = serde_json::from_slice(body).unwrap_or_default();
                lock(&log).push((parts.method.clone(), path.to_owned(), body));
            }
            lock(&answers).answer(parts, body)
        });
        Self { server, writes, reads, api, controller: Controller::new(&context) }
    }

    /// Another process, whose events are kept. They are objects then.
    fn hear_events(&mut self) {
        let context = &self.controller.context;
        let (events, send) = Recorder::new(context.client.clone(), "test", "", Default::default());
        tokio::spawn(send);
        self.controller = Controller::new(&Context { events, ..context.clone() });
    }

    /// The reasons and messages of the events so far.
    async fn events(&self) -> Vec<String> {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let server = lock(&self.server);
        let all = server.objects.iter().filter(|(path, _)| path.contains("/events/"));
        all.map(|(_, event)| format!("{} {}", event["reason"].as_str().unwrap(), event["message"].as_str().unwrap()))
            .collect()
    }

    /// From now on the API server refuses writes to these Pods.
    fn refuse(&self, code: u16, names: &[&str]) {
        lock(&self.api).refused = (code, names.iter().map(|&name| name.to_owned()).collect());
    }

    /// From now on Pods that lack the containers are evicted, or not.
    fn repair(&self, value: Value) {
        let annotations = json!({labels::REPAIR_UNINJECTED: value});
        lock(&self.server).change(SET, &json!({"metadata": {"annotations": annotations}}));
    }

    /// A Pod of a controller.
    fn owned(&self, name: &str, (api_version, kind, owner): (&str, &str, &str), has_containers: bool) {
        let path = format!("{PODS}{name}");
        if has_containers {
            self.inject(&[name]);
        } else {
            let pod = json!({"metadata": {"name": name, "namespace": "ns", "labels": {"app": "web"}},
                "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "m:1"}]}});
            lock(&self.server).put(&path, pod);
        }
        let owner = json!([{"apiVersion": api_version, "kind": kind, "name": owner, "uid": owner, "controller": true}]);
        lock(&self.server).change(&path, &json!({"metadata": {"ownerReferences": owner}}));
        self.play();
    }

    /// The Pods that were to be evicted, sorted.
    fn evicted(&self) -> Vec<String> {
        let mut evicted = lock(&self.api).evicted.clone();
        evicted.sort();
        evicted
    }

    /// The condition of a type: its status and its message.
    fn condition(&self, type_: &str) -> Option<(String, String)> {
        let status = self.status();
        let found = status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == type_)?;
        let text = |key: &str| found[key].as_str().unwrap().to_owned();
        Some((text("status"), text("message")))
    }

    /// The set as admission stores it; `changes` are merged over its spec.
    fn apply(&self, changes: Value) {
        let mut server = lock(&self.server);
        let mut set = server.objects.get(SET).map_or_else(
            || {
                json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet",
                    "metadata": {"name": "logs", "uid": "set", "generation": 0},
                    "spec": {"selector": {"matchLabels": {"app": "web"}}, "containers": [{"name": "agent", "image": "a:1"}]}})
            },
            |set| Value::clone(set),
        );
        json_patch::merge(&mut set["spec"], &changes);
        set["spec"] = defaults::defaulted(&set["spec"], None);
        let hashes = hash::of(&set["spec"]);
        let hashes = json!({SIDECAR_SET_HASH: hashes.hash, SIDECAR_SET_HASH_WITHOUT_IMAGE: hashes.without_image});
        json_patch::merge(&mut set["metadata"]["annotations"], &hashes);
        set["metadata"]["generation"] = (set["metadata"]["generation"].as_i64().unwrap() + 1).into();
        server.put(SET, set);
    }

    fn image(&self, image: &str) {
        self.apply(json!({"containers": [{"name": "agent", "image": image}]}));
    }

    /// Pods with the containers as the set has them now.
    fn inject(&self, names: &[&str]) {
        let mut server = lock(&self.server);
        let annotations = server.objects[SET]["metadata"]["annotations"].clone();
        let image = server.objects[SET]["spec"]["containers"][0]["image"].clone();
        for name in names {
            let note = |key: &str| json!({"logs": {"hash": annotations[key], "sidecarList": ["agent"]}}).to_string();
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns", "labels": {"app": "web"},
                "annotations": {SIDECAR_SETS_INJECTED: "logs", SIDECAR_SET_HASH: note(SIDECAR_SET_HASH),
                SIDECAR_SET_HASH_WITHOUT_IMAGE: note(SIDECAR_SET_HASH_WITHOUT_IMAGE)}},
                "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "m:1"}, {"name": "agent", "image": image}]}});
            server.put(&format!("{PODS}{name}"), pod);
        }
    }

    /// Kubelets: every Pod runs the images of its spec.
    fn play(&self) {
        let mut server = lock(&self.server);
        for (path, pod) in server.of(PODS) {
            let mut pod = Value::clone(&pod);
            let status = |c: &Value| {
                json!({"name": c["name"], "image": c["image"], "imageID": format!("id-of-{}", c["image"]), "ready": true,
                    "containerID": format!("c://{}", c["image"]), "restartCount": 0, "state": {"running": {}}})
            };
            let statuses: Vec<Value> = pod["spec"]["containers"].as_array().unwrap().iter().map(status).collect();
            let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
            let others = pod["status"]["conditions"].as_array().into_iter().flatten().filter(|c| c["type"] != "Ready");
            let conditions: Vec<Value> = others.cloned().chain([ready]).collect();
            pod["status"] = json!({"phase": "Running", "conditions": conditions, "containerStatuses": statuses});
            server.put(&path, pod);
        }
    }

    /// Watches bring what there is.
    fn deliver(&self) {
        let (server, controller) = (lock(&self.server), &self.controller);
        if let Some(set) = server.objects.get(SET) {
            let (old, new) = controller.sets.upsert(serde_json::from_value(Value::clone(set)).unwrap());
            let new = new.unwrap();
            controller.set_changed(&Change::Applied { old: old.as_ref(), new: &new, initial: false });
        }
        let pods = &controller.context.pods;
        for (_, pod) in server.of(PODS) {
            let (old, new) = pods.upsert(serde_json::from_value(Value::clone(&pod)).unwrap());
            let new = new.unwrap();
            controller.pod_changed(&Change::Applied { old: old.as_ref(), new: &new, initial: false });
        }
        for pod in pods.list() {
            if !server.objects.contains_key(&format!("{PODS}{}", pod.name())) {
                pods.remove(&ObjectKey::of(pod.as_ref()), None);
                controller.pod_changed(&Change::Deleted(&pod));
            }
        }
    }

    /// The watch brings a Namespace.
    fn namespace(&self, labels: Value) {
        let namespace = json!({"metadata": {"name": "ns", "labels": labels,
            "resourceVersion": self.controller.namespaces.len().to_string()}});
        let (old, new) = self.controller.namespaces.upsert(serde_json::from_value(namespace).unwrap());
        let new = new.unwrap();
        self.controller.namespace_changed(&Change::Applied { old: old.as_ref(), new: &new, initial: false });
    }

    async fn pass(&self) -> kube::Result<Requeue> {
        self.deliver();
        self.controller.reconcile(&ObjectKey::new("", "logs")).await
    }

    /// Passes, kubelets and time, until nothing more is to be done.
    async fn settle(&self) {
        for _ in 0..20 {
            let _ = self.pass().await;
            self.play();
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        let _ = self.pass().await;
    }

    /// The Pods whose sidecar has an image.
    fn with(&self, image: &str) -> Vec<String> {
        let server = lock(&self.server);
        let pods = server.of(PODS).into_iter().filter(|(_, pod)| pod["spec"]["containers"][1]["image"] == image);
        pods.map(|(path, _)| path.trim_start_matches(PODS).to_owned()).collect()
    }

    fn status(&self) -> Value {
        lock(&self.server).objects[SET]["status"].clone()
    }

    /// Status, reason and message of a Pod's condition `SidecarSetUpgradable`; null: it has none.
    fn said(&self, pod: &str) -> Value {
        let pod = lock(&self.server).objects[&format!("{PODS}{pod}")].clone();
        let mut all = pod["status"]["conditions"].as_array().into_iter().flatten();
        let found = all.find(|condition| condition["type"] == "SidecarSetUpgradable");
        found.map_or(Value::Null, |found| json!([found["status"], found["reason"], found["message"]]))
    }

    fn reason(&self) -> String {
        let status = self.status();
        let ready = status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Ready").unwrap();
        ready["reason"].as_str().unwrap().to_owned()
    }

    /// The writes to Pods and revisions since the last look.
    fn told(&self) -> Vec<String> {
        let writes = std::mem::take(&mut *lock(&self.writes));
        let told = writes.into_iter().filter(|(_, path, _)| !path.starts_with(SET));
        told.map(|(method, path, _)| format!("{method} {path}")).collect()
    }
}

const ALL: &[&str] = &["a", "b", "c", "d"];

/// With four Pods that are up to date.
async fn settled(strategy: Value) -> World {
    let world = World::new();
    world.apply(json!({"updateStrategy": strategy}));
    world.inject(ALL);
    world.play();
    world.settle().await;
    world.told();
    world
}

/// With so many Pods that their conditions wait for the end of updates.
async fn settled_with_many(strategy: Value) -> World {
    let world = World::new();
    world.apply(json!({"updateStrategy": strategy}));
    let names: Vec<String> = (0..mark::MANY).map(|i| format!("p{i:03}")).collect();
    world.inject(&names.iter().map(String::as_str).collect::<Vec<_>>());
    world.play();
    world.settle().await;
    world.told();
    world
}

#[tokio::test(start_paused = true)]
async fn a_new_set_gets_a_revision_and_a_status_with_zeros_and_then_nothing_is_written() {
    let world = World::new();
    world.apply(json!({}));
    world.settle().await;
    let revision = world.status()["latestRevision"].as_str().unwrap().to_owned();
    assert_eq!(lock(&world.server).of(REVISIONS)[0].0, format!("{REVISIONS}{revision}"));
    let labels = lock(&world.server).of(REVISIONS)[0].1["metadata"]["labels"].clone();
    assert_eq!(labels["kruise.io/sidecarset-name"], "logs");
    for count in ["matchedPods", "updatedPods", "readyPods", "updatedReadyPods", "uninjectedPods", "collisionCount"] {
        assert_eq!(world.status()[count], 0, "{count}");
    }
    assert_eq!((world.status()["observedGeneration"].clone(), world.reason()), (json!(1), "Available".into()));
    let writes = lock(&world.writes).len();
    world.settle().await;
    assert_eq!(lock(&world.writes).len(), writes);
}

#[tokio::test(start_paused = true)]
async fn while_the_revision_is_not_known_the_status_says_so_and_is_about_the_spec_before() {
    for is_unreadable in [true, false] {
        let world = settled(json!({})).await;
        let before = world.status();
        world.image("a:2");
        if is_unreadable {
            lock(&world.server).unreadable.push(REVISIONS.trim_end_matches('/'));
        } else {
            lock(&world.server).faults.push_back(Fault::Error(403));
        }
        world.pass().await.unwrap_err();
        let (reconciling, message) = world.condition("Reconciling").unwrap();
        assert_eq!((reconciling.as_str(), world.reason().as_str()), ("True", "RevisionUnknown"));
        assert!(message.starts_with("the revision cannot be found out: ") && message.contains("code 403"), "{message}");
        for (field, value) in before.as_object().unwrap().iter().filter(|(field, _)| *field != "conditions") {
            assert_eq!(world.status()[field], *value, "{field}");
        }
        assert!(world.with("a:2").is_empty(), "nothing is done on a guess");
        lock(&world.server).unreadable.clear();
        world.settle().await;
        assert_eq!(world.with("a:2"), ALL);
        assert_eq!((world.reason(), world.status()["observedGeneration"].clone()), ("Available".into(), json!(2)));
    }
}

/// There is nothing recorded yet that could be kept.
#[tokio::test(start_paused = true)]
async fn a_new_set_whose_revision_cannot_be_made_says_so_and_goes_on_when_it_can() {
    let world = World::new();
    world.apply(json!({}));
    lock(&world.server).faults.push_back(Fault::Error(403));
    world.pass().await.unwrap_err();
    assert_eq!((world.reason(), world.status()["observedGeneration"].clone()), ("RevisionUnknown".into(), json!(0)));
    world.settle().await;
    assert_eq!((world.reason(), world.status()["observedGeneration"].clone()), ("Available".into(), json!(1)));
}

#[tokio::test(start_paused = true)]
async fn pods_are_updated_one_after_the_other_with_one_write_each_and_one_of_their_condition() {
    let world = settled(json!({})).await;
    world.image("a:2");
    world.pass().await.unwrap();
    assert_eq!(world.with("a:2").len(), 1, "maxUnavailable is 1");
    world.pass().await.unwrap();
    assert_eq!(world.with("a:2").len(), 1, "it is not ready yet");
    world.settle().await;
    assert_eq!(world.with("a:2"), ALL);
    let status = world.status();
    assert_eq!((&status["updatedReadyPods"], &status["outdatedPods"]), (&json!(4), &json!(0)));
    let told = world.told();
    assert_eq!(told.iter().filter(|write| write.contains("/pods/")).count(), 8, "{told:?}");
    assert_eq!(told.iter().filter(|write| write.ends_with("/status")).count(), 4, "{told:?}");
    assert_eq!(world.said("a"), json!(["True", "AllSidecarsetUpgradable", r#"{"logs":true}"#]));
    assert_eq!(lock(&world.server).of(REVISIONS).len(), 2);
    let containers = lock(&world.server).objects[&format!("{PODS}a")]["spec"]["containers"].clone();
    assert_eq!(containers[0], json!({"name": "main", "image": "m:1"}), "the others stay");
}

#[tokio::test(start_paused = true)]
async fn partition_pause_selector_and_not_update_hold() {
    let selector = json!({"selector": {"matchLabels": {"nobody": "x"}}});
    for (strategy, updated, reason) in [
        (json!({"partition": "50%"}), 2, "Partition"),
        (json!({"paused": true}), 0, "Paused"),
        (selector, 0, "Selector"),
        (json!({"type": "NotUpdate"}), 0, "NotUpdate"),
    ] {
        let world = settled(strategy.clone()).await;
        world.image("a:2");
        world.settle().await;
        assert_eq!((world.with("a:2").len(), world.reason().as_str()), (updated, reason), "{strategy}");
    }
}

#[tokio::test(start_paused = true)]
async fn e17_a_pod_that_is_refused_does_not_hold_up_the_others() {
    for code in [403, 500] {
        let world = settled(json!({})).await;
        world.refuse(code, &["a", "b"]);
        world.image("a:2");
        world.settle().await;
        assert_eq!(world.with("a:2"), ["c", "d"], "{code}");
        assert_eq!(world.reason(), "FailedUpdatePod");
        world.refuse(code, &["b"]);
        world.settle().await;
        assert_eq!(world.with("a:2"), ["a", "c", "d"], "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn e17_what_is_refused_for_good_is_tried_ever_less_often_and_the_status_rests() {
    let world = settled(json!({"maxUnavailable": 4})).await;
    world.refuse(403, ALL);
    world.image("a:2");
    let mut tries = Vec::new();
    for minute in 0..5 {
        let before = lock(&world.api).tried;
        for _ in 0..60 {
            let _ = world.pass().await;
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        tries.push(lock(&world.api).tried - before);
        if minute == 0 {
            world.told();
        }
    }
    assert!(tries[0] <= 4 * 6 && tries[1..].iter().all(|tries| *tries <= 4), "four Pods: {tries:?}");
    let statuses = lock(&world.writes).iter().filter(|(_, path, _)| path.starts_with(SET)).count();
    assert_eq!((statuses, world.reason().as_str()), (0, "FailedUpdatePod"), "it names the same Pod");
    world.refuse(403, &[]);
    for _ in 0..3 {
        world.settle().await;
    }
    assert_eq!(world.with("a:2"), ALL);
    world.refuse(403, ALL);
    world.image("a:3");
    world.settle().await;
    world.refuse(403, &[]);
    world.image("a:4");
    world.pass().await.unwrap();
    assert_eq!(world.with("a:4"), ALL, "for a new spec nobody waits");
}

#[tokio::test(start_paused = true)]
async fn a16_the_status_goes_along_while_pods_are_updated() {
    let world = settled(json!({})).await;
    world.image("a:2");
    let mut told = Vec::new();
    while world.with("a:2").len() < ALL.len() {
        let _ = world.pass().await;
        assert_eq!(world.status()["observedGeneration"], 2, "from the first pass on");
        told.push(world.status()["updatedPods"].as_i64().unwrap());
        world.play();
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    told.dedup();
    assert_eq!(told, [0, 1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn e18_what_may_be_written_together_is_and_no_pod_is_read_for_it() {
    let world = settled_with_many(json!({"maxUnavailable": "20%"})).await;
    lock(&world.reads).clear();
    world.image("a:2");
    world.pass().await.unwrap();
    assert_eq!(world.with("a:2").len(), 20, "as many as may be unavailable, in one pass");
    world.pass().await.unwrap();
    assert_eq!(world.with("a:2").len(), 20);
    world.settle().await;
    assert_eq!(world.with("a:2").len(), 100);
    let told = world.told();
    let (status, whole): (Vec<&String>, Vec<&String>) =
        told.iter().filter(|write| write.contains("/pods/")).partition(|write| write.ends_with("/status"));
    assert_eq!((whole.len(), status.len()), (100, 100), "one write for each, and one of its condition");
    assert!(!lock(&world.reads).iter().any(|path| path.contains("/pods/")));
}

/// Likewise, and `a` is the newest, which is updated first.
async fn settled_with_a_first() -> World {
    let world = settled(json!({})).await;
    lock(&world.server)
        .change(&format!("{PODS}a"), &json!({"metadata": {"creationTimestamp": "2090-01-01T00:00:00Z"}}));
    world
}

#[tokio::test(start_paused = true)]
async fn d15_a_pod_that_is_gone_before_it_is_written_ends_nothing() {
    let world = settled_with_a_first().await;
    world.image("a:2");
    world.deliver();
    lock(&world.server).remove(&format!("{PODS}a"));
    let next = world.controller.reconcile(&ObjectKey::new("", "logs")).await.unwrap();
    assert!(matches!(next, Requeue::After(_)), "{next:?}");
    assert_eq!(world.with("a:2").len(), 1, "its place is another one's");
    world.settle().await;
    assert_eq!((world.with("a:2"), world.reason().as_str()), (vec!["b".into(), "c".into(), "d".into()], "Available"));
}

#[tokio::test(start_paused = true)]
async fn d19_a_pod_that_goes_during_its_update_is_waited_for_no_longer() {
    let world = settled_with_a_first().await;
    world.image("a:2");
    world.pass().await.unwrap();
    world.pass().await.unwrap();
    assert_eq!(world.with("a:2"), ["a"], "it does not run yet");
    lock(&world.server).remove(&format!("{PODS}a"));
    world.pass().await.unwrap();
    assert_eq!(world.with("a:2").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn e24_an_answer_that_is_lost_blocks_nothing() {
    let world = settled_with_a_first().await;
    world.image("a:2");
    // The revision is made first.
    world.apply(json!({"updateStrategy": {"paused": true}}));
    world.pass().await.unwrap();
    world.apply(json!({"updateStrategy": {"paused": false}}));
    lock(&world.server).faults.push_back(Fault::Lost);
    assert!(world.pass().await.is_err(), "nobody knows whether it was done");
    assert_eq!(world.with("a:2"), ["a"]);
    world.settle().await;
    assert_eq!(world.with("a:2"), ALL);
    let whole = |write: &&String| write.contains("/pods/") && !write.ends_with("/status");
    assert_eq!(world.told().iter().filter(whole).count(), 4, "none was written twice");
}

#[tokio::test(start_paused = true)]
async fn e26_a_pod_that_has_changed_is_read_before_it_is_written_again() {
    let world = settled_with_a_first().await;
    world.image("a:2");
    world.deliver();
    // The watch has not told of this yet.
    lock(&world.server).change(&format!("{PODS}a"), &json!({"metadata": {"labels": {"new": "1"}}}));
    let key = ObjectKey::new("", "logs");
    world.controller.reconcile(&key).await.unwrap();
    let first = world.with("a:2");
    assert!(first.len() == 1 && first[0] != "a", "a version that is gone is not overwritten: {first:?}");
    world.settle().await;
    assert_eq!(world.with("a:2"), ALL);
    assert_eq!(lock(&world.server).objects[&format!("{PODS}a")]["metadata"]["labels"]["new"], "1");
}

/// With one that is never ready.
async fn settle_without(world: &World, unready: &str) {
    let down = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    for _ in 0..20 {
        world.play();
        lock(&world.server).change(&format!("{PODS}{unready}"), &down);
        let _ = world.pass().await;
        tokio::time::advance(Duration::from_secs(2)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a17_a_pod_that_was_never_ready_holds_up_no_other_and_one_that_an_update_took_is_named() {
    let world = settled(json!({})).await;
    settle_without(&world, "a").await;
    world.image("a:2");
    settle_without(&world, "a").await;
    assert_eq!(world.with("a:2"), ALL);
    let (_, message) = world.condition("Reconciling").unwrap();
    assert_eq!(message, "3 of 4 updated Pods are ready; these are not: ns/a");

    let world = settled(json!({})).await;
    world.image("a:2");
    world.pass().await.unwrap();
    let taken = world.with("a:2");
    settle_without(&world, &taken[0]).await;
    assert_eq!(world.with("a:2"), taken);
    let (_, message) = world.condition("Reconciling").unwrap();
    let wanted = "1 of 4 Pods are updated; 1 Pods that are not ready use up maxUnavailable: ns/";
    assert_eq!(message, format!("{wanted}{}", taken[0]));
}

#[tokio::test(start_paused = true)]
async fn e21_what_is_only_injected_is_counted_whatever_changes() {
    let world = settled(json!({"type": "NotUpdate"})).await;
    let counts = || ["matchedPods", "readyPods"].map(|count| world.status()[count].as_i64().unwrap());
    assert_eq!(counts(), [4, 4]);
    let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    lock(&world.server).change(&format!("{PODS}a"), &unready);
    for _ in 0..2 {
        world.pass().await.unwrap();
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    assert_eq!(counts(), [4, 3], "one is not ready");
    lock(&world.server).remove(&format!("{PODS}a"));
    lock(&world.server).change(&format!("{PODS}b"), &json!({"metadata": {"labels": {"app": "db"}}}));
    world.settle().await;
    assert_eq!(counts(), [2, 2], "one is gone, and one is not for the set any more");
}

/// One that is updated by turns of its twins.
fn hot_pod(name: &str, annotations: &Value) -> Value {
    let note = |key: &str| json!({"logs": {"hash": annotations[key], "sidecarList": ["agent"]}}).to_string();
    let container = |name: &str, image: &str| json!({"name": name, "image": image});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns", "labels": {"app": "web"},
        "annotations": {SIDECAR_SETS_INJECTED: "logs", SIDECAR_SET_HASH: note(SIDECAR_SET_HASH),
        SIDECAR_SET_WORKING: r#"{"agent":"agent-1"}"#,
        SIDECAR_SET_HASH_WITHOUT_IMAGE: note(SIDECAR_SET_HASH_WITHOUT_IMAGE)}},
        "spec": {"nodeName": "n", "containers":
            [container("main", "m:1"), container("agent-1", "a:1"), container("agent-2", "empty:1")]}})
}

#[tokio::test(start_paused = true)]
async fn e17_twins_whose_reset_is_refused_for_good_do_not_hold_up_other_pods() {
    for code in [403, 500] {
        let mut world = World::new();
        world.hear_events();
        let hot = |image: &str| {
            let way = json!({"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "empty:1"});
            world.apply(json!({"containers": [{"name": "agent", "image": image, "upgradeStrategy": way}]}));
        };
        hot("a:1");
        let annotations = lock(&world.server).objects[SET]["metadata"]["annotations"].clone();
        for name in ["a", "b"] {
            lock(&world.server).put(&format!("{PODS}{name}"), hot_pod(name, &annotations));
        }
        world.play();
        world.settle().await;
        hot("a:2");
        world.pass().await.unwrap();
        world.play();
        let first = || {
            lock(&world.server).of(PODS).iter().filter(|(_, p)| p["spec"]["containers"][2]["image"] == "a:2").count()
        };
        assert_eq!(first(), 1, "maxUnavailable is 1");
        world.refuse(code, &["a"]);
        world.settle().await;
        let images = |name: &str| {
            let pod = lock(&world.server).objects[&format!("{PODS}{name}")].clone();
            [1, 2].map(|i| pod["spec"]["containers"][i]["image"].as_str().unwrap().to_owned())
        };
        assert_eq!(
            (images("a"), images("b")),
            (["a:1", "a:2"].map(String::from), ["empty:1", "a:2"].map(String::from))
        );
        world.refuse(code, &[]);
        world.settle().await;
        assert_eq!(images("a"), ["empty:1", "a:2"], "{code}");
        let events = world.events().await;
        let count = |text: &str| events.iter().filter(|event| event.starts_with(text)).count();
        let done = "ResetContainerSucceed reset sidecar container image empty successfully";
        let failed = "ResetContainerFailed reset sidecar container image empty failed: ";
        assert_eq!((count(done), count(failed)), (2, 1), "{code}: {events:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn e21_pods_that_lack_the_containers_are_counted_whatever_changes() {
    let world = World::new();
    world.apply(json!({"namespaceSelector": {"matchLabels": {"tier": "a"}}}));
    let bare = |name: &str, app: &str| {
        let pod = json!({"metadata": {"name": name, "namespace": "ns", "labels": {"app": app}},
            "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "m:1"}]}});
        lock(&world.server).put(&format!("{PODS}{name}"), pod);
    };
    bare("first", "web");
    bare("other", "db");
    let counted = async || {
        world.settle().await;
        world.status()["uninjectedPods"].clone()
    };
    assert_eq!(counted().await, 0, "the labels of the namespace are not known");
    world.namespace(json!({"tier": "a"}));
    assert_eq!(counted().await, 1, "the namespace has come");
    bare("second", "web");
    assert_eq!(counted().await, 2, "a Pod has come");
    bare("other", "web");
    assert_eq!(counted().await, 3, "a Pod has other labels");
    world.apply(json!({"selector": {"matchLabels": {"app": "db"}}}));
    assert_eq!(counted().await, 0, "the selector is another one");
    world.apply(json!({"selector": {"matchLabels": {"app": "web"}}}));
    assert_eq!(counted().await, 3);
    lock(&world.server).remove(&format!("{PODS}second"));
    assert_eq!(counted().await, 2, "a Pod is gone");
    world.inject(&["other"]);
    assert_eq!(counted().await, 1, "a Pod has them");
    world.namespace(json!({"tier": "b"}));
    assert_eq!(counted().await, 0, "the namespace has other labels");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_was_missed_is_counted_when_it_comes_and_as_long_as_it_is_there() {
    let world = World::new();
    world.apply(json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ns"}}}));
    let bare = |name: &str, created: &str| {
        let pod = json!({"metadata": {"name": name, "namespace": "ns", "labels": {"app": "web"}, "creationTimestamp": created},
            "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "m:1"}]}});
        lock(&world.server).put(&format!("{PODS}{name}"), pod);
    };
    let counts = async || {
        world.settle().await;
        let metrics = &world.controller.metrics;
        (metrics.missed.get(), metrics.uninjected.get(), world.status()["uninjectedPods"].as_i64().unwrap())
    };
    bare("old", "2001-01-01T00:00:00Z");
    assert_eq!(counts().await, (0, 0, 1), "it is older than the set");
    bare("new", "2090-01-01T00:00:00Z");
    assert_eq!(counts().await, (1, 1, 2));
    assert_eq!(counts().await, (1, 1, 2), "once");
    world.apply(json!({"injectionStrategy": {"paused": true}}));
    bare("paused", "2090-01-01T00:00:00Z");
    assert_eq!(counts().await, (1, 0, 3), "nobody was to inject anything");
    world.apply(json!({"injectionStrategy": {"paused": false}}));
    lock(&world.server).remove(&format!("{PODS}paused"));
    lock(&world.server).remove(&format!("{PODS}new"));
    assert_eq!(counts().await, (1, 0, 1));
}

const A: (&str, &str, &str) = ("apps/v1", "ReplicaSet", "a");
const B: (&str, &str, &str) = ("apps.kruise.io/v1alpha1", "CloneSet", "b");
const JOB: (&str, &str, &str) = ("batch/v1", "Job", "job");

/// A set that repairs, and whose webhook works.
fn repairing() -> World {
    let world = World::new();
    world.apply(json!({}));
    world.repair(json!("evict"));
    lock(&world.api).injects = true;
    world
}

#[tokio::test(start_paused = true)]
async fn missed_pods_are_evicted_one_of_each_controller_at_a_time() {
    let world = repairing();
    for (name, owner) in [("a1", A), ("a2", A), ("b1", B), ("job", JOB)] {
        world.owned(name, owner, false);
    }
    world.pass().await.unwrap();
    assert_eq!(world.evicted(), ["a1", "b1"]);
    world.settle().await;
    assert_eq!(world.evicted(), ["a1", "b1"], "what is to take their places is not there");
    assert_eq!(world.status()["uninjectedPods"], 2);
    world.owned("a3", A, true);
    world.settle().await;
    assert_eq!(world.evicted(), ["a1", "a2", "b1"]);
    world.owned("a4", A, true);
    world.owned("b2", B, true);
    world.settle().await;
    assert_eq!(world.evicted().len(), 3, "no Job is begun anew");
    let (stopped, message) = world.condition("RepairStopped").unwrap();
    assert_eq!((stopped.as_str(), message.starts_with("1 Pods have no controller")), ("False", true), "{message}");
    assert!(!world.told().iter().any(|write| write.contains("POST") && write.contains("/pods")));
}

#[tokio::test(start_paused = true)]
async fn a_replacement_that_lacks_the_containers_too_ends_the_repair() {
    let world = repairing();
    world.owned("a1", A, false);
    world.owned("a2", A, false);
    world.pass().await.unwrap();
    assert_eq!(world.evicted(), ["a1"]);
    tokio::time::advance(Duration::from_secs(2)).await;
    world.owned("a3", A, false);
    world.settle().await;
    assert_eq!(world.evicted(), ["a1"]);
    let (stopped, message) = world.condition("RepairStopped").unwrap();
    assert!(stopped == "True" && message.starts_with("Pod ns/a3 was made"), "{message}");
    lock(&world.server).remove(&format!("{PODS}a3"));
    world.settle().await;
    assert_eq!((world.evicted().len(), world.condition("RepairStopped").unwrap().0.as_str()), (1, "True"));
    world.repair(Value::Null);
    world.settle().await;
    assert_eq!(world.condition("RepairStopped"), None);
    world.repair(json!("evict"));
    world.settle().await;
    assert_eq!(world.evicted(), ["a1", "a2"]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_evicted_that_would_lack_the_containers_again_or_that_a_budget_keeps() {
    let says_no = "a budget says no";
    for (injects, keeps, why) in [(false, 429, "nothing was injected"), (true, 429, says_no), (true, 500, says_no)] {
        let world = repairing();
        {
            let mut api = lock(&world.api);
            (api.injects, api.keeps) = (injects, Some(keeps));
        }
        world.owned("a1", A, false);
        world.settle().await;
        // After 10 s and then 20 s.
        let trials = lock(&world.api).trials;
        assert_eq!((trials, world.evicted().len()), (3, if injects { 3 } else { 0 }));
        let (stopped, message) = world.condition("RepairStopped").unwrap();
        assert!(
            stopped == "False" && message.starts_with("Pod ns/a1 is not evicted: ") && message.contains(why),
            "{message}"
        );
        {
            let mut api = lock(&world.api);
            (api.injects, api.keeps) = (true, None);
            api.evicted.clear();
        }
        world.settle().await;
        assert_eq!(world.evicted(), ["a1"]);
        assert_eq!(world.status()["uninjectedPods"], 0);
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_annotation_or_while_the_injection_is_paused_nothing_is_evicted() {
    let world = repairing();
    world.repair(Value::Null);
    world.owned("a1", A, false);
    world.settle().await;
    assert_eq!((lock(&world.api).trials, world.condition("RepairStopped")), (0, None));
    world.repair(json!("evict"));
    world.apply(json!({"injectionStrategy": {"paused": true}}));
    world.settle().await;
    assert_eq!(lock(&world.api).trials, 0);
    assert_eq!(world.condition("RepairStopped").unwrap().1, "new Pods would lack the containers too");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_updated_in_place_is_counted_and_left_alone() {
    let world = settled(json!({})).await;
    world.apply(json!({"containers": [{"name": "agent", "image": "a:2", "env": [{"name": "NEW", "value": "1"}]}]}));
    world.settle().await;
    assert_eq!(world.status()["notUpgradablePods"], 4);
    let mut told = world.told();
    told.retain(|write| write.contains("/pods/"));
    told.sort();
    assert_eq!(told, ALL.iter().map(|pod| format!("PATCH {PODS}{pod}/status")).collect::<Vec<_>>(), "once");
    assert_eq!(world.said("a"), json!(["False", "UpdateImmutableField", r#"{"logs":false}"#]));
    world.image("a:1");
    world.settle().await;
    assert_eq!(world.said("a"), json!(["True", "AllSidecarsetUpgradable", r#"{"logs":true}"#]), "taken back");
}

/// A18.6.
#[tokio::test(start_paused = true)]
async fn a18_the_condition_is_there_when_the_status_counts_the_update() {
    let world = settled(json!({"maxUnavailable": 2})).await;
    world.image("a:2");
    let mut counts = Vec::new();
    for _ in 0..6 {
        let _ = world.pass().await;
        let told = ALL.iter().filter(|pod| world.said(pod)[0] == "True").count();
        counts.push((world.status()["updatedPods"].as_u64().unwrap(), told));
        world.play();
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    counts.dedup();
    assert_eq!(counts, [(0, 0), (2, 2), (4, 4)]);
    let told = world.told();
    assert_eq!(told.iter().filter(|write| write.contains("/pods/")).count(), 8, "two for each Pod: {told:?}");
}

/// Kubelet writes to a Pod that was updated, and the watch brings that late.
#[tokio::test(start_paused = true)]
async fn a18_a_write_of_somebody_else_does_not_hold_up_the_condition() {
    let (world, pod) = (settled_with_a_first().await, format!("{PODS}a"));
    // With two SidecarSets the version matters.
    let both = json!({"metadata": {"annotations": {SIDECAR_SETS_INJECTED: "logs,other"}}});
    lock(&world.server).change(&pod, &both);
    world.image("a:2");
    world.pass().await.unwrap();
    assert_eq!(world.with("a:2"), ["a"]);
    tokio::time::advance(Duration::from_secs(1)).await;
    lock(&world.server).change(&pod, &json!({"status": {"message": "starting"}}));
    world.controller.reconcile(&ObjectKey::new("", "logs")).await.unwrap();
    assert_eq!((world.status()["updatedPods"].clone(), world.said("a")[0].clone()), (json!(1), json!("True")));
    assert_eq!(lock(&world.server).objects[&pod]["status"]["message"], "starting");
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_cannot_be_written_holds_up_nothing() {
    for code in [403, 409, 500] {
        let world = settled(json!({"maxUnavailable": 2})).await;
        world.refuse(code, &["a/status"]);
        world.image("a:2");
        for _ in 0..6 {
            world.pass().await.unwrap();
            world.play();
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let status = world.status();
        assert_eq!((&status["updatedReadyPods"], &*world.reason()), (&json!(4), "Available"), "{code}: {status}");
        assert_eq!((world.said("a"), world.said("b")[0].clone()), (Value::Null, json!("True")), "{code}");
        world.told();
        world.refuse(403, &[]);
        world.settle().await;
        let told = world.told();
        assert_eq!(told, [format!("PATCH {PODS}a/status")], "{code}: it is tried again after a while, and then once");
    }
}

#[tokio::test(start_paused = true)]
async fn conditions_of_many_pods_are_written_after_the_updates() {
    let world = settled_with_many(json!({"maxUnavailable": "50%"})).await;
    world.image("a:2");
    for _ in 0..4 {
        let _ = world.pass().await;
        world.play();
    }
    assert_eq!(world.with("a:2").len(), mark::MANY);
    let conditions = || world.told().iter().filter(|write| write.ends_with("/status")).count();
    assert_eq!(conditions(), 0, "updates are still going on");
    world.settle().await;
    assert_eq!(conditions(), mark::MANY);
}

/// In OpenKruise's words.
#[tokio::test(start_paused = true)]
async fn each_spec_that_pods_cannot_get_in_place_has_one_event() {
    let mut world = settled(json!({})).await;
    world.hear_events();
    let said =
        "NotUpgradablePods SidecarSet in-place update detected 4 not upgradable pod(s) in this round, will skip them.";
    for (value, events) in [("1", 1), ("2", 2)] {
        let env = json!([{"name": "NEW", "value": value}]);
        world.apply(json!({"containers": [{"name": "agent", "image": "a:1", "env": env}]}));
        world.settle().await;
        assert_eq!(world.events().await, vec![said; events]);
    }
    world.hear_events();
    world.settle().await;
    assert_eq!(world.events().await, vec![said; 2], "another manager says nothing new");
}

/// A16.8 and D17.
#[tokio::test(start_paused = true)]
async fn while_nothing_is_updated_no_condition_is_written() {
    for strategy in
        [json!({"type": "NotUpdate"}), json!({"paused": true}), json!({"selector": {"matchLabels": {"x": "y"}}})]
    {
        let world = settled(strategy.clone()).await;
        world.apply(json!({"containers": [{"name": "agent", "image": "a:2", "env": [{"name": "NEW", "value": "1"}]}]}));
        world.settle().await;
        assert!(!world.told().iter().any(|write| write.contains("/pods/")), "{strategy}");
    }
}

#[tokio::test(start_paused = true)]
async fn pods_without_the_containers_are_counted_and_left_alone() {
    let world = settled(json!({})).await;
    let bare = json!({"metadata": {"name": "bare", "namespace": "ns", "labels": {"app": "web"}},
        "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "m:1"}, {"name": "x", "image": "x"}]}});
    lock(&world.server).put(&format!("{PODS}bare"), bare);
    world.image("a:2");
    world.settle().await;
    assert_eq!((world.status()["uninjectedPods"].clone(), world.status()["matchedPods"].clone()), (json!(1), json!(4)));
    assert!(!world.told().iter().any(|write| write.ends_with("/pods/bare")));
}

#[tokio::test(start_paused = true)]
async fn a_set_that_cannot_be_read_stalls_and_changes_nothing() {
    let world = settled(json!({})).await;
    world.apply(json!({"containers": [{"name": "agent", "image": "a:2"}], "updateStrategy": {"partition": "many"}}));
    world.settle().await;
    assert_eq!((world.reason().as_str(), world.with("a:2").len()), ("InvalidSpec", 0));
}

/// What OpenKruise 1.9 left behind is taken over without a write to any Pod or revision.
#[tokio::test(start_paused = true)]
async fn a_takeover_writes_one_status_and_nothing_else() {
    let sets: Vec<Value> = serde_json::from_str(include_str!("../../api/apps/testdata/sidecar_sets.json")).unwrap();
    let pods: [Value; 2] =
        serde_json::from_str(include_str!("../../domain/kinds/sidecar_set/testdata/updated.json")).unwrap();
    let mut set = sets.last().unwrap().clone();
    set["apiVersion"] = "apps.kruise.io/v1beta1".into();
    let world = World::new();
    let path = "/apis/apps.kruise.io/v1beta1/sidecarsets/golden-sidecar";
    let set = lock(&world.server).put(path, set);
    let pod = lock(&world.server).put("/api/v1/namespaces/golden/pods/withsidecar-zllql", pods[1].clone());
    let (name, uid) = (set["status"]["latestRevision"].as_str().unwrap(), &set["metadata"]["uid"]);
    let revision = json!({"metadata": {"name": name, "namespace": "kruise-system", "uid": "r",
            "labels": {labels::SIDECAR_SET_NAME: "golden-sidecar"},
            "ownerReferences": [{"apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet", "name": "golden-sidecar",
                "uid": uid, "controller": true}]},
        "data": crate::domain::kinds::sidecar_set::revision::data(&set["spec"]), "revision": 2});
    lock(&world.server).put(&format!("{REVISIONS}{name}"), revision);
    world.controller.sets.upsert(serde_json::from_value(set).unwrap());
    world.controller.context.pods.upsert(serde_json::from_value(pod).unwrap());
    for _ in 0..3 {
        world.controller.reconcile(&ObjectKey::new("", "golden-sidecar")).await.unwrap();
    }
    let writes = lock(&world.writes);
    let paths: Vec<&str> = writes.iter().map(|(_, path, _)| path.as_str()).collect();
    assert_eq!(paths, [format!("{path}/status")]);
    let status = &lock(&world.server).objects[path]["status"];
    assert_eq!((&status["matchedPods"], &status["updatedReadyPods"]), (&json!(1), &json!(1)));
    assert_eq!(status["latestRevision"], "golden-sidecar-5c698cf546");
}

fn revision(world: &World, name: &str) -> Value {
    Value::clone(&lock(&world.server).objects[&format!("{REVISIONS}{name}")])
}

/// While admission is away the annotations of the SidecarSet are of the spec before.
#[tokio::test(start_paused = true)]
async fn a15_a_new_revision_has_the_hashes_of_its_own_content() {
    let world = settled(json!({})).await;
    let spec = {
        let mut server = lock(&world.server);
        let mut set = Value::clone(&server.objects[SET]);
        set["spec"]["containers"][0]["image"] = "a:2".into();
        set["metadata"]["generation"] = (set["metadata"]["generation"].as_i64().unwrap() + 1).into();
        server.put(SET, set)["spec"].clone()
    };
    world.settle().await;
    let latest = world.status()["latestRevision"].as_str().unwrap().to_owned();
    let (annotations, own) = (revision(&world, &latest)["metadata"]["annotations"].clone(), hash::of(&spec));
    assert_eq!(annotations[SIDECAR_SET_HASH], own.hash);
    assert_eq!(annotations[SIDECAR_SET_HASH_WITHOUT_IMAGE], own.without_image);
}

/// What `kubectl delete --cascade=orphan` has left of a namesake.
#[tokio::test(start_paused = true)]
async fn a15_revisions_of_a_namesake_that_was_deleted_are_adopted() {
    let world = settled(json!({})).await;
    let first = world.status()["latestRevision"].as_str().unwrap().to_owned();
    {
        let mut server = lock(&world.server);
        let path = format!("{REVISIONS}{first}");
        server.change(&path, &json!({"metadata": {"ownerReferences": null}, "revision": 7}));
        let mut set = Value::clone(&server.objects[SET]);
        server.remove(SET);
        set["status"] = Value::Null;
        set["metadata"]["uid"] = "another".into();
        set["metadata"]["generation"] = 0.into();
        server.put(SET, set);
    }
    world.controller.sets.remove(&ObjectKey::new("", "logs"), None);
    world.image("a:2");
    world.settle().await;
    let owner = |name: &str| revision(&world, name)["metadata"]["ownerReferences"][0]["uid"].clone();
    let second = world.status()["latestRevision"].as_str().unwrap().to_owned();
    assert_eq!((owner(&first), owner(&second)), (json!("another"), json!("another")));
    assert_eq!(revision(&world, &second)["revision"], 8, "the history goes on");
    world.image("a:1");
    world.settle().await;
    assert_eq!(world.status()["latestRevision"], first, "it is used again");
    assert_eq!(revision(&world, &first)["revision"], 9);
}

#[tokio::test(start_paused = true)]
async fn d24_history_is_truncated_but_for_what_is_pinned() {
    for (pin, kept) in [
        (json!({"customVersion": "v1"}), Some("v1")),
        (json!({"revision": {"customVersion": "v2"}}), Some("v2")),
        (json!({}), None),
    ] {
        let world = World::new();
        world.apply(json!({"revisionHistoryLimit": 1, "injectionStrategy": pin}));
        for version in ["v1", "v2", "v3", "v4", "v5", "v6"] {
            world.apply(
                json!({"customVersion": version, "containers": [{"name": "agent", "image": format!("a:{version}")}]}),
            );
            world.settle().await;
        }
        let mut left: Vec<String> = lock(&world.server)
            .of(REVISIONS)
            .iter()
            .map(|(_, r)| {
                r["metadata"]["labels"]["apps.kruise.io/sidecarset-custom-version"].as_str().unwrap().to_owned()
            })
            .collect();
        left.sort();
        let wanted: Vec<&str> = kept.into_iter().chain(["v6"]).collect();
        assert_eq!(left, wanted);
    }
}

#[tokio::test(start_paused = true)]
async fn d24_a_revision_that_a_pod_has_stays_as_long_as_the_pod() {
    let world = World::new();
    world.apply(json!({"revisionHistoryLimit": 1, "updateStrategy": {"partition": "100%"}}));
    world.inject(ALL);
    world.play();
    world.settle().await;
    let first = world.status()["latestRevision"].as_str().unwrap().to_owned();
    // As injection notes it.
    let mut note: Value = serde_json::from_str(
        lock(&world.server).objects[&format!("{PODS}a")]["metadata"]["annotations"][SIDECAR_SET_HASH].as_str().unwrap(),
    )
    .unwrap();
    note["logs"]["controllerRevision"] = first.as_str().into();
    let noted = json!({"metadata": {"annotations": {SIDECAR_SET_HASH: note.to_string()}}});
    lock(&world.server).change(&format!("{PODS}a"), &noted);
    let is_there = |name: &str| lock(&world.server).objects.contains_key(&format!("{REVISIONS}{name}"));
    for image in ["a:2", "a:3", "a:4"] {
        world.image(image);
        world.settle().await;
    }
    assert!(is_there(&first), "a Pod has it");
    assert_eq!(lock(&world.server).of(REVISIONS).len(), 2, "besides it the newest alone");
    lock(&world.server).remove(&format!("{PODS}a"));
    lock(&world.reads).clear();
    world.settle().await;
    assert!(!is_there(&first), "nothing else has changed");
    let lists = || lock(&world.reads).iter().filter(|path| **path == REVISIONS.trim_end_matches('/')).count();
    assert_eq!(lists(), 1, "they are read when one goes out of use");
}

#[tokio::test(start_paused = true)]
async fn d24_a_latest_revision_that_was_deleted_is_made_again() {
    let world = settled(json!({})).await;
    let latest = world.status()["latestRevision"].as_str().unwrap().to_owned();
    lock(&world.server).remove(&format!("{REVISIONS}{latest}"));
    world.controller.memories.clear();
    world.settle().await;
    assert_eq!(revision(&world, &latest)["revision"], 1, "at the latest when another manager leads");
}

/// The API server looks through all revisions for those of one SidecarSet.
#[tokio::test(start_paused = true)]
async fn a15_the_first_revision_is_made_without_a_list() {
    let world = World::new();
    world.apply(json!({}));
    world.settle().await;
    let lists = || lock(&world.reads).iter().filter(|path| path.contains("controllerrevisions")).count();
    assert_eq!((lists(), lock(&world.server).of(REVISIONS).len()), (0, 1));
    world.image("a:2");
    world.settle().await;
    assert_eq!(lists(), 1);
}

/// While the webhook is down nobody writes the label into the spec, and the generation stays as it is.
#[tokio::test(start_paused = true)]
async fn a15_a_version_that_is_a_label_alone_gets_to_the_revision() {
    let world = settled(json!({})).await;
    let latest = world.status()["latestRevision"].as_str().unwrap().to_owned();
    for version in ["v1", "v2"] {
        let label = json!({"metadata": {"labels": {labels::SIDECAR_SET_CUSTOM_VERSION: version}}});
        lock(&world.server).change(SET, &label);
        world.settle().await;
        assert_eq!(revision(&world, &latest)["metadata"]["labels"][labels::SIDECAR_SET_CUSTOM_VERSION], version);
        world.told();
        world.settle().await;
        assert_eq!(world.told(), Vec::<String>::new(), "once");
    }
}

/// A list for one SidecarSet looks through the revisions of all.
#[tokio::test(start_paused = true)]
async fn a15_the_versions_in_labels_are_read_once_for_all_sets_after_a_start() {
    const OTHER: &str = "/apis/apps.kruise.io/v1beta1/sidecarsets/other";
    let mut world = World::new();
    world.apply(json!({}));
    world.settle().await;
    let mut other = Value::clone(&lock(&world.server).objects[SET]);
    other["metadata"] = json!({"name": "other", "uid": "other", "generation": 1});
    other["spec"]["selector"] = json!({"matchLabels": {"app": "other"}});
    other["status"] = Value::Null;
    lock(&world.server).put(OTHER, other);
    let label = |set: &str, version: &str| {
        let version = format!("{set}-{version}");
        json!({"metadata": {"labels": {labels::SIDECAR_SET_CUSTOM_VERSION: version}}})
    };
    let pass = async |world: &World| {
        let other = Value::clone(&lock(&world.server).objects[OTHER]);
        world.controller.sets.upsert(serde_json::from_value(other).unwrap());
        world.controller.reconcile(&ObjectKey::new("", "other")).await.unwrap();
        world.pass().await.unwrap();
    };
    let versions = |world: &World| -> BTreeSet<String> {
        let revisions = lock(&world.server).of(REVISIONS);
        let all = revisions.iter().map(|(_, revision)| &revision["metadata"]["labels"]);
        all.filter_map(|of| of[labels::SIDECAR_SET_CUSTOM_VERSION].as_str().map(str::to_owned)).collect()
    };
    for version in ["v1", "v2"] {
        for (path, set) in [(SET, "logs"), (OTHER, "other")] {
            lock(&world.server).change(path, &label(set, version));
        }
        pass(&world).await;
        pass(&world).await;
        let named = [format!("logs-{version}"), format!("other-{version}")];
        assert_eq!(versions(&world), named.into(), "they get to the revisions");
        world.controller.memories.clear();
        world.controller.versions = Versions::default();
        lock(&world.reads).clear();
        pass(&world).await;
        pass(&world).await;
        let lists = lock(&world.reads).iter().filter(|path| path.contains("controllerrevisions")).count();
        assert_eq!(lists, 1, "they say the same as before");
    }
}

#[tokio::test(start_paused = true)]
async fn news_of_pods_wait_for_seconds_while_nothing_is_to_be_done_with_any() {
    let key = ObjectKey::new("", "logs");
    let look = async |world: &World| {
        assert_eq!(world.controller.queue.begin().as_ref(), Some(&key));
        let next = world.controller.reconcile(&key).await;
        world.controller.queue.done(key.clone(), next);
    };
    let world = settled(json!({})).await;
    look(&world).await;
    world.inject(&["e"]);
    world.deliver();
    assert_eq!((world.controller.queue.depth(), world.controller.queue.next_in()), (0, Some(rest("logs", 4))));
    tokio::time::advance(rest("logs", 4)).await;
    look(&world).await;
    assert_eq!(world.status()["matchedPods"], 5);
    tokio::time::advance(Duration::from_secs(60)).await;
    world.inject(&["f"]);
    world.deliver();
    let apart = apart("logs").max(wake::pause(5));
    assert_eq!(
        (world.controller.queue.depth(), world.controller.queue.next_in()),
        (0, Some(apart)),
        "after a long rest"
    );
    tokio::time::advance(apart).await;
    look(&world).await;
    world.image("a:2");
    world.deliver();
    assert_eq!(world.controller.queue.depth(), 1, "a new spec waits for nothing");
    look(&world).await;
    world.play();
    world.deliver();
    assert_eq!(world.controller.queue.depth(), 1, "the next Pod's turn comes when this one is ready");
}

#[test]
fn sidecar_sets_at_rest_look_again_at_different_moments() {
    let rests: BTreeSet<Duration> = (0..10).map(|number| rest(&format!("set-{number}"), 0)).collect();
    assert_eq!(rests.len(), 10, "{rests:?}");
    assert!(rests.iter().all(|rest| (AT_REST..AT_REST * 2).contains(rest)), "{rests:?}");
    assert_eq!((0..10).map(|number| apart(&format!("set-{number}"))).collect::<BTreeSet<_>>().len(), 10);
    let more = |pods| (rest("logs", pods) - rest("logs", 0)).as_millis();
    assert_eq!([1, 1_000, 10_000, usize::MAX].map(more), [1, 1_000, 3_000, 3_000]);
}
