//! What limits the accounts of the roles, which feature gates are on, and what the caller may do.

use serde_json::Value;

use super::{Fact, Finding, Lack, Verdict, finding, ok, unknown};
use crate::{api::feature_gates::FeatureGates, k8s::account, plugin::rules::JsonPointer};

/// Admission policies and their bindings: kind and name of each, and whether it is there.
pub fn policies(found: &[(String, Result<(), Lack>)]) -> Vec<Finding> {
    const CHECK: &str = "admission policies";
    let mut findings = Vec::new();
    for (name, there) in found {
        match there {
            Ok(()) => {}
            Err(Lack::NotFound) => findings.push(finding(
                CHECK,
                Verdict::Fail,
                format!("{name} does not exist: what it protects can be changed by anybody who may write it"),
                "apply the manifests of this release: kubectl apply -k manifests/",
            )),
            Err(lack) => return vec![unknown(CHECK, "ValidatingAdmissionPolicies", lack)],
        }
    }
    if findings.is_empty() {
        findings.push(ok(CHECK, format!("{} policies and bindings", found.len())));
    }
    findings
}

/// A role's account and the policies that are to limit it.
pub struct Limits {
    /// As the API server knows it.
    pub username: String,
    /// Names of the policies, and what is there.
    pub policies: Vec<(&'static str, Fact)>,
}

/// Whether the policies name the accounts that the roles run as. Policies that are missing are the finding of another
/// check.
pub fn limits(accounts: &[Limits]) -> Vec<Finding> {
    const CHECK: &str = "limits of accounts";
    let mut findings = Vec::new();
    for Limits { username, policies } in accounts {
        for (name, policy) in policies {
            let Ok(policy) = policy else { continue };
            let conditions = policy.list("/spec/matchConditions");
            if !conditions.iter().any(|condition| account::names(condition.text("/expression"), username)) {
                let text = format!(
                    "ValidatingAdmissionPolicy {name} does not name {username}: a stolen token of it is not limited"
                );
                let advice = "apply the manifests of this release, and keep the names of their ServiceAccounts";
                findings.push(finding(CHECK, Verdict::Fail, text, advice));
            }
        }
    }
    if findings.is_empty() && !accounts.is_empty() {
        let names: Vec<&str> = accounts.iter().map(|account| account.username.as_str()).collect();
        findings.push(ok(CHECK, names.join(", ")));
    }
    findings
}

/// Bindings that give our accounts rights beyond those of the manifests, for example OpenKruise's, whose accounts have the
/// same names. `lists` holds ClusterRoleBindings and RoleBindings; `wanted` are the bindings of the manifests and of their
/// components, `system` the namespace of the installation. Roles that users bind in their own namespaces are not named.
pub fn foreign_bindings(system: &str, wanted: &[Value], lists: &[(&'static str, Fact)]) -> Vec<Finding> {
    const CHECK: &str = "rights of accounts";
    const ACCOUNTS: [&str; 3] = [account::MANAGER, account::WEBHOOK, account::DAEMON];
    let is_ours = |kind: &str, name: &str, role: &str| {
        wanted.iter().any(|object| {
            object.text("/kind") == kind
                && object.text("/metadata/name") == name
                && object.text("/roleRef/name") == role
        })
    };
    let account_of = |subject: &Value| match subject.text("/kind") {
        "ServiceAccount" if subject.text("/namespace") == system => {
            ACCOUNTS.into_iter().find(|account| subject.text("/name") == *account)
        }
        "User" => {
            let name = subject.text("/name").strip_prefix("system:serviceaccount:")?.strip_prefix(system)?;
            ACCOUNTS.into_iter().find(|account| name.strip_prefix(':') == Some(account))
        }
        _ => None,
    };
    let mut findings = Vec::new();
    for (kind, list) in lists {
        let list = match list {
            Ok(list) => list,
            Err(lack) => return vec![unknown(CHECK, "ClusterRoleBindings and RoleBindings", lack)],
        };
        for binding in list.list("/items") {
            let (name, namespace) = (binding.text("/metadata/name"), binding.text("/metadata/namespace"));
            let role = (binding.text("/roleRef/kind"), binding.text("/roleRef/name"));
            let mut accounts: Vec<&str> = binding.list("/subjects").iter().filter_map(account_of).collect();
            accounts.dedup();
            // A Role of a namespace of users is how the guides have them let the manager read their Secrets.
            let is_grant = *kind == "RoleBinding" && role.0 == "Role" && namespace != system;
            if accounts.is_empty() || is_grant || is_ours(kind, name, role.1) {
                continue;
            }
            let (place, option) = match namespace {
                "" => (String::new(), String::new()),
                namespace => (format!("{namespace}/"), format!("-n {namespace} ")),
            };
            let text = format!(
                "{kind} {place}{name} gives {} the rights of {} {}: it is not one of the manifests",
                accounts.join(", "),
                role.0,
                role.1
            );
            let advice =
                format!("if it was OpenKruise's, delete it: kubectl {option}delete {} {name}", kind.to_lowercase());
            findings.push(finding(CHECK, Verdict::Warn, text, advice));
        }
    }
    if findings.is_empty() {
        findings.push(ok(CHECK, "no binding but those of the manifests"));
    }
    findings
}

/// A binding that the webhook role keeps: it is there while its feature gate is on.
pub fn gated_binding(name: &str, gate: &str, is_on: bool, there: &Result<(), Lack>) -> Finding {
    const CHECK: &str = "deletion protection";
    let advice = "the webhook role keeps it: kubectl -n kruise-system logs -l control-plane=webhook";
    match (is_on, there) {
        (true, Ok(())) => ok(CHECK, format!("in force ({gate} is on)")),
        (false, Err(Lack::NotFound)) => ok(CHECK, format!("not asked for ({gate} is off)")),
        (true, Err(Lack::NotFound)) => {
            let text = format!(
                "{gate} is on, but ValidatingAdmissionPolicyBinding {name} does not exist: labels protect nothing"
            );
            finding(CHECK, Verdict::Fail, text, advice)
        }
        (false, Ok(())) => {
            let text = format!("{gate} is off, but ValidatingAdmissionPolicyBinding {name} still protects by labels");
            finding(CHECK, Verdict::Warn, text, advice)
        }
        (_, Err(lack)) => unknown(CHECK, "ValidatingAdmissionPolicyBindings", lack),
    }
}

/// Rights that go with a feature gate: the component that has the ClusterRoleBinding. Nothing is said while the gate is off.
pub fn gated_rights(
    (component, binding, gate): (&str, &str, &str),
    is_on: bool,
    there: &Result<(), Lack>,
) -> Option<Finding> {
    const CHECK: &str = "rights of gates";
    let found = match there {
        _ if !is_on => return None,
        Ok(()) => ok(CHECK, format!("{gate} is on, and its component {component} is installed")),
        Err(Lack::NotFound) => {
            let text =
                format!("{gate} is on, but its component {component} is not installed: the manager may not do it");
            let advice =
                format!("add manifests/components/{component} to the components of your kustomization and apply it");
            finding(CHECK, Verdict::Fail, text, advice)
        }
        Err(lack) => unknown(CHECK, &format!("ClusterRoleBinding {binding}"), lack),
    };
    Some(found)
}

/// The feature gates of the installation, as its roles read them.
pub fn feature_gates(config_map: &Fact) -> (Finding, FeatureGates) {
    const CHECK: &str = "feature gates";
    let list = match config_map {
        Ok(config_map) => config_map.text("/data/feature-gates"),
        Err(Lack::NotFound) => "",
        Err(lack) => return (unknown(CHECK, "ConfigMap kruise-feature-gates", lack), FeatureGates::default()),
    };
    match FeatureGates::parse(&[list], None) {
        Ok(gates) => match gates.without_effect().as_slice() {
            [] => (ok(CHECK, gates.to_string()), gates),
            idle => {
                let text = format!("{gates}; on but without effect: {}", idle.join(", "));
                (finding(CHECK, Verdict::Warn, text, "remove them, so that nobody relies on them"), gates)
            }
        },
        Err(error) => {
            let advice = "kubectl -n kruise-system edit configmap kruise-feature-gates; no role starts with this";
            (finding(CHECK, Verdict::Fail, error.to_string(), advice), FeatureGates::default())
        }
    }
}

/// Objects with the label of deletion protection, while its gate is off; each kind with a list of one at most.
pub fn unprotected(labelled: &[(&str, Fact)]) -> Option<Finding> {
    let named = labelled.iter().filter_map(|(kind, list)| {
        let first = list.as_ref().ok()?.list("/items").first()?;
        let (namespace, name) = (first.text("/metadata/namespace"), first.text("/metadata/name"));
        Some(if namespace.is_empty() { format!("{kind} {name}") } else { format!("{kind} {namespace}/{name}") })
    });
    let named: Vec<String> = named.collect();
    (!named.is_empty()).then(|| {
        let text = format!(
            "the feature gate ResourcesDeletionProtection is off, so the label policy.kruise.io/delete-protection protects \
             nothing, for example {}",
            named.join(", ")
        );
        finding("deletion protection", Verdict::Warn, text, "turn the gate on, or take the labels off")
    })
}

/// One right of the caller.
#[derive(Clone, Debug)]
pub struct Right {
    /// Verb and resource.
    pub what: String,
    /// What it is for.
    pub purpose: &'static str,
    /// Whether the caller has it; None: that could not be found out.
    pub allowed: Option<bool>,
}

/// What the caller may do in a namespace.
pub fn rights(namespace: &str, rights: &[Right]) -> Finding {
    const CHECK: &str = "your rights";
    if rights.iter().any(|right| right.allowed.is_none()) {
        return finding(CHECK, Verdict::Unknown, "the API server does not say", "");
    }
    let missing: Vec<String> = rights
        .iter()
        .filter(|right| right.allowed == Some(false))
        .map(|right| format!("{} (for {})", right.what, right.purpose))
        .collect();
    if missing.is_empty() {
        return ok(CHECK, format!("restart, follow and cancel in namespace {namespace}"));
    }
    let text = format!("in namespace {namespace} you may not {}", missing.join(", "));
    finding(CHECK, Verdict::Warn, text, "ask for a Role with these rights, if you need them")
}
