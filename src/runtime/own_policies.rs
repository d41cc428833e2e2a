//! Whether the admission policies over this process's own account are in force. Without them its token can do all that RBAC
//! lets it.

use std::time::Duration;

use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    authentication::v1::SelfSubjectReview,
};
use kube::{Api, Client, api::PostParams};
use prometheus_client::metrics::gauge::Gauge;

use crate::k8s::account;

const AGAIN: Duration = Duration::from_secs(60 * 60);
const RETRY: Duration = Duration::from_secs(30);

/// Looks for `policies` now and every hour, and reports those that are not there, not bound, or name another
/// account. Never ends.
pub async fn watch(client: Client, policies: Vec<&'static str>, missing: Gauge) {
    loop {
        let wait = match look(&client, &policies).await {
            Ok((username, problems)) => {
                missing.set(i64::try_from(problems.len()).unwrap_or(i64::MAX));
                report(&username, &problems);
                AGAIN
            }
            Err(error) => {
                tracing::warn!(%error, "looking for the admission policies over this process's account");
                RETRY
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
    for name in policies {
        let policy = Api::<ValidatingAdmissionPolicy>::all(client.clone()).get_opt(name).await?;
        let binding = Api::<ValidatingAdmissionPolicyBinding>::all(client.clone()).get_opt(name).await?;
        problems.extend(problem(name, &username, policy.as_ref(), binding.as_ref()));
    }
    Ok((username, problems))
}

/// Why a policy is not in force over a user.
fn problem(
    name: &str,
    username: &str,
    policy: Option<&ValidatingAdmissionPolicy>,
    binding: Option<&ValidatingAdmissionPolicyBinding>,
) -> Option<String> {
    let Some(policy) = policy else { return Some(format!("{name} does not exist")) };
    let conditions = policy.spec.iter().flat_map(|spec| spec.match_conditions.iter().flatten());
    if !conditions.into_iter().any(|condition| account::names(&condition.expression, username)) {
        return Some(format!("{name} does not name {username}"));
    }
    let binds = |binding: &ValidatingAdmissionPolicyBinding| {
        let Some(spec) = &binding.spec else { return false };
        let denies = spec.validation_actions.iter().flatten().any(|action| action == "Deny");
        denies && spec.policy_name.as_deref() == Some(name)
    };
    (!binding.is_some_and(binds)).then(|| format!("{name} is not bound with the action Deny"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_account_that_no_policy_names_is_reported() {
        let policy = |expression: &str| {
            serde_json::from_value::<ValidatingAdmissionPolicy>(
                json!({ "spec": { "matchConditions": [{ "name": "by", "expression": expression }] } }),
            )
            .unwrap()
        };
        let bound = |name: &str, action: &str| {
            serde_json::from_value::<ValidatingAdmissionPolicyBinding>(
                json!({ "spec": { "policyName": name, "validationActions": [action] } }),
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
