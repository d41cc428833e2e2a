//! Random histories: Pods that go and come again, nodes that are lost, StatefulSets that are scaled and replaced, annotations
//! that are turned on and off, refused writes, managers that start anew. Once nothing stands in the way any more, every Pod
//! runs, what is recorded is where it runs, and on the way no Pod that had a place got another one while its node was there.
//!
//! The controller is the real one, and new Pods go through the rule of the webhook. What surrounds them is played.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{
    controllers::fake::in_paused_time,
    domain::kinds::persistent_pod_state::restore::restore,
    liveness::{self, Acts, Driver, Limits, Model, Random, Step},
};

const MOST: usize = 4;

struct History {
    world: World,
    ready: BTreeSet<ObjectKey>,
    due: BTreeMap<ObjectKey, Duration>,
    made: usize,
    /// UIDs of objects of users that they, and nobody else, have deleted.
    taken: BTreeSet<String>,
    /// Nodes that have had other labels: what was recorded of them may be given up.
    relabelled: BTreeSet<String>,
    /// What the last pass gave up although it had to be kept.
    given_up: Vec<String>,
}

#[derive(Debug)]
enum Effect {
    Create(usize),
    Remove(String),
    Bind(String, String),
    Ready(String, bool),
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn is_ready(object: &Value) -> bool {
    object["status"]["conditions"][0]["status"] == "True"
}

/// Whether what is recorded in an object is of the StatefulSet with this UID.
fn is_about(state: &Value, uid: &str) -> bool {
    let target = text(state, "/status/targetUid");
    target.is_empty() || target == uid
}

fn replicas(set: &Value) -> usize {
    usize::try_from(set["spec"]["replicas"].as_u64().unwrap()).unwrap()
}

impl History {
    fn new(random: &mut Random) -> Self {
        let world = World::new();
        for i in 0..3 {
            world.put(&format!("{NODES}n{i}"), node(&format!("n{i}"), true));
        }
        let generated = random.chance(50);
        world.put(&format!("{SETS}db"), set(3, if generated { asks() } else { json!({}) }));
        if !generated {
            let retention = ["", "WhenDeleted"][random.below(2)];
            let changes = json!({"spec": {"persistentPodStateRetentionPolicy": retention}});
            // Under the name of the StatefulSet it stands where a generated one would.
            let name = ["mine", "db"][random.below(2)];
            world.put(&format!("{STATES}{name}"), state(name, changes));
        }
        let (ready, due, taken, relabelled, given_up) = Default::default();
        Self { world, ready, due, made: 3, taken, relabelled, given_up }
    }

    fn of(&self, prefix: &str) -> Vec<(String, Arc<Value>)> {
        lock(&self.world.server).of(prefix)
    }

    /// What the controller of StatefulSets, the scheduler, kubelets and garbage collectors would do next.
    fn surroundings(&self) -> Vec<Effect> {
        let (pods, nodes, states) = (self.of(PODS), self.of(NODES), self.of(STATES));
        let set = self.world.get(&format!("{SETS}db"));
        let uid = set.as_ref().map(|set| text(set, "/metadata/uid").to_owned());
        let wanted = set.as_ref().map_or(0, |set| replicas(set));
        let mut effects = Vec::new();
        let is_there = |name: &str| pods.iter().any(|(_, pod)| text(pod, "/metadata/name") == name);
        effects.extend((0..wanted).filter(|i| !is_there(&format!("db-{i}"))).map(Effect::Create));
        for (path, pod) in &pods {
            let ordinal: usize = text(pod, "/metadata/name").trim_start_matches("db-").parse().unwrap();
            let is_orphan = Some(text(pod, "/metadata/ownerReferences/0/uid")) != uid.as_deref();
            let on = text(pod, "/spec/nodeName");
            let node = nodes.iter().find(|(_, node)| text(node, "/metadata/name") == on);
            if is_orphan || ordinal >= wanted || (!on.is_empty() && node.is_none()) {
                effects.push(Effect::Remove(path.clone()));
            } else if let Some((_, node)) = node {
                if is_ready(node) != is_ready(pod) {
                    effects.push(Effect::Ready(path.clone(), is_ready(node)));
                }
            } else {
                let selector = pod["spec"]["nodeSelector"].as_object();
                let fits = |node: &Value| {
                    let labels = &node["metadata"]["labels"];
                    is_ready(node) && selector.is_none_or(|all| all.iter().all(|(key, value)| labels[key] == *value))
                };
                let fitting = nodes.iter().filter(|(_, node)| fits(node));
                effects
                    .extend(fitting.map(|(_, node)| Effect::Bind(path.clone(), text(node, "/metadata/name").into())));
            }
        }
        for (path, state) in states {
            let owner = text(&state, "/metadata/ownerReferences/0/uid");
            if !owner.is_empty() && Some(owner) != uid.as_deref() {
                effects.push(Effect::Remove(path));
            }
        }
        effects
    }

    fn play(&mut self, effect: Effect) -> String {
        let said = format!("{effect:?}");
        match effect {
            Effect::Create(i) => {
                self.world.pod(&format!("db-{i}"), "", json!({}));
                let path = format!("{PODS}db-{i}");
                let states: Vec<PersistentPodState> =
                    self.of(STATES).iter().map(|(_, s)| serde_json::from_value(Value::clone(s)).unwrap()).collect();
                let mut pod = Value::clone(&self.world.get(&path).unwrap());
                if let Some(state) = restore::first(&states)
                    && restore(&mut pod, state).is_some()
                {
                    lock(&self.world.server).acts.note("restored");
                    self.world.put(&path, pod);
                }
            }
            Effect::Remove(path) => lock(&self.world.server).remove(&path),
            Effect::Bind(path, node) => lock(&self.world.server).change(&path, &json!({"spec": {"nodeName": node}})),
            Effect::Ready(path, is_ready) => {
                let mut changes = ready(is_ready);
                let node = self.world.get(&path).map(|pod| text(&pod, "/spec/nodeName").to_owned());
                changes["metadata"]["annotations"][IP] = format!("10.0.0.{}", node.unwrap_or_default()).into();
                lock(&self.world.server).change(&path, &changes);
            }
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

    fn restart_manager(&mut self) {
        self.world.controller = manager(&self.world.server);
        (self.ready, self.due) = Default::default();
        let all: Vec<String> = {
            let mut server = lock(&self.world.server);
            server.news.clear();
            server.acts.note("managers that started anew");
            server.objects.keys().cloned().collect()
        };
        all.iter().for_each(|path| self.world.deliver(path));
    }

    /// What a pass gave up: of a Pod that is wanted, as far as it knew, the record of a node that is there.
    fn look_at_pass(
        &mut self,
        before: &BTreeMap<String, Arc<Value>>,
        known: &[Arc<PersistentPodState>],
        wanted: Option<(String, usize)>,
    ) {
        let ([one], Some((uid, wanted))) = (known, wanted) else { return };
        let Some((path, state)) = before.iter().find(|(path, _)| {
            path.starts_with(STATES)
                && path.ends_with(&format!("/{}", one.metadata.name.as_deref().unwrap_or_default()))
        }) else {
            return;
        };
        let (after, set) = (self.world.get(path), before.get(&format!("{SETS}db")));
        if set.is_none_or(|set| text(set, "/metadata/uid") != uid)
            || one.metadata.uid.as_deref() != Some(text(state, "/metadata/uid"))
        {
            return;
        }
        for (pod, entry) in state["status"]["podStates"].as_object().into_iter().flatten() {
            let ordinal: usize = pod.trim_start_matches("db-").parse().unwrap();
            let name = text(entry, "/nodeName");
            let is_kept = ordinal < wanted && !self.relabelled.contains(name);
            let Some(node) = before.get(&format!("{NODES}{name}")).filter(|_| is_kept) else { continue };
            if !before.contains_key(&format!("{PODS}{pod}")) {
                self.note("records without their Pods");
            }
            if !is_ready(node) {
                self.note("records of nodes that are not Ready");
            }
            // What is recorded of a StatefulSet that is gone goes.
            let Some(after) = after.as_ref().filter(|_| is_about(state, &uid)) else { continue };
            let now = &after["status"]["podStates"][pod];
            if text(now, "/nodeName").is_empty() || now["nodeTopologyLabels"][HOST].is_null() {
                self.given_up
                    .push(format!("{pod} was recorded as {entry}, the node is there, and now it is recorded as {now}"));
            }
        }
    }

    fn note(&self, act: &'static str) {
        lock(&self.world.server).acts.note(act);
    }

    /// Whether it has ended now.
    fn end(&mut self) -> bool {
        let has_ended = lock(&self.world.server).has_ended();
        if has_ended {
            self.restart_manager();
        }
        has_ended
    }

    /// After it has converged nothing is written any more, and a new manager writes nothing either.
    async fn rest(&mut self, random: &mut Random) -> Result<(), String> {
        // Counts and annotations may still be written, a second apart.
        self.idle(random).await?;
        for what in ["it has come to rest", "a new manager has started"] {
            let before = lock(&self.world.server).objects.clone();
            self.idle(random).await?;
            if lock(&self.world.server).objects != before {
                return Err(format!("after {what} something is written"));
            }
            self.restart_manager();
        }
        Ok(())
    }

    async fn idle(&mut self, random: &mut Random) -> Result<(), String> {
        let mut pauses = 0;
        for _ in 0..2000 {
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

    fn turn_node(&mut self, random: &mut Random) -> String {
        let nodes = self.of(NODES);
        let Some((path, there)) = random.one_of(&nodes) else { return "no node".into() };
        let name = text(there, "/metadata/name").to_owned();
        match random.below(4) {
            3 => {
                let label = if random.chance(50) { name.clone() } else { format!("once-{name}") };
                lock(&self.world.server).change(path, &json!({"metadata": {"labels": {HOST: label}}}));
                self.note("nodes that got other labels");
                self.relabelled.insert(name.clone());
                format!("{name} is labelled {label}")
            }
            0 => {
                lock(&self.world.server).remove(path);
                lock(&self.world.server).acts.note("nodes lost");
                format!("{name} is gone")
            }
            1 => {
                let turned = !is_ready(there);
                let changes = json!({"status": node(&name, turned)["status"]});
                lock(&self.world.server).change(path, &changes);
                self.note("nodes that turned");
                format!("{name} becomes Ready: {turned}")
            }
            _ => {
                self.made += 1;
                let name = format!("n{}", self.made);
                self.world.put(&format!("{NODES}{name}"), node(&name, true));
                format!("{name} comes")
            }
        }
    }

    fn turn_set(&mut self, random: &mut Random) -> String {
        let path = format!("{SETS}db");
        let Some(there) = self.world.get(&path) else {
            self.world.put(&path, set(1 + i32::try_from(random.below(MOST)).unwrap(), asks()));
            return "the StatefulSet is made".into();
        };
        match random.below(6) {
            0 => {
                self.note("StatefulSets deleted");
                lock(&self.world.server).remove(&path);
                "the StatefulSet is deleted".into()
            }
            1 => {
                let key = "kruise.io/auto-generate-persistent-pod-state";
                let is_on = there["metadata"]["annotations"][key] == "true";
                let value = if is_on { Value::Null } else { "true".into() };
                self.note("annotations turned");
                lock(&self.world.server).change(
                    &path,
                    &json!({"metadata": {"annotations": {key: value,
                    "kruise.io/required-persistent-topology": HOST}}}),
                );
                format!("it asks for an object: {}", !is_on)
            }
            2 => {
                let key = "kruise.io/persistent-pod-annotations";
                let value = if there["metadata"]["annotations"][key].is_null() { IP.into() } else { Value::Null };
                lock(&self.world.server).change(&path, &json!({"metadata": {"annotations": {key: value}}}));
                self.note("annotations turned");
                "it asks for other annotations".into()
            }
            _ => {
                self.note("scaled");
                let replicas = random.below(MOST + 1);
                lock(&self.world.server).change(&path, &json!({"spec": {"replicas": replicas}}));
                format!("{replicas} replicas")
            }
        }
    }
}

/// Objects, the UIDs of those that users have deleted, what the last pass gave up, and nodes that have had other labels.
struct Seen(BTreeMap<String, Arc<Value>>, BTreeSet<String>, Vec<String>, BTreeSet<String>);

impl Seen {
    fn of<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |(path, _)| path.starts_with(prefix)).map(|(_, object)| object.as_ref())
    }

    /// What is recorded of a Pod for the StatefulSet that it belongs to.
    fn recorded(&self, pod: &Value) -> Option<&Value> {
        let (name, owner) = (text(pod, "/metadata/name"), text(pod, "/metadata/ownerReferences/0/uid"));
        let mut states = self.of(STATES).filter(|state| is_about(state, owner));
        states.find_map(|state| state["status"]["podStates"].get(name))
    }

    fn has_node(&self, name: &str) -> bool {
        self.0.contains_key(&format!("{NODES}{name}"))
    }

    /// Whether a Pod that ran there can be held there.
    fn is_home(&self, name: &str) -> bool {
        self.has_node(name) && !self.3.contains(name)
    }
}

impl Driver for History {
    type Seen = Seen;

    async fn disturb(&mut self, random: &mut Random) -> Result<String, String> {
        Ok(match random.below(13) {
            0..=2 => {
                let pod = format!("{PODS}db-{}", random.below(MOST));
                self.note("Pods deleted");
                lock(&self.world.server).remove(&pod);
                format!("{pod} is deleted")
            }
            3..=5 => self.turn_node(random),
            6 | 7 => self.turn_set(random),
            8 | 9 => lock(&self.world.server).fail(random),
            10 => {
                self.restart_manager();
                "a new manager".into()
            }
            11 => {
                lock(&self.world.server).end_soon();
                "the manager ends soon".into()
            }
            _ => {
                let states = self.of(STATES);
                match random.one_of(&states).filter(|_| random.chance(30)) {
                    Some((path, state)) => {
                        self.taken.insert(text(state, "/metadata/uid").to_owned());
                        self.note("objects deleted");
                        lock(&self.world.server).remove(path);
                        format!("{path} is deleted")
                    }
                    None => "nothing".into(),
                }
            }
        })
    }

    async fn make_possible(&mut self) -> Result<String, String> {
        lock(&self.world.server).let_through();
        if self.world.get(&format!("{SETS}db")).is_none() {
            self.world.put(&format!("{SETS}db"), set(2, asks()));
        }
        self.world.put(&format!("{NODES}last"), node("last", true));
        for (path, there) in self.of(NODES) {
            let name = text(&there, "/metadata/name");
            let labels = json!({HOST: name});
            let changes = json!({"metadata": {"labels": labels}, "status": node(name, true)["status"]});
            lock(&self.world.server).change(&path, &changes);
        }
        Ok("no fault, every node is well".into())
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
            return Ok(Step::Worked(self.play(effect)));
        }
        let Some(key) = ready.get(choice - effects.len()) else {
            let path = lock(&self.world.server).news.pop_front().unwrap_or_default();
            self.world.deliver(&path);
            return Ok(Step::Worked(format!("delivered {path}")));
        };
        self.ready.remove(key);
        let before = lock(&self.world.server).objects.clone();
        let known = self.world.controller.states.list();
        let set = self.world.controller.built_in.get(&ObjectKey::new("ns", "db")).and_then(|set| set.view(true).ok());
        let wanted = set.filter(|set| !set.is_going).map(|set| (set.uid.clone(), set.ordinals.len()));
        let result = self.world.controller.reconcile(key).await;
        self.look_at_pass(&before, &known, wanted);
        let after = match &result {
            Ok(Requeue::Await) => None,
            Ok(Requeue::After(delay)) => Some(*delay),
            Err(_) => Some(Duration::from_millis(500)),
        };
        if let Some(delay) = after {
            self.due.insert(key.clone(), now + delay);
        }
        let ended = if self.end() { "; the manager has ended" } else { "" };
        Ok(Step::Worked(format!("reconciled {key}: {result:?}{ended}")))
    }

    async fn advance(&mut self, by: Duration) {
        tokio::time::advance(by).await;
    }

    async fn see(&mut self) -> Result<Seen, String> {
        let objects = lock(&self.world.server).objects.clone();
        Ok(Seen(objects, self.taken.clone(), std::mem::take(&mut self.given_up), self.relabelled.clone()))
    }
}

/// What is promised, in plain terms.
#[derive(Default)]
struct Promises {
    /// Nodes on which Pods of a name have been Ready.
    ran_on: BTreeMap<String, BTreeSet<String>>,
    /// Where a Pod is to come back to: what was recorded of it, as long as that can be.
    homes: BTreeMap<String, String>,
    /// UIDs of Pods, by name.
    known: BTreeMap<String, String>,
    /// Specs of objects that users have made.
    theirs: BTreeMap<String, Value>,
    acts: Acts,
}

impl Model for Promises {
    type Seen = Seen;

    fn wrongs(&mut self, seen: &Seen) -> Vec<String> {
        let mut wrongs = seen.2.clone();
        let there: BTreeSet<&str> = seen.of(STATES).map(|state| text(state, "/metadata/uid")).collect();
        let is_gone = |uid: &&String| !there.contains(uid.as_str()) && !seen.1.contains(*uid);
        wrongs.extend(self.theirs.keys().find(is_gone).map(|uid| format!("the object {uid} of a user is deleted")));
        for pod in seen.of(PODS).filter(|pod| is_ready(pod)) {
            let (name, on) = (text(pod, "/metadata/name").to_owned(), text(pod, "/spec/nodeName").to_owned());
            if let Some(home) = self.homes.get(&name).filter(|home| **home != on) {
                wrongs.push(format!("{name} had its place on {home}, which is there, and runs on {on}"));
            }
            if self.ran_on.entry(name).or_default().insert(on) {
                self.acts.note("ran");
            }
        }
        for state in seen.of(STATES) {
            for (pod, entry) in state["status"]["podStates"].as_object().into_iter().flatten() {
                let node = text(entry, "/nodeName");
                if !self.ran_on.get(pod).is_some_and(|nodes| nodes.contains(node)) && !node.is_empty() {
                    wrongs.push(format!("{pod} is recorded on {node}, where it has never been Ready"));
                }
            }
            if state["metadata"]["ownerReferences"].is_null() {
                let spec =
                    self.theirs.entry(text(state, "/metadata/uid").to_owned()).or_insert_with(|| state["spec"].clone());
                if *spec != state["spec"] {
                    wrongs.push(format!("the spec of a user's object has become {}", state["spec"]));
                }
            }
        }
        for i in 0..=MOST {
            let name = format!("db-{i}");
            let there = seen.of(PODS).find(|pod| text(pod, "/metadata/name") == name);
            let entry = there.and_then(|pod| seen.recorded(pod));
            let recorded = entry.map(|entry| text(entry, "/nodeName").to_owned());
            let uid = there.map(|pod| text(pod, "/metadata/uid").to_owned());
            let is_new = self.known.get(&name) != uid.as_ref();
            match &uid {
                Some(uid) => drop(self.known.insert(name.clone(), uid.clone())),
                None => drop(self.known.remove(&name)),
            }
            // What was recorded when it was made is where it comes back to.
            if is_new || there.is_none_or(is_ready) {
                self.homes.remove(&name);
            }
            if let (true, Some(pod), Some(entry)) = (is_new, there, entry)
                && seen.of(STATES).count() == 1
                && let Some(host) = entry["nodeTopologyLabels"][HOST].as_str()
            {
                let mut notes = entry["annotations"].as_object().into_iter().flatten();
                let state = seen.of(STATES).next().unwrap_or(&Value::Null);
                let asked = |key: &str| {
                    let mut keys = state["spec"]["persistentPodAnnotations"].as_array().into_iter().flatten();
                    keys.any(|asked| asked["key"] == key)
                };
                let differs = notes.any(|(key, note)| asked(key) && pod["metadata"]["annotations"][key] != *note);
                if pod["spec"]["nodeSelector"][HOST] != host || differs {
                    wrongs.push(format!("{name} is recorded as {entry} and is made as {pod}"));
                }
            }
            if let (true, Some(pod), Some(node)) = (is_new, there, recorded)
                && !is_ready(pod)
            {
                self.homes.insert(name.clone(), node);
            }
            if self.homes.get(&name).is_some_and(|node| !seen.is_home(node)) {
                self.homes.remove(&name);
            }
        }
        if !self.homes.is_empty() {
            self.acts.note("coming back");
        }
        wrongs
    }

    fn missing(&self, seen: &Seen) -> Vec<String> {
        let mut missing = Vec::new();
        let Some(set) = seen.0.get(&format!("{SETS}db")) else { return vec!["there is no StatefulSet".into()] };
        let wanted = replicas(set);
        for i in 0..wanted {
            let name = format!("db-{i}");
            let runs = |pod: &&Arc<Value>| is_ready(pod) && seen.has_node(text(pod, "/spec/nodeName"));
            let Some(pod) = seen.0.get(&format!("{PODS}{name}")).filter(runs) else {
                // Its object was deleted before it was let go of the node that is lost: nobody may evict it any more.
                let waits_for =
                    seen.0.get(&format!("{PODS}{name}")).and_then(|pod| pod["spec"]["nodeSelector"][HOST].as_str());
                if waits_for.is_some_and(|node| !seen.has_node(node)) && seen.of(STATES).next().is_none() {
                    continue;
                }
                missing.push(format!("{name} is not Ready"));
                continue;
            };
            if seen.of(STATES).next().is_none() {
                continue;
            }
            let node = text(pod, "/spec/nodeName");
            let entry = seen.recorded(pod).cloned().unwrap_or_default();
            if entry["nodeName"] != node || entry["nodeTopologyLabels"][HOST] != node {
                missing.push(format!("{name} runs on {node} and is recorded as {entry}"));
            }
            let notes = seen.of(STATES).any(|state| !state["spec"]["persistentPodAnnotations"].is_null());
            if notes && entry["annotations"][IP] != pod["metadata"]["annotations"][IP] {
                missing.push(format!("{name} has {} and is recorded as {entry}", pod["metadata"]["annotations"]));
            }
        }
        let asks = set["metadata"]["annotations"]["kruise.io/auto-generate-persistent-pod-state"] == "true";
        let (mine, generated): (Vec<&Value>, Vec<&Value>) =
            seen.of(STATES).partition(|state| state["metadata"]["ownerReferences"].is_null());
        if mine.is_empty() && asks != (generated.len() == 1) {
            missing.push(format!("it asks for an object: {asks}, and there are {}", generated.len()));
        }
        for state in mine.iter().chain(&generated) {
            let keeps = state["spec"]["persistentPodStateRetentionPolicy"] == "WhenDeleted";
            let states = state["status"]["podStates"].as_object();
            for pod in states.into_iter().flat_map(|states| states.keys()) {
                let ordinal: usize = pod.trim_start_matches("db-").parse().unwrap();
                if ordinal >= wanted && !keeps {
                    missing.push(format!("{pod} is recorded and not wanted"));
                }
            }
            let conditions = state["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let true_one = conditions.iter().find(|condition| condition["status"] == "True");
            if true_one.is_none_or(|condition| condition["type"] != "Ready") && mine.len() + generated.len() == 1 {
                missing.push(format!("it is not Ready: {true_one:?}"));
            }
        }
        missing
    }
}

#[test]
fn simulation_of_persistent_pod_states() {
    let acts = liveness::seeds(40, "simulation_of_persistent_pod_states", |seed| {
        in_paused_time(seed, async {
            let (mut history, mut promises) = (History::new(&mut Random(seed)), Promises::default());
            let limits = Limits { changes: 30, ..Limits::default() };
            liveness::run(seed, &limits, &mut history, &mut promises).await?;
            history.rest(&mut Random(seed)).await?;
            let mut acts = promises.acts;
            acts.merge(lock(&history.world.server).acts.clone());
            Ok(acts)
        })
    });
    acts.require(&[
        ("ran", 300),
        ("coming back", 300),
        ("restored", 100),
        ("evicted", 5),
        ("nodes lost", 100),
        ("nodes that got other labels", 100),
        ("refused writes", 50),
        ("managers that started anew", 50),
        ("managers that ended between writes", 30),
        ("Pods deleted", 300),
        ("nodes that turned", 100),
        ("scaled", 100),
        ("StatefulSets deleted", 20),
        ("annotations turned", 50),
        ("objects deleted", 20),
        ("records without their Pods", 15),
        ("records of nodes that are not Ready", 100),
    ]);
}
