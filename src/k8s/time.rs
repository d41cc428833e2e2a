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

/// The sooner of two looks, either of which may not be needed.
pub fn sooner(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

/// The pause before something is tried again that was tried in vain `times` times before: `first`, doubled each time, up to
/// `longest`.
pub fn doubled(first: Duration, times: u32, longest: Duration) -> Duration {
    first.saturating_mul(1 << times.min(16)).min(longest)
}

/// When something on another machine's clock was first seen here, and how old it was then.
///
/// From then on its age is measured with our own monotonic clock. For what was seen as it happened, neither skew between
/// machines nor a step of a wall clock counts; for what was found at start the wall clocks are all there is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sighting {
    at: Duration,
    age: Duration,
}

impl Sighting {
    /// Seen the moment it happened.
    pub fn live(now: Now) -> Self {
        Self { at: now.mono, age: Duration::ZERO }
    }
    /// Found when it had happened already, at `since` on its writer's clock.
    pub fn found(now: Now, since: Timestamp) -> Self {
        Self { at: now.mono, age: now.since(since) }
    }
    /// Its age now.
    pub fn age(&self, now: Now) -> Duration {
        self.age + now.mono.saturating_sub(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_is_not_needed_does_not_count() {
        let (one, two) = (Some(Duration::from_secs(1)), Some(Duration::from_secs(2)));
        for (first, second, want) in [(one, two, one), (two, one, one), (one, None, one), (None, two, two)] {
            assert_eq!(sooner(first, second), want, "{first:?} {second:?}");
        }
        assert_eq!(sooner(None, None), None);
    }

    #[test]
    fn a_pause_doubles_up_to_its_longest() {
        let (first, longest) = (Duration::from_secs(1), Duration::from_secs(60));
        let pauses: Vec<u64> = (0..8).map(|times| doubled(first, times, longest).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(doubled(first, u32::MAX, longest), longest);
        assert_eq!(doubled(Duration::MAX, 3, Duration::MAX), Duration::MAX);
    }
}
