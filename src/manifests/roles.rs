//! The roles of the program: accounts and rights.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::{NAMESPACE, metadata, policies};
use crate::{
    controllers::{self, CONTROLLERS, resource_distribution},
    daemon,
    k8s::{
        account::{DAEMON, MANAGER, WEBHOOK},
        rbac::Rule,
    },
    pull_secrets,
    webhook::{HANDLERS, server::installation},
};

/// A role of the program and the objects that run it.
pub(super) struct Role {
    /// The subcommand.
    pub name: &'static str,
    /// Value of the label `control-plane`, as OpenKruise has it.
    pub control_plane: &'static str,
    /// Name of ServiceAccount and roles.
    pub account: &'static str,
    pub cluster_rules: Vec<Rule>,
    pub own_namespace_rules: Vec<Rule>,
}

pub(super) fn roles() -> [Role; 3] {
    let handlers = HANDLERS.iter().flat_map(|handler| handler.rbac);
    [
        Role {
            name: "manager",
            control_plane: "controller-manager",
            account: MANAGER,
            cluster_rules: distinct(
                CONTROLLERS
                    .iter()
                    .flat_map(|controller| controller.rules)
                    .chain(controllers::BASE_RULES)
                    .chain(pull_secrets::RBAC)
                    .chain(&own_policies(MANAGER)),
            ),
            own_namespace_rules: [controllers::NAMESPACE_RULES, pull_secrets::OWN_NAMESPACE_RBAC].concat(),
        },
        Role {
            name: "webhook",
            control_plane: "webhook",
            account: WEBHOOK,
            cluster_rules: distinct(handlers.chain(installation::RBAC).chain(&own_policies(WEBHOOK))),
            own_namespace_rules: of_webhook_in_own_namespace(installation::OWN_NAMESPACE_RBAC),
        },
        Role {
            name: "daemon",
            control_plane: "daemon",
            account: DAEMON,
            cluster_rules: [daemon::RBAC, &own_policies(DAEMON)].concat(),
            own_namespace_rules: daemon::OWN_NAMESPACE_RBAC.to_vec(),
        },
    ]
}

/// What the webhook may do in our own namespace: these, and what its handlers read there.
pub(super) fn of_webhook_in_own_namespace(rules: &'static [Rule]) -> Vec<Rule> {
    distinct(rules.iter().chain(HANDLERS.iter().flat_map(|handler| handler.own_namespace_rbac)))
}

/// Every role looks at its start whether the policies over its account are in force.
pub(super) fn own_policies(account: &'static str) -> [Rule; 2] {
    static OVER: LazyLock<[(&str, Vec<&str>); 3]> =
        LazyLock::new(|| [MANAGER, WEBHOOK, DAEMON].map(|account| (account, policies::over(account))));
    let names = OVER.iter().find(|(of, _)| *of == account).map_or(&[][..], |(_, names)| names.as_slice());
    let resources = &["validatingadmissionpolicies", "validatingadmissionpolicybindings"];
    [
        Rule::new(&["authentication.k8s.io"], &["selfsubjectreviews"], &["create"]),
        Rule::new(&["admissionregistration.k8s.io"], resources, &["get"]).named(names),
    ]
}

/// What several parts ask for in the same words is written once.
pub(super) fn distinct<'r>(rules: impl Iterator<Item = &'r Rule>) -> Vec<Rule> {
    let mut distinct: Vec<Rule> = Vec::new();
    for rule in rules {
        if !distinct.contains(rule) {
            distinct.push(*rule);
        }
    }
    distinct
}

/// ServiceAccount, roles and bindings.
pub(super) fn access(role: &Role) -> Vec<Value> {
    let name = role.account;
    let subjects = json!([{ "kind": "ServiceAccount", "name": name, "namespace": NAMESPACE }]);
    let rule_objects = |rules: &[Rule]| -> Vec<Value> { rules.iter().map(policy_rule).collect() };
    let group = "rbac.authorization.k8s.io";
    let version = "rbac.authorization.k8s.io/v1";
    let mut objects = vec![
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(name, true) }),
        json!({ "apiVersion": version, "kind": "ClusterRole", "metadata": metadata(name, false),
            "rules": rule_objects(&role.cluster_rules) }),
        json!({ "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": metadata(name, false),
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": name }, "subjects": subjects }),
    ];
    if !role.own_namespace_rules.is_empty() {
        objects.extend([
            json!({ "apiVersion": version, "kind": "Role", "metadata": metadata(name, true),
                "rules": rule_objects(&role.own_namespace_rules) }),
            json!({ "apiVersion": version, "kind": "RoleBinding", "metadata": metadata(name, true),
                "roleRef": { "apiGroup": group, "kind": "Role", "name": name }, "subjects": subjects }),
        ]);
    }
    objects
}

/// Rights that an administrator adds: the role gets the rules of every ClusterRole with the label. The rules are left
/// out here, because the API server fills them in and applying this again must not empty them.
pub(super) fn added_access(role: &Role, label: &str) -> Vec<Value> {
    let name = format!("{}-added", role.account);
    let version = "rbac.authorization.k8s.io/v1";
    vec![
        json!({ "apiVersion": version, "kind": "ClusterRole", "metadata": metadata(&name, false),
            "aggregationRule": { "clusterRoleSelectors": [{ "matchLabels": { label: "true" } }] } }),
        json!({ "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": metadata(&name, false),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": role.account, "namespace": NAMESPACE }] }),
    ]
}

/// A ClusterRole that the manager has only where a component is wanted.
fn of_component(component: &str, rules: &[Rule]) -> Vec<Value> {
    let [manager, ..] = roles();
    let name = format!("{}-{component}", manager.account);
    let version = "rbac.authorization.k8s.io/v1";
    let rules: Vec<Value> = rules.iter().map(policy_rule).collect();
    vec![
        json!({ "apiVersion": version, "kind": "ClusterRole", "metadata": metadata(&name, false), "rules": rules }),
        json!({ "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": metadata(&name, false),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": manager.account, "namespace": NAMESPACE }] }),
    ]
}

/// The right to read the Secrets that ImagePullJobs name, by name: nothing lists or watches them. A component of its own,
/// so that an administrator can leave it out and bind a Role in some namespaces instead.
pub(super) fn secrets_access() -> Vec<Value> {
    of_component("pull-secrets", pull_secrets::SECRETS_RBAC)
}

/// The rights on copies of Secrets and ConfigMaps: a component too, which goes with the feature gate. Secrets are neither listed nor watched.
pub(super) fn distribution_access() -> Vec<Value> {
    of_component("resource-distribution", resource_distribution::COPIES_RBAC)
}

pub(super) fn policy_rule(rule: &Rule) -> Value {
    let Rule { groups, resources, verbs, resource_names } = rule;
    let mut object = json!({ "apiGroups": groups, "resources": resources, "verbs": verbs });
    if !resource_names.is_empty() {
        object["resourceNames"] = json!(resource_names);
    }
    object
}
