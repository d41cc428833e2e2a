//! The Pods of a subset in numbers.

use std::time::Duration;

/// The Pods of the workload of a subset, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubsetPods {
    /// All that go on.
    pub there: i32,
    /// Ready ones.
    pub ready: i32,
    /// Available ones, whatever their revision.
    pub available: i32,
    /// Available, and on the template that its workload has now, which may be of an older revision.
    pub own_available: i32,
    /// On the new revision.
    pub updated: i32,
    /// Of them, ready.
    pub updated_ready: i32,
    /// Of them, those that are available and on the template of their workload.
    pub updated_available: i32,
    /// Of those with ordinals: the ordinals of the ready ones.
    pub ready_ordinals: Vec<i32>,
    /// Of those with ordinals: the ordinals of the available ones.
    pub available_ordinals: Vec<i32>,
    /// Pods that have found no place for too long.
    pub overdue: i32,
    /// When the next one will have.
    pub until_overdue: Option<Duration>,
    /// When the next one becomes available.
    pub until_available: Option<Duration>,
    /// Pods that are kept although they find no place.
    pub reserved: i32,
    /// Of them, those that are not Ready.
    pub reserved_down: i32,
    /// Of those, the ones on the new revision.
    pub updated_reserved_down: i32,
    /// Of those, the ones that no node has room for.
    pub updated_unplaced: i32,
}
