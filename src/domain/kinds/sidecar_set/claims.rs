//! What a SidecarSet takes for itself in Pods: names of containers and volumes, and keys of annotations. Two SidecarSets for the
//! same Pods may be in conflict over it; admission compares them.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use serde_json::Value;

use crate::api::apps::sidecar_set::{HOT_UPGRADE, PATCH_RETAIN, twin_names};

/// The lists of containers of a spec.
pub const LISTS: [&str; 2] = ["initContainers", "containers"];

/// A list of a spec; empty if it is missing.
pub fn items<'v>(spec: &'v Value, list: &str) -> &'v [Value] {
    spec.get(list).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The names that the containers of a list have in Pods, with their places in the list.
pub fn containers(spec: &Value, list: &str) -> Vec<(usize, String)> {
    let mut names = Vec::new();
    for (i, container) in items(spec, list).iter().enumerate() {
        let Some(name) = container["name"].as_str() else { continue };
        names.push((i, name.to_owned()));
        if container.pointer("/upgradeStrategy/upgradeType").is_some_and(|way| way == HOT_UPGRADE) {
            names.extend(twin_names(name).map(|twin| (i, twin)));
        }
    }
    names
}

/// The annotations of `patchPodMetadata`, with their policies.
pub fn annotations(spec: &Value) -> BTreeMap<String, String> {
    let mut keys = BTreeMap::new();
    for patch in items(spec, "patchPodMetadata") {
        let policy = patch["patchPolicy"].as_str().filter(|policy| !policy.is_empty()).unwrap_or(PATCH_RETAIN);
        for key in patch["annotations"].as_object().into_iter().flat_map(|all| all.keys()) {
            keys.insert(key.clone(), policy.to_owned());
        }
    }
    keys
}

/// A hash of each name, sorted. SidecarSets that have none in common are not in conflict; four bytes of each are little enough to
/// keep them for very many SidecarSets.
pub fn hashes(spec: &Value) -> Box<[u32]> {
    let mut found = Vec::new();
    let mut add = |kind: &str, name: &str| {
        let mut hasher = DefaultHasher::new();
        (kind, name).hash(&mut hasher);
        // The lower half of it.
        found.push(hasher.finish() as u32);
    };
    for list in LISTS {
        containers(spec, list).iter().for_each(|(_, name)| add(list, name));
    }
    for volume in items(spec, "volumes") {
        add("volumes", volume["name"].as_str().unwrap_or_default());
    }
    annotations(spec).keys().for_each(|key| add("annotations", key));
    found.sort_unstable();
    found.dedup();
    found.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sets_that_share_a_name_meet() {
        let of = |spec: Value| hashes(&spec);
        let meet = |a: &[u32], b: &[u32]| a.iter().any(|hash| b.contains(hash));
        let hot = json!([{"name": "mesh", "upgradeStrategy": {"upgradeType": "HotUpgrade"}}]);
        let patch = |key: &str| json!({"patchPodMetadata": [{"annotations": {key: "1"}}]});
        for (a, b, wanted) in [
            (json!({"containers": [{"name": "a"}]}), json!({"containers": [{"name": "b"}, {"name": "a"}]}), true),
            (json!({"containers": [{"name": "a"}]}), json!({"containers": [{"name": "b"}]}), false),
            (json!({"containers": [{"name": "a"}]}), json!({"initContainers": [{"name": "a"}]}), false),
            (json!({"containers": hot}), json!({"containers": [{"name": "mesh-2"}]}), true),
            (json!({"volumes": [{"name": "v"}]}), json!({"volumes": [{"name": "v", "emptyDir": {}}]}), true),
            (patch("a"), patch("a"), true),
            (patch("a"), patch("b"), false),
            (json!({}), json!({"containers": [1, {}]}), false),
        ] {
            assert_eq!(meet(&of(a.clone()), &of(b.clone())), wanted, "{a} {b}");
            assert_eq!(meet(&of(b.clone()), &of(a.clone())), wanted, "{b} {a}");
        }
    }
}
