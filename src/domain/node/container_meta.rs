//! What the daemon reports about a Pod's containers, and which of them have to be restarted because labels or annotations
//! that their environment refers to have changed.
//!
//! ```text
//!  Pod, annotation so far, instances in the runtime ──▶ report ──▶ environments read ──▶ annotation
//!                                                                                   └──▶ outdated: instances to stop
//! ```

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use k8s_openapi::api::core::v1::{ContainerPort, LifecycleHandler};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::recreate::node::{Hook, Instance, InstanceState, Kill};
use crate::{
    api::labels,
    domain::pod::{
        environment::{actual_environment, referred_keys},
        inplace::{Annotations, State, container_of, is_same_image, status_of},
        runtime_meta::{Hashes, RuntimeContainer, RuntimeMeta, expected_env_hash, plain_hashes},
    },
    k8s::{canonical_json, hash, pod::PodView},
};

/// The hash of the environment that an instance got from labels and annotations.
pub fn actual_env_hash(container: &Value, got: &[String]) -> u64 {
    hash::deep_hash(canonical_json::encode(&actual_environment(container, got)).as_bytes())
}

/// Whether the containers of a Pod are reported at all: Pods of Kruise workloads, and those with SidecarSets.
pub fn is_eligible(pod: &PodView) -> bool {
    (pod.is_owned_by_kruise() || pod.has_sidecar_set)
        && !pod.is_deleting()
        && pod.container_statuses.iter().any(|status| !status.container_id.is_empty())
}

/// Whether an update in place is under way: only then a container is restarted for its environment.
pub fn is_updating(pod: &PodView) -> bool {
    pod.condition(labels::CONDITION_INPLACE_UPDATE_READY).is_some_and(|condition| condition.status == "False")
}

/// A fingerprint of the instances of a Pod: while it is the same, there is nothing new to report.
pub fn fingerprint(pod: &PodView) -> u64 {
    let statuses = pod.container_statuses.iter().filter(|status| !pod.is_sidecar(&status.name));
    fingerprint_of(pod.uid(), statuses.map(|status| &*status.container_id))
}

/// The same of a Pod as the API server sent it.
pub fn live_fingerprint(pod: &Value) -> u64 {
    let uid = pod.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
    fingerprint_of(uid, statuses(pod).map(|status| text(status, "containerID")))
}

fn fingerprint_of<'a>(uid: &str, ids: impl Iterator<Item = &'a str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    ids.for_each(|id| id.hash(&mut hasher));
    hasher.finish()
}

/// An instance in the runtime.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// What the runtime knows of it.
    pub instance: Instance,
    /// Kubelet's hash of the definition, as the runtime keeps it.
    pub plain_hash: u64,
}

/// Kubelet's hash as it stands in the runtime's annotation; 0 if it does not.
pub fn parse_plain_hash(text: Option<&String>) -> u64 {
    text.and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or_default()
}

/// The report as far as it is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The annotation to write.
    pub meta: RuntimeMeta,
    /// Instances in the Pod's status of which neither the annotation nor the runtime says anything.
    pub missing: Vec<String>,
    /// Whether one of them runs, says the status: then the runtime is about to show it, or the status is about to change.
    /// One that has ended may be gone for good.
    pub is_awaited: bool,
    /// Entries whose environment has to be read from the runtime.
    pub unread: Vec<usize>,
}

/// What is to be reported. What the annotation says of an instance stays: an instance never changes.
pub fn report(pod: &Value, reported: Option<&RuntimeMeta>, found: &[Found], with_environment: bool) -> Report {
    let mut report = Report::default();
    report.meta.unknown = reported.map(|meta| meta.unknown.clone()).unwrap_or_default();
    for status in statuses(pod) {
        let (name, id) = (text(status, "name"), text(status, "containerID"));
        let Some(container) = container_of(pod, name).filter(|_| !id.is_empty()) else { continue };
        let known = reported.and_then(|meta| meta.containers.iter().find(|c| c.container_id == id && c.name == name));
        let found = found.iter().find(|found| is_it(found, name, id, pod));
        let mut entry = match (known, found) {
            (Some(known), _) => known.clone(),
            (None, Some(found)) => RuntimeContainer {
                name: name.to_owned(),
                container_id: id.to_owned(),
                restart_count: found.instance.restart_count,
                hashes: Hashes { plain_hash: found.plain_hash, ..Hashes::default() },
                unknown: BTreeMap::new(),
            },
            (None, None) => {
                report.is_awaited |= status.pointer("/state/running").is_some();
                report.missing.push(id.to_owned());
                continue;
            }
        };
        if with_environment && entry.hashes.extracted_env_from_metadata_hash == 0 {
            if referred_keys(container).next().is_none() {
                // Whatever it got, none of it came from metadata.
                entry.hashes.extracted_env_from_metadata_hash = actual_env_hash(container, &[]);
            } else {
                report.unread.push(report.meta.containers.len());
            }
        }
        report.meta.containers.push(entry);
    }
    report
}

impl Report {
    /// Sets the environment that an instance got.
    pub fn note_environment(&mut self, pod: &Value, index: usize, got: &[String]) {
        let Some(entry) = self.meta.containers.get_mut(index) else { return };
        if let Some(container) = container_of(pod, &entry.name) {
            entry.hashes.extracted_env_from_metadata_hash = actual_env_hash(container, got);
        }
    }
}

/// The instances that have to be stopped, so that kubelet starts the containers with the current environment.
///
/// Only while the Pod is being updated in place, and only those that kubelet will not replace by itself.
pub fn outdated(pod: &Value, meta: &RuntimeMeta) -> Vec<Kill> {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    let mut conditions = conditions.filter(|c| text(c, "type") == labels::CONDITION_INPLACE_UPDATE_READY);
    if !conditions.any(|c| text(c, "status") == "False") || pod.pointer("/metadata/deletionTimestamp").is_some() {
        return Vec::new();
    }
    let notes = Annotations::of(pod).unwrap_or_default();
    if notes.grace.is_some() {
        // The change is still to come: a restart now would be followed by another one.
        return Vec::new();
    }
    let outdated = meta.containers.iter().filter_map(|entry| {
        let container = container_of(pod, &entry.name)?;
        let has = entry.hashes.extracted_env_from_metadata_hash;
        let differs = has != 0 && has != expected_env_hash(container, pod);
        let is_due =
            differs && comes_back(container, pod) && !kubelet_replaces(container, entry, pod, notes.state.as_ref());
        is_due.then(|| kill(container, entry, pod))
    });
    outdated.collect()
}

/// Whether kubelet starts a container again that was stopped.
fn comes_back(container: &Value, pod: &Value) -> bool {
    let policy = match text(container, "restartPolicy") {
        "" => pod.pointer("/spec/restartPolicy").and_then(Value::as_str).unwrap_or_default(),
        own => own,
    };
    policy != "Never"
}

/// Whether kubelet is about to replace an instance because its image was changed. The new one gets the current environment,
/// and a stop could hit it.
fn kubelet_replaces(container: &Value, entry: &RuntimeContainer, pod: &Value, state: Option<&State>) -> bool {
    if plain_hashes(container).contains(&entry.hashes.plain_hash) {
        return false;
    }
    // Either another image, or a kubelet whose hash is of a definition with fields that the API server added.
    let Some(status) = status_of(pod, &entry.name) else { return true };
    match state.and_then(|state| state.last_container_statuses.get(&entry.name)) {
        Some(before) => before.image_id == text(status, "imageID"),
        None => !is_same_image(text(container, "image"), text(status, "image")),
    }
}

fn kill(container: &Value, entry: &RuntimeContainer, pod: &Value) -> Kill {
    /// As kubelet's default.
    const DEFAULT_GRACE: i64 = 30;
    fn part<T: DeserializeOwned>(container: &Value, pointer: &str) -> Option<T> {
        serde_json::from_value(container.pointer(pointer)?.clone()).ok()
    }
    let grace = pod.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(DEFAULT_GRACE);
    let hook = part::<LifecycleHandler>(container, "/lifecycle/preStop").filter(|_| grace > 0);
    let ports = part::<Vec<ContainerPort>>(container, "/ports").unwrap_or_default();
    Kill {
        container: entry.name.clone(),
        id: entry.container_id.clone(),
        hook: hook.map(|handler| Hook { handler, ports }),
        grace: Duration::from_secs(u64::try_from(grace).unwrap_or(0)),
    }
}

/// Whether the runtime runs the very instance that is to be stopped.
pub fn is_running(kill: &Kill, pod: &Value, found: &[Found]) -> bool {
    let found = found.iter().find(|found| is_it(found, &kill.container, &kill.id, pod));
    found.is_some_and(|found| found.instance.state == InstanceState::Running)
}

/// Whether an instance is that of a container of the Pod: its id says so, and the labels that kubelet gave it.
fn is_it(found: &Found, container: &str, id: &str, pod: &Value) -> bool {
    let Instance { id: own, container: label, namespace, pod_uid, .. } = &found.instance;
    let meta = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    // The runtime knows a static Pod by another UID.
    let annotations = pod.get("metadata").and_then(|meta| meta.get("annotations"));
    let config_hash = annotations.and_then(|a| a.get(labels::STATIC_POD_CONFIG_HASH)?.as_str());
    own == id
        && label == container
        && namespace == meta("/metadata/namespace")
        && (pod_uid == meta("/metadata/uid") || Some(pod_uid.as_str()) == config_hash)
}

/// The environment of an instance, as `NAME=value`, from what a runtime says of a container when it is asked for all.
pub fn environment_from_info(info: &str) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Info {
        runtime_spec: Spec,
    }
    #[derive(Deserialize)]
    struct Spec {
        process: Process,
    }
    #[derive(Deserialize)]
    struct Process {
        #[serde(default)]
        env: Vec<String>,
    }
    serde_json::from_str::<Info>(info).ok().map(|info| info.runtime_spec.process.env)
}

/// The same from what the program `env` prints. A line that begins no variable goes on with the value before it.
pub fn environment_from_output(output: &[u8]) -> Vec<String> {
    let output = String::from_utf8_lossy(output);
    let mut environment: Vec<String> = Vec::new();
    for line in output.strip_suffix('\n').unwrap_or(&output).split('\n') {
        let name = line.split_once('=').map_or("", |(name, _)| name);
        let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || "_.-".contains(c))
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
        match environment.last_mut().filter(|_| !begins) {
            Some(last) => {
                last.push('\n');
                last.push_str(line);
            }
            None => environment.push(line.to_owned()),
        }
    }
    environment
}

fn statuses(pod: &Value) -> impl Iterator<Item = &Value> {
    pod.pointer("/status/containerStatuses").and_then(Value::as_array).into_iter().flatten()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests;
