//! PodUnavailableBudgets: keeps their status up to date.
//!
//! - Owns: the status of PodUnavailableBudgets, but for the grants that [`crate::budgets`] writes into it, and the
//!   annotation `kruise.io/related-pub` of Pods.
//! - Watches: PodUnavailableBudgets, Pods, requests for container restarts, and how many Pods workloads want, of the kinds
//!   that budgets rest on.
//! - Reads: the workloads that budgets name, or that control their Pods, at most twice a second each and only while
//!   something happens to their Pods.
//! - Never: is needed for a decision. Without it the webhook counts the Pods itself.
//!
//! It also reports Pods that were deleted against a budget while no webhook answered.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::join_all;
use jiff::Timestamp;
use kube::{
    Api,
    api::{Patch, PatchParams},
    runtime::watcher::Config,
};
use prometheus_client::metrics::counter::Counter;
use serde_json::json;

use super::{BY_CONTROLLER, BY_NAMESPACE, Context, Registration, Runner, Started, handling, lock, owned_text};
use crate::{
    api::{
        crr::ContainerRecreateRequest,
        labels,
        policy::{
            self,
            pod_unavailable_budget::{PodUnavailableBudget, PodUnavailableBudgetStatus as Status},
        },
    },
    budgets::{Members, recorded},
    domain::budgets::unavailable::{
        self as rule, Counted, Counting, Operation,
        index::{Cover, Index},
    },
    k8s::{
        pod::{PodObject, PodView},
        rbac::Rule,
        time::Now,
    },
    runtime::{
        apply::code,
        clock,
        events::reference,
        pass::AFTER_CONFLICT,
        queue::{Backoff, Queue, Requeue},
        replicas,
        shutdown::Shutdown,
        status_writer::{Outcome, StatusWriter},
        watches::{Change, ObjectKey, Store, StoreIndex},
        workload::{self, Scope},
    },
};

/// Its entry in `CONTROLLERS`.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: Some("podunavailablebudgets.policy.kruise.io"),
    gate: None,
    rules: &[
        Rule::new(&[policy::GROUP], &["podunavailablebudgets"], &["get", "list", "watch"]),
        Rule::new(&[policy::GROUP], &["podunavailablebudgets/status"], &["patch"]),
        Rule::new(&[""], &["pods"], &["list", "watch", "patch"]),
        Rule::new(&["apps.kruise.io"], &["containerrecreaterequests"], &["list", "watch"]),
        workload::READ_BUILT_IN,
        workload::READ_KRUISE,
        replicas::WATCH_BUILT_IN,
        replicas::WATCH_KRUISE,
    ],
    workers_flag: Some("podunavailablebudget-workers"),
    workers: 3,
    start,
};

const NAME: &str = "podunavailablebudget-controller";
/// How old the numbers of a workload may be.
const TOTAL_AGE: Duration = Duration::from_millis(500);
/// Writes of a status for which nobody waits: between two about one budget, between two of all budgets together, and
/// how long one waits at most. When many Pods go at once, those that wait for consent have the API server to themselves.
const TIDY_PAUSE: Duration = Duration::from_secs(1);
const TIDY_EACH: Duration = Duration::from_millis(250);
const TIDY_LATEST: Duration = Duration::from_secs(5);
/// Every budget is counted at least this often; so is one that could not be resolved.
const RESYNC: Duration = Duration::from_secs(5 * 60);
const RESYNC_UNRESOLVED: Duration = Duration::from_secs(30);
/// The same for a budget whose workload cannot be watched, so that its scaling is noticed.
const RESYNC_UNFOLLOWED: Duration = Duration::from_secs(30);
/// The same for such a budget that allows no further Pod.
const RESYNC_USED_UP: Duration = Duration::from_secs(10);
/// How much later than a deletion its consent may be seen, as they come by two watches.
const SUSPICION: Duration = Duration::from_secs(3);
/// How long entries are remembered after they have ended.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Pods that are written at a time.
const AT_ONCE: usize = 8;

struct Controller {
    context: Context,
    requests: Arc<Store<ContainerRecreateRequest>>,
    queue: Arc<Queue<ObjectKey>>,
    following: Mutex<Following>,
    memories: Mutex<HashMap<ObjectKey, BudgetState>>,
    tidying: Mutex<Tidying>,
    status: StatusWriter,
    breaches: Counter,
}

/// Which Pods concern which budgets.
#[derive(Default)]
struct Following {
    /// Selectors of workloads that budgets name.
    scopes: Index,
    /// Budgets by the UID of the workload that controls their Pods.
    by_owner: HashMap<String, Vec<ObjectKey>>,
    /// What each budget covers, as it was resolved last.
    resolved: HashMap<ObjectKey, Members>,
    /// Names of Pods that may be of a budget, so that nobody has to look through a whole namespace.
    pods: HashMap<ObjectKey, HashSet<Arc<str>>>,
}

/// In-memory state of a budget; losing it does no harm.
#[derive(Default)]
struct BudgetState {
    /// When each entry of its lists was first seen and last seen here.
    entries: HashMap<(String, Timestamp), (Duration, Duration)>,
    /// Pods that went while they were in service.
    suspects: Vec<Suspect>,
    /// When the status was written last.
    written: Duration,
    /// When it is written at the latest although no decision depends on it.
    tidy_at: Option<Duration>,
    /// Whether it covered no Pod the last time.
    is_bare: Option<bool>,
}

struct Suspect {
    pod: Arc<PodView>,
    seen: Duration,
}

fn start(context: &Context, workers: usize, shutdown: Shutdown) -> Started {
    let controller = Arc::new(Controller::new(context));
    context.metrics.register(
        "kruise_pod_unavailable_budget_breaches",
        "Pods that were deleted although a PodUnavailableBudget forbade it",
        &controller.breaches,
    );
    let on_pod = handling(&controller, Controller::pod_changed);
    Started::new(controller.run(workers, shutdown)).on_pod(on_pod)
}

/// Requests by the UID of their Pod.
const BY_POD: StoreIndex<ContainerRecreateRequest> =
    StoreIndex::new("Pod", |request| Some(request.pod_uid().to_owned()));

impl Controller {
    fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            requests: Store::of_work([BY_POD], ContainerRecreateRequest::is_completed),
            queue: Queue::new(Backoff::default()),
            following: Mutex::default(),
            memories: Mutex::default(),
            tidying: Mutex::default(),
            status: StatusWriter::default(),
            breaches: Counter::default(),
        }
    }

    async fn run(self: Arc<Self>, workers: usize, shutdown: Shutdown) {
        let (on_budget, on_request, on_scaled, this) = (self.clone(), self.clone(), self.clone(), self.clone());
        let request_changed = move |change: Change<'_, ContainerRecreateRequest>| {
            if let Change::Applied { new: request, .. } | Change::Deleted(request) = change {
                on_request.request_changed(request);
            }
        };
        let watch_totals = async move {
            let Context { budgets, only_namespace, .. } = &on_scaled.context;
            let look_again = |budget: &ObjectKey| on_scaled.queue.add(budget.clone());
            budgets.follow_totals(only_namespace.as_deref(), look_again).await;
        };
        let budgets = &self.context.budgets.store;
        let runner = Runner::new(&self.context, NAME, shutdown)
            .watch_guarded(self.context.api(), Config::default(), budgets, move |c| on_budget.budget_changed(&c))
            .watch_guarded(self.context.api(), Config::default(), &self.requests, request_changed)
            .following_others(watch_totals)
            .following(&self.context.pods);
        let reconcile = move |key: ObjectKey| {
            let this = this.clone();
            async move { this.reconcile(&key).await }
        };
        runner.run(self.queue.clone(), workers, reconcile).await;
    }

    fn budget_changed(&self, change: &Change<'_, PodUnavailableBudget>) {
        self.context.budgets.changed(change);
        match change {
            Change::Applied { new, .. } => self.queue.add(ObjectKey::of(new.as_ref())),
            Change::Deleted(old) => self.forget(&ObjectKey::of(old.as_ref())),
            Change::Undecodable { key, .. } => self.forget(key),
        }
    }

    fn request_changed(&self, request: &ContainerRecreateRequest) {
        let key = ObjectKey::new(request.metadata.namespace.as_deref().unwrap_or_default(), &request.spec.pod_name);
        if self.context.budgets.guards(&key.namespace)
            && let Some(pod) = self.context.pods.get(&key)
        {
            for budget in lock(&self.following).concerned(&self.context, &pod) {
                self.queue.add(budget);
            }
        }
    }

    fn pod_changed(&self, change: &Change<'_, PodView>) {
        let Some((old, new)) = change.sides() else { return };
        let Some(any) = new.or(old).filter(|pod| self.context.budgets.guards(pod.namespace())) else { return };
        let name: Arc<str> = any.name().into();
        let facts = |pod: &Arc<PodView>| {
            let state = (rule::is_available(pod), pod.is_deleting(), pod.is_finished());
            (pod.uid().to_owned(), state, pod.related_pub.clone())
        };
        let changed = old.map(facts) != new.map(facts);
        let mut following = lock(&self.following);
        let before = old.map(|pod| following.concerned(&self.context, pod)).unwrap_or_default();
        let after = new.map(|pod| following.concerned(&self.context, pod)).unwrap_or_default();
        for budget in before.iter().filter(|budget| !after.contains(budget)) {
            if let Some(pods) = following.pods.get_mut(budget) {
                pods.remove(&name);
            }
        }
        for budget in &after {
            if let Some(pods) = following.pods.get_mut(budget) {
                pods.insert(name.clone());
            }
        }
        drop(following);
        if !changed && before == after {
            return;
        }
        // In service, and going, or gone without a word.
        let gone = old.filter(|old| rule::is_available(old) && new.is_none_or(|new| new.is_deleting()));
        for budget in before.iter().chain(after.iter().filter(|budget| !before.contains(budget))) {
            if let Some(pod) = gone.filter(|pod| rule::needs_no_budget(pod).is_none()) {
                let suspect = Suspect { pod: pod.clone(), seen: clock::now().mono };
                lock(&self.memories).entry(budget.clone()).or_default().suspects.push(suspect);
            }
            self.queue.add(budget.clone());
        }
    }

    fn forget(&self, key: &ObjectKey) {
        lock(&self.following).forget(key);
        lock(&self.memories).remove(key);
    }

    async fn reconcile(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let budgets = &self.context.budgets;
        let Some(budget) = budgets.store.get(key).filter(|budget| budget.metadata.deletion_timestamp.is_none()) else {
            return Ok(Requeue::Await);
        };
        let (members, total) = budgets.members(&budget, TOTAL_AGE).await?;
        let candidates = self.candidates(key, &members);
        let pods = budgets.of_members(&key.namespace, &members, candidates).await?;
        let total = match total {
            Some(total) => total,
            None => budgets.total_of(key, &members, &pods, TOTAL_AGE).await?,
        };
        // Grants may have been written meanwhile.
        let Some(budget) = budgets.store.get(key) else { return Ok(Requeue::Await) };
        let now = clock::now();
        let mut counted = {
            let mut memories = lock(&self.memories);
            let memory = memories.entry(key.clone()).or_default();
            memory.note(budget.status.as_ref(), now);
            let known_for = |pod: &str, since: Timestamp| memory.known_for(pod, since, now);
            let is_restarting = |pod: &PodView| !self.requests.by_index(&BY_POD, pod.uid()).is_empty();
            let counting = Counting::Manager { known_for: &known_for, is_restarting: &is_restarting };
            rule::count(&budget, &self.context.gates, &pods, total, counting, now.wall)
        };
        counted.status.selector = match &members {
            Members::Scope(Scope::Labels(_), listing) => Some(listing.clone()),
            _ => None,
        };
        self.report_no_pods(key, &budget, &pods);
        self.report_not_deleted(&counted, &pods);
        let suspicion = self.judge_suspects(key, &budget, &counted.status, now);
        let is_resolved =
            counted.status.conditions.iter().any(|c| c.type_ == labels::CONDITION_RESOLVED && c.status == "True");
        let resync = match is_resolved {
            true if budgets.follows_total(key) => RESYNC,
            true if counted.status.unavailable_allowed == 0 => RESYNC_USED_UP,
            true => RESYNC_UNFOLLOWED,
            false => RESYNC_UNRESOLVED,
        };
        let next = [counted.again, suspicion].into_iter().flatten().min().map_or(resync, |next| next.min(resync));
        let recorded = self.record(key, &budget, &counted.status, now, next).await;
        // Last, and an error is only logged: no decision depends on it.
        self.relate(key, &pods).await;
        recorded
    }

    /// Pods that may be of a budget.
    fn candidates(&self, key: &ObjectKey, members: &Members) -> Vec<Arc<PodView>> {
        let store = &self.context.pods;
        let mut following = lock(&self.following);
        following.resolve(key, members);
        let selector = match members {
            Members::Scope(Scope::Owner(uid), _) => {
                return store.by_index(&BY_CONTROLLER, &owned_text(&key.namespace, uid));
            }
            Members::Selector(selector)
            | Members::Scope(Scope::Labels(selector) | Scope::Deployment(_, selector), _) => selector,
            // The workload does not exist. That is rare and does not last.
            Members::ByName { .. } => {
                drop(following);
                return store.by_index(&BY_NAMESPACE, &key.namespace);
            }
            Members::Nothing => return Vec::new(),
        };
        let names = following.pods.entry(key.clone()).or_insert_with(|| {
            let pods = store.by_index(&BY_NAMESPACE, &key.namespace).into_iter();
            pods.filter(|pod| selector.matches(&pod.labels)).map(|pod| pod.name().into()).collect()
        });
        let keys = names.iter().map(|name| ObjectKey { namespace: key.namespace.clone(), name: name.clone() });
        keys.filter_map(|key| store.get(&key)).collect()
    }

    /// Writes the budget's name into the annotation of Pods that name none, or one that does not exist any more.
    async fn relate(&self, key: &ObjectKey, pods: &[Arc<PodView>]) {
        let budgets = &self.context.budgets;
        let lacks = |pod: &&Arc<PodView>| {
            let names_another = pod.related_pub.as_ref().is_some_and(|related| {
                let other = ObjectKey { namespace: key.namespace.clone(), name: related.as_str().into() };
                other == *key
                    || match budgets.cover(&other) {
                        Some(Cover::Selector(selector)) => selector.matches(&pod.labels),
                        Some(Cover::Target { .. }) => true,
                        Some(Cover::Nothing(_)) | None => false,
                    }
            });
            !names_another && pod.is_active() && !pod.is_mirror
        };
        // A policy keeps the manager from the Pods of its own namespace.
        let is_own = *key.namespace == *self.context.namespace;
        let lacking: Vec<_> = pods.iter().filter(|pod| !is_own && lacks(pod)).collect();
        let api: Api<PodObject> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let mut refused = (0_usize, None);
        for some in lacking.chunks(AT_ONCE) {
            let written = join_all(some.iter().map(|pod| {
                let annotations = json!({ labels::RELATED_PUB: &*key.name });
                let patch = Patch::Merge(json!({ "metadata": { "uid": pod.uid(), "annotations": annotations } }));
                let api = &api;
                async move { api.patch(pod.name(), &PatchParams::default(), &patch).await }
            }));
            for result in written.await {
                match result {
                    Ok(pod) => drop(self.context.pods.upsert(pod.into())),
                    // It is gone or replaced, and the watch will show that; or admission has refused this one alone.
                    Err(error) if matches!(code(&error), Some(404 | 409 | 422)) => {}
                    Err(error) if matches!(code(&error), Some(400..=499)) => {
                        refused = (refused.0 + 1, refused.1.or(Some(error)));
                    }
                    Err(error) => {
                        tracing::warn!(budget = %key, %error, "the budget could not be noted in a Pod");
                        return;
                    }
                }
            }
        }
        if let (pods, Some(error)) = refused {
            tracing::warn!(budget = %key, pods, %error, "the budget could not be noted in some Pods");
        }
    }

    /// Once, until it covers Pods again. After a restart the status says whether it may have been reported.
    fn report_no_pods(&self, key: &ObjectKey, budget: &PodUnavailableBudget, pods: &[Arc<PodView>]) {
        let is_bare = !pods.iter().any(|pod| pod.is_active());
        let known = lock(&self.memories).get_mut(key).and_then(|memory| memory.is_bare.replace(is_bare));
        let recorded = || budget.status.as_ref().is_some_and(|status| status.current_available == 0);
        if is_bare && !known.unwrap_or_else(recorded) {
            self.context.events.normal(&reference(budget), "NoPods", "No matching pods found");
        }
    }

    fn report_not_deleted(&self, counted: &Counted, pods: &[Arc<PodView>]) {
        for name in &counted.not_deleted {
            if let Some(pod) = pods.iter().find(|pod| pod.name() == name) {
                let message = "A PodUnavailableBudget allowed its deletion, but it was not deleted";
                self.context.events.warning(&pod.reference(), "NotDeleted", message);
            }
        }
    }

    /// Reports Pods that were deleted without a consent while the budget allowed none; returns when to check again.
    fn judge_suspects(
        &self,
        key: &ObjectKey,
        budget: &PodUnavailableBudget,
        status: &Status,
        now: Now,
    ) -> Option<Duration> {
        let mut memories = lock(&self.memories);
        let memory = memories.get_mut(key)?;
        let age = |suspect: &Suspect| now.mono.saturating_sub(suspect.seen);
        let due: Vec<Suspect> = memory.suspects.extract_if(.., |suspect| age(suspect) >= SUSPICION).collect();
        let next = memory.suspects.iter().map(|suspect| SUSPICION - age(suspect).min(SUSPICION)).min();
        let was_granted = |pod: &PodView| memory.entries.keys().any(|(name, _)| name == pod.name());
        let breaches: Vec<Suspect> = due.into_iter().filter(|suspect| !was_granted(&suspect.pod)).collect();
        drop(memories);
        let overdrawn = status.current_available < status.desired_available;
        let is_guarded = [Operation::Delete, Operation::Evict]
            .iter()
            .any(|operation| rule::protects(budget, &self.context.gates, *operation));
        if overdrawn && is_guarded {
            for Suspect { pod, .. } in breaches {
                self.breaches.inc();
                let message = format!(
                    "Pod {} was deleted without the consent of this budget, and only {} of the {} Pods that have to stay are available: was the webhook down?",
                    pod.name(),
                    status.current_available,
                    status.desired_available
                );
                tracing::warn!(budget = %key, pod = pod.name(), available = status.current_available, desired = status.desired_available, "a Pod slipped through");
                self.context.events.warning(&reference(budget), "BudgetBreached", &message);
            }
        }
        next
    }

    async fn record(
        &self,
        key: &ObjectKey,
        budget: &PodUnavailableBudget,
        status: &Status,
        now: Now,
        next: Duration,
    ) -> kube::Result<Requeue> {
        let before = budget.status.clone().unwrap_or_default();
        if budget.status.as_ref() == Some(status) {
            if let Some(memory) = lock(&self.memories).get_mut(key) {
                memory.tidy_at = None;
            }
            return Ok(Requeue::After(next));
        }
        if is_tidying(&before, status)
            && let Some(memory) = lock(&self.memories).get_mut(key)
        {
            let written = memory.written;
            let turn = *memory.tidy_at.get_or_insert_with(|| lock(&self.tidying).turn(written, now.mono));
            if turn > now.mono {
                return Ok(Requeue::After((turn - now.mono).min(next)));
            }
        }
        let api: Api<PodUnavailableBudget> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let statuses = (&recorded(budget), &json!(status));
        match self.status.write((&api, &self.context.budgets.store), budget, statuses, false, now).await? {
            Outcome::Written(_) => {
                if let Some(memory) = lock(&self.memories).get_mut(key) {
                    (memory.written, memory.tidy_at) = (now.mono, None);
                }
                self.emit_events(key, budget, &before, status);
                Ok(Requeue::After(next))
            }
            Outcome::Unchanged => Ok(Requeue::After(next)),
            Outcome::Gone => Ok(Requeue::Await),
            Outcome::Later(after) => Ok(Requeue::After(after)),
            Outcome::Outdated => Ok(Requeue::After(AFTER_CONFLICT)),
        }
    }

    fn emit_events(&self, key: &ObjectKey, budget: &PodUnavailableBudget, before: &Status, status: &Status) {
        tracing::info!(
            budget = %key, allowed = status.unavailable_allowed, available = status.current_available,
            desired = status.desired_available, total = status.total_replicas, "counted"
        );
        let reason = |status: &Status, type_: &str| {
            let condition = status.conditions.iter().find(|condition| condition.type_ == type_)?;
            Some((condition.reason.clone(), condition.message.clone(), condition.status == "True"))
        };
        let about = reference(budget);
        for type_ in [labels::CONDITION_RESOLVED, labels::CONDITION_PROTECTS_UPDATES] {
            let (old, new) = (reason(before, type_), reason(status, type_));
            let Some((now, message, is_true)) = new else { continue };
            // `NoPods` is no fault, and has an event of its own.
            if is_true || now == "NoPods" || old.is_some_and(|(old, ..)| old == now) {
                continue;
            }
            if type_ == labels::CONDITION_RESOLVED {
                self.context.events.warning(&about, "NotResolved", &message);
            } else {
                self.context.events.normal(&about, "UpdatesNotProtected", &message);
            }
        }
    }
}

/// Spreads writes that no decision depends on.
#[derive(Default)]
struct Tidying {
    /// From when on the next one may be written.
    next: Duration,
}

impl Tidying {
    /// When a budget that was written at `written` has its turn.
    fn turn(&mut self, written: Duration, now: Duration) -> Duration {
        let turn = self.next.clamp(now, now + TIDY_LATEST);
        self.next = turn + TIDY_EACH;
        turn.max(written + TIDY_PAUSE)
    }
}

/// Whether two statuses differ in nothing that anybody waits for: entries that have done their work, and words.
fn is_tidying(old: &Status, new: &Status) -> bool {
    let numbers = |status: &Status| {
        let numbers = (status.unavailable_allowed, status.desired_available, status.total_replicas);
        (numbers, status.observed_generation, status.selector.clone())
    };
    let reasons =
        |status: &Status| status.conditions.iter().map(|c| (c.type_.clone(), c.reason.clone())).collect::<Vec<_>>();
    numbers(old) == numbers(new) && reasons(old) == reasons(new)
}

impl Following {
    /// The budgets that a Pod may be of.
    fn concerned(&self, context: &Context, pod: &PodView) -> Vec<ObjectKey> {
        let namespace = pod.namespace();
        let mut names = context.budgets.known_to_cover(pod);
        names.extend(self.scopes.selecting(namespace, &pod.labels));
        let mut keys: Vec<ObjectKey> = names.iter().map(|name| ObjectKey::new(namespace, name)).collect();
        if let Some(owner) = &pod.controller {
            keys.extend(self.by_owner.get(&owner.uid).into_iter().flatten().cloned());
        }
        keys.sort();
        keys.dedup();
        keys
    }

    /// Takes note of what a budget covers.
    fn resolve(&mut self, key: &ObjectKey, members: &Members) {
        if self.resolved.get(key) == Some(members) {
            return;
        }
        self.forget(key);
        match members {
            Members::Scope(Scope::Owner(uid), _) => self.by_owner.entry(uid.clone()).or_default().push(key.clone()),
            Members::Scope(Scope::Labels(selector) | Scope::Deployment(_, selector), _) => {
                self.scopes.insert(&key.namespace, &key.name, Cover::Selector(selector.clone()));
            }
            Members::Selector(_) | Members::ByName { .. } | Members::Nothing => {}
        }
        self.resolved.insert(key.clone(), members.clone());
    }

    fn forget(&mut self, key: &ObjectKey) {
        if let Some(Members::Scope(Scope::Owner(uid), _)) = self.resolved.remove(key)
            && let Some(keys) = self.by_owner.get_mut(&uid)
        {
            keys.retain(|other| other != key);
            if keys.is_empty() {
                self.by_owner.remove(&uid);
            }
        }
        self.scopes.remove(&key.namespace, &key.name);
        self.pods.remove(key);
    }
}

impl BudgetState {
    fn note(&mut self, status: Option<&Status>, now: Now) {
        let entries =
            status.into_iter().flat_map(|status| status.disrupted_pods.iter().chain(&status.unavailable_pods));
        for (pod, since) in entries {
            self.entries.entry((pod.clone(), *since)).or_insert((now.mono, now.mono)).1 = now.mono;
        }
        self.entries.retain(|_, (_, last)| now.mono.saturating_sub(*last) < REMEMBERED);
    }

    fn known_for(&self, pod: &str, since: Timestamp, now: Now) -> Duration {
        let entry = self.entries.get(&(pod.to_owned(), since));
        entry.map_or(Duration::ZERO, |(first, _)| now.mono.saturating_sub(*first))
    }
}

#[cfg(test)]
mod tests;
