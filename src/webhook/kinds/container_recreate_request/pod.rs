//! What admission of a request reads of its Pod, and of the containers that it lists.

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

use crate::{api::labels, k8s::pod::PodView, webhook::server::review::Denied};

/// What admission reads of a Pod. Lenient: a field of a newer Kubernetes changes nothing.
#[derive(Clone, Debug, Default)]
pub struct PodFacts {
    pub(super) metadata: PodMetadata,
    pub(super) spec: PodSpec,
    pub(super) status: PodStatus,
    /// The same Pod as rules of other roles see it.
    pub(super) view: PodView,
}

impl<'de> Deserialize<'de> for PodFacts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Wire {
            metadata: PodMetadata,
            spec: PodSpec,
            status: PodStatus,
        }
        let pod = Value::deserialize(deserializer)?;
        let Wire { metadata, spec, status } = Wire::deserialize(&pod).map_err(D::Error::custom)?;
        let view = PodView::deserialize(pod).map_err(D::Error::custom)?;
        Ok(Self { metadata, spec, status, view })
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodMetadata {
    pub(super) uid: String,
    pub(super) generation: Option<i64>,
    pub(super) deletion_timestamp: Option<Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodSpec {
    pub(super) node_name: String,
    pub(super) restart_policy: String,
    pub(super) termination_grace_period_seconds: Option<i64>,
    pub(super) readiness_gates: Vec<ReadinessGate>,
    pub(super) containers: Vec<Container>,
    pub(super) init_containers: Vec<Container>,
    pub(super) ephemeral_containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ReadinessGate {
    pub(super) condition_type: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) restart_policy: Option<String>,
    pub(super) image_pull_policy: String,
    pub(super) lifecycle: Lifecycle,
    pub(super) ports: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Lifecycle {
    pub(super) pre_stop: Option<Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodStatus {
    pub(super) phase: String,
    pub(super) conditions: Vec<Condition>,
    pub(super) container_statuses: Vec<ContainerStatus>,
    pub(super) init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) type_: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ContainerStatus {
    pub(super) name: String,
    #[serde(rename = "containerID")]
    pub(super) container_id: String,
    pub(super) image: String,
    pub(super) restart_count: i64,
}

impl PodFacts {
    /// SidecarTerminator ends the remaining containers of Pods that are over, through requests like any other.
    pub(super) fn sidecars_are_being_ended(&self) -> bool {
        self.status.conditions.iter().any(|c| c.type_ == labels::CONDITION_SIDECAR_TERMINATED)
    }

    pub(super) fn has_kruise_gate(&self) -> bool {
        self.spec.readiness_gates.iter().any(|g| g.condition_type == labels::CONDITION_KRUISE_POD_READY)
    }

    pub(super) fn phase(&self) -> &str {
        if self.status.phase.is_empty() { "unknown" } else { &self.status.phase }
    }
}

/// A listed container: its definition and its current instance.
pub(super) struct Listed<'p> {
    /// How messages about it begin.
    pub(super) at: String,
    pub(super) container: &'p Container,
    pub(super) status: &'p ContainerStatus,
}

impl<'p> Listed<'p> {
    pub(super) fn find(at: String, name: &str, pod_name: &str, pod: &'p PodFacts) -> Result<Self, Denied> {
        let in_list = |list: &'p [Container]| list.iter().find(|c| c.name == name);
        let other_kind = |kind: &str| {
            Denied::bad_request(format!(
                "{at} is {kind} of Pod {pod_name:?}, and a request cannot restart one; list containers of spec.containers, or native sidecars"
            ))
        };
        let init = in_list(&pod.spec.init_containers);
        let is_sidecar = init.is_some_and(|c| c.restart_policy.as_deref() == Some("Always"));
        if init.is_some() && !is_sidecar {
            return Err(other_kind("an init container"));
        }
        if in_list(&pod.spec.ephemeral_containers).is_some() {
            return Err(other_kind("an ephemeral container"));
        }
        let Some(container) = init.or_else(|| in_list(&pod.spec.containers)) else {
            let names: Vec<&str> = pod.spec.containers.iter().map(|c| c.name.as_str()).collect();
            return Err(Denied::bad_request(format!(
                "{at} is no container of Pod {pod_name:?}; it has {}",
                names.join(", ")
            )));
        };
        let statuses = if is_sidecar { &pod.status.init_container_statuses } else { &pod.status.container_statuses };
        match statuses.iter().find(|s| s.name == name) {
            Some(status) if !status.container_id.is_empty() => Ok(Self { at, container, status }),
            _ => Err(Denied::bad_request(format!(
                "{at} of Pod {pod_name:?} (phase {}) is not started: its status has no containerID yet; wait until it runs",
                pod.phase()
            ))),
        }
    }
}

/// Stopping is all that method Runtime does; whether the container starts again is up to its restart policy.
pub(super) fn judge_restart_policy(
    at: &str,
    container: &Container,
    pod: &PodFacts,
    force: bool,
) -> Result<Vec<String>, Denied> {
    let (policy, level) = match container.restart_policy.as_deref() {
        Some(policy) => (policy, "the container"),
        None => (pod.spec.restart_policy.as_str(), "the Pod"),
    };
    let rules = pod.view.restart_rules_of(&container.name);
    let has_rules = rules.iter().any(|rule| rule.action.starts_with("Restart"));
    let mut warnings = Vec::new();
    if rules.iter().any(|rule| rule.action == "RestartAllContainers") {
        warnings.push(format!(
            "{at} has a rule RestartAllContainers in restartPolicyRules: if the exit code of the stop matches, kubelet restarts every container of the Pod, without preStop and grace"
        ));
    }
    match policy {
        "Never" if has_rules => warnings.push(format!(
            "{at} has restartPolicy Never and restartPolicyRules: it starts again only if a rule matches the exit code of the stop"
        )),
        "Never" if force || pod.sidecars_are_being_ended() => warnings
            .push(format!("{at} has restartPolicy Never (set on {level}): it is stopped and does not start again")),
        "Never" => {
            return Err(Denied::bad_request(format!(
                "{at} has restartPolicy Never (set on {level}): stopped, it would not start again; want Always or OnFailure, or method PodSpec, or set spec.strategy.forceRecreate to stop it all the same"
            )));
        }
        "OnFailure" if !rules.iter().any(|rule| rule.matches(0) && rule.action.starts_with("Restart")) => warnings
            .push(format!(
                "{at} has restartPolicy OnFailure (set on {level}): it does not start again if it exits with code 0 when stopped"
            )),
        _ => {}
    }
    Ok(warnings)
}
