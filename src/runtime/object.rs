//! Reads an object that somebody refers to by API version, kind and name, of whatever kind.
//!
//! Kinds that the manifests grant are read in the version that we know; any other kind is found by discovery, and an
//! administrator has to grant it.

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams},
};
use serde_json::Value;

use super::apply::code;
use crate::{
    api::{group_and_version, kinds},
    k8s::{name::is_dns_subdomain, rbac::Rule},
};

/// The right to read Jobs.
pub const READ_JOBS: Rule = Rule::new(&["batch"], &["jobs"], &["get"]);

/// What comes of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// It is there.
    Object(Value),
    /// There is no such object, or no such kind.
    Missing,
    /// Nobody has granted it: the group, the plural, and what the API server says.
    Forbidden(String, String, String),
    /// There can be no such object.
    Impossible,
}

impl Found {
    /// How a refusal is to be mended, where it is one. `who` is for example `Kruise's manager`, `label` that of the
    /// ClusterRoles whose rules it gets.
    pub fn refusal(&self, who: &str, label: &str) -> Option<String> {
        let Self::Forbidden(group, plural, why) = self else { return None };
        Some(format!(
            "{who} may not read it; grant it with a ClusterRole that has the label {label}: \"true\" and the rule apiGroups [{group:?}], resources [{plural}], verbs [get]. The API server says: {why}"
        ))
    }
}

/// Reads an object from the API server itself.
///
/// # Errors
/// Those of the API server, but 403 and 404.
pub async fn read(
    client: &Client,
    namespace: &str,
    (api_version, kind, name): (&str, &str, &str),
) -> kube::Result<Found> {
    let (group, version) = group_and_version(api_version);
    let is_group = group.is_empty() || is_dns_subdomain(group);
    if !is_group || !is_dns_subdomain(version) || !is_dns_subdomain(name) {
        return Ok(Found::Impossible);
    }
    let known = match (group, kind) {
        ("batch", "Job") => Some(("batch/v1".to_owned(), "jobs")),
        _ => kinds::Kind::of(group, kind).map(|known| (known.api_version(), known.plural)),
    };
    let resource = match known {
        Some((api_version, plural)) => resource(&api_version, kind, plural),
        None => match discover(client, api_version, kind).await? {
            Some(plural) => resource(api_version, kind, &plural),
            None => return Ok(Found::Missing),
        },
    };
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    match api.get(name).await {
        Ok(object) => Ok(Found::Object(serde_json::to_value(object).map_err(kube::Error::SerdeError)?)),
        Err(error) if code(&error) == Some(404) => Ok(Found::Missing),
        Err(error) if code(&error) == Some(403) => {
            Ok(Found::Forbidden(resource.group, resource.plural, error.to_string()))
        }
        Err(error) => Err(error),
    }
}

/// Lists ReplicaSets by a selector, raw.
///
/// # Errors
/// Those of the API server.
pub async fn replica_sets(client: &Client, namespace: &str, selector: &str) -> kube::Result<Vec<Value>> {
    let resource = resource("apps/v1", "ReplicaSet", "replicasets");
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let found = api.list(&ListParams::default().labels(selector)).await?;
    let raw = found.items.into_iter().map(serde_json::to_value);
    raw.collect::<Result<_, _>>().map_err(kube::Error::SerdeError)
}

fn resource(api_version: &str, kind: &str, plural: &str) -> ApiResource {
    let (group, version) = group_and_version(api_version);
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

/// The plural of a kind, by discovery.
async fn discover(client: &Client, api_version: &str, kind: &str) -> kube::Result<Option<String>> {
    let served = match group_and_version(api_version) {
        ("", version) => client.list_core_api_resources(version).await,
        _ => client.list_api_group_resources(api_version).await,
    };
    match served {
        Ok(served) => {
            let found = served.resources.into_iter().find(|of| of.kind == kind && !of.name.contains('/'));
            Ok(found.map(|found| found.name))
        }
        Err(error) if code(&error) == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}
