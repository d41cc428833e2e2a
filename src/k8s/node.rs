//! A Node as our rules see it: the store keeps thousands of them, and most of a Node is its list of images.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::{Deserialize, Deserializer};

use super::{pod::Labels, shared::Text};
use crate::api::labels;

mod protobuf;

const OS: &str = "kubernetes.io/os";

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
    /// `spec.unschedulable`: it is cordoned.
    pub unschedulable: bool,
    /// `status.allocatable`: quantities by resource.
    pub allocatable: BTreeMap<Text, Text>,
    /// Whether its condition Ready is True.
    pub ready: bool,
    /// Whether that condition is Unknown: its kubelet has not reported for some time.
    pub is_silent: bool,
    /// When that condition last changed.
    pub ready_since: Option<Timestamp>,
    /// Since when it has not been True, as far as is known; None if it is, or nobody knows. A condition that goes from False to
    /// Unknown has changed, and the node was not Ready before: see [`Self::goes_on_from`].
    pub not_ready_since: Option<Timestamp>,
    /// Whether the change by which it stopped being True was seen, so that the time above is the first.
    pub saw_outage_begin: bool,
    /// Whether its condition DiskPressure is True.
    pub disk_pressure: bool,
    /// The minor version of its kubelet, if it reports one.
    pub kubelet_minor: Option<u32>,
}

/// Kubelets before this minor version do not restart an init container whose image changes.
const NATIVE_SIDECAR_IMAGES_FROM: u32 = 32;

/// Whether a kubelet of this minor version ignores another image of a native sidecar. One whose version is not known is taken to
/// be new enough.
pub fn ignores_images_of_native_sidecars(kubelet_minor: Option<u32>) -> bool {
    kubelet_minor.is_some_and(|minor| minor < NATIVE_SIDECAR_IMAGES_FROM)
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
    /// Whether a virtual kubelet serves it: no daemon runs there.
    pub fn is_virtual(&self) -> bool {
        self.labels.get(labels::NODE_TYPE) == Some(labels::NODE_TYPE_VIRTUAL_KUBELET)
    }
    /// Whether our daemon, which is made for Linux, can run there.
    pub fn can_run_daemon(&self) -> bool {
        !self.is_virtual() && self.labels.get(OS) != Some("windows")
    }
    /// Keeps the beginning of an outage that the version before already had. Between a version and one from a list the node may
    /// have been Ready; there the outage goes on only if the condition has not changed.
    pub fn goes_on_from(&mut self, before: &Self, is_listed: bool) {
        if self.ready || self.metadata.uid != before.metadata.uid {
            return;
        }
        if before.ready {
            self.saw_outage_begin = !is_listed;
            return;
        }
        let lasts = !is_listed || self.ready_since == before.ready_since;
        if lasts && before.not_ready_since.is_some() {
            (self.not_ready_since, self.saw_outage_begin) = (before.not_ready_since, before.saw_outage_begin);
        }
    }
    /// Whether both are the same but for their resourceVersion, as after a heartbeat.
    pub fn is_same_but_version(&self, other: &Self) -> bool {
        let Self {
            metadata,
            labels,
            taints,
            unschedulable,
            allocatable,
            ready,
            is_silent,
            ready_since,
            not_ready_since,
            saw_outage_begin,
            disk_pressure,
            kubelet_minor,
        } = self;
        metadata.name == other.metadata.name
            && metadata.uid == other.metadata.uid
            && metadata.deletion_timestamp == other.metadata.deletion_timestamp
            && *labels == other.labels
            && *taints == other.taints
            && *unschedulable == other.unschedulable
            && *allocatable == other.allocatable
            && *ready == other.ready
            && *is_silent == other.is_silent
            && *ready_since == other.ready_since
            && *not_ready_since == other.not_ready_since
            && *saw_outage_begin == other.saw_outage_begin
            && *disk_pressure == other.disk_pressure
            && *kubelet_minor == other.kubelet_minor
    }
}

/// What is read of a Node, in whatever form it comes.
struct ReadNode {
    metadata: ObjectMeta,
    labels: Labels,
    taints: Vec<Taint>,
    unschedulable: bool,
    allocatable: BTreeMap<Text, Text>,
    conditions: Vec<Condition>,
    kubelet_version: Text,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    type_: Text,
    #[serde(default)]
    status: Text,
    #[serde(default)]
    last_transition_time: Option<Timestamp>,
}

impl From<ReadNode> for NodeView {
    fn from(node: ReadNode) -> Self {
        let ReadNode { metadata, labels, taints, unschedulable, allocatable, conditions, kubelet_version } = node;
        let condition = |type_: &str| conditions.iter().find(|condition| condition.type_ == *type_);
        let is_true = |type_: &str| condition(type_).is_some_and(|condition| condition.status == "True");
        let (ready, ready_since) =
            (is_true("Ready"), condition("Ready").and_then(|condition| condition.last_transition_time));
        Self {
            metadata,
            labels,
            taints,
            unschedulable,
            allocatable,
            ready,
            is_silent: condition("Ready").is_some_and(|condition| condition.status == "Unknown"),
            ready_since,
            not_ready_since: ready_since.filter(|_| !ready),
            saw_outage_begin: false,
            disk_pressure: is_true("DiskPressure"),
            kubelet_minor: kubelet_version.split('.').nth(1).and_then(|minor| minor.parse().ok()),
        }
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
        #[derive(Default, Deserialize)]
        struct Spec {
            #[serde(default)]
            taints: Option<Vec<Taint>>,
            #[serde(default)]
            unschedulable: Option<bool>,
        }
        #[derive(Default, Deserialize)]
        struct Status {
            #[serde(default)]
            allocatable: Option<BTreeMap<Text, Text>>,
            #[serde(default)]
            conditions: Option<Vec<Condition>>,
            #[serde(default, rename = "nodeInfo")]
            node_info: Option<NodeInfo>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct NodeInfo {
            #[serde(default)]
            kubelet_version: Text,
        }
        let Wire { metadata, spec, status } = Wire::deserialize(deserializer)?;
        let (Spec { taints, unschedulable }, Status { allocatable, conditions, node_info }) =
            (spec.unwrap_or_default(), status.unwrap_or_default());
        let (metadata, labels) = metadata.split();
        let node = ReadNode {
            metadata,
            labels,
            taints: taints.unwrap_or_default(),
            unschedulable: unschedulable.unwrap_or_default(),
            allocatable: allocatable.unwrap_or_default(),
            conditions: conditions.unwrap_or_default(),
            kubelet_version: node_info.map(|info| info.kubelet_version).unwrap_or_default(),
        };
        Ok(node.into())
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
            "spec": {"unschedulable": true, "podCIDR": "10.0.0.0/24", "taints": [
                {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"},
                {"key": "team", "value": "a", "effect": "NoExecute"}]},
            "status": {"allocatable": {"cpu": "3920m", "memory": "12Gi"}, "capacity": {"cpu": "4"},
                "nodeInfo": {"kubeletVersion": "v1.34.4+k3s1"}, "conditions": [{"type": "DiskPressure", "status": "True"},
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}], "images": [{"names": ["a"]}]}}))
        .unwrap();
        assert!(node.ready && !node.is_silent && !node.is_deleting() && node.metadata.annotations.is_none());
        assert!(node.unschedulable && node.disk_pressure);
        let taint = |key: &str, value: &str, effect: &str| Taint {
            key: key.into(),
            value: value.into(),
            effect: effect.into(),
        };
        let cordoned = taint("node.kubernetes.io/unschedulable", "", "NoSchedule");
        assert_eq!(node.taints, [cordoned, taint("team", "a", "NoExecute")]);
        assert_eq!(node.allocatable.get("cpu").map(Text::as_str), Some("3920m"));
        assert_eq!(node.kubelet_minor, Some(34));
        assert_eq!((node.name(), node.labels.get("zone")), ("n", Some("a")));
        assert_eq!(node.ready_since, Some("2026-01-01T00:00:00Z".parse().unwrap()));
        let bare: NodeView = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        assert!(!bare.ready && !bare.unschedulable && bare.taints.is_empty() && bare.allocatable.is_empty());
        let nulls: NodeView = serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"taints": null},
            "status": {"allocatable": null, "conditions": null}}))
        .unwrap();
        assert!(nulls == bare);
    }

    #[test]
    fn only_a_change_that_a_rule_reads_is_a_change() {
        let node = |changes: serde_json::Value| {
            let mut node = json!({"metadata": {"name": "n", "uid": "u", "labels": {"a": "1"}, "resourceVersion": "1"},
                "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}, "status": {"allocatable": {"cpu": "4"},
                "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}});
            json_patch::merge(&mut node, &changes);
            serde_json::from_value::<NodeView>(node).unwrap()
        };
        let before = node(json!({}));
        for heartbeat in [
            json!({"metadata": {"resourceVersion": "2"}}),
            json!({"metadata": {"annotations": {"a": "b"}}}),
            json!({"status": {"images": [{"names": ["a"], "sizeBytes": 1}]}}),
            json!({"status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:05:00Z"}]}}),
        ] {
            assert!(before.is_same_but_version(&node(heartbeat.clone())), "{heartbeat}");
        }
        for change in [
            json!({"metadata": {"uid": "v"}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            json!({"metadata": {"labels": {"a": "2"}}}),
            json!({"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}}),
            json!({"spec": {"unschedulable": true}}),
            json!({"status": {"allocatable": {"cpu": "5"}}}),
            json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
            json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}),
            json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "True"}]}}),
        ] {
            assert!(!before.is_same_but_version(&node(change.clone())), "{change}");
        }
    }

    #[test]
    fn a_node_whose_kubelet_does_not_report_is_silent() {
        let node = |status: &str| -> NodeView {
            let conditions = json!([{"type": "Ready", "status": status}]);
            serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {"conditions": conditions}})).unwrap()
        };
        for (status, ready, is_silent) in [("True", true, false), ("False", false, false), ("Unknown", false, true)] {
            assert_eq!((node(status).ready, node(status).is_silent), (ready, is_silent), "{status}");
        }
        assert!(!node("False").is_same_but_version(&node("Unknown")));
    }

    #[test]
    fn an_outage_goes_on_while_the_condition_is_false_or_unknown() {
        let node = |uid: &str, status: &str, minute: i64| -> NodeView {
            let since = format!("2026-01-01T00:{minute:02}:00Z");
            let conditions = json!([{"type": "Ready", "status": status, "lastTransitionTime": since}]);
            let json = json!({"metadata": {"name": "n", "uid": uid}, "status": {"conditions": conditions}});
            serde_json::from_value(json).unwrap()
        };
        let minute = |node: &NodeView| node.not_ready_since.map(|since| since.strftime("%M").to_string());
        let after = |mut now: NodeView, before: &NodeView, is_listed: bool| {
            now.goes_on_from(before, is_listed);
            now
        };
        let lost = node("u", "False", 1);
        assert_eq!((minute(&lost), minute(&node("u", "True", 1))), (Some("01".into()), None));
        let silent = after(node("u", "Unknown", 2), &lost, false);
        let back = after(node("u", "False", 3), &silent, false);
        assert_eq!((minute(&silent), minute(&back)), (Some("01".into()), Some("01".into())));
        assert_eq!(back.ready_since, node("u", "False", 3).ready_since, "what the API server says stays as it is");
        assert!(!back.saw_outage_begin && !lost.saw_outage_begin, "it was so when it was first seen");
        let earlier = after(node("u", "False", 0), &node("u", "Unknown", 2), false);
        assert_eq!(minute(&earlier), Some("02".into()), "in a condition by another clock");
        let ready = after(node("u", "True", 4), &back, false);
        assert_eq!(minute(&ready), None);
        let again = after(node("u", "False", 5), &ready, false);
        assert_eq!((minute(&again), again.saw_outage_begin), (Some("05".into()), true), "another outage");
        assert!(after(node("u", "Unknown", 6), &again, false).saw_outage_begin);
        assert_eq!(minute(&after(node("v", "False", 5), &back, false)), Some("05".into()), "another node");
        // A list: it may have been Ready in between, unless its condition has not changed.
        assert_eq!(minute(&after(node("u", "Unknown", 5), &back, true)), Some("05".into()));
        assert_eq!(minute(&after(node("u", "False", 3), &back, true)), Some("01".into()));
        assert!(!silent.is_same_but_version(&node("u", "Unknown", 2)));
    }

    #[test]
    fn a_daemon_runs_on_linux_nodes_with_a_real_kubelet() {
        let runs = |labels: serde_json::Value| {
            let node = json!({"metadata": {"name": "n", "labels": labels}});
            serde_json::from_value::<NodeView>(node).unwrap().can_run_daemon()
        };
        assert!(runs(json!({})) && runs(json!({"kubernetes.io/os": "linux", "type": "other"})));
        assert!(!runs(json!({"type": "virtual-kubelet"})) && !runs(json!({"kubernetes.io/os": "windows"})));
    }
}
