//! Random histories of a CloneSet: the real controller, an API server in memory, played kubelets, nodes, users, hooks and
//! budgets, and a clock that a seed moves. See [`crate::liveness`].

use jiff::{SignedDuration, Timestamp};

use super::*;
use crate::{
    api::policy::pod_unavailable_budget::PodUnavailableBudget,
    budgets::refusals::WAITS_FOR_BUDGET,
    controllers::fake,
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
    /// The image of a second container, if there is one.
    side: Option<&'static str>,
    /// The containers have launch priorities, so that they are updated one after the other.
    in_batches: bool,
    /// Processors of the first container.
    cpu: i64,
    order: Order,
    /// `scaleStrategy.maxUnavailable`.
    scale_most: Option<i64>,
}

/// Which Pods are updated first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Any,
    /// Those with label `color: b` before those with `color: a`, and these before those without.
    Weights,
    /// By the number at the end of label `color`.
    Keys,
    Scattered,
}

impl Order {
    /// The label of Pods that all of them look at.
    const LABEL: &'static str = "color";
    /// Its values.
    const COLORS: [&'static str; 2] = ["a-1", "b-2"];

    fn strategy(self) -> (Value, Value) {
        let [a, b] = Self::COLORS;
        let term = |weight: i64, color: &str| json!({"weight": weight, "matchSelector": {"matchLabels": {Self::LABEL: color}}});
        let priority = match self {
            Self::Weights => json!({"weightPriority": [term(10, a), term(20, b)]}),
            Self::Keys => json!({"orderPriority": [{"orderedKey": Self::LABEL}]}),
            Self::Any | Self::Scattered => Value::Null,
        };
        let scatter = match self {
            Self::Scattered => json!([{"key": Self::LABEL, "value": a}, {"key": Self::LABEL, "value": b}]),
            _ => Value::Null,
        };
        (priority, scatter)
    }

    fn weight(color: &str) -> usize {
        Self::COLORS.iter().position(|of| *of == color).map_or(0, |position| position + 1)
    }
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
            side: random.chance(40).then_some("s:1"),
            in_batches: random.chance(50),
            cpu: 1,
            order: [Order::Any, Order::Any, Order::Weights, Order::Keys, Order::Scattered][random.below(5)],
            scale_most: [None, None, Some(1), Some(2)][random.below(4)],
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

    /// Half of the time what is changed is updated in place, and at once.
    fn maybe_in_place(&mut self, random: &mut Random) {
        if random.chance(50) {
            (self.kind, self.paused, self.partition) = ("InPlaceIfPossible", false, 0);
        }
    }

    fn surge(&self) -> i64 {
        if self.paused { 0 } else { self.max_surge }
    }

    fn containers(&self) -> Value {
        // What admission makes of launch priorities.
        let barrier = |priority: &str| match self.in_batches {
            true => {
                json!([{"name": "KRUISE_CONTAINER_BARRIER", "valueFrom": {"configMapKeyRef": {"name": "b", "key": priority}}}])
            }
            false => json!([]),
        };
        let resources = json!({"requests": {"cpu": self.cpu.to_string()}, "limits": {"memory": "1Gi"}});
        let main = json!({"name": "main", "image": self.image, "env": barrier("p_2"), "resources": resources});
        let side = self.side.map(|image| json!({"name": "side", "image": image, "env": barrier("p_1")}));
        [Some(main), side].into_iter().flatten().collect()
    }

    fn patch(&self) -> Value {
        let hook = |on: bool, key: &str, not_ready: bool| match on {
            true => json!({"labelsHandler": {key: "yes"}, "markPodNotReady": not_ready}),
            false => Value::Null,
        };
        let [delete, update, normal] = self.hooks;
        let claims = json!([{"metadata": {"name": "data"}, "spec": {"x": 1}}]);
        let (priority, scatter) = self.order.strategy();
        json!({"replicas": self.replicas, "minReadySeconds": self.min_ready,
            "volumeClaimTemplates": if self.claims { claims } else { Value::Null },
            "lifecycle": {"preDelete": hook(delete, HOLDS_DELETION, self.hooks_not_ready),
                "inPlaceUpdate": hook(update, HOLDS_UPDATE, self.hooks_not_ready), "preNormal": hook(normal, IS_IN, false)},
            "updateStrategy": {"type": self.kind, "partition": self.partition, "maxUnavailable": self.max_unavailable,
                "maxSurge": self.max_surge, "paused": self.paused, "priorityStrategy": priority, "scatterStrategy": scatter},
            "scaleStrategy": {"maxUnavailable": self.scale_most},
            "template": {"metadata": {"labels": {"app": "web", HOLDS_DELETION: "yes", HOLDS_UPDATE: "yes"}},
                "spec": {"containers": self.containers()}}})
    }
}

/// A Pod in the plainest terms.
#[derive(Clone, Debug)]
struct Seen {
    name: String,
    /// What its spec says, where it is known as a whole.
    wants: String,
    /// What its kubelet runs, where it is known as a whole.
    runs: String,
    /// The label that orders look at.
    color: String,
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
            wants: String::new(),
            runs: String::new(),
            color: label(Order::LABEL),
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
            "{} {:?} {} ready {:?} deleting {} ended {} marked {} held {} update {} in {} node {}",
            seen.name,
            pod.spec.containers.iter().map(|container| &*container.image).collect::<Vec<_>>(),
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

    /// With the whole object at hand.
    fn of_whole(pod: &Value) -> Result<Self, String> {
        let (wants, runs) = (shape(&pod["spec"]["containers"]), shape(&pod["status"]["containerStatuses"]));
        let view = serde_json::from_value::<PodView>(pod.clone()).map_err(|error| error.to_string())?;
        Ok(Self { wants, runs, ..Self::of(&view) })
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

/// Containers or their statuses in the plainest terms: images, and the processors of the first one.
fn shape(containers: &Value) -> String {
    let images = containers.as_array().into_iter().flatten().map(|container| container["image"].as_str());
    let images: Vec<&str> = images.map(Option::unwrap_or_default).collect();
    format!("{} cpu {}", images.join(" "), containers[0]["resources"]["requests"]["cpu"])
}

/// A pass of the controller: what it knew, and what it wrote.
#[derive(Clone)]
struct PassSeen {
    /// The Pods in its store.
    knew: Vec<Seen>,
    /// The Pods on the API server: budgets that allow nothing are counted again from there.
    there: Vec<Seen>,
    /// Instances that have a claim.
    claimed: BTreeSet<String>,
    granted: BTreeSet<String>,
    writes: Vec<(Method, String, Value)>,
    /// Which of them were refused, by their numbers.
    failed: BTreeSet<usize>,
    /// Pods whose writes are all refused.
    refused: BTreeSet<String>,
}

impl PassSeen {
    /// In service, and not let go before.
    fn is_kept(&self, pod: &Seen) -> bool {
        pod.guarded && !self.granted.contains(&pod.name)
    }

    /// How many Pods a budget counts.
    fn guarded(&self) -> i64 {
        let count = |pods: &[Seen]| pods.iter().filter(|pod| self.is_kept(pod)).count() as i64;
        count(&self.knew).max(count(&self.there))
    }
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
    /// Pods whose writes are all refused.
    refused: BTreeSet<String>,
}

impl Now {
    fn is_old(&self, pod: &Seen) -> bool {
        !revision::is_same(&pod.revision, &self.update_revision)
    }
}

/// What a played kubelet remembers of a Pod.
struct Kubelet {
    /// The image of each container, and when it will have started.
    containers: BTreeMap<String, (String, Duration)>,
    /// The resources of the first container, and when they will be as they are wanted.
    resources: (Value, Value, Duration),
    /// All containers have run once.
    started: bool,
    stops_at: Option<Duration>,
}

impl Kubelet {
    fn resources_at(&self, now: Duration) -> Value {
        let (before, after, at) = &self.resources;
        if now < *at { before.clone() } else { after.clone() }
    }

    /// The statuses of its containers, and when the next one of them changes.
    fn run(
        &mut self,
        wanted: &Value,
        uid: &str,
        now: Duration,
        mut starts: impl FnMut() -> Duration,
    ) -> (Vec<Value>, Option<Duration>) {
        let (mut statuses, mut changes) = (Vec::new(), vec![self.resources.2]);
        for (i, container) in wanted.as_array().into_iter().flatten().enumerate() {
            let text = |key: &str| container[key].as_str().unwrap_or_default().to_owned();
            let (name, image) = (text("name"), text("image"));
            let run = self.containers.entry(name.clone()).or_insert_with(|| (image.clone(), starts()));
            if run.0 != image {
                *run = (image.clone(), starts());
            }
            changes.push(run.1);
            let mut status = if now >= run.1 && !image.starts_with("bad") {
                json!({"image": image, "imageID": format!("id-of-{image}"), "ready": true, "state": {"running": {}},
                    "containerID": format!("c://{uid}/{name}/{image}/{}", run.1.as_millis())})
            } else {
                json!({"image": image, "imageID": "", "ready": false, "state": {"waiting": {"reason": "ErrImagePull"}},
                    "containerID": ""})
            };
            (status["name"], status["restartCount"]) = (name.into(), 0.into());
            if i == 0 {
                status["resources"] = self.resources_at(now);
            }
            statuses.push(status);
        }
        let later = changes.into_iter().filter(|at| *at > now).min().map(|at| at - now);
        (statuses, later)
    }
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
    /// What comes next, instead of what chance says.
    follow: Vec<Change>,
    /// When the next pass is due. None: when something happens.
    due: Option<Duration>,
    pass: Option<PassSeen>,
    marked_by_users: BTreeSet<String>,
    changes: usize,
    /// Passes without a pause between them.
    passes_at_once: usize,
    went_well: bool,
    is_idle: bool,
    /// Pods in the plainest terms, by path, with their versions: most of them are as they were a step before.
    seen: BTreeMap<String, (Value, Seen)>,
    acts: Acts,
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
        let mut gates = all[random.below(4)].to_vec();
        if random.chance(50) {
            gates.push("InPlaceWorkloadVerticalScaling=true");
        }
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
            follow: Vec::new(),
            due: Some(Duration::ZERO),
            pass: None,
            marked_by_users: BTreeSet::new(),
            changes: 0,
            passes_at_once: 0,
            went_well: false,
            is_idle: false,
            seen: BTreeMap::new(),
            acts: Acts::default(),
        }
    }

    /// A roll-out of an image that cannot be pulled, of all Pods at once, under a budget that lets one go at a time.
    async fn bad_roll_out(&mut self, random: &mut Random) -> String {
        let spec = &mut self.spec;
        spec.replicas = spec.replicas.max(2);
        (spec.kind, spec.paused, spec.partition) = ("ReCreate", false, 0);
        (spec.max_unavailable, spec.max_surge) = (5, 0);
        spec.image = ["bad:1", "bad:2"][random.below(2)];
        self.had_bad_image = true;
        self.set_budget(Some(1), random).await;
        "a bad roll-out under a budget".into()
    }

    /// An update in place whose hooks nobody answers.
    fn held_update(&mut self, random: &mut Random) -> String {
        let spec = &mut self.spec;
        spec.replicas = spec.replicas.max(3);
        (spec.kind, spec.paused, spec.partition) = ("InPlaceIfPossible", false, random.below(2) as i64);
        (spec.max_unavailable, spec.max_surge) = (2 + random.below(3) as i64, 0);
        (spec.hooks[0], spec.hooks[1]) = (true, true);
        spec.image = if spec.image == "i:2" { "i:3" } else { "i:2" };
        self.hooks_answer = false;
        format!("an update to {} whose hooks nobody answers", self.spec.image)
    }

    /// One Pod after the other gets another image, and a third image comes before the first of them is available.
    async fn canary(&mut self, random: &mut Random) -> String {
        self.set_budget(None, random).await;
        let spec = &mut self.spec;
        spec.replicas = spec.replicas.max(1);
        (spec.kind, spec.paused, spec.partition) = ("ReCreate", false, 0);
        (spec.max_unavailable, spec.max_surge, spec.min_ready) = (1, 0, 40);
        self.hooks_answer = true;
        self.follow = vec![Change::NextImage];
        self.next_image()
    }

    fn next_image(&mut self) -> String {
        self.spec.image = if self.spec.image == "i:2" { "i:3" } else { "i:2" };
        format!("image {}", self.spec.image)
    }

    /// A scale-in whose hooks nobody answers. Then one of those that wait goes down, and one less is wanted gone.
    fn held_scale_in(&mut self, random: &mut Random) -> String {
        let active = self.world.controller.context.pods.list().iter().filter(|pod| pod.is_active()).count() as i64;
        let spec = &mut self.spec;
        spec.replicas = (active - 2 - random.below(2) as i64).max(1);
        (spec.hooks[0], spec.hooks_not_ready) = (true, false);
        self.hooks_answer = false;
        // The last one comes first.
        self.follow = vec![Change::OneMore, Change::Crash];
        format!("replicas {}, and nobody answers hooks", spec.replicas)
    }

    async fn change(&mut self, change: Change, random: &mut Random) -> String {
        let spec = &mut self.spec;
        match change {
            Change::Replicas => {
                spec.replicas = random.below(5) as i64;
                format!("replicas {}", spec.replicas)
            }
            Change::OneLess => {
                spec.replicas = (spec.replicas - 1).max(1);
                format!("one less: replicas {}", spec.replicas)
            }
            Change::OneMore => {
                spec.replicas += 1;
                format!("one more: replicas {}", spec.replicas)
            }
            Change::HeldScaleIn => self.held_scale_in(random),
            Change::Canary => self.canary(random).await,
            Change::NextImage => self.next_image(),
            Change::Image => {
                spec.image = ["i:1", "i:2", "i:3", "bad:1", "bad:2"][random.below(5)];
                self.had_bad_image |= spec.image.starts_with("bad");
                format!("image {}", spec.image)
            }
            Change::Side => {
                spec.maybe_in_place(random);
                // Another one than before.
                let images = ["s:1", "s:2", "s:3"];
                let place = |is: &str| images.iter().position(|image| *image == is).unwrap_or_default();
                spec.side = spec.side.map(|is| images[(place(is) + 1 + random.below(2)) % 3]);
                format!("second image {:?}, type {}", spec.side, spec.kind)
            }
            Change::Resources => {
                spec.maybe_in_place(random);
                // Another number than before.
                spec.cpu = 1 + (spec.cpu + random.below(2) as i64) % 3;
                format!("processors {}, type {}", spec.cpu, spec.kind)
            }
            Change::Partition => {
                spec.partition = random.below(4) as i64;
                format!("partition {}", spec.partition)
            }
            Change::Limits => {
                spec.limits(random);
                format!("maxUnavailable {}, maxSurge {}", spec.max_unavailable, spec.max_surge)
            }
            Change::ScaleLimit => {
                spec.scale_most = [None, Some(1), Some(2)][random.below(3)];
                format!("scaleStrategy.maxUnavailable {:?}", spec.scale_most)
            }
            Change::MinReady => {
                spec.min_ready = [0, 5, 40][random.below(3)];
                format!("minReadySeconds {}", spec.min_ready)
            }
            Change::Type => {
                spec.kind = ["ReCreate", "InPlaceIfPossible", "OnDelete"][random.below(3)];
                format!("type {}", spec.kind)
            }
            Change::Order => {
                spec.order = [Order::Any, Order::Weights, Order::Keys, Order::Scattered][random.below(4)];
                format!("order {:?}", spec.order)
            }
            Change::Paused => {
                spec.paused = !spec.paused;
                format!("paused {}", spec.paused)
            }
            Change::Hooks => {
                self.hooks_answer = !self.hooks_answer;
                format!("hooks are answered: {}", self.hooks_answer)
            }
            Change::Budget => {
                let budget = [Some(1), Some(1), Some(2), None][random.below(4)];
                self.set_budget(budget, random).await;
                format!("budget {:?}", self.budget)
            }
            Change::Quota => {
                let quota = random.below(4);
                lock(&self.world.server).quota = Some(quota);
                format!("a quota of {quota} Pods")
            }
            Change::Node => self.node(random.below(NODES)),
            Change::Restart => {
                self.restart();
                "the manager starts anew".into()
            }
            Change::Refusal => {
                let all = [(Method::PATCH, 409), (Method::PATCH, 500), (Method::DELETE, 403), (Method::POST, 500)];
                let (method, code) = all[random.below(4)].clone();
                lock(&self.world.server).faults.push((method.clone(), NAMESPACE.into(), code));
                format!("the next {method} of a Pod is answered {code}")
            }
            Change::BadRollOut => self.bad_roll_out(random).await,
            Change::HeldUpdate => self.held_update(random),
            Change::Mark
            | Change::Marks
            | Change::Refused
            | Change::Eviction
            | Change::Crash
            | Change::Deletion
            | Change::Color => self.disturb_pod(change, random),
        }
    }

    async fn set_budget(&mut self, budget: Option<i64>, random: &mut Random) {
        // A new budget counts what the watch has brought, and is not known in the moment in which all were listed.
        while self.deliver(random).is_some() {}
        tokio::time::advance(Duration::from_secs(2)).await;
        self.budget = budget;
        match budget {
            Some(most) => {
                let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": most});
                self.world.put_budget(spec);
            }
            None => drop(lock(&self.world.server).objects.remove(BUDGET)),
        }
        self.count_budget();
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

    /// The Pods on the API server.
    fn see_pods(&mut self) -> Result<Vec<Seen>, String> {
        let server = lock(&self.world.server);
        let there = server.objects.range(NAMESPACE.to_owned()..).take_while(|(path, _)| path.starts_with(NAMESPACE));
        let mut all = BTreeMap::new();
        for (path, pod) in there {
            let version = &pod["metadata"]["resourceVersion"];
            let seen = match self.seen.remove(path).filter(|(of, _)| of == version) {
                Some(seen) => seen,
                None => (version.clone(), Seen::of_whole(pod)?),
            };
            all.insert(path.clone(), seen);
        }
        drop(server);
        self.seen = all;
        Ok(self.seen.values().map(|(_, seen)| seen.clone()).collect())
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
        let pause = |random: &mut Random| random.duration(Duration::from_secs(4));
        let resources = &pod["spec"]["containers"][0]["resources"];
        let kubelet = self.kubelets.entry(uid.clone()).or_insert_with(|| Kubelet {
            containers: BTreeMap::new(),
            resources: (resources.clone(), resources.clone(), now),
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
        if kubelet.resources.1 != *resources {
            let before = kubelet.resources_at(now);
            kubelet.resources = (before, resources.clone(), now + pause(random));
        }
        let (statuses, later) = kubelet.run(&pod["spec"]["containers"], &uid, now, || now + pause(random));
        let runs = statuses.iter().all(|status| status["ready"] == true);
        kubelet.started |= runs;
        let started = kubelet.started;
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
        if pod["status"]["containerStatuses"] == json!(statuses)
            && is_true(&json!("Ready")) == ready
            && pod["status"]["phase"] == phase
        {
            return Err(later);
        }
        let at = clock::now().wall.to_string();
        self.write_pod(path, |pod| {
            pod["status"]["phase"] = phase.into();
            pod["status"]["containerStatuses"] = json!(statuses);
            set_ready(pod, ready, &at);
            true
        });
        Ok(format!("kubelet: {name} runs {}: {runs}, ready: {ready}", shape(&json!(statuses))))
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
    fn deliver(&mut self, random: &mut Random) -> Option<String> {
        let pods = &self.world.controller.context.pods;
        let mut news: Vec<(String, Option<Value>)> = Vec::new();
        let server = lock(&self.world.server);
        let path = |name: &str| format!("{NAMESPACE}/{name}");
        for known in pods.list() {
            if server.objects.get(&path(known.name())).is_none_or(|pod| pod["metadata"]["uid"] != known.uid()) {
                news.push((known.name().to_owned(), None));
            }
        }
        let there = server.objects.range(NAMESPACE.to_owned()..).take_while(|(path, _)| path.starts_with(NAMESPACE));
        for (_, pod) in there {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let known = pods.get(&ObjectKey::new("ns", &name));
            let version = known.and_then(|pod| pod.resource_version().map(str::to_owned));
            if version.as_deref() != pod["metadata"]["resourceVersion"].as_str() {
                news.push((name, Some(pod.clone())));
            }
        }
        drop(server);
        let (name, pod) = random.one_of(&news)?.clone();
        match pod {
            Some(pod) => drop(pods.upsert(serde_json::from_value(pod).ok()?)),
            None => drop(pods.remove(&ObjectKey::new("ns", &name), None)),
        }
        self.count_budget();
        self.wake();
        Some(String::new())
    }

    /// The manager's controller of budgets: counts what the watch has delivered.
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
        let faults = lock(&self.world.server).faults.len();
        let there = self.see_pods()?;
        let next = self.world.controller.reconcile(&ObjectKey::new("ns", "web")).await;
        let failed = lock(&self.world.server).failed.clone();
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
        let sent: Vec<String> = writes
            .iter()
            .filter(|(_, path, _)| path.starts_with(NAMESPACE))
            .map(|(method, path, body)| match *method {
                Method::PATCH => format!("{method} {} {body}", path.trim_start_matches(NAMESPACE)),
                _ => format!("{method} {} {}", path.trim_start_matches(NAMESPACE), body["metadata"]["name"]),
            })
            .collect();
        // A refusal that lasts keeps nothing else from being done: a pass that has done nothing else has nothing to do.
        let is_refused = next.as_ref().is_err_and(|error| code(error) == Some(403)) && sent.is_empty();
        self.went_well = (next.is_ok() || is_refused) && lock(&self.world.server).faults.len() == faults;
        let refused = self.refused();
        self.pass = Some(PassSeen { knew, there, claimed, granted, writes, failed, refused });
        match (sent.is_empty(), next) {
            (true, Ok(_)) => Ok(String::new()),
            (_, next) => Ok(format!("pass: {next:?}\n              {}", sent.join("\n              "))),
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

    fn disturb_pod(&mut self, what: Change, random: &mut Random) -> String {
        let pods: Vec<(String, Value)> = self.pods();
        let waits = |pod: &Value| pod["metadata"]["labels"][labels::LIFECYCLE_STATE] == "PreparingDelete";
        let waiting: Vec<(String, Value)> = pods.iter().filter(|(_, pod)| waits(pod)).cloned().collect();
        let among = if matches!(what, Change::Crash) && !waiting.is_empty() { &waiting } else { &pods };
        let Some((path, pod)) = random.one_of(among).cloned() else { return "nothing".into() };
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let now = clock::now().wall.to_string();
        match what {
            Change::Mark => {
                self.mark(&path, &pod);
                format!("a user marks {name}")
            }
            Change::Marks => {
                let is_ready = |pod: &Value| {
                    let conditions = pod["status"]["conditions"].as_array();
                    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
                };
                let serves = pods.iter().find(|(_, pod)| is_ready(pod));
                let is_down = pods.iter().find(|(_, pod)| !is_ready(pod));
                serves.into_iter().chain(is_down).for_each(|(path, pod)| self.mark(path, pod));
                let names = [serves, is_down].map(|pod| pod.map(|(_, pod)| pod["metadata"]["name"].clone()));
                format!("a user marks one that serves and one that is down: {names:?}")
            }
            Change::Refused => {
                let refused = &mut lock(&self.world.server).refused;
                if !refused.is_empty() {
                    refused.clear();
                    return "no write is refused".into();
                }
                refused.insert(path);
                format!("every write of {name} is refused")
            }
            Change::Eviction => {
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
            Change::Crash => {
                let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
                let runs = self.kubelets.get_mut(uid).into_iter().flat_map(|kubelet| kubelet.containers.values_mut());
                runs.for_each(|run| run.1 = mono() + random.duration(Duration::from_secs(30)));
                format!("{name} crashes")
            }
            Change::Color => {
                let color = Order::COLORS[random.below(2)];
                self.write_pod(&path, |pod| {
                    pod["metadata"]["labels"][Order::LABEL] = color.into();
                    true
                });
                format!("{name} gets color {color}")
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

    /// Pods whose writes are all refused.
    fn refused(&self) -> BTreeSet<String> {
        let server = lock(&self.world.server);
        server.refused.iter().filter_map(|path| Some(path.rsplit_once('/')?.1.to_owned())).collect()
    }

    fn mark(&mut self, path: &str, pod: &Value) {
        self.marked_by_users.insert(pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned());
        self.write_pod(path, |pod| {
            pod["metadata"]["labels"][labels::SPECIFIED_DELETE] = "".into();
            true
        });
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

/// What users do, and what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Replicas,
    OneLess,
    OneMore,
    HeldScaleIn,
    Canary,
    NextImage,
    Image,
    Side,
    Resources,
    Partition,
    Limits,
    ScaleLimit,
    MinReady,
    Type,
    Order,
    Paused,
    Hooks,
    Budget,
    Quota,
    Node,
    Restart,
    Refusal,
    BadRollOut,
    HeldUpdate,
    Mark,
    Marks,
    Refused,
    Eviction,
    Crash,
    Deletion,
    Color,
}

/// All of them: what each is called, and how often it happens compared with the others.
const CHANGES: [(Change, &str, usize); 31] = [
    (Change::Replicas, "replicas", 2),
    (Change::OneLess, "one replica less", 2),
    (Change::OneMore, "one replica more", 1),
    (Change::HeldScaleIn, "scale-in that hooks hold", 3),
    (Change::Canary, "update with minReadySeconds", 4),
    (Change::NextImage, "next image", 1),
    (Change::Image, "image", 5),
    (Change::Side, "image of the second container", 4),
    (Change::Resources, "resources", 4),
    (Change::Partition, "partition", 1),
    (Change::Limits, "maxUnavailable and maxSurge", 1),
    (Change::ScaleLimit, "scaleStrategy.maxUnavailable", 1),
    (Change::MinReady, "minReadySeconds", 1),
    (Change::Type, "type", 1),
    (Change::Order, "order", 1),
    (Change::Paused, "paused", 1),
    (Change::Hooks, "hooks are answered or not", 1),
    (Change::Budget, "budget", 2),
    (Change::Quota, "quota", 1),
    (Change::Node, "node silent or back", 2),
    (Change::Restart, "manager restarted", 1),
    (Change::Refusal, "write refused", 2),
    (Change::BadRollOut, "bad roll-out under a budget", 3),
    (Change::HeldUpdate, "update that hooks hold", 2),
    (Change::Mark, "marked by a user", 1),
    (Change::Marks, "one that serves and one that is down marked", 2),
    (Change::Refused, "all writes of a Pod refused", 3),
    (Change::Eviction, "evicted", 1),
    (Change::Crash, "crashed", 1),
    (Change::Deletion, "deleted by a user", 1),
    (Change::Color, "labelled by a user", 2),
];

impl Driver for Cloud {
    type Seen = Now;

    async fn disturb(&mut self, random: &mut Random) -> Result<String, String> {
        self.changes += 1;
        let all: usize = CHANGES.iter().map(|(_, _, weight)| weight).sum();
        let mut which = random.below(all);
        let chosen = CHANGES.iter().find(|(_, _, weight)| match which.checked_sub(*weight) {
            Some(left) => {
                which = left;
                false
            }
            None => true,
        });
        let follows = self.follow.pop().and_then(|next| CHANGES.iter().find(|(change, _, _)| *change == next));
        let Some((change, name, _)) = follows.or(chosen) else { return Err("no change was chosen".into()) };
        self.acts.note(name);
        let said = self.change(*change, random).await;
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
            server.refused.clear();
            server.faults.clear();
        }
        self.put();
        Ok(format!("{:?}, budget {:?}", self.spec, self.budget))
    }

    async fn step(&mut self, random: &mut Random) -> Result<Step, String> {
        (self.pass, self.is_idle) = (None, false);
        let mut next: Option<Duration> = None;
        let mut later = |after: Option<Duration>| next = [next, after].into_iter().flatten().min();
        // They are many and large: read when somebody looks at them.
        let mut pods = None;
        // Who comes first is for the seed to say.
        let first = random.below(4);
        for turn in 0..4 {
            match (first + turn) % 4 {
                0 => {
                    if let Some(said) = self.deliver(random) {
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
                    for (path, pod) in pods.get_or_insert_with(|| self.pods()).iter() {
                        let done = match which {
                            2 => self.kubelet(path, pod, random),
                            _ => self.answer(path, pod, random),
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
        let (pods, refused) = (self.see_pods()?, self.refused());
        let server = lock(&self.world.server);
        let set = &server.objects[SET];
        Ok(Now {
            at: clock::now().wall,
            spec: self.spec.clone(),
            update_revision: set["status"]["updateRevision"].as_str().unwrap_or_default().to_owned(),
            status: set["status"].clone(),
            generation: set["metadata"]["generation"].as_i64().unwrap_or_default(),
            pods,
            pass: self.pass.take(),
            desired: self.budget.map(|most| self.fewest - most),
            marked_by_users: self.marked_by_users.clone(),
            changes: self.changes,
            is_idle: self.is_idle,
            refused,
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
            let is_back = |(i, (_, path, body)): (usize, &(Method, String, Value))| {
                !pass.failed.contains(&i)
                    && path.trim_end_matches("/status").ends_with(&pod.name)
                    && body["metadata"]["labels"][labels::LIFECYCLE_STATE] == "Normal"
            };
            if pass.writes.iter().enumerate().any(is_back) {
                pod.state = "Normal".into();
            }
        }
        self.note_acts(pass);
        let was = &pass.knew;
        let pass = &PassSeen { knew, ..pass.clone() };
        let mut wrongs = Vec::new();
        let (mut down, mut made, mut begun) = (BTreeSet::new(), 0, BTreeSet::new());
        for (i, (method, path, body)) in pass.writes.iter().enumerate() {
            let Some(rest) = path.strip_prefix(NAMESPACE) else { continue };
            let name = rest.trim_start_matches('/').split('/').next().unwrap_or_default().to_owned();
            let is_done = !pass.failed.contains(&i);
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
                down.extend(is_done.then(|| name.clone()));
            }
            let closes = |c: &Value| c["type"] != "Ready" && c["status"] == "False";
            if body["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(closes)) {
                down.extend(is_done.then(|| name.clone()));
            }
            if let Some(state) = labels_of[labels::LIFECYCLE_STATE].as_str() {
                if !["", "Normal", "PreparingNormal"].contains(&state)
                    && known.is_some_and(|p| ["", "Normal"].contains(&&*p.state))
                {
                    down.extend(is_done.then(|| name.clone()));
                }
                if state.starts_with("Preparing") && state != "PreparingNormal" {
                    self.acts.note("announced");
                    let times = self.announced.entry((name.clone(), state.to_owned())).or_default();
                    *times += 1;
                    if *times > 3 {
                        wrongs.push(format!("{name} was announced {times} times for {state} since the last change"));
                    }
                }
                let was = was.iter().find(|pod| pod.name == name).map_or("", |pod| pod.state.as_str());
                if state == "Normal" && was == "PreparingDelete" {
                    self.acts.note("kept after all");
                }
                if ["Normal", "Updated"].contains(&state) && was == "PreparingUpdate" {
                    self.acts.note("let go");
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
                // What was deleted before there was a budget, it may count for a moment yet.
                let is_settled = !pass.knew.iter().any(|pod| pod.deleting && !pass.granted.contains(&pod.name));
                let is_kept = known.is_some_and(|pod| pass.is_kept(pod)) && is_settled;
                if is_kept && now.desired.is_some_and(|desired| pass.guarded() <= desired.max(0)) {
                    wrongs.push(format!("{name} was marked, and the budget lets no Pod go"));
                }
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
        wrongs.extend(what_is_down_waits(now, pass));
        wrongs.extend(out_of_order(now, pass, &begun));
        wrongs.extend(the_wrong_one_stays(now, pass, was));
        let is_old = |pod: &&Seen| !revision::is_same(&pod.revision, &now.update_revision);
        let old = pass.knew.iter().filter(|p| p.active() && !p.marked && p.state != "PreparingDelete").filter(is_old);
        let old: Vec<&str> = old.map(|pod| pod.name.as_str()).collect();
        let begun = begun.iter().filter(|name| old.contains(&name.as_str())).count() as i64;
        if begun > 0 && (old.len() as i64) - begun < now.spec.partition.min(now.spec.replicas) {
            wrongs.push(format!("{begun} of {} old Pods were updated beyond the partition", old.len()));
        }
        wrongs
    }

    /// What came of changes: one that is drawn may lead to nothing.
    fn note_acts(&mut self, pass: &PassSeen) {
        let done = pass.writes.iter().enumerate().filter(|(i, _)| !pass.failed.contains(i));
        for (_, (method, path, body)) in done {
            let all = |list: &Value| list.as_array().cloned().unwrap_or_default().into_iter();
            let is_of_side = |container: Value| container["name"] == "side" && container["image"].is_string();
            let says_budget = |condition: Value| condition["reason"] == WAITS_FOR_BUDGET;
            if path.starts_with(SET) && all(&body["status"]["conditions"]).any(says_budget) {
                self.acts.note("refused by a budget");
            } else if path.starts_with(NAMESPACE) && path.ends_with("/resize") {
                self.acts.note("resized");
            } else if path.starts_with(NAMESPACE)
                && *method == Method::PATCH
                && all(&body["spec"]["containers"]).any(is_of_side)
            {
                self.acts.note("second container in place");
            }
        }
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
        // What waits for its hook or a budget serves until then.
        let waits =
            |pod: &Seen| pod.ready_since.is_some() && ["PreparingDelete", "PreparingUpdate"].contains(&&*pod.state);
        let missing = count(&|pod| pod.active() && !pod.marked && !pod.up(now.at, spec.min_ready) && !waits(pod));
        if let Some(most) = spec.scale_most.filter(|most| made > 0 && missing + made > *most) {
            wrongs.push(format!(
                "{made} Pods were made beside {missing} unavailable ones, and {most} may be unavailable"
            ));
        }
        let is_limited = spec.scale_most.is_some_and(|most| active + made < spec.replicas && missing + made >= most);
        self.acts.add("scale limit reached", u64::from(is_limited));
        if made > 0 && active + made > spec.replicas + spec.surge() {
            wrongs.push(format!("{made} Pods were made, and there were {active}"));
        }
        // Whose deletion was let through before counts as gone already.
        if let Some(desired) = now.desired.filter(|desired| *desired > 0) {
            let deleted = |pod: &&Seen| {
                pass.writes.iter().any(|(method, path, _)| *method == Method::DELETE && path.ends_with(&pod.name))
            };
            let guarded = pass.guarded();
            let taken = count(&|pod| pass.is_kept(pod) && deleted(pod));
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

/// What is down goes before what serves.
fn what_is_down_waits(now: &Now, pass: &PassSeen) -> Vec<String> {
    let is_tried =
        |pod: &Seen| pass.writes.iter().any(|(method, path, _)| *method == Method::DELETE && path.ends_with(&pod.name));
    let may_go = |pod: &&Seen| pod.active() && pod.marked && !(pod.held && now.spec.hooks[0]);
    let marked: Vec<&Seen> = pass.knew.iter().filter(may_go).collect();
    let serving = marked.iter().find(|pod| pod.up(now.at, 0) && is_tried(pod));
    let waiting =
        marked.iter().filter(|pod| pod.ready_since.is_none() && !is_tried(pod) && !pass.refused.contains(&pod.name));
    let text = |serving: &&Seen| waiting.map(|pod| format!("{} goes before {}", serving.text, pod.text)).collect();
    serving.map(text).unwrap_or_default()
}

/// Of Pods that serve equally, those with more weight are updated first.
fn out_of_order(now: &Now, pass: &PassSeen, begun: &BTreeSet<String>) -> Vec<String> {
    let spec = &now.spec;
    if spec.order != Order::Weights || now.desired.is_some() {
        return Vec::new();
    }
    let may_begin = |pod: &&Seen| {
        pod.up(now.at, spec.min_ready) && !pod.marked && !revision::is_same(&pod.revision, &now.update_revision)
    };
    let (begun, left): (Vec<&Seen>, Vec<&Seen>) =
        pass.knew.iter().filter(may_begin).partition(|pod| begun.contains(&pod.name));
    let lightest = begun.iter().min_by_key(|pod| Order::weight(&pod.color));
    let heavier = |pod: &&Seen| lightest.is_some_and(|begun| Order::weight(&begun.color) < Order::weight(&pod.color));
    let heaviest = left.into_iter().find(heavier);
    let text = heaviest.zip(lightest).map(|(left, begun)| {
        format!("{} with color {:?} was updated before {} with {:?}", begun.name, begun.color, left.name, left.color)
    });
    text.into_iter().collect()
}

/// Of those that waited for their deletion, the ones that serve stay.
fn the_wrong_one_stays(now: &Now, pass: &PassSeen, was: &[Seen]) -> Vec<String> {
    let waited = |pod: &&Seen| pod.active() && pod.state == "PreparingDelete" && !pod.marked;
    let is_kept = |pod: &&Seen| {
        pass.writes.iter().any(|(_, path, body)| {
            path.trim_end_matches("/status").ends_with(&pod.name)
                && body["metadata"]["labels"][labels::LIFECYCLE_STATE].is_string()
        })
    };
    let (kept, left): (Vec<&Seen>, Vec<&Seen>) = was.iter().filter(waited).partition(is_kept);
    let goes_first = |pod: &&&Seen| pod.ready_since.is_none();
    let better = |down: &Seen| {
        let fits = |pod: &&&Seen| {
            pod.ready_since.is_some() && now.is_old(pod) == now.is_old(down) && !pass.refused.contains(&pod.name)
        };
        left.iter().find(fits).map(|pod| format!("{} stays, and {} goes", down.text, pod.text))
    };
    kept.iter().filter(goes_first).filter_map(|down| better(down)).collect()
}

/// Nothing is left to do now: then no Pod waits that could go.
fn waits_for_nothing(now: &Now, acts: &mut Acts) -> Vec<String> {
    let spec = &now.spec;
    let active: Vec<&Seen> = now.pods.iter().filter(|pod| pod.active()).collect();
    let up = |seconds: i64| active.iter().filter(|pod| pod.up(now.at, seconds)).count() as i64;
    let enough = spec.replicas - spec.max_unavailable;
    // What is available goes while enough stays available. What is not yet available is unavailable already: it goes
    // while enough serves.
    let room = |pod: &Seen| match (pod.up(now.at, 0), pod.up(now.at, spec.min_ready)) {
        (true, true) => up(spec.min_ready) > enough,
        (true, false) => up(0) > enough,
        _ => pod.ready_since.is_none(),
    };
    let can = |pod: &&&Seen| !now.refused.contains(&pod.name) && (now.desired.is_none() || !pod.up(now.at, 0));
    let is_held = |pod: &Seen| pod.held && spec.hooks[0];
    let waits = |pod: &&&Seen| pod.marked && !is_held(pod) && room(pod);
    let marked = active.iter().filter(can).filter(waits);
    let mut wrongs: Vec<String> =
        marked.map(|pod| format!("it is marked and waits for nothing: {}", pod.text)).collect();

    // Updates wait for what is to be deleted, and for those that are not known to have gone well.
    let is_settled = |pod: &Seen| !pod.marked && ["", "Normal"].contains(&pod.state.as_str());
    let replaces = spec.kind == "ReCreate" && !spec.paused && spec.partition == 0 && spec.max_surge == 0;
    if !replaces || !active.iter().all(|pod| is_settled(pod)) || active.len() as i64 > spec.replicas {
        return wrongs;
    }
    let begun = active.iter().filter(|pod| !now.is_old(pod) && !pod.up(now.at, spec.min_ready)).count() as i64;
    let most = spec.max_unavailable + active.len() as i64 - spec.replicas;
    let old = active.iter().filter(|pod| now.is_old(pod)).filter(can);
    let may_begin = |pod: &&&Seen| room(pod) && if pod.ready_since.is_some() { begun < most } else { begun == 0 };
    let waiting: Vec<&&Seen> = old.filter(may_begin).collect();
    acts.add("idle beside a refusal", u64::from(!now.refused.is_empty()));
    wrongs.extend(waiting.iter().map(|pod| format!("it is to be updated and waits for nothing: {}", pod.text)));
    wrongs
}

impl Model for Promises {
    type Seen = Now;

    fn wrongs(&mut self, now: &Now) -> Vec<String> {
        if self.changes != now.changes {
            (self.changes, self.announced) = (now.changes, BTreeMap::new());
        }
        match &now.pass {
            Some(pass) => self.of_pass(now, pass),
            None if now.is_idle => waits_for_nothing(now, &mut self.acts),
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
        let shape = shape(&spec.containers());
        let updated = active.iter().filter(|pod| pod.wants == shape).count() as i64;
        for pod in active.iter().filter(|pod| pod.wants != pod.runs) {
            ask(false, format!("wants {:?}, runs {:?}: {}", pod.wants, pod.runs, pod.text));
        }
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
    let limits = Limits {
        changes: 14,
        steps_between: 40,
        patience: Duration::from_secs(1800),
        steps: 6000,
        ..Limits::default()
    };
    let begin = |random: &mut Random| (Cloud::new(random), Promises::default());
    let acts = |cloud: Cloud, mut model: Promises| {
        model.acts.merge(cloud.acts);
        model.acts
    };
    fake::history(seed, &limits, begin, |cloud| format!("{:?}, gates {:?}", cloud.spec, cloud.gates), acts)
}

#[test]
fn simulation_of_clone_sets() {
    let acts = liveness::seeds(40, "simulation_of_clone_sets", history);
    acts.require(&[
        ("created", 300),
        ("deleted", 100),
        ("taken down", 100),
        ("announced", 30),
        ("updated in place", 50),
        ("second container in place", 5),
        ("resized", 8),
        ("refused by a budget", 20),
        ("scale limit reached", 50),
        ("marked", 50),
        ("mark taken back", 1),
        ("kept after all", 5),
        ("let go", 2),
    ]);
    acts.require(&CHANGES.map(|(_, name, _)| (name, 2)));
    acts.require(&[("idle beside a refusal", 50)]);
}
