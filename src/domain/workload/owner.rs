//! The object that owns others: how it is named in owner references and in events.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use serde_json::{Value, json};

use crate::{api::group_of, k8s::pod::PodView};

/// An object that owns others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerRef {
    /// Group and version that owner references name.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// The plural of the kind, as in paths.
    pub plural: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// The version that was looked at, for events.
    pub resource_version: Option<String>,
}

impl OwnerRef {
    /// Of an object, in the version of its type.
    pub fn of<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        let meta = object.meta();
        Self {
            api_version: K::api_version(&()).into_owned(),
            kind: K::kind(&()).into_owned(),
            plural: K::plural(&()).into_owned(),
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone(),
        }
    }

    /// Of a Pod, to which claims belong.
    pub fn of_pod(pod: &PodView) -> Self {
        Self {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            plural: "pods".to_owned(),
            namespace: pod.namespace().to_owned(),
            name: pod.name().to_owned(),
            uid: pod.uid().to_owned(),
            resource_version: pod.resource_version().map(str::to_owned),
        }
    }

    /// The API group; empty for the core group.
    pub fn group(&self) -> &str {
        group_of(&self.api_version)
    }

    /// The API version without the group.
    pub fn version(&self) -> &str {
        self.api_version.rsplit_once('/').map_or(&*self.api_version, |(_, version)| version)
    }

    /// The owner reference of what it controls.
    pub fn controller(&self) -> Value {
        let mut reference = self.plain();
        reference["controller"] = true.into();
        reference["blockOwnerDeletion"] = true.into();
        reference
    }

    /// The owner reference of what is deleted with it and which it does not control.
    pub fn plain(&self) -> Value {
        json!({"apiVersion": self.api_version, "kind": self.kind, "name": self.name, "uid": self.uid})
    }

    /// Whether it controls a Pod: by group, kind and UID. A namesake that was deleted has another UID.
    pub fn controls(&self, pod: &PodView) -> bool {
        let owner = pod.controller.as_deref();
        owner.is_some_and(|owner| owner.is(self.group(), &self.kind) && owner.uid == self.uid)
    }

    /// What an event is about.
    pub fn reference(&self) -> ObjectReference {
        // An event about an object without a namespace is sent to `default`, and its reference names none.
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        ObjectReference {
            api_version: text(&self.api_version),
            kind: text(&self.kind),
            namespace: text(&self.namespace),
            name: text(&self.name),
            uid: text(&self.uid),
            resource_version: self.resource_version.clone(),
            ..ObjectReference::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::apps::clone_set::CloneSet;

    fn owner() -> OwnerRef {
        let set: CloneSet = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u", "resourceVersion": "7"},
            "spec": {"selector": {}, "template": {}},
        }))
        .unwrap();
        OwnerRef::of(&set)
    }

    #[test]
    fn references_name_group_version_kind_name_and_uid() {
        let owner = owner();
        let plain = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web", "uid": "u"});
        assert_eq!(owner.plain(), plain);
        let mut controller = plain;
        controller["controller"] = true.into();
        controller["blockOwnerDeletion"] = true.into();
        assert_eq!(owner.controller(), controller);
        assert_eq!(
            (owner.group(), owner.version(), owner.plural.as_str()),
            ("apps.kruise.io", "v1alpha1", "clonesets")
        );
        let about = owner.reference();
        assert_eq!((about.resource_version.as_deref(), about.namespace.as_deref()), (Some("7"), Some("ns")));
        let of_cluster = OwnerRef { namespace: String::new(), ..owner };
        assert_eq!(of_cluster.reference().namespace, None);
    }

    #[test]
    fn a_pod_is_controlled_by_group_kind_and_uid_in_any_version() {
        let pod = |api_version: &str, kind: &str, uid: &str| -> PodView {
            let reference =
                json!({"apiVersion": api_version, "kind": kind, "name": "web", "uid": uid, "controller": true});
            serde_json::from_value(json!({"metadata": {"name": "p", "ownerReferences": [reference]}})).unwrap()
        };
        let owner = owner();
        assert!(owner.controls(&pod("apps.kruise.io/v1alpha1", "CloneSet", "u")));
        assert!(owner.controls(&pod("apps.kruise.io/v1beta1", "CloneSet", "u")));
        assert!(!owner.controls(&pod("example.com/v1", "CloneSet", "u")));
        assert!(!owner.controls(&pod("apps.kruise.io/v1alpha1", "StatefulSet", "u")));
        assert!(!owner.controls(&pod("apps.kruise.io/v1alpha1", "CloneSet", "another")));
    }
}
