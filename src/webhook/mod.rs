//! The webhook role: admission over TLS.
//!
//! Owns the entries of [`CONFIGURATION`] and [`VALIDATING_CONFIGURATION`] that point at its Service, the Secret that holds
//! its certificates, and the binding of the policy that protects against deletion. Never touches entries of others.
//! Handlers are pure functions over raw JSON with a thin shell for their reads.
//!
//! To add a handler: write its file and one line in [`HANDLERS`]. Routes, registration and RBAC follow from the table.

pub mod kinds;
pub mod server;

use std::sync::Arc;

use futures::future::BoxFuture;
use prometheus_client::metrics::counter::Counter;

use self::{
    kinds::{
        clone_set, container_recreate_request, deletion_protection, image_pull_job, pod, pod_budget, pod_probe_marker,
        pod_unavailable_budget, serverless_probes,
    },
    server::review::{Decision, Request},
};
use crate::{
    api::{
        apps,
        feature_gates::{FeatureGates, gate},
        policy,
    },
    budgets::Budgets,
    k8s::rbac::Rule,
    runtime::events::Recorder,
};

/// The MutatingWebhookConfiguration that manifests install and the webhook role keeps up to date.
pub const CONFIGURATION: &str = "kruise-mutating-webhook-configuration";
/// The ValidatingWebhookConfiguration, likewise.
pub const VALIDATING_CONFIGURATION: &str = "kruise-validating-webhook-configuration";
/// The Service in front of the webhook role.
pub const SERVICE: &str = "kruise-webhook-service";
/// The Secret with the certificates.
pub const SECRET: &str = "kruise-webhook-certs";

/// What handlers share.
pub struct Context {
    /// The cluster's feature gates.
    pub gates: FeatureGates,
    /// For live reads.
    pub client: kube::Client,
    /// Our own namespace, where the daemons are.
    pub namespace: Arc<str>,
    /// The PodUnavailableBudgets.
    pub budgets: Arc<Budgets>,
    /// For events.
    pub events: Recorder,
}

impl Context {
    /// A context, and the task that sends its events.
    pub fn new(
        gates: FeatureGates,
        client: kube::Client,
        namespace: Arc<str>,
        events_dropped: Counter,
    ) -> (Self, impl Future<Output = ()>) {
        let budgets = Budgets::new(client.clone(), Arc::new(gates.clone()));
        let (events, send) = Recorder::new(client.clone(), "kruise-webhook", "", events_dropped);
        (Self { gates, client, namespace, budgets, events }, send)
    }
}

/// A rule in CEL that decides in the API server whether a call is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchCondition {
    /// Unique within a webhook.
    pub name: &'static str,
    /// CEL over `object`.
    pub expression: String,
}

/// What the API server does when it gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Refuse the request. Never together with UPDATE: removing a finalizer has to pass while we are down.
    Fail,
    /// Go on without us.
    Ignore,
}

/// What happens to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// It is created.
    Create,
    /// It is changed. Only for webhooks that fail open, and not while the object is being deleted.
    Update,
    /// It is deleted. What fails closed here sees only objects that somebody has labelled.
    Delete,
}

/// When in the way of a request a webhook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// First; it may change the object.
    Mutating,
    /// Last, after policies; it consents or refuses. What it allows is mostly carried out.
    Validating,
}

/// Of which namespaces requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// Of all, and those for objects without a namespace.
    All,
    /// Not of kube-system and our own, so that a broken webhook cannot stop its own repair.
    NotSystem,
    /// Of those that have a PodUnavailableBudget ([`scope`]); the list is kept up to date.
    WithBudgets,
}

/// Whether objects of a kind have a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// They have.
    Namespaced,
    /// They are of the cluster.
    Cluster,
}

/// What a webhook is called for.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// What has to happen.
    pub operation: Operation,
    /// API group; empty for core.
    pub group: &'static str,
    /// Versions.
    pub versions: &'static [&'static str],
    /// Plural resource name, with its subresource as in `pods/eviction`.
    pub resource: &'static str,
    /// Where its objects are.
    pub level: Level,
}

/// One admission webhook.
pub struct Handler {
    /// Name in the configuration, as OpenKruise has it.
    pub name: &'static str,
    /// Paths that are served; the first one is registered.
    pub paths: &'static [&'static str],
    /// When it is called.
    pub phase: Phase,
    /// What it is called for.
    pub target: Target,
    /// What happens when it does not answer.
    pub on_failure: OnFailure,
    /// Seconds that the API server waits.
    pub timeout_seconds: i32,
    /// Whose requests it sees.
    pub namespaces: Namespaces,
    /// The label, key and value, that an object has to have.
    pub label: Option<(&'static str, &'static str)>,
    /// Whether a call writes something; it does not in a dry run.
    pub writes: bool,
    /// Registered only while this gate is on.
    pub gate: Option<&'static str>,
    /// When the API server has to call.
    pub match_conditions: fn(&FeatureGates) -> Vec<MatchCondition>,
    /// Rights that its reads need.
    pub rbac: &'static [Rule],
    /// Decides.
    pub handle: fn(Arc<Context>, Request) -> BoxFuture<'static, Decision>,
}

impl Handler {
    /// Whether its gate is on.
    pub fn is_active(&self, gates: &FeatureGates) -> bool {
        self.gate.is_none_or(|name| gates.enabled(name))
    }
}

/// Updates that need us: those that change the spec. Whoever takes a finalizer away has to get through.
fn spec_changed(_: &FeatureGates) -> Vec<MatchCondition> {
    vec![
        MatchCondition { name: "spec-changed", expression: "object.spec != oldObject.spec".into() },
        MatchCondition { name: "not-being-deleted", expression: "!has(object.metadata.deletionTimestamp)".into() },
    ]
}

/// Every admission webhook.
pub const HANDLERS: &[Handler] = &[
    Handler {
        name: "mpod.kb.io",
        paths: &["/mutate-pod"],
        phase: Phase::Mutating,
        target: Target {
            operation: Operation::Create,
            group: "",
            versions: &["v1"],
            resource: "pods",
            level: Level::Namespaced,
        },
        on_failure: OnFailure::Ignore,
        timeout_seconds: 3,
        namespaces: Namespaces::NotSystem,
        label: None,
        writes: false,
        gate: Some(gate::POD_WEBHOOK),
        match_conditions: pod::match_conditions,
        rbac: &[],
        handle: pod::handle,
    },
    Handler {
        name: "mcontainerrecreaterequest.kb.io",
        paths: &[
            "/mutate-apps-kruise-io-containerrecreaterequest",
            "/mutate-apps-kruise-io-v1alpha1-containerrecreaterequest",
        ],
        phase: Phase::Mutating,
        target: Target {
            operation: Operation::Create,
            group: apps::GROUP,
            versions: &["v1alpha1", "v1beta1"],
            resource: "containerrecreaterequests",
            level: Level::Namespaced,
        },
        on_failure: OnFailure::Fail,
        timeout_seconds: 10,
        namespaces: Namespaces::All,
        label: None,
        writes: true,
        // With KruiseDaemon off it stays registered and says why it refuses.
        gate: None,
        match_conditions: |_| Vec::new(),
        rbac: &[Rule::new(&[""], &["pods", "nodes"], &["get"])],
        handle: container_recreate_request::handle,
    },
    Handler {
        name: "mcloneset.kb.io",
        // The last two are what a registration of OpenKruise that nobody has removed may still call.
        paths: &[
            "/mutate-apps-kruise-io-v1alpha1-cloneset",
            "/mutate-apps-kruise-io-cloneset",
            "/validate-apps-kruise-io-v1alpha1-cloneset",
            "/validate-apps-kruise-io-cloneset",
        ],
        phase: Phase::Mutating,
        target: CLONE_SETS,
        on_failure: OnFailure::Fail,
        timeout_seconds: 10,
        namespaces: Namespaces::All,
        label: None,
        writes: false,
        gate: None,
        match_conditions: |_| Vec::new(),
        rbac: clone_set::RBAC,
        handle: clone_set::handle,
    },
    Handler {
        name: "mcloneset-update.kb.io",
        paths: &["/mutate-apps-kruise-io-v1alpha1-cloneset-update"],
        phase: Phase::Mutating,
        target: Target { operation: Operation::Update, ..CLONE_SETS },
        on_failure: OnFailure::Ignore,
        timeout_seconds: 10,
        namespaces: Namespaces::All,
        label: None,
        writes: false,
        gate: None,
        match_conditions: spec_changed,
        rbac: clone_set::RBAC,
        handle: clone_set::handle,
    },
    // Of deletion protection only what has to be counted; the rest is a policy of the API server.
    Handler {
        name: "vnamespace.kb.io",
        paths: &["/validate-namespace"],
        phase: Phase::Validating,
        target: Target {
            operation: Operation::Delete,
            group: "",
            versions: &["v1"],
            resource: "namespaces",
            level: Level::Cluster,
        },
        on_failure: OnFailure::Fail,
        timeout_seconds: 10,
        namespaces: Namespaces::All,
        label: Some(deletion_protection::CASCADING),
        writes: false,
        gate: Some(gate::DELETION_PROTECTION),
        match_conditions: deletion_protection::match_conditions,
        rbac: deletion_protection::NAMESPACE_RBAC,
        handle: deletion_protection::handle_namespace,
    },
    Handler {
        name: "vcustomresourcedefinition.kb.io",
        paths: &["/validate-customresourcedefinition"],
        phase: Phase::Validating,
        target: Target {
            operation: Operation::Delete,
            group: "apiextensions.k8s.io",
            versions: &["v1"],
            resource: "customresourcedefinitions",
            level: Level::Cluster,
        },
        on_failure: OnFailure::Fail,
        timeout_seconds: 10,
        namespaces: Namespaces::All,
        label: Some(deletion_protection::CASCADING),
        writes: false,
        gate: Some(gate::DELETION_PROTECTION),
        match_conditions: deletion_protection::match_conditions,
        // Rights to list custom resources are the administrator's to add.
        rbac: &[],
        handle: deletion_protection::handle_definition,
    },
    // Pods and their budgets: only in namespaces that have one.
    Handler {
        name: "mpod-budget.kb.io",
        paths: &["/mutate-pod-budget"],
        phase: Phase::Mutating,
        target: PODS,
        on_failure: OnFailure::Ignore,
        timeout_seconds: 3,
        namespaces: Namespaces::WithBudgets,
        label: None,
        writes: false,
        gate: Some(gate::POD_WEBHOOK),
        match_conditions: |_| Vec::new(),
        rbac: pod_budget::RBAC,
        handle: pod_budget::relate,
    },
    Handler {
        name: "vpod-delete.kb.io",
        // The first is what a registration of OpenKruise calls for all of them.
        paths: &["/validate-pod"],
        phase: Phase::Validating,
        target: Target { operation: Operation::Delete, ..PODS },
        on_failure: OnFailure::Ignore,
        timeout_seconds: 10,
        namespaces: Namespaces::WithBudgets,
        label: None,
        writes: true,
        gate: Some(gate::BUDGETS_GUARD_DELETION),
        match_conditions: pod_budget::on_delete,
        rbac: pod_budget::RBAC,
        handle: pod_budget::handle,
    },
    Handler {
        name: "vpod-eviction.kb.io",
        paths: &["/validate-pod-eviction"],
        phase: Phase::Validating,
        target: Target { resource: "pods/eviction", ..PODS },
        on_failure: OnFailure::Ignore,
        timeout_seconds: 10,
        namespaces: Namespaces::WithBudgets,
        label: None,
        writes: true,
        gate: Some(gate::BUDGETS_GUARD_DELETION),
        match_conditions: |_| Vec::new(),
        rbac: pod_budget::RBAC,
        handle: pod_budget::handle,
    },
    Handler {
        name: "vpod-update.kb.io",
        paths: &["/validate-pod-update"],
        phase: Phase::Validating,
        target: Target { operation: Operation::Update, ..PODS },
        on_failure: OnFailure::Ignore,
        timeout_seconds: 10,
        namespaces: Namespaces::WithBudgets,
        label: None,
        writes: true,
        gate: Some(gate::BUDGETS_GUARD_UPDATES),
        match_conditions: pod_budget::on_update,
        rbac: pod_budget::RBAC,
        handle: pod_budget::handle,
    },
    Handler {
        name: "vpod-resize.kb.io",
        paths: &["/validate-pod-resize"],
        phase: Phase::Validating,
        target: Target { operation: Operation::Update, resource: "pods/resize", ..PODS },
        on_failure: OnFailure::Ignore,
        timeout_seconds: 10,
        namespaces: Namespaces::WithBudgets,
        label: None,
        writes: true,
        gate: Some(gate::BUDGETS_GUARD_UPDATES),
        match_conditions: pod_budget::on_update,
        rbac: pod_budget::RBAC,
        handle: pod_budget::handle,
    },
    Handler {
        name: "vpodunavailablebudget.kb.io",
        paths: &["/validate-policy-kruise-io-podunavailablebudget"],
        phase: Phase::Validating,
        target: BUDGETS,
        on_failure: OnFailure::Fail,
        timeout_seconds: 10,
        namespaces: Namespaces::All,
        label: None,
        writes: false,
        gate: None,
        match_conditions: |_| Vec::new(),
        rbac: pod_budget::RBAC,
        handle: pod_unavailable_budget::handle,
    },
    Handler {
        name: "vpodunavailablebudget-update.kb.io",
        paths: &["/validate-policy-kruise-io-podunavailablebudget-update"],
        phase: Phase::Validating,
        target: Target { operation: Operation::Update, ..BUDGETS },
        on_failure: OnFailure::Ignore,
        timeout_seconds: 10,
        namespaces: Namespaces::All,
        label: None,
        writes: false,
        gate: None,
        match_conditions: pod_unavailable_budget::match_conditions,
        rbac: pod_budget::RBAC,
        handle: pod_unavailable_budget::handle,
    },
    // Their node is not known yet: with the gate on, all Pods are looked at.
    Handler {
        name: "mpod-serverless-probes.kb.io",
        paths: &["/mutate-pod-serverless-probes"],
        phase: Phase::Mutating,
        target: PODS,
        on_failure: OnFailure::Ignore,
        timeout_seconds: 3,
        namespaces: Namespaces::NotSystem,
        label: None,
        writes: false,
        gate: Some(gate::SERVERLESS_PROBES),
        match_conditions: |_| Vec::new(),
        rbac: serverless_probes::RBAC,
        handle: serverless_probes::handle,
    },
    IMAGE_JOB,
    Handler {
        name: "mimagepulljob-update.kb.io",
        paths: &["/mutate-apps-kruise-io-imagepulljob-update"],
        target: Target { operation: Operation::Update, ..IMAGE_PULL_JOBS },
        ..IMAGE_JOB_UPDATE
    },
    Handler {
        name: "mimagelistpulljob-v1beta1.kb.io",
        paths: &["/mutate-apps-kruise-io-imagelistpulljob", "/validate-apps-kruise-io-imagelistpulljob"],
        target: IMAGE_LIST_PULL_JOBS,
        ..IMAGE_JOB
    },
    Handler {
        name: "mimagelistpulljob-update.kb.io",
        paths: &["/mutate-apps-kruise-io-imagelistpulljob-update"],
        target: Target { operation: Operation::Update, ..IMAGE_LIST_PULL_JOBS },
        ..IMAGE_JOB_UPDATE
    },
    Handler {
        name: "vpodprobemarker.kb.io",
        paths: &["/validate-apps-kruise-io-podprobemarker"],
        phase: Phase::Validating,
        target: POD_PROBE_MARKERS,
        on_failure: OnFailure::Fail,
        timeout_seconds: 10,
        namespaces: Namespaces::All,
        label: None,
        writes: false,
        // With PodProbeMarkerGate off it stays registered and says why it refuses.
        gate: None,
        match_conditions: |_| Vec::new(),
        rbac: &[],
        handle: pod_probe_marker::handle,
    },
    Handler {
        name: "vpodprobemarker-update.kb.io",
        paths: &["/validate-apps-kruise-io-podprobemarker-update"],
        phase: Phase::Validating,
        target: Target { operation: Operation::Update, ..POD_PROBE_MARKERS },
        on_failure: OnFailure::Ignore,
        timeout_seconds: 10,
        namespaces: Namespaces::All,
        label: None,
        writes: false,
        gate: None,
        match_conditions: spec_changed,
        rbac: &[],
        handle: pod_probe_marker::handle,
    },
];

/// Both kinds of image jobs are admitted alike.
const IMAGE_JOB: Handler = Handler {
    name: "mimagepulljob-v1beta1.kb.io",
    paths: &["/mutate-apps-kruise-io-imagepulljob", "/validate-apps-kruise-io-imagepulljob"],
    phase: Phase::Mutating,
    target: IMAGE_PULL_JOBS,
    on_failure: OnFailure::Fail,
    timeout_seconds: 10,
    namespaces: Namespaces::All,
    label: None,
    writes: false,
    // With its gate off it stays registered and says why it refuses.
    gate: None,
    match_conditions: |_| Vec::new(),
    rbac: &[],
    handle: image_pull_job::handle,
};

const IMAGE_JOB_UPDATE: Handler =
    Handler { on_failure: OnFailure::Ignore, match_conditions: spec_changed, ..IMAGE_JOB };

const PODS: Target =
    Target { operation: Operation::Create, group: "", versions: &["v1"], resource: "pods", level: Level::Namespaced };

const BUDGETS: Target = Target {
    operation: Operation::Create,
    group: policy::GROUP,
    versions: &["v1alpha1"],
    resource: "podunavailablebudgets",
    level: Level::Namespaced,
};

const CLONE_SETS: Target = Target {
    operation: Operation::Create,
    group: apps::GROUP,
    versions: &["v1alpha1"],
    resource: "clonesets",
    level: Level::Namespaced,
};

const IMAGE_PULL_JOBS: Target = Target {
    operation: Operation::Create,
    group: apps::GROUP,
    versions: &["v1alpha1", "v1beta1"],
    resource: "imagepulljobs",
    level: Level::Namespaced,
};

const IMAGE_LIST_PULL_JOBS: Target = Target { resource: "imagelistpulljobs", ..IMAGE_PULL_JOBS };

const POD_PROBE_MARKERS: Target = Target { versions: &["v1alpha1"], resource: "podprobemarkers", ..IMAGE_PULL_JOBS };
