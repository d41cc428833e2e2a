//! Random histories of PodProbeMarkers, Pods and nodes around the real controller, with watches that lag, writes that are
//! refused, lost or late, and managers and daemons that stop. In the end every Pod is probed, nothing is left of what is
//! gone, and every PodProbeMarker says what is true.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle};

use super::*;
use crate::{
    controllers::fake::in_paused_time,
    liveness::{self, Acts, Driver, Limits, Model, Random, Step},
};

const NODES: [&str; 2] = ["n1", "n2"];
const NAMESPACES: [&str; 3] = ["a", "b", "c"];
const OBJECTS: &str = "/apis/apps.kruise.io/v1alpha1";
/// Bytes of a probe that fits everywhere, of one of which many do not fit, and of one that fits nowhere.
const SIZES: [usize; 5] = [10, 10, 10, 20_000, 200_000];

/// The API server, with faults.
#[derive(Default)]
struct Cluster {
    server: Server,
    /// Writes and reads fail as this decides.
    faults: Option<Random>,
    acts: Acts,
    /// A NodePodProbe was to become larger than etcd takes.
    is_overfull: bool,
}

type Known = Arc<Mutex<Cluster>>;

fn respond(cluster: &Known, parts: &Parts, body: &[u8]) -> (u16, Value) {
    let cluster = &mut *lock(cluster);
    let refused = |code: u16| (code, json!({"kind": "Status", "code": code, "reason": "x", "message": "x"}));
    let fault = cluster.faults.as_mut().map_or(9, |random| random.below(10));
    if let Some(code) = [500, 409, 403].get(fault) {
        cluster.acts.note("refused");
        return refused(*code);
    }
    let shared: Shared = Arc::new(Mutex::new(std::mem::take(&mut cluster.server)));
    let answered = answer(&shared, parts, body);
    cluster.server = std::mem::take(&mut *lock(&shared));
    cluster.is_overfull |= answered.0 == 413;
    cluster.server.sweep();
    if fault == 3 {
        cluster.acts.note("answer lost");
        return refused(500);
    }
    answered
}

impl Server {
    /// What is being deleted goes with its last finalizer.
    fn sweep(&mut self) {
        self.objects.retain(|_, object| {
            let meta = &object["metadata"];
            meta["deletionTimestamp"].is_null() || meta["finalizers"].as_array().is_some_and(|all| !all.is_empty())
        });
    }

    fn store(&mut self, path: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.objects.insert(path.to_owned(), object);
    }

    fn edit(&mut self, path: &str, change: impl FnOnce(&mut Value)) {
        if let Some(mut object) = self.objects.get(path).cloned() {
            change(&mut object);
            self.store(path, object);
        }
    }

    fn paths(&self, part: &str) -> Vec<String> {
        self.objects.keys().filter(|path| path.contains(part)).cloned().collect()
    }
}

/// A manager that runs.
struct Manager {
    controller: Arc<Controller>,
    tasks: [JoinHandle<()>; 2],
    /// UID and version of what its watches have brought, by path.
    seen: BTreeMap<String, (String, String)>,
    _stop: watch::Sender<bool>,
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn version_of(object: &Value) -> (String, String) {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    (text("uid"), text("resourceVersion"))
}

fn key_of(path: &str) -> ObjectKey {
    let mut parts = path.rsplit('/');
    let (name, namespace) = (parts.next().unwrap(), parts.nth(1).unwrap());
    if path.contains("/nodepodprobes/") { node_key(name) } else { ObjectKey::new(namespace, name) }
}

impl Manager {
    fn start(cluster: &Known) -> Self {
        let context = {
            let cluster = cluster.clone();
            in_memory::context(move |parts, body| respond(&cluster, parts, body))
        };
        let controller = Arc::new(Controller::new(&context));
        let (stop, stopped) = watch::channel(false);
        let (of_markers, of_nodes) = (controller.clone(), controller.clone());
        let markers = {
            let (context, stopped) = (context.clone(), stopped.clone());
            async move {
                let reconcile = |key: ObjectKey| {
                    let this = of_markers.clone();
                    async move { this.reconcile_marker(&key).await }
                };
                crate::controllers::runner::work(
                    &context,
                    NAME,
                    &of_markers.marker_queue,
                    2,
                    stopped,
                    async {},
                    reconcile,
                )
                .await;
            }
        };
        let nodes = async move {
            let reconcile = |key: ObjectKey| {
                let this = of_nodes.clone();
                async move { this.reconcile_node(&key.name).await }
            };
            crate::controllers::runner::work(&context, NAME, &of_nodes.node_queue, 2, stopped, async {}, reconcile)
                .await;
        };
        let tasks = [tokio::spawn(markers), tokio::spawn(nodes)];
        let mut manager = Self { controller, tasks, seen: BTreeMap::new(), _stop: stop };
        let objects = lock(cluster).server.objects.clone();
        for path in objects.keys() {
            manager.bring(path, &objects);
        }
        manager.controller.begin();
        manager
    }

    /// What the watches have not brought yet.
    fn behind(&self, objects: &BTreeMap<String, Value>) -> Vec<String> {
        let is_watched = |path: &&String| !path.contains("/nodes/");
        let paths: BTreeSet<&String> = objects.keys().chain(self.seen.keys()).filter(is_watched).collect();
        let is_new = |path: &&&String| objects.get(**path).map(version_of) != self.seen.get(**path).cloned();
        let mut behind: Vec<String> = paths.iter().filter(is_new).map(|path| (*path).clone()).collect();
        // What it has made itself, and somebody has removed before the watch brought it.
        let made = self.controller.probes.list();
        let made = made.iter().map(|probes| format!("{OBJECTS}/nodepodprobes/{}", probes.name()));
        behind.extend(made.filter(|path| !objects.contains_key(path) && !self.seen.contains_key(path)));
        behind
    }

    /// A watch brings the newest state of an object.
    fn bring(&mut self, path: &str, objects: &BTreeMap<String, Value>) {
        let this = &self.controller;
        let (key, now) = (key_of(path), objects.get(path));
        // Another object of the same name comes after the news that the first one is gone.
        let is_another = |now: &Value| self.seen.get(path).is_some_and(|(uid, _)| version_of(now).0 != *uid);
        let is_gone = now.is_none_or(is_another);
        if is_gone {
            self.seen.remove(path);
            if path.contains("/podprobemarkers/") {
                this.markers.remove(&key, None).iter().for_each(|old| this.marker_changed(&Change::Deleted(old)));
            } else if path.contains("/nodepodprobes/") {
                this.probes.remove(&key, None).iter().for_each(|old| this.probes_changed(&Change::Deleted(old)));
            } else {
                this.context.pods.remove(&key, None).iter().for_each(|old| this.pod_changed(&Change::Deleted(old)));
            }
            return;
        }
        let Some(now) = now.filter(|_| !path.contains("/nodes/")) else { return };
        self.seen.insert(path.to_owned(), version_of(now));
        if path.contains("/podprobemarkers/") {
            if let (old, Some(new)) = this.markers.upsert(serde_json::from_value(now.clone()).unwrap()) {
                this.marker_changed(&Change::Applied { old: old.as_ref(), new: &new, initial: false });
            }
        } else if path.contains("/nodepodprobes/") {
            if let (old, Some(new)) = this.probes.upsert(serde_json::from_value(now.clone()).unwrap()) {
                this.probes_changed(&Change::Applied { old: old.as_ref(), new: &new, initial: false });
            }
        } else if let (old, Some(new)) = this.context.pods.upsert(serde_json::from_value(now.clone()).unwrap()) {
            this.pod_changed(&Change::Applied { old: old.as_ref(), new: &new, initial: false });
        }
    }
}

struct World {
    cluster: Known,
    manager: Option<Manager>,
    /// Nodes whose daemon does not run.
    down: BTreeSet<&'static str>,
    made: usize,
}

/// What the daemon of the played nodes finds: always the same of one probe of one Pod.
fn result(uid: &str, probe: &str) -> &'static str {
    if (uid.len() + probe.bytes().map(usize::from).sum::<usize>()).is_multiple_of(2) { "Succeeded" } else { "Failed" }
}

fn node_path(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

impl World {
    fn new() -> Self {
        let cluster = Known::default();
        lock(&cluster).server.most = ETCD;
        let mut world = Self { cluster, manager: None, down: BTreeSet::new(), made: 0 };
        NODES.iter().for_each(|name| world.make_node(name));
        world.manager = Some(Manager::start(&world.cluster));
        world
    }

    fn uid(&mut self) -> String {
        self.made += 1;
        format!("uid-{}", self.made)
    }

    fn make_node(&mut self, name: &str) {
        let uid = self.uid();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": uid}});
        lock(&self.cluster).server.store(&node_path(name), node);
    }

    fn probes(marker: &str, random: &mut Random) -> Value {
        let count = 1 + random.below(3);
        let one = |i: usize, random: &mut Random| {
            let size = SIZES[random.below(SIZES.len())];
            let mut probe = large(&format!("{marker}x{i}"), size);
            if random.chance(10) {
                probe["probe"]["timeoutSeconds"] = 600.into();
            }
            probe
        };
        (0..count).map(|i| one(i, random)).collect::<Vec<Value>>().into()
    }

    fn change_marker(&mut self, random: &mut Random) -> String {
        let (namespace, name) = (NAMESPACES[random.below(3)], ["m0", "m1", "m2"][random.below(3)]);
        let path = format!("{OBJECTS}/namespaces/{namespace}/podprobemarkers/{name}");
        let (probes, uid) = (Self::probes(name, random), self.uid());
        let cluster = &mut *lock(&self.cluster);
        let Some(object) = cluster.server.objects.get(&path) else {
            let mut made = marker(name, probes);
            made["metadata"]["namespace"] = namespace.into();
            made["metadata"]["uid"] = uid.into();
            cluster.server.store(&path, made);
            return format!("made {path}");
        };
        if random.chance(60) || !object["metadata"]["deletionTimestamp"].is_null() {
            cluster.server.edit(&path, |object| {
                object["spec"]["probes"] = probes;
                object["metadata"]["generation"] = json!(object["metadata"]["generation"].as_i64().unwrap() + 1);
            });
            cluster.acts.note("marker changed");
            return format!("changed {path}");
        }
        cluster.server.edit(&path, |object| object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
        cluster.server.sweep();
        cluster.acts.note("marker deleted");
        format!("deletes {path}")
    }

    fn change_pod(&mut self, random: &mut Random) -> String {
        let (namespace, name) = (NAMESPACES[random.below(3)], ["p0", "p1", "p2", "p3"][random.below(4)]);
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let uid = self.uid();
        let cluster = &mut *lock(&self.cluster);
        if !cluster.server.objects.contains_key(&path) {
            let mut made = pod();
            made["metadata"]["name"] = name.into();
            made["metadata"]["namespace"] = namespace.into();
            made["metadata"]["uid"] = uid.into();
            made["spec"]["nodeName"] = NODES[random.below(2)].into();
            cluster.server.store(&path, made);
            return format!("made {path}");
        }
        cluster.acts.note("pod changed");
        match random.below(5) {
            0 => cluster.server.edit(&path, |pod| pod["status"]["podIP"] = uid.into()),
            1 => cluster.server.edit(&path, |pod| pod["status"]["phase"] = "Succeeded".into()),
            2 => cluster.server.edit(&path, |pod| pod["metadata"]["labels"]["app"] = "other".into()),
            3 => cluster.server.edit(&path, |pod| pod["metadata"]["labels"]["app"] = "web".into()),
            _ => drop(cluster.server.objects.remove(&path)),
        }
        format!("changed {path}")
    }

    fn change_node(&mut self, random: &mut Random) -> String {
        let name = NODES[random.below(2)];
        if lock(&self.cluster).server.objects.remove(&node_path(name)).is_none() {
            self.make_node(name);
            lock(&self.cluster).acts.note("node back");
            return format!("node {name} is back");
        }
        lock(&self.cluster).acts.note("node gone");
        format!("node {name} is gone")
    }

    /// Somebody else writes what is ours.
    fn meddle(&mut self, random: &mut Random) -> String {
        let name = NODES[random.below(2)];
        let path = format!("{OBJECTS}/nodepodprobes/{name}");
        let cluster = &mut *lock(&self.cluster);
        let server = &mut cluster.server;
        if random.chance(50) {
            if server.objects.remove(&path).is_some() {
                cluster.acts.note("NodePodProbe deleted");
            }
            return format!("somebody deleted the NodePodProbe of {name}");
        }
        let stray = json!({"name": "stray", "namespace": "a", "uid": "stray", "probes": [
            {"name": "m0#stray", "containerName": "main", "probe": {}}]});
        server.edit(&path, |object| match object["spec"]["podProbes"].as_array_mut() {
            Some(list) => list.push(stray),
            None => object["spec"]["podProbes"] = json!([stray]),
        });
        format!("somebody wrote the NodePodProbe of {name}")
    }

    /// Pods and NodePodProbes of nodes that are gone, one after the other, as the garbage collectors do.
    fn collect_garbage(&mut self) -> Option<String> {
        let server = &mut lock(&self.cluster).server;
        let path = server.objects.iter().find_map(|(path, object)| {
            let of = match path.contains("/pods/") {
                true => object["spec"]["nodeName"].as_str()?,
                false if path.contains("/nodepodprobes/") => object["metadata"]["name"].as_str()?,
                false => return None,
            };
            let node = server.objects.get(&node_path(of));
            let owner = object.pointer("/metadata/ownerReferences/0/uid");
            let is_orphan = node.is_none_or(|node| owner.is_some_and(|owner| *owner != node["metadata"]["uid"]));
            is_orphan.then(|| path.clone())
        })?;
        server.objects.remove(&path);
        Some(format!("collected {path}"))
    }

    /// The daemon of a node reports what it found.
    fn report(&mut self) -> Option<String> {
        let server = &mut lock(&self.cluster).server;
        for name in NODES.iter().filter(|name| !self.down.contains(**name)) {
            let path = format!("{OBJECTS}/nodepodprobes/{name}");
            let Some(object) = server.objects.get(&path) else { continue };
            let entries = object["spec"]["podProbes"].as_array().cloned().unwrap_or_default();
            let of_pod = |entry: &Value| {
                let uid = entry["uid"].as_str().unwrap();
                let of_probe = |probe: &Value| {
                    let name = probe["name"].as_str().unwrap();
                    Fixture::state(name, result(uid, name), "said")
                };
                let states: Vec<Value> = list(entry, "/probes").map(of_probe).collect();
                json!({"name": entry["name"], "namespace": entry["namespace"], "uid": uid, "probeStates": states})
            };
            let status = json!({"podProbeStatuses": entries.iter().map(of_pod).collect::<Vec<Value>>()});
            if object["status"] != status && !(entries.is_empty() && object["status"].is_null()) {
                server.edit(&path, |object| object["status"] = status);
                return Some(format!("the daemon of {name} reported its results"));
            }
        }
        None
    }
}

impl Driver for World {
    type Seen = Known;

    async fn disturb(&mut self, random: &mut Random) -> Result<String, String> {
        Ok(match random.below(17) {
            0..5 => self.change_marker(random),
            5..10 => self.change_pod(random),
            10 => self.change_node(random),
            11 | 16 => self.meddle(random),
            12 => {
                lock(&self.cluster).acts.note("manager restarted");
                self.manager = None;
                self.manager = Some(Manager::start(&self.cluster));
                "another manager".into()
            }
            13 => {
                let name = NODES[random.below(2)];
                if !self.down.remove(name) {
                    self.down.insert(name);
                }
                format!("daemons down: {:?}", self.down)
            }
            _ => {
                let cluster = &mut *lock(&self.cluster);
                cluster.faults = if cluster.faults.is_some() { None } else { Some(Random(random.next())) };
                format!("faults: {}", cluster.faults.is_some())
            }
        })
    }

    async fn make_possible(&mut self) -> Result<String, String> {
        self.down.clear();
        lock(&self.cluster).faults = None;
        Ok("everything works".into())
    }

    async fn step(&mut self, random: &mut Random) -> Result<Step, String> {
        // The manager goes on between any two steps.
        for _ in 0..random.below(30) {
            tokio::task::yield_now().await;
        }
        let manager = self.manager.as_mut().ok_or("no manager")?;
        let objects = lock(&self.cluster).server.objects.clone();
        let behind = manager.behind(&objects);
        if let Some(path) = random.one_of(&behind).filter(|_| !random.0.is_multiple_of(4)) {
            manager.bring(path, &objects);
            return Ok(Step::Worked(format!("the watch brought {path}")));
        }
        if let Some(done) = self.report().or_else(|| self.collect_garbage()) {
            return Ok(Step::Worked(done));
        }
        match behind.first() {
            Some(_) => Ok(Step::Worked(String::new())),
            None => Ok(Step::Idle(Some(Duration::from_millis(500)))),
        }
    }

    async fn advance(&mut self, by: Duration) {
        tokio::time::sleep(by).await;
    }

    async fn see(&mut self) -> Result<Known, String> {
        Ok(self.cluster.clone())
    }
}

#[derive(Default)]
struct Rules;

fn list<'v>(object: &'v Value, pointer: &str) -> impl Iterator<Item = &'v Value> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// Its command: the rest of a probe is small.
fn size(probe: &Value) -> usize {
    probe.pointer("/probe/exec/command/2").and_then(Value::as_str).map_or(0, str::len)
}

impl Rules {
    /// Pods that run on nodes that are there, and the PodProbeMarkers that select them.
    fn probed(server: &Server) -> Vec<(&Value, Vec<&Value>)> {
        let mut all = Vec::new();
        for path in server.paths("/pods/") {
            let pod = &server.objects[&path];
            let node = node_path(pod["spec"]["nodeName"].as_str().unwrap());
            if pod["status"]["phase"] != "Running" || !server.objects.contains_key(&node) {
                continue;
            }
            let markers = server.paths("/podprobemarkers/").into_iter().map(|path| &server.objects[&path]);
            let is_web = pod["metadata"]["labels"]["app"] == "web";
            let fits = |marker: &&Value| is_web && marker["metadata"]["namespace"] == pod["metadata"]["namespace"];
            all.push((pod, markers.filter(fits).collect()));
        }
        all
    }

    fn entry<'s>(server: &'s Server, pod: &Value) -> (Option<&'s Value>, Option<&'s Value>) {
        let path = format!("{OBJECTS}/nodepodprobes/{}", pod["spec"]["nodeName"].as_str().unwrap());
        let Some(object) = server.objects.get(&path) else { return (None, None) };
        let of = |pointer: &str| list(object, pointer).find(|entry| entry["uid"] == pod["metadata"]["uid"]);
        (of("/spec/podProbes"), of("/status/podProbeStatuses"))
    }

    /// What is not right of a Pod; PodProbeMarkers of which something is left out.
    fn of_pod(
        server: &Server,
        pod: &Value,
        markers: &[&Value],
        room: bool,
        left_out: &mut BTreeSet<String>,
    ) -> Vec<String> {
        let mut missing = Vec::new();
        let (entry, status) = Self::entry(server, pod);
        let name = format!("{}/{}", pod["metadata"]["namespace"], pod["metadata"]["name"]);
        let mut wanted = json!({"app": pod["metadata"]["labels"]["app"]});
        let mut conditions = BTreeSet::from(["Initialized".to_owned()]);
        for (marker, probe) in markers.iter().flat_map(|m| list(m, "/spec/probes").map(move |probe| (m, probe))) {
            let full = format!("{}#{}", marker["metadata"]["name"].as_str().unwrap(), probe["name"].as_str().unwrap());
            let is_in = entry.is_some_and(|entry| {
                list(entry, "/probes").any(|p| p["name"] == *full && p["probe"] == probe["probe"])
            });
            if is_in {
                let state = status.and_then(|status| list(status, "/probeStates").find(|state| state["name"] == *full));
                let state = state.map(|state| state["state"].clone()).unwrap_or_default();
                wanted[probe["name"].as_str().unwrap()] = if state == "Succeeded" { "yes".into() } else { "no".into() };
                conditions.insert(format!("e/{}", probe["name"].as_str().unwrap()));
            } else {
                left_out.insert(marker["metadata"]["uid"].to_string());
                if room && size(probe) < 64 << 10 {
                    missing.push(format!("{name} is not probed by {full}"));
                }
            }
            if is_in && size(probe) > 64 << 10 {
                missing.push(format!("{name} is probed by {full}, which is too large"));
            }
        }
        if pod["metadata"]["labels"] != wanted {
            missing.push(format!("{name} has the labels {} instead of {wanted}", pod["metadata"]["labels"]));
        }
        let has: BTreeSet<String> =
            list(pod, "/status/conditions").map(|c| c["type"].as_str().unwrap().to_owned()).collect();
        if has != conditions {
            missing.push(format!("{name} has the conditions {has:?} instead of {conditions:?}"));
        }
        let marked_by = pod["metadata"]["annotations"][labels::PROBE_MARKED_BY].as_str().unwrap_or_default();
        let is_left = |by: &&str| !by.is_empty() && !markers.iter().any(|marker| marker["metadata"]["name"] == **by);
        let left: Vec<&str> = marked_by.split(',').filter(is_left).collect();
        if !left.is_empty() {
            missing.push(format!("{name} says that it is marked by {left:?}"));
        }
        missing
    }
}

impl Model for Rules {
    type Seen = Known;

    fn wrongs(&mut self, seen: &Known) -> Vec<String> {
        let is_overfull = lock(seen).is_overfull;
        is_overfull.then(|| "a NodePodProbe was to become too large".to_owned()).into_iter().collect()
    }

    fn missing(&self, seen: &Known) -> Vec<String> {
        let server = &lock(seen).server;
        let probed = Self::probed(server);
        let mut missing = Vec::new();
        // There is room for all that fits into a Pod when all of it is far from every limit.
        let of_pod = |markers: &[&Value]| {
            let probes = markers.iter().flat_map(|marker| list(marker, "/spec/probes"));
            probes.map(size).filter(|size| *size < 64 << 10).sum::<usize>()
        };
        let total: usize = probed.iter().map(|(_, markers)| of_pod(markers)).sum();
        let mut left_out = BTreeSet::new();
        for (pod, markers) in &probed {
            let room = total < 300 << 10 && of_pod(markers) < 50 << 10;
            missing.extend(Self::of_pod(server, pod, markers, room, &mut left_out));
        }
        for path in server.paths("/podprobemarkers/") {
            let marker = &server.objects[&path];
            if !marker["metadata"]["deletionTimestamp"].is_null() {
                missing.push(format!("{path} is still there"));
                continue;
            }
            let pods = probed.iter().filter(|(_, markers)| markers.contains(&marker)).count();
            let (status, generation) = (&marker["status"], &marker["metadata"]["generation"]);
            if status["matchedPods"] != pods || status["observedGeneration"] != *generation {
                missing.push(format!("{path} counts {status}, want {pods} Pods"));
            }
            let is_long = list(marker, "/spec/probes").any(|p| p["probe"]["timeoutSeconds"].as_i64() > Some(60));
            let is_right = !is_long && !left_out.contains(&marker["metadata"]["uid"].to_string());
            if is_right == (status["conditions"][0]["status"] == "False") {
                missing.push(format!("{path} says {}", status["conditions"]));
            }
        }
        for path in server.paths("/nodepodprobes/") {
            let object = &server.objects[&path];
            for entry in list(object, "/spec/podProbes") {
                let of = probed.iter().find(|(pod, _)| pod["metadata"]["uid"] == entry["uid"]);
                let is_of = |probe: &Value, marker: &&Value| {
                    let wanted = marker["metadata"]["name"].as_str().unwrap();
                    probe["name"].as_str().unwrap().split_once('#').is_some_and(|(name, _)| name == wanted)
                };
                let is_known = |probe: &Value| of.is_some_and(|(_, all)| all.iter().any(|marker| is_of(probe, marker)));
                let strays = list(entry, "/probes").filter(|probe| !is_known(probe));
                missing.extend(strays.map(|probe| format!("{path} still has {} of {}", probe["name"], entry["uid"])));
                if of.is_some_and(|(pod, _)| pod["status"]["podIP"] != entry["IP"]) {
                    missing.push(format!("{path} has the old address of {}", entry["uid"]));
                }
            }
        }
        missing
    }
}

#[test]
fn simulation_of_pod_probe_markers() {
    let limits = Limits {
        changes: 24,
        time_between: Duration::from_secs(4),
        patience: Duration::from_secs(600),
        steps: 20_000,
        ..Limits::default()
    };
    let acts = liveness::seeds(40, "simulation_of_pod_probe_markers", |seed| {
        in_paused_time(seed, async {
            let mut world = World::new();
            liveness::run(seed, &limits, &mut world, &mut Rules).await?;
            Ok(std::mem::take(&mut lock(&world.cluster).acts))
        })
    });
    acts.require(&[
        ("refused", 100),
        ("answer lost", 50),
        ("marker changed", 50),
        ("marker deleted", 20),
        ("pod changed", 50),
        ("node gone", 30),
        ("node back", 15),
        ("NodePodProbe deleted", 20),
        ("manager restarted", 50),
    ]);
}
