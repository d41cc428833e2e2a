//! Runs one controller: its watches, and its workers once everything is in view. With half a view things would look gone.

use std::{fmt::Debug, pin::Pin, sync::Arc};

use futures::future::join_all;
use kube::{Api, Resource, core::DeserializeGuard, runtime::watcher::Config};
use serde::de::DeserializeOwned;

use super::Context;
use crate::runtime::{
    queue::{Queue, Requeue},
    shutdown::{self, Shutdown},
    watches::{self, Change, ObjectKey, Store},
};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A controller that is about to run.
pub struct Runner {
    context: Context,
    name: &'static str,
    shutdown: Shutdown,
    watches: Vec<Task>,
    synced: Vec<Task>,
    beside: Vec<Task>,
}

impl Runner {
    /// `name` is that of logs and metrics.
    pub fn new(context: &Context, name: &'static str, shutdown: Shutdown) -> Self {
        Self { context: context.clone(), name, shutdown, watches: Vec::new(), synced: Vec::new(), beside: Vec::new() }
    }

    /// Follows custom resources, and begins when they are in view.
    pub fn watch_guarded<K>(
        self,
        api: Api<DeserializeGuard<K>>,
        config: Config,
        store: &Arc<Store<K>>,
        on_change: impl FnMut(Change<'_, K>) + Send + 'static,
    ) -> Self
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let watch = watches::watch_guarded(api, config, store.clone(), on_change);
        self.following(store).task(watch)
    }

    /// Follows objects of the API server's own kinds, and begins when they are in view.
    pub fn watch<K>(
        self,
        api: Api<K>,
        config: Config,
        store: &Arc<Store<K>>,
        on_change: impl FnMut(Change<'_, K>) + Send + 'static,
    ) -> Self
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let watch = watches::watch(api, config, store.clone(), on_change);
        self.following(store).task(watch)
    }

    fn task(mut self, watch: impl Future<Output = ()> + Send + 'static) -> Self {
        self.watches.push(Box::pin(watch));
        self
    }

    /// Begins when this store is in view, which somebody else keeps filled.
    pub fn following<K: Resource + Send + Sync + 'static>(mut self, store: &Arc<Store<K>>) -> Self {
        let store = store.clone();
        self.synced.push(Box::pin(async move { store.wait_synced().await }));
        self
    }

    /// Runs something else until the shutdown, which it sees to itself.
    pub fn beside(mut self, task: impl Future<Output = ()> + Send + 'static) -> Self {
        self.beside.push(Box::pin(task));
        self
    }

    /// Runs until the shutdown, then ends what it is doing.
    pub async fn run<F>(self, queue: Arc<Queue<ObjectKey>>, workers: usize, reconcile: impl Fn(ObjectKey) -> F)
    where
        F: Future<Output = kube::Result<Requeue>> + Send + 'static,
    {
        let Self { context, name, shutdown, watches, synced, beside } = self;
        let synced = async { drop(join_all(synced).await) };
        let work = work(&context, name, &queue, workers, shutdown, synced, reconcile);
        let watch = async {
            // Watches are for ever. There may be none.
            join_all(watches).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = watch => {}
            _ = async { tokio::join!(work, join_all(beside)) } => {}
        }
    }
}

/// Waits until everything is in view, then reconciles until the shutdown.
pub(super) async fn work<F>(
    context: &Context,
    name: &'static str,
    queue: &Queue<ObjectKey>,
    workers: usize,
    shutdown: Shutdown,
    synced: impl Future<Output = ()>,
    reconcile: impl Fn(ObjectKey) -> F,
) where
    F: Future<Output = kube::Result<Requeue>> + Send + 'static,
{
    tokio::select! {
        () = synced => {}
        () = shutdown::requested(shutdown.clone()) => return,
    }
    tracing::info!(controller = name, "running");
    let counted = |key: ObjectKey, _| {
        let (context, reconcile) = (context.clone(), reconcile(key.clone()));
        async move { context.reconcile(name, &key, reconcile).await }
    };
    queue.run(workers, shutdown, counted).await;
}
