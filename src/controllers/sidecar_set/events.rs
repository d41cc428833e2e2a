//! Events about Pods that lack the containers, and about those that cannot be updated in place: each once, and not too many.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{Controller, Job};
use crate::{
    domain::{kinds::sidecar_set::plan::Counts, workload::owner::OwnerRef},
    k8s::pod::PodView,
    runtime::{lock, pass::Pass},
};

/// Pods of one SidecarSet about which there are events, and how many of them in one pass.
const MOST_REPORTED: usize = 100;
const MOST_AT_ONCE: usize = 10;
/// Between two passes that emit such events.
const PAUSE: Duration = Duration::from_secs(1);

/// What an event about a Pod says that was created without the containers, as `all` Pods were.
fn missed_message(set: &str, all: usize, is_last: bool) -> String {
    let mut message = format!(
        "created without the containers of SidecarSet {set}: the webhook was not asked, or it has left them out and says why in an annotation, or the injection was paused or labels did not fit then"
    );
    if is_last && all > MOST_REPORTED {
        message += &format!("; {all} Pods were created without them, and the others get no event");
    }
    message
}

impl Controller {
    /// Emits events about Pods that were created without the containers although the SidecarSet was there.
    pub(super) fn report_missed(&self, job: &Job, pass: &mut Pass) {
        let Some(set_created) = job.set.created() else { return };
        let keys = lock(&self.missed).of(&job.spec.name);
        let pods = keys.iter().filter_map(|key| self.context.pods.get(key));
        let is_missed = |pod: &Arc<PodView>| job.spec.injects && pod.created > Some(set_created);
        let missed: Vec<Arc<PodView>> = pods.filter(is_missed).collect();
        self.count_younger(&job.spec.name, missed.len());
        let reported = self.memories.with(&job.key, |memory| {
            let uids: BTreeSet<&str> = missed.iter().map(|pod| pod.uid()).collect();
            memory.reported.retain(|uid| uids.contains(uid.as_str()));
            let room = MOST_REPORTED.saturating_sub(memory.reported.len());
            let unreported =
                missed.iter().filter(|pod| !memory.reported.contains(pod.uid())).take(room.min(MOST_AT_ONCE + 1));
            let mut unreported: Vec<Arc<PodView>> = unreported.cloned().collect();
            if unreported.len() > MOST_AT_ONCE {
                unreported.truncate(MOST_AT_ONCE);
                pass.look_after(Some(PAUSE));
            }
            memory.reported.extend(unreported.iter().map(|pod| pod.uid().to_owned()));
            (unreported, memory.reported.len())
        });
        let (unreported, reported) = reported.unwrap_or_default();
        for (i, pod) in unreported.iter().enumerate() {
            let is_last = reported >= MOST_REPORTED && i + 1 == unreported.len();
            let message = missed_message(&job.spec.name, missed.len(), is_last);
            self.context.events.warning(&pod.reference(), "SidecarSetMissed", &message);
        }
    }

    /// So many Pods of a SidecarSet were created without the containers when it was there.
    pub(super) fn count_younger(&self, set: &str, pods: usize) {
        let all = lock(&self.missed).count_younger(set, pods);
        self.metrics.uninjected.set(i64::try_from(all).unwrap_or(i64::MAX));
    }

    /// Emits an event about Pods that are to be updated in place and cannot be, when there are more of them than before, and
    /// once for each spec.
    pub(super) fn report_not_upgradable(&self, job: &Job, counts: &Counts) {
        let now = counts.wanted_not_upgradable;
        let before = self.memories.with(&job.key, |memory| memory.not_upgradable.replace(now)).flatten();
        if before.is_some_and(|before| now > before) {
            let message = format!(
                "SidecarSet in-place update detected {now} not upgradable pod(s) in this round, will skip them."
            );
            self.pods.normal(&OwnerRef::of(job.set.as_ref()), "NotUpgradablePods", &message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_event_about_missed_pods_says_how_many_there_are() {
        for (all, is_last, says) in [
            (MOST_REPORTED + 1, true, Some("; 101 Pods were created without them, and the others get no event")),
            (MOST_REPORTED + 1, false, None),
            (MOST_REPORTED, true, None),
        ] {
            let message = missed_message("logs", all, is_last);
            let rest = message.split_once("did not fit then").unwrap().1;
            assert_eq!(rest, says.unwrap_or_default(), "{all} {is_last}");
        }
    }
}
