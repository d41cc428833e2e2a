//! ImageListPullJob: an ImagePullJob for each image of a list.
//!
//! v1alpha1 and v1beta1 have the same fields; v1beta1 is what is stored, as OpenKruise 1.9 does.

// The derive repeats the visibility of the spec in a private module.
#![allow(unreachable_pub)]

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, LabelSelector},
    util::intstr::IntOrString,
};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::image_pull_job::{
    CompletionPolicy, ImagePullJobSpec, LONGEST_IMAGE, NodeSelector, PullPolicy, SandboxConfig, secret_names,
};
use crate::{conditions, date_time};

/// The most images of one list.
pub const MOST_IMAGES: usize = 255;

/// Which images are pulled on which nodes, and how fast.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.kruise.io",
    version = "v1beta1",
    kind = "ImageListPullJob",
    plural = "imagelistpulljobs",
    namespaced,
    doc = "ImageListPullJob makes one ImagePullJob for each image of a list, and reports how far they are together.",
    status = "ImageListPullJobStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"TOTAL","type":"integer","jsonPath":".status.desired","description":"Images of the list"}"#,
    printcolumn = r#"{"name":"SUCCEEDED","type":"integer","jsonPath":".status.succeeded","description":"Images that all their nodes have"}"#,
    printcolumn = r#"{"name":"COMPLETED","type":"integer","jsonPath":".status.completed","description":"Images whose nodes are all done, well or badly"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"ACTIVE","type":"integer","jsonPath":".status.active","description":"Images that are being pulled","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.selector) && has(self.podSelector))").message("spec.podSelector: set at most one of selector and podSelector"))]
pub struct ImageListPullJobSpec {
    /// The images: [registry/]name[:tag][@digest], 1 to 255, each once.
    #[schemars(schema_with = "images")]
    pub images: Vec<String>,
    /// Names of Secrets in the namespace of the job with the credentials for the registries, of type
    /// kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "secret_names")]
    pub pull_secrets: Option<Vec<String>>,
    /// The nodes. Without it and without podSelector: all of them. Not together with podSelector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<NodeSelector>,
    /// The nodes on which Pods with these labels run, in the namespace of the job. Not together with selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
    /// How many nodes pull at a time, for each image. 0 begins no further node. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("type(self) == int ? self >= 0 : self.matches('^[0-9]{1,9}$')").message("spec.parallelism: want a whole number from 0 on"))]
    pub parallelism: Option<IntOrString>,
    /// How often a node tries, and for how long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<PullPolicy>,
    /// When the job is over. Default: {type: Always}.
    #[serde(default)]
    pub completion_policy: CompletionPolicy,
    /// Labels and annotations that are handed to the container runtime with the pulls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_config: Option<SandboxConfig>,
    /// IfNotPresent: a node that has an image already does not pull it. Always: it asks the registry whether the image of
    /// that name has changed. Default IfNotPresent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub image_pull_policy: String,
}

impl ImageListPullJobSpec {
    /// What an ImagePullJob for one of the images says. It is kept for as long as the list: it has no time to live.
    pub fn of_image(&self, image: &str) -> ImagePullJobSpec {
        let Self {
            images: _,
            pull_secrets,
            selector,
            pod_selector,
            parallelism,
            pull_policy,
            completion_policy,
            sandbox_config,
            image_pull_policy,
        } = self.clone();
        ImagePullJobSpec {
            image: image.to_owned(),
            pull_secrets,
            selector,
            pod_selector,
            parallelism,
            pull_policy,
            completion_policy: CompletionPolicy { ttl_seconds_after_finished: None, ..completion_policy },
            sandbox_config,
            image_pull_policy,
        }
    }
}

/// How far the jobs are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageListPullJobStatus {
    /// When the job began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub start_time: Option<Timestamp>,
    /// When the job was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub completion_time: Option<Timestamp>,
    /// Images of the list.
    #[serde(default)]
    pub desired: i32,
    /// Images that are being pulled.
    #[serde(default)]
    pub active: i32,
    /// Images whose nodes are all done, well or badly.
    #[serde(default)]
    pub completed: i32,
    /// Images that all their nodes have.
    #[serde(default)]
    pub succeeded: i32,
    /// Images that some node could not pull, in the order of the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_image_statuses: Vec<FailedImageStatus>,
    /// Progressing, Complete and Failed, as those of an ImagePullJob.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// The generation of the spec that the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// An image that some node could not pull.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FailedImageStatus {
    /// The ImagePullJob that says more.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image_pull_job: String,
    /// The image.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// In words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// As in OpenKruise a plain list, which has one owner: that each image is there once is judged at admission.
fn images(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "minItems": 1, "maxItems": MOST_IMAGES,
        "items": { "type": "string", "minLength": 1, "maxLength": LONGEST_IMAGE },
    })
}

impl ImageListPullJob {
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
    fn images_and_tags_are_plain_lists() {
        for crd in [crate::definitions::image_list_pull_jobs(), crate::definitions::node_images()] {
            for version in crd.spec.versions {
                let spec = &serde_json::json!(version.schema)["openAPIV3Schema"]["properties"]["spec"]["properties"];
                let tags = &spec["images"]["additionalProperties"]["properties"]["tags"];
                let list = if tags.is_object() { tags } else { &spec["images"] };
                assert_eq!((&list["type"], list.get("x-kubernetes-list-type")), (&"array".into(), None));
            }
        }
    }

    #[test]
    fn recorded_lists_are_read_without_loss() {
        let recorded: Vec<Value> = serde_json::from_str(include_str!("testdata/image_list_pull_jobs.json")).unwrap();
        assert_eq!(recorded.len(), 1);
        for object in recorded {
            let read: ImageListPullJob = serde_json::from_value(object.clone()).unwrap();
            let mut written = serde_json::to_value(&read).unwrap();
            written["metadata"] = object["metadata"].clone();
            assert_eq!(written, object, "{}", object["metadata"]["name"]);
        }
    }
}
