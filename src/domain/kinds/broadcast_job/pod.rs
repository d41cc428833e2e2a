//! A Pod of a BroadcastJob and the node that it is meant for, as the rules see them.

use jiff::Timestamp;

use super::spec::BroadcastSpec;
use crate::{
    api::labels,
    domain::pod::{placement::Fit, sidecar_terminator},
    k8s::{
        node::{NodeView, Taint},
        pod::PodView,
    },
};

/// The taint of a cordoned node. The control plane puts it on a little later than `spec.unschedulable` is set.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// A node, as a job sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BroadcastNode {
    /// Its name.
    pub name: String,
    /// Whether a Pod of the job is to run there, and whether one that runs there stays.
    pub fit: Fit,
}

impl BroadcastNode {
    /// Of a node in the store.
    pub fn of(view: &NodeView, spec: &BroadcastSpec) -> Self {
        let name = view.name().to_owned();
        let fit = match view.unschedulable && !view.taints.iter().any(|taint| taint.key == *UNSCHEDULABLE) {
            false => spec.placement.fit(&name, &view.labels, &view.taints),
            true => {
                let cordon = Taint { key: UNSCHEDULABLE.into(), value: "".into(), effect: "NoSchedule".into() };
                let taints: Vec<Taint> = view.taints.iter().cloned().chain([cordon]).collect();
                spec.placement.fit(&name, &view.labels, &taints)
            }
        };
        // A Pod that runs has its room.
        let has_room = || spec.requests.lacking(&view.allocatable).is_none();
        let should_run = fit.should_run && !view.is_deleting() && has_room();
        Self { name, fit: Fit { should_run, ..fit } }
    }
}

/// How far a Pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodStage {
    /// It has succeeded.
    Succeeded,
    /// It has failed, or was stopped and will have.
    Failed,
    /// Its containers were restarted too often: it has failed, and is to be stopped.
    Exceeded,
    /// It has not ended.
    Active,
    /// It is being deleted and has not ended.
    Leaving,
}

/// A Pod that belongs to the job.
#[derive(Clone, Debug, PartialEq)]
pub struct BroadcastPod {
    /// Its name.
    pub name: String,
    /// The node that it runs on or is meant for.
    pub node: String,
    /// Whether it has been bound to that node.
    pub is_bound: bool,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// How far it is.
    pub stage: PodStage,
}

impl BroadcastPod {
    /// From what the store keeps.
    pub fn of(view: &PodView, spec: &BroadcastSpec) -> Self {
        Self {
            name: view.name().to_owned(),
            node: view.node_meant().to_owned(),
            is_bound: !view.node_name.is_empty(),
            created: view.created,
            stage: PodStage::of(view, spec),
        }
    }

    /// In the order in which one of several for a node is kept: ended ones, bound ones, the oldest.
    pub fn rank(&self) -> impl Ord + use<'_> {
        (self.stage, !self.is_bound, self.created, &self.name)
    }
}

impl PodStage {
    fn of(view: &PodView, spec: &BroadcastSpec) -> Self {
        // Stopping a sidecar is no failure: the Pod is about to end.
        let of_sidecars =
            || if spec.ends_sidecars { sidecar_terminator::sidecar_restarts_once_mains_ended(view) } else { 0 };
        let is_exceeded =
            || spec.restart_limit.is_some_and(|limit| view.restarts().saturating_sub(of_sidecars()) > limit);
        match &*view.phase {
            // An ended Pod that is being deleted has ended all the same, until it is gone.
            "Succeeded" => Self::Succeeded,
            "Failed" => Self::Failed,
            _ if view.is_deleting() => Self::Leaving,
            // By label: a later change of the limit does not bring it back.
            _ if view.labels.get(labels::STOPPED_FOR).is_some() => Self::Failed,
            _ if is_exceeded() => Self::Exceeded,
            _ => Self::Active,
        }
    }

    /// Whether its node is done.
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Exceeded)
    }
}
