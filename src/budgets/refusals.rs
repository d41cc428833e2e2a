//! The refusals of budgets in one pass over a workload.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{Budgets, Refusal};
use crate::{
    domain::{budgets::unavailable::Operation, workload::owner::OwnerRef},
    k8s::pod::PodView,
    runtime::{
        lock,
        pass::{AFTER_REFUSAL, Pass},
        pod_control::PodControl,
        watches::ObjectKey,
    },
};

/// The reason of events and conditions of a workload that has Pods which budgets keep in service.
pub const WAITS_FOR_BUDGET: &str = "WaitsForBudget";

/// The refusals of budgets in one pass.
#[derive(Default)]
pub struct Refusals {
    /// The first Pod that was refused, and why.
    first: Mutex<Option<(ObjectKey, String)>>,
    /// The budgets that have refused, and which operation.
    budgets: Mutex<BTreeSet<(String, &'static str)>>,
    /// A question was asked.
    wanted: AtomicBool,
}

/// Whether a Pod may be taken out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Yes,
    /// A budget refuses.
    No,
    /// No decision could be made. Others would fare no better.
    Undecided,
}

impl Refusals {
    /// Something is to be taken out of service.
    pub fn wants(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// Whether something was to be taken out of service.
    pub fn has_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// The first Pod that was refused, and why.
    pub fn first(&self) -> Option<(ObjectKey, String)> {
        lock(&self.first).clone()
    }

    /// Why the first Pod that was refused stays in service, in words.
    pub fn kept(&self) -> Option<String> {
        let (pod, why) = self.first()?;
        Some(format!("Pod {} stays in service for now: {why}", pod.name))
    }

    /// At the end of a pass over a workload: emits an event for the first Pod that a budget keeps, when none was kept before,
    /// and looks again soon. `remember` notes whether one is kept, and returns what was noted before; None: nothing is
    /// remembered of the workload.
    pub fn report(
        &self,
        (pods, owner): (&PodControl, &OwnerRef),
        pass: &mut Pass,
        remember: impl FnOnce(bool) -> Option<bool>,
    ) {
        if !self.has_wanted() {
            return;
        }
        let kept = self.kept();
        pass.look_after(kept.is_some().then_some(AFTER_REFUSAL));
        let before = remember(kept.is_some());
        if let Some(message) = kept.filter(|_| before == Some(false)) {
            pods.warning(owner, WAITS_FOR_BUDGET, &message);
        }
    }
}

impl Budgets {
    /// Asks the PodUnavailableBudgets of a Pod whether it may be taken out of service. A consent is recorded there, so that
    /// admission allows the write that follows, unless it is a dry run.
    pub async fn may_take(
        &self,
        pod: &PodView,
        (operation, dry_run): (Operation, bool),
        refusals: &Refusals,
    ) -> Verdict {
        // A budget that has refused is not asked again about each further Pod.
        let refusing = lock(&refusals.budgets).clone();
        if self.have_said_no(pod, operation, &refusing) {
            return Verdict::No;
        }
        let Err(refusal) = self.take(pod, operation, dry_run).await else { return Verdict::Yes };
        lock(&refusals.first).get_or_insert_with(|| (ObjectKey::of(pod), refusal.message()));
        match refusal {
            Refusal::Budget { name, .. } => {
                lock(&refusals.budgets).insert((name, operation.word()));
                Verdict::No
            }
            Refusal::Undecided(_) => Verdict::Undecided,
        }
    }
}
