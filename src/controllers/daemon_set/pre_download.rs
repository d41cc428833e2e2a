//! New images of a DaemonSet are pulled before Pods are updated to them.

use std::time::Duration;

use serde_json::Value;

use super::{
    Controller, Job,
    observe::{Resolved, Seen},
};
use crate::{
    api::feature_gates::gate,
    domain::{kinds::daemon_set::pre_download, workload::pre_download as rules},
    k8s::revision,
    runtime::pre_download::Update,
};

impl Controller {
    /// Does what is due; says when to try again.
    pub(super) async fn pre_download(&self, job: &Job, resolved: &Resolved, seen: &Seen) -> Option<Duration> {
        let gates = &self.context.gates;
        if !gates.enabled(gate::PRE_DOWNLOAD_DAEMON_SET) || !gates.enabled(gate::KRUISE_DAEMON) {
            return None;
        }
        let is_settled = seen.pods.iter().all(|pod| pod.is_new);
        // While it is not known what Pods are on, nothing is done on a guess.
        if !is_settled && (resolved.revisions.known.is_none() || resolved.same.is_none()) {
            return None;
        }
        let notes = self.common.memories.with(&job.key, |memory| memory.pre_download.clone()).unwrap_or_default();
        let to = resolved.revisions.update.as_str();
        let from = pre_download::from(&seen.pods, resolved.revisions.all());
        let update = Update {
            owner: &job.owner,
            generation: job.generation(),
            from: from.map_or(to, |known| known.name.as_str()),
            to,
        };
        let decide = async |object: &Value| {
            let template = from.and_then(|known| revision::template(&known.data)).unwrap_or_default();
            let wanted = seen.nodes.iter().filter(|node| node.counts()).count();
            let ready = seen.pods.iter().filter(|pod| pod.is_new && pod.is_live() && pod.is_ready).count();
            let counts = (wanted, i32::try_from(ready).unwrap_or(i32::MAX));
            let annotations = job.set.metadata.annotations.as_ref();
            let between = (&template, object);
            let observed = pre_download::observed(&job.spec, &job.owner, annotations, between, counts);
            Ok(rules::decide(&observed))
        };
        let (notes, again) = self.pre_downloads.run(update, notes, decide).await;
        self.common.memories.with(&job.key, |memory| memory.pre_download = notes);
        again
    }
}
