//! How often a task that keeps something in step tries again.

use std::{fmt::Display, time::Duration};

use tokio::sync::watch;

/// The pause after the first failure.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause.
const LAST: Duration = Duration::from_secs(30);

/// The pauses after failures: 1 s, then twice as long after each, up to 30 s; anew after a success.
#[derive(Debug)]
pub(super) struct Retry(Duration);

impl Retry {
    pub(super) const fn new() -> Self {
        Self(FIRST)
    }

    /// How long to wait after a pass that says when the next one is due, or failed. A failure is logged after `what`, and
    /// sent to `problem` for whoever waits for the first success.
    pub(super) fn wait(
        &mut self,
        pass: Result<Duration, impl Display>,
        what: &str,
        problem: &watch::Sender<String>,
    ) -> Duration {
        match pass {
            Ok(wait) => {
                self.0 = FIRST;
                wait
            }
            Err(error) => {
                tracing::warn!(%error, "{what}, trying again");
                problem.send_replace(error.to_string());
                let wait = self.0;
                self.0 = (wait * 2).min(LAST);
                wait
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_begin_anew_after_a_success() {
        let problem = watch::Sender::default();
        let mut retry = Retry::new();
        let waits: Vec<u64> = (0..7).map(|_| retry.wait(Err("no"), "not in step", &problem).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(*problem.borrow(), "no");
        let minute = Duration::from_secs(60);
        assert_eq!(retry.wait(Ok::<_, String>(minute), "not in step", &problem), minute);
        assert_eq!(retry.wait(Err("no"), "not in step", &problem), FIRST);
    }
}
