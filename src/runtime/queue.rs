//! A keyed work queue: at most one reconcile per key at a time, many keys at once.
//!
//! A key that is added while it is being reconciled is reconciled once more afterwards, and the running reconcile can
//! see that through its [`Interrupt`]. A failed key comes back after a delay that doubles with every failure.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    fmt::Display,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    task::{Id, JoinSet},
    time::Instant,
};

use super::watches::jitter;

/// What a reconcile that went well wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// Nothing until the key is added again.
    Await,
    /// Once more after this time, or earlier if the key is added.
    After(Duration),
}

/// Tells a running reconcile that its key was added again.
#[derive(Clone)]
pub struct Interrupt(Arc<Notify>);

impl Interrupt {
    /// Resolves when the key has been added since the reconcile began, or since the last call.
    pub async fn raised(&self) {
        self.0.notified().await;
    }

    /// An interrupt that nobody raises, for calls outside a queue.
    pub fn never() -> Self {
        Self(Arc::new(Notify::new()))
    }
}

/// A key is reconciled at least this often while it waits for a time. Users write times: a deadline of 2^63 s is one.
const LONGEST_DELAY: Duration = Duration::from_secs(24 * 60 * 60);

struct Running {
    again: bool,
    interrupt: Arc<Notify>,
}

struct State<K> {
    ready: VecDeque<K>,
    /// The keys in `ready`.
    waiting: HashSet<K>,
    running: HashMap<K, Running>,
    delayed: BTreeMap<(Instant, u64), K>,
    due: HashMap<K, (Instant, u64)>,
    failures: HashMap<K, u32>,
    sequence: u64,
}

/// Delays after failures.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// After the first failure.
    pub base: Duration,
    /// The longest.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_millis(500), max: Duration::from_secs(50) }
    }
}

impl Backoff {
    fn delay(&self, failures: u32) -> Duration {
        let delay = self.base.saturating_mul(1 << failures.min(16)).min(self.max);
        delay + jitter(delay / 10)
    }
}

/// The queue. Cheap to share.
pub struct Queue<K> {
    state: Mutex<State<K>>,
    changed: Notify,
    backoff: Backoff,
}

impl<K: Clone + Eq + Hash + Display + Send + Sync + 'static> Queue<K> {
    /// An empty queue.
    pub fn new(backoff: Backoff) -> Arc<Self> {
        let state = State {
            ready: VecDeque::new(),
            waiting: HashSet::new(),
            running: HashMap::new(),
            delayed: BTreeMap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            sequence: 0,
        };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new(), backoff })
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reconcile this key as soon as possible.
    pub fn add(&self, key: K) {
        self.lock().add(key);
        self.changed.notify_one();
    }

    /// Reconcile this key after a delay, unless it is due earlier anyway.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.lock().delay(key, after(delay));
        self.changed.notify_one();
    }

    /// How many keys wait for a worker.
    pub fn depth(&self) -> usize {
        self.lock().ready.len()
    }

    /// Runs reconciles, at most `workers` at a time, until `shutdown` turns true; then waits for those that run.
    pub async fn run<F, Fut, E>(&self, workers: usize, mut shutdown: watch::Receiver<bool>, reconcile: F)
    where
        F: Fn(K, Interrupt) -> Fut,
        Fut: Future<Output = Result<Requeue, E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let mut tasks: JoinSet<Result<Requeue, E>> = JoinSet::new();
        let mut keys: HashMap<Id, K> = HashMap::new();
        loop {
            while tasks.len() < workers {
                let Some((key, interrupt)) = self.lock().take() else { break };
                let id = tasks.spawn(reconcile(key.clone(), Interrupt(interrupt))).id();
                keys.insert(id, key);
            }
            let next_due = self.lock().next_due();
            let timer = async {
                match next_due {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = shutdown.wait_for(|stop| *stop) => break,
                () = self.changed.notified() => {}
                () = timer => self.lock().promote(Instant::now()),
                Some(done) = tasks.join_next_with_id(), if !tasks.is_empty() => self.finish(&mut keys, done),
            }
        }
        while let Some(done) = tasks.join_next_with_id().await {
            self.finish(&mut keys, done);
        }
    }

    fn finish<E: Display>(
        &self,
        keys: &mut HashMap<Id, K>,
        done: Result<(Id, Result<Requeue, E>), tokio::task::JoinError>,
    ) {
        let (id, outcome) = match done {
            Ok((id, Ok(requeue))) => (id, Ok(requeue)),
            Ok((id, Err(error))) => (id, Err(error.to_string())),
            Err(panic) => (panic.id(), Err(panic.to_string())),
        };
        let Some(key) = keys.remove(&id) else { return };
        let mut state = self.lock();
        let again = state.running.remove(&key).is_some_and(|running| running.again);
        match outcome {
            Ok(requeue) => {
                state.failures.remove(&key);
                if again {
                    state.add(key);
                } else if let Requeue::After(delay) = requeue {
                    state.delay(key, after(delay));
                }
            }
            Err(error) => {
                // An event that arrived meanwhile does not cut the back-off short: it would turn a failing key into
                // a busy loop whenever the failure itself causes events.
                let failures = state.failures.entry(key.clone()).or_insert(0);
                let delay = self.backoff.delay(*failures);
                *failures += 1;
                tracing::warn!(%key, %error, failures = *failures, retry_in = ?delay, "reconcile failed");
                state.delay(key, after(delay));
            }
        }
    }
}

/// The moment after a delay, also after one that is more than a clock can hold.
fn after(delay: Duration) -> Instant {
    Instant::now() + delay.min(LONGEST_DELAY)
}

impl<K: Clone + Eq + Hash> State<K> {
    fn add(&mut self, key: K) {
        if let Some(running) = self.running.get_mut(&key) {
            running.again = true;
            running.interrupt.notify_one();
            return;
        }
        if let Some(due) = self.due.remove(&key) {
            self.delayed.remove(&due);
        }
        if self.waiting.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    fn delay(&mut self, key: K, at: Instant) {
        if self.waiting.contains(&key) || self.due.get(&key).is_some_and(|due| due.0 <= at) {
            return;
        }
        if let Some(due) = self.due.remove(&key) {
            self.delayed.remove(&due);
        }
        self.sequence += 1;
        let due = (at, self.sequence);
        self.due.insert(key.clone(), due);
        self.delayed.insert(due, key);
    }

    fn next_due(&self) -> Option<Instant> {
        self.delayed.first_key_value().map(|((at, _), _)| *at)
    }

    fn promote(&mut self, now: Instant) {
        while let Some(entry) = self.delayed.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let key = entry.remove();
            self.due.remove(&key);
            self.add(key);
        }
    }

    fn take(&mut self) -> Option<(K, Arc<Notify>)> {
        let key = self.ready.pop_front()?;
        self.waiting.remove(&key);
        let interrupt = Arc::new(Notify::new());
        self.running.insert(key.clone(), Running { again: false, interrupt: interrupt.clone() });
        Some((key, interrupt))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn quick() -> Backoff {
        Backoff { base: Duration::from_millis(1), max: Duration::from_millis(4) }
    }

    /// Runs a queue until `done` reconciles have finished.
    async fn run_until<F, Fut>(queue: Arc<Queue<&'static str>>, done: usize, reconcile: F)
    where
        F: Fn(&'static str, Interrupt, usize) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Requeue, String>> + Send + 'static,
    {
        let (stop, shutdown) = watch::channel(false);
        let stop = Arc::new(stop);
        let count = Arc::new(AtomicUsize::new(0));
        queue
            .run(8, shutdown, move |key, interrupt| {
                let (stop, count) = (stop.clone(), count.clone());
                let nth = count.fetch_add(1, Ordering::SeqCst) + 1;
                let work = reconcile(key, interrupt, nth);
                async move {
                    let result = work.await;
                    if nth >= done {
                        stop.send_replace(true);
                    }
                    result
                }
            })
            .await;
    }

    #[tokio::test]
    async fn a_key_added_while_running_interrupts_and_runs_once_more() {
        let queue = Queue::new(quick());
        queue.add("a");
        let inner = queue.clone();
        run_until(queue, 2, move |key, interrupt, nth| {
            let queue = inner.clone();
            async move {
                if nth == 1 {
                    queue.add(key);
                    queue.add(key);
                    interrupt.raised().await;
                }
                Ok(Requeue::Await)
            }
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_key_comes_back_after_its_delay() {
        let queue = Queue::new(quick());
        queue.add("a");
        run_until(queue, 3, |_, _, nth| async move {
            match nth {
                1 => Err("no".to_owned()),
                2 => Ok(Requeue::After(Duration::from_secs(5))),
                _ => Ok(Requeue::Await),
            }
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_delay_that_no_clock_can_hold_is_a_long_one() {
        let queue = Queue::new(quick());
        queue.add_after("b", Duration::MAX);
        queue.add("a");
        run_until(queue, 3, |_, _, _| async move { Ok(Requeue::After(Duration::MAX)) }).await;
    }

    #[tokio::test]
    async fn a_panic_is_a_failure_of_its_key_only() {
        let queue = Queue::new(quick());
        queue.add("a");
        run_until(queue, 2, |_, _, nth| async move {
            assert!(nth > 1, "first attempt panics");
            Ok(Requeue::Await)
        })
        .await;
    }

    #[tokio::test]
    async fn keys_run_side_by_side() {
        let queue = Queue::new(quick());
        queue.add("a");
        queue.add("b");
        let meet = Arc::new(tokio::sync::Barrier::new(2));
        run_until(queue, 2, move |_, _, _| {
            let meet = meet.clone();
            async move {
                meet.wait().await;
                Ok(Requeue::Await)
            }
        })
        .await;
    }
}
