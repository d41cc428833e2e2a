//! How long a node waits before another Pod takes the place of one that failed or went: 1 s at first, then twice as long
//! each time, up to 15 minutes.

use std::{collections::BTreeMap, time::Duration};

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(15 * 60);
/// A node without a failure for so long begins anew.
const FORGOTTEN: Duration = Duration::from_secs(2 * 15 * 60);

/// Failures by node, of one generation of a set. It can be lost: a node begins anew then.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Failures(BTreeMap<String, Failure>);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Failure {
    at: Duration,
    pause: Duration,
}

impl Failures {
    /// How long the failed Pod of a node stays. `now` is the monotonic clock.
    pub fn wait(&self, node: &str, now: Duration) -> Duration {
        let failure = self.0.get(node);
        failure.map_or(Duration::ZERO, |failure| failure.pause.saturating_sub(now.saturating_sub(failure.at)))
    }

    /// The failed Pod of a node was deleted.
    pub fn note(&mut self, node: &str, now: Duration) {
        self.0.retain(|_, failure| now.saturating_sub(failure.at) < FORGOTTEN);
        let pause = self.0.get(node).map_or(FIRST, |before| (before.pause * 2).min(LONGEST));
        self.0.insert(node.to_owned(), Failure { at: now, pause });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edge_35_each_failure_of_a_node_waits_twice_as_long_up_to_15_minutes() {
        let (mut failures, mut now, mut pauses) = (Failures::default(), Duration::from_secs(5), Vec::new());
        assert_eq!(failures.wait("n", now), Duration::ZERO);
        for _ in 0..12 {
            failures.note("n", now);
            pauses.push(failures.wait("n", now).as_secs());
            now += failures.wait("n", now);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900]);
        assert_eq!(failures.wait("m", now), Duration::ZERO, "other nodes wait for nothing");
        now += FORGOTTEN;
        failures.note("n", now);
        assert_eq!(failures.wait("n", now), FIRST);
    }
}
