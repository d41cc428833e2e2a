//! Random histories of WorkloadRestarts: Pods that come and go, budgets, refused and conflicting writes, answers that are
//! lost, nodes without a daemon, managers that start anew. Once nothing stands in the way any more, each of them ends, or
//! waits as its spec says, and its counts are exact.
//!
//! The controller is the real one, over an API server in memory. What surrounds it is played: one effect is one step.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::runtime::watches::StoredObject;
use crate::{
    api::feature_gates::FeatureGates,
    budgets::Budgets,
    controllers::{
        fake::{Server, in_paused_time},
        in_memory,
    },
    k8s::time::rfc3339,
    liveness::{self, Acts, Driver, Limits, Model, Random, Step},
};

const RESTARTS: &str = "/apis/kruise.rs/v1alpha1/namespaces/ns/workloadrestarts/";
const REQUESTS: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/containerrecreaterequests/";
const PODS: &str = "/api/v1/namespaces/ns/pods/";
const DISRUPTION: &str = "/apis/policy/v1/namespaces/ns/poddisruptionbudgets/";
const UNAVAILABLE: &str = "/apis/policy.kruise.io/v1alpha1/namespaces/ns/podunavailablebudgets/";
const HELD: &str = "crr.apps.kruise.io/unready-acquired";
const REPLICAS: usize = 5;

/// A request is labelled with the UID of its Pod, as its admission does.
fn admit(server: &mut Server, request: &mut Value) -> Result<(), u16> {
    let pod = format!("{PODS}{}", request["spec"]["podName"].as_str().unwrap());
    let pod = server.objects.get(&pod).ok_or(400_u16)?;
    request["metadata"]["labels"]["crr.apps.kruise.io/pod-uid"] = pod["metadata"]["uid"].clone();
    server.acts.note("requests");
    Ok(())
}

struct World {
    server: Arc<Mutex<Server>>,
    controller: Arc<Controller>,
    ready: BTreeSet<ObjectKey>,
    due: BTreeMap<ObjectKey, Duration>,
    /// Pods that cannot become ready.
    broken: BTreeSet<String>,
    daemon_is_away: bool,
    made: usize,
    mended: bool,
}

fn manager(server: &Arc<Mutex<Server>>) -> Arc<Controller> {
    let server = server.clone();
    let mut context = in_memory::context(move |parts, body| lock(&server).answer(parts, body));
    let gates = Arc::new(FeatureGates::parse(&["PodUnavailableBudgetUpdateGate=true"], None).unwrap());
    context.budgets = Budgets::new(context.client.clone(), gates.clone());
    context.gates = gates;
    Arc::new(Controller::new(&context))
}

fn is_ready(pod: &Value) -> bool {
    pod["status"]["conditions"][0]["status"] == "True"
}

fn ready(is_ready: bool) -> Value {
    let status = if is_ready { "True" } else { "False" };
    json!({"status": {"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": rfc3339(clock::now().wall)}]}})
}

fn is_completed(request: &Value) -> bool {
    request["status"]["phase"] == "Completed"
}

fn is_held(request: &Value) -> bool {
    request["metadata"]["finalizers"].as_array().is_some_and(|held| !held.is_empty())
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

impl World {
    fn new() -> Self {
        let server = Arc::new(Mutex::new(Server::new(admit)));
        Self {
            controller: manager(&server),
            server,
            ready: BTreeSet::new(),
            due: BTreeMap::new(),
            broken: BTreeSet::new(),
            daemon_is_away: false,
            made: 0,
            mended: false,
        }
    }

    /// Delivers one change, as the watch of its kind does.
    fn deliver(&self, path: &str) {
        let now = lock(&self.server).objects.get(path).cloned();
        let controller = &self.controller;
        let key = ObjectKey::new("ns", path.rsplit('/').next().unwrap());
        macro_rules! deliver {
            ($store:expr, $on_change:expr) => {{
                let uid = now.as_ref().map(|now| now["metadata"]["uid"].as_str().unwrap().to_owned());
                if let Some(old) = $store.get(&key).filter(|old| old.object_uid() != uid.as_deref()) {
                    $store.remove(&key, old.object_uid());
                    $on_change(&Change::Deleted(&old));
                }
                if let Some(now) = now
                    && let (old, Some(new)) = $store.upsert(serde_json::from_value(Value::clone(&now)).unwrap())
                {
                    $on_change(&Change::Applied { old: old.as_ref(), new: &new, initial: false });
                }
            }};
        }
        if path.starts_with(RESTARTS) {
            deliver!(controller.restarts, |change: &Change<'_, _>| controller.restart_changed(change));
        } else if path.starts_with(PODS) {
            deliver!(controller.context.pods, |change: &Change<'_, _>| controller.pod_changed(change));
        } else if path.starts_with(REQUESTS) {
            deliver!(controller.requests, |_: &Change<'_, _>| controller.wake("ns"));
        } else if path.starts_with(DISRUPTION) {
            deliver!(controller.budgets, |_: &Change<'_, _>| controller.wake("ns"));
        }
    }

    /// Takes over what has been put into the queue.
    async fn take_queue(&mut self) {
        let (_stop, stopped) = tokio::sync::watch::channel(true);
        let keys: Arc<Mutex<Vec<ObjectKey>>> = Arc::default();
        let note = |key: ObjectKey, _| {
            lock(&keys).push(key);
            std::future::ready(Ok::<_, String>(Requeue::Await))
        };
        self.controller.queue.run(100, stopped, note).await;
        for key in std::mem::take(&mut *lock(&keys)) {
            self.due.remove(&key);
            self.ready.insert(key);
        }
    }

    fn restart_manager(&mut self) {
        self.controller = manager(&self.server);
        (self.ready, self.due) = Default::default();
        let all: Vec<String> = {
            let mut server = lock(&self.server);
            server.news.clear();
            server.acts.note("managers that started anew");
            server.objects.keys().cloned().collect()
        };
        all.iter().for_each(|path| self.deliver(path));
    }

    fn new_restart(&mut self, random: &mut Random) -> String {
        self.made += 1;
        let mut spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1 + random.below(3)});
        let options = [
            ("minReadySeconds", json!(1 + random.below(5))),
            ("partition", json!(1 + random.below(3))),
            ("paused", json!(true)),
            ("activeDeadlineSeconds", json!(5 + random.below(60))),
            ("ttlSecondsAfterFinished", json!(random.below(30))),
            ("failurePolicy", json!({"threshold": 1 + random.below(4)})),
            ("order", json!(["Ordinal", "OldestFirst", "NodeByNode"][random.below(3)])),
        ];
        for (field, value) in options {
            if random.chance(25) {
                spec[field] = value;
            }
        }
        let path = format!("{RESTARTS}roll-{}", self.made);
        let said = format!("a restart {spec}");
        let object = json!({"apiVersion": "kruise.rs/v1alpha1", "kind": "WorkloadRestart",
            "metadata": {"name": format!("roll-{}", self.made), "namespace": "ns", "generation": 1}, "spec": spec});
        lock(&self.server).put(&path, object);
        said
    }

    /// What kubelet, the workload's controller, daemons and the garbage collector would do next.
    fn surroundings(&self) -> Vec<Effect> {
        let server = lock(&self.server);
        let mut effects = Vec::new();
        for i in 0..REPLICAS {
            if !server.objects.contains_key(&format!("{PODS}web-{i}")) {
                effects.push(Effect::Create(i));
            }
        }
        let requests = server.of(REQUESTS);
        let holds = |pod: &Value, request: &Value| {
            request["metadata"]["labels"]["crr.apps.kruise.io/pod-uid"] == pod["metadata"]["uid"]
                && (is_held(request) || (request["status"]["phase"] == "Recreating"))
        };
        for (path, pod) in server.of(PODS) {
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                effects.push(Effect::Remove(path));
            } else if !is_ready(&pod)
                && !self.broken.contains(name(&pod))
                && !requests.iter().any(|(_, request)| holds(&pod, request))
            {
                effects.push(Effect::Ready(path));
            }
        }
        for (path, request) in requests {
            let owner = &request["metadata"]["ownerReferences"][0];
            let owner = server.objects.get(&format!("{RESTARTS}{}", owner["name"].as_str().unwrap()));
            let is_orphan =
                owner.is_none_or(|o| o["metadata"]["uid"] != request["metadata"]["ownerReferences"][0]["uid"]);
            let pod = server.objects.get(&format!("{PODS}{}", request["spec"]["podName"].as_str().unwrap()));
            let pod_is_gone = pod.is_none_or(|pod| {
                pod["metadata"]["uid"] != request["metadata"]["labels"]["crr.apps.kruise.io/pod-uid"]
            });
            if is_orphan {
                effects.push(Effect::Remove(path));
            } else if is_completed(&request) {
                if is_held(&request) {
                    effects.push(Effect::Release(path));
                }
            } else if pod_is_gone {
                effects.push(Effect::Complete(path, "pod has gone"));
            } else if !self.daemon_is_away {
                let is_begun = request["status"]["phase"] == "Recreating";
                effects.push(if is_begun { Effect::Complete(path, "") } else { Effect::Begin(path) });
            }
        }
        effects
    }

    fn play(&self, effect: Effect, random: &mut Random) -> String {
        let said = format!("{effect:?}");
        let mut server = lock(&self.server);
        match effect {
            Effect::Create(i) => {
                let mut pod = json!({"metadata": {"name": format!("web-{i}"), "namespace": "ns", "labels": {"app": "web"}},
                    "spec": {"nodeName": format!("n{}", i % 2), "containers": [{"name": "main"}]},
                    "status": {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": "c://1", "ready": true, "imageID": ""}]}});
                json_patch::merge(&mut pod, &ready(false));
                server.put(&format!("{PODS}web-{i}"), pod);
            }
            Effect::Remove(path) => server.remove(&path),
            Effect::Ready(path) => server.change(&path, &ready(true)),
            Effect::Begin(path) => {
                let pod = format!("{PODS}{}", server.objects[&path]["spec"]["podName"].as_str().unwrap());
                server.change(&pod, &ready(false));
                server.change(&path, &json!({"metadata": {"finalizers": [HELD]}, "status": {"phase": "Recreating"}}));
            }
            Effect::Complete(path, message) => {
                let fails = !self.mended && random.chance(5);
                let state = if fails || !message.is_empty() { "Failed" } else { "Succeeded" };
                let states = json!([{"name": "main", "phase": state, "message": message}]);
                let time = rfc3339(clock::now().wall);
                server.change(
                    &path,
                    &json!({"status": {"phase": "Completed", "message": message, "completionTime": time,
                    "containerRecreateStates": states}}),
                );
            }
            Effect::Release(path) => server.change(&path, &json!({"metadata": {"finalizers": []}})),
        }
        said
    }

    fn with_budget(&mut self, random: &mut Random) -> String {
        let mut server = lock(&self.server);
        server.acts.note("budgets");
        if random.chance(50) {
            let allowed = random.below(2);
            server.put(
                &format!("{DISRUPTION}web"),
                json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web", "namespace": "ns", "generation": 1},
                    "spec": {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": REPLICAS - allowed},
                    "status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": REPLICAS,
                        "desiredHealthy": REPLICAS - allowed, "expectedPods": REPLICAS}}),
            );
            return format!("a PodDisruptionBudget that allows {allowed}");
        }
        let most = random.below(2);
        server.put(
            &format!("{UNAVAILABLE}web"),
            json!({"apiVersion": "policy.kruise.io/v1alpha1", "kind": "PodUnavailableBudget",
                "metadata": {"name": "web", "namespace": "ns", "generation": 1},
                "spec": {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": most}}),
        );
        format!("a PodUnavailableBudget of {most}")
    }

    /// A user changes a restart.
    fn edit(&mut self, random: &mut Random) -> String {
        let mut server = lock(&self.server);
        let restarts = server.of(RESTARTS);
        let Some((path, object)) = random.one_of(&restarts) else { return "nothing to edit".into() };
        let generation = object["metadata"]["generation"].as_i64().unwrap() + 1;
        let spec = match random.below(4) {
            0 => {
                server.remove(path);
                return format!("{path} is deleted");
            }
            1 => json!({"paused": !object["spec"]["paused"].as_bool().unwrap_or(false)}),
            2 => json!({"partition": random.below(3)}),
            _ => json!({"paused": null, "partition": null}),
        };
        server.change(path, &json!({"metadata": {"generation": generation}, "spec": spec}));
        format!("{path} becomes {spec}")
    }
}

#[derive(Debug)]
enum Effect {
    Create(usize),
    Remove(String),
    Ready(String),
    Begin(String),
    Complete(String, &'static str),
    Release(String),
}

/// What there is, and whether nothing stands in the way any more.
struct Seen {
    objects: BTreeMap<String, Arc<Value>>,
    mended: bool,
}

impl Driver for World {
    type Seen = Seen;

    async fn disturb(&mut self, random: &mut Random) -> Result<String, String> {
        let pod = format!("web-{}", random.below(REPLICAS));
        let path = format!("{PODS}{pod}");
        Ok(match random.below(16) {
            0..=3 => self.new_restart(random),
            4 | 5 => self.edit(random),
            6 | 7 => lock(&self.server).fail(random),
            8 => self.with_budget(random),
            9 => {
                lock(&self.server).remove(&format!("{DISRUPTION}web"));
                lock(&self.server).remove(&format!("{UNAVAILABLE}web"));
                "no budget".into()
            }
            10 => {
                lock(&self.server)
                    .change(&path, &json!({"metadata": {"deletionTimestamp": rfc3339(clock::now().wall)}}));
                format!("{pod} is deleted")
            }
            11 => {
                self.broken.insert(pod.clone());
                lock(&self.server).change(&path, &ready(false));
                format!("{pod} breaks")
            }
            12 => {
                self.broken.clear();
                "the Pods are mended".into()
            }
            13 => {
                self.daemon_is_away = !self.daemon_is_away;
                format!("daemons away: {}", self.daemon_is_away)
            }
            14 => {
                lock(&self.server).remove(&path);
                format!("{pod} is gone at once")
            }
            _ => {
                self.restart_manager();
                "a new manager".into()
            }
        })
    }

    async fn make_possible(&mut self) -> Result<String, String> {
        self.broken.clear();
        (self.daemon_is_away, self.mended) = (false, true);
        let pods = {
            let mut server = lock(&self.server);
            server.faults.clear();
            server.remove(&format!("{DISRUPTION}web"));
            server.remove(&format!("{UNAVAILABLE}web"));
            server.of(PODS)
        };
        for (path, pod) in pods {
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                lock(&self.server).remove(&path);
            }
        }
        // What is counted as exact afterwards rests on no Pod that has gone.
        loop {
            let Some(path) = lock(&self.server).news.pop_front() else { break };
            self.deliver(&path);
        }
        Ok("no fault, no budget, every Pod and daemon well".into())
    }

    async fn step(&mut self, random: &mut Random) -> Result<Step, String> {
        self.take_queue().await;
        let now = clock::now().mono;
        let over: Vec<ObjectKey> = self.due.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        for key in over {
            self.due.remove(&key);
            self.ready.insert(key);
        }
        let mut effects = self.surroundings();
        let ready: Vec<ObjectKey> = self.ready.iter().cloned().collect();
        let has_news = !lock(&self.server).news.is_empty();
        let choices = effects.len() + ready.len() + usize::from(has_news);
        if choices == 0 {
            return Ok(Step::Idle(self.due.values().min().map(|at| at.saturating_sub(now))));
        }
        let choice = random.below(choices);
        if choice < effects.len() {
            return Ok(Step::Worked(self.play(effects.swap_remove(choice), random)));
        }
        let Some(key) = ready.get(choice - effects.len()) else {
            let path = lock(&self.server).news.pop_front().unwrap_or_default();
            self.deliver(&path);
            return Ok(Step::Worked(format!("delivered {path}")));
        };
        self.ready.remove(key);
        let result = self.controller.reconcile(key).await;
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
        Ok(Seen { objects: lock(&self.server).objects.clone(), mended: self.mended })
    }
}

/// What a WorkloadRestart promises, in plain terms.
#[derive(Default)]
struct Promises {
    /// UIDs of those that had ended before the last change: of them the counts at their end are not known any more.
    ended_before: BTreeSet<String>,
    acts: Acts,
    known: BTreeSet<String>,
}

fn ended(restart: &Value) -> Option<&str> {
    let conditions = restart["status"]["conditions"].as_array()?;
    let is_true = |c: &&Value| (c["type"] == "Complete" || c["type"] == "Failed") && c["status"] == "True";
    conditions.iter().find(is_true)?["type"].as_str()
}

fn reason(restart: &Value) -> &str {
    let conditions = restart["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|c| c["type"] == "Progressing").and_then(|c| c["reason"].as_str()).unwrap_or("")
}

fn number(restart: &Value, field: &str) -> i64 {
    restart["status"][field].as_i64().unwrap_or(0)
}

impl Seen {
    fn of<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter(move |(path, _)| path.starts_with(prefix)).map(|(_, object)| object.as_ref())
    }

    fn requests_of<'a>(&'a self, restart: &'a Value) -> impl Iterator<Item = &'a Value> {
        self.of(REQUESTS)
            .filter(|request| request["metadata"]["ownerReferences"][0]["uid"] == restart["metadata"]["uid"])
    }
}

impl Model for Promises {
    type Seen = Seen;

    fn wrongs(&mut self, seen: &Seen) -> Vec<String> {
        let mut wrongs = Vec::new();
        for restart in seen.of(RESTARTS) {
            let (name, uid) = (name(restart), restart["metadata"]["uid"].as_str().unwrap().to_owned());
            if let Some(how) = ended(restart) {
                if !seen.mended {
                    self.ended_before.insert(uid.clone());
                }
                if self.known.insert(uid) {
                    self.acts.note(if how == "Complete" { "completed" } else { "failed" });
                }
            }
            // What goes anyway is no Pod that is restarted.
            let stays = |request: &&Value| {
                seen.of(PODS).any(|pod| {
                    pod["metadata"]["deletionTimestamp"].is_null()
                        && request["metadata"]["labels"]["crr.apps.kruise.io/pod-uid"] == pod["metadata"]["uid"]
                })
            };
            let under_way = seen.requests_of(restart).filter(stays).filter(|request| !is_completed(request)).count();
            let most = restart["spec"]["maxUnavailable"].as_u64().unwrap();
            if under_way as u64 > most {
                wrongs.push(format!("{name} restarts {under_way} Pods at a time, maxUnavailable is {most}"));
            }
            let pods: Vec<&Value> =
                seen.requests_of(restart).map(|r| &r["metadata"]["labels"]["crr.apps.kruise.io/pod-uid"]).collect();
            let distinct: BTreeSet<&str> = pods.iter().filter_map(|uid| uid.as_str()).collect();
            if distinct.len() < pods.len() {
                wrongs.push(format!("{name} has restarted a Pod twice: {pods:?}"));
            }
            let [restarted, restarting, failed, skipped, total] =
                ["restarted", "restarting", "failed", "skipped", "total"].map(|field| number(restart, field));
            if restarted + restarting + failed + skipped > total {
                wrongs.push(format!("the counts of {name} are more than its total: {}", restart["status"]));
            }
        }
        wrongs
    }

    fn missing(&self, seen: &Seen) -> Vec<String> {
        let mut missing = Vec::new();
        if seen.of(PODS).filter(|pod| is_ready(pod)).count() < REPLICAS {
            missing.push("Pods that are ready".to_owned());
        }
        for restart in seen.of(RESTARTS) {
            let (name, spec) = (name(restart), &restart["spec"]);
            let waits = (spec["paused"] == true && reason(restart) == "Paused")
                || (spec["partition"].as_i64() > Some(0) && reason(restart) == "PartitionReached");
            let restarting = number(restart, "restarting");
            if restarting > 0 || seen.requests_of(restart).any(|r| !is_completed(r) || is_held(r)) {
                missing.push(format!("the end of {restarting} restarts of {name}"));
            }
            let Some(how) = ended(restart) else {
                if !waits || spec["activeDeadlineSeconds"].is_i64() {
                    missing.push(format!("the end of {name}: {} {}", reason(restart), restart["status"]["message"]));
                }
                continue;
            };
            if spec["ttlSecondsAfterFinished"].is_i64() {
                missing.push(format!("the deletion of {name}, which has ended"));
            }
            if self.ended_before.contains(restart["metadata"]["uid"].as_str().unwrap()) {
                continue;
            }
            let succeeded = |pod: &Value| {
                seen.requests_of(restart).any(|r| {
                    r["metadata"]["labels"]["crr.apps.kruise.io/pod-uid"] == pod["metadata"]["uid"]
                        && r["status"]["containerRecreateStates"][0]["phase"] == "Succeeded"
                })
            };
            let restarted = seen.of(PODS).filter(|pod| succeeded(pod)).count();
            if number(restart, "restarted") != i64::try_from(restarted).unwrap() {
                missing.push(format!(
                    "{name} says that it has restarted {} Pods, {restarted} were",
                    number(restart, "restarted")
                ));
            }
            let before = restart["status"]["podsCreatedBefore"].as_str().unwrap_or("");
            let left = seen
                .of(PODS)
                .filter(|pod| pod["metadata"]["creationTimestamp"].as_str().unwrap() < before && !succeeded(pod))
                .count();
            if how == "Complete" && number(restart, "failed") < i64::try_from(left).unwrap() {
                missing.push(format!("{name} is Complete and {left} Pods were not restarted"));
            }
        }
        missing
    }
}

#[test]
fn simulation_of_workload_restarts() {
    let acts = liveness::seeds(24, "simulation_of_workload_restarts", |seed| {
        in_paused_time(seed, async {
            let (mut world, mut promises) = (World::new(), Promises::default());
            let limits = Limits { changes: 25, ..Limits::default() };
            liveness::run(seed, &limits, &mut world, &mut promises).await?;
            let mut acts = promises.acts;
            for what in ["requests", "refused writes", "lost answers", "budgets", "managers that started anew"] {
                acts.add(what, lock(&world.server).acts.count(what));
            }
            Ok(acts)
        })
    });
    acts.require(&[
        ("completed", 100),
        ("failed", 30),
        ("requests", 500),
        ("refused writes", 100),
        ("lost answers", 10),
        ("budgets", 50),
        ("managers that started anew", 50),
    ]);
}
