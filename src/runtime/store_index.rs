//! Objects of a store by what they say: by their namespace, by what controls them.

use std::{
    cmp::Ordering,
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use kube::Resource;

use super::object_key::StoredObject;

/// One index of a store: the texts under which [`super::watches::Store::by_index`] finds an object.
pub struct StoreIndex<K> {
    /// What distinguishes it from the other indexes of the store.
    name: &'static str,
    texts: Texts<K>,
}

enum Texts<K> {
    One(fn(&K) -> Option<String>),
    Several(fn(&K) -> Vec<String>),
}

impl<K> StoreIndex<K> {
    /// An index in which an object stands once at most; `name` distinguishes it from the other indexes of the store.
    pub const fn new(name: &'static str, key: fn(&K) -> Option<String>) -> Self {
        Self { name, texts: Texts::One(key) }
    }

    /// An index in which an object stands under each of its keys.
    pub const fn of_several(name: &'static str, keys: fn(&K) -> Vec<String>) -> Self {
        Self { name, texts: Texts::Several(keys) }
    }

    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    fn texts(&self, object: &K) -> Vec<String> {
        match self.texts {
            Texts::One(key) => key(object).into_iter().collect(),
            Texts::Several(keys) => keys(object),
        }
    }
}

#[cfg(test)]
thread_local! {
    static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
impl<K> StoreIndex<K> {
    /// How many objects this thread has looked at in all indexes.
    pub fn looked_at() -> usize {
        LOOKED_AT.get()
    }
}

impl<K: Resource> StoreIndex<K> {
    /// By namespace.
    pub const fn namespace() -> Self {
        Self::new("namespace", |object| object.meta().namespace.clone())
    }
}

/// The objects of one index: rules look at all of one owner's again and again.
pub(super) struct Indexed<K> {
    of: StoreIndex<K>,
    by_text: HashMap<String, BTreeSet<ByKey<K>>>,
}

/// An object, in the order of its key. A key beside each would be four words more, in each index.
struct ByKey<K>(Arc<K>);

impl<K: StoredObject> Ord for ByKey<K> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.namespace_and_name().cmp(&other.0.namespace_and_name())
    }
}

impl<K: StoredObject> PartialOrd for ByKey<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K: StoredObject> PartialEq for ByKey<K> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<K: StoredObject> Eq for ByKey<K> {}

impl<K: StoredObject> Indexed<K> {
    pub(super) fn new(of: StoreIndex<K>) -> Self {
        Self { of, by_text: HashMap::new() }
    }

    pub(super) fn is(&self, index: &StoreIndex<K>) -> bool {
        self.of.name == index.name
    }

    /// The objects under a text that fit, in the order of their keys.
    pub(super) fn get(&self, text: &str, fits: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        let found = self.by_text.get(text).into_iter().flatten();
        #[cfg(test)]
        let found = found.inspect(|_| LOOKED_AT.set(LOOKED_AT.get() + 1));
        found.filter(|object| fits(&object.0)).map(|object| object.0.clone()).collect()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_text.is_empty()
    }

    pub(super) fn insert(&mut self, object: &Arc<K>) {
        for text in self.of.texts(object) {
            self.by_text.entry(text).or_default().replace(ByKey(object.clone()));
        }
    }

    pub(super) fn remove(&mut self, object: &Arc<K>) {
        for text in self.of.texts(object) {
            let Some(objects) = self.by_text.get_mut(&text) else { continue };
            objects.remove(&ByKey(object.clone()));
            if objects.is_empty() {
                self.by_text.remove(&text);
            }
        }
    }
}
