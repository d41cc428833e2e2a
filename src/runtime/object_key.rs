//! Which object: its namespace and name, and what a store has to know of it besides.

use std::{fmt, sync::Arc};

use kube::Resource;

use crate::k8s::{pod::PodView, shared};

/// Namespace and name of an object; the namespace of a cluster-scoped one is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// The key of an object.
    pub fn of<K: StoredObject>(object: &K) -> Self {
        object.object_key()
    }
    /// A key from its parts.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: shared::text(namespace), name: name.into() }
    }
}

/// What a store has to know of an object.
pub trait StoredObject {
    /// Namespace and name.
    fn object_key(&self) -> ObjectKey;
    /// The same without a copy; the namespace of a cluster-scoped object is empty.
    fn namespace_and_name(&self) -> (&str, &str);
    /// UID, if it has one.
    fn object_uid(&self) -> Option<&str>;
    /// `metadata.resourceVersion`, if it has one.
    fn object_version(&self) -> Option<&str>;
    /// Drops `managedFields`: nobody decides from them.
    fn drop_managed_fields(&mut self);
    /// Holds the texts of its key in place of its own, if it can.
    fn share_key(&mut self, _: &ObjectKey) {}
}

impl<K: Resource> StoredObject for K {
    fn object_key(&self) -> ObjectKey {
        let (namespace, name) = self.namespace_and_name();
        ObjectKey::new(namespace, name)
    }
    fn namespace_and_name(&self) -> (&str, &str) {
        let meta = self.meta();
        (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
    }
    fn object_uid(&self) -> Option<&str> {
        self.meta().uid.as_deref()
    }
    fn object_version(&self) -> Option<&str> {
        self.meta().resource_version.as_deref()
    }
    fn drop_managed_fields(&mut self) {
        self.meta_mut().managed_fields = None;
    }
}

impl StoredObject for PodView {
    fn object_key(&self) -> ObjectKey {
        let (namespace, name) = self.shared_key();
        ObjectKey { namespace, name }
    }
    fn namespace_and_name(&self) -> (&str, &str) {
        (self.namespace(), self.name())
    }
    fn object_uid(&self) -> Option<&str> {
        Some(self.uid()).filter(|uid| !uid.is_empty())
    }
    fn object_version(&self) -> Option<&str> {
        self.resource_version()
    }
    fn drop_managed_fields(&mut self) {}
    fn share_key(&mut self, key: &ObjectKey) {
        self.share_name(&key.name);
    }
}

/// Of an object, that it is there, and which spec it has.
#[derive(Clone, Debug)]
pub struct StoredName {
    key: ObjectKey,
    uid: Option<String>,
    version: Option<String>,
    generation: Option<i64>,
}

impl StoredName {
    /// What is kept of an object.
    pub fn of<K: Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self {
            key: object.object_key(),
            uid: meta.uid.clone(),
            version: meta.resource_version.clone(),
            generation: meta.generation,
        }
    }

    /// UID and generation: what is the same has the same spec.
    pub fn spec(&self) -> (Option<&str>, Option<i64>) {
        (self.uid.as_deref(), self.generation)
    }
}

impl StoredObject for StoredName {
    fn object_key(&self) -> ObjectKey {
        self.key.clone()
    }
    fn namespace_and_name(&self) -> (&str, &str) {
        (&self.key.namespace, &self.key.name)
    }
    fn object_uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }
    fn object_version(&self) -> Option<&str> {
        self.version.as_deref()
    }
    fn drop_managed_fields(&mut self) {}
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
