//! Which Pods SidecarSets are for and were not injected into. Kept up with every change of a Pod: they may be few among very
//! many, and no pass looks for them among all Pods.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use crate::runtime::watches::ObjectKey;

/// The Pods that lack the containers of SidecarSets.
#[derive(Default)]
pub(super) struct Missed {
    by_set: HashMap<Arc<str>, BTreeSet<ObjectKey>>,
    /// SidecarSets whose Pods are to be looked for among all that there are: they are new, or are for others than before.
    unsearched: BTreeSet<Arc<str>>,
    /// How many of them were created when the SidecarSet was there, where there are some.
    younger: HashMap<Arc<str>, usize>,
}

impl Missed {
    /// Notes of a Pod whether it lacks the containers of a SidecarSet. True: that is news.
    pub(super) fn note(&mut self, set: &Arc<str>, pod: &ObjectKey, lacks: bool) -> bool {
        if lacks {
            return self.by_set.entry(set.clone()).or_default().insert(pod.clone());
        }
        let Some(pods) = self.by_set.get_mut(set) else { return false };
        let is_news = pods.remove(pod);
        if pods.is_empty() {
            self.by_set.remove(set);
        }
        is_news
    }

    /// The Pods of a SidecarSet are to be looked for.
    pub(super) fn search(&mut self, set: &Arc<str>) {
        self.unsearched.insert(set.clone());
    }

    /// So many Pods of a SidecarSet were created when it was there. Returns how many there are of all.
    pub(super) fn count_younger(&mut self, set: &str, pods: usize) -> usize {
        match pods {
            0 => drop(self.younger.remove(set)),
            _ => drop(self.younger.insert(set.into(), pods)),
        }
        self.younger.values().sum()
    }

    /// The SidecarSets whose Pods are to be looked for now. What was known of them is forgotten.
    pub(super) fn take_unsearched(&mut self) -> BTreeSet<Arc<str>> {
        let sets = std::mem::take(&mut self.unsearched);
        sets.iter().for_each(|set| drop(self.by_set.remove(set)));
        sets
    }

    /// Forgets a SidecarSet.
    pub(super) fn forget(&mut self, set: &str) {
        self.by_set.remove(set);
        self.unsearched.remove(set);
    }

    /// The Pods that lack the containers of a SidecarSet.
    pub(super) fn of(&self, set: &str) -> Vec<ObjectKey> {
        self.by_set.get(set).into_iter().flatten().cloned().collect()
    }

    /// How many Pods lack the containers of a SidecarSet.
    pub(super) fn count(&self, set: &str) -> usize {
        self.by_set.get(set).map_or(0, BTreeSet::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn younger_pods_are_counted_over_all_sets() {
        let mut missed = Missed::default();
        let counts = [("logs", 2), ("mesh", 3), ("logs", 1), ("mesh", 0), ("none", 0)];
        assert_eq!(counts.map(|(set, pods)| missed.count_younger(set, pods)), [2, 5, 4, 1, 1]);
    }

    #[test]
    fn pods_are_noted_by_set_and_forgotten_with_it() {
        let (logs, mesh): (Arc<str>, Arc<str>) = ("logs".into(), "mesh".into());
        let (a, b) = (ObjectKey::new("ns", "a"), ObjectKey::new("ns", "b"));
        let mut missed = Missed::default();
        assert!(missed.note(&logs, &a, true) && missed.note(&logs, &b, true) && missed.note(&mesh, &a, true));
        assert!(!missed.note(&logs, &a, true), "known");
        assert_eq!((missed.count("logs"), missed.count("mesh"), missed.count("none")), (2, 1, 0));
        assert_eq!(missed.of("logs"), [a.clone(), b.clone()]);
        assert!(missed.note(&logs, &a, false) && !missed.note(&logs, &a, false));
        assert!(missed.note(&logs, &b, false));
        assert!(!missed.by_set.contains_key("logs"));
        missed.search(&mesh);
        assert_eq!(missed.count("mesh"), 1, "until it is searched");
        assert_eq!(missed.take_unsearched(), BTreeSet::from([mesh.clone()]));
        assert_eq!((missed.count("mesh"), missed.take_unsearched().len()), (0, 0));
        missed.note(&mesh, &a, true);
        missed.search(&mesh);
        missed.forget("mesh");
        assert_eq!((missed.count("mesh"), missed.take_unsearched().len()), (0, 0));
    }
}
