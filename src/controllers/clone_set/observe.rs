//! Everything that a pass looks at, from the stores.

use std::{collections::HashSet, sync::Arc, time::Duration};

use super::{CLAIMS_BY_OWNER, CloneSetJob, Controller};
use crate::{
    api::labels,
    controllers::{BY_CONTROLLER, owned_text},
    domain::{
        kinds::clone_set::plan::{OwnMark, Pod},
        pod::{
            available::{pending, until_ready_for_long},
            order::{Candidate, Phase},
            refresh::state_of,
        },
    },
    k8s::{claim::ClaimView, pod::PodView, time::Now},
    runtime::{clock, wake},
};

/// Value of the label `specified-delete` where we write it.
pub(super) const MARK: &str = "true";

/// Pods and claims of a CloneSet.
pub(super) struct CloneSetObjects {
    /// Active Pods, as the rules see them.
    pub(super) pods: Vec<Arc<Pod>>,
    /// The same Pods, in the same order, which is that of their names.
    pub(super) views: Vec<Arc<PodView>>,
    /// Pods that end or have ended.
    pub(super) inactive: Vec<Arc<PodView>>,
    /// Claims that are not being deleted.
    pub(super) claims: Vec<Arc<ClaimView>>,
    /// Pods that are to be adopted, and for which no others are made.
    pub(super) orphans: usize,
    /// When a Pod will have been ready for long enough.
    pub(super) next_look: Option<Duration>,
}

impl CloneSetObjects {
    pub(super) fn view(&self, name: &str) -> Option<&Arc<PodView>> {
        self.views.binary_search_by(|view| view.name().cmp(name)).ok().map(|i| &self.views[i])
    }
}

/// Facts about the Pods of a large CloneSet, for one generation of its spec, that stay true until a Pod changes: while Pods
/// come up, passes follow each other and most Pods are unchanged. The Pods of small CloneSets are judged in each pass: for a
/// thousand of them, facts about old versions would take as much memory as the Pods.
#[derive(Default)]
pub(super) struct Found {
    generation: Option<i64>,
    pods: Vec<(Arc<PodView>, Arc<Pod>)>,
}

#[cfg(test)]
impl Found {
    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }
}

impl Controller {
    pub(super) fn see(&self, job: &CloneSetJob) -> CloneSetObjects {
        let now = clock::now();
        let owned = owned_text(&job.key.namespace, &job.owner.uid);
        let all = self.context.pods.by_index(&BY_CONTROLLER, &owned);
        let (views, inactive): (Vec<_>, Vec<_>) = all.into_iter().partition(|pod| pod.is_active());
        let claims = self.claims.select_by_index(&CLAIMS_BY_OWNER, &owned, |claim| !claim.is_deleting());
        let generation = job.clone_set.metadata.generation;
        let mut found = self.memories.take_found(&job.key);
        if found.generation != generation {
            found = Found { generation, pods: Vec::new() };
        }
        let is_large = !wake::pause(views.len()).is_zero();
        let mut before = found.pods.into_iter().peekable();
        let mut stays = Vec::new();
        // Both may be long: a set, and no search in a list for each Pod.
        let listed: HashSet<&str> = job.spec.pods_to_delete.iter().map(String::as_str).collect();
        let mut next_look: Option<Duration> = None;
        let mut pods = Vec::with_capacity(views.len());
        for view in &views {
            // Both are in the order of names.
            while before.next_if(|(old, _)| old.name() < view.name()).is_some() {}
            let (pod, look) = match before.next_if(|(old, _)| Arc::ptr_eq(old, view)) {
                Some((_, pod)) => (pod, None),
                None => {
                    let (pod, look) = facts(view, job.spec.min_ready_seconds, &listed, now);
                    (Arc::new(pod), look)
                }
            };
            if look.is_none() && is_large {
                stays.push((view.clone(), pod.clone()));
            }
            next_look = [next_look, look].into_iter().flatten().min();
            pods.push(pod);
        }
        let found = Found { pods: stays, ..found };
        self.memories.keep_found(&job.key, found);
        CloneSetObjects { pods, views, inactive, claims, orphans: self.orphans(job), next_look }
    }
}

/// A Pod as the rules see it, and when to look at it again. `listed` is `podsToDelete`.
fn facts(view: &PodView, min_ready_seconds: i32, listed: &HashSet<&str>, now: Now) -> (Pod, Option<Duration>) {
    let until = until_ready_for_long(view, min_ready_seconds, now);
    let state = state_of(view);
    let in_service = state.is_in_service();
    let pod = Pod {
        facts: Candidate {
            name: view.name().to_owned(),
            labels: view.labels.clone(),
            node: view.node_name.as_str().to_owned(),
            phase: Phase::of(&view.phase),
            available: in_service && until == Some(Duration::ZERO),
            ready: view.condition_is_true("Ready"),
            ready_since: view.ready_since,
            restarts: view.container_statuses.iter().map(|status| status.restart_count).max().unwrap_or(0),
            created: view.created,
            deletion_cost: view.deletion_cost,
        },
        revision: view.labels.get(labels::CONTROLLER_REVISION_HASH).unwrap_or_default().to_owned(),
        state,
        finalizers: view.rare().finalizers.iter().map(|name| name.as_str().to_owned()).collect(),
        is_specified: view.labels.get(labels::SPECIFIED_DELETE).is_some() || listed.contains(view.name()),
        // Whatever else the label says, somebody else wrote it.
        own_mark: view.rare().specified_delete_for.as_ref().map(|revision| OwnMark {
            revision: revision.clone(),
            has_label: view.labels.get(labels::SPECIFIED_DELETE) == Some(MARK),
        }),
        is_ready: until.is_some(),
        is_ready_now: in_service && until.is_some(),
        is_in_grace: view.in_place().is_some_and(|notes| notes.grace.is_some()),
        is_updating: view.in_place().is_some(),
        pending: pending(view).map(Box::new),
    };
    (pod, until.filter(|until| !until.is_zero()))
}
