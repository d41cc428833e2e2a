//! CloneSet: Pods without an identity, updated in place where that is possible.
//!
//! Templates stay raw JSON: a field that this release does not know must survive every write, and the names of revisions
//! are hashes of their bytes.

// The derive repeats the visibility of the spec in a private module.
#![allow(unreachable_pub)]

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{lifecycle::Lifecycle, strategies::UpdateType};
use crate::{anything, date_time, rules::selector_stays};

/// What a CloneSet should be.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.kruise.io",
    version = "v1alpha1",
    kind = "CloneSet",
    plural = "clonesets",
    namespaced,
    shortname = "clone",
    doc = "CloneSet runs a number of equal Pods, like a Deployment, and can update them in place: a new image restarts the container, and the Pod keeps its node, address and volumes.",
    status = "CloneSetStatus",
    derive = "Default",
    derive = "PartialEq",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.labelSelector"
    ),
    printcolumn = r#"{"name":"DESIRED","type":"integer","jsonPath":".spec.replicas","description":"The desired number of Pods"}"#,
    printcolumn = r#"{"name":"UPDATED","type":"integer","jsonPath":".status.updatedReplicas","description":"Pods on the update revision"}"#,
    printcolumn = r#"{"name":"UPDATED_READY","type":"integer","jsonPath":".status.updatedReadyReplicas","description":"Of them, ready"}"#,
    printcolumn = r#"{"name":"UPDATED_AVAILABLE","type":"integer","jsonPath":".status.updatedAvailableReplicas","description":"Of them, available for minReadySeconds"}"#,
    printcolumn = r#"{"name":"READY","type":"integer","jsonPath":".status.readyReplicas","description":"Pods that are ready"}"#,
    printcolumn = r#"{"name":"TOTAL","type":"integer","jsonPath":".status.replicas","description":"Pods that there are"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"CONTAINERS","type":"string","jsonPath":".spec.template.spec.containers[*].name","description":"Name of the first container","priority":1}"#,
    printcolumn = r#"{"name":"IMAGES","type":"string","jsonPath":".spec.template.spec.containers[*].image","description":"Image of the first container","priority":1}"#,
    printcolumn = r#"{"name":"SELECTOR","type":"string","jsonPath":".status.labelSelector","description":"The selector of the Pods","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct CloneSetSpec {
    /// The desired number of Pods. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// The Pods that belong to the CloneSet, by their labels. It has to match the template, and cannot be changed.
    #[x_kube(validation = Rule::new(selector_stays("")).message("spec.selector is immutable: a change would orphan the existing Pods; create a new CloneSet"))]
    pub selector: LabelSelector,
    /// The Pod that is made. A change of it is a new revision.
    #[schemars(schema_with = "anything")]
    pub template: Value,
    /// Claims that every Pod gets a copy of. They belong to the CloneSet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "anything")]
    pub volume_claim_templates: Option<Value>,
    /// How the number of Pods is changed.
    #[serde(default)]
    pub scale_strategy: ScaleStrategy,
    /// How Pods get to a new revision.
    #[serde(default)]
    pub update_strategy: UpdateStrategy,
    /// How many revisions that no Pod has are kept. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision_history_limit: Option<i32>,
    /// Seconds that a Pod has to be ready before it counts as available. Default 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub min_ready_seconds: i32,
    /// Hooks with which another controller holds up the deletion and the update of a Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// Seconds within which a roll-out has to make progress; the condition Progressing reports it. Without it there is no deadline and no such condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_deadline_seconds: Option<i32>,
}

/// How the number of Pods is changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScaleStrategy {
    /// Names of Pods that are deleted first. A name is dropped when its Pod is gone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods_to_delete: Vec<String>,
    /// How many Pods may be unavailable while Pods are added: a number or a percentage, rounded up. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// true: a claim that a lost Pod leaves behind is never given to a new Pod.
    #[serde(rename = "disablePVCReuse", skip_serializing_if = "std::ops::Not::not")]
    pub disable_pvc_reuse: bool,
}

/// How Pods get to a new revision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateStrategy {
    /// ReCreate (the default), InPlaceIfPossible, InPlaceOnly or OnDelete.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub type_: String,
    /// How many Pods are kept on old revisions: a number, or a percentage rounded up. With two replicas or more, less
    /// than 100% leaves at least one Pod to be updated. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<IntOrString>,
    /// How many Pods may be unavailable while others are updated: a number or a percentage, rounded up without maxSurge
    /// and down with it. Default 20%.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// How many Pods there may be beyond replicas: a number or a percentage, rounded up. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<IntOrString>,
    /// true: no Pod is updated. Scaling goes on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Which Pods are updated first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_strategy: Option<PriorityStrategy>,
    /// Labels whose Pods are spread over the whole roll-out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scatter_strategy: Vec<ScatterTerm>,
    /// How an update in place is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_place_update_strategy: Option<InPlaceUpdateStrategy>,
}

impl UpdateStrategy {
    /// Its type. A value that is not known counts as the default.
    pub fn update_type(&self) -> UpdateType {
        UpdateType::parse(&self.type_).unwrap_or_default()
    }
}

/// Which Pods are updated first. Exactly one of its members.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PriorityStrategy {
    /// By the number at the end of a label's value, larger first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub order_priority: Vec<OrderPriorityTerm>,
    /// By the sum of the weights of the selectors that match, larger first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weight_priority: Vec<WeightPriorityTerm>,
}

/// A label whose value gives the order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrderPriorityTerm {
    /// Its key.
    pub ordered_key: String,
}

/// A weight for the Pods that a selector matches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WeightPriorityTerm {
    /// From 0 to 100.
    pub weight: i32,
    /// The Pods.
    pub match_selector: LabelSelector,
}

/// Pods to spread over the whole roll-out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScatterTerm {
    /// Key of a label.
    pub key: String,
    /// Its value.
    pub value: String,
}

/// How an update in place is done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InPlaceUpdateStrategy {
    /// Seconds between making the Pod NotReady and changing it.
    #[serde(skip_serializing_if = "is_zero")]
    pub grace_period_seconds: i32,
}

/// What a CloneSet is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CloneSetStatus {
    /// The generation of the spec that the status is about.
    pub observed_generation: i64,
    /// Pods that there are.
    pub replicas: i32,
    /// Pods that are ready.
    pub ready_replicas: i32,
    /// Pods that have been ready for minReadySeconds and are in service.
    pub available_replicas: i32,
    /// Pods on the update revision.
    pub updated_replicas: i32,
    /// Of them, ready.
    pub updated_ready_replicas: i32,
    /// Of them, available.
    pub updated_available_replicas: i32,
    /// Pods that are to be on the update revision: replicas without the partition.
    pub expected_updated_replicas: i32,
    /// Pods that are being deleted. They are not among the replicas.
    pub terminating_replicas: i32,
    /// The revision that Pods are updated to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub update_revision: String,
    /// The revision that Pods were on before.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub current_revision: String,
    /// How often the name of a new revision was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,
    /// Ready, Reconciling and Stalled, from which tools read how far it is (kstatus); FailedScale, FailedUpdate and Progressing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<CloneSetCondition>,
    /// The selector as text, for the scale subresource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label_selector: String,
}

/// One observation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CloneSetCondition {
    /// Ready, Reconciling, Stalled, FailedScale, FailedUpdate or Progressing.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// Progressing only: when the roll-out last made progress or the reason changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub last_update_time: Option<Timestamp>,
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

fn is_zero(value: &i32) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every recorded CloneSet, as the API server gave it.
    const RECORDED: &str = include_str!("testdata/clone_sets.json");

    #[test]
    fn recorded_clone_sets_are_read_without_loss() {
        let recorded: Vec<Value> = serde_json::from_str(RECORDED).unwrap();
        assert_eq!(recorded.len(), 9);
        for object in recorded {
            let read: CloneSet = serde_json::from_value(object.clone()).unwrap();
            let mut written = serde_json::to_value(&read).unwrap();
            written["metadata"] = object["metadata"].clone();
            // OpenKruise leaves out some counts that are zero, and does not know this one.
            let status = written["status"].as_object_mut().unwrap();
            status.retain(|name, value| *value != 0 || object["status"].get(name).is_some());
            assert_eq!(written, object, "{}", object["metadata"]["name"]);
        }
    }
}
