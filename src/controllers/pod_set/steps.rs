//! Single Pods: each one's own state, and the steps of an update.

use std::sync::Arc;

use kube::Resource;
use serde_json::{Map, Value, json};

use super::{
    Common, Pass, PodSets, Together, Write,
    in_place::{InPlaceUpdate, Tried, kept_by_budgets, leaves_room, may_be_done},
};
use crate::{
    api::apps::lifecycle::Lifecycle,
    budgets::refusals::Refusals,
    domain::{
        budgets::unavailable::Operation,
        pod::lifecycle::{self, State},
        workload::{owner::OwnerRef, steps::PodAction},
    },
    k8s::pod::PodView,
    runtime::{
        apply::{code, is_refusal, namespace_is_ending},
        in_place::{Refreshing, Target},
        pass::AFTER_CONFLICT,
        pod_control::Part,
        slow_start::slow_start,
        watches::ObjectKey,
    },
};

/// What is done to one Pod that stays.
pub enum PodStep<'a> {
    /// These labels are written.
    SetLabels(Map<String, Value>),
    /// What its plan says.
    Change {
        /// For events.
        owner: &'a OwnerRef,
        /// The name of the revision that an update in place leads to, and its label.
        revision: (&'a str, &'a str),
        /// What is done.
        change: &'a PodAction,
    },
}

/// How the outcome of a step is reported.
#[derive(Clone, Copy, Debug, Default)]
pub struct AboutStep {
    /// What it creates, in words; None: it changes or deletes.
    pub creates: Option<&'static str>,
    /// Whether it takes a Pod out of service.
    pub takes_out: bool,
}

/// A plan whose candidates take Pods out of service, as many as find room.
pub trait Waves {
    /// One of them.
    type Candidate;
    /// Those that find room now.
    fn wave(&mut self) -> Vec<Self::Candidate>;
    /// One stays in service after all: its room is free.
    fn give_back(&mut self, candidate: &Self::Candidate);
    /// Why one that creates something could not; None for one that changes or deletes.
    fn creates(candidate: &Self::Candidate) -> Option<String>;
}

impl Pass {
    /// Notes the outcome for candidates that found room, and returns those that find room next: refused ones leave theirs to
    /// them. None follow once something may have been done.
    pub fn next_wave<P: Waves>(
        &mut self,
        plan: &mut P,
        tried: Vec<(P::Candidate, kube::Result<Tried>)>,
    ) -> Vec<P::Candidate> {
        let mut is_over = false;
        for (candidate, tried) in tried {
            is_over |= may_be_done(&tried);
            if leaves_room(&tried) {
                plan.give_back(&candidate);
            }
            self.note_tried(P::creates(&candidate).as_deref(), tried);
        }
        if is_over { Vec::new() } else { plan.wave() }
    }

    /// Takes note of steps that are tried whatever becomes of the others. True: a Pod may have gone out of service, and no store
    /// shows that.
    pub fn note_all(&mut self, tried: impl IntoIterator<Item = (AboutStep, kube::Result<Tried>)>) -> bool {
        let mut unsure = false;
        for (AboutStep { creates, takes_out }, tried) in tried {
            unsure |= takes_out && tried.as_ref().is_err_and(|error| !is_refusal(error));
            self.note_tried(creates, tried);
        }
        unsure
    }

    /// Takes note of what came of one step; `creates` is what it was to create, in words.
    fn note_tried(&mut self, creates: Option<&str>, tried: kube::Result<Tried>) {
        match (tried, creates) {
            (Ok(Tried::Done), _) => self.common.again = true,
            (Ok(Tried::Nothing), _) => self.common.look_after(Some(AFTER_CONFLICT)),
            (Ok(Tried::Refused | Tried::Undecided), _) => {}
            (Err(error), Some(what)) => self.failed_to_create(what, error),
            (Err(error), None) => self.note(Err(error)),
        }
    }
}

impl<M: Default + AsMut<Common>> PodSets<M> {
    /// Brings every Pod's own state up to date, those of a large set beside the pass. `by` is by what a Pod is refreshed.
    /// True: something was written.
    pub async fn refresh_all<'a>(
        &self,
        key: &ObjectKey,
        views: impl Iterator<Item = &'a Arc<PodView>>,
        (together, by): (Together<'a>, impl Fn(&PodView) -> Refreshing<'a>),
        pass: &mut Pass,
    ) -> bool {
        let beside = self.refreshes_singly(key, &together).then_some(&*self.pod_queue);
        let waits_in = |uid: &str| self.with(key, |memory| memory.waits_in.get(uid).cloned());
        let all = self.in_place.refresh_all(views, by, waits_in, beside).await;
        self.with(key, |memory| memory.waits_in.extend(all.waits));
        pass.common.look_after(all.look);
        if let Some(error) = all.failure {
            pass.note(Err(error));
        }
        all.written
    }

    /// The same while nothing else can be done for a set: a Pod whose update in place has begun would stay out of service. No
    /// revision counts as the wanted one, so what was announced stays announced.
    pub async fn refresh_without_spec<K: Resource<DynamicType = ()>>(
        &self,
        set: &K,
        lifecycle: Option<&Lifecycle>,
        pass: &mut Pass,
    ) {
        if set.meta().deletion_timestamp.is_some() {
            return;
        }
        let (key, owner) = (ObjectKey::of(set), OwnerRef::of(set));
        let by = Refreshing { owner: &owner, lifecycle, update_revision: "" };
        let together = Together { generation: set.meta().generation, by, for_all: true };
        let views = self.owned(&owner);
        let written = self.refresh_all(&key, views.iter(), (together, |_: &PodView| by), pass).await;
        pass.common.again |= written;
    }

    /// Does something with a Pod, if its budgets let it and nobody else writes it.
    ///
    /// # Errors
    /// Those of `act`.
    pub async fn with_pod(
        &self,
        view: Option<&Arc<PodView>>,
        asked: (Option<Operation>, &Refusals),
        act: impl AsyncFnOnce(&PodView) -> kube::Result<bool>,
    ) -> kube::Result<Tried> {
        let Some(view) = view else { return Ok(Tried::Nothing) };
        let Some(_held) = self.pods.hold(view) else { return Ok(Tried::Nothing) };
        match kept_by_budgets(&self.context.budgets, view, asked, false).await {
            Some(kept) => Ok(kept),
            None => act(view).await.map(Tried::of),
        }
    }

    /// Deletes a Pod, and counts that. False: it stays, its hook has taken hold of it again.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    pub async fn delete(&self, view: &PodView, hooks: &Lifecycle) -> kube::Result<bool> {
        let deleted = self.pods.delete_unless_held(view, hooks).await;
        if !matches!(deleted, Ok(false)) {
            self.metrics.count(Write::Delete, deleted.is_ok());
        }
        deleted
    }

    /// Changes a Pod, as [`Self::with_pod`].
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    pub async fn change(
        &self,
        view: Option<&Arc<PodView>>,
        step: PodStep<'_>,
        hooks: Option<&Lifecycle>,
        asked: (Option<Operation>, &Refusals),
    ) -> kube::Result<Tried> {
        let Some(view) = view else { return Ok(Tried::Nothing) };
        let (owner, (revision, label), change) = match step {
            PodStep::SetLabels(labels) => {
                let patch = json!({"metadata": {"labels": labels}});
                let act = async |view: &PodView| {
                    let patched = self.pods.try_patch(view, Part::Whole, &patch).await;
                    patched.map(|patched| patched.is_some())
                };
                return self.with_pod(Some(view), asked, act).await;
            }
            PodStep::Change { owner, revision, change } => (owner, revision, change),
        };
        let (state, restore) = match change {
            PodAction::UpdateInPlace { spec } => {
                let update = InPlaceUpdate {
                    writers: (&self.pods, &self.in_place),
                    owner,
                    view,
                    revision: (revision, Target { label, template_hash: None, gives_state: false }),
                    spec,
                    is_in_doubt: self.in_place.is_in_doubt(view),
                };
                return self.update_in_place(view, update, asked).await;
            }
            // It goes back to where it was: into its update, if one is under way.
            PodAction::CancelDeletion if view.in_place().is_some() => (State::Updating, false),
            PodAction::CancelDeletion => (lifecycle::after_cancelled_deletion(hooks, &**view), false),
            PodAction::CancelUpdate => (lifecycle::after_update(hooks, &**view), false),
            PodAction::AnnounceDeletion => (State::PreparingDelete, false),
            PodAction::AnnounceUpdate { restore } => (State::PreparingUpdate, *restore),
            PodAction::RestoreHook => (State::Updated, true),
        };
        let act = async |view: &PodView| self.in_place.move_to(view, state, hooks, restore).await;
        self.with_pod(Some(view), asked, act).await
    }

    /// Updates a Pod in place, and counts that.
    async fn update_in_place(
        &self,
        view: &Arc<PodView>,
        update: InPlaceUpdate<'_>,
        asked: (Option<Operation>, &Refusals),
    ) -> kube::Result<Tried> {
        let kept = update.kept(&self.context.budgets, asked).await;
        if let Some(kept) = kept.inspect_err(|_| self.metrics.count(Write::Update, false))? {
            return Ok(kept);
        }
        let act = async |_: &PodView| {
            let begun = update.begin().await;
            if !matches!(begun, Ok(false)) {
                self.metrics.count(Write::Update, begun.is_ok());
            }
            begun
        };
        self.with_pod(Some(view), asked, act).await
    }

    /// Makes Pods of a set, one at first, then more at a time. Returns the first failure, if it is one to report.
    pub async fn create_all<A, F>(
        &self,
        key: &ObjectKey,
        creations: Vec<A>,
        pass: &mut Pass,
        create: impl Fn(A) -> F,
    ) -> Option<kube::Error>
    where
        F: Future<Output = kube::Result<()>>,
    {
        if creations.is_empty() {
            return None;
        }
        let mut window = self.with(key, |memory| memory.window);
        // A name that is taken, or a Pod that its own claim or ordinal makes invalid.
        let concerns_one = |error: &kube::Error| matches!(code(error), Some(409 | 422));
        let (done, failure) = slow_start(creations, &mut window, concerns_one, create).await;
        self.with(key, |memory| memory.window = window);
        pass.common.again |= done > 0;
        failure.filter(|error| !namespace_is_ending(error))
    }
}
