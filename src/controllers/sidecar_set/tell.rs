//! Events about Pods that lack the containers, and about those that cannot be updated in place: each once, and not too many.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{Controller, Job};
use crate::{
    domain::{kinds::sidecar_set::plan::Counts, workload::owner::OwnerRef},
    k8s::pod::PodView,
    runtime::{lock, pass::Pass},
};

/// Pods of one SidecarSet of which an event tells, and how many of them in one pass.
const MOST_TOLD: usize = 100;
const MOST_AT_ONCE: usize = 10;
/// Between two passes that tell of Pods.
const PAUSE: Duration = Duration::from_secs(1);

impl Controller {
    /// Tells of Pods that were created without the containers although the SidecarSet was there.
    pub(super) fn tell_missed(&self, job: &Job, pass: &mut Pass) {
        let Some(set_created) = job.set.created() else { return };
        let keys = lock(&self.missed).of(&job.spec.name);
        let pods = keys.iter().filter_map(|key| self.context.pods.get(key));
        let is_missed = |pod: &Arc<PodView>| job.spec.injects && pod.created > Some(set_created);
        let missed: Vec<Arc<PodView>> = pods.filter(is_missed).collect();
        self.count_younger(&job.spec.name, missed.len());
        let untold = self.memories.with(&job.key, |memory| {
            let uids: BTreeSet<&str> = missed.iter().map(|pod| pod.uid()).collect();
            memory.told.retain(|uid| uids.contains(uid.as_str()));
            let room = MOST_TOLD.saturating_sub(memory.told.len());
            let untold = missed.iter().filter(|pod| !memory.told.contains(pod.uid())).take(room.min(MOST_AT_ONCE + 1));
            let mut untold: Vec<Arc<PodView>> = untold.cloned().collect();
            if untold.len() > MOST_AT_ONCE {
                untold.truncate(MOST_AT_ONCE);
                pass.look_after(Some(PAUSE));
            }
            memory.told.extend(untold.iter().map(|pod| pod.uid().to_owned()));
            untold
        });
        for pod in untold.unwrap_or_default() {
            let message = format!(
                "created without the containers of SidecarSet {}: the webhook was not asked, or it has left them out and says why in an annotation",
                job.spec.name
            );
            self.context.events.warning(&pod.reference(), "SidecarSetMissed", &message);
        }
    }

    /// So many Pods of a SidecarSet were created without the containers when it was there.
    pub(super) fn count_younger(&self, set: &str, pods: usize) {
        let all = lock(&self.missed).count_younger(set, pods);
        self.metrics.uninjected.set(i64::try_from(all).unwrap_or(i64::MAX));
    }

    /// Tells of Pods that cannot be updated in place and are to be, when there are more of them than before.
    pub(super) fn tell_not_upgradable(&self, job: &Job, counts: &Counts) {
        let now = counts.wanted_not_upgradable;
        let before = self.memories.with(&job.key, |memory| memory.not_upgradable.replace(now)).flatten();
        if before.is_some_and(|before| now > before) {
            let message = format!("{now} Pods cannot be updated in place; the condition Upgradable says why");
            self.pods.normal(&OwnerRef::of(job.set.as_ref()), "NotUpgradablePods", &message);
        }
    }
}
