//! What a watch reports of its store.

use std::sync::Arc;

use super::object_key::ObjectKey;

/// One change of a store, reported after the store has taken it over.
#[derive(Debug)]
pub enum Change<'a, K> {
    /// Added or modified. `initial` is true for objects of a (re)list.
    Applied {
        /// What was reported before.
        old: Option<&'a Arc<K>>,
        /// What it holds now.
        new: &'a Arc<K>,
        /// Whether the object came with a list rather than as an event.
        initial: bool,
    },
    /// Gone.
    Deleted(&'a Arc<K>),
    /// Stored in the API server in a form that this release cannot read.
    Undecodable {
        /// Which object.
        key: &'a ObjectKey,
        /// What is wrong with it.
        error: &'a str,
    },
}

/// An object before and after a change, as far as it was and is there.
pub type Sides<'a, K> = (Option<&'a Arc<K>>, Option<&'a Arc<K>>);

impl<'a, K> Change<'a, K> {
    /// The object before and after, as far as there is one. None: it cannot be read.
    pub fn sides(&self) -> Option<Sides<'a, K>> {
        match *self {
            Self::Applied { old, new, .. } => Some((old, Some(new))),
            Self::Deleted(old) => Some((Some(old), None)),
            Self::Undecodable { .. } => None,
        }
    }
}
