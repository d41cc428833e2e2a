//! New images of a StatefulSet are pulled before Pods are updated to them.

use std::time::Duration;

use serde_json::Value;

use super::{Controller, Job, Seen};
use crate::{
    api::feature_gates::gate,
    domain::{
        kinds::stateful_set::{pre_download, status},
        workload::pre_download as rules,
    },
    runtime::{pre_download::Update, revisions::Resolved},
};

impl Controller {
    /// Does what is due; says when to try again. Pods are counted here, and the jobs go in the pass that finds the update
    /// done: the status that this pass writes wakes nobody.
    pub(super) async fn pre_download(&self, job: &Job, resolved: &Resolved, seen: &Seen) -> Option<Duration> {
        let gates = &self.context.gates;
        if !gates.enabled(gate::PRE_DOWNLOAD) || !gates.enabled(gate::KRUISE_DAEMON) {
            return None;
        }
        let notes = self.common.memories.with(&job.key, |memory| memory.pre_download.clone()).unwrap_or_default();
        let (from, to) = (job.current(resolved, seen), resolved.update.as_str());
        let generation = job.set.metadata.generation.unwrap_or_default();
        let update = Update { owner: &job.owner, generation, from, to };
        let decide = async |object: &Value| {
            // What the API server can resize matters to no image.
            let allowed = self.common.in_place.allowed(gates).await.unwrap_or_default();
            let template = resolved.template(from).unwrap_or_default();
            let ready = status::updated_ready(&seen.pods, to);
            let annotations = job.set.metadata.annotations.as_ref();
            let between = (&template, object);
            let observed = pre_download::observed(&job.spec, &job.owner, annotations, between, ready, allowed);
            Ok(rules::decide(&observed))
        };
        let (notes, again) = self.pre_downloads.run(update, notes, decide).await;
        self.common.memories.with(&job.key, |memory| memory.pre_download = notes);
        again
    }
}
