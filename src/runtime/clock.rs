//! The only place that reads a clock. Rules take [`Now`] as an argument.

use std::{sync::OnceLock, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;

pub use crate::k8s::time::Now;

/// When this process first asked, on both clocks.
static START: OnceLock<(Timestamp, Instant)> = OnceLock::new();

/// Reads both clocks.
pub fn now() -> Now {
    let (began, start) = START.get_or_init(start);
    let elapsed = start.elapsed();
    Now { wall: wall(*began, elapsed), mono: elapsed + Duration::from_secs(1) }
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
