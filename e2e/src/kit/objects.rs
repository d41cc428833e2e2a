//! Building and reading objects as JSON.

use serde_json::{Map, Value, json};

use crate::images::{BUSYBOX, PAUSE};

/// Reading by JSON pointer; what is not there reads as nothing.
pub trait Look {
    fn text(&self, pointer: &str) -> &str;
    fn int(&self, pointer: &str) -> i64;
    fn array(&self, pointer: &str) -> &[Value];
    fn has(&self, pointer: &str) -> bool;
}

impl Look for Value {
    fn text(&self, pointer: &str) -> &str {
        self.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }
    fn int(&self, pointer: &str) -> i64 {
        self.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
    }
    fn array(&self, pointer: &str) -> &[Value] {
        self.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }
    fn has(&self, pointer: &str) -> bool {
        self.pointer(pointer).is_some()
    }
}

/// Setting by JSON pointer; objects on the way are made.
pub trait Build {
    fn with(self, pointer: &str, value: impl Into<Value>) -> Value;
}

impl Build for Value {
    fn with(mut self, pointer: &str, value: impl Into<Value>) -> Value {
        let mut at = &mut self;
        for part in pointer.split('/').skip(1) {
            let part = part.replace("~1", "/").replace("~0", "~");
            at = match at {
                Value::Array(items) => {
                    let index: usize = part.parse().expect("a number selects from an array");
                    &mut items[index]
                }
                other => {
                    if !other.is_object() {
                        *other = Value::Object(Map::new());
                    }
                    other.as_object_mut().expect("made above").entry(part).or_insert(Value::Null)
                }
            };
        }
        *at = value.into();
        self
    }
}

/// A Pod of these containers, which has two seconds to end.
pub fn pod(name: &str, containers: Vec<Value>) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "terminationGracePeriodSeconds": 2,
            // the node is the only one: the scheduler adds nothing but time, and it is wanted that Pods can be many
            "automountServiceAccountToken": false,
            "containers": containers,
        },
    })
}

/// Of local images. Once pulled, by a CloneSet whose containers get `Always`, they would have a digest for every test.
const NEVER_PULLED: &str = "IfNotPresent";

/// A container that ends at once when asked to.
pub fn app(name: &str) -> Value {
    json!({ "name": name, "image": PAUSE, "imagePullPolicy": NEVER_PULLED })
}

/// A container that runs a shell script, then sleeps, and ends at once when asked to.
pub fn shell(name: &str, script: &str) -> Value {
    let script = format!("trap 'exit 0' TERM\n{script}\nwhile :; do sleep 1000 & wait $!; done");
    json!({ "name": name, "image": BUSYBOX, "imagePullPolicy": NEVER_PULLED, "command": ["sh", "-c", script] })
}

/// A container that does not listen: only SIGKILL ends it.
pub fn stubborn(name: &str) -> Value {
    let script = "trap '' TERM; while :; do sleep 1000; done";
    json!({ "name": name, "image": BUSYBOX, "imagePullPolicy": NEVER_PULLED, "command": ["sh", "-c", script] })
}

/// A request for containers of a Pod.
pub fn crr(name: &str, pod: &str, containers: &[&str]) -> Value {
    let containers: Vec<Value> = containers.iter().map(|c| json!({ "name": c })).collect();
    json!({
        "apiVersion": "apps.kruise.io/v1alpha1",
        "kind": "ContainerRecreateRequest",
        "metadata": { "name": name },
        "spec": { "podName": pod, "containers": containers },
    })
}

/// A workload of Pods that have the label app=NAME. DaemonSets have no replicas.
pub fn workload(kind: &str, name: &str, replicas: i64, containers: Vec<Value>) -> Value {
    let pod = pod(name, containers);
    let selector = json!({ "app": name });
    let selector = if kind == "ReplicationController" { selector } else { json!({ "matchLabels": selector }) };
    let template = json!({ "metadata": { "labels": { "app": name } }, "spec": pod["spec"] });
    let mut object =
        json!({ "kind": kind, "metadata": { "name": name }, "spec": { "selector": selector, "template": template } });
    if kind != "DaemonSet" {
        object["spec"]["replicas"] = replicas.into();
    }
    if kind == "StatefulSet" {
        object["spec"]["serviceName"] = name.into();
        object["spec"]["podManagementPolicy"] = "Parallel".into();
    }
    object
}

/// A restart of a workload, or of the Pods with the label app=NAME if the kind is Pod.
pub fn restart_of(name: &str, kind: &str, target: &str, spec: Value) -> Value {
    let mut object = json!({ "kind": "WorkloadRestart", "metadata": { "name": name }, "spec": spec });
    let version = if kind == "ReplicationController" { "v1" } else { "apps/v1" };
    match kind {
        "Pod" => object["spec"]["selector"] = json!({ "matchLabels": { "app": target } }),
        _ => object["spec"]["targetRef"] = json!({ "apiVersion": version, "kind": kind, "name": target }),
    }
    object
}

/// The status of a condition of an object: `True`, `False`, `Unknown`, or nothing.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    let conditions = object.array("/status/conditions");
    conditions.iter().find(|c| c.text("/type") == kind).map_or("", |c| c.text("/status"))
}

/// The number of a state of an object: of all objects of a kind, what was written later has a greater one.
pub fn written(object: &Value) -> u64 {
    object.text("/metadata/resourceVersion").parse().unwrap_or_default()
}

/// Of all events, those about one object, as "reason: message", oldest first.
pub fn events_of(events: &[Value], kind: &str, name: &str) -> Vec<String> {
    let mut found: Vec<&Value> = events
        .iter()
        .filter(|e| e.text("/involvedObject/kind") == kind && e.text("/involvedObject/name") == name)
        .collect();
    found.sort_by_key(|e| e.text("/metadata/creationTimestamp").to_owned());
    found.iter().map(|e| format!("{}: {}", e.text("/reason"), e.text("/message"))).collect()
}

/// An object for a message: without what nobody reads.
pub(super) fn short(object: &Value) -> String {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    serde_yaml::to_string(&object).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_makes_what_is_missing_and_enters_arrays() {
        let pod = pod("a", vec![app("main")]);
        let pod = pod.with("/spec/containers/0/lifecycle/preStop/exec/command", json!(["true"]));
        assert_eq!(pod.text("/spec/containers/0/lifecycle/preStop/exec/command/0"), "true");
        assert_eq!(
            pod.with("/metadata/annotations/a~1b", "c").pointer("/metadata/annotations/a~1b"),
            Some(&json!("c"))
        );
    }
}
