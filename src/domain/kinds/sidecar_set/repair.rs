//! Repair of Pods that lack the containers, where the SidecarSet says so: which of them is evicted next, so that its
//! controller makes one that has them. Pure.
//!
//! One Pod of each controller is evicted at a time, and the next one only when its replacement is ready. A replacement without
//! the containers ends the repair: whatever was wrong still is.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::notes;
use crate::{
    api::{apps, labels},
    k8s::{
        pod::Owner,
        time::{Now, doubled},
    },
};

/// Value of the annotation that switches it on.
pub const EVICT: &str = "evict";

/// Controllers that make a Pod anew when one of theirs is gone: group and kind.
const RECREATE: [(&str, &str); 6] = [
    ("apps", "ReplicaSet"),
    ("apps", "StatefulSet"),
    ("apps", "DaemonSet"),
    (apps::GROUP, "CloneSet"),
    (apps::GROUP, "StatefulSet"),
    (apps::GROUP, "DaemonSet"),
];

/// Between two evictions of Pods of one controller, after the first one has been replaced; and after the first refusal.
const PAUSE: Duration = Duration::from_secs(10);
/// After many refusals.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// How long is waited for the news that a Pod goes whose eviction has had no clear answer.
const SEEN_WITHIN: Duration = Duration::from_secs(30);
/// How long a Pod in the place of an evicted one is waited for: its controller may want fewer Pods meanwhile.
const REPLACED_WITHIN: Duration = Duration::from_secs(600);

/// Whether a controller makes a Pod anew when one of its own is gone. Those of Jobs do, and their work begins anew with it.
pub fn recreates(owner: &Owner) -> bool {
    RECREATE.iter().any(|(group, kind)| owner.is(group, kind))
}

/// A Pod of a controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its UID.
    pub uid: String,
    /// `NAMESPACE/NAME`.
    pub name: String,
    /// When it was created, on the clock of the API server.
    pub created: Option<Timestamp>,
    /// It is to have the containers and lacks them.
    pub lacks: bool,
    /// It is being deleted, or has ended.
    pub is_leaving: bool,
    /// Kubelet says that it is ready.
    pub is_ready: bool,
}

/// An eviction that is not over: what is to take the place of the Pod is not there, or not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Evicted {
    uid: String,
    at: Duration,
    /// When the newest Pods at that time had been created, and their UIDs: by this clock what came later is told apart.
    newest: Option<Timestamp>,
    known: BTreeSet<String>,
}

/// How far the repair of the Pods of one controller is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    evicted: Option<Evicted>,
    refusals: u32,
    /// Nothing is tried before then, on the monotonic clock.
    not_before: Duration,
}

/// What to do about the Pods of one controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairStep {
    /// None of them lacks the containers.
    Nothing,
    /// This one is to go, by its UID.
    Evict(String),
    /// Nothing for now; None: until something happens.
    Wait(Option<Duration>),
    /// This Pod took the place of an evicted one and lacks the containers too.
    Stop(String),
}

impl Progress {
    /// Whether a Pod has gone whose place is not taken yet.
    pub fn is_under_way(&self) -> bool {
        self.evicted.is_some()
    }

    /// Whether what is to take the place of a Pod has not become ready for a long time.
    pub fn is_stuck(&self, now: Now) -> bool {
        self.evicted.as_ref().is_some_and(|evicted| now.mono >= evicted.at + REPLACED_WITHIN)
    }

    /// How long nothing is tried in any case.
    pub fn pause(&self, now: Now) -> Option<Duration> {
        let left = self.not_before.saturating_sub(now.mono);
        (!self.is_under_way() && !left.is_zero()).then_some(left)
    }

    /// What to do next. `members` are all Pods of the controller.
    pub fn step(&mut self, members: &[Member], now: Now) -> RepairStep {
        if let Some(evicted) = &self.evicted {
            match evicted.outcome(members, now) {
                Some(step) => return step,
                None => *self = Self { not_before: now.mono + PAUSE, ..Self::default() },
            }
        }
        let lacking = members.iter().filter(|pod| pod.lacks && !pod.is_leaving);
        let Some(next) = lacking.min_by_key(|pod| (pod.is_ready, pod.created, &pod.name)) else {
            return RepairStep::Nothing;
        };
        match self.pause(now) {
            Some(left) => RepairStep::Wait(Some(left)),
            None => RepairStep::Evict(next.uid.clone()),
        }
    }

    /// A Pod was evicted, or nobody knows whether it was.
    pub fn evicted(&mut self, uid: &str, members: &[Member], now: Now) {
        let newest = members.iter().filter_map(|pod| pod.created).max();
        let known = members.iter().filter(|pod| pod.created == newest).map(|pod| pod.uid.clone()).collect();
        self.evicted = Some(Evicted { uid: uid.to_owned(), at: now.mono, newest, known });
    }

    /// It was refused: by a budget, by the API server, or because another Pod would lack the containers as well.
    pub fn refused(&mut self, now: Now) {
        let pause = doubled(PAUSE, self.refusals, LONGEST_PAUSE);
        self.refusals = self.refusals.saturating_add(1);
        self.not_before = now.mono + pause;
    }
}

impl Evicted {
    fn came_before(&self, pod: &Member) -> bool {
        pod.created < self.newest || self.known.contains(&pod.uid) || pod.uid == self.uid
    }

    /// None: it is over.
    fn outcome(&self, members: &[Member], now: Now) -> Option<RepairStep> {
        let mut later = members.iter().filter(|pod| !self.came_before(pod) && !pod.is_leaving).peekable();
        let left = (self.at + REPLACED_WITHIN).saturating_sub(now.mono);
        if later.peek().is_none() {
            let old = members.iter().find(|pod| pod.uid == self.uid);
            // Nobody knew whether it was evicted, and it was not.
            let left = if old.is_some_and(|old| !old.is_leaving) {
                (self.at + SEEN_WITHIN).saturating_sub(now.mono)
            } else {
                left
            };
            let is_leaving = old.is_some_and(|old| old.is_leaving);
            return (is_leaving || !left.is_zero()).then_some(RepairStep::Wait((!is_leaving).then_some(left)));
        }
        let later: Vec<&Member> = later.collect();
        if let Some(pod) = later.iter().find(|pod| pod.lacks) {
            return Some(RepairStep::Stop(pod.name.clone()));
        }
        // However long it takes: the containers may be what keeps it from being ready.
        later.iter().any(|pod| !pod.is_ready).then_some(RepairStep::Wait(None))
    }
}

/// The same Pod once more, for a dry run of its creation.
pub fn trial(pod: &Value) -> Value {
    let metadata = &pod["metadata"];
    let mut annotations: Map<String, Value> = metadata["annotations"].as_object().cloned().unwrap_or_default();
    annotations.remove(labels::SIDECAR_SETS_LEFT_OUT);
    annotations.insert(labels::TRIAL.into(), "true".into());
    let mut owners = metadata["ownerReferences"].clone();
    for owner in owners.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        // Needs a right on the owner.
        owner.remove("blockOwnerDeletion");
    }
    let mut spec = pod["spec"].clone();
    if let Some(spec) = spec.as_object_mut() {
        // No new Pod has them.
        spec.remove("ephemeralContainers");
        spec.remove("nodeName");
    }
    let name = |field: &str| metadata[field].as_str().filter(|name| !name.is_empty());
    let prefix = name("generateName").map_or_else(|| format!("{}-", name("name").unwrap_or("pod")), str::to_owned);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": prefix, "namespace": metadata["namespace"],
        "labels": metadata["labels"], "annotations": annotations, "ownerReferences": owners}, "spec": spec})
}

/// Why a Pod that came back from a dry run lacks the containers of a SidecarSet. None: it has them.
pub fn lacks(set: &str, tried: &Value) -> Option<String> {
    let none = Map::new();
    let annotations = tried["metadata"]["annotations"].as_object().unwrap_or(&none);
    if notes::injected(annotations).contains(set) {
        return None;
    }
    let left_out = annotations.get(labels::SIDECAR_SETS_LEFT_OUT).and_then(Value::as_str).unwrap_or_default();
    let reasons: Value = serde_json::from_str(left_out).unwrap_or_default();
    let reason = reasons[set].as_str().unwrap_or("nothing was injected");
    Some(format!("a dry run of its creation came back without them: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Now {
        Now { wall: created(second), mono: Duration::from_secs(second) }
    }

    fn created(second: u64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + i64::try_from(second).unwrap()).unwrap()
    }

    fn pod(name: &str, second: u64, lacks: bool) -> Member {
        let uid = format!("uid-{name}");
        Member { uid, name: name.into(), created: Some(created(second)), lacks, is_leaving: false, is_ready: true }
    }

    fn evict(name: &str) -> RepairStep {
        RepairStep::Evict(format!("uid-{name}"))
    }

    fn seconds(seconds: u64) -> RepairStep {
        RepairStep::Wait(Some(Duration::from_secs(seconds)))
    }

    #[test]
    fn only_controllers_that_recreate() {
        for (api_version, kind, wanted) in [
            ("apps/v1", "ReplicaSet", true),
            ("apps/v1", "StatefulSet", true),
            ("apps/v1", "DaemonSet", true),
            ("apps.kruise.io/v1alpha1", "CloneSet", true),
            ("apps.kruise.io/v1beta1", "StatefulSet", true),
            ("apps.kruise.io/v1alpha1", "DaemonSet", true),
            ("batch/v1", "Job", false),
            ("apps.kruise.io/v1alpha1", "BroadcastJob", false),
            ("v1", "ReplicationController", false),
            ("example.com/v1", "ReplicaSet", false),
        ] {
            let owner = Owner { api_version: api_version.into(), kind: kind.into(), ..Owner::default() };
            assert_eq!(recreates(&owner), wanted, "{api_version} {kind}");
        }
    }

    #[test]
    fn who_is_not_ready_goes_first_then_the_oldest() {
        let mut pods = [pod("c", 1, true), pod("b", 2, true), pod("a", 2, true), pod("has", 0, false)];
        let first = |pods: &[Member]| Progress::default().step(pods, at(100));
        assert_eq!(first(&pods), evict("c"));
        pods[1].is_ready = false;
        assert_eq!(first(&pods), evict("b"));
        pods[1].is_leaving = true;
        assert_eq!(first(&pods), evict("c"), "it goes already");
        assert_eq!(first(&pods[3..]), RepairStep::Nothing);
    }

    /// A Pod is evicted at 100 s; `after` are the Pods at a later second.
    #[test]
    fn the_next_one_waits_until_the_place_is_taken_by_a_ready_one() {
        let before = [pod("a", 50, true), pod("b", 50, true)];
        let leaving = || Member { is_leaving: true, ..pod("a", 50, true) };
        let starting = || Member { is_ready: false, ..pod("new", 101, false) };
        for (after, second, wanted) in [
            (vec![leaving(), pod("b", 50, true)], 101, RepairStep::Wait(None)),
            (vec![leaving(), pod("b", 50, true)], 9999, RepairStep::Wait(None)),
            (vec![pod("b", 50, true)], 110, seconds(590)),
            // Its eviction failed after all.
            (vec![pod("a", 50, true), pod("b", 50, true)], 104, seconds(26)),
            (vec![pod("a", 50, true), pod("b", 50, true)], 130, seconds(10)),
            (vec![pod("b", 50, true), starting()], 110, RepairStep::Wait(None)),
            (vec![pod("b", 50, true), starting()], 9999, RepairStep::Wait(None)),
            (vec![leaving(), pod("b", 50, true), pod("new", 101, false)], 110, seconds(10)),
            (vec![pod("b", 50, true), pod("new", 101, false)], 110, seconds(10)),
            (vec![pod("new", 101, false)], 110, RepairStep::Nothing),
            (vec![pod("b", 50, true)], 700, seconds(10)),
            (vec![pod("b", 50, true), pod("new", 101, true)], 110, RepairStep::Stop("new".into())),
            (vec![leaving(), pod("b", 50, true), pod("new", 101, true)], 110, RepairStep::Stop("new".into())),
            // The clock of the API server is behind ours.
            (vec![pod("b", 50, true), pod("new", 60, true)], 110, RepairStep::Stop("new".into())),
            (vec![pod("b", 50, true), pod("new", 50, true)], 110, RepairStep::Stop("new".into())),
            // It came late by the watch, and has been there all the time.
            (vec![pod("b", 50, true), pod("old", 49, true)], 110, seconds(590)),
        ] {
            let mut progress = Progress::default();
            assert_eq!(progress.step(&before, at(100)), evict("a"));
            progress.evicted("uid-a", &before, at(100));
            assert!(progress.is_under_way());
            assert_eq!(progress.step(&after, at(second)), wanted, "{after:?} at {second}");
        }
    }

    #[test]
    fn what_is_not_replaced_for_ten_minutes_is_stuck() {
        let mut progress = Progress::default();
        assert!(!progress.is_stuck(at(9999)), "nothing has gone");
        progress.evicted("uid-a", &[pod("a", 50, true)], at(100));
        assert!(!progress.is_stuck(at(699)) && progress.is_stuck(at(700)));
    }

    #[test]
    fn one_after_the_other_with_a_pause() {
        let mut progress = Progress::default();
        progress.evicted("uid-a", &[pod("a", 50, true), pod("b", 50, true)], at(100));
        let after = [pod("b", 50, true), pod("new", 101, false)];
        assert_eq!(progress.step(&after, at(120)), seconds(10));
        assert_eq!(progress.step(&after, at(125)), seconds(5));
        assert_eq!(progress.step(&after, at(130)), evict("b"));
    }

    #[test]
    fn refusals_back_off_for_each_controller() {
        let mut progress = Progress::default();
        let pods = [pod("a", 50, true)];
        let mut now = 100;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert_eq!(progress.step(&pods, at(now)), evict("a"));
            progress.refused(at(now));
            let RepairStep::Wait(Some(pause)) = progress.step(&pods, at(now)) else { panic!() };
            pauses.push(pause.as_secs());
            now += pause.as_secs();
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 600, 600, 600]);
        progress.evicted("uid-a", &pods, at(now));
        assert_eq!(progress.step(&[pod("new", 200_000, false), pod("b", 1, true)], at(now)), seconds(10));
        assert_eq!(progress.refusals, 0, "one that went is a success");
    }

    #[test]
    fn a_trial_is_the_same_pod_without_what_no_new_pod_has() {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": true,
            "blockOwnerDeletion": true}]);
        let live = json!({"metadata": {"name": "web-1", "generateName": "web-", "namespace": "ns", "uid": "p", "resourceVersion": "7",
            "finalizers": ["x/y"], "labels": {"app": "web"}, "ownerReferences": owner,
            "annotations": {"theirs": "1", "kruise.rs/sidecarset-left-out": "{}"}},
            "spec": {"nodeName": "n", "containers": [{"name": "main", "new": 1}], "ephemeralContainers": [{"name": "e"}]},
            "status": {"phase": "Running"}});
        let mut references = owner;
        references[0].as_object_mut().unwrap().remove("blockOwnerDeletion");
        let wanted = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "web-", "namespace": "ns",
            "labels": {"app": "web"}, "annotations": {"theirs": "1", "kruise.rs/trial": "true"}, "ownerReferences": references},
            "spec": {"containers": [{"name": "main", "new": 1}]}});
        assert_eq!(trial(&live), wanted);
        let mut named = live;
        named["metadata"].as_object_mut().unwrap().remove("generateName");
        assert_eq!(trial(&named)["metadata"]["generateName"], "web-1-");
        assert_eq!(trial(&Value::Null)["metadata"]["generateName"], "pod-");
    }

    #[test]
    fn a_trial_tells_why_a_pod_would_lack_the_containers() {
        let tried = |annotations: Value| lacks("logs", &json!({"metadata": {"annotations": annotations}}));
        assert_eq!(tried(json!({"kruise.io/sidecarset-injected-list": "a,logs"})), None);
        for (annotations, reason) in [
            (json!({"kruise.rs/sidecarset-left-out": r#"{"logs":"no image"}"#}), "no image"),
            (json!({"kruise.rs/sidecarset-left-out": "odd"}), "nothing was injected"),
            (json!({"kruise.io/sidecarset-injected-list": "logs-2"}), "nothing was injected"),
            (Value::Null, "nothing was injected"),
        ] {
            assert!(tried(annotations).unwrap().ends_with(reason));
        }
    }
}
