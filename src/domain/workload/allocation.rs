//! How many replicas each subset gets: the one rule of WorkloadSpread and UnitedDeployment.
//!
//! Subsets have an order: the first ones fill first. Numbers of users are bounded by the total before they are added up.

use crate::k8s::int_or_percent::{IntOrPercent, Round};

/// What the rule reads of one subset. The default is a subset without any limits and without replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct AllocationSubset {
    /// Its name, which decides between equals.
    pub name: String,
    /// Exactly so many. Only [`AllocationMode::Shares`] reads it.
    pub fixed: Option<IntOrPercent>,
    /// At least so many, while the total lasts.
    pub min: Option<IntOrPercent>,
    /// At most so many. None: no limit.
    pub max: Option<IntOrPercent>,
    /// How many it is asked to have now.
    pub current: i32,
    /// How many of them are ready. [`AllocationMode::Adaptive`] does not move them.
    pub ready: i32,
    /// How many that are not ready stay with those: a StatefulSet gives up its highest ordinals, whether the ones below are ready
    /// or not. [`AllocationMode::Adaptive`] keeps them too, while the total lasts.
    pub below_ready: i32,
    /// How many of them are expected to fail and are replaced elsewhere. Only [`AllocationMode::Reserving`] reads it.
    pub reserved: i32,
    /// Whether new Pods find a place in it, as far as is known.
    pub is_schedulable: bool,
    /// Whether more Pods of it have to run first, before they count: its others did not find a place a moment ago, or it had
    /// none so far. Only [`AllocationMode::Reserving`] reads it.
    pub is_on_trial: bool,
}

impl Default for AllocationSubset {
    fn default() -> Self {
        Self {
            name: String::new(),
            fixed: None,
            min: None,
            max: None,
            current: 0,
            ready: 0,
            below_ready: 0,
            reserved: 0,
            is_schedulable: true,
            is_on_trial: false,
        }
    }
}

/// Which rule applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationMode {
    /// Fixed numbers, and equal shares of the rest.
    Shares,
    /// Minimums in order, then up to the maximums in order.
    Bounds,
    /// As `Bounds`; a subset in which Pods find no place keeps only what is ready, and what is ready elsewhere stays.
    Adaptive,
    /// As `Bounds`; Pods that find no place stay and are replaced in other subsets for the time being.
    Reserving,
}

/// Why nothing can be allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// The subsets ask for more than there is.
    #[error("the subsets ask for {sum} replicas, which is more than the total of {total}")]
    SumAboveTotal {
        /// What they ask for.
        sum: i64,
        /// What there is.
        total: i32,
    },
    /// Every subset has a number of its own, and together they are less.
    #[error("every subset has its own number of replicas, {sum} together, which is less than the total of {total}")]
    SumBelowTotal {
        /// What they ask for.
        sum: i64,
        /// What there is.
        total: i32,
    },
    /// There is no total to take shares of.
    #[error("subset {subset} needs spec.replicas: it has no number of replicas of its own")]
    NoTotal {
        /// The first subset that needs it.
        subset: String,
    },
}

/// The number that a field of a subset means out of `total`: a part of one half and more is one, as in OpenKruise.
pub fn share(value: IntOrPercent, total: i32) -> i32 {
    value.resolve(total, Round::HalfUp).max(0)
}

/// The replicas of every subset, in the order of `subsets`.
///
/// # Errors
/// The numbers of the subsets do not fit `total`, or it is missing.
pub fn allocate(
    mode: AllocationMode,
    total: Option<i32>,
    subsets: &[AllocationSubset],
) -> Result<Vec<i32>, AllocationError> {
    if mode == AllocationMode::Shares {
        return shares(total, subsets);
    }
    let missing = || AllocationError::NoTotal { subset: subsets.first().map_or_else(String::new, |s| s.name.clone()) };
    let total = total.ok_or_else(missing)?.max(0);
    let bounds: Vec<(i32, i32)> = subsets.iter().map(|subset| bounds(subset, total)).collect();
    Ok(match mode {
        AllocationMode::Shares | AllocationMode::Bounds => in_order(total, &bounds),
        AllocationMode::Adaptive => in_order(total, &adapted(total, subsets, &bounds)),
        AllocationMode::Reserving => reserving(total, subsets, &bounds),
    })
}

/// Fills up the minimums in order, then up to the maximums in order, while `total` lasts.
pub fn in_order(total: i32, bounds: &[(i32, i32)]) -> Vec<i32> {
    let mut left = total.max(0);
    let mut take = |wanted: i32| {
        let taken = wanted.clamp(0, left);
        left -= taken;
        taken
    };
    let mut all: Vec<i32> = bounds.iter().map(|(min, _)| take(*min)).collect();
    for (replicas, (_, max)) in all.iter_mut().zip(bounds) {
        *replicas += take(max.saturating_sub(*replicas));
    }
    all
}

/// The subset of the next Pod: the first one in which Pods find a place and that is not full. `places` says of each subset
/// how many it has, how many it may have (None: no limit), and whether Pods find a place in it. Pods that are placed one by
/// one in this way are spread as [`in_order`] says.
pub fn next_place(places: impl IntoIterator<Item = (i32, Option<i32>, bool)>) -> Option<usize> {
    places.into_iter().position(|(there, max, is_schedulable)| is_schedulable && max.is_none_or(|max| there < max))
}

/// Minimum and maximum of a subset, neither above the total nor below zero, and the maximum not below the minimum.
fn bounds(subset: &AllocationSubset, total: i32) -> (i32, i32) {
    let max = subset.max.map_or(total, |max| share(max, total)).min(total);
    let min = subset.min.map_or(0, |min| share(min, total)).min(max);
    (min, max)
}

/// The bounds that keep what is ready where it is, and nothing else where Pods find no place. Where the total has become too
/// small for that, something ready goes anyway: then no replica is spent on what is not ready.
fn adapted(total: i32, subsets: &[AllocationSubset], bounds: &[(i32, i32)]) -> Vec<(i32, i32)> {
    let with_those_below = |subset: &AllocationSubset| subset.ready.saturating_add(subset.below_ready);
    let all = subsets.iter().zip(bounds).map(|(subset, (_, max))| i64::from(with_those_below(subset).min(*max)));
    let lasts = all.sum::<i64>() <= i64::from(total);
    let one = |(subset, (min, max)): (&AllocationSubset, &(i32, i32))| {
        let wanted = if lasts { with_those_below(subset) } else { subset.ready };
        let kept = wanted.min(*max).max(*min);
        (kept, if subset.is_schedulable { *max } else { kept })
    };
    subsets.iter().zip(bounds).map(one).collect()
}

/// Fixed numbers, and the rest in equal shares. What cannot be divided goes to those that have the most, so that the fewest
/// Pods move; among equals to the one with the later name.
fn shares(total: Option<i32>, subsets: &[AllocationSubset]) -> Result<Vec<i32>, AllocationError> {
    let Some(total) = total.map(|total| total.max(0)) else { return numbers_alone(subsets) };
    let mut all: Vec<i32> = subsets.iter().map(|s| s.fixed.map_or(0, |fixed| share(fixed, total))).collect();
    let mut open: Vec<usize> = (0..subsets.len()).filter(|index| subsets[*index].fixed.is_none()).collect();
    settle_percentages(total, subsets, &mut all, open.is_empty());
    let sum: i64 = all.iter().copied().map(i64::from).sum();
    let rest = i64::from(total) - sum;
    if rest < 0 {
        return Err(AllocationError::SumAboveTotal { sum, total });
    }
    if open.is_empty() {
        return if rest == 0 { Ok(all) } else { Err(AllocationError::SumBelowTotal { sum, total }) };
    }
    open.sort_by(|a, b| {
        let (a, b) = (&subsets[*a], &subsets[*b]);
        (b.current, &b.name).cmp(&(a.current, &a.name))
    });
    let rest = usize::try_from(rest).unwrap_or_default();
    let (each, more) = (rest / open.len(), rest % open.len());
    for (place, index) in open.iter().enumerate() {
        all[*index] = i32::try_from(each + usize::from(place < more)).unwrap_or(i32::MAX);
    }
    Ok(all)
}

/// Without a total every subset has to say a number.
fn numbers_alone(subsets: &[AllocationSubset]) -> Result<Vec<i32>, AllocationError> {
    let number = |subset: &AllocationSubset| match subset.fixed {
        Some(IntOrPercent::Int(number)) => Ok(number.max(0)),
        Some(IntOrPercent::Percent(_)) | None => Err(AllocationError::NoTotal { subset: subset.name.clone() }),
    };
    subsets.iter().map(number).collect()
}

/// Percentages that fit together may be rounded to more than there is (50 % and 50 % of 3), or to less. The last ones give or
/// take one each then: otherwise a change of the total through `/scale`, which knows no subsets, would stop everything.
fn settle_percentages(total: i32, subsets: &[AllocationSubset], all: &mut [i32], is_exact: bool) {
    let part = |subset: &AllocationSubset| match subset.fixed {
        Some(IntOrPercent::Percent(percent)) => percent.clamp(0.0, 100.0) * f64::from(total) / 100.0,
        Some(IntOrPercent::Int(number)) => f64::from(number.max(0)),
        None => 0.0,
    };
    let exact: f64 = subsets.iter().map(part).sum();
    let sum: i64 = all.iter().copied().map(i64::from).sum();
    let mut excess = sum - i64::from(total);
    // Parts are inexact in the last digits.
    let fits = exact <= f64::from(total) + 1e-6 && (!is_exact || exact >= f64::from(total) - 1e-6);
    if !fits || excess == 0 || (excess < 0 && !is_exact) {
        return;
    }
    for (subset, replicas) in subsets.iter().zip(all).rev() {
        let was_rounded = matches!(subset.fixed, Some(IntOrPercent::Percent(_))) && part(subset).fract() != 0.0;
        if was_rounded && excess != 0 {
            let rounded_up = f64::from(*replicas) > part(subset);
            let step = i32::from(excess < 0 && !rounded_up) - i32::from(excess > 0 && rounded_up);
            *replicas += step;
            excess += i64::from(step);
        }
    }
}

/// Replicas that are expected to fail cost nothing of the total, so that others are made for them elsewhere.
fn reserving(total: i32, subsets: &[AllocationSubset], bounds: &[(i32, i32)]) -> Vec<i32> {
    let ideal = in_order(total, bounds);
    let mut left = total;
    let mut capacity: Vec<i32> = subsets.iter().map(capacity).collect();
    let mut give = |index: usize, wanted: i32, left: &mut i32| {
        let capacity = &mut capacity[index];
        // So many of the wanted Pods are expected to run; the others stay and wait for a place.
        let runs = wanted.clamp(0, *capacity);
        let taken = runs.min(*left);
        *left -= taken;
        *capacity -= taken;
        if taken < runs { taken } else { wanted.max(0) }
    };
    let mut all: Vec<i32> = bounds.iter().enumerate().map(|(index, (min, _))| give(index, *min, &mut left)).collect();
    for (index, subset) in subsets.iter().enumerate() {
        let has = all[index];
        let (_, max) = bounds[index];
        // Where Pods wait for a place there are no more than it would get if there was place for all, or is still to be given.
        let of_use = ideal[index].max(capacity_of(subset)).max(has.saturating_add(left));
        let up_to = match (is_healthy(subset), subset.is_on_trial) {
            (true, false) => max,
            (true, true) => max.min(of_use),
            // What it has may stay.
            (false, _) => subset.current.clamp(0, max).min(of_use),
        };
        all[index] += give(index, up_to.saturating_sub(has), &mut left);
    }
    all
}

fn is_healthy(subset: &AllocationSubset) -> bool {
    subset.is_schedulable && subset.reserved <= 0
}

/// How many of a subset's replicas are expected to run.
fn capacity(subset: &AllocationSubset) -> i32 {
    if is_healthy(subset) && !subset.is_on_trial { i32::MAX } else { capacity_of(subset) }
}

fn capacity_of(subset: &AllocationSubset) -> i32 {
    subset.current.saturating_sub(subset.reserved).max(0)
}

#[cfg(test)]
mod tests;
