//! Keeps stores equal to the API server, for ever: one function for each form in which objects come.

use std::{collections::HashSet, convert::Infallible, fmt, sync::Arc, time::Duration};

use futures::{Stream, StreamExt, pin_mut};
use kube::{
    Api, Resource,
    api::ListParams,
    core::ApiResource,
    runtime::{
        WatchStreamExt,
        utils::Backoff,
        watcher::{self, Event},
    },
};
use serde::de::DeserializeOwned;

use super::{Change, ObjectKey, Store, StoredName, StoredObject};
use crate::{
    k8s::protobuf::InProtobuf,
    runtime::{
        apply::code,
        as_sent::{AsSent, MetadataAsSent, as_sent},
        guarded::Guarded,
        protobuf_watch,
        retry::Retry,
    },
};

/// Keeps a store equal to the API server, for ever. Custom resources come guarded against objects that do not decode.
pub async fn watch_guarded<K>(
    api: Api<Guarded<K>>,
    config: watcher::Config,
    store: Arc<Store<K>>,
    on_change: impl FnMut(Change<'_, K>) + Send,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    let decode = |sent: AsSent| serde_json::from_value(sent.object()?);
    follow_json(api, &ApiResource::erase::<K>(&()), config, &mut Kept { store, decode, on_change }).await;
}

/// Waits until the first list of a watch is complete, or until the API server says that it has no such kind: then there are
/// none, and the watch brings what comes later.
pub async fn first_list<K>(api: &Api<Guarded<K>>, store: &Store<K>)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + StoredObject + 'static,
{
    const PAUSE: Duration = Duration::from_secs(2);
    loop {
        if tokio::time::timeout(PAUSE, store.wait_synced()).await.is_ok() {
            return;
        }
        let one = ListParams::default().limit(1);
        if let Ok(Err(error)) = tokio::time::timeout(PAUSE, api.list(&one)).await
            && code(&error) == Some(404)
        {
            tracing::info!(kind = %K::kind(&()), "the kind is not installed");
            return;
        }
    }
}

/// Keeps a store equal to the API server, for ever, for types that hold whatever an API server sends.
pub async fn watch<K>(
    api: Api<K>,
    config: watcher::Config,
    store: Arc<Store<K>>,
    on_change: impl FnMut(Change<'_, K>) + Send,
) where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync,
{
    watch_dynamic(api, &ApiResource::erase::<K>(&()), config, store, on_change).await;
}

/// The same for a type that stands for several kinds: `resource` is that of `api`.
pub async fn watch_dynamic<K>(
    api: Api<K>,
    resource: &ApiResource,
    config: watcher::Config,
    store: Arc<Store<K>>,
    on_change: impl FnMut(Change<'_, K>) + Send,
) where
    K: Resource + DeserializeOwned + Send + Sync,
{
    follow_json(api, resource, config, &mut Kept { store, decode: read, on_change }).await;
}

/// Keeps a store equal to the API server, for ever, of what `view` takes from each object. `config` says how many objects
/// one answer of a list has: few where they may be large.
pub async fn watch_as<W, K>(
    api: Api<W>,
    config: watcher::Config,
    store: Arc<Store<K>>,
    view: impl Fn(W) -> K + Send,
    on_change: impl FnMut(Change<'_, K>) + Send,
) where
    W: Resource<DynamicType = ()> + DeserializeOwned,
    K: StoredObject + Send + Sync,
{
    let decode = move |sent| read(sent).map(&view);
    follow_json(api, &ApiResource::erase::<W>(&()), config, &mut Kept { store, decode, on_change }).await;
}

/// Keeps a store equal to the API server, for ever, of the names of objects: nothing else of them is asked for than metadata.
pub async fn watch_names<K>(
    api: Api<K>,
    store: Arc<Store<StoredName>>,
    on_change: impl FnMut(Change<'_, StoredName>) + Send,
) where
    K: Resource<DynamicType = ()>,
{
    let resource = ApiResource::erase::<K>(&());
    let api: Api<MetadataAsSent> = as_sent(api, &resource);
    let events = watcher::watcher(api, watcher::Config::default().page_size(PAGE_OF_JSON));
    let decode = |object: MetadataAsSent| Ok::<_, Infallible>(StoredName::of(&object));
    follow(events, &resource.kind, &mut Kept { store, decode, on_change }).await;
}

/// Keeps a store equal to the API server, for ever, of a built-in kind, which comes in protobuf: of all objects, or of those
/// that the field selector matches. `kept` has the last say about what the store keeps of one.
pub async fn watch_in_protobuf<W, K>(
    api: Api<W>,
    fields: Option<String>,
    store: Arc<Store<K>>,
    kept: impl Fn(K) -> K + Send + Sync,
    mut on_change: impl FnMut(Change<'_, K>) + Send,
) where
    W: Resource<DynamicType = ()> + Clone + DeserializeOwned + Into<K>,
    K: InProtobuf + StoredObject + Send + Sync,
{
    let resource = ApiResource::erase::<W>(&());
    let kind = &resource.kind;
    let events = protobuf_watch::events::<W, K>(api.clone(), fields.clone(), PAGE);
    let decode = |object| Ok::<_, Infallible>(kept(object));
    follow(events, kind, &mut Kept { store: store.clone(), decode, on_change: &mut on_change }).await;
    tracing::warn!(%kind, "the answer to a list is not in protobuf, reading JSON: this takes more of the processor");
    let config = watcher::Config { field_selector: fields, ..watcher::Config::default() };
    let decode = |sent| read(sent).map(|object: W| kept(object.into()));
    follow_json(api, &resource, config, &mut Kept { store, decode, on_change }).await;
}

/// What a type is expected to hold always; where it does not, only this line says so.
fn read<K: DeserializeOwned>(sent: AsSent) -> serde_json::Result<K> {
    let key = ObjectKey::of(&sent);
    let report =
        |error: &serde_json::Error| tracing::error!(%key, %error, "this object cannot be read and is left alone");
    sent.object().and_then(serde_json::from_value).inspect_err(report)
}

/// Where the objects of a watch go, as they come. A trait object: what follows a watch is the same program for all of them.
trait Sink<W>: Send {
    /// A list begins.
    fn begin_list(&mut self);
    /// There is such an object.
    fn take(&mut self, object: W, initial: bool);
    /// An object is gone.
    fn end(&mut self, key: &ObjectKey, uid: Option<&str>);
    /// What happens is not known, until it is tried again.
    fn failed(&mut self);
    /// A list is complete. Returns how many objects there are.
    fn end_list(&mut self, listed: &HashSet<ObjectKey>) -> usize;
}

/// A store that keeps what `decode` makes of each object.
struct Kept<K, D, F> {
    store: Arc<Store<K>>,
    decode: D,
    on_change: F,
}

impl<W, K, E, D, F> Sink<W> for Kept<K, D, F>
where
    W: StoredObject,
    K: StoredObject + Send + Sync,
    E: fmt::Display,
    D: Fn(W) -> Result<K, E> + Send,
    F: FnMut(Change<'_, K>) + Send,
{
    fn begin_list(&mut self) {
        self.store.begin_list();
    }
    fn take(&mut self, object: W, initial: bool) {
        take(&self.store, &self.decode, object, initial, &mut self.on_change);
    }
    fn end(&mut self, key: &ObjectKey, uid: Option<&str>) {
        if let Some(old) = self.store.end(key, uid) {
            (self.on_change)(Change::Deleted(&old));
        }
    }
    fn failed(&mut self) {
        self.store.note_failure();
    }
    fn end_list(&mut self, listed: &HashSet<ObjectKey>) -> usize {
        for old in self.store.retain(listed) {
            (self.on_change)(Change::Deleted(&old));
        }
        self.store.lock().listing = false;
        self.store.synced.send_replace(true);
        self.store.len()
    }
}

async fn follow_json<K: Resource>(
    api: Api<K>,
    resource: &ApiResource,
    config: watcher::Config,
    sink: &mut dyn Sink<AsSent>,
) {
    // kube's own default is larger.
    let size = config.page_size.map_or(PAGE_OF_JSON, |size| size.min(PAGE_OF_JSON));
    let config = config.page_size(size);
    let api: Api<AsSent> = as_sent(api, resource);
    follow(watcher::watcher(api, config), &resource.kind, sink).await;
}

async fn follow<W: StoredObject>(
    events: impl Stream<Item = watcher::Result<Event<W>>>,
    kind: &str,
    sink: &mut dyn Sink<W>,
) {
    let mut retry = Retry::default();
    pin_mut!(events);
    let mut listed = HashSet::new();
    while let Some(event) = events.next().await {
        // The beginning of a list is no success yet: between two failures the pauses would never grow.
        if matches!(event, Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_))) {
            retry.reset();
        }
        match event {
            Ok(Event::Init) => {
                listed.clear();
                sink.begin_list();
            }
            Ok(Event::InitApply(object)) => {
                listed.insert(ObjectKey::of(&object));
                sink.take(object, true);
            }
            Ok(Event::InitDone) => {
                let objects = sink.end_list(&listed);
                listed = HashSet::new();
                tracing::debug!(kind, objects, "watch is in sync");
            }
            Ok(Event::Apply(object)) => sink.take(object, false),
            Ok(Event::Delete(object)) => sink.end(&ObjectKey::of(&object), object.object_uid()),
            Err(error) => {
                tracing::warn!(kind, %error, "watch failed, trying again");
                sink.failed();
                tokio::time::sleep(retry.next().unwrap_or_default()).await;
            }
        }
    }
}

pub(super) fn take<W: StoredObject, K: StoredObject, E: fmt::Display>(
    store: &Store<K>,
    decode: impl Fn(W) -> Result<K, E>,
    object: W,
    initial: bool,
    on_change: &mut impl FnMut(Change<'_, K>),
) {
    let key = ObjectKey::of(&object);
    match decode(object) {
        Ok(object) => {
            if let (old, Some(new)) = store.put(object, false) {
                on_change(Change::Applied { old: old.as_ref(), new: &new, initial });
            }
        }
        Err(error) => {
            // Acting on an older version of what can no longer be read would be acting blindly.
            store.end(&key, None);
            on_change(Change::Undecodable { key: &key, error: &error.to_string() });
        }
    }
}

/// Follows one object by its name, for ever, with rights on that name alone, of `resource`. None: it does not exist. An error ends
/// nothing; the next attempt follows by itself. An object that is nested too deep or too large is an error too. The object has its
/// managers, without their fields.
pub async fn watch_named<K>(
    api: Api<K>,
    resource: &ApiResource,
    name: &str,
    mut on_change: impl FnMut(Result<Option<K>, watcher::Error>),
) where
    K: Resource + DeserializeOwned,
{
    let failed = |error| watcher::Error::WatchFailed(kube::Error::SerdeError(error));
    follow_named(as_sent(api, resource), name, |change| {
        let read = |sent: AsSent| sent.with_managers().and_then(serde_json::from_value).map_err(failed);
        on_change(change.and_then(|sent| sent.map(read).transpose()));
    })
    .await;
}

/// The same for a custom resource, which may not decode.
pub async fn watch_named_guarded<K>(
    api: Api<Guarded<K>>,
    name: &str,
    mut on_change: impl FnMut(Result<Option<Guarded<K>>, watcher::Error>),
) where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    follow_named(as_sent(api, &ApiResource::erase::<K>(&())), name, |change| {
        on_change(change.map(|sent| sent.map(|sent| sent.guarded())));
    })
    .await;
}

async fn follow_named(api: Api<AsSent>, name: &str, mut on_change: impl FnMut(watcher::Result<Option<AsSent>>)) {
    let changes = watcher::watch_object(api, name).backoff(Retry::default());
    pin_mut!(changes);
    while let Some(change) = changes.next().await {
        on_change(change);
    }
}

/// Objects in one answer of a list in protobuf.
const PAGE: u32 = 100;
/// Objects in one answer of a list in JSON, which is held twice as text while it is read: an object may have a megabyte and more.
const PAGE_OF_JSON: u32 = 25;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        k8s::pod::{PodObject, PodView},
        runtime::fake_api,
    };

    fn pod(name: &str, uid: &str, version: &str) -> PodView {
        serde_json::from_value(
            serde_json::json!({"metadata": {"name": name, "namespace": "a", "uid": uid, "resourceVersion": version}}),
        )
        .unwrap()
    }

    /// Only a kind that is not installed has no objects; one that cannot be listed may have some.
    #[tokio::test(start_paused = true)]
    async fn a_first_list_that_does_not_come_is_waited_for_unless_the_kind_is_not_installed() {
        use crate::api::apps::workload_spread::WorkloadSpread;
        for (code, ends) in [(404, true), (403, false), (500, false)] {
            let service = tower::service_fn(move |_: http::Request<kube::client::Body>| async move {
                let status = serde_json::json!({"kind": "Status", "status": "Failure", "code": code, "message": "no"});
                let body = kube::client::Body::from(status.to_string().into_bytes());
                http::Response::builder().status(code).body(body)
            });
            let api: Api<Guarded<WorkloadSpread>> = Api::all(kube::Client::new(service, "default"));
            let store = Store::new(None);
            let listed = tokio::time::timeout(Duration::from_secs(100), first_list(&api, &store)).await;
            assert_eq!(listed.is_ok(), ends, "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pods_are_followed_in_json_when_the_server_has_no_protobuf() {
        let service = tower::service_fn(|request: http::Request<kube::client::Body>| {
            let pod = |name: &str, version: &str| {
                serde_json::json!({"apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": name, "namespace": "a", "uid": name, "resourceVersion": version}})
            };
            let is_watch = request.uri().query().unwrap_or_default().contains("watch=true");
            let is_first = request.uri().query().unwrap_or_default().contains("resourceVersion=7");
            let body = match is_watch {
                true => fake_api::event("ADDED", &pod("later", "8")),
                false => serde_json::json!({"apiVersion": "v1", "kind": "PodList",
                    "metadata": {"resourceVersion": "7"}, "items": [pod("first", "5")]})
                .to_string(),
            };
            async move {
                if is_watch && !is_first {
                    return std::future::pending().await;
                }
                let answer = http::Response::builder().header("content-type", "application/json");
                answer.body(kube::client::Body::from(body.into_bytes()))
            }
        });
        let api: Api<PodObject> = Api::all(kube::Client::new(service, "default"));
        let store = Store::new(None);
        let mut reported = Vec::new();
        let follow = watch_in_protobuf(
            api,
            None,
            store.clone(),
            |pod: PodView| pod,
            |change| {
                if let Change::Applied { new, initial, .. } = change {
                    reported.push((new.name().to_owned(), initial));
                }
            },
        );
        // A watch never ends by itself.
        assert!(tokio::time::timeout(Duration::from_secs(60), follow).await.is_err());
        assert_eq!(reported, [("first".to_owned(), true), ("later".to_owned(), false)]);
        assert_eq!(store.get(&ObjectKey::new("a", "first")).unwrap().resource_version(), Some("5"));
    }

    #[tokio::test]
    async fn who_is_told_what_a_list_lacks_sees_that_a_list_says_so() {
        let store = Store::new(None);
        store.put(pod("missed", "m", "5"), false);
        let events: [watcher::Result<Event<PodView>>; 4] = [
            Ok(Event::Init),
            Ok(Event::InitApply(pod("seen", "s", "6"))),
            Ok(Event::InitDone),
            Ok(Event::Delete(pod("seen", "s", "7"))),
        ];
        let mut told = Vec::new();
        let on_change = |change: Change<'_, PodView>| {
            if let Change::Deleted(old) = change {
                told.push((old.name().to_owned(), store.is_listing()));
            }
        };
        let mut kept = Kept { store: store.clone(), decode: Ok::<PodView, Infallible>, on_change };
        follow(futures::stream::iter(events), "Pod", &mut kept).await;
        assert_eq!(told, [("missed".to_owned(), true), ("seen".to_owned(), false)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_fails_again_and_again_is_asked_for_ever_more_seldom() {
        let failed = || [Ok(Event::Init), Err(watcher::Error::NoResourceVersion)];
        let events: Vec<watcher::Result<Event<PodView>>> = (0..10).flat_map(|_| failed()).collect();
        let listed = [Ok(Event::Init), Ok(Event::InitApply(pod("seen", "s", "6"))), Ok(Event::InitDone)];
        let store = Store::new(None);
        let mut kept =
            Kept { store: store.clone(), decode: Ok::<PodView, Infallible>, on_change: |_: Change<'_, PodView>| {} };
        let begun = tokio::time::Instant::now();
        follow(futures::stream::iter(events.into_iter().chain(listed)), "Pod", &mut kept).await;
        // 0.25, 0.5, 1, 2, 4 and then 8 seconds, with jitter.
        assert!((47..60).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
        assert_eq!(store.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_says_nothing_of_what_it_lacks_while_its_watch_fails() {
        let store: Arc<Store<StoredName>> = Store::new(None);
        assert!(!store.is_current(), "nothing was listed");
        store.has_all();
        assert!(store.is_current());
        let failed = watcher::Error::NoResourceVersion;
        let decode = |name: StoredName| Ok::<_, Infallible>(name);
        let mut kept = Kept { store: store.clone(), decode, on_change: |_: Change<'_, StoredName>| {} };
        follow(futures::stream::iter([Err(failed)]), "DaemonSet", &mut kept).await;
        assert!(!store.is_current());
        tokio::time::advance(Duration::from_secs(151)).await;
        assert!(store.is_current());
    }

    #[tokio::test]
    async fn a_page_of_a_list_is_small_whatever_kube_would_ask_for() {
        use k8s_openapi::api::core::v1::ConfigMap;
        for (config, want) in [
            (watcher::Config::default(), "limit=25"),
            (watcher::Config::default().page_size(10), "limit=10"),
            (watcher::Config::default().page_size(5000), "limit=25"),
        ] {
            let (send, mut asked) = tokio::sync::mpsc::unbounded_channel();
            let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
                let _ = send.send(request.uri().query().unwrap_or_default().to_owned());
                std::future::pending::<Result<http::Response<kube::client::Body>, Infallible>>()
            });
            let api: Api<ConfigMap> = Api::all(kube::Client::new(service, "default"));
            let store: Arc<Store<ConfigMap>> = Store::new(None);
            tokio::select! {
                () = watch(api, config, store, |_| {}) => panic!("a watch is for ever"),
                query = asked.recv() => assert!(query.as_ref().is_some_and(|query| {
                    query.split('&').any(|part| part == want)
                }), "{query:?}"),
            }
        }
    }
}
