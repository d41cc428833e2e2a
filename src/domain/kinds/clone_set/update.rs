//! Which Pods of a CloneSet are updated next. What is done with each of them is [`one_update`](super::one_update).

use std::{collections::BTreeSet, sync::Arc};

use super::{
    diff,
    plan::{Counting, ObservedCloneSet, Pod, count, is_on},
    room::{Charge, Room},
    spec::{Invalid, Spec},
};
use crate::{
    api::apps::strategies::UpdateType,
    domain::pod::lifecycle::{LifecycleRules as _, State},
};

/// What to do about updates.
#[derive(Clone, Debug, Default)]
pub struct UpdatePlan<'a> {
    /// Pods that wait for their hook before an update that is not wanted any more: it is cancelled.
    pub cancels: Vec<&'a Pod>,
    /// Pods to update, the first ones first, as many as find room.
    pub candidates: Vec<&'a Pod>,
    /// The room for them.
    pub room: Room,
    /// They go back to the current revision.
    pub back: bool,
    /// They are updated in place if the change can be made so, else replaced.
    pub in_place: bool,
    /// How many of the candidates have begun.
    begun: usize,
}

impl<'a> UpdatePlan<'a> {
    /// The next Pods that find room, at most so many.
    pub fn next_wave(&mut self, most: usize) -> Vec<&'a Pod> {
        let left = self.candidates.iter().skip(self.begun).take(most);
        let wave: Vec<&Pod> = left.take_while(|pod| self.room.enter(Charge::of(pod))).copied().collect();
        self.begun += wave.len();
        wave
    }
}

/// What to do about updates. Looked at only when nothing was done about the number of Pods and every Pod's own state has
/// been refreshed.
///
/// # Errors
/// A number in the spec that cannot be read: updates are held, instead of updating everything.
pub fn update<'a>(observed: &ObservedCloneSet<'a>) -> Result<UpdatePlan<'a>, Invalid> {
    let spec = observed.spec;
    let mut plan = UpdatePlan::default();
    if spec.is_paused {
        return Ok(plan);
    }
    if spec.update_type == UpdateType::OnDelete {
        plan.cancels = needless_updates(observed, &[]);
        return Ok(plan);
    }
    let wanted = observed.wanted()?;
    let counted = count(observed, Counting::default());
    let diff = diff::diff(&wanted, &counted);
    plan.back = diff.update < 0;
    plan.in_place = spec.update_type.is_in_place();
    let is_candidate = |pod: &&Pod| plan.back == is_on(pod, observed.update_revision);
    let marked =
        observed.pods().filter(is_candidate).filter(|pod| pod.is_specified && pod.state != State::PreparingDelete);
    let marked = i32::try_from(marked.count()).unwrap_or(i32::MAX);
    plan.candidates = observed
        .pods()
        .filter(is_candidate)
        .filter(|pod| pod.state != State::PreparingDelete && !pod.is_specified)
        // A change that waits for its grace is written before another one begins. Later batches are not waited for: they come
        // along with the next change.
        .filter(|pod| pod.state == State::Updated || !pod.is_in_grace)
        .collect();
    sort_for_update(&mut plan.candidates, observed.pods, spec)?;
    let size = |n: i32| usize::try_from(n).unwrap_or(0);
    // What the partition leaves to be updated, even if there are too many Pods to begin with it now.
    let beyond = if plan.back { 0 } else { size(counted.old.active() - wanted.partition - marked) };
    plan.cancels = needless_updates(observed, &plan.candidates[..beyond.min(plan.candidates.len())]);
    // A surge takes the place of some updates. Of the Pods that the partition leaves, those that are down take part first: if the
    // order chose Pods that serve, and there were no room for them, nothing would ever happen.
    let others = size(diff.update_others);
    plan.candidates.truncate(beyond.max(others));
    what_is_down_first(&mut plan.candidates, observed);
    plan.candidates.truncate(others);

    // Unavailable Pods that are on the target already count too: a bad image cannot spread by going on to Pods that are
    // broken anyway.
    let target = if plan.back { observed.current_revision } else { observed.update_revision };
    let on_target = observed.pods().filter(|pod| !pod.facts.available && is_on(pod, target)).count();
    let on_target = i32::try_from(on_target).unwrap_or(i32::MAX);
    plan.room = Room::new(observed.pods(), diff.update_max_unavailable, Some(on_target));
    Ok(plan)
}

/// The order in which the chosen Pods begin: those that come to an end, those that are down, those that wait for a hook,
/// which may last, and then those that serve.
fn what_is_down_first(candidates: &mut [&Pod], observed: &ObservedCloneSet<'_>) {
    let rank = |pod: &&Pod| match Charge::of(pod) {
        Charge::Announced if observed.spec.lifecycle.holds_update(*pod) => 2,
        Charge::Announced => 0,
        Charge::Down => 1,
        Charge::NotYetAvailable => 3,
        Charge::Available => 4,
    };
    candidates.sort_by_key(rank);
}

/// Pods that wait for their hook before an update, out of service, and that a partition or another type of update keeps as
/// they are by now. Those that are on the update revision a refresh lets go.
fn needless_updates<'a>(observed: &ObservedCloneSet<'a>, to_be_updated: &[&Pod]) -> Vec<&'a Pod> {
    let waits = |pod: &&Pod| pod.state == State::PreparingUpdate && !pod.is_specified;
    let to_be_updated: BTreeSet<&str> = to_be_updated.iter().map(|pod| pod.facts.name.as_str()).collect();
    let is_kept = |pod: &&Pod| !to_be_updated.contains(pod.facts.name.as_str());
    observed.pods().filter(|pod| waits(pod) && !is_on(pod, observed.update_revision)).filter(is_kept).collect()
}

fn sort_for_update(candidates: &mut Vec<&Pod>, all: &[Arc<Pod>], spec: &Spec) -> Result<(), Invalid> {
    let all = all.iter().map(|pod| &pod.facts.labels);
    spec.order.as_ref().map_err(Invalid::clone)?.sort(candidates, |pod| &pod.facts, all);
    // Pods that wait for their hook come to an end before others begin.
    candidates.sort_by_key(|pod| pod.state != State::PreparingUpdate);
    Ok(())
}
