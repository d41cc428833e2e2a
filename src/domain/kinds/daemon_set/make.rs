//! The objects that a DaemonSet makes: Pods and revisions. Raw JSON, so that fields newer than ours survive.

use serde_json::Value;

use super::{spec::Spec, tolerations::tolerations};
use crate::{
    api::labels,
    domain::{
        pod::lifecycle::{State, first_state},
        workload::{
            make::{self, PodParts},
            owner::OwnerRef,
        },
    },
    k8s::{
        hash,
        time::{Now, rfc3339},
    },
};

/// The longest encoded hash.
const LONGEST_HASH: usize = 10;

/// What names of Pods begin with.
fn base(spec: &Spec) -> String {
    make::name_prefix(&spec.name, LONGEST_HASH)
}

/// The name of a Pod: the same for each attempt to make the same Pod, so that one whose outcome is not known is not made
/// twice. `made` counts those that were made for the node before.
pub fn pod_name(spec: &Spec, node: &str, revision: &str, made: u32) -> String {
    let text = format!("{}/{node}/{revision}/{made}", spec.uid);
    format!("{}{}", base(spec), hash::safe_encode(hash::fnv1_32(text.into_bytes())))
}

/// The Pod for a node.
pub fn pod(
    owner: &OwnerRef,
    spec: &Spec,
    name: String,
    (node, hash): (&str, &str),
    not_ready_since: Option<i64>,
    now: Now,
) -> Value {
    let mut labels = vec![(labels::CONTROLLER_REVISION_HASH, hash.to_owned())];
    let mut annotations = vec![(labels::AUTOSCALER_DAEMON_SET_POD, "true".to_owned())];
    // Without a hook that has to let it in it has no state, as in OpenKruise.
    if first_state(&spec.lifecycle, &spec.template) == State::PreparingNormal {
        labels.push((labels::LIFECYCLE_STATE, State::PreparingNormal.as_str().to_owned()));
        annotations.push((labels::LIFECYCLE_TIMESTAMP, rfc3339(now.wall)));
    }
    labels.extend(spec.template_generation.map(|number| (labels::POD_TEMPLATE_GENERATION, number.to_string())));
    labels.extend(not_ready_since.map(|since| (labels::NODE_NOT_READY_SINCE, since.to_string())));
    let gates: &[&str] =
        if spec.rolling.in_place { &make::READINESS_GATES } else { &[labels::CONDITION_KRUISE_POD_READY] };
    let mut pod = make::pod(
        &spec.template,
        PodParts {
            owner,
            name,
            generate_name: base(spec),
            labels,
            annotations,
            readiness_gates: gates,
            claims: Vec::new(),
        },
    );
    pod["spec"]["tolerations"] = tolerations(&pod["spec"]);
    make::aim_at_node(&mut pod, node);
    pod
}
