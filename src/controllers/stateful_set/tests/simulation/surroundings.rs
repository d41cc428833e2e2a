//! Who answers for the hooks of the set, the roles of its Pods, and the storage that makes its volumes and lets them
//! grow.

use super::*;

/// Labels with which hooks hold a Pod: before its deletion, and before its update in place.
pub(super) const HOLDS: [&str; 2] = ["holds-deletion", "holds-update"];

/// The states in which it waits for them.
pub(super) const WAITS: [&str; 2] = ["PreparingDelete", "PreparingUpdate"];

/// The label by whose value they are updated in order.
pub(super) const ROLE: &str = "role";

/// What no volume gets, in GiB.
pub(super) const TOO_LARGE: u64 = 99;

const CLASS: &str = "/apis/storage.k8s.io/v1/storageclasses/fast";

/// When others than the controller do what they have to do: each thing takes its time, and some take long.
#[derive(Default)]
pub(super) struct Delays(BTreeMap<String, Duration>);

impl Delays {
    /// How long a thing still takes. None: it is done now.
    fn left(&mut self, what: String, random: &mut Random) -> Option<Duration> {
        let most = Duration::from_secs(if random.chance(20) { 200 } else { 10 });
        let (now, takes) = (mono(), random.duration(most));
        let at = *self.0.entry(what.clone()).or_insert(now + takes);
        if now < at {
            return Some(at - now);
        }
        self.0.remove(&what);
        None
    }
}

impl Cloud {
    /// A user adds a hook, or removes it, whoever waits for it.
    pub(super) fn change_hook(&mut self, which: usize) -> String {
        let waits = |pod: &Value| pod["metadata"]["labels"][labels::LIFECYCLE_STATE] == WAITS[which];
        let (was, is_waited_for) = (self.wanted.hooks[which], self.world.objects(PODS).values().any(waits));
        if was && is_waited_for {
            self.acts.note("hooks that were removed while a Pod waited");
        }
        self.wanted.hooks[which] = !was;
        format!("hook {}: {}", HOLDS[which], !was)
    }

    /// A hook lets go of a Pod, or takes hold again of one that stays; else when.
    pub(super) fn answer(&mut self, name: &str, pod: &Value, random: &mut Random) -> Result<String, Option<Duration>> {
        let (marks, hooks) = (&pod["metadata"]["labels"], self.wanted.hooks);
        let state = marks[labels::LIFECYCLE_STATE].as_str().unwrap_or_default();
        let next = (0..2).find_map(|which: usize| {
            let is_held = marks[HOLDS[which]].is_string();
            let stays = state == "Normal" || state == "Updated" && which == 1;
            let acts = hooks[which] && if is_held { state == WAITS[which] } else { stays };
            acts.then_some((which, is_held))
        });
        let Some((which, lets_go)) = next else { return Err(None) };
        if !self.hooks_answer || pod["metadata"]["deletionTimestamp"].is_string() {
            return Err(None);
        }
        let label = HOLDS[which];
        if let Some(left) = self.delays.left(format!("{} {state} {label}", pod["metadata"]["uid"]), random) {
            return Err(Some(left));
        }
        self.write_pod(name, |pod| {
            let marks = pod["metadata"]["labels"].as_object_mut().unwrap();
            match lets_go {
                true => drop(marks.remove(label)),
                false => drop(marks.insert(label.to_owned(), "yes".into())),
            }
            true
        });
        let done = if lets_go { "hooks that let go" } else { "hooks that hold again" };
        self.acts.note(done);
        Ok(format!("{name}, {state}: {done}: {label}"))
    }

    /// A Pod gets a role: the one of each kind that there is.
    pub(super) fn elect(&mut self, random: &mut Random) -> String {
        let pods = self.world.objects(PODS);
        let names: Vec<&String> = pods.keys().collect();
        let role = if random.chance(70) { "leader" } else { "observer" };
        let Some(elected) = random.one_of(&names).copied() else { return format!("nobody is {role}") };
        for (name, pod) in &pods {
            let is_elected = name == elected;
            if !is_elected && pod["metadata"]["labels"][ROLE] != role {
                continue;
            }
            self.write_pod(name, |pod| {
                let marks = pod["metadata"]["labels"].as_object_mut().unwrap();
                match is_elected {
                    true => drop(marks.insert(ROLE.to_owned(), role.into())),
                    false => drop(marks.remove(ROLE)),
                }
                true
            });
        }
        self.acts.note("elections");
        format!("{elected} is {role}")
    }

    /// The order of updates, for a set that has one.
    pub(super) fn put_order(&self) {
        if !self.wanted.has_roles {
            return;
        }
        let set = {
            let mut server = lock(&self.world.server);
            let mut set = server.objects[SET].clone();
            set["metadata"]["annotations"][labels::UPDATE_ORDER] = "role=observer,leader".into();
            server.put(SET, set)
        };
        self.world.controller.sets.upsert(serde_json::from_value(set).unwrap());
    }

    pub(super) fn put_class(&self) {
        let class = json!({"metadata": {"name": "fast"}, "allowVolumeExpansion": self.wanted.may_grow});
        lock(&self.world.server).put(CLASS, class);
    }

    pub(super) fn lets_volumes_grow(&self) -> bool {
        lock(&self.world.server).objects[CLASS]["allowVolumeExpansion"] == true
    }

    /// The next thing that becomes of the StorageClass, or of a volume; else when. No watch of sets tells of either.
    pub(super) fn storage(&mut self, random: &mut Random) -> Result<String, Option<Duration>> {
        let (mut next, may_grow) = (None, self.wanted.may_grow);
        if self.lets_volumes_grow() != may_grow {
            next = self.delays.left(format!("class {may_grow}"), random);
            if next.is_none() {
                self.put_class();
                return Ok(format!("the StorageClass lets volumes grow: {may_grow}"));
            }
        }
        if !self.storage_works {
            return Err(next);
        }
        for (name, mut claim) in self.world.objects(CLAIMS) {
            let Some((done, status)) = self.volume(&name, &claim) else { continue };
            let asked = &claim["spec"]["resources"]["requests"]["storage"];
            let left = self.delays.left(format!("{} {done} {asked}", claim["metadata"]["uid"]), random);
            if left.is_some() {
                next = [next, left].into_iter().flatten().min();
                continue;
            }
            json_patch::merge(&mut claim["status"], &status);
            lock(&self.world.server).put(&format!("{CLAIMS}{name}"), claim);
            self.acts.note(done);
            return Ok(format!("{name}: {done}"));
        }
        Err(next)
    }

    /// What is to become of the volume of a claim, and the changes of its status.
    fn volume(&self, name: &str, claim: &Value) -> Option<(&'static str, Value)> {
        let (asked, status) = (gib_of(&claim["spec"]["resources"]["requests"]["storage"])?, &claim["status"]);
        let Some(has) = gib_of(&status["capacity"]["storage"]) else {
            return Some(("claims that were bound", json!({"phase": "Bound", "capacity": {"storage": gib(asked)}})));
        };
        if has >= asked {
            return None;
        }
        if asked == TOO_LARGE {
            let how = "ControllerResizeInfeasible";
            let error = json!([{"type": "ControllerResizeError", "status": "True", "message": "out of space"}]);
            let refused = json!({"allocatedResourceStatuses": {"storage": how}, "conditions": error});
            let is_new = status["allocatedResourceStatuses"]["storage"] != how;
            return is_new.then_some(("claims that are refused their size", refused));
        }
        let grown = json!({"capacity": {"storage": gib(asked)}, "allocatedResourceStatuses": null, "conditions": null});
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        let Some(waits) = conditions.find(|condition| condition["type"] == "FileSystemResizePending") else {
            if !self.needs_mount {
                return Some(("claims that have grown", grown));
            }
            let since = rfc3339(clock::now().wall);
            let waits = json!([{"type": "FileSystemResizePending", "status": "True", "lastTransitionTime": since}]);
            let waits = json!({"allocatedResourceStatuses": null, "conditions": waits});
            return Some(("claims that wait for a mount", waits));
        };
        let pod = self.world.objects(PODS).remove(name.strip_prefix("data-")?)?;
        let is_mounted = pod["spec"]["nodeName"].is_string() && pod["metadata"]["deletionTimestamp"].is_null();
        // kubelet mounts what a Pod needs when it starts.
        let is_new = pod["metadata"]["creationTimestamp"].as_str() >= waits["lastTransitionTime"].as_str();
        let grows = self.kubelet_works && is_mounted && (is_new || self.grows_mounted);
        grows.then_some(("claims that were mounted", grown))
    }
}
