//! One copy of what many objects have in common: stores keep thousands of Pods, and most of a Pod is what its workload
//! says of all of them.

use std::{
    borrow::Borrow,
    collections::HashSet,
    fmt,
    hash::Hash,
    ops::Deref,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};

/// A value of about this size or more is not shared, in bytes. What nobody holds stays in a pool until it is swept, and
/// admission sees Pods that nobody has validated: a pool must not fill up with what was refused.
const HEAVY: usize = 8 << 10;

/// What a pool holds.
pub trait Weigh {
    /// About how many bytes somebody else has made it take.
    fn weight(&self) -> usize;
}

impl Weigh for str {
    fn weight(&self) -> usize {
        self.len()
    }
}

impl<T: Weigh + ?Sized> Weigh for Arc<T> {
    fn weight(&self) -> usize {
        size_of::<Self>() + (**self).weight()
    }
}

impl<T: Weigh> Weigh for [T] {
    fn weight(&self) -> usize {
        self.iter().map(Weigh::weight).sum()
    }
}

impl Weigh for String {
    fn weight(&self) -> usize {
        size_of::<Self>() + self.len()
    }
}

/// Values by content. A value stays for as long as anybody holds it.
pub struct Pool<T: ?Sized>(LazyLock<Mutex<ByContent<T>>>);

struct ByContent<T: ?Sized> {
    values: HashSet<Arc<T>>,
    /// What nobody holds any more is dropped when there are this many.
    sweep_at: usize,
}

impl<T: ?Sized + Eq + Hash + Weigh> Pool<T> {
    /// An empty pool, for a static.
    pub const fn new() -> Self {
        Self(LazyLock::new(|| Mutex::new(ByContent { values: HashSet::new(), sweep_at: 512 })))
    }

    /// The pool's copy of a value; the value itself if it is heavy.
    pub fn share<V: AsRef<T> + Into<Arc<T>>>(&self, value: V) -> Arc<T> {
        if value.as_ref().weight() >= HEAVY {
            return value.into();
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = known.values.get(value.as_ref()) {
            return shared.clone();
        }
        if known.values.len() >= known.sweep_at {
            known.values.retain(|value| Arc::strong_count(value) > 1);
            known.sweep_at = (2 * known.values.len()).max(512);
            let room = known.sweep_at;
            known.values.shrink_to(room);
        }
        let shared: Arc<T> = value.into();
        known.values.insert(shared.clone());
        shared
    }
}

impl<T: ?Sized + Eq + Hash + Weigh> Default for Pool<T> {
    fn default() -> Self {
        Self::new()
    }
}

static TEXTS: Pool<str> = Pool::new();

/// The one copy of a text.
pub fn text(text: &str) -> Arc<str> {
    TEXTS.share(text)
}

impl From<Text> for Arc<str> {
    fn from(text: Text) -> Self {
        text.0
    }
}

/// A text that many objects have, like the name of a node or a phase.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(Arc<str>);

impl Text {
    /// Itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Text {
    fn from(from: &str) -> Self {
        Self(text(from))
    }
}

impl Default for Text {
    fn default() -> Self {
        Self::from("")
    }
}

impl Deref for Text {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Text {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl PartialEq<String> for Text {
    fn eq(&self, other: &String) -> bool {
        **self == **other
    }
}

impl PartialEq<Text> for String {
    fn eq(&self, other: &Text) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The text is looked up as it stands in the input, without a copy of its own.
        struct Lookup;
        impl Visitor<'_> for Lookup {
            type Value = Text;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
                Ok(text.into())
            }
        }
        deserializer.deserialize_str(Lookup)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one() {
        static POOL: Pool<[String]> = Pool::new();
        let one = POOL.share(vec!["a".to_owned(), "b".to_owned()]);
        let two = POOL.share(vec!["a".to_owned(), "b".to_owned()]);
        assert!(Arc::ptr_eq(&one, &two));
        assert!(!Arc::ptr_eq(&one, &POOL.share(Vec::new())));
    }

    #[test]
    fn what_is_heavy_is_not_kept_behind() {
        let pool: Pool<str> = Pool::new();
        let heavy = "x".repeat(HEAVY);
        assert!(!Arc::ptr_eq(&pool.share(heavy.as_str()), &pool.share(heavy.as_str())));
        assert!(pool.0.lock().unwrap().values.is_empty());
    }

    #[test]
    fn what_nobody_holds_is_forgotten() {
        let pool: Pool<str> = Pool::new();
        let held: Vec<Arc<str>> = (0..100).map(|i| pool.share(format!("held-{i}").as_str())).collect();
        for i in 0..100_000 {
            pool.share(format!("passing-{i}").as_str());
        }
        assert!(pool.0.lock().unwrap().values.len() <= 1024, "the pool is bounded by what is held");
        assert!(Arc::ptr_eq(&held[7], &pool.share("held-7")));
    }
}
