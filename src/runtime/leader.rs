//! Leader election on a Lease: at most one process acts.
//!
//! Times in a Lease are other machines' clocks, so they are never compared with ours: a Lease is stale when *we* have
//! not seen it change for its duration. The holder gives up before that (`renew_deadline` < `lease_duration`) and is a
//! candidate again: nothing that was begun in one term of leadership is written in the next (`fence`). Its process goes
//! on: were it to end, an outage of the API server would restart every manager.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use tokio::sync::watch;

use super::{
    clock,
    fence::Fence,
    retry::jitter,
    shutdown::{self, Shutdown},
};
use crate::k8s::time::Now;

/// The durations of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// So long after the last change of the Lease others may take it.
    pub lease_duration: Duration,
    /// So long after its last renewal the holder gives up.
    pub renew_deadline: Duration,
    /// Between two attempts.
    pub retry_period: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { lease_duration: seconds(15), renew_deadline: seconds(10), retry_period: seconds(2) }
    }
}

impl Timing {
    /// Checks that the holder gives up before others take over.
    ///
    /// # Errors
    /// Naming both flags.
    pub fn validate(&self) -> Result<(), LeaderError> {
        if self.lease_duration <= self.renew_deadline || self.lease_duration < Duration::from_secs(1) {
            return Err(LeaderError::Timing("leader-election-lease-duration", "leader-election-renew-deadline"));
        }
        if self.renew_deadline <= self.retry_period.mul_f32(1.2) || self.retry_period.is_zero() {
            return Err(LeaderError::Timing("leader-election-renew-deadline", "1.2 * leader-election-retry-period"));
        }
        Ok(())
    }
}

/// Why there is no election, or why a term of leadership is over.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LeaderError {
    /// The durations make no sense.
    #[error("{0} must be greater than {1}, and neither may be zero")]
    Timing(&'static str, &'static str),
    /// The holder could not renew.
    #[error("leadership lost: the Lease was not renewed within {0:?}")]
    NotRenewed(Duration),
    /// Somebody else has the Lease.
    #[error("leadership lost: {0:?} has taken the Lease")]
    Taken(String),
}

/// What to do about the Lease.
#[derive(Debug, PartialEq, Eq)]
pub enum LeaseStep {
    /// It is free: write our name into it.
    Acquire,
    /// It is ours: write a new time into it.
    Renew,
    /// It is somebody else's and alive.
    Wait,
    /// It was ours.
    Lost(LeaderError),
}

/// A Lease, and since when it has looked like this to us.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// What it says.
    pub spec: LeaseSpec,
    /// Since when, on our monotonic clock.
    pub since: Duration,
}

impl Observation {
    /// A new look. What has not changed keeps its time.
    pub fn next(previous: Option<&Self>, spec: LeaseSpec, now: Now) -> Self {
        match previous {
            Some(previous) if previous.spec == spec => previous.clone(),
            _ => Self { spec, since: now.mono },
        }
    }
}

/// Decides. `renewed` is when our last successful write was begun, if we hold the Lease.
pub fn decide(me: &str, observed: &Observation, renewed: Option<Duration>, timing: &Timing, now: Now) -> LeaseStep {
    let holder = observed.spec.holder_identity.as_deref().unwrap_or_default();
    if let Some(renewed) = renewed {
        return if now.mono.saturating_sub(renewed) >= timing.renew_deadline {
            LeaseStep::Lost(LeaderError::NotRenewed(timing.renew_deadline))
        } else if holder == me {
            LeaseStep::Renew
        } else {
            LeaseStep::Lost(LeaderError::Taken(holder.to_owned()))
        };
    }
    let duration = match observed.spec.lease_duration_seconds {
        Some(seconds @ 1..) => Duration::from_secs(seconds.unsigned_abs().into()),
        _ => timing.lease_duration,
    };
    let stale = now.mono.saturating_sub(observed.since) > duration;
    // Our own name while we do not lead: a write of ours arrived whose answer did not.
    if holder.is_empty() || holder == me || stale { LeaseStep::Acquire } else { LeaseStep::Wait }
}

/// The Lease with us as its holder.
fn held(me: &str, mut spec: LeaseSpec, timing: &Timing, wall: Timestamp) -> LeaseSpec {
    if spec.holder_identity.as_deref() != Some(me) {
        spec.holder_identity = Some(me.to_owned());
        spec.acquire_time = Some(MicroTime(wall));
        spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
    }
    spec.lease_duration_seconds = Some(timing.lease_duration.as_secs().try_into().unwrap_or(i32::MAX));
    spec.renew_time = Some(MicroTime(wall));
    spec
}

/// The Lease without a holder: whoever sees it next may take it at once.
fn released(mut spec: LeaseSpec, wall: Timestamp) -> LeaseSpec {
    spec.holder_identity = Some(String::new());
    spec.lease_duration_seconds = Some(1);
    spec.renew_time = Some(MicroTime(wall));
    spec
}

/// Takes part in an election.
pub struct Elector {
    api: Api<Lease>,
    name: String,
    me: String,
    timing: Timing,
    clock: fn() -> Now,
    lease: Option<Lease>,
    observed: Option<Observation>,
    renewed: Option<Duration>,
    fence: Fence,
}

/// Hands out the fence of our term, while the Lease is ours.
pub type Term = watch::Sender<Option<Fence>>;

impl Elector {
    /// A candidate called `me`, which has to differ from every other's name. `fence` is open while it leads.
    pub fn new(client: Client, namespace: &str, name: &str, me: String, timing: Timing, fence: Fence) -> Self {
        let api = Api::namespaced(client, namespace);
        let name = name.to_owned();
        Self { api, name, me, timing, clock: clock::now, lease: None, observed: None, renewed: None, fence }
    }

    /// Takes part until `stop`; `term` holds a fence while the Lease is ours, a new one for each term. Releases the Lease
    /// at the end.
    ///
    /// Let everything that acts as the leader end before `stop`.
    pub async fn run(mut self, term: Term, stop: Shutdown) {
        let stopped = shutdown::requested(stop);
        tokio::pin!(stopped);
        loop {
            // Half of what is left: a dead connection leaves time for another attempt, on a new one.
            let limit = (self.timing.renew_deadline / 2).min(self.time_left());
            let attempt = tokio::select! {
                () = &mut stopped => break,
                attempt = tokio::time::timeout(limit, self.attempt()) => attempt,
            };
            match attempt {
                Ok(Ok(())) => {}
                Ok(Err(Failed::Lost(error))) => self.lose(&term, &error),
                Ok(Err(Failed::Api(error))) => {
                    tracing::warn!(lease = self.name, error = %error, "election: the Lease cannot be read or written");
                    self.lease = None;
                }
                Err(_) => {
                    tracing::warn!(lease = self.name, "election: no answer from the API server");
                    self.lease = None;
                }
            }
            if self.renewed.is_some() && term.borrow().is_none() {
                tracing::info!(lease = self.name, identity = self.me, "leading");
                term.send_replace(Some(self.fence.term()));
            }
            let pause = match self.renewed {
                Some(_) => self.timing.retry_period.min(self.time_left()),
                None => self.timing.retry_period + jitter(self.timing.retry_period / 5),
            };
            tokio::select! {
                () = &mut stopped => break,
                () = tokio::time::sleep(pause) => {}
            }
            if let Some(renewed) = self.renewed
                && (self.clock)().mono.saturating_sub(renewed) >= self.timing.renew_deadline
            {
                self.lose(&term, &LeaderError::NotRenewed(self.timing.renew_deadline));
            }
        }
        self.release().await;
    }

    /// The term is over: a candidate again, at the earliest with the next attempt.
    fn lose(&mut self, term: &Term, why: &LeaderError) {
        tracing::warn!(lease = self.name, error = %why, "not leading any longer, standing by");
        self.fence.open_until(Duration::ZERO);
        if let Some(fence) = term.send_replace(None) {
            fence.end();
        }
        (self.renewed, self.lease) = (None, None);
    }

    /// How long the next attempt may take.
    fn time_left(&self) -> Duration {
        match self.renewed {
            Some(renewed) => (renewed + self.timing.renew_deadline).saturating_sub((self.clock)().mono),
            None => self.timing.renew_deadline,
        }
    }

    async fn attempt(&mut self) -> Result<(), Failed> {
        // The holder writes without reading first: a conflict shows that somebody else has written.
        let lease = match self.lease.take().filter(|_| self.renewed.is_some()) {
            Some(lease) => lease,
            None => self.read().await?,
        };
        let now = (self.clock)();
        let spec = lease.spec.clone().unwrap_or_default();
        let observed = Observation::next(self.observed.as_ref(), spec.clone(), now);
        let step = decide(&self.me, &observed, self.renewed, &self.timing, now);
        let holder = observed.spec.holder_identity.clone().unwrap_or_default();
        let changed = self.observed.as_ref().and_then(|o| o.spec.holder_identity.as_ref()) != Some(&holder);
        self.observed = Some(observed);
        match step {
            LeaseStep::Lost(error) => Err(Failed::Lost(error)),
            LeaseStep::Wait => {
                if changed {
                    tracing::info!(lease = self.name, %holder, "somebody else leads, standing by");
                }
                Ok(())
            }
            LeaseStep::Acquire | LeaseStep::Renew => {
                let spec = held(&self.me, spec, &self.timing, now.wall);
                match self.write(&lease, spec).await {
                    Ok(written) => {
                        let spec = written.spec.clone().unwrap_or_default();
                        self.observed = Some(Observation::next(self.observed.as_ref(), spec, now));
                        self.lease = Some(written);
                        // Counted from before the write: others count from when they see it, which is later.
                        self.renewed = Some(now.mono);
                        self.fence.open_until(now.mono + self.timing.renew_deadline);
                        Ok(())
                    }
                    // Somebody was quicker; the next attempt reads who.
                    Err(kube::Error::Api(status)) if status.is_conflict() => Ok(()),
                    Err(error) => Err(error.into()),
                }
            }
        }
    }

    async fn read(&self) -> kube::Result<Lease> {
        match self.api.get(&self.name).await {
            // The manifests ship it. Elsewhere (a laptop) we may be allowed to make it.
            Err(kube::Error::Api(status)) if status.is_not_found() => {
                let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
                self.api.create(&PostParams::default(), &Lease { metadata, spec: None }).await
            }
            other => other,
        }
    }

    async fn write(&self, lease: &Lease, spec: LeaseSpec) -> kube::Result<Lease> {
        let lease = Lease { metadata: lease.metadata.clone(), spec: Some(spec) };
        self.api.replace(&self.name, &PostParams::default(), &lease).await
    }

    async fn release(&mut self) {
        if self.renewed.is_none() {
            return;
        }
        self.fence.open_until(Duration::ZERO);
        let limit = self.time_left().min(Duration::from_secs(3));
        let release = async {
            let lease = match self.lease.take() {
                Some(lease) => lease,
                None => self.read().await?,
            };
            let spec = lease.spec.clone().unwrap_or_default();
            if spec.holder_identity.as_deref() == Some(self.me.as_str()) {
                self.write(&lease, released(spec, (self.clock)().wall)).await?;
            }
            Ok::<_, kube::Error>(())
        };
        match tokio::time::timeout(limit, release).await {
            Ok(Ok(())) => tracing::info!(lease = self.name, "leadership released"),
            Ok(Err(error)) => tracing::warn!(%error, "the Lease was not released, the next leader has to wait for it"),
            Err(_) => tracing::warn!("the Lease was not released in time, the next leader has to wait for it"),
        }
    }
}

enum Failed {
    Lost(LeaderError),
    Api(kube::Error),
}

impl From<kube::Error> for Failed {
    fn from(error: kube::Error) -> Self {
        Self::Api(error)
    }
}

/// A name for this process that no other has.
pub fn identity() -> String {
    let file = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = std::env::var("HOSTNAME").ok().or_else(file).unwrap_or_else(|| "unknown".into());
    let nanos = clock::now().wall.as_nanosecond() as u64;
    format!("{}_{nanos:x}-{}", host.trim(), std::process::id())
}

/// Whether the holder of a Lease is a process of ours, by the form of its [`identity`]. Other programs end theirs with a
/// UUID, as client-go does.
pub fn is_identity(holder: &str) -> bool {
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let suffix = holder.rsplit_once('_').and_then(|(_, suffix)| suffix.split_once('-'));
    suffix.is_some_and(|(nanos, process)| is_hex(nanos) && is_number(process))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, LazyLock, Mutex};

    use axum::http::{Method, Request, Response, StatusCode};
    use http_body_util::BodyExt;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: f64) -> Now {
        Now { wall: "2026-01-01T00:00:00Z".parse().unwrap(), mono: Duration::from_secs_f64(seconds) }
    }
    fn spec(holder: &str, renewed: &str) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(renewed.parse().unwrap())),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn decisions() {
        let timing = Timing::default();
        let (old, odd) = ("2020-01-01T00:00:00Z", "2030-01-01T00:00:00Z");
        let seen = |spec: LeaseSpec| Observation { spec, since: 100 * SECOND };
        let shipped = seen(LeaseSpec::default());
        let (mine, other) = (seen(spec("me", old)), seen(spec("other", old)));
        let released = seen(released(spec("other", old), at(0.0).wall));
        let lost = |e| LeaseStep::Lost(e);
        for (name, observed, renewed, now, want) in [
            ("shipped empty", &shipped, None, 100.0, LeaseStep::Acquire),
            ("released", &released, None, 100.0, LeaseStep::Acquire),
            ("alive", &other, None, 114.9, LeaseStep::Wait),
            ("its times do not matter", &seen(spec("other", odd)), None, 116.0, LeaseStep::Acquire),
            ("unchanged for its duration", &other, None, 115.1, LeaseStep::Acquire),
            ("our write whose answer was lost", &mine, None, 100.0, LeaseStep::Acquire),
            ("ours", &mine, Some(100 * SECOND), 102.0, LeaseStep::Renew),
            ("ours, too late", &mine, Some(100 * SECOND), 110.0, lost(LeaderError::NotRenewed(10 * SECOND))),
            ("taken", &other, Some(100 * SECOND), 102.0, lost(LeaderError::Taken("other".into()))),
        ] {
            assert_eq!(decide("me", observed, renewed, &timing, at(now)), want, "{name}");
        }
    }

    #[test]
    fn a_lease_that_changes_stays_alive_whatever_its_times_say() {
        let first = Observation::next(None, spec("other", "2020-01-01T00:00:00Z"), at(100.0));
        let same = Observation::next(Some(&first), spec("other", "2020-01-01T00:00:00Z"), at(110.0));
        assert_eq!(same.since, 100 * SECOND);
        let moved = Observation::next(Some(&same), spec("other", "2019-01-01T00:00:00Z"), at(112.0));
        assert_eq!(moved.since, 112 * SECOND);
        assert_eq!(decide("me", &moved, None, &Timing::default(), at(120.0)), LeaseStep::Wait);
    }

    #[test]
    fn our_own_holders_are_distinguished_from_those_of_other_programs() {
        assert!(is_identity(&identity()));
        for (holder, is_ours) in [
            ("a_b_18a1f3c2b4d5e6f7-1", true),
            ("a_5a1b2c3d-1111-2222-3333-444455556666", false),
            ("a_18a1f3c2b4d5e6f7", false),
            ("18a1f3c2b4d5e6f7-1", false),
            ("a_-1", false),
            ("a_1-", false),
            ("intruder", false),
            ("", false),
        ] {
            assert_eq!(is_identity(holder), is_ours, "{holder:?}");
        }
    }

    #[test]
    fn a_change_of_holder_is_counted() {
        let wall = at(0.0).wall;
        let first = held("a", LeaseSpec::default(), &Timing::default(), wall);
        assert_eq!((first.lease_transitions, first.lease_duration_seconds), (Some(1), Some(15)));
        let renewed = held("a", first.clone(), &Timing::default(), wall + SECOND);
        assert_eq!((renewed.lease_transitions, &renewed.acquire_time), (Some(1), &first.acquire_time));
        let next = held("b", released(renewed, wall), &Timing::default(), wall);
        assert_eq!(next.lease_transitions, Some(2));
    }

    #[test]
    fn timings_that_make_no_sense_are_refused() {
        let with = |lease: u64, renew: u64, retry: u64| {
            let seconds = Duration::from_secs;
            Timing { lease_duration: seconds(lease), renew_deadline: seconds(renew), retry_period: seconds(retry) }
        };
        assert_eq!(Timing::default().validate(), Ok(()));
        assert!(with(10, 10, 2).validate().unwrap_err().to_string().starts_with("leader-election-lease-duration must"));
        assert!(with(15, 2, 2).validate().is_err() && with(15, 10, 0).validate().is_err());
    }

    /// An API server with one Lease, and a switch that makes it answer 500.
    #[derive(Default)]
    struct Server {
        lease: Value,
        version: u64,
        /// Requests from this user are refused, or `everybody`'s.
        broken_for: &'static str,
    }

    fn client(server: &Arc<Mutex<Server>>, user: &'static str) -> Client {
        let server = server.clone();
        let answer = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let mut server = server.lock().unwrap();
                let error = |code: u16, reason: &str| {
                    (
                        code,
                        json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason}),
                    )
                };
                let (code, answer) = if [user, "everybody"].contains(&server.broken_for) {
                    error(500, "InternalError")
                } else if parts.method == Method::GET && server.lease.is_null() {
                    error(404, "NotFound")
                } else if parts.method == Method::GET {
                    (200, server.lease.clone())
                } else {
                    let mut new: Value = serde_json::from_slice(&body).unwrap();
                    let stale = parts.method == Method::PUT
                        && new["metadata"]["resourceVersion"] != server.lease["metadata"]["resourceVersion"];
                    if stale {
                        error(409, "Conflict")
                    } else {
                        server.version += 1;
                        new["metadata"]["resourceVersion"] = server.version.to_string().into();
                        server.lease = new.clone();
                        (200, new)
                    }
                };
                let response = Response::builder().status(StatusCode::from_u16(code).unwrap());
                Ok::<_, std::convert::Infallible>(response.body(Body::from(answer.to_string().into_bytes())).unwrap())
            }
        });
        Client::new(answer, "default")
    }

    /// tokio's clock, which tests can stop.
    fn tokio_clock() -> Now {
        static BASE: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
        let elapsed = tokio::time::Instant::now().into_std().duration_since(*BASE);
        Now { wall: at(0.0).wall + elapsed, mono: SECOND + elapsed }
    }

    struct Candidate {
        term: watch::Receiver<Option<Fence>>,
        stop: watch::Sender<bool>,
        end: tokio::task::JoinHandle<()>,
    }

    impl Candidate {
        async fn leads(&mut self) -> Fence {
            self.term.wait_for(Option::is_some).await.unwrap().clone().unwrap()
        }
        fn is_leading(&self) -> bool {
            self.term.borrow().is_some()
        }
    }

    /// Whether a write would be sent now.
    fn may_write(fence: &Fence) -> bool {
        fence.is_open(tokio_clock())
    }

    fn candidate(server: &Arc<Mutex<Server>>, name: &'static str) -> Candidate {
        let (client, timing) = (client(server, name), Timing::default());
        let mut elector = Elector::new(client, "ns", "kruise-manager", name.into(), timing, Fence::default());
        elector.clock = tokio_clock;
        let (sender, term) = watch::channel(None);
        let (stop, stopped) = watch::channel(false);
        Candidate { term, stop, end: tokio::spawn(elector.run(sender, stopped)) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_graceful_stop_hands_over_at_the_next_look() {
        tokio_clock();
        let server = Arc::new(Mutex::new(Server::default()));
        let mut first = candidate(&server, "a");
        let fence = first.leads().await;
        let mut second = candidate(&server, "b");
        tokio::time::sleep(60 * SECOND).await;
        assert!(first.is_leading() && may_write(&fence) && !second.is_leading(), "the first renews");
        first.stop.send_replace(true);
        first.end.await.unwrap();
        assert!(!may_write(&fence));
        let handed_over = tokio::time::Instant::now();
        second.leads().await;
        assert!(handed_over.elapsed() < 3 * SECOND, "{:?}", handed_over.elapsed());
        assert_eq!(server.lock().unwrap().lease["spec"]["leaseTransitions"], 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_cannot_renew_stands_by_before_another_begins() {
        tokio_clock();
        let server = Arc::new(Mutex::new(Server::default()));
        let mut first = candidate(&server, "a");
        let fence = first.leads().await;
        let mut second = candidate(&server, "b");
        tokio::time::sleep(5 * SECOND).await;
        server.lock().unwrap().broken_for = "a";
        let broken = tokio::time::Instant::now();
        first.term.wait_for(Option::is_none).await.unwrap();
        assert!(broken.elapsed() <= 10 * SECOND, "{:?}", broken.elapsed());
        assert!(!may_write(&fence) && !second.is_leading());
        second.leads().await;
        assert!(broken.elapsed() > 10 * SECOND);
        server.lock().unwrap().broken_for = "";
        tokio::time::sleep(60 * SECOND).await;
        assert!(!first.is_leading() && !first.end.is_finished() && second.is_leading(), "it waits for its turn");
        second.stop.send_replace(true);
        let next = first.leads().await;
        assert!(may_write(&next) && !may_write(&fence), "what was begun in its first term stays unsent");
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_of_the_api_server_ends_no_candidate_and_one_leads_after_it() {
        tokio_clock();
        let server = Arc::new(Mutex::new(Server::default()));
        let mut first = candidate(&server, "a");
        let fence = first.leads().await;
        let all = [first, candidate(&server, "b")];
        server.lock().unwrap().broken_for = "everybody";
        tokio::time::sleep(3600 * SECOND).await;
        assert!(all.iter().all(|c| !c.end.is_finished() && !c.is_leading()), "nobody leads and nobody has ended");
        server.lock().unwrap().broken_for = "";
        tokio::time::sleep(30 * SECOND).await;
        assert_eq!(all.iter().filter(|c| c.is_leading()).count(), 1);
        assert!(!may_write(&fence));
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_whose_lease_was_taken_stands_by() {
        tokio_clock();
        let server = Arc::new(Mutex::new(Server::default()));
        let mut first = candidate(&server, "a");
        let fence = first.leads().await;
        {
            let mut server = server.lock().unwrap();
            server.version += 1;
            let version = server.version.to_string();
            server.lease["metadata"]["resourceVersion"] = version.into();
            server.lease["spec"]["holderIdentity"] = "intruder".into();
        }
        first.term.wait_for(Option::is_none).await.unwrap();
        assert!(!may_write(&fence) && !first.end.is_finished());
        assert_eq!(server.lock().unwrap().lease["spec"]["holderIdentity"], "intruder", "it is not taken back");
    }
}
