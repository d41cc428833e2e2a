//! What the last pass has found of each Pod: the notes of a Pod with ten SidecarSets take longer to read than all the rest of a
//! pass, and most Pods are as they were.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use super::known::SpecVersion;
use crate::{
    domain::kinds::sidecar_set::{
        pod::{Finding, SidecarPod},
        spec::Spec,
    },
    k8s::{invalid::Invalid, pod::PodView},
};

/// What was found of a Pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PodFinding {
    /// Its notes cannot be read.
    Unreadable,
    /// It has not the containers of the SidecarSet, or is on its way out.
    NotManaged,
    /// With the revision that was noted on it.
    Managed(Finding, Arc<str>),
}

struct Known {
    /// Keeps the address of the Pod from being given to another one; what the Pod holds can go.
    _pod: Weak<PodView>,
    kubelet_minor: Option<u32>,
    found: PodFinding,
}

/// What one pass has found of all Pods of a SidecarSet, some hundred bytes each. Can be lost at any time.
#[derive(Default)]
pub(super) struct Findings {
    /// Which spec of the SidecarSet they hold for.
    version: SpecVersion,
    /// By address: each version of a Pod has its own.
    known: HashMap<usize, Known>,
    /// The last one: most Pods have the same.
    revision: Arc<str>,
}

fn address(pod: &Arc<PodView>) -> usize {
    Arc::as_ptr(pod).addr()
}

impl Findings {
    /// Of a pass that has found nothing yet.
    pub(super) fn of(version: SpecVersion) -> Self {
        Self { version, ..Self::default() }
    }

    /// What holds for a SidecarSet that is as it was then: all of it, or nothing.
    pub(super) fn take(&mut self, version: SpecVersion) -> Self {
        let last = std::mem::take(self);
        if last.version == version { last } else { Self::default() }
    }

    /// What was found of a Pod that is as it was, on a kubelet that is too.
    pub(super) fn take_of(&mut self, pod: &Arc<PodView>, kubelet_minor: Option<u32>) -> Option<PodFinding> {
        let known = self.known.remove(&address(pod))?;
        (known.kubelet_minor == kubelet_minor).then_some(known.found)
    }

    /// Judges a Pod anew.
    pub(super) fn find(&mut self, seen: Result<SidecarPod<'_>, Invalid>, spec: &Spec) -> PodFinding {
        let Ok(seen) = seen else { return PodFinding::Unreadable };
        if !seen.is_managed(spec) {
            return PodFinding::NotManaged;
        }
        let revision = seen.revision(spec);
        if *revision != *self.revision {
            self.revision = revision.into();
        }
        PodFinding::Managed(seen.find(spec), self.revision.clone())
    }

    /// For the next pass.
    pub(super) fn keep(&mut self, pod: &Arc<PodView>, kubelet_minor: Option<u32>, found: PodFinding) {
        self.known.insert(address(pod), Known { _pod: Arc::downgrade(pod), kubelet_minor, found });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_holds_for_the_same_pod_kubelet_and_spec() {
        let pod = Arc::new(PodView::default());
        let version = SpecVersion::default();
        let found = |mut findings: Findings, version: SpecVersion, pod: &Arc<PodView>, minor: u32| {
            findings.take(version).take_of(pod, Some(minor)) == Some(PodFinding::NotManaged)
        };
        let findings = || {
            let mut findings = Findings::of(version);
            findings.keep(&pod, Some(32), PodFinding::NotManaged);
            findings
        };
        assert!(found(findings(), version, &pod, 32));
        let _held = findings();
        assert_eq!(Arc::strong_count(&pod), 1, "what a Pod holds can go");
        assert!(!found(findings(), version, &pod, 31));
        assert!(!found(findings(), version, &Arc::new(PodView::default()), 32));
        assert!(!found(findings(), version.next(), &pod, 32));
        assert!(!found(Findings::default(), version, &pod, 32));
    }
}
