//! Random histories of SidecarSets: the real controller with its queue, an API server in memory, the rules of injection in
//! the place of the webhook, played kubelets, nodes, workloads, users, budgets and faults, late watches, and a clock that a
//! seed moves. See [`crate::liveness`].

mod model;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::http::{Method, request::Parts};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::Resource as _;
use serde_json::{Value, json};

use self::model::{
    Amount, EMPTY, Event, Member, Now, PassSeen, Present, Promises, Rank, Shape, Wanted, key_of, started_with,
};
use super::{Controller, REVISIONS};
use crate::{
    api::{
        feature_gates::FeatureGates,
        labels::{
            self, SIDECAR_SET_HASH, SIDECAR_SET_HASH_WITHOUT_IMAGE, SIDECAR_SET_VERSION_ALT_PREFIX,
            SIDECAR_SET_VERSION_PREFIX,
        },
        policy::pod_unavailable_budget::PodUnavailableBudget,
    },
    budgets::Budgets,
    controllers::{
        fake::{self, Fault, Server, strategic},
        in_memory,
        tests::played::{self, Kubelets, Living, Look, Tells},
    },
    domain::{
        budgets::unavailable::{self as budget, Counting, Total},
        kinds::sidecar_set::{
            choice::{self, Choice, Pin},
            defaults, hash,
            inject::{self, PodLevel, Set, Settings},
            revision,
        },
    },
    k8s::{node::NodeView, pod::PodView, time::rfc3339},
    liveness::{self, Acts, Driver, Limits, Random, Step},
    runtime::{clock, lock, queue::Requeue, watches::ObjectKey},
};

const SETS: &str = "/apis/apps.kruise.io/v1beta1/sidecarsets/";
const NAMESPACES: &str = "/api/v1/namespaces/";
/// What a path of a Pod has between namespace and name.
const OF_PODS: &str = "/pods/";
const NODES: &str = "/nodes/";
/// The namespace whose Pods have a budget.
const GUARDED: &str = "ns-a";
const BUDGET: &str = "/apis/policy.kruise.io/v1alpha1/namespaces/ns-a/podunavailablebudgets/guard";
const KINDS: [&str; 3] = ["cold", "hot", "native"];
/// `a:2` by the digest that played runtimes report of it, and `a:3` by another one, as of an index and of what is in it.
const SAME: &str = "a:2@sha256:0000000000000000000000000000000000000000000000000000000000613a32";
const OTHER: &str = "a:3@sha256:1111111111111111111111111111111111111111111111111111111111111111";
const MOST_PODS: usize = 7;

fn pod_path(namespace: &str, name: &str) -> String {
    format!("{NAMESPACES}{namespace}{OF_PODS}{name}")
}

/// `NAMESPACE/NAME` of a Pod's path.
fn key_in(path: &str) -> String {
    path.trim_start_matches(NAMESPACES).replace(OF_PODS, "/")
}

impl Wanted {
    fn new(name: &'static str, random: &mut Random) -> Self {
        let mut wanted = Self {
            name,
            shape: Shape { hot: name == "hot", two: name != "native" && random.chance(50), env: 0 },
            images: ["a:1", "b:1"],
            partition: Amount::Number(0),
            most: Amount::Number(1),
            paused: false,
            not_update: false,
            both_apps: random.chance(50),
            team: random.chance(30).then_some("x"),
            tier: None,
            rank: [Rank::Any, Rank::Weight, Rank::Turn][random.below(3)],
            scatters: random.chance(20),
            repairs: random.chance(35),
            injects_nothing: false,
            pin: None,
            history: 1 + random.below(3),
        };
        wanted.most(random);
        wanted
    }

    fn most(&mut self, random: &mut Random) {
        self.most = [Amount::Number(1), Amount::Number(2), Amount::Percent(1), Amount::Percent(34)][random.below(4)];
    }

    fn spec(&self) -> Value {
        let env = json!([{"name": "SHAPE", "value": self.shape.env.to_string()}]);
        let (mut containers, mut init) = (Vec::new(), Vec::new());
        for part in self.parts() {
            let mut container = json!({"name": part.name, "image": part.image, "env": env});
            if part.hot {
                container["upgradeStrategy"] = json!({"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": EMPTY});
            }
            if part.native {
                container["restartPolicy"] = "Always".into();
                init.push(container);
            } else {
                containers.push(container);
            }
        }
        let label = |key: &str, value: Option<&str>| value.map(|value| json!({"matchLabels": {key: value}}));
        let apps = if self.both_apps { json!(["web", "db"]) } else { json!(["web"]) };
        let kind = if self.not_update { "NotUpdate" } else { "RollingUpdate" };
        let priority = match self.rank {
            Rank::Any => Value::Null,
            Rank::Weight => json!({"weightPriority": [{"weight": 7, "matchSelector": {"matchLabels": {"tier": "b"}}}]}),
            Rank::Turn => json!({"orderPriority": [{"orderedKey": "turn"}]}),
        };
        let scatter = self.scatters.then(|| json!([{"key": "app", "value": "*"}]));
        let revision = self.pin.as_ref().map(|name| json!({"revisionName": name, "policy": "Always"}));
        let spec = json!({"selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": apps}]},
            "namespaceSelector": label("team", self.team), "containers": containers, "initContainers": init,
            "updateStrategy": {"type": kind, "paused": self.paused, "partition": self.partition.value(),
                "maxUnavailable": self.most.value(), "selector": label("tier", self.tier),
                "priorityStrategy": priority, "scatterStrategy": scatter},
            "injectionStrategy": {"paused": self.injects_nothing, "revision": revision},
            "revisionHistoryLimit": self.history});
        let mut spec = defaults::defaulted(&spec, None);
        let is_said = |_: &String, value: &mut Value| !value.is_null() && *value != json!([]);
        let strategy = |spec: &mut Value, field: &str| spec[field].as_object_mut().unwrap().retain(|_, v| !v.is_null());
        strategy(&mut spec, "updateStrategy");
        strategy(&mut spec, "injectionStrategy");
        spec.as_object_mut().unwrap().retain(is_said);
        spec
    }
}

/// A node that is played.
#[derive(Clone, Debug)]
struct Machine {
    uid: String,
    version: u64,
    /// The minor version of its kubelet.
    minor: usize,
}

impl Machine {
    fn object(&self, name: &str) -> Value {
        json!({"metadata": {"name": name, "uid": self.uid, "resourceVersion": self.version.to_string()},
            "status": {"nodeInfo": {"kubeletVersion": format!("v1.{}.0", self.minor)}}})
    }
}

/// What becomes of writes of Pods.
#[derive(Default)]
struct Refusals {
    /// All of a Pod are answered so, by its path.
    now: BTreeMap<String, u16>,
    /// Keys of Pods of which one was refused.
    ever: BTreeSet<String>,
}

type Refused = Arc<Mutex<Refusals>>;

/// What the API server asks, and what follows of an eviction.
#[derive(Default)]
struct Around {
    /// The SidecarSets as the webhook knows them.
    sets: BTreeMap<String, (Wanted, Value)>,
    /// While the webhook is dead Pods get nothing.
    is_dead: bool,
    /// Pods whose controllers make others in their places.
    evicted: Vec<Arc<Value>>,
}

impl Around {
    /// Puts into a new Pod what the webhook injects: SidecarSets with their revisions.
    fn inject(&self, server: &mut Server, pod: &mut Value) -> Vec<(String, String)> {
        if self.is_dead {
            return Vec::new();
        }
        let pod_labels = serde_json::from_value(pod["metadata"]["labels"].clone()).unwrap();
        let namespace = pod["metadata"]["namespace"].as_str().unwrap();
        let (app, teams) = (pod["metadata"]["labels"]["app"].as_str().unwrap(), teams(server));
        let mut chosen = Vec::new();
        for (name, (wanted, set)) in &self.sets {
            if !wanted.selects(app, namespace, &teams) {
                continue;
            }
            let spec = match choice::choose(&set["spec"], &pod_labels, 0) {
                Choice::Nothing => continue,
                Choice::Current => set["spec"].clone(),
                Choice::Pinned(Pin::CustomVersion(_)) => panic!("none of them is pinned so"),
                Choice::Pinned(Pin::Name(pinned)) => {
                    let Some(stored) = server.objects.get(&format!("{REVISIONS}{pinned}")) else { continue };
                    let spec = Value::Object(revision::restore(&stored["data"]).unwrap());
                    server.acts.note("Pods with a pinned revision");
                    spec
                }
            };
            chosen.push((name.clone(), revision::name(name, &spec, 0), hash::of(&spec), spec));
        }
        let sets: Vec<Set<'_>> = chosen
            .iter()
            .map(|(name, revision, hashes, spec)| Set {
                name,
                spec,
                hash: &hashes.hash,
                hash_without_image: &hashes.without_image,
                revision,
                pod_level: PodLevel::Pad,
            })
            .collect();
        // A trial is of a Pod that has the containers of others already.
        let is_trial = !pod["metadata"]["annotations"][labels::TRIAL].is_null();
        let settings = Settings { sorted: false, api_server: None, now: clock::now().wall };
        let outcome = inject::inject(pod, &sets, Vec::new(), settings);
        assert!(is_trial || outcome.left_out.is_empty(), "{:?}", outcome.left_out);
        let patch: json_patch::Patch = serde_json::from_value(outcome.patch.into()).unwrap();
        json_patch::patch(pod, &patch).unwrap();
        chosen.into_iter().map(|(name, revision, ..)| (name, revision)).collect()
    }
}

/// The teams of all namespaces.
fn teams(server: &Server) -> BTreeMap<String, String> {
    let namespaces = server.of(NAMESPACES).into_iter().filter(|(path, _)| !path.contains(OF_PODS));
    let team = |space: &Value| space["metadata"]["labels"]["team"].as_str().unwrap().to_owned();
    namespaces.map(|(path, space)| (path.trim_start_matches(NAMESPACES).to_owned(), team(&space))).collect()
}

/// An eviction is a deletion with its preconditions.
fn evict(server: &mut Server, around: &mut Around, parts: &Parts, body: &[u8]) -> (u16, Value, Option<Arc<Value>>) {
    let path = parts.uri.path().trim_end_matches("/eviction");
    let body: Value = serde_json::from_slice(body).unwrap();
    let asked = json!({"preconditions": body["deleteOptions"]["preconditions"]}).to_string();
    let before = server.objects.get(path).cloned();
    let mut deletion = parts.clone();
    (deletion.method, deletion.uri) = (Method::DELETE, path.parse().unwrap());
    let (code, answer) = server.answer(&deletion, asked.as_bytes());
    let is_going = |pod: &Value| !pod["metadata"]["deletionTimestamp"].is_null();
    let goes = server.objects.get(path).is_none_or(|after| is_going(after));
    let gone = before.filter(|before| goes && !is_going(before));
    around.evicted.extend(gone.clone());
    (code, answer, gone)
}

struct Cloud {
    server: Arc<Mutex<Server>>,
    log: Arc<Mutex<Vec<Event>>>,
    refused: Refused,
    around: Arc<Mutex<Around>>,
    controller: Controller,
    /// What users have asked for, of the SidecarSets that there are.
    wanted: BTreeMap<&'static str, Wanted>,
    /// The same by UID and generation, with its hash: the controller may know an older one.
    asked: BTreeMap<(String, i64), (Wanted, String)>,
    /// By the name of the revision.
    shapes: BTreeMap<String, Shape>,
    /// The shape that was injected, by UID and SidecarSet.
    born: BTreeMap<String, BTreeMap<String, Shape>>,
    /// The twin that serves, by UID and sidecar.
    serving: BTreeMap<(String, String), String>,
    nodes: BTreeMap<String, Machine>,
    /// UID and version of what watches have told, by path.
    told: BTreeMap<String, (String, String)>,
    kubelets: Kubelets,
    budget: Option<usize>,
    made: usize,
    passes_at_once: usize,
    pass: Option<PassSeen>,
    /// Pods in the plainest terms, by path, with their versions: most of them are as they were a step before.
    seen: BTreeMap<String, (Value, Member)>,
    acts: Acts,
}

/// A controller whose API server notes what it reads and writes of Pods.
fn manager(
    server: &Arc<Mutex<Server>>,
    log: &Arc<Mutex<Vec<Event>>>,
    refused: &Refused,
    around: &Arc<Mutex<Around>>,
) -> Controller {
    let (server, log, refused, around) = (server.clone(), log.clone(), refused.clone(), around.clone());
    let mut context = in_memory::context(move |parts: &Parts, body: &[u8]| {
        let path = parts.uri.path().trim_end_matches("/status").to_owned();
        let is_status = parts.uri.path().ends_with("/status");
        let mut server = lock(&server);
        if parts.method == Method::POST && path.ends_with("/eviction") {
            let (code, answer, gone) = evict(&mut server, &mut lock(&around), parts, body);
            lock(&log).extend(gone.map(Event::Evicted));
            return (code, answer);
        }
        if parts.method == Method::POST && path.ends_with("/pods") {
            assert_eq!(parts.uri.query(), Some("dryRun=All"), "it makes no Pods");
            let mut pod: Value = serde_json::from_slice(body).unwrap();
            lock(&around).inject(&mut server, &mut pod);
            return (201, pod);
        }
        let refusal = lock(&refused).now.get(&path).copied().filter(|_| parts.method == Method::PATCH);
        let before = server.objects.get(&path).cloned();
        let answer = match refusal {
            Some(code) => {
                server.acts.note("Pods that are refused");
                (code, json!({"kind": "Status", "status": "Failure", "code": code, "message": "it may not"}))
            }
            None => server.answer(parts, body),
        };
        if parts.method == Method::PATCH && answer.0 >= 300 {
            lock(&refused).ever.insert(key_in(&path));
        }
        let after = server.objects.get(&path).cloned();
        let is_done = before.as_ref().map(|object| &object["metadata"]["resourceVersion"])
            != after.as_ref().map(|object| &object["metadata"]["resourceVersion"]);
        let (is_pod, is_revision) = (path.contains(OF_PODS), path.starts_with(REVISIONS.trim_end_matches('/')));
        let event = match (&parts.method, before, after) {
            (&Method::GET, _, Some(pod)) if is_pod => Some(Event::Read(pod)),
            (&Method::GET, _, _) => None,
            (&Method::PATCH, Some(before), Some(after)) if is_pod && is_done && is_status => {
                Some(Event::Marked(before, after, answer.0 < 300))
            }
            (&Method::PATCH, Some(before), Some(after)) if is_pod && is_done => {
                Some(Event::Wrote(before, after, answer.0 < 300))
            }
            (&Method::PATCH, _, _) if is_pod => None,
            (&Method::DELETE, before, after) if is_revision => {
                let name = path.trim_start_matches(REVISIONS).to_owned();
                (before.is_some() && after.is_none()).then_some(Event::Deleted(name))
            }
            _ if is_revision || path.starts_with(SETS) || path == BUDGET => None,
            _ => Some(Event::Odd(format!("{} {path}", parts.method))),
        };
        lock(&log).extend(event);
        answer
    });
    context.gates = Arc::new(FeatureGates::parse(&["PodUnavailableBudgetUpdateGate=true"], None).unwrap());
    context.budgets = Budgets::new(context.client.clone(), context.gates.clone());
    Controller::new(&context)
}

impl Cloud {
    fn new(random: &mut Random) -> Self {
        let server = Arc::new(Mutex::new(Server::new(|_, _| Ok(()))));
        lock(&server).is_graceful = true;
        let (log, refused): (Arc<Mutex<Vec<Event>>>, Refused) = Default::default();
        let around: Arc<Mutex<Around>> = Arc::default();
        let mut cloud = Self {
            controller: manager(&server, &log, &refused, &around),
            server,
            log,
            refused,
            around,
            wanted: BTreeMap::new(),
            asked: BTreeMap::new(),
            shapes: BTreeMap::new(),
            born: BTreeMap::new(),
            serving: BTreeMap::new(),
            nodes: BTreeMap::new(),
            told: BTreeMap::new(),
            kubelets: Kubelets::telling([Tells::Before, Tells::Nothing][random.below(2)]),
            budget: None,
            made: 0,
            passes_at_once: 0,
            pass: None,
            seen: BTreeMap::new(),
            acts: Acts::default(),
        };
        cloud.namespace("ns-a", "x");
        cloud.namespace("ns-b", "y");
        cloud.node("n1", 33);
        cloud.node("n2", 31);
        for name in KINDS {
            cloud.wanted.insert(name, Wanted::new(name, random));
        }
        cloud.put();
        while cloud.hear_of_sets() {}
        (0..5).for_each(|_| drop(cloud.pod(random)));
        cloud
    }

    fn namespace(&self, name: &str, team: &str) {
        let path = format!("{NAMESPACES}{name}");
        let mut server = lock(&self.server);
        let changes = json!({"metadata": {"name": name, "labels": {"team": team}}});
        match server.objects.contains_key(&path) {
            true => server.change(&path, &changes),
            false => drop(server.put(&path, changes)),
        }
    }

    fn node(&mut self, name: &str, minor: usize) {
        let made = self.nodes.len();
        let node = self.nodes.entry(name.to_owned()).or_insert_with(|| Machine {
            uid: format!("{name}-{made}"),
            version: 0,
            minor,
        });
        (node.version, node.minor) = (node.version + 1, minor);
        match minor < 32 {
            true => self.kubelets.old_nodes.insert(name.to_owned()),
            false => self.kubelets.old_nodes.remove(name),
        };
    }

    /// Users apply what is wanted; what they want no more is deleted, and its revisions are collected with it.
    fn put(&mut self) {
        let mut server = lock(&self.server);
        for name in KINDS {
            let path = format!("{SETS}{name}");
            let stored = server.objects.get(&path).map(|set| Value::clone(set));
            let Some(wanted) = self.wanted.get(name) else {
                let Some(gone) = stored else { continue };
                server.remove(&path);
                for (path, revision) in server.of(REVISIONS) {
                    if revision["metadata"]["ownerReferences"][0]["uid"] == gone["metadata"]["uid"] {
                        server.remove(&path);
                    }
                }
                continue;
            };
            let mut set = stored.unwrap_or_else(|| {
                json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet", "metadata": {"name": name, "generation": 0}})
            });
            let spec = wanted.spec();
            let hashes = hash::of(&spec);
            let mut annotations =
                json!({SIDECAR_SET_HASH: &hashes.hash, SIDECAR_SET_HASH_WITHOUT_IMAGE: hashes.without_image});
            if wanted.repairs {
                annotations[labels::REPAIR_UNINJECTED] = "evict".into();
            }
            if set["spec"] == spec && set["metadata"]["annotations"] == annotations {
                continue;
            }
            set["metadata"]["annotations"] = annotations;
            let generation = set["metadata"]["generation"].as_i64().unwrap() + i64::from(set["spec"] != spec);
            set["metadata"]["generation"] = generation.into();
            self.shapes.insert(revision::name(name, &spec, 0), wanted.shape);
            set["spec"] = spec;
            let set = server.put(&path, set);
            let uid = set["metadata"]["uid"].as_str().unwrap().to_owned();
            self.asked.insert((uid, generation), (wanted.clone(), hashes.hash));
        }
    }

    /// The webhook learns of one change of a SidecarSet.
    fn hear_of_sets(&mut self) -> bool {
        for name in KINDS {
            let stored = lock(&self.server).objects.get(&format!("{SETS}{name}")).cloned();
            let identity = |set: &Value| (set["metadata"]["uid"].clone(), set["metadata"]["generation"].clone());
            let sets = &mut lock(&self.around).sets;
            let known = sets.get(name).map(|(_, set)| identity(set));
            if known == stored.as_deref().map(identity) {
                continue;
            }
            match (stored, self.wanted.get(name)) {
                (Some(set), Some(wanted)) => sets.insert(name.into(), (wanted.clone(), Value::clone(&set))),
                _ => sets.remove(name),
            };
            return true;
        }
        false
    }

    fn pods(&self) -> Vec<(String, Arc<Value>)> {
        lock(&self.server).of(NAMESPACES).into_iter().filter(|(path, _)| path.contains(OF_PODS)).collect()
    }

    /// Writes one Pod, as kubelet, a user or a workload does. The watch will tell of it. False: remove it.
    fn write_pod(&self, path: &str, change: impl FnOnce(&mut Value) -> bool) {
        let mut server = lock(&self.server);
        let Some(before) = server.objects.get(path).cloned() else { return };
        let mut pod = Value::clone(&before);
        if !change(&mut pod) {
            return server.remove(path);
        }
        if pod["spec"] != before["spec"] {
            pod["metadata"]["generation"] = (before["metadata"]["generation"].as_i64().unwrap() + 1).into();
        }
        server.put(path, pod);
    }

    fn teams(&self) -> BTreeMap<String, String> {
        teams(&lock(&self.server))
    }

    /// A workload makes a Pod, and the webhook injects what it knows.
    fn pod(&mut self, random: &mut Random) -> String {
        let namespaces: Vec<String> = self.teams().into_keys().collect();
        let nodes: Vec<String> = self.nodes.keys().cloned().collect();
        let (namespace, node) = (random.one_of(&namespaces).unwrap(), random.one_of(&nodes).unwrap());
        self.made += 1;
        let name = format!("p{}", self.made);
        let (app, tier) = (["web", "web", "db"][random.below(3)], ["a", "b"][random.below(2)]);
        let said = format!("{namespace}/{name} of {app} in tier {tier} on {node}");
        let turn = [None, Some("1"), Some("2")][random.below(3)];
        let mut labels = json!({"app": app, "tier": tier, "guarded": (namespace == GUARDED).to_string()});
        if let Some(turn) = turn {
            labels["turn"] = turn.into();
        }
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace,
            "generation": 1, "labels": labels,
            "annotations": {}}, "spec": {"nodeName": node, "containers": [{"name": "main", "image": "app:1"}]}});
        let mut pod = pod;
        if random.chance(70) {
            let owner = ["rs-1", "rs-2"][random.below(2)];
            pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": true}]);
        }
        self.bear(&pod_path(namespace, &name), pod);
        said
    }

    /// The controller of an evicted Pod makes another one.
    fn replace(&mut self, random: &mut Random) -> Option<String> {
        let gone = lock(&self.around).evicted.pop()?;
        let nodes: Vec<String> = self.nodes.keys().cloned().collect();
        self.made += 1;
        let name = format!("p{}", self.made);
        let metadata = &gone["metadata"];
        let namespace = metadata["namespace"].as_str().unwrap();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace,
            "generation": 1, "labels": metadata["labels"], "annotations": {}, "ownerReferences": metadata["ownerReferences"]},
            "spec": {"nodeName": random.one_of(&nodes).unwrap(), "containers": [{"name": "main", "image": "app:1"}]}});
        self.bear(&pod_path(namespace, &name), pod);
        Some(format!("{namespace}/{name} comes in the place of {}", metadata["name"]))
    }

    /// Puts a Pod there with what the webhook injects.
    fn bear(&mut self, path: &str, mut pod: Value) {
        let mut server = lock(&self.server);
        let around = lock(&self.around);
        let injected = around.inject(&mut server, &mut pod);
        self.acts.note(if around.is_dead { "Pods without the webhook" } else { "Pods" });
        let pod = server.put(path, pod);
        let shapes = injected.into_iter().map(|(name, revision)| (name, self.shapes[&revision])).collect();
        self.born.insert(pod["metadata"]["uid"].as_str().unwrap().to_owned(), shapes);
    }
}

impl Cloud {
    /// A kubelet, and the processes that it starts: what one has to do about a Pod now; else when.
    fn play(&mut self, path: &str, pod: &Value, random: &mut Random) -> Result<String, Option<Duration>> {
        let key = key_in(path);
        if !self.nodes.contains_key(pod["spec"]["nodeName"].as_str().unwrap()) {
            self.write_pod(path, |_| false);
            return Ok(format!("{key} goes with its node"));
        }
        let living = match self.kubelets.look(pod, random.duration(Duration::from_secs(3))) {
            Look::Waits(after) => return Err(after),
            Look::Ended => {
                self.write_pod(path, |_| false);
                return Ok(format!("{key} has gone"));
            }
            Look::Lives(living) => living,
        };
        let was = living.is_true("Ready");
        let Living { runs, ready, statuses, init_statuses, starts_in, .. } = living;
        let (status, generation) = (&pod["status"], &pod["metadata"]["generation"]);
        if status["containerStatuses"] == statuses
            && status["initContainerStatuses"] == init_statuses
            && status["observedGeneration"] == *generation
            && was == ready
        {
            return Err(starts_in);
        }
        self.write_pod(path, |pod| {
            let status = &mut pod["status"];
            (status["containerStatuses"], status["initContainerStatuses"]) = (statuses, init_statuses);
            status["observedGeneration"] = generation.clone();
            if runs {
                status["phase"] = "Running".into();
            }
            if was != ready {
                let (is, at) = (if ready { "True" } else { "False" }, rfc3339(clock::now().wall));
                strategic(status, &json!({"conditions": [{"type": "Ready", "status": is, "lastTransitionTime": at}]}));
            }
            true
        });
        self.hand_over(path, pod);
        Ok(format!("kubelet: {key} runs: {runs}, ready: {ready}"))
    }

    /// Twins whose instances have ended or begun: who serves, by the table that sidecars go by. What is read from
    /// annotations is read when an instance begins.
    fn hand_over(&mut self, path: &str, before: &Value) {
        let Some(after) = lock(&self.server).objects.get(path).cloned() else { return };
        let annotations = &after["metadata"]["annotations"];
        let text = |key: &str| annotations[key].as_str().unwrap_or_default();
        let working: BTreeMap<String, String> =
            serde_json::from_str(text(labels::SIDECAR_SET_WORKING)).unwrap_or_default();
        let status = |pod: &Value, name: &str| -> (String, bool) {
            let mut all = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
            let found = all.find(|status| status["name"] == name).cloned().unwrap_or_default();
            (found["containerID"].as_str().unwrap_or_default().to_owned(), found["ready"] == true)
        };
        for sidecar in working.into_keys() {
            let twins = [1, 2].map(|twin| format!("{sidecar}-{twin}"));
            let key = (after["metadata"]["uid"].as_str().unwrap().to_owned(), sidecar);
            for twin in &twins {
                let ((old, _), (new, is_ready)) = (status(before, twin), status(&after, twin));
                if (old != new || !is_ready) && self.serving.get(&key) == Some(twin) {
                    self.serving.remove(&key);
                }
            }
            for twin in twins {
                let ((old, was_ready), (new, is_ready)) = (status(before, &twin), status(&after, &twin));
                if !is_ready || old == new && was_ready || started_with(&new) == EMPTY {
                    continue;
                }
                let version = |prefix: &str| text(&format!("{prefix}{twin}")).parse::<u64>().unwrap();
                let (own, other) = (version(SIDECAR_SET_VERSION_PREFIX), version(SIDECAR_SET_VERSION_ALT_PREFIX));
                if own > other {
                    self.acts.note("twins that took over");
                    self.serving.insert(key.clone(), twin);
                }
            }
        }
    }

    /// UID and version of what watches tell of, by path.
    fn there(&self) -> BTreeMap<String, (String, String)> {
        let text = |object: &Value, field: &str| object["metadata"][field].as_str().unwrap().to_owned();
        let server = lock(&self.server);
        let objects = server.of(SETS).into_iter().chain(server.of(NAMESPACES));
        let objects = objects.map(|(path, object)| (path, (text(&object, "uid"), text(&object, "resourceVersion"))));
        let nodes = self
            .nodes
            .iter()
            .map(|(name, node)| (format!("{NODES}{name}"), (node.uid.clone(), node.version.to_string())));
        objects.chain(nodes).collect()
    }

    /// A watch tells the controller of one object that has changed.
    fn tell(&mut self, random: &mut Random) -> Option<String> {
        let there = self.there();
        let changed = there.iter().filter(|(path, id)| self.told.get(*path) != Some(*id)).map(|(path, _)| path.clone());
        let gone = self.told.keys().filter(|path| !there.contains_key(*path)).cloned();
        let news: Vec<String> = changed.chain(gone).collect();
        let path = random.one_of(&news)?.clone();
        self.tell_of(&path, there.get(&path));
        Some(format!("watch: {path}"))
    }

    /// A watch tells of one object that is there now, in this version; before that, of the end of one that had its name.
    fn tell_of(&mut self, path: &str, now: Option<&(String, String)>) {
        let controller = &self.controller;
        let context = &controller.context;
        let known = self.told.get(path).map(|(uid, _)| uid.clone());
        let name = path.rsplit('/').next().unwrap();
        let key = match path.trim_start_matches(NAMESPACES).split_once(OF_PODS) {
            Some((namespace, name)) => ObjectKey::new(namespace, name),
            None => ObjectKey::new("", name),
        };
        if let Some(uid) = known.filter(|uid| now.is_none_or(|(now, _)| now != uid)) {
            if path.starts_with(SETS) {
                controller.sets.see_gone(&key, Some(&uid), |change| controller.set_changed(&change));
            } else if path.starts_with(NODES) {
                context.nodes.store().see_gone(&key, Some(&uid), |change| controller.node_changed(&change));
            } else if path.contains(OF_PODS) {
                context.pods.see_gone(&key, Some(&uid), |change| controller.pod_changed(&change));
            } else {
                controller.namespaces.see_gone(&key, Some(&uid), |change| controller.namespace_changed(&change));
            }
            self.told.remove(path);
        }
        let Some(now) = now else { return };
        if let Some(node) = path.strip_prefix(NODES).map(|name| self.nodes[name].object(name)) {
            let node: NodeView = serde_json::from_value(node).unwrap();
            context.nodes.store().see(node, |change| controller.node_changed(&change));
        } else {
            let object = Value::clone(&lock(&self.server).objects[path]);
            if path.starts_with(SETS) {
                let set = serde_json::from_value(object).unwrap();
                controller.sets.see(set, |change| controller.set_changed(&change));
            } else if path.contains(OF_PODS) {
                let pod = serde_json::from_value(object).unwrap();
                context.pods.see(pod, |change| controller.pod_changed(&change));
            } else {
                let namespace = serde_json::from_value(object).unwrap();
                controller.namespaces.see(namespace, |change| controller.namespace_changed(&change));
            }
        }
        self.told.insert(path.to_owned(), now.clone());
    }

    /// The manager starts anew: it has forgotten everything, and has read everything.
    fn restart(&mut self) {
        self.controller = manager(&self.server, &self.log, &self.refused, &self.around);
        self.told.clear();
        let there = self.there();
        there.iter().for_each(|(path, now)| self.tell_of(path, Some(now)));
    }

    /// The manager's controller of budgets: counts what the watch has told. The Pods that may not be taken out of service.
    fn count_budget(&self) -> BTreeSet<String> {
        let is_counted = |pod: &PodView| pod.namespace() == GUARDED && !pod.is_finished();
        let pods = self.controller.context.pods.select(is_counted);
        let mut server = lock(&self.server);
        let Some(mut object) = server.objects.get(BUDGET).map(|object| Value::clone(object)) else {
            return BTreeSet::new();
        };
        let stored: PodUnavailableBudget = serde_json::from_value(object.clone()).unwrap();
        let now = clock::now().wall;
        let known_for = |_: &str, since: Timestamp| Duration::try_from(now.duration_since(since)).unwrap_or_default();
        let counting = Counting::Manager { known_for: &known_for, is_restarting: &|_| false };
        let total = Total::Known(i32::try_from(pods.len()).unwrap());
        let mut status = budget::count(&stored, &self.controller.context.gates, &pods, total, counting, now).status;
        status.observed_generation = stored.metadata.generation.unwrap_or_default();
        let is_guarded = |pod: &&Arc<PodView>| {
            self.budget == Some(0) && status.desired_available > 0 && !status.unavailable_pods.contains_key(pod.name())
        };
        let guarded = pods.iter().filter(is_guarded).map(|pod| key_of(pod)).collect();
        let status = serde_json::to_value(status).unwrap();
        if object["status"] != status {
            object["status"] = status;
            server.put(BUDGET, object);
        }
        guarded
    }

    fn set_budget(&mut self, budget: Option<usize>) {
        self.budget = budget;
        let mut server = lock(&self.server);
        let before = server.objects.get(BUDGET).map(|object| Value::clone(object));
        let Some(most) = budget else { return server.remove(BUDGET) };
        let mut object = before.unwrap_or_else(|| {
            json!({"apiVersion": "policy.kruise.io/v1alpha1", "kind": "PodUnavailableBudget",
                "metadata": {"name": "guard", "namespace": GUARDED, "generation": 0}})
        });
        object["spec"] = json!({"selector": {"matchLabels": {"guarded": "true"}}, "maxUnavailable": most});
        object["metadata"]["generation"] = (object["metadata"]["generation"].as_i64().unwrap() + 1).into();
        server.put(BUDGET, object);
    }

    async fn reconcile(&mut self, key: ObjectKey) -> Result<String, String> {
        let guarded = self.count_budget();
        let Controller { sets, namespaces, context, .. } = &self.controller;
        let set = sets.get(&key).map(|set| {
            let id = (set.meta().uid.clone().unwrap(), set.meta().generation.unwrap());
            let (mut wanted, hash) = self.asked[&id].clone();
            wanted.repairs = !set.object()["metadata"]["annotations"][labels::REPAIR_UNINJECTED].is_null();
            (wanted, hash)
        });
        let team = |space: &Arc<Namespace>| {
            let labels = space.metadata.labels.clone().unwrap_or_default();
            (space.metadata.name.clone().unwrap(), labels["team"].clone())
        };
        let minor = |node: &Arc<NodeView>| {
            let minor = node.kubelet_minor.and_then(|minor| usize::try_from(minor).ok()).unwrap_or_default();
            (node.name().to_owned(), minor)
        };
        let known = |pod: &Arc<PodView>| (key_of(pod), Member::of(pod));
        let mut pass = PassSeen {
            set,
            knew: context.pods.list().iter().map(known).collect(),
            teams: namespaces.list().iter().map(team).collect(),
            kubelets: context.nodes.list().iter().map(minor).collect(),
            log: Vec::new(),
            serving: self.serving.clone(),
            guarded,
            refused: BTreeSet::new(),
            is_webhook_dead: lock(&self.around).is_dead,
            may_refuse: self.budget.is_some() || !lock(&self.server).faults.is_empty(),
        };
        lock(&self.log).clear();
        let next = self.controller.reconcile(&key).await;
        pass.log = std::mem::take(&mut *lock(&self.log));
        pass.refused = lock(&self.refused).ever.clone();
        let is_at_once = next.as_ref().is_ok_and(|next| *next == Requeue::After(Duration::ZERO));
        self.passes_at_once = if is_at_once { self.passes_at_once + 1 } else { 0 };
        if self.passes_at_once > 100 {
            return Err("one pass follows the other without end".into());
        }
        let written = |event: &Event| match event {
            Event::Wrote(_, after, is_known) => {
                let answer = if *is_known { "" } else { " (its answer was lost)" };
                Some(format!("\n              {}{answer}", model::said(after)))
            }
            Event::Read(_) => None,
            Event::Marked(_, after, _) => Some(format!("\n              condition: {}", model::said(after))),
            other => Some(format!("\n              {other:?}")),
        };
        let told: String = pass.log.iter().filter_map(written).collect();
        let said = format!("pass of {}: {:?}{told}", key.name, next.as_ref().map_err(ToString::to_string));
        self.pass = Some(pass);
        self.controller.queue.done(key, next);
        Ok(said)
    }
}

impl Cloud {
    /// A user changes a SidecarSet; None: there is none of the name that chance chooses.
    fn disturb_set(&mut self, what: usize, random: &mut Random) -> Option<(&'static str, String)> {
        let name = KINDS[random.below(KINDS.len())];
        let pins: Vec<String> = {
            let server = lock(&self.server);
            let uid = server.objects.get(&format!("{SETS}{name}"))?["metadata"]["uid"].clone();
            let is_own = |revision: &Value| revision["metadata"]["ownerReferences"][0]["uid"] == uid;
            let own = server.of(REVISIONS).into_iter().filter(|(_, revision)| is_own(revision));
            own.map(|(path, _)| path.trim_start_matches(REVISIONS).to_owned()).collect()
        };
        if what == 11 {
            self.wanted.remove(name)?;
            return Some(("sets removed", format!("{name} is removed")));
        }
        let wanted = self.wanted.get_mut(name)?;
        let what = match what {
            0..=2 => {
                wanted.images[0] = ["a:2", SAME, "a:3", OTHER, "bad:1", "mirror/a:2"][random.below(6)];
                "images"
            }
            3 => {
                wanted.images[1] = ["b:1", "b:2", "bad:2"][random.below(3)];
                "images"
            }
            4 => {
                let all = [Amount::Number(0), Amount::Number(2), Amount::Percent(50), Amount::Percent(99)];
                (wanted.partition, wanted.tier) = (all[random.below(4)], None);
                "partitions"
            }
            5 => {
                (wanted.partition, wanted.tier) = (Amount::Number(0), [None, Some("a")][random.below(2)]);
                "update selectors"
            }
            6 => {
                wanted.most(random);
                "limits"
            }
            7 => {
                wanted.paused = !wanted.paused;
                "pauses"
            }
            8 if random.chance(50) => {
                wanted.rank = [Rank::Any, Rank::Weight, Rank::Turn][random.below(3)];
                wanted.scatters = random.chance(20);
                "orders"
            }
            8 if random.chance(50) => {
                wanted.repairs = !wanted.repairs;
                "repairs"
            }
            8 => {
                wanted.not_update = !wanted.not_update;
                "types"
            }
            9 => {
                (wanted.both_apps, wanted.team) =
                    (random.chance(50), [None, None, Some("x"), Some("y")][random.below(4)]);
                "selectors"
            }
            10 => {
                match random.below(3) {
                    0 => wanted.shape.two = false,
                    _ => wanted.shape.env = random.below(2),
                }
                "shapes"
            }
            _ => {
                wanted.injects_nothing = random.chance(20);
                wanted.pin = random.one_of(&pins).cloned().filter(|_| random.chance(60));
                "pins"
            }
        };
        Some((what, format!("{wanted:?}")))
    }

    /// What was removed comes back, perhaps as something else.
    fn restore_set(&mut self, random: &mut Random) -> Option<(&'static str, String)> {
        let name = KINDS.into_iter().find(|name| !self.wanted.contains_key(name))?;
        let mut wanted = Wanted::new(name, random);
        wanted.shape.hot &= random.chance(70);
        let said = format!("again: {wanted:?}");
        self.wanted.insert(name, wanted);
        Some(("sets made again", said))
    }

    fn disturb_pod(&mut self, what: usize, random: &mut Random) -> Option<(&'static str, String)> {
        let pods = self.pods();
        if what < 2 {
            return (pods.len() < MOST_PODS).then(|| ("", self.pod(random)));
        }
        let (path, pod) = random.one_of(&pods)?.clone();
        let (key, uid) = (key_in(&path), pod["metadata"]["uid"].as_str().unwrap().to_owned());
        let what = match what {
            2 => {
                let harm = [0, 2, 3][random.below(3)];
                self.write_pod(&path, |pod| played::harm(harm, pod));
                return Some(("Pods harmed", format!("{key} {}", played::HARMS[harm])));
            }
            3 => {
                let (app, tier) = (["web", "db"][random.below(2)], ["a", "b"][random.below(2)]);
                let labels = json!({"app": app, "tier": tier});
                self.write_pod(&path, |pod| {
                    json_patch::merge(&mut pod["metadata"]["labels"], &labels);
                    true
                });
                return Some(("labels", format!("{key} has {labels}")));
            }
            4 => {
                let metadata = &pod["metadata"];
                let kept = json!({"name": metadata["name"], "namespace": metadata["namespace"],
                    "generation": 1, "labels": metadata["labels"], "annotations": {}});
                let next = json!({"apiVersion": "v1", "kind": "Pod", "metadata": kept,
                    "spec": {"nodeName": pod["spec"]["nodeName"], "containers": [{"name": "main", "image": "app:1"}]}});
                self.write_pod(&path, |_| false);
                self.bear(&path, next);
                "namesakes"
            }
            5 if pod["status"]["phase"] != "Running" => return None,
            5 => {
                let containers: Vec<Value> = pod["spec"]["containers"].as_array().unwrap().clone();
                let name = random.one_of(&containers)?["name"].as_str().unwrap().to_owned();
                let status = self.kubelets.crash(&uid, &name)?;
                self.write_pod(&path, |pod| {
                    let all = pod["status"]["containerStatuses"].as_array_mut().into_iter().flatten();
                    all.filter(|old| old["name"] == name).for_each(|old| *old = status.clone());
                    true
                });
                self.hand_over(&path, &pod);
                return Some(("crashes", format!("{key}: {name} is restarted")));
            }
            6 => {
                let main = (uid, "main".to_owned());
                if !self.kubelets.unready.remove(&main) {
                    self.kubelets.unready.insert(main);
                }
                "readiness"
            }
            7 => {
                self.write_pod(&path, |pod| {
                    let mut all = pod["spec"]["containers"].as_array_mut().unwrap().iter_mut();
                    let main = all.find(|container| container["name"] == "main").unwrap();
                    main["image"] = ["app:1", "app:2"][random.below(2)].into();
                    true
                });
                "updates by others"
            }
            _ => {
                let mut refused = lock(&self.refused);
                if refused.now.remove(&path).is_none() {
                    refused.now.insert(path, [403, 422, 500][random.below(3)]);
                }
                "refusals"
            }
        };
        Some((what, format!("{what}: {key}")))
    }

    fn disturb_rest(&mut self, what: usize, random: &mut Random) -> Option<(&'static str, String)> {
        let nodes: Vec<String> = self.nodes.keys().cloned().collect();
        Some(match what {
            0 if nodes.len() > 3 => {
                let name = random.one_of(&nodes)?.clone();
                self.nodes.remove(&name);
                ("nodes", format!("{name} leaves"))
            }
            0 => {
                self.made += 1;
                let (name, minor) = (format!("n{}", self.made), [31, 33][random.below(2)]);
                self.node(&name, minor);
                // A Pod may be known before its node.
                ("nodes", format!("{name} joins with 1.{minor}; {}", self.pod(random)))
            }
            1 => {
                let name = random.one_of(&nodes)?.clone();
                self.node(&name, 33);
                ("kubelets", format!("{name} gets a new kubelet"))
            }
            2 => {
                let (name, team) = (["ns-a", "ns-b", "ns-c"][random.below(3)], ["x", "y"][random.below(2)]);
                self.namespace(name, team);
                let pod = if self.pods().len() < MOST_PODS { self.pod(random) } else { String::new() };
                ("namespaces", format!("{name} is of team {team}; {pod}"))
            }
            3 => {
                let budget = [None, Some(0), Some(0), Some(1)][random.below(4)];
                self.set_budget(budget);
                ("budgets", format!("budget {budget:?}"))
            }
            4..=6 => {
                let mut server = lock(&self.server);
                if random.chance(60) {
                    ("faults", server.fail(random))
                } else {
                    server.faults.push_back(Fault::Lost);
                    ("faults", "the next answer is lost".into())
                }
            }
            7 => {
                self.restart();
                ("restarts", "the manager starts anew".into())
            }
            8 => {
                let is_dead = &mut lock(&self.around).is_dead;
                *is_dead = !*is_dead;
                ("webhook", format!("the webhook is dead: {is_dead}"))
            }
            _ => return self.restore_set(random),
        })
    }
}

impl Driver for Cloud {
    type Seen = Now;

    async fn disturb(&mut self, random: &mut Random) -> Result<String, String> {
        let done = match random.below(33) {
            what @ 0..=12 => self.disturb_set(what, random),
            what @ 13..=21 => self.disturb_pod(what - 13, random),
            what => self.disturb_rest(what - 22, random),
        };
        let Some((what, said)) = done else { return Ok(String::new()) };
        if !what.is_empty() {
            self.acts.note(what);
        }
        self.put();
        Ok(said)
    }

    async fn make_possible(&mut self) -> Result<String, String> {
        lock(&self.server).faults.clear();
        self.kubelets.unready.clear();
        lock(&self.around).is_dead = false;
        if self.budget == Some(0) {
            self.set_budget(Some(1));
        }
        if self.made.is_multiple_of(2) {
            lock(&self.refused).now.clear();
        }
        let is_refused = !lock(&self.refused).now.is_empty();
        // What stays broken uses up a budget, and what takes the place of an evicted Pod has to become ready.
        let is_broken = self.pods().iter().any(|(_, pod)| pod["spec"].to_string().contains("\"bad:"));
        for wanted in self.wanted.values_mut() {
            wanted.repairs &= !is_refused && !is_broken;
            wanted.paused = false;
            for (image, good) in wanted.images.iter_mut().zip(["a:4", "b:4"]) {
                if image.starts_with("bad") {
                    *image = good;
                }
            }
            if is_refused {
                (wanted.partition, wanted.tier) = (Amount::Number(0), None);
            }
        }
        self.put();
        Ok(format!("{:#?}, refused: {:?}", self.wanted, lock(&self.refused).now))
    }

    async fn step(&mut self, random: &mut Random) -> Result<Step, String> {
        self.pass = None;
        let mut next: Option<Duration> = None;
        let mut later = |after: Option<Duration>| next = [next, after].into_iter().flatten().min();
        // Who comes first is for the seed to say.
        let first = random.below(5);
        for turn in 0..5 {
            match (first + turn) % 5 {
                0 => {
                    if let Some(said) = self.tell(random) {
                        return Ok(Step::Worked(said));
                    }
                }
                1 => match self.controller.queue.begin() {
                    Some(key) => return Ok(Step::Worked(self.reconcile(key).await?)),
                    None => later(self.controller.queue.next_in()),
                },
                4 => {
                    if let Some(said) = self.replace(random) {
                        return Ok(Step::Worked(said));
                    }
                }
                2 => {
                    if self.hear_of_sets() {
                        return Ok(Step::Worked("the webhook learns of a SidecarSet".into()));
                    }
                }
                _ => {
                    for (path, pod) in self.pods() {
                        match self.play(&path, &pod, random) {
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
        self.passes_at_once = 0;
        tokio::time::advance(by).await;
    }

    async fn see(&mut self) -> Result<Now, String> {
        let pods = self.pods();
        self.seen.retain(|path, _| pods.iter().any(|(there, _)| there == path));
        for (path, pod) in pods {
            let version = &pod["metadata"]["resourceVersion"];
            if self.seen.get(&path).is_none_or(|(seen, _)| seen != version) {
                let member = Member::of(&serde_json::from_value(Value::clone(&pod)).unwrap());
                self.seen.insert(path, (version.clone(), member));
            }
        }
        let server = lock(&self.server);
        let present = |wanted: &Wanted| {
            let set = &server.objects[&format!("{SETS}{}", wanted.name)];
            Present {
                wanted: wanted.clone(),
                hash: set["metadata"]["annotations"][SIDECAR_SET_HASH].as_str().unwrap().to_owned(),
                generation: set["metadata"]["generation"].as_i64().unwrap(),
                status: set["status"].clone(),
            }
        };
        let sets = self.wanted.values().map(present).collect();
        let revisions = server.of(REVISIONS).into_iter().map(|(path, _)| path.trim_start_matches(REVISIONS).to_owned());
        let revisions = revisions.collect();
        drop(server);
        Ok(Now {
            sets,
            pods: self.seen.values().map(|(_, member)| member.clone()).collect(),
            teams: self.teams(),
            kubelets: self.nodes.iter().map(|(name, node)| (name.clone(), node.minor)).collect(),
            born: self.born.clone(),
            serving: self.serving.clone(),
            refused: lock(&self.refused).now.keys().map(|path| key_in(path)).collect(),
            revisions,
            pass: self.pass.take(),
        })
    }
}

fn history(seed: u64) -> Result<Acts, String> {
    let limits = Limits { changes: 20, steps_between: 40, patience: Duration::from_secs(3600), ..Limits::default() };
    let begin = |random: &mut Random| (Cloud::new(random), Promises::default());
    let acts = |cloud: Cloud, mut model: Promises| {
        model.acts.merge(cloud.acts);
        model.acts.merge(std::mem::take(&mut lock(&cloud.server).acts));
        model.acts
    };
    fake::history(seed, &limits, begin, |cloud| format!("{:#?}", cloud.wanted), acts)
}

#[test]
fn simulation_of_sidecar_sets() {
    let acts = liveness::seeds(40, "simulation_of_sidecar_sets", history);
    acts.require(&[
        ("Pods", 343),
        ("Pods harmed", 28),
        ("Pods that are refused", 60),
        ("Pods with a pinned revision", 2),
        ("Pods without the webhook", 17),
        ("budgets", 32),
        ("conditions that say no", 1),
        ("conditions that say yes", 1),
        ("crashes", 25),
        ("evicted to be repaired", 8),
        ("faults", 87),
        ("images", 112),
        ("kubelets", 26),
        ("labels", 17),
        ("limits", 35),
        ("lost answers", 53),
        ("namesakes", 25),
        ("namespaces", 31),
        ("nodes", 25),
        ("orders", 10),
        ("partitions", 32),
        ("pauses", 21),
        ("pins", 25),
        ("readiness", 38),
        ("refusals", 47),
        ("refused writes", 95),
        ("repairs", 7),
        ("resets", 40),
        ("restarts", 45),
        ("revisions deleted", 6),
        ("selectors", 37),
        ("sets made again", 6),
        ("sets removed", 21),
        ("shapes", 30),
        ("taken out of service", 146),
        ("twins that took over", 301),
        ("types", 5),
        ("update selectors", 25),
        ("updated while down", 83),
        ("updates", 230),
        ("updates by others", 28),
        ("updates to the image that runs", 5),
        ("webhook", 35),
    ]);
}
