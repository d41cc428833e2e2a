//! A Node as our rules see it: a store keeps thousands of them, and most of a Node is news of its heartbeat.

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::{Deserialize, Deserializer};

use super::{pod::Labels, shared::Text};

/// The compact form of a Node.
#[derive(Clone, Debug, Default, PartialEq, Resource)]
#[resource(inherit = "Node")]
pub struct NodeView {
    /// Name, UID, resourceVersion, creation and deletion time; nothing else is kept.
    pub metadata: ObjectMeta,
    /// `metadata.labels`.
    pub labels: Labels,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
    /// Whether its condition Ready is True.
    pub ready: bool,
    /// When that condition last changed.
    pub ready_since: Option<Timestamp>,
}

/// A taint of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// Its key.
    pub key: Text,
    /// Its value; empty if it has none.
    pub value: Text,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: Text,
}

impl NodeView {
    /// Name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
    /// Whether a deletion timestamp is set.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

impl<'de> Deserialize<'de> for NodeView {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: CompactMeta,
            #[serde(default)]
            spec: Option<Spec>,
            #[serde(default)]
            status: Option<Status>,
        }
        #[derive(Deserialize)]
        struct Spec {
            #[serde(default)]
            taints: Option<Vec<Taint>>,
        }
        #[derive(Deserialize)]
        struct Status {
            #[serde(default)]
            conditions: Option<Vec<Condition>>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Condition {
            #[serde(rename = "type")]
            type_: String,
            #[serde(default)]
            status: String,
            #[serde(default)]
            last_transition_time: Option<Timestamp>,
        }
        let Wire { metadata, spec, status } = Wire::deserialize(deserializer)?;
        let ready = status.and_then(|s| s.conditions).into_iter().flatten().find(|c| c.type_ == "Ready");
        let (metadata, labels) = metadata.split();
        Ok(Self {
            metadata,
            labels,
            taints: spec.and_then(|spec| spec.taints).unwrap_or_default(),
            ready: ready.as_ref().is_some_and(|condition| condition.status == "True"),
            ready_since: ready.and_then(|condition| condition.last_transition_time),
        })
    }
}

/// What compact views of cluster-scoped objects keep of `metadata`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct CompactMeta {
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>,
    deletion_timestamp: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>,
    labels: Option<Labels>,
}

impl CompactMeta {
    /// Metadata without labels, and the labels.
    pub(super) fn split(self) -> (ObjectMeta, Labels) {
        let metadata = ObjectMeta {
            name: self.name,
            uid: self.uid,
            resource_version: self.resource_version,
            creation_timestamp: self.creation_timestamp,
            deletion_timestamp: self.deletion_timestamp,
            ..ObjectMeta::default()
        };
        (metadata, self.labels.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_read_as_far_as_rules_need_it() {
        let node: NodeView = serde_json::from_value(json!({
            "metadata": {"name": "n", "uid": "u", "labels": {"zone": "a"}, "annotations": {"x": "y"}},
            "spec": {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "DiskPressure", "status": "False"},
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}], "images": [{"names": ["a"]}]}}))
        .unwrap();
        assert!(node.ready && !node.is_deleting() && node.metadata.annotations.is_none());
        assert_eq!((node.name(), node.labels.get("zone")), ("n", Some("a")));
        assert_eq!(node.ready_since, Some("2026-01-01T00:00:00Z".parse().unwrap()));
        assert_eq!(
            (&*node.taints[0].key, &*node.taints[0].value, &*node.taints[0].effect),
            ("dedicated", "", "NoSchedule")
        );
        let bare: NodeView = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        assert!(!bare.ready);
    }
}
