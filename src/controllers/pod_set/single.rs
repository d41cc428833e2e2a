//! What one Pod of a large set needs for itself: its gates and its lifecycle state do not wait for a pass over all Pods.

use std::{sync::Arc, time::Duration};

use kube::Resource;

use super::{Common, PodSets};
use crate::{
    api::{apps, apps::lifecycle::Lifecycle},
    domain::{pod::refresh, workload::owner::OwnerRef},
    k8s::pod::PodView,
    runtime::{
        in_place::{Refreshed, Refreshing},
        queue::{Queue, Requeue},
        slow_start, wake,
        watches::{ObjectKey, Store},
    },
};

/// Pods of large sets that are looked after at the same time: as many as are made. With fewer the gates of new Pods would be
/// opened later than their containers are up, and kubelet would write the status of each of them once more.
pub const POD_WORKERS: usize = slow_start::MOST;

/// How many times longer the news of a Pod waits in a set at rest: a second for a thousand Pods. With twenty sets on each of
/// a thousand nodes, the passes over all of them, and the status that each of them writes, would take more of the processor
/// and of the API server than the Pods of a node that joins.
const AT_REST: u32 = 10;

/// What Pods of one set have in common when they are refreshed.
#[derive(Clone, Copy, Debug)]
pub struct Together<'a> {
    /// The generation of the set.
    pub generation: Option<i64>,
    /// By what they are refreshed.
    pub by: Refreshing<'a>,
    /// Whether that holds for every Pod of the set.
    pub for_all: bool,
}

/// The same, as the last pass had it.
#[derive(Debug)]
pub(super) struct By {
    generation: Option<i64>,
    owner: OwnerRef,
    lifecycle: Option<Lifecycle>,
    update_revision: String,
}

impl<M: Default + AsMut<Common>> PodSets<M> {
    /// Whether Pods of a set are refreshed one by one beside its passes, which is remembered.
    pub(super) fn refreshes_singly(&self, key: &ObjectKey, together: &Together<'_>) -> bool {
        let is_large = together.for_all && self.is_large(key);
        let by = is_large.then(|| {
            Arc::new(By {
                generation: together.generation,
                owner: together.by.owner.clone(),
                lifecycle: together.by.lifecycle.cloned(),
                update_revision: together.by.update_revision.to_owned(),
            })
        });
        self.with(key, |memory| memory.single = by);
        is_large
    }

    /// A pass looks at every Pod: the more there are, the longer the next one waits for further news. What has changed of
    /// one Pod is looked at by itself meanwhile. While a set is at rest, a Pod that works changes nothing but the status.
    pub fn wake(&self, queue: &Queue<ObjectKey>, key: &ObjectKey, pod: Option<&Arc<PodView>>) {
        let delay = self.batch_delay(key);
        if delay.is_zero() {
            return queue.add(key.clone());
        }
        match pod {
            Some(pod) if pod.is_active() => self.wake_for_status(queue, key),
            _ => queue.add_after(key.clone(), delay),
        }
        if let Some(pod) = pod.filter(|pod| pod.is_active() && !refresh::is_at_rest(pod)) {
            self.pod_queue.add(ObjectKey::of(pod.as_ref()));
        }
    }

    /// The same, for what changes the status alone while the set is at rest.
    pub fn wake_for_status(&self, queue: &Queue<ObjectKey>, key: &ObjectKey) {
        let factor = if self.with(key, |memory| memory.is_at_rest) { AT_REST } else { 1 };
        queue.add_after(key.clone(), self.batch_delay(key) * factor);
    }

    /// Opens the gates of one Pod and moves its state on, if that can be said from what the stores hold. Everything else
    /// is for the next pass of its set, which is one of `sets` and waits in `queue`.
    ///
    /// # Errors
    /// Those of the API server, but 404 and 409.
    pub async fn refresh_pod<K: Resource<DynamicType = ()>>(
        &self,
        key: &ObjectKey,
        sets: &Store<K>,
        queue: &Queue<ObjectKey>,
    ) -> kube::Result<Requeue> {
        let Some(pod) = self.context.pods.get(key).filter(|pod| pod.is_active()) else { return Ok(Requeue::Await) };
        let Some(owner) = wake::owner_of(&pod, (apps::GROUP, self.kind.0)) else { return Ok(Requeue::Await) };
        let Some(by) = self.with(&owner, |memory| memory.single.clone()) else { return Ok(Requeue::Await) };
        // The set as the last pass saw it, and not about to go.
        let is_as_seen = |set: Arc<K>| {
            let meta = set.meta();
            meta.uid.as_deref() == Some(by.owner.uid.as_str())
                && meta.deletion_timestamp.is_none()
                && meta.generation.is_some()
                && meta.generation == by.generation
        };
        if !by.owner.controls(&pod) || !sets.get(&owner).is_some_and(is_as_seen) {
            return Ok(Requeue::Await);
        }
        let by =
            Refreshing { owner: &by.owner, lifecycle: by.lifecycle.as_ref(), update_revision: &by.update_revision };
        match self.in_place.refresh_status(by, &pod).await? {
            Refreshed::Written => {
                self.wake(queue, &owner, None);
                Ok(Requeue::After(Duration::ZERO))
            }
            Refreshed::Later(after) => Ok(Requeue::After(after)),
            Refreshed::Nothing | Refreshed::Waits(_) => Ok(Requeue::Await),
        }
    }
}
