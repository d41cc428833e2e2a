//! NodePodProbe: what the daemon of a node probes, and what it found.

// The derive repeats the visibility of the spec in a private module.
#![allow(unreachable_pub)]

use jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::pod_probe_marker::probe;
use crate::date_time;

/// What is probed on the node.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.kruise.io",
    version = "v1alpha1",
    kind = "NodePodProbe",
    plural = "nodepodprobes",
    doc = "NodePodProbe holds what is probed on the node of its name, and the results. The manager writes the spec from PodProbeMarkers, the node's daemon the status; nobody else has to write it.",
    status = "NodePodProbeStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct NodePodProbeSpec {
    /// Pods of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_probes: Vec<PodProbe>,
}

/// The probes of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodProbe {
    /// Name of the Pod.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID: another Pod of the same name is not meant.
    pub uid: String,
    /// Its address.
    #[serde(default, rename = "IP", skip_serializing_if = "String::is_empty")]
    pub ip: String,
    /// What is probed in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<ContainerProbe>,
}

/// One probe.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerProbe {
    /// PODPROBEMARKER#PROBE.
    pub name: String,
    /// The container.
    pub container_name: String,
    /// How; the names of ports have become numbers.
    #[schemars(schema_with = "probe")]
    pub probe: Value,
}

/// What the daemon found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePodProbeStatus {
    /// Pods with results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_probe_statuses: Vec<PodProbeStatus>,
}

/// The results of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodProbeStatus {
    /// Name of the Pod.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
    /// One for each probe that has a result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probe_states: Vec<ContainerProbeState>,
}

/// One result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerProbeState {
    /// PODPROBEMARKER#PROBE.
    pub name: String,
    /// Succeeded, Failed, or Unknown: the container has started, and nothing is known yet.
    pub state: String,
    /// When the state or the message last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub last_probe_time: Option<Timestamp>,
    /// When the state last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub last_transition_time: Option<Timestamp>,
    /// What the probe said, up to 1,024 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::{super::pod_probe_marker::PodProbeMarker, *};

    /// A PodProbeMarker and the NodePodProbe of its Pods, as the API server of an OpenKruise cluster gave them.
    const RECORDED: &str = include_str!("testdata/pod_probes.json");

    #[test]
    fn recorded_objects_are_read_without_loss() {
        let recorded: Value = serde_json::from_str(RECORDED).unwrap();
        let marker: PodProbeMarker = serde_json::from_value(recorded["marker"].clone()).unwrap();
        let node: NodePodProbe = serde_json::from_value(recorded["node"].clone()).unwrap();
        for (name, written) in [("marker", serde_json::json!(marker)), ("node", serde_json::json!(node))] {
            for part in ["spec", "status"] {
                assert_eq!(written[part], recorded[name][part], "{name}");
            }
        }
    }
}
