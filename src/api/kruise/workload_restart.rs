//! WorkloadRestart: restart containers of every Pod of a workload, in place and within its budget.

// The derive repeats the visibility of the spec in a private module.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, LabelSelector},
    util::intstr::IntOrString,
};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    conditions,
    crr::RecreateStrategy,
    date_time,
    rules::{optional_selector_stays, stays},
};

/// `maxUnavailable` of a restart that does not set it.
pub const DEFAULT_MAX_UNAVAILABLE: &str = "10%";

/// Which Pods are restarted, and how. What to restart is fixed; how fast may be changed while it runs.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kruise.rs",
    version = "v1alpha1",
    kind = "WorkloadRestart",
    namespaced,
    shortname = "wr",
    doc = "WorkloadRestart restarts containers of every Pod of a workload in place: no Pod is deleted or moved, and the workload's template stays as it is. It makes one ContainerRecreateRequest per Pod, never more at a time than maxUnavailable and the Pods' PodDisruptionBudgets allow. Without triggers it runs once; with triggers it runs once for every change of a ConfigMap or Secret.",
    status = "WorkloadRestartStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"TARGET","type":"string","jsonPath":".spec.targetRef.name","description":"The workload; empty when Pods are selected by labels"}"#,
    printcolumn = r#"{"name":"PROGRESS","type":"string","jsonPath":".status.progress","description":"Pods that are done, of all"}"#,
    printcolumn = r#"{"name":"FAILED","type":"integer","jsonPath":".status.failed","description":"Pods that could not be restarted"}"#,
    printcolumn = r#"{"name":"STATUS","type":"string","jsonPath":".status.conditions[?(@.type==\"Progressing\")].reason","description":"What it does or waits for"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"ROUND","type":"integer","jsonPath":".status.round","description":"How often it has begun","priority":1}"#,
    printcolumn = r#"{"name":"MESSAGE","type":"string","jsonPath":".status.message","description":"What it does or waits for, in words","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.targetRef) != has(self.selector)").message("spec: set exactly one of targetRef and selector"))]
#[x_kube(validation = Rule::new("has(self.targetRef) == has(oldSelf.targetRef) && (!has(self.targetRef) || self.targetRef == oldSelf.targetRef)").message("spec.targetRef cannot be changed: create another WorkloadRestart"))]
#[x_kube(validation = Rule::new(optional_selector_stays("selector")).message("spec.selector cannot be changed: create another WorkloadRestart"))]
#[x_kube(validation = Rule::new(stays("", "containers", "[]")).message("spec.containers cannot be changed: create another WorkloadRestart"))]
#[x_kube(validation = Rule::new("has(self.order) == has(oldSelf.order) && (!has(self.order) || self.order == oldSelf.order)").message("spec.order cannot be changed: create another WorkloadRestart"))]
#[x_kube(validation = Rule::new("has(self.strategy) == has(oldSelf.strategy) && (!has(self.strategy) || self.strategy == oldSelf.strategy)").message("spec.strategy cannot be changed: create another WorkloadRestart"))]
#[x_kube(validation = Rule::new("has(self.triggers) == has(oldSelf.triggers)").message("spec.triggers can be changed, but neither added nor removed as a whole: create another WorkloadRestart"))]
#[x_kube(validation = Rule::new("!(has(self.triggers) && has(self.ttlSecondsAfterFinished))").message("spec.ttlSecondsAfterFinished: a WorkloadRestart with triggers never finishes; leave it out"))]
pub struct WorkloadRestartSpec {
    /// The workload, in the namespace of the WorkloadRestart: a Deployment, ReplicaSet, StatefulSet or DaemonSet, a
    /// CloneSet, StatefulSet or DaemonSet of apps.kruise.io, or any kind with a scale subresource (for those, Kruise's
    /// manager has to be given the right to read it). Or a SidecarSet of apps.kruise.io: the containers that it put into
    /// Pods of this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetRef>,
    /// Pods by their labels, instead of a workload. At least one label has to be named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("size(self.?matchLabels.orValue({})) + size(self.?matchExpressions.orValue([])) > 0").message("spec.selector must not be empty: it would restart every Pod of the namespace"))]
    pub selector: Option<LabelSelector>,
    /// Names of the containers to restart, native sidecars included, in the order in which a Pod's containers are
    /// stopped. Empty: all containers in spec.containers of each Pod. A Pod that has none of the names is skipped. With a
    /// SidecarSet only containers that it put into the Pod are restarted, of a hot-upgraded one that which is at work;
    /// empty: all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "container_names")]
    pub containers: Vec<String>,
    /// How many Pods may be unavailable at a time, for whatever reason: a number, or a share of the Pods such as "10%",
    /// rounded down but at least 1. No Pod that is ready is restarted while more are not; Pods that are not ready
    /// themselves are restarted first, because that costs nothing, this many at a time. Default 10%. Can be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("type(self) == int ? self > 0 : self.matches('^(100|[1-9][0-9]?)%$')").message("spec.maxUnavailable: want a number from 1 on, or a share from 1% to 100%"))]
    pub max_unavailable: Option<IntOrString>,
    /// Which Pods come first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// How many Pods to leave as they are: a number, or a share of the Pods such as "50%", rounded up. With order
    /// Ordinal they are the lowest ordinals. Lower it to go on. Default 0. Can be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("type(self) == int ? self >= 0 : self.matches('^(100|[1-9]?[0-9])%$')").message("spec.partition: want a number from 0 on, or a share from 0% to 100%"))]
    pub partition: Option<IntOrString>,
    /// true: no further Pod is begun. What has been begun goes on. Can be changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Seconds that a restarted Pod has to stay ready before it counts as done and as available. Default 0. Can be
    /// changed.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub min_ready_seconds: i32,
    /// When to give up. Default: with the first Pod that could not be restarted. Can be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<FailurePolicy>,
    /// Seconds from the begin (with triggers: of each round) after which no further Pod is begun and the restart has
    /// failed. Time while it is paused counts. Without it there is no deadline. Can be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub active_deadline_seconds: Option<i64>,
    /// Seconds that the restart of one Pod may take before that Pod counts as failed. At least 3. Without it there is no
    /// limit. Can be changed, for Pods that have not been begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 3))]
    pub pod_deadline_seconds: Option<i64>,
    /// Seconds after the end when the WorkloadRestart is deleted, with its requests. Without it, it is kept. Can be
    /// changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
    /// How the containers of each Pod are restarted; it is handed to every ContainerRecreateRequest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<RecreateStrategy>,
    /// ConfigMaps and Secrets, in the namespace of the WorkloadRestart, each change of whose data begins a round. Nothing
    /// is restarted before the first change. Kruise's manager has to be given the right to list and watch each of them
    /// by its name; the condition TriggersReadable says when it is missing. Before a Pod is restarted its node is made to
    /// refresh the Pod's volumes. At least one, if set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "triggers")]
    pub triggers: Option<Vec<Trigger>>,
}

/// A workload in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetRef {
    /// Group and version, as in the workload's own manifest: apps/v1, for example.
    #[schemars(length(max = 253), regex(pattern = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[a-z0-9]+$"))]
    pub api_version: String,
    /// Kind: Deployment, for example.
    #[schemars(length(max = 63), regex(pattern = r"^[A-Z][A-Za-z0-9]*$"))]
    pub kind: String,
    /// Name.
    #[schemars(length(max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
}

/// Which Pods come first. Ordinal: the highest ordinal of the name (web-2 before web-1), Pods without one last.
/// OldestFirst: the Pod created first. NodeByNode: all Pods of one node before those of the next, nodes by name. Pods
/// that are not ready come before all others. Default: Ordinal for StatefulSets, else OldestFirst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Order {
    /// The highest ordinal first.
    Ordinal,
    /// The Pod created first.
    OldestFirst,
    /// All Pods of a node before those of the next.
    NodeByNode,
}

/// When a restart gives up.
#[derive(Clone, Debug, Default, PartialEq, KubeSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicy {
    /// With this many Pods that could not be restarted no further Pod is begun, and the restart has failed: a number, or
    /// a share of the Pods such as "20%", rounded up but at least 1. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("type(self) == int ? self > 0 : self.matches('^(100|[1-9][0-9]?)%$')").message("spec.failurePolicy.threshold: want a number from 1 on, or a share from 1% to 100%"))]
    pub threshold: Option<IntOrString>,
}

/// A ConfigMap or Secret in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Trigger {
    /// ConfigMap or Secret.
    pub kind: TriggerKind,
    /// Name.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
}

/// Kind of a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TriggerKind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
}

impl TriggerKind {
    /// The kind's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        }
    }
}

/// Progress of a restart: of the only round, or of the last one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadRestartStatus {
    /// The generation of the spec that this status is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// How often it has begun: at most 1 without triggers, else once per change.
    #[serde(default)]
    pub round: i64,
    /// When the round began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub start_time: Option<Timestamp>,
    /// When the round ended, well or badly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub completion_time: Option<Timestamp>,
    /// Pods created after this time need no restart: the creation of the WorkloadRestart, or the change of the trigger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub pods_created_before: Option<Timestamp>,
    /// Pods that are restarted or need no restart, and all Pods: 3/10.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub progress: String,
    /// Pods that there are.
    #[serde(default)]
    pub total: i32,
    /// Pods that were restarted and are ready again.
    #[serde(default)]
    pub restarted: i32,
    /// Pods that are being restarted, or were and are not ready yet.
    #[serde(default)]
    pub restarting: i32,
    /// Pods that could not be restarted.
    #[serde(default)]
    pub failed: i32,
    /// Pods that need no restart: created since the begin, not started yet, or without the containers.
    #[serde(default)]
    pub skipped: i32,
    /// What it does or waits for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The triggers as of the last round, or as first seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "trigger_states")]
    pub triggers: Vec<TriggerState>,
    /// Progressing (True while Pods are restarted; its reason says what is waited for), Complete (the round ended well),
    /// Failed (it was given up), TriggersReadable (whether the triggers can be watched).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

/// What the Pods were last restarted for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TriggerState {
    /// ConfigMap or Secret.
    pub kind: TriggerKind,
    /// Name.
    pub name: String,
    /// A hash of its data; empty while it does not exist.
    #[serde(default)]
    pub hash: String,
    /// Fields of a newer release, kept as they are.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: BTreeMap<String, serde_json::Value>,
}

fn is_zero(value: &i32) -> bool {
    *value == 0
}

fn container_names(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "maxItems": 64, "x-kubernetes-list-type": "set",
        "items": { "type": "string", "minLength": 1, "maxLength": 63 },
    })
}

fn triggers(generator: &mut SchemaGenerator) -> Schema {
    let item = Trigger::json_schema(generator);
    json_schema!({
        "type": "array", "minItems": 1, "maxItems": 16, "items": item,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["kind", "name"],
    })
}

fn trigger_states(generator: &mut SchemaGenerator) -> Schema {
    let item = TriggerState::json_schema(generator);
    json_schema!({
        "type": "array", "items": item,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["kind", "name"],
    })
}

impl WorkloadRestart {
    /// Whether somebody deleted it.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
    /// Whether changes of other objects begin its rounds.
    pub fn is_triggered(&self) -> bool {
        self.spec.triggers.is_some()
    }
    /// The triggers, none without.
    pub fn triggers(&self) -> &[Trigger] {
        self.spec.triggers.as_deref().unwrap_or_default()
    }
}

impl WorkloadRestartStatus {
    /// Whether a condition is there with status True.
    pub fn is_true(&self, type_: &str) -> bool {
        self.conditions.iter().any(|c| c.type_ == type_ && c.status == "True")
    }
    /// Whether the round has ended, well or badly.
    pub fn has_ended(&self) -> bool {
        self.is_true(crate::labels::CONDITION_COMPLETE) || self.is_true(crate::labels::CONDITION_FAILED)
    }
}
