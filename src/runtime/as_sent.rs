//! An object as the API server sends it, whatever its kind.
//!
//! A watch is some 60 kB of program for each type that it brings. Those of JSON all bring this one, and each store decodes what it
//! keeps. A page of a list is held as text, and one object at a time becomes a tree: some objects are fifty times as large then.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Resource,
    core::{ApiResource, DynamicResourceScope},
};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};

use super::guarded::{Guarded, identity_of_text};
use crate::k8s::bounded_json;

/// An object. In an event of a watch it stands behind the event's type, as every API server writes it.
#[derive(Clone, Debug)]
pub(super) struct AsSent {
    metadata: ObjectMeta,
    text: Box<RawValue>,
}

impl AsSent {
    /// The object, but for its `managedFields`.
    ///
    /// # Errors
    /// It would grow out of proportion.
    pub(super) fn object(&self) -> serde_json::Result<Value> {
        bounded_json::read(self.text.get())
    }

    /// The object, or why it cannot be read.
    pub(super) fn guarded<K: DeserializeOwned>(&self) -> Guarded<K> {
        Guarded::of_text(self.text.get())
    }

    /// The same with `managedFields`, but for the fields in them: who wrote the object, and when.
    ///
    /// # Errors
    /// It would grow out of proportion.
    pub(super) fn with_managers(&self) -> serde_json::Result<Value> {
        bounded_json::read_with_managers(self.text.get())
    }
}

/// The metadata of an object, of which alone it asks.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct MetadataAsSent(AsSent);

impl Resource for MetadataAsSent {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(of: &ApiResource) -> Cow<'_, str> {
        AsSent::kind(of)
    }

    fn group(of: &ApiResource) -> Cow<'_, str> {
        AsSent::group(of)
    }

    fn version(of: &ApiResource) -> Cow<'_, str> {
        AsSent::version(of)
    }

    fn api_version(of: &ApiResource) -> Cow<'_, str> {
        AsSent::api_version(of)
    }

    fn plural(of: &ApiResource) -> Cow<'_, str> {
        AsSent::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }

    fn metadata_api() -> bool {
        true
    }
}

impl<'de> Deserialize<'de> for AsSent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self { metadata: identity_of_text(text.get()), text })
    }
}

impl Resource for AsSent {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(of: &ApiResource) -> Cow<'_, str> {
        of.kind.as_str().into()
    }

    fn group(of: &ApiResource) -> Cow<'_, str> {
        of.group.as_str().into()
    }

    fn version(of: &ApiResource) -> Cow<'_, str> {
        of.version.as_str().into()
    }

    fn api_version(of: &ApiResource) -> Cow<'_, str> {
        of.api_version.as_str().into()
    }

    fn plural(of: &ApiResource) -> Cow<'_, str> {
        of.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The same objects as they are sent, or their metadata.
pub(super) fn as_sent<K, S>(api: Api<K>, resource: &ApiResource) -> Api<S>
where
    K: Resource,
    S: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
{
    match api.namespace().map(str::to_owned) {
        Some(namespace) => Api::namespaced_with(api.into_client(), &namespace, resource),
        None => Api::all_with(api.into_client(), resource),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{
        apps::v1::DaemonSet,
        core::v1::{ConfigMap, Namespace},
    };
    use kube::core::{ObjectList, WatchEvent};
    use serde_json::json;

    use super::*;
    use crate::runtime::fake_api;

    #[tokio::test]
    async fn the_paths_are_those_of_the_typed_resource() {
        let client = fake_api::answering_some(|_, _| None);
        fn same<K: Resource<DynamicType = ()>>(api: Api<K>) -> String {
            let path = api.resource_url().to_owned();
            let sent: Api<AsSent> = as_sent(api, &ApiResource::erase::<K>(&()));
            assert_eq!(sent.resource_url(), path);
            path
        }
        let paths = [
            same::<ConfigMap>(Api::all(client.clone())),
            same::<ConfigMap>(Api::namespaced(client.clone(), "shop")),
            same::<Namespace>(Api::all(client.clone())),
            same::<DaemonSet>(Api::all(client.clone())),
            same::<DaemonSet>(Api::namespaced(client, "namespaces")),
        ];
        assert_eq!(
            paths,
            [
                "/api/v1/configmaps",
                "/api/v1/namespaces/shop/configmaps",
                "/api/v1/namespaces",
                "/apis/apps/v1/daemonsets",
                "/apis/apps/v1/namespaces/namespaces/daemonsets"
            ]
        );
    }

    #[test]
    fn nothing_of_an_object_is_lost_but_its_managed_fields() {
        let object = json!({"metadata": {"name": "a", "namespace": "b", "uid": "c", "resourceVersion": "1", "labels": "none"},
            "newField": [1]});
        let mut managed = object.clone();
        managed["metadata"]["managedFields"] = json!([{"manager": "m"}]);
        let sent: AsSent = serde_json::from_value(managed).unwrap();
        let meta = sent.meta();
        assert_eq!(
            (meta.name.as_deref(), meta.namespace.as_deref(), meta.uid.as_deref()),
            (Some("a"), Some("b"), Some("c"))
        );
        assert_eq!(sent.object().unwrap(), object);
    }

    #[test]
    fn an_object_of_any_depth_leaves_the_others_of_its_list_and_the_events_after_it() {
        let deep = format!("{}{}", "[".repeat(9000), "]".repeat(9000));
        let object = |name: &str, spec: &str| {
            format!(r#"{{"spec":{spec},"metadata":{{"name":"{name}","resourceVersion":"7"}}}}"#)
        };
        let list = format!(r#"{{"metadata":{{}},"items":[{},{}]}}"#, object("deep", &deep), object("flat", "7"));
        let list: ObjectList<AsSent> = serde_json::from_str(&list).unwrap();
        let [bad, good] = list.items.as_slice() else { panic!("{list:?}") };
        assert_eq!(bad.meta().name.as_deref(), Some("deep"));
        assert!(bad.object().unwrap_err().to_string().starts_with("it is nested deeper than 100 levels"));
        assert_eq!(good.object().unwrap()["spec"], 7);

        let event = format!(r#"{{"type":"MODIFIED","object":{}}}"#, object("deep", &deep));
        let WatchEvent::Modified(sent) = serde_json::from_str::<WatchEvent<AsSent>>(&event).unwrap() else { panic!() };
        assert_eq!(sent.meta().resource_version.as_deref(), Some("7"));
    }
}
