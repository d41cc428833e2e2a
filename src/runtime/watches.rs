//! The one way to watch: a [`Store`] that follows the API server, and a callback for what changed.
//!
//! An object that does not decode never wedges a stream: it leaves the store, is reported as
//! [`Change::Undecodable`], and everything else goes on.

mod following;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::watch as channel, time::Instant};

pub use self::following::{
    first_list, watch, watch_as, watch_dynamic, watch_guarded, watch_in_protobuf, watch_named, watch_named_guarded,
    watch_names,
};
use super::store_index::Indexed;
pub use super::{
    change::{Change, Sides},
    object_key::{ObjectKey, StoredName, StoredObject},
    store_index::StoreIndex,
};

struct Objects<K> {
    by_key: HashMap<ObjectKey, Entry<K>>,
    indexes: Vec<Indexed<K>>,
    /// Objects that own writes have changed, with the version that was reported last (None: no version yet). The watch
    /// delivers these changes later, and then they are reported to everybody, not only to the writer.
    unreported: HashMap<ObjectKey, Option<Arc<K>>>,
    /// Taken over from own writes since the list that is being read began: it may be older than they are.
    written: HashSet<ObjectKey>,
    listing: bool,
    /// When the watch failed last.
    failed: Option<Instant>,
    gone: Gone,
}

/// The objects that have gone last, by a hash of their UIDs. The answer to a write may come later than the news that
/// the object is gone, and nothing would ever remove it again.
#[derive(Default)]
struct Gone {
    known: HashMap<u64, ReportedBy>,
    order: VecDeque<u64>,
}

/// Who said that an object is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportedBy {
    /// An answer. What the watch says of the object after that was before it.
    Answer,
    /// The watch, or a list. What it says after that is later: the selector of the watch matches the object again.
    Watch,
}

impl Gone {
    /// More than can be deleted while one answer is on its way.
    const MOST: usize = 4096;

    fn hash(uid: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        uid.hash(&mut hasher);
        hasher.finish()
    }

    fn add(&mut self, uid: Option<&str>, by: ReportedBy) {
        let Some(uid) = uid.map(Self::hash) else { return };
        if let Some(known) = self.known.get_mut(&uid) {
            // An answer that comes late takes nothing back.
            if by == ReportedBy::Watch {
                *known = by;
            }
            return;
        }
        self.known.insert(uid, by);
        self.order.push_back(uid);
        if self.order.len() > Self::MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// Whether an object that arrives, by the answer to an own write or by the watch, has gone and must not come back. If the watch
    /// has said itself that the object is gone and brings it again, the selector matches it again: it comes back.
    fn keeps_out(&mut self, uid: Option<&str>, own_write: bool) -> bool {
        if self.known.is_empty() {
            return false;
        }
        let Some(uid) = uid.map(Self::hash) else { return false };
        match self.known.get(&uid).copied() {
            None => false,
            Some(ReportedBy::Watch) if !own_write => {
                self.known.remove(&uid);
                self.order.retain(|other| *other != uid);
                false
            }
            Some(_) => true,
        }
    }
}

enum Entry<K> {
    /// The object, and whether the answer to an own write has brought this version.
    Object(Arc<K>, bool),
    /// An object with which nobody has anything to do any more: enough to know an older version when it comes late.
    Settled { uid: Box<str>, version: u64 },
}

impl<K: StoredObject> Entry<K> {
    /// Holds for another object of the same name too: versions grow over all objects of a kind, so an object is older than
    /// the one that replaced it, whichever arrives first. Without a version the two cannot be compared.
    fn is_newer_than(&self, object: &K) -> bool {
        let version = resource_version(object);
        self.version() > version && (version > 0 || self.uid() == object.object_uid())
    }

    /// Whether it is this very version.
    fn is(&self, object: &K) -> bool {
        self.uid() == object.object_uid() && self.version() == resource_version(object)
    }

    fn version(&self) -> u64 {
        match self {
            Self::Object(held, _) => resource_version(held.as_ref()),
            Self::Settled { version, .. } => *version,
        }
    }

    fn uid(&self) -> Option<&str> {
        match self {
            Self::Object(held, _) => held.object_uid(),
            Self::Settled { uid, .. } => Some(uid),
        }
    }

    fn object(&self) -> Option<&Arc<K>> {
        match self {
            Self::Object(held, _) => Some(held),
            Self::Settled { .. } => None,
        }
    }
}

/// What a watch has seen, newest version of each object, without `managedFields`: nobody decides from them.
pub struct Store<K> {
    objects: Mutex<Objects<K>>,
    is_settled: Option<fn(&K) -> bool>,
    synced: channel::Sender<bool>,
}

impl<K: StoredObject> Store<K> {
    /// An empty store with these indexes.
    pub fn new(indexes: impl IntoIterator<Item = StoreIndex<K>>) -> Arc<Self> {
        Self::make(indexes, None)
    }

    /// An empty store of open work: it keeps a few bytes of each settled object, and neither returns it nor reports its
    /// deletion.
    pub fn of_work(indexes: impl IntoIterator<Item = StoreIndex<K>>, is_settled: fn(&K) -> bool) -> Arc<Self> {
        Self::make(indexes, Some(is_settled))
    }

    fn make(indexes: impl IntoIterator<Item = StoreIndex<K>>, is_settled: Option<fn(&K) -> bool>) -> Arc<Self> {
        let indexes = indexes.into_iter().map(Indexed::new).collect();
        let objects = Mutex::new(Objects {
            by_key: HashMap::new(),
            indexes,
            unreported: HashMap::new(),
            written: HashSet::new(),
            listing: false,
            failed: None,
            gone: Gone::default(),
        });
        Arc::new(Self { objects, is_settled, synced: channel::Sender::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, Objects<K>> {
        // A panic while the lock was held leaves whole objects behind, never half of one.
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One object.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.lock().by_key.get(key)?.object().cloned()
    }

    /// Whether somebody else has written the version that is there: no answer to an own write has brought it.
    pub fn is_of_others(&self, key: &ObjectKey) -> bool {
        matches!(self.lock().by_key.get(key), Some(Entry::Object(_, false)))
    }

    /// All objects, in no order.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.lock().by_key.values().filter_map(Entry::object).cloned().collect()
    }

    /// The objects that fit, in no order.
    pub fn select(&self, fits: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        self.lock().by_key.values().filter_map(Entry::object).filter(|object| fits(object)).cloned().collect()
    }

    /// All objects under a text of one of the store's indexes, in the order of their keys.
    pub fn by_index(&self, index: &StoreIndex<K>, text: &str) -> Vec<Arc<K>> {
        self.select_by_index(index, text, |_| true)
    }

    /// The same, of those that fit: the others are not touched but to look at them.
    pub fn select_by_index(&self, index: &StoreIndex<K>, text: &str, fits: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        let objects = self.lock();
        let indexed = objects.indexes.iter().find(|indexed| indexed.is(index));
        debug_assert!(indexed.is_some(), "a store without the index {}", index.name());
        indexed.map(|indexed| indexed.get(text, fits)).unwrap_or_default()
    }

    /// How many objects there are, settled ones too.
    pub fn len(&self) -> usize {
        self.lock().by_key.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a list is being read, or what it lacks is being reported.
    pub fn is_listing(&self) -> bool {
        self.lock().listing
    }

    /// Whether the first list is complete.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Whether an object that is not in the store does not exist, but for events that are on their way: the first list is complete,
    /// no list is being read, and the watch has not failed for longer than lies between two failures.
    pub fn is_current(&self) -> bool {
        // An answer is waited for for a minute, and its body for another one; then there is a pause.
        const QUIET: Duration = Duration::from_secs(150);
        let objects = self.lock();
        self.is_synced() && !objects.listing && objects.failed.is_none_or(|at| at.elapsed() > QUIET)
    }

    /// The watch has failed.
    pub fn note_failure(&self) {
        self.lock().failed = Some(Instant::now());
    }

    /// All that there is has come.
    #[cfg(test)]
    pub fn has_all(&self) {
        self.synced.send_replace(true);
    }

    /// Waits until the first list is complete.
    pub async fn wait_synced(&self) {
        let mut synced = self.synced.subscribe();
        // The sender lives as long as `self`, so an error cannot happen while we are here.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// Takes over an object unless a newer version of it is there already. Returns what was there before, and the object that
    /// is there now; None instead of it: it was not taken over.
    ///
    /// Call it with the answer to an own write: decisions then rest on that write, however late its watch event comes.
    pub fn upsert(&self, object: K) -> (Option<Arc<K>>, Option<Arc<K>>) {
        self.put(object, true)
    }

    /// Returns what was there before, as it was reported last, and what is there now.
    fn put(&self, mut object: K, own_write: bool) -> (Option<Arc<K>>, Option<Arc<K>>) {
        let key = ObjectKey::of(&object);
        object.drop_managed_fields();
        let mut objects = self.lock();
        if objects.gone.keeps_out(object.object_uid(), own_write) {
            return (None, None);
        }
        if own_write && objects.listing {
            objects.written.insert(key.clone());
        }
        let held = objects.by_key.get(&key);
        let old = held.and_then(Entry::object).cloned();
        // A list shows which of two objects of one name exists, even if versions have restarted, as after a restore.
        let is_listed = objects.listing && !own_write && !objects.written.contains(&key);
        let replaces = held.is_some_and(|held| is_listed && held.uid() != object.object_uid());
        if !replaces && held.is_some_and(|held| held.is_newer_than(&object)) {
            return (old, None);
        }
        let is_known = held.is_some_and(|held| held.is(&object));
        let is_own = own_write || is_known && matches!(held, Some(Entry::Object(_, true)));
        let reported = if own_write {
            if !is_known {
                objects.unreported.entry(key.clone()).or_insert_with(|| old.clone());
            }
            old.clone()
        } else {
            objects.unreported.remove(&key).unwrap_or_else(|| old.clone())
        };
        // A map keeps the key with which it was first filled.
        if let Some((known, _)) = objects.by_key.get_key_value(&key) {
            object.share_key(known);
        }
        let new = Arc::new(object);
        let settled = self.is_settled.is_some_and(|is_settled| is_settled(&new));
        for index in &mut objects.indexes {
            if let Some(old) = &old {
                index.remove(old);
            }
            if !settled {
                index.insert(&new);
            }
        }
        let entry = if settled {
            let uid = new.object_uid().unwrap_or_default().into();
            Entry::Settled { uid, version: resource_version(new.as_ref()) }
        } else {
            Entry::Object(new.clone(), is_own)
        };
        objects.by_key.insert(key, entry);
        (reported, Some(new))
    }

    /// Drops an object that is gone according to an answer of the API server; `uid` protects a successor of the same name.
    /// The watch reports the deletion.
    pub fn remove(&self, key: &ObjectKey, uid: Option<&str>) -> Option<Arc<K>> {
        let mut objects = self.lock();
        let old = self.drop_from(&mut objects, key, uid, ReportedBy::Answer)?;
        objects.unreported.entry(key.clone()).or_insert_with(|| Some(old.clone()));
        Some(old)
    }

    /// The same by the watch: returns what has ended, also if an answer had said so before.
    fn end(&self, key: &ObjectKey, uid: Option<&str>) -> Option<Arc<K>> {
        let mut objects = self.lock();
        let old = self.drop_from(&mut objects, key, uid, ReportedBy::Watch);
        let reported = objects
            .unreported
            .get(key)
            .cloned()
            .flatten()
            .filter(|reported| uid.is_none() || reported.object_uid() == uid);
        match objects.by_key.contains_key(key) {
            // Its successor has not been reported yet.
            true if reported.is_some() => drop(objects.unreported.insert(key.clone(), None)),
            true => {}
            false => drop(objects.unreported.remove(key)),
        }
        old.or(reported)
    }

    fn drop_from(
        &self,
        objects: &mut Objects<K>,
        key: &ObjectKey,
        uid: Option<&str>,
        by: ReportedBy,
    ) -> Option<Arc<K>> {
        objects.gone.add(uid, by);
        if uid.is_some() && objects.by_key.get(key)?.uid() != uid {
            return None;
        }
        let old = objects.by_key.remove(key)?.object().cloned()?;
        objects.indexes.iter_mut().for_each(|index| index.remove(&old));
        Some(old)
    }

    /// A list begins to be read.
    fn begin_list(&self) {
        let mut objects = self.lock();
        objects.listing = true;
        objects.written.clear();
    }

    /// Drops what is not in a complete list, and returns it: the list ends when that has been reported. What an own write put here
    /// while the list was being read stays if it is newer than everything in the list: the watch that follows reports its end.
    fn retain(&self, listed: &HashSet<ObjectKey>) -> Vec<Arc<K>> {
        let mut objects = self.lock();
        let written = std::mem::take(&mut objects.written);
        let version = |key: &ObjectKey| objects.by_key.get(key).map_or(0, Entry::version);
        let newest = listed.iter().map(version).max().unwrap_or(0);
        let stays = |key: &ObjectKey| listed.contains(key) || (written.contains(key) && version(key) > newest);
        let gone: Vec<ObjectKey> = objects.by_key.keys().filter(|key| !stays(key)).cloned().collect();
        let mut dropped = Vec::new();
        // Objects that are gone according to an earlier answer, and according to the list.
        let ended: Vec<ObjectKey> =
            objects.unreported.keys().filter(|key| !objects.by_key.contains_key(*key)).cloned().collect();
        dropped.extend(ended.iter().filter_map(|key| objects.unreported.remove(key).flatten()));
        for key in gone {
            objects.unreported.remove(&key);
            let Some(entry) = objects.by_key.remove(&key) else { continue };
            // An answer that is on its way must not bring it back. What was written meanwhile may be newer than the list.
            if !written.contains(&key) {
                objects.gone.add(entry.uid(), ReportedBy::Watch);
            }
            if let Entry::Object(old, _) = entry {
                objects.indexes.iter_mut().for_each(|index| index.remove(&old));
                dropped.push(old);
            }
        }
        dropped
    }
}

/// What a watch brings, for random histories, which have no watch.
#[cfg(test)]
impl<K: StoredObject> Store<K> {
    /// What there is now.
    pub fn see(&self, object: K, mut on_change: impl FnMut(Change<'_, K>)) {
        following::take(self, Ok::<_, std::convert::Infallible>, object, false, &mut on_change);
    }

    /// It is gone.
    pub fn see_gone(&self, key: &ObjectKey, uid: Option<&str>, on_change: impl FnOnce(Change<'_, K>)) {
        if let Some(old) = self.end(key, uid) {
            on_change(Change::Deleted(&old));
        }
    }
}

/// The numeric resource version; etcd's revisions only grow. An object without one is older than any other.
fn resource_version<K: StoredObject>(object: &K) -> u64 {
    object.object_version().and_then(|v| v.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{k8s::pod::PodView, runtime::metrics::own_memory};

    const BY_UID: StoreIndex<PodView> = StoreIndex::new("UID", |pod| Some(pod.uid().to_owned()));
    const BY_NODE: StoreIndex<PodView> = StoreIndex::new("node", |pod| Some(pod.node_name.as_str().to_owned()));

    fn pod(name: &str, uid: &str, version: &str) -> PodView {
        serde_json::from_value(
            serde_json::json!({"metadata": {"name": name, "namespace": "a", "uid": uid, "resourceVersion": version}}),
        )
        .unwrap()
    }

    #[test]
    fn an_older_version_never_replaces_a_newer_one() {
        let store = Store::new(None);
        store.upsert(pod("p", "u", "20"));
        assert!(store.upsert(pod("p", "u", "9")).1.is_none());
        assert_eq!(resource_version(store.get(&ObjectKey::new("a", "p")).unwrap().as_ref()), 20);
    }

    #[test]
    fn versions_of_others_are_told_from_own_ones() {
        let (store, key) = (Store::new(None), ObjectKey::new("a", "p"));
        store.see(pod("p", "u", "1"), |_| {});
        assert!(store.is_of_others(&key));
        store.upsert(pod("p", "u", "2"));
        assert!(!store.is_of_others(&key));
        store.see(pod("p", "u", "2"), |_| {});
        assert!(!store.is_of_others(&key), "the event of an own write");
        store.see(pod("p", "u", "3"), |_| {});
        assert!(store.is_of_others(&key));
        store.upsert(pod("p", "u", "3"));
        assert!(!store.is_of_others(&key), "the answer came after the event");
    }

    /// A Pod as kubelet reports it, of one of many CloneSets.
    fn of_clone_set(i: usize) -> serde_json::Value {
        let (set, node) = (i / 20, i % 1000);
        let time = "2026-01-01T00:00:00Z";
        let conditions = [
            "PodReadyToStartContainers",
            "Initialized",
            "Ready",
            "ContainersReady",
            "PodScheduled",
            "KruisePodReady",
            "InPlaceUpdateReady",
        ];
        let condition = |type_: &&str| serde_json::json!({"type": type_, "status": "True", "lastTransitionTime": time});
        serde_json::json!({
            "metadata": {"name": format!("set-{set}-{i:05}"), "namespace": "shop", "uid": format!("{i:08}-1111-4222-8333-444455556666"),
                "resourceVersion": (1_000_000 + i).to_string(), "creationTimestamp": time, "generation": 1,
                "labels": {"app": "many", "set": format!("set-{set}"), "controller-revision-hash": format!("set-{set}-7f9c6d5b8"),
                    "pod-template-hash": "7f9c6d5b8", "apps.kruise.io/cloneset-instance-id": format!("{i:05}"),
                    "lifecycle.apps.kruise.io/state": "Normal"},
                "annotations": {"apps.kruise.io/runtime-containers-meta": "{}", "lifecycle.apps.kruise.io/timestamp": time},
                "ownerReferences": [{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": format!("set-{set}"),
                    "uid": format!("{set:08}-aaaa-4bbb-8ccc-ddddeeeeffff"), "controller": true}]},
            "spec": {"nodeName": format!("node-{node}"), "restartPolicy": "Always", "terminationGracePeriodSeconds": 30,
                "readinessGates": [{"conditionType": "KruisePodReady"}, {"conditionType": "InPlaceUpdateReady"}],
                "containers": [{"name": "main", "image": "registry.example/shop/web:1.2.3"}]},
            "status": {"phase": "Running", "podIP": format!("10.1.{}.{}", i / 250, i % 250),
                "conditions": conditions.iter().map(condition).collect::<Vec<_>>(),
                "containerStatuses": [{"name": "main", "ready": true, "started": true, "restartCount": 0,
                    "image": "registry.example/shop/web:1.2.3", "imageID": format!("registry.example/shop/web@sha256:{:064}", 7),
                    "containerID": format!("containerd://{i:064}"), "state": {"running": {"startedAt": time}}}]},
        })
    }

    /// Counts this process's memory, so it runs in one of its own.
    #[test]
    #[ignore = "run by the next test"]
    fn memory_of_many_pods() {
        const PODS: usize = 10_000;
        const BY_OWNER: StoreIndex<PodView> =
            StoreIndex::new("owner", |pod| pod.controller.as_ref().map(|owner| owner.uid.clone()));
        let store = Store::new([BY_OWNER]);
        // What a decoder needs once.
        store.upsert(serde_json::from_value(of_clone_set(PODS)).unwrap());
        let before = own_memory();
        for i in 0..PODS {
            store.put(serde_json::from_value(of_clone_set(i)).unwrap(), false);
        }
        let each = own_memory().saturating_sub(before) / PODS;
        println!("{each} bytes for each Pod, {} of them its view", size_of::<PodView>());
        assert_eq!(
            (store.len(), store.by_index(&BY_OWNER, "00000007-aaaa-4bbb-8ccc-ddddeeeeffff").len()),
            (PODS + 1, 20)
        );
        assert!(each <= MOST_BYTES, "{each} bytes for each Pod");
    }

    /// What a store may take for each Pod, in bytes: 1500, and what large pages may add. The rest of the manager needs some hundred more.
    const MOST_BYTES: usize = 2000;

    #[test]
    fn a_store_takes_little_memory_for_each_pod() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "runtime::watches::tests::memory_of_many_pods", "--ignored", "--nocapture"]);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        assert!(size_of::<PodView>() <= 320, "{} bytes", size_of::<PodView>());
    }

    #[test]
    fn a_late_answer_does_not_bring_back_what_is_gone() {
        let store = Store::new(None);
        store.upsert(pod("p", "u", "20"));
        store.remove(&ObjectKey::new("a", "p"), Some("u"));
        assert!(store.upsert(pod("p", "u", "19")).1.is_none());
        assert!(store.is_empty());
        assert!(store.upsert(pod("p", "v", "21")).1.is_some(), "a successor is another object");
    }

    #[test]
    fn a_late_answer_does_not_bring_back_what_a_list_lacks() {
        let store: Arc<Store<PodView>> = Store::of_work(None, |pod| pod.name() == "settled");
        store.put(pod("p", "u", "20"), false);
        store.put(pod("settled", "s", "20"), false);
        store.begin_list();
        assert_eq!(store.retain(&HashSet::new()).len(), 1);
        for version in ["19", "21"] {
            assert!(store.upsert(pod("p", "u", version)).1.is_none(), "it was written before it went");
            assert!(store.upsert(pod("settled", "s", version)).1.is_none());
        }
        assert!(store.is_empty());
        assert!(store.upsert(pod("p", "v", "22")).1.is_some(), "a successor is another object");
    }

    #[test]
    fn an_object_that_a_selector_matches_again_comes_back() {
        let store = Store::new(None);
        let key = ObjectKey::new("a", "p");
        store.put(pod("p", "u", "5"), false);
        // Its label was taken off.
        assert!(store.end(&key, Some("u")).is_some());
        assert!(store.upsert(pod("p", "u", "6")).1.is_none(), "an answer may be older than that");
        assert!(store.put(pod("p", "u", "7"), false).1.is_some(), "the watch says that it has its label again");
        assert!(store.upsert(pod("p", "u", "8")).1.is_some());
        // The same while the watch did not run.
        store.begin_list();
        assert_eq!(store.retain(&HashSet::new()).len(), 1);
        assert!(store.put(pod("p", "u", "9"), false).1.is_some());
        // An answer says that it is gone: what the watch brings before it says so too is older.
        store.remove(&key, Some("u"));
        assert!(store.put(pod("p", "u", "10"), false).1.is_none());
        assert!(store.end(&key, Some("u")).is_some());
        assert!(store.put(pod("p", "u", "12"), false).1.is_some());
    }

    #[test]
    fn a_predecessor_that_comes_late_does_not_replace_its_successor() {
        let store = Store::new(None);
        let key = ObjectKey::new("a", "p");
        store.put(pod("p", "old", "20"), false);
        // A list, or a read after a conflict, brings the new one; nobody has said that the old one is gone.
        store.put(pod("p", "new", "22"), false);
        assert!(store.upsert(pod("p", "old", "21")).1.is_none(), "the answer to a write of the old one");
        assert!(store.put(pod("p", "old", "21"), false).1.is_none(), "a watch that is behind");
        assert!(store.end(&key, Some("old")).is_none());
        assert_eq!(store.get(&key).unwrap().uid(), "new");
        // A list says which one there is, but for what is written while it is read.
        store.begin_list();
        assert!(store.put(pod("p", "restored", "3"), false).1.is_some());
        store.upsert(pod("p", "made", "30"));
        assert!(store.put(pod("p", "restored", "4"), false).1.is_none());
        assert_eq!(store.get(&key).unwrap().uid(), "made");
    }

    #[test]
    fn an_own_write_during_a_list_is_not_taken_for_gone() {
        let store = Store::new(None);
        store.upsert(pod("old", "o", "5"));
        store.begin_list();
        store.put(pod("listed", "l", "10"), false);
        store.upsert(pod("made", "m", "12"));
        store.upsert(pod("stale", "s", "9"));
        let listed = HashSet::from([ObjectKey::new("a", "listed")]);
        let mut dropped: Vec<String> = store.retain(&listed).iter().map(|pod| pod.name().to_owned()).collect();
        dropped.sort();
        assert_eq!(dropped, ["old", "stale"]);
        assert!(store.get(&ObjectKey::new("a", "made")).is_some());
        store.begin_list();
        assert_eq!(store.retain(&listed).len(), 1, "the next list knows it");
    }

    #[test]
    fn a_successor_of_the_same_name_replaces_its_predecessor() {
        let store = Store::new(None);
        store.upsert(pod("p", "old", "20"));
        store.upsert(pod("p", "new", "21"));
        let key = ObjectKey::new("a", "p");
        assert!(store.remove(&key, Some("old")).is_none(), "a late delete event of the predecessor");
        assert_eq!(store.get(&key).unwrap().uid(), "new");
    }

    #[test]
    fn what_is_settled_is_held_as_a_few_bytes_and_never_comes_back() {
        let store: Arc<Store<PodView>> = Store::of_work([BY_UID], |pod| pod.name() == "p");
        let key = ObjectKey::new("a", "p");
        assert!(store.upsert(pod("p", "u", "20")).1.is_some(), "its last version is reported");
        assert!(store.get(&key).is_none() && store.list().is_empty() && store.by_index(&BY_UID, "u").is_empty());
        assert_eq!(store.len(), 1);
        assert!(store.upsert(pod("p", "u", "9")).1.is_none(), "an older version comes late");
        assert!(store.remove(&key, Some("other")).is_none() && store.len() == 1, "another one was deleted");
        store.remove(&key, Some("u"));
        assert!(store.is_empty());
        store.upsert(pod("p", "u", "20"));
        store.upsert(pod("q", "v", "21"));
        let gone = store.retain(&HashSet::new());
        assert_eq!((gone.len(), gone[0].name(), store.len()), (1, "q", 0));
        assert!(store.by_index(&BY_UID, "v").is_empty());
    }

    #[test]
    fn others_learn_of_an_own_write_when_the_watch_brings_it() {
        let store = Store::new(None);
        let version = |pod: &Option<Arc<PodView>>| pod.as_deref().map(resource_version);
        store.put(pod("p", "u", "5"), false);
        store.upsert(pod("p", "u", "6"));
        store.upsert(pod("p", "u", "7"));
        assert!(store.put(pod("p", "u", "6"), false).1.is_none(), "an older one is not reported");
        let (reported, new) = store.put(pod("p", "u", "7"), false);
        assert_eq!((version(&reported), version(&new)), (Some(5), Some(7)));
        assert_eq!(version(&store.put(pod("p", "u", "8"), false).0), Some(7), "reported once");
        store.upsert(pod("q", "v", "9"));
        assert!(store.put(pod("q", "v", "9"), false).0.is_none(), "it is new to everybody else");
    }

    #[test]
    fn an_answer_that_the_watch_had_reported_before_leaves_nothing_behind() {
        let store = Store::new(None);
        store.put(pod("p", "u", "5"), false);
        store.put(pod("p", "u", "6"), false);
        store.upsert(pod("p", "u", "6"));
        assert!(store.lock().unreported.is_empty(), "everybody knows");
        store.upsert(pod("p", "v", "6"));
        assert_eq!(store.lock().unreported.len(), 1, "another Pod");
    }

    #[test]
    fn others_learn_of_an_end_that_an_answer_had_reported_before() {
        let store = Store::new(None);
        let (p, q) = (ObjectKey::new("a", "p"), ObjectKey::new("a", "q"));
        for (name, uid) in [("p", "u"), ("q", "v")] {
            store.put(pod(name, uid, "5"), false);
        }
        store.remove(&p, Some("u"));
        assert_eq!(store.end(&p, Some("u")).unwrap().uid(), "u");
        assert!(store.end(&p, Some("u")).is_none(), "once");
        store.remove(&q, Some("v"));
        store.begin_list();
        assert_eq!(store.retain(&HashSet::new()).len(), 1, "a list reports it too");
        assert!(store.end(&q, Some("v")).is_none() && store.is_empty());
    }

    #[test]
    fn a_newer_version_of_a_pod_shares_its_name_with_the_key() {
        let store = Store::new(None);
        store.put(pod("p", "u", "5"), false);
        store.put(pod("p", "u", "6"), false);
        let held = store.get(&ObjectKey::new("a", "p")).unwrap();
        let objects = store.lock();
        let (key, _) = objects.by_key.get_key_value(&ObjectKey::new("a", "p")).unwrap();
        assert_eq!(held.resource_version(), Some("6"));
        assert!(Arc::ptr_eq(&key.name, &held.shared_key().1));
    }

    #[test]
    fn an_object_stands_under_each_of_its_keys() {
        const BY_LABEL: StoreIndex<PodView> =
            StoreIndex::of_several("label", |pod| pod.labels.iter().map(|(key, _)| key.to_owned()).collect());
        let store = Store::new([BY_LABEL]);
        let labelled = |version: &str, labels: serde_json::Value| {
            let mut pod = pod("p", "u", version);
            pod.labels = serde_json::from_value(labels).unwrap();
            pod
        };
        store.upsert(labelled("1", serde_json::json!({"a": "1", "b": "1"})));
        let under = |label: &str| store.by_index(&BY_LABEL, label).len();
        assert_eq!((under("a"), under("b"), under("c")), (1, 1, 0));
        store.upsert(labelled("2", serde_json::json!({"b": "1", "c": "1"})));
        assert_eq!((under("a"), under("b"), under("c")), (0, 1, 1));
        assert_eq!(store.by_index(&BY_LABEL, "b")[0].resource_version(), Some("2"));
        store.remove(&ObjectKey::new("a", "p"), None);
        assert!(store.lock().indexes[0].is_empty());
    }

    #[test]
    fn the_index_follows_changes() {
        let store: Arc<Store<PodView>> = Store::new([BY_UID, BY_NODE]);
        store.upsert(pod("p", "u1", "1"));
        store.upsert(pod("q", "u1", "2"));
        assert_eq!(store.by_index(&BY_UID, "u1").len(), 2);
        assert_eq!(store.select_by_index(&BY_UID, "u1", |pod| pod.name() == "q")[0].name(), "q");
        assert!(store.select_by_index(&BY_UID, "u1", |_| false).is_empty());
        store.upsert(pod("p", "u2", "3"));
        assert_eq!((store.by_index(&BY_UID, "u1").len(), store.by_index(&BY_UID, "u2").len()), (1, 1));
        store.remove(&ObjectKey::new("a", "q"), None);
        assert!(store.by_index(&BY_UID, "u1").is_empty());
        // Another index of the same store.
        let on =
            |node: &str| store.by_index(&BY_NODE, node).iter().map(|pod| pod.name().to_owned()).collect::<Vec<_>>();
        let mut moved = pod("p", "u2", "4");
        moved.node_name = "n1".into();
        assert_eq!((on(""), on("n1")), (vec!["p".to_owned()], Vec::new()));
        store.upsert(moved);
        assert_eq!((on(""), on("n1")), (Vec::new(), vec!["p".to_owned()]));
        store.retain(&HashSet::new());
        assert_eq!((on("n1"), store.by_index(&BY_UID, "u2").len()), (Vec::new(), 0));
    }
}
