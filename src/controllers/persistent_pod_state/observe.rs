//! What there is: the Pods of a target, their annotations where somebody asks for them, and nodes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream};
use serde_json::Value;

use super::{Controller, is_ready};
use crate::{
    api::apps::persistent_pod_state::PodState,
    controllers::{BY_CONTROLLER, owned_text},
    domain::kinds::persistent_pod_state::{
        plan::{self, NodeFacts, Notes, PlacedPod, StateFacts, StateTargetView},
        spec::StateSpec,
    },
    k8s::{
        node::NodeView,
        pod::PodView,
        time::{Now, Sighting},
    },
    runtime::watches::ObjectKey,
};

/// Reads at a time.
const AT_ONCE: usize = 8;

impl Controller {
    /// Everything that the rules need.
    pub(super) async fn observe(
        &self,
        key: &ObjectKey,
        spec: &StateSpec,
        target: Option<StateTargetView>,
        recorded: &BTreeMap<String, PodState>,
        now: Now,
    ) -> StateFacts {
        let Some(uid) = target.as_ref().filter(|target| !target.is_going).map(|target| target.uid.clone()) else {
            return StateFacts { target, ..StateFacts::default() };
        };
        let is_of = |pod: &PodView| pod.controller.as_deref().is_some_and(|owner| owner.is(&spec.group, &spec.kind));
        let views = self.context.pods.select_by_index(&BY_CONTROLLER, &owned_text(&key.namespace, &uid), is_of);
        let mut notes = self.notes(key, spec, &views).await;
        let placed = |pod: &Arc<PodView>| {
            let is_active = !pod.is_deleting() && !pod.is_finished();
            PlacedPod {
                name: pod.name().to_owned(),
                uid: pod.uid().to_owned(),
                node: pod.node_name.as_str().to_owned(),
                is_ready: is_active && is_ready(pod),
                is_active,
                notes: notes.remove(pod.uid()).unwrap_or_default(),
            }
        };
        let pods: Vec<PlacedPod> = views.iter().map(placed).collect();
        let of_pods = pods.iter().filter(|pod| pod.is_ready).map(|pod| pod.node.as_str());
        let of_records = recorded.values().map(|state| state.node_name.as_str());
        let names: BTreeSet<&str> = of_pods.chain(of_records).filter(|name| !name.is_empty()).collect();
        let nodes = self.nodes(key, spec, names, now).await;
        let is_lost = |facts: &NodeFacts| !matches!(facts, NodeFacts::There(_, None));
        // Whether others have the same labels matters only for what is lost, or has other labels now.
        let is_off = |state: &PodState| match nodes.get(&state.node_name) {
            Some(NodeFacts::There(node, _)) => plan::is_relabelled(spec, state, node),
            _ => state.node_name.is_empty(),
        };
        let is_needed = nodes.values().any(is_lost) || recorded.values().any(is_off);
        let all_nodes = if is_needed { self.context.nodes.list() } else { Vec::new() };
        StateFacts { target, pods, nodes, all_nodes }
    }

    /// The annotations of Pods that are Ready, by UID. A Pod is read again when it has changed.
    async fn notes(&self, key: &ObjectKey, spec: &StateSpec, pods: &[Arc<PodView>]) -> HashMap<String, Notes> {
        if spec.annotations.is_empty() {
            return HashMap::new();
        }
        let ready = || pods.iter().filter(|pod| is_ready(pod) && !pod.is_deleting() && !pod.is_finished());
        let known = self.memories.with(key, |memory| {
            let uids: BTreeSet<&str> = ready().map(|pod| pod.uid()).collect();
            memory.notes.retain(|uid, (_, keys, _)| uids.contains(uid.as_str()) && *keys == spec.annotations);
            memory.notes.clone()
        });
        let mut known = known.unwrap_or_default();
        let version = |pod: &PodView| pod.resource_version().unwrap_or_default().to_owned();
        let is_new = |pod: &&Arc<PodView>| known.get(pod.uid()).is_none_or(|(read, ..)| *read != version(pod));
        let reads: Vec<_> = ready()
            .filter(is_new)
            .cloned()
            .map(|pod| async move {
                let read = self.pods.read(&pod).await;
                (pod, read)
            })
            .collect();
        let mut reads = stream::iter(reads).buffer_unordered(AT_ONCE);
        let mut notes = HashMap::new();
        let mut new = Vec::new();
        while let Some((pod, read)) = reads.next().await {
            match read {
                Ok(Some(whole)) => new.push((pod, asked(&whole, &spec.annotations))),
                // What was read before may be outdated.
                Ok(None) | Err(_) => drop(notes.insert(pod.uid().to_owned(), Notes::Unread)),
            }
        }
        drop(reads);
        for (pod, annotations) in new {
            known.insert(pod.uid().to_owned(), (version(&pod), spec.annotations.clone(), annotations));
        }
        for (uid, (_, _, annotations)) in &known {
            notes.entry(uid.clone()).or_insert_with(|| Notes::Known(annotations.clone()));
        }
        self.memories.with(key, |memory| memory.notes = known);
        notes
    }

    /// What is known of these nodes. One that the watch does not show is looked for in the API server.
    async fn nodes(
        &self,
        key: &ObjectKey,
        spec: &StateSpec,
        names: BTreeSet<&str>,
        now: Now,
    ) -> HashMap<String, NodeFacts> {
        let mut found = HashMap::new();
        for name in names {
            let facts = match self.context.nodes.find(name).await {
                Ok(Some(node)) => {
                    let away = spec.clear_after.and_then(|_| self.away(key, &node, now));
                    NodeFacts::There(node, away)
                }
                Ok(None) => NodeFacts::Gone,
                Err(_) => NodeFacts::Unknown,
            };
            found.insert(name.to_owned(), facts);
        }
        found
    }

    /// How long a node has not been Ready.
    fn away(&self, key: &ObjectKey, node: &NodeView, now: Now) -> Option<Duration> {
        let away = self.memories.with(key, |memory| {
            if node.ready {
                memory.away.remove(node.name());
                return None;
            }
            let seen =
                || (node.ready_since, node.ready_since.map_or(Sighting::live(now), |at| Sighting::found(now, at)));
            let known = memory.away.entry(node.name().to_owned()).or_insert_with(seen);
            if known.0 != node.ready_since {
                *known = seen();
            }
            Some(known.1.age(now))
        });
        away.flatten()
    }
}

/// Of the annotations of a Pod those that are asked for.
fn asked(pod: &Value, keys: &BTreeSet<String>) -> BTreeMap<String, String> {
    let of = |key: &String| Some((key.clone(), pod["metadata"]["annotations"].get(key)?.as_str()?.to_owned()));
    keys.iter().filter_map(of).collect()
}
