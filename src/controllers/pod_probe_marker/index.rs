//! Which PodProbeMarkers select which Pods, and on which nodes these are.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use crate::{
    domain::node::probes::{is_eligible, marks},
    k8s::{pod::PodView, selector::Selector},
    runtime::watches::ObjectKey,
};

/// A Pod that something selects.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Selected {
    pub(super) uid: Box<str>,
    pub(super) node: Arc<str>,
    ip: Box<str>,
    /// Names of the PodProbeMarkers.
    pub(super) markers: Box<[Arc<str>]>,
    /// Names of others, whose marks it still carries.
    left: Box<[Arc<str>]>,
}

/// The whole of it. It holds nothing of Pods that nobody selects.
#[derive(Default)]
pub(super) struct Index {
    selectors: HashMap<Arc<str>, HashMap<Arc<str>, Selector>>,
    pods: HashMap<ObjectKey, Selected>,
    by_node: HashMap<Arc<str>, BTreeSet<ObjectKey>>,
    by_marker: HashMap<ObjectKey, Nodes>,
    /// Nodes of Pods that still carry marks of a PodProbeMarker which does not select them.
    by_left: HashMap<ObjectKey, Nodes>,
}

/// How many Pods, by node.
type Nodes = HashMap<Arc<str>, usize>;

impl Index {
    /// Whether no Pod can matter.
    pub(super) fn is_idle(&self) -> bool {
        self.selectors.is_empty() && self.pods.is_empty()
    }

    /// Takes over a PodProbeMarker; whether the Pods of its namespace have to be looked at.
    pub(super) fn set_marker(&mut self, key: &ObjectKey, selector: Selector) -> bool {
        let of_namespace = self.selectors.entry(key.namespace.clone()).or_default();
        of_namespace.insert(key.name.clone(), selector.clone()) != Some(selector)
    }

    pub(super) fn remove_marker(&mut self, key: &ObjectKey) {
        if let Some(of_namespace) = self.selectors.get_mut(&key.namespace) {
            of_namespace.remove(&key.name);
            if of_namespace.is_empty() {
                self.selectors.remove(&key.namespace);
            }
        }
    }

    /// Takes over the newest state of a Pod, or that it is gone; what was known before and what is now.
    pub(super) fn set_pod(&mut self, key: &ObjectKey, pod: Option<&PodView>) -> (Option<Selected>, Option<Selected>) {
        let now = pod.filter(|pod| is_eligible(pod)).and_then(|pod| {
            let selectors = self.selectors.get(&key.namespace)?;
            // An empty one stands for a selector that cannot be used: it selects nothing.
            let fits = |selector: &Selector| !selector.is_empty() && selector.matches(&pod.labels);
            let mut markers: Vec<Arc<str>> =
                selectors.iter().filter(|(_, selector)| fits(selector)).map(|(name, _)| name.clone()).collect();
            markers.sort();
            let left = marks::marked_by(pod).filter(|name| !markers.iter().any(|marker| **marker == **name));
            let left: Box<[Arc<str>]> = left.map(crate::k8s::shared::text).collect();
            let node = crate::k8s::shared::text(&pod.node_name);
            (!markers.is_empty() || !left.is_empty()).then(|| Selected {
                uid: pod.uid().into(),
                node,
                ip: pod.pod_ip.as_str().into(),
                markers: markers.into(),
                left,
            })
        });
        let before = self.pods.get(key).cloned();
        if before == now {
            return (before, now);
        }
        if let Some(before) = &before {
            if let Some(pods) = self.by_node.get_mut(&before.node) {
                pods.remove(key);
                if pods.is_empty() {
                    self.by_node.remove(&before.node);
                }
            }
            count(&mut self.by_marker, key, before, &before.markers, false);
            count(&mut self.by_left, key, before, &before.left, false);
            self.pods.remove(key);
        }
        if let Some(now) = &now {
            self.by_node.entry(now.node.clone()).or_default().insert(key.clone());
            count(&mut self.by_marker, key, now, &now.markers, true);
            count(&mut self.by_left, key, now, &now.left, true);
            self.pods.insert(key.clone(), now.clone());
        }
        (before, now)
    }

    /// Selected Pods of a node, and those that still carry marks.
    pub(super) fn pods_on(&self, node: &str) -> Vec<ObjectKey> {
        self.by_node.get(node).into_iter().flatten().cloned().collect()
    }

    /// Nodes with such Pods.
    pub(super) fn nodes(&self) -> Vec<Arc<str>> {
        self.by_node.keys().cloned().collect()
    }

    /// Nodes with Pods of a PodProbeMarker.
    pub(super) fn nodes_of(&self, marker: &ObjectKey) -> HashSet<Arc<str>> {
        self.by_marker.get(marker).into_iter().flat_map(HashMap::keys).cloned().collect()
    }

    /// Nodes with Pods that still carry marks of a PodProbeMarker which does not select them.
    pub(super) fn nodes_with_marks_of(&self, marker: &ObjectKey) -> HashSet<Arc<str>> {
        self.by_left.get(marker).into_iter().flat_map(HashMap::keys).cloned().collect()
    }

    /// How many Pods a PodProbeMarker selects.
    pub(super) fn count_of(&self, marker: &ObjectKey) -> usize {
        self.by_marker.get(marker).map_or(0, |nodes| nodes.values().sum())
    }
}

/// Counts a Pod among those of these PodProbeMarkers, or not any more.
fn count(all: &mut HashMap<ObjectKey, Nodes>, pod: &ObjectKey, selected: &Selected, markers: &[Arc<str>], up: bool) {
    for marker in markers {
        let marker = ObjectKey { namespace: pod.namespace.clone(), name: marker.clone() };
        let nodes = all.entry(marker.clone()).or_default();
        let count = nodes.entry(selected.node.clone()).or_default();
        *count = if up { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            nodes.remove(&selected.node);
        }
        if nodes.is_empty() {
            all.remove(&marker);
        }
    }
}
