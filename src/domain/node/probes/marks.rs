//! What a Pod carries of the results of its probes: conditions, labels and annotations, in one patch of what differs.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{FAILED, SUCCEEDED, UNKNOWN, name_of, reserved};
use crate::{
    api::{
        apps::pod_probe_marker::{MarkedProbe, PodProbeMarker},
        labels,
    },
    k8s::{pod::PodView, time::rfc3339},
};

/// Everything that Pods may carry from a PodProbeMarker. What no probe writes is not among it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Keys {
    /// Labels.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub labels: BTreeSet<String>,
    /// Annotations.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub annotations: BTreeSet<String>,
    /// Condition types.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub conditions: BTreeSet<String>,
}

impl Keys {
    /// Those of its spec.
    pub fn of(marker: &PodProbeMarker) -> Self {
        Self::of_some(marker, |_| true)
    }

    /// Those of some of its probes, by name.
    pub fn of_some(marker: &PodProbeMarker, is_meant: impl Fn(&str) -> bool) -> Self {
        let mut keys = Self::default();
        for probe in marker.spec.probes.iter().filter(|probe| is_meant(&probe.name)) {
            keys.conditions.extend(own_condition(probe).map(str::to_owned));
            for policy in &probe.marker_policy {
                keys.labels.extend(policy.labels.keys().cloned());
                keys.annotations.extend(policy.annotations.keys().cloned());
            }
        }
        keys.without_reserved()
    }

    /// Those that are noted on it: what its Pods may still carry from before it was changed.
    pub fn noted(marker: &PodProbeMarker) -> Self {
        let note = marker.metadata.annotations.as_ref().and_then(|all| all.get(labels::PROBE_MARKS));
        note.and_then(|text| serde_json::from_str::<Self>(text).ok()).unwrap_or_default().without_reserved()
    }

    fn without_reserved(mut self) -> Self {
        self.labels.retain(|key| !reserved::is_label(key));
        self.annotations.retain(|key| !reserved::is_annotation(key));
        self.conditions.retain(|type_| !reserved::is_condition(type_));
        self
    }

    /// The note.
    pub fn note(&self) -> String {
        json!(self).to_string()
    }

    /// Adds those of another.
    pub fn add(&mut self, other: &Self) {
        self.labels.extend(other.labels.iter().cloned());
        self.annotations.extend(other.annotations.iter().cloned());
        self.conditions.extend(other.conditions.iter().cloned());
    }

    /// Those that another does not have.
    pub fn without(&self, other: &Self) -> Self {
        let minus = |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect();
        Self {
            labels: minus(&self.labels, &other.labels),
            annotations: minus(&self.annotations, &other.annotations),
            conditions: minus(&self.conditions, &other.conditions),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self == &Self::default()
    }
}

/// One result, and the probe that it is of.
#[derive(Clone, Copy, Debug)]
pub struct MarkedResult<'a> {
    /// Whose probe it is.
    pub marker: &'a PodProbeMarker,
    /// The probe.
    pub probe: &'a MarkedProbe,
    /// Succeeded, Failed or Unknown.
    pub state: &'a str,
    /// What it said.
    pub message: &'a str,
    /// When the result was found.
    pub probed: Option<Timestamp>,
    /// When the state changed.
    pub transition: Option<Timestamp>,
    /// Whether its condition is ours to write; those of serverless Pods are not.
    pub writes_condition: bool,
}

/// The condition that a probe writes. One of somebody else is left alone, whatever a stored object says.
fn own_condition(probe: &MarkedProbe) -> Option<&str> {
    let type_ = probe.pod_condition_type.as_str();
    (!type_.is_empty() && !reserved::is_condition(type_)).then_some(type_)
}

/// What a Pod is to lose: what PodProbeMarkers left on it that do not probe it any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gone {
    /// Labels, annotations and conditions that nobody wants.
    pub keys: Keys,
    /// The PodProbeMarkers of which nothing is on the Pod without these keys.
    pub markers: BTreeSet<String>,
}

impl Gone {
    /// Whether the Pod, by what is known of it, has nothing to lose.
    pub fn is_nothing(&self, pod: &PodView) -> bool {
        self.keys.is_empty() && !marked_by(pod).any(|name| self.markers.contains(name))
    }
}

/// Names of the PodProbeMarkers whose marks a Pod may carry.
pub fn marked_by(pod: &PodView) -> impl Iterator<Item = &str> {
    names(pod.rare().probe_marked_by.as_deref())
}

fn names(list: Option<&str>) -> impl Iterator<Item = &str> {
    list.unwrap_or_default().split(',').filter(|name| !name.is_empty())
}

/// A fingerprint of everything that [`patch`] goes by, besides the Pod.
pub fn fingerprint(outcomes: &[MarkedResult<'_>], gone: &Gone) -> u64 {
    let mut hasher = DefaultHasher::new();
    for outcome in outcomes {
        let meta = &outcome.marker.metadata;
        (name_of(outcome.marker), &meta.uid, meta.generation, &outcome.probe.name).hash(&mut hasher);
        (outcome.state, outcome.message, outcome.transition.map(Timestamp::as_second)).hash(&mut hasher);
    }
    gone.hash(&mut hasher);
    hasher.finish()
}

/// What becomes of the labels, or of the annotations.
#[derive(Default)]
struct Marks<'a> {
    set: BTreeMap<&'a str, &'a str>,
    /// Of policies for another state.
    remove: BTreeSet<&'a str>,
    /// Of probes of which nothing is known: they stay as they are.
    keep: BTreeSet<&'a str>,
}

impl<'a> Marks<'a> {
    fn note(
        &mut self,
        of: &'a BTreeMap<String, String>,
        is_reserved: fn(&str) -> bool,
        state: &str,
        policy_state: &str,
    ) {
        for (key, value) in of.iter().filter(|(key, _)| !is_reserved(key)) {
            if policy_state == state {
                // The first probe wins, by the names of the objects and then in their order.
                self.set.entry(key).or_insert(value);
            } else if [SUCCEEDED, FAILED].contains(&state) {
                self.remove.insert(key);
            } else {
                self.keep.insert(key);
            }
        }
    }

    /// What differs from what the Pod has.
    fn changes(&self, has: Option<&Value>, gone: &BTreeSet<String>) -> Map<String, Value> {
        let now = |key: &str| has.and_then(|has| has.get(key)).and_then(Value::as_str);
        let mut changes = Map::new();
        for (key, value) in &self.set {
            if now(key) != Some(value) {
                changes.insert((*key).to_owned(), (*value).into());
            }
        }
        for key in self.remove.iter().copied().chain(gone.iter().map(String::as_str)) {
            if !self.set.contains_key(key) && !self.keep.contains(key) && now(key).is_some() {
                changes.insert(key.to_owned(), Value::Null);
            }
        }
        changes
    }
}

/// The strategic merge patch of `pods/status` that brings a Pod (as it is stored) to the results of its probes, which are
/// ordered by PodProbeMarker and probe. The same patch names the PodProbeMarkers whose marks the Pod carries, so that they
/// can be removed whatever else is lost. None: the Pod is as it should be.
pub fn patch(pod: &Value, outcomes: &[MarkedResult<'_>], gone: &Gone) -> Option<Value> {
    let Gone { keys: gone, markers: cleaned } = gone;
    let (mut of_labels, mut of_annotations) = (Marks::default(), Marks::default());
    let mut conditions: BTreeMap<&str, &MarkedResult<'_>> = BTreeMap::new();
    for outcome in outcomes {
        for policy in &outcome.probe.marker_policy {
            of_labels.note(&policy.labels, reserved::is_label, outcome.state, &policy.state);
            of_annotations.note(&policy.annotations, reserved::is_annotation, outcome.state, &policy.state);
        }
        if let Some(type_) = own_condition(outcome.probe) {
            conditions.entry(type_).or_insert(outcome);
        }
    }
    let metadata = |field: &str| pod.pointer(&format!("/metadata/{field}"));
    let labels = of_labels.changes(metadata("labels"), &gone.labels);
    let mut annotations = of_annotations.changes(metadata("annotations"), &gone.annotations);
    let mut changed: Vec<Value> = Vec::new();
    for (type_, outcome) in conditions.iter().filter(|(_, outcome)| outcome.writes_condition) {
        changed.extend(condition(condition_of(pod, type_), type_, outcome));
    }
    for type_ in gone.conditions.iter().filter(|type_| !conditions.contains_key(type_.as_str())) {
        // Without the condition of a readiness gate the Pod would be NotReady.
        if condition_of(pod, type_).is_some() && !is_gate(pod, type_) {
            changed.push(json!({ "type": type_, "$patch": "delete" }));
        }
    }
    let noted = metadata("annotations").and_then(|all| all.get(labels::PROBE_MARKED_BY)).and_then(Value::as_str);
    let mut markers: BTreeSet<&str> = names(noted).filter(|name| !cleaned.contains(*name)).collect();
    if !(labels.is_empty() && annotations.is_empty() && changed.is_empty()) {
        markers.extend(outcomes.iter().map(|outcome| name_of(outcome.marker)));
    }
    let markers = markers.into_iter().collect::<Vec<_>>().join(",");
    if markers != noted.unwrap_or_default() {
        let value = if markers.is_empty() { Value::Null } else { markers.into() };
        annotations.insert(labels::PROBE_MARKED_BY.to_owned(), value);
    }
    if labels.is_empty() && annotations.is_empty() && changed.is_empty() {
        return None;
    }
    let mut patch = json!({ "metadata": { "uid": metadata("uid") } });
    for (field, changes) in [("labels", labels), ("annotations", annotations)] {
        if !changes.is_empty() {
            patch["metadata"][field] = changes.into();
        }
    }
    if !changed.is_empty() {
        patch["status"]["conditions"] = changed.into();
    }
    Some(patch)
}

fn condition_of<'p>(pod: &'p Value, type_: &str) -> Option<&'p Value> {
    pod.pointer("/status/conditions")?.as_array()?.iter().find(|c| c["type"] == type_)
}

fn is_gate(pod: &Value, type_: &str) -> bool {
    let gates = pod.pointer("/spec/readinessGates").and_then(Value::as_array);
    gates.into_iter().flatten().any(|gate| gate["conditionType"] == type_)
}

/// The condition that a result makes, unless it is there already. While nothing is known it stays as it is.
fn condition(now: Option<&Value>, type_: &str, outcome: &MarkedResult<'_>) -> Option<Value> {
    let status = match outcome.state {
        SUCCEEDED => "True",
        FAILED => "False",
        UNKNOWN if now.is_none() => "Unknown",
        _ => return None,
    };
    let time = |time: Option<Timestamp>| time.map_or(Value::Null, |time| rfc3339(time).into());
    let transition = time(outcome.transition);
    let has = |field: &str| now.and_then(|now| now.get(field)).and_then(Value::as_str).unwrap_or_default();
    let same_transition = transition.as_str().is_none_or(|transition| transition == has("lastTransitionTime"));
    if has("status") == status && has("message") == outcome.message && same_transition {
        return None;
    }
    let message = if outcome.message.is_empty() { Value::Null } else { outcome.message.into() };
    Some(json!({ "type": type_, "status": status, "message": message, "lastProbeTime": time(outcome.probed),
        "lastTransitionTime": transition }))
}
