//! The Pods of a SidecarSet: those that have its containers, and those that lack them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Namespace;

use super::{
    Controller, Job,
    findings::{Findings, PodFinding},
    known::Target,
};
use crate::{
    controllers::{BY_NAMESPACE, BY_SIDECAR_SET},
    domain::kinds::sidecar_set::{
        matching::{self, Aim, Index, Match},
        notes::{PodNotes, injected_into},
        pod::{Judged, SidecarPod, annotations},
    },
    k8s::{
        invalid::Invalid,
        node::NodeView,
        pod::{Labels, PodView},
    },
    runtime::{
        clock, lock, wake,
        watches::{Change, ObjectKey},
    },
};

/// The Pods of a SidecarSet.
#[derive(Default)]
pub(super) struct Observed {
    /// Those that have its containers, by `NAMESPACE/NAME`.
    pub(super) pods: BTreeMap<String, Arc<PodView>>,
    /// The same, judged.
    pub(super) judged: Vec<Judged>,
    /// How many are to have them and do not.
    pub(super) uninjected: usize,
    /// The node of a Pod is not known yet: its watch is behind that of Pods.
    pub(super) is_partial: bool,
}

/// The labels of namespaces, as far as they are known.
type Namespaces = HashMap<String, Option<Labels>>;

fn key_of(pod: &PodView) -> String {
    format!("{}/{}", pod.namespace(), pod.name())
}

pub(super) fn labels_of(namespace: &Namespace) -> Labels {
    let labels = namespace.metadata.labels.iter().flatten();
    Labels::from(labels.map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect::<Vec<_>>())
}

impl Controller {
    /// The labels of a namespace, as far as they are known.
    fn known_labels(&self, namespace: &str) -> Option<Labels> {
        self.namespaces.get(&ObjectKey::new("", namespace)).map(|namespace| labels_of(&namespace))
    }

    /// Whether a SidecarSet has to do with a Pod at all.
    fn is_open(&self, pod: &PodView) -> bool {
        pod.is_active() && !pod.is_exempt_from_admission(&self.context.namespace)
    }

    /// Whether a Pod is to have the containers of a SidecarSet and does not say that they were injected.
    fn lacks(&self, pod: &PodView, target: &Target, namespaces: &mut Namespaces) -> bool {
        self.is_open(pod)
            && !injected_into(pod).any(|name| *name == **target.name())
            && self.fits(pod, target.aim(), namespaces)
    }

    /// Whether a Pod was created when a SidecarSet was there that injects.
    fn is_younger(&self, pod: &PodView, set: &str) -> bool {
        let set = self.sets.get(&ObjectKey::new("", set)).filter(|set| set.injects());
        set.and_then(|set| set.created()).is_some_and(|created| pod.created > Some(created))
    }

    /// Whether a SidecarSet is for a Pod. The labels of each of its namespaces are read once.
    fn fits(&self, pod: &PodView, aim: &Aim, namespaces: &mut Namespaces) -> bool {
        let name = pod.namespace();
        let labels = match namespaces.get(name) {
            Some(labels) => labels,
            None => &*namespaces.entry(name.to_owned()).or_insert_with(|| self.known_labels(name)),
        };
        aim.fits(matching::Namespace { name, labels: labels.as_ref() }, &pod.labels) == Match::Yes
    }

    /// Notes what a change of a Pod means, and wakes the SidecarSets that it concerns.
    pub(super) fn pod_changed(&self, change: &Change<'_, PodView>) {
        if self.sets.is_empty() {
            return;
        }
        let is_born = matches!(change, Change::Applied { old: None, initial: false, .. });
        let Some((old, new)) = change.sides() else { return };
        if let (Some(old), Some(new)) = (old, new)
            && wake::is_same_but_version(old, new)
        {
            return;
        }
        let both = || [old, new].into_iter().flatten();
        let mut concerned: BTreeSet<Arc<str>> = both().flat_map(|pod| injected_into(pod)).map(Arc::from).collect();
        let candidates: BTreeMap<Arc<str>, Target> = {
            let index = lock(&self.index);
            let candidates = both().flat_map(|pod| index.candidates(pod.namespace(), &pod.labels));
            candidates.map(|target| (target.name().clone(), target)).collect()
        };
        let Some(key) = both().next().map(|pod| ObjectKey::of(pod.as_ref())) else { return };
        let mut namespaces = Namespaces::new();
        for (name, target) in &candidates {
            let lacks = new.is_some_and(|pod| self.lacks(pod, target, &mut namespaces));
            if lock(&self.missed).note(name, &key, lacks) {
                concerned.insert(name.clone());
            }
            if lacks && is_born && new.is_some_and(|pod| self.is_younger(pod, name)) {
                self.metrics.missed.inc();
            }
        }
        for name in concerned {
            let key = ObjectKey::new("", &name);
            if self.sets.get(&key).is_some() {
                self.wake(key);
            }
        }
    }

    /// A kubelet of another version heeds other changes of native sidecars: wakes the SidecarSets of its Pods.
    pub(super) fn node_changed(&self, change: &Change<'_, NodeView>) {
        let Change::Applied { old: Some(old), new, .. } = change else { return };
        if old.kubelet_minor == new.kubelet_minor {
            return;
        }
        let is_there = |pod: &PodView| pod.node_name.as_str() == new.name() && !pod.spec.sidecars.is_empty();
        let pods = self.context.pods.select(is_there);
        for name in pods.iter().flat_map(|pod| injected_into(pod)).collect::<BTreeSet<&str>>() {
            let key = ObjectKey::new("", name);
            if self.sets.get(&key).is_some() {
                self.wake(key);
            }
        }
    }

    /// Has a SidecarSet looked at again for news of a Pod.
    fn wake(&self, key: ObjectKey) {
        let now = clock::now().mono;
        match self.memories.with(&key, |memory| memory.pause(&key.name, now)).unwrap_or_default() {
            Duration::ZERO => self.queue.add(key),
            pause => self.queue.add_after(key, pause),
        }
    }

    /// Looks for Pods that lack the containers of new SidecarSets: one look for all of them, at the Pods of their namespaces
    /// if they name some. Changes of Pods are noted meanwhile.
    fn search(&self) {
        // Whoever comes meanwhile waits for what is found.
        let _searching = lock(&self.searching);
        let names = lock(&self.missed).take_unsearched();
        if names.is_empty() {
            return;
        }
        let mut wanted: Index<Target> = Index::default();
        {
            let index = lock(&self.index);
            for target in names.iter().filter_map(|name| index.get(name)) {
                wanted.insert(target, target.aim());
            }
        }
        let pods = &self.context.pods;
        let all = match wanted.namespaces() {
            None => pods.list(),
            Some(names) => names.iter().flat_map(|name| pods.by_index(&BY_NAMESPACE, name)).collect(),
        };
        let (mut found, mut namespaces) = (Vec::new(), Namespaces::new());
        for pod in all {
            for target in wanted.candidates(pod.namespace(), &pod.labels) {
                if self.lacks(&pod, &target, &mut namespaces) {
                    found.push((target, pod.clone()));
                }
            }
        }
        let mut missed = lock(&self.missed);
        let index = lock(&self.index);
        for (target, pod) in found {
            let key = ObjectKey::of(pod.as_ref());
            // Later changes come as events of their own.
            let is_same = index.get(target.name()).is_some_and(|now| Arc::ptr_eq(&now.0, &target.0))
                && pods.get(&key).is_some_and(|now| Arc::ptr_eq(&now, &pod));
            if is_same {
                missed.note(target.name(), &key, true);
            }
        }
    }

    /// Every Pod that the SidecarSet is for.
    pub(super) fn observe(&self, job: &Job) -> Observed {
        self.search();
        let spec = &job.spec;
        let mut observed = Observed { uninjected: lock(&self.missed).count(&spec.name), ..Observed::default() };
        let mut namespaces = Namespaces::new();
        let mut before =
            self.memories.with(&job.key, |memory| memory.findings.take(job.set.spec_version())).unwrap_or_default();
        let mut findings = Findings::of(job.set.spec_version());
        for pod in self.context.pods.by_index(&BY_SIDECAR_SET, &spec.name) {
            if !self.is_open(&pod) || !self.fits(&pod, &spec.aim, &mut namespaces) {
                continue;
            }
            let (kubelet_minor, is_node_unknown) = self.kubelet_of(&pod);
            let known = if is_node_unknown { None } else { before.take_of(&pod, kubelet_minor) };
            let found = match known {
                Some(found) => found,
                None => {
                    let seen = seen(&pod, &spec.name, kubelet_minor, is_node_unknown);
                    observed.is_partial |= seen
                        .as_ref()
                        .is_ok_and(|seen| is_node_unknown && seen.is_managed(spec) && seen.changes_native(spec));
                    findings.find(seen, spec)
                }
            };
            if !is_node_unknown {
                findings.keep(&pod, kubelet_minor, found.clone());
            }
            match found {
                // It is nobody's then.
                PodFinding::Unreadable => observed.uninjected += 1,
                PodFinding::NotManaged => {}
                PodFinding::Managed(finding, revision) => {
                    let mut judged = Judged::of(&pod, finding, &revision);
                    // Names are unique in a namespace only.
                    judged.facts.name = key_of(&pod);
                    observed.pods.insert(judged.facts.name.clone(), pod);
                    observed.judged.push(judged);
                }
            }
        }
        self.memories.with(&job.key, |memory| memory.findings = findings);
        observed
    }

    /// The minor version of a Pod's kubelet as far as it is known, and whether nothing is known yet of its node.
    fn kubelet_of(&self, pod: &PodView) -> (Option<u32>, bool) {
        let node = self.context.nodes.get(&pod.node_name);
        let is_node_unknown = node.is_none() && !pod.node_name.is_empty();
        (node.and_then(|node| node.kubelet_minor), is_node_unknown)
    }

    /// What the condition of a Pod that has changed since it was observed has to say. None: it stays as it is, or the Pod is
    /// not the SidecarSet's any more.
    pub(super) fn upgradable(&self, job: &Job, pod: &PodView) -> Option<bool> {
        let spec = &job.spec;
        if !self.is_open(pod) || !self.fits(pod, &spec.aim, &mut Namespaces::new()) {
            return None;
        }
        let (kubelet_minor, is_node_unknown) = self.kubelet_of(pod);
        let seen = seen(pod, &spec.name, kubelet_minor, is_node_unknown).ok()?;
        if seen.is_managed(spec) { seen.judge(spec).upgradable } else { None }
    }
}

/// A Pod with what a SidecarSet has noted on it.
fn seen<'a>(
    pod: &'a PodView,
    set: &str,
    kubelet_minor: Option<u32>,
    is_node_unknown: bool,
) -> Result<SidecarPod<'a>, Invalid> {
    let annotations = annotations(pod);
    let notes = PodNotes::of_set(&annotations, set)?;
    let images = pod.rare().sidecar_sets.iter().flat_map(|notes| notes.running_images.iter());
    let running = images.map(|(name, image)| (name.as_str().to_owned(), image.as_str().to_owned())).collect();
    Ok(SidecarPod { running, kubelet_minor, is_node_unknown, ..SidecarPod::of(pod, &annotations, notes) })
}
