//! SidecarSets: Pods that have their containers get to another image in place, within the limits of their spec.
//!
//! - Owns: the images of injected containers, the annotations of SidecarSets on Pods, the ControllerRevisions of SidecarSets,
//!   in our own namespace, and the status of SidecarSets.
//! - Watches: SidecarSets, Namespaces, Pods, Nodes. A Pod is read in full before it is written; revisions are read when a
//!   spec is new.
//! - Never: creates or deletes a Pod, or changes anything of one into which the SidecarSet was not injected.
//!
//! One pass ([`Controller::reconcile`]) is: which Pods, the plan, which revision, one patch for each Pod, what to say in
//! status. The rules are in [`domain::sidecar_set`](crate::domain::kinds::sidecar_set).

mod apply;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, core::DeserializeGuard, runtime::watcher::Config};
use serde_json::{Map, Value};

use super::{Context, Registration, Runner, Started};
use crate::{
    api::{apps::sidecar_set::SidecarSet, labels},
    domain::kinds::sidecar_set::{
        matching::{self, Aim, Index, Match},
        plan,
        pod::{Judged, Seen},
        spec::Spec,
        status,
    },
    k8s::{
        invalid::Invalid,
        pod::{Labels, PodView},
        rbac::Rule,
    },
    runtime::{
        clock, lock,
        pass::Pass,
        pod_control::PodControl,
        queue::{Backoff, Queue, Requeue},
        revisions::Revisions,
        shutdown::Shutdown,
        status_writer::StatusWriter,
        wake,
        watches::{Change, ObjectKey, Store},
    },
};

/// Its line in the table.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: Some("sidecarsets.apps.kruise.io"),
    gate: None,
    rules: &[
        Rule::new(&["apps.kruise.io"], &["sidecarsets"], &["get", "list", "watch"]),
        Rule::new(&["apps.kruise.io"], &["sidecarsets/status"], &["patch"]),
        // To own objects with blockOwnerDeletion, where the API server checks that.
        Rule::new(&["apps.kruise.io"], &["sidecarsets/finalizers"], &["update"]),
        Rule::new(&["apps"], &["controllerrevisions"], &["get", "list", "create", "patch", "delete"]),
        Rule::new(&[""], &["namespaces"], &["list", "watch"]),
        Rule::new(&[""], &["pods"], &["get", "list", "watch", "patch"]),
    ],
    workers_flag: Some("sidecarset-workers"),
    workers: 3,
    start,
};

const NAME: &str = "sidecarset-controller";

struct Controller {
    context: Context,
    sets: Arc<Store<SidecarSet>>,
    namespaces: Arc<Store<Namespace>>,
    /// Which SidecarSets may be for a Pod, by name.
    index: Mutex<Index<Arc<str>>>,
    queue: Arc<Queue<ObjectKey>>,
    revisions: Revisions,
    pods: PodControl,
    status: StatusWriter,
}

/// The Pods of a SidecarSet.
#[derive(Default)]
struct Observed {
    /// Those that have its containers, by `NAMESPACE/NAME`.
    pods: BTreeMap<String, Arc<PodView>>,
    judged: Vec<Judged>,
    /// Those that are to have them and do not.
    uninjected: usize,
}

fn start(context: &Context, workers: usize, shutdown: Shutdown) -> Started {
    let controller = Arc::new(Controller::new(context));
    let on_pod = {
        let controller = controller.clone();
        move |change: &Change<'_, PodView>| controller.pod_changed(change)
    };
    Started::new(controller.run(workers, shutdown)).on_pod(on_pod)
}

/// What SidecarSets have noted on a Pod.
fn annotations(pod: &PodView) -> Map<String, Value> {
    let notes = pod.rare().sidecar_sets.iter().flat_map(|notes| notes.annotations.iter());
    notes.map(|(key, text)| ((*key).to_owned(), Value::from(&**text))).collect()
}

fn key_of(pod: &PodView) -> String {
    format!("{}/{}", pod.namespace(), pod.name())
}

impl Controller {
    fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            sets: Store::new(None),
            namespaces: Store::new(None),
            index: Mutex::default(),
            queue: Queue::new(Backoff::default()),
            revisions: Revisions::new(context.client.clone()),
            pods: PodControl::new(context.client.clone(), context.pods.clone(), context.events.clone()),
            status: StatusWriter::default(),
        }
    }

    async fn run(self: Arc<Self>, workers: usize, shutdown: Shutdown) {
        let (on_set, on_namespace, this) = (self.clone(), self.clone(), self.clone());
        let sets: Api<DeserializeGuard<SidecarSet>> = Api::all(self.context.client.clone());
        let namespaces: Api<Namespace> = Api::all(self.context.client.clone());
        let reconcile = move |key: ObjectKey| {
            let this = this.clone();
            async move { this.reconcile(&key).await }
        };
        let runner = Runner::new(&self.context, NAME, shutdown)
            .watch_guarded(sets, Config::default(), &self.sets, move |change| on_set.set_changed(&change))
            .watch(namespaces, Config::default(), &self.namespaces, move |change| {
                on_namespace.namespace_changed(&change)
            })
            .following(&self.context.pods)
            .following(self.context.nodes.store());
        runner.run(self.queue.clone(), workers, reconcile).await;
    }

    fn set_changed(&self, change: &Change<'_, SidecarSet>) {
        match change {
            Change::Applied { old, new, .. } => {
                let name: Arc<str> = new.metadata.name.as_deref().unwrap_or_default().into();
                let aim = serde_json::to_value(&new.spec).map_err(|error| Invalid(error.to_string()));
                match aim.and_then(|spec| Aim::of(&spec)) {
                    Ok(aim) => lock(&self.index).insert(&name, &aim),
                    Err(_) => lock(&self.index).remove(&name),
                }
                // Not for its status.
                let facts =
                    |set: &SidecarSet| (set.metadata.uid.clone(), set.metadata.generation, set.metadata.labels.clone());
                if old.is_none_or(|old| facts(old) != facts(new)) {
                    self.queue.add(ObjectKey::of(new.as_ref()));
                }
            }
            Change::Deleted(old) => lock(&self.index).remove(old.metadata.name.as_deref().unwrap_or_default()),
            Change::Undecodable { key, error } => {
                tracing::error!(set = %key, error, "this SidecarSet cannot be read and is left alone");
            }
        }
    }

    fn namespace_changed(&self, change: &Change<'_, Namespace>) {
        if let Change::Applied { old: Some(old), new, .. } = change
            && old.metadata.labels != new.metadata.labels
        {
            // Rare: whoever asks for labels of namespaces looks again.
            for set in self.sets.select(|set| set.spec.namespace_selector.is_some()) {
                self.queue.add(ObjectKey::of(set.as_ref()));
            }
        }
    }

    fn pod_changed(&self, change: &Change<'_, PodView>) {
        if self.sets.is_empty() {
            return;
        }
        let (old, new) = match change {
            Change::Applied { old, new, .. } => (*old, Some(*new)),
            Change::Deleted(old) => (Some(*old), None),
            Change::Undecodable { .. } => return,
        };
        if let (Some(old), Some(new)) = (old, new)
            && wake::is_same_but_version(old, new)
        {
            return;
        }
        // A pass looks at every Pod there is.
        let pause = wake::pause(self.context.pods.len());
        for name in [old, new].into_iter().flatten().flat_map(|pod| self.sets_of(pod)).collect::<BTreeSet<_>>() {
            match pause {
                Duration::ZERO => self.queue.add(ObjectKey::new("", &name)),
                pause => self.queue.add_after(ObjectKey::new("", &name), pause),
            }
        }
    }

    /// The SidecarSets that have to do with a Pod, as far as there are some.
    fn sets_of(&self, pod: &PodView) -> BTreeSet<String> {
        let notes = pod.rare().sidecar_sets.iter().flat_map(|notes| notes.annotations.iter());
        let mut injected = notes.filter(|(key, _)| *key == labels::SIDECAR_SETS_INJECTED).map(|(_, text)| &**text);
        let injected = injected
            .next()
            .unwrap_or_default()
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .map(str::to_owned);
        let selected = lock(&self.index).candidates(pod.namespace(), &pod.labels);
        let all = injected.chain(selected.iter().map(ToString::to_string));
        all.filter(|name| self.sets.get(&ObjectKey::new("", name)).is_some()).collect()
    }

    async fn reconcile(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let set = self.sets.get(key).filter(|set| set.metadata.deletion_timestamp.is_none());
        let Some(set) = set else { return Ok(Requeue::Await) };
        let now = clock::now();
        let object = serde_json::to_value(set.as_ref()).map_err(kube::Error::SerdeError)?;
        let before = set.status.clone().unwrap_or_default();
        let generation = set.metadata.generation.unwrap_or_default();
        let mut pass = Pass::default();
        let spec = match Spec::of(&object) {
            Ok(spec) => spec,
            Err(Invalid(why)) => {
                let wanted = status::invalid(&why, generation, &before, now.wall);
                pass.look_after(self.record(&set, &wanted).await?);
                return pass.end(|_| {});
            }
        };
        let observed = self.observe(&spec);
        let plan = plan::plan(&spec, &observed.judged);
        let (revision, collisions) = self.revision(&set, &spec, &observed).await?;
        let done = self.carry_out(&spec, &plan, &observed, &revision, &mut pass).await;
        // What has just been written is counted in the next pass, which follows at once.
        if !pass.again {
            let facts = status::Facts {
                generation,
                revision: &revision,
                collisions,
                uninjected: observed.uninjected,
                refused: done.refused,
                failed: done.failed,
            };
            let wanted = status::status(&plan, &facts, &before, now.wall);
            pass.look_after(self.record(&set, &wanted).await?);
        }
        pass.end(|after| self.queue.add_after(key.clone(), after))
    }

    /// Every Pod that the SidecarSet is for.
    fn observe(&self, spec: &Spec) -> Observed {
        let mut observed = Observed::default();
        let mut namespaces: HashMap<String, Option<Labels>> = HashMap::new();
        let own = &*self.context.namespace;
        let is_open = |pod: &PodView| !pod.is_deleting() && !pod.is_finished() && !pod.is_exempt_from_admission(own);
        for pod in self.context.pods.select(is_open) {
            let namespace = pod.namespace();
            let labels = namespaces.entry(namespace.to_owned()).or_insert_with(|| self.labels_of(namespace));
            let place = matching::Namespace { name: namespace, labels: labels.as_ref() };
            if spec.aim.fits(place, &pod.labels) != Match::Yes {
                continue;
            }
            let Ok(mut seen) = Seen::of(&pod, &annotations(&pod)) else {
                observed.uninjected += 1;
                continue;
            };
            if !seen.is_managed(spec) {
                observed.uninjected += usize::from(!seen.notes.injected.contains(&spec.name));
                continue;
            }
            let images = pod.rare().sidecar_sets.iter().flat_map(|notes| notes.running_images.iter());
            seen.running = images.map(|(name, image)| (name.as_str().to_owned(), image.as_str().to_owned())).collect();
            seen.kubelet_minor = self.context.nodes.get(&pod.node_name).and_then(|node| node.kubelet_minor);
            let mut judged = seen.judge(spec);
            // Names are unique in a namespace only.
            judged.facts.name = key_of(&pod);
            observed.judged.push(judged);
            observed.pods.insert(key_of(&pod), pod.clone());
        }
        observed.judged.sort_by(|a, b| a.facts.name.cmp(&b.facts.name));
        observed
    }

    fn labels_of(&self, namespace: &str) -> Option<Labels> {
        let namespace = self.namespaces.get(&ObjectKey::new("", namespace))?;
        let labels = namespace.metadata.labels.iter().flatten();
        Some(Labels::from(labels.map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect::<Vec<_>>()))
    }
}
