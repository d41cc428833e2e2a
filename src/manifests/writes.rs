//! Every write that an account of ours may make: by RBAC the verb, by an admission policy the condition.
//!
//! RBAC is written beside the code that makes the calls; tests hold it and the policies to this table, in both directions,
//! `SECURITY.md` is rendered from it, and end-to-end tests try each line with a token of the account.

use super::renewed;
use crate::k8s::account::{DAEMON, MANAGER, WEBHOOK};

/// One kind of object that an account writes.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// The ServiceAccount.
    pub account: &'static str,
    /// API group; empty for core.
    pub group: &'static str,
    /// Resource, with its subresource as in `pods/status`.
    pub resource: &'static str,
    /// The verbs that RBAC grants. A `patch` is an UPDATE to policies, whatever its type.
    pub verbs: &'static [&'static str],
    /// The policy that holds the condition; empty where RBAC says all.
    pub policy: &'static str,
    /// What is admitted.
    pub admitted: &'static str,
}

const fn write(
    account: &'static str,
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
) -> Write {
    Write { account, group, resource, verbs, policy: "", admitted: "" }
}

impl Write {
    const fn only(self, policy: &'static str, admitted: &'static str) -> Self {
        Self { policy, admitted, ..self }
    }
    const fn all(self, admitted: &'static str) -> Self {
        Self { admitted, ..self }
    }
}

const KRUISE: &str = "apps.kruise.io";
const PODS: &str = "kruise-manager-pods";
const POD_STATUS: &str = "kruise-pod-status";
const REVISIONS: &str = "kruise-manager-revisions";
const CLAIMS: &str = "kruise-manager-claims";
/// The policy over specs that the manager must not change; its lines say of which kinds.
pub(super) const SPECS: &str = "kruise-manager-specs";
const TEMPLATES: &str = "kruise-podtemplates";
const SUBSETS: &str = "kruise-manager-subsets";
const OF_UNITED: &str = "controlled by a UnitedDeployment before and after, with the same owners and finalizers; adoption: that owner reference alone; not in our own namespace";
const REGISTRATION: &str = "its own, by name: entries of its table, with their rules, target and an accepted failure policy; `mcontainerrecreaterequest.kb.io` stays, for all requests; no owner references";
const NO_SPEC: &str = "metadata, but no owner references, and of finalizers only ours; the spec stays";

/// The table.
pub const WRITES: &[Write] = &[
    write(MANAGER, "", "pods", &["create"]).only(
        PODS,
        "controlled by a workload of ours; others in a dry run, with the annotation `kruise.rs/trial`; not in our own namespace",
    ),
    write(MANAGER, "", "pods", &["delete"]).only(
        PODS,
        "controlled by a workload of ours; those of a subset of a UnitedDeployment that a StatefulSet of `apps/v1` controls, while they are not Ready; not in our own namespace",
    ),
    write(MANAGER, "", "pods", &["patch"]).only(
        PODS,
        "controlled by a workload of ours before and after: anything; adoption and release: that owner reference and the identity labels; others: another spelling of the same image with a digest, annotations `kruise.rs/image-spellings`, `kruise.io/related-pub`, `apps.kruise.io/matched-workloadspread` and `controller.kubernetes.io/pod-deletion-cost`, label `apps.kruise.io/united-deployment-reserved-pod`; with the first `apps.kruise.io/matched-workloadspread` of a Pod, labels and annotations outside the domains of Kubernetes and Kruise, but none that says which revision it is of; the image that a sidecar's own variable names; with injected sidecars: their images, annotations of SidecarSets, and others outside the domains of Kubernetes and Kruise; not in our own namespace",
    ),
    write(MANAGER, "", "pods/eviction", &["create"])
        .only("kruise-manager-evictions", "all, within budgets; not in our own namespace, not in `kube-system`"),
    write(MANAGER, "", "pods/resize", &["patch"]).only(PODS, "controlled by a workload of ours; not in our own namespace"),
    write(MANAGER, "", "pods/ephemeralcontainers", &["patch"]).only(
        "kruise-manager-ephemeral-containers",
        "further containers with the variable `KRUISE_EJOB_ID`; not in our own namespace",
    ),
    write(MANAGER, "", "pods/status", &["patch"]).only(
        POD_STATUS,
        "conditions, but none of kubelet, scheduler, control plane and load balancers, and `Ready` only to False; the phase, to Succeeded or Failed, of Pods that run to an end and have a sidecar of the terminator; labels and annotations, on Pods of others none of Kubernetes and Kruise but those listed in the policy; finalizers of Pods that a workload of ours controls; not in our own namespace",
    ),
    write(MANAGER, "apps", "controllerrevisions", &["create", "delete"]).only(REVISIONS, "controlled by a workload of ours or a UnitedDeployment; in our own namespace by a SidecarSet"),
    write(MANAGER, "apps", "controllerrevisions", &["patch"])
        .only(REVISIONS, "controlled by a workload of ours or a UnitedDeployment before and after, in our own namespace by a SidecarSet; adoption and release: that owner reference alone, in our own namespace adoption by a SidecarSet"),
    write(MANAGER, "", "persistentvolumeclaims", &["create"]).only(CLAIMS, "controlled by a workload of ours, owned by nobody, or named `TEMPLATE-SET-ORDINAL` and owned by the StatefulSet SET"),
    write(MANAGER, "", "persistentvolumeclaims", &["delete"]).only(CLAIMS, "controlled by a workload of ours, with the label `apps.kruise.io/cloneset-instance-id`"),
    write(MANAGER, "", "persistentvolumeclaims", &["patch"])
        .only(CLAIMS, "that have the label `apps.kruise.io/cloneset-instance-id`: that label, owner references to workloads of ours and Pods, `spec.resources`; others named `TEMPLATE-SET-ORDINAL`: owner references to the StatefulSet SET and the Pod `SET-ORDINAL`, annotation `apps.kruise.io/owned-by-asts` and, where it says SET, `spec.resources`"),
    write(MANAGER, "", "configmaps", &["create", "patch", "delete"]).only(
        "kruise-manager-configmaps",
        "create and patch: `POD-barrier` that is owned by the Pod POD, and `kruise-pull-secrets-ca` of our own namespace; with the component `resource-distribution`: controlled by a ResourceDistribution before and after, with the same other owners; not in our own namespace",
    ),
    write(MANAGER, "", "podtemplates", &["create"]).only(TEMPLATES, "in a dry run"),
    write(MANAGER, KRUISE, "clonesets", &["patch"])
        .only(SPECS, "metadata, but no owner references, and of finalizers only ours; names taken off `spec.scaleStrategy.podsToDelete`; of those that a UnitedDeployment controls, not in our own namespace, the whole spec; of those that nobody controls, not in our own namespace, adoption by a UnitedDeployment"),
    write(MANAGER, KRUISE, "clonesets", &["create", "delete"]).only(SUBSETS, OF_UNITED),
    write(MANAGER, KRUISE, "statefulsets", &["create", "patch", "delete"]).only(SUBSETS, OF_UNITED),
    write(MANAGER, "apps", "deployments", &["create", "patch", "delete"]).only(SUBSETS, OF_UNITED),
    write(MANAGER, "apps", "statefulsets", &["create", "patch", "delete"]).only(SUBSETS, OF_UNITED),
    write(MANAGER, KRUISE, "imagepulljobs", &["patch"]).only(SPECS, NO_SPEC),
    write(MANAGER, KRUISE, "imagelistpulljobs", &["patch"]).only(SPECS, NO_SPEC),
    write(MANAGER, KRUISE, "ephemeraljobs", &["patch"]).only(SPECS, NO_SPEC),
    write(MANAGER, KRUISE, "podprobemarkers", &["patch"]).only(SPECS, NO_SPEC),
    write(MANAGER, KRUISE, "containerrecreaterequests", &["patch"]).only(SPECS, NO_SPEC),
    write(MANAGER, KRUISE, "broadcastjobs", &["patch"])
        .only(SPECS, "metadata, but no owner references, and of finalizers only ours; `spec.paused` to true"),
    write(MANAGER, KRUISE, "broadcastjobs", &["delete"]).all("all"),
    write(MANAGER, KRUISE, "broadcastjobs/finalizers", &["update"]).all("asked for, never called"),
    write(MANAGER, KRUISE, "clonesets/finalizers", &["update"]).all("asked for, never called"),
    write(MANAGER, KRUISE, "statefulsets/finalizers", &["update"]).all("asked for, never called"),
    write(MANAGER, KRUISE, "daemonsets/finalizers", &["update"]).all("asked for, never called"),
    write(MANAGER, KRUISE, "sidecarsets/finalizers", &["update"]).all("asked for, never called"),
    write(MANAGER, KRUISE, "uniteddeployments/finalizers", &["update"]).all("asked for, never called"),
    write(MANAGER, KRUISE, "imagepulljobs", &["create", "delete"]).all("all"),
    write(MANAGER, KRUISE, "imagelistpulljobs", &["delete"]).all("all"),
    write(MANAGER, KRUISE, "ephemeraljobs", &["delete"]).all("all"),
    write(MANAGER, KRUISE, "imagelistpulljobs", &["create"]).all("all"),
    write(MANAGER, KRUISE, "broadcastjobs", &["create"]).all("all"),
    write(MANAGER, "batch", "jobs", &["create", "delete"])
        .only("kruise-manager-jobs", "controlled by an AdvancedCronJob; not in our own namespace"),
    write(MANAGER, KRUISE, "advancedcronjobs/finalizers", &["update"]).all("asked for, never called"),
    write(MANAGER, KRUISE, "advancedcronjobs/status", &["patch"]).all("all"),
    write(MANAGER, KRUISE, "containerrecreaterequests", &["create", "delete"]).all("all"),
    write(MANAGER, KRUISE, "nodeimages", &["create", "patch", "delete"]).all("all"),
    write(MANAGER, KRUISE, "persistentpodstates", &["create", "patch", "delete"]).only(
        "kruise-manager-pod-states",
        "those that a StatefulSet of the same name controls; create: for that StatefulSet; patch: the spec, but not its target",
    ),
    write(MANAGER, KRUISE, "nodepodprobes", &["create", "patch"])
        .only("kruise-manager-node-probes", "no probes of Pods in our own namespace"),
    write(MANAGER, "kruise.rs", "workloadrestarts", &["delete"]).all("all"),
    write(MANAGER, KRUISE, "clonesets/status", &["patch"]).all("all"),
    write(MANAGER, KRUISE, "statefulsets/status", &["patch"]).all("all"),
    write(MANAGER, KRUISE, "daemonsets/status", &["patch"]).all("all"),
    write(MANAGER, KRUISE, "sidecarsets/status", &["patch"]).all("all"),
    write(MANAGER, KRUISE, "broadcastjobs/status", &["patch"]).all("all"),
    write(MANAGER, KRUISE, "uniteddeployments/status", &["patch"]).all("all"),
    write(MANAGER, KRUISE, "containerrecreaterequests/status", &["patch"]).all("all"),
    write(MANAGER, KRUISE, "imagepulljobs/status", &["patch"]).all("all"),
    write(MANAGER, KRUISE, "imagelistpulljobs/status", &["patch"]).all("all"),
    write(MANAGER, KRUISE, "ephemeraljobs/status", &["patch"]).all("all"),
    write(MANAGER, KRUISE, "nodeimages/status", &["patch"]).all("all"),
    write(MANAGER, KRUISE, "podprobemarkers/status", &["patch"]).all("all"),
    write(MANAGER, KRUISE, "resourcedistributions/status", &["patch"]).all("all"),
    write(MANAGER, KRUISE, "resourcedistributions/finalizers", &["update"]).all("asked for, never called"),
    write(MANAGER, KRUISE, "persistentpodstates/status", &["patch"]).all("all"),
    write(MANAGER, KRUISE, "workloadspreads/status", &["patch"]).all("all"),
    write(MANAGER, "kruise.rs", "workloadrestarts/status", &["patch"]).all("all"),
    write(MANAGER, "policy.kruise.io", "podunavailablebudgets/status", &["patch"]).all("all"),
    write(MANAGER, "", "events", &["create"]).all("all"),
    write(MANAGER, "", "secrets", &["create", "patch", "delete"]).only(
        "kruise-manager-secrets",
        "patch: `kruise-pull-secrets-certs` of our own namespace, by name; with the component `resource-distribution`: controlled by a ResourceDistribution before and after, with the same other owners, and of no type from which tokens are made; not in our own namespace",
    ),
    write(MANAGER, "coordination.k8s.io", "leases", &["update"]).all("`kruise-manager`, by name"),
    write(MANAGER, "authentication.k8s.io", "tokenreviews", &["create"]).all("stores nothing"),
    write(MANAGER, "authentication.k8s.io", "selfsubjectreviews", &["create"]).all("stores nothing"),
    write(
        WEBHOOK,
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        &["patch"],
    )
    .only("kruise-webhook-registration", REGISTRATION),
    write(
        WEBHOOK,
        "admissionregistration.k8s.io",
        "validatingwebhookconfigurations",
        &["patch"],
    )
    .only("kruise-webhook-registration", REGISTRATION),
    write(WEBHOOK, "", "podtemplates", &["create"]).only(TEMPLATES, "in a dry run"),
    write(WEBHOOK, "batch", "jobs", &["create"]).only("kruise-webhook-jobs", "in a dry run"),
    write(WEBHOOK, "admissionregistration.k8s.io", "validatingadmissionpolicybindings", &["create", "delete"])
        .all("create: any, which no policy can limit; delete: `kruise-deletion-protection`, by name"),
    write(WEBHOOK, "policy.kruise.io", "podunavailablebudgets/status", &["patch"]).all("all"),
    write(WEBHOOK, KRUISE, "workloadspreads/status", &["patch"]).all("all"),
    write(WEBHOOK, "", "events", &["create"]).all("all"),
    write(WEBHOOK, "", "secrets", &["patch"]).all("`kruise-webhook-certs`, by name"),
    write(WEBHOOK, "authentication.k8s.io", "selfsubjectreviews", &["create"]).all("stores nothing"),
    write(DAEMON, "", "pods/status", &["patch"])
        .only(POD_STATUS, "annotation `apps.kruise.io/runtime-containers-meta` of Pods on its own node"),
    write(DAEMON, KRUISE, "containerrecreaterequests/status", &["patch"])
        .only("kruise-daemon-own-node", "of its own node"),
    write(DAEMON, KRUISE, "nodeimages/status", &["patch"]).only("kruise-daemon-node-images", "of its own node"),
    write(DAEMON, KRUISE, "nodepodprobes/status", &["patch"]).only("kruise-daemon-own-probes", "of its own node"),
    write(DAEMON, "", "events", &["create"]).only("kruise-daemon-events", "that name its own node and a component of the daemon"),
    write(DAEMON, "authentication.k8s.io", "selfsubjectreviews", &["create"]).all("stores nothing"),
];

const BEGIN: &str = "<!-- Written by `make manifests` from src/manifests/writes.rs. -->\n";
const END: &str = "<!-- end of the table of writes -->\n";

/// The table as Markdown.
fn markdown() -> String {
    let mut text = String::from("| account | resource | verbs | what is admitted | policy |\n|---|---|---|---|---|\n");
    for Write { account, group, resource, verbs, policy, admitted } in WRITES {
        let group = if group.is_empty() { String::new() } else { format!("{group}/") };
        let policy = if policy.is_empty() { String::new() } else { format!("`{policy}`") };
        text += &format!("| `{account}` | `{group}{resource}` | {} | {admitted} | {policy} |\n", verbs.join(", "));
    }
    text
}

/// A page with the table between its markers made new. None: it has no markers.
pub fn renew(page: &str) -> Option<String> {
    renewed(page, (BEGIN, END), &markdown())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{
        super::{policies, roles::roles},
        *,
    };
    use crate::{
        api::kinds::{Account, KINDS},
        controllers::resource_distribution::COPIES_RBAC,
    };

    const READS: [&str; 3] = ["get", "list", "watch"];

    type Right = (&'static str, &'static str, &'static str, &'static str);

    #[test]
    fn rbac_grants_the_writes_of_the_table_and_no_others() {
        let mut granted: BTreeSet<Right> = BTreeSet::new();
        let of_roles = roles().into_iter().flat_map(|role| {
            let rules = [role.cluster_rules, role.own_namespace_rules].concat();
            rules.into_iter().map(move |rule| (role.account, rule))
        });
        let of_components = COPIES_RBAC.iter().map(|rule| (MANAGER, *rule));
        for (account, rule) in of_roles.chain(of_components) {
            for (group, resource) in rule.groups.iter().flat_map(|g| rule.resources.iter().map(move |r| (*g, *r))) {
                let verbs = rule.verbs.iter().filter(|verb| !READS.contains(verb));
                granted.extend(verbs.map(|verb| (account, group, resource, *verb)));
            }
        }
        let mut table: BTreeSet<Right> = BTreeSet::new();
        for write in WRITES {
            for verb in write.verbs {
                assert!(table.insert((write.account, write.group, write.resource, verb)), "twice: {write:?} {verb}");
            }
        }
        assert_eq!(granted.difference(&table).collect::<Vec<_>>(), Vec::<&Right>::new(), "granted, not in the table");
        assert_eq!(table.difference(&granted).collect::<Vec<_>>(), Vec::<&Right>::new(), "in the table, not granted");
    }

    #[test]
    fn every_kind_of_ours_has_its_writes_and_only_known_kinds_have_some() {
        let account = |account: &Account| match account {
            Account::Manager => MANAGER,
            Account::Webhook => WEBHOOK,
            Account::Daemon => DAEMON,
        };
        let installed = || KINDS.iter().filter(|kind| kind.definition.is_some());
        let has = |account: &str, group: &str, resource: &str, verb: &str| {
            WRITES
                .iter()
                .any(|w| (w.account, w.group, w.resource) == (account, group, resource) && w.verbs.contains(&verb))
        };
        for kind in installed() {
            let status = format!("{}/status", kind.plural);
            for of in [Account::Manager, Account::Webhook, Account::Daemon] {
                let writes = kind.status_writers.contains(&of);
                assert_eq!(has(account(&of), kind.group, &status, "patch"), writes, "{kind:?} {of:?}");
            }
            if kind.owns_pods() {
                // To own objects with blockOwnerDeletion.
                let finalizers = format!("{}/finalizers", kind.plural);
                assert_eq!(has(MANAGER, kind.group, &finalizers, "update"), kind.makes_pods(), "{kind:?}");
                assert!(kind.makes_pods() || !has(MANAGER, kind.group, kind.plural, "patch"), "{kind:?}");
                for policy in [PODS, POD_STATUS, REVISIONS, CLAIMS] {
                    let text =
                        policies::objects().into_iter().find(|o| o["metadata"]["name"] == policy).unwrap().to_string();
                    assert!(text.contains(&format!("'{}'", kind.kind)), "{policy} does not know {kind:?}");
                }
            }
        }
        let groups: BTreeSet<&str> = installed().map(|kind| kind.group).collect();
        for write in WRITES.iter().filter(|write| groups.contains(write.group)) {
            let plural = write.resource.split('/').next().unwrap_or_default();
            assert!(installed().any(|kind| (kind.group, kind.plural) == (write.group, plural)), "{write:?}");
        }
    }

    #[test]
    fn no_account_may_delete_collections_or_replace_pods() {
        for write in WRITES {
            assert!(!write.verbs.contains(&"deletecollection") && !write.verbs.contains(&"*"), "{write:?}");
            let replaces = write.resource.starts_with("pods") && write.verbs.contains(&"update");
            assert!(!replaces, "{write:?}");
        }
    }

    #[test]
    fn every_condition_is_a_policy_over_its_account_that_matches_the_write() {
        for write in WRITES.iter().filter(|write| !write.policy.is_empty()) {
            assert!(policies::over(write.account).contains(&write.policy), "{write:?}");
            let spec = policies::objects().into_iter().find(|o| o["metadata"]["name"] == write.policy).unwrap();
            let rules = spec["spec"]["matchConstraints"]["resourceRules"].as_array().unwrap().clone();
            for verb in write.verbs {
                let operation = if *verb == "patch" { "UPDATE".to_owned() } else { verb.to_uppercase() };
                let has = |value: &serde_json::Value, text: &str| value.as_array().unwrap().iter().any(|v| v == text);
                let matched = rules.iter().any(|rule| {
                    has(&rule["apiGroups"], write.group)
                        && has(&rule["resources"], write.resource)
                        && has(&rule["operations"], &operation)
                });
                assert!(matched, "{write:?} {verb}");
            }
        }
        for account in [MANAGER, WEBHOOK, DAEMON] {
            for policy in policies::over(account) {
                let named = WRITES.iter().any(|write| write.account == account && write.policy == policy);
                assert!(named || policy == TEMPLATES, "{policy} over {account} has no line");
            }
        }
    }

    #[test]
    fn security_has_the_table_of_today() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/SECURITY.md")).unwrap();
        assert!(renew(&page) == Some(page), "SECURITY.md is stale; mend with `make manifests`");
    }
}
