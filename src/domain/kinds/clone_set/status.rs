//! What a CloneSet says about itself.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;

use super::{plan::Pod, spec::Spec};
use crate::{
    api::apps::{
        clone_set::{CloneSet, CloneSetCondition, CloneSetStatus},
        strategies::UpdateType,
    },
    domain::workload::status::{self as kstatus, Condition, Progress},
    k8s::{revision, time::whole_seconds},
};

/// Condition: Pods could not be created or deleted.
pub const FAILED_SCALE: &str = "FailedScale";
/// Condition: Pods could not be updated.
pub const FAILED_UPDATE: &str = "FailedUpdate";
/// Condition: whether a roll-out makes progress. Only with a deadline.
pub const PROGRESSING: &str = "Progressing";
/// Reason of [`PROGRESSING`] while the roll-out goes on.
const RUNNING: &str = "CloneSetUpdated";
/// Reason of [`PROGRESSING`] after the deadline.
const DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";

/// What happened in the pass.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Why Pods could not be created or deleted.
    pub scale_error: Option<String>,
    /// Why Pods could not be updated.
    pub update_error: Option<String>,
    /// Why the spec cannot be carried out, however long one waits.
    pub impossible: Option<String>,
    /// Why a Pod that is to be updated or deleted stays in service for now.
    pub kept: Option<String>,
}

/// The status after a pass, and when to look again for the sake of the deadline.
///
/// Counted are the active Pods as they were at the begin of the pass; what the pass did shows when the Pods have changed.
/// `terminating` is how many more are being deleted. Of the CloneSet, its generation and its status before are read.
pub fn status(
    (clone_set, spec): (&CloneSet, &Spec),
    (pods, terminating): (&[Arc<Pod>], usize),
    (current, update): (&str, &str),
    selector: String,
    outcome: &Outcome,
    now: Timestamp,
) -> (CloneSetStatus, Option<Duration>) {
    let old = clone_set.status.clone().unwrap_or_default();
    let replicas = spec.replicas;
    let total = i32::try_from(pods.len()).unwrap_or(i32::MAX);
    let (mut ready, mut available) = (0, 0);
    let (mut updated_replicas, mut updated_available) = (0, 0);
    for pod in pods {
        let is_updated = revision::is_same(&pod.revision, update);
        ready += i32::from(pod.is_ready);
        available += i32::from(pod.facts.available);
        updated_replicas += i32::from(is_updated);
        updated_available += i32::from(is_updated && pod.facts.available);
    }
    // It advances only when everything is there and updated: in the middle of a scale-up the partition still counts.
    let all_updated = updated_replicas == total && total == replicas;
    let mut status = CloneSetStatus {
        observed_generation: clone_set.metadata.generation.unwrap_or(old.observed_generation),
        replicas: total,
        ready_replicas: ready,
        available_replicas: available,
        updated_replicas,
        updated_ready_replicas: updated_ready(pods, update),
        updated_available_replicas: updated_available,
        expected_updated_replicas: replicas - spec.kept_old.clone().unwrap_or(replicas),
        update_revision: update.to_owned(),
        current_revision: if all_updated { update } else { current }.to_owned(),
        terminating_replicas: i32::try_from(terminating).unwrap_or(i32::MAX),
        collision_count: Some(old.collision_count.unwrap_or(0)),
        conditions: old.conditions,
        label_selector: selector,
    };
    failure(&mut status.conditions, FAILED_SCALE, outcome.scale_error.as_deref(), now);
    failure(&mut status.conditions, FAILED_UPDATE, outcome.update_error.as_deref(), now);
    let requeue = progress(spec, &mut status, clone_set.status.as_ref(), now);
    let how_far = how_far(spec, &status, outcome);
    set_kstatus(&mut status.conditions, &how_far, now);
    (status, requeue)
}

/// The status while nobody can say which revision is wanted. `why` are the words of whoever was asked. Everything else stays as
/// recorded, the generation and the revisions above all: the next pass learns from them that the revision of this spec is not
/// found out.
pub fn unresolved(
    recorded: &CloneSetStatus,
    (reason, message): (&str, String),
    why: &str,
    now: Timestamp,
) -> CloneSetStatus {
    let mut status = recorded.clone();
    failure(&mut status.conditions, FAILED_SCALE, None, now);
    failure(&mut status.conditions, FAILED_UPDATE, Some(why), now);
    set_kstatus(&mut status.conditions, &Progress::Waiting { reason: reason.to_owned(), message }, now);
    status
}

/// How far the CloneSet is.
fn how_far(spec: &Spec, status: &CloneSetStatus, outcome: &Outcome) -> Progress {
    let waiting = |reason: &str, message: String| Progress::Waiting { reason: reason.into(), message };
    let held = Progress::held;
    let stalled = |reason: &str, message: &str| Progress::Stalled { reason: reason.into(), message: message.into() };
    if let Some(message) = &outcome.impossible {
        return stalled("SpecCannotBeApplied", message);
    }
    // Who sets a deadline wants to know when to give up.
    let exceeded = status.conditions.iter().find(|c| c.type_ == PROGRESSING && c.reason == DEADLINE_EXCEEDED);
    if let Some(condition) = exceeded {
        return stalled(DEADLINE_EXCEEDED, &condition.message);
    }
    let failures = [(FAILED_SCALE, &outcome.scale_error), (FAILED_UPDATE, &outcome.update_error)];
    if let Some((reason, message)) = failures.iter().find_map(|(reason, why)| Some((reason, why.as_ref()?))) {
        return waiting(reason, message.clone());
    }
    if let Some(why) = &outcome.kept {
        return waiting("WaitsForBudget", why.clone());
    }
    let replicas = spec.replicas;
    let (updated, expected) = (status.updated_available_replicas, status.expected_updated_replicas);
    if status.available_replicas < replicas {
        return waiting("Progressing", format!("{} of {replicas} Pods are available", status.available_replicas));
    }
    // Beyond replicas are Pods of a surge, while others are still to be updated, or those that go.
    let is_updating = updated < expected && !spec.is_paused && spec.update_type != UpdateType::OnDelete;
    if status.replicas > replicas && !is_updating {
        return waiting("Progressing", format!("{} Pods exist, {replicas} are wanted", status.replicas));
    }
    if updated == replicas {
        Progress::Available
    } else if spec.is_paused {
        held("Paused", "the update is paused")
    } else if is_left_to_deletions(spec, status) {
        held(kstatus::ON_DELETE, "Pods are updated when they are deleted")
    } else if updated < expected {
        waiting("Progressing", format!("{updated} of {expected} Pods are updated and available"))
    } else {
        held(kstatus::PARTITION, "the partition keeps Pods on the current revision")
    }
}

/// How many Pods are ready on the update revision.
pub fn updated_ready(pods: &[Arc<Pod>], update: &str) -> i32 {
    let ready = pods.iter().filter(|pod| pod.is_ready && revision::is_same(&pod.revision, update));
    i32::try_from(ready.count()).unwrap_or(i32::MAX)
}

/// Whether every Pod serves, and those on old revisions stay until somebody deletes them.
fn is_left_to_deletions(spec: &Spec, status: &CloneSetStatus) -> bool {
    spec.update_type == UpdateType::OnDelete
        && [status.replicas, status.available_replicas].iter().all(|count| *count == spec.replicas)
}

/// Sets the conditions Ready, Reconciling and Stalled.
fn set_kstatus(conditions: &mut Vec<CloneSetCondition>, progress: &Progress, now: Timestamp) {
    let is_one = |condition: &CloneSetCondition| kstatus::KSTATUS.contains(&condition.type_.as_str());
    let (old, others): (Vec<_>, Vec<_>) = std::mem::take(conditions).into_iter().partition(is_one);
    let shared = |condition: CloneSetCondition| {
        let CloneSetCondition { type_, status, reason, message, last_transition_time, .. } = condition;
        Condition { type_, status, reason, message, last_transition_time }
    };
    let own = |condition: Condition| {
        let Condition { type_, status, reason, message, last_transition_time } = condition;
        CloneSetCondition { type_, status, last_update_time: None, last_transition_time, reason, message }
    };
    let old: Vec<Condition> = old.into_iter().map(shared).collect();
    conditions.extend(others);
    conditions.extend(kstatus::conditions(progress, &old, now).map(own));
}

/// What an event says when the deadline of a roll-out passes with the second status.
pub fn deadline_passed(before: &CloneSetStatus, now: &CloneSetStatus) -> Option<String> {
    let exceeded = |status: &CloneSetStatus| {
        let mut conditions = status.conditions.iter();
        conditions.find(|c| c.type_ == PROGRESSING && c.reason == DEADLINE_EXCEEDED).map(|c| c.message.clone())
    };
    let message = exceeded(now).filter(|_| exceeded(before).is_none())?;
    let (updated, expected) = (now.updated_available_replicas, now.expected_updated_replicas);
    Some(format!("{message}: {updated} of {expected} Pods are updated and available"))
}

/// Whether two statuses differ in nothing but counts, and words about them.
pub fn only_counts(old: &CloneSetStatus, new: &CloneSetStatus) -> bool {
    let without = |status: &CloneSetStatus| {
        let mut status = CloneSetStatus {
            replicas: 0,
            ready_replicas: 0,
            available_replicas: 0,
            updated_replicas: 0,
            updated_ready_replicas: 0,
            updated_available_replicas: 0,
            terminating_replicas: 0,
            ..status.clone()
        };
        for condition in status.conditions.iter_mut().filter(|c| kstatus::KSTATUS.contains(&c.type_.as_str())) {
            condition.message.clear();
            condition.reason.clear();
        }
        status
    };
    without(old) == without(new)
}

/// Says that something failed, and takes it back when it no longer does.
fn failure(conditions: &mut Vec<CloneSetCondition>, type_: &str, error: Option<&str>, now: Timestamp) {
    let Some(message) = error else {
        conditions.retain(|condition| condition.type_ != type_);
        return;
    };
    match conditions.iter_mut().find(|condition| condition.type_ == type_) {
        Some(condition) if condition.status == "True" => condition.message = message.to_owned(),
        Some(condition) => {
            condition.status = "True".into();
            condition.last_transition_time = Some(whole_seconds(now));
            condition.message = message.to_owned();
        }
        None => conditions.push(CloneSetCondition {
            type_: type_.to_owned(),
            status: "True".into(),
            last_transition_time: Some(whole_seconds(now)),
            message: message.to_owned(),
            ..CloneSetCondition::default()
        }),
    }
}

/// Status, reason and message of the condition Progressing.
fn words(spec: &Spec, status: &CloneSetStatus, is_complete: bool, is_late: bool) -> (bool, &'static str, String) {
    let expected = status.expected_updated_replicas;
    let is_partitioned = expected < spec.replicas && expected <= status.updated_available_replicas;
    if is_complete {
        (true, "CloneSetAvailable", "CloneSet is available".to_owned())
    } else if spec.is_paused {
        (true, "CloneSetPaused", "CloneSet is paused".to_owned())
    } else if is_partitioned {
        (true, "ProgressPartitionAvailable", "CloneSet has been paused due to partition ready".to_owned())
    } else if is_late {
        let message = format!("CloneSet revision {} has timed out progressing", status.update_revision);
        (false, DEADLINE_EXCEEDED, message)
    } else {
        (true, RUNNING, "CloneSet is progressing".to_owned())
    }
}

/// Sets the condition Progressing, in the words of OpenKruise: clients compare them (decision 33). The clock begins anew
/// with a new revision and whenever the roll-out gets further. It stands still while the rest is left to deletions:
/// OpenKruise has no words for that, so the condition says that the CloneSet is progressing.
fn progress(
    spec: &Spec,
    status: &mut CloneSetStatus,
    old: Option<&CloneSetStatus>,
    now: Timestamp,
) -> Option<Duration> {
    let before = status.conditions.iter().position(|c| c.type_ == PROGRESSING).map(|i| status.conditions.remove(i));
    let deadline = i64::from(spec.progress_deadline?);
    let replicas = spec.replicas;
    let got_further = old.is_none_or(|old| {
        !revision::is_same(&old.update_revision, &status.update_revision)
            || status.updated_available_replicas > old.updated_available_replicas
            || status.updated_replicas > old.updated_replicas
    });
    let complete = status.current_revision == status.update_revision
        && [status.replicas, status.updated_replicas, status.updated_available_replicas].iter().all(|n| *n == replicas);
    let is_held = is_left_to_deletions(spec, status);
    // By the counts of the pass before, or by what it said of an older spec or while nobody knew which revision is wanted.
    let held = [kstatus::ON_DELETE, kstatus::REVISION_UNKNOWN, kstatus::DEFAULTS_UNKNOWN];
    let was_held = old.is_some_and(|old| is_left_to_deletions(spec, old))
        || status.conditions.iter().any(|c| c.type_ == kstatus::READY && held.contains(&&*c.reason));
    let begins = got_further || (was_held && !is_held);
    let since = before.as_ref().filter(|_| !begins).and_then(|c| c.last_update_time).unwrap_or(now);
    let left = deadline.saturating_mul(1000) - (now.as_millisecond() - since.as_millisecond());
    let was_exceeded = before.as_ref().is_some_and(|c| c.reason == DEADLINE_EXCEEDED) && !begins;
    let was_running = before.as_ref().is_some_and(|c| c.reason == RUNNING);
    let is_late = !is_held && (was_exceeded || (was_running && left < 0));
    let (is_true, reason, message) = words(spec, status, complete, is_late);
    let running = reason == RUNNING;
    let text = if is_true { "True" } else { "False" };
    let condition = match before {
        Some(old) if old.status == text && old.reason == reason && !(running && begins) => {
            CloneSetCondition { message, ..old }
        }
        old => CloneSetCondition {
            type_: PROGRESSING.into(),
            status: text.into(),
            last_update_time: Some(whole_seconds(now)),
            last_transition_time: old
                .filter(|old| old.status == text)
                .and_then(|old| old.last_transition_time)
                .or(Some(whole_seconds(now))),
            reason: reason.into(),
            message,
        },
    };
    let since = condition.last_update_time.unwrap_or(now);
    status.conditions.push(condition);
    (running && !is_held).then(|| {
        let left = deadline.saturating_mul(1000) - (now.as_millisecond() - since.as_millisecond());
        Duration::from_millis(u64::try_from(left).unwrap_or(0)) + Duration::from_secs(1)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn clone_set(changes: Value) -> CloneSet {
        let mut object = json!({"metadata": {"name": "web", "generation": 3}, "spec": {"replicas": 2, "selector": {}, "template": {}}});
        json_patch::merge(&mut object, &changes);
        serde_json::from_value(object).unwrap()
    }
    fn pod(revision: &str, is_ready: bool, available: bool) -> Pod {
        let mut pod = Pod { revision: revision.into(), is_ready, ..Pod::default() };
        pod.facts.available = available;
        pod
    }
    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }
    fn of(clone_set: &CloneSet, pods: &[Pod], second: i64) -> (CloneSetStatus, Option<Duration>) {
        let pods: Vec<Arc<Pod>> = pods.iter().cloned().map(Arc::new).collect();
        let spec = Spec::of(clone_set);
        status((clone_set, &spec), (&pods, 0), ("web-1", "web-2"), "app=web".into(), &Outcome::default(), at(second))
    }

    #[test]
    fn pods_are_counted() {
        let pods = [pod("web-2", true, true), pod("2", true, false), pod("web-1", false, false)];
        let (status, _) = of(&clone_set(json!({"spec": {"updateStrategy": {"partition": "30%"}}})), &pods, 0);
        assert_eq!((status.replicas, status.ready_replicas, status.available_replicas), (3, 2, 1));
        assert_eq!(
            (status.updated_replicas, status.updated_ready_replicas, status.updated_available_replicas),
            (2, 2, 1)
        );
        assert_eq!((status.expected_updated_replicas, status.observed_generation), (1, 3));
        assert_eq!((status.current_revision.as_str(), status.collision_count), ("web-1", Some(0)));
    }

    #[test]
    fn case_13_the_current_revision_advances_only_when_all_is_there_and_updated() {
        let set = clone_set(json!({}));
        let updated = pod("web-2", false, false);
        assert_eq!(of(&set, std::slice::from_ref(&updated), 0).0.current_revision, "web-1");
        assert_eq!(of(&set, &[updated.clone(), updated], 0).0.current_revision, "web-2");
    }

    #[test]
    fn shortfall_01_a_failure_is_taken_back() {
        let mut set = clone_set(json!({}));
        let run = |set: &CloneSet, error: Option<&str>, second| {
            let outcome = Outcome { update_error: error.map(str::to_owned), ..Outcome::default() };
            status((set, &Spec::of(set)), (&[], 0), ("web-1", "web-2"), String::new(), &outcome, at(second)).0
        };
        set.status = Some(run(&set, Some("first"), 0));
        set.status = Some(run(&set, Some("second"), 9));
        let condition = found(&set.status.as_ref().unwrap().conditions, FAILED_UPDATE).unwrap();
        assert_eq!((condition.message.as_str(), condition.last_transition_time), ("second", Some(at(0))));
        assert_eq!(found(&run(&set, None, 10).conditions, FAILED_UPDATE), None);
    }

    fn found(conditions: &[CloneSetCondition], type_: &str) -> Option<CloneSetCondition> {
        conditions.iter().find(|condition| condition.type_ == type_).cloned()
    }

    /// The reason of Progressing, in seconds after the begin of a roll-out with a deadline of 10 s.
    #[test]
    fn case_39_and_shortfall_05_progress() {
        let mut set = clone_set(json!({"spec": {"progressDeadlineSeconds": 10}}));
        let step = |set: &mut CloneSet, pods: &[Pod], second| {
            let (status, requeue) = of(set, pods, second);
            let progressing = found(&status.conditions, PROGRESSING);
            let reason = progressing.map_or(String::new(), |c| format!("{} {}", c.status, c.reason));
            set.status = Some(status);
            (reason, requeue)
        };
        let (old, new, done) = (pod("web-1", true, true), pod("web-2", false, false), pod("web-2", true, true));
        let running = "True CloneSetUpdated".to_owned();
        assert_eq!(step(&mut set, &[old.clone(), old.clone()], 0), (running.clone(), Some(Duration::from_secs(11))));
        assert_eq!(step(&mut set, &[old.clone(), new.clone()], 8).0, running, "it got further");
        assert_eq!(step(&mut set, &[old.clone(), new.clone()], 17), (running.clone(), Some(Duration::from_secs(2))));
        let exceeded = "False ProgressDeadlineExceeded".to_owned();
        assert_eq!(step(&mut set, &[old.clone(), new.clone()], 19), (exceeded.clone(), None));
        assert_eq!(step(&mut set, &[old.clone(), new.clone()], 20).0, exceeded, "until something happens");
        assert_eq!(step(&mut set, &[old.clone(), done.clone()], 21).0, running);
        set.spec.update_strategy.paused = true;
        assert_eq!(step(&mut set, &[old.clone(), done.clone()], 99).0, "True CloneSetPaused");
        set.spec.update_strategy.paused = false;
        assert_eq!(step(&mut set, &[old, done.clone()], 100).0, running, "paused time does not count");
        assert_eq!(step(&mut set, &[done.clone(), done], 101).0, "True CloneSetAvailable");
        set.spec.progress_deadline_seconds = None;
        assert_eq!(step(&mut set, &[], 102).0, "");
    }

    #[test]
    fn a_roll_out_that_the_partition_holds_has_its_own_reason() {
        let set = clone_set(json!({"spec": {"progressDeadlineSeconds": 10, "updateStrategy": {"partition": 1}}}));
        let (status, requeue) = of(&set, &[pod("web-1", true, true), pod("web-2", true, true)], 0);
        let condition = found(&status.conditions, PROGRESSING).unwrap();
        assert_eq!((condition.reason.as_str(), requeue), ("ProgressPartitionAvailable", None));
        assert_eq!(condition.message, "CloneSet has been paused due to partition ready");
    }

    #[test]
    fn decision_32_tools_can_read_how_far_a_clone_set_is() {
        let (old, new, down) = (pod("web-1", true, true), pod("web-2", true, true), pod("web-2", false, false));
        let none = Outcome::default();
        let says = |why: &str| Some(why.to_owned());
        let failed = Outcome { scale_error: says("quota"), ..none.clone() };
        let kept = Outcome { kept: says("Pod a stays"), ..none.clone() };
        let impossible = Outcome { impossible: says("not in place"), update_error: says("no"), ..none.clone() };
        let (plain, partition) = (json!({}), json!({"updateStrategy": {"partition": 1}}));
        let paused = json!({"updateStrategy": {"paused": true}});
        let on_delete = json!({"updateStrategy": {"type": "OnDelete"}});
        for (spec, pods, outcome, wanted) in [
            (&plain, vec![&new, &new], &none, "Ready Available All Pods are updated and available"),
            (&plain, vec![&new, &down], &none, "Reconciling Progressing 1 of 2 Pods are available"),
            (&plain, vec![&new, &new, &new], &none, "Reconciling Progressing 3 Pods exist, 2 are wanted"),
            (&plain, vec![&old, &old, &new], &none, "Reconciling Progressing 1 of 2 Pods are updated and available"),
            (&plain, vec![&old, &old, &down], &none, "Reconciling Progressing 0 of 2 Pods are updated and available"),
            (&plain, vec![&old, &down, &down], &none, "Reconciling Progressing 1 of 2 Pods are available"),
            (&plain, vec![&old, &new, &new], &none, "Reconciling Progressing 3 Pods exist, 2 are wanted"),
            (&plain, vec![&old, &new], &none, "Reconciling Progressing 1 of 2 Pods are updated and available"),
            (&plain, vec![&new, &new], &failed, "Reconciling FailedScale quota"),
            (&plain, vec![&old, &new], &kept, "Reconciling WaitsForBudget Pod a stays"),
            (&plain, vec![&old, &old], &impossible, "Stalled SpecCannotBeApplied not in place"),
            (&partition, vec![&old, &new], &none, "Ready Partition the partition keeps Pods on the current revision"),
            (&partition, vec![&old, &old], &none, "Reconciling Progressing 0 of 1 Pods are updated and available"),
            (
                &partition,
                vec![&old, &old, &old],
                &none,
                "Reconciling Progressing 0 of 1 Pods are updated and available",
            ),
            (&partition, vec![&old, &old, &new], &none, "Reconciling Progressing 3 Pods exist, 2 are wanted"),
            (&paused, vec![&old, &old], &none, "Ready Paused the update is paused"),
            (&paused, vec![&old, &down], &none, "Reconciling Progressing 1 of 2 Pods are available"),
            (&paused, vec![&old, &old, &new], &none, "Reconciling Progressing 3 Pods exist, 2 are wanted"),
            (&on_delete, vec![&old, &old], &none, "Ready OnDelete Pods are updated when they are deleted"),
            (&on_delete, vec![&old, &new], &none, "Ready OnDelete Pods are updated when they are deleted"),
            (&on_delete, vec![&old, &old, &new], &none, "Reconciling Progressing 3 Pods exist, 2 are wanted"),
            (&on_delete, vec![&new, &new], &none, "Ready Available All Pods are updated and available"),
            (&on_delete, vec![&old, &down], &none, "Reconciling Progressing 1 of 2 Pods are available"),
        ] {
            let set = clone_set(json!({ "spec": spec }));
            let pods: Vec<Arc<Pod>> = pods.into_iter().cloned().map(Arc::new).collect();
            let of = (&set, &Spec::of(&set));
            let (status, _) = status(of, (&pods, 0), ("web-1", "web-2"), String::new(), outcome, at(0));
            let is_one = |c: &&CloneSetCondition| kstatus::KSTATUS.contains(&c.type_.as_str()) && c.status == "True";
            let found: Vec<_> = status.conditions.iter().filter(is_one).collect();
            let found: Vec<_> = found.iter().map(|c| format!("{} {} {}", c.type_, c.reason, c.message)).collect();
            assert_eq!(found, [wanted]);
        }
    }

    #[test]
    fn pods_that_are_ready_on_another_revision_do_not_count() {
        let pods =
            [pod("web-2", true, true), pod("web-2", true, false), pod("web-1", true, true), pod("web-2", false, false)];
        let pods = pods.map(Arc::new);
        for (update, ready) in [("web-2", 2), ("2", 2), ("web-1", 1), ("web-3", 0)] {
            assert_eq!(updated_ready(&pods, update), ready, "{update}");
        }
    }

    /// The reasons of Ready and Progressing, and when it looks again, in seconds after the begin with a deadline of 10 s.
    #[test]
    fn the_deadline_does_not_run_while_the_rest_is_left_to_deletions() {
        let mut set = clone_set(json!({"spec": {"progressDeadlineSeconds": 10}}));
        let (old, new, down) = (pod("web-1", true, true), pod("web-2", true, true), pod("web-2", false, false));
        for (type_, pods, second, wanted, look) in [
            ("OnDelete", [&old, &old], 0, ["OnDelete", "CloneSetUpdated"], None),
            ("OnDelete", [&old, &old], 99, ["OnDelete", "CloneSetUpdated"], None),
            ("OnDelete", [&old, &down], 100, ["Progressing", "CloneSetUpdated"], Some(11)),
            ("OnDelete", [&old, &down], 112, [DEADLINE_EXCEEDED; 2], None),
            ("OnDelete", [&old, &new], 113, ["OnDelete", "CloneSetUpdated"], None),
            ("ReCreate", [&old, &new], 200, ["Progressing", "CloneSetUpdated"], Some(11)),
            ("ReCreate", [&old, &new], 212, [DEADLINE_EXCEEDED; 2], None),
            ("OnDelete", [&old, &new], 213, ["OnDelete", "CloneSetUpdated"], None),
        ] {
            set.spec.update_strategy.type_ = type_.into();
            let (status, requeue) = of(&set, &pods.map(Clone::clone), second);
            let reasons = [kstatus::READY, PROGRESSING].map(|type_| found(&status.conditions, type_).unwrap().reason);
            assert_eq!((reasons, requeue), (wanted.map(String::from), look.map(Duration::from_secs)), "{second}");
            set.status = Some(status);
        }
    }

    /// The reason of Progressing, in seconds after the begin with a deadline of 10 s.
    #[test]
    fn the_deadline_begins_anew_after_nobody_knew_which_revision_is_wanted() {
        for reason in [kstatus::REVISION_UNKNOWN, kstatus::DEFAULTS_UNKNOWN] {
            let mut set = clone_set(json!({"spec": {"progressDeadlineSeconds": 10}}));
            let pods = [pod("web-1", true, true), pod("web-2", false, false)];
            set.status = Some(of(&set, &pods, 0).0);
            let recorded = set.status.clone().unwrap();
            let unresolved = unresolved(&recorded, (reason, "unknown: why".into()), "why", at(5));
            let of_type = |type_| found(&unresolved.conditions, type_).unwrap();
            assert_eq!(of_type(PROGRESSING), found(&recorded.conditions, PROGRESSING).unwrap(), "it is carried");
            assert_eq!(
                (of_type(FAILED_UPDATE).message.as_str(), of_type(kstatus::RECONCILING).reason.as_str()),
                ("why", reason)
            );
            set.status = Some(unresolved);
            let (known, requeue) = of(&set, &pods, 99);
            assert_eq!(found(&known.conditions, PROGRESSING).unwrap().reason, RUNNING);
            assert_eq!((requeue, found(&known.conditions, FAILED_UPDATE)), (Some(Duration::from_secs(11)), None));
        }
    }

    #[test]
    fn a_roll_out_past_its_deadline_is_stalled_until_it_gets_further() {
        let mut set = clone_set(json!({"spec": {"progressDeadlineSeconds": 10}}));
        let (old, new, done) = (pod("web-1", true, true), pod("web-2", false, false), pod("web-2", true, true));
        let exceeded = "CloneSet revision web-2 has timed out progressing";
        for (pods, second, wanted, event) in [
            ([&old, &new], 0, ["False", "CloneSet is progressing"], None),
            ([&old, &new], 12, ["True", exceeded], Some(": 0 of 2 Pods are updated and available")),
            ([&old, &new], 13, ["True", exceeded], None),
            ([&old, &done], 14, ["False", "CloneSet is progressing"], None),
            ([&old, &done], 26, ["True", exceeded], Some(": 1 of 2 Pods are updated and available")),
        ] {
            let (status, _) = of(&set, &pods.map(Clone::clone), second);
            let passed = deadline_passed(&set.status.clone().unwrap_or_default(), &status);
            assert_eq!(passed, event.map(|more| format!("{exceeded}{more}")), "{second}");
            let stalled = found(&status.conditions, kstatus::STALLED).unwrap().status;
            let progressing = found(&status.conditions, PROGRESSING).unwrap().message;
            assert_eq!([stalled.as_str(), progressing.as_str()], wanted);
            set.status = Some(status);
        }
    }
}
