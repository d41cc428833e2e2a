//! Answers of the API server that go silent: a connection that is half open, or an API server that hangs, sends nothing
//! and ends nothing.
//!
//! Watches are ended by us when nothing has come for too long, and at the latest some seconds after the API server should
//! have ended them itself; whoever follows them opens them again from where they were. Other answers fail.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::http::Uri;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use tower::BoxError;

/// Between two pieces of an answer that is no watch.
const ANSWER: Duration = Duration::from_secs(60);
/// Between two events of a watch. API servers send bookmarks about every minute: two have not come. Some send none while a
/// kind never changes; then the watch is opened again for nothing, which costs one request.
const WATCH: Duration = Duration::from_secs(150);
/// So much later than the API server should have ended a watch, we do.
const GRACE: Duration = Duration::from_secs(5);

/// How long an answer may take once it has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Without a byte.
    silence: Duration,
    /// In all; no limit for what is no watch.
    whole: Option<Duration>,
    is_watch: bool,
}

impl Limits {
    /// Those of the answer to a request for this address.
    pub(super) fn of(uri: &Uri) -> Self {
        if !is_watch(uri) {
            return Self { silence: ANSWER, whole: None, is_watch: false };
        }
        let asked = parameter(uri, "timeoutSeconds").and_then(|seconds| seconds.parse().ok());
        Self { silence: WATCH, whole: asked.map(|seconds| Duration::from_secs(seconds) + GRACE), is_watch: true }
    }
}

/// Whether a request for this address is a watch.
pub(super) fn is_watch(uri: &Uri) -> bool {
    matches!(parameter(uri, "watch"), Some("true" | "1"))
}

fn parameter<'a>(uri: &'a Uri, name: &str) -> Option<&'a str> {
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next_back()
}

/// A body that does not outlast its limits.
pub(super) struct Limited<B> {
    /// None: it has ended, and its connection is closed.
    body: Option<Pin<Box<B>>>,
    limits: Limits,
    end: Option<Instant>,
    /// Since when somebody waits for the next piece. Time in which nobody asks for it is no silence.
    waiting: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl<B> fmt::Debug for Limited<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limited").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl<B> Limited<B> {
    pub(super) fn new(body: B, limits: Limits) -> Self {
        let timer = Box::pin(tokio::time::sleep(limits.silence));
        let end = limits.whole.map(|whole| Instant::now() + whole);
        Self { body: Some(Box::pin(body)), limits, end, waiting: None, timer }
    }
}

impl<B> Body for Limited<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        if let Poll::Ready(frame) = body.as_mut().poll_frame(context) {
            this.waiting = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let silent = *this.waiting.get_or_insert_with(Instant::now) + this.limits.silence;
        let deadline = this.end.map_or(silent, |end| end.min(silent));
        // The timer is set anew when it has run out, not with each frame.
        loop {
            ready!(this.timer.as_mut().poll(context));
            if deadline <= Instant::now() {
                break;
            }
            this.timer.as_mut().reset(deadline);
        }
        this.body = None;
        if this.limits.is_watch {
            tracing::debug!("a watch has gone silent, opening it again");
            return Poll::Ready(None);
        }
        let message = format!("the answer has stopped: nothing came for {} s", this.limits.silence.as_secs());
        Poll::Ready(Some(Err(message.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            // We may end a watch earlier.
            Some(body) if !self.limits.is_watch => body.size_hint(),
            _ => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::http::{Request, Response};
    use futures::{StreamExt, stream};
    use http_body_util::{BodyExt, StreamBody};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Api, Client, client::Body as KubeBody, runtime::watcher::Config};
    use serde_json::json;
    use tower::Layer;

    use super::*;
    use crate::runtime::{
        client::Throttle,
        fake_api,
        watches::{self, ObjectKey, Store},
    };

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_watch_gets_the_time_it_asked_for_and_some_seconds() {
        let watch = |whole| Limits { silence: WATCH, whole, is_watch: true };
        let answer = Limits { silence: ANSWER, whole: None, is_watch: false };
        for (uri, want) in [
            ("/api/v1/pods?&watch=true&timeoutSeconds=290&allowWatchBookmarks=true", watch(Some(295 * SECOND))),
            ("/api/v1/pods?watch=1", watch(None)),
            ("/api/v1/pods?watch=true&timeoutSeconds=soon", watch(None)),
            ("/api/v1/pods?watch=false&timeoutSeconds=290", answer),
            ("/api/v1/pods?fieldSelector=metadata.name%3Dwatch", answer),
            ("/api/v1/pods", answer),
        ] {
            assert_eq!(Limits::of(&uri.parse().unwrap()), want, "{uri}");
        }
    }

    /// A body that says a word at each of these seconds and then hangs.
    fn words(at: &[u64]) -> impl Body<Data = Bytes, Error = BoxError> + Send + Unpin + 'static {
        let begin = Instant::now();
        let words = stream::iter(at.to_vec()).then(move |second| async move {
            tokio::time::sleep_until(begin + Duration::from_secs(second)).await;
            Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"word")))
        });
        StreamBody::new(words.chain(stream::pending()).boxed())
    }

    /// How many words came, after how many seconds it ended, and with which error.
    async fn read(at: &[u64], uri: &str) -> (usize, u64, Option<String>) {
        let begin = Instant::now();
        let mut body = Limited::new(words(at), Limits::of(&uri.parse().unwrap()));
        let mut count = 0;
        loop {
            match body.frame().await {
                Some(Ok(_)) => count += 1,
                Some(Err(error)) => return (count, begin.elapsed().as_secs(), Some(error.to_string())),
                None => return (count, begin.elapsed().as_secs(), None),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_a_watch_and_fails_everything_else() {
        let watch = "/api?watch=true&timeoutSeconds=290";
        assert_eq!(read(&[], watch).await, (0, 150, None));
        assert_eq!(read(&[100, 200], watch).await, (2, 295, None), "it has lasted for longer than was asked for");
        assert_eq!(read(&[20], watch).await, (1, 170, None));
        let stopped = Some("the answer has stopped: nothing came for 60 s".to_owned());
        assert_eq!(read(&[50, 100], "/api").await, (2, 160, stopped));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_asked_for_is_not_silent() {
        let mut body = Limited::new(words(&[0, 500]), Limits::of(&"/api".parse().unwrap()));
        assert!(body.frame().await.unwrap().is_ok());
        tokio::time::sleep(450 * SECOND).await;
        assert!(body.frame().await.unwrap().is_ok(), "the reader was busy with what it had");
    }

    /// What the server says to each request in turn; a body without an end hangs.
    async fn served(replies: Vec<(&str, bool)>) -> (Arc<Store<ConfigMap>>, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let replies: Vec<(String, bool)> = replies.into_iter().map(|(text, ends)| (text.to_owned(), ends)).collect();
        let replies = Arc::new(Mutex::new(replies.into_iter()));
        let log = asked.clone();
        let service = tower::service_fn(move |request: Request<KubeBody>| {
            let version = request.uri().query().unwrap_or_default().split("resourceVersion=").nth(1).map(str::to_owned);
            log.lock().unwrap().push(version.unwrap_or_else(|| "list".into()));
            let reply = replies.lock().unwrap().next();
            async move {
                let Some((text, ends)) = reply else { return std::future::pending().await };
                let frame = stream::iter([Ok::<_, BoxError>(Frame::data(Bytes::from(text)))]);
                let body = if ends { frame.boxed() } else { frame.chain(stream::pending()).boxed() };
                Response::builder().body(StreamBody::new(body)).map_err(BoxError::from)
            }
        });
        let client = Client::new(Throttle::new(0.0, 0).layer(service), "default");
        let store = Store::new(None);
        let follow = watches::watch(Api::all(client), Config::default(), store.clone(), |_| {});
        let _ = tokio::time::timeout(1000 * SECOND, follow).await;
        (store, asked)
    }

    fn list(version: &str) -> String {
        json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": []})
            .to_string()
    }

    fn added(name: &str, version: &str) -> String {
        let object = json!({"kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "a", "resourceVersion": version}});
        fake_api::event("ADDED", &object)
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_on_a_half_open_connection_is_opened_again_where_it_was() {
        let (store, asked) =
            served(vec![(&list("7"), true), (&added("x", "8"), false), (&added("y", "9"), false)]).await;
        let names = [ObjectKey::new("a", "x"), ObjectKey::new("a", "y")];
        assert!(names.iter().all(|name| store.get(name).is_some()), "what happened meanwhile is seen");
        assert_eq!(asked.lock().unwrap()[..4], ["list", "7", "8", "9"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_hangs_is_asked_for_again() {
        let (store, asked) = served(vec![(&list("7")[..20], false), (&list("8"), true)]).await;
        assert!(store.is_synced());
        assert_eq!(asked.lock().unwrap()[..3], ["list", "list", "8"]);
    }
}
