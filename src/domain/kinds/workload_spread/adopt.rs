//! Pods without the note of a subset: they were there before the WorkloadSpread, or the webhook was away. Their node says
//! where they belong.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use serde_json::{Value, json};

use super::{
    inject::place,
    plan::{Home, SpreadPod, key_of},
    replicas::version_of,
    spec::{SpreadSpec, SubsetSpec},
};
use crate::{
    api::apps::workload_spread::WorkloadSpreadStatus,
    domain::pod::placement::Placement,
    k8s::{node::NodeView, pod::PodView, strategic_merge},
};

/// The subset that a Pod on a node belongs to: of those whose nodes and tolerations fit, the one that its preferences, then its
/// patch, then its room speak for. `pod` is the whole Pod, `rooms` says which subsets have room. None: none fits.
pub fn subset_of(spec: &SpreadSpec, pod: &Value, node: &NodeView, rooms: &[bool]) -> Option<usize> {
    let mut best: Option<(usize, i64)> = None;
    for (index, subset) in spec.subsets.iter().enumerate().filter(|(_, subset)| fits(subset, pod, node)) {
        let is_as_patched = i64::from(is_as_patched(subset, pod));
        let has_room = i64::from(rooms.get(index).copied().unwrap_or_default());
        let score = weight(subset, node).saturating_mul(100).saturating_add(10 * is_as_patched + has_room);
        if best.is_none_or(|(_, most)| score > most) {
            best = Some((index, score));
        }
    }
    best.map(|(index, _)| index)
}

/// Whether a Pod of the subset could be on the node.
fn fits(subset: &SubsetSpec, pod: &Value, node: &NodeView) -> bool {
    let mut placed = pod.clone();
    if place(&mut placed, subset).is_err() {
        return false;
    }
    let tolerations = placed.pointer("/spec/tolerations").cloned().unwrap_or_default();
    Placement::of(&placed, &tolerations).fit(node.name(), &node.labels, &node.taints).should_run
}

/// The sum of the weights of what the subset prefers and the node has.
fn weight(subset: &SubsetSpec, node: &NodeView) -> i64 {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let is_liked = |term: &Value| {
        let term = term.get("preference").cloned().unwrap_or_default();
        let pod = json!({ "spec": { "affinity": { "nodeAffinity": { required: { "nodeSelectorTerms": [term] } } } } });
        Placement::of(&pod, &Value::Null).fit(node.name(), &node.labels, &[]).should_run
    };
    let weight = |term: &Value| term.get("weight").and_then(Value::as_i64).unwrap_or_default();
    subset.preferred.iter().filter(|term| is_liked(term)).map(weight).fold(0, i64::saturating_add)
}

/// Whether the patch would change nothing of the Pod but annotations.
fn is_as_patched(subset: &SubsetSpec, pod: &Value) -> bool {
    let Some(patch) = &subset.patch else { return true };
    let bare = |pod: &Value| {
        let mut bare = pod.clone();
        if let Some(metadata) = bare.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("annotations");
        }
        bare
    };
    strategic_merge::apply(pod, patch).is_ok_and(|patched| bare(&patched) == bare(pod))
}

/// How many Pods of each version and subset there are, or come.
pub struct Rooms<'a> {
    spec: &'a SpreadSpec,
    limits: Vec<Option<i32>>,
    there: HashMap<(String, usize), i32>,
}

impl<'a> Rooms<'a> {
    /// With the Pods that have notes. `missed` are the others: a place that was promised to one of them is not taken twice.
    pub fn new(
        spec: &'a SpreadSpec,
        total: i32,
        (known, missed): (&[SpreadPod], &[Arc<PodView>]),
        recorded: Option<&WorkloadSpreadStatus>,
    ) -> Self {
        let mut rooms = Self { spec, limits: spec.limits(total), there: HashMap::new() };
        for pod in known {
            rooms.take(&pod.pod, pod.home);
        }
        let pods = known.iter().map(|pod| &pod.pod).chain(missed);
        let seen: HashSet<&str> = pods.flat_map(|pod| [key_of(pod), pod.name()]).collect();
        for (version, subsets) in recorded.into_iter().flat_map(|status| &status.versioned_subset_statuses) {
            for subset in subsets {
                let Some(index) = spec.position(&subset.name) else { continue };
                let coming = subset.creating_pods.keys().filter(|key| !seen.contains(key.as_str())).count();
                let there = rooms.there.entry((version.clone(), index)).or_default();
                *there = there.saturating_add(i32::try_from(coming).unwrap_or(i32::MAX));
            }
        }
        rooms
    }

    /// Counts a Pod.
    pub fn take(&mut self, pod: &PodView, home: Home) {
        if let Home::Subset(index) = home
            && pod.is_active()
        {
            let there = self.there.entry((version_of(self.spec.target_kind, &pod.labels), index)).or_default();
            *there = there.saturating_add(1);
        }
    }

    /// Which subsets have room for a Pod.
    pub fn of(&self, pod: &PodView) -> Vec<bool> {
        let version = version_of(self.spec.target_kind, &pod.labels);
        let there = |index: usize| self.there.get(&(version.clone(), index)).copied().unwrap_or_default();
        self.limits.iter().enumerate().map(|(index, max)| max.is_none_or(|max| there(index) < max)).collect()
    }
}
