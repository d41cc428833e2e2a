//! Admission policies, evaluated by the API server itself: they hold while every process of ours is down.
//!
//! One file per policy, named after what it protects, and one line in [`POLICIES`]. A policy over several accounts is put
//! together from a file of each.

mod cel;
mod daemon_events;
mod daemon_pod_status;
mod distribution_authors;
mod ephemeral_job_authors;
mod manager_claims;
mod manager_config_maps;
mod manager_ephemeral_containers;
mod manager_evictions;
mod manager_jobs;
mod manager_node_probes;
mod manager_pod_states;
mod manager_pod_status;
mod manager_pods;
mod manager_revisions;
mod manager_secrets;
mod manager_specs;
mod manager_subsets;
mod node_image_authors;
mod node_images;
mod node_probes;
mod pod_status;
mod pod_templates;
mod probe_marker_authors;
mod request_fields;
mod request_status;
mod webhook_jobs;
mod webhook_registration;
mod workload_spread_authors;

use serde_json::{Value, json};

use super::metadata;
use crate::{
    api::apps,
    domain::deletion_protection as protection,
    k8s::account::{self, DAEMON, MANAGER, WEBHOOK},
};

/// A policy that is part of every installation.
struct Policy {
    /// Name of the policy and of its binding.
    name: &'static str,
    spec: fn() -> Value,
    /// Whether the manifests put it in force. The others are bound by somebody else.
    is_bound: bool,
    /// The accounts whose writes alone it judges. Every role looks for those over its own at start, without rendering any.
    over: &'static [&'static str],
}

const POLICIES: &[Policy] = &[
    Policy { name: "kruise-crr-own-fields", spec: request_fields::spec, is_bound: true, over: &[] },
    Policy { name: "kruise-daemon-own-node", spec: request_status::spec, is_bound: true, over: &[DAEMON] },
    Policy { name: "kruise-daemon-node-images", spec: node_images::spec, is_bound: true, over: &[DAEMON] },
    Policy { name: "kruise-daemon-own-probes", spec: node_probes::spec, is_bound: true, over: &[DAEMON] },
    Policy { name: "kruise-daemon-events", spec: daemon_events::spec, is_bound: true, over: &[DAEMON] },
    Policy { name: "kruise-ephemeraljob-authors", spec: ephemeral_job_authors::spec, is_bound: true, over: &[] },
    Policy { name: "kruise-manager-claims", spec: manager_claims::spec, is_bound: true, over: &[MANAGER] },
    Policy { name: "kruise-manager-configmaps", spec: manager_config_maps::spec, is_bound: true, over: &[MANAGER] },
    Policy {
        name: "kruise-manager-ephemeral-containers",
        spec: manager_ephemeral_containers::spec,
        is_bound: true,
        over: &[MANAGER],
    },
    Policy { name: "kruise-manager-evictions", spec: manager_evictions::spec, is_bound: true, over: &[MANAGER] },
    Policy { name: "kruise-manager-jobs", spec: manager_jobs::spec, is_bound: true, over: &[MANAGER] },
    Policy { name: "kruise-manager-node-probes", spec: manager_node_probes::spec, is_bound: true, over: &[MANAGER] },
    Policy { name: "kruise-manager-pod-states", spec: manager_pod_states::spec, is_bound: true, over: &[MANAGER] },
    Policy { name: "kruise-manager-pods", spec: manager_pods::spec, is_bound: true, over: &[MANAGER] },
    Policy { name: "kruise-manager-revisions", spec: manager_revisions::spec, is_bound: true, over: &[MANAGER] },
    Policy { name: "kruise-manager-secrets", spec: manager_secrets::spec, is_bound: true, over: &[MANAGER] },
    Policy { name: "kruise-manager-subsets", spec: manager_subsets::spec, is_bound: true, over: &[MANAGER] },
    Policy { name: manager_specs::NAME, spec: manager_specs::spec, is_bound: true, over: &[MANAGER] },
    Policy { name: "kruise-nodeimage-authors", spec: node_image_authors::spec, is_bound: true, over: &[] },
    Policy { name: "kruise-pod-status", spec: pod_status::spec, is_bound: true, over: &[MANAGER, DAEMON] },
    Policy { name: "kruise-podprobemarker-authors", spec: probe_marker_authors::spec, is_bound: true, over: &[] },
    Policy {
        name: "kruise-podtemplates",
        spec: pod_templates::spec,
        is_bound: true,
        over: &[MANAGER, WEBHOOK, DAEMON],
    },
    Policy { name: "kruise-resourcedistribution-authors", spec: distribution_authors::spec, is_bound: true, over: &[] },
    Policy { name: "kruise-webhook-jobs", spec: webhook_jobs::spec, is_bound: true, over: &[WEBHOOK] },
    Policy { name: "kruise-webhook-registration", spec: webhook_registration::spec, is_bound: true, over: &[WEBHOOK] },
    Policy { name: "kruise-workloadspread-authors", spec: workload_spread_authors::spec, is_bound: true, over: &[] },
    // The webhook role binds it while the gate is on.
    Policy { name: protection::NAME, spec: protection::spec, is_bound: false, over: &[] },
    // An administrator binds it who wants it.
    Policy { name: protection::LABEL_GUARD, spec: protection::label_guard_spec, is_bound: false, over: &[] },
];

/// The policies and their bindings, and the role that one of them asks for.
pub(super) fn objects() -> Vec<Value> {
    let objects = POLICIES.iter().flat_map(|policy| object(policy.name, (policy.spec)(), policy.is_bound));
    objects.chain([probe_marker_authors::author_role()]).collect()
}

fn object(name: &str, spec: Value, is_bound: bool) -> Vec<Value> {
    let version = "admissionregistration.k8s.io/v1";
    let mut objects = vec![json!({ "apiVersion": version, "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata(name, false), "spec": spec })];
    if is_bound {
        objects.push(json!({ "apiVersion": version, "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata(name, false), "spec": { "policyName": name, "validationActions": ["Deny"] } }));
    }
    objects
}

/// The policies that are in force over an account. Those that only make an exception for it are not among them.
pub(super) fn over(account: &str) -> Vec<&'static str> {
    let limits = |policy: &&Policy| policy.is_bound && policy.over.contains(&account);
    POLICIES.iter().filter(limits).map(|policy| policy.name).collect()
}

/// Updates of a resource of ours.
fn updates_of(resource: &str) -> Value {
    json!({ "resourceRules": [{ "apiGroups": [apps::GROUP], "apiVersions": ["v1alpha1", "v1beta1"],
        "operations": ["UPDATE"], "resources": [resource] }] })
}

/// The node in the token of a daemon, or an empty string.
fn token_node() -> Value {
    json!({ "name": "tokenNode", "expression":
        "request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')" })
}

/// What a daemon reports in the status of an object that has its node's name.
fn reports_of_node(resource: &str, kind: &str, of_what: &str) -> Value {
    let message = format!("a daemon may only report on {of_what} of its own node");
    let expression = format!(
        "'{message}; its token is of node \"' + variables.tokenNode + '\", the {kind} is of node \"' + oldObject.metadata.name + '\"'"
    );
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": updates_of(&format!("{resource}/status")),
        "matchConditions": [by_a_daemon()],
        "variables": [token_node()],
        "validations": [{
            "expression": "variables.tokenNode != '' && variables.tokenNode == oldObject.metadata.name",
            "message": message,
            "messageExpression": expression,
            "reason": "Forbidden",
        }],
    })
}

fn by_a_daemon() -> Value {
    json!({ "name": "by-a-daemon", "expression": account::is_one_of(&[account::DAEMON]) })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Whether some validation of a policy has all these words.
    fn requires(policy: &str, words: &[&str]) -> bool {
        let spec = (POLICIES.iter().find(|known| known.name == policy).unwrap().spec)();
        let validations = spec["validations"].as_array().unwrap();
        validations.iter().any(|v| words.iter().all(|word| v["expression"].as_str().unwrap().contains(word)))
    }

    #[test]
    fn the_table_says_over_whom_a_policy_is() {
        for policy in POLICIES {
            let spec = (policy.spec)();
            let conditions = spec["matchConditions"].as_array().cloned().unwrap_or_default();
            let is_over = |account: &&&str| {
                let username = format!("system:serviceaccount:{}:{account}", super::super::NAMESPACE);
                let texts = conditions.iter().filter_map(|condition| condition["expression"].as_str());
                // What makes an exception for an account is not over it.
                texts.into_iter().any(|text| !text.starts_with('!') && account::names(text, &username))
            };
            let found: Vec<&str> = [MANAGER, WEBHOOK, DAEMON].iter().filter(is_over).copied().collect();
            assert_eq!(found, policy.over, "{}", policy.name);
        }
    }

    /// For each policy that selects a write the API server converts the object and the one before, whoever it is by.
    #[test]
    fn what_others_write_all_the_time_is_selected_by_one_policy() {
        let mut selecting: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for policy in POLICIES.iter().filter(|policy| policy.is_bound) {
            let spec = (policy.spec)();
            for rule in spec["matchConstraints"]["resourceRules"].as_array().unwrap() {
                let texts = |field: &str| rule[field].as_array().unwrap().iter().map(|text| text.as_str().unwrap());
                for (group, resource) in texts("apiGroups").flat_map(|g| texts("resources").map(move |r| (g, r))) {
                    for operation in texts("operations") {
                        selecting.entry(format!("{operation} {group}/{resource}")).or_default().push(policy.name);
                    }
                }
            }
        }
        let several = selecting.into_iter().filter(|(_, policies)| policies.len() > 1);
        let several: Vec<String> =
            several.map(|(write, policies)| format!("{write}: {}", policies.join(", "))).collect();
        // A Job is created once; the others are few, small and seldom written, but for their status.
        let seldom = [
            "CREATE batch/jobs: kruise-manager-jobs, kruise-webhook-jobs",
            "UPDATE apps.kruise.io/containerrecreaterequests: kruise-crr-own-fields, kruise-manager-specs",
            "UPDATE apps.kruise.io/ephemeraljobs: kruise-ephemeraljob-authors, kruise-manager-specs",
            "UPDATE apps.kruise.io/podprobemarkers: kruise-manager-specs, kruise-podprobemarker-authors",
        ];
        assert_eq!(several, seldom);
    }

    #[test]
    fn what_only_lets_an_object_be_stolen_or_collected_stays() {
        let owners = "object.metadata.?ownerReferences.orValue([]) == oldObject.metadata.?ownerReferences.orValue([])";
        for (policy, words) in [
            ("kruise-manager-specs", [owners, ""]),
            ("kruise-webhook-registration", [owners, ""]),
            ("kruise-manager-specs", ["metadata.?finalizers", "'kruise.io/node-pod-probe-cleanup'"]),
            ("kruise-manager-pods", ["variables.isFree", "variables.isStuck"]),
            (
                "kruise-manager-claims",
                ["request.operation == 'UPDATE'", "variables.isLabelled || variables.ofPod != ''"],
            ),
            (
                "kruise-manager-claims",
                ["request.operation == 'DELETE'", "variables.isLabelled && oldObject.metadata.?ownerReferences"],
            ),
            (
                "kruise-manager-claims",
                ["oldObject.metadata.?ownerReferences.orValue([]).filter(o, !(", "o.kind == 'Pod'"],
            ),
            ("kruise-manager-node-probes", ["podProbes", "!= request.userInfo.username.split(':')[2]"]),
            (
                "kruise-manager-secrets",
                [
                    "request.operation == 'CREATE' || oldObject.metadata.?ownerReferences",
                    "o.kind == 'ResourceDistribution'",
                ],
            ),
            (
                "kruise-manager-configmaps",
                ["request.namespace != request.userInfo", "o.kind == 'ResourceDistribution'"],
            ),
            ("kruise-pod-status", ["status.?observedGeneration", "status.?resources"]),
            ("kruise-pod-status", ["!variables.byDaemon || (object.status == oldObject.status)", ""]),
            ("kruise-daemon-events", ["component in ['kruise-daemon-crr', ", "'kruise-daemon-podprobe'"]),
        ] {
            assert!(requires(policy, &words), "{policy}: {words:?}");
        }
    }
}
