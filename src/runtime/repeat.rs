//! Repeats requests that the API server cannot serve at the moment, which it answers with 429, 503 or 504. Each attempt waits for
//! the rate limit and asks the fence, as the first one did. The retries of the library are below both: it could send a write of
//! a former leader for up to a minute.
//!
//! Two of these codes are final answers. 429 to an eviction: a budget does not allow it now. 504 to a write: it may have been
//! done, and the caller has to know that. A second attempt would find it done, or would be refused because of it.

use std::time::Duration;

use axum::http::{Method, Request, Response, StatusCode, header::RETRY_AFTER};
use kube::{Client, client::Body};

use super::{clock, retry::jitter};
use crate::k8s::time::doubled;

/// The first pause; it doubles with each attempt. Up to twice as much is added by chance.
const FIRST: Duration = Duration::from_millis(5);
/// The longest of these pauses, where the API server asks for none.
const LONGEST: Duration = Duration::from_secs(10);
/// The longest pause before a Lease is asked for again, whatever the API server asks for: a leader that waits for longer has
/// lost it.
const LONGEST_OF_LEASE: Duration = Duration::from_secs(1);
/// No attempt is begun later than this.
const LIMIT: Duration = Duration::from_secs(60);
/// Attempts after the first one.
const MOST: u32 = 15;

/// The same client, which sends again what was not served.
pub(super) fn repeating(client: &Client) -> Client {
    let inner = client.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let inner = inner.clone();
        async move { send(&inner, request).await }
    });
    Client::new(service, client.default_namespace())
}

async fn send(client: &Client, mut request: Request<Body>) -> kube::Result<Response<Body>> {
    let begun = clock::now().mono;
    let asks = Asks::of(&request);
    let is_lease = request.uri().path().starts_with("/apis/coordination.k8s.io/");
    let longest = if is_lease { LONGEST_OF_LEASE } else { Duration::MAX };
    for times in 0..MOST {
        let again = copy(&request);
        let answer = client.send(request).await?;
        let (Some(again), true) = (again, asks.may_ask_again(answer.status())) else { return Ok(answer) };
        let pause = doubled(FIRST, times, LONGEST);
        let pause = asked_for(&answer).unwrap_or_default().max(pause + jitter(pause * 2)).min(longest);
        if clock::now().mono.saturating_sub(begun).saturating_add(pause) >= LIMIT {
            return Ok(answer);
        }
        drop(answer);
        tokio::time::sleep(pause).await;
        request = again;
    }
    client.send(request).await
}

/// What a request is, as far as that decides which codes are final answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    Read,
    Write,
    Eviction,
}

impl Asks {
    fn of<B>(request: &Request<B>) -> Self {
        if *request.method() == Method::GET {
            Self::Read
        } else if request.uri().path().ends_with("/eviction") {
            Self::Eviction
        } else {
            Self::Write
        }
    }

    /// Whether another attempt may be served.
    fn may_ask_again(self, status: StatusCode) -> bool {
        match status.as_u16() {
            429 => self != Self::Eviction,
            503 => true,
            504 => self == Self::Read,
            _ => false,
        }
    }
}

/// The pause that the API server asks for.
fn asked_for(answer: &Response<Body>) -> Option<Duration> {
    let seconds = answer.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// The same request. None: its body can be sent once.
fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().try_clone()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        sync::{Arc, Mutex},
    };

    use tower::Layer;

    use super::*;
    use crate::runtime::{client::Throttle, ending::Ending, fence::Fence, lock};

    const POD: &str = "/api/v1/namespaces/a/pods/web-0";
    const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/a/leases/b";

    /// What an API server answers: a code, and the pause that it asks for.
    type Answer = (u16, Option<u64>);

    /// An API server with these answers, then 200; and when it was asked.
    fn server(answers: Vec<Answer>) -> (Client, Arc<Mutex<Vec<Duration>>>) {
        let (asked, answers) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(VecDeque::from(answers))));
        let seen = asked.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (seen, answers) = (seen.clone(), answers.clone());
            async move {
                let body = request.into_body().collect_bytes().await?;
                assert_eq!(&body[..], b"{}", "each attempt has the whole body");
                lock(&seen).push(clock::now().mono);
                let (code, after) = lock(&answers).pop_front().unwrap_or((200, None));
                let mut answer = Response::builder().status(code);
                if let Some(after) = after {
                    answer = answer.header(RETRY_AFTER, after);
                }
                answer.body(Body::from(b"{}".to_vec())).map_err(kube::Error::HttpError)
            }
        });
        (repeating(&Client::new(Throttle::new(0.0, 1).layer(service), "default")), asked)
    }

    async fn ask(client: &Client, method: &Method, path: &str) -> kube::Result<u16> {
        let request = Request::builder().method(method).uri(path).body(Body::from(b"{}".to_vec())).unwrap();
        client.send(request).await.map(|answer| answer.status().as_u16())
    }

    async fn post(client: &Client, path: &str) -> kube::Result<u16> {
        ask(client, &Method::POST, path).await
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_served_just_now_is_sent_again_after_the_pause_that_is_asked_for() {
        let (client, asked) = server(vec![(429, Some(2)), (503, None), (429, None)]);
        assert_eq!(post(&client, POD).await.unwrap(), 200);
        let asked = lock(&asked).clone();
        assert_eq!(asked.len(), 4);
        let pauses: Vec<Duration> = asked.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(pauses[0] >= Duration::from_secs(2) && pauses[1] < Duration::from_secs(1), "{pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn every_other_answer_is_the_answer_and_so_is_one_after_which_asking_again_is_wrong() {
        let eviction = format!("{POD}/eviction");
        let eviction = eviction.as_str();
        let (post, get) = (&Method::POST, &Method::GET);
        for (code, method, path, times) in [
            (201, post, POD, 1),
            (409, post, POD, 1),
            (500, post, POD, 1),
            (429, post, POD, 2),
            (503, post, POD, 2),
            (504, post, POD, 1),
            (429, get, POD, 2),
            (504, get, POD, 2),
            (429, post, eviction, 1),
            (409, post, eviction, 1),
            (503, post, eviction, 2),
            (504, post, eviction, 1),
        ] {
            let (client, asked) = server(vec![(code, None)]);
            let answer = ask(&client, method, path).await.unwrap();
            let want = (if times == 1 { code } else { 200 }, times);
            assert_eq!((answer, lock(&asked).len()), want, "{code} {method} {path}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_stays_away_is_not_asked_for_ever() {
        for (after, most) in [(None, 16), (Some(7), 9), (Some(3600), 1)] {
            let (client, asked) = server(vec![(503, after); 100]);
            let begun = clock::now().mono;
            assert_eq!(post(&client, POD).await.unwrap(), 503);
            assert!(clock::now().mono - begun <= LIMIT && lock(&asked).len() <= most, "{after:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_asked_for_again_before_it_is_lost() {
        let (client, asked) = server(vec![(429, Some(32)); 4]);
        let begun = clock::now().mono;
        assert_eq!(ask(&client, &Method::PUT, LEASE).await.unwrap(), 200);
        assert!(clock::now().mono - begun < 5 * LONGEST_OF_LEASE);
        assert_eq!(lock(&asked).len(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_longer_than_a_clock_can_hold_is_no_pause() {
        let (client, asked) = server(vec![(503, Some(2)), (503, Some(u64::MAX))]);
        assert_eq!(post(&client, POD).await.unwrap(), 503);
        assert_eq!(lock(&asked).len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_is_not_sent_again_once_the_lease_may_be_lost() {
        let (client, asked) = server(vec![(429, Some(10))]);
        let fence = Fence::default();
        fence.open_until(clock::now().mono + Duration::from_secs(5));
        let client = fence.around(&client, &Ending::default());
        let error = post(&client, POD).await.unwrap_err().to_string();
        assert!(error.contains("the Lease is not ours"), "{error}");
        assert_eq!(lock(&asked).len(), 1);
    }
}
