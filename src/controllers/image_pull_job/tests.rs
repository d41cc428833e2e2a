//! The controller against an API server in memory: what is written and how often, and what is never exceeded.

use std::collections::BTreeSet;

use axum::http::{Method, request::Parts};
use serde_json::{Value, json};

use super::*;
use crate::{
    controllers::in_memory,
    runtime::{clock, queue::Requeue},
};

mod simulation;

const JOBS: &str = "/apis/apps.kruise.io/v1beta1/namespaces/ns/imagepulljobs";
const NODE_IMAGES: &str = "/apis/apps.kruise.io/v1beta1/nodeimages";

/// Objects by path, and every write that came.
#[derive(Default)]
struct Server {
    objects: BTreeMap<String, Value>,
    writes: Vec<(Method, String, Value)>,
    version: u64,
    /// What somebody else writes just before the next patch of this path arrives.
    meanwhile: Vec<(String, Value)>,
    /// Bytes that etcd takes of a NodeImage, if it has a limit.
    largest: Option<usize>,
    /// What it says of larger ones.
    too_large: &'static str,
}

impl Server {
    fn answer(&mut self, request: &Parts, body: &[u8]) -> (u16, Value) {
        let path = request.uri.path().to_owned();
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let refused =
            |code: u16| (code, json!({"kind": "Status", "status": "Failure", "code": code, "message": "test"}));
        if request.method != Method::GET {
            self.writes.push((request.method.clone(), path.clone(), body.clone()));
        }
        self.version += 1;
        let version = self.version.to_string();
        let (path, part) = match path.strip_suffix("/status") {
            Some(path) => (path.to_owned(), "status"),
            None => (path, "spec"),
        };
        if let Some(at) = self.meanwhile.iter().position(|(of, _)| *of == path && request.method == Method::PATCH) {
            let (_, change) = self.meanwhile.remove(at);
            let object = self.objects.get_mut(&path).unwrap();
            json_patch::merge(object, &change);
            object["metadata"]["resourceVersion"] = format!("{version}0").into();
            self.version *= 10;
        }
        match request.method.as_str() {
            "GET" => self.objects.get(&path).map_or_else(|| refused(404), |object| (200, object.clone())),
            "POST" => {
                let mut made = body;
                let path = format!("{path}/{}", made["metadata"]["name"].as_str().unwrap());
                if self.objects.contains_key(&path) {
                    return refused(409);
                }
                made["metadata"]["uid"] = format!("uid-{version}").into();
                made["metadata"]["resourceVersion"] = version.into();
                self.objects.insert(path, made.clone());
                (201, made)
            }
            "PATCH" => {
                let Some(object) = self.objects.get_mut(&path) else { return refused(404) };
                let before = object.clone();
                for field in ["uid", "resourceVersion"] {
                    let wanted = &body["metadata"][field];
                    if !wanted.is_null() && *wanted != object["metadata"][field] {
                        return refused(409);
                    }
                }
                if part == "status" {
                    json_patch::merge(&mut object["status"], &body["status"]);
                } else {
                    let status = object["status"].clone();
                    json_patch::merge(object, &body);
                    object["status"] = status;
                }
                object["metadata"]["resourceVersion"] = version.into();
                let is_node_image = path.starts_with(NODE_IMAGES);
                if is_node_image && self.largest.is_some_and(|largest| object.to_string().len() > largest) {
                    *object = before;
                    return (
                        500,
                        json!({"kind": "Status", "status": "Failure", "code": 500, "message": self.too_large}),
                    );
                }
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
        let mut context = in_memory::context({
            let server = server.clone();
            move |request, body| lock(&server).answer(request, body)
        });
        context.settings.images.creation_delay = Duration::ZERO;
        Self { server, controller: Controller::new(&context) }
    }

    fn add_node(&self, name: &str, labels: Value) {
        let node = json!({"metadata": {"name": name, "uid": name, "labels": labels, "resourceVersion": (lock(&self.server).version + 1).to_string()},
            "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}]}});
        self.controller.context.nodes.store().upsert(serde_json::from_value(node).unwrap());
    }

    /// A world with this many nodes that have their NodeImages.
    async fn with_nodes(count: usize) -> Self {
        let world = Self::new();
        for i in 0..count {
            world.add_node(&format!("n{i:04}"), json!({"zone": if i % 2 == 0 { "a" } else { "b" }}));
        }
        world.run_nodes().await;
        world
    }

    /// What a user writes; `changes` are merged over a job for `app:v1`.
    fn put_job(&self, name: &str, changes: Value) {
        self.put_job_of("ns", name, changes);
    }

    fn put_job_of(&self, namespace: &str, name: &str, changes: Value) {
        let path = format!("{}/{name}", JOBS.replace("/ns/", &format!("/{namespace}/")));
        let mut server = lock(&self.server);
        server.version += 1;
        let mut job = server.objects.get(&path).cloned().unwrap_or_else(|| {
            json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob",
                "metadata": {"name": name, "namespace": namespace, "uid": format!("job-{name}")}, "spec": {"image": "app:v1"}})
        });
        json_patch::merge(&mut job, &changes);
        job["metadata"]["resourceVersion"] = server.version.to_string().into();
        server.objects.insert(path, job.clone());
        drop(server);
        let new: ImagePullJob = serde_json::from_value(job).unwrap();
        let (old, new) = self.controller.jobs.upsert(new);
        self.controller.job_changed(&Change::Applied { old: old.as_ref(), new: &new.unwrap(), initial: false });
    }

    fn delete_job(&self, name: &str) {
        lock(&self.server).objects.remove(&format!("{JOBS}/{name}"));
        let old = self.controller.jobs.remove(&ObjectKey::new("ns", name), None).unwrap();
        self.controller.job_changed(&Change::Deleted(&old));
    }

    fn remove_node(&self, name: &str) {
        let old = self.controller.context.nodes.store().remove(&ObjectKey::new("", name), None).unwrap();
        self.controller.node_changed(&Change::Deleted(&old));
    }

    async fn run_nodes(&self) {
        let names: BTreeSet<ObjectKey> = self
            .controller
            .context
            .nodes
            .list()
            .iter()
            .map(|node| ObjectKey::of(node.as_ref()))
            .chain(self.controller.node_images.list().iter().map(|node| ObjectKey::of(node.as_ref())))
            .collect();
        for key in names {
            while self.controller.reconcile_node(&key).await.unwrap() == Requeue::After(AFTER_CONFLICT) {}
            let is_there = lock(&self.server).objects.contains_key(&format!("{NODE_IMAGES}/{}", key.name));
            if !is_there && let Some(old) = self.controller.node_images.remove(&key, None) {
                self.controller.node_image_changed(Some(&old), None);
            }
        }
    }

    async fn run_job(&self, name: &str) -> Requeue {
        self.run_job_of("ns", name).await
    }

    async fn run_job_of(&self, namespace: &str, name: &str) -> Requeue {
        let key = ObjectKey::new(namespace, name);
        self.controller.status.forget();
        for _ in 0..10 {
            let requeue = self.controller.reconcile_job(&key).await.unwrap();
            if requeue != Requeue::After(AFTER_CONFLICT) {
                return requeue;
            }
        }
        panic!("it goes on and on");
    }

    /// Jobs and nodes until nothing is written any more.
    async fn settle(&self, jobs: &[&str]) {
        for _ in 0..20 {
            let before = lock(&self.server).writes.len();
            for job in jobs {
                self.run_job(job).await;
            }
            self.run_nodes().await;
            if lock(&self.server).writes.len() == before {
                return;
            }
        }
        panic!("it goes on and on");
    }

    fn node_image(&self, name: &str) -> Value {
        lock(&self.server).objects[&format!("{NODE_IMAGES}/{name}")].clone()
    }

    fn job(&self, name: &str) -> Value {
        lock(&self.server).objects[&format!("{JOBS}/{name}")].clone()
    }

    /// Nodes that have an entry for an image which has not ended.
    fn open(&self) -> Vec<String> {
        let views = self.controller.node_images.list();
        let is_open = |node: &&Arc<NodeImageView>| {
            node.entries().any(|(_, tag)| tag.current().is_none_or(|status| !status.phase.has_ended()))
        };
        let mut names: Vec<String> = views.iter().filter(is_open).map(|node| node.name().to_owned()).collect();
        names.sort();
        names
    }

    /// Plays a daemon: all entries of the node get this phase.
    fn says(&self, name: &str, phase: &str) {
        self.says_at(name, phase, &crate::k8s::time::rfc3339(clock::now().wall));
    }

    fn says_at(&self, name: &str, phase: &str, at: &str) {
        let mut images = json!({});
        for (image, spec) in self.node_image(name)["spec"]["images"].as_object().unwrap() {
            let tags = spec["tags"].as_array().unwrap().iter().map(|tag| {
                let mut status = json!({"tag": tag["tag"], "phase": phase, "startTime": at});
                if tag["version"].is_i64() {
                    status["version"] = tag["version"].clone();
                }
                if ["Succeeded", "Failed"].contains(&phase) {
                    status["completionTime"] = at.into();
                }
                status
            });
            images[image] = json!({"tags": tags.collect::<Vec<_>>()});
        }
        self.show(name, images);
    }

    /// What the daemon has written.
    fn show(&self, name: &str, image_statuses: Value) {
        let mut server = lock(&self.server);
        server.version += 1;
        let version = server.version.to_string();
        let object = server.objects.get_mut(&format!("{NODE_IMAGES}/{name}")).unwrap();
        object["status"] = json!({"imageStatuses": image_statuses});
        object["metadata"]["resourceVersion"] = version.into();
        let view: NodeImageView = serde_json::from_value(object.clone()).unwrap();
        drop(server);
        let (old, new) = self.controller.node_images.upsert(view);
        self.controller.node_image_changed(old.as_deref(), new.as_deref());
    }

    /// The jobs that are to look again now; none is, afterwards.
    async fn woken(&self) -> Vec<String> {
        taken_from(&self.controller.job_queue).await
    }

    /// The same of nodes.
    async fn woken_nodes(&self) -> Vec<String> {
        taken_from(&self.controller.node_queue).await
    }

    fn writes_to(&self, path: &str) -> usize {
        lock(&self.server).writes.iter().filter(|(_, to, _)| to.starts_with(path)).count()
    }
}

async fn taken_from(queue: &Arc<Queue<ObjectKey>>) -> Vec<String> {
    let (_stop, stopped) = tokio::sync::watch::channel(true);
    let names: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = names.clone();
    let note = move |key: ObjectKey, _| {
        lock(&seen).push(key.name.to_string());
        std::future::ready(Ok::<_, String>(Requeue::Await))
    };
    queue.run(100, stopped, note).await;
    std::mem::take(&mut *lock(&names))
}

fn counts(job: &Value) -> [i64; 4] {
    ["desired", "active", "succeeded", "failed"].map(|field| job["status"][field].as_i64().unwrap())
}

#[tokio::test]
async fn e1_a_node_image_comes_and_goes_with_its_node() {
    let world = World::with_nodes(2).await;
    assert_eq!(world.node_image("n0000")["metadata"]["labels"], json!({"zone": "a"}));
    world.add_node("n0000", json!({"zone": "c"}));
    world.run_nodes().await;
    assert_eq!(world.node_image("n0000")["metadata"]["labels"], json!({"zone": "c"}));
    let writes = lock(&world.server).writes.len();
    world.run_nodes().await;
    assert_eq!(lock(&world.server).writes.len(), writes, "nothing changed, nothing is written");
    world.remove_node("n0001");
    world.run_nodes().await;
    assert!(!lock(&world.server).objects.contains_key(&format!("{NODE_IMAGES}/n0001")));
}

#[tokio::test]
async fn e1_a_node_image_stays_whose_node_the_watch_has_still_to_bring() {
    let world = World::with_nodes(1).await;
    let live = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n0000", "uid": "n0000"}});
    lock(&world.server).objects.insert("/api/v1/nodes/n0000".into(), live);
    world.remove_node("n0000");
    world.run_nodes().await;
    assert!(lock(&world.server).objects.contains_key(&format!("{NODE_IMAGES}/n0000")));
    lock(&world.server).objects.remove("/api/v1/nodes/n0000");
    world.run_nodes().await;
    assert!(!lock(&world.server).objects.contains_key(&format!("{NODE_IMAGES}/n0000")));
}

#[tokio::test]
async fn e19_a_node_is_ready_for_a_while_first() {
    let mut world = World::new();
    world.controller.context.settings.images.creation_delay = Duration::from_secs(30);
    let node = |ready: &str, since: String| json!({"metadata": {"name": "n", "uid": "n"}, "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}]}});
    let now = clock::now().wall.to_string();
    for (ready, waits) in [("False", Requeue::Await), ("True", Requeue::After(Duration::from_secs(30)))] {
        world.controller.context.nodes.store().upsert(serde_json::from_value(node(ready, now.clone())).unwrap());
        let requeue = world.controller.reconcile_node(&ObjectKey::new("", "n")).await.unwrap();
        match (requeue, waits) {
            (Requeue::After(left), Requeue::After(most)) => assert!(left <= most && !left.is_zero()),
            (requeue, waits) => assert_eq!(requeue, waits),
        }
    }
    assert!(lock(&world.server).writes.is_empty());
}

#[tokio::test]
async fn a_node_without_a_time_has_been_ready_for_long() {
    let mut world = World::new();
    world.controller.context.settings.images.creation_delay = Duration::from_secs(30);
    let node =
        json!({"metadata": {"name": "n", "uid": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    world.controller.context.nodes.store().upsert(serde_json::from_value(node).unwrap());
    world.run_nodes().await;
    assert!(lock(&world.server).objects.contains_key(&format!("{NODE_IMAGES}/n")));
}

#[tokio::test]
async fn a_job_that_waits_for_a_node_to_get_ready_looks_again_when_it_does_not() {
    let mut world = World::new();
    world.controller.context.settings.images.creation_delay = Duration::from_secs(30);
    let put = |ready: &str| {
        let since = clock::now().wall.to_string();
        let node = json!({"metadata": {"name": "n", "uid": "n"}, "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}]}});
        let (old, new) = world.controller.context.nodes.store().upsert(serde_json::from_value(node).unwrap());
        world.controller.node_changed(&Change::Applied { old: old.as_ref(), new: &new.unwrap(), initial: false });
    };
    put("True");
    world.put_job("j", json!({}));
    let queue = &world.controller.job_queue;
    while let Some(key) = queue.begin() {
        queue.done::<String>(key, Ok(Requeue::Await));
    }
    world.run_job("j").await;
    assert_ne!(world.job("j")["status"]["phase"], "Completed", "its node is coming");
    put("Unknown");
    assert_eq!(queue.begin(), Some(ObjectKey::new("ns", "j")));
    world.run_job("j").await;
    assert!(world.job("j")["status"]["completionTime"].is_string(), "{}", world.job("j")["status"]);
}

#[tokio::test]
async fn e19_virtual_nodes_and_those_without_a_daemon_for_them_have_no_node_image() {
    let world = World::new();
    for (name, labels) in [
        ("linux", json!({"kubernetes.io/os": "linux"})),
        ("virtual", json!({"type": "virtual-kubelet"})),
        ("windows", json!({"kubernetes.io/os": "windows"})),
    ] {
        world.add_node(name, labels);
    }
    world.run_nodes().await;
    let has_image = |name: &str| lock(&world.server).objects.contains_key(&format!("{NODE_IMAGES}/{name}"));
    assert_eq!(["linux", "virtual", "windows"].map(has_image), [true, false, false]);
}

#[tokio::test]
async fn e19_a_node_that_turns_virtual_loses_its_node_image() {
    let world = World::with_nodes(1).await;
    let node = world.controller.context.nodes.get("n0000").unwrap();
    let mut changed = NodeView::clone(&node);
    changed.labels = serde_json::from_value(json!({"type": "virtual-kubelet"})).unwrap();
    changed.metadata.resource_version = Some("1000".into());
    let (old, new) = world.controller.context.nodes.store().upsert(changed);
    world.controller.node_changed(&Change::Applied { old: old.as_ref(), new: &new.unwrap(), initial: false });
    world.run_nodes().await;
    assert!(!lock(&world.server).objects.contains_key(&format!("{NODE_IMAGES}/n0000")));
}

#[tokio::test]
async fn e7_a_node_image_that_is_newer_than_known_delays_a_job_by_a_moment() {
    let world = World::with_nodes(1).await;
    let path = format!("{NODE_IMAGES}/n0000");
    lock(&world.server).meanwhile.push((path, json!({"metadata": {"labels": {"theirs": "1"}}})));
    world.put_job("j", json!({}));
    world.run_job("j").await;
    let key = ObjectKey::new("", "n0000");
    assert_eq!(world.controller.reconcile_node(&key).await.unwrap(), Requeue::After(AFTER_CONFLICT));
    assert_eq!(world.open(), Vec::<String>::new());
    world.controller.reconcile_node(&key).await.unwrap();
    assert_eq!(world.open(), ["n0000"]);
}

#[tokio::test]
async fn e8_a_job_for_another_tag_is_not_woken_and_nobody_can_list_secrets() {
    let world = World::with_nodes(1).await;
    world.put_job("a", json!({"spec": {"image": "app:v1"}}));
    world.put_job("b", json!({"spec": {"image": "app:v2"}}));
    world.settle(&["a", "b"]).await;
    world.woken().await;
    let tag = |tag: &str, phase: &str| json!({"tag": tag, "phase": phase, "startTime": "2026-01-01T00:00:00Z"});
    world.show("n0000", json!({"app": {"tags": [tag("v1", "Pulling")]}}));
    assert_eq!(world.woken().await, ["a"]);
    world.show("n0000", json!({"app": {"tags": [tag("v1", "Pulling"), tag("v2", "Pulling")]}}));
    assert_eq!(world.woken().await, ["b"]);
    let resources = REGISTRATION.rules.iter().flat_map(|rule| rule.resources);
    assert!(resources.into_iter().all(|resource| *resource != "secrets"));
}

#[tokio::test]
async fn a_fake_node_image_stays_without_a_node() {
    let world = World::new();
    let fake = json!({"metadata": {"name": "f", "uid": "f", "resourceVersion": "1", "labels": {"apps.kruise.io/fake-nodeimage": "true"}}, "spec": {}});
    lock(&world.server).objects.insert(format!("{NODE_IMAGES}/f"), fake.clone());
    world.controller.node_images.upsert(serde_json::from_value(fake).unwrap());
    world.put_job("j", json!({}));
    world.settle(&["j"]).await;
    assert_eq!(world.node_image("f")["spec"]["images"]["app"]["tags"][0]["tag"], "v1");
}

#[tokio::test]
async fn a_job_of_a_thousand_nodes_costs_at_most_three_writes_a_node() {
    let world = World::with_nodes(1000).await;
    let policy = json!({"type": "Always"});
    world.put_job("j", json!({"spec": {"parallelism": 1000, "completionPolicy": policy}}));
    world.settle(&["j"]).await;
    for i in 0..1000 {
        let phase = if i % 100 == 7 { "Failed" } else { "Succeeded" };
        world.says_at(&format!("n{i:04}"), phase, "2020-01-01T00:00:00Z");
    }
    world.settle(&["j"]).await;
    let job = world.job("j");
    assert_eq!((counts(&job), &job["status"]["message"]), ([1000, 0, 990, 10], &json!("job has completed")));
    assert_eq!(job["status"]["failedNodes"].as_array().unwrap().len(), 10);
    // The entries go in their time, which is over: the played daemons ended long ago.
    assert_eq!(world.node_image("n0001")["spec"], json!({}));
    let most = (0..1000).map(|i| world.writes_to(&format!("{NODE_IMAGES}/n{i:04}"))).max().unwrap();
    // Besides the one that made it.
    assert_eq!(most, 2);
    assert_eq!(world.writes_to(NODE_IMAGES), 3000);
    assert!(world.writes_to(JOBS) <= 4, "{}", world.writes_to(JOBS));
}

#[tokio::test]
async fn e6_parallelism_is_never_exceeded_whatever_the_daemons_do() {
    let world = World::with_nodes(40).await;
    world.put_job("j", json!({"spec": {"parallelism": 3}}));
    let mut done = 0;
    for round in 0..200 {
        // A job may look any number of times before its nodes are written, and after.
        world.run_job("j").await;
        world.run_job("j").await;
        world.run_nodes().await;
        world.run_job("j").await;
        let open = world.open();
        assert!(open.len() <= 3, "{open:?}");
        let Some(node) = open.get(round % open.len().max(1)) else { break };
        world.says(node, ["Pulling", "Succeeded", "Waiting", "Failed"][round % 4]);
        done = round;
    }
    assert!(done > 40);
    assert_eq!(counts(&world.job("j"))[..2], [40, 0]);
    assert!(world.job("j")["status"]["completionTime"].is_string());
}

#[tokio::test]
async fn two_jobs_for_one_image_share_its_entry() {
    let world = World::with_nodes(1).await;
    world.put_job("a", json!({}));
    world.settle(&["a"]).await;
    world.says("n0000", "Succeeded");
    world.put_job("b", json!({"spec": {"pullSecrets": ["s"]}}));
    world.settle(&["a", "b"]).await;
    let image = &world.node_image("n0000")["spec"]["images"]["app"];
    assert_eq!(
        (&image["tags"][0]["version"], image["tags"][0]["ownerReferences"].as_array().unwrap().len()),
        (&json!(1), 2)
    );
    assert_eq!(image["pullSecrets"], json!([{"namespace": "ns", "name": "s", "mode": "job"}]));
    assert_eq!(counts(&world.job("b")), [1, 1, 0, 0], "the status of the version before is not its own");
    world.says("n0000", "Succeeded");
    world.settle(&["a", "b"]).await;
    assert_eq!(counts(&world.job("b")), [1, 0, 1, 0]);
    world.delete_job("b");
    world.run_nodes().await;
    let image = &world.node_image("n0000")["spec"]["images"]["app"];
    assert_eq!(image["tags"][0]["ownerReferences"][0]["name"], "a", "it is over, and its entry stays for its time");
    assert_eq!((&image["tags"][0]["ownerReferences"][1], &image["pullSecrets"]), (&json!(null), &json!(null)));
}

#[tokio::test]
async fn what_others_write_at_the_same_time_stays() {
    let world = World::with_nodes(1).await;
    let theirs = json!({"spec": {"images": {"app": {"tags": [{"tag": "theirs", "createdAt": "2026-01-01T00:00:00Z", "newer": 1}]}, "other": {"tags": [{"tag": "x"}]}}}});
    lock(&world.server).meanwhile.push((format!("{NODE_IMAGES}/n0000"), theirs));
    world.put_job("j", json!({}));
    world.settle(&["j"]).await;
    let images = world.node_image("n0000")["spec"]["images"].clone();
    let tags: Vec<&Value> = images["app"]["tags"].as_array().unwrap().iter().map(|tag| &tag["tag"]).collect();
    assert_eq!(tags, ["theirs", "v1"]);
    assert_eq!((&images["app"]["tags"][0]["newer"], &images["other"]["tags"][0]["tag"]), (&json!(1), &json!("x")));
}

#[tokio::test]
async fn what_several_jobs_want_of_a_node_goes_out_in_one_write() {
    let world = World::with_nodes(3).await;
    let names: Vec<String> = (0..20).map(|i| format!("j{i}")).collect();
    for (i, name) in names.iter().enumerate() {
        world.put_job(name, json!({"spec": {"image": format!("app{i}:v1"), "parallelism": 3}}));
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    world.settle(&names).await;
    assert_eq!(world.writes_to(&format!("{NODE_IMAGES}/n0001")), 1);
    assert_eq!(world.node_image("n0001")["spec"]["images"].as_object().unwrap().len(), 20);
}

#[tokio::test]
async fn a_job_with_a_large_sandbox_config_holds_up_no_other_namespace() {
    let world = World::with_nodes(1).await;
    lock(&world.server).largest = Some(1 << 20);
    lock(&world.server).too_large = "etcdserver: request is too large";
    // Written while admission was away.
    let huge = json!({"annotations": {"a": "x".repeat(900_000)}});
    world.put_job("huge", json!({"spec": {"image": "huge:v1", "sandboxConfig": huge}}));
    world.settle(&["huge"]).await;
    let message = world.job("huge")["status"]["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("spec.sandboxConfig: it has 9000") && message.ends_with("at most 4096"), "{message}");

    // As much as admission allows, and more of it than fits into one object.
    let secrets: Vec<String> = (0..16).map(|i| format!("{i:0>253}")).collect();
    let sandbox = json!({"annotations": {"a": "x".repeat(4000)}});
    for i in 0..150 {
        let spec = json!({"image": format!("greedy{i}:v1"), "sandboxConfig": sandbox, "pullSecrets": secrets});
        world.put_job_of("greedy", &format!("a{i}"), json!({"spec": spec}));
        world.run_job_of("greedy", &format!("a{i}")).await;
    }
    let names: Vec<String> = (0..10).map(|i| format!("j{i}")).collect();
    for name in &names {
        world.put_job(name, json!({"spec": {"image": format!("{name}:v1"), "sandboxConfig": sandbox}}));
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    world.settle(&names).await;
    let images = world.node_image("n0000")["spec"]["images"].clone();
    let of = |prefix: &str| images.as_object().unwrap().keys().filter(|name| name.starts_with(prefix)).count();
    assert_eq!((of("j"), of("huge")), (10, 0));
    assert!((50..150).contains(&of("greedy")), "{}", of("greedy"));
    // One write for the jobs of the one, one for those of the others: none was refused.
    assert!(world.writes_to(&format!("{NODE_IMAGES}/n0000")) <= 2);
    let late = &world.controller;
    assert!(lock(&late.state).jobs.values().any(|memory| !memory.refused.is_empty()), "the greedy get the reason");
}

#[tokio::test]
async fn one_job_that_does_not_fit_holds_up_no_other_job_and_no_removal() {
    for answer in [
        "etcdserver: request is too large",
        "rpc error: code = ResourceExhausted",
        "trying to send message larger than max",
    ] {
        let world = World::with_nodes(1).await;
        lock(&world.server).too_large = answer;
        world.put_job("old", json!({"spec": {"image": "old:v1"}}));
        world.settle(&["old"]).await;
        lock(&world.server).largest = Some(4000);
        world.delete_job("old");
        // In the order of their UIDs the one that does not fit is neither first nor last.
        let sandbox = json!({"annotations": {"a": "x".repeat(4000)}});
        world.put_job("a", json!({"spec": {"image": "a:v1"}}));
        world.put_job("big", json!({"spec": {"image": "big:v1", "sandboxConfig": sandbox}}));
        world.put_job("c", json!({"spec": {"image": "c:v1"}}));
        world.settle(&["a", "big", "c"]).await;
        let images = world.node_image("n0000")["spec"]["images"].clone();
        assert_eq!(images.as_object().unwrap().keys().collect::<Vec<_>>(), ["a", "c"]);
        let conditions = world.job("big")["status"]["conditions"].clone();
        assert_eq!(conditions[0]["reason"], "NodeRefuses");
        let why = conditions[0]["message"].as_str().unwrap();
        assert!(why.contains("its NodeImage would be too large") && why.contains(answer), "{why}");
        // The object was made and given `old`; then all together, what goes, `a`, `big`, `c`.
        assert_eq!(world.writes_to(NODE_IMAGES), 7);
        world.put_job("d", json!({"spec": {"image": "d:v1"}}));
        world.settle(&["a", "big", "c", "d"]).await;
        assert!(world.node_image("n0000")["spec"]["images"]["d"].is_object());
        assert_eq!(world.writes_to(NODE_IMAGES), 8, "the refused write is not tried again and again");
    }
}

#[tokio::test]
async fn a_deleted_job_is_withdrawn_from_its_nodes() {
    let world = World::with_nodes(2).await;
    world.put_job("j", json!({"spec": {"parallelism": 2}}));
    world.settle(&["j"]).await;
    world.says("n0000", "Pulling");
    assert_eq!(world.open().len(), 2);
    world.delete_job("j");
    world.run_nodes().await;
    assert_eq!(world.open(), Vec::<String>::new());
    assert_eq!(world.node_image("n0000")["spec"], json!({}));
}

#[tokio::test]
async fn a_job_deleted_before_its_nodes_are_written_reaches_none() {
    let world = World::with_nodes(2).await;
    world.put_job("j", json!({"spec": {"parallelism": 2}}));
    world.run_job("j").await;
    world.delete_job("j");
    world.run_nodes().await;
    assert_eq!(world.writes_to(&format!("{NODE_IMAGES}/n")), 0);
}

#[tokio::test]
async fn a_node_that_goes_away_mid_pull_is_not_waited_for() {
    let world = World::with_nodes(2).await;
    world.put_job("j", json!({"spec": {"parallelism": 2}}));
    world.settle(&["j"]).await;
    world.says("n0000", "Succeeded");
    world.says("n0001", "Pulling");
    world.remove_node("n0001");
    world.settle(&["j"]).await;
    assert_eq!(counts(&world.job("j")), [1, 0, 1, 0]);
    assert!(world.job("j")["status"]["completionTime"].is_string());
}

#[tokio::test]
async fn a_job_of_type_never_serves_nodes_that_join() {
    let world = World::with_nodes(1).await;
    world.put_job("j", json!({"spec": {"completionPolicy": {"type": "Never"}, "imagePullPolicy": "Always"}}));
    world.settle(&["j"]).await;
    world.says("n0000", "Pulling");
    world.add_node("new", json!({}));
    world.run_nodes().await;
    world.settle(&["j"]).await;
    assert_eq!(counts(&world.job("j")), [2, 1, 0, 0], "one at a time");
    let entry = world.node_image("n0000")["spec"]["images"]["app"]["tags"][0].clone();
    assert_eq!(
        (&entry["imagePullPolicy"], &entry["pullPolicy"]["activeDeadlineSeconds"]),
        (&json!("Always"), &json!(1800))
    );
}

#[tokio::test]
async fn a_job_that_was_stored_without_a_pull_policy_pulls_always_as_it_did() {
    let world = World::with_nodes(1).await;
    world.put_job("j", json!({"spec": {"imagePullPolicy": ""}}));
    world.settle(&["j"]).await;
    let entry = world.node_image("n0000")["spec"]["images"]["app"]["tags"][0].clone();
    assert_eq!(entry["tag"], "v1");
    assert_eq!(
        entry["imagePullPolicy"].as_str().unwrap_or_default(),
        "",
        "the daemon pulls unless it says IfNotPresent"
    );
}

#[tokio::test]
async fn f5_an_edit_takes_back_what_is_not_wanted_any_more() {
    let world = World::with_nodes(4).await;
    world.put_job("j", json!({"spec": {"parallelism": 4}}));
    world.settle(&["j"]).await;
    assert_eq!(world.open().len(), 4);
    world.put_job("j", json!({"spec": {"selector": {"matchLabels": {"zone": "a"}}}}));
    world.settle(&["j"]).await;
    assert_eq!(world.open(), ["n0000", "n0002"]);
    world.put_job("j", json!({"spec": {"image": "app:v2"}}));
    world.settle(&["j"]).await;
    let tags = world.node_image("n0000")["spec"]["images"]["app"]["tags"].clone();
    assert_eq!((tags.as_array().unwrap().len(), &tags[0]["tag"]), (1, &json!("v2")));
}

#[tokio::test]
async fn f11_nodes_are_those_of_the_selected_pods_in_their_order() {
    let world = World::with_nodes(4).await;
    let pod = |name: &str, node: &str, labels: Value| {
        let pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "labels": labels}, "spec": {"nodeName": node, "containers": []}, "status": {"phase": "Running"}});
        world.controller.context.pods.upsert(serde_json::from_value(pod).unwrap());
    };
    pod("p1", "n0002", json!({"app": "web"}));
    pod("p2", "n0002", json!({"app": "web"}));
    pod("p3", "n0001", json!({"app": "other"}));
    pod("p4", "", json!({"app": "web"}));
    world.put_job("j", json!({"spec": {"podSelector": {"matchLabels": {"app": "web"}}, "parallelism": 9}}));
    world.settle(&["j"]).await;
    assert_eq!(world.open(), ["n0002"]);
    assert_eq!(counts(&world.job("j")), [1, 1, 0, 0]);
}

#[tokio::test]
async fn a_pod_asks_those_jobs_of_its_namespace_alone_that_go_on_and_select_pods() {
    let world = World::new();
    let by_pods = json!({"spec": {"podSelector": {"matchLabels": {"app": "web"}}}});
    for i in 0..3 {
        world.put_job_of("elsewhere", &format!("e{i}"), by_pods.clone());
    }
    world.put_job("all", json!({}));
    for name in ["web", "gone", "over", "other"] {
        world.put_job(name, by_pods.clone());
    }
    world.put_job("other", json!({"spec": {"podSelector": {"matchLabels": {"app": "db"}}}}));
    world.put_job("over", json!({"status": {"completionTime": "2026-01-01T00:00:00Z"}}));
    world.delete_job("gone");
    let asked = |namespace: &str| {
        let state = lock(&world.controller.state);
        state.by_pods.get(namespace).map(|jobs| jobs.keys().cloned().collect::<Vec<_>>()).unwrap_or_default()
    };
    assert_eq!(asked("ns"), ["job-other", "job-web"]);
    assert_eq!(asked("elsewhere"), ["job-e0", "job-e1", "job-e2"]);

    while let Some(key) = world.controller.job_queue.begin() {
        world.controller.job_queue.done::<String>(key, Ok(Requeue::Await));
    }
    let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "p", "labels": {"app": "web"}},
        "spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Running"}});
    let pod: Arc<PodView> = Arc::new(serde_json::from_value(pod).unwrap());
    world.controller.pod_changed(&Change::Applied { old: None, new: &pod, initial: false });
    assert!(world.controller.job_queue.next_in().is_some_and(|after| after <= POD_PAUSE), "web looks again");

    for name in ["web", "other"] {
        world.delete_job(name);
    }
    assert!(asked("ns").is_empty() && !lock(&world.controller.state).by_pods.contains_key("ns"));
}

#[tokio::test]
async fn f11_nodes_begin_in_the_order_in_which_the_clone_set_updates_its_pods() {
    let world = World::with_nodes(4).await;
    for (name, node, role) in [("p1", "n0000", "a"), ("p2", "n0001", "b"), ("p3", "n0002", "a"), ("p4", "n0003", "b")] {
        let pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"app": "web", "role": role}},
            "spec": {"nodeName": node, "containers": []}, "status": {"phase": "Running"}});
        world.controller.context.pods.upsert(serde_json::from_value(pod).unwrap());
    }
    let first = json!([{"weight": 5, "matchSelector": {"matchLabels": {"role": "b"}}}]);
    lock(&world.server).objects.insert(
        "/apis/apps.kruise.io/v1alpha1/namespaces/ns/clonesets/web".into(),
        json!({"metadata": {"name": "web", "namespace": "ns", "uid": "set"}, "spec": {"selector": {}, "template": {},
            "updateStrategy": {"priorityStrategy": {"weightPriority": first}}}}),
    );
    let job = |uid: &str| {
        json!({"metadata": {"ownerReferences": [{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet",
            "name": "web", "uid": uid, "controller": true}]},
            "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "parallelism": 2}})
    };
    world.put_job("other", job("another set of that name"));
    world.settle(&["other"]).await;
    assert_eq!(world.open(), ["n0000", "n0001"]);
    world.delete_job("other");
    world.run_nodes().await;
    assert_eq!(world.open(), [""; 0]);
    world.put_job("j", job("set"));
    world.settle(&["j"]).await;
    assert_eq!(world.open(), ["n0001", "n0003"]);
}

#[tokio::test]
async fn nodes_begin_in_the_order_in_which_the_stateful_set_updates_its_pods() {
    let world = World::with_nodes(4).await;
    for (name, node, role) in
        [("db-0", "n0000", "x"), ("db-3", "n0001", "leader"), ("db-10", "n0002", "x"), ("db-9", "n0003", "x")]
    {
        let pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"app": "db", "role": role}},
            "spec": {"nodeName": node, "containers": []}, "status": {"phase": "Running"}});
        world.controller.context.pods.upsert(serde_json::from_value(pod).unwrap());
    }
    lock(&world.server).objects.insert(
        "/apis/apps.kruise.io/v1beta1/namespaces/ns/statefulsets/db".into(),
        json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet",
            "metadata": {"name": "db", "namespace": "ns", "uid": "set", "annotations": {"kruise.rs/update-order": "role=leader"}},
            "spec": {"selector": {}, "template": {}}}),
    );
    let owner = json!([{"apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet", "name": "db", "uid": "set", "controller": true}]);
    for (name, parallelism, nodes) in
        [("one", 1, &["n0002"][..]), ("two", 2, &["n0002", "n0003"]), ("three", 3, &["n0000", "n0002", "n0003"])]
    {
        let spec = json!({"podSelector": {"matchLabels": {"app": "db"}}, "parallelism": parallelism});
        world.put_job(name, json!({"metadata": {"ownerReferences": owner}, "spec": spec}));
        world.settle(&[name]).await;
        assert_eq!(world.open(), nodes, "the highest ordinals first, and the leader last");
        world.delete_job(name);
        world.run_nodes().await;
    }
}

#[tokio::test]
async fn a_job_for_pods_waits_for_their_node_to_join() {
    let world = World::new();
    world.add_node("n", json!({}));
    let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "p", "labels": {"app": "web"}}, "spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Running"}});
    world.controller.context.pods.upsert(serde_json::from_value(pod).unwrap());
    world.put_job("j", json!({"spec": {"podSelector": {"matchLabels": {"app": "web"}}}}));
    world.put_job("none", json!({"spec": {"podSelector": {"matchLabels": {"app": "other"}}}}));
    world.run_job("j").await;
    world.run_job("none").await;
    assert_eq!(world.job("j")["status"]["completionTime"], Value::Null);
    assert_eq!(world.job("j")["status"]["conditions"][0]["reason"], "WaitingForNodes");
    assert!(world.job("none")["status"]["completionTime"].is_string());
    world.settle(&["j"]).await;
    assert_eq!(world.open(), ["n"]);
}

#[tokio::test]
async fn f8_a_finalizer_that_openkruise_left_goes_and_a_job_is_deleted_after_its_time() {
    let world = World::with_nodes(1).await;
    let metadata = json!({"finalizers": ["apps.kruise.io/deletion-protection", "example.com/keep"]});
    let status = json!({"startTime": "2020-01-01T00:00:00Z", "completionTime": "2020-01-01T00:00:00Z", "desired": 1});
    world.put_job(
        "j",
        json!({"metadata": metadata, "status": status, "spec": {"completionPolicy": {"ttlSecondsAfterFinished": 60}}}),
    );
    world.run_job("j").await;
    assert_eq!(world.job("j")["metadata"]["finalizers"], json!(["example.com/keep"]));
    world.run_job("j").await;
    assert!(!lock(&world.server).objects.contains_key(&format!("{JOBS}/j")));
    assert_eq!(world.writes_to(JOBS), 2);
    world.put_job("kept", json!({"status": status}));
    assert_eq!(world.run_job("kept").await, Requeue::Await);
}

#[tokio::test]
async fn takeover_writes_nothing_to_what_is_done() {
    let world = World::new();
    let node = include_str!("../../api/apps/testdata/node_images.json");
    let jobs = include_str!("../../api/apps/testdata/image_pull_jobs.json");
    let images: Vec<Value> = serde_json::from_str(node).unwrap();
    let mut jobs: Vec<Value> = serde_json::from_str(jobs).unwrap();
    // Their times are not over yet.
    let now = crate::k8s::time::rfc3339(clock::now().wall);
    let text = serde_json::to_string(&images[0]).unwrap();
    let mut image: Value = serde_json::from_str(&text).unwrap();
    for tag in image["status"]["imageStatuses"]["busybox"]["tags"].as_array_mut().unwrap() {
        tag["completionTime"] = now.clone().into();
    }
    let name = image["metadata"]["name"].as_str().unwrap().to_owned();
    world.add_node(&name, image["metadata"]["labels"].clone());
    lock(&world.server).objects.insert(format!("{NODE_IMAGES}/{name}"), image.clone());
    world.controller.node_images.upsert(serde_json::from_value(image).unwrap());
    for job in &mut jobs {
        job["status"]["completionTime"] = now.clone().into();
        let new: ImagePullJob = serde_json::from_value(job.clone()).unwrap();
        world.controller.note_job(&new);
        let key = ObjectKey::of(&new);
        world.controller.jobs.upsert(new);
        world.controller.reconcile_job(&key).await.unwrap();
    }
    world.run_nodes().await;
    assert_eq!(lock(&world.server).writes, []);
}

#[tokio::test]
async fn e11_a_daemon_that_says_nothing_is_given_up() {
    let mut world = World::with_nodes(1).await;
    let context = world.controller.context.clone();
    let (events, send) = Recorder::new(context.client.clone(), "test", "", Counter::default());
    tokio::spawn(send);
    world.controller.node_events = Controller::new(&Context { events, ..context }).node_events;
    world.put_job("j", json!({}));
    world.settle(&["j"]).await;
    // As another manager left it eleven minutes ago.
    let key = ObjectKey::new("", "n0000");
    let long_ago = Sighting::found(clock::now(), clock::now().wall - jiff::SignedDuration::from_secs(660));
    for seen in lock(&world.controller.state).nodes.get_mut("n0000").unwrap().entries.values_mut() {
        *seen = long_ago;
    }
    world.controller.reconcile_node(&key).await.unwrap();
    let status = world.node_image("n0000")["status"].clone();
    let tag = &status["imageStatuses"]["app"]["tags"][0];
    assert_eq!((&tag["phase"], &tag["message"]), (&json!("Failed"), &json!("node has not responded for a long time")));
    assert_eq!((&status["desired"], &status["failed"]), (&json!(1), &json!(1)));
    world.settle(&["j"]).await;
    assert_eq!(counts(&world.job("j")), [1, 0, 0, 1]);
    // Of the job and of the NodeImage.
    let components = || -> Vec<Value> {
        let server = lock(&world.server);
        let events = server.objects.iter().filter(|(path, _)| path.contains("/events/"));
        events.map(|(_, event)| event["source"]["component"].clone()).collect()
    };
    while components().len() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(components(), ["nodeimage-controller"; 2]);
}

#[tokio::test]
async fn an_entry_of_a_node_image_that_was_made_again_has_its_whole_time() {
    let world = World::with_nodes(1).await;
    world.put_job("j", json!({}));
    world.settle(&["j"]).await;
    let version = |world: &World| world.node_image("n0000")["spec"]["images"]["app"]["tags"][0]["version"].clone();
    let before = version(&world);
    let long_ago = Sighting::found(clock::now(), clock::now().wall - jiff::SignedDuration::from_secs(660));
    for seen in lock(&world.controller.state).nodes.get_mut("n0000").unwrap().entries.values_mut() {
        *seen = long_ago;
    }
    // Somebody deletes it; both are done again.
    let key = ObjectKey::new("", "n0000");
    lock(&world.server).objects.remove(&format!("{NODE_IMAGES}/n0000"));
    let old = world.controller.node_images.remove(&key, None).unwrap();
    world.controller.node_image_changed(Some(&old), None);
    for _ in 0..2 {
        world.run_nodes().await;
        world.settle(&["j"]).await;
    }
    assert_eq!((version(&world), world.open()), (before, vec!["n0000".to_owned()]), "its daemon is waited for");
    assert_eq!(counts(&world.job("j")), [1, 1, 0, 0]);
}

#[tokio::test]
async fn a_job_that_admission_would_refuse_says_why() {
    let world = World::with_nodes(1).await;
    world.put_job("j", json!({"spec": {"image": "Not An Image"}}));
    world.settle(&["j"]).await;
    let job = world.job("j");
    assert!(
        job["status"]["message"].as_str().unwrap().starts_with("spec.image: \"Not An Image\" is no image reference")
    );
    assert_eq!(job["status"]["conditions"][0]["reason"], "Invalid");
    assert_eq!(world.writes_to(NODE_IMAGES), 1);
}

#[tokio::test]
async fn a_job_that_cannot_be_read_keeps_its_entries() {
    let world = World::with_nodes(1).await;
    world.put_job("j", json!({}));
    world.settle(&["j"]).await;
    let key = ObjectKey::new("ns", "j");
    lock(&world.controller.state).known.remove("job-j");
    world.controller.job_changed(&Change::Undecodable { key: &key, error: "test" });
    world.run_nodes().await;
    assert_eq!(world.open(), ["n0000"]);
}

#[tokio::test]
async fn a_job_that_cannot_be_read_is_let_go_when_it_is_deleted_and_its_entries_go_with_it() {
    let (soon, later) = (Requeue::After(Duration::from_secs(5)), Requeue::After(Duration::from_secs(60)));
    let (key, path) = (ObjectKey::new("ns", "j"), format!("{JOBS}/j"));
    let own = crate::api::labels::IMAGE_PULL_JOB_FINALIZER;
    let world = World::with_nodes(1).await;
    world.put_job("j", json!({"metadata": {"finalizers": ["example.com/keep", own]}}));
    world.settle(&["j"]).await;
    let change = |changes: Value| {
        json_patch::merge(lock(&world.server).objects.get_mut(&path).unwrap(), &changes);
        world.controller.jobs.remove(&key, None);
        world.controller.job_changed(&Change::Undecodable { key: &key, error: "test" });
    };
    world.woken().await;
    change(json!({"spec": 3}));
    assert!(lock(&world.controller.state).known.is_empty(), "an older version of it decides nothing");
    assert_eq!(world.woken().await, ["j"]);
    assert_eq!(world.run_job("j").await, later);
    assert_eq!(world.job("j")["metadata"]["finalizers"], json!(["example.com/keep", own]));

    change(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    assert_eq!(world.run_job("j").await, soon);
    let job = world.job("j");
    assert_eq!((&job["metadata"]["finalizers"], &job["spec"]), (&json!(["example.com/keep"]), &json!(3)));
    assert_eq!(world.run_job("j").await, later);
    world.run_nodes().await;
    assert_eq!(world.open(), ["n0000"], "it is still there");

    lock(&world.server).objects.remove(&path);
    world.woken_nodes().await;
    assert_eq!(world.run_job("j").await, Requeue::Await);
    assert_eq!(world.woken_nodes().await, ["n0000"]);
    world.run_nodes().await;
    assert!(world.open().is_empty() && world.controller.unreadable.is_empty());
}

/// A job with an entry on a node that could not be read, and can be read again after these changes.
async fn read_again(changes: &Value) -> World {
    let world = World::with_nodes(1).await;
    world.put_job("j", json!({}));
    world.settle(&["j"]).await;
    let key = ObjectKey::new("ns", "j");
    world.controller.jobs.see_gone(&key, None, |_| {});
    world.controller.job_changed(&Change::Undecodable { key: &key, error: "test" });
    world.woken_nodes().await;
    let mut job = world.job("j");
    json_patch::merge(&mut job, changes);
    job["metadata"]["resourceVersion"] = "1000".into();
    lock(&world.server).objects.insert(format!("{JOBS}/j"), job.clone());
    lock(&world.server).version = 1000;
    let job: ImagePullJob = serde_json::from_value(job).unwrap();
    world.controller.jobs.see(job, |change| world.controller.job_changed(&change));
    assert_eq!(world.woken_nodes().await, ["n0000"]);
    world.settle(&["j"]).await;
    world
}

#[tokio::test]
async fn a_job_that_can_be_read_again_goes_on() {
    let world = read_again(&json!({"spec": {"image": "app:v2"}})).await;
    assert_eq!(world.open(), ["n0000"]);
    let images = &world.node_image("n0000")["spec"]["images"];
    assert_eq!(images["app"]["tags"].as_array().unwrap().len(), 1, "{images}");
    assert_eq!(images["app"]["tags"][0]["tag"], "v2");
    assert!(world.controller.unreadable.is_empty());
}

/// Nobody was told that the one that could not be read is gone.
#[tokio::test]
async fn a_job_with_the_name_of_one_that_could_not_be_read_leaves_none_of_its_entries() {
    let selector = json!({"names": ["elsewhere"]});
    let world = read_again(&json!({"metadata": {"uid": "job-j2"}, "spec": {"selector": selector}})).await;
    assert_eq!(world.open(), Vec::<String>::new());
    assert!(world.node_image("n0000")["spec"]["images"].get("app").is_none());
}

#[tokio::test]
async fn a_job_that_is_deleted_while_it_is_read_again_does_not_come_back() {
    const FINALIZER: &str = crate::api::labels::IMAGE_PULL_JOB_FINALIZER;
    let key = ObjectKey::new("ns", "j");
    let job = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "spec": {"image": "app:v1"},
        "metadata": {"name": "j", "namespace": "ns", "uid": "job-j", "resourceVersion": "7", "finalizers": [FINALIZER]},
        "status": {"completionTime": "2026-01-01T00:00:00Z"}});
    let running: Arc<std::sync::OnceLock<Arc<Controller>>> = Arc::default();
    let context = in_memory::context({
        let (running, key, job) = (running.clone(), key.clone(), job.clone());
        move |request, _| {
            if request.method != Method::GET {
                return (409, json!({"kind": "Status", "status": "Failure", "code": 409, "message": "test"}));
            }
            // The answer was on its way when the watch told of the deletion.
            let controller = running.get().unwrap();
            let old = controller.jobs.remove(&key, Some("job-j")).unwrap();
            controller.job_changed(&Change::Deleted(&old));
            (200, job.clone())
        }
    });
    let controller = Arc::new(Controller::new(&context));
    assert!(running.set(controller.clone()).is_ok());
    let (_, new) = controller.jobs.upsert(serde_json::from_value(job).unwrap());
    controller.job_changed(&Change::Applied { old: None, new: &new.unwrap(), initial: false });
    assert!(lock(&controller.state).known.contains_key("job-j"));
    controller.reconcile_job(&key).await.unwrap();
    assert!(controller.jobs.is_empty(), "it is in the store again");
    assert!(lock(&controller.state).known.is_empty(), "it is known again");
}
