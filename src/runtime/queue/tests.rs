use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::{super::clock, *};

/// The part before the slash is the namespace.
impl Key for &'static str {
    fn share(&self) -> Arc<str> {
        self.split_once('/').map_or("", |(namespace, _)| namespace).into()
    }
}

fn key(namespace: usize, name: usize) -> ObjectKey {
    ObjectKey::new(&format!("ns{namespace}"), &name.to_string())
}

fn take(state: &mut State<ObjectKey>, workers: usize) -> Option<ObjectKey> {
    state.take(workers).map(|(key, _)| key)
}

fn take_all(state: &mut State<ObjectKey>, workers: usize) -> Vec<ObjectKey> {
    std::iter::from_fn(|| take(state, workers)).collect()
}

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

#[tokio::test(start_paused = true)]
async fn a_key_added_while_running_interrupts_and_runs_once_more() {
    let queue = Queue::new(quick());
    queue.add("a");
    let inner = queue.clone();
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let three = run_until(queue, 3, move |key, interrupt, nth| {
        let queue = inner.clone();
        counted.store(nth, Ordering::SeqCst);
        async move {
            if nth == 1 {
                queue.add(key);
                queue.add(key);
                interrupt.raised().await;
            }
            Ok(Requeue::Await)
        }
    });
    assert!(tokio::time::timeout(Duration::from_secs(60), three).await.is_err(), "there is no third one");
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failed_key_comes_back_after_its_delay() {
    let queue = Queue::new(Backoff { base: Duration::from_secs(2), max: Duration::from_secs(4) });
    queue.add("a");
    let begun = tokio::time::Instant::now();
    let times = Arc::new(Mutex::new(Vec::new()));
    let seen = times.clone();
    run_until(queue, 3, move |_, _, nth| {
        seen.lock().unwrap().push(begun.elapsed().as_secs_f64());
        async move {
            match nth {
                1 => Err("no".to_owned()),
                2 => Ok(Requeue::After(Duration::from_secs(50))),
                _ => Ok(Requeue::Await),
            }
        }
    })
    .await;
    let times = times.lock().unwrap().clone();
    assert!(times[0] < 0.1 && (1.0..4.0).contains(&times[1]), "the back-off, with its jitter: {times:?}");
    assert!((50.0..51.0).contains(&(times[2] - times[1])), "what was asked for: {times:?}");
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

#[test]
fn namespaces_take_turns_and_each_keeps_its_order() {
    let mut state = State::new();
    for (namespace, name) in [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (1, 1)] {
        state.add(key(namespace, name));
    }
    let order = take_all(&mut state, 10);
    let want = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (0, 2)].map(|(namespace, name)| key(namespace, name));
    assert_eq!(order, want);
    assert!(state.ready.is_empty() && state.turns.is_empty() && state.waiting.is_empty());
    for key in &order {
        state.release(key);
    }
    assert!(state.held.is_empty() && state.running.is_empty(), "nothing is kept of a namespace that has no key");
}

/// `workers` of one namespace, and what is left for those that come after others whose reconciles hang.
#[test]
fn namespaces_that_hang_leave_workers_to_others() {
    for (workers, want) in [(1, vec![1, 1, 0]), (3, vec![3, 2, 1, 0]), (8, vec![8, 4, 2, 1, 1, 0])] {
        let mut state = State::new();
        let got = (0..want.len()).map(|namespace| {
            (0..100).for_each(|name| state.add(key(namespace, name)));
            take_all(&mut state, workers).len()
        });
        assert_eq!(got.collect::<Vec<_>>(), want, "{workers} workers");
    }
}

#[test]
fn cluster_scoped_keys_come_in_order_and_use_the_workers_of_one_namespace() {
    let mut state = State::new();
    (0..100).for_each(|node| state.add(ObjectKey::new("", &node.to_string())));
    let want: Vec<_> = (0..8).map(|node| ObjectKey::new("", &node.to_string())).collect();
    assert_eq!(take_all(&mut state, 8), want);
}

#[tokio::test]
async fn a_namespace_whose_reconciles_hang_delays_nobody_else() {
    let queue = Queue::new(quick());
    for key in ["slow/0", "slow/1", "slow/2", "slow/3", "slow/4", "slow/5", "slow/6", "slow/7", "slow/8", "slow/9"] {
        queue.add(key);
    }
    for key in ["a/0", "b/0", "a/1", "c/0"] {
        queue.add(key);
    }
    let (stop, shutdown) = watch::channel(false);
    let stop = Arc::new(stop);
    let done = Arc::new(Mutex::new(Vec::new()));
    let reconcile = |key: &'static str, _| {
        let (stop, done) = (stop.clone(), done.clone());
        async move {
            if key.starts_with("slow/") {
                // until the end of the test
                let _ = stop.subscribe().wait_for(|stop| *stop).await;
                return Ok::<_, String>(Requeue::Await);
            }
            let mut done = done.lock().unwrap();
            done.push(key);
            if done.len() == 4 {
                stop.send_replace(true);
            }
            Ok(Requeue::Await)
        }
    };
    let run = queue.run(3, shutdown, reconcile);
    tokio::time::timeout(Duration::from_secs(10), run).await.expect("the others are reconciled");
    assert_eq!(*done.lock().unwrap(), ["a/0", "b/0", "c/0", "a/1"]);
}

proptest! {
    /// Random additions, ends and workers, with namespaces that hang: the rules of the module's documentation.
    #[test]
    fn nobody_is_starved(
        workers in 1..5usize,
        hanging in 0..3usize,
        steps in proptest::collection::vec((0..6usize, 0..8usize, 0..4u8), 1..300),
    ) {
        let mut state = State::new();
        let mut expected: HashMap<Arc<str>, VecDeque<ObjectKey>> = HashMap::new();
        let mut running: Vec<ObjectKey> = Vec::new();
        // How many keys of each other namespace were taken since a namespace began to wait while it held no worker.
        let mut overtaken: HashMap<Arc<str>, HashMap<Arc<str>, usize>> = HashMap::new();
        for (namespace, name, what) in steps {
            if what > 0 {
                let key = key(namespace, name);
                if !running.contains(&key) && !state.waiting.contains(&key) {
                    expected.entry(key.share()).or_default().push_back(key.clone());
                }
                state.add(key);
            } else if let Some(ended) = running.iter().position(|key| &*key.namespace >= format!("ns{hanging}").as_str()) {
                let key = running.remove(ended);
                if state.release(&key) {
                    expected.entry(key.share()).or_default().push_back(key.clone());
                    state.add(key);
                }
            }
            let waiting: Vec<Arc<str>> = state.turns.iter().filter(|share| !state.held.contains_key(*share)).cloned().collect();
            overtaken.retain(|share, _| waiting.contains(share));
            for share in &waiting {
                overtaken.entry(share.clone()).or_default();
            }
            while let Some(key) = take(&mut state, workers) {
                let share = key.share();
                prop_assert_eq!(expected.get_mut(&share).and_then(VecDeque::pop_front), Some(key.clone()), "order");
                overtaken.remove(&share);
                for (waits, by) in &mut overtaken {
                    let times = by.entry(share.clone()).or_default();
                    *times += 1;
                    prop_assert!(*times <= 1, "{share} came before {waits} twice");
                }
                running.push(key);
            }
            let held = |share: &Arc<str>| state.held.get(share).copied().unwrap_or(0);
            prop_assert!(state.held.values().all(|held| (1..=workers).contains(held)));
            prop_assert_eq!(state.held.values().sum::<usize>(), running.len());
            let free = 2 * workers - running.len();
            prop_assert!(free == 0 || state.turns.iter().all(|share| held(share) >= free), "a free worker and a namespace that waits");
            prop_assert!(state.turns.len() == state.ready.len() && state.ready.values().all(|keys| !keys.is_empty()));
            prop_assert_eq!(state.ready.values().map(VecDeque::len).sum::<usize>(), state.waiting.len());
        }
        // What does not hang is all reconciled, as long as a worker is left for it.
        if 1 << hanging <= 2 * workers {
            while let Some(ended) = running.iter().position(|key| &*key.namespace >= format!("ns{hanging}").as_str()) {
                let key = running.remove(ended);
                state.release(&key);
                running.extend(take_all(&mut state, workers));
            }
            let left = state.turns.iter().filter(|share| &***share >= format!("ns{hanging}").as_str()).count();
            prop_assert_eq!(left, 0);
        }
    }
}

/// A measurement, not a rule: `cargo test --release -- --ignored --nocapture twenty_thousand`.
#[test]
#[ignore = "prints how long keys take to go through the queue"]
fn twenty_thousand_keys() {
    for namespaces in [1, 10, 1000, 20_000] {
        let keys: Vec<ObjectKey> = (0..20_000).map(|i| key(i % namespaces, i)).collect();
        let mut state = State::new();
        let begun = clock::now().mono;
        for _ in 0..20 {
            keys.iter().for_each(|key| state.add(key.clone()));
            while let Some(key) = take(&mut state, 3) {
                state.release(&key);
            }
        }
        println!("{namespaces} namespaces: {:?} for each key", (clock::now().mono - begun) / (20 * 20_000));
    }
}
