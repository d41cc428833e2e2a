//! ContainerRecreateRequest: restart chosen containers of a running Pod, in place.
//!
//! v1alpha1 and v1beta1 are served from one schema that holds the fields of both, so no conversion webhook stands on
//! the read path. v1alpha1 is what is stored: every OpenKruise release can read it, so a cluster can move both ways.
//! Fields that OpenKruise does not have are optional and only ever written by kruise-rs itself.

// The derive repeats the visibility of the spec in a private module.
#![allow(unreachable_pub)]

use std::{borrow::Cow, collections::BTreeMap};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ContainerPort, LifecycleHandler},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::ValidationRule,
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{CustomResource, KubeSchema, ResourceExt};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    conditions, date_time,
    rules::{items_stay, stays},
};

/// The most containers one request may list. It bounds the cost of the schema's rules; a Pod with more does not exist.
pub const MAX_CONTAINERS: usize = 256;

/// What to restart, and how. Immutable.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.kruise.io",
    version = "v1alpha1",
    kind = "ContainerRecreateRequest",
    namespaced,
    shortname = "crr",
    doc = "ContainerRecreateRequest asks for chosen containers of one running Pod to be stopped and started again in place. The Pod keeps its UID, IP, node and volumes, and its other containers keep running.",
    status = "ContainerRecreateRequestStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"PHASE","type":"string","jsonPath":".status.phase","description":"Pending, Recreating or Completed"}"#,
    printcolumn = r#"{"name":"POD","type":"string","jsonPath":".spec.podName","description":"The Pod whose containers are restarted"}"#,
    printcolumn = r#"{"name":"NODE","type":"string","jsonPath":".metadata.labels.crr\\.apps\\.kruise\\.io/node-name","description":"The node that the Pod runs on"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"RESULT","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","description":"Recreating, Recreated (every container was) or Failed (at least one was not)","priority":1}"#,
    printcolumn = r#"{"name":"MESSAGE","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","description":"Which containers were restarted, which were not and why, or what the request waits for","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(spec_stays()).message("spec is immutable: create another ContainerRecreateRequest"))]
pub struct ContainerRecreateRequestSpec {
    /// Name of the Pod, in the namespace of the request. The Pod has to be running on a node.
    #[x_kube(validation = Rule::new("self != ''").message("podName must not be empty"))]
    #[schemars(length(max = 253))]
    pub pod_name: String,
    /// The containers to restart, in the order in which they are stopped. At least one, each name once.
    #[schemars(length(min = 1, max = 256))]
    #[x_kube(validation = Rule::new("self.all(c, self.exists_one(other, other.name == c.name))").message("containers must not list a name twice"))]
    pub containers: Vec<RecreateContainer>,
    /// How to restart the containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<RecreateStrategy>,
    /// Seconds since the creation of the request after which it is ended; what is unfinished then becomes Failed. At
    /// least 3. Without it a request has no deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 3))]
    pub active_deadline_seconds: Option<i64>,
    /// Seconds after its completion when the request is deleted. Without it the request is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// One container to restart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecreateContainer {
    /// Name of a container in spec.containers of the Pod, or of a native sidecar (an init container with restartPolicy
    /// Always).
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Read-only, set at admission: the container's preStop hook, which is run before the stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_stop: Option<LifecycleHandler>,
    /// Read-only, set at admission when preStop is an HTTP request: the container's ports, to look up a named port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "container_ports")]
    pub ports: Vec<ContainerPort>,
    /// Read-only, set at admission: the instance that is to be replaced. Another instance is left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_context: Option<StatusContext>,
}

/// The instance of a container that a request means.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatusContext {
    /// Id in the form `<runtime>://<id>`, as the Pod's status shows it.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Restart count of that instance.
    pub restart_count: i32,
    /// Method PodSpec only: how the image was spelled when the request was admitted. An image that somebody changes
    /// later is left as it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub image: String,
}

/// How the containers of a request are restarted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecreateStrategy {
    /// What a failed container means for the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<FailurePolicy>,
    /// true: a container is touched only after the one before it has been restarted. false (the default): containers
    /// are stopped one after the other, and start again at the same time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ordered_recreate: bool,
    /// true: stop the instance that is there, even if it is not the one that ran when the request was made (for
    /// example because it is still starting), once per request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force_recreate: bool,
    /// Seconds that preStop and the stop may take together; 0 kills at once. Default: the Pod's own grace period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub termination_grace_period_seconds: Option<i64>,
    /// If set (0 included), the Pod is made NotReady first through its readiness gate KruisePodReady, and the
    /// containers are stopped this many seconds later. The Pod becomes ready again when the request has ended. A Pod
    /// without the gate only waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub unready_grace_period_seconds: Option<i64>,
    /// A new instance counts as restarted once it is ready and has run longer than this many seconds. Default 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub min_started_seconds: i32,
    /// Who stops the containers, and how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recreate_method: Option<RecreateMethod>,
    /// Method PodSpec only. true: spell the image with a new tag before its digest for each restart, as in
    /// name:tag-r1@sha256:..., when the two usual spellings would have to wait for kubelet's back-off. The digest alone
    /// decides which image runs, a tag before it means nothing. So any number of restarts in a row meets no back-off.
    /// Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub vary_image_tag: bool,
}

/// Who stops the containers, and how. Runtime (the default): the node's daemon, over CRI. PodSpec: the manager changes
/// the spelling of the container's image to one that denotes the same bytes, and kubelet itself restarts the container
/// at once; no daemon is needed. Auto: Runtime, or PodSpec where Runtime would not do (no ready daemon on the node,
/// kubelet's back-off to be expected, a restart policy that would not bring the container back).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RecreateMethod {
    /// The node's daemon stops the container over CRI.
    #[default]
    Runtime,
    /// The manager spells the container's image differently, and kubelet restarts it.
    PodSpec,
    /// Chosen at admission.
    Auto,
}

/// What happens when a container cannot be restarted: Fail (the default) ends the request at the first failure,
/// Ignore goes on with the other containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailurePolicy {
    /// The first failure ends the request.
    #[default]
    Fail,
    /// The other containers are restarted all the same.
    Ignore,
}

/// Progress of a request. A completed request need not have succeeded: look at containerRecreateStates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerRecreateRequestStatus {
    /// Pending (another request of the Pod comes first, or the runtime cannot be asked), Recreating, or Completed.
    pub phase: Phase,
    /// When the request was completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub completion_time: Option<Timestamp>,
    /// Why the request ended abnormally, or what it waits for. Empty after a normal end.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Progress of each container, in the order of spec.containers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub container_recreate_states: Vec<ContainerRecreateState>,
    /// The Pod's own view of the restarted containers when they were last looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub container_status_snapshot: Vec<ContainerStatusSnapshot>,
    /// PreRecreateGrace is True from the moment the Pod was made NotReady for this request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// The generation of the spec that the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Progress of one container of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerRecreateState {
    /// Name of the container.
    pub name: String,
    /// Pending, Recreating, Succeeded or Failed.
    pub phase: Phase,
    /// What is going on, or why the container failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// true once the old instance is gone, whoever stopped it; it is never stopped again for this request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_killed: bool,
    /// true: another instance had replaced the one that was meant, and this request has stopped nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_skipped: bool,
    /// The instance this request stops, recorded before it is touched. Form `<runtime>://<id>`.
    #[serde(rename = "previousContainerID", default, skip_serializing_if = "String::is_empty")]
    pub previous_container_id: String,
    /// Restart count of that instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_restart_count: Option<i32>,
    /// The instance that replaced it. Form `<runtime>://<id>`.
    #[serde(rename = "containerID", default, skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    /// Method PodSpec: the spelling of the image under which kubelet starts the new instance, recorded before the Pod is
    /// changed. It denotes the same image as the one before.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// When stopping began: the preStop hook, if there is one, else the stop signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub kill_started_at: Option<Timestamp>,
    /// When the preStop hook was started. A hook is started once, whatever happens to the node agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub hook_started_at: Option<Timestamp>,
    /// NotRepeated: the preStop hook was started before a restart of the daemon and is not run again. LeftOut: it was not
    /// run, because other hooks of the node took all places for the whole grace period. Absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text")]
    pub hook_note: Option<HookNote>,
    /// Seconds for which kubelet is expected to delay the start of the new instance (back-off), as estimated when stopping
    /// began. Absent without a delay, and once more is known of the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_back_off_seconds: Option<i64>,
    /// When the old instance was seen to be gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub killed_at: Option<Timestamp>,
    /// When the new instance was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub started_at: Option<Timestamp>,
    /// When the new instance was seen to be ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub ready_at: Option<Timestamp>,
    /// Fields of a newer release, kept as they are.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: BTreeMap<String, serde_json::Value>,
}

/// What became of a preStop hook that was not run, or not again. A note of a newer release is kept as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum HookNote {
    /// It was started before a restart of the daemon and is not run again.
    NotRepeated,
    /// It was not run: other hooks of the node took all places for the whole grace period.
    LeftOut,
    /// Written by a release that knows more notes than this one.
    Unknown(String),
}

impl From<String> for HookNote {
    fn from(text: String) -> Self {
        match text.as_str() {
            "NotRepeated" => Self::NotRepeated,
            "LeftOut" => Self::LeftOut,
            _ => Self::Unknown(text),
        }
    }
}

impl From<HookNote> for String {
    fn from(note: HookNote) -> Self {
        match note {
            HookNote::NotRepeated => "NotRepeated".to_owned(),
            HookNote::LeftOut => "LeftOut".to_owned(),
            HookNote::Unknown(text) => text,
        }
    }
}

/// Text of which newer releases may know more values.
fn text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string" })
}

/// A container's entry in the Pod's status at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStatusSnapshot {
    /// Name of the container.
    pub name: String,
    /// Whether it was ready.
    pub ready: bool,
    /// Its restart count.
    pub restart_count: i32,
    /// Its instance, in the form `<runtime>://<id>`.
    #[serde(rename = "containerID", default, skip_serializing_if = "String::is_empty")]
    pub container_id: String,
}

/// A phase of a request or of one of its containers. A phase of a newer release is kept as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Nothing has happened yet. Written as the empty string.
    #[default]
    Empty,
    /// Waiting for its turn.
    Pending,
    /// Under way.
    Recreating,
    /// A container has been restarted. Requests never have this phase.
    Succeeded,
    /// A container could not be restarted. Requests never have this phase.
    Failed,
    /// A request has ended, well or badly.
    Completed,
    /// Written by a release that knows more phases than this one.
    Unknown(String),
}

impl Phase {
    /// The text used on the wire.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Empty => "",
            Self::Pending => "Pending",
            Self::Recreating => "Recreating",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Completed => "Completed",
            Self::Unknown(text) => text,
        }
    }
}

impl Serialize for Phase {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Phase {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        Ok(match text.as_ref() {
            "" => Self::Empty,
            "Pending" => Self::Pending,
            "Recreating" => Self::Recreating,
            "Succeeded" => Self::Succeeded,
            "Failed" => Self::Failed,
            "Completed" => Self::Completed,
            other => Self::Unknown(other.to_owned()),
        })
    }
}

impl JsonSchema for Phase {
    fn schema_name() -> Cow<'static, str> {
        "Phase".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

/// Fields of the spec that OpenKruise has: where each is, and the value that says the same as its absence. Numbers in which 0 means
/// something have one that nobody may write.
const FIELDS: [(&str, &str, &str); 9] = [
    ("", "podName", "''"),
    ("", "activeDeadlineSeconds", "-1"),
    ("", "ttlSecondsAfterFinished", "-1"),
    (".strategy", "failurePolicy", "''"),
    (".strategy", "orderedRecreate", "false"),
    (".strategy", "forceRecreate", "false"),
    (".strategy", "terminationGracePeriodSeconds", "-1"),
    (".strategy", "unreadyGracePeriodSeconds", "-1"),
    (".strategy", "minStartedSeconds", "0"),
];

/// Whether 0 in this field of the spec or of its strategy says the same as its absence.
pub fn zero_is_absence(field: &str) -> bool {
    FIELDS.iter().any(|(_, member, zero)| *member == field && *zero == "0")
}

/// The spec stays what it is, field by field, because clients of OpenKruise leave out what is zero. What their types do not
/// have is in [`ours_stay`].
fn spec_stays() -> String {
    let fields = FIELDS.map(|(at, member, zero)| match at {
        "" => stays(at, member, zero),
        _ => format!("(!has(self{at}) || !has(oldSelf{at}) || {})", stays(at, member, zero)),
    });
    let strategy = "has(self.strategy) == has(oldSelf.strategy)".to_owned();
    let all = [strategy].into_iter().chain(fields).chain(containers_stay());
    all.collect::<Vec<_>>().join(" && ")
}

/// What OpenKruise does not have stays too, because whoever carries out the request reads it. Once it has ended, a client may
/// leave that out: in an update by types of OpenKruise it has to, and yet has to get labels changed and a finalizer removed.
/// This is a rule for the whole object: that of the spec does not see the status.
pub(crate) fn ours_stay() -> ValidationRule {
    const AT: &str = ".spec.strategy";
    let has_ended = "has(oldSelf.status) && has(oldSelf.status.phase) && oldSelf.status.phase == 'Completed'";
    let strategy = [("recreateMethod", "''"), ("varyImageTag", "false")].map(|(member, zero)| {
        let stays = stays(AT, member, zero);
        // That the whole of it stays is in the rule of the spec.
        format!("(!has(self{AT}) || !has(oldSelf{AT}) || {stays} || {has_ended} && !has(self{AT}.{member}))")
    });
    let containers = [["preStop", "sleep"], ["statusContext", "image"]].map(|path| {
        let stays = items_stay("spec.containers", &list_of(&path));
        let is_left_out = format!("self.spec.containers.all(i, !has(i.{}) || !has(i.{}))", path[0], path.join("."));
        format!("({stays} || {has_ended} && {is_left_out})")
    });
    ValidationRule {
        rule: [strategy, containers].concat().join(" && "),
        message: Some(
            "spec is immutable: strategy.recreateMethod, strategy.varyImageTag and containers[].preStop.sleep may be left out only once the request has ended"
                .into(),
        ),
        ..Default::default()
    }
}

/// A member of an item `i`, or nothing, as a list.
fn list_of(path: &[&str]) -> String {
    let places = (1..=path.len()).map(|length| format!("has(i.{})", path[..length].join(".")));
    format!("{} ? [i.{}] : []", places.collect::<Vec<_>>().join(" && "), path.join("."))
}

/// The containers stay, in their order. Values are compared as lists of one or none, because a hook has no zero.
fn containers_stay() -> Vec<String> {
    let known: [&[&str]; 6] = [
        &["name"],
        &["preStop", "exec"],
        &["preStop", "httpGet"],
        &["preStop", "tcpSocket"],
        &["statusContext", "containerID"],
        &["statusContext", "restartCount"],
    ];
    let ports = items_stay("containers", "has(i.ports) ? i.ports : []");
    let known = known.map(|path| items_stay("containers", &list_of(path)));
    [ports].into_iter().chain(known).collect()
}

fn is_zero(value: &i32) -> bool {
    *value == 0
}

/// Ports as in a Pod: `protocol` has the default TCP.
fn container_ports(generator: &mut SchemaGenerator) -> Schema {
    let mut item = ContainerPort::json_schema(generator);
    if let Some(protocol) = item.pointer_mut("/properties/protocol").and_then(|v| v.as_object_mut()) {
        protocol.insert("default".into(), "TCP".into());
    }
    json_schema!({ "type": "array", "items": item })
}

impl ContainerRecreateRequest {
    /// The strategy, or its defaults for a request that was stored without one (admission was bypassed).
    pub fn strategy(&self) -> Cow<'_, RecreateStrategy> {
        match &self.spec.strategy {
            Some(strategy) => Cow::Borrowed(strategy),
            None => Cow::Owned(RecreateStrategy::default()),
        }
    }

    /// The request's phase; Empty when there is no status yet.
    pub fn phase(&self) -> &Phase {
        self.status.as_ref().map_or(&Phase::Empty, |status| &status.phase)
    }

    /// Whether the request has ended. It never moves again.
    pub fn is_completed(&self) -> bool {
        *self.phase() == Phase::Completed
    }

    /// Whether somebody deleted the request.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether it has neither ended nor been deleted.
    pub fn is_open(&self) -> bool {
        !self.is_completed() && !self.is_deleting()
    }

    /// Whether the manager restarts the containers (method PodSpec), and not the node's daemon.
    pub fn is_served_by_manager(&self) -> bool {
        use crate::labels::{CRR_METHOD, CRR_METHOD_POD_SPEC};
        self.labels().get(CRR_METHOD).is_some_and(|method| method == CRR_METHOD_POD_SPEC)
    }

    /// The UID of the Pod that the request means, from the label that admission sets.
    pub fn pod_uid(&self) -> &str {
        self.labels().get(crate::labels::CRR_POD_UID).map_or("", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn names(schema: &Value) -> Vec<&String> {
        schema["properties"].as_object().unwrap().keys().collect()
    }

    /// What the rule means is proven by the API server alone.
    #[test]
    fn every_field_of_the_spec_is_in_a_rule_that_it_stays() {
        let (rule, ours) = (spec_stays(), ours_stay());
        let crd = json!(crate::definitions::container_recreate_requests());
        for version in crd["spec"]["versions"].as_array().unwrap() {
            let whole = &version["schema"]["openAPIV3Schema"];
            let spec = &whole["properties"]["spec"];
            assert_eq!(spec["x-kubernetes-validations"][0]["rule"], rule);
            assert_eq!(whole["x-kubernetes-validations"], json!([ours]));
            let container = &spec["properties"]["containers"]["items"];
            let (hook, context) = (&container["properties"]["preStop"], &container["properties"]["statusContext"]);
            for (at, schema) in [
                ("self.", spec),
                ("self.strategy.", &spec["properties"]["strategy"]),
                ("i.", container),
                ("i.preStop.", hook),
                ("i.statusContext.", context),
            ] {
                for name in names(schema) {
                    let of_the_whole = format!("{}{name}", at.replace("self.", "self.spec."));
                    let is_kept = rule.contains(&format!("{at}{name}")) || ours.rule.contains(&of_the_whole);
                    assert!(is_kept, "{at}{name}");
                }
            }
        }
    }

    /// Of several values the API server prints the first alone, so a column reads one.
    #[test]
    fn the_columns_of_the_result_read_the_condition_for_all_containers() {
        let crd = json!(crate::definitions::container_recreate_requests());
        for version in crd["spec"]["versions"].as_array().unwrap() {
            let columns = version["additionalPrinterColumns"].as_array().unwrap();
            let wide: Vec<_> = columns.iter().filter(|column| column["priority"] == 1).collect();
            let read: Vec<_> = wide.iter().map(|column| (&column["name"], &column["jsonPath"])).collect();
            let ready = |member: &str| json!(format!(".status.conditions[?(@.type==\"Ready\")].{member}"));
            let (result, message) = (json!("RESULT"), json!("MESSAGE"));
            assert_eq!(read, [(&result, &ready("reason")), (&message, &ready("message"))]);
        }
    }

    #[test]
    fn a_note_of_a_newer_release_is_kept() {
        for (text, note) in [
            ("NotRepeated", HookNote::NotRepeated),
            ("LeftOut", HookNote::LeftOut),
            ("Later", HookNote::Unknown("Later".into())),
        ] {
            let written = json!({"name": "a", "phase": "Recreating", "hookNote": text});
            let state: ContainerRecreateState = serde_json::from_value(written.clone()).unwrap();
            assert_eq!(state.hook_note, Some(note));
            assert_eq!(json!(state), written);
        }
    }

    #[test]
    fn what_clients_in_go_leave_out_is_no_change() {
        let rule = spec_stays();
        for part in [
            "(has(self.strategy.orderedRecreate) ? self.strategy.orderedRecreate : false) == (has(oldSelf.strategy.orderedRecreate) ? oldSelf.strategy.orderedRecreate : false)",
            "(has(self.strategy.minStartedSeconds) ? self.strategy.minStartedSeconds : 0) ==",
            // 0 is not the same as none.
            "(has(self.strategy.unreadyGracePeriodSeconds) ? self.strategy.unreadyGracePeriodSeconds : -1) ==",
            "self.containers.map(i, has(i.ports) ? i.ports : []) == oldSelf.containers.map(i, has(i.ports) ? i.ports : [])",
        ] {
            assert!(rule.contains(part), "{part} in {rule}");
        }
    }

    #[test]
    fn what_openkruise_does_not_have_may_be_left_out_once_the_request_has_ended() {
        let rule = ours_stay().rule;
        for part in [
            "(!has(self.spec.strategy) || !has(oldSelf.spec.strategy) || (has(self.spec.strategy.recreateMethod) ? self.spec.strategy.recreateMethod : '') == ",
            " || has(oldSelf.status) && has(oldSelf.status.phase) && oldSelf.status.phase == 'Completed' && !has(self.spec.strategy.varyImageTag)) && ",
            "(self.spec.containers.map(i, has(i.preStop) && has(i.preStop.sleep) ? [i.preStop.sleep] : []) == oldSelf.spec.containers.map(i, ",
            " || has(oldSelf.status) && has(oldSelf.status.phase) && oldSelf.status.phase == 'Completed' && self.spec.containers.all(i, !has(i.statusContext) || !has(i.statusContext.image)))",
        ] {
            assert!(rule.contains(part), "{part} in {rule}");
        }
    }
}
