//! Lifecycle hooks, part of several workload kinds.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One hook: labels and finalizers that another controller takes away from a Pod when it agrees.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Hook {
    /// Labels with the value that means "hooked".
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels_handler: BTreeMap<String, String>,
    /// Finalizers whose presence means "hooked".
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finalizers_handler: Vec<String>,
    /// Whether the Pod is made NotReady while it waits. Without effect in preNormal.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mark_pod_not_ready: bool,
}

/// Hooks with which another controller holds up what a workload does to its Pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Lifecycle {
    /// While any part of it is on a Pod, the Pod is not deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pre_delete: Option<Hook>,
    /// While any part of it is on a Pod, the Pod is not updated in place; after the update all of it has to be put back
    /// before the Pod counts as available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_place_update: Option<Hook>,
    /// A new Pod counts as available only when all of it is on the Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pre_normal: Option<Hook>,
}
