//! Which workloads an event concerns, and when they are reconciled for it.

use std::{sync::Arc, time::Duration};

use kube::Resource;

use super::{
    pass::Memories,
    queue::Queue,
    watches::{Change, ObjectKey, Store, StoredObject},
};
use crate::k8s::pod::PodView;

/// Events of Pods of a large workload wait for so long at most.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// How long a status that somebody else has written stays. Whoever writes it again and again is answered no faster.
const STATUS_OF_OTHERS: Duration = Duration::from_secs(1);

/// The workload of a kind, given by its group and name, that controls a Pod.
pub fn owner_of(pod: &PodView, (group, kind): (&str, &str)) -> Option<ObjectKey> {
    let owner = pod.controller.as_deref()?;
    owner.is(group, kind).then(|| ObjectKey::new(pod.namespace(), &owner.name))
}

/// Puts a workload that has changed into the queue, and forgets one that is gone. What a controller writes of a status
/// comes back as an event that says nothing new.
pub fn workload_changed<K, M>(change: &Change<'_, K>, queue: &Queue<ObjectKey>, memories: &Memories<M>)
where
    K: Resource<DynamicType = ()>,
    M: Default,
{
    match change {
        Change::Applied { old, new, .. } => {
            if old.is_none_or(|old| is_changed(old.as_ref(), new.as_ref())) {
                queue.add(ObjectKey::of(new.as_ref()));
            }
        }
        Change::Deleted(old) => memories.forget(&ObjectKey::of(old.as_ref())),
        Change::Undecodable { key, error } => {
            tracing::error!(kind = %K::kind(&()), object = %key, error, "this object cannot be read and is left alone");
        }
    }
}

/// Puts an object whose status alone somebody else has written into the queue: the next pass writes the status again. For
/// controllers that do not look at every event of their objects, because most of them are their own writes.
pub fn status_changed<K>(change: &Change<'_, K>, store: &Store<K>, queue: &Queue<ObjectKey>)
where
    K: Resource<DynamicType = ()> + StoredObject,
{
    let Change::Applied { old: Some(old), new, .. } = change else { return };
    let is_status = old.object_version() != new.object_version() && !is_changed(old.as_ref(), new.as_ref());
    let key = ObjectKey::of(new.as_ref());
    if is_status && store.is_of_others(&key) {
        queue.add_after(key, STATUS_OF_OTHERS);
    }
}

fn is_changed<K: Resource>(old: &K, new: &K) -> bool {
    let (old, new) = (old.meta(), new.meta());
    old.uid != new.uid
        || old.generation != new.generation
        || old.labels != new.labels
        || old.annotations != new.annotations
        || old.deletion_timestamp != new.deletion_timestamp
}

/// Calls `wake` for each workload of a kind that a change of a Pod concerns, with the Pod if the workload controls it
/// now. Not called for an event that brings nothing that a rule reads.
pub fn owners_of_changed<'a>(
    change: &Change<'a, PodView>,
    kind: (&str, &str),
    mut wake: impl FnMut(&ObjectKey, Option<&'a Arc<PodView>>),
) {
    let Some((old, new)) = change.sides() else { return };
    let owner = |pod: Option<&Arc<PodView>>| pod.and_then(|pod| owner_of(pod, kind));
    let (before, now) = (owner(old), owner(new));
    if let (Some(old), Some(new)) = (old, new)
        && before == now
        && is_same_but_version(old, new)
    {
        return;
    }
    if let Some(key) = before.as_ref().filter(|_| before != now) {
        wake(key, None);
    }
    if let Some(key) = &now {
        wake(key, new);
    }
}

/// Whether an event of a Pod brings nothing that a rule reads.
pub fn is_same_but_version(old: &Arc<PodView>, new: &Arc<PodView>) -> bool {
    // Our own write, taken over before its event came.
    old.resource_version() == new.resource_version() || old.differs_in_version_alone(new)
}

/// How long an event of a Pod may wait, because a pass looks at every Pod: a tenth of a second for a thousand Pods, not at
/// all for fewer than a hundred.
pub fn pause(pods: usize) -> Duration {
    let pods = u64::try_from(pods).unwrap_or(u64::MAX);
    if pods < 100 { Duration::ZERO } else { Duration::from_micros(pods.saturating_mul(100)).min(LONGEST_PAUSE) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        api::apps::{self, stateful_set::StatefulSet},
        runtime::queue::Backoff,
    };

    fn pod(owner: Value, version: &str) -> Arc<PodView> {
        let metadata = json!({"name": "p", "namespace": "ns", "resourceVersion": version, "ownerReferences": [owner]});
        Arc::new(serde_json::from_value(json!({"metadata": metadata})).unwrap())
    }
    fn owner(kind: &str, name: &str) -> Value {
        json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": kind, "name": name, "uid": "u", "controller": true})
    }
    fn woken(change: &Change<'_, PodView>) -> Vec<(String, bool)> {
        let mut woken = Vec::new();
        owners_of_changed(change, (apps::GROUP, "StatefulSet"), |key, pod| {
            woken.push((key.to_string(), pod.is_some()));
        });
        woken
    }

    #[test]
    fn a_pod_wakes_the_owner_that_it_has_and_the_one_that_it_had() {
        let (a, b) = (pod(owner("StatefulSet", "a"), "1"), pod(owner("StatefulSet", "b"), "2"));
        let key = |name: &str, has: bool| (format!("ns/{name}"), has);
        let applied = |old, new| woken(&Change::Applied { old, new, initial: false });
        assert_eq!(applied(None, &a), [key("a", true)]);
        assert_eq!(applied(Some(&a), &b), [key("a", false), key("b", true)]);
        let (same, other) = (pod(owner("StatefulSet", "a"), "3"), pod(owner("CloneSet", "a"), "3"));
        assert_eq!(applied(Some(&a), &same), [], "nothing but another version");
        assert_eq!(applied(None, &other), []);
        assert_eq!(woken(&Change::Deleted(&a)), [key("a", false)]);
    }

    #[test]
    fn a_workload_is_reconciled_for_what_is_not_its_status() {
        let set = |metadata: Value| {
            let mut object = json!({"metadata": {"name": "web", "namespace": "ns", "uid": "u", "generation": 1},
                "spec": {"selector": {}, "template": {}}, "status": {"replicas": 1}});
            json_patch::merge(&mut object["metadata"], &metadata);
            Arc::new(serde_json::from_value::<StatefulSet>(object).unwrap())
        };
        let old = set(json!({}));
        for (change, wakes) in [
            (json!({"resourceVersion": "2"}), false),
            (json!({"generation": 2}), true),
            (json!({"labels": {"a": "b"}}), true),
            (json!({"annotations": {"a": "b"}}), true),
            (json!({"uid": "another"}), true),
            (json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), true),
        ] {
            let (queue, memories) = (Queue::new(Backoff::default()), Memories::<()>::default());
            let new = set(change.clone());
            workload_changed(&Change::Applied { old: Some(&old), new: &new, initial: false }, &queue, &memories);
            assert_eq!(queue.depth() > 0, wakes, "{change}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_that_others_have_written_is_put_right_a_second_later() {
        let set = |version: &str, replicas: i32| -> StatefulSet {
            let metadata = json!({"name": "web", "namespace": "ns", "uid": "u", "resourceVersion": version});
            let spec = json!({"selector": {}, "template": {}});
            let object = json!({"metadata": metadata, "spec": spec, "status": {"replicas": replicas}});
            serde_json::from_value(object).unwrap()
        };
        let (store, queue) = (Store::new(None), Queue::new(Backoff::default()));
        let see = |object: StatefulSet| {
            store.see(object, |change| status_changed(&change, &store, &queue));
            queue.next_in()
        };
        assert_eq!(see(set("1", 1)), None, "a new one is looked at anyway");
        store.upsert(set("2", 2));
        assert_eq!(see(set("2", 2)), None, "an own write");
        assert_eq!(see(set("2", 2)), None, "a list brings it once more");
        let mut other = set("3", 2);
        other.metadata.generation = Some(2);
        assert_eq!(see(other.clone()), None, "another spec is looked at anyway");
        (other.metadata.resource_version, other.status.as_mut().unwrap().replicas) = (Some("4".into()), 99);
        assert_eq!(see(other), Some(STATUS_OF_OTHERS));
    }

    #[test]
    fn events_of_pods_wait_only_where_there_are_many() {
        let millis = [0, 99, 100, 1_000, 2_500, 1_000_000].map(|pods| pause(pods).as_millis());
        assert_eq!(millis, [0, 0, 10, 100, 250, 250]);
    }
}
