//! What an admission webhook is: the type of the lines of the table [`HANDLERS`](crate::webhook::HANDLERS).

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::{
    api::feature_gates::FeatureGates,
    k8s::rbac::Rule,
    webhook::{
        Context,
        server::review::{Decision, Request},
    },
};

/// A CEL expression that decides in the API server whether a call is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchCondition {
    /// Unique within a webhook.
    pub name: &'static str,
    /// CEL over `object` and `oldObject`.
    pub expression: String,
}

/// `failurePolicy`: what the API server does when the webhook does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Refuse the request. Never together with UPDATE: finalizers must be removable while the webhook is down.
    Fail,
    /// Admit the request.
    Ignore,
}

/// The operation that a webhook is called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The object is created.
    Create,
    /// The object is updated. Only for webhooks that fail open, and not while the object is being deleted.
    Update,
    /// The object is deleted. A webhook that fails closed here sees only objects that somebody has labelled.
    Delete,
}

/// The admission phase in which a webhook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It may change the object. Comes first.
    Mutating,
    /// It allows or refuses the object as it will be stored. Comes last, after admission policies.
    Validating,
}

/// The namespaces whose requests a webhook sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// All, and requests for objects without a namespace.
    All,
    /// All but kube-system and our own, so that a broken webhook cannot stop its own repair.
    NotSystem,
    /// The same, but for those that are labelled to have no Pod without its sidecars.
    Ordinary,
    /// Those of [`NotSystem`](Self::NotSystem) that are labelled to have no Pod without its sidecars.
    SidecarsRequired,
    /// Those that have a PodUnavailableBudget ([`scope`](super::scope)); the list is kept up to date.
    WithBudgets,
    /// Those, and those with a WorkloadSpread that counts Pods.
    WithBudgetsOrCounting,
}

impl Namespaces {
    /// Whether they are a list that is kept up to date.
    pub fn are_listed(self) -> bool {
        matches!(self, Self::WithBudgets | Self::WithBudgetsOrCounting)
    }
}

/// `scope`: whether objects of a resource have a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// They have one.
    Namespaced,
    /// They have none.
    Cluster,
}

/// The requests that a webhook is called for.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The operation.
    pub operation: Operation,
    /// API group; empty for core.
    pub group: &'static str,
    /// Versions.
    pub versions: &'static [&'static str],
    /// Plural resource name, with its subresource as in `pods/eviction`.
    pub resource: &'static str,
    /// Scope of the resource.
    pub level: Level,
}

impl Target {
    /// A namespaced resource that is created.
    pub const fn created(group: &'static str, versions: &'static [&'static str], resource: &'static str) -> Self {
        Self { operation: Operation::Create, group, versions, resource, level: Level::Namespaced }
    }

    /// The same resource, another operation.
    pub const fn on(self, operation: Operation) -> Self {
        Self { operation, ..self }
    }

    /// The same, for a resource of the cluster.
    pub const fn of_cluster(self) -> Self {
        Self { level: Level::Cluster, ..self }
    }

    /// The same, for a subresource of the resource, as in `pods/eviction`.
    pub const fn at(self, resource: &'static str) -> Self {
        Self { resource, ..self }
    }
}

/// Decides over a request.
pub type Handle = fn(Arc<Context>, Request) -> BoxFuture<'static, Decision>;

/// One admission webhook.
#[derive(Clone, Copy)]
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
    /// The label, key and value, that an object must have.
    pub label: Option<(&'static str, &'static str)>,
    /// Whether a call writes something; it does not in a dry run.
    pub writes: bool,
    /// Registered only while this gate is on.
    pub gate: Option<&'static str>,
    /// When the API server has to call.
    pub match_conditions: fn(&FeatureGates) -> Vec<MatchCondition>,
    /// Whether it is called besides wherever there may be Pods for a SidecarSet; the condition is kept up to date.
    pub injects: bool,
    /// Rights that its reads need.
    pub rbac: &'static [Rule],
    /// Rights that its reads need in our own namespace alone.
    pub own_namespace_rbac: &'static [Rule],
    /// Decides.
    pub handle: Handle,
}

/// Names and paths of the webhooks for CREATE and UPDATE of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// Names in the configuration.
    pub create: &'static str,
    /// Likewise.
    pub update: &'static str,
    /// Paths that are served for CREATE; the first one is registered.
    pub create_paths: &'static [&'static str],
    /// The path for UPDATE.
    pub update_path: &'static [&'static str],
}

impl Handler {
    const fn new(
        phase: Phase,
        name: &'static str,
        paths: &'static [&'static str],
        target: Target,
        handle: Handle,
    ) -> Self {
        Self {
            name,
            paths,
            phase,
            target,
            on_failure: OnFailure::Ignore,
            timeout_seconds: 10,
            namespaces: Namespaces::All,
            label: None,
            writes: false,
            gate: None,
            match_conditions: always,
            injects: false,
            rbac: &[],
            own_namespace_rbac: &[],
            handle,
        }
    }

    /// A mutating webhook for all namespaces that fails open after 10 s.
    pub const fn mutating(name: &'static str, paths: &'static [&'static str], target: Target, handle: Handle) -> Self {
        Self::new(Phase::Mutating, name, paths, target, handle)
    }

    /// A validating webhook for all namespaces that fails open after 10 s.
    pub const fn validating(
        name: &'static str,
        paths: &'static [&'static str],
        target: Target,
        handle: Handle,
    ) -> Self {
        Self::new(Phase::Validating, name, paths, target, handle)
    }

    /// The webhooks of one of our kinds: CREATE fails closed. UPDATE fails open and is called when the spec changes, unless
    /// the object is being deleted: whoever removes a finalizer must get through.
    pub const fn pair(phase: Phase, names: Names, target: Target, handle: Handle, rbac: &'static [Rule]) -> [Self; 2] {
        let create = target.on(Operation::Create);
        let update = target.on(Operation::Update);
        [
            Self::new(phase, names.create, names.create_paths, create, handle).fails_closed().rbac(rbac),
            Self::new(phase, names.update, names.update_path, update, handle).when(spec_changed).rbac(rbac),
        ]
    }

    /// Refuses requests while it does not answer.
    pub const fn fails_closed(self) -> Self {
        Self { on_failure: OnFailure::Fail, ..self }
    }

    /// Is called under these conditions.
    pub const fn when(self, match_conditions: fn(&FeatureGates) -> Vec<MatchCondition>) -> Self {
        Self { match_conditions, ..self }
    }

    /// Is called in these namespaces.
    pub const fn within(self, namespaces: Namespaces) -> Self {
        Self { namespaces, ..self }
    }

    /// Is called for objects with this label, key and value.
    pub const fn labelled(self, label: (&'static str, &'static str)) -> Self {
        Self { label: Some(label), ..self }
    }

    /// Is registered while this gate is on.
    pub const fn gated(self, gate: &'static str) -> Self {
        Self { gate: Some(gate), ..self }
    }

    /// The API server waits so many seconds.
    pub const fn timeout(self, timeout_seconds: i32) -> Self {
        Self { timeout_seconds, ..self }
    }

    /// Is called besides wherever there may be Pods for a SidecarSet.
    pub const fn injects(self) -> Self {
        Self { injects: true, ..self }
    }

    /// A call writes something.
    pub const fn writes(self) -> Self {
        Self { writes: true, ..self }
    }

    /// Needs these rights.
    pub const fn rbac(self, rbac: &'static [Rule]) -> Self {
        Self { rbac, ..self }
    }

    /// Needs these rights in our own namespace.
    pub const fn own_namespace_rbac(self, own_namespace_rbac: &'static [Rule]) -> Self {
        Self { own_namespace_rbac, ..self }
    }

    /// The same for the webhooks of one kind.
    pub const fn both_own_namespace_rbac(pair: [Self; 2], rules: &'static [Rule]) -> [Self; 2] {
        let [create, update] = pair;
        [create.own_namespace_rbac(rules), update.own_namespace_rbac(rules)]
    }

    /// Whether its gate is on.
    pub fn is_active(&self, gates: &FeatureGates) -> bool {
        self.gate.is_none_or(|name| gates.enabled(name))
    }
}

fn always(_: &FeatureGates) -> Vec<MatchCondition> {
    Vec::new()
}

/// Updates that change the spec of an object that is not being deleted.
pub fn spec_changed(gates: &FeatureGates) -> Vec<MatchCondition> {
    spec_or_annotations_changed(gates, &[])
}

/// Updates that change the spec, or one of these annotations, of an object that is not being deleted.
pub fn spec_or_annotations_changed(gates: &FeatureGates, keys: &[&str]) -> Vec<MatchCondition> {
    let annotation = |object: &str, key: &str| format!("{object}.metadata.?annotations[?'{key}'].orValue('')");
    let mut changes = vec!["object.spec != oldObject.spec".to_owned()];
    changes.extend(keys.iter().map(|key| format!("{} != {}", annotation("object", key), annotation("oldObject", key))));
    let mut conditions = vec![MatchCondition { name: "spec-changed", expression: changes.join(" || ") }];
    conditions.extend(not_being_deleted(gates));
    conditions
}

/// Creations, and updates of an object that is not being deleted.
pub fn not_being_deleted(_: &FeatureGates) -> Vec<MatchCondition> {
    vec![MatchCondition { name: "not-being-deleted", expression: "!has(object.metadata.deletionTimestamp)".into() }]
}
