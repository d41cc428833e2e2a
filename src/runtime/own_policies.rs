//! Whether the admission policies over this process's own account are in force. Without them its token can do all that RBAC
//! lets it.
//!
//! Only the fields that this needs are decoded: code that decodes whole policies would take memory in the daemon of every node.

use std::time::Duration;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::{
    Api, Client,
    api::{ApiResource, PostParams},
    core::{GroupVersionKind, NotUsed, Object},
};
use prometheus_client::metrics::gauge::Gauge;
use serde::Deserialize;

use crate::k8s::{account, time::doubled};

const AGAIN: Duration = Duration::from_secs(60 * 60);
/// After the first look that failed; twice as long after each further one. Some fail for good: a newer release has renamed a
/// policy, and its RBAC rules no longer name the old one.
const RETRY: Duration = Duration::from_secs(30);

/// A ValidatingAdmissionPolicy.
type Policy = Object<PolicySpec, NotUsed>;

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PolicySpec {
    match_conditions: Option<Vec<MatchCondition>>,
}

#[derive(Clone, Debug, Deserialize)]
struct MatchCondition {
    expression: String,
}

/// A ValidatingAdmissionPolicyBinding.
type Binding = Object<BindingSpec, NotUsed>;

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BindingSpec {
    policy_name: Option<String>,
    validation_actions: Option<Vec<String>>,
}

fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind), plural)
}

/// Looks for `policies` now and every hour, and reports those that are not there, not bound, or name another
/// account. Never ends.
pub async fn watch(client: Client, policies: Vec<&'static str>, missing: Gauge) {
    let mut failures = 0_u32;
    loop {
        let wait = match look(&client, &policies).await {
            Ok((username, problems)) => {
                missing.set(i64::try_from(problems.len()).unwrap_or(i64::MAX));
                report(&username, &problems);
                failures = 0;
                AGAIN
            }
            Err(error) => {
                tracing::warn!(%error, "looking for the admission policies over this process's account");
                let pause = doubled(RETRY, failures, AGAIN);
                failures = failures.saturating_add(1);
                pause
            }
        };
        tokio::time::sleep(wait).await;
    }
}

fn report(username: &str, problems: &[String]) {
    if problems.is_empty() {
        tracing::debug!(username, "the admission policies over this account are in force");
    } else if username.starts_with("system:serviceaccount:") {
        tracing::error!(
            username,
            ?problems,
            "this account is not limited by admission policies: apply the manifests again"
        );
    } else {
        // On a laptop, with somebody's own credentials.
        tracing::warn!(
            username,
            "this process does not run as a ServiceAccount of its own: no admission policy limits it"
        );
    }
}

/// The own username, and what is wrong with each policy that is not in force over it.
async fn look(client: &Client, policies: &[&str]) -> kube::Result<(String, Vec<String>)> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
    let username = review.status.and_then(|status| status.user_info).and_then(|user| user.username).unwrap_or_default();
    let mut problems = Vec::new();
    let there: Api<Policy> =
        Api::all_with(client.clone(), &resource("ValidatingAdmissionPolicy", "validatingadmissionpolicies"));
    let bound: Api<Binding> = Api::all_with(
        client.clone(),
        &resource("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
    );
    for name in policies {
        let (policy, binding) = (there.get_opt(name).await?, bound.get_opt(name).await?);
        problems.extend(problem(name, &username, policy.as_ref(), binding.as_ref()));
    }
    Ok((username, problems))
}

/// Why a policy is not in force over a user.
fn problem(name: &str, username: &str, policy: Option<&Policy>, binding: Option<&Binding>) -> Option<String> {
    let Some(policy) = policy else { return Some(format!("{name} does not exist")) };
    let mut conditions = policy.spec.match_conditions.iter().flatten();
    if !conditions.any(|condition| account::names(&condition.expression, username)) {
        return Some(format!("{name} does not name {username}"));
    }
    let binds = |binding: &Binding| {
        let denies = binding.spec.validation_actions.iter().flatten().any(|action| action == "Deny");
        denies && binding.spec.policy_name.as_deref() == Some(name)
    };
    (!binding.is_some_and(binds)).then(|| format!("{name} is not bound with the action Deny"))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::runtime::lock;

    #[tokio::test(start_paused = true)]
    async fn a_look_that_is_refused_for_good_is_repeated_less_and_less() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let times = asked.clone();
        let server = tower::service_fn(move |_: http::Request<Body>| {
            lock(&times).push(tokio::time::Instant::now());
            let status = json!({"kind": "Status", "status": "Failure", "code": 403, "message": "no"});
            let answer = http::Response::builder().status(403).header("content-type", "application/json");
            let answer = answer.body(Body::from(status.to_string().into_bytes())).map_err(std::io::Error::other);
            std::future::ready(answer)
        });
        let watch = watch(Client::new(server, "default"), vec!["p"], Gauge::default());
        let over = tokio::time::timeout(Duration::from_secs(4 * 60 * 60), watch).await;
        assert!(over.is_err(), "it never ends");
        let asked = lock(&asked).clone();
        let pauses: Vec<u64> = asked.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
        assert_eq!(pauses, [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]);
    }

    #[test]
    fn an_account_that_no_policy_names_is_reported() {
        let policy = |expression: &str| {
            serde_json::from_value::<Policy>(
                json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
                    "metadata": { "name": "p" }, "spec": { "failurePolicy": "Fail", "validations": [],
                        "matchConditions": [{ "name": "by", "expression": expression }] } }),
            )
            .unwrap()
        };
        let bound = |name: &str, action: &str| {
            serde_json::from_value::<Binding>(
                json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
                    "metadata": { "name": "p" }, "spec": { "policyName": name, "validationActions": [action] } }),
            )
            .unwrap()
        };
        let ours = policy(&account::is_one_of(&[account::MANAGER]));
        let stale = policy("request.userInfo.username == 'system:serviceaccount:kruise-system:kruise-manager'");
        let me = "system:serviceaccount:elsewhere:kruise-manager";
        for (policy, binding, want) in [
            (Some(&ours), Some(bound("p", "Deny")), None),
            (None, Some(bound("p", "Deny")), Some("p does not exist")),
            (
                Some(&stale),
                Some(bound("p", "Deny")),
                Some("p does not name system:serviceaccount:elsewhere:kruise-manager"),
            ),
            (Some(&ours), None, Some("p is not bound with the action Deny")),
            (Some(&ours), Some(bound("p", "Audit")), Some("p is not bound with the action Deny")),
            (Some(&ours), Some(bound("q", "Deny")), Some("p is not bound with the action Deny")),
        ] {
            assert_eq!(problem("p", me, policy, binding.as_ref()).as_deref(), want);
        }
        assert!(problem("p", "kubernetes-admin", Some(&ours), Some(&bound("p", "Deny"))).is_some());
    }
}
