//! Namespaces in which something is about to be stored for which the API server has to call us: it is stored when the
//! registration says so, so that what is done right after it is not missed.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

use crate::runtime::clock;

/// Stands for all namespaces where namespaces are listed; no namespace has this name.
pub const ANY: &str = "*";

/// How long such a namespace is kept: what was announced comes by the watch long before that, or it was refused by somebody
/// else.
const KEPT: Duration = Duration::from_secs(30);
/// The most announcements that are kept.
const MOST: usize = 1000;
/// How long an author waits at most.
const LIMIT: Duration = Duration::from_secs(2);

/// The namespaces that were announced to one process, for one part of the registration.
pub struct Announced {
    names: Mutex<Vec<(Duration, BTreeSet<String>)>>,
    scope: watch::Sender<Option<BTreeSet<String>>>,
    /// What API servers know of. None: nobody keeps the registration, or not yet.
    registered: watch::Sender<Option<BTreeSet<String>>>,
}

impl Default for Announced {
    fn default() -> Self {
        Self {
            names: Mutex::default(),
            scope: watch::Sender::new(Some(BTreeSet::new())),
            registered: watch::Sender::new(None),
        }
    }
}

impl Announced {
    /// The announced namespaces, [`ANY`] for all, as a channel that reports changes.
    pub fn scope(&self) -> watch::Receiver<Option<BTreeSet<String>>> {
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
        let is_there = |known: &Option<BTreeSet<String>>| {
            known.as_ref().is_none_or(|known| known.contains(ANY) || wanted.is_subset(known))
        };
        if is_there(&registered.borrow_and_update()) {
            return;
        }
        {
            let mut names = self.names();
            if names.len() < MOST {
                names.push((clock::now().mono + KEPT, wanted.clone()));
            }
        }
        self.publish();
        if tokio::time::timeout(LIMIT, registered.wait_for(is_there)).await.is_err() {
            tracing::warn!(namespaces = ?wanted.iter().take(10).collect::<Vec<_>>(),
                "an object is stored before its namespaces are in the registration");
        }
    }

    /// Forgets what was announced long ago, for ever.
    pub async fn forget(&self) {
        loop {
            tokio::time::sleep(KEPT).await;
            self.publish();
        }
    }

    fn publish(&self) {
        let now = clock::now().mono;
        let mut names = self.names();
        names.retain(|(until, _)| *until > now);
        let wanted: BTreeSet<String> = names.iter().flat_map(|(_, names)| names).cloned().collect();
        // Published under the lock: of two writers the later one knows more.
        self.scope.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&wanted);
            *known = Some(wanted);
            changed
        });
        drop(names);
    }

    fn names(&self) -> MutexGuard<'_, Vec<(Duration, BTreeSet<String>)>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
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
        assert!(begun.elapsed().is_zero(), "nobody keeps the registration");
        assert_eq!(*announced.scope().borrow(), Some(names(&[])));

        // The installation: what is wanted is there a second later.
        let (mut scope, registered) = (announced.scope(), announced.registered());
        registered.send_replace(Some(names(&[])));
        let installation = tokio::spawn(async move {
            scope.changed().await.unwrap();
            let wanted = scope.borrow_and_update().clone();
            assert_eq!(wanted, Some(names(&["shop"])));
            tokio::time::sleep(Duration::from_secs(1)).await;
            registered.send_replace(wanted);
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
}
