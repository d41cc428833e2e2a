//! PodUnavailableBudgets: whether a Pod may be taken out of service now, and the status of a budget.
//!
//! One rule for every operation that takes Pods out of service: deletion, eviction, in-place updates, resizes and container
//! restarts. ([`super::disruption`] is about PodDisruptionBudgets, which Kubernetes keeps.)
//!
//! ```text
//!   request ──needs_no_budget? protects?──▶ take: unavailableAllowed - 1, the Pod is added to a list ──written with the
//!                                            resourceVersion that was read──▶ allowed
//!   manager ──count: Pods + lists──▶ status; a Pod that is seen out of service is removed from the list
//! ```
//!
//! Two rules make it safe. A consent is written before it is given. And only the manager removes a Pod from a list, when it
//! has itself seen the Pod out of service, or after a time limit: whoever counts elsewhere ([`Counting::Beside`]) keeps the
//! lists, so that a Pod that another process has seen going is never counted as available.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::{apis::meta::v1::Condition, util::intstr::IntOrString};
use kube::ResourceExt;
use serde_json::Value;

use crate::{
    api::{
        feature_gates::{FeatureGates, gate},
        labels,
        policy::pod_unavailable_budget::{
            PodUnavailableBudget, PodUnavailableBudgetSpec, PodUnavailableBudgetStatus as Status,
        },
    },
    k8s::{
        conditions,
        int_or_percent::{IntOrPercent, Round},
        invalid::Invalid,
        pod::PodView,
        time::whole_seconds,
    },
};

pub mod index;
pub mod overlap;
pub mod update;

/// Time within which a deletion that was allowed has to be observed.
pub const DISRUPTED_LIMIT: Duration = Duration::from_secs(20);
/// Time within which an update that was allowed has to be observed.
pub const UNAVAILABLE_LIMIT: Duration = Duration::from_secs(10);
/// Processes other than the manager, which removes entries, count them for this multiple of the time.
const BESIDE_FACTOR: u32 = 3;
/// Maximum number of entries in both lists.
pub const MOST_ENTRIES: usize = 2000;

/// What takes a Pod out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// It is deleted.
    Delete,
    /// It is evicted.
    Evict,
    /// It is updated in place.
    Update,
    /// Its resources are changed while it runs.
    Resize,
    /// Containers of it are restarted. Guarded like an update.
    Restart,
}

impl Operation {
    /// Its value in `kruise.io/pub-protect-operations`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Delete => "DELETE",
            Self::Evict => "EVICT",
            Self::Update | Self::Restart => "UPDATE",
            Self::Resize => "RESIZE",
        }
    }

    /// Its value as a label of metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Evict => "evict",
            Self::Update => "update",
            Self::Resize => "resize",
            Self::Restart => "restart",
        }
    }

    /// Whether the Pod is removed.
    fn removes(self) -> bool {
        matches!(self, Self::Delete | Self::Evict)
    }

    /// Whether the feature gates make budgets apply to it.
    pub fn is_guarded(self, gates: &FeatureGates) -> bool {
        gates.enabled(if self.removes() { gate::BUDGETS_GUARD_DELETION } else { gate::BUDGETS_GUARD_UPDATES })
    }
}

/// The values that the annotation may list.
pub const WORDS: [&str; 4] = ["DELETE", "EVICT", "UPDATE", "RESIZE"];

/// Whether a budget protects against an operation, as its annotation and the gates say.
pub fn protects(budget: &PodUnavailableBudget, gates: &FeatureGates, operation: Operation) -> bool {
    let annotation = budget.annotations().get(labels::PUB_PROTECT_OPERATIONS).filter(|text| !text.trim().is_empty());
    let lists = |word: &str| match annotation {
        Some(text) => text.split(',').any(|listed| listed.trim() == word),
        None => word != "RESIZE",
    };
    // Without the feature gate a resize counts as an update.
    let as_update = operation == Operation::Resize && !gates.enabled(gate::POD_VERTICAL_SCALING) && lists("UPDATE");
    operation.is_guarded(gates) && (lists(operation.word()) || as_update)
}

/// Whether a Pod is in service.
pub fn is_available(pod: &PodView) -> bool {
    !pod.is_deleting()
        && pod.phase == "Running"
        && pod.condition_is_true("Ready")
        // A readiness gate that is False counts before kubelet has updated Ready.
        && pod.spec.readiness_gates.iter().all(|gate| pod.condition(gate).is_none_or(|c| c.status != "False"))
        && !pod.labels.iter().any(|(key, _)| key.starts_with(labels::UNAVAILABLE_POD_PREFIX))
        // It is about to be restarted, or is being updated: it does not run what its spec says.
        && !pod.kubelet_is_behind
        && pod.in_place().is_none()
}

/// Why a Pod may be taken out of service whatever its budgets say. None: it needs a budget.
pub fn needs_no_budget(pod: &PodView) -> Option<&'static str> {
    if pod.is_deleting() {
        Some("it is being deleted already")
    } else if pod.no_protect {
        Some("its annotation pub.kruise.io/no-protect says so")
    } else if pod.is_mirror {
        Some("it is the mirror of a static Pod, which goes on running")
    } else if !is_available(pod) {
        Some("it is out of service already")
    } else {
        None
    }
}

/// The question whether a Pod may be taken out of service.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The Pod's name.
    pub pod: String,
    /// When it was created: an older entry is of an earlier Pod of the same name.
    pub created: Option<Timestamp>,
    /// How.
    pub operation: Operation,
}

/// The answer of a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// None of its Pods has to stay available: nothing is recorded.
    Free,
    /// The Pod is on a list already.
    AlreadyTaken,
    /// It uses up one of the allowed Pods; the status has to be written before the operation is allowed.
    Taken,
    /// No.
    Refused(String),
}

/// Takes a Pod out of service if the budget allows.
pub fn take(status: &mut Status, ask: &Ask, now: Timestamp) -> Answer {
    if status.desired_available <= 0 {
        return Answer::Free;
    }
    let created = ask.created;
    let was_let_go = status.disrupted_pods.get(&ask.pod).is_some_and(|since| created.is_none_or(|c| c < *since));
    // Entries have whole seconds. An update may have been allowed in the second of the Pod's creation: the API server asks
    // twice about one patch if the Pod changes meanwhile. After a deletion a Pod of that second may be a new one.
    let is_updated = status.unavailable_pods.get(&ask.pod).is_some_and(|since| created.is_none_or(|c| c <= *since));
    if was_let_go || is_updated {
        return Answer::AlreadyTaken;
    }
    if status.unavailable_allowed <= 0 {
        // It begins as OpenKruise's, here and below: clients compare that.
        return Answer::Refused(format!(
            "pub unavailable allowed is negative, no further Pod may be taken out of service now: {} of {} Pods are available, and {} have to stay",
            status.current_available, status.total_replicas, status.desired_available
        ));
    }
    if status.disrupted_pods.len() + status.unavailable_pods.len() >= MOST_ENTRIES {
        return Answer::Refused(format!(
            "DisruptedPods and UnavailablePods map too big - too many unavailable not confirmed by PUB controller: {MOST_ENTRIES} Pods that were let go have not been seen out of service yet; try again later"
        ));
    }
    status.unavailable_allowed -= 1;
    status.current_available = (status.current_available - 1).max(0);
    let entries = if ask.operation.removes() { &mut status.disrupted_pods } else { &mut status.unavailable_pods };
    entries.insert(ask.pod.clone(), whole_seconds(now));
    Answer::Taken
}

/// How many Pods there should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Total {
    /// So many.
    Known(i32),
    /// Unknown: reason (one word) and message. The recorded number counts, or the number of Pods if that is greater.
    Unknown(&'static str, String),
    /// At least so many: reason and message of what could not be read.
    Estimated(i32, &'static str, String),
    /// The workload does not exist or is being deleted: no Pod has to stay available.
    NoWorkload(String),
}

/// Who counts.
#[derive(Clone, Copy)]
pub enum Counting<'a> {
    /// The manager, which alone removes Pods from the lists.
    Manager {
        /// How long this process has known an entry: the time in it is of another machine's clock.
        known_for: &'a dyn Fn(&str, Timestamp) -> Duration,
        /// Whether a container restart of a Pod is under way.
        is_restarting: &'a dyn Fn(&PodView) -> bool,
    },
    /// Another process, with a list of Pods that was read after the status.
    Beside {
        /// Now.
        now: Timestamp,
    },
}

/// The result of a count.
#[derive(Clone, Debug, PartialEq)]
pub struct Counted {
    /// The new status.
    pub status: Status,
    /// When to count again, because an entry expires.
    pub again: Option<Duration>,
    /// Pods whose deletion was allowed and did not happen.
    pub not_deleted: Vec<String>,
}

/// The total that an annotation gives.
pub fn fixed_total(budget: &PodUnavailableBudget) -> Option<i32> {
    budget.annotations().get(labels::PUB_PROTECT_TOTAL_REPLICAS)?.trim().parse().ok().filter(|total| *total >= 0)
}

/// Computes the status of a budget. `pods` are all Pods that it covers.
pub fn count(
    budget: &PodUnavailableBudget,
    gates: &FeatureGates,
    pods: &[Arc<PodView>],
    total: Total,
    counting: Counting<'_>,
    now: Timestamp,
) -> Counted {
    let recorded = budget.status.clone().unwrap_or_default();
    let mut counted = Counted { status: recorded.clone(), again: None, not_deleted: Vec::new() };
    keep_entries(&recorded, pods, counting, &mut counted);
    let status = &mut counted.status;
    let listed = |name: &str| status.disrupted_pods.contains_key(name) || status.unavailable_pods.contains_key(name);
    let available = as_number(pods.iter().filter(|pod| is_available(pod) && !listed(pod.name())).count());
    let is_manager = matches!(counting, Counting::Manager { .. });
    let known = match (fixed_total(budget), &total) {
        (Some(fixed), _) => fixed,
        // The manager may have been able to read more than this process.
        (None, Total::Estimated(total, ..)) if !is_manager => recorded.total_replicas.max(*total),
        (None, Total::Known(total) | Total::Estimated(total, ..)) => *total,
        (None, Total::NoWorkload(_)) => 0,
        (None, Total::Unknown(..)) => {
            let active = pods.iter().filter(|pod| pod.is_active()).count();
            as_number(active).max(recorded.total_replicas)
        }
    };
    let desired = desired_available(&budget.spec, known);
    status.total_replicas = known;
    status.desired_available = desired.clone().unwrap_or(0);
    status.current_available = available;
    status.unavailable_allowed = (available - status.desired_available).max(0);
    status.observed_generation = budget.metadata.generation.unwrap_or(0);
    let resolved = resolved(desired, total, pods.is_empty() && known > 0);
    let generation = Some(status.observed_generation);
    // An account that may not read the workload says nothing about the budget, unless nobody has judged it yet.
    let is_judgement = is_manager || resolved.status || !matches!(&*resolved.reason, "Forbidden" | "InvalidTarget");
    if is_judgement || status.conditions.iter().all(|condition| condition.type_ != labels::CONDITION_RESOLVED) {
        conditions::set(&mut status.conditions, labels::CONDITION_RESOLVED, resolved, generation, now);
    }
    let updates = protects_updates(budget, gates);
    conditions::set(&mut status.conditions, labels::CONDITION_PROTECTS_UPDATES, updates, generation, now);
    set_kstatus(&mut status.conditions, generation, now);
    counted
}

/// Keeps those entries of the recorded lists whose Pods have to count as unavailable for longer.
fn keep_entries(recorded: &Status, pods: &[Arc<PodView>], counting: Counting<'_>, counted: &mut Counted) {
    let by_name: BTreeMap<&str, &PodView> = pods.iter().map(|pod| (pod.name(), &**pod)).collect();
    let Counted { status, again, not_deleted } = counted;
    status.disrupted_pods.clear();
    status.unavailable_pods.clear();
    for (entries, limit, removes, kept) in [
        (&recorded.disrupted_pods, DISRUPTED_LIMIT, true, &mut status.disrupted_pods),
        (&recorded.unavailable_pods, UNAVAILABLE_LIMIT, false, &mut status.unavailable_pods),
    ] {
        for (name, since) in entries {
            let pod = by_name.get(name.as_str()).copied();
            let (entry, known_for, limit) = match counting {
                Counting::Manager { known_for, is_restarting } => {
                    (entry(pod, *since, removes, is_restarting), known_for(name, *since), limit)
                }
                Counting::Beside { now } => {
                    let age = Duration::try_from(now.duration_since(*since)).unwrap_or_default();
                    (EntryFate::UntilLimit, age, limit * BESIDE_FACTOR)
                }
            };
            match entry {
                EntryFate::Over => {}
                EntryFate::Stays => drop(kept.insert(name.clone(), *since)),
                EntryFate::UntilLimit if known_for < limit => {
                    kept.insert(name.clone(), *since);
                    let left = limit - known_for;
                    *again = Some(again.map_or(left, |at| at.min(left)));
                }
                EntryFate::UntilLimit if removes && pod.is_some_and(is_available) => not_deleted.push(name.clone()),
                EntryFate::UntilLimit => {}
            }
        }
    }
}

/// What becomes of an entry of a list.
enum EntryFate {
    /// What was allowed has happened.
    Over,
    /// It is happening.
    Stays,
    /// Nothing of it has been seen: it stays until its time is over.
    UntilLimit,
}

/// What the manager sees of the Pod of an entry.
fn entry(
    pod: Option<&PodView>,
    since: Timestamp,
    removes: bool,
    is_restarting: &dyn Fn(&PodView) -> bool,
) -> EntryFate {
    let Some(pod) = pod else { return EntryFate::Over };
    let successor = pod.created.is_some_and(|created| created > since);
    if pod.is_deleting() || pod.is_finished() || successor {
        return EntryFate::Over;
    }
    if removes {
        return EntryFate::UntilLimit;
    }
    if is_restarting(pod) {
        return EntryFate::Stays;
    }
    // It has been out of service since, and is back.
    let is_back = is_available(pod) && pod.ready_since.is_some_and(|ready| ready > since);
    if is_back { EntryFate::Over } else { EntryFate::UntilLimit }
}

/// The condition Resolved. `no_pods`: the budget covers none, although there should be some.
fn resolved(desired: Result<i32, Invalid>, total: Total, no_pods: bool) -> conditions::Wanted {
    let (status, reason, message) = match (desired, total) {
        (Err(why), _) => (false, "InvalidSpec", format!("{why}; no Pod is protected")),
        (Ok(_), Total::Known(_)) if no_pods => (false, "NoPods", "no Pod is covered now".to_owned()),
        (Ok(_), Total::Known(_)) => (true, "Resolved", "its Pods and their number are known".to_owned()),
        (Ok(_), Total::Unknown(reason, why) | Total::Estimated(_, reason, why)) => (false, reason, why),
        (Ok(_), Total::NoWorkload(why)) => (false, "TargetMissing", format!("{why}; no Pod has to stay")),
    };
    conditions::Wanted::new(status, reason, message)
}

/// Ready, Reconciling and Stalled, from which tools read how far the budget is.
fn set_kstatus(all: &mut Vec<Condition>, generation: Option<i64>, now: Timestamp) {
    let Some(resolved) = all.iter().find(|condition| condition.type_ == labels::CONDITION_RESOLVED) else { return };
    let (reason, message) = (resolved.reason.clone(), resolved.message.clone());
    let true_one = match (resolved.status.as_str(), reason.as_str()) {
        ("True", _) | (_, "NoPods") => conditions::READY,
        (_, "InvalidSpec" | "InvalidTarget" | "Forbidden") => conditions::STALLED,
        _ => conditions::RECONCILING,
    };
    conditions::set_kstatus(all, (true_one, &reason, &message), generation, now);
}

/// The condition ProtectsUpdates.
fn protects_updates(budget: &PodUnavailableBudget, gates: &FeatureGates) -> conditions::Wanted {
    let gate = gate::BUDGETS_GUARD_UPDATES;
    if protects(budget, gates, Operation::Update) {
        conditions::Wanted::new(true, "Guarded", "updates in place and container restarts need its consent")
    } else if gates.enabled(gate) {
        let why = format!("updates not protected: {} does not list UPDATE", labels::PUB_PROTECT_OPERATIONS);
        conditions::Wanted::new(false, "NotAsked", why)
    } else {
        conditions::Wanted::new(false, "GateOff", format!("updates not protected: the feature gate {gate} is off"))
    }
}

fn as_number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// How many Pods have to stay available. An object stored before the schema was installed may set both fields;
/// maxUnavailable wins.
///
/// # Errors
/// The fields cannot be parsed, or neither is set.
pub fn desired_available(spec: &PodUnavailableBudgetSpec, total: i32) -> Result<i32, Invalid> {
    let number = |field: &str, value: &IntOrString| {
        let parsed = IntOrPercent::of(value).map_err(|error| Invalid(format!("spec.{field}: {error}")))?;
        Ok::<i32, Invalid>(parsed.resolve(total, Round::Up).max(0))
    };
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => Ok((total - number("maxUnavailable", most)?).max(0)),
        // A budget cannot ask for more Pods than the workload wants: scaling down has to end.
        (None, Some(least)) => Ok(number("minAvailable", least)?.min(total)),
        (None, None) => Err(Invalid("spec: neither maxUnavailable nor minAvailable is set".to_owned())),
    }
}

/// The status with the greater of two totals: its own, and `total`, which was read from the workload. Either may be the
/// older one.
pub fn with_total(status: &Status, spec: &PodUnavailableBudgetSpec, total: i32) -> Status {
    let mut careful = status.clone();
    if let Ok(desired) = desired_available(spec, total)
        && desired > status.desired_available
    {
        careful.total_replicas = total;
        careful.desired_available = desired;
        careful.unavailable_allowed = (status.current_available - desired).clamp(0, status.unavailable_allowed.max(0));
    }
    careful
}

/// The Pod in an admission request.
///
/// # Errors
/// The object is not a Pod.
pub fn pod_of(object: &Value) -> Result<PodView, Invalid> {
    use serde::Deserialize as _;
    PodView::deserialize(object).map_err(|error| Invalid(format!("not a Pod: {error}")))
}

#[cfg(test)]
mod tests;
