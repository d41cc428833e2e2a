//! A Pod as our rules see it.
//!
//! Stores keep thousands of Pods, so a [`PodView`] holds only what rules read, decoded straight from the API server's
//! JSON. It is never written back: a write patches exactly the fields it means.

use std::{borrow::Cow, fmt, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};

use super::shared::{Pool, Text};
use crate::api::{apps, group_of, labels as keys};

/// The compact form of a Pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodView {
    /// Name, namespace, UID, resourceVersion, creation and deletion time; nothing else is kept.
    pub metadata: ObjectMeta,
    /// `metadata.labels`, shared between Pods that have the same text: read by selectors.
    pub labels: Labels,
    /// The owner with `controller: true`.
    pub controller: Option<Arc<Owner>>,
    /// `kubernetes.io/config.hash` of a mirror Pod: the UID under which the runtime knows a static Pod.
    pub config_hash: Option<String>,
    /// `metadata.finalizers`.
    pub finalizers: Box<[Text]>,
    /// `controller.kubernetes.io/pod-deletion-cost`; what is no number counts as none.
    pub deletion_cost: i32,
    /// What an update in place that goes on needs; none while there is nothing to do about it.
    pub in_place: Option<Box<InPlaceNotes>>,
    /// The annotation that remembers which spellings of images were used for restarts, if it is there.
    pub image_spellings: Option<Box<str>>,
    /// Whether the launch priorities of its containers have done their work.
    pub launch_completed: bool,
    /// The PodUnavailableBudget that `kruise.io/related-pub` names.
    pub related_pub: Option<Text>,
    /// Whether `pub.kruise.io/no-protect` takes it out of the protection of budgets.
    pub no_protect: bool,
    /// Whether kubelet has not seen the last change of the spec; kubelets before 1.33 do not tell.
    pub kubelet_is_behind: bool,
    /// Whether this is the mirror of a static Pod.
    pub is_mirror: bool,
    /// Whether a SidecarSet was injected into it.
    pub has_sidecar_set: bool,
    /// Whether `control-plane=daemon` marks it as one of our daemons.
    pub is_daemon: bool,
    /// Node it is bound to, or empty.
    pub node_name: Text,
    /// Always, OnFailure or Never.
    pub restart_policy: Text,
    /// `spec.terminationGracePeriodSeconds`.
    pub termination_grace_period_seconds: Option<i64>,
    /// Condition types of `spec.readinessGates`.
    pub readiness_gates: Arc<[String]>,
    /// Regular containers.
    pub containers: Arc<[ContainerView]>,
    /// Init containers with restartPolicy Always: native sidecars.
    pub sidecars: Arc<[ContainerView]>,
    /// Pending, Running, Succeeded, Failed or Unknown.
    pub phase: Text,
    /// When the condition Ready last changed.
    pub ready_since: Option<Timestamp>,
    /// `status.podIP`, or empty.
    pub pod_ip: String,
    /// `status.conditions`.
    pub conditions: Arc<[PodCondition]>,
    /// `status.containerStatuses` and those of native sidecars, in no particular order.
    pub container_statuses: Box<[ContainerStatusView]>,
}

static OWNERS: Pool<Owner> = Pool::new();
static GATES: Pool<[String]> = Pool::new();
static CONTAINERS: Pool<[ContainerView]> = Pool::new();
static CONDITIONS: Pool<[PodCondition]> = Pool::new();

/// Labels as sorted pairs of shared strings: thousands of Pods have the same few texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Labels(Arc<[(Arc<str>, Arc<str>)]>);

impl Labels {
    /// The value of a label.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.binary_search_by(|(k, _)| (**k).cmp(key)).ok().map(|i| &*self.0[i].1)
    }
    /// All of them, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (&**k, &**v))
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Vec<(Arc<str>, Arc<str>)>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::with_capacity(map.size_hint().unwrap_or(8).min(64));
                while let Some((key, value)) = map.next_entry::<Text, Text>()? {
                    pairs.push((key.into(), value.into()));
                }
                Ok(pairs)
            }
        }
        let mut pairs = deserializer.deserialize_map(Pairs)?;
        // Of equal keys the last one counts, as everywhere.
        pairs.reverse();
        pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
        pairs.dedup_by(|(a, _), (b, _)| a == b);
        Ok(Self(pairs.into()))
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
        self.kind == kind && group_of(&self.api_version) == group
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
    #[serde(deserialize_with = "interned")]
    pub image: Arc<str>,
    /// The container's own restart policy, if it has one.
    pub restart_policy: Option<String>,
    /// Its restart rules, which come before the policy.
    pub restart_policy_rules: Option<Box<[RestartRule]>>,
    /// Its launch priority, if it waits at a barrier: the key of the barrier's ConfigMap says it.
    #[serde(rename = "env", deserialize_with = "launch_priority")]
    pub launch_priority: Option<i32>,
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
    /// `status.observedGeneration`; kubelets before 1.33 do not write it.
    pub observed_generation: Option<i64>,
}

/// One Pod condition. The message is kept only for KruisePodReady, whose message is data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCondition {
    /// Type.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// Message.
    pub message: String,
}

/// One entry of `status.containerStatuses`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerStatusView {
    /// Container name.
    pub name: String,
    /// `<runtime>://<id>`, or empty before the first start.
    pub container_id: String,
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
    pub last_exit: Option<LastExit>,
}

/// How an instance ended.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LastExit {
    /// Exit code.
    pub exit_code: i32,
    /// When, at second resolution.
    pub finished_at: Option<Timestamp>,
}

/// `state` of a container status.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ContainerState {
    /// Not running, with kubelet's reason and message.
    Waiting {
        /// For example CrashLoopBackOff or ImagePullBackOff.
        reason: String,
        /// kubelet's own words.
        message: String,
    },
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

impl PodView {
    /// Namespace.
    pub fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }
    /// Name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
    /// UID in the API.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }
    /// UID under which the runtime labels the Pod's containers: a static Pod's differs from its mirror's.
    pub fn cri_uid(&self) -> &str {
        match &self.config_hash {
            Some(hash) if self.is_mirror => hash,
            _ => self.uid(),
        }
    }
    /// Whether a deletion timestamp is set.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
    /// Whether all containers have ended for good.
    pub fn is_finished(&self) -> bool {
        self.phase == "Succeeded" || self.phase == "Failed"
    }
    /// Whether `spec.readinessGates` lists a condition type.
    pub fn has_readiness_gate(&self, condition: &str) -> bool {
        self.readiness_gates.iter().any(|gate| gate == condition)
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
        self.containers.iter().chain(self.sidecars.iter()).find(|c| c.name == name)
    }
    /// The status of a regular container or native sidecar, matched by name.
    pub fn container_status(&self, name: &str) -> Option<&ContainerStatusView> {
        self.container_statuses.iter().find(|c| c.name == name)
    }
    /// The restart policy that holds for a container: its own, else the Pod's. Empty means Always.
    pub fn restart_policy_of(&self, container: &str) -> &str {
        let own = self.container(container).and_then(|c| c.restart_policy.as_deref());
        match own.unwrap_or(&self.restart_policy) {
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
        self.sidecars.iter().any(|c| c.name == container)
    }
    /// Whether a Kruise workload controls the Pod.
    pub fn is_owned_by_kruise(&self) -> bool {
        self.controller.as_ref().is_some_and(|owner| group_of(&owner.api_version) == apps::GROUP)
    }
}

impl kube::Resource for PodView {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;
    fn kind((): &()) -> Cow<'_, str> {
        "Pod".into()
    }
    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }
    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        "pods".into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

fn interned<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    Ok(Option::<Text>::deserialize(deserializer)?.unwrap_or_default().into())
}

/// The priority in a key of a barrier, `p_<priority>`.
pub fn priority_of_key(key: &str) -> Option<i32> {
    key.strip_prefix("p_")?.parse().ok()
}

/// What the barrier among a container's environment variables says; the last one counts. All others are skipped.
fn launch_priority<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i32>, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Variable<'a> {
        #[serde(borrow)]
        name: Cow<'a, str>,
        #[serde(borrow)]
        value_from: Option<Source<'a>>,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Source<'a> {
        #[serde(borrow)]
        config_map_key_ref: Option<Key<'a>>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Key<'a> {
        #[serde(borrow)]
        key: Cow<'a, str>,
    }
    let variables = Option::<Vec<Variable<'de>>>::deserialize(deserializer)?.unwrap_or_default();
    let barrier = variables.into_iter().rev().find(|variable| variable.name == keys::ENV_LAUNCH_BARRIER);
    Ok(barrier.and_then(|b| priority_of_key(&b.value_from?.config_map_key_ref?.key)))
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    generation: Option<i64>,
    resource_version: Option<String>,
    creation_timestamp: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>,
    deletion_timestamp: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>,
    labels: Option<Labels>,
    annotations: Option<WireAnnotations>,
    owner_references: Option<Vec<WireOwner>>,
    finalizers: Option<Box<[Text]>>,
}

/// Only the annotations we read; the others are skipped without being allocated.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WireAnnotations {
    #[serde(rename = "kubernetes.io/config.hash")]
    config_hash: Option<String>,
    #[serde(rename = "kubernetes.io/config.mirror")]
    config_mirror: Option<String>,
    #[serde(rename = "kruise.rs/image-spellings")]
    image_spellings: Option<Box<str>>,
    #[serde(rename = "apps.kruise.io/container-launch-priority-completed")]
    launch_completed: Option<Text>,
    #[serde(rename = "kruise.io/related-pub")]
    related_pub: Option<Text>,
    #[serde(rename = "pub.kruise.io/no-protect")]
    no_protect: Option<Text>,
    #[serde(rename = "kruise.io/sidecarset-hash")]
    sidecar_set_hash: Option<serde::de::IgnoredAny>,
    #[serde(rename = "controller.kubernetes.io/pod-deletion-cost")]
    deletion_cost: Option<String>,
    #[serde(rename = "apps.kruise.io/inplace-update-state")]
    in_place_state: Option<Box<str>>,
    #[serde(rename = "inplace-update-state")]
    in_place_state_legacy: Option<Box<str>>,
    #[serde(rename = "apps.kruise.io/inplace-update-grace")]
    in_place_grace: Option<Box<str>>,
    #[serde(rename = "inplace-update-grace")]
    in_place_grace_legacy: Option<Box<str>>,
    #[serde(rename = "apps.kruise.io/runtime-containers-meta")]
    runtime_meta: Option<Box<str>>,
}

impl WireAnnotations {
    /// The notes of an update in place that is not done, as far as a Pod tells: its state is neither Updating, nor is a
    /// change pending, nor the gate closed, when it is.
    fn in_place(
        &mut self,
        labels: &Labels,
        conditions: &[PodCondition],
        statuses: &Option<Vec<WireContainerStatus>>,
        (generation, observed_generation): (Option<i64>, Option<i64>),
    ) -> Option<Box<InPlaceNotes>> {
        let state = self.in_place_state.take().or_else(|| self.in_place_state_legacy.take());
        let grace = self.in_place_grace.take().or_else(|| self.in_place_grace_legacy.take());
        let gate = conditions.iter().find(|c| c.type_ == keys::CONDITION_INPLACE_UPDATE_READY);
        let is_done = labels.get(keys::LIFECYCLE_STATE) != Some("Updating") && gate.is_none_or(|c| c.status == "True");
        if grace.is_none() && (state.is_none() || is_done) {
            return None;
        }
        let images = statuses.iter().flatten().map(|s| (s.name.as_str().into(), s.image.clone().unwrap_or_default()));
        Some(Box::new(InPlaceNotes {
            state,
            grace,
            runtime_meta: self.runtime_meta.take(),
            running_images: images.collect(),
            generation,
            observed_generation,
        }))
    }
}

/// The deletion cost that an annotation gives: a 32-bit decimal without `+` and leading zeros; anything else counts as
/// none.
fn deletion_cost(annotation: Option<&str>) -> i32 {
    let digits = annotation.map_or("", |text| text.strip_prefix('-').unwrap_or(text));
    let canonical = digits == "0" || !digits.starts_with(['0', '+', '-']);
    annotation.filter(|_| canonical).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The fields of [`Owner`] once more: flattening them would hold every owner reference twice while it is read.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireOwner {
    controller: Option<bool>,
    api_version: String,
    kind: String,
    name: String,
    uid: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireSpec {
    node_name: Option<Text>,
    restart_policy: Option<Text>,
    termination_grace_period_seconds: Option<i64>,
    readiness_gates: Option<Vec<WireGate>>,
    containers: Option<Vec<ContainerView>>,
    init_containers: Option<Vec<ContainerView>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireGate {
    condition_type: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireStatus {
    phase: Option<Text>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    observed_generation: Option<i64>,
    conditions: Option<Vec<WireCondition>>,
    container_statuses: Option<Vec<WireContainerStatus>>,
    init_container_statuses: Option<Vec<WireContainerStatus>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    message: String,
    last_transition_time: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireContainerStatus {
    name: String,
    image: Option<Text>,
    #[serde(rename = "containerID")]
    container_id: Option<String>,
    #[serde(rename = "imageID", deserialize_with = "interned")]
    image_id: Arc<str>,
    ready: bool,
    started: Option<bool>,
    restart_count: i32,
    state: Option<WireState>,
    last_state: Option<WireState>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireState {
    waiting: Option<WireWaiting>,
    running: Option<WireRunning>,
    terminated: Option<WireTerminated>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireWaiting {
    reason: Option<String>,
    message: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireRunning {
    started_at: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireTerminated {
    exit_code: i32,
    finished_at: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WirePod {
    metadata: WireMeta,
    spec: WireSpec,
    status: WireStatus,
}

impl<'de> Deserialize<'de> for PodView {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let WirePod { metadata: meta, spec, status } = WirePod::deserialize(deserializer)?;
        let mut annotations = meta.annotations.unwrap_or_default();
        let labels = meta.labels.unwrap_or_default();
        let mut sidecars = spec.init_containers.unwrap_or_default();
        sidecars.retain(|c| c.restart_policy.as_deref() == Some("Always"));
        let mut init_statuses = status.init_container_statuses.unwrap_or_default();
        init_statuses.retain(|s| sidecars.iter().any(|c| c.name == s.name));
        let mut ready_since = None;
        let mut conditions = Vec::new();
        for WireCondition { type_, status, mut message, last_transition_time } in status.conditions.unwrap_or_default()
        {
            if type_ != keys::CONDITION_KRUISE_POD_READY {
                message = String::new();
            }
            if type_ == "Ready" {
                ready_since = last_transition_time;
            }
            conditions.push(PodCondition { type_, status, message });
        }
        let generations = (meta.generation, status.observed_generation);
        let in_place = annotations.in_place(&labels, &conditions, &status.container_statuses, generations);
        Ok(Self {
            metadata: ObjectMeta {
                name: meta.name,
                namespace: meta.namespace,
                uid: meta.uid,
                resource_version: meta.resource_version,
                creation_timestamp: meta.creation_timestamp,
                deletion_timestamp: meta.deletion_timestamp,
                ..ObjectMeta::default()
            },
            controller: meta.owner_references.unwrap_or_default().into_iter().find(|o| o.controller == Some(true)).map(
                |WireOwner { api_version, kind, name, uid, .. }| OWNERS.share(Owner { api_version, kind, name, uid }),
            ),
            config_hash: annotations.config_hash,
            finalizers: meta.finalizers.unwrap_or_default(),
            deletion_cost: deletion_cost(annotations.deletion_cost.as_deref()),
            in_place,
            image_spellings: annotations.image_spellings,
            launch_completed: annotations.launch_completed.is_some_and(|text| text.as_str() == "true"),
            related_pub: annotations.related_pub.filter(|name| !name.as_str().is_empty()),
            no_protect: annotations.no_protect.is_some_and(|text| text.as_str() == "true"),
            kubelet_is_behind: matches!(generations, (Some(asked), Some(seen)) if seen < asked),
            is_mirror: annotations.config_mirror.is_some(),
            has_sidecar_set: annotations.sidecar_set_hash.is_some(),
            is_daemon: labels.get(keys::CONTROL_PLANE) == Some("daemon"),
            labels,
            node_name: spec.node_name.unwrap_or_default(),
            restart_policy: spec.restart_policy.unwrap_or_default(),
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            readiness_gates: GATES.share(
                spec.readiness_gates.unwrap_or_default().into_iter().map(|g| g.condition_type).collect::<Vec<_>>(),
            ),
            containers: CONTAINERS.share(spec.containers.unwrap_or_default()),
            sidecars: CONTAINERS.share(sidecars),
            phase: status.phase.unwrap_or_default(),
            ready_since,
            pod_ip: status.pod_ip.unwrap_or_default(),
            conditions: CONDITIONS.share(conditions),
            container_statuses: status
                .container_statuses
                .unwrap_or_default()
                .into_iter()
                .chain(init_statuses)
                .map(|s| ContainerStatusView {
                    name: s.name,
                    container_id: s.container_id.unwrap_or_default(),
                    ready: s.ready,
                    is_starting: s.started == Some(false),
                    restart_count: s.restart_count,
                    image_id: s.image_id,
                    last_exit: s
                        .last_state
                        .and_then(|s| s.terminated)
                        .map(|t| LastExit { exit_code: t.exit_code, finished_at: t.finished_at }),
                    state: match s.state.unwrap_or_default() {
                        WireState { running: Some(r), .. } => ContainerState::Running { started_at: r.started_at },
                        WireState { terminated: Some(t), .. } => ContainerState::Terminated { exit_code: t.exit_code },
                        WireState { waiting: Some(w), .. } => ContainerState::Waiting {
                            reason: w.reason.unwrap_or_default(),
                            message: w.message.unwrap_or_default(),
                        },
                        WireState { waiting: None, running: None, terminated: None } => ContainerState::Unknown,
                    },
                })
                .collect(),
        })
    }
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
        assert_eq!((main.restart_count, &*main.image_id, main.last_exit.unwrap().exit_code), (2, "r@sha256:1", 3));
        assert_eq!(&*pod.container("main").unwrap().image, "i");
        assert_eq!((pod.restart_policy_of("mesh"), pod.container("setup")), ("Always", None));
        assert_eq!((pod.container_status("mesh").unwrap().restart_count, pod.container_status("setup")), (1, None));
        assert_eq!((pod.labels.get("a"), pod.labels.get("c"), pod.labels.iter().count()), (Some("1"), None, 2));
        assert!(pod.metadata.managed_fields.is_none());
    }

    #[test]
    fn launch_priorities_are_read_and_a_malformed_barrier_is_none() {
        let barrier = |source: serde_json::Value| {
            let env = serde_json::json!([{"name": "A", "value": "1"}, {"name": "KRUISE_CONTAINER_BARRIER", "valueFrom": source}]);
            let pod: PodView =
                serde_json::from_value(serde_json::json!({"spec": {"containers": [{"name": "c", "env": env}]}}))
                    .unwrap();
            pod.containers[0].launch_priority
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
        let notes = pod("Updating", "True", None).in_place.unwrap();
        assert_eq!((notes.state.as_deref(), notes.grace.as_deref()), (Some("s"), None));
        assert_eq!(*notes.running_images, [("main".into(), "i:1".into())]);
        assert_eq!((notes.generation, notes.observed_generation), (Some(3), Some(2)));
        assert!(pod("Normal", "False", None).in_place.is_some());
        assert!(pod("Normal", "True", Some("g")).in_place.is_some());
        assert_eq!(pod("Normal", "True", None).in_place, None);
        assert_eq!(pod("Updated", "True", None).in_place, None);
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
            assert_eq!(deletion_cost(text), cost, "{text:?}");
        }
    }

    #[test]
    fn an_empty_object_decodes() {
        assert_eq!(serde_json::from_str::<PodView>("{}").unwrap(), PodView::default());
    }
}
