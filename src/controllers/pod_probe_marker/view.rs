//! A NodePodProbe as the manager keeps it: thousands of them are in memory at once.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer};

use crate::{
    api::apps::node_pod_probe::{ContainerProbe, ContainerProbeState, NodePodProbe, PodProbe, PodProbeStatus},
    domain::node::probes::{MAX_MESSAGE, budget, entries},
    k8s::shared::Text,
};

/// The compact form.
#[derive(Clone, Debug, Default, PartialEq, Resource)]
#[resource(inherit = "NodePodProbe")]
pub(super) struct NodeProbes {
    pub(super) metadata: ObjectMeta,
    /// Whether it has an owner.
    pub(super) is_owned: bool,
    /// What is probed, by Pod.
    pub(super) entries: Box<[Entry]>,
    /// What was found, by Pod.
    pub(super) results: Box<[Results]>,
}

/// What is probed in a Pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) namespace: Text,
    pub(super) name: Box<str>,
    pub(super) uid: Box<str>,
    /// Of all that it says besides its probes.
    pub(super) fingerprint: u64,
    /// Bytes besides its probes.
    pub(super) head: u32,
    pub(super) probes: Box<[Probe]>,
}

/// One probe of an entry.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Probe {
    /// PODPROBEMARKER#PROBE.
    pub(super) name: Text,
    pub(super) fingerprint: u64,
    /// What it takes, with its result.
    pub(super) bytes: u32,
}

impl Entry {
    /// What it takes.
    pub(super) fn bytes(&self) -> usize {
        (self.head as usize) + self.probes.iter().map(|probe| probe.bytes as usize).sum::<usize>()
    }

    pub(super) fn probe(&self, name: &str) -> Option<&Probe> {
        self.probes.iter().find(|probe| probe.name == *name)
    }
}

/// What was found in a Pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Results {
    pub(super) uid: Box<str>,
    pub(super) states: Box<[ProbeState]>,
}

/// One result. Most messages are those of thousands of others.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ProbeState {
    pub(super) name: Text,
    pub(super) state: Text,
    pub(super) message: Text,
    pub(super) probed: Option<Timestamp>,
    pub(super) transition: Option<Timestamp>,
}

impl NodeProbes {
    pub(super) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    pub(super) fn entry(&self, uid: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| &*entry.uid == uid)
    }

    pub(super) fn state(&self, uid: &str, probe: &str) -> Option<&ProbeState> {
        let results = self.results.iter().find(|results| &*results.uid == uid)?;
        results.states.iter().find(|state| state.name == *probe)
    }
}

/// The first [`MAX_MESSAGE`] characters.
fn capped(message: &str) -> &str {
    message.char_indices().nth(MAX_MESSAGE).map_or(message, |(end, _)| &message[..end])
}

impl From<NodePodProbe> for NodeProbes {
    fn from(object: NodePodProbe) -> Self {
        let bytes = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let probe = |probe: &ContainerProbe| Probe {
            name: probe.name.as_str().into(),
            fingerprint: entries::fingerprint(probe),
            bytes: bytes(budget::size_of_probe(probe)),
        };
        let entry = |pod: PodProbe| Entry {
            fingerprint: entries::fingerprint_of_head(&pod),
            head: bytes(budget::size_of_head(&pod)),
            probes: pod.probes.iter().map(probe).collect(),
            namespace: pod.namespace.as_str().into(),
            name: pod.name.into(),
            uid: pod.uid.into(),
        };
        let state = |state: ContainerProbeState| ProbeState {
            name: state.name.as_str().into(),
            state: state.state.as_str().into(),
            // A daemon that is not ours may say more than a condition of a Pod is to have.
            message: capped(&state.message).into(),
            probed: state.last_probe_time,
            transition: state.last_transition_time,
        };
        let results = |status: PodProbeStatus| Results {
            uid: status.uid.into(),
            states: status.probe_states.into_iter().map(state).collect(),
        };
        Self {
            is_owned: object.metadata.owner_references.is_some_and(|owners| !owners.is_empty()),
            metadata: ObjectMeta {
                name: object.metadata.name,
                uid: object.metadata.uid,
                resource_version: object.metadata.resource_version,
                deletion_timestamp: object.metadata.deletion_timestamp,
                ..ObjectMeta::default()
            },
            entries: object.spec.pod_probes.into_iter().map(entry).collect(),
            results: object.status.unwrap_or_default().pod_probe_statuses.into_iter().map(results).collect(),
        }
    }
}

impl<'de> Deserialize<'de> for NodeProbes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        NodePodProbe::deserialize(deserializer).map(Into::into)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_of_a_daemon_is_cut() {
        for (message, length) in
            [("fine".to_owned(), 4), ("ü".repeat(MAX_MESSAGE), 2 * MAX_MESSAGE), ("ü".repeat(5000), 2 * MAX_MESSAGE)]
        {
            let state = json!({"name": "m#p", "state": "Failed", "message": message});
            let status =
                json!({"podProbeStatuses": [{"name": "p", "namespace": "a", "uid": "u", "probeStates": [state]}]});
            let view: NodeProbes =
                serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {}, "status": status})).unwrap();
            assert_eq!(view.state("u", "m#p").unwrap().message.len(), length);
        }
    }
}
