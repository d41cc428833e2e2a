//! Conditions of a status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::time::whole_seconds;

/// What a condition is set to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// `True` or `False`.
    pub status: bool,
    /// In one CamelCase word.
    pub reason: String,
    /// For people.
    pub message: String,
}

impl Wanted {
    /// With these fields.
    pub fn new(status: bool, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), message: message.into() }
    }
}

/// Sets the condition of this type, in its place if it exists. `lastTransitionTime` changes only with the status.
pub fn set(
    conditions: &mut Vec<Condition>,
    type_: &str,
    wanted: Wanted,
    observed_generation: Option<i64>,
    now: Timestamp,
) {
    let status = if wanted.status { "True" } else { "False" };
    let before = conditions.iter().position(|condition| condition.type_ == type_);
    let unchanged = before.map(|at| &conditions[at]).filter(|condition| condition.status == status);
    let since = unchanged.map(|condition| condition.last_transition_time.clone());
    let condition = Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: wanted.reason,
        message: wanted.message,
        observed_generation,
        last_transition_time: since.unwrap_or_else(|| Time(whole_seconds(now))),
    };
    match before {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
}

/// Type of the condition that the object is as its spec wants it, or that its work is done.
pub const READY: &str = "Ready";
/// Type of the condition that there is still work to do, which will be done.
pub const RECONCILING: &str = "Reconciling";
/// Type of the condition that waiting does not help.
pub const STALLED: &str = "Stalled";
/// The three conditions from which tools read how far an object is (kstatus). One of them is True.
pub const KSTATUS: [&str; 3] = [READY, RECONCILING, STALLED];

/// Whether one of the three conditions is True, its reason and its message. `true_one` is that which is, one of [`KSTATUS`]; its
/// reason and message stand in Ready too, where people look first.
pub fn of_kstatus<'a>(type_: &str, (true_one, reason, message): (&str, &'a str, &'a str)) -> (bool, &'a str, &'a str) {
    let is_true = type_ == true_one;
    match type_ {
        _ if is_true || type_ == READY => (is_true, reason, message),
        // The API wants a reason in any case.
        STALLED => (false, "NotStalled", ""),
        _ => (false, "NotReconciling", ""),
    }
}

/// Sets the three conditions, as [`of_kstatus`] has them.
pub fn set_kstatus(
    conditions: &mut Vec<Condition>,
    (true_one, reason, message): (&str, &str, &str),
    observed_generation: Option<i64>,
    now: Timestamp,
) {
    for type_ in KSTATUS {
        let (is_true, reason, message) = of_kstatus(type_, (true_one, reason, message));
        set(conditions, type_, Wanted::new(is_true, reason, message), observed_generation, now);
    }
}

/// The generation that the status of an object that is over has to be moved to, because its spec has changed since. None: the
/// status is about this generation, or a release has written it that does not say which.
pub fn newer_generation(observed: Option<i64>, generation: Option<i64>) -> Option<i64> {
    generation.filter(|generation| observed.is_some_and(|observed| observed != *generation))
}

/// Moves the conditions of an object that is over to this generation: a change of its spec changes nothing of what they say, but
/// tools that read how far it is ignore conditions of an earlier generation.
pub fn still_hold(conditions: &mut [Condition], observed_generation: Option<i64>) {
    for condition in conditions {
        condition.observed_generation = observed_generation;
    }
}

/// Sets the three conditions of an object that runs and ends, from `Progressing`, `Complete` and `Failed`.
pub fn set_kstatus_of_run(conditions: &mut Vec<Condition>, observed_generation: Option<i64>, now: Timestamp) {
    let is_true =
        |type_: &str| conditions.iter().find(|condition| condition.type_ == type_ && condition.status == "True");
    let progressing = conditions.iter().find(|condition| condition.type_ == "Progressing");
    let (true_one, condition) = if let Some(complete) = is_true("Complete") {
        (READY, complete)
    } else if let Some(failed) = is_true("Failed") {
        (STALLED, failed)
    } else if let Some(progressing) = progressing {
        // It has not ended, and does not go on.
        (if progressing.status == "True" { RECONCILING } else { STALLED }, progressing)
    } else {
        return;
    };
    let (reason, message) = (condition.reason.clone(), condition.message.clone());
    set_kstatus(conditions, (true_one, &reason, &message), observed_generation, now);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_transition_is_that_of_the_status() {
        let at = |second: i64| Timestamp::from_second(1_700_000_000 + second).unwrap();
        let mut all = Vec::new();
        set(&mut all, "A", Wanted::new(true, "First", "one"), Some(1), at(0));
        set(&mut all, "B", Wanted::new(false, "First", ""), None, at(1));
        set(&mut all, "A", Wanted::new(true, "Second", "two"), Some(2), at(2));
        let seen = |condition: &Condition| {
            let Condition { type_, status, reason, message, observed_generation, last_transition_time } =
                condition.clone();
            (format!("{type_} {status} {reason} {message}"), observed_generation, last_transition_time.0)
        };
        assert_eq!(seen(&all[0]), ("A True Second two".into(), Some(2), at(0)));
        assert_eq!(seen(&all[1]), ("B False First ".into(), None, at(1)));
        set(&mut all, "A", Wanted::new(false, "Third", ""), Some(3), at(3));
        assert_eq!(seen(&all[0]), ("A False Third ".into(), Some(3), at(3)));
        assert_eq!(all.len(), 2);
    }

    #[test]
    fn decision_32_the_conditions_of_a_run_show_how_far_it_is() {
        for (given, wanted) in [
            (&[("Progressing", true)][..], Some(RECONCILING)),
            (&[("Progressing", false), ("Complete", true)], Some(READY)),
            (&[("Progressing", false), ("Failed", true), ("Complete", false)], Some(STALLED)),
            (&[("Progressing", false)], Some(STALLED)),
            (&[], None),
        ] {
            let mut all = Vec::new();
            for (type_, status) in given {
                set(&mut all, type_, Wanted::new(*status, "Why", *type_), Some(1), Timestamp::UNIX_EPOCH);
            }
            set_kstatus_of_run(&mut all, Some(1), Timestamp::UNIX_EPOCH);
            let found: Vec<_> = all.iter().filter(|c| KSTATUS.contains(&&*c.type_) && c.status == "True").collect();
            assert_eq!(found.iter().map(|c| c.type_.as_str()).collect::<Vec<_>>(), Vec::from_iter(wanted), "{given:?}");
            assert!(all.iter().all(|condition| !condition.reason.is_empty()));
        }
    }
}
