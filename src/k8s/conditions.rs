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
}
