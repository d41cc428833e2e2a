//! Namespaces in which an object is about to be stored that makes the API server call us. The object is stored only after
//! the registration names them; otherwise a Pod that is created or deleted right after it would be missed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
    time::Duration,
};

use tokio::sync::{Semaphore, watch};

use crate::runtime::{clock, lock};

/// Stands for all namespaces where namespaces are listed; no namespace has this name.
pub const ANY: &str = "*";

/// How long such a namespace is kept: what was announced comes by the watch long before that, or it was refused by somebody
/// else.
const KEPT: Duration = Duration::from_secs(30);
/// The most namespaces that are kept.
const MOST: usize = 1000;
/// How long an author waits at most.
const LIMIT: Duration = Duration::from_secs(2);
/// How many authors wait at the same time; others do not wait. Each holds a connection that Pods may need.
const MOST_WAITING: usize = 64;

/// The namespaces that were announced to one process, for one part of the registration.
pub struct Announced {
    /// Until when each is kept.
    names: Mutex<BTreeMap<String, Duration>>,
    scope: watch::Sender<BTreeSet<String>>,
    /// What API servers know of. None: this part is not registered, or it is not known yet.
    registered: watch::Sender<Option<BTreeSet<String>>>,
    waiting: Semaphore,
}

impl Default for Announced {
    fn default() -> Self {
        Self {
            names: Mutex::default(),
            scope: watch::Sender::default(),
            registered: watch::Sender::default(),
            waiting: Semaphore::new(MOST_WAITING),
        }
    }
}

impl Announced {
    /// The announced namespaces, [`ANY`] for all, as a channel that reports changes.
    pub fn scope(&self) -> watch::Receiver<BTreeSet<String>> {
        self.scope.subscribe()
    }

    /// Where the namespaces that API servers know of are published, [`ANY`] for all.
    pub fn registered(&self) -> watch::Sender<Option<BTreeSet<String>>> {
        self.registered.clone()
    }

    /// Waits until API servers know of these namespaces, for 2 s at most: nobody's object waits for a registration that
    /// cannot be written.
    pub async fn announce(&self, wanted: BTreeSet<String>) {
        let mut registered = self.registered.subscribe();
        if registered.borrow_and_update().is_none() {
            return;
        }
        // Kept even if they are there: they may be about to go, with what was there before.
        self.keep(&wanted);
        let is_there = |known: &Option<BTreeSet<String>>| {
            known.as_ref().is_none_or(|known| known.contains(ANY) || wanted.is_subset(known))
        };
        if is_there(&registered.borrow()) {
            return;
        }
        let Ok(_place) = self.waiting.try_acquire() else { return };
        if tokio::time::timeout(LIMIT, registered.wait_for(is_there)).await.is_err() {
            tracing::warn!(namespaces = ?wanted.iter().take(10).collect::<Vec<_>>(),
                "an object is stored before its namespaces are in the registration");
        }
    }

    /// Forgets what was announced long ago, for ever.
    pub async fn forget(&self) {
        loop {
            tokio::time::sleep(KEPT).await;
            self.publish(&mut lock(&self.names));
        }
    }

    fn keep(&self, wanted: &BTreeSet<String>) {
        let until = clock::now().mono + KEPT;
        let mut names = lock(&self.names);
        for name in wanted {
            if names.len() < MOST || names.contains_key(name) {
                names.insert(name.clone(), until);
            }
        }
        self.publish(&mut names);
    }

    /// Under the lock: of two writers the later one knows more.
    fn publish(&self, names: &mut BTreeMap<String, Duration>) {
        let now = clock::now().mono;
        names.retain(|_, until| *until > now);
        self.scope.send_if_modified(|known| {
            let is_news = !known.iter().eq(names.keys());
            if is_news {
                *known = names.keys().cloned().collect();
            }
            is_news
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_announced_is_stored_when_the_registration_has_it_or_after_2_s() {
        let announced = Arc::new(Announced::default());
        let begun = tokio::time::Instant::now();
        announced.announce(names(&["shop"])).await;
        assert!(begun.elapsed().is_zero(), "this part is not registered");
        assert_eq!(*announced.scope().borrow(), names(&[]));

        // The installation: what is wanted is there a second later.
        let (mut scope, registered) = (announced.scope(), announced.registered());
        registered.send_replace(Some(names(&[])));
        let installation = tokio::spawn(async move {
            scope.changed().await.unwrap();
            let wanted = scope.borrow_and_update().clone();
            assert_eq!(wanted, names(&["shop"]));
            tokio::time::sleep(Duration::from_secs(1)).await;
            registered.send_replace(Some(wanted));
        });
        announced.announce(names(&["shop"])).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(1));
        installation.await.unwrap();
        announced.announce(names(&["shop"])).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(1), "it is there");

        announced.announce(names(&["bank", "shop"])).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(3), "nobody waits for ever");
        announced.registered().send_replace(Some(names(&[ANY])));
        announced.announce(names(&["other"])).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(3), "all namespaces are there");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_announced_is_kept_for_a_while_and_nobody_can_fill_the_list_with_one_namespace() {
        let announced = Announced::default();
        announced.registered().send_replace(Some(names(&["shop"])));
        let begun = tokio::time::Instant::now();
        for _ in 0..2 * MOST {
            announced.announce(names(&["shop"])).await;
        }
        assert_eq!(*announced.scope().borrow(), names(&["shop"]), "it may be about to go");
        announced.announce(names(&[ANY])).await;
        assert_eq!((begun.elapsed(), announced.scope().borrow().len()), (LIMIT, 2));
        tokio::select! {
            () = announced.forget() => {}
            () = tokio::time::sleep(KEPT * 2) => {}
        }
        assert!(announced.scope().borrow().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_many_authors_wait() {
        let announced = Announced::default();
        announced.registered().send_replace(Some(names(&[])));
        let begun = tokio::time::Instant::now();
        let author = |number: usize| {
            let announced = &announced;
            async move {
                announced.announce(BTreeSet::from([number.to_string()])).await;
                begun.elapsed()
            }
        };
        let waited = futures::future::join_all((0..MOST_WAITING + 5).map(author)).await;
        assert_eq!(waited.iter().filter(|waited| waited.is_zero()).count(), 5);
        assert_eq!(announced.scope().borrow().len(), MOST_WAITING + 5, "all are announced");
    }
}
