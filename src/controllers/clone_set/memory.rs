//! What is remembered of each CloneSet between two passes. Everything can be lost; this is the only file that locks it.

use std::{
    collections::{BTreeSet, HashMap},
    mem,
};

use super::observe::Found;
use crate::runtime::{
    pass::Memories, pod_template::Defaulted, pre_download::Notes, revisions::Resolved, watches::ObjectKey,
};

/// Of all CloneSets.
#[derive(Default)]
pub(super) struct CloneSetMemories(Memories<CloneSetMemory>);

/// Of one.
#[derive(Default)]
pub(super) struct CloneSetMemory {
    /// Its revisions, for one generation of its spec.
    resolved: Option<Resolved>,
    /// Its template with defaults, for one generation, if they are missing.
    defaulted: Option<Defaulted>,
    /// Versions of Pods that were looked at as a whole and have to wait, by UID.
    looked_at: HashMap<String, String>,
    /// Pods that may be created at the same time, as the last creations went.
    window: usize,
    /// How many Pods there are, or are to be.
    pods: usize,
    /// What the last pass found, while the next one is about to follow.
    found: Found,
    /// Pods and claims without a controller were looked for in the API server.
    has_searched: bool,
    /// How many Pods the last event said could not be created.
    limited: i32,
    /// Whether a budget kept a Pod in service in the last pass that wanted to take one out.
    is_refused: bool,
    /// Ids of instances that were deleted, and whose claims could not be.
    left: BTreeSet<String>,
    /// What was done about new images.
    pre_download: Notes,
}

impl CloneSetMemories {
    /// For what every kind does with its memories.
    pub(super) const fn all(&self) -> &Memories<CloneSetMemory> {
        &self.0
    }

    /// A pass over the CloneSet with this UID begins: what is remembered of another one of its name is dropped.
    pub(super) fn enter(&self, key: &ObjectKey, uid: &str) {
        self.0.enter(key, uid);
    }

    pub(super) fn resolved(&self, key: &ObjectKey) -> Option<Resolved> {
        self.0.with(key, |memory| memory.resolved.clone()).flatten()
    }

    pub(super) fn keep_resolved(&self, key: &ObjectKey, resolved: &Resolved) {
        self.0.with(key, |memory| memory.resolved = Some(resolved.clone()));
    }

    /// The update revision, if it is known for this generation of the spec.
    pub(super) fn update_revision(&self, key: &ObjectKey, generation: i64) -> Option<String> {
        let update = |memory: &mut CloneSetMemory| {
            let resolved = memory.resolved.as_ref().filter(|resolved| resolved.generation == generation);
            resolved.map(|resolved| resolved.update.clone())
        };
        self.0.with(key, update).flatten()
    }

    pub(super) fn defaulted(&self, key: &ObjectKey) -> Option<Defaulted> {
        self.0.with(key, |memory| memory.defaulted.clone()).flatten()
    }

    pub(super) fn keep_defaulted(&self, key: &ObjectKey, defaulted: &Defaulted) {
        self.0.with(key, |memory| memory.defaulted = Some(defaulted.clone()));
    }

    /// The version of the Pod with this UID in which it was looked at as a whole and has to wait.
    pub(super) fn waits_in(&self, key: &ObjectKey, uid: &str) -> Option<String> {
        self.0.with(key, |memory| memory.looked_at.get(uid).cloned()).flatten()
    }

    /// Pods that were looked at as a whole and have to wait, each with its UID and its version.
    pub(super) fn keep_waiting(&self, key: &ObjectKey, waits: Vec<(String, String)>) {
        self.0.with(key, |memory| memory.looked_at.extend(waits));
    }

    pub(super) fn forget_waiting(&self, key: &ObjectKey) {
        self.0.with(key, |memory| memory.looked_at.clear());
    }

    /// How many Pods may be created at the same time.
    pub(super) fn window(&self, key: &ObjectKey) -> usize {
        self.0.with(key, |memory| memory.window).unwrap_or(1)
    }

    pub(super) fn keep_window(&self, key: &ObjectKey, window: usize) {
        self.0.with(key, |memory| memory.window = window);
    }

    /// How many Pods there are, or are to be. 0: nothing is remembered.
    pub(super) fn pods(&self, key: &ObjectKey) -> usize {
        self.0.with(key, |memory| memory.pods).unwrap_or(0)
    }

    pub(super) fn keep_pods(&self, key: &ObjectKey, pods: usize) {
        self.0.with(key, |memory| memory.pods = pods);
    }

    /// What the last pass found; it is remembered no longer.
    pub(super) fn take_found(&self, key: &ObjectKey) -> Found {
        self.0.with(key, |memory| mem::take(&mut memory.found)).unwrap_or_default()
    }

    pub(super) fn keep_found(&self, key: &ObjectKey, found: Found) {
        self.0.with(key, |memory| memory.found = found);
    }

    /// Whether Pods and claims without a controller were looked for in the API server.
    pub(super) fn has_searched(&self, key: &ObjectKey) -> bool {
        self.0.with(key, |memory| memory.has_searched).unwrap_or(false)
    }

    pub(super) fn keep_searched(&self, key: &ObjectKey) {
        self.0.with(key, |memory| memory.has_searched = true);
    }

    /// The number before this one. None: nothing is remembered of the CloneSet.
    pub(super) fn replace_limited(&self, key: &ObjectKey, limited: i32) -> Option<i32> {
        self.0.with(key, |memory| mem::replace(&mut memory.limited, limited))
    }

    /// Whether a budget kept a Pod in service before. None: nothing is remembered of the CloneSet.
    pub(super) fn replace_refused(&self, key: &ObjectKey, is_refused: bool) -> Option<bool> {
        self.0.with(key, |memory| mem::replace(&mut memory.is_refused, is_refused))
    }

    /// Ids of instances that were deleted, and whose claims could not be.
    pub(super) fn left(&self, key: &ObjectKey) -> BTreeSet<String> {
        self.0.with(key, |memory| memory.left.clone()).unwrap_or_default()
    }

    pub(super) fn note_left(&self, key: &ObjectKey, id: &str) {
        self.0.with(key, |memory| memory.left.insert(id.to_owned()));
    }

    pub(super) fn keep_left(&self, key: &ObjectKey, left: BTreeSet<String>) {
        self.0.with(key, |memory| memory.left = left);
    }

    pub(super) fn pre_download(&self, key: &ObjectKey) -> Notes {
        self.0.with(key, |memory| memory.pre_download.clone()).unwrap_or_default()
    }

    pub(super) fn keep_pre_download(&self, key: &ObjectKey, notes: Notes) {
        self.0.with(key, |memory| memory.pre_download = notes);
    }

    #[cfg(test)]
    pub(super) fn has_found(&self) -> bool {
        let mut has_found = false;
        self.0.for_each(|memory| has_found |= !memory.found.is_empty());
        has_found
    }
}
