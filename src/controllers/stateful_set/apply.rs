//! Carries a plan out. The only writer of Pods and claims; decides nothing but what a refusal means.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};

use super::{Controller, Job, Pass, observe::Seen};
use crate::{
    api::{feature_gates::gate, labels},
    budgets::refusals::{Refusals, Verdict},
    domain::{
        budgets::unavailable::Operation,
        kinds::stateful_set::{
            make, numbering,
            plan::{Action, Plan, Wait},
        },
        pod::{
            inplace::UpdateSpec,
            lifecycle::{self, State},
            refresh::{self, Refresh},
        },
    },
    k8s::pod::PodView,
    runtime::{
        apply::{code, is_already_there, is_refusal, namespace_is_ending},
        clock,
        in_place::{Refreshed, Refreshing, Target},
        lock,
        pass::{AFTER_CONFLICT, AFTER_REFUSAL},
        pod_control::{Created, Part},
        revisions::Resolved,
        slow_start::{MOST, each, slow_start},
        watches::ObjectKey,
    },
};

/// Pods made in one pass: the first ones need their gates opened before the last ones are there.
const MOST_PER_PASS: usize = 128;

/// What came of one action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    /// It was done.
    Done,
    /// The Pod has changed, or is being written by another task: the next pass decides anew.
    Nothing,
    /// A budget keeps the Pod. The room that it was to take is free.
    Refused,
    /// No budget could decide, and others would fare no better: that is looked at again later.
    Undecided,
}

/// What is left of a plan when it has been carried out, as far as status tells of it.
pub(super) struct Left {
    pub(super) plan: Plan,
    pub(super) look: Option<std::time::Duration>,
}

impl Controller {
    /// Brings every Pod's own state up to date. True: something was written.
    pub(super) async fn refresh_all(&self, job: &Job, resolved: &Resolved, seen: &Seen, pass: &mut Pass) -> bool {
        let now = clock::now();
        let others: BTreeSet<&str> =
            seen.pods.iter().filter(|pod| pod.has_other_override).map(|pod| pod.name.as_str()).collect();
        // A Pod that is to get another override is not where it is to be, on whatever revision it is.
        let by = |view: &PodView| Refreshing {
            owner: &job.owner,
            lifecycle: job.spec.hooks(),
            update_revision: if others.contains(view.name()) { "" } else { &resolved.update },
        };
        let by = &by;
        let mut work: Vec<(Arc<PodView>, Refresh)> = Vec::new();
        for view in seen.views.values().filter(|view| !view.is_deleting() && !view.is_finished()) {
            let by = by(view);
            match refresh::refresh(view, None, by.lifecycle, by.update_revision, now) {
                Refresh::Nothing => {}
                Refresh::Wait { after, .. } => pass.common.look_after(after),
                needed => work.push((view.clone(), needed)),
            }
        }
        let (done, failure) = each(work, |(view, needed)| async move {
            let waits_in = self.memories.with(&job.key, |memory| memory.waits_in.get(view.uid()).cloned()).flatten();
            let refreshed = self.in_place.refresh(by(&view), &view, needed, waits_in.as_deref(), now).await?;
            Ok::<_, kube::Error>((view, refreshed))
        })
        .await;
        let mut written = false;
        for (view, done) in done {
            match done {
                Refreshed::Written => written = true,
                Refreshed::Nothing => {}
                Refreshed::Later(after) => pass.common.look_after(Some(after)),
                Refreshed::Waits(version) => {
                    self.memories.with(&job.key, |memory| memory.waits_in.insert(view.uid().to_owned(), version));
                }
            }
        }
        if let Some(error) = failure {
            pass.note(Err(error));
        }
        written
    }

    /// Carries out what can be: first what is done in any case, then what finds room. What is refused ends nothing.
    pub(super) async fn carry_out(
        &self,
        job: &Job,
        resolved: &Resolved,
        seen: &Seen,
        mut plan: Plan,
        pass: &mut Pass,
    ) -> Left {
        let left = Left { plan: plan.clone(), look: plan.look };
        let (mut creations, others): (Vec<Action>, Vec<Action>) =
            std::mem::take(&mut plan.actions).into_iter().partition(|action| matches!(action, Action::Create { .. }));
        self.put_refused_last(job, &mut creations);
        creations.truncate(MOST_PER_PASS);
        let wants = |action: &Action| action.takes_out(&job.spec.lifecycle).is_some();
        if others.iter().any(wants) || plan.candidates.iter().any(|candidate| wants(&candidate.action)) {
            pass.refusals.wants();
        }
        let mut unsure = self.carry_out_all(job, seen, others, pass).await;
        unsure |= self.create_all(job, resolved, creations, pass).await;
        // What may have been done is looked at before anything else goes out of service.
        while !unsure {
            let wave = plan.next_wave(MOST);
            if wave.is_empty() {
                break;
            }
            let refusals = &pass.refusals;
            let tried = each(wave, |candidate| async move {
                let tried = self.try_one(job, seen, &candidate.action, refusals).await;
                Ok::<_, Infallible>((candidate, tried))
            });
            let mut changed = false;
            for (candidate, tried) in tried.await.0 {
                match tried {
                    Ok(Tried::Done) => changed = true,
                    Ok(Tried::Nothing) => pass.common.look_after(Some(AFTER_CONFLICT)),
                    Ok(Tried::Refused) => plan.room.leave(candidate.charge),
                    Ok(Tried::Undecided) => {}
                    Err(error) => {
                        match is_refusal(&error) {
                            true => plan.room.leave(candidate.charge),
                            false => unsure = true,
                        }
                        pass.note(Err(error));
                    }
                }
            }
            pass.common.again |= changed;
            // Pods that are back meanwhile leave room for others, whom only the next pass sees.
            if changed {
                break;
            }
        }
        left
    }

    /// What was refused before does not stand in the way of the others: each is tried once before one is tried again.
    fn put_refused_last(&self, job: &Job, creations: &mut [Action]) {
        let ordinal = |action: &Action| if let Action::Create { ordinal, .. } = action { Some(*ordinal) } else { None };
        self.memories.with(&job.key, |memory| {
            let wanted: BTreeSet<i32> = creations.iter().filter_map(ordinal).collect();
            memory.refused.retain(|ordinal| wanted.contains(ordinal));
            if memory.refused == wanted {
                memory.refused.clear();
            }
            creations.sort_by_key(|action| ordinal(action).is_some_and(|ordinal| memory.refused.contains(&ordinal)));
        });
    }

    /// Tries all of them, whatever fails. True: something may have been done that no store shows.
    async fn carry_out_all(&self, job: &Job, seen: &Seen, actions: Vec<Action>, pass: &mut Pass) -> bool {
        let refusals = &pass.refusals;
        let tried = each(actions, |action| async move {
            let tried = self.try_one(job, seen, &action, refusals).await;
            Ok::<_, Infallible>((matches!(action, Action::CreateClaims { .. }), tried))
        });
        let mut unsure = false;
        for (creates, tried) in tried.await.0 {
            match tried {
                Ok(Tried::Done) => pass.common.again = true,
                Ok(Tried::Nothing) => pass.common.look_after(Some(AFTER_CONFLICT)),
                Ok(Tried::Refused | Tried::Undecided) => {}
                Err(error) => {
                    unsure |= !is_refusal(&error);
                    if creates {
                        pass.failed_to_create("a claim", error);
                    } else {
                        pass.note(Err(error));
                    }
                }
            }
        }
        unsure
    }

    /// Makes Pods, one at first, then more at a time. True: one may have been made that no store shows.
    async fn create_all(&self, job: &Job, resolved: &Resolved, creations: Vec<Action>, pass: &mut Pass) -> bool {
        if creations.is_empty() {
            return false;
        }
        let mut window = self.memories.with(&job.key, |memory| memory.window).unwrap_or_default();
        let current = resolved.template(&resolved.current);
        let first_failed = &Mutex::new(None);
        let make = |action: Action| {
            let current = &current;
            async move {
                let Action::Create { ordinal, on_update, claims } = action else { return Ok(()) };
                let update = (&job.spec.template, resolved.update.as_str());
                let revision = match current {
                    Some(current) if !on_update => (current, resolved.current.as_str()),
                    _ => update,
                };
                let made = self.create(job, ordinal, &claims, revision).await;
                if made.is_err() {
                    lock(first_failed).get_or_insert(ordinal);
                    self.memories.with(&job.key, |memory| memory.refused.insert(ordinal));
                }
                made
            }
        };
        // A name that is taken, or a Pod that its own claim or ordinal makes invalid.
        let concerns_one = |error: &kube::Error| matches!(code(error), Some(409 | 422));
        let (done, failure) = slow_start(creations, &mut window, concerns_one, make).await;
        self.memories.with(&job.key, |memory| memory.window = window);
        pass.common.again |= done > 0;
        let Some(error) = failure.filter(|error| !namespace_is_ending(error)) else { return false };
        let unsure = !is_refusal(&error);
        let name = numbering::pod_name(&job.spec.name, lock(first_failed).unwrap_or_default());
        let message = format!("create Pod {name} in StatefulSet {} failed error: {error}", job.spec.name);
        self.pods.warning(&job.owner, "FailedCreate", &message);
        pass.failed_to_create(&format!("Pod {name}"), error);
        unsure
    }

    /// Makes the missing claims of an ordinal, and then its Pod.
    async fn create(
        &self,
        job: &Job,
        ordinal: i32,
        claims: &[usize],
        (template, revision): (&Value, &str),
    ) -> kube::Result<()> {
        if !self.create_claims(job, ordinal, claims).await? {
            // What is there instead may be about to go: the next pass looks at it.
            return Ok(());
        }
        let has_index = self.context.gates.enabled(gate::POD_INDEX_LABEL);
        let pod = make::pod(&job.owner, &job.spec, (template, revision), ordinal, has_index, clock::now());
        let name = numbering::pod_name(&job.spec.name, ordinal);
        match self.pods.create(&job.owner, &pod).await {
            Ok(Created::New(_)) => {
                let message = format!("create Pod {name} in StatefulSet {} successful", job.spec.name);
                self.pods.normal(&job.owner, "SuccessfulCreate", &message);
                Ok(())
            }
            // Made before, and not seen yet.
            Ok(Created::AlreadyThere(_)) => Ok(()),
            // The one before it still ends, which was not seen yet: it is now.
            Err(error) if is_already_there(&error) => {
                let there = self.context.pods.get(&ObjectKey::new(&job.key.namespace, &name));
                let is_ours = there.is_some_and(|pod| job.owner.controls(&pod) && pod.is_deleting());
                if is_ours { Ok(()) } else { Err(error) }
            }
            Err(error) => Err(error),
        }
    }

    /// Makes claims. False: one of them was there already, which no store had shown. It does now.
    async fn create_claims(&self, job: &Job, ordinal: i32, places: &[usize]) -> kube::Result<bool> {
        let pod = numbering::pod_name(&job.spec.name, ordinal);
        let mut all_new = true;
        for place in places {
            let Some(claim) = make::claim(&job.owner, &job.spec, *place, ordinal) else { continue };
            let name = claim["metadata"]["name"].as_str().unwrap_or_default();
            let told = |what: &str| format!("create Claim {name} Pod {pod} in StatefulSet {} {what}", job.spec.name);
            match self.claim_control.create(&claim).await {
                Ok(true) => self.pods.normal(&job.owner, "SuccessfulCreate", &told("success")),
                Ok(false) => all_new = false,
                Err(error) => {
                    self.pods.warning(&job.owner, "FailedCreate", &told(&format!("failed error: {error}")));
                    return Err(error);
                }
            }
        }
        Ok(all_new)
    }

    async fn try_one(&self, job: &Job, seen: &Seen, action: &Action, refusals: &Refusals) -> kube::Result<Tried> {
        let operation = action.takes_out(&job.spec.lifecycle);
        match action {
            // Made in order, elsewhere.
            Action::Create { .. } => Ok(Tried::Nothing),
            Action::CreateClaims { ordinal, claims } => {
                let made = self.create_claims(job, *ordinal, claims).await?;
                Ok(if made { Tried::Done } else { Tried::Nothing })
            }
            Action::SetClaimOwners { claim, owners } => {
                self.patch_claim(seen, claim, json!({"metadata": {"ownerReferences": owners}})).await
            }
            Action::GrowClaims { claims, .. } => self.grow(job, seen, claims).await,
            Action::MendLabels { pod, labels } => {
                let labels: serde_json::Map<String, Value> =
                    labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
                self.with_pod(seen, pod, None, refusals, async |view| {
                    let patch = json!({"metadata": {"labels": labels}});
                    self.pods.try_patch(view, Part::Whole, &patch).await.map(|done| done.is_some())
                })
                .await
            }
            Action::CancelDeletion { pod } => {
                self.with_pod(seen, pod, None, refusals, async |view| {
                    // It goes back to where it was: into its update, if one is under way.
                    let state = if view.in_place.is_some() { State::Updating } else { State::Normal };
                    self.in_place.move_to(view, state, job.spec.hooks(), false).await
                })
                .await
            }
            Action::CancelUpdate { pod } => {
                self.with_pod(seen, pod, None, refusals, async |view| {
                    let state = lifecycle::after_update(job.spec.hooks(), view);
                    self.in_place.move_to(view, state, job.spec.hooks(), false).await
                })
                .await
            }
            Action::AnnounceDeletion { pod } => {
                self.with_pod(seen, pod, operation, refusals, async |view| {
                    self.in_place.move_to(view, State::PreparingDelete, job.spec.hooks(), false).await
                })
                .await
            }
            Action::AnnounceUpdate { pod, restore } => {
                self.with_pod(seen, pod, operation, refusals, async |view| {
                    self.in_place.move_to(view, State::PreparingUpdate, job.spec.hooks(), *restore).await
                })
                .await
            }
            Action::Delete { pod } => {
                self.with_pod(seen, pod, operation, refusals, async |view| self.delete(job, view).await.map(|()| true))
                    .await
            }
            Action::UpdateInPlace { pod, spec } => {
                self.with_pod(seen, pod, operation, refusals, async |view| self.update_in_place(job, view, spec).await)
                    .await
            }
        }
    }

    /// Does something with a Pod, if its budgets let it and nobody else writes it.
    async fn with_pod(
        &self,
        seen: &Seen,
        pod: &str,
        operation: Option<Operation>,
        refusals: &Refusals,
        act: impl AsyncFnOnce(&PodView) -> kube::Result<bool>,
    ) -> kube::Result<Tried> {
        let Some(view) = seen.views.get(pod) else { return Ok(Tried::Nothing) };
        let Some(_held) = self.pods.hold(view) else { return Ok(Tried::Nothing) };
        if let Some(operation) = operation {
            match self.context.budgets.may_take(view, (operation, false), refusals).await {
                Verdict::Yes => {}
                Verdict::No => return Ok(Tried::Refused),
                Verdict::Undecided => return Ok(Tried::Undecided),
            }
        }
        Ok(if act(view).await? { Tried::Done } else { Tried::Nothing })
    }

    async fn delete(&self, job: &Job, view: &PodView) -> kube::Result<()> {
        let told = |what: &str| format!("delete Pod {} in StatefulSet {} {what}", view.name(), job.spec.name);
        match self.pods.delete(view).await {
            Ok(()) => {
                self.pods.normal(&job.owner, "SuccessfulDelete", &told("successful"));
                Ok(())
            }
            Err(error) => {
                self.pods.warning(&job.owner, "FailedDelete", &told(&format!("failed error: {error}")));
                Err(error)
            }
        }
    }

    async fn update_in_place(&self, job: &Job, view: &PodView, spec: &UpdateSpec) -> kube::Result<bool> {
        let target = spec.revision.as_str();
        let to = Target { label: make::revision_label(target), template_hash: None };
        let result = self.in_place.begin(view, to, spec).await;
        match &result {
            Ok(true) => {
                let message = format!("successfully update pod {} in-place(revision {target})", view.name());
                self.pods.normal(&job.owner, "SuccessfulUpdatePodInPlace", &message);
            }
            Ok(false) => {}
            Err(error) => {
                let message = format!("failed to update pod {} in-place(revision {target}): {error}", view.name());
                self.pods.warning(&job.owner, "FailedUpdatePodInPlace", &message);
            }
        }
        result
    }

    async fn patch_claim(&self, seen: &Seen, name: &str, mut patch: Value) -> kube::Result<Tried> {
        let Some(claim) = seen.claims.get(name) else { return Ok(Tried::Nothing) };
        // Owners are a list that others write too: only over the version that was looked at.
        patch["metadata"]["resourceVersion"] = json!(claim.metadata.resource_version);
        if let Some(owners) = patch.pointer_mut("/metadata/ownerReferences").and_then(Value::as_array_mut) {
            owners.push(json!({"$patch": "replace"}));
        }
        let done = self.claim_control.patch(claim, patch).await?;
        Ok(if done { Tried::Done } else { Tried::Nothing })
    }

    async fn grow(&self, job: &Job, seen: &Seen, claims: &[(String, usize)]) -> kube::Result<Tried> {
        let mut tried = Tried::Nothing;
        for (name, place) in claims {
            let Some(template) = job.spec.claims.get(*place) else { continue };
            let Some(storage) = template.raw.pointer("/spec/resources/requests/storage") else { continue };
            let patch = json!({"metadata": {"annotations": {labels::OWNED_BY_STATEFUL_SET: job.spec.name}},
                "spec": {"resources": {"requests": {"storage": storage}}}});
            let told = |what: &str| format!("resize Claim {name} in StatefulSet {} {what}", job.spec.name);
            match self.patch_claim(seen, name, patch).await {
                Ok(done) => {
                    if done == Tried::Done {
                        self.pods.normal(&job.owner, "SuccessfulResize", &told("successful"));
                        tried = Tried::Done;
                    }
                }
                Err(error) => {
                    self.pods.warning(&job.owner, "FailedUpdatePVC", &told(&format!("failed error: {error}")));
                    return Err(error);
                }
            }
        }
        Ok(tried)
    }

    /// Tells of the first Pod that a budget keeps, when none was kept before, and looks again soon.
    pub(super) fn tell_refusals(&self, job: &Job, pass: &mut Pass) {
        if !pass.refusals.has_wanted() {
            return;
        }
        let kept = kept(&pass.refusals);
        pass.common.look_after(kept.is_some().then_some(AFTER_REFUSAL));
        let before = self.memories.with(&job.key, |memory| std::mem::replace(&mut memory.is_refused, kept.is_some()));
        if let Some(wait) = kept.filter(|_| before == Some(false)) {
            self.pods.warning(&job.owner, wait.reason, &wait.message);
        }
    }
}

/// What is waited for, if a budget keeps a Pod.
pub(super) fn kept(refusals: &Refusals) -> Option<Wait> {
    let (pod, why) = refusals.first()?;
    Some(Wait { reason: "WaitsForBudget", message: format!("Pod {pod} stays in service for now: {why}") })
}
