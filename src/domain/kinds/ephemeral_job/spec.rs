//! The normalised spec: what a pass reads of an EphemeralJob, with every default applied, and the containers that Pods get.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    api::{
        apps::ephemeral_job::{DEFAULT_TTL_SECONDS, EphemeralJob},
        labels,
    },
    k8s::{invalid::Invalid, selector::Selector},
};

/// What a pass reads of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EphemeralSpec {
    /// Why nothing can be done about it, if nothing can: the field and the reason.
    pub error: Option<String>,
    /// How many Pods get the containers. None: all that match.
    pub replicas: Option<usize>,
    /// How many Pods have them at a time.
    pub parallelism: usize,
    /// No further Pod gets them for now.
    pub is_paused: bool,
    /// How long the job may take, if there is a limit.
    pub deadline: Option<Duration>,
    /// How long it is kept after its end.
    pub time_to_live: Duration,
}

impl EphemeralSpec {
    /// From a stored job, whether admission has seen it or not.
    pub fn of(job: &EphemeralJob) -> Self {
        let spec = &job.spec;
        let size = |number: i32| usize::try_from(number).unwrap_or_default();
        let ttl = spec.ttl_seconds_after_finished.unwrap_or(DEFAULT_TTL_SECONDS);
        let deadline = spec.active_deadline_seconds.map(|seconds| u64::try_from(seconds).unwrap_or_default());
        Self {
            error: error_of(job),
            replicas: spec.replicas.map(size),
            parallelism: spec.parallelism.map_or(1, size),
            is_paused: spec.paused,
            deadline: deadline.map(Duration::from_secs),
            time_to_live: Duration::from_secs(u64::try_from(ttl).unwrap_or_default()),
        }
    }
}

/// The selector of a job. One that matches everything is refused: it was surely not meant.
///
/// # Errors
/// It cannot be read, or is empty.
pub fn selector_of(job: &EphemeralJob) -> Result<Selector, Invalid> {
    let selector = Selector::of(&job.spec.selector)?;
    if selector.is_empty() {
        return Err(Invalid("it is empty, and would match every Pod; want matchLabels or matchExpressions".into()));
    }
    Ok(selector)
}

fn error_of(job: &EphemeralJob) -> Option<String> {
    if let Err(error) = selector_of(job) {
        return Some(format!("spec.selector: {error}"));
    }
    let all = &job.spec.template.ephemeral_containers;
    if all.is_empty() {
        return Some("spec.template.ephemeralContainers: it is empty; want at least one container".into());
    }
    (job.container_names().count() < all.len())
        .then(|| "spec.template.ephemeralContainers: one has no name; want a name for each".into())
}

/// The containers of a job as Pods get them: with the variable by which they are known again.
pub fn containers(job: &EphemeralJob) -> Value {
    let id = json!({"name": labels::ENV_EPHEMERAL_JOB, "value": job.uid()});
    let with_id = |container: &Value| {
        let mut container = container.clone();
        match container.get_mut("env").and_then(Value::as_array_mut) {
            Some(env) => {
                env.retain(|variable| variable["name"] != labels::ENV_EPHEMERAL_JOB);
                env.push(id.clone());
            }
            None => container["env"] = json!([id]),
        }
        container
    };
    job.spec.template.ephemeral_containers.iter().filter(|container| container.is_object()).map(with_id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(spec: Value) -> EphemeralSpec {
        let mut whole = json!({"selector": {"matchLabels": {"app": "web"}},
            "template": {"ephemeralContainers": [{"name": "look", "image": "busybox"}]}});
        json_patch::merge(&mut whole, &spec);
        let job = json!({"metadata": {"name": "j", "uid": "u"}, "spec": whole});
        EphemeralSpec::of(&serde_json::from_value(job).unwrap())
    }

    #[test]
    fn a_spec_without_defaults_is_read_with_them() {
        let want = EphemeralSpec {
            error: None,
            replicas: None,
            parallelism: 1,
            is_paused: false,
            deadline: None,
            time_to_live: Duration::from_secs(1800),
        };
        assert_eq!(read(json!({})), want);
    }

    #[test]
    fn numbers_that_admission_refuses_are_read_as_0() {
        let numbers =
            json!({"replicas": -1, "parallelism": -1, "activeDeadlineSeconds": -1, "ttlSecondsAfterFinished": -1});
        let spec = read(numbers);
        assert_eq!((spec.replicas, spec.parallelism), (Some(0), 0));
        assert_eq!((spec.deadline, spec.time_to_live), (Some(Duration::ZERO), Duration::ZERO));
    }
}
