//! Random histories of ImagePullJobs: nodes and Pods that come and go, jobs that are edited and deleted, refused and
//! conflicting writes, answers that are lost, daemons that report late, NodeImages that are full, managers that start anew.
//! Once nothing stands in the way any more, each job ends as its spec says, its counts are exact, and no entry of a job
//! that is gone is left.
//!
//! The controller is the real one, over an API server in memory. What surrounds it is played: one effect is one step.

use super::*;
use crate::runtime::watches::StoredObject;
use crate::{
    api::apps::node_image::MOST_IMAGES,
    controllers::fake::{Server, in_paused_time},
    k8s::time::rfc3339,
    liveness::{self, Acts, Driver, Limits, Model, Random, Step},
};

const NODES: &str = "/api/v1/nodes/";
const IMAGES: &str = "/apis/apps.kruise.io/v1beta1/nodeimages/";
const PODS: &str = "/api/v1/namespaces/a/pods/";
const APPS: &str = "/apis/apps.kruise.io/v1beta1/namespaces/";
const NODE_COUNT: usize = 4;
/// Beyond this the history ends: after a day the entries of jobs without an end are renewed.
const HORIZON: Duration = Duration::from_secs(6 * 60 * 60);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Job(ObjectKey),
    Node(ObjectKey),
}

struct Cluster {
    server: Arc<Mutex<Server>>,
    controller: Controller,
    ready: BTreeSet<Key>,
    due: BTreeMap<Key, Duration>,
    /// When the queue has keys whose pause is over.
    queue_due: Option<Duration>,
    /// Nodes whose daemon does nothing.
    away: BTreeSet<String>,
    made: usize,
    mended: bool,
}

fn manager(server: &Arc<Mutex<Server>>) -> Controller {
    let server = server.clone();
    let mut context = in_memory::context(move |parts, body| lock(&server).answer(parts, body));
    context.settings.images.creation_delay = Duration::from_secs(3);
    Controller::new(&context)
}

fn now() -> String {
    rfc3339(clock::now().wall)
}

fn node_name(random: &mut Random) -> String {
    format!("n{}", random.below(NODE_COUNT))
}

fn zone(random: &mut Random) -> Value {
    json!({"zone": if random.chance(50) { "a" } else { "b" }})
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Entries of a NodeImage: image, entry, and what the status says of it.
fn entries(node_image: &Value) -> impl Iterator<Item = (&str, &Value, &Value)> {
    let images = node_image["spec"]["images"].as_object().into_iter().flatten();
    images.flat_map(move |(image, spec)| {
        let said = node_image["status"]["imageStatuses"][image]["tags"].as_array().map_or(&[][..], Vec::as_slice);
        spec["tags"].as_array().into_iter().flatten().map(move |tag| {
            let status = said.iter().find(|status| status["tag"] == tag["tag"]).unwrap_or(&Value::Null);
            (image.as_str(), tag, status)
        })
    })
}

fn version(of: &Value) -> i64 {
    of["version"].as_i64().unwrap_or(0)
}

fn has_ended(status: &Value) -> bool {
    ["Succeeded", "Failed"].contains(&text(&status["phase"]))
}

/// Whether the status speaks of the entry as it is now.
fn is_current(tag: &Value, status: &Value) -> bool {
    !status.is_null() && version(tag) == version(status)
}

fn is_owned(tag: &Value, job: &Value) -> bool {
    tag["ownerReferences"].as_array().into_iter().flatten().any(|owner| owner["uid"] == job["metadata"]["uid"])
}

fn owners(tag: &Value) -> impl Iterator<Item = &Value> {
    tag["ownerReferences"].as_array().into_iter().flatten()
}

impl Cluster {
    fn new() -> Self {
        let server = Arc::new(Mutex::new(Server::new(|_, _| Ok(()))));
        let cluster = Self {
            controller: manager(&server),
            server,
            ready: BTreeSet::new(),
            due: BTreeMap::new(),
            queue_due: None,
            away: BTreeSet::new(),
            made: 0,
            mended: false,
        };
        for i in 0..NODE_COUNT {
            cluster.add_node(&format!("n{i}"), json!({"zone": if i % 2 == 0 { "a" } else { "b" }}));
            cluster.add_pod(&format!("n{i}"));
        }
        cluster
    }

    fn add_node(&self, name: &str, labels: Value) {
        let ready = json!([{"type": "Ready", "status": "True", "lastTransitionTime": now()}]);
        let node = json!({"metadata": {"name": name, "labels": labels}, "status": {"conditions": ready}});
        lock(&self.server).put(&format!("{NODES}{name}"), node);
    }

    fn add_pod(&self, node: &str) {
        let pod = json!({"metadata": {"name": format!("on-{node}"), "namespace": "a", "labels": {"app": "web"}},
            "spec": {"nodeName": node, "containers": []}, "status": {"phase": "Running"}});
        lock(&self.server).put(&format!("{PODS}on-{node}"), pod);
    }

    /// Delivers one change, as the watch of its kind does.
    fn deliver(&mut self, path: &str) {
        let object = lock(&self.server).objects.get(path).map(|object| Value::clone(object));
        let controller = &self.controller;
        let name = path.rsplit('/').next().unwrap();
        macro_rules! deliver {
            ($store:expr, $namespace:expr, $on_change:expr) => {{
                let key = ObjectKey::new($namespace, name);
                let uid = object.as_ref().map(|object| text(&object["metadata"]["uid"]).to_owned());
                if let Some(old) = $store.get(&key).filter(|old| old.object_uid() != uid.as_deref()) {
                    $store.remove(&key, old.object_uid());
                    $on_change(&Change::Deleted(&old));
                }
                if let Some(object) = object
                    && let (old, Some(new)) = $store.upsert(serde_json::from_value(object).unwrap())
                {
                    $on_change(&Change::Applied { old: old.as_ref(), new: &new, initial: false });
                }
            }};
        }
        if path.starts_with(NODES) {
            deliver!(controller.context.nodes.store(), "", |change: &Change<'_, _>| controller.node_changed(change));
        } else if path.starts_with(IMAGES) {
            deliver!(controller.node_images, "", |change: &Change<'_, NodeImageView>| match change {
                Change::Applied { old, new, .. } =>
                    controller.node_image_changed(old.map(AsRef::as_ref), Some(new.as_ref())),
                Change::Deleted(old) => controller.node_image_changed(Some(old.as_ref()), None),
                Change::Undecodable { .. } => {}
            });
        } else if path.starts_with(PODS) {
            deliver!(controller.context.pods, "a", |change: &Change<'_, _>| controller.pod_changed(change));
            self.queue_due = Some(clock::now().mono + POD_PAUSE + Duration::from_millis(1));
        } else {
            let namespace = path.trim_start_matches(APPS).split('/').next().unwrap();
            deliver!(controller.jobs, namespace, |change: &Change<'_, _>| controller.job_changed(change));
        }
    }

    /// Takes over what has been put into the queues.
    async fn take_queues(&mut self) {
        let (_stop, stopped) = tokio::sync::watch::channel(true);
        let keys: Arc<Mutex<Vec<Key>>> = Arc::default();
        let note = |of: fn(ObjectKey) -> Key| {
            let keys = keys.clone();
            move |key: ObjectKey, _| {
                lock(&keys).push(of(key));
                std::future::ready(Ok::<_, String>(Requeue::Await))
            }
        };
        let is_due = self.queue_due.is_some_and(|due| due <= clock::now().mono);
        if is_due {
            self.queue_due = None;
        }
        // A queue that has to stop may do so before it has looked at its clock.
        for _ in 0..if is_due { 32 } else { 1 } {
            self.controller.job_queue.run(100, stopped.clone(), note(Key::Job)).await;
            self.controller.node_queue.run(100, stopped.clone(), note(Key::Node)).await;
        }
        for key in std::mem::take(&mut *lock(&keys)) {
            self.due.remove(&key);
            self.ready.insert(key);
        }
    }

    fn restart_manager(&mut self) {
        self.controller = manager(&self.server);
        (self.ready, self.due, self.queue_due) = Default::default();
        let all: Vec<String> = {
            let mut server = lock(&self.server);
            server.news.clear();
            server.acts.note("managers that started anew");
            server.objects.keys().cloned().collect()
        };
        all.iter().for_each(|path| self.deliver(path));
    }

    fn new_job(&mut self, random: &mut Random) -> String {
        self.made += 1;
        let parallelism = if random.chance(5) { 0 } else { 1 + random.below(3) };
        let image = format!("app{}:v{}", random.below(3), random.below(2));
        let timeout = 5 + random.below(60);
        let mut spec = json!({"image": image, "parallelism": parallelism,
            "pullPolicy": {"timeoutSeconds": timeout, "backoffLimit": random.below(3)}});
        if random.chance(25) {
            spec["completionPolicy"] = json!({"type": "Never"});
        } else {
            spec["completionPolicy"] = json!({"type": "Always"});
            if random.chance(40) {
                spec["completionPolicy"]["activeDeadlineSeconds"] = (timeout + random.below(300)).into();
            }
            if random.chance(40) {
                spec["completionPolicy"]["ttlSecondsAfterFinished"] = random.below(60).into();
            }
        }
        let namespace = if random.chance(60) { "a" } else { "b" };
        match random.below(6) {
            0 => spec["selector"] = json!({"names": [node_name(random), node_name(random)]}),
            1 => spec["selector"] = json!({"matchLabels": zone(random)}),
            2 if namespace == "a" => spec["podSelector"] = json!({"matchLabels": {"app": "web"}}),
            _ => {}
        }
        if let Some([one, other]) = spec["selector"]["names"].as_array().map(Vec::as_slice)
            && one == other
        {
            spec["selector"] = json!({"names": [one]});
        }
        let (name, said) = (format!("j{}", self.made), format!("a job j{} in {namespace}: {spec}", self.made));
        let mut metadata = json!({"name": name, "namespace": namespace, "generation": 1});
        if random.chance(20) {
            metadata["finalizers"] = json!([crate::api::labels::IMAGE_PULL_JOB_FINALIZER]);
        }
        let job = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "metadata": metadata,
            "spec": spec});
        lock(&self.server).put(&format!("{APPS}{namespace}/imagepulljobs/{name}"), job);
        said
    }

    /// A user changes a job.
    fn edit(&self, random: &mut Random) -> String {
        let mut server = lock(&self.server);
        let jobs = server.of(APPS);
        let Some((path, job)) = random.one_of(&jobs) else { return "no job to edit".into() };
        let generation = job["metadata"]["generation"].as_i64().unwrap() + 1;
        let spec = match random.below(5) {
            0 | 1 => {
                if job["metadata"]["finalizers"].as_array().is_some_and(|held| !held.is_empty()) {
                    server.change(path, &json!({"metadata": {"deletionTimestamp": now()}}));
                } else {
                    server.remove(path);
                }
                return format!("{path} is deleted");
            }
            2 => json!({"parallelism": 1 + random.below(3)}),
            3 => json!({"image": format!("app{}:v{}", random.below(3), random.below(2))}),
            _ if job["spec"]["podSelector"].is_object() => json!({"podSelector": null}),
            _ => json!({"selector": {"names": null, "matchLabels": zone(random)}}),
        };
        server.change(path, &json!({"metadata": {"generation": generation}, "spec": spec}));
        format!("{path} becomes {spec}")
    }

    /// Somebody else fills a NodeImage, but for a few places.
    fn crowd(&self, random: &mut Random) -> String {
        let path = format!("{IMAGES}{}", node_name(random));
        let mut server = lock(&self.server);
        let Some(there) = server.objects.get(&path) else { return "nothing to fill".into() };
        let left = random.below(3);
        let taken = there["spec"]["images"].as_object().map_or(0, serde_json::Map::len);
        let fill = (0..MOST_IMAGES.saturating_sub(taken + left))
            .map(|i| (format!("other{i}"), json!({"tags": [{"tag": "x", "createdAt": now()}]})));
        let images: serde_json::Map<String, Value> = fill.collect();
        server.change(&path, &json!({"spec": {"images": images}}));
        server.acts.note("full nodes");
        format!("{path} has {left} places")
    }

    /// What daemons would do next.
    fn surroundings(&self) -> Vec<Effect> {
        let server = lock(&self.server);
        let mut effects = Vec::new();
        for (path, node_image) in server.of(IMAGES) {
            let name = text(&node_image["metadata"]["name"]);
            if self.away.contains(name) || !server.objects.contains_key(&format!("{NODES}{name}")) {
                continue;
            }
            for (image, tag, status) in entries(&node_image).filter(|(image, ..)| image.starts_with("app")) {
                let effect =
                    |does| Effect { path: path.clone(), image: image.into(), tag: text(&tag["tag"]).into(), does };
                if !is_current(tag, status) {
                    effects.push(effect(Does::Begin(version(tag))));
                }
                if !status.is_null() && !has_ended(status) {
                    effects.push(effect(Does::End(version(status))));
                }
            }
        }
        effects
    }

    /// What a daemon writes: it also forgets what is not wanted any more.
    fn play(&self, effect: &Effect, random: &mut Random) -> String {
        let Effect { path, image, tag, does } = effect;
        let mut server = lock(&self.server);
        let node_image = server.objects[path].clone();
        let mut statuses = json!({});
        for (image, tag, status) in entries(&node_image).filter(|(_, _, status)| !status.is_null()) {
            if statuses[image].is_null() {
                statuses[image] = json!({"tags": []});
            }
            let mut status = status.clone();
            status["tag"] = tag["tag"].clone();
            statuses[image]["tags"].as_array_mut().unwrap().push(status);
        }
        if statuses[image].is_null() {
            statuses[image] = json!({"tags": []});
        }
        let tags = statuses[image]["tags"].as_array_mut().unwrap();
        let before = tags.iter().position(|status| text(&status["tag"]) == tag).map(|at| tags.remove(at));
        let status = match does {
            Does::Begin(version) => {
                let phase = if random.chance(20) { "Waiting" } else { "Pulling" };
                json!({"tag": tag, "version": version, "phase": phase, "startTime": now()})
            }
            Does::End(version) => {
                let fails = random.chance(if self.mended { 5 } else { 15 });
                let phase = if fails { "Failed" } else { "Succeeded" };
                let start = before.map_or(Value::Null, |before| before["startTime"].clone());
                json!({"tag": tag, "version": version, "phase": phase, "startTime": start, "completionTime": now()})
            }
        };
        tags.push(status.clone());
        let mut whole = Value::clone(&node_image);
        whole["status"] = json!({"imageStatuses": statuses});
        server.put(path, whole);
        format!("the daemon of {path} says of {image}: {status}")
    }
}

struct Effect {
    path: String,
    image: String,
    tag: String,
    does: Does,
}

enum Does {
    Begin(i64),
    End(i64),
}

/// What there is, and whether nothing stands in the way any more.
struct Seen {
    objects: BTreeMap<String, Arc<Value>>,
    mended: bool,
}

impl Seen {
    fn of<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Value> {
        let found = self.objects.range(prefix.to_owned()..).take_while(move |(path, _)| path.starts_with(prefix));
        found.map(|(_, object)| object.as_ref())
    }

    /// NodeImages that a job selects.
    fn selected<'a>(&'a self, job: &'a Value) -> impl Iterator<Item = &'a Value> {
        let spec = &job["spec"];
        self.of(IMAGES).filter(move |node| {
            let name = text(&node["metadata"]["name"]);
            if spec["podSelector"].is_object() {
                return self.objects.contains_key(&format!("{PODS}on-{name}"));
            }
            match &spec["selector"] {
                Value::Null => true,
                selector if selector["names"].is_array() => {
                    selector["names"].as_array().unwrap().iter().any(|one| one == name)
                }
                selector => selector["matchLabels"]["zone"] == node["metadata"]["labels"]["zone"],
            }
        })
    }

    /// How the entries of a job are on the nodes that it selects: open, Succeeded, Failed.
    fn counts(&self, job: &Value) -> [usize; 3] {
        let mut counts = [0; 3];
        for node in self.selected(job) {
            for (_, tag, status) in entries(node).filter(|(_, tag, _)| is_owned(tag, job)) {
                let phase = if is_current(tag, status) { text(&status["phase"]) } else { "" };
                counts[match phase {
                    "Succeeded" => 1,
                    "Failed" => 2,
                    _ => 0,
                }] += 1;
            }
        }
        counts
    }
}

impl Driver for Cluster {
    type Seen = Seen;

    async fn disturb(&mut self, random: &mut Random) -> Result<String, String> {
        let node = node_name(random);
        let (node_path, pod_path) = (format!("{NODES}{node}"), format!("{PODS}on-{node}"));
        let is_there = |path: &String| lock(&self.server).objects.contains_key(path);
        Ok(match random.below(20) {
            0..=4 => self.new_job(random),
            5 | 6 => self.edit(random),
            7 | 8 => lock(&self.server).fail(random),
            9 | 10 if is_there(&node_path) => {
                lock(&self.server).remove(&node_path);
                lock(&self.server).remove(&pod_path);
                format!("{node} goes")
            }
            9..=11 if !is_there(&node_path) => {
                self.add_node(&node, zone(random));
                format!("{node} comes")
            }
            9..=11 => {
                let labels = zone(random);
                lock(&self.server).change(&node_path, &json!({"metadata": {"labels": labels}}));
                format!("{node} becomes {labels}")
            }
            12 if is_there(&pod_path) => {
                lock(&self.server).remove(&pod_path);
                format!("the Pod on {node} goes")
            }
            12 => {
                self.add_pod(&node);
                format!("a Pod on {node}")
            }
            13..=15 => {
                if !self.away.remove(&node) {
                    self.away.insert(node);
                }
                format!("daemons away: {:?}", self.away)
            }
            16 if random.chance(30) => self.crowd(random),
            _ => {
                self.restart_manager();
                "a new manager".into()
            }
        })
    }

    async fn make_possible(&mut self) -> Result<String, String> {
        self.away.clear();
        self.mended = true;
        let mut server = lock(&self.server);
        server.faults.clear();
        for (path, node_image) in server.of(IMAGES) {
            let others: serde_json::Map<String, Value> = entries(&node_image)
                .filter(|(image, ..)| image.starts_with("other"))
                .map(|(image, ..)| (image.to_owned(), Value::Null))
                .collect();
            if !others.is_empty() {
                server.change(&path, &json!({"spec": {"images": others}}));
            }
        }
        Ok("no fault, every daemon well, room on every node".into())
    }

    async fn step(&mut self, random: &mut Random) -> Result<Step, String> {
        self.take_queues().await;
        let now = clock::now().mono;
        let over: Vec<Key> = self.due.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        for key in over {
            self.due.remove(&key);
            self.ready.insert(key);
        }
        let effects = self.surroundings();
        let ready: Vec<Key> = self.ready.iter().cloned().collect();
        let has_news = !lock(&self.server).news.is_empty();
        let choices = effects.len() + ready.len() + usize::from(has_news);
        if choices == 0 {
            let next = self.due.values().copied().chain(self.queue_due).min().map(|at| at.saturating_sub(now));
            return Ok(Step::Idle(next.filter(|next| *next < HORIZON)));
        }
        let choice = random.below(choices);
        if let Some(effect) = effects.get(choice) {
            return Ok(Step::Worked(self.play(effect, random)));
        }
        let Some(key) = ready.get(choice - effects.len()) else {
            let path = lock(&self.server).news.pop_front().unwrap_or_default();
            self.deliver(&path);
            return Ok(Step::Worked(format!("delivered {path}")));
        };
        self.ready.remove(key);
        let result = match key {
            Key::Job(key) => self.controller.reconcile_job(key).await,
            Key::Node(key) => self.controller.reconcile_node(key).await,
        };
        let after = match &result {
            Ok(Requeue::Await) => None,
            Ok(Requeue::After(delay)) => Some(*delay),
            Err(_) => Some(Duration::from_millis(500)),
        };
        if let Some(delay) = after {
            self.due.insert(key.clone(), now + delay);
        }
        Ok(Step::Worked(format!("reconciled {key:?}: {result:?}")))
    }

    async fn advance(&mut self, by: Duration) {
        tokio::time::advance(by).await;
    }

    async fn see(&mut self) -> Result<Seen, String> {
        Ok(Seen { objects: lock(&self.server).objects.clone(), mended: self.mended })
    }
}

/// What an ImagePullJob promises, in plain terms.
#[derive(Default)]
struct Promises {
    /// The status with which a job ended, by UID.
    ended: BTreeMap<String, Value>,
    /// Nodes on which the entry of a job was seen Succeeded, by UID.
    had: BTreeMap<String, BTreeSet<String>>,
    /// Entries that several jobs have wanted: what one of them does begins it again for the others.
    shared: BTreeSet<(String, String, String)>,
    acts: Acts,
    known: BTreeSet<String>,
}

fn count(job: &Value, field: &str) -> usize {
    usize::try_from(job["status"][field].as_i64().unwrap_or(0)).unwrap_or(usize::MAX)
}

fn reason(job: &Value) -> &str {
    let conditions = job["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|c| c["type"] == "Progressing").map_or("", |c| text(&c["reason"]))
}

impl Promises {
    fn look_at_nodes(&mut self, seen: &Seen, wrongs: &mut Vec<String>) {
        for node in seen.of(IMAGES) {
            let name = text(&node["metadata"]["name"]);
            if node["spec"]["images"].as_object().is_some_and(|images| images.len() > MOST_IMAGES) {
                wrongs.push(format!("{name} has more than {MOST_IMAGES} images"));
            }
            for (image, tag, status) in entries(node) {
                let uids: Vec<&str> = owners(tag).map(|owner| text(&owner["uid"])).collect();
                let distinct: BTreeSet<&&str> = uids.iter().collect();
                if distinct.len() < uids.len() {
                    wrongs.push(format!("an entry of {name} has an owner twice: {tag}"));
                }
                if uids.len() > 1 {
                    self.shared.insert((name.into(), image.into(), text(&tag["tag"]).into()));
                    self.acts.note("steps with shared entries");
                }
                if is_current(tag, status) && status["phase"] == "Succeeded" {
                    for uid in uids {
                        self.had.entry(uid.to_owned()).or_default().insert(name.to_owned());
                    }
                }
            }
        }
    }

    fn look_at_end(&mut self, job: &Value, wrongs: &mut Vec<String>) {
        let (name, uid) = (text(&job["metadata"]["name"]), text(&job["metadata"]["uid"]));
        let status = &job["status"];
        if let Some(before) = self.ended.get(uid) {
            if without_generations(before) != without_generations(status) {
                wrongs.push(format!("{name} has ended as {before}, and says now {status}"));
            }
            return;
        }
        if status["completionTime"].is_null() {
            return;
        }
        self.ended.insert(uid.to_owned(), status.clone());
        let (succeeded, failed) = (count(job, "succeeded"), count(job, "failed"));
        self.acts.note(if failed == 0 { "completed" } else { "failed" });
        if job["spec"]["completionPolicy"]["type"] == "Never" {
            wrongs.push(format!("{name} of type Never has ended"));
        }
        let had = self.had.get(uid).map_or(0, BTreeSet::len);
        if succeeded + failed != count(job, "desired") || count(job, "active") > 0 || succeeded > had {
            wrongs.push(format!("{name} ended with wrong counts, {had} nodes had the image: {status}"));
        }
        let says = if failed == 0 { "Complete" } else { "Failed" };
        let conditions = status["conditions"].as_array().unwrap();
        if !conditions.iter().any(|c| c["type"] == says && c["status"] == "True") {
            wrongs.push(format!("{name} has ended and is not {says}: {status}"));
        }
    }
}

impl Model for Promises {
    type Seen = Seen;

    fn wrongs(&mut self, seen: &Seen) -> Vec<String> {
        let mut wrongs = Vec::new();
        self.look_at_nodes(seen, &mut wrongs);
        for job in seen.of(APPS) {
            let (name, spec) = (text(&job["metadata"]["name"]), &job["spec"]);
            self.known.insert(text(&job["metadata"]["uid"]).to_owned());
            self.look_at_end(job, &mut wrongs);
            if count(job, "active") + count(job, "succeeded") + count(job, "failed") > count(job, "desired") {
                wrongs.push(format!("{name} counts more nodes than it has: {}", job["status"]));
            }
            if reason(job) == "NodeRefuses" {
                self.acts.note("steps with a node that refuses");
            }
            // An edit takes back what has begun; a node without its Pod goes on. Neither counts.
            let is_plain = job["metadata"]["generation"] == 1 && spec["podSelector"].is_null();
            if !is_plain || !job["status"]["completionTime"].is_null() {
                continue;
            }
            let is_alone = |node: &Value, image: &str, tag: &Value| {
                let at = (text(&node["metadata"]["name"]).to_owned(), image.to_owned(), text(&tag["tag"]).to_owned());
                !self.shared.contains(&at)
            };
            let open: usize = seen
                .selected(job)
                .map(|node| {
                    let own = entries(node).filter(|(image, tag, _)| is_owned(tag, job) && is_alone(node, image, tag));
                    own.filter(|(_, tag, status)| !is_current(tag, status) || !has_ended(status)).count()
                })
                .sum();
            if open as u64 > spec["parallelism"].as_u64().unwrap() {
                wrongs.push(format!("{name} has {open} nodes pull at a time, parallelism is {}", spec["parallelism"]));
            }
        }
        wrongs
    }

    fn missing(&self, seen: &Seen) -> Vec<String> {
        let mut missing = Vec::new();
        for node in seen.of(NODES) {
            let name = text(&node["metadata"]["name"]);
            match seen.objects.get(&format!("{IMAGES}{name}")) {
                Some(image) if image["metadata"]["labels"] == node["metadata"]["labels"] => {}
                Some(_) => missing.push(format!("the labels of {name}")),
                None => missing.push(format!("the NodeImage of {name}")),
            }
        }
        let jobs: BTreeMap<&str, &Value> = seen.of(APPS).map(|job| (text(&job["metadata"]["uid"]), job)).collect();
        for node in seen.of(IMAGES) {
            let name = text(&node["metadata"]["name"]);
            if !seen.objects.contains_key(&format!("{NODES}{name}")) {
                missing.push(format!("the end of the NodeImage {name}, which has no node"));
            }
            for (image, tag, _) in entries(node) {
                for owner in owners(tag).filter(|owner| !jobs.contains_key(text(&owner["uid"]))) {
                    missing
                        .push(format!("the end of an entry of {name}: {image} for {}, which is gone", owner["name"]));
                }
            }
        }
        for job in jobs.values() {
            let (name, completion) = (text(&job["metadata"]["name"]), &job["spec"]["completionPolicy"]);
            if !job["metadata"]["deletionTimestamp"].is_null() {
                missing.push(format!("the end of {name}, which is deleted"));
            }
            if !job["status"]["completionTime"].is_null() {
                if completion["ttlSecondsAfterFinished"].is_i64() {
                    missing.push(format!("the deletion of {name}, which has ended"));
                }
                continue;
            }
            let selected = seen.selected(job).count();
            let [open, succeeded, failed] = seen.counts(job);
            let waits = completion["type"] == "Never"
                || job["spec"]["parallelism"] == 0 && completion["activeDeadlineSeconds"].is_null();
            if !waits {
                missing.push(format!("the end of {name}: {}", job["status"]));
            }
            let all_began = job["spec"]["parallelism"] == 0 || succeeded + failed == selected;
            let says = ["desired", "active", "succeeded", "failed"].map(|field| count(job, field));
            if open > 0 || !all_began || says != [selected, 0, succeeded, failed] {
                missing.push(format!(
                    "{name}: of {selected} nodes {succeeded} succeeded, {failed} failed, {open} are open; it says {}",
                    job["status"]
                ));
            }
            if seen.mended && reason(job) == "NodeRefuses" {
                missing.push(format!("room for {name}"));
            }
        }
        missing
    }
}

/// Its time to live may change after the end: the generation that was seen follows.
fn without_generations(status: &Value) -> Value {
    let mut status = status.clone();
    let remove = |of: &mut Value| of.as_object_mut().map(|of| of.remove("observedGeneration"));
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        remove(condition);
    }
    remove(&mut status);
    status
}

#[test]
fn simulation_of_image_pull_jobs() {
    let acts = liveness::seeds(30, "simulation_of_image_pull_jobs", |seed| {
        in_paused_time(seed, async {
            let (mut cluster, mut promises) = (Cluster::new(), Promises::default());
            let limits = Limits { changes: 30, ..Limits::default() };
            liveness::run(seed, &limits, &mut cluster, &mut promises).await?;
            let mut acts = promises.acts;
            acts.add("jobs", promises.known.len() as u64);
            for what in ["refused writes", "lost answers", "full nodes", "managers that started anew"] {
                acts.add(what, lock(&cluster.server).acts.count(what));
            }
            Ok(acts)
        })
    });
    acts.require(&[
        ("jobs", 300),
        ("completed", 100),
        ("failed", 20),
        ("steps with shared entries", 500),
        ("steps with a node that refuses", 10),
        ("refused writes", 100),
        ("lost answers", 10),
        ("full nodes", 10),
        ("managers that started anew", 100),
    ]);
}
