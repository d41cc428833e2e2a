//! Advanced StatefulSet: Pods with an ordinal, a name and claims of their own, updated in place where that is possible.
//!
//! v1beta1 is stored and v1alpha1 is served from the same schema: a field that OpenKruise's v1alpha1 lacks survives every
//! write of either version. Templates stay raw JSON, as in [`super::clone_set`].

// The derive repeats the visibility of the spec in a private module.
#![allow(unreachable_pub)]

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    clone_set::{InPlaceUpdateStrategy, PriorityStrategy},
    lifecycle::Lifecycle,
};
use crate::{anything, date_time, rules::selector_stays};

/// What a StatefulSet should be.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.kruise.io",
    version = "v1beta1",
    kind = "StatefulSet",
    plural = "statefulsets",
    namespaced,
    shortname = "sts",
    shortname = "asts",
    doc = "StatefulSet runs Pods with an ordinal, a stable name and claims of their own, like the built-in StatefulSet. It can update them in place, several at a time, leave out ordinals, and update the size of claims.",
    status = "StatefulSetStatus",
    derive = "Default",
    derive = "PartialEq",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.labelSelector"
    ),
    printcolumn = r#"{"name":"DESIRED","type":"integer","jsonPath":".spec.replicas","description":"The desired number of Pods"}"#,
    printcolumn = r#"{"name":"CURRENT","type":"integer","jsonPath":".status.replicas","description":"Pods that there are"}"#,
    printcolumn = r#"{"name":"UPDATED","type":"integer","jsonPath":".status.updatedReplicas","description":"Pods on the update revision"}"#,
    printcolumn = r#"{"name":"READY","type":"integer","jsonPath":".status.readyReplicas","description":"Pods that are ready"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"CONTAINERS","type":"string","jsonPath":".spec.template.spec.containers[*].name","description":"Name of the first container","priority":1}"#,
    printcolumn = r#"{"name":"IMAGES","type":"string","jsonPath":".spec.template.spec.containers[*].image","description":"Image of the first container","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(has(self.serviceName) ? self.serviceName : '') == (has(oldSelf.serviceName) ? oldSelf.serviceName : '')").message("spec.serviceName cannot be changed: it is part of the host names of the Pods; create another StatefulSet"))]
#[x_kube(validation = Rule::new("(has(self.podManagementPolicy) ? self.podManagementPolicy : 'OrderedReady') == (has(oldSelf.podManagementPolicy) ? oldSelf.podManagementPolicy : 'OrderedReady')").message("spec.podManagementPolicy cannot be changed: delete the StatefulSet with --cascade=orphan and create it again"))]
pub struct StatefulSetSpec {
    /// The desired number of Pods. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// The Pods that belong to the StatefulSet, by their labels. It has to match the template, and cannot be changed.
    #[x_kube(validation = Rule::new(selector_stays("")).message("spec.selector is immutable: a change would orphan the existing Pods; create a new StatefulSet"))]
    pub selector: LabelSelector,
    /// The Pod that is made. A change of it is a new revision.
    #[schemars(schema_with = "anything")]
    pub template: Value,
    /// Claims that every ordinal gets a copy of, named TEMPLATE-STATEFULSET-ORDINAL. A change of them alone is no new
    /// revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "anything")]
    pub volume_claim_templates: Option<Value>,
    /// What a change of volumeClaimTemplates does to claims that are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_update_strategy: Option<VolumeClaimUpdateStrategy>,
    /// The Service that gives the Pods their host names. It cannot be changed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service_name: String,
    /// OrderedReady (the default): one Pod after the other, each available before the next. Parallel: all at once. It
    /// cannot be changed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod_management_policy: String,
    /// How Pods get to a new revision.
    #[serde(default)]
    pub update_strategy: StatefulSetUpdateStrategy,
    /// How many revisions that no Pod has are kept. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision_history_limit: Option<i32>,
    /// Ordinals that no Pod gets: numbers, or ranges such as "3-7", both ends included. Pods with higher ordinals take
    /// their place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserve_ordinals: Vec<IntOrString>,
    /// Hooks with which another controller holds up the deletion and the update of a Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// How the number of Pods is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_strategy: Option<StatefulSetScaleStrategy>,
    /// When claims are deleted. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_retention_policy: Option<ClaimRetentionPolicy>,
    /// Where the ordinals begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordinals: Option<Ordinals>,
}

/// What a change of the claim templates does to claims that are there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeClaimUpdateStrategy {
    /// OnDelete (the default): only claims that are created later follow the template. OnPodRollingUpdate: the claims of a
    /// Pod grow when the Pod is updated; needs the feature gate StatefulSetAutoResizePVCGate.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub type_: String,
}

/// How the number of Pods is changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StatefulSetScaleStrategy {
    /// How many Pods may be unavailable while Pods are added: a number, or a percentage of replicas rounded down, at least
    /// 1. Default: no limit. It has no effect unless podManagementPolicy is Parallel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
}

/// When claims are deleted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimRetentionPolicy {
    /// When the StatefulSet is deleted: Retain (the default) or Delete.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub when_deleted: String,
    /// When the ordinal of a claim is not wanted any more: Retain (the default) or Delete.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub when_scaled: String,
}

/// Where the ordinals begin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Ordinals {
    /// The first ordinal, 0 or more. Needs the feature gate StatefulSetStartOrdinal. Default 0.
    pub start: i32,
}

/// How Pods get to a new revision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StatefulSetUpdateStrategy {
    /// RollingUpdate (the default) or OnDelete.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub type_: String,
    /// How a rolling update is done. Not with OnDelete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
}

/// How a rolling update is done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// How many Pods are kept on the old revision, those with the lowest ordinals: a number, or a percentage of replicas
    /// rounded up. With two replicas or more, less than 100% leaves at least one Pod to be updated. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<IntOrString>,
    /// How many Pods may be unavailable during an update: a number, or a percentage of replicas rounded down, at least 1.
    /// Default 1. More than 1 needs podManagementPolicy Parallel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// ReCreate (the default), InPlaceIfPossible or InPlaceOnly. The last two need the readiness gate InPlaceUpdateReady in
    /// the template.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pod_update_policy: String,
    /// true: no Pod is updated. Scaling goes on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Which Pods are updated first, instead of those with the highest ordinals. Needs podManagementPolicy Parallel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unordered_update: Option<UnorderedUpdate>,
    /// How an update in place is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_place_update_strategy: Option<InPlaceUpdateStrategy>,
    /// Seconds that a Pod has to be ready before it counts as available: 0 to 300. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_ready_seconds: Option<i32>,
}

/// An update in an order other than that of the ordinals.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UnorderedUpdate {
    /// Which Pods are updated first. Without it, those with the highest ordinals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_strategy: Option<PriorityStrategy>,
}

/// What a StatefulSet is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StatefulSetStatus {
    /// The generation of the spec that the status is about.
    pub observed_generation: i64,
    /// Pods that there are.
    pub replicas: i32,
    /// Pods that are ready.
    pub ready_replicas: i32,
    /// Pods that have been ready for minReadySeconds and are in service.
    pub available_replicas: i32,
    /// Pods on the current revision.
    pub current_replicas: i32,
    /// Pods on the update revision.
    pub updated_replicas: i32,
    /// Of them, ready.
    pub updated_ready_replicas: i32,
    /// Of them, available.
    pub updated_available_replicas: i32,
    /// The revision that Pods were on before.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub current_revision: String,
    /// The revision that Pods are updated to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub update_revision: String,
    /// How often the name of a new revision was taken.
    pub collision_count: i32,
    /// Ready, Reconciling and Stalled, as kstatus reads them; FailedCreatePod and FailedUpdatePod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StatefulSetCondition>,
    /// The selector as text, for the scale subresource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label_selector: String,
    /// How many claims fit their template, for each claim template in its order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volume_claims: Vec<VolumeClaimStatus>,
}

/// One observation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StatefulSetCondition {
    /// Ready, Reconciling, Stalled, FailedCreatePod or FailedUpdatePod.
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

/// The claims of one claim template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeClaimStatus {
    /// Name of the claim template.
    pub volume_claim_name: String,
    /// Claims of Pods that there are which ask for what the template asks, or more.
    pub compatible_replicas: i32,
    /// Of them, those whose volume has the size that they ask for.
    pub compatible_ready_replicas: i32,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::CRDS;

    /// Every recorded StatefulSet, as the API server gave it: one object, created and updated, in both versions.
    const RECORDED: &str = include_str!("testdata/stateful_sets.json");

    #[test]
    fn recorded_stateful_sets_are_read_without_loss() {
        let recorded: Vec<Value> = serde_json::from_str(RECORDED).unwrap();
        assert_eq!(recorded.len(), 4);
        for object in recorded {
            let read: StatefulSet = serde_json::from_value(object.clone()).unwrap();
            let mut written = serde_json::to_value(&read).unwrap();
            assert_eq!(written["apiVersion"], "apps.kruise.io/v1beta1");
            for member in ["apiVersion", "metadata"] {
                written[member] = object[member].clone();
            }
            if object["apiVersion"] == "apps.kruise.io/v1alpha1" {
                // What v1alpha1 of OpenKruise lacks is zero, and zeros are written.
                for count in ["updatedReadyReplicas", "updatedAvailableReplicas"] {
                    assert_eq!(written["status"].as_object_mut().unwrap().remove(count), Some(json!(0)));
                }
            }
            assert_eq!(written, object);
        }
    }

    #[test]
    fn zeros_are_written_in_a_status() {
        let written = serde_json::to_value(StatefulSetStatus::default()).unwrap();
        let counts = [
            "observedGeneration",
            "replicas",
            "readyReplicas",
            "availableReplicas",
            "currentReplicas",
            "updatedReplicas",
            "updatedReadyReplicas",
            "updatedAvailableReplicas",
            "collisionCount",
        ];
        let want: serde_json::Map<String, Value> = counts.iter().map(|count| ((*count).to_owned(), json!(0))).collect();
        assert_eq!(written, Value::Object(want));
    }

    #[test]
    fn empty_structs_of_go_clients_are_read() {
        let read: StatefulSetSpec = serde_json::from_value(json!({
            "selector": {}, "template": {"metadata": {"creationTimestamp": null}},
            "updateStrategy": {}, "volumeClaimUpdateStrategy": {}, "reserveOrdinals": [1, "3-7"],
            "scaleStrategy": {"maxUnavailable": "20%"}, "ordinals": {},
        }))
        .unwrap();
        assert_eq!(read.update_strategy, StatefulSetUpdateStrategy::default());
        assert_eq!(read.reserve_ordinals, [IntOrString::Int(1), IntOrString::String("3-7".into())]);
        assert_eq!(read.ordinals, Some(Ordinals { start: 0 }));
    }

    #[test]
    fn the_definition_is_that_of_2_1() {
        let crd = CRDS.iter().find(|crd| crd.name == "statefulsets.apps.kruise.io").unwrap();
        let rendered = json!(crd.render());
        let names = &rendered["spec"]["names"];
        assert_eq!(
            (&names["kind"], &names["singular"], &rendered["spec"]["scope"]),
            (&json!("StatefulSet"), &json!("statefulset"), &json!("Namespaced"))
        );
        for version in rendered["spec"]["versions"].as_array().unwrap() {
            assert_eq!(
                version["subresources"],
                json!({"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                    "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.labelSelector"}})
            );
            let columns = version["additionalPrinterColumns"].as_array().unwrap();
            let columns: Vec<(&str, &str, i64)> = columns
                .iter()
                .map(|column| {
                    let text = |key: &str| column[key].as_str().unwrap();
                    (text("name"), text("jsonPath"), column["priority"].as_i64().unwrap_or(0))
                })
                .collect();
            assert_eq!(
                columns,
                [
                    ("DESIRED", ".spec.replicas", 0),
                    ("CURRENT", ".status.replicas", 0),
                    ("UPDATED", ".status.updatedReplicas", 0),
                    ("READY", ".status.readyReplicas", 0),
                    ("AGE", ".metadata.creationTimestamp", 0),
                    ("CONTAINERS", ".spec.template.spec.containers[*].name", 1),
                    ("IMAGES", ".spec.template.spec.containers[*].image", 1),
                ]
            );
        }
    }

    /// 10.1 item 1: OpenKruise's v1alpha1 loses the fields that only v1beta1 has.
    #[test]
    fn lossy_v1alpha1() {
        let crd = CRDS.iter().find(|crd| crd.name == "statefulsets.apps.kruise.io").unwrap();
        let rendered = json!(crd.render());
        let versions = rendered["spec"]["versions"].as_array().unwrap();
        let [stored, served] = versions.as_slice() else { panic!("{} versions", versions.len()) };
        assert_eq!(
            (&stored["name"], &stored["storage"], &stored["served"]),
            (&json!("v1beta1"), &json!(true), &json!(true))
        );
        assert_eq!(
            (&served["name"], &served["storage"], &served["served"]),
            (&json!("v1alpha1"), &json!(false), &json!(true))
        );
        for part in ["schema", "subresources", "additionalPrinterColumns"] {
            assert!(stored[part].is_object() || stored[part].is_array(), "{part}");
            assert_eq!(stored[part], served[part], "{part}");
        }
        let spec = &stored["schema"]["openAPIV3Schema"]["properties"]["spec"];
        for only_in_v1beta1 in [
            "reserveOrdinals",
            "lifecycle",
            "scaleStrategy",
            "persistentVolumeClaimRetentionPolicy",
            "ordinals",
            "volumeClaimUpdateStrategy",
        ] {
            assert!(spec["properties"][only_in_v1beta1].is_object(), "{only_in_v1beta1}");
        }
        assert_eq!(spec["required"], json!(["selector", "template"]));
        assert_eq!(rendered["spec"]["names"]["shortNames"], json!(["sts", "asts"]));
        assert_eq!(rendered["spec"]["conversion"]["strategy"], "None");
        assert!(!rendered.to_string().contains("\"default\""), "defaults are written by admission");
    }
}
