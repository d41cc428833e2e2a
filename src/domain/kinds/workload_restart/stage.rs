//! Where a Pod stands in a round.

use super::{PodFacts, REFUSALS, min_ready};
use crate::{
    api::wr::{WorkloadRestartSpec, WorkloadRestartStatus},
    domain::node::recreate::{manager, message},
    k8s::pod::PodView,
};

/// How far a Pod is in the round.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PodStage {
    /// Its restart is under way.
    Restarting,
    /// It is going away: neither counted nor touched.
    Terminating,
    /// Restarted, and not ready (long enough) yet.
    NotReady,
    /// Restarted and ready.
    Restarted,
    /// It could not be restarted.
    Failed(String),
    /// It needs no restart, or there is nothing to restart yet.
    Skipped,
    /// It has to be restarted.
    Outdated,
}

impl PodStage {
    pub(super) fn is_under_way(&self) -> bool {
        matches!(self, Self::Restarting | Self::NotReady)
    }
}

/// Where a Pod stands.
pub(super) fn stage(facts: &PodFacts<'_>, spec: &WorkloadRestartSpec, status: &WorkloadRestartStatus) -> PodStage {
    let pod = facts.pod;
    if pod.is_deleting() || pod.is_finished() {
        return PodStage::Terminating;
    }
    if let Some(request) = facts.request {
        let Some(result) =
            request.status.as_ref().filter(|_| request.is_completed() && !manager::has_finalizer(request))
        else {
            // With the finalizer the Pod may still be held NotReady.
            return PodStage::Restarting;
        };
        return match manager::outcome(result) {
            // The request knew earlier than our view of the Pod.
            (false, _) if message::is_pod_gone(request) => PodStage::Terminating,
            (false, why) => PodStage::Failed(why),
            (true, _) if facts.ready_for.is_some_and(|ready| ready >= min_ready(spec)) => PodStage::Restarted,
            (true, _) => PodStage::NotReady,
        };
    }
    if let Some((times, _, why)) = facts.refused
        && times >= REFUSALS
    {
        return PodStage::Failed(why.to_owned());
    }
    let created = pod.created;
    // Both times have whole seconds: one of the same second may be older.
    let is_new = status.pods_created_before.is_some_and(|before| created.is_some_and(|created| created > before));
    let wanted = wanted_containers(pod, spec);
    let is_started = |name: &&str| pod.container_status(name).is_some_and(|status| !status.container_id.is_empty());
    let can_be_restarted = !wanted.is_empty() && !pod.node_name.is_empty() && wanted.iter().all(is_started);
    if is_new || !can_be_restarted { PodStage::Skipped } else { PodStage::Outdated }
}

/// The containers of a Pod that are to be restarted.
pub(super) fn wanted_containers<'p>(pod: &'p PodView, spec: &'p WorkloadRestartSpec) -> Vec<&'p str> {
    if spec.containers.is_empty() {
        return pod.spec.containers.iter().map(|c| c.name.as_str()).collect();
    }
    spec.containers.iter().map(String::as_str).filter(|name| pod.container(name).is_some()).collect()
}
