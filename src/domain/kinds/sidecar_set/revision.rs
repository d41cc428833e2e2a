//! What is recorded of a SidecarSet in its ControllerRevisions, in the bytes of OpenKruise.

use serde_json::{Map, Value, json};

use super::hash::{normal_amount, normal_container};
use crate::k8s::{null, revision};

/// The members of the spec that a revision holds. The rest of the spec is not part of what Pods get.
pub const RECORDED: [&str; 5] = ["containers", "imagePullSecrets", "initContainers", "patchPodMetadata", "volumes"];

/// The data of the revision with this `spec`: lists that are missing or empty are null.
pub fn data(spec: &Value) -> Value {
    let mut recorded = Map::new();
    recorded.insert("$patch".into(), "replace".into());
    for member in RECORDED {
        let list = spec.get(member).and_then(Value::as_array).filter(|list| !list.is_empty());
        let value = match list {
            None => Value::Null,
            Some(list) if member.ends_with("ontainers") => list.iter().map(normal_container).collect(),
            Some(list) if member == "volumes" => list.iter().map(normal_volume).collect(),
            Some(list) => list.iter().map(null::pruned).collect(),
        };
        recorded.insert(member.into(), value);
    }
    json!({ "spec": recorded })
}

/// A volume with its amounts as Go writes them. Nulls, which may have been stored past admission, are nothing to Go.
fn normal_volume(volume: &Value) -> Value {
    let mut volume = null::pruned(volume);
    let normalise = |amount: &mut Value| *amount = normal_amount(amount);
    volume.pointer_mut("/emptyDir/sizeLimit").map(normalise);
    for amounts in ["limits", "requests"] {
        let path = format!("/ephemeral/volumeClaimTemplate/spec/resources/{amounts}");
        let amounts = volume.pointer_mut(&path).and_then(Value::as_object_mut);
        amounts.into_iter().flat_map(Map::values_mut).for_each(normalise);
    }
    each(volume.pointer_mut("/downwardAPI/items"), set_divisor);
    each(volume.pointer_mut("/projected/sources"), |source| {
        each(source.pointer_mut("/downwardAPI/items"), set_divisor);
    });
    volume
}

fn each(list: Option<&mut Value>, change: impl FnMut(&mut Value)) {
    list.and_then(Value::as_array_mut).into_iter().flatten().for_each(change);
}

/// It is written also where it is not set.
fn set_divisor(item: &mut Value) {
    let Some(reference) = item.get_mut("resourceFieldRef").and_then(Value::as_object_mut) else { return };
    let divisor = reference.get("divisor").map_or("0".into(), normal_amount);
    reference.insert("divisor".into(), divisor);
}

/// The name of the revision with this `spec` of a SidecarSet, after so many collisions.
pub fn name(set: &str, spec: &Value, collisions: i32) -> String {
    revision::name(set, &revision::hash_of(&data(spec), collisions))
}

/// The members of a spec that the data of a revision holds. None: it is no revision of a SidecarSet.
pub fn restore(data: &Value) -> Option<Map<String, Value>> {
    let recorded = data.get("spec")?.as_object()?;
    let is_one = recorded.contains_key("containers") || recorded.contains_key("initContainers");
    let members = recorded.iter().filter(|(name, value)| RECORDED.contains(&name.as_str()) && !value.is_null());
    is_one.then(|| members.map(|(name, value)| (name.clone(), value.clone())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::canonical_json;

    /// The revisions of the recorded SidecarSet as the API server sent them: name and the bytes of the data.
    const REVISIONS: [(&str, &str); 2] = [
        (
            "golden-sidecar-5c698cf546",
            r#"{"spec":{"$patch":"replace","containers":[{"command":["sh","-c","trap \"exit 0\" TERM; sleep 100000 \u0026 wait"],"image":"docker.io/library/busybox:1.35","imagePullPolicy":"IfNotPresent","name":"agent","podInjectPolicy":"BeforeAppContainer","resources":{},"shareVolumePolicy":{"type":"enabled"},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","transferEnv":[{"envName":"FROM_MAIN","sourceContainerName":"main"}],"upgradeStrategy":{"upgradeType":"ColdUpgrade"}}],"imagePullSecrets":null,"initContainers":null,"patchPodMetadata":[{"annotations":{"agent.example.com/x":"1"},"patchPolicy":"Overwrite"}],"volumes":null}}"#,
        ),
        (
            "golden-sidecar-6d5866574c",
            r#"{"spec":{"$patch":"replace","containers":[{"command":["sh","-c","trap \"exit 0\" TERM; sleep 100000 \u0026 wait"],"image":"docker.io/library/busybox:1.34","imagePullPolicy":"IfNotPresent","name":"agent","podInjectPolicy":"BeforeAppContainer","resources":{},"shareVolumePolicy":{"type":"enabled"},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","transferEnv":[{"envName":"FROM_MAIN","sourceContainerName":"main"}],"upgradeStrategy":{"upgradeType":"ColdUpgrade"}}],"imagePullSecrets":null,"initContainers":null,"patchPodMetadata":[{"annotations":{"agent.example.com/x":"1"},"patchPolicy":"Overwrite"}],"volumes":null}}"#,
        ),
    ];

    #[test]
    fn recorded_revisions_are_reproduced_byte_for_byte() {
        let recorded: Vec<Value> =
            serde_json::from_str(include_str!("../../../api/apps/testdata/sidecar_sets.json")).unwrap();
        for object in recorded {
            let (spec, wanted) = (&object["spec"], &object["status"]["latestRevision"]);
            let (name, bytes) = REVISIONS.iter().find(|(name, _)| *wanted == **name).unwrap();
            assert_eq!(canonical_json::encode(&data(spec)), *bytes);
            assert_eq!(super::name("golden-sidecar", spec, 0), *name);
        }
    }

    #[test]
    fn the_minimal_vector_of_a15() {
        let container = json!({"name": "log", "image": "busybox:1.36", "resources": {}, "imagePullPolicy": "IfNotPresent",
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "podInjectPolicy": "BeforeAppContainer", "upgradeStrategy": {"upgradeType": "ColdUpgrade"},
            "shareVolumePolicy": {"type": "disabled"}});
        assert_eq!(name("log", &json!({"containers": [container]}), 0), "log-78d6bc76b8");
    }

    #[test]
    fn a15_amounts_of_volumes_have_one_spelling() {
        let items = json!([{"path": "a", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}},
            {"path": "b", "resourceFieldRef": {"resource": "limits.memory", "divisor": "1024Ki"}},
            {"path": "c", "fieldRef": {"fieldPath": "metadata.name"}}]);
        let volumes = json!([{"name": "tmp", "emptyDir": {"sizeLimit": "1024Mi"}}, {"name": "raw", "emptyDir": {}},
            {"name": "info", "downwardAPI": {"items": items}},
            {"name": "all", "projected": {"sources": [{"downwardAPI": {"items": [items[1]]}}, {"secret": {"name": "s"}}]}},
            {"name": "claim", "ephemeral": {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "0.5Gi"}}}}}},
            7]);
        let wanted = concat!(
            r#"[{"emptyDir":{"sizeLimit":"1Gi"},"name":"tmp"},{"emptyDir":{},"name":"raw"},"#,
            r#"{"downwardAPI":{"items":[{"path":"a","resourceFieldRef":{"containerName":"c","divisor":"0","resource":"limits.cpu"}},"#,
            r#"{"path":"b","resourceFieldRef":{"divisor":"1Mi","resource":"limits.memory"}},"#,
            r#"{"fieldRef":{"fieldPath":"metadata.name"},"path":"c"}]},"name":"info"},"#,
            r#"{"name":"all","projected":{"sources":[{"downwardAPI":{"items":[{"path":"b","resourceFieldRef":{"divisor":"1Mi","#,
            r#""resource":"limits.memory"}}]}},{"secret":{"name":"s"}}]}},"#,
            r#"{"ephemeral":{"volumeClaimTemplate":{"spec":{"resources":{"requests":{"storage":"512Mi"}}}}},"name":"claim"},7]"#
        );
        assert_eq!(canonical_json::encode(&data(&json!({ "volumes": volumes }))["spec"]["volumes"]), wanted);
    }

    #[test]
    fn nulls_that_are_stored_are_no_part_of_a_revision() {
        let spec = json!({
            "containers": [{"name": "c", "image": "i", "env": null}],
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": null, "medium": null}, "hostPath": null},
                {"name": "info", "downwardAPI": {"items": [{"path": "a", "fieldRef": null, "resourceFieldRef": {"resource": "limits.cpu", "divisor": null}}]}}],
            "imagePullSecrets": [{"name": "s", "newer": null}, {"name": null}],
            "patchPodMetadata": [{"annotations": {"a": "b"}, "patchPolicy": null}, {"annotations": null}],
        });
        let without = json!({
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "emptyDir": {}},
                {"name": "info", "downwardAPI": {"items": [{"path": "a", "resourceFieldRef": {"resource": "limits.cpu"}}]}}],
            "imagePullSecrets": [{"name": "s"}, {}],
            "patchPodMetadata": [{"annotations": {"a": "b"}}, {}],
        });
        assert_eq!(data(&spec), data(&without));
        let lists = ["volumes", "imagePullSecrets", "patchPodMetadata"];
        assert!(!lists.iter().any(|list| data(&spec)["spec"][list].to_string().contains("null")));
    }

    #[test]
    fn a_spec_is_restored_from_a_revision() {
        for (name, bytes) in REVISIONS {
            let restored = restore(&serde_json::from_str(bytes).unwrap()).unwrap();
            let members: Vec<&str> = restored.keys().map(String::as_str).collect();
            assert_eq!(members, ["containers", "patchPodMetadata"], "{name}");
            assert_eq!(super::name("golden-sidecar", &Value::Object(restored), 0), name);
        }
    }

    /// A8: what was recorded as the hashes of the SidecarSets that these revisions are of.
    #[test]
    fn a_revision_has_the_hash_of_its_own_content() {
        let of = |at: usize| {
            let restored = restore(&serde_json::from_str(REVISIONS[at].1).unwrap()).unwrap();
            crate::domain::kinds::sidecar_set::hash::of(&Value::Object(restored))
        };
        let (newer, older) = (of(0), of(1));
        assert_eq!(newer.hash, "4zddf87v28f8xb64fvf4vz77422f4cx4c85w558vdzd7969dxvc4x56df4zd8zbf");
        assert_eq!(older.hash, "5b8xfwb286f4c2c6d269b885dbbfx552426x9d5884z897zfwffxxv8c7f6xzbc5");
        assert_eq!(newer.without_image, "bv5647b97x64zw6dvwwf889cdvzxxvb752wc474b68964c8z5bw8fbxf548x46wd");
        assert_eq!(older.without_image, newer.without_image);
    }

    #[test]
    fn what_is_no_revision_is_not_restored() {
        for odd in [json!(null), json!({"spec": {"template": {}}}), json!({"spec": 1})] {
            assert_eq!(restore(&odd), None, "{odd}");
        }
    }
}
