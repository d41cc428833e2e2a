//! Brings the number of Pods of a CloneSet in order: how many to make, and which to delete.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    diff::{self, Wanted},
    plan::{Counting, ObservedCloneSet, Pod, count, is_on},
    room::{Charge, Room},
    spec::{Invalid, Spec},
};
use crate::{
    api::apps::{lifecycle::Lifecycle, strategies::UpdateType},
    domain::pod::{
        lifecycle::{LifecycleRules as _, State},
        order::{self, Candidate},
    },
    k8s::revision,
};

/// Something about one Pod, which is named, that is not wanted any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// A deletion that was announced is not needed any more.
    Deletion {
        /// The Pod's name.
        pod: String,
        /// The lifecycle state that it goes back to.
        state: State,
    },
    /// A mark of ours is for a revision that is not wanted any more.
    Mark {
        /// The Pod's name.
        pod: String,
        /// Whether the label is ours too, not only the note.
        label: bool,
    },
}

impl Cancel {
    /// The name of the Pod.
    pub fn pod(&self) -> &str {
        match self {
            Self::Deletion { pod, .. } | Self::Mark { pod, .. } => pod,
        }
    }
}

/// Pods to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create {
    /// On the current revision.
    pub current: usize,
    /// On the update revision.
    pub update: usize,
}

/// A Pod to delete, or to announce that it will be.
#[derive(Clone, Copy, Debug)]
pub struct Deletion<'a> {
    /// It.
    pub pod: &'a Pod,
    /// Its hook holds it: it is announced.
    pub held: bool,
}

/// What to do about the number of Pods.
#[derive(Clone, Debug, Default)]
pub struct ScalePlan<'a> {
    /// What is cancelled before anything else is done.
    pub cancels: Vec<Cancel>,
    /// Pods to make, before any deletion.
    pub create: Option<Create>,
    /// Pods to delete when nothing else could be done, the cheapest first, as many as find room.
    pub deletions: Vec<Deletion<'a>>,
    /// The room for them.
    pub room: Room,
    /// How many Pods could not be created for `scaleStrategy.maxUnavailable`.
    pub limited: i32,
}

/// Brings the number of Pods in order.
///
/// # Errors
/// A number in the spec that cannot be read: nothing is created or deleted on a guess.
pub fn scale<'a>(observed: &ObservedCloneSet<'a>) -> Result<ScalePlan<'a>, Invalid> {
    let mut plan = ScalePlan::default();
    let lifecycle = &observed.spec.lifecycle;
    let wanted = observed.wanted()?;

    plan.cancels = stale_marks(observed);
    if plan.cancels.is_empty() {
        plan.cancels = marks_beyond_partition(observed, lifecycle, wanted.partition);
    }
    if plan.cancels.is_empty() && !lifecycle.deletion_is_final() {
        plan.cancels = needless_deletions(observed, &wanted);
    }
    if !plan.cancels.is_empty() {
        return Ok(plan);
    }

    let diff = diff::diff(&wanted, &count(observed, Counting::to_scale(observed)));
    plan.limited = diff.scale_up - diff.scale_up_limit;
    if diff.scale_up_limit > 0 {
        let current = diff.scale_up_old.min(diff.scale_up_limit);
        let size = |n: i32| usize::try_from(n).unwrap_or(0);
        plan.create = Some(Create { current: size(current), update: size(diff.scale_up_limit - current) });
    }

    // Announced before: as soon as the hook lets go.
    let announced =
        observed.pods().filter(|pod| pod.state == State::PreparingDelete && !lifecycle.holds_deletion(*pod));
    plan.deletions.extend(announced.map(|pod| Deletion { pod, held: false }));
    let specified = observed.pods().filter(|pod| pod.is_specified && pod.state != State::PreparingDelete);
    let chosen = specified.chain(match diff.scale_down {
        0 => Vec::new(),
        number => {
            let stays = |pod: &Pod| !pod.is_specified && pod.state != State::PreparingDelete;
            victims(observed, stays, (number, diff.scale_down_old))
        }
    });
    plan.deletions.extend(chosen.map(|pod| Deletion { pod, held: lifecycle.holds_deletion(pod) }));
    if !plan.deletions.is_empty() {
        plan.deletions.sort_by_key(|deletion| Charge::of(deletion.pod));
        plan.room = Room::new(observed.pods(), diff.delete_max_unavailable, None);
    }
    Ok(plan)
}

/// The Pods as they would be if these had been cancelled. The API server has refused it, maybe for good: nothing else waits
/// for that, and no Pod is deleted that is to stay.
pub fn as_if_cancelled(spec: &Spec, pods: &[Arc<Pod>], refused: &[Cancel]) -> Vec<Arc<Pod>> {
    let is_listed = |pod: &Pod| spec.pods_to_delete.contains(&pod.facts.name);
    let refused: BTreeMap<&str, &Cancel> = refused.iter().map(|cancel| (cancel.pod(), cancel)).collect();
    let done = |pod: &Arc<Pod>| match refused.get(pod.facts.name.as_str()) {
        Some(Cancel::Deletion { .. }) => Arc::new(Pod { state: State::Normal, ..Pod::clone(pod) }),
        Some(Cancel::Mark { label, .. }) => {
            let is_specified = if *label { is_listed(pod) } else { pod.is_specified };
            Arc::new(Pod { own_mark: None, is_specified, ..Pod::clone(pod) })
        }
        None => pod.clone(),
    };
    pods.iter().map(done).collect()
}

/// Marks of ours for revisions that are not wanted any more, and notes of marks that somebody has taken away. What users
/// and OpenKruise have marked has no note of ours and stays marked.
fn stale_marks(observed: &ObservedCloneSet<'_>) -> Vec<Cancel> {
    let replaces = observed.spec.update_type != UpdateType::OnDelete;
    let is_wanted = |to: &str| {
        replaces
            && (revision::is_same(to, observed.update_revision)
                || (observed.gates.partition_rollback && revision::is_same(to, observed.current_revision)))
    };
    let stale = observed.pods().filter_map(|pod| {
        let mark = pod.own_mark.as_ref()?;
        (!mark.has_label || !is_wanted(&mark.revision))
            .then(|| Cancel::Mark { pod: pod.facts.name.clone(), label: mark.has_label })
    });
    stale.collect()
}

/// Marks of ours on more old Pods than the partition leaves to be updated, because it was raised: others on the same revision
/// would take their place. Those come first whose deletion was not announced.
fn marks_beyond_partition(observed: &ObservedCloneSet<'_>, lifecycle: &Lifecycle, partition: i32) -> Vec<Cancel> {
    if !observed.pods().any(|pod| pod.own_mark.is_some()) {
        return Vec::new();
    }
    let is_final = lifecycle.deletion_is_final();
    let is_lost = |pod: &Pod| is_final && pod.state == State::PreparingDelete;
    let is_old = |pod: &&Pod| !is_on(pod, observed.update_revision) && !is_lost(pod);
    // One whose deletion was announced, and not asked for, may go back into service yet.
    let staying = observed.pods().filter(is_old).filter(|pod| !pod.is_specified).count();
    let too_many = usize::try_from(partition).unwrap_or(0).saturating_sub(staying);
    let mut marked: Vec<&Pod> = observed.pods().filter(is_old).filter(|pod| pod.own_mark.is_some()).collect();
    marked.sort_by_key(|pod| pod.state == State::PreparingDelete);
    marked.into_iter().take(too_many).map(|pod| Cancel::Mark { pod: pod.facts.name.clone(), label: true }).collect()
}

/// Deletions that were announced and are not needed any more, because the CloneSet was scaled up again: those that would
/// be chosen last if all of them were in service.
fn needless_deletions(observed: &ObservedCloneSet<'_>, wanted: &Wanted) -> Vec<Cancel> {
    let is_announced = |pod: &Pod| pod.state == State::PreparingDelete && !pod.is_specified;
    if !observed.pods().any(is_announced) {
        return Vec::new();
    }
    // With them in service: when they were announced there was no room for them, so nothing goes back and forth.
    let counted = count(observed, Counting { announced_as_available: true, ..Counting::to_scale(observed) });
    let diff = diff::diff(wanted, &counted);
    let go = victims(observed, is_announced, (diff.scale_down, diff.scale_down_old));
    let go: BTreeSet<&str> = go.iter().map(|pod| pod.facts.name.as_str()).collect();
    let stays = observed.pods().filter(|pod| is_announced(pod) && !go.contains(pod.facts.name.as_str()));
    // It goes back to where it was: into its update, if one is under way.
    let state = |pod: &Pod| if pod.is_updating { State::Updating } else { State::PreparingNormal };
    stays.map(|pod| Cancel::Deletion { pod: pod.facts.name.clone(), state: state(pod) }).collect()
}

/// Pods to delete for a scale-down, among those that `may_go`: old ones first, as many as are too many there.
fn victims<'a>(
    observed: &ObservedCloneSet<'a>,
    may_go: impl Fn(&Pod) -> bool,
    (number, old): (i32, i32),
) -> Vec<&'a Pod> {
    let size = |n: i32| usize::try_from(n).unwrap_or(0);
    let counting = Counting::to_scale(observed);
    let (new, old_ones): (Vec<&Pod>, Vec<&Pod>) =
        observed.pods().filter(|pod| may_go(pod)).partition(|pod| counting.is_new(pod, observed));
    // Where one side has too few, the other makes up for it.
    let from_old = size(old.min(number)).max(size(number).saturating_sub(new.len())).min(old_ones.len());
    let from_new = size(number) - from_old.min(size(number));
    let mut chosen = Vec::new();
    for (group, number) in [(old_ones, from_old), (new, from_new)] {
        if group.len() <= number {
            chosen.extend(group);
            continue;
        }
        let mut facts: Vec<Candidate> = group.iter().map(|pod| pod.facts.clone()).collect();
        order::sort_for_deletion(&mut facts, observed.constraints);
        let names: BTreeSet<String> = facts.into_iter().take(number).map(|pod| pod.name).collect();
        chosen.extend(group.into_iter().filter(|pod| names.contains(&pod.facts.name)));
    }
    chosen
}
