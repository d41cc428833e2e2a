//! A keyed work queue: at most one reconcile per key at a time, many keys at once.
//!
//! A key that is added while it is being reconciled is reconciled once more afterwards, and the running reconcile can
//! see that through its [`Interrupt`]. A failed key comes back after a delay that doubles with every failure.
//!
//! # Shares
//!
//! Namespaces share the workers of a queue. They take turns: whoever is first gets one of its keys reconciled, the one
//! that has waited longest, and goes to the end. There are twice as many workers as one namespace may use
//! (`W` of [`Queue::run`]), and a namespace gets one more only while it holds fewer than are free. It follows that
//!
//! - a namespace that is alone uses `W` workers, never more;
//! - while a worker is free, a namespace that holds none waits for nobody, since it holds fewer than one;
//! - `n` namespaces whose reconciles hang hold `W`, `W/2`, `W/4` ... (rounded up) of the `2W`, so a worker remains for
//!   the others as long as `2^n <= 2W`;
//! - when none is free, a namespace that holds none waits until one is, and then at most for one key of each
//!   namespace that was waiting before it.
//!
//! Cluster-scoped keys belong to no tenant: all of them are one namespace, in the order in which they came.

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

use super::{retry::jitter, watches::ObjectKey};
use crate::k8s::time::doubled;

/// What a reconcile that went well wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// Nothing until the key is added again.
    Await,
    /// Once more after this time, or earlier if the key is added.
    After(Duration),
}

impl Requeue {
    /// When it is to be, if it is not to wait for an event alone.
    pub const fn after(self) -> Option<Duration> {
        match self {
            Self::Await => None,
            Self::After(after) => Some(after),
        }
    }
}

/// Signals a running reconcile that its key was added again.
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

/// What a queue works on.
pub trait Key: Clone + Eq + Hash + Display + Send + Sync + 'static {
    /// Whose share of the workers it uses: its namespace, empty for what has none.
    fn share(&self) -> Arc<str>;
}

impl Key for ObjectKey {
    fn share(&self) -> Arc<str> {
        self.namespace.clone()
    }
}

/// A key is reconciled at least this often while it waits for a time. Users write times: a deadline of 2^63 s is one.
const LONGEST_DELAY: Duration = Duration::from_secs(24 * 60 * 60);

struct Running {
    again: bool,
    interrupt: Arc<Notify>,
}

struct State<K> {
    /// The keys that wait for a worker, by namespace, in the order in which they came. None of the lists is empty.
    ready: HashMap<Arc<str>, VecDeque<K>>,
    /// The namespaces in `ready`; the first one is next.
    turns: VecDeque<Arc<str>>,
    /// The keys in `ready`.
    waiting: HashSet<K>,
    /// How many workers each namespace holds, if any.
    held: HashMap<Arc<str>, usize>,
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
    /// The pause after so many failures before this one.
    pub fn delay(&self, failures: u32) -> Duration {
        doubled(self.base, failures, self.max)
    }
}

/// The queue. Cheap to share.
pub struct Queue<K> {
    state: Mutex<State<K>>,
    changed: Notify,
    backoff: Backoff,
}

impl<K: Key> Queue<K> {
    /// An empty queue.
    pub fn new(backoff: Backoff) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State::new()), changed: Notify::new(), backoff })
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
        self.lock().waiting.len()
    }

    /// Runs reconciles until `shutdown` turns true, then waits for those that run. At most `workers` of one namespace run
    /// at a time, and twice as many together.
    pub async fn run<F, Fut, E>(&self, workers: usize, mut shutdown: watch::Receiver<bool>, reconcile: F)
    where
        F: Fn(K, Interrupt) -> Fut,
        Fut: Future<Output = Result<Requeue, E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let mut tasks: JoinSet<Result<Requeue, E>> = JoinSet::new();
        let mut keys: HashMap<Id, K> = HashMap::new();
        loop {
            loop {
                let Some((key, interrupt)) = self.lock().take(workers) else { break };
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
        self.note(key, outcome, jitter);
    }

    /// Notes the outcome of a reconcile. After a failure the key comes back after its delay and up to a tenth of it, which
    /// `jitter` chooses.
    fn note<E: Display>(&self, key: K, outcome: Result<Requeue, E>, jitter: fn(Duration) -> Duration) {
        let mut state = self.lock();
        let again = state.release(&key);
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
                let delay = delay + jitter(delay / 10);
                *failures += 1;
                tracing::warn!(%key, %error, failures = *failures, retry_in = ?delay, "reconcile failed");
                state.delay(key, after(delay));
            }
        }
    }
}

/// A queue without workers, for random histories: one key at a time, and no chance but that of the seed.
#[cfg(test)]
impl<K: Key> Queue<K> {
    /// The key that a worker would begin with now. [`Self::done`] reports the outcome.
    pub fn begin(&self) -> Option<K> {
        let mut state = self.lock();
        state.promote(Instant::now());
        state.take(1).map(|(key, _)| key)
    }

    /// What came of the key that was begun with.
    pub fn done<E: Display>(&self, key: K, outcome: Result<Requeue, E>) {
        self.note(key, outcome, |_| Duration::ZERO);
    }

    /// When the next key is due, of those that wait for a time.
    pub fn next_in(&self) -> Option<Duration> {
        self.lock().next_due().map(|at| at.saturating_duration_since(Instant::now()))
    }
}

/// The moment after a delay, also after one that is more than a clock can hold.
fn after(delay: Duration) -> Instant {
    Instant::now() + delay.min(LONGEST_DELAY)
}

impl<K: Key> State<K> {
    fn new() -> Self {
        Self {
            ready: HashMap::new(),
            turns: VecDeque::new(),
            waiting: HashSet::new(),
            held: HashMap::new(),
            running: HashMap::new(),
            delayed: BTreeMap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            sequence: 0,
        }
    }

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
            let share = key.share();
            let keys = self.ready.entry(share.clone()).or_default();
            if keys.is_empty() {
                self.turns.push_back(share);
            }
            keys.push_back(key);
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

    /// The next key, and a worker for it.
    fn take(&mut self, workers: usize) -> Option<(K, Arc<Notify>)> {
        let free = workers.saturating_mul(2).saturating_sub(self.running.len());
        if free == 0 {
            return None;
        }
        let may_have_one = |share: &Arc<str>| self.held.get(share).is_none_or(|held| *held < free);
        // Whoever may not holds a worker: no more are passed over than there are workers.
        let turn = self.turns.iter().position(may_have_one)?;
        let share = self.turns.remove(turn)?;
        let keys = self.ready.get_mut(&share)?;
        let key = keys.pop_front()?;
        if keys.is_empty() {
            self.ready.remove(&share);
        } else {
            self.turns.push_back(share.clone());
        }
        self.waiting.remove(&key);
        *self.held.entry(share).or_default() += 1;
        let interrupt = Arc::new(Notify::new());
        self.running.insert(key.clone(), Running { again: false, interrupt: interrupt.clone() });
        Some((key, interrupt))
    }

    /// The reconcile of a key has ended; whether it was added meanwhile.
    fn release(&mut self, key: &K) -> bool {
        let Some(running) = self.running.remove(key) else { return false };
        let share = key.share();
        if let Some(held) = self.held.get_mut(&share) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&share);
            }
        }
        running.again
    }
}

#[cfg(test)]
mod tests;
