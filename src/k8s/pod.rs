//! A Pod as our rules see it.
//!
//! Stores keep thousands of Pods, so a [`PodView`] holds only what rules read, decoded from the API server's answer by way
//! of a `WirePod` that lives no longer than the call. It is never written back: a write patches exactly the fields it means.

use std::{
    num::NonZeroU32,
    sync::{Arc, LazyLock},
};

use compact_str::CompactString;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ObjectReference, Pod},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::Resource;
use serde::{Deserialize, Deserializer};

mod labels;
mod notes;
mod protobuf;
mod variables;
mod wire;

pub use labels::Labels;
pub use notes::{OverrideNotes, SpreadNote};

use super::{
    owner,
    shared::{Text, Weigh},
};
use crate::api::{apps, group_of};

/// The compact form of a Pod: some 300 bytes, and what is behind them. What all Pods of a workload have in common is held
/// once, and what few Pods have is in [`Rare`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodView {
    name: Arc<str>,
    namespace: Text,
    uid: Box<str>,
    /// In place like the address below: of most Pods there is room for it where a pointer would be.
    resource_version: CompactString,
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// `metadata.labels`: read by selectors.
    pub labels: Labels,
    /// The owner with `controller: true`.
    pub controller: Option<Arc<Owner>>,
    rare: Option<Box<Rare>>,
    /// The PodUnavailableBudget that `kruise.io/related-pub` names.
    pub related_pub: Option<Text>,
    /// Node it is bound to, or empty.
    pub node_name: Text,
    /// What rules read of its spec, shared between Pods that have the same.
    pub spec: Arc<SpecView>,
    /// Pending, Running, Succeeded, Failed or Unknown.
    pub phase: Text,
    /// When the condition Ready last changed.
    pub ready_since: Option<Timestamp>,
    /// `status.podIP`, or empty.
    pub pod_ip: CompactString,
    /// `status.conditions`.
    pub conditions: Arc<[PodCondition]>,
    /// `status.containerStatuses` and those of native sidecars, in no particular order.
    pub container_statuses: Box<[ContainerStatusView]>,
    /// `controller.kubernetes.io/pod-deletion-cost`; what is no number counts as none.
    pub deletion_cost: i32,
    /// When its last update in place began, in seconds: four bytes, for which there is room beside the others. Many Pods
    /// have been updated once, and their annotation is long.
    updated_in_place: Option<NonZeroU32>,
    /// Whether the launch priorities of its containers have done their work.
    pub launch_completed: bool,
    /// Whether `pub.kruise.io/no-protect` takes it out of the protection of budgets.
    pub no_protect: bool,
    /// Whether kubelet has not seen the last change of the spec; kubelets before 1.34 do not say by default.
    pub kubelet_is_behind: bool,
    /// Whether this is the mirror of a static Pod.
    pub is_mirror: bool,
    /// Whether a SidecarSet was injected into it.
    pub has_sidecar_set: bool,
    /// Whether `control-plane=daemon` marks it as one of our daemons.
    pub is_daemon: bool,
}

/// What few Pods have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rare {
    /// `metadata.deletionTimestamp`.
    pub deleted: Option<Timestamp>,
    /// `metadata.finalizers`.
    pub finalizers: Box<[Text]>,
    /// `kubernetes.io/config.hash` of a mirror Pod: the UID under which the runtime knows a static Pod.
    pub config_hash: Option<Box<str>>,
    /// The annotations of an update in place; None while none is under way.
    pub in_place: Option<Box<InPlaceNotes>>,
    /// The revision for which our controller marked it to be deleted, if it did.
    pub specified_delete_for: Option<Box<str>>,
    /// The override of its StatefulSet that it was made or updated with, if there was one.
    pub ordinal_override: Option<Box<OverrideNotes>>,
    /// The annotation that remembers which spellings of images were used for restarts, if it is there.
    pub image_spellings: Option<Box<str>>,
    /// Names of the PodProbeMarkers whose marks it may carry, with commas between them.
    pub probe_marked_by: Option<Text>,
    /// What SidecarSets have noted on it, if one was injected.
    pub sidecar_sets: Option<Box<SidecarNotes>>,
    /// How often init containers have been restarted, native sidecars aside.
    pub init_restarts: i32,
    /// While it is bound to no node: the one that its affinity names, as that of a DaemonSet's Pod does.
    pub aims_at: Option<Text>,
    /// Its ephemeral containers.
    pub ephemeral: Box<[EphemeralView]>,
    /// The WorkloadSpread and the subset that it belongs to, if one is noted.
    pub spread: Option<Box<SpreadNote>>,
}

/// What rules read of `spec`, but for the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SpecView {
    /// Always, OnFailure or Never.
    pub restart_policy: Text,
    /// `spec.terminationGracePeriodSeconds`.
    pub termination_grace_period_seconds: Option<i64>,
    /// Condition types of `spec.readinessGates`.
    pub readiness_gates: Box<[String]>,
    /// Volumes whose claim is named `<volume>-<Pod>`, as those of a StatefulSet's claim templates are; sorted.
    pub own_claims: Box<[String]>,
    /// Regular containers.
    pub containers: Box<[ContainerView]>,
    /// Init containers with restartPolicy Always: native sidecars.
    pub sidecars: Box<[ContainerView]>,
}

impl Weigh for SpecView {
    fn weight(&self) -> usize {
        let containers = self.containers.iter().chain(&self.sidecars).map(ContainerView::weight).sum::<usize>();
        containers + self.readiness_gates.weight() + self.own_claims.weight()
    }
}

impl AsRef<SpecView> for SpecView {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// A Pod as the API server answers it: kube asks an object for its metadata, which a [`PodView`] does not hold in that form.
#[derive(Clone, Debug, Default, PartialEq, Resource)]
#[resource(inherit = "Pod")]
pub struct PodObject {
    /// Name, namespace, UID, resourceVersion, creation and deletion time; nothing else is kept.
    pub metadata: ObjectMeta,
    /// The Pod.
    pub view: PodView,
}

impl From<PodObject> for PodView {
    fn from(object: PodObject) -> Self {
        object.view
    }
}

impl<'de> Deserialize<'de> for PodObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let view = PodView::deserialize(deserializer)?;
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let metadata = ObjectMeta {
            name: text(view.name()),
            namespace: text(view.namespace()),
            uid: text(view.uid()),
            resource_version: view.resource_version().map(str::to_owned),
            creation_timestamp: view.created.map(Time),
            deletion_timestamp: view.rare().deleted.map(Time),
            ..ObjectMeta::default()
        };
        Ok(Self { metadata, view })
    }
}

/// The controlling owner of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Owner {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

impl Owner {
    /// Whether it is of this group and kind, in whatever version.
    pub fn is(&self, group: &str, kind: &str) -> bool {
        owner::is_kind((&self.api_version, &self.kind), (group, kind))
    }
}

impl Weigh for Owner {
    fn weight(&self) -> usize {
        [&self.api_version, &self.kind, &self.name, &self.uid].into_iter().map(Weigh::weight).sum()
    }
}

impl AsRef<Owner> for Owner {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// What rules read of a container's definition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerView {
    /// Name.
    pub name: String,
    /// `image`, spelled as in the definition.
    #[serde(deserialize_with = "wire::interned")]
    pub image: Arc<str>,
    /// The container's own restart policy, if it has one.
    pub restart_policy: Option<String>,
    /// Its restart rules, which come before the policy.
    pub restart_policy_rules: Option<Box<[RestartRule]>>,
    /// Whether it has a preStop hook.
    #[serde(rename = "lifecycle", deserialize_with = "wire::has_pre_stop")]
    pub has_pre_stop: bool,
    /// What its environment variables say.
    #[serde(deserialize_with = "variables::environment")]
    pub env: EnvironmentView,
}

impl Weigh for ContainerView {
    fn weight(&self) -> usize {
        let rules = self.restart_policy_rules.iter().flatten();
        let rules = rules
            .map(|rule| size_of::<RestartRule>() + rule.exit_codes.iter().map(|c| 4 * c.values.len()).sum::<usize>());
        let image = self.env.ends_with_job.iter().filter_map(|ends| ends.image.as_deref()).map(str::len);
        size_of::<Self>() + self.name.len() + self.image.len() + rules.chain(image).sum::<usize>()
    }
}

/// What rules read of a container's environment variables. Of several with one name the last one counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EnvironmentView {
    /// Its launch priority, if it waits at a barrier: the key of the barrier's ConfigMap says it.
    pub launch_priority: Option<i32>,
    /// How it is ended when the main containers of its Pod have ended; None: it is a main container itself.
    pub ends_with_job: Option<Box<EndsWithJob>>,
}

/// A sidecar that the sidecar terminator ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EndsWithJob {
    /// `KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT` is `true`.
    pub is_switched_on: bool,
    /// `KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT_WITH_IMAGE`: an image that exits at once, for virtual nodes.
    pub image: Option<Box<str>>,
    /// `KRUISE_TERMINATE_SIDECAR_IGNORE_EXIT_CODE` is `true`.
    pub ignores_exit_code: bool,
}

/// An ephemeral container of a Pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EphemeralView {
    /// Name.
    pub name: Text,
    /// `KRUISE_EJOB_ID`: UID of the EphemeralJob that added it, if one did.
    pub job: Option<Box<str>>,
    /// Its state, as far as kubelet has reported one.
    pub state: ContainerState,
}

/// What happens after exits with certain codes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RestartRule {
    /// Restart, or RestartAllContainers.
    pub action: String,
    /// The exit codes; without them the rule is for none.
    pub exit_codes: Option<ExitCodes>,
}

/// A set of exit codes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct ExitCodes {
    /// In or NotIn.
    pub operator: String,
    /// The codes.
    pub values: Vec<i32>,
}

impl RestartRule {
    /// Whether the rule is for this exit code.
    pub fn matches(&self, exit_code: i32) -> bool {
        self.exit_codes.as_ref().is_some_and(|codes| match codes.operator.as_str() {
            "In" => codes.values.contains(&exit_code),
            "NotIn" => !codes.values.contains(&exit_code),
            _ => false,
        })
    }
}

/// Annotations of an update in place, kept until it is done: they are long, and many Pods carry those of old updates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InPlaceNotes {
    /// `apps.kruise.io/inplace-update-state`.
    pub state: Option<Box<str>>,
    /// `apps.kruise.io/inplace-update-grace`.
    pub grace: Option<Box<str>>,
    /// `apps.kruise.io/runtime-containers-meta`.
    pub runtime_meta: Option<Box<str>>,
    /// `status.containerStatuses[*].image`, by container.
    pub running_images: Box<[(Text, Text)]>,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// `status.observedGeneration`; kubelets before 1.34 do not write it by default.
    pub observed_generation: Option<i64>,
}

/// Annotations that SidecarSets write, and what their containers run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SidecarNotes {
    /// Keys and values.
    pub annotations: Box<[(&'static str, Box<str>)]>,
    /// An annotation was too long to be kept.
    pub is_cut: bool,
    /// `status.containerStatuses[*].image`, by container, with those of native sidecars.
    pub running_images: Box<[(Text, Text)]>,
}

impl InPlaceNotes {
    /// The longest of each of these annotations, in bytes. What is longer cannot be read: it is kept as an empty text, and
    /// nothing longer is written.
    pub const LONGEST: usize = 64 << 10;
}

/// The longest annotations of our own that are kept of every Pod, in bytes. Nothing that we write is so long.
const LONGEST_NOTE: usize = 16 << 10;

/// The condition of a Pod that is about to be deleted or evicted; its reason says by whom.
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
/// The condition that the scheduler writes.
pub const POD_SCHEDULED: &str = "PodScheduled";
/// The reason of [`DISRUPTION_TARGET`] when somebody used the eviction API, as `kubectl drain` does.
pub const EVICTED: &str = "EvictionByEvictionAPI";

/// One Pod condition. The message is kept only for KruisePodReady and SidecarSetUpgradable, whose message is data, the reason
/// only for [`DISRUPTION_TARGET`] and [`POD_SCHEDULED`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCondition {
    /// Type.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// Reason.
    pub reason: String,
    /// Message.
    pub message: String,
}

impl Weigh for PodCondition {
    fn weight(&self) -> usize {
        [&self.type_, &self.status, &self.reason, &self.message].into_iter().map(Weigh::weight).sum()
    }
}

/// One entry of `status.containerStatuses`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerStatusView {
    /// Container name.
    pub name: Text,
    /// `<runtime>://<id>`, or empty before the first start.
    pub container_id: Box<str>,
    /// Whether readiness was reported.
    pub ready: bool,
    /// Whether its startup probe has not succeeded yet.
    pub is_starting: bool,
    /// `imageID`: what the runtime runs, in most cases `<repository>@<digest>`.
    pub image_id: Arc<str>,
    /// Restart count.
    pub restart_count: i32,
    /// Current state.
    pub state: ContainerState,
    /// `lastState.terminated`: how the instance before this one ended.
    pub last_exit: Option<Box<LastExit>>,
}

/// How an instance ended.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LastExit {
    /// Exit code.
    pub exit_code: i32,
    /// When, at second resolution.
    pub finished_at: Option<Timestamp>,
}

/// Why a container does not run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waiting {
    /// For example CrashLoopBackOff or ImagePullBackOff.
    pub reason: String,
    /// kubelet's own words.
    pub message: String,
}

/// `state` of a container status.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ContainerState {
    /// Not running, with kubelet's reason and message.
    Waiting(Box<Waiting>),
    /// Running since.
    Running {
        /// Start time at second resolution.
        started_at: Option<Timestamp>,
    },
    /// Ended.
    Terminated {
        /// Exit code.
        exit_code: i32,
    },
    /// kubelet has said nothing yet.
    #[default]
    Unknown,
}

static NOTHING_RARE: LazyLock<Rare> = LazyLock::new(Rare::default);

impl PodView {
    /// Whether it goes on: it has not ended, and is not being deleted.
    pub fn is_active(&self) -> bool {
        !self.is_deleting() && !self.is_finished()
    }

    /// Namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
    /// Name.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Namespace and name, without a copy of their texts.
    pub fn shared_key(&self) -> (Arc<str>, Arc<str>) {
        (self.namespace.clone().into(), self.name.clone())
    }
    /// UID in the API.
    pub fn uid(&self) -> &str {
        &self.uid
    }
    /// Holds this text for its name, which is the same: the name of each version is read anew.
    pub fn share_name(&mut self, name: &Arc<str>) {
        if self.name == *name {
            self.name = name.clone();
            self.labels.share(name);
        }
    }
    /// Whether another version of the Pod says the same.
    pub fn differs_in_version_alone(&self, other: &Self) -> bool {
        let same = Self { resource_version: other.resource_version.clone(), ..self.clone() };
        same == *other
    }
    /// For tests and fuzzers: the Pod with another UID.
    pub fn set_uid(&mut self, uid: &str) {
        self.uid = uid.into();
    }
    /// What few Pods have, to change it.
    pub fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }
    /// For a new Pod, which admission sees without its namespace.
    pub fn set_namespace(&mut self, namespace: &str) {
        self.namespace = namespace.into();
    }
    /// `metadata.resourceVersion`, if it has one.
    pub fn resource_version(&self) -> Option<&str> {
        Some(&*self.resource_version).filter(|version| !version.is_empty())
    }
    /// What an event about it names.
    pub fn reference(&self) -> ObjectReference {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: text(self.namespace()),
            name: text(self.name()),
            uid: text(self.uid()),
            resource_version: self.resource_version().map(str::to_owned),
            ..ObjectReference::default()
        }
    }
    /// What few Pods have.
    pub fn rare(&self) -> &Rare {
        self.rare.as_deref().unwrap_or(&NOTHING_RARE)
    }
    /// UID under which the runtime labels the Pod's containers: a static Pod's differs from its mirror's.
    pub fn cri_uid(&self) -> &str {
        match &self.rare().config_hash {
            Some(hash) if self.is_mirror => hash,
            _ => self.uid(),
        }
    }
    /// Whether our webhooks change no such Pod: one of `kube-system`, of our own namespace, or of a file on its node.
    pub fn is_exempt_from_admission(&self, own_namespace: &str) -> bool {
        self.namespace() == "kube-system" || self.namespace() == own_namespace || self.is_mirror
    }
    /// Whether a deletion timestamp is set.
    pub fn is_deleting(&self) -> bool {
        self.rare().deleted.is_some()
    }
    /// The node that it is bound to, or else the one that its affinity names; or empty.
    pub fn node_meant(&self) -> &str {
        match self.node_name.is_empty() {
            true => self.rare().aims_at.as_deref().unwrap_or_default(),
            false => &self.node_name,
        }
    }
    /// When its last update in place began, whether it is done or not.
    pub fn updated_in_place(&self) -> Option<Timestamp> {
        Timestamp::from_second(self.updated_in_place?.get().into()).ok()
    }
    /// What an update in place that goes on needs, if there is one.
    pub fn in_place(&self) -> Option<&InPlaceNotes> {
        self.rare().in_place.as_deref()
    }
    /// Whether all containers have ended for good.
    pub fn is_finished(&self) -> bool {
        self.phase == "Succeeded" || self.phase == "Failed"
    }
    /// Whether `spec.readinessGates` lists a condition type.
    pub fn has_readiness_gate(&self, condition: &str) -> bool {
        self.spec.readiness_gates.iter().any(|gate| gate == condition)
    }
    /// How often its containers have been restarted, init containers and native sidecars included.
    pub fn restarts(&self) -> i32 {
        let of_containers = self.container_statuses.iter().map(|status| status.restart_count);
        of_containers.fold(self.rare().init_restarts, i32::saturating_add)
    }
    /// A condition by type.
    pub fn condition(&self, type_: &str) -> Option<&PodCondition> {
        self.conditions.iter().find(|c| c.type_ == type_)
    }
    /// Whether a condition is there with status True.
    pub fn condition_is_true(&self, type_: &str) -> bool {
        self.condition(type_).is_some_and(|c| c.status == "True")
    }
    /// The definition of a regular container or native sidecar.
    pub fn container(&self, name: &str) -> Option<&ContainerView> {
        self.spec.containers.iter().chain(self.spec.sidecars.iter()).find(|c| c.name == name)
    }
    /// The status of a regular container or native sidecar, matched by name.
    pub fn container_status(&self, name: &str) -> Option<&ContainerStatusView> {
        self.container_statuses.iter().find(|c| c.name == name)
    }
    /// The restart policy that holds for a container: its own, else the Pod's. Empty means Always.
    pub fn restart_policy_of(&self, container: &str) -> &str {
        let own = self.container(container).and_then(|c| c.restart_policy.as_deref());
        match own.unwrap_or(&self.spec.restart_policy) {
            "" => "Always",
            policy => policy,
        }
    }
    /// The restart rules of a container.
    pub fn restart_rules_of(&self, container: &str) -> &[RestartRule] {
        self.container(container).and_then(|c| c.restart_policy_rules.as_deref()).unwrap_or_default()
    }
    /// Whether a container is a native sidecar.
    pub fn is_sidecar(&self, container: &str) -> bool {
        self.spec.sidecars.iter().any(|c| c.name == container)
    }
    /// Whether a Kruise workload controls the Pod.
    pub fn is_owned_by_kruise(&self) -> bool {
        self.controller.as_ref().is_some_and(|owner| group_of(&owner.api_version) == apps::GROUP)
    }
}

/// The priority in a key of a barrier, `p_<priority>`.
pub fn priority_of_key(key: &str) -> Option<i32> {
    key.strip_prefix("p_")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_pod_keeps_what_rules_read() {
        let pod: PodView = serde_json::from_value(serde_json::json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web-0", "namespace": "a", "uid": "u1", "managedFields": [{"manager": "x"}], "labels": {"b": "2", "a": "1"},
                "annotations": {"kubernetes.io/config.hash": "h1", "kubernetes.io/config.mirror": "h1", "other": "y"},
                "ownerReferences": [{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "name": "web", "uid": "o", "controller": true}]},
            "spec": {"nodeName": "n1", "restartPolicy": "Always", "readinessGates": [{"conditionType": "KruisePodReady"}],
                "initContainers": [{"name": "setup", "image": "s"}, {"name": "mesh", "image": "m", "restartPolicy": "Always"}],
                "containers": [{"name": "main", "image": "i"}, {"name": "job", "restartPolicy": "Never"}], "newField": 1},
            "status": {"phase": "Running", "podIP": "10.0.0.1",
                "conditions": [{"type": "KruisePodReady", "status": "True", "message": "[]"}, {"type": "Ready", "status": "False", "message": "long"}],
                "containerStatuses": [{"name": "main", "containerID": "containerd://1", "ready": true, "restartCount": 2, "imageID": "r@sha256:1",
                    "lastState": {"terminated": {"exitCode": 3, "finishedAt": "2026-01-01T00:00:00Z"}},
                    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}],
                "initContainerStatuses": [{"name": "setup", "restartCount": 0}, {"name": "mesh", "restartCount": 1}]}
        }))
        .unwrap();
        assert_eq!(pod.cri_uid(), "h1");
        assert!(pod.is_owned_by_kruise() && pod.has_readiness_gate("KruisePodReady"));
        assert_eq!(pod.condition("KruisePodReady").unwrap().message, "[]");
        assert_eq!(pod.condition("Ready").unwrap().message, "");
        assert_eq!((pod.restart_policy_of("main"), pod.restart_policy_of("job")), ("Always", "Never"));
        let main = pod.container_status("main").unwrap();
        assert_eq!(
            (main.restart_count, &*main.image_id, main.last_exit.as_ref().unwrap().exit_code),
            (2, "r@sha256:1", 3)
        );
        assert_eq!(&*pod.container("main").unwrap().image, "i");
        assert_eq!((pod.restart_policy_of("mesh"), pod.container("setup")), ("Always", None));
        assert_eq!((pod.container_status("mesh").unwrap().restart_count, pod.container_status("setup")), (1, None));
        assert_eq!((pod.labels.get("a"), pod.labels.get("c"), pod.labels.iter().count()), (Some("1"), None, 2));
    }

    #[test]
    fn launch_priorities_are_read_and_a_malformed_barrier_is_none() {
        let barrier = |source: serde_json::Value| {
            let env = serde_json::json!([{"name": "A", "value": "1"}, {"name": "KRUISE_CONTAINER_BARRIER", "valueFrom": source}]);
            let pod: PodView =
                serde_json::from_value(serde_json::json!({"spec": {"containers": [{"name": "c", "env": env}]}}))
                    .unwrap();
            pod.spec.containers[0].env.launch_priority
        };
        let key = |key: &str| barrier(serde_json::json!({"configMapKeyRef": {"name": "p-barrier", "key": key}}));
        assert_eq!((key("p_5"), key("p_-2147483647"), key("p_0")), (Some(5), Some(-2_147_483_647), Some(0)));
        for odd in ["", "p", "p_", "p_x", "p_9999999999", "5"] {
            assert_eq!(key(odd), None, "{odd:?}");
        }
        for odd in [serde_json::json!(null), serde_json::json!({}), serde_json::json!({"fieldRef": {"fieldPath": "x"}})]
        {
            assert_eq!(barrier(odd), None);
        }
        let marked = |value: &str| {
            let pod = serde_json::json!({"metadata": {"annotations": {"apps.kruise.io/container-launch-priority-completed": value}}});
            serde_json::from_value::<PodView>(pod).unwrap().launch_completed
        };
        assert!(marked("true") && !marked("false"));
        let own = serde_json::json!({"metadata": {"annotations": {"kruise.rs/specified-delete-for": "web-2"}}});
        assert_eq!(
            serde_json::from_value::<PodView>(own).unwrap().rare().specified_delete_for.as_deref(),
            Some("web-2")
        );
    }

    #[test]
    fn annotations_longer_than_what_we_write_are_not_kept() {
        let pod = |key: &str, length: usize| -> PodView {
            let pod = serde_json::json!({"metadata": {"annotations": {key: "x".repeat(length)}}});
            serde_json::from_value(pod).unwrap()
        };
        for (key, longest) in [
            ("kruise.rs/ordinal-override", 8192),
            ("kruise.rs/ordinal-override-hash", 63),
            ("kruise.rs/image-spellings", 16384),
            ("kruise.rs/specified-delete-for", 16384),
            ("kruise.rs/probe-marked-by", 16384),
            ("kruise.io/related-pub", 16384),
        ] {
            assert_ne!(pod(key, longest), PodView::default(), "{key}");
            assert_eq!(pod(key, longest + 1), PodView::default(), "{key}");
        }
    }

    #[test]
    fn notes_of_an_update_that_are_too_long_are_kept_as_unreadable_ones() {
        let pod = |key: &str, length: usize| -> InPlaceNotes {
            let annotations = serde_json::json!({key: "x".repeat(length), "inplace-update-grace": "g"});
            let pod = serde_json::json!({"metadata": {"annotations": annotations}});
            serde_json::from_value::<PodView>(pod).unwrap().in_place().unwrap().clone()
        };
        let longest = InPlaceNotes::LONGEST;
        let state = |length| pod("apps.kruise.io/inplace-update-state", length).state.map(|text| text.len());
        let grace = |length| pod("apps.kruise.io/inplace-update-grace", length).grace.map(|text| text.len());
        let meta = |length| pod("apps.kruise.io/runtime-containers-meta", length).runtime_meta.map(|text| text.len());
        assert_eq!((state(longest), state(longest + 1)), (Some(longest), Some(0)));
        assert_eq!((grace(longest), grace(longest + 1)), (Some(longest), Some(0)));
        assert_eq!((meta(longest), meta(longest + 1)), (Some(longest), None), "then image IDs show what runs");
    }

    #[test]
    fn the_notes_of_an_update_are_kept_until_it_is_done() {
        let pod = |state: &str, gate: &str, grace: Option<&str>| -> PodView {
            serde_json::from_value(serde_json::json!({
                "metadata": {"generation": 3, "labels": {"lifecycle.apps.kruise.io/state": state},
                    "annotations": {"inplace-update-state": "s", "apps.kruise.io/inplace-update-grace": grace}},
                "status": {"observedGeneration": 2, "conditions": [{"type": "InPlaceUpdateReady", "status": gate}],
                    "containerStatuses": [{"name": "main", "image": "i:1"}]},
            }))
            .unwrap()
        };
        let pending = pod("Updating", "True", None);
        let notes = pending.in_place().unwrap();
        assert_eq!((notes.state.as_deref(), notes.grace.as_deref()), (Some("s"), None));
        assert_eq!(*notes.running_images, [("main".into(), "i:1".into())]);
        assert_eq!((notes.generation, notes.observed_generation), (Some(3), Some(2)));
        assert!(pod("Normal", "False", None).in_place().is_some());
        assert!(pod("Normal", "True", Some("g")).in_place().is_some());
        assert_eq!(pod("Normal", "True", None).in_place(), None);
        assert_eq!(pod("Updated", "True", None).in_place(), None);
    }

    #[test]
    fn when_the_last_update_in_place_began_is_known_after_it_is_done_too() {
        let began = |key: &str, text: &str| {
            let pod = serde_json::json!({"metadata": {"annotations": {key: text}}});
            let pod = serde_json::from_value::<PodView>(pod).unwrap();
            assert_eq!((pod.in_place(), pod.rare.is_none()), (None, true), "nothing else is kept of it");
            pod.updated_in_place().map(|began| began.to_string())
        };
        let state = r#"{"revision":"r","updateTimestamp":"2026-01-01T00:00:00Z","updateImages":true}"#;
        for key in ["apps.kruise.io/inplace-update-state", "inplace-update-state"] {
            assert_eq!(began(key, state).as_deref(), Some("2026-01-01T00:00:00Z"));
        }
        let long = format!("{state}{}", " ".repeat(InPlaceNotes::LONGEST));
        let before_1970 = r#"{"updateTimestamp":"1969-01-01T00:00:00Z"}"#;
        for odd in ["", "odd", "{}", r#"{"updateTimestamp":"soon"}"#, before_1970, &long] {
            assert_eq!(began("apps.kruise.io/inplace-update-state", odd), None, "{odd:.40}");
        }
        assert_eq!(began("other", state), None);
    }

    #[test]
    fn only_canonical_costs_count() {
        for (text, cost) in [
            (None, 0),
            (Some("10"), 10),
            (Some("-10"), -10),
            (Some("0"), 0),
            (Some("+10"), 0),
            (Some("010"), 0),
            (Some("-010"), 0),
            (Some("--1"), 0),
            (Some(""), 0),
            (Some("x"), 0),
            (Some("2147483648"), 0),
            (Some("-2147483648"), i32::MIN),
        ] {
            assert_eq!(wire::deletion_cost(text), cost, "{text:?}");
        }
    }

    #[test]
    fn an_empty_object_decodes() {
        assert_eq!(serde_json::from_str::<PodView>("{}").unwrap(), PodView::default());
    }
}
