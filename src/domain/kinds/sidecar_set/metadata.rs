//! `patchPodMetadata`: annotations that a SidecarSet gives to its Pods.

use serde_json::{Map, Value};

use crate::api::labels;

/// When annotations are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The Pod is created.
    Creation,
    /// Its sidecars are updated in place: what only fills gaps was given at creation, and somebody may have removed it
    /// since. Keys of Kubernetes and Kruise say how a Pod is created, or are written by others since; an admission policy
    /// keeps the manager from changing them.
    Update,
}

/// An annotation that cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("patchPodMetadata: annotation {key}: {whose} is no JSON, so that the two cannot be merged")]
pub struct MetadataError {
    /// The annotation.
    pub key: String,
    /// Which of the two values.
    pub whose: &'static str,
}

/// Gives the annotations of `spec.patchPodMetadata`; tells whether something changed. Policies that are not known are
/// ignored.
///
/// # Errors
/// One of two values to merge is no JSON. Some of the annotations may have been changed by then.
pub fn apply(annotations: &mut Map<String, Value>, patches: &Value, when: When) -> Result<bool, MetadataError> {
    let mut changed = false;
    for patch in patches.as_array().into_iter().flatten() {
        let policy = patch["patchPolicy"].as_str().unwrap_or_default();
        let may = |(key, _): &(&String, &Value)| when == When::Creation || !labels::is_of_system(key);
        for (key, value) in patch["annotations"].as_object().into_iter().flatten().filter(may) {
            let Some(value) = value.as_str() else { continue };
            let now = annotations.get(key).and_then(Value::as_str);
            let wanted = match (policy, now) {
                ("" | "Retain", None) if when == When::Creation => value.to_owned(),
                ("Overwrite", _) | ("MergePatchJson", None | Some("")) => value.to_owned(),
                ("MergePatchJson", Some(now)) => merged(key, now, value)?,
                _ => continue,
            };
            if now != Some(wanted.as_str()) {
                annotations.insert(key.clone(), wanted.into());
                changed = true;
            }
        }
    }
    Ok(changed)
}

fn merged(key: &str, now: &str, patch: &str) -> Result<String, MetadataError> {
    let parse = |text: &str, whose| {
        serde_json::from_str::<Value>(text).map_err(|_| MetadataError { key: key.to_owned(), whose })
    };
    let mut document = parse(now, "the value on the Pod")?;
    let before = document.clone();
    json_patch::merge(&mut document, &parse(patch, "the value of the SidecarSet")?);
    // What is merged already keeps its spelling.
    Ok(if document == before { now.to_owned() } else { document.to_string() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn applied(annotations: Value, policy: &str, value: &str, when: When) -> Result<Option<String>, MetadataError> {
        let mut annotations = annotations.as_object().cloned().unwrap_or_default();
        let changed = apply(&mut annotations, &json!([{"annotations": {"k": value}, "patchPolicy": policy}]), when)?;
        Ok(changed.then(|| annotations["k"].as_str().unwrap().to_owned()))
    }

    #[test]
    fn the_three_policies() {
        for (annotations, policy, value, wanted) in [
            (json!({}), "Retain", "b", Some("b")),
            (json!({}), "", "b", Some("b")),
            (json!({"k": "a"}), "Retain", "b", None),
            (json!({"k": "a"}), "Overwrite", "b", Some("b")),
            (json!({"k": "b"}), "Overwrite", "b", None),
            (json!({}), "Overwrite", "b", Some("b")),
            (json!({}), "MergePatchJson", "no json", Some("no json")),
            (json!({"k": ""}), "MergePatchJson", r#"{"a":1}"#, Some(r#"{"a":1}"#)),
            (json!({"k": r#"{"a":1,"b":2}"#}), "MergePatchJson", r#"{"b":null,"c":3}"#, Some(r#"{"a":1,"c":3}"#)),
            (json!({"k": "[1]"}), "MergePatchJson", r#"{"a":1,"b":null}"#, Some(r#"{"a":1}"#)),
            (json!({"k": r#"{ "a": 1 }"#}), "MergePatchJson", r#"{"a":1}"#, None),
            (json!({"k": "a"}), "Unknown", "b", None),
            (json!({}), "Unknown", "b", None),
        ] {
            let done = applied(annotations.clone(), policy, value, When::Creation);
            assert_eq!(done.unwrap().as_deref(), wanted, "{annotations} {policy} {value}");
        }
    }

    #[test]
    fn decision_28_retain_fills_gaps_at_creation_alone() {
        assert_eq!(applied(json!({}), "Retain", "b", When::Update), Ok(None));
        assert_eq!(applied(json!({}), "Overwrite", "b", When::Update), Ok(Some("b".into())));
    }

    #[test]
    fn keys_of_kubernetes_and_kruise_are_given_at_creation_alone() {
        let launch = "apps.kruise.io/container-launch-priority";
        for key in [labels::SIDECAR_SET_HASH, launch, "x.kubernetes.io/y", "kruise.rs/z"] {
            for policy in ["Retain", "Overwrite", "MergePatchJson"] {
                let patches = json!([{"annotations": {key: "{}", "mine": "1"}, "patchPolicy": policy}]);
                let mut created = Map::new();
                apply(&mut created, &patches, When::Creation).unwrap();
                assert_eq!(created[key], "{}", "{policy}");
                let there = json!({key: "no json", "mine": "1"});
                let mut updated = there.as_object().cloned().unwrap();
                let before = updated.clone();
                assert_eq!(apply(&mut updated, &patches, When::Update), Ok(false), "{key} {policy}");
                assert_eq!(updated, before);
            }
        }
    }

    #[test]
    fn e15_a_value_that_is_no_json_is_named() {
        let error = applied(json!({"k": "x"}), "MergePatchJson", "{}", When::Creation).unwrap_err().to_string();
        assert_eq!(
            error,
            "patchPodMetadata: annotation k: the value on the Pod is no JSON, so that the two cannot be merged"
        );
        let error = applied(json!({"k": "{}"}), "MergePatchJson", "x", When::Creation).unwrap_err();
        assert_eq!(error.whose, "the value of the SidecarSet");
    }
}
