//! The normalised spec: what the controller reads of a BroadcastJob, with every default applied.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    api::{
        apps::{
            broadcast_job::{BroadcastJob, DEFAULT_PARALLELISM},
            strategies::{BroadcastCompletion, BroadcastFailure},
        },
        labels,
    },
    domain::{
        pod::{
            placement::{self, Placement},
            requests::Requests,
        },
        workload::rollout,
    },
    k8s::{
        int_or_percent::{IntOrPercent, Round},
        invalid::Invalid,
    },
};

/// `restartPolicy` of the template where nobody wrote one.
pub const RESTART_POLICY: &str = "OnFailure";
/// The values of `restartPolicy` with which a Pod ends.
pub const RESTART_POLICIES: [&str; 2] = ["Never", RESTART_POLICY];

/// What the controller reads of a BroadcastJob.
#[derive(Clone, Debug, PartialEq)]
pub struct BroadcastSpec {
    /// Name of the job.
    pub name: String,
    /// UID of the job.
    pub uid: String,
    /// `spec.template`, with a restart policy.
    pub template: Value,
    /// On which nodes Pods run.
    pub placement: Placement,
    /// What a node has to have for a Pod.
    pub requests: Requests,
    /// `spec.parallelism`.
    pub parallelism: IntOrPercent,
    /// Completion policy Always: the job ends.
    pub ends: bool,
    /// `completionPolicy.activeDeadlineSeconds`, if it ends.
    pub deadline: Option<Duration>,
    /// `completionPolicy.ttlSecondsAfterFinished`, if it ends.
    pub ttl: Option<Duration>,
    /// `spec.paused`.
    pub paused: bool,
    /// `failurePolicy.type`.
    pub on_failure: BroadcastFailure,
    /// How often containers of a Pod may be restarted; None: they are never restarted.
    pub restart_limit: Option<i32>,
    /// Annotation `kruise.rs/paused-at-failed`: how many failed Pods have been answered with a pause.
    pub paused_at_failed: i32,
    /// Whether the sidecar terminator stops sidecars when the main containers have ended.
    pub ends_sidecars: bool,
}

impl BroadcastSpec {
    /// From a stored job, whether admission has seen it or not. `ends_sidecars`: the feature gate of the sidecar terminator is on.
    ///
    /// # Errors
    /// Naming a field that cannot be read: nothing is done on a guess.
    pub fn of(job: &BroadcastJob, ends_sidecars: bool) -> Result<Self, Invalid> {
        let spec = &job.spec;
        let unknown = |field: &str, value: &str| Invalid(format!("spec.{field}: {value:?} is not known"));
        let completion = BroadcastCompletion::parse(&spec.completion_policy.type_)
            .ok_or_else(|| unknown("completionPolicy.type", &spec.completion_policy.type_))?;
        let on_failure = BroadcastFailure::parse(&spec.failure_policy.type_)
            .ok_or_else(|| unknown("failurePolicy.type", &spec.failure_policy.type_))?;
        let all = IntOrPercent::Int(DEFAULT_PARALLELISM);
        let parallelism = rollout::number("parallelism", spec.parallelism.as_ref(), all)?;
        if parallelism.is_negative() {
            return Err(Invalid(format!("spec.parallelism: {parallelism} is not allowed; want 0 or more")));
        }
        if let Some((field, why)) = placement::excess(&spec.template) {
            return Err(Invalid(format!("{field}: {why}")));
        }
        let template = with_restart_policy(&spec.template);
        let restarts = template.pointer("/spec/restartPolicy").and_then(Value::as_str).unwrap_or_default();
        if !RESTART_POLICIES.contains(&restarts) {
            return Err(Invalid(format!(
                "spec.template.spec.restartPolicy: {restarts:?} is not allowed; want Never or OnFailure"
            )));
        }
        let ends = completion == BroadcastCompletion::Always;
        let seconds = |seconds: i64| Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let policy = &spec.completion_policy;
        let annotations = job.metadata.annotations.as_ref();
        let paused_at_failed = annotations.and_then(|all| all.get(labels::PAUSED_AT_FAILED)?.parse::<i32>().ok());
        Ok(Self {
            name: job.metadata.name.clone().unwrap_or_default(),
            uid: job.metadata.uid.clone().unwrap_or_default(),
            placement: Placement::of(&template, &tolerations(&template)),
            requests: Requests::of(&template),
            parallelism,
            ends,
            deadline: policy.active_deadline_seconds.filter(|_| ends).map(seconds),
            ttl: policy.ttl_seconds_after_finished.filter(|_| ends).map(|ttl| seconds(ttl.into())),
            paused: spec.paused.unwrap_or(false),
            on_failure,
            restart_limit: (restarts == RESTART_POLICY).then(|| spec.failure_policy.restart_limit.unwrap_or(0).max(0)),
            paused_at_failed: paused_at_failed.unwrap_or(0).max(0),
            ends_sidecars,
            template,
        })
    }

    /// How many Pods may run at a time, if so many nodes are to have one.
    pub fn most_active(&self, desired: usize) -> usize {
        let total = i32::try_from(desired).unwrap_or(i32::MAX);
        usize::try_from(self.parallelism.resolve(total, Round::Up)).unwrap_or(0)
    }
}

/// A template with the restart policy of a job where it has none: Always, the default of Kubernetes, never ends.
fn with_restart_policy(template: &Value) -> Value {
    let mut template = template.clone();
    if let Some(spec) = template.get_mut("spec").and_then(Value::as_object_mut) {
        let policy = spec.entry("restartPolicy").or_insert(Value::Null);
        if policy.is_null() || policy == "" {
            *policy = RESTART_POLICY.into();
        }
    }
    template
}

/// What Pods tolerate: what their template says, and for a while that their node is not Ready, as every Pod does. Kubernetes
/// evicts them when that lasts, and they are not deleted before.
fn tolerations(template: &Value) -> Value {
    let own = template.pointer("/spec/tolerations").and_then(Value::as_array);
    let mut all = own.cloned().unwrap_or_default();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        all.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute"}));
    }
    all.into()
}
