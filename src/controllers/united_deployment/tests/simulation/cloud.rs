//! What surrounds the controller: users, workloads of four kinds, zones, faults.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use axum::http::{Method, request::Parts};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::super::super::{Controller, child};
use crate::{
    api::labels,
    controllers::{
        fake::{Next, Server},
        in_memory,
    },
    domain::{kinds::united_deployment::spec::ChildKind, workload::owner::OwnerRef},
    k8s::{pod::PodView, time::rfc3339},
    liveness::{Acts, Driver, Random, Step},
    runtime::{
        clock, lock, wake,
        watches::{Change, ObjectKey, StoredObject},
    },
};

pub(super) const UNITED: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/uniteddeployments/web";
pub(super) const PODS: &str = "/api/v1/namespaces/ns/pods/";
pub(super) const REVISIONS: &str = "/apis/apps/v1/namespaces/ns/controllerrevisions/";
/// The annotation of a Pod with the [`identity`] of the template that it was made from.
const MADE_FROM: &str = "played";
pub(super) const HISTORY: usize = 2;
/// Seconds after which a Pod without a place counts, and for which its subset gets no more.
const RESCHEDULE: i64 = 5;
pub(super) const UNSCHEDULABLE: i64 = 20;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

/// How replicas are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Shares,
    Bounds,
    Adaptive,
    Reserving,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Subset {
    pub(super) name: &'static str,
    pub(super) fixed: Option<i64>,
    pub(super) min: i64,
    pub(super) max: Option<i64>,
    /// The number in its patch.
    pub(super) patch: Option<usize>,
}

impl Subset {
    fn new(name: &'static str) -> Self {
        Self { name, fixed: None, min: 0, max: None, patch: None }
    }
}

/// What a user has asked for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    pub(super) kind: ChildKind,
    pub(super) mode: Mode,
    pub(super) total: i64,
    pub(super) subsets: Vec<Subset>,
    pub(super) image: String,
    pub(super) partitions: BTreeMap<&'static str, i64>,
    pub(super) budget: Option<i64>,
    pub(super) min_ready: i64,
    /// Each workload may take all of its Pods out of service at a time, but for its partition.
    pub(super) is_wide: bool,
    /// Workloads update no Pod by themselves.
    pub(super) is_paused: bool,
}

impl Wanted {
    fn new(random: &mut Random) -> Self {
        let mode = [Mode::Shares, Mode::Bounds, Mode::Adaptive, Mode::Reserving][random.below(4)];
        let mut wanted = Self {
            kind: ChildKind::CloneSet,
            mode,
            total: i64::try_from(1 + random.below(7)).unwrap(),
            subsets: NAMES[..1 + random.below(3)].iter().map(|name| Subset::new(name)).collect(),
            image: "i:1".into(),
            partitions: BTreeMap::new(),
            budget: random.chance(60).then(|| i64::try_from(1 + random.below(3)).unwrap()),
            min_ready: [0, 0, 3][random.below(3)],
            is_wide: random.chance(60),
            is_paused: false,
        };
        wanted.choose_kind(random);
        wanted.choose_bounds(random);
        wanted
    }

    fn choose_kind(&mut self, random: &mut Random) {
        use ChildKind::{AdvancedStatefulSet, CloneSet, Deployment, StatefulSet};
        let all = [CloneSet, CloneSet, Deployment, StatefulSet, AdvancedStatefulSet];
        let few = if self.mode == Mode::Reserving { &all[..3] } else { &all };
        self.kind = few[random.below(few.len())];
        if self.kind == Deployment {
            self.partitions.clear();
        }
        self.is_paused &= self.kind != StatefulSet;
    }

    /// Numbers of the subsets; the last one has none, so that there is room for any total.
    fn choose_bounds(&mut self, random: &mut Random) {
        let last = self.subsets.len() - 1;
        let mut number = |below: usize| i64::try_from(random.below(below)).unwrap();
        for (index, subset) in self.subsets.iter_mut().enumerate() {
            (subset.fixed, subset.min, subset.max) = (None, 0, None);
            let is_last = index == last;
            match self.mode {
                Mode::Shares if !is_last && number(2) == 0 => subset.fixed = Some(number(4)),
                Mode::Shares => {}
                _ => {
                    subset.min = number(3);
                    subset.max = if is_last { None } else { Some(subset.min + number(4)) };
                }
            }
        }
        // Without any bound it would be of another mode.
        if self.mode == Mode::Bounds {
            self.subsets[last].min = 1;
        }
    }

    pub(super) fn subset(&self, name: &str) -> Option<&Subset> {
        self.subsets.iter().find(|subset| subset.name == name)
    }

    fn fixed(&self) -> i64 {
        self.subsets.iter().filter_map(|subset| subset.fixed).sum()
    }

    /// Whether the numbers of the subsets fit the total.
    pub(super) fn fits(&self) -> bool {
        self.fixed() <= self.total
    }

    fn object(&self, uid: &str, generation: i64) -> Value {
        let mut spec = json!({"template": {"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "main", "image": self.image}]}}});
        match self.kind {
            ChildKind::AdvancedStatefulSet => {
                spec["podManagementPolicy"] = "Parallel".into();
                spec["updateStrategy"]["rollingUpdate"]["minReadySeconds"] = self.min_ready.into();
            }
            ChildKind::StatefulSet => {
                spec["podManagementPolicy"] = "Parallel".into();
                spec["minReadySeconds"] = self.min_ready.into();
            }
            ChildKind::CloneSet => {
                spec["minReadySeconds"] = self.min_ready.into();
                if self.is_wide {
                    spec["updateStrategy"]["maxUnavailable"] = "100%".into();
                }
            }
            ChildKind::Deployment => {
                spec["minReadySeconds"] = self.min_ready.into();
                let most = if self.is_wide { "100%" } else { "30%" };
                spec["strategy"] = json!({"rollingUpdate": {"maxUnavailable": most, "maxSurge": 0}});
            }
        }
        if self.is_paused {
            match self.kind {
                ChildKind::AdvancedStatefulSet => spec["updateStrategy"]["rollingUpdate"]["paused"] = true.into(),
                ChildKind::CloneSet => spec["updateStrategy"]["paused"] = true.into(),
                ChildKind::Deployment => spec["paused"] = true.into(),
                ChildKind::StatefulSet => {}
            }
        }
        let subset = |subset: &Subset| {
            let mut object = json!({"name": subset.name, "nodeSelectorTerm":
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": [subset.name]}]}});
            if let Some(fixed) = subset.fixed {
                object["replicas"] = fixed.into();
            }
            if self.mode != Mode::Shares {
                object["minReplicas"] = subset.min.into();
            }
            if let Some(max) = subset.max {
                object["maxReplicas"] = max.into();
            }
            if let Some(patch) = subset.patch {
                object["patch"] = json!({"metadata": {"annotations": {"patched": patch.to_string()}}});
            }
            object
        };
        let strategy = match self.mode {
            Mode::Shares | Mode::Bounds => json!({}),
            mode => json!({"type": "Adaptive", "adaptive": {"rescheduleCriticalSeconds": RESCHEDULE,
                "unschedulableDuration": UNSCHEDULABLE, "reserveUnschedulablePods": mode == Mode::Reserving}}),
        };
        let budget =
            self.budget.map_or_else(|| json!({}), |budget| json!({labels::UNITED_MAX_UNAVAILABLE: budget.to_string()}));
        json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "UnitedDeployment",
            "metadata": {"name": "web", "namespace": "ns", "uid": uid, "generation": generation, "annotations": budget},
            "spec": {"replicas": self.total, "selector": {"matchLabels": {"app": "web"}}, "revisionHistoryLimit": HISTORY,
                "template": {self.kind.member(): {"metadata": {"labels": {"app": "web"}}, "spec": spec}},
                "topology": {"scheduleStrategy": strategy, "subsets": self.subsets.iter().map(subset).collect::<Vec<_>>()},
                "updateStrategy": {"type": "Manual", "manualUpdate": {"partitions": self.partitions}}}})
    }
}

/// What templates differ in.
fn identity(template: &Value) -> String {
    let revision = template["metadata"]["labels"][labels::UNITED_REVISION].as_str().unwrap_or_default();
    let patched = text(template, "/metadata/annotations/patched");
    format!("{revision} {patched} {}", text(template, "/spec/containers/0/image"))
}

pub(super) fn directory(kind: ChildKind) -> String {
    format!("/apis/{}/{}/namespaces/ns/{}/", kind.group(), kind.version(), kind.plural())
}

/// The workloads, with their kinds.
pub(super) fn workloads(objects: &BTreeMap<String, Arc<Value>>) -> Vec<(ChildKind, String, Arc<Value>)> {
    let mut all = Vec::new();
    for kind in ChildKind::ALL {
        let at = directory(kind);
        let found = objects.range(at.clone()..).take_while(|(path, _)| path.starts_with(&at));
        all.extend(found.map(|(path, object)| (kind, path.clone(), object.clone())));
    }
    all
}

/// The UID of the workload of a Pod. The ReplicaSets of Deployments are not played: their UIDs say whose they are.
pub(super) fn workload_of(pod: &Value) -> &str {
    text(pod, "/metadata/ownerReferences/0/uid").trim_start_matches("rs-")
}

pub(super) fn is_ready(pod: &Value) -> bool {
    pod["status"]["conditions"].as_array().into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

pub(super) fn is_available(pod: &Value, min_ready: i64, now: Timestamp) -> bool {
    let ready = pod["status"]["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == "Ready");
    let since = ready.and_then(|ready| ready["lastTransitionTime"].as_str()?.parse::<Timestamp>().ok());
    is_ready(pod) && since.is_some_and(|since| since + SignedDuration::from_secs(min_ready) <= now)
}

/// Kept although it finds no place: others make up for it.
pub(super) fn is_marked(pod: &Value) -> bool {
    pod["metadata"]["labels"][labels::RESERVED_POD] == "true"
}

pub(super) fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// The subset of a Pod by its label, of a workload by its selector: a label can be taken off.
pub(super) fn subset_of(object: &Value) -> &str {
    let selector = object["spec"]["selector"]["matchLabels"][labels::SUBSET_NAME].as_str();
    selector.or(object["metadata"]["labels"][labels::SUBSET_NAME].as_str()).unwrap_or_default()
}

fn is_paused(spec: &Value) -> bool {
    let all = ["/paused", "/updateStrategy/paused", "/updateStrategy/rollingUpdate/paused"];
    all.iter().any(|at| spec.pointer(at) == Some(&Value::Bool(true)))
}

fn min_ready(kind: ChildKind, spec: &Value) -> i64 {
    let at = if kind == ChildKind::AdvancedStatefulSet {
        "/updateStrategy/rollingUpdate/minReadySeconds"
    } else {
        "/minReadySeconds"
    };
    number(spec, at)
}

pub(super) fn partition(kind: ChildKind, spec: &Value) -> i64 {
    kind.partition_pointer().map_or(0, |at| number(spec, at))
}

/// Its own maxUnavailable in Pods.
fn limit(kind: ChildKind, spec: &Value, replicas: i64) -> i64 {
    let value = match kind {
        ChildKind::CloneSet => &spec["updateStrategy"]["maxUnavailable"],
        ChildKind::Deployment => &spec["strategy"]["rollingUpdate"]["maxUnavailable"],
        _ => return 1,
    };
    match (value.as_i64(), value.as_str().and_then(|text| text.strip_suffix('%')?.parse::<i64>().ok())) {
        (Some(number), _) => number,
        (_, Some(percent)) => (replicas * percent / 100).max(1),
        _ => 1,
    }
}

#[derive(Clone, Debug)]
enum Effect {
    /// A workload makes a Pod, of this ordinal where it has ordinals.
    Create(String, Option<i64>),
    Remove(String),
    /// A workload updates a Pod.
    Roll(String, String),
    Bind(String),
    Refuse(String),
    Ready(String),
    /// Its owner is gone, or its deletion ends.
    Collect(String),
    Count(String, Value),
}

/// A Pod as the controller knew it.
#[derive(Clone, Debug)]
pub(super) struct PodKnown {
    uid: String,
    pub(super) workload: String,
    /// Where its workload has ordinals.
    pub(super) ordinal: Option<i64>,
    pub(super) is_ready: bool,
    pub(super) is_available: bool,
}

/// A workload as the controller knew it.
#[derive(Clone, Debug)]
pub(super) struct WorkloadKnown {
    pub(super) uid: String,
    pub(super) subset: String,
    pub(super) kind: Option<ChildKind>,
    pub(super) is_deleting: bool,
    /// Replicas, how many its partition keeps, and how many are updated as its status says. None: its status is about an older spec.
    pub(super) told: Option<(i64, i64, i64)>,
}

/// A pass of the controller: what it knew, and what was there before and after.
pub(super) struct PassSeen {
    /// None: it knew no object.
    pub(super) wanted: Option<Wanted>,
    pub(super) uid: String,
    pub(super) now: Timestamp,
    pub(super) pods: Vec<PodKnown>,
    pub(super) workloads: Vec<WorkloadKnown>,
    /// The same at its end.
    pub(super) workloads_then: Vec<WorkloadKnown>,
    /// Subsets of which it knew that no Pod finds a place in them for now.
    pub(super) closed: Vec<String>,
    pub(super) before: BTreeMap<String, Arc<Value>>,
    pub(super) after: BTreeMap<String, Arc<Value>>,
}

/// What the model judges.
pub(super) struct Seen {
    pub(super) now: Timestamp,
    pub(super) wanted: Wanted,
    pub(super) uid: String,
    pub(super) objects: BTreeMap<String, Arc<Value>>,
    /// Nobody has anything to do, or to hear of, at this moment.
    pub(super) is_quiet: bool,
    /// Zones without room.
    pub(super) closed: BTreeSet<&'static str>,
    pub(super) pass: Option<PassSeen>,
    /// Pods that roll-outs have taken out of service, as far as they are missed, without those that may be beside the budget and
    /// those that others make up for.
    pub(super) in_flight: i64,
    /// The largest budget that there was.
    pub(super) budget: Option<i64>,
}

pub(super) struct Cloud {
    server: Arc<Mutex<Server>>,
    controller: Arc<Controller>,
    /// Method and path of each write.
    writes: Arc<Mutex<Vec<String>>>,
    /// Writes after which the manager ends. Below zero: it has ended. The largest number: it goes on.
    life: Arc<AtomicI64>,
    wanted: Wanted,
    /// By generation.
    asked: BTreeMap<i64, Wanted>,
    generation: i64,
    uid: String,
    closed: BTreeSet<&'static str>,
    stalled: BTreeSet<&'static str>,
    /// The template from which all Pods of a workload have been made, by its UID.
    current: BTreeMap<String, Value>,
    /// UIDs of Pods that are on the way back from a roll-out.
    rolled: BTreeSet<String>,
    /// Pods that a roll-out has deleted and that are not made again yet, by the UID of the workload.
    awaited: BTreeMap<String, i64>,
    /// Pods that were down when the controller let a workload update some, by its UID: to update so many takes nothing out
    /// of service, as far as could be known.
    excused: BTreeMap<String, i64>,
    /// By the UID of a workload: how many of its Pods may be out of service beside the budget, until it has rolled.
    beside: BTreeMap<String, i64>,
    budget: Option<i64>,
    pass: Option<PassSeen>,
    made: i64,
}

/// As the API server and admission do with new objects.
fn admit(_: &mut Server, object: &mut Value) -> Result<(), u16> {
    object["metadata"]["generation"] = 1.into();
    Ok(())
}

/// How many Pods of the other workloads of a kind are missing or down, as far as the controller knew.
fn down_elsewhere(
    objects: &BTreeMap<String, Arc<Value>>,
    kind: ChildKind,
    uid: &str,
    known: &[WorkloadKnown],
    pods: &[PodKnown],
) -> i64 {
    let others = workloads(objects).into_iter().filter(|(of, _, other)| {
        let other = text(other, "/metadata/uid");
        *of == kind && other != uid && known.iter().any(|known| known.uid == other)
    });
    let down = |(_, _, other): (ChildKind, String, Arc<Value>)| {
        let of = text(&other, "/metadata/uid");
        let up = pods.iter().filter(|pod| pod.workload == of && pod.is_available).count();
        (number(&other, "/spec/replicas") - i64::try_from(up).unwrap()).max(0)
    };
    others.map(down).sum()
}

fn manager(server: &Arc<Mutex<Server>>, writes: &Arc<Mutex<Vec<String>>>, life: &Arc<AtomicI64>) -> Arc<Controller> {
    let (server, writes, life) = (server.clone(), writes.clone(), life.clone());
    let context = in_memory::context(move |parts: &Parts, body: &[u8]| {
        let is_write = parts.method != Method::GET;
        let left = life.load(Ordering::Relaxed);
        if left < 0 || (is_write && left == 0) {
            life.store(-1, Ordering::Relaxed);
            return (
                500,
                json!({"kind": "Status", "status": "Failure", "code": 500, "message": "the manager has ended"}),
            );
        }
        if is_write {
            if left != i64::MAX {
                life.store(left - 1, Ordering::Relaxed);
            }
            lock(&writes).push(format!("{} {}", parts.method, parts.uri.path()));
        }
        lock(&server).answer(parts, body)
    });
    Arc::new(Controller::new(&context))
}

impl Cloud {
    pub(super) fn new(random: &mut Random) -> Self {
        let (server, writes) = (Arc::new(Mutex::new(Server::new(admit))), Arc::default());
        let life = Arc::new(AtomicI64::new(i64::MAX));
        let wanted = Wanted::new(random);
        let mut cloud = Self {
            controller: manager(&server, &writes, &life),
            server,
            writes,
            life,
            asked: BTreeMap::new(),
            generation: 0,
            uid: "u-0".into(),
            closed: BTreeSet::new(),
            stalled: BTreeSet::new(),
            current: BTreeMap::new(),
            rolled: BTreeSet::new(),
            awaited: BTreeMap::new(),
            excused: BTreeMap::new(),
            beside: BTreeMap::new(),
            budget: wanted.budget,
            wanted,
            pass: None,
            made: 0,
        };
        cloud.put_foreign();
        cloud.apply();
        cloud
    }

    pub(super) fn told(&self) -> String {
        format!("{:?}", self.wanted)
    }

    pub(super) fn acts(&self) -> Acts {
        lock(&self.server).acts.clone()
    }

    fn note(&self, act: &'static str) {
        lock(&self.server).acts.note(act);
    }

    fn objects(&self) -> BTreeMap<String, Arc<Value>> {
        lock(&self.server).objects.clone()
    }

    fn get(&self, path: &str) -> Option<Arc<Value>> {
        lock(&self.server).objects.get(path).cloned()
    }

    /// Workloads and Pods of others that look much like ours.
    fn put_foreign(&self) {
        let labels = json!({"app": "web", labels::SUBSET_NAME: "a", labels::UNITED_REVISION: "web-1"});
        for (kind, owner) in [
            (ChildKind::CloneSet, Value::Null),
            (
                ChildKind::StatefulSet,
                json!([{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "UnitedDeployment", "name": "other", "uid": "other", "controller": true}]),
            ),
            (
                ChildKind::Deployment,
                json!([{"apiVersion": "example.com/v1", "kind": "UnitedDeployment", "name": "web", "uid": "u-0", "controller": true}]),
            ),
        ] {
            let mut object = json!({"apiVersion": format!("{}/{}", kind.group(), kind.version()), "kind": kind.kind(),
                "metadata": {"name": "web-a", "namespace": "ns", "generation": 1, "labels": labels},
                "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": labels}}}});
            if !owner.is_null() {
                object["metadata"]["ownerReferences"] = owner;
            }
            lock(&self.server).put(&format!("{}web-a", directory(kind)), object);
        }
        let owner = json!([{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web-a", "uid": "foreign", "controller": true}]);
        let pod = json!({"metadata": {"name": "web-a-foreign", "namespace": "ns", "labels": labels, "ownerReferences": owner},
            "spec": {"nodeName": "n"}, "status": {"phase": "Running"}});
        lock(&self.server).put(&format!("{PODS}web-a-foreign"), pod);
    }

    /// A user writes the object.
    fn apply(&mut self) {
        self.generation += 1;
        self.asked.insert(self.generation, self.wanted.clone());
        self.budget = self.budget.max(self.wanted.budget);
        let mut object = self.wanted.object(&self.uid, self.generation);
        if let Some(before) = self.get(UNITED).filter(|before| text(before, "/metadata/uid") == self.uid) {
            object["status"] = before["status"].clone();
            object["metadata"]["creationTimestamp"] = before["metadata"]["creationTimestamp"].clone();
        }
        if !self.wanted.fits() {
            self.note("numbers that do not fit");
        }
        lock(&self.server).put(UNITED, object);
    }

    /// Delivers one change, as the watch of its kind does.
    fn deliver(&self, path: &str) {
        let now = self.get(path);
        let controller = &self.controller;
        let key = ObjectKey::new("ns", path.rsplit('/').next().unwrap_or_default());
        macro_rules! deliver {
            ($store:expr, $on_change:expr) => {{
                let uid = now.as_ref().map(|now| text(now, "/metadata/uid").to_owned());
                if let Some(old) = $store.get(&key).filter(|old| old.object_uid() != uid.as_deref()) {
                    $store.see_gone(&key, old.object_uid(), |change| $on_change(&change));
                }
                if let Some(now) = now {
                    let object = serde_json::from_value(Value::clone(&now)).unwrap();
                    $store.see(object, |change| $on_change(&change));
                }
            }};
        }
        macro_rules! deliver_workload {
            ($kind:ident) => {
                deliver!(controller.children.$kind.store, |change: &Change<'_, _>| {
                    child::changed(change).into_iter().for_each(|key| controller.queue.add(key));
                })
            };
        }
        let at = |kind| path.starts_with(&directory(kind));
        if path == UNITED {
            deliver!(controller.objects, |change: &Change<'_, _>| {
                wake::workload_changed(change, &controller.queue, &controller.memories);
            });
        } else if path.starts_with(PODS) {
            deliver!(controller.context.pods, |change: &Change<'_, PodView>| controller.pod_changed(change));
        } else if at(ChildKind::CloneSet) {
            deliver_workload!(clone_sets);
        } else if at(ChildKind::Deployment) {
            deliver_workload!(deployments);
        } else if at(ChildKind::StatefulSet) {
            deliver_workload!(stateful_sets);
        } else if at(ChildKind::AdvancedStatefulSet) {
            deliver_workload!(advanced);
        }
    }

    /// One of the watches brings its next change.
    fn deliver_next(&self, random: &mut Random) -> Option<String> {
        let path = {
            let news = &mut lock(&self.server).news;
            let watch = |path: &str| path.rsplit_once('/').map(|(watch, _)| watch.to_owned());
            let watches: BTreeSet<_> = news.iter().map(|path| watch(path)).collect();
            let watches: Vec<_> = watches.into_iter().collect();
            let chosen = random.one_of(&watches)?;
            let index = news.iter().position(|path| watch(path) == *chosen)?;
            news.remove(index)?
        };
        self.deliver(&path);
        Some(format!("delivered {path}"))
    }

    fn restart_manager(&mut self) {
        self.life.store(i64::MAX, Ordering::Relaxed);
        self.controller = manager(&self.server, &self.writes, &self.life);
        lock(&self.server).news.clear();
        self.note("managers that started anew");
        for path in self.objects().keys() {
            self.deliver(path);
        }
    }

    /// What the controllers of workloads, the scheduler, kubelets and the garbage collector would do next.
    fn surroundings(&self) -> Vec<Effect> {
        let objects = self.objects();
        let all = workloads(&objects);
        let pods: Vec<(&String, &Arc<Value>)> = objects
            .range(PODS.to_owned()..)
            .take_while(|(path, _)| path.starts_with(PODS))
            .filter(|(path, _)| !path.ends_with("foreign"))
            .collect();
        let mut effects = Vec::new();
        for (kind, path, workload) in &all {
            let owner = &workload["metadata"]["ownerReferences"][0];
            if owner["apiVersion"] != "apps.kruise.io/v1alpha1" || owner["name"] != "web" {
                continue;
            }
            let is_orphan = objects.get(UNITED).is_none_or(|united| united["metadata"]["uid"] != owner["uid"]);
            if is_orphan || is_deleting(workload) {
                effects.push(Effect::Collect(path.clone()));
            }
            if is_deleting(workload) || self.stalled.contains(subset_of(workload)) {
                continue;
            }
            let own: Vec<(&String, &Arc<Value>)> =
                pods.iter().filter(|(_, pod)| workload_of(pod) == text(workload, "/metadata/uid")).copied().collect();
            self.work(*kind, path, workload, &own, &mut effects);
        }
        for (path, pod) in &pods {
            if !all.iter().any(|(_, _, workload)| text(workload, "/metadata/uid") == workload_of(pod)) {
                effects.push(Effect::Collect((*path).clone()));
                continue;
            }
            let is_closed = self.closed.contains(subset_of(pod));
            if text(pod, "/spec/nodeName").is_empty() {
                if !is_closed {
                    effects.push(Effect::Bind((*path).clone()));
                } else if pod["status"]["conditions"].is_null() {
                    effects.push(Effect::Refuse((*path).clone()));
                }
            } else if !is_ready(pod) && !text(pod, "/spec/containers/0/image").starts_with("bad") {
                effects.push(Effect::Ready((*path).clone()));
            }
        }
        effects
    }

    /// What the controller of a workload does next.
    fn work(
        &self,
        kind: ChildKind,
        path: &str,
        workload: &Value,
        pods: &[(&String, &Arc<Value>)],
        effects: &mut Vec<Effect>,
    ) {
        let (spec, now) = (&workload["spec"], clock::now().wall);
        let replicas = number(spec, "/replicas");
        let made_from = Value::from(identity(&spec["template"]));
        let has_it = |pod: &Value| pod["metadata"]["annotations"][MADE_FROM] == made_from;
        let available = |pod: &Value| is_available(pod, min_ready(kind, spec), now);
        let there = i64::try_from(pods.len()).unwrap();
        let count = |is: &dyn Fn(&Value) -> bool| pods.iter().filter(|(_, pod)| is(pod)).count();
        let mut status = json!({"observedGeneration": workload["metadata"]["generation"], "replicas": there});
        for (key, count) in [
            ("readyReplicas", count(&|p| is_ready(p))),
            ("availableReplicas", count(&available)),
            ("updatedReplicas", count(&has_it)),
        ] {
            // The built-in kinds leave zeros out.
            if count > 0 || matches!(kind, ChildKind::CloneSet | ChildKind::AdvancedStatefulSet) {
                status[key] = count.into();
            }
        }
        if kind != ChildKind::Deployment {
            status["updateRevision"] = made_from.clone();
        }
        if workload["status"] != status {
            effects.push(Effect::Count(path.to_owned(), status));
        }
        let ordinal_of =
            |path: &str| path.rsplit('-').next().and_then(|text| text.parse::<i64>().ok()).unwrap_or(i64::MAX);
        if kind.has_ordinals() {
            let missing = (0..replicas).find(|ordinal| !pods.iter().any(|(path, _)| ordinal_of(path) == *ordinal));
            effects.extend(missing.map(|ordinal| Effect::Create(path.to_owned(), Some(ordinal))));
            let surplus =
                pods.iter().max_by_key(|(path, _)| ordinal_of(path)).filter(|(path, _)| ordinal_of(path) >= replicas);
            effects.extend(surplus.map(|(path, _)| Effect::Remove((*path).clone())));
            for ordinal in (partition(kind, spec)..replicas).rev().filter(|_| !is_paused(spec)) {
                let Some((pod_path, pod)) = pods.iter().find(|(path, _)| ordinal_of(path) == ordinal) else { break };
                if !has_it(pod) {
                    effects.push(Effect::Roll(path.to_owned(), (*pod_path).clone()));
                    break;
                }
                if !available(pod) {
                    break;
                }
            }
            return;
        }
        if there < replicas {
            effects.push(Effect::Create(path.to_owned(), None));
        } else if there > replicas {
            let first = pods.iter().min_by_key(|(_, pod)| (is_ready(pod), has_it(pod)));
            effects.extend(first.map(|(path, _)| Effect::Remove((*path).clone())));
        }
        let old: Vec<_> = pods.iter().filter(|(_, pod)| !has_it(pod)).collect();
        if !is_paused(spec)
            && i64::try_from(old.len()).unwrap() > partition(kind, spec)
            && let Some((pod_path, pod)) = old.iter().min_by_key(|(_, pod)| available(pod))
        {
            let up = i64::try_from(count(&available)).unwrap();
            if !available(pod) || up > replicas - limit(kind, spec, replicas) {
                effects.push(Effect::Roll(path.to_owned(), (*pod_path).clone()));
            }
        }
    }

    fn create(&mut self, path: &str, ordinal: Option<i64>) -> String {
        let Some(workload) = self.get(path) else { return String::new() };
        let kind = ChildKind::ALL.into_iter().find(|kind| path.starts_with(&directory(*kind))).unwrap();
        let (uid, name) = (text(&workload, "/metadata/uid").to_owned(), text(&workload, "/metadata/name").to_owned());
        let template = workload["spec"]["template"].clone();
        let current = self.current.entry(uid.clone()).or_insert_with(|| template.clone()).clone();
        let kept = partition(kind, &workload["spec"]);
        let made_from = identity(&template);
        let old = self
            .objects()
            .range(PODS.to_owned()..)
            .filter(|(_, pod)| workload_of(pod) == uid && pod["metadata"]["annotations"][MADE_FROM] != made_from)
            .count();
        let is_kept = match ordinal {
            Some(ordinal) => ordinal < kept,
            // A Deployment that is paused makes no ReplicaSet.
            None => {
                i64::try_from(old).unwrap() < kept || (kind == ChildKind::Deployment && is_paused(&workload["spec"]))
            }
        };
        let template = if is_kept { current } else { template };
        self.made += 1;
        let pod_name =
            format!("{name}-{}", ordinal.map_or_else(|| format!("p{}", self.made), |ordinal| ordinal.to_string()));
        let owner = if kind == ChildKind::Deployment {
            let hash = template["metadata"]["labels"][labels::UNITED_REVISION]
                .as_str()
                .unwrap_or_default()
                .rsplit('-')
                .next()
                .unwrap_or_default()
                .to_owned();
            json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{name}-{hash}"), "uid": format!("rs-{uid}"), "controller": true})
        } else {
            json!({"apiVersion": format!("{}/{}", kind.group(), kind.version()), "kind": kind.kind(), "name": name, "uid": uid, "controller": true})
        };
        let mut pod = json!({"metadata": {"name": pod_name, "namespace": "ns", "ownerReferences": [owner], "labels": template["metadata"]["labels"],
            "annotations": {MADE_FROM: identity(&template)}}, "spec": template["spec"], "status": {"phase": "Pending"}});
        pod["metadata"]["annotations"]["patched"] = template["metadata"]["annotations"]["patched"].clone();
        if kind != ChildKind::Deployment {
            pod["metadata"]["labels"][labels::CONTROLLER_REVISION_HASH] = identity(&template).into();
        }
        let at = format!("{PODS}{pod_name}");
        let pod = lock(&self.server).put(&at, pod);
        if let Some(awaited) = self.awaited.get_mut(&uid).filter(|awaited| **awaited > 0) {
            *awaited -= 1;
            self.rolled.insert(text(&pod, "/metadata/uid").to_owned());
        }
        format!("{pod_name} is made{}", if is_kept { " as before" } else { "" })
    }

    fn roll(&mut self, path: &str, pod_path: &str, random: &mut Random) -> String {
        let (Some(workload), Some(pod)) = (self.get(path), self.get(pod_path)) else { return String::new() };
        let template = &workload["spec"]["template"];
        let (uid, of) = (text(&pod, "/metadata/uid").to_owned(), text(&workload, "/metadata/uid").to_owned());
        self.note("Pods rolled");
        let kind = ChildKind::ALL.into_iter().find(|kind| path.starts_with(&directory(*kind))).unwrap();
        let is_up = is_available(&pod, min_ready(kind, &workload["spec"]), clock::now().wall);
        let excused = self.excused.entry(of.clone()).or_default();
        let is_excused = *excused > 0;
        *excused = (*excused - 1).max(0);
        let is_made_up_for = is_marked(&pod) && !is_up;
        let counts = !is_made_up_for && (self.rolled.contains(&uid) || (is_up && !is_excused));
        if path.starts_with(&directory(ChildKind::CloneSet)) && random.chance(50) {
            let ready = json!([{"type": "Ready", "status": "False", "lastTransitionTime": rfc3339(clock::now().wall)}]);
            let mut changed = Value::clone(&pod);
            json_patch::merge(
                &mut changed,
                &json!({"metadata": {"labels": template["metadata"]["labels"],
                "annotations": {MADE_FROM: identity(template), "patched": template["metadata"]["annotations"]["patched"]}}}),
            );
            changed["metadata"]["labels"][labels::CONTROLLER_REVISION_HASH] = identity(template).into();
            changed["spec"]["containers"] = template["spec"]["containers"].clone();
            if !text(&pod, "/spec/nodeName").is_empty() {
                changed["status"]["conditions"] = ready;
            }
            lock(&self.server).put(pod_path, changed);
            if counts {
                self.rolled.insert(uid);
            }
            return format!("{pod_path} is updated in place");
        }
        lock(&self.server).remove(pod_path);
        if counts {
            *self.awaited.entry(of).or_default() += 1;
        }
        format!("{pod_path} is updated")
    }

    fn play(&mut self, effect: Effect, random: &mut Random) -> String {
        let said = format!("{effect:?}");
        let conditions = |ready: bool| {
            let time = rfc3339(clock::now().wall);
            json!({"status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": if ready { "True" } else { "False" }, "lastTransitionTime": time}]}})
        };
        match effect {
            Effect::Create(path, ordinal) => return self.create(&path, ordinal),
            Effect::Roll(path, pod) => return self.roll(&path, &pod, random),
            Effect::Remove(path) | Effect::Collect(path) => lock(&self.server).remove(&path),
            Effect::Bind(path) => {
                let mut changes = conditions(false);
                changes["spec"]["nodeName"] = "n".into();
                lock(&self.server).change(&path, &changes);
            }
            Effect::Refuse(path) => {
                let refused = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
                lock(&self.server).change(&path, &json!({"status": {"conditions": refused}}));
            }
            Effect::Ready(path) => lock(&self.server).change(&path, &conditions(true)),
            Effect::Count(path, status) => {
                let mut server = lock(&self.server);
                if let Some(workload) = server.objects.get(&path).cloned() {
                    let mut workload = Value::clone(&workload);
                    workload["status"] = status;
                    server.put(&path, workload);
                }
            }
        }
        said
    }

    /// What is known only to those who look at everything: which Pods are on the way back, and which template all Pods have.
    fn settle_accounts(&mut self) -> i64 {
        let (objects, now) = (self.objects(), clock::now().wall);
        let mut in_flight = 0;
        let pods: Vec<&Arc<Value>> = objects
            .range(PODS.to_owned()..)
            .take_while(|(path, _)| path.starts_with(PODS))
            .map(|(_, pod)| pod)
            .collect();
        let mut on_the_way = BTreeSet::new();
        let all = workloads(&objects);
        self.awaited.retain(|uid, _| all.iter().any(|(_, _, workload)| text(workload, "/metadata/uid") == uid));
        for (kind, _, workload) in all {
            let uid = text(&workload, "/metadata/uid");
            let (spec, replicas) = (&workload["spec"], number(&workload, "/spec/replicas"));
            let own: Vec<&Arc<Value>> = pods.iter().filter(|pod| workload_of(pod) == uid).copied().collect();
            let is_up = |pod: &&&Arc<Value>| is_available(pod, min_ready(kind, spec), now);
            let up = i64::try_from(own.iter().filter(is_up).count()).unwrap();
            let is_rolled = |pod: &&&Arc<Value>| self.rolled.contains(text(pod, "/metadata/uid"));
            let back: Vec<&Arc<Value>> = own.iter().filter(|pod| !is_up(pod) && is_rolled(pod)).copied().collect();
            let missed = i64::try_from(back.iter().filter(|pod| !is_marked(pod)).count()).unwrap();
            let there = i64::try_from(own.len()).unwrap();
            let awaited = self.awaited.entry(uid.to_owned()).or_default();
            *awaited = (*awaited).min((replicas - there).max(0));
            // One that is not wanted any more is replaced as a whole.
            let is_wanted = kind == self.wanted.kind && self.wanted.subset(subset_of(&workload)).is_some();
            let missed = (missed + *awaited).min((replicas - up).max(0));
            if is_wanted && !is_deleting(&workload) {
                in_flight += (missed - self.beside.get(uid).copied().unwrap_or_default()).max(0);
            }
            on_the_way.extend(back.iter().map(|pod| text(pod, "/metadata/uid").to_owned()));
            let made_from = identity(&spec["template"]);
            let is_done =
                there >= replicas && own.iter().all(|pod| pod["metadata"]["annotations"][MADE_FROM] == made_from);
            if is_done || !self.current.contains_key(uid) {
                self.current.insert(uid.to_owned(), spec["template"].clone());
            }
            if is_done {
                self.excused.remove(uid);
            }
            if is_done && missed == 0 {
                self.beside.remove(uid);
            }
        }
        self.rolled = on_the_way;
        in_flight
    }

    async fn reconcile(&mut self, key: ObjectKey) -> Result<String, String> {
        let (before, now) = (self.objects(), clock::now().wall);
        let object = self.controller.objects.get(&key).map(|held| held.open().unwrap());
        let generation = object.as_ref().and_then(|object| object.metadata.generation).unwrap_or_default();
        let uid = object.as_ref().and_then(|object| object.metadata.uid.clone()).unwrap_or_default();
        let wanted = self.asked.get(&generation).filter(|_| object.is_some()).cloned();
        let min_ready = SignedDuration::from_secs(wanted.as_ref().map_or(0, |wanted| wanted.min_ready));
        let known = |pod: &Arc<PodView>| PodKnown {
            uid: pod.uid().to_owned(),
            workload: pod.controller.as_ref().map_or("", |owner| owner.uid.trim_start_matches("rs-")).to_owned(),
            ordinal: pod.name().rsplit('-').next().and_then(|ordinal| ordinal.parse().ok()),
            is_ready: pod.condition_is_true("Ready"),
            is_available: pod.condition_is_true("Ready")
                && pod.ready_since.is_some_and(|since| since + min_ready <= now),
        };
        let pods: Vec<PodKnown> = self.controller.context.pods.list().iter().map(known).collect();
        let workloads = self.known_workloads(&uid);
        let statuses =
            object.iter().filter_map(|object| object.status.as_ref()).flat_map(|status| &status.subset_statuses);
        let is_closed = |condition: &crate::api::apps::united_deployment::UnitedCondition| {
            let until = condition.last_transition_time.map(|since| since + SignedDuration::from_secs(UNSCHEDULABLE));
            condition.type_ == "Schedulable" && condition.status == "False" && until.is_some_and(|until| until > now)
        };
        let closed = statuses
            .filter(|subset| subset.conditions.iter().any(is_closed))
            .map(|subset| subset.name.clone())
            .collect();
        // Of a Pod that a roll-out has just taken it may not know yet.
        let is_blind = lock(&self.server)
            .news
            .iter()
            .filter(|path| path.starts_with(PODS))
            .any(|path| before.get(path).is_none_or(|pod| self.rolled.contains(text(pod, "/metadata/uid"))));
        let from = lock(&self.writes).len();
        let next = self.controller.reconcile(&key).await;
        let writes = lock(&self.writes)[from..].to_vec();
        let after = self.objects();
        for (kind, path, workload) in self::workloads(&after) {
            if before.get(&path).is_some_and(|before| before["spec"] == workload["spec"]) {
                continue;
            }
            let of = text(&workload, "/metadata/uid");
            if before.get(&path).is_some_and(|before| before["spec"]["template"] != workload["spec"]["template"]) {
                // Where Deployments wait for each other one goes, with one Pod beside what is down in the others.
                let elsewhere = down_elsewhere(&after, kind, of, &workloads, &pods);
                let budget = wanted.as_ref().and_then(|wanted| wanted.budget);
                let is_mended = kind == ChildKind::Deployment && budget.is_some_and(|budget| elsewhere >= budget);
                let beside = self.beside.entry(of.to_owned()).or_default();
                *beside = (*beside).max(i64::from(is_mended));
            }
            // Those that are down and have been updated already make no room for others.
            let up = pods.iter().filter(|pod| pod.workload == of && pod.is_available).count();
            let made_from = identity(&workload["spec"]["template"]);
            let is_back_soon = |pod: &Value| {
                workload_of(pod) == of
                    && pod["metadata"]["annotations"][MADE_FROM] == made_from
                    && !pods.iter().any(|known| known.uid == text(pod, "/metadata/uid") && known.is_available)
            };
            let there = before.range(PODS.to_owned()..).take_while(|(path, _)| path.starts_with(PODS));
            let back = i64::try_from(there.filter(|(_, pod)| is_back_soon(pod)).count()).unwrap();
            let awaited = self.awaited.get(of).copied().unwrap_or_default();
            let up = i64::try_from(up).unwrap();
            let down = (number(&workload, "/spec/replicas") - up - back - awaited).max(0);
            let excused = self.excused.entry(of.to_owned()).or_default();
            *excused = (*excused).max(if is_blind { number(&workload, "/spec/replicas") } else { down });
        }
        let workloads_then = self.known_workloads(&uid);
        self.pass = Some(PassSeen { wanted, uid, now, pods, workloads, workloads_then, closed, before, after });
        let said = format!("pass: {:?} {}", next.as_ref().map_err(ToString::to_string), writes.join("; "));
        self.controller.queue.done(key, next);
        if self.life.load(Ordering::Relaxed) < 0 {
            self.note("managers that ended between writes");
            self.restart_manager();
            return Ok(format!("{said}; the manager has ended, and starts anew"));
        }
        Ok(said)
    }

    /// The workloads as the controller knows them.
    fn known_workloads(&self, uid: &str) -> Vec<WorkloadKnown> {
        let owner = OwnerRef { namespace: "ns".to_owned(), uid: uid.to_owned(), ..OwnerRef::default() };
        let known = self.controller.children.of(&owner).into_iter().map(|seen| {
            let (spec, kind) = (&seen.object["spec"], seen.kind.unwrap());
            let is_told = number(&seen.status, "/observedGeneration") == seen.generation;
            let updated = number(&seen.status, "/updatedReplicas");
            let told = is_told.then(|| (number(spec, "/replicas"), partition(kind, spec), updated));
            WorkloadKnown { uid: seen.uid, subset: seen.subset, kind: seen.kind, is_deleting: seen.is_deleting, told }
        });
        known.collect()
    }

    fn own(&self) -> Vec<(String, Arc<Value>)> {
        let is_own = |(_, _, object): &(ChildKind, String, Arc<Value>)| {
            text(object, "/metadata/ownerReferences/0/uid") == self.uid
                && object["metadata"]["ownerReferences"][0]["apiVersion"] == "apps.kruise.io/v1alpha1"
        };
        workloads(&self.objects()).into_iter().filter(is_own).map(|(_, path, object)| (path, object)).collect()
    }

    /// A user changes the object.
    fn change_wanted(&mut self, what: usize, random: &mut Random) -> &'static str {
        let wanted = &mut self.wanted;
        let said = match what {
            0 | 1 => {
                wanted.total = i64::try_from(random.below(8)).unwrap();
                "totals"
            }
            2..=4 => {
                let is_bad = random.chance(25);
                wanted.image = format!("{}:{}", if is_bad { "bad" } else { "i" }, 1 + random.below(4));
                if is_bad { "broken images" } else { "images" }
            }
            5 if wanted.kind != ChildKind::Deployment => {
                wanted.partitions.clear();
                for subset in &wanted.subsets {
                    if random.chance(50) {
                        wanted.partitions.insert(subset.name, i64::try_from(random.below(4)).unwrap());
                    }
                }
                "partitions"
            }
            6 if wanted.budget.is_some() => {
                wanted.budget = Some(i64::try_from(1 + random.below(3)).unwrap());
                "budgets"
            }
            7 | 8 => {
                let count = 1 + random.below(3);
                let from = random.below(NAMES.len());
                wanted.subsets = (0..count).map(|index| Subset::new(NAMES[(from + index) % NAMES.len()])).collect();
                wanted.choose_bounds(random);
                let names: BTreeSet<&str> = wanted.subsets.iter().map(|subset| subset.name).collect();
                wanted.partitions.retain(|name, _| names.contains(name));
                "subsets"
            }
            9 => {
                let index = random.below(wanted.subsets.len());
                wanted.subsets[index].patch = [None, Some(1), Some(2)][random.below(3)];
                "patches"
            }
            10 => {
                wanted.choose_kind(random);
                "kinds"
            }
            11 if wanted.kind != ChildKind::StatefulSet => {
                wanted.is_paused = !wanted.is_paused;
                "pauses"
            }
            12 => {
                wanted.mode = [Mode::Shares, Mode::Bounds, Mode::Adaptive, Mode::Reserving][random.below(4)];
                if wanted.mode == Mode::Reserving && wanted.kind.has_ordinals() {
                    wanted.choose_kind(random);
                }
                wanted.choose_bounds(random);
                "strategies"
            }
            _ => "nothing",
        };
        self.apply();
        said
    }

    fn turn_world(&mut self, what: usize, random: &mut Random) -> (&'static str, String) {
        let zone = NAMES[random.below(3)];
        if matches!(what, 0 | 3)
            && self.wanted.mode == Mode::Adaptive
            && self.wanted.kind.has_ordinals()
            && let Some((path, zone)) = self.below_ready()
        {
            lock(&self.server).remove(&path);
            self.closed.insert(zone);
            return ("zones without room", format!("{:?}, and {path} is deleted", self.closed));
        }
        let turn = |all: &mut BTreeSet<&'static str>| {
            if !all.remove(zone) {
                all.insert(zone);
            }
        };
        match what {
            0 | 1 => {
                turn(&mut self.closed);
                ("zones without room", format!("{:?}", self.closed))
            }
            2 => {
                turn(&mut self.stalled);
                ("stalled subsets", format!("{:?}", self.stalled))
            }
            3 => {
                let lost: Vec<String> = lock(&self.server)
                    .of(PODS)
                    .into_iter()
                    .filter(|(path, pod)| subset_of(pod) == zone && !path.ends_with("foreign"))
                    .map(|(path, _)| path)
                    .collect();
                for path in &lost {
                    lock(&self.server).remove(path);
                }
                self.closed.insert(zone);
                ("zones lost", format!("{zone} with {} Pods", lost.len()))
            }
            _ => {
                let pods: Vec<_> =
                    lock(&self.server).of(PODS).into_iter().filter(|(path, _)| !path.ends_with("foreign")).collect();
                let Some((path, _)) = random.one_of(&pods) else { return ("no Pod", String::new()) };
                if random.chance(50) {
                    lock(&self.server).remove(path);
                    return ("Pods harmed", format!("{path} is deleted"));
                }
                let mut server = lock(&self.server);
                let mut pod = Value::clone(&server.objects[path]);
                for condition in
                    pod["status"]["conditions"].as_array_mut().into_iter().flatten().filter(|c| c["type"] == "Ready")
                {
                    condition["status"] = "False".into();
                    condition["lastTransitionTime"] = rfc3339(clock::now().wall).into();
                }
                server.put(path, pod);
                ("Pods harmed", format!("{path} is not ready"))
            }
        }
    }

    /// A Ready Pod below another one of the same workload, and its zone.
    fn below_ready(&self) -> Option<(String, &'static str)> {
        let mut pods = lock(&self.server).of(PODS);
        pods.retain(|(_, pod)| is_ready(pod));
        let is_below = |(path, pod): &&(String, Arc<Value>)| {
            pods.iter().any(|(other, above)| other > path && workload_of(above) == workload_of(pod))
        };
        let (path, pod) = pods.iter().find(is_below)?;
        let zone = NAMES.into_iter().find(|name| *name == subset_of(pod))?;
        Some((path.clone(), zone))
    }

    /// Others write to the workloads, or to the whole.
    fn turn_workload(&mut self, what: usize, random: &mut Random) -> (&'static str, String) {
        let own = self.own();
        let Some((path, workload)) = random.one_of(&own) else { return ("no workload", String::new()) };
        match what {
            0 => {
                if random.chance(50) {
                    lock(&self.server).remove(path);
                } else {
                    // In the foreground: its Pods go before it.
                    lock(&self.server).change(path, &json!({"metadata": {"deletionTimestamp": rfc3339(clock::now().wall), "finalizers": ["foregroundDeletion"]}}));
                }
                ("workloads deleted by others", path.clone())
            }
            1 => {
                let generation = number(workload, "/metadata/generation") + 1;
                let replicas = random.below(6);
                lock(&self.server)
                    .change(path, &json!({"metadata": {"generation": generation}, "spec": {"replicas": replicas}}));
                ("workloads changed by others", format!("{path} has {replicas} replicas"))
            }
            2 => {
                let mut second = Value::clone(workload);
                self.made += 1;
                let name = format!("{}s{}", text(workload, "/metadata/name"), self.made);
                for key in ["uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "finalizers"] {
                    second["metadata"].as_object_mut().unwrap().remove(key);
                }
                second["metadata"]["name"] = name.clone().into();
                second["status"] = json!({});
                let (directory, _) = path.rsplit_once('/').unwrap();
                lock(&self.server).put(&format!("{directory}/{name}"), second);
                ("second workloads", name)
            }
            3 => {
                let no_label = json!({"metadata": {"labels": {labels::SUBSET_NAME: null}}});
                lock(&self.server).change(path, &no_label);
                ("labels taken off", path.clone())
            }
            _ => {
                self.uid = format!("u-{}", self.generation);
                self.apply();
                ("made again", self.uid.clone())
            }
        }
    }

    /// After it has converged nothing is written any more, and a new manager writes nothing either.
    pub(super) async fn rest(&mut self, random: &mut Random) -> Result<(), String> {
        // What is counted may still be written, a second apart.
        self.idle(random, 20).await?;
        for what in ["it has come to rest", "a new manager has started"] {
            let before = lock(&self.writes).len();
            self.idle(random, 50).await?;
            let writes = lock(&self.writes)[before..].to_vec();
            if !writes.is_empty() {
                return Err(format!(
                    "after {what} there are writes: {writes:?}\n{:#}",
                    self.get(UNITED).unwrap_or_default()
                ));
            }
            self.restart_manager();
        }
        Ok(())
    }

    async fn idle(&mut self, random: &mut Random, times: usize) -> Result<(), String> {
        let mut pauses = 0;
        for _ in 0..5000 {
            match self.step(random).await? {
                Step::Worked(_) => {}
                Step::Idle(None) => return Ok(()),
                Step::Idle(Some(_)) if pauses == times => return Ok(()),
                Step::Idle(Some(after)) => {
                    self.advance(after).await;
                    pauses += 1;
                }
            }
        }
        Err("it does not come to rest".into())
    }
}

impl Driver for Cloud {
    type Seen = Seen;

    async fn disturb(&mut self, random: &mut Random) -> Result<String, String> {
        let (what, said) = match random.below(27) {
            what @ 0..=12 => {
                let what = self.change_wanted(what, random);
                (what, format!("{:?}", self.wanted))
            }
            what @ 13..=17 => self.turn_world(what - 13, random),
            what @ 18..=21 => self.turn_workload(what - 18, random),
            22 if random.chance(50) => self.turn_workload(4, random),
            23 | 24 => ("faults", lock(&self.server).fail(random)),
            25 => {
                self.life.store(i64::try_from(random.below(4)).unwrap(), Ordering::Relaxed);
                ("ends", "the manager ends soon".into())
            }
            26 => {
                self.restart_manager();
                ("starts", "a new manager".into())
            }
            _ => ("nothing", String::new()),
        };
        self.note(what);
        Ok(format!("{what}: {said}"))
    }

    async fn make_possible(&mut self) -> Result<String, String> {
        lock(&self.server).faults.clear();
        self.life.store(i64::MAX, Ordering::Relaxed);
        self.closed.clear();
        self.stalled.clear();
        let wanted = &mut self.wanted;
        if wanted.image.starts_with("bad") {
            wanted.image = "i:5".into();
        }
        // A partition or a pause may keep Pods on a revision that never runs.
        if self.asked.values().any(|asked| asked.image.starts_with("bad")) {
            wanted.partitions.clear();
            wanted.is_paused = false;
        }
        wanted.total = wanted.total.max(wanted.fixed());
        // A zone may be full for good where others have room: then a last roll-out ends all the same.
        if wanted.mode == Mode::Reserving && wanted.subsets.len() > 1 && self.generation % 4 != 0 {
            self.closed.insert(wanted.subsets[0].name);
            wanted.image = "i:6".into();
            self.note("zones that stay full");
        }
        self.apply();
        Ok(format!("{:?}, without room: {:?}", self.wanted, self.closed))
    }

    async fn step(&mut self, random: &mut Random) -> Result<Step, String> {
        self.pass = None;
        let mut effects = self.surroundings();
        let has_news = !lock(&self.server).news.is_empty();
        Ok(match Next::choose(random, effects.len(), has_news, &self.controller.queue) {
            Next::Pass(key) => Step::Worked(self.reconcile(key).await?),
            Next::Effect(index) => Step::Worked(self.play(effects.swap_remove(index), random)),
            Next::News => Step::Worked(self.deliver_next(random).unwrap_or_default()),
            Next::Nothing => Step::Idle(self.next_in()),
        })
    }

    async fn advance(&mut self, by: Duration) {
        tokio::time::advance(by).await;
    }

    async fn see(&mut self) -> Result<Seen, String> {
        let in_flight = self.settle_accounts();
        let is_quiet =
            lock(&self.server).news.is_empty() && self.controller.queue.depth() == 0 && self.surroundings().is_empty();
        Ok(Seen {
            now: clock::now().wall,
            wanted: self.wanted.clone(),
            uid: self.uid.clone(),
            objects: self.objects(),
            is_quiet,
            closed: self.closed.clone(),
            pass: self.pass.take(),
            in_flight,
            budget: self.budget,
        })
    }
}

impl Cloud {
    /// When the controller, or time alone, does something next.
    fn next_in(&self) -> Option<Duration> {
        let (objects, now) = (self.objects(), clock::now().wall);
        // Pods become available, which the controllers of the workloads count.
        let all = workloads(&objects);
        let is_pending =
            objects.range(PODS.to_owned()..).take_while(|(path, _)| path.starts_with(PODS)).any(|(_, pod)| {
                let workload = all.iter().find(|(_, _, workload)| text(workload, "/metadata/uid") == workload_of(pod));
                workload.is_some_and(|(kind, _, workload)| {
                    is_ready(pod) && !is_available(pod, min_ready(*kind, &workload["spec"]), now)
                })
            });
        let second = is_pending.then_some(Duration::from_secs(1));
        [self.controller.queue.next_in(), second].into_iter().flatten().min()
    }
}
