//! Entries that another program has left in our webhook configurations, for example OpenKruise: which of them stay.
//!
//! They call our Service, where nobody answers for them. Removing them gives users their requests back, but not while that
//! program still runs, and not while a kind is installed that nobody else would check.

use std::{collections::BTreeSet, time::Duration};

use kube::Client;
use serde_json::Value;

use super::configuration::{Leftover, NotServed};
use crate::{
    k8s::{path, rbac::Rule},
    runtime::leader,
};

const LEASES: &str = "coordination.k8s.io";
const LEASE_NAME: &str = "kruise-manager";

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
            match is_installed(client, kind).await {
                Ok(false) => {}
                Ok(true) => {
                    tracing::warn!(entry = name, %kind, "an entry of another program stays: the kind is installed, and this release does not serve it");
                    kept.insert(name.clone());
                }
                Err(error) => {
                    tracing::warn!(entry = name, %kind, %error, "an entry of another program stays: whether the kind is installed cannot be found out");
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

/// Whether the API server serves a kind, in whatever version. Everybody may ask this; to look for objects would need a right
/// on kinds that are not known yet.
async fn is_installed(client: &Client, kind: &NotServed) -> kube::Result<bool> {
    let group = match read(client, &path::path(["apis", kind.group.as_str()])).await {
        // Nothing of the group is installed.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(false),
        group => group?,
    };
    for version in group["versions"].as_array().into_iter().flatten() {
        let Some(version) = version["version"].as_str() else { continue };
        let served = match read(client, &path::version(&kind.group, version)).await {
            // No longer served.
            Err(kube::Error::Api(status)) if status.code == 404 => continue,
            served => served?,
        };
        let mut served = served["resources"].as_array().into_iter().flatten();
        if served.any(|resource| resource["name"] == *kind.plural) {
            return Ok(true);
        }
    }
    Ok(false)
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

    /// An API server with these answers by path; others are not asked for.
    fn client(answers: Vec<(&'static str, (u16, Value))>) -> Client {
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let path = request.uri().path();
            let found = answers.iter().find(|(of, _)| *of == path);
            let (_, (code, body)) = found.unwrap_or_else(|| panic!("{path}"));
            let response = http::Response::builder().status(*code);
            let response = response.body(Body::from(body.to_string().into_bytes())).unwrap();
            async move { Ok::<_, std::convert::Infallible>(response) }
        });
        Client::new(service, "default")
    }

    /// The answers for this Lease, and for a group with one version.
    fn one_version(lease: (u16, Value), served: (u16, Value)) -> Client {
        client(vec![
            ("/apis/coordination.k8s.io/v1/namespaces/kruise-system/leases/kruise-manager", lease),
            ("/apis/apps.kruise.io", (200, json!({"versions": [{"version": "v1beta1"}]}))),
            ("/apis/apps.kruise.io/v1beta1", served),
        ])
    }

    fn serves(plurals: &[&str]) -> (u16, Value) {
        let resources: Vec<Value> = plurals.iter().map(|plural| json!({ "name": plural })).collect();
        (200, json!({ "resources": resources }))
    }

    fn failure(code: u16) -> (u16, Value) {
        (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": "Test", "message": "no"}))
    }

    #[test]
    fn entries_that_stay_are_looked_at_again_after_a_minute() {
        let (none, one) = (BTreeSet::new(), BTreeSet::from(["vlaterkind.kb.io".to_owned()]));
        let seconds = |seconds: u64| Some(Duration::from_secs(seconds));
        assert_eq!(look_again(None, &none), None);
        assert_eq!(look_again(seconds(90), &none), seconds(90));
        assert_eq!(look_again(None, &one), seconds(60));
        assert_eq!(look_again(seconds(90), &one), seconds(60));
        assert_eq!(look_again(seconds(5), &one), seconds(5));
    }

    #[tokio::test]
    async fn entries_stay_while_their_program_leads_or_their_kind_is_installed() {
        let lease = |holder: &str| (200, json!({"spec": {"holderIdentity": holder}}));
        let (with, without) = (|| serves(&["clonesets", "laterkinds"]), || serves(&["clonesets"]));
        let later = NotServed { group: "apps.kruise.io".into(), plural: "laterkinds".into() };
        let left = [
            Leftover { name: "vlaterkind.kb.io".into(), kinds: vec![later] },
            Leftover { name: "vpod.kb.io".into(), kinds: vec![] },
        ];
        let (both, one, none) = (&["vlaterkind.kb.io", "vpod.kb.io"][..], &["vlaterkind.kb.io"][..], &[][..]);
        for (lease, served, expected) in [
            (lease(OURS), without(), none),
            (lease(OURS), with(), one),
            (lease(OURS), failure(404), none),
            (lease(OURS), failure(500), one),
            (lease(""), without(), none),
            (failure(404), without(), none),
            (failure(403), without(), both),
            (lease(OPENKRUISE), without(), both),
            (lease(OPENKRUISE), with(), both),
        ] {
            let case = format!("{lease:?} {served:?}");
            let kept = kept(&one_version(lease, served), "kruise-system", &left).await;
            assert_eq!(kept.iter().map(String::as_str).collect::<Vec<_>>(), expected, "{case}");
        }
    }

    #[tokio::test]
    async fn a_kind_is_installed_in_whatever_version() {
        let kind = NotServed { group: "apps.kruise.io".into(), plural: "laterkinds".into() };
        let versions =
            || ("/apis/apps.kruise.io", (200, json!({"versions": [{"version": "v1beta1"}, {"version": "v1alpha1"}]})));
        let beta = |answer| ("/apis/apps.kruise.io/v1beta1", answer);
        let alpha = |answer| ("/apis/apps.kruise.io/v1alpha1", answer);
        let (with, without) = (|| serves(&["laterkinds"]), || serves(&["clonesets"]));
        for (what, answers, expected) in [
            ("nothing of the group", vec![("/apis/apps.kruise.io", failure(404))], Some(false)),
            ("nobody answers", vec![("/apis/apps.kruise.io", failure(500))], None),
            ("in no version", vec![versions(), beta(without()), alpha(without())], Some(false)),
            ("a version that goes", vec![versions(), beta(failure(404)), alpha(without())], Some(false)),
            ("in the first one", vec![versions(), beta(with())], Some(true)),
            ("in the other one", vec![versions(), beta(without()), alpha(with())], Some(true)),
        ] {
            assert_eq!(is_installed(&client(answers), &kind).await.ok(), expected, "{what}");
        }
    }

    #[tokio::test]
    async fn without_such_entries_nothing_is_read() {
        let nobody = client(vec![]);
        assert_eq!(kept(&nobody, "elsewhere", &[]).await, BTreeSet::new());
    }
}
