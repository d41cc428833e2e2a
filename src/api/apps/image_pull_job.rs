//! ImagePullJob: have an image on nodes before it is needed.
//!
//! v1alpha1 and v1beta1 have the same fields; v1beta1 is what is stored, as OpenKruise 1.9 does. Fields that OpenKruise
//! does not have are optional and only ever written by kruise-rs itself.

// The derive repeats the visibility of the spec in a private module.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, LabelSelector, LabelSelectorRequirement},
    util::intstr::IntOrString,
};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{conditions, date_time, rules::stays};

/// `pullPolicy.timeoutSeconds` where nobody wrote one.
pub const DEFAULT_TIMEOUT_SECONDS: i32 = 600;
/// `pullPolicy.backoffLimit` where nobody wrote one.
pub const DEFAULT_BACKOFF_LIMIT: i32 = 3;
/// `imagePullPolicy`: pull even if the node has an image of that name.
pub const PULL_ALWAYS: &str = "Always";
/// `imagePullPolicy`: an image that the node has is as good as pulled.
pub const PULL_IF_NOT_PRESENT: &str = "IfNotPresent";
/// The longest image reference.
pub const LONGEST_IMAGE: usize = 1024;

/// Which image is pulled on which nodes, and how fast.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.kruise.io",
    version = "v1beta1",
    kind = "ImagePullJob",
    plural = "imagepulljobs",
    namespaced,
    doc = "ImagePullJob has the daemons pull one image on nodes, a number of nodes at a time, so that Pods that need it later start without waiting for the registry.",
    status = "ImagePullJobStatus",
    derive = "Default",
    derive = "PartialEq",
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.completionTime) || self.spec.image == oldSelf.spec.image").message("spec.image cannot be changed once the job has completed: create another ImagePullJob"),
    printcolumn = r#"{"name":"TOTAL","type":"integer","jsonPath":".status.desired","description":"Nodes that are selected"}"#,
    printcolumn = r#"{"name":"ACTIVE","type":"integer","jsonPath":".status.active","description":"Nodes that pull, or are to pull"}"#,
    printcolumn = r#"{"name":"SUCCEED","type":"integer","jsonPath":".status.succeeded","description":"Nodes that have the image"}"#,
    printcolumn = r#"{"name":"FAILED","type":"integer","jsonPath":".status.failed","description":"Nodes that could not pull it"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"MESSAGE","type":"string","jsonPath":".status.message","description":"Progress in words","priority":1}"#,
    printcolumn = r#"{"name":"IMAGE","type":"string","jsonPath":".spec.image","description":"The image","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(stays("", "pullSecrets", "[]")).message("spec.pullSecrets cannot be changed: create another ImagePullJob"))]
#[x_kube(validation = Rule::new("!(has(self.selector) && has(self.podSelector))").message("spec.podSelector: set at most one of selector and podSelector"))]
pub struct ImagePullJobSpec {
    /// The image: [registry/]name[:tag][@digest]. Without tag and digest the tag is latest; with both, the digest counts.
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new("self != ''").message("spec.image must not be empty"))]
    pub image: String,
    /// Names of Secrets in the namespace of the job with the credentials for the registry, of type
    /// kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "secret_names")]
    pub pull_secrets: Option<Vec<String>>,
    /// The nodes. Without it and without podSelector: all of them. Not together with podSelector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<NodeSelector>,
    /// The nodes on which Pods with these labels run, in the namespace of the job. Not together with selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
    /// How many nodes pull at a time. 0 begins no further node. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("type(self) == int ? self >= 0 : self.matches('^[0-9]{1,9}$')").message("spec.parallelism: want a whole number from 0 on"))]
    pub parallelism: Option<IntOrString>,
    /// How often a node tries, and for how long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<PullPolicy>,
    /// When the job is over. Default: {type: Always}.
    #[serde(default)]
    pub completion_policy: CompletionPolicy,
    /// Labels and annotations that are handed to the container runtime with the pull.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_config: Option<SandboxConfig>,
    /// IfNotPresent: a node that has the image already pulls nothing. Always: it asks the registry whether the image of
    /// that name has changed. Default IfNotPresent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub image_pull_policy: String,
}

/// Nodes, by their names or by their labels.
#[derive(Clone, Debug, Default, PartialEq, KubeSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.names) && size(self.names) > 0 && (has(self.matchLabels) || has(self.matchExpressions)))").message("spec.selector.names: set either names, or matchLabels and matchExpressions"))]
pub struct NodeSelector {
    /// Names of nodes. A name that no node has is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<Vec<String>>,
    /// Labels that the nodes have to have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_labels: Option<BTreeMap<String, String>>,
    /// Rules for labels of the nodes; all of them have to hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_expressions: Option<Vec<LabelSelectorRequirement>>,
}

impl NodeSelector {
    /// The part that selects by labels.
    pub fn labels(&self) -> LabelSelector {
        LabelSelector { match_labels: self.match_labels.clone(), match_expressions: self.match_expressions.clone() }
    }
}

/// How often a node tries, and for how long.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PullPolicy {
    /// Seconds that one attempt may take. Default 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub timeout_seconds: Option<i32>,
    /// How often a node tries again after the first attempt has failed. Default 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub backoff_limit: Option<i32>,
}

/// When a job is over.
#[derive(Clone, Debug, Default, PartialEq, KubeSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.type) || self.type != 'Never' || (!has(self.activeDeadlineSeconds) && !has(self.ttlSecondsAfterFinished))").message("spec.completionPolicy: activeDeadlineSeconds and ttlSecondsAfterFinished need type Always"))]
pub struct CompletionPolicy {
    /// Always: the job is over when every selected node has the image or has failed. Never: it goes on, pulls on nodes
    /// that join later, and again about once a day. Default Always.
    #[serde(rename = "type", default)]
    pub type_: CompletionPolicyType,
    /// Seconds after the begin when the job is over, whatever has been pulled; nodes without the image then count as
    /// failed. At least pullPolicy.timeoutSeconds. Only with type Always. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub active_deadline_seconds: Option<i64>,
    /// Seconds after the end when the job is deleted. Only with type Always. Default: it is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// Always: the job is over when every selected node has the image or has failed. Never: it goes on, pulls on nodes that
/// join later, and again about once a day. Default Always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CompletionPolicyType {
    /// Over when every node is done.
    #[default]
    Always,
    /// Never over.
    Never,
}

/// Labels and annotations that are handed to the container runtime with a pull.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxConfig {
    /// Labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// How far a job is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImagePullJobStatus {
    /// When the job began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub start_time: Option<Timestamp>,
    /// When the job was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub completion_time: Option<Timestamp>,
    /// Nodes that are selected.
    #[serde(default)]
    pub desired: i32,
    /// Nodes that pull, or are to pull.
    #[serde(default)]
    pub active: i32,
    /// Nodes that have the image.
    #[serde(default)]
    pub succeeded: i32,
    /// Nodes that could not pull it.
    #[serde(default)]
    pub failed: i32,
    /// Progress in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Names of the nodes that could not pull it, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_nodes: Vec<String>,
    /// Progressing (True while nodes are to pull; its reason and message say what is waited for), Complete (every node has
    /// the image) and Failed (the job is over, and some node does not have it; its message says which and why).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// The generation of the spec that the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Names of Secrets.
pub(super) fn secret_names(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "maxItems": 64,
        "items": { "type": "string", "minLength": 1, "maxLength": 253 },
    })
}

impl ImagePullJob {
    /// Whether it is over.
    pub fn is_complete(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.completion_time.is_some())
    }
    /// Whether somebody deleted it.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_message_is_a_column_of_the_wide_table_but_in_v1alpha1() {
        for version in crate::definitions::image_pull_jobs().spec.versions {
            let columns = version.additional_printer_columns.unwrap();
            let wide: Vec<_> = columns.iter().filter(|c| c.priority == Some(1)).map(|c| c.name.as_str()).collect();
            let want: &[&str] = if version.name == "v1alpha1" { &["IMAGE"] } else { &["MESSAGE", "IMAGE"] };
            assert_eq!(wide, want, "{}", version.name);
        }
    }

    #[test]
    fn recorded_jobs_are_read_without_loss() {
        let recorded: Vec<Value> = serde_json::from_str(include_str!("testdata/image_pull_jobs.json")).unwrap();
        assert_eq!(recorded.len(), 3);
        for object in recorded {
            let read: ImagePullJob = serde_json::from_value(object.clone()).unwrap();
            let mut written = serde_json::to_value(&read).unwrap();
            written["metadata"] = object["metadata"].clone();
            assert_eq!(written, object, "{}", object["metadata"]["name"]);
        }
    }
}
