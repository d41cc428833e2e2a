//! The webhook role: admission over TLS.
//!
//! Owns the entries of [`CONFIGURATION`] that point at its Service, and the Secret that holds its certificates. Never
//! touches entries of others. Handlers are pure functions over raw JSON with a thin shell for their reads.
//!
//! To add a handler: write its file and one line in [`HANDLERS`]. Routes, registration and RBAC follow from the table.

pub mod certs;
pub mod clone_set;
pub mod configuration;
mod connections;
pub mod container_recreate_request;
pub mod installation;
pub mod metrics;
pub mod pod;
pub mod pod_probe_marker;
pub mod review;
pub mod server;

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::{
    api::{
        apps,
        feature_gates::{FeatureGates, gate},
    },
    k8s::rbac::Rule,
    webhook::review::{Decision, Request},
};

/// The MutatingWebhookConfiguration that manifests install and the webhook role keeps up to date.
pub const CONFIGURATION: &str = "kruise-mutating-webhook-configuration";
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
    /// Plural resource name.
    pub resource: &'static str,
}

/// One admission webhook.
pub struct Handler {
    /// Name in the configuration, as OpenKruise has it.
    pub name: &'static str,
    /// Paths that are served; the first one is registered.
    pub paths: &'static [&'static str],
    /// What it is called for.
    pub target: Target,
    /// What happens when it does not answer.
    pub on_failure: OnFailure,
    /// Seconds that the API server waits.
    pub timeout_seconds: i32,
    /// Keeps kube-system and our own namespace out, so that a broken webhook cannot stop its own repair.
    pub spares_system_namespaces: bool,
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

/// Every admission webhook.
pub const HANDLERS: &[Handler] = &[
    Handler {
        name: "mpod.kb.io",
        paths: &["/mutate-pod"],
        target: Target { operation: Operation::Create, group: "", versions: &["v1"], resource: "pods" },
        on_failure: OnFailure::Ignore,
        timeout_seconds: 3,
        spares_system_namespaces: true,
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
        target: Target {
            operation: Operation::Create,
            group: apps::GROUP,
            versions: &["v1alpha1", "v1beta1"],
            resource: "containerrecreaterequests",
        },
        on_failure: OnFailure::Fail,
        timeout_seconds: 10,
        spares_system_namespaces: false,
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
        target: CLONE_SETS,
        on_failure: OnFailure::Fail,
        timeout_seconds: 10,
        spares_system_namespaces: false,
        gate: None,
        match_conditions: |_| Vec::new(),
        rbac: clone_set::RBAC,
        handle: clone_set::handle,
    },
    Handler {
        name: "mcloneset-update.kb.io",
        paths: &["/mutate-apps-kruise-io-v1alpha1-cloneset-update"],
        target: Target { operation: Operation::Update, ..CLONE_SETS },
        on_failure: OnFailure::Ignore,
        timeout_seconds: 10,
        spares_system_namespaces: false,
        gate: None,
        match_conditions: clone_set::match_conditions,
        rbac: clone_set::RBAC,
        handle: clone_set::handle,
    },
    Handler {
        name: "vpodprobemarker.kb.io",
        paths: &["/validate-apps-kruise-io-podprobemarker"],
        target: POD_PROBE_MARKERS,
        on_failure: OnFailure::Fail,
        timeout_seconds: 10,
        spares_system_namespaces: false,
        // With PodProbeMarkerGate off it stays registered and says why it refuses.
        gate: None,
        match_conditions: |_| Vec::new(),
        rbac: &[],
        handle: pod_probe_marker::handle,
    },
    Handler {
        name: "vpodprobemarker-update.kb.io",
        paths: &["/validate-apps-kruise-io-podprobemarker-update"],
        target: Target { operation: Operation::Update, ..POD_PROBE_MARKERS },
        on_failure: OnFailure::Ignore,
        timeout_seconds: 10,
        spares_system_namespaces: false,
        gate: None,
        match_conditions: pod_probe_marker::match_conditions,
        rbac: &[],
        handle: pod_probe_marker::handle,
    },
];

const POD_PROBE_MARKERS: Target =
    Target { operation: Operation::Create, group: apps::GROUP, versions: &["v1alpha1"], resource: "podprobemarkers" };
const CLONE_SETS: Target =
    Target { operation: Operation::Create, group: apps::GROUP, versions: &["v1alpha1"], resource: "clonesets" };
