//! Random histories of a DaemonSet: the real controller, an API server in memory, played nodes with their kubelets, a played
//! hook, users and faults, late watches, and a clock that a seed moves. See [`crate::liveness`].

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::*;
use crate::{
    controllers::{
        fake::{self, strategic},
        tests::played::{self, Kubelets, Living, Look, Passes, mono},
    },
    k8s::time::rfc3339,
    liveness::{self, Acts, Driver, Limits, Model, Random, Step},
    runtime::clock,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strategy {
    Standard,
    InPlace,
    Surge,
}

/// What a user has asked for.
#[derive(Clone, Debug)]
struct Wanted {
    strategy: Strategy,
    /// maxUnavailable, or maxSurge.
    limit: usize,
    strict: bool,
    per_zone: Option<usize>,
    min_ready: i64,
    has_hooks: bool,
    image: &'static str,
    partition: usize,
    paused: bool,
    /// `burstReplicas` is 1.
    one_by_one: bool,
    /// A node for which admission of somebody else refuses Pods.
    refused: Option<String>,
    /// One whose Pods it lets nobody change.
    locked: Option<String>,
}

/// Where [`admit`] reads which node's Pods are refused.
const REFUSED: &str = "/api/v1/namespaces/ns/refusals/node";
/// Where [`admit_change`] reads whose specs stay as they are.
const LOCKED: &str = "/api/v1/namespaces/ns/refusals/spec";

fn admit(server: &mut Server, object: &mut Value) -> Result<(), u16> {
    judge(server, REFUSED, "creations denied", aim_of(object))
}

fn admit_change(server: &mut Server, before: &Value, after: &Value) -> Result<(), u16> {
    let node = before.pointer("/spec/nodeName").filter(|_| before["spec"] != after["spec"]);
    judge(server, LOCKED, "updates in place denied", node)
}

/// Refuses what is about the node that is written there.
fn judge(server: &mut Server, by: &str, act: &'static str, node: Option<&Value>) -> Result<(), u16> {
    if server.objects.get(by).is_none_or(|refused| node != Some(&**refused)) {
        return Ok(());
    }
    server.acts.note(act);
    Err(403)
}

/// The node that a Pod is meant for.
fn aim_of(pod: &Value) -> Option<&Value> {
    pod.pointer("/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values/0")
}

impl Wanted {
    fn new(random: &mut Random) -> Self {
        let strategy = [Strategy::Standard, Strategy::InPlace, Strategy::Surge][random.below(3)];
        Self {
            strategy,
            limit: 1 + random.below(2),
            strict: random.chance(50),
            per_zone: [None, None, Some(1)][random.below(3)],
            min_ready: [0, 0, 5][random.below(3)],
            has_hooks: random.chance(30),
            image: "i:1",
            partition: 0,
            paused: false,
            one_by_one: random.chance(30),
            refused: None,
            locked: None,
        }
    }

    fn object(&self) -> Value {
        let hook = json!({"labelsHandler": {"hold": "yes"}});
        let mut annotations = json!({});
        if self.strict {
            annotations[labels::STRICT_MAX_UNAVAILABLE] = "true".into();
        }
        if let Some(limit) = self.per_zone {
            annotations[labels::MAX_UNAVAILABLE_PER_TOPOLOGY] = format!("zone={limit}").into();
        }
        let (unavailable, surge) = if self.strategy == Strategy::Surge { (0, self.limit) } else { (self.limit, 0) };
        let kind = if self.strategy == Strategy::InPlace { "InPlaceIfPossible" } else { "Standard" };
        json!({"metadata": {"annotations": annotations}, "spec": {
            "minReadySeconds": self.min_ready,
            "burstReplicas": if self.one_by_one { 1 } else { 250 },
            "lifecycle": if self.has_hooks { json!({"preDelete": hook, "inPlaceUpdate": hook}) } else { Value::Null },
            "updateStrategy": {"rollingUpdate": {"rollingUpdateType": kind, "maxUnavailable": unavailable,
                "maxSurge": surge, "partition": self.partition, "paused": self.paused}},
            "template": {"metadata": {"labels": {"app": "agent", "hold": "yes"}},
                "spec": {"containers": [{"name": "main", "image": self.image}]}}}})
    }
}

/// A node that is played.
#[derive(Clone, Debug)]
struct Machine {
    uid: String,
    version: u64,
    zone: String,
    taint: Option<&'static str>,
    ready: bool,
    /// While it is not Ready: its kubelet says so itself.
    reports: bool,
    created: Timestamp,
    since: Timestamp,
}

impl Machine {
    fn object(&self, name: &str) -> Value {
        let taint = |key: &str, effect: &str| json!({"key": key, "effect": effect});
        let mut taints: Vec<Value> = self.taint.iter().map(|effect| taint("dedicated", effect)).collect();
        let (status, key) = match (self.ready, self.reports) {
            (true, _) => ("True", None),
            (false, true) => ("False", Some("node.kubernetes.io/not-ready")),
            (false, false) => ("Unknown", Some("node.kubernetes.io/unreachable")),
        };
        // As the node controller writes them.
        let of_state = |key: &str| ["NoSchedule", "NoExecute"].map(|effect| taint(key, effect));
        taints.extend(key.into_iter().flat_map(of_state));
        json!({"metadata": {"name": name, "uid": self.uid, "resourceVersion": self.version.to_string(),
            "labels": {"zone": self.zone}, "creationTimestamp": rfc3339(self.created)}, "spec": {"taints": taints},
            "status": {"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": rfc3339(self.since)}]}})
    }

    /// Whether it is one of the set's nodes.
    fn wants(&self) -> bool {
        self.taint.is_none()
    }

    /// Whether it gets a Pod if it has none.
    fn gets(&self) -> bool {
        self.wants() && self.ready
    }
}

/// A Pod in the plainest terms.
#[derive(Clone, Debug)]
struct Member {
    name: String,
    node: String,
    image: String,
    state: String,
    ready_since: Option<Timestamp>,
    is_deleting: bool,
    has_failed: bool,
    is_marked: bool,
}

impl Member {
    fn of(pod: &PodView) -> Self {
        let is_open = |type_: &str| pod.condition(type_).is_none_or(|condition| condition.status == "True");
        let is_ready =
            pod.phase == "Running" && pod.condition_is_true("Ready") && is_open(labels::CONDITION_INPLACE_UPDATE_READY);
        let state = pod.labels.get(labels::LIFECYCLE_STATE).unwrap_or_default();
        let node = pod.node_meant();
        Self {
            name: pod.name().to_owned(),
            node: node.to_owned(),
            image: pod.spec.containers.first().map(|container| container.image.to_string()).unwrap_or_default(),
            state: state.to_owned(),
            ready_since: pod.ready_since.filter(|_| is_ready && ["", "Normal"].contains(&state)),
            is_deleting: pod.is_deleting(),
            has_failed: pod.is_finished(),
            is_marked: pod.labels.get(labels::SPECIFIED_DELETE).is_some(),
        }
    }

    fn is_live(&self) -> bool {
        !self.is_deleting && !self.has_failed
    }

    /// Serves, for so many seconds at least.
    fn is_up(&self, now: Timestamp, seconds: i64) -> bool {
        let is_long_enough = |since: Timestamp| since + SignedDuration::from_secs(seconds) <= now;
        self.is_live() && self.ready_since.is_some_and(is_long_enough)
    }
}

/// A pass of the controller: what it knew, and what it wrote.
#[derive(Clone)]
struct PassSeen {
    knew: Vec<Member>,
    nodes: BTreeMap<String, Machine>,
    /// Pods that were there when it began.
    there: BTreeSet<String>,
    writes: Vec<(Method, String, Value)>,
}

/// What the model judges.
struct Now {
    at: Timestamp,
    wanted: Wanted,
    generation: i64,
    status: Value,
    nodes: BTreeMap<String, Machine>,
    pods: Vec<Member>,
    pass: Option<PassSeen>,
}

struct Fleet {
    world: World,
    wanted: Wanted,
    /// Nodes as they are, and as the controller has been told.
    nodes: BTreeMap<String, Machine>,
    told: BTreeMap<String, Machine>,
    joined: u64,
    kubelets: Kubelets,
    passes: Passes,
    pass: Option<PassSeen>,
    acts: Acts,
}

impl Fleet {
    fn new(random: &mut Random) -> Self {
        let world = World::of(Arc::new(Mutex::new(Server::new(admit))));
        {
            let mut server = lock(&world.server);
            (server.is_graceful, server.admit_change) = (true, admit_change);
        }
        let mut fleet = Self {
            world,
            wanted: Wanted::new(random),
            nodes: BTreeMap::new(),
            told: BTreeMap::new(),
            joined: 0,
            kubelets: Kubelets::default(),
            passes: Passes::default(),
            pass: None,
            acts: Acts::default(),
        };
        (0..5).for_each(|_| drop(fleet.join()));
        while fleet.tell().is_some() {}
        fleet.put();
        fleet
    }

    fn wake(&mut self) {
        self.passes.wake();
    }

    /// The user applies what is wanted; the watch of sets is at once.
    fn put(&mut self) {
        let mut server = lock(&self.world.server);
        let mut set = server.objects.get(SET).map_or_else(
            || {
                json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "DaemonSet",
                    "metadata": {"name": "agent", "namespace": "ns", "uid": "set", "generation": 0},
                    "spec": {"selector": {"matchLabels": {"app": "agent"}}}})
            },
            |set| Value::clone(set),
        );
        let before = set["spec"].clone();
        json_patch::merge(&mut set, &self.wanted.object());
        if set["spec"] != before {
            set["metadata"]["generation"] = (set["metadata"]["generation"].as_i64().unwrap() + 1).into();
        }
        let set = server.put(SET, set);
        self.world.controller.sets.upsert(serde_json::from_value(set).unwrap());
        drop(server);
        self.wake();
    }

    fn join(&mut self) -> String {
        self.joined += 1;
        let name = format!("n{}", self.joined);
        let zone = format!("z{}", self.joined % 2);
        let since = clock::now().wall;
        let uid = format!("{name}-{}", self.joined);
        // It has been Ready for some time: what its Pods do says something about their template.
        let created = since - SignedDuration::from_hours(1);
        let machine = Machine { uid, version: 1, zone, taint: None, ready: true, reports: true, created, since };
        self.nodes.insert(name.clone(), machine);
        name
    }

    /// Changes a node.
    fn machine(&mut self, name: &str, change: impl FnOnce(&mut Machine)) {
        if let Some(machine) = self.nodes.get_mut(name) {
            let was = machine.ready;
            change(machine);
            machine.version += 1;
            if machine.ready != was {
                machine.since = clock::now().wall;
            }
        }
    }

    fn pods(&self) -> Vec<(String, Value)> {
        let pods = lock(&self.world.server).of(PODS);
        pods.into_iter().map(|(path, pod)| (path.trim_start_matches(PODS).to_owned(), Value::clone(&pod))).collect()
    }

    /// Writes one Pod, as kubelet, a user or a fault does. The watch will tell of it. False: remove it.
    fn write_pod(&self, name: &str, change: impl FnOnce(&mut Value) -> bool) {
        let path = format!("{PODS}{name}");
        let mut server = lock(&self.world.server);
        let Some(mut pod) = server.objects.get(&path).map(|pod| Value::clone(pod)) else { return };
        if change(&mut pod) {
            server.put(&path, pod);
        } else {
            server.remove(&path);
        }
    }

    /// The scheduler, the node controller, the kubelet and the hook: what one of them has to do about a Pod now; else when.
    fn play(&mut self, name: &str, pod: &Value, random: &mut Random) -> Result<String, Option<Duration>> {
        let node =
            pod["spec"]["nodeName"].as_str().or(aim_of(pod).and_then(Value::as_str)).unwrap_or_default().to_owned();
        if let Some(said) = self.hook(name, pod) {
            return Ok(said);
        }
        let Some(machine) = self.nodes.get(&node).cloned() else {
            // One that was bound goes with its node; the other one is the controller's to delete.
            if pod["spec"]["nodeName"].is_null() {
                return Err(None);
            }
            self.write_pod(name, |_| false);
            return Ok(format!("{name} goes with its node"));
        };
        if pod["spec"]["nodeName"].is_null() {
            if !machine.gets() {
                return Err(None);
            }
            self.write_pod(name, |pod| {
                pod["spec"]["nodeName"] = node.clone().into();
                pod["status"]["phase"] = "Pending".into();
                true
            });
            return Ok(format!("{name} is placed on {node}"));
        }
        if !machine.ready {
            let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            if !conditions.clone().any(|c| c["type"] == "Ready" && c["status"] == "True") {
                return Err(None);
            }
            self.set_ready(name, false);
            return Ok(format!("{name} is not Ready, as {node} is not"));
        }
        let living = match self.kubelets.look(pod, random.duration(Duration::from_secs(3))) {
            Look::Waits(after) => return Err(after),
            Look::Ended => {
                self.write_pod(name, |_| false);
                return Ok(format!("{name} has gone"));
            }
            Look::Lives(living) => living,
        };
        if !living.has(labels::CONDITION_KRUISE_POD_READY) {
            // The manager's controller of that condition sees to Pods that did not get it with their first one.
            let change = json!({"conditions": [{"type": labels::CONDITION_KRUISE_POD_READY, "status": "True"}]});
            self.write_pod(name, |pod| {
                strategic(&mut pod["status"], &change);
                true
            });
            return Ok(format!("{name} gets KruisePodReady"));
        }
        let was = living.is_true("Ready");
        let Living { image, runs, ready, statuses, starts_in, .. } = living;
        if pod["status"]["containerStatuses"] == statuses && was == ready {
            return Err(starts_in);
        }
        self.write_pod(name, |pod| {
            pod["status"]["containerStatuses"] = statuses;
            if runs {
                pod["status"]["phase"] = "Running".into();
            }
            true
        });
        if was != ready {
            self.set_ready(name, ready);
        }
        Ok(format!("kubelet: {name} runs {image}: {runs}, ready: {ready}"))
    }

    fn set_ready(&self, name: &str, ready: bool) {
        let (status, at) = (if ready { "True" } else { "False" }, rfc3339(clock::now().wall));
        let change = json!({"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": at}]});
        self.write_pod(name, |pod| {
            strategic(&mut pod["status"], &change);
            true
        });
    }

    /// Lets go of a Pod that waits for the hook, and takes hold of it again when its update is done.
    fn hook(&mut self, name: &str, pod: &Value) -> Option<String> {
        let (state, holds) = (&pod["metadata"]["labels"][labels::LIFECYCLE_STATE], &pod["metadata"]["labels"]["hold"]);
        let lets_go = state == "PreparingDelete" || state == "PreparingUpdate";
        let hold = match (lets_go, holds == "yes") {
            (true, true) => Value::Null,
            (false, false) if state == "Updated" || state == "Normal" => "yes".into(),
            _ => return None,
        };
        self.acts.note("hooks");
        self.write_pod(name, |pod| {
            json_patch::merge(&mut pod["metadata"]["labels"], &json!({ "hold": hold }));
            true
        });
        Some(format!("the hook of {name} in {state}: {hold}"))
    }

    /// The watches tell the controller of one node or Pod that has changed.
    fn tell(&mut self) -> Option<String> {
        let context = &self.world.controller.context;
        let changed = |(name, machine): &(&String, &Machine)| {
            self.told.get(*name).is_none_or(|told| (&told.uid, told.version) != (&machine.uid, machine.version))
        };
        if let Some((name, machine)) = self.nodes.iter().find(changed).map(|(name, m)| (name.clone(), m.clone())) {
            context.nodes.store().upsert(serde_json::from_value(machine.object(&name)).unwrap());
            self.told.insert(name.clone(), machine);
            self.wake();
            return Some(format!("watch: node {name}"));
        }
        if let Some(name) = self.told.keys().find(|name| !self.nodes.contains_key(*name)).cloned() {
            context.nodes.store().remove(&ObjectKey::new("", &name), None);
            self.told.remove(&name);
            self.wake();
            return Some(format!("watch: node {name} has gone"));
        }
        let there: BTreeMap<String, Value> = self.pods().into_iter().collect();
        for known in context.pods.list() {
            if there.get(known.name()).is_none_or(|pod| pod["metadata"]["uid"] != known.uid()) {
                let (key, controller) = (ObjectKey::of(known.as_ref()), &self.world.controller);
                context.pods.see_gone(&key, Some(known.uid()), |change| controller.pod_changed(&change));
                let said = format!("watch: {} has gone", known.name());
                self.wake();
                return Some(said);
            }
        }
        for (name, pod) in there {
            let known = context.pods.get(&ObjectKey::new("ns", &name));
            let version = pod["metadata"]["resourceVersion"].as_str().map(str::to_owned);
            if known.is_none_or(|known| known.resource_version().map(str::to_owned) != version) {
                context.pods.upsert(serde_json::from_value(pod).unwrap());
                self.wake();
                return Some(format!("watch: {name}"));
            }
        }
        None
    }

    async fn reconcile(&mut self) -> Result<String, String> {
        let knew = self.world.controller.context.pods.list().iter().map(|pod| Member::of(pod)).collect();
        let there = self.pods().into_iter().map(|(name, _)| name).collect();
        lock(&self.world.writes).clear();
        let next = self.world.controller.reconcile(&ObjectKey::new("ns", "agent")).await;
        let writes = std::mem::take(&mut *lock(&self.world.writes));
        self.passes.note(&next)?;
        let told: Vec<String> = writes
            .iter()
            .filter(|(_, path, _)| !path.ends_with("/daemonsets/agent/status"))
            .map(|(method, path, _)| format!("{method} {}", path.rsplit_once("/ns/").map_or(&**path, |(_, p)| p)))
            .collect();
        self.pass = Some(PassSeen { knew, nodes: self.told.clone(), there, writes });
        let next = next.map_err(|error| error.to_string());
        Ok(format!("pass: {next:?} {}", told.join("; ")))
    }

    /// The manager starts anew: it has forgotten everything, and has read everything.
    fn restart(&mut self) {
        let world = World::of(self.world.server.clone());
        let set = Value::clone(&lock(&self.world.server).objects[SET]);
        world.controller.sets.upsert(serde_json::from_value(set).unwrap());
        self.world = world;
        self.told.clear();
        while self.tell().is_some() {}
        self.wake();
    }

    fn disturb_pod(&mut self, what: usize, random: &mut Random) -> String {
        let names: Vec<String> = self.pods().into_iter().map(|(name, _)| name).collect();
        let Some(name) = random.one_of(&names).cloned() else { return "nothing".into() };
        self.write_pod(&name, |pod| played::harm(what, pod));
        let harm = played::HARMS[what.min(3)];
        self.acts.note(harm);
        format!("{name} {harm}")
    }

    fn disturb_node(&mut self, what: usize, random: &mut Random) -> String {
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        let Some(name) = random.one_of(&names).cloned().filter(|_| what > 0) else {
            self.acts.note("nodes that join");
            return format!("{} joins", self.join());
        };
        match what {
            1 if names.len() > 2 => {
                self.acts.note("nodes that leave");
                self.nodes.remove(&name);
                format!("{name} leaves")
            }
            2 => {
                self.acts.note("taints");
                let taint = [None, None, Some("NoSchedule"), Some("NoExecute")][random.below(4)];
                self.machine(&name, |machine| machine.taint = taint);
                format!("{name} has taint {taint:?}")
            }
            _ => {
                self.acts.note("nodes Ready or not");
                let reports = random.chance(50);
                self.machine(&name, |machine| (machine.ready, machine.reports) = (!machine.ready, reports));
                format!("{name} is Ready, or not: {:?}", self.nodes[&name].ready)
            }
        }
    }

    /// Pods for this node are refused from now on; None: for no node.
    fn refuse(&mut self, node: Option<String>) -> String {
        let mut server = lock(&self.world.server);
        match &node {
            Some(name) => drop(server.objects.insert(REFUSED.into(), Arc::new(name.as_str().into()))),
            None => drop(server.objects.remove(REFUSED)),
        }
        self.wanted.refused = node;
        format!("Pods for {:?} are refused", self.wanted.refused)
    }

    /// Pods on this node keep the spec that they have from now on; None: those of no node.
    fn freeze(&mut self, node: Option<String>) -> String {
        let mut server = lock(&self.world.server);
        match &node {
            Some(name) => drop(server.objects.insert(LOCKED.into(), Arc::new(name.as_str().into()))),
            None => drop(server.objects.remove(LOCKED)),
        }
        self.wanted.locked = node;
        format!("specs of Pods on {:?} cannot be changed", self.wanted.locked)
    }

    fn fault(&mut self, random: &mut Random) -> String {
        if random.chance(40) {
            let names: Vec<String> = self.nodes.keys().cloned().collect();
            let node = random.one_of(&names).cloned().filter(|_| random.chance(70));
            return if random.chance(50) { self.refuse(node) } else { self.freeze(node) };
        }
        let mut server = lock(&self.world.server);
        if random.chance(50) {
            return server.fail(random);
        }
        let code = [409, 422, 429, 500][random.below(4)];
        server.faults.push_back(Fault::Error(code));
        format!("the next write is answered {code}")
    }
}

impl Driver for Fleet {
    type Seen = Now;

    async fn disturb(&mut self, random: &mut Random) -> Result<String, String> {
        let wanted = &mut self.wanted;
        let said = match random.below(20) {
            0..=3 => {
                self.acts.note("images");
                wanted.image = ["i:1", "i:2", "i:3", "bad:1", "bad:2"][random.below(5)];
                format!("image {}", wanted.image)
            }
            4 => {
                self.acts.note("partitions");
                wanted.partition = random.below(4);
                format!("partition {}", wanted.partition)
            }
            5 => {
                self.acts.note("pauses");
                wanted.paused = !wanted.paused;
                format!("paused {}", wanted.paused)
            }
            6 => {
                self.acts.note("limits");
                wanted.limit = 1 + random.below(2);
                format!("limit {}", wanted.limit)
            }
            7 | 8 => {
                self.acts.note("managers that start anew");
                self.restart();
                "the manager starts anew".into()
            }
            9..=11 => self.fault(random),
            what @ 12..=15 => self.disturb_node(what - 12, random),
            what => self.disturb_pod(what - 16, random),
        };
        self.put();
        Ok(said)
    }

    async fn make_possible(&mut self) -> Result<String, String> {
        lock(&self.world.server).faults.clear();
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        names.iter().for_each(|name| self.machine(name, |machine| machine.ready = true));
        // While a Pod is refused for ever an update takes nobody out of service: it may use up the limit by itself.
        let is_refused = self.wanted.refused.as_ref().is_some_and(|name| self.nodes.contains_key(name));
        if !is_refused {
            self.refuse(None);
        }
        self.freeze(None);
        self.wanted.paused = is_refused;
        for (name, _) in self.pods().into_iter().filter(|_| is_refused) {
            self.write_pod(&name, |pod| {
                pod["metadata"]["labels"].as_object_mut().unwrap().remove(labels::SPECIFIED_DELETE);
                true
            });
        }
        self.wanted.partition = 0;
        if self.wanted.image.starts_with("bad") {
            self.wanted.image = "i:4";
        }
        self.put();
        Ok(format!("{:?}", self.wanted))
    }

    async fn step(&mut self, random: &mut Random) -> Result<Step, String> {
        self.pass = None;
        let mut next: Option<Duration> = None;
        let mut later = |after: Option<Duration>| next = [next, after].into_iter().flatten().min();
        // Who comes first is for the seed to say.
        let first = random.below(3);
        for turn in 0..3 {
            match (first + turn) % 3 {
                0 => {
                    if let Some(said) = self.tell() {
                        return Ok(Step::Worked(said));
                    }
                }
                1 => match self.passes.due {
                    Some(due) if due <= mono() => return Ok(Step::Worked(self.reconcile().await?)),
                    due => later(due.map(|due| due - mono())),
                },
                _ => {
                    for (name, pod) in self.pods() {
                        match self.play(&name, &pod, random) {
                            Ok(said) => return Ok(Step::Worked(said)),
                            Err(after) => later(after),
                        }
                    }
                }
            }
        }
        Ok(Step::Idle(next))
    }

    async fn advance(&mut self, by: Duration) {
        tokio::time::advance(by).await;
    }

    async fn see(&mut self) -> Result<Now, String> {
        let pods = self.pods().into_iter().map(|(_, pod)| Member::of(&serde_json::from_value(pod).unwrap())).collect();
        let set = Value::clone(&lock(&self.world.server).objects[SET]);
        Ok(Now {
            at: clock::now().wall,
            wanted: self.wanted.clone(),
            generation: set["metadata"]["generation"].as_i64().unwrap_or_default(),
            status: set["status"].clone(),
            nodes: self.nodes.clone(),
            pods,
            pass: self.pass.take(),
        })
    }
}

#[derive(Default)]
struct Promises {
    acts: Acts,
    /// Nodes whose Pod was replaced or updated for this image, until they have one that serves.
    replaced: BTreeSet<String>,
    image: &'static str,
}

/// What one pass did to Pods, by name.
#[derive(Default)]
struct Deeds {
    /// Nodes for which Pods were asked for, and those Pods.
    created: Vec<(String, String)>,
    deleted: BTreeSet<String>,
    /// Taken out of service for an update in place.
    closed: BTreeSet<String>,
    /// Changed otherwise than in their status.
    changed: BTreeSet<String>,
}

impl Deeds {
    fn of(pass: &PassSeen) -> Self {
        let mut deeds = Self::default();
        for (method, path, body) in &pass.writes {
            if *method == Method::POST && path.ends_with("/pods") {
                let pod: PodView = serde_json::from_value(body.clone()).unwrap();
                deeds.created.push((pod.node_meant().to_owned(), pod.name().to_owned()));
            }
            let Some(name) = path.strip_prefix(PODS).map(|path| path.trim_end_matches("/status").to_owned()) else {
                continue;
            };
            let conditions = body["status"]["conditions"].as_array().into_iter().flatten();
            let mut gates = conditions.filter(|c| c["type"] == labels::CONDITION_INPLACE_UPDATE_READY);
            if *method == Method::PATCH && !path.ends_with("/status") {
                deeds.changed.insert(name.clone());
            }
            if *method == Method::DELETE {
                deeds.deleted.insert(name);
            } else if gates.any(|gate| gate["status"] == "False") {
                deeds.closed.insert(name);
            }
        }
        deeds
    }
}

impl Promises {
    /// What one pass may not do, by what it knew.
    fn judge(&mut self, now: &Now, pass: &PassSeen) -> Vec<String> {
        let mut wrongs = Vec::new();
        let (wanted, deeds) = (&now.wanted, Deeds::of(pass));
        self.acts.add("created", deeds.created.len() as u64);
        self.acts.add("deleted", deeds.deleted.len() as u64);
        self.acts.add("updated in place", deeds.closed.len() as u64);
        let has_surge = wanted.strategy == Strategy::Surge;
        let on = |node: &str| pass.knew.iter().filter(|pod| pod.node == node).collect::<Vec<_>>();
        let is_up = |pod: &Member| pod.is_up(now.at, wanted.min_ready);
        for (node, _) in &deeds.created {
            let is_there = |pod: &&Member| pass.there.contains(&pod.name);
            if !pass.nodes.get(node).is_some_and(Machine::gets) {
                wrongs.push(format!("a Pod is made for {node}, which is to have none"));
            }
            let stays = |pod: &&Member| pod.is_live() && !deeds.deleted.contains(&pod.name);
            let live = on(node).into_iter().filter(is_there).filter(stays).count();
            if live > usize::from(has_surge) || !has_surge && on(node).iter().any(is_there) {
                wrongs.push(format!("a Pod is made for {node}, where {live} are"));
            }
        }
        // A write that was refused takes nobody down.
        let stays = |name: &String| now.pods.iter().any(|pod| pod.name == *name && is_up(pod));
        let taken: Vec<&Member> = pass
            .knew
            .iter()
            .filter(|pod| deeds.deleted.contains(&pod.name) || deeds.closed.contains(&pod.name))
            .filter(|pod| !stays(&pod.name) && pass.nodes.get(&pod.node).is_some_and(Machine::wants))
            .collect();
        for pod in taken.iter().filter(|pod| pod.is_live() && !pod.is_marked) {
            let is_alone = on(&pod.node).iter().filter(|pod| pod.is_live()).count() == 1;
            let is_told = pod.state == "PreparingDelete" || pod.state == "PreparingUpdate";
            if pod.image == wanted.image && is_alone && !is_told {
                wrongs.push(format!("{pod:?} has the right template, and is taken"));
            }
            if wanted.paused && is_alone && !is_told {
                wrongs.push(format!("{pod:?} is taken while the update is paused"));
            }
        }
        match has_surge {
            true => wrongs.extend(surge_wrongs(now, pass, &deeds, &taken)),
            false => {
                wrongs.extend(room_wrongs(now, pass, &taken));
                wrongs.extend(self.replaced_wrongs(now, pass, &deeds));
            }
        }
        wrongs
    }

    /// Forgets nodes that are gone or are to have no Pod, those that have one that serves, and all for another image.
    fn forget(&mut self, now: &Now, pods: &[Member]) {
        let wanted = &now.wanted;
        if std::mem::replace(&mut self.image, wanted.image) != wanted.image {
            self.replaced.clear();
        }
        let serves = |name: &str| pods.iter().any(|pod| pod.node == name && pod.is_up(now.at, wanted.min_ready));
        self.replaced.retain(|name| now.nodes.get(name).is_some_and(Machine::wants) && !serves(name));
    }

    /// With limits of ours: nodes whose Pod was replaced or updated, and which have none that serves since then, are no more
    /// than that, whether they are Ready or not.
    fn replaced_wrongs(&mut self, now: &Now, pass: &PassSeen, deeds: &Deeds) -> Vec<String> {
        let wanted = &now.wanted;
        // What it does not know yet it cannot count.
        self.forget(now, &pass.knew);
        let is_as_before = |pod: &&Member| pod.is_live() && pod.image != wanted.image;
        let unknown: BTreeSet<&str> = pass.knew.iter().filter(is_as_before).map(|pod| pod.node.as_str()).collect();
        self.replaced.retain(|name| !unknown.contains(name.as_str()));
        let after = |pod: &Member| now.pods.iter().find(|after| after.name == pod.name);
        let is_replaced = |pod: &Member| {
            let is_gone = || after(pod).is_none_or(|after| after.is_deleting);
            let is_changed = || pod.image != wanted.image && after(pod).is_some_and(|pod| pod.image == wanted.image);
            deeds.deleted.contains(&pod.name) && is_gone() || deeds.changed.contains(&pod.name) && is_changed()
        };
        let is_alone = |pod: &Member| pass.knew.iter().filter(|p| p.node == pod.node && p.is_live()).count() == 1;
        let is_ready = |node: &str| [&pass.nodes, &now.nodes].iter().all(|n| n.get(node).is_some_and(Machine::gets));
        let is_up = |pod: &Member| pod.is_up(now.at, wanted.min_ready);
        let replaced = pass
            .knew
            .iter()
            .filter(|pod| pod.is_live() && is_alone(pod) && is_ready(&pod.node) && is_replaced(pod))
            // One that is on its way already takes no other place.
            .filter(|pod| pod.image != wanted.image || is_up(pod));
        // That of a Pod that waited for a hook was taken when it began to.
        let (told, begun): (Vec<&Member>, Vec<&Member>) =
            replaced.partition(|pod| pod.state == "PreparingDelete" || pod.state == "PreparingUpdate");
        self.replaced.extend(told.into_iter().map(|pod| pod.node.clone()));
        let begun: BTreeSet<String> = begun.into_iter().map(|pod| pod.node.clone()).collect();
        let is_new = !begun.is_subset(&self.replaced);
        self.acts.add("replaced within strict limits", u64::from(is_new && wanted.strict));
        self.replaced.extend(begun.iter().cloned());
        let mut wrongs = Vec::new();
        if is_new && wanted.strict && self.replaced.len() > wanted.limit {
            wrongs.push(format!("{:?} are without a Pod since theirs were replaced", self.replaced));
        }
        for zone in ["z0", "z1"] {
            let is_in = |name: &&String| now.nodes.get(*name).is_some_and(|machine| machine.zone == zone);
            let of_zone = self.replaced.iter().filter(is_in).count();
            if wanted.per_zone.is_some_and(|limit| of_zone > limit) && begun.iter().any(|name| is_in(&name)) {
                wrongs.push(format!("{of_zone} of {zone} are without a Pod since theirs were replaced"));
            }
        }
        wrongs
    }
}

/// With a surge a Pod that serves goes only beside one that does, and no more nodes than maxSurge get a second one at a time.
fn surge_wrongs(now: &Now, pass: &PassSeen, deeds: &Deeds, taken: &[&Member]) -> Vec<String> {
    let mut wrongs = Vec::new();
    let is_up = |pod: &Member| pod.is_up(now.at, now.wanted.min_ready);
    for pod in taken.iter().filter(|pod| is_up(pod)) {
        if !pass.knew.iter().any(|other| other.node == pod.node && other.name != pod.name && is_up(other)) {
            wrongs.push(format!("{} serves, and no other Pod on {} does", pod.name, pod.node));
        }
    }
    // What is down already takes no room, as in the built-in DaemonSet; and what was refused is not there.
    let is_there = |name: &String| now.pods.iter().any(|pod| pod.name == *name);
    let was_up = |node: &String| pass.knew.iter().any(|pod| pod.node == *node && is_up(pod));
    let begun = deeds.created.iter().filter(|(node, name)| is_there(name) && was_up(node)).count();
    if begun > now.wanted.limit {
        wrongs.push(format!("{begun} nodes get a second Pod, and {} may", now.wanted.limit));
    }
    wrongs
}

/// No more nodes are without an available Pod than maxUnavailable, when an available one is taken; nor in one zone.
fn room_wrongs(now: &Now, pass: &PassSeen, taken: &[&Member]) -> Vec<String> {
    let wanted = &now.wanted;
    let is_up = |pod: &Member| pod.is_up(now.at, wanted.min_ready);
    let machine = |node: &str| pass.nodes.get(node);
    let up_on = |node: &str| pass.knew.iter().any(|pod| pod.node == node && is_up(pod));
    // What is down on an old template counts only with limits of ours; where the node is to blame it may count or not.
    let is_down = |(name, machine): &(&String, &Machine), zone: Option<&str>, with_old: bool| {
        let live = pass.knew.iter().find(|pod| pod.node == **name && pod.is_live());
        let is_old = live.is_some_and(|pod| pod.image != wanted.image || pod.is_marked);
        let counts = machine.gets() && (with_old || !is_old);
        counts && !up_on(name) && zone.is_none_or(|zone| machine.zone == zone)
    };
    let lost = |zone: Option<&str>, with_old| pass.nodes.iter().filter(|node| is_down(node, zone, with_old)).count();
    let taken: Vec<&&Member> = taken.iter().filter(|pod| is_up(pod)).collect();
    let mut wrongs = Vec::new();
    // A limit for each zone says nothing of what is down in all.
    let down = lost(None, wanted.strict);
    if !taken.is_empty() && taken.len() + down > wanted.limit {
        wrongs.push(format!("{taken:?} are taken while {down} are down, and {} may be", wanted.limit));
    }
    for zone in ["z0", "z1"] {
        let of_zone = taken.iter().filter(|pod| machine(&pod.node).is_some_and(|machine| machine.zone == zone)).count();
        if let Some(limit) = wanted.per_zone.filter(|_| of_zone > 0)
            && of_zone + lost(Some(zone), true) > limit
        {
            wrongs.push(format!("{of_zone} of {zone} are taken while {} are down", lost(Some(zone), true)));
        }
    }
    wrongs
}

impl Model for Promises {
    type Seen = Now;

    fn wrongs(&mut self, now: &Now) -> Vec<String> {
        self.forget(now, &now.pods);
        let mut wrongs = now.pass.as_ref().map(|pass| self.judge(now, pass)).unwrap_or_default();
        let most = if now.wanted.strategy == Strategy::Surge { 2 } else { 1 };
        for name in now.nodes.keys() {
            let live: Vec<&Member> = now.pods.iter().filter(|pod| pod.node == *name && pod.is_live()).collect();
            if live.len() > most {
                wrongs.push(format!("on {name} are {live:?}"));
            }
        }
        wrongs
    }

    fn missing(&self, now: &Now) -> Vec<String> {
        if let Some(refused) = &now.wanted.refused {
            return missing_beside(now, refused);
        }
        let mut missing = Vec::new();
        let mut ask = |is_so: bool, what: String| {
            if !is_so {
                missing.push(what);
            }
        };
        for (name, machine) in &now.nodes {
            let pods: Vec<&Member> = now.pods.iter().filter(|pod| pod.node == *name).collect();
            let is_right = |pod: &Member| {
                pod.is_up(now.at, now.wanted.min_ready) && pod.image == now.wanted.image && !pod.is_marked
            };
            match machine.taint {
                None => ask(pods.len() == 1 && is_right(pods[0]), format!("{name} has {pods:?}")),
                Some("NoExecute") => ask(pods.is_empty(), format!("{name} is to have none, and has {pods:?}")),
                Some(_) => ask(pods.len() <= 1, format!("{name} has {pods:?}")),
            }
        }
        let strays: Vec<&Member> = now.pods.iter().filter(|pod| !now.nodes.contains_key(&pod.node)).collect();
        ask(strays.is_empty(), format!("Pods of no node: {strays:?}"));
        let wanted = now.nodes.values().filter(|machine| machine.wants()).count();
        for field in ["desiredNumberScheduled", "currentNumberScheduled", "numberReady", "numberAvailable"] {
            ask(now.status[field] == wanted, format!("status.{field} is {}", now.status[field]));
        }
        ask(now.status["updatedNumberScheduled"] == wanted, "status.updatedNumberScheduled".into());
        ask(now.status["numberUnavailable"] == 0, "status.numberUnavailable".into());
        ask(now.status["observedGeneration"] == now.generation, "the status is about an older spec".into());
        let conditions = now.status["conditions"].as_array().into_iter().flatten();
        let is_ready = conditions.clone().any(|c| c["type"] == "Ready" && c["status"] == "True");
        // A mark waits for a node that takes no new Pods, and the set says so.
        let repels = |name: &String| now.nodes.get(name).is_some_and(|machine| machine.taint == Some("NoSchedule"));
        let waits = now.pods.iter().any(|pod| pod.is_marked && pod.is_live() && repels(&pod.node));
        ask(is_ready || waits, format!("Ready: {:?}", conditions.collect::<Vec<_>>()));
        missing
    }
}

/// What is missing while Pods for one node are refused for ever: every other one has its Pod.
fn missing_beside(now: &Now, refused: &str) -> Vec<String> {
    let stays = |pod: &&Member| pod.is_live();
    let others = now.nodes.iter().filter(|(name, machine)| machine.wants() && name.as_str() != refused);
    let has_none = others.filter(|(name, _)| !now.pods.iter().filter(stays).any(|pod| pod.node == **name));
    let mut missing: Vec<String> = has_none.map(|(name, _)| format!("{name} has no Pod")).collect();
    if now.status["observedGeneration"] != now.generation {
        missing.push("the status is about an older spec".into());
    }
    missing
}

fn history(seed: u64) -> Result<Acts, String> {
    let limits = Limits { changes: 14, steps_between: 40, patience: Duration::from_secs(3600), ..Limits::default() };
    let begin = |random: &mut Random| (Fleet::new(random), Promises::default());
    let acts = |fleet: Fleet, mut model: Promises| {
        model.acts.merge(fleet.acts);
        model.acts.merge(std::mem::take(&mut lock(&fleet.world.server).acts));
        model.acts
    };
    fake::history(seed, &limits, begin, |fleet| format!("{:?}", fleet.wanted), acts)
}

#[test]
fn simulation_of_daemon_sets() {
    let acts = liveness::seeds(60, "simulation_of_daemon_sets", history);
    acts.require(&[("created", 500), ("deleted", 300), ("updated in place", 50), ("hooks", 50)]);
    acts.require(&[("replaced within strict limits", 50)]);
    acts.require(&[("creations denied", 50), ("updates in place denied", 20)]);
    acts.require(&[("refused writes", 50), ("lost answers", 10)]);
    for change in ["images", "partitions", "pauses", "limits", "managers that start anew"] {
        acts.require(&[(change, 30)]);
    }
    for change in ["nodes that join", "nodes that leave", "taints", "nodes Ready or not"] {
        acts.require(&[(change, 30)]);
    }
    acts.require(&played::HARMS.map(|harm| (harm, 30)));
}
