//! Marks of what somebody is working on, which no panic leaves behind.

use std::{collections::HashSet, sync::Mutex};

use super::lock;

/// A key in a set, until it is dropped: also when the task that holds it panics or is aborted.
#[derive(Debug)]
pub struct Held<'a> {
    all: &'a Mutex<HashSet<String>>,
    key: String,
}

impl<'a> Held<'a> {
    /// Marks a key. None: somebody else holds it.
    pub fn take(all: &'a Mutex<HashSet<String>>, key: &str) -> Option<Self> {
        lock(all).insert(key.to_owned()).then(|| Self { all, key: key.to_owned() })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        lock(self.all).remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn a_key_is_free_again_after_a_panic_and_after_an_abort() {
        let all: Arc<Mutex<HashSet<String>>> = Arc::default();
        let held = Held::take(&all, "a").unwrap();
        assert!(Held::take(&all, "a").is_none() && Held::take(&all, "b").is_some());
        drop(held);
        for panics in [true, false] {
            let set = all.clone();
            let task = tokio::spawn(async move {
                let _held = Held::take(&set, "a").unwrap();
                assert!(!panics, "as a rule that meets what nobody thought of");
                std::future::pending::<()>().await;
            });
            tokio::task::yield_now().await;
            task.abort();
            assert!(task.await.is_err());
            assert!(lock(&all).is_empty(), "{panics}");
        }
    }
}
