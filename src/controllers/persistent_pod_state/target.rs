//! What is decoded of a StatefulSet, of both kinds: how many Pods it wants, which ordinals, and the annotations by which it
//! asks for a PersistentPodState.

use std::{borrow::Cow, collections::BTreeMap, fmt, marker::PhantomData};

use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{ObjectMeta, Time},
    util::intstr::IntOrString,
};
use kube::{Resource, core::NamespaceResourceScope};
use serde::{Deserialize, Deserializer};

use crate::{
    domain::{
        kinds::persistent_pod_state::{generate::ANNOTATIONS, plan::StateTargetView},
        workload::{numbering::Reserved, owner::OwnerRef},
    },
    k8s::invalid::Invalid,
};

/// A StatefulSet of the kind K.
pub(super) struct TargetOf<K> {
    /// Name, namespace, UID, resourceVersion, deletion time, and the annotations that matter; nothing else is kept.
    metadata: ObjectMeta,
    replicas: i32,
    start: i32,
    reserved: Vec<IntOrString>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for TargetOf<K> {
    fn clone(&self) -> Self {
        let Self { metadata, replicas, start, reserved, kind } = self;
        let (metadata, reserved) = (metadata.clone(), reserved.clone());
        Self { metadata, replicas: *replicas, start: *start, reserved, kind: *kind }
    }
}

impl<K> fmt::Debug for TargetOf<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetOf").field("name", &self.metadata.name).field("replicas", &self.replicas).finish()
    }
}

impl<K: Resource<DynamicType = ()>> Resource for TargetOf<K> {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;
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

impl<'de, K> Deserialize<'de> for TargetOf<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: Meta,
            #[serde(default)]
            spec: Spec,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Meta {
            name: Option<String>,
            namespace: Option<String>,
            uid: Option<String>,
            resource_version: Option<String>,
            deletion_timestamp: Option<Time>,
            annotations: Option<BTreeMap<String, String>>,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            replicas: Option<i32>,
            ordinals: Option<Ordinals>,
            reserve_ordinals: Option<Vec<IntOrString>>,
        }
        #[derive(Deserialize)]
        struct Ordinals {
            start: Option<i32>,
        }
        let Wire { metadata, spec } = Wire::deserialize(deserializer)?;
        let annotations = metadata.annotations.map(|mut annotations| {
            annotations.retain(|key, _| ANNOTATIONS.contains(&key.as_str()));
            annotations
        });
        let metadata = ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            deletion_timestamp: metadata.deletion_timestamp,
            annotations,
            ..ObjectMeta::default()
        };
        Ok(Self {
            metadata,
            replicas: spec.replicas.unwrap_or(1),
            start: spec.ordinals.and_then(|ordinals| ordinals.start).unwrap_or_default(),
            reserved: spec.reserve_ordinals.unwrap_or_default(),
            kind: PhantomData,
        })
    }
}

impl<K: Resource<DynamicType = ()>> TargetOf<K> {
    /// Whether it is being deleted.
    pub(super) fn is_going(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// How it is named in references.
    pub(super) fn owner(&self) -> OwnerRef {
        OwnerRef::of(self)
    }

    /// The annotations that matter.
    pub(super) fn annotations(&self) -> BTreeMap<String, String> {
        self.metadata.annotations.clone().unwrap_or_default()
    }

    /// What the rules see. `has_start`: it may begin at another ordinal than 0.
    ///
    /// # Errors
    /// Its reserved ordinals cannot be read.
    pub(super) fn view(&self, has_start: bool) -> Result<StateTargetView, Invalid> {
        let reserved = Reserved::parse(&self.reserved)?;
        let start = if has_start { self.start } else { 0 };
        let uid = self.metadata.uid.as_deref().unwrap_or_default();
        Ok(StateTargetView::new(uid, self.is_going(), self.replicas, start, &reserved))
    }

    /// Whether another version of it says the same as far as it matters.
    pub(super) fn is_same_but_version(&self, other: &Self) -> bool {
        let meta = |target: &Self| (target.metadata.uid.clone(), target.is_going(), target.annotations());
        let numbers = |target: &Self| (target.replicas, target.start, target.reserved.clone());
        meta(self) == meta(other) && numbers(self) == numbers(other)
    }
}
