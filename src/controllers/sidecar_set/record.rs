//! The status.

use std::time::Duration;

use kube::Api;

use super::{Controller, Job, known::StoredSidecarSet};
use crate::{
    api::apps::sidecar_set::SidecarSetStatus,
    domain::kinds::sidecar_set::status,
    runtime::{apply::said, clock, pass::Pass, queue::Requeue, status_writer::json_of},
};

impl Controller {
    /// Writes the status if it says anything else than the recorded one; counts a second apart. Returns when to look again.
    pub(super) async fn record(
        &self,
        set: &StoredSidecarSet,
        recorded: Option<&SidecarSetStatus>,
        wanted: &SidecarSetStatus,
    ) -> kube::Result<Option<Duration>> {
        if recorded == Some(wanted) {
            return Ok(None);
        }
        let words = |status: &SidecarSetStatus| {
            let conditions = status.conditions.iter().map(|c| (c.type_.clone(), c.status.clone()));
            (status.observed_generation, status.latest_revision.clone(), conditions.collect::<Vec<_>>())
        };
        let is_settled = wanted.updated_ready_pods == wanted.matched_pods;
        let can_wait = !is_settled && recorded.is_some_and(|recorded| words(recorded) == words(wanted));
        let api: Api<StoredSidecarSet> = Api::all(self.context.client.clone());
        let (recorded, wanted) = (json_of(recorded)?, json_of(Some(wanted))?);
        let outcome = self.status.write((&api, &*self.sets), set, (&recorded, &wanted), can_wait, clock::now()).await?;
        Ok(outcome.look_after())
    }

    /// Writes that revisions can be neither read nor made. Nobody knows to which one Pods are to be updated: nothing else is
    /// done before the next try.
    pub(super) async fn record_unresolved(
        &self,
        job: &Job,
        recorded: Option<&SidecarSetStatus>,
        error: kube::Error,
        mut pass: Pass,
    ) -> kube::Result<Requeue> {
        let wanted = status::unresolved(&said(&error), job.generation(), &job.before, clock::now().wall);
        drop(pass.note(Err(error)));
        match self.record(&job.set, recorded, &wanted).await {
            Ok(look) => pass.look_after(look),
            Err(error) => drop(pass.note(Err(error))),
        }
        pass.end(|after| self.queue.add_after(job.key.clone(), after))
    }
}
