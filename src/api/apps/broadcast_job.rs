//! BroadcastJob: a Pod that runs to its end on each node that fits.
//!
//! v1alpha1 and v1beta1 have the same fields; v1beta1 is what is stored, as OpenKruise 1.9 does. The template stays raw
//! JSON, as in [`super::clone_set`]. The types of the spec are those of the template of an AdvancedCronJob too, where nearly
//! everything may be missing.

// The derive repeats the visibility of the spec in a private module.
#![allow(unreachable_pub)]

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{anything, date_time};

/// `spec.parallelism` where nobody wrote one: all nodes at once.
pub const DEFAULT_PARALLELISM: i32 = i32::MAX;

/// What runs on which nodes, and when it is over.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.kruise.io",
    version = "v1beta1",
    kind = "BroadcastJob",
    plural = "broadcastjobs",
    namespaced,
    shortname = "bcj",
    doc = "BroadcastJob runs a Pod to its end on each node that fits: a DaemonSet that ends.",
    status = "BroadcastJobStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Desired","type":"integer","jsonPath":".status.desired","description":"Nodes that are to have a Pod"}"#,
    printcolumn = r#"{"name":"Active","type":"integer","jsonPath":".status.active","description":"Pods that have not ended"}"#,
    printcolumn = r#"{"name":"Succeeded","type":"integer","jsonPath":".status.succeeded","description":"Pods that have succeeded"}"#,
    printcolumn = r#"{"name":"Failed","type":"integer","jsonPath":".status.failed","description":"Pods that have failed"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase","description":"running, paused, completed or failed","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct BroadcastJobSpec {
    /// How many Pods run at a time: a number, or a percentage of the nodes that are to have a Pod, rounded up. 0 begins no
    /// further Pod. Default: all at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<IntOrString>,
    /// The Pod. Its restartPolicy is Never or OnFailure (the default). Its nodeSelector, required node affinity, tolerations
    /// and resource requests say on which nodes it runs. Pods that are there keep the template that they were made from.
    #[schemars(schema_with = "anything")]
    pub template: Value,
    /// When the job is over. Default: {type: Always}.
    #[serde(default)]
    pub completion_policy: CompletionPolicy,
    /// true: no Pod is made or deleted, and the job does not end. Pods that run go on. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// What happens when a Pod fails. Default: {type: FailFast}.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
}

/// When a job is over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CompletionPolicy {
    /// Always (the default): the job is over when the Pod of each node has ended. Never: it goes on, for nodes that join.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub type_: String,
    /// Seconds after its begin when a job that is not over has failed, and its Pods are deleted. A paused job does not fail
    /// before it goes on. Only with type Always. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<i64>,
    /// Seconds after its end when the job is deleted with its Pods. Only with type Always. Default: it is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// What happens when a Pod fails.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FailurePolicy {
    /// FailFast (the default): the job has failed, and Pods that run are deleted. Continue: the other nodes go on. Pause:
    /// spec.paused is set to true, once for each further failure; the job goes on when somebody sets it to false.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub type_: String,
    /// How often containers of a Pod may be restarted, all together, with restartPolicy OnFailure. A Pod that exceeds it
    /// is stopped and has failed. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_limit: Option<i32>,
}

/// How far a job is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BroadcastJobStatus {
    /// Complete or Failed, when the job is over; Ready, Reconciling and Stalled, as kstatus reads them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<BroadcastJobCondition>,
    /// When the job began.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub start_time: Option<Timestamp>,
    /// When the job was over.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub completion_time: Option<Timestamp>,
    /// Pods that have not ended and are not being deleted.
    pub active: i32,
    /// Pods that have succeeded.
    pub succeeded: i32,
    /// Pods that have failed.
    pub failed: i32,
    /// Nodes that are to have a Pod, and those that have one.
    pub desired: i32,
    /// running, paused, completed or failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// The generation of the spec that the status is about.
    pub observed_generation: i64,
}

/// A condition of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BroadcastJobCondition {
    /// Complete, Failed, Ready, Reconciling or Stalled.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// When it was last looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub last_probe_time: Option<Timestamp>,
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

impl BroadcastJob {
    /// Whether it is over: condition Complete or Failed is True.
    pub fn is_over(&self) -> bool {
        self.status.as_ref().is_some_and(BroadcastJobStatus::is_over)
    }
}

impl BroadcastJobStatus {
    /// The condition of a type, if it is True.
    pub fn is_true(&self, type_: &str) -> Option<&BroadcastJobCondition> {
        self.conditions.iter().find(|condition| condition.type_ == type_ && condition.status == "True")
    }

    /// Whether condition Complete or Failed is True.
    pub fn is_over(&self) -> bool {
        ["Complete", "Failed"].iter().any(|type_| self.is_true(type_).is_some())
    }

    /// Whether it said last that the job is paused.
    pub fn is_paused(&self) -> bool {
        self.phase == "paused"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Recorded jobs, as the API server gave them: one of a user, one of an AdvancedCronJob.
    const RECORDED: &str = include_str!("testdata/broadcast_jobs.json");

    #[test]
    fn recorded_jobs_are_read_without_loss() {
        let recorded: Vec<Value> = serde_json::from_str(RECORDED).unwrap();
        assert_eq!(recorded.len(), 2);
        for object in recorded {
            let read: BroadcastJob = serde_json::from_value(object.clone()).unwrap();
            assert!(read.is_over());
            let mut written = serde_json::to_value(&read).unwrap();
            assert_eq!(written["apiVersion"], "apps.kruise.io/v1beta1");
            written["metadata"] = object["metadata"].clone();
            // Ours, and written always.
            assert_eq!(written["status"].as_object_mut().unwrap().remove("observedGeneration"), Some(json!(0)));
            assert_eq!(written, object);
        }
    }

    #[test]
    fn empty_structs_of_go_clients_are_read() {
        let read: BroadcastJobSpec = serde_json::from_value(json!({
            "template": {"metadata": {"creationTimestamp": null}, "spec": {}}, "completionPolicy": {},
            "failurePolicy": {"type": ""}, "parallelism": "10%",
        }))
        .unwrap();
        assert_eq!(read.completion_policy, CompletionPolicy::default());
        assert_eq!(read.failure_policy, FailurePolicy::default());
        assert_eq!(read.parallelism, Some(IntOrString::String("10%".into())));
    }

    #[test]
    fn zeros_are_written_in_a_status() {
        let written = serde_json::to_value(BroadcastJobStatus::default()).unwrap();
        assert_eq!(written, json!({"active": 0, "succeeded": 0, "failed": 0, "desired": 0, "observedGeneration": 0}));
    }

    #[test]
    fn the_definition_is_that_of_0_1_with_one_schema_for_both_versions() {
        let rendered = json!(crate::definitions::broadcast_jobs());
        let versions = rendered["spec"]["versions"].as_array().unwrap();
        let [stored, served] = versions.as_slice() else { panic!("{} versions", versions.len()) };
        for (version, name, storage) in [(stored, "v1beta1", true), (served, "v1alpha1", false)] {
            assert_eq!((&version["name"], &version["storage"]), (&json!(name), &json!(storage)));
            assert_eq!(version["subresources"], json!({"status": {}}));
            let columns = version["additionalPrinterColumns"].as_array().unwrap();
            let columns: Vec<(&str, &str)> =
                columns.iter().map(|c| (c["name"].as_str().unwrap(), c["jsonPath"].as_str().unwrap())).collect();
            assert_eq!(
                columns,
                [
                    ("Desired", ".status.desired"),
                    ("Active", ".status.active"),
                    ("Succeeded", ".status.succeeded"),
                    ("Failed", ".status.failed"),
                    ("AGE", ".metadata.creationTimestamp"),
                    ("Phase", ".status.phase"),
                ]
            );
            let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
            assert_eq!(spec["required"], json!(["template"]));
        }
        assert_eq!(stored["schema"], served["schema"]);
        assert_eq!(rendered["spec"]["names"]["shortNames"], json!(["bcj"]));
        assert_eq!(rendered["spec"]["conversion"]["strategy"], "None");
        assert!(!rendered.to_string().contains("\"default\""), "defaults are written by admission");
    }
}
