//! Where a Pod stands in a round.

use super::{PodFacts, REFUSALS, RestartSpec};
use crate::{
    api::wr::WorkloadRestartStatus,
    domain::node::recreate::{manager, message::RequestReason},
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
pub(super) fn stage(facts: &PodFacts<'_>, spec: &RestartSpec, status: &WorkloadRestartStatus) -> PodStage {
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
            (false, _) if RequestReason::of(request) == RequestReason::PodGone => PodStage::Terminating,
            (false, why) => PodStage::Failed(why),
            (true, _) if facts.ready_for.is_some_and(|ready| ready >= spec.min_ready) => PodStage::Restarted,
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
    let wanted = wanted_containers(facts, spec);
    let is_started = |name: &&str| pod.container_status(name).is_some_and(|status| !status.container_id.is_empty());
    let can_be_restarted = !wanted.is_empty() && !pod.node_name.is_empty() && wanted.iter().all(is_started);
    if is_new || !can_be_restarted { PodStage::Skipped } else { PodStage::Outdated }
}

/// The containers of a Pod that may be restarted for the target: by another name that they can be given, and their own.
pub(super) fn containers<'p>(facts: &PodFacts<'p>) -> Vec<(&'p str, &'p str)> {
    let pod = facts.pod;
    match facts.sidecars {
        Some(sidecars) => {
            let there = sidecars.iter().filter(|sidecar| pod.container(&sidecar.container).is_some());
            there.map(|sidecar| (sidecar.name.as_str(), sidecar.container.as_str())).collect()
        }
        None => {
            let all = pod.spec.containers.iter().chain(pod.spec.sidecars.iter());
            all.map(|container| (container.name.as_str(), container.name.as_str())).collect()
        }
    }
}

/// The container of a Pod that somebody means by a name.
pub(super) fn container_called<'p>(facts: &PodFacts<'p>, name: &str) -> Option<&'p str> {
    containers(facts).into_iter().find(|(other, own)| name == *other || name == *own).map(|(_, own)| own)
}

/// The containers of a Pod that are to be restarted.
pub(super) fn wanted_containers<'p>(facts: &PodFacts<'p>, spec: &RestartSpec) -> Vec<&'p str> {
    if !spec.containers.is_empty() {
        let mut wanted: Vec<&str> = Vec::new();
        for name in spec.containers.iter().filter_map(|name| container_called(facts, name)) {
            if !wanted.contains(&name) {
                wanted.push(name);
            }
        }
        return wanted;
    }
    match facts.sidecars {
        Some(_) => containers(facts).into_iter().map(|(_, own)| own).collect(),
        None => facts.pod.spec.containers.iter().map(|c| c.name.as_str()).collect(),
    }
}
