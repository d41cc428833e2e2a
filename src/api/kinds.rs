//! Every kind that kruise-rs serves, and every kind of others that it knows: one table, [`KINDS`].
//!
//! From it follow the custom resource definitions ([`CRDS`]), what is read of workloads (`runtime/workload.rs`,
//! `runtime/replicas.rs`), the kinds that budgets and restarts refer to, those that `kubectl kruise` takes, whose owner
//! references admission policies accept, what deletion protection covers, and the kinds of the end-to-end tests. The writes
//! of our accounts are the table `WRITES`; tests hold it to this one.

use super::{apps, group_of, kruise, policy};

/// Whether objects of a kind have a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// They have one.
    Namespaced,
    /// They have none.
    Cluster,
}

/// One of our ServiceAccounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// Of the manager.
    Manager,
    /// Of the webhook.
    Webhook,
    /// Of the daemon.
    Daemon,
}

/// What deletion protection does for objects with its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Nothing.
    None,
    /// Level Always: they are not deleted. Level Cascading is judged by the webhook, or does nothing.
    Always,
    /// Levels Always and Cascading: they are not deleted while they have replicas.
    Replicas,
}

/// Whose Pods are those of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pods {
    /// Those that it controls.
    Controlled,
    /// Those that its ReplicaSets control.
    OfReplicaSets,
    /// Those that its selector matches.
    Selected,
}

/// A kind that has Pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// JSON pointer to the number of Pods that it wants.
    pub replicas: &'static str,
    /// Which Pods are its own.
    pub pods: Pods,
    /// Whether its Pods have ordinals.
    pub ordinals: bool,
    /// Whether it is a kind of ours that owns Pods, ControllerRevisions and claims.
    pub is_ours: bool,
}

impl Workload {
    /// Of others, with its number of Pods at a pointer.
    const fn at(replicas: &'static str) -> Self {
        Self { replicas, pods: Pods::Controlled, ordinals: false, is_ours: false }
    }
    const fn with_ordinals(self) -> Self {
        Self { ordinals: true, ..self }
    }
    const fn by_replica_sets(self) -> Self {
        Self { pods: Pods::OfReplicaSets, ..self }
    }
    const fn by_selector(self) -> Self {
        Self { pods: Pods::Selected, ..self }
    }
    const fn ours(self) -> Self {
        Self { is_ours: true, ..self }
    }
}

/// What `kubectl kruise` does with objects of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Nothing by name.
    None,
    /// Restarts the Pod, the Pods of the workload, or the containers that the SidecarSet put into Pods.
    Restart,
    /// Shows and cancels the request for restarts.
    Request,
}

/// A custom resource definition that we install.
#[derive(Clone, Copy)]
pub struct Crd {
    /// Name of the definition object, `<plural>.<group>`.
    pub name: &'static str,
    /// The versions that it has. The first one is stored.
    pub versions: &'static [&'static str],
}

/// One line of the table.
#[derive(Clone, Copy)]
pub struct Kind {
    /// API group; empty for core.
    pub group: &'static str,
    /// As in an object.
    pub kind: &'static str,
    /// As in a path.
    pub plural: &'static str,
    /// Whether objects have a namespace.
    pub scope: Scope,
    /// Versions that are served. The first one is that in which objects are read, and of our kinds the stored one.
    pub versions: &'static [&'static str],
    /// The definition, of kinds that we install.
    pub definition: Option<Crd>,
    /// Who writes the status, of kinds that we install.
    pub status_writers: &'static [Account],
    /// What is known of its Pods.
    pub workload: Option<Workload>,
    /// What the label of deletion protection does.
    pub protection: Protection,
    /// What `kubectl kruise` does with it.
    pub command: Command,
    /// Whether `kubectl kruise rollout` and `set image` take it.
    pub rolls_out: bool,
    /// Whether it is of ours and owns Pods that run to their end: it has no replicas, revisions or claims.
    pub runs_pods: bool,
    /// Short names, as kubectl takes them.
    pub short_names: &'static [&'static str],
}

impl Kind {
    const fn new(
        group: &'static str,
        kind: &'static str,
        plural: &'static str,
        versions: &'static [&'static str],
    ) -> Self {
        Self {
            group,
            kind,
            plural,
            scope: Scope::Namespaced,
            versions,
            definition: None,
            status_writers: &[],
            workload: None,
            protection: Protection::None,
            command: Command::None,
            rolls_out: false,
            runs_pods: false,
            short_names: &[],
        }
    }
    const fn of_cluster(self) -> Self {
        Self { scope: Scope::Cluster, ..self }
    }
    const fn installed(self, name: &'static str, status_writers: &'static [Account]) -> Self {
        Self { definition: Some(Crd { name, versions: self.versions }), status_writers, ..self }
    }
    const fn workload(self, workload: Workload) -> Self {
        Self { workload: Some(workload), rolls_out: workload.is_ours, ..self }
    }
    const fn protected(self, protection: Protection) -> Self {
        Self { protection, ..self }
    }
    const fn command(self, command: Command, short_names: &'static [&'static str]) -> Self {
        Self { command, short_names, ..self }
    }
    const fn runs_pods(self) -> Self {
        Self { runs_pods: true, ..self }
    }
    const fn short_names(self, short_names: &'static [&'static str]) -> Self {
        Self { short_names, ..self }
    }
    const fn rolls_out(self) -> Self {
        Self { rolls_out: true, ..self }
    }

    /// The version in which objects are read.
    pub const fn version(&self) -> &'static str {
        self.versions[0]
    }

    /// Group and version, as in an object.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version().to_owned() } else { format!("{}/{}", self.group, self.version()) }
    }

    /// The kind of a group, whatever the version.
    pub fn of(group: &str, kind: &str) -> Option<&'static Self> {
        KINDS.iter().find(|known| known.group == group && known.kind == kind)
    }

    /// The kind that an owner reference names, if it is one of ours that owns Pods. Its version says nothing.
    pub fn of_owner(api_version: &str, kind: &str) -> Option<&'static Self> {
        Self::of(group_of(api_version), kind).filter(|kind| kind.owns_pods())
    }

    /// Whether it is of ours and owns Pods.
    pub fn owns_pods(&self) -> bool {
        self.workload.is_some_and(|workload| workload.is_ours)
    }

    /// Whether a controller of ours makes its Pods.
    pub fn makes_pods(&self) -> bool {
        self.owns_pods() && self.status_writers.contains(&Account::Manager)
    }

    /// The kind in lower case.
    fn singular(&self) -> String {
        self.kind.to_ascii_lowercase()
    }

    /// Whether a user means it by a name such as `deployment`, `deploy`, `deployments` or `deployment.apps`. Of two kinds
    /// with one name, the first in the table is meant.
    pub fn is_called(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        match name.split_once('.') {
            Some((plain, group)) => group == self.group && (plain == self.plural || plain == self.singular()),
            None => {
                self.short_names.contains(&name.as_str())
                    || (name == self.plural || name == self.singular()) && self.is_first_of_its_name()
            }
        }
    }

    /// What to write for it: its kind in lower case, with the group where another kind has the same name.
    pub fn name(&self) -> String {
        let singular = self.singular();
        if self.is_first_of_its_name() { singular } else { format!("{singular}.{}", self.group) }
    }

    fn is_first_of_its_name(&self) -> bool {
        KINDS.iter().find(|known| known.kind == self.kind).is_some_and(|first| first.group == self.group)
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        (self.group, self.kind) == (other.group, other.kind)
    }
}

impl Eq for Kind {}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.plural, self.group)
    }
}

const SPEC: Workload = Workload::at("/spec/replicas");
const SCHEDULED: Workload = Workload::at("/status/desiredNumberScheduled");
const BY_MANAGER: &[Account] = &[Account::Manager];
const BY_DAEMON: &[Account] = &[Account::Daemon];
const BY_MANAGER_AND_DAEMON: &[Account] = &[Account::Manager, Account::Daemon];
const BY_MANAGER_AND_WEBHOOK: &[Account] = &[Account::Manager, Account::Webhook];

/// The table. Definitions are installed, and types listed, in its order.
pub const KINDS: &[Kind] = &[
    // Of Kubernetes.
    Kind::new("", "Pod", "pods", &["v1"]).command(Command::Restart, &["po"]),
    Kind::new("", "Namespace", "namespaces", &["v1"]).of_cluster().protected(Protection::Always),
    Kind::new("", "Service", "services", &["v1"]).protected(Protection::Always),
    Kind::new("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions", &["v1"])
        .of_cluster()
        .protected(Protection::Always),
    Kind::new("apps", "Deployment", "deployments", &["v1"])
        .workload(SPEC.by_replica_sets())
        .protected(Protection::Replicas)
        .command(Command::Restart, &["deploy"]),
    Kind::new("apps", "ReplicaSet", "replicasets", &["v1"])
        .workload(SPEC)
        .protected(Protection::Replicas)
        .command(Command::Restart, &["rs"]),
    Kind::new("apps", "StatefulSet", "statefulsets", &["v1"])
        .workload(SPEC.with_ordinals())
        .protected(Protection::Replicas)
        .command(Command::Restart, &["sts"]),
    Kind::new("apps", "DaemonSet", "daemonsets", &["v1"]).workload(SCHEDULED).command(Command::Restart, &["ds"]),
    Kind::new("networking.k8s.io", "Ingress", "ingresses", &["v1"]).protected(Protection::Always),
    // Ours.
    Kind::new(apps::GROUP, "ContainerRecreateRequest", "containerrecreaterequests", &["v1alpha1", "v1beta1"])
        .installed("containerrecreaterequests.apps.kruise.io", BY_MANAGER_AND_DAEMON)
        .command(Command::Request, &["crr"]),
    Kind::new(kruise::GROUP, "WorkloadRestart", "workloadrestarts", &["v1alpha1"])
        .installed("workloadrestarts.kruise.rs", BY_MANAGER)
        .command(Command::Request, &["wr"]),
    Kind::new(apps::GROUP, "CloneSet", "clonesets", &["v1alpha1"])
        .installed("clonesets.apps.kruise.io", BY_MANAGER)
        .workload(SPEC.ours())
        .protected(Protection::Replicas)
        .command(Command::Restart, &["clone"]),
    Kind::new(apps::GROUP, "StatefulSet", "statefulsets", &["v1beta1", "v1alpha1"])
        .installed("statefulsets.apps.kruise.io", BY_MANAGER)
        .workload(SPEC.with_ordinals().ours())
        .protected(Protection::Replicas)
        .command(Command::Restart, &["asts"]),
    Kind::new(apps::GROUP, "DaemonSet", "daemonsets", &["v1beta1", "v1alpha1"])
        .installed("daemonsets.apps.kruise.io", BY_MANAGER)
        .workload(SCHEDULED.ours())
        .protected(Protection::Replicas)
        .command(Command::Restart, &["ads", "daemon"]),
    Kind::new(apps::GROUP, "SidecarSet", "sidecarsets", &["v1beta1", "v1alpha1"])
        .of_cluster()
        .installed("sidecarsets.apps.kruise.io", BY_MANAGER)
        .command(Command::Restart, &["scs"])
        .rolls_out(),
    Kind::new(apps::GROUP, "BroadcastJob", "broadcastjobs", &["v1beta1", "v1alpha1"])
        .installed("broadcastjobs.apps.kruise.io", BY_MANAGER)
        .runs_pods()
        .protected(Protection::Always)
        .short_names(&["bcj"]),
    Kind::new(policy::GROUP, "PodUnavailableBudget", "podunavailablebudgets", &["v1alpha1"])
        .installed("podunavailablebudgets.policy.kruise.io", BY_MANAGER_AND_WEBHOOK),
    Kind::new(apps::GROUP, "PodProbeMarker", "podprobemarkers", &["v1alpha1"])
        .installed("podprobemarkers.apps.kruise.io", BY_MANAGER),
    Kind::new(apps::GROUP, "NodePodProbe", "nodepodprobes", &["v1alpha1"])
        .of_cluster()
        .installed("nodepodprobes.apps.kruise.io", BY_DAEMON),
    Kind::new(apps::GROUP, "NodeImage", "nodeimages", &["v1beta1", "v1alpha1"])
        .of_cluster()
        .installed("nodeimages.apps.kruise.io", BY_MANAGER_AND_DAEMON),
    Kind::new(apps::GROUP, "ImagePullJob", "imagepulljobs", &["v1beta1", "v1alpha1"])
        .installed("imagepulljobs.apps.kruise.io", BY_MANAGER),
    Kind::new(apps::GROUP, "ImageListPullJob", "imagelistpulljobs", &["v1beta1", "v1alpha1"])
        .installed("imagelistpulljobs.apps.kruise.io", BY_MANAGER),
    Kind::new(apps::GROUP, "PersistentPodState", "persistentpodstates", &["v1alpha1"])
        .installed("persistentpodstates.apps.kruise.io", BY_MANAGER)
        .protected(Protection::Always),
    // The containers that it put into Pods stay there without it: nothing goes with it that could be counted.
    Kind::new(apps::GROUP, "EphemeralJob", "ephemeraljobs", &["v1alpha1"])
        .installed("ephemeraljobs.apps.kruise.io", BY_MANAGER)
        .protected(Protection::Always),
    Kind::new(apps::GROUP, "AdvancedCronJob", "advancedcronjobs", &["v1beta1", "v1alpha1"])
        .installed("advancedcronjobs.apps.kruise.io", BY_MANAGER)
        .protected(Protection::Always),
    Kind::new(apps::GROUP, "ResourceDistribution", "resourcedistributions", &["v1alpha1"])
        .of_cluster()
        .installed("resourcedistributions.apps.kruise.io", BY_MANAGER)
        .protected(Protection::Always)
        .short_names(&["distributor"]),
    Kind::new(apps::GROUP, "UnitedDeployment", "uniteddeployments", &["v1alpha1"])
        .installed("uniteddeployments.apps.kruise.io", BY_MANAGER)
        .workload(SPEC.by_selector())
        .protected(Protection::Replicas),
    // Without it no Pod goes, but the next ones go anywhere.
    Kind::new(apps::GROUP, "WorkloadSpread", "workloadspreads", &["v1alpha1"])
        .installed("workloadspreads.apps.kruise.io", BY_MANAGER_AND_WEBHOOK)
        .protected(Protection::Always),
];

/// Every custom resource definition, in the order of installation.
pub const CRDS: &[Crd] = &INSTALLED;

const INSTALLED: [Crd; installed()] = {
    let mut crds = [Crd { name: "", versions: &[] }; installed()];
    let (mut at, mut next) = (0, 0);
    while at < KINDS.len() {
        if let Some(crd) = KINDS[at].definition {
            crds[next] = crd;
            next += 1;
        }
        at += 1;
    }
    crds
};

/// Their names.
pub const CRD_NAMES: [&str; CRDS.len()] = {
    let mut names = [""; CRDS.len()];
    let mut at = 0;
    while at < CRDS.len() {
        names[at] = CRDS[at].name;
        at += 1;
    }
    names
};

/// The resources of the workloads of the group `apps`.
pub const BUILT_IN_WORKLOADS: [&str; workloads_of("apps")] = workload_plurals("apps");
/// The resources of the workloads of the group `apps.kruise.io`.
pub const KRUISE_WORKLOADS: [&str; workloads_of(apps::GROUP)] = workload_plurals(apps::GROUP);

const fn installed() -> usize {
    let (mut at, mut count) = (0, 0);
    while at < KINDS.len() {
        count += KINDS[at].definition.is_some() as usize;
        at += 1;
    }
    count
}

const fn workloads_of(group: &str) -> usize {
    let (mut at, mut count) = (0, 0);
    while at < KINDS.len() {
        count += is_workload_of(&KINDS[at], group) as usize;
        at += 1;
    }
    count
}

const fn workload_plurals<const N: usize>(group: &str) -> [&'static str; N] {
    let mut plurals = [""; N];
    let (mut at, mut next) = (0, 0);
    while at < KINDS.len() {
        if is_workload_of(&KINDS[at], group) {
            plurals[next] = KINDS[at].plural;
            next += 1;
        }
        at += 1;
    }
    plurals
}

const fn is_workload_of(kind: &Kind, group: &str) -> bool {
    let (a, b) = (kind.group.as_bytes(), group.as_bytes());
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    kind.workload.is_some() && a.len() == b.len() && at == a.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_kind_is_there_twice() {
        for (i, kind) in KINDS.iter().enumerate() {
            assert!(
                !KINDS[..i]
                    .iter()
                    .any(|other| other == kind || (other.group, other.plural) == (kind.group, kind.plural))
            );
        }
    }

    #[test]
    fn lines_say_what_the_definitions_say() {
        assert_eq!(CRDS.len(), 19);
        for kind in KINDS {
            let Some(crd) = kind.definition else { continue };
            assert_eq!(crd.name, format!("{}.{}", kind.plural, kind.group));
            let rendered = crd.render();
            assert_eq!(rendered.metadata.name.as_deref(), Some(crd.name));
            let spec = rendered.spec;
            assert_eq!((&*spec.group, &*spec.names.kind, &*spec.names.plural), (kind.group, kind.kind, kind.plural));
            assert_eq!(spec.scope == "Namespaced", kind.scope == Scope::Namespaced, "{kind:?}");
            let served: Vec<&str> = spec.versions.iter().filter(|v| v.served).map(|v| v.name.as_str()).collect();
            assert_eq!(served, kind.versions, "{kind:?}");
            let stored: Vec<&str> = spec.versions.iter().filter(|v| v.storage).map(|v| v.name.as_str()).collect();
            assert_eq!(stored, [kind.version()], "{kind:?}");
            let short_names = spec.names.short_names.unwrap_or_default();
            assert!(kind.short_names.iter().all(|name| short_names.iter().any(|known| known == name)), "{kind:?}");
            let has_scale = spec.versions.iter().all(|v| v.subresources.as_ref().is_some_and(|s| s.scale.is_some()));
            // A scale is written: its number has to be in the spec.
            let written = kind.workload.map(|workload| workload.replicas).filter(|at| at.starts_with("/spec/"));
            assert_eq!(has_scale, written.is_some(), "{kind:?}");
            for version in spec.versions {
                let scale = version.subresources.and_then(|s| s.scale).map(|scale| scale.spec_replicas_path);
                let pointer = written.map(|replicas| replicas.replace('/', "."));
                assert_eq!(scale, pointer, "{kind:?}");
            }
        }
    }

    /// Of the kinds that users write: NodeImage and NodePodProbe are what the manager asks of a daemon, one for each node.
    #[test]
    fn decision_32_every_kind_shows_tools_how_far_it_is() {
        for kind in KINDS.iter().filter(|kind| !["NodeImage", "NodePodProbe"].contains(&kind.kind)) {
            let Some(crd) = kind.definition else { continue };
            for version in crd.render().spec.versions {
                let at = format!("{kind:?} {}", version.name);
                let schema = version.schema.and_then(|schema| schema.open_api_v3_schema).unwrap();
                let schema = serde_json::to_value(schema).unwrap();
                let status = &schema["properties"]["status"]["properties"];
                assert_eq!(status["observedGeneration"]["type"], "integer", "{at}");
                let condition = &status["conditions"]["items"]["properties"];
                for field in ["type", "status", "reason", "message", "lastTransitionTime"] {
                    assert_eq!(condition[field]["type"], "string", "{at}: {field}");
                }
            }
        }
    }

    /// Tools read a missing number as "not yet": every count is written, also as 0.
    #[test]
    fn decision_32_counts_are_written_as_zeros() {
        // Of some kinds a missing one is known from 0: controllers write them with the first status, as their tests show.
        const OF_CONTROLLERS: [&str; 2] = ["observedGeneration", "collisionCount"];
        for kind in KINDS {
            let Some(crd) = kind.definition else { continue };
            let version = crd.render().spec.versions.remove(0);
            let schema = version.schema.and_then(|schema| schema.open_api_v3_schema).unwrap();
            let schema = serde_json::to_value(schema).unwrap();
            let fields = schema["properties"]["status"]["properties"].as_object().into_iter().flatten();
            let counts = fields.filter(|(_, field)| field["type"] == "integer").map(|(name, _)| name.as_str());
            for count in counts.filter(|name| !OF_CONTROLLERS.contains(name)) {
                let zeros = empty_status(kind.kind).unwrap_or_else(|| panic!("{kind:?}: no line for it"));
                assert_eq!(zeros[count], 0, "{kind:?}: {count}");
            }
        }
        let tag = serde_json::to_value(crate::apps::node_image::ImageTagStatus::default()).unwrap();
        assert_eq!(tag["progress"], 0, "in the list of a NodeImage");
    }

    /// A status in which nothing was counted yet, as it is written.
    fn empty_status(kind: &str) -> Option<serde_json::Value> {
        use crate::{
            apps::{
                broadcast_job, clone_set, daemon_set, ephemeral_job, image_list_pull_job, image_pull_job, node_image,
                pod_probe_marker, resource_distribution, sidecar_set, stateful_set, united_deployment,
            },
            kruise::workload_restart,
            policy::pod_unavailable_budget,
        };
        fn empty<T: Default + serde::Serialize>() -> Option<serde_json::Value> {
            serde_json::to_value(T::default()).ok()
        }
        match kind {
            "BroadcastJob" => empty::<broadcast_job::BroadcastJobStatus>(),
            "CloneSet" => empty::<clone_set::CloneSetStatus>(),
            "DaemonSet" => empty::<daemon_set::DaemonSetStatus>(),
            "EphemeralJob" => empty::<ephemeral_job::EphemeralJobStatus>(),
            "ImageListPullJob" => empty::<image_list_pull_job::ImageListPullJobStatus>(),
            "ImagePullJob" => empty::<image_pull_job::ImagePullJobStatus>(),
            "NodeImage" => empty::<node_image::NodeImageStatus>(),
            "PodProbeMarker" => empty::<pod_probe_marker::PodProbeMarkerStatus>(),
            "PodUnavailableBudget" => empty::<pod_unavailable_budget::PodUnavailableBudgetStatus>(),
            "ResourceDistribution" => empty::<resource_distribution::ResourceDistributionStatus>(),
            "SidecarSet" => empty::<sidecar_set::SidecarSetStatus>(),
            "StatefulSet" => empty::<stateful_set::StatefulSetStatus>(),
            "UnitedDeployment" => empty::<united_deployment::UnitedDeploymentStatus>(),
            "WorkloadRestart" => empty::<workload_restart::WorkloadRestartStatus>(),
            _ => None,
        }
    }

    /// The API server takes no definition in which one of them is neither required nor has a default.
    #[test]
    fn keys_of_list_maps_are_required() {
        fn judge(at: &str, schema: &serde_json::Value, count: &mut usize) {
            for key in schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten() {
                let items = &schema["items"];
                let is_required = items["required"].as_array().is_some_and(|required| required.contains(key));
                let key = key.as_str().unwrap();
                assert!(is_required || !items["properties"][key]["default"].is_null(), "{at}: {key}");
                *count += 1;
            }
            let below = ["items", "additionalProperties"].map(|member| &schema[member]);
            below.into_iter().filter(|schema| schema.is_object()).for_each(|schema| judge(at, schema, count));
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                judge(&format!("{at}.{name}"), property, count);
            }
        }
        let mut count = 0;
        for crd in CRDS {
            for version in crd.render().spec.versions {
                judge(crd.name, &serde_json::json!(version.schema.unwrap().open_api_v3_schema), &mut count);
            }
        }
        assert!(count >= CRDS.len(), "{count}");
    }

    #[test]
    fn kinds_are_called_as_kubectl_calls_them() {
        let called = |name: &str| KINDS.iter().find(|kind| kind.is_called(name)).map(Kind::name);
        for (name, want) in [
            ("po", Some("pod")),
            ("Deployments", Some("deployment")),
            ("deployment.apps", Some("deployment")),
            ("statefulset", Some("statefulset")),
            ("statefulsets.apps.kruise.io", Some("statefulset.apps.kruise.io")),
            ("asts", Some("statefulset.apps.kruise.io")),
            ("clone", Some("cloneset")),
            ("cloneset.apps.kruise.io", Some("cloneset")),
            ("wr", Some("workloadrestart")),
            ("scs", Some("sidecarset")),
            ("sidecarsets.apps.kruise.io", Some("sidecarset")),
            ("cloneset.apps", None),
            ("set", None),
        ] {
            assert_eq!(called(name).as_deref(), want, "{name}");
        }
    }

    #[test]
    fn owners_are_matched_by_group_and_kind_in_any_version() {
        assert!(Kind::of_owner("apps.kruise.io/v1alpha1", "CloneSet").is_some());
        assert!(Kind::of_owner("apps.kruise.io/v1beta1", "CloneSet").is_some_and(Kind::makes_pods));
        assert!(Kind::of_owner("apps.kruise.io/v1beta1", "StatefulSet").is_some());
        assert!(Kind::of_owner("apps.kruise.io/v1alpha1", "DaemonSet").is_some_and(Kind::makes_pods));
        for (api_version, kind) in
            [("apps/v1", "CloneSet"), ("apps/v1", "DaemonSet"), ("apps.kruise.io/v1alpha1", "UnitedDeployment")]
        {
            assert_eq!(Kind::of_owner(api_version, kind), None, "{api_version} {kind}");
        }
    }

    #[test]
    fn resources_of_workloads_are_those_of_the_table() {
        assert_eq!(BUILT_IN_WORKLOADS, ["deployments", "replicasets", "statefulsets", "daemonsets"]);
        assert_eq!(KRUISE_WORKLOADS, ["clonesets", "statefulsets", "daemonsets", "uniteddeployments"]);
    }
}
