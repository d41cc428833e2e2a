//! The language of schedules: that of the standard parser of robfig/cron v3, which OpenKruise and CronJob use.
//!
//! A slot of five fields is a whole minute whose wall-clock time in the zone fits them. So a wall-clock time that is skipped
//! when clocks go forward has no slot on that day, and one that comes twice when they go back has two.

use jiff::{
    Timestamp,
    civil::{Date, DateTime},
    tz::TimeZone,
};

use crate::k8s::zones::{self, UnknownZone};

/// The search for a slot ends after so many years.
const YEARS: i16 = 5;
/// Texts in errors are cut here, in characters.
const SHOWN: usize = 64;

/// Why a text is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// There is no text.
    #[error("it is empty; want five fields such as \"30 2 * * *\", or one of @hourly, @daily, @every 1h")]
    Empty,
    /// Its zone does not exist.
    #[error(transparent)]
    Zone(#[from] UnknownZone),
    /// A zone with nothing behind it.
    #[error("{0:?} has no fields behind the time zone; want for example \"CRON_TZ=Europe/Berlin 30 2 * * *\"")]
    OnlyZone(String),
    /// Too many fields, or too few.
    #[error("{shown:?} has {found} fields; want five: minute, hour, day of the month, month, day of the week")]
    Fields {
        /// The text, cut.
        shown: String,
        /// How many it has.
        found: usize,
    },
    /// A field that cannot be read.
    #[error("{shown:?} in the field {field}: {why}; want {min} to {max}, lists, ranges and steps of them, or *")]
    Field {
        /// What is wrong, cut.
        shown: String,
        /// Which field.
        field: &'static str,
        /// What is wrong with it.
        why: &'static str,
        /// The smallest number.
        min: u32,
        /// The largest.
        max: u32,
    },
    /// A word behind @ that is none.
    #[error(
        "{0:?} is not known; want @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly or @every 1h30m"
    )]
    Descriptor(String),
    /// A duration behind @every that is none.
    #[error("{0:?} is no duration; want for example @every 90s or @every 1h30m")]
    Duration(String),
}

fn cut(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

/// When runs are due.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    when: When,
    zone: TimeZone,
}

#[derive(Clone, Debug, PartialEq)]
enum When {
    Fields(Fields),
    /// Seconds from one run to the next.
    Every(i64),
}

/// Numbers as bits, and whether a star stands for all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Numbers {
    bits: u64,
    is_star: bool,
}

impl Numbers {
    fn has(self, number: i8) -> bool {
        u32::try_from(number).is_ok_and(|number| number < 64 && self.bits >> number & 1 == 1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Fields {
    minute: Numbers,
    hour: Numbers,
    day: Numbers,
    month: Numbers,
    weekday: Numbers,
}

/// What a field may have.
struct Bounds {
    field: &'static str,
    min: u32,
    max: u32,
    /// Names of numbers, beginning with that of `min`.
    names: &'static [&'static str],
}

const MINUTE: Bounds = Bounds { field: "minute", min: 0, max: 59, names: &[] };
const HOUR: Bounds = Bounds { field: "hour", min: 0, max: 23, names: &[] };
const DAY: Bounds = Bounds { field: "day of the month", min: 1, max: 31, names: &[] };
const MONTH: Bounds = Bounds {
    field: "month",
    min: 1,
    max: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAY: Bounds =
    Bounds { field: "day of the week", min: 0, max: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

impl Bounds {
    fn bad(&self, shown: &str, why: &'static str) -> ScheduleError {
        ScheduleError::Field { shown: cut(shown), field: self.field, why, min: self.min, max: self.max }
    }

    /// A list of ranges. As in robfig/cron, empty entries are passed over.
    fn numbers(&self, text: &str) -> Result<Numbers, ScheduleError> {
        let mut numbers = Numbers::default();
        for range in text.split(',').filter(|range| !range.is_empty()) {
            let Numbers { bits, is_star } = self.range(range)?;
            numbers.bits |= bits;
            numbers.is_star |= is_star;
        }
        Ok(numbers)
    }

    /// `*`, `a`, `a-b`, each perhaps with a step; `a/n` goes on to the largest number.
    fn range(&self, text: &str) -> Result<Numbers, ScheduleError> {
        let mut parts = text.split('/');
        let (range, step) = (parts.next().unwrap_or_default(), parts.next());
        if parts.next().is_some() {
            return Err(self.bad(text, "it has more than one slash"));
        }
        let mut ends = range.split('-');
        let (low, high) = (ends.next().unwrap_or_default(), ends.next());
        let is_star = low == "*" || low == "?";
        let (start, mut end) = if is_star {
            (i64::from(self.min), i64::from(self.max))
        } else {
            let start = self.number(text, low)?;
            if ends.next().is_some() {
                return Err(self.bad(text, "it has more than one hyphen"));
            }
            (start, high.map_or(Ok(start), |high| self.number(text, high))?)
        };
        let step = match step {
            None => 1,
            Some(step) => {
                if high.is_none() {
                    end = i64::from(self.max);
                }
                self.plain(text, step)?
            }
        };
        if start < i64::from(self.min) || end > i64::from(self.max) {
            return Err(self.bad(text, "it is out of range"));
        }
        if start > end {
            return Err(self.bad(text, "its end is before its begin"));
        }
        if step == 0 {
            return Err(self.bad(text, "its step is 0"));
        }
        let step = usize::try_from(step).unwrap_or(usize::MAX);
        let bits = (start..=end).step_by(step).fold(0, |bits, number| bits | 1 << number);
        Ok(Numbers { bits, is_star: is_star && step == 1 })
    }

    fn number(&self, range: &str, text: &str) -> Result<i64, ScheduleError> {
        let named = self.names.iter().position(|name| name.eq_ignore_ascii_case(text));
        let named = named.and_then(|at| i64::try_from(at).ok()).map(|at| at + i64::from(self.min));
        named.map_or_else(|| self.plain(range, text), Ok)
    }

    fn plain(&self, range: &str, text: &str) -> Result<i64, ScheduleError> {
        match text.parse::<i64>() {
            Ok(number) if number >= 0 => Ok(number),
            Ok(_) => Err(self.bad(range, "it has a negative number")),
            Err(_) => Err(self.bad(range, "it has something that is no number")),
        }
    }

    const fn all(&self) -> Numbers {
        let (mut bits, mut number) = (0, self.min);
        while number <= self.max {
            bits |= 1 << number;
            number += 1;
        }
        Numbers { bits, is_star: true }
    }

    const fn first(&self) -> Numbers {
        Numbers { bits: 1 << self.min, is_star: false }
    }
}

impl Fields {
    fn parse(text: &str) -> Result<Self, ScheduleError> {
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            return Err(ScheduleError::Fields { shown: cut(text), found: fields.len() });
        };
        Ok(Self {
            minute: MINUTE.numbers(minute)?,
            hour: HOUR.numbers(hour)?,
            day: DAY.numbers(day)?,
            month: MONTH.numbers(month)?,
            weekday: WEEKDAY.numbers(weekday)?,
        })
    }

    const fn hourly() -> Self {
        Self { minute: MINUTE.first(), hour: HOUR.all(), day: DAY.all(), month: MONTH.all(), weekday: WEEKDAY.all() }
    }

    const fn daily() -> Self {
        Self { hour: HOUR.first(), ..Self::hourly() }
    }

    /// If one of the two fields for days is a star, the other decides; otherwise one that fits is enough.
    fn fits_day(&self, date: Date) -> bool {
        let day = self.day.has(date.day());
        let weekday = self.weekday.has(date.weekday().to_sunday_zero_offset());
        if self.day.is_star || self.weekday.is_star { day && weekday } else { day || weekday }
    }

    /// The first minute of a day that fits, from a minute of it on.
    fn time_from(&self, minute: u32) -> Option<u32> {
        (minute / 60..24).find_map(|hour| {
            let from = if hour == minute / 60 { minute % 60 } else { 0 };
            let left = if self.hour.bits >> hour & 1 == 1 { self.minute.bits >> from } else { 0 };
            (left != 0).then(|| hour * 60 + from + left.trailing_zeros())
        })
    }

    /// The first wall-clock time that fits, from one on, if it is no later than a year.
    fn civil_from(&self, from: DateTime, last_year: i16) -> Option<DateTime> {
        let minute_of = |time: DateTime| {
            let whole = i32::from(time.hour()) * 60 + i32::from(time.minute());
            let begun = time.second() > 0 || time.subsec_nanosecond() > 0;
            u32::try_from(whole + i32::from(begun)).unwrap_or_default()
        };
        let (mut date, mut minute) = (from.date(), minute_of(from));
        while date.year() <= last_year {
            if !self.month.has(date.month()) {
                date = date.last_of_month().tomorrow().ok()?;
            } else {
                if self.fits_day(date)
                    && let Some(found) = self.time_from(minute)
                {
                    let (hour, minute) = (i8::try_from(found / 60).ok()?, i8::try_from(found % 60).ok()?);
                    return DateTime::new(date.year(), date.month(), date.day(), hour, minute, 0, 0).ok();
                }
                date = date.tomorrow().ok()?;
            }
            minute = 0;
        }
        None
    }

    /// The first slot after a moment. Between two changes of the offset of a zone, wall-clock time runs evenly.
    fn next(&self, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
        let mut at = Timestamp::from_second(after.as_second().checked_add(1)?).ok()?;
        let last_year = zone.to_datetime(at).year().checked_add(YEARS)?;
        loop {
            let offset = zone.to_offset(at);
            let found = self.civil_from(offset.to_datetime(at), last_year)?;
            let slot = offset.to_timestamp(found).ok()?;
            match zone.following(at).next().map(|change| change.timestamp()) {
                Some(change) if slot >= change => at = change,
                _ => return Some(slot),
            }
        }
    }
}

/// What has been missed and what comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    /// The latest slot that is due, and was not before.
    pub latest: Option<Timestamp>,
    /// The first one that is due.
    pub first: Option<Timestamp>,
    /// The first one that is not due yet.
    pub next: Option<Timestamp>,
}

/// Missed slots are counted up to this number; more than so many are not walked through one by one.
pub const COUNTED: u32 = 100;

impl Schedule {
    /// Reads a schedule. `time_zone` is `spec.timeZone`; without it, and without a zone in the text, times are those of
    /// `local`. A zone in the text wins, as in OpenKruise; admission refuses both together.
    ///
    /// # Errors
    /// The text is no schedule, or the zone is not known.
    pub fn parse(text: &str, time_zone: Option<&str>, local: &TimeZone) -> Result<Self, ScheduleError> {
        if text.is_empty() {
            return Err(ScheduleError::Empty);
        }
        let of_text = text.strip_prefix("CRON_TZ=").or_else(|| text.strip_prefix("TZ="));
        let (zone, rest) = match (of_text, time_zone) {
            (Some(prefixed), _) => {
                let (name, rest) = prefixed.split_once(' ').ok_or_else(|| ScheduleError::OnlyZone(cut(text)))?;
                let zone = match name {
                    // What Go makes of these two.
                    "" => TimeZone::UTC,
                    "Local" => local.clone(),
                    name => zones::named(name)?,
                };
                (zone, rest.trim())
            }
            (None, Some(name)) => (zones::named(name)?, text),
            (None, None) => (local.clone(), text),
        };
        let when = if rest.starts_with('@') { descriptor(rest)? } else { When::Fields(Fields::parse(rest)?) };
        Ok(Self { when, zone })
    }

    /// The first slot after a moment; none within five years is none. Slots of `@every` are counted from `anchor`, a run or
    /// the creation of the object.
    pub fn next(&self, after: Timestamp, anchor: Timestamp) -> Option<Timestamp> {
        match &self.when {
            When::Fields(fields) => fields.next(&self.zone, after),
            When::Every(seconds) => {
                let elapsed = after.as_second().checked_sub(anchor.as_second())?;
                let slots = elapsed.div_euclid(*seconds).checked_add(1)?.max(1);
                Timestamp::from_second(anchor.as_second().checked_add(slots.checked_mul(*seconds)?)?).ok()
            }
        }
    }

    /// Whether there are slots after now and before `last`, a run that lies ahead: they are lost.
    pub fn loses_before(&self, last: Timestamp, now: Timestamp) -> bool {
        match &self.when {
            When::Fields(fields) => fields.next(&self.zone, now).is_some_and(|slot| slot < last),
            When::Every(seconds) => last.as_second().saturating_sub(*seconds) > now.as_second(),
        }
    }

    /// The slots after `anchor`, the last run or the creation, up to now. However many there are, some forty slots and
    /// [`COUNTED`] more are looked at.
    pub fn slots(&self, anchor: Timestamp, now: Timestamp) -> Slots {
        let mut slots = Slots { next: self.next(anchor, anchor), ..Slots::default() };
        let is_due = |slot: &Timestamp| *slot <= now;
        let Some(first) = slots.next.filter(is_due) else { return slots };
        slots.first = Some(first);
        let mut latest = first;
        let mut looked = 0;
        while looked <= COUNTED {
            looked += 1;
            slots.next = self.next(latest, anchor);
            match slots.next.filter(is_due) {
                Some(slot) if looked <= COUNTED => latest = slot,
                Some(_) => break,
                None => {
                    slots.latest = Some(latest);
                    return slots;
                }
            }
        }
        // The latest one, by halves: a moment has a due slot behind it, or none.
        let (mut low, mut high) = (latest.as_second(), now.as_second());
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let behind = Timestamp::from_second(middle).ok().and_then(|middle| self.next(middle, anchor));
            match behind.filter(is_due) {
                Some(slot) => {
                    latest = slot;
                    low = slot.as_second();
                }
                None => high = middle,
            }
        }
        // The step of one second that is left.
        while let Some(slot) = self.next(latest, anchor).filter(is_due) {
            latest = slot;
        }
        slots.latest = Some(latest);
        slots.next = self.next(now, anchor);
        slots
    }
}

fn descriptor(text: &str) -> Result<When, ScheduleError> {
    let fields = match text {
        "@yearly" | "@annually" => Fields { day: DAY.first(), month: MONTH.first(), ..Fields::daily() },
        "@monthly" => Fields { day: DAY.first(), ..Fields::daily() },
        "@weekly" => Fields { weekday: WEEKDAY.first(), ..Fields::daily() },
        "@daily" | "@midnight" => Fields::daily(),
        "@hourly" => Fields::hourly(),
        _ => {
            let duration = text.strip_prefix("@every ").ok_or_else(|| ScheduleError::Descriptor(cut(text)))?;
            let nanoseconds = nanoseconds(duration).ok_or_else(|| ScheduleError::Duration(cut(text)))?;
            return Ok(When::Every((nanoseconds / 1_000_000_000).max(1)));
        }
    };
    Ok(When::Fields(fields))
}

/// A duration as Go's `time.ParseDuration` reads it: numbers, perhaps with fractions, each with its unit.
fn nanoseconds(text: &str) -> Option<i64> {
    let (is_negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut sum: i128 = 0;
    while !rest.is_empty() {
        let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (whole, after) = rest.split_at(digits(rest));
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => after.split_at(digits(after)),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let unit: i128 = match unit {
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        // Further digits are less than a nanosecond.
        let fraction = &fraction[..fraction.len().min(15)];
        let part = if fraction.is_empty() { 0 } else { fraction.parse::<i64>().ok()? };
        let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
        sum += i128::from(whole) * unit + i128::from(part) * unit / scale;
        if sum > i128::from(i64::MAX) {
            return None;
        }
        rest = after;
    }
    i64::try_from(if is_negative { -sum } else { sum }).ok()
}

#[cfg(test)]
mod tests;
