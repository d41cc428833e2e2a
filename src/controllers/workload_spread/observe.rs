//! The Pods of a target, and where each of them belongs.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream};
use serde_json::{Map, Value};

use super::{BY_SPREAD, Controller, SetOpen, SetsSeen, SpreadMemory, Unread, spread_text, target::SpreadTargetView};
use crate::{
    api::apps::workload_spread::{WorkloadSpread, WorkloadSpreadStatus},
    controllers::{BY_CONTROLLER, owned_text},
    domain::kinds::workload_spread::{
        adopt::{self, Rooms},
        inject,
        matching::{self, Above},
        plan::{EntryKey, Home, SpreadPod, records},
        spec::{SpreadSpec, TargetKind},
    },
    k8s::{
        node::NodeView,
        pod::PodView,
        time::{Now, Sighting},
    },
    runtime::{
        events::reference,
        object::{self, Found},
        pass::Pass,
        queue::Backoff,
        watches::{ObjectKey, StoreIndex},
    },
};

/// Reads at a time, and in one pass.
const AT_ONCE: usize = 8;
pub(super) const MOST_READ: usize = 500;
/// After a Pod or its node could not be read.
const AFTER_UNREAD: Backoff = Backoff { base: Duration::from_secs(2), max: Duration::from_secs(60) };
/// Between two looks at a ReplicaSet that the Deployment selects and does not control.
const AFTER_FOREIGN: Duration = Duration::from_secs(30);

/// A Pod that gets the note of a subset.
#[derive(Clone, Debug)]
pub(super) struct Assigned {
    pub(super) pod: Arc<PodView>,
    pub(super) subset: usize,
    /// Labels and annotations of the patch.
    pub(super) metadata: Map<String, Value>,
}

impl Controller {
    /// The Pods that a WorkloadSpread is for, and those of them that are to be noted.
    pub(super) async fn observe(
        &self,
        key: &ObjectKey,
        spread: &WorkloadSpread,
        spec: &SpreadSpec,
        target: &SpreadTargetView,
        (now, pass): (Now, &mut Pass),
    ) -> kube::Result<(Vec<SpreadPod>, Vec<Assigned>)> {
        let mut pods = self.pods_of(key, spec, target, (now, &mut *pass)).await?;
        pods.sort_by(|a, b| (a.created, a.name()).cmp(&(b.created, b.name())));
        let mut known: Vec<SpreadPod> = Vec::with_capacity(pods.len());
        let mut unknown = Vec::new();
        let before = self.standing_before(key, spread);
        for pod in pods.into_iter().filter(|pod| !is_of_other(&before, spec, target, pod)) {
            match noted_home(spec, &pod) {
                Some(home) => known.push(SpreadPod { pod, home }),
                None => unknown.push(pod),
            }
        }
        let uids: HashSet<&str> = unknown.iter().map(|pod| pod.uid()).collect();
        self.memories.with(key, |memory| {
            memory.verdicts.retain(|uid, _| uids.contains(uid.as_str()));
            memory.unread.retain(|uid, _| uids.contains(uid.as_str()));
        });
        drop(uids);
        let mut rooms = Rooms::new(spec, target.total, (&known, &unknown), spread.status.as_ref());
        let mut read = self.read_missed(key, spread, &unknown, (now, pass)).await;
        let mut assigned = Vec::new();
        for pod in unknown {
            let home = match (self.verdict(key, spread, &pod), read.remove(pod.uid())) {
                (Some(home), _) if pod.is_active() => home,
                (None, Some((whole, node))) => {
                    let found = adopt::subset_of(spec, &whole, &node, &rooms.of(&pod)).map(Home::Subset);
                    found.unwrap_or_else(|| self.remember_nowhere(key, spread, &pod))
                }
                (Some(_), _) | (None, None) => Home::Unknown,
            };
            rooms.take(&pod, home);
            if let Home::Subset(subset) = home {
                // One that had the note of another before has had its patch.
                let is_new = spec.patches_missed && pod.rare().spread.is_none();
                let patch = spec.subsets[subset].patch.as_ref().filter(|_| is_new);
                let metadata = inject::metadata(patch, pod.is_owned_by_kruise());
                assigned.push(Assigned { pod: pod.clone(), subset, metadata });
            }
            known.push(SpreadPod { pod, home });
        }
        Ok((known, assigned))
    }

    /// The Pods that have its note, while it is not known which Pods are those of the target.
    pub(super) fn noted(&self, key: &ObjectKey, spec: &SpreadSpec) -> Vec<SpreadPod> {
        let mut pods = self.context.pods.by_index(&BY_SPREAD, &spread_text(&key.namespace, &spec.name));
        let is_meant = |pod: &PodView| spec.filter.as_ref().is_none_or(|filter| filter.matches(&pod.labels));
        pods.retain(|pod| pod.controller.is_some() && is_meant(pod));
        let of = |pod: Arc<PodView>| noted_home(spec, &pod).map(|home| SpreadPod { pod, home });
        pods.into_iter().filter_map(of).collect()
    }

    /// Those of its namespace that stand before it, sorted by age.
    fn standing_before(&self, key: &ObjectKey, spread: &WorkloadSpread) -> Vec<Arc<WorkloadSpread>> {
        let others = self.spreads.by_index(&StoreIndex::namespace(), &key.namespace);
        let mut before: Vec<_> = others.iter().map(|other| other.outline().clone()).collect();
        before.retain(|other| matching::stands_before(other, spread));
        matching::by_age(&mut before);
        before
    }

    async fn pods_of(
        &self,
        key: &ObjectKey,
        spec: &SpreadSpec,
        target: &SpreadTargetView,
        (now, pass): (Now, &mut Pass),
    ) -> kube::Result<Vec<Arc<PodView>>> {
        let store = &self.context.pods;
        let owned = |uid: &str| store.by_index(&BY_CONTROLLER, &owned_text(&key.namespace, uid));
        let mut pods = match spec.target_kind {
            TargetKind::Deployment => {
                let sets = self.replica_sets(key, target, (now, pass)).await?;
                sets.iter().flat_map(|uid| owned(uid)).collect()
            }
            TargetKind::Custom => {
                // Between them and their Pods there may be other objects: the webhook has noted where the Pods belong.
                let mut pods = owned(&target.uid);
                pods.extend(store.by_index(&BY_SPREAD, &spread_text(&key.namespace, &spec.name)));
                pods
            }
            _ => owned(&target.uid),
        };
        let mut seen = HashSet::new();
        pods.retain(|pod| {
            spec.filter.as_ref().is_none_or(|filter| filter.matches(&pod.labels)) && seen.insert(pod.uid().to_owned())
        });
        Ok(pods)
    }

    /// The UIDs of the ReplicaSets that a Deployment controls, of those that have Pods. Each one is read once; one with Pods
    /// that the Deployment selects and that is not its own may still be adopted.
    ///
    /// # Errors
    /// One of them cannot be read: without it Pods would be counted as gone.
    async fn replica_sets(
        &self,
        key: &ObjectKey,
        target: &SpreadTargetView,
        (now, pass): (Now, &mut Pass),
    ) -> kube::Result<BTreeSet<String>> {
        let is_known =
            |memory: &mut SpreadMemory| memory.sets.as_ref().is_some_and(|sets| sets.deployment == target.uid);
        if !self.memories.with(key, is_known).unwrap_or_default() {
            // Before the Pods are looked through: those that come meanwhile are noticed too.
            let (deployment, selector) = (target.uid.clone(), target.selector.clone());
            let sets = SetsSeen { deployment, selector, ..SetsSeen::default() };
            self.memories.with(key, |memory| memory.sets = Some(sets));
            let pods = self.context.pods.select(|pod| pod.namespace() == &*key.namespace);
            self.memories.with(key, |memory| {
                let Some(sets) = &mut memory.sets else { return };
                for pod in &pods {
                    sets.notice(pod);
                }
            });
        }
        let open = |memory: &mut SpreadMemory| memory.sets.as_ref().map(|sets| sets.open.clone());
        let open = self.memories.with(key, open).flatten().unwrap_or_default();
        for (uid, SetOpen { name, not_before }) in open {
            let left = not_before.saturating_sub(now.mono);
            if !left.is_zero() {
                pass.look_after(Some(left));
                continue;
            }
            let read = object::read(&self.context.client, &key.namespace, ("apps/v1", "ReplicaSet", &name)).await?;
            let set = match read {
                Found::Object(set) if set.pointer("/metadata/uid").and_then(Value::as_str) == Some(&uid) => Some(set),
                _ => None,
            };
            let owner = set.as_ref().and_then(Above::of);
            self.memories.with(key, |memory| {
                let Some(sets) = &mut memory.sets else { return };
                match owner {
                    Some(owner) if owner.uid == target.uid => drop(sets.own.insert(uid.clone())),
                    _ if set.is_some() => {
                        let not_before = now.mono + AFTER_FOREIGN;
                        sets.open.insert(uid, SetOpen { name, not_before });
                        return;
                    }
                    // Its Pods are nobody's, and will be gone or get another controller.
                    _ => {}
                }
                sets.open.remove(&uid);
            });
        }
        let sets =
            self.memories.with(key, |memory| memory.sets.as_ref().map(|sets| (sets.own.clone(), sets.open.len())));
        let (own, open) = sets.flatten().unwrap_or_default();
        pass.look_after((open > 0).then_some(AFTER_FOREIGN));
        Ok(own)
    }

    /// Reads the Pods whose subset is not known, and their nodes, a few at a time; by UID.
    async fn read_missed(
        &self,
        key: &ObjectKey,
        spread: &WorkloadSpread,
        pods: &[Arc<PodView>],
        (now, pass): (Now, &mut Pass),
    ) -> HashMap<String, (Value, Arc<NodeView>)> {
        let is_open = |pod: &&Arc<PodView>| {
            !pod.node_name.is_empty() && pod.is_active() && self.verdict(key, spread, pod).is_none()
        };
        let mut open: Vec<Arc<PodView>> = pods.iter().filter(is_open).cloned().collect();
        let put_off = self.memories.with(key, |memory| memory.unread.clone()).unwrap_or_default();
        open.retain(|pod| {
            let left = put_off.get(pod.uid()).map(|unread| unread.not_before.saturating_sub(now.mono));
            let left = left.filter(|left| !left.is_zero());
            pass.look_after(left);
            left.is_none()
        });
        // What is read now is found out or put off: the others get their turn.
        pass.again |= open.len() > MOST_READ;
        let reads = open.into_iter().take(MOST_READ).map(|pod| async move {
            let read = async { Ok((self.pods.read(&pod).await?, self.context.nodes.find(&pod.node_name).await?)) };
            let read: kube::Result<_> = read.await;
            (pod, read)
        });
        let mut reads = stream::iter(reads).buffer_unordered(AT_ONCE);
        let mut found = HashMap::new();
        while let Some((pod, read)) = reads.next().await {
            match read {
                Ok((Some(whole), Some(node))) => {
                    found.insert(pod.uid().to_owned(), (whole, node));
                    continue;
                }
                // One of them is on its way out.
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(spread = %key, pod = pod.name(), %error, "where a Pod belongs is not known yet");
                }
            }
            let failures = put_off.get(pod.uid()).map_or(0, |unread| unread.failures);
            let wait = AFTER_UNREAD.delay(failures);
            let unread = Unread { failures: failures.saturating_add(1), not_before: now.mono + wait };
            self.memories.with(key, |memory| memory.unread.insert(pod.uid().to_owned(), unread));
            pass.look_after(Some(wait));
        }
        found
    }

    /// Where a Pod without a note belongs, if that has been found before.
    fn verdict(&self, key: &ObjectKey, spread: &WorkloadSpread, pod: &PodView) -> Option<Home> {
        let generation = spread.metadata.generation.unwrap_or_default();
        let found = self.memories.with(key, |memory| memory.verdicts.get(pod.uid()).copied()).flatten();
        found.filter(|(of, _)| *of == generation).map(|(_, home)| home)
    }

    /// Says once that a Pod without a note belongs to no subset, and remembers it.
    fn remember_nowhere(&self, key: &ObjectKey, spread: &WorkloadSpread, pod: &PodView) -> Home {
        let node = pod.node_name.as_str();
        tracing::info!(spread = %key, pod = pod.name(), node, "a Pod is in no subset: none fits its node");
        let message = format!("Pod {} is in no subset: none fits its node {node}", pod.name());
        self.context.events.warning(&reference(spread), "PodNotSpread", &message);
        let generation = spread.metadata.generation.unwrap_or_default();
        self.memories.with(key, |memory| memory.verdicts.insert(pod.uid().to_owned(), (generation, Home::Nowhere)));
        Home::Nowhere
    }

    /// Remembers where Pods belong that are counted there in the status. Before that the webhook may have given the room that
    /// was seen to another Pod.
    pub(super) fn remember(&self, key: &ObjectKey, spread: &WorkloadSpread, assigned: &[Assigned]) {
        let generation = spread.metadata.generation.unwrap_or_default();
        self.memories.with(key, |memory| {
            let homes = assigned.iter().map(|one| (one.pod.uid().to_owned(), (generation, Home::Subset(one.subset))));
            memory.verdicts.extend(homes);
        });
    }

    /// The ages of the records of Pods on their way, since this process saw them appear. For those that were there before it
    /// looked for the first time, only the clock of the process that wrote them tells.
    pub(super) fn ages(
        &self,
        key: &ObjectKey,
        status: &WorkloadSpreadStatus,
        now: Now,
    ) -> BTreeMap<EntryKey, Duration> {
        let ages = self.memories.with(key, |memory| {
            let mut known = memory.records.take();
            let is_first = known.is_none();
            let mut sightings = HashMap::new();
            for (entry, since) in records(status) {
                // A namesake has a record of its own.
                let known = known.as_mut().and_then(|known| known.remove(&entry)).filter(|(of, _)| *of == since);
                let new = || if is_first { Sighting::found(now, since) } else { Sighting::live(now) };
                sightings.insert(entry, (since, known.map_or_else(new, |(_, seen)| seen)));
            }
            let ages = sightings.iter().map(|(entry, (_, seen))| (entry.clone(), seen.age(now))).collect();
            memory.records = Some(sightings);
            ages
        });
        ages.unwrap_or_default()
    }
}

/// Where the note of a Pod says that it belongs. None: it has no note of this one.
fn noted_home(spec: &SpreadSpec, pod: &PodView) -> Option<Home> {
    let note = pod.rare().spread.as_deref().filter(|note| note.name == *spec.name)?;
    Some(spec.position(&note.subset).map_or(Home::Nowhere, Home::Subset))
}

/// Whether a Pod is for another one, which stands before this one. What is above the target and its controller only the
/// webhook has followed: what it has noted holds.
fn is_of_other(before: &[Arc<WorkloadSpread>], spec: &SpreadSpec, target: &SpreadTargetView, pod: &PodView) -> bool {
    if before.is_empty() {
        return false;
    }
    let own = Above {
        api_version: spec.api_version.clone(),
        kind: spec.kind.clone(),
        name: spec.target.clone(),
        uid: target.uid.clone(),
    };
    let chain: Vec<Above> =
        pod.controller.as_deref().map(Above::of_pod).into_iter().chain([own]).chain(target.above.clone()).collect();
    let is_noted = |other: &Arc<WorkloadSpread>| {
        TargetKind::of_target(other) == Some(TargetKind::Custom)
            && pod.rare().spread.as_deref().is_some_and(|note| other.metadata.name.as_deref() == Some(&note.name))
            && matching::selects(other, &pod.labels)
    };
    matching::choose(before, &chain, &pod.labels).is_some() || before.iter().any(is_noted)
}

impl SetsSeen {
    /// Whether the ReplicaSet of a Pod may be one of the Deployment.
    fn may_have(&self, pod: &PodView) -> bool {
        let is_of_set = pod.controller.as_deref().is_some_and(|owner| owner.is("apps", "ReplicaSet"));
        is_of_set && self.selector.as_ref().is_none_or(|selector| selector.matches(&pod.labels))
    }

    /// Notes the ReplicaSet of a Pod. Whether it is one of the Deployment, or was not known.
    pub(super) fn notice(&mut self, pod: &PodView) -> bool {
        let Some(owner) = pod.controller.as_deref().filter(|_| self.may_have(pod)) else { return false };
        if self.own.contains(&owner.uid) {
            return true;
        }
        let is_new = !self.open.contains_key(&owner.uid);
        if is_new {
            let open = SetOpen { name: owner.name.clone(), not_before: Duration::ZERO };
            self.open.insert(owner.uid.clone(), open);
        }
        is_new
    }
}
