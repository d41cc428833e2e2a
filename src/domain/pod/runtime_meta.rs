//! The annotation `apps.kruise.io/runtime-containers-meta`: with what each container of a Pod was made, as the daemon
//! reports it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::environment::expected_environment;
use crate::{
    api::labels,
    k8s::{canonical_json, hash},
};

/// The annotation `apps.kruise.io/runtime-containers-meta`, its keys in the order that OpenKruise writes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuntimeMeta {
    /// An entry for each container that has been started, in the order of the Pod's status.
    pub containers: Vec<RuntimeContainer>,
    /// Fields of a newer release.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

/// With what one instance was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuntimeContainer {
    /// Container name.
    pub name: String,
    /// `<runtime>://<id>`.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Restart count.
    pub restart_count: i32,
    /// Of its definition and its environment.
    pub hashes: Hashes,
    /// Fields of a newer release.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

/// Hashes of one instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hashes {
    /// Of the definition, as kubelet computed it when it made the instance.
    pub plain_hash: u64,
    /// Of the environment from labels and annotations that the instance got; 0: not known.
    #[serde(skip_serializing_if = "is_zero")]
    pub extracted_env_from_metadata_hash: u64,
    /// Fields of a newer release.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl RuntimeMeta {
    /// The annotation of a Pod, if it is there and can be read.
    pub fn of(pod: &Value) -> Option<Self> {
        let text = pod.get("metadata")?.get("annotations")?.get(labels::RUNTIME_CONTAINERS_META)?.as_str()?;
        serde_json::from_str(text).ok()
    }
}

/// The hashes that kubelet gives a container's definition: from 1.31 on of image and name, before of all of it.
pub fn plain_hashes(container: &Value) -> [u64; 2] {
    let field = |key: &str| container.get(key).cloned().unwrap_or_default();
    [&json!({"image": field("image"), "name": field("name")}), container].map(hash_of)
}

/// The hash that kubelet gives a container's definition from 1.31 on.
pub fn short_hash(name: &str, image: &str) -> u64 {
    hash_of(&json!({"image": image, "name": name}))
}

fn hash_of(value: &Value) -> u64 {
    hash::deep_hash(canonical_json::encode(value).as_bytes())
}

/// The hash of the environment that a container would get from its Pod's labels and annotations now.
pub fn expected_env_hash(container: &Value, pod: &Value) -> u64 {
    hash_of(&expected_environment(container, pod))
}
