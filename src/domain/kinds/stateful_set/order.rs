//! Which Pods are updated, and in which order.

use super::{
    plan::Observed,
    pod::{Pod, Slot},
    spec::{Rolling, Spec},
};
use crate::{
    domain::{
        pod::lifecycle::State,
        workload::pod_order::{Base, PodOrder, Priority, Unkeyed},
    },
    k8s::revision,
};

/// What decides which Pods are to be on the update revision.
#[derive(Clone, Copy, Debug)]
pub struct Range<'a> {
    /// How many Pods stay on the current revision.
    pub partition: i32,
    /// The order of updates, if it is not that of the ordinals.
    pub unordered: Option<&'a Priority>,
    /// Name of the update revision.
    pub update_revision: &'a str,
    /// Whether a Pod that waits for its update counts as updated (gate PreparingUpdateAsUpdate).
    pub announced_is_updated: bool,
}

impl<'a> Range<'a> {
    /// Of a pass, with the rules of a rolling update.
    pub(super) fn of(observed: &Observed<'a>, rolling: &'a Rolling) -> Self {
        Self {
            partition: rolling.partition,
            unordered: rolling.unordered.as_ref(),
            update_revision: observed.update_revision,
            announced_is_updated: observed.announced_is_updated,
        }
    }

    fn is_updated(&self, pod: &Pod) -> bool {
        let label = revision::short(&pod.revision) == revision::short(self.update_revision);
        label || self.announced_is_updated && pod.state == State::PreparingUpdate
    }

    /// Whether new Pods are made on the update revision, for each slot without a Pod: ordinals and answers.
    pub fn new_pods(&self, slots: &[Slot<'_>]) -> Vec<(i32, bool)> {
        let partition = usize::try_from(self.partition).unwrap_or(0);
        let empty = slots.iter().filter(|slot| slot.pod.is_none());
        if self.unordered.is_none() {
            return empty.map(|slot| (slot.ordinal, slot.rank >= partition)).collect();
        }
        let mut old = slots.iter().filter_map(|slot| slot.pod).filter(|pod| !self.is_updated(pod)).count();
        empty
            .map(|slot| {
                let on_update = old >= partition;
                old += usize::from(!on_update);
                (slot.ordinal, on_update)
            })
            .collect()
    }

    /// The Pods that are to be on the update revision, the next ones to update first. Some of them are already.
    pub fn wanted<'p>(&self, slots: &[Slot<'p>]) -> Vec<&'p Pod> {
        let partition = usize::try_from(self.partition).unwrap_or(0);
        let number = slots.len().saturating_sub(partition);
        let Some(priority) = self.unordered else {
            return slots.iter().rev().take(number).filter_map(|slot| slot.pod).collect();
        };
        // Pods that are to be made on the update revision take their share too.
        let to_come = self.new_pods(slots).into_iter().filter(|(_, on_update)| *on_update).count();
        let pods = slots.iter().rev().filter_map(|slot| slot.pod);
        let (mut first, mut rest): (Vec<&Pod>, Vec<&Pod>) =
            pods.partition(|pod| pod.is_terminating || self.is_updated(pod));
        priority.sort(&mut rest, |pod| &pod.labels, Unkeyed::Last);
        first.extend(rest);
        first.truncate(number.saturating_sub(to_come));
        first
    }
}

/// The order in which Pods are updated, wherever the partition ends.
pub fn pod_order(spec: &Spec) -> PodOrder {
    let priority = spec.rolling().and_then(|rolling| rolling.unordered.clone()).unwrap_or_default();
    PodOrder { base: Base::Ordinal, priority, scatter: Vec::new(), last: spec.update_order.clone() }
}
