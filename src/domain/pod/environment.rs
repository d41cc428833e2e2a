//! The environment that a container reads from labels and annotations of its Pod.

use serde_json::{Value, json};

use crate::api::labels;

/// Environment variables of SidecarSet: a change of theirs restarts nothing.
const OWN_ENVIRONMENT: [&str; 2] = [labels::ENV_SIDECAR_SET_VERSION, labels::ENV_SIDECAR_SET_VERSION_ALT];

/// The environment of a container that is read from single labels (true) and annotations (false).
pub fn referred_keys(container: &Value) -> impl Iterator<Item = (bool, String)> {
    environment_from_metadata(container).map(|(_, is_label, key)| (is_label, key))
}

/// Name of the variable, whether it is a label, and its key. Of variables with one name the last one holds.
fn environment_from_metadata(container: &Value) -> impl Iterator<Item = (&str, bool, String)> {
    let env = container.get("env").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    env.iter().enumerate().filter_map(|(i, entry)| {
        let name = entry.get("name")?.as_str()?;
        let has_value = entry.get("value").and_then(Value::as_str).is_some_and(|value| !value.is_empty());
        let is_replaced = env[i + 1..].iter().any(|later| later.get("name").and_then(Value::as_str) == Some(name));
        if has_value || is_replaced || OWN_ENVIRONMENT.contains(&name) {
            return None;
        }
        let path = entry.pointer("/valueFrom/fieldRef/fieldPath")?.as_str()?;
        let (kind, rest) = path.strip_prefix("metadata.")?.split_once("['")?;
        let key = rest.strip_suffix("']")?;
        match kind {
            "labels" => Some((name, true, key.to_owned())),
            "annotations" => Some((name, false, key.to_owned())),
            _ => None,
        }
    })
}

/// The input of the hash that shows whether a container runs with the environment that its Pod's metadata now gives:
/// `null` without such environment.
pub fn expected_environment(container: &Value, pod: &Value) -> Value {
    environment(container, |_, is_label, key| {
        let kind = if is_label { "labels" } else { "annotations" };
        pod.get("metadata")?.get(kind)?.get(key)?.as_str()
    })
}

/// The same of what an instance of the container really got: its environment, as `NAME=value`.
pub fn actual_environment(container: &Value, got: &[String]) -> Value {
    // As for a process: of several the last one holds, and only the first `=` divides.
    let value = |name: &str| got.iter().rev().find_map(|line| line.split_once('=').filter(|(n, _)| *n == name));
    environment(container, |name, _, _| value(name).map(|(_, value)| value))
}

fn environment<'v>(container: &Value, value: impl Fn(&str, bool, &str) -> Option<&'v str>) -> Value {
    let mut entries: Vec<(&str, Value)> = environment_from_metadata(container)
        .map(|(name, is_label, key)| {
            let value = value(name, is_label, &key).filter(|value| !value.is_empty());
            (name, value.map_or_else(|| json!({"name": name}), |value| json!({"name": name, "value": value})))
        })
        .collect();
    entries.sort_by_key(|(name, _)| *name);
    if entries.is_empty() { Value::Null } else { entries.into_iter().map(|(_, entry)| entry).collect() }
}
