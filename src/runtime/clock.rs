//! The only place that reads a clock. Rules take [`Now`] as an argument.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use jiff::Timestamp;

pub use crate::k8s::time::Now;

static START: OnceLock<Instant> = OnceLock::new();

/// Reads both clocks.
#[expect(clippy::disallowed_methods, reason = "this is the one place that may")]
pub fn now() -> Now {
    Now { wall: Timestamp::now(), mono: START.get_or_init(Instant::now).elapsed() + Duration::from_secs(1) }
}
