//! One pass over a DaemonSet: everything to do now, from what was observed.

use super::{
    keep,
    plan::{Action, Observed, Plan, Slot, Turn, slots},
    spec::Numbers,
    update,
};
use crate::domain::workload::{steps, turns::Turns};

/// Everything to do now.
pub fn plan(observed: &Observed<'_>) -> Plan {
    let desired = observed.nodes.iter().filter(|node| node.counts()).count();
    let numbers = observed.spec.numbers(desired);
    let mut plan = Plan { burst: numbers.burst, ..Plan::default() };
    let slots = slots(observed);
    let outage = |slot: &Slot<'_>| Some((slot.node.name.clone(), slot.outage(observed)?));
    plan.outages = slots.iter().filter(|slot| slot.node.counts()).filter_map(outage).collect();
    keep::keep(observed, &slots, numbers, &mut plan);
    update::update(observed, &slots, numbers, &mut plan);
    // What runs where it need not run is not waited for: the counts leave it out too.
    let wanted = || slots.iter().filter(|slot| slot.node.counts());
    for pod in wanted().flat_map(|slot| &slot.pods).filter(|pod| pod.is_serving()) {
        let left = pod.until_available.unwrap_or_default();
        if !left.is_zero() {
            plan.look_after(left);
            plan.wait("PodNotAvailable", || {
                format!("Pod {} is Ready and counts as available in {} s", pod.name, left.as_secs() + 1)
            });
        }
    }
    for slot in wanted().filter(|slot| !slot.node.fit.should_run && slot.pods.is_empty()) {
        plan.wait("NodeNotReady", || format!("Node {} is not Ready, and gets its Pod when it is", slot.node.name));
    }
    cut(observed.turns, &mut plan, numbers);
    if observed.allowed.is_none() {
        if let Some(pod) = plan.candidates.first().and_then(|candidate| candidate.action.pod().map(str::to_owned)) {
            plan.wait("RevisionsNotRead", || steps::not_updated_on_a_guess(&pod));
        }
        plan.candidates.clear();
        plan.not_in_place = None;
        // What is missing is made all the same, unless its number depends on how many Pods are updated.
        plan.actions.retain(|action| !observed.spec.partitioned_scaling || !matches!(action, Action::Create { .. }));
    }
    // Its node would have none: it stays, and whoever has marked it hears why.
    for slot in slots.iter().filter(|slot| slot.node.fit.should_continue && !slot.node.counts()) {
        if let Some(pod) = slot.live().find(|pod| pod.is_specified) {
            let (name, node) = (&pod.name, &slot.node.name);
            plan.wait("NodeRepelsPods", || {
                format!("Pod {name} is marked to be deleted, and is replaced when no taint keeps new Pods from its node {node}")
            });
        }
    }
    plan
}

/// Holds to `burstReplicas`. What was refused is not what keeps the others waiting.
fn cut(turns: &Turns<Turn>, plan: &mut Plan, numbers: Numbers) {
    turns.sort(&mut plan.actions, Action::turn);
    let (mut creations, mut deletions) = (0, 0);
    let before = plan.actions.len();
    plan.actions.retain(|action| {
        let count = match action {
            Action::Create { .. } => &mut creations,
            Action::Delete { .. } => &mut deletions,
            _ => return true,
        };
        *count += 1;
        *count <= numbers.burst
    });
    plan.is_cut = plan.actions.len() < before;
}
