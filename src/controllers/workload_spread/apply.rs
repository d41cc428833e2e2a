//! Carries out what was decided: the status, annotations of Pods, evictions.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use serde_json::{Map, Value, json};

use super::{Controller, held::HeldSpread, observe::Assigned};
use crate::{
    api::{
        apps::workload_spread::{WorkloadSpread, WorkloadSpreadStatus},
        labels,
    },
    domain::kinds::workload_spread::{
        count::annotation,
        plan::{SpreadEvent, SpreadPlan},
        settled,
        spec::SpreadSpec,
        status,
    },
    k8s::{pod::PodView, time::Now},
    runtime::{
        events::reference,
        pass::Pass,
        pod_control::Part,
        status_writer::{Outcome, json_of},
        watches::ObjectKey,
    },
};

use super::metrics::ExpiryLabels;

/// Writes of Pods at a time.
const AT_ONCE: usize = 8;
/// After an eviction that was refused.
const AFTER_REFUSED: Duration = Duration::from_secs(2);
/// After a Pod has changed before its patch. That may be in what no rule reads, and then no event brings it back.
const AFTER_CONFLICT: Duration = Duration::from_millis(200);

/// What came of the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    /// It is written, or there was nothing to write.
    Now,
    /// The webhook has written before, and what it wrote has been read.
    Outdated,
    /// It waits, or there is nothing to write it to.
    No,
}

impl Controller {
    /// Writes the status. `is_whole`: bound to the version that was looked at, whatever changes.
    pub(super) async fn record(
        &self,
        key: &ObjectKey,
        (held, spread, is_whole): (&HeldSpread, &WorkloadSpread, bool),
        wanted: &WorkloadSpreadStatus,
        plan: Option<&SpreadPlan>,
        (now, pass): (Now, &mut Pass),
    ) -> kube::Result<Recorded> {
        let before = spread.status.clone().unwrap_or_default();
        // New Pods go by what is written here: a place that is free again cannot wait.
        let can_wait = !status::is_news(&before, wanted);
        let of = (spread.metadata.uid.as_deref().unwrap_or_default(), spread.metadata.generation.unwrap_or_default());
        let settled = if is_whole { None } else { settled::patch(&before, wanted, of) };
        let (api, writer) = (self.api(&key.namespace), &self.status);
        let outcome = match &settled {
            Some(patch) => writer.write_json((&api, &self.spreads), held, patch, can_wait, now).await?,
            None => {
                let (before, wanted) = (json_of(spread.status.as_ref())?, json_of(Some(wanted))?);
                writer.write((&api, &self.spreads), held, (&before, &wanted), can_wait, now).await?
            }
        };
        pass.look_after(outcome.look_after());
        if let (Outcome::Written(_), Some(plan)) = (&outcome, plan) {
            for event in &plan.events {
                self.emit(spread, event);
            }
        }
        Ok(match outcome {
            Outcome::Written(_) | Outcome::Unchanged => Recorded::Now,
            Outcome::Outdated => Recorded::Outdated,
            Outcome::Later(_) | Outcome::Gone => Recorded::No,
        })
    }

    fn emit(&self, spread: &WorkloadSpread, event: &SpreadEvent) {
        let expired = |record| {
            self.metrics.expired.get_or_create(&ExpiryLabels { record }).inc();
        };
        let (events, about) = (&self.context.events, reference(spread));
        tracing::info!(spread = %ObjectKey::of(spread), reason = event.reason(), message = event.message(), "emitted an event");
        match event {
            SpreadEvent::CreatePodFailed(_) => expired("creation"),
            SpreadEvent::DeletePodFailed(_) => expired("deletion"),
            SpreadEvent::RecoverSchedulable(_) => {
                return events.normal(&about, event.reason(), &event.message());
            }
        }
        events.warning(&about, event.reason(), &event.message());
    }

    /// Writes the notes and the deletion costs of Pods: one patch each.
    pub(super) async fn annotate(
        &self,
        spec: &SpreadSpec,
        assigned: Vec<Assigned>,
        plan: &SpreadPlan,
        pass: &mut Pass,
    ) {
        let mut patches: HashMap<String, (Arc<PodView>, Map<String, Value>)> = HashMap::new();
        let name_of = |assigned: &Assigned| spec.subsets[assigned.subset].name.as_str();
        let subsets: HashMap<String, &str> =
            assigned.iter().map(|assigned| (assigned.pod.uid().to_owned(), name_of(assigned))).collect();
        for Assigned { pod, subset, mut metadata } in assigned {
            let note = annotation(&spec.name, &spec.subsets[subset].name, None);
            annotations(&mut metadata).insert(labels::MATCHED_SPREAD.into(), note.into());
            // Somebody else may have noted something meanwhile.
            metadata.insert("resourceVersion".into(), json!(pod.resource_version()));
            patches.insert(pod.uid().to_owned(), (pod, metadata));
        }
        for (pod, cost) in &plan.costs {
            let (_, metadata) = patches.entry(pod.uid().to_owned()).or_insert_with(|| (pod.clone(), Map::new()));
            annotations(metadata).insert(labels::POD_DELETION_COST.into(), cost.to_string().into());
        }
        let writes = patches.into_values().map(|(pod, metadata)| async move {
            let done = self.pods.try_patch(&pod, Part::Whole, &json!({ "metadata": metadata })).await;
            (pod, done)
        });
        let mut writes = stream::iter(writes).buffer_unordered(AT_ONCE);
        while let Some((pod, done)) = writes.next().await {
            match done {
                Ok(Some(_)) if subsets.contains_key(pod.uid()) => {
                    self.metrics.assigned.inc();
                    let subset = subsets.get(pod.uid()).copied().unwrap_or_default();
                    let (pod, namespace) = (pod.name(), pod.namespace());
                    tracing::info!(spread = spec.name, pod, namespace, subset, "a Pod belongs to a subset by its node");
                }
                Ok(Some(_)) => {}
                Ok(None) => pass.look_after(Some(AFTER_CONFLICT)),
                Err(error) => {
                    tracing::warn!(pod = pod.name(), namespace = pod.namespace(), %error, "a Pod of a subset is not annotated");
                    pass.note(Err(error));
                }
            }
        }
    }

    /// Evicts Pods that find no place, after it is on record that their subset gets no more.
    pub(super) async fn evict(&self, spec: &SpreadSpec, plan: &SpreadPlan, pass: &mut Pass) {
        for pod in &plan.evict {
            match self.try_evict(spec, pod).await {
                Ok(true) => {}
                Ok(false) => pass.look_after(Some(AFTER_REFUSED)),
                Err(error) => {
                    tracing::warn!(pod = pod.name(), namespace = pod.namespace(), %error, "a Pod without a place is not evicted yet");
                    pass.look_after(Some(AFTER_REFUSED));
                }
            }
        }
    }

    /// True: nothing more is to be done with this Pod.
    async fn try_evict(&self, spec: &SpreadSpec, pod: &PodView) -> kube::Result<bool> {
        let Some(live) = self.pods.read(pod).await? else { return Ok(true) };
        let has_node = live.pointer("/spec/nodeName").and_then(Value::as_str).is_some_and(|node| !node.is_empty());
        if has_node || live.pointer("/metadata/deletionTimestamp").is_some() {
            return Ok(true);
        }
        let is_done = self.pods.evict(pod, &live["metadata"]["resourceVersion"]).await?;
        if is_done {
            self.metrics.evicted.inc();
            tracing::info!(
                spread = spec.name,
                pod = pod.name(),
                namespace = pod.namespace(),
                "evicted a Pod without a place"
            );
            let message = format!(
                "evicted because no node of its subset has had a place for it in time: another one is made in the next subset of WorkloadSpread {}",
                spec.name
            );
            self.context.events.normal(&pod.reference(), "SubsetUnschedulable", &message);
        }
        Ok(is_done)
    }
}

fn annotations(metadata: &mut Map<String, Value>) -> &mut Map<String, Value> {
    let member = metadata.entry("annotations").or_insert_with(|| json!({}));
    match member {
        Value::Object(annotations) => annotations,
        _ => unreachable!("labels and annotations of a patch are objects"),
    }
}
