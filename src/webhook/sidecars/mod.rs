//! The SidecarSets of a cluster as admission of Pods needs them.
//!
//! - Watches: SidecarSets, Namespaces, and the names of ControllerRevisions with a custom version in our own namespace, in
//!   every replica of the webhook.
//! - Reads: the ControllerRevision that a SidecarSet pins, or a list of those with its custom version, and a Namespace that the
//!   watch has not brought yet; each within a second, and those of several SidecarSets at the same time. The version of the API
//!   server, every few minutes.
//! - Never: writes anything.
//!
//! The rules are [`crate::domain::kinds::sidecar_set`]. What cannot be injected is left out of a Pod, with the reason, and
//! the Pod is created: whether that is to be an error is for the caller to say.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::join_all;
use kube::{Api, Client, api::ListParams, runtime::watcher::Config};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use serde::Deserialize as _;
use serde_json::Value;
use tokio::sync::watch;

use crate::{
    api::feature_gates::{FeatureGates, gate},
    domain::kinds::sidecar_set::{
        choice::{self, Choice, Pin},
        claims,
        inject::{self, LeftOut, Outcome, Set, Settings},
        matching::{Aim, Index, Match, Namespace},
    },
    k8s::{name, pod::Labels, rbac::Rule},
    runtime::{
        apply::said,
        clock, lock,
        metrics::Metrics,
        watches::{self, Change, ObjectKey, Store},
    },
    webhook::announced::ANY,
};

mod api_server;
mod coming;
mod known;
mod pinned;
mod unread;

use api_server::Server;
use coming::Coming;
use known::{Entry, Indexed, NamespaceView, RawSidecarSet, WireSidecarSet};
use pinned::{PinError, Pinned, Restored};
pub use unread::NotRead;

/// What it reads in the cluster.
pub const RBAC: &[Rule] = &[
    Rule::new(&["apps.kruise.io"], &["sidecarsets"], &["list", "watch"]),
    Rule::new(&[""], &["namespaces"], &["list", "watch"]),
];
/// The revisions of SidecarSets, in our own namespace: whether there is one that a SidecarSet names, and what new Pods get of it.
pub const REVISIONS: Rule = Rule::new(&["apps"], &["controllerrevisions"], &["get", "list", "watch"]);
/// What the look-up of a Namespace may take, and how long a Pod waits for the first list of SidecarSets.
const LIMIT: Duration = Duration::from_secs(1);
/// How long after its start a replica is waited for because of the first list: it has other things to answer, and where the
/// custom resource is not installed the list never comes.
pub const FIRST_LIST: Duration = Duration::from_secs(30);

/// Labels of the counter of injections.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct InjectionLabels {
    /// `injected` or `left_out`.
    pub result: &'static str,
}

/// Why a SidecarSet is left out before anybody looks at its containers.
#[derive(Clone, Debug, thiserror::Error)]
enum ChoiceError {
    #[error("the labels of the Namespace cannot be read: {0}")]
    Namespace(#[from] LookUpError),
    #[error(transparent)]
    Pinned(#[from] PinError),
}

/// Why the labels of a Namespace are not known, in the words of the client.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
struct LookUpError(String);

/// SidecarSets by a hash of what they claim, and by name: many may claim the same.
type Claims = BTreeMap<(u32, Arc<str>), Arc<Entry>>;

/// The SidecarSets, in one process.
pub struct Sidecars {
    client: Client,
    /// When this process began to wait for the first list.
    begun: Duration,
    sorted: bool,
    sets: Arc<Store<WireSidecarSet>>,
    namespaces: Arc<Store<NamespaceView>>,
    index: Mutex<Index<Indexed>>,
    claims: Mutex<Claims>,
    /// Those that cannot be read, by name.
    unreadable: Mutex<BTreeMap<Arc<str>, Arc<Entry>>>,
    /// Held while the namespaces are published: of two writers the later one knows more.
    publishing: Mutex<()>,
    coming: Coming,
    pinned: Pinned,
    api_server: Server,
    scope: watch::Sender<Option<BTreeSet<String>>>,
    /// While they are not known.
    unread: Mutex<NotRead>,
    injections: Family<InjectionLabels, Counter>,
    unknown: Counter,
}

/// The namespaces in which there may be Pods for a SidecarSet of this spec, [`ANY`] for all.
pub fn namespaces_of(spec: &Value) -> BTreeSet<String> {
    // One that cannot be read is refused.
    let Ok(aim) = Aim::of(spec) else { return BTreeSet::new() };
    match aim.namespaces() {
        Some(names) => names.into_iter().map(str::to_owned).collect(),
        None => BTreeSet::from([ANY.to_owned()]),
    }
}

/// A SidecarSet that is stored, for others to be compared with.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Its name.
    pub name: Arc<str>,
    /// Which Pods it is for.
    pub aim: Aim,
    /// Its spec, but for the selectors.
    pub spec: Value,
}

impl Stored {
    /// From the object. None: it cannot be read, and is injected into no Pod.
    pub fn of(object: &Value) -> Option<Self> {
        let spec = object.get("spec")?;
        let name = object.pointer("/metadata/name")?.as_str()?;
        Some(Self { name: name.into(), aim: Aim::of(spec).ok()?, spec: spec.clone() })
    }
}

/// A SidecarSet that is for a Pod, with what is injected of it.
struct Chosen {
    entry: Arc<Entry>,
    spec: Value,
    pinned: Option<Arc<Restored>>,
}

impl Chosen {
    fn set(&self) -> Set<'_> {
        let Entry { name, hash, hash_without_image, revision, pod_level, .. } = &*self.entry;
        let (name, pod_level) = (&**name, *pod_level);
        match &self.pinned {
            Some(pinned) => Set {
                name,
                spec: &pinned.spec,
                hash: &pinned.hash,
                hash_without_image: &pinned.hash_without_image,
                revision: &pinned.name,
                pod_level,
            },
            None => Set { name, spec: &self.spec, hash, hash_without_image, revision, pod_level },
        }
    }
}

impl Sidecars {
    /// None known yet.
    pub fn new(client: Client, gates: &FeatureGates, namespace: Arc<str>) -> Arc<Self> {
        Arc::new(Self {
            pinned: Pinned::new(client.clone(), namespace),
            api_server: Server::new(client.clone()),
            client,
            begun: clock::now().mono,
            sorted: gates.enabled(gate::SORT_SIDECARS),
            sets: Store::new(None),
            namespaces: Store::new(None),
            index: Mutex::default(),
            claims: Mutex::default(),
            unreadable: Mutex::default(),
            publishing: Mutex::default(),
            coming: Coming::default(),
            scope: watch::Sender::new(None),
            unread: Mutex::new(NotRead::Reading),
            injections: Family::default(),
            unknown: Counter::default(),
        })
    }

    /// Adds the counters to the metrics of this process.
    pub fn register(&self, metrics: &Metrics) {
        metrics.register(
            "kruise_sidecar_set_injections",
            "SidecarSets for new Pods, by whether they were injected",
            &self.injections,
        );
        let help = "New Pods for which it was not known which SidecarSets there are";
        metrics.register("kruise_sidecar_set_unknown", help, &self.unknown);
    }

    /// Watches, for ever.
    pub async fn follow(&self) {
        let all: Api<RawSidecarSet> = Api::all(self.client.clone());
        let unread = unread::follow(&all, &self.sets, &self.unread);
        let (all, store) = (all.clone(), self.sets.clone());
        let sets =
            watches::watch_as(all, Config::default(), store, |set| self.view(set), |change| self.changed(&change));
        let namespaces: Api<NamespaceView> = Api::all(self.client.clone());
        let namespaces = watches::watch(namespaces, Config::default(), self.namespaces.clone(), |_| {});
        let first = async {
            self.sets.wait_synced().await;
            self.publish_namespaces();
        };
        tokio::join!(sets, namespaces, self.pinned.follow(), self.api_server.follow(), first, unread);
    }

    /// These and no others are known.
    #[cfg(test)]
    pub fn know(&self, sets: &[Value]) {
        for object in sets {
            let known: WireSidecarSet = serde_json::from_value(object.clone()).unwrap();
            if let (_, Some(known)) = self.sets.upsert(known) {
                self.changed(&Change::Applied { old: None, new: &known, initial: true });
            }
        }
        self.scope.send_replace(Some(lock(&self.index).namespaces().unwrap_or_default()));
    }

    /// It is not known which there are, for this reason.
    #[cfg(test)]
    pub fn know_why(&self, reason: NotRead) {
        *lock(&self.unread) = reason;
    }

    /// For how many new Pods it was not known which there are.
    #[cfg(test)]
    pub fn unknown(&self) -> u64 {
        self.unknown.get()
    }

    /// There are none, and that is known.
    #[cfg(any(test, fuzzing))]
    pub fn know_of_none(&self) {
        self.scope.send_replace(Some(BTreeSet::new()));
    }

    /// Whether it is known which SidecarSets there are.
    pub fn is_synced(&self) -> bool {
        self.scope.borrow().is_some()
    }

    /// Whether the first list has not come in time: nobody waits for it any more.
    pub fn is_late(&self) -> bool {
        !self.is_synced() && clock::now().mono > self.begun + FIRST_LIST
    }

    /// The namespaces in which there may be Pods for a SidecarSet, [`ANY`] for all, as a channel that reports changes.
    /// None until they are known.
    pub fn scope(&self) -> watch::Receiver<Option<BTreeSet<String>>> {
        self.scope.subscribe()
    }

    /// How many SidecarSets there are. None: it is not known yet.
    pub fn stored(&self) -> Option<usize> {
        self.is_synced().then(|| self.sets.len())
    }

    /// The SidecarSets that may be in conflict with one of this spec, as the watch has brought them.
    pub fn beside(&self, spec: &Value) -> Vec<Stored> {
        let Ok(aim) = Aim::of(spec) else { return Vec::new() };
        let hashes = claims::hashes(spec);
        let others: BTreeMap<Arc<str>, Arc<Entry>> = match aim.namespaces() {
            // Fewer are for these namespaces than have the same claim.
            Some(names) => {
                let meets = |entry: &Entry| entry.claims().iter().any(|hash| hashes.binary_search(hash).is_ok());
                let found = lock(&self.index).of_namespaces(names, |Indexed(entry)| meets(entry));
                found.into_iter().map(|Indexed(entry)| (entry.name.clone(), entry)).collect()
            }
            None => {
                let claims = lock(&self.claims);
                let of =
                    |hash: u32| claims.range((hash, "".into())..).take_while(move |((found, _), _)| *found == hash);
                let found = hashes.iter().flat_map(|hash| of(*hash));
                found.map(|((_, name), entry)| (name.clone(), entry.clone())).collect()
            }
        };
        let others = others.values().filter(|entry| !entry.aim.is_disjoint(&aim));
        others.map(|entry| Stored { name: entry.name.clone(), aim: entry.aim.clone(), spec: entry.spec() }).collect()
    }

    fn publish_namespaces(&self) {
        if !self.sets.is_synced() {
            return;
        }
        let _publishing = lock(&self.publishing);
        let namespaces = lock(&self.index).namespaces();
        self.scope_is(namespaces);
    }

    /// `of_sets` are the namespaces of the SidecarSets that are stored; None: all.
    fn scope_is(&self, of_sets: Option<BTreeSet<String>>) {
        let now = of_sets.unwrap_or_else(|| BTreeSet::from([ANY.to_owned()]));
        self.scope.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&now);
            *known = Some(now);
            changed
        });
    }

    /// A SidecarSet as the store holds it.
    fn view(&self, set: RawSidecarSet) -> WireSidecarSet {
        let held = self.sets.get(&ObjectKey::of(&set));
        set.known(held.as_deref())
    }

    fn changed(&self, change: &Change<'_, WireSidecarSet>) {
        let is_news = match change {
            Change::Applied { old, new, .. } => {
                let is_same = old.is_some_and(|old| Arc::ptr_eq(&old.entry, &new.entry));
                if !is_same {
                    self.note_unreadable(&new.entry.name, Some(&new.entry));
                }
                let is_news = !is_same && self.put(&new.entry.name, Some(&new.entry));
                self.coming.has_come(&new.entry);
                is_news
            }
            Change::Deleted(old) => {
                self.note_unreadable(&old.entry.name, None);
                self.put(&old.entry.name, None)
            }
            Change::Undecodable { key, error } => {
                tracing::error!(sidecar_set = %key.name, error, "this SidecarSet cannot be read and is not injected");
                self.put(&key.name, None)
            }
        };
        if is_news {
            self.publish_namespaces();
        }
    }

    /// Keeps the name of a SidecarSet that cannot be read: an update that admission was not asked about may have made it so.
    fn note_unreadable(&self, name: &Arc<str>, entry: Option<&Arc<Entry>>) {
        let mut unreadable = lock(&self.unreadable);
        // One whose injection is paused refuses no Pod.
        let injects = |entry: &Entry| choice::choose(&entry.spec(), &Labels::default(), 0) != Choice::Nothing;
        let noted = entry.and_then(|entry| Some((entry, entry.unreadable.as_ref()?)));
        match noted.filter(|(entry, _)| injects(entry)) {
            Some((entry, error)) => {
                tracing::error!(sidecar_set = %name, %error, "this SidecarSet cannot be read and is not injected");
                unreadable.insert(name.clone(), entry.clone());
            }
            None => drop(unreadable.remove(name)),
        }
    }

    /// The SidecarSets that cannot be read and may be for a new Pod of a namespace, for who creates none without its sidecars.
    pub fn unreadable(&self, namespace: &name::Namespace, pod: &Value) -> Vec<LeftOut> {
        if !inject::is_open(pod) {
            return Vec::new();
        }
        let held = self.namespaces.get(&ObjectKey::new("", namespace));
        let of = Namespace { name: namespace, labels: held.as_ref().map(|held| &held.labels) };
        let left_out = |entry: &Arc<Entry>| {
            let reason = entry.unreadable.as_ref().filter(|_| entry.aim.is_for(of) != Match::No)?;
            Some(LeftOut { set: entry.name.to_string(), reason: format!("it cannot be read: {reason}") })
        };
        lock(&self.unreadable).values().filter_map(left_out).collect()
    }

    /// Puts a SidecarSet into the indexes; None: takes it out. True: there are Pods of other namespaces for them now.
    fn put(&self, name: &str, entry: Option<&Arc<Entry>>) -> bool {
        let mut index = lock(&self.index);
        let mut claims = lock(&self.claims);
        if let Some(Indexed(old)) = index.get(name) {
            for hash in old.claims() {
                claims.remove(&(*hash, old.name.clone()));
            }
        }
        let Some(entry) = entry else { return index.remove(name) };
        // One that is for no Pod is in conflict with none.
        for hash in entry.claims().iter().filter(|_| !entry.aim.is_for_nobody()) {
            claims.insert((*hash, entry.name.clone()), entry.clone());
        }
        index.insert(&Indexed(entry.clone()), &entry.aim)
    }

    /// What is to be done with a new Pod of a namespace. A SidecarSet that selects it as it was `before`, if that is given, is for
    /// it too. `seed` decides, like a die, which of its Pods a share of a SidecarSet's is.
    ///
    /// # Errors
    /// The SidecarSets are not known yet.
    pub async fn outcome(
        &self,
        namespace: &name::Namespace,
        pod: &Value,
        before: Option<&Value>,
        seed: &str,
    ) -> Result<Outcome, NotRead> {
        if !inject::is_open(pod) {
            return Ok(Outcome::default());
        }
        if !self.is_synced() {
            let why = || lock(&self.unread).clone();
            if self.is_late() || why() == NotRead::NotInstalled {
                return Err(why());
            }
            // A replica that has just started: the list is there in a moment.
            let mut scope = self.scope.subscribe();
            let first = tokio::time::timeout(LIMIT, scope.wait_for(Option::is_some)).await;
            first.map(drop).map_err(|_| why())?;
        }
        let labels_of = |pod: &Value| Labels::deserialize(&pod["metadata"]["labels"]).unwrap_or_default();
        let (labels, before) = (labels_of(pod), before.map(labels_of));
        let may_be_for = |entry: &Entry| {
            let held = self.namespaces.get(&ObjectKey::new("", namespace));
            let of = Namespace { name: namespace, labels: held.as_ref().map(|held| &held.labels) };
            [Some(&labels), before.as_ref()].into_iter().flatten().any(|labels| entry.aim.fits(of, labels) != Match::No)
        };
        let now = clock::now().mono;
        let awaited = self.coming.awaited(may_be_for, now);
        self.coming.wait(&awaited, now).await;
        let mut candidates = lock(&self.index).candidates(namespace, &labels);
        if let Some(before) = &before {
            let more = lock(&self.index).candidates(namespace, before);
            candidates.extend(more);
            candidates.sort_by(|Indexed(a), Indexed(b)| a.name.cmp(&b.name));
            candidates.dedup_by(|Indexed(a), Indexed(b)| a.name == b.name);
        }
        let mut wanted = Vec::new();
        let mut looked_up = None;
        for Indexed(entry) in candidates {
            let mut found = self.choose(&entry, namespace, &labels, &mut looked_up, seed).await;
            if matches!(found, Ok(None))
                && let Some(before) = &before
            {
                found = self.choose(&entry, namespace, before, &mut looked_up, seed).await;
            }
            wanted.extend(found.transpose().map(|found| (entry, found)));
        }
        let restored = wanted.into_iter().map(|(entry, found)| async move {
            let name = entry.name.to_string();
            let chosen = match found {
                Ok(wanted) => self.restore(entry, wanted).await,
                Err(error) => Err(error),
            };
            chosen.map_err(|error| LeftOut { set: name, reason: error.to_string() })
        });
        let (mut chosen, mut left_out) = (Vec::new(), Vec::new());
        for found in join_all(restored).await {
            match found {
                Ok(found) => chosen.push(found),
                Err(error) => left_out.push(error),
            }
        }
        let sets: Vec<Set<'_>> = chosen.iter().map(Chosen::set).collect();
        let settings = Settings { sorted: self.sorted, api_server: self.api_server.version(), now: clock::now().wall };
        Ok(inject::inject(pod, &sets, left_out, settings))
    }

    /// Admission lets a SidecarSet through: a Pod that comes before the watch brings it waits a moment.
    pub fn expect(&self, object: &Value) {
        // It is installed by now.
        let mut why = lock(&self.unread);
        if *why == NotRead::NotInstalled {
            *why = NotRead::Reading;
        }
        drop(why);
        if let Ok(known) = WireSidecarSet::deserialize(object) {
            let is_there = |Indexed(there): &Indexed| there.is_same(&known.entry);
            let is_there = lock(&self.index).get(&known.entry.name).is_some_and(is_there);
            self.coming.expect(known.entry, is_there, clock::now().mono);
        }
    }

    /// Counts a Pod for which it was not known which SidecarSets there are.
    pub fn count_unknown(&self) {
        self.unknown.inc();
    }

    /// Counts what was done with a Pod.
    pub fn count(&self, outcome: &Outcome) {
        for (result, of) in [("injected", outcome.injected.len()), ("left_out", outcome.left_out.len())] {
            if of > 0 {
                self.injections.get_or_create(&InjectionLabels { result }).inc_by(of as u64);
            }
        }
    }

    /// What a Pod gets of a SidecarSet: its spec, or what that pins. None: nothing.
    async fn choose(
        &self,
        entry: &Entry,
        namespace: &name::Namespace,
        labels: &Labels,
        looked_up: &mut Option<Result<Labels, LookUpError>>,
        seed: &str,
    ) -> Result<Option<(Value, Option<Pin>)>, ChoiceError> {
        let held = self.namespaces.get(&ObjectKey::new("", namespace));
        let of = |known| Namespace { name: namespace, labels: known };
        let fits = match entry.aim.fits(of(held.as_ref().map(|held| &held.labels)), labels) {
            Match::NamespaceUnknown => {
                if looked_up.is_none() {
                    *looked_up = Some(self.look_up(namespace).await);
                }
                match looked_up {
                    Some(Ok(known)) => entry.aim.fits(of(Some(known)), labels),
                    Some(Err(error)) => return Err(error.clone().into()),
                    None => Match::NamespaceUnknown,
                }
            }
            known => known,
        };
        if fits != Match::Yes {
            return Ok(None);
        }
        let mut hasher = DefaultHasher::new();
        (seed, &entry.name).hash(&mut hasher);
        let draw = u32::try_from(hasher.finish() % 100).unwrap_or_default();
        let spec = entry.spec();
        Ok(match choice::choose(&spec, labels, draw) {
            Choice::Nothing => None,
            Choice::Current => Some((spec, None)),
            Choice::Pinned(pin) => Some((spec, Some(pin))),
        })
    }

    async fn restore(&self, entry: Arc<Entry>, (spec, pin): (Value, Option<Pin>)) -> Result<Chosen, ChoiceError> {
        let pinned = match pin {
            Some(pin) => Some(self.pinned.restored(&entry.name, &pin).await?),
            None => None,
        };
        Ok(Chosen { entry, spec, pinned })
    }

    /// The labels of a Namespace that the watch has not brought yet.
    async fn look_up(&self, namespace: &str) -> Result<Labels, LookUpError> {
        let api: Api<NamespaceView> = Api::all(self.client.clone());
        let only = ListParams::default().fields(&format!("metadata.name={namespace}"));
        match tokio::time::timeout(LIMIT, api.list(&only)).await {
            Ok(Ok(list)) => match list.items.into_iter().next() {
                Some(view) => Ok(view.labels),
                None => Err(LookUpError("it does not exist".into())),
            },
            Ok(Err(error)) => Err(LookUpError(said(&error))),
            Err(_) => Err(LookUpError(format!("no answer within {} s", LIMIT.as_secs()))),
        }
    }
}

#[cfg(test)]
mod tests;
