//! Reads a workload that somebody refers to by kind and name: which Pods are its own, and how many it wants.
//!
//! The kinds that the manifests grant are read as they are, in the version that we know. Of any other kind the scale subresource is
//! read, which an administrator has to grant; it is found by discovery, so no kind needs to be known beforehand. The version in a
//! reference may not be served any more: what matters is the group.

use std::{collections::HashMap, sync::Mutex};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
};
use serde_json::Value;

use super::{
    apply::{code, said},
    lock,
    served::{Served, served},
};
use crate::{
    api::{
        apps, group_and_version,
        kinds::{self, BUILT_IN_WORKLOADS, KRUISE_WORKLOADS, Pods},
        labels,
    },
    k8s::{
        invalid::Invalid,
        name::is_dns_subdomain,
        pod::Labels,
        rbac::Rule,
        selector::{self, Selector},
    },
};

/// The rights to read the built-in workloads.
pub const READ_BUILT_IN: Rule = Rule::new(&["apps"], &BUILT_IN_WORKLOADS, &["get"]);
/// And those of our group.
pub const READ_KRUISE: Rule = Rule::new(&[apps::GROUP], &KRUISE_WORKLOADS, &["get"]);
/// Owners of ReplicaSets that are remembered; all are forgotten when there are more.
const OWNERS: usize = 10_000;

/// Whose Pods are meant.
#[derive(Clone, Debug, PartialEq)]
pub enum Scope {
    /// Those that the object with this UID controls.
    Owner(String),
    /// Those of the ReplicaSets that the Deployment with this UID controls; its selector.
    Deployment(String, Selector),
    /// Those with fitting labels.
    Labels(Selector),
}

/// A workload as it was read.
#[derive(Clone, Debug, PartialEq)]
pub enum Workload {
    /// It is there.
    Found {
        /// Its Pods.
        scope: Scope,
        /// A selector for lists that fits all of them, as text; empty if there is none.
        listing: String,
        /// How many it wants, if it says so.
        desired: Option<usize>,
        /// The labels that it gives to its Pods, if it says so.
        labels: Option<Labels>,
        /// Whether its Pods have ordinals.
        ordinals: bool,
        /// Whether it is being deleted.
        is_going: bool,
    },
    /// It is not there.
    Missing(String),
    /// It cannot be read: InvalidTarget or Forbidden, and why.
    Unreadable(&'static str, String),
}

/// A reference to a workload whose parts can be in a URL.
struct Reference<'a> {
    client: &'a Client,
    namespace: &'a str,
    api_version: &'a str,
    kind: &'a str,
    name: &'a str,
}

/// Reads a workload from the API server itself.
///
/// # Errors
/// The API server does not answer, or not with 403 or 404, which are a [`Workload`] each.
pub async fn read(
    client: &Client,
    namespace: &str,
    (api_version, kind, name): (&str, &str, &str),
) -> kube::Result<Workload> {
    let (group, version) = group_and_version(api_version);
    let is_word = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric());
    if !(is_dns_subdomain(name) && is_dns_subdomain(version) && is_word(kind) && !kind.is_empty())
        || !(group.is_empty() || is_dns_subdomain(group))
    {
        return Ok(invalid(format!("{kind} {name:?} of {api_version:?} cannot exist")));
    }
    let reference = Reference { client, namespace, api_version, kind, name };
    let known = kinds::Kind::of(group, kind).and_then(|known| Some((known, known.workload.as_ref()?)));
    match known {
        Some((known, workload)) => reference.read_known(known, workload).await,
        None => reference.read_scale().await,
    }
}

fn invalid(why: String) -> Workload {
    Workload::Unreadable("InvalidTarget", format!("spec.targetRef: {why}"))
}

impl Reference<'_> {
    fn api(&self, api_version: &str, plural: &str) -> Api<DynamicObject> {
        let (group, version) = group_and_version(api_version);
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: api_version.to_owned(),
            kind: self.kind.to_owned(),
            plural: plural.to_owned(),
        };
        Api::namespaced_with(self.client.clone(), self.namespace, &resource)
    }

    /// What an answer says that is no object: 403 and 404.
    fn refused(&self, resource: &str, error: kube::Error) -> kube::Result<Workload> {
        let Self { api_version, kind, name, .. } = self;
        match code(&error) {
            Some(404) => Ok(self.missing(&error)),
            Some(403) => Ok(forbidden(resource, group_and_version(api_version).0, &error)),
            _ => match error {
                kube::Error::Api(status) if status.message.contains("spec replicas field") => {
                    let message = format!(
                        "spec.targetRef: {kind} {name:?} does not say how many Pods it wants: {}",
                        status.message
                    );
                    Ok(Workload::Unreadable("NoReplicas", message))
                }
                error => Err(error),
            },
        }
    }

    fn missing(&self, error: &kube::Error) -> Workload {
        let Self { api_version, kind, name, .. } = self;
        let why = said(error);
        Workload::Missing(format!("spec.targetRef: {kind} {name:?} ({api_version}) is not there: {why}"))
    }

    /// Of a kind of the table: as the object is.
    async fn read_known(&self, known: &kinds::Kind, workload: &kinds::Workload) -> kube::Result<Workload> {
        match self.api(&known.api_version(), known.plural).get(self.name).await {
            Ok(object) => Ok(known_workload(&object, workload)),
            Err(error) => self.refused(known.plural, error),
        }
    }

    /// The resource of the kind, by discovery. An error says that there is none, or not with a scale.
    async fn discover(&self) -> kube::Result<Result<Served, Workload>> {
        let Self { client, api_version, kind, .. } = self;
        let Some(found) = served(client, api_version, kind).await? else {
            return Ok(Err(Workload::Missing(format!("spec.targetRef: {api_version} has no kind {kind:?}"))));
        };
        if !found.has_scale {
            let version = &found.api_version;
            return Ok(Err(invalid(format!("{kind} of {version} has no scale subresource; use spec.selector"))));
        }
        Ok(Ok(found))
    }

    /// Of any other kind: its scale subresource.
    async fn read_scale(&self) -> kube::Result<Workload> {
        let found = match self.discover().await? {
            Ok(found) => found,
            Err(workload) => return Ok(workload),
        };
        let scale = match self.api(&found.api_version, &found.plural).get_scale(self.name).await {
            Ok(scale) => scale,
            Err(error) if found.is_outdated(&error) => return Err(error),
            Err(error) => return self.refused(&format!("{}/scale", found.plural), error),
        };
        let text = scale.status.and_then(|status| status.selector).unwrap_or_default();
        Ok(match Selector::parse(&text) {
            Ok(selector) if !selector.is_empty() => Workload::Found {
                scope: Scope::Labels(selector),
                listing: text,
                // The API leaves a 0 out; a kind that does not say how many is an error instead, see above.
                desired: scale.spec.and_then(|spec| spec.replicas).unwrap_or(0).try_into().ok(),
                labels: None,
                ordinals: false,
                is_going: scale.metadata.deletion_timestamp.is_some(),
            },
            Ok(_) => {
                let Self { kind, name, .. } = self;
                invalid(format!("the scale of {kind} {name:?} has no status.selector; use spec.selector"))
            }
            Err(error) => invalid(error.to_string()),
        })
    }
}

fn known_workload(object: &DynamicObject, workload: &kinds::Workload) -> Workload {
    let uid = object.metadata.uid.clone().unwrap_or_default();
    let desired = object.data.pointer(workload.replicas).and_then(Value::as_u64).and_then(|n| n.try_into().ok());
    let selector = object.data.pointer("/spec/selector").cloned().unwrap_or_default();
    let selector = serde_json::from_value::<LabelSelector>(selector).map_err(|error| Invalid(error.to_string()));
    let listing = selector.as_ref().map(selector::text_of).unwrap_or_default();
    let scope = match workload.pods {
        Pods::Controlled => Scope::Owner(uid),
        Pods::OfReplicaSets => match selector.and_then(|selector| Selector::of(&selector)) {
            Ok(selector) => Scope::Deployment(uid, selector),
            Err(error) => return invalid(format!("its selector: {error}")),
        },
        Pods::Selected => match selector.and_then(|selector| Selector::of(&selector)) {
            Ok(selector) if !selector.is_empty() => Scope::Labels(selector),
            Ok(_) => return invalid("its selector is empty".to_owned()),
            Err(error) => return invalid(format!("its selector: {error}")),
        },
    };
    let is_going = object.metadata.deletion_timestamp.is_some();
    let labels = object.data.pointer("/spec/template/metadata/labels").cloned();
    let labels = labels.and_then(|labels| serde_json::from_value(labels).ok());
    Workload::Found { scope, listing, desired, labels, ordinals: workload.ordinals, is_going }
}

fn forbidden(resource: &str, group: &str, error: &kube::Error) -> Workload {
    let message = format!(
        "spec.targetRef: Kruise's manager may not read it; grant it with a ClusterRole that has the label {}: \"true\" and the rule apiGroups [{group:?}], resources [{resource}], verbs [get]. The API server says: {}",
        labels::AGGREGATE_TO_MANAGER,
        said(error)
    );
    Workload::Unreadable("Forbidden", message)
}

/// What controls each ReplicaSet, read once: it cannot change to another.
#[derive(Default)]
pub struct ReplicaSetOwners(Mutex<HashMap<String, Option<OwnerReference>>>);

impl ReplicaSetOwners {
    /// What controls a ReplicaSet. None: nobody, or it is not there.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn of(
        &self,
        client: &Client,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> kube::Result<Option<OwnerReference>> {
        if let Some(owner) = lock(&self.0).get(uid) {
            return Ok(owner.clone());
        }
        // Names in owner references are anybody's text: the API server only wants them not to be empty.
        if !is_dns_subdomain(name) {
            return Ok(None);
        }
        let resource = ApiResource::erase::<k8s_openapi::api::apps::v1::ReplicaSet>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        let Some(found) = api.get_metadata_opt(name).await? else { return Ok(None) };
        if found.metadata.uid.as_deref() != Some(uid) {
            return Ok(None);
        }
        let owners = found.metadata.owner_references.unwrap_or_default();
        let owner = owners.into_iter().find(|owner| owner.controller == Some(true));
        let mut known = lock(&self.0);
        if known.len() >= OWNERS {
            known.clear();
        }
        known.insert(uid.to_owned(), owner.clone());
        Ok(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Owner references are anybody's text. No API server can be reached here: whoever asks gets an error.
    #[tokio::test]
    async fn names_that_no_object_can_have_are_not_asked_for() {
        let client = crate::runtime::fake_api::nobody();
        for name in ["../../../secrets/x", "web?x=", "Web", "", "a#"] {
            let owner = ReplicaSetOwners::default().of(&client, "a", name, "u").await;
            assert!(matches!(owner, Ok(None)), "{name}: {owner:?}");
            let read = read(&client, "a", ("apps/v1", "Deployment", name)).await;
            assert!(matches!(&read, Ok(Workload::Unreadable("InvalidTarget", _))), "{name}: {read:?}");
        }
        assert!(ReplicaSetOwners::default().of(&client, "a", "web-1", "u").await.is_err());
    }
}
