//! Random histories of a StatefulSet: the real controller, an API server in memory, a played kubelet and garbage collector,
//! hooks and storage, users and faults, late watches, and a clock that a seed moves. See [`crate::liveness`].

mod surroundings;

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use self::surroundings::{Delays, HOLDS, ROLE, TOO_LARGE, WAITS};
use super::*;
use crate::{
    controllers::{
        fake,
        tests::played::{self, Kubelets, Living, Look, Passes, mono},
    },
    liveness::{self, Acts, Driver, Limits, Model, Random, Step},
};

const GATES: &[&str] = &["StatefulSetAutoResizePVCGate=true"];

/// What a user has asked for.
#[derive(Clone, Debug)]
struct Wanted {
    ordered: bool,
    claims: bool,
    /// Claims go with a Pod that is surplus.
    deletes_claims: bool,
    replicas: usize,
    reserved: Vec<i64>,
    image: &'static str,
    /// The image of ordinals 1 and 2, if it is another one.
    other_image: Option<&'static str>,
    partition: usize,
    max_unavailable: usize,
    min_ready: i64,
    policy: &'static str,
    paused: bool,
    /// Whether a hook holds deletions, and whether one holds updates in place.
    hooks: [bool; 2],
    /// What the claim template asks for, in GiB.
    storage: u64,
    /// Claims grow when Pods are updated.
    grows: bool,
    /// The StorageClass is to let volumes grow.
    may_grow: bool,
    /// Pods are updated in the order of their roles.
    has_roles: bool,
}

impl Wanted {
    fn new(random: &mut Random) -> Self {
        let ordered = random.chance(40);
        Self {
            ordered,
            claims: random.chance(60),
            deletes_claims: random.chance(50),
            replicas: 1 + random.below(4),
            reserved: Vec::new(),
            image: "i:1",
            other_image: None,
            partition: 0,
            max_unavailable: if ordered { 1 } else { 1 + random.below(2) },
            min_ready: [0, 0, 5][random.below(3)],
            policy: ["ReCreate", "InPlaceIfPossible"][random.below(2)],
            paused: false,
            hooks: [random.chance(40), random.chance(40)],
            storage: 1,
            grows: random.chance(75),
            may_grow: random.chance(80),
            has_roles: false,
        }
    }

    fn ordinals(&self) -> Vec<i64> {
        (0..).filter(|ordinal| !self.reserved.contains(ordinal)).take(self.replicas).collect()
    }

    fn image_of(&self, ordinal: i64) -> &'static str {
        self.with_override(ordinal, self.image)
    }

    /// The image of an ordinal whose template has another one.
    fn with_override<'a>(&self, ordinal: i64, image: &'a str) -> &'a str {
        self.other_image.filter(|_| (1..=2).contains(&ordinal)).unwrap_or(image)
    }

    fn claim_templates(&self) -> Value {
        if !self.claims {
            return Value::Null;
        }
        let mut templates = with_claims();
        templates[0]["spec"]["resources"]["requests"]["storage"] = gib(self.storage).into();
        templates
    }

    fn lifecycle(&self) -> Value {
        if self.hooks == [false; 2] {
            return Value::Null;
        }
        let hook = |which: usize| match self.hooks[which] {
            true => json!({"labelsHandler": {HOLDS[which]: "yes"}}),
            false => Value::Null,
        };
        json!({"preDelete": hook(0), "inPlaceUpdate": hook(1)})
    }

    fn spec(&self) -> Value {
        let growth = if self.grows { "OnPodRollingUpdate" } else { "OnDelete" };
        let retention = json!({"whenScaled": if self.deletes_claims { "Delete" } else { "Retain" }});
        json!({"replicas": self.replicas, "reserveOrdinals": self.reserved,
            "podManagementPolicy": if self.ordered { "OrderedReady" } else { "Parallel" },
            "volumeClaimTemplates": self.claim_templates(), "volumeClaimUpdateStrategy": {"type": growth},
            "persistentVolumeClaimRetentionPolicy": retention, "lifecycle": self.lifecycle(),
            "updateStrategy": {"rollingUpdate": {"partition": self.partition, "maxUnavailable": self.max_unavailable,
                "minReadySeconds": self.min_ready, "podUpdatePolicy": self.policy, "paused": self.paused}},
            "template": {"metadata": {"labels": {HOLDS[0]: "yes", HOLDS[1]: "yes"}},
                "spec": {"containers": [{"name": "main", "image": self.image}]}}})
    }
}

/// A Pod in the plainest terms.
#[derive(Clone, Debug)]
struct Member {
    ordinal: i64,
    uid: String,
    /// The state of its lifecycle.
    state: String,
    /// Whether it has the labels with which hooks hold it.
    holds: [bool; 2],
    /// Of its role, in the order of updates.
    place: usize,
    image: String,
    revision: String,
    ready_since: Option<Timestamp>,
    /// The same, were its gate for updates in place open.
    ready_with_gate: Option<Timestamp>,
    /// The same, were it in service.
    ready_in_service: Option<Timestamp>,
    is_deleting: bool,
    has_failed: bool,
    is_marked: bool,
}

impl Member {
    fn of(pod: &PodView) -> Option<Self> {
        let is_ready = pod.phase == "Running" && pod.condition_is_true("Ready");
        let gate = pod.condition(labels::CONDITION_INPLACE_UPDATE_READY);
        let is_open = gate.is_none_or(|condition| condition.status == "True");
        let state = pod.labels.get(labels::LIFECYCLE_STATE).unwrap_or_default();
        let is_normal = ["", "Normal"].contains(&state);
        let place = match pod.labels.get(ROLE) {
            Some("leader") => 2,
            Some("observer") => 1,
            _ => 0,
        };
        Some(Self {
            ordinal: pod.name().strip_prefix("web-")?.parse().ok()?,
            uid: pod.uid().to_owned(),
            state: state.to_owned(),
            holds: HOLDS.map(|label| pod.labels.get(label).is_some()),
            place,
            image: pod.spec.containers.first().map(|container| container.image.to_string()).unwrap_or_default(),
            revision: pod.labels.get(labels::CONTROLLER_REVISION_HASH).unwrap_or_default().to_owned(),
            ready_since: pod.ready_since.filter(|_| is_ready && is_open && is_normal),
            ready_with_gate: pod.ready_since.filter(|_| is_ready),
            ready_in_service: pod.ready_since.filter(|_| is_ready && is_open),
            is_deleting: pod.is_deleting(),
            has_failed: pod.is_finished(),
            is_marked: pod.labels.get(labels::SPECIFIED_DELETE).is_some(),
        })
    }

    /// Serves, for so many seconds at least.
    fn is_up(&self, now: Timestamp, seconds: i64) -> bool {
        let is_long_enough = |since: Timestamp| since + SignedDuration::from_secs(seconds) <= now;
        !self.is_deleting && !self.has_failed && self.ready_since.is_some_and(is_long_enough)
    }

    /// Serves, and waits for a hook.
    fn serves_until_hook(&self, now: Timestamp, seconds: i64) -> bool {
        let in_service = Self { ready_since: self.ready_in_service, ..self.clone() };
        WAITS.contains(&self.state.as_str()) && in_service.is_up(now, seconds)
    }
}

/// A claim in the plainest terms, in GiB.
#[derive(Clone, Copy, Debug)]
struct Size {
    asked: u64,
    /// Nothing: it has no volume.
    has: u64,
    /// Its file system waits for a mount.
    waits: bool,
}

impl Size {
    fn of(claim: &Value) -> Self {
        let mut conditions = claim["status"]["conditions"].as_array().into_iter().flatten();
        Self {
            asked: gib_of(&claim["spec"]["resources"]["requests"]["storage"]).unwrap_or_default(),
            has: gib_of(&claim["status"]["capacity"]["storage"]).unwrap_or_default(),
            waits: conditions.any(|condition| condition["type"] == "FileSystemResizePending"),
        }
    }
}

/// A pass of the controller: what it knew, and what it wrote.
#[derive(Clone)]
struct PassSeen {
    knew: BTreeMap<i64, Member>,
    /// Pods that were there when it began: a write of the pass may find out that one that it knew is not.
    there: BTreeSet<String>,
    /// UIDs of Pods that own claims, as it knew.
    owners: BTreeSet<String>,
    writes: Vec<(Method, String, Value)>,
}

/// What the model judges.
struct Now {
    at: Timestamp,
    wanted: Wanted,
    generation: i64,
    status: Value,
    pods: BTreeMap<i64, Member>,
    claims: BTreeSet<String>,
    sizes: BTreeMap<String, Size>,
    /// The StorageClass lets volumes grow.
    may_grow: bool,
    /// The image of each revision.
    revisions: BTreeMap<String, String>,
    pass: Option<PassSeen>,
}

struct Cloud {
    world: World,
    wanted: Wanted,
    kubelets: Kubelets,
    kubelet_works: bool,
    /// Somebody answers for the hooks.
    hooks_answer: bool,
    /// Volumes are made, and grow.
    storage_works: bool,
    /// File systems do not grow with their volumes.
    needs_mount: bool,
    /// kubelet lets them grow while they are in use.
    grows_mounted: bool,
    delays: Delays,
    passes: Passes,
    pass: Option<PassSeen>,
    acts: Acts,
}

impl Cloud {
    fn new(random: &mut Random, has_roles: bool) -> Self {
        let (world, wanted) = (World::with_gates(GATES), Wanted { has_roles, ..Wanted::new(random) });
        lock(&world.server).has_clock = true;
        world.put_set(wanted.spec());
        let cloud = Self {
            world,
            wanted,
            kubelets: Kubelets::default(),
            kubelet_works: true,
            hooks_answer: true,
            storage_works: true,
            needs_mount: random.chance(50),
            grows_mounted: random.chance(50),
            delays: Delays::default(),
            passes: Passes::default(),
            pass: None,
            acts: Acts::default(),
        };
        cloud.put_class();
        cloud.put_order();
        cloud
    }

    fn wake(&mut self) {
        self.passes.wake();
    }

    fn put(&mut self) {
        self.world.put_set(self.wanted.spec());
        let image = self.wanted.other_image;
        self.world.put_overrides(
            image.map_or(Value::Null, |image| json!([{"ordinals": "1-2", "containers": {"main": {"image": image}}}])),
        );
        self.wake();
    }

    /// Writes one Pod, as kubelet, a user or a fault does. The watch delivers it later. False: remove it.
    fn write_pod(&self, name: &str, change: impl FnOnce(&mut Value) -> bool) {
        let path = format!("{PODS}{name}");
        let mut server = lock(&self.world.server);
        let Some(mut pod) = server.objects.get(&path).cloned() else { return };
        if change(&mut pod) {
            server.put(&path, pod);
        } else {
            server.objects.remove(&path);
        }
    }

    /// What kubelet has to do about a Pod now; else when.
    fn kubelet(&mut self, name: &str, pod: &Value, random: &mut Random) -> Result<String, Option<Duration>> {
        if !self.kubelet_works {
            return Err(None);
        }
        if pod["spec"]["nodeName"].is_null() {
            self.write_pod(name, |pod| {
                pod["spec"]["nodeName"] = "n".into();
                pod["status"]["phase"] = "Pending".into();
                true
            });
            return Ok(format!("{name} is placed"));
        }
        let living = match self.kubelets.look(pod, random.duration(Duration::from_secs(3))) {
            Look::Waits(after) => return Err(after),
            Look::Ended => {
                self.write_pod(name, |_| false);
                return Ok(format!("{name} has gone"));
            }
            Look::Lives(living) => living,
        };
        if living.has(labels::CONDITION_INPLACE_UPDATE_READY) && !living.has(labels::CONDITION_KRUISE_POD_READY) {
            // The manager's controller of that condition sees to Pods that did not get it with their first one.
            let change = json!({"conditions": [{"type": labels::CONDITION_KRUISE_POD_READY, "status": "True"}]});
            self.write_pod(name, |pod| {
                strategic(&mut pod["status"], &change);
                true
            });
            return Ok(format!("{name} gets KruisePodReady"));
        }
        let (was, at) = (living.has("Ready").then(|| living.is_true("Ready")), clock::now().wall.to_string());
        let Living { image, runs, ready, statuses, starts_in, .. } = living;
        if pod["status"]["containerStatuses"] == statuses && was == Some(ready) {
            return Err(starts_in);
        }
        self.write_pod(name, |pod| {
            pod["status"]["containerStatuses"] = statuses;
            if runs {
                pod["status"]["phase"] = "Running".into();
            }
            if was != Some(ready) {
                let status = if ready { "True" } else { "False" };
                let change = json!({"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": at}]});
                strategic(&mut pod["status"], &change);
            }
            true
        });
        Ok(format!("kubelet: {name} runs {image}: {runs}, ready: {ready}"))
    }

    /// The watches deliver to the controller one Pod or claim that has changed.
    fn deliver(&mut self) -> Option<String> {
        let controller = &self.world.controller;
        let (there, claims) = (self.world.objects(PODS), self.world.objects(CLAIMS));
        let version = |object: &Value| object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        let key = |name: &str| ObjectKey::new("ns", name);
        for known in controller.context.pods.list() {
            if there.get(known.name()).is_none_or(|pod| pod["metadata"]["uid"] != known.uid()) {
                controller.context.pods.remove(&key(known.name()), Some(known.uid()));
                let said = format!("watch: {} has gone", known.name());
                self.wake();
                return Some(said);
            }
        }
        for (name, pod) in there {
            let known = controller.context.pods.get(&key(&name));
            if known.is_none_or(|known| known.resource_version().map(str::to_owned) != version(&pod)) {
                controller.context.pods.upsert(serde_json::from_value(pod).unwrap());
                self.wake();
                return Some(format!("watch: {name}"));
            }
        }
        for known in controller.claims.list() {
            let uid = known.metadata.uid.as_deref();
            if claims.get(known.name()).is_none_or(|claim| claim["metadata"]["uid"].as_str() != uid) {
                controller.claims.remove(&key(known.name()), uid);
                let said = format!("watch: {} has gone", known.name());
                self.wake();
                return Some(said);
            }
        }
        for (name, claim) in claims {
            let known = controller.claims.get(&key(&name));
            if known.is_none_or(|known| known.metadata.resource_version != version(&claim)) {
                controller.claims.upsert(serde_json::from_value(claim).unwrap());
                self.wake();
                return Some(format!("watch: {name}"));
            }
        }
        None
    }

    /// The garbage collector deletes one claim whose owners are all gone.
    fn collect_garbage(&self) -> Option<String> {
        let (pods, claims) = (self.world.objects(PODS), self.world.objects(CLAIMS));
        let is_there =
            |owner: &Value| owner["kind"] != "Pod" || pods.values().any(|pod| pod["metadata"]["uid"] == owner["uid"]);
        let goes = |claim: &Value| {
            let owners = claim["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
            !owners.is_empty() && !owners.iter().any(is_there)
        };
        let (name, _) = claims.iter().find(|(_, claim)| goes(claim))?;
        lock(&self.world.server).objects.remove(&format!("{CLAIMS}{name}"));
        Some(format!("garbage collector: {name}"))
    }

    async fn pass(&mut self) -> Result<String, String> {
        let knew = self.world.controller.context.pods.list();
        let knew = knew.iter().filter_map(|pod| Member::of(pod)).map(|member| (member.ordinal, member)).collect();
        let there = self.world.objects(PODS).into_keys().collect();
        let claims = self.world.controller.claims.list();
        let owners = claims.iter().flat_map(|claim| claim.owners()).filter(|owner| owner.kind == "Pod");
        let owners = owners.map(|owner| owner.uid.clone()).collect();
        self.world.writes();
        let next = self.world.controller.reconcile(&ObjectKey::new("ns", "web")).await;
        let writes = self.world.writes();
        self.passes.note(&next)?;
        let sent: Vec<String> = writes
            .iter()
            .filter(|(_, path, _)| !path.ends_with("/statefulsets/web/status"))
            .map(|(method, path, body)| {
                format!(
                    "{method} {} {}",
                    path.rsplit_once("/ns/").map_or(&**path, |(_, p)| p),
                    body["metadata"]["name"]
                )
            })
            .collect();
        self.pass = Some(PassSeen { knew, there, owners, writes });
        Ok(format!("pass: {next:?} {}", sent.join("; ")))
    }

    /// The manager starts anew: it has forgotten everything, and has read everything.
    fn restart(&mut self) {
        let world = World::of(self.world.server.clone(), GATES);
        let set = lock(&self.world.server).objects[SET].clone();
        world.controller.sets.upsert(serde_json::from_value(set).unwrap());
        self.world = world;
        while self.deliver().is_some() {}
        self.wake();
    }

    fn disturb_pod(&mut self, what: usize, random: &mut Random) -> String {
        let names: Vec<String> = self.world.objects(PODS).into_keys().collect();
        let Some(name) = random.one_of(&names).cloned() else { return "nothing".into() };
        self.write_pod(&name, |pod| played::harm(what, pod));
        format!("{name} {}", played::HARMS[what.min(3)])
    }
}

impl Driver for Cloud {
    type Seen = Now;

    async fn disturb(&mut self, random: &mut Random) -> Result<String, String> {
        if self.wanted.has_roles && random.chance(20) {
            return Ok(self.elect(random));
        }
        let wanted = &mut self.wanted;
        let said = match random.below(30) {
            0 | 1 => {
                wanted.replicas = random.below(5);
                format!("replicas {}", wanted.replicas)
            }
            2..=4 => {
                wanted.image = ["i:1", "i:2", "i:3", "bad:1"][random.below(4)];
                format!("image {}", wanted.image)
            }
            5 | 6 => {
                wanted.other_image = [None, Some("o:1"), Some("o:2"), Some("bad:2")][random.below(4)];
                format!("image of ordinals 1 and 2 {:?}", wanted.other_image)
            }
            7 => {
                wanted.reserved = [vec![], vec![0], vec![1], vec![1, 2]][random.below(4)].clone();
                format!("reserved {:?}", wanted.reserved)
            }
            8 => {
                wanted.partition = random.below(4);
                format!("partition {}", wanted.partition)
            }
            9 => {
                wanted.paused = !wanted.paused;
                format!("paused {}", wanted.paused)
            }
            10 => {
                wanted.policy = ["ReCreate", "InPlaceIfPossible"][random.below(2)];
                format!("policy {}", wanted.policy)
            }
            11 => {
                self.kubelet_works = !self.kubelet_works;
                format!("kubelet works: {}", self.kubelet_works)
            }
            12 => {
                self.restart();
                "the manager starts anew".into()
            }
            13 => {
                let faults = [
                    (Method::PATCH, 409),
                    (Method::PATCH, 500),
                    (Method::DELETE, 403),
                    (Method::POST, 500),
                    (Method::POST, 504),
                    (Method::DELETE, 504),
                ];
                let (method, code) = faults[random.below(faults.len())].clone();
                let below = [PODS, CLAIMS][random.below(2)].trim_end_matches('/').to_owned();
                lock(&self.world.server).faults.push((method.clone(), below, code));
                format!("the next {method} is answered {code}")
            }
            18 => {
                wanted.deletes_claims = !wanted.deletes_claims;
                format!("claims go with surplus Pods: {}", wanted.deletes_claims)
            }
            19..=22 => {
                wanted.storage = [1, 2, 3, TOO_LARGE, TOO_LARGE][random.below(5)];
                format!("claims of {} GiB", wanted.storage)
            }
            23 => {
                wanted.grows = !wanted.grows;
                format!("claims grow: {}", wanted.grows)
            }
            24 => {
                wanted.may_grow = !wanted.may_grow;
                format!("the StorageClass is to let volumes grow: {}", wanted.may_grow)
            }
            25 => {
                self.storage_works = !self.storage_works;
                format!("storage works: {}", self.storage_works)
            }
            26 => {
                (self.needs_mount, self.grows_mounted) = (random.chance(50), random.chance(50));
                format!("file systems wait for a mount: {}, of any Pod: {}", self.needs_mount, self.grows_mounted)
            }
            27 | 28 => self.change_hook(random.below(2)),
            29 => {
                self.hooks_answer = !self.hooks_answer;
                format!("hooks are answered: {}", self.hooks_answer)
            }
            what => self.disturb_pod(what - 14, random),
        };
        self.put();
        Ok(said)
    }

    async fn make_possible(&mut self) -> Result<String, String> {
        (self.kubelet_works, self.storage_works) = (true, true);
        lock(&self.world.server).faults.clear();
        for which in 0..2 {
            // Nobody will ever answer.
            if !self.hooks_answer && self.wanted.hooks[which] {
                self.change_hook(which);
            }
        }
        let wanted = &mut self.wanted;
        wanted.paused = false;
        wanted.partition = 0;
        wanted.other_image = wanted.other_image.filter(|image| !image.starts_with("bad"));
        if wanted.image.starts_with("bad") {
            wanted.image = "i:4";
        }
        wanted.may_grow = true;
        if wanted.storage == TOO_LARGE {
            wanted.storage = 4;
        }
        self.put();
        Ok(format!("{:?}", self.wanted))
    }

    async fn step(&mut self, random: &mut Random) -> Result<Step, String> {
        self.pass = None;
        let mut next: Option<Duration> = None;
        let mut later = |after: Option<Duration>| next = [next, after].into_iter().flatten().min();
        // Who comes first is for the seed to say.
        let first = random.below(6);
        for turn in 0..6 {
            match (first + turn) % 6 {
                0 => {
                    if let Some(said) = self.deliver() {
                        return Ok(Step::Worked(said));
                    }
                }
                1 => match self.passes.due {
                    Some(due) if due <= mono() => return Ok(Step::Worked(self.pass().await?)),
                    due => later(due.map(|due| due - mono())),
                },
                2 => {
                    if let Some(said) = self.collect_garbage() {
                        return Ok(Step::Worked(said));
                    }
                }
                3 => match self.storage(random) {
                    Ok(said) => return Ok(Step::Worked(said)),
                    Err(after) => later(after),
                },
                4 => {
                    for (name, pod) in self.world.objects(PODS) {
                        match self.answer(&name, &pod, random) {
                            Ok(said) => return Ok(Step::Worked(said)),
                            Err(after) => later(after),
                        }
                    }
                }
                _ => {
                    for (name, pod) in self.world.objects(PODS) {
                        match self.kubelet(&name, &pod, random) {
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
        let pods = self.world.objects(PODS);
        let members = pods.into_values().filter_map(|pod| Member::of(&serde_json::from_value(pod).ok()?));
        let set = lock(&self.world.server).objects[SET].clone();
        let revisions = self.world.objects(REVISIONS).into_iter().map(|(name, revision)| {
            let image = revision.pointer("/data/spec/template/spec/containers/0/image").and_then(Value::as_str);
            (name, image.unwrap_or_default().to_owned())
        });
        let claims = self.world.objects(CLAIMS);
        Ok(Now {
            at: clock::now().wall,
            wanted: self.wanted.clone(),
            generation: set["metadata"]["generation"].as_i64().unwrap_or_default(),
            status: set["status"].clone(),
            pods: members.map(|member| (member.ordinal, member)).collect(),
            sizes: claims.iter().map(|(name, claim)| (name.clone(), Size::of(claim))).collect(),
            claims: claims.into_keys().collect(),
            may_grow: self.lets_volumes_grow(),
            revisions: revisions.collect(),
            pass: self.pass.take(),
        })
    }
}

#[derive(Default)]
struct Promises {
    acts: Acts,
    claims: BTreeSet<String>,
    /// Pods and claims before the last step.
    pods: BTreeMap<i64, Member>,
    sizes: BTreeMap<String, Size>,
    /// The image of the Pods that the partition keeps: the last one that all Pods had.
    current: Option<String>,
}

/// Whether a pass may have seen every wanted Pod updated and Ready: as it began, or in the answers to its writes.
fn may_be_complete(now: &Now, pass: &PassSeen) -> bool {
    let is_updated = |pod: &Member| {
        let image = now.revisions.get(&pod.revision);
        !pod.is_deleting && pod.ready_with_gate.is_some() && image.is_some_and(|image| image == now.wanted.image)
    };
    let ordinals = now.wanted.ordinals();
    if ordinals.is_empty() {
        return now.wanted.partition == 0;
    }
    let seen = [&pass.knew, &now.pods];
    ordinals.iter().all(|ordinal| seen.iter().any(|pods| pods.get(ordinal).is_some_and(is_updated)))
}

/// The ordinal of the Pod that a write is about.
fn pod_written(path: &str) -> Option<i64> {
    path.strip_prefix(PODS)?.trim_end_matches("/status").strip_prefix("web-")?.parse().ok()
}

/// Whether a write gives the gate for updates in place this status.
fn writes_gate(body: &Value, status: &str) -> bool {
    let mut conditions = body["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|c| c["type"] == labels::CONDITION_INPLACE_UPDATE_READY && c["status"] == status)
}

/// The state of its lifecycle that a write gives a Pod.
fn writes_state(body: &Value) -> &str {
    body["metadata"]["labels"][labels::LIFECYCLE_STATE].as_str().unwrap_or_default()
}

impl Promises {
    /// Pods that went, or were updated, although a hook held them, or although they were to stay when it had let go.
    fn passed_hooks(&mut self, now: &Now, pass: &PassSeen) -> Vec<String> {
        let (wanted, ordinals) = (&now.wanted, now.wanted.ordinals());
        let mut wrongs = Vec::new();
        for (method, path, body) in &pass.writes {
            let Some(ordinal) = pod_written(path) else { continue };
            match writes_state(body) {
                "PreparingDelete" => self.acts.note("deletions announced"),
                "PreparingUpdate" => self.acts.note("updates announced"),
                _ => {}
            }
            let goes = *method == Method::DELETE;
            if !goes && !writes_gate(body, "False") {
                continue;
            }
            // What no watch has brought yet, nobody could know.
            let (Some(knew), Some(was)) = (pass.knew.get(&ordinal), self.pods.get(&ordinal)) else { continue };
            if knew.uid != was.uid {
                continue;
            }
            let (hook, done) = if goes { (0, "deleted") } else { (1, "updated") };
            // What comes on top of an update that is under way was let through with that one.
            let is_held = wanted.hooks[hook] && knew.holds[hook] && was.holds[hook];
            if is_held && (goes || knew.state != "Updating") {
                wrongs.push(format!("web-{ordinal} is {done}, and its hook holds it"));
            }
            let rank = ordinals.iter().position(|wanted| *wanted == ordinal);
            let is_kept = rank.is_some_and(|rank| rank < wanted.partition || wanted.paused);
            let has_waited = WAITS.contains(&knew.state.as_str()) && knew.state == was.state;
            let has_to_go = [knew, was].iter().any(|pod| pod.is_marked || pod.has_failed || pod.is_deleting);
            if is_kept && has_waited && !has_to_go {
                wrongs.push(format!("web-{ordinal} is {done} when its hook has let go, and it is held by now"));
            }
        }
        wrongs
    }

    /// Pods that served and were taken out before those of earlier places were done, as the pass knew them.
    fn out_of_turn(&mut self, now: &Now, pass: &PassSeen) -> Vec<String> {
        let (wanted, ordinals) = (&now.wanted, now.wanted.ordinals());
        let mut wrongs = Vec::new();
        if !wanted.has_roles {
            return wrongs;
        }
        // Whether the first write of a Pod takes it out. The answer to another one brings what the pass did not know.
        let mut first = BTreeMap::new();
        for (method, path, body) in &pass.writes {
            if let Some(ordinal) = pod_written(path) {
                let is_announced = WAITS.contains(&writes_state(body));
                first.entry(ordinal).or_insert(*method == Method::DELETE || writes_gate(body, "False") || is_announced);
            }
        }
        for ordinal in first.iter().filter(|(_, takes_out)| **takes_out).map(|(ordinal, _)| ordinal) {
            let (Some(knew), Some(was)) = (pass.knew.get(ordinal), self.pods.get(ordinal)) else { continue };
            if !ordinals.contains(ordinal) || knew.is_marked || !knew.is_up(now.at, wanted.min_ready) {
                continue;
            }
            let place = knew.place.min(was.place);
            let comes_before = |(rank, other): &(usize, &i64)| {
                let Some(pod) = pass.knew.get(*other) else { return place > 0 };
                let is_old = *rank >= wanted.partition && pod.image != wanted.image_of(**other);
                let is_done = pod.is_up(now.at, wanted.min_ready) && !is_old;
                pod.place < place && !is_done && first.get(*other) != Some(&false)
            };
            match ordinals.iter().enumerate().find(comes_before) {
                Some((_, other)) => wrongs.push(format!("web-{ordinal} goes before web-{other}, by their roles")),
                None if place > 0 => self.acts.note("taken out in their turn"),
                None => {}
            }
        }
        wrongs
    }

    /// Claims that were asked for what nobody wants of them, and not by the rules of the update.
    fn asked_wrong(&mut self, now: &Now, pass: &PassSeen) -> Vec<String> {
        let (wanted, ordinals) = (&now.wanted, now.wanted.ordinals());
        let mut wrongs = Vec::new();
        for (_, path, body) in &pass.writes {
            let Some(name) = path.strip_prefix(CLAIMS) else { continue };
            let Some(asks) = gib_of(&body["spec"]["resources"]["requests"]["storage"]) else { continue };
            let Some(was) = self.sizes.get(name) else { continue };
            let is_done = now.sizes.get(name).is_some_and(|size| size.asked == asks);
            if is_done {
                self.acts.note(if asks < was.asked { "claims asked for less" } else { "claims asked to grow" });
            }
            let ordinal: Option<i64> = name.strip_prefix("data-web-").and_then(|ordinal| ordinal.parse().ok());
            let rank = ordinals.iter().position(|wanted| Some(*wanted) == ordinal);
            let is_due = wanted.grows && !wanted.paused && rank.is_some_and(|rank| rank >= wanted.partition);
            if !is_due || asks != wanted.storage {
                wrongs.push(format!("{name} is asked for {asks} GiB by {wanted:?}"));
            }
            if is_done && asks > was.asked && !now.may_grow {
                wrongs.push(format!("{name} is asked for {asks} GiB, and its StorageClass lets nothing grow"));
            }
        }
        wrongs
    }

    /// Claims that have less than before, or ask for less than they have.
    fn shrunk(&self, now: &Now) -> Vec<String> {
        let shrunk = |(name, size): (&String, &Size)| {
            let was = self.sizes.get(name)?;
            let is_wrong = size.has < was.has || size.asked < size.has && was.asked >= was.has;
            is_wrong.then(|| format!("claim {name} shrinks: {was:?}, now {size:?}"))
        };
        now.sizes.iter().filter_map(shrunk).collect()
    }

    /// What happened to the claims of Pods, so that a run without it fails.
    fn note_claims(&mut self, now: &Now) {
        let mut conditions = now.status["conditions"].as_array().into_iter().flatten();
        let is_refused = |message: &str| message.contains("does not allow volume expansion");
        if conditions.any(|c| c["status"] == "True" && c["message"].as_str().is_some_and(is_refused)) {
            self.acts.note("StorageClasses that let nothing grow");
        }
        let Some(pass) = &now.pass else { return };
        let gone = pass.writes.iter().filter(|(method, ..)| *method == Method::DELETE);
        for ordinal in gone.filter_map(|(_, path, _)| pod_written(path)) {
            let waits = self.sizes.get(&format!("data-web-{ordinal}")).is_some_and(|size| size.waits);
            let is_right = |pod: &Member| {
                pod.image == now.wanted.image_of(ordinal) && !(pod.is_marked || pod.has_failed || pod.is_deleting)
            };
            let is_wanted = now.wanted.ordinals().contains(&ordinal);
            if waits && is_wanted && pass.knew.get(&ordinal).is_some_and(is_right) {
                self.acts.note("replaced for a mount");
            }
        }
    }

    /// New Pods that are not wanted, or have another image than their place gives them.
    fn made_wrong(&self, now: &Now, pass: &PassSeen) -> Vec<String> {
        let (wanted, ordinals) = (&now.wanted, now.wanted.ordinals());
        let kept = self.current.as_deref().unwrap_or(wanted.image);
        let made = pass.writes.iter().filter(|(method, path, _)| *method == Method::POST && path.ends_with("/pods"));
        let wrong = |(_, _, body): &(Method, String, Value)| {
            let ordinal: i64 = body["metadata"]["name"].as_str()?.strip_prefix("web-")?.parse().ok()?;
            let rank = ordinals.iter().position(|wanted| *wanted == ordinal);
            let of_template = if rank.is_some_and(|rank| rank < wanted.partition) { kept } else { wanted.image };
            let want = wanted.with_override(ordinal, of_template);
            let image = body["spec"]["containers"][0]["image"].as_str().unwrap_or_default();
            (rank.is_none() || image != want).then(|| format!("web-{ordinal} is made with {image}, want {want}"))
        };
        made.filter_map(wrong).collect()
    }

    /// The current revision moves only when a roll-out is done.
    fn moved_wrong(&mut self, now: &Now, pass: &PassSeen) -> Option<String> {
        let image = now.revisions.get(now.status["currentRevision"].as_str()?)?.clone();
        let before = self.current.replace(image.clone());
        let stays = before.is_none_or(|before| before == image);
        let is_done = image == now.wanted.image && may_be_complete(now, pass);
        (!stays && !is_done).then(|| format!("the current image is {image}, and the roll-out is not done"))
    }

    /// What one pass may not do, by what it knew.
    fn judge(&mut self, now: &Now, pass: &PassSeen) -> Vec<String> {
        let mut wrongs = Vec::new();
        let (wanted, ordinals) = (&now.wanted, now.wanted.ordinals());
        let is_up = |ordinal: &i64| pass.knew.get(ordinal).is_some_and(|pod| pod.is_up(now.at, wanted.min_ready));
        // A write that was refused takes nobody down.
        let stays = |ordinal: &i64| now.pods.get(ordinal).is_some_and(|pod| pod.is_up(now.at, wanted.min_ready));
        let (mut taken, mut opened, mut created) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        for (method, path, body) in &pass.writes {
            if *method == Method::DELETE && !path.starts_with(PODS) && !path.starts_with(REVISIONS) {
                wrongs.push(format!("DELETE {path}"));
            }
            if *method == Method::DELETE && body["gracePeriodSeconds"] == 0 {
                wrongs.push(format!("{path} is deleted by force"));
            }
            if *method == Method::POST && path.ends_with("/pods") {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                created.extend(name.strip_prefix("web-").and_then(|ordinal| ordinal.parse::<i64>().ok()));
            }
            let Some(ordinal) = pod_written(path) else { continue };
            if *method == Method::DELETE {
                let uid = body["preconditions"]["uid"].as_str().unwrap_or_default();
                if ordinals.contains(&ordinal) && pass.owners.contains(uid) {
                    wrongs.push(format!("web-{ordinal} is wanted and is deleted, and its claim goes with it"));
                }
                taken.insert(ordinal);
                self.acts.note("deleted");
            } else if writes_gate(body, "False") {
                taken.insert(ordinal);
                self.acts.note("updated in place");
            } else if WAITS.contains(&writes_state(body)) {
                // It counts as unavailable while its hook has not let go.
                taken.insert(ordinal);
            } else if writes_state(body) == "Normal" || writes_state(body) != "Updated" && writes_gate(body, "True") {
                // One that is Updated waits for its hook, which is to hold it again.
                opened.insert(ordinal);
            }
        }
        self.acts.add("created", created.len() as u64);
        // A silent kubelet has not seen the update: the Pod has been Ready all the time, and the same pass opens its gate.
        let is_back = |ordinal: &i64| {
            let member = pass.knew.get(ordinal).map(|pod| Member { ready_since: pod.ready_with_gate, ..pod.clone() });
            opened.contains(ordinal) && member.is_some_and(|pod| pod.is_up(now.at, wanted.min_ready))
        };
        for ordinal in &created {
            if pass.knew.contains_key(ordinal) && pass.there.contains(&format!("web-{ordinal}")) {
                wrongs.push(format!("web-{ordinal} is made while its namesake is there"));
            }
            let serves =
                |lower: &i64| pass.knew.get(lower).is_some_and(|pod| pod.serves_until_hook(now.at, wanted.min_ready));
            let blocks = |lower: &&i64| !is_up(lower) && !is_back(lower) && !serves(lower);
            if wanted.ordered && ordinals.iter().take_while(|lower| *lower < ordinal).any(|lower| blocks(&lower)) {
                wrongs.push(format!("web-{ordinal} is made before a lower one is available"));
            }
        }
        let taken: Vec<i64> = taken
            .into_iter()
            .filter(|ordinal| ordinals.contains(ordinal) && is_up(ordinal) && !stays(ordinal))
            .collect();
        let down = ordinals.iter().filter(|ordinal| !is_up(ordinal) && !opened.contains(*ordinal)).count();
        let limit = if wanted.ordered { 1 } else { wanted.max_unavailable };
        if !taken.is_empty() && down + taken.len() > limit {
            wrongs.push(format!("{taken:?} are taken down while {down} are, and {limit} may be"));
        }
        for ordinal in taken.iter().filter(|ordinal| !pass.knew[*ordinal].is_marked) {
            let rank = ordinals.iter().filter(|lower| *lower < ordinal).count();
            if rank < wanted.partition || wanted.paused {
                wrongs.push(format!("web-{ordinal} is updated, and it is held"));
            }
        }
        wrongs
    }
}

impl Model for Promises {
    type Seen = Now;

    fn wrongs(&mut self, now: &Now) -> Vec<String> {
        let gone: Vec<String> = self.claims.difference(&now.claims).cloned().collect();
        self.acts.add("claims that went", gone.len() as u64);
        self.claims.clone_from(&now.claims);
        let is_used = |claim: &&String| {
            let ordinal = claim.strip_prefix("data-web-").and_then(|ordinal| ordinal.parse::<i64>().ok());
            ordinal.and_then(|ordinal| now.pods.get(&ordinal)).is_some_and(|pod| !pod.is_deleting)
        };
        let lost = gone.iter().filter(is_used);
        let mut wrongs: Vec<String> = lost.map(|claim| format!("claim {claim} is lost to its Pod")).collect();
        if let Some(pass) = &now.pass {
            wrongs.extend(self.judge(now, pass));
            wrongs.extend(self.made_wrong(now, pass));
            wrongs.extend(self.moved_wrong(now, pass));
            wrongs.extend(self.passed_hooks(now, pass));
            wrongs.extend(self.out_of_turn(now, pass));
            wrongs.extend(self.asked_wrong(now, pass));
        }
        wrongs.extend(self.shrunk(now));
        self.note_claims(now);
        self.pods.clone_from(&now.pods);
        self.sizes.clone_from(&now.sizes);
        wrongs
    }

    fn missing(&self, now: &Now) -> Vec<String> {
        let (wanted, ordinals) = (&now.wanted, now.wanted.ordinals());
        let mut missing = Vec::new();
        let mut ask = |is_so: bool, what: String| {
            if !is_so {
                missing.push(what);
            }
        };
        let there: Vec<i64> = now.pods.keys().copied().collect();
        ask(there == ordinals, format!("Pods {there:?}, wanted {ordinals:?}"));
        for pod in now.pods.values() {
            let is_right = pod.is_up(now.at, wanted.min_ready)
                && pod.image == wanted.image_of(pod.ordinal)
                && !(pod.is_marked || pod.is_deleting);
            ask(is_right, format!("{pod:?}"));
            let claim = format!("data-web-{}", pod.ordinal);
            ask(!wanted.claims || now.claims.contains(&claim), format!("claim {claim}"));
            let is_large = now.sizes.get(&claim).is_some_and(|size| size.has >= wanted.storage);
            ask(!(wanted.claims && wanted.grows) || is_large, format!("claim {claim} of {} GiB", wanted.storage));
        }
        for field in ["replicas", "readyReplicas", "availableReplicas", "updatedReplicas", "currentReplicas"] {
            ask(now.status[field] == wanted.replicas, format!("status.{field} is {}", now.status[field]));
        }
        ask(now.status["observedGeneration"] == now.generation, "the status is about an older spec".into());
        let conditions = now.status["conditions"].as_array().into_iter().flatten();
        let is_ready = conditions.clone().any(|c| c["type"] == "Ready" && c["status"] == "True");
        ask(is_ready, format!("Ready: {:?}", conditions.collect::<Vec<_>>()));
        missing
    }
}

fn history(seed: u64) -> Result<Acts, String> {
    let limits = Limits { changes: 22, steps_between: 30, patience: Duration::from_secs(7200), ..Limits::default() };
    let begin = |random: &mut Random| (Cloud::new(random, seed / 60 % 2 == 1), Promises::default());
    let acts = |mut cloud: Cloud, model: Promises| {
        cloud.acts.merge(model.acts);
        cloud.acts
    };
    fake::history(seed, &limits, begin, |cloud| format!("{:?}", cloud.wanted), acts)
}

#[test]
fn simulation_of_stateful_sets() {
    let acts = liveness::seeds(75, "simulation_of_stateful_sets", history);
    acts.require(&[
        ("created", 300),
        ("deleted", 200),
        ("updated in place", 50),
        ("claims that went", 5),
        ("deletions announced", 20),
        ("updates announced", 5),
        ("hooks that let go", 20),
        ("hooks that hold again", 5),
        ("hooks that were removed while a Pod waited", 1),
        ("elections", 10),
        ("taken out in their turn", 1),
        ("claims asked to grow", 20),
        ("claims asked for less", 1),
        ("claims that have grown", 10),
        ("claims that are refused their size", 1),
        ("claims that wait for a mount", 5),
        ("claims that were mounted", 5),
        ("replaced for a mount", 1),
        ("StorageClasses that let nothing grow", 5),
    ]);
}
