//! The only place that reads a clock. Rules take [`Now`] as an argument.

use std::{sync::OnceLock, time::Duration};

use jiff::{Timestamp, tz::TimeZone};
use tokio::time::Instant;

pub use crate::k8s::time::Now;
use crate::k8s::zones;

/// When this process first asked, on both clocks.
static START: OnceLock<(Timestamp, Instant)> = OnceLock::new();

/// Reads both clocks.
pub fn now() -> Now {
    let (began, start) = START.get_or_init(start);
    let elapsed = start.elapsed();
    Now { wall: wall(*began, elapsed), mono: elapsed + Duration::from_secs(1) }
}

/// The time zone of this process: that of `TZ`, or else of `/etc/localtime`; without both UTC. Zones are known by name without
/// any files.
pub fn local_zone() -> TimeZone {
    let named = std::env::var("TZ").ok().and_then(|name| zones::named(name.trim_start_matches(':')).ok());
    named.unwrap_or_else(TimeZone::system)
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
