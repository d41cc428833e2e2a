//! What a Job makes of a Pod that is evicted before it has a node.

use serde_json::Value;

/// Conditions of such a Pod. The first one comes from the eviction.
const CONDITIONS: [(&str, &str); 2] = [("DisruptionTarget", "True"), ("PodScheduled", "False")];

/// Whether the Job does not count it as failed: the first rule of its Pod failure policy that is for the Pod ignores it. Any other
/// Job counts it, with `podReplacementPolicy: Failed` only later, and fails after more of them than its `backoffLimit`.
pub fn ignores_disruptions(job: &Value) -> bool {
    let is_met = |pattern: &Value| {
        let status = pattern["status"].as_str().filter(|status| !status.is_empty()).unwrap_or("True");
        CONDITIONS.iter().any(|condition| Some(condition.0) == pattern["type"].as_str() && condition.1 == status)
    };
    // Rules for exit codes are not for a Pod that has never run.
    let is_for_pod =
        |rule: &&Value| rule["onPodConditions"].as_array().is_some_and(|patterns| patterns.iter().any(is_met));
    let rules = job.pointer("/spec/podFailurePolicy/rules").and_then(Value::as_array);
    rules.into_iter().flatten().find(is_for_pod).is_some_and(|rule| rule["action"] == "Ignore")
}
