//! A custom resource that may not decode: one that somebody wrote under other rules must not keep a list or a watch from
//! bringing the others.
//!
//! As kube's `DeserializeGuard`, which builds each object twice more, in a representation of its own that nothing else here uses:
//! that took a megabyte of the executable.

use std::{borrow::Cow, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};

use crate::k8s::bounded_json::{self, Identity};

/// An object, or why it cannot be read.
#[derive(Clone, Debug)]
pub struct Guarded<K>(pub Result<K, Unreadable>);

/// An object that cannot be read.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// Why.
    pub error: String,
    /// What [`identity`] takes.
    pub metadata: ObjectMeta,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.error)
    }
}

/// Of the metadata of an object, whatever its form, only what identifies it and its version.
pub fn identity(object: &Value) -> ObjectMeta {
    let text = |member: &str| object["metadata"][member].as_str().map(str::to_owned);
    ObjectMeta {
        name: text("name"),
        namespace: text("namespace"),
        uid: text("uid"),
        resource_version: text("resourceVersion"),
        ..ObjectMeta::default()
    }
}

/// The same of an object that was not read.
pub fn identity_of_text(text: &str) -> ObjectMeta {
    let Identity { name, namespace, uid, resource_version, generation } = bounded_json::identity(text);
    ObjectMeta { name, namespace, uid, resource_version, generation, ..ObjectMeta::default() }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|text| Self::of_text(text.get()))
    }
}

impl<K: DeserializeOwned> Guarded<K> {
    /// The object of this JSON.
    pub fn of_text(text: &str) -> Self {
        let read = bounded_json::read(text).and_then(serde_json::from_value);
        Self(read.map_err(|error| Unreadable { error: error.to_string(), metadata: identity_of_text(text) }))
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(of: &K::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &K::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &K::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &K::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|unreadable| &unreadable.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.as_mut().map_or_else(|unreadable| &mut unreadable.metadata, K::meta_mut)
    }
}

#[cfg(test)]
mod tests {
    use kube::core::ObjectList;
    use serde_json::json;

    use super::*;
    use crate::api::apps::sidecar_set::SidecarSet;

    #[test]
    fn one_object_that_cannot_be_read_leaves_the_others_of_its_list() {
        let set = |name: &str, spec: Value| {
            json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet", "spec": spec, "metadata": {"name": name,
                "namespace": 7, "uid": "u", "resourceVersion": "12", "labels": "none"}})
        };
        let mut good = set("good", json!({}));
        good["metadata"] = json!({"name": "good", "resourceVersion": "11", "labels": {"a": "b"}});
        let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": [set("bad", json!([])), good]});
        for list in [serde_json::from_value(list.clone()), serde_json::from_str(&list.to_string())] {
            let list: ObjectList<Guarded<SidecarSet>> = list.unwrap();
            let [bad, good] = list.items.as_slice() else { panic!("{list:?}") };
            let meta = bad.meta();
            assert_eq!((meta.name.as_deref(), meta.namespace.as_deref()), (Some("bad"), None));
            assert_eq!((meta.uid.as_deref(), meta.resource_version.as_deref()), (Some("u"), Some("12")));
            assert!(bad.0.as_ref().is_err_and(|why| !why.to_string().is_empty()));
            assert!(good.0.is_ok() && good.meta().labels.as_ref().unwrap()["a"] == "b");
        }
        assert_eq!(Guarded::<SidecarSet>::kind(&()), "SidecarSet");
    }

    #[test]
    fn what_is_no_object_has_no_name() {
        for other in [json!(null), json!("x"), json!([1])] {
            let Guarded(read) = serde_json::from_value::<Guarded<SidecarSet>>(other.clone()).unwrap();
            assert!(read.is_err_and(|why| why.metadata == ObjectMeta::default()), "{other}");
        }
    }
}
