//! What a CloneSet must never do, held against the history of its Pods.
//!
//! Versions of all objects come from one counter, so what two watches showed can be put into the order in which it
//! happened. The manager acts on what it knows, which may lag behind; it has said in `status.observedGeneration` what it
//! knows at least. So each of its acts has to be right for some spec from that one up to the newest: nothing here depends on
//! time. What a fault has taken down is not the manager's doing.
//!
//! The model is on purpose a plain one, and knows nothing of the rules in the product.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::DynamicObject;
use serde_json::Value;

use crate::kit::Look;

/// A spec with its numbers worked out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    pub replicas: i64,
    /// Pods that are to stay on other images.
    pub partition: i64,
    pub max_unavailable: i64,
    /// 0 while paused.
    pub max_surge: i64,
    pub image: String,
    pub pods_to_delete: Vec<String>,
}

/// A number, or a percentage of `of` as a real number.
fn number(value: Option<&Value>, of: i64) -> f64 {
    match value {
        Some(Value::String(text)) => text.trim_end_matches('%').parse::<f64>().unwrap_or_default() * of as f64 / 100.0,
        Some(value) => value.as_f64().unwrap_or_default(),
        None => 0.0,
    }
}

impl Spec {
    pub fn of(clone_set: &Value) -> Self {
        let strategy = |key: &str| clone_set.pointer(&format!("/spec/updateStrategy/{key}"));
        let replicas = clone_set.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
        let paused = strategy("paused") == Some(&Value::Bool(true));
        let max_surge = if paused { 0 } else { number(strategy("maxSurge"), replicas).ceil() as i64 };
        let twenty = Value::from("20%");
        let unavailable = number(strategy("maxUnavailable").or(Some(&twenty)), replicas);
        let max_unavailable = if max_surge == 0 { unavailable.ceil() } else { unavailable.floor() } as i64;
        let mut partition = number(strategy("partition"), replicas).ceil() as i64;
        // a percentage below 100 updates at least one of several
        if let Some(Value::String(text)) = strategy("partition")
            && partition == replicas
            && replicas > 1
            && text != "100%"
        {
            partition -= 1;
        }
        let names = clone_set.array("/spec/scaleStrategy/podsToDelete").iter().filter_map(Value::as_str);
        Self {
            replicas,
            partition: partition.clamp(0, replicas),
            max_unavailable,
            max_surge,
            image: clone_set.text("/spec/template/spec/containers/0/image").to_owned(),
            pods_to_delete: names.map(str::to_owned).collect(),
        }
    }
}

/// What counts of a Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    pub name: String,
    pub image: String,
    pub ready: bool,
    /// The update in place lets it be ready.
    pub gate: bool,
    /// Its state is Normal, or it has none.
    pub normal: bool,
    pub deleting: bool,
    /// Failed or Succeeded.
    pub ended: bool,
    pub marked: bool,
}

impl Pod {
    pub fn of(pod: &Value) -> Self {
        let condition = |kind: &str| crate::kit::condition(pod, kind);
        let state = pod.text("/metadata/labels/lifecycle.apps.kruise.io~1state");
        Self {
            name: pod.text("/metadata/name").to_owned(),
            image: pod.text("/spec/containers/0/image").to_owned(),
            ready: condition("Ready") == "True",
            gate: condition("InPlaceUpdateReady") != "False",
            normal: ["", "Normal"].contains(&state),
            deleting: pod.has("/metadata/deletionTimestamp"),
            ended: ["Failed", "Succeeded"].contains(&pod.text("/status/phase")),
            marked: pod.has("/metadata/labels/apps.kruise.io~1specified-delete"),
        }
    }

    pub fn active(&self) -> bool {
        !self.deleting && !self.ended
    }

    pub fn available(&self) -> bool {
        self.active() && self.ready && self.gate && self.normal
    }
}

/// One thing that happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// The CloneSet as it was written, by its user or by the manager.
    CloneSet {
        generation: i64,
        observed: i64,
        spec: Box<Spec>,
        status: bool,
    },
    /// A Pod as it was written, by its UID.
    Pod(String, Pod),
    Gone(String),
}

/// Everything that happened, by version.
#[derive(Debug, Default)]
pub struct History {
    events: BTreeMap<u64, Event>,
    statuses: BTreeSet<String>,
}

impl History {
    fn version(object: &DynamicObject) -> u64 {
        object.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or_default()
    }

    pub fn clone_set(&mut self, object: &DynamicObject) {
        let value = serde_json::to_value(object).unwrap_or_default();
        let event = Event::CloneSet {
            generation: value.int("/metadata/generation"),
            observed: value.int("/status/observedGeneration"),
            spec: Box::new(Spec::of(&value)),
            // a write of the manager, unless only the spec was changed
            status: self.statuses.insert(value["status"].to_string()),
        };
        self.events.insert(Self::version(object), event);
    }

    pub fn pod(&mut self, object: &DynamicObject) {
        let value = serde_json::to_value(object).unwrap_or_default();
        let uid = object.metadata.uid.clone().unwrap_or_default();
        self.events.insert(Self::version(object), Event::Pod(uid, Pod::of(&value)));
    }

    pub fn gone(&mut self, object: &DynamicObject) {
        self.events.insert(Self::version(object), Event::Gone(object.metadata.uid.clone().unwrap_or_default()));
    }

    /// What was done that must not be, each with the version at which it was.
    pub fn wrongs(&self) -> Vec<String> {
        let mut model = Model::default();
        let mut wrongs = Vec::new();
        for (version, event) in &self.events {
            wrongs.extend(model.event(event).into_iter().map(|wrong| format!("at version {version}: {wrong}")));
        }
        wrongs
    }

    /// What was done, so that one sees what a history has tried.
    pub fn acts(&self) -> Acts {
        let mut model = Model::default();
        self.events.values().for_each(|event| drop(model.event(event)));
        model.acts
    }

    /// For a failure: the last events, one a line.
    pub fn tail(&self, count: usize) -> String {
        let skipped = self.events.len().saturating_sub(count);
        let lines = self.events.iter().skip(skipped).map(|(version, event)| match event {
            Event::CloneSet { generation, observed, spec, .. } => {
                format!("{version} CloneSet generation {generation}, observed {observed}: {spec:?}")
            }
            Event::Pod(_, pod) => format!("{version} {pod:?}"),
            Event::Gone(uid) => format!("{version} gone: {uid}"),
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// How often something was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Acts {
    pub created: usize,
    /// With as many Pods as may be.
    pub created_at_limit: usize,
    pub taken_down: usize,
    /// With as few Pods left as may be.
    pub taken_down_at_limit: usize,
    pub updated_in_place: usize,
    pub marked: usize,
}

struct Known {
    pod: Pod,
    /// It became available since the manager last wrote its status: the manager may not have seen it.
    fresh: bool,
    /// Down by a fault.
    struck: bool,
}

#[derive(Default)]
struct Model {
    specs: BTreeMap<i64, Spec>,
    observed: i64,
    pods: BTreeMap<String, Known>,
    /// Pods that failed since all was well.
    failures: i64,
    acts: Acts,
}

impl Model {
    /// Specs on which the manager may have acted.
    fn allowed(&self) -> impl Iterator<Item = &Spec> {
        self.specs.range(self.observed..).map(|(_, spec)| spec)
    }

    fn count(&self, fits: impl Fn(&Known) -> bool) -> i64 {
        self.pods.values().filter(|k| fits(k)).count() as i64
    }

    fn event(&mut self, event: &Event) -> Vec<String> {
        let mut wrongs = Vec::new();
        match event {
            Event::CloneSet { generation, observed, spec, status } => {
                self.specs.insert(*generation, (**spec).clone());
                self.observed = self.observed.max(*observed);
                if *status {
                    self.pods.values_mut().for_each(|known| known.fresh = false);
                }
            }
            Event::Gone(uid) => {
                // a Pod that nobody plays may go without a deletion timestamp
                if let Some(known) = self.pods.remove(uid)
                    && known.pod.available()
                {
                    self.taken_down(&known, &mut wrongs);
                }
            }
            Event::Pod(uid, now) => {
                let before = self.pods.remove(uid);
                self.pods.insert(uid.clone(), Known { pod: now.clone(), fresh: false, struck: false });
                match before {
                    None => self.created(now, &mut wrongs),
                    Some(before) => {
                        let known = self.changed(before, now, &mut wrongs);
                        self.pods.insert(uid.clone(), known);
                    }
                }
            }
        }
        let wanted = self.specs.values().next_back().map_or(0, |spec| spec.replicas);
        if self.count(|k| k.pod.available()) >= wanted {
            self.failures = 0;
        }
        wrongs
    }

    fn created(&mut self, now: &Pod, wrongs: &mut Vec<String>) {
        let active = self.count(|k| k.pod.active());
        let most = self.allowed().map(|s| s.replicas + s.max_surge).max().unwrap_or(i64::MAX);
        self.acts.created += 1;
        self.acts.created_at_limit += usize::from(active == most);
        if active > most {
            wrongs.push(format!("{} was created as number {active}: at most {most} are wanted", now.name));
        }
    }

    /// `self.pods` holds the Pod as it is now.
    fn changed(&mut self, before: Known, now: &Pod, wrongs: &mut Vec<String>) -> Known {
        let (was, is) = (before.pod.available(), now.available());
        let by_manager = now.deleting || !now.normal || !now.gate;
        let mut known = Known { pod: now.clone(), fresh: before.fresh, struck: before.struck && !is };
        if is && !was {
            known.fresh = true;
        }
        if was && !is {
            if by_manager {
                self.taken_down(&before, wrongs);
            } else {
                known.struck = true;
            }
        }
        if now.ended && !before.pod.ended {
            self.failures += 1;
        }
        if now.active() && now.image != before.pod.image {
            self.moved(now, wrongs);
        }
        if now.active()
            && now.marked
            && !before.pod.marked
            && !self.allowed().any(|s| s.pods_to_delete.contains(&now.name))
        {
            self.marked(now, wrongs);
        }
        known
    }

    /// The manager has made an available Pod unavailable.
    fn taken_down(&mut self, before: &Known, wrongs: &mut Vec<String>) {
        if before.fresh {
            return;
        }
        let up = self.count(|k| k.pod.available() || (k.struck && k.pod.active())) + self.failures;
        let least = self.allowed().map(|s| s.replicas - s.max_unavailable).min().unwrap_or_default();
        self.acts.taken_down += 1;
        self.acts.taken_down_at_limit += usize::from(up == least);
        if up < least {
            wrongs.push(format!("{} was taken down: {up} are left, at least {least} are wanted", before.pod.name));
        }
    }

    /// The manager has moved a Pod to another image.
    fn moved(&mut self, now: &Pod, wrongs: &mut Vec<String>) {
        self.acts.updated_in_place += 1;
        let right = |spec: &Spec| {
            let old = self.count(|k| k.pod.active() && !k.pod.marked && k.pod.image != spec.image) + self.failures;
            now.image == spec.image && old >= spec.partition
        };
        if !self.allowed().any(right) {
            let specs: Vec<&Spec> = self.allowed().collect();
            wrongs.push(format!("{} was updated to {}, which breaks the partition of {specs:?}", now.name, now.image));
        }
    }

    /// The manager has marked a Pod so that another one takes its place.
    fn marked(&mut self, now: &Pod, wrongs: &mut Vec<String>) {
        self.acts.marked += 1;
        let right = |spec: &Spec| {
            let old = self.count(|k| k.pod.active() && !k.pod.marked && k.pod.image != spec.image) + self.failures;
            now.image != spec.image && old >= spec.partition
        };
        if !self.allowed().any(right) {
            let specs: Vec<&Spec> = self.allowed().collect();
            wrongs.push(format!(
                "{} ({}) is to be replaced, which breaks the partition of {specs:?}",
                now.name, now.image
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(replicas: i64, strategy: &Value) -> Spec {
        Spec::of(&json!({ "spec": { "replicas": replicas, "updateStrategy": strategy,
            "template": { "spec": { "containers": [{ "image": "v1" }] } } } }))
    }

    #[test]
    fn numbers_of_a_spec() {
        let of = |replicas, strategy: Value| {
            let s = spec(replicas, &strategy);
            (s.partition, s.max_unavailable, s.max_surge)
        };
        assert_eq!(of(10, json!({})), (0, 2, 0));
        assert_eq!(of(10, json!({ "maxUnavailable": "25%", "maxSurge": "15%" })), (0, 2, 2));
        assert_eq!(of(10, json!({ "maxUnavailable": "25%", "maxSurge": "15%", "paused": true })), (0, 3, 0));
        assert_eq!(of(8, json!({ "partition": "90%" })).0, 7);
        assert_eq!(of(8, json!({ "partition": "100%" })).0, 8);
        assert_eq!(of(5, json!({ "partition": "0.1%" })).0, 1);
        assert_eq!(of(3, json!({ "partition": 7 })).0, 3);
    }

    fn up(name: &str, image: &str) -> Pod {
        Pod { name: name.into(), image: image.into(), ready: true, gate: true, normal: true, ..Pod::default() }
    }

    /// Three Pods of image v1 that are up; the spec wants `image`.
    fn three(strategy: &Value, image: &str) -> Model {
        let mut model = Model::default();
        let old = spec(3, strategy);
        let status = |generation: i64, spec: &Spec| Event::CloneSet {
            generation,
            observed: generation,
            spec: Box::new(spec.clone()),
            status: true,
        };
        assert!(model.event(&status(1, &old)).is_empty());
        for name in ["a", "b", "c"] {
            assert!(model.event(&Event::Pod(name.into(), up(name, "v1"))).is_empty());
        }
        assert!(model.event(&status(2, &Spec { image: image.into(), ..old })).is_empty());
        model
    }

    fn change(model: &mut Model, name: &str, change: impl Fn(&mut Pod)) -> Vec<String> {
        let mut pod = model.pods[name].pod.clone();
        change(&mut pod);
        model.event(&Event::Pod(name.into(), pod))
    }

    #[test]
    fn one_more_pod_down_than_may_be_is_found() {
        let mut model = three(&json!({ "maxUnavailable": 1 }), "v2");
        assert!(change(&mut model, "a", |p| p.gate = false).is_empty());
        let wrongs = change(&mut model, "b", |p| p.gate = false);
        assert_eq!(wrongs, ["b was taken down: 1 are left, at least 2 are wanted"]);
    }

    #[test]
    fn what_a_fault_took_down_is_not_the_managers_doing() {
        let mut model = three(&json!({ "maxUnavailable": 1 }), "v2");
        assert!(change(&mut model, "a", |p| p.ready = false).is_empty());
        assert!(change(&mut model, "b", |p| p.gate = false).is_empty());
        assert_eq!(change(&mut model, "c", |p| p.deleting = true).len(), 1);
    }

    #[test]
    fn one_more_pod_than_surge_allows_is_found() {
        let mut model = three(&json!({ "maxSurge": 1, "maxUnavailable": 0 }), "v2");
        assert!(model.event(&Event::Pod("d".into(), up("d", "v2"))).is_empty());
        let wrongs = model.event(&Event::Pod("e".into(), up("e", "v2")));
        assert_eq!(wrongs, ["e was created as number 5: at most 4 are wanted"]);
    }

    #[test]
    fn an_update_beyond_the_partition_is_found_in_place_and_by_replacement() {
        let in_place = |p: &mut Pod| (p.image, p.gate) = ("v2".into(), false);
        let mut model = three(&json!({ "partition": 2, "maxUnavailable": 3 }), "v2");
        assert!(change(&mut model, "a", in_place).is_empty());
        assert_eq!(change(&mut model, "b", in_place).len(), 1);
        let mut model = three(&json!({ "partition": 2, "maxUnavailable": 3 }), "v2");
        assert!(change(&mut model, "a", |p| p.marked = true).is_empty());
        assert_eq!(change(&mut model, "b", |p| p.marked = true).len(), 1);
    }

    #[test]
    fn the_manager_may_act_on_a_spec_that_it_has_not_been_seen_to_leave() {
        let mut model = three(&json!({ "maxUnavailable": 1 }), "v2");
        let newer = Event::CloneSet {
            generation: 3,
            observed: 2,
            spec: Box::new(spec(3, &json!({ "maxUnavailable": 3 }))),
            status: false,
        };
        assert!(model.event(&newer).is_empty());
        assert!(change(&mut model, "a", |p| p.deleting = true).is_empty());
        assert!(change(&mut model, "b", |p| p.deleting = true).is_empty());
    }

    #[test]
    fn a_pod_that_the_manager_did_not_know_to_be_up_may_be_taken_down() {
        let mut model = three(&json!({ "maxUnavailable": 0, "maxSurge": 1 }), "v2");
        assert!(change(&mut model, "a", |p| p.ready = false).is_empty());
        assert!(change(&mut model, "a", |p| p.ready = true).is_empty());
        assert!(change(&mut model, "a", |p| p.gate = false).is_empty());
    }
}
