//! Whether two SidecarSets can give their containers to the same Pod.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    api::apps::sidecar_set::{PATCH_OVERWRITE, PATCH_RETAIN},
    domain::budgets::unavailable::overlap::are_disjoint,
    webhook::{
        server::review::Cause,
        validate::{Findings, show_text},
    },
};

/// Judges a SidecarSet beside another one.
pub(super) fn compare(set: &Value, other: &Value) -> Findings {
    let mut found = Findings::default();
    if set.pointer("/metadata/name") == other.pointer("/metadata/name") || !overlap(set, other) {
        return found;
    }
    let name = other.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    for list in ["initContainers", "containers"] {
        let theirs = names(other, list);
        for (i, own) in own_names(set, list) {
            if theirs.contains(&own) {
                let message =
                    format!("{} is a container of SidecarSet {name} too, for some of the same Pods", show_text(&own));
                found.causes.push(Cause { field: format!("spec.{list}[{i}].name"), message });
            }
        }
    }
    let theirs = items(other, "volumes");
    for (i, volume) in items(set, "volumes").iter().enumerate() {
        if theirs.iter().any(|other| other["name"] == volume["name"] && other != volume) {
            let message =
                format!("{} is another volume in SidecarSet {name}, for some of the same Pods", volume["name"]);
            found.causes.push(Cause { field: format!("spec.volumes[{i}].name"), message });
        }
    }
    let theirs = patched(other);
    for (key, policy) in patched(set) {
        let Some(other) = theirs.get(&key) else { continue };
        let both_write = policy != PATCH_RETAIN && other != PATCH_RETAIN;
        if both_write && (policy == PATCH_OVERWRITE || other == PATCH_OVERWRITE) {
            let message = format!("annotation {key} is written by SidecarSet {name} too, for some of the same Pods");
            found.causes.push(Cause { field: "spec.patchPodMetadata".into(), message });
        }
    }
    found
}

fn overlap(a: &Value, b: &Value) -> bool {
    let selector = |set: &Value, key: &str| -> Option<_> {
        let value = set.pointer(&format!("/spec/{key}")).filter(|value| !value.is_null())?;
        serde_json::from_value(value.clone()).ok()
    };
    let namespaces = |set: &Value| {
        let namespace = set.pointer("/spec/namespace").and_then(Value::as_str).unwrap_or_default();
        match namespace {
            "" => selector(set, "namespaceSelector"),
            _ => serde_json::from_value(super::of_namespace(namespace)).ok(),
        }
    };
    let apart = |a: Option<_>, b: Option<_>| a.zip(b).is_some_and(|(a, b)| are_disjoint(&a, &b));
    !apart(namespaces(a), namespaces(b)) && !apart(selector(a, "selector"), selector(b, "selector"))
}

fn items<'v>(set: &'v Value, list: &str) -> &'v [Value] {
    set.pointer(&format!("/spec/{list}")).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The names that the containers of a list have in Pods, with their places.
fn own_names(set: &Value, list: &str) -> Vec<(usize, String)> {
    let mut names = Vec::new();
    for (i, container) in items(set, list).iter().enumerate() {
        let Some(name) = container["name"].as_str() else { continue };
        names.push((i, name.to_owned()));
        if container.pointer("/upgradeStrategy/upgradeType").is_some_and(|way| way == "HotUpgrade") {
            names.extend(["1", "2"].map(|twin| (i, format!("{name}-{twin}"))));
        }
    }
    names
}

fn names(set: &Value, list: &str) -> Vec<String> {
    own_names(set, list).into_iter().map(|(_, name)| name).collect()
}

fn patched(set: &Value) -> BTreeMap<String, String> {
    let mut keys = BTreeMap::new();
    for patch in items(set, "patchPodMetadata") {
        let policy = patch["patchPolicy"].as_str().filter(|policy| !policy.is_empty()).unwrap_or(PATCH_RETAIN);
        for key in patch["annotations"].as_object().into_iter().flat_map(|all| all.keys()) {
            keys.insert(key.clone(), policy.to_owned());
        }
    }
    keys
}
