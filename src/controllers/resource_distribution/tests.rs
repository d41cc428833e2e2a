//! The controller against an API server in memory that holds policies, as the real one does.

use std::sync::Mutex;

use axum::http::{Method, request::Parts};
use serde_json::{Value, json};

use super::*;
use crate::{
    controllers::{
        fake::{Fault, Server},
        in_memory,
    },
    domain::kinds::resource_distribution::{
        content::ResourceKind,
        copy::{self, CopyObject},
        memory::Done,
        plan::MOST_STEPS,
        turns::{CONFLICT_RETRY, PERIOD, SHORTEST},
    },
    liveness::Random,
    runtime::{lock, metrics::own_memory},
};

mod simulation;

const IMMUTABLE: &str = "data: Forbidden: field is immutable when `immutable` is set";
const DISTRIBUTIONS: &str = "/apis/apps.kruise.io/v1alpha1/resourcedistributions";

#[derive(Default)]
struct Record {
    /// Writes that were sent, reads by patches that change nothing left out.
    writes: Vec<String>,
    looks: usize,
    /// Namespaces in which nothing is created.
    full: Vec<String>,
    /// Where a dry run has been accepted others are faster, and the namespace is full.
    fills_up: bool,
    /// Creations that were tried by dry runs.
    dry_runs: Vec<String>,
    /// Namespaces in which every request fails.
    broken: Vec<String>,
    /// Writes that still arrive: then the process has died, and nothing does.
    writes_left: Option<usize>,
    /// Nothing is created in a namespace that is not there, or is being deleted.
    has_namespaces: bool,
}

struct World {
    server: Arc<Mutex<Server>>,
    record: Arc<Mutex<Record>>,
    controller: Controller,
}

fn refusal(code: u16, message: &str) -> (u16, Value) {
    (code, json!({"kind": "Status", "status": "Failure", "code": code, "message": message}))
}

fn view_of(namespace: Value) -> NamespaceView {
    NamespaceView::of(&serde_json::from_value(namespace).unwrap(), "kruise-system")
}

/// `namespaces/NAMESPACE/PLURAL/NAME` of a path of a copy.
fn shown(path: &str) -> String {
    path.trim_start_matches("/api/v1/namespaces/").to_owned()
}

fn is_of_distribution(object: &Value) -> bool {
    let mut owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.any(|owner| owner["kind"] == "ResourceDistribution" && owner["controller"] == true)
}

/// Whether it is a patch that changes nothing.
fn is_look(parts: &Parts, json: &Value) -> bool {
    let binds = |metadata: &serde_json::Map<String, Value>| {
        metadata.keys().all(|key| ["uid", "resourceVersion"].contains(&key.as_str()))
    };
    let only_tests = |patch: &Vec<Value>| patch.iter().all(|operation| operation["op"] == "test");
    json.as_array().is_some_and(only_tests)
        || (parts.method == Method::PATCH
            && json.as_object().is_some_and(|object| object.len() == 1)
            && json["metadata"].as_object().is_some_and(binds))
}

/// Whether the API server refuses a change because the object is immutable.
fn is_fixed(before: &Value, after: &Value) -> bool {
    let is_other = |member: &str| before.get(member) != after.get(member);
    before["immutable"] == true && ["immutable", "data", "binaryData"].into_iter().any(is_other)
}

/// A creation of which nothing is stored: whether the name is taken is looked at last.
fn dry_run(server: &Server, record: &mut Record, object: &str, json: &Value) -> (u16, Value) {
    let namespace = object.split('/').nth(4).unwrap();
    record.dry_runs.push(shown(object));
    assert!(is_of_distribution(json), "the policy: {json}");
    if record.full.iter().any(|full| full == namespace) {
        return refusal(403, "exceeded quota");
    }
    if record.fills_up {
        record.full.push(namespace.to_owned());
    }
    if !server.objects.contains_key(object) {
        return (201, json.clone());
    }
    let (code, mut answer) = refusal(409, "it exists already");
    answer["reason"] = "AlreadyExists".into();
    (code, answer)
}

/// A creation.
fn create(server: &mut Server, record: &mut Record, parts: &Parts, json: Value) -> (u16, Value) {
    let path = parts.uri.path();
    let namespace = path.split('/').nth(4).unwrap();
    let object = format!("{path}/{}", json["metadata"]["name"].as_str().unwrap());
    if parts.uri.query() == Some("dryRun=All") {
        return dry_run(server, record, &object, &json);
    }
    let is_full = record.full.iter().any(|full| full == namespace);
    if server.objects.contains_key(&object) && !is_full {
        return refusal(409, "it exists already");
    }
    record.writes.push(format!("create {}", shown(&object)));
    // Quotas are asked before anybody looks whether there is such an object.
    if is_full {
        return refusal(403, "exceeded quota");
    }
    match server.objects.get(&format!("/api/v1/namespaces/{namespace}")).filter(|_| record.has_namespaces) {
        None if record.has_namespaces => return refusal(404, "the namespace is not found"),
        Some(there) if !there["metadata"]["deletionTimestamp"].is_null() => {
            return refusal(403, "unable to create new content because the namespace is being terminated");
        }
        Some(_) | None => {}
    }
    assert!(is_of_distribution(&json), "the policy: {json}");
    let mut made = json;
    made["metadata"]["namespace"] = namespace.into();
    server.answer(parts, made.to_string().as_bytes())
}

/// What the API server does with requests for Secrets and ConfigMaps; of Secrets there is nothing but writes.
fn answer(server: &mut Server, record: &mut Record, parts: &Parts, body: &[u8]) -> (u16, Value) {
    let path = parts.uri.path();
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    assert!(parts.method != Method::GET, "neither get nor list nor watch: {path}");
    if path.split('/').nth(4).is_some_and(|namespace| record.broken.iter().any(|broken| broken == namespace)) {
        return refusal(500, "failed calling webhook");
    }
    let is_look = is_look(parts, &json) || parts.uri.query() == Some("dryRun=All");
    if !is_look && let Some(left) = &mut record.writes_left {
        match left.checked_sub(1) {
            Some(fewer) => *left = fewer,
            None => return refusal(500, "nobody is there any more"),
        }
    }
    if parts.method == Method::POST {
        return create(server, record, parts, json);
    }
    let there = server.objects.get(path).map(|object| Value::clone(object));
    let is_json_patch = json.is_array();
    if parts.method == Method::DELETE {
        let seen = &json["preconditions"];
        assert!(seen["uid"].is_string() && seen["resourceVersion"].is_string(), "bound to what was seen: {json}");
    }
    if is_look {
        record.looks += 1;
    } else {
        let verb = if parts.method == Method::DELETE { "delete" } else { "patch" };
        record.writes.push(format!("{verb} {}", shown(path)));
    }
    let Some(mut object) = there else { return refusal(404, "not found") };
    if json.get("type").is_some_and(|type_| object["type"] != *type_) {
        return refusal(422, "type: field is immutable");
    }
    if parts.method == Method::PATCH && !is_json_patch {
        let mut after = object.clone();
        json_patch::merge(&mut after, &json);
        if is_fixed(&object, &after) {
            return refusal(422, IMMUTABLE);
        }
    }
    if is_json_patch {
        let patch: json_patch::Patch = serde_json::from_value(json).unwrap();
        let before = object.clone();
        if json_patch::patch(&mut object, &patch).is_err() {
            return refusal(422, "the server rejected our request due to an error in our request");
        }
        assert!(!is_look || before == object, "it only tests");
        if is_fixed(&before, &object) {
            return refusal(422, IMMUTABLE);
        }
    }
    if !is_of_distribution(&object) {
        let message =
            "secrets is forbidden: ValidatingAdmissionPolicy 'kruise-manager-secrets' with binding denied request";
        return refusal(403, message);
    }
    match is_json_patch && is_look {
        true => (200, object),
        false => server.answer(parts, body),
    }
}

/// A controller whose requests go to this API server.
fn manager(server: &Arc<Mutex<Server>>, record: &Arc<Mutex<Record>>) -> Controller {
    let (server, record) = (server.clone(), record.clone());
    let context = in_memory::context(move |parts, body| {
        let (mut server, mut record) = (lock(&server), lock(&record));
        if parts.uri.path().starts_with("/api/v1/namespaces/") {
            return answer(&mut server, &mut record, parts, body);
        }
        if record.writes_left == Some(0) {
            return refusal(500, "nobody is there any more");
        }
        server.answer(parts, body)
    });
    Controller::new(&context)
}

impl World {
    fn new() -> Self {
        let server = Arc::new(Mutex::new(Server::new(|_, _| Ok(()))));
        let record: Arc<Mutex<Record>> = Arc::default();
        Self { controller: manager(&server, &record), server, record }
    }

    fn distribution(&self, name: &str, spec: Value) {
        let object = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "ResourceDistribution",
            "metadata": {"name": name, "uid": format!("uid-{name}"), "generation": 1}, "spec": spec});
        let stored = lock(&self.server).put(&format!("{DISTRIBUTIONS}/{name}"), object);
        self.controller.distributions.upsert(serde_json::from_value(stored).unwrap());
    }

    fn change(&self, name: &str, change: Value) {
        let path = format!("{DISTRIBUTIONS}/{name}");
        let generation = lock(&self.server).objects[&path]["metadata"]["generation"].as_i64().unwrap() + 1;
        let change = json!({"metadata": {"generation": generation}, "spec": change});
        lock(&self.server).change(&path, &change);
        let stored = Value::clone(&lock(&self.server).objects[&path]);
        self.controller.distributions.upsert(serde_json::from_value(stored).unwrap());
    }

    fn namespace(&self, object: Value) {
        let mut whole = json!({"apiVersion": "v1", "kind": "Namespace"});
        json_patch::merge(&mut whole, &object);
        let path = format!("/api/v1/namespaces/{}", whole["metadata"]["name"].as_str().unwrap());
        let stored = lock(&self.server).put(&path, whole);
        self.controller.namespaces.upsert(view_of(stored));
    }

    fn namespaces(&self, names: &[&str]) {
        names.iter().for_each(|name| self.namespace(json!({"metadata": {"name": name}})));
    }

    /// An object of somebody in a namespace.
    fn put(&self, path: &str, object: Value) {
        let path = format!("/api/v1/namespaces/{path}");
        let mut parts = path.rsplit('/');
        let (name, plural, namespace) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
        let kind = if plural == "secrets" { "Secret" } else { "ConfigMap" };
        let mut whole = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}});
        json_patch::merge(&mut whole, &object);
        lock(&self.server).put(&path, whole);
        self.watch();
    }

    fn edit(&self, path: &str, change: Value) {
        lock(&self.server).change(&format!("/api/v1/namespaces/{path}"), &change);
        self.watch();
    }

    fn delete(&self, path: &str) {
        lock(&self.server).remove(&format!("/api/v1/namespaces/{path}"));
        self.watch();
    }

    fn find(&self, path: &str) -> Option<Value> {
        lock(&self.server).objects.get(&format!("/api/v1/namespaces/{path}")).map(|object| Value::clone(object))
    }

    /// What the watches of ConfigMaps and ResourceDistributions bring, and nothing of Secrets.
    fn watch(&self) {
        let news: Vec<String> = lock(&self.server).news.drain(..).collect();
        for path in news {
            if path.starts_with(DISTRIBUTIONS)
                && let Some(object) = lock(&self.server).objects.get(&path).map(|object| Value::clone(object))
            {
                self.controller.distributions.upsert(serde_json::from_value(object).unwrap());
            }
            let parts: Vec<&str> = path.split('/').collect();
            let [_, "api", _, "namespaces", namespace, "configmaps", name] = parts.as_slice() else { continue };
            let store = self.controller.watched.show(name);
            let object = lock(&self.server).objects.get(&path).map(|object| Value::clone(object));
            match object {
                Some(object) => drop(store.upsert(serde_json::from_value::<CopyObject>(object).unwrap().into())),
                None => drop(store.remove(&ObjectKey::new(namespace, name), None)),
            }
        }
    }

    async fn look(&self, name: &str) -> kube::Result<Requeue> {
        self.controller.watched.show("c");
        self.controller.status.forget();
        let result = self.controller.reconcile(&ObjectKey::new("", name)).await;
        self.watch();
        result
    }

    async fn settle(&self, name: &str) -> Requeue {
        let mut requeue = Requeue::Await;
        for _ in 0..10 {
            let before = lock(&self.record).writes.len();
            requeue = self.look(name).await.unwrap();
            if lock(&self.record).writes.len() == before {
                return requeue;
            }
        }
        panic!("it goes on and on: {:?}, {requeue:?}", lock(&self.record).writes);
    }

    fn writes(&self) -> Vec<String> {
        let mut writes = std::mem::take(&mut lock(&self.record).writes);
        writes.sort();
        writes
    }

    fn looks(&self) -> usize {
        std::mem::take(&mut lock(&self.record).looks)
    }

    fn status(&self, name: &str) -> Value {
        lock(&self.server).objects[&format!("{DISTRIBUTIONS}/{name}")]["status"].clone()
    }

    fn condition(&self, name: &str, type_: &str) -> Value {
        let status = self.status(name);
        let all = status["conditions"].as_array().unwrap();
        all.iter().find(|condition| condition["type"] == type_).cloned().unwrap_or_default()
    }
}

fn in_namespaces(resource: Value, names: &[&str]) -> Value {
    let list: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    json!({"resource": resource, "targets": {"includedNamespaces": {"list": list}}})
}

fn config_map() -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "v"}})
}

fn secret() -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": "v"}})
}

#[tokio::test]
async fn a_config_map_is_copied_kept_and_taken_away() {
    let world = World::new();
    world.namespaces(&["a", "b", "z"]);
    world.distribution("d", in_namespaces(config_map(), &["a", "b"]));
    assert_eq!(world.settle("d").await, Requeue::Await);
    assert_eq!(world.writes(), ["create a/configmaps/c", "create b/configmaps/c"]);
    let copy = world.find("a/configmaps/c").unwrap();
    assert_eq!(copy["data"], json!({"k": "v"}));
    assert_eq!(
        copy["metadata"]["ownerReferences"],
        json!([{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "ResourceDistribution", "name": "d", "uid": "uid-d",
            "controller": true, "blockOwnerDeletion": true}])
    );
    let status = world.status("d");
    assert_eq!(
        (&status["desired"], &status["succeeded"], &status["failed"], &status["observedGeneration"]),
        (&json!(2), &json!(2), &json!(0), &json!(1))
    );
    world.change(
        "d",
        json!({"resource": {"data": {"k": "w"}}, "targets": {"includedNamespaces": {"list": [{"name": "a"}]}}}),
    );
    world.settle("d").await;
    assert_eq!(world.writes(), ["delete b/configmaps/c", "patch a/configmaps/c"]);
    assert_eq!(world.find("a/configmaps/c").unwrap()["data"], json!({"k": "w"}));
    assert_eq!(world.find("b/configmaps/c"), None);
    assert_eq!(world.condition("d", "Ready")["message"], "1 of 1 namespaces have their copy");
}

#[tokio::test]
async fn f1_external_edits_and_deletions_of_config_maps_are_undone() {
    let world = World::new();
    world.namespaces(&["a", "b"]);
    world.distribution("d", in_namespaces(config_map(), &["a", "b"]));
    world.settle("d").await;
    world.writes();
    world.edit("a/configmaps/c", json!({"data": {"k": null, "other": "x"}}));
    world.delete("b/configmaps/c");
    world.settle("d").await;
    assert_eq!(world.writes(), ["create b/configmaps/c", "patch a/configmaps/c"]);
    assert_eq!(world.find("a/configmaps/c").unwrap()["data"], json!({"k": "v"}));
}

#[tokio::test(start_paused = true)]
async fn f1_external_edits_and_deletions_of_secrets_are_undone_when_their_turn_comes() {
    let world = World::new();
    world.namespaces(&["a", "b"]);
    world.distribution("d", in_namespaces(secret(), &["a", "b"]));
    let requeue = world.settle("d").await;
    assert_eq!(world.writes(), ["create a/secrets/s", "create b/secrets/s"]);
    assert_eq!(world.find("a/secrets/s").unwrap()["data"], json!({"k": "dg=="}));
    // Each within five seconds, one after the other.
    let seconds = Duration::from_secs;
    assert!(matches!(requeue, Requeue::After(after) if seconds(2) < after && after <= seconds(3)), "{requeue:?}");
    world.looks();
    world.edit("a/secrets/s", json!({"data": {"k": "eA==", "other": "eA=="}}));
    world.delete("b/secrets/s");
    world.settle("d").await;
    assert_eq!((world.writes(), world.looks()), (vec![], 0), "nothing is read meanwhile");
    for is_restarted in [false, true] {
        match is_restarted {
            true => world.controller.memories.clear(),
            false => tokio::time::sleep(SHORTEST).await,
        }
        world.settle("d").await;
        assert_eq!(world.writes(), ["create b/secrets/s", "patch a/secrets/s"], "{is_restarted}");
        assert_eq!(world.find("a/secrets/s").unwrap()["data"], json!({"k": "dg=="}));
        world.edit("a/secrets/s", json!({"data": {"k": "eA=="}}));
        world.delete("b/secrets/s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_that_finds_everything_as_it_was_writes_nothing_and_says_nothing() {
    let world = World::new();
    world.namespaces(&["a", "b", "c"]);
    world.put("b/secrets/s", json!({"data": {"mine": "eA=="}}));
    world.distribution("d", in_namespaces(secret(), &["a", "b"]));
    world.settle("d").await;
    assert_eq!(world.writes(), ["create a/secrets/s"]);
    let said = || world.controller.memories.with(&ObjectKey::new("", "d"), |memory| memory.said.clone());
    let (objects, warning) = (lock(&world.server).objects.clone(), said());
    world.looks();
    let mut passes = 0;
    let end = clock::now().mono + Duration::from_secs(60);
    while clock::now().mono < end {
        let Requeue::After(after) = world.look("d").await.unwrap() else { panic!("Secrets have turns") };
        tokio::time::sleep(after).await;
        passes += 1;
    }
    let looks = world.looks();
    // One request for the copy and four for the object of others, each within five seconds.
    assert!((60..=75).contains(&looks) && passes <= 31, "{looks} looks in {passes} passes");
    assert_eq!(world.writes(), Vec::<String>::new());
    assert_eq!(lock(&world.server).objects, objects, "no status is written");
    assert_eq!(said(), warning);
}

#[tokio::test(start_paused = true)]
async fn when_many_copies_go_with_their_distribution_the_others_are_looked_at_soon() {
    let names: Vec<String> = (0..1300).map(|i| format!("n{i:04}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let world = World::new();
    world.namespaces(&names);
    world.distribution("few", in_namespaces(secret(), &names[..1]));
    let mut other = secret();
    other["metadata"]["name"] = "other".into();
    world.distribution("many", in_namespaces(other, &names));
    world.settle("many").await;
    world.settle("few").await;
    assert_eq!(world.controller.periods().copies, PERIOD);
    let key = ObjectKey::new("", "many");
    // So it is when it becomes invalid.
    let load = world.controller.memories.with(&key, |memory| memory.load).unwrap();
    world.change("many", json!({"resource": {"kind": "Pod"}}));
    world.controller.reconcile(&key).await.unwrap();
    assert_eq!(world.controller.periods().copies, SHORTEST);
    world.controller.memories.with(&key, |memory| memory.load = load);
    let few = world.controller.queue.begin().unwrap();
    world.controller.reconcile(&few).await.unwrap();
    world.controller.queue.done(few, Ok::<_, kube::Error>(Requeue::Await));
    let many = world.controller.distributions.remove(&key, None).unwrap();
    world.controller.take_note(&Change::Deleted(&many));
    assert_eq!(world.controller.periods().copies, SHORTEST);
    assert_eq!(world.controller.queue.begin(), Some(ObjectKey::new("", "few")));
    world.controller.reconcile(&key).await.unwrap();
    assert_eq!(world.controller.memories.with(&key, |_| ()), None);
}

#[tokio::test(start_paused = true)]
async fn f1_a_config_map_that_somebody_edits_or_deletes_is_looked_at_within_a_second() {
    let world = World::new();
    world.namespaces(&["a"]);
    world.distribution("d", in_namespaces(config_map(), &["a"]));
    world.settle("d").await;
    world.writes();
    let store = world.controller.watched.show("c");
    let key = ObjectKey::new("a", "c");
    for deleted in [false, true] {
        let old = store.get(&key).unwrap();
        match deleted {
            true => world.delete("a/configmaps/c"),
            false => world.edit("a/configmaps/c", json!({"data": {"k": "x"}})),
        }
        match store.get(&key) {
            None => world.controller.copy_changed("c", &Change::Deleted(&old)),
            Some(new) => {
                world.controller.copy_changed("c", &Change::Applied { old: Some(&old), new: &new, initial: false });
            }
        }
        // The second write comes a second after the first one.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let woken = world.controller.queue.begin().unwrap();
        let next = world.controller.reconcile(&woken).await;
        world.watch();
        world.controller.queue.done(woken, next);
        assert_eq!(world.writes().len(), 1, "{deleted}");
        assert_eq!(world.find("a/configmaps/c").unwrap()["data"], json!({"k": "v"}));
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_copy_and_a_change_of_it_take_one_request_each() {
    for (resource, of) in [(secret(), "secrets/s"), (config_map(), "configmaps/c")] {
        let world = World::new();
        world.namespaces(&["a", "b"]);
        world.distribution("d", in_namespaces(resource, &["a", "b"]));
        let all = |verb: &str| ["a", "b"].map(|namespace| format!("{verb} {namespace}/{of}")).to_vec();
        world.settle("d").await;
        assert_eq!((world.writes(), world.looks()), (all("create"), 0));
        let marks = json!({"annotations": {"n": "1"}});
        world.change("d", json!({"resource": {"metadata": marks, "data": {"k": "dw==", "more": "eA=="}}}));
        world.settle("d").await;
        assert_eq!((world.writes(), world.looks()), (all("patch"), 0));
        let copy = world.find(&format!("a/{of}")).unwrap();
        assert_eq!(copy["data"]["more"], "eA==");
        assert_eq!(copy["metadata"]["annotations"]["n"], "1");
        world.change("d", json!({"resource": {"data": null}}));
        world.settle("d").await;
        assert_eq!((world.writes(), world.looks()), (all("patch"), 0));
        assert_eq!(world.find(&format!("b/{of}")).unwrap()["data"].get("more"), None, "as a whole");
        world.namespaces(&["c"]);
        world.change(
            "d",
            json!({"targets": {"includedNamespaces": {"list": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}}}),
        );
        world.settle("d").await;
        assert_eq!((world.writes(), world.looks()), (vec![format!("create c/{of}")], 0));
        assert_eq!(world.condition("d", "Ready")["message"], "3 of 3 namespaces have their copy");
    }
}

#[tokio::test]
async fn what_one_pass_has_no_room_for_follows_at_once_unless_nothing_goes() {
    let names: Vec<String> = (0..MOST_STEPS + 3).map(|i| format!("n{i:04}")).collect();
    let of: Vec<&str> = names.iter().map(String::as_str).collect();
    for is_broken in [false, true] {
        let world = World::new();
        world.namespaces(&of);
        if is_broken {
            lock(&world.record).broken.clone_from(&names);
        }
        world.distribution("d", in_namespaces(secret(), &of));
        let next = if is_broken { AFTER_WATCHED_CONFLICT } else { Duration::ZERO };
        assert_eq!(world.look("d").await.unwrap(), Requeue::After(next));
        assert_eq!(world.writes().len(), if is_broken { 0 } else { MOST_STEPS });
        if !is_broken {
            assert_ne!(world.look("d").await.unwrap(), Requeue::After(Duration::ZERO));
            assert_eq!(world.writes().len(), 3);
        }
    }
}

/// What one patch for all cannot do is done by another one, after a look at what is there.
#[tokio::test]
async fn a_change_that_one_patch_for_all_copies_cannot_make_is_made_all_the_same() {
    let world = World::new();
    world.namespaces(&["a"]);
    world.distribution("d", in_namespaces(secret(), &["a"]));
    world.settle("d").await;
    let copy = || world.find("a/secrets/s").unwrap();
    // Labels where there are none; a finalizer; another type, of which a copy has to be made anew.
    world.change("d", json!({"resource": {"metadata": {"labels": {"l": "1"}}}}));
    world.settle("d").await;
    assert_eq!(copy()["metadata"]["labels"], json!({"l": "1"}));
    world.change("d", json!({"resource": {"metadata": {"finalizers": ["example.com/hold"]}}}));
    world.settle("d").await;
    assert_eq!(copy()["metadata"]["finalizers"], json!(["example.com/hold"]));
    world.edit("a/secrets/s", json!({"metadata": {"finalizers": null}}));
    let other = json!({"metadata": {"finalizers": null}, "type": "example.com/t", "stringData": {"k": "w"}});
    world.change("d", json!({"resource": other}));
    world.writes();
    world.settle("d").await;
    assert_eq!((&copy()["data"], &copy()["type"]), (&json!({"k": "dw=="}), &json!("example.com/t")));
    assert_eq!(world.writes(), ["create a/secrets/s", "delete a/secrets/s", "patch a/secrets/s"]);
    assert_eq!(world.condition("d", "Ready")["status"], "True");
    world.change("d", json!({"resource": {"type": null}}));
    world.settle("d").await;
    assert_eq!(copy()["type"], "Opaque");
    // An owner of somebody before ours.
    let other = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p"});
    let ours = copy()["metadata"]["ownerReferences"][0].clone();
    world.edit("a/secrets/s", json!({"metadata": {"ownerReferences": [other, ours]}}));
    world.change("d", json!({"resource": {"stringData": {"k": "v"}}}));
    world.settle("d").await;
    assert_eq!(copy()["data"], json!({"k": "dg=="}));
    assert_eq!(copy()["metadata"]["ownerReferences"], json!([other, ours]));
    // One that is being deleted, and held.
    world.edit("a/secrets/s", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    world.change("d", json!({"resource": {"stringData": {"k": "x"}}}));
    world.settle("d").await;
    assert_eq!(world.condition("d", "Ready")["reason"], "CopyTerminating");
}

/// Between the two writes the process ends, or others take the room of the second one; and a finalizer may hold the copy that
/// goes.
#[tokio::test(start_paused = true)]
async fn a_copy_of_another_type_is_made_anew_whatever_comes_in_between() {
    for held in [false, true] {
        for refused in [false, true] {
            let world = World::new();
            world.namespaces(&["a"]);
            world.distribution("d", in_namespaces(secret(), &["a"]));
            world.settle("d").await;
            if refused {
                lock(&world.record).fills_up = true;
            } else {
                // The answer to the patch, and that to the deletion.
                lock(&world.record).writes_left = Some(2);
            }
            if held {
                world.edit("a/secrets/s", json!({"metadata": {"finalizers": ["example.com/hold"]}}));
            }
            world.change("d", json!({"resource": {"type": "example.com/t"}}));
            let _ = world.look("d").await;
            assert_eq!(world.find("a/secrets/s"), None, "it was deleted, and none has been made");
            {
                let mut record = lock(&world.record);
                (record.full, record.fills_up) = Default::default();
            }
            if !refused {
                lock(&world.record).writes_left = None;
                world.controller.memories.clear();
            }
            tokio::time::sleep(CONFLICT_RETRY).await;
            world.settle("d").await;
            assert_eq!(world.find("a/secrets/s").unwrap()["type"], "example.com/t");
            assert_eq!(world.condition("d", "Ready")["status"], "True");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_nobody_can_change_stays_until_a_new_one_would_be_accepted() {
    let fixed = |mut resource: Value| {
        resource["immutable"] = true.into();
        resource
    };
    for (resource, of, change) in [
        (secret(), "secrets/s", json!({"type": "example.com/t"})),
        (fixed(secret()), "secrets/s", json!({"stringData": {"k": "w"}})),
        (fixed(config_map()), "configmaps/c", json!({"data": {"k": "w"}})),
        (fixed(config_map()), "configmaps/c", json!({"immutable": null})),
    ] {
        let world = World::new();
        world.namespaces(&["a", "b"]);
        world.distribution("d", in_namespaces(resource, &["a", "b"]));
        world.settle("d").await;
        world.writes();
        // A look gives a version of its own here.
        let at = |namespace: &str| {
            let mut object = world.find(&format!("{namespace}/{of}")).unwrap();
            object["metadata"]["resourceVersion"] = Value::Null;
            object
        };
        let before = at("a");
        lock(&world.record).full = vec!["a".into()];
        world.change("d", json!({"resource": change}));
        world.settle("d").await;
        let wanted = ["create b", "delete b", "patch a", "patch b"].map(|write| format!("{write}/{of}"));
        assert_eq!((world.writes(), at("a")), (wanted.to_vec(), before.clone()), "{change}");
        assert_eq!(lock(&world.record).dry_runs.len(), 2, "one each: {change}");
        let failed = world.condition("d", "UpdateResourceFailed");
        assert_eq!((&failed["failedNamespace"], &world.status("d")["succeeded"]), (&json!(["a"]), &json!(1)));
        let why = failed["reason"].as_str().unwrap();
        assert!(why.contains("the old copy stays, a dry run of the new one failed: exceeded quota"), "{why}");
        // There is room again.
        lock(&world.record).full.clear();
        tokio::time::sleep(Duration::from_secs(6)).await;
        world.settle("d").await;
        let writes = world.writes();
        for write in ["create a", "delete a"] {
            assert!(writes.contains(&format!("{write}/{of}")), "{writes:?}");
        }
        for member in ["type", "immutable", "data"] {
            assert_eq!(at("a").get(member), at("b").get(member), "{change}");
        }
        assert_ne!(at("a")["metadata"]["uid"], before["metadata"]["uid"]);
        assert_eq!(world.condition("d", "Ready")["status"], "True");
        // Labels can be changed.
        world.change("d", json!({"resource": {"metadata": {"labels": {"l": "1"}}}}));
        world.settle("d").await;
        assert!(world.writes().iter().all(|write| write.starts_with("patch")), "{change}");
        assert_eq!(at("a")["metadata"]["labels"], json!({"l": "1"}));
    }
}

/// Others change a copy between the look at it and its deletion.
#[tokio::test(start_paused = true)]
async fn a_copy_is_replaced_only_in_the_version_that_was_read() {
    let world = World::new();
    world.namespaces(&["a"]);
    world.distribution("d", in_namespaces(secret(), &["a"]));
    world.settle("d").await;
    world.change("d", json!({"resource": {"type": "example.com/t"}}));
    lock(&world.server).faults.extend([Fault::Error(409)]);
    world.look("d").await.unwrap();
    assert_eq!(world.find("a/secrets/s").unwrap()["type"], "Opaque", "the deletion has met another version");
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.settle("d").await;
    assert_eq!(world.find("a/secrets/s").unwrap()["type"], "example.com/t");
}

#[tokio::test]
async fn a_change_leaves_what_others_have_put_in_the_place_of_a_copy() {
    let world = World::new();
    world.namespaces(&["a", "b", "c"]);
    world.distribution("d", in_namespaces(secret(), &["a", "b", "c"]));
    world.settle("d").await;
    world.delete("a/secrets/s");
    world.put("a/secrets/s", json!({"data": {"k": "eA=="}}));
    // Somebody's, with our annotations.
    world.edit("b/secrets/s", json!({"metadata": {"ownerReferences": null}, "data": {"k": "eA=="}}));
    world.delete("c/secrets/s");
    world.change("d", json!({"resource": {"stringData": {"k": "w"}}}));
    world.settle("d").await;
    for name in ["a", "b"] {
        assert_eq!(world.find(&format!("{name}/secrets/s")).unwrap()["data"], json!({"k": "eA=="}), "{name}");
    }
    assert_eq!(world.find("c/secrets/s").unwrap()["data"], json!({"k": "dw=="}));
    assert_eq!(world.status("d")["succeeded"], 1);
}

/// The answer to a write is in the store before the watch brings it: the next pass does not write again.
#[tokio::test]
async fn f2_what_was_written_is_what_is_read() {
    let world = World::new();
    world.namespaces(&["a"]);
    world.distribution("d", in_namespaces(config_map(), &["a"]));
    let key = ObjectKey::new("", "d");
    let store = world.controller.watched.show("c");
    world.controller.reconcile(&key).await.unwrap();
    assert_eq!(store.list().len(), 1, "no watch has brought it");
    world.controller.reconcile(&key).await.unwrap();
    assert_eq!(world.writes(), ["create a/configmaps/c"]);
}

#[tokio::test]
async fn f6_objects_of_others_are_never_changed_and_never_deleted() {
    let world = World::new();
    world.namespaces(&["a", "b", "z"]);
    let annotated = json!({"metadata": {"annotations": {"kruise.io/resourcedistribution.resource.from": "d"}}, "data": {"mine": "eA=="}});
    let plain = json!({"data": {"mine": "eA=="}});
    for (path, object) in [
        ("a/secrets/s", &plain),
        ("b/secrets/s", &annotated),
        ("z/secrets/s", &annotated),
        ("a/configmaps/c", &plain),
        ("z/configmaps/c", &annotated),
    ] {
        world.put(path, object.clone());
    }
    let before: Vec<_> = ["a/secrets/s", "b/secrets/s", "z/secrets/s", "a/configmaps/c", "z/configmaps/c"]
        .map(|path| world.find(path))
        .into();
    world.distribution("d", in_namespaces(secret(), &["a", "b"]));
    world.distribution("e", in_namespaces(config_map(), &["a"]));
    world.settle("d").await;
    world.settle("e").await;
    assert_eq!(world.writes(), Vec::<String>::new());
    let after: Vec<_> = ["a/secrets/s", "b/secrets/s", "z/secrets/s", "a/configmaps/c", "z/configmaps/c"]
        .map(|path| world.find(path))
        .into();
    assert_eq!(after, before);
    assert_eq!(world.condition("d", "ConflictOccurred")["failedNamespace"], json!(["a", "b"]));
    assert_eq!(world.condition("e", "ConflictOccurred")["failedNamespace"], json!(["a"]));
    assert_eq!(world.condition("e", "Ready")["reason"], "ConflictOccurred");
    // The blocker of the ConfigMap goes, which the watch shows.
    world.delete("a/configmaps/c");
    world.settle("e").await;
    assert_eq!(world.writes(), ["create a/configmaps/c"]);
    assert_eq!(world.condition("e", "Ready")["status"], "True");
}

#[tokio::test]
async fn copies_of_openkruise_are_taken_over_without_a_write_and_those_that_differ_with_one() {
    let world = World::new();
    let recorded: Value =
        serde_json::from_str(include_str!("../../api/apps/testdata/resource_distribution.json")).unwrap();
    world.namespaces(&["golden"]);
    let path = format!("{DISTRIBUTIONS}/golden-rd");
    let stored = lock(&world.server).put(&path, recorded["distribution"].clone());
    world.controller.distributions.upsert(serde_json::from_value(stored).unwrap());
    world.controller.watched.show("spread-me");
    world.put("golden/configmaps/spread-me", recorded["copy"].clone());
    let of_openkruise = json!({"metadata": {"ownerReferences": recorded["copy"]["metadata"]["ownerReferences"],
        "annotations": recorded["copy"]["metadata"]["annotations"], "labels": {"theirs": "1"}},
        "type": "Opaque", "data": {"k": "b2xk", "gone": "eA=="}});
    let version = |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    let newest = || lock(&world.server).objects.values().map(|object| version(object)).max().unwrap();
    let before = newest();
    for _ in 0..3 {
        world.settle("golden-rd").await;
    }
    assert_eq!((world.writes(), world.looks()), (vec![], 0));
    assert!(newest() - before <= 1, "nothing is written but the status, once");
    let status = world.status("golden-rd");
    assert_eq!((&status["failed"], &status["desired"]), (&json!(0), &json!(1)), "zeros are written");
    let recorded_conditions = recorded["distribution"]["status"]["conditions"].as_array().unwrap();
    assert_eq!(&status["conditions"].as_array().unwrap()[..6], &recorded_conditions[..]);

    // A Secret of the same ResourceDistribution that was changed while no manager ran.
    let world = World::new();
    world.namespaces(&["a"]);
    world.distribution("golden-rd", in_namespaces(secret(), &["a"]));
    world.put("a/secrets/s", of_openkruise);
    world.settle("golden-rd").await;
    assert_eq!(world.writes(), ["patch a/secrets/s"]);
    let copy = world.find("a/secrets/s").unwrap();
    assert_eq!((&copy["data"], &copy["metadata"]["labels"]), (&json!({"k": "dg=="}), &json!({"theirs": "1"})));
    assert_eq!(copy["metadata"]["ownerReferences"][0]["uid"], "uid-golden-rd");
}

#[tokio::test]
async fn a_secret_whose_annotation_somebody_took_off_is_still_known_by_its_owner() {
    let world = World::new();
    world.namespaces(&["a"]);
    world.distribution("d", in_namespaces(secret(), &["a"]));
    world.settle("d").await;
    world.writes();
    world.edit("a/secrets/s", json!({"metadata": {"annotations": null}}));
    world.controller.memories.clear();
    world.settle("d").await;
    assert_eq!(world.writes(), ["patch a/secrets/s"]);
    let annotations = &world.find("a/secrets/s").unwrap()["metadata"]["annotations"];
    assert_eq!(annotations["kruise.io/resourcedistribution.resource.from"], "d");
}

#[tokio::test]
async fn a_target_that_left_while_no_manager_ran_loses_its_copy_and_foreign_secrets_stay() {
    let world = World::new();
    world.namespaces(&["a", "b", "c"]);
    world.distribution("d", in_namespaces(secret(), &["a", "b"]));
    world.settle("d").await;
    world.writes();
    world.put("c/secrets/s", json!({"data": {"mine": "eA=="}}));
    world.change("d", json!({"targets": {"includedNamespaces": {"list": [{"name": "a"}]}}}));
    world.controller.memories.clear();
    // One of the namespaces has its turn at once, the other one later.
    for _ in 0..2 {
        world.look("d").await.unwrap();
        world.controller.memories.for_each(|memory| memory.forget_tick());
    }
    world.settle("d").await;
    assert_eq!(world.writes(), ["delete b/secrets/s"]);
    assert!(world.find("c/secrets/s").is_some() && world.find("a/secrets/s").is_some());
    let status = world.status("d");
    assert_eq!((&status["desired"], &status["succeeded"]), (&json!(1), &json!(1)));
}

#[tokio::test]
async fn a_new_namespace_is_served_by_itself_and_a_refusing_one_is_left() {
    let world = World::new();
    world.namespaces(&["a"]);
    world.distribution(
        "d",
        json!({"resource": secret(), "targets": {"namespaceLabelSelector": {"matchLabels": {"team": "x"}}}}),
    );
    world.settle("d").await;
    assert_eq!(world.writes(), Vec::<String>::new());
    world.namespace(json!({"metadata": {"name": "n", "labels": {"team": "x"}}}));
    world.settle("d").await;
    assert_eq!(world.writes(), ["create n/secrets/s"]);
    world.namespace(json!({"metadata": {"name": "n", "labels": {"team": "x"}, "annotations": {"kruise.rs/refuse-distribution": "true"}}}));
    world.settle("d").await;
    assert_eq!(world.writes(), ["delete n/secrets/s"]);
    assert_eq!(world.condition("d", "NamespaceRefused")["failedNamespace"], json!(["n"]));
    assert_eq!((&world.status("d")["desired"], &world.condition("d", "Ready")["status"]), (&json!(0), &json!("True")));
}

#[tokio::test]
async fn a_refusal_in_one_namespace_holds_up_no_other_and_ends_by_itself() {
    let world = World::new();
    world.namespaces(&["a", "b", "c"]);
    lock(&world.record).full = vec!["a".into()];
    world.distribution("d", in_namespaces(config_map(), &["a", "b", "c"]));
    let requeue = world.settle("d").await;
    assert_eq!(world.writes(), ["create a/configmaps/c", "create b/configmaps/c", "create c/configmaps/c"]);
    assert!(matches!(requeue, Requeue::After(after) if after > Duration::from_secs(3)), "{requeue:?}");
    let failed = world.condition("d", "CreateResourceFailed");
    assert_eq!((&failed["status"], &failed["failedNamespace"]), (&json!("True"), &json!(["a"])));
    assert!(failed["reason"].as_str().unwrap().contains("exceeded quota"), "{failed}");
    assert_eq!(world.status("d")["failed"], json!(1));
    lock(&world.record).full.clear();
    world.change("d", json!({"resource": {"data": {"k": "w"}}}));
    world.settle("d").await;
    assert_eq!(world.writes(), ["create a/configmaps/c", "patch b/configmaps/c", "patch c/configmaps/c"]);
    assert_eq!(world.condition("d", "CreateResourceFailed")["status"], "False");
}

/// A copy whose answer was lost, or that another manager has made before it died.
#[tokio::test(start_paused = true)]
async fn a_copy_that_has_filled_a_quota_is_found_and_changed() {
    let world = World::new();
    world.namespaces(&["a"]);
    world.distribution("d", in_namespaces(secret(), &["a"]));
    world.settle("d").await;
    assert_eq!(world.writes(), ["create a/secrets/s"]);
    lock(&world.record).full = vec!["a".into()];
    world.distribution("d", in_namespaces(secret(), &["a"]));
    world.controller.memories.clear();
    world.look("d").await.unwrap();
    assert_eq!(world.writes(), ["create a/secrets/s"], "no status says that there is a copy");
    assert_eq!(world.status("d")["failed"], 1);
    tokio::time::sleep(Duration::from_secs(6)).await;
    world.settle("d").await;
    assert_eq!((world.writes(), &world.status("d")["succeeded"]), (vec![], &json!(1)));
    world.change("d", json!({"resource": {"stringData": {"k": "w"}}}));
    world.settle("d").await;
    assert_eq!(world.writes(), ["patch a/secrets/s"]);
}

/// More namespaces than are tried in vain in a row.
#[tokio::test(start_paused = true)]
async fn namespaces_that_answer_500_hold_up_no_other_and_wait_by_themselves() {
    let names: Vec<String> = (0..30).map(|i| format!("n{i:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for resource in [config_map(), secret()] {
        let world = World::new();
        world.namespaces(&names);
        lock(&world.record).broken = names[..20].iter().map(|name| (*name).to_owned()).collect();
        let first = if resource["kind"] == "Secret" { 1 } else { 4 };
        world.distribution("d", in_namespaces(resource, &names));
        for _ in 0..4 {
            world.look("d").await.unwrap();
        }
        assert_eq!(world.writes().len(), 10);
        let status = world.status("d");
        assert_eq!((&status["desired"], &status["succeeded"]), (&json!(30), &json!(10)));
        let requeue = world.look("d").await.unwrap();
        // What has failed waits for five seconds. The copies of a Secret have their turns meanwhile.
        assert!(matches!(requeue, Requeue::After(after) if after > Duration::from_secs(first)), "{requeue:?}");
        // A copy is put back meanwhile, although the others are tried again and again.
        tokio::time::sleep(Duration::from_secs(6)).await;
        world.change("d", json!({"resource": {"data": {"k": "dw=="}}}));
        world.look("d").await.unwrap();
        assert_eq!(world.writes().len(), 10);
        lock(&world.record).broken.clear();
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_secs(300)).await;
            world.look("d").await.unwrap();
        }
        assert_eq!(world.status("d")["succeeded"], json!(30));
    }
}

#[tokio::test(start_paused = true)]
async fn f1_somebody_who_changes_a_copy_in_a_loop_makes_few_writes() {
    let world = World::new();
    world.namespaces(&["a", "b"]);
    world.distribution("d", in_namespaces(config_map(), &["a", "b"]));
    world.settle("d").await;
    world.writes();
    for i in 0..600 {
        world.edit("a/configmaps/c", json!({"data": {"k": format!("{i}")}}));
        world.look("d").await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let writes = world.writes().len();
    assert!((8..12).contains(&writes), "{writes} writes in ten minutes");
    world.edit("b/configmaps/c", json!({"data": {"k": "x"}}));
    world.look("d").await.unwrap();
    assert_eq!(world.writes(), ["patch b/configmaps/c"], "another copy is put back at once");
    tokio::time::sleep(Duration::from_secs(300)).await;
    world.settle("d").await;
    assert_eq!(world.find("a/configmaps/c").unwrap()["data"], json!({"k": "v"}));
}

/// A copy becomes the source of the others, and is none any more.
#[tokio::test(start_paused = true)]
async fn the_source_is_neither_written_nor_deleted_when_it_was_a_copy_before() {
    for (resource, of, kind) in
        [(config_map(), "configmaps/c", ResourceKind::ConfigMap), (secret(), "secrets/s", ResourceKind::Secret)]
    {
        let world = World::new();
        world.namespaces(&["a", "b"]);
        world.distribution("d", in_namespaces(resource.clone(), &["a", "b"]));
        world.settle("d").await;
        world.writes();
        world.edit(&format!("a/{of}"), json!({"data": {"k": "bXk="}}));
        let name = resource["metadata"]["name"].as_str().unwrap();
        let source = world.find(&format!("a/{of}")).unwrap();
        world.controller.watched.show_source(kind, "a", name, SourceContent::Present(Arc::new(source.clone())));
        let reference = json!({"kind": kind.name(), "namespace": "a", "name": name});
        world.change("d", json!({"resource": null, "resourceRef": reference}));
        for clears in [false, true] {
            if clears {
                world.controller.memories.clear();
            }
            world.settle("d").await;
            tokio::time::sleep(Duration::from_secs(700)).await;
            world.settle("d").await;
        }
        assert_eq!(world.writes(), [format!("patch b/{of}")]);
        assert_eq!(world.find(&format!("a/{of}")).unwrap(), source);
        assert_eq!(world.find(&format!("b/{of}")).unwrap()["data"], source["data"]);
        // A source that nobody else made stays when it is none any more.
        world.edit(&format!("a/{of}"), json!({"metadata": {"ownerReferences": null, "annotations": null}}));
        let source = world.find(&format!("a/{of}")).unwrap();
        world.change("d", json!({"resource": resource, "resourceRef": null}));
        world.settle("d").await;
        assert_eq!(world.find(&format!("a/{of}")).unwrap(), source);
        assert_eq!(world.condition("d", "ConflictOccurred")["failedNamespace"], json!(["a"]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_a_finalizer_holds_is_no_copy_and_is_made_again_when_it_has_gone() {
    let world = World::new();
    world.namespaces(&["a", "b"]);
    world.distribution("d", in_namespaces(secret(), &["a", "b"]));
    world.settle("d").await;
    world.writes();
    world.edit(
        "a/secrets/s",
        json!({"metadata": {"finalizers": ["example.com/hold"],
        "deletionTimestamp": "2026-01-01T00:00:00Z"}}),
    );
    world.controller.memories.clear();
    world.settle("d").await;
    assert_eq!(world.writes(), Vec::<String>::new());
    assert_eq!((&world.status("d")["succeeded"], &world.status("d")["failed"]), (&json!(1), &json!(1)));
    assert_eq!(world.condition("d", "Reconciling")["reason"], "CopyTerminating");
    world.delete("a/secrets/s");
    tokio::time::sleep(Duration::from_secs(70)).await;
    world.settle("d").await;
    assert_eq!(world.writes(), ["create a/secrets/s"]);
    assert_eq!(world.condition("d", "Ready")["status"], "True");
}

#[tokio::test]
async fn f6_a_copy_is_known_by_our_own_owner_wherever_it_stands() {
    let world = World::new();
    world.namespaces(&["a", "b"]);
    world.distribution("d", in_namespaces(secret(), &["a", "b"]));
    world.settle("d").await;
    world.writes();
    let ours = world.find("a/secrets/s").unwrap()["metadata"]["ownerReferences"][0].clone();
    let other = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p"});
    // With the UID of ours, and none of ours.
    let stranger = json!({"apiVersion": "v1", "kind": "Pod", "name": "d", "uid": "uid-d", "controller": true});
    world.edit("a/secrets/s", json!({"metadata": {"annotations": null, "ownerReferences": [other, ours]}}));
    world.edit("b/secrets/s", json!({"metadata": {"annotations": null, "ownerReferences": [stranger]}}));
    world.controller.memories.clear();
    world.settle("d").await;
    assert_eq!(world.writes(), ["patch a/secrets/s"]);
    assert_eq!(world.find("a/secrets/s").unwrap()["metadata"]["ownerReferences"], json!([other, ours]));
    assert_eq!(world.condition("d", "ConflictOccurred")["failedNamespace"], json!(["b"]));
}

#[tokio::test]
async fn large_contents_have_fewer_places_at_a_time() {
    let world = World::new();
    let weight = |name: &str| {
        let key = ObjectKey::new("", name);
        let object = world.controller.distributions.get(&key).unwrap();
        world.controller.job(&key, &object).unwrap().unwrap().weight()
    };
    world.distribution("small", in_namespaces(config_map(), &["a"]));
    let mut large = config_map();
    large["data"]["k"] = "x".repeat(1024 * 1024).into();
    world.distribution("large", in_namespaces(large, &["a"]));
    assert_eq!((weight("small"), ROOM / weight("large") as usize), (1, 5));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_referred_to_is_followed_and_its_loss_touches_no_copy() {
    let world = World::new();
    world.namespaces(&["a", "src"]);
    world.distribution(
        "d",
        json!({"resourceRef": {"kind": "Secret", "namespace": "src", "name": "s"},
        "targets": {"allNamespaces": true}}),
    );
    let show = |content| world.controller.watched.show_source(ResourceKind::Secret, "src", "s", content);
    assert_eq!(world.look("d").await.unwrap(), Requeue::After(AFTER_UNKNOWN), "it has not been seen");
    assert!(world.status("d").is_null());
    let present = |value: &str| SourceContent::Present(Arc::new(json!({"type": "Opaque", "data": {"k": value}})));
    show(present("MQ=="));
    world.settle("d").await;
    assert_eq!(world.writes(), ["create a/secrets/s"], "its own namespace keeps it");
    assert_eq!(world.condition("d", "ReferenceFailed")["status"], "False");
    show(present("Mg=="));
    world.settle("d").await;
    assert_eq!(world.writes(), ["patch a/secrets/s"]);
    assert_eq!(world.find("a/secrets/s").unwrap()["data"], json!({"k": "Mg=="}));
    for (content, reason) in [
        (SourceContent::Missing, "ReferenceMissing"),
        (SourceContent::Forbidden("secrets \"s\" is forbidden".into()), "ReferenceForbidden"),
        (SourceContent::Present(Arc::new(json!({"type": "bootstrap.kubernetes.io/token"}))), "ReferenceInvalid"),
    ] {
        show(content);
        tokio::time::sleep(Duration::from_secs(2)).await;
        world.settle("d").await;
        assert_eq!(world.condition("d", "ReferenceFailed")["reason"], reason);
        assert_eq!(world.condition("d", "Reconciling")["status"], "True");
        assert_eq!(world.status("d")["succeeded"], json!(1), "{reason}");
    }
    assert_eq!(world.writes(), Vec::<String>::new());
    assert!(world.find("a/secrets/s").is_some());
}

#[tokio::test]
async fn section_6_step_1_one_that_cannot_be_followed_writes_no_copy() {
    let world = World::new();
    world.namespaces(&["a"]);
    let mut pod = config_map();
    pod["kind"] = "Pod".into();
    world.distribution("d", in_namespaces(pod, &["a"]));
    world.settle("d").await;
    assert_eq!(world.condition("d", "Stalled")["reason"], "InvalidSpec");
    assert_eq!(world.writes(), Vec::<String>::new());
}

/// The garbage collector takes its copies, and none is made again.
#[tokio::test]
async fn section_6_step_6_one_that_is_being_deleted_writes_no_copy() {
    let world = World::new();
    world.namespaces(&["a"]);
    world.distribution("e", in_namespaces(config_map(), &["a"]));
    let path = format!("{DISTRIBUTIONS}/e");
    lock(&world.server).change(
        &path,
        &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"]}}),
    );
    let stored = Value::clone(&lock(&world.server).objects[&path]);
    world.controller.distributions.upsert(serde_json::from_value(stored).unwrap());
    assert_eq!(world.look("e").await.unwrap(), Requeue::Await);
    assert_eq!(world.writes(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn without_a_view_of_config_maps_nothing_is_done_and_the_status_says_so() {
    let world = World::new();
    world.namespaces(&["a"]);
    world.distribution("d", in_namespaces(config_map(), &["a"]));
    let key = ObjectKey::new("", "d");
    assert_eq!(world.controller.reconcile(&key).await.unwrap(), Requeue::After(AFTER_UNKNOWN));
    assert!(world.status("d").is_null() && world.writes().is_empty());
    world.controller.watched.miss("c");
    tokio::time::sleep(UNWATCHED_AFTER + Duration::from_secs(1)).await;
    world.controller.reconcile(&key).await.unwrap();
    assert_eq!(world.condition("d", "Ready")["reason"], "ConfigMapsNotRead");
    assert!(world.writes().is_empty());
}

#[tokio::test]
async fn namespaces_wake_those_that_they_matter_to() {
    let world = World::new();
    world.distribution("named", in_namespaces(secret(), &["a"]));
    world.distribution(
        "selected",
        json!({"resource": secret(), "targets": {"namespaceLabelSelector": {"matchLabels": {"team": "x"}}}}),
    );
    let namespace = |object: Value| Arc::new(view_of(object));
    let woken = |old: Option<&Arc<NamespaceView>>, new: Option<&Arc<NamespaceView>>| {
        let change = match (old, new) {
            (old, Some(new)) => Change::Applied { old, new, initial: false },
            (Some(old), None) => Change::Deleted(old),
            (None, None) => unreachable!(),
        };
        world.controller.namespace_changed(&change);
        let mut all = Vec::new();
        while let Some(key) = world.controller.queue.begin() {
            all.push(key.name.to_string());
            world.controller.queue.done::<kube::Error>(key, Ok(Requeue::Await));
        }
        all.sort();
        all
    };
    let none: [&str; 0] = [];
    let a = namespace(json!({"metadata": {"name": "a"}}));
    let b = namespace(json!({"metadata": {"name": "b"}}));
    let labelled = namespace(json!({"metadata": {"name": "b", "labels": {"team": "x"}}}));
    let refusing =
        namespace(json!({"metadata": {"name": "b", "labels": {"team": "x", "kruise.rs/refuse-distribution": "true"}}}));
    let ending = namespace(json!({"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    assert_eq!(woken(None, Some(&a)), ["named"]);
    assert_eq!(woken(None, Some(&b)), none);
    assert_eq!(woken(Some(&b), Some(&labelled)), ["selected"]);
    assert_eq!(woken(Some(&labelled), Some(&refusing)), ["selected"]);
    assert_eq!(woken(Some(&labelled), Some(&labelled)), none);
    assert_eq!(woken(Some(&a), Some(&ending)), ["named"]);
    assert_eq!(woken(Some(&a), None), ["named"]);
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_waits_for_room_in_memory_has_not_failed() {
    let world = World::new();
    world.namespaces(&["a"]);
    world.distribution("d", in_namespaces(secret(), &["a"]));
    let room = world.controller.room.acquire_many(u32::try_from(ROOM).unwrap()).await.unwrap();
    let others = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        drop(room);
    };
    let (_, ()) = tokio::join!(world.settle("d"), others);
    assert_eq!(world.writes(), ["create a/secrets/s"]);
    assert_eq!(world.condition("d", "Ready")["status"], "True");
}

/// Before anybody has looked at what is there in between, or seen that the first one has gone.
#[tokio::test]
async fn a_namespace_that_was_deleted_and_made_again_gets_its_secret_at_once() {
    for is_seen in [true, false] {
        let world = World::new();
        world.namespaces(&["a"]);
        world.distribution("d", in_namespaces(secret(), &["a"]));
        world.settle("d").await;
        assert_eq!(world.writes(), ["create a/secrets/s"]);
        let there = || world.controller.namespaces.get(&ObjectKey::new("", "a")).unwrap();
        let old = there();
        world.delete("a/secrets/s");
        world.namespace(json!({"metadata": {"name": "a", "uid": "another"}}));
        let new = there();
        let change = match is_seen {
            true => Change::Deleted(&old),
            false => Change::Applied { old: Some(&old), new: &new, initial: false },
        };
        world.controller.namespace_changed(&change);
        assert!(world.controller.queue.begin().is_some(), "{is_seen}");
        world.settle("d").await;
        assert_eq!(world.writes(), ["create a/secrets/s"], "{is_seen}");
    }
}

#[tokio::test]
async fn one_that_goes_wakes_those_that_wait_for_its_name() {
    let world = World::new();
    world.namespaces(&["a"]);
    world.distribution("first", in_namespaces(secret(), &["a"]));
    world.distribution("second", in_namespaces(secret(), &["a"]));
    world.settle("first").await;
    world.settle("second").await;
    assert_eq!(world.condition("second", "ConflictOccurred")["failedNamespace"], json!(["a"]));
    world.writes();
    world.delete("a/secrets/s");
    let first = world.controller.distributions.remove(&ObjectKey::new("", "first"), None).unwrap();
    world.controller.wake_rivals(&first);
    assert_eq!(world.controller.queue.begin(), Some(ObjectKey::new("", "second")));
    world.settle("second").await;
    assert_eq!(world.writes(), ["create a/secrets/s"]);
}

/// Whatever writes are refused, lost or late, and between whichever two of them the process dies, in the end every target has its copy and nobody else has one.
#[tokio::test(start_paused = true)]
async fn simulation_of_failures_and_crashes_after_which_the_copies_are_where_they_are_wanted() {
    for seed in 0..60 {
        let (mut random, world) = (Random(seed), World::new());
        let all = ["a", "b", "c", "d"];
        world.namespaces(&all);
        world.put("d/configmaps/c", json!({"data": {"theirs": "1"}}));
        world.put("d/secrets/s", json!({"data": {"theirs": "MQ=="}}));
        let resource = if random.below(2) == 0 { config_map() } else { secret() };
        let of = if resource["kind"] == "Secret" { "secrets/s" } else { "configmaps/c" };
        world.distribution("r", in_namespaces(resource, &all));
        let mut wanted: Vec<&str> = all.to_vec();
        for _ in 0..12 {
            let mut crashes = false;
            match random.below(6) {
                5 => {
                    lock(&world.record).writes_left = Some(random.below(4));
                    crashes = true;
                }
                0 => drop(lock(&world.server).fail(&mut random)),
                1 => {
                    let namespace = all[random.below(3)];
                    world.edit(&format!("{namespace}/{of}"), json!({"data": {"x": "eA=="}}));
                }
                2 => world.delete(&format!("{}/{of}", all[random.below(3)])),
                3 => {
                    wanted = all.iter().copied().filter(|_| random.below(3) > 0).collect();
                    let list: Vec<Value> = wanted.iter().map(|name| json!({"name": name})).collect();
                    world.change("r", json!({"targets": {"includedNamespaces": {"list": list}}}));
                }
                _ => world.controller.memories.clear(),
            }
            let _ = world.look("r").await;
            if crashes {
                lock(&world.record).writes_left = None;
                world.controller.memories.clear();
            }
        }
        lock(&world.server).faults.clear();
        // Two periods: what failed has waited for its pause, and everything has had its turn.
        for _ in 0..260 {
            let _ = world.look("r").await;
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        for namespace in &all[..3] {
            let found = world.find(&format!("{namespace}/{of}"));
            let is_copy = found.as_ref().is_some_and(is_of_distribution);
            assert_eq!(is_copy, wanted.contains(namespace), "seed {seed}, {namespace}: {found:?}");
            if let Some(copy) = found {
                assert_eq!(copy["data"].as_object().unwrap().len(), 1, "seed {seed}, {namespace}: {copy}");
            }
        }
        assert!(world.find(&format!("d/{of}")).unwrap()["data"].get("theirs").is_some(), "seed {seed}");
        let status = world.status("r");
        assert_eq!(status["desired"], json!(wanted.len()), "seed {seed}");
        assert_eq!(
            status["succeeded"],
            json!(wanted.iter().filter(|name| **name != "d").count()),
            "seed {seed}: {status}"
        );
    }
}

const NAMESPACES: usize = 10_000;

/// Counts this process's memory, so it runs in one of its own.
#[tokio::test]
#[ignore = "run by the next test"]
async fn memory_of_many_namespaces() {
    let world = World::new();
    let uid = |i: usize| format!("{i:08}-aaaa-4bbb-8ccc-ddddeeeeffff");
    let mut large = config_map();
    large["data"]["k"] = "x".repeat(10_000).into();
    let content = Content::of_resource(&large).unwrap();
    world.distribution("d", json!({"resource": large, "targets": {"allNamespaces": true}}));
    let store = world.controller.watched.show("c");
    let put = |i: usize| {
        let name = format!("team-{i:06}");
        let namespace = json!({"metadata": {"name": name, "uid": uid(i), "resourceVersion": "123456", "creationTimestamp":
            "2026-01-01T00:00:00Z", "labels": {"kubernetes.io/metadata.name": name, "team": format!("t{}", i % 50)},
            "annotations": {"note": "n".repeat(500)}}, "status": {"phase": "Active"}});
        world.controller.namespaces.see(view_of(namespace), |_| ());
        let mut copy = copy::new(&content, Distributor { name: "d", uid: "uid-d" });
        let of_server = json!({"namespace": name, "uid": uid(i + NAMESPACES), "resourceVersion": "123456"});
        json_patch::merge(&mut copy, &json!({"metadata": of_server}));
        store.see(serde_json::from_value::<CopyObject>(copy).unwrap().into(), |_| ());
    };
    // What a decoder and a survey need once.
    put(0);
    let pass = |name: &str, now: Now| {
        let key = ObjectKey::new("", name);
        let object = world.controller.distributions.get(&key).unwrap();
        world.controller.memories.enter(&key, object.uid());
        let job = world.controller.job(&key, &object).unwrap().unwrap();
        world.controller.survey(&job, now).unwrap().counts
    };
    pass("d", clock::now());
    let before = own_memory();
    (1..=NAMESPACES).for_each(put);
    let hash: Arc<str> = content.hash.as_str().into();
    world.controller.memories.for_each(|memory| {
        for i in 0..NAMESPACES {
            memory.note(&format!("team-{i:06}"), Done::Copied(hash.clone()), true, clock::now().mono);
            memory.note_write(&format!("team-{i:06}"), clock::now().mono);
        }
    });
    assert_eq!(pass("d", clock::now()).good, NAMESPACES + 1);
    let taken = own_memory().saturating_sub(before);
    println!("{taken} bytes");
    // 15 MB, and what large pages may add. The content of each copy alone would be 100 MB.
    assert!(taken <= 20_000_000, "{taken} bytes");
}

#[test]
fn ten_thousand_namespaces_take_little_memory() {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let name = "controllers::resource_distribution::tests::memory_of_many_namespaces";
    command.args(["--exact", name, "--ignored", "--nocapture"]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}\n{why}");
}
