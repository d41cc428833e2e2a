//! What is read of annotations of Pods that few of them have.

use std::sync::Arc;

use serde::Deserialize;

use crate::k8s::shared::Text;

/// `apps.kruise.io/matched-workloadspread` of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SpreadNote {
    /// Name of the WorkloadSpread.
    pub name: Text,
    /// Name of the subset.
    pub subset: Text,
    /// The key under which it was recorded, if it had no name then.
    pub uid: Option<Box<str>>,
}

impl SpreadNote {
    /// Reads the value of the annotation. None: it cannot be read, or names nothing.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str::<Self>(text).ok().filter(|note| !note.name.is_empty())
    }
}

/// Annotations with the override of a StatefulSet's Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverrideNotes {
    /// `kruise.rs/ordinal-override-hash`.
    pub hash: Option<Box<str>>,
    /// `kruise.rs/ordinal-override`.
    pub content: Option<Arc<str>>,
}

impl OverrideNotes {
    /// The longest content, in bytes: each Pod carries it, and it is kept of all of them.
    pub const LONGEST_CONTENT: usize = 8 << 10;
    /// The longest hash, in bytes.
    pub(super) const LONGEST_HASH: usize = 63;
}
