//! What a pass over a DaemonSet looks at, and what a plan is made of.
//!
//! A plan is complete: whoever carries it out decides nothing but whether a budget and the API server allow a step.
//! Every step rests on objects as they are, so a crash between any two of them is harmless, and each Pod is touched at
//! most once.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;

use super::{
    pod::{Node, Pod},
    room::{Charge, Room},
    spec::Spec,
};
use crate::{
    api::apps::lifecycle::Lifecycle,
    domain::{
        budgets::unavailable::Operation,
        node::backoff::Failures,
        pod::{
            inplace::Allowed,
            lifecycle::{LifecycleRules as _, State},
        },
        workload::{
            revisions::KnownRevision,
            steps::{PodAction, Wait},
            turns::Turns,
        },
    },
    k8s::time::{Now, sooner},
};

/// A Pod is not suspected if its node becomes NotReady later than this, plus minReadySeconds and the grace period of updates in
/// place, after the Pod was created or its update began.
const SUSPECT_SECONDS: i64 = 600;

/// What a pass looks at.
#[derive(Clone)]
pub struct Observed<'a> {
    /// The set.
    pub spec: &'a Spec,
    /// All nodes, by name.
    pub nodes: &'a [Node],
    /// The set's Pods of which the node is known; those that end and have ended too. In the order of [`super::pod::sort`].
    pub pods: &'a [Arc<Pod>],
    /// The hash of the revision to get to.
    pub update: &'a str,
    /// See [`not_begun_at`].
    pub update_since: Option<Timestamp>,
    /// The revisions of the set. Read only while Pods are to be updated.
    pub revisions: &'a [KnownRevision],
    /// Which changes may be made in place. None: that, or the revisions, cannot be read now, and nothing is updated on a guess.
    pub allowed: Option<Allowed>,
    /// Failed Pods of the nodes.
    pub failures: &'a Failures,
    /// What earlier passes have found out about nodes that are not Ready.
    pub outages: &'a BTreeMap<String, Outage>,
    /// What was refused.
    pub turns: &'a Turns<Turn>,
    /// Now.
    pub now: Now,
}

/// When the newest revision was created: the current update did not begin earlier. After a rollback the target's own creation
/// time would be too early. None: that is not known.
pub fn not_begun_at(revisions: &[KnownRevision]) -> Option<Timestamp> {
    revisions.iter().filter_map(|known| known.created).max()
}

/// What is known of a node that is not Ready, for as long as that lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Since when, in seconds.
    pub since: i64,
    /// Before or after its Pod was replaced or updated.
    pub came: Came,
}

/// When a node stopped being Ready. The first two can be told only when that is seen first: later its Pod has gone, or
/// was made or updated since. What a manager that starts anew cannot tell counts as the second one: else the node would give its
/// place away to the next template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// Before its Pod was replaced or updated. A Pod that is made or updated there says so.
    Before,
    /// While that was done, or so soon after that it may be the cause.
    Meanwhile,
    /// Later. Under the next template it will have been before.
    Later,
}

/// One thing to do. Pods are named.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make a Pod for a node.
    Create {
        /// The node.
        node: String,
        /// Since when the node was not Ready before its old Pod went, in seconds: the new Pod says so.
        not_ready_since: Option<i64>,
    },
    /// Give a Pod the hash of the revision that it is on by its template.
    Relabel {
        /// The Pod.
        pod: String,
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
        /// The node, if the Pod has failed on it: that is remembered.
        failed_on: Option<String>,
    },
}

/// What `burstReplicas` limits, and what is therefore done in turns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// To make a Pod for this node.
    Node(String),
    /// To delete this Pod.
    Pod(String),
}

impl Action {
    /// The Pod that is there already.
    pub fn pod(&self) -> Option<&str> {
        match self {
            Self::Create { .. } => None,
            Self::Relabel { pod } | Self::Change { pod, .. } | Self::Delete { pod, .. } => Some(pod),
        }
    }

    /// What it is called among [`Turns`]; None: it is done whatever else is.
    pub fn turn(&self) -> Option<Turn> {
        match self {
            Self::Create { node, .. } => Some(Turn::Node(node.clone())),
            Self::Delete { pod, .. } => Some(Turn::Pod(pod.clone())),
            Self::Relabel { .. } | Self::Change { .. } => None,
        }
    }

    /// What budgets are asked before. None: the Pod stays in service, or there is none yet.
    pub fn takes_out(&self, hooks: &Lifecycle) -> Option<Operation> {
        match self {
            Self::Delete { .. } => Some(Operation::Delete),
            Self::Change { change, .. } => change.takes_out(hooks),
            Self::Create { .. } | Self::Relabel { .. } => None,
        }
    }
}

/// Something that takes a Pod out of service, or makes a second one, within the limits of an update.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// What to do.
    pub action: Action,
    /// The room that it takes.
    pub charge: Charge,
    /// The zone of the node.
    pub zone: String,
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Each of them whatever becomes of the others, in this order.
    pub actions: Vec<Action>,
    /// As many as find room, the first ones first.
    pub candidates: Vec<Candidate>,
    /// The room for them.
    pub room: Room,
    /// Nodes that are not Ready, as far as that matters, for the next passes.
    pub outages: BTreeMap<String, Outage>,
    /// How many candidates at most in one pass.
    pub burst: usize,
    /// The first thing that is waited for.
    pub wait: Option<Wait>,
    /// The first thing that no waiting cures.
    pub impossible: Option<Wait>,
    /// When something that is waited for is due, if nothing happens before.
    pub look: Option<Duration>,
    /// Pods are held on their revision by partition, selector, a pause or OnDelete.
    pub is_held: bool,
    /// More is to be done than one pass does.
    pub is_cut: bool,
    /// Why Pods that were to be updated in place are replaced: the first reason, with the Pod.
    pub not_in_place: Option<String>,
}

/// What the status says of a plan, without the steps, of which there may be thousands.
#[derive(Clone, Debug, PartialEq)]
pub struct Outline {
    /// The first thing that is waited for.
    pub wait: Option<Wait>,
    /// The first thing that no waiting cures.
    pub impossible: Option<Wait>,
    /// Nothing is to be done.
    pub is_idle: bool,
    /// Pods are held on their revision.
    pub is_held: bool,
}

impl Plan {
    /// Whether nothing is to be done in this pass.
    pub fn is_idle(&self) -> bool {
        self.actions.is_empty() && self.candidates.is_empty()
    }

    /// As it was made, before anything of it is done.
    pub fn outline(&self) -> Outline {
        Outline {
            wait: self.wait.clone(),
            impossible: self.impossible.clone(),
            is_idle: self.is_idle() && !self.is_cut,
            is_held: self.is_held,
        }
    }

    /// Notes what is waited for; the first one is reported.
    pub(super) fn wait(&mut self, reason: &'static str, message: impl FnOnce() -> String) {
        Wait::note(&mut self.wait, reason, message);
    }

    pub(super) fn look_after(&mut self, after: Duration) {
        self.look = sooner(self.look, Some(after));
    }

    /// The next candidates that find room, at most so many of them, and at most [`Self::burst`] of all.
    pub fn next_wave(&mut self, most: usize) -> Vec<Candidate> {
        let mut wave = Vec::new();
        let mut left = Vec::new();
        for candidate in std::mem::take(&mut self.candidates) {
            let may = wave.len() < most && wave.len() < self.burst;
            match may && self.room.enter(&candidate.zone, candidate.charge) {
                true => wave.push(candidate),
                false => left.push(candidate),
            }
        }
        self.burst -= wave.len();
        self.candidates = left;
        wave
    }
}

/// A node with the set's Pods on it.
pub(super) struct Slot<'a> {
    pub(super) node: &'a Node,
    /// In the order in which one of several is kept, if none of them is of more use.
    pub(super) pods: Vec<&'a Pod>,
    /// The one that is kept of those that are new and stay.
    pub(super) new: Option<&'a Pod>,
    /// The one that is kept of those that are to be replaced.
    pub(super) old: Option<&'a Pod>,
}

impl<'a> Slot<'a> {
    pub(super) fn live(&self) -> impl Iterator<Item = &'a Pod> {
        self.pods.iter().copied().filter(|pod| pod.is_live())
    }

    /// The Pod that is kept of all that stay.
    pub(super) fn kept(&self) -> Option<&'a Pod> {
        most_useful(self.live())
    }

    /// Whether there are several that stay.
    pub(super) fn is_pair(&self) -> bool {
        self.live().nth(1).is_some()
    }

    /// Whether its Pod has been replaced or updated, or that was announced to it, and the next one is not available.
    pub(super) fn is_begun(&self) -> bool {
        match (self.new, self.old) {
            (Some(new), _) => !new.is_available(),
            (None, Some(old)) => old.is_announced(),
            (None, None) => true,
        }
    }

    /// Whether the node was not Ready before its Pod was replaced, and still is not: what is missing there was not lost by
    /// an update. Since when, in seconds.
    pub(super) fn lost_before(&self, observed: &Observed<'_>) -> Option<i64> {
        self.outage(observed).filter(|outage| outage.came == Came::Before).map(|outage| outage.since)
    }

    /// What is known of the node, if it is not Ready. It makes a difference to limits of ours alone.
    pub(super) fn outage(&self, observed: &Observed<'_>) -> Option<Outage> {
        let at = self.node.not_ready_since.filter(|_| observed.spec.has_own_limits())?;
        let since = at.as_second();
        let known = observed.outages.get(&self.node.name).filter(|known| known.since == since).map(|known| known.came);
        let came = match known {
            Some(came @ (Came::Before | Came::Meanwhile)) => came,
            _ if self.may_have_broken_it(observed.spec, since, known.is_some()) => Came::Meanwhile,
            _ if self.came_first(observed, at, known.is_some()) => Came::Before,
            None if self.next().is_none_or(|pod| !pod.is_unchanged_since(since)) => Came::Meanwhile,
            _ => Came::Later,
        };
        Some(Outage { since, came })
    }

    /// The new Pod, or the old one while there is none.
    fn next(&self) -> Option<&'a Pod> {
        self.new.or(self.old)
    }

    /// Whether the label of a Pod says that it was made or updated in the outage that lasts since then, in seconds. `is_known`: an
    /// earlier pass has seen that outage. If the manager has just seen it begin, the label is from an earlier one, maybe by
    /// another clock, and says nothing.
    fn says_so(&self, pod: &Pod, since: i64, is_known: bool) -> bool {
        (is_known || !self.node.saw_outage_begin) && pod.was_made_in_outage(since)
    }

    /// Whether the node was lost before its Pod was replaced or updated, as far as can be told by what is there now.
    /// `is_known`: an earlier pass has seen it lost after that, for what may be another template.
    ///
    /// Clocks differ: that the node seems to have been lost before its Pod was made or updated says nothing by itself.
    fn came_first(&self, observed: &Observed<'_>, since: Timestamp, is_known: bool) -> bool {
        let seconds = since.as_second();
        let is_older = observed.update_since.is_some_and(|update| since < update);
        let Some(pod) = self.next() else {
            // It joins, and has not had one: it was not seen to be Ready before, nor is there a template since that may have
            // deleted the Pod of an earlier one.
            let is_younger = observed.update_since.is_none_or(|update| since > update);
            let is_first = self.node.is_joining && !self.node.saw_outage_begin;
            let joins = is_first && is_younger && self.pods.is_empty();
            // Or it was lost before there was a template that could have been the cause.
            return joins || observed.spec.created.is_some_and(|made| since < made) || is_known && is_older;
        };
        if self.says_so(pod, seconds, is_known) {
            return true;
        }
        match pod.is_old() {
            false => is_older && pod.was_there(seconds),
            true => {
                // One to which that was announced has been taken already.
                let is_taken = pod.is_announced() || pod.is_specified && pod.is_new;
                (is_known || pod.is_unchanged_since(seconds)) && (is_older || !is_taken)
            }
        }
    }

    /// Whether the node stopped being Ready soon after its Pod was made or updated, on whatever revision: probably
    /// because of it, so that the next template too has to count it. The outage may have begun before the time that is known:
    /// a manager that starts anew sees only when the node's condition changed last, from False to Unknown or back. So a Pod
    /// that has not worked for longer than that is held against the node too.
    fn may_have_broken_it(&self, spec: &Spec, not_ready_since: i64, is_known: bool) -> bool {
        let suspect = SUSPECT_SECONDS + i64::from(spec.min_ready_seconds) + spec.rolling.grace_seconds;
        let earliest = |pod: &Pod| match pod.unready_since {
            Some(unready) if !self.node.saw_outage_begin => unready.as_second().min(not_ready_since),
            _ => not_ready_since,
        };
        let is_suspect =
            |pod: &Pod| pod.begun().is_some_and(|begun| begun <= not_ready_since && earliest(pod) - begun <= suspect);
        self.pods.iter().any(|pod| !self.says_so(pod, not_ready_since, is_known) && is_suspect(pod))
    }
}

/// The nodes with their Pods, by name.
pub(super) fn slots<'a>(observed: &Observed<'a>) -> Vec<Slot<'a>> {
    let mut by_node: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in observed.pods {
        by_node.entry(&pod.node).or_default().push(pod);
    }
    let slot = |node: &'a Node| {
        let pods = by_node.remove(node.name.as_str()).unwrap_or_default();
        let kept =
            |is_old: bool| most_useful(pods.iter().copied().filter(|pod| pod.is_live() && pod.is_old() == is_old));
        Slot { node, new: kept(false), old: kept(true), pods }
    };
    observed.nodes.iter().map(slot).collect()
}

/// One that serves, if there is one; else one whose deletion or update is not announced. Of equals the first one.
fn most_useful<'a>(pods: impl Iterator<Item = &'a Pod>) -> Option<&'a Pod> {
    pods.min_by_key(|pod| (!pod.is_available(), !pod.is_serving(), pod.is_announced()))
}

/// Deletes a Pod, or announces that; None while its hook holds it after that.
pub(super) fn leave(spec: &Spec, pod: &Pod, failed_on: Option<String>) -> Option<Action> {
    let name = pod.name.clone();
    match (spec.lifecycle.holds_deletion(pod), &pod.state) {
        (false, _) => Some(Action::Delete { pod: name, failed_on }),
        (true, State::PreparingDelete) => None,
        (true, _) => Some(Action::Change { pod: name, change: PodAction::AnnounceDeletion }),
    }
}
