//! The ConfigMap `kruise-configuration` in our own namespace: which kinds of others a feature may be used for.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use serde_json::Value;

use super::apply::code;
use crate::k8s::rbac::Rule;

/// Its name.
pub const NAME: &str = "kruise-configuration";
/// The key with the kinds that a PersistentPodState may be for.
pub const STATE_TARGETS: &str = "PPS_Watch_Custom_Workload_WhiteList";
/// The key with the kinds that a WorkloadSpread may be for.
pub const SPREAD_TARGETS: &str = "WorkloadSpread_Watch_Custom_Workload_WhiteList";
/// The right to read it, in our own namespace.
pub const READ: Rule = Rule::new(&[""], &["configmaps"], &["get"]).named(&[NAME]);

/// The text under a key. None: the ConfigMap is not there, or has no such key.
///
/// # Errors
/// Those of the API server; `SerdeError` if the text is no JSON object. Read as an empty list it would refuse, for a wrong
/// reason, what an administrator meant to allow.
pub async fn text(client: &Client, namespace: &str, key: &str) -> kube::Result<Option<String>> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    match api.get(NAME).await {
        Ok(map) => {
            let text = map.data.and_then(|mut data| data.remove(key));
            text.map(|text| checked(key, text)).transpose().map_err(kube::Error::SerdeError)
        }
        Err(error) if code(&error) == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A text that is a JSON object, or blank: that names nothing.
fn checked(key: &str, text: String) -> Result<String, serde_json::Error> {
    if text.trim().is_empty() {
        return Ok(text);
    }
    match serde_json::from_str::<serde_json::Map<String, Value>>(&text) {
        Ok(_) => Ok(text),
        Err(error) => {
            Err(serde::de::Error::custom(format!("{key} in the ConfigMap {NAME} is no JSON object: {error}")))
        }
    }
}

/// Whether a whitelist of workloads names a kind, in any version: `{"workloads": [{"Group": ..., "Kind": ...}]}`. Member names
/// are compared without regard to case, as OpenKruise's decoder does. What cannot be read names nothing.
pub fn names_kind(whitelist: &str, group: &str, kind: &str) -> bool {
    entry(whitelist, group, kind).is_some()
}

/// The path to the number of replicas that a whitelist gives for a kind, under `replicasPath`.
pub fn replicas_path(whitelist: &str, group: &str, kind: &str) -> Option<String> {
    let entry = entry(whitelist, group, kind)?;
    member(&entry, "replicasPath")?.as_str().filter(|path| !path.is_empty()).map(str::to_owned)
}

/// Whether a whitelist names a kind, or has it among the `subResources` of one that it names: those that stand between Pods and
/// their workload.
pub fn names_between(whitelist: &str, group: &str, kind: &str) -> bool {
    let is_sub = |workload: &Value| {
        let subs = member(workload, "subResources").and_then(Value::as_array);
        subs.into_iter().flatten().any(|sub| is_kind(sub, group, kind))
    };
    workloads(whitelist).iter().any(|workload| is_kind(workload, group, kind) || is_sub(workload))
}

fn entry(whitelist: &str, group: &str, kind: &str) -> Option<Value> {
    workloads(whitelist).into_iter().find(|workload| is_kind(workload, group, kind))
}

fn workloads(whitelist: &str) -> Vec<Value> {
    let Ok(whitelist) = serde_json::from_str::<Value>(whitelist) else { return Vec::new() };
    member(&whitelist, "workloads").and_then(Value::as_array).cloned().unwrap_or_default()
}

fn is_kind(entry: &Value, group: &str, kind: &str) -> bool {
    let text = |name: &str| member(entry, name).and_then(Value::as_str).unwrap_or_default();
    !kind.is_empty() && (text("group"), text("kind")) == (group, kind)
}

fn member<'v>(object: &'v Value, name: &str) -> Option<&'v Value> {
    object.as_object()?.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spec_0_5_what_is_no_json_is_an_error_that_names_the_key() {
        for fine in ["", " \n", "{}", r#"{"workloads":[]}"#] {
            assert_eq!(checked("Key", fine.into()).unwrap(), fine);
        }
        for bad in ["{", "[]", "workloads: []"] {
            let error = checked("Key", bad.into()).unwrap_err().to_string();
            assert!(error.starts_with("Key in the ConfigMap kruise-configuration is no JSON object: "), "{error}");
        }
    }

    #[test]
    fn kinds_are_named_in_any_case_and_any_version() {
        let list = r#"{"workloads":[{"Group":"g.example","Version":"v1","Kind":"Db"},{"group":"h","kind":"K"}]}"#;
        for (group, kind, wanted) in
            [("g.example", "Db", true), ("h", "K", true), ("h", "Db", false), ("", "", false), ("g.example", "", false)]
        {
            assert_eq!(names_kind(list, group, kind), wanted, "{group} {kind}");
        }
        for unreadable in ["", "{", "[]", r#"{"workloads":{}}"#, r#"{"workloads":[1]}"#] {
            assert!(!names_kind(unreadable, "g.example", "Db"), "{unreadable}");
        }
    }
}
