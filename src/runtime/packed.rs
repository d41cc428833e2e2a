//! Objects of a store as text. A controller looks at few of its objects at a time, and a Pod template takes several times as
//! much memory as a tree of maps as it does as text.

use std::{borrow::Cow, fmt, marker::PhantomData};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, Error as _},
};

/// An object of the kind K: its metadata, and the rest of it as JSON.
pub struct Packed<K> {
    metadata: ObjectMeta,
    /// The object with empty metadata.
    rest: Box<str>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Packed<K>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned,
{
    /// Packs an object, without `managedFields`.
    ///
    /// # Errors
    /// It cannot be made JSON.
    pub fn of(mut object: K) -> serde_json::Result<Self> {
        let metadata = ObjectMeta { managed_fields: None, ..std::mem::take(object.meta_mut()) };
        let rest = serde_json::to_string(&object)?.into_boxed_str();
        Ok(Self { metadata, rest, kind: PhantomData })
    }

    /// The object.
    ///
    /// # Errors
    /// It cannot be read, although it was made from such an object.
    pub fn open(&self) -> kube::Result<K> {
        let mut object: K = serde_json::from_str(&self.rest).map_err(kube::Error::SerdeError)?;
        object.meta_mut().clone_from(&self.metadata);
        Ok(object)
    }
}

impl<K> Clone for Packed<K> {
    fn clone(&self) -> Self {
        Self { metadata: self.metadata.clone(), rest: self.rest.clone(), kind: PhantomData }
    }
}

impl<K> fmt::Debug for Packed<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packed").field("metadata", &self.metadata).field("rest", &self.rest).finish()
    }
}

impl<K: Resource<DynamicType = ()>> Resource for Packed<K> {
    type DynamicType = ();
    type Scope = K::Scope;
    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }
    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }
    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }
    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl<'de, K> Deserialize<'de> for Packed<K>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of(K::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::apps::stateful_set::StatefulSet;

    #[test]
    fn an_object_is_the_same_afterwards_but_for_managed_fields() {
        let object = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "StatefulSet",
            "metadata": {"name": "web", "namespace": "ns", "uid": "u", "resourceVersion": "7", "generation": 2,
                "annotations": {"a": "b"}, "managedFields": [{"manager": "x"}]},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "reserveOrdinals": [1, "3-7"],
                "template": {"metadata": {"creationTimestamp": null}, "spec": {"containers": [{"name": "main",
                    "resources": {}, "newField": {"a": [1, 0.5, true]}}]}},
                "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
                "updateStrategy": {"rollingUpdate": {"maxUnavailable": "20%"}}},
            "status": {"replicas": 3, "collisionCount": 0, "conditions": [{"type": "Ready", "status": "True",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        let mut plain: StatefulSet = serde_json::from_value(object.clone()).unwrap();
        let packed: Packed<StatefulSet> = serde_json::from_value(object).unwrap();
        plain.metadata.managed_fields = None;
        assert_eq!(packed.open().unwrap(), plain);
        assert_eq!(packed.meta(), &plain.metadata);
        assert!(!packed.rest.contains("resourceVersion"), "metadata is not held twice: {packed:?}");
    }

    #[test]
    fn a_set_without_a_status_has_none_afterwards() {
        let object = json!({"metadata": {"name": "web"}, "spec": {"selector": {}, "template": {}}});
        let packed: Packed<StatefulSet> = serde_json::from_value(object).unwrap();
        assert_eq!(packed.open().unwrap().status, None);
        assert!(serde_json::from_value::<Packed<StatefulSet>>(json!({"spec": 7})).is_err());
    }
}
