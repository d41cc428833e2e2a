//! A bounded number of things at once, shared fairly by namespace.
//!
//! A namespace may hold at most as many places as it leaves free: half of them if it is alone, fewer beside others. So a
//! place is left for the next namespace, however many hooks of one tenant hang.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

/// Places for a number of things.
#[derive(Clone)]
pub struct Places(Arc<Mutex<Shares>>);

struct Shares {
    free: usize,
    /// By namespace; nothing is kept of those that hold none.
    held: HashMap<Box<str>, usize>,
    /// In the order in which they came.
    waiting: Vec<(Box<str>, oneshot::Sender<Place>)>,
}

/// A place, free again when it is dropped.
pub struct Place {
    places: Places,
    namespace: Box<str>,
}

impl Places {
    /// So many places.
    pub fn new(count: usize) -> Self {
        Self(Arc::new(Mutex::new(Shares { free: count, held: HashMap::new(), waiting: Vec::new() })))
    }

    /// Waits for a place. Whoever drops the future waits no longer.
    pub async fn take(&self, namespace: &str) -> Place {
        let (sender, given) = oneshot::channel();
        self.state().waiting.push((namespace.into(), sender));
        self.give();
        match given.await {
            Ok(place) => place,
            // It is dropped unused only when nobody waits.
            Err(_) => std::future::pending().await,
        }
    }

    fn state(&self) -> MutexGuard<'_, Shares> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives what is free to those who wait: first to the namespace that holds least, in it to who came first.
    fn give(&self) {
        loop {
            let (sender, place) = {
                let mut state = self.state();
                state.waiting.retain(|(_, sender)| !sender.is_closed());
                let held = |namespace: &str| state.held.get(namespace).copied().unwrap_or_default();
                let next =
                    state.waiting.iter().enumerate().map(|(index, (namespace, _))| (held(namespace), index)).min();
                let Some((_, index)) = next.filter(|(held, _)| *held < state.free) else { return };
                let (namespace, sender) = state.waiting.remove(index);
                state.free -= 1;
                *state.held.entry(namespace.clone()).or_default() += 1;
                (sender, Place { places: self.clone(), namespace })
            };
            // Nobody waits any more: its drop gives the place to the next one.
            drop(sender.send(place));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        {
            let mut state = self.places.state();
            state.free += 1;
            if let Some(held) = state.held.get_mut(&self.namespace) {
                *held -= 1;
                if *held == 0 {
                    state.held.remove(&self.namespace);
                }
            }
        }
        self.places.give();
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use futures::{FutureExt, poll};

    use super::*;

    fn now(places: &Places, namespace: &str) -> Option<Place> {
        places.take(namespace).now_or_never()
    }

    #[test]
    fn a_namespace_takes_at_most_half_and_leaves_places_for_others() {
        let places = Places::new(8);
        let all = |namespace: &str| -> Vec<Place> { std::iter::from_fn(|| now(&places, namespace)).collect() };
        let first = all("a");
        let (second, third) = (all("b"), all("c"));
        assert_eq!((first.len(), second.len(), third.len()), (4, 2, 1));
        let last = now(&places, "d");
        assert!(last.is_some() && now(&places, "e").is_none(), "all eight are taken");
        drop((first, second, third, last));
        assert_eq!((all("e").len(), places.state().held.len()), (4, 1), "all are free again");
    }

    #[tokio::test]
    async fn who_holds_least_goes_first_and_who_leaves_is_forgotten() {
        let places = Places::new(2);
        let held = now(&places, "a").unwrap();
        let mut left = Box::pin(places.take("a"));
        let mut waits = Box::pin(places.take("a"));
        assert!(poll!(&mut left).is_pending() && poll!(&mut waits).is_pending(), "it holds half of them");
        let other = now(&places, "b").unwrap();
        let mut third = Box::pin(places.take("c"));
        assert!(poll!(&mut third).is_pending());
        drop(left);
        drop(other);
        let Poll::Ready(third) = poll!(&mut third) else { panic!("c holds nothing and a holds one") };
        assert!(poll!(&mut waits).is_pending());
        drop((held, third));
        assert!(poll!(&mut waits).is_ready());
        drop(waits);
        let state = places.state();
        assert_eq!((state.free, state.waiting.len()), (2, 0));
    }
}
