//! The spec of a NodePodProbe: which probes fit into it, and how it is written.

use std::{
    collections::{BTreeMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::{
    AFTER_WATCHED_CONFLICT, COUNT_PAUSE, Controller, NodeFacts, lock,
    marker::is_deleting,
    node_key,
    owner::owner,
    view::{Entry, NodeProbes},
};
use crate::{
    api::{
        apps::{
            node_pod_probe::{NodePodProbe, NodePodProbeSpec, PodProbe},
            pod_probe_marker::PodProbeMarker,
        },
        labels,
    },
    domain::node::probes::{
        budget::{self, Ask, Limit},
        entries, parts_of,
        report::Unfit,
    },
    runtime::{apply, queue::Requeue, watches::ObjectKey},
};

/// What one Pod is to have in the object.
pub(super) struct Wanted {
    /// Its entry; without probes nothing of the Pod is probed, but for those that are held.
    pub(super) entry: PodProbe,
    /// Names and bytes of probes that cannot have room in any case.
    pub(super) left_out: Vec<(String, usize)>,
    /// PodProbeMarkers whose probes stay as they are.
    pub(super) held: Vec<Box<str>>,
}

/// What does not fit into a NodePodProbe.
#[derive(Debug, Default, PartialEq)]
pub(super) struct LeftOut {
    /// What PodProbeMarkers report of it.
    reported: Vec<(ObjectKey, Unfit)>,
    /// Hashes of all of it, by Pod and probe.
    all: HashSet<u64>,
}

/// Probes of one PodProbeMarker that a node keeps words for.
const MOST_REPORTED: usize = 8;

fn hash_of(pod: &str, probe: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (pod, probe).hash(&mut hasher);
    hasher.finish()
}

impl LeftOut {
    /// Whether a probe, by its full name, is left out in the Pod with this UID.
    pub(super) fn has(&self, pod: &str, probe: &str) -> bool {
        !self.all.is_empty() && self.all.contains(&hash_of(pod, probe))
    }

    fn add(&mut self, pod: &PodProbe, probe: &str, bytes: usize, limit: Limit) {
        self.all.insert(hash_of(&pod.uid, probe));
        let (marker, name) = parts_of(probe).unwrap_or_default();
        let of_marker = |key: &ObjectKey| *key.namespace == *pod.namespace && *key.name == *marker;
        let mut of = self.reported.iter_mut().filter(|(key, _)| of_marker(key));
        if let Some((_, unfit)) = of.find(|(_, unfit)| *unfit.probe == *name && unfit.limit == limit) {
            unfit.add(&pod.name, bytes);
        } else if self.reported.iter().filter(|(key, _)| of_marker(key)).count() < MOST_REPORTED {
            let pods = vec![pod.name.as_str().into()];
            let unfit = Unfit { probe: name.into(), bytes, limit, count: 1, pods };
            self.reported.push((ObjectKey::new(&pod.namespace, marker), unfit));
        }
    }
}

impl Wanted {
    fn holds(&self, probe: &str) -> bool {
        parts_of(probe).is_some_and(|(marker, _)| self.held.iter().any(|held| **held == *marker))
    }

    /// Whether an entry is what it should be.
    fn is(&self, entry: &Entry) -> bool {
        let wanted = &self.entry.probes;
        let is_wanted = |name: &str, fingerprint: u64| {
            wanted.iter().any(|probe| probe.name == name && entries::fingerprint(probe) == fingerprint)
        };
        entry.fingerprint == entries::fingerprint_of_head(&self.entry)
            && entry.probes.iter().all(|probe| self.holds(&probe.name) || is_wanted(&probe.name, probe.fingerprint))
            && wanted.iter().all(|probe| entry.probe(&probe.name).is_some())
    }

    /// The entry, with what is held of the stored one. None: it has no probes.
    fn merged(mut self, stored: Option<&PodProbe>) -> Option<PodProbe> {
        let held = stored.into_iter().flat_map(|stored| &stored.probes).filter(|probe| self.holds(&probe.name));
        let mut probes: Vec<_> = held.cloned().collect();
        probes.append(&mut self.entry.probes);
        self.entry.probes = probes;
        (!self.entry.probes.is_empty()).then_some(self.entry)
    }
}

/// What a node is to be brought to.
pub(super) struct Plan<'a> {
    pub(super) node: &'a str,
    pub(super) facts: &'a NodeFacts,
    pub(super) probes: Option<&'a NodeProbes>,
    pub(super) wanted: Vec<Wanted>,
    /// UIDs of Pods whose entries stay as they are.
    pub(super) left_alone: &'a HashSet<String>,
    pub(super) only_namespace: Option<&'a str>,
}

impl Plan<'_> {
    fn stays(&self, namespace: &str, uid: &str) -> bool {
        self.only_namespace.is_some_and(|only| only != namespace) || self.left_alone.contains(uid)
    }

    fn known(&self, uid: &str) -> Option<&Entry> {
        self.probes.and_then(|probes| probes.entry(uid))
    }

    /// Leaves out the probes that do not fit.
    fn fit(&mut self) -> LeftOut {
        let mut asks: Vec<Ask<'_>> = Vec::new();
        for wanted in &self.wanted {
            let known = self.known(&wanted.entry.uid);
            let held = known.into_iter().flat_map(|entry| &entry.probes).filter(|probe| wanted.holds(&probe.name));
            let is_there = |name: &str| known.is_some_and(|entry| entry.probe(name).is_some());
            let probes = wanted.entry.probes.iter();
            asks.push(Ask {
                namespace: &wanted.entry.namespace,
                fixed: held.map(|probe| probe.bytes as usize).sum(),
                head: budget::size_of_head(&wanted.entry),
                probes: probes.map(|probe| (budget::size_of_probe(probe), is_there(&probe.name))).collect(),
            });
        }
        let others = self.probes.into_iter().flat_map(|probes| &probes.entries);
        for entry in others.filter(|entry| self.stays(&entry.namespace, &entry.uid)) {
            asks.push(Ask { namespace: &entry.namespace, fixed: entry.bytes(), ..Ask::default() });
        }
        let limits = budget::share(&asks);
        let mut left_out = LeftOut::default();
        for (wanted, limits) in self.wanted.iter_mut().zip(limits) {
            for (probe, bytes) in &wanted.left_out {
                left_out.add(&wanted.entry, probe, *bytes, Limit::Pod);
            }
            let probes = std::mem::take(&mut wanted.entry.probes);
            for (probe, limit) in probes.into_iter().zip(limits) {
                match limit {
                    None => wanted.entry.probes.push(probe),
                    Some(limit) => left_out.add(&wanted.entry, &probe.name, budget::size_of_probe(&probe), limit),
                }
            }
        }
        left_out
    }

    /// Whether the object is as wanted.
    fn is_done(&self) -> bool {
        let by_uid: BTreeMap<&str, &Wanted> = self.wanted.iter().map(|w| (w.entry.uid.as_str(), w)).collect();
        let found = self.probes.map(|probes| &*probes.entries).unwrap_or_default();
        found.iter().all(|entry| match by_uid.get(&*entry.uid) {
            Some(wanted) => wanted.is(entry) && !(wanted.entry.probes.is_empty() && entry.probes.is_empty()),
            None => self.stays(&entry.namespace, &entry.uid),
        }) && by_uid.values().all(|wanted| wanted.entry.probes.is_empty() || self.known(&wanted.entry.uid).is_some())
    }

    /// The list that is to be stored instead of another one.
    fn list(self, stored: &[PodProbe]) -> Vec<PodProbe> {
        let mut kept: HashSet<String> = HashSet::new();
        for entry in stored.iter().filter(|entry| self.stays(&entry.namespace, &entry.uid)) {
            kept.insert(entry.uid.clone());
        }
        let mut by_uid: BTreeMap<String, Wanted> =
            self.wanted.into_iter().map(|wanted| (wanted.entry.uid.clone(), wanted)).collect();
        let mut list = Vec::new();
        for entry in stored {
            match by_uid.remove(&entry.uid) {
                Some(wanted) => list.extend(wanted.merged(Some(entry))),
                None if kept.remove(&entry.uid) => list.push(entry.clone()),
                None => {}
            }
        }
        list.extend(by_uid.into_values().filter_map(|wanted| wanted.merged(None)));
        list
    }
}

/// What is left of a list when only that goes which is not in another one.
fn without_what_goes(stored: &[PodProbe], wanted: &[PodProbe]) -> Vec<PodProbe> {
    let by_uid: BTreeMap<&str, &PodProbe> = wanted.iter().map(|pod| (pod.uid.as_str(), pod)).collect();
    let mut left = Vec::new();
    for entry in stored {
        let Some(wanted) = by_uid.get(entry.uid.as_str()) else { continue };
        let mut entry = entry.clone();
        entry.probes.retain(|probe| wanted.probes.iter().any(|other| other.name == probe.name));
        left.push(entry);
    }
    left
}

impl Controller {
    /// Writes what has to be probed on a node, if that is not there already.
    pub(super) async fn write_spec(&self, mut plan: Plan<'_>) -> kube::Result<Requeue> {
        self.note_left_out(plan.node, plan.fit());
        if plan.is_done() {
            return Ok(Requeue::Await);
        }
        let (node, facts) = (plan.node, plan.facts);
        let api: Api<NodePodProbe> = Api::all(self.context.client.clone());
        let Some(mut live) = api.get_opt(node).await? else {
            let spec = NodePodProbeSpec { pod_probes: plan.list(&[]) };
            if spec.pod_probes.is_empty() || facts.uid.is_empty() {
                return Ok(Requeue::Await);
            }
            let metadata = ObjectMeta {
                name: Some(node.to_owned()),
                owner_references: Some(vec![owner(node, facts)]),
                ..ObjectMeta::default()
            };
            let made = NodePodProbe { metadata, spec, status: None };
            let taken = self.take(api.create(&PostParams::default(), &made).await)?;
            return Ok(taken.map_or(Requeue::After(AFTER_WATCHED_CONFLICT), |_| Requeue::Await));
        };
        let list = plan.list(&live.spec.pod_probes);
        let left = without_what_goes(&live.spec.pod_probes, &list);
        // What goes never waits for room for what comes: it is written alone when the object becomes larger.
        let grows = budget::size_of(&list) > budget::size_of(&live.spec.pod_probes);
        if grows && left != live.spec.pod_probes {
            match self.put(&api, &live, &left).await? {
                Some(written) => live = written,
                None => return Ok(Requeue::After(AFTER_WATCHED_CONFLICT)),
            }
        }
        let written = self.put(&api, &live, &list).await?;
        Ok(written.map_or(Requeue::After(AFTER_WATCHED_CONFLICT), |_| Requeue::Await))
    }

    /// None: the object has changed meanwhile.
    async fn put(
        &self,
        api: &Api<NodePodProbe>,
        live: &NodePodProbe,
        list: &[PodProbe],
    ) -> kube::Result<Option<NodePodProbe>> {
        let meta = &live.metadata;
        let patch = json!({ "metadata": { "uid": meta.uid, "resourceVersion": meta.resource_version },
            "spec": { "podProbes": list } });
        let name = meta.name.as_deref().unwrap_or_default();
        self.take(api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await)
    }

    /// Takes over the answer to a write of a NodePodProbe. None: it has changed, or is gone.
    pub(super) fn take(&self, result: kube::Result<NodePodProbe>) -> kube::Result<Option<NodePodProbe>> {
        match result {
            Ok(written) => {
                self.probes.upsert(written.clone().into());
                for marker in self.markers.select(is_deleting) {
                    self.marker_queue.add(ObjectKey::of(marker.as_ref()));
                }
                Ok(Some(written))
            }
            Err(error) if matches!(apply::code(&error), Some(404 | 409)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What does not fit on a node, as far as it has been looked at.
    pub(super) fn left_out_on(&self, node: &str) -> Arc<LeftOut> {
        lock(&self.left_out).get(node).cloned().unwrap_or_default()
    }

    /// Notes what does not fit on a node, and wakes the PodProbeMarkers that have to report it, or its end.
    fn note_left_out(&self, node: &str, left_out: LeftOut) {
        let now = Arc::new(left_out);
        let before = lock(&self.left_out).insert(node.into(), now.clone());
        if before.as_ref() == Some(&now) {
            return;
        }
        self.wake_named(&now);
        match before {
            Some(before) => self.wake_named(&before),
            None => {
                // They may report something that ended while no manager ran.
                let reports = |marker: &PodProbeMarker| {
                    let mut conditions = marker.status.iter().flat_map(|status| &status.conditions);
                    conditions.any(|c| c.type_ == labels::CONDITION_AS_SPECIFIED && c.status == "False")
                };
                for marker in self.markers.select(reports) {
                    self.marker_queue.add_after(ObjectKey::of(marker.as_ref()), COUNT_PAUSE);
                }
            }
        }
        if !now.all.is_empty() {
            // Pods do not keep the marks of what is left out.
            self.node_queue.add(node_key(node));
        }
    }

    /// The node has no Pods that are probed.
    pub(super) fn forget_left_out(&self, node: &str) {
        if let Some(before) = lock(&self.left_out).remove(node) {
            self.wake_named(&before);
        }
    }

    fn wake_named(&self, left_out: &LeftOut) {
        for (marker, _) in &left_out.reported {
            self.marker_queue.add_after(marker.clone(), COUNT_PAUSE);
        }
    }

    /// What of a PodProbeMarker does not fit anywhere. None: some of its nodes have not been looked at yet.
    pub(super) fn left_out_of(&self, marker: &ObjectKey) -> Option<Vec<Unfit>> {
        let nodes = lock(&self.index).nodes_of(marker);
        let left_out = lock(&self.left_out);
        let mut all = Vec::new();
        for node in nodes {
            let of_node = left_out.get(&node)?.reported.iter();
            all.extend(of_node.filter(|(of, _)| of == marker).map(|(_, unfit)| unfit.clone()));
        }
        Some(all)
    }
}
