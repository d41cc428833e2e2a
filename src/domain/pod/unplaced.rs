//! Pods for which the scheduler finds no node.

use std::time::Duration;

use crate::k8s::{
    pod::{POD_SCHEDULED, PodView},
    time::Now,
};

/// The reason of [`POD_SCHEDULED`] when no node fits. One that is held back by a gate has another.
pub const UNSCHEDULABLE: &str = "Unschedulable";

/// For how long a Pod has been without a place. None: it has one, or nobody has looked for one yet.
pub fn waits_for_place(pod: &PodView, now: Now) -> Option<Duration> {
    let waits = pod.phase == "Pending" && pod.node_name.is_empty() && !pod.is_deleting();
    let refused = pod
        .condition(POD_SCHEDULED)
        .is_some_and(|condition| condition.status == "False" && condition.reason == UNSCHEDULABLE);
    if waits && refused { pod.created.map(|created| now.since(created)) } else { None }
}
