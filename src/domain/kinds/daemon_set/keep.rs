//! Which Pods there are: makes the missing ones, deletes those that are too many, have failed or are on a node that is to
//! have none.

use super::{
    plan::{Action, Observed, Plan, Slot, Turn, leave},
    pod::Pod,
    ports::{host_ports, overlap},
    spec::Numbers,
};
use crate::{domain::workload::steps::Wait, k8s::revision};

/// Adds to the plan.
pub(super) fn keep(observed: &Observed<'_>, slots: &[Slot<'_>], numbers: Numbers, plan: &mut Plan) {
    let has_surge = numbers.max_surge > 0;
    let mut missing = Vec::new();
    for slot in slots {
        if !slot.node.fit.should_continue {
            slot.pods.iter().filter(|pod| !pod.is_terminating).for_each(|pod| remove(observed, pod, plan));
            continue;
        }
        let is_held = replace_failed(observed, slot, plan);
        match has_surge {
            true => keep_pair(observed, slot, plan),
            false => {
                let kept = slot.kept().map(|pod| &pod.name);
                slot.live().filter(|pod| Some(&pod.name) != kept).for_each(|pod| remove(observed, pod, plan));
            }
        }
        relabel(observed, slot, plan);
        let is_empty = match has_surge {
            // The Pod that ends does not keep the next one from being made.
            true => slot.live().next().is_none() && !is_held,
            false => slot.pods.is_empty(),
        };
        if is_empty && slot.node.fit.should_run {
            missing.push(slot);
        } else if slot.node.counts()
            && let Some(pod) = slot.pods.iter().find(|pod| pod.is_terminating && slot.live().next().is_none())
        {
            plan.wait("PodTerminating", || {
                format!("Pod {} is being deleted and has not ended on node {}", pod.name, pod.node)
            });
        }
    }
    remove_orphans(observed, slots, plan);
    create(observed, slots, missing, numbers, plan);
}

/// Deletes failed Pods when their time has come. True: one stays for now.
fn replace_failed(observed: &Observed<'_>, slot: &Slot<'_>, plan: &mut Plan) -> bool {
    let mut is_held = false;
    for pod in slot.pods.iter().filter(|pod| pod.is_finished && !pod.is_terminating) {
        is_held = true;
        let wait = observed.failures.wait(&slot.node.name, observed.now.mono);
        if !wait.is_zero() {
            plan.look_after(wait);
            if slot.node.fit.should_run {
                plan.wait("PodFailed", || {
                    let (name, node, seconds) = (&pod.name, &pod.node, wait.as_secs() + 1);
                    format!("Pod {name} has ended on node {node} and is replaced in {seconds} s")
                });
            }
            continue;
        }
        match leave(observed.spec, pod, Some(slot.node.name.clone())) {
            Some(action) => plan.actions.push(action),
            None => plan.wait("PodHeld", || held(pod, "preDelete")),
        }
    }
    is_held
}

/// One old and one new Pod of those on a node stay; the old one goes when the new one is available, or if it does not serve
/// itself.
fn keep_pair(observed: &Observed<'_>, slot: &Slot<'_>, plan: &mut Plan) {
    let kept = |pod: &Pod| [slot.new, slot.old].into_iter().flatten().any(|kept| kept.name == pod.name);
    slot.live().filter(|pod| !kept(pod)).for_each(|pod| remove(observed, pod, plan));
    let (Some(new), Some(old)) = (slot.new, slot.old) else { return };
    if new.is_available() || !old.is_serving() {
        remove(observed, old, plan);
    } else if !new.is_bound {
        // The old one keeps its ports until the new one is available.
        let said = if takes_same_port(observed, old) { &mut plan.impossible } else { &mut plan.wait };
        Wait::note(said, "PodNotScheduled", || {
            format!(
                "Pod {} has not been scheduled to node {} beside {}; with maxSurge two Pods must fit on a node, and cannot have the same host port",
                new.name, new.node, old.name
            )
        });
    }
}

/// Whether a Pod of the newest template can never run beside an old one, as far as their templates say: both take the same
/// port of the node.
fn takes_same_port(observed: &Observed<'_>, old: &Pod) -> bool {
    let wanted = host_ports(&observed.spec.template);
    if wanted.is_empty() {
        return false;
    }
    if old.is_new {
        return true;
    }
    let known = observed.revisions.iter().find(|known| revision::is_same(&known.name, &old.hash));
    let template = known.and_then(|known| revision::template(&known.data));
    // One of another priority may take the node from the old Pod.
    let priority = |template: &serde_json::Value| template.pointer("/spec/priorityClassName").cloned();
    template.is_some_and(|template| {
        overlap(&wanted, &host_ports(&template)) && priority(&template) == priority(&observed.spec.template)
    })
}

fn remove(observed: &Observed<'_>, pod: &Pod, plan: &mut Plan) {
    match leave(observed.spec, pod, None) {
        Some(action) => plan.actions.push(action),
        None => plan.wait("PodHeld", || held(pod, "preDelete")),
    }
}

/// A Pod with the template of the newest revision that has the hash of another one: an update in place will have to find
/// its revision by that.
fn relabel(observed: &Observed<'_>, slot: &Slot<'_>, plan: &mut Plan) {
    let is_other = |pod: &&Pod| pod.is_new && !revision::is_same(&pod.hash, observed.update);
    for pod in slot.live().filter(is_other).filter(|pod| pod.pending.is_none()) {
        plan.actions.push(Action::Relabel { pod: pod.name.clone() });
    }
}

/// Pods that never got to their node, which is gone.
fn remove_orphans(observed: &Observed<'_>, slots: &[Slot<'_>], plan: &mut Plan) {
    let is_there = |name: &str| slots.binary_search_by(|slot| slot.node.name.as_str().cmp(name)).is_ok();
    for pod in observed.pods.iter().filter(|pod| !pod.is_bound && !pod.is_terminating && !is_there(&pod.node)) {
        remove(observed, pod, plan);
    }
}

fn create(observed: &Observed<'_>, slots: &[Slot<'_>], mut missing: Vec<&Slot<'_>>, numbers: Numbers, plan: &mut Plan) {
    let mut most = missing.len();
    if observed.spec.partitioned_scaling && observed.spec.is_rolling && numbers.partition > 0 {
        let desired = slots.iter().filter(|slot| slot.node.counts());
        // One that has ended or is going has its place: else the next node would get one that ends too.
        let has_new = |slot: &Slot<'_>| usize::from(slot.pods.iter().any(|pod| pod.is_new));
        let (all, new) = desired.fold((0, 0), |(all, new), slot| (all + 1_usize, new + has_new(slot)));
        let kept = usize::try_from(numbers.partition).unwrap_or(0).min(all);
        most = most.min(all.saturating_sub(new + kept));
        plan.is_held |= most < missing.len();
    }
    // The partition lets only some of them be made.
    observed.turns.sort(&mut missing, |slot| Some(Turn::Node(slot.node.name.clone())));
    for slot in missing.into_iter().take(most) {
        let not_ready_since = slot.lost_before(observed);
        plan.actions.push(Action::Create { node: slot.node.name.clone(), not_ready_since });
    }
}

pub(super) fn held(pod: &Pod, hook: &str) -> String {
    format!("Pod {} is held by its hook {hook}", pod.name)
}
