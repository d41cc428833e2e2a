//! UnitedDeployment: one workload in several subsets, each with nodes and a number of replicas of its own.
//!
//! Templates and patches stay raw JSON: a field that this release does not know must survive every write, and the names of
//! revisions are hashes of their bytes.

// The derive repeats the visibility of the spec in a private module.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{any_list, anything, date_time, rules::selector_stays};

/// What a UnitedDeployment should be.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.kruise.io",
    version = "v1alpha1",
    kind = "UnitedDeployment",
    plural = "uniteddeployments",
    namespaced,
    shortname = "ud",
    doc = "UnitedDeployment runs one workload in several subsets: a Deployment, CloneSet or StatefulSet for each of them, with nodes and a number of replicas of its own.",
    status = "UnitedDeploymentStatus",
    derive = "Default",
    derive = "PartialEq",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.labelSelector"
    ),
    printcolumn = r#"{"name":"DESIRED","type":"integer","jsonPath":".spec.replicas","description":"The desired number of Pods of all subsets"}"#,
    printcolumn = r#"{"name":"CURRENT","type":"integer","jsonPath":".status.replicas","description":"Pods that there are"}"#,
    printcolumn = r#"{"name":"UPDATED","type":"integer","jsonPath":".status.updatedReplicas","description":"Pods on the update revision"}"#,
    printcolumn = r#"{"name":"READY","type":"integer","jsonPath":".status.readyReplicas","description":"Pods that are ready"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct UnitedDeploymentSpec {
    /// The desired number of Pods of all subsets together. Default 1, unless every subset has a number of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 0").message("spec.replicas: want 0 or more"))]
    pub replicas: Option<i32>,
    /// The Pods of all subsets, by their labels. It has to match the template, and cannot be changed.
    #[x_kube(validation = Rule::new(selector_stays("")).message("spec.selector is immutable: a change would orphan the existing Pods; create a new UnitedDeployment"))]
    pub selector: LabelSelector,
    /// The workload that is made for each subset: exactly one of statefulSetTemplate, advancedStatefulSetTemplate, cloneSetTemplate and deploymentTemplate, with its metadata and spec.
    #[serde(default)]
    #[schemars(schema_with = "templates")]
    pub template: Value,
    /// The subsets.
    #[serde(default)]
    pub topology: Topology,
    /// How Pods get to a new revision.
    #[serde(default)]
    pub update_strategy: UnitedUpdateStrategy,
    /// How many revisions that no subset has are kept. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision_history_limit: Option<i32>,
}

/// The subsets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Topology {
    /// The subsets, in the order in which they are filled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subsets: Vec<Subset>,
    /// What happens when Pods of a subset find no place.
    pub schedule_strategy: UnitedScheduleStrategy,
}

/// One subset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Subset {
    /// Its name, a DNS label. Part of the name of its workload.
    pub name: String,
    /// The nodes of its Pods. It cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "anything")]
    pub node_selector_term: Option<Value>,
    /// Tolerations that its Pods get besides those of the template. They cannot be changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "any_list")]
    pub tolerations: Vec<Value>,
    /// Exactly so many Pods: a number or a percentage of spec.replicas. Without it: an equal share of the rest. Not together with minReplicas or maxReplicas of any subset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<IntOrString>,
    /// At least so many Pods, while spec.replicas lasts: a number or a percentage. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<IntOrString>,
    /// At most so many Pods: a number or a percentage. Without it there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_replicas: Option<IntOrString>,
    /// A strategic merge patch on the Pod template of this subset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "anything")]
    pub patch: Option<Value>,
}

/// What happens when Pods of a subset find no place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UnitedScheduleStrategy {
    /// Fixed (the default): nothing. Adaptive: they are made in other subsets.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "schedule_type")]
    pub type_: String,
    /// Settings of Adaptive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<UnitedAdaptive>,
}

/// Settings of Adaptive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UnitedAdaptive {
    /// Seconds after which a Pod that found no node counts as failed. Default 30.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reschedule_critical_seconds: Option<i32>,
    /// Seconds for which a subset gets no more Pods after that. Default 300.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unschedulable_duration: Option<i32>,
    /// true: Pods that found no place stay and are replaced in other subsets until they run. For CloneSets and Deployments only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reserve_unschedulable_pods: bool,
}

/// How Pods get to a new revision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UnitedUpdateStrategy {
    /// Manual, the only one.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub type_: String,
    /// Its settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manual_update: Option<ManualUpdate>,
}

/// Settings of Manual.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ManualUpdate {
    /// By subset: how many of its Pods are kept on old revisions. Default 0.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub partitions: BTreeMap<String, i32>,
}

/// What a UnitedDeployment is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UnitedDeploymentStatus {
    /// The generation of the spec that the status is about.
    pub observed_generation: i64,
    /// Pods that there are, without those that are kept although they find no place.
    pub replicas: i32,
    /// Of them, ready.
    pub ready_replicas: i32,
    /// Pods on the update revision.
    pub updated_replicas: i32,
    /// Of them, ready.
    pub updated_ready_replicas: i32,
    /// Pods that find no place, are kept all the same and are replaced in other subsets.
    pub reserved_pods: i32,
    /// How often the name of a new revision was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,
    /// The revision that all Pods were last on.
    pub current_revision: String,
    /// By subset: the replicas that it was given.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub subset_replicas: BTreeMap<String, i32>,
    /// The subsets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subset_statuses: Vec<SubsetStatus>,
    /// Ready, Reconciling and Stalled, from which tools read how far it is (kstatus); UnitedDeploymentUpdated, SubsetProvisioned, SubsetUpdated and SubsetFailure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<UnitedCondition>,
    /// The roll-out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_status: Option<UnitedUpdateStatus>,
    /// The selector as text, for the scale subresource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label_selector: String,
}

/// One subset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SubsetStatus {
    /// Its name.
    pub name: String,
    /// Pods that there are.
    pub replicas: i32,
    /// Of them, ready.
    pub ready_replicas: i32,
    /// How many Pods are kept on old revisions.
    pub partition: i32,
    /// Pods that find no place and are kept all the same.
    pub reserved_pods: i32,
    /// Schedulable.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<UnitedCondition>,
}

/// The roll-out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UnitedUpdateStatus {
    /// The revision that Pods are updated to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub updated_revision: String,
    /// By subset: how many of its Pods are kept on old revisions now.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub current_partitions: BTreeMap<String, i32>,
}

/// One observation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UnitedCondition {
    /// Its type.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// When the status last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub last_transition_time: Option<Timestamp>,
    /// One word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// In words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

fn schedule_type(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["Adaptive", "Fixed", ""] })
}

/// The templates by kind, whose contents are the API server's to judge.
fn templates(_: &mut SchemaGenerator) -> Schema {
    let template = |of: &str| {
        let description = format!("Metadata and spec of the {of} of each subset.");
        json_schema!({ "description": description, "type": "object", "x-kubernetes-preserve-unknown-fields": true })
    };
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
        "statefulSetTemplate": template("StatefulSet (apps/v1)"),
        "advancedStatefulSetTemplate": template("StatefulSet (apps.kruise.io)"),
        "cloneSetTemplate": template("CloneSet"),
        "deploymentTemplate": template("Deployment"),
    } })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the API server gave it, made by OpenKruise.
    const RECORDED: &str = include_str!("testdata/united_deployment.json");

    #[test]
    fn a_recorded_united_deployment_is_read_without_loss() {
        let object: Value = serde_json::from_str(RECORDED).unwrap();
        let read: UnitedDeployment = serde_json::from_value(object.clone()).unwrap();
        let mut written = serde_json::to_value(&read).unwrap();
        written["metadata"] = object["metadata"].clone();
        // OpenKruise leaves out counts that are zero.
        written["status"].as_object_mut().unwrap().remove("reservedPods");
        for subset in written["status"]["subsetStatuses"].as_array_mut().unwrap() {
            let subset = subset.as_object_mut().unwrap();
            subset.remove("partition");
            subset.remove("reservedPods");
        }
        assert_eq!(written, object);
    }
}
