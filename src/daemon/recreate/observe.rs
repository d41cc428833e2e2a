//! The containers of a Pod, as the runtime lists them.

use jiff::Timestamp;

use crate::{
    api::{crr::ContainerRecreateRequest, labels},
    cri::{
        client::Client as CriClient,
        proto::{Container, ContainerState, ContainerStatus},
        types::CriError,
    },
    domain::node::recreate::node::{Instance, InstanceState},
    k8s::{container_id, pod::PodView},
};

/// The runtime that the request's containers belong to. The plan checks that all belong to the same.
pub(super) fn runtime_of(request: &ContainerRecreateRequest) -> Option<&str> {
    let context = request.spec.containers.first()?.status_context.as_ref()?;
    container_id::split(&context.container_id).map(|(runtime, _)| runtime)
}

/// The Pod's containers in the runtime. Start times and exit codes need a call each and are read only where a decision may
/// need them: for the newest instance of each container of the request, once it is not the one that the request means.
pub(super) async fn observe(
    runtime: &str,
    client: &CriClient,
    request: &ContainerRecreateRequest,
    pod: &PodView,
) -> Result<Vec<Instance>, CriError> {
    let listed = client.list_containers(labels::CRI_POD_UID, pod.cri_uid()).await?;
    let mut instances: Vec<Instance> = listed.iter().map(|c| instance(runtime, c)).collect();
    for container in &request.spec.containers {
        let newest =
            instances.iter_mut().filter(|i| i.container == container.name).max_by_key(|instance| instance.age_order());
        let Some(newest) = newest else { continue };
        let meant = container.status_context.as_ref().is_some_and(|c| c.container_id == newest.id);
        if meant && newest.state == InstanceState::Running {
            continue;
        }
        let id = container_id::without_runtime(&newest.id).to_owned();
        match client.container_status(&id).await {
            Ok(status) => complete(newest, &status),
            Err(CriError::NotFound { .. }) => {} // removed since it was listed
            Err(error) => return Err(error),
        }
    }
    Ok(instances)
}

pub(crate) fn instance(runtime: &str, container: &Container) -> Instance {
    let label = |key: &str| container.labels.get(key).cloned().unwrap_or_default();
    let attempt = container.metadata.as_ref().map_or(0, |m| m.attempt);
    let counted = container.annotations.get(labels::CRI_RESTART_COUNT).and_then(|count| count.parse().ok());
    Instance {
        id: format!("{runtime}://{}", container.id),
        container: label(labels::CRI_CONTAINER_NAME),
        namespace: label(labels::CRI_POD_NAMESPACE),
        pod_uid: label(labels::CRI_POD_UID),
        state: match container.state() {
            ContainerState::ContainerCreated => InstanceState::Created,
            ContainerState::ContainerRunning => InstanceState::Running,
            ContainerState::ContainerExited => InstanceState::Exited,
            ContainerState::ContainerUnknown => InstanceState::Unknown,
        },
        created_at: container.created_at,
        started_at: None,
        exit_code: None,
        restart_count: counted.unwrap_or_else(|| i32::try_from(attempt).unwrap_or(i32::MAX)),
    }
}

pub(crate) fn complete(instance: &mut Instance, status: &ContainerStatus) {
    if status.started_at > 0 {
        instance.started_at = Timestamp::from_nanosecond(i128::from(status.started_at)).ok();
    }
    if status.state() == ContainerState::ContainerExited {
        instance.state = InstanceState::Exited;
        instance.exit_code = Some(status.exit_code);
    }
}
