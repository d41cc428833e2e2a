//! The status of Pods against the manager. Whoever may write it may write labels, annotations and finalizers with it.

use serde_json::{Value, json};

use super::{
    cel::{self, DOMAINS, equal, implies, must, same_but},
    manager_pods::outside_own_namespace,
};
use crate::api::labels;

/// Conditions that the manager never writes: those of kubelet, the scheduler and the control plane.
const CONDITIONS: [&str; 8] = [
    "PodScheduled",
    "Initialized",
    "ContainersReady",
    "PodReadyToStartContainers",
    "DisruptionTarget",
    "PodResizePending",
    "PodResizeInProgress",
    "AllContainersRestarting",
];
/// Conditions with these prefixes: readiness gates of Kubernetes and of load balancers.
const CONDITION_DOMAINS: &str = "^([^/]*[.])?(kubernetes[.]io|k8s[.]io|k8s[.]aws|cloud[.]google[.]com)/";
/// Everything in the status but phase and conditions, with the empty values.
const FIELDS: [(&str, &str); 18] = [
    ("observedGeneration", "-1"),
    ("message", "''"),
    ("reason", "''"),
    ("nominatedNodeName", "''"),
    ("hostIP", "''"),
    ("hostIPs", "[]"),
    ("podIP", "''"),
    ("podIPs", "[]"),
    ("startTime", "''"),
    ("qosClass", "''"),
    ("resize", "''"),
    ("containerStatuses", "[]"),
    ("initContainerStatuses", "[]"),
    ("ephemeralContainerStatuses", "[]"),
    ("resourceClaimStatuses", "[]"),
    ("extendedResourceClaimStatus", "{}"),
    ("allocatedResources", "{}"),
    ("resources", "{}"),
];
/// Labels by which workloads know their Pods.
const IDENTITY: [&str; 7] = [
    labels::POD_TEMPLATE_HASH,
    "pod-template-generation",
    labels::CONTROLLER_REVISION_HASH,
    "controller-uid",
    "job-name",
    "broadcastjob-name",
    "broadcastjob-controller-uid",
];
/// Annotations of those domains that the manager writes, and that users have probes write.
const ANNOTATIONS: [&str; 6] = [
    labels::LAUNCH_PRIORITY_COMPLETED,
    labels::LAUNCH_PRIORITY_OPENED,
    labels::PROBE_MARKED_BY,
    labels::VOLUMES_REFRESH,
    labels::POD_DELETION_COST,
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
];

/// Variables and validations, for the policy over all accounts.
pub(super) fn rules() -> Value {
    let fields: Vec<String> = FIELDS.iter().map(|(field, empty)| equal(&format!("status.{field}"), empty)).collect();
    let is_refused = format!("c.type in {} || c.type.matches('{CONDITION_DOMAINS}')", cel::list(&CONDITIONS));
    let conditions = |object: &str| format!("{object}.status.?conditions.orValue([])");
    let (new, old) = (conditions("object"), conditions("oldObject"));
    let is_label =
        format!("k.startsWith('app.kubernetes.io/') || !(k in {} || k.matches('{DOMAINS}'))", cel::list(&IDENTITY));
    let is_annotation = format!("k in {} || !k.matches('{DOMAINS}')", cel::list(&ANNOTATIONS));
    const OTHER: &str = "!variables.isOurs";
    json!({
        "variables": [
            { "name": "isOurs", "expression": cel::is_ours("oldObject") },
            { "name": "mayEnd", "expression": may_end() },
        ],
        "validations": [
            outside_own_namespace(),
            must(&fields.join(" && "), "status: the manager changes nothing but conditions"),
            must(
                &format!("{} || variables.mayEnd", equal("status.phase", "''")),
                "status.phase: the manager makes Pods Succeeded or Failed that run to an end, have sidecars of the sidecar terminator and are not over",
            ),
            must(
                &format!("{new}.filter(c, {is_refused}) == {old}.filter(c, {is_refused})"),
                &format!("status.conditions: {} and those of Kubernetes and load balancers are not the manager's", CONDITIONS.join(", ")),
            ),
            must(
                &format!(
                    "{new}.all(c, c.type != 'Ready' || c.status == 'False' || {old}.exists(o, o == c)) && {old}.all(o, o.type != 'Ready' || {new}.exists(c, c.type == 'Ready'))"
                ),
                "status.conditions: the manager sets Ready to False only; kubelet sets it to True",
            ),
            must(&equal("metadata.ownerReferences", "[]"), "metadata.ownerReferences: the manager does not change them with the status"),
            implies(OTHER, &equal("metadata.finalizers", "[]"), "metadata.finalizers: the manager does not change those of Pods"),
            implies(OTHER, &same_but("labels", &format!("({is_label})")),
                "metadata.labels: the manager changes none of Kubernetes and Kruise of Pods that no workload of apps.kruise.io controls"),
            implies(OTHER, &same_but("annotations", &format!("({is_annotation})")),
                &format!("metadata.annotations: of those of Kubernetes and Kruise the manager changes only {} of Pods that no workload of apps.kruise.io controls", ANNOTATIONS.join(", "))),
        ],
    })
}

/// Whether a Pod may be made Succeeded or Failed.
fn may_end() -> String {
    let phase = |object: &str| format!("{object}.status.?phase.orValue('')");
    let (switch, image) = (labels::ENV_TERMINATE_SIDECAR, labels::ENV_TERMINATE_SIDECAR_WITH_IMAGE);
    let is_sidecar = format!(
        "(e.name == '{switch}' && e.?value.orValue('').matches('^(?i:true)$')) || (e.name == '{image}' && e.?value.orValue('') != '')"
    );
    let has_sidecars = format!("oldObject.spec.containers.exists(c, c.?env.orValue([]).exists(e, {is_sidecar}))");
    format!(
        "{} in ['Succeeded', 'Failed'] && !({} in ['Succeeded', 'Failed']) && oldObject.spec.?restartPolicy.orValue('') in ['Never', 'OnFailure'] && {has_sidecars}",
        phase("object"),
        phase("oldObject"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_final_and_of_pods_with_the_variable_of_the_terminator_alone_and_needs_no_other_right() {
        let rule = may_end();
        for words in [
            "object.status.?phase.orValue('') in ['Succeeded', 'Failed']",
            "!(oldObject.status.?phase.orValue('') in ['Succeeded', 'Failed'])",
            "oldObject.spec.?restartPolicy.orValue('') in ['Never', 'OnFailure']",
            "e.name == 'KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT' && e.?value.orValue('').matches('^(?i:true)$')",
            "e.name == 'KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT_WITH_IMAGE' && e.?value.orValue('') != ''",
        ] {
            assert!(rule.contains(words), "{words}: {rule}");
        }
        // The gate is all that the sidecar terminator needs.
        assert!(!rule.contains("authorizer"), "{rule}");
    }
}
