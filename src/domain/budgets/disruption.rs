//! PodDisruptionBudgets: how many Pods restarts may make unavailable now.
//!
//! The disruption controller writes the status of a PodDisruptionBudget, and sees that a Pod is unready later than we do.
//! Therefore nothing is allowed while the status is of another generation of the spec; our own restarts are subtracted as
//! long as their Pods are still counted as healthy; and Pods that we see unready are subtracted even if the status still
//! counts them.
//!
//! An eviction is recorded in the budget at once, a restart only when its Pod becomes unready. So a drain that evicts
//! between our decision and that moment (mostly under two seconds) can use the disruption that we use too: then one more
//! Pod than allowed is unavailable until the restart is over. The reverse cannot happen if the budget is read from the API
//! server before each decision.
//!
//! Decisions about one budget have to be made one after the other, each with the restarts that earlier ones began.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::k8s::{
    pod::{Labels, PodView},
    selector::Selector,
};

/// A PodDisruptionBudget and how many disruptions it still allows in this decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    /// Its name.
    pub name: String,
    /// The Pods that it covers.
    pub selector: Selector,
    /// Disruptions that may still begin, or why none may.
    pub left: Result<usize, NoDisruption>,
}

/// Why a PodDisruptionBudget, which is named, allows no disruption.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDisruption {
    /// Its selector cannot be read, and why.
    #[error("PodDisruptionBudget {0}: spec.selector: {1}")]
    Unreadable(String, String),
    /// Its status is about an older spec.
    #[error("the status of PodDisruptionBudget {0} is not about its current spec yet")]
    Outdated(String),
    /// All that it allows are under way.
    #[error("PodDisruptionBudget {0} allows no disruption now")]
    UsedUp(String),
}

impl Budget {
    /// Judges a PodDisruptionBudget by its status and by the Pods of its namespace, each with whether a restart of ours
    /// is under way. None: it covers no Pod.
    pub fn of<'p>(budget: &PodDisruptionBudget, pods: impl Iterator<Item = (&'p PodView, bool)>) -> Option<Self> {
        let name = budget.metadata.name.clone().unwrap_or_default();
        // Without a selector it covers nothing; with an empty one, everything.
        let selector = match Selector::of(budget.spec.as_ref()?.selector.as_ref()?) {
            Ok(selector) => selector,
            Err(error) => {
                let left = Err(NoDisruption::Unreadable(name.clone(), error.to_string()));
                return Some(Self { name, selector: Selector::default(), left });
            }
        };
        let (mut ready, mut taken) = (0, 0);
        for (pod, restarting) in pods.filter(|(pod, _)| selector.matches(&pod.labels)) {
            if counts_as_healthy(pod) {
                ready += 1;
                taken += i64::from(restarting);
            }
        }
        let left = match &budget.status {
            Some(status) if status.observed_generation >= budget.metadata.generation => {
                let counted: i64 = status.current_healthy.into();
                let allowed = i64::from(status.disruptions_allowed) - (counted - ready).max(0) - taken;
                Ok(usize::try_from(allowed).unwrap_or(0))
            }
            _ => Err(NoDisruption::Outdated(name.clone())),
        };
        Some(Self { name, selector, left })
    }
}

fn counts_as_healthy(pod: &PodView) -> bool {
    !pod.is_deleting() && pod.condition_is_true("Ready")
}

/// Takes one disruption of every budget that covers a Pod with these labels, or none of any.
///
/// # Errors
/// Why one of them does not allow it.
pub fn take(budgets: &mut [Budget], labels: &Labels) -> Result<(), NoDisruption> {
    for budget in budgets.iter().filter(|budget| budget.selector.matches(labels)) {
        match &budget.left {
            Ok(0) => return Err(NoDisruption::UsedUp(budget.name.clone())),
            Ok(_) => {}
            Err(why) => return Err(why.clone()),
        }
    }
    for budget in budgets.iter_mut().filter(|budget| budget.selector.matches(labels)) {
        if let Ok(left) = &mut budget.left {
            *left -= 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, ready: bool) -> PodView {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"app": "web"}},
            "status": {"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
        }))
        .unwrap()
    }

    fn pdb(changes: Value) -> PodDisruptionBudget {
        let mut object = json!({
            "metadata": {"name": "b", "generation": 2},
            "spec": {"selector": {"matchLabels": {"app": "web"}}},
            "status": {"observedGeneration": 2, "disruptionsAllowed": 2, "currentHealthy": 4, "desiredHealthy": 2, "expectedPods": 4},
        });
        json_patch::merge(&mut object, &changes);
        serde_json::from_value(object).unwrap()
    }

    /// What is left with these Pods: ready or not, restarting or not.
    fn left(changes: Value, pods: &[(bool, bool)]) -> Result<usize, NoDisruption> {
        let pods: Vec<(PodView, bool)> = pods.iter().map(|(ready, ours)| (pod("p", *ready), *ours)).collect();
        Budget::of(&pdb(changes), pods.iter().map(|(pod, ours)| (pod, *ours))).unwrap().left
    }

    const HEALTHY: (bool, bool) = (true, false);
    const BEGUN: (bool, bool) = (true, true);
    const DOWN: (bool, bool) = (false, true);

    #[test]
    fn what_the_status_allows_is_left() {
        assert_eq!(left(json!({}), &[HEALTHY; 4]), Ok(2));
    }

    #[test]
    fn own_restarts_that_are_still_counted_healthy_are_taken_off() {
        assert_eq!(left(json!({}), &[BEGUN, HEALTHY, HEALTHY, HEALTHY]), Ok(1));
        assert_eq!(left(json!({}), &[BEGUN, BEGUN, BEGUN, HEALTHY]), Ok(0));
    }

    #[test]
    fn a_pod_that_is_down_and_that_the_status_knows_of_is_not_taken_off_twice() {
        let known = json!({"status": {"disruptionsAllowed": 1, "currentHealthy": 3}});
        assert_eq!(left(known, &[DOWN, HEALTHY, HEALTHY, HEALTHY]), Ok(1));
    }

    #[test]
    fn a_pod_that_is_down_is_taken_off_before_the_status_knows_of_it() {
        assert_eq!(left(json!({}), &[DOWN, HEALTHY, HEALTHY, HEALTHY]), Ok(1));
        assert_eq!(left(json!({}), &[DOWN, BEGUN, HEALTHY, HEALTHY]), Ok(0));
    }

    #[test]
    fn a_status_that_is_late_to_see_a_pod_come_back_allows_no_more_than_it_says() {
        let late = json!({"status": {"disruptionsAllowed": 1, "currentHealthy": 3}});
        assert_eq!(left(late, &[HEALTHY; 4]), Ok(1));
    }

    #[test]
    fn nothing_is_allowed_while_the_status_is_about_another_spec() {
        let why = left(json!({"metadata": {"generation": 3}}), &[HEALTHY; 4]).unwrap_err();
        assert_eq!(why.to_string(), "the status of PodDisruptionBudget b is not about its current spec yet");
        left(json!({"status": null}), &[HEALTHY; 4]).unwrap_err();
    }

    #[test]
    fn a_budget_without_a_selector_covers_nothing_and_one_with_an_empty_one_everything() {
        let none = pdb(json!({"spec": {"selector": null}}));
        assert_eq!(Budget::of(&none, std::iter::empty()), None);
        let all = pdb(json!({"spec": {"selector": {"matchLabels": null}}}));
        let budget = Budget::of(&all, std::iter::empty()).unwrap();
        assert!(budget.selector.matches(&pod("p", true).labels));
    }

    #[test]
    fn a_pod_under_two_budgets_needs_both_and_takes_from_both_or_none() {
        let budget = |left| Budget { name: "b".into(), selector: Selector::parse("app=web").unwrap(), left };
        let labels = &pod("p", true).labels;
        let mut budgets = [budget(Ok(2)), budget(Ok(1))];
        take(&mut budgets, labels).unwrap();
        assert_eq!(take(&mut budgets, labels), Err(NoDisruption::UsedUp("b".into())));
        assert_eq!(budgets.map(|b| b.left), [Ok(1), Ok(0)]);
        take(&mut [Budget { selector: Selector::parse("app=db").unwrap(), ..budget(Ok(0)) }], labels).unwrap();
    }
}
