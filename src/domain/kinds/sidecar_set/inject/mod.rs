//! Injection: the patch by which a new Pod gets its sidecars.
//!
//! Everything is a function of the Pod, the SidecarSets that are for it, in the order of their names, and the time. A
//! SidecarSet that cannot be applied, or whose sidecars the API server would refuse in this Pod, is left out as a whole, with
//! the reason, and the others are injected as if it were not there.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use self::{
    container::{Subject, items, name},
    merge::Added,
};
use super::{
    metadata::{self, When},
    notes::{Injected, PodNotes},
};
use crate::{
    api::labels::{
        LAUNCH_PRIORITY, LAUNCH_PRIORITY_ORDERED, POD_LEVEL_ADJUSTED, SIDECAR_SETS_LEFT_OUT, STATIC_POD_MIRROR,
    },
    k8s::{limits::MOST_ANNOTATIONS, pointer::escaped},
};

mod checks;
mod container;
mod fields;
mod merge;
mod pod_level;

pub use container::twins;
pub use fields::ApiServer;
pub use pod_level::PodLevel;

/// The most SidecarSets that one Pod gets.
pub const MOST_SETS: usize = 100;
/// The most bytes of a reason on a Pod, and the most reasons.
const MOST_REASON: usize = 300;
const MOST_REASONS: usize = 20;
/// The most characters of what is noted about resources.
const MOST_REMARKS: usize = 1000;

/// A SidecarSet that is for a Pod, in the revision that the Pod gets.
#[derive(Clone, Copy, Debug)]
pub struct Set<'a> {
    /// Its name.
    pub name: &'a str,
    /// The spec of the revision.
    pub spec: &'a Value,
    /// The hash of the revision.
    pub hash: &'a str,
    /// Its hash without images.
    pub hash_without_image: &'a str,
    /// The name of the revision; empty if it is not known.
    pub revision: &'a str,
    /// How its sidecars get along with resources of a Pod as a whole.
    pub pod_level: PodLevel,
}

/// A SidecarSet that is for a Pod and is not injected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its name.
    pub set: String,
    /// Why.
    pub reason: String,
}

/// What does not depend on the Pod.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Whether containers are sorted by name; otherwise they stand as their SidecarSets have them.
    pub sorted: bool,
    /// Which fields the API server has, and refuses.
    pub api_server: ApiServer,
    /// For the notes on the Pod.
    pub now: Timestamp,
}

/// What is to be done with a Pod.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// JSON patch operations.
    pub patch: Vec<Value>,
    /// The SidecarSets that are injected.
    pub injected: Vec<String>,
    /// Those that are not.
    pub left_out: Vec<LeftOut>,
    /// What was done besides, for the author of the Pod.
    pub remarks: Vec<String>,
}

/// Whether a new Pod gets sidecars at all: not the image of one that kubelet runs from a file. A phase that its creator writes says
/// nothing: the API server makes it Pending after admission, so that it would be a way around sidecars that are required.
pub fn is_open(pod: &Value) -> bool {
    let is_mirror = !pod["metadata"]["annotations"][STATIC_POD_MIRROR].is_null();
    pod["spec"].is_object() && pod["metadata"].is_object() && !is_mirror
}

/// What is to be done with a new Pod. `left_out` are SidecarSets for it of which no revision could be had.
pub fn inject(pod: &Value, sets: &[Set<'_>], left_out: Vec<LeftOut>, settings: Settings) -> Outcome {
    let mut outcome = Outcome { left_out, ..Outcome::default() };
    let mut sets: Vec<&Set<'_>> = sets.iter().collect();
    sets.sort_by_key(|set| set.name);
    for set in sets.split_off(sets.len().min(MOST_SETS)) {
        let reason = format!("{MOST_SETS} other SidecarSets are injected; a Pod gets no more");
        outcome.left_out.push(LeftOut { set: set.name.to_owned(), reason });
    }
    let done = loop {
        match attempt(pod, &sets, settings) {
            Ok(done) => break done,
            // Once more without it: nothing of it may stay behind.
            Err((at, reason)) => {
                let set = sets.remove(at).name.to_owned();
                outcome.left_out.push(LeftOut { set, reason });
            }
        }
    };
    outcome.injected = sets.iter().map(|set| set.name.to_owned()).collect();
    let Attempt { mut annotations, patch, remarks } = done;
    note_left_out(&mut annotations, &outcome.left_out);
    // The creator of a Pod is mostly a controller, which shows no warning to anybody.
    note(&mut annotations, POD_LEVEL_ADJUSTED, remarks.join("; ").chars().take(MOST_REMARKS).collect());
    outcome.patch = annotation_operations(pod, &annotations);
    outcome.patch.extend(patch);
    outcome.remarks = remarks;
    outcome
}

struct Attempt {
    annotations: Map<String, Value>,
    patch: Vec<Value>,
    remarks: Vec<String>,
}

/// A SidecarSet that cannot be injected, by its place, and why.
type Refused = (usize, String);

fn attempt(pod: &Value, sets: &[&Set<'_>], settings: Settings) -> Result<Attempt, Refused> {
    let mut annotations = pod["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    for (i, set) in sets.iter().enumerate() {
        metadata::apply(&mut annotations, &set.spec["patchPodMetadata"], When::Creation)
            .map_err(|error| (i, error.to_string()))?;
    }
    let spec = &pod["spec"];
    let names = names(sets)?;
    let subject = Subject { pod, annotations: &annotations, sidecars: &names };
    let mut init = made(&subject, sets, "initContainers")?;
    // Init containers are ordered by name, across SidecarSets.
    init.sort_by(|a, b| name(&a.value).cmp(name(&b.value)));
    let mut regular = made(&subject, sets, "containers")?;
    if settings.sorted {
        regular.sort_by(|a, b| name(&a.value).cmp(name(&b.value)));
    }
    let volumes = volumes(spec, sets)?;
    let mut init = merge::merged(spec, "initContainers", init);
    let mut regular = merge::merged(spec, "containers", regular);
    init.iter_mut()
        .chain(&mut regular)
        .filter(|slot| slot.set.is_some())
        .for_each(|slot| fields::relieve(spec, &mut slot.value, settings.api_server));
    let of_set = |i: usize| sets.get(i).map_or_else(PodLevel::default, |set| set.pod_level);
    let (resources, remarks) = pod_level::adjust(spec, &mut init, &mut regular, of_set);
    let all: BTreeMap<&str, &Value> =
        items(spec, "volumes").chain(&volumes).map(|volume| (name(volume), volume)).collect();
    let reads_priorities = annotations.get(LAUNCH_PRIORITY).is_none_or(|priority| *priority != LAUNCH_PRIORITY_ORDERED);
    let surroundings = fields::Surroundings::of(spec, &annotations, settings.api_server);
    checks::given(&pod["metadata"]["annotations"], &annotations, sets, (&init, &regular))
        .and_then(|()| checks::first(spec, &surroundings, (&init, &regular), &all, reads_priorities))
        .map_err(|(i, conflict)| (i, conflict.to_string()))?;

    let notes = noted(&annotations, sets, settings.now);
    write_notes(&mut annotations, sets, &notes);
    let bytes = size(&annotations);
    if bytes > MOST_ANNOTATIONS
        && let Some(last) = sets.len().checked_sub(1)
    {
        return Err((
            last,
            format!("with its annotations the Pod would have {bytes} bytes of them; want at most {MOST_ANNOTATIONS}"),
        ));
    }
    let mut patch = merge::operations(spec, "initContainers", &init);
    patch.extend(merge::operations(spec, "containers", &regular));
    patch.extend(merge::appended(spec, "volumes", volumes));
    patch.extend(merge::appended(spec, "imagePullSecrets", secrets(spec, sets)));
    patch.extend(resources);
    Ok(Attempt { annotations, patch, remarks })
}

/// The names of all sidecars, those of pairs too.
///
/// # Errors
/// Two SidecarSets have sidecars of one name.
fn names(sets: &[&Set<'_>]) -> Result<BTreeSet<String>, Refused> {
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    for (i, set) in sets.iter().enumerate() {
        for sidecar in items(set.spec, "initContainers").chain(items(set.spec, "containers")) {
            let own = twins(sidecar).map_or_else(|| vec![name(sidecar).to_owned()], Vec::from);
            for name in own {
                if let Some(first) = names.insert(name.clone(), i) {
                    let other = if first == i { "the SidecarSet itself" } else { sets[first].name };
                    return Err((i, format!("container {name}: {other} has a container of this name too")));
                }
            }
        }
    }
    Ok(names.into_keys().collect())
}

/// The sidecars of a list of all SidecarSets.
fn made(subject: &Subject<'_>, sets: &[&Set<'_>], field: &str) -> Result<Vec<Added>, Refused> {
    let mut added = Vec::new();
    for (set, of) in sets.iter().enumerate() {
        for sidecar in items(of.spec, field) {
            let values = subject.made(sidecar).map_err(|unfit| (set, unfit.to_string()))?;
            let is_before = sidecar["podInjectPolicy"] == "BeforeAppContainer";
            added.extend(values.into_iter().map(|value| Added { value, set, is_before }));
        }
    }
    Ok(added)
}

/// The volumes that sidecars mount and the Pod lacks, in the order in which they are mounted, as OpenKruise appends them. A volume
/// of the Pod wins over one of the same name.
fn volumes(spec: &Value, sets: &[&Set<'_>]) -> Result<Vec<Value>, Refused> {
    let mut added: Vec<(usize, &Value)> = Vec::new();
    for (i, set) in sets.iter().enumerate() {
        let by_name: BTreeMap<&str, &Value> = items(set.spec, "volumes").map(|volume| (name(volume), volume)).collect();
        let sidecars = items(set.spec, "initContainers").chain(items(set.spec, "containers"));
        let mounted = sidecars.flat_map(|sidecar| {
            let mounts = items(sidecar, "volumeMounts").chain(items(sidecar, "volumeDevices"));
            mounts.map(name).chain(checks::read_volumes(sidecar))
        });
        let mut seen = BTreeSet::new();
        let first = mounted.filter(|mounted| seen.insert(*mounted));
        for volume in first.filter_map(|mounted| by_name.get(mounted).copied()) {
            if items(spec, "volumes").any(|own| name(own) == name(volume)) {
                continue;
            }
            match added.iter().find(|(_, other)| name(other) == name(volume)) {
                None => added.push((i, volume)),
                Some((_, other)) if *other == volume => {}
                Some((first, _)) => {
                    let other = sets[*first].name;
                    return Err((i, format!("volume {}: {other} has another volume of this name", name(volume))));
                }
            }
        }
    }
    Ok(added.into_iter().map(|(_, volume)| volume.clone()).collect())
}

/// The pull secrets that the Pod lacks.
fn secrets(spec: &Value, sets: &[&Set<'_>]) -> Vec<Value> {
    let mut known: BTreeSet<&str> = items(spec, "imagePullSecrets").map(name).collect();
    let all = sets.iter().flat_map(|set| items(set.spec, "imagePullSecrets"));
    all.filter(|secret| known.insert(name(secret))).cloned().collect()
}

/// What is noted on the Pod. Notes that cannot be read are written anew.
fn noted(annotations: &Map<String, Value>, sets: &[&Set<'_>], now: Timestamp) -> PodNotes {
    let mut notes = PodNotes::read(annotations).unwrap_or_default();
    for set in sets {
        let native = items(set.spec, "initContainers").filter(|container| container["restartPolicy"] == "Always");
        let sidecars = items(set.spec, "containers").chain(native).map(name).collect();
        let Set { name, hash, hash_without_image, revision, .. } = **set;
        notes.add(&Injected { name, hash, hash_without_image, sidecars, revision }, now);
    }
    notes
}

fn write_notes(annotations: &mut Map<String, Value>, sets: &[&Set<'_>], notes: &PodNotes) {
    if sets.is_empty() {
        return;
    }
    let mut notes = notes.clone();
    for set in sets {
        for sidecar in items(set.spec, "containers").chain(items(set.spec, "initContainers")) {
            let Some(twins) = twins(sidecar) else { continue };
            let versions = container::versions(&twins).into_iter();
            annotations.extend(versions.map(|(key, version)| (key, version.into())));
            let [first, _] = twins;
            notes.working.insert(name(sidecar).to_owned(), first);
        }
    }
    notes.write(annotations);
}

/// Notes the reasons, within limits; takes away those of a Pod that was copied from another one.
fn note_left_out(annotations: &mut Map<String, Value>, left_out: &[LeftOut]) {
    annotations.remove(SIDECAR_SETS_LEFT_OUT);
    let cut = |text: &str| text.chars().take(MOST_REASON).collect::<String>();
    let reasons: BTreeMap<&str, String> =
        left_out.iter().take(MOST_REASONS).map(|left| (left.set.as_str(), cut(&left.reason))).collect();
    let text = if reasons.is_empty() { None } else { serde_json::to_string(&reasons).ok() };
    note(annotations, SIDECAR_SETS_LEFT_OUT, text.unwrap_or_default());
}

/// Notes a text, unless there is none or it does not fit.
fn note(annotations: &mut Map<String, Value>, key: &str, text: String) {
    if !text.is_empty() && size(annotations) + key.len() + text.len() <= MOST_ANNOTATIONS {
        annotations.insert(key.into(), text.into());
    }
}

/// The bytes of annotations.
fn size(annotations: &Map<String, Value>) -> usize {
    annotations.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum()
}

fn annotation_operations(pod: &Value, wanted: &Map<String, Value>) -> Vec<Value> {
    let now = pod["metadata"]["annotations"].as_object();
    if now.is_none() && !wanted.is_empty() {
        return vec![json!({ "op": "add", "path": "/metadata/annotations", "value": wanted })];
    }
    let now = now.into_iter().flatten();
    let path = |key: &str| format!("/metadata/annotations/{}", escaped(key));
    let gone = now.clone().filter(|(key, _)| !wanted.contains_key(*key));
    let mut operations: Vec<Value> = gone.map(|(key, _)| json!({ "op": "remove", "path": path(key) })).collect();
    let known: BTreeMap<&String, &Value> = now.collect();
    let new = wanted.iter().filter(|(key, value)| known.get(key) != Some(value));
    operations.extend(new.map(|(key, value)| json!({ "op": "add", "path": path(key), "value": value })));
    operations
}

#[cfg(test)]
mod tests;
