//! Updates Pods, in place or by replacing them.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use serde_json::{Value, json};

use super::{
    AFTER_CONFLICT, Controller, Pass, Resolved, Seen,
    apply::Tried,
    lock,
    observe::MARK,
    refusals::{Refusals, Verdict},
    revisions::Ways,
};
use crate::{
    api::{
        apps::{clone_set::CloneSet, lifecycle::Lifecycle},
        feature_gates::gate,
        labels,
    },
    domain::{
        budgets::unavailable::Operation,
        kinds::clone_set::{
            make,
            one_update::{self, How},
            plan::{self, Pod},
            room::{Charge, Room},
        },
        pod::{
            inplace::{self, Allowed, Annotations, UpdateSpec, resize},
            lifecycle::{self, State},
            readiness, refresh,
        },
        workload::rollout,
    },
    k8s::{pod::PodView, revision, time::rfc3339},
    runtime::{
        apply::is_refusal,
        clock,
        pod_control::{Part, decoded},
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
        let allowed = match self.allowed().await {
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
        self.tell_updates(clone_set, tally, pass);
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

    fn tell_updates(&self, clone_set: &CloneSet, tally: Tally, pass: &mut Pass) {
        pass.look_after(tally.is_busy.then_some(AFTER_CONFLICT));
        if let Some(why) = tally.impossible {
            let said = clone_set.status.iter().flat_map(|s| &s.conditions).any(|c| c.message == why);
            if !said {
                self.pods.warning(&make::owner(clone_set), "FailedUpdate", &why);
            }
            pass.outcome.update_error = Some(why);
        }
        pass.again |= tally.changed;
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
            match self.may_take(view, question, refusals).await {
                Verdict::Yes => {}
                Verdict::No => return Ok(Some(Tried::Refused)),
                Verdict::Undecided => return Ok(Some(Tried::Nothing)),
            }
        }
        let done = match how {
            How::LetGo => {
                let state = lifecycle::after_update(job.clone_set.spec.lifecycle.as_ref(), view);
                self.announce(job.clone_set, view, state, false).await?
            }
            How::Announce { restore } => self.announce(job.clone_set, view, State::PreparingUpdate, restore).await?,
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

    /// Which changes may be made in place in this cluster.
    pub(super) async fn allowed(&self) -> kube::Result<Allowed> {
        let gates = &self.context.gates;
        let env_from_metadata = gates.enabled(gate::IN_PLACE_UPDATE_ENV);
        if !gates.enabled(gate::RESIZE_IN_PLACE) {
            return Ok(Allowed { env_from_metadata, resources: false });
        }
        let asked = *lock(&self.can_resize);
        let resources = match asked {
            Some(can) => can,
            None => {
                let version = self.context.client.apiserver_version().await?;
                let can = resize::has_subresource(&version.git_version);
                *lock(&self.can_resize) = Some(can);
                can
            }
        };
        Ok(Allowed { env_from_metadata, resources })
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
        let result = self.try_update_now(view, target, spec).await;
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

    async fn try_update_now(&self, view: &PodView, target: &str, spec: &UpdateSpec) -> kube::Result<bool> {
        let now = clock::now();
        // A change of resources alone may leave the Pod in service: the whole Pod says whether kubelet restarts anything.
        let read = if spec.container_resources.is_empty() { None } else { self.pods.read(view).await? };
        let conditions = match &read {
            Some(whole) if !resize::needs_not_ready(whole, spec) => Vec::new(),
            _ => readiness::in_place_begins(&refresh::compact(view), now.wall),
        };
        let whole = if conditions.is_empty() {
            match read {
                Some(whole) => Some(whole),
                None => self.pods.read(view).await?,
            }
        } else {
            let patch = json!({"metadata": {"uid": view.uid()}, "status": {"conditions": conditions}});
            self.pods.try_patch(view, Part::Status, &patch).await?.map(|whole| decoded(&whole)).transpose()?
        };
        let Some(whole): Option<Value> = whole else { return Ok(false) };
        let earlier = Annotations::of(&whole).unwrap_or_default().state;
        let state = inplace::begin(&whole, spec, earlier.as_ref(), now.wall);
        let mut patch = if spec.grace_seconds > 0 {
            let grace = serde_json::to_string(spec).map_err(kube::Error::SerdeError)?;
            let state = serde_json::to_string(&state).map_err(kube::Error::SerdeError)?;
            json!({"metadata": {"uid": view.uid(), "labels": {},
                "annotations": {labels::IN_PLACE_GRACE: grace, labels::IN_PLACE_STATE: state, labels::IN_PLACE_STATE_LEGACY: null}}})
        } else {
            match self.batch(view, &whole, spec, state, now).await? {
                Some(patch) => patch,
                None => return Ok(false),
            }
        };
        let short = self.context.gates.enabled(gate::CLONE_SET_SHORT_HASH);
        for (key, value) in [
            (labels::CONTROLLER_REVISION_HASH, make::revision_label(target, short)),
            (labels::POD_TEMPLATE_HASH, revision::short(target)),
            (labels::LIFECYCLE_STATE, State::Updating.as_str()),
        ] {
            patch["metadata"]["labels"][key] = value.into();
        }
        patch["metadata"]["annotations"][labels::LIFECYCLE_TIMESTAMP] = rfc3339(now.wall).into();
        Ok(self.pods.try_patch(view, Part::Whole, &patch).await?.is_some())
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
