//! Places for work that costs calls of the API server: a number of them in all, and a share for each party.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::lock;

/// The places. Cheap to clone.
#[derive(Clone)]
pub struct Places<P> {
    all: Arc<Semaphore>,
    each: usize,
    parties: Arc<Mutex<HashMap<P, Arc<Semaphore>>>>,
}

/// A place that is taken. Free again when dropped.
pub struct Place<P: Hash + Eq> {
    own: Option<OwnedSemaphorePermit>,
    of_all: Option<OwnedSemaphorePermit>,
    places: Places<P>,
    party: P,
}

impl<P: Hash + Eq + Clone> Places<P> {
    /// `all` places, of which one party takes `each` at most.
    pub fn new(all: usize, each: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), each, parties: Arc::default() }
    }

    /// Waits for a place. A party that has its share waits for itself alone.
    pub async fn take(&self, party: P) -> Place<P> {
        let own = {
            let mut parties = lock(&self.parties);
            parties.entry(party.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.each))).clone()
        };
        // Made before waiting: a waiter that gives up, because its connection has ended, forgets its party too.
        let mut place = Place { own: None, of_all: None, places: self.clone(), party };
        // Neither semaphore is ever closed.
        place.own = own.acquire_owned().await.ok();
        place.of_all = self.all.clone().acquire_owned().await.ok();
        place
    }
}

impl<P: Hash + Eq> Drop for Place<P> {
    fn drop(&mut self) {
        (self.own, self.of_all) = (None, None);
        let mut parties = lock(&self.places.parties);
        // Nobody holds a place of it or waits for one: each of them has a reference.
        if parties.get(&self.party).is_some_and(|own| Arc::strong_count(own) == 1) {
            parties.remove(&self.party);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_party_takes_its_share_and_leaves_the_rest() {
        let places = Places::new(3, 2);
        let (first, _second) = (places.take("a").await, places.take("a").await);
        assert!(places.take("a").now_or_never().is_none(), "it has its share");
        let other = places.take("b").await;
        assert!(places.take("c").now_or_never().is_none(), "all are taken");
        drop(first);
        let third = places.take("a").await;
        drop((other, third));
        assert!(places.take("c").now_or_never().is_some());
    }

    #[tokio::test]
    async fn parties_without_a_place_are_forgotten() {
        let places = Places::new(1, 1);
        let held = places.take(0).await;
        for party in 1..100 {
            assert!(places.take(party).now_or_never().is_none());
        }
        assert_eq!(lock(&places.parties).len(), 1);
        drop(held);
        assert!(lock(&places.parties).is_empty());
    }
}
