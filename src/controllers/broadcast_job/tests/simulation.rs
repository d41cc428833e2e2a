//! Random histories of a BroadcastJob: the real controller, an API server in memory, a played scheduler, kubelets and garbage
//! collectors, nodes that join, leave and are cordoned, users who pause the job, let it go on, change, delete and make it
//! again and delete its Pods, watches that are late, writes that are refused, answers that are lost, and managers that end
//! between two writes. On the way no node has two Pods, no Pod that has ended is deleted, and what the status has shown to
//! have failed pauses the job once. Once nothing stands in the way any more, the job is over, or every node is done.

use super::*;
use crate::{
    controllers::fake::{self, Next, bring},
    liveness::{self, Acts, Driver, Limits, Model, Step},
    runtime::wake,
};

const NODES: &str = "/api/v1/nodes/";

/// What a user has asked for.
#[derive(Clone, Debug)]
struct Wanted {
    /// A number, or half of the nodes.
    parallelism: Option<usize>,
    policy: &'static str,
    /// How often containers may be restarted. None: they are not.
    limit: Option<i32>,
    /// The job ends.
    ends: bool,
}

impl Wanted {
    fn new(random: &mut Random) -> Self {
        Self {
            parallelism: [Some(1), Some(2), Some(9), None][random.below(4)],
            policy: ["FailFast", "Continue", "Pause", "Pause"][random.below(4)],
            limit: [None, Some(0), Some(2)][random.below(3)],
            ends: random.chance(50),
        }
    }

    fn parallelism(&self) -> Value {
        self.parallelism.map_or(json!("50%"), |parallelism| json!(parallelism))
    }

    fn spec(&self) -> Value {
        let restarts = if self.limit.is_some() { "OnFailure" } else { "Never" };
        json!({"parallelism": self.parallelism(), "failurePolicy": {"type": self.policy, "restartLimit": self.limit},
            "completionPolicy": {"type": if self.ends { "Always" } else { "Never" }},
            "template": {"spec": {"restartPolicy": restarts, "containers": [{"name": "c", "image": "i"}]}}})
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A Pod in the plainest terms.
#[derive(Clone, Debug, PartialEq)]
struct Member {
    uid: String,
    owner: String,
    node: String,
    is_bound: bool,
    phase: String,
    restarts: i32,
    is_stopped: bool,
}

/// Where a Pod says for which node it is.
const AIM: &str = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0\
    /matchFields/0/values/0";

impl Member {
    fn of(pod: &Value) -> Self {
        let (metadata, bound) = (&pod["metadata"], text(&pod["spec"]["nodeName"]));
        let node = if bound.is_empty() { pod.pointer(AIM).map(text).unwrap_or_default() } else { bound };
        let restarts = pod["status"]["containerStatuses"][0]["restartCount"].as_i64().unwrap_or_default();
        Self {
            uid: text(&metadata["uid"]).to_owned(),
            owner: text(&metadata["ownerReferences"][0]["uid"]).to_owned(),
            node: node.to_owned(),
            is_bound: !bound.is_empty(),
            phase: text(&pod["status"]["phase"]).to_owned(),
            restarts: i32::try_from(restarts).unwrap(),
            is_stopped: metadata["labels"]["kruise.rs/stopped-for"].is_string(),
        }
    }

    /// As the manager knows it.
    fn known(view: &PodView) -> Self {
        Self {
            uid: view.uid().to_owned(),
            owner: view.controller.as_ref().map(|owner| owner.uid.clone()).unwrap_or_default(),
            node: view.node_meant().to_owned(),
            is_bound: !view.node_name.is_empty(),
            phase: view.phase.to_string(),
            restarts: view.restarts(),
            is_stopped: view.labels.get("kruise.rs/stopped-for").is_some(),
        }
    }

    fn has_ended(&self) -> bool {
        ["Succeeded", "Failed"].contains(&self.phase.as_str())
    }

    fn has_failed(&self, limit: Option<i32>) -> bool {
        let is_exceeded = limit.is_some_and(|limit| self.restarts > limit);
        self.phase == "Failed" || (!self.has_ended() && (self.is_stopped || is_exceeded))
    }

    fn is_active(&self, limit: Option<i32>) -> bool {
        !self.has_ended() && !self.has_failed(limit)
    }
}

fn has(members: &[Member], uid: &str) -> bool {
    members.iter().any(|member| member.uid == uid)
}

/// A job as a pass knew it.
struct Known {
    uid: String,
    wanted: Wanted,
    is_paused: bool,
    is_over: bool,
}

/// A pass: what it knew, and what was there before and after.
struct PassSeen {
    job: Option<Known>,
    members: Vec<Member>,
    /// Whether they are cordoned, by name.
    nodes: BTreeMap<String, bool>,
    before: Vec<Member>,
    after: Vec<Member>,
    /// It has set `spec.paused`.
    pauses: bool,
    /// So many failed Pods had been shown when the job was last let go on.
    answered: usize,
}

struct History {
    server: Arc<Mutex<Server>>,
    controller: Controller,
    wanted: Wanted,
    uid: String,
    generation: i64,
    /// By UID and generation.
    all: BTreeMap<(String, i64), Wanted>,
    /// Nodes that have joined so far: no name comes twice.
    joined: usize,
    pods_end: bool,
    /// A job that is paused is let go on.
    goes_on: bool,
    answered: usize,
    /// Changes and faults so far.
    changes: usize,
    pass: Option<PassSeen>,
}

#[derive(Debug)]
enum Effect {
    /// A Pod's job or node is no more.
    Collect(String),
    Bind(String, String),
    Run(String),
    /// A Pod ends, and whether well.
    End(String, bool),
    GoOn,
}

impl History {
    fn new(random: &mut Random) -> Self {
        let server = Arc::new(Mutex::new(Server::new(|_, _| Ok(()))));
        let (all, uid) = Default::default();
        let mut history = Self {
            controller: controller(&server),
            server,
            wanted: Wanted::new(random),
            uid,
            generation: 0,
            all,
            joined: 0,
            pods_end: false,
            goes_on: false,
            answered: 0,
            changes: 0,
            pass: None,
        };
        (0..2 + random.below(4)).for_each(|_| drop(history.join()));
        history.make();
        history
    }

    fn note(&self, act: &'static str) {
        lock(&self.server).acts.note(act);
    }

    fn get(&self, path: &str) -> Option<Arc<Value>> {
        lock(&self.server).objects.get(path).cloned()
    }

    fn of(&self, prefix: &str) -> Vec<(String, Arc<Value>)> {
        lock(&self.server).of(prefix)
    }

    fn pods(&self) -> Vec<(String, Member)> {
        self.of(PODS).into_iter().map(|(path, pod)| (path, Member::of(&pod))).collect()
    }

    fn members(&self) -> Vec<Member> {
        self.pods().into_iter().map(|(_, member)| member).collect()
    }

    fn is_paused(&self) -> bool {
        self.get(JOB).is_some_and(|job| job["spec"]["paused"] == true)
    }

    fn join(&mut self) -> String {
        let name = format!("n{}", self.joined);
        self.joined += 1;
        lock(&self.server).put(&format!("{NODES}{name}"), json!({"metadata": {"name": name}, "spec": {}}));
        name
    }

    /// A user makes the job, or one of the same name again.
    fn make(&mut self) {
        self.uid = format!("j{}", self.generation);
        self.answered = 0;
        self.generation += 1;
        self.all.insert((self.uid.clone(), self.generation), self.wanted.clone());
        let object = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "BroadcastJob", "spec": self.wanted.spec(),
            "metadata": {"name": "job", "namespace": "ns", "uid": self.uid, "generation": self.generation}});
        lock(&self.server).put(JOB, object);
    }

    /// A user writes it.
    fn write(&mut self, spec: &Value) {
        self.generation += 1;
        self.all.insert((self.uid.clone(), self.generation), self.wanted.clone());
        let change = json!({"metadata": {"generation": self.generation}, "spec": spec});
        lock(&self.server).change(JOB, &change);
    }

    fn go_on(&mut self) {
        let Some(job) = self.get(JOB) else { return };
        let noted = text(&job["metadata"]["annotations"]["kruise.rs/paused-at-failed"]).parse::<usize>().unwrap_or(0);
        let shown = job["status"]["failed"].as_u64().and_then(|failed| usize::try_from(failed).ok());
        let was_paused = noted > 0 && job["status"]["phase"] == "paused";
        let shown = shown.filter(|_| was_paused).unwrap_or_default().max(noted);
        // Some that were shown may be gone.
        let members = self.members();
        let failed = members.iter().filter(|pod| pod.owner == self.uid && pod.has_failed(self.wanted.limit)).count();
        self.answered = shown.min(failed);
        self.write(&json!({"paused": false}));
    }

    /// A Pod fails no more: fewer have failed now than anybody has been shown.
    fn mend_pod(&mut self, path: &str) {
        if self.get(path).is_some_and(|pod| Member::of(&pod).has_failed(self.wanted.limit)) {
            self.answered = 0;
        }
    }

    fn remove_pod(&mut self, path: &str) {
        self.mend_pod(path);
        lock(&self.server).remove(path);
    }

    fn end_pod(&mut self, path: &str, succeeds: bool) {
        // One with too many restarts has counted as failed.
        if succeeds {
            self.mend_pod(path);
        }
        let phase = if succeeds { "Succeeded" } else { "Failed" };
        lock(&self.server).change(path, &json!({"status": {"phase": phase}}));
    }

    /// Delivers one change, as the watch of its kind does.
    fn deliver(&self, path: &str) {
        let (now, controller) = (self.get(path), &self.controller);
        let name = path.rsplit('/').next().unwrap_or_default();
        if path == JOB {
            bring(&controller.jobs, &key(), now.as_deref(), |change| {
                wake::workload_changed(change, &controller.queue, &controller.memories);
            });
        } else if path.starts_with(NODES) {
            let nodes = controller.context.nodes.store();
            bring(nodes, &ObjectKey::new("", name), now.as_deref(), |change| controller.node_changed(change));
        } else {
            let pods = &controller.context.pods;
            bring(pods, &ObjectKey::new("ns", name), now.as_deref(), |change| controller.pod_changed(change));
        }
    }

    /// One of the watches brings its next change.
    fn deliver_next(&self, random: &mut Random) -> String {
        let path = lock(&self.server).next_news(random, |path: &str| (path == JOB, path.starts_with(NODES)));
        self.deliver(&path);
        format!("delivered {path}")
    }

    fn restart_manager(&mut self) {
        self.controller = controller(&self.server);
        let paths: Vec<String> = {
            let mut server = lock(&self.server);
            server.news.clear();
            server.acts.note("managers that started anew");
            server.objects.keys().cloned().collect()
        };
        paths.iter().for_each(|path| self.deliver(path));
    }

    /// Whether it has ended now.
    fn end(&mut self) -> bool {
        let has_ended = lock(&self.server).has_ended();
        if has_ended {
            self.restart_manager();
        }
        has_ended
    }

    /// What schedulers, kubelets and garbage collectors would do next, and the user.
    fn surroundings(&self, random: &mut Random) -> Vec<Effect> {
        let uid = self.get(JOB).map(|job| text(&job["metadata"]["uid"]).to_owned());
        let mut effects = Vec::new();
        for (path, pod) in self.pods() {
            let node = self.get(&format!("{NODES}{}", pod.node));
            if Some(&pod.owner) != uid.as_ref() || (pod.is_bound && node.is_none()) {
                effects.push(Effect::Collect(path));
            } else if !pod.is_bound {
                if node.is_some_and(|node| node["spec"]["unschedulable"] != true) {
                    effects.push(Effect::Bind(path, pod.node));
                }
            } else if pod.phase.is_empty() {
                effects.push(Effect::Run(path));
            } else if !pod.has_ended() && pod.is_stopped {
                effects.push(Effect::End(path, false));
            } else if !pod.has_ended() && self.pods_end {
                effects.push(Effect::End(path, random.chance(70)));
            }
        }
        if self.goes_on && self.is_paused() {
            effects.push(Effect::GoOn);
        }
        effects
    }

    fn play(&mut self, effect: &Effect) {
        match effect {
            Effect::Collect(path) => self.remove_pod(path),
            Effect::Bind(path, node) => lock(&self.server).change(path, &json!({"spec": {"nodeName": node}})),
            Effect::Run(path) => lock(&self.server).change(path, &json!({"status": {"phase": "Running"}})),
            Effect::End(path, succeeds) => self.end_pod(path, *succeeds),
            Effect::GoOn => self.go_on(),
        }
    }

    async fn reconcile(&mut self, key: ObjectKey) -> String {
        let job = self.controller.jobs.get(&key).map(|held| held.open().unwrap());
        let job = job.filter(|job| job.metadata.deletion_timestamp.is_none());
        let job = job.and_then(|job| {
            let at = (job.metadata.uid.clone()?, job.metadata.generation?);
            let wanted = self.all.get(&at)?.clone();
            let (is_paused, is_over) = (job.spec.paused == Some(true), job.is_over());
            Some(Known { uid: at.0, wanted, is_paused, is_over })
        });
        let uid = job.as_ref().map(|job| job.uid.clone()).unwrap_or_default();
        let members = self.controller.context.pods.list();
        let members = members.iter().map(|pod| Member::known(pod)).filter(|member| member.owner == uid).collect();
        let nodes = self.controller.context.nodes.list();
        let nodes = nodes.iter().map(|node| (node.name().to_owned(), node.unschedulable)).collect();
        let (before, was_paused) = (self.members(), self.is_paused());
        let next = self.controller.reconcile(&key).await;
        let (after, pauses) = (self.members(), !was_paused && self.is_paused());
        let said = format!("pass: {:?}, paused: {}", next.as_ref().map_err(ToString::to_string), self.is_paused());
        self.pass = Some(PassSeen { job, members, nodes, before, after, pauses, answered: self.answered });
        self.controller.queue.done(key, next);
        if self.end() { format!("{said}; the manager has ended, and another one starts") } else { said }
    }

    fn turn_job(&mut self, random: &mut Random) -> String {
        if self.get(JOB).is_none() {
            self.wanted = Wanted::new(random);
            self.make();
            self.note("made again");
            return format!("{} is made: {:?}", self.uid, self.wanted);
        }
        match random.below(6) {
            0 => {
                self.wanted.parallelism = [Some(0), Some(1), Some(3), None][random.below(4)];
                self.write(&json!({"parallelism": self.wanted.parallelism()}));
                format!("{:?}", self.wanted)
            }
            1 => {
                lock(&self.server).remove(JOB);
                self.note("deleted");
                format!("{} is deleted", self.uid)
            }
            _ if self.is_paused() => {
                self.go_on();
                self.note("let go on");
                format!("it goes on, {} failed Pods are known", self.answered)
            }
            _ => {
                self.write(&json!({"paused": true}));
                "it is paused".into()
            }
        }
    }

    fn turn_node(&mut self, random: &mut Random) -> String {
        let nodes = self.of(NODES);
        let Some((path, node)) = random.one_of(&nodes).filter(|_| random.chance(75)) else {
            self.note("nodes joined");
            return format!("{} joins", self.join());
        };
        if random.chance(35) {
            lock(&self.server).remove(path);
            self.note("nodes left");
            return format!("{path} leaves");
        }
        let is_cordoned = node["spec"]["unschedulable"] != true;
        lock(&self.server).change(path, &json!({"spec": {"unschedulable": is_cordoned}}));
        self.note("nodes cordoned or uncordoned");
        format!("{path} is cordoned: {is_cordoned}")
    }

    fn turn_pod(&mut self, random: &mut Random) -> String {
        let pods = self.pods();
        let Some((path, pod)) = random.one_of(&pods) else { return "no Pod".into() };
        let runs = pod.phase == "Running";
        match random.below(4) {
            0 => {
                self.remove_pod(path);
                self.note("Pods deleted by users");
                format!("{path} is deleted")
            }
            1 if runs && self.wanted.limit.is_some() => {
                let statuses = json!([{"name": "c", "restartCount": pod.restarts + 1}]);
                lock(&self.server).change(path, &json!({"status": {"containerStatuses": statuses}}));
                self.note("restarts");
                format!("{path} restarts")
            }
            what if runs => {
                self.end_pod(path, what != 2);
                self.note("Pods that ended");
                format!("{path} has ended, well: {}", what != 2)
            }
            _ => "nothing".into(),
        }
    }
}

/// What the model judges.
struct Seen {
    job: Option<Arc<Value>>,
    members: Vec<Member>,
    nodes: usize,
    wanted: Wanted,
    generation: i64,
    /// Nobody has anything to do, or to hear of, at this moment.
    is_quiet: bool,
    changes: usize,
    pass: Option<PassSeen>,
}

impl Driver for History {
    type Seen = Seen;

    async fn disturb(&mut self, random: &mut Random) -> Result<String, String> {
        self.changes += 1;
        Ok(match random.below(18) {
            0..=3 => self.turn_job(random),
            4..=6 => self.turn_node(random),
            7..=11 => self.turn_pod(random),
            12 => {
                self.pods_end = !self.pods_end;
                format!("Pods end: {}", self.pods_end)
            }
            13 | 14 if !lock(&self.server).ends => lock(&self.server).fail(random),
            15 => {
                lock(&self.server).end_soon();
                "the manager ends after its next write".into()
            }
            16 => {
                self.restart_manager();
                "a new manager".into()
            }
            _ => "nothing".into(),
        })
    }

    async fn make_possible(&mut self) -> Result<String, String> {
        self.changes += 1;
        lock(&self.server).let_through();
        (self.pods_end, self.goes_on) = (true, true);
        let nodes = self.of(NODES);
        for (path, _) in &nodes {
            lock(&self.server).change(path, &json!({"spec": {"unschedulable": false}}));
        }
        if nodes.is_empty() {
            self.join();
        }
        self.wanted.parallelism = Some(2);
        match self.get(JOB) {
            Some(_) => self.write(&json!({"parallelism": 2})),
            None => self.make(),
        }
        Ok(format!("{:?}", self.wanted))
    }

    async fn step(&mut self, random: &mut Random) -> Result<Step, String> {
        let effects = self.surroundings(random);
        let has_news = !lock(&self.server).news.is_empty();
        Ok(match Next::choose(random, effects.len(), has_news, &self.controller.queue) {
            Next::Pass(key) => Step::Worked(self.reconcile(key).await),
            Next::Effect(index) => {
                self.play(&effects[index]);
                Step::Worked(format!("{:?}", effects[index]))
            }
            Next::News => Step::Worked(self.deliver_next(random)),
            Next::Nothing => Step::Idle(self.controller.queue.next_in()),
        })
    }

    async fn advance(&mut self, by: Duration) {
        tokio::time::advance(by).await;
    }

    async fn see(&mut self) -> Result<Seen, String> {
        let queue = &self.controller.queue;
        // A status that differs in little is written a second later.
        let waits = queue.depth() == 0 && queue.next_in().is_none_or(|next| next > Duration::from_secs(1));
        let has_news = !lock(&self.server).news.is_empty();
        let is_quiet = waits && !has_news && self.surroundings(&mut Random(0)).is_empty();
        Ok(Seen {
            job: self.get(JOB),
            members: self.members(),
            nodes: self.of(NODES).len(),
            wanted: self.wanted.clone(),
            generation: self.generation,
            is_quiet,
            changes: self.changes,
            pass: self.pass.take(),
        })
    }
}

/// What is promised, in plain terms.
#[derive(Default)]
struct Promises {
    /// After how many changes it has come to rest.
    rested: Option<usize>,
    acts: Acts,
}

impl Promises {
    /// What one pass may not do, by what it knew.
    fn judge(&mut self, pass: &PassSeen) -> Vec<String> {
        let PassSeen { job, members, nodes, before, after, pauses, answered } = pass;
        let Some(Known { uid, wanted, is_paused, is_over }) = job else {
            let is_same = before == after && !pauses;
            return if is_same { Vec::new() } else { vec![format!("a pass over nothing: {before:?}, {after:?}")] };
        };
        let mut wrongs = Vec::new();
        let new: Vec<&Member> = after.iter().filter(|pod| !has(before, &pod.uid)).collect();
        for pod in &new {
            self.acts.note("Pods made");
            if pod.owner != *uid || *is_paused || *is_over || *pauses {
                wrongs.push(format!("{pod:?} is made, paused: {is_paused} {pauses}, over: {is_over}"));
            }
            if nodes.get(&pod.node) != Some(&false) || members.iter().any(|known| known.node == pod.node) {
                wrongs.push(format!("{pod:?} is made, with {members:?} on {nodes:?}"));
            }
        }
        let most = wanted.parallelism.unwrap_or_else(|| (nodes.len() + members.len()).div_ceil(2));
        let active = members.iter().filter(|pod| pod.is_active(wanted.limit)).count();
        if !new.is_empty() && active + new.len() > most {
            wrongs.push(format!("{} are made beside {active}, at most {most} may run", new.len()));
        }
        for pod in before.iter().filter(|pod| !has(after, &pod.uid)) {
            self.acts.note("Pods deleted");
            if pod.has_ended() || (*is_paused && !is_over) {
                wrongs.push(format!("{pod:?} is deleted, paused: {is_paused}"));
            }
        }
        if *pauses {
            self.acts.note("paused after a failure");
            let failed = members.iter().filter(|pod| pod.has_failed(wanted.limit)).count();
            if wanted.policy != "Pause" || failed <= *answered {
                wrongs.push(format!("it is paused for {failed} Pods, {answered} were known: {wanted:?}"));
            }
        }
        wrongs
    }
}

impl Model for Promises {
    type Seen = Seen;

    fn wrongs(&mut self, seen: &Seen) -> Vec<String> {
        let mut wrongs = seen.pass.as_ref().map(|pass| self.judge(pass)).unwrap_or_default();
        for (i, pod) in seen.members.iter().enumerate() {
            let is_other = |other: &&Member| other.owner == pod.owner && other.node == pod.node;
            wrongs.extend(seen.members[..i].iter().find(is_other).map(|other| format!("{pod:?} and {other:?}")));
        }
        if seen.is_quiet && self.missing(seen).is_empty() {
            self.rested = Some(seen.changes);
        }
        wrongs
    }

    fn missing(&self, seen: &Seen) -> Vec<String> {
        if !seen.is_quiet && self.rested != Some(seen.changes) {
            return vec!["there is something to do".into()];
        }
        let Some(job) = &seen.job else { return vec!["there is no job".into()] };
        let (wanted, status, members) = (&seen.wanted, &job["status"], &seen.members);
        let mut missing = Vec::new();
        let mut ask = |is_so: bool, what: String| {
            if !is_so {
                missing.push(what);
            }
        };
        let active = members.iter().filter(|pod| pod.is_active(wanted.limit)).count();
        ask(active == 0, format!("{active} Pods are active"));
        ask(status["active"] == active, format!("the status is {status}"));
        ask(status["observedGeneration"] == seen.generation, "the status is about an older spec".into());
        match text(&status["phase"]) {
            "failed" => ask(wanted.policy == "FailFast", format!("it has failed: {wanted:?}")),
            "completed" => ask(wanted.ends, format!("it has completed: {wanted:?}")),
            "running" => {
                let ended = |phase: &str| members.iter().filter(|pod| pod.phase == phase).count();
                let numbers = json!([seen.nodes, ended("Succeeded"), ended("Failed")]);
                let told = json!([status["desired"], status["succeeded"], status["failed"]]);
                ask(!wanted.ends && numbers == told, format!("nodes and ends are {numbers}, and not {told}"));
                ask(members.len() == seen.nodes, format!("{} nodes have {} Pods", seen.nodes, members.len()));
            }
            phase => ask(false, format!("the phase is {phase:?}")),
        }
        missing
    }
}

fn history(seed: u64) -> Result<Acts, String> {
    let limits = Limits { changes: 24, patience: Duration::from_secs(2 * 3600), ..Limits::default() };
    let begin = |random: &mut Random| (History::new(random), Promises::default());
    let acts = |history: History, promises: Promises| {
        let mut acts = lock(&history.server).acts.clone();
        acts.merge(promises.acts);
        acts
    };
    fake::history(seed, &limits, begin, |history| format!("{:?}", history.wanted), acts)
}

#[test]
fn simulation_of_broadcast_jobs() {
    let acts = liveness::seeds(24, "simulation_of_broadcast_jobs", history);
    acts.require(&[
        ("nodes joined", 40),
        ("nodes left", 40),
        ("nodes cordoned or uncordoned", 60),
        ("let go on", 20),
        ("deleted", 20),
        ("made again", 10),
        ("Pods that ended", 30),
        ("Pods deleted by users", 30),
        ("restarts", 5),
        ("refused writes", 20),
        ("managers that ended between writes", 20),
        ("managers that started anew", 60),
        // What came of it.
        ("Pods made", 200),
        ("Pods deleted", 5),
        ("paused after a failure", 10),
    ]);
}
