//! The writes to Pods: one patch for each, many at a time, within the limits of the plan.

use std::convert::Infallible;

use serde_json::Value;

use super::{Controller, Job, metrics::Written, observe::Observed};
use crate::{
    budgets::refusals::{Refusals, Verdict},
    domain::{
        budgets::unavailable::Operation,
        kinds::sidecar_set::{
            plan::{Next, Plan, Turn, Walk},
            pod::annotations,
            states,
            write::{self, Unwritable},
        },
    },
    k8s::{invalid::Invalid, pod::PodView},
    runtime::{
        apply::{is_refusal, said},
        clock,
        pass::{AFTER_CONFLICT, AFTER_REFUSAL, Pass},
        pod_control::Part,
        slow_start::{WAVE, each},
    },
};

/// Pods that the API server may refuse in one pass: what is wrong with so many is mostly wrong with all.
const MOST_REFUSED: usize = 100;
/// Pods that are tried then, before one of them can be written.
const FEW: usize = 10;
/// Resets that are tried again in one pass after they were refused.
const RESETS_AGAIN: usize = 10;

/// What came of one Pod.
enum Tried {
    /// It was written.
    Written,
    /// It is another than the one that was judged, or somebody else writes it.
    Changed,
    /// A budget keeps it.
    Kept,
    /// No budget could decide, and others would fare no better.
    Undecided,
    /// Something in it cannot be read.
    Unwritable(Unwritable),
    /// The API server refused it, or nobody knows what became of it.
    Failed(kube::Error),
}

impl Tried {
    fn of(written: kube::Result<Self>) -> Self {
        written.unwrap_or_else(Self::Failed)
    }

    /// As it is counted; None: nothing was tried.
    fn label(&self) -> Option<Written> {
        match self {
            Self::Written => Some(Written::Done),
            Self::Changed => None,
            Self::Kept | Self::Undecided => Some(Written::Refused),
            Self::Failed(error) if is_refusal(error) => Some(Written::Refused),
            Self::Unwritable(_) | Self::Failed(_) => Some(Written::Failed),
        }
    }
}

/// What is to be decided after each Pod.
struct AfterPod {
    /// Whether it has been left as it is, certainly.
    is_untouched: bool,
    /// Whether the others are not tried in this pass.
    is_over: bool,
}

impl Controller {
    /// Resets twins and updates Pods, as many as the plan allows. Resets that were refused before come last, so that they
    /// hold up nothing.
    pub(super) async fn carry_out(&self, job: &Job, plan: &Plan, observed: &Observed, revision: &str, pass: &mut Pass) {
        let (again, first): (Vec<String>, Vec<String>) =
            plan.reset.iter().cloned().partition(|pod| self.was_refused(job, &Turn::Reset(pod.clone())));
        let again = again.into_iter().take(RESETS_AGAIN).collect();
        let is_over = self.reset_all(job, first, observed, pass).await
            || self.update_all(job, plan, (observed, revision), pass).await;
        if !is_over {
            self.reset_all(job, again, observed, pass).await;
        }
        pass.look_after(self.memories.with(&job.key, |memory| memory.retries.next(clock::now().mono)).flatten());
    }

    /// Gives the twins that are not at work their empty image. True: nothing else is done in this pass.
    async fn reset_all(&self, job: &Job, pods: Vec<String>, observed: &Observed, pass: &mut Pass) -> bool {
        let tried = each(pods, |name| async move {
            let Some(pod) = observed.pods.get(&name) else { return Ok((name, Tried::Changed)) };
            let Some(_held) = self.pods.hold(pod) else { return Ok((name, Tried::Changed)) };
            let patch = |live: &Value| write::reset(&job.spec, live, clock::now().wall);
            Ok::<_, Infallible>((name, Tried::of(self.write(pod, None, patch).await)))
        });
        let mut is_over = false;
        for (name, tried) in tried.await.0 {
            if let Some(pod) = observed.pods.get(&name) {
                let turn = Turn::Reset(name.clone());
                self.report_reset(pod, &tried, self.was_refused(job, &turn));
            }
            is_over |= self.note(job, Turn::Reset(name), tried, pass).is_over;
        }
        is_over
    }

    pub(super) fn was_refused(&self, job: &Job, turn: &Turn) -> bool {
        self.memories.with(&job.key, |memory| memory.turns.was_refused(turn)).unwrap_or_default()
    }

    /// Tells of a reset, and of one that fails the first time alone.
    fn report_reset(&self, pod: &PodView, tried: &Tried, was_refused: bool) {
        let events = &self.context.events;
        let why = match tried {
            Tried::Written => {
                let message = "reset sidecar container image empty successfully";
                return events.normal(&pod.reference(), "ResetContainerSucceed", message);
            }
            Tried::Unwritable(why) => why.to_string(),
            Tried::Failed(error) => said(error),
            Tried::Changed | Tried::Kept | Tried::Undecided => return,
        };
        if !was_refused {
            let message = format!("reset sidecar container image empty failed: {why}");
            events.warning(&pod.reference(), "ResetContainerFailed", &message);
        }
    }

    /// Updates Pods. A refusal of one leaves its place to the next one; of a write that failed nobody knows whether it was
    /// done, so its place is taken. True: nothing else is done in this pass.
    async fn update_all(
        &self,
        job: &Job,
        plan: &Plan,
        (observed, revision): (&Observed, &str),
        pass: &mut Pass,
    ) -> bool {
        let (mut walk, refusals) = (Walk::of(plan), &Refusals::default());
        let (mut untouched, mut is_over, mut is_written) = (0, false, false);
        let failures = self.memories.with(&job.key, |memory| memory.retries.count()).unwrap_or_default();
        let most = if failures < MOST_REFUSED { MOST_REFUSED } else { FEW };
        let mut size = if failures < MOST_REFUSED { WAVE } else { FEW };
        while !is_over && untouched < most {
            // What was written is seen by the next pass, which follows at once.
            if is_written && std::mem::replace(&mut size, WAVE) == WAVE {
                break;
            }
            let wave = walk.wave(size);
            if wave.is_empty() {
                break;
            }
            let tried = each(wave, |next| async move {
                let tried = self.update(job, &next, observed, revision, refusals).await;
                Ok::<_, Infallible>((next, tried))
            });
            for (next, tried) in tried.await.0 {
                is_written |= matches!(tried, Tried::Written);
                let outcome = self.note(job, Turn::Update(next.name.clone()), tried, pass);
                is_over |= outcome.is_over;
                if outcome.is_untouched {
                    untouched += 1;
                    walk.give_back(&next);
                }
            }
        }
        pass.look_after((untouched >= most).then_some(AFTER_REFUSAL));
        if let Some((pod, why)) = refusals.first() {
            pass.look_after(Some(AFTER_REFUSAL));
            self.memories.with(&job.key, |memory| memory.retries.kept(pod.to_string(), why));
        }
        is_over
    }

    async fn update(&self, job: &Job, next: &Next, observed: &Observed, revision: &str, refusals: &Refusals) -> Tried {
        let Some(pod) = observed.pods.get(&next.name) else { return Tried::Changed };
        let Some(_held) = self.pods.hold(pod) else { return Tried::Changed };
        if next.is_in_service {
            match self.context.budgets.may_take(pod, (Operation::Update, false), refusals).await {
                Verdict::Yes => {}
                Verdict::No => return Tried::Kept,
                Verdict::Undecided => return Tried::Undecided,
            }
        }
        if let Err(Invalid(why)) = states::read(&annotations(pod)) {
            tracing::warn!(set = job.spec.name, pod = next.name, why, "the notes of earlier updates are made anew");
        }
        let patch = |live: &Value| write::update(&job.spec, live, revision, clock::now().wall);
        Tried::of(self.write(pod, write::kept(&job.spec, pod), patch).await)
    }

    /// Takes note of what came of a Pod.
    fn note(&self, job: &Job, turn: Turn, tried: Tried, pass: &mut Pass) -> AfterPod {
        let operation = match turn {
            Turn::Reset(_) => "reset",
            Turn::Update(_) => "update",
            Turn::Mark(_) => "mark",
        };
        if let Some(label) = tried.label() {
            self.metrics.count(operation, label);
        }
        let name = turn.pod().to_owned();
        let is_done = matches!(tried, Tried::Written);
        let is_left = matches!(tried, Tried::Changed);
        let mut failed = None;
        let outcome = match tried {
            Tried::Written => {
                pass.again = true;
                tracing::info!(set = job.spec.name, pod = name, operation, "sidecars changed in place");
                AfterPod { is_untouched: false, is_over: false }
            }
            Tried::Changed => {
                pass.look_after(Some(AFTER_CONFLICT));
                AfterPod { is_untouched: true, is_over: false }
            }
            Tried::Kept => AfterPod { is_untouched: true, is_over: false },
            Tried::Undecided => AfterPod { is_untouched: true, is_over: true },
            Tried::Unwritable(why) => {
                failed = Some(why.to_string());
                AfterPod { is_untouched: true, is_over: false }
            }
            Tried::Failed(error) => {
                let is_untouched = is_refusal(&error);
                failed = pass.note(Err(error));
                AfterPod { is_untouched, is_over: !is_untouched }
            }
        };
        if !is_left {
            let now = clock::now().mono;
            self.memories.with(&job.key, |memory| {
                if is_done {
                    memory.marks.updated = Some(now);
                    memory.retries.done(&turn);
                    return memory.turns.done(&turn);
                }
                if let Some(why) = failed {
                    memory.retries.failed(turn.clone(), why, now);
                }
                memory.turns.refused(turn);
            });
        }
        outcome
    }

    /// Writes a Pod with the patch that is made from what is `kept` of it, or else from all of it.
    async fn write(
        &self,
        pod: &PodView,
        kept: Option<Value>,
        patch: impl FnOnce(&Value) -> Result<Value, Unwritable>,
    ) -> kube::Result<Tried> {
        let live = match kept {
            Some(kept) => kept,
            None => {
                let Some(live) = self.pods.read(pod).await? else { return Ok(Tried::Changed) };
                let version = live.pointer("/metadata/resourceVersion").and_then(Value::as_str);
                if version != pod.resource_version() {
                    // The watch is behind: what is new may say otherwise.
                    self.pods.note(serde_json::from_value(live).map_err(kube::Error::SerdeError)?);
                    return Ok(Tried::Changed);
                }
                live
            }
        };
        let patch = match patch(&live) {
            Ok(patch) => patch,
            Err(why) => return Ok(Tried::Unwritable(why)),
        };
        let written = self.pods.try_patch(pod, Part::Whole, &patch).await?;
        Ok(if written.is_some() { Tried::Written } else { Tried::Changed })
    }
}
