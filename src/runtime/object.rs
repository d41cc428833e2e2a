//! Reads an object that somebody refers to by API version, kind and name, of whatever kind.
//!
//! Kinds that the manifests grant are read in the version that we know; any other kind is found by discovery, and an
//! administrator has to grant it.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams},
};
use serde_json::Value;

use super::{apply::code, clock, lock};
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
pub async fn read(client: &Client, namespace: &str, what: (&str, &str, &str)) -> kube::Result<Found> {
    read_with(client, namespace, what, &Plurals::default()).await
}

/// The same for somebody who reads objects of the same kind again and again.
///
/// # Errors
/// Those of the API server, but 403 and 404.
pub async fn read_with(
    client: &Client,
    namespace: &str,
    (api_version, kind, name): (&str, &str, &str),
    plurals: &Plurals,
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
        None => match plurals.of(client, api_version, kind).await? {
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

/// For how long what was found out about a kind is not read again.
pub const KNOWN_FOR: Duration = Duration::from_secs(60);

/// The plurals of kinds that were found by discovery, by API version and kind, and when.
#[derive(Debug, Default)]
pub struct Plurals(Mutex<HashMap<(String, String), (String, Duration)>>);

impl Plurals {
    /// The plural of a kind. One that is not served is looked for again at once.
    async fn of(&self, client: &Client, api_version: &str, kind: &str) -> kube::Result<Option<String>> {
        let (key, now) = ((api_version.to_owned(), kind.to_owned()), clock::now().mono);
        let known = lock(&self.0).get(&key).cloned();
        if let Some((plural, _)) = known.filter(|(_, at)| now.saturating_sub(*at) < KNOWN_FOR) {
            return Ok(Some(plural));
        }
        let found = discover(client, api_version, kind).await?;
        if let Some(plural) = &found {
            lock(&self.0).insert(key, (plural.clone(), now));
        }
        Ok(found)
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
