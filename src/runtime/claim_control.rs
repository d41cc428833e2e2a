//! Writes to the PersistentVolumeClaims of a workload. `C` is the claim as the controller reads it.

use std::{fmt::Debug, sync::Arc};

use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    apply::{MadeFor, is_already_there, post_for},
    live,
    pod_control::decoded,
    stored,
    watches::{ObjectKey, Store},
};
use crate::{domain::workload::owner::OwnerRef, k8s::path};

/// The writer of claims of one controller.
pub struct ClaimControl<C> {
    client: Client,
    claims: Arc<Store<C>>,
}

impl<C> ClaimControl<C>
where
    C: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    /// `claims` are those that the controller reads.
    pub fn new(client: Client, claims: Arc<Store<C>>) -> Self {
        Self { client, claims }
    }

    fn api(&self, key: &ObjectKey) -> Api<C> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    /// Creates a claim of a workload, which it may outlive. False: a claim of this name exists, from an earlier attempt or an
    /// earlier Pod. It is put into the store, and the next pass decides about it.
    ///
    /// # Errors
    /// Those of the API server.
    pub async fn create(&self, owner: &OwnerRef, claim: &Value) -> kube::Result<bool> {
        let namespace = claim.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or_default();
        let claims = path::in_namespace(path::CORE, "v1", namespace, "persistentvolumeclaims");
        match post_for(&self.client, &claims, claim, MadeFor(owner.uid.clone())).await {
            Ok(made) => {
                self.claims.upsert(decoded(&made)?);
                Ok(true)
            }
            Err(error) if is_already_there(&error) => {
                let name = claim.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
                let there = Api::<C>::namespaced(self.client.clone(), namespace).get_opt(name).await?;
                there.into_iter().for_each(|there| drop(self.claims.upsert(there)));
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// A strategic merge patch of a claim, which names its UID. False: it has changed, or is gone.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    pub async fn patch(&self, claim: &C, mut patch: Value) -> kube::Result<bool> {
        let key = ObjectKey::of(claim);
        patch["metadata"]["uid"] = claim.meta().uid.clone().into();
        match self.api(&key).patch(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Ok(newer) => {
                self.claims.upsert(newer);
                Ok(true)
            }
            Err(error) => match stored::correct(&self.api(&key), &self.claims, claim, &error).await? {
                true => Ok(false),
                false => Err(error),
            },
        }
    }

    /// Makes a workload the controller of a claim that nobody controls. False: it cannot be adopted now.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    pub async fn adopt(&self, owner: &OwnerRef, claim: &C) -> kube::Result<bool> {
        let metadata = claim.meta();
        if metadata.deletion_timestamp.is_some() || !live::may_adopt(&self.client, owner).await? {
            return Ok(false);
        }
        // Only the version in which nobody controls it.
        let patch = json!({"metadata": {"resourceVersion": metadata.resource_version,
            "ownerReferences": [owner.controller()]}});
        self.patch(claim, patch).await
    }

    /// Reads the claims of a namespace that a label selector matches into the store.
    ///
    /// # Errors
    /// Those of the API server.
    pub async fn read_all(&self, namespace: &str, selector: &str) -> kube::Result<()> {
        stored::read_all(&Api::<C>::namespaced(self.client.clone(), namespace), &self.claims, selector).await
    }

    /// Deletes a claim. False: it is gone already, or another one has its name.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    pub async fn delete(&self, claim: &C) -> kube::Result<bool> {
        stored::delete(&self.api(&ObjectKey::of(claim)), &self.claims, claim).await
    }

    /// Deletes claims. One that is refused keeps none of the others.
    ///
    /// # Errors
    /// The first one, when all of them have been tried.
    pub async fn delete_all(&self, claims: &[Arc<C>]) -> kube::Result<()> {
        let mut failure = None;
        for claim in claims {
            failure = failure.or(self.delete(claim).await.err());
        }
        failure.map_or(Ok(()), Err)
    }
}
