//! The controllers, one folder each, and the table of them.
//!
//! To add one: write its folder, add one line to [`CONTROLLERS`]. Start-up, `--controllers`, skipping when a custom
//! resource is not installed, metric labels and the manager's ClusterRole follow from the table. Controllers never
//! import each other: what two share sinks to `domain` (a rule) or `runtime` (an effect).

use std::{pin::Pin, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;

use runner::Runner;

use crate::{
    api::{CRD_NAMES, apps, feature_gates::FeatureGates, labels},
    budgets::Budgets,
    domain::{kinds::sidecar_set::notes::injected_into, node::recreate::manager::DAEMON_GONE_AFTER},
    k8s::{node::NodeView, pod::PodView, rbac::Rule},
    runtime::{
        events::Recorder,
        kruise_configuration, lock,
        metrics::{Metrics, ReconcileLabels},
        nodes::Nodes,
        queue::Requeue,
        shutdown::Shutdown,
        standstill::Work,
        watches::{Change, ObjectKey, Store, StoreIndex},
    },
};

pub mod advanced_cron_job;
pub mod broadcast_job;
pub mod clone_set;
pub mod container_launch_priority;
pub mod container_recreate_request;
pub mod daemon_set;
pub mod ephemeral_job;
pub mod image_list_pull_job;
pub mod image_pull_job;
pub mod persistent_pod_state;
pub mod pod_probe_marker;
pub mod pod_readiness;
pub mod pod_set;
pub mod pod_unavailable_budget;
pub mod resource_distribution;
pub mod runner;
pub mod sidecar_set;
pub mod sidecar_terminator;
pub mod stateful_set;
pub mod united_deployment;
pub mod workload_restart;
pub mod workload_spread;

/// Every controller.
pub const CONTROLLERS: &[Registration] = &[
    clone_set::REGISTRATION,
    stateful_set::REGISTRATION,
    daemon_set::REGISTRATION,
    united_deployment::REGISTRATION,
    sidecar_set::REGISTRATION,
    sidecar_terminator::REGISTRATION,
    broadcast_job::REGISTRATION,
    container_recreate_request::REGISTRATION,
    pod_readiness::REGISTRATION,
    workload_restart::REGISTRATION,
    container_launch_priority::REGISTRATION,
    image_pull_job::REGISTRATION,
    image_list_pull_job::REGISTRATION,
    ephemeral_job::REGISTRATION,
    pod_unavailable_budget::REGISTRATION,
    pod_probe_marker::REGISTRATION,
    persistent_pod_state::REGISTRATION,
    resource_distribution::REGISTRATION,
    advanced_cron_job::REGISTRATION,
    workload_spread::REGISTRATION,
];

/// What the manager may do cluster-wide besides the rules of its controllers.
pub const BASE_RULES: &[Rule] = &[
    Rule::new(&[""], &["events"], &["create"]),
    // The store of Nodes. get: whether one that the watch does not show is gone.
    Rule::new(&[""], &["nodes"], &["get", "list", "watch"]),
    // to see that nothing is stored in a shape that we do not have
    Rule::new(&["apiextensions.k8s.io"], &["customresourcedefinitions"], &["get"]).named(&CRD_NAMES),
];

/// What the manager may do in its own namespace: hold the Lease, which the manifests ship empty, and read which kinds of others
/// features may be used for.
pub const NAMESPACE_RULES: &[Rule] = &[
    Rule::new(&["coordination.k8s.io"], &["leases"], &["get", "update"]).named(&["kruise-manager"]),
    kruise_configuration::READ,
];

/// One line of the table.
#[derive(Clone, Copy)]
pub struct Registration {
    /// Its name in logs, metrics, events and `--controllers`.
    pub name: &'static str,
    /// `<plural>.<group>` of the custom resource without which it is not started.
    pub needs_crd: Option<&'static str>,
    /// The feature gate without which it is not started.
    pub gate: Option<&'static str>,
    /// What it does in the API.
    pub rules: &'static [Rule],
    /// The flag that sets its number of workers, if it has one.
    pub workers_flag: Option<&'static str>,
    /// Its number of workers otherwise. One namespace never uses more, all together twice as many; see
    /// [`crate::runtime::queue`].
    pub workers: usize,
    /// Makes it, see [`Registration::make`].
    start: fn(&Context, usize, Shutdown) -> Started,
}

impl Registration {
    /// Makes the controller with a number of workers. Nothing happens before its future is run. Its events name it, as those
    /// of OpenKruise's controllers do.
    pub fn make(&self, context: &Context, workers: usize, shutdown: Shutdown) -> Started {
        let events = context.events.named(self.name);
        (self.start)(&Context { events, ..context.clone() }, workers, shutdown)
    }
}

/// What controllers share.
#[derive(Clone)]
pub struct Context {
    /// The API server.
    pub client: Client,
    /// The Pods of the cluster, filled by one watch for all controllers.
    pub pods: Arc<Store<PodView>>,
    /// The Nodes of the cluster, filled by one watch for all controllers.
    pub nodes: Nodes,
    /// The PodUnavailableBudgets: whoever takes a Pod out of service asks them first.
    pub budgets: Arc<Budgets>,
    /// For events.
    pub events: Recorder,
    /// For metrics.
    pub metrics: Arc<Metrics>,
    /// The reconciles that run, to see whether they get on.
    pub work: Work,
    /// Our own namespace.
    pub namespace: Arc<str>,
    /// The only namespace to look at, or none for all.
    pub only_namespace: Option<Arc<str>>,
    /// Feature gates.
    pub gates: Arc<FeatureGates>,
    /// What flags say.
    pub settings: Settings,
}

/// Settings of single controllers, from flags.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Pods of CloneSets that wait for their deletion do not count as replicas.
    pub exclude_preparing_delete: bool,
    /// For NodeImages.
    pub images: ImageSettings,
    /// For ContainerRecreateRequests.
    pub requests: RequestSettings,
    /// Pods of BroadcastJobs are bound to their nodes when they are made; false: the scheduler does that.
    pub binds_broadcast_pods: bool,
}

/// Settings of ContainerRecreateRequests, from flags.
#[derive(Clone, Copy, Debug)]
pub struct RequestSettings {
    /// How long a node may lack a ready daemon before its requests end.
    pub daemon_gone_after: Duration,
}

impl Default for RequestSettings {
    fn default() -> Self {
        Self { daemon_gone_after: DAEMON_GONE_AFTER }
    }
}

/// Settings of NodeImages, from flags.
#[derive(Clone, Copy, Debug)]
pub struct ImageSettings {
    /// NodeImages that are written at the same time.
    pub node_workers: usize,
    /// How long a Node is Ready before it gets a NodeImage.
    pub creation_delay: Duration,
    /// Seconds that entries of jobs are kept beyond what the jobs say.
    pub default_ttl: i32,
}

impl Default for ImageSettings {
    fn default() -> Self {
        Self { node_workers: 8, creation_delay: Duration::from_secs(30), default_ttl: 300 }
    }
}

/// Learns of every change in [`Context::pods`].
pub type PodHandler = Box<dyn FnMut(&Change<'_, PodView>) + Send>;

/// Learns when a Node in [`Context::nodes`] appears, when its view changes and when it is gone.
pub type NodeHandler = Box<dyn FnMut(&Change<'_, NodeView>) + Send>;

/// A controller that has been made.
pub struct Started {
    /// Runs until the shutdown, then ends what it is doing.
    pub run: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Wants to know of Pods.
    pub on_pod: Option<PodHandler>,
    /// Wants to know of Nodes.
    pub on_node: Option<NodeHandler>,
}

impl Started {
    /// One that wants to know of nothing but its own objects.
    pub fn new(run: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { run: Box::pin(run), on_pod: None, on_node: None }
    }

    /// Wants to know of Pods.
    pub fn on_pod(self, handler: impl FnMut(&Change<'_, PodView>) + Send + 'static) -> Self {
        Self { on_pod: Some(Box::new(handler)), ..self }
    }

    /// Wants to know of Nodes.
    pub fn on_node(self, handler: impl FnMut(&Change<'_, NodeView>) + Send + 'static) -> Self {
        Self { on_node: Some(Box::new(handler)), ..self }
    }
}

/// A handler of changes that is a method of a controller.
fn handling<C, V>(
    controller: &Arc<C>,
    handle: fn(&C, &Change<'_, V>),
) -> impl FnMut(&Change<'_, V>) + Send + 'static + use<C, V>
where
    C: Send + Sync + 'static,
    V: 'static,
{
    let controller = controller.clone();
    move |change: &Change<'_, V>| handle(&controller, change)
}

impl Context {
    /// The API of a kind, limited to one namespace if the process is.
    pub fn api<K, D>(&self) -> kube::Api<K>
    where
        K: kube::Resource<DynamicType = D, Scope = k8s_openapi::NamespaceResourceScope>,
        D: Default,
    {
        match &self.only_namespace {
            Some(namespace) => kube::Api::namespaced(self.client.clone(), namespace),
            None => kube::Api::all(self.client.clone()),
        }
    }

    /// Runs a reconcile, counts it, and sees whether it gets on.
    async fn reconcile<E>(
        &self,
        controller: &'static str,
        key: &ObjectKey,
        reconcile: impl Future<Output = Result<Requeue, E>>,
    ) -> Result<Requeue, E> {
        let result = self.work.run(format!("{controller} {key}"), reconcile).await;
        self.count(controller, &result);
        result
    }

    /// Counts a reconcile.
    fn count<E>(&self, controller: &'static str, result: &Result<Requeue, E>) {
        let result = match result {
            Ok(Requeue::Await) => "success",
            Ok(Requeue::After(_)) => "requeue_after",
            Err(_) => "error",
        };
        self.metrics.reconciles.get_or_create(&ReconcileLabels { controller, result }).inc();
    }
}

/// A name in `--controllers` that no controller has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--controllers: unknown controller {0:?}; known are *, {known}", known = names())]
pub struct UnknownController(String);

fn names() -> String {
    CONTROLLERS.iter().map(|c| c.name).collect::<Vec<_>>().join(", ")
}

/// The controllers that `--controllers` names: `*` for all, `-NAME` to leave one out, names without their suffix
/// `-controller` too.
///
/// # Errors
/// Naming the unknown one.
pub fn select(wanted: &[String]) -> Result<Vec<&'static Registration>, UnknownController> {
    let named = |name: &str| {
        CONTROLLERS
            .iter()
            .position(|c| c.name == name || c.name.strip_suffix("-controller") == Some(name))
            .ok_or_else(|| UnknownController(name.to_owned()))
    };
    let names = wanted.iter().map(|name| name.trim()).filter(|name| !name.is_empty());
    let mut chosen = vec![false; CONTROLLERS.len()];
    let mut left_out = vec![false; CONTROLLERS.len()];
    for name in names {
        match name.strip_prefix('-') {
            _ if name == "*" => chosen.fill(true),
            Some(name) => left_out[named(name)?] = true,
            None => chosen[named(name)?] = true,
        }
    }
    let chosen = chosen.iter().zip(left_out).map(|(chosen, out)| *chosen && !out);
    Ok(CONTROLLERS.iter().zip(chosen).filter_map(|(c, chosen)| chosen.then_some(c)).collect())
}

/// An index of [`Context::pods`]: Pods by what controls them, see [`owned_text`].
pub const BY_CONTROLLER: StoreIndex<PodView> =
    StoreIndex::new("controller", |pod| pod.controller.as_ref().map(|owner| owned_text(pod.namespace(), &owner.uid)));

/// The text of [`BY_CONTROLLER`] and of other indexes by owner. The namespace counts too: whoever may create objects in another one
/// can write the UID of an owner into them.
pub fn owned_text(namespace: &str, uid: &str) -> String {
    format!("{namespace}/{uid}")
}

/// The same for an owner.
pub fn owned_by(owner: &ObjectMeta) -> String {
    owned_text(owner.namespace.as_deref().unwrap_or_default(), owner.uid.as_deref().unwrap_or_default())
}

/// An index of [`Context::pods`]: Pods by the names of the SidecarSets that were injected into them.
pub const BY_SIDECAR_SET: StoreIndex<PodView> =
    StoreIndex::of_several("SidecarSet", |pod| injected_into(pod).map(str::to_owned).collect());

/// An index of [`Context::pods`]: Pods of subsets that belong to Deployments, by namespace and Deployment, see
/// [`deployment_text`].
pub const BY_DEPLOYMENT: StoreIndex<PodView> = StoreIndex::new("Deployment", |pod| {
    pod.labels.get(labels::SUBSET_NAME)?;
    let owner = pod.controller.as_deref().filter(|owner| owner.is("apps", "ReplicaSet"))?;
    deployment_of(&owner.name).map(|deployment| deployment_text(pod.namespace(), deployment))
});

/// The text of [`BY_DEPLOYMENT`].
pub fn deployment_text(namespace: &str, deployment: &str) -> String {
    format!("{namespace}/{deployment}")
}

/// The Deployment of a ReplicaSet: the name without the hash behind it.
pub fn deployment_of(replica_set: &str) -> Option<&str> {
    replica_set.rsplit_once('-').map(|(deployment, _)| deployment)
}

/// An index of [`Context::pods`]: Pods by the WorkloadSpread that is noted on them, see [`spread_text`].
pub const BY_SPREAD: StoreIndex<PodView> = StoreIndex::new("WorkloadSpread", |pod| {
    pod.rare().spread.as_ref().map(|note| spread_text(pod.namespace(), &note.name))
});

/// The text of [`BY_SPREAD`].
pub fn spread_text(namespace: &str, spread: &str) -> String {
    format!("{namespace}/{spread}")
}

/// An index of [`Context::pods`]: Pods of our DaemonSets, by the node that they are on or meant for. Not by their owner too: a
/// node has few of them, and a text for each Pod would take more memory than it saves time.
pub const BY_NODE: StoreIndex<PodView> = StoreIndex::new("node", |pod| {
    pod.controller.as_deref().filter(|owner| owner.is(apps::GROUP, "DaemonSet"))?;
    Some(pod.node_meant().to_owned())
});

/// An index of [`Context::pods`]: Pods by namespace.
pub const BY_NAMESPACE: StoreIndex<PodView> = StoreIndex::new("namespace", |pod| Some(pod.namespace().to_owned()));
/// An index of [`Context::pods`]: Pods that nobody controls, by namespace.
pub const ORPHANED: StoreIndex<PodView> =
    StoreIndex::new("orphaned", |pod| pod.controller.is_none().then(|| pod.namespace().to_owned()));

/// An empty store of Pods, as controllers want it.
pub fn pod_store() -> Arc<Store<PodView>> {
    Store::new([BY_CONTROLLER, BY_SIDECAR_SET, BY_DEPLOYMENT, BY_SPREAD, BY_NODE, BY_NAMESPACE, ORPHANED])
}

#[cfg(test)]
mod fake;

#[cfg(test)]
mod in_memory {
    use std::sync::OnceLock;

    use axum::http::request::Parts;
    use serde_json::{Value, json};

    use super::*;
    use crate::runtime::fake_api;

    /// The context of a controller whose API server is a function: a request and its body to a code and an object.
    pub(super) fn context<A>(answer: A) -> Context
    where
        A: Fn(&Parts, &[u8]) -> (u16, Value) + Clone + Send + Sync + 'static,
    {
        context_of_some(move |parts, body| Some(answer(parts, body)))
    }

    /// A controller with an object that is deleted while the API server answers, each time with this error: `delete` does what the
    /// watch would.
    pub(super) fn deleting_while_asked<C: Send + Sync + 'static>(
        code: u16,
        new: impl FnOnce(&Context) -> C,
        delete: impl Fn(&C) + Clone + Send + Sync + 'static,
    ) -> Arc<C> {
        let running: Arc<OnceLock<Arc<C>>> = Arc::default();
        let context = context({
            let running = running.clone();
            move |_, _| {
                delete(running.get().unwrap());
                (code, json!({"kind": "Status", "status": "Failure", "code": code, "message": "no"}))
            }
        });
        running.get_or_init(|| Arc::new(new(&context))).clone()
    }

    /// The same as [`context`] with an API server that does not answer some requests, ever.
    pub(super) fn context_of_some<A>(answer: A) -> Context
    where
        A: Fn(&Parts, &[u8]) -> Option<(u16, Value)> + Clone + Send + Sync + 'static,
    {
        let client = fake_api::answering_some(answer);
        let metrics = Arc::new(Metrics::default());
        let (events, _) = Recorder::new(client.clone(), "kruise-manager", "", metrics.events_dropped.clone());
        let gates = Arc::new(FeatureGates::default());
        Context {
            budgets: Budgets::new(client.clone(), gates.clone()),
            nodes: Nodes::new(client.clone()),
            client,
            pods: pod_store(),
            events,
            metrics,
            work: Work::default(),
            namespace: "kruise-system".into(),
            only_namespace: None,
            gates,
            settings: Settings::default(),
        }
    }
}

#[cfg(test)]
mod tests;
