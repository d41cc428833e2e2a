//! Asks PodUnavailableBudgets before a Pod is taken out of service; shared by webhook and manager.
//!
//! - Owns: the entries in the status of PodUnavailableBudgets, which are its consents.
//! - Watches: the replicas of workloads, of the kinds that budgets refer to.
//! - Reads: budgets (from a store that the caller fills), the controllers of ReplicaSets; and the workload and Pods of a
//!   budget whose status is outdated, allows no further Pod, or is for a workload that was scaled.
//! - Never: removes an entry; the manager's controller does that.
//!
//! The rule is [`crate::domain::budgets::unavailable`]. Concurrent questions about one budget in one process are answered
//! together, with one write. Writes of several processes are ordered by the resourceVersion: after a conflict the decision
//! is made again from the new status.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use kube::{Api, Client, ResourceExt, api::ListParams, runtime::watcher::Config};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    api::{feature_gates::FeatureGates, group_of, policy::pod_unavailable_budget::PodUnavailableBudget},
    domain::budgets::unavailable::{
        self as rule, Answer, Ask, Operation,
        index::{Cover, Index},
    },
    k8s::{pod::PodView, selector::Selector},
    runtime::{
        apply::{code, said},
        batches::Batches,
        clock,
        guarded::Guarded,
        lock,
        metrics::Metrics,
        replicas::Replicas,
        watches::{self, Change, ObjectKey, Store, StoreIndex},
        workload::ReplicaSetOwners,
    },
};

mod members;
pub mod refusals;
mod settle;
mod totals;

pub use members::{Members, Workloads};

/// Time limit of a decision, below the API server's timeout of webhooks.
const DECISION_LIMIT: Duration = Duration::from_secs(5);
/// How often a decision is repeated after a conflict. Each conflict means that another process has written.
const ATTEMPTS: u32 = 50;
/// A budget that allows no further Pod is recounted at most this often by one process, and for no more than a twentieth of
/// its time.
const RECOUNT_PAUSE: Duration = Duration::from_secs(1);
const RECOUNT_SHARE: u32 = 20;

/// Why a Pod may not be taken out of service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A budget refuses.
    Budget {
        /// Its name.
        name: String,
        /// Why, in words.
        message: String,
    },
    /// No decision could be made.
    Undecided(Undecided),
}

/// Why no decision could be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undecided {
    /// The answer would come too late for the API server.
    #[error("no decision within {} s; try again", DECISION_LIMIT.as_secs())]
    TooLate,
    /// A call to the API server failed: what it was for, and its error.
    #[error("{0}")]
    ApiServer(String),
    /// Others write the status of the budget again and again.
    #[error("PodUnavailableBudget {0} keeps changing; try again")]
    KeepsChanging(String),
}

impl Refusal {
    /// For people.
    pub fn message(&self) -> String {
        match self {
            Self::Budget { name, message } => {
                format!("podunavailablebudget.policy.kruise.io {name:?} is forbidden: {message}")
            }
            Self::Undecided(why) => format!("the PodUnavailableBudgets of the Pod could not be judged: {why}"),
        }
    }
}

/// Labels of the counter of decisions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DecisionLabels {
    /// `delete`, `evict`, `update`, `resize` or `restart`.
    pub operation: &'static str,
    /// `granted`, `free`, `refused` or `error`.
    pub result: &'static str,
}

/// A question.
#[derive(Clone)]
struct Question {
    ask: Ask,
    dry_run: bool,
}

/// The budgets of a cluster, in one process.
pub struct Budgets {
    client: Client,
    gates: Arc<FeatureGates>,
    /// The budgets, by namespace.
    pub store: Arc<Store<PodUnavailableBudget>>,
    /// For reading workloads.
    pub workloads: Workloads,
    /// The replicas of workloads, of the kinds that budgets refer to.
    replicas: Replicas,
    totals: Mutex<totals::Totals>,
    owners: ReplicaSetOwners,
    index: Mutex<Index>,
    /// Budgets for workloads whose Pods the manager has found by labels.
    scopes: Mutex<Index>,
    /// When the last list was begun, in a process without a watch of budgets.
    listed: tokio::sync::Mutex<Option<Duration>>,
    /// The namespaces that have budgets; None until all of them are known.
    namespaces: watch::Sender<Option<BTreeSet<String>>>,
    /// Questions about one budget are answered together.
    batches: Batches<Question, Result<Answer, Undecided>>,
    /// When each budget may be recounted.
    recounts: Mutex<HashMap<ObjectKey, Duration>>,
    decisions: Family<DecisionLabels, Counter>,
}

impl Budgets {
    /// None known yet.
    pub fn new(client: Client, gates: Arc<FeatureGates>) -> Arc<Self> {
        Arc::new(Self {
            workloads: Workloads::new(client.clone()),
            replicas: Replicas::new(client.clone()),
            totals: Mutex::default(),
            client,
            gates,
            store: Store::new([StoreIndex::namespace()]),
            owners: ReplicaSetOwners::default(),
            index: Mutex::default(),
            scopes: Mutex::default(),
            listed: tokio::sync::Mutex::default(),
            namespaces: watch::Sender::new(None),
            batches: Batches::default(),
            recounts: Mutex::default(),
            decisions: Family::default(),
        })
    }

    /// Adds the counter of decisions to the metrics of this process.
    pub fn register(&self, metrics: &Metrics) {
        metrics.register(
            "kruise_pod_unavailable_budget_decisions",
            "Decisions about Pods that have a PodUnavailableBudget",
            &self.decisions,
        );
    }

    /// Watches the budgets, for ever, in a process whose only use of them are these questions.
    pub async fn follow(&self) {
        let api: Api<Guarded<PodUnavailableBudget>> = Api::all(self.client.clone());
        let first = async {
            watches::first_list(&api, &self.store).await;
            self.send_namespaces();
        };
        let watch =
            watches::watch_guarded(api.clone(), Config::default(), self.store.clone(), |change| self.changed(&change));
        // The next question uses the changed budget.
        let totals = self.follow_totals(None, |_| {});
        tokio::join!(watch, first, totals);
    }

    /// The namespaces that have budgets, as a channel that reports changes. None until all are known.
    pub fn namespaces(&self) -> watch::Receiver<Option<BTreeSet<String>>> {
        self.namespaces.subscribe()
    }

    /// Whether it is known which budgets there are.
    pub fn is_known(&self) -> bool {
        self.store.is_synced() || self.namespaces.borrow().is_some()
    }

    fn publish_namespaces(&self) {
        if self.is_known() {
            self.send_namespaces();
        }
    }

    fn send_namespaces(&self) {
        let now = lock(&self.index).namespaces();
        self.namespaces.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&now);
            *known = Some(now);
            changed
        });
    }

    /// There are none, and that is known.
    #[cfg(test)]
    pub fn know_of_none(&self) {
        self.send_namespaces();
    }

    /// Updates the index after a change in [`Self::store`].
    pub fn changed(&self, change: &Change<'_, PodUnavailableBudget>) {
        match change {
            Change::Applied { new, .. } => self.note(new),
            Change::Deleted(old) => self.forget(&ObjectKey::of(old.as_ref())),
            Change::Undecodable { key, error } => {
                tracing::error!(budget = %key, error, "this PodUnavailableBudget cannot be read and protects nothing");
                self.forget(key);
            }
        }
    }

    fn note(&self, budget: &PodUnavailableBudget) {
        let key = ObjectKey::of(budget);
        self.note_target(budget);
        let is_first = {
            let mut index = lock(&self.index);
            let is_first = !index.has(&key.namespace);
            index.insert(&key.namespace, &key.name, Cover::of(&budget.spec));
            is_first
        };
        match scope_of(budget) {
            Some(selector) => lock(&self.scopes).insert(&key.namespace, &key.name, Cover::Selector(selector)),
            None => lock(&self.scopes).remove(&key.namespace, &key.name),
        }
        if is_first {
            self.publish_namespaces();
        }
    }

    fn forget(&self, key: &ObjectKey) {
        let was_last = {
            let mut index = lock(&self.index);
            index.remove(&key.namespace, &key.name);
            !index.has(&key.namespace)
        };
        lock(&self.scopes).remove(&key.namespace, &key.name);
        self.batches.forget(key);
        lock(&self.recounts).remove(key);
        self.ask_no_more(key);
        if was_last {
            self.publish_namespaces();
        }
    }

    /// Whether a namespace has a budget, as far as is known.
    pub fn guards(&self, namespace: &str) -> bool {
        lock(&self.index).has(namespace)
    }

    /// What a budget covers.
    pub fn cover(&self, key: &ObjectKey) -> Option<Cover> {
        lock(&self.index).cover(&key.namespace, &key.name).cloned()
    }

    /// The budgets that cover a Pod as far as its own metadata shows: labels, controller, and the annotation if it names a
    /// budget with a targetRef.
    pub fn known_to_cover(&self, pod: &PodView) -> Vec<Arc<str>> {
        let (index, namespace) = (lock(&self.index), pod.namespace());
        let mut names = index.selecting(namespace, &pod.labels);
        names.extend(lock(&self.scopes).selecting(namespace, &pod.labels));
        if let Some(owner) = &pod.controller {
            names.extend(index.targeting(namespace, group_of(&owner.api_version), &owner.kind, &owner.name));
        }
        if let Some(related) = &pod.related_pub
            && matches!(index.cover(namespace, related), Some(Cover::Target { .. }))
        {
            names.push(related.as_str().into());
        }
        names.sort();
        names.dedup();
        names
    }

    /// The budgets that cover a Pod.
    ///
    /// # Errors
    /// The API server does not answer.
    pub async fn covering(&self, pod: &PodView) -> kube::Result<Vec<Arc<PodUnavailableBudget>>> {
        let namespace = pod.namespace();
        if !self.store.is_synced() {
            self.list().await?;
        }
        if !self.guards(namespace) {
            return Ok(Vec::new());
        }
        let mut names = self.known_to_cover(pod);
        let has_targets = lock(&self.index).has_targets(namespace);
        if let Some(owner) = pod.controller.as_ref().filter(|owner| has_targets && is_replica_set(owner))
            && let Some(above) = self.owners.of(&self.client, namespace, &owner.name, &owner.uid).await?
        {
            let group = group_of(&above.api_version);
            names.extend(lock(&self.index).targeting(namespace, group, &above.kind, &above.name));
            names.sort();
            names.dedup();
        }
        Ok(names.iter().filter_map(|name| self.store.get(&ObjectKey::new(namespace, name))).collect())
    }

    /// Used before the first list of the watch is complete, and in a process without such a watch: one list at a time, which
    /// serves all callers that asked before it began.
    async fn list(&self) -> kube::Result<()> {
        let asked = clock::now().mono;
        let mut listed = self.listed.lock().await;
        if self.store.is_synced() || listed.is_some_and(|began| began >= asked) {
            return Ok(());
        }
        let began = clock::now().mono;
        let api: Api<Guarded<PodUnavailableBudget>> = Api::all(self.client.clone());
        let list = match api.list(&ListParams::default()).await {
            Ok(list) => list,
            // The kind is not installed.
            Err(error) if code(&error) == Some(404) => {
                *listed = Some(began);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        *listed = Some(began);
        let is_there: HashSet<ObjectKey> = list.items.iter().map(ObjectKey::of).collect();
        // Newer ones were written while the list was on its way.
        let version = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let until = version(list.metadata.resource_version.as_deref());
        for Guarded(budget) in list.items {
            // A budget that cannot be decoded protects nothing; the manager reports it.
            if let Ok(budget) = budget {
                self.note(&budget);
                self.store.upsert(budget);
            }
        }
        for old in self.store.list() {
            let key = ObjectKey::of(old.as_ref());
            if !is_there.contains(&key) && version(old.metadata.resource_version.as_deref()) <= until {
                self.store.remove(&key, old.metadata.uid.as_deref());
                self.forget(&key);
            }
        }
        Ok(())
    }

    /// Asks all budgets that cover a Pod whether it may be taken out of service. A consent is recorded in each of them, unless
    /// it is a dry run. Ask with the current Pod, before the operation; asking again for the same Pod uses up nothing more.
    ///
    /// # Errors
    /// Why it may not.
    pub async fn take(&self, pod: &PodView, operation: Operation, dry_run: bool) -> Result<(), Refusal> {
        if !operation.is_guarded(&self.gates) || rule::needs_no_budget(pod).is_some() {
            return Ok(());
        }
        let decided = tokio::time::timeout(DECISION_LIMIT, self.decide(pod, operation, dry_run)).await;
        let decided = decided.unwrap_or(Err(Refusal::Undecided(Undecided::TooLate)));
        let result = match &decided {
            // Nothing covers it.
            Ok(None) => return Ok(()),
            Ok(Some(Answer::Free)) => "free",
            Ok(Some(_)) => "granted",
            Err(Refusal::Budget { .. }) => "refused",
            Err(Refusal::Undecided(_)) => "error",
        };
        if !dry_run {
            self.decisions.get_or_create(&DecisionLabels { operation: operation.label(), result }).inc();
        }
        decided.map(drop)
    }

    /// Whether one of these budgets, which have just refused another Pod for the same operation, covers this one too and has
    /// not allowed it before: then it refuses this one as well.
    pub fn have_said_no(
        &self,
        pod: &PodView,
        operation: Operation,
        refusing: &BTreeSet<(String, &'static str)>,
    ) -> bool {
        if refusing.is_empty() || rule::needs_no_budget(pod).is_some() {
            return false;
        }
        let namespace = pod.namespace();
        let was_let_go = |name: &str| {
            let budget = self.store.get(&ObjectKey::new(namespace, name));
            budget.as_ref().and_then(|budget| budget.current_status()).is_some_and(|status| {
                status.disrupted_pods.contains_key(pod.name()) || status.unavailable_pods.contains_key(pod.name())
            })
        };
        let said_no = |name: &str| refusing.iter().any(|(no, word)| no == name && *word == operation.word());
        self.known_to_cover(pod).iter().any(|name| said_no(name) && !was_let_go(name))
    }

    async fn decide(&self, pod: &PodView, operation: Operation, dry_run: bool) -> Result<Option<Answer>, Refusal> {
        let covering = self.covering(pod).await;
        let mut guarding = covering.map_err(|error| Refusal::Undecided(Undecided::ApiServer(said(&error))))?;
        guarding.retain(|budget| rule::protects(budget, &self.gates, operation));
        // What one of several refuses must not use up what the others allow, each time that it is asked for.
        if !dry_run && guarding.len() > 1 {
            self.ask_all(&guarding, pod, operation, true).await?;
        }
        self.ask_all(&guarding, pod, operation, dry_run).await
    }

    /// Asks budgets one after the other, up to the first one that refuses. None: there are none.
    async fn ask_all(
        &self,
        budgets: &[Arc<PodUnavailableBudget>],
        pod: &PodView,
        operation: Operation,
        dry_run: bool,
    ) -> Result<Option<Answer>, Refusal> {
        let mut all = None;
        let created = pod.created;
        for budget in budgets {
            let ask = Ask { pod: pod.name().to_owned(), created, operation };
            match self.ask(ObjectKey::of(budget.as_ref()), ask, dry_run).await {
                Ok(Answer::Refused(message)) => return Err(Refusal::Budget { name: budget.name_any(), message }),
                Ok(answer) if all.is_none() || answer != Answer::Free => all = Some(answer),
                Ok(_) => {}
                Err(why) => return Err(Refusal::Undecided(why)),
            }
        }
        Ok(all)
    }

    async fn ask(&self, key: ObjectKey, ask: Ask, dry_run: bool) -> Result<Answer, Undecided> {
        let key = &key;
        let settle = |waiting: Vec<Question>| async move { self.settle(key, &waiting).await };
        self.batches.ask(key, Question { ask, dry_run }, settle).await
    }
}

/// The status as it is stored: a first one is written as a whole.
pub fn recorded(budget: &PodUnavailableBudget) -> Value {
    budget.status.as_ref().map_or_else(|| json!({}), |status| json!(status))
}

/// The labels by which the manager has found the Pods of a budget's workload.
fn scope_of(budget: &PodUnavailableBudget) -> Option<Selector> {
    budget.spec.target_ref.as_ref()?;
    let text = budget.status.as_ref()?.selector.as_ref()?;
    Selector::parse(text).ok().filter(|selector| !selector.is_empty())
}

fn is_replica_set(owner: &crate::k8s::pod::Owner) -> bool {
    owner.is("apps", "ReplicaSet")
}

#[cfg(test)]
mod tests;
