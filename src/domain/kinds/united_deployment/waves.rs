//! How many Pods of each subset may be on the new revision by now, so that a roll-out has no more of the whole out of
//! service than its budget.
//!
//! A partition that has been written is a permission that a workload may use at any time. What is permitted and not yet
//! available again counts as out of service, and so does what is down; each Pod counts once.

/// What the rule reads of one subset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaveSubset {
    /// How many Pods it is to have.
    pub replicas: i32,
    /// How many of them the user keeps on old revisions.
    pub kept: i32,
    /// How many may be updated already: 0 while its workload does not know the new revision.
    pub permitted: i32,
    /// Pods that its workload may still take down for an older revision, until it is written.
    pub permitted_before: i32,
    /// Pods that are available.
    pub available: i32,
    /// Of those on the new revision, the available ones.
    pub updated_available: i32,
    /// Pods that are down and are updated, or may be by now.
    pub down_permitted: i32,
    /// Other Pods that are down and are updated next. Their update takes nothing out of service.
    pub down_next: i32,
    /// The controller of its workload has not seen the last write yet, and still acts on the previous permission.
    pub is_unseen: bool,
}

impl WaveSubset {
    /// Permitted, and not yet available on the new revision.
    fn in_flight(&self) -> i32 {
        (self.permitted - self.updated_available).max(0)
    }

    /// Pods that are missing or not available.
    pub fn down(&self) -> i32 {
        (self.replicas - self.available).max(0)
    }

    /// How many Pods count as out of service at the worst.
    fn charge(&self) -> i32 {
        let elsewhere = self.down() - self.down_permitted.min(self.in_flight());
        let before = (self.permitted_before - self.down()).max(0);
        self.in_flight().saturating_add(elsewhere.max(0)).saturating_add(before)
    }

    /// With the numbers of a workload that updates what is down before anything else.
    pub fn down_first(self) -> Self {
        let permitted = self.down().min(self.in_flight());
        Self { down_permitted: permitted, down_next: self.down() - permitted, ..self }
    }
}

/// How many Pods of each subset stay on old revisions now, in the order of `subsets`: the least that the budget allows, and
/// never less than the user wants to keep. What has been permitted stays permitted; nothing more is while a workload may still
/// use a permission that has been written over.
pub fn partitions(budget: i32, subsets: &[WaveSubset]) -> Vec<i32> {
    let charged = subsets.iter().fold(0_i32, |sum, subset| sum.saturating_add(subset.charge()));
    let is_unseen = subsets.iter().any(|subset| subset.is_unseen);
    let mut left = if is_unseen { 0 } else { budget.saturating_sub(charged).max(0) };
    let one = |subset: &WaveSubset| {
        let most = (subset.replicas - subset.kept).max(0);
        let permitted = subset.permitted.clamp(0, most);
        let free = if is_unseen { 0 } else { subset.down_next.clamp(0, subset.down()) };
        let more = (most - permitted).min(left.saturating_add(free));
        left -= (more - free).clamp(0, left);
        subset.replicas - permitted - more
    };
    subsets.iter().map(one).collect()
}

/// A Deployment, which has no partition: it rolls as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaveDeployment {
    /// How many Pods it is to have.
    pub replicas: i32,
    /// Pods that are available.
    pub available: i32,
    /// Of those on the new revision, the available ones.
    pub updated_available: i32,
    /// Whether it has the new template.
    pub is_on_update: bool,
    /// Whether it has an older one, and has not updated all its Pods to that.
    pub rolls_before: bool,
    /// Its own maxUnavailable.
    pub limit: i32,
    /// What is written as its maxUnavailable: so many Pods it may take out of service at any time.
    pub permitted: i32,
    /// How many Pods on the new revision find no place, beside those of a surge and those that others make up for. None: each has
    /// a place.
    pub unplaced: Option<i32>,
    /// It has been written, and its controller has not seen that yet: it goes on by what it was permitted before.
    pub is_unseen: bool,
}

impl WaveDeployment {
    fn down(&self) -> i32 {
        (self.replicas - self.available).max(0)
    }
    fn is_rolling(&self) -> bool {
        self.is_on_update && (self.updated_available < self.replicas)
    }

    /// How many Pods it has out of service at the worst.
    fn charge(&self) -> i32 {
        // One in the middle of an older roll-out goes on with that until it is written.
        if self.is_rolling() || self.rolls_before { self.down().max(self.permitted) } else { self.down() }
    }

    /// Whether Pods that find no place use up all that it may have out of service, at most so many: it does not get on by itself.
    fn is_held_up(&self, limit: i32) -> bool {
        !self.is_unseen && self.unplaced.is_some_and(|unplaced| unplaced >= limit.max(self.permitted))
    }
}

/// What a Deployment may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeploymentTurn {
    /// It gets the new template, or has it, with at most so many Pods out of service.
    Rolls(i32),
    /// It keeps its template until others are done.
    Waits,
}

/// Deployments roll one after another, each with what the budget leaves: never less than one Pod, so that it gets on. One
/// that is in the middle of an older roll-out goes on with the new template, before any other one. Where what is down leaves no
/// room for any of them, the first one of which Pods are down goes, one Pod at a time: the new template may be what mends them.
/// One that is held up by Pods without a place, perhaps for ever, does not hold up the others: they go with what it leaves, and
/// share the budget with it when it goes on.
pub fn turns(budget: i32, deployments: &[WaveDeployment]) -> Vec<DeploymentTurn> {
    let mut whole = Whole::of(budget, deployments);
    let is_rolling = deployments.iter().any(|one| one.is_rolling() && !one.is_held_up(whole.limit(one)));
    let goes_on = if is_rolling { None } else { whole.goes_on(deployments) };
    let mut is_taken = is_rolling || goes_on.is_some();
    let mut turns = Vec::with_capacity(deployments.len());
    for (index, one) in deployments.iter().enumerate() {
        let is_next = !one.is_on_update && goes_on != Some(index);
        if is_next && (is_taken || !whole.has_room(one)) {
            turns.push(DeploymentTurn::Waits);
            continue;
        }
        is_taken |= is_next && one.replicas > 0;
        let limit = whole.limit(one);
        if !one.is_on_update || one.is_rolling() {
            whole.charged = whole.charged.saturating_add((limit - one.charge()).max(0));
        }
        turns.push(DeploymentTurn::Rolls(limit));
    }
    turns
}

/// All Deployments together.
struct Whole {
    budget: i32,
    /// Pods that are missing or not available.
    down: i32,
    /// Pods that count as out of service at the worst.
    charged: i32,
    /// One of those that roll may still go by an older permission.
    is_unseen: bool,
}

impl Whole {
    fn of(budget: i32, deployments: &[WaveDeployment]) -> Self {
        let sum =
            |of: fn(&WaveDeployment) -> i32| deployments.iter().fold(0_i32, |sum, one| sum.saturating_add(of(one)));
        let is_unseen = deployments.iter().any(|one| one.is_rolling() && one.is_unseen);
        Self { budget, down: sum(WaveDeployment::down), charged: sum(WaveDeployment::charge), is_unseen }
    }

    /// Whether nothing of it runs, or others have left room.
    fn has_room(&self, one: &WaveDeployment) -> bool {
        one.available == 0 || self.down - one.down() < self.budget
    }

    /// How many Pods it may have out of service.
    fn limit(&self, one: &WaveDeployment) -> i32 {
        let has_rolled = one.is_on_update && !one.is_rolling();
        let elsewhere = if has_rolled { self.down - one.down() } else { self.charged - one.charge() };
        // A permission that has just been taken back may still be used.
        let own = if self.is_unseen && one.is_rolling() { one.limit.min(one.permitted.max(1)) } else { one.limit };
        own.min(self.budget.saturating_sub(elsewhere).max(1))
    }

    /// The one that goes on while none rolls: from an older roll-out, or, where none has room, because the new template may mend it.
    fn goes_on(&self, deployments: &[WaveDeployment]) -> Option<usize> {
        let waits = |one: &WaveDeployment| !one.is_on_update && one.replicas > 0;
        let is_stuck = !deployments.iter().any(|one| waits(one) && self.has_room(one));
        let before = deployments.iter().position(|one| one.rolls_before);
        before.or_else(|| deployments.iter().position(|one| is_stuck && waits(one) && one.down() > 0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn old(replicas: i32) -> WaveSubset {
        WaveSubset { replicas, available: replicas, ..WaveSubset::default() }
    }

    #[test]
    fn a_roll_out_takes_no_more_of_the_whole_than_its_budget() {
        assert_eq!(partitions(3, &[old(2), old(5)]), [0, 4], "the first subset first");
        let busy = WaveSubset { permitted: 2, available: 0, ..old(2) }.down_first();
        assert_eq!(partitions(3, &[busy, old(5)]), [0, 4]);
        assert_eq!(partitions(2, &[busy, old(5)]), [0, 5], "it waits until those are available again");
        let done = WaveSubset { permitted: 2, updated_available: 2, ..old(2) };
        assert_eq!(partitions(2, &[done, old(5)]), [0, 3]);
        let before = WaveSubset { permitted_before: 2, ..old(2) };
        assert_eq!(
            partitions(2, &[old(5), before]),
            [5, 2],
            "what it was permitted of an older revision may go at any time"
        );
        let gone = WaveSubset { available: 0, ..before }.down_first();
        assert_eq!(partitions(2, &[old(5), gone]), [5, 0], "what has gone counts once, and is updated for nothing");
        let unseen = WaveSubset { is_unseen: true, ..old(2) };
        assert_eq!(partitions(3, &[old(5), unseen]), [5, 2], "the revision before may still be rolled out");
        assert_eq!(partitions(3, &[WaveSubset { available: 0, ..old(2) }.down_first(), unseen]), [2, 2]);
        let kept = WaveSubset { kept: 4, ..old(5) };
        assert_eq!(partitions(9, &[kept]), [4], "the user keeps some");
    }

    #[test]
    fn what_is_down_is_updated_for_nothing_and_counts_once() {
        let broken = WaveSubset { available: 3, ..old(5) }.down_first();
        assert_eq!(partitions(1, &[broken, old(5)]), [3, 5]);
        let moving = WaveSubset { permitted: 2, ..broken }.down_first();
        assert_eq!(partitions(2, &[moving, old(5)]), [3, 5], "two are down, and the same two are in flight");
        assert_eq!(partitions(3, &[moving, old(5)]), [2, 5]);
        let low = WaveSubset { available: 4, ..old(5) };
        assert_eq!(partitions(1, &[low]), [5], "by ordinals others would have to go first");
        assert_eq!(partitions(2, &[low]), [4]);
        let both = WaveSubset { permitted: 1, ..low };
        assert_eq!(partitions(2, &[both]), [4], "one is down and another one may go at any time");
        assert_eq!(partitions(1, &[WaveSubset { down_next: 1, ..low }]), [4], "the next one is down already");
    }

    #[test]
    fn deployments_roll_one_after_another() {
        use DeploymentTurn::{Rolls, Waits};
        let old = WaveDeployment { replicas: 4, available: 4, limit: 1, ..WaveDeployment::default() };
        let rolling = WaveDeployment { is_on_update: true, updated_available: 2, ..old };
        let done = WaveDeployment { updated_available: 4, ..rolling };
        assert_eq!(turns(2, &[old, old]), [Rolls(1), Waits]);
        assert_eq!(turns(2, &[rolling, old]), [Rolls(1), Waits]);
        assert_eq!(turns(2, &[done, old]), [Rolls(1), Rolls(1)]);
        let wide = WaveDeployment { limit: 4, ..old };
        assert_eq!(turns(2, &[wide]), [Rolls(2)]);
        let broken = WaveDeployment { available: 1, ..done };
        assert_eq!(turns(2, &[broken, old]), [Rolls(1), Waits], "nothing else goes while the budget is used up");
        let before = WaveDeployment { rolls_before: true, ..wide };
        assert_eq!(turns(2, &[old, before]), [Waits, Rolls(2)], "an older roll-out goes on as the new one");
        assert_eq!(turns(2, &[old, before, before]), [Waits, Rolls(2), Waits]);
        assert_eq!(turns(2, &[rolling, before]), [Rolls(1), Waits], "one at a time");
        let missing = WaveDeployment { is_on_update: true, updated_available: 4, available: 0, ..wide };
        assert_eq!(turns(10, &[missing, wide, old]), [Rolls(4), Rolls(4), Waits], "what is missing does not roll");
        assert_eq!(turns(6, &[missing, wide]), [Rolls(4), Rolls(2)], "it is down");
        assert_eq!(turns(4, &[missing, wide]), [Rolls(4), Waits]);
    }

    #[test]
    fn deployments_that_all_wait_for_each_other_are_mended_one_pod_at_a_time() {
        use DeploymentTurn::{Rolls, Waits};
        let old = WaveDeployment { replicas: 4, available: 4, limit: 4, ..WaveDeployment::default() };
        let broken = |down: i32| WaveDeployment { available: 4 - down, ..old };
        // A second workload of a subset, or one that is missing: it is written no more, or nothing of it rolls.
        let second = |down: i32| WaveDeployment { is_on_update: true, updated_available: 4, ..broken(down) };
        let rolling = WaveDeployment { is_on_update: true, updated_available: 2, ..old };
        let empty = WaveDeployment { replicas: 0, available: 0, limit: 0, ..old };
        for (budget, deployments, wanted) in [
            (1, vec![broken(1), broken(1)], vec![Rolls(1), Waits]),
            (1, vec![old, broken(1), broken(1)], vec![Waits, Rolls(1), Waits]),
            (2, vec![old, broken(3), broken(2)], vec![Waits, Rolls(1), Waits]),
            (1, vec![empty, broken(1), broken(1)], vec![Waits, Rolls(1), Waits]),
            (1, vec![broken(1), second(2)], vec![Rolls(1), Rolls(1)]),
            (2, vec![old, broken(1), second(2)], vec![Waits, Rolls(1), Rolls(1)]),
            (2, vec![old, second(2)], vec![Waits, Rolls(2)]),
            (1, vec![old, broken(1)], vec![Waits, Rolls(1)]),
            (1, vec![rolling, broken(1), broken(1)], vec![Rolls(1), Waits, Waits]),
            (2, vec![broken(1), broken(1)], vec![Rolls(1), Waits]),
        ] {
            assert_eq!(turns(budget, &deployments), wanted, "{budget} {deployments:?}");
        }
    }

    #[test]
    fn a_deployment_that_pods_without_a_place_hold_up_holds_up_no_other_one() {
        use DeploymentTurn::{Rolls, Waits};
        let old = WaveDeployment { replicas: 4, available: 4, limit: 2, ..WaveDeployment::default() };
        let broken = WaveDeployment { available: 2, ..old };
        // So many of its Pods are updated, and find no place for ever.
        let full = |unplaced: i32, permitted: i32| WaveDeployment {
            available: 4 - unplaced,
            is_on_update: true,
            limit: 2 + unplaced,
            permitted,
            unplaced: Some(unplaced),
            ..old
        };
        let moving = WaveDeployment { unplaced: None, ..full(1, 1) };
        let unseen = WaveDeployment { is_unseen: true, ..full(1, 1) };
        // Others make up for the one: nothing is down, and it may go on.
        let compensated = WaveDeployment { available: 4, unplaced: Some(0), permitted: 1, limit: 2, ..full(1, 1) };
        // It may take nothing out of service, and the Pod of its surge finds no place.
        let surge = WaveDeployment { available: 4, unplaced: Some(0), permitted: 0, limit: 0, ..full(1, 1) };
        // All are updated, and one waits.
        let rolled = WaveDeployment { updated_available: 4, ..full(1, 1) };
        let second = WaveDeployment { is_on_update: true, updated_available: 1, permitted: 1, ..broken };
        for (what, budget, deployments, wanted) in [
            ("the budget is used up", 1, vec![full(1, 1), old], vec![Rolls(1), Waits]),
            ("the new template may mend it", 1, vec![full(1, 1), broken], vec![Rolls(1), Rolls(1)]),
            ("there is room beside it", 3, vec![full(1, 3), broken], vec![Rolls(1), Waits]),
            ("when it has lost its permission", 3, vec![full(1, 1), broken], vec![Rolls(1), Rolls(2)]),
            ("it still gets on", 3, vec![full(1, 1), old], vec![Rolls(3), Waits]),
            ("its Pod comes back", 1, vec![moving, broken], vec![Rolls(1), Waits]),
            ("its controller may go by an older permission", 1, vec![unseen, broken], vec![Rolls(1), Waits]),
            ("others make up for the Pod", 2, vec![compensated, old], vec![Rolls(2), Waits]),
            ("it waits with a surge", 2, vec![surge, old], vec![Rolls(0), Rolls(2)]),
            ("it is through", 3, vec![rolled, old], vec![Rolls(3), Rolls(2)]),
            ("one after another", 3, vec![full(1, 1), second, broken], vec![Rolls(1), Rolls(1), Waits]),
        ] {
            assert_eq!(turns(budget, &deployments), wanted, "{what}: {budget} {deployments:?}");
        }
    }

    #[test]
    fn deployments_that_roll_beside_each_other_share_the_budget() {
        use DeploymentTurn::{Rolls, Waits};
        // A third revision comes while two are in the middle of the second.
        let held = WaveDeployment { replicas: 4, available: 3, limit: 3, permitted: 1, ..WaveDeployment::default() };
        let held = WaveDeployment { rolls_before: true, ..held };
        let before = WaveDeployment { available: 4, limit: 4, permitted: 2, ..held };
        assert_eq!(turns(3, &[held, before]), [Rolls(1), Waits]);
        let one = |available: i32, permitted: i32| WaveDeployment {
            replicas: 4,
            available,
            updated_available: 1,
            is_on_update: true,
            limit: 4,
            permitted,
            ..WaveDeployment::default()
        };
        let unseen = WaveDeployment { is_unseen: true, ..one(4, 1) };
        for (budget, deployments, wanted) in [
            (4, vec![one(4, 1), one(4, 1)], vec![Rolls(3), Rolls(1)]),
            (4, vec![one(4, 1), one(2, 1)], vec![Rolls(2), Rolls(2)]),
            (3, vec![one(4, 1), one(4, 2)], vec![Rolls(1), Rolls(2)]),
            (4, vec![one(4, 1), unseen], vec![Rolls(1), Rolls(1)]),
            (2, vec![one(4, 2), one(4, 2)], vec![Rolls(1), Rolls(1)]),
        ] {
            assert_eq!(turns(budget, &deployments), wanted, "{budget} {deployments:?}");
        }
    }

    proptest! {
        /// Each subset uses its permission at once, and Pods come back in any order: never more out of service than the
        /// budget, and everything is updated in the end.
        #[test]
        fn the_budget_is_kept_and_the_roll_out_ends(sizes in proptest::collection::vec(0..9_i32, 1..5), budget in 1..6_i32, back in proptest::collection::vec(0..5_usize, 1..20)) {
            let mut permitted = vec![0; sizes.len()];
            let mut updated = vec![0; sizes.len()];
            let mut turns = back.iter().cycle();
            for _ in 0..400 {
                let seen: Vec<WaveSubset> = sizes.iter().enumerate().map(|(i, replicas)| WaveSubset {
                    replicas: *replicas, kept: 0, permitted: permitted[i], updated_available: updated[i],
                    available: replicas - (permitted[i] - updated[i]), ..WaveSubset::default()
                }.down_first()).collect();
                for (i, kept) in partitions(budget, &seen).into_iter().enumerate() {
                    prop_assert!(sizes[i] - kept >= permitted[i], "nothing is taken back");
                    permitted[i] = sizes[i] - kept;
                }
                let out: i32 = permitted.iter().zip(&updated).map(|(p, u)| p - u).sum();
                prop_assert!(out <= budget);
                let next = turns.next().unwrap() % sizes.len();
                if let Some(i) = (0..sizes.len()).map(|i| (i + next) % sizes.len()).find(|i| updated[*i] < permitted[*i]) {
                    updated[i] += 1;
                }
            }
            prop_assert_eq!(updated, sizes);
        }
    }
}
