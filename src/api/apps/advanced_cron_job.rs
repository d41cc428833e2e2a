//! AdvancedCronJob: makes a Job, a BroadcastJob or an ImageListPullJob by a schedule.
//!
//! v1beta1 is stored and v1alpha1 is served from the same schema: a template that OpenKruise's v1alpha1 does not know survives
//! every write of either version. Templates stay raw JSON, with their metadata.

// The derive repeats the visibility of the spec in a private module.
#![allow(unreachable_pub)]

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{anything, conditions, date_time};

/// `spec.successfulJobsHistoryLimit` where nobody wrote one.
pub const DEFAULT_SUCCESSFUL_HISTORY: i32 = 3;
/// `spec.failedJobsHistoryLimit` where nobody wrote one.
pub const DEFAULT_FAILED_HISTORY: i32 = 1;

/// When which job is made.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.kruise.io",
    version = "v1beta1",
    kind = "AdvancedCronJob",
    plural = "advancedcronjobs",
    namespaced,
    shortname = "acj",
    doc = "AdvancedCronJob makes a Job, a BroadcastJob or an ImageListPullJob by a schedule, as a CronJob makes Jobs.",
    status = "AdvancedCronJobStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Schedule","type":"string","jsonPath":".spec.schedule","description":"When jobs are made"}"#,
    printcolumn = r#"{"name":"Type","type":"string","jsonPath":".status.type","description":"Kind of the jobs"}"#,
    printcolumn = r#"{"name":"LastScheduleTime","type":"date","jsonPath":".status.lastScheduleTime","description":"The time for which the last job was made"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"TimeZone","type":"string","jsonPath":".spec.timeZone","description":"Time zone of the schedule","priority":1}"#,
    printcolumn = r#"{"name":"NextScheduleTime","type":"string","jsonPath":".status.nextScheduleTime","description":"When the next job is due","priority":1}"#,
    printcolumn = r#"{"name":"Paused","type":"boolean","jsonPath":".spec.paused","description":"Whether no job is made","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct AdvancedCronJobSpec {
    /// When jobs are made: five fields (minute, hour, day of the month, month, day of the week) as in cron, @yearly, @monthly,
    /// @weekly, @daily, @hourly, or @every and a duration such as 1h30m.
    pub schedule: String,
    /// The time zone of the schedule, by its name in the IANA database, such as Europe/Berlin. Default: the local time of the
    /// manager. A schedule may begin with CRON_TZ=NAME instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// How many seconds after its time a job may still be made, for example because the manager was away. Default: no limit;
    /// of several times that were missed, only the latest one is made up for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starting_deadline_seconds: Option<i64>,
    /// What happens while an earlier job runs. Allow: another one is made. Forbid: it is made when the earlier one has ended.
    /// Replace: the earlier one is deleted. Default Allow; for an imageListPullJobTemplate Replace, and Allow is not allowed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "concurrency_policy")]
    pub concurrency_policy: String,
    /// true: no job is made. Jobs that run go on. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// How many jobs that have succeeded are kept. Default 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successful_jobs_history_limit: Option<i32>,
    /// How many jobs that have failed are kept. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_jobs_history_limit: Option<i32>,
    /// The job: exactly one of its fields. A change applies to later jobs; the kind stays.
    pub template: CronJobTemplate,
}

/// The job that is made: exactly one field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CronJobTemplate {
    /// A Job of batch/v1: metadata (labels, annotations) and spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "anything")]
    pub job_template: Option<Value>,
    /// A BroadcastJob: metadata (labels, annotations) and spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "anything")]
    pub broadcast_job_template: Option<Value>,
    /// An ImageListPullJob: metadata (labels, annotations) and spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "anything")]
    pub image_list_pull_job_template: Option<Value>,
}

/// What has been made, and what comes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AdvancedCronJobStatus {
    /// The generation of the spec that the status is about.
    pub observed_generation: i64,
    /// Kind of the jobs: Job, BroadcastJob or ImageListPullJob.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub type_: String,
    /// Jobs that have not ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "references")]
    pub active: Vec<ObjectReference>,
    /// The time for which the last job was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub last_schedule_time: Option<Timestamp>,
    /// When the last job that has succeeded ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub last_successful_time: Option<Timestamp>,
    /// When the next job is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub next_schedule_time: Option<Timestamp>,
    /// Ready, Reconciling and Stalled, as kstatus reads them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

fn concurrency_policy(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["Allow", "Forbid", "Replace"] })
}

fn references(generator: &mut SchemaGenerator) -> Schema {
    let item = generator.subschema_for::<ObjectReference>();
    json_schema!({ "type": "array", "items": item })
}

impl AdvancedCronJob {
    /// Whether somebody deleted it.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Recorded objects, as the API server gave them.
    const RECORDED: &str = include_str!("testdata/advanced_cron_jobs.json");

    #[test]
    fn recorded_objects_are_read_without_loss() {
        let recorded: Vec<Value> = serde_json::from_str(RECORDED).unwrap();
        assert_eq!(recorded.len(), 1);
        for object in recorded {
            let read: AdvancedCronJob = serde_json::from_value(object.clone()).unwrap();
            let mut written = serde_json::to_value(&read).unwrap();
            written["metadata"] = object["metadata"].clone();
            // Ours, and written always.
            assert_eq!(written["status"].as_object_mut().unwrap().remove("observedGeneration"), Some(json!(0)));
            assert_eq!(written, object);
        }
    }

    #[test]
    fn f46_f49_both_versions_have_one_schema_that_keeps_whole_templates() {
        let rendered = json!(crate::definitions::advanced_cron_jobs());
        let versions = rendered["spec"]["versions"].as_array().unwrap();
        let [stored, served] = versions.as_slice() else { panic!("{} versions", versions.len()) };
        for (version, name, storage) in [(stored, "v1beta1", true), (served, "v1alpha1", false)] {
            assert_eq!((&version["name"], &version["storage"]), (&json!(name), &json!(storage)));
            assert_eq!(version["subresources"], json!({"status": {}}));
            let columns = version["additionalPrinterColumns"].as_array().unwrap();
            let columns: Vec<(&str, &str, &str)> = columns
                .iter()
                .map(|c| (c["name"].as_str().unwrap(), c["type"].as_str().unwrap(), c["jsonPath"].as_str().unwrap()))
                .collect();
            assert_eq!(
                columns[..4],
                [
                    ("Schedule", "string", ".spec.schedule"),
                    ("Type", "string", ".status.type"),
                    ("LastScheduleTime", "date", ".status.lastScheduleTime"),
                    ("AGE", "date", ".metadata.creationTimestamp"),
                ]
            );
            let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
            assert_eq!(spec["required"], json!(["schedule", "template"]));
            for template in ["jobTemplate", "broadcastJobTemplate", "imageListPullJobTemplate"] {
                let schema = &spec["properties"]["template"]["properties"][template];
                assert_eq!(schema["x-kubernetes-preserve-unknown-fields"], true, "{template}");
            }
        }
        assert_eq!(stored["schema"], served["schema"]);
        assert_eq!(rendered["spec"]["names"]["shortNames"], json!(["acj"]));
        assert_eq!(rendered["spec"]["conversion"]["strategy"], "None");
        assert!(!rendered.to_string().contains("\"default\""), "defaults are written by admission");
    }
}
