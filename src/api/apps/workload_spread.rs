//! WorkloadSpread: the Pods of one workload spread over subsets, each with nodes, tolerations, a patch and a limit of its own.
//!
//! Node terms, tolerations and patches stay raw JSON: a field that this release does not know must survive every write.

// The derive repeats the visibility of the spec in a private module.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, LabelSelector},
    util::intstr::IntOrString,
};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::united_deployment::UnitedCondition;
use crate::{any_list, anything, conditions};

/// Value of [`SpreadStrategy::type_`].
pub const ADAPTIVE: &str = "Adaptive";
/// Value of [`SpreadStrategy::type_`], and its meaning while it is empty.
pub const FIXED: &str = "Fixed";

/// How the Pods of a workload are spread.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.kruise.io",
    version = "v1alpha1",
    kind = "WorkloadSpread",
    plural = "workloadspreads",
    namespaced,
    shortname = "ws",
    doc = "WorkloadSpread spreads the Pods of one workload over subsets: a new Pod goes to the first subset that has room, and gets its nodes, its tolerations and its patch. Pods that are there are never replaced.",
    status = "WorkloadSpreadStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"WorkloadName","type":"string","jsonPath":".spec.targetRef.name"}"#,
    printcolumn = r#"{"name":"WorkloadKind","type":"string","jsonPath":".spec.targetRef.kind"}"#,
    printcolumn = r#"{"name":"Adaptive","type":"boolean","jsonPath":".spec.scheduleStrategy.type[?(@ == \"Adaptive\")]","description":"Whether Pods that find no place are made in another subset"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadSpreadSpec {
    /// The workload, in the same namespace: a CloneSet, Deployment, ReplicaSet, StatefulSet, Advanced StatefulSet or Job, or
    /// of a kind that the ConfigMap kruise-configuration names. It cannot be changed.
    #[x_kube(validation = Rule::new("self.kind == oldSelf.kind && self.name == oldSelf.name && self.apiVersion.split('/')[0] == oldSelf.apiVersion.split('/')[0]").message("spec.targetRef cannot be changed: create another WorkloadSpread"))]
    pub target_ref: SpreadTarget,
    /// Which Pods of the workload are meant, and how many there are to be. Default: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_filter: Option<SpreadFilter>,
    /// The subsets, in the order in which they are filled.
    #[schemars(schema_with = "subsets")]
    pub subsets: Vec<SpreadSubset>,
    /// What happens when Pods of a subset find no place.
    #[serde(default)]
    pub schedule_strategy: SpreadStrategy,
}

/// A workload in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpreadTarget {
    /// Group and version, for example apps/v1. Only the group counts.
    #[schemars(length(max = 253))]
    pub api_version: String,
    /// Kind.
    #[schemars(length(max = 63))]
    pub kind: String,
    /// Name.
    #[schemars(length(max = 253))]
    pub name: String,
}

impl SpreadTarget {
    /// Its API group; empty for core.
    pub fn group(&self) -> &str {
        crate::group_of(&self.api_version)
    }
}

/// Which Pods of a workload are meant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SpreadFilter {
    /// Those with fitting labels. Several WorkloadSpreads may be for one workload if no Pod fits two of them. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Where the workload says how many there are to be, for example spec.tfReplicaSpecs.Worker.replicas; the numbers at these
    /// paths are added up. A part that is a number is the place in a list. Default: where its kind has them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replicas_path_list: Vec<String>,
}

/// One subset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpreadSubset {
    /// Its name.
    pub name: String,
    /// The nodes of its Pods: they are required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "anything")]
    pub required_node_selector_term: Option<Value>,
    /// Nodes that its Pods prefer, by weight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "any_list")]
    pub preferred_node_selector_terms: Vec<Value>,
    /// Tolerations that its Pods get besides their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "any_list")]
    pub tolerations: Vec<Value>,
    /// At most so many Pods: a number, or a percentage of those that the workload wants, rounded up. Without it there is no
    /// limit. All subsets have numbers, or all have percentages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_replicas: Option<IntOrString>,
    /// A strategic merge patch on its Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "anything")]
    pub patch: Option<Value>,
}

/// What happens when Pods of a subset find no place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SpreadStrategy {
    /// Fixed (the default): they wait. Adaptive: they are made in the next subset.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "schedule_type")]
    pub type_: String,
    /// Settings of Adaptive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<SpreadAdaptive>,
}

/// Settings of Adaptive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SpreadAdaptive {
    /// Accepted for compatibility with OpenKruise; has no effect.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disable_simulation_schedule: bool,
    /// Seconds after which a Pod that found no node is evicted, so that another one is made in the next subset. Default 0:
    /// it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reschedule_critical_seconds: Option<i32>,
}

/// How the Pods are spread. Written by Kruise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadSpreadStatus {
    /// The generation of the spec that this status is about.
    pub observed_generation: i64,
    /// The subsets, all versions of the workload together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subset_statuses: Vec<SpreadSubsetStatus>,
    /// The subsets, by version of the workload: during a roll-out each version has its own room. New Pods are counted here.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub versioned_subset_statuses: BTreeMap<String, Vec<SpreadSubsetStatus>>,
    /// Ready: the Pods are counted, and none is on its way. Reconciling and Stalled say what prevents that.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

/// One subset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SpreadSubsetStatus {
    /// Its name.
    pub name: String,
    /// Schedulable: False while it gets no Pods because some found no place.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<UnitedCondition>,
    /// Pods that there are.
    pub replicas: i32,
    /// How many more it may get; -1: there is no limit.
    pub missing_replicas: i32,
    /// Pods that are being created, by name, or by the UID in their annotation while they have no name: since when.
    // Written without records too, so that the first one can be added by a patch that is bound to no version.
    #[schemars(schema_with = "times")]
    pub creating_pods: BTreeMap<String, Timestamp>,
    /// Pods that are being deleted, by name: since when.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "times")]
    pub deleting_pods: BTreeMap<String, Timestamp>,
}

/// At least one.
fn subsets(generator: &mut SchemaGenerator) -> Schema {
    let subset = generator.subschema_for::<SpreadSubset>();
    json_schema!({ "type": "array", "items": subset, "minItems": 1 })
}

fn schedule_type(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": [ADAPTIVE, FIXED, ""] })
}

fn times(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": { "type": "string", "format": "date-time" },
        "x-kubernetes-map-type": "atomic" })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the API server gave it, made by OpenKruise.
    const RECORDED: &str = include_str!("testdata/workload_spread.json");

    #[test]
    fn a_recorded_workload_spread_is_read_without_loss() {
        let object: Value = serde_json::from_str(RECORDED).unwrap();
        let read: WorkloadSpread = serde_json::from_value(object.clone()).unwrap();
        let mut written = serde_json::to_value(&read).unwrap();
        written["metadata"] = object["metadata"].clone();
        // OpenKruise leaves out what is empty.
        for list in ["/status/subsetStatuses", "/status/versionedSubsetStatuses/versionIgnored"] {
            for subset in written.pointer_mut(list).unwrap().as_array_mut().unwrap() {
                assert_eq!(subset.as_object_mut().unwrap().remove("creatingPods"), Some(serde_json::json!({})));
            }
        }
        assert_eq!(written["spec"].as_object_mut().unwrap().remove("scheduleStrategy"), Some(serde_json::json!({})));
        assert_eq!(written, object);
    }

    #[test]
    fn entries_of_pods_on_their_way_are_read_and_written_as_openkruise_does() {
        let status = serde_json::json!({"observedGeneration": 2, "versionedSubsetStatuses": {"5d4f": [{"name": "a",
            "replicas": 1, "missingReplicas": 0, "creatingPods": {"web-x": "2026-01-01T00:00:00Z"},
            "deletingPods": {"web-y": "2026-01-01T00:00:05Z"},
            "conditions": [{"type": "Schedulable", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}]}});
        let read: WorkloadSpreadStatus = serde_json::from_value(status.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), status);
    }

    #[test]
    fn what_is_stored_past_the_schema_still_decodes() {
        let target = serde_json::json!({"apiVersion": "", "kind": "", "name": ""});
        let object = serde_json::json!({"metadata": {"name": "b"}, "spec": {"targetRef": target, "subsets": []},
            "status": {"subsetStatuses": [{}], "versionedSubsetStatuses": {"": [{}]}}});
        serde_json::from_value::<WorkloadSpread>(object).unwrap();
    }
}
