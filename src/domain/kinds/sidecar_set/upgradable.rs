//! The Pod condition `SidecarSetUpgradable`: by SidecarSet, whether the Pod can be updated in place. The message is data, a JSON
//! object of SidecarSets, as OpenKruise writes it. Pods that were never updated in place have no such condition.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::notes::injected_into;
use crate::{
    api::labels::CONDITION_SIDECAR_SET_UPGRADABLE,
    k8s::{
        pod::{PodCondition, PodView},
        time::rfc3339,
    },
};

fn condition(pod: &PodView) -> Option<&PodCondition> {
    pod.conditions.iter().find(|condition| condition.type_ == CONDITION_SIDECAR_SET_UPGRADABLE)
}

/// What the condition says, by SidecarSet. A message that cannot be read says nothing.
fn said(pod: &PodView) -> BTreeMap<String, bool> {
    condition(pod).and_then(|condition| serde_json::from_str(&condition.message).ok()).unwrap_or_default()
}

/// What the condition says of one SidecarSet.
pub fn recorded(pod: &PodView, set: &str) -> Option<bool> {
    said(pod).get(set).copied()
}

/// The patch of `pods/status` by which the condition says this of a SidecarSet, and of no other SidecarSet anything else than
/// before. Those that were not injected into the Pod are left out.
pub fn patch(pod: &PodView, set: &str, can: bool, now: Timestamp) -> Value {
    let injected: BTreeSet<&str> = injected_into(pod).collect();
    let mut said = said(pod);
    said.retain(|name, _| injected.contains(name.as_str()));
    said.insert(set.to_owned(), can);
    let (status, reason) = match said.values().all(|can| *can) {
        true => ("True", "AllSidecarsetUpgradable"),
        false => ("False", "UpdateImmutableField"),
    };
    // Texts and booleans always serialize.
    let message = serde_json::to_string(&said).unwrap_or_default();
    let mut written =
        json!({"type": CONDITION_SIDECAR_SET_UPGRADABLE, "status": status, "reason": reason, "message": message});
    if condition(pod).is_none_or(|before| before.status != status) {
        written["lastTransitionTime"] = rfc3339(now).into();
    }
    let mut patch = json!({"status": {"conditions": [written]}});
    // Another SidecarSet may write meanwhile what it says.
    if injected.len() > 1 {
        patch["metadata"]["resourceVersion"] = json!(pod.resource_version());
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(injected: &str, condition: Value) -> PodView {
        let annotations = json!({"kruise.io/sidecarset-injected-list": injected});
        let metadata = json!({"name": "p", "uid": "u", "resourceVersion": "7", "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "status": {"conditions": [condition]}})).unwrap()
    }

    fn says(status: &str, message: &str) -> Value {
        json!({"type": CONDITION_SIDECAR_SET_UPGRADABLE, "status": status, "message": message})
    }

    #[test]
    fn it_is_written_as_openkruise_does() {
        let patch =
            patch(&pod("golden-sidecar", json!({"type": "Ready"})), "golden-sidecar", true, Timestamp::UNIX_EPOCH);
        let recorded = json!({"lastTransitionTime": "1970-01-01T00:00:00Z", "message": r#"{"golden-sidecar":true}"#,
            "reason": "AllSidecarsetUpgradable", "status": "True", "type": "SidecarSetUpgradable"});
        assert_eq!(patch, json!({"status": {"conditions": [recorded]}}));
    }

    #[test]
    fn each_set_says_its_own_and_all_have_to_be_upgradable() {
        for (before, set, can, message, status, is_new) in [
            (says("True", r#"{"b":true}"#), "a", false, r#"{"a":false,"b":true}"#, "False", true),
            (says("False", r#"{"a":false,"b":true}"#), "a", true, r#"{"a":true,"b":true}"#, "True", true),
            (says("False", r#"{"a":false,"b":false}"#), "a", true, r#"{"a":true,"b":false}"#, "False", false),
            (says("False", r#"{"gone":false}"#), "a", true, r#"{"a":true}"#, "True", true),
            (says("True", "[1]"), "b", true, r#"{"b":true}"#, "True", false),
            (json!({"type": "Ready"}), "b", false, r#"{"b":false}"#, "False", true),
        ] {
            let patch = patch(&pod("a,b", before.clone()), set, can, Timestamp::UNIX_EPOCH);
            let condition = &patch["status"]["conditions"][0];
            assert_eq!((&condition["message"], &condition["status"]), (&json!(message), &json!(status)), "{before}");
            assert_eq!(condition["lastTransitionTime"].is_string(), is_new, "{before}");
            assert_eq!(patch["metadata"]["resourceVersion"], "7", "the other one writes it too");
        }
    }

    #[test]
    fn what_is_recorded_is_read_and_a_text_of_any_length_is_harmless() {
        assert_eq!(recorded(&pod("a", says("True", r#"{"a":true,"b":false}"#)), "b"), Some(false));
        assert_eq!(recorded(&pod("a", says("True", "x")), "a"), None);
        let long = format!(r#"{{"a":true,"{}":true}}"#, "x".repeat(1 << 20));
        let long = pod("a", says("True", &long));
        assert_eq!((recorded(&long, "a"), condition(&long).unwrap().message.len()), (None, 0));
    }
}
