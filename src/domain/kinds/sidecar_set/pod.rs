//! A Pod as the update of a SidecarSet sees it: whether it has the containers, runs what its spec says, and can be updated.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{
    notes::PodNotes,
    resting::Resting,
    spec::{Sidecar, Spec},
    states::{self, LastUpdate, States},
    upgradable,
};
use crate::{
    api::apps::sidecar_set::twin_names,
    domain::pod::{
        inplace::is_same_image,
        order::{Candidate, Phase},
    },
    k8s::{image::ImageRef, node::ignores_images_of_native_sidecars, pod::PodView},
};

/// What SidecarSets have noted on a Pod.
pub fn annotations(pod: &PodView) -> Map<String, Value> {
    let notes = pod.rare().sidecar_sets.iter().flat_map(|notes| notes.annotations.iter());
    notes.map(|(key, text)| ((*key).to_owned(), Value::from(&**text))).collect()
}

/// A Pod, and what its annotations say of SidecarSets.
#[derive(Clone, Debug)]
pub struct SidecarPod<'a> {
    /// The Pod.
    pub view: &'a PodView,
    /// What is noted on it of the SidecarSet, or of all.
    pub notes: PodNotes,
    /// Their last updates. None: they cannot be read, which counts like none.
    pub states: Option<States>,
    /// `status.containerStatuses[*].image`, by container.
    pub running: BTreeMap<String, String>,
    /// The minor version of its node's kubelet, as far as it is known.
    pub kubelet_minor: Option<u32>,
    /// It is on a node of which nothing is known yet.
    pub is_node_unknown: bool,
}

/// Why a Pod cannot be updated in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotUpgradable {
    /// Something else than images is different: only another Pod in its place has it.
    OtherChange,
    /// Its kubelet would ignore the new image of a native sidecar.
    KubeletTooOld,
}

impl NotUpgradable {
    /// One word.
    pub fn reason(self) -> &'static str {
        match self {
            Self::OtherChange => "OtherChange",
            Self::KubeletTooOld => "KubeletTooOld",
        }
    }
}

/// Where a Pod stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has the containers as they are now.
    Updated,
    /// It can be updated now.
    Waiting,
    /// An update before this one is under way, or its node is not known yet.
    InFlight,
    /// It cannot be updated in place.
    NotUpgradable(NotUpgradable),
}

/// A Pod that has the containers of a SidecarSet, judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// For the order.
    pub facts: Candidate,
    /// Where it stands.
    pub standing: Standing,
    /// It runs what its spec says, and is ready.
    pub is_ready: bool,
    /// Kubelet says that it is ready.
    pub is_in_service: bool,
    /// The SidecarSet has updated it in place before, to whatever it was then.
    pub was_updated: bool,
    /// It was out of service then, and not because of an update before that one.
    pub was_unavailable: bool,
    /// The selector of the update fits it.
    pub is_selected: bool,
    /// A twin that is not at work is to get the empty image, and may.
    pub needs_reset: bool,
    /// The revision that was noted on it.
    pub revision: String,
    /// What its condition `SidecarSetUpgradable` has to say of the SidecarSet; None: it stays as it is.
    pub upgradable: Option<bool>,
}

/// What the notes of a Pod and its containers say. It holds while Pod, kubelet and SidecarSet are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    standing: Standing,
    is_ready: bool,
    was_updated: bool,
    was_unavailable: bool,
    is_selected: bool,
    needs_reset: bool,
    upgradable: Option<bool>,
}

impl Judged {
    /// Puts together what was found of a Pod, the revision that was noted on it, and what the Pod itself says.
    pub fn of(view: &PodView, finding: Finding, revision: &str) -> Self {
        let is_in_service = is_in_service(view);
        let Finding { standing, is_ready, was_updated, was_unavailable, is_selected, needs_reset, upgradable } =
            finding;
        Self {
            facts: facts(view, is_in_service),
            standing,
            is_ready,
            is_in_service,
            was_updated,
            was_unavailable,
            is_selected,
            needs_reset,
            revision: revision.to_owned(),
            upgradable,
        }
    }
}

/// Whether kubelet says that it is ready.
fn is_in_service(view: &PodView) -> bool {
    view.phase == "Running" && view.condition_is_true("Ready")
}

fn facts(view: &PodView, ready: bool) -> Candidate {
    Candidate {
        name: view.name().to_owned(),
        labels: view.labels.clone(),
        node: view.node_name.as_str().to_owned(),
        phase: Phase::of(view.phase.as_str()),
        available: ready,
        ready,
        ready_since: view.ready_since,
        restarts: view.container_statuses.iter().map(|status| status.restart_count).max().unwrap_or(0),
        created: view.created,
        deletion_cost: view.deletion_cost,
    }
}

impl<'a> SidecarPod<'a> {
    /// With the annotations as they are, and what was read of them.
    pub fn of(view: &'a PodView, annotations: &Map<String, Value>, notes: PodNotes) -> Self {
        Self {
            view,
            notes,
            states: states::read(annotations).ok(),
            running: BTreeMap::new(),
            kubelet_minor: None,
            is_node_unknown: false,
        }
    }

    /// Whether it has every container of the SidecarSet, and the SidecarSet put them there.
    pub fn is_managed(&self, spec: &Spec) -> bool {
        !self.view.is_deleting()
            && !self.view.is_finished()
            && self.notes.injected.contains(&spec.name)
            && spec.sidecars.iter().filter(|sidecar| !sidecar.is_native).all(|sidecar| self.has(sidecar))
    }

    fn has(&self, sidecar: &Sidecar) -> bool {
        let works = sidecar.empty_image.is_none() || self.notes.working.contains_key(&sidecar.name);
        works && sidecar.names().iter().all(|name| self.view.container(name).is_some())
    }

    /// Judges a Pod that [`Self::is_managed`].
    pub fn judge(&self, spec: &Spec) -> Judged {
        Judged::of(self.view, self.find(spec), self.revision(spec))
    }

    /// The revision that was noted on it, or empty.
    pub fn revision(&self, spec: &Spec) -> &str {
        self.notes.hashes.get(&spec.name).map(|note| note.controller_revision.as_str()).unwrap_or_default()
    }

    /// What its notes and containers say.
    pub fn find(&self, spec: &Spec) -> Finding {
        let names: Vec<String> = spec.sidecars.iter().flat_map(Sidecar::names).collect();
        let is_in_service = is_in_service(self.view);
        let is_consistent = names.iter().all(|name| self.is_consistent(spec, name));
        // A container that is broken is not waited for: another image may mend it.
        let is_in_flight = names.iter().any(|name| {
            self.view.container_status(name).is_some_and(|status| status.ready) && !self.is_consistent(spec, name)
        });
        let twins_rest =
            spec.sidecars.iter().all(|sidecar| self.resting(spec, sidecar).is_none_or(|resting| resting.is_empty));
        let last = self.last_update(spec);
        let standing = match self.notes.hashes.get(&spec.name) {
            Some(note) if note.hash == spec.hashes.hash => Standing::Updated,
            _ => match self.refusal(spec) {
                Some(why) => Standing::NotUpgradable(why),
                None if is_in_flight || self.is_node_unknown && self.changes_native(spec) => Standing::InFlight,
                None => Standing::Waiting,
            },
        };
        Finding {
            standing,
            is_ready: is_in_service && is_consistent && twins_rest,
            was_updated: last.is_some(),
            was_unavailable: last.is_some_and(|last| last.found_it_down(self.view.ready_since)),
            is_selected: self.is_selected(spec),
            needs_reset: !twins_rest && self.may_reset(spec, is_in_service),
            upgradable: self.upgradable(spec, standing),
        }
    }

    /// Its last update by the SidecarSet, as far as that can be read.
    fn last_update(&self, spec: &Spec) -> Option<&LastUpdate> {
        self.states.as_ref()?.get(&spec.name)
    }

    /// Whether the selector of the update fits it.
    fn is_selected(&self, spec: &Spec) -> bool {
        spec.selector.as_ref().is_none_or(|selector| selector.matches(&self.view.labels))
    }

    /// What its condition has to say, if it does not say so. An update under way says nothing new.
    fn upgradable(&self, spec: &Spec, standing: Standing) -> Option<bool> {
        if !spec.updates || spec.paused {
            return None;
        }
        let recorded = upgradable::recorded(self.view, &spec.name);
        let was_updated = || self.last_update(spec).is_some_and(|last| last.revision == spec.hashes.hash);
        let can = match standing {
            Standing::NotUpgradable(_) => self.is_selected(spec).then_some(false),
            Standing::Updated => (recorded == Some(false) || was_updated()).then_some(true),
            Standing::Waiting | Standing::InFlight => None,
        };
        can.filter(|can| recorded != Some(*can))
    }

    /// Why it cannot be updated in place.
    fn refusal(&self, spec: &Spec) -> Option<NotUpgradable> {
        let note = self.notes.hashes_without_image.get(&spec.name);
        if note.is_none_or(|note| note.hash != spec.hashes.without_image) {
            return Some(NotUpgradable::OtherChange);
        }
        let is_too_old = ignores_images_of_native_sidecars(self.kubelet_minor);
        (is_too_old && self.changes_native(spec)).then_some(NotUpgradable::KubeletTooOld)
    }

    /// Whether an update gives a native sidecar another image.
    pub fn changes_native(&self, spec: &Spec) -> bool {
        let is_other = |sidecar: &Sidecar| {
            let names = sidecar.names();
            let mut there = names.iter().filter_map(|name| self.view.container(name));
            there.any(|there| *there.image != *sidecar.image)
        };
        spec.sidecars.iter().any(|sidecar| sidecar.is_native && is_other(sidecar))
    }

    /// Whether a container runs the image of its spec, as far as can be told.
    ///
    /// Kubelet makes another instance for any other text of an image, also for one that names what runs already. So where the
    /// instance before the update was noted, another one tells; digests and names are compared only where none was.
    fn is_consistent(&self, spec: &Spec, name: &str) -> bool {
        // A native sidecar that the SidecarSet has got since: the Pod goes on without it, and is as ready as before.
        let Some(container) = self.view.container(name) else { return true };
        let Some(status) = self.view.container_status(name) else { return false };
        // Behind a mirror the repository is another one.
        let wanted = ImageRef::parse(&container.image).and_then(|image| image.digest);
        let has_digest = wanted.is_some_and(|wanted| status.image_id.ends_with(wanted));
        let before = self.last_update(spec).and_then(|last| last.last_container_statuses.get(name));
        // It was never updated: it runs what it was created with, whatever digest the runtime reports of that. Or its annotation
        // cannot be read: who may write annotations of one Pod would hold up all others with it.
        let Some(before) = before else { return true };
        if self.view.kubelet_is_behind {
            return false;
        }
        if !before.container_id.is_empty() && !status.container_id.is_empty() {
            return *before.container_id != *status.container_id;
        }
        // The runtime may have known the image by the new name before.
        let has_name = || self.running.get(name).is_some_and(|running| is_same_image(running, &container.image));
        before.is_back_to(&container.image) || *before.image_id != *status.image_id || has_digest || has_name()
    }

    /// The twin that is not at work.
    fn resting(&self, spec: &Spec, sidecar: &Sidecar) -> Option<Resting> {
        let image = |name: &str| self.view.container(name).map(|container| &*container.image);
        Resting::of(spec, sidecar, (&self.notes, self.states.as_ref()), image)
    }

    /// The twins that are not at work, of all SidecarSets of the Pod.
    fn all_resting(&self) -> BTreeSet<String> {
        let other =
            |(sidecar, working): (&String, &String)| twin_names(sidecar).into_iter().find(|twin| twin != working);
        self.notes.working.iter().filter_map(other).collect()
    }

    /// Whether the new twin is at work, so that the old one can go.
    fn may_reset(&self, spec: &Spec, is_in_service: bool) -> bool {
        // Those of other SidecarSets too: two old twins that have both ended would wait for each other.
        let resting = self.all_resting();
        let mut others = spec.sidecars.iter().flat_map(Sidecar::names).filter(|name| !resting.contains(name));
        let runs = others.all(|name| self.is_consistent(spec, &name));
        let mut statuses = self.view.container_statuses.iter().filter(|status| !resting.contains(&*status.name));
        runs && (is_in_service || statuses.all(|status| status.ready))
    }
}

#[cfg(test)]
mod tests;
