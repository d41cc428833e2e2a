//! Advanced DaemonSet: one Pod on each node that fits, updated in place, with a surge or one after the other.
//!
//! v1beta1 is stored and v1alpha1 is served from the same schema: a field that OpenKruise's v1alpha1 lacks survives every
//! write of either version. Templates stay raw JSON, as in [`super::clone_set`].

// The derive repeats the visibility of the spec in a private module.
#![allow(unreachable_pub)]

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{lifecycle::Lifecycle, stateful_set::StatefulSetCondition};
use crate::{anything, rules::selector_stays};

/// With another number, stored while admission is away, the whole DaemonSet could not be read, and would be as if it were not
/// there.
const OF_32_BITS: &str = "type(self) == string || (self >= -2147483648 && self <= 2147483647)";

/// What a DaemonSet should be.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.kruise.io",
    version = "v1beta1",
    kind = "DaemonSet",
    plural = "daemonsets",
    namespaced,
    shortname = "daemon",
    shortname = "ads",
    doc = "DaemonSet runs one Pod on each node that fits, like the built-in DaemonSet. It can update Pods in place, on chosen nodes, or up to a partition, and hold deletions and updates by hooks.",
    status = "DaemonSetStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"DESIRED","type":"integer","jsonPath":".status.desiredNumberScheduled","description":"Nodes that are to have a Pod"}"#,
    printcolumn = r#"{"name":"CURRENT","type":"integer","jsonPath":".status.currentNumberScheduled","description":"Of them, those that have one"}"#,
    printcolumn = r#"{"name":"READY","type":"integer","jsonPath":".status.numberReady","description":"Of them, those whose Pod is ready"}"#,
    printcolumn = r#"{"name":"UP-TO-DATE","type":"integer","jsonPath":".status.updatedNumberScheduled","description":"Of them, those whose Pod is on the update revision"}"#,
    printcolumn = r#"{"name":"AVAILABLE","type":"integer","jsonPath":".status.numberAvailable","description":"Of them, those whose Pod is available"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"CONTAINERS","type":"string","jsonPath":".spec.template.spec.containers[*].name","description":"Name of the first container","priority":1}"#,
    printcolumn = r#"{"name":"IMAGES","type":"string","jsonPath":".spec.template.spec.containers[*].image","description":"Image of the first container","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct DaemonSetSpec {
    /// The Pods that belong to the DaemonSet, by their labels. It has to match the template, and cannot be changed.
    #[x_kube(validation = Rule::new(selector_stays("")).message("spec.selector is immutable: a change would orphan the existing Pods; create a new DaemonSet"))]
    pub selector: LabelSelector,
    /// The Pod that is made. Its nodeSelector, node affinity and tolerations say on which nodes. A change of it is a new
    /// revision.
    #[schemars(schema_with = "anything")]
    pub template: Value,
    /// How Pods get to a new revision.
    #[serde(default)]
    pub update_strategy: DaemonSetUpdateStrategy,
    /// Seconds that a Pod has to be ready before it counts as available. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_ready_seconds: Option<i32>,
    /// How many Pods are created, deleted or updated in one go at most: a number, or a percentage of the nodes that are to
    /// have a Pod, rounded down, at least 1. Default 250.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(OF_32_BITS).message("spec.burstReplicas: want a number of up to 32 bits, or a percentage"))]
    pub burst_replicas: Option<IntOrString>,
    /// How many revisions that no Pod has are kept. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision_history_limit: Option<i32>,
    /// Hooks with which another controller holds up the deletion and the update of a Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// How Pods are added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_strategy: Option<DaemonSetScaleStrategy>,
}

/// How Pods are added.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetScaleStrategy {
    /// true: the partition holds back creations as well as updates: once all nodes but those of the partition have a Pod of
    /// the new revision, no further Pod is created. The annotation `daemonset.kruise.io/progressive-create-pod: "true"` says the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partitioned_scaling: Option<bool>,
}

/// How Pods get to a new revision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetUpdateStrategy {
    /// RollingUpdate (the default) or OnDelete.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub type_: String,
    /// How a rolling update is done. Without effect with OnDelete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdateDaemonSet>,
}

/// How a rolling update of a DaemonSet is done.
#[derive(Clone, Debug, Default, PartialEq, KubeSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RollingUpdateDaemonSet {
    /// Standard (the default): another Pod takes the place of the old one. InPlaceIfPossible: in place where that is possible.
    /// Surging, of older releases, is stored as Standard with maxSurge.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rolling_update_type: String,
    /// How many nodes may be without an available Pod during an update: a number, or a percentage of the nodes that are to
    /// have a Pod, rounded up. Default 1, or 0 if maxSurge is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(OF_32_BITS).message("spec.updateStrategy.rollingUpdate.maxUnavailable: want a number of up to 32 bits, or a percentage"))]
    pub max_unavailable: Option<IntOrString>,
    /// On how many nodes an old and a new Pod may run side by side during an update: a number, or a percentage rounded up.
    /// Exactly one of maxUnavailable and maxSurge is not 0. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(OF_32_BITS).message("spec.updateStrategy.rollingUpdate.maxSurge: want a number of up to 32 bits, or a percentage"))]
    pub max_surge: Option<IntOrString>,
    /// Only Pods on nodes with these labels are updated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// On how many nodes Pods are kept on the old revision: a number, or a percentage of the nodes that are to have a Pod,
    /// rounded down. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(OF_32_BITS).message("spec.updateStrategy.rollingUpdate.partition: want a number of up to 32 bits, or a percentage"))]
    pub partition: Option<IntOrString>,
    /// true: no update of a Pod begins; one that its hook has already let go is completed. Pods are created and removed as usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// What a DaemonSet is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetStatus {
    /// The generation of the spec that the status is about.
    pub observed_generation: i64,
    /// Nodes that are to have a Pod.
    pub desired_number_scheduled: i32,
    /// Of them, those that have one.
    pub current_number_scheduled: i32,
    /// Nodes that have a Pod and are not to have one.
    pub number_misscheduled: i32,
    /// Of the nodes that are to have a Pod, those whose Pod is ready.
    pub number_ready: i32,
    /// Of the nodes that are to have a Pod, those whose Pod is on the update revision.
    pub updated_number_scheduled: i32,
    /// Of the nodes that are to have a Pod, those whose Pod is available.
    pub number_available: i32,
    /// Of the nodes that are to have a Pod, those that have no available one.
    pub number_unavailable: i32,
    /// How often the name of a new revision was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,
    /// Ready, Reconciling and Stalled, as kstatus reads them; FailedCreatePod and FailedUpdatePod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StatefulSetCondition>,
    /// The hash of the revision that Pods are updated to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub update_revision: String,
    /// The same, under the name that v1alpha1 has for it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub daemon_set_hash: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Every recorded DaemonSet, as the API server gave it: one object, created and updated, in both versions.
    const RECORDED: &str = include_str!("testdata/daemon_sets.json");

    #[test]
    fn recorded_daemon_sets_are_read_without_loss() {
        let recorded: Vec<Value> = serde_json::from_str(RECORDED).unwrap();
        assert_eq!(recorded.len(), 4);
        for object in recorded {
            let read: DaemonSet = serde_json::from_value(object.clone()).unwrap();
            let mut written = serde_json::to_value(&read).unwrap();
            assert_eq!(written["apiVersion"], "apps.kruise.io/v1beta1");
            for member in ["apiVersion", "metadata"] {
                written[member] = object[member].clone();
            }
            // Zeros are written.
            assert_eq!(written["status"].as_object_mut().unwrap().remove("numberUnavailable"), Some(json!(0)));
            assert_eq!(written, object);
        }
    }

    #[test]
    fn zeros_are_written_in_a_status() {
        let written = serde_json::to_value(DaemonSetStatus::default()).unwrap();
        let counts = [
            "observedGeneration",
            "desiredNumberScheduled",
            "currentNumberScheduled",
            "numberMisscheduled",
            "numberReady",
            "updatedNumberScheduled",
            "numberAvailable",
            "numberUnavailable",
        ];
        let want: serde_json::Map<String, Value> = counts.iter().map(|count| ((*count).to_owned(), json!(0))).collect();
        assert_eq!(written, Value::Object(want));
    }

    #[test]
    fn empty_structs_of_go_clients_are_read() {
        let read: DaemonSetSpec = serde_json::from_value(json!({
            "selector": {}, "template": {"metadata": {"creationTimestamp": null}}, "updateStrategy": {},
            "scaleStrategy": {}, "burstReplicas": "10%", "lifecycle": {},
        }))
        .unwrap();
        assert_eq!(read.update_strategy, DaemonSetUpdateStrategy::default());
        assert_eq!(read.scale_strategy, Some(DaemonSetScaleStrategy::default()));
        assert_eq!(read.burst_replicas, Some(IntOrString::String("10%".into())));
    }

    #[test]
    fn the_definition_is_that_of_4_1() {
        let rendered = json!(crate::definitions::daemon_sets());
        let versions = rendered["spec"]["versions"].as_array().unwrap();
        let [stored, served] = versions.as_slice() else { panic!("{} versions", versions.len()) };
        for (version, name, storage) in [(stored, "v1beta1", true), (served, "v1alpha1", false)] {
            assert_eq!((&version["name"], &version["storage"]), (&json!(name), &json!(storage)));
            assert_eq!(version["served"], true);
            assert_eq!(
                version["subresources"],
                json!({"status": {}}),
                "no scale: there is nothing to write under spec"
            );
            let columns = version["additionalPrinterColumns"].as_array().unwrap();
            let columns: Vec<(&str, &str)> =
                columns.iter().map(|c| (c["name"].as_str().unwrap(), c["jsonPath"].as_str().unwrap())).collect();
            assert_eq!(
                columns,
                [
                    ("DESIRED", ".status.desiredNumberScheduled"),
                    ("CURRENT", ".status.currentNumberScheduled"),
                    ("READY", ".status.numberReady"),
                    ("UP-TO-DATE", ".status.updatedNumberScheduled"),
                    ("AVAILABLE", ".status.numberAvailable"),
                    ("AGE", ".metadata.creationTimestamp"),
                    ("CONTAINERS", ".spec.template.spec.containers[*].name"),
                    ("IMAGES", ".spec.template.spec.containers[*].image"),
                ]
            );
            let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
            assert_eq!(spec["required"], json!(["selector", "template"]));
            assert!(spec["properties"]["scaleStrategy"].is_object(), "v1alpha1 has it too, so nothing is lost there");
        }
        assert_eq!(stored["schema"], served["schema"]);
        assert_eq!(rendered["spec"]["names"]["shortNames"], json!(["daemon", "ads"]));
        assert_eq!(rendered["spec"]["conversion"]["strategy"], "None");
        assert!(!rendered.to_string().contains("\"default\""), "defaults are written by admission");
    }

    #[test]
    fn a_number_that_cannot_be_read_is_refused_wherever_a_share_is_wanted() {
        for version in json!(crate::definitions::daemon_sets())["spec"]["versions"].as_array().unwrap() {
            let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
            let rolling = &spec["updateStrategy"]["properties"]["rollingUpdate"]["properties"];
            let all =
                [("burstReplicas", spec), ("maxUnavailable", rolling), ("maxSurge", rolling), ("partition", rolling)];
            for (name, of) in all {
                assert_eq!(of[name]["x-kubernetes-int-or-string"], true, "{name}");
                let [rule] = of[name]["x-kubernetes-validations"].as_array().unwrap().as_slice() else {
                    panic!("{name}")
                };
                assert_eq!(rule["rule"], OF_32_BITS, "{name}");
                assert!(rule["message"].as_str().unwrap().contains(&format!("{name}: ")), "{rule}");
            }
        }
        let read = |number: i64| serde_json::from_value::<RollingUpdateDaemonSet>(json!({"partition": number}));
        assert!(read(2_147_483_647).is_ok() && read(-2_147_483_648).is_ok());
        assert!(read(2_147_483_648).is_err() && read(-2_147_483_649).is_err(), "the rule is needed");
    }

    #[test]
    fn edge_40_the_selector_cannot_be_changed() {
        for version in json!(crate::definitions::daemon_sets())["spec"]["versions"].as_array().unwrap() {
            let selector = &version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["selector"];
            assert_eq!(selector["x-kubernetes-validations"][0]["rule"], selector_stays(""));
        }
    }
}
