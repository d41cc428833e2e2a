//! Carries a plan out. The only writer of Pods; decides nothing but what a refusal means.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use serde_json::json;

use super::{
    Controller, Job, Pass,
    observe::{Resolved, Seen},
};
use crate::{
    api::labels,
    budgets::refusals::{Refusals, Verdict},
    domain::{
        budgets::unavailable::Operation,
        kinds::daemon_set::{
            make,
            plan::{Action, Plan, Remember, Wait},
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
        slow_start::{MOST, each, slow_start},
    },
};

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
        let by = Refreshing { owner: &job.owner, lifecycle: job.spec.hooks(), update_revision: &resolved.update };
        let mut work: Vec<(Arc<PodView>, Refresh)> = Vec::new();
        for view in seen.views.values().filter(|view| !view.is_deleting() && !view.is_finished()) {
            match refresh::refresh(view, None, by.lifecycle, &resolved.update, now) {
                Refresh::Nothing => {}
                Refresh::Wait { after, .. } => pass.common.look_after(after),
                needed => work.push((view.clone(), needed)),
            }
        }
        let (done, failure) = each(work, |(view, needed)| async move {
            let waits_in = self.memories.with(&job.key, |memory| memory.waits_in.get(view.uid()).cloned()).flatten();
            let refreshed = self.in_place.refresh(by, &view, needed, waits_in.as_deref(), now).await?;
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
        let (creations, others): (Vec<Action>, Vec<Action>) =
            std::mem::take(&mut plan.actions).into_iter().partition(|action| matches!(action, Action::Create { .. }));
        let wants = |action: &Action| action.takes_out(&job.spec.lifecycle).is_some();
        if others.iter().any(wants) || plan.candidates.iter().any(|candidate| wants(&candidate.action)) {
            pass.refusals.wants();
        }
        let mut unsure = self.carry_out_all(job, resolved, seen, others, pass).await;
        unsure |= self.create_all(job, resolved, creations, pass).await;
        // What may have been done is looked at before anything else goes out of service.
        while !unsure {
            let wave = plan.next_wave(MOST);
            if wave.is_empty() {
                break;
            }
            let refusals = &pass.refusals;
            let tried = each(wave, |candidate| async move {
                let tried = self.try_one(job, resolved, seen, &candidate.action, refusals).await;
                Ok::<_, Infallible>((candidate, tried))
            });
            let mut changed = false;
            for (candidate, tried) in tried.await.0 {
                match tried {
                    Ok(Tried::Done) => changed = true,
                    Ok(Tried::Nothing) => pass.common.look_after(Some(AFTER_CONFLICT)),
                    Ok(Tried::Refused) => plan.room.leave(&candidate.zone, candidate.charge),
                    Ok(Tried::Undecided) => {}
                    Err(error) => {
                        match is_refusal(&error) {
                            true => plan.room.leave(&candidate.zone, candidate.charge),
                            false => unsure = true,
                        }
                        match &candidate.action {
                            Action::Create { node, .. } => pass.failed_to_create(node, error),
                            _ => pass.note(Err(error)),
                        }
                    }
                }
            }
            pass.common.again |= changed;
            // Pods that are back meanwhile leave room for others, whom only the next pass sees.
            if changed {
                break;
            }
        }
        pass.common.again |= left.plan.is_cut && !unsure;
        left
    }

    /// Tries all of them, whatever fails. True: something may have been done that no store shows.
    async fn carry_out_all(
        &self,
        job: &Job,
        resolved: &Resolved,
        seen: &Seen,
        actions: Vec<Action>,
        pass: &mut Pass,
    ) -> bool {
        let refusals = &pass.refusals;
        let tried = each(actions, |action| async move {
            Ok::<_, Infallible>(self.try_one(job, resolved, seen, &action, refusals).await)
        });
        let mut unsure = false;
        for tried in tried.await.0 {
            match tried {
                Ok(Tried::Done) => pass.common.again = true,
                Ok(Tried::Nothing) => pass.common.look_after(Some(AFTER_CONFLICT)),
                Ok(Tried::Refused | Tried::Undecided) => {}
                Err(error) => {
                    unsure |= !is_refusal(&error);
                    pass.note(Err(error));
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
        let failed = &Mutex::new(String::new());
        let concerns_one = |error: &kube::Error| matches!(code(error), Some(409 | 422));
        let (done, failure) = slow_start(creations, &mut window, concerns_one, |action: Action| async move {
            let Action::Create { node, not_ready_since } = action else { return Ok(()) };
            let made = self.create(job, resolved, &node, not_ready_since).await;
            made.map(drop).inspect_err(|_| *lock(failed) = node)
        })
        .await;
        self.memories.with(&job.key, |memory| memory.window = window);
        pass.common.again |= done > 0;
        let Some(error) = failure.filter(|error| !namespace_is_ending(error)) else { return false };
        let unsure = !is_refusal(&error);
        let node = lock(failed).clone();
        pass.failed_to_create(&node, error);
        unsure
    }

    /// Makes the Pod for a node. False: its name is another node's, and the next try has another one.
    async fn create(
        &self,
        job: &Job,
        resolved: &Resolved,
        node: &str,
        not_ready_since: Option<i64>,
    ) -> kube::Result<bool> {
        let hash = resolved.hash();
        let made = self.memories.with(&job.key, |memory| memory.made.get(node).copied()).flatten().unwrap_or_default();
        let name = make::pod_name(&job.spec, node, hash, made);
        let pod = make::pod(&job.owner, &job.spec, name, (node, hash), not_ready_since, clock::now());
        let there = match self.pods.create(&job.owner, &pod).await {
            Ok(Created::New(pod)) => {
                self.pods.normal(&job.owner, "SuccessfulCreate", &format!("Created pod: {}", pod.name()));
                pod
            }
            // Made before, and not seen yet.
            Ok(Created::AlreadyThere(pod)) => pod,
            Err(error) => {
                if is_already_there(&error) {
                    // Its namesake ends, or is somebody else's.
                    self.next_name(job, node);
                }
                self.pods.warning(&job.owner, "FailedCreate", &format!("Error creating: {error}"));
                return Err(error);
            }
        };
        self.next_name(job, node);
        Ok(there.node_name == *node || there.aims_at == *node)
    }

    fn next_name(&self, job: &Job, node: &str) {
        self.memories.with(&job.key, |memory| *memory.made.entry(node.to_owned()).or_default() += 1);
    }

    async fn try_one(
        &self,
        job: &Job,
        resolved: &Resolved,
        seen: &Seen,
        action: &Action,
        refusals: &Refusals,
    ) -> kube::Result<Tried> {
        let operation = action.takes_out(&job.spec.lifecycle);
        match action {
            Action::Create { node, not_ready_since } => {
                let made = self.create(job, resolved, node, *not_ready_since).await?;
                Ok(if made { Tried::Done } else { Tried::Nothing })
            }
            Action::Relabel { pod } => {
                self.with_pod(seen, pod, None, refusals, async |view| {
                    let labels = json!({labels::CONTROLLER_REVISION_HASH: resolved.hash()});
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
            Action::Delete { pod, remember } => {
                self.with_pod(seen, pod, operation, refusals, async |view| {
                    self.delete(job, view, remember).await.map(|()| true)
                })
                .await
            }
            Action::UpdateInPlace { pod, spec } => {
                self.with_pod(seen, pod, operation, refusals, async |view| {
                    self.update_in_place(job, resolved, view, spec).await
                })
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

    async fn delete(&self, job: &Job, view: &PodView, remember: &Remember) -> kube::Result<()> {
        if let Remember::Failure(node) = remember {
            let message = format!(
                "Found failed daemon pod {}/{} on node {node}, will try to kill it",
                view.namespace(),
                view.name()
            );
            self.pods.warning(&job.owner, "FailedDaemonPod", &message);
        }
        match self.pods.delete(view).await {
            Ok(()) => {
                let now = clock::now().mono;
                self.memories.with(&job.key, |memory| match remember {
                    Remember::Nothing => {}
                    Remember::Failure(node) => memory.failures.1.note(node, now),
                    Remember::Lost(node, since) => {
                        memory.lost.insert(node.clone(), *since);
                    }
                });
                self.pods.normal(&job.owner, "SuccessfulDelete", &format!("Deleted pod: {}", view.name()));
                Ok(())
            }
            Err(error) => {
                self.pods.warning(&job.owner, "FailedDelete", &format!("Error deleting: {}: {error}", view.name()));
                Err(error)
            }
        }
    }

    async fn update_in_place(
        &self,
        job: &Job,
        resolved: &Resolved,
        view: &PodView,
        spec: &UpdateSpec,
    ) -> kube::Result<bool> {
        let to = Target { label: resolved.hash(), template_hash: None };
        let result = self.in_place.begin(view, to, spec).await;
        match &result {
            Ok(true) => {
                let message = format!("successfully update pod {} in-place(revision {})", view.name(), resolved.update);
                self.pods.normal(&job.owner, "SuccessfulUpdatePodInPlace", &message);
            }
            Ok(false) => {}
            Err(error) => {
                let message =
                    format!("failed to update pod {} in-place(revision {}): {error}", view.name(), resolved.update);
                self.pods.warning(&job.owner, "FailedUpdatePodInPlace", &message);
            }
        }
        result
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
