//! The only place that reads a clock. Rules take [`Now`] as an argument.

use std::{sync::OnceLock, time::Duration};

use jiff::{Timestamp, tz::TimeZone};
use tokio::time::Instant;

pub use crate::k8s::time::Now;
use crate::k8s::zones::{self, UnknownZone};

/// When this process first asked, on both clocks.
static START: OnceLock<(Timestamp, Instant)> = OnceLock::new();

/// Reads both clocks.
pub fn now() -> Now {
    #[cfg(test)]
    if let Some((began, start)) = tests::played() {
        return at(began, start);
    }
    let (began, start) = START.get_or_init(start);
    at(*began, *start)
}

fn at(began: Timestamp, start: Instant) -> Now {
    let elapsed = start.elapsed();
    Now { wall: wall(began, elapsed), mono: elapsed + Duration::from_secs(1) }
}

#[cfg(test)]
pub use tests::begin;

/// The time zone of this process: that of `TZ`, or else of `/etc/localtime`; without both UTC. Zones are known by name without
/// any files.
///
/// # Errors
/// `TZ` says nothing that is known. To libc and Go that is UTC.
pub fn local_zone() -> Result<TimeZone, UnknownZone> {
    zone_of(std::env::var("TZ").ok().as_deref(), || TimeZone::try_system().ok())
}

/// The zone of a process with this `TZ`. What is no name, such as a rule of POSIX or a path, `system` reads from `TZ` itself.
fn zone_of(tz: Option<&str>, system: impl FnOnce() -> Option<TimeZone>) -> Result<TimeZone, UnknownZone> {
    let Some(tz) = tz else { return Ok(system().unwrap_or(TimeZone::UTC)) };
    match tz.strip_prefix(':').unwrap_or(tz) {
        "" => Ok(TimeZone::UTC),
        name => zones::named(name).or_else(|unknown| system().ok_or(unknown)),
    }
}

/// The clock of timers: where a test pauses it, this one follows. It begins in real time, whoever asks first.
#[expect(clippy::disallowed_methods, reason = "this is the one place that may")]
fn start() -> (Timestamp, Instant) {
    (Timestamp::now(), Instant::from_std(std::time::Instant::now()))
}

#[cfg(not(test))]
#[expect(clippy::disallowed_methods, reason = "this is the one place that may")]
fn wall(_began: Timestamp, _elapsed: Duration) -> Timestamp {
    Timestamp::now()
}

/// In tests it goes with the clock of timers, which a test may pause and advance.
#[cfg(test)]
fn wall(began: Timestamp, elapsed: Duration) -> Timestamp {
    began.checked_add(elapsed).unwrap_or(began)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static PLAYED: Cell<Option<(Timestamp, Instant)>> = const { Cell::new(None) };
    }

    /// On this thread it is `wall`, and a process has just begun.
    pub fn begin(wall: Timestamp) {
        PLAYED.set(Some((wall, Instant::now())));
    }

    pub(super) fn played() -> Option<(Timestamp, Instant)> {
        PLAYED.get()
    }

    #[test]
    fn the_zone_is_that_of_tz_or_else_of_the_system() {
        let of_system = || zones::named("Europe/Berlin").ok();
        for (tz, name) in [
            (None, "Europe/Berlin"),
            (Some("Asia/Shanghai"), "Asia/Shanghai"),
            (Some(":Asia/Shanghai"), "Asia/Shanghai"),
            (Some("UTC"), "UTC"),
            (Some(""), "UTC"),
            (Some(":"), "UTC"),
            // The system reads these.
            (Some("CET-1CEST,M3.5.0,M10.5.0/3"), "Europe/Berlin"),
            (Some("/usr/share/zoneinfo/Europe/Berlin"), "Europe/Berlin"),
        ] {
            assert_eq!(zone_of(tz, of_system).unwrap().iana_name(), Some(name), "{tz:?}");
        }
        assert_eq!(zone_of(None, || None), Ok(TimeZone::UTC));
        assert_eq!(zone_of(Some("Mars/Olympus"), || None).unwrap_err().name, "Mars/Olympus");
    }
}
