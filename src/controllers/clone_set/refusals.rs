//! PodUnavailableBudgets in a pass.

use super::{CloneSetJob, Controller, Pass};
use crate::runtime::pass::AFTER_REFUSAL;

impl Controller {
    /// Emits an event for the first Pod that a budget keeps, when none was kept before, and looks again soon.
    pub(super) fn report_refusals(&self, job: &CloneSetJob, pass: &mut Pass) {
        if !pass.refusals.has_wanted() {
            return;
        }
        let first = pass.refusals.first();
        pass.next.look_after(first.is_some().then_some(AFTER_REFUSAL));
        let before = self.memories.replace_refused(&job.key, first.is_some());
        if let Some((pod, why)) = first.filter(|_| before == Some(false)) {
            self.pods.warning(&job.owner, "WaitsForBudget", &kept(&pod.name, &why));
        }
    }
}

/// That a budget keeps a Pod.
pub(super) fn kept(pod: &str, why: &str) -> String {
    format!("Pod {pod} stays in service for now: {why}")
}
