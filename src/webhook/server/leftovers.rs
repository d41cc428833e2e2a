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

async fn has_objects(client: &Client, kind: &NotServed) -> kube::Result<bool> {
    let NotServed { group, version, plural } = kind;
    let request = kube::core::Request::new(path::of_cluster(group, version, plural));
    let request = request.list(&ListParams::default().limit(1)).map_err(kube::Error::BuildRequest)?;
    match client.request::<Value>(request).await {
        // The kind is not installed, or is not served in this version.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        list => Ok(list?["items"].as_array().is_some_and(|items| !items.is_empty())),
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

    /// An API server with this Lease, and SidecarSets as this says.
    fn client(lease: (u16, Value), sidecar_sets: (u16, Value)) -> Client {
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (code, body) = match request.uri().path() {
                "/apis/coordination.k8s.io/v1/namespaces/kruise-system/leases/kruise-manager" => lease.clone(),
                "/apis/apps.kruise.io/v1beta1/sidecarsets" => sidecar_sets.clone(),
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
        let (none, one) = (BTreeSet::new(), BTreeSet::from(["vsidecarset.kb.io".to_owned()]));
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
        let sidecar_sets =
            NotServed { group: "apps.kruise.io".into(), version: "v1beta1".into(), plural: "sidecarsets".into() };
        let left = [
            Leftover { name: "vsidecarset.kb.io".into(), kinds: vec![sidecar_sets] },
            Leftover { name: "vpod.kb.io".into(), kinds: vec![] },
        ];
        let (both, one, none) = (&["vpod.kb.io", "vsidecarset.kb.io"][..], &["vsidecarset.kb.io"][..], &[][..]);
        for (lease, sidecar_sets, expected) in [
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
            let told = format!("{lease:?} {sidecar_sets:?}");
            let kept = kept(&client(lease, sidecar_sets), "kruise-system", &left).await;
            assert_eq!(kept.iter().map(String::as_str).collect::<Vec<_>>(), expected, "{told}");
        }
    }

    #[tokio::test]
    async fn without_such_entries_nothing_is_read() {
        let nobody = client(failure(500), failure(500));
        assert_eq!(kept(&nobody, "elsewhere", &[]).await, BTreeSet::new());
    }
}
