//! Starts the containers of a Pod in the order of their launch priorities: adds the keys of its barrier, one level after
//! the other, and then an annotation that marks the Pod as done.
//!
//! - Watches: Pods. Writes: the ConfigMap `<pod>-barrier` (`barrier.rs`), and two annotations of the Pod, through
//!   `pods/status`: the mark, and one whose change makes kubelet look again at once instead of after some ten seconds.
//! - What is due is decided by [`crate::domain::pod::launch_priority`].
//! - Never changes a ConfigMap that is not the barrier of the Pod, or of an earlier Pod of the same name; reports it
//!   instead.
//! - Never changes a Pod that is marked as done.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{Context, Registration, Runner, Started, lock};
use crate::{
    api::labels,
    domain::pod::launch_priority::{self, Next},
    k8s::{
        pod::{PodObject, PodView},
        rbac::Rule,
    },
    runtime::{
        apply, clock,
        pass::AFTER_WATCHED_CONFLICT,
        queue::{Backoff, Queue, Requeue},
        shutdown::Shutdown,
        watches::{Change, ObjectKey},
    },
};

use self::barrier::Opened;

mod barrier;
#[cfg(test)]
mod tests;

/// Its entry in `CONTROLLERS`.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: None,
    gate: None,
    rules: &[
        Rule::new(&[""], &["pods"], &["get", "list", "watch"]),
        Rule::new(&[""], &["pods/status"], &["patch"]),
        Rule::new(&[""], &["configmaps"], &["create", "get", "patch"]),
    ],
    workers_flag: None,
    workers: 4,
    start,
};

const NAME: &str = "container-launch-priority-controller";
/// How often the barrier of a Pod that does not come further is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// How long containers may take before an event says who waits for whom.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is known of the barrier of a Pod.
#[derive(Clone, Debug)]
struct BarrierState {
    /// UID of the Pod.
    pod: String,
    /// UID of the ConfigMap.
    config_map: String,
    /// Priorities whose keys are there.
    opened: BTreeSet<i32>,
    /// When the last of them was written.
    since: Duration,
    /// When it was last seen to be so.
    seen: Duration,
    reported: bool,
}

struct Controller {
    context: Context,
    memories: Mutex<HashMap<ObjectKey, BarrierState>>,
}

fn start(context: &Context, workers: usize, shutdown: Shutdown) -> Started {
    let queue = Queue::new(Backoff::default());
    let controller = Arc::new(Controller { context: context.clone(), memories: Mutex::default() });
    let on_pod = {
        let (queue, controller) = (queue.clone(), controller.clone());
        move |change: &Change<'_, PodView>| match change {
            Change::Applied { new, .. } => {
                let key = ObjectKey::of(new.as_ref());
                // One that needs nothing any more is forgotten by the reconcile.
                if launch_priority::next(new).is_some() || lock(&controller.memories).contains_key(&key) {
                    queue.add(key);
                }
            }
            Change::Deleted(old) => {
                lock(&controller.memories).remove(&ObjectKey::of(old.as_ref()));
            }
            Change::Undecodable { .. } => {}
        }
    };
    let runner = Runner::new(context, NAME, shutdown);
    let reconcile = move |key: ObjectKey| {
        let controller = controller.clone();
        async move { controller.reconcile(&key).await }
    };
    Started::new(runner.run(queue, workers, reconcile)).on_pod(on_pod)
}

impl Controller {
    async fn reconcile(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let pod = self.context.pods.get(key);
        let Some((pod, next)) = pod.and_then(|pod| launch_priority::next(&pod).map(|next| (pod, next))) else {
            lock(&self.memories).remove(key);
            return Ok(Requeue::Await);
        };
        let now = clock::now().mono;
        let memory = lock(&self.memories).get(key).filter(|memory| memory.pod == pod.uid()).cloned();
        let is_open = memory.as_ref().is_some_and(|memory| memory.opened.is_superset(&next.open));
        let is_fresh = memory.as_ref().is_some_and(|memory| now.saturating_sub(memory.seen) < LOOK_AGAIN);
        if is_open && is_fresh {
            return if next.is_last { self.annotate(&pod, key, &next).await } else { Ok(self.wait(&pod, key, &next)) };
        }
        let api: Api<ConfigMap> = Api::namespaced(self.context.client.clone(), &key.namespace);
        // What was not looked at for a while may be gone.
        let known = memory.as_ref().filter(|_| is_fresh).map(|memory| memory.config_map.as_str());
        match barrier::open(&api, &pod, &next.open, known).await? {
            Opened::Yes { config_map } => {
                let before = memory.filter(|_| is_open);
                let since = before.as_ref().map_or(now, |before| before.since);
                let reported = before.is_some_and(|before| before.reported);
                let pod_uid = pod.uid().to_owned();
                let opened = next.open.clone();
                let memory = BarrierState { pod: pod_uid, config_map, opened, since, seen: now, reported };
                lock(&self.memories).insert(key.clone(), memory);
                if next.is_last || next.is_held && !is_open {
                    self.annotate(&pod, key, &next).await
                } else {
                    Ok(self.wait(&pod, key, &next))
                }
            }
            Opened::Changed => {
                lock(&self.memories).remove(key);
                Ok(Requeue::After(AFTER_WATCHED_CONFLICT))
            }
            Opened::Foreign => {
                let message = format!(
                    "ConfigMap {} is not this Pod's, so its containers cannot be started in order and wait; delete or rename that ConfigMap",
                    launch_priority::barrier_of(pod.name())
                );
                self.context.events.warning(&pod.reference(), "LaunchBarrierTaken", &message);
                Ok(Requeue::After(LOOK_AGAIN))
            }
        }
    }

    /// Writes the mark if the last level is open, else only what wakes kubelet.
    async fn annotate(&self, pod: &PodView, key: &ObjectKey, next: &Next) -> kube::Result<Requeue> {
        let level = next.open.first().copied().unwrap_or_default().to_string();
        let (annotation, value) = match next.is_last {
            true => (labels::LAUNCH_PRIORITY_COMPLETED, "true"),
            false => (labels::LAUNCH_PRIORITY_OPENED, level.as_str()),
        };
        let patch = json!({ "metadata": { "uid": pod.uid(), "annotations": { annotation: value } } });
        let api: Api<PodObject> = Api::namespaced(self.context.client.clone(), &key.namespace);
        match api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(changed) => {
                self.context.pods.upsert(changed.into());
            }
            Err(error) if apply::code(&error) == Some(404) => return Ok(Requeue::Await),
            Err(error) if apply::code(&error) == Some(409) => return Ok(Requeue::After(AFTER_WATCHED_CONFLICT)),
            Err(error) => return Err(error),
        }
        if next.is_last {
            lock(&self.memories).remove(key);
            return Ok(Requeue::Await);
        }
        Ok(self.wait(pod, key, next))
    }

    /// Waits for the containers of the open levels. After a while it says who waits for whom, once a level.
    fn wait(&self, pod: &PodView, key: &ObjectKey, next: &Next) -> Requeue {
        let now = clock::now().mono;
        if let Some(memory) = lock(&self.memories).get_mut(key)
            && !memory.reported
            && now.saturating_sub(memory.since) >= PATIENCE
        {
            memory.reported = true;
            let message = format!(
                "containers of a lower launch priority wait until {} is ready, which has taken more than {} s",
                next.awaited.join(", "),
                PATIENCE.as_secs()
            );
            self.context.events.warning(&pod.reference(), "LaunchPriorityWaiting", &message);
        }
        Requeue::After(LOOK_AGAIN)
    }
}
