//! NodeImage: which images a node is to have, written by the manager, and what became of them, written by its daemon.
//!
//! v1alpha1 and v1beta1 are served from one schema with the fields of both; v1beta1 is what is stored, as OpenKruise 1.9
//! does. What nobody here knows is kept in `unknown` and written back.

// The derive repeats the visibility of the spec in a private module.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::image_pull_job::{DEFAULT_BACKOFF_LIMIT, DEFAULT_TIMEOUT_SECONDS, SandboxConfig};
use crate::date_time;

/// The most images of one node.
pub const MOST_IMAGES: usize = 256;
/// A daemon that has said nothing about an entry for so many seconds does not respond.
pub const RESPONSE_SECONDS: u64 = 600;

/// Which images the node of that name is to have.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "apps.kruise.io",
    version = "v1beta1",
    kind = "NodeImage",
    plural = "nodeimages",
    doc = "NodeImage lists the images that the node of that name is to have, and what became of them. Kruise's manager writes its spec for ImagePullJobs, the node's daemon pulls and writes its status.",
    status = "NodeImageStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"DESIRED","type":"integer","jsonPath":".status.desired","description":"Images that the node is to have"}"#,
    printcolumn = r#"{"name":"PULLING","type":"integer","jsonPath":".status.pulling","description":"Images that are being pulled"}"#,
    printcolumn = r#"{"name":"SUCCEED","type":"integer","jsonPath":".status.succeeded","description":"Images that the node has"}"#,
    printcolumn = r#"{"name":"FAILED","type":"integer","jsonPath":".status.failed","description":"Images that could not be pulled"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"WAITING","type":"integer","jsonPath":".status.waiting","description":"Images that wait for others to be pulled","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct NodeImageSpec {
    /// The images, by the name of the repository: busybox for docker.io/library/busybox, registry.example/team/app with
    /// its registry. At most 256.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "image_specs")]
    pub images: BTreeMap<String, ImageSpec>,
}

/// What the node is to have of one repository.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageSpec {
    /// Secrets with credentials for the registry. A Secret that an ImagePullJob names is used only for the tags that a job of
    /// its namespace wants. One that was written by hand is used for the tags that no job wants; whoever writes it needs the
    /// right to get it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pull_secrets: Vec<SecretReference>,
    /// Labels and annotations that are handed to the container runtime with the pull.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_config: Option<SandboxConfig>,
    /// The tags, each once.
    #[serde(default)]
    #[schemars(schema_with = "tag_specs")]
    pub tags: Vec<ImageTagSpec>,
    /// Fields of a newer release, kept as they are.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: BTreeMap<String, Value>,
}

/// Mode of a Secret that an ImagePullJob names. Entries that were written by hand get no credentials of it.
pub const OF_JOB: &str = "job";

/// A Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretReference {
    /// Its namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// job for one that an ImagePullJob names, batch for a copy that OpenKruise made for several jobs, empty for one that was
    /// written by hand.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mode: String,
}

/// One image that the node is to have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageTagSpec {
    /// The tag, or the digest: sha256:...
    #[schemars(length(min = 1, max = 255))]
    pub tag: String,
    /// When the image was asked for last. The daemon has ten minutes from then on to say something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub created_at: Option<Timestamp>,
    /// How often the node tries, and for how long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<TagPullPolicy>,
    /// Who wants the image, in most cases ImagePullJobs. The entry goes when all of them are gone; one that never had any
    /// stays.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<ObjectReference>,
    /// A higher version means: pull it again.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub version: i64,
    /// IfNotPresent: an image that the node has is not pulled again. Always, or empty: the registry is asked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub image_pull_policy: String,
    /// Fields of a newer release, kept as they are.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: BTreeMap<String, Value>,
}

/// How often a node tries, and for how long.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TagPullPolicy {
    /// Seconds that one attempt may take. Default 600.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i32>,
    /// How often the node tries again after the first attempt has failed. Default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_limit: Option<i32>,
    /// Seconds after the end of the pull when the entry is removed; the image stays on the node. Default: it is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
    /// Seconds that all attempts may take together. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<i64>,
    /// Fields of a newer release, kept as they are.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: BTreeMap<String, Value>,
}

/// What became of the images.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeImageStatus {
    /// Images that the node is to have.
    pub desired: i32,
    /// Images that the node has.
    pub succeeded: i32,
    /// Images that could not be pulled.
    pub failed: i32,
    /// Images that are being pulled.
    pub pulling: i32,
    /// Images that wait for others to be pulled.
    pub waiting: i32,
    /// The images, by the name of the repository.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub image_statuses: BTreeMap<String, ImageStatus>,
    /// What became of the images of the first synchronization.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_sync_status: Option<SyncStatus>,
    /// Fields of a newer release, kept as they are.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: BTreeMap<String, Value>,
}

/// What became of the tags of one repository.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageStatus {
    /// The tags.
    pub tags: Vec<ImageTagStatus>,
    /// Fields of a newer release, kept as they are.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: BTreeMap<String, Value>,
}

/// What became of one image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageTagStatus {
    /// The tag, or the digest.
    #[serde(default)]
    pub tag: String,
    /// Waiting (for others to be pulled), Pulling, Succeeded or Failed.
    #[serde(default)]
    pub phase: PullPhase,
    /// How much has been pulled, in percent. It may go back.
    #[serde(default)]
    pub progress: i32,
    /// When the pull began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub start_time: Option<Timestamp>,
    /// When the pull ended, well or badly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub completion_time: Option<Timestamp>,
    /// The version of the entry in the spec that this is about.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub version: i64,
    /// The image that the runtime has now: <repository>@<id>.
    #[serde(rename = "imageID", default, skip_serializing_if = "String::is_empty")]
    pub image_id: String,
    /// Why the pull failed, or what it waits for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Fields of a newer release, kept as they are.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: BTreeMap<String, Value>,
}

/// How far a pull is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PullPhase {
    /// Others are pulled first.
    #[default]
    Waiting,
    /// It is being pulled.
    Pulling,
    /// The node has it.
    Succeeded,
    /// It could not be pulled.
    Failed,
}

impl PullPhase {
    /// Whether nothing more will come.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// What became of the images of the first synchronization.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SyncStatus {
    /// When all of them had ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub sync_at: Option<Timestamp>,
    /// Succeeded or Failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// In words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl TagPullPolicy {
    /// Seconds that one attempt may take.
    pub fn timeout_seconds(&self) -> u64 {
        let seconds = self.timeout_seconds.filter(|seconds| *seconds > 0).unwrap_or(DEFAULT_TIMEOUT_SECONDS);
        seconds.unsigned_abs().into()
    }
    /// How often a failed attempt is repeated.
    pub fn backoff_limit(&self) -> u32 {
        self.backoff_limit.filter(|limit| *limit >= 0).unwrap_or(DEFAULT_BACKOFF_LIMIT).unsigned_abs()
    }
}

impl NodeImageStatus {
    /// What became of one version of an image; the status may still be about an earlier one.
    pub fn of(&self, image: &str, tag: &str, version: i64) -> Option<&ImageTagStatus> {
        let tags = &self.image_statuses.get(image)?.tags;
        tags.iter().find(|status| status.tag == tag && status.version == version)
    }
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

fn image_specs(generator: &mut SchemaGenerator) -> Schema {
    let item = generator.subschema_for::<ImageSpec>();
    json_schema!({ "type": "object", "additionalProperties": item, "maxProperties": MOST_IMAGES })
}

/// As in OpenKruise a plain list: that each tag is there once is asked of those who write one by hand, by the policy
/// `kruise-nodeimage-authors`.
fn tag_specs(generator: &mut SchemaGenerator) -> Schema {
    let item = generator.subschema_for::<ImageTagSpec>();
    json_schema!({ "type": "array", "items": item })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_nodes_are_read_without_loss() {
        let recorded: Vec<Value> = serde_json::from_str(include_str!("testdata/node_images.json")).unwrap();
        assert_eq!(recorded.len(), 1);
        for object in recorded {
            let read: NodeImage = serde_json::from_value(object.clone()).unwrap();
            let mut written = serde_json::to_value(&read).unwrap();
            written["metadata"] = object["metadata"].clone();
            assert_eq!(written, object);
        }
    }

    #[test]
    fn what_is_not_known_is_kept() {
        let tag = serde_json::json!({"tag": "v1", "version": 3, "new": {"a": 1}});
        let read: ImageTagSpec = serde_json::from_value(tag.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), tag);
    }

    #[test]
    fn a_policy_that_is_not_written_has_the_defaults() {
        let policy = TagPullPolicy::default();
        assert_eq!((policy.timeout_seconds(), policy.backoff_limit()), (600, 3));
        let odd = TagPullPolicy { timeout_seconds: Some(0), backoff_limit: Some(-1), ..policy };
        assert_eq!((odd.timeout_seconds(), odd.backoff_limit()), (600, 3));
    }
}
