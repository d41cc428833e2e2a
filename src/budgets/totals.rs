//! Which workloads the totals of budgets depend on, and their replicas, by watches.

use std::collections::{BTreeSet, HashMap, HashSet};

use kube::ResourceExt;

use super::{Budgets, lock};
use crate::{
    api::policy::pod_unavailable_budget::{PodUnavailableBudget, PodUnavailableBudgetStatus},
    domain::budgets::unavailable::{self as rule, index::Cover},
    runtime::{replicas::Kind, watches::ObjectKey},
};

/// The workloads whose replicas the total of a budget depends on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Asked {
    followed: BTreeSet<(Kind, ObjectKey)>,
    /// Whether there are others, of kinds that cannot be watched.
    others: bool,
}

impl Asked {
    pub(super) fn add(&mut self, namespace: &str, group: &str, kind: &str, name: &str) {
        match Kind::of(group, kind) {
            Some(kind) => drop(self.followed.insert((kind, ObjectKey::new(namespace, name)))),
            None => self.others = true,
        }
    }
}

/// Budgets and workloads, both ways.
#[derive(Default)]
pub(super) struct Totals {
    by_budget: HashMap<ObjectKey, Asked>,
    by_workload: HashMap<(Kind, ObjectKey), HashSet<ObjectKey>>,
}

impl Totals {
    /// Whether anything is new.
    fn set(&mut self, budget: &ObjectKey, asked: Asked) -> bool {
        if self.by_budget.get(budget) == Some(&asked) {
            return false;
        }
        self.remove(budget);
        for workload in &asked.followed {
            self.by_workload.entry(workload.clone()).or_default().insert(budget.clone());
        }
        self.by_budget.insert(budget.clone(), asked);
        true
    }

    fn remove(&mut self, budget: &ObjectKey) -> bool {
        let Some(asked) = self.by_budget.remove(budget) else { return false };
        for workload in asked.followed {
            if let Some(budgets) = self.by_workload.get_mut(&workload) {
                budgets.remove(budget);
                if budgets.is_empty() {
                    self.by_workload.remove(&workload);
                }
            }
        }
        true
    }

    fn kinds(&self) -> BTreeSet<Kind> {
        self.by_workload.keys().map(|(kind, _)| *kind).collect()
    }
}

impl Budgets {
    /// Watches the replicas of the workloads that budgets depend on, for ever, in one namespace or in all. `on_scaled` is
    /// called with the budgets that have to be recounted.
    pub async fn follow_totals(&self, only_namespace: Option<&str>, on_scaled: impl Fn(&ObjectKey) + Send + Sync) {
        let changed = |kind: Kind, workload: &ObjectKey| {
            let budgets = lock(&self.totals).by_workload.get(&(kind, workload.clone())).cloned().unwrap_or_default();
            if budgets.is_empty() {
                return;
            }
            self.workloads.forget(kind, workload);
            for budget in &budgets {
                // The next one who asks need not wait until it may be counted again.
                lock(&self.recounts).remove(budget);
                on_scaled(budget);
            }
        };
        self.replicas.follow(only_namespace, changed).await;
    }

    /// Records the workload that a budget names. Those of a budget with a selector are found when it is counted.
    pub(super) fn note_target(&self, budget: &PodUnavailableBudget) {
        let key = ObjectKey::of(budget);
        match Cover::of(&budget.spec) {
            Cover::Target { group, kind, name } => {
                let mut asked = Asked::default();
                asked.add(&key.namespace, &group, &kind, &name);
                self.ask_about(&key, asked);
            }
            Cover::Selector(_) => {}
            Cover::Nothing(_) => self.ask_no_more(&key),
        }
    }

    pub(super) fn ask_about(&self, budget: &ObjectKey, asked: Asked) {
        let mut totals = lock(&self.totals);
        if totals.set(budget, asked) {
            self.replicas.want(totals.kinds());
        }
    }

    pub(super) fn ask_no_more(&self, budget: &ObjectKey) {
        let mut totals = lock(&self.totals);
        if totals.remove(budget) {
            self.replicas.want(totals.kinds());
        }
    }

    /// Whether this process learns at once when the total of a budget changes.
    pub fn follows_total(&self, budget: &ObjectKey) -> bool {
        let totals = lock(&self.totals);
        totals
            .by_budget
            .get(budget)
            .is_none_or(|asked| !asked.others && asked.followed.iter().all(|(kind, _)| self.replicas.knows(*kind)))
    }

    /// The total of a budget for a workload that is followed, if it is not the one in its status.
    pub(super) fn other_total(
        &self,
        budget: &PodUnavailableBudget,
        status: &PodUnavailableBudgetStatus,
    ) -> Option<i32> {
        if rule::fixed_total(budget).is_some() {
            return None;
        }
        let Cover::Target { group, kind, name } = Cover::of(&budget.spec) else { return None };
        let workload = ObjectKey::new(&budget.namespace().unwrap_or_default(), &name);
        let total = self.replicas.desired(Kind::of(&group, &kind)?, &workload)?;
        (total != status.total_replicas).then_some(total)
    }
}
