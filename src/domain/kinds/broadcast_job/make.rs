//! The Pods that a BroadcastJob makes. Raw JSON, so that fields newer than ours survive.

use serde_json::{Value, json};

use super::spec::BroadcastSpec;
use crate::{
    api::labels,
    domain::workload::{
        make::{self, PodParts},
        owner::OwnerRef,
    },
    k8s::hash,
};

/// The longest encoded hash.
const LONGEST_HASH: usize = 20;

/// What names of Pods begin with.
fn base(spec: &BroadcastSpec) -> String {
    make::name_prefix(&spec.name, LONGEST_HASH)
}

/// The name of a Pod: the same for each attempt to make the same Pod, so that one whose outcome is not known is not made
/// twice. `made` counts those that were made for the node before. In 32 bits two of ten thousand nodes may well have one name.
pub fn pod_name(spec: &BroadcastSpec, node: &str, made: u32) -> String {
    let text = format!("{}/{node}/{made}", spec.uid);
    format!("{}{}", base(spec), hash::safe_encode(hash::fnv1_64(text.into_bytes())))
}

/// The Pod for a node. It gets there by the scheduler, unless `binds`: then it is bound from the begin.
pub fn pod(owner: &OwnerRef, spec: &BroadcastSpec, name: String, node: &str, binds: bool) -> Value {
    let own_labels =
        vec![(labels::BROADCAST_JOB_NAME, spec.name.clone()), (labels::BROADCAST_JOB_UID, spec.uid.clone())];
    let mut pod = make::pod(
        &spec.template,
        PodParts {
            owner,
            name,
            generate_name: base(spec),
            labels: own_labels,
            annotations: Vec::new(),
            readiness_gates: &[labels::CONDITION_KRUISE_POD_READY],
            claims: Vec::new(),
        },
    );
    if binds {
        pod["spec"]["nodeName"] = node.into();
    } else {
        make::aim_at_node(&mut pod, node);
    }
    pod
}

/// The patch that stops a Pod and leaves it where it is, with its logs: kubelet ends a Pod whose time is over, as Failed.
pub fn stop() -> Value {
    json!({
        "metadata": {"labels": {labels::STOPPED_FOR: labels::STOPPED_FOR_RESTARTS}},
        "spec": {"activeDeadlineSeconds": 1},
    })
}

/// The patch that pauses a job because so many Pods have failed. It is bound to the version of the job that was looked at.
pub fn pause(failed: i32, resource_version: Option<&str>, uid: &str) -> Value {
    let mut patch = remember(failed, resource_version, uid);
    patch["spec"] = json!({"paused": true});
    patch
}

/// The patch that notes how many failed Pods have been answered with a pause.
pub fn remember(failed: i32, resource_version: Option<&str>, uid: &str) -> Value {
    json!({"metadata": {"uid": uid, "resourceVersion": resource_version,
        "annotations": {labels::PAUSED_AT_FAILED: failed.to_string()}}})
}
