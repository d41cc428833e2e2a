//! New images of a CloneSet are pulled before Pods are updated to them.

use std::time::Duration;

use serde_json::Value;

use super::{CloneSetJob, Controller, Resolved, observe::CloneSetObjects};
use crate::{
    api::feature_gates::gate,
    domain::{
        kinds::clone_set::{
            one_update::{self, Rules},
            pre_download,
            spec::Invalid,
            status,
        },
        workload::pre_download::{self as rules, Decision},
    },
    runtime::pre_download::Update,
};

impl Controller {
    /// Does what is due; says when to try again.
    ///
    /// Pods are counted here, not taken from the status: the status that this pass writes wakes nobody.
    pub(super) async fn pre_download(
        &self,
        job: &CloneSetJob,
        resolved: &Resolved,
        seen: &CloneSetObjects,
    ) -> Option<Duration> {
        let gates = &self.context.gates;
        if !gates.enabled(gate::PRE_DOWNLOAD) || !gates.enabled(gate::KRUISE_DAEMON) {
            return None;
        }
        let notes = self.memories.pre_download(&job.key);
        let (from, to) = (resolved.current.as_str(), resolved.update.as_str());
        let metadata = &job.clone_set.metadata;
        let update = Update { owner: &job.owner, generation: metadata.generation.unwrap_or_default(), from, to };
        let decide = async |object: &Value| {
            let resolved = self.with_known(job, resolved).await?;
            let template = resolved.template(from).unwrap_or_default();
            // What the API server can resize matters to no image.
            let changes = Rules::of(self.in_place.allowed(gates).await.unwrap_or_default(), gates);
            let known = resolved.known.as_deref().map(Vec::as_slice).unwrap_or_default();
            let in_place = one_update::difference(&job.spec, known, (from, to), changes).map(drop);
            let ready = status::updated_ready(&seen.pods, to);
            let (annotations, templates) = (metadata.annotations.as_ref(), (&template, object));
            Ok(match pre_download::observed(&job.spec, &job.owner, annotations, templates, ready, in_place) {
                Ok(observed) => rules::decide(&observed),
                Err(Invalid(why)) => Decision::Refuse(why),
            })
        };
        let (notes, again) = self.pre_downloads.run(update, notes, decide).await;
        self.memories.keep_pre_download(&job.key, notes);
        again
    }
}
