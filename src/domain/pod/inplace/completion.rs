//! When an update in place is done.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{State, container_of, resize, status_of};
use crate::{
    domain::pod::runtime_meta::{Hashes, RuntimeContainer, RuntimeMeta, expected_env_hash, plain_hashes},
    k8s::image::ImageRef,
};

/// Whether the containers have been updated, and if not, what is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainersDone {
    /// They have.
    pub done: bool,
    /// What is missing, in words.
    pub waits_for: String,
}

impl ContainersDone {
    fn yes() -> Self {
        Self { done: true, waits_for: String::new() }
    }
    fn no(waits_for: impl Into<String>) -> Self {
        Self { done: false, waits_for: waits_for.into() }
    }
}

/// Whether the whole update is done: the grace is over, no batch is left, and the containers have been updated.
pub fn is_complete(pod: &Value, state: Option<&State>, in_grace: bool) -> ContainersDone {
    match state {
        _ if in_grace => ContainersDone::no("the grace period"),
        None => ContainersDone::yes(),
        Some(state) if state.has_next() => ContainersDone::no("later batches"),
        Some(state) => containers_done(pod, state),
    }
}

/// Whether the containers that were changed so far run what they should.
///
/// Either the hashes that the daemon read from the runtime say so, which also holds when two images have one id, or,
/// without a daemon, the image ids have changed. Before kubelet has seen the last change nothing of that counts: it may
/// be about to restart what runs.
pub fn containers_done(pod: &Value, state: &State) -> ContainersDone {
    let number = |pointer: &str| pod.pointer(pointer).and_then(Value::as_i64);
    if let (Some(asked), Some(seen)) = (number("/metadata/generation"), number("/status/observedGeneration"))
        && seen < asked
    {
        return ContainersDone::no("kubelet to see the change");
    }
    let meta = RuntimeMeta::of(pod);
    if state.update_env_from_metadata {
        let Some(meta) = &meta else {
            return ContainersDone::no("the daemon's report of the environment");
        };
        if let Some(name) = first_inconsistent(pod, meta, |container, hashes| {
            hashes.extracted_env_from_metadata_hash == expected_env_hash(container, pod)
        }) {
            return ContainersDone::no(format!("container {name} to run with the new environment"));
        }
    }
    if state.update_resources
        && let Some(waits_for) = resize::unfinished(pod, state)
    {
        return ContainersDone::no(waits_for);
    }
    let plain = |container: &Value, hashes: &Hashes| plain_hashes(container).contains(&hashes.plain_hash);
    if meta.is_some_and(|meta| first_inconsistent(pod, &meta, plain).is_none()) {
        return ContainersDone::yes();
    }
    for (name, last) in &state.last_container_statuses {
        let Some(status) = status_of(pod, name) else {
            return ContainersDone::no(format!("a status of container {name}"));
        };
        let text = |key: &str| status.get(key).and_then(Value::as_str).unwrap_or_default();
        let wanted = container_of(pod, name).and_then(|c| c.get("image")).and_then(Value::as_str).unwrap_or_default();
        if text("imageID") == last.image_id && !is_same_image(wanted, text("image")) {
            return ContainersDone::no(format!("container {name} to run image {wanted}"));
        }
    }
    ContainersDone::yes()
}

/// The first container of the Pod that the report does not cover, or whose hash is another one.
fn first_inconsistent<'a>(
    pod: &'a Value,
    meta: &RuntimeMeta,
    matches: impl Fn(&Value, &Hashes) -> bool,
) -> Option<&'a str> {
    let reported: BTreeMap<&str, &RuntimeContainer> = meta.containers.iter().map(|c| (c.name.as_str(), c)).collect();
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten();
    containers.filter_map(|container| Some((container, container.get("name")?.as_str()?))).find_map(
        |(container, name)| {
            let running = status_of(pod, name).and_then(|s| s.get("containerID")).and_then(Value::as_str);
            let consistent = reported
                .get(name)
                .is_some_and(|found| running == Some(&found.container_id) && matches(container, &found.hashes));
            (!consistent).then_some(name)
        },
    )
}

/// Whether two spellings name one image: the registry's port is no tag, and `nginx` is `docker.io/library/nginx:latest`.
pub fn is_same_image(a: &str, b: &str) -> bool {
    let parts =
        |text| ImageRef::parse(text).map(|r| (r.repository(), r.digest.map_or(r.tag_or_default(), |d| d).to_owned()));
    a == b || parts(a).is_some_and(|a| Some(a) == parts(b))
}
