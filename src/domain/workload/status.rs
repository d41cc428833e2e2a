//! The conditions Ready, Reconciling and Stalled, from which tools read whether a workload has got to where its spec wants
//! it (kstatus).

use jiff::Timestamp;

pub use crate::k8s::conditions::{KSTATUS, READY, RECONCILING, STALLED};
use crate::{
    api::apps::strategies::SetUpdateType,
    k8s::{conditions::of_kstatus, time::whole_seconds},
};

/// Reason of Ready: all Pods are updated and available.
pub const AVAILABLE: &str = "Available";
/// Reason of Ready: a selector keeps Pods on old revisions.
pub const SELECTOR: &str = "Selector";
/// Reason of Ready: a partition keeps Pods on old revisions.
pub const PARTITION: &str = "Partition";
/// Reason of Reconciling: revisions can be neither read nor made.
pub const REVISION_UNKNOWN: &str = "RevisionUnknown";
/// Reason of Reconciling: the API server cannot say what defaults the template has.
pub const DEFAULTS_UNKNOWN: &str = "DefaultsUnknown";
/// Reason of Ready: Pods on old revisions are left to whoever deletes them.
pub const ON_DELETE: &str = SetUpdateType::OnDelete.as_str();

/// How far a workload is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Everything is as the spec wants it.
    Available,
    /// As the spec wants it for now: a partition, a pause or OnDelete holds the rest.
    Held {
        /// One word.
        reason: String,
        /// What holds it.
        message: String,
    },
    /// Something has to happen that will: Pods become ready, a hook lets go, a budget has room.
    Waiting {
        /// One word.
        reason: String,
        /// What is waited for.
        message: String,
    },
    /// No waiting cures it: somebody has to change something.
    Stalled {
        /// One word.
        reason: String,
        /// What has to be changed.
        message: String,
    },
}

impl Progress {
    /// As the spec wants it for now, and why.
    pub fn held(reason: &str, message: &str) -> Self {
        Self::Held { reason: reason.to_owned(), message: message.to_owned() }
    }
}

/// A condition of a status, in the form that all kinds share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Its type.
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// One word.
    pub reason: String,
    /// For people.
    pub message: String,
    /// When the status last changed.
    pub last_transition_time: Option<Timestamp>,
}

/// The three conditions. `before` are those of the recorded status, whose times are kept while a status stays the same.
pub fn conditions(progress: &Progress, before: &[Condition], now: Timestamp) -> [Condition; 3] {
    let (true_one, reason, message) = match progress {
        Progress::Available => (READY, AVAILABLE, "All Pods are updated and available"),
        Progress::Held { reason, message } => (READY, reason.as_str(), message.as_str()),
        Progress::Waiting { reason, message } => (RECONCILING, reason.as_str(), message.as_str()),
        Progress::Stalled { reason, message } => (STALLED, reason.as_str(), message.as_str()),
    };
    KSTATUS.map(|type_| {
        let (is_true, reason, message) = of_kstatus(type_, (true_one, reason, message));
        set(before, type_, is_true, reason, message, now)
    })
}

/// A condition that is true or false now; its time is kept while its status stays the same.
pub fn set(before: &[Condition], type_: &str, is_true: bool, reason: &str, message: &str, now: Timestamp) -> Condition {
    let status = if is_true { "True" } else { "False" };
    let old = before.iter().find(|old| old.type_ == type_ && old.status == status);
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: old.and_then(|old| old.last_transition_time).or_else(|| Some(whole_seconds(now))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }
    fn waiting() -> Progress {
        Progress::Waiting { reason: "PodsNotReady".into(), message: "Pod db-1 is not ready".into() }
    }
    fn statuses(conditions: &[Condition]) -> Vec<(&str, &str)> {
        conditions.iter().map(|c| (c.type_.as_str(), c.status.as_str())).collect()
    }

    #[test]
    fn decision_32_exactly_one_of_the_three_is_true() {
        let words = || ("R".to_owned(), "m".to_owned());
        let (reason, message) = words();
        let held = Progress::Held { reason, message };
        let (reason, message) = words();
        let stalled = Progress::Stalled { reason, message };
        for (progress, ready, reconciling, is_stalled) in [
            (Progress::Available, "True", "False", "False"),
            (held, "True", "False", "False"),
            (waiting(), "False", "True", "False"),
            (stalled, "False", "False", "True"),
        ] {
            let made = conditions(&progress, &[], at(5));
            let wanted = [("Ready", ready), ("Reconciling", reconciling), ("Stalled", is_stalled)];
            assert_eq!(statuses(&made), wanted, "{progress:?}");
            assert!(made.iter().all(|condition| !condition.reason.is_empty()));
        }
    }

    #[test]
    fn what_is_waited_for_stands_in_ready_too() {
        let [ready, reconciling, stalled] = conditions(&waiting(), &[], at(5));
        assert_eq!((ready.reason.as_str(), ready.message.as_str()), ("PodsNotReady", "Pod db-1 is not ready"));
        assert_eq!(reconciling.message, ready.message);
        assert_eq!((stalled.reason.as_str(), stalled.message.as_str()), ("NotStalled", ""));
    }

    #[test]
    fn times_are_kept_while_a_status_stays_the_same() {
        let first = conditions(&waiting(), &[], at(5));
        let later = Progress::Waiting { reason: "PodsNotReady".into(), message: "Pod db-2 is not ready".into() };
        let second = conditions(&later, &first, at(9));
        assert!(second.iter().all(|condition| condition.last_transition_time == Some(at(5))));
        let third = conditions(&Progress::Available, &second, at(12));
        assert_eq!(third.map(|condition| condition.last_transition_time), [12, 12, 5].map(|s| Some(at(s))));
    }
}
