//! A Pod as the rules of updates in place see it.

use serde_json::Value;

use crate::{
    api::labels,
    k8s::pod::{PodCondition, PodView},
};

/// What decides about an update in place that goes on, from a stored Pod or from a whole one.
#[derive(Clone, Debug, Default)]
pub struct ObservedPod<'a> {
    /// All of it, if it was read. Environments and resources are judged by it alone.
    pub(super) whole: Option<&'a Value>,
    /// The label `controller-revision-hash`, or empty.
    pub(super) revision: &'a str,
    /// The annotation `apps.kruise.io/runtime-containers-meta`.
    pub(super) runtime_meta: Option<&'a str>,
    /// Whether it has a readiness gate InPlaceUpdateReady whose condition is not True.
    pub(super) is_gate_closed: bool,
    /// Whether kubelet has not seen the last change of the spec.
    pub(super) is_kubelet_behind: bool,
    /// Whether kubelet does not say which generation it has seen: it is older than 1.34.
    pub(super) is_kubelet_silent: bool,
    /// Regular containers.
    pub(super) containers: Vec<ObservedContainer<'a>>,
}

/// A container: what it is to run, and what it runs.
#[derive(Clone, Debug, Default)]
pub(super) struct ObservedContainer<'a> {
    pub(super) name: &'a str,
    /// Wanted image.
    pub(super) image: &'a str,
    /// The definition, of a whole Pod.
    pub(super) definition: Option<&'a Value>,
    /// None: kubelet has not reported it yet.
    pub(super) status: Option<ContainerRuns<'a>>,
}

/// What kubelet says of a container.
#[derive(Clone, Debug, Default)]
pub(super) struct ContainerRuns<'a> {
    pub(super) container_id: &'a str,
    pub(super) image_id: &'a str,
    /// Image, as kubelet spells it.
    pub(super) image: &'a str,
    pub(super) is_ready: bool,
}

impl<'a> ObservedPod<'a> {
    /// A container by its name.
    pub(super) fn container(&self, name: &str) -> Option<&ObservedContainer<'a>> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// What kubelet says of a container.
    pub(super) fn status(&self, name: &str) -> Option<&ContainerRuns<'a>> {
        self.container(name)?.status.as_ref()
    }
}

impl<'a> From<&'a Value> for ObservedPod<'a> {
    fn from(pod: &'a Value) -> Self {
        let text = |value: &'a Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
        let list = |pointer: &str| pod.pointer(pointer).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let number = |pointer: &str| pod.pointer(pointer).and_then(Value::as_i64);
        let metadata = |field: &str, key: &str| pod.get("metadata")?.get(field)?.get(key)?.as_str();
        let has_gate = list("/spec/readinessGates")
            .iter()
            .any(|gate| text(gate, "conditionType") == labels::CONDITION_INPLACE_UPDATE_READY);
        let condition = list("/status/conditions")
            .iter()
            .find(|condition| text(condition, "type") == labels::CONDITION_INPLACE_UPDATE_READY);
        let runs = |name: &str| {
            let status = list("/status/containerStatuses").iter().find(|status| text(status, "name") == name)?;
            Some(ContainerRuns {
                container_id: text(status, "containerID"),
                image_id: text(status, "imageID"),
                image: text(status, "image"),
                is_ready: status.get("ready").and_then(Value::as_bool).unwrap_or_default(),
            })
        };
        let containers = list("/spec/containers").iter().map(|definition| {
            let name = text(definition, "name");
            ObservedContainer {
                name,
                image: text(definition, "image"),
                definition: Some(definition),
                status: runs(name),
            }
        });
        let generations = (number("/metadata/generation"), number("/status/observedGeneration"));
        Self {
            whole: Some(pod),
            revision: metadata("labels", labels::CONTROLLER_REVISION_HASH).unwrap_or_default(),
            runtime_meta: metadata("annotations", labels::RUNTIME_CONTAINERS_META),
            is_gate_closed: has_gate && condition.is_none_or(|condition| text(condition, "status") != "True"),
            is_kubelet_behind: is_behind(generations),
            is_kubelet_silent: generations.1.is_none(),
            containers: containers.collect(),
        }
    }
}

impl<'a> From<&'a PodView> for ObservedPod<'a> {
    fn from(pod: &'a PodView) -> Self {
        let notes = pod.in_place();
        let image = |name: &str| {
            let images = notes.map(|notes| &*notes.running_images).unwrap_or_default();
            images.iter().find(|(container, _)| container == name).map_or("", |(_, image)| image.as_str())
        };
        let containers = pod.spec.containers.iter().map(|container| ObservedContainer {
            name: &container.name,
            image: &container.image,
            definition: None,
            status: pod.container_status(&container.name).map(|status| ContainerRuns {
                container_id: &status.container_id,
                image_id: &status.image_id,
                image: image(&status.name),
                is_ready: status.ready,
            }),
        });
        let gate = labels::CONDITION_INPLACE_UPDATE_READY;
        let is_open = |condition: &PodCondition| condition.status == "True";
        let generations = notes.map_or((None, None), |notes| (notes.generation, notes.observed_generation));
        Self {
            whole: None,
            revision: pod.labels.get(labels::CONTROLLER_REVISION_HASH).unwrap_or_default(),
            runtime_meta: notes.and_then(|notes| notes.runtime_meta.as_deref()),
            is_gate_closed: pod.has_readiness_gate(gate) && !pod.condition(gate).is_some_and(is_open),
            is_kubelet_behind: is_behind(generations),
            is_kubelet_silent: generations.1.is_none(),
            containers: containers.collect(),
        }
    }
}

/// Generations of a Pod and of what kubelet has seen; kubelets before 1.34 do not say by default.
fn is_behind(generations: (Option<i64>, Option<i64>)) -> bool {
    matches!(generations, (Some(asked), Some(seen)) if seen < asked)
}
