//! Reads an object that somebody refers to by API version, kind and name, of whatever kind.
//!
//! Kinds that the manifests grant are read in the version that we know; any other kind is found by discovery, in whatever version
//! its group serves, and an administrator has to grant it.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams},
};
use serde_json::Value;

use super::{
    apply::{code, said},
    clock, lock,
    served::{Served, served},
};
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
    /// If this is a refusal: which right is missing and how to grant it. `who` is for example `Kruise's manager`, `label` that of the
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
    let (resource, found) = match known {
        Some((api_version, plural)) => (resource(&api_version, kind, plural), None),
        None => match plurals.of(client, api_version, kind).await? {
            Some(found) => (resource(&found.api_version, kind, &found.plural), Some(found)),
            None => return Ok(Found::Missing),
        },
    };
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    match api.get(name).await {
        Ok(object) => Ok(Found::Object(serde_json::to_value(object).map_err(kube::Error::SerdeError)?)),
        // The kind is looked for again.
        Err(error) if found.as_ref().is_some_and(|found| found.is_outdated(&error)) => {
            plurals.forget(api_version, kind);
            Err(error)
        }
        Err(error) if code(&error) == Some(404) => Ok(Found::Missing),
        Err(error) if code(&error) == Some(403) => Ok(Found::Forbidden(resource.group, resource.plural, said(&error))),
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

/// Kinds that were found by discovery, by API version and kind, and when.
#[derive(Debug, Default)]
pub struct Plurals(Mutex<HashMap<(String, String), (Served, Duration)>>);

impl Plurals {
    /// How a kind is served. One that is not served is looked for again at once.
    async fn of(&self, client: &Client, api_version: &str, kind: &str) -> kube::Result<Option<Served>> {
        let (key, now) = ((api_version.to_owned(), kind.to_owned()), clock::now().mono);
        let known = lock(&self.0).get(&key).cloned();
        if let Some((known, _)) = known.filter(|(_, at)| now.saturating_sub(*at) < KNOWN_FOR) {
            return Ok(Some(known));
        }
        let found = served(client, api_version, kind).await?;
        if let Some(found) = &found {
            lock(&self.0).insert(key, (found.clone(), now));
        }
        Ok(found)
    }

    fn forget(&self, api_version: &str, kind: &str) {
        lock(&self.0).remove(&(api_version.to_owned(), kind.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use serde_json::json;

    use super::*;
    use crate::runtime::fake_api;

    /// An operator whose kind goes on from v1 to v2 between two reads.
    #[tokio::test(start_paused = true)]
    async fn an_object_is_there_although_the_version_in_its_reference_is_not_served_any_more() {
        let serves: Arc<AtomicUsize> = Arc::new(AtomicUsize::new(1));
        let now = serves.clone();
        let client = fake_api::answering(move |parts, _| {
            let version = now.load(Ordering::SeqCst);
            let group_version = format!("db.example/v{version}");
            let failure = |details: Value| {
                (
                    404,
                    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 404, "details": details}),
                )
            };
            let path = parts.uri.path();
            if path == "/apis/db.example" {
                let served = json!({"groupVersion": group_version, "version": format!("v{version}")});
                (200, json!({"kind": "APIGroup", "apiVersion": "v1", "name": "db.example", "versions": [served]}))
            } else if path == format!("/apis/{group_version}") {
                let dbs =
                    json!({"name": "dbs", "singularName": "", "namespaced": true, "kind": "Db", "verbs": ["get"]});
                (200, json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": [dbs]}))
            } else if path == format!("/apis/{group_version}/namespaces/ns/dbs/db") {
                (200, json!({"apiVersion": group_version, "kind": "Db", "metadata": {"name": "db", "uid": "t"}}))
            } else if path == format!("/apis/{group_version}/namespaces/ns/dbs/other") {
                failure(json!({"name": "other", "kind": "dbs"}))
            } else {
                failure(json!(null))
            }
        });
        let plurals = Plurals::default();
        let read = async |name: &str| read_with(&client, "ns", ("db.example/v1", "Db", name), &plurals).await;
        assert!(matches!(read("db").await, Ok(Found::Object(_))));
        assert_eq!(read("other").await.unwrap(), Found::Missing);
        serves.store(2, Ordering::SeqCst);
        assert!(read("db").await.is_err(), "nobody says that it is gone");
        assert!(matches!(read("db").await, Ok(Found::Object(_))), "it is found where it is served now");
        assert_eq!(read("other").await.unwrap(), Found::Missing);
    }
}
