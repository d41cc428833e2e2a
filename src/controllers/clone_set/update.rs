//! Updates Pods, in place or by replacing them.

use std::{convert::Infallible, sync::Arc};

use serde_json::json;

use super::{CloneSetJob, CloneSetObjects, Controller, Pass, Resolved, observe::MARK};
use crate::{
    api::{feature_gates::gate, labels},
    budgets::refusals::Refusals,
    controllers::pod_set::{InPlaceUpdate, Tried, kept_by_budgets, leaves_room, may_be_done},
    domain::{
        kinds::clone_set::{
            make,
            one_update::{self, Differences, Question, Rules, Step, Updates},
            plan::Pod,
            room::Charge,
            update,
        },
        pod::lifecycle::State,
        workload::rollout,
    },
    k8s::{pod::PodView, revision},
    runtime::{
        apply::said,
        in_place::Target,
        pass::AFTER_CONFLICT,
        pod_control::Part,
        slow_start::{WAVE, each},
    },
};

/// One Pod whose update begins, or is cancelled.
struct Work {
    /// The room that it takes.
    charge: Option<Charge>,
    view: Arc<PodView>,
    step: Step,
}

/// What came of the step of one Pod.
enum Begun {
    /// It was tried.
    Tried(Tried),
    /// It is not due, or the Pod is as it is to be. Others do not get its room.
    Nothing,
    /// It cannot be done, with the reason. The room that it was to take is free.
    Impossible(String),
}

impl Controller {
    /// Updates Pods, the first ones first, as many as find room.
    pub(super) async fn update(&self, job: &CloneSetJob, resolved: &Resolved, seen: &CloneSetObjects, pass: &mut Pass) {
        let mut plan = match update::update(&self.observed(job, resolved, seen, &[])) {
            Ok(plan) => plan,
            Err(rollout::Invalid(why)) => {
                pass.outcome.impossible = Some(why.clone());
                pass.outcome.update_error = Some(why);
                return;
            }
        };
        let mut wave = plan.next_wave(WAVE);
        if wave.is_empty() && plan.cancels.is_empty() {
            return;
        }
        pass.refusals.wants();
        let known = match self.with_known(job, resolved).await {
            Ok(resolved) => resolved.known.unwrap_or_default(),
            Err(error) => return pass.note(Err(error), |outcome| &mut outcome.update_error),
        };
        let rules = match self.rules().await {
            Ok(rules) => rules,
            Err(error) => return pass.note(Err(error), |outcome| &mut outcome.update_error),
        };
        let target = if plan.back { &resolved.current } else { &resolved.update };
        let updates = Updates { spec: &job.spec, revisions: &known, target, in_place: plan.in_place, rules };
        let refusals = &pass.refusals;
        let begin = |Work { charge, view, step }: Work| async move {
            Ok::<_, Infallible>((charge, self.begin(job, target, &view, step, refusals).await))
        };
        let mut differences = Differences::new();
        let work = |pod: &Pod, charge: Option<Charge>, step: Step| {
            seen.view(&pod.facts.name).map(|view| Work { charge, view: view.clone(), step })
        };
        let cancels = plan.cancels.iter().filter_map(|pod| work(pod, None, one_update::cancel(&job.spec, pod)));
        let mut works: Vec<Work> = cancels.collect();
        let mut tally = Tally::default();
        loop {
            works.extend(
                wave.iter().filter_map(|pod| work(pod, Some(Charge::of(pod)), updates.step(pod, &mut differences))),
            );
            for (charge, begun) in each(std::mem::take(&mut works), begin).await.0 {
                if tally.count(begun)
                    && let Some(charge) = charge
                {
                    plan.room.leave(charge);
                }
            }
            if tally.is_over {
                break;
            }
            wave = plan.next_wave(WAVE);
            if wave.is_empty() {
                break;
            }
        }
        self.report_updates(job, tally, pass);
    }

    /// Which changes may be made in place.
    async fn rules(&self) -> kube::Result<Rules> {
        let gates = &self.context.gates;
        Ok(Rules::of(self.in_place.allowed(gates).await?, gates))
    }

    fn report_updates(&self, job: &CloneSetJob, tally: Tally, pass: &mut Pass) {
        pass.next.look_after(tally.is_busy.then_some(AFTER_CONFLICT));
        // It may be out of service already, or the store has got its new version.
        pass.has_written |= tally.is_busy;
        if let Some(why) = tally.impossible {
            let said = job.clone_set.status.iter().flat_map(|s| &s.conditions).any(|c| c.message == why);
            if !said {
                self.pods.warning(&job.owner, "FailedUpdate", &why);
            }
            pass.outcome.impossible = Some(why.clone());
            pass.outcome.update_error = Some(why);
        }
        pass.next.again |= tally.changed;
        pass.note(tally.failure.map_or(Ok(tally.changed), Err), |outcome| &mut outcome.update_error);
    }

    /// Carries out the step of one Pod.
    async fn begin(
        &self,
        job: &CloneSetJob,
        target: &str,
        view: &PodView,
        step: Step,
        refusals: &Refusals,
    ) -> kube::Result<Begun> {
        let ask = match &step {
            Step::Impossible(why) => return Ok(Begun::Impossible(format!("Pod {} {why}", view.name()))),
            Step::Wait => return Ok(Begun::Nothing),
            Step::CancelUpdate(_) => None,
            Step::Announce { ask, .. } => *ask,
            Step::InPlace { ask, .. } | Step::Recreate { ask } => Some(*ask),
        };
        let Some(_held) = self.pods.hold(view) else { return Ok(Begun::Tried(Tried::Nothing)) };
        let in_place = match &step {
            Step::InPlace { spec, .. } => Some(InPlaceUpdate {
                writers: (&self.pods, &self.in_place),
                owner: &job.owner,
                view,
                revision: (target, self.labels_of(target)),
                spec,
                is_in_doubt: self.in_place.is_in_doubt(view),
            }),
            _ => None,
        };
        if let Some(Question { operation, dry_run }) = ask {
            let (budgets, asked) = (&self.context.budgets, (Some(operation), refusals));
            if let Some(update) = &in_place
                && let Some(kept) = update.kept(budgets, asked).await?
            {
                return Ok(Begun::Tried(kept));
            }
            if let Some(kept) = kept_by_budgets(budgets, view, asked, dry_run).await {
                return Ok(Begun::Tried(kept));
            }
        }
        if let Some(update) = in_place {
            return update.begin().await.map(|begun| Begun::Tried(Tried::of(begun)));
        }
        let done = match step {
            Step::CancelUpdate(state) => self.move_to(job, view, state, false).await?,
            Step::Announce { restore, .. } => self.move_to(job, view, State::PreparingUpdate, restore).await?,
            Step::Recreate { .. } => self.mark(job, view, target).await?,
            Step::InPlace { .. } | Step::Wait | Step::Impossible(_) => false,
        };
        Ok(if done { Begun::Tried(Tried::Done) } else { Begun::Nothing })
    }

    /// Marks a Pod, so that the number of Pods takes it away within the limits, and notes for which revision.
    async fn mark(&self, job: &CloneSetJob, view: &PodView, target: &str) -> kube::Result<bool> {
        if view.labels.get(labels::SPECIFIED_DELETE).is_some() {
            return Ok(false);
        }
        let patch = json!({"metadata": {"uid": view.uid(), "labels": {labels::SPECIFIED_DELETE: MARK},
            "annotations": {labels::SPECIFIED_DELETE_FOR: target}}});
        let name = view.name();
        let patched = self.pods.try_patch(view, Part::Whole, &patch).await.inspect_err(|error| {
            let why = said(error);
            let message = format!("failed to patch pod {name} specified-delete for update(revision {target}): {why}");
            self.pods.warning(&job.owner, "FailedUpdatePodReCreate", &message);
        })?;
        if patched.is_some() {
            let message = format!("successfully patch pod {name} specified-delete for update(revision {target})");
            self.pods.normal(&job.owner, "SuccessfulUpdatePodReCreate", &message);
        }
        Ok(true)
    }

    /// The labels of Pods on a revision.
    fn labels_of<'a>(&self, revision: &'a str) -> Target<'a> {
        let short = self.context.gates.enabled(gate::CLONE_SET_SHORT_HASH);
        let label = make::revision_label(revision, short);
        Target { label, template_hash: Some(revision::short(revision)), gives_state: true }
    }
}

/// What came of the updates of a pass.
#[derive(Default)]
struct Tally {
    changed: bool,
    /// No further Pods are chosen.
    is_over: bool,
    /// A Pod was being written by another task, or has changed.
    is_busy: bool,
    impossible: Option<String>,
    failure: Option<kube::Error>,
}

impl Tally {
    /// True: the Pod stays as it is, and others may have its room.
    fn count(&mut self, begun: kube::Result<Begun>) -> bool {
        let tried = match begun {
            Ok(Begun::Tried(tried)) => Ok(tried),
            Ok(Begun::Nothing) => return false,
            Ok(Begun::Impossible(why)) => {
                self.impossible.get_or_insert(why);
                return true;
            }
            Err(error) => Err(error),
        };
        self.is_over |= may_be_done(&tried);
        let leaves_room = leaves_room(&tried);
        match tried {
            Ok(Tried::Done) => self.changed = true,
            Ok(Tried::Nothing) => self.is_busy = true,
            Ok(Tried::Refused | Tried::Undecided) => {}
            Err(error) => {
                self.failure.get_or_insert(error);
            }
        }
        leaves_room
    }
}
