//! The whole machine under random faults: the real pure steps of daemon and manager, around a simulated API server,
//! kubelet and runtime.
//!
//! Every effect is a step of its own, and between any two of them a process may crash or stay away, a watch may lag,
//! repeat or expire, a write may be refused, throttled or lose its answer, clocks may be off or step, the runtime may
//! fail, containers may crash, the sandbox and the Pod may be replaced, the Pod may be lost, and a user may delete a
//! request. Afterwards the faults stop, and every request has to end, release its key, let later ones go on, and go after
//! its TTL ([`crate::liveness`]). From then
//! on daemon and manager look only when something changed, or when they said they would.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    api::{
        crr::{
            ContainerRecreateRequest as Crr, ContainerRecreateRequestStatus as Status, ContainerRecreateState, Phase,
        },
        labels,
    },
    domain::{
        node::recreate::{
            fail_unfinished, is_terminal,
            manager::{self, Action, Daemon, PodKnowledge},
            node::{self, Instance, InstanceState, Kill},
            pod_spec::{self, Respelling},
            states_of,
        },
        pod::readiness::{self, NotReadyKey},
    },
    k8s::{
        pod::PodView,
        time::{Now, Sighting},
    },
    liveness::{self, Acts, Driver, Limits, Model, Random, Step},
};

const CONTAINERS: [&str; 2] = ["a", "b"];
const REQUESTS: [&str; 3] = ["r1", "r2", "r3"];
/// Made when the faults have stopped: whatever came before must not hold it up.
const LAST: &str = "last";
const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// What a watch delivers: the object as it then was, or that the one with this UID is gone.
#[derive(Clone)]
enum Delivery {
    Request(Box<Crr>),
    RequestGone(String, Option<String>),
    Pod(Option<Value>),
}

impl Delivery {
    /// Which object it is about; the Pod's name is no request's.
    fn object(&self) -> &str {
        match self {
            Self::Request(request) => request.metadata.name.as_deref().unwrap(),
            Self::RequestGone(name, _) => name,
            Self::Pod(_) => "",
        }
    }
}

/// The API server: current objects, and everything that watches deliver.
struct Api {
    version: u64,
    requests: BTreeMap<String, Crr>,
    pod: Option<Value>,
    history: Vec<Delivery>,
}

#[derive(Debug, PartialEq)]
enum Refused {
    Conflict,
    Gone,
    /// Throttled, or the answer was lost: the caller cannot know whether it took effect.
    Unknown,
}

impl Api {
    fn store(&mut self, mut request: Crr) -> Crr {
        self.version += 1;
        let name = request.metadata.name.clone().unwrap();
        request.metadata.resource_version = Some(self.version.to_string());
        let detached = request.metadata.deletion_timestamp.is_some()
            && request.metadata.finalizers.as_ref().is_none_or(Vec::is_empty);
        if detached {
            self.requests.remove(&name);
            self.history.push(Delivery::RequestGone(name, request.metadata.uid.clone()));
        } else {
            self.requests.insert(name, request.clone());
            self.history.push(Delivery::Request(Box::new(request.clone())));
        }
        request
    }

    fn store_pod(&mut self, pod: Option<Value>) {
        self.version += 1;
        self.pod = pod.map(|mut pod| {
            pod["metadata"]["resourceVersion"] = json!(self.version.to_string());
            pod
        });
        self.history.push(Delivery::Pod(self.pod.clone()));
    }

    /// The stored request, if it is still the version the caller looked at.
    fn current(&self, seen: &Crr) -> Result<Crr, Refused> {
        let name = seen.metadata.name.as_deref().unwrap();
        let now = self.requests.get(name).ok_or(Refused::Gone)?;
        if now.metadata.resource_version == seen.metadata.resource_version {
            Ok(now.clone())
        } else {
            Err(Refused::Conflict)
        }
    }
}

/// A process's view through its watches.
#[derive(Default, Clone)]
struct View {
    at: usize,
    /// Delivered already, but not handled yet: another object's events overtake them, the object's own do not.
    late: VecDeque<Delivery>,
    requests: BTreeMap<String, Crr>,
    pod: Option<Value>,
    synced: bool,
    /// Grows with everything that is heard.
    version: u64,
}

/// When something was last looked at: at which version of the view, and when it is to be looked at again.
type Looked = BTreeMap<String, (u64, Option<u64>)>;

impl View {
    fn relist(&mut self, api: &Api) {
        *self = Self {
            at: api.history.len(),
            late: VecDeque::new(),
            requests: api.requests.clone(),
            pod: api.pod.clone(),
            synced: true,
            version: self.version + 1,
        };
    }

    fn hear(&mut self, delivery: &Delivery) {
        self.version += 1;
        match delivery {
            Delivery::Request(request) => self.upsert(request),
            // As the real stores: a successor of the same name stays.
            Delivery::RequestGone(name, uid) => {
                if self.requests.get(name).is_some_and(|r| r.metadata.uid == *uid) {
                    self.requests.remove(name);
                }
            }
            Delivery::Pod(Some(pod)) => {
                let version =
                    |pod: &Value| pod["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
                if self.pod.as_ref().is_none_or(|old| version(old) <= version(pod)) {
                    self.pod = Some(pod.clone());
                }
            }
            Delivery::Pod(None) => self.pod = None,
        }
    }

    /// As the real stores: an older version never replaces a newer one.
    fn upsert(&mut self, request: &Crr) {
        let version = |r: &Crr| r.metadata.resource_version.as_deref().unwrap().parse::<u64>().unwrap();
        self.version += 1;
        let name = request.metadata.name.clone().unwrap();
        if self.requests.get(&name).is_none_or(|old| version(old) <= version(request)) {
            self.requests.insert(name, request.clone());
        }
    }

    fn pod(&self) -> Option<PodView> {
        self.pod.clone().map(|pod| serde_json::from_value(pod).unwrap())
    }
}

/// What the daemon is in the middle of.
struct Stopping {
    request: Crr,
    kill: Kill,
    hook_done: bool,
}

#[derive(Default)]
struct DaemonProcess {
    view: View,
    memories: BTreeMap<String, node::RestartMemory>,
    stopping: Option<Stopping>,
    wall_offset: i64,
    mono_base: u64,
    /// By UID of the Pod.
    looked: Looked,
    /// It is not started.
    away: bool,
    /// Its Pod is not Ready, although it works.
    unready: bool,
    /// Since when it has not been Ready.
    missing_since: Option<u64>,
}

#[derive(Default)]
struct ManagerProcess {
    view: View,
    memories: BTreeMap<String, manager::ManagerMemory>,
    /// Actions of a plan that are still to be done, and the request as last written.
    doing: Option<(Crr, Vec<Action>)>,
    wall_offset: i64,
    mono_base: u64,
    /// Memories of the requests that it serves itself.
    progress: BTreeMap<String, node::RestartMemory>,
    /// A change of the Pod that is still to be made: the request, the Pod's version and the change.
    respelling: Option<(Crr, String, Respelling)>,
    /// By name of the request.
    looked: Looked,
}

struct World {
    random: Random,
    clock_ms: u64,
    faults: bool,
    api: Api,
    pod_generation: u32,
    instances: Vec<Instance>,
    created: i64,
    daemon: DaemonProcess,
    manager: ManagerProcess,
    /// Instances stopped, hooks begun: by request and container.
    stopped: BTreeMap<(String, String), BTreeSet<String>>,
    hooks: BTreeMap<(String, String), u32>,
    /// The image under which an instance was started.
    images: BTreeMap<String, String>,
    /// Changes of an image, by request and container.
    respelled: BTreeMap<(String, String), u32>,
    /// The runtime answers every stop with an error that may pass.
    broken: bool,
    acts: Acts,
    trace: Vec<String>,
}

impl World {
    fn new(seed: u64) -> Self {
        let api = Api { version: 1, requests: BTreeMap::new(), pod: None, history: Vec::new() };
        let mut world = Self {
            random: Random(seed),
            clock_ms: 0,
            faults: true,
            api,
            pod_generation: 0,
            instances: Vec::new(),
            created: 0,
            daemon: DaemonProcess::default(),
            manager: ManagerProcess::default(),
            stopped: BTreeMap::new(),
            hooks: BTreeMap::new(),
            images: BTreeMap::new(),
            respelled: BTreeMap::new(),
            broken: false,
            acts: Acts::default(),
            trace: Vec::new(),
        };
        world.new_pod();
        world.report();
        world.request("r1");
        world
    }

    fn log(&mut self, text: impl Into<String>) {
        let text = text.into();
        self.trace.push(format!("{:>9} ms  {text}", self.clock_ms));
    }

    fn now(&self, wall_offset: i64, mono_base: u64) -> Now {
        let ms = i64::try_from(self.clock_ms).unwrap() + wall_offset * 1000;
        let wall = Timestamp::from_millisecond(1_700_000_000_000 + ms).unwrap();
        Now { wall, mono: Duration::from_millis(1000 + self.clock_ms - mono_base) }
    }

    // ---- users, kubelet and the runtime

    fn uid(&self) -> String {
        format!("pod-{}", self.pod_generation)
    }

    fn new_pod(&mut self) {
        self.pod_generation += 1;
        let uid = self.uid();
        let pod = json!({
            "metadata": {"name": "web", "namespace": "a", "uid": uid},
            "spec": {"nodeName": "n1", "restartPolicy": "Always", "readinessGates": [{"conditionType": "KruisePodReady"}],
                "containers": CONTAINERS.map(|name| json!({"name": name, "image": format!("r.example/{name}:v1")}))},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"}]},
        });
        self.api.store_pod(Some(pod));
        for name in CONTAINERS {
            self.start(name, 0);
        }
    }

    fn start(&mut self, name: &str, restart_count: i32) {
        self.created += 1;
        let id = format!("containerd://{}-{name}-{}", self.uid(), self.created);
        self.images.insert(id.clone(), self.image(name));
        self.instances.push(Instance {
            id,
            container: name.into(),
            namespace: "a".into(),
            pod_uid: self.uid(),
            state: InstanceState::Running,
            created_at: self.created,
            started_at: Some(self.now(self.daemon.wall_offset, 0).wall),
            exit_code: None,
            restart_count,
        });
    }

    /// The image in the Pod's definition.
    fn image(&self, name: &str) -> String {
        let containers = self.api.pod.as_ref().and_then(|pod| pod["spec"]["containers"].as_array());
        let container = containers.into_iter().flatten().find(|c| c["name"] == name);
        container.and_then(|c| c["image"].as_str()).unwrap_or_default().to_owned()
    }

    fn newest(&self, name: &str) -> Option<usize> {
        let uid = self.uid();
        let mine = self.instances.iter().enumerate().filter(|(_, i)| i.container == name && i.pod_uid == uid);
        mine.max_by_key(|(_, i)| i.created_at).map(|(index, _)| index)
    }

    /// kubelet ends what was defined differently, and starts what has ended.
    fn sync_pod(&mut self) {
        if self.api.pod.as_ref().is_none_or(|pod| !pod["metadata"]["deletionTimestamp"].is_null()) {
            return;
        }
        for name in CONTAINERS {
            if let Some(index) = self.newest(name)
                && self.instances[index].state == InstanceState::Running
                && self.images[&self.instances[index].id] != self.image(name)
            {
                self.instances[index].state = InstanceState::Exited;
                self.log(format!("kubelet ends {}: its image is spelled differently", self.instances[index].id));
            }
        }
        for name in CONTAINERS {
            if let Some(index) = self.newest(name)
                && self.instances[index].state == InstanceState::Exited
            {
                let count = self.instances[index].restart_count + 1;
                self.start(name, count);
                self.log(format!("kubelet starts {}", self.instances.last().unwrap().id));
            }
        }
    }

    /// kubelet writes the Pod's status.
    fn report(&mut self) {
        let Some(mut pod) = self.api.pod.clone() else { return };
        let statuses: Vec<Value> = CONTAINERS
            .iter()
            .filter_map(|name| self.newest(name).map(|index| &self.instances[index]))
            .map(|i| {
                let running = i.state == InstanceState::Running;
                let state = if running { json!({"running": {}}) } else { json!({"terminated": {"exitCode": 1}}) };
                json!({"name": i.container, "containerID": i.id, "ready": running, "restartCount": i.restart_count, "state": state,
                    "imageID": format!("r.example/{}@{DIGEST}", i.container)})
            })
            .collect();
        if pod["status"]["containerStatuses"] != json!(statuses) {
            pod["status"]["containerStatuses"] = json!(statuses);
            self.api.store_pod(Some(pod));
        }
    }

    fn crash_container(&mut self) {
        let name = CONTAINERS[self.random.below(2)];
        if let Some(index) = self.newest(name) {
            self.instances[index].state = InstanceState::Exited;
            self.log(format!("{} crashes", self.instances[index].id));
        }
    }

    fn recreate_sandbox(&mut self) {
        self.log("the sandbox is recreated");
        self.acts.note("sandbox recreated");
        for name in CONTAINERS {
            if let Some(index) = self.newest(name) {
                self.instances[index].state = InstanceState::Exited;
            }
        }
        self.sync_pod();
    }

    fn replace_pod(&mut self) {
        self.log("the Pod is replaced by one of the same name");
        self.acts.note("Pod replaced");
        self.instances.clear();
        self.api.store_pod(None);
        self.new_pod();
        self.report();
    }

    /// The Pod goes, and nobody makes another one.
    fn lose_pod(&mut self) {
        self.log("the Pod is gone");
        self.acts.note("Pod lost");
        self.instances.clear();
        self.api.store_pod(None);
    }

    /// A user creates a request; admission writes down what it means.
    fn request(&mut self, name: &str) {
        if self.api.requests.contains_key(name) {
            return;
        }
        let Some(pod) = self.api.pod.clone() else { return };
        let statuses = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        let by_manager = self.random.chance(40);
        let context = |container: &str| {
            let status = statuses.iter().find(|s| s["name"] == container).unwrap();
            let image = if by_manager { self.image(container) } else { String::new() };
            json!({"containerID": status["containerID"], "restartCount": status["restartCount"], "image": image})
        };
        let hook = if by_manager { Value::Null } else { json!({"exec": {"command": ["drain"]}}) };
        let containers: Vec<Value> =
            CONTAINERS.iter().map(|c| json!({"name": c, "statusContext": context(c), "preStop": hook})).collect();
        let (label, value) = match by_manager {
            true => (labels::CRR_METHOD, labels::CRR_METHOD_POD_SPEC),
            false => (labels::CRR_ACTIVE, "true"),
        };
        let unready = self.random.chance(40).then_some(3);
        let deadline = self.random.chance(30).then_some(60);
        // The last one stays, so that it can be looked at.
        let ttl = (name != LAST && self.random.chance(30)).then_some(120);
        let policy = if self.random.chance(50) { "Fail" } else { "Ignore" };
        let created = self.now(0, 0).wall;
        let request: Crr = serde_json::from_value(json!({
            "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
            "metadata": {"name": name, "namespace": "a", "uid": format!("{name}-{}", self.api.version), "creationTimestamp": created,
                "labels": {"crr.apps.kruise.io/pod-uid": pod["metadata"]["uid"], label: value,
                    "crr.apps.kruise.io/node-name": "n1"}},
            "spec": {"podName": "web", "containers": containers, "activeDeadlineSeconds": deadline,
                "ttlSecondsAfterFinished": ttl,
                "strategy": {"failurePolicy": policy, "orderedRecreate": self.random.chance(50),
                    "forceRecreate": self.random.chance(25), "terminationGracePeriodSeconds": 30,
                    "unreadyGracePeriodSeconds": unready, "minStartedSeconds": self.random.below(2) * 3}},
        }))
        .unwrap();
        self.log(format!("user creates {name} ({label}): {}", serde_json::to_string(&request.spec.strategy).unwrap()));
        self.api.store(request);
    }

    fn delete_request(&mut self) {
        let name = REQUESTS[self.random.below(3)];
        if let Some(mut request) = self.api.requests.get(name).cloned()
            && !request.is_deleting()
        {
            self.log(format!("user deletes {name}"));
            self.acts.note("request deleted by a user");
            request.metadata.deletion_timestamp = request.metadata.creation_timestamp.clone();
            self.api.store(request);
        }
    }

    // ---- writes

    /// A write that the API server, or the way to it, may refuse.
    fn write(&mut self, who: &str, what: &str, seen: &Crr, change: impl FnOnce(&mut Crr)) -> Result<Crr, Refused> {
        if self.faults && self.random.chance(6) {
            self.log(format!("{who}: {what}: throttled"));
            return Err(Refused::Unknown);
        }
        let mut next = match self.api.current(seen) {
            Ok(next) => next,
            Err(refused) => {
                self.log(format!("{who}: {what}: {refused:?}"));
                return Err(refused);
            }
        };
        let before = next.clone();
        change(&mut next);
        assert!(
            before.phase() != &Phase::Completed || before.status == next.status,
            "a completed request never moves: {who}: {what}"
        );
        for (old, new) in states_of(&before).iter().zip(states_of(&next)) {
            assert!(!is_terminal(old) || *old == new, "a container that ended never moves: {who}: {what}");
        }
        let in_flight = |r: &Crr| states_of(r).iter().filter(|s| s.phase == Phase::Recreating).count();
        assert!(!next.strategy().ordered_recreate || in_flight(&next) <= 1, "ordered mode has one in flight");
        let written = self.api.store(next);
        if self.faults && self.random.chance(4) {
            self.log(format!("{who}: {what}: written, but the answer is lost"));
            return Err(Refused::Unknown);
        }
        self.log(format!("{who}: {what}"));
        Ok(written)
    }

    // ---- the daemon, as `daemon::recreate` runs the steps

    fn daemon_step(&mut self) {
        if self.daemon.away {
            return;
        }
        if !self.daemon.view.synced {
            self.manager.view.version += 1; // its Pod is Ready
            self.daemon.view.relist(&self.api);
            self.log("daemon: started");
            return;
        }
        if let Some(stopping) = self.daemon.stopping.take() {
            self.stop_step(stopping);
            return;
        }
        let requests = self.daemon_requests();
        let pods = self.due_pods(&requests);
        // One Pod at a time; which one comes first does not matter.
        let Some(uid) = pods.iter().nth(self.random.below(pods.len().max(1))) else { return };
        self.daemon.looked.insert(uid.clone(), (self.daemon.view.version, None));
        let pick = node::pick(requests.iter().filter(|r| r.pod_uid() == uid));
        let Some(current) = pick.current else { return };
        if let Some(waiting) = pick.has_to_wait.iter().find(|r| !r.is_served_by_manager()) {
            let status = node::waiting_status(current);
            self.write_status(true, waiting, "waits", status);
            return;
        }
        if current.is_served_by_manager() {
            return;
        }
        let pod = self.daemon.view.pod().filter(|pod| pod.uid() == current.pod_uid());
        let instances: Vec<Instance> = match &pod {
            Some(pod) => self.instances.iter().filter(|i| i.pod_uid == pod.cri_uid()).cloned().collect(),
            None => Vec::new(),
        };
        let runtimes = ["containerd".to_owned()];
        let now = self.now(self.daemon.wall_offset, self.daemon.mono_base);
        let memory = self.daemon.memories.entry(current.metadata.uid.clone().unwrap()).or_default();
        let observed = node::ObservedContainers {
            request: current,
            pod: pod.as_ref(),
            runtimes: &runtimes,
            instances: &instances,
        };
        let plan = node::plan(&observed, memory, now);
        let again = self.after(plan.requeue);
        self.daemon.looked.get_mut(uid).unwrap().1 = again;
        let mut recorded = current.clone();
        if let Some(status) = plan.status {
            match self.write_status(true, current, "records", status) {
                Some(written) => recorded = written,
                None => return,
            }
        }
        if let Some(kill) = plan.kill {
            let memory = self.daemon.memories.entry(current.metadata.uid.clone().unwrap()).or_default();
            memory.stop_begins(&kill);
            let states = states_of(&recorded);
            self.acts.note("stop recorded");
            let on_record = |s: &ContainerRecreateState| s.name == kill.container && s.previous_container_id == kill.id;
            assert!(states.iter().any(on_record), "no instance is stopped that was not recorded");
            self.daemon.stopping = Some(Stopping { request: recorded, kill, hook_done: false });
        }
    }

    fn daemon_requests(&self) -> Vec<Crr> {
        let active = |r: &&Crr| {
            let labelled = r.metadata.labels.as_ref().is_some_and(|l| l.contains_key(labels::CRR_ACTIVE));
            !r.is_completed() && (labelled || r.is_served_by_manager())
        };
        self.daemon.view.requests.values().filter(active).cloned().collect()
    }

    /// Pods that the daemon looks at now: with faults any, else those that changed, or whose time has come.
    fn due_pods(&self, requests: &[Crr]) -> BTreeSet<String> {
        let pods = requests.iter().map(|r| r.pod_uid().to_owned());
        pods.filter(|uid| self.faults || self.is_due(&self.daemon.looked, uid, self.daemon.view.version)).collect()
    }

    fn is_due(&self, looked: &Looked, what: &str, version: u64) -> bool {
        looked.get(what).is_none_or(|(at, again)| *at != version || again.is_some_and(|again| again <= self.clock_ms))
    }

    /// The clock after a delay.
    fn after(&self, delay: Option<Duration>) -> Option<u64> {
        delay.map(|delay| self.clock_ms.saturating_add(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)) + 1)
    }

    /// A status that a process writes, and what it learns from the answer. A request that is gone stays in the manager's
    /// store until its watch delivers it.
    fn write_status(&mut self, by_daemon: bool, seen: &Crr, what: &str, status: Status) -> Option<Crr> {
        let states: Vec<String> =
            status.container_recreate_states.iter().map(|s| format!("{}={}", s.name, s.phase.as_str())).collect();
        let name = seen.metadata.name.clone().unwrap();
        let text = format!("{what} {name} {} {}", status.phase.as_str(), states.join(" "));
        let who = if by_daemon { "daemon" } else { "manager" };
        let result = self.write(who, &text, seen, |r| r.status = Some(status));
        let view = if by_daemon { &mut self.daemon.view } else { &mut self.manager.view };
        match result {
            Ok(written) => {
                view.upsert(&written);
                return Some(written);
            }
            Err(Refused::Conflict) => {
                if let Some(fresh) = self.api.requests.get(&name) {
                    view.upsert(fresh);
                }
            }
            Err(Refused::Gone) if by_daemon => {
                view.requests.remove(&name);
            }
            Err(Refused::Gone | Refused::Unknown) => {}
        }
        None
    }

    fn stop_step(&mut self, mut stopping: Stopping) {
        let name = stopping.request.metadata.name.clone().unwrap();
        let by = (stopping.request.metadata.uid.clone().unwrap(), stopping.kill.container.clone());
        if stopping.kill.hook.is_some() && !stopping.hook_done {
            let hooks = self.hooks.entry(by).or_default();
            *hooks += 1;
            self.acts.note("hook");
            assert!(*hooks <= 1, "no hook runs twice");
            self.log(format!("daemon: hook of {} for {name}", stopping.kill.container));
            stopping.hook_done = true;
            self.daemon.stopping = Some(stopping);
            return;
        }
        // What a stop brings is seen at once.
        self.daemon.looked.clear();
        let open = self.daemon.view.requests.get(&name).is_some_and(|r| r.is_open());
        if stopping.hook_done && !open {
            self.log(format!("daemon: {name} has ended, its stop is not sent"));
            return;
        }
        let container = stopping.kill.container.clone();
        let now = self.now(self.daemon.wall_offset, self.daemon.mono_base);
        let memory = self.daemon.memories.entry(by.0.clone()).or_default();
        if self.broken || self.faults && self.random.chance(8) {
            self.acts.note("repeated");
            memory.stop_may_pass(&container, "away".into(), now);
            self.log("daemon: the runtime cannot be reached");
            return;
        }
        if self.faults && self.random.chance(12) {
            memory.stop_refused(&container, "boom".into());
            self.log("daemon: the runtime refuses the stop");
            self.acts.note("stop refused");
            return;
        }
        let id = stopping.kill.id.clone();
        self.log(format!("daemon: stops {id} for {name}"));
        let Some(instance) = self.instances.iter_mut().find(|i| i.id == id) else { return };
        if instance.state != InstanceState::Running {
            return;
        }
        instance.state = InstanceState::Exited;
        instance.exit_code = Some(143);
        let context = stopping.request.spec.containers.iter().find(|c| c.name == container);
        let meant = context.and_then(|c| c.status_context.as_ref()).is_some_and(|c| c.container_id == id);
        let of_the_pod = instance.pod_uid == stopping.request.pod_uid() && instance.container == container;
        assert!(of_the_pod, "no container of another Pod is stopped");
        assert!(meant || stopping.request.strategy().force_recreate, "no instance is stopped that was not meant");
        let all = self.stopped.entry(by).or_default();
        all.insert(id);
        assert!(all.len() <= 1, "no container is stopped twice by one request");
    }

    fn daemon_crash(&mut self) {
        self.log("daemon: crashes");
        self.acts.note(if self.daemon.stopping.is_some() { "daemon crashes during a stop" } else { "daemon crashes" });
        let DaemonProcess { wall_offset, away, unready, missing_since, .. } = self.daemon;
        self.daemon = DaemonProcess {
            wall_offset,
            mono_base: self.clock_ms,
            away,
            unready,
            missing_since: missing_since.or(Some(self.clock_ms)),
            ..DaemonProcess::default()
        };
        self.manager.view.version += 1;
    }

    /// What the manager knows of the daemon: its own watch, and when that says that it is missing for too long, the API
    /// server itself, which may not answer.
    fn daemon_as_seen(&mut self) -> Daemon {
        if self.daemon.view.synced && !self.daemon.unready {
            self.daemon.missing_since = None;
            return Daemon::Ready;
        }
        let since = (*self.daemon.missing_since.get_or_insert(self.clock_ms)).max(self.manager.mono_base);
        let lasting = Duration::from_millis(self.clock_ms - since);
        if lasting >= manager::DAEMON_GONE_AFTER && self.faults && self.random.chance(20) {
            return Daemon::Unknown;
        }
        Daemon::Missing(lasting)
    }

    // ---- the manager, as `controllers::container_recreate_request` runs the steps

    fn manager_step(&mut self) {
        if !self.manager.view.synced {
            self.manager.view.relist(&self.api);
            let now = self.now(self.manager.wall_offset, self.manager.mono_base);
            for request in self.manager.view.requests.values() {
                let memory = manager::ManagerMemory {
                    created: Sighting::found(now, request.metadata.creation_timestamp.as_ref().unwrap().0),
                    seen: Sighting::live(now),
                    completed: None,
                    reported_no_daemon: false,
                };
                self.manager.memories.insert(request.metadata.uid.clone().unwrap(), memory);
            }
            self.log("manager: started");
            return;
        }
        if let Some((request, mut actions)) = self.manager.doing.take() {
            let action = actions.remove(0);
            if let Some(written) = self.manager_action(&request, &action)
                && !actions.is_empty()
            {
                self.manager.doing = Some((written, actions));
            }
            return;
        }
        if let Some((request, version, respelling)) = self.manager.respelling.take() {
            self.respell(&request, &version, &respelling);
            return;
        }
        let names = self.due_requests();
        if names.is_empty() {
            return;
        }
        let name = names[self.random.below(names.len())].clone();
        let request = self.manager.view.requests[&name].clone();
        self.manager.looked.insert(name.clone(), (self.manager.view.version, None));
        let now = self.now(self.manager.wall_offset, self.manager.mono_base);
        let memory =
            self.manager.memories.entry(request.metadata.uid.clone().unwrap()).or_insert(manager::ManagerMemory {
                created: Sighting::live(now),
                seen: Sighting::live(now),
                completed: None,
                reported_no_daemon: false,
            });
        if request.is_completed() && memory.completed.is_none() {
            memory.completed = Some(Sighting::live(now));
        }
        let memory = *memory;
        // That a Pod is gone or replaced is believed only when the API server itself says so.
        let cached = self.manager.view.pod().filter(|pod| manager::is_meant(&request, pod));
        let live = || self.api.pod.clone().map(|pod| serde_json::from_value::<PodView>(pod).unwrap());
        let pod = cached.or_else(live);
        let knowledge = pod.as_ref().map_or(PodKnowledge::Gone, PodKnowledge::Present);
        let daemon = self.daemon_as_seen();
        if daemon == Daemon::Ready {
            self.manager.memories.get_mut(request.metadata.uid.as_deref().unwrap()).unwrap().reported_no_daemon = false;
        }
        let observed = manager::ObservedRequest {
            request: &request,
            pod: knowledge,
            daemon,
            memory,
            gone_after: manager::DAEMON_GONE_AFTER,
        };
        let plan = manager::plan(&observed, now);
        let again = self.after(plan.requeue);
        self.manager.looked.get_mut(&name).unwrap().1 = again;
        if !plan.actions.is_empty() {
            self.manager.doing = Some((request, plan.actions));
        } else if let Some(pod) = pod
            && request.is_served_by_manager()
            && !request.is_completed()
            && !request.is_deleting()
            && !pod.is_deleting()
        {
            self.serve(&request, pod);
        }
    }

    /// Requests that the manager looks at now: with faults any, else those that may have changed, or whose time has come.
    fn due_requests(&self) -> Vec<String> {
        let view = &self.manager.view;
        let due = |name: &&String| self.faults || self.is_due(&self.manager.looked, name, view.version);
        view.requests.keys().filter(due).cloned().collect()
    }

    /// As `controllers::container_recreate_request::pod_spec` runs the steps.
    fn serve(&mut self, request: &Crr, mut pod: PodView) {
        let all: Vec<Crr> = self.manager.view.requests.values().filter(|r| r.pod_uid() == pod.uid()).cloned().collect();
        let pick = node::pick_by_manager(&all);
        if let Some(first) = pick.current.filter(|first| first.metadata.uid != request.metadata.uid) {
            if *request.phase() == Phase::Empty {
                self.write_status(false, request, "waits", node::waiting_status(first));
            }
            return;
        }
        if *request.phase() != Phase::Recreating && !pod_spec::agrees(request, &pod) {
            let live = self.api.pod.clone().map(|pod| serde_json::from_value::<PodView>(pod).unwrap());
            match live.filter(|live| live.uid() == pod.uid()) {
                Some(live) => pod = live,
                None => return,
            }
        }
        let now = self.now(self.manager.wall_offset, self.manager.mono_base);
        let memory = self.manager.progress.entry(request.metadata.uid.clone().unwrap()).or_default();
        let plan = pod_spec::plan(request, &pod, memory, now);
        let again = self.after(plan.requeue);
        let looked = self.manager.looked.get_mut(request.metadata.name.as_deref().unwrap()).unwrap();
        looked.1 = [looked.1, again].into_iter().flatten().min();
        if plan.trial.is_some() && self.faults && self.random.chance(10) {
            self.log("manager: the trial is denied");
            self.acts.note("trial denied");
            // What was to be done is recorded at the same time.
            let recorded = plan.status.and_then(|status| self.write_status(false, request, "records", status));
            if let Some(recorded) = recorded
                && let Some(status) = pod_spec::denied(&recorded, &pod, "no", now)
            {
                self.write_status(false, &recorded, "refuses", status);
            }
            return;
        }
        let mut recorded = request.clone();
        if let Some(status) = plan.status {
            match self.write_status(false, request, "records", status) {
                Some(written) => recorded = written,
                None => return,
            }
        }
        if let Some(respelling) = plan.respelling {
            self.manager.respelling = Some((recorded, pod.resource_version().unwrap().to_owned(), respelling));
        }
    }

    /// The change of the Pod, bound to the version that it was decided on.
    fn respell(&mut self, request: &Crr, version: &str, respelling: &Respelling) {
        let refused = self.faults && self.random.chance(6);
        let current = self.api.pod.clone().filter(|pod| pod["metadata"]["resourceVersion"] == version);
        let Some(mut pod) = current.filter(|_| !refused) else {
            self.log("manager: the Pod is not changed: throttled, or another version");
            self.manager.view.version += 1;
            self.manager.view.pod = self.api.pod.clone();
            return;
        };
        for (name, image) in &respelling.images {
            let containers = pod["spec"]["containers"].as_array_mut().unwrap();
            let container = containers.iter_mut().find(|c| c["name"] == **name).unwrap();
            assert_ne!(container["image"], **image, "a change changes something");
            container["image"] = image.as_str().into();
            let times = self.respelled.entry((request.metadata.uid.clone().unwrap(), name.clone())).or_default();
            *times += 1;
            assert!(*times <= 1, "no image is spelled differently twice by one request");
            self.log(format!("manager: {name} is now {image}"));
        }
        pod["metadata"]["annotations"] = json!({labels::IMAGE_SPELLINGS: respelling.annotation});
        self.api.store_pod(Some(pod));
        self.manager.view.version += 1;
        if self.faults && self.random.chance(4) {
            return; // the answer is lost
        }
        self.manager.view.pod = self.api.pod.clone();
    }

    fn manager_action(&mut self, request: &Crr, action: &Action) -> Option<Crr> {
        let now = self.now(self.manager.wall_offset, self.manager.mono_base);
        let name = request.metadata.name.clone().unwrap();
        let key = NotReadyKey::of_request("a", &name);
        let what = format!("{action:?} of {name}");
        let result = match action {
            Action::AcquireKey | Action::ReleaseKey => {
                let change = if *action == Action::AcquireKey { readiness::add_key } else { readiness::remove_key };
                if let Some(mut pod) = self.api.pod.clone()
                    && pod["metadata"]["uid"] == request.pod_uid()
                    && let Some(patch) = change(&pod, &key, now)
                {
                    merge_conditions(&mut pod, &patch);
                    self.api.store_pod(Some(pod));
                }
                self.log(format!("manager: {what}"));
                self.acts.note(if *action == Action::AcquireKey { "key acquired" } else { "key released" });
                return Some(request.clone());
            }
            Action::AddFinalizer => self.write("manager", &what, request, |r| {
                let mut finalizers: Vec<String> = manager::other_finalizers(r).into_iter().map(Into::into).collect();
                finalizers.push(labels::CRR_UNREADY_FINALIZER.into());
                r.metadata.finalizers = Some(finalizers);
            }),
            Action::RecordCondition(at) => self.write("manager", &what, request, |r| {
                let conditions = manager::with_grace_condition(r, *at);
                r.status.get_or_insert_default().conditions = conditions;
            }),
            Action::RecordAnnotation(at) => self.write("manager", &what, request, |r| {
                r.metadata
                    .annotations
                    .get_or_insert_default()
                    .insert(labels::CRR_UNREADY_ACQUIRED.into(), at.to_string());
            }),
            Action::Complete { message, .. } => {
                if message.contains("has had no ready kruise-daemon") {
                    self.acts.note("ended without a daemon");
                }
                if self.api.pod.is_none() {
                    self.acts.note("ended without a Pod");
                }
                self.write("manager", &what, request, |r| {
                    let states = fail_unfinished(r, message);
                    let status = r.status.get_or_insert_default();
                    status.phase = Phase::Completed;
                    status.message.clone_from(message);
                    status.container_recreate_states = states;
                })
            }
            Action::Detach => self.write("manager", &what, request, |r| {
                r.metadata.finalizers = None;
                r.metadata.labels.get_or_insert_default().remove(labels::CRR_ACTIVE);
            }),
            Action::ReportNoDaemon(message) => {
                let memory = self.manager.memories.get_mut(request.metadata.uid.as_deref().unwrap());
                memory.unwrap().reported_no_daemon = true;
                self.write("manager", &what, request, |r| r.status.get_or_insert_default().message.clone_from(message))
            }
            Action::LeaveBehind { condition, message } => {
                self.acts.note("left behind");
                self.write("manager", &what, request, |r| {
                    let conditions = manager::with_condition(r, condition.clone());
                    let status = r.status.get_or_insert_default();
                    (status.conditions, status.message) = (conditions, message.clone());
                })
            }
            Action::Delete => {
                assert!(request.is_completed(), "what has not ended is kept");
                self.acts.note("deleted after its TTL");
                self.write("manager", &what, request, |r| {
                    r.metadata.deletion_timestamp = r.metadata.creation_timestamp.clone();
                })
            }
        };
        match result {
            Ok(written) => {
                if self.api.requests.contains_key(&name) {
                    self.manager.view.upsert(&written);
                }
                Some(written)
            }
            Err(Refused::Conflict) => {
                if let Some(fresh) = self.api.requests.get(&name).cloned() {
                    self.manager.view.upsert(&fresh);
                }
                None
            }
            Err(Refused::Gone | Refused::Unknown) => None,
        }
    }

    fn manager_crash(&mut self) {
        self.log("manager: crashes");
        self.acts.note("manager crashes");
        let wall_offset = self.manager.wall_offset;
        self.manager = ManagerProcess { wall_offset, mono_base: self.clock_ms, ..ManagerProcess::default() };
    }

    // ---- the course of events

    /// Delivers to one process what it has not heard yet: in order, with something older once more, or with the events
    /// of one object overtaking those of another.
    fn deliver(&mut self, daemon: bool) {
        let repeat = self.faults && self.random.chance(15);
        let delay = self.faults && self.random.chance(20);
        let catch_up = !self.faults || self.random.chance(30);
        let view = if daemon { &mut self.daemon.view } else { &mut self.manager.view };
        if !view.synced {
            return;
        }
        if repeat && view.at > 0 {
            // A repeated deletion is not part of the watch protocol; an older version is what a stale server sends.
            let delivery = self.api.history[view.at - 1].clone();
            if !is_deleted(&delivery, &self.api) {
                view.hear(&delivery);
            }
        } else if let Some(delivery) = view.late.pop_front_if(|_| catch_up) {
            view.hear(&delivery);
        } else if let Some(delivery) = self.api.history.get(view.at).cloned() {
            view.at += 1;
            if delay || view.late.iter().any(|late| late.object() == delivery.object()) {
                view.late.push_back(delivery);
            } else {
                view.hear(&delivery);
            }
        }
    }

    /// One step while anything may go wrong: who comes next, and when, is chance.
    fn chaos_step(&mut self) {
        let longest = if self.random.chance(5) { 30_000 } else { 1_500 };
        self.clock_ms += self.random.next() % longest;
        match self.random.below(88) {
            0..20 => self.deliver(true),
            20..35 => self.deliver(false),
            35..60 => self.daemon_step(),
            60..72 => self.manager_step(),
            72..80 => self.sync_pod(),
            _ => self.report(),
        }
    }

    fn fault(&mut self) {
        match self.random.below(15) {
            0 | 1 => self.daemon_crash(),
            2 => self.manager_crash(),
            3 => self.crash_container(),
            4 => self.recreate_sandbox(),
            5 => {
                let view = if self.random.chance(50) { &mut self.daemon.view } else { &mut self.manager.view };
                if view.synced {
                    view.relist(&self.api); // the watch had expired
                }
            }
            6 => self.daemon.wall_offset = [0, 3600, -3600][self.random.below(3)],
            7 => self.manager.wall_offset = [0, 3600, -3600][self.random.below(3)],
            8 => self.delete_request(),
            9 => match self.random.below(20) {
                0..4 => self.replace_pod(),
                4 => self.lose_pod(),
                _ => {}
            },
            10 => {
                self.daemon.away = !self.daemon.away;
                self.log(format!("the daemon is away: {}", self.daemon.away));
                if self.daemon.away {
                    self.daemon_crash();
                }
            }
            11 => self.daemon.unready = self.random.chance(30),
            12 => self.broken = self.random.chance(40),
            13 => {
                let longest = if self.random.chance(50) { 1_000_000 } else { 60_000 };
                self.clock_ms += self.random.next() % longest;
                self.log("time has passed");
            }
            _ => {
                let name = REQUESTS[self.random.below(3)];
                self.request(name);
            }
        }
    }

    /// One step without faults; false: there was nothing to do.
    fn calm_step(&mut self) -> bool {
        let heard = |view: &View, api: &Api| !view.synced || (view.at == api.history.len() && view.late.is_empty());
        let first = self.random.below(5);
        for turn in 0..5 {
            match (first + turn) % 5 {
                0 if !heard(&self.daemon.view, &self.api) => self.deliver(true),
                1 if !heard(&self.manager.view, &self.api) => self.deliver(false),
                2 if !self.daemon.view.synced
                    || self.daemon.stopping.is_some()
                    || !self.due_pods(&self.daemon_requests()).is_empty() =>
                {
                    self.daemon_step();
                }
                3 if !self.manager.view.synced
                    || self.manager.doing.is_some()
                    || self.manager.respelling.is_some()
                    || !self.due_requests().is_empty() =>
                {
                    self.manager_step();
                }
                4 => {
                    let before = (self.trace.len(), self.api.version);
                    self.sync_pod();
                    self.report();
                    if before == (self.trace.len(), self.api.version) {
                        continue;
                    }
                }
                _ => continue,
            }
            return true;
        }
        false
    }

    /// When daemon or manager look again by themselves.
    fn next_look(&self) -> Option<Duration> {
        let (requests, view) = (self.daemon_requests(), &self.manager.view.requests);
        let of_daemon = self.daemon.looked.iter().filter(|(uid, _)| requests.iter().any(|r| r.pod_uid() == **uid));
        let of_manager = self.manager.looked.iter().filter(|(name, _)| view.contains_key(*name));
        let next = of_daemon.chain(of_manager).filter_map(|(_, (_, again))| *again).min()?;
        Some(Duration::from_millis(next.saturating_sub(self.clock_ms)))
    }
}

/// A request as its user sees it.
struct SeenRequest {
    name: String,
    status: Status,
    is_completed: bool,
    is_detached: bool,
    has_ttl: bool,
}

struct Seen {
    requests: Vec<SeenRequest>,
    /// NotReady keys on the Pod.
    keys: String,
    has_pod: bool,
    faults: bool,
}

impl Driver for World {
    type Seen = Seen;

    async fn disturb(&mut self, _: &mut Random) -> Result<String, String> {
        self.fault();
        Ok(String::new())
    }

    async fn make_possible(&mut self) -> Result<String, String> {
        (self.faults, self.broken, self.daemon.away, self.daemon.unready) = (false, false, false, false);
        self.daemon.looked.clear();
        self.manager.looked.clear();
        self.log("the faults stop");
        if self.api.pod.is_none() && self.random.chance(50) {
            self.new_pod();
            self.report();
        }
        self.request(LAST);
        Ok("no faults any more, and one more request".into())
    }

    async fn step(&mut self, _: &mut Random) -> Result<Step, String> {
        if self.faults {
            self.chaos_step();
        } else if !self.calm_step() {
            return Ok(Step::Idle(self.next_look()));
        }
        Ok(Step::Worked(String::new()))
    }

    async fn advance(&mut self, by: Duration) {
        self.clock_ms += u64::try_from(by.as_millis()).unwrap();
    }

    async fn see(&mut self) -> Result<Seen, String> {
        let seen = |(name, request): (&String, &Crr)| SeenRequest {
            name: name.clone(),
            status: request.status.clone().unwrap_or_default(),
            is_completed: request.is_completed(),
            has_ttl: request.spec.ttl_seconds_after_finished.is_some(),
            is_detached: !manager::has_finalizer(request)
                && !request.metadata.labels.as_ref().is_some_and(|l| l.contains_key(labels::CRR_ACTIVE)),
        };
        let conditions = self.api.pod.as_ref().and_then(|pod| pod["status"]["conditions"].as_array());
        let gate = conditions.into_iter().flatten().find(|c| c["type"] == labels::CONDITION_KRUISE_POD_READY);
        let keys = gate.and_then(|c| c["message"].as_str()).unwrap_or("[]").to_owned();
        Ok(Seen {
            requests: self.api.requests.iter().map(seen).collect(),
            keys,
            has_pod: self.api.pod.is_some(),
            faults: self.faults,
        })
    }
}

/// Every request ends, releases its key, and lets the next one go on.
struct RequestsEnd;

impl Model for RequestsEnd {
    type Seen = Seen;

    fn wrongs(&mut self, seen: &Seen) -> Vec<String> {
        let unsaid = |r: &&SeenRequest| r.is_completed && r.status.message.starts_with("waiting");
        let wrong = seen.requests.iter().filter(unsaid);
        wrong.map(|r| format!("{} has ended and still waits: {}", r.name, r.status.message)).collect()
    }

    fn missing(&self, seen: &Seen) -> Vec<String> {
        let mut missing = Vec::new();
        for request in &seen.requests {
            if !request.is_completed {
                missing.push(format!("{} has not ended: {:?}", request.name, request.status));
            } else if !request.is_detached {
                missing.push(format!("{} keeps its finalizer or its label", request.name));
            } else if request.has_ttl {
                missing.push(format!("{} is kept beyond its TTL", request.name));
            }
        }
        if !seen.faults && seen.has_pod && !seen.requests.iter().any(|r| r.name == LAST) {
            missing.push("the last request is gone".into());
        }
        if seen.keys != "[]" {
            missing.push(format!("the Pod is held NotReady: {}", seen.keys));
        }
        missing
    }
}

fn is_deleted(delivery: &Delivery, api: &Api) -> bool {
    match delivery {
        Delivery::Request(request) => {
            let now = api.requests.get(request.metadata.name.as_deref().unwrap());
            now.is_none_or(|now| now.metadata.uid != request.metadata.uid)
        }
        Delivery::Pod(Some(pod)) => api.pod.as_ref().is_none_or(|now| now["metadata"]["uid"] != pod["metadata"]["uid"]),
        Delivery::RequestGone(..) | Delivery::Pod(None) => true,
    }
}

/// A strategic merge of `status.conditions` by type, as the API server does it.
fn merge_conditions(pod: &mut Value, patch: &Value) {
    let conditions = pod["status"]["conditions"].as_array_mut().unwrap();
    for change in patch["status"]["conditions"].as_array().unwrap() {
        match conditions.iter_mut().find(|c| c["type"] == change["type"]) {
            Some(condition) => json_patch::merge(condition, change),
            None => conditions.push(change.clone()),
        }
    }
}

fn run(seed: u64) -> Result<Acts, String> {
    let mut world = World::new(seed);
    let limits = Limits { changes: 40, steps_between: 10, time_between: Duration::ZERO, ..Limits::default() };
    let history =
        std::panic::AssertUnwindSafe(|| liveness::at_once(liveness::run(seed, &limits, &mut world, &mut RequestsEnd)));
    let result = std::panic::catch_unwind(history).unwrap_or_else(|panic| Err(liveness::said(panic.as_ref())));
    result.map_err(|why| format!("{why}\n{}", world.trace.join("\n")))?;
    let mut acts = world.acts;
    acts.add("stopped", world.stopped.len() as u64);
    acts.add("respelled", world.respelled.len() as u64);
    Ok(acts)
}

#[test]
fn simulation_under_faults() {
    let acts = liveness::seeds(400, "simulation_under_faults", run);
    let often = [
        ("stopped", 33),
        ("respelled", 33),
        ("repeated", 10),
        ("left behind", 1),
        ("ended without a daemon", 2),
        ("stop recorded", 33),
        ("stop refused", 1),
        ("hook", 20),
        ("key acquired", 20),
        ("key released", 20),
        ("trial denied", 5),
        ("sandbox recreated", 50),
        ("Pod replaced", 20),
        ("Pod lost", 5),
        ("ended without a Pod", 3),
        ("request deleted by a user", 50),
        ("deleted after its TTL", 15),
        ("daemon crashes", 50),
        ("daemon crashes during a stop", 5),
        ("manager crashes", 50),
    ];
    acts.require(&often);
}
