//! ResourceDistributions: a copy of one Secret or ConfigMap in each of many namespaces.
//!
//! - Owns: the copies, and the status of ResourceDistributions. Copies go with their ResourceDistribution by the garbage
//!   collector.
//! - Watches: ResourceDistributions, Namespaces, the ConfigMaps whose names are distributed, and the objects that are referred
//!   to, each by its name. Of Secrets it lists and watches nothing else: a copy is looked at in turns.
//! - What is due is decided by [`crate::domain::kinds::resource_distribution`].
//! - Never: writes or deletes an object that its ResourceDistribution does not control; writes in our own namespace.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock, atomic::AtomicUsize},
    time::Duration,
};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, runtime::watcher::Config};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::{Context, Registration, Runner, Started};
use crate::{
    api::{
        apps::resource_distribution::{ResourceDistribution, ResourceDistributionStatus},
        feature_gates::gate,
    },
    domain::kinds::resource_distribution::{
        content::{Content, Fingerprint, fingerprint},
        copy::{self, Distributor, Wanted},
        memory::DistributionMemory,
        plan::{Facts, SeenCopy, Steps, Survey, is_watched},
        spec::{DistributionSpec, NamespaceFacts, NamespaceView, Relation, Source, TargetSpec, identity},
        status::{self, About, Situation},
        turns::{Load, Periods},
    },
    k8s::{invalid::Invalid, rbac::Rule, time::Now},
    runtime::{
        clock,
        events::reference,
        guarded::Guarded,
        pass::{AFTER_WATCHED_CONFLICT, Memories, Pass},
        queue::{Backoff, Queue, Requeue},
        shutdown::Shutdown,
        status_writer::{Outcome, StatusWriter, json_of},
        wake,
        watches::{self, Change, ObjectKey, Store},
    },
};

mod apply;
mod watched;

use watched::{SourceContent, Watched};

/// Its entry in `CONTROLLERS`. The rights on copies are a component of their own.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: Some("resourcedistributions.apps.kruise.io"),
    gate: Some(gate::RESOURCE_DISTRIBUTION),
    rules: &[
        Rule::new(&["apps.kruise.io"], &["resourcedistributions"], &["get", "list", "watch"]),
        Rule::new(&["apps.kruise.io"], &["resourcedistributions/status"], &["patch"]),
        // To own objects with blockOwnerDeletion, where the API server checks that.
        Rule::new(&["apps.kruise.io"], &["resourcedistributions/finalizers"], &["update"]),
        Rule::new(&[""], &["namespaces"], &["list", "watch"]),
    ],
    workers_flag: Some("resourcedistribution-workers"),
    workers: 3,
    start,
};

/// What it does with the copies. It goes with the gate: the component `resource-distribution` grants it.
pub const COPIES_RBAC: &[Rule] = &[
    Rule::new(&[""], &["configmaps"], &["list", "watch", "create", "patch", "delete"]),
    Rule::new(&[""], &["secrets"], &["create", "patch", "delete"]),
];

const NAME: &str = "resourcedistribution-controller";
/// How long the first list of ConfigMaps may take before the status says that there is none.
const UNWATCHED_AFTER: Duration = Duration::from_secs(10);
/// Memory for what is being sent, in parts of [`PART`] bytes, for all ResourceDistributions together.
const ROOM: usize = 512;
const PART: usize = 64 * 1024;
/// How often a content is in memory while it is sent and its answer is read.
const HELD: usize = 6;
/// When to look again for what a watch has not brought yet; it wakes the ResourceDistribution itself.
const AFTER_UNKNOWN: Duration = Duration::from_secs(5);

struct Controller {
    context: Context,
    distributions: Arc<Store<ResourceDistribution>>,
    namespaces: Arc<Store<NamespaceView>>,
    watched: Watched,
    queue: Arc<Queue<ObjectKey>>,
    memories: Memories<DistributionMemory>,
    status: StatusWriter,
    writes: Family<WriteLabels, Counter>,
    room: Semaphore,
}

/// Labels of the counter of writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    /// `create`, `update` or `delete`.
    operation: &'static str,
    /// `done` or `failed`.
    result: &'static str,
}

/// A ResourceDistribution in one pass.
struct Job {
    key: ObjectKey,
    object: Arc<ResourceDistribution>,
    spec: DistributionSpec,
    /// What every copy has, unless that cannot be had.
    content: Option<(Arc<Content>, Fingerprint)>,
    /// The hash of the content.
    hash: Arc<str>,
    situation: Situation,
    /// A new copy as it is sent, the same in every namespace.
    new_copy: OnceLock<Vec<u8>>,
    /// The same of the patch that gives a copy its content.
    renewal: OnceLock<Vec<u8>>,
    written: AtomicUsize,
    deleted: AtomicUsize,
}

impl Job {
    fn distributor(&self) -> Distributor<'_> {
        Distributor { name: self.object.name(), uid: self.object.uid() }
    }
    /// Its share of [`ROOM`].
    fn weight(&self) -> u32 {
        let size = self.content.as_ref().map_or(0, |(content, _)| content.size());
        u32::try_from((1 + size * HELD / PART).min(ROOM)).unwrap_or(1)
    }
    fn is_watched(&self) -> bool {
        is_watched(self.spec.kind)
    }
    fn new_copy(&self, content: &Content) -> kube::Result<Vec<u8>> {
        encoded_once(&self.new_copy, || copy::new(content, self.distributor()))
    }
    fn renewal(&self, content: &Content) -> kube::Result<Vec<u8>> {
        encoded_once(&self.renewal, || copy::renewal(content, self.distributor()))
    }
}

fn encoded_once(bytes: &OnceLock<Vec<u8>>, object: impl FnOnce() -> Value) -> kube::Result<Vec<u8>> {
    if bytes.get().is_none() {
        let _ = bytes.set(serde_json::to_vec(&object()).map_err(kube::Error::SerdeError)?);
    }
    Ok(bytes.get().cloned().unwrap_or_default())
}

fn start(context: &Context, workers: usize, shutdown: Shutdown) -> Started {
    let controller = Arc::new(Controller::new(context));
    let help = "Copies of ResourceDistributions that were to be created, updated or deleted, by operation and result";
    context.metrics.register("kruise_resource_distribution_writes", help, &controller.writes);
    Started::new(controller.run(workers, shutdown))
}

impl Controller {
    fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            distributions: Store::new(None),
            namespaces: Store::new(None),
            watched: Watched::default(),
            queue: Queue::new(Backoff::default()),
            memories: Memories::default(),
            status: StatusWriter::default(),
            writes: Family::default(),
            room: Semaphore::new(ROOM),
        }
    }

    async fn run(self: Arc<Self>, workers: usize, shutdown: Shutdown) {
        let _end = watched::EndWatches(&self.watched);
        let (on_distribution, on_namespace, this) = (self.clone(), self.clone(), self.clone());
        let distributions: Api<Guarded<ResourceDistribution>> = Api::all(self.context.client.clone());
        let namespaces: Api<Namespace> = Api::all(self.context.client.clone());
        let own = self.context.namespace.clone();
        let view = move |namespace: Namespace| NamespaceView::of(&namespace, &own);
        let changed = move |change: Change<'_, NamespaceView>| on_namespace.namespace_changed(&change);
        let namespaces = watches::watch_as(namespaces, Config::default(), self.namespaces.clone(), view, changed);
        let runner = Runner::new(&self.context, NAME, shutdown)
            .watch_guarded(distributions, Config::default(), &self.distributions, move |change| {
                on_distribution.distribution_changed(&change);
                wake::status_changed(&change, &on_distribution.distributions, &on_distribution.queue);
            })
            .following(&self.namespaces)
            .following_others(namespaces);
        let reconcile = move |key: ObjectKey| {
            let this = this.clone();
            async move { this.reconcile(&key).await }
        };
        runner.run(self.queue.clone(), workers, reconcile).await;
    }

    fn distribution_changed(self: &Arc<Self>, change: &Change<'_, ResourceDistribution>) {
        if is_news(change) {
            self.follow();
        }
        self.take_note(change);
    }

    /// Those look again whom it concerns.
    fn take_note(&self, change: &Change<'_, ResourceDistribution>) {
        match change {
            Change::Applied { new, initial, .. } => {
                let is_news = is_news(change);
                if is_news {
                    self.wake_rivals(new);
                }
                if is_news || *initial {
                    self.queue.add(ObjectKey::of(new.as_ref()));
                }
            }
            Change::Deleted(old) => {
                self.memories.forget(&ObjectKey::of(old.as_ref()));
                self.wake_rivals(old);
                self.wake_late();
            }
            Change::Undecodable { key, error } => {
                tracing::error!(distribution = %key, error, "this ResourceDistribution cannot be read and is left alone");
            }
        }
    }

    /// Others that distribute an object of the same kind and name: what one gives up, another may have.
    fn wake_rivals(&self, changed: &ResourceDistribution) {
        let Some(of_changed) = identity(&changed.spec) else { return };
        let is_rival =
            |other: &ResourceDistribution| other.name() != changed.name() && identity(&other.spec) == Some(of_changed);
        for rival in self.distributions.select(is_rival) {
            let key = ObjectKey::of(rival.as_ref());
            self.memories.with(&key, DistributionMemory::forget_others);
            self.queue.add(key);
        }
    }

    /// How often what no watch shows is looked at, by what all ResourceDistributions need together.
    fn periods(&self) -> Periods {
        let mut all = Load::default();
        self.memories.for_each(|memory| all += memory.load);
        Periods::of(all)
    }

    /// Has ResourceDistributions planned anew whose next look is late by now, because there were many more copies when it was
    /// planned.
    fn wake_late(&self) {
        let period = self.periods().copies;
        for distribution in self.distributions.list() {
            let key = ObjectKey::of(distribution.as_ref());
            if self.memories.with(&key, |memory| memory.is_late(period)) == Some(true) {
                self.queue.add(key);
            }
        }
    }

    /// Those to which the namespace is something, or was.
    fn namespace_changed(&self, change: &Change<'_, NamespaceView>) {
        // While the first list is read nothing has been decided by it.
        if matches!(change, Change::Applied { initial: true, .. }) && !self.namespaces.is_synced() {
            return;
        }
        let Some((old, new)) = change.sides() else { return };
        let facts = |namespace: Option<&Arc<NamespaceView>>| namespace.map(|namespace| namespace.facts.clone());
        let (before, now) = (facts(old), facts(new));
        // A namesake that was made since has no copies, however soon it came.
        let gone = old.filter(|old| new.is_none_or(|new| new.uid != old.uid));
        if before == now && gone.is_none() {
            return;
        }
        for distribution in self.distributions.list() {
            let key = ObjectKey::of(distribution.as_ref());
            if let Some(gone) = gone {
                self.memories.with(&key, |memory| memory.forget(&gone.facts.name));
            }
            let targets = TargetSpec::of(&distribution.spec);
            let relation = |facts: &Option<NamespaceFacts>| {
                let relation = facts.as_ref().map_or(Relation::Outside, |facts| targets.relation(facts));
                (relation, relation != Relation::Outside && facts.as_ref().is_some_and(|facts| facts.is_ending))
            };
            let is_another = gone.is_some() && relation(&now).0 != Relation::Outside;
            if is_another || relation(&before) != relation(&now) {
                self.queue.add(key);
            }
        }
    }

    async fn reconcile(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let there = || self.distributions.get(key).filter(|object| !object.is_deleting());
        let object = there();
        if let Some(object) = &object {
            self.memories.enter(key, object.uid());
        }
        // It may have gone before that: what is remembered of its copies, which nobody looks at any more, would count for ever.
        let Some(object) = object.filter(|_| there().is_some()) else {
            self.memories.forget(key);
            return Ok(Requeue::Await);
        };
        let now = clock::now();
        let mut pass = Pass::default();
        let job = match self.job(key, &object) {
            Ok(Some(job)) => job,
            Ok(None) => return Ok(Requeue::After(AFTER_UNKNOWN)),
            Err(Invalid(why)) => {
                // Its copies are not looked at.
                self.memories.with(key, |memory| memory.load = Load::default());
                self.wake_late();
                let (situation, survey) = (Situation::Invalid(why), Survey::default());
                pass.look_after(self.record(&object, &survey, &situation, (false, false), now).await?);
                return pass.end(|_| {});
            }
        };
        let about = (matches!(job.spec.source, Source::Reference { .. }), job.is_watched());
        let Some(mut survey) = self.survey(&job, now) else {
            if self.watched.unwatched_for(&job.spec.name, now) > UNWATCHED_AFTER {
                let survey = Survey::default();
                pass.look_after(self.record(&object, &survey, &Situation::Unwatched, about, now).await?);
            }
            pass.look_after(Some(AFTER_UNKNOWN));
            return pass.end(|_| {});
        };
        let steps = self.memories.with(key, |memory| survey.take(memory, now.mono)).unwrap_or_default();
        if steps != Steps::default() {
            let is_through = self.carry_out(&job, steps, &mut pass).await;
            // What this pass has no room for has not been tried, and waits for nothing.
            pass.again = is_through && survey.has_more();
        }
        let now = clock::now();
        let Some(survey) = self.survey(&job, now) else { return Ok(Requeue::After(AFTER_UNKNOWN)) };
        let next = self.memories.with(key, |memory| survey.next(memory, now.mono)).flatten();
        // What is to be done at once has just been tried, and has changed under our hands.
        pass.look_after(next.map(|next| next.max(AFTER_WATCHED_CONFLICT)));
        self.memories.with(key, |memory| memory.looked = Some(now.mono));
        self.wake_late();
        match self.record(&job.object, &survey, &job.situation, about, now).await {
            Ok(look) => pass.look_after(look),
            Err(error) => drop(pass.note(Err(error))),
        }
        pass.end(|after| self.queue.add_after(key.clone(), after))
    }

    /// What is to be done for one. None: the object that it refers to has not been seen yet, nor that there is none.
    fn job(&self, key: &ObjectKey, object: &Arc<ResourceDistribution>) -> Result<Option<Job>, Invalid> {
        let spec = DistributionSpec::of(&object.spec)?;
        let referred = |namespace: &str| format!("{} {namespace}/{}", spec.kind.name(), spec.name);
        let (content, situation) = match &spec.source {
            Source::Inline(content) => (Some(content.clone()), Situation::Working),
            Source::Reference { namespace } => match self.watched.source(spec.kind, namespace, &spec.name) {
                SourceContent::Unknown => return Ok(None),
                SourceContent::Present(source) => match Content::of_reference(spec.kind, &spec.name, &source) {
                    Ok(content) => (Some(Arc::new(content)), Situation::Working),
                    Err(Invalid(why)) => {
                        (None, Situation::Reference("ReferenceInvalid", format!("{}: {why}", referred(namespace))))
                    }
                },
                SourceContent::Missing => {
                    let why = format!("{} does not exist", referred(namespace));
                    (None, Situation::Reference("ReferenceMissing", why))
                }
                SourceContent::Forbidden(error) => {
                    let why = format!(
                        "{} cannot be read, give the manager the right to get, list and watch it: {error}",
                        referred(namespace)
                    );
                    (None, Situation::Reference("ReferenceForbidden", why))
                }
            },
        };
        let hash = content.as_ref().map(|content| content.hash.clone()).unwrap_or_default();
        let generation = object.metadata.generation.unwrap_or_default();
        let is_first = object.status.as_ref().is_none_or(|status| status.succeeded == 0);
        self.memories.with(key, |memory| memory.enter(generation, &hash, is_first));
        let content = content.map(|content| {
            let fingerprint = fingerprint(&content.body);
            (content, fingerprint)
        });
        let (written, deleted) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (key, object, hash) = (key.clone(), object.clone(), hash.into());
        let (new_copy, renewal) = Default::default();
        Ok(Some(Job { key, object, spec, content, hash, situation, new_copy, renewal, written, deleted }))
    }

    /// What there is to do. None: the ConfigMaps have not been seen yet.
    fn survey(&self, job: &Job, now: Now) -> Option<Survey> {
        let is_looked_at = |name: &str| self.context.only_namespace.as_deref().is_none_or(|only| only == name);
        let namespaces = self.namespaces.list();
        let namespaces = namespaces.iter().filter(|namespace| is_looked_at(&namespace.facts.name));
        let namespaces: Vec<&NamespaceFacts> = namespaces.map(|namespace| &namespace.facts).collect();
        let seen = if job.is_watched() { Some(self.seen(job)?) } else { None };
        let facts = Facts {
            spec: &job.spec,
            content: job.content.as_ref().map(|(content, _)| content.as_ref()),
            namespaces: &namespaces,
            seen: seen.as_ref(),
            periods: self.periods(),
        };
        self.memories.with(&job.key, |memory| Survey::of(facts, memory, now.mono))
    }

    /// What has the name of the copies, by namespace.
    fn seen(&self, job: &Job) -> Option<BTreeMap<Arc<str>, SeenCopy>> {
        let store = self.watched.copies(&job.spec.name)?;
        let wanted = job.content.as_ref();
        let wanted = wanted.map(|(content, fingerprint)| Wanted::of(content, *fingerprint, job.distributor()));
        let seen = store.list().into_iter().map(|view| {
            let seen = if !view.is_copy(job.object.name()) {
                SeenCopy::Others
            } else if view.is_ending {
                SeenCopy::Ending
            } else {
                SeenCopy::Copy { fits: wanted.as_ref().is_some_and(|wanted| view.fits(wanted)) }
            };
            (view.namespace.clone(), seen)
        });
        Some(seen.collect())
    }

    /// Writes the status; gives when to look again.
    async fn record(
        &self,
        object: &ResourceDistribution,
        survey: &Survey,
        situation: &Situation,
        (has_reference, is_watched): (bool, bool),
        now: Now,
    ) -> kube::Result<Option<Duration>> {
        let before = object.status.clone().unwrap_or_default();
        let generation = object.metadata.generation.unwrap_or_default();
        let about = About { generation, has_reference, is_watched, before: &before };
        let wanted = status::status(&survey.counts, situation, about, now.wall);
        let ready = |status: &ResourceDistributionStatus| {
            let all = &status.conditions;
            all.iter()
                .find(|condition| condition.type_ == "Ready")
                .map(|ready| (ready.status.clone(), ready.reason.clone()))
        };
        let can_wait = before.observed_generation == generation && ready(&before) == ready(&wanted);
        let recorded = (&json_of(object.status.as_ref())?, &json_of(Some(&wanted))?);
        let api: Api<ResourceDistribution> = Api::all(self.context.client.clone());
        let outcome = self.status.write((&api, &self.distributions), object, recorded, can_wait, now).await?;
        if matches!(outcome, Outcome::Written(_)) {
            self.emit_events(object, &wanted);
        }
        Ok(outcome.look_after())
    }

    /// A warning for each new reason that something is not as it should be.
    fn emit_events(&self, object: &ResourceDistribution, status: &ResourceDistributionStatus) {
        let ready =
            status.conditions.iter().find(|condition| condition.type_ == "Ready" && condition.status == "False");
        let (reason, message) = match ready.filter(|ready| ready.reason != "Distributing") {
            Some(ready) => (ready.reason.as_str(), ready.message.as_str()),
            None => ("", ""),
        };
        let said = format!("{reason} {message}");
        let is_new = self.memories.with(&ObjectKey::of(object), |memory| {
            let is_new = memory.said != said;
            memory.said = said;
            is_new
        });
        if is_new == Some(true) && !reason.is_empty() {
            tracing::warn!(distribution = object.name(), reason, message, "not everything is distributed");
            self.context.events.warning(&reference(object), reason, message);
        }
    }
}

/// Whether anything may be wanted that was not wanted before.
fn is_news(change: &Change<'_, ResourceDistribution>) -> bool {
    let facts =
        |object: &ResourceDistribution| (object.metadata.uid.clone(), object.metadata.generation, object.is_deleting());
    match change {
        Change::Applied { old, new, .. } => old.is_none_or(|old| facts(old) != facts(new)),
        Change::Deleted(_) | Change::Undecodable { .. } => true,
    }
}

#[cfg(test)]
mod tests;
