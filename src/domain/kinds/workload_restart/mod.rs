//! PURE: what a WorkloadRestart does next.
//!
//! [`begin`] decides from the object and its triggers alone: whether a round begins, is under way, or has ended.
//! [`advance`] moves a round on: which Pods to restart now, and what to say. A round is first written down and only then
//! acted on, and the only record of a Pod's restart is its request: whoever plans next finds the same state.
//!
//! ```text
//!  no round --created | trigger changed--> round --all Pods done--> Complete --TTL--> deleted
//!                                            |                         |
//!                                            +--threshold, deadline--> Failed --trigger changed--> next round
//! ```

use std::{cmp::Reverse, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, Time},
    util::intstr::IntOrString,
};

use crate::{
    api::{
        crr::ContainerRecreateRequest,
        labels::{CONDITION_COMPLETE, CONDITION_FAILED, CONDITION_PROGRESSING, CONDITION_TRIGGERS_READABLE},
        wr::{
            DEFAULT_MAX_UNAVAILABLE, Order, Trigger, TriggerState, WorkloadRestart, WorkloadRestartSpec,
            WorkloadRestartStatus,
        },
    },
    domain::{
        budgets::disruption::{self, Budget},
        node::recreate::{POD_GONE, manager},
    },
    k8s::{
        int_or_percent::{self, Round},
        name::ObjectName,
        pod::PodView,
        time::{Now, whole_seconds},
    },
};

/// How long a Pod waits after its node was asked to refresh its volumes. kubelet acts on the changed Pod at once, mounts
/// anew within two of its 100 ms loops, and reads ConfigMaps and Secrets through watches, which it opens again within a
/// second; measured on a busy node, the new file was there within 0.3 s of the touch.
pub const REFRESH: Duration = Duration::from_secs(5);
/// Pods that are touched ahead, in multiples of what may be unavailable: their wait then costs no wave any time.
const TOUCH_AHEAD: usize = 3;
/// Pods begun by one plan. More follow at once, from a new look: a pause is noticed in between.
const STARTS: usize = 20;
/// A request that was refused this often is a failure of its Pod; before that the Pod may only have looked different to
/// admission than to us.
pub const REFUSALS: u32 = 3;
/// Time between two attempts after a refusal.
pub const AFTER_REFUSAL: Duration = Duration::from_secs(1);
/// The target's size is read again this often while a round goes on.
pub const TARGET_AGE: Duration = Duration::from_secs(10);
/// Names in a message.
const NAMES: usize = 4;

/// What is known of a trigger.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// Not read yet.
    Unknown,
    /// The API server does not let us watch it, with its words.
    Forbidden(String),
    /// It does not exist.
    Missing,
    /// It exists.
    Present {
        /// Of its data.
        hash: String,
        /// Its last change by the API server's clock.
        changed: Option<Timestamp>,
    },
}

/// What is known of the target.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// Its Pods are known.
    Known {
        /// How many Pods it wants, if it says so.
        desired: Option<usize>,
        /// Whether its Pods have ordinals.
        ordinals: bool,
    },
    /// It does not exist, in words.
    Missing(String),
    /// It cannot be read until somebody changes something.
    Unreadable {
        /// Of the condition.
        reason: &'static str,
        /// In words.
        message: String,
    },
}

/// One Pod of the target.
#[derive(Clone, Debug)]
pub struct PodFacts<'a> {
    pub pod: &'a PodView,
    /// The request of this round for it.
    pub request: Option<&'a ContainerRecreateRequest>,
    /// Whether a request of another round or another WorkloadRestart is under way for it.
    pub busy: bool,
    /// How often admission refused a request for it in this round, when last, and why.
    pub refused: Option<(u32, Duration, &'a str)>,
    /// How long it has been ready since its restart. None: it is not ready.
    pub ready_for: Option<Duration>,
    /// How long ago its node was asked to refresh its volumes, for this round.
    pub refreshed: Option<Duration>,
}

/// Everything that [`advance`] decides from.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    pub restart: &'a WorkloadRestart,
    pub target: Target,
    /// All Pods of the target, in no order.
    pub pods: Vec<PodFacts<'a>>,
    /// The budgets of the namespace.
    pub budgets: Vec<Budget>,
    /// How long ago the round began.
    pub age: Duration,
}

/// A Pod whose restart begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    pub pod: String,
    pub uid: String,
    pub containers: Vec<String>,
}

/// An event.
#[derive(Clone, Debug, PartialEq)]
pub struct Tell {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

/// What to do now, and when to look again if nothing happens before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Pods (name and UID) whose volumes their node has to refresh.
    pub touch: Vec<(String, String)>,
    /// Pods to restart.
    pub start: Vec<Start>,
    /// The status to record.
    pub status: WorkloadRestartStatus,
    /// To be told once the status is recorded.
    pub tell: Option<Tell>,
    /// Requests of earlier rounds can go.
    pub forget_earlier_rounds: bool,
    /// The time to live is over.
    pub delete: bool,
    /// None: an event will come, or nothing is left to do.
    pub requeue: Option<Duration>,
}

impl Plan {
    fn look_after(&mut self, delay: Duration) {
        self.requeue = Some(self.requeue.map_or(delay, |earlier| earlier.min(delay)));
    }
}

impl Plan {
    /// Says in the status that requests cannot be made; they are tried again.
    pub fn requests_failed(&mut self, error: &str, now: Now) {
        let message = format!("requests cannot be made and are tried again: {error}");
        progress(&mut self.status, "True", "RequestsFailing", message, now);
    }
}

impl Plan {
    /// Says that a PodUnavailableBudget does not let a Pod be restarted now; it is asked again soon.
    pub fn waits_for_budget(&mut self, why: String, now: Now) {
        if self.start.is_empty() {
            progress(&mut self.status, "True", "WaitingForBudget", why, now);
        }
        self.look_after(AFTER_REFUSAL);
    }
}

/// Whether a round is under way, so that Pods have to be looked at.
pub fn is_active(restart: &WorkloadRestart) -> bool {
    let Some(status) = &restart.status else { return !restart.is_triggered() };
    // What had been begun when the round ended is still counted to its end.
    let under_way = !status.has_ended() || status.restarting > 0;
    !restart.is_deleting() && under_way && (status.round > 0 || !restart.is_triggered())
}

/// Decides what needs no look at Pods. None: a round is under way.
pub fn begin(restart: &WorkloadRestart, seen: &[Seen], ended: Option<Duration>, now: Now) -> Option<Plan> {
    let mut plan = Plan { status: status_of(restart), ..Plan::default() };
    if restart.is_deleting() {
        return Some(plan);
    }
    let status = &mut plan.status;
    if !restart.is_triggered() {
        if status.round == 0 {
            let created = restart.metadata.creation_timestamp.as_ref().map(|t| t.0);
            begin_round(status, created, "created".to_owned(), now);
            plan.requeue = Some(Duration::ZERO);
            return Some(plan);
        }
        if is_active(restart) {
            return None;
        }
        if let Some(ttl) = restart.spec.ttl_seconds_after_finished {
            let ttl = Duration::from_secs(ttl.try_into().unwrap_or(0));
            match ttl.checked_sub(ended.unwrap_or_default()) {
                Some(left) if !left.is_zero() => plan.look_after(left),
                _ => plan.delete = true,
            }
        }
        return Some(plan);
    }

    judge_readable(restart, seen, status, now);
    let changes = take_over(restart.triggers(), seen, status);
    if !changes.is_empty() {
        let when: Option<Vec<Timestamp>> = changes.iter().map(|(_, changed)| *changed).collect();
        let names: Vec<String> = changes.iter().map(|(t, _)| format!("{} {}", t.kind.as_str(), t.name)).collect();
        let why = format!("{} changed", names.join(", "));
        begin_round(status, when.and_then(|times| times.into_iter().max()), why.clone(), now);
        let message = format!("round {}: {why}", status.round);
        plan.tell = Some(Tell { warning: false, reason: "RoundStarted", message });
        plan.requeue = Some(Duration::ZERO);
        return Some(plan);
    }
    // The recorded status decides, as the plan's own has not been written yet.
    if is_active(restart) && *status == status_of(restart) {
        return None;
    }
    if status.round == 0 && seen.iter().all(|seen| *seen != Seen::Unknown) {
        let message = "nothing is restarted before the first change of a trigger";
        progress(status, "False", "WaitingForChange", message.to_owned(), now);
    }
    plan.forget_earlier_rounds = status.round > 0;
    if is_active(restart) {
        plan.requeue = Some(Duration::ZERO);
    }
    Some(plan)
}

fn begin_round(status: &mut WorkloadRestartStatus, created_before: Option<Timestamp>, why: String, now: Now) {
    let begun = whole_seconds(now.wall);
    *status = WorkloadRestartStatus {
        observed_generation: status.observed_generation,
        round: status.round + 1,
        start_time: Some(begun),
        pods_created_before: created_before,
        triggers: std::mem::take(&mut status.triggers),
        conditions: std::mem::take(&mut status.conditions),
        ..WorkloadRestartStatus::default()
    };
    for type_ in [CONDITION_COMPLETE, CONDITION_FAILED] {
        condition(status, type_, "False", "RoundBegun", String::new(), now);
    }
    progress(status, "True", "Restarting", why, now);
}

/// Whether the triggers can be watched; told in a condition.
fn judge_readable(restart: &WorkloadRestart, seen: &[Seen], status: &mut WorkloadRestartStatus, now: Now) {
    let forbidden = restart.triggers().iter().zip(seen).filter_map(|(trigger, seen)| match seen {
        Seen::Forbidden(why) => Some((trigger, why)),
        Seen::Unknown | Seen::Missing | Seen::Present { .. } => None,
    });
    let forbidden: Vec<(&Trigger, &String)> = forbidden.collect();
    let bad = restart.triggers().iter().enumerate().find_map(|(i, t)| Some((i, ObjectName::parse(&t.name).err()?)));
    if let Some((i, error)) = bad {
        let message = format!("spec.triggers[{i}].name: {error}");
        condition(status, CONDITION_TRIGGERS_READABLE, "False", "InvalidName", message, now);
    } else if let Some((first, why)) = forbidden.first() {
        let names: Vec<String> = forbidden.iter().map(|(t, _)| format!("{} {}", t.kind.as_str(), t.name)).collect();
        let resource = format!("{}s", first.kind.as_str().to_lowercase());
        let message = format!(
            "spec.triggers: {} cannot be watched; grant it to Kruise's manager with a Role in this namespace: verbs list and watch, resource {resource}, resourceNames [{}]. The API server says: {why}",
            names.join(", "),
            first.name
        );
        condition(status, CONDITION_TRIGGERS_READABLE, "False", "Forbidden", message, now);
    } else if seen.iter().all(|seen| *seen != Seen::Unknown) {
        condition(status, CONDITION_TRIGGERS_READABLE, "True", "Watched", "all triggers are watched".to_owned(), now);
    }
}

/// Records the triggers as they are; gives those that changed, with when. One that is seen for the first time is no
/// change, and neither is one that went away: Pods would not start again without it.
fn take_over<'t>(
    triggers: &'t [Trigger],
    seen: &[Seen],
    status: &mut WorkloadRestartStatus,
) -> Vec<(&'t Trigger, Option<Timestamp>)> {
    let of = |trigger: &Trigger, state: &TriggerState| state.kind == trigger.kind && state.name == trigger.name;
    let mut changes = Vec::new();
    status.triggers.retain(|state| triggers.iter().any(|trigger| of(trigger, state)));
    for (trigger, seen) in triggers.iter().zip(seen) {
        let (now, when) = match seen {
            Seen::Unknown | Seen::Forbidden(_) => continue,
            Seen::Missing => ("", None),
            Seen::Present { hash, changed } => (hash.as_str(), *changed),
        };
        match status.triggers.iter_mut().find(|state| of(trigger, state)) {
            None => status.triggers.push(TriggerState {
                kind: trigger.kind,
                name: trigger.name.clone(),
                hash: now.to_owned(),
                unknown: Default::default(),
            }),
            Some(state) if !now.is_empty() && state.hash != now => {
                state.hash = now.to_owned();
                changes.push((trigger, when));
            }
            Some(_) => {}
        }
    }
    changes
}

/// Where a Pod stands in the round.
#[derive(Clone, Debug, PartialEq)]
enum Stand {
    /// Its restart is under way.
    InFlight,
    /// It is going away: neither counted nor touched.
    Leaving,
    /// Restarted, and not ready (long enough) yet.
    Settling,
    /// Restarted and ready.
    Restarted,
    /// It could not be restarted.
    Failed(String),
    /// It needs no restart, or there is nothing to restart yet.
    Skipped,
    /// It has to be restarted.
    Old,
}

/// Moves a round on.
pub fn advance(observed: &Observed<'_>, now: Now) -> Plan {
    let (restart, spec) = (observed.restart, &observed.restart.spec);
    let mut plan = Plan { status: status_of(restart), ..Plan::default() };
    let has_ended = plan.status.has_ended();
    let (desired, ordinals) = match &observed.target {
        Target::Known { desired, ordinals } => (*desired, *ordinals),
        Target::Missing(message) if !has_ended && !restart.is_triggered() => {
            end(&mut plan, false, "TargetNotFound", message.clone(), now);
            return plan;
        }
        Target::Missing(message) => return wait_for_target(plan, "TargetNotFound", message, has_ended, now),
        Target::Unreadable { reason, message } => return wait_for_target(plan, reason, message, has_ended, now),
    };
    let mut pods: Vec<(&PodFacts<'_>, Stand)> =
        observed.pods.iter().map(|facts| (facts, stand(facts, spec, &plan.status))).collect();
    pods.retain(|(_, stand)| *stand != Stand::Leaving);
    let order = spec.order.unwrap_or(if ordinals { Order::Ordinal } else { Order::OldestFirst });
    sort(&mut pods, order);
    count(&mut plan.status, &pods);
    // Also after the end: nothing else tells that a Pod has been ready for long enough.
    let waits = pods.iter().filter(|(_, s)| *s == Stand::Settling).filter_map(|(facts, _)| facts.ready_for);
    if let Some(longest) = waits.max() {
        plan.look_after(min_ready(spec).saturating_sub(longest).max(Duration::from_millis(50)));
    }
    if has_ended {
        return plan;
    }

    let total = pods.len();
    if let Some(message) = unknown_container(spec, &pods) {
        end(&mut plan, false, "ContainerNotFound", message, now);
        return plan;
    }
    let threshold = spec.failure_policy.as_ref().and_then(|policy| policy.threshold.as_ref());
    let threshold = threshold.and_then(|t| int_or_percent::number(t, total, Round::Up)).unwrap_or(1).max(1);
    let failures: Vec<String> = pods
        .iter()
        .filter_map(|(facts, stand)| match stand {
            Stand::Failed(why) => Some(format!("{}: {why}", facts.pod.name())),
            _ => None,
        })
        .collect();
    if failures.len() >= threshold {
        let message = format!("{} of {total} Pods could not be restarted: {}", failures.len(), listed(&failures, "; "));
        end(&mut plan, false, "FailureThresholdReached", message, now);
        return plan;
    }

    let partition = spec.partition.as_ref().and_then(|p| int_or_percent::number(p, total, Round::Up)).unwrap_or(0);
    let old: Vec<&PodFacts<'_>> = pods.iter().filter(|(_, s)| *s == Stand::Old).map(|(facts, _)| *facts).collect();
    let due = &old[..old.len().saturating_sub(partition)];
    let under_way = pods.iter().any(|(_, s)| matches!(s, Stand::InFlight | Stand::Settling));
    if due.is_empty() && !under_way {
        if old.is_empty() {
            let mut message = format!("{} of {total} Pods were restarted", plan.status.restarted);
            if !failures.is_empty() {
                message = format!("{message}; not so {}", listed(&failures, "; "));
            }
            end(&mut plan, true, "Completed", message, now);
        } else {
            let message = format!("spec.partition leaves {} of {total} Pods as they are", old.len());
            progress(&mut plan.status, "False", "PartitionReached", message, now);
            deadline(&mut plan, spec, observed.age, now);
        }
        return plan;
    }
    if deadline(&mut plan, spec, observed.age, now) {
        return plan;
    }
    plan.look_after(TARGET_AGE);
    if spec.paused {
        let message = format!("spec.paused: {} Pods are left", old.len());
        progress(&mut plan.status, "False", "Paused", message, now);
        return plan;
    }
    let (reason, message) = choose(&mut plan, observed, &pods, due, desired.unwrap_or(0).max(total), order);
    progress(&mut plan.status, "True", reason, message, now);
    plan
}

/// Chooses the Pods to restart now; gives what the round does or waits for.
fn choose(
    plan: &mut Plan,
    observed: &Observed<'_>,
    pods: &[(&PodFacts<'_>, Stand)],
    due: &[&PodFacts<'_>],
    wanted: usize,
    order: Order,
) -> (&'static str, String) {
    let spec = &observed.restart.spec;
    let triggered = observed.restart.is_triggered();
    let maximum = max_unavailable(spec);
    let limit = int_or_percent::number(&maximum, wanted, Round::Down).unwrap_or(1).max(1);
    let is_begun =
        |(facts, stand): &&(&PodFacts<'_>, Stand)| facts.busy || matches!(stand, Stand::InFlight | Stand::Settling);
    let begun = pods.iter().filter(is_begun).count();
    let available = pods.iter().filter(|pod| !is_begun(pod) && is_ready(pod.0.pod)).count();
    let unavailable = wanted - available.min(wanted);
    let (mut slots, mut slots_of_ready) = (limit.saturating_sub(begun), limit.saturating_sub(unavailable));

    let mut due = due.to_vec();
    if order == Order::NodeByNode {
        let open = |facts: &PodFacts<'_>, stand: &Stand| {
            matches!(stand, Stand::InFlight | Stand::Settling) || due.iter().any(|d| d.pod.uid() == facts.pod.uid())
        };
        let node = pods.iter().find(|(facts, stand)| open(facts, stand)).map(|(facts, _)| facts.pod.node_name.clone());
        due.retain(|facts| Some(&facts.pod.node_name) == node.as_ref());
    }
    if triggered {
        let ahead = due.iter().take(limit.saturating_mul(TOUCH_AHEAD)).filter(|facts| facts.refreshed.is_none());
        plan.touch = ahead.map(|facts| (facts.pod.name().to_owned(), facts.pod.uid().to_owned())).collect();
    }

    let (mut blocked, mut refreshing) = (None, false);
    let mut budgets = observed.budgets.clone();
    // What is down already costs nothing.
    let (ready, down): (Vec<&PodFacts<'_>>, Vec<&PodFacts<'_>>) = due.iter().partition(|facts| is_ready(facts.pod));
    for facts in down.into_iter().chain(ready) {
        let ready = is_ready(facts.pod);
        if slots == 0 || (ready && slots_of_ready == 0) {
            break;
        }
        if plan.start.len() == STARTS {
            plan.look_after(Duration::ZERO);
            break;
        }
        if facts.busy {
            continue;
        }
        let wait = refusal_wait(facts).max(if triggered { refresh_wait(facts) } else { Duration::ZERO });
        if wait.is_zero() {
            if ready && let Err(why) = disruption::take(&mut budgets, &facts.pod.labels) {
                blocked.get_or_insert(why);
                if order == Order::Ordinal {
                    break;
                }
                continue;
            }
            plan.start.push(Start {
                pod: facts.pod.name().to_owned(),
                uid: facts.pod.uid().to_owned(),
                containers: wanted_containers(facts.pod, spec).into_iter().map(str::to_owned).collect(),
            });
        } else {
            refreshing |= refusal_wait(facts).is_zero();
            plan.look_after(wait);
        }
        // A Pod that waits keeps its place, so that no other overtakes it.
        slots -= 1;
        if ready {
            slots_of_ready -= 1;
        }
    }

    let names = |fits: &dyn Fn(&PodFacts<'_>, &Stand) -> bool| {
        let fitting = pods.iter().filter(|(facts, stand)| fits(facts, stand));
        listed(&fitting.map(|(facts, _)| facts.pod.name().to_owned()).collect::<Vec<_>>(), ", ")
    };
    if !plan.start.is_empty() {
        let starting: Vec<String> = plan.start.iter().map(|start| start.pod.clone()).collect();
        return ("Restarting", format!("restarting {}", listed(&starting, ", ")));
    }
    if let Some(why) = blocked {
        return ("WaitingForBudget", why);
    }
    if pods.iter().any(|(_, stand)| *stand == Stand::InFlight) {
        return ("Restarting", format!("restarting {}", names(&|_, stand| *stand == Stand::InFlight)));
    }
    if pods.iter().any(|(_, stand)| *stand == Stand::Settling) {
        let settling = names(&|_, stand| *stand == Stand::Settling);
        let how_long = match spec.min_ready_seconds {
            0 => String::new(),
            seconds => format!(" for {seconds} s"),
        };
        return ("WaitingForReady", format!("restarted, and not ready{how_long} yet: {settling}"));
    }
    if refreshing {
        return ("RefreshingVolumes", "the volumes of the next Pods are refreshed on their nodes".to_owned());
    }
    let missing = wanted.saturating_sub(pods.len());
    let missing = if missing == 0 { String::new() } else { format!("; {missing} do not exist") };
    let down = names(&|facts, _| !is_ready(facts.pod) || facts.busy);
    let message = format!(
        "{unavailable} of {wanted} Pods are unavailable, spec.maxUnavailable is {}: {down}{missing}",
        int_or_percent::text(&maximum)
    );
    ("WaitingForPods", message)
}

fn wait_for_target(mut plan: Plan, reason: &'static str, message: &str, has_ended: bool, now: Now) -> Plan {
    if has_ended {
        // Nothing is left to count.
        plan.status.restarting = 0;
        return plan;
    }
    progress(&mut plan.status, "False", reason, message.to_owned(), now);
    plan.look_after(TARGET_AGE);
    plan
}

fn stand(facts: &PodFacts<'_>, spec: &WorkloadRestartSpec, status: &WorkloadRestartStatus) -> Stand {
    let pod = facts.pod;
    if pod.is_deleting() || pod.is_finished() {
        return Stand::Leaving;
    }
    if let Some(request) = facts.request {
        let Some(result) =
            request.status.as_ref().filter(|_| request.is_completed() && !manager::has_finalizer(request))
        else {
            // With the finalizer the Pod may still be held NotReady.
            return Stand::InFlight;
        };
        return match manager::outcome(result) {
            // The request knew earlier than our view of the Pod.
            (false, _) if result.message == POD_GONE => Stand::Leaving,
            (false, why) => Stand::Failed(why),
            (true, _) if facts.ready_for.is_some_and(|ready| ready >= min_ready(spec)) => Stand::Restarted,
            (true, _) => Stand::Settling,
        };
    }
    if let Some((times, _, why)) = facts.refused
        && times >= REFUSALS
    {
        return Stand::Failed(why.to_owned());
    }
    let created = pod.metadata.creation_timestamp.as_ref().map(|t| t.0);
    // Both times have whole seconds: one of the same second may be older.
    let is_new = status.pods_created_before.is_some_and(|before| created.is_some_and(|created| created > before));
    let wanted = wanted_containers(pod, spec);
    let is_started = |name: &&str| pod.container_status(name).is_some_and(|status| !status.container_id.is_empty());
    let can_be_restarted = !wanted.is_empty() && !pod.node_name.is_empty() && wanted.iter().all(is_started);
    if is_new || !can_be_restarted { Stand::Skipped } else { Stand::Old }
}

/// The containers of a Pod that are to be restarted.
fn wanted_containers<'p>(pod: &'p PodView, spec: &'p WorkloadRestartSpec) -> Vec<&'p str> {
    if spec.containers.is_empty() {
        return pod.containers.iter().map(|c| c.name.as_str()).collect();
    }
    spec.containers.iter().map(String::as_str).filter(|name| pod.container(name).is_some()).collect()
}

/// A name that no Pod has is a mistake; a name that some Pods lack is not.
fn unknown_container(spec: &WorkloadRestartSpec, pods: &[(&PodFacts<'_>, Stand)]) -> Option<String> {
    let (first, _) = pods.first()?;
    let unknown =
        spec.containers.iter().find(|name| pods.iter().all(|(facts, _)| facts.pod.container(name).is_none()))?;
    let known = first.pod.containers.iter().chain(first.pod.sidecars.iter());
    let known: Vec<&str> = known.map(|c| c.name.as_str()).collect();
    Some(format!(
        "spec.containers: no Pod has a container named {unknown:?} that can be restarted; Pod {} has {}",
        first.pod.name(),
        known.join(", ")
    ))
}

fn sort(pods: &mut [(&PodFacts<'_>, Stand)], order: Order) {
    let age = |pod: &PodView| (pod.metadata.creation_timestamp.as_ref().map(|t| t.0), pod.name().to_owned());
    match order {
        Order::Ordinal => {
            pods.sort_by_cached_key(|(facts, _)| (Reverse(ordinal(facts.pod.name())), facts.pod.name().to_owned()))
        }
        Order::OldestFirst => pods.sort_by_cached_key(|(facts, _)| age(facts.pod)),
        Order::NodeByNode => pods.sort_by_cached_key(|(facts, _)| (facts.pod.node_name.clone(), age(facts.pod))),
    }
}

fn ordinal(name: &str) -> Option<u64> {
    name.rsplit_once('-')?.1.parse().ok()
}

fn count(status: &mut WorkloadRestartStatus, pods: &[(&PodFacts<'_>, Stand)]) {
    let number = |fits: fn(&Stand) -> bool| {
        i32::try_from(pods.iter().filter(|(_, stand)| fits(stand)).count()).unwrap_or(i32::MAX)
    };
    status.total = number(|_| true);
    status.restarted = number(|s| *s == Stand::Restarted);
    status.restarting = number(|s| matches!(s, Stand::InFlight | Stand::Settling));
    status.failed = number(|s| matches!(s, Stand::Failed(_)));
    status.skipped = number(|s| *s == Stand::Skipped);
    status.progress = format!("{}/{}", status.restarted + status.skipped, status.total);
}

/// Ends the round when its time is over; whether it is.
fn deadline(plan: &mut Plan, spec: &WorkloadRestartSpec, age: Duration, now: Now) -> bool {
    let Some(seconds) = spec.active_deadline_seconds else { return false };
    match Duration::from_secs(seconds.try_into().unwrap_or(0)).checked_sub(age) {
        Some(left) if !left.is_zero() => {
            plan.look_after(left);
            false
        }
        _ => {
            let message =
                format!("spec.activeDeadlineSeconds: {seconds} s are over, {} Pods are done", plan.status.progress);
            end(plan, false, "DeadlineExceeded", message, now);
            true
        }
    }
}

fn end(plan: &mut Plan, well: bool, reason: &'static str, message: String, now: Now) {
    let status = &mut plan.status;
    status.completion_time = Some(whole_seconds(now.wall));
    let (ended, other) =
        if well { (CONDITION_COMPLETE, CONDITION_FAILED) } else { (CONDITION_FAILED, CONDITION_COMPLETE) };
    condition(status, ended, "True", reason, message.clone(), now);
    condition(status, other, "False", reason, String::new(), now);
    progress(status, "False", reason, message.clone(), now);
    plan.forget_earlier_rounds = true;
    plan.tell = Some(Tell { warning: !well, reason, message });
}

fn progress(status: &mut WorkloadRestartStatus, value: &str, reason: &str, message: String, now: Now) {
    status.message.clone_from(&message);
    condition(status, CONDITION_PROGRESSING, value, reason, message, now);
}

fn condition(status: &mut WorkloadRestartStatus, type_: &str, value: &str, reason: &str, message: String, now: Now) {
    let generation = Some(status.observed_generation);
    match status.conditions.iter_mut().find(|c| c.type_ == type_) {
        Some(condition) => {
            if condition.status != value {
                value.clone_into(&mut condition.status);
                condition.last_transition_time = Time(whole_seconds(now.wall));
            }
            reason.clone_into(&mut condition.reason);
            condition.message = message;
            condition.observed_generation = generation;
        }
        None => status.conditions.push(Condition {
            type_: type_.into(),
            status: value.into(),
            reason: reason.into(),
            message,
            last_transition_time: Time(whole_seconds(now.wall)),
            observed_generation: generation,
        }),
    }
}

fn status_of(restart: &WorkloadRestart) -> WorkloadRestartStatus {
    let mut status = restart.status.clone().unwrap_or_default();
    status.observed_generation = restart.metadata.generation.unwrap_or_default();
    status
}

fn max_unavailable(spec: &WorkloadRestartSpec) -> IntOrString {
    spec.max_unavailable.clone().unwrap_or_else(|| IntOrString::String(DEFAULT_MAX_UNAVAILABLE.into()))
}

fn min_ready(spec: &WorkloadRestartSpec) -> Duration {
    Duration::from_secs(spec.min_ready_seconds.try_into().unwrap_or(0))
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

/// A few of the names, and how many more there are.
pub fn listed(names: &[String], separator: &str) -> String {
    let shown = names.iter().take(NAMES).map(String::as_str).collect::<Vec<_>>().join(separator);
    match names.len().saturating_sub(NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
