use jiff::tz::TimeZone;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Every hour, since midnight.
fn cron(spec: Value, last: Option<&str>) -> AdvancedCronJob {
    let mut whole = json!({"schedule": "0 * * * *", "template": {"jobTemplate": {"spec": {}}}});
    json_patch::merge(&mut whole, &spec);
    serde_json::from_value(json!({"metadata": {"name": "cron", "namespace": "ns", "uid": "u",
        "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": whole, "status": {"lastScheduleTime": last}}))
    .unwrap()
}

fn child(slot: &str, end: Option<bool>) -> CronChild {
    let slot = at(slot);
    CronChild {
        kind: JobKind::Job,
        name: make::name("cron", slot),
        uid: format!("uid-{}", slot.as_second()),
        version: "1".into(),
        created: Some(slot),
        slot: Some(slot),
        begun: Some(slot),
        end: end.map(|succeeded| JobEnd { succeeded, at: None }),
        is_deleting: false,
    }
}

fn decide(cron: &AdvancedCronJob, children: &[CronChild], now: &str) -> CronPlan {
    let spec = CronSpec::of(&cron.spec, &TimeZone::UTC).unwrap();
    plan(cron, Some(&spec), children, Remembered::default(), at(now))
}

fn names(children: &[CronChild]) -> Vec<&str> {
    children.iter().map(|child| child.name.as_str()).collect()
}

#[test]
fn c5_9_a_slot_is_run_once_when_it_is_due() {
    let new = cron(json!({}), None);
    let before = decide(&new, &[], "2026-01-01T00:59:59.9Z");
    assert_eq!((before.run, before.next), (None, Some(at("2026-01-01T01:00:00Z"))));
    let due = decide(&new, &[], "2026-01-01T01:00:00Z");
    assert_eq!(
        (due.run, due.next, due.missed),
        (Some(at("2026-01-01T01:00:00Z")), Some(at("2026-01-01T02:00:00Z")), None)
    );
    let made = child("2026-01-01T01:00:00Z", None);
    let after = decide(&new, &[made], "2026-01-01T01:00:00.1Z");
    assert_eq!((after.run, after.last), (None, Some(at("2026-01-01T01:00:00Z"))));
}

#[test]
fn e37_a_slot_is_not_run_again_when_its_job_is_gone() {
    let ran = cron(json!({"successfulJobsHistoryLimit": 0}), Some("2026-01-01T01:00:00Z"));
    assert_eq!(decide(&ran, &[], "2026-01-01T01:30:00Z").run, None);
    // Before the slot is in the status, the job is what tells of it.
    let not_yet = cron(json!({"successfulJobsHistoryLimit": 0}), None);
    let ended = [child("2026-01-01T01:00:00Z", Some(true))];
    assert_eq!(decide(&not_yet, &ended, "2026-01-01T01:30:00Z").discard, []);
    assert_eq!(decide(&ran, &ended, "2026-01-01T01:30:00Z").discard, ended);
}

/// Made while the clock was ahead, by a process that ended before it wrote the status; then the clock was set right.
#[test]
fn e37_a_job_that_has_ended_and_whose_slot_has_not_come_is_kept_until_the_slot_is_recorded() {
    let ahead = CronChild { created: Some(at("2026-01-01T01:00:01Z")), ..child("2026-01-01T02:00:00Z", Some(true)) };
    let limit = json!({"successfulJobsHistoryLimit": 0});
    let jobs = std::slice::from_ref(&ahead);
    for (recorded, now, last, is_kept) in [
        (None, "2026-01-01T01:00:02Z", None, true),
        (Some("2026-01-01T01:00:00Z"), "2026-01-01T01:00:05Z", Some("2026-01-01T01:00:00Z"), true),
        // It has come.
        (Some("2026-01-01T01:00:00Z"), "2026-01-01T02:00:00Z", Some("2026-01-01T02:00:00Z"), true),
        (Some("2026-01-01T02:00:00Z"), "2026-01-01T02:00:01Z", Some("2026-01-01T02:00:00Z"), false),
    ] {
        let found = decide(&cron(limit.clone(), recorded), jobs, now);
        assert_eq!((found.last, found.discard.is_empty()), (last.map(at), is_kept), "{recorded:?} {now}");
        assert_eq!(found.run, recorded.is_none().then(|| at("2026-01-01T01:00:00Z")), "{recorded:?} {now}");
    }
}

#[test]
fn e37_a_slot_that_was_made_and_is_not_recorded_is_not_run_again_when_its_job_is_gone() {
    let (first, second) = (at("2026-01-01T01:00:00Z"), at("2026-01-01T02:00:00Z"));
    let spec = CronSpec::of(&cron(json!({}), None).spec, &TimeZone::UTC).unwrap();
    let jobs = [child("2026-01-01T01:00:00Z", None)];
    for (recorded, jobs, made, now, want_made, want_run) in [
        (None, &[][..], Some(first), "2026-01-01T01:00:05Z", Some(first), None),
        (None, &[], Some(first), "2026-01-01T02:00:00Z", Some(first), Some(second)),
        // Of a job that was there all the same is remembered.
        (None, &jobs, None, "2026-01-01T01:00:05Z", Some(first), None),
        (None, &jobs, Some(second), "2026-01-01T02:00:05Z", Some(second), None),
        // What is recorded is not remembered: it may be corrected.
        (Some("2099-01-01T00:00:00Z"), &[], Some(first), "2026-01-01T02:00:05Z", Some(first), None),
        (Some("2026-01-01T02:00:00Z"), &[], Some(first), "2026-01-01T02:00:05Z", Some(first), None),
    ] {
        let remembered = Remembered { made, reported: None };
        let found = plan(&cron(json!({}), recorded), Some(&spec), jobs, remembered, at(now));
        assert_eq!((found.made, found.run), (want_made, want_run), "{recorded:?} {made:?} {now}");
        assert_eq!(found.last, want_made.max(recorded.map(at)), "{recorded:?} {made:?} {now}");
    }
}

#[test]
fn a_job_with_a_slot_that_lies_ahead_of_its_creation_ends_no_schedule() {
    let (cron, now) = (cron(json!({}), None), "2026-01-01T01:00:01Z");
    for (slot, created, counts) in [
        ("2026-01-01T01:00:00Z", Some("2026-01-01T01:00:00Z"), true),
        // The API server's clock is behind ours.
        ("2026-01-01T01:00:00Z", Some("2026-01-01T00:50:00Z"), true),
        // Ours was set back since.
        ("2026-01-01T03:00:00Z", Some("2026-01-01T02:59:01Z"), true),
        ("2026-01-01T03:00:00Z", Some("2026-01-01T02:58:59Z"), false),
        ("2099-01-01T00:00:00Z", Some("2026-01-01T00:30:00Z"), false),
    ] {
        let made = CronChild { created: created.map(at), ..child(slot, None) };
        let plan = decide(&cron, &[made], now);
        assert_eq!(plan.last, counts.then(|| at(slot)), "{slot} {created:?}");
        assert_eq!(plan.run.is_some(), !counts, "{slot} {created:?}");
    }
}

#[test]
fn a_success_later_than_the_recorded_one_is_news() {
    let ended = |succeeded: bool, end: Option<&str>| CronChild {
        end: Some(JobEnd { succeeded, at: end.map(at) }),
        ..child("2026-01-01T01:00:00Z", None)
    };
    for (recorded, child, news) in [
        (None, ended(true, Some("2026-01-01T01:00:09Z")), true),
        (Some("2026-01-01T01:00:08Z"), ended(true, Some("2026-01-01T01:00:09Z")), true),
        (Some("2026-01-01T01:00:09Z"), ended(true, Some("2026-01-01T01:00:09.5Z")), false),
        (None, ended(false, Some("2026-01-01T01:00:09Z")), false),
        (None, ended(true, None), false),
    ] {
        let status =
            AdvancedCronJobStatus { last_successful_time: recorded.map(at), ..AdvancedCronJobStatus::default() };
        assert_eq!(is_news(Some(&status), &child), news, "{recorded:?} {child:?}");
    }
    assert!(is_news(None, &ended(true, Some("2026-01-01T01:00:09Z"))));
}

#[test]
fn c5_2_f43_the_newest_slot_is_that_of_status_and_jobs_and_never_goes_back() {
    let old_jobs = [child("2026-01-01T01:00:00Z", Some(true))];
    let ran = cron(json!({}), Some("2026-01-01T05:00:00Z"));
    let found = decide(&ran, &old_jobs, "2026-01-01T05:30:00Z");
    assert_eq!((found.last, found.run), (Some(at("2026-01-01T05:00:00Z")), None));
    // A clock that went back by hours.
    let back = decide(&ran, &old_jobs, "2026-01-01T02:30:00Z");
    assert_eq!((back.run, back.next), (None, Some(at("2026-01-01T06:00:00Z"))));
    // Somebody has written the annotation of another time: the name says otherwise.
    let forged = CronChild { slot: Some(at("2030-01-01T00:00:00Z")), ..child("2026-01-01T01:00:00Z", None) };
    assert_eq!(decide(&cron(json!({}), None), &[forged], "2026-01-01T01:30:00Z").last, None);
}

#[test]
fn c5_6_f43_of_many_missed_slots_the_latest_is_run_and_the_others_are_summed_up() {
    let missed = decide(&cron(json!({}), None), &[], "2026-01-01T05:30:00Z");
    assert_eq!(missed.run, Some(at("2026-01-01T05:00:00Z")));
    let sum = missed.missed.unwrap();
    assert_eq!((sum.count, sum.is_more, sum.first, sum.is_late), (4, false, at("2026-01-01T01:00:00Z"), false));
    let years = decide(&cron(json!({"schedule": "* * * * *"}), None), &[], "2030-01-01T05:30:30Z");
    assert_eq!((years.run, years.next), (Some(at("2030-01-01T05:30:00Z")), Some(at("2030-01-01T05:31:00Z"))));
    assert!(years.missed.is_some_and(|sum| sum.is_more && sum.count == 100));
}

#[test]
fn c5_6_f43_what_was_reported_is_not_reported_again_and_the_job_that_is_made_was_not_missed() {
    let hour = |hour: u32| at(&format!("2026-01-01T{hour:02}:00:00Z"));
    // Since midnight; with the count and the first one.
    for (deadline, reported, now, want) in [
        (Some(30), None, "2026-01-01T05:30:00Z", Some((5, hour(1)))),
        (Some(30), Some(hour(0)), "2026-01-01T05:30:00Z", Some((5, hour(1)))),
        (Some(30), Some(hour(2)), "2026-01-01T05:30:00Z", Some((3, hour(3)))),
        (Some(30), Some(at("2026-01-01T02:59:59Z")), "2026-01-01T05:30:00Z", Some((3, hour(3)))),
        (Some(30), Some(hour(5)), "2026-01-01T05:30:00Z", None),
        // In time again: the job of that hour is made.
        (Some(30), Some(hour(5)), "2026-01-01T06:00:00Z", None),
        (Some(30), Some(hour(4)), "2026-01-01T06:00:00Z", Some((1, hour(5)))),
        (None, None, "2026-01-01T01:30:00Z", None),
        (None, None, "2026-01-01T02:30:00Z", Some((1, hour(1)))),
    ] {
        for schedule in ["0 * * * *", "@every 1h"] {
            let cron = cron(json!({"schedule": schedule, "startingDeadlineSeconds": deadline}), None);
            let spec = CronSpec::of(&cron.spec, &TimeZone::UTC).unwrap();
            let found = plan(&cron, Some(&spec), &[], Remembered { made: None, reported }, at(now));
            let missed = found.missed.map(|missed| (missed.count, missed.first));
            assert_eq!(missed, want, "{schedule} {deadline:?} {reported:?} {now}");
        }
    }
    // The number ends at 100, and is exact before.
    for (now, count, is_more) in
        [("2026-01-01T01:40:00Z", 99, false), ("2026-01-01T01:41:00Z", 100, false), ("2026-01-01T01:42:00Z", 100, true)]
    {
        let missed = decide(&cron(json!({"schedule": "* * * * *"}), None), &[], now).missed.unwrap();
        assert_eq!((missed.count, missed.is_more), (count, is_more), "{now}");
    }
}

#[test]
fn c5_5_c5_7_the_starting_deadline() {
    let within = |seconds: i64, now: &str| decide(&cron(json!({"startingDeadlineSeconds": seconds}), None), &[], now);
    assert_eq!(within(90, "2026-01-01T01:01:30.9Z").run, Some(at("2026-01-01T01:00:00Z")));
    let late = within(90, "2026-01-01T02:01:31Z");
    let sum = late.missed.unwrap();
    assert_eq!((late.run, sum.count, sum.is_late, sum.last), (None, 2, true, at("2026-01-01T02:00:00Z")));
    assert_eq!(late.next, Some(at("2026-01-01T03:00:00Z")));
    assert_eq!(within(0, "2026-01-01T01:00:00.7Z").run, Some(at("2026-01-01T01:00:00Z")));
    assert_eq!(within(0, "2026-01-01T01:00:01Z").run, None);
    assert_eq!(within(i64::MAX, "2026-01-01T01:00:01Z").run, Some(at("2026-01-01T01:00:00Z")));
}

#[test]
fn c5_8_concurrency_policies() {
    let active = [child("2026-01-01T01:00:00Z", None)];
    let with = |policy: &str, children: &[CronChild]| {
        decide(
            &cron(json!({"concurrencyPolicy": policy}), Some("2026-01-01T01:00:00Z")),
            children,
            "2026-01-01T02:00:00Z",
        )
    };
    let slot = Some(at("2026-01-01T02:00:00Z"));
    let allow = with("Allow", &active);
    assert_eq!((allow.run, allow.replace.len()), (slot, 0));
    let forbid = with("Forbid", &active);
    assert_eq!((forbid.run, forbid.waiting), (None, slot));
    // It is made up for when the job has ended.
    let ended = with("Forbid", &[child("2026-01-01T01:00:00Z", Some(false))]);
    assert_eq!((ended.run, ended.waiting), (slot, None));
    let replace = with("Replace", &active);
    assert_eq!((replace.run, replace.replace), (slot, active.to_vec()));
    let going = [CronChild { is_deleting: true, ..active[0].clone() }];
    assert_eq!(with("Replace", &going).replace, []);
    assert_eq!(with("Forbid", &going).waiting, slot);
}

#[test]
fn c5_4_while_it_is_paused_or_unreadable_no_job_is_made_and_the_history_is_kept() {
    let paused = cron(json!({"paused": true, "failedJobsHistoryLimit": 0}), Some("2026-01-01T01:00:00Z"));
    let children = [child("2026-01-01T01:00:00Z", Some(false))];
    let found = decide(&paused, &children, "2026-01-01T05:00:00Z");
    assert_eq!((found.run, found.next, names(&found.discard)), (None, None, vec!["cron-1767229200"]));
    let unread = plan(&paused, None, &children, Remembered::default(), at("2026-01-01T05:00:00Z"));
    assert_eq!((unread.run, unread.discard.len(), unread.last), (None, 1, Some(at("2026-01-01T01:00:00Z"))));
}

#[test]
fn c5_3_of_the_history_the_oldest_go() {
    let mut children: Vec<CronChild> =
        (1..=5).map(|hour| child(&format!("2026-01-01T0{hour}:00:00Z"), Some(hour % 2 == 1))).collect();
    children.reverse();
    let never_begun = CronChild { begun: None, ..child("2026-01-01T06:00:00Z", Some(true)) };
    children.push(never_begun);
    children.push(child("2026-01-01T07:00:00Z", None));
    let limits = json!({"successfulJobsHistoryLimit": 2, "failedJobsHistoryLimit": 1});
    let found = decide(&cron(limits, Some("2026-01-01T07:00:00Z")), &children, "2026-01-01T07:30:00Z");
    // 1, 3, 5 and 6 have succeeded, 2 and 4 have failed; 6 never began.
    assert_eq!(names(&found.discard), ["cron-1767247200", "cron-1767229200", "cron-1767232800"]);
    assert_eq!(names(&found.active), ["cron-1767250800"]);
}

#[test]
fn a_manual_job_counts_as_active_and_in_the_history_and_has_no_slot() {
    let manual = CronChild { slot: None, name: "cron-x7k2p".into(), ..child("2026-01-01T00:30:00Z", None) };
    let forbid = cron(json!({"concurrencyPolicy": "Forbid", "successfulJobsHistoryLimit": 0}), None);
    let found = decide(&forbid, std::slice::from_ref(&manual), "2026-01-01T01:00:00Z");
    assert_eq!((found.last, found.run, found.waiting), (None, None, Some(at("2026-01-01T01:00:00Z"))));
    let ended = [CronChild { end: Some(JobEnd { succeeded: true, at: None }), ..manual }];
    assert_eq!(decide(&forbid, &ended, "2026-01-01T00:59:00Z").discard, ended);
}

/// What a process does with its plans, with crashes and clocks that jump: each slot at most once, and each slot that comes
/// while it is there and the clock goes on is run.
#[derive(Clone, Debug)]
enum Step {
    /// The clock goes on.
    Wait(i64),
    /// The clock is set.
    Jump(i64),
    /// The process ends after its next write, before the status is recorded.
    Crash,
    /// Jobs end.
    End,
    /// Somebody deletes jobs that have ended, once they are in the status.
    Delete,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..7200_i64).prop_map(Step::Wait),
        1 => (-20_000..20_000_i64).prop_map(Step::Jump),
        1 => Just(Step::Crash),
        2 => Just(Step::End),
        1 => Just(Step::Delete),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn e39_no_slot_is_run_twice_whatever_happens(steps in proptest::collection::vec(step(), 1..60), policy in 0..3_usize, limit in 0..3) {
        let policy = ["Allow", "Forbid", "Replace"][policy];
        let spec = json!({"schedule": "*/20 * * * *", "concurrencyPolicy": policy, "successfulJobsHistoryLimit": limit});
        let mut cron = cron(spec, None);
        let read = CronSpec::of(&cron.spec, &TimeZone::UTC).unwrap();
        let mut children: Vec<CronChild> = Vec::new();
        let mut made: Vec<Timestamp> = Vec::new();
        let mut now = at("2026-01-01T00:00:00Z").as_second();
        let mut crash = false;
        for step in steps {
            match step {
                Step::Wait(seconds) | Step::Jump(seconds) => now += seconds,
                Step::Crash => crash = true,
                Step::End => children.iter_mut().for_each(|child| child.end = Some(JobEnd { succeeded: true, at: None })),
                Step::Delete => {
                    let last = cron.status.as_ref().and_then(|status| status.last_schedule_time);
                    children.retain(|child| child.end.is_none() || child.slot > last);
                }
            }
            // Until there is nothing to do.
            for _ in 0..4 {
                let moment = Timestamp::from_second(now).unwrap();
                let plan = plan(&cron, Some(&read), &children, Remembered::default(), moment);
                let replaces = !plan.records_first;
                let gone = |child: &CronChild| (replaces && plan.replace.contains(child)) || (plan.run.is_none() && plan.discard.contains(child));
                children.retain(|child| !gone(child));
                if let Some(slot) = plan.run.filter(|_| !plan.records_first) {
                    prop_assert!(slot <= moment);
                    prop_assert!(!made.contains(&slot), "{slot} is run twice");
                    made.push(slot);
                    children.push(child(&slot.to_string(), None));
                    if std::mem::take(&mut crash) {
                        break;
                    }
                } else if !std::mem::take(&mut crash) {
                    cron.status.get_or_insert_default().last_schedule_time = plan.last;
                }
            }
            prop_assert!(policy == "Allow" || children.iter().filter(|child| child.end.is_none()).count() <= 1);
        }
    }
}
