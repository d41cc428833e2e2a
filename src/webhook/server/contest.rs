//! Writes that somebody undoes as often as they are made: another replica with other feature gates or of another release,
//! while the Deployment is rolled out, or a tool that applies manifests again and again. Each of two replicas would write
//! as soon as the other one has written, for as long as both are there.

use std::time::Duration;

use serde_json::Value;

use crate::k8s::time::doubled;

/// The pause before a write that was undone at once; it doubles with each.
const FIRST: Duration = Duration::from_secs(1);
/// The longest of these pauses. What the other one has written counts meanwhile.
const LONGEST: Duration = Duration::from_secs(10);
/// A write that has lasted this long was not undone at once.
const LASTED: Duration = Duration::from_secs(10);

/// What was written last, and how often it was undone at once.
#[derive(Debug, Default)]
pub(super) struct Contest {
    written: Vec<Value>,
    at: Duration,
    times: u32,
}

impl Contest {
    /// How long these changes wait. Zero: they are made now, since they are not those that were made last, or these have
    /// lasted. `now` is of a clock that never goes back.
    pub(super) fn wait(&self, changes: &[Value], now: Duration) -> Duration {
        let age = now.saturating_sub(self.at);
        match self.is_again(changes) && age < LASTED {
            true => self.pause().saturating_sub(age),
            false => Duration::ZERO,
        }
    }

    /// These changes are made.
    pub(super) fn note(&mut self, changes: &[Value], now: Duration) {
        let is_undone = self.is_again(changes) && now.saturating_sub(self.at) < LASTED + LONGEST;
        self.times = if is_undone { self.times.saturating_add(1) } else { 0 };
        (self.written, self.at) = (changes.iter().filter(|change| is_content(change)).cloned().collect(), now);
    }

    fn pause(&self) -> Duration {
        doubled(FIRST, self.times, LONGEST)
    }

    /// Whether nothing else is to be changed than what was changed last.
    fn is_again(&self, changes: &[Value]) -> bool {
        let mut content = changes.iter().filter(|change| is_content(change)).peekable();
        content.peek().is_some() && content.all(|change| self.written.contains(change) && !is_target(change))
    }
}

/// The test of a version says nothing about what is changed.
fn is_content(change: &Value) -> bool {
    change["op"] != "test"
}

/// Whom an entry calls, and whom the API server trusts there: a certificate is served only when it is known.
fn is_target(change: &Value) -> bool {
    change["path"].as_str().is_some_and(|path| path.ends_with("/clientConfig"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn change(path: &str, value: &str) -> Value {
        json!({"op": "add", "path": format!("/webhooks/0/{path}"), "value": value})
    }

    /// The changes with the test of a version, which is another one each time.
    fn on(version: u64, changes: &[Value]) -> Vec<Value> {
        let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": version.to_string()});
        std::iter::once(test).chain(changes.iter().cloned()).collect()
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn two_replicas_that_undo_each_others_writes_do_so_seldom() {
        let wanted = [[change("rules", "new")], [change("rules", "old")]];
        let mut replicas = <[Contest; 2]>::default();
        let (mut says, mut writes, mut millis) = (usize::MAX, Vec::new(), 0_u64);
        while millis < 60_000 {
            for (number, contest) in replicas.iter_mut().enumerate() {
                let (changes, now) = (on(millis, &wanted[number]), Duration::from_millis(millis));
                if says != number && contest.wait(&changes, now).is_zero() {
                    contest.note(&changes, now);
                    says = number;
                    writes.push(millis);
                }
            }
            millis += 20;
        }
        assert!(writes.len() <= 22, "{writes:?}");
        // The other one has ended: what this one wants is there soon, and stays.
        let (changes, now) = (on(1, &wanted[0]), seconds(60));
        assert!(replicas[0].wait(&changes, now) <= LONGEST);
        assert!(replicas[0].wait(&changes, now + LONGEST).is_zero());
    }

    #[test]
    fn what_is_new_does_not_wait_and_neither_does_what_has_lasted() {
        let (rules, other) = (change("rules", "r"), change("namespaceSelector", "s"));
        let target = change("clientConfig", "c");
        let mut contest = Contest::default();
        let written = on(1, &[rules.clone(), target.clone()]);
        assert!(contest.wait(&written, seconds(100)).is_zero());
        contest.note(&written, seconds(100));
        for (changes, after, wait) in [
            (vec![rules.clone()], 0, 1),
            (vec![rules.clone()], 1, 0),
            (vec![rules.clone()], 60, 0),
            (vec![rules.clone(), other], 0, 0),
            (vec![change("rules", "q")], 0, 0),
            (vec![rules.clone(), target], 0, 0),
        ] {
            assert_eq!(contest.wait(&on(2, &changes), seconds(100 + after)), seconds(wait), "{changes:?} {after}");
        }
        // Undone again and again: it waits for longer each time, and begins anew when it has lasted.
        let mut now = 100;
        for pause in [2, 4, 8, 10, 10] {
            let before = contest.wait(&written[1..2], seconds(now));
            now += before.as_secs();
            contest.note(&written[1..2], seconds(now));
            assert_eq!(contest.wait(&written[1..2], seconds(now)), seconds(pause));
        }
        contest.note(&written[1..2], seconds(now + 60));
        assert_eq!(contest.wait(&written[1..2], seconds(now + 60)), seconds(1));
    }

    #[test]
    fn a_binding_is_one_change() {
        let mut contest = Contest::default();
        contest.note(&[true.into()], seconds(5));
        assert_eq!(contest.wait(&[true.into()], seconds(5)), FIRST);
        assert!(contest.wait(&[false.into()], seconds(5)).is_zero());
        assert!(contest.wait(&[], seconds(5)).is_zero(), "nothing is to be changed");
    }
}
