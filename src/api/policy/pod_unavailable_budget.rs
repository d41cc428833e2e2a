//! PodUnavailableBudget: how many Pods may be out of service at a time, whoever takes them out.

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

use crate::{conditions, rules::optional_selector_stays};

/// Which Pods are protected, and how many of them may be out of service. The Pods are fixed; the number may be changed.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "policy.kruise.io",
    version = "v1alpha1",
    kind = "PodUnavailableBudget",
    namespaced,
    shortname = "pub",
    doc = "PodUnavailableBudget limits how many Pods are out of service at a time: it refuses deletions, evictions and, with the feature gate PodUnavailableBudgetUpdateGate, updates in place, resizes and container restarts that would exceed the limit. A PodDisruptionBudget covers evictions only; the two are independent of each other.",
    status = "PodUnavailableBudgetStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"ALLOWED","type":"integer","jsonPath":".status.unavailableAllowed","description":"Pods that may be taken out of service now"}"#,
    printcolumn = r#"{"name":"CURRENT","type":"integer","jsonPath":".status.currentAvailable","description":"Pods in service"}"#,
    printcolumn = r#"{"name":"DESIRED","type":"integer","jsonPath":".status.desiredAvailable","description":"Pods that have to stay in service"}"#,
    printcolumn = r#"{"name":"TOTAL","type":"integer","jsonPath":".status.totalReplicas","description":"Pods that there should be"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"STATUS","type":"string","jsonPath":".status.conditions[?(@.type==\"Resolved\")].reason","description":"Whether the Pods could be found","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.targetRef) != has(self.selector)").message("spec: set exactly one of targetRef and selector"))]
#[x_kube(validation = Rule::new("has(self.maxUnavailable) != has(self.minAvailable)").message("spec: set exactly one of maxUnavailable and minAvailable"))]
#[x_kube(validation = Rule::new("has(self.targetRef) == has(oldSelf.targetRef) && (!has(self.targetRef) || self.targetRef == oldSelf.targetRef)").message("spec.targetRef cannot be changed: selector and targetRef cannot be modified; create another PodUnavailableBudget"))]
#[x_kube(validation = Rule::new(optional_selector_stays("selector")).message("spec.selector cannot be changed: selector and targetRef cannot be modified; create another PodUnavailableBudget"))]
pub struct PodUnavailableBudgetSpec {
    /// The Pods by their labels, in the namespace of the budget. At least one label has to be named. Instead of
    /// targetRef; cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("size(self.?matchLabels.orValue({})) + size(self.?matchExpressions.orValue([])) > 0").message("spec.selector must not be empty: name at least one label"))]
    pub selector: Option<LabelSelector>,
    /// The workload whose Pods are protected, in the namespace of the budget: a Deployment, ReplicaSet, StatefulSet or
    /// DaemonSet, one of apps.kruise.io, or any kind with a scale subresource (for those, Kruise has to be given the
    /// right to read it; the condition Resolved says which). Instead of selector; cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<BudgetTarget>,
    /// How many Pods may be out of service: a number, or a share of the desired Pods such as "20%", rounded up. Instead of
    /// minAvailable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("type(self) == int ? self >= 0 : self.matches('^(100|[1-9]?[0-9])%$')").message("spec.maxUnavailable: want a number from 0 on, or a share from 0% to 100%"))]
    pub max_unavailable: Option<IntOrString>,
    /// How many Pods have to stay in service: a number, or a share of the desired Pods such as "80%", rounded up. Never
    /// more than the workload wants. Instead of maxUnavailable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("type(self) == int ? self >= 0 : self.matches('^(100|[1-9]?[0-9])%$')").message("spec.minAvailable: want a number from 0 on, or a share from 0% to 100%"))]
    pub min_available: Option<IntOrString>,
}

/// A workload in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BudgetTarget {
    /// Group and version, as in the workload's own manifest: apps/v1, for example. Only the group counts.
    #[schemars(length(max = 253), regex(pattern = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[a-z0-9]+$"))]
    pub api_version: String,
    /// Kind: Deployment, for example.
    #[schemars(length(max = 63), regex(pattern = r"^[A-Z][A-Za-z0-9]*$"))]
    pub kind: String,
    /// Name.
    #[schemars(length(max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
}

impl BudgetTarget {
    /// Its API group; empty for core.
    pub fn group(&self) -> &str {
        crate::group_of(&self.api_version)
    }
}

/// How it stands. Written by Kruise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodUnavailableBudgetStatus {
    /// The generation of the spec that the status is about. While it is behind, requests are judged by a count of their
    /// own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub observed_generation: i64,
    /// Pods whose deletion or eviction was allowed but not observed yet, with the time of consent. An entry ends after 20
    /// seconds at the latest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "moments")]
    pub disrupted_pods: BTreeMap<String, Timestamp>,
    /// Pods whose update, resize or container restart was allowed but is not done yet, with the time of consent. An entry ends
    /// after 10 seconds at the latest, or with the container restart.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "moments")]
    pub unavailable_pods: BTreeMap<String, Timestamp>,
    /// Pods that may be taken out of service now.
    #[serde(default)]
    pub unavailable_allowed: i32,
    /// Pods in service: ready, not being deleted, not being updated in place, and not in one of the lists.
    #[serde(default)]
    pub current_available: i32,
    /// Pods that have to stay in service.
    #[serde(default)]
    pub desired_available: i32,
    /// Pods that there should be: the basis of shares.
    #[serde(default)]
    pub total_replicas: i32,
    /// The selector of the Pods of targetRef, from its scale subresource, so that the webhook needs no right to read that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Resolved: whether the Pods and their number could be found. ProtectsUpdates: whether updates in place are guarded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

/// One field to whoever keeps track of owners: a list of them would grow with the map, and so would each of its writes.
fn moments(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "additionalProperties": { "type": "string", "format": "date-time" },
        "x-kubernetes-map-type": "atomic",
    })
}

impl PodUnavailableBudget {
    /// The status, if it is about the spec as it is now.
    pub fn current_status(&self) -> Option<&PodUnavailableBudgetStatus> {
        self.status.as_ref().filter(|status| status.observed_generation >= self.metadata.generation.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The status of a recorded object: the first Pod of two is being updated in place.
    #[test]
    fn a_recorded_object_keeps_every_byte() {
        let recorded = json!({
            "apiVersion": "policy.kruise.io/v1alpha1", "kind": "PodUnavailableBudget",
            "metadata": {"name": "budget", "namespace": "golden", "generation": 1},
            "spec": {"maxUnavailable": 1, "targetRef": {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "simple"}},
            "status": {"currentAvailable": 1, "desiredAvailable": 1, "observedGeneration": 1, "totalReplicas": 2,
                "unavailableAllowed": 0, "unavailablePods": {"simple-km7tv": "2026-11-21T09:51:19Z"}},
        });
        let budget: PodUnavailableBudget = serde_json::from_value(recorded.clone()).unwrap();
        assert_eq!(serde_json::to_value(&budget).unwrap(), recorded);
        assert!(budget.current_status().is_some());
        assert_eq!(budget.spec.target_ref.unwrap().group(), "apps.kruise.io");
    }

    #[test]
    fn what_is_stored_past_the_schema_still_decodes() {
        for spec in [
            json!({}),
            json!({"maxUnavailable": "200%", "minAvailable": 1}),
            json!({"selector": {}, "targetRef": {"apiVersion": "v1", "kind": "x", "name": ""}}),
        ] {
            let object: Value = json!({"metadata": {"name": "b"}, "spec": spec, "status": {"unavailableAllowed": 1}});
            serde_json::from_value::<PodUnavailableBudget>(object).unwrap();
        }
    }
}
