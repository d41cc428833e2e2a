//! Questions about one object that arrive at the same time are answered together: one caller answers all that wait, for
//! example with one write.
//!
//! While many arrive, the next turn begins a moment later and answers more of them. Other processes write the same object too,
//! and each conflict costs another write.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

/// The next turn waits this long for each question of the last one.
const PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// A turn that comes later than this after the last one is in no rush.
const RUSH: Duration = Duration::from_millis(100);

use super::{lock, watches::ObjectKey};

/// Questions about objects, by their keys.
#[derive(Debug)]
pub struct Batches<Q, A>(Mutex<HashMap<ObjectKey, Arc<Turn<Q, A>>>>);

#[derive(Debug)]
struct Turn<Q, A> {
    waiting: Mutex<Vec<(Q, oneshot::Sender<A>)>>,
    turn: tokio::sync::Mutex<LastTurn>,
}

/// When the last turn ended, and how many questions it answered.
#[derive(Debug, Default)]
struct LastTurn(Option<(Instant, usize)>);

impl LastTurn {
    /// How long the next turn waits for more questions. One question alone is no rush.
    fn pause(&self, now: Instant) -> Duration {
        let rush = self.0.filter(|(end, count)| *count > 1 && now.saturating_duration_since(*end) < RUSH);
        let count = rush.map_or(0, |(_, count)| u32::try_from(count).unwrap_or(u32::MAX));
        PAUSE.saturating_mul(count).min(LONGEST_PAUSE)
    }
}

impl<Q, A> Default for Batches<Q, A> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<Q: Clone, A> Batches<Q, A> {
    /// Asks about an object. `settle` gets all questions whose callers still wait, and answers each of them in their order.
    pub async fn ask<F>(&self, key: &ObjectKey, question: Q, settle: impl Fn(Vec<Q>) -> F) -> A
    where
        F: Future<Output = Vec<A>>,
    {
        let new = || Arc::new(Turn { waiting: Mutex::default(), turn: tokio::sync::Mutex::default() });
        let turn = lock(&self.0).entry(key.clone()).or_insert_with(new).clone();
        loop {
            let (answer, mut mine) = oneshot::channel();
            lock(&turn.waiting).push((question.clone(), answer));
            let answered = tokio::select! {
                answered = &mut mine => answered,
                mut last = turn.turn.lock() => {
                    let pause = last.pause(Instant::now());
                    if !pause.is_zero() {
                        tokio::time::sleep(pause).await;
                    }
                    let waiting = std::mem::take(&mut *lock(&turn.waiting)).into_iter();
                    // Whoever has gone would never hear of what is recorded for it.
                    let stay = waiting.filter(|(_, caller)| !caller.is_closed());
                    let (questions, callers): (Vec<Q>, Vec<_>) = stay.unzip();
                    let count = questions.len();
                    if count > 0 {
                        let answers = settle(questions).await;
                        for (caller, answer) in callers.into_iter().zip(answers) {
                            // A caller that was cancelled gets no answer.
                            let _ = caller.send(answer);
                        }
                        last.0 = Some((Instant::now(), count));
                    }
                    drop(last);
                    mine.await
                }
            };
            // The task that had the turn was cancelled: ask again.
            if let Ok(answer) = answered {
                return answer;
            }
        }
    }

    /// Forgets an object that is gone.
    pub fn forget(&self, key: &ObjectKey) {
        lock(&self.0).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;

    use super::*;

    #[tokio::test]
    async fn what_is_asked_at_the_same_time_is_answered_together() {
        let (batches, turns) = (Batches::default(), AtomicUsize::new(0));
        let key = ObjectKey::new("ns", "a");
        let settle = |questions: Vec<usize>| {
            turns.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::task::yield_now().await;
                questions.iter().map(|question| question * 2).collect::<Vec<_>>()
            }
        };
        let answers = join_all((0..50).map(|number| batches.ask(&key, number, settle))).await;
        assert_eq!(answers, (0..50).map(|number| number * 2).collect::<Vec<_>>());
        assert_eq!(turns.load(Ordering::SeqCst), 2, "the first one alone, then all that have come meanwhile");
    }

    #[test]
    fn a_turn_waits_for_more_questions_only_in_a_rush() {
        let now = Instant::now();
        let (recent, long_ago) = (now.checked_sub(RUSH / 2).unwrap(), now.checked_sub(RUSH).unwrap());
        for (last, wanted) in [
            (None, 0),
            (Some((recent, 1)), 0),
            (Some((recent, 2)), 2),
            (Some((recent, 1000)), 20),
            (Some((long_ago, 1000)), 0),
        ] {
            assert_eq!(LastTurn(last).pause(now), Duration::from_millis(wanted), "{last:?}");
        }
    }

    #[tokio::test]
    async fn who_waits_for_a_turn_that_was_cancelled_asks_again() {
        let batches = Arc::new(Batches::default());
        let key = ObjectKey::new("ns", "a");
        let stuck = {
            let (batches, key) = (batches.clone(), key.clone());
            tokio::spawn(
                async move { batches.ask(&key, 1, |_: Vec<usize>| std::future::pending::<Vec<usize>>()).await },
            )
        };
        tokio::task::yield_now().await;
        let other = {
            let (batches, key) = (batches.clone(), key.clone());
            tokio::spawn(async move { batches.ask(&key, 2, |all: Vec<usize>| async move { all }).await })
        };
        tokio::task::yield_now().await;
        stuck.abort();
        assert_eq!(other.await.unwrap(), 2);
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_is_not_settled() {
        let (batches, key) = (Arc::new(Batches::default()), ObjectKey::new("ns", "a"));
        let (settled, go) = (Arc::new(Mutex::new(Vec::new())), Arc::new(tokio::sync::Notify::new()));
        let ask = |number: usize| {
            let (batches, key, settled, go) = (batches.clone(), key.clone(), settled.clone(), go.clone());
            tokio::spawn(async move {
                let settle = |all: Vec<usize>| {
                    let (settled, go) = (settled.clone(), go.clone());
                    async move {
                        lock(&settled).push(all.clone());
                        go.notified().await;
                        all
                    }
                };
                batches.ask(&key, number, settle).await
            })
        };
        let first = ask(1);
        tokio::task::yield_now().await;
        let (gone, stays) = (ask(2), ask(3));
        tokio::task::yield_now().await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        go.notify_one();
        assert_eq!(first.await.unwrap(), 1);
        go.notify_one();
        assert_eq!(stays.await.unwrap(), 3);
        assert_eq!(*lock(&settled), [vec![1], vec![3]]);
    }
}
