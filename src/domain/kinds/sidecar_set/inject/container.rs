//! One sidecar, made for one Pod.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde_json::{Map, Value, json};

use crate::{
    api::apps::sidecar_set::{OWN_FIELDS, twin_names},
    api::labels::{
        ENV_IS_INJECTED, ENV_SIDECAR_SET_VERSION, ENV_SIDECAR_SET_VERSION_ALT, SIDECAR_SET_VERSION_ALT_PREFIX,
        SIDECAR_SET_VERSION_PREFIX,
    },
    domain::kinds::sidecar_set::resources,
};

/// The Pod as sidecars see it.
pub(super) struct Subject<'a> {
    /// The Pod.
    pub pod: &'a Value,
    /// Its annotations, with those of `patchPodMetadata`.
    pub annotations: &'a Map<String, Value>,
    /// The names of all sidecars.
    pub sidecars: &'a BTreeSet<String>,
}

/// Whether a container was injected.
pub(super) fn is_injected(container: &Value) -> bool {
    items(container, "env").any(|variable| variable["name"] == ENV_IS_INJECTED && variable["value"] == "true")
}

pub(super) fn items<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    object[field].as_array().into_iter().flatten()
}

pub(super) fn name(object: &Value) -> &str {
    object["name"].as_str().unwrap_or_default()
}

/// The names of the two containers of a hot-upgraded sidecar; None: it is one container.
pub fn twins(sidecar: &Value) -> Option<[String; 2]> {
    (sidecar["upgradeStrategy"]["upgradeType"] == "HotUpgrade").then(|| twin_names(name(sidecar)))
}

impl<'a> Subject<'a> {
    /// Its containers that were not injected.
    fn apps(&self) -> impl Iterator<Item = &'a Value> {
        items(&self.pod["spec"], "containers").filter(|container| !is_injected(container))
    }

    /// The containers that a sidecar is in this Pod: one, or two that take turns.
    ///
    /// # Errors
    /// It cannot be one, in words.
    pub(super) fn made(&self, sidecar: &Value) -> Result<Vec<Value>, Unfit> {
        let Some(fields) = sidecar.as_object() else { return Err(Unfit::NoContainer) };
        let mut container = fields.clone();
        OWN_FIELDS.iter().for_each(|field| drop(container.remove(*field)));
        if !sidecar["resourcesPolicy"].is_null() {
            let computed = resources::computed(&sidecar["resourcesPolicy"], self.pod, self.sidecars)?;
            container.insert("resources".into(), computed);
        }
        let shared = self.shared_mounts(sidecar);
        let variables = self.environment(sidecar, &shared);
        let mounts: Vec<Value> = shared.into_iter().map(|(mount, _)| mount.clone()).collect();
        extend(&mut container, "volumeMounts", mounts);
        container.insert("env".into(), variables.into());
        let devices = self.shared_devices(sidecar, &container);
        extend(&mut container, "volumeDevices", devices);
        match twins(sidecar) {
            None if is_empty(&container, "image") => Err(Unfit::NoImage { field: "image", name: name(sidecar).into() }),
            None => Ok(vec![container.into()]),
            Some(names) => two(&container, sidecar, &names).map(Vec::from),
        }
    }

    /// The mounts of the Pod's containers that the sidecar shares, each with its container.
    fn shared_mounts(&self, sidecar: &Value) -> Vec<(&'a Value, &'a Value)> {
        if sidecar["shareVolumePolicy"]["type"] != "enabled" {
            return Vec::new();
        }
        let mounts = items(sidecar, "volumeMounts").map(|mount| &mount["mountPath"]);
        let devices = items(sidecar, "volumeDevices").map(|device| &device["devicePath"]);
        // Nobody has looked at the Pod yet: it may have tens of thousands of them.
        let mut taken: HashSet<String> = mounts.chain(devices).map(Value::to_string).collect();
        let mut shared = Vec::new();
        for container in self.apps() {
            for mount in items(container, "volumeMounts") {
                if taken.insert(mount["mountPath"].to_string()) {
                    shared.push((mount, container));
                }
            }
        }
        shared
    }

    /// The devices of the Pod's containers that the sidecar shares.
    fn shared_devices(&self, sidecar: &Value, container: &Map<String, Value>) -> Vec<Value> {
        if sidecar["shareVolumeDevicePolicy"]["type"] != "enabled" {
            return Vec::new();
        }
        let list = |field: &str| container.get(field).and_then(Value::as_array).into_iter().flatten();
        let mounts = list("volumeMounts").map(|mount| &mount["mountPath"]);
        let devices = list("volumeDevices").map(|device| &device["devicePath"]);
        let mut taken: HashSet<String> = mounts.chain(devices).map(Value::to_string).collect();
        // A container has each volume as one device.
        let mut names: HashSet<String> = list("volumeDevices").map(|device| name(device).to_owned()).collect();
        let all = self.apps().flat_map(|app| items(app, "volumeDevices"));
        let new = all.filter(|device| {
            !names.contains(name(device))
                && taken.insert(device["devicePath"].to_string())
                && names.insert(name(device).to_owned())
        });
        new.cloned().collect()
    }

    /// The sidecar's variables, then the mark, then what it takes over, of which the first of a name counts.
    fn environment(&self, sidecar: &Value, shared: &[(&Value, &Value)]) -> Vec<Value> {
        let own = items(sidecar, "env").filter(|variable| name(variable) != ENV_IS_INJECTED);
        let mut variables: Vec<Value> = own.cloned().collect();
        variables.push(json!({ "name": ENV_IS_INJECTED, "value": "true" }));
        let mut names: HashSet<String> = variables.iter().map(|variable| name(variable).to_owned()).collect();
        let mut add = |variable: &Value| {
            if names.insert(name(variable).to_owned()) {
                variables.push(variable.clone());
            }
        };
        for transfer in items(sidecar, "transferEnv") {
            let Some(source) = self.source(transfer) else { continue };
            let listed = items(transfer, "envNames").chain([&transfer["envName"]]).filter_map(Value::as_str);
            let wanted: BTreeSet<&str> = listed.filter(|name| !name.is_empty()).collect();
            wanted.iter().filter_map(|wanted| variable(source, wanted)).for_each(&mut add);
        }
        let mut last: Option<(&Value, HashMap<&str, &Value>)> = None;
        for &(mount, container) in shared {
            let wanted = references(mount["subPathExpr"].as_str().unwrap_or_default());
            if wanted.is_empty() {
                continue;
            }
            // The mounts of a container follow each other: its variables are looked at once.
            let of_container = match last.take().filter(|(of, _)| std::ptr::eq(*of, container)) {
                Some((_, variables)) => variables,
                None => items(container, "env").map(|variable| (name(variable), variable)).collect(),
            };
            wanted.iter().filter_map(|wanted| of_container.get(wanted).copied()).for_each(&mut add);
            last = Some((container, of_container));
        }
        variables
    }

    /// The container that a variable is taken from; None: there is none, or the reference is none.
    fn source(&self, transfer: &Value) -> Option<&'a Value> {
        let reference = &transfer["sourceContainerNameFrom"]["fieldRef"];
        let wanted = match reference.is_null() {
            true => transfer["sourceContainerName"].as_str()?,
            false => self.field(reference["fieldPath"].as_str()?)?,
        };
        items(&self.pod["spec"], "containers").find(|container| name(container) == wanted)
    }

    /// The value of an annotation or label of the Pod.
    fn field(&self, path: &str) -> Option<&str> {
        let key = |prefix: &str| path.strip_prefix(prefix)?.strip_suffix("']");
        match key("metadata.annotations['") {
            Some(key) => self.annotations.get(key)?.as_str(),
            None => self.pod["metadata"]["labels"].get(key("metadata.labels['")?)?.as_str(),
        }
    }
}

/// Why a sidecar cannot be a container of a Pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unfit {
    /// It is no object.
    #[error("one of its containers is no object")]
    NoContainer,
    /// It has no image.
    #[error("container {name} has no {field}")]
    NoImage {
        /// The field.
        field: &'static str,
        /// The container.
        name: String,
    },
    /// Its resources cannot be computed.
    #[error(transparent)]
    Resources(#[from] resources::ResourcesError),
}

fn is_empty(container: &Map<String, Value>, field: &str) -> bool {
    container.get(field).and_then(Value::as_str).is_none_or(str::is_empty)
}

/// Appends to a list of a container.
fn extend(container: &mut Map<String, Value>, field: &str, more: Vec<Value>) {
    if more.is_empty() {
        return;
    }
    match container.get_mut(field) {
        Some(Value::Array(list)) => list.extend(more),
        _ => drop(container.insert(field.into(), more.into())),
    }
}

/// The variable of a container; of equal names the last one counts, as for kubelet.
fn variable<'a>(container: &'a Value, wanted: &str) -> Option<&'a Value> {
    items(container, "env").filter(|variable| name(variable) == wanted).last()
}

/// The names in `$(NAME)`; `$$` is a dollar sign.
fn references(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            rest = after;
        } else if let Some(inner) = rest.strip_prefix('(')
            && let Some(end) = inner.find(')')
        {
            let name = &inner[..end];
            let is_name = !name.starts_with(|c: char| c.is_ascii_digit())
                && !name.is_empty()
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
            if is_name {
                found.push(name);
                rest = &inner[end + 1..];
            }
        }
    }
    found
}

/// Both containers of a hot-upgraded sidecar: the first one works, the second one runs the image that does nothing.
fn two(container: &Map<String, Value>, sidecar: &Value, names: &[String; 2]) -> Result<[Value; 2], Unfit> {
    let empty = sidecar["upgradeStrategy"]["hotUpgradeEmptyImage"].as_str().unwrap_or_default();
    let no_image = |field| Unfit::NoImage { field, name: name(sidecar).into() };
    if is_empty(container, "image") {
        return Err(no_image("image"));
    }
    if empty.is_empty() {
        return Err(no_image("upgradeStrategy.hotUpgradeEmptyImage"));
    }
    let of = |twin: &str, image: Option<&str>| {
        let mut container = container.clone();
        container.insert("name".into(), twin.into());
        if let Some(image) = image {
            container.insert("image".into(), image.into());
        }
        let variable = |name: &str, prefix: &str| {
            let path = format!("metadata.annotations['{prefix}{twin}']");
            json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } })
        };
        let versions = [
            variable(ENV_SIDECAR_SET_VERSION, SIDECAR_SET_VERSION_PREFIX),
            variable(ENV_SIDECAR_SET_VERSION_ALT, SIDECAR_SET_VERSION_ALT_PREFIX),
        ];
        extend(&mut container, "env", versions.into());
        Value::Object(container)
    };
    Ok([of(&names[0], None), of(&names[1], Some(empty))])
}

/// The annotations of a Pod with a new hot-upgraded sidecar.
pub(super) fn versions(names: &[String; 2]) -> BTreeMap<String, &'static str> {
    let [first, second] = names;
    BTreeMap::from([
        (format!("{SIDECAR_SET_VERSION_PREFIX}{first}"), "1"),
        (format!("{SIDECAR_SET_VERSION_ALT_PREFIX}{first}"), "0"),
        (format!("{SIDECAR_SET_VERSION_PREFIX}{second}"), "0"),
        (format!("{SIDECAR_SET_VERSION_ALT_PREFIX}{second}"), "1"),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_of_a_sub_path() {
        assert_eq!(references("a/$(POD)/$$(NO)/$(A.b-c_1)/$(1x)/$()/$(/$x"), ["POD", "A.b-c_1"]);
        assert_eq!(references(""), [""; 0]);
    }
}
