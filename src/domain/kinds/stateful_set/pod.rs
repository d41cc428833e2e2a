//! A Pod of a StatefulSet, as the rules see it.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;

use super::{numbering, spec::Spec};
use crate::{
    api::labels,
    domain::pod::{
        available::{self, pending, unreadable, until_available},
        inplace::UpdateSpec,
        lifecycle::{Hooked, State},
        order::Phase,
        refresh::state_of,
    },
    domain::workload::overrides::Applied,
    k8s::{
        pod::{Labels, PodView},
        revision,
        time::Now,
    },
};

/// A Pod that belongs to the set, by its owner and its name.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its ordinal.
    pub ordinal: i32,
    /// Its labels.
    pub labels: Labels,
    /// Its finalizers.
    pub finalizers: Vec<String>,
    /// Its node, or empty.
    pub node: String,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// Label `controller-revision-hash`.
    pub revision: String,
    /// The state of its lifecycle.
    pub state: State,
    /// Its phase; None: the API server has just made it.
    pub phase: Option<Phase>,
    /// It has succeeded or failed for good.
    pub is_finished: bool,
    /// It has a deletion timestamp.
    pub is_terminating: bool,
    /// How long it still has to be Ready to be available; None: it is not Ready, or an update in place is not done.
    pub until_available: Option<Duration>,
    /// Its condition Ready is True and it runs.
    pub is_ready: bool,
    /// How long its condition Ready has not been True, or zero.
    pub down_for: Duration,
    /// Somebody marked it to be deleted.
    pub is_specified: bool,
    /// It can be updated in place.
    pub has_gate: bool,
    /// What an update in place that is not done has still to write.
    pub pending: Option<UpdateSpec>,
    /// Why the notes of its update in place cannot be read.
    pub unreadable: Option<String>,
    /// Labels of its identity that are not right, with what they have to be.
    pub wrong_labels: Vec<(&'static str, String)>,
    /// The claim template for which it has no volume, if there is one.
    pub lacks_claim: Option<String>,
    /// The override that it was made or updated with.
    pub applied: Applied,
    /// Its ordinal is to have another override.
    pub has_other_override: bool,
}

/// The Pod of a wanted ordinal, if there is one.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// The ordinal.
    pub ordinal: i32,
    /// How many wanted ordinals come before it.
    pub rank: usize,
    /// Its Pod.
    pub pod: Option<&'a Pod>,
}

impl Pod {
    /// From what the stores keep. None: its name is not one of the set's.
    pub fn of(view: &PodView, spec: &Spec, index_label: bool, now: Now) -> Option<Self> {
        let ordinal = numbering::ordinal_of(&spec.name, view.name())?;
        let label = |key: &str| view.labels.get(key);
        let index = ordinal.to_string();
        let mut wrong_labels = Vec::new();
        if label(labels::POD_NAME) != Some(view.name()) {
            wrong_labels.push((labels::POD_NAME, view.name().to_owned()));
        }
        if index_label && label(labels::POD_INDEX) != Some(&index) {
            wrong_labels.push((labels::POD_INDEX, index));
        }
        let pending = pending(view);
        let applied = applied(view, pending.as_ref());
        let lacks = |template: &&super::claim_template::ClaimTemplate| !view.spec.own_claims.contains(&template.name);
        Some(Self {
            name: view.name().to_owned(),
            uid: view.uid().to_owned(),
            ordinal,
            labels: view.labels.clone(),
            finalizers: view.rare().finalizers.iter().map(|name| name.as_str().to_owned()).collect(),
            node: view.node_name.as_str().to_owned(),
            created: view.created,
            revision: label(labels::CONTROLLER_REVISION_HASH).unwrap_or_default().to_owned(),
            state: state_of(view),
            phase: (!view.phase.is_empty()).then(|| Phase::of(&view.phase)),
            is_finished: view.is_finished(),
            is_terminating: view.is_deleting(),
            until_available: until_available(view, spec.min_ready_seconds, now),
            is_ready: view.phase == "Running" && view.condition_is_true("Ready"),
            down_for: down_for(view, now),
            is_specified: label(labels::SPECIFIED_DELETE).is_some(),
            has_gate: view.has_readiness_gate(labels::CONDITION_INPLACE_UPDATE_READY),
            pending,
            unreadable: unreadable(view),
            wrong_labels,
            lacks_claim: spec.claims.iter().find(lacks).map(|template| template.name.clone()),
            has_other_override: !applied.is_for(&spec.overrides, ordinal),
            applied,
        })
    }

    /// Whether it counts as available.
    pub fn is_available(&self) -> bool {
        available::is_available(&self.state, self.is_live(), self.until_available)
    }

    /// Whether it is Ready and in service, for however short a time.
    pub fn is_serving(&self) -> bool {
        available::is_serving(&self.state, self.is_live(), self.until_available)
    }

    fn is_live(&self) -> bool {
        !self.is_terminating && !self.is_finished
    }

    /// Whether it would be available, and does not count as such because it waits for a hook to let go of it. What the hook
    /// waits for may be another Pod of the set.
    pub fn serves_until_hook(&self) -> bool {
        self.is_only_announced() && self.until_available == Some(Duration::ZERO)
    }

    /// Whether it is Ready, for however short a time, and does not count as serving because its update or deletion has been
    /// announced to its hook.
    pub fn is_only_announced(&self) -> bool {
        matches!(self.state, State::PreparingUpdate | State::PreparingDelete)
            && self.is_live()
            && self.until_available.is_some()
    }

    /// Whether it is as the newest template wants it, its claims aside.
    pub fn is_updated(&self, update_revision: &str) -> bool {
        self.is_on(update_revision) && !self.has_other_override
    }

    /// Whether it is on a revision.
    pub fn is_on(&self, name: &str) -> bool {
        revision::is_same(&self.revision, name)
    }
}

impl Hooked for Pod {
    fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key)
    }
    fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == name)
    }
}

/// One that kubelet has said nothing of has been down since it was made.
fn down_for(view: &PodView, now: Now) -> Duration {
    let since = view.ready_since.or(view.created).filter(|_| !view.condition_is_true("Ready"));
    since.map_or(Duration::ZERO, |since| now.since(since))
}

/// Pods in the order of their ordinals.
pub fn sort(pods: &mut [Arc<Pod>]) {
    pods.sort_by_key(|pod| pod.ordinal);
}

/// The override that a Pod has, or gets with the change that its grace period holds back.
fn applied(view: &PodView, pending: Option<&UpdateSpec>) -> Applied {
    let notes = view.rare().ordinal_override.as_deref();
    let applied = notes.map(|notes| Applied::of(notes.hash.as_deref(), notes.content.clone())).unwrap_or_default();
    match pending.and_then(UpdateSpec::metadata) {
        Some(metadata) => applied.after(&metadata),
        None => applied,
    }
}
