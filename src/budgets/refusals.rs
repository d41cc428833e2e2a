//! What budgets have said in one pass over a workload.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{Budgets, Refusal};
use crate::{domain::budgets::unavailable::Operation, k8s::pod::PodView, runtime::lock};

/// What budgets have said in a pass.
#[derive(Default)]
pub struct Refusals {
    /// The first Pod that one keeps in service, and why.
    first: Mutex<Option<(String, String)>>,
    /// Those that have refused something, and what.
    budgets: Mutex<BTreeSet<(String, &'static str)>>,
    /// Something was to be taken out of service.
    wanted: AtomicBool,
}

/// Whether a Pod may go out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Yes,
    /// A budget keeps it.
    No,
    /// Nobody could decide. Others would fare no better.
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

    /// The first Pod that a budget keeps in service, and why.
    pub fn first(&self) -> Option<(String, String)> {
        lock(&self.first).clone()
    }
}

impl Budgets {
    /// Whether the PodUnavailableBudgets of a Pod let it go out of service. A yes is written down there, so that admission
    /// lets the write pass that follows, unless it is a dry run.
    pub async fn may_take(
        &self,
        pod: &PodView,
        (operation, dry_run): (Operation, bool),
        refusals: &Refusals,
    ) -> Verdict {
        // One that has said no to many Pods is not asked about each of them.
        let refusing = lock(&refusals.budgets).clone();
        if self.have_said_no(pod, operation, &refusing) {
            return Verdict::No;
        }
        let Err(refusal) = self.take(pod, operation, dry_run).await else { return Verdict::Yes };
        lock(&refusals.first).get_or_insert_with(|| (pod.name().to_owned(), refusal.message()));
        match refusal {
            Refusal::Budget { name, .. } => {
                lock(&refusals.budgets).insert((name, operation.word()));
                Verdict::No
            }
            Refusal::Undecided(_) => Verdict::Undecided,
        }
    }
}
