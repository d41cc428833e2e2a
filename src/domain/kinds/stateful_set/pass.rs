//! One pass over a StatefulSet: everything to do now, from what was observed.

use std::sync::Arc;

use super::{
    plan::{Observed, Plan, slots},
    pod::Pod,
    scale, update,
};

/// Everything to do now.
pub fn plan(observed: &Observed<'_>) -> Plan {
    let mut plan = Plan::default();
    let slots = slots(observed);
    let surplus: Vec<&Pod> = observed
        .pods
        .iter()
        .rev()
        .map(Arc::as_ref)
        .filter(|pod| !observed.spec.ordinals.contains(pod.ordinal))
        .collect();
    if slots.len() < usize::try_from(observed.spec.replicas).unwrap_or(0) {
        let message = "there are fewer ordinals than replicas: the largest ordinal is 2147483647".to_owned();
        plan.impossible("NoOrdinals", message);
    }
    let is_busy = scale::scale(observed, &slots, &surplus, &mut plan);
    update::update(observed, &slots, is_busy, &mut plan);
    slots.iter().filter_map(|slot| slot.pod).for_each(|pod| scale::wait_for_time(pod, &mut plan));
    plan
}
