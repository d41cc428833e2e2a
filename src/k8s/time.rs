//! One moment on two clocks.

use std::time::Duration;

use jiff::Timestamp;

/// One moment on two clocks.
///
/// `wall` goes into objects and is compared only with times that other machines wrote; it may step or be an hour off.
/// `mono` only moves forward and measures everything that this process has itself seen begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Now {
    /// Civil time.
    pub wall: Timestamp,
    /// Time since this process started, never 0.
    pub mono: Duration,
}

impl Now {
    /// Time from `earlier` (somebody's wall clock) until now, never negative.
    pub fn since(&self, earlier: Timestamp) -> Duration {
        Duration::try_from(self.wall.duration_since(earlier)).unwrap_or_default()
    }
}

/// A time as it stands in objects: everywhere in Kubernetes times have whole seconds.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// A time as Kubernetes writes it: UTC, whole seconds.
pub fn rfc3339(time: Timestamp) -> String {
    whole_seconds(time).to_string()
}
