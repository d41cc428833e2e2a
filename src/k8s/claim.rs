//! A PersistentVolumeClaim as our rules see it: whose it is, and, for sets that look after its size, how large it is.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::PersistentVolumeClaim,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::Resource;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::quantity;
use crate::api::labels::{INSTANCE_ID, OWNED_BY_STATEFUL_SET};

/// The compact form of a claim. Never written back.
#[derive(Clone, Debug, Default, PartialEq, Resource)]
#[resource(inherit = "PersistentVolumeClaim")]
pub struct ClaimView {
    /// Name, namespace, UID, resourceVersion and deletion time; nothing else is kept.
    pub metadata: ObjectMeta,
    /// Label `apps.kruise.io/cloneset-instance-id`, or empty.
    pub instance_id: String,
    /// UID of the owner with `controller: true`.
    pub controller_uid: Option<String>,
}

impl ClaimView {
    /// Name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
    /// Whether a deletion timestamp is set.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

impl<'de> Deserialize<'de> for ClaimView {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Wire {
            metadata: ObjectMeta,
        }
        let ObjectMeta { name, namespace, uid, resource_version, deletion_timestamp, labels, owner_references, .. } =
            Wire::deserialize(deserializer)?.metadata;
        let controller = owner_references.unwrap_or_default().into_iter().find(|owner| owner.controller == Some(true));
        Ok(Self {
            instance_id: labels.and_then(|mut labels| labels.remove(INSTANCE_ID)).unwrap_or_default(),
            controller_uid: controller.map(|owner| owner.uid),
            metadata: ObjectMeta {
                name,
                namespace,
                uid,
                resource_version,
                deletion_timestamp,
                ..ObjectMeta::default()
            },
        })
    }
}

/// A claim whose owners and size matter. Never written back.
#[derive(Clone, Debug, Default, PartialEq, Resource)]
#[resource(inherit = "PersistentVolumeClaim")]
pub struct SizedClaim {
    /// Name, namespace, UID, resourceVersion, owner references and deletion time; nothing else is kept.
    pub metadata: ObjectMeta,
    /// Annotation `apps.kruise.io/owned-by-asts`: the set that grows it.
    pub grown_by: Option<String>,
    /// `spec.storageClassName`.
    pub storage_class: Option<String>,
    /// `spec.accessModes`.
    pub access_modes: Vec<String>,
    /// `spec.resources.requests.storage`, in billionths.
    pub requested: Option<i128>,
    /// `status.capacity.storage`, in billionths.
    pub capacity: Option<i128>,
    /// Since when its file system waits to be grown where it is mounted.
    pub resize_pending_since: Option<Timestamp>,
    /// Why it never gets to the size that it asks for, in the words of whoever grows volumes.
    pub infeasible: Option<String>,
}

impl SizedClaim {
    /// Name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
    /// Whether a deletion timestamp is set.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
    /// Its owners.
    pub fn owners(&self) -> &[OwnerReference] {
        self.metadata.owner_references.as_deref().unwrap_or_default()
    }
}

/// Characters that are kept of a message.
const LONGEST_MESSAGE: usize = 256;

/// What is read of a claim.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WireClaim {
    metadata: ObjectMeta,
    spec: WireSpec,
    status: WireStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireSpec {
    storage_class_name: Option<String>,
    access_modes: Option<Vec<String>>,
    resources: Option<WireResources>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireResources {
    requests: Option<WireAmounts>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireAmounts {
    storage: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireStatus {
    capacity: Option<WireAmounts>,
    allocated_resource_statuses: Option<WireAmounts>,
    conditions: Option<Vec<WireCondition>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    message: Option<String>,
    last_transition_time: Option<Timestamp>,
}

/// An amount, which is mostly text and may be a number.
pub fn amount(value: &Value) -> Option<i128> {
    match value {
        Value::String(text) => quantity::parse(text),
        Value::Number(number) => quantity::parse(&number.to_string()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

impl<'de> Deserialize<'de> for SizedClaim {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let WireClaim { metadata, spec, status } = WireClaim::deserialize(deserializer)?;
        let ObjectMeta {
            name,
            namespace,
            uid,
            resource_version,
            deletion_timestamp,
            annotations,
            owner_references,
            ..
        } = metadata;
        let stored = |amounts: Option<WireAmounts>| amounts.and_then(|amounts| amount(&amounts.storage?));
        let conditions = status.conditions.unwrap_or_default();
        let condition = |types: &[&str]| {
            conditions.iter().find(|condition| types.contains(&condition.type_.as_str()) && condition.status == "True")
        };
        let pending = condition(&["FileSystemResizePending"]);
        let how = status.allocated_resource_statuses.and_then(|amounts| amounts.storage);
        let how = how.as_ref().and_then(Value::as_str).unwrap_or_default();
        let infeasible = ["ControllerResizeInfeasible", "NodeResizeInfeasible"].contains(&how).then(|| {
            let error = condition(&["ControllerResizeError", "NodeResizeError"]);
            let message = error.and_then(|error| error.message.as_deref()).filter(|message| !message.is_empty());
            message.unwrap_or(how).chars().take(LONGEST_MESSAGE).collect()
        });
        Ok(Self {
            grown_by: annotations.and_then(|mut annotations| annotations.remove(OWNED_BY_STATEFUL_SET)),
            storage_class: spec.storage_class_name,
            access_modes: spec.access_modes.unwrap_or_default(),
            requested: stored(spec.resources.and_then(|resources| resources.requests)),
            capacity: stored(status.capacity),
            resize_pending_since: pending
                .map(|condition| condition.last_transition_time.unwrap_or(Timestamp::UNIX_EPOCH)),
            infeasible,
            metadata: ObjectMeta {
                name,
                namespace,
                uid,
                resource_version,
                deletion_timestamp,
                owner_references,
                ..ObjectMeta::default()
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_shows_its_size_and_its_owners() {
        let claim: SizedClaim = serde_json::from_value(json!({
            "metadata": {"name": "data-web-0", "annotations": {OWNED_BY_STATEFUL_SET: "web", "other": "x"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": "p"}]},
            "spec": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}},
            "status": {"capacity": {"storage": 1_073_741_824}, "conditions": [
                {"type": "FileSystemResizePending", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        }))
        .unwrap();
        assert_eq!((claim.grown_by.as_deref(), claim.owners().len()), (Some("web"), 1));
        assert_eq!((claim.requested, claim.capacity), (quantity::parse("2Gi"), quantity::parse("1Gi")));
        assert!(claim.resize_pending_since.is_some() && !claim.is_deleting());
        assert_eq!(claim.infeasible, None);
        let infeasible: SizedClaim = serde_json::from_value(json!({"status": {
            "allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"},
            "conditions": [{"type": "ControllerResizeError", "status": "True", "message": "too large"}]}}))
        .unwrap();
        assert_eq!(infeasible.infeasible.as_deref(), Some("too large"));
        let node: SizedClaim = serde_json::from_value(
            json!({"status": {"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}}),
        )
        .unwrap();
        assert_eq!(node.infeasible.as_deref(), Some("NodeResizeInfeasible"));
        assert_eq!(serde_json::from_str::<SizedClaim>("{}").unwrap(), SizedClaim::default());
    }
}
