//! Carries a plan out. The only writer of Pods and claims; decides nothing but what a refusal means.

use std::{collections::BTreeSet, convert::Infallible, sync::Mutex};

use serde_json::{Value, json};

use super::{Controller, Job, Pass, observe::Seen};
use crate::{
    api::{feature_gates::gate, labels},
    budgets::refusals::Refusals,
    controllers::pod_set::{AboutStep, PodStep, Together, Tried, Waves, Write},
    domain::{
        kinds::stateful_set::{
            make, numbering,
            plan::{Action, Candidate, Creation, Plan},
        },
        workload::steps::PodAction,
    },
    k8s::pod::PodView,
    runtime::{
        apply::{is_already_there, said},
        clock,
        in_place::Refreshing,
        lock,
        pod_control::Created,
        revisions::Resolved,
        slow_start::{WAVE, each},
        watches::ObjectKey,
    },
};

/// Pods made in one pass: what the next pass would see of the first ones does not wait for the last ones for long.
const MOST_PER_PASS: usize = 512;

/// What is left of a plan when it has been carried out, as far as the status reports it.
pub(super) struct Left {
    pub(super) plan: Plan,
    pub(super) look: Option<std::time::Duration>,
}

impl Waves for Plan {
    type Candidate = Candidate;

    fn wave(&mut self) -> Vec<Candidate> {
        self.next_wave(WAVE)
    }

    fn give_back(&mut self, candidate: &Candidate) {
        self.room.leave(candidate.charge);
        if candidate.has_turn {
            self.room.keep_turn(candidate.charge);
        }
    }

    fn creates(_: &Candidate) -> Option<String> {
        None
    }
}

impl Controller {
    /// Brings every Pod's own state up to date. True: something was written.
    pub(super) async fn refresh_all(&self, job: &Job, resolved: &Resolved, seen: &Seen, pass: &mut Pass) -> bool {
        let others: BTreeSet<&str> =
            seen.pods.iter().filter(|pod| pod.has_other_override).map(|pod| pod.name.as_str()).collect();
        let all = Refreshing { owner: &job.owner, lifecycle: job.spec.hooks(), update_revision: &resolved.update };
        // A Pod that is to get another override is not where it is to be, on whatever revision it is.
        let by = |view: &PodView| match others.contains(view.name()) {
            true => Refreshing { update_revision: "", ..all },
            false => all,
        };
        let generation = job.set.metadata.generation;
        let together = Together { generation, by: all, for_all: job.spec.overrides.is_empty() && others.is_empty() };
        self.common.refresh_all(&job.key, seen.views.values(), (together, by), pass).await
    }

    /// The same while nothing else can be done: a Pod whose update in place has begun would stay out of service.
    pub(super) async fn refresh_as_recorded(&self, job: &Job, pass: &mut Pass) {
        let written = self.refresh_all(job, &job.recorded(), &self.see_again(job), pass).await;
        pass.common.again |= written;
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
        let (actions, mut creations) = (std::mem::take(&mut plan.actions), std::mem::take(&mut plan.creations));
        self.put_refused_last(job, &mut creations);
        creations.truncate(MOST_PER_PASS);
        let wants = |action: &Action| action.takes_out(&job.spec.lifecycle).is_some();
        if actions.iter().any(wants) || plan.candidates.iter().any(|candidate| wants(&candidate.action)) {
            pass.refusals.wants();
        }
        let unsure = self.carry_out_all(job, seen, actions, pass).await;
        // A Pod or a claim that may have been made counts as missing until it is seen.
        self.create_all(job, resolved, creations, pass).await;
        // What may have been done is looked at before anything else goes out of service.
        if unsure {
            return left;
        }
        let mut wave = plan.wave();
        while !wave.is_empty() {
            let refusals = &pass.refusals;
            let tried = each(wave, |candidate| async move {
                let tried = self.try_one(job, seen, &candidate.action, refusals).await;
                Ok::<_, Infallible>((candidate, tried))
            });
            let tried = tried.await.0;
            wave = pass.next_wave(&mut plan, tried);
        }
        left
    }

    /// Creations that were refused before come last, so that they do not hold up the others.
    fn put_refused_last(&self, job: &Job, creations: &mut [Creation]) {
        let wanted: BTreeSet<i32> = creations.iter().map(|creation| creation.ordinal).collect();
        self.common.memories.with(&job.key, |memory| {
            memory.turns.retain(|ordinal| wanted.contains(ordinal));
            memory.turns.sort(creations, |creation| Some(creation.ordinal));
        });
    }

    /// Tries all of them, whatever fails. True: a Pod may have gone out of service, and no store shows that.
    async fn carry_out_all(&self, job: &Job, seen: &Seen, actions: Vec<Action>, pass: &mut Pass) -> bool {
        let refusals = &pass.refusals;
        let tried = each(actions, |action| async move {
            let tried = self.try_one(job, seen, &action, refusals).await;
            let creates = matches!(action, Action::CreateClaims { .. }).then_some("a claim");
            let takes_out = action.takes_out(&job.spec.lifecycle).is_some();
            Ok::<_, Infallible>((AboutStep { creates, takes_out }, tried))
        });
        let tried = tried.await.0;
        pass.note_all(tried)
    }

    /// Makes Pods, one at first, then more at a time.
    async fn create_all(&self, job: &Job, resolved: &Resolved, creations: Vec<Creation>, pass: &mut Pass) {
        if creations.is_empty() {
            return;
        }
        let current = resolved.template(&resolved.current);
        let first_failed = &Mutex::new(None);
        let make = |Creation { ordinal, on_update, claims }: Creation| {
            let current = &current;
            async move {
                let update = (&job.spec.template, resolved.update.as_str());
                let revision = match current {
                    Some(current) if !on_update => (current, resolved.current.as_str()),
                    _ => update,
                };
                let made = self.create(job, ordinal, &claims, revision).await;
                if made.is_err() {
                    self.common.metrics.count(Write::Create, false);
                    lock(first_failed).get_or_insert(ordinal);
                    self.common.memories.with(&job.key, |memory| memory.turns.refused(ordinal));
                }
                made
            }
        };
        let Some(error) = self.common.create_all(&job.key, creations, pass, make).await else { return };
        let name = numbering::pod_name(&job.spec.name, lock(first_failed).unwrap_or_default());
        let message = format!("create Pod {name} in StatefulSet {} failed error: {}", job.spec.name, said(&error));
        self.common.pods.warning(&job.owner, "FailedCreate", &message);
        pass.failed_to_create(&format!("Pod {name}"), error);
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
        match self.common.pods.create(&job.owner, &pod).await {
            Ok(Created::New(_)) => {
                self.common.metrics.count(Write::Create, true);
                let message = format!("create Pod {name} in StatefulSet {} successful", job.spec.name);
                self.common.pods.normal(&job.owner, "SuccessfulCreate", &message);
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
            let message = |what: &str| format!("create Claim {name} Pod {pod} in StatefulSet {} {what}", job.spec.name);
            match self.claim_control.create(&job.owner, &claim).await {
                Ok(true) => self.common.pods.normal(&job.owner, "SuccessfulCreate", &message("success")),
                Ok(false) => all_new = false,
                Err(error) => {
                    let message = message(&format!("failed error: {}", said(&error)));
                    self.common.pods.warning(&job.owner, "FailedCreate", &message);
                    return Err(error);
                }
            }
        }
        Ok(all_new)
    }

    async fn try_one(&self, job: &Job, seen: &Seen, action: &Action, refusals: &Refusals) -> kube::Result<Tried> {
        let asked = (action.takes_out(&job.spec.lifecycle), refusals);
        let (pod, step) = match action {
            Action::CreateClaims { ordinal, claims } => {
                return self.create_claims(job, *ordinal, claims).await.map(Tried::of);
            }
            Action::SetClaimOwners { claim, owners } => {
                return self.patch_claim(seen, claim, json!({"metadata": {"ownerReferences": owners}})).await;
            }
            Action::GrowClaims { claims, .. } => return self.grow(job, seen, claims).await,
            Action::Delete { pod } => {
                let act = async |view: &PodView| self.delete(job, view).await;
                return self.common.with_pod(seen.views.get(pod), asked, act).await;
            }
            Action::MendLabels { pod, labels } => {
                let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value)));
                let step = PodStep::SetLabels(labels.collect());
                let mended = self.common.change(seen.views.get(pod), step, job.spec.hooks(), asked).await;
                self.report_mended(job, pod, &mended);
                return mended;
            }
            Action::Change { pod, change } => {
                let revision = match change {
                    PodAction::UpdateInPlace { spec } => (spec.revision.as_str(), make::revision_label(&spec.revision)),
                    _ => ("", ""),
                };
                (pod, PodStep::Change { owner: &job.owner, revision, change })
            }
        };
        self.common.change(seen.views.get(pod), step, job.spec.hooks(), asked).await
    }

    fn report_mended(&self, job: &Job, pod: &str, mended: &kube::Result<Tried>) {
        let message = |what: &str| format!("update Pod {pod} in StatefulSet {} {what}", job.spec.name);
        match mended {
            Ok(Tried::Done) => self.common.pods.normal(&job.owner, "SuccessfulUpdate", &message("successful")),
            Ok(Tried::Nothing | Tried::Refused | Tried::Undecided) => {}
            Err(error) => {
                let message = message(&format!("failed error: {}", said(error)));
                self.common.pods.warning(&job.owner, "FailedUpdate", &message);
            }
        }
    }

    /// False: it stays, its hook has taken hold of it again.
    async fn delete(&self, job: &Job, view: &PodView) -> kube::Result<bool> {
        let message = |what: &str| format!("delete Pod {} in StatefulSet {} {what}", view.name(), job.spec.name);
        let deleted = self.common.delete(view, &job.spec.lifecycle).await;
        match &deleted {
            Ok(false) => {}
            Ok(true) => self.common.pods.normal(&job.owner, "SuccessfulDelete", &message("successful")),
            Err(error) => {
                let message = message(&format!("failed error: {}", said(error)));
                self.common.pods.warning(&job.owner, "FailedDelete", &message);
            }
        }
        deleted
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
            let message = |what: &str| format!("resize Claim {name} in StatefulSet {} {what}", job.spec.name);
            match self.patch_claim(seen, name, patch).await {
                Ok(done) => {
                    if done == Tried::Done {
                        self.common.pods.normal(&job.owner, "SuccessfulResize", &message("successful"));
                        tried = Tried::Done;
                    }
                }
                Err(error) => {
                    let message = message(&format!("failed error: {}", said(&error)));
                    self.common.pods.warning(&job.owner, "FailedUpdatePVC", &message);
                    return Err(error);
                }
            }
        }
        Ok(tried)
    }
}
