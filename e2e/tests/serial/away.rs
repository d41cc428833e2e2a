//! While no webhook answers: what there is to see meanwhile takes less time than to take the webhooks away and to bring them
//! back, so that is done once for all that look.

use std::cell::Cell;
use std::panic::AssertUnwindSafe;

use anyhow::{Context, Result, anyhow};
use e2e::kit::{Test, in_namespace, restoring};
use futures::FutureExt;
use tokio::sync::{Notify, OnceCell};

use crate::{WEBHOOK, gone, plugin, sidecar_set, workload_spread};

#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Stage {
    /// What it needs the webhooks for comes first.
    Before,
    /// It wants them to be away.
    Away,
    /// It wants them back, or has ended.
    Over,
}

/// Those that look, each of which waits for the slowest before the webhooks go, and again before they come back.
struct Away {
    stages: Vec<Cell<Stage>>,
    changed: Notify,
    gone: OnceCell<()>,
    back: OnceCell<()>,
}

impl Away {
    fn new(members: usize) -> Self {
        let stages = vec![Cell::new(Stage::Before); members];
        Self { stages, changed: Notify::new(), gone: OnceCell::new(), back: OnceCell::new() }
    }

    fn member(&self, index: usize) -> Member<'_> {
        Member { group: self, stage: &self.stages[index] }
    }

    /// Waits until all are there.
    async fn all_at(&self, stage: Stage) {
        loop {
            // it hears of what comes after this line
            let changed = self.changed.notified();
            if self.stages.iter().all(|other| other.get() >= stage) {
                return;
            }
            changed.await;
        }
    }
}

/// One of those that look. Whoever fails holds up nobody.
pub(crate) struct Member<'a> {
    group: &'a Away,
    stage: &'a Cell<Stage>,
}

impl Member<'_> {
    /// Until there are no webhooks.
    pub(crate) async fn begin(&self, t: &Test) -> Result<()> {
        self.reach(Stage::Away).await;
        self.group.gone.get_or_try_init(|| async { t.node().scale(WEBHOOK, 0).await.map(drop) }).await?;
        Ok(())
    }

    /// Until they answer again, as many as are shipped.
    pub(crate) async fn end(&self, t: &Test) -> Result<()> {
        self.reach(Stage::Over).await;
        self.group.back.get_or_try_init(|| again(t)).await?;
        Ok(())
    }

    async fn reach(&self, stage: Stage) {
        self.set(stage);
        self.group.all_at(stage).await;
    }

    fn set(&self, stage: Stage) {
        self.stage.set(stage);
        self.group.changed.notify_waiters();
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        self.set(Stage::Over);
    }
}

async fn again(t: &Test) -> Result<()> {
    t.node().scale(WEBHOOK, 2).await?;
    t.webhook_answers().await
}

/// An assertion that fails is the error of this one: the others go on.
async fn caught(what: &'static str, look: impl Future<Output = Result<()>>) -> Result<()> {
    let result = AssertUnwindSafe(look).catch_unwind().await;
    result.unwrap_or_else(|_| Err(anyhow!("it panicked"))).context(what)
}

#[tokio::test]
async fn while_no_webhook_answers_pods_live_on_and_what_needs_it_is_refused() -> Result<()> {
    in_namespace("webhook-away", async |t| {
        let away = Away::new(5);
        let looks = async {
            // On the heap: together they are more than the stack of a test.
            let [pods, clone_sets, doctor, sidecars, spread] = [0, 1, 2, 3, 4].map(|index| away.member(index));
            Ok(tokio::join!(
                Box::pin(caught("Pods", gone::without_the_webhook_pods_live_on_and_requests_are_refused(pods))),
                Box::pin(caught(
                    "CloneSets",
                    gone::without_the_webhook_clone_sets_are_not_made_and_can_be_changed_within_the_schema(clone_sets)
                )),
                Box::pin(caught("doctor", plugin::doctor_sees_a_webhook_that_does_not_answer(doctor))),
                Box::pin(caught(
                    "required sidecars",
                    sidecar_set::where_sidecars_are_required_no_pod_is_created_without_the_webhook(sidecars)
                )),
                Box::pin(caught(
                    "WorkloadSpreads",
                    workload_spread::pods_that_the_webhook_has_missed_are_counted_noted_and_never_replaced(spread)
                )),
            ))
        };
        let (pods, clone_sets, doctor, sidecars, spread) = restoring(looks, again(t)).await?;
        pods.and(clone_sets).and(doctor).and(sidecars).and(spread)
    })
    .await
}
