//! What the status of a SidecarSet says.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::plan::{Held, MOST_NAMES, Named, Plan};
use crate::{
    api::apps::sidecar_set::{NOT_UPDATE, SidecarSetStatus},
    domain::workload::status::{self, Progress},
};

/// Condition: whether every Pod that has the containers can be updated in place.
pub const UPGRADABLE: &str = "Upgradable";
/// Condition: whether the repair of Pods that lack the containers has stopped, because another Pod lacked them as well. Only
/// where they are to be repaired.
pub const REPAIR_STOPPED: &str = "RepairStopped";

/// What is known besides the plan.
#[derive(Clone, Debug, Default)]
pub struct Facts<'a> {
    /// `metadata.generation`.
    pub generation: i64,
    /// The name of the latest revision.
    pub revision: &'a str,
    /// How often the name of a new revision was taken.
    pub collisions: i32,
    /// Pods that are to have the containers and do not.
    pub uninjected: usize,
    /// The first Pod that a budget keeps in service, and why.
    pub refused: Option<(String, String)>,
    /// The first Pod that could not be written, and why.
    pub failed: Option<(String, String)>,
    /// How the repair of Pods that lack the containers is; None: they are not to be repaired.
    pub repair: Option<Repair>,
}

/// How the repair of Pods that lack the containers is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// None lacks them.
    Done,
    /// Pods are evicted as far as they may be; with the first one that may not, and why.
    UnderWay(Option<(String, String)>),
    /// New Pods get nothing while the injection is paused.
    InjectionPaused,
    /// All that lack them have no controller that would make others.
    NotRepairable,
    /// It has stopped: this Pod took the place of one that was evicted, and lacks them too.
    Stopped(String),
}

impl Repair {
    fn condition(&self, facts: &Facts<'_>, recorded: &[status::Condition], now: Timestamp) -> status::Condition {
        let (reason, message) = match self {
            Self::Done => ("NothingToRepair", String::new()),
            Self::UnderWay(None) => ("Repairing", format!("{} Pods lack the containers", facts.uninjected)),
            Self::UnderWay(Some((pod, why))) => ("Repairing", format!("Pod {pod} is not evicted: {why}")),
            Self::InjectionPaused => ("InjectionPaused", "new Pods would lack the containers too".to_owned()),
            Self::NotRepairable => {
                let message =
                    format!("{} Pods have no controller that would make others in their place", facts.uninjected);
                ("NotRepairable", message)
            }
            Self::Stopped(pod) => {
                let message = format!(
                    "Pod {pod} was made in the place of an evicted one and lacks the containers too; no Pod is evicted before the spec changes, or the annotation is removed and set again"
                );
                ("ReplacementUninjected", message)
            }
        };
        status::set(recorded, REPAIR_STOPPED, matches!(self, Self::Stopped(_)), reason, &message, now)
    }
}

/// Whether the repair has stopped for the spec of this generation.
pub fn has_stopped(before: &SidecarSetStatus, generation: i64) -> bool {
    let mut conditions = before.conditions.iter();
    conditions.any(|c| c.type_ == REPAIR_STOPPED && c.status == "True" && c.observed_generation == Some(generation))
}

/// The status. `before` is the recorded one: times of conditions are kept.
pub fn status(plan: &Plan, facts: &Facts<'_>, before: &SidecarSetStatus, now: Timestamp) -> SidecarSetStatus {
    let counts = &plan.counts;
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let recorded: Vec<status::Condition> = before.conditions.iter().map(shared).collect();
    let mut conditions: Vec<status::Condition> = status::conditions(&progress(plan, facts), &recorded, now).into();
    conditions.push(upgradable(plan, &recorded, now));
    if has_stopped(before, facts.generation) && facts.repair.is_some() {
        // It names the Pod, which may be gone by now.
        conditions.extend(recorded.iter().filter(|condition| condition.type_ == REPAIR_STOPPED).cloned());
    } else {
        conditions.extend(facts.repair.as_ref().map(|repair| repair.condition(facts, &recorded, now)));
    }
    SidecarSetStatus {
        observed_generation: facts.generation.max(before.observed_generation),
        matched_pods: number(counts.matched),
        updated_pods: number(counts.updated),
        ready_pods: number(counts.ready),
        updated_ready_pods: number(counts.updated_ready),
        outdated_pods: number(counts.matched - counts.updated),
        not_upgradable_pods: number(counts.not_upgradable.len()),
        uninjected_pods: number(facts.uninjected),
        latest_revision: facts.revision.to_owned(),
        collision_count: facts.collisions,
        conditions: conditions.into_iter().map(|condition| own(condition, facts.generation)).collect(),
    }
}

/// The status of a SidecarSet that cannot be read: nothing is done on a guess.
pub fn invalid(why: &str, generation: i64, before: &SidecarSetStatus, now: Timestamp) -> SidecarSetStatus {
    let recorded: Vec<status::Condition> = before.conditions.iter().map(shared).collect();
    let stalled = Progress::Stalled { reason: "InvalidSpec".into(), message: why.to_owned() };
    let kept = recorded.iter().filter(|condition| [UPGRADABLE, REPAIR_STOPPED].contains(&&*condition.type_)).cloned();
    let conditions = status::conditions(&stalled, &recorded, now).into_iter().chain(kept);
    SidecarSetStatus {
        observed_generation: generation,
        conditions: conditions.map(|condition| own(condition, generation)).collect(),
        ..before.clone()
    }
}

/// The status while revisions can be neither read nor made, with the words of whoever was asked. Everything else stays as
/// recorded, the generation and the revision above all: the next pass learns from them that the revision of this spec is not
/// found out.
pub fn unresolved(why: &str, generation: i64, before: &SidecarSetStatus, now: Timestamp) -> SidecarSetStatus {
    let recorded: Vec<status::Condition> = before.conditions.iter().map(shared).collect();
    let message = format!("the revision cannot be found out: {why}");
    let waiting = Progress::Waiting { reason: status::REVISION_UNKNOWN.into(), message };
    let kstatus = status::conditions(&waiting, &recorded, now).map(|condition| own(condition, generation));
    let others = before.conditions.iter().filter(|condition| !status::KSTATUS.contains(&&*condition.type_)).cloned();
    SidecarSetStatus { conditions: kstatus.into_iter().chain(others).collect(), ..before.clone() }
}

fn progress(plan: &Plan, facts: &Facts<'_>) -> Progress {
    let waiting = |reason: &str, message: String| Progress::Waiting { reason: reason.into(), message };
    let counts = &plan.counts;
    if let Some((pod, why)) = &facts.failed {
        return waiting("FailedUpdatePod", format!("Pod {pod}: {why}{}", used_up(plan)));
    }
    if let Some((pod, why)) = &facts.refused {
        return waiting("BudgetRefused", format!("Pod {pod}: {why}{}", used_up(plan)));
    }
    if let Some(held) = plan.held {
        // One that only injects waits for no Pod that runs.
        let waits = if held == Held::NotUpdate { None } else { unready(plan) };
        return waits.unwrap_or_else(|| held_by(held, counts.matched - counts.updated));
    }
    if counts.updated < counts.matched {
        let message = format!("{} of {} Pods are updated{}", counts.updated, counts.matched, used_up(plan));
        return waiting("Updating", message);
    }
    unready(plan).unwrap_or(Progress::Available)
}

/// What is waited for in Pods that count as updated: they do so as soon as they are written, before kubelet acts.
fn unready(plan: &Plan) -> Option<Progress> {
    let counts = &plan.counts;
    let message = if counts.updated_ready < counts.updated {
        let down = names(&counts.updated_unready);
        format!("{} of {} updated Pods are ready; these are not: {down}", counts.updated_ready, counts.updated)
    } else if !plan.reset.is_empty() {
        let mut first = plan.reset.clone();
        first.sort_unstable();
        first.truncate(MOST_NAMES);
        let count = plan.reset.len();
        format!("the idle containers of {count} Pods are not reset yet: {}", names(&Named { count, first }))
    } else {
        return None;
    };
    Some(Progress::Waiting { reason: "PodsNotReady".into(), message })
}

fn held_by(held: Held, pods: usize) -> Progress {
    let (reason, why) = match held {
        Held::NotUpdate => (NOT_UPDATE, "the type of the update is NotUpdate"),
        Held::Paused => ("Paused", "the update is paused"),
        Held::Selector => (status::SELECTOR, "the selector of the update does not fit them"),
        Held::Partition => (status::PARTITION, "the partition keeps them"),
        Held::NoneUnavailable => ("MaxUnavailable", "maxUnavailable is 0, and they are in service"),
        Held::NotUpgradable => {
            ("NotUpgradable", "only other Pods in their place can be up to date; see the condition Upgradable")
        }
    };
    Progress::Held { reason: reason.into(), message: format!("{pods} Pods stay as they are: {why}") }
}

/// The Pods for which all others that are in service wait; nothing if there are none.
fn used_up(plan: &Plan) -> String {
    match plan.room == 0 && plan.down.count > 0 {
        true => format!("; {} Pods that are not ready use up maxUnavailable: {}", plan.down.count, names(&plan.down)),
        false => String::new(),
    }
}

/// The names of Pods, and whether there are more of them.
fn names(pods: &Named) -> String {
    let more = if pods.count > pods.first.len() { ", ..." } else { "" };
    format!("{}{more}", pods.first.join(", "))
}

/// One condition for all Pods that cannot be updated in place, with the reason of the first one.
fn upgradable(plan: &Plan, recorded: &[status::Condition], now: Timestamp) -> status::Condition {
    let refused = &plan.counts.not_upgradable;
    let Some((why, _)) = refused.first() else {
        return status::set(recorded, UPGRADABLE, true, "AllUpgradable", "", now);
    };
    let first = refused.iter().take(MOST_NAMES).map(|(_, name)| name.clone()).collect();
    let names = names(&Named { count: refused.len(), first });
    let message = format!("{} Pods cannot be updated in place: {names}", refused.len());
    status::set(recorded, UPGRADABLE, false, why.reason(), &message, now)
}

fn shared(condition: &Condition) -> status::Condition {
    status::Condition {
        type_: condition.type_.clone(),
        status: condition.status.clone(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        last_transition_time: Some(condition.last_transition_time.0),
    }
}

fn own(condition: status::Condition, generation: i64) -> Condition {
    let status::Condition { type_, status, reason, message, last_transition_time } = condition;
    Condition {
        type_,
        status,
        reason,
        message,
        last_transition_time: Time(last_transition_time.unwrap_or(Timestamp::UNIX_EPOCH)),
        observed_generation: Some(generation),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::domain::kinds::sidecar_set::{plan::Counts, pod::NotUpgradable};

    fn now() -> Timestamp {
        Timestamp::from_second(100).unwrap()
    }

    fn plan(matched: usize, updated: usize, ready: usize, held: Option<Held>) -> Plan {
        let counts = Counts { matched, updated, ready, updated_ready: ready.min(updated), ..Counts::default() };
        Plan { counts, held, ..Plan::default() }
    }

    fn told(plan: &Plan, facts: &Facts<'_>) -> (SidecarSetStatus, String, String) {
        let status = status(plan, facts, &SidecarSetStatus::default(), now());
        let is_true = status.conditions.iter().find(|c| c.status == "True" && c.type_ != UPGRADABLE).unwrap();
        let (type_, reason) = (is_true.type_.clone(), is_true.reason.clone());
        (status, type_, reason)
    }

    #[test]
    fn kstatus_says_what_is_waited_for_and_what_holds() {
        let none = Facts::default();
        let refused = Facts { refused: Some(("p".into(), "no".into())), ..Facts::default() };
        let failed = Facts { failed: Some(("p".into(), "no".into())), ..Facts::default() };
        let resetting = |plan: Plan| Plan { reset: vec!["ns/p".into()], ..plan };
        for (plan, facts, type_, reason) in [
            (plan(0, 0, 0, None), &none, "Ready", "Available"),
            (plan(3, 3, 3, None), &none, "Ready", "Available"),
            (plan(3, 1, 3, None), &none, "Reconciling", "Updating"),
            (plan(3, 3, 2, None), &none, "Reconciling", "PodsNotReady"),
            (plan(3, 1, 3, Some(Held::Partition)), &none, "Ready", "Partition"),
            (plan(3, 1, 3, Some(Held::Paused)), &none, "Ready", "Paused"),
            (plan(3, 1, 3, Some(Held::NoneUnavailable)), &none, "Ready", "MaxUnavailable"),
            // It counts as updated before kubelet has restarted the containers, and when they do not start.
            (plan(3, 1, 0, Some(Held::Partition)), &none, "Reconciling", "PodsNotReady"),
            (plan(3, 1, 0, Some(Held::Paused)), &none, "Reconciling", "PodsNotReady"),
            (plan(3, 1, 0, Some(Held::Selector)), &none, "Reconciling", "PodsNotReady"),
            (plan(3, 1, 0, Some(Held::NoneUnavailable)), &none, "Reconciling", "PodsNotReady"),
            (plan(3, 1, 0, Some(Held::NotUpgradable)), &none, "Reconciling", "PodsNotReady"),
            (plan(3, 1, 0, Some(Held::NotUpdate)), &none, "Ready", "NotUpdate"),
            // Both versions run in it.
            (resetting(plan(3, 1, 3, Some(Held::Paused))), &none, "Reconciling", "PodsNotReady"),
            (resetting(plan(3, 3, 3, None)), &none, "Reconciling", "PodsNotReady"),
            (plan(3, 1, 3, None), &refused, "Reconciling", "BudgetRefused"),
            (plan(3, 1, 3, None), &failed, "Reconciling", "FailedUpdatePod"),
        ] {
            let (_, is, why) = told(&plan, facts);
            assert_eq!((is.as_str(), why.as_str()), (type_, reason), "{plan:?}");
        }
    }

    /// The way to the Pod that holds up the others.
    #[test]
    fn pods_that_are_waited_for_are_named() {
        let message = |plan: &Plan| {
            let (status, ..) = told(plan, &Facts::default());
            status.conditions.iter().find(|c| c.type_ == "Reconciling").unwrap().message.clone()
        };
        let named = |count: usize| {
            let first = (0..count.min(MOST_NAMES)).map(|i| format!("ns/p{i}")).collect();
            Named { count, first }
        };
        let under_way = Plan { room: 1, down: named(1), ..plan(9, 3, 8, None) };
        assert_eq!(message(&under_way), "3 of 9 Pods are updated", "others go on");
        let held_up = Plan { room: 0, down: named(6), ..plan(9, 7, 1, None) };
        assert_eq!(
            message(&held_up),
            "7 of 9 Pods are updated; 6 Pods that are not ready use up maxUnavailable: ns/p0, ns/p1, ns/p2, ns/p3, ns/p4, ..."
        );
        let refused = Facts { refused: Some(("ns/p".into(), "no".into())), ..Facts::default() };
        let (status, ..) = told(&Plan { down: named(1), ..plan(9, 7, 8, None) }, &refused);
        let reconciling = status.conditions.iter().find(|c| c.type_ == "Reconciling").unwrap();
        assert_eq!(reconciling.message, "Pod ns/p: no; 1 Pods that are not ready use up maxUnavailable: ns/p0");
        let mut all = plan(3, 3, 2, None);
        all.counts.updated_unready = named(1);
        assert_eq!(message(&all), "2 of 3 updated Pods are ready; these are not: ns/p0");
        let held = Plan { held: Some(Held::Partition), ..all };
        assert_eq!(message(&held), "2 of 3 updated Pods are ready; these are not: ns/p0");
        // Those last whose reset was refused.
        let reset = ["f", "e", "d", "c", "b", "a"].map(|name| format!("ns/{name}")).to_vec();
        let resets = Plan { reset, ..plan(6, 6, 6, None) };
        assert_eq!(
            message(&resets),
            "the idle containers of 6 Pods are not reset yet: ns/a, ns/b, ns/c, ns/d, ns/e, ..."
        );
    }

    #[test]
    fn e22_pods_that_cannot_be_updated_are_counted_and_told_in_one_condition() {
        let mut plan = plan(7, 0, 7, Some(Held::NotUpgradable));
        let names = (0..7).map(|i| (NotUpgradable::OtherChange, format!("p{i}")));
        plan.counts.not_upgradable = names.collect::<BTreeSet<_>>();
        let (status, type_, _) = told(&plan, &Facts::default());
        assert_eq!((status.not_upgradable_pods, status.outdated_pods, type_.as_str()), (7, 7, "Ready"));
        let condition = status.conditions.iter().find(|c| c.type_ == UPGRADABLE).unwrap();
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "OtherChange"));
        assert!(condition.message.ends_with("p4, ..."), "{}", condition.message);
    }

    #[test]
    fn a_repair_that_has_stopped_says_so_until_the_spec_changes() {
        let facts =
            |generation, repair: Option<Repair>| Facts { generation, uninjected: 2, repair, ..Facts::default() };
        let condition = |status: &SidecarSetStatus| {
            let found = status.conditions.iter().find(|c| c.type_ == REPAIR_STOPPED);
            found.map(|c| (c.status.clone(), c.reason.clone(), c.message.clone()))
        };
        let told = |facts: &Facts<'_>, before: &SidecarSetStatus| status(&plan(0, 0, 0, None), facts, before, now());
        let none = SidecarSetStatus::default();
        assert_eq!(condition(&told(&facts(3, None), &none)), None, "nothing is to be repaired");
        for (repair, is_stopped, reason, words) in [
            (Repair::Done, "False", "NothingToRepair", ""),
            (Repair::UnderWay(None), "False", "Repairing", "2 Pods"),
            (Repair::UnderWay(Some(("ns/p".into(), "no".into()))), "False", "Repairing", "Pod ns/p is not evicted: no"),
            (Repair::InjectionPaused, "False", "InjectionPaused", "new Pods"),
            (Repair::NotRepairable, "False", "NotRepairable", "2 Pods have no controller"),
            (Repair::Stopped("ns/p".into()), "True", "ReplacementUninjected", "Pod ns/p was made"),
        ] {
            let (status, why, message) = condition(&told(&facts(3, Some(repair)), &none)).unwrap();
            assert_eq!((status.as_str(), why.as_str()), (is_stopped, reason));
            assert!(message.starts_with(words), "{message}");
        }
        let stopped = told(&facts(3, Some(Repair::Stopped("ns/p".into()))), &none);
        assert!(has_stopped(&stopped, 3) && !has_stopped(&stopped, 4));
        let later = told(&facts(3, Some(Repair::UnderWay(None))), &stopped);
        assert_eq!(condition(&later), condition(&stopped), "it stays as it is");
        assert_eq!(condition(&told(&facts(4, Some(Repair::Done)), &stopped)).unwrap().0, "False");
        assert_eq!(condition(&told(&facts(3, None), &stopped)), None, "the annotation is removed");
    }

    #[test]
    fn a_revision_that_is_not_known_is_waited_for_and_everything_else_stays() {
        let repair = Some(Repair::Stopped("ns/p".into()));
        let facts = Facts { generation: 3, revision: "r", uninjected: 2, repair, ..Facts::default() };
        let first = status(&plan(3, 3, 3, None), &facts, &SidecarSetStatus::default(), now());
        let later = Timestamp::from_second(200).unwrap();
        let waiting = unresolved("code 403", 4, &first, later);
        let of_type = |status: &SidecarSetStatus, type_| status.conditions.iter().find(|c| c.type_ == type_).cloned();
        let reconciling = of_type(&waiting, status::RECONCILING).unwrap();
        assert_eq!((reconciling.status.as_str(), reconciling.reason.as_str()), ("True", "RevisionUnknown"));
        assert_eq!(reconciling.message, "the revision cannot be found out: code 403");
        for type_ in [UPGRADABLE, REPAIR_STOPPED] {
            assert_eq!(of_type(&waiting, type_), of_type(&first, type_), "{type_}");
        }
        let conditions = first.conditions.clone();
        assert_eq!(SidecarSetStatus { conditions, ..waiting.clone() }, first);
        assert_eq!(unresolved("code 403", 4, &waiting, later), waiting, "it says so once");
        let known = status(&plan(3, 3, 3, None), &Facts { generation: 4, ..facts }, &waiting, later);
        assert_eq!((known.observed_generation, of_type(&known, status::READY).unwrap().status.as_str()), (4, "True"));
    }

    #[test]
    fn d22_nothing_is_new_when_nothing_has_changed() {
        let facts = Facts { generation: 3, revision: "r", uninjected: 2, ..Facts::default() };
        let first = status(&plan(3, 3, 3, None), &facts, &SidecarSetStatus::default(), now());
        assert_eq!((first.observed_generation, first.uninjected_pods, first.collision_count), (3, 2, 0));
        let later = Timestamp::from_second(200).unwrap();
        assert_eq!(status(&plan(3, 3, 3, None), &facts, &first, later), first);
        let odd = invalid("spec.x: odd", 4, &first, later);
        assert_eq!((odd.matched_pods, odd.observed_generation), (3, 4));
        assert!(
            odd.conditions.iter().any(|c| c.type_ == "Stalled" && c.status == "True" && c.message == "spec.x: odd")
        );
    }
}
