//! Which Pods are restarted now, and what the round waits for if none is.

use std::time::Duration;

use super::{
    AFTER_REFUSAL, ObservedPods, PodFacts, REFRESH, RestartPlan, RestartSpec, Start, listed,
    stage::{PodStage, wanted_containers},
};
use crate::{
    api::wr::Order,
    domain::budgets::disruption,
    k8s::{int_or_percent, pod::PodView},
};

/// Pods whose volumes are refreshed ahead, in multiples of what may be unavailable: their wait then delays no wave.
const REFRESHED_AHEAD: usize = 3;
/// Pods begun by one plan. More follow at once, from newly read objects: a pause is noticed in between.
const STARTS: usize = 20;

/// What `maxUnavailable` leaves.
struct Room {
    /// Pods that it allows.
    limit: usize,
    /// Pods that there should be.
    wanted: usize,
    /// Pods that are missing or not available.
    unavailable: usize,
    /// Restarts that may begin.
    restarts: usize,
    /// Those of them that may take a ready Pod out of service.
    restarts_of_ready: usize,
}

impl Room {
    fn of(spec: &RestartSpec, pods: &[(&PodFacts<'_>, PodStage)], wanted: usize) -> Self {
        let limit = spec.limit(wanted);
        let is_begun = |pod: &&(&PodFacts<'_>, PodStage)| pod.0.busy || pod.1.is_under_way();
        let begun = pods.iter().filter(is_begun).count();
        let available = pods.iter().filter(|pod| !is_begun(pod) && is_ready(pod.0.pod)).count();
        let unavailable = wanted - available.min(wanted);
        Self {
            limit,
            wanted,
            unavailable,
            restarts: limit.saturating_sub(begun),
            restarts_of_ready: limit.saturating_sub(unavailable),
        }
    }

    fn allows(&self, ready: bool) -> bool {
        self.restarts > 0 && (!ready || self.restarts_of_ready > 0)
    }

    fn take(&mut self, ready: bool) {
        self.restarts -= 1;
        if ready {
            self.restarts_of_ready -= 1;
        }
    }
}

/// Why Pods that are due were not begun.
#[derive(Default)]
struct Held {
    /// A PodDisruptionBudget, in words.
    by_budget: Option<String>,
    /// The volumes of a Pod are being refreshed.
    by_refresh: bool,
    /// A write for a Pod was refused and is tried again, in words.
    by_refusal: Option<String>,
}

/// Chooses the Pods to restart now; gives reason and message of the condition Progressing.
pub(super) fn choose(
    plan: &mut RestartPlan,
    observed: &ObservedPods<'_>,
    pods: &[(&PodFacts<'_>, PodStage)],
    due: &[&PodFacts<'_>],
    wanted: usize,
    order: Order,
) -> (&'static str, String) {
    let mut room = Room::of(observed.spec, pods, wanted);
    let mut due = due.to_vec();
    if order == Order::NodeByNode {
        let is_open = |facts: &PodFacts<'_>, stage: &PodStage| {
            stage.is_under_way() || due.iter().any(|due| due.pod.uid() == facts.pod.uid())
        };
        let first = pods.iter().find(|(facts, stage)| is_open(facts, stage));
        let node = first.map(|(facts, _)| facts.pod.node_name.clone());
        due.retain(|facts| Some(&facts.pod.node_name) == node.as_ref());
    }
    if observed.restart.is_triggered() {
        let ahead = due.iter().take(room.limit.saturating_mul(REFRESHED_AHEAD));
        let ahead = ahead.filter(|facts| facts.refreshed.is_none() && refusal_wait(facts).is_zero());
        plan.touch = ahead.map(|facts| (facts.pod.name().to_owned(), facts.pod.uid().to_owned())).collect();
    }
    let held = start(plan, observed, &due, &mut room, order);
    reason(plan, observed.spec, pods, held, &room)
}

/// Begins as many Pods as there is room for.
fn start(
    plan: &mut RestartPlan,
    observed: &ObservedPods<'_>,
    due: &[&PodFacts<'_>],
    room: &mut Room,
    order: Order,
) -> Held {
    let triggered = observed.restart.is_triggered();
    let mut held = Held::default();
    let mut budgets = observed.budgets.clone();
    // Pods that are not ready go first: restarting them makes nothing unavailable.
    let (ready, down): (Vec<&PodFacts<'_>>, Vec<&PodFacts<'_>>) = due.iter().partition(|facts| is_ready(facts.pod));
    for facts in down.into_iter().chain(ready) {
        let ready = is_ready(facts.pod);
        if !room.allows(ready) {
            break;
        }
        if plan.start.len() == STARTS {
            plan.look_after(Duration::ZERO);
            break;
        }
        if facts.busy {
            continue;
        }
        // After a refusal its volumes may have to be refreshed yet: that is asked first.
        let refused = refusal_wait(facts);
        let wait = if triggered && refused.is_zero() { refresh_wait(facts) } else { refused };
        if wait.is_zero() {
            if ready && let Err(why) = disruption::take(&mut budgets, &facts.pod.labels) {
                held.by_budget.get_or_insert_with(|| why.to_string());
                if order == Order::Ordinal {
                    break;
                }
                continue;
            }
            plan.start.push(Start {
                pod: facts.pod.name().to_owned(),
                uid: facts.pod.uid().to_owned(),
                containers: wanted_containers(facts, observed.spec).into_iter().map(str::to_owned).collect(),
            });
        } else {
            if let Some((_, _, why)) = facts.refused {
                held.by_refusal.get_or_insert_with(|| format!("{}: {why}", facts.pod.name()));
            } else {
                held.by_refresh = true;
            }
            plan.look_after(wait);
        }
        // A Pod that waits keeps its place, so that no other overtakes it.
        room.take(ready);
    }
    held
}

/// What the round does or waits for.
fn reason(
    plan: &RestartPlan,
    spec: &RestartSpec,
    pods: &[(&PodFacts<'_>, PodStage)],
    held: Held,
    room: &Room,
) -> (&'static str, String) {
    let names = |fits: &dyn Fn(&PodFacts<'_>, &PodStage) -> bool| {
        let fitting = pods.iter().filter(|(facts, stage)| fits(facts, stage));
        listed(&fitting.map(|(facts, _)| facts.pod.name().to_owned()).collect::<Vec<_>>(), ", ")
    };
    if !plan.start.is_empty() {
        let starting: Vec<String> = plan.start.iter().map(|start| start.pod.clone()).collect();
        return ("Restarting", format!("restarting {}", listed(&starting, ", ")));
    }
    if let Some(why) = held.by_budget {
        return ("WaitingForBudget", why);
    }
    if pods.iter().any(|(_, stage)| *stage == PodStage::Restarting) {
        return ("Restarting", format!("restarting {}", names(&|_, stage| *stage == PodStage::Restarting)));
    }
    if pods.iter().any(|(_, stage)| *stage == PodStage::NotReady) {
        let not_ready = names(&|_, stage| *stage == PodStage::NotReady);
        let how_long = match spec.min_ready.as_secs() {
            0 => String::new(),
            seconds => format!(" for {seconds} s"),
        };
        return ("WaitingForReady", format!("restarted, and not ready{how_long} yet: {not_ready}"));
    }
    if let Some(why) = held.by_refusal {
        return ("RequestsFailing", format!("refused, and tried again: {why}"));
    }
    if held.by_refresh {
        return ("RefreshingVolumes", "the volumes of the next Pods are refreshed on their nodes".to_owned());
    }
    let Room { wanted, unavailable, .. } = room;
    let missing = wanted.saturating_sub(pods.len());
    let missing = if missing == 0 { String::new() } else { format!("; {missing} do not exist") };
    let down = names(&|facts, _| !is_ready(facts.pod) || facts.busy);
    let message = format!(
        "{unavailable} of {wanted} Pods are unavailable, spec.maxUnavailable is {}: {down}{missing}",
        int_or_percent::text(&spec.max_unavailable)
    );
    ("WaitingForPods", message)
}

fn refusal_wait(facts: &PodFacts<'_>) -> Duration {
    facts.refused.map_or(Duration::ZERO, |(_, ago, _)| AFTER_REFUSAL.saturating_sub(ago))
}

fn refresh_wait(facts: &PodFacts<'_>) -> Duration {
    REFRESH.saturating_sub(facts.refreshed.unwrap_or_default())
}

fn is_ready(pod: &PodView) -> bool {
    pod.condition_is_true("Ready")
}
