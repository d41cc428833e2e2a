//! One pass over a CloneSet: what is looked at, and how it is counted.
//!
//! First the number of Pods is brought in order ([`scale`](super::scale)); only a pass in which nothing was done there looks
//! at updates ([`update`](super::update)). Every step rests on Pods as they are, so a crash between any two of them is harmless.
//!
//! What may be done is listed in order, with the [`Room`](super::room::Room) that there is: a Pod that is refused (by a budget, a hook, the
//! API server) leaves its room to the next one and ends nothing. What is down comes first.

use std::sync::Arc;

use super::{
    diff::{Counted, Side, Wanted},
    spec::{Invalid, Spec},
};
use crate::{
    domain::pod::{
        inplace::UpdateSpec,
        lifecycle::{Hooked, State},
        order::{Candidate, Constraint},
    },
    k8s::revision,
};

/// An active Pod of the CloneSet.
#[derive(Clone, Debug, Default)]
pub struct Pod {
    /// Name, labels, and what orders look at.
    pub facts: Candidate,
    /// Label `controller-revision-hash`.
    pub revision: String,
    /// The state of its lifecycle.
    pub state: State,
    /// Its finalizers.
    pub finalizers: Vec<String>,
    /// The label that it is to be deleted, or its name in `podsToDelete`.
    pub is_specified: bool,
    /// A note of ours that we marked it to be deleted.
    pub own_mark: Option<OwnMark>,
    /// Ready, whatever the state of its lifecycle.
    pub is_ready: bool,
    /// It has been ready for any time at all, and is in service.
    pub is_ready_now: bool,
    /// A change is pending until its grace is over.
    pub is_in_grace: bool,
    /// An update in place has begun and is not done.
    pub is_updating: bool,
    /// What that update has still to write. Few Pods have it.
    pub pending: Option<Box<UpdateSpec>>,
}

/// We marked a Pod to be deleted, so that another one on a certain revision takes its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnMark {
    /// The revision that was wanted then.
    pub revision: Box<str>,
    /// The label is there, with the value that we write.
    pub has_label: bool,
}

impl Hooked for Pod {
    fn label(&self, key: &str) -> Option<&str> {
        self.facts.labels.get(key)
    }
    fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == name)
    }
}

/// Feature gates that change the rules.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gates {
    /// CloneSetPartitionRollback.
    pub partition_rollback: bool,
    /// PreparingUpdateAsUpdate.
    pub preparing_update_as_update: bool,
}

/// What a pass looks at.
#[derive(Clone)]
pub struct ObservedCloneSet<'a> {
    /// The spec.
    pub spec: &'a Spec,
    /// Active Pods that belong to it.
    pub pods: &'a [Arc<Pod>],
    /// Name of the revision to get to.
    pub update_revision: &'a str,
    /// Name of the revision to come from.
    pub current_revision: &'a str,
    /// Whether Pods that wait for their deletion do not count as replicas.
    pub excludes_preparing_delete: bool,
    /// The template's topology spread constraints, with the values of their keys on the nodes.
    pub constraints: &'a [Constraint<'a>],
    /// Feature gates.
    pub gates: Gates,
}

impl<'a> ObservedCloneSet<'a> {
    pub(super) fn pods(&self) -> impl Iterator<Item = &'a Pod> + use<'a> {
        self.pods.iter().map(Arc::as_ref)
    }

    pub(super) fn wanted(&self) -> Result<Wanted, Invalid> {
        self.spec.wanted(self.gates.partition_rollback, self.excludes_preparing_delete)
    }
}

pub(super) fn is_on(pod: &Pod, revision: &str) -> bool {
    revision::is_same(&pod.revision, revision)
}

/// How Pods are counted.
#[derive(Clone, Copy, Default)]
pub(super) struct Counting {
    pub(super) preparing_update_is_new: bool,
    /// Pods whose deletion was announced, and not asked for, as if they were in service.
    pub(super) announced_as_available: bool,
}

impl Counting {
    pub(super) fn is_new(self, pod: &Pod, observed: &ObservedCloneSet<'_>) -> bool {
        is_on(pod, observed.update_revision) || (self.preparing_update_is_new && pod.state == State::PreparingUpdate)
    }

    pub(super) fn to_scale(observed: &ObservedCloneSet<'_>) -> Self {
        Self { preparing_update_is_new: observed.gates.preparing_update_as_update, announced_as_available: false }
    }
}

pub(super) fn count(observed: &ObservedCloneSet<'_>, how: Counting) -> Counted {
    let mut counted = Counted {
        one_revision: revision::is_same(observed.current_revision, observed.update_revision),
        ..Counted::default()
    };
    for pod in observed.pods() {
        let side: &mut Side = if how.is_new(pod, observed) { &mut counted.new } else { &mut counted.old };
        side.total += 1;
        if pod.state == State::PreparingDelete {
            let is_kept = how.announced_as_available && !pod.is_specified;
            side.preparing_delete += i32::from(!is_kept);
            side.serving += i32::from(!is_kept && pod.is_ready);
        } else if pod.is_specified {
            side.to_delete += 1;
        } else if !pod.facts.available {
            side.unavailable += 1;
            side.serving += i32::from(pod.state == State::PreparingUpdate && pod.is_ready);
        }
    }
    counted
}

#[cfg(test)]
mod tests;
