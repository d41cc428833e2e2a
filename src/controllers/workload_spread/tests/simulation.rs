//! Random histories: a CloneSet that is scaled, or a Deployment that is scaled and rolled out, limits that are numbers or
//! percentages, Pods that go and come, zones without room, replicas of the webhook that know old
//! versions, have other clocks or are down, creations and deletions that are refused afterwards, limits and strategies that change,
//! notes and costs that others take off, Pods that fail, nodes that are lost, refused writes, managers that end between two writes and
//! start anew. No subset ever gets a Pod above its limit from the webhook; and once nothing stands in the way any more, every Pod
//! runs, belongs to a subset, has its cost and is counted, every subset gets Pods, and no record is left. Then nothing is
//! written any more.
//!
//! The controller is the real one, and new Pods go through the rule of the webhook. What surrounds them is played.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{
    api::apps::workload_spread::WorkloadSpreadStatus,
    controllers::fake::in_paused_time,
    domain::kinds::workload_spread::{
        count::{SpreadAnswer, SpreadAsk, annotation, answer as decide, passes_over, places},
        inject::{Note, inject},
        spec::VERSION_IGNORED,
    },
    liveness::{self, Acts, Driver, Limits, Model, Random, Step},
};

const MOST: usize = 8;
const REPLICAS: usize = 3;

struct History {
    world: World,
    /// Whether the target is a Deployment, which has versions with room of their own, or a CloneSet.
    is_deployment: bool,
    /// How often the Deployment has been rolled out.
    revision: usize,
    has_percentages: bool,
    ready: BTreeSet<ObjectKey>,
    due: BTreeMap<ObjectKey, Duration>,
    made: usize,
    /// What each replica of the webhook knows of the WorkloadSpread.
    known: Vec<Option<WorkloadSpread>>,
    webhook_is_down: bool,
    /// Creations are refused after the webhook.
    has_no_quota: bool,
    closed: BTreeSet<&'static str>,
    /// Whether the status said last that subset a gets no Pods.
    gets_none: bool,
    /// How far the clock of each replica of the webhook is ahead, in seconds. Where it is behind by more than a record lasts, a
    /// manager that starts takes a record for an old one.
    ahead: Vec<i64>,
    /// Whether a PodDisruptionBudget refuses some evictions after the webhook.
    has_budget: bool,
    /// How many it has refused: each makes room for a moment.
    refused: usize,
    /// What nothing may do and was done.
    wrong: Option<String>,
}

#[derive(Debug)]
enum Effect {
    Create,
    Delete(String),
    Bind(String, &'static str),
    Refuse(String),
    /// A replica of the webhook hears of the WorkloadSpread.
    Hear(usize),
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn note_of(pod: &Value) -> Option<String> {
    let note: Value = serde_json::from_str(pod["metadata"]["annotations"][NOTE].as_str()?).ok()?;
    note["subset"].as_str().map(str::to_owned)
}

/// Whether the webhook has put a Pod into subset a, and it counts there.
fn is_placed_in_a(pod: &Value) -> bool {
    let is_placed = note_of(pod).as_deref() == Some("a") && text(pod, "/metadata/labels/by") == "webhook";
    is_placed && !has_failed(pod)
}

fn cost_of(pod: &Value) -> i64 {
    pod["metadata"]["annotations"][COST].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The zone that a Pod has to be in.
fn zone_of(pod: &Value) -> Option<&str> {
    let required = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchExpressions/0/values/0";
    pod.pointer(required).and_then(Value::as_str)
}

/// What a status says of subset a: whether it gets Pods. Empty: nothing.
fn schedulable(status: &Value) -> &str {
    let conditions = status["subsetStatuses"][0]["conditions"].as_array();
    let found = conditions.into_iter().flatten().find(|condition| condition["type"] == "Schedulable");
    found.map_or("", |condition| text(condition, "/status"))
}

fn wanted(set: &Value) -> usize {
    usize::try_from(set["spec"]["replicas"].as_u64().unwrap()).unwrap()
}

fn has_failed(pod: &Value) -> bool {
    text(pod, "/status/phase") == "Failed"
}

/// The version under which a Pod is counted.
fn version(pod: &Value) -> &str {
    let hash = text(pod, "/metadata/labels/pod-template-hash");
    if hash.is_empty() { VERSION_IGNORED } else { hash }
}

/// The limit of subset a, if it is a percentage.
fn percentage(spread: &Value) -> Option<usize> {
    spread["spec"]["subsets"][0]["maxReplicas"].as_str()?.strip_suffix('%')?.parse().ok()
}

/// The limit of subset a when the workload wants so many Pods.
fn limit(spread: &Value, wanted: usize) -> usize {
    match percentage(spread) {
        Some(percent) => (wanted * percent).div_ceil(100),
        None => usize::try_from(spread["spec"]["subsets"][0]["maxReplicas"].as_u64().unwrap()).unwrap(),
    }
}

impl History {
    fn new(random: &mut Random) -> Self {
        let strategy = match random.chance(70) {
            true => json!({"type": "Adaptive", "adaptive": {"rescheduleCriticalSeconds": 5}}),
            false => json!({}),
        };
        let (is_deployment, has_percentages) = (random.chance(40), random.chance(40));
        let mut spec = spread(json!({"spec": {"scheduleStrategy": strategy}}))["spec"].clone();
        if is_deployment {
            spec["targetRef"] = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
        }
        if has_percentages {
            spec["subsets"][0]["maxReplicas"] = "40%".into();
        }
        let world = World::with(4, json!({ "spec": spec }));
        if is_deployment {
            world.deployment("web", "i:0");
            world.change(&format!("{DEPLOYMENTS}web"), json!({"spec": {"replicas": 4}}));
            world.replica_set("web-0", Some("web"), ("i:0", "0"));
        }
        let new = Self {
            world,
            is_deployment,
            revision: 0,
            has_percentages,
            ready: BTreeSet::new(),
            due: BTreeMap::new(),
            made: 0,
            known: vec![None; REPLICAS],
            webhook_is_down: false,
            has_no_quota: false,
            closed: BTreeSet::new(),
            gets_none: false,
            ahead: (0..REPLICAS).map(|_| [-20, 0, 0, 20, 3600][random.below(5)]).collect(),
            has_budget: random.chance(25),
            refused: 0,
            wrong: None,
        };
        if has_percentages {
            new.note("percentages");
        }
        new
    }

    /// The path of the target.
    fn target(&self) -> String {
        format!("{}web", if self.is_deployment { DEPLOYMENTS } else { SETS })
    }

    /// How many Pods the target wants.
    fn wanted(&self) -> usize {
        wanted(&self.world.get(&self.target()).unwrap())
    }

    /// The version of new Pods.
    fn newest(&self) -> String {
        if self.is_deployment { self.revision.to_string() } else { VERSION_IGNORED.to_owned() }
    }

    /// Another version of the Deployment.
    fn roll_out(&mut self) -> String {
        self.revision += 1;
        let (image, hash) = (format!("i:{}", self.revision), self.newest());
        self.world.change(&self.target(), json!({"spec": {"template": template(&image, None)}}));
        self.world.replica_set(&format!("web-{hash}"), Some("web"), (&image, &hash));
        self.note("roll-outs");
        format!("revision {hash}")
    }

    fn scale(&self, replicas: usize) {
        self.world.change(&self.target(), json!({"spec": {"replicas": replicas}}));
    }

    fn pods(&self) -> Vec<(String, Arc<Value>)> {
        lock(&self.world.server).of(PODS)
    }

    fn spread(&self) -> Option<WorkloadSpread> {
        let found = self.world.get(&format!("{SPREADS}ws"))?;
        Some(serde_json::from_value(Value::clone(&found)).unwrap())
    }

    fn note(&self, act: &'static str) {
        lock(&self.world.server).acts.note(act);
    }

    /// What the controller of CloneSets, the scheduler and watches would do next.
    fn surroundings(&self) -> Vec<Effect> {
        let (pods, wanted, newest) = (self.pods(), self.wanted(), self.newest());
        let is_new = |pod: &Value| version(pod) == newest;
        let new = pods.iter().filter(|(_, pod)| is_new(pod)).count();
        let mut effects = Vec::new();
        // During a roll-out there may be one more.
        if new < wanted && pods.len() < wanted + usize::from(new < pods.len()) {
            effects.push(Effect::Create);
        }
        if pods.len() > wanted {
            // As the controllers: what is old, what has no node, then the lowest cost.
            let rank = |pod: &Value| (is_new(pod), !text(pod, "/spec/nodeName").is_empty(), cost_of(pod));
            let first = pods.iter().min_by_key(|(_, pod)| rank(pod));
            effects.extend(first.map(|(path, _)| Effect::Delete(path.clone())));
        }
        effects.extend(pods.iter().filter(|(_, pod)| has_failed(pod)).map(|(path, _)| Effect::Delete(path.clone())));
        for (path, pod) in pods.iter().filter(|(_, pod)| text(pod, "/spec/nodeName").is_empty() && !has_failed(pod)) {
            let open = ["a", "b"].into_iter().filter(|zone| !self.closed.contains(zone));
            let fitting: Vec<&str> = open.filter(|zone| zone_of(pod).is_none_or(|wants| wants == *zone)).collect();
            if fitting.is_empty() && pod["status"]["conditions"].is_null() {
                effects.push(Effect::Refuse(path.clone()));
            }
            effects.extend(fitting.into_iter().map(|zone| Effect::Bind(path.clone(), zone)));
        }
        let live = self.spread().and_then(|spread| spread.metadata.resource_version);
        let is_old = |known: &Option<WorkloadSpread>| {
            known.as_ref().map(|k| k.metadata.resource_version.clone()) != Some(live.clone())
        };
        effects.extend((0..REPLICAS).filter(|replica| is_old(&self.known[*replica])).map(Effect::Hear));
        effects
    }

    fn clock(&self, replica: usize) -> jiff::Timestamp {
        clock::now().wall + jiff::SignedDuration::from_secs(self.ahead[replica])
    }

    /// As `settle` in the webhook: by what a replica knows, written with the version that it knows.
    fn ask(&mut self, replica: usize, ask: &SpreadAsk) -> SpreadAnswer {
        let mut is_fresh = false;
        loop {
            let Some(spread) = self.known[replica].clone() else { return SpreadAnswer::Nothing };
            let spec = SpreadSpec::of(&spread).unwrap();
            let before = spread.status.clone().unwrap_or_default();
            // Who makes a Pod, or takes one, has seen how many there are to be: so does the webhook.
            let total = i32::try_from(self.wanted()).unwrap();
            let (mut status, limits) = (before.clone(), spec.limits(total));
            let answered = decide(&spec, &limits, &mut status, ask, self.clock(replica));
            let places = places(&spec, &before, &limits, ask.version());
            if passes_over(&places, answered.index(places.len())) && !is_fresh {
                (self.known[replica], is_fresh) = (self.spread(), true);
                continue;
            }
            if status == before {
                return answered;
            }
            let live = self.spread().unwrap();
            if live.metadata.resource_version != spread.metadata.resource_version {
                self.note("conflicts of the webhook");
                (self.known[replica], is_fresh) = (Some(live), true);
                continue;
            }
            let mut object = json!(spread);
            object["status"] = json!(status);
            self.world.put(&format!("{SPREADS}ws"), object);
            self.known[replica] = self.spread();
            return answered;
        }
    }

    /// A Pod as its controller makes it.
    fn make(&self, name: &str) {
        if !self.is_deployment {
            self.world.pod(name, "", json!({}));
            return;
        }
        self.world.pod_of_set(name, &format!("web-{}", self.revision), "", json!({}));
        let pending = json!({"spec": {"nodeName": null}, "status": {"phase": "Pending"}});
        self.world.change(&format!("{PODS}{name}"), pending);
    }

    fn create(&mut self, random: &mut Random) -> String {
        self.made += 1;
        let name = format!("web-{}", self.made);
        if self.webhook_is_down {
            self.make(&name);
            self.note("missed");
            return format!("{name} is created without us");
        }
        let replica = random.below(REPLICAS);
        if self.known[replica].is_none() {
            self.known[replica] = self.spread();
        }
        let ask = SpreadAsk::Create { key: name.clone(), version: self.newest() };
        let answered = self.ask(replica, &ask);
        if self.has_no_quota {
            self.note("refused creations");
            return format!("{name} is refused after {answered:?}");
        }
        self.make(&name);
        if let SpreadAnswer::Subset(index, _) = answered {
            let spec = SpreadSpec::of(self.known[replica].as_ref().unwrap()).unwrap();
            let note = Note { matched: annotation("ws", &spec.subsets[index].name, None), cost: None };
            let path = format!("{PODS}{name}");
            let mut pod = inject(&self.world.get(&path).unwrap(), &spec.subsets[index], Some(&note)).unwrap();
            pod["metadata"]["labels"]["by"] = "webhook".into();
            self.world.put(&path, pod);
            self.note("placed");
            self.check_limit();
        }
        format!("{name} goes to {answered:?}")
    }

    /// Right after a Pod was placed: the limit of now holds for its version, whatever the status says.
    fn check_limit(&mut self) {
        let limit = limit(&self.world.get(&format!("{SPREADS}ws")).unwrap(), self.wanted()) + self.refused;
        let (pods, newest) = (self.pods(), self.newest());
        let own = pods.iter().filter(|(_, pod)| is_placed_in_a(pod) && version(pod) == newest);
        let placed = own.count();
        if self.last_is_in_a(&pods) && placed > limit {
            self.wrong = Some(format!("the webhook has put {placed} Pods where there is room for {limit}"));
        }
    }

    fn last_is_in_a(&self, pods: &[(String, Arc<Value>)]) -> bool {
        let path = format!("{PODS}web-{}", self.made);
        pods.iter().any(|(of, pod)| *of == path && note_of(pod).as_deref() == Some("a"))
    }

    /// A Pod goes; the webhook has recorded it, or was down.
    fn remove(&mut self, path: &str, random: &mut Random) {
        self.record_going(path, random);
        lock(&self.world.server).remove(path);
    }

    fn record_going(&mut self, path: &str, random: &mut Random) {
        let pod = self.world.get(path);
        let replica = random.below(REPLICAS);
        let is_active = pod.as_ref().is_some_and(|pod| text(pod, "/status/phase") != "Failed");
        let is_heard = is_active && !self.webhook_is_down && self.known[replica].is_some();
        if let Some(subset) = pod.as_ref().and_then(|pod| note_of(pod)).filter(|_| is_heard) {
            let name = path.rsplit('/').next().unwrap().to_owned();
            let version = pod.as_deref().map(version).unwrap_or_default().to_owned();
            self.ask(replica, &SpreadAsk::Delete { pod: name, subset, version });
            self.note("recorded deletions");
        }
    }

    fn play(&mut self, effect: Effect, random: &mut Random) -> String {
        let said = format!("{effect:?}");
        match effect {
            Effect::Create => return self.create(random),
            Effect::Delete(path) => self.remove(&path, random),
            Effect::Bind(path, zone) => self.world.change(
                &path,
                json!({"spec": {"nodeName": zone}, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}),
            ),
            Effect::Refuse(path) => {
                let refused = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
                self.world.change(&path, json!({"status": {"conditions": refused}}));
            }
            Effect::Hear(replica) => self.known[replica] = self.spread(),
        }
        said
    }

    fn take_queue(&mut self) {
        let queue = self.world.controller.queue.clone();
        while let Some(key) = queue.begin() {
            queue.done::<String>(key.clone(), Ok(Requeue::Await));
            self.due.remove(&key);
            self.ready.insert(key);
        }
    }

    /// Others take off, or change, what is noted on a Pod. What the webhook has said of it is not known any more.
    fn harm_notes(&self, random: &mut Random) -> String {
        let pods = self.pods();
        let Some((path, _)) = random.one_of(&pods) else { return "no Pod".into() };
        if random.chance(50) {
            self.note("costs changed by others");
            let cost = if random.chance(50) { Value::Null } else { "7".into() };
            self.world.change(path, json!({"metadata": {"annotations": {COST: cost}}}));
            return format!("{path} gets another cost");
        }
        self.note("notes taken off");
        self.world.change(path, json!({"metadata": {"labels": {"by": null}, "annotations": {NOTE: null}}}));
        format!("{path} loses its note")
    }

    /// A Pod fails, or a node is lost with its Pods.
    fn lose(&mut self, random: &mut Random) -> String {
        let pods = self.pods();
        if random.chance(60) {
            let Some((path, _)) = random.one_of(&pods) else { return "no Pod".into() };
            self.note("Pods failed");
            self.world.change(path, json!({"status": {"phase": "Failed", "conditions": null}}));
            return format!("{path} fails");
        }
        let zone = ["a", "b"][random.below(2)];
        self.note("nodes lost");
        lock(&self.world.server).remove(&format!("{NODES}{zone}"));
        for (path, _) in pods.iter().filter(|(_, pod)| text(pod, "/spec/nodeName") == zone) {
            lock(&self.world.server).remove(path);
        }
        self.closed.insert(zone);
        format!("{zone} is lost")
    }

    /// The first zone has no room for longer than its Pods may wait, and those that it had are to be made anew.
    async fn starve(&mut self, random: &mut Random) -> Result<String, String> {
        (self.webhook_is_down, self.has_no_quota) = (false, false);
        self.closed.insert("a");
        for (path, _) in self.pods().iter().filter(|(_, pod)| text(pod, "/spec/nodeName") == "a") {
            self.remove(path, random);
        }
        self.scale(MOST);
        let end = clock::now().mono + Duration::from_secs(8);
        for _ in 0..200 {
            let left = end.saturating_sub(clock::now().mono);
            if left.is_zero() {
                break;
            }
            if let Step::Idle(after) = self.step(random).await? {
                self.advance(after.unwrap_or(left).min(left).max(Duration::from_millis(1))).await;
            }
        }
        Ok("a has no room for 8 s".into())
    }

    /// Notes that a subset that got no Pods gets them again.
    fn note_recovery(&mut self) {
        let spread = self.world.get(&format!("{SPREADS}ws")).unwrap();
        let now = schedulable(&spread["status"]);
        if self.gets_none && now == "True" {
            self.note("closed subsets recovered");
        }
        self.gets_none = now == "False";
    }

    /// There is room in a zone again.
    fn open(&mut self, zone: &'static str) {
        self.closed.remove(zone);
        let path = format!("{NODES}{zone}");
        if self.world.get(&path).is_none() {
            self.world.put(&path, node(zone, zone));
        }
    }

    fn change_spec(&self, changes: &Value) {
        let mut object = Value::clone(&self.world.get(&format!("{SPREADS}ws")).unwrap());
        json_patch::merge(&mut object["spec"], changes);
        object["metadata"]["generation"] = (object["metadata"]["generation"].as_i64().unwrap() + 1).into();
        self.world.put(&format!("{SPREADS}ws"), object);
    }

    /// After it has converged nothing is written any more, and a new manager writes nothing either.
    async fn rest(&mut self, random: &mut Random) -> Result<(), String> {
        // Counts may still be written, a second apart.
        self.idle(random).await?;
        for what in ["it has come to rest", "a new manager has started"] {
            let before = lock(&self.world.server).objects.clone();
            self.idle(random).await?;
            let after = lock(&self.world.server).objects.clone();
            if let Some((path, now)) = after.iter().find(|(path, now)| before.get(*path) != Some(now)) {
                return Err(format!("after {what} {path} is written: {now}"));
            }
            self.restart_manager();
        }
        Ok(())
    }

    async fn idle(&mut self, random: &mut Random) -> Result<(), String> {
        let mut pauses = 0;
        for _ in 0..3000 {
            match self.step(random).await? {
                Step::Worked(_) => {}
                Step::Idle(Some(after)) if pauses < 30 => {
                    self.advance(after.max(Duration::from_millis(1))).await;
                    pauses += 1;
                }
                Step::Idle(_) => return Ok(()),
            }
        }
        Err("it does not come to rest".into())
    }

    fn restart_manager(&mut self) {
        (self.ready, self.due) = Default::default();
        self.note("managers that started anew");
        self.world.restart();
    }
}

struct Seen {
    pods: Vec<Arc<Value>>,
    spread: Arc<Value>,
    wanted: usize,
    /// The version of new Pods.
    newest: String,
    refused: usize,
    /// Changes of Pods that no watch has brought: what is written without them is right by chance.
    undelivered: usize,
}

impl Seen {
    fn status(&self) -> WorkloadSpreadStatus {
        serde_json::from_value(self.spread["status"].clone()).unwrap_or_default()
    }

    fn limit(&self) -> usize {
        limit(&self.spread, self.wanted)
    }

    fn in_subset<'a>(&'a self, subset: &'a str) -> impl Iterator<Item = &'a Arc<Value>> {
        self.pods.iter().filter(move |pod| note_of(pod).as_deref() == Some(subset))
    }
}

impl Driver for History {
    type Seen = Seen;

    async fn disturb(&mut self, random: &mut Random) -> Result<String, String> {
        Ok(match random.below(20) {
            0..=2 => {
                let replicas = random.below(MOST + 1);
                self.scale(replicas);
                format!("{replicas} replicas")
            }
            3 | 4 => {
                let pods = self.pods();
                let Some((path, _)) = random.one_of(&pods) else { return Ok("no Pod".into()) };
                if self.has_budget && random.chance(50) {
                    self.record_going(path, random);
                    self.refused += 1;
                    self.note("refused deletions");
                    return Ok(format!("{path} may not go"));
                }
                if random.chance(50) {
                    self.remove(path, random);
                } else {
                    lock(&self.world.server).remove(path);
                }
                format!("{path} goes")
            }
            5 => {
                self.webhook_is_down = !self.webhook_is_down;
                format!("the webhook is down: {}", self.webhook_is_down)
            }
            6 => {
                self.has_no_quota = !self.has_no_quota;
                format!("there is no quota: {}", self.has_no_quota)
            }
            7 | 8 => {
                let zone = ["a", "b"][random.below(2)];
                if self.closed.contains(zone) {
                    self.open(zone);
                } else {
                    self.closed.insert(zone);
                }
                format!("without room: {:?}", self.closed)
            }
            9 => {
                let drawn = random.below(4);
                let max: Value = match self.has_percentages {
                    true => ["0%", "25%", "60%", "100%"][drawn].into(),
                    false => drawn.into(),
                };
                let mut subsets = self.world.get(&format!("{SPREADS}ws")).unwrap()["spec"]["subsets"].clone();
                subsets[0]["maxReplicas"] = max.clone();
                self.change_spec(&json!({"subsets": subsets}));
                format!("a limit of {max}")
            }
            10 | 11 => lock(&self.world.server).fail(random),
            12 => {
                self.restart_manager();
                "a new manager".into()
            }
            13 => {
                let writes = random.below(4);
                *lock(&self.world.lives) = Some(writes);
                format!("the manager ends after {writes} writes")
            }
            14 | 15 => self.harm_notes(random),
            16 => self.lose(random),
            17 => {
                let adaptive = json!({"type": "Adaptive", "adaptive": {"rescheduleCriticalSeconds": 5}});
                let is_adaptive = random.chance(70);
                self.change_spec(&json!({"scheduleStrategy": if is_adaptive { adaptive } else { Value::Null }}));
                self.note("strategies");
                format!("it is adaptive: {is_adaptive}")
            }
            18 => return self.starve(random).await,
            _ if self.is_deployment => self.roll_out(),
            _ => "nothing".into(),
        })
    }

    async fn make_possible(&mut self) -> Result<String, String> {
        lock(&self.world.server).faults.clear();
        (self.webhook_is_down, self.has_no_quota) = (false, false);
        ["a", "b"].into_iter().for_each(|zone| self.open(zone));
        if lock(&self.world.lives).is_some() {
            self.restart_manager();
        }
        self.scale(5);
        Ok("there is room, quota and a webhook".into())
    }

    async fn step(&mut self, random: &mut Random) -> Result<Step, String> {
        self.take_queue();
        let now = clock::now().mono;
        let over: Vec<ObjectKey> = self.due.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        for key in over {
            self.due.remove(&key);
            self.ready.insert(key);
        }
        let mut effects = self.surroundings();
        if self.has_no_quota {
            // It tries again and again, but not without end at one moment.
            effects.retain(|effect| !matches!(effect, Effect::Create) || random.chance(10));
        }
        let ready: Vec<ObjectKey> = self.ready.iter().cloned().collect();
        let has_news = !lock(&self.world.server).news.is_empty();
        let choices = effects.len() + ready.len() + usize::from(has_news);
        if choices == 0 {
            let due = self.due.values().min().map(|at| at.saturating_sub(now));
            return Ok(Step::Idle([due, self.world.controller.queue.next_in()].into_iter().flatten().min()));
        }
        let choice = random.below(choices);
        if choice < effects.len() {
            let effect = effects.swap_remove(choice);
            let said = self.play(effect, random);
            return self.wrong.take().map_or(Ok(Step::Worked(said)), Err);
        }
        let Some(key) = ready.get(choice - effects.len()) else {
            let path = lock(&self.world.server).news.pop_front().unwrap_or_default();
            self.world.deliver(&path);
            return Ok(Step::Worked(format!("delivered {path}")));
        };
        self.ready.remove(key);
        let result = self.world.controller.reconcile(key).await;
        self.note_recovery();
        if *lock(&self.world.lives) == Some(0) {
            let said = format!("the manager has ended in its pass over {key}: {result:?}");
            self.note("managers that ended between writes");
            self.restart_manager();
            return Ok(Step::Worked(said));
        }
        let after = match &result {
            Ok(Requeue::Await) => None,
            Ok(Requeue::After(delay)) => Some(*delay),
            Err(_) => Some(Duration::from_millis(500)),
        };
        if let Some(delay) = after {
            self.due.insert(key.clone(), now + delay);
        }
        Ok(Step::Worked(format!("reconciled {key}: {result:?}")))
    }

    async fn advance(&mut self, by: Duration) {
        tokio::time::advance(by).await;
    }

    async fn see(&mut self) -> Result<Seen, String> {
        let spread = self.world.get(&format!("{SPREADS}ws")).unwrap();
        let pods = self.pods().into_iter().map(|(_, pod)| pod).collect();
        let news = |server: &Server| server.news.iter().filter(|path| path.starts_with(PODS)).count();
        let undelivered = news(&lock(&self.world.server));
        let (wanted, newest) = (self.wanted(), self.newest());
        Ok(Seen { pods, spread, wanted, newest, refused: self.refused, undelivered })
    }
}

/// What is promised, in plain terms.
#[derive(Default)]
struct Promises {
    /// The largest limit that the first subset has had.
    largest: usize,
    /// Nodes of Pods, by UID.
    nodes: BTreeMap<String, String>,
    acts: Acts,
}

impl Model for Promises {
    type Seen = Seen;

    fn wrongs(&mut self, seen: &Seen) -> Vec<String> {
        let mut wrongs = Vec::new();
        self.largest = self.largest.max(seen.limit());
        let mut by_version: BTreeMap<&str, usize> = BTreeMap::new();
        for pod in seen.pods.iter().filter(|pod| is_placed_in_a(pod)) {
            *by_version.entry(version(pod)).or_default() += 1;
        }
        let placed = by_version.into_values().max().unwrap_or_default();
        if placed > self.largest + seen.refused {
            wrongs.push(format!("the webhook has put {placed} Pods where there is room for {}", self.largest));
        }
        for subset in seen.status().versioned_subset_statuses.values().flatten() {
            if subset.replicas < 0 || subset.missing_replicas < -1 {
                wrongs.push(format!("numbers below zero: {subset:?}"));
            }
        }
        for pod in &seen.pods {
            let (uid, on) = (text(pod, "/metadata/uid").to_owned(), text(pod, "/spec/nodeName").to_owned());
            if !on.is_empty() && self.nodes.insert(uid, on).is_none() {
                self.acts.note("ran");
            }
        }
        wrongs
    }

    fn missing(&self, seen: &Seen) -> Vec<String> {
        let mut missing = Vec::new();
        if seen.undelivered > 0 {
            missing.push(format!("{} changes of Pods are not delivered", seen.undelivered));
        }
        if seen.pods.len() != seen.wanted {
            missing.push(format!("{} of {} Pods are there", seen.pods.len(), seen.wanted));
        }
        for pod in &seen.pods {
            let name = text(pod, "/metadata/name");
            if text(pod, "/spec/nodeName").is_empty() || note_of(pod).is_none() || has_failed(pod) {
                missing.push(format!("{name} has no node or no subset, or has failed"));
            }
            if version(pod) != seen.newest {
                missing.push(format!("{name} is of version {}", version(pod)));
            }
        }
        let (max, status) = (seen.limit(), seen.status());
        for (index, (subset, limit)) in [("a", Some(max)), ("b", None)].into_iter().enumerate() {
            let there = seen.in_subset(subset).count();
            missing.extend(seen.missing_costs(index, subset, limit));
            let counted = status.subset_statuses.iter().find(|known| known.name == subset);
            let counted = counted.map(|known| (known.replicas, known.missing_replicas)).unwrap_or_default();
            let left = limit.map_or(-1, |max| i32::try_from(max.saturating_sub(there)).unwrap());
            if counted != (i32::try_from(there).unwrap(), left) {
                missing.push(format!("{there} Pods are in {subset}, counted as {counted:?}"));
            }
        }
        for subset in status.versioned_subset_statuses.values().flatten() {
            if !subset.creating_pods.is_empty() || !subset.deleting_pods.is_empty() {
                missing.push(format!("a record is left: {subset:?}"));
            }
        }
        if schedulable(&seen.spread["status"]) == "False" {
            missing.push("subset a gets no Pods".into());
        }
        let true_one = status.conditions.iter().find(|condition| condition.status == "True");
        if true_one.is_none_or(|condition| condition.type_ != "Ready") {
            missing.push(format!("it is not Ready: {true_one:?}"));
        }
        if seen.spread["status"]["observedGeneration"] != seen.spread["metadata"]["generation"] {
            missing.push("the status is of another generation".into());
        }
        missing
    }
}

impl Seen {
    /// What the Pods of a subset are not worth yet.
    fn missing_costs(&self, index: usize, subset: &str, limit: Option<usize>) -> Option<String> {
        let there = self.in_subset(subset).count();
        let so_many = |costs: &dyn Fn(i64) -> bool| self.in_subset(subset).filter(|pod| costs(cost_of(pod))).count();
        let of_no_place = so_many(&|cost| cost == -cost_above(index));
        if let Some(percent) = percentage(&self.spread) {
            // Each Pod has a place of its own in the order in which Pods come, but where none ever comes.
            let gets_none = if index == 0 { percent == 0 } else { percent == 100 };
            let all: BTreeSet<i64> = self.pods.iter().map(|pod| cost_of(pod)).filter(|cost| *cost > 0).collect();
            let places = so_many(&|cost| cost > 0);
            let have_places = self.pods.iter().filter(|pod| cost_of(pod) > 0).count();
            let wanted = if gets_none { (0, there) } else { (there, 0) };
            let is_wrong = (places, of_no_place) != wanted || all.len() != have_places;
            return is_wrong
                .then(|| format!("{places} of {there} Pods in {subset} have a place, with {percent}%: {all:?}"));
        }
        let within = there.min(limit.unwrap_or(there));
        let cost = if index == 0 { 200 } else { 100 };
        let costs = so_many(&|found| found == cost);
        let is_wrong = (costs, of_no_place) != (within, there - within);
        is_wrong.then(|| {
            format!("of {there} Pods in {subset} {costs} are worth {cost} and {of_no_place} nothing, with a limit of {limit:?}")
        })
    }
}

/// What a Pod above the limit is worth less than nothing.
fn cost_above(index: usize) -> i64 {
    i64::try_from(index + 1).unwrap() * 100
}

#[test]
fn simulation_of_workload_spreads() {
    let acts = liveness::seeds(60, "simulation_of_workload_spreads", |seed| {
        in_paused_time(seed, async {
            let (mut history, mut promises) = (History::new(&mut Random(seed)), Promises::default());
            let limits = Limits { changes: 30, ..Limits::default() };
            liveness::run(seed, &limits, &mut history, &mut promises).await?;
            history.rest(&mut Random(seed)).await?;
            let mut acts = promises.acts;
            for what in COUNTED {
                acts.add(what, lock(&history.world.server).acts.count(what));
            }
            Ok(acts)
        })
    });
    acts.require(&[
        ("ran", 300),
        ("placed", 300),
        ("missed", 30),
        ("recorded deletions", 100),
        ("refused creations", 30),
        ("conflicts of the webhook", 10),
        ("evicted", 5),
        ("closed subsets recovered", 3),
        ("refused writes", 50),
        ("managers that started anew", 30),
        ("managers that ended between writes", 20),
        ("refused deletions", 10),
        ("costs changed by others", 50),
        ("notes taken off", 50),
        ("Pods failed", 30),
        ("nodes lost", 20),
        ("strategies", 50),
        ("percentages", 20),
        ("roll-outs", 20),
    ]);
}

const COUNTED: [&str; 18] = [
    "placed",
    "missed",
    "recorded deletions",
    "refused creations",
    "conflicts of the webhook",
    "evicted",
    "closed subsets recovered",
    "refused writes",
    "managers that started anew",
    "managers that ended between writes",
    "refused deletions",
    "costs changed by others",
    "notes taken off",
    "Pods failed",
    "nodes lost",
    "strategies",
    "percentages",
    "roll-outs",
];
