//! CloneSets: a number of equal Pods, made, deleted and updated within the limits of their spec.
//!
//! - Owns: the Pods, claims and ControllerRevisions of CloneSets, and their status.
//! - Watches: CloneSets, Pods, claims with an instance id. ControllerRevisions are read when a spec is new, and
//!   forgotten when all Pods are on their revision.
//! - Never: adopts Pods or claims unless the annotation `kruise.rs/adopt-orphans` asks for it, touches what another owner
//!   controls, evicts.
//!
//! One pass ([`Controller::reconcile`]) is: which revision, how many Pods, each Pod's own state, which Pods to update,
//! what to say in status. The rules are in [`domain::clone_set`](crate::domain::kinds::clone_set) and its neighbours. Answers to
//! own writes are in the stores at once, so that the next pass rests on them and no expectations are needed.

mod adopt;
mod apply;
mod memory;
mod observe;
mod pre_download;
mod revisions;
mod scale;
#[cfg(test)]
mod tests;
mod update;

use std::{sync::Arc, time::Duration};

use kube::{Api, Resource, ResourceExt, runtime::watcher::Config};

use serde_json::Value;

use self::{memory::CloneSetMemories, observe::CloneSetObjects};
use super::{Context, Registration, Runner, Started, handling, owned_text, pod_set::POD_WORKERS};
use crate::{
    api::{
        apps::{
            self,
            clone_set::{CloneSet, CloneSetStatus},
        },
        feature_gates::gate,
        labels,
    },
    budgets::refusals::Refusals,
    domain::{
        kinds::clone_set::{
            make,
            plan::{self, Gates},
            spec::Spec,
            status::{self, Outcome},
        },
        pod::refresh,
        workload::{
            owner::OwnerRef,
            status::{DEFAULTS_UNKNOWN, REVISION_UNKNOWN},
        },
    },
    k8s::{claim::ClaimView, pod::PodView, rbac::Rule, selector, time::Now},
    runtime::{
        apply::said,
        claim_control::ClaimControl,
        clock,
        guarded::Guarded,
        in_place::{InPlace, Refreshed, Refreshing},
        packed::Packed,
        pass,
        pod_control::PodControl,
        pod_template::{self, Refused},
        pre_download::PreDownloads,
        queue::{Backoff, Queue, Requeue},
        revisions::{Resolved, Revisions},
        shutdown::Shutdown,
        status_writer::{self, StatusWriter},
        wake,
        watches::{Change, ObjectKey, Store, StoreIndex},
    },
};

/// Its line in the table.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: Some("clonesets.apps.kruise.io"),
    gate: None,
    rules: &[
        Rule::new(&["apps.kruise.io"], &["clonesets"], &["get", "list", "watch", "patch"]),
        Rule::new(&["apps.kruise.io"], &["clonesets/status"], &["patch"]),
        // To own objects with blockOwnerDeletion, where the API server checks that.
        Rule::new(&["apps.kruise.io"], &["clonesets/finalizers"], &["update"]),
        Rule::new(&["apps"], &["controllerrevisions"], &["get", "list", "create", "patch", "delete"]),
        Rule::new(&[""], &["pods"], &["get", "list", "watch", "create", "patch", "delete"]),
        Rule::new(&[""], &["pods/status", "pods/resize"], &["patch"]),
        Rule::new(&[""], &["persistentvolumeclaims"], &["list", "watch", "create", "patch", "delete"]),
        // A dry run of one says what defaults a template has that was stored while admission was away.
        Rule::new(&[""], &["podtemplates"], &["create"]),
        Rule::new(&["apps.kruise.io"], &["imagepulljobs"], &["get", "list", "create", "delete"]),
    ],
    workers_flag: Some("cloneset-workers"),
    workers: 3,
    start,
};

const NAME: &str = "cloneset-controller";
/// Group and kind, as owner references name them.
const KIND: (&str, &str) = (apps::GROUP, "CloneSet");

const BY_UID: StoreIndex<Packed<CloneSet>> = StoreIndex::new("UID", |set| set.meta().uid.clone());
const CLAIMS_BY_OWNER: StoreIndex<ClaimView> = StoreIndex::new("owner", |claim| {
    Some(owned_text(claim.metadata.namespace.as_deref().unwrap_or_default(), claim.controller_uid.as_deref()?))
});
/// Claims that nobody controls, by namespace.
const ORPHANED_CLAIMS: StoreIndex<ClaimView> =
    StoreIndex::new("orphaned", |claim| claim.metadata.namespace.clone().filter(|_| claim.controller_uid.is_none()));

struct Controller {
    context: Context,
    clone_sets: Arc<Store<Packed<CloneSet>>>,
    claims: Arc<Store<ClaimView>>,
    queue: Arc<Queue<ObjectKey>>,
    /// Pods of large CloneSets: what one Pod needs for itself does not wait for a pass over all of them.
    pod_queue: Arc<Queue<ObjectKey>>,
    pods: Arc<PodControl>,
    in_place: InPlace,
    claim_control: ClaimControl<ClaimView>,
    revisions: Revisions,
    statuses: StatusWriter,
    memories: CloneSetMemories,
    pre_downloads: PreDownloads,
}

fn start(context: &Context, workers: usize, shutdown: Shutdown) -> Started {
    let controller = Arc::new(Controller::new(context));
    let on_pod = handling(&controller, Controller::pod_changed);
    Started::new(controller.run(workers, shutdown)).on_pod(on_pod)
}

fn uid_of(clone_set: &CloneSet) -> &str {
    clone_set.metadata.uid.as_deref().unwrap_or_default()
}

/// A CloneSet in one pass.
struct CloneSetJob {
    key: ObjectKey,
    /// As the store holds it.
    held: Arc<Packed<CloneSet>>,
    /// The same, with the defaults of its template.
    clone_set: Arc<CloneSet>,
    spec: Spec,
    owner: OwnerRef,
}

impl CloneSetJob {
    fn of(held: Arc<Packed<CloneSet>>, clone_set: Arc<CloneSet>) -> Self {
        Self {
            key: ObjectKey::of(clone_set.as_ref()),
            held,
            spec: Spec::of(&clone_set),
            owner: make::owner(&clone_set),
            clone_set,
        }
    }
}

impl Controller {
    fn new(context: &Context) -> Self {
        let client = context.client.clone();
        let claims = Store::new([CLAIMS_BY_OWNER, ORPHANED_CLAIMS]);
        let pods = Arc::new(PodControl::new(client.clone(), context.pods.clone(), context.events.clone()));
        let only_namespace = context.only_namespace.clone();
        let pre_downloads = PreDownloads::new(client.clone(), only_namespace, "CloneSet", pods.clone());
        Self {
            context: context.clone(),
            clone_sets: Store::new([BY_UID]),
            in_place: InPlace::new(client.clone(), pods.clone()),
            pods,
            claim_control: ClaimControl::new(client.clone(), claims.clone()),
            revisions: Revisions::new(client),
            claims,
            queue: Queue::new(Backoff::default()),
            pod_queue: Queue::new(Backoff::default()),
            statuses: StatusWriter::default(),
            memories: CloneSetMemories::default(),
            pre_downloads,
        }
    }

    async fn run(self: Arc<Self>, workers: usize, shutdown: Shutdown) {
        let (on_clone_set, on_claim, of_pods, this) = (self.clone(), self.clone(), self.clone(), self.clone());
        let refresh = move |key: ObjectKey, _| {
            let this = of_pods.clone();
            let what = format!("{NAME} Pod {key}");
            async move { this.context.work.run(what, this.refresh_pod(&key)).await }
        };
        let (pod_queue, stop) = (self.pod_queue.clone(), shutdown.clone());
        let refresh_pods = async move { pod_queue.run(POD_WORKERS, stop, refresh).await };
        let clone_sets: Api<Guarded<Packed<CloneSet>>> = self.context.api();
        let claims = Config::default().labels(labels::INSTANCE_ID);
        let runner = Runner::new(&self.context, NAME, shutdown)
            .watch_guarded(clone_sets, Config::default(), &self.clone_sets, move |change| {
                wake::workload_changed(&change, &on_clone_set.queue, on_clone_set.memories.all());
                wake::status_changed(&change, &on_clone_set.clone_sets, &on_clone_set.queue);
            })
            .watch(self.context.api(), claims, &self.claims, move |change| on_claim.claim_changed(&change))
            .following(&self.context.pods)
            .following(self.context.nodes.store())
            .beside(refresh_pods);
        let reconcile = move |key: ObjectKey| {
            let this = this.clone();
            async move { this.reconcile(&key).await }
        };
        runner.run(self.queue.clone(), workers, reconcile).await;
    }

    fn claim_changed(&self, change: &Change<'_, ClaimView>) {
        let claim = match change {
            Change::Applied { new, .. } => new,
            Change::Deleted(old) => old,
            Change::Undecodable { .. } => return,
        };
        let Some(uid) = &claim.controller_uid else { return self.orphaned_claim_seen(claim) };
        for owner in self.clone_sets.by_index(&BY_UID, uid) {
            self.wake(&ObjectKey::of(owner.as_ref()), None);
        }
    }

    fn pod_changed(&self, change: &Change<'_, PodView>) {
        wake::owners_of_changed(change, KIND, |key, pod| self.wake(key, pod));
        self.orphan_seen(change);
    }

    /// A pass looks at every Pod: the more there are, the longer the next one waits for further news. What has changed of
    /// one Pod is looked at by itself meanwhile.
    fn wake(&self, key: &ObjectKey, pod: Option<&Arc<PodView>>) {
        match wake::pause(self.memories.pods(key)) {
            Duration::ZERO => self.queue.add(key.clone()),
            pause => {
                self.queue.add_after(key.clone(), pause);
                if let Some(pod) = pod.filter(|pod| pod.is_active() && !refresh::is_at_rest(pod)) {
                    self.pod_queue.add(ObjectKey::of(pod.as_ref()));
                }
            }
        }
    }

    /// Opens the gates of one Pod and moves its state on, if that can be said from what the stores hold. Everything else
    /// is for the next pass.
    async fn refresh_pod(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let Some(pod) = self.context.pods.get(key).filter(|pod| pod.is_active()) else {
            return Ok(Requeue::Await);
        };
        let Some(owner) = wake::owner_of(&pod, KIND) else { return Ok(Requeue::Await) };
        let is_its_own = |set: &Arc<Packed<CloneSet>>| {
            pod.controller.as_ref().is_some_and(|owner| Some(&owner.uid) == set.meta().uid.as_ref())
                && set.meta().deletion_timestamp.is_none()
        };
        let Some(held) = self.clone_sets.get(&owner).filter(is_its_own) else { return Ok(Requeue::Await) };
        let generation = held.meta().generation.unwrap_or_default();
        let Some(update) = self.memories.update_revision(&owner, generation) else { return Ok(Requeue::Await) };
        let clone_set = held.open()?;
        let set = make::owner(&clone_set);
        let by = Refreshing { owner: &set, lifecycle: Spec::hooks_of(&clone_set), update_revision: &update };
        match self.in_place.refresh_status(by, &pod).await? {
            Refreshed::Written => {
                self.wake(&owner, None);
                Ok(Requeue::After(Duration::ZERO))
            }
            Refreshed::Later(after) => Ok(Requeue::After(after)),
            Refreshed::Nothing | Refreshed::Waits(_) => Ok(Requeue::Await),
        }
    }

    async fn reconcile(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let Some(held) = self.clone_sets.get(key) else { return Ok(Requeue::Await) };
        if held.meta().deletion_timestamp.is_some() {
            // Its Pods and claims go with it, by their owner references.
            return Ok(Requeue::Await);
        }
        let clone_set = Arc::new(held.open()?);
        self.memories.enter(key, uid_of(&clone_set));
        let clone_set = match self.defaulted(clone_set.clone()).await {
            Ok(defaulted) => defaulted,
            Err(error) => {
                let unresolved = Unresolved::Defaults(error);
                return self.without_revision(&CloneSetJob::of(held, clone_set), unresolved).await;
            }
        };
        let job = CloneSetJob::of(held, clone_set);
        let resolved = match self.resolve(&job).await {
            Ok(resolved) => resolved,
            Err(error) => return self.without_revision(&job, Unresolved::Revision(error)).await,
        };
        let seen = self.see(&job);
        let pods = seen.pods.len().max(usize::try_from(job.spec.replicas).unwrap_or(0));
        self.memories.keep_pods(key, pods);
        let mut pass = Pass::default();
        let seen = self.act(&job, &resolved, seen, &mut pass).await;
        pass.next.look_after(self.record(&job, &resolved, &seen, &pass).await?);
        pass.next.look_after(seen.next_look);
        pass.next.note(self.forget_names(&job, &seen).await.map(|()| false));
        let resolved = self.as_recorded(&job, resolved);
        pass.next.note(self.tidy(&job, &resolved, &seen).await.map(|()| false));
        if pass.next.error.is_none() && pass.next.next_look().is_none() {
            // Everything is as it should be, maybe for weeks: it costs no memory.
            drop(self.memories.take_found(key));
        }
        pass.next.end(|after| self.queue.add_after(key.clone(), after))
    }

    /// A pass while nobody can say which revision is wanted: updates in place that have begun get to their end, or their Pods
    /// would stay out of service, and the status says why nothing else is done.
    async fn without_revision(&self, job: &CloneSetJob, unresolved: Unresolved) -> kube::Result<Requeue> {
        let mut pass = Pass::default();
        let (reason, message, why) = unresolved.words();
        match unresolved {
            Unresolved::Defaults(_) => pass.next.look_after(Some(pod_template::ASK_AGAIN)),
            Unresolved::Revision(error) => drop(pass.next.note(Err(error))),
        }
        let recorded = job.clone_set.status.clone().unwrap_or_default();
        let resolved = Resolved { update: recorded.update_revision.clone(), ..Resolved::default() };
        self.refresh_all(job, &resolved, &self.see(job), &mut pass).await;
        let now = clock::now();
        let wanted = status::unresolved(&recorded, (reason, message), &why, now.wall);
        match self.write_status(job, &wanted, now).await {
            Ok(outcome) => pass.next.look_after(outcome.look_after()),
            Err(error) => drop(pass.next.note(Err(error))),
        }
        pass.next.end(|after| self.queue.add_after(job.key.clone(), after))
    }

    /// The revisions, with the current one that the status names by now. A pass over no Pods ends a roll-out at once, and
    /// nothing wakes the CloneSet for that write. If it did not get through, the one before still counts.
    fn as_recorded(&self, job: &CloneSetJob, resolved: Resolved) -> Resolved {
        let is_newer = |held: &Arc<Packed<CloneSet>>| !Arc::ptr_eq(held, &job.held);
        let now = match self.clone_sets.get(&job.key).filter(is_newer) {
            Some(held) => held.open().ok().map(Arc::new),
            None => Some(job.clone_set.clone()),
        };
        let recorded = now.as_ref().and_then(|now| Some(now.status.as_ref()?.current_revision.as_str()));
        let known = recorded.and_then(|name| resolved.find(name)).map(|known| known.name.clone());
        Resolved { current: known.unwrap_or(resolved.current), ..resolved }
    }

    /// Creates, changes and deletes Pods and claims. A refusal prevents nothing else. Returns what is there afterwards.
    ///
    /// The stores are looked at once, and again only before a step that follows a write: a Pod that was released, deleted
    /// or moved to another state must not be counted or written as it was.
    async fn act(
        &self,
        job: &CloneSetJob,
        resolved: &Resolved,
        seen: CloneSetObjects,
        pass: &mut Pass,
    ) -> CloneSetObjects {
        pass.note(self.release(job, &seen).await, |outcome| &mut outcome.scale_error);
        self.adopt(job, pass).await;
        let mut seen = self.see_writes(job, seen, pass);
        pass.next.look_after(self.pre_download(job, resolved, &seen).await);
        let mut left = None;
        if job.spec.reuses_claims {
            match self.delete_left_claims(job, &seen).await {
                Ok(done) => pass.note(Ok(done), |outcome| &mut outcome.scale_error),
                // It keeps nothing else from being done.
                Err(error) => left = Some(error),
            }
            seen = self.see_writes(job, seen, pass);
        } else {
            // Ids of claims that go are not used again in this pass.
            pass.note(self.drop_claims(job, &seen).await, |outcome| &mut outcome.scale_error);
        }
        if pass.next.may_go_on() {
            let scaled = self.scale(job, resolved, &seen, pass).await;
            seen = self.see_writes(job, seen, pass);
            self.refresh_all(job, resolved, &seen, pass).await;
            if !scaled {
                seen = self.see_writes(job, seen, pass);
                self.update(job, resolved, &seen, pass).await;
            }
            let remember = |kept| self.memories.replace_refused(&job.key, kept);
            pass.refusals.report((&self.pods, &job.owner), &mut pass.next, remember);
        } else {
            // What a single Pod needs by itself is done all the same, or it would stay out of service.
            self.refresh_all(job, resolved, &seen, pass).await;
        }
        if let Some(error) = left {
            pass.note(Err(error), |outcome| &mut outcome.scale_error);
        }
        self.see_writes(job, seen, pass)
    }

    /// The same, or what the stores hold now, if this pass has written since it looked at them.
    fn see_writes(&self, job: &CloneSetJob, seen: CloneSetObjects, pass: &mut Pass) -> CloneSetObjects {
        if std::mem::take(&mut pass.has_written) { self.see(job) } else { seen }
    }

    /// The CloneSet with a template as admission would have stored it. It was not asked when it was away, and Pods must
    /// not be replaced because defaults are missing. An error: the API server cannot say now.
    async fn defaulted(&self, clone_set: Arc<CloneSet>) -> Result<Arc<CloneSet>, Refused> {
        let key = ObjectKey::of(clone_set.as_ref());
        let remembered = self.memories.defaulted(&key);
        let asked = (&self.context.client, &*self.context.gates);
        let of = (&*key.namespace, clone_set.metadata.generation);
        let defaulted = match pod_template::with_defaults(asked, of, &clone_set.spec.template, remembered).await {
            Ok(None) => return Ok(clone_set),
            Ok(Some(defaulted)) => defaulted,
            Err(error) => {
                tracing::warn!(clone_set = %key, %error, "its template lacks defaults, waiting");
                return Err(error);
            }
        };
        self.memories.keep_defaulted(&key, &defaulted);
        let mut whole = CloneSet::clone(&clone_set);
        whole.spec.template = Value::clone(&defaulted.template);
        Ok(Arc::new(whole))
    }

    fn gates(&self) -> Gates {
        let gates = &self.context.gates;
        Gates {
            partition_rollback: gates.enabled(gate::CLONE_SET_PARTITION_ROLLBACK),
            preparing_update_as_update: gates.enabled(gate::PREPARING_UPDATE_AS_UPDATE),
        }
    }

    fn observed<'a>(
        &self,
        job: &'a CloneSetJob,
        resolved: &'a Resolved,
        seen: &'a CloneSetObjects,
        constraints: &'a [crate::domain::pod::order::Constraint<'a>],
    ) -> plan::ObservedCloneSet<'a> {
        plan::ObservedCloneSet {
            spec: &job.spec,
            pods: &seen.pods,
            update_revision: &resolved.update,
            current_revision: &resolved.current,
            excludes_preparing_delete: self.context.settings.exclude_preparing_delete
                || job.clone_set.labels().get(labels::EXCLUDE_PREPARING_DELETE).is_some_and(|value| value == "true"),
            constraints,
            gates: self.gates(),
        }
    }

    /// Writes the status after a pass, if it says anything new.
    async fn record(
        &self,
        job: &CloneSetJob,
        resolved: &Resolved,
        seen: &CloneSetObjects,
        pass: &Pass,
    ) -> kube::Result<Option<Duration>> {
        let now = clock::now();
        let (clone_set, spec) = (&*job.clone_set, &job.spec);
        let selector = selector::text_of(&spec.selector);
        let revisions = (resolved.current.as_str(), resolved.update.as_str());
        let outcome = Outcome { kept: pass.refusals.kept(), ..pass.outcome.clone() };
        let terminating = seen.inactive.iter().filter(|pod| pod.is_deleting()).count();
        let pods = (seen.pods.as_slice(), terminating);
        let (mut wanted, requeue) = status::status((clone_set, spec), pods, revisions, selector, &outcome, now.wall);
        wanted.collision_count = Some(resolved.collisions);
        let outcome = self.write_status(job, &wanted, now).await?;
        let recorded = clone_set.status.clone().unwrap_or_default();
        if let status_writer::Outcome::Written(_) = outcome
            && let Some(message) = status::deadline_passed(&recorded, &wanted)
        {
            self.pods.warning(&job.owner, "ProgressDeadlineExceeded", &message);
        }
        Ok([requeue, outcome.look_after()].into_iter().flatten().min())
    }

    /// Writes this status. Counts change with every Pod and are written a second apart, unless they are the last word.
    async fn write_status(
        &self,
        job: &CloneSetJob,
        wanted: &CloneSetStatus,
        now: Now,
    ) -> kube::Result<status_writer::Outcome<Packed<CloneSet>>> {
        let recorded = job.clone_set.status.clone().unwrap_or_default();
        let can_wait = status::only_counts(&recorded, wanted) && !is_settled(&job.spec, wanted);
        let api: Api<Packed<CloneSet>> = Api::namespaced(self.context.client.clone(), &job.key.namespace);
        let to = (&api, self.clone_sets.as_ref());
        self.statuses.write(to, &*job.held, (&recorded, wanted), can_wait, now).await
    }
}

/// Why nobody can say which revision is wanted.
enum Unresolved {
    /// The API server cannot say what defaults the template has.
    Defaults(Refused),
    /// Revisions can be neither read nor made.
    Revision(kube::Error),
}

impl Unresolved {
    /// The reason and the message of a condition, and the words of whoever was asked.
    fn words(&self) -> (&'static str, String, String) {
        match self {
            Self::Defaults(why) => {
                (DEFAULTS_UNKNOWN, format!("the defaults of the template cannot be found out: {why}"), why.to_string())
            }
            Self::Revision(error) => {
                let why = said(error);
                (REVISION_UNKNOWN, format!("the revision of the template cannot be found out: {why}"), why)
            }
        }
    }
}

/// What comes of one pass.
#[derive(Default)]
struct Pass {
    next: pass::Pass,
    outcome: Outcome,
    /// What budgets have said.
    refusals: Refusals,
    /// Something was written, or may have been, after the stores were looked at.
    has_written: bool,
}

impl Pass {
    /// Takes note of what came of a step; a failure goes into a condition.
    fn note(&mut self, result: kube::Result<bool>, place: impl Fn(&mut Outcome) -> &mut Option<String>) {
        self.has_written |= !matches!(result, Ok(false));
        if let Some(words) = self.next.note(result) {
            place(&mut self.outcome).get_or_insert(words);
        }
    }
}

/// Whether the status says that everything is done: somebody may wait for that.
fn is_settled(spec: &Spec, status: &CloneSetStatus) -> bool {
    let all = [status.replicas, status.ready_replicas, status.available_replicas];
    all.iter().all(|count| *count == spec.replicas) && status.updated_ready_replicas >= status.expected_updated_replicas
}
