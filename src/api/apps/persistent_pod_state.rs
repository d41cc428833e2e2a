//! PersistentPodState: the place of each Pod of a StatefulSet, kept while the Pod is away.

// The derive repeats the visibility of the spec in a private module.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::conditions;

/// Value of [`PersistentPodStateSpec::persistent_pod_state_retention_policy`], and its meaning while it is empty.
pub const WHEN_SCALED: &str = "WhenScaled";
/// Value of [`PersistentPodStateSpec::persistent_pod_state_retention_policy`].
pub const WHEN_DELETED: &str = "WhenDeleted";

/// Which Pods keep what.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.kruise.io",
    version = "v1alpha1",
    kind = "PersistentPodState",
    plural = "persistentpodstates",
    namespaced,
    doc = "PersistentPodState brings the Pods of a StatefulSet back to where they ran: it records the node of each Pod that is Ready, and a Pod that is created again under the same name gets node selectors and affinities for it. It keeps the node, not the address: an address is kept only by a network plug-in that asks for it in an annotation of the Pod, which can be recorded and put back too.",
    status = "PersistentPodStateStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct PersistentPodStateSpec {
    /// The StatefulSet, of apps or of apps.kruise.io, in the same namespace; or a kind that the ConfigMap
    /// kruise-configuration names. It cannot be changed, and can have one PersistentPodState.
    #[x_kube(validation = Rule::new("self.kind == oldSelf.kind && self.name == oldSelf.name && self.apiVersion.split('/')[0] == oldSelf.apiVersion.split('/')[0]").message("spec.targetRef cannot be changed: create another PersistentPodState"))]
    pub target_ref: StateTarget,
    /// Annotations of the Pods that are recorded and put back, for example the one in which a network plug-in notes the
    /// address of a Pod and looks for the one that a Pod is to have. An annotation of the Pod template wins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub persistent_pod_annotations: Vec<PersistentAnnotation>,
    /// Node labels that have to be the same: the Pod is Pending while no such node has room for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_persistent_topology: Option<TopologyKeys>,
    /// Node labels that should be the same, by weight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preferred_persistent_topology: Vec<PreferredTopology>,
    /// WhenScaled (the default): what is recorded of a Pod goes when the StatefulSet is scaled down below it.
    /// WhenDeleted: it stays until the StatefulSet is deleted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub persistent_pod_state_retention_policy: String,
}

/// A workload in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StateTarget {
    /// Group and version: apps/v1, or apps.kruise.io/v1beta1. Only the group counts.
    #[schemars(length(max = 253))]
    pub api_version: String,
    /// Kind: StatefulSet.
    #[schemars(length(max = 63))]
    pub kind: String,
    /// Name.
    #[schemars(length(max = 253))]
    pub name: String,
}

impl StateTarget {
    /// Its API group; empty for core.
    pub fn group(&self) -> &str {
        crate::group_of(&self.api_version)
    }
}

/// An annotation that is recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PersistentAnnotation {
    /// Its key. Those of kruise.io and kruise.rs are refused.
    pub key: String,
}

/// Keys of node labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyKeys {
    /// Keys of node labels, for example kubernetes.io/hostname or topology.kubernetes.io/zone.
    pub node_topology_keys: Vec<String>,
}

/// Keys of node labels that should be the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreferredTopology {
    /// How much a fitting node counts, from 1 to 100.
    pub weight: i32,
    /// The keys; a node fits if all of them are the same.
    pub preference: TopologyKeys,
}

/// What is recorded. Written by Kruise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PersistentPodStateStatus {
    /// The generation of the spec that this status is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// UID of the workload whose Pods are recorded. When another workload gets its name, the records are dropped. Empty: the
    /// records belong to whichever workload has the name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target_uid: String,
    /// What is recorded of each Pod, by its name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "pod_states")]
    pub pod_states: BTreeMap<String, PodState>,
    /// Ready: the place of every Ready Pod is recorded. Reconciling and Stalled say what prevents that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

impl PersistentPodStateStatus {
    /// Whether it is about another workload than the one with this UID, which had the same name.
    pub fn is_of_another(&self, uid: &str) -> bool {
        !self.target_uid.is_empty() && self.target_uid != uid
    }
}

/// What is recorded of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodState {
    /// The node on which it was Ready last; empty when that node is gone and others have the same labels.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// The labels of that node, of those that are asked for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_topology_labels: BTreeMap<String, String>,
    /// The annotations of the Pod, of those that are asked for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// One field to whoever keeps track of owners: a list of them would grow with the map, and so would each of its writes.
fn pod_states(generator: &mut SchemaGenerator) -> Schema {
    let state = generator.subschema_for::<PodState>();
    json_schema!({ "type": "object", "additionalProperties": state, "x-kubernetes-map-type": "atomic" })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_object_of_openkruise_keeps_every_byte() {
        let stored = json!({
            "apiVersion": "apps.kruise.io/v1alpha1", "kind": "PersistentPodState",
            "metadata": {"name": "db", "namespace": "ns", "generation": 1},
            "spec": {
                "targetRef": {"apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet", "name": "db"},
                "persistentPodAnnotations": [{"key": "k"}],
                "requiredPersistentTopology": {"nodeTopologyKeys": ["kubernetes.io/hostname"]},
                "preferredPersistentTopology": [{"weight": 100, "preference": {"nodeTopologyKeys": ["zone"]}}],
                "persistentPodStateRetentionPolicy": "WhenScaled",
            },
            "status": {"observedGeneration": 1, "podStates": {"db-0": {"nodeName": "n1",
                "nodeTopologyLabels": {"kubernetes.io/hostname": "n1"}, "annotations": {"k": "v"}}}},
        });
        let state: PersistentPodState = serde_json::from_value(stored.clone()).unwrap();
        assert_eq!(serde_json::to_value(&state).unwrap(), stored);
        assert_eq!(state.spec.target_ref.group(), "apps.kruise.io");
    }

    #[test]
    fn what_is_stored_past_the_schema_still_decodes() {
        let target = json!({"apiVersion": "", "kind": "", "name": ""});
        let object: Value = json!({"metadata": {"name": "b"}, "spec": {"targetRef": target},
            "status": {"podStates": {"a": {}}}});
        serde_json::from_value::<PersistentPodState>(object).unwrap();
    }
}
