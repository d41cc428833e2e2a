//! The WorkloadSpreads of a cluster, as admission of Pods needs them: which subset a new Pod goes to.
//!
//! - Watches: WorkloadSpreads, in every replica of the webhook.
//! - Owns: the records of Pods on their way in the status of WorkloadSpreads, together with the manager, which takes them away.
//! - Reads: targets, where a percentage or an ordinal depends on them; what controls a Pod's controller.
//! - Never: keeps a Pod from being deleted, or from being created. One exception: where sidecars are required, a Pod that is
//!   refused with the changes of its subset is not tried without them once a second has passed (`webhook/kinds/pod.rs`).
//!
//! The rules are [`crate::domain::kinds::workload_spread`]. Questions about one WorkloadSpread that come at the same time are
//! answered together, with one write (`settle.rs`), which records places for the next Pods too while many come (`ahead.rs`). A
//! full subset is passed over after a fresh look, or, while many come, after one that is a moment old.
//! A write that only adds records is bound to no version, and its records count if the status right after it is within the
//! limits. Any other write is bound to the version that was read. After a write that fails or does not count it is decided
//! again, so that no limit is passed.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use kube::{Api, Client, runtime::watcher::Config};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use serde_json::Value;
use tokio::{sync::watch, time::Instant};

use crate::{
    api::{
        apps::workload_spread::WorkloadSpread,
        feature_gates::{FeatureGates, gate},
    },
    domain::kinds::workload_spread::{
        cost::{self, Coming},
        count::{SpreadAnswer, SpreadAsk, annotation},
        inject::{self, Note},
        matching::{self, Above, selects},
        replicas::{version, version_of},
        spec::SpreadSpec,
    },
    k8s::{
        invalid::Invalid,
        name::{is_dns_subdomain, is_label_value},
        pod::{Labels, PodView},
    },
    runtime::{
        batches::Batches,
        events::{Recorder, reference},
        guarded::Guarded,
        lock,
        metrics::Metrics,
        random,
        watches::{self, Change, ObjectKey, Store, StoreIndex},
        workload::ReplicaSetOwners,
    },
};

mod above;
mod ahead;
mod settle;
#[cfg(test)]
mod tests;

use ahead::Ahead;
use settle::Question;

/// What a new Pod waits for its subset in all, and a Pod on its way out for its record. The API server waits 3 s for a new Pod,
/// and its sidecars take time too.
const LIMIT: Duration = Duration::from_millis(1500);
/// What a new Pod waits for the first status of a WorkloadSpread.
const FIRST_LOOK: Duration = Duration::from_millis(500);
/// What a new Pod waits for the first list: a replica without it is not ready, and gets few of them.
const FIRST_LIST_LOOK: Duration = Duration::from_millis(500);
/// How long the list of kinds by configuration is used.
const WHITELIST_AGE: Duration = Duration::from_secs(10);

/// Labels of the counter of decisions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    /// `placed`, `full`, `error` or `unknown`.
    result: &'static str,
}

/// Why a Pod is created without a subset although there is a WorkloadSpread for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unplaced {
    /// The answer would come too late for the API server.
    #[error("no decision within {} ms", LIMIT.as_millis())]
    TooLate,
    /// A call to the API server failed: what it was for, and its error.
    #[error("{0}")]
    ApiServer(String),
    /// The WorkloadSpread, or its target, cannot be used as it is.
    #[error("{0}")]
    Unusable(String),
    /// Others write the status of the WorkloadSpread again and again.
    #[error("its status keeps changing")]
    KeepsChanging,
    /// Every subset is full, or gets no Pods for now.
    #[error("every subset is full")]
    Full,
}

/// What becomes of a new Pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placed {
    /// The Pod in its subset; None: it stays as it is.
    pub pod: Option<Value>,
    /// The warning for its author.
    pub warning: Option<String>,
}

/// What was answered, and the spec that the answer is for: its subsets are those of no other one.
#[derive(Clone, Debug)]
struct Settled {
    answer: SpreadAnswer,
    spec: Arc<SpreadSpec>,
    /// How many Pods the workload wants, where limits depend on it.
    total: i32,
    /// The key of its record, where that was there before the Pod.
    key: Option<String>,
}

/// The subset of a new Pod.
struct PlaceOfPod {
    /// The spec that was decided by.
    spec: Arc<SpreadSpec>,
    /// Which of its subsets.
    index: usize,
    /// The key of the Pod's record, where that is not its name.
    key: Option<String>,
    /// Pods of the subset; 0 where that is not known.
    there: i32,
    /// Pods that the workload wants, where limits depend on it.
    total: i32,
}

/// The WorkloadSpreads, in one process.
pub struct Spreads {
    client: Client,
    own_namespace: Arc<str>,
    is_on: bool,
    /// Whether an Advanced StatefulSet may start at another ordinal than 0.
    has_start_ordinals: bool,
    events: Recorder,
    spreads: Arc<Store<WorkloadSpread>>,
    scope: watch::Sender<Option<BTreeSet<String>>>,
    counting: watch::Sender<Option<BTreeSet<String>>>,
    /// Grows with every change that the watch brings.
    news: watch::Sender<u64>,
    replica_sets: ReplicaSetOwners,
    /// The kinds by configuration, and when they were read.
    whitelist: tokio::sync::Mutex<Option<(Duration, Arc<str>)>>,
    batches: Batches<Question, Result<Option<Settled>, Unplaced>>,
    ahead: Ahead,
    decisions: Family<DecisionLabels, Counter>,
    /// With percentages: in which order the Pods of the subsets come.
    coming: Mutex<HashMap<ObjectKey, Arc<Mutex<Coming>>>>,
}

impl Spreads {
    /// None known yet.
    pub fn new(client: Client, gates: &FeatureGates, own_namespace: Arc<str>, events: Recorder) -> Arc<Self> {
        let is_on = gates.enabled(gate::WORKLOAD_SPREAD);
        // With the gate off there is nothing to wait for.
        let namespaces = || watch::Sender::new((!is_on).then(BTreeSet::new));
        Arc::new(Self {
            client,
            own_namespace,
            is_on,
            has_start_ordinals: gates.enabled(gate::START_ORDINAL),
            events,
            spreads: Store::new([StoreIndex::namespace()]),
            scope: namespaces(),
            counting: namespaces(),
            news: watch::Sender::new(0),
            replica_sets: ReplicaSetOwners::default(),
            whitelist: tokio::sync::Mutex::default(),
            batches: Batches::default(),
            ahead: Ahead::new(new_replica()),
            decisions: Family::default(),
            coming: Mutex::default(),
        })
    }

    /// Adds the counter to the metrics of this process.
    pub fn register(&self, metrics: &Metrics) {
        let help = "New Pods for which there is a WorkloadSpread";
        metrics.register("kruise_workload_spread_decisions", help, &self.decisions);
    }

    /// Watches, for ever.
    pub async fn follow(&self) {
        if !self.is_on {
            return std::future::pending().await;
        }
        let api: Api<Guarded<WorkloadSpread>> = Api::all(self.client.clone());
        let first = async {
            watches::first_list(&api, &self.spreads).await;
            self.publish_namespaces();
        };
        let watch = watches::watch_guarded(api.clone(), Config::default(), self.spreads.clone(), |change| {
            self.changed(&change);
        });
        tokio::join!(watch, first);
    }

    /// Whether it is known which WorkloadSpreads there are.
    pub fn is_known(&self) -> bool {
        self.scope.borrow().is_some()
    }

    /// The namespaces in which there may be Pods for a WorkloadSpread, as a channel that reports changes. None until they are
    /// known.
    pub fn scope(&self) -> watch::Receiver<Option<BTreeSet<String>>> {
        self.scope.subscribe()
    }

    /// Those of them in which Pods are counted, so that their deletion is to be recorded.
    pub fn counting(&self) -> watch::Receiver<Option<BTreeSet<String>>> {
        self.counting.subscribe()
    }

    /// Whether Pods of a namespace are counted, as far as is known.
    pub fn counts(&self, namespace: &str) -> bool {
        self.counting.borrow().as_ref().is_some_and(|known| known.contains(namespace))
    }

    fn changed(&self, change: &Change<'_, WorkloadSpread>) {
        match change {
            Change::Applied { .. } => {}
            Change::Deleted(old) => {
                let key = ObjectKey::of(old.as_ref());
                self.batches.forget(&key);
                self.ahead.forget(&key);
                lock(&self.coming).remove(&key);
            }
            Change::Undecodable { key, error } => {
                tracing::error!(spread = %key, error, "this WorkloadSpread cannot be read and is left alone");
            }
        }
        self.news.send_modify(|news| *news += 1);
        let is_other_spec = match change {
            // One that was made again begins with the same generations.
            Change::Applied { old: Some(old), new, .. } => {
                let marks = |spread: &WorkloadSpread| (spread.metadata.uid.clone(), spread.metadata.generation);
                marks(old) != marks(new)
            }
            Change::Applied { old: None, .. } | Change::Deleted(_) | Change::Undecodable { .. } => true,
        };
        if is_other_spec && self.scope.borrow().is_some() {
            self.publish_namespace(match change {
                Change::Applied { new, .. } => new.metadata.namespace.as_deref().unwrap_or_default(),
                Change::Deleted(old) => old.metadata.namespace.as_deref().unwrap_or_default(),
                Change::Undecodable { key, .. } => &key.namespace,
            });
        }
    }

    fn publish_namespaces(&self) {
        let all = self.spreads.list();
        let namespace = |spread: &Arc<WorkloadSpread>| spread.metadata.namespace.clone();
        publish(&self.scope, all.iter().filter_map(namespace).collect());
        publish(&self.counting, all.iter().filter(|spread| counts(spread)).filter_map(namespace).collect());
    }

    /// The same after a change in one namespace, without a look at those of others.
    fn publish_namespace(&self, namespace: &str) {
        let there = self.spreads.by_index(&StoreIndex::namespace(), namespace);
        publish_one(&self.scope, namespace, !there.is_empty());
        publish_one(&self.counting, namespace, there.iter().any(|spread| counts(spread)));
    }

    /// Finds the subset of a new Pod, records it where there is a limit, and puts the Pod into it.
    pub async fn place(self: &Arc<Self>, namespace: &str, pod: &Value) -> Placed {
        let owner = Above::of(pod).filter(|_| self.is_on);
        let Some(owner) = owner else { return Placed::default() };
        let end = Instant::now() + LIMIT;
        match self.may_have(namespace).await {
            Some(true) => {}
            Some(false) => return Placed::default(),
            None => {
                self.decisions.get_or_create(&DecisionLabels { result: "unknown" }).inc();
                tracing::warn!(namespace, "a new Pod goes to no subset: the WorkloadSpreads are still being read");
                return Placed::default();
            }
        }
        let labels = labels_of(pod);
        let spread = match tokio::time::timeout_at(end, self.find(namespace, owner, &labels)).await {
            Ok(Ok(Some(spread))) => spread,
            Ok(Ok(None)) => return Placed::default(),
            // Most likely none is for it, so its author gets no warning.
            Ok(Err(why)) => return self.not_found(namespace, &why),
            Err(_) => return self.not_found(namespace, &Unplaced::TooLate),
        };
        let found = tokio::time::timeout_at(end, self.place_in(&spread, pod)).await;
        let found = found.unwrap_or(Err(Unplaced::TooLate));
        let result = match &found {
            // It was deleted meanwhile.
            Ok(None) => return Placed::default(),
            Ok(Some(_)) => "placed",
            Err(Unplaced::Full) => "full",
            Err(_) => "error",
        };
        self.decisions.get_or_create(&DecisionLabels { result }).inc();
        match found {
            Ok(pod) => Placed { pod, warning: None },
            Err(why) => {
                let name = spread.metadata.name.as_deref().unwrap_or_default();
                tracing::warn!(namespace, spread = name, %why, "a new Pod goes to no subset");
                let about = reference(spread.as_ref());
                let message = format!("{} is created in no subset: {why}", named(pod));
                match why {
                    Unplaced::Full => self.events.warning(&about, "NoSubsetLeft", &message),
                    _ => self.events.warning(&about, "PodNotSpread", &message),
                }
                let warning = format!("the Pod is created in no subset of WorkloadSpread {name}: {why}");
                Placed { pod: None, warning: Some(warning) }
            }
        }
    }

    fn not_found(&self, namespace: &str, why: &Unplaced) -> Placed {
        self.decisions.get_or_create(&DecisionLabels { result: "unknown" }).inc();
        tracing::warn!(namespace, %why, "a new Pod goes to no subset: it is not known whether a WorkloadSpread is for it");
        Placed::default()
    }

    /// Whether a namespace has one; None: nobody knows. A replica that has just started waits for a moment.
    async fn may_have(&self, namespace: &str) -> Option<bool> {
        if self.scope.borrow().is_none() {
            let mut scope = self.scope.subscribe();
            let _ = tokio::time::timeout(FIRST_LIST_LOOK, scope.wait_for(Option::is_some)).await;
        }
        self.scope.borrow().as_ref().map(|known| known.contains(namespace))
    }

    /// The first WorkloadSpread for a Pod with these labels, by age.
    async fn find(
        &self,
        namespace: &str,
        owner: Above,
        labels: &Labels,
    ) -> Result<Option<Arc<WorkloadSpread>>, Unplaced> {
        let mut all = self.spreads.by_index(&StoreIndex::namespace(), namespace);
        all.retain(|spread| spread.metadata.deletion_timestamp.is_none() && selects(spread, labels));
        matching::by_age(&mut all);
        let chain = self.above(namespace, owner, &all).await?;
        Ok(matching::choose(&all, &chain, labels).cloned())
    }

    async fn place_in(self: &Arc<Self>, spread: &Arc<WorkloadSpread>, pod: &Value) -> Result<Option<Value>, Unplaced> {
        let spec = Arc::new(SpreadSpec::of(spread).map_err(|Invalid(why)| Unplaced::Unusable(why))?);
        let in_subset = |index, key| PlaceOfPod { spec: spec.clone(), index, key, there: 0, total: 0 };
        let place = if spec.target_kind.has_ordinals() {
            in_subset(self.by_ordinal(spread, &spec, pod).await?, None)
        } else if let [only] = spec.subsets.as_slice()
            && only.max.is_none()
        {
            in_subset(0, None)
        } else {
            let label = |key: &str| pod.pointer("/metadata/labels").and_then(|labels| labels.get(key)?.as_str());
            let version = version(spec.target_kind, label);
            // Nobody has validated it yet, and it would be written into the status. The API server refuses such a Pod.
            if !is_label_value(&version) {
                return Err(Unplaced::Unusable(
                    "label pod-template-hash or controller-revision-hash has a value that no label can have".into(),
                ));
            }
            match self.take_ahead(spread, &spec, &version) {
                Some((index, key)) => in_subset(index, key),
                None => match self.place_by_record(spread, pod, version).await? {
                    Some(place) => place,
                    // It was deleted meanwhile.
                    None => return Ok(None),
                },
            }
        };
        let PlaceOfPod { spec, index, key, there, total } = place;
        let Some(subset) = spec.subsets.get(index) else { return Err(Unplaced::KeepsChanging) };
        let uid = key.as_deref().filter(|_| subset.max.is_some());
        let cost = spec.target_kind.regards_costs().then(|| self.cost(spread, &spec, (index, there), total)).flatten();
        let note = Note { matched: annotation(&spec.name, &subset.name, uid), cost };
        let made = inject::inject(pod, subset, Some(&note)).map_err(|invalid| Unplaced::Unusable(invalid.why))?;
        if !inject::changes_labels(pod, &made) {
            return Ok(Some(made));
        }
        // What its owner selects it by stays; and everything where that is not known.
        let selector = self.target(spread).await.ok().flatten().map(|target| target["spec"]["selector"].clone());
        Ok(Some(inject::keep_labels(pod, made, selector.as_ref())))
    }

    /// Asks for a record of a new Pod. None: the WorkloadSpread was deleted.
    async fn place_by_record(
        self: &Arc<Self>,
        spread: &Arc<WorkloadSpread>,
        pod: &Value,
        version: String,
    ) -> Result<Option<PlaceOfPod>, Unplaced> {
        let name = pod.pointer("/metadata/name").and_then(Value::as_str).filter(|name| !name.is_empty());
        // Nobody has validated it yet, and it is written into the status.
        if name.is_some_and(|name| !is_dns_subdomain(name)) {
            return Err(Unplaced::Unusable("metadata.name of the Pod is not a DNS subdomain".into()));
        }
        let uid = if name.is_none() { Some(new_uid()?) } else { None };
        let key = name.map(str::to_owned).or_else(|| uid.clone()).unwrap_or_default();
        let settled = self.ask(spread, SpreadAsk::Create { key, version }).await?;
        let Some(Settled { answer, spec, total, key }) = settled else { return Ok(None) };
        match answer {
            SpreadAnswer::Subset(index, there) => Ok(Some(PlaceOfPod { spec, index, key: key.or(uid), there, total })),
            SpreadAnswer::Full => Err(Unplaced::Full),
            // Of a new Pod there is always something to say.
            SpreadAnswer::TooManyVersions | SpreadAnswer::Nothing => {
                Err(Unplaced::Unusable("its Pods have more versions than are counted".into()))
            }
        }
    }

    /// The deletion cost of a new Pod, see [`cost::of_new`].
    fn cost(&self, spread: &WorkloadSpread, spec: &SpreadSpec, place: (usize, i32), total: i32) -> Option<i32> {
        let coming = match spec.needs_total() {
            true => lock(&self.coming).entry(ObjectKey::of(spread)).or_default().clone(),
            false => Arc::default(),
        };
        cost::of_new(spec, &mut lock(&coming), place, total)
    }

    /// Asks about a Pod. None: the WorkloadSpread was deleted.
    async fn ask(self: &Arc<Self>, spread: &Arc<WorkloadSpread>, ask: SpreadAsk) -> Result<Option<Settled>, Unplaced> {
        let key = &ObjectKey::of(spread.as_ref());
        // What nobody has counted has no record of a Pod that goes.
        if matches!(ask, SpreadAsk::Create { .. }) {
            self.wait_counted(key).await;
        }
        self.question(key, Question::Pod(ask)).await
    }

    /// Asks in the next turn of a WorkloadSpread. None: it was deleted.
    async fn question(self: &Arc<Self>, key: &ObjectKey, question: Question) -> Result<Option<Settled>, Unplaced> {
        let settle = |questions: Vec<Question>| async move { self.settle(key, &questions).await };
        self.batches.ask(key, question, settle).await
    }

    /// A WorkloadSpread that has just been made: the manager counts in a moment the Pods that are there.
    async fn wait_counted(&self, key: &ObjectKey) {
        let is_counted = || {
            let spread = self.spreads.get(key);
            spread.is_none_or(|spread| spread.status.as_ref().is_some_and(|status| status.observed_generation > 0))
        };
        let mut news = self.news.subscribe();
        let counted = async {
            while !is_counted() {
                if news.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(FIRST_LOOK, counted).await;
    }

    /// Records that a Pod is being deleted, so that the one in its place may go where it was. Whatever happens, it is deleted.
    pub async fn deleted(self: &Arc<Self>, pod: &PodView) {
        let Some(note) = pod.rare().spread.as_deref().filter(|_| self.is_on && pod.is_active()) else { return };
        let Some(spread) = self.spreads.get(&ObjectKey::new(pod.namespace(), &note.name)) else { return };
        let Ok(spec) = SpreadSpec::of(&spread) else { return };
        let has_limit = spec.position(&note.subset).is_some_and(|index| spec.subsets[index].max.is_some());
        if pod.controller.is_none() || !spec.counts() || !has_limit {
            return;
        }
        let ask = SpreadAsk::Delete {
            pod: pod.name().to_owned(),
            subset: note.subset.as_str().to_owned(),
            version: version_of(spec.target_kind, &pod.labels),
        };
        match tokio::time::timeout(LIMIT, self.ask(&spread, ask)).await {
            Ok(Ok(_)) => {}
            Ok(Err(why)) => tracing::warn!(spread = spec.name, pod = pod.name(), %why, "a deletion is not recorded"),
            Err(_) => tracing::warn!(spread = spec.name, pod = pod.name(), "a deletion is not recorded in time"),
        }
    }

    /// There are none, and that is known.
    #[cfg(any(test, fuzzing))]
    pub fn know_of_none(&self) {
        self.publish_namespaces();
    }

    /// These and no others are known.
    #[cfg(test)]
    pub fn know(&self, spreads: &[Value]) {
        for spread in spreads {
            self.spreads.upsert(serde_json::from_value(spread.clone()).unwrap());
        }
        self.publish_namespaces();
    }
}

fn publish(channel: &watch::Sender<Option<BTreeSet<String>>>, now: BTreeSet<String>) {
    channel.send_if_modified(|known| {
        let changed = known.as_ref() != Some(&now);
        *known = Some(now);
        changed
    });
}

/// Takes a namespace into what is published, or out of it.
fn publish_one(channel: &watch::Sender<Option<BTreeSet<String>>>, namespace: &str, is_in: bool) {
    channel.send_if_modified(|known| match known {
        Some(known) if is_in => known.insert(namespace.to_owned()),
        Some(known) => known.remove(namespace),
        None => false,
    });
}

/// Whether the Pods of a WorkloadSpread are counted. Patches may be large: it is read only where there is a limit.
fn counts(spread: &WorkloadSpread) -> bool {
    spread.spec.subsets.iter().any(|subset| subset.max_replicas.is_some())
        && SpreadSpec::of(spread).is_ok_and(|spec| spec.counts())
}

fn labels_of(pod: &Value) -> Labels {
    let labels = pod.pointer("/metadata/labels").cloned().unwrap_or_default();
    serde_json::from_value(labels).unwrap_or_default()
}

/// A Pod as events name it.
fn named(pod: &Value) -> String {
    let text = |key: &str| pod.pointer(&format!("/metadata/{key}")).and_then(Value::as_str).filter(|t| !t.is_empty());
    match (text("name"), text("generateName")) {
        (Some(name), _) => format!("Pod {name}"),
        (None, Some(base)) => format!("a Pod {base}*"),
        (None, None) => "a Pod".to_owned(),
    }
}

/// What a replica is called in the keys of its records. Without random numbers no Pod gets a subset by itself either.
fn new_replica() -> String {
    new_uid().map(|uid| uid[..8].to_owned()).unwrap_or_default()
}

/// A random UID, as the API server makes them.
fn new_uid() -> Result<String, Unplaced> {
    let mut bytes: [u8; 16] = random::bytes().map_err(|none| Unplaced::Unusable(none.to_string()))?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}
