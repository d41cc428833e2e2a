//! Which Pods are taken out of service to be updated or replaced, and how each of them gets there.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    claims::{Growth, ONLINE_RESIZE, growth},
    order::{Range, Slot},
    plan::{Action, Candidate, Observed, Plan, leave},
    pod::Pod,
    room::{Charge, Room},
    scale::{held, wait_for},
    spec::{Policy, Rolling},
};
use crate::{
    domain::pod::{
        inplace::{self, UpdateSpec},
        lifecycle::State,
    },
    k8s::revision,
};

/// How a Pod gets to the update revision.
#[derive(Clone, Debug)]
enum Way {
    InPlace(UpdateSpec),
    Replace,
    Impossible(String),
}

/// What the claims of a Pod need.
#[derive(Debug, Default)]
struct Claims {
    ask: Vec<(String, usize)>,
    grows: Option<String>,
    /// A claim that waits for a mount, and how long kubelet has had for it.
    awaits_mount: Option<(String, std::time::Duration)>,
    refused: Option<String>,
}

/// Adds to the plan what makes Pods unavailable, in the order in which it may be done.
pub(super) fn update(observed: &Observed<'_>, slots: &[Slot<'_>], is_busy: bool, plan: &mut Plan) {
    let spec = observed.spec;
    let limit = spec.rolling().map_or(1, |rolling| rolling.max_unavailable);
    let mut job = Job { observed, ways: BTreeMap::new(), claims: BTreeMap::new() };
    plan.room = Room::new(slots.iter().map(|slot| slot.pod), limit, spec.is_ordered);
    if is_busy {
        plan.room.close();
    }
    let pods = || slots.iter().rev().filter_map(|slot| slot.pod).filter(|pod| !pod.is_terminating && !pod.is_finished);
    if spec.grows_claims {
        for pod in pods() {
            let claims = job.look_at_claims(pod);
            if pod.is_available() && (claims.grows.is_some() || claims.awaits_mount.is_some()) {
                plan.room.take();
            }
            job.claims.insert(pod.ordinal, claims);
        }
    }
    let wanted: Vec<&Pod> = spec.rolling().map_or_else(Vec::new, |rolling| {
        let range = Range {
            partition: rolling.partition,
            unordered: rolling.unordered.as_ref(),
            update_revision: observed.update_revision,
            announced_is_updated: observed.announced_is_updated,
        };
        range.wanted(slots)
    });
    let in_range: BTreeSet<i32> = wanted.iter().map(|pod| pod.ordinal).collect();
    let is_paused = spec.rolling().is_some_and(|rolling| rolling.paused);

    for pod in pods().filter(|pod| pod.is_specified) {
        match leave(spec, pod) {
            Some(action) => plan.candidates.push(Candidate { action, charge: Charge::of(pod) }),
            None => plan.wait("PodHeld", || held(pod, "preDelete")),
        }
    }
    for pod in pods().filter(|pod| !pod.is_specified) {
        let is_outdated = job.is_outdated(pod);
        let is_due = is_outdated && in_range.contains(&pod.ordinal);
        plan.is_held |= is_outdated && (!is_due || is_paused);
        match pod.state {
            // While paused nothing is begun and nothing is taken back.
            State::PreparingDelete | State::PreparingUpdate if is_due => {}
            State::PreparingDelete => job.end_or_cancel_deletion(pod, plan),
            State::PreparingUpdate if !pod.is_updated(observed.update_revision) => {
                plan.actions.push(Action::CancelUpdate { pod: pod.name.clone() });
            }
            _ => {}
        }
    }
    let Some(rolling) = spec.rolling().filter(|rolling| !rolling.paused) else { return };
    let mut due: Vec<&Pod> =
        wanted.into_iter().filter(|pod| !pod.is_terminating && !pod.is_finished && !pod.is_specified).collect();
    if let Some(order) = &spec.update_order {
        due.sort_by_key(|pod| order.place(&pod.labels));
    }
    // What is down takes no room and waits for nobody.
    let (down, up): (Vec<&Pod>, Vec<&Pod>) = due.into_iter().partition(|pod| Charge::of(pod) == Charge::Down);
    for pod in down.into_iter().chain(up) {
        job.consider(pod, rolling, plan);
    }
    if !plan.candidates.is_empty() || slots.iter().filter_map(|slot| slot.pod).any(|pod| job.is_outdated(pod)) {
        slots.iter().filter_map(|slot| slot.pod).filter(|pod| !pod.is_available()).for_each(|pod| wait_for(pod, plan));
    }
}

struct Job<'a, 'o> {
    observed: &'a Observed<'o>,
    /// By the revision and the override that a Pod comes from, and the override that it is to have.
    ways: BTreeMap<(String, String, String), Result<UpdateSpec, String>>,
    /// By ordinal, while claims are grown.
    claims: BTreeMap<i32, Claims>,
}

impl Job<'_, '_> {
    /// Whether a Pod is not as the newest template wants it, its claims aside.
    fn is_outdated(&self, pod: &Pod) -> bool {
        !pod.is_updated(self.observed.update_revision) || pod.lacks_claim.is_some()
    }

    /// The deletion that was announced to a Pod is not wanted any more.
    fn end_or_cancel_deletion(&self, pod: &Pod, plan: &mut Plan) {
        let spec = self.observed.spec;
        if !spec.lifecycle.deletion_is_final() {
            plan.actions.push(Action::CancelDeletion { pod: pod.name.clone() });
        } else if let Some(action) = leave(spec, pod) {
            plan.actions.push(action);
        } else {
            plan.wait("PodHeld", || held(pod, "preDelete"));
        }
    }

    /// What to do about a Pod that is to be on the update revision.
    fn consider(&mut self, pod: &Pod, rolling: &Rolling, plan: &mut Plan) {
        let claims = self.claims.remove(&pod.ordinal).unwrap_or_default();
        let is_outdated = self.is_outdated(pod);
        let charge = Charge::of(pod);
        if let Some(why) = claims.refused {
            // Its update goes on: it waits for nothing that would come.
            plan.impossible("FailedUpdatePVC", why);
        }
        if !claims.ask.is_empty() {
            let action = Action::GrowClaims { pod: pod.name.clone(), claims: claims.ask };
            plan.candidates.push(Candidate { action, charge });
            return;
        }
        if let Some(claim) = claims.grows {
            plan.wait("ClaimGrows", || format!("claim {claim} of Pod {} has not grown yet", pod.name));
            return;
        }
        // With a claim that grows it was charged already, and it serves all the same.
        let charge = if claims.awaits_mount.is_some() { charge.min(Charge::NotYetAvailable) } else { charge };
        if !is_outdated {
            let Some((claim, since)) = claims.awaits_mount else { return };
            let left = ONLINE_RESIZE.saturating_sub(since);
            if left.is_zero() {
                self.replace(pod, charge, plan);
            } else {
                plan.look_after(left);
                plan.wait("ClaimGrows", || format!("claim {claim} of Pod {} waits for kubelet", pod.name));
            }
            return;
        }
        match self.way(pod, rolling) {
            Way::Replace => self.replace(pod, charge, plan),
            Way::Impossible(why) => {
                let why =
                    format!("Pod {} cannot be updated in place, and InPlaceOnly allows nothing else: {why}", pod.name);
                plan.impossible("FailedUpdatePod", why);
            }
            Way::InPlace(spec) => self.in_place(pod, spec, charge, plan),
        }
    }

    fn replace(&self, pod: &Pod, charge: Charge, plan: &mut Plan) {
        match leave(self.observed.spec, pod) {
            Some(action) => plan.candidates.push(Candidate { action, charge }),
            None => plan.wait("PodHeld", || held(pod, "preDelete")),
        }
    }

    fn in_place(&self, pod: &Pod, spec: UpdateSpec, charge: Charge, plan: &mut Plan) {
        let hooks = &self.observed.spec.lifecycle;
        let name = pod.name.clone();
        let is_held = hooks.holds_update(pod);
        let action = match &pod.state {
            State::None | State::PreparingNormal | State::Normal if is_held => {
                Action::AnnounceUpdate { pod: name, restore: false }
            }
            State::PreparingUpdate if is_held => return plan.wait("PodHeld", || held(pod, "inPlaceUpdate")),
            State::None | State::PreparingNormal | State::Normal | State::PreparingUpdate | State::Updating => {
                Action::UpdateInPlace { pod: name, spec }
            }
            State::Updated if hooks.in_place_update.is_some() => Action::AnnounceUpdate { pod: name, restore: true },
            // Without a hook it is moved to Normal before the next pass.
            State::Updated => return,
            // It was to be replaced, and need not be.
            State::PreparingDelete => return self.end_or_cancel_deletion(pod, plan),
            State::Unknown(state) => {
                let why = format!("Pod {} is in lifecycle state {state:?}, which this release does not know", pod.name);
                return plan.impossible("FailedUpdatePod", why);
            }
        };
        plan.candidates.push(Candidate { action, charge });
    }

    /// How a Pod gets to the update revision.
    fn way(&mut self, pod: &Pod, rolling: &Rolling) -> Way {
        let in_place = match (rolling.policy, &pod.lacks_claim) {
            (Policy::ReCreate, _) => return Way::Replace,
            (_, Some(template)) => Err(format!("it has no volume for claim template {template}")),
            _ if !pod.has_gate => Err("it has no readiness gate InPlaceUpdateReady".to_owned()),
            _ => {
                let observed = self.observed;
                let wanted = observed.spec.overrides.hash(pod.ordinal);
                let key = (pod.revision.clone(), pod.applied.hash().to_owned(), wanted);
                self.ways.entry(key).or_insert_with(|| between(observed, pod)).clone()
            }
        };
        match in_place {
            Ok(spec) => {
                let spec = UpdateSpec { grace_seconds: rolling.grace_seconds, ..spec };
                Way::InPlace(match &pod.pending {
                    Some(pending) => inplace::with_pending(spec, pending),
                    None => spec,
                })
            }
            Err(why) if rolling.policy == Policy::InPlaceOnly => Way::Impossible(why),
            Err(_) => Way::Replace,
        }
    }

    fn look_at_claims(&self, pod: &Pod) -> Claims {
        let Observed { spec, claims, classes, now, .. } = self.observed;
        let mut found = Claims::default();
        for (place, template) in spec.claims.iter().enumerate() {
            let name = template.claim_name(&spec.name, pod.ordinal);
            let Some(claim) = claims.get(&name).filter(|claim| !claim.is_deleting()) else { continue };
            let expands = claim.storage_class.as_ref().and_then(|class| classes.get(class)).copied();
            match growth(template, claim, expands) {
                Growth::Fits => {}
                Growth::Ask => found.ask.push((name, place)),
                Growth::Grows => found.grows = found.grows.or(Some(name)),
                Growth::AwaitsMount(since) => found.awaits_mount = Some((name, now.since(since))),
                Growth::Refused(why) => found.refused = found.refused.or(Some(why)),
            }
        }
        found
    }
}

/// What has to change in a Pod between two revisions and overrides, or why that needs another Pod.
fn between(observed: &Observed<'_>, pod: &Pod) -> Result<UpdateSpec, String> {
    let (from, to) = (pod.revision.as_str(), observed.update_revision);
    let template = |name: &str| {
        // The template of the spec, which needs no revision to be read.
        if revision::is_same(name, to) && observed.spec.template.is_object() {
            return Some(observed.spec.template.clone());
        }
        let known = observed.revisions.iter().find(|known| revision::is_same(&known.name, name));
        known.and_then(|known| revision::template(&known.data))
    };
    let (Some(old), Some(new)) = (template(from), template(to)) else {
        return Err(format!("its revision {from:?} is not known any more"));
    };
    let Some(old) = pod.applied.laid_over(&old) else {
        return Err("its annotations do not tell the override that it was made with".to_owned());
    };
    inplace::spec_between(&old, &observed.spec.overrides.laid_over(&new, pod.ordinal), to, observed.allowed)
}
