//! Which Pods of a SidecarSet are updated in place now, and in which order. Pure.

use std::collections::{BTreeSet, VecDeque};

use super::{
    pod::{Judged, NotUpgradable, Standing},
    spec::Spec,
};
use crate::domain::workload::{pod_order::PodOrder, rollout, turns::Turns};

/// What may be refused, and is tried again after the others then.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// The twins of this Pod are reset.
    Reset(String),
    /// This Pod is updated.
    Update(String),
    /// Its condition is written.
    Mark(String),
}

impl Turn {
    /// The name of the Pod.
    pub fn pod(&self) -> &str {
        match self {
            Self::Reset(pod) | Self::Update(pod) | Self::Mark(pod) => pod,
        }
    }
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Names of Pods whose twins are reset, those last whose reset was refused. While there are others nothing else is done.
    pub reset: Vec<String>,
    /// Pods to update, in this order. A Pod that is refused leaves its place to the next one.
    pub update: Vec<Next>,
    /// How many of them that are in service may be taken now.
    pub room: usize,
    /// How many may be updated now, in service or not.
    pub most: usize,
    /// Pods that an update has taken out of service and that are not back: they take the room of others.
    pub down: Named,
    /// What the status says.
    pub counts: Counts,
    /// Pods that wait and are kept as they are, and by what.
    pub held: Option<Held>,
    /// Pods whose condition `SidecarSetUpgradable` has to say this, those last of which it was refused.
    pub marks: Vec<(String, bool)>,
}

impl Plan {
    /// Whether nothing is to be done with any Pod, and none is waited for before another one's turn comes.
    pub fn is_at_rest(&self) -> bool {
        let is_waited_for = self.counts.updated < self.counts.matched && self.held.is_none();
        self.reset.is_empty() && self.update.is_empty() && self.marks.is_empty() && !is_waited_for
    }
}

/// Pods, of which a few are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// How many they are.
    pub count: usize,
    /// The first ones by name, [`MOST_NAMES`] at most.
    pub first: Vec<String>,
}

impl Named {
    fn of(mut names: Vec<&str>) -> Self {
        names.sort_unstable();
        let first = names.iter().take(MOST_NAMES).map(|&name| name.to_owned()).collect();
        Self { count: names.len(), first }
    }
}

/// Names of Pods that a message has at most.
pub const MOST_NAMES: usize = 5;

/// A Pod that may be updated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// Its name.
    pub name: String,
    /// It is in service: it costs room, and its budgets are asked.
    pub is_in_service: bool,
}

/// What keeps Pods as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// The type is NotUpdate.
    NotUpdate,
    /// The update is paused.
    Paused,
    /// The selector fits none of the others.
    Selector,
    /// The partition keeps them.
    Partition,
    /// None of those that are in service may be unavailable.
    NoneUnavailable,
    /// They cannot be updated in place.
    NotUpgradable,
}

/// Pods that have the containers, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All of them.
    pub matched: usize,
    /// With the containers as they are now.
    pub updated: usize,
    /// Ready and as their spec says.
    pub ready: usize,
    /// Both.
    pub updated_ready: usize,
    /// With the containers as they are now, and not ready.
    pub updated_unready: Named,
    /// That cannot be updated in place, by reason.
    pub not_upgradable: BTreeSet<(NotUpgradable, String)>,
    /// How many of those are to be updated now, as far as type, pause and selector say.
    pub wanted_not_upgradable: usize,
}

/// Plans a pass over the Pods that have the containers. `turns` says what was refused before.
///
/// A reset that is refused holds up nothing else: other Pods are updated, and its Pod does not count as unavailable while
/// kubelet says that it is ready.
pub fn plan(spec: &Spec, pods: &[Judged], turns: &Turns<Turn>) -> Plan {
    let mut plan = Plan { counts: counts(spec, pods), marks: marks(pods, turns), ..Plan::default() };
    if !spec.updates {
        plan.held = (plan.counts.updated < pods.len()).then_some(Held::NotUpdate);
        return plan;
    }
    // What has been begun is ended also while the update is paused: else both versions would run for ever.
    plan.reset = pods.iter().filter(|pod| pod.needs_reset).map(|pod| pod.facts.name.clone()).collect();
    turns.sort(&mut plan.reset, |pod| Some(Turn::Reset(pod.clone())));
    let is_refused = |pod: &str| turns.was_refused(&Turn::Reset(pod.to_owned()));
    if spec.paused {
        plan.held = (plan.counts.updated < pods.len()).then_some(Held::Paused);
        return plan;
    }
    let is_waiting = |pod: &&Judged| pod.standing == Standing::Waiting && !pod.needs_reset;
    let waiting: Vec<&Judged> = pods.iter().filter(is_waiting).collect();
    let mut selected: Vec<&Judged> = waiting.iter().copied().filter(|pod| pod.is_selected).collect();
    order(spec, pods).sort(&mut selected, |pod| &pod.facts, pods.iter().map(|pod| &pod.facts.labels));
    turns.sort(&mut selected, |pod| Some(Turn::Update(pod.facts.name.clone())));
    let total = i32::try_from(pods.len()).unwrap_or(i32::MAX);
    let kept = usize::try_from(rollout::kept_old(spec.partition, total)).unwrap_or(0);
    // Whatever is not updated counts among those that are kept, also what cannot be updated.
    plan.most = pods.len().saturating_sub(kept).saturating_sub(plan.counts.updated).min(selected.len());
    let serves = |pod: &Judged| pod.is_ready || pod.is_in_service && pod.needs_reset && is_refused(&pod.facts.name);
    let is_down = |pod: &&Judged| is_on_its_way(pod) && !pod.was_unavailable && !serves(pod);
    let down = pods.iter().filter(is_down).chain(down_before(&selected, plan.most, turns));
    plan.down = Named::of(down.map(|pod| pod.facts.name.as_str()).collect());
    plan.room = usize::try_from(spec.limit(total)).unwrap_or(0).saturating_sub(plan.down.count);
    plan.held = held(spec, pods, waiting.len(), &selected, plan.most);
    if plan.reset.iter().all(|pod| is_refused(pod)) {
        let next = |pod: &&Judged| Next { name: pod.facts.name.clone(), is_in_service: pod.is_in_service };
        plan.update = selected.iter().map(next).collect();
        if plan.most == 0 {
            plan.update.clear();
        }
    }
    plan
}

/// Whether a Pod has the containers as they are now, or waits for kubelet to act on an update before that.
fn is_on_its_way(pod: &Judged) -> bool {
    match pod.standing {
        Standing::Updated => true,
        Standing::InFlight => pod.was_updated,
        Standing::Waiting | Standing::NotUpgradable(_) => false,
    }
}

/// The Pods that an earlier update has taken out of service and that are not back. They go first and need no more room, so that
/// another image mends what one has broken. One that does not get the new image, because the selector or the partition keeps it
/// or because it was refused, may be broken for good and holds up no other.
fn down_before<'p>(selected: &[&'p Judged], most: usize, turns: &Turns<Turn>) -> Vec<&'p Judged> {
    let is_down = |pod: &&Judged| {
        let turn = Turn::Update(pod.facts.name.clone());
        pod.was_updated && !pod.was_unavailable && !pod.is_in_service && !turns.was_refused(&turn)
    };
    selected.iter().copied().take(most).filter(is_down).collect()
}

fn marks(pods: &[Judged], turns: &Turns<Turn>) -> Vec<(String, bool)> {
    let mark = |pod: &Judged| pod.upgradable.map(|can| (pod.facts.name.clone(), can));
    let mut marks: Vec<(String, bool)> = pods.iter().filter_map(mark).collect();
    turns.sort(&mut marks, |(pod, _)| Some(Turn::Mark(pod.clone())));
    marks
}

fn held(spec: &Spec, pods: &[Judged], waiting: usize, selected: &[&Judged], most: usize) -> Option<Held> {
    let is_in_flight = pods.iter().any(|pod| pod.standing == Standing::InFlight || pod.needs_reset);
    if is_in_flight {
        return None;
    }
    if most > 0 {
        let total = i32::try_from(pods.len()).unwrap_or(i32::MAX);
        let is_none = spec.limit(total) == 0 && selected.iter().take(most).all(|pod| pod.is_in_service);
        return is_none.then_some(Held::NoneUnavailable);
    }
    let has = |fits: fn(&Judged) -> bool| pods.iter().any(fits);
    if !selected.is_empty() {
        Some(Held::Partition)
    } else if waiting > 0 && spec.selector.is_some() {
        Some(Held::Selector)
    } else {
        has(|pod| matches!(pod.standing, Standing::NotUpgradable(_))).then_some(Held::NotUpgradable)
    }
}

fn counts(spec: &Spec, pods: &[Judged]) -> Counts {
    let count = |fits: &dyn Fn(&Judged) -> bool| pods.iter().filter(|pod| fits(pod)).count();
    let is_updated = |pod: &Judged| pod.standing == Standing::Updated;
    let unready = pods.iter().filter(|pod| is_updated(pod) && !pod.is_ready).map(|pod| pod.facts.name.as_str());
    let is_wanted = |pod: &Judged| pod.is_selected && matches!(pod.standing, Standing::NotUpgradable(_));
    let refused = pods.iter().filter_map(|pod| match pod.standing {
        Standing::NotUpgradable(why) => Some((why, pod.facts.name.clone())),
        Standing::Updated | Standing::Waiting | Standing::InFlight => None,
    });
    Counts {
        matched: pods.len(),
        updated: count(&is_updated),
        ready: count(&|pod| pod.is_ready),
        updated_ready: count(&|pod| is_updated(pod) && pod.is_ready),
        updated_unready: Named::of(unready.collect()),
        not_upgradable: refused.collect(),
        wanted_not_upgradable: if spec.updates && !spec.paused { count(&is_wanted) } else { 0 },
    }
}

/// The order, with a term for each value that `*` stands for.
fn order(spec: &Spec, pods: &[Judged]) -> PodOrder {
    let mut scatter = Vec::new();
    for (key, value) in &spec.scatter {
        let every = || -> BTreeSet<String> {
            pods.iter().filter_map(|pod| pod.facts.labels.get(key)).map(str::to_owned).collect()
        };
        let values = if value == "*" { every() } else { BTreeSet::from([value.clone()]) };
        scatter.extend(values.into_iter().map(|value| (key.clone(), value)));
    }
    PodOrder { priority: spec.priority.clone(), scatter, ..PodOrder::default() }
}

/// How far the update of this pass has got.
#[derive(Clone, Debug)]
pub struct Walk {
    left: VecDeque<Next>,
    /// Those that wait for room. Each has its place: what the partition keeps does not get it.
    waiting: VecDeque<Next>,
    most: usize,
    room: usize,
}

impl Walk {
    /// At the begin.
    pub fn of(plan: &Plan) -> Self {
        let left = plan.update.iter().cloned().collect();
        Self { left, waiting: VecDeque::new(), most: plan.most, room: plan.room }
    }

    /// The next Pods that may be updated, at most so many. Each has taken its room.
    pub fn wave(&mut self, at_most: usize) -> Vec<Next> {
        let mut wave = Vec::new();
        while wave.len() < at_most && self.room > 0 {
            let Some(next) = self.waiting.pop_front() else { break };
            self.room -= 1;
            wave.push(next);
        }
        while wave.len() < at_most && self.most > 0 {
            let Some(next) = self.left.pop_front() else { break };
            self.most -= 1;
            if next.is_in_service && self.room == 0 {
                self.waiting.push_back(next);
                continue;
            }
            self.room -= usize::from(next.is_in_service);
            wave.push(next);
        }
        wave
    }

    /// It stays as it is after all: its room and its place are free.
    pub fn give_back(&mut self, next: &Next) {
        self.most += 1;
        self.room += usize::from(next.is_in_service);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::pod::order::{Candidate, Phase};

    fn spec(strategy: Value) -> Spec {
        let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "containers": [{"name": "c", "image": "i:1"}],
            "updateStrategy": strategy});
        Spec::of(&json!({"metadata": {"name": "logs"}, "spec": spec})).unwrap()
    }

    fn pod(name: &str, standing: Standing, is_ready: bool) -> Judged {
        let facts = Candidate {
            name: name.into(),
            node: "n".into(),
            phase: Phase::Running,
            ready: is_ready,
            ..Candidate::default()
        };
        Judged {
            facts,
            standing,
            is_ready,
            is_in_service: is_ready,
            was_updated: false,
            was_unavailable: false,
            is_selected: true,
            needs_reset: false,
            revision: String::new(),
            upgradable: None,
        }
    }

    fn waiting(count: usize) -> Vec<Judged> {
        (0..count).map(|i| pod(&format!("p{i}"), Standing::Waiting, true)).collect()
    }

    /// The plan while nothing was refused.
    fn plan(spec: &Spec, pods: &[Judged]) -> Plan {
        super::plan(spec, pods, &Turns::default())
    }

    /// The Pods that are updated in one pass; `refused` by a budget.
    fn taken(plan: &Plan, refused: &[&str]) -> Vec<String> {
        let mut walk = Walk::of(plan);
        let mut taken = Vec::new();
        loop {
            let wave = walk.wave(3);
            if wave.is_empty() {
                return taken;
            }
            for next in wave {
                match refused.contains(&next.name.as_str()) {
                    true => walk.give_back(&next),
                    false => taken.push(next.name),
                }
            }
        }
    }

    #[test]
    fn d16_small_percentages_never_stop_an_update() {
        for (strategy, pods, wanted) in [
            (json!({"maxUnavailable": "1%"}), 5, 1),
            (json!({"maxUnavailable": "50%"}), 5, 3),
            (json!({"maxUnavailable": 2}), 5, 2),
            (json!({"maxUnavailable": 5, "partition": "99%"}), 5, 1),
            (json!({"maxUnavailable": 5, "partition": "1%"}), 5, 4),
            (json!({"maxUnavailable": 5, "partition": "100%"}), 5, 0),
            (json!({"maxUnavailable": 5, "partition": 3}), 5, 2),
            (json!({"maxUnavailable": 5, "partition": 9}), 5, 0),
        ] {
            let plan = plan(&spec(strategy.clone()), &waiting(pods));
            assert_eq!(taken(&plan, &[]).len(), wanted, "{strategy}");
        }
    }

    #[test]
    fn a_set_is_at_rest_while_no_pod_has_its_turn_and_none_is_waited_for() {
        let one = |standing, is_ready| vec![pod("p", standing, is_ready)];
        for (strategy, pods, is_at_rest) in [
            (json!({}), vec![], true),
            (json!({}), one(Standing::Updated, true), true),
            (json!({}), one(Standing::Updated, false), true),
            (json!({}), one(Standing::NotUpgradable(NotUpgradable::OtherChange), true), true),
            (json!({"paused": true}), waiting(2), true),
            (json!({"type": "NotUpdate"}), waiting(2), true),
            (json!({"partition": "100%"}), waiting(2), true),
            (json!({}), waiting(2), false),
            (json!({"maxUnavailable": 0}), waiting(2), false),
            (json!({}), one(Standing::InFlight, false), false),
        ] {
            assert_eq!(plan(&spec(strategy.clone()), &pods).is_at_rest(), is_at_rest, "{strategy} {pods:?}");
        }
        let to_mark = Judged { upgradable: Some(false), ..pod("p", Standing::Updated, true) };
        let to_reset = Judged { needs_reset: true, ..pod("p", Standing::Updated, true) };
        assert!(![to_mark, to_reset].into_iter().any(|pod| plan(&spec(json!({})), &[pod]).is_at_rest()));
    }

    #[test]
    fn e17_a_refusal_of_one_pod_leaves_its_place_to_the_next() {
        let plan = plan(&spec(json!({"maxUnavailable": 2})), &waiting(5));
        assert_eq!(taken(&plan, &["p0", "p2"]), ["p1", "p3"]);
    }

    #[test]
    fn a17_a_pod_that_waits_for_room_keeps_its_place_before_the_cut_of_the_partition() {
        let mut pods = waiting(4);
        for pod in &mut pods[..2] {
            pod.facts.labels = serde_json::from_value(json!({"first": "1"})).unwrap();
        }
        (pods[2].is_ready, pods[2].is_in_service, pods[2].facts.ready) = (false, false, false);
        let weights = json!({"weightPriority": [{"weight": 5, "matchSelector": {"matchLabels": {"first": "1"}}}]});
        let strategy = spec(json!({"partition": 2, "priorityStrategy": weights}));
        let begun = plan(&strategy, &pods);
        assert_eq!(taken(&begun, &[]), ["p0"], "p2 is down, but one of those that stay");
        assert_eq!(taken(&begun, &["p0"]), ["p1", "p2"], "one that is refused leaves its place to the next one");
        pods[0].standing = Standing::Updated;
        assert_eq!(taken(&plan(&strategy, &pods), &[]), ["p1"]);
    }

    #[test]
    fn e17_what_was_refused_is_tried_after_the_others() {
        let mut turns = Turns::default();
        let first = |turns: &Turns<Turn>| taken(&super::plan(&spec(json!({})), &waiting(3), turns), &[]);
        assert_eq!(first(&turns), ["p0"]);
        for (refused, next) in [("p0", "p1"), ("p1", "p2"), ("p2", "p0"), ("p0", "p1")] {
            turns.refused(Turn::Update(refused.into()));
            assert_eq!(first(&turns), [next], "{refused} was refused");
        }
        let mut pods = waiting(2);
        pods.push(pod("down", Standing::Waiting, false));
        turns.refused(Turn::Update("down".into()));
        let plan = super::plan(&spec(json!({})), &pods, &turns);
        assert_eq!(taken(&plan, &[]), ["p1", "down"], "it costs no room, but the others come before it");
    }

    #[test]
    fn e17_a_reset_that_is_refused_for_good_holds_up_no_other_pod() {
        let mut pods = waiting(2);
        let twin = Judged { needs_reset: true, is_in_service: true, ..pod("twin", Standing::Updated, false) };
        pods.push(twin);
        let mut turns = Turns::default();
        let fresh = super::plan(&spec(json!({})), &pods, &turns);
        assert_eq!((fresh.reset, fresh.update.len(), fresh.room), (vec!["twin".to_owned()], 0, 0));
        turns.refused(Turn::Reset("twin".into()));
        let refused = super::plan(&spec(json!({})), &pods, &turns);
        assert_eq!(taken(&refused, &[]), ["p0"]);
        assert_eq!(refused.reset, ["twin"], "it is tried again");
        pods[0].needs_reset = true;
        let another = super::plan(&spec(json!({})), &pods, &turns);
        assert_eq!(another.reset, ["p0", "twin"]);
        assert!(another.update.is_empty(), "one that was not refused goes first");
        pods[0].needs_reset = false;
        pods[2].is_in_service = false;
        assert_eq!(super::plan(&spec(json!({})), &pods, &turns).room, 0, "it is really down");
    }

    #[test]
    fn a_pod_whose_twins_are_to_be_reset_is_not_updated_before() {
        let mut pods = waiting(1);
        pods[0].needs_reset = true;
        let mut turns = Turns::default();
        turns.refused(Turn::Reset("p0".into()));
        let plan = super::plan(&spec(json!({})), &pods, &turns);
        assert_eq!((plan.reset.len(), plan.update.len(), plan.held), (1, 0, None));
    }

    #[test]
    fn d18_a_pod_that_is_down_costs_nothing_and_goes_first() {
        let mut pods = waiting(3);
        pods.push(pod("down", Standing::Waiting, false));
        assert_eq!(taken(&plan(&spec(json!({})), &pods), &[]), ["down", "p0"]);
        pods.push(pod("new", Standing::Updated, false));
        assert_eq!(taken(&plan(&spec(json!({})), &pods), &[]), ["down"], "the one that is updated is not ready yet");
    }

    #[test]
    fn decision_35_what_an_earlier_update_has_taken_out_of_service_counts_until_it_is_back() {
        let with = |old: Judged| {
            let mut pods = waiting(3);
            pods.push(Judged { was_updated: true, ..old });
            pods
        };
        let down = || pod("old", Standing::Waiting, false);
        let one = spec(json!({}));
        for (old, wanted) in [
            (down(), Some("old")),
            (pod("old", Standing::Waiting, true), Some("p0")),
            (pod("old", Standing::InFlight, false), None),
            // Kubelet has not acted yet.
            (Judged { is_in_service: true, ..pod("old", Standing::InFlight, false) }, None),
            (Judged { is_selected: false, ..down() }, Some("p0")),
            (pod("old", Standing::NotUpgradable(NotUpgradable::OtherChange), false), Some("p0")),
        ] {
            let pods = with(old);
            let wanted: Vec<&str> = wanted.into_iter().collect();
            assert_eq!(taken(&plan(&one, &pods), &[]), wanted, "{:?}", pods[3]);
        }
        let mut turns = Turns::default();
        turns.refused(Turn::Update("old".into()));
        let refused = super::plan(&one, &with(down()), &turns);
        assert_eq!(taken(&refused, &["old"]), ["p0"], "one that cannot be written holds up no other");
        let mut pods = with(down());
        for pod in &mut pods[..3] {
            pod.facts.labels = serde_json::from_value(json!({"first": "1"})).unwrap();
        }
        let weights = json!({"weightPriority": [{"weight": 5, "matchSelector": {"matchLabels": {"first": "1"}}}]});
        let kept = spec(json!({"partition": 1, "priorityStrategy": weights}));
        assert_eq!(taken(&plan(&kept, &pods), &[]), ["p0"], "neither does one that the partition keeps");
    }

    /// Else one that is never ready, for whatever reason, holds up all others for ever.
    #[test]
    fn a17_what_was_out_of_service_before_its_update_takes_no_room_after_it() {
        let one = spec(json!({}));
        let taken_with = |old: Judged| {
            let mut pods = waiting(2);
            pods.push(Judged { was_updated: true, ..old });
            let plan = plan(&one, &pods);
            (taken(&plan, &[]), plan.down.count)
        };
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        for (standing, was_unavailable, wanted) in [
            (Standing::Updated, false, (names(&[]), 1)),
            (Standing::Updated, true, (names(&["p0"]), 0)),
            (Standing::InFlight, false, (names(&[]), 1)),
            (Standing::InFlight, true, (names(&["p0"]), 0)),
            (Standing::Waiting, false, (names(&["old"]), 1)),
            (Standing::Waiting, true, (names(&["old", "p0"]), 0)),
        ] {
            let old = Judged { was_unavailable, ..pod("old", standing, false) };
            assert_eq!(taken_with(old), wanted, "{standing:?} {was_unavailable}");
        }
    }

    #[test]
    fn pods_that_take_the_room_of_others_are_named_in_order_and_not_all() {
        let mut pods = waiting(1);
        let down = (0..7).rev().map(|i| pod(&format!("d{i}"), Standing::Updated, false));
        pods.extend(down.map(|pod| Judged { was_updated: true, ..pod }));
        let plan = plan(&spec(json!({})), &pods);
        assert_eq!((plan.room, plan.down.count), (0, 7));
        assert_eq!(plan.down.first, ["d0", "d1", "d2", "d3", "d4"]);
        assert_eq!(plan.down, plan.counts.updated_unready);
    }

    #[test]
    fn d17_an_update_under_way_is_waited_for_and_is_no_refusal() {
        let pods = [pod("a", Standing::InFlight, true)];
        let plan = plan(&spec(json!({})), &pods);
        assert_eq!((plan.update.len(), plan.held, plan.counts.not_upgradable.len()), (0, None, 0));
    }

    #[test]
    fn e23_what_cannot_be_updated_counts_among_what_the_partition_keeps() {
        let mut pods = waiting(3);
        pods.push(pod("fixed", Standing::NotUpgradable(NotUpgradable::OtherChange), true));
        let plan = plan(&spec(json!({"partition": 1, "maxUnavailable": 9})), &pods);
        assert_eq!(taken(&plan, &[]).len(), 3);
        assert_eq!(plan.counts.not_upgradable.len(), 1);
    }

    #[test]
    fn a16_pods_that_are_not_to_be_updated_are_no_news_when_they_cannot_be() {
        let mut pods: Vec<Judged> =
            (0..3).map(|i| pod(&format!("p{i}"), Standing::NotUpgradable(NotUpgradable::OtherChange), true)).collect();
        pods[0].is_selected = false;
        for (strategy, wanted) in [(json!({}), 2), (json!({"paused": true}), 0), (json!({"type": "NotUpdate"}), 0)] {
            let counts = plan(&spec(strategy), &pods).counts;
            assert_eq!((counts.wanted_not_upgradable, counts.not_upgradable.len()), (wanted, 3));
        }
    }

    #[test]
    fn what_holds_pods_is_told() {
        let fixed = || vec![pod("f", Standing::NotUpgradable(NotUpgradable::OtherChange), true)];
        let mut unselected = waiting(1);
        unselected[0].is_selected = false;
        let selector = json!({"selector": {"matchLabels": {"x": "y"}}});
        // The last in turn is kept by the partition, whether it is in service or not.
        let mut behind = waiting(2);
        let first = plan(&spec(json!({"partition": 1})), &behind).update.remove(0).name;
        behind.iter_mut().filter(|pod| pod.facts.name != first).for_each(|pod| pod.is_in_service = false);
        for (strategy, pods, wanted) in [
            (json!({"type": "NotUpdate"}), waiting(1), Some(Held::NotUpdate)),
            (json!({"paused": true}), waiting(1), Some(Held::Paused)),
            (json!({"partition": 1}), waiting(1), Some(Held::Partition)),
            (json!({"maxUnavailable": 0}), waiting(2), Some(Held::NoneUnavailable)),
            (json!({"maxUnavailable": "0%"}), waiting(2), Some(Held::NoneUnavailable)),
            (json!({"maxUnavailable": 0, "partition": 2}), waiting(2), Some(Held::Partition)),
            (json!({"maxUnavailable": 0, "partition": 1}), behind, Some(Held::NoneUnavailable)),
            (json!({"maxUnavailable": 0}), vec![pod("down", Standing::Waiting, false)], None),
            (selector, unselected, Some(Held::Selector)),
            (json!({}), fixed(), Some(Held::NotUpgradable)),
            (json!({}), waiting(1), None),
            (json!({"paused": true}), vec![pod("u", Standing::Updated, true)], None),
        ] {
            let plan = plan(&spec(strategy.clone()), &pods);
            assert_eq!(plan.held, wanted, "{strategy}");
            if plan.held.is_some() {
                assert!(taken(&plan, &[]).is_empty(), "{strategy}");
            }
        }
    }

    #[test]
    fn d20_nothing_is_updated_while_twins_are_reset_and_e25_a_pause_does_not_keep_them() {
        let mut pods = waiting(2);
        pods[0] = Judged { needs_reset: true, ..pod("hot", Standing::Updated, true) };
        for strategy in [json!({}), json!({"paused": true})] {
            let plan = plan(&spec(strategy), &pods);
            assert_eq!((plan.reset, plan.update.len()), (vec!["hot".to_owned()], 0));
        }
        let none = plan(&spec(json!({"type": "NotUpdate"})), &pods);
        assert!(none.reset.is_empty(), "it only injects");
    }

    #[test]
    fn d23_ties_keep_their_order_and_priorities_come_first() {
        let mut pods = waiting(4);
        pods[2].facts.labels = serde_json::from_value(json!({"first": "1"})).unwrap();
        let priority = json!({"priorityStrategy": {"weightPriority": [{"weight": 5, "matchSelector": {"matchLabels": {"first": "1"}}}]},
            "maxUnavailable": 9});
        assert_eq!(taken(&plan(&spec(priority), &pods), &[]), ["p2", "p0", "p1", "p3"]);
    }

    #[test]
    fn a17_a_star_scatters_every_value() {
        let mut pods = waiting(4);
        for (i, pod) in pods.iter_mut().enumerate() {
            pod.facts.labels = serde_json::from_value(json!({"zone": if i < 2 { "a" } else { "b" }})).unwrap();
        }
        let made = order(&spec(json!({"scatterStrategy": [{"key": "zone", "value": "*"}]})), &pods);
        assert_eq!(made.scatter, [("zone".to_owned(), "a".to_owned()), ("zone".to_owned(), "b".to_owned())]);
        let star = plan(&spec(json!({"scatterStrategy": [{"key": "zone", "value": "*"}], "maxUnavailable": 9})), &pods);
        assert_eq!(taken(&star, &[]).len(), 4);
    }

    proptest! {
        /// Never more than the limit are out of service because of us, and something moves as long as something may.
        #[test]
        fn limits_hold_and_nothing_stands_still(
            limit in 0..101_u32, partition in 0..101_u32,
            states in prop::collection::vec((0..4_u8, any::<bool>(), any::<bool>()), 1..30)
        ) {
            let spec = spec(json!({"maxUnavailable": format!("{limit}%"), "partition": format!("{partition}%")}));
            let pods: Vec<Judged> = states.iter().enumerate().map(|(i, (standing, ready, was_updated))| {
                let standing = match standing {
                    0 => Standing::Updated,
                    1 => Standing::InFlight,
                    2 => Standing::NotUpgradable(NotUpgradable::OtherChange),
                    _ => Standing::Waiting,
                };
                Judged { was_updated: *was_updated, ..pod(&format!("p{i}"), standing, *ready) }
            }).collect();
            let plan = plan(&spec, &pods);
            let taken = taken(&plan, &[]);
            let find = |name: &String| pods.iter().find(|pod| pod.facts.name == *name).unwrap();
            let is_on_its_way = |pod: &Judged| {
                pod.standing == Standing::Updated || pod.standing == Standing::InFlight && pod.was_updated
            };
            let down = pods.iter().filter(|pod| is_on_its_way(pod) && !pod.is_ready).count();
            let is_down = |next: &&Next| !next.is_in_service && find(&next.name).was_updated;
            let down = down + plan.update.iter().take(plan.most).filter(is_down).count();
            let served = taken.iter().filter(|name| find(name).is_in_service).count();
            let most = usize::try_from(spec.limit(i32::try_from(pods.len()).unwrap())).unwrap();
            prop_assert!(served + down <= most.max(down));
            let kept = usize::try_from(rollout::kept_old(spec.partition, i32::try_from(pods.len()).unwrap())).unwrap();
            prop_assert!(pods.len() - plan.counts.updated - taken.len() >= kept.min(pods.len() - plan.counts.updated));
            let may = plan.most > 0 && (down < most || pods.iter().any(|pod| pod.standing == Standing::Waiting && !pod.is_in_service));
            prop_assert_eq!(may, !taken.is_empty());
        }
    }
}
