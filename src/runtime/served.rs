//! How an API server serves a kind that the manifests do not grant: by discovery.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroup;
use kube::Client;

use super::apply::code;
use crate::{api::group_and_version, k8s::path::path};

/// A kind as it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Group and version.
    pub api_version: String,
    /// As in a path.
    pub plural: String,
    /// Whether it has a scale subresource.
    pub has_scale: bool,
    /// Whether its objects have a namespace.
    pub is_namespaced: bool,
}

impl Served {
    /// Whether an error of a read of an object in a namespace says that the version is not served any more, which is no answer to
    /// whether there is the object. A 404 for an object has its name.
    pub fn is_outdated(&self, error: &kube::Error) -> bool {
        let kube::Error::Api(status) = error else { return false };
        let is_named = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
        self.is_namespaced && status.code == 404 && !is_named
    }
}

/// A kind in the version that is named or, where that is not served, in another one of its group: references name the version of
/// the time at which they were written, and objects outlive versions. None: no version of the group has it.
///
/// # Errors
/// Those of the API server, but 404.
pub async fn served(client: &Client, api_version: &str, kind: &str) -> kube::Result<Option<Served>> {
    if let Some(found) = in_version(client, api_version, kind).await? {
        return Ok(Some(found));
    }
    let (group, _) = group_and_version(api_version);
    if group.is_empty() {
        return Ok(None);
    }
    let get = http::Request::get(path(["apis", group])).body(Vec::new()).map_err(kube::Error::HttpError)?;
    let group = match client.request::<APIGroup>(get).await {
        Ok(group) => group,
        Err(error) if code(&error) == Some(404) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut asked = BTreeSet::from([api_version.to_owned()]);
    for version in group.preferred_version.into_iter().chain(group.versions) {
        if asked.insert(version.group_version.clone())
            && let Some(found) = in_version(client, &version.group_version, kind).await?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

async fn in_version(client: &Client, api_version: &str, kind: &str) -> kube::Result<Option<Served>> {
    let list = match group_and_version(api_version) {
        ("", version) => client.list_core_api_resources(version).await,
        _ => client.list_api_group_resources(api_version).await,
    };
    let resources = match list {
        Ok(list) => list.resources,
        Err(error) if code(&error) == Some(404) => return Ok(None),
        Err(error) => return Err(error),
    };
    let found = resources.iter().find(|of| of.kind == kind && !of.name.contains('/'));
    Ok(found.map(|found| {
        let scale = format!("{}/scale", found.name);
        Served {
            api_version: api_version.to_owned(),
            plural: found.name.clone(),
            has_scale: resources.iter().any(|of| of.name == scale),
            is_namespaced: found.namespaced,
        }
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::runtime::fake_api;

    fn resources(version: &str, names: &[(&str, &str)]) -> Value {
        let resources: Vec<Value> = names
            .iter()
            .map(|(name, kind)| json!({"name": name, "singularName": "", "namespaced": true, "kind": kind, "verbs": ["get"]}))
            .collect();
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources})
    }

    fn client() -> Client {
        fake_api::answering(|parts, _| {
            let version = |name: &str| json!({"groupVersion": format!("db.example/{name}"), "version": name});
            match parts.uri.path() {
                // The kind has gone on to v2; v1 is served for others.
                "/apis/db.example" => (
                    200,
                    json!({"kind": "APIGroup", "apiVersion": "v1", "name": "db.example",
                        "versions": [version("v1"), version("v2")], "preferredVersion": version("v1")}),
                ),
                "/apis/db.example/v1" => (200, resources("db.example/v1", &[("backups", "Backup")])),
                "/apis/db.example/v2" => {
                    (200, resources("db.example/v2", &[("dbs", "Db"), ("dbs/status", "Db"), ("dbs/scale", "Scale")]))
                }
                "/apis/broken.example/v1" => (503, json!({"kind": "Status", "status": "Failure", "code": 503})),
                _ => (404, json!({"kind": "Status", "status": "Failure", "code": 404})),
            }
        })
    }

    #[tokio::test]
    async fn a_kind_is_found_in_whatever_version_its_group_serves() {
        let client = client();
        let served_as = |api_version: &str, plural: &str, has_scale: bool| {
            let (api_version, plural) = (api_version.to_owned(), plural.to_owned());
            Served { api_version, plural, has_scale, is_namespaced: true }
        };
        let (db, backup) = (served_as("db.example/v2", "dbs", true), served_as("db.example/v1", "backups", false));
        for (api_version, kind, wanted) in [
            ("db.example/v2", "Db", Some(&db)),
            ("db.example/v1", "Db", Some(&db)),
            ("db.example/v1alpha1", "Db", Some(&db)),
            ("db.example/v1alpha1", "Backup", Some(&backup)),
            ("db.example/v2", "Other", None),
            ("nobody.example/v1", "Db", None),
            ("v1", "Db", None),
        ] {
            let found = served(&client, api_version, kind).await.unwrap();
            assert_eq!(found.as_ref(), wanted, "{kind} of {api_version}");
        }
        served(&client, "broken.example/v1", "Db").await.unwrap_err();
    }
}
