//! Advanced DaemonSets: one Pod on each node that fits, made, deleted and updated within the limits of their spec.
//!
//! - Owns: the Pods and ControllerRevisions of DaemonSets of apps.kruise.io, and their status.
//! - Watches: those DaemonSets, the names of built-in ones, Pods, Nodes. ControllerRevisions are read when a spec is new and
//!   while Pods are outdated.
//! - Never: deletes a Pod by force, touches what another owner controls. While the built-in DaemonSet of the same name
//!   selects the same Pods it makes, updates and deletes nothing, or every node would have two; an update in place that
//!   has begun gets to its end.
//!
//! One pass ([`Controller::reconcile`]) is: which revision, which Pods are its own, each Pod's own state, the plan and
//! its steps, what to say in status. A node that a large set begins to run on gets its Pod after a look at the Pods of that
//! node alone ([`Controller::node_arrives`]). Any other change of a node that matters to a set costs one pass of that set,
//! however many nodes have changed meanwhile. The rules are in [`domain::daemon_set`](crate::domain::kinds::daemon_set).

mod apply;
mod arrival;
mod observe;
mod pre_download;
mod record;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::apps::v1::DaemonSet as BuiltIn;
use kube::{Api, Client, Resource, runtime::watcher::Config};
use serde_json::Value;

use self::observe::Resolved;
use super::{
    Context, Registration, Runner, Started,
    pod_set::{Aside, Common, POD_WORKERS, Pass, PodSets},
};
use crate::{
    api::apps::{self, daemon_set::DaemonSet},
    domain::{
        kinds::daemon_set::{
            away::Departures,
            pass,
            plan::{Outage, Turn},
            pod::Node,
            spec::{Invalid, Spec},
        },
        node::backoff::Failures,
        workload::{owner::OwnerRef, turns::Turns},
    },
    k8s::{node::NodeView, pod::PodView, rbac::Rule, selector::Selector, shared::Text},
    runtime::{
        guarded::Guarded,
        packed::Packed,
        pre_download::{Notes, PreDownloads},
        queue::{Backoff, Queue, Requeue},
        revisions::Revisions,
        shutdown::Shutdown,
        wake,
        watches::{Change, ObjectKey, Store, StoreIndex},
    },
};

/// Its line in the table.
pub const REGISTRATION: Registration = Registration {
    name: NAME,
    needs_crd: Some("daemonsets.apps.kruise.io"),
    gate: None,
    rules: &[
        Rule::new(&["apps.kruise.io"], &["daemonsets"], &["get", "list", "watch"]),
        Rule::new(&["apps.kruise.io"], &["daemonsets/status"], &["patch"]),
        // To own objects with blockOwnerDeletion, where the API server checks that.
        Rule::new(&["apps.kruise.io"], &["daemonsets/finalizers"], &["update"]),
        Rule::new(&["apps"], &["controllerrevisions"], &["get", "list", "create", "patch", "delete"]),
        // Whether the built-in one of the same name is there: the watch brings names alone.
        Rule::new(&["apps"], &["daemonsets"], &["get", "list", "watch"]),
        Rule::new(&[""], &["pods"], &["get", "list", "watch", "create", "patch", "delete"]),
        Rule::new(&[""], &["pods/status", "pods/resize"], &["patch"]),
        Rule::new(&["apps.kruise.io"], &["imagepulljobs"], &["get", "list", "create", "delete"]),
        // A dry run of one says what defaults a template has: revisions of the built-in DaemonSet have them.
        Rule::new(&[""], &["podtemplates"], &["create"]),
    ],
    workers_flag: Some("daemonset-workers"),
    workers: 3,
    start,
};

const NAME: &str = "daemonset-controller";
/// Group and kind of the owner of its Pods.
const KIND: (&str, &str) = (apps::GROUP, "DaemonSet");
const BY_NAMESPACE: StoreIndex<Packed<DaemonSet>> = StoreIndex::namespace();

struct Controller {
    context: Context,
    sets: Arc<Store<Packed<DaemonSet>>>,
    queue: Arc<Queue<ObjectKey>>,
    /// Nodes that have come or changed, for large sets.
    arrivals: Arc<Queue<ObjectKey>>,
    revisions: Revisions,
    common: PodSets<DaemonSetMemory>,
    pre_downloads: PreDownloads,
}

/// What is remembered of a set. Everything can be lost.
#[derive(Default)]
struct DaemonSetMemory {
    /// Its spec without the template, or why it cannot be followed, for one generation and its annotations.
    outline: Option<(Option<i64>, Annotations, ReadSpec)>,
    /// Its revisions, for one generation of its spec.
    resolved: Option<Resolved>,
    /// What is remembered of a set of any kind.
    common: Common,
    /// Failed Pods of nodes, for one generation.
    failures: (i64, Failures),
    /// Nodes that are not Ready, as they were when that was seen first.
    outages: BTreeMap<String, Outage>,
    /// How the last Pods of nodes went.
    departures: Departures,
    /// What was refused, and is tried after the others.
    turns: Turns<Turn>,
    /// The generation for which an event said that Pods cannot be updated in place.
    not_in_place: Option<i64>,
    /// What was done about new images.
    pre_download: Notes,
    /// How many Pods were made for a node, for their names.
    made: Arc<BTreeMap<Text, u32>>,
}

impl DaemonSetMemory {
    /// How many Pods were made for a node.
    fn made_for(&self, node: &str) -> u32 {
        self.made.get(node).copied().unwrap_or_default()
    }

    /// That so many were made for it at least.
    fn has_made(&mut self, node: &str, number: u32) {
        let made = Arc::make_mut(&mut self.made).entry(node.into()).or_default();
        *made = number.max(*made);
    }
}

impl AsMut<Common> for DaemonSetMemory {
    fn as_mut(&mut self) -> &mut Common {
        &mut self.common
    }
}

type Annotations = Option<BTreeMap<String, String>>;
type ReadSpec = Result<Arc<Spec>, Invalid>;

fn start(context: &Context, workers: usize, shutdown: Shutdown) -> Started {
    let controller = Arc::new(Controller::new(context));
    let (on_pod, on_node) = (controller.clone(), controller.clone());
    Started::new(controller.run(workers, shutdown))
        .on_pod(move |change| on_pod.pod_changed(change))
        .on_node(move |change| on_node.node_changed(change))
}

/// A set in one pass.
struct Job {
    key: ObjectKey,
    /// The set as the store holds it: its status is written over this version.
    held: Arc<Packed<DaemonSet>>,
    set: Arc<DaemonSet>,
    spec: Arc<Spec>,
    owner: OwnerRef,
}

impl Job {
    fn generation(&self) -> i64 {
        self.set.metadata.generation.unwrap_or_default()
    }
}

/// Whether a node may have a Pod now and could not before, and is the same otherwise: every new node has a taint, which is
/// removed when the node is Ready.
fn becomes_eligible(before: Option<&Node>, now: Option<&Node>) -> bool {
    let (Some(before), Some(now)) = (before, now) else { return false };
    let is_same = || Node { fit: now.fit, would_run: now.would_run, ..before.clone() } == *now;
    now.fit.should_run && !before.fit.should_run && is_same()
}

impl Controller {
    fn new(context: &Context) -> Self {
        let client: &Client = &context.client;
        let common = PodSets::new(context, ("DaemonSet", "daemonsets"));
        let only_namespace = context.only_namespace.clone();
        let pre_downloads = PreDownloads::new(client.clone(), only_namespace, "DaemonSet", common.pods.clone());
        Self {
            context: context.clone(),
            sets: Store::new([BY_NAMESPACE]),
            queue: Queue::new(Backoff::default()),
            arrivals: Queue::new(Backoff::default()),
            revisions: Revisions::new(client.clone()),
            common,
            pre_downloads,
        }
    }

    async fn run(self: Arc<Self>, workers: usize, shutdown: Shutdown) {
        let (on_set, on_built_in, of_pods, this) = (self.clone(), self.clone(), self.clone(), self.clone());
        let sets: Api<Guarded<Packed<DaemonSet>>> = self.context.api();
        let built_in: Api<BuiltIn> = self.context.api();
        let runner = Runner::new(&self.context, NAME, shutdown)
            .watch_guarded(sets, Config::default(), &self.sets, move |change| {
                wake::workload_changed(&change, &on_set.queue, &on_set.common.memories);
                wake::status_changed(&change, &on_set.sets, &on_set.queue);
            })
            .watch_names(built_in, self.common.built_in(), move |change| {
                on_built_in.common.built_in_changed(&change, &on_built_in.sets, &on_built_in.queue);
            })
            .following(self.context.nodes.store())
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
        let of_nodes = self.clone();
        let node_arrives = move |key: ObjectKey| {
            let this = of_nodes.clone();
            async move { this.node_arrives(&key).await }
        };
        let runner = runner.and_queue(NAME, pod_queue, POD_WORKERS, refresh_pod).and_queue(
            NAME,
            self.arrivals.clone(),
            arrival::WORKERS,
            node_arrives,
        );
        runner.run(self.queue.clone(), workers, reconcile).await;
    }

    /// A node is news for those sets that see another one than before.
    fn node_changed(&self, change: &Change<'_, NodeView>) {
        let Some((old, new)) = change.sides() else { return };
        let mut has_large = false;
        for held in self.sets.list() {
            let key = ObjectKey::of(held.as_ref());
            // One that cannot be followed waits for another spec.
            let Ok(spec) = self.outline(&key, &held) else { continue };
            let seen = |node: Option<&Arc<NodeView>>| {
                node.map(|node| Node::of(node, &spec)).filter(|node| node.fit.should_continue)
            };
            let (before, now) = (seen(old), seen(new));
            if before != now {
                let is_large = self.common.is_large(&key);
                has_large |= is_large;
                match is_large && (old.is_none() || becomes_eligible(before.as_ref(), now.as_ref())) {
                    // Its Pod is made by `node_arrives`.
                    true => self.common.wake_for_status(&self.queue, &key),
                    false => self.common.wake(&self.queue, &key, None),
                }
            }
        }
        if let Some(node) = new.filter(|_| has_large) {
            self.arrivals.add(ObjectKey::of(node.as_ref()));
        }
    }

    fn pod_changed(&self, change: &Change<'_, PodView>) {
        if let Change::Deleted(pod) = change {
            self.note_gone(pod);
        }
        wake::owners_of_changed(change, KIND, |key, pod| self.common.wake(&self.queue, key, pod));
        if let Change::Applied { new, .. } = change
            && new.controller.is_none()
        {
            self.orphan_seen(new);
        }
    }

    /// A Pod that nobody controls may be one to adopt.
    fn orphan_seen(&self, pod: &PodView) {
        for held in self.sets.by_index(&BY_NAMESPACE, pod.namespace()) {
            let key = ObjectKey::of(held.as_ref());
            match self.outline(&key, &held) {
                Ok(spec) if Spec::selects(&spec.selector, &pod.labels) => {
                    self.common.search_again(&key);
                    self.queue.add(key);
                }
                Ok(_) => {}
                // It can be followed when another annotation is right, and that is no new generation.
                Err(_) => self.common.search_again(&key),
            }
        }
    }

    /// See [`PodSets::refresh_pod`].
    async fn refresh_pod(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        self.common.refresh_pod(key, &self.sets, &self.queue).await
    }

    /// The spec of a set without its template, for whoever makes no Pod. The set is opened for it once for each generation: it
    /// is asked for at each change of each node.
    fn outline(&self, key: &ObjectKey, held: &Packed<DaemonSet>) -> ReadSpec {
        let meta = held.meta();
        self.common.memories.enter(key, meta.uid.as_deref().unwrap_or_default());
        let known = self.common.memories.with(key, |memory| {
            let (generation, annotations, spec) = memory.outline.as_ref()?;
            ((*generation, annotations) == (meta.generation, &meta.annotations)).then(|| spec.clone())
        });
        if let Some(spec) = known.flatten() {
            return spec;
        }
        let spec = held.open().map_err(|error| Invalid(error.to_string())).and_then(|set| Spec::of(&set));
        let outline = spec.map(|spec| Arc::new(Spec { template: Value::Null, ..spec }));
        let remembered = Some((meta.generation, meta.annotations.clone(), outline.clone()));
        self.common.memories.with(key, |memory| memory.outline = remembered);
        // Its end may have been reported meanwhile.
        if self.sets.get(key).is_none() {
            self.common.memories.forget(key);
        }
        outline
    }

    async fn reconcile(&self, key: &ObjectKey) -> kube::Result<Requeue> {
        let Some(held) = self.sets.get(key) else { return Ok(Requeue::Await) };
        let set = Arc::new(held.open()?);
        self.common.memories.enter(key, set.metadata.uid.as_deref().unwrap_or_default());
        let spec = match Spec::of(&set) {
            Ok(spec) => Arc::new(spec),
            Err(Invalid(message)) => return self.record_invalid((&held, &set), "InvalidSpec", message).await,
        };
        if Selector::of(&spec.selector).map_or(true, |selector| selector.is_empty()) {
            let message = "This daemon set is selecting all pods. A non-empty selector is required.".to_owned();
            return self.record_invalid((&held, &set), "SelectingAll", message).await;
        }
        let job = Job { key: key.clone(), owner: OwnerRef::of(set.as_ref()), held, set, spec };
        if job.set.metadata.deletion_timestamp.is_some() {
            self.record_progress(&job, self.common.leaving()).await?;
            return Ok(Requeue::Await);
        }
        if let Some(aside) = self.aside(&job).await {
            return self.step_aside(&job, aside).await;
        }
        let mut pass = Pass::default();
        self.claim(&job, &mut pass).await;
        let resolved = match self.resolve(&job).await {
            Ok(resolved) => resolved,
            Err(error) => return self.record_unresolved(&job, error, pass).await,
        };
        let mut seen = self.see(&job, &resolved);
        if self.refresh_all(&job, &resolved, &seen, &mut pass).await {
            seen = self.see(&job, &resolved);
        }
        let (resolved, allowed) = match self.with_needed(&job, &resolved, &seen).await {
            Ok((read, allowed)) => {
                // Which Pods have the newest template is known only now: the manager was started since it was chosen.
                if read.same != resolved.same {
                    seen = self.see(&job, &read);
                }
                (read, Some(allowed))
            }
            Err(error) => {
                pass.note(Err(error));
                (resolved, None)
            }
        };
        pass.common.look_after(self.pre_download(&job, &resolved, &seen).await);
        let plan = pass::plan(&self.observed(&job, &resolved, &seen, allowed));
        // It may have come meanwhile.
        if !plan.is_idle()
            && let Some(aside) = self.aside(&job).await
        {
            return self.step_aside(&job, aside).await;
        }
        let is_at_rest = plan.is_idle();
        self.common.memories.with(key, |memory| memory.common.is_at_rest = is_at_rest);
        self.report_not_in_place(&job, &plan);
        let left = self.carry_out(&job, &resolved, &seen, plan, &mut pass).await;
        self.common.report_refusals(&job.key, &job.owner, &mut pass);
        if pass.common.again {
            seen = self.see(&job, &resolved);
        }
        pass.common.look_after(self.record(&job, &resolved, &seen, &left, &pass).await?);
        if let Err(error) = self.tidy(&job, &resolved, &seen).await {
            pass.common.error.get_or_insert(error);
        }
        pass.common.look_after(left.look);
        pass.common.end(|after| self.queue.add_after(key.clone(), after))
    }

    /// Makes and deletes nothing, and says why.
    async fn step_aside(&self, job: &Job, aside: Aside) -> kube::Result<Requeue> {
        let mut pass = Pass::default();
        self.refresh_as_recorded(job, &mut pass).await;
        self.record_progress(job, aside.progress).await?;
        pass.common.look_after(aside.then?.after());
        pass.common.end(|after| self.queue.add_after(job.key.clone(), after))
    }
}
