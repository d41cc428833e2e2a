//! Pods against the manager: those of our workloads it makes, changes and deletes. Of others it changes how images are
//! spelled (method PodSpec) and annotations of its own; its right to patch Pods is wider than that.

use serde_json::{Value, json};

use super::cel::{self, DOMAINS, by, equal, implies, must, resource_rule, same_but};
use crate::{
    api::labels::{self, SIDECAR_SET_VERSION_ALT_PREFIX, SIDECAR_SET_VERSION_PREFIX},
    k8s::account::{self, MANAGER},
};

/// Annotations that the manager writes on Pods of others.
pub(super) const ANNOTATIONS: [&str; 4] =
    [labels::IMAGE_SPELLINGS, labels::RELATED_PUB, labels::MATCHED_SPREAD, labels::POD_DELETION_COST];
/// Labels that change when a Pod is adopted or released.
pub(super) const IDENTITY: [&str; 3] =
    [labels::INSTANCE_ID, labels::CONTROLLER_REVISION_HASH, labels::POD_TEMPLATE_HASH];
/// Fields of the spec, besides images, that Kubernetes lets anybody change, with their empty values.
const CHANGEABLE: [(&str, &str); 6] = [
    ("spec.activeDeadlineSeconds", "-1"),
    ("spec.terminationGracePeriodSeconds", "-1"),
    ("spec.tolerations", "[]"),
    ("spec.schedulingGates", "[]"),
    ("spec.nodeSelector", "{}"),
    ("spec.affinity", "{}"),
];
/// What `k8s::image` accepts as a reference with a digest, and so with one `@`.
const SPELLING: &str = "^([A-Za-z0-9.:\\[\\]-]+/)?[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?@[A-Za-z0-9+._-]+:[A-Fa-f0-9]{32,}$";
/// Annotations that the update of a SidecarSet writes, besides those of versions and of `patchPodMetadata`.
const OF_SIDECARS: [&str; 5] = [
    labels::SIDECAR_SET_HASH,
    labels::SIDECAR_SET_HASH_WITHOUT_IMAGE,
    labels::SIDECAR_SETS_INJECTED,
    labels::SIDECAR_SET_IN_PLACE_STATE,
    labels::SIDECAR_SET_WORKING,
];
/// Whether SidecarSets have put containers into a Pod.
const HAS_SIDECARS: &str = "request.operation == 'UPDATE' && oldObject.metadata.?annotations[?'kruise.io/sidecarset-injected-list'].orValue('') != ''";
/// Whether a Pod that no WorkloadSpread has noted gets its note: with it come the labels and annotations of a patch.
const IS_ASSIGNED: &str = "request.operation == 'UPDATE' && oldObject.metadata.?annotations[?'apps.kruise.io/matched-workloadspread'].orValue('') == '' && object.metadata.?annotations[?'apps.kruise.io/matched-workloadspread'].orValue('') != ''";
/// Whether a container was injected.
const IS_INJECTED: &str =
    "variables.hasSidecars && o.?env.orValue([]).exists(e, e.name == 'IS_INJECTED' && e.?value.orValue('') == 'true')";
/// Whether it is only tried whether a Pod would get its sidecars: nothing is stored.
const IS_TRIAL: &str = "request.operation == 'CREATE' && request.?dryRun.orValue(false) && object.metadata.?annotations[?'kruise.rs/trial'].orValue('') != ''";
/// Whether a Pod is deleted that holds up the built-in StatefulSet of a subset.
const IS_STUCK: &str = "request.operation == 'DELETE' && oldObject.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false) && o.kind == 'StatefulSet' && o.apiVersion.startsWith('apps/')) && ['apps.kruise.io/subset-name', 'apps.kruise.io/controller-revision-hash'].all(k, k in oldObject.metadata.?labels.orValue({})) && !oldObject.?status.?conditions.orValue([]).exists(c, c.type == 'Ready' && c.status == 'True')";
/// Whether a write is neither to a Pod of ours nor an adoption or release.
const OTHER: &str = "request.operation == 'UPDATE' && !variables.wasOurs && !variables.isOurs";

pub(super) fn spec() -> Value {
    let rules = [
        resource_rule("", &["v1"], &["CREATE", "UPDATE", "DELETE"], &["pods"]),
        resource_rule("", &["v1"], &["UPDATE"], &["pods/resize"]),
    ];
    let handover = [
        equal("spec", "{}"),
        same_but("annotations", "false"),
        same_but("labels", &format!("k in {}", cel::list(&IDENTITY))),
        equal("metadata.finalizers", "[]"),
        cel::same_other_owners(),
    ];
    let others: Vec<String> = CHANGEABLE.iter().map(|(field, empty)| equal(field, empty)).collect();
    let of_sidecars = format!(
        "k in {} || k.startsWith('{SIDECAR_SET_VERSION_PREFIX}') || k.startsWith('{SIDECAR_SET_VERSION_ALT_PREFIX}') || !k.matches('{DOMAINS}')",
        cel::list(&OF_SIDECARS)
    );
    let of_patch = format!("variables.isAssigned && !(k in {}) && !k.matches('{DOMAINS}')", cel::list(&IDENTITY));
    let annotations =
        format!("k in {} || (variables.hasSidecars && ({of_sidecars})) || ({of_patch})", cel::list(&ANNOTATIONS));
    let of_labels = format!("k == '{}' || ({of_patch})", labels::RESERVED_POD);
    let mut variables = cel::ownership().to_vec();
    variables.push(json!({ "name": "hasSidecars", "expression": HAS_SIDECARS }));
    variables.push(json!({ "name": "isAssigned", "expression": IS_ASSIGNED }));
    variables.push(json!({ "name": "isTrial", "expression": IS_TRIAL }));
    variables.push(json!({ "name": "isStuck", "expression": IS_STUCK }));
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "resourceRules": rules },
        "matchConditions": [by(&[MANAGER])],
        "variables": variables,
        "validations": [
            outside_own_namespace(),
            must(
                "variables.isFree || variables.isTrial || variables.isStuck || (request.operation == 'UPDATE' && request.?subResource.orValue('') != 'resize')",
                "the manager creates, deletes and resizes only Pods that a workload of apps.kruise.io controls, and deletes those that hold up the StatefulSet of a subset",
            ),
            implies("variables.isHandover", &handover.join(" && "),
                "the manager adopts and releases a Pod by its owner reference and identity labels, and changes nothing else of it with them"),
            images_of("containers"),
            images_of("initContainers"),
            implies(OTHER, &others.join(" && "),
                "spec: the manager changes nothing but images of Pods that no workload of apps.kruise.io controls"),
            implies(OTHER, &same_but("labels", &of_labels),
                &format!("metadata.labels: the manager changes only {}, and with the note of a subset its labels, of Pods", labels::RESERVED_POD)),
            implies(OTHER, &equal("metadata.finalizers", "[]"), "metadata.finalizers: the manager does not change those of Pods"),
            implies(OTHER, &equal("metadata.ownerReferences", "[]"), "metadata.ownerReferences: the manager does not change those of Pods"),
            implies(OTHER, &same_but("annotations", &annotations),
                &format!("metadata.annotations: the manager changes only {} of Pods", ANNOTATIONS.join(", "))),
        ],
    })
}

/// A token that could write our own Pods could become the webhook.
pub(super) fn outside_own_namespace() -> Value {
    must(
        &format!("request.namespace != {}", account::NAMESPACE),
        "the manager writes no Pods of the namespace that Kruise is installed in",
    )
}

fn images_of(list: &str) -> Value {
    let name = |image: &str| format!("{image}.split('@')[0].find('^(.*/)?[^:]*')");
    let same_image = format!(
        "c.image.matches(r'{SPELLING}') && {} == {} && (!o.image.contains('@') || o.image.split('@')[1] == c.image.split('@')[1])",
        name("c.image"),
        name("o.image")
    );
    // The image that ends a sidecar on a virtual node, which its own variable names.
    let is_last = format!(
        "o.?env.orValue([]).exists(e, e.name == '{}' && e.?value.orValue('') == c.image)",
        labels::ENV_TERMINATE_SIDECAR_WITH_IMAGE
    );
    let old = format!("oldObject.spec.?{list}.orValue([])");
    implies(
        OTHER,
        &format!(
            "object.spec.?{list}.orValue([]).all(c, {old}.exists(o, o.name == c.name && (o.image == c.image || ({same_image}) || ({IS_INJECTED}) || ({is_last}))))"
        ),
        &format!(
            "spec.{list}: the manager may change nothing but how an image is spelled: the name stays, a digest comes or stays; and images of injected sidecars, and those that end a sidecar"
        ),
    )
}
