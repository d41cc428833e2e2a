//! How far the containers of one job are in one Pod.

use crate::k8s::pod::{ContainerState, EphemeralView, PodView};

/// The waiting reason of a container that was created and could not be run: kubelet does not try again.
const RUN_CONTAINER_ERROR: &str = "RunContainerError";
/// Waiting reasons that mean that something is being done.
const ON_THE_WAY: [&str; 3] = ["ContainerCreating", "PodInitializing", ""];

/// How far the containers of a job are in a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodResult {
    /// One ended badly, or could not be run. Final.
    Failed,
    /// All ended with exit code 0. Final.
    Succeeded,
    /// One runs.
    Running,
    /// One waits to be started.
    Waiting,
    /// kubelet has said nothing about one.
    Unreported,
}

/// Whether a Pod has containers of the job.
pub fn has_containers(pod: &PodView, job: &str) -> bool {
    of_job(pod, job).next().is_some()
}

fn of_job<'p>(pod: &'p PodView, job: &'p str) -> impl Iterator<Item = &'p EphemeralView> {
    pod.rare().ephemeral.iter().filter(move |container| !job.is_empty() && container.job.as_deref() == Some(job))
}

/// How far the containers of a job, given by its UID, are in a Pod; None: the Pod has none.
pub fn result(pod: &PodView, job: &str) -> Option<PodResult> {
    let mut containers = of_job(pod, job).peekable();
    containers.peek()?;
    let states: Vec<&ContainerState> = containers.map(|container| &container.state).collect();
    let any = |is: &dyn Fn(&ContainerState) -> bool| states.iter().any(|state| is(state));
    let failed = |state: &ContainerState| match state {
        ContainerState::Terminated { exit_code } => *exit_code != 0,
        ContainerState::Waiting(waiting) => waiting.reason == RUN_CONTAINER_ERROR,
        ContainerState::Running { .. } | ContainerState::Unknown => false,
    };
    Some(if any(&failed) {
        PodResult::Failed
    } else if any(&|state| matches!(state, ContainerState::Running { .. })) {
        PodResult::Running
    } else if any(&|state| matches!(state, ContainerState::Waiting(_))) {
        PodResult::Waiting
    } else if any(&|state| matches!(state, ContainerState::Unknown)) {
        PodResult::Unreported
    } else {
        PodResult::Succeeded
    })
}

/// Why a container of the job does not start although nothing else is awaited: kubelet's reason and message.
pub fn blocked<'p>(pod: &'p PodView, job: &'p str) -> Option<(&'p str, &'p str)> {
    of_job(pod, job).find_map(|container| match &container.state {
        ContainerState::Waiting(waiting) if !ON_THE_WAY.contains(&waiting.reason.as_str()) => {
            Some((waiting.reason.as_str(), waiting.message.as_str()))
        }
        _ => None,
    })
}

/// Whether a Pod has a container of a name of the job's that is not the job's own.
pub fn has_foreign<'n>(pod: &PodView, job: &str, mut names: impl Iterator<Item = &'n str>) -> bool {
    names.any(|name| {
        let ephemeral = &pod.rare().ephemeral;
        ephemeral.iter().any(|other| other.name == name && other.job.as_deref() != Some(job))
            || pod.container(name).is_some()
    })
}
