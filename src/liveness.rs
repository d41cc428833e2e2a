//! Liveness as a property: whatever happened before, once the last change makes it possible, everything becomes what is
//! asked for; and on the way there no promise is broken.
//!
//! [`run`] plays one history, which a seed decides:
//!
//! 1. Changes by users and faults ([`Driver::disturb`]), with steps of the system and time between them.
//! 2. The last change ([`Driver::make_possible`]): what is broken is mended, what holds lets go.
//! 3. Steps and time alone, until nothing is missing ([`Model::missing`]). Time passes only when no step is left, and
//!    then up to the moment that the system itself has said it would look again. A system that waits for nothing while
//!    something is missing has stopped for ever, and the seed fails at once, without waiting for the patience to end.
//! 4. It has to stay so.
//!
//! After every step [`Model::wrongs`] says which promise was broken (the safety rules).
//!
//! # How to add a kind
//!
//! 1. A test module whose path contains `simulation`, beside the code that it drives: `make soak` runs what has that
//!    word in its name, with `KRUISE_SIM_SEEDS=100000`.
//! 2. A `Driver`: objects in memory, the real rules or the real controller, and what surrounds them (kubelet, users,
//!    hooks, faults). One effect is one step, so that changes and faults fall between any two of them. Its clock is a
//!    number, or tokio's paused clock, which `runtime::clock` follows in tests.
//! 3. A `Model`: what may never be, and what has to be in the end, in the plainest terms: counts of what is there, never
//!    the functions that are under test.
//! 4. A test:
//!
//!    ```ignore
//!    #[test]
//!    fn simulation_of_widgets() {
//!        let acts = liveness::seeds(100, "simulation_of_widgets", |seed| {
//!            let (mut driver, mut model) = (Widgets::new(seed), Model::default());
//!            liveness::at_once(liveness::run(seed, &Limits::default(), &mut driver, &mut model))?;
//!            Ok(model.acts)
//!        });
//!        acts.require(&[("restarted", 30), ("refused", 10)]);
//!    }
//!    ```
//!
//!    `require` keeps the model honest: a history in which nothing happens proves nothing.
//! 5. Take the mend of a known defect back and see that a seed fails.
//!
//! `KRUISE_SIM_SEED=<seed>` repeats one history, `KRUISE_SIM_SEEDS=<number>` runs so many. This file uses the standard
//! library only, because the end-to-end tests, which have the real API server for a driver, include it too.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    future::Future,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

/// What came of one step of the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something was done: what, for the trace. Empty: nothing worth a line.
    Worked(String),
    /// There is nothing to do now. The system itself looks again after this time; None: only when something happens.
    Idle(Option<Duration>),
}

/// The system and what surrounds it.
pub trait Driver {
    /// What a model judges.
    type Seen;

    /// A change by a user, or a fault: what it was, for the trace.
    ///
    /// # Errors
    /// The driver itself cannot go on.
    fn disturb(&mut self, random: &mut Random) -> impl Future<Output = Result<String, String>>;

    /// The last change: from here on everything that is wanted is possible. What it was, for the trace.
    ///
    /// # Errors
    /// The driver itself cannot go on.
    fn make_possible(&mut self) -> impl Future<Output = Result<String, String>>;

    /// The next effect of the system or of what surrounds it.
    ///
    /// # Errors
    /// The driver itself cannot go on, or what it drives did what nothing may do.
    fn step(&mut self, random: &mut Random) -> impl Future<Output = Result<Step, String>>;

    /// Time passes.
    fn advance(&mut self, by: Duration) -> impl Future<Output = ()>;

    /// What there is now.
    ///
    /// # Errors
    /// The driver itself cannot go on.
    fn see(&mut self) -> impl Future<Output = Result<Self::Seen, String>>;
}

/// What may never be, and what has to be in the end.
pub trait Model {
    /// What a driver shows.
    type Seen;

    /// Promises that the last step broke. Called once after each step, in order.
    fn wrongs(&mut self, seen: &Self::Seen) -> Vec<String>;

    /// What is not yet as the last change wants it. Empty: it has converged.
    fn missing(&self, seen: &Self::Seen) -> Vec<String>;
}

/// How long a history is.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Changes and faults.
    pub changes: usize,
    /// Steps between two of them, at most.
    pub steps_between: usize,
    /// Time between two of them, at most.
    pub time_between: Duration,
    /// Time after the last change until nothing is missing, at most.
    pub patience: Duration,
    /// Steps after the last change until nothing is missing, at most: a system that works without end gets nowhere.
    pub steps: usize,
    /// Steps and pauses for which it has to stay so.
    pub stays: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            changes: 20,
            steps_between: 12,
            time_between: Duration::from_secs(30),
            patience: Duration::from_secs(3600),
            steps: 5000,
            stays: 20,
        }
    }
}

/// Plays one history.
///
/// # Errors
/// A promise was broken, or something is missing for good: what, and everything that happened before.
pub async fn run<D, M>(seed: u64, limits: &Limits, driver: &mut D, model: &mut M) -> Result<(), String>
where
    D: Driver,
    M: Model<Seen = D::Seen>,
{
    let mut history = History { random: Random(seed), time: Duration::ZERO, trace: String::new() };
    let result = history.play(limits, driver, model).await;
    result.map_err(|why| format!("{why}\n{}", history.trace))
}

/// Runs what never waits for anything outside, as most drivers; one with a controller in it needs a runtime.
///
/// # Panics
/// It waits.
pub fn at_once<F: Future>(what: F) -> F::Output {
    match std::pin::pin!(what).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("this driver waits for something: run it in a runtime"),
    }
}

struct History {
    random: Random,
    time: Duration,
    trace: String,
}

impl History {
    fn log(&mut self, text: &str) {
        if !text.is_empty() {
            let _ = writeln!(self.trace, "{:>10} ms  {text}", self.time.as_millis());
        }
    }

    async fn play<D, M>(&mut self, limits: &Limits, driver: &mut D, model: &mut M) -> Result<(), String>
    where
        D: Driver,
        M: Model<Seen = D::Seen>,
    {
        for _ in 0..limits.changes {
            let said = driver.disturb(&mut self.random).await?;
            self.log(&said);
            let mut left = self.random.duration(limits.time_between);
            for _ in 0..self.random.below(limits.steps_between + 1) {
                if let Step::Idle(next) = self.step(driver, model).await?.0 {
                    let pause = next.unwrap_or(left).min(left);
                    self.advance(driver, pause).await;
                    left -= pause;
                }
            }
        }
        let said = driver.make_possible().await?;
        self.log(&format!("the last change: {said}"));
        let began = self.time;
        for _ in 0..limits.steps {
            let (step, missing) = self.step(driver, model).await?;
            if missing.is_empty() {
                return self.stays(limits, driver, model).await;
            }
            let Step::Idle(next) = step else { continue };
            let missing = missing.join("\n  ");
            let Some(next) = next else {
                return Err(format!("nothing will happen any more, and something is missing:\n  {missing}"));
            };
            if self.time - began > limits.patience {
                return Err(format!("after {:?} something is still missing:\n  {missing}", limits.patience));
            }
            self.advance(driver, next).await;
        }
        let missing = model.missing(&driver.see().await?).join("\n  ");
        Err(format!("after {} steps something is still missing:\n  {missing}", limits.steps))
    }

    /// What has converged stays so.
    async fn stays<D, M>(&mut self, limits: &Limits, driver: &mut D, model: &mut M) -> Result<(), String>
    where
        D: Driver,
        M: Model<Seen = D::Seen>,
    {
        self.log("nothing is missing");
        for _ in 0..limits.stays {
            let (step, missing) = self.step(driver, model).await?;
            if !missing.is_empty() {
                return Err(format!("what had been reached was given up again:\n  {}", missing.join("\n  ")));
            }
            match step {
                Step::Worked(_) => {}
                Step::Idle(Some(next)) => self.advance(driver, next).await,
                Step::Idle(None) => break,
            }
        }
        Ok(())
    }

    async fn step<D, M>(&mut self, driver: &mut D, model: &mut M) -> Result<(Step, Vec<String>), String>
    where
        D: Driver,
        M: Model<Seen = D::Seen>,
    {
        let step = driver.step(&mut self.random).await?;
        if let Step::Worked(said) = &step {
            self.log(said);
        }
        let seen = driver.see().await?;
        let wrongs = model.wrongs(&seen);
        if wrongs.is_empty() { Ok((step, model.missing(&seen))) } else { Err(wrongs.join("\n")) }
    }

    async fn advance<D: Driver>(&mut self, driver: &mut D, by: Duration) {
        // A pause of nothing would never end.
        let by = by.max(Duration::from_millis(1));
        self.time += by;
        driver.advance(by).await;
    }
}

/// splitmix64: small, well distributed, and the same everywhere.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Any number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which must not be 0.
    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap_or_default()
    }

    /// True so many times in a hundred.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of them; None: there are none.
    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        if all.is_empty() { None } else { all.get(self.below(all.len())) }
    }

    /// A time of at most `most`, in whole milliseconds.
    pub fn duration(&mut self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX - 1);
        Duration::from_millis(self.next() % (most + 1))
    }
}

/// How often things happened, over all histories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acts(BTreeMap<&'static str, u64>);

impl Acts {
    /// One more.
    pub fn note(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    /// So many more.
    pub fn add(&mut self, what: &'static str, times: u64) {
        *self.0.entry(what).or_default() += times;
    }

    /// All that others have counted.
    pub fn merge(&mut self, others: Self) {
        others.0.into_iter().for_each(|(what, times)| self.add(what, times));
    }

    /// How often.
    pub fn count(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or_default()
    }

    /// Fails unless each of these happened so often in a hundred histories. One history that is repeated need not have
    /// everything in it. Where a store's order of objects has a part in it, counts differ a little from run to run: leave
    /// them a third of room.
    #[track_caller]
    pub fn require(&self, percent: &[(&str, u64)]) {
        let seeds = self.count(SEEDS);
        let rare: Vec<&str> = percent
            .iter()
            .filter(|(what, percent)| self.count(what) * 100 < percent * seeds)
            .map(|(w, _)| *w)
            .collect();
        assert!(seeds < 20 || rare.is_empty(), "in {seeds} histories too little happened of {rare:?}: {self:?}");
    }
}

/// The number of histories, among [`Acts`].
const SEEDS: &str = "histories";

/// Runs `one` with many seeds on all processors and adds up what happened: `default` seeds, or `KRUISE_SIM_SEEDS`, or the
/// one seed `KRUISE_SIM_SEED`. `test` is the name of the test, for the line that says how to repeat a failure.
///
/// # Panics
/// A seed failed, or panicked: that is what a test wants.
#[track_caller]
pub fn seeds(default: u64, test: &str, one: impl Fn(u64) -> Result<Acts, String> + Sync) -> Acts {
    long_seeds(default, 1, test, one)
}

/// The same for a history that takes as long as `share` others: of `KRUISE_SIM_SEEDS` it runs so many times fewer.
///
/// # Panics
/// See [`seeds`].
#[track_caller]
pub fn long_seeds(default: u64, share: u64, test: &str, one: impl Fn(u64) -> Result<Acts, String> + Sync) -> Acts {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (first, count) = match number("KRUISE_SIM_SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("KRUISE_SIM_SEEDS").map_or(default, |count| count.div_ceil(share))),
    };
    let (next, end) = (AtomicU64::new(first), first.saturating_add(count));
    let (failure, acts) = (Mutex::new(None), Mutex::new(Acts::default()));
    let locked = |mutex: &Mutex<Option<String>>| mutex.lock().unwrap_or_else(PoisonError::into_inner).is_some();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(|| {
                while !locked(&failure) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one(seed)));
                    match done.unwrap_or_else(|panic| Err(said(panic.as_ref()))) {
                        Ok(more) => {
                            let mut acts = acts.lock().unwrap_or_else(PoisonError::into_inner);
                            acts.note(SEEDS);
                            more.0.into_iter().for_each(|(what, times)| acts.add(what, times));
                        }
                        Err(why) => {
                            let why = format!(
                                "seed {seed}: {why}\nagain: KRUISE_SIM_SEED={seed} cargo test --lib -- --nocapture {test}"
                            );
                            failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
                        }
                    }
                }
            });
        }
    });
    if let Some(failure) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        panic!("{failure}");
    }
    acts.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The words of a panic.
pub fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter that climbs by one each second until it is what is wanted.
    struct Climb {
        now: u32,
        wanted: u32,
        pace: u32,
        clock: Duration,
        due: Duration,
        /// What it does when it has reached this.
        stops_at: Option<u32>,
    }

    impl Driver for Climb {
        type Seen = (u32, u32);
        async fn disturb(&mut self, random: &mut Random) -> Result<String, String> {
            self.wanted = 1 + u32::try_from(random.below(9)).unwrap();
            Ok(format!("wanted {}", self.wanted))
        }
        async fn make_possible(&mut self) -> Result<String, String> {
            self.wanted = 20;
            Ok("wanted 20".into())
        }
        async fn step(&mut self, _: &mut Random) -> Result<Step, String> {
            if self.now >= self.wanted || self.stops_at == Some(self.now) {
                return Ok(Step::Idle(None));
            }
            if self.clock < self.due {
                return Ok(Step::Idle(Some(self.due - self.clock)));
            }
            self.due = self.clock + Duration::from_secs(1);
            self.now += self.pace;
            Ok(Step::Worked(format!("at {}", self.now)))
        }
        async fn advance(&mut self, by: Duration) {
            self.clock += by;
        }
        async fn see(&mut self) -> Result<(u32, u32), String> {
            Ok((self.now, self.wanted))
        }
    }

    struct Reaches;
    impl Model for Reaches {
        type Seen = (u32, u32);
        fn wrongs(&mut self, (now, _): &(u32, u32)) -> Vec<String> {
            (*now > 20).then(|| format!("{now} is more than anybody wanted")).into_iter().collect()
        }
        fn missing(&self, (now, wanted): &(u32, u32)) -> Vec<String> {
            (now < wanted).then(|| format!("{now} of {wanted}")).into_iter().collect()
        }
    }

    fn climb(pace: u32, stops_at: Option<u32>) -> Result<(), String> {
        let mut climb = Climb { now: 0, wanted: 0, pace, clock: Duration::ZERO, due: Duration::ZERO, stops_at };
        let limits = Limits { patience: Duration::from_secs(30), ..Limits::default() };
        at_once(run(7, &limits, &mut climb, &mut Reaches))
    }

    #[test]
    fn what_gets_there_passes_and_what_stops_or_breaks_a_promise_fails() {
        assert_eq!(climb(1, None), Ok(()));
        let stopped = climb(1, Some(12)).unwrap_err();
        assert!(
            stopped.starts_with("nothing will happen any more, and something is missing:\n  12 of 20\n"),
            "{stopped}"
        );
        assert!(stopped.contains("the last change: wanted 20"), "{stopped}");
        // 9 at most in the beginning, and from there in leaps past 20
        let wrong = climb(7, None).unwrap_err();
        assert!(wrong.starts_with("21 is more than anybody wanted"), "{wrong}");
    }

    #[test]
    fn acts_that_are_too_rare_fail() {
        let run = |seed: u64| {
            let mut acts = Acts::default();
            acts.add("always", 1);
            acts.add("rarely", u64::from(seed == 3));
            Ok(acts)
        };
        let acts = seeds(40, "acts_that_are_too_rare_fail", run);
        let ask = |percent: &'static [(&str, u64)]| std::panic::catch_unwind(|| acts.require(percent)).is_ok();
        // A soak or a single seed runs this too, with another number.
        let seeds = acts.count(SEEDS);
        assert_eq!(acts.count("always"), seeds);
        assert!(ask(&[("always", 100)]));
        assert_eq!(ask(&[("rarely", 10)]), seeds < 20);
    }
}
