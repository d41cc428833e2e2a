//! What is read from the API server because a store may be behind: adoption rests on it.

use kube::{Client, api::GetParams, core::Request};
use serde_json::Value;

use super::apply::code;
use crate::{
    api::kinds::{Kind, Scope},
    domain::workload::owner::OwnerRef,
    k8s::path,
};

/// Whether an owner may adopt objects: it is there, is the same object, and is not being deleted. A store that is behind
/// would adopt what the garbage collector has just orphaned.
///
/// # Errors
/// Those of the API server, but 404.
pub async fn may_adopt(client: &Client, owner: &OwnerRef) -> kube::Result<bool> {
    // What it owns is in a namespace, even where it is in none itself.
    let is_of_cluster = Kind::of(owner.group(), &owner.kind).is_some_and(|kind| kind.scope == Scope::Cluster);
    let path = match is_of_cluster {
        true => path::of_cluster(owner.group(), owner.version(), &owner.plural),
        false => path::in_namespace(owner.group(), owner.version(), &owner.namespace, &owner.plural),
    };
    let request = Request::new(path).get(&owner.name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
    match client.request::<Value>(request).await {
        Ok(live) => Ok(live["metadata"]["uid"] == owner.uid && live["metadata"]["deletionTimestamp"].is_null()),
        Err(error) if code(&error) == Some(404) => Ok(false),
        Err(error) => Err(error),
    }
}
