//! What may never be, and what has to be in the end, in the plainest terms.

use serde_json::Map;

use super::*;
use crate::liveness::Model;

/// An image that does nothing, of the twin that is not at work.
pub(super) const EMPTY: &str = "empty:1";

/// A number, or a part of all Pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Amount {
    Number(usize),
    Percent(usize),
}

impl Amount {
    pub(super) fn value(self) -> Value {
        match self {
            Self::Number(number) => number.into(),
            Self::Percent(percent) => format!("{percent}%").into(),
        }
    }

    /// Of so many, rounded up.
    fn of(self, all: usize) -> usize {
        match self {
            Self::Number(number) => number,
            Self::Percent(percent) => (all * percent).div_ceil(100),
        }
    }
}

/// Which Pods come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rank {
    Any,
    /// Those of tier b weigh more.
    Weight,
    /// Those with a higher number in the label `turn`; those without it come before them, as OpenKruise has it.
    Turn,
}

/// What no update in place changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// The first sidecar stands twice in each Pod.
    pub(super) hot: bool,
    /// There is a second sidecar.
    pub(super) two: bool,
    /// The value of an environment variable.
    pub(super) env: usize,
}

/// What a user has asked for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    /// Of the first sidecar, and of the second one.
    pub(super) images: [&'static str; 2],
    pub(super) partition: Amount,
    pub(super) most: Amount,
    pub(super) paused: bool,
    pub(super) not_update: bool,
    /// For Pods of the other application too.
    pub(super) both_apps: bool,
    /// Only in namespaces of this team.
    pub(super) team: Option<&'static str>,
    /// Only Pods of this tier are updated.
    pub(super) tier: Option<&'static str>,
    pub(super) rank: Rank,
    /// The Pods of an application are spread over the others.
    pub(super) scatters: bool,
    /// Pods that lack the containers are evicted.
    pub(super) repairs: bool,
    pub(super) injects_nothing: bool,
    /// The revision that new Pods get.
    pub(super) pin: Option<String>,
    pub(super) history: usize,
}

/// One sidecar.
pub(super) struct Part {
    pub(super) name: &'static str,
    pub(super) image: &'static str,
    pub(super) hot: bool,
    pub(super) native: bool,
}

impl Part {
    /// The containers that it is in a Pod.
    fn names(&self) -> Vec<String> {
        match self.hot {
            true => [1, 2].map(|twin| format!("{}-{twin}", self.name)).into(),
            false => vec![self.name.to_owned()],
        }
    }
}

impl Wanted {
    pub(super) fn parts(&self) -> Vec<Part> {
        let (first, second) = match self.name {
            "cold" => ("agent", "extra"),
            "hot" => ("mesh", "meter"),
            _ => ("proxy", "none"),
        };
        let [image, other] = self.images;
        let mut parts = vec![Part { name: first, image, hot: self.shape.hot, native: self.name == "native" }];
        if self.shape.two {
            parts.push(Part { name: second, image: other, hot: false, native: false });
        }
        parts
    }

    /// All containers that it is in a Pod.
    fn names(&self) -> Vec<String> {
        self.parts().iter().flat_map(Part::names).collect()
    }

    /// Whether it is for a Pod; `teams` are those of the namespaces.
    pub(super) fn selects(&self, app: &str, namespace: &str, teams: &BTreeMap<String, String>) -> bool {
        let team = teams.get(namespace);
        let is_in = self.team.is_none_or(|wanted| team.is_some_and(|team| team == wanted));
        (app == "web" || self.both_apps) && is_in
    }

    /// Of so many Pods so many keep what they have.
    fn kept(&self, all: usize) -> usize {
        let kept = self.partition.of(all).min(all);
        let is_part = matches!(self.partition, Amount::Percent(percent) if percent < 100);
        if is_part && kept == all && all > 1 { all - 1 } else { kept }
    }

    /// Of so many Pods so many may be unavailable.
    fn limit(&self, all: usize) -> usize {
        self.most.of(all).max(1)
    }
}

/// A Pod in the plainest terms.
#[derive(Clone, Debug, Default)]
pub(super) struct Member {
    pub(super) key: String,
    pub(super) uid: String,
    namespace: String,
    app: String,
    tier: String,
    turn: Option<usize>,
    /// Another Pod is made in its place when it is evicted.
    is_replaced: bool,
    node: String,
    /// Neither deleted nor ended.
    is_open: bool,
    /// Kubelet says that it is ready.
    serves: bool,
    injected: BTreeSet<String>,
    /// SidecarSets that have updated it in place.
    updated_by: BTreeSet<String>,
    /// Those of them that have noted that it was out of service before.
    was_unavailable: BTreeSet<String>,
    /// The hash that is noted, by SidecarSet, and the revision.
    notes: BTreeMap<String, (String, String)>,
    /// The twin at work, by sidecar.
    working: BTreeMap<String, String>,
    /// What the spec says.
    images: BTreeMap<String, String>,
    /// What runs, whether it is ready.
    runs: BTreeMap<String, (String, bool)>,
    /// What its condition says, by SidecarSet.
    upgradable: BTreeMap<String, bool>,
}

/// `NAMESPACE/NAME`.
pub(super) fn key_of(pod: &PodView) -> String {
    format!("{}/{}", pod.namespace(), pod.name())
}

/// The image that an instance of a played kubelet was started with.
pub(super) fn started_with(container_id: &str) -> &str {
    container_id.trim_start_matches("c://").rsplit_once('/').map_or("", |(image, _)| image)
}

impl Member {
    pub(super) fn of(pod: &PodView) -> Self {
        let notes = pod.rare().sidecar_sets.iter().flat_map(|notes| notes.annotations.iter());
        let notes: BTreeMap<&str, &str> = notes.map(|(key, text)| (*key, &**text)).collect();
        let object = |key: &str| -> Value {
            notes.get(key).map(|text| serde_json::from_str(text).unwrap_or_default()).unwrap_or_default()
        };
        let members = |value: Value| value.as_object().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let containers = pod.spec.containers.iter().chain(&pod.spec.sidecars);
        let runs = pod.container_statuses.iter().map(|status| {
            (status.name.as_str().to_owned(), (started_with(&status.container_id).to_owned(), status.ready))
        });
        let label = |key: &str| pod.labels.get(key).unwrap_or_default().to_owned();
        Self {
            key: key_of(pod),
            uid: pod.uid().to_owned(),
            namespace: pod.namespace().to_owned(),
            app: label("app"),
            tier: label("tier"),
            is_replaced: pod.controller.is_some(),
            turn: pod.labels.get("turn").map(|turn| turn.parse().unwrap()),
            node: pod.node_name.as_str().to_owned(),
            is_open: !pod.is_deleting() && !pod.is_finished(),
            serves: pod.phase == "Running" && pod.condition_is_true("Ready"),
            injected: notes
                .get(labels::SIDECAR_SETS_INJECTED)
                .into_iter()
                .flat_map(|text| text.split(','))
                .map(str::to_owned)
                .collect(),
            updated_by: members(object(labels::SIDECAR_SET_IN_PLACE_STATE)).into_iter().map(|(set, _)| set).collect(),
            was_unavailable: members(object(labels::SIDECAR_SET_IN_PLACE_STATE))
                .into_iter()
                .filter(|(_, state)| {
                    let updated: Option<Timestamp> = state["updateTimestamp"].as_str().and_then(|at| at.parse().ok());
                    state["wasUnavailable"] == true && !(updated.is_some() && pod.ready_since > updated)
                })
                .map(|(set, _)| set)
                .collect(),
            notes: members(object(labels::SIDECAR_SET_HASH))
                .into_iter()
                .map(|(set, note)| (set, (text(&note["hash"]), text(&note["controllerRevision"]))))
                .collect(),
            working: members(object(labels::SIDECAR_SET_WORKING))
                .into_iter()
                .map(|(sidecar, twin)| (sidecar, text(&twin)))
                .collect(),
            images: containers.map(|c| (c.name.as_str().to_owned(), c.image.to_string())).collect(),
            runs: runs.collect(),
            upgradable: pod
                .conditions
                .iter()
                .find(|condition| condition.type_ == labels::CONDITION_SIDECAR_SET_UPGRADABLE)
                .map(|condition| serde_json::from_str(&condition.message).unwrap())
                .unwrap_or_default(),
        }
    }

    /// The higher one comes first.
    fn rank(&self, set: &Wanted) -> usize {
        match set.rank {
            Rank::Any => 0,
            Rank::Weight => usize::from(self.tier == "b"),
            Rank::Turn => self.turn.unwrap_or(usize::MAX),
        }
    }

    fn hash(&self, set: &Wanted) -> &str {
        self.notes.get(set.name).map_or("", |(hash, _)| hash.as_str())
    }

    fn image(&self, container: &str) -> &str {
        self.images.get(container).map_or("", String::as_str)
    }

    /// Whether an instance runs what the spec says.
    fn runs_its_image(&self, container: &str) -> bool {
        self.runs.get(container).is_some_and(|(image, _)| image == self.image(container))
    }

    /// Whether the SidecarSet has put all its containers there.
    fn has(&self, set: &Wanted) -> bool {
        let works = |part: &Part| !part.hot || self.working.contains_key(part.name);
        let is_there = |part: &Part| works(part) && part.names().iter().all(|name| self.images.contains_key(name));
        self.is_open && self.injected.contains(set.name) && set.parts().iter().filter(|part| !part.native).all(is_there)
    }

    /// The twin that is not at work.
    fn resting(&self, part: &Part) -> Option<String> {
        let working = self.working.get(part.name).filter(|_| part.hot)?;
        part.names().into_iter().find(|twin| twin != working)
    }

    /// Whether one of its containers cannot run that is none of this SidecarSet's.
    fn is_broken_besides(&self, set: &Wanted) -> bool {
        let own = set.names();
        self.images.iter().any(|(name, image)| image.starts_with("bad") && !own.contains(name))
    }

    fn runs_all(&self, set: &Wanted) -> bool {
        set.names().iter().all(|name| self.runs_its_image(name))
    }

    /// Whether it was out of service before its last update, and not because of one.
    fn was_down(&self, set: &Wanted) -> bool {
        self.was_unavailable.contains(set.name)
    }

    /// Whether the sidecars run what their specs say, and no old twin runs beside the new one.
    fn is_settled(&self, set: &Wanted) -> bool {
        let rests = |part: &Part| self.resting(part).is_none_or(|twin| self.image(&twin) == EMPTY);
        self.runs_all(set) && set.parts().iter().all(rests)
    }

    fn is_ready(&self, set: &Wanted) -> bool {
        self.serves && self.is_settled(set)
    }

    /// Whether an instance that works has still to be replaced.
    fn is_in_flight(&self, set: &Wanted) -> bool {
        let is_old = |name: &String| self.runs.get(name).is_some_and(|(_, ready)| *ready) && !self.runs_its_image(name);
        set.names().iter().any(is_old)
    }

    /// Whether its sidecars have the images that are asked for.
    fn has_images(&self, set: &Wanted) -> bool {
        set.parts().iter().all(|part| {
            let name = match part.hot {
                true => self.working.get(part.name).cloned().unwrap_or_default(),
                false => part.name.to_owned(),
            };
            self.image(&name) == part.image
        })
    }
}

/// What a pass read and wrote, in order.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// A Pod was read.
    Read(Arc<Value>),
    /// A Pod was written, before and after; whether the controller got to know.
    Wrote(Arc<Value>, Arc<Value>, bool),
    /// The status of a Pod was written, likewise.
    Marked(Arc<Value>, Arc<Value>, bool),
    /// A Pod was evicted.
    Evicted(Arc<Value>),
    /// A revision was deleted.
    Deleted(String),
    /// Something that is none of its business.
    Odd(String),
}

/// A pass of the controller: what it knew, and what it did.
pub(super) struct PassSeen {
    /// The SidecarSet as the controller knew it, and its hash; None: it is gone.
    pub(super) set: Option<(Wanted, String)>,
    pub(super) knew: BTreeMap<String, Member>,
    pub(super) teams: BTreeMap<String, String>,
    /// Minor versions of kubelets.
    pub(super) kubelets: BTreeMap<String, usize>,
    pub(super) log: Vec<Event>,
    /// The twin that serves, by UID and sidecar.
    pub(super) serving: BTreeMap<(String, String), String>,
    /// Keys of Pods that may not be taken out of service.
    pub(super) guarded: BTreeSet<String>,
    /// Keys of Pods of which a write was refused, in this pass or before.
    pub(super) refused: BTreeSet<String>,
    pub(super) is_webhook_dead: bool,
    /// Whether a budget or a fault of the API server may have kept any of the Pods as they are.
    pub(super) may_refuse: bool,
}

/// A SidecarSet that there is.
pub(super) struct Present {
    pub(super) wanted: Wanted,
    pub(super) hash: String,
    pub(super) generation: i64,
    pub(super) status: Value,
}

/// What the model judges.
pub(super) struct Now {
    pub(super) sets: Vec<Present>,
    pub(super) pods: Vec<Member>,
    pub(super) teams: BTreeMap<String, String>,
    pub(super) kubelets: BTreeMap<String, usize>,
    /// The shape that was injected, by UID and SidecarSet.
    pub(super) born: BTreeMap<String, BTreeMap<String, Shape>>,
    pub(super) serving: BTreeMap<(String, String), String>,
    /// Keys of Pods whose writes are refused.
    pub(super) refused: BTreeSet<String>,
    pub(super) revisions: BTreeSet<String>,
    pub(super) pass: Option<PassSeen>,
}

#[derive(Default)]
pub(super) struct Promises {
    pub(super) acts: Acts,
}

/// What becomes of the limits while a pass goes on.
struct Course<'a> {
    set: &'a Wanted,
    hash: &'a str,
    pass: &'a PassSeen,
    born: &'a BTreeMap<String, BTreeMap<String, Shape>>,
    known: BTreeMap<String, Member>,
    /// UIDs of Pods that something else had taken down already when they were updated in this pass: they cost nothing.
    free: BTreeSet<String>,
}

impl Course<'_> {
    /// The Pods that have the containers, as far as is known.
    fn managed(&self) -> impl Iterator<Item = &Member> {
        let is_for = |pod: &&Member| self.set.selects(&pod.app, &pod.namespace, &self.pass.teams);
        self.known.values().filter(is_for).filter(|pod| pod.has(self.set))
    }

    /// What is wrong with a write of a Pod.
    fn wrongs(&mut self, acts: &mut Acts, before: &Value, after: &Value) -> Vec<String> {
        let (was, is) = (member(before), member(after));
        let mut wrongs = changed_besides(self.set, before, after);
        let mut ask = |is_so: bool, what: &str| {
            if !is_so {
                wrongs.push(format!("{} {what}: {was:?} -> {is:?}", was.key));
            }
        };
        ask(!self.set.not_update, "is written, and the type is NotUpdate");
        ask(was.has(self.set), "is written, and the SidecarSet has not put its containers there");
        ask(
            self.set.selects(&was.app, &was.namespace, &self.pass.teams),
            "is written, and the SidecarSet is not for it",
        );
        let names = self.set.names();
        let changed: Vec<&String> = names.iter().filter(|name| was.image(name) != is.image(name)).collect();
        let may_be_free = !was.serves && (was.was_down(self.set) || !was.updated_by.contains(self.set.name));
        let is_kept = changed.is_empty() && was.was_down(self.set);
        let is_free = is.was_down(self.set);
        ask(!is_free || may_be_free || is_kept, "is to count no more, and served, or an update has taken it");
        for part in self.set.parts().iter().filter(|part| part.hot) {
            let serving = self.pass.serving.get(&(was.uid.clone(), part.name.to_owned()));
            let is_lost =
                |twin: &String| changed.contains(&twin) && was.runs.get(twin).is_some_and(|(_, ready)| *ready);
            ask(!serving.is_some_and(is_lost), "loses the twin that serves");
        }
        if was.hash(self.set) == is.hash(self.set) {
            acts.note("resets");
            let resting: Vec<String> = self.set.parts().iter().filter_map(|part| was.resting(part)).collect();
            let is_reset = |name: &&String| resting.contains(name) && is.image(name) == EMPTY;
            ask(changed.iter().all(is_reset), "is written twice for one revision");
            ask(was.working == is.working, "gets another twin to work, and not its hash");
            return wrongs;
        }
        acts.note("updates");
        self.update_wrongs(acts, &was, &is, &mut wrongs);
        wrongs
    }

    /// What is wrong with a write of a Pod's status.
    fn mark_wrongs(&self, acts: &mut Acts, before: &Value, after: &Value) -> Vec<String> {
        let (was, is, set) = (member(before), member(after), self.set);
        let mut wrongs = Vec::new();
        let mut ask = |is_so: bool, what: &str| {
            if !is_so {
                wrongs.push(format!("{} {what}: {was:?} -> {is:?}", was.key));
            }
        };
        let rest = |pod: &Value| {
            let mut pod = pod.clone();
            pod["metadata"]["resourceVersion"] = Value::Null;
            let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default().into_iter();
            let others = conditions.filter(|c| c["type"] != labels::CONDITION_SIDECAR_SET_UPGRADABLE);
            pod["status"]["conditions"] = others.collect();
            pod
        };
        ask(rest(before) == rest(after), "has more changed than one condition");
        ask(!set.not_update && !set.paused && was.has(set), "is judged, and nothing is updated");
        ask(is.upgradable.get(set.name) != was.upgradable.get(set.name), "gets the condition that it has");
        let others = was.upgradable.iter().filter(|(name, _)| *name != set.name && was.injected.contains(*name));
        ask(others.clone().all(|(name, can)| is.upgradable.get(name) == Some(can)), "loses what another set says");
        match is.upgradable.get(set.name) {
            Some(true) => {
                acts.note("conditions that say yes");
                ask(was.hash(set) == self.hash, "is said to be upgradable before it is updated");
            }
            Some(false) => {
                acts.note("conditions that say no");
                let shape = self.born.get(&was.uid).and_then(|of| of.get(set.name));
                let is_too_old = self.pass.kubelets.get(&was.node).is_some_and(|minor| *minor < 32);
                ask(was.hash(set) != self.hash, "is updated, and said not to be upgradable");
                ask(shape != Some(&set.shape) || is_too_old, "could be updated, and is said not to be upgradable");
                ask(set.tier.is_none_or(|tier| was.tier == tier), "is judged, and the selector does not fit it");
            }
            None => ask(false, "has a condition without what it is about"),
        }
        wrongs
    }

    fn update_wrongs(&mut self, acts: &mut Acts, was: &Member, is: &Member, wrongs: &mut Vec<String>) {
        let set = self.set;
        let mut ask = |is_so: bool, what: &str| {
            if !is_so {
                wrongs.push(format!("{} {what}: {was:?} -> {is:?}", was.key));
            }
        };
        ask(is.hash(set) == self.hash, "gets the hash of something else");
        ask(is.has_images(set), "gets the hash, and not the images");
        let is_respelled = |name: &String| {
            let (before, after) = (was.image(name), is.image(name));
            before != after && played::known_as(before) == played::known_as(after)
        };
        if set.names().iter().any(is_respelled) {
            acts.note("updates to the image that runs");
        }
        ask(!set.paused, "is updated, and the update is paused");
        ask(set.tier.is_none_or(|tier| was.tier == tier), "is updated, and the selector does not fit it");
        ask(!was.is_in_flight(set), "is updated before its last update was seen to end");
        let shape = self.born.get(&was.uid).and_then(|of| of.get(set.name));
        ask(shape == Some(&set.shape), "is updated, and more than images is different");
        let is_too_old = self.pass.kubelets.get(&was.node).is_some_and(|minor| *minor < 32);
        let native = set.parts().iter().any(|part| part.native && was.image(part.name) != is.image(part.name));
        ask(!(is_too_old && native), "gets an image that its kubelet ignores");
        ask(!(was.serves && self.pass.guarded.contains(&was.key)), "is taken, and its budget allows nothing");
        let all = self.managed().count();
        let old = self.managed().filter(|pod| pod.hash(set) != self.hash).count();
        ask(old > set.kept(all), "is updated, and the partition keeps it");
        if was.serves {
            // One whose reset was refused is not waited for.
            let may_run_both = |pod: &Member| self.pass.refused.contains(&pod.key) && pod.serves && pod.runs_all(set);
            let is_down = |pod: &&Member| {
                let is_new = pod.hash(set) == self.hash && !self.free.contains(&pod.uid);
                is_new && !pod.was_down(set) && !pod.is_ready(set) && !may_run_both(pod)
            };
            let down = self.managed().filter(is_down).count() + self.down_before();
            ask(down < set.limit(all), "is taken, and as many as may be are unavailable");
            acts.note("taken out of service");
        } else {
            acts.note("updated while down");
            let was_counted = self.pass.knew.get(&was.key).is_some_and(|knew| self.is_down_before(knew));
            if !was_counted {
                self.free.insert(was.uid.clone());
            }
        }
    }

    /// How many Pods an earlier update by the SidecarSet has taken down, as far as the pass knew when it began, and that have
    /// not been updated since.
    fn down_before(&self) -> usize {
        let is_old = |pod: &Member| self.known.get(&pod.key).is_none_or(|now| now.hash(self.set) != self.hash);
        self.pass.knew.values().filter(|pod| self.is_down_before(pod) && is_old(pod)).count()
    }

    /// Whether a Pod is down because of an earlier update, and gets another one or is about to end that one. What is kept by a
    /// partition or was refused, by a budget too, is not waited for.
    fn is_down_before(&self, pod: &Member) -> bool {
        let set = self.set;
        let gets_next = !pod.serves && set.kept(1) == 0 && set.tier.is_none_or(|tier| pod.tier == tier);
        self.is_upgradable(pod)
            && pod.updated_by.contains(set.name)
            && !pod.was_down(set)
            && !pod.is_ready(set)
            && pod.namespace != GUARDED
            && (pod.is_in_flight(set) || gets_next)
    }

    /// Whether an older Pod can be brought up to date in place, and no write of it was refused.
    fn is_upgradable(&self, pod: &Member) -> bool {
        let set = self.set;
        let shape = self.born.get(&pod.uid).and_then(|of| of.get(set.name));
        let is_too_old = self.pass.kubelets.get(&pod.node).is_some_and(|minor| *minor < 32);
        let is_native = set.parts().iter().any(|part| part.native && pod.image(part.name) != part.image);
        let is_for = set.selects(&pod.app, &pod.namespace, &self.pass.teams) && pod.has(set);
        is_for
            && pod.hash(set) != self.hash
            && shape == Some(&set.shape)
            && !(is_native && is_too_old)
            && !self.pass.refused.contains(&pod.key)
    }
}

/// A Pod in words, for the trace.
pub(super) fn said(pod: &Value) -> String {
    let Member { key, notes, working, images, runs, .. } = member(pod);
    format!("{key} has {images:?}, runs {runs:?}, notes {notes:?}, at work {working:?}")
}

fn member(pod: &Value) -> Member {
    // Without a null where a Pod that no kubelet has seen has no status.
    Member::of(&serde_json::from_value(crate::k8s::null::pruned(pod)).unwrap())
}

/// What else than the images of the SidecarSet's own containers and the notes of SidecarSets was changed, and notes of others.
fn changed_besides(set: &Wanted, before: &Value, after: &Value) -> Vec<String> {
    let own = set.names();
    let rest = |pod: &Value| {
        let mut pod = pod.clone();
        for list in ["containers", "initContainers"] {
            for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
                let is_injected = container["env"].as_array().into_iter().flatten().any(|v| v["name"] == "IS_INJECTED");
                if is_injected && own.iter().any(|name| container["name"] == **name) {
                    container["image"] = Value::Null;
                }
            }
        }
        for field in ["resourceVersion", "generation"] {
            pod["metadata"][field] = Value::Null;
        }
        let annotations = pod["metadata"]["annotations"].as_object_mut().unwrap();
        for twin in &own {
            for prefix in [labels::SIDECAR_SET_VERSION_PREFIX, labels::SIDECAR_SET_VERSION_ALT_PREFIX] {
                annotations.remove(&format!("{prefix}{twin}"));
            }
        }
        for key in [
            labels::SIDECAR_SET_HASH,
            labels::SIDECAR_SET_HASH_WITHOUT_IMAGE,
            labels::SIDECAR_SET_IN_PLACE_STATE,
            labels::SIDECAR_SET_WORKING,
        ] {
            let text = annotations.get(key).and_then(Value::as_str).unwrap_or("{}");
            let mut of: Map<String, Value> = serde_json::from_str(text).unwrap();
            of.remove(set.name);
            set.parts().iter().for_each(|part| drop(of.remove(part.name)));
            annotations.insert(key.into(), of.into());
        }
        pod
    };
    let (before, after) = (rest(before), rest(after));
    if before == after { Vec::new() } else { vec![format!("more than it may was changed: {before} -> {after}")] }
}

impl Course<'_> {
    /// What is wrong with an eviction.
    fn evicted_wrongs(&self, pod: &Value) -> Vec<String> {
        let (was, set) = (member(pod), self.set);
        let mut wrongs = Vec::new();
        let mut ask = |is_so: bool, what: &str| {
            if !is_so {
                wrongs.push(format!("{} {what}: {was:?}", was.key));
            }
        };
        ask(set.repairs, "is evicted, and nobody wants it repaired");
        ask(!set.injects_nothing, "is evicted, and another one would lack the containers too");
        ask(!self.pass.is_webhook_dead, "is evicted while the webhook is dead");
        ask(!was.injected.contains(set.name), "is evicted, and has the containers");
        ask(set.selects(&was.app, &was.namespace, &self.pass.teams), "is evicted, and the SidecarSet is not for it");
        ask(was.is_replaced, "is evicted, and nobody makes another one");
        ask(!(was.serves && self.pass.guarded.contains(&was.key)), "is evicted, and its budget allows nothing");
        let owner = |pod: &Value| {
            let metadata = &pod["metadata"];
            (metadata["namespace"].clone(), metadata["ownerReferences"][0]["uid"].clone())
        };
        let evicted = self.pass.log.iter().filter_map(|event| match event {
            Event::Evicted(pod) => Some(owner(pod)),
            _ => None,
        });
        let of_its_controller = evicted.filter(|other| *other == owner(pod)).count();
        ask(of_its_controller == 1, "is evicted together with another one of its controller");
        wrongs
    }

    /// Whether a Pod waits for its update as far as the pass knew when it began, and nothing is in its way.
    fn waits(&self, pod: &Member) -> bool {
        let set = self.set;
        self.is_upgradable(pod) && set.tier.is_none_or(|tier| pod.tier == tier) && pod.is_settled(set)
    }

    /// Pods that are updated while others wait that come before them. What a budget or the API server refuses leaves its place to
    /// the next one and is tried after the others, and what is spread over the others is in another order.
    fn out_of_turn(&self, acts: &mut Acts) -> Vec<String> {
        if self.set.rank == Rank::Any || self.set.scatters || self.pass.may_refuse {
            return Vec::new();
        }
        let touched = |event: &Event| match event {
            Event::Read(pod) | Event::Wrote(pod, ..) | Event::Marked(pod, ..) | Event::Evicted(pod) => {
                Some(member(pod).key)
            }
            Event::Deleted(_) | Event::Odd(_) => None,
        };
        let touched: BTreeSet<String> = self.pass.log.iter().filter_map(touched).collect();
        let is_left =
            |pod: &&Member| self.waits(pod) && !touched.contains(&pod.key) && !self.pass.refused.contains(&pod.key);
        let left: Vec<&Member> = self.pass.knew.values().filter(is_left).collect();
        let mut wrongs = Vec::new();
        for event in &self.pass.log {
            let Event::Wrote(before, after, _) = event else { continue };
            let (was, is) = (member(before), member(after));
            if was.hash(self.set) == is.hash(self.set)
                || self.pass.knew.get(&was.key).is_none_or(|pod| !self.waits(pod))
            {
                continue;
            }
            let mut others = left.iter().filter(|pod| pod.serves == was.serves);
            if !others.clone().all(|pod| pod.rank(self.set) == was.rank(self.set)) {
                acts.note("updates in turn");
            }
            if let Some(first) = others.find(|pod| pod.rank(self.set) > was.rank(self.set)) {
                wrongs.push(format!("{was:?} is updated before its turn: {first:?} comes first"));
            }
        }
        wrongs
    }
}

impl Promises {
    /// What one pass may not do, by what it knew.
    fn judge(&mut self, now: &Now, pass: &PassSeen) -> Vec<String> {
        let mut wrongs = Vec::new();
        let Some((set, hash)) = &pass.set else {
            let odd = pass.log.iter().filter(|event| !matches!(event, Event::Read(_)));
            return odd.map(|event| format!("the SidecarSet is gone: {event:?}")).collect();
        };
        let known = pass.knew.clone();
        let mut course = Course { set, hash, pass, born: &now.born, known, free: BTreeSet::new() };
        for event in &pass.log {
            match event {
                Event::Odd(what) => wrongs.push(format!("nobody asked for {what}")),
                Event::Read(pod) => drop(course.known.insert(member(pod).key.clone(), member(pod))),
                Event::Wrote(before, after, is_known) => {
                    wrongs.extend(course.wrongs(&mut self.acts, before, after));
                    if *is_known {
                        course.known.insert(member(after).key.clone(), member(after));
                    }
                }
                Event::Marked(before, after, is_known) => {
                    wrongs.extend(course.mark_wrongs(&mut self.acts, before, after));
                    if *is_known {
                        course.known.insert(member(after).key.clone(), member(after));
                    }
                }
                Event::Evicted(pod) => {
                    self.acts.note("evicted to be repaired");
                    wrongs.extend(course.evicted_wrongs(pod));
                }
                Event::Deleted(revision) => {
                    self.acts.note("revisions deleted");
                    let is_on = |pod: &Member| pod.notes.get(set.name).is_some_and(|(_, name)| name == revision);
                    if course.managed().any(is_on) || set.pin.as_ref() == Some(revision) {
                        wrongs.push(format!("revision {revision} is in use, and is deleted"));
                    }
                }
            }
        }
        wrongs.extend(course.out_of_turn(&mut self.acts));
        wrongs
    }
}

impl Model for Promises {
    type Seen = Now;

    fn wrongs(&mut self, now: &Now) -> Vec<String> {
        now.pass.as_ref().map(|pass| self.judge(now, pass)).unwrap_or_default()
    }

    fn missing(&self, now: &Now) -> Vec<String> {
        now.sets.iter().flat_map(|set| missing_of(now, set)).collect()
    }
}

/// What a SidecarSet has not reached.
fn missing_of(now: &Now, present: &Present) -> Vec<String> {
    let Present { wanted: set, hash, generation, status } = present;
    let mut missing = Vec::new();
    let mut ask = |is_so: bool, what: String| {
        if !is_so {
            missing.push(format!("{}: {what}", set.name));
        }
    };
    let is_for = |pod: &&Member| pod.is_open && set.selects(&pod.app, &pod.namespace, &now.teams);
    let managed: Vec<&Member> = now.pods.iter().filter(is_for).filter(|pod| pod.has(set)).collect();
    let uninjected = now.pods.iter().filter(is_for).filter(|pod| !pod.injected.contains(set.name)).count();
    // Its kubelet has still to see that the application is ready again, which changes the counts.
    for pod in managed.iter().filter(|pod| !pod.runs.get("main").is_some_and(|(_, ready)| *ready)) {
        ask(false, format!("its application is not ready: {pod:?}"));
    }
    let is_updated = |pod: &Member| pod.hash(set) == *hash;
    let is_too_old = |pod: &Member| {
        let native = set.parts().iter().any(|part| part.native && pod.image(part.name) != part.image);
        native && now.kubelets.get(&pod.node).is_some_and(|minor| *minor < 32)
    };
    let is_fixed = |pod: &Member| {
        let shape = now.born.get(&pod.uid).and_then(|of| of.get(set.name));
        !is_updated(pod) && (shape != Some(&set.shape) || is_too_old(pod))
    };
    let (updated, fixed) =
        (managed.iter().filter(|pod| is_updated(pod)).count(), managed.iter().filter(|pod| is_fixed(pod)).count());
    let may = |pod: &&&Member| {
        !is_updated(pod)
            && !is_fixed(pod)
            && !now.refused.contains(&pod.key)
            && set.tier.is_none_or(|tier| pod.tier == tier)
    };
    let waiting = managed.iter().filter(may).count();
    let left = (managed.len() - set.kept(managed.len())).saturating_sub(updated);
    if !set.not_update && !set.paused {
        // A Pod that is updated, and that another SidecarSet keeps broken, uses up the limit, unless it was out of service before.
        let is_broken = |pod: &&&Member| is_updated(pod) && !pod.was_down(set) && pod.is_broken_besides(set);
        let broken = managed.iter().filter(is_broken).count();
        let is_held = broken >= set.limit(managed.len());
        ask(is_held || waiting.min(left) == 0, format!("{waiting} Pods wait, and {left} may be updated"));
    }
    for pod in managed.iter().filter(|pod| !set.not_update && !set.paused && !now.refused.contains(&pod.key)) {
        let said = pod.upgradable.get(set.name);
        let is_selected = set.tier.is_none_or(|tier| pod.tier == tier);
        ask(!is_updated(pod) || said != Some(&false), format!("its condition says that it cannot be updated: {pod:?}"));
        ask(!(is_fixed(pod) && is_selected) || said == Some(&false), format!("its condition does not say so: {pod:?}"));
    }
    // What another SidecarSet keeps broken cannot be mended by this one.
    let is_mended = |pod: &Member| !now.refused.contains(&pod.key) && !pod.is_broken_besides(set);
    for pod in managed.iter().filter(|pod| is_updated(pod) && is_mended(pod)) {
        ask(pod.has_images(set), format!("it has other images: {pod:?}"));
        ask(set.not_update || pod.is_ready(set), format!("it is not ready, or both twins run: {pod:?}"));
        for part in set.parts().iter().filter(|part| part.hot) {
            let serving = now.serving.get(&(pod.uid.clone(), part.name.to_owned()));
            ask(serving.is_some(), format!("no twin of {} serves: {pod:?}", part.name));
        }
    }
    let ready = managed.iter().filter(|pod| pod.is_ready(set)).count();
    let both = managed.iter().filter(|pod| pod.is_ready(set) && is_updated(pod)).count();
    for (field, count) in [
        ("matchedPods", managed.len()),
        ("updatedPods", updated),
        ("readyPods", ready),
        ("updatedReadyPods", both),
        ("outdatedPods", managed.len() - updated),
        ("uninjectedPods", uninjected),
        ("notUpgradablePods", fixed),
    ] {
        ask(status[field] == count, format!("status.{field} is {} and not {count}", status[field]));
    }
    let conditions = || status["conditions"].as_array().into_iter().flatten();
    let has_stopped = conditions().any(|condition| {
        condition["type"] == "RepairStopped"
            && condition["status"] == "True"
            && condition["observedGeneration"] == *generation
    });
    let is_pinned_well = set.pin.as_ref().is_none_or(|pin| now.revisions.contains(pin));
    if set.repairs && !set.injects_nothing && is_pinned_well && !has_stopped {
        let lacking = now.pods.iter().filter(is_for).filter(|pod| !pod.injected.contains(set.name) && pod.is_replaced);
        ask(lacking.clone().count() == 0, format!("these are to be repaired: {:?}", lacking.collect::<Vec<_>>()));
    }
    ask(status["observedGeneration"] == *generation, "the status is about an older spec".into());
    let latest = status["latestRevision"].as_str().unwrap_or_default();
    ask(now.revisions.contains(latest), format!("there is no revision {latest}"));
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let is_true = |type_: &str| conditions.clone().any(|c| c["type"] == type_ && c["status"] == "True");
    if now.refused.is_empty() && both == updated {
        ask(is_true("Ready"), format!("it is not Ready: {status}"));
    }
    ask(is_true("Upgradable") == (fixed == 0), format!("Upgradable, and {fixed} are not: {status}"));
    missing
}
