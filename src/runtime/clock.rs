//! The only place that reads a clock. Rules take [`Now`] as an argument.

use std::{sync::OnceLock, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;

pub use crate::k8s::time::Now;

static START: OnceLock<Instant> = OnceLock::new();

/// Reads both clocks.
#[expect(clippy::disallowed_methods, reason = "this is the one place that may")]
pub fn now() -> Now {
    Now { wall: Timestamp::now(), mono: START.get_or_init(start).elapsed() + Duration::from_secs(1) }
}

/// The clock of timers: where a test pauses it, this one follows. It begins in real time, whoever asks first.
fn start() -> Instant {
    Instant::from_std(std::time::Instant::now())
}
