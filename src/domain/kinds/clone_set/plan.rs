//! One pass over a CloneSet: what to do now, from what was observed.
//!
//! First the number of Pods is brought in order ([`scale`]); only a pass in which nothing was done there looks at updates
//! ([`update`]). Every step rests on Pods as they are, so a crash between any two of them is harmless.
//!
//! What may be done is listed in order, with the [`Room`] that there is: a Pod that is refused (by a budget, a hook, the
//! API server) leaves its room to the next one and ends nothing. What is down comes first.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    diff::{self, Counted, Side, Wanted},
    room::{Charge, Room},
};
use crate::{
    api::apps::{
        clone_set::{CloneSet, UpdateStrategy},
        lifecycle::Lifecycle,
    },
    domain::{
        pod::{
            lifecycle::{Hooked, State},
            order::{self, Candidate, Constraint},
        },
        workload::rollout::{self, Invalid},
    },
    k8s::{
        int_or_percent::{IntOrPercent, Round},
        pod::Labels,
        revision,
        selector::Selector,
    },
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
pub struct Observed<'a> {
    /// The CloneSet.
    pub clone_set: &'a CloneSet,
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

impl<'a> Observed<'a> {
    fn pods(&self) -> impl Iterator<Item = &'a Pod> + use<'a> {
        self.pods.iter().map(Arc::as_ref)
    }
}

/// One thing to do about the number of Pods. Pods are named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make Pods.
    Create {
        /// On the current revision.
        current: usize,
        /// On the update revision.
        update: usize,
    },
    /// A deletion that was announced is not needed any more.
    KeepAfterAll(String),
    /// A mark of ours is for a revision that is not wanted any more.
    TakeBackMark {
        /// The Pod's name.
        pod: String,
        /// Whether the label is ours too, not only the note.
        label: bool,
    },
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
    /// In order, and before any deletion.
    pub actions: Vec<Action>,
    /// Pods to delete when none of the actions could be done, the cheapest first, as many as find room.
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
pub fn scale<'a>(observed: &Observed<'a>) -> Result<ScalePlan<'a>, Invalid> {
    let mut plan = ScalePlan::default();
    let none = Lifecycle::default();
    let lifecycle = observed.clone_set.spec.lifecycle.as_ref().unwrap_or(&none);
    let wanted = wanted(observed)?;

    plan.actions = marks_taken_back(observed);
    if plan.actions.is_empty() && !lifecycle.deletion_is_final() {
        plan.actions = kept_after_all(observed, &wanted);
    }
    if !plan.actions.is_empty() {
        return Ok(plan);
    }

    let diff = diff::diff(&wanted, &count(observed, Counting::to_scale(observed)));
    plan.limited = diff.scale_up - diff.scale_up_limit;
    if diff.scale_up_limit > 0 {
        let current = diff.scale_up_old.min(diff.scale_up_limit);
        let size = |n: i32| usize::try_from(n).unwrap_or(0);
        plan.actions.push(Action::Create { current: size(current), update: size(diff.scale_up_limit - current) });
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

/// The Pods as they would be if these actions had been done. The API server has refused them, maybe for good: nothing
/// else waits for that, and no Pod is deleted that is to stay.
pub fn as_if_done(clone_set: &CloneSet, pods: &[Arc<Pod>], refused: &[Action]) -> Vec<Arc<Pod>> {
    let is_listed = |pod: &Pod| clone_set.spec.scale_strategy.pods_to_delete.contains(&pod.facts.name);
    let done = |pod: &Arc<Pod>| {
        let action = refused.iter().find(|action| match action {
            Action::KeepAfterAll(name) | Action::TakeBackMark { pod: name, .. } => *name == pod.facts.name,
            Action::Create { .. } => false,
        });
        match action {
            Some(Action::KeepAfterAll(_)) => Arc::new(Pod { state: State::Normal, ..Pod::clone(pod) }),
            Some(Action::TakeBackMark { label, .. }) => {
                let is_specified = if *label { is_listed(pod) } else { pod.is_specified };
                Arc::new(Pod { own_mark: None, is_specified, ..Pod::clone(pod) })
            }
            Some(Action::Create { .. }) | None => pod.clone(),
        }
    };
    pods.iter().map(done).collect()
}

/// Marks of ours for revisions that are not wanted any more, and notes of marks that somebody has taken away. What users
/// and OpenKruise have marked has no note of ours and stays marked.
fn marks_taken_back(observed: &Observed<'_>) -> Vec<Action> {
    let replaces = observed.clone_set.spec.update_strategy.type_ != "OnDelete";
    let is_wanted = |to: &str| {
        replaces
            && (revision::is_same(to, observed.update_revision)
                || (observed.gates.partition_rollback && revision::is_same(to, observed.current_revision)))
    };
    let stale = observed.pods().filter_map(|pod| {
        let mark = pod.own_mark.as_ref()?;
        (!mark.has_label || !is_wanted(&mark.revision))
            .then(|| Action::TakeBackMark { pod: pod.facts.name.clone(), label: mark.has_label })
    });
    stale.collect()
}

/// Deletions that were announced and are not needed any more, because the CloneSet was scaled up again: those that would
/// be chosen last if all of them were in service.
fn kept_after_all(observed: &Observed<'_>, wanted: &Wanted) -> Vec<Action> {
    let is_announced = |pod: &Pod| pod.state == State::PreparingDelete && !pod.is_specified;
    if !observed.pods().any(is_announced) {
        return Vec::new();
    }
    // With them in service: when they were announced there was no room for them, so nothing goes back and forth.
    let counted = count(observed, Counting { announced_as_available: true, ..Counting::to_scale(observed) });
    let diff = diff::diff(wanted, &counted);
    let go = victims(observed, is_announced, (diff.scale_down, diff.scale_down_old));
    let goes = |pod: &Pod| go.iter().any(|other| other.facts.name == pod.facts.name);
    let kept = observed.pods().filter(|pod| is_announced(pod) && !goes(pod));
    kept.map(|pod| Action::KeepAfterAll(pod.facts.name.clone())).collect()
}

/// Pods to delete for a scale-down, among those that `may_go`: old ones first, as many as are too many there.
fn victims<'a>(observed: &Observed<'a>, may_go: impl Fn(&Pod) -> bool, (number, old): (i32, i32)) -> Vec<&'a Pod> {
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

/// What to do about updates.
#[derive(Clone, Debug, Default)]
pub struct UpdatePlan<'a> {
    /// Pods that wait for their hook before an update that is not wanted any more.
    pub let_go: Vec<&'a Pod>,
    /// Pods to update, the first ones first, as many as find room.
    pub candidates: Vec<&'a Pod>,
    /// The room for them.
    pub room: Room,
    /// They go back to the current revision.
    pub back: bool,
    /// They are updated in place if the change can be made so, else replaced.
    pub in_place: bool,
}

/// What to do about updates. Looked at only when nothing was done about the number of Pods and every Pod's own state has
/// been refreshed.
///
/// # Errors
/// A number in the spec that cannot be read: updates are held, instead of updating everything.
pub fn update<'a>(observed: &Observed<'a>) -> Result<UpdatePlan<'a>, Invalid> {
    let strategy = &observed.clone_set.spec.update_strategy;
    let mut plan = UpdatePlan::default();
    if strategy.paused {
        return Ok(plan);
    }
    if strategy.type_ == "OnDelete" {
        plan.let_go = not_updated_after_all(observed, &[]);
        return Ok(plan);
    }
    let wanted = wanted(observed)?;
    let counted = count(observed, Counting::default());
    let diff = diff::diff(&wanted, &counted);
    plan.back = diff.update < 0;
    plan.in_place = matches!(strategy.type_.as_str(), "InPlaceIfPossible" | "InPlaceOnly");
    let is_candidate = |pod: &&Pod| plan.back == is_on(pod, observed.update_revision);
    // Those that are to be deleted get their successors on the right revision without an update.
    let marked =
        observed.pods().filter(is_candidate).filter(|pod| pod.is_specified && pod.state != State::PreparingDelete);
    let marked = i32::try_from(marked.count()).unwrap_or(i32::MAX);
    plan.candidates = observed
        .pods()
        .filter(is_candidate)
        .filter(|pod| pod.state != State::PreparingDelete && !pod.is_specified)
        .filter(|pod| pod.state == State::Updated || !pod.is_in_grace)
        .collect();
    sort_for_update(&mut plan.candidates, observed.pods, strategy)?;
    let size = |n: i32| usize::try_from(n).unwrap_or(0);
    // What the partition leaves to be updated, even if there are too many Pods to begin with it now.
    let beyond = if plan.back { 0 } else { size(counted.old.active() - wanted.partition - marked) };
    plan.let_go = not_updated_after_all(observed, &plan.candidates[..beyond.min(plan.candidates.len())]);
    plan.candidates.truncate(size(diff.update.saturating_abs() - marked));
    what_is_down_first(&mut plan.candidates, observed);

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
fn what_is_down_first(candidates: &mut [&Pod], observed: &Observed<'_>) {
    let lifecycle = observed.clone_set.spec.lifecycle.as_ref();
    let rank = |pod: &&Pod| match Charge::of(pod) {
        Charge::Announced if lifecycle.is_some_and(|lifecycle| lifecycle.holds_update(*pod)) => 2,
        Charge::Announced => 0,
        Charge::Down => 1,
        Charge::NotYetAvailable => 3,
        Charge::Available => 4,
    };
    candidates.sort_by_key(rank);
}

/// Pods that wait for their hook before an update, out of service, and that a partition or another type of update keeps as
/// they are by now. Those that are on the update revision a refresh lets go.
fn not_updated_after_all<'a>(observed: &Observed<'a>, to_be_updated: &[&Pod]) -> Vec<&'a Pod> {
    let waits = |pod: &&Pod| pod.state == State::PreparingUpdate && !pod.is_specified;
    let is_kept = |pod: &&Pod| !to_be_updated.iter().any(|other| other.facts.name == pod.facts.name);
    observed.pods().filter(|pod| waits(pod) && !is_on(pod, observed.update_revision)).filter(is_kept).collect()
}

fn sort_for_update(candidates: &mut Vec<&Pod>, all: &[Arc<Pod>], strategy: &UpdateStrategy) -> Result<(), Invalid> {
    let all = all.iter().map(|pod| &pod.facts.labels);
    sort_by_strategy(candidates, |pod| &pod.facts, all, strategy)?;
    // Pods that wait for their hook come to an end before others begin.
    candidates.sort_by_key(|pod| pod.state != State::PreparingUpdate);
    Ok(())
}

/// The order of updates of Pods alone, without what an update that is under way adds to it: what is least useful first,
/// then by the strategy's priorities, then scattered. `all` are the labels of all Pods of the workload.
///
/// # Errors
/// A selector of the strategy that cannot be read.
pub fn sort_by_strategy<'a, T>(
    candidates: &mut Vec<T>,
    facts: impl Fn(&T) -> &Candidate,
    all: impl Iterator<Item = &'a Labels> + Clone,
    strategy: &UpdateStrategy,
) -> Result<(), Invalid> {
    candidates.sort_by(|a, b| order::base(facts(a), facts(b)));
    if let Some(priority) = &strategy.priority_strategy {
        if !priority.order_priority.is_empty() {
            let keys: Vec<String> = priority.order_priority.iter().map(|term| term.ordered_key.clone()).collect();
            candidates.sort_by(|a, b| order::by_order_priority(&keys, &facts(a).labels, &facts(b).labels));
        } else {
            let mut terms = Vec::new();
            for (i, term) in priority.weight_priority.iter().enumerate() {
                let field = format!("spec.updateStrategy.priorityStrategy.weightPriority[{i}].matchSelector");
                let selector =
                    Selector::of(&term.match_selector).map_err(|error| Invalid(format!("{field}: {error}")))?;
                terms.push((i64::from(term.weight), selector));
            }
            let weight = |pod: &T| -> i64 {
                let labels = &facts(pod).labels;
                terms.iter().filter(|(_, selector)| selector.matches(labels)).map(|(weight, _)| weight).sum()
            };
            candidates.sort_by_key(|pod| std::cmp::Reverse(weight(pod)));
        }
    }
    let mut terms: Vec<_> = strategy
        .scatter_strategy
        .iter()
        .map(|term| {
            let fits = move |labels: &Labels| labels.get(&term.key) == Some(&term.value);
            (candidates.iter().filter(|pod| fits(&facts(pod).labels)).count(), fits)
        })
        .filter(|(number, _)| *number > 0)
        .collect();
    terms.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    let total = all.clone().count();
    for (_, fits) in terms {
        let matching = all.clone().filter(|labels| fits(labels)).count();
        let pods = std::mem::take(candidates);
        *candidates = order::scatter(pods, |pod| fits(&facts(pod).labels), matching, total - matching);
    }
    Ok(())
}

fn is_on(pod: &Pod, revision: &str) -> bool {
    revision::is_same(&pod.revision, revision)
}

/// How many Pods stay on old revisions.
///
/// # Errors
/// A partition that cannot be read.
pub fn kept_old(clone_set: &CloneSet) -> Result<i32, Invalid> {
    let partition = &clone_set.spec.update_strategy.partition;
    let partition = rollout::number("updateStrategy.partition", partition.as_ref(), IntOrPercent::Int(0))?;
    Ok(rollout::kept_old(partition, clone_set.spec.replicas.unwrap_or(1).max(0)))
}

fn wanted(observed: &Observed<'_>) -> Result<Wanted, Invalid> {
    let spec = &observed.clone_set.spec;
    let replicas = spec.replicas.unwrap_or(1).max(0);
    let strategy = &spec.update_strategy;
    let max_unavailable = rollout::number(
        "updateStrategy.maxUnavailable",
        strategy.max_unavailable.as_ref(),
        rollout::DEFAULT_MAX_UNAVAILABLE,
    )?;
    let max_surge = rollout::number("updateStrategy.maxSurge", strategy.max_surge.as_ref(), IntOrPercent::Int(0))?;
    let scale = rollout::number(
        "scaleStrategy.maxUnavailable",
        spec.scale_strategy.max_unavailable.as_ref(),
        IntOrPercent::Int(i32::MAX),
    )?;
    let (max_unavailable, max_surge) = rollout::limits(max_unavailable, max_surge, replicas, strategy.paused);
    Ok(Wanted {
        replicas,
        partition: kept_old(observed.clone_set)?,
        max_unavailable,
        max_surge,
        scale_max_unavailable: scale.resolve(replicas, Round::Up),
        rolls_back: observed.gates.partition_rollback,
        excludes_preparing_delete: observed.excludes_preparing_delete,
    })
}

/// How Pods are counted.
#[derive(Clone, Copy, Default)]
struct Counting {
    preparing_update_is_new: bool,
    /// Pods whose deletion was announced, and not asked for, as if they were in service.
    announced_as_available: bool,
}

impl Counting {
    fn is_new(self, pod: &Pod, observed: &Observed<'_>) -> bool {
        is_on(pod, observed.update_revision) || (self.preparing_update_is_new && pod.state == State::PreparingUpdate)
    }

    fn to_scale(observed: &Observed<'_>) -> Self {
        Self { preparing_update_is_new: observed.gates.preparing_update_as_update, announced_as_available: false }
    }
}

fn count(observed: &Observed<'_>, how: Counting) -> Counted {
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
        } else if pod.is_specified {
            side.to_delete += 1;
        } else if !pod.facts.available {
            side.unavailable += 1;
        }
    }
    counted
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::pod::order::Phase;

    const OLD: &str = "web-1";
    const NEW: &str = "web-2";

    fn pod(name: &str, revision: &str) -> Pod {
        Pod {
            facts: Candidate {
                name: name.into(),
                node: "n".into(),
                phase: Phase::Running,
                available: true,
                ready: true,
                ..Candidate::default()
            },
            revision: revision.into(),
            state: State::Normal,
            is_ready_now: true,
            ..Pod::default()
        }
    }
    fn broken(name: &str, revision: &str) -> Pod {
        let mut pod = pod(name, revision);
        pod.facts.available = false;
        pod.facts.ready = false;
        pod.is_ready_now = false;
        pod
    }
    fn labelled(mut pod: Pod, labels: Value) -> Pod {
        pod.facts.labels = serde_json::from_value(labels).unwrap();
        pod
    }
    fn clone_set(spec: Value) -> CloneSet {
        let mut object = json!({"metadata": {"name": "web"}, "spec": {"replicas": 3, "selector": {}, "template": {},
            "updateStrategy": {"type": "InPlaceIfPossible", "maxUnavailable": 1}}});
        json_patch::merge(&mut object["spec"], &spec);
        serde_json::from_value(object).unwrap()
    }
    /// What is planned, in words.
    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Told {
        Act(Action),
        Delete { pod: String, held: bool },
        Update { pod: String, back: bool },
        LetGo(String),
    }
    fn told_scale(observed: &Observed<'_>) -> Result<(Vec<Told>, i32), Invalid> {
        let mut plan = scale(observed)?;
        let mut told: Vec<Told> = plan.actions.into_iter().map(Told::Act).collect();
        for Deletion { pod, held } in plan.deletions {
            if plan.room.enter(Charge::of(pod)) {
                told.push(Told::Delete { pod: pod.facts.name.clone(), held });
            }
        }
        Ok((told, plan.limited))
    }
    fn told_update(observed: &Observed<'_>) -> Result<Vec<Told>, Invalid> {
        let mut plan = update(observed)?;
        let mut told: Vec<Told> = plan.let_go.iter().map(|pod| Told::LetGo(pod.facts.name.clone())).collect();
        for pod in plan.candidates {
            if plan.room.enter(Charge::of(pod)) {
                told.push(Told::Update { pod: pod.facts.name.clone(), back: plan.back });
            }
        }
        Ok(told)
    }
    fn with<T>(clone_set: &CloneSet, pods: &[Pod], rule: impl Fn(&Observed<'_>) -> T) -> T {
        let pods: Vec<Arc<Pod>> = pods.iter().cloned().map(Arc::new).collect();
        rule(&Observed {
            clone_set,
            pods: &pods,
            update_revision: NEW,
            current_revision: OLD,
            excludes_preparing_delete: false,
            constraints: &[],
            gates: Gates::default(),
        })
    }
    fn scaled(spec: Value, pods: &[Pod]) -> Vec<Told> {
        with(&clone_set(spec), pods, told_scale).unwrap().0
    }
    fn updated(spec: Value, pods: &[Pod]) -> Vec<String> {
        let actions = with(&clone_set(spec), pods, told_update).unwrap();
        actions
            .into_iter()
            .map(|action| match action {
                Told::Update { pod, back: false } => pod,
                other => panic!("{other:?}"),
            })
            .collect()
    }
    fn create(current: usize, update: usize) -> Told {
        Told::Act(Action::Create { current, update })
    }
    fn deleted(name: &str) -> Told {
        Told::Delete { pod: name.into(), held: false }
    }
    fn held(name: &str) -> Told {
        Told::Delete { pod: name.into(), held: true }
    }
    fn kept(name: &str) -> Told {
        Told::Act(Action::KeepAfterAll(name.into()))
    }
    fn taken_back(name: &str, label: bool) -> Told {
        Told::Act(Action::TakeBackMark { pod: name.into(), label })
    }
    fn announced(name: &str, revision: &str) -> Pod {
        Pod { state: State::PreparingDelete, ..labelled(broken(name, revision), json!({"hold": "true"})) }
    }

    #[test]
    fn missing_pods_are_created_on_both_sides_of_a_partition() {
        assert_eq!(scaled(json!({}), &[]), [create(0, 3)]);
        let partition = json!({"updateStrategy": {"partition": 2}});
        assert_eq!(scaled(partition, &[]), [create(2, 1)]);
        assert_eq!(scaled(json!({}), &[pod("a", NEW), pod("b", NEW), pod("c", NEW)]), []);
    }

    #[test]
    fn gate_preparing_update_as_update_counts_pods_that_wait_for_their_update_as_new() {
        let set = clone_set(json!({"replicas": 2, "updateStrategy": {"partition": 1}}));
        let waiting = [Pod { state: State::PreparingUpdate, ..pod("a", OLD) }];
        for (on, want) in [(false, (0, 1)), (true, (1, 0))] {
            let gates = Gates { preparing_update_as_update: on, ..Gates::default() };
            let told = with(&set, &waiting, |observed| told_scale(&Observed { gates, ..observed.clone() })).unwrap().0;
            assert_eq!(told, [create(want.0, want.1)], "{on}");
        }
    }

    #[test]
    fn case_16_a_blocked_scale_up_blocks_neither_updates_nor_deletions() {
        let spec = json!({"replicas": 5, "scaleStrategy": {"maxUnavailable": 1}});
        let mut marked = broken("b", NEW);
        marked.is_specified = true;
        let pods = [broken("a", OLD), marked, pod("c", OLD)];
        assert_eq!(with(&clone_set(spec.clone()), &pods, told_scale), Ok((vec![deleted("b")], 2)));
        assert_eq!(with(&clone_set(spec), &pods[..1], told_scale), Ok((vec![], 4)));
    }

    #[test]
    fn case_17_ready_pods_are_protected_and_broken_ones_go_freely() {
        let mark = |mut pod: Pod| {
            pod.is_specified = true;
            pod
        };
        let pods = [mark(pod("a", NEW)), mark(pod("b", NEW)), mark(broken("c", NEW))];
        assert_eq!(scaled(json!({}), &pods), [deleted("c")], "maxUnavailable 1, and one is down");
        let two = json!({"updateStrategy": {"maxUnavailable": 2}});
        assert_eq!(scaled(two, &pods), [deleted("c"), deleted("a")], "what is down goes first");
        // Found by a random history: a surge Pod that is not up yet is no reason to take one down that is.
        let surge = json!({"replicas": 2, "updateStrategy": {"maxUnavailable": 0, "maxSurge": 1}});
        assert_eq!(scaled(surge, &[mark(pod("a", OLD)), pod("b", OLD), mark(broken("c", NEW))]), [deleted("c")]);
    }

    #[test]
    fn a_hook_holds_the_deletion() {
        let spec = json!({"replicas": 0, "updateStrategy": {"maxUnavailable": "100%"},
            "lifecycle": {"preDelete": {"labelsHandler": {"hold": "true"}}}});
        let hooked = labelled(pod("a", NEW), json!({"hold": "true"}));
        assert_eq!(scaled(spec.clone(), std::slice::from_ref(&hooked)), [held("a")]);
        let announced = announced("a", NEW);
        assert_eq!(scaled(spec.clone(), std::slice::from_ref(&announced)), [], "nothing to say twice");
        assert_eq!(scaled(spec, &[labelled(announced, json!({}))]), [deleted("a")]);
    }

    #[test]
    fn decision_24_a_withdrawn_deletion_returns_the_pod_unless_it_was_made_not_ready() {
        let announced = Pod { state: State::PreparingDelete, ..labelled(pod("a", NEW), json!({"hold": "true"})) };
        let hook = |not_ready: bool| json!({"replicas": 1, "lifecycle": {"preDelete": {"labelsHandler": {"hold": "true"}, "markPodNotReady": not_ready}}});
        assert_eq!(scaled(hook(false), std::slice::from_ref(&announced)), [kept("a")]);
        assert_eq!(scaled(hook(true), std::slice::from_ref(&announced)), []);
        let specified = Pod { is_specified: true, ..announced };
        assert_eq!(scaled(hook(false), &[specified]), [], "it was asked for");
    }

    #[test]
    fn shortfall_24_a_deletion_is_taken_back_for_the_surge_too() {
        let hook = json!({"preDelete": {"labelsHandler": {"hold": "true"}}});
        let strategy =
            |surge: i32| json!({"lifecycle": hook, "updateStrategy": {"maxUnavailable": 1, "maxSurge": surge}});
        let announced = Pod { state: State::PreparingDelete, ..labelled(pod("a", OLD), json!({"hold": "true"})) };
        let pods = [announced, pod("b", OLD), pod("c", OLD), pod("d", NEW)];
        assert_eq!(scaled(strategy(1), &pods), [kept("a")]);
        assert_eq!(scaled(strategy(0), &pods), [], "there is no room for it, and nobody goes in its place");
    }

    #[test]
    fn a_scale_down_takes_old_pods_first_and_the_least_useful_of_them() {
        let spec = json!({"replicas": 2, "updateStrategy": {"maxUnavailable": 5, "partition": 1}});
        let pods = [pod("a", OLD), broken("b", OLD), pod("c", NEW), pod("d", NEW)];
        assert_eq!(scaled(spec, &pods), [deleted("b"), deleted("c")]);
    }

    #[test]
    fn updates_stay_within_max_unavailable() {
        let pods = [pod("a", OLD), pod("b", OLD), pod("c", OLD)];
        assert_eq!(updated(json!({}), &pods), ["a"]);
        assert_eq!(updated(json!({"updateStrategy": {"maxUnavailable": "100%"}}), &pods), ["a", "b", "c"]);
        assert_eq!(updated(json!({"updateStrategy": {"partition": 2, "maxUnavailable": 3}}), &pods), ["a"]);
        assert_eq!(updated(json!({"updateStrategy": {"paused": true}}), &pods), Vec::<String>::new());
        assert_eq!(updated(json!({"updateStrategy": {"type": "OnDelete"}}), &pods), Vec::<String>::new());
    }

    #[test]
    fn case_15_a_bad_image_does_not_spread() {
        assert_eq!(updated(json!({}), &[broken("a", NEW), pod("b", OLD), broken("c", OLD)]), Vec::<String>::new());
        let two = json!({"updateStrategy": {"maxUnavailable": 2}});
        assert_eq!(updated(two, &[broken("a", NEW), pod("b", OLD), broken("c", OLD)]), ["c"], "no extra budget for c");
    }

    #[test]
    fn case_01_a_pod_in_its_grace_is_left_alone() {
        let pods = [Pod { is_in_grace: true, ..pod("a", OLD) }, pod("b", OLD), pod("c", OLD)];
        assert_eq!(updated(json!({}), &pods), ["b"]);
        let updated_state = Pod { state: State::Updated, ..pods[0].clone() };
        assert_eq!(updated(json!({}), &[updated_state, pods[1].clone(), pods[2].clone()]), ["a"], "case 2");
    }

    #[test]
    fn case_03_a_pod_that_waits_for_an_update_that_is_not_wanted_any_more_is_let_go() {
        let waiting = |name: &str| Pod { state: State::PreparingUpdate, ..pod(name, OLD) };
        let pods = [waiting("a"), waiting("b"), pod("c", OLD)];
        let planned =
            |strategy: Value| with(&clone_set(json!({"updateStrategy": strategy})), &pods, told_update).unwrap();
        let let_go = |name: &str| Told::LetGo(name.into());
        let in_place = |name: &str| Told::Update { pod: name.into(), back: false };
        assert_eq!(planned(json!({"partition": 3})), [let_go("a"), let_go("b")]);
        assert_eq!(planned(json!({"partition": 2})), [let_go("b"), in_place("a")]);
        assert_eq!(planned(json!({"type": "OnDelete"})), [let_go("a"), let_go("b")]);
        assert_eq!(planned(json!({"paused": true})), []);
        assert_eq!(planned(json!({"maxUnavailable": 2})), [in_place("a"), in_place("b")]);
    }

    #[test]
    fn priorities_come_first_and_waiting_pods_before_all() {
        let order = |strategy: Value, pods: &[Pod]| {
            updated(json!({"updateStrategy": {"maxUnavailable": "100%", "priorityStrategy": strategy}}), pods)
        };
        let pods = [
            labelled(pod("a", OLD), json!({"x": "1"})),
            labelled(pod("b", OLD), json!({"x": "2"})),
            Pod { state: State::PreparingUpdate, ..labelled(pod("c", OLD), json!({"x": "0"})) },
        ];
        assert_eq!(order(json!({"orderPriority": [{"orderedKey": "x"}]}), &pods), ["c", "b", "a"]);
        let weights = json!({"weightPriority": [{"weight": 5, "matchSelector": {"matchLabels": {"x": "2"}}}]});
        assert_eq!(order(weights, &pods), ["c", "b", "a"]);
    }

    #[test]
    fn shortfall_04_an_unreadable_number_holds_everything() {
        let mut odd = clone_set(json!({}));
        odd.spec.update_strategy.partition = Some(IntOrString::String("half".into()));
        let pods = [pod("a", OLD)];
        let why = "spec.updateStrategy.partition: \"half\" is neither a whole number nor a percentage such as \"20%\"";
        assert_eq!(with(&odd, &pods, told_update), Err(Invalid(why.into())));
        assert_eq!(with(&odd, &pods, told_scale), Err(Invalid(why.into())));
    }

    fn fresh(name: &str, revision: &str) -> Pod {
        let mut pod = pod(name, revision);
        pod.facts.available = false;
        pod
    }
    fn marked(pod: Pod) -> Pod {
        Pod { is_specified: true, ..pod }
    }
    fn marked_for(pod: Pod, revision: &str) -> Pod {
        Pod { own_mark: Some(OwnMark { revision: revision.into(), has_label: true }), ..marked(pod) }
    }

    /// Two Pods, both marked for a bad image, one of them made anew with it and kept down by it, the other kept by its
    /// budget; then the template is corrected.
    #[test]
    fn a_marked_pod_that_waits_for_its_budget_does_not_keep_a_broken_one_from_its_update() {
        let spec = json!({"replicas": 2, "updateStrategy": {"type": "ReCreate", "maxUnavailable": "100%"}});
        let pods = [marked(pod("a", OLD)), broken("b", "web-bad")];
        assert_eq!(scaled(spec.clone(), &pods), [deleted("a")], "it is for the budget to say");
        assert_eq!(updated(spec, &pods), ["b"], "and if it says no, the broken one is replaced all the same");
    }

    #[test]
    fn what_is_down_is_updated_first_among_those_that_are_chosen() {
        let weights = |partition: i32| {
            json!({"updateStrategy": {"partition": partition, "priorityStrategy":
                {"weightPriority": [{"weight": 5, "matchSelector": {"matchLabels": {"x": "1"}}}]}}})
        };
        let pods = [labelled(pod("a", OLD), json!({"x": "1"})), pod("b", OLD), broken("c", OLD)];
        assert_eq!(updated(weights(0), &pods), ["c"]);
        assert_eq!(updated(weights(2), &pods), Vec::<String>::new(), "the partition leaves a alone to be updated");
        // A Pod that its hook holds takes no room from one that is down.
        let hook = json!({"lifecycle": {"inPlaceUpdate": {"labelsHandler": {"hold": "true"}}}});
        let waits = Pod { state: State::PreparingUpdate, ..labelled(broken("a", OLD), json!({"hold": "true"})) };
        assert_eq!(updated(hook, &[waits, pod("b", OLD), broken("c", OLD)]), ["c", "a"], "a goes on waiting");
    }

    #[test]
    fn marks_of_ours_for_a_revision_that_is_not_wanted_any_more_are_taken_back() {
        let recreate = json!({"updateStrategy": {"type": "ReCreate", "maxUnavailable": 3}});
        let pods = [marked_for(pod("a", OLD), "web-bad"), marked_for(pod("b", OLD), NEW), pod("c", OLD)];
        assert_eq!(scaled(recreate.clone(), &pods), [taken_back("a", true)]);
        let on_delete = json!({"updateStrategy": {"type": "OnDelete"}});
        assert_eq!(scaled(on_delete, &pods), [taken_back("a", true), taken_back("b", true)]);
        let mut rest = pods.clone();
        rest[0] = pod("a", OLD);
        assert_eq!(scaled(recreate, &rest), [deleted("b")]);
    }

    #[test]
    fn what_could_not_be_taken_back_stops_nothing_else_and_its_pod_stays() {
        let hook = json!({"labelsHandler": {"hold": "true"}});
        let set = |names: &[&str]| {
            clone_set(json!({"replicas": 4, "lifecycle": {"preDelete": hook}, "scaleStrategy": {"podsToDelete": names},
                "updateStrategy": {"type": "ReCreate", "maxUnavailable": 3}}))
        };
        let note = OwnMark { revision: "web-bad".into(), has_label: false };
        let pods = [
            marked_for(pod("a", OLD), "web-bad"),
            marked_for(pod("b", OLD), NEW),
            Pod { own_mark: Some(note), ..marked(pod("c", OLD)) },
        ];
        let refused = [
            Action::TakeBackMark { pod: "a".into(), label: true },
            Action::TakeBackMark { pod: "c".into(), label: false },
        ];
        let after = |set: &CloneSet, pods: &[Pod], refused: &[Action]| {
            let pods: Vec<Arc<Pod>> = pods.iter().cloned().map(Arc::new).collect();
            let pods: Vec<Pod> = as_if_done(set, &pods, refused).iter().map(|pod| Pod::clone(pod)).collect();
            with(set, &pods, told_scale).unwrap().0
        };
        let first = with(&set(&[]), &pods, told_scale).unwrap().0;
        assert_eq!(first, refused.clone().map(Told::Act));
        assert_eq!(after(&set(&[]), &pods, &refused), [create(0, 1), deleted("b"), deleted("c")]);
        assert_eq!(
            after(&set(&["a"]), &pods, &refused),
            [create(0, 1), deleted("a"), deleted("b")],
            "its user asks for it too"
        );
        // Its hook has let go already, and it is still needed.
        let released = Pod { state: State::PreparingDelete, ..broken("d", NEW) };
        let pods = [released, marked_for(pod("b", OLD), NEW), pod("e", NEW)];
        assert_eq!(with(&set(&[]), &pods, told_scale).unwrap().0, [kept("d")]);
        let refused = [Action::KeepAfterAll("d".into())];
        assert_eq!(after(&set(&[]), &pods, &refused), [create(0, 1), deleted("b")]);
    }

    #[test]
    fn a_users_mark_stays_whatever_revision_is_wanted() {
        let spec = json!({"updateStrategy": {"type": "ReCreate", "maxUnavailable": 3}});
        assert_eq!(scaled(spec.clone(), &[marked(pod("a", OLD)), pod("b", NEW), pod("c", NEW)]), [deleted("a")]);
        // The user has taken our mark away, or put another one over it: only our note goes.
        let note = OwnMark { revision: "web-bad".into(), has_label: false };
        let over = Pod { own_mark: Some(note), ..marked(pod("a", OLD)) };
        assert_eq!(scaled(spec, &[over, pod("b", NEW), pod("c", NEW)]), [taken_back("a", false)]);
    }

    #[test]
    fn a_pod_that_is_ready_but_not_yet_available_is_charged_once() {
        let canary = [marked(fresh("a", NEW)), pod("b", OLD), pod("c", OLD)];
        assert_eq!(scaled(json!({}), &canary), [deleted("a")], "a bad canary waits for no minReadySeconds");
        let fresh_ones = [marked(fresh("a", NEW)), marked(fresh("b", NEW)), fresh("c", NEW)];
        assert_eq!(scaled(json!({}), &fresh_ones), [deleted("a")], "but those that serve do not go all at once");
        let up = [marked(pod("a", NEW)), fresh("b", NEW), pod("c", NEW)];
        assert_eq!(scaled(json!({}), &up), [], "an available one waits for those that are not yet");
        let back = [fresh("a", "web-bad"), pod("b", NEW), pod("c", NEW)];
        assert_eq!(updated(json!({}), &back), ["a"], "nor does a roll-back");
    }

    #[test]
    fn while_the_number_is_reached_nobody_is_chosen_besides_those_that_wait_for_their_deletion() {
        let hook = json!({"preDelete": {"labelsHandler": {"hold": "true"}}});
        let spec =
            |replicas: i32| json!({"replicas": replicas, "lifecycle": hook, "updateStrategy": {"maxUnavailable": 3}});
        let mut useless = broken("c", NEW);
        useless.facts.node = String::new();
        let pods = [announced("a", NEW), pod("b", NEW), useless];
        assert_eq!(scaled(spec(2), &pods), [], "although another one would be chosen today");
        assert_eq!(scaled(spec(1), &pods), [deleted("c")]);
        assert_eq!(scaled(spec(3), &pods), [kept("a")]);
    }

    #[test]
    fn the_pod_that_is_taken_back_is_the_one_that_would_be_deleted_last() {
        let hook = json!({"preDelete": {"labelsHandler": {"hold": "true"}}});
        let spec = |changes: Value| {
            let mut spec = json!({"replicas": 2, "lifecycle": hook, "updateStrategy": {"maxUnavailable": 3}});
            json_patch::merge(&mut spec, &changes);
            spec
        };
        let cheap = |name: &str| {
            let mut pod = announced(name, NEW);
            pod.facts.deletion_cost = -5;
            pod
        };
        assert_eq!(scaled(spec(json!({})), &[cheap("a"), announced("b", NEW), pod("c", NEW)]), [kept("b")]);
        assert_eq!(scaled(spec(json!({})), &[announced("a", NEW), cheap("b"), pod("c", NEW)]), [kept("a")]);
        // Old ones go first, so they come back last.
        assert_eq!(scaled(spec(json!({})), &[announced("a", OLD), announced("b", NEW), pod("c", NEW)]), [kept("b")]);
        let partition = spec(json!({"updateStrategy": {"partition": 1}}));
        assert_eq!(scaled(partition, &[announced("a", OLD), announced("b", NEW), pod("c", NEW)]), [kept("a")]);
    }

    #[test]
    fn gate_preparing_update_as_update_holds_for_victims_too() {
        let set = clone_set(json!({"replicas": 2, "updateStrategy": {"partition": 1, "maxUnavailable": 3}}));
        // With the gate a is new: one of the new ones is too many, and the old one stays.
        let waiting = Pod { state: State::PreparingUpdate, ..broken("a", OLD) };
        let pods = [waiting, pod("b", OLD), pod("c", NEW)];
        for (on, want) in [(false, "a"), (true, "a")] {
            let gates = Gates { preparing_update_as_update: on, ..Gates::default() };
            let told = with(&set, &pods, |observed| told_scale(&Observed { gates, ..observed.clone() })).unwrap().0;
            assert_eq!(told, [deleted(want)], "{on}");
        }
        let mut pods = pods;
        pods[1] = broken("b", OLD);
        pods[1].facts.node = String::new();
        for (on, want) in [(false, "b"), (true, "a")] {
            let gates = Gates { preparing_update_as_update: on, ..Gates::default() };
            let told = with(&set, &pods, |observed| told_scale(&Observed { gates, ..observed.clone() })).unwrap().0;
            assert_eq!(told, [deleted(want)], "{on}: b is the only old one then, and the partition keeps it");
        }
    }

    /// Found by a random history: with the gate they count as new while scaling, so no surge makes room for them.
    #[test]
    fn gate_preparing_update_as_update_lets_announced_updates_go_on_without_surge() {
        let set = clone_set(json!({"updateStrategy": {"maxUnavailable": 0, "maxSurge": 1}}));
        let waiting = |name: &str| Pod { state: State::PreparingUpdate, ..broken(name, OLD) };
        let pods = [waiting("a"), waiting("b"), pod("c", NEW)];
        let gates = Gates { preparing_update_as_update: true, ..Gates::default() };
        let scaled = with(&set, &pods, |observed| told_scale(&Observed { gates, ..observed.clone() }));
        assert_eq!(scaled, Ok((vec![], 0)), "no surge");
        let update = |name: &str| Told::Update { pod: name.into(), back: false };
        let updated = with(&set, &pods, |observed| told_update(&Observed { gates, ..observed.clone() }));
        assert_eq!(updated, Ok(vec![update("a"), update("b")]));
    }

    #[test]
    fn a_pod_that_waits_for_its_update_is_not_let_go_because_nothing_can_be_updated_for_one_pass() {
        // One Pod too many for a moment: the new side is complete, so no update is due, but the partition wants it.
        let waiting = Pod { state: State::PreparingUpdate, ..broken("a", OLD) };
        let pods = [waiting, pod("b", NEW), pod("c", NEW), pod("d", NEW)];
        let strategy = |partition: i32| json!({"updateStrategy": {"partition": partition}});
        assert_eq!(with(&clone_set(strategy(0)), &pods, told_update), Ok(vec![]));
        assert_eq!(with(&clone_set(strategy(1)), &pods, told_update), Ok(vec![Told::LetGo("a".into())]));
    }
}
