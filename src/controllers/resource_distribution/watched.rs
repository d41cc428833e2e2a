//! I/O: watches of single names. ConfigMaps that are distributed are followed by their name in all namespaces, objects that
//! are referred to in their own one.

use std::{
    collections::{HashMap, HashSet},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::FutureExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{ApiResource, DynamicObject},
    runtime::watcher,
};
use serde_json::Value;
use tokio::task::AbortHandle;

use super::Controller;
use crate::{
    api::apps::resource_distribution::{ResourceDistribution, ResourceDistributionSpec},
    domain::kinds::resource_distribution::{
        content::ResourceKind,
        copy::{CopyObject, CopyView},
        memory::{Pace, SLOWEST_SOURCE},
        plan::is_watched,
        spec::{NamespaceView, identity},
    },
    k8s::{name::is_dns_label, shared, time::Now},
    runtime::{
        apply::refused_watch,
        clock, lock,
        watches::{self, Change, ObjectKey, Store, StoredObject},
    },
};

/// ConfigMaps in one answer of a list: each may have a mebibyte.
const PAGE: u32 = 10;
/// Between two passes that changes of copies bring about: somebody may change them all the time.
const BETWEEN_PASSES: Duration = Duration::from_millis(500);
/// Before a watch that has ended is begun again.
const BEFORE_WATCHING_AGAIN: Duration = Duration::from_secs(5);

impl StoredObject for CopyView {
    fn object_key(&self) -> ObjectKey {
        ObjectKey { namespace: self.namespace.clone(), name: self.name.clone() }
    }
    fn namespace_and_name(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
    fn object_uid(&self) -> Option<&str> {
        Some(&*self.uid).filter(|uid| !uid.is_empty())
    }
    fn object_version(&self) -> Option<&str> {
        Some(&self.version)
    }
    fn drop_managed_fields(&mut self) {}
}

impl StoredObject for NamespaceView {
    fn object_key(&self) -> ObjectKey {
        ObjectKey { namespace: shared::text(""), name: self.facts.name.clone() }
    }
    fn namespace_and_name(&self) -> (&str, &str) {
        ("", &self.facts.name)
    }
    fn object_uid(&self) -> Option<&str> {
        Some(&*self.uid).filter(|uid| !uid.is_empty())
    }
    fn object_version(&self) -> Option<&str> {
        Some(&self.version)
    }
    fn drop_managed_fields(&mut self) {}
}

/// What is known of an object that is referred to.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SourceContent {
    /// Nothing yet.
    Unknown,
    /// It is there.
    Present(Arc<Value>),
    /// It is not.
    Missing,
    /// It may not be read, in the words of the API server.
    Forbidden(String),
}

/// Kind, namespace and name.
type SourceKey = (ResourceKind, String, String);

/// The running watches.
#[derive(Default)]
pub(super) struct Watched {
    copies: Mutex<HashMap<String, Copies>>,
    sources: Mutex<HashMap<SourceKey, SourceWatch>>,
}

struct Copies {
    store: Arc<Store<CopyView>>,
    in_view: bool,
    since: Duration,
    _task: Task,
}

struct SourceWatch {
    followed: Followed,
    _task: Task,
}

/// An object that is referred to. Its changes are taken over at a pace: each may mean a write in every namespace.
#[derive(Debug)]
struct Followed {
    content: SourceContent,
    /// What is taken over when its time comes.
    next: Option<SourceContent>,
    pace: Pace,
}

impl Followed {
    fn new() -> Self {
        Self { content: SourceContent::Unknown, next: None, pace: Pace::default() }
    }

    /// Takes note of what a watch has brought. Gives when to look at it; None: it is nothing new.
    fn take(&mut self, content: SourceContent, now: Duration) -> Option<Duration> {
        if *self.next.as_ref().unwrap_or(&self.content) == content {
            return None;
        }
        self.next = Some(content);
        let left = self.left(now);
        self.current(now);
        Some(left)
    }

    /// What counts now.
    fn current(&mut self, now: Duration) -> &SourceContent {
        if self.left(now).is_zero()
            && let Some(next) = self.next.take()
        {
            if matches!(next, SourceContent::Present(_)) {
                self.pace.note(now, SLOWEST_SOURCE);
            }
            self.content = next;
        }
        &self.content
    }

    /// Nothing is written without a content: that it cannot be had is known at once.
    fn left(&self, now: Duration) -> Duration {
        match self.next {
            Some(SourceContent::Present(_)) => self.pace.left(now, SLOWEST_SOURCE),
            _ => Duration::ZERO,
        }
    }
}

/// A task that ends when it is dropped.
#[derive(Default)]
struct Task(Option<AbortHandle>);

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Ends all watches when it is dropped: each holds its controller, and would go on for ever.
pub(super) struct EndWatches<'a>(pub(super) &'a Watched);

impl Drop for EndWatches<'_> {
    fn drop(&mut self) {
        lock(&self.0.copies).clear();
        lock(&self.0.sources).clear();
    }
}

impl Watched {
    /// The ConfigMaps of a name, once they are in view.
    pub(super) fn copies(&self, name: &str) -> Option<Arc<Store<CopyView>>> {
        lock(&self.copies).get(name).filter(|copies| copies.in_view).map(|copies| copies.store.clone())
    }

    /// How long it has been waited for the ConfigMaps of a name.
    pub(super) fn unwatched_for(&self, name: &str, now: Now) -> Duration {
        lock(&self.copies).get(name).map_or(Duration::ZERO, |copies| now.mono.saturating_sub(copies.since))
    }

    /// What is known of an object that is referred to.
    pub(super) fn source(&self, kind: ResourceKind, namespace: &str, name: &str) -> SourceContent {
        let mut sources = lock(&self.sources);
        let found = sources.get_mut(&(kind, namespace.to_owned(), name.to_owned()));
        found.map_or(SourceContent::Unknown, |source| source.followed.current(clock::now().mono).clone())
    }

    /// As watches do, without one.
    #[cfg(test)]
    pub(super) fn show(&self, name: &str) -> Arc<Store<CopyView>> {
        let mut copies = lock(&self.copies);
        let new = || Copies { store: Store::new(None), in_view: true, since: Duration::ZERO, _task: Task::default() };
        copies.entry(name.to_owned()).or_insert_with(new).store.clone()
    }

    /// A watch that brings nothing.
    #[cfg(test)]
    pub(super) fn miss(&self, name: &str) {
        let copies =
            Copies { store: Store::new(None), in_view: false, since: clock::now().mono, _task: Task::default() };
        lock(&self.copies).insert(name.to_owned(), copies);
    }

    /// The same of an object that is referred to.
    #[cfg(test)]
    pub(super) fn show_source(
        &self,
        kind: ResourceKind,
        namespace: &str,
        name: &str,
        content: SourceContent,
    ) -> Option<Duration> {
        let key = (kind, namespace.to_owned(), name.to_owned());
        let new = || SourceWatch { followed: Followed::new(), _task: Task::default() };
        let now = clock::now().mono;
        lock(&self.sources).entry(key).or_insert_with(new).followed.take(content, now)
    }
}

/// The object that is referred to, if what names it can be names: they become part of a query.
fn source_of(spec: &ResourceDistributionSpec) -> Option<SourceKey> {
    let reference = spec.resource_ref.as_ref()?;
    let (kind, name) = identity(spec)?;
    is_dns_label(&reference.namespace).then(|| (kind, reference.namespace.clone(), name.to_owned()))
}

impl Controller {
    /// Starts and stops watches, so that exactly those run that some ResourceDistribution needs.
    pub(super) fn follow(self: &Arc<Self>) {
        let (mut names, mut sources): (HashSet<String>, HashSet<SourceKey>) = Default::default();
        for distribution in self.distributions.list() {
            if let Some((kind, name)) = identity(&distribution.spec).filter(|(kind, _)| is_watched(*kind)) {
                debug_assert_eq!(kind, ResourceKind::ConfigMap);
                names.insert(name.to_owned());
            }
            sources.extend(source_of(&distribution.spec));
        }
        let mut copies = lock(&self.watched.copies);
        copies.retain(|name, _| names.contains(name));
        for name in names {
            copies.entry(name).or_insert_with_key(|name| {
                let store = Store::new(None);
                let (this, name, seen) = (self.clone(), name.clone(), store.clone());
                let watch = move || this.clone().follow_copies(name.clone(), seen.clone());
                let task = tokio::spawn(again_and_again("the copies", watch)).abort_handle();
                Copies { store, in_view: false, since: clock::now().mono, _task: Task(Some(task)) }
            });
        }
        drop(copies);
        let mut watches = lock(&self.watched.sources);
        watches.retain(|key, _| sources.contains(key));
        for key in sources {
            watches.entry(key).or_insert_with_key(|key| {
                let (this, key) = (self.clone(), key.clone());
                let watch = move || this.clone().follow_source(key.clone());
                let task = tokio::spawn(again_and_again("an object that is referred to", watch)).abort_handle();
                SourceWatch { followed: Followed::new(), _task: Task(Some(task)) }
            });
        }
    }

    async fn follow_copies(self: Arc<Self>, name: String, store: Arc<Store<CopyView>>) {
        let api: Api<CopyObject> = Api::all(self.context.client.clone());
        let config = watcher::Config::default().fields(&format!("metadata.name={name}")).page_size(PAGE);
        let changed = |change: Change<'_, CopyView>| self.copy_changed(&name, &change);
        let watch = watches::watch_as(api, config, store.clone(), CopyView::from, changed);
        let seen = async {
            store.wait_synced().await;
            if let Some(copies) = lock(&self.watched.copies).get_mut(&name) {
                copies.in_view = true;
            }
            self.wake(ResourceKind::ConfigMap, &name, Duration::ZERO);
        };
        tokio::join!(watch, seen);
    }

    /// A ConfigMap that has the name of copies.
    pub(super) fn copy_changed(&self, name: &str, change: &Change<'_, CopyView>) {
        let is_news = match change {
            Change::Applied { old: Some(old), new, .. } => !new.says_the_same_as(old),
            _ => true,
        };
        if is_news {
            self.wake(ResourceKind::ConfigMap, name, Duration::ZERO);
        }
    }

    /// Those that distribute an object of this kind and name look again after this time, and not all the time.
    pub(super) fn wake(&self, kind: ResourceKind, name: &str, after: Duration) {
        let is_meant = |distribution: &ResourceDistribution| identity(&distribution.spec) == Some((kind, name));
        let now = clock::now().mono;
        for distribution in self.distributions.select(is_meant) {
            let key = ObjectKey::of(distribution.as_ref());
            let looked = self.memories.with(&key, |memory| memory.looked).flatten();
            let left = looked.map_or(Duration::ZERO, |at| BETWEEN_PASSES.saturating_sub(now.saturating_sub(at)));
            match left.max(after) {
                Duration::ZERO => self.queue.add(key),
                left => self.queue.add_after(key, left),
            }
        }
    }

    async fn follow_source(self: Arc<Self>, key: SourceKey) {
        let (kind, namespace, name) = &key;
        let resource = match kind {
            ResourceKind::ConfigMap => ApiResource::erase::<ConfigMap>(&()),
            ResourceKind::Secret => ApiResource::erase::<Secret>(&()),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(self.context.client.clone(), namespace, &resource);
        watches::watch_named(api, &resource, name, |change| {
            let content = match change {
                Ok(None) => SourceContent::Missing,
                Ok(Some(object)) => SourceContent::Present(Arc::new(object.data)),
                Err(error) => match refused_watch(&error) {
                    Some(why) => SourceContent::Forbidden(why),
                    // One lost connection; what was known stays true.
                    None => return,
                },
            };
            let now = clock::now().mono;
            let look = lock(&self.watched.sources).get_mut(&key).and_then(|watch| watch.followed.take(content, now));
            if let Some(after) = look {
                self.wake(*kind, name, after);
            }
        })
        .await;
    }
}

/// Watches are for ever. One that has panicked or ended is begun again, from a new list.
async fn again_and_again<F: Future<Output = ()>>(what: &str, watch: impl Fn() -> F) {
    loop {
        match AssertUnwindSafe(watch()).catch_unwind().await {
            Ok(()) => tracing::error!(what, "a watch has ended, beginning again"),
            Err(_) => tracing::error!(what, "a watch has panicked, beginning again"),
        }
        tokio::time::sleep(BEFORE_WATCHING_AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;

    #[test]
    fn a_busy_source_is_taken_over_at_a_pace_and_the_last_content_counts() {
        let present = |n: usize| SourceContent::Present(Arc::new(json!({"data": {"n": n.to_string()}})));
        let (mut followed, mut now) = (Followed::new(), Duration::from_secs(9));
        assert_eq!(followed.take(present(0), now), Some(Duration::ZERO));
        assert_eq!(followed.take(present(0), now), None, "nothing new");
        assert_eq!(followed.take(present(1), now), Some(Duration::ZERO), "one change at once");
        // Ten changes a second, for ten minutes.
        let (mut taken, mut last) = (0, present(1));
        for n in 2..6000 {
            now += Duration::from_millis(100);
            followed.take(present(n), now);
            let current = followed.current(now).clone();
            taken += usize::from(current != last);
            last = current;
        }
        assert!((10..17).contains(&taken), "{taken} in ten minutes");
        now += SLOWEST_SOURCE;
        assert_eq!(*followed.current(now), present(5999), "the last one");
        // That it has gone is known at once; its return waits.
        assert_eq!(followed.take(SourceContent::Missing, now), Some(Duration::ZERO));
        assert_eq!(*followed.current(now), SourceContent::Missing);
        assert_eq!(followed.take(present(1), now), Some(SLOWEST_SOURCE));
        assert_eq!(*followed.current(now), SourceContent::Missing);
        assert_eq!(*followed.current(now + SLOWEST_SOURCE), present(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_panicked_or_ended_is_begun_again() {
        let begun = Arc::new(AtomicUsize::new(0));
        let watch = {
            let begun = begun.clone();
            move || {
                let turn = begun.fetch_add(1, Ordering::Relaxed);
                async move {
                    match turn {
                        0 => panic!("a bug"),
                        1 => {}
                        _ => std::future::pending().await,
                    }
                }
            }
        };
        let task = tokio::spawn(again_and_again("a test", watch));
        tokio::time::sleep(BEFORE_WATCHING_AGAIN * 3).await;
        assert_eq!(begun.load(Ordering::Relaxed), 3);
        assert!(!task.is_finished());
        task.abort();
    }
}
