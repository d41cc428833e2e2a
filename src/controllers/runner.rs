//! Runs one controller: its watches, and its workers once everything is in view. With half a view things would look gone.

use std::{fmt::Debug, pin::Pin, sync::Arc, time::Duration};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared, join_all},
};
use kube::{Api, Resource, runtime::watcher::Config};
use serde::de::DeserializeOwned;

use super::Context;
use crate::runtime::{
    apply::namespace_is_ending,
    guarded::Guarded,
    queue::{Queue, Requeue},
    shutdown::{self, Shutdown},
    watches::{self, Change, ObjectKey, Store, StoredName, StoredObject},
};

/// How long an object is left alone, unless something happens, when its pass could not make something because their namespace
/// ends.
const AFTER_ENDING: Duration = Duration::from_secs(60);

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;
/// Makes the workers of a queue, which begin when everything is in view.
type Work = Box<dyn FnOnce(Shared<Task>) -> Task + Send>;
/// One pass over an object. Boxed: what runs the passes is the same program for all controllers.
type Reconcile = Box<dyn Fn(ObjectKey) -> BoxFuture<'static, kube::Result<Requeue>> + Send + Sync>;

/// A controller that is about to run.
pub struct Runner {
    context: Context,
    name: &'static str,
    shutdown: Shutdown,
    watches: Vec<Task>,
    synced: Vec<Task>,
    in_view: Vec<Box<dyn FnOnce() + Send>>,
    queues: Vec<Work>,
    beside: Vec<Task>,
}

impl Runner {
    /// `name` is that of logs and metrics.
    pub fn new(context: &Context, name: &'static str, shutdown: Shutdown) -> Self {
        Self {
            context: context.clone(),
            name,
            shutdown,
            watches: Vec::new(),
            synced: Vec::new(),
            in_view: Vec::new(),
            queues: Vec::new(),
            beside: Vec::new(),
        }
    }

    /// Follows custom resources, and begins when they are in view.
    pub fn watch_guarded<K>(
        self,
        api: Api<Guarded<K>>,
        config: Config,
        store: &Arc<Store<K>>,
        on_change: impl FnMut(Change<'_, K>) + Send + 'static,
    ) -> Self
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let watch = watches::watch_guarded(api, config, store.clone(), on_change);
        self.following(store).following_others(watch)
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
        self.following(store).following_others(watch)
    }

    /// Follows the names of objects. Nobody waits for them: who asks the store reads what it cannot say yet.
    pub fn watch_names<K>(
        self,
        api: Api<K>,
        store: &Arc<Store<StoredName>>,
        on_change: impl FnMut(Change<'_, StoredName>) + Send + 'static,
    ) -> Self
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        self.following_others(watches::watch_names(api, store.clone(), on_change))
    }

    /// Follows something else, for ever.
    pub fn following_others(mut self, watch: impl Future<Output = ()> + Send + 'static) -> Self {
        self.watches.push(Box::pin(watch));
        self
    }

    /// Begins when this store is in view, which somebody else keeps filled.
    pub fn following<K: StoredObject + Send + Sync + 'static>(mut self, store: &Arc<Store<K>>) -> Self {
        let store = store.clone();
        self.synced.push(Box::pin(async move { store.wait_synced().await }));
        self
    }

    /// Runs something else until the shutdown, which it sees to itself.
    pub fn beside(mut self, task: impl Future<Output = ()> + Send + 'static) -> Self {
        self.beside.push(Box::pin(task));
        self
    }

    /// Does this once, when everything is in view and before the first reconcile.
    pub fn when_in_view(mut self, begin: impl FnOnce() + Send + 'static) -> Self {
        self.in_view.push(Box::new(begin));
        self
    }

    /// Works on another queue too; `name` is that of logs and metrics.
    pub fn and_queue<F>(
        mut self,
        name: &'static str,
        queue: Arc<Queue<ObjectKey>>,
        workers: usize,
        reconcile: impl Fn(ObjectKey) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = kube::Result<Requeue>> + Send + 'static,
    {
        self.add_queue(name, queue, workers, Box::new(move |key| reconcile(key).boxed()));
        self
    }

    fn add_queue(&mut self, name: &'static str, queue: Arc<Queue<ObjectKey>>, workers: usize, reconcile: Reconcile) {
        let (context, shutdown) = (self.context.clone(), self.shutdown.clone());
        self.queues.push(Box::new(move |synced| {
            Box::pin(async move { work(&context, name, &queue, workers, shutdown, synced, reconcile).await })
        }));
    }

    /// Runs until the shutdown, then ends what it is doing.
    pub async fn run<F>(
        self,
        queue: Arc<Queue<ObjectKey>>,
        workers: usize,
        reconcile: impl Fn(ObjectKey) -> F + Send + Sync + 'static,
    ) where
        F: Future<Output = kube::Result<Requeue>> + Send + 'static,
    {
        let name = self.name;
        self.and_queue(name, queue, workers, reconcile).run_queues().await;
    }

    async fn run_queues(self) {
        let Self { watches, synced, in_view, queues, beside, .. } = self;
        let synced: Task = Box::pin(async move {
            join_all(synced).await;
            in_view.into_iter().for_each(|begin| begin());
        });
        let synced = synced.shared();
        let work = join_all(queues.into_iter().map(|work| work(synced.clone())));
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
        async move {
            let pass = async { unless_it_ends(&key, reconcile.await) };
            context.reconcile(name, &key, pass).await
        }
    };
    queue.run(workers, shutdown, counted).await;
}

/// A namespace that ends takes what it holds with it: there is nothing to try again, and nothing to complain of. What else the
/// pass has found to do is looked at again after a while.
fn unless_it_ends(key: &ObjectKey, result: kube::Result<Requeue>) -> kube::Result<Requeue> {
    match result {
        Err(error) if !key.namespace.is_empty() && namespace_is_ending(&error) => {
            tracing::debug!(%key, %error, "its namespace ends");
            Ok(Requeue::After(AFTER_ENDING))
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pass_whose_namespace_ends_is_not_tried_again_and_counts_as_no_error() {
        let refused = |cause: &str| {
            let status = json!({"code": 403, "message": "no", "details": {"causes": [{"reason": cause}]}});
            Err(kube::Error::Api(Box::new(serde_json::from_value(status).unwrap())))
        };
        let key = ObjectKey::new("ns", "web");
        assert_eq!(unless_it_ends(&key, refused("NamespaceTerminating")).unwrap(), Requeue::After(AFTER_ENDING));
        assert!(unless_it_ends(&key, refused("Quota")).is_err());
        assert_eq!(unless_it_ends(&key, Ok(Requeue::Await)).unwrap(), Requeue::Await);
        // What belongs to no namespace outlives those in which it makes things.
        let of_cluster = ObjectKey::new("", "web");
        assert!(unless_it_ends(&of_cluster, refused("NamespaceTerminating")).is_err());
    }
}
