//! A PersistentVolumeClaim as our rules see it: whose it is.

use std::borrow::Cow;

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Deserializer};

use crate::api::labels::INSTANCE_ID;

/// The compact form of a claim. Never written back.
#[derive(Clone, Debug, Default, PartialEq)]
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

impl kube::Resource for ClaimView {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;
    fn kind((): &()) -> Cow<'_, str> {
        "PersistentVolumeClaim".into()
    }
    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }
    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        "persistentvolumeclaims".into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
