//! The workloads of subsets of whatever kind, as they are stored: raw, so that nothing is lost in between.

use std::{borrow::Cow, marker::PhantomData, sync::Arc};

use k8s_openapi::{
    NamespaceResourceScope,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Api, Client, Resource, core::ObjectList};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    api::{apps, group_of, labels},
    controllers::{deployment_of, owned_text},
    domain::{
        kinds::united_deployment::{child::ChildSeen, spec::ChildKind},
        workload::owner::OwnerRef,
    },
    k8s::{owner, pod::Owner},
    runtime::watches::{Change, ObjectKey, Store, StoreIndex},
};

/// Says of which kind a [`Child`] is.
pub(super) trait OfKind: Send + Sync + 'static {
    const KIND: ChildKind;
}

macro_rules! kinds {
    ($($name:ident)*) => {$(
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $name;
        impl OfKind for $name {
            const KIND: ChildKind = ChildKind::$name;
        }
    )*};
}

kinds!(StatefulSet AdvancedStatefulSet CloneSet Deployment);

/// A workload of a subset.
#[derive(Serialize, Deserialize)]
pub(super) struct Child<K> {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Value,
    #[serde(skip)]
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Child<K> {
    fn clone(&self) -> Self {
        let Self { metadata, spec, status, kind } = self;
        Self { metadata: metadata.clone(), spec: spec.clone(), status: status.clone(), kind: *kind }
    }
}

impl<K> std::fmt::Debug for Child<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Child").field("name", &self.metadata.name).finish_non_exhaustive()
    }
}

impl<K: OfKind> Resource for Child<K> {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(_: &()) -> Cow<'_, str> {
        K::KIND.kind().into()
    }
    fn group(_: &()) -> Cow<'_, str> {
        K::KIND.group().into()
    }
    fn version(_: &()) -> Cow<'_, str> {
        K::KIND.version().into()
    }
    fn plural(_: &()) -> Cow<'_, str> {
        K::KIND.plural().into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The UnitedDeployment that controls an object.
fn united_owner(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    owner::controller_of(metadata, (apps::GROUP, "UnitedDeployment"))
}

/// The key of the UnitedDeployment that controls an object.
fn owner_key(metadata: &ObjectMeta) -> Option<ObjectKey> {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    united_owner(metadata).map(|owner| ObjectKey::new(namespace, &owner.name))
}

fn by_owner<K: OfKind>() -> StoreIndex<Child<K>> {
    StoreIndex::new("UnitedDeployment", |child| {
        let namespace = child.metadata.namespace.as_deref().unwrap_or_default();
        united_owner(&child.metadata).map(|owner| owned_text(namespace, &owner.uid))
    })
}

/// The subset of a workload: by its selector, which nobody can change. Its label can be taken off or overwritten: it says
/// something only where the selector does not.
fn subset_of(metadata: &ObjectMeta, spec: &Value) -> String {
    let selected = spec.pointer("/selector/matchLabels").and_then(|all| all.get(labels::SUBSET_NAME)?.as_str());
    let label = || metadata.labels.as_ref()?.get(labels::SUBSET_NAME).map(String::as_str);
    selected.or_else(label).unwrap_or_default().to_owned()
}

/// Whether an object may be the workload of a subset that nobody controls.
fn is_orphan(metadata: &ObjectMeta) -> bool {
    let is_controlled = metadata.owner_references.iter().flatten().any(|owner| owner.controller == Some(true));
    !is_controlled && metadata.labels.as_ref().is_some_and(|all| all.contains_key(labels::SUBSET_NAME))
}

/// What a workload is to the rules; its Pods are counted later.
fn seen<K: OfKind>(child: &Child<K>) -> ChildSeen {
    let Child { metadata, spec, status, .. } = child;
    ChildSeen {
        kind: Some(K::KIND),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        version: metadata.resource_version.clone().unwrap_or_default(),
        generation: metadata.generation.unwrap_or_default(),
        created: metadata.creation_timestamp.as_ref().map(|time| time.0),
        subset: subset_of(metadata, spec),
        is_deleting: metadata.deletion_timestamp.is_some(),
        object: json!({"metadata": {"labels": metadata.labels, "annotations": metadata.annotations,
            "ownerReferences": metadata.owner_references}, "spec": spec}),
        status: status.clone(),
        ..ChildSeen::default()
    }
}

/// The workloads of one kind.
pub(super) struct OneKind<K: OfKind> {
    pub(super) store: Arc<Store<Child<K>>>,
}

impl<K: OfKind> OneKind<K> {
    /// All workloads are watched, because the label of a subset can be removed from one; of those without a UnitedDeployment
    /// only a few bytes are kept.
    fn new() -> Self {
        Self { store: Store::of_work([by_owner()], |child| united_owner(&child.metadata).is_none()) }
    }

    fn of(&self, owner: &OwnerRef) -> Vec<ChildSeen> {
        let all = self.store.by_index(&by_owner(), &owned_text(&owner.namespace, &owner.uid));
        all.iter().map(|child| seen(child.as_ref())).collect()
    }

    fn owner(&self, namespace: &str, name: &str) -> Option<ObjectKey> {
        owner_key(&self.store.get(&ObjectKey::new(namespace, name))?.metadata)
    }

    fn put(&self, object: Value) -> Result<(), serde_json::Error> {
        self.store.upsert(serde_json::from_value(object)?);
        Ok(())
    }

    /// Reads those that are there from the API server: a store that is behind would have them made twice. Returns those that
    /// nobody controls, which the store does not hold.
    async fn read(&self, client: &Client, namespace: &str) -> kube::Result<Vec<ChildSeen>> {
        let api: Api<Child<K>> = Api::namespaced(client.clone(), namespace);
        let ObjectList { items, .. } = api.list(&kube::api::ListParams::default()).await?;
        let orphans = items.iter().filter(|child| is_orphan(&child.metadata)).map(seen).collect();
        for child in items {
            self.store.upsert(child);
        }
        Ok(orphans)
    }
}

/// The workloads of all subsets.
pub(super) struct Children {
    pub(super) stateful_sets: OneKind<StatefulSet>,
    pub(super) advanced: OneKind<AdvancedStatefulSet>,
    pub(super) clone_sets: OneKind<CloneSet>,
    pub(super) deployments: OneKind<Deployment>,
}

impl Children {
    pub(super) fn new() -> Self {
        Self {
            stateful_sets: OneKind::new(),
            advanced: OneKind::new(),
            clone_sets: OneKind::new(),
            deployments: OneKind::new(),
        }
    }

    /// Those that an object controls.
    pub(super) fn of(&self, owner: &OwnerRef) -> Vec<ChildSeen> {
        let mut all = self.stateful_sets.of(owner);
        all.extend(self.advanced.of(owner));
        all.extend(self.clone_sets.of(owner));
        all.extend(self.deployments.of(owner));
        all
    }

    /// The UnitedDeployment to which a Pod with this controller belongs.
    pub(super) fn owner(&self, namespace: &str, controller: &Owner) -> Option<ObjectKey> {
        let (group, name) = (group_of(&controller.api_version), &*controller.name);
        match (group, &*controller.kind) {
            ("apps", "StatefulSet") => self.stateful_sets.owner(namespace, name),
            ("apps", "ReplicaSet") => self.deployments.owner(namespace, deployment_of(name)?),
            (apps::GROUP, "StatefulSet") => self.advanced.owner(namespace, name),
            (apps::GROUP, "CloneSet") => self.clone_sets.owner(namespace, name),
            _ => None,
        }
    }

    /// Takes over the answer to a write.
    pub(super) fn put(&self, kind: ChildKind, object: Value) -> kube::Result<()> {
        let taken = match kind {
            ChildKind::StatefulSet => self.stateful_sets.put(object),
            ChildKind::AdvancedStatefulSet => self.advanced.put(object),
            ChildKind::CloneSet => self.clone_sets.put(object),
            ChildKind::Deployment => self.deployments.put(object),
        };
        taken.map_err(kube::Error::SerdeError)
    }

    /// See [`OneKind::read`].
    pub(super) async fn read(&self, kind: ChildKind, client: &Client, namespace: &str) -> kube::Result<Vec<ChildSeen>> {
        match kind {
            ChildKind::StatefulSet => self.stateful_sets.read(client, namespace).await,
            ChildKind::AdvancedStatefulSet => self.advanced.read(client, namespace).await,
            ChildKind::CloneSet => self.clone_sets.read(client, namespace).await,
            ChildKind::Deployment => self.deployments.read(client, namespace).await,
        }
    }
}

/// The owner of a workload that has changed.
pub(super) fn changed<K: OfKind>(change: &Change<'_, Child<K>>) -> Option<ObjectKey> {
    match change {
        Change::Applied { new, .. } => owner_key(&new.metadata),
        Change::Deleted(old) => owner_key(&old.metadata),
        Change::Undecodable { .. } => None,
    }
}
