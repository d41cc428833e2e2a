//! What is recorded of an AdvancedCronJob.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use super::{
    plan::{CronChild, CronPlan},
    spec::{CronProblem, CronSpec, template},
};
use crate::{
    api::apps::advanced_cron_job::{AdvancedCronJob, AdvancedCronJobStatus},
    k8s::{
        conditions::{self, READY, RECONCILING, STALLED},
        time::{rfc3339, whole_seconds},
    },
};

/// The most jobs that `active` names, the newest: an object has no room for any number of them.
const MOST_ACTIVE: usize = 500;

/// The reason of the condition Ready while nothing is due.
const SCHEDULED: &str = "Scheduled";

/// The status as it should be. `trouble` says why the job that is due could not be made.
pub fn status(
    cron: &AdvancedCronJob,
    spec: Result<&CronSpec, &CronProblem>,
    (plan, children): (&CronPlan, &[CronChild]),
    trouble: Option<&str>,
    now: Timestamp,
) -> AdvancedCronJobStatus {
    let before = cron.status.clone().unwrap_or_default();
    let namespace = cron.metadata.namespace.as_deref().unwrap_or_default();
    let reference = |child: &CronChild| {
        // The version at which it was first seen: it changes with every step of the job.
        let known = before.active.iter().find(|known| known.uid.as_deref() == Some(child.uid.as_str()));
        known.cloned().unwrap_or_else(|| reference(child, namespace))
    };
    let succeeded = children.iter().filter_map(|child| child.end.filter(|end| end.succeeded)?.at);
    let mut status = AdvancedCronJobStatus {
        observed_generation: cron.metadata.generation.unwrap_or_default(),
        type_: template(&cron.spec.template).map(|(kind, _)| kind.kind().to_owned()).unwrap_or_default(),
        active: plan.active[plan.active.len().saturating_sub(MOST_ACTIVE)..].iter().map(reference).collect(),
        last_schedule_time: plan.last.map(whole_seconds),
        last_successful_time: succeeded.map(whole_seconds).chain(before.last_successful_time).max(),
        next_schedule_time: plan.next,
        conditions: before.conditions,
    };
    let (type_, reason, message) = match (spec, trouble) {
        (Err(problem), _) => (STALLED, problem.reason(), problem.to_string()),
        (Ok(spec), _) if spec.paused => (READY, "Paused", "spec.paused is true: no job is made".to_owned()),
        (Ok(_), Some(trouble)) => (RECONCILING, "FailedCreate", trouble.to_owned()),
        (Ok(_), None) if plan.waiting.is_some() => {
            let message = "a job is due and is made when the active ones have ended (concurrencyPolicy Forbid)";
            (READY, "JobAlreadyActive", message.to_owned())
        }
        // It passes by itself; without a slot in between nobody misses anything.
        (Ok(spec), None) => match plan.ahead.filter(|ahead| spec.schedule.loses_before(*ahead, now)) {
            Some(ahead) => {
                let message =
                    format!("status.lastScheduleTime is in the future: no job is made before {}", rfc3339(ahead));
                (RECONCILING, "LastScheduleAhead", message)
            }
            None if plan.next.is_none() => {
                let message = "spec.schedule: it fits no time of the next five years";
                (STALLED, "NeverDue", message.to_owned())
            }
            None => (READY, SCHEDULED, "jobs are made by the schedule".to_owned()),
        },
    };
    conditions::set_kstatus(&mut status.conditions, (type_, reason, &message), cron.metadata.generation, now);
    status
}

/// Up to this time every slot had its job or was reported as missed, by the status. None: unknown, for example because a job
/// that was due was not made. A new process begins with it, so that nothing is reported twice.
pub fn reported_until(cron: &AdvancedCronJob) -> Option<Timestamp> {
    let status = cron.status.as_ref()?;
    let is_of_this_spec = cron.metadata.generation == Some(status.observed_generation);
    let mut conditions = status.conditions.iter();
    let is_scheduled = conditions.any(|condition| condition.type_ == READY && condition.reason == SCHEDULED);
    let next = status.next_schedule_time.filter(|_| is_of_this_spec && is_scheduled)?;
    Timestamp::from_second(next.as_second().checked_sub(1)?).ok()
}

fn reference(child: &CronChild, namespace: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(child.kind.api_version()),
        kind: Some(child.kind.kind().to_owned()),
        name: Some(child.name.clone()),
        namespace: Some(namespace.to_owned()),
        resource_version: Some(child.version.clone()).filter(|version| !version.is_empty()),
        uid: Some(child.uid.clone()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;
    use serde_json::{Value, json};

    use super::{
        super::{
            plan::{JobEnd, Remembered, plan},
            spec::JobKind,
        },
        *,
    };

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn cron(spec: Value, status: Value) -> AdvancedCronJob {
        let mut whole = json!({"schedule": "0 * * * *", "template": {"jobTemplate": {"spec": {}}}});
        json_patch::merge(&mut whole, &spec);
        serde_json::from_value(json!({"metadata": {"name": "cron", "namespace": "ns", "uid": "u", "generation": 3,
            "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": whole, "status": status}))
        .unwrap()
    }

    fn child(name: &str, slot: &str, end: Option<bool>) -> CronChild {
        let end = end.map(|succeeded| JobEnd { succeeded, at: Some(at("2026-01-01T01:00:30Z")) });
        let (slot, begun) = (Some(at(slot)), None);
        CronChild {
            kind: JobKind::Job,
            name: name.into(),
            uid: format!("uid-{name}"),
            version: "7".into(),
            created: slot,
            slot,
            begun,
            end,
            is_deleting: false,
        }
    }

    fn of(cron: &AdvancedCronJob, children: &[CronChild], trouble: Option<&str>, now: &str) -> AdvancedCronJobStatus {
        let spec = CronSpec::of(&cron.spec, &TimeZone::UTC);
        let plan = plan(cron, spec.as_ref().ok(), children, Remembered::default(), at(now));
        status(cron, spec.as_ref(), (&plan, children), trouble, at(now))
    }

    fn true_one(status: &AdvancedCronJobStatus) -> String {
        let is_true = status.conditions.iter().filter(|condition| condition.status == "True");
        is_true.map(|c| format!("{} {}", c.type_, c.reason)).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn there_is_a_status_from_the_first_moment() {
        let written = json!(of(&cron(json!({}), Value::Null), &[], None, "2026-01-01T00:00:00.3Z"));
        assert_eq!((&written["observedGeneration"], &written["type"]), (&json!(3), &json!("Job")));
        assert_eq!((&written["nextScheduleTime"], &written["active"]), (&json!("2026-01-01T01:00:00Z"), &Value::Null));
        assert_eq!(written["conditions"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn decision_32_exactly_one_condition_says_how_it_stands() {
        let active = [child("cron-1767229200", "2026-01-01T01:00:00Z", None)];
        for (spec, children, trouble, want) in [
            (json!({}), &[][..], None, "Ready Scheduled"),
            (json!({"paused": true}), &[], Some("x"), "Ready Paused"),
            (json!({}), &[], Some("quota"), "Reconciling FailedCreate"),
            (json!({"concurrencyPolicy": "Forbid"}), &active, None, "Ready JobAlreadyActive"),
            (json!({"schedule": "0 0 30 2 *"}), &[], None, "Stalled NeverDue"),
            (json!({"schedule": "TZ="}), &[], None, "Stalled InvalidSchedule"),
            (json!({"timeZone": "Mars/Olympus"}), &[], None, "Stalled UnknownTimeZone"),
            (json!({"template": {"jobTemplate": null}}), &[], None, "Stalled InvalidTemplate"),
        ] {
            let cron = cron(spec.clone(), json!({"lastScheduleTime": "2026-01-01T01:00:00Z"}));
            assert_eq!(true_one(&of(&cron, children, trouble, "2026-01-01T02:00:01Z")), want, "{spec}");
        }
    }

    #[test]
    fn a_last_time_that_lies_ahead_is_reported_with_the_time() {
        let recorded =
            |schedule: &str, last: &str| cron(json!({"schedule": schedule}), json!({"lastScheduleTime": last}));
        let (hourly, minutes, ahead) = ("0 * * * *", "* * * * *", "Reconciling LastScheduleAhead");
        for (schedule, last, want) in [
            (hourly, "2099-01-01T01:00:00Z", ahead),
            (hourly, "2026-01-01T03:00:01Z", ahead),
            // No slot lies in between.
            (hourly, "2026-01-01T03:00:00Z", "Ready Scheduled"),
            (minutes, "2026-01-01T02:01:02Z", ahead),
            // The clock of the leader before was ahead of ours.
            (minutes, "2026-01-01T02:01:01Z", "Ready Scheduled"),
            (hourly, "2026-01-01T02:00:00Z", "Ready Scheduled"),
            ("0 0 30 2 *", "2099-01-01T01:00:00Z", "Stalled NeverDue"),
        ] {
            let status = of(&recorded(schedule, last), &[], None, "2026-01-01T02:00:01Z");
            assert_eq!(true_one(&status), want, "{schedule} {last}");
            let says = status.conditions.iter().any(|condition| condition.message.ends_with(&format!("before {last}")));
            assert_eq!(says, want == ahead, "{schedule} {last}");
        }
        let active = [child("cron-1767229200", "2026-01-01T01:00:00Z", None)];
        let paused = cron(json!({"paused": true}), json!({"lastScheduleTime": "2099-01-01T01:00:00Z"}));
        assert_eq!(true_one(&of(&paused, &active, None, "2026-01-01T02:00:01Z")), "Ready Paused");
    }

    #[test]
    fn what_was_reported_is_known_where_nothing_was_due_when_the_status_was_written() {
        let active = [child("cron-1767229200", "2026-01-01T01:00:00Z", None)];
        for (spec, children, trouble, generation, is_known) in [
            (json!({"startingDeadlineSeconds": 0}), &[][..], None, 3, true),
            (json!({"startingDeadlineSeconds": 0, "schedule": "@every 1h"}), &[], None, 3, true),
            // The spec has changed since.
            (json!({"startingDeadlineSeconds": 0}), &[], None, 4, false),
            // A job is due, and may be late when somebody looks again.
            (json!({}), &[], Some("quota"), 3, false),
            (json!({"concurrencyPolicy": "Forbid"}), &active, None, 3, false),
            (json!({"paused": true}), &[], None, 3, false),
            (json!({"schedule": "0 0 30 2 *"}), &[], None, 3, false),
        ] {
            let mut cron = cron(spec.clone(), json!({"lastScheduleTime": "2026-01-01T01:00:00Z"}));
            cron.status = Some(of(&cron, children, trouble, "2026-01-01T02:00:01Z"));
            cron.metadata.generation = Some(generation);
            let want = is_known.then(|| at("2026-01-01T02:59:59Z"));
            assert_eq!(reported_until(&cron), want, "{spec} {trouble:?} {generation}");
        }
        assert_eq!(reported_until(&cron(json!({}), Value::Null)), None);
        // As OpenKruise leaves it.
        assert_eq!(
            reported_until(&cron(json!({}), json!({"lastScheduleTime": "2026-01-01T01:00:00Z", "type": "Job"}))),
            None
        );
    }

    #[test]
    fn of_jobs_that_never_end_the_newest_500_are_named() {
        let name = |i: usize| format!("cron-{}", 1_767_225_600 + i);
        let slot = |i: usize| {
            (at("2026-01-01T00:00:00Z") + jiff::SignedDuration::from_secs(i.try_into().unwrap())).to_string()
        };
        let children: Vec<CronChild> = (0..501).map(|i| child(&name(i), &slot(i), None)).collect();
        let status = of(&cron(json!({}), Value::Null), &children, None, "2026-01-01T01:00:00Z");
        assert_eq!(status.active.len(), 500);
        assert_eq!(status.active[499].name.as_deref(), Some(&*name(500)));
    }

    #[test]
    fn a_job_is_named_at_the_version_at_which_it_was_first_seen() {
        let cron = cron(json!({}), json!({"active": [{"uid": "uid-cron-1767229200", "resourceVersion": "5"}]}));
        let children = [
            child("cron-1767232800", "2026-01-01T02:00:00Z", None),
            child("cron-1767229200", "2026-01-01T01:00:00Z", None),
            child("cron-1767225600", "2026-01-01T00:00:00Z", Some(true)),
        ];
        let status = of(&cron, &children, None, "2026-01-01T02:00:01Z");
        let versions: Vec<_> = status.active.iter().map(|job| job.resource_version.as_deref()).collect();
        assert_eq!(versions, [Some("5"), Some("7")]);
        assert_eq!(
            json!(status.active[1]),
            json!({"apiVersion": "batch/v1", "kind": "Job", "name": "cron-1767232800", "namespace": "ns",
                "uid": "uid-cron-1767232800", "resourceVersion": "7"})
        );
        assert_eq!(status.last_successful_time, Some(at("2026-01-01T01:00:30Z")));
        assert_eq!(status.last_schedule_time, Some(at("2026-01-01T02:00:00Z")));
    }
}
