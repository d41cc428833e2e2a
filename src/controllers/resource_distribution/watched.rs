//! I/O: watches of single names. ConfigMaps that are distributed are followed by their name in all namespaces, objects that
//! are referred to in their own one.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

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
    domain::kinds::resource_distribution::{content::ResourceKind, copy::CopyView, plan::is_watched, spec::identity},
    k8s::{name::is_dns_label, time::Now},
    runtime::{
        apply::code,
        clock, lock,
        watches::{self, ObjectKey, Store},
    },
};

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
    content: SourceContent,
    _task: Task,
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
        let sources = lock(&self.sources);
        let found = sources.get(&(kind, namespace.to_owned(), name.to_owned()));
        found.map_or(SourceContent::Unknown, |source| source.content.clone())
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
    pub(super) fn show_source(&self, kind: ResourceKind, namespace: &str, name: &str, content: SourceContent) {
        let key = (kind, namespace.to_owned(), name.to_owned());
        lock(&self.sources).insert(key, SourceWatch { content, _task: Task::default() });
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
        copies.retain(|name, watch| names.contains(name) && !watch.has_ended());
        for name in names {
            copies.entry(name).or_insert_with_key(|name| {
                let store = Store::new(None);
                let task = tokio::spawn(self.clone().follow_copies(name.clone(), store.clone())).abort_handle();
                Copies { store, in_view: false, since: clock::now().mono, _task: Task(Some(task)) }
            });
        }
        drop(copies);
        let mut watches = lock(&self.watched.sources);
        watches.retain(|key, watch| sources.contains(key) && !watch.has_ended());
        for key in sources {
            watches.entry(key).or_insert_with_key(|key| {
                let task = tokio::spawn(self.clone().follow_source(key.clone())).abort_handle();
                SourceWatch { content: SourceContent::Unknown, _task: Task(Some(task)) }
            });
        }
    }

    async fn follow_copies(self: Arc<Self>, name: String, store: Arc<Store<CopyView>>) {
        let (api, config) = (self.context.api(), watcher::Config::default().fields(&format!("metadata.name={name}")));
        let watch = watches::watch(api, config, store.clone(), |_| self.wake(ResourceKind::ConfigMap, &name));
        let seen = async {
            store.wait_synced().await;
            if let Some(copies) = lock(&self.watched.copies).get_mut(&name) {
                copies.in_view = true;
            }
            self.wake(ResourceKind::ConfigMap, &name);
        };
        tokio::join!(watch, seen);
    }

    /// Those that distribute an object of this kind and name look again.
    fn wake(&self, kind: ResourceKind, name: &str) {
        let is_meant = |distribution: &ResourceDistribution| identity(&distribution.spec) == Some((kind, name));
        for distribution in self.distributions.select(is_meant) {
            self.queue.add(ObjectKey::of(distribution.as_ref()));
        }
    }

    async fn follow_source(self: Arc<Self>, key: SourceKey) {
        let (kind, namespace, name) = &key;
        let resource = match kind {
            ResourceKind::ConfigMap => ApiResource::erase::<ConfigMap>(&()),
            ResourceKind::Secret => ApiResource::erase::<Secret>(&()),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(self.context.client.clone(), namespace, &resource);
        watches::watch_named(api, name, |change| {
            let content = match change {
                Ok(None) => SourceContent::Missing,
                Ok(Some(object)) => SourceContent::Present(Arc::new(object.data)),
                Err(error) => match refusal(&error) {
                    Some(why) => SourceContent::Forbidden(why),
                    // One lost connection; what was known stays true.
                    None => return,
                },
            };
            if let Some(watch) = lock(&self.watched.sources).get_mut(&key)
                && watch.content != content
            {
                watch.content = content;
                self.wake(*kind, name);
            }
        })
        .await;
    }
}

impl Copies {
    /// A task that has panicked is begun again.
    fn has_ended(&self) -> bool {
        self._task.0.as_ref().is_some_and(AbortHandle::is_finished)
    }
}

impl SourceWatch {
    fn has_ended(&self) -> bool {
        self._task.0.as_ref().is_some_and(AbortHandle::is_finished)
    }
}

fn refusal(error: &watcher::Error) -> Option<String> {
    let error = match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => error,
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => return None,
    };
    (code(error) == Some(403)).then(|| error.to_string())
}
