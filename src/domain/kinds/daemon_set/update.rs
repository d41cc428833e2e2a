//! Which Pods are taken out of service to be updated or replaced, and how each of them gets there.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::{
    keep::held,
    plan::{Action, Candidate, Observed, Plan, Slot, leave},
    pod::Pod,
    room::{Charge, Room},
    spec::{Numbers, Spec},
};
use crate::{
    api::labels,
    domain::{
        pod::{
            inplace::{self, NotInPlace, UpdateSpec},
            lifecycle::{BeforeUpdate, LifecycleRules as _, State},
        },
        workload::steps::{self, PodAction, Wait},
    },
    k8s::{pod_template::write_as_typed, revision},
};

/// How a Pod gets to the update revision.
enum Way {
    InPlace(UpdateSpec),
    Replace,
    /// By another one beside it.
    Surge,
}

/// Adds to the plan what makes Pods unavailable, in the order in which it may be done.
pub(super) fn update(observed: &Observed<'_>, slots: &[Slot<'_>], numbers: Numbers, plan: &mut Plan) {
    let spec = observed.spec;
    let has_surge = numbers.max_surge > 0;
    let limit = if has_surge { numbers.max_surge } else { numbers.max_unavailable };
    plan.room = Room::new(limit, spec.is_strict, has_surge, spec.per_topology.as_ref().map(|(_, limit)| *limit));
    // Nodes that leave the selection use up nothing.
    let eligible: Vec<&Slot<'_>> = slots.iter().rev().filter(|slot| slot.node.counts()).collect();
    let mut job = Rollout { observed, has_surge, ways: BTreeMap::new() };
    eligible.iter().for_each(|slot| job.count(slot, plan));
    let due: Vec<&Slot<'_>> = if spec.is_rolling { in_range(observed, &eligible, numbers) } else { Vec::new() };
    let named: BTreeSet<&str> = due.iter().map(|slot| slot.node.name.as_str()).collect();
    let acts = spec.is_rolling && !spec.rolling.paused;
    for slot in slots.iter().filter(|slot| slot.node.fit.should_continue && !slot.is_pair()) {
        let Some(pod) = slot.live().next() else { continue };
        let is_wanted = !pod.is_new && named.contains(slot.node.name.as_str());
        plan.is_held |= !pod.is_new && slot.node.counts() && !(is_wanted && acts);
        if !pod.is_specified {
            job.take_back(pod, is_wanted, plan);
        }
    }
    // Beside an old Pod, a new one whose deletion was announced while it was old: after a rollback, it is the one to keep.
    for new in eligible.iter().filter(|slot| has_surge && slot.old.is_some()).filter_map(|slot| slot.new) {
        if new.state == State::PreparingDelete {
            job.take_back(new, false, plan);
        }
    }
    // Where no other Pod would be made the old one stays. So does one that works on, for all we know, on a node that
    // nobody hears of: it would go when the node is back, together with those of all nodes that are back with it.
    let can_act =
        |slot: &Slot<'_>| slot.node.fit.should_run && !(slot.node.is_silent && slot.lost_before(observed).is_some());
    // Marks of a user are followed at any time.
    for slot in eligible.iter().filter(|slot| can_act(slot) && slot.old.is_some_and(|old| old.is_specified)) {
        job.replace(slot, plan);
    }
    // While paused nothing is begun. What a hook has let go of comes to its end, or its Pod may be out of service for as long.
    let may_act = |old: &Pod| !old.is_specified && (acts || is_let_go(spec, old));
    let due = due.into_iter().filter(|slot| can_act(slot) && slot.old.is_some_and(may_act));
    due.for_each(|slot| job.consider(slot, plan));
    // What is down waits for nobody; a node that was lost before anything was done waits for all others.
    plan.candidates.sort_by_key(|candidate| candidate.charge);
    if plan.candidates.first().is_some_and(|first| first.charge != Charge::LostBefore) {
        plan.candidates.retain(|candidate| candidate.charge != Charge::LostBefore);
    }
    for slot in &eligible {
        slot.live().filter(|pod| !pod.is_available()).for_each(|pod| wait_for(pod, plan));
    }
    for slot in eligible.iter().filter(|slot| !can_act(slot)) {
        let is_due = |old: &&Pod| old.is_specified || acts && named.contains(slot.node.name.as_str());
        if let Some(old) = slot.old.filter(is_due) {
            plan.wait("NodeNotReady", || format!("Pod {} is updated when its node {} is Ready", old.name, old.node));
        }
    }
}

/// The nodes whose Pods are on the update revision or get there: those that are first, then the others from the last name
/// down, without as many as the partition keeps.
fn in_range<'s, 'a>(observed: &Observed<'_>, eligible: &[&'s Slot<'a>], numbers: Numbers) -> Vec<&'s Slot<'a>> {
    let has_selector = observed.spec.rolling.selector.is_some();
    let rank = |slot: &Slot<'_>| match (slot.new, slot.old) {
        (Some(_), _) => Some(0),
        (None, None) => Some(1),
        (None, Some(old)) if old.is_announced() || (old.is_new && old.is_specified) => Some(1),
        (None, Some(_)) if has_selector && !slot.node.is_selected => None,
        (None, Some(_)) => Some(2),
    };
    let mut ranked: Vec<(i32, &Slot<'_>)> = eligible.iter().filter_map(|slot| Some((rank(slot)?, *slot))).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    let kept = usize::try_from(numbers.partition).unwrap_or(0);
    ranked.into_iter().map(|(_, slot)| slot).take(eligible.len().saturating_sub(kept)).collect()
}

/// Whether something was announced to a Pod, and its hook does not hold it.
fn is_let_go(spec: &Spec, pod: &Pod) -> bool {
    match pod.state {
        State::PreparingDelete => !spec.lifecycle.holds_deletion(pod),
        State::PreparingUpdate => !spec.lifecycle.holds_update(pod),
        _ => false,
    }
}

/// Whether the new Pod that was made beside an old one has ended.
fn has_ended_beside(slot: &Slot<'_>) -> bool {
    let has_ended = |pod: &&Pod| pod.is_new && pod.is_finished && !pod.is_terminating;
    slot.new.is_none() && slot.old.is_some() && slot.pods.iter().any(has_ended)
}

struct Rollout<'a, 'o> {
    observed: &'a Observed<'o>,
    has_surge: bool,
    /// By the hash that a Pod comes from, and since when its node was not Ready before, which the Pod is to say.
    ways: BTreeMap<(String, Option<i64>), Result<UpdateSpec, NotInPlace>>,
}

impl Rollout<'_, '_> {
    /// Counts what is out of service on a node.
    fn count(&self, slot: &Slot<'_>, plan: &mut Plan) {
        let zone = &slot.node.zone;
        // It keeps its place until it is gone, or each node in turn would get one that ends.
        let has_ended = self.has_surge && has_ended_beside(slot);
        if slot.lost_before(self.observed).is_some() {
            if slot.is_begun() || has_ended {
                plan.room.count_lost_before(zone);
            }
            return;
        }
        match (slot.new, slot.old) {
            _ if has_ended => plan.room.count_in_flight(zone),
            // Two Pods side by side: the new one is on its way.
            (Some(new), Some(_)) if self.has_surge && !new.is_available() => plan.room.count_in_flight(zone),
            (Some(_), Some(_)) if self.has_surge => {}
            _ if self.has_surge && !self.observed.spec.has_own_limits() => {}
            (None, None) => plan.room.count_in_flight(zone),
            _ => match slot.kept() {
                Some(pod) if pod.is_available() => {}
                Some(pod) if pod.is_new || pod.is_announced() => plan.room.count_in_flight(zone),
                Some(_) => plan.room.count_down(zone),
                None => {}
            },
        }
    }

    /// What it costs to take a Pod out of service.
    fn charge(&self, slot: &Slot<'_>, pod: &Pod) -> Charge {
        let is_lost = !slot.is_begun() && slot.lost_before(self.observed).is_some();
        // A mark of a user does not wait for all others.
        if is_lost && !pod.is_specified {
            Charge::LostBefore
        } else if is_lost || pod.is_available() {
            Charge::Available
        } else if !self.has_surge && (pod.is_new || pod.is_announced()) {
            Charge::Nothing
        } else {
            Charge::Down
        }
    }

    /// What was announced to a Pod and is not wanted any more.
    fn take_back(&self, pod: &Pod, is_wanted: bool, plan: &mut Plan) {
        let spec = self.observed.spec;
        match pod.state {
            // While paused nothing is begun, and what is held stays as it is.
            State::PreparingDelete | State::PreparingUpdate if is_wanted => {}
            State::PreparingDelete if !spec.lifecycle.deletion_is_final() => {
                plan.actions.push(Action::Change { pod: pod.name.clone(), change: PodAction::CancelDeletion });
            }
            State::PreparingDelete => match leave(spec, pod, None) {
                Some(action) => plan.actions.push(action),
                None => plan.wait("PodHeld", || held(pod, "preDelete")),
            },
            State::PreparingUpdate if !pod.is_new => {
                plan.actions.push(Action::Change { pod: pod.name.clone(), change: PodAction::CancelUpdate });
            }
            _ => {}
        }
    }

    /// What to do about the old Pod of a node.
    fn consider(&mut self, slot: &Slot<'_>, plan: &mut Plan) {
        let Some(old) = slot.old else { return };
        match self.way(slot, old, plan) {
            Way::Replace | Way::Surge => self.replace(slot, plan),
            Way::InPlace(spec) => self.in_place(slot, old, spec, plan),
        }
    }

    /// Another Pod takes the place of the old one, beside it if there is a surge.
    fn replace(&self, slot: &Slot<'_>, plan: &mut Plan) {
        let Some(old) = slot.old else { return };
        let charge = self.charge(slot, old);
        let zone = slot.node.zone.clone();
        // Of several Pods all but one go first.
        if slot.is_pair() && !self.has_surge {
            return;
        }
        if self.has_surge {
            let is_failing = slot.pods.iter().any(|pod| pod.is_finished && !pod.is_terminating);
            // Pods side by side are looked after elsewhere, and so is what has failed: a node never has three. One whose
            // deletion was announced and that has lost the Pod that was to follow gets another one beside it.
            if slot.new.is_none() && !slot.is_pair() && !is_failing {
                let not_ready_since = slot.lost_before(self.observed);
                let action = Action::Create { node: slot.node.name.clone(), not_ready_since };
                plan.candidates.push(Candidate { action, charge, zone });
            }
            return;
        }
        match leave(self.observed.spec, old, None) {
            Some(action) => plan.candidates.push(Candidate { action, charge, zone }),
            None => plan.wait("PodHeld", || held(old, "preDelete")),
        }
    }

    fn in_place(&self, slot: &Slot<'_>, pod: &Pod, spec: UpdateSpec, plan: &mut Plan) {
        if slot.is_pair() {
            return;
        }
        let change = match self.observed.spec.lifecycle.before_update(pod, &pod.state) {
            BeforeUpdate::Nothing => PodAction::UpdateInPlace { spec },
            BeforeUpdate::Announce { restore } => PodAction::AnnounceUpdate { restore },
            BeforeUpdate::Held => return plan.wait("PodHeld", || held(pod, "inPlaceUpdate")),
            BeforeUpdate::Refresh => return,
            // It was to be replaced, and need not be.
            BeforeUpdate::Deletion => return self.take_back(pod, false, plan),
            BeforeUpdate::UnknownState(state) => {
                return Wait::note(&mut plan.impossible, "FailedUpdatePod", || {
                    format!("Pod {} is in lifecycle state {state:?}, which this release does not know", pod.name)
                });
            }
        };
        let charge = self.charge(slot, pod);
        let action = Action::Change { pod: pod.name.clone(), change };
        plan.candidates.push(Candidate { action, charge, zone: slot.node.zone.clone() });
    }

    /// How a Pod gets to the update revision.
    fn way(&mut self, slot: &Slot<'_>, pod: &Pod, plan: &mut Plan) -> Way {
        let rolling = &self.observed.spec.rolling;
        if self.has_surge {
            return Way::Surge;
        }
        if !rolling.in_place {
            return Way::Replace;
        }
        if !pod.has_gate {
            let why = "it was made without the readiness gate InPlaceUpdateReady";
            plan.not_in_place.get_or_insert_with(|| format!("Pod {}: {why}", pod.name));
            return Way::Replace;
        }
        let observed = self.observed;
        let lost_before = slot.lost_before(observed);
        let way = || between(observed, &pod.hash, lost_before);
        let spec = self.ways.entry((pod.hash.clone(), lost_before)).or_insert_with(way).clone();
        match spec.and_then(|spec| inplace::with_pending(spec, pod.pending.as_ref(), rolling.grace_seconds)) {
            Ok(spec) => Way::InPlace(spec),
            Err(why) => {
                plan.not_in_place.get_or_insert_with(|| format!("Pod {}: {why}", pod.name));
                Way::Replace
            }
        }
    }
}

/// What has to change between two revisions, or why that needs another Pod. `lost_before`: since when the node was not Ready
/// before, in seconds. A manager that starts anew learns from the Pod that this update is not the cause.
fn between(observed: &Observed<'_>, from: &str, lost_before: Option<i64>) -> Result<UpdateSpec, NotInPlace> {
    let known = observed.revisions.iter().find(|known| revision::is_same(&known.name, from));
    let old = known.and_then(|known| revision::template(&known.data));
    let mut old = old.ok_or_else(|| NotInPlace::UnknownRevision(from.to_owned()))?;
    // One of them may have been stored while admission was away, which writes such members: they say nothing.
    let mut new = observed.spec.template.clone();
    [&mut old, &mut new].into_iter().for_each(write_as_typed);
    if let Some(since) = lost_before {
        let label = json!({"metadata": {"labels": {labels::NODE_NOT_READY_SINCE: since.to_string()}}});
        json_patch::merge(&mut new, &label);
    }
    inplace::spec_between(&old, &new, observed.update, observed.allowed.unwrap_or_default())
}

fn wait_for(pod: &Pod, plan: &mut Plan) {
    if !pod.state.is_in_service() {
        let why = pod.unreadable.as_deref().map(steps::unreadable).unwrap_or_default();
        plan.wait("PodNotInService", || {
            format!("Pod {} on node {} is in lifecycle state {}{why}", pod.name, pod.node, pod.state.as_str())
        });
    } else if !pod.is_serving() {
        let why = pod.unreadable.as_deref().map(steps::unreadable).unwrap_or_default();
        plan.wait("PodNotReady", || format!("Pod {} on node {} is not Ready{why}", pod.name, pod.node));
    }
    // What remains is a matter of time, and is reported with it.
}
