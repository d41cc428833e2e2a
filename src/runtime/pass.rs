//! One pass over one object: what it has found to do later, and what is remembered for the next one.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use super::{
    apply::{is_refusal, said},
    lock,
    object_key::StoredObject,
    queue::Requeue,
    watches::{ObjectKey, Store},
};
use crate::k8s::time::sooner;

/// After a write that was refused because the object had changed and has been read again.
pub const AFTER_CONFLICT: Duration = Duration::from_millis(20);
/// After a write that was refused because the object had changed, and that waits for the watch to deliver the change.
pub const AFTER_WATCHED_CONFLICT: Duration = Duration::from_millis(200);
/// After a budget has kept a Pod in service, and at the earliest after the API server has refused something.
pub const AFTER_REFUSAL: Duration = Duration::from_secs(1);

/// What comes of one pass. A refusal of one Pod is noted, and the pass goes on.
#[derive(Debug, Default)]
pub struct Pass {
    /// When something that is waited for will be due.
    pub look: Option<Duration>,
    /// Something was done: look again at once.
    pub again: bool,
    /// The first failure: look again after a while, longer each time.
    pub error: Option<kube::Error>,
}

impl Pass {
    /// Looks again then, or earlier.
    pub fn look_after(&mut self, after: Option<Duration>) {
        self.look = sooner(self.look, after);
    }

    /// Notes the outcome of a step: whether it has changed something. Returns a failure as text.
    pub fn note(&mut self, result: kube::Result<bool>) -> Option<String> {
        match result {
            Ok(changed) => {
                self.again |= changed;
                None
            }
            Err(error) => {
                let words = said(&error);
                self.error.get_or_insert(error);
                Some(words)
            }
        }
    }

    /// Whether the pass may go on: what was refused keeps nothing else from being done, but of any other failure nobody
    /// knows what has been done.
    pub fn may_go_on(&self) -> bool {
        self.error.as_ref().is_none_or(is_refusal)
    }

    /// When to look again, failures aside.
    pub fn next_look(&self) -> Option<Duration> {
        let soon = self.again.then_some(Duration::ZERO);
        [soon, self.look].into_iter().flatten().min()
    }

    /// The end of the pass. `look_later` gets the time of the next look besides the back-off: what else is waited for does not
    /// wait for that.
    ///
    /// # Errors
    /// The first failure.
    pub fn end(self, look_later: impl FnOnce(Duration)) -> kube::Result<Requeue> {
        let next = self.next_look();
        match self.error {
            Some(error) => {
                if let Some(next) = next.filter(|_| is_refusal(&error)) {
                    look_later(next.max(AFTER_REFUSAL));
                }
                Err(error)
            }
            None => Ok(next.map_or(Requeue::Await, Requeue::After)),
        }
    }
}

/// What is remembered of objects, by their keys, as long as they are the same objects. Everything can be lost.
#[derive(Debug)]
pub struct Memories<M>(Mutex<HashMap<ObjectKey, (String, M)>>);

impl<M> Default for Memories<M> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<M: Default> Memories<M> {
    /// At the begin of a pass: what is remembered of a namesake that was deleted is forgotten.
    pub fn enter(&self, key: &ObjectKey, uid: &str) {
        let mut memories = lock(&self.0);
        let memory = memories.entry(key.clone()).or_default();
        if memory.0 != uid {
            *memory = (uid.to_owned(), M::default());
        }
    }

    /// Reads or changes what is remembered of an object. None: nothing is.
    pub fn with<R>(&self, key: &ObjectKey, f: impl FnOnce(&mut M) -> R) -> Option<R> {
        lock(&self.0).get_mut(key).map(|(_, memory)| f(memory))
    }

    /// Forgets an object.
    pub fn forget(&self, key: &ObjectKey) {
        lock(&self.0).remove(key);
    }

    /// Forgets everything, as a restart does.
    #[cfg(test)]
    pub fn clear(&self) {
        lock(&self.0).clear();
    }

    /// Reads or changes what is remembered of all objects.
    pub fn for_each(&self, mut f: impl FnMut(&mut M)) {
        lock(&self.0).values_mut().for_each(|(_, memory)| f(memory));
    }
}

/// At the end of a pass: forgets an object that was deleted meanwhile. What the pass has noted since the watch reported the deletion
/// would be kept for ever.
pub fn forget_deleted<K: StoredObject, M>(memories: &Mutex<HashMap<ObjectKey, M>>, store: &Store<K>, key: &ObjectKey) {
    if store.get(key).is_none() {
        lock(memories).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: u16) -> kube::Error {
        let status = serde_json::json!({"code": code, "message": format!("code {code}")});
        kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
    }

    #[test]
    fn a_refusal_ends_no_pass_and_anything_else_does() {
        for (code, goes_on) in [(403, true), (422, true), (429, true), (500, false), (504, false)] {
            let mut pass = Pass::default();
            assert!(pass.note(Err(failure(code))).is_some());
            assert_eq!(pass.may_go_on(), goes_on, "{code}");
        }
    }

    #[test]
    fn the_next_look_is_the_earliest_and_does_not_wait_for_the_back_off() {
        let seconds = Duration::from_secs;
        let mut pass = Pass::default();
        pass.look_after(Some(seconds(9)));
        pass.look_after(Some(seconds(3)));
        pass.look_after(None);
        assert_eq!(pass.next_look(), Some(seconds(3)));
        pass.note(Err(failure(403)));
        pass.note(Err(failure(500)));
        let mut later = None;
        assert_eq!(pass.end(|after| later = Some(after)).unwrap_err().to_string(), failure(403).to_string());
        assert_eq!(later, Some(seconds(3)));

        let mut changed = Pass::default();
        assert_eq!(changed.note(Ok(true)), None);
        assert_eq!(changed.end(|_| panic!()).unwrap(), Requeue::After(Duration::ZERO));
        let mut refused = Pass { again: true, ..Pass::default() };
        refused.note(Err(failure(409)));
        let mut later = None;
        refused.end(|after| later = Some(after)).unwrap_err();
        assert_eq!(later, Some(AFTER_REFUSAL), "not at once");
        let unknown = Pass { again: true, error: Some(failure(500)), ..Pass::default() };
        unknown.end(|_| panic!("the back-off decides")).unwrap_err();
    }

    #[test]
    fn a_namesake_begins_with_nothing() {
        let memories: Memories<usize> = Memories::default();
        let key = ObjectKey::new("ns", "web");
        assert_eq!(memories.with(&key, |memory| *memory), None);
        memories.enter(&key, "a");
        memories.with(&key, |memory| *memory = 5);
        memories.enter(&key, "a");
        assert_eq!(memories.with(&key, |memory| *memory), Some(5));
        memories.enter(&key, "b");
        assert_eq!(memories.with(&key, |memory| *memory), Some(0));
        memories.forget(&key);
        assert_eq!(memories.with(&key, |memory| *memory), None);
    }
}
