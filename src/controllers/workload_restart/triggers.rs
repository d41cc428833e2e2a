//! I/O: watches of single ConfigMaps and Secrets by name, while a WorkloadRestart has them as triggers. Only a hash of
//! their data is kept.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};
use tokio::task::AbortHandle;

use super::{Controller, hashed, lock};
use crate::{
    api::wr::{Trigger, TriggerKind, WorkloadRestart},
    domain::kinds::workload_restart::{MOST_TRIGGERS, TriggerContent},
    k8s::name::ObjectName,
    runtime::{
        apply::refused_watch,
        watches::{self, ObjectKey, StoreIndex},
    },
};

/// The running watches.
#[derive(Default)]
pub(super) struct Watches(Mutex<HashMap<String, OfNamespace>>);

/// Those of one namespace, no more than [`MOST_TRIGGERS`].
type OfNamespace = HashMap<Trigger, Watch>;

struct Watch {
    seen: TriggerContent,
    task: AbortHandle,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Ends all watches when it is dropped: each holds its controller, and would go on for ever.
pub(super) struct EndWatches<'a>(pub(super) &'a Watches);

impl Drop for EndWatches<'_> {
    fn drop(&mut self) {
        lock(&self.0.0).clear();
    }
}

impl Watches {
    /// What is known of the triggers of an object, in its order.
    pub(super) fn seen(&self, restart: &WorkloadRestart) -> Vec<TriggerContent> {
        let all = lock(&self.0);
        let running = all.get(&restart.namespace().unwrap_or_default());
        let seen = |trigger: &Trigger| match running.map(|running| (running.get(trigger), running.len())) {
            Some((Some(watch), _)) => watch.seen.clone(),
            Some((None, many)) if many >= MOST_TRIGGERS => TriggerContent::Surplus,
            _ => TriggerContent::Unknown,
        };
        restart.triggers().iter().map(seen).collect()
    }

    /// Whether a watch for an object has ended by itself.
    pub(super) fn have_ended(&self, restart: &WorkloadRestart) -> bool {
        let all = lock(&self.0);
        let running = all.get(restart.metadata.namespace.as_deref().unwrap_or_default());
        let has_ended = |trigger: &Trigger| {
            running.and_then(|running| running.get(trigger)).is_some_and(|watch| watch.task.is_finished())
        };
        restart.triggers().iter().any(has_ended)
    }

    /// Takes over what a watch brings; whether it is news.
    fn take(&self, namespace: &str, trigger: &Trigger, seen: TriggerContent) -> bool {
        let mut all = lock(&self.0);
        match all.get_mut(namespace).and_then(|running| running.get_mut(trigger)) {
            Some(watch) if watch.seen != seen => {
                watch.seen = seen;
                true
            }
            _ => false,
        }
    }
}

/// The triggers that are followed in a namespace: those of the oldest objects first.
fn chosen(restarts: &[Arc<WorkloadRestart>]) -> HashSet<Trigger> {
    let mut by_age: Vec<&WorkloadRestart> = restarts.iter().map(AsRef::as_ref).collect();
    by_age.sort_by_key(|restart| restart.metadata.creation_timestamp.as_ref().map(|time| time.0));
    let mut chosen = HashSet::new();
    for trigger in by_age.into_iter().flat_map(WorkloadRestart::triggers) {
        if chosen.len() >= MOST_TRIGGERS {
            break;
        }
        chosen.insert(trigger.clone());
    }
    chosen
}

impl Controller {
    /// All WorkloadRestarts are in view: follows the triggers of each namespace.
    pub(super) fn follow_all_triggers(self: &Arc<Self>) {
        let triggered = self.restarts.select(WorkloadRestart::is_triggered);
        let namespaces: HashSet<String> = triggered.iter().filter_map(|restart| restart.namespace()).collect();
        namespaces.iter().for_each(|namespace| self.follow_triggers(namespace));
    }

    /// Starts and stops watches, so that exactly those for the triggers of a namespace run.
    pub(super) fn follow_triggers(self: &Arc<Self>, namespace: &str) {
        let restarts = self.restarts.by_index(&StoreIndex::namespace(), namespace);
        let chosen = chosen(&restarts);
        let mut all = lock(&self.triggers.0);
        let running = all.entry(namespace.to_owned()).or_default();
        let dropped: HashSet<Trigger> = running.keys().filter(|trigger| !chosen.contains(*trigger)).cloned().collect();
        // One that has panicked is begun again.
        running.retain(|trigger, watch| chosen.contains(trigger) && !watch.task.is_finished());
        for trigger in chosen {
            running.entry(trigger).or_insert_with_key(|trigger| {
                let task = tokio::spawn(self.clone().follow(namespace.to_owned(), trigger.clone())).abort_handle();
                Watch { seen: TriggerContent::Unknown, task }
            });
        }
        if running.is_empty() {
            all.remove(namespace);
        }
        drop(all);
        // Older ones came before theirs.
        for restart in restarts.iter().filter(|restart| restart.triggers().iter().any(|t| dropped.contains(t))) {
            self.queue.add(ObjectKey::of(restart.as_ref()));
        }
    }

    async fn follow(self: Arc<Self>, namespace: String, trigger: Trigger) {
        // Stored while the schema was another: it would become part of a query. The plan says so.
        if let Err(error) = ObjectName::parse(&trigger.name) {
            self.triggers.take(&namespace, &trigger, TriggerContent::Forbidden(error.to_string()));
            return;
        }
        let resource = match trigger.kind {
            TriggerKind::ConfigMap => ApiResource::erase::<ConfigMap>(&()),
            TriggerKind::Secret => ApiResource::erase::<Secret>(&()),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(self.context.client.clone(), &namespace, &resource);
        watches::watch_named(api, &resource, &trigger.name, |change| {
            let seen = match change {
                Ok(None) => TriggerContent::Missing,
                Ok(Some(object)) => TriggerContent::Present {
                    hash: hashed(&[&data(&object).to_string()], 16),
                    changed: last_change(&object),
                },
                Err(error) => match refused_watch(&error) {
                    Some(why) => TriggerContent::Forbidden(why),
                    // One lost connection; what was known stays true.
                    None => return,
                },
            };
            if self.triggers.take(&namespace, &trigger, seen) {
                for restart in self.restarts.by_index(&StoreIndex::namespace(), &namespace) {
                    if restart.triggers().contains(&trigger) {
                        self.queue.add(ObjectKey::of(restart.as_ref()));
                    }
                }
            }
        })
        .await;
    }
}

fn data(object: &DynamicObject) -> Value {
    json!([object.data.get("data"), object.data.get("binaryData")])
}

/// By the clock of the API server, which also sets the creation times of Pods. Changes of metadata count too: that may
/// restart more Pods than necessary, never fewer.
fn last_change(object: &DynamicObject) -> Option<jiff::Timestamp> {
    object.managed_fields().iter().filter_map(|entry| entry.time.as_ref()).map(|time| time.0).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::queue::Requeue;

    fn restart(namespace: &str, number: usize, triggers: std::ops::Range<usize>) -> WorkloadRestart {
        let triggers: Vec<Value> =
            triggers.map(|i| json!({"kind": "ConfigMap", "name": format!("{namespace}-{i}")})).collect();
        // The younger, the earlier in the order of the names.
        serde_json::from_value(json!({
            "apiVersion": "kruise.rs/v1alpha1", "kind": "WorkloadRestart",
            "metadata": {"name": format!("r{:03}", 999 - number), "namespace": namespace, "uid": format!("{namespace}-{number}"),
                "creationTimestamp": format!("2026-01-01T00:{number:02}:00Z")},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "triggers": triggers},
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn a_namespace_has_so_many_watches_and_no_more_and_the_oldest_objects_come_first() {
        let context = crate::controllers::in_memory::context(|_, _| {
            (503, json!({"kind": "Status", "status": "Failure", "code": 503, "message": "no"}))
        });
        let controller = Arc::new(Controller::new(&context));
        let _end = EndWatches(&controller.triggers);
        let running = |namespace: &str| lock(&controller.triggers.0).get(namespace).map_or(0, HashMap::len);
        let surplus = |restart: &WorkloadRestart| {
            let seen = controller.triggers.seen(restart);
            seen.iter().filter(|seen| **seen == TriggerContent::Surplus).count()
        };
        // 20 objects with 16 triggers each, the last two of which the next one has too.
        let of_tenant: Vec<WorkloadRestart> = (0..20).map(|n| restart("a", n, n * 14..n * 14 + 16)).collect();
        for restart in of_tenant.iter().cloned() {
            controller.restarts.upsert(restart);
        }
        let neighbour = restart("b", 59, 0..2);
        controller.restarts.upsert(neighbour.clone());
        controller.follow_all_triggers();
        assert_eq!((running("a"), running("b")), (MOST_TRIGGERS, 2));
        assert_eq!((surplus(&of_tenant[0]), surplus(&of_tenant[19]), surplus(&neighbour)), (0, 16, 0));
        // 128 are those of the first nine objects and no other.
        assert_eq!((surplus(&of_tenant[8]), surplus(&of_tenant[9])), (0, 14));

        // What an old object gives up, a younger one gets.
        controller.restarts.remove(&ObjectKey::of(&of_tenant[0]), Some("a-0"));
        controller.follow_triggers("a");
        assert_eq!((running("a"), surplus(&of_tenant[9]), surplus(&of_tenant[10])), (MOST_TRIGGERS, 0, 14));
        assert!(controller.queue.begin().is_none());
        // Those who lose a watch to an older object look again.
        let mut older = of_tenant[0].clone();
        older.metadata.uid = Some("older".into());
        controller.restarts.upsert(older.clone());
        controller.follow_triggers("a");
        assert_eq!((running("a"), surplus(&older), surplus(&of_tenant[9])), (MOST_TRIGGERS, 0, 14));
        let next = || {
            let key = controller.queue.begin()?;
            controller.queue.done::<String>(key.clone(), Ok(Requeue::Await));
            Some(key)
        };
        let woken: Vec<ObjectKey> = std::iter::from_fn(next).collect();
        assert_eq!(woken, [ObjectKey::of(&of_tenant[10]), ObjectKey::of(&of_tenant[9])]);
    }

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_hash_is_of_the_data_alone() {
        let hash = |value: Value| hashed(&[&data(&object(value)).to_string()], 16);
        let plain = hash(json!({"metadata": {"name": "a"}, "data": {"a": "1", "b": "2"}}));
        let marked = json!({"metadata": {"name": "a", "annotations": {"x": "y"}}, "data": {"b": "2", "a": "1"}});
        assert_eq!(plain, hash(marked));
        assert_ne!(plain, hash(json!({"metadata": {"name": "a"}, "data": {"a": "1", "b": "3"}})));
        assert_ne!(plain, hash(json!({"metadata": {"name": "a"}, "binaryData": {"a": "1", "b": "2"}})));
        assert_eq!(plain.len(), 16);
    }

    #[test]
    fn the_last_change_is_dated_by_the_api_server() {
        let managed = json!({"metadata": {"name": "a", "managedFields": [
            {"manager": "m", "operation": "Update", "time": "2026-01-01T00:00:05Z"},
            {"manager": "n", "operation": "Apply", "time": "2026-01-01T00:00:09Z"}, {"manager": "o"}]}});
        assert_eq!(last_change(&object(managed)).unwrap().to_string(), "2026-01-01T00:00:09Z");
        assert_eq!(last_change(&object(json!({"metadata": {"name": "a"}}))), None);
    }
}
