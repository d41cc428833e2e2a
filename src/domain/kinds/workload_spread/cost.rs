//! The deletion costs of Pods, by which a workload that is scaled down takes them: those with the lowest cost first.
//!
//! With numbers as limits they are OpenKruise's: what the first subsets have is worth most. With percentages that would take
//! all Pods of the last subset before one of the others, and a workload acts on the costs that it finds: they are chosen
//! so that the Pods that stay are spread by the percentages, however many stay.

use std::collections::HashSet;

use super::spec::SpreadSpec;
use crate::k8s::int_or_percent::IntOrPercent;

/// The worth of the Pod that a workload of one Pod has, with percentages. Others are worth one less each.
const FIRST: i32 = 1_000_000;
/// Limits that are worked out while somebody waits: a few milliseconds.
const MOST_AT_ONCE: usize = 60_000;
/// A workload that wants more than this is taken for one that wants so many: what is looked for is looked for one by one.
const MOST_WANTED: i32 = 20_000;

/// The cost of a Pod within the limit of the subset `index`. `is_newest`: it is of the version that Pods are made of; of older
/// ones those go first whose subset is filled first by new ones.
pub fn within(subsets: usize, index: usize, is_newest: bool) -> i32 {
    let (subsets, index) = (number(subsets), number(index));
    if is_newest { (subsets - index) * 100 } else { (index + 1) * 100 }
}

/// The cost of a Pod above the limit of the subset `index`. Of the newest version, Pods of the subset that is filled last go
/// first; of older versions, those of the subset that is filled first.
pub fn above(subsets: usize, index: usize, is_newest: bool) -> i32 {
    -within(subsets, index, !is_newest)
}

/// The cost of a Pod that belongs to no subset.
pub fn nowhere(subsets: usize) -> i32 {
    (number(subsets) + 1) * -100
}

fn number(count: usize) -> i32 {
    // No object has room for so many subsets.
    i32::try_from(count).unwrap_or(i32::MAX / 1000).min(i32::MAX / 1000)
}

/// With percentages: for each subset, in the order in which its Pods come, how many Pods the workload has when the next one goes
/// there. It follows from the limits alone, and is found one Pod after another.
#[derive(Clone, Debug, Default)]
pub struct Coming {
    limits: Vec<Option<IntOrPercent>>,
    order: Vec<Vec<i32>>,
    total: i32,
}

impl Coming {
    /// With no Pod yet.
    pub fn new(spec: &SpreadSpec) -> Self {
        let limits: Vec<_> = spec.subsets.iter().map(|subset| subset.max).collect();
        Self { order: vec![Vec::new(); limits.len()], limits, total: 0 }
    }

    /// Whether it is that of these subsets.
    pub fn is_of(&self, spec: &SpreadSpec) -> bool {
        self.limits.iter().eq(spec.subsets.iter().map(|subset| &subset.max))
    }

    fn one_more(&mut self, spec: &SpreadSpec) {
        self.total += 1;
        let shares = spec.shares(self.total);
        let lacks = |index: &usize| shares[*index] - i32::try_from(self.order[*index].len()).unwrap_or(i32::MAX);
        // The first one of those that lack most.
        let next = (0..shares.len()).rev().max_by_key(lacks).filter(|index| lacks(index) > 0);
        if let Some(index) = next {
            self.order[index].push(self.total);
        }
    }
}

/// How far is looked for the places of so many Pods. Where the Pods are spread otherwise than they should be, a subset reaches its
/// number later; while the workload grows to what it wants, the first subsets have their Pods before the others.
fn farthest(pods: usize, wanted: i32) -> i32 {
    let most = i32::try_from(pods.saturating_mul(4).saturating_add(100)).unwrap_or(FIRST - 1);
    most.max(wanted.min(MOST_WANTED)).min(FIRST - 1)
}

/// As many places as the subsets have Pods in `counts`, as far as they are found. `total`: how many the workload wants.
pub fn order_of_coming(spec: &SpreadSpec, counts: &[i32], total: i32) -> Vec<Vec<i32>> {
    let wanted: Vec<usize> = counts.iter().map(|count| usize::try_from(*count).unwrap_or_default()).collect();
    let mut coming = Coming::new(spec);
    let most = farthest(wanted.iter().sum(), total);
    while coming.total < most && !coming.order.iter().zip(&wanted).all(|(order, wanted)| order.len() >= *wanted) {
        coming.one_more(spec);
    }
    coming.order
}

/// The cost of the Pod that comes when the workload has `total` Pods.
pub fn by_order(total: i32, is_newest: bool) -> i32 {
    if is_newest { FIRST - total } else { total }
}

/// The cost of a new Pod in the subset `index`, which has so many Pods before it, of a workload that wants `total`. None: it takes
/// too long while somebody waits, and is found by the next one or by the controller.
pub fn of_new(spec: &SpreadSpec, coming: &mut Coming, (index, there): (usize, i32), total: i32) -> Option<i32> {
    if !spec.needs_total() {
        return Some(within(spec.subsets.len(), index, true));
    }
    if !coming.is_of(spec) {
        *coming = Coming::new(spec);
    }
    let place = usize::try_from(there).ok()?;
    let most = farthest(place.saturating_add(1), total);
    let mut steps = MOST_AT_ONCE / spec.subsets.len().max(1);
    while coming.order.get(index)?.len() <= place && coming.total < most && steps > 0 {
        coming.one_more(spec);
        steps -= 1;
    }
    coming.order.get(index)?.get(place).map(|total| by_order(*total, true))
}

/// The places in the order of coming for the Pods of one subset: each keeps the one that its cost says, if nobody before it
/// has that one, and the others get those that are left. `order` are the places, `costs` what the Pods have.
pub fn settle(order: &[i32], costs: &[i32], is_newest: bool) -> Vec<Option<i32>> {
    let places: Vec<i32> = order.iter().take(costs.len()).map(|total| by_order(*total, is_newest)).collect();
    let mut free: HashSet<i32> = places.iter().copied().collect();
    let mut settled: Vec<Option<i32>> = costs.iter().map(|cost| free.take(cost)).collect();
    let mut free = places.into_iter().filter(|place| free.contains(place));
    for place in settled.iter_mut().filter(|place| place.is_none()) {
        *place = free.next();
    }
    settled
}
