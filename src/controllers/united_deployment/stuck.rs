//! Deletes Pods that hold up the roll-out of a built-in StatefulSet, which then makes them anew, updated. It never does that by
//! itself under OrderedReady (kubernetes/kubernetes#67250).

use std::sync::Arc;

use kube::Api;

use super::{Controller, UnitedJob};
use crate::{
    domain::kinds::united_deployment::{
        plan::{UnitedSeen, chosen},
        stuck::{is_stuck, update_revision},
    },
    k8s::pod::{PodObject, PodView},
    runtime::{
        events::reference,
        pass::{AFTER_WATCHED_CONFLICT, Pass},
        slow_start::each,
        stored::delete_version,
    },
};

impl Controller {
    /// Gracefully, and in no other version than the one that was looked at: a Pod that is Ready by now stays.
    pub(super) async fn free_stuck(&self, job: &UnitedJob, seen: UnitedSeen<'_>, pass: &mut Pass) {
        let chosen = chosen(&job.spec, seen.children);
        let mut stuck: Vec<Arc<PodView>> = Vec::new();
        for subset in &job.spec.subsets {
            let Some(child) = chosen.get(&*subset.name) else { continue };
            let Some(revision) = update_revision(child, subset, seen) else { continue };
            stuck.extend(self.pods_of(job, child).into_iter().filter(|pod| is_stuck(child, revision, pod)));
        }
        if stuck.is_empty() {
            return;
        }
        let api: Api<PodObject> = Api::namespaced(self.context.client.clone(), &job.key.namespace);
        let (freed, failure) = each(stuck, |pod: Arc<PodView>| {
            let (api, pods) = (&api, &self.context.pods);
            async move {
                let deleted = delete_version(api, pods, pod.as_ref(), pod.resource_version()).await?;
                Ok::<_, kube::Error>(deleted.then(|| pod.name().to_owned()))
            }
        })
        .await;
        if freed.contains(&None) {
            pass.look_after(Some(AFTER_WATCHED_CONFLICT));
        }
        for pod in freed.into_iter().flatten() {
            self.metrics.freed.inc();
            let message = format!("Pod {pod} is of an old revision, is not Ready and holds up its StatefulSet");
            tracing::info!(united_deployment = %job.key, pod, "deleted a Pod that held up a roll-out");
            self.context.events.normal(&reference(job.object.as_ref()), "DeletedStuckPod", &message);
        }
        if let Some(error) = failure {
            self.note(job, pass, error, "FailedDeleteStuckPod");
        }
    }
}
