//! Entries that another program has left in our webhook configurations, for example OpenKruise: which of them stay.
//!
//! They call our Service, where nobody answers for them. Removing them gives users their requests back, but not while that
//! program still runs, and not while there are objects that nobody else would check.

use std::{collections::BTreeSet, time::Duration};

use kube::{Client, api::ListParams};
use serde_json::Value;

use super::configuration::{Leftover, NOT_SERVED, NotServed};
use crate::{
    api::apps,
    k8s::{path, rbac::Rule},
    runtime::leader,
};

const LEASES: &str = "coordination.k8s.io";
const LEASE_NAME: &str = "kruise-manager";

const PLURALS: [&str; NOT_SERVED.len()] = {
    let mut plurals = [""; NOT_SERVED.len()];
    let mut at = 0;
    while at < plurals.len() {
        plurals[at] = NOT_SERVED[at].1;
        at += 1;
    }
    plurals
};

/// Whether there are objects of kinds that we do not serve.
pub(super) const RBAC: Rule = Rule::new(&[apps::GROUP], &PLURALS, &["list"]);
/// Who leads.
pub(super) const LEASE: Rule = Rule::new(&[LEASES], &["leases"], &["get"]).named(&[LEASE_NAME]);

/// Between two looks at entries that stay: neither the Lease nor objects of other kinds are watched.
const PAUSE: Duration = Duration::from_secs(60);

/// When to look again, if there was another reason to look after `wait`.
pub(super) fn look_again(wait: Option<Duration>, kept: &BTreeSet<String>) -> Option<Duration> {
    wait.into_iter().chain((!kept.is_empty()).then_some(PAUSE)).min()
}

/// The names of those that stay. What cannot be found out keeps them.
pub(super) async fn kept(client: &Client, namespace: &str, left: &[Leftover]) -> BTreeSet<String> {
    if left.is_empty() {
        return BTreeSet::new();
    }
    let all = || left.iter().map(|left| left.name.clone()).collect();
    match other_leader(client, namespace).await {
        Ok(None) => {}
        Ok(Some(holder)) => {
            let entries: BTreeSet<String> = all();
            tracing::warn!(?entries, %holder, "entries of another program stay while it holds the Lease {LEASE_NAME}");
            return entries;
        }
        Err(error) => {
            let entries: BTreeSet<String> = all();
            tracing::warn!(?entries, %error, "entries of another program stay: the Lease {LEASE_NAME} cannot be read");
            return entries;
        }
    }
    let mut kept = BTreeSet::new();
    for Leftover { name, kinds } in left {
        for kind in kinds {
            match has_objects(client, kind).await {
                Ok(false) => {}
                Ok(true) => {
                    tracing::warn!(entry = name, %kind, "an entry of another program stays: there are objects, and this release does not serve them");
                    kept.insert(name.clone());
                }
                Err(error) => {
                    tracing::warn!(entry = name, %kind, %error, "an entry of another program stays: its objects cannot be counted");
                    kept.insert(name.clone());
                }
            }
        }
    }
    kept
}

/// The holder of the managers' Lease, if it is none of our managers. When the Lease ends is not looked at: who holds it
/// may only be slow.
async fn other_leader(client: &Client, namespace: &str) -> kube::Result<Option<String>> {
    let path = path::in_namespace(LEASES, "v1", namespace, "leases") + &path::path([LEASE_NAME]);
    let lease = match read(client, &path).await {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
        lease => lease?,
    };
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
    Ok((!holder.is_empty() && !leader::is_identity(holder)).then(|| holder.to_owned()))
}

/// Whether there are objects of a kind, in whatever version it is served: the entry may name another one.
async fn has_objects(client: &Client, kind: &NotServed) -> kube::Result<bool> {
    if let Some(found) = list_one(client, kind, &kind.version).await? {
        return Ok(found);
    }
    let group = match read(client, &path::path(["apis", kind.group.as_str()])).await {
        // Nothing of the group is installed.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(false),
        group => group?,
    };
    for version in group["versions"].as_array().into_iter().flatten() {
        let version = version["version"].as_str().filter(|version| *version != kind.version);
        if let Some(version) = version
            && let Some(found) = list_one(client, kind, version).await?
        {
            return Ok(found);
        }
    }
    Ok(false)
}

/// Whether there are objects of a kind. None: it is not served in this version.
async fn list_one(client: &Client, kind: &NotServed, version: &str) -> kube::Result<Option<bool>> {
    let request = kube::core::Request::new(path::of_cluster(&kind.group, version, &kind.plural));
    let request = request.list(&ListParams::default().limit(1)).map_err(kube::Error::BuildRequest)?;
    match client.request::<Value>(request).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        list => Ok(Some(list?["items"].as_array().is_some_and(|items| !items.is_empty()))),
    }
}

async fn read(client: &Client, path: &str) -> kube::Result<Value> {
    let request = http::Request::get(path).body(Vec::new());
    client
        .request(request.map_err(|error| kube::Error::BuildRequest(kube::core::request::Error::BuildRequest(error)))?)
        .await
}

#[cfg(test)]
mod tests {
    use axum::http;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    const OURS: &str = "kruise-controller-manager-5d8f6c7b9-x2x4z_18a1f3c2b4d5e6f7-1";
    const OPENKRUISE: &str = "kruise-controller-manager-7c6b8d-q8w2n_5a1b2c3d-1111-2222-3333-444455556666";

    /// An API server with this Lease, and BroadcastJobs as this says.
    fn client(lease: (u16, Value), broadcast_jobs: (u16, Value)) -> Client {
        client_with(lease, broadcast_jobs, failure(404), failure(404))
    }

    /// The same with the versions of their group, and with BroadcastJobs in an older one.
    fn client_with(
        lease: (u16, Value),
        broadcast_jobs: (u16, Value),
        group: (u16, Value),
        older: (u16, Value),
    ) -> Client {
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (code, body) = match request.uri().path() {
                "/apis/apps.kruise.io" => group.clone(),
                "/apis/apps.kruise.io/v1alpha1/broadcastjobs" => older.clone(),
                "/apis/coordination.k8s.io/v1/namespaces/kruise-system/leases/kruise-manager" => lease.clone(),
                "/apis/apps.kruise.io/v1beta1/broadcastjobs" => broadcast_jobs.clone(),
                path => panic!("{path}"),
            };
            let response = http::Response::builder().status(code);
            let response = response.body(Body::from(body.to_string().into_bytes())).unwrap();
            async move { Ok::<_, std::convert::Infallible>(response) }
        });
        Client::new(service, "default")
    }

    fn failure(code: u16) -> (u16, Value) {
        (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": "Test", "message": "no"}))
    }

    #[test]
    fn entries_that_stay_are_looked_at_again_after_a_minute() {
        let (none, one) = (BTreeSet::new(), BTreeSet::from(["vbroadcastjob.kb.io".to_owned()]));
        let seconds = |seconds: u64| Some(Duration::from_secs(seconds));
        assert_eq!(look_again(None, &none), None);
        assert_eq!(look_again(seconds(90), &none), seconds(90));
        assert_eq!(look_again(None, &one), seconds(60));
        assert_eq!(look_again(seconds(90), &one), seconds(60));
        assert_eq!(look_again(seconds(5), &one), seconds(5));
    }

    #[tokio::test]
    async fn entries_stay_while_their_program_leads_or_their_objects_are_there() {
        let lease = |holder: &str| (200, json!({"spec": {"holderIdentity": holder}}));
        let list = |count: usize| (200, json!({"items": vec![json!({}); count]}));
        let broadcast_jobs =
            NotServed { group: "apps.kruise.io".into(), version: "v1beta1".into(), plural: "broadcastjobs".into() };
        let left = [
            Leftover { name: "vbroadcastjob.kb.io".into(), kinds: vec![broadcast_jobs] },
            Leftover { name: "vpod.kb.io".into(), kinds: vec![] },
        ];
        let (both, one, none) = (&["vbroadcastjob.kb.io", "vpod.kb.io"][..], &["vbroadcastjob.kb.io"][..], &[][..]);
        for (lease, broadcast_jobs, expected) in [
            (lease(OURS), list(0), none),
            (lease(OURS), list(1), one),
            (lease(OURS), failure(404), none),
            (lease(OURS), failure(403), one),
            (lease(OURS), failure(500), one),
            (lease(""), list(0), none),
            (failure(404), list(0), none),
            (failure(403), list(0), both),
            (lease(OPENKRUISE), list(0), both),
            (lease(OPENKRUISE), list(1), both),
        ] {
            let case = format!("{lease:?} {broadcast_jobs:?}");
            let kept = kept(&client(lease, broadcast_jobs), "kruise-system", &left).await;
            assert_eq!(kept.iter().map(String::as_str).collect::<Vec<_>>(), expected, "{case}");
        }
    }

    #[tokio::test]
    async fn objects_are_found_in_whatever_version_their_kind_is_served() {
        let kind =
            NotServed { group: "apps.kruise.io".into(), version: "v1beta1".into(), plural: "broadcastjobs".into() };
        let versions = |versions: &[&str]| {
            let versions: Vec<Value> = versions.iter().map(|version| json!({ "version": version })).collect();
            (200, json!({ "versions": versions }))
        };
        let list = |count: usize| (200, json!({"items": vec![json!({}); count]}));
        for (group, older, expected) in [
            (failure(404), failure(500), Some(false)),
            (versions(&["v1beta1"]), failure(500), Some(false)),
            (versions(&["v1beta1", "v1alpha1"]), list(1), Some(true)),
            (versions(&["v1beta1", "v1alpha1"]), list(0), Some(false)),
            (versions(&["v1beta1", "v1alpha1"]), failure(404), Some(false)),
            (versions(&["v1beta1", "v1alpha1"]), failure(403), None),
            (failure(500), list(0), None),
        ] {
            let case = format!("{group:?} {older:?}");
            let client = client_with(failure(404), failure(404), group, older);
            assert_eq!(has_objects(&client, &kind).await.ok(), expected, "{case}");
        }
    }

    #[tokio::test]
    async fn without_such_entries_nothing_is_read() {
        let nobody = client(failure(500), failure(500));
        assert_eq!(kept(&nobody, "elsewhere", &[]).await, BTreeSet::new());
    }
}
