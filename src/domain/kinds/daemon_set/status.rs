//! What a DaemonSet says about itself.

use super::{
    plan::{Observed, Outline, slots},
    spec::Numbers,
};
use crate::domain::workload::{
    status::{ON_DELETE, PARTITION, Progress, SELECTOR},
    steps::Wait,
};

/// Nodes, counted. Zeros are written too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Nodes that are to have a Pod. With limits of ours that includes those that get none while they are not Ready.
    pub desired: i32,
    /// Of them, those that have one.
    pub current: i32,
    /// Nodes that have one and are not to.
    pub misscheduled: i32,
    /// Of the desired ones, those whose Pod is Ready.
    pub ready: i32,
    /// Those whose Pod is available.
    pub available: i32,
    /// Those whose Pod is on the update revision.
    pub updated: i32,
}

/// Counts the nodes of the set. Of several Pods on a node the one that is kept is looked at.
pub fn counts(observed: &Observed<'_>) -> Counts {
    let mut counts = Counts::default();
    for slot in slots(observed) {
        let pod = slot.kept().or(slot.pods.first().copied());
        let node = slot.node;
        if !node.counts() {
            counts.misscheduled += i32::from(pod.is_some());
            continue;
        }
        counts.desired += 1;
        let Some(pod) = pod else { continue };
        counts.current += 1;
        counts.ready += i32::from(pod.is_ready && pod.is_live());
        counts.available += i32::from(pod.is_available());
        counts.updated += i32::from(pod.is_new);
    }
    counts
}

/// How the set is after a plan was made.
pub fn progress(observed: &Observed<'_>, counts: &Counts, plan: &Outline) -> Progress {
    let spec = observed.spec;
    let words = |wait: &Wait| (wait.reason.to_owned(), wait.message.clone());
    if let Some((reason, message)) = plan.impossible.as_ref().map(words) {
        return Progress::Stalled { reason, message };
    }
    if let Some((reason, message)) = plan.wait.as_ref().map(words) {
        return Progress::Waiting { reason, message };
    }
    // With partitionedScaling nodes stay without a Pod.
    let is_filled = counts.current == counts.desired || plan.is_held && spec.partitioned_scaling;
    if !plan.is_idle || !is_filled || counts.available != counts.current {
        let message = format!("Pods are available on {} of {} nodes", counts.available, counts.desired);
        return Progress::Waiting { reason: "Progressing".into(), message };
    }
    if !plan.is_held {
        return Progress::Available;
    }
    let Numbers { partition, .. } = spec.numbers(usize::try_from(counts.desired).unwrap_or(0));
    match (spec.is_rolling, spec.rolling.paused, partition) {
        (false, ..) => Progress::held(ON_DELETE, "Pods are updated when they are deleted"),
        (true, true, _) => Progress::held("Paused", "the update is paused"),
        (true, false, 0) => Progress::held(SELECTOR, "rollingUpdate.selector keeps Pods on old revisions"),
        (true, false, _) => Progress::held(PARTITION, "the partition keeps nodes on old revisions, or without a Pod"),
    }
}
