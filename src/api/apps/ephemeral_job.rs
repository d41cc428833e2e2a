//! EphemeralJob: runs ephemeral containers in Pods that are there already.
//!
//! What has to hold of new objects is judged at admission, not by the schema: stored objects of OpenKruise may break a rule,
//! and nothing keeps their finalizer from being removed.

// The derive repeats the visibility of the spec in a private module.
#![allow(unreachable_pub)]

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use crate::date_time;

/// The most containers of one job. A Pod keeps them for good.
pub const MOST_CONTAINERS: usize = 32;
/// Seconds that a job is kept after its end unless it says otherwise.
pub const DEFAULT_TTL_SECONDS: i32 = 1800;

/// Which containers run in which Pods, and in how many at a time.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.kruise.io",
    version = "v1alpha1",
    kind = "EphemeralJob",
    plural = "ephemeraljobs",
    shortname = "ejob",
    namespaced,
    doc = "EphemeralJob adds ephemeral containers to the Pods that its selector matches, some Pods at a time, and reports how they end. Ephemeral containers stay in their Pods: Kubernetes cannot take them out again.",
    status = "EphemeralJobStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"STATUS","type":"string","jsonPath":".status.phase","description":"Waiting, Running, Paused, Succeeded, Failed or Error"}"#,
    printcolumn = r#"{"name":"MATCH","type":"integer","jsonPath":".status.match","description":"Pods that the job is for"}"#,
    printcolumn = r#"{"name":"SUCCEED","type":"integer","jsonPath":".status.succeeded","description":"Pods whose containers all ended with exit code 0"}"#,
    printcolumn = r#"{"name":"FAILED","type":"integer","jsonPath":".status.failed","description":"Pods with a container that ended badly"}"#,
    printcolumn = r#"{"name":"RUNNING","type":"integer","jsonPath":".status.running","description":"Pods with a container that runs"}"#,
    printcolumn = r#"{"name":"WAITING","type":"integer","jsonPath":".status.waiting","description":"Pods whose containers wait to be started"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"MESSAGE","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","description":"How far the job is, in words","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct EphemeralJobSpec {
    /// The Pods, in the namespace of the job, that are neither finished nor being deleted. An empty selector is refused.
    /// It cannot be changed once the job has begun.
    pub selector: LabelSelector,
    /// The most Pods that get the containers: those that were created first. Without it: all that match, also those that
    /// come while the job goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// In how many Pods the containers run, or are about to, at the same time. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<i32>,
    /// What the Pods get. It cannot be changed once the job has begun.
    pub template: EphemeralTemplate,
    /// No further Pod gets the containers. What runs goes on, and so does the deadline.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Seconds since status.startTime after which the job is over as Failed. Containers that run then go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<i64>,
    /// Seconds after its end when the job is deleted. Default 1800.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// What Pods get.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EphemeralTemplate {
    /// Ephemeral containers, as in the spec of a Pod: 1 to 32, each name once. imagePullPolicy is IfNotPresent and
    /// terminationMessagePolicy is File unless they say otherwise. ports, resources, probes, lifecycle and
    /// restartPolicy are not allowed. A Pod that has a container of such a name already is left out.
    #[serde(default)]
    #[schemars(schema_with = "containers")]
    pub ephemeral_containers: Vec<Value>,
}

/// How far the job is. Each Pod counts once; one that is deleted after its containers have ended stays counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EphemeralJobStatus {
    /// The generation that was looked at last.
    #[serde(default)]
    pub observed_generation: i64,
    /// Pods that the job is for: those that have the containers, or had them and are done, and those that are to get them.
    #[serde(rename = "match", default)]
    pub matches: i32,
    /// Pods with a container that runs.
    #[serde(default)]
    pub running: i32,
    /// Pods whose containers all ended with exit code 0.
    #[serde(default)]
    pub succeeded: i32,
    /// Pods whose containers wait to be started.
    #[serde(default)]
    pub waiting: i32,
    /// Pods with a container that ended with another exit code, or that could not be run.
    #[serde(default)]
    pub failed: i32,
    /// Pods that have the containers, of which kubelet has reported nothing yet.
    #[serde(default)]
    pub unreported: i32,
    /// When the job began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub start_time: Option<Timestamp>,
    /// When the job was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub completion_time: Option<Timestamp>,
    /// Waiting, Running, Paused, Succeeded, Failed or Error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// Initialized, MatchedEmpty, JobSucceeded, JobFailed, JobError, ContainersBlocked, and Ready, Reconciling and Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "read_conditions")]
    #[schemars(schema_with = "job_conditions")]
    pub conditions: Vec<Condition>,
}

/// Those of OpenKruise are kept: they have the moment of the last look, and only type and status are always there.
fn job_conditions(generator: &mut SchemaGenerator) -> Schema {
    let mut item = Condition::json_schema(generator);
    item.insert("required".into(), json!(["status", "type"]));
    if let Some(members) = item.pointer_mut("/properties").and_then(Value::as_object_mut) {
        for (member, text) in [
            ("lastProbeTime", "When it was last looked at. Written by OpenKruise."),
            ("lastTransitionTime", "When the status last changed."),
        ] {
            let moment = json!({"type": "string", "format": "date-time", "nullable": true, "description": text});
            members.insert(member.into(), moment);
        }
    }
    json_schema!({ "type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"] })
}

/// Those of OpenKruise have no reason and no message, and may have no moment of the last change: it is 0 then.
fn read_conditions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Condition>, D::Error> {
    let stored = Option::<Vec<Map<String, Value>>>::deserialize(deserializer)?.unwrap_or_default();
    let read = stored.into_iter().map(|mut condition| {
        condition.retain(|_, value| !value.is_null());
        for (member, default) in [("reason", ""), ("message", ""), ("lastTransitionTime", "1970-01-01T00:00:00Z")] {
            condition.entry(member).or_insert_with(|| default.into());
        }
        serde_json::from_value(condition.into()).map_err(D::Error::custom)
    });
    read.collect()
}

fn containers(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
    })
}

impl EphemeralJob {
    /// Whether it is over.
    pub fn is_complete(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.completion_time.is_some())
    }
    /// Whether somebody deleted it.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
    /// Its UID.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }
    /// The names of its containers.
    pub fn container_names(&self) -> impl Iterator<Item = &str> {
        self.spec.template.ephemeral_containers.iter().filter_map(|container| container.get("name")?.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_of_openkruise_are_kept() {
        let crd = json!(crate::definitions::ephemeral_jobs());
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let item = &schema["properties"]["status"]["properties"]["conditions"]["items"];
        assert_eq!(item["required"], json!(["status", "type"]));
        for member in ["lastProbeTime", "lastTransitionTime"] {
            assert_eq!(item["properties"][member]["format"], "date-time", "{member}");
        }
        // Ours.
        assert!(item["properties"]["observedGeneration"].is_object());
        let condition = json!({"type": "Initialized", "status": "True", "lastTransitionTime": null});
        let status: EphemeralJobStatus = serde_json::from_value(json!({"conditions": [condition]})).expect("a status");
        assert_eq!(status.conditions[0].type_, "Initialized");
        assert_eq!(status.conditions[0].last_transition_time.0.as_second(), 0);
        // An array that nobody filled.
        let status: EphemeralJobStatus = serde_json::from_value(json!({"conditions": null})).expect("a status");
        assert!(status.conditions.is_empty());
    }

    #[test]
    fn an_object_as_openkruise_stores_it_is_read_without_loss() {
        let object = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "EphemeralJob",
            "metadata": {"name": "look", "namespace": "ns", "uid": "u", "finalizers": ["apps.kruise.io/ephemeralcontainers-cleanup"]},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "replicas": 2, "parallelism": 1, "paused": true,
                "activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 5,
                "template": {"ephemeralContainers": [{"name": "a", "image": "b", "newer": {"x": [1]}}]}},
            "status": {"match": 2, "running": 1, "succeeded": 0, "waiting": 0, "failed": 1, "phase": "Paused",
                "startTime": "2026-01-01T00:00:00Z",
                "conditions": [{"type": "Initialized", "status": "True", "lastProbeTime": "2026-01-01T00:00:00Z",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        let read: EphemeralJob = serde_json::from_value(object.clone()).unwrap();
        let written = serde_json::to_value(&read).unwrap();
        assert_eq!(written["spec"], object["spec"]);
        assert_eq!((read.uid(), read.container_names().collect::<Vec<_>>()), ("u", vec!["a"]));
        let status = read.status.unwrap();
        assert_eq!((status.matches, status.running, status.failed, status.phase.as_str()), (2, 1, 1, "Paused"));
        assert_eq!((status.conditions[0].type_.as_str(), status.conditions[0].reason.as_str()), ("Initialized", ""));
        assert_eq!((written["status"]["match"].clone(), written["status"]["unreported"].clone()), (json!(2), json!(0)));
    }
}
