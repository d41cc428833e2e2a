//! Which Pods are taken out of service to be updated or replaced, and how each of them gets there.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    claims::{CLASS_LOOK, Growth, ONLINE_RESIZE, PATIENCE, growth},
    numbering::pod_name,
    order::Range,
    plan::{Action, Candidate, Observed, Plan},
    pod::{Pod, Slot},
    room::{Charge, Room},
    scale::{held, leave, wait_for},
    spec::{Rolling, Spec},
};
use crate::{
    api::apps::strategies::PodUpdatePolicy,
    domain::{
        pod::{
            inplace::{self, NotInPlace, UpdateSpec},
            lifecycle::{BeforeUpdate, LifecycleRules as _, State, after_cancelled_deletion},
        },
        workload::{
            overrides::Applied,
            steps::{self, PodAction},
        },
    },
    k8s::revision,
};

/// How a Pod gets to the update revision.
#[derive(Clone, Debug)]
enum Way {
    InPlace(UpdateSpec),
    Replace,
    Impossible(String),
    /// That cannot be said now.
    NotKnown,
}

/// What the claims of a Pod need.
#[derive(Debug, Default)]
struct Claims {
    ask: Vec<(String, usize)>,
    /// One of those has been asked before, in vain.
    has_asked: bool,
    grows: Option<String>,
    awaits_mount: Option<Mount>,
    unbound: Option<String>,
    refused: Option<String>,
    misshapen: Option<String>,
    infeasible: Option<String>,
    /// How long the one that has waited longest has been asked to grow, or has grown.
    waited: Duration,
}

/// A claim whose file system grows with a mount.
#[derive(Debug)]
struct Mount {
    claim: String,
    /// How long kubelet has had for it.
    waited: Duration,
    /// The Pod was made since: kubelet grows it when the Pod starts, and another Pod would get no further.
    is_new: bool,
}

impl Claims {
    /// Whether they take one of the places for Pods whose claims grow.
    fn takes_place(&self) -> bool {
        self.has_asked || self.grows.is_some() || self.awaits_mount.is_some() || self.infeasible.is_some()
    }

    /// Whether they get no further before another Pod mounts them.
    fn want_another_pod(&self) -> bool {
        self.awaits_mount.as_ref().is_some_and(|mount| !mount.is_new && mount.waited >= ONLINE_RESIZE)
    }

    /// Whether nobody can say when they will have grown.
    fn is_stuck(&self) -> bool {
        let mount = self.awaits_mount.as_ref().is_some_and(|mount| mount.waited >= ONLINE_RESIZE);
        self.infeasible.is_some() || mount || (self.has_asked || self.grows.is_some()) && self.waited >= PATIENCE
    }
}

/// Adds to the plan what makes Pods unavailable, in the order in which it may be done.
pub(super) fn update(observed: &Observed<'_>, slots: &[Slot<'_>], is_busy: bool, plan: &mut Plan) {
    let spec = observed.spec;
    let limit = spec.rolling().map_or(1, |rolling| rolling.max_unavailable);
    let mut job = Rollout {
        observed,
        ways: BTreeMap::new(),
        claims: BTreeMap::new(),
        growing: 0,
        is_stuck: false,
        not_in_place: None,
    };
    plan.room = Room::new(slots.iter().map(|slot| slot.pod), limit, spec.is_ordered);
    if is_busy {
        plan.room.close();
    }
    let pods = || slots.iter().rev().filter_map(|slot| slot.pod).filter(|pod| !pod.is_terminating && !pod.is_finished);
    if spec.grows_claims {
        for pod in pods() {
            let claims = job.look_at_claims(pod);
            job.growing += i32::from(claims.takes_place());
            job.is_stuck |= claims.is_stuck();
            job.claims.insert(pod.ordinal, claims);
        }
    }
    let range = spec.rolling().map(|rolling| Range::of(observed, rolling));
    let wanted: Vec<&Pod> = range.map_or_else(Vec::new, |range| range.wanted(slots));
    let in_range: BTreeSet<i32> = wanted.iter().map(|pod| pod.ordinal).collect();
    let is_paused = spec.rolling().is_some_and(|rolling| rolling.paused);

    for pod in pods().filter(|pod| pod.is_specified) {
        if let Some(action) = leave(observed, pod, plan) {
            plan.candidates.push(Candidate { action, charge: Charge::of(pod), has_turn: false });
        }
    }
    for pod in pods().filter(|pod| !pod.is_specified) {
        let is_outdated = job.is_outdated(pod);
        // One that is replaced for a mount stays on its way out although it is as it is to be.
        let is_due = (is_outdated || job.is_replaced_for_mount(pod)) && in_range.contains(&pod.ordinal);
        plan.is_held |= is_outdated && (!is_due || is_paused);
        match pod.state {
            // While paused nothing is begun, and a Pod is not left on its way out either.
            State::PreparingDelete if is_due && !is_paused => {}
            State::PreparingUpdate if is_due => {}
            State::PreparingDelete => job.end_or_cancel_deletion(pod, plan),
            State::PreparingUpdate if !pod.is_updated(observed.update_revision) => {
                plan.actions.push(Action::Change { pod: pod.name.clone(), change: PodAction::CancelUpdate });
            }
            _ => {}
        }
    }
    if let Some(rolling) = spec.rolling().filter(|rolling| !rolling.paused) {
        job.roll_out(slots, &wanted, rolling, plan);
    }
}

struct Rollout<'a, 'o> {
    observed: &'a Observed<'o>,
    /// By the revision and the override that a Pod comes from, and the override that it is to have.
    ways: BTreeMap<(String, Applied, String), Result<UpdateSpec, NotInPlace>>,
    /// By ordinal, while claims are grown.
    claims: BTreeMap<i32, Claims>,
    /// Pods whose claims grow: as many at a time as may be unavailable, so that a size that cannot be had is not asked for by
    /// all of them.
    growing: i32,
    /// One of those claims may never have grown: no other one is asked, and no update waits for that.
    is_stuck: bool,
    /// Pods that InPlaceOnly keeps on their revision, and why the first one is kept.
    not_in_place: Option<(String, Vec<String>)>,
}

impl Rollout<'_, '_> {
    /// Whether a Pod is not as the newest template wants it, its claims aside.
    fn is_outdated(&self, pod: &Pod) -> bool {
        !pod.is_updated(self.observed.update_revision) || pod.lacks_claim.is_some()
    }

    /// Whether a Pod is replaced so that another one mounts its claims.
    fn is_replaced_for_mount(&self, pod: &Pod) -> bool {
        let rolling = self.observed.spec.rolling();
        rolling.is_some_and(|rolling| rolling.policy != PodUpdatePolicy::InPlaceOnly)
            && self.claims.get(&pod.ordinal).is_some_and(Claims::want_another_pod)
    }

    /// Looks at the Pods that are to be on the update revision, `wanted`, in their order. By the annotation a Pod in service
    /// waits for all Pods of earlier places, however much room there is; one that is down waits for nobody. What has been
    /// announced to one that waits is taken back: it would keep the room that those before it need.
    fn roll_out(&mut self, slots: &[Slot<'_>], wanted: &[&Pod], rolling: &Rolling, plan: &mut Plan) {
        let spec = self.observed.spec;
        let place = |pod: &Pod| spec.update_order.as_ref().map_or(0, |order| order.place(&pod.labels));
        let in_range: BTreeSet<i32> = wanted.iter().map(|pod| pod.ordinal).collect();
        let is_done = |pod: &Pod| pod.is_available() && !(in_range.contains(&pod.ordinal) && self.is_outdated(pod));
        // Nobody knows yet what a Pod will be that is still to come.
        let unfinished = slots.iter().filter(|slot| !slot.pod.is_some_and(is_done));
        let first = unfinished.map(|slot| (slot.pod.map_or(0, place), slot.ordinal)).min();
        let has_to_wait = |pod: &Pod| {
            let serves = Charge::of(pod) > Charge::Down || taken_back(spec, pod).is_some();
            serves && first.is_some_and(|(first, _)| first < place(pod))
        };
        let mut due: Vec<&Pod> = wanted.to_vec();
        due.retain(|pod| !pod.is_terminating && !pod.is_finished && !pod.is_specified);
        due.sort_by_key(|pod| (Charge::of(pod) > Charge::Down || has_to_wait(pod), place(pod)));
        let mut last = None;
        for pod in due {
            let waits = has_to_wait(pod);
            // What was announced to one that is not due has been taken back before.
            let is_due = self.is_outdated(pod) || self.is_replaced_for_mount(pod);
            let claims = self.claims.remove(&pod.ordinal).unwrap_or_default();
            let patience = self.see_to_claims(pod, &claims, rolling, plan);
            if let Some(change) = taken_back(spec, pod).filter(|_| waits && is_due) {
                plan.actions.push(Action::Change { pod: pod.name.clone(), change });
                last = last.or(Some(pod));
                continue;
            }
            match self.consider(pod, (&claims, patience), rolling, plan) {
                Some(_) if waits => last = last.or(Some(pod)),
                Some(action) => {
                    plan.candidates.push(Candidate { action, charge: Charge::of(pod), has_turn: true });
                }
                None => {}
            }
        }
        if let Some((why, pods)) = self.not_in_place.take() {
            plan.impossible("FailedUpdatePod", not_in_place(&why, &pods));
        }
        let pods = || slots.iter().filter_map(|slot| slot.pod);
        if !plan.candidates.is_empty() || pods().any(|pod| self.is_outdated(pod)) {
            pods().filter(|pod| !pod.is_available()).for_each(|pod| wait_for(pod, plan));
        }
        if let (Some(Pod { name, .. }), Some((_, first))) = (last, first) {
            let first = pod_name(&spec.name, first);
            plan.wait("UpdateOrder", || {
                format!("Pod {name} is updated after Pod {first}, which is not updated and available yet")
            });
        }
    }

    /// The deletion that was announced to a Pod is not wanted any more.
    fn end_or_cancel_deletion(&self, pod: &Pod, plan: &mut Plan) {
        if self.observed.spec.lifecycle.deletion_is_final() {
            let action = leave(self.observed, pod, plan);
            plan.actions.extend(action);
        } else {
            plan.actions.push(Action::Change { pod: pod.name.clone(), change: PodAction::CancelDeletion });
        }
    }

    /// Lets the claims of a Pod grow, and says what is in the way. How long its update waits for them, if it does.
    fn see_to_claims(&mut self, pod: &Pod, claims: &Claims, rolling: &Rolling, plan: &mut Plan) -> Option<Duration> {
        if let Some(why) = claims.infeasible.as_ref().or(claims.refused.as_ref()).or(claims.misshapen.as_ref()) {
            // Its update goes on: it waits for nothing that would come.
            plan.impossible("FailedUpdatePVC", why.clone());
        }
        if claims.refused.is_some() {
            plan.look_after(CLASS_LOOK);
        }
        if let Some(claim) = &claims.unbound {
            plan.wait("ClaimGrows", || {
                format!("claim {claim} of Pod {} can grow only when it is bound to a volume", pod.name)
            });
        }
        self.grow(pod, claims, rolling, plan)
    }

    /// What is done to a Pod that is to be on the update revision when it is its turn, if anything is. `patience` is how long its
    /// update waits for its claims.
    fn consider(
        &mut self,
        pod: &Pod,
        (claims, patience): (&Claims, Option<Duration>),
        rolling: &Rolling,
        plan: &mut Plan,
    ) -> Option<Action> {
        if !self.is_outdated(pod) {
            return self.after_mount(pod, claims, rolling, plan);
        }
        // The claims of a Pod that is down grow all the same, and its update waits for nothing.
        if let Some(left) = patience.filter(|left| !left.is_zero() && Charge::of(pod) > Charge::Down) {
            plan.look_after(left);
            return None;
        }
        match self.way(pod, rolling) {
            Way::Replace => return leave(self.observed, pod, plan),
            Way::InPlace(spec) => return self.in_place(pod, spec, plan),
            Way::Impossible(why) => {
                if pod.state == State::PreparingUpdate {
                    // What was announced does not come: it goes back into service.
                    plan.actions.push(Action::Change { pod: pod.name.clone(), change: PodAction::CancelUpdate });
                }
                let (_, pods) = self.not_in_place.get_or_insert((why, Vec::new()));
                pods.push(pod.name.clone());
            }
            Way::NotKnown => plan.wait("RevisionsNotRead", || steps::not_updated_on_a_guess(&pod.name)),
        }
        None
    }

    /// Asks the claims of a Pod to grow. How long its update waits for that, if it does.
    fn grow(&mut self, pod: &Pod, claims: &Claims, rolling: &Rolling, plan: &mut Plan) -> Option<Duration> {
        let left = PATIENCE.saturating_sub(claims.waited);
        if let Some((claim, _)) = claims.ask.first() {
            let has_place = claims.takes_place();
            if !has_place && (self.is_stuck || self.growing >= rolling.max_unavailable) {
                plan.wait("ClaimGrows", || {
                    format!("claim {claim} of Pod {} grows after those of other Pods", pod.name)
                });
                return (!self.is_stuck).then_some(PATIENCE);
            }
            self.growing += i32::from(!has_place);
            plan.actions.push(Action::GrowClaims { pod: pod.name.clone(), claims: claims.ask.clone() });
            plan.wait("ClaimGrows", || format!("claim {claim} of Pod {} has not grown yet", pod.name));
            return Some(left);
        }
        let claim = claims.grows.as_ref()?;
        plan.wait("ClaimGrows", || format!("claim {claim} of Pod {} has not grown yet", pod.name));
        Some(left)
    }

    /// A Pod that is as it is to be, and may have a volume that kubelet grows only with the next mount.
    fn after_mount(&self, pod: &Pod, claims: &Claims, rolling: &Rolling, plan: &mut Plan) -> Option<Action> {
        let Mount { claim, waited, .. } = claims.awaits_mount.as_ref()?;
        let (left, name) = (ONLINE_RESIZE.saturating_sub(*waited), &pod.name);
        if rolling.policy == PodUpdatePolicy::InPlaceOnly {
            plan.wait("ClaimGrows", || {
                format!(
                    "claim {claim} of Pod {name} waits for kubelet to grow its file system; InPlaceOnly does not replace the Pod: delete Pod {name} if kubelet does not"
                )
            });
        } else if claims.want_another_pod() {
            return leave(self.observed, pod, plan);
        } else {
            if !left.is_zero() {
                plan.look_after(left);
            }
            plan.wait("ClaimGrows", || format!("claim {claim} of Pod {name} waits for kubelet"));
        }
        None
    }

    fn in_place(&self, pod: &Pod, spec: UpdateSpec, plan: &mut Plan) -> Option<Action> {
        let change = match self.observed.spec.lifecycle.before_update(pod, &pod.state) {
            BeforeUpdate::Nothing => Some(PodAction::UpdateInPlace { spec }),
            BeforeUpdate::Announce { restore } => Some(PodAction::AnnounceUpdate { restore }),
            BeforeUpdate::Held => {
                plan.wait("PodHeld", || held(pod, "inPlaceUpdate"));
                None
            }
            BeforeUpdate::Refresh => None,
            // It was to be replaced, and need not be.
            BeforeUpdate::Deletion => {
                self.end_or_cancel_deletion(pod, plan);
                None
            }
            BeforeUpdate::UnknownState(state) => {
                let why = format!("Pod {} is in lifecycle state {state:?}, which this release does not know", pod.name);
                plan.impossible("FailedUpdatePod", why);
                None
            }
        };
        change.map(|change| Action::Change { pod: pod.name.clone(), change })
    }

    /// How a Pod gets to the update revision.
    fn way(&mut self, pod: &Pod, rolling: &Rolling) -> Way {
        let in_place = match (rolling.policy, &pod.lacks_claim) {
            (PodUpdatePolicy::ReCreate, _) => return Way::Replace,
            _ if self.observed.allowed.is_none() => return Way::NotKnown,
            (_, Some(template)) => Err(NotInPlace::NoVolume(template.to_owned())),
            _ if !pod.has_gate => Err(NotInPlace::NoGate),
            _ => {
                let observed = self.observed;
                let wanted = observed.spec.overrides.hash(pod.ordinal).to_owned();
                let key = (pod.revision.clone(), pod.applied.clone(), wanted);
                self.ways.entry(key).or_insert_with(|| between(observed, pod)).clone()
            }
        };
        match in_place.and_then(|spec| inplace::with_pending(spec, pod.pending.as_ref(), rolling.grace_seconds)) {
            Ok(spec) => Way::InPlace(spec),
            Err(why) if rolling.policy == PodUpdatePolicy::InPlaceOnly => Way::Impossible(why.to_string()),
            Err(_) => Way::Replace,
        }
    }

    fn look_at_claims(&self, pod: &Pod) -> Claims {
        let Observed { spec, claims, classes, waited, now, .. } = self.observed;
        let mut found = Claims::default();
        for (place, template) in spec.claims.iter().enumerate() {
            let name = template.claim_name(&spec.name, pod.ordinal);
            let Some(claim) = claims.get(&name).filter(|claim| !claim.is_deleting()) else { continue };
            let so_far = waited.get(&name).copied();
            let (growth, so_far) = match classes {
                Ok(classes) => {
                    let expands = claim.storage_class.as_ref().and_then(|class| classes.get(class)).copied();
                    (growth(template, claim, expands), so_far)
                }
                // It is to be asked, and nobody can say now whether it may be.
                Err(unread) => match growth(template, claim, Some(true)) {
                    Growth::Ask => (Growth::Grows, Some(*unread)),
                    known => (known, so_far),
                },
            };
            if matches!(growth, Growth::Ask | Growth::Grows) {
                found.has_asked |= growth == Growth::Ask && so_far.is_some();
                found.waited = found.waited.max(so_far.unwrap_or_default());
            }
            match growth {
                Growth::Fits => {}
                Growth::Ask => found.ask.push((name, place)),
                Growth::Grows => found.grows = found.grows.or(Some(name)),
                Growth::AwaitsMount(since) => {
                    let made = pod.created.filter(|made| *made >= since);
                    let waited = now.since(made.unwrap_or(since));
                    found.awaits_mount = Some(Mount { claim: name, waited, is_new: made.is_some() });
                }
                Growth::Unbound => found.unbound = found.unbound.or(Some(name)),
                Growth::Refused(why) => found.refused = found.refused.or(Some(of_pod(&name, pod, &why))),
                Growth::Misshapen(why) => found.misshapen = found.misshapen.or(Some(of_pod(&name, pod, &why))),
                Growth::Infeasible(why) => found.infeasible = found.infeasible.or(Some(of_pod(&name, pod, &why))),
            }
        }
        found
    }
}

/// What a claim cannot become, with the Pod that has it.
fn of_pod(claim: &str, pod: &Pod, why: &str) -> String {
    format!("claim {claim} of Pod {} {why}", pod.name)
}

/// How the step is taken back that has been announced to a Pod which would serve without it. None: there is none, it is
/// final, or the Pod would not be in service then, and would be announced again as one that is down.
fn taken_back(spec: &Spec, pod: &Pod) -> Option<PodAction> {
    let would_serve = after_cancelled_deletion(spec.hooks(), pod).is_in_service();
    let is_announced = would_serve && pod.is_only_announced();
    // A hook with markPodNotReady has taken the Pod out of service: its update goes on as that of a Pod that is down.
    let has_quiet_hook = spec.lifecycle.in_place_update.as_ref().is_some_and(|hook| !hook.mark_pod_not_ready);
    match pod.state {
        State::PreparingUpdate if is_announced => Some(PodAction::CancelUpdate),
        State::PreparingDelete if is_announced && !spec.lifecycle.deletion_is_final() => {
            Some(PodAction::CancelDeletion)
        }
        // Its hook had let go. Once the hook is put back, the Pod is in service again. An announcement would put it back
        // too, but ask it to let go at once.
        State::Updated if would_serve && has_quiet_hook && pod.until_available.is_some() => {
            Some(PodAction::RestoreHook)
        }
        _ => None,
    }
}

/// That InPlaceOnly keeps Pods on their revision, with their names as long as they are few, and why the first one is kept.
fn not_in_place(why: &str, pods: &[String]) -> String {
    const NAMED: usize = 10;
    const KEPT: &str = "cannot be updated in place, and InPlaceOnly allows nothing else";
    let (named, others) = pods.split_at(pods.len().min(NAMED));
    let names = match (named, others.len()) {
        ([pod], 0) => return format!("Pod {pod} {KEPT}: {why}"),
        ([before @ .., last], 0) => format!("{} and {last}", before.join(", ")),
        (_, more) => format!("{} and {more} more", named.join(", ")),
    };
    format!("Pods {names} {KEPT}: {why} (Pod {})", named.first().map_or("", String::as_str))
}

/// What has to change in a Pod between two revisions and overrides, or why that needs another Pod.
fn between(observed: &Observed<'_>, pod: &Pod) -> Result<UpdateSpec, NotInPlace> {
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
        return Err(NotInPlace::UnknownRevision(from.to_owned()));
    };
    let Some(old) = pod.applied.laid_over(&old) else {
        return Err(NotInPlace::UnknownOverride);
    };
    inplace::spec_between(
        &old,
        &observed.spec.overrides.laid_over(&new, pod.ordinal),
        to,
        observed.allowed.unwrap_or_default(),
    )
}
