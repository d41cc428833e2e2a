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
    domain::kinds::workload_restart::TriggerContent,
    k8s::name::ObjectName,
    runtime::{
        apply::refused_watch,
        watches::{self, ObjectKey, StoreIndex},
    },
};

/// A trigger and its namespace.
type Key = (String, Trigger);

/// The running watches.
#[derive(Default)]
pub(super) struct Watches(Mutex<HashMap<Key, Watch>>);

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
        let namespace = restart.namespace().unwrap_or_default();
        let watches = lock(&self.0);
        let seen =
            |trigger: &Trigger| watches.get(&(namespace.clone(), trigger.clone())).map(|watch| watch.seen.clone());
        restart.triggers().iter().map(|trigger| seen(trigger).unwrap_or(TriggerContent::Unknown)).collect()
    }
}

impl Controller {
    /// Starts and stops watches, so that exactly those for the triggers of all WorkloadRestarts run.
    pub(super) fn follow_triggers(self: &Arc<Self>) {
        let mut wanted: HashSet<Key> = HashSet::new();
        for restart in self.restarts.list() {
            let namespace = restart.namespace().unwrap_or_default();
            wanted.extend(restart.triggers().iter().map(|trigger| (namespace.clone(), trigger.clone())));
        }
        let mut watches = lock(&self.triggers.0);
        // One that has panicked is begun again.
        watches.retain(|key, watch| wanted.contains(key) && !watch.task.is_finished());
        for key in wanted {
            watches.entry(key).or_insert_with_key(|key| {
                let task = tokio::spawn(self.clone().follow(key.clone())).abort_handle();
                Watch { seen: TriggerContent::Unknown, task }
            });
        }
    }

    async fn follow(self: Arc<Self>, key: Key) {
        let (namespace, trigger) = &key;
        // Stored while the schema was another: it would become part of a query. The plan says so.
        if let Err(error) = ObjectName::parse(&trigger.name) {
            if let Some(watch) = lock(&self.triggers.0).get_mut(&key) {
                watch.seen = TriggerContent::Forbidden(error.to_string());
            }
            return;
        }
        let resource = match trigger.kind {
            TriggerKind::ConfigMap => ApiResource::erase::<ConfigMap>(&()),
            TriggerKind::Secret => ApiResource::erase::<Secret>(&()),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(self.context.client.clone(), namespace, &resource);
        watches::watch_named(api, &trigger.name, |change| {
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
            if let Some(watch) = lock(&self.triggers.0).get_mut(&key)
                && watch.seen != seen
            {
                watch.seen = seen;
                for restart in self.restarts.by_index(&StoreIndex::namespace(), namespace) {
                    if restart.triggers().contains(trigger) {
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
