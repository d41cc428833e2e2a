//! Workloads whose updates in place the API server refuses. While it does so, their Pods do not leave service: a change is
//! tried by a dry run first. Everything here can be lost; then each Pod may leave service once more, within the limits.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use kube::core::Status;
use tokio::sync;

use crate::{
    k8s::time::doubled,
    runtime::{apply::code, lock},
};

/// How long a refusal is remembered: longer than the longest pause between two passes over a workload.
const REMEMBERED: Duration = Duration::from_secs(600);
/// The pause of a Pod that left service for nothing; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest one.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// The pause of a Pod whose dry run was not answered: others have their turn first.
const SILENT_PAUSE: Duration = Duration::from_secs(30);
/// How long it is remembered that a change was not answered: it may have been made.
const SILENCE_REMEMBERED: Duration = Duration::from_secs(60);

/// The workloads, by UID.
#[derive(Default)]
pub(super) struct Doubts(Mutex<HashMap<String, Arc<Doubt>>>);

/// A workload of which updates in place were refused.
#[derive(Default)]
pub(super) struct Doubt {
    /// One Pod of it at a time leaves service.
    pub(super) turn: sync::Mutex<()>,
    /// Its Pods, by UID.
    pods: Mutex<HashMap<String, Refused>>,
}

/// The last refusal of one Pod.
struct Refused {
    at: Duration,
    /// The revision that it was to have.
    revision: String,
    /// How often it has left service for this revision.
    times: u32,
    not_before: Duration,
    status: Box<Status>,
}

/// A change that is tried.
#[derive(Clone, Copy)]
pub(super) struct Attempt<'a> {
    /// UID of the workload.
    pub(super) workload: &'a str,
    /// UID of the Pod.
    pub(super) pod: &'a str,
    /// The label of the revision.
    pub(super) revision: &'a str,
}

impl Doubts {
    /// Whether updates of a workload were refused a short time ago. `now` is monotonic.
    pub(super) fn of(&self, workload: &str, now: Duration) -> Option<Arc<Doubt>> {
        let mut doubts = lock(&self.0);
        let doubt = doubts.get(workload)?.clone();
        if doubt.is_over(now) {
            doubts.remove(workload);
            return None;
        }
        Some(doubt)
    }

    /// A change was refused; `was_out`: after its Pod had left service.
    pub(super) fn refused(&self, tried: Attempt<'_>, error: &kube::Error, was_out: bool, now: Duration) {
        let kube::Error::Api(status) = error else { return };
        let mut doubts = lock(&self.0);
        doubts.retain(|_, doubt| !doubt.is_over(now));
        let doubt = doubts.entry(tried.workload.to_owned()).or_default();
        let mut pods = lock(&doubt.pods);
        let earlier = pods.remove(tried.pod).filter(|earlier| earlier.revision == tried.revision);
        let (times, not_before) = earlier.map_or((0, now), |earlier| (earlier.times, earlier.not_before));
        let (times, not_before) = match was_out {
            true => (times + 1, now + pause(times)),
            false if is_silence(error) => (times, not_before.max(now + SILENT_PAUSE)),
            false => (times, not_before),
        };
        let revision = tried.revision.to_owned();
        pods.insert(tried.pod.to_owned(), Refused { at: now, revision, times, not_before, status: status.clone() });
    }

    /// A change was made.
    pub(super) fn changed(&self, tried: Attempt<'_>) {
        let mut doubts = lock(&self.0);
        let Some(doubt) = doubts.get(tried.workload) else { return };
        let is_over = {
            let mut pods = lock(&doubt.pods);
            pods.remove(tried.pod);
            pods.is_empty()
        };
        if is_over {
            doubts.remove(tried.workload);
        }
    }
}

impl Doubt {
    fn is_over(&self, now: Duration) -> bool {
        let mut pods = lock(&self.pods);
        pods.retain(|_, refused| {
            let remembered = if refused.is_silence() { SILENCE_REMEMBERED } else { REMEMBERED };
            now.saturating_sub(refused.at) < remembered.max(pause(refused.times))
        });
        pods.is_empty()
    }

    /// What the API server has said of a Pod that has left service for nothing and is not tried again yet.
    pub(super) fn pause(&self, tried: Attempt<'_>, now: Duration) -> Option<kube::Error> {
        let pods = lock(&self.pods);
        let refused = pods.get(tried.pod)?;
        let waits = refused.revision == tried.revision && now < refused.not_before;
        waits.then(|| {
            let mut status = refused.status.clone();
            // Nothing is sent now, so nothing can have been done: it leaves its room to others, as after a refusal.
            if refused.is_silence() {
                status.code = 403;
            }
            kube::Error::Api(status)
        })
    }
}

impl Refused {
    fn is_silence(&self) -> bool {
        self.status.code == SILENCE
    }
}

/// The code with which an API server answers while a webhook does not answer it.
const SILENCE: u16 = 500;

/// Whether a webhook did not answer.
pub(super) fn is_silence(error: &kube::Error) -> bool {
    code(error) == Some(SILENCE)
}

fn pause(times: u32) -> Duration {
    doubled(FIRST_PAUSE, times, LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn denied() -> kube::Error {
        let status = serde_json::json!({"code": 403, "message": "no"});
        kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
    }

    fn of<'a>(pod: &'a str, revision: &'a str) -> Attempt<'a> {
        Attempt { workload: "set", pod, revision }
    }

    #[test]
    fn a_workload_is_in_doubt_until_its_pods_are_changed_or_time_has_passed() {
        let doubts = Doubts::default();
        assert!(doubts.of("set", SECOND).is_none());
        doubts.refused(of("a", "r"), &denied(), true, SECOND);
        doubts.refused(of("b", "r"), &denied(), false, SECOND);
        assert!(doubts.of("set", SECOND).is_some() && doubts.of("other", SECOND).is_none());
        doubts.changed(of("a", "r"));
        assert!(doubts.of("set", SECOND).is_some(), "the other Pod is refused still");
        doubts.changed(of("b", "r"));
        assert!(doubts.of("set", SECOND).is_none());
        doubts.refused(of("a", "r"), &denied(), true, SECOND);
        assert!(doubts.of("set", SECOND + REMEMBERED).is_none());
        doubts.refused(of("a", "r"), &kube::Error::Service("lost".into()), true, SECOND);
        assert!(doubts.of("set", SECOND).is_none(), "that is no refusal");
    }

    #[test]
    fn a_pod_whose_dry_run_is_not_answered_leaves_its_room_to_others_for_a_while() {
        let silence = kube::Error::Api(Box::new(serde_json::from_value(serde_json::json!({"code": 500})).unwrap()));
        let doubts = Doubts::default();
        doubts.refused(of("a", "r"), &silence, false, SECOND);
        let doubt = doubts.of("set", SECOND).unwrap();
        let code = |now| match doubt.pause(of("a", "r"), now) {
            Some(kube::Error::Api(status)) => Some(status.code),
            _ => None,
        };
        // As after a refusal: nothing was sent.
        assert_eq!((code(SECOND), code(SECOND + SILENT_PAUSE)), (Some(403), None));
        assert!(doubts.of("set", SECOND + SILENCE_REMEMBERED).is_none());
    }

    #[test]
    fn a_pod_that_left_service_for_nothing_waits_longer_each_time() {
        let doubts = Doubts::default();
        let (mut now, mut pauses) = (SECOND, Vec::new());
        for _ in 0..12 {
            doubts.refused(of("a", "r"), &denied(), true, now);
            let doubt = doubts.of("set", now).unwrap();
            let began = now;
            while let Some(refusal) = doubt.pause(of("a", "r"), now) {
                assert_eq!(refusal.to_string(), denied().to_string());
                assert!(doubt.pause(of("a", "next"), now).is_none(), "another revision is another matter");
                assert!(doubt.pause(of("b", "r"), now).is_none());
                now += SECOND;
            }
            pauses.push((now - began).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        doubts.refused(of("a", "r"), &denied(), false, now);
        assert!(doubts.of("set", now).unwrap().pause(of("a", "r"), now).is_none(), "a dry run costs nothing");
        doubts.refused(of("a", "next"), &denied(), true, now);
        assert!(doubts.of("set", now).unwrap().pause(of("a", "next"), now + SECOND).is_none());
    }
}
