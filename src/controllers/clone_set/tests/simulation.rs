//! Random histories of a CloneSet: the real controller, an API server in memory, played kubelets, nodes, users, hooks and
//! budgets, and a clock that a seed moves. See [`crate::liveness`].

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::*;
use crate::{
    api::policy::pod_unavailable_budget::PodUnavailableBudget,
    domain::budgets::unavailable::{self as budget, Counting, Total},
    k8s::revision,
    liveness::{self, Acts, Driver, Limits, Model, Random, Step},
};

const BUDGET: &str = "/apis/policy.kruise.io/v1alpha1/namespaces/ns/podunavailablebudgets/b";
const SET: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/clonesets/web";
const NODES: usize = 3;
/// Labels with which hooks hold: before a deletion, before an update, and, when it is there, a Pod may be Normal.
const HOLDS_DELETION: &str = "holds-deletion";
const HOLDS_UPDATE: &str = "holds-update";
const IS_IN: &str = "is-in";

/// What a user has asked for.
#[derive(Clone, Debug)]
struct Spec {
    replicas: i64,
    image: &'static str,
    partition: i64,
    max_unavailable: i64,
    max_surge: i64,
    min_ready: i64,
    kind: &'static str,
    paused: bool,
    hooks: [bool; 3],
    hooks_not_ready: bool,
    claims: bool,
}

impl Spec {
    fn new(random: &mut Random) -> Self {
        let one = |random: &mut Random| random.chance(40);
        let mut spec = Self {
            replicas: 1 + random.below(4) as i64,
            image: "i:1",
            partition: 0,
            max_unavailable: 1,
            max_surge: 0,
            min_ready: [0, 0, 5, 40][random.below(4)],
            kind: ["ReCreate", "ReCreate", "InPlaceIfPossible"][random.below(3)],
            paused: false,
            hooks: [one(random), one(random), one(random)],
            hooks_not_ready: random.chance(30),
            claims: random.chance(40),
        };
        if random.chance(40) {
            spec.hooks = [false; 3];
        }
        spec.limits(random);
        spec
    }

    fn limits(&mut self, random: &mut Random) {
        (self.max_unavailable, self.max_surge) =
            [(1, 0), (1, 0), (2, 0), (5, 0), (0, 1), (1, 1), (0, 2)][random.below(7)];
    }

    fn surge(&self) -> i64 {
        if self.paused { 0 } else { self.max_surge }
    }

    fn patch(&self) -> Value {
        let hook = |on: bool, key: &str, not_ready: bool| match on {
            true => json!({"labelsHandler": {key: "yes"}, "markPodNotReady": not_ready}),
            false => Value::Null,
        };
        let [delete, update, normal] = self.hooks;
        let claims = json!([{"metadata": {"name": "data"}, "spec": {"x": 1}}]);
        json!({"replicas": self.replicas, "minReadySeconds": self.min_ready,
            "volumeClaimTemplates": if self.claims { claims } else { Value::Null },
            "lifecycle": {"preDelete": hook(delete, HOLDS_DELETION, self.hooks_not_ready),
                "inPlaceUpdate": hook(update, HOLDS_UPDATE, self.hooks_not_ready), "preNormal": hook(normal, IS_IN, false)},
            "updateStrategy": {"type": self.kind, "partition": self.partition, "maxUnavailable": self.max_unavailable,
                "maxSurge": self.max_surge, "paused": self.paused},
            "template": {"metadata": {"labels": {"app": "web", HOLDS_DELETION: "yes", HOLDS_UPDATE: "yes"}},
                "spec": {"containers": [{"name": "main", "image": self.image}]}}})
    }
}

/// A Pod in the plainest terms.
#[derive(Clone, Debug)]
struct Seen {
    name: String,
    image: String,
    revision: String,
    state: String,
    ready_since: Option<Timestamp>,
    deleting: bool,
    ended: bool,
    marked: bool,
    held: bool,
    /// In service as budgets see it.
    guarded: bool,
    instance: String,
    text: String,
}

impl Seen {
    fn of(pod: &PodView) -> Self {
        let label = |key: &str| pod.labels.get(key).unwrap_or_default().to_owned();
        let gate = pod.condition(labels::CONDITION_INPLACE_UPDATE_READY).is_none_or(|gate| gate.status == "True");
        let ready = pod.phase == "Running" && pod.condition_is_true("Ready") && gate;
        let mut seen = Self {
            name: pod.name().to_owned(),
            image: pod.containers.first().map(|c| c.image.to_string()).unwrap_or_default(),
            revision: label(labels::CONTROLLER_REVISION_HASH),
            state: label(labels::LIFECYCLE_STATE),
            ready_since: pod.ready_since.filter(|_| ready),
            deleting: pod.is_deleting(),
            ended: pod.is_finished(),
            marked: pod.labels.get(labels::SPECIFIED_DELETE).is_some(),
            held: pod.labels.get(HOLDS_DELETION).is_some(),
            guarded: budget::is_available(pod),
            instance: label(labels::INSTANCE_ID),
            text: String::new(),
        };
        seen.text = format!(
            "{} {} {} ready {:?} deleting {} ended {} marked {} held {} update {} in {} node {}",
            seen.name,
            seen.image,
            seen.state,
            seen.ready_since,
            seen.deleting,
            seen.ended,
            seen.marked,
            seen.held,
            pod.labels.get(HOLDS_UPDATE).is_some(),
            pod.labels.get(IS_IN).is_some(),
            pod.node_name.as_str(),
        );
        seen
    }
    fn active(&self) -> bool {
        !self.deleting && !self.ended
    }
    /// Serves, for so many seconds at least.
    fn up(&self, now: Timestamp, seconds: i64) -> bool {
        let long_enough = |since: Timestamp| since + SignedDuration::from_secs(seconds) <= now;
        self.active() && ["", "Normal"].contains(&self.state.as_str()) && self.ready_since.is_some_and(long_enough)
    }
}

/// A pass of the controller: what it knew, and what it wrote.
#[derive(Clone)]
struct PassSeen {
    knew: Vec<Seen>,
    /// Instances that have a claim.
    claimed: BTreeSet<String>,
    granted: BTreeSet<String>,
    writes: Vec<(Method, String, Value)>,
}

/// What the model judges.
struct Now {
    at: Timestamp,
    spec: Spec,
    update_revision: String,
    status: Value,
    generation: i64,
    pods: Vec<Seen>,
    pass: Option<PassSeen>,
    /// How many Pods the budget wants in service.
    desired: Option<i64>,
    marked_by_users: BTreeSet<String>,
    /// Changes so far.
    changes: usize,
    /// The last pass went well, and nothing is left to do now.
    is_idle: bool,
}

/// What a played kubelet remembers of a Pod.
struct Kubelet {
    image: String,
    /// When its container will have started.
    up_at: Duration,
    started: bool,
    stops_at: Option<Duration>,
}

struct Cloud {
    world: World,
    gates: Vec<&'static str>,
    spec: Spec,
    nodes_up: [bool; NODES],
    kubelets: BTreeMap<String, Kubelet>,
    /// When a user answers what a Pod waits for, by its UID and state.
    answers: BTreeMap<(String, String), Duration>,
    hooks_answer: bool,
    budget: Option<i64>,
    /// The smallest number of Pods so far: workloads that a budget counts may have been read some time ago.
    fewest: i64,
    had_bad_image: bool,
    /// When the next pass is due. None: when something happens.
    due: Option<Duration>,
    pass: Option<PassSeen>,
    marked_by_users: BTreeSet<String>,
    changes: usize,
    /// Passes without a pause between them.
    passes_at_once: usize,
    went_well: bool,
    is_idle: bool,
}

fn mono() -> Duration {
    clock::now().mono
}

impl Cloud {
    fn new(random: &mut Random) -> Self {
        let all: [&[&'static str]; 4] = [
            &[],
            &["PreparingUpdateAsUpdate=true"],
            &["PodUnavailableBudgetUpdateGate=true"],
            &["PreparingUpdateAsUpdate=true", "PodUnavailableBudgetUpdateGate=true"],
        ];
        let gates = all[random.below(4)].to_vec();
        let world = World::with_gates(&gates);
        lock(&world.server).is_graceful = true;
        let spec = Spec::new(random);
        world.put_clone_set(spec.patch());
        let fewest = spec.replicas;
        Self {
            world,
            gates,
            spec,
            nodes_up: [true; NODES],
            kubelets: BTreeMap::new(),
            answers: BTreeMap::new(),
            hooks_answer: true,
            budget: None,
            fewest,
            had_bad_image: false,
            due: Some(Duration::ZERO),
            pass: None,
            marked_by_users: BTreeSet::new(),
            changes: 0,
            passes_at_once: 0,
            went_well: false,
            is_idle: false,
        }
    }

    fn wake(&mut self) {
        self.due = Some(Duration::ZERO);
    }

    fn put(&mut self) {
        self.fewest = self.fewest.min(self.spec.replicas);
        self.world.put_clone_set(self.spec.patch());
        self.wake();
    }

    /// Writes one Pod, as kubelet, a user or a fault does. None: remove it.
    fn write_pod(&self, path: &str, change: impl FnOnce(&mut Value) -> bool) {
        let mut server = lock(&self.world.server);
        server.version += 1;
        let version = server.version.to_string();
        let Some(pod) = server.objects.get_mut(path) else { return };
        if change(pod) {
            pod["metadata"]["resourceVersion"] = version.into();
        } else {
            server.objects.remove(path);
        }
    }

    fn pods(&self) -> Vec<(String, Value)> {
        let server = lock(&self.world.server);
        let pods = server.objects.range(NAMESPACE.to_owned()..).take_while(|(path, _)| path.starts_with(NAMESPACE));
        pods.map(|(path, pod)| (path.clone(), pod.clone())).collect()
    }

    // ---- what surrounds the controller

    /// What kubelet, or whoever places Pods, has to do about a Pod now; else when.
    fn kubelet(&mut self, path: &str, pod: &Value, random: &mut Random) -> Result<String, Option<Duration>> {
        let now = mono();
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        if pod["status"]["phase"] == "Failed" {
            if pod["metadata"]["deletionTimestamp"].is_string() {
                self.write_pod(path, |_| false);
                return Ok(format!("{name} has gone"));
            }
            return Err(None);
        }
        let Some(node) = pod["spec"]["nodeName"].as_str() else {
            let up: Vec<usize> = (0..NODES).filter(|node| self.nodes_up[*node]).collect();
            let Some(node) = random.one_of(&up) else { return Err(None) };
            self.write_pod(path, |pod| {
                pod["spec"]["nodeName"] = format!("n{node}").into();
                pod["status"]["phase"] = "Pending".into();
                true
            });
            return Ok(format!("{name} is placed on n{node}"));
        };
        let is_up = node.strip_prefix('n').and_then(|n| n.parse::<usize>().ok()).is_none_or(|n| self.nodes_up[n]);
        if !is_up {
            return Err(None);
        }
        let image = pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default().to_owned();
        let pause = |random: &mut Random| random.duration(Duration::from_secs(4));
        let kubelet = self.kubelets.entry(uid.clone()).or_insert_with(|| Kubelet {
            image: image.clone(),
            up_at: now + pause(random),
            started: false,
            stops_at: None,
        });
        if pod["metadata"]["deletionTimestamp"].is_string() {
            let at = *kubelet.stops_at.get_or_insert_with(|| now + pause(random));
            if now < at {
                return Err(Some(at - now));
            }
            self.write_pod(path, |_| false);
            return Ok(format!("{name} has gone"));
        }
        if kubelet.image != image {
            (kubelet.image, kubelet.up_at) = (image.clone(), now + pause(random));
        }
        let runs = now >= kubelet.up_at && !image.starts_with("bad");
        kubelet.started |= runs;
        let started = kubelet.started;
        let later = (now < kubelet.up_at).then(|| kubelet.up_at - now);
        let status = match runs {
            true => json!({"name": "main", "image": image, "imageID": format!("id-of-{image}"), "ready": true,
                "containerID": format!("c://{uid}/{image}/{}", kubelet.up_at.as_millis()), "restartCount": 0, "state": {"running": {}}}),
            false => {
                json!({"name": "main", "image": image, "imageID": "", "containerID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": "ErrImagePull"}}})
            }
        };
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let is_true = |type_: &Value| conditions.iter().any(|c| c["type"] == *type_ && c["status"] == "True");
        let gates = pod["spec"]["readinessGates"].as_array().cloned().unwrap_or_default();
        let has = |type_: &str| conditions.iter().any(|c| c["type"] == type_);
        if !has(labels::CONDITION_KRUISE_POD_READY) && has(labels::CONDITION_INPLACE_UPDATE_READY) {
            // The manager's controller of that condition sees to Pods that did not get it with their first one.
            let change = json!({"conditions": [{"type": labels::CONDITION_KRUISE_POD_READY, "status": "True"}]});
            self.write_pod(path, |pod| {
                strategic(&mut pod["status"], &change);
                true
            });
            return Ok(format!("{name} gets KruisePodReady"));
        }
        let ready = runs && gates.iter().all(|gate| is_true(&gate["conditionType"]));
        let phase = if started { "Running" } else { "Pending" };
        if pod["status"]["containerStatuses"] == json!([status])
            && is_true(&json!("Ready")) == ready
            && pod["status"]["phase"] == phase
        {
            return Err(later);
        }
        let at = clock::now().wall.to_string();
        self.write_pod(path, |pod| {
            pod["status"]["phase"] = phase.into();
            pod["status"]["containerStatuses"] = json!([status]);
            set_ready(pod, ready, &at);
            true
        });
        Ok(format!("kubelet: {name} runs {image}: {runs}, ready: {ready}"))
    }

    /// What the user behind the hooks does about a Pod.
    fn answer(&mut self, path: &str, pod: &Value, random: &mut Random) -> Result<String, Option<Duration>> {
        let label = |key: &str| pod["metadata"]["labels"][key].is_string();
        let state = pod["metadata"]["labels"][labels::LIFECYCLE_STATE].as_str().unwrap_or_default().to_owned();
        let (key, on) = match state.as_str() {
            "PreparingDelete" if label(HOLDS_DELETION) => (HOLDS_DELETION, false),
            "PreparingUpdate" if label(HOLDS_UPDATE) => (HOLDS_UPDATE, false),
            "Updated" if !label(HOLDS_UPDATE) => (HOLDS_UPDATE, true),
            "PreparingNormal" if self.spec.hooks[2] && !label(IS_IN) => (IS_IN, true),
            // Who comes back into service is held again before the next deletion.
            "PreparingNormal" | "Normal" if !label(HOLDS_DELETION) => (HOLDS_DELETION, true),
            "Normal" if !label(HOLDS_UPDATE) => (HOLDS_UPDATE, true),
            _ => return Err(None),
        };
        if !self.hooks_answer || pod["metadata"]["deletionTimestamp"].is_string() {
            return Err(None);
        }
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let asked = (uid, format!("{state}/{key}"));
        let at =
            *self.answers.entry(asked.clone()).or_insert_with(|| mono() + random.duration(Duration::from_secs(20)));
        if mono() < at {
            return Err(Some(at - mono()));
        }
        self.answers.remove(&asked);
        self.write_pod(path, |pod| {
            pod["metadata"]["labels"][key] = if on { "yes".into() } else { Value::Null };
            if !on && let Some(labels) = pod["metadata"]["labels"].as_object_mut() {
                labels.remove(key);
            }
            true
        });
        Ok(format!("{}: the hook is answered in {state}: {key} {on}", pod["metadata"]["name"]))
    }

    /// Tells the controller of one Pod that has changed.
    fn tell(&mut self, random: &mut Random) -> Option<String> {
        let pods = &self.world.controller.context.pods;
        let there = self.pods();
        let mut news: Vec<(String, Option<Value>)> = Vec::new();
        for known in pods.list() {
            if !there.iter().any(|(_, pod)| pod["metadata"]["uid"] == known.uid()) {
                news.push((known.name().to_owned(), None));
            }
        }
        for (_, pod) in there {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let known = pods.get(&ObjectKey::new("ns", &name));
            let version = known.and_then(|pod| pod.metadata.resource_version.clone());
            if version.as_deref() != pod["metadata"]["resourceVersion"].as_str() {
                news.push((name, Some(pod)));
            }
        }
        let (name, pod) = random.one_of(&news)?.clone();
        match pod {
            Some(pod) => drop(pods.upsert(serde_json::from_value(pod).ok()?)),
            None => drop(pods.remove(&ObjectKey::new("ns", &name), None)),
        }
        self.count_budget();
        self.wake();
        Some(String::new())
    }

    /// The manager's controller of budgets: counts what the watch has told.
    fn count_budget(&self) {
        let pods: Vec<_> = self.world.controller.context.pods.list();
        let mut server = lock(&self.world.server);
        server.version += 1;
        let version = server.version.to_string();
        let Some(object) = server.objects.get_mut(BUDGET) else { return };
        let Ok(budget) = serde_json::from_value::<PodUnavailableBudget>(object.clone()) else { return };
        let now = clock::now().wall;
        let known_for = |_: &str, since: Timestamp| Duration::try_from(now.duration_since(since)).unwrap_or_default();
        let counting = Counting::Manager { known_for: &known_for, is_restarting: &|_| false };
        let total = Total::Known(i32::try_from(self.spec.replicas).unwrap_or(0));
        let counted = budget::count(&budget, &self.world.controller.context.gates, &pods, total, counting, now);
        let mut status = counted.status;
        status.observed_generation = budget.metadata.generation.unwrap_or_default();
        let status = serde_json::to_value(status).unwrap_or_default();
        if object["status"] != status {
            object["status"] = status;
            object["metadata"]["resourceVersion"] = version.into();
        }
    }

    async fn pass(&mut self) -> Result<String, String> {
        let knew: Vec<Seen> = self.world.controller.context.pods.list().iter().map(|pod| Seen::of(pod)).collect();
        let granted = {
            let server = lock(&self.world.server);
            let status = server.objects.get(BUDGET).map(|budget| budget["status"].clone()).unwrap_or_default();
            let keys = |list: &Value| list.as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default();
            let all: [Vec<String>; 2] = [keys(&status["disruptedPods"]), keys(&status["unavailablePods"])];
            all.into_iter().flatten().collect()
        };
        let claimed = {
            let server = lock(&self.world.server);
            let claims = server.objects.iter().filter(|(path, _)| path.contains("/persistentvolumeclaims/"));
            let of = |claim: &Value| {
                claim["metadata"]["labels"][labels::INSTANCE_ID].as_str().unwrap_or_default().to_owned()
            };
            claims.map(|(_, claim)| of(claim)).collect()
        };
        self.world.writes();
        let next = self.world.controller.reconcile(&ObjectKey::new("ns", "web")).await;
        let writes = self.world.writes();
        let now = mono();
        self.due = match &next {
            Ok(Requeue::Await) => None,
            Ok(Requeue::After(after)) => Some(now + *after),
            // The queue tries again, after a while.
            Err(_) => Some(now + Duration::from_secs(1)),
        };
        self.passes_at_once = if next.as_ref().is_ok_and(|next| *next == Requeue::After(Duration::ZERO)) {
            self.passes_at_once + 1
        } else {
            0
        };
        if self.passes_at_once > 100 {
            return Err("one pass follows the other without end".into());
        }
        let told: Vec<String> = writes
            .iter()
            .filter(|(_, path, _)| path.starts_with(NAMESPACE))
            .map(|(method, path, body)| match *method {
                Method::PATCH => format!("{method} {} {body}", path.trim_start_matches(NAMESPACE)),
                _ => format!("{method} {} {}", path.trim_start_matches(NAMESPACE), body["metadata"]["name"]),
            })
            .collect();
        self.went_well = next.is_ok();
        self.pass = Some(PassSeen { knew, claimed, granted, writes });
        match (told.is_empty(), next) {
            (true, Ok(_)) => Ok(String::new()),
            (_, next) => Ok(format!("pass: {next:?}\n              {}", told.join("\n              "))),
        }
    }

    /// The manager starts anew.
    fn restart(&mut self) {
        let mut world = World::of(self.world.server.clone());
        let gates = crate::api::feature_gates::FeatureGates::parse(&self.gates, None).unwrap_or_default();
        let context = &mut world.controller.context;
        context.gates = Arc::new(gates);
        context.budgets = crate::budgets::Budgets::new(context.client.clone(), context.gates.clone());
        let server = lock(&self.world.server);
        for (path, object) in &server.objects {
            let object = object.clone();
            if path == SET {
                world.controller.clone_sets.upsert(serde_json::from_value(object).unwrap());
            } else if path.starts_with(NAMESPACE) {
                world.controller.context.pods.upsert(serde_json::from_value(object).unwrap());
            } else if path.contains("/persistentvolumeclaims/") {
                world.controller.claims.upsert(serde_json::from_value(object).unwrap());
            }
        }
        drop(server);
        self.world = world;
        self.wake();
    }

    fn disturb_pod(&mut self, what: usize, random: &mut Random) -> String {
        let pods: Vec<(String, Value)> = self.pods();
        let Some((path, pod)) = random.one_of(&pods).cloned() else { return "nothing".into() };
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let now = clock::now().wall.to_string();
        match what {
            0 => {
                self.marked_by_users.insert(pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned());
                self.write_pod(&path, |pod| {
                    pod["metadata"]["labels"][labels::SPECIFIED_DELETE] = "".into();
                    true
                });
                format!("a user marks {name}")
            }
            1 => {
                if pod["metadata"]["deletionTimestamp"].is_string() {
                    return "nothing".into();
                }
                self.write_pod(&path, |pod| {
                    pod["status"]["phase"] = "Failed".into();
                    set_ready(pod, false, &now);
                    true
                });
                format!("{name} is evicted by its node")
            }
            2 => {
                let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
                if let Some(kubelet) = self.kubelets.get_mut(uid) {
                    kubelet.up_at = mono() + random.duration(Duration::from_secs(30));
                }
                format!("{name} crashes")
            }
            _ => {
                self.write_pod(&path, |pod| {
                    pod["metadata"]["deletionTimestamp"] = now.into();
                    true
                });
                format!("a user deletes {name}")
            }
        }
    }

    fn node(&mut self, node: usize) -> String {
        self.nodes_up[node] = !self.nodes_up[node];
        if self.nodes_up[node] {
            return format!("n{node} is back");
        }
        let now = clock::now().wall.to_string();
        for (path, pod) in self.pods() {
            if pod["spec"]["nodeName"] == format!("n{node}").as_str() {
                self.write_pod(&path, |pod| {
                    set_ready(pod, false, &now);
                    true
                });
            }
        }
        format!("n{node} is silent")
    }
}

fn set_ready(pod: &mut Value, ready: bool, at: &str) {
    let status = if ready { "True" } else { "False" };
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    if conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == status) {
        return;
    }
    let change = json!({"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": at}]});
    strategic(&mut pod["status"], &change);
}

impl Driver for Cloud {
    type Seen = Now;

    async fn disturb(&mut self, random: &mut Random) -> Result<String, String> {
        self.changes += 1;
        let said = match random.below(24) {
            0 | 1 => {
                self.spec.replicas = random.below(5) as i64;
                format!("replicas {}", self.spec.replicas)
            }
            2..=6 => {
                self.spec.image = ["i:1", "i:2", "i:3", "bad:1", "bad:2"][random.below(5)];
                self.had_bad_image |= self.spec.image.starts_with("bad");
                format!("image {}", self.spec.image)
            }
            7 => {
                self.spec.partition = random.below(4) as i64;
                format!("partition {}", self.spec.partition)
            }
            8 => {
                self.spec.limits(random);
                format!("maxUnavailable {}, maxSurge {}", self.spec.max_unavailable, self.spec.max_surge)
            }
            9 => {
                self.spec.min_ready = [0, 5, 40][random.below(3)];
                format!("minReadySeconds {}", self.spec.min_ready)
            }
            10 => {
                self.spec.kind = ["ReCreate", "InPlaceIfPossible", "OnDelete"][random.below(3)];
                format!("type {}", self.spec.kind)
            }
            11 => {
                self.spec.paused = !self.spec.paused;
                format!("paused {}", self.spec.paused)
            }
            12 => {
                self.hooks_answer = !self.hooks_answer;
                format!("hooks are answered: {}", self.hooks_answer)
            }
            13 | 14 => {
                self.budget = [Some(1), Some(1), Some(2), None][random.below(4)];
                match self.budget {
                    Some(most) => {
                        let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": most});
                        self.world.put_budget(spec);
                    }
                    None => drop(lock(&self.world.server).objects.remove(BUDGET)),
                }
                self.count_budget();
                format!("budget {:?}", self.budget)
            }
            15 => {
                let quota = random.below(4);
                lock(&self.world.server).quota = Some(quota);
                format!("a quota of {quota} Pods")
            }
            16 | 17 => self.node(random.below(NODES)),
            18 => {
                self.restart();
                "the manager starts anew".into()
            }
            19 => {
                let (method, code) =
                    [(Method::PATCH, 409), (Method::PATCH, 500), (Method::DELETE, 403), (Method::POST, 500)]
                        [random.below(4)]
                    .clone();
                lock(&self.world.server).faults.push((method.clone(), NAMESPACE.into(), code));
                format!("the next {method} of a Pod is answered {code}")
            }
            what => self.disturb_pod(what - 20, random),
        };
        self.put();
        Ok(said)
    }

    async fn make_possible(&mut self) -> Result<String, String> {
        self.changes += 1;
        self.hooks_answer = true;
        self.spec.paused = false;
        if self.spec.kind == "OnDelete" {
            self.spec.kind = "ReCreate";
        }
        if self.spec.image.starts_with("bad") {
            self.spec.image = "i:4";
        }
        if self.had_bad_image {
            // Pods that stay on such a revision can never run.
            self.spec.partition = 0;
        }
        for node in 0..NODES {
            if !self.nodes_up[node] {
                self.node(node);
            }
        }
        {
            let mut server = lock(&self.world.server);
            server.quota = None;
            server.faults.clear();
        }
        self.put();
        Ok(format!("{:?}, budget {:?}", self.spec, self.budget))
    }

    async fn step(&mut self, random: &mut Random) -> Result<Step, String> {
        (self.pass, self.is_idle) = (None, false);
        let mut next: Option<Duration> = None;
        let mut later = |after: Option<Duration>| next = [next, after].into_iter().flatten().min();
        // Who comes first is for the seed to say.
        let first = random.below(4);
        for turn in 0..4 {
            match (first + turn) % 4 {
                0 => {
                    if let Some(said) = self.tell(random) {
                        return Ok(Step::Worked(said));
                    }
                }
                1 => match self.due {
                    Some(due) if due <= mono() => {
                        let said = self.pass().await?;
                        return Ok(Step::Worked(said));
                    }
                    due => later(due.map(|due| due - mono())),
                },
                which => {
                    for (path, pod) in self.pods() {
                        let done = match which {
                            2 => self.kubelet(&path, &pod, random),
                            _ => self.answer(&path, &pod, random),
                        };
                        match done {
                            Ok(said) => return Ok(Step::Worked(said)),
                            Err(after) => later(after),
                        }
                    }
                }
            }
        }
        self.is_idle = self.went_well;
        Ok(Step::Idle(next))
    }

    async fn advance(&mut self, by: Duration) {
        self.passes_at_once = 0;
        tokio::time::advance(by).await;
        self.count_budget();
    }

    async fn see(&mut self) -> Result<Now, String> {
        let views = self.pods().into_iter().map(|(_, pod)| serde_json::from_value::<PodView>(pod));
        let pods: Result<Vec<PodView>, _> = views.collect();
        let server = lock(&self.world.server);
        let set = &server.objects[SET];
        Ok(Now {
            at: clock::now().wall,
            spec: self.spec.clone(),
            update_revision: set["status"]["updateRevision"].as_str().unwrap_or_default().to_owned(),
            status: set["status"].clone(),
            generation: set["metadata"]["generation"].as_i64().unwrap_or_default(),
            pods: pods.map_err(|error| error.to_string())?.iter().map(Seen::of).collect(),
            pass: self.pass.take(),
            desired: self.budget.map(|most| self.fewest - most),
            marked_by_users: self.marked_by_users.clone(),
            changes: self.changes,
            is_idle: self.is_idle,
        })
    }
}

#[derive(Default)]
struct Promises {
    acts: Acts,
    /// How often each Pod has been announced since the last change, to be deleted or updated.
    announced: BTreeMap<(String, String), usize>,
    changes: usize,
}

impl Promises {
    fn of_pass(&mut self, now: &Now, pass: &PassSeen) -> Vec<String> {
        // What a pass itself brings back into service is there when it goes on to updates.
        let mut knew = pass.knew.clone();
        for pod in &mut knew {
            let is_back = |(_, path, body): &(Method, String, Value)| {
                path.trim_end_matches("/status").ends_with(&pod.name)
                    && body["metadata"]["labels"][labels::LIFECYCLE_STATE] == "Normal"
            };
            if pass.writes.iter().any(is_back) {
                pod.state = "Normal".into();
            }
        }
        let pass = &PassSeen { knew, ..pass.clone() };
        let mut wrongs = Vec::new();
        let (mut down, mut made, mut begun) = (BTreeSet::new(), 0, BTreeSet::new());
        for (method, path, body) in &pass.writes {
            let Some(rest) = path.strip_prefix(NAMESPACE) else { continue };
            let name = rest.trim_start_matches('/').split('/').next().unwrap_or_default().to_owned();
            let known = pass.knew.iter().find(|pod| pod.name == name);
            let labels_of = &body["metadata"]["labels"];
            if *method == Method::POST {
                made += 1;
                self.acts.note("created");
            }
            if *method == Method::DELETE {
                self.acts.note("deleted");
                if known.is_some_and(|pod| pod.held && pod.active()) && now.spec.hooks[0] {
                    wrongs.push(format!("{name} was deleted past its hook"));
                }
                down.insert(name.clone());
            }
            let closes = |c: &Value| c["type"] != "Ready" && c["status"] == "False";
            if body["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(closes)) {
                down.insert(name.clone());
            }
            if let Some(state) = labels_of[labels::LIFECYCLE_STATE].as_str() {
                if !["", "Normal", "PreparingNormal"].contains(&state)
                    && known.is_some_and(|p| ["", "Normal"].contains(&&*p.state))
                {
                    down.insert(name.clone());
                }
                if state.starts_with("Preparing") && state != "PreparingNormal" {
                    self.acts.note("announced");
                    let times = self.announced.entry((name.clone(), state.to_owned())).or_default();
                    *times += 1;
                    if *times > 3 {
                        wrongs.push(format!("{name} was announced {times} times for {state} since the last change"));
                    }
                }
                if state == "Updating" {
                    begun.insert(name.clone());
                    self.acts.note("updated in place");
                }
            }
            let mark = &labels_of[labels::SPECIFIED_DELETE];
            if mark.is_string() {
                begun.insert(name.clone());
                self.acts.note("marked");
            } else if mark.is_null() && labels_of.as_object().is_some_and(|l| l.contains_key(labels::SPECIFIED_DELETE))
            {
                self.acts.note("mark taken back");
                if body["metadata"]["uid"].as_str().is_some_and(|uid| now.marked_by_users.contains(uid)) {
                    wrongs.push(format!("the mark of a user was taken off {name}"));
                }
            }
        }
        self.limits(now, pass, &down, made, &mut wrongs);
        wrongs.extend(claims_left(now, pass));
        wrongs.extend(let_go_too_early(now, pass));
        let is_old = |pod: &&Seen| !revision::is_same(&pod.revision, &now.update_revision);
        let old = pass.knew.iter().filter(|p| p.active() && !p.marked && p.state != "PreparingDelete").filter(is_old);
        let old: Vec<&str> = old.map(|pod| pod.name.as_str()).collect();
        let begun = begun.iter().filter(|name| old.contains(&name.as_str())).count() as i64;
        if begun > 0 && (old.len() as i64) - begun < now.spec.partition.min(now.spec.replicas) {
            wrongs.push(format!("{begun} of {} old Pods were updated beyond the partition", old.len()));
        }
        wrongs
    }

    fn limits(&mut self, now: &Now, pass: &PassSeen, down: &BTreeSet<String>, made: i64, wrongs: &mut Vec<String>) {
        let spec = &now.spec;
        let count = |fits: &dyn Fn(&&Seen) -> bool| pass.knew.iter().filter(fits).count() as i64;
        let is_down = |pod: &&Seen| down.contains(&pod.name);
        // What is available may go while enough stays available, what only serves while enough serves.
        for (word, seconds) in [("available", spec.min_ready), ("ready", 0)] {
            let up = count(&|pod| pod.up(now.at, seconds));
            let taken = count(&|pod| pod.up(now.at, seconds) && is_down(pod));
            self.acts.add("taken down", taken as u64);
            if taken > 0 && up - taken < spec.replicas - spec.max_unavailable {
                wrongs.push(format!("{taken} of {up} {word} Pods were taken down: {down:?}"));
            }
        }
        let active = count(&|pod| pod.active());
        if made > 0 && active + made > spec.replicas + spec.surge() {
            wrongs.push(format!("{made} Pods were made, and there were {active}"));
        }
        // Whose deletion was let through before counts as gone already.
        if let Some(desired) = now.desired.filter(|desired| *desired > 0) {
            let deleted = |pod: &&Seen| {
                pass.writes.iter().any(|(method, path, _)| *method == Method::DELETE && path.ends_with(&pod.name))
            };
            let guarded = count(&|pod| pod.guarded && !pass.granted.contains(&pod.name));
            let taken = count(&|pod| pod.guarded && !pass.granted.contains(&pod.name) && deleted(pod));
            if taken > 0 && guarded - taken < desired {
                wrongs.push(format!("the budget wants {desired} in service, and {taken} of {guarded} were deleted"));
            }
        }
    }
}

/// A claim of a Pod that has failed, or is gone, is used before another one is made.
fn claims_left(now: &Now, pass: &PassSeen) -> Vec<String> {
    let posted = |kind: &str| -> BTreeSet<&str> {
        let posts = pass.writes.iter().filter(|(method, path, _)| *method == Method::POST && path.ends_with(kind));
        posts.filter_map(|(_, _, body)| body["metadata"]["labels"][labels::INSTANCE_ID].as_str()).collect()
    };
    let (claims, pods) = (posted("/persistentvolumeclaims"), posted("/pods"));
    let made_anew = claims.iter().any(|id| !pass.claimed.contains(*id));
    let has_pod = |id: &str| pods.contains(id) || pass.knew.iter().any(|pod| pod.instance == id && !pod.ended);
    // One that has failed may go in this pass, for its successor to come in the next.
    let goes = |id: &str| {
        let mut deleted = pass.writes.iter().filter(|(method, _, _)| *method == Method::DELETE);
        deleted.any(|(_, path, _)| path.ends_with(id))
    };
    let left: Vec<&String> = pass.claimed.iter().filter(|id| !has_pod(id) && !goes(id)).collect();
    match now.spec.claims && made_anew && !left.is_empty() {
        true => vec![format!("the claims of {left:?} were not used again, and others were made: {claims:?}")],
        false => Vec::new(),
    }
}

/// A Pod that waits for its update goes on waiting while the partition leaves it to be updated.
fn let_go_too_early(now: &Now, pass: &PassSeen) -> Vec<String> {
    if now.spec.kind == "OnDelete" || now.spec.paused {
        return Vec::new();
    }
    let is_old = |pod: &&Seen| pod.active() && !pod.marked && !revision::is_same(&pod.revision, &now.update_revision);
    let old: Vec<&Seen> = pass.knew.iter().filter(is_old).filter(|pod| pod.state != "PreparingDelete").collect();
    let waiting: Vec<&str> = old.iter().filter(|p| p.state == "PreparingUpdate").map(|p| p.name.as_str()).collect();
    let is_let_go = |name: &&&str| {
        pass.writes.iter().any(|(_, path, body)| {
            let state = body["metadata"]["labels"][labels::LIFECYCLE_STATE].as_str().unwrap_or_default();
            ["Normal", "Updated"].contains(&state) && path.trim_end_matches("/status").ends_with(**name)
        })
    };
    let gone = waiting.iter().filter(is_let_go).count();
    let beyond = old.len().saturating_sub(usize::try_from(now.spec.partition).unwrap_or(0));
    match gone > 0 && waiting.len() - gone < waiting.len().min(beyond) {
        true => vec![format!("{gone} of {waiting:?} were let go, and {beyond} Pods are to be updated")],
        false => Vec::new(),
    }
}

/// Nothing is left to do: then no Pod waits that could go. One that is Ready and not yet available is unavailable already.
fn waits_for_nothing(now: &Now) -> Vec<String> {
    let spec = &now.spec;
    let ready = now.pods.iter().filter(|pod| pod.up(now.at, 0)).count() as i64;
    if now.desired.is_some() || ready - 1 < spec.replicas - spec.max_unavailable || spec.hooks[0] {
        return Vec::new();
    }
    let waits = |pod: &&Seen| pod.active() && pod.marked && pod.up(now.at, 0) && !pod.up(now.at, spec.min_ready);
    let waiting = now.pods.iter().filter(waits);
    waiting.map(|pod| format!("it is to be deleted and waits to become available: {}", pod.text)).collect()
}

impl Model for Promises {
    type Seen = Now;

    fn wrongs(&mut self, now: &Now) -> Vec<String> {
        if self.changes != now.changes {
            (self.changes, self.announced) = (now.changes, BTreeMap::new());
        }
        match &now.pass {
            Some(pass) => self.of_pass(now, pass),
            None if now.is_idle => waits_for_nothing(now),
            None => Vec::new(),
        }
    }

    fn missing(&self, now: &Now) -> Vec<String> {
        let mut missing = Vec::new();
        let mut ask = |is_so: bool, what: String| {
            if !is_so {
                missing.push(what);
            }
        };
        let spec = &now.spec;
        let active: Vec<&Seen> = now.pods.iter().filter(|pod| pod.active()).collect();
        ask(active.len() as i64 == spec.replicas, format!("{} Pods, want {}", active.len(), spec.replicas));
        for pod in &active {
            ask(pod.up(now.at, spec.min_ready) && !pod.marked, format!("not available, or marked: {}", pod.text));
        }
        let updated = active.iter().filter(|pod| pod.image == spec.image).count() as i64;
        let wanted = (spec.replicas - spec.partition).max(0);
        ask(updated >= wanted, format!("{updated} are updated, want {wanted}"));
        for field in ["replicas", "readyReplicas", "availableReplicas"] {
            // A count of nothing may be left out.
            let said = now.status[field].as_i64().unwrap_or_default();
            ask(said == spec.replicas, format!("status.{field} is {said}"));
        }
        ask(now.status["observedGeneration"] == now.generation, "the status is about an older spec".into());
        missing
    }
}

fn history(seed: u64) -> Result<Acts, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let mut random = Random(seed);
        let mut cloud = Cloud::new(&mut random);
        let mut model = Promises::default();
        let limits = Limits {
            changes: 14,
            steps_between: 40,
            patience: Duration::from_secs(1800),
            steps: 6000,
            ..Limits::default()
        };
        let told = format!("{:?}, gates {:?}", cloud.spec, cloud.gates);
        liveness::run(seed, &limits, &mut cloud, &mut model).await.map_err(|why| format!("{why}\nbegan as {told}"))?;
        Ok(model.acts)
    })
}

#[test]
fn simulation_of_clone_sets() {
    let acts = liveness::seeds(60, "simulation_of_clone_sets", history);
    acts.require(&[
        ("created", 300),
        ("deleted", 100),
        ("taken down", 100),
        ("announced", 30),
        ("updated in place", 30),
        ("marked", 50),
        ("mark taken back", 1),
    ]);
}
