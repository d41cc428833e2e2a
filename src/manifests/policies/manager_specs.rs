//! The specs of objects that users write, against the manager: it never changes what they ask for, above all no template.

use serde_json::{Value, json};

use super::cel::{self, by, equal, must, resource_rule};
use crate::{
    api::{apps, labels},
    k8s::account::{self, MANAGER},
    manifests::writes::{self, WRITES},
};

/// The name of the policy.
pub(super) const NAME: &str = writes::SPECS;

/// Finalizers that the manager adds and removes.
const FINALIZERS: [&str; 4] = [
    labels::CRR_UNREADY_FINALIZER,
    labels::PROBE_CLEANUP_FINALIZER,
    labels::IMAGE_PULL_JOB_FINALIZER,
    labels::EPHEMERAL_JOB_FINALIZER,
];

pub(super) fn spec() -> Value {
    let others_finalizers = |object: &str| {
        format!("{object}.metadata.?finalizers.orValue([]).filter(f, !(f in {}))", cel::list(&FINALIZERS))
    };
    let resources: Vec<&str> = WRITES.iter().filter(|write| write.policy == NAME).map(|write| write.resource).collect();
    // Names of `podsToDelete` go when their Pods are gone; everything else of a CloneSet stays.
    let same = |new: &str, old: &str, free: &str| {
        format!(
            "{new}.all(k, k == '{free}' || (k in {old} && {new}[k] == {old}[k])) && {old}.all(k, k == '{free}' || k in {new})"
        )
    };
    let strategy = |object: &str| format!("dyn({object}.spec.?scaleStrategy.orValue({{}}))");
    let (new, old) = (strategy("object"), strategy("oldObject"));
    let of_clone_sets = [
        same("dyn(object.spec)", "dyn(oldObject.spec)", "scaleStrategy"),
        same(&new, &old, "podsToDelete"),
        format!("{new}.?podsToDelete.orValue([]).all(n, n in {old}.?podsToDelete.orValue([]))"),
    ]
    .join(" && ");
    let of_broadcast_jobs = format!(
        "{} && (object.spec.?paused.orValue(false) || !oldObject.spec.?paused.orValue(false))",
        same("dyn(object.spec)", "dyn(oldObject.spec)", "paused")
    );
    // The workload of a subset is written as the UnitedDeployment says.
    let of_united = format!(
        "request.namespace != {} && {} && {}",
        account::NAMESPACE,
        cel::is_of_united("oldObject"),
        cel::is_of_united("object")
    );
    let is_adopted = format!(
        "request.resource.resource == 'clonesets' && request.namespace != {} && {} && {}",
        account::NAMESPACE,
        cel::is_adopted_by_united(),
        cel::same_but_united()
    );
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": [
            resource_rule(apps::GROUP, &["v1alpha1", "v1beta1"], &["UPDATE"], &resources)] },
        "matchConditions": [by(&[MANAGER])],
        "validations": [
            must("request.resource.resource in ['clonesets', 'broadcastjobs'] || object.spec == oldObject.spec",
                "spec: the manager changes nothing that users ask for"),
            must(&format!("request.resource.resource != 'clonesets' || ({of_united}) || ({of_clone_sets})"),
                "spec: of a CloneSet the manager only takes names off scaleStrategy.podsToDelete, but for those that a UnitedDeployment controls"),
            must(&format!("request.resource.resource != 'broadcastjobs' || ({of_broadcast_jobs})"),
                "spec: of a BroadcastJob the manager only sets paused to true"),
            // With an owner that does not exist, the garbage collector deletes the object.
            must(&format!("{} || ({is_adopted})", equal("metadata.ownerReferences", "[]")),
                "metadata.ownerReferences: the manager does not change them"),
            must(&format!("{} == {}", others_finalizers("object"), others_finalizers("oldObject")),
                &format!("metadata.finalizers: the manager changes only {}", FINALIZERS.join(", "))),
        ],
    })
}
