//! Carries out what the rules say: for a node, and for a PodProbeMarker.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use k8s_openapi::{
    api::core::v1::Node,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api,
    api::{GetParams, Patch, PatchParams, PostParams, Request},
};
use serde_json::{Value, json};

use super::{AFTER_CONFLICT, Controller, LOOK_AGAIN, NodeFacts, lock, node_key, view::NodeProbes};
use crate::{
    api::{
        apps::{
            node_pod_probe::{NodePodProbe, NodePodProbeSpec, PodProbe},
            pod_probe_marker::{PodProbeMarker, PodProbeMarkerStatus},
        },
        labels,
    },
    domain::probes::{
        FAILED, SUCCEEDED, UNKNOWN, entries, full_name, is_eligible,
        marks::{self, Keys, Outcome},
        name_of, parts_of, reserved,
    },
    k8s::{path, pod::PodView, selector::Selector},
    runtime::{apply, clock, queue::Requeue, watches::ObjectKey},
};

/// A Pod of a node and what it is to be brought to.
struct Judged<'a> {
    /// The PodProbeMarkers that probe it.
    markers: Vec<&'a PodProbeMarker>,
    outcomes: Vec<Outcome<'a>>,
    /// Keys that it may still carry and nobody wants.
    gone: Keys,
}

/// Whether everything that it may leave on Pods is noted, and it is held until that is removed.
fn is_noted(marker: &PodProbeMarker) -> bool {
    has_finalizer(marker) && Keys::of(marker).without(&Keys::noted(marker)).is_empty()
}

fn has_finalizer(marker: &PodProbeMarker) -> bool {
    marker.metadata.finalizers.iter().flatten().any(|name| name == labels::PROBE_CLEANUP_FINALIZER)
}

fn is_deleting(marker: &PodProbeMarker) -> bool {
    marker.metadata.deletion_timestamp.is_some()
}

fn selects(marker: &PodProbeMarker, pod: &PodView) -> bool {
    Selector::of(&marker.spec.selector).is_ok_and(|selector| !selector.is_empty() && selector.matches(&pod.labels))
}

/// What a Pod is to be brought to. None: a PodProbeMarker is not noted yet, so everything has to wait.
fn judge<'a>(
    pod: &PodView,
    probes: Option<&'a NodeProbes>,
    markers: &'a [Arc<PodProbeMarker>],
    is_virtual: bool,
) -> Option<Judged<'a>> {
    let entry = probes.and_then(|probes| probes.entry(pod.uid()));
    let has_entry = |marker: &PodProbeMarker| {
        let mut names = entry.into_iter().flat_map(|entry| &entry.probes);
        names.any(|probe| parts_of(probe).is_some_and(|(name, _)| name == name_of(marker)))
    };
    let mut judged = Judged { markers: Vec::new(), outcomes: Vec::new(), gone: Keys::default() };
    let mut wanted = Keys::default();
    for marker in markers {
        let marker = marker.as_ref();
        let selected = selects(marker, pod);
        if selected && !is_deleting(marker) {
            if !is_noted(marker) {
                return None;
            }
            let current = Keys::of(marker);
            judged.gone.add(&Keys::noted(marker).without(&current));
            wanted.add(&current);
            judged.markers.push(marker);
            for probe in &marker.spec.probes {
                if is_virtual {
                    judged.outcomes.extend(of_condition(marker, probe, pod));
                } else if let Some(state) =
                    probes.and_then(|p| p.state(pod.uid(), &full_name(name_of(marker), &probe.name)))
                {
                    judged.outcomes.push(Outcome {
                        marker,
                        probe,
                        state: &state.state,
                        message: &state.message,
                        probed: state.probed,
                        transition: state.transition,
                        writes_condition: true,
                    });
                }
            }
        } else if has_entry(marker) || (selected && is_deleting(marker)) {
            judged.gone.add(&Keys::noted(marker));
            // Of one that is being deleted the spec can still be changed, by whoever may not write its keys on Pods.
            if !is_deleting(marker) {
                judged.gone.add(&Keys::of(marker));
            }
        }
    }
    judged.gone = judged.gone.without(&wanted);
    Some(judged)
}

/// The result of a probe of a serverless Pod: somebody else probes, and writes the condition.
fn of_condition<'a>(
    marker: &'a PodProbeMarker,
    probe: &'a crate::api::apps::pod_probe_marker::MarkedProbe,
    pod: &PodView,
) -> Option<Outcome<'a>> {
    let condition = pod.condition(&probe.pod_condition_type)?;
    let state = match condition.status.as_str() {
        "True" => SUCCEEDED,
        "False" => FAILED,
        _ => UNKNOWN,
    };
    Some(Outcome { marker, probe, state, message: "", probed: None, transition: None, writes_condition: false })
}

impl Controller {
    /// Brings the Pods of a node to the results of their probes, then its NodePodProbe to what has to be probed.
    pub(super) async fn reconcile_node(&self, node: &str) -> kube::Result<Requeue> {
        let probes = self.probes.get(&node_key(node));
        let mut keys = lock(&self.index).pods_on(node);
        for entry in probes.iter().flat_map(|probes| &probes.entries) {
            let key = ObjectKey::new(&entry.namespace, &entry.name);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        if keys.is_empty() {
            return Ok(Requeue::Await);
        }
        let facts = match self.node_facts(node).await? {
            Some(facts) => facts,
            // Its entries go with their Pods, so that nothing waits for them.
            None if probes.is_some() => NodeFacts { uid: String::new(), is_virtual: false },
            None => return Ok(Requeue::Await),
        };
        if facts.is_virtual && !self.serverless {
            return Ok(Requeue::Await);
        }
        let mut wanted: Vec<PodProbe> = Vec::new();
        let mut left_alone: HashSet<String> = HashSet::new();
        let mut failure = None;
        for key in &keys {
            let Some(pod) = self.context.pods.get(key).filter(|pod| &*pod.node_name == node && is_eligible(pod)) else {
                continue;
            };
            let markers = self.markers.by_index(&key.namespace);
            let Some(judged) = judge(&pod, probes.as_deref(), &markers, facts.is_virtual) else {
                left_alone.insert(pod.uid().to_owned());
                continue;
            };
            let made = match self.mark(&pod, &judged).await {
                Ok(()) if facts.is_virtual => continue,
                Ok(()) => self.entry(&pod, &judged).await,
                Err(error) => Err(error),
            };
            match made {
                Ok(entry) => wanted.extend(entry),
                // One Pod that cannot be written does not hold up the others.
                Err(error) => {
                    tracing::warn!(pod = %key, %error, "the results of its probes cannot be shown on this Pod");
                    left_alone.insert(pod.uid().to_owned());
                    failure = Some(error);
                }
            }
        }
        let written = match facts.is_virtual {
            true => Ok(Requeue::Await),
            false => self.write_spec(node, &facts, probes.as_deref(), wanted, &left_alone).await,
        }?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        if written == Requeue::Await && left_alone.is_empty() {
            self.is_up_to_date(node);
        }
        Ok(written)
    }

    /// No Pod of the node carries what changed PodProbeMarkers do not want any more.
    fn is_up_to_date(&self, node: &str) {
        let mut done = Vec::new();
        for (marker, nodes) in lock(&self.outdated).iter_mut() {
            if nodes.remove(node) && nodes.is_empty() {
                done.push(marker.clone());
            }
        }
        for marker in done {
            self.marker_queue.add(marker);
        }
    }

    async fn node_facts(&self, node: &str) -> kube::Result<Option<NodeFacts>> {
        if let Some(known) = lock(&self.nodes).get(node) {
            return Ok(Some(known.clone()));
        }
        let api: Api<Node> = Api::all(self.context.client.clone());
        let Some(found) = api.get_metadata_opt(node).await? else { return Ok(None) };
        let type_ = found.metadata.labels.as_ref().and_then(|all| all.get(labels::NODE_TYPE));
        let facts = NodeFacts {
            is_virtual: type_.is_some_and(|type_| type_ == labels::NODE_TYPE_VIRTUAL_KUBELET),
            uid: found.metadata.uid.unwrap_or_default(),
        };
        lock(&self.nodes).insert(node.into(), facts.clone());
        Ok(Some(facts))
    }

    /// Shows the results on the Pod, unless it was brought to the same before.
    async fn mark(&self, pod: &PodView, judged: &Judged<'_>) -> kube::Result<()> {
        let Judged { outcomes, gone, .. } = judged;
        if outcomes.is_empty() && gone.is_empty() {
            return Ok(());
        }
        let fingerprint = marks::fingerprint(outcomes, gone);
        if lock(&self.applied).get(pod.uid()) == Some(&fingerprint) {
            return Ok(());
        }
        let Some(live) = self.read(pod).await? else { return Ok(()) };
        if let Some(patch) = marks::patch(&live, outcomes, gone) {
            let api: Api<PodView> = Api::namespaced(self.context.client.clone(), pod.namespace());
            match api.patch_status(pod.name(), &PatchParams::default(), &Patch::Strategic(patch)).await {
                Ok(changed) => {
                    self.context.pods.upsert(changed);
                }
                // It is gone, or another one has its name: news of that is on the way.
                Err(error) if matches!(apply::code(&error), Some(404 | 409)) => return Ok(()),
                Err(error) => return Err(error),
            }
            tracing::info!(pod = %ObjectKey::of(pod), results = ?shown(outcomes), "results of probes shown");
        }
        lock(&self.applied).insert(pod.uid().into(), fingerprint);
        Ok(())
    }

    /// The Pod in full, at least as new as the view of it; from the API server's memory.
    async fn read(&self, pod: &PodView) -> kube::Result<Option<Value>> {
        let get = GetParams::at(pod.metadata.resource_version.as_deref().unwrap_or("0"));
        let pods = Request::new(path::pods(pod.namespace()));
        let request = pods.get(pod.name(), &get).map_err(kube::Error::BuildRequest)?;
        match self.context.client.request::<Value>(request).await {
            Err(error) if apply::code(&error) == Some(404) => Ok(None),
            other => other.map(|live| Some(live).filter(|live| live["metadata"]["uid"] == *pod.uid())),
        }
    }

    /// What is probed in the Pod.
    async fn entry(&self, pod: &PodView, judged: &Judged<'_>) -> kube::Result<Option<PodProbe>> {
        let mut ports = lock(&self.ports).get(pod.uid()).cloned();
        if ports.is_none() && entries::needs_ports(&judged.markers) {
            let read = self.read(pod).await?.as_ref().map(entries::ports_of).unwrap_or_default();
            ports = Some(lock(&self.ports).entry(pod.uid().into()).or_insert(Arc::new(read)).clone());
        }
        Ok(entries::entry(pod, &judged.markers, &ports.unwrap_or_default()))
    }

    /// Writes what has to be probed on a node, if that is not there already.
    async fn write_spec(
        &self,
        node: &str,
        facts: &NodeFacts,
        probes: Option<&NodeProbes>,
        wanted: Vec<PodProbe>,
        left_alone: &HashSet<String>,
    ) -> kube::Result<Requeue> {
        let only = self.context.only_namespace.as_deref();
        let stays = |namespace: &str, uid: &str| only.is_some_and(|only| only != namespace) || left_alone.contains(uid);
        let mut by_uid: BTreeMap<String, PodProbe> = wanted.into_iter().map(|pod| (pod.uid.clone(), pod)).collect();
        let found = probes.map(|probes| &*probes.entries).unwrap_or_default();
        let is_as_wanted = |entry: &super::view::Entry| match by_uid.get(&*entry.uid) {
            Some(wanted) => entries::fingerprint(wanted) == entry.fingerprint,
            None => stays(&entry.namespace, &entry.uid),
        };
        let is_there = |uid: &String| found.iter().any(|entry| *entry.uid == **uid);
        if found.iter().all(is_as_wanted) && by_uid.keys().all(is_there) {
            return Ok(Requeue::Await);
        }

        let api: Api<NodePodProbe> = Api::all(self.context.client.clone());
        let owner = OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: node.to_owned(),
            uid: facts.uid.clone(),
            ..OwnerReference::default()
        };
        let Some(live) = api.get_opt(node).await? else {
            let spec = NodePodProbeSpec { pod_probes: by_uid.into_values().collect() };
            if spec.pod_probes.is_empty() || facts.uid.is_empty() {
                return Ok(Requeue::Await);
            }
            let metadata = ObjectMeta {
                name: Some(node.to_owned()),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            };
            let made = NodePodProbe { metadata, spec, status: None };
            return self.take(api.create(&PostParams::default(), &made).await);
        };
        let (mut list, mut seen): (Vec<PodProbe>, HashSet<String>) = Default::default();
        for entry in &live.spec.pod_probes {
            let next = by_uid.remove(&entry.uid);
            let next = next.or_else(|| stays(&entry.namespace, &entry.uid).then(|| entry.clone()));
            list.extend(next.filter(|next| seen.insert(next.uid.clone())));
        }
        list.extend(by_uid.into_values());
        let mut patch = json!({ "metadata": { "uid": live.metadata.uid, "resourceVersion": live.metadata.resource_version },
            "spec": { "podProbes": list } });
        if live.metadata.owner_references.as_ref().is_none_or(Vec::is_empty) && !facts.uid.is_empty() {
            patch["metadata"]["ownerReferences"] = json!([owner]);
        }
        self.take(api.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await)
    }

    /// Takes over the answer to a write of a NodePodProbe.
    fn take(&self, result: kube::Result<NodePodProbe>) -> kube::Result<Requeue> {
        match result {
            Ok(written) => {
                self.probes.upsert(written.into());
                for marker in self.markers.select(is_deleting) {
                    self.marker_queue.add(ObjectKey::of(marker.as_ref()));
                }
                Ok(Requeue::Await)
            }
            Err(error) if matches!(apply::code(&error), Some(404 | 409)) => Ok(Requeue::After(AFTER_CONFLICT)),
            Err(error) => Err(error),
        }
    }

    /// Holds a PodProbeMarker and notes its keys before anything is written for it, tells of it, and lets it go.
    pub(super) async fn reconcile_marker(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let Some(marker) = self.markers.get(key) else { return Ok(Requeue::Await) };
        if is_deleting(&marker) {
            return self.release(key, &marker).await;
        }
        let (current, noted) = (Keys::of(&marker), Keys::noted(&marker));
        let mut next = noted.clone();
        next.add(&current);
        if has_finalizer(&marker) && noted == next && noted != current {
            // It has been changed: its Pods may carry what it does not name any more.
            let nodes = self.nodes_of(key);
            let left = {
                let mut outdated = lock(&self.outdated);
                let is_known = outdated.contains_key(key);
                let left = outdated.entry(key.clone()).or_insert_with(|| nodes.clone());
                if !is_known {
                    nodes.iter().for_each(|node| self.node_queue.add(node_key(node)));
                }
                // A node without Pods of it has nothing to remove.
                left.retain(|node| nodes.contains(node));
                left.len()
            };
            if left > 0 {
                self.record(key, &marker).await?;
                return Ok(Requeue::After(LOOK_AGAIN));
            }
            next = current;
        }
        lock(&self.outdated).remove(key);
        if !has_finalizer(&marker) || noted != next {
            let mut finalizers = marker.metadata.finalizers.clone().unwrap_or_default();
            if !has_finalizer(&marker) {
                finalizers.push(labels::PROBE_CLEANUP_FINALIZER.to_owned());
            }
            let note = json!({ labels::PROBE_MARKS: next.note() });
            let changed =
                self.patch_metadata(key, &marker, json!({ "finalizers": finalizers, "annotations": note })).await?;
            if changed {
                self.wake_nodes_of(key);
                self.marker_queue.add(key.clone());
            }
            return Ok(if changed { Requeue::Await } else { Requeue::After(AFTER_CONFLICT) });
        }
        self.record(key, &marker).await
    }

    async fn release(&self, key: &ObjectKey, marker: &PodProbeMarker) -> kube::Result<Requeue> {
        if !has_finalizer(marker) {
            return Ok(Requeue::Await);
        }
        let nodes = self.nodes_with_entries_of(key);
        // A node without a NodePodProbe has no entries, and neither have nodes that are gone.
        if !nodes.is_empty() {
            nodes.iter().for_each(|node| self.node_queue.add(node_key(node)));
            return Ok(Requeue::After(LOOK_AGAIN));
        }
        let mut finalizers = marker.metadata.finalizers.clone().unwrap_or_default();
        finalizers.retain(|name| name != labels::PROBE_CLEANUP_FINALIZER);
        let done = self.patch_metadata(key, marker, json!({ "finalizers": finalizers })).await?;
        Ok(if done { Requeue::Await } else { Requeue::After(AFTER_CONFLICT) })
    }

    /// Whether it was written; not if the object has changed meanwhile.
    async fn patch_metadata(
        &self,
        key: &ObjectKey,
        marker: &PodProbeMarker,
        mut metadata: Value,
    ) -> kube::Result<bool> {
        metadata["uid"] = json!(marker.metadata.uid);
        metadata["resourceVersion"] = json!(marker.metadata.resource_version);
        let api: Api<PodProbeMarker> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        match api.patch(&key.name, &PatchParams::default(), &patch).await {
            Ok(changed) => {
                let is_over = is_deleting(&changed) && !has_finalizer(&changed);
                if !is_over {
                    self.markers.upsert(changed);
                }
                Ok(true)
            }
            Err(error) if apply::code(&error) == Some(404) => Ok(true),
            Err(error) if apply::code(&error) == Some(409) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn record(&self, key: &ObjectKey, marker: &PodProbeMarker) -> kube::Result<Requeue> {
        let recorded = marker.status.clone().unwrap_or_default();
        let status = PodProbeMarkerStatus {
            observed_generation: marker.metadata.generation.unwrap_or_default(),
            matched_pods: i64::try_from(lock(&self.index).count_of(key)).unwrap_or(i64::MAX),
            conditions: reserved::conditions(marker, clock::now()),
        };
        if marker.status.is_some() && recorded == status {
            return Ok(Requeue::Await);
        }
        let api: Api<PodProbeMarker> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let mut patch = json!({ "metadata": { "uid": marker.metadata.uid, "resourceVersion": marker.metadata.resource_version },
            "status": { "observedGeneration": status.observed_generation, "matchedPods": status.matched_pods } });
        if recorded.conditions != status.conditions {
            patch["status"]["conditions"] = json!(status.conditions);
        }
        match api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(changed) => {
                self.markers.upsert(changed);
                Ok(Requeue::Await)
            }
            Err(error) if apply::code(&error) == Some(404) => Ok(Requeue::Await),
            Err(error) if apply::code(&error) == Some(409) => Ok(Requeue::After(AFTER_CONFLICT)),
            Err(error) => Err(error),
        }
    }
}

/// For the log.
fn shown(outcomes: &[Outcome<'_>]) -> Vec<String> {
    outcomes.iter().map(|o| format!("{}={}", full_name(name_of(o.marker), &o.probe.name), o.state)).collect()
}
