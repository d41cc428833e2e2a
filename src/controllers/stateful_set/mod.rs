//! Advanced StatefulSets: Pods with an ordinal, a name and claims of their own, made, deleted and updated within the limits
//! of their spec.
//!
//! - Owns: the Pods, claims and ControllerRevisions of StatefulSets of apps.kruise.io, and their status.
//! - Watches: those StatefulSets, the names of built-in ones, Pods, claims. ControllerRevisions are read when a spec is new,
//!   storage classes while claims grow.
//! - Never: deletes a Pod by force, makes a second Pod of an identity, deletes a claim, touches what another owner
//!   controls. While the built-in StatefulSet of the same name selects the same Pods it makes, updates and deletes
//!   nothing; an update in place that has begun gets to its end.
//!
//! One pass ([`Controller::reconcile`]) is: which revision, which Pods are its own, each Pod's own state, the plan and
//! its steps, what to say in status. The rules are in [`domain::stateful_set`](crate::domain::kinds::stateful_set).

mod apply;
mod observe;
mod pre_download;
mod record;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::apps::v1::StatefulSet as BuiltIn;
use kube::{Api, Client, Resource, runtime::watcher::Config};
use serde_json::Value;

use self::observe::Seen;
use super::{
    Context, Registration, Runner, Started, handling,
    pod_set::{Aside, Common, POD_WORKERS, Pass, PodSets},
};
use crate::{
    api::{
        apps::{self, stateful_set::StatefulSet},
        feature_gates::gate,
    },
    domain::{
        kinds::stateful_set::{
            pass,
            spec::{self, Gates, Invalid, Spec},
            status,
        },
        workload::{owner::OwnerRef, turns::Turns},
    },
    k8s::{claim::SizedClaim, owner, pod::PodView, rbac::Rule, revision},
    runtime::{
        claim_control::ClaimControl,
        guarded::Guarded,
        packed::Packed,
        pod_template::{self, Defaulted, Refused},
        pre_download::{Notes, PreDownloads},
        queue::{Backoff, Queue, Requeue},
        revisions::{Resolved, Revisions},
        shutdown::Shutdown,
        wake,
        watches::{Change, ObjectKey, Store, StoreIndex},
    },
};

/// Its line in the table.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: Some("statefulsets.apps.kruise.io"),
    gate: None,
    rules: &[
        Rule::new(&["apps.kruise.io"], &["statefulsets"], &["get", "list", "watch"]),
        Rule::new(&["apps.kruise.io"], &["statefulsets/status"], &["patch"]),
        // To own objects with blockOwnerDeletion, where the API server checks that.
        Rule::new(&["apps.kruise.io"], &["statefulsets/finalizers"], &["update"]),
        Rule::new(&["apps"], &["controllerrevisions"], &["get", "list", "create", "patch", "delete"]),
        // Whether the built-in one of the same name is there: the watch brings names alone.
        Rule::new(&["apps"], &["statefulsets"], &["get", "list", "watch"]),
        Rule::new(&[""], &["pods"], &["get", "list", "watch", "create", "patch", "delete"]),
        Rule::new(&[""], &["pods/status", "pods/resize"], &["patch"]),
        Rule::new(&[""], &["persistentvolumeclaims"], &["get", "list", "watch", "create", "patch"]),
        Rule::new(&["storage.k8s.io"], &["storageclasses"], &["list"]),
        Rule::new(&["apps.kruise.io"], &["imagepulljobs"], &["get", "list", "create", "delete"]),
        // A dry run of one says what defaults a template has that was stored while admission was away.
        Rule::new(&[""], &["podtemplates"], &["create"]),
    ],
    workers_flag: Some("statefulset-workers"),
    workers: 3,
    start,
};

const NAME: &str = "statefulset-controller";
const BY_NAMESPACE: StoreIndex<Packed<StatefulSet>> = StoreIndex::namespace();
/// Claims that go with a StatefulSet.
const BY_SET: StoreIndex<SizedClaim> = StoreIndex::new("set", |claim| {
    claim.owners().iter().find(|owner| owner::is_of(owner, KIND)).map(|owner| owner.uid.clone())
});
/// Group and kind, as owner references name them.
const KIND: (&str, &str) = (apps::GROUP, "StatefulSet");

struct Controller {
    context: Context,
    sets: Arc<Store<Packed<StatefulSet>>>,
    claims: Arc<Store<SizedClaim>>,
    queue: Arc<Queue<ObjectKey>>,
    claim_control: ClaimControl<SizedClaim>,
    revisions: Revisions,
    common: PodSets<StatefulSetMemory>,
    pre_downloads: PreDownloads,
}

/// What is remembered of a set. Everything can be lost.
#[derive(Default)]
struct StatefulSetMemory {
    /// Its revisions, for one generation of its spec.
    resolved: Option<Resolved>,
    /// Its template with defaults, for one generation, if they are missing.
    defaulted: Option<Defaulted>,
    /// What is remembered of a set of any kind.
    common: Common,
    /// Ordinals whose Pods or claims were refused, and which are tried after the others.
    turns: Turns<i32>,
    /// Since when claims have been asked to grow, or have grown, by name.
    growing: BTreeMap<String, Duration>,
    /// Since when storage classes could not be read.
    unread_since: Option<Duration>,
    /// What the last events reported: whether Pods are not created, and what no waiting cures.
    reported: (bool, Option<String>),
    /// What was done about new images.
    pre_download: Notes,
}

impl AsMut<Common> for StatefulSetMemory {
    fn as_mut(&mut self) -> &mut Common {
        &mut self.common
    }
}

fn start(context: &Context, workers: usize, shutdown: Shutdown) -> Started {
    let controller = Arc::new(Controller::new(context));
    let on_pod = handling(&controller, Controller::pod_changed);
    Started::new(controller.run(workers, shutdown)).on_pod(on_pod)
}

/// A set in one pass.
struct Job {
    key: ObjectKey,
    /// The set as the store holds it: its status is written over this version.
    held: Arc<Packed<StatefulSet>>,
    set: Arc<StatefulSet>,
    spec: Spec,
    owner: OwnerRef,
}

impl Job {
    /// The update revision that the status names, while the wanted one cannot be found out.
    fn recorded(&self) -> Resolved {
        let status = self.set.status.as_ref();
        let update = status.map(|status| status.update_revision.clone()).unwrap_or_default();
        Resolved { update, ..Resolved::default() }
    }

    /// Name of the current revision, which is the update revision once the update is done.
    fn current<'a>(&self, resolved: &'a Resolved, seen: &Seen) -> &'a str {
        match status::is_complete(&self.spec, &seen.pods, &resolved.update) {
            true => &resolved.update,
            false => &resolved.current,
        }
    }
}

impl Controller {
    fn new(context: &Context) -> Self {
        let client: &Client = &context.client;
        let claims = Store::new([BY_SET]);
        let common = PodSets::new(context, ("StatefulSet", "statefulsets"));
        let only_namespace = context.only_namespace.clone();
        let pre_downloads = PreDownloads::new(client.clone(), only_namespace, "StatefulSet", common.pods.clone());
        Self {
            context: context.clone(),
            sets: Store::new([BY_NAMESPACE]),
            claim_control: ClaimControl::new(client.clone(), claims.clone()),
            claims,
            queue: Queue::new(Backoff::default()),
            revisions: Revisions::new(client.clone()),
            common,
            pre_downloads,
        }
    }

    async fn run(self: Arc<Self>, workers: usize, shutdown: Shutdown) {
        let (on_set, on_built_in, on_claim) = (self.clone(), self.clone(), self.clone());
        let (of_pods, this) = (self.clone(), self.clone());
        let built_in: Api<BuiltIn> = self.context.api();
        let sets: Api<Guarded<Packed<StatefulSet>>> = self.context.api();
        let runner = Runner::new(&self.context, NAME, shutdown)
            .watch_guarded(sets, Config::default(), &self.sets, move |change| {
                wake::workload_changed(&change, &on_set.queue, &on_set.common.memories);
                wake::status_changed(&change, &on_set.sets, &on_set.queue);
            })
            .watch_names(built_in, self.common.built_in(), move |change| {
                on_built_in.common.built_in_changed(&change, &on_built_in.sets, &on_built_in.queue);
            })
            .watch(self.context.api(), Config::default(), &self.claims, move |change| on_claim.claim_changed(&change))
            .following(&self.context.pods);
        let pod_queue = self.common.pod_queue.clone();
        let refresh_pod = move |key: ObjectKey| {
            let this = of_pods.clone();
            async move { this.refresh_pod(&key).await }
        };
        let reconcile = move |key: ObjectKey| {
            let this = this.clone();
            async move { this.reconcile(&key).await }
        };
        let runner = runner.and_queue(NAME, pod_queue, POD_WORKERS, refresh_pod);
        runner.run(self.queue.clone(), workers, reconcile).await;
    }

    /// A claim is of the set whose Pod has it, by its name.
    fn claim_changed(&self, change: &Change<'_, SizedClaim>) {
        let claim = match change {
            Change::Applied { new, .. } => new,
            Change::Deleted(old) => old,
            Change::Undecodable { .. } => return,
        };
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let may_have_it = |held: &Packed<StatefulSet>| {
            spec::may_have_claim(held.meta().name.as_deref().unwrap_or_default(), claim.name())
        };
        for held in self.sets.select_by_index(&BY_NAMESPACE, namespace, may_have_it) {
            if held.open().is_ok_and(|set| spec::has_claim(&set, claim.name())) {
                self.common.wake(&self.queue, &ObjectKey::of(held.as_ref()), None);
            }
        }
    }

    fn pod_changed(&self, change: &Change<'_, PodView>) {
        wake::owners_of_changed(change, KIND, |key, pod| self.common.wake(&self.queue, key, pod));
        // One that is gone may have had the name that the next Pod gets.
        let (Change::Applied { new: pod, .. } | Change::Deleted(pod)) = change else { return };
        if pod.controller.is_none() {
            self.orphan_seen(pod);
        }
    }

    /// A Pod that nobody controls may be one to adopt, or in the way.
    fn orphan_seen(&self, pod: &PodView) {
        let Some((parent, _)) = pod.name().rsplit_once('-') else { return };
        let key = ObjectKey::new(pod.namespace(), parent);
        if self.sets.get(&key).is_some() {
            self.common.search_again(&key);
            self.queue.add(key);
        }
    }

    /// See [`PodSets::refresh_pod`].
    async fn refresh_pod(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        self.common.refresh_pod(key, &self.sets, &self.queue).await
    }

    async fn reconcile(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let Some(held) = self.sets.get(key) else { return Ok(Requeue::Await) };
        let set = Arc::new(held.open()?);
        self.common.memories.enter(key, set.metadata.uid.as_deref().unwrap_or_default());
        let set = match self.defaulted(key, set.clone()).await {
            Ok(set) => set,
            Err(why) => return self.without_defaults(&held, &set, &why).await,
        };
        let spec = match Spec::of(&set, self.gates()) {
            Ok(spec) => spec,
            Err(Invalid(message)) => return self.record_invalid(&held, &set, message).await,
        };
        let job = Job { key: key.clone(), owner: OwnerRef::of(set.as_ref()), held, set, spec };
        if job.set.metadata.deletion_timestamp.is_some() {
            // Its Pods and claims go with it, by their owner references.
            self.record_progress(&job, self.common.leaving()).await?;
            return Ok(Requeue::Await);
        }
        if let Some(aside) = self.aside(&job).await {
            return self.step_aside(&job, aside).await;
        }
        let mut pass = Pass::default();
        let resolved = match self.resolve(&job).await {
            Ok(resolved) => resolved,
            Err(error) => {
                pass.note(Err(error));
                return self.without_revisions(&job, pass).await;
            }
        };
        let mut seen = self.see(&job, &mut pass).await;
        if self.refresh_all(&job, &resolved, &seen, &mut pass).await {
            seen = self.see_again(&job);
        }
        let (resolved, is_known) = self.with_needed(&job, resolved, &seen, &mut pass).await;
        pass.common.look_after(self.pre_download(&job, &resolved, &seen).await);
        let classes = self.classes(&job, &seen, &mut pass).await;
        let allowed = match self.common.in_place.allowed(&self.context.gates).await {
            Ok(allowed) => Some(allowed).filter(|_| is_known),
            Err(error) => {
                pass.note(Err(error));
                None
            }
        };
        let waited = self.waited(&job);
        let classes = classes.as_ref().map_err(|unread| *unread);
        let plan = pass::plan(&self.observed(&job, &resolved, &seen, (classes, &waited), allowed));
        // It may have come meanwhile.
        if !plan.is_idle()
            && let Some(aside) = self.aside(&job).await
        {
            return self.step_aside(&job, aside).await;
        }
        self.note_growth(&job, &seen, &plan);
        self.report_trouble(&job, &plan);
        let left = self.carry_out(&job, &resolved, &seen, plan, &mut pass).await;
        self.common.report_refusals(&job.key, &job.owner, &mut pass);
        if pass.common.again {
            seen = self.see_again(&job);
            // The end of the update may show only now.
            if revision::is_same(job.current(&resolved, &seen), &resolved.update) {
                pass.common.look_after(self.pre_download(&job, &resolved, &seen).await);
            }
        }
        pass.common.look_after(self.record(&job, &resolved, &seen, &left, &pass).await?);
        if let Err(error) = self.tidy(&job, &resolved, &seen).await {
            pass.common.error.get_or_insert(error);
        }
        pass.common.look_after(left.look);
        pass.common.end(|after| self.queue.add_after(key.clone(), after))
    }

    /// A pass while the API server cannot say what defaults the template has.
    async fn without_defaults(
        &self,
        held: &Packed<StatefulSet>,
        set: &StatefulSet,
        why: &Refused,
    ) -> kube::Result<Requeue> {
        let mut pass = Pass::default();
        self.common.refresh_without_spec(set, Spec::hooks_of(set), &mut pass).await;
        pass.common.look_after(self.record_unknown_defaults((held, set), &why.to_string()).await?);
        pass.common.look_after(Some(pod_template::ASK_AGAIN));
        pass.common.end(|after| self.queue.add_after(ObjectKey::of(set), after))
    }

    /// A pass while the revisions can be neither read nor made: Pods are deleted as they have to be, and claims are seen to.
    /// Updates in place that have begun get to their end.
    async fn without_revisions(&self, job: &Job, mut pass: Pass) -> kube::Result<Requeue> {
        let (mut seen, resolved) = (self.see(job, &mut pass).await, job.recorded());
        if self.refresh_all(job, &resolved, &seen, &mut pass).await {
            seen = self.see_again(job);
        }
        let (classes, waited) = (BTreeMap::new(), BTreeMap::new());
        let mut plan = pass::plan(&self.observed(job, &resolved, &seen, (Ok(&classes), &waited), None));
        plan.without_revisions();
        if !plan.is_idle()
            && let Some(aside) = self.aside(job).await
        {
            return self.step_aside(job, aside).await;
        }
        self.carry_out(job, &resolved, &seen, plan, &mut pass).await;
        match self.record_unknown_revision(job, &pass).await {
            Ok(look) => pass.common.look_after(look),
            Err(error) => pass.note(Err(error)),
        }
        pass.common.end(|after| self.queue.add_after(job.key.clone(), after))
    }

    /// Makes and deletes nothing, and says why.
    async fn step_aside(&self, job: &Job, aside: Aside) -> kube::Result<Requeue> {
        let mut pass = Pass::default();
        self.refresh_as_recorded(job, &mut pass).await;
        self.record_progress(job, aside.progress).await?;
        pass.common.look_after(aside.then?.after());
        pass.common.end(|after| self.queue.add_after(job.key.clone(), after))
    }

    /// The set with a template as admission would have stored it. It was not asked when it was away, and Pods must not be
    /// replaced because defaults are missing. An error: the API server cannot say now.
    async fn defaulted(&self, key: &ObjectKey, set: Arc<StatefulSet>) -> Result<Arc<StatefulSet>, Refused> {
        let remembered = self.common.memories.with(key, |memory| memory.defaulted.clone()).flatten();
        let asked = (&self.context.client, &*self.context.gates);
        let of = (&*key.namespace, set.metadata.generation);
        let defaulted = match pod_template::with_defaults(asked, of, &set.spec.template, remembered).await {
            Ok(None) => return Ok(set),
            Ok(Some(defaulted)) => defaulted,
            Err(error) => {
                tracing::warn!(stateful_set = %key, %error, "its template lacks defaults, waiting");
                return Err(error);
            }
        };
        self.common.memories.with(key, |memory| memory.defaulted = Some(defaulted.clone()));
        let mut whole = StatefulSet::clone(&set);
        whole.spec.template = Value::clone(&defaulted.template);
        Ok(Arc::new(whole))
    }

    fn gates(&self) -> Gates {
        let gates = &self.context.gates;
        Gates {
            start_ordinal: gates.enabled(gate::START_ORDINAL),
            deletes_claims: gates.enabled(gate::DELETE_CLAIMS),
            grows_claims: gates.enabled(gate::RESIZE_CLAIMS),
        }
    }
}
