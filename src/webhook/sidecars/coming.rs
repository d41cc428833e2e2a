//! SidecarSets that this process has just let through. A Pod that is created right after one was stored may come before the
//! watch brings it, and would miss it: such a Pod waits a moment. What another replica has let through is not known: a Pod that
//! this replica is asked about then lacks the SidecarSet, or has it as it was, until the watch brings it. The manager finds such
//! a Pod as any other that was missed or is outdated.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::sync::watch;

use super::known::Entry;

/// How long one is waited for from its admission on: somebody else may refuse it after us.
pub(super) const LONGEST: Duration = Duration::from_millis(250);
/// The most that are waited for at a time.
const MOST: usize = 100;

/// One that the watch has not brought yet.
struct LetThrough {
    entry: Arc<Entry>,
    /// How long it is waited for, in monotonic time.
    until: Duration,
}

/// Those that the watch has not brought yet, by name.
#[derive(Default)]
pub(super) struct Coming(watch::Sender<HashMap<Arc<str>, LetThrough>>);

impl Coming {
    /// Admission has let it through. `is_there`: the watch has brought the same spec already. Nothing may be written then, and no
    /// event follows, unless another spec was let through in between.
    pub(super) fn expect(&self, entry: Arc<Entry>, is_there: bool, now: Duration) {
        self.0.send_modify(|all| {
            all.retain(|_, coming| coming.until > now);
            // An entry of the same name is replaced: its event comes earlier.
            if all.contains_key(&entry.name) || (!is_there && all.len() < MOST) {
                all.insert(entry.name.clone(), LetThrough { entry, until: now + LONGEST });
            }
        });
    }

    /// The watch has brought it, perhaps with the spec before.
    pub(super) fn has_come(&self, entry: &Entry) {
        self.0.send_if_modified(|all| {
            let is_it = all.get(&entry.name).is_some_and(|coming| coming.entry.is_same(entry));
            is_it && all.remove(&entry.name).is_some()
        });
    }

    /// Those that were let through before now and may be for a Pod, with the time until which they are waited for.
    pub(super) fn awaited(&self, may_be_for: impl Fn(&Entry) -> bool, now: Duration) -> Vec<(Arc<str>, Duration)> {
        let all = self.0.borrow();
        let meant = all.values().filter(|coming| coming.until > now && may_be_for(&coming.entry));
        meant.map(|coming| (coming.entry.name.clone(), coming.until)).collect()
    }

    /// Waits for them. Late or not: what is known then is injected.
    pub(super) async fn wait(&self, awaited: &[(Arc<str>, Duration)], now: Duration) {
        let Some(last) = awaited.iter().map(|(_, until)| *until).max() else { return };
        // One that was let through again since has a later time, and brings what was awaited with it.
        let have_come = |all: &HashMap<Arc<str>, LetThrough>| {
            !awaited.iter().any(|(name, until)| all.get(name).is_some_and(|coming| coming.until >= *until))
        };
        let mut changes = self.0.subscribe();
        drop(tokio::time::timeout(last.saturating_sub(now), changes.wait_for(have_come)).await);
    }
}
