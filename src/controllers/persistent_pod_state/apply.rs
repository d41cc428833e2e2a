//! Carries out what was decided: the status, generated objects, evictions.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Resource,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::{BY_TARGET, Controller, TargetOf};
use crate::{
    api::apps::persistent_pod_state::{PersistentPodState, PersistentPodStateStatus},
    controllers::lock,
    domain::{
        kinds::persistent_pod_state::{
            generate::{self, Generation},
            plan::StatePlan,
            restore,
        },
        workload::{owner::OwnerRef, target::target_key},
    },
    k8s::{pod::PodView, time::Now},
    runtime::{
        apply::{code, is_refusal, said},
        events::reference,
        pass::{AFTER_CONFLICT, Pass},
        status_writer::{Outcome, json_of},
        stored,
        watches::{ObjectKey, Store},
    },
};

/// A Pod that is older and still waits for a node is looked at: most Pods wait for a moment.
const WAITS_AFTER: Duration = Duration::from_secs(5);
/// After an eviction that was refused.
const AFTER_REFUSED: Duration = Duration::from_secs(2);

impl Controller {
    /// Writes the status. True: it is written, or there was nothing to write.
    pub(super) async fn record(
        &self,
        state: &PersistentPodState,
        status: &PersistentPodStateStatus,
        plan: Option<&StatePlan>,
        now: Now,
        pass: &mut Pass,
    ) -> kube::Result<bool> {
        let key = ObjectKey::of(state);
        let is_news = state.status.as_ref().is_none_or(|before| {
            before.observed_generation != status.observed_generation || before.conditions != status.conditions
        });
        let can_wait = !is_news && plan.is_none_or(|plan| plan.cleared.is_empty());
        let (before, wanted) = (json_of(state.status.as_ref())?, json_of(Some(status))?);
        let api = self.api(&key.namespace);
        let outcome = self.status.write((&api, &self.states), state, (&before, &wanted), can_wait, now).await?;
        pass.look_after(outcome.look_after());
        if let (Outcome::Written(_), Some(plan)) = (&outcome, plan) {
            for (pod, node, why) in &plan.cleared {
                self.metrics.cleared(*why);
                let message = format!("Pod {pod} is not held to its place any more: node {node} ({})", why.label());
                tracing::info!(state = %key, pod, node, why = why.label(), "a place is cleared");
                self.context.events.normal(&reference(state), "PlaceCleared", &message);
            }
        }
        Ok(matches!(outcome, Outcome::Written(_) | Outcome::Unchanged))
    }

    /// Evicts Pods that wait for a node that is not recorded any more, so that others are made in their place.
    pub(super) async fn set_free(
        &self,
        key: &ObjectKey,
        state: &PersistentPodState,
        plan: &StatePlan,
        now: Now,
        pass: &mut Pass,
    ) {
        let looked = self.memories.with(key, |memory| {
            memory.free.retain(|uid| plan.free.iter().any(|(_, known)| known == uid));
            memory.free.clone()
        });
        let looked = looked.unwrap_or_default();
        for (name, uid) in plan.free.iter().filter(|(_, uid)| !looked.contains(uid)) {
            let pod = self.context.pods.get(&ObjectKey::new(&key.namespace, name)).filter(|pod| pod.uid() == uid);
            let Some(pod) = pod else { continue };
            let age = pod.created.map_or(WAITS_AFTER, |created| now.since(created));
            if age < WAITS_AFTER {
                pass.look_after(Some(WAITS_AFTER - age));
                continue;
            }
            match self.try_free(state, &pod).await {
                Ok(true) => drop(self.memories.with(key, |memory| memory.free.insert(uid.clone()))),
                Ok(false) => pass.look_after(Some(AFTER_REFUSED)),
                Err(error) => {
                    tracing::warn!(state = %key, pod = name, %error, "a Pod that waits for a lost node is not evicted yet");
                    pass.look_after(Some(AFTER_REFUSED));
                }
            }
        }
    }

    /// True: nothing more is to be done with this Pod.
    async fn try_free(&self, state: &PersistentPodState, pod: &PodView) -> kube::Result<bool> {
        let Some(live) = self.pods.read(pod).await? else { return Ok(true) };
        if !restore::is_held(&live, state) {
            return Ok(true);
        }
        let is_done = self.pods.evict(pod, &live["metadata"]["resourceVersion"]).await?;
        if is_done {
            self.metrics.evicted.inc();
            let message = "evicted because it waits for a node that is lost: another one is made without it";
            self.context.events.normal(&pod.reference(), "PlaceLost", message);
        }
        Ok(is_done)
    }

    /// Makes, changes and deletes what annotations of the StatefulSets of this name ask for.
    pub(super) async fn generate(&self, key: &ObjectKey, pass: &mut Pass) {
        self.generate_for(key, &self.built_in, pass).await;
        self.generate_for(key, &self.ours, pass).await;
    }

    async fn generate_for<K: Resource<DynamicType = ()>>(
        &self,
        key: &ObjectKey,
        targets: &Store<TargetOf<K>>,
        pass: &mut Pass,
    ) {
        let Some(target) = targets.get(key).filter(|target| !target.is_going()) else { return };
        let owner = target.owner();
        let text = target_key(&owner.namespace, (owner.group(), &owner.kind, &owner.name));
        let existing = self.states.get(key);
        let others = self.states.by_index(&BY_TARGET, &text);
        let is_other = |state: &&Arc<PersistentPodState>| {
            state.metadata.name != target.meta().name && state.metadata.deletion_timestamp.is_none()
        };
        let other = others.iter().find(is_other).and_then(|state| state.metadata.name.as_deref());
        let generation = generate::generate(&owner, &target.annotations(), existing.as_deref(), other);
        if let Generation::Refused(why) = &generation {
            self.refuse(&text, &owner.reference(), why);
        } else if let Err(error) = self.carry_out(&owner, existing.as_deref(), generation, pass).await {
            if is_refusal(&error) {
                self.refuse(&text, &owner.reference(), &said(&error));
            }
            pass.note(Err(error));
        } else {
            lock(&self.said).remove(&text);
        }
    }

    async fn carry_out(
        &self,
        owner: &OwnerRef,
        existing: Option<&PersistentPodState>,
        generation: Generation,
        pass: &mut Pass,
    ) -> kube::Result<()> {
        let api = self.api(&owner.namespace);
        match (generation, existing) {
            (Generation::Create(new), _) => match api.create(&PostParams::default(), &new).await {
                Ok(made) => {
                    tracing::info!(namespace = owner.namespace, name = owner.name, "made a PersistentPodState");
                    self.states.upsert(made);
                    pass.look_after(Some(Duration::ZERO));
                }
                // By a process before this one, or somebody else: the watch has not brought it yet.
                Err(error) if code(&error) == Some(409) => {
                    if let Some(there) = api.get_opt(&owner.name).await? {
                        self.states.upsert(there);
                    }
                    pass.look_after(Some(AFTER_CONFLICT));
                }
                Err(error) => return Err(error),
            },
            (Generation::Replace(spec), Some(existing)) => {
                let meta = &existing.metadata;
                let patch =
                    json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "spec": spec});
                match api.patch(&owner.name, &PatchParams::default(), &Patch::Merge(patch)).await {
                    Ok(newer) => drop(self.states.upsert(newer)),
                    Err(error) => {
                        if !stored::correct(&api, &self.states, existing, &error).await? {
                            return Err(error);
                        }
                        pass.look_after(Some(AFTER_CONFLICT));
                    }
                }
            }
            (Generation::Delete, Some(existing)) => {
                if stored::delete(&api, &self.states, existing).await? {
                    tracing::info!(namespace = owner.namespace, name = owner.name, "deleted a PersistentPodState");
                } else {
                    // It had changed, and has been read again.
                    pass.look_after(Some(AFTER_CONFLICT));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Says once that what the annotations of a StatefulSet ask for cannot be made.
    fn refuse(&self, target: &str, about: &ObjectReference, why: &str) {
        if lock(&self.said).insert(target.to_owned(), why.to_owned()).as_deref() != Some(why) {
            tracing::warn!(of = target, why, "no PersistentPodState is generated");
            self.context.events.warning(about, "PersistentPodStateRefused", why);
        }
    }
}
