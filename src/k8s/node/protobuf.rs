//! A Node in the API server's protobuf. Its images, which are most of it, are passed over by their length.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::{Condition, NodeView, ReadNode, Taint};
use crate::k8s::{
    pod::Labels,
    protobuf::{InProtobuf, interned, shared_text, some_text, timestamp, v1},
};

impl InProtobuf for NodeView {
    type Message = v1::Node;
}

impl From<v1::Node> for NodeView {
    fn from(node: v1::Node) -> Self {
        let v1::Node { metadata, spec, status } = node;
        let (meta, spec) = (metadata.unwrap_or_default(), spec.unwrap_or_default());
        let v1::NodeStatus { allocatable, conditions, node_info } = status.unwrap_or_default();
        let labels: Vec<_> = meta.labels.into_iter().map(|e| (interned(e.key), interned(e.value))).collect();
        let taint = |taint: v1::Taint| Taint {
            key: shared_text(taint.key).unwrap_or_default(),
            value: shared_text(taint.value).unwrap_or_default(),
            effect: shared_text(taint.effect).unwrap_or_default(),
        };
        let quantity = |entry: v1::QuantityEntry| {
            let value = entry.value.and_then(|value| value.string);
            (shared_text(entry.key).unwrap_or_default(), shared_text(value).unwrap_or_default())
        };
        let condition = |condition: v1::NodeCondition| Condition {
            type_: shared_text(condition.r#type).unwrap_or_default(),
            status: shared_text(condition.status).unwrap_or_default(),
            last_transition_time: timestamp(condition.last_transition_time),
        };
        ReadNode {
            metadata: ObjectMeta {
                name: some_text(meta.name),
                uid: some_text(meta.uid),
                resource_version: some_text(meta.resource_version),
                creation_timestamp: timestamp(meta.creation_timestamp).map(Time),
                deletion_timestamp: timestamp(meta.deletion_timestamp).map(Time),
                ..ObjectMeta::default()
            },
            labels: Labels::from(labels),
            taints: spec.taints.into_iter().map(taint).collect(),
            unschedulable: spec.unschedulable.unwrap_or_default(),
            allocatable: allocatable.into_iter().map(quantity).collect(),
            conditions: conditions.into_iter().map(condition).collect(),
            kubelet_version: shared_text(node_info.and_then(|info| info.kubelet_version)).unwrap_or_default(),
        }
        .into()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use prost::Message;
    use serde_json::json;

    use super::*;

    /// One field of a message: its number, and a value with a length.
    fn field(number: u8, value: &[u8]) -> Vec<u8> {
        let mut length = value.len();
        let mut bytes = vec![(number << 3) | 2];
        while length >= 0x80 {
            bytes.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
            length >>= 7;
        }
        bytes.push(u8::try_from(length).unwrap());
        [bytes.as_slice(), value].concat()
    }

    #[test]
    fn a_node_is_the_same_in_protobuf_and_in_json() {
        let json: NodeView = serde_json::from_value(json!({
            "metadata": {"name": "n", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"zone": "a", "kubernetes.io/hostname": "n"}, "annotations": {"x": "y"}},
            "spec": {"unschedulable": true, "taints": [{"key": "team", "value": "a", "effect": "NoExecute"},
                {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]},
            "status": {"allocatable": {"cpu": "3920m", "memory": "12Gi"}, "nodeInfo": {"kubeletVersion": "v1.34.4"},
                "conditions": [{"type": "DiskPressure", "status": "True"},
                    {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T00:05:00Z"}]}}))
        .unwrap();
        // Field numbers as in Kubernetes' core/v1, with fields that nobody reads between them.
        let pair = |key: &[u8], value: &[u8]| [field(1, key), field(2, value)].concat();
        let seconds = |time: &str| {
            let time = v1::Time { seconds: Some(time.parse::<jiff::Timestamp>().unwrap().as_second()) };
            time.encode_to_vec()
        };
        let metadata = [
            field(1, b"n"),
            field(5, b"u"),
            field(6, b"7"),
            field(8, &seconds("2026-01-01T00:00:00Z")),
            field(11, &pair(b"zone", b"a")),
            field(11, &pair(b"kubernetes.io/hostname", b"n")),
            field(12, &pair(b"x", b"y")),
        ]
        .concat();
        let taint = [field(1, b"team"), field(2, b"a"), field(3, b"NoExecute")].concat();
        let cordoned = [field(1, b"node.kubernetes.io/unschedulable"), field(3, b"NoSchedule")].concat();
        let spec = [field(1, b"10.0.0.0/24"), vec![4 << 3, 1], field(5, &taint), field(5, &cordoned)].concat();
        let pressure = [field(1, b"DiskPressure"), field(2, b"True")].concat();
        let time = seconds("2026-01-01T00:05:00Z");
        let ready = [field(1, b"Ready"), field(2, b"Unknown"), field(3, b""), field(4, &time)].concat();
        let images: Vec<u8> = (0..50).flat_map(|_| field(8, &field(1, &[b'i'; 300]))).collect();
        let status = [
            field(1, &pair(b"cpu", &field(1, b"4"))),
            field(2, &pair(b"cpu", &field(1, b"3920m"))),
            field(2, &pair(b"memory", &field(1, b"12Gi"))),
            field(4, &pressure),
            field(4, &ready),
            field(7, &[field(4, b"6.1.0"), field(7, b"v1.34.4")].concat()),
            images,
        ]
        .concat();
        let bytes = [field(1, &metadata), field(2, &spec), field(3, &status)].concat();
        assert_eq!(NodeView::from(v1::Node::decode(Bytes::from(bytes)).unwrap()), json);
        assert!(json.is_silent && json.disk_pressure && json.kubelet_minor == Some(34) && json.taints.len() == 2);
    }

    #[test]
    fn what_is_not_there_counts_as_in_json() {
        let metadata = Some(v1::ObjectMeta { name: Some(Bytes::new()), ..Default::default() });
        let json: NodeView = serde_json::from_value(json!({"metadata": {}})).unwrap();
        assert_eq!(NodeView::from(v1::Node { metadata, ..Default::default() }), json);
        assert_eq!(NodeView::from(v1::Node::default()), json);
    }
}
