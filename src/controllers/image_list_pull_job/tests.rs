//! The controller against an API server in memory.

use std::collections::BTreeMap;

use axum::http::{Method, request::Parts};
use serde_json::{Value, json};

use super::*;
use crate::{api::labels, controllers::in_memory};

const LISTS: &str = "/apis/apps.kruise.io/v1beta1/namespaces/ns/imagelistpulljobs";
const JOBS: &str = "/apis/apps.kruise.io/v1beta1/namespaces/ns/imagepulljobs";

#[derive(Default)]
struct Server {
    objects: BTreeMap<String, Value>,
    writes: Vec<(Method, String)>,
    version: u64,
    /// The image whose job can be neither created nor deleted, nor get another label.
    refuse: Option<&'static str>,
    /// What becomes of the label of the list.
    label: LabelIs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum LabelIs {
    #[default]
    Stored,
    Refused,
    TakenAway,
}

impl Server {
    fn refuses(&self, job: &Value) -> bool {
        self.refuse.is_some_and(|image| job["spec"]["image"] == image)
    }

    fn answer(&mut self, request: &Parts, body: &[u8]) -> (u16, Value) {
        let path = request.uri.path().to_owned();
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let refused =
            |code: u16| (code, json!({"kind": "Status", "status": "Failure", "code": code, "message": "test"}));
        if request.method != Method::GET {
            self.writes.push((request.method.clone(), path.clone()));
        }
        self.version += 1;
        let version = Value::from(self.version.to_string());
        let path = path.strip_suffix("/status").map_or(path.clone(), str::to_owned);
        match request.method.as_str() {
            "GET" => self.objects.get(&path).map_or_else(|| refused(404), |object| (200, object.clone())),
            "POST" if self.refuses(&body) => refused(403),
            "DELETE" | "PATCH" if self.objects.get(&path).is_some_and(|job| self.refuses(job)) => refused(403),
            "POST" => {
                let mut made = body;
                let path = format!("{path}/{}", made["metadata"]["name"].as_str().unwrap());
                if self.objects.contains_key(&path) {
                    return refused(409);
                }
                made["metadata"]["uid"] = format!("uid-{}", self.version).into();
                made["metadata"]["resourceVersion"] = version;
                self.objects.insert(path, made.clone());
                (201, made)
            }
            "PATCH"
                if body["metadata"]["labels"].is_object()
                    && path.starts_with(LISTS)
                    && self.label != LabelIs::Stored =>
            {
                match self.label {
                    LabelIs::TakenAway => (200, self.objects[&path].clone()),
                    LabelIs::Stored | LabelIs::Refused => refused(403),
                }
            }
            "PATCH" => {
                let Some(object) = self.objects.get_mut(&path) else { return refused(404) };
                json_patch::merge(object, &body);
                object["metadata"]["resourceVersion"] = version;
                (200, object.clone())
            }
            "DELETE" => self.objects.remove(&path).map_or_else(|| refused(404), |gone| (200, gone)),
            _ => refused(405),
        }
    }
}

struct World {
    server: Arc<Mutex<Server>>,
    controller: Controller,
}

impl World {
    fn new() -> Self {
        let server = Arc::new(Mutex::new(Server::default()));
        let context = in_memory::context({
            let server = server.clone();
            move |request, body| lock(&server).answer(request, body)
        });
        Self { server, controller: Controller::new(&context) }
    }

    fn put(&self, spec: Value) {
        let mut server = lock(&self.server);
        server.version += 1;
        let path = format!("{LISTS}/list");
        let mut list = server.objects.get(&path).cloned().unwrap_or_else(|| {
            json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImageListPullJob", "metadata": {"name": "list", "namespace": "ns", "uid": "l"}, "spec": {"images": ["a:1", "b:1"]}})
        });
        json_patch::merge(&mut list["spec"], &spec);
        list["metadata"]["resourceVersion"] = server.version.to_string().into();
        server.objects.insert(path, list.clone());
        drop(server);
        self.controller.lists.upsert(serde_json::from_value(list).unwrap());
    }

    async fn settle(&self) -> Requeue {
        for _ in 0..20 {
            self.controller.status.forget();
            let before = lock(&self.server).writes.len();
            let requeue = self.controller.reconcile(&ObjectKey::new("ns", "list")).await.unwrap();
            // What the watch would bring.
            if !lock(&self.server).objects.contains_key(&format!("{LISTS}/list")) {
                self.controller.lists.remove(&ObjectKey::new("ns", "list"), None);
            }
            for job in self.controller.jobs.list() {
                let name = job.metadata.name.clone().unwrap();
                match lock(&self.server).objects.get(&format!("{JOBS}/{name}")) {
                    Some(object) => drop(self.controller.jobs.upsert(serde_json::from_value(object.clone()).unwrap())),
                    None => drop(self.controller.jobs.remove(&ObjectKey::new("ns", &name), None)),
                }
            }
            if lock(&self.server).writes.len() == before {
                return requeue;
            }
        }
        panic!("it goes on and on: {:?}", lock(&self.server).writes);
    }

    fn jobs(&self) -> Vec<Value> {
        lock(&self.server)
            .objects
            .iter()
            .filter(|(path, _)| path.starts_with(JOBS))
            .map(|(_, job)| job.clone())
            .collect()
    }

    fn end(&self, image: &str, failed: i32) {
        let mut server = lock(&self.server);
        server.version += 1;
        let version = server.version.to_string();
        let job = server.objects.values_mut().find(|object| object["spec"]["image"] == image).unwrap();
        job["status"] = json!({"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:00Z", "desired": 2, "succeeded": 2 - failed, "failed": failed});
        job["metadata"]["resourceVersion"] = version.into();
        let job = job.clone();
        drop(server);
        self.controller.jobs.upsert(serde_json::from_value(job).unwrap());
    }

    fn list(&self) -> Value {
        lock(&self.server).objects[&format!("{LISTS}/list")].clone()
    }
}

#[tokio::test]
async fn f12_a_list_has_its_jobs_and_ends_with_them() {
    let world = World::new();
    world.put(json!({"pullPolicy": {"timeoutSeconds": 600, "backoffLimit": 3}, "parallelism": 1}));
    world.settle().await;
    assert_eq!(world.list()["metadata"]["labels"]["controller-revision-hash"], "fb69b545f");
    let jobs = world.jobs();
    assert_eq!(jobs.len(), 2);
    assert_eq!(jobs[0]["metadata"]["labels"], json!({"controller-revision-hash": "fb69b545f"}));
    assert_eq!(world.list()["status"]["desired"], 2);
    world.end("a:1", 0);
    world.settle().await;
    assert_eq!(
        (&world.list()["status"]["completed"], &world.list()["status"]["completionTime"]),
        (&json!(1), &json!(null))
    );
    world.end("b:1", 1);
    world.settle().await;
    let status = world.list()["status"].clone();
    assert_eq!((&status["completed"], &status["succeeded"]), (&json!(2), &json!(1)));
    assert_eq!(status["failedImageStatuses"][0]["name"], "b:1");
    assert!(status["completionTime"].is_string());
    let writes = lock(&world.server).writes.len();
    assert_eq!(world.settle().await, Requeue::Await);
    assert_eq!(lock(&world.server).writes.len(), writes);
}

/// Of what OpenKruise left behind: a list that has ended, and the same while its jobs ran.
#[tokio::test]
async fn a_takeover_writes_one_status_at_most() {
    let list = include_str!("../../api/apps/testdata/image_list_pull_jobs.json");
    let jobs = include_str!("../../api/apps/testdata/image_pull_jobs.json");
    let [list]: [Value; 1] = serde_json::from_str(list).unwrap();
    let jobs: Vec<Value> = serde_json::from_str(jobs).unwrap();
    let path = "/apis/apps.kruise.io/v1beta1/namespaces/golden/imagelistpulljobs/pulls";
    for is_running in [false, true] {
        let (world, mut list, mut jobs) = (World::new(), list.clone(), jobs.clone());
        if is_running {
            for (object, count) in jobs.iter_mut().map(|job| (job, 1)).chain([(&mut list, 2)]) {
                let running = json!({"active": count, "succeeded": 0, "completionTime": null, "message": null});
                json_patch::merge(&mut object["status"], &running);
            }
            list["status"]["completed"] = 0.into();
        }
        for job in jobs {
            world.controller.jobs.upsert(serde_json::from_value(job).unwrap());
        }
        lock(&world.server).version = 100_000;
        lock(&world.server).objects.insert(path.to_owned(), list.clone());
        world.controller.lists.upsert(serde_json::from_value(list).unwrap());
        for _ in 0..4 {
            world.controller.status.forget();
            world.controller.reconcile(&ObjectKey::new("golden", "pulls")).await.unwrap();
        }
        let writes: Vec<_> = is_running.then(|| (Method::PATCH, format!("{path}/status"))).into_iter().collect();
        assert_eq!(lock(&world.server).writes, writes, "running: {is_running}");
    }
}

#[tokio::test]
async fn an_edit_replaces_the_jobs_one_after_the_other() {
    let world = World::new();
    world.put(json!({}));
    world.settle().await;
    let before = world.jobs();
    world.put(json!({"parallelism": 7, "images": ["b:1", "c:1"]}));
    world.settle().await;
    let jobs = world.jobs();
    let images: Vec<&str> = jobs.iter().map(|job| job["spec"]["image"].as_str().unwrap()).collect();
    assert_eq!((images.len(), images.contains(&"c:1"), images.contains(&"a:1")), (2, true, false));
    assert!(jobs.iter().all(|job| job["spec"]["parallelism"] == 7 && !before.contains(job)));
}

fn label(object: &Value) -> &Value {
    &object["metadata"]["labels"]["controller-revision-hash"]
}

#[tokio::test]
async fn a9_5_f13_another_time_to_live_relabels_the_jobs_and_makes_none_anew() {
    let world = World::new();
    world.put(json!({}));
    world.settle().await;
    let before = world.jobs();
    world.put(json!({"completionPolicy": {"ttlSecondsAfterFinished": 60}}));
    world.settle().await;
    let (list, after) = (world.list(), world.jobs());
    assert_eq!(after.len(), 2);
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
        assert!(label(before) != label(after) && label(after) == label(&list), "{after}");
    }
}

#[tokio::test]
async fn a9_5_a_list_whose_jobs_are_gone_or_whose_label_is_refused_ends_all_the_same() {
    for refused in [None, Some("b:1")] {
        let world = World::new();
        world.put(json!({}));
        world.settle().await;
        world.put(json!({"completionPolicy": {"ttlSecondsAfterFinished": 60}}));
        for image in ["a:1", "b:1"] {
            world.end(image, 0);
        }
        lock(&world.server).refuse = refused;
        if refused.is_none() {
            // The watch has not told of it.
            lock(&world.server).objects.retain(|path, _| !path.starts_with(JOBS));
        }
        let pass = async || {
            world.controller.status.forget();
            world.controller.reconcile(&ObjectKey::new("ns", "list")).await
        };
        assert_eq!(pass().await.unwrap(), Requeue::After(Duration::ZERO), "its label");
        assert_eq!(pass().await.is_err(), refused.is_some());
        assert!(world.list()["status"]["completionTime"].is_string(), "{refused:?}");
    }
}

/// Somebody took it off, or a release of OpenKruise that knew none made the job, under a name of its own.
#[tokio::test]
async fn a9_5_a_job_without_a_label_is_that_of_its_list_and_gets_it() {
    for name in [None, Some("list-x7k2p")] {
        let world = World::new();
        world.put(json!({"images": ["a:1"]}));
        world.settle().await;
        let mut job = world.jobs().remove(0);
        let ours = ObjectKey::new("ns", job["metadata"]["name"].as_str().unwrap());
        let name = name.unwrap_or(&ours.name);
        let changes = json!({"name": name, "uid": name, "resourceVersion": "1000", "labels": null});
        json_patch::merge(&mut job["metadata"], &changes);
        let path = format!("{JOBS}/{name}");
        world.controller.jobs.see_gone(&ours, None, |_| ());
        {
            let mut server = lock(&world.server);
            server.version = 1000;
            server.objects.retain(|path, _| !path.starts_with(JOBS));
            server.objects.insert(path.clone(), job.clone());
            server.writes.clear();
        }
        world.controller.jobs.see(serde_json::from_value(job.clone()).unwrap(), |_| ());
        // What belongs to no list is not kept.
        json_patch::merge(&mut job["metadata"], &json!({"name": "other", "uid": "other", "ownerReferences": null}));
        world.controller.jobs.see(serde_json::from_value(job).unwrap(), |_| ());
        assert_eq!(world.controller.jobs.list().len(), 1);
        world.settle().await;
        assert_eq!(lock(&world.server).writes, [(Method::PATCH, path)], "{name}");
        assert_eq!(label(&world.jobs()[0]), label(&world.list()));
    }
}

#[tokio::test]
async fn a_list_whose_own_label_is_refused_or_taken_away_has_its_jobs() {
    for label in [LabelIs::Refused, LabelIs::TakenAway] {
        let world = World::new();
        world.put(json!({}));
        lock(&world.server).label = label;
        let next = world.controller.reconcile(&ObjectKey::new("ns", "list")).await;
        assert_eq!(next.is_err(), label == LabelIs::Refused, "it is tried again later");
        assert!(next.is_err() || !matches!(next, Ok(Requeue::After(Duration::ZERO))), "and not at once");
        assert_eq!(world.jobs().len(), 2, "{label:?}");
        assert_eq!(world.list()["status"]["desired"], 2, "{label:?}");
    }
}

#[tokio::test]
async fn a_list_of_which_one_job_is_refused_says_what_came_of_the_others() {
    let world = World::new();
    let pass = async || {
        world.controller.status.forget();
        world.controller.reconcile(&ObjectKey::new("ns", "list")).await
    };
    lock(&world.server).refuse = Some("b:1");
    world.put(json!({}));
    assert_eq!(pass().await.unwrap(), Requeue::After(Duration::ZERO), "its label");
    assert!(pass().await.is_err());
    world.end("a:1", 0);
    assert!(pass().await.is_err());
    let status = world.list()["status"].clone();
    assert_eq!((&status["desired"], &status["completed"], &status["succeeded"]), (&json!(2), &json!(1), &json!(1)));
    assert!(status["startTime"].is_string() && status["completionTime"].is_null());
    lock(&world.server).refuse = None;
    world.settle().await;
    assert_eq!(world.jobs().len(), 2);
}

#[tokio::test]
async fn a_list_does_not_end_before_it_has_deleted_the_jobs_that_it_wants_no_more() {
    let world = World::new();
    world.put(json!({}));
    world.settle().await;
    world.end("a:1", 0);
    lock(&world.server).refuse = Some("b:1");
    world.put(json!({"images": ["a:1"]}));
    let mut failures = 0;
    for _ in 0..3 {
        world.controller.status.forget();
        let result = world.controller.reconcile(&ObjectKey::new("ns", "list")).await;
        failures += usize::from(result.is_err());
    }
    assert_eq!(failures, 3);
    assert_eq!((world.jobs().len(), &world.list()["status"]["completionTime"]), (2, &Value::Null));
    lock(&world.server).refuse = None;
    world.settle().await;
    assert_eq!(world.jobs().len(), 1);
    assert!(world.list()["status"]["completionTime"].is_string());
}

/// Whoever may create jobs in another namespace can write the UID of a list into them.
#[tokio::test]
async fn jobs_of_another_namespace_are_none_of_the_list() {
    let world = World::new();
    let foreign = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "spec": {"image": "a:1"},
        "metadata": {"name": "foreign", "namespace": "other", "uid": "foreign", "resourceVersion": "1", "ownerReferences": [
            {"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImageListPullJob", "name": "list", "uid": "l", "controller": true}]}});
    world.controller.jobs.upsert(serde_json::from_value(foreign).unwrap());
    world.put(json!({}));
    world.settle().await;
    let jobs = world.jobs();
    let images: Vec<&str> = jobs.iter().map(|job| job["spec"]["image"].as_str().unwrap()).collect();
    assert!(images.len() == 2 && images.contains(&"a:1") && images.contains(&"b:1"), "{images:?}");
    assert!(lock(&world.server).writes.iter().all(|(method, _)| method != Method::DELETE));
}

#[tokio::test]
async fn a_list_is_deleted_after_its_time() {
    let world = World::new();
    world.put(json!({"completionPolicy": {"type": "Always", "ttlSecondsAfterFinished": 0}}));
    world.settle().await;
    world.end("a:1", 0);
    world.end("b:1", 0);
    world.settle().await;
    assert!(!lock(&world.server).objects.contains_key(&format!("{LISTS}/list")));
}

fn observed(list: &Value) -> Vec<i64> {
    let conditions = list["status"]["conditions"].as_array().unwrap().iter();
    let all = std::iter::once(&list["status"]).chain(conditions);
    all.map(|of| of["observedGeneration"].as_i64().unwrap_or_default()).collect()
}

#[tokio::test]
async fn what_a_list_came_to_holds_for_a_spec_that_is_changed_after_its_end() {
    let world = World::new();
    let edit = |generation: i64, spec: Value| {
        let list = format!("{LISTS}/list");
        lock(&world.server).objects.get_mut(&list).unwrap()["metadata"]["generation"] = generation.into();
        world.put(spec);
    };
    world.put(json!({}));
    edit(1, json!({}));
    world.settle().await;
    world.end("a:1", 0);
    world.end("b:1", 0);
    world.settle().await;
    assert!(world.list()["status"]["completionTime"].is_string());
    assert!(observed(&world.list()).iter().all(|generation| *generation == 1));
    edit(2, json!({"completionPolicy": {"type": "Always", "ttlSecondsAfterFinished": 86_400}}));
    assert!(matches!(world.settle().await, Requeue::After(_)));
    assert!(observed(&world.list()).iter().all(|generation| *generation == 2));
    let true_one = || {
        let list = world.list();
        let all = list["status"]["conditions"].as_array().unwrap();
        let is_one = |c: &&Value| ["Ready", "Reconciling", "Stalled"].contains(&c["type"].as_str().unwrap());
        let found = all.iter().filter(is_one).find(|c| c["status"] == "True").unwrap();
        format!("{} {}", found["type"].as_str().unwrap(), found["reason"].as_str().unwrap())
    };
    assert_eq!(true_one(), "Ready Completed");

    // Of what it was not for, nobody may take it to be done.
    for (generation, spec, wanted) in [
        (3, json!({"images": ["a:1", "b:2"]}), "Stalled Ended"),
        (4, json!({"images": ["a:1", "b:1"]}), "Ready Completed"),
        (5, json!({"selector": {"matchLabels": {"new": "1"}}}), "Stalled Ended"),
        (6, json!({"selector": null, "images": ["a:1"]}), "Ready Completed"),
    ] {
        edit(generation, spec);
        world.settle().await;
        assert_eq!(true_one(), wanted, "{generation}");
        assert_eq!(world.list()["status"]["observedGeneration"], generation);
    }
}

#[tokio::test]
async fn a_list_that_was_stored_past_admission_says_that_it_is_stalled() {
    let world = World::new();
    world.put(json!({"images": []}));
    world.settle().await;
    let list = world.list();
    let stalled = list["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Stalled").unwrap();
    assert_eq!((&stalled["status"], &stalled["reason"]), (&json!("True"), &json!("Invalid")));
    assert!(stalled["message"].as_str().unwrap().starts_with("spec.images: "));
}

#[tokio::test]
async fn somebody_elses_job_of_that_name_is_left_alone() {
    let world = World::new();
    world.put(json!({"images": ["a:1"]}));
    world.settle().await;
    let name = world.jobs()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let path = format!("{JOBS}/{name}");
    lock(&world.server).objects.get_mut(&path).unwrap()["metadata"]["ownerReferences"] = json!([]);
    world.controller.jobs.remove(&ObjectKey::new("ns", &name), None);
    world.controller.reconcile(&ObjectKey::new("ns", "list")).await.unwrap();
    assert_eq!(world.jobs().len(), 1);
    assert_eq!(world.jobs()[0]["metadata"]["ownerReferences"], json!([]));
}

#[tokio::test]
async fn a_job_that_a_process_before_this_one_made_is_taken_over() {
    let world = World::new();
    world.put(json!({"images": ["a:1"]}));
    world.settle().await;
    let key = ObjectKey::new("ns", world.jobs()[0]["metadata"]["name"].as_str().unwrap());
    world.controller.jobs.remove(&key, None);
    world.controller.reconcile(&ObjectKey::new("ns", "list")).await.unwrap();
    assert!(world.controller.jobs.get(&key).is_some());
}

#[test]
fn a_list_of_another_group_has_no_jobs_here() {
    for (api_version, wanted) in [("apps.kruise.io/v1alpha1", true), ("apps.kruise.io.x/v1", false)] {
        let owner = json!({"apiVersion": api_version, "kind": "ImageListPullJob", "name": "list", "uid": "l", "controller": true});
        let job = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "spec": {"image": "a:1"},
            "metadata": {"name": "a", "namespace": "ns", "ownerReferences": [owner]}});
        let job: ImagePullJob = serde_json::from_value(job).unwrap();
        assert_eq!((list_of(&job).is_some(), list_key(&job).is_some()), (wanted, wanted), "{api_version}");
    }
}

/// What a pass notes after the watch has told of the deletion would be kept for ever.
#[tokio::test]
async fn nothing_is_remembered_of_one_that_was_deleted_during_a_pass() {
    let key = ObjectKey::new("ns", "list");
    let deleted = key.clone();
    let controller = in_memory::deleting_while_asked(403, Controller::new, move |controller| {
        controller.lists.remove(&deleted, None);
        lock(&controller.memories).remove(&deleted);
    });
    let mut list: ImageListPullJob = serde_json::from_value(json!({
        "apiVersion": "apps.kruise.io/v1beta1", "kind": "ImageListPullJob",
        "metadata": {"name": "list", "namespace": "ns", "uid": "l"}, "spec": {"images": ["a:1"]}}))
    .unwrap();
    let hash = ListSpec::of(&list).hash;
    list.metadata.labels = Some(BTreeMap::from([(labels::CONTROLLER_REVISION_HASH.to_owned(), hash)]));
    controller.lists.upsert(list);
    assert!(controller.reconcile(&key).await.is_err());
    assert!(controller.lists.is_empty() && lock(&controller.memories).is_empty());
}
