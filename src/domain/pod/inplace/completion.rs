//! When an update in place is done.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{ObservedPod, State, observed::ObservedContainer, resize};
use crate::{
    domain::pod::runtime_meta::{Hashes, RuntimeContainer, RuntimeMeta, expected_env_hash, plain_hashes, short_hash},
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
pub fn is_complete(pod: &ObservedPod<'_>, state: Option<&State>, in_grace: bool) -> ContainersDone {
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
pub(super) fn containers_done(pod: &ObservedPod<'_>, state: &State) -> ContainersDone {
    if pod.is_kubelet_behind {
        return ContainersDone::no("kubelet to see the change");
    }
    let whole = pod.whole.ok_or_else(|| ContainersDone::no("the whole Pod"));
    let meta: Option<RuntimeMeta> = pod.runtime_meta.and_then(|text| serde_json::from_str(text).ok());
    if state.update_env_from_metadata {
        let whole = match whole {
            Ok(whole) => whole,
            Err(waits) => return waits,
        };
        let Some(meta) = &meta else {
            return ContainersDone::no("the daemon's report of the environment");
        };
        let runs_with = |container: &ObservedContainer<'_>, hashes: &Hashes| {
            let definition = container.definition.unwrap_or(&Value::Null);
            hashes.extracted_env_from_metadata_hash == expected_env_hash(definition, whole)
        };
        if let Some(name) = first_inconsistent(pod, meta, runs_with) {
            return ContainersDone::no(format!("container {name} to run with the new environment"));
        }
    }
    if state.update_resources {
        match whole.map(|whole| resize::unfinished(whole, state)) {
            Ok(None) => {}
            Ok(Some(waits_for)) => return ContainersDone::no(waits_for),
            Err(waits) => return waits,
        }
    }
    let plain = |container: &ObservedContainer<'_>, hashes: &Hashes| match container.definition {
        Some(definition) => plain_hashes(definition).contains(&hashes.plain_hash),
        None => short_hash(container.name, container.image) == hashes.plain_hash,
    };
    if meta.is_some_and(|meta| first_inconsistent(pod, &meta, plain).is_none()) {
        return ContainersDone::yes();
    }
    for (name, last) in &state.last_container_statuses {
        let Some(status) = pod.status(name) else {
            return ContainersDone::no(format!("a status of container {name}"));
        };
        let wanted = pod.container(name).map_or("", |container| container.image);
        if status.image_id == last.image_id && !is_same_image(wanted, status.image) {
            return ContainersDone::no(format!("container {name} to run image {wanted}"));
        }
    }
    ContainersDone::yes()
}

/// Whether only the whole Pod can say that its containers have been updated.
///
/// Up to 1.30, kubelet hashes the whole definition of a container. Stores do not keep it, so a view can only be compared with
/// the hash of 1.31 and later: after a change to an image with the same id its update would never be done. A kubelet that
/// reports the generation (1.34; 1.33 behind a gate) has the later hash. With 1.31 to 1.33 a Pod may be read once for each of
/// its versions until the container has restarted.
pub fn needs_definitions(pod: &ObservedPod<'_>, state: &State) -> bool {
    let meta = || pod.runtime_meta.and_then(|text| serde_json::from_str::<RuntimeMeta>(text).ok());
    pod.whole.is_none()
        && pod.is_kubelet_silent
        && !containers_done(pod, state).done
        && meta().is_some_and(|meta| first_inconsistent(pod, &meta, |_, _| true).is_none())
}

/// The first container of the Pod that the report does not cover, or whose hash is another one.
fn first_inconsistent<'a>(
    pod: &ObservedPod<'a>,
    meta: &RuntimeMeta,
    matches: impl Fn(&ObservedContainer<'a>, &Hashes) -> bool,
) -> Option<&'a str> {
    let reported: BTreeMap<&str, &RuntimeContainer> = meta.containers.iter().map(|c| (c.name.as_str(), c)).collect();
    let is_consistent = |container: &&ObservedContainer<'a>| {
        let running = container.status.as_ref().map(|status| status.container_id);
        let found = reported.get(container.name);
        found.is_some_and(|found| running == Some(&found.container_id) && matches(container, &found.hashes))
    };
    pod.containers.iter().find(|container| !is_consistent(container)).map(|container| container.name)
}

/// Whether two spellings name one image: the registry's port is no tag, and `nginx` is `docker.io/library/nginx:latest`.
pub fn is_same_image(a: &str, b: &str) -> bool {
    let parts =
        |text| ImageRef::parse(text).map(|r| (r.repository(), r.digest.map_or(r.tag_or_default(), |d| d).to_owned()));
    a == b || parts(a).is_some_and(|a| Some(a) == parts(b))
}
