//! PodUnavailableBudgets in a pass.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{AFTER_REFUSAL, Controller, Pass, lock};
use crate::{
    api::apps::clone_set::CloneSet,
    budgets::Refusal,
    domain::{budgets::unavailable::Operation, kinds::clone_set::make},
    k8s::pod::PodView,
    runtime::watches::ObjectKey,
};

/// What budgets have said in a pass.
#[derive(Default)]
pub(super) struct Refusals {
    /// The first Pod that one keeps in service, and why.
    first: Mutex<Option<(String, String)>>,
    /// Those that have refused something, and what.
    budgets: Mutex<BTreeSet<(String, &'static str)>>,
    /// Something was to be taken out of service.
    wanted: AtomicBool,
}

/// Whether a Pod may go out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Yes,
    /// A budget keeps it.
    No,
    /// Nobody could decide. Others would fare no better.
    Undecided,
}

impl Refusals {
    /// Something is to be taken out of service.
    pub(super) fn wants(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }
}

impl Controller {
    /// Whether the PodUnavailableBudgets of a Pod let it go out of service. A yes is written down there, so that admission
    /// lets the write pass that follows, unless it is a dry run.
    pub(super) async fn may_take(
        &self,
        pod: &PodView,
        (operation, dry_run): (Operation, bool),
        refusals: &Refusals,
    ) -> Verdict {
        // One that has said no to many Pods is not asked about each of them.
        let refusing = lock(&refusals.budgets).clone();
        if self.context.budgets.have_said_no(pod, operation, &refusing) {
            return Verdict::No;
        }
        let Err(refusal) = self.context.budgets.take(pod, operation, dry_run).await else { return Verdict::Yes };
        lock(&refusals.first).get_or_insert_with(|| (pod.name().to_owned(), refusal.message()));
        match refusal {
            Refusal::Budget { name, .. } => {
                lock(&refusals.budgets).insert((name, operation.word()));
                Verdict::No
            }
            Refusal::Undecided(_) => Verdict::Undecided,
        }
    }

    /// Tells of the first Pod that a budget keeps, when none was kept before, and looks again soon.
    pub(super) fn tell_refusals(&self, clone_set: &CloneSet, pass: &mut Pass) {
        if !pass.refusals.wanted.load(Ordering::Relaxed) {
            return;
        }
        let first = lock(&pass.refusals.first).take();
        pass.look_after(first.is_some().then_some(AFTER_REFUSAL));
        let before = lock(&self.memories)
            .get_mut(&ObjectKey::of(clone_set))
            .map(|memory| std::mem::replace(&mut memory.is_refused, first.is_some()));
        if let Some((pod, why)) = first.filter(|_| before == Some(false)) {
            self.pods.warning(
                &make::owner(clone_set),
                "WaitsForBudget",
                &format!("Pod {pod} stays in service for now: {why}"),
            );
        }
    }
}
