//! Whether work stands still.
//!
//! Every call to the API server ends within a time limit, so a reconcile gets an answer or an error every few minutes. If it
//! gets neither while the API server answers other calls, it waits for something that will not come, and only a new process
//! helps. While the API server is down a new process would not help.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kube::Client;

use super::{clock, lock};
use crate::k8s::time::Now;

/// A reconcile that has not moved for so long is suspect, and the API server is asked whether it answers.
const SUSPECT: Duration = Duration::from_secs(60);
/// A reconcile that has not moved for so long stands still, if the API server has answered all that time.
const STILL: Duration = Duration::from_secs(10 * 60);
/// Between two looks.
const PERIOD: Duration = Duration::from_secs(10);
/// How long the API server may take to answer a question that costs it nothing.
const ANSWER: Duration = Duration::from_secs(5);

tokio::task_local! {
    /// When the reconcile of this task moved last, on the monotonic clock, in milliseconds.
    static MOVED: Arc<AtomicU64>;
}

fn millis(now: Now) -> u64 {
    now.mono.as_millis().try_into().unwrap_or(u64::MAX)
}

/// Notes that what runs in this task has got an answer. Outside a reconcile it does nothing.
pub(super) fn moved() {
    let _ = MOVED.try_with(|moved| moved.store(millis(clock::now()), Ordering::Relaxed));
}

/// The reconciles that run.
#[derive(Clone, Default)]
pub struct Work(Arc<Mutex<Running>>);

#[derive(Default)]
struct Running {
    last: u64,
    all: HashMap<u64, Reconcile>,
}

struct Reconcile {
    what: String,
    moved: Arc<AtomicU64>,
}

/// The reconcile that has not moved for longest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stillest {
    /// Controller and key.
    pub what: String,
    /// When it moved last, on the monotonic clock.
    pub moved: Duration,
}

/// Removes its reconcile, however that ends.
struct Entry<'a> {
    work: &'a Work,
    id: u64,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        lock(&self.work.0).all.remove(&self.id);
    }
}

impl Work {
    /// Runs a reconcile and sees whether it moves.
    pub async fn run<F: Future>(&self, what: String, reconcile: F) -> F::Output {
        let moved = Arc::new(AtomicU64::new(millis(clock::now())));
        let id = {
            let mut running = lock(&self.0);
            running.last += 1;
            let id = running.last;
            running.all.insert(id, Reconcile { what, moved: moved.clone() });
            id
        };
        let _entry = Entry { work: self, id };
        MOVED.scope(moved, reconcile).await
    }

    /// The one that has not moved for longest.
    pub fn stillest(&self) -> Option<Stillest> {
        let running = lock(&self.0);
        let at = |reconcile: &Reconcile| reconcile.moved.load(Ordering::Relaxed);
        let stillest = running.all.values().min_by_key(|reconcile| at(reconcile))?;
        Some(Stillest { what: stillest.what.clone(), moved: Duration::from_millis(at(stillest)) })
    }
}

/// What is known of a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything moves.
    Moves,
    /// Something may stand still: ask the API server whether it answers.
    Ask,
    /// Something stands still although the API server has answered all the time.
    StandsStill,
}

/// Judges. `answers` is for how long the API server has answered every question.
pub fn judge(stillest: Option<&Stillest>, answers: Option<Duration>, now: Now) -> Verdict {
    let Some(stillest) = stillest else { return Verdict::Moves };
    if now.mono.saturating_sub(stillest.moved) < SUSPECT {
        return Verdict::Moves;
    }
    // After an outage what it held up has its time again.
    match answers.map(|since| now.mono.saturating_sub(since.max(stillest.moved))) {
        Some(both) if both >= STILL => Verdict::StandsStill,
        _ => Verdict::Ask,
    }
}

/// Resolves when work stands still, with the words for it. Asks the API server only while something is suspect.
pub async fn stands_still(work: &Work, client: &Client) -> String {
    let mut answers = None;
    loop {
        tokio::time::sleep(PERIOD).await;
        let (stillest, now) = (work.stillest(), clock::now());
        match (judge(stillest.as_ref(), answers, now), stillest) {
            (Verdict::Moves, _) => answers = None,
            (Verdict::StandsStill, Some(stillest)) => {
                let minutes = now.mono.saturating_sub(stillest.moved).as_secs() / 60;
                return format!("{} has stood still for {minutes} min while the API server answers", stillest.what);
            }
            (Verdict::Ask | Verdict::StandsStill, _) => {
                let answered = tokio::time::timeout(ANSWER, client.apiserver_version()).await;
                answers = match answered {
                    // An error of its own is an answer too, but no good one: reconciles do not get on with it.
                    Ok(Ok(_)) => answers.or(Some(now.mono)),
                    Ok(Err(_)) | Err(_) => None,
                };
            }
        }
    }
}

/// What `/healthz` says of it. Once work stands still it is never well again: only a new process helps.
#[derive(Clone, Default)]
pub struct Health(Arc<Mutex<Option<String>>>);

impl Health {
    /// What stands still, if anything does.
    pub fn problem(&self) -> Option<String> {
        lock(&self.0).clone()
    }

    /// Work stands still.
    pub fn fail(&self, why: String) {
        *lock(&self.0) = Some(why);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use axum::http::{Request, Response};
    use kube::client::Body;
    use tower::{BoxError, Layer};

    use super::*;
    use crate::runtime::client::Throttle;

    const MINUTE: u64 = 60;

    #[test]
    fn work_stands_still_only_while_the_api_server_answers() {
        let now = Now { wall: jiff::Timestamp::UNIX_EPOCH, mono: Duration::from_secs(100 * MINUTE) };
        let ago = |minutes: u64| Duration::from_secs((100 - minutes) * MINUTE);
        let moved = |minutes| Some(Stillest { what: "a".into(), moved: ago(minutes) });
        for (name, stillest, answers, want) in [
            ("nothing runs", None, Some(ago(90)), Verdict::Moves),
            ("it has just got an answer", moved(0), None, Verdict::Moves),
            ("it is slow", moved(2), None, Verdict::Ask),
            ("it is slow, and the API server answers", moved(9), Some(ago(8)), Verdict::Ask),
            ("it waits for an API server that is away", moved(60), None, Verdict::Ask),
            ("the API server has been back for a moment", moved(60), Some(ago(1)), Verdict::Ask),
            ("and for long", moved(60), Some(ago(10)), Verdict::StandsStill),
            ("it moved after the API server came back", moved(9), Some(ago(30)), Verdict::Ask),
            ("it stands still", moved(11), Some(ago(30)), Verdict::StandsStill),
        ] {
            assert_eq!(judge(stillest.as_ref(), answers, now), want, "{name}");
        }
    }

    /// An API server that answers, or does not.
    fn client(answers: &Arc<AtomicBool>) -> Client {
        let answers = answers.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            let answers = answers.load(Ordering::SeqCst);
            async move {
                if !answers {
                    std::future::pending::<()>().await;
                }
                let version = br#"{"major":"1","minor":"33","gitVersion":"v1.33.0","gitCommit":"","gitTreeState":"",
                    "buildDate":"","goVersion":"","compiler":"","platform":""}"#;
                Ok::<_, BoxError>(Response::new(Body::from(version.to_vec())))
            }
        });
        Client::new(Throttle::new(0.0, 0).layer(service), "default")
    }

    async fn minutes_until_still(work: &Work, client: &Client, limit: u64) -> Option<(u64, String)> {
        let begin = tokio::time::Instant::now();
        let still = tokio::time::timeout(Duration::from_secs(limit * MINUTE), stands_still(work, client)).await.ok()?;
        Some((begin.elapsed().as_secs() / MINUTE, still))
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_waits_for_ever_is_noticed_and_an_outage_is_not_blamed_on_it() {
        let (work, answers) = (Work::default(), Arc::new(AtomicBool::new(false)));
        let client = client(&answers);
        let stuck = work.clone();
        let task =
            tokio::spawn(
                async move { stuck.run("cloneset-controller a/b".into(), std::future::pending::<()>()).await },
            );
        assert_eq!(minutes_until_still(&work, &client, 180).await, None, "the API server is away for three hours");
        answers.store(true, Ordering::SeqCst);
        let (minutes, why) = minutes_until_still(&work, &client, 60).await.unwrap();
        assert_eq!(minutes, 10);
        assert!(why.starts_with("cloneset-controller a/b has stood still for ") && why.contains("answers"), "{why}");
        task.abort();
        assert!(task.await.is_err() && work.stillest().is_none(), "what has ended does not stand still");
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_reconcile_that_gets_answers_moves() {
        let (work, answers) = (Work::default(), Arc::new(AtomicBool::new(true)));
        let client = client(&answers);
        let (busy, asked) = (work.clone(), client.clone());
        let task = tokio::spawn(async move {
            let long = async {
                loop {
                    tokio::time::sleep(Duration::from_secs(5 * MINUTE)).await;
                    asked.apiserver_version().await.unwrap();
                }
            };
            busy.run("a".into(), long).await
        });
        assert_eq!(minutes_until_still(&work, &client, 300).await, None);
        task.abort();
    }
}
