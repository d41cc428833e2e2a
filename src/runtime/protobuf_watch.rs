//! Lists and watches Pods and Nodes in protobuf.
//!
//! Watching them is what an idle cluster costs us and the API server. In protobuf what we do not read is passed over by
//! its length, and the API server has encoded every event anyway for its own controllers. kube-runtime's watcher, which
//! knows JSON alone, follows everything else; this one does the same by the same rules: a paged list, a watch from there
//! on, bookmarks, and a new list when the version is too old.

use std::{collections::VecDeque, io, time::Duration};

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use http::{HeaderValue, Request, Response, header};
use http_body_util::BodyExt;
use kube::{
    Api, Client, Resource,
    api::{ListParams, WatchParams},
    client::Body,
    core::Status,
    runtime::watcher::{self, Error, Event},
};
use prost::Message;
use tokio::time::Instant;
use tokio_util::{
    codec::{FramedRead, LengthDelimitedCodec},
    io::StreamReader,
};

use super::object_key::StoredObject;
use crate::k8s::protobuf::{self, InProtobuf, Malformed, v1};

/// Protobuf is wanted. JSON is accepted to notice where an answer does not come in protobuf.
const ACCEPT: HeaderValue = HeaderValue::from_static("application/vnd.kubernetes.protobuf, application/json");

/// A watch ends after so many seconds, and another follows. Where the API server does not end it, the client does
/// (`silence`).
const WATCH_SECONDS: u32 = 290;

/// A watch that ends earlier and has brought nothing has failed, whatever was answered: a proxy that closes every one of
/// them at once would be asked without a pause.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);

/// More than any object: etcd takes 1.5 MiB, and the API server 3 MiB of a request.
const LARGEST_EVENT: usize = 16 << 20;

/// All changes of the objects that the field selector matches, for ever, with what is kept of each; after an error it tries
/// again when it is polled. It ends when an answer is not in protobuf.
pub(super) fn events<W: Resource, K: InProtobuf + StoredObject + Send>(
    api: Api<W>,
    fields: Option<String>,
    page_size: u32,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send {
    let source = Source { path: api.resource_url().to_owned(), client: api.into_client(), fields, page_size };
    stream::unfold((source, WatchState::Empty), async |(source, mut state)| {
        loop {
            let WatchStep { event, next } = source.step::<K>(state).await;
            let next = next?;
            match event {
                Some(event) => return Some((event, (source, next))),
                None => state = next,
            }
        }
    })
}

struct Source {
    client: Client,
    /// Of the resource, with the namespace if there is one.
    path: String,
    /// Which objects, if not all.
    fields: Option<String>,
    page_size: u32,
}

enum WatchState {
    /// Nothing is known.
    Empty,
    /// A list is being read.
    Listing {
        page: VecDeque<Bytes>,
        next: Option<String>,
        version: Option<String>,
    },
    Listed {
        version: String,
    },
    Watching {
        version: String,
        frames: Frames,
        /// When it began, as long as it has brought nothing.
        empty_since: Option<Instant>,
    },
}

type Frames = stream::BoxStream<'static, io::Result<Bytes>>;

struct WatchStep<K> {
    event: Option<watcher::Result<Event<K>>>,
    /// None: the answer was not in protobuf.
    next: Option<WatchState>,
}

impl<K> WatchStep<K> {
    fn event(event: watcher::Result<Event<K>>, next: WatchState) -> Self {
        Self { event: Some(event), next: Some(next) }
    }
    fn silent(next: WatchState) -> Self {
        Self { event: None, next: Some(next) }
    }
    const fn not_protobuf() -> Self {
        Self { event: None, next: None }
    }
}

impl Source {
    async fn step<K: InProtobuf + StoredObject + Send>(&self, state: WatchState) -> WatchStep<K> {
        match state {
            WatchState::Empty => WatchStep::event(
                Ok(Event::Init),
                WatchState::Listing { page: VecDeque::new(), next: None, version: None },
            ),
            WatchState::Listing { mut page, next, version } => match (page.pop_front(), &next, version) {
                (Some(item), _, version) => match K::Message::decode(item) {
                    Ok(object) => {
                        let event = Ok(Event::InitApply(object.into()));
                        WatchStep::event(event, WatchState::Listing { page, next, version })
                    }
                    // The others are not kept waiting for it.
                    Err(error) => {
                        let error = Error::InitialListFailed(malformed(error.into()));
                        WatchStep::event(Err(error), WatchState::Listing { page, next, version })
                    }
                },
                (None, None, Some(version)) => WatchStep::event(Ok(Event::InitDone), WatchState::Listed { version }),
                (None, _, _) => self.list(next).await,
            },
            WatchState::Listed { version } => self.watch(version).await,
            WatchState::Watching { version, frames, empty_since } => self.next(version, frames, empty_since).await,
        }
    }

    async fn list<K>(&self, next: Option<String>) -> WatchStep<K> {
        let failed = |error| WatchStep::event(Err(Error::InitialListFailed(error)), WatchState::Empty);
        let params = ListParams {
            field_selector: self.fields.clone(),
            limit: Some(self.page_size),
            continue_token: next,
            ..ListParams::default()
        };
        let body = match self.ask(kube::core::Request::new(&self.path).list(&params)).await {
            Ok(Some(answer)) => answer.into_body().collect().await,
            Ok(None) => return WatchStep::not_protobuf(),
            Err(error) => return failed(error),
        };
        let list: v1::ObjectList = match body.map(|body| protobuf::decode(body.to_bytes())) {
            Ok(Ok(list)) => list,
            Ok(Err(error)) => return failed(malformed(error)),
            Err(error) => return failed(error),
        };
        let v1::ListMeta { resource_version, r#continue: next } = list.metadata.unwrap_or_default();
        let some = |text: Option<String>| text.filter(|text| !text.is_empty());
        let (version, next) = (some(resource_version), some(next));
        if version.is_none() && next.is_none() {
            return WatchStep::event(Err(Error::NoResourceVersion), WatchState::Empty);
        }
        WatchStep::silent(WatchState::Listing { page: list.items.into(), next, version })
    }

    async fn watch<K>(&self, version: String) -> WatchStep<K> {
        let params =
            WatchParams { field_selector: self.fields.clone(), timeout: Some(WATCH_SECONDS), ..WatchParams::default() };
        match self.ask(kube::core::Request::new(&self.path).watch(&params, &version)).await {
            Ok(Some(answer)) => {
                let frames = frames(answer);
                WatchStep::silent(WatchState::Watching { version, frames, empty_since: Some(Instant::now()) })
            }
            Ok(None) => WatchStep::not_protobuf(),
            Err(error) => {
                let is_too_old = matches!(&error, kube::Error::Api(status) if status.code == 410);
                let state = if is_too_old { WatchState::Empty } else { WatchState::Listed { version } };
                WatchStep::event(Err(Error::WatchStartFailed(error)), state)
            }
        }
    }

    async fn next<K: InProtobuf + StoredObject + Send>(
        &self,
        version: String,
        mut frames: Frames,
        empty_since: Option<Instant>,
    ) -> WatchStep<K> {
        let frame = match frames.next().await {
            Some(Ok(frame)) => frame,
            Some(Err(error)) if error.kind() != io::ErrorKind::UnexpectedEof => {
                return WatchStep::event(
                    Err(Error::WatchFailed(kube::Error::ReadEvents(error))),
                    WatchState::Listed { version },
                );
            }
            Some(Err(_)) | None if empty_since.is_some_and(|since| since.elapsed() < SHORTEST_WATCH) => {
                let error = io::Error::new(io::ErrorKind::UnexpectedEof, "the watch ended at once");
                return WatchStep::event(
                    Err(Error::WatchFailed(kube::Error::ReadEvents(error))),
                    WatchState::Listed { version },
                );
            }
            // Its time is over, or the connection broke in the middle of an event.
            Some(Err(_)) | None => return WatchStep::silent(WatchState::Listed { version }),
        };
        let WatchEvent { event, version } = match read_event(frame) {
            Ok(seen) => seen,
            Err(Trouble::Malformed(error)) => {
                let state = WatchState::Watching { version, frames, empty_since: None };
                return WatchStep::event(Err(Error::WatchFailed(malformed(error))), state);
            }
            Err(Trouble::Server(status)) => {
                let state = if status.code == 410 {
                    WatchState::Empty
                } else {
                    WatchState::Watching { version, frames, empty_since: None }
                };
                return WatchStep::event(Err(Error::WatchError(status)), state);
            }
        };
        if version.is_empty() {
            return WatchStep::event(Err(Error::NoResourceVersion), WatchState::Empty);
        }
        WatchStep { event: event.map(Ok), next: Some(WatchState::Watching { version, frames, empty_since: None }) }
    }

    /// The answer to a request. None: it is not in protobuf.
    async fn ask(
        &self,
        request: Result<Request<Vec<u8>>, kube::core::request::Error>,
    ) -> kube::Result<Option<Response<Body>>> {
        let mut request = request.map_err(kube::Error::BuildRequest)?.map(Body::from);
        request.headers_mut().insert(header::ACCEPT, ACCEPT);
        let answer = self.client.send(request).await?;
        let content_type = answer.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let is_protobuf = content_type.is_some_and(|value| value.starts_with(protobuf::CONTENT_TYPE));
        match answer.status() {
            code if code.is_success() && is_protobuf => Ok(Some(answer)),
            code if code.is_success() || code.as_u16() == 406 => Ok(None),
            code => {
                let body = answer.into_body().collect().await?.to_bytes();
                let status = if is_protobuf { protobuf::decode(body.clone()).ok().map(status) } else { None };
                let status = status.or_else(|| serde_json::from_slice(&body).ok()).unwrap_or_else(|| {
                    let text = String::from_utf8_lossy(&body).trim().to_owned();
                    Status::failure(&text, "").with_code(code.as_u16())
                });
                Err(kube::Error::Api(status.boxed()))
            }
        }
    }
}

/// The events of a watch: each has four bytes before it that say how long it is.
fn frames(answer: Response<Body>) -> Frames {
    let body = StreamReader::new(answer.into_body().into_data_stream().map_err(io::Error::other));
    let codec = LengthDelimitedCodec::builder().max_frame_length(LARGEST_EVENT).new_codec();
    FramedRead::new(body, codec).map_ok(bytes::BytesMut::freeze).boxed()
}

struct WatchEvent<K> {
    /// None: a bookmark.
    event: Option<Event<K>>,
    /// Up to which the watch has come.
    version: String,
}

enum Trouble {
    Malformed(Malformed),
    /// What the server says in place of an event.
    Server(Box<Status>),
}

impl<E: Into<Malformed>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::Malformed(error.into())
    }
}

fn read_event<K: InProtobuf + StoredObject>(frame: Bytes) -> Result<WatchEvent<K>, Trouble> {
    let event = v1::WatchEvent::decode(frame)?;
    let object = event.object.and_then(|object| object.raw).unwrap_or_default();
    let kind = event.r#type.unwrap_or_default();
    if kind == "ERROR" {
        return Err(Trouble::Server(status(protobuf::decode(object)?).boxed()));
    }
    let kept: K = protobuf::decode::<K::Message>(object)?.into();
    let version = kept.object_version().unwrap_or_default().to_owned();
    let event = match kind.as_str() {
        "BOOKMARK" => None,
        "DELETED" => Some(Event::Delete(kept)),
        _ => Some(Event::Apply(kept)),
    };
    Ok(WatchEvent { event, version })
}

fn status(status: v1::Status) -> Status {
    let code = status.code.and_then(|code| u16::try_from(code).ok()).unwrap_or_default();
    Status::failure(&status.message.unwrap_or_default(), &status.reason.unwrap_or_default()).with_code(code)
}

fn malformed(error: Malformed) -> kube::Error {
    kube::Error::ReadEvents(io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, Mutex},
        time::Duration,
    };

    use hyper::body::Frame;

    use super::*;
    use crate::k8s::pod::{PodObject, PodView};

    const PROTOBUF: &str = protobuf::CONTENT_TYPE;

    /// What the server answers to one request: code, content type, and pieces of the body as they arrive.
    type Reply = (u16, &'static str, Vec<Vec<u8>>);

    fn object(kind: &str, message: &impl Message) -> Vec<u8> {
        // Field 1, which names the kind, is passed over.
        let length = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap();
        let named = [&[0x12, length(kind.as_bytes())], kind.as_bytes()].concat();
        let envelope = v1::Unknown { raw: Some(message.encode_to_vec().into()) };
        [b"k8s\0".as_slice(), &[0x0a, length(&named)], &named, &envelope.encode_to_vec()].concat()
    }

    fn pod(name: &str, version: &str) -> v1::Pod {
        let bytes = |text: &str| Some(Bytes::copy_from_slice(text.as_bytes()));
        let metadata = v1::ObjectMeta { name: bytes(name), resource_version: bytes(version), ..Default::default() };
        v1::Pod { metadata: Some(metadata), ..Default::default() }
    }

    fn page(names: &[&str], version: &str, next: &str) -> Reply {
        let metadata = v1::ListMeta { resource_version: Some(version.into()), r#continue: Some(next.into()) };
        let item = |name: &&str| if *name == "odd" { b"odd".to_vec() } else { pod(name, "1").encode_to_vec() };
        let items = names.iter().map(item).map(Bytes::from).collect();
        (200, PROTOBUF, vec![object("PodList", &v1::ObjectList { metadata: Some(metadata), items })])
    }

    fn frame(kind: &str, object: Vec<u8>) -> Vec<u8> {
        let object = Some(v1::RawExtension { raw: Some(object.into()) });
        let event = v1::WatchEvent { r#type: Some(kind.into()), object }.encode_to_vec();
        [&u32::try_from(event.len()).unwrap().to_be_bytes(), event.as_slice()].concat()
    }

    fn event(kind: &str, name: &str, version: &str) -> Vec<u8> {
        frame(kind, object("Pod", &pod(name, version)))
    }

    fn failure(code: i32) -> v1::Status {
        v1::Status { status: None, message: Some("too old".into()), reason: Some("Expired".into()), code: Some(code) }
    }

    fn watch(pieces: Vec<Vec<u8>>) -> Reply {
        (200, "application/vnd.kubernetes.protobuf;stream=watch", pieces)
    }

    /// Follows a server that gives these answers and then none; the events, and what it was asked.
    async fn followed(replies: Vec<Reply>) -> (Vec<String>, Vec<String>) {
        let replies = Arc::new(Mutex::new(VecDeque::from(replies)));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, script) = (asked.clone(), replies.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            assert_eq!(request.headers()[header::ACCEPT], ACCEPT);
            log.lock().unwrap().push(request.uri().to_string());
            let reply = script.lock().unwrap().pop_front();
            async move {
                let Some((code, content_type, pieces)) = reply else { return std::future::pending().await };
                let pieces = pieces.into_iter().map(|piece| Ok::<_, io::Error>(Frame::data(Bytes::from(piece))));
                let body = http_body_util::StreamBody::new(stream::iter(pieces));
                Response::builder().status(code).header(header::CONTENT_TYPE, content_type).body(body)
            }
        });
        let api: Api<PodObject> = Api::all(Client::new(service, "default"));
        let mut events = events::<_, PodView>(api, Some("spec.nodeName=n".into()), 2).boxed();
        let mut seen = Vec::new();
        while let Ok(event) = tokio::time::timeout(Duration::from_secs(60), events.next()).await {
            seen.push(match event {
                Some(Ok(Event::Init)) => "begin".into(),
                Some(Ok(Event::InitApply(pod))) => format!("listed {}", pod.name()),
                Some(Ok(Event::InitDone)) => "done".into(),
                Some(Ok(Event::Apply(pod))) => format!("applied {}", pod.name()),
                Some(Ok(Event::Delete(pod))) => format!("deleted {}", pod.name()),
                Some(Err(error)) => error.to_string(),
                None => "end".into(),
            });
            if seen.last().is_some_and(|last| last == "end") {
                break;
            }
        }
        let asked = asked.lock().unwrap().clone();
        (seen, asked)
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_in_pages_and_a_watch_that_is_taken_up_again_where_it_ended() {
        let all = [event("ADDED", "c", "8"), event("MODIFIED", "a", "9"), event("DELETED", "b", "10")].concat();
        // As the network cuts it.
        let pieces = all.chunks(7).map(<[u8]>::to_vec).collect();
        let (events, asked) = followed(vec![
            page(&["a", "odd", "b"], "7", "more"),
            page(&[], "7", ""),
            watch(pieces),
            watch(vec![event("BOOKMARK", "", "20"), frame("ADDED", b"odd".to_vec()), event("ADDED", "d", "21")]),
        ])
        .await;
        assert_eq!(
            events,
            [
                "begin",
                "listed a",
                "failed to perform initial object list: Error reading events stream: an object in protobuf: failed to decode Protobuf message: invalid wire type value: 7",
                "listed b",
                "done",
                "applied c",
                "applied a",
                "deleted b",
                "watch stream failed: Error reading events stream: no object in protobuf: it does not begin with \"k8s\\0\"",
                "applied d",
            ]
        );
        let base = "/api/v1/pods?&fieldSelector=spec.nodeName%3Dn";
        let list = format!("{base}&limit=2");
        let from = |version: &str| {
            format!(
                "/api/v1/pods?&watch=true&timeoutSeconds=290&fieldSelector=spec.nodeName%3Dn&allowWatchBookmarks=true&resourceVersion={version}"
            )
        };
        assert_eq!(asked, [list.clone(), format!("{list}&continue=more"), from("7"), from("10"), from("21")]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_ends_at_once_without_an_event_has_failed() {
        let later = watch(vec![event("ADDED", "b", "8")]);
        let (events, asked) = followed(vec![page(&["a"], "7", ""), watch(Vec::new()), watch(Vec::new()), later]).await;
        let failed = "watch stream failed: Error reading events stream: the watch ended at once";
        assert_eq!(
            events,
            ["begin", "listed a", "done", failed, failed, "applied b"],
            "each is followed by the back-off"
        );
        assert_eq!(asked.len(), 5, "and by a watch from the same version");
        assert!(asked[1..4].iter().all(|watch| watch.ends_with("resourceVersion=7")), "{asked:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn when_the_version_is_too_old_a_new_list_follows() {
        let expired = frame("ERROR", object("Status", &failure(410)));
        let (events, asked) = followed(vec![
            page(&["a"], "7", ""),
            watch(vec![expired]),
            page(&["b"], "9", ""),
            (410, PROTOBUF, vec![object("Status", &failure(410))]),
            page(&["c"], "11", ""),
        ])
        .await;
        let lists: Vec<_> = events.iter().filter(|event| event.starts_with("listed")).collect();
        assert_eq!(lists, ["listed a", "listed b", "listed c"]);
        assert_eq!(events.iter().filter(|event| event.contains("too old")).count(), 2, "{events:?}");
        assert_eq!(asked.len(), 6);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_reported_in_its_own_words_and_tried_again() {
        let json = br#"{"kind":"Status","status":"Failure","code":403,"message":"may not list"}"#;
        let (events, _) = followed(vec![
            (403, "application/json", vec![json.to_vec()]),
            (500, PROTOBUF, vec![object("Status", &failure(500))]),
            (503, "text/plain", vec![b"no backend".to_vec()]),
            (200, PROTOBUF, vec![b"odd".to_vec()]),
            page(&["a"], "7", ""),
            (429, PROTOBUF, vec![object("Status", &failure(429))]),
            watch(vec![event("ADDED", "b", "8")]),
        ])
        .await;
        for words in ["may not list", "too old", "no backend", "does not begin with"] {
            assert_eq!(
                events.iter().filter(|event| event.contains(words)).count(),
                if words == "too old" { 2 } else { 1 },
                "{words}: {events:?}"
            );
        }
        assert_eq!(events.last().unwrap(), "applied b", "a watch that could not begin goes on from the same version");
        assert_eq!(events.iter().filter(|event| event.starts_with("listed")).count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_when_the_answer_is_not_in_protobuf() {
        for reply in [(200, "application/json", vec![b"{}".to_vec()]), (406, "text/plain", vec![Vec::new()])] {
            assert_eq!(followed(vec![reply]).await.0, ["begin", "end"]);
        }
        assert_eq!(
            followed(vec![page(&[], "7", ""), (200, "application/json;stream=watch", Vec::new())])
                .await
                .0
                .last()
                .unwrap(),
            "end"
        );
    }
}
