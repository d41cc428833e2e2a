//! PersistentPodState: records where the Pods of StatefulSets run. What a new Pod gets of it, the webhook for Pods writes.
//!
//! - Owns: the status of PersistentPodStates; those that annotations of StatefulSets ask for; evicts Pods that wait for a node
//!   that is lost.
//! - Watches: PersistentPodStates, StatefulSets of both kinds, Pods, Nodes.
//! - Never: touches a PersistentPodState that somebody else has made, but for its status; writes to a Pod.
//!
//! The rules are [`crate::domain::kinds::persistent_pod_state`].

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet as BuiltInStatefulSet;
use kube::{Api, Resource, runtime::watcher::Config};

use super::{Context, Registration, Runner, Started, handling, lock};
use crate::{
    api::{
        apps::{self, persistent_pod_state::PersistentPodState, stateful_set::StatefulSet},
        feature_gates::gate,
    },
    domain::{
        kinds::persistent_pod_state::{
            plan::{self, Hindrance, StateTargetView},
            restore,
            spec::{StateSpec, annotation_keys, is_stateful_set, named_target},
        },
        workload::target::target_key,
    },
    k8s::{invalid::Invalid, node::NodeView, pod::PodView, rbac::Rule, time::Sighting},
    runtime::{
        clock,
        pass::{Memories, Pass},
        pod_control::PodControl,
        queue::{Backoff, Queue, Requeue},
        shutdown::Shutdown,
        status_writer::StatusWriter,
        watches::{Change, ObjectKey, Store, StoreIndex},
    },
};

mod apply;
mod custom;
mod metrics;
mod observe;
mod target;

use custom::KnownKinds;
use metrics::Metrics;
use target::TargetOf;

/// Its line in the table.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: Some("persistentpodstates.apps.kruise.io"),
    gate: None,
    rules: &[
        Rule::new(&[apps::GROUP], &["persistentpodstates"], &["get", "list", "watch", "create", "patch", "delete"]),
        Rule::new(&[apps::GROUP], &["persistentpodstates/status"], &["patch"]),
        Rule::new(&["apps", apps::GROUP], &["statefulsets"], &["list", "watch"]),
        Rule::new(&[""], &["pods"], &["get", "list", "watch"]),
        Rule::new(&[""], &["pods/eviction"], &["create"]),
    ],
    workers_flag: Some("persistentpodstate-workers"),
    workers: 3,
    start,
};

const NAME: &str = "persistentpodstate-controller";
/// Changes of Pods that come one after another are looked at together.
const POD_PAUSE: Duration = Duration::from_millis(100);

/// PersistentPodStates by their target.
const BY_TARGET: StoreIndex<PersistentPodState> = StoreIndex::new("target", |state| {
    let namespace = state.metadata.namespace.as_deref().unwrap_or_default();
    named_target(&state.spec).ok().map(|target| target.key(namespace))
});

/// PersistentPodStates by the nodes in their records; those of nodes that are gone are under the empty name.
const BY_NODE: StoreIndex<PersistentPodState> = StoreIndex::of_several("node", |state| {
    let states = state.status.iter().flat_map(|status| status.pod_states.values());
    states.map(|state| state.node_name.clone()).collect::<BTreeSet<_>>().into_iter().collect()
});

struct Controller {
    context: Context,
    states: Arc<Store<PersistentPodState>>,
    built_in: Arc<Store<TargetOf<BuiltInStatefulSet>>>,
    ours: Arc<Store<TargetOf<StatefulSet>>>,
    queue: Arc<Queue<ObjectKey>>,
    memories: Memories<StateMemory>,
    /// The last event about annotations of a StatefulSet that cannot be followed, by the key of the StatefulSet.
    said: Mutex<HashMap<String, String>>,
    known_kinds: KnownKinds,
    pods: PodControl,
    status: StatusWriter,
    metrics: Arc<Metrics>,
}

/// Annotations of a Pod, with its version and the keys that were asked for.
type KnownNotes = (String, BTreeSet<String>, BTreeMap<String, String>);

/// What is remembered of a PersistentPodState. Everything can be lost.
#[derive(Default)]
struct StateMemory {
    /// By the UID of the Pod.
    notes: HashMap<String, KnownNotes>,
    /// Since when nodes are not Ready, by name, with the time that the node says.
    away: HashMap<String, (Option<Timestamp>, Sighting)>,
    /// UIDs of waiting Pods that nothing of ours holds.
    free: HashSet<String>,
}

fn start(context: &Context, workers: usize, shutdown: Shutdown) -> Started {
    let controller = Arc::new(Controller::new(context));
    let on_pod = handling(&controller, Controller::pod_changed);
    let on_node = handling(&controller, Controller::node_changed);
    Started::new(controller.run(workers, shutdown)).on_pod(on_pod).on_node(on_node)
}

impl Controller {
    fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            states: Store::new([BY_TARGET, BY_NODE]),
            built_in: Store::new(None),
            ours: Store::new(None),
            queue: Queue::new(Backoff::default()),
            memories: Memories::default(),
            said: Mutex::default(),
            known_kinds: KnownKinds::default(),
            pods: PodControl::new(context.client.clone(), context.pods.clone(), context.events.clone()),
            status: StatusWriter::default(),
            metrics: Metrics::new(context),
        }
    }

    async fn run(self: Arc<Self>, workers: usize, shutdown: Shutdown) {
        let (on_state, on_built_in, on_ours, this) = (self.clone(), self.clone(), self.clone(), self.clone());
        let reconcile = move |key: ObjectKey| {
            let this = this.clone();
            async move { this.reconcile(&key).await }
        };
        let runner = Runner::new(&self.context, NAME, shutdown)
            .watch_guarded(self.context.api(), Config::default(), &self.states, move |change| {
                on_state.state_changed(&change);
            })
            .watch_guarded(self.context.api(), Config::default(), &self.built_in, move |change| {
                on_built_in.target_changed(&change);
            })
            .watch_guarded(self.context.api(), Config::default(), &self.ours, move |change| {
                on_ours.target_changed(&change);
            })
            .following(&self.context.pods)
            .following(self.context.nodes.store());
        runner.run(self.queue.clone(), workers, reconcile).await;
    }

    fn api(&self, namespace: &str) -> Api<PersistentPodState> {
        Api::namespaced(self.context.client.clone(), namespace)
    }

    fn state_changed(&self, change: &Change<'_, PersistentPodState>) {
        match change {
            Change::Applied { new, .. } => self.queue.add(ObjectKey::of(new.as_ref())),
            Change::Deleted(old) => {
                let key = ObjectKey::of(old.as_ref());
                self.memories.forget(&key);
                // Its target may ask for another one, and another one may have waited for it to go.
                if let Ok(target) = named_target(&old.spec) {
                    self.queue.add(ObjectKey::new(&key.namespace, target.name));
                    self.add_for(&target.key(&key.namespace));
                }
            }
            Change::Undecodable { key, error } => {
                tracing::error!(state = %key, error, "this PersistentPodState cannot be read and is left alone");
            }
        }
    }

    fn target_changed<K: Resource<DynamicType = ()>>(&self, change: &Change<'_, TargetOf<K>>) {
        let (key, is_gone) = match change {
            Change::Applied { old, new, .. } if old.is_some_and(|old| old.is_same_but_version(new)) => return,
            Change::Applied { new, .. } => (ObjectKey::of(new.as_ref()), false),
            Change::Deleted(old) => (ObjectKey::of(old.as_ref()), true),
            Change::Undecodable { key, error } => {
                tracing::error!(kind = %K::kind(&()), key = %key, error, "this object cannot be read");
                ((*key).clone(), false)
            }
        };
        let text = target_key(&key.namespace, (&K::group(&()), &K::kind(&()), &key.name));
        if is_gone {
            lock(&self.said).remove(&text);
        }
        self.add_for(&text);
        // One may be asked for under its name.
        self.queue.add(key);
    }

    fn pod_changed(&self, change: &Change<'_, PodView>) {
        if self.states.is_empty() {
            return;
        }
        let (old, new) = match change {
            Change::Applied { old, new, .. } => (*old, *new),
            Change::Deleted(old) => (None, *old),
            Change::Undecodable { .. } => return,
        };
        let facts = |pod: &PodView| {
            // Another target may have adopted it.
            let owner = pod.controller.as_deref().map(|owner| owner.uid.clone());
            (pod.uid().to_owned(), owner, is_ready(pod), pod.is_deleting(), pod.is_finished(), pod.node_name.clone())
        };
        let Some(owner) = new.controller.as_deref() else { return };
        let text = target_key(new.namespace(), (crate::api::group_of(&owner.api_version), &owner.kind, &owner.name));
        let is_same = old.is_some_and(|old| facts(old) == facts(new));
        for state in self.states.by_index(&BY_TARGET, &text) {
            // Annotations may have changed, which the store does not hold.
            if !is_same || (is_ready(new) && annotation_keys(&state.spec).next().is_some()) {
                self.queue.add_after(ObjectKey::of(state.as_ref()), POD_PAUSE);
            }
        }
    }

    fn node_changed(&self, change: &Change<'_, NodeView>) {
        let states = match change {
            // It may have been the last one with its labels.
            Change::Applied { old: Some(old), new, .. } if old.labels != new.labels => self.states.list(),
            Change::Deleted(_) => self.states.list(),
            Change::Applied { old: Some(old), new, .. } if old.ready != new.ready => {
                self.states.by_index(&BY_NODE, new.name())
            }
            Change::Applied { .. } | Change::Undecodable { .. } => return,
        };
        for state in states {
            self.queue.add(ObjectKey::of(state.as_ref()));
        }
    }

    /// Has those looked at that are for a target.
    fn add_for(&self, target: &str) {
        for state in self.states.by_index(&BY_TARGET, target) {
            self.queue.add(ObjectKey::of(state.as_ref()));
        }
    }

    async fn reconcile(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let mut pass = Pass::default();
        self.generate(key, &mut pass).await;
        if let Some(state) = self.states.get(key).filter(|state| state.metadata.deletion_timestamp.is_none()) {
            self.keep(&state, &mut pass).await?;
        }
        pass.end(|after| self.queue.add_after(key.clone(), after))
    }

    /// Records what is to be recorded, and clears the rest.
    async fn keep(&self, state: &Arc<PersistentPodState>, pass: &mut Pass) -> kube::Result<()> {
        let now = clock::now();
        let key = ObjectKey::of(state.as_ref());
        self.memories.enter(&key, state.metadata.uid.as_deref().unwrap_or_default());
        let (mut before, generation) = (state.status.clone().unwrap_or_default(), state.metadata.generation);
        let (spec, target) = match self.resolve(&key, state, pass).await? {
            Ok(resolved) => resolved,
            Err(hindrance) => {
                let spec = StateSpec::of(state).ok();
                let status = plan::status(spec.as_ref(), Err(&hindrance), &before, generation, now.wall);
                self.record(state, &status, None, now, pass).await?;
                return Ok(());
            }
        };
        plan::forget_another(&mut before, target.as_ref());
        let facts = self.observe(&key, &spec, target, &before.pod_states, now).await;
        let plan = plan::plan(&spec, &before.pod_states, &facts);
        pass.look_after(plan.look_after);
        if !plan.unread.is_empty() {
            pass.look_after(Some(AFTER_UNREAD));
        }
        let status = plan::status(Some(&spec), Ok((&plan, &facts)), &before, generation, now.wall);
        if self.record(state, &status, Some(&plan), now, pass).await? {
            self.set_free(&key, state, &plan, now, pass).await;
        }
        Ok(())
    }

    /// The spec, and the target if there is one.
    async fn resolve(
        &self,
        key: &ObjectKey,
        state: &PersistentPodState,
        pass: &mut Pass,
    ) -> kube::Result<Result<(StateSpec, Option<StateTargetView>), Hindrance>> {
        let spec = match StateSpec::of(state) {
            Ok(spec) => spec,
            Err(Invalid(why)) => return Ok(Err(Hindrance::Invalid(why))),
        };
        let others = self.states.by_index(&BY_TARGET, &spec.target_ref().key(&key.namespace));
        if let Some(by) = restore::before(state, &others) {
            return Ok(Err(Hindrance::Taken(by)));
        }
        let target_key = ObjectKey::new(&key.namespace, &spec.name);
        let target = if !is_stateful_set(&spec.group, &spec.kind) {
            // Nobody watches it.
            pass.look_after(Some(AFTER_CUSTOM));
            match self.custom_target(key, spec.target_ref()).await? {
                Ok(target) => Ok(target),
                Err(hindrance) => return Ok(Err(hindrance)),
            }
        } else if spec.group == apps::GROUP {
            let has_start = self.context.gates.enabled(gate::START_ORDINAL);
            self.ours.get(&target_key).map(|target| target.view(has_start)).transpose()
        } else {
            self.built_in.get(&target_key).map(|target| target.view(true)).transpose()
        };
        Ok(match target {
            Ok(target) => Ok((spec, target)),
            Err(Invalid(why)) => Err(Hindrance::Unreadable(format!("{} {}: {why}", spec.kind, spec.name))),
        })
    }
}

/// After something could not be read.
const AFTER_UNREAD: Duration = Duration::from_secs(2);
/// Between two looks at a target that is not watched.
const AFTER_CUSTOM: Duration = Duration::from_secs(60);

fn is_ready(pod: &PodView) -> bool {
    pod.condition_is_true("Ready")
}

#[cfg(test)]
mod tests;
