//! Whether a change of a Pod takes it out of service.

use serde_json::{Map, Value};

use super::Operation;
use crate::{api::labels, domain::pod::inplace::resize};

/// Parts of a Pod's spec whose change restarts nothing.
const HARMLESS: [&str; 4] = ["tolerations", "schedulingGates", "ephemeralContainers", "terminationGracePeriodSeconds"];

/// The operation that a change is. None: it does not make the Pod unavailable.
pub fn operation_of(old: &Value, new: &Value) -> Option<Operation> {
    let marks = |pod: &Value| -> Vec<String> {
        let labels = pod.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
        labels.map(|(key, _)| key.clone()).filter(|key| key.starts_with(labels::UNAVAILABLE_POD_PREFIX)).collect()
    };
    let before = marks(old);
    if marks(new).iter().any(|key| !before.contains(key)) {
        return Some(Operation::Update);
    }
    let empty = Value::Null;
    let (old_spec, new_spec) = (old.get("spec").unwrap_or(&empty), new.get("spec").unwrap_or(&empty));
    if without(old_spec, false) == without(new_spec, false) {
        return None;
    }
    let only_resources = without(old_spec, true) == without(new_spec, true);
    let is_static = new.pointer("/metadata/annotations").is_some_and(|a| a.get(labels::STATIC_POD_MIRROR).is_some());
    let same_class = resize::qos(old_spec) == resize::qos(new_spec);
    match only_resources && !is_static && same_class && is_gentle(old_spec, new_spec) {
        true => Some(Operation::Resize),
        false => Some(Operation::Update),
    }
}

/// A spec without what restarts nothing and, if wanted, without the resources of its containers.
fn without(spec: &Value, resources: bool) -> Map<String, Value> {
    let mut spec = spec.as_object().cloned().unwrap_or_default();
    spec.retain(|key, _| !(HARMLESS.contains(&key.as_str()) || resources && key == "resources"));
    if resources {
        for containers in ["containers", "initContainers"] {
            for container in spec.get_mut(containers).and_then(Value::as_array_mut).into_iter().flatten() {
                if let Some(container) = container.as_object_mut() {
                    container.remove("resources");
                }
            }
        }
    }
    spec
}

/// Whether kubelet can change the resources that differ without a restart: processor and memory, and no container whose
/// policy for the resource says otherwise.
fn is_gentle(old: &Value, new: &Value) -> bool {
    ["containers", "initContainers"].into_iter().all(|list| {
        let containers = |spec: &Value| spec.get(list).and_then(Value::as_array).cloned().unwrap_or_default();
        containers(old).iter().zip(containers(new)).all(|(old, new)| {
            changed_resources(old, &new).iter().all(|name| {
                let policies = new.get("resizePolicy").and_then(Value::as_array).into_iter().flatten();
                let policy = policies
                    .filter(|policy| policy["resourceName"] == **name)
                    .find_map(|policy| policy["restartPolicy"].as_str())
                    .unwrap_or_default();
                ["cpu", "memory"].contains(&name.as_str()) && ["", "NotRequired"].contains(&policy)
            })
        })
    })
}

fn changed_resources(old: &Value, new: &Value) -> Vec<String> {
    let amounts = |container: &Value, kind: &str| -> Map<String, Value> {
        container.pointer(&format!("/resources/{kind}")).and_then(Value::as_object).cloned().unwrap_or_default()
    };
    let mut changed = Vec::new();
    for kind in ["limits", "requests"] {
        let (old, new) = (amounts(old, kind), amounts(new, kind));
        for key in old.keys().chain(new.keys()) {
            if old.get(key) != new.get(key) && !changed.contains(key) {
                changed.push(key.clone());
            }
        }
    }
    // Claims and whatever else there may be.
    let rest = |container: &Value| {
        let mut resources = container.get("resources").and_then(Value::as_object).cloned().unwrap_or_default();
        resources.retain(|key, _| key != "limits" && key != "requests");
        resources
    };
    if rest(old) != rest(new) {
        changed.push("claims".to_owned());
    }
    changed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(changes: Value) -> Value {
        let mut pod = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [
            {"name": "main", "image": "a:1", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}});
        json_patch::merge(&mut pod, &changes);
        pod
    }
    fn container(changes: Value) -> Value {
        let mut container = pod(json!({}))["spec"]["containers"][0].clone();
        json_patch::merge(&mut container, &changes);
        pod(json!({"spec": {"containers": [container]}}))
    }

    #[test]
    fn what_restarts_nothing_needs_no_budget() {
        for new in [
            pod(json!({})),
            pod(json!({"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}})),
            pod(json!({"spec": {"tolerations": [{"operator": "Exists"}]}})),
            pod(json!({"spec": {"ephemeralContainers": [{"name": "debug"}]}})),
        ] {
            assert_eq!(operation_of(&pod(json!({})), &new), None, "{new}");
        }
    }

    #[test]
    fn a_new_image_is_an_update() {
        assert_eq!(operation_of(&pod(json!({})), &container(json!({"image": "a:2"}))), Some(Operation::Update));
    }

    #[test]
    fn b10_adding_an_unavailable_label_is_an_update_and_removing_it_is_not() {
        let marked = pod(json!({"metadata": {"labels": {"unavailable-pod.kruise.io/x": ""}}}));
        assert_eq!(operation_of(&pod(json!({})), &marked), Some(Operation::Update));
        assert_eq!(operation_of(&marked, &marked), None);
        assert_eq!(operation_of(&marked, &pod(json!({}))), None);
    }

    #[test]
    fn more_processor_time_is_a_resize_unless_it_restarts_the_container() {
        let more = json!({"resources": {"requests": {"cpu": "2"}}});
        assert_eq!(operation_of(&pod(json!({})), &container(more.clone())), Some(Operation::Resize));
        let policy = |policy: &str| json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": policy}]});
        for (word, want) in [("NotRequired", Operation::Resize), ("RestartContainer", Operation::Update)] {
            let mut with = more.clone();
            json_patch::merge(&mut with, &policy(word));
            assert_eq!(operation_of(&container(policy(word)), &container(with)), Some(want), "{word}");
        }
    }

    #[test]
    fn a_resize_that_changes_the_class_or_another_resource_is_an_update() {
        let limits = json!({"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}});
        assert_eq!(operation_of(&pod(json!({})), &container(limits)), Some(Operation::Update));
        let disk = json!({"resources": {"requests": {"ephemeral-storage": "1Gi"}}});
        assert_eq!(operation_of(&pod(json!({})), &container(disk)), Some(Operation::Update));
        let both = json!({"image": "a:2", "resources": {"requests": {"cpu": "2"}}});
        assert_eq!(operation_of(&pod(json!({})), &container(both)), Some(Operation::Update));
    }
}
