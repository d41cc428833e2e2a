//! What becomes of a PodProbeMarker itself: finalizer, keys, status, removal.

use std::sync::Arc;

use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{AFTER_WATCHED_CONFLICT, Controller, LOOK_AGAIN, lock, node_key};
use crate::{
    api::{
        apps::pod_probe_marker::{PodProbeMarker, PodProbeMarkerStatus},
        labels,
    },
    domain::node::probes::{marks::Keys, report, reserved},
    runtime::{
        apply, clock,
        events::reference,
        queue::Requeue,
        unreadable::{self, LOOK_FOR_ITS_END},
        watches::ObjectKey,
    },
};

/// Whether everything that it may leave on Pods is noted, and it is held until that is removed.
pub(super) fn is_noted(marker: &PodProbeMarker) -> bool {
    has_finalizer(marker) && Keys::of(marker).without(&Keys::noted(marker)).is_empty()
}

fn has_finalizer(marker: &PodProbeMarker) -> bool {
    marker.metadata.finalizers.iter().flatten().any(|name| name == labels::PROBE_CLEANUP_FINALIZER)
}

/// Its finalizers without ours.
fn finalizers_of_others(marker: &PodProbeMarker) -> Vec<&String> {
    let finalizers = marker.metadata.finalizers.iter().flatten();
    finalizers.filter(|name| *name != labels::PROBE_CLEANUP_FINALIZER).collect()
}

pub(super) fn is_deleting(marker: &PodProbeMarker) -> bool {
    marker.metadata.deletion_timestamp.is_some()
}

impl Controller {
    /// Holds a PodProbeMarker and notes its keys before anything is written for it, writes its status, and releases it.
    pub(super) async fn reconcile_marker(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let Some(marker) = self.markers.get(key) else { return self.reconcile_unreadable(key).await };
        if is_deleting(&marker) {
            return self.release(key, &marker).await;
        }
        let (current, noted) = (Keys::of(&marker), Keys::noted(&marker));
        let mut next = noted.clone();
        next.add(&current);
        if has_finalizer(&marker) && noted == next && noted != current {
            // It has been changed: its Pods may carry what it does not name any more.
            let left = self.nodes_to_visit(key, &marker);
            if left > 0 {
                self.record(key, &marker).await?;
                return Ok(Requeue::After(LOOK_AGAIN));
            }
            next = current;
        }
        lock(&self.outdated).remove(key);
        if !has_finalizer(&marker) || noted != next {
            let mut finalizers = marker.metadata.finalizers.clone().unwrap_or_default();
            if !has_finalizer(&marker) {
                finalizers.push(labels::PROBE_CLEANUP_FINALIZER.to_owned());
            }
            let note = json!({ labels::PROBE_MARKS: next.note() });
            let changed =
                self.patch_metadata(key, &marker, json!({ "finalizers": finalizers, "annotations": note })).await?;
            if changed {
                self.wake_nodes_of(key);
                self.marker_queue.add(key.clone());
            }
            return Ok(if changed { Requeue::Await } else { Requeue::After(AFTER_WATCHED_CONFLICT) });
        }
        self.record(key, &marker).await
    }

    /// The number of nodes whose Pods may still carry what it does not want any more. They are woken the first time.
    fn nodes_to_visit(&self, key: &ObjectKey, marker: &PodProbeMarker) -> usize {
        let nodes = self.nodes_of(key);
        let meta = &marker.metadata;
        let version = (meta.uid.clone(), meta.generation, is_deleting(marker));
        let mut outdated = lock(&self.outdated);
        if outdated.get(key).is_none_or(|(of, _)| *of != version) {
            outdated.insert(key.clone(), (version, nodes.clone()));
            nodes.iter().for_each(|node| self.node_queue.add(node_key(node)));
        }
        // A node without Pods of it has nothing to remove.
        outdated.get_mut(key).map_or(0, |(_, left)| {
            left.retain(|node| nodes.contains(node));
            left.len()
        })
    }

    async fn release(&self, key: &ObjectKey, marker: &PodProbeMarker) -> kube::Result<Requeue> {
        if !has_finalizer(marker) {
            return Ok(Requeue::Await);
        }
        if !self.has_left_nothing(key, marker) {
            return Ok(Requeue::After(LOOK_AGAIN));
        }
        let finalizers = finalizers_of_others(marker);
        let done = self.patch_metadata(key, marker, json!({ "finalizers": finalizers })).await?;
        Ok(if done { Requeue::Await } else { Requeue::After(AFTER_WATCHED_CONFLICT) })
    }

    /// Whether nothing is left of one that is being deleted; nodes with something of it are woken.
    fn has_left_nothing(&self, key: &ObjectKey, marker: &PodProbeMarker) -> bool {
        let left = self.nodes_to_visit(key, marker);
        let nodes = self.nodes_with_entries_of(key);
        nodes.iter().for_each(|node| self.node_queue.add(node_key(node)));
        // A node without a NodePodProbe has no entries, and neither have nodes that are gone.
        left == 0 && nodes.is_empty()
    }

    /// One that cannot be read is left alone until it is deleted. Then what it has left goes, as far as its metadata notes it,
    /// and our finalizer, which would hold it for ever.
    async fn reconcile_unreadable(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        if !lock(&self.unreadable).contains_key(key) {
            return Ok(Requeue::Await);
        }
        let api: Api<PodProbeMarker> = Api::namespaced(self.context.client.clone(), &key.namespace);
        // Listed, not read: of PodProbeMarkers no right to get them is needed.
        let named = ListParams::default().fields(&format!("metadata.name={}", key.name));
        let Some(live) = api.list_metadata(&named).await?.items.pop() else {
            if lock(&self.unreadable).remove(key).is_some() {
                self.forget(key);
            }
            return Ok(Requeue::Await);
        };
        let marker = Arc::new(PodProbeMarker { metadata: live.metadata, ..PodProbeMarker::default() });
        match lock(&self.unreadable).get_mut(key) {
            // Before its nodes are woken: they go by it.
            Some(known) => *known = is_deleting(&marker).then(|| marker.clone()),
            // It can be read by now.
            None => return Ok(Requeue::Await),
        }
        if !is_deleting(&marker) {
            return Ok(Requeue::After(LOOK_FOR_ITS_END));
        }
        if !self.has_left_nothing(key, &marker) {
            return Ok(Requeue::After(LOOK_AGAIN));
        }
        let was_held = unreadable::release(&api, key, &marker.metadata, labels::PROBE_CLEANUP_FINALIZER).await?;
        Ok(Requeue::After(if was_held { LOOK_AGAIN } else { LOOK_FOR_ITS_END }))
    }

    /// Whether it was written; not if the object has changed meanwhile.
    async fn patch_metadata(
        &self,
        key: &ObjectKey,
        marker: &PodProbeMarker,
        mut metadata: Value,
    ) -> kube::Result<bool> {
        metadata["uid"] = json!(marker.metadata.uid);
        metadata["resourceVersion"] = json!(marker.metadata.resource_version);
        let api: Api<PodProbeMarker> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        match api.patch(&key.name, &PatchParams::default(), &patch).await {
            Ok(changed) => {
                let is_over = is_deleting(&changed) && !has_finalizer(&changed);
                if !is_over {
                    self.markers.upsert(changed);
                }
                Ok(true)
            }
            Err(error) if apply::code(&error) == Some(404) => Ok(true),
            Err(error) if apply::code(&error) == Some(409) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn record(&self, key: &ObjectKey, marker: &PodProbeMarker) -> kube::Result<Requeue> {
        let recorded = marker.status.clone().unwrap_or_default();
        let now = clock::now();
        let conditions = reserved::conditions(marker, now);
        let (mut conditions, is_news, next) = match self.left_out_of(key) {
            Some(left_out) => {
                let (conditions, is_news) = report::as_specified(marker, conditions, &left_out, now.wall);
                (conditions, is_news, Requeue::Await)
            }
            None => (conditions, false, Requeue::After(LOOK_AGAIN)),
        };
        report::set_kstatus(marker, &mut conditions, matches!(next, Requeue::Await), now.wall);
        conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        let status = PodProbeMarkerStatus {
            observed_generation: marker.metadata.generation.unwrap_or_default(),
            matched_pods: i64::try_from(lock(&self.index).count_of(key)).unwrap_or(i64::MAX),
            conditions,
        };
        if marker.status.is_some() && recorded == status {
            return Ok(next);
        }
        let api: Api<PodProbeMarker> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let mut patch = json!({ "metadata": { "uid": marker.metadata.uid, "resourceVersion": marker.metadata.resource_version },
            "status": { "observedGeneration": status.observed_generation, "matchedPods": status.matched_pods } });
        if status.conditions != recorded.conditions {
            patch["status"]["conditions"] = json!(status.conditions);
        }
        match api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(changed) => {
                let said = status.conditions.iter().find(|c| c.type_ == labels::CONDITION_AS_SPECIFIED);
                if let Some(said) = said.filter(|_| is_news) {
                    self.context.events.warning(&reference(&changed), "NotAsSpecified", &said.message);
                }
                self.markers.upsert(changed);
                Ok(next)
            }
            Err(error) if apply::code(&error) == Some(404) => Ok(Requeue::Await),
            Err(error) if apply::code(&error) == Some(409) => Ok(Requeue::After(AFTER_WATCHED_CONFLICT)),
            Err(error) => Err(error),
        }
    }
}
