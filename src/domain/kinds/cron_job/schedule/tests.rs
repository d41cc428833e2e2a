use proptest::prelude::*;

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn schedule(text: &str) -> Schedule {
    Schedule::parse(text, None, &TimeZone::UTC).unwrap()
}

fn in_zone(zone: &str, text: &str) -> Schedule {
    Schedule::parse(text, Some(zone), &TimeZone::UTC).unwrap()
}

/// The slots after a moment.
fn after(schedule: &Schedule, from: &str, count: usize) -> Vec<String> {
    let anchor = at(from);
    let next = |last: &Timestamp| schedule.next(*last, anchor);
    std::iter::successors(schedule.next(anchor, anchor), next).take(count).map(|slot| slot.to_string()).collect()
}

#[test]
fn c4_what_the_standard_parser_takes() {
    for (text, from, want) in [
        ("* * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"),
        ("* * * * *", "2026-01-01T00:00:59.9Z", "2026-01-01T00:01:00Z"),
        ("? ? ? ? ?", "2026-01-01T00:00:30Z", "2026-01-01T00:01:00Z"),
        ("*/15 * * * *", "2026-01-01T00:46:00Z", "2026-01-01T01:00:00Z"),
        ("5/20 * * * *", "2026-01-01T00:25:00Z", "2026-01-01T00:45:00Z"),
        ("10-40/15 * * * *", "2026-01-01T00:25:00Z", "2026-01-01T00:40:00Z"),
        ("1,,2 * * * *", "2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z"),
        ("05 03 * * *", "2026-01-01T00:00:00Z", "2026-01-01T03:05:00Z"),
        ("0 0 1 JAN-mar *", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"),
        ("0 0 * * SUN", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z"),
        ("0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("59 23 31 12 *", "2026-01-01T00:00:00Z", "2026-12-31T23:59:00Z"),
        // Both fields for days: one that fits is enough, unless one of them is a star without a step.
        ("0 0 13 * FRI", "2026-02-01T00:00:00Z", "2026-02-06T00:00:00Z"),
        ("0 0 */1 * FRI", "2026-02-01T00:00:00Z", "2026-02-06T00:00:00Z"),
        ("0 0 */2 * FRI", "2026-02-01T00:00:00Z", "2026-02-03T00:00:00Z"),
        ("@yearly", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("@annually", "2026-05-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("@monthly", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"),
        ("@weekly", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z"),
        ("@daily", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
        ("@midnight", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
        ("@hourly", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"),
        ("@every 1h30m", "2026-01-01T00:00:00Z", "2026-01-01T01:30:00Z"),
        ("@every 1.5s", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"),
        ("@every 1ms", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"),
        ("@every -5m", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"),
        ("TZ=Asia/Shanghai 0 8 * * *", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
        ("CRON_TZ=Asia/Shanghai   @daily ", "2026-01-01T00:00:00Z", "2026-01-01T16:00:00Z"),
        ("TZ= 0 8 * * *", "2026-01-01T00:00:00Z", "2026-01-01T08:00:00Z"),
        ("TZ=Local 0 8 * * *", "2026-01-01T00:00:00Z", "2026-01-01T08:00:00Z"),
    ] {
        assert_eq!(after(&schedule(text), from, 1), [want], "{text}");
    }
}

#[test]
fn e38_what_is_no_schedule_is_an_error_that_says_why() {
    for (text, says) in [
        ("", "it is empty; want five fields"),
        ("TZ=", "\"TZ=\" has no fields behind the time zone"),
        ("CRON_TZ=Asia/Shanghai", "has no fields behind the time zone"),
        ("TZ=Nowhere/Land * * * * *", "\"Nowhere/Land\" is no time zone"),
        ("TZ=asia/shanghai * * * * *", "want a name such as Asia/Shanghai"),
        ("TZ=UTC ", "has 0 fields"),
        ("* * * *", "has 4 fields; want five"),
        ("0 * * * * *", "has 6 fields"),
        (" @hourly", "has 1 fields"),
        ("@hourly ", "\"@hourly \" is not known"),
        ("@Hourly", "want @yearly"),
        ("@every", "is not known"),
        ("@every  1h", "is no duration"),
        ("@every 1", "is no duration"),
        ("@every 1d", "is no duration"),
        ("@every .s", "is no duration"),
        ("@every 9999999999999h", "is no duration"),
        ("60 * * * *", "\"60\" in the field minute: it is out of range; want 0 to 59"),
        ("* 24 * * *", "in the field hour: it is out of range"),
        ("* * 0 * *", "in the field day of the month"),
        ("* * 32 * *", "want 1 to 31"),
        ("* * * 13 *", "in the field month"),
        ("* * * FOO *", "no number"),
        ("* * * * 7", "in the field day of the week: it is out of range; want 0 to 6"),
        ("5-1 * * * *", "its end is before its begin"),
        ("1-2-3 * * * *", "more than one hyphen"),
        ("1/2/3 * * * *", "more than one slash"),
        ("*/0 * * * *", "its step is 0"),
        ("*/-2 * * * *", "negative number"),
        ("*/ * * * *", "no number"),
        ("-1 * * * *", "no number"),
        ("99999999999999999999 * * * *", "no number"),
        ("jan * * * *", "no number"),
    ] {
        let error = Schedule::parse(text, None, &TimeZone::UTC).unwrap_err().to_string();
        assert!(error.contains(says), "{text:?}: {error}");
    }
    let long = Schedule::parse(&"*,".repeat(1 << 16), None, &TimeZone::UTC).unwrap_err().to_string();
    assert!(long.len() < 300, "{long}");
    assert!(Schedule::parse("* * * * *", Some("Local"), &TimeZone::UTC).is_err());
    assert!(Schedule::parse("* * * * *", Some(""), &TimeZone::UTC).is_err());
}

#[test]
fn c4_hostile_numbers_do_not_panic() {
    for text in ["*/9223372036854775807 * * * *", "* * * * *", "@every 1s", "@every 2562047h", "@yearly"] {
        let schedule = schedule(text);
        for moment in [Timestamp::MIN, Timestamp::UNIX_EPOCH, Timestamp::MAX] {
            for anchor in [Timestamp::MIN, Timestamp::UNIX_EPOCH, Timestamp::MAX] {
                schedule.next(moment, anchor);
                schedule.slots(anchor, moment);
            }
        }
    }
}

#[test]
fn c4_the_search_ends_after_five_years() {
    for text in ["0 0 30 2 *", ", * * * *", "0 0 31 4,6,9,11 *"] {
        assert_eq!(after(&schedule(text), "2026-01-01T00:00:00Z", 1), Vec::<String>::new(), "{text}");
    }
}

/// The table of the guide.
#[test]
fn slots_are_lost_before_a_run_that_lies_ahead_of_the_one_before_it() {
    for (text, last, loses) in [
        ("0 * * * *", "2026-01-01T02:00:00Z", false),
        ("0 * * * *", "2026-01-01T02:59:59Z", true),
        ("0 * * * *", "2026-01-01T03:00:00Z", true),
        ("0 * * * *", "2026-01-01T01:59:59Z", false),
        ("0 0 30 2 *", "2099-01-01T00:00:00Z", false),
        ("@every 1h", "2026-01-01T02:00:30Z", false),
        ("@every 1h", "2026-01-01T02:00:31Z", true),
        ("@every 1h", "9999-12-30T00:00:00Z", true),
    ] {
        assert_eq!(schedule(text).loses_before(at(last), at("2026-01-01T01:00:30Z")), loses, "{text} {last}");
    }
}

#[test]
fn c4_when_clocks_are_changed() {
    let new_york = |text: &str, from: &str, count: usize| after(&in_zone("America/New_York", text), from, count);
    // 2026-03-08: 02:00 to 03:00 is skipped.
    assert_eq!(new_york("30 2 * * *", "2026-03-07T08:00:00Z", 1), ["2026-03-09T06:30:00Z"]);
    assert_eq!(
        new_york("0 * * * *", "2026-03-08T05:30:00Z", 3),
        ["2026-03-08T06:00:00Z", "2026-03-08T07:00:00Z", "2026-03-08T08:00:00Z"]
    );
    assert_eq!(new_york("0 3 * * *", "2026-03-08T00:00:00Z", 1), ["2026-03-08T07:00:00Z"]);
    // 2026-11-01: 01:00 to 02:00 comes twice.
    assert_eq!(
        new_york("30 1 * * *", "2026-11-01T00:00:00Z", 3),
        ["2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z", "2026-11-02T06:30:00Z"]
    );
    assert_eq!(new_york("0 3 * * *", "2026-11-01T00:00:00Z", 1), ["2026-11-01T08:00:00Z"]);
    assert_eq!(after(&in_zone("America/New_York", "@every 24h"), "2026-11-01T00:00:00Z", 1), ["2026-11-02T00:00:00Z"]);
    // Half an hour, at 02:00.
    let island = in_zone("Australia/Lord_Howe", "15,45 1 * * *");
    assert_eq!(
        after(&island, "2026-04-04T12:00:00Z", 3),
        ["2026-04-04T14:15:00Z", "2026-04-04T14:45:00Z", "2026-04-04T15:15:00Z"]
    );
    // Midnight itself is skipped, and so is a whole day.
    assert_eq!(after(&in_zone("America/Sao_Paulo", "@daily"), "2018-11-03T12:00:00Z", 1), ["2018-11-05T02:00:00Z"]);
    assert_eq!(after(&in_zone("Pacific/Apia", "0 12 30 12 *"), "2011-12-01T00:00:00Z", 1), ["2012-12-29T22:00:00Z"]);
    assert_eq!(after(&in_zone("Asia/Kolkata", "0 0 * * *"), "2026-01-01T00:00:00Z", 1), ["2026-01-01T18:30:00Z"]);
}

#[test]
fn f43_however_many_slots_are_due_the_latest_is_found() {
    let of = |text: &str, anchor: &str, now: &str| {
        let Slots { latest, first, next } = schedule(text).slots(at(anchor), at(now));
        let text = |slot: Option<Timestamp>| slot.map(|slot| slot.to_string()).unwrap_or_default();
        (text(first), text(latest), text(next))
    };
    let want = |first: &str, latest: &str, next: &str| (first.into(), latest.into(), next.into());
    assert_eq!(of("0 * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:59:59Z"), want("", "", "2026-01-01T01:00:00Z"));
    assert_eq!(
        of("0 * * * *", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"),
        want("2026-01-01T01:00:00Z", "2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z")
    );
    assert_eq!(
        of("0 * * * *", "2026-01-01T00:00:00Z", "2026-01-05T04:30:00Z"),
        want("2026-01-01T01:00:00Z", "2026-01-05T04:00:00Z", "2026-01-05T05:00:00Z")
    );
    assert_eq!(
        of("* * * * *", "1996-01-01T00:00:00Z", "2026-01-05T04:30:20.5Z"),
        want("1996-01-01T00:01:00Z", "2026-01-05T04:30:00Z", "2026-01-05T04:31:00Z")
    );
    assert_eq!(
        of("* * 1 1 *", "2020-06-01T00:00:00Z", "2026-01-05T04:30:20.5Z"),
        want("2021-01-01T00:00:00Z", "2026-01-01T23:59:00Z", "2027-01-01T00:00:00Z")
    );
    assert_eq!(
        of("@every 7m", "2026-01-01T00:00:03Z", "2026-03-01T00:00:00Z"),
        want("2026-01-01T00:07:03Z", "2026-02-28T23:59:03Z", "2026-03-01T00:06:03Z")
    );
    assert_eq!(of("0 0 30 2 *", "2026-01-01T00:00:00Z", "2036-01-01T00:00:00Z"), want("", "", ""));
    // A clock that went back: nothing is due until it has caught up.
    assert_eq!(of("* * * * *", "2026-01-01T12:00:00Z", "2026-01-01T11:00:00Z"), want("", "", "2026-01-01T12:01:00Z"));
}

const ZONES: [&str; 12] = [
    "UTC",
    "America/New_York",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Europe/London",
    "Europe/Berlin",
    "Africa/Casablanca",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Asia/Tehran",
    "Australia/Lord_Howe",
    "Pacific/Chatham",
];

/// A field as text, as a set, and whether it is a star.
fn field(bounds: &'static Bounds) -> impl Strategy<Value = (String, Vec<u32>, bool)> {
    let (min, max) = (bounds.min, bounds.max);
    let pair = (min..=max, min..=max).prop_map(|(a, b)| (a.min(b), a.max(b)));
    prop_oneof![
        3 => Just(("*".to_owned(), (min..=max).collect::<Vec<u32>>(), true)),
        2 => (min..=max).prop_map(|a| (a.to_string(), vec![a], false)),
        1 => pair.clone().prop_map(|(a, b)| (format!("{a}-{b}"), (a..=b).collect(), false)),
        1 => (1..=20_usize).prop_map(move |step| {
            (format!("*/{step}"), (min..=max).step_by(step).collect(), step == 1)
        }),
        1 => (pair, 1..=9_usize).prop_map(|((a, b), step)| {
            (format!("{a}-{b}/{step}"), (a..=b).step_by(step).collect(), false)
        }),
        1 => proptest::collection::vec(min..=max, 1..5).prop_map(|all| {
            let texts: Vec<String> = all.iter().map(u32::to_string).collect();
            (texts.join(","), all, false)
        }),
    ]
}

type Given = (String, Vec<u32>, bool);

/// Whether a whole minute is a slot, by looking at the wall clock alone.
fn fits(zone: &TimeZone, [minute, hour, day, month, weekday]: &[Given; 5], moment: Timestamp) -> bool {
    let local = zone.to_datetime(moment);
    let has = |field: &Given, number: i8| field.1.iter().any(|known| i64::from(*known) == i64::from(number));
    let by_day = has(day, local.day());
    let by_weekday = has(weekday, local.weekday().to_sunday_zero_offset());
    let on_day = if day.2 || weekday.2 { by_day && by_weekday } else { by_day || by_weekday };
    local.second() == 0 && has(minute, local.minute()) && has(hour, local.hour()) && has(month, local.month()) && on_day
}

fn fields() -> impl Strategy<Value = [Given; 5]> {
    (field(&MINUTE), field(&HOUR), field(&DAY), field(&MONTH), field(&WEEKDAY))
        .prop_map(|(a, b, c, d, e)| [a, b, c, d, e])
}

fn text(fields: &[Given; 5]) -> String {
    fields.iter().map(|field| field.0.as_str()).collect::<Vec<_>>().join(" ")
}

fn minute_after(moment: Timestamp) -> Timestamp {
    Timestamp::from_second((moment.as_second().div_euclid(60) + 1) * 60).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Around changes of the clock, where mistakes are made.
    #[test]
    fn c4_the_next_slot_is_that_of_a_brute_force_calendar(
        fields in fields(), zone in 0..ZONES.len(), begin in 1_546_300_800_i64..2_082_758_400, hours in 0..60_i64,
    ) {
        let name = ZONES[zone];
        let zone = zones::named(name).unwrap();
        let schedule = in_zone(name, &text(&fields));
        let begin = Timestamp::from_second(begin).unwrap();
        let change = zone.following(begin).next().map_or(begin, |change| change.timestamp());
        let from = Timestamp::from_second(change.as_second() - hours * 3600 + 17).unwrap();
        let mut minutes = std::iter::successors(Some(minute_after(from)), |moment| Some(minute_after(*moment))).take(3 * 1440);
        let last = Timestamp::from_second(from.as_second() + 3 * 86400).unwrap();
        let wanted = minutes.find(|moment| fits(&zone, &fields, *moment));
        let found = schedule.next(from, from);
        match wanted {
            Some(wanted) => prop_assert_eq!(found, Some(wanted), "{} in {}", text(&fields), name),
            None => prop_assert!(found.is_none_or(|found| found > last), "{} in {}: {:?}", text(&fields), name, found),
        }
    }

    #[test]
    fn f43_the_latest_slot_is_that_of_a_walk(fields in fields(), begin in 1_546_300_800_i64..2_082_758_400, hours in 0..400_i64) {
        let schedule = schedule(&text(&fields));
        let anchor = Timestamp::from_second(begin).unwrap();
        let now = Timestamp::from_second(begin + hours * 3600 + 11).unwrap();
        let walk: Vec<Timestamp> = std::iter::successors(schedule.next(anchor, anchor), |last| schedule.next(*last, anchor))
            .take_while(|slot| *slot <= now).collect();
        let slots = schedule.slots(anchor, now);
        prop_assert_eq!(slots.latest, walk.last().copied());
        prop_assert_eq!(slots.first, walk.first().copied());
        prop_assert_eq!(slots.next, schedule.next(now.max(anchor), anchor));
    }

    #[test]
    fn e38_no_text_panics(text in "[-*?/,@=a-zA-Z0-9 .]{0,40}") {
        let _ = Schedule::parse(&text, None, &TimeZone::UTC);
        let _ = Schedule::parse(&format!("@every {text}"), None, &TimeZone::UTC);
    }
}

/// Ten years in twelve zones, minute by minute: some minutes of processor time.
#[test]
#[ignore = "a long search: make soak"]
fn c4_ten_years_in_twelve_zones() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};

    let mut runner = TestRunner::deterministic();
    let (begin, end) = (at("2026-01-01T00:00:00Z"), at("2036-01-01T00:00:00Z"));
    for name in ZONES {
        let zone = zones::named(name).unwrap();
        for _ in 0..4 {
            let fields = fields().new_tree(&mut runner).unwrap().current();
            let schedule = in_zone(name, &text(&fields));
            let mut next = schedule.next(begin, begin);
            let mut moment = minute_after(begin);
            while moment <= end {
                if fits(&zone, &fields, moment) {
                    assert_eq!(next, Some(moment), "{} in {name}", text(&fields));
                    next = schedule.next(moment, begin);
                }
                moment = minute_after(moment);
            }
            assert!(next.is_none_or(|next| next > end), "{} in {name}: {next:?}", text(&fields));
        }
    }
}
