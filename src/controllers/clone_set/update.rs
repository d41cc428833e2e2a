//! Updates Pods, in place or by replacing them.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use serde_json::json;

use super::{Controller, Pass, Resolved, Seen, apply::Tried, observe::MARK, revisions::Ways};
use crate::{
    api::{
        apps::{clone_set::CloneSet, lifecycle::Lifecycle},
        feature_gates::gate,
        labels,
    },
    budgets::refusals::{Refusals, Verdict},
    domain::{
        budgets::unavailable::Operation,
        kinds::clone_set::{
            make,
            one_update::{self, How},
            plan::{self, Pod},
            room::{Charge, Room},
        },
        pod::{
            inplace::{self, Allowed, UpdateSpec},
            lifecycle::{self, State},
        },
        workload::rollout,
    },
    k8s::{pod::PodView, revision},
    runtime::{
        apply::is_refusal,
        in_place::Target,
        pass::AFTER_CONFLICT,
        pod_control::Part,
        slow_start::{MOST, each},
    },
};

/// What the updates of a pass have in common.
struct Job<'a> {
    clone_set: &'a CloneSet,
    seen: &'a Seen,
    resolved: &'a Resolved,
    /// The revision to get to.
    target: &'a str,
    allowed: Allowed,
    /// Otherwise Pods are replaced in any case.
    in_place: bool,
}

/// What to do with one Pod.
struct Work {
    /// The room that it takes.
    charge: Option<Charge>,
    view: Arc<PodView>,
    how: How,
    spec: UpdateSpec,
}

/// Pods that are let go.
fn letting_go(seen: &Seen, pods: &[&Pod]) -> Vec<Work> {
    let views = pods.iter().filter_map(|pod| seen.view(&pod.facts.name).cloned());
    let of = |view| Work { charge: None, view, how: How::LetGo, spec: UpdateSpec::default() };
    views.map(of).collect()
}

/// The next Pods that find room, after the first `begun`.
fn next_wave<'a>(candidates: &[&'a Pod], begun: &mut usize, room: &mut Room) -> Vec<&'a Pod> {
    let left = candidates.iter().skip(*begun).take(MOST);
    let wave: Vec<&Pod> = left.take_while(|pod| room.enter(Charge::of(pod))).copied().collect();
    *begun += wave.len();
    wave
}

/// How a Pod gets from its revision to the target: None where Pods are replaced in any case.
type Way = Option<Result<UpdateSpec, String>>;

impl Controller {
    /// Updates Pods, the first ones first, as many as find room.
    pub(super) async fn update(&self, clone_set: &CloneSet, resolved: &Resolved, seen: &Seen, pass: &mut Pass) {
        let plan = match plan::update(&self.observed(clone_set, resolved, seen, &[])) {
            Ok(plan) => plan,
            Err(rollout::Invalid(why)) => {
                pass.outcome.update_error = Some(why);
                return;
            }
        };
        let (mut room, mut begun) = (plan.room, 0);
        let mut wave = next_wave(&plan.candidates, &mut begun, &mut room);
        if wave.is_empty() && plan.let_go.is_empty() {
            return;
        }
        pass.refusals.wants();
        let resolved = match self.with_known(clone_set, resolved).await {
            Ok(resolved) => resolved,
            Err(error) => return pass.note(Err(error), |outcome| &mut outcome.update_error),
        };
        let allowed = match self.in_place.allowed(&self.context.gates).await {
            Ok(allowed) => allowed,
            Err(error) => return pass.note(Err(error), |outcome| &mut outcome.update_error),
        };
        let target = if plan.back { &resolved.current } else { &resolved.update };
        let job = &Job { clone_set, seen, resolved: &resolved, target, allowed, in_place: plan.in_place };
        let refusals = &pass.refusals;
        let begin = |work: Work| async move {
            let tried = self.begin(job, &work.view, work.how, &work.spec, refusals).await;
            Ok::<_, Infallible>((work.charge, tried))
        };
        let mut ways: Ways<Way> = BTreeMap::new();
        let mut work = letting_go(seen, &plan.let_go);
        let mut tally = Tally::default();
        loop {
            work.extend(self.work(job, &wave, &mut ways));
            for (charge, tried) in each(std::mem::take(&mut work), begin).await.0 {
                if tally.count(tried)
                    && let Some(charge) = charge
                {
                    room.leave(charge);
                }
            }
            // Pods that are back meanwhile leave room for others, whom only the next pass sees: a pass that has begun
            // something ends.
            if tally.changed || tally.unsure {
                break;
            }
            wave = next_wave(&plan.candidates, &mut begun, &mut room);
            if wave.is_empty() {
                break;
            }
        }
        self.report_updates(clone_set, tally, pass);
    }

    /// What to do with each of the Pods.
    fn work(&self, job: &Job<'_>, pods: &[&Pod], ways: &mut Ways<Way>) -> Vec<Work> {
        let mut work = Vec::new();
        for pod in pods {
            let Some(view) = job.seen.view(&pod.facts.name).cloned() else { continue };
            let way = ways.entry(pod.revision.clone()).or_insert_with(|| {
                job.in_place.then(|| self.way(job.clone_set, job.resolved, &pod.revision, job.target, job.allowed))
            });
            let how = way.as_ref().map_or(How::Replace, |way| self.how(job.clone_set, pod, way));
            let spec = way.as_ref().and_then(|way| way.as_ref().ok()).cloned().unwrap_or_default();
            work.push(Work { charge: Some(Charge::of(pod)), view, how, spec });
        }
        work
    }

    fn report_updates(&self, clone_set: &CloneSet, tally: Tally, pass: &mut Pass) {
        pass.next.look_after(tally.is_busy.then_some(AFTER_CONFLICT));
        if let Some(why) = tally.impossible {
            let said = clone_set.status.iter().flat_map(|s| &s.conditions).any(|c| c.message == why);
            if !said {
                self.pods.warning(&make::owner(clone_set), "FailedUpdate", &why);
            }
            pass.outcome.update_error = Some(why);
        }
        pass.next.again |= tally.changed;
        pass.note(tally.failure.map_or(Ok(tally.changed), Err), |outcome| &mut outcome.update_error);
    }

    /// Begins the update of one Pod. None: it is being written by another task.
    async fn begin(
        &self,
        job: &Job<'_>,
        view: &PodView,
        how: How,
        spec: &UpdateSpec,
        refusals: &Refusals,
    ) -> kube::Result<Option<Tried>> {
        match how {
            How::Impossible(why) => return Ok(Some(Tried::Impossible(format!("Pod {} {why}", view.name())))),
            How::Wait => return Ok(Some(Tried::Nothing)),
            How::Announce { .. } | How::Now | How::Replace | How::LetGo => {}
        }
        let Some(_held) = self.pods.hold(view) else { return Ok(None) };
        if let Some(question) = question(job.clone_set, view, &how, spec) {
            match self.context.budgets.may_take(view, question, refusals).await {
                Verdict::Yes => {}
                Verdict::No => return Ok(Some(Tried::Refused)),
                Verdict::Undecided => return Ok(Some(Tried::Nothing)),
            }
        }
        let done = match how {
            How::LetGo => {
                let state = lifecycle::after_update(job.clone_set.spec.lifecycle.as_ref(), view);
                self.move_to(job.clone_set, view, state, false).await?
            }
            How::Announce { restore } => self.move_to(job.clone_set, view, State::PreparingUpdate, restore).await?,
            How::Now => self.update_now(job.clone_set, view, job.target, spec).await?,
            How::Replace => self.mark(job.clone_set, view, job.target).await?,
            How::Wait | How::Impossible(_) => false,
        };
        Ok(Some(if done { Tried::Done } else { Tried::Nothing }))
    }

    /// Marks a Pod, so that the number of Pods takes it away within the limits, and notes for which revision.
    async fn mark(&self, clone_set: &CloneSet, view: &PodView, target: &str) -> kube::Result<bool> {
        if view.labels.get(labels::SPECIFIED_DELETE).is_some() {
            return Ok(false);
        }
        let patch = json!({"metadata": {"uid": view.uid(), "labels": {labels::SPECIFIED_DELETE: MARK},
            "annotations": {labels::SPECIFIED_DELETE_FOR: target}}});
        if self.pods.try_patch(view, Part::Whole, &patch).await?.is_some() {
            let message =
                format!("successfully patch pod {} specified-delete for update(revision {target})", view.name());
            self.pods.normal(&make::owner(clone_set), "SuccessfulUpdatePodReCreate", &message);
        }
        Ok(true)
    }

    /// What has to change between two revisions, or why that needs another Pod.
    pub(super) fn way(
        &self,
        clone_set: &CloneSet,
        resolved: &Resolved,
        old: &str,
        target: &str,
        allowed: Allowed,
    ) -> Result<UpdateSpec, String> {
        let gates = &self.context.gates;
        let (Some(from), Some(to)) = (resolved.find(old), resolved.find(target)) else {
            return Err(format!("revision {old:?} of the Pod is not known any more"));
        };
        let in_place_only = clone_set.spec.update_strategy.type_ == "InPlaceOnly";
        if gates.enabled(gate::RECREATE_ON_CLAIM_CHANGE)
            && !in_place_only
            && let (Some(a), Some(b)) = (&from.claims_hash, &to.claims_hash)
            && a != b
        {
            return Err("volumeClaimTemplates differ".into());
        }
        let templates = (revision::template(&from.data), revision::template(&to.data));
        let (Some(from), Some(to)) = templates else { return Err("a revision holds no template".into()) };
        let mut spec = inplace::spec_between(&from, &to, target, allowed)?;
        let strategy = clone_set.spec.update_strategy.in_place_update_strategy.as_ref();
        spec.grace_seconds = i64::from(strategy.map_or(0, |strategy| strategy.grace_period_seconds.max(0)));
        Ok(spec)
    }

    fn how(&self, clone_set: &CloneSet, pod: &Pod, way: &Result<UpdateSpec, String>) -> How {
        let only = clone_set.spec.update_strategy.type_ == "InPlaceOnly";
        let lifecycle: Option<&Lifecycle> = clone_set.spec.lifecycle.as_ref();
        one_update::how(pod, lifecycle, way.as_ref().err().map(String::as_str), only)
    }

    /// Takes the Pod out of service, then changes it, or says in an annotation what it will be changed to.
    async fn update_now(
        &self,
        clone_set: &CloneSet,
        view: &PodView,
        target: &str,
        spec: &UpdateSpec,
    ) -> kube::Result<bool> {
        let short = self.context.gates.enabled(gate::CLONE_SET_SHORT_HASH);
        let to = Target { revision: target, label: make::revision_label(target, short) };
        let result = self.in_place.begin(view, to, spec).await;
        match &result {
            Ok(true) => {
                let message = format!("successfully update pod {} in-place(revision {target})", view.name());
                self.pods.normal(&make::owner(clone_set), "SuccessfulUpdatePodInPlace", &message);
            }
            Ok(false) => {}
            Err(error) => {
                let message = format!("failed to update pod {} in-place(revision {target}): {error}", view.name());
                self.pods.warning(&make::owner(clone_set), "FailedUpdatePodInPlace", &message);
            }
        }
        result.map(|_| true)
    }
}

/// What came of the updates of a pass.
#[derive(Default)]
struct Tally {
    changed: bool,
    /// Something may have been done.
    unsure: bool,
    /// A Pod was being written by another task.
    is_busy: bool,
    impossible: Option<String>,
    failure: Option<kube::Error>,
}

impl Tally {
    /// True: the Pod stays as it is, and others may have its room.
    fn count(&mut self, tried: kube::Result<Option<Tried>>) -> bool {
        match tried {
            Ok(None) => self.is_busy = true,
            Ok(Some(Tried::Nothing)) => {}
            Ok(Some(Tried::Done)) => self.changed = true,
            Ok(Some(Tried::Refused)) => return true,
            Ok(Some(Tried::Impossible(why))) => {
                self.impossible.get_or_insert(why);
                return true;
            }
            Err(error) => {
                let is_refusal = is_refusal(&error);
                self.unsure |= !is_refusal;
                self.failure.get_or_insert(error);
                return is_refusal;
            }
        }
        false
    }
}

/// What to ask budgets before a step of an update, and whether only for information. None: the Pod stays in service.
fn question(clone_set: &CloneSet, view: &PodView, how: &How, spec: &UpdateSpec) -> Option<(Operation, bool)> {
    let lifecycle = clone_set.spec.lifecycle.as_ref();
    let operation = match spec.container_images.is_empty() && !spec.container_resources.is_empty() {
        true => Operation::Resize,
        false => Operation::Update,
    };
    match how {
        How::Now => Some((operation, false)),
        How::Announce { .. } => {
            let hook = lifecycle.and_then(|lifecycle| lifecycle.in_place_update.as_ref());
            hook.is_some_and(|hook| hook.mark_pod_not_ready).then_some((operation, false))
        }
        How::Replace => {
            // Marked, it is deleted at once, unless its hook holds it in service.
            let hook = lifecycle.and_then(|lifecycle| lifecycle.pre_delete.as_ref());
            let stays = hook.is_some_and(|hook| hook.is_hooked(view) && !hook.mark_pod_not_ready);
            Some((Operation::Delete, stays))
        }
        How::Wait | How::LetGo | How::Impossible(_) => None,
    }
}
