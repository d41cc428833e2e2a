//! The pauses between attempts of a watch.

use std::time::Duration;

use kube::runtime::utils::Backoff;

use super::clock;

/// Waits between attempts of a watch: 0.25 s doubling to 8 s, with up to a quarter of jitter so that the nodes of a
/// cluster do not come back all at once.
pub struct Retry {
    next: Duration,
}

impl Retry {
    const FIRST: Duration = Duration::from_millis(250);
    const LONGEST: Duration = Duration::from_secs(8);
}

impl Default for Retry {
    fn default() -> Self {
        Self { next: Self::FIRST }
    }
}

impl Iterator for Retry {
    type Item = Duration;
    fn next(&mut self) -> Option<Duration> {
        let delay = self.next;
        self.next = (delay * 2).min(Self::LONGEST);
        Some(delay + jitter(delay / 4))
    }
}

impl Backoff for Retry {
    fn reset(&mut self) {
        *self = Self::default();
    }
}

/// A duration below `most` that differs between processes and calls.
pub(crate) fn jitter(most: Duration) -> Duration {
    let seed = clock::now().wall.subsec_nanosecond().unsigned_abs() ^ std::process::id().rotate_left(16);
    most.mul_f64(f64::from(seed % 1000) / 1000.0)
}
