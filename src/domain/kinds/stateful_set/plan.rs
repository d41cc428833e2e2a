//! What a pass over a StatefulSet looks at, and what a plan is made of.
//!
//! A plan is complete: whoever carries it out decides nothing but whether a budget and the API server allow a step.
//! Every step rests on objects as they are, so a crash between any two of them is harmless, and each Pod is touched at
//! most once.
//!
//! What can never be in a plan: a forced deletion, and a Pod for an ordinal whose Pod is still there in whatever state.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::{
    pod::{Pod, Slot},
    room::{Charge, Room},
    spec::Spec,
};
use crate::{
    api::apps::lifecycle::Lifecycle,
    domain::{
        budgets::unavailable::Operation,
        pod::inplace::Allowed,
        workload::{
            revisions::KnownRevision,
            steps::{PodAction, Wait},
        },
    },
    k8s::{
        claim::SizedClaim,
        time::{Now, sooner},
    },
};

/// What a pass looks at.
#[derive(Clone)]
pub struct Observed<'a> {
    /// The set.
    pub spec: &'a Spec,
    /// Its Pods, sorted by ordinal; those that end and have ended too.
    pub pods: &'a [Arc<Pod>],
    /// Claims of its Pods and of those to come, by name.
    pub claims: &'a BTreeMap<String, Arc<SizedClaim>>,
    /// Storage classes, and whether they let volumes grow, read only while claims are to grow. Err: for how long they could
    /// not be read.
    pub classes: Result<&'a BTreeMap<String, bool>, Duration>,
    /// Name of the revision to get to.
    pub update_revision: &'a str,
    /// The revisions of the set. Read only while Pods are updated in place.
    pub revisions: &'a [KnownRevision],
    /// Which changes may be made in place. None: that, or the revisions, cannot be read now, and nothing is compared.
    pub allowed: Option<Allowed>,
    /// For how long claims have been asked to grow, or have grown, by name.
    pub waited: &'a BTreeMap<String, Duration>,
    /// Gate PreparingUpdateAsUpdate.
    pub announced_is_updated: bool,
    /// Now.
    pub now: Now,
}

/// A Pod to make, after those of its claims that are not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Creation {
    /// Its ordinal.
    pub ordinal: i32,
    /// On the update revision, else on the current one.
    pub on_update: bool,
    /// Places of the claim templates whose claims are missing.
    pub claims: Vec<usize>,
}

/// One thing to do with what is there. Pods and claims are named.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make claims that a Pod waits for.
    CreateClaims {
        /// The Pod's ordinal.
        ordinal: i32,
        /// Places of their templates.
        claims: Vec<usize>,
    },
    /// Change the owners of a claim.
    SetClaimOwners {
        /// The claim.
        claim: String,
        /// All of its owners.
        owners: Vec<OwnerReference>,
    },
    /// Let claims ask for what their templates ask for.
    GrowClaims {
        /// The Pod that uses them.
        pod: String,
        /// The claims, and the places of their templates.
        claims: Vec<(String, usize)>,
    },
    /// Write labels of a Pod's identity that are not right.
    MendLabels {
        /// The Pod.
        pod: String,
        /// The labels.
        labels: Vec<(&'static str, String)>,
    },
    /// Change a Pod.
    Change {
        /// The Pod.
        pod: String,
        /// How.
        change: PodAction,
    },
    /// Delete a Pod.
    Delete {
        /// The Pod.
        pod: String,
    },
}

impl Action {
    /// What budgets are asked before. None: the Pod stays in service.
    pub fn takes_out(&self, hooks: &Lifecycle) -> Option<Operation> {
        match self {
            Self::Delete { .. } => Some(Operation::Delete),
            Self::Change { change, .. } => change.takes_out(hooks),
            Self::CreateClaims { .. }
            | Self::SetClaimOwners { .. }
            | Self::GrowClaims { .. }
            | Self::MendLabels { .. } => None,
        }
    }
}

/// Something that takes a Pod out of service within the limits of an update.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// What to do.
    pub action: Action,
    /// The room that it takes.
    pub charge: Charge,
    /// In strict order nobody behind it leaves service before it. Pods that somebody has marked have no order.
    pub has_turn: bool,
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Each of them whatever becomes of the others, in this order.
    pub actions: Vec<Action>,
    /// Pods to make, each of them whatever becomes of the others.
    pub creations: Vec<Creation>,
    /// As many as find room, the first ones first.
    pub candidates: Vec<Candidate>,
    /// The room for them.
    pub room: Room,
    /// The first thing that is waited for.
    pub wait: Option<Wait>,
    /// The first thing that no waiting cures.
    pub impossible: Option<Wait>,
    /// The first Pod that is not made because `scaleStrategy.maxUnavailable` is reached, in a sentence.
    pub limited: Option<String>,
    /// When something that is waited for is due, if nothing happens before.
    pub look: Option<Duration>,
    /// Pods are held on their revision by the partition, by a pause or by OnDelete.
    pub is_held: bool,
}

impl Plan {
    /// Notes what is waited for; the first one is reported.
    pub(super) fn wait(&mut self, reason: &'static str, message: impl FnOnce() -> String) {
        Wait::note(&mut self.wait, reason, message);
    }

    pub(super) fn impossible(&mut self, reason: &'static str, message: String) {
        self.impossible.get_or_insert(Wait { reason, message });
    }

    /// How many things are done without asking for room.
    pub(super) fn without_room(&self) -> usize {
        self.actions.len() + self.creations.len()
    }

    /// Whether nothing is to be done.
    pub fn is_idle(&self) -> bool {
        self.without_room() == 0 && self.candidates.is_empty()
    }

    pub(super) fn look_after(&mut self, after: Duration) {
        self.look = sooner(self.look, Some(after));
    }

    /// Leaves what has to be done whatever the revisions are, while they cannot be found out.
    pub fn without_revisions(&mut self) {
        self.candidates.clear();
        self.creations.clear();
        self.actions.retain(|action| match action {
            Action::Delete { .. }
            | Action::CreateClaims { .. }
            | Action::SetClaimOwners { .. }
            | Action::GrowClaims { .. }
            | Action::MendLabels { .. } => true,
            Action::Change { change, .. } => *change == PodAction::AnnounceDeletion,
        });
    }

    /// The next candidates that find room, at most so many of them.
    pub fn next_wave(&mut self, most: usize) -> Vec<Candidate> {
        let mut wave = Vec::new();
        let mut left = Vec::new();
        self.room.begin_wave();
        for candidate in std::mem::take(&mut self.candidates) {
            let is_asked = wave.len() < most;
            if is_asked && self.room.enter(candidate.charge) {
                wave.push(candidate);
                continue;
            }
            if is_asked && candidate.has_turn {
                self.room.await_turn(candidate.charge);
            }
            left.push(candidate);
        }
        self.candidates = left;
        wave
    }
}

/// The wanted ordinals with their Pods.
pub(super) fn slots<'a>(observed: &Observed<'a>) -> Vec<Slot<'a>> {
    let mut pods = observed.pods.iter().map(Arc::as_ref).peekable();
    let slot = |(rank, ordinal): (usize, i32)| {
        while pods.next_if(|pod| pod.ordinal < ordinal).is_some() {}
        Slot { ordinal, rank, pod: pods.next_if(|pod| pod.ordinal == ordinal) }
    };
    observed.spec.ordinals.iter().enumerate().map(slot).collect()
}

/// Names of the claims that a pass looks at: those of the Pods that are wanted, and of the surplus ones. One name is made
/// at a time: there can be as many as [`MOST_CLAIMS`](super::spec::MOST_CLAIMS), few of them in use.
pub fn claim_names<'a>(spec: &'a Spec, pods: &'a [Arc<Pod>]) -> impl Iterator<Item = String> + 'a {
    let surplus = pods.iter().map(|pod| pod.ordinal).filter(move |ordinal| !spec.ordinals.contains(*ordinal));
    let names = move |ordinal| spec.claims.iter().map(move |template| template.claim_name(&spec.name, ordinal));
    spec.ordinals.iter().chain(surplus).flat_map(names)
}
