//! Which Pods are there: makes the missing ones, deletes surplus and finished ones, and keeps identity and claims right.
//!
//! OrderedReady makes one Pod at a time, from the smallest ordinal up, and deletes one at a time from the largest down,
//! each when all Pods that are wanted are available. It stops, as the built-in StatefulSet does, while several surplus Pods
//! are not available and may still become so, but not for longer than [`HALT`]. Nothing else waits for that order: a finished
//! Pod is deleted at once, and a Pod that serves until a hook lets go of it keeps no missing one from being made.

use std::{collections::BTreeSet, time::Duration};

use super::{
    claim_template::ClaimTemplate,
    claims::{goes_with, mended_owners},
    numbering::pod_name,
    order::Range,
    plan::{Action, Creation, Observed, Plan},
    pod::{Pod, Slot},
    spec::may_have_claim,
};
use crate::{
    api::apps::strategies::PodManagementPolicy,
    domain::{
        pod::{
            lifecycle::{LifecycleRules as _, State},
            order::Phase,
        },
        workload::steps::{self, PodAction, Wait},
    },
};

/// Why a Pod waits for its turn.
const IN_ORDER: &str = PodManagementPolicy::OrderedReady.as_str();
/// How long an ordered removal stops for a surplus Pod that is not Ready. The built-in StatefulSet stops for ever.
const HALT: Duration = Duration::from_secs(300);

/// Adds to the plan. True: OrderedReady, and Pods are being created or deleted, or a surplus Pod is not gone yet: updates of
/// healthy Pods wait for that.
pub(super) fn scale(observed: &Observed<'_>, slots: &[Slot<'_>], surplus: &[&Pod], plan: &mut Plan) -> bool {
    for slot in slots {
        if let Some(pod) = slot.pod {
            keep(observed, pod, plan);
        }
    }
    release_claims(observed, plan);
    let before = plan.without_room();
    let is_complete = create(observed, slots, plan);
    let mut is_busy = plan.without_room() > before;
    let lowest_down = surplus.iter().rev().find(|pod| is_down(pod)).copied();
    for pod in surplus {
        let mends = mend_claims(observed, pod, true);
        if !mends.is_empty() {
            // The claim goes with the Pod only if it is owned before.
            plan.actions.extend(mends);
            is_busy = true;
            continue;
        }
        if observed.spec.is_ordered && (is_busy || !is_complete) {
            continue;
        }
        if pod.is_terminating {
            plan.wait("PodTerminating", || terminating(pod));
        } else if let Some(lowest) = lowest_down.filter(|lowest| stops_for(observed, pod, lowest)) {
            plan.look_after(HALT.saturating_sub(pod.down_for));
            plan.wait(IN_ORDER, || {
                let (pod, lowest, minutes) = (&pod.name, &lowest.name, HALT.as_secs() / 60);
                format!(
                    "Pod {pod} is surplus and is deleted when it is available or has not been Ready for {minutes} minutes: Pod {lowest} is not available either"
                )
            });
            // It goes too when it is the only one that is left.
            surplus.iter().for_each(|other| wait_for_time(other, plan));
        } else {
            let action = leave(observed, pod, plan);
            plan.actions.extend(action);
        }
        is_busy = true;
    }
    observed.spec.is_ordered && (is_busy || plan.without_room() > before)
}

/// A surplus Pod that is not available, and may become so while nobody takes it out of service.
fn is_down(pod: &Pod) -> bool {
    let is_leaving = pod.is_terminating || pod.is_finished || pod.state == State::PreparingDelete;
    !is_leaving && pod.until_available.is_none_or(|left| !left.is_zero())
}

/// In strict order what is broken is not made worse: with several Pods down the first one to go waits until it is available,
/// or the last one that is not. One that the newest template does not reach, one that somebody has marked, and one that has
/// been down for so long that nobody is looking, goes.
fn stops_for(observed: &Observed<'_>, pod: &Pod, lowest: &Pod) -> bool {
    observed.spec.is_ordered
        && is_down(pod)
        && lowest.ordinal < pod.ordinal
        && pod.is_updated(observed.update_revision)
        && !pod.is_specified
        && pod.down_for < HALT
}

/// A Pod that is wanted: finished ones are deleted, and identity and claims are made right.
fn keep(observed: &Observed<'_>, pod: &Pod, plan: &mut Plan) {
    plan.actions.extend(mend_claims(observed, pod, false));
    if pod.is_terminating {
        return;
    }
    if pod.is_finished {
        let action = leave(observed, pod, plan);
        plan.actions.extend(action);
        return;
    }
    if !pod.wrong_labels.is_empty() {
        plan.actions.push(Action::MendLabels { pod: pod.name.clone(), labels: pod.wrong_labels.clone() });
    }
    let missing = missing_claims(observed, pod.ordinal);
    // A Pod that was made with a claim that its template has got since is replaced instead.
    if !missing.is_empty() && pod.phase == Some(Phase::Pending) && pod.lacks_claim.is_none() {
        plan.actions.push(Action::CreateClaims { ordinal: pod.ordinal, claims: missing });
    }
}

/// Deletes a Pod, or announces that. None: it stays for now, and the plan says what it waits for, its hook or its claim.
pub(super) fn leave(observed: &Observed<'_>, pod: &Pod, plan: &mut Plan) -> Option<Action> {
    let (spec, name) = (observed.spec, pod.name.clone());
    if let Some(claim) = claim_to_keep(observed, pod) {
        plan.wait("ClaimOwned", || format!("Pod {name} is replaced when it does not own its claim {claim} any more"));
        if spec.is_ordered {
            // Nobody goes before it.
            plan.room.close();
        }
        return None;
    }
    match (spec.lifecycle.holds_deletion(pod), &pod.state) {
        (false, _) => Some(Action::Delete { pod: name }),
        (true, State::PreparingDelete) => {
            plan.wait("PodHeld", || held(pod, "preDelete"));
            None
        }
        (true, _) => Some(Action::Change { pod: name, change: PodAction::AnnounceDeletion }),
    }
}

/// The claim that would go with a Pod although the next one of its name is to have it: the Pod was surplus before, and is
/// wanted again. The owner reference is taken away first, in a pass of its own, for that may be refused.
fn claim_to_keep(observed: &Observed<'_>, pod: &Pod) -> Option<String> {
    let spec = observed.spec;
    if !spec.ordinals.contains(pod.ordinal) {
        return None;
    }
    let goes = |name: &String| {
        let claim = observed.claims.get(name);
        claim.is_some_and(|claim| !claim.is_deleting() && goes_with(claim, &pod.name))
    };
    spec.claims.iter().map(|template| template.claim_name(&spec.name, pod.ordinal)).find(goes)
}

/// The owners of a Pod's claims.
fn mend_claims(observed: &Observed<'_>, pod: &Pod, is_surplus: bool) -> Vec<Action> {
    let spec = observed.spec;
    let mend = |template: &ClaimTemplate| {
        let name = template.claim_name(&spec.name, pod.ordinal);
        let claim = observed.claims.get(&name).filter(|claim| !claim.is_deleting())?;
        let owners = mended_owners(spec, claim, (&pod.name, &pod.uid), is_surplus)?;
        Some(Action::SetClaimOwners { claim: name, owners })
    };
    spec.claims.iter().filter_map(mend).collect()
}

/// Claims of ordinals without a Pod do not go with the set any more when the policy has changed to that. One whose name is
/// not that of a claim of the set, whatever its template was called, has been given to it by somebody else, and stays so.
fn release_claims(observed: &Observed<'_>, plan: &mut Plan) {
    let spec = observed.spec;
    if spec.retention.is_none_or(|retention| retention.delete_with_set) {
        return;
    }
    let mut of_pods = BTreeSet::new();
    for pod in observed.pods {
        of_pods.extend(spec.claims.iter().map(|template| template.claim_name(&spec.name, pod.ordinal)));
    }
    let is_left = |claim: &str| may_have_claim(&spec.name, claim) && !of_pods.contains(claim);
    for (claim, object) in observed.claims.iter().filter(|(claim, _)| is_left(claim)) {
        let owners: Vec<_> = object.owners().iter().filter(|owner| owner.uid != spec.uid).cloned().collect();
        if owners.len() < object.owners().len() && !object.is_deleting() {
            plan.actions.push(Action::SetClaimOwners { claim: claim.clone(), owners });
        }
    }
}

/// Places of the templates for which an ordinal has no claim.
fn missing_claims(observed: &Observed<'_>, ordinal: i32) -> Vec<usize> {
    let spec = observed.spec;
    let is_missing =
        |template: &ClaimTemplate| !observed.claims.contains_key(&template.claim_name(&spec.name, ordinal));
    spec.claims.iter().enumerate().filter(|(_, template)| is_missing(template)).map(|(place, _)| place).collect()
}

/// Makes missing Pods. Whether all that are wanted are there and available.
fn create(observed: &Observed<'_>, slots: &[Slot<'_>], plan: &mut Plan) -> bool {
    let spec = observed.spec;
    let mut new = match spec.rolling() {
        Some(rolling) => Range::of(observed, rolling).new_pods(slots),
        None => slots.iter().filter(|slot| slot.pod.is_none()).map(|slot| (slot.ordinal, true)).collect(),
    }
    .into_iter();
    // Whether all so far are available, and whether the next one may be made as far as they are concerned.
    let (mut is_complete, mut is_next) = (true, true);
    let keeps_place = |pod: &Pod| !pod.is_available() && !pod.serves_until_hook();
    let unavailable = slots.iter().filter(|slot| slot.pod.is_some_and(keeps_place)).count();
    // The Pod that the next one waits for: the first one that is not available, or that is made now.
    let first_down = slots.iter().filter_map(|slot| slot.pod).find(|pod| keeps_place(pod));
    let mut blocker = first_down.map(|pod| pod.name.clone());
    let mut room =
        spec.scale_max_unavailable.map(|limit| usize::try_from(limit).unwrap_or(0).saturating_sub(unavailable));
    for slot in slots {
        let Some(pod) = slot.pod else {
            let Some((ordinal, on_update)) = new.next() else { continue };
            let name = pod_name(&spec.name, ordinal);
            let (waits_for_order, is_limited) = (spec.is_ordered && !is_next, room == Some(0));
            (is_complete, is_next) = (false, false);
            if waits_for_order || is_limited {
                postpone(&name, blocker.as_deref(), waits_for_order, plan);
                continue;
            }
            if spec.is_ordered {
                blocker = Some(name);
            } else {
                blocker.get_or_insert(name);
            }
            match make(observed, ordinal, on_update, plan) {
                Ok(creation) => {
                    plan.creations.push(creation);
                    room = room.map(|room| room - 1);
                }
                Err(Wait { reason, message }) => plan.wait(reason, || message),
            }
            continue;
        };
        if !pod.is_available() {
            is_complete = false;
            is_next &= pod.serves_until_hook();
            wait_for(pod, plan);
        }
    }
    is_complete
}

/// Says why a Pod is not made yet: by OrderedReady, else by `scaleStrategy.maxUnavailable`.
fn postpone(pod: &str, blocker: Option<&str>, for_order: bool, plan: &mut Plan) {
    let message = match blocker {
        Some(blocker) => format!("Pod {pod} is made when Pod {blocker} is available"),
        None => format!("Pod {pod} is made when others are available"),
    };
    if for_order {
        plan.wait(IN_ORDER, || message);
    } else {
        plan.limited.get_or_insert_with(|| message.clone());
        plan.wait("ScaleUpLimited", || message);
    }
}

/// Makes a Pod, unless one of its claims is about to go.
fn make(observed: &Observed<'_>, ordinal: i32, on_update: bool, plan: &mut Plan) -> Result<Creation, Wait> {
    let spec = observed.spec;
    let pod = pod_name(&spec.name, ordinal);
    for template in &spec.claims {
        let name = template.claim_name(&spec.name, ordinal);
        let Some(claim) = observed.claims.get(&name) else { continue };
        let gone = |why: &str| Wait {
            reason: "ClaimTerminating",
            message: format!("Pod {pod} waits until claim {name} is gone: {why}"),
        };
        if claim.is_deleting() {
            return Err(gone("it is being deleted"));
        }
        if goes_with(claim, &pod) {
            if spec.retention.is_none_or(|retention| !retention.delete_with_pod)
                && let Some(owners) = mended_owners(spec, claim, (&pod, ""), false)
            {
                plan.actions.push(Action::SetClaimOwners { claim: name.clone(), owners });
            }
            return Err(gone("it is owned by an earlier Pod of this name"));
        }
    }
    Ok(Creation { ordinal, on_update, claims: missing_claims(observed, ordinal) })
}

pub(super) fn wait_for(pod: &Pod, plan: &mut Plan) {
    let why = || pod.unreadable.as_deref().map(steps::unreadable).unwrap_or_default();
    if pod.is_terminating {
        plan.wait("PodTerminating", || terminating(pod));
    } else if pod.is_finished {
        plan.wait("PodFinished", || format!("Pod {} has ended and is replaced", pod.name));
    } else if !pod.state.is_in_service() {
        plan.wait("PodNotInService", || {
            format!("Pod {} is in lifecycle state {}{}", pod.name, pod.state.as_str(), why())
        });
    } else if !pod.is_serving() {
        plan.wait("PodNotReady", || format!("Pod {} is not Ready{}", pod.name, why()));
    }
    // What remains is a matter of time, and is reported with it.
}

/// A Pod that is Ready and becomes available with time.
pub(super) fn wait_for_time(pod: &Pod, plan: &mut Plan) {
    let left = pod.until_available.filter(|_| pod.is_serving()).unwrap_or_default();
    if !left.is_zero() {
        plan.look_after(left);
        plan.wait("PodNotAvailable", || {
            format!("Pod {} is Ready and counts as available in {} s", pod.name, left.as_secs() + 1)
        });
    }
}

pub(super) fn terminating(pod: &Pod) -> String {
    match pod.node.as_str() {
        "" => format!("Pod {} is being deleted", pod.name),
        node => format!(
            "Pod {} is being deleted and has not ended on node {node}; if that node is lost for good, give it the taint node.kubernetes.io/out-of-service",
            pod.name
        ),
    }
}

pub(super) fn held(pod: &Pod, hook: &str) -> String {
    format!("Pod {} is held by its hook {hook}", pod.name)
}
